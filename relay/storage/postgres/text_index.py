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
from relay.storage.rows import SCANNED_ROWS, rows_to_index
from relay.storage.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

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
        self.upto = "", 0, 0
        """Its rules, its seq, and that of the kinds that are ahead of others, as of the last write
        or read."""

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        kinds: Set[int] | None,
    ) -> int:
        head = self._head()
        async with self._lock, self._connections.reading() as db, db.transaction():
            await db.execute(QUERIES["lock"])
            # Another statement: the first sees some rows as they were before it waited.
            state = await db.fetchrow(QUERIES["state"])
            upto: int = state["upto"]
            ahead: int = state["ahead"]
            if state["rules"] != rules:
                await db.execute(QUERIES["empty_texts"])
                await db.execute(QUERIES["put_meta"], "search_rules", rules)
                upto = ahead = 0
            if kinds is None:
                read = partial(db.fetch, QUERIES["log"])
                rows, reached = await rows_to_index(read, upto, limit, head)
                if upto < ahead:  # some of these may be indexed
                    seqs = [seq for seq, *_ in rows]
                    known = {seq for (seq,) in await db.fetch(QUERIES["indexed"], seqs)}
                    rows = [row for row in rows if row[0] not in known]
                upto = reached
            else:
                after = max(upto, ahead)
                last = max(after, min(head, after + SCANNED_ROWS))
                read = partial(db.fetch, QUERIES["log_of_kinds"], sorted(kinds), last)
                rows, ahead = await rows_to_index(read, after, limit, last)
            texts = await asyncio.to_thread(self._texts, rows, text_of)
            if texts:
                await db.execute(
                    QUERIES["add_texts"], *[list(each) for each in zip(*texts, strict=True)]
                )
            if upto != state["upto"]:
                await db.execute(QUERIES["put_meta"], "search_upto", str(upto))
            if ahead != state["ahead"]:
                await db.execute(QUERIES["put_meta"], "search_ahead", str(ahead))
        self.upto = rules, upto, ahead
        return upto if kinds is None else ahead

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
