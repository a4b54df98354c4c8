"""The index of texts against the texts of the rows."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from relay.nostr.nip50 import searchable
from relay.storage.rows import INDEXED_BYTES
from relay.storage.sqlite.connections import file_connection, index_path
from relay.storage.sqlite.fts import Stems, kind_token
from relay.storage.sqlite.row_check import name_of
from relay.storage.sqlite.sql.named import SEARCH_QUERIES
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.row_check import Row, Rules


def search_snapshot(path: Path) -> sqlite3.Connection | None:
    file = index_path(path)
    if not file.exists():
        return None
    db = file_connection(file)
    try:
        db.execute("BEGIN")
        db.execute(SEARCH_QUERIES["get_meta"], ("upto",)).fetchone()
    except sqlite3.Error:  # damaged: the next start rebuilds it
        db.close()
        return None
    return db


class SearchCheck:
    """`check` gets all rows, in order of seq; `finish` compares the words of their texts."""

    def __init__(
        self,
        db: sqlite3.Connection,
        hashes: Hashes,
        rules: Rules,
        now: int,
        head: int,
        report: Callable[[str], object],
    ) -> None:
        """`head`: of the store. An older copy of it may have been put back. `report` gets a text
        for each finding."""
        self._db = db
        self._report = report
        self._text_of = rules.text_of
        self._now = now
        found = [
            db.execute(SEARCH_QUERIES["get_meta"], (name,)).fetchone()
            for name in ("store", "upto", "rules")
        ]
        fits = found[0] == (hashes.fingerprint(),) and found[2] == (rules.search_rules,)
        self.is_current = fits and found[1][0] <= head
        """The next start continues with it."""
        self._upto: int = found[1][0] if self.is_current else 0
        self._expected: dict[int, tuple[bytes, int]] = {}
        """seq → id, and the number of `occurrences`."""
        self._stems = Stems()
        self._fresh = sqlite3.connect(":memory:", isolation_level=None)
        self._fresh.execute(SEARCH_QUERIES["make_words"])
        for each in (db, self._fresh):
            each.execute(VERIFY["make_index_words"])

    def check(self, known: Sequence[tuple[Row, Event]]) -> None:
        """A few long texts at a time: their words take forty times as much memory."""
        part: list[tuple[Row, Event]] = []
        size = 0
        for row, event in known:
            part.append((row, event))
            size += len(row.raw)
            if size >= INDEXED_BYTES:
                self._check_part(part)
                part, size = [], 0
        if part:
            self._check_part(part)

    def _check_part(self, known: Sequence[tuple[Row, Event]]) -> None:
        upto, texts = self._upto, {}
        for row, event in known:
            if row.seq <= upto and (row.expires_at is None or row.expires_at > self._now):
                text = self._text_of(event)
                if text is not None:
                    texts[row.seq] = row, searchable(text)
        if not texts:
            return
        asked = known[0][0].seq, known[-1][0].seq
        there = {
            seq: tuple(rest) for seq, *rest in self._db.execute(VERIFY["indexed_texts"], asked)
        }
        wrong = set()
        listed = self._stems.listed([found for _, found in texts.values()])
        self._fresh.execute("BEGIN")
        for (seq, (row, found)), stems in zip(texts.items(), listed, strict=True):
            columns = found.text, found.repeated, found.frequent, kind_token(row.kind)
            self._fresh.execute(SEARCH_QUERIES["add_words"], (seq, *columns))
            expected = row.kind, stems, found.text, seq, row.created_at, row.id_key, *found.scores
            if there.get(seq) != expected:
                wrong.add(seq)
                self._report(f"{name_of(row)}: its text is missing or different")
        for seq, words in self._fresh.execute(VERIFY["occurrences"]):
            if seq not in wrong:
                self._expected[seq] = texts[seq][0].id, words
        self._fresh.execute("ROLLBACK")

    def finish(self) -> None:
        if self.is_current:
            for seq, words in self._db.execute(VERIFY["occurrences"]):
                if seq in self._expected and self._expected[seq][1] == words:
                    del self._expected[seq]
            for id_, _ in self._expected.values():
                self._report(f"event {id_.hex()}: its words are not those of its text")
        self._fresh.close()
        self._stems.close()
