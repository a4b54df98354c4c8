"""The text index: a table that follows the log, and a GIN index of its tokens.

The table is changed by one process at a time; a deletion removes its texts in its own transaction.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from relay.nostr.event import event_from_raw
from relay.nostr.nip50 import searchable
from relay.storage.postgres.sql.named import SEARCH_QUERIES as QUERIES
from relay.storage.recall import thread_of
from relay.storage.rows import rows_to_index
from relay.storage.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.nostr.event import Event
    from relay.storage.postgres.connections import Connections

_CHECK_CHUNK: Final = 2000


class TextIndex:
    def __init__(self, connections: Connections, head: Callable[[], int]) -> None:
        self._connections = connections
        self._head = head
        self._tokenizer = Tokenizer()
        self._lock = asyncio.Lock()
        self._checked = 0
        self.upto = "", 0
        """Its rules and its seq, as of the last write or read."""

    async def index(self, text_of: Callable[[Event], str | None], rules: str, limit: int) -> int:
        head = self._head()
        async with self._lock, self._connections.reading() as db, db.transaction():
            state = await db.fetchrow(QUERIES["state"])
            before: int = state["upto"]
            upto = before
            if state["rules"] != rules:
                await db.execute(QUERIES["empty_texts"])
                await db.execute(QUERIES["put_meta"], "search_rules", rules)
                upto = 0
            rows, upto = await rows_to_index(partial(db.fetch, QUERIES["log"]), upto, limit, head)
            texts = await asyncio.to_thread(self._texts, rows, text_of)
            if texts:
                await db.execute(
                    QUERIES["add_texts"], *[list(each) for each in zip(*texts, strict=True)]
                )
            if upto != before:
                await db.execute(QUERIES["put_meta"], "search_upto", str(upto))
        self.upto = rules, upto
        return upto

    def _texts(
        self, rows: Sequence[tuple[int, bytes, int]], text_of: Callable[[Event], str | None]
    ) -> list[tuple[int | str, ...]]:
        """Rows of the table, of seq, raw and id_key; on a worker thread."""
        out: list[tuple[int | str, ...]] = []
        for seq, raw, id_key in rows:
            event = event_from_raw(raw)
            text = text_of(event)
            if text is None:
                continue
            found = searchable(text)
            columns = self._tokenizer.tokens([found.text, found.repeated, found.frequent])
            words, *more = [" ".join(tokens) for tokens in columns]
            more = [f" {each} " if each else "" for each in more]
            place = (seq, event.created_at, id_key, thread_of(event))
            out.append((*place, *found.scores, words, *more))
        return out

    async def tidy_index(self) -> bool:
        """Remove texts of rows deleted while they were indexed; in rounds over all texts."""
        async with self._lock, self._connections.reading() as db:
            rows = await db.fetch(QUERIES["next_texts"], self._checked, _CHECK_CHUNK)
            seqs = [row["seq"] for row in rows]
            self._checked = seqs[-1] if len(seqs) == _CHECK_CHUNK else 0
            if seqs:
                await db.execute(QUERIES["drop_gone"], seqs)
        return False

    def close(self) -> None:
        self._tokenizer.close()
