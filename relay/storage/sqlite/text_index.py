"""The index of texts: a file beside the store that follows its log, in its own time.

Nothing waits for it but a search, and nothing is lost with it: deleted, damaged or of another store
it is made anew from the log. What it finds counts only while the store has the row, so that it may
forget deleted rows a little later; all of it runs on the index's own thread, but for `forget`.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import StoreFault, StoreVersion
from relay.nostr.event import event_from_raw
from relay.nostr.nip50 import Searchable, searchable
from relay.storage.sqlite.queries import script
from relay.storage.sqlite.sql import named_queries
from relay.storage.sqlite.words import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event

QUERIES: Final = named_queries(script("search.sql"))
APPLICATION_ID: Final = 0x526F6F6C  # "Rool"
INDEX_VERSION: Final = 1
"""Another number: the file is made anew."""
_CACHE_KIB: Final = 32_768
_FORGOTTEN_AT_ONCE: Final = 1000
_FORGOTTEN_AT_MOST: Final = 100_000
"""Deleted rows that may wait; of more the oldest are met by the round of `tidy`."""
_LOOKED_AT_ONCE: Final = 2000
_MERGED_PAGES: Final = 200
_MERGE_EVERY_S: Final = 3600
"""How soon words of deleted texts leave the file; until then who reads the file finds them."""


def index_path(store: Path) -> Path:
    return store.with_name("search.db")


class TextIndex:
    """Use `opened_index`."""

    def __init__(self, db: sqlite3.Connection, upto: int, rules: str | None) -> None:
        self._db = db
        self._rules = rules
        self._gone: deque[int] = deque(maxlen=_FORGOTTEN_AT_MOST)
        self._looked_at = 0
        self._is_merging = False
        self.upto = upto
        """Every row of the log up to this seq is indexed."""

    def forget(self, seqs: Iterable[int]) -> None:
        """These rows were deleted. On any thread; takes effect with the next step."""
        self._gone.extend(seqs)

    def follow(
        self, text_of: Callable[[Event], str | None], rules: str, limit: int, head: int
    ) -> int:
        """The next `limit` rows of the log, in one transaction; gives the new `upto`.

        `head`: seq of a row that is committed, or was: the newest of all may have gone.
        """
        db = self._db
        if rules != self._rules:
            with _transaction(db):
                self._begin_anew(rules)
            self._rules, self.upto = rules, 0
        rows = db.execute(QUERIES["log"], (self.upto, limit)).fetchall()
        upto = rows[-1][0] if rows else self.upto
        if len(rows) < limit:
            upto = max(upto, head)
        if rows or self._gone:
            with _transaction(db):
                self._add(rows, text_of)
                # After the adds: a row may have gone since the log was read.
                self._forget_some()
                db.execute(QUERIES["put_meta"], ("upto", upto))
        self.upto = upto
        return upto

    def _begin_anew(self, rules: str) -> None:
        for query in ("empty_words", "empty_ranks", "empty_texts"):
            self._db.execute(QUERIES[query])
        self._db.execute(QUERIES["put_meta"], ("rules", rules))
        self._db.execute(QUERIES["put_meta"], ("upto", 0))

    def _add(
        self, rows: Sequence[tuple[int, int, bytes]], text_of: Callable[[Event], str | None]
    ) -> None:
        words, ranks, texts = [], [], []
        for seq, id_key, raw in rows:
            event = event_from_raw(raw)
            text = text_of(event)
            if text is None:
                continue
            found = searchable(text)
            words.append(_columns(seq, found))
            ranks.append((seq, event.created_at, id_key, *found.worth))
            texts.append((seq, found.text))
        self._db.executemany(QUERIES["add_words"], words)
        self._db.executemany(QUERIES["add_rank"], ranks)
        self._db.executemany(QUERIES["add_text"], texts)

    def _forget_some(self) -> None:
        seqs: list[int] = []
        while self._gone and len(seqs) < _FORGOTTEN_AT_ONCE:
            seqs.append(self._gone.popleft())
        self._drop(seqs)

    def _drop(self, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        db = self._db
        found = db.execute(QUERIES["texts_of"], (orjson.dumps(seqs).decode(),)).fetchall()
        if not found:
            return
        db.executemany(
            QUERIES["drop_words"], [_columns(seq, searchable(text)) for seq, text in found]
        )
        db.executemany(QUERIES["drop_rank"], [(seq,) for seq, _ in found])
        db.executemany(QUERIES["drop_text"], [(seq,) for seq, _ in found])
        db.execute(QUERIES["put_meta"], ("has_deleted", 1))

    def tidy(self, now: int) -> bool:
        """A step towards holding nothing but what the store holds; True: more is due at once."""
        db = self._db
        with _transaction(db):
            self._forget_some()
            seqs = [
                s for (s,) in db.execute(QUERIES["next_ranks"], (self._looked_at, _LOOKED_AT_ONCE))
            ]
            # Round and round: what a crash, or the clock, let stay is met within some minutes.
            self._looked_at = seqs[-1] if len(seqs) == _LOOKED_AT_ONCE else 0
            listed = orjson.dumps(seqs).decode()
            self._drop([seq for (seq,) in db.execute(QUERIES["gone"], (listed, now))])
        return bool(self._gone) or self._merge(now)

    def _merge(self, now: int) -> bool:
        """FTS5 marks words as deleted and keeps them until their part of the index is rewritten."""
        db = self._db
        before = db.total_changes
        if self._is_merging:
            db.execute(QUERIES["merge"], (_MERGED_PAGES,))
            if db.total_changes - before >= 2:
                return True
            self._is_merging = False
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return False
        if not self._meta("has_deleted", 0) or now - self._meta("merged_at", 0) < _MERGE_EVERY_S:
            return False
        with _transaction(db):
            db.execute(QUERIES["put_meta"], ("has_deleted", 0))
            db.execute(QUERIES["put_meta"], ("merged_at", now))
            db.execute(QUERIES["merge"], (-_MERGED_PAGES,))
        self._is_merging = True
        return True

    def _meta(self, name: str, otherwise: int) -> int:
        row = self._db.execute(QUERIES["get_meta"], (name,)).fetchone()
        return otherwise if row is None else int(row[0])

    def close(self) -> None:
        self._db.close()


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    # Not IMMEDIATE: that would lock the attached store against its writer.
    db.execute("BEGIN")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _columns(seq: int, found: Searchable) -> tuple[int, str, str, str]:
    return seq, found.text, found.repeated, found.frequent


def opened_index(store: Path, key: str, head: int) -> TextIndex:
    """The index of the store at `store`, whose key and head these are; made anew if it is not."""
    path = index_path(store)
    try:
        db = _usable(path, key, head)
        if db is None:
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            db = _fresh(path, key)
        db.execute("ATTACH ? AS store", (str(store),))
        upto = db.execute(QUERIES["get_meta"], ("upto",)).fetchone()[0]
        rules = db.execute(QUERIES["get_meta"], ("rules",)).fetchone()
        return TextIndex(db, upto, rules and rules[0])
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"{path}: {error}; check the folder and its permissions") from error


def _usable(path: Path, key: str, head: int) -> sqlite3.Connection | None:
    """None: it must be made anew."""
    if not path.exists():
        return None
    try:
        db = _connection(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # damaged
        return None
    is_usable = False
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and tables:
            raise StoreVersion(f"{path} is a database of another program; move it away")
        if db.execute("PRAGMA user_version").fetchone()[0] == INDEX_VERSION:
            of = db.execute(QUERIES["get_meta"], ("store",)).fetchone()
            upto = db.execute(QUERIES["get_meta"], ("upto",)).fetchone()
            # An index that is ahead is of a store that was put back from an older copy.
            is_usable = of == (key,) and upto[0] <= head
    finally:
        if not is_usable:
            db.close()
    return db if is_usable else None


def _fresh(path: Path, key: str) -> sqlite3.Connection:
    # It holds what private groups say; -wal and -shm follow this file.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = _connection(path)
    with _transaction(db):
        for make in ("make_meta", "make_ranks", "make_texts"):
            db.execute(QUERIES[make])
        db.execute(TABLE)
        db.execute(QUERIES["put_meta"], ("store", key))
        db.execute(QUERIES["put_meta"], ("upto", 0))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {INDEX_VERSION}")
    return db


def _connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA journal_mode = WAL")
        # A power loss may take the newest part, never the whole; the log has it still.
        db.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        db.close()
        raise
    return db
