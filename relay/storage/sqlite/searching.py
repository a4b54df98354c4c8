"""Searches of the text index, by words and by meaning, and its upkeep.

Each runs on a connection that has the index attached.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.errors import StoreFault, TooSlow, TooWide
from relay.nostr.nip50 import Needs
from relay.storage.recall import best
from relay.storage.sqlite.connections import fault_of, is_damage
from relay.storage.sqlite.meanings import NEAREST, fused
from relay.storage.sqlite.sql.recall import Asking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
    from contextlib import AbstractAsyncContextManager

    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage.sqlite.meanings import Meanings
    from relay.storage.sqlite.readable_rows import ReadableRows
    from relay.storage.sqlite.readers import AsyncReader
    from relay.storage.sqlite.sql.conditions import Query
    from relay.storage.sqlite.sql.filters import Compiler
    from relay.storage.sqlite.text_index import TextIndex

T = TypeVar("T")

_SEARCH_S: Final = 2.0
"""How long a search may take; one for a word of a million texts takes about a second."""


class Searching:
    """The part of `SqliteStore` that needs the text index."""

    def __init__(
        self,
        compiler: Compiler,
        index: TextIndex,
        meanings: Meanings | None,
        readable_rows: ReadableRows,
        paused: Callable[[], AbstractAsyncContextManager[object]],
    ) -> None:
        """`paused`: as of `TextIndex.tidy`."""
        self._compiler = compiler
        self._index = index
        self._meanings = meanings
        self._readable_rows = readable_rows
        self._paused = paused

    @asynccontextmanager
    async def _index_faults(self) -> AsyncIterator[None]:
        """As `sqlite_faults`; a damaged index is rebuilt at the next start."""
        try:
            yield
        except (sqlite3.Error, StoreFault) as error:
            cause = error if isinstance(error, sqlite3.Error) else error.__cause__
            if is_damage(cause):
                await self._index.discard()
                text = f"search.db: {cause}; it is made anew at the next start"
                raise StoreFault(text) from error
            if isinstance(error, sqlite3.Error):
                raise fault_of(error) from error
            raise

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        head: int,
        kinds: Set[int] | None,
    ) -> int:
        async with self._index_faults():
            return await self._index.index_next(text_of, rules, limit, head, kinds)

    @property
    def vectors(self) -> int:
        return 0 if self._meanings is None else len(self._meanings)

    async def embed_texts(self, limit: int) -> bool:
        async with self._index_faults():
            return await self._index.embed_next(limit)

    async def tidy_index(self) -> bool:
        async with self._index_faults():
            return await self._index.tidy(self._paused)

    async def search(
        self,
        filter_: Filter,
        visibility: Visibility,
        reader: AsyncReader,
        begun: asyncio.Event,
        *,
        limit: int,
        upto: int,
        now: int,
    ) -> Sequence[int]:
        """`begun`: as of `AsyncReader.rows_within`."""
        search = filter_.sought
        if limit <= 0 or filter_.impossible or search is None or not search.required:
            return ()
        if search.needs is Needs.ALL:
            query = self._compiler.search(
                search, filter_, visibility, limit=limit, upto=upto, now=now
            )
            return [row[0] for row in await self.found(query, reader, begun)]
        meanings = None if search.excluded else self._meanings
        most = limit if meanings is None else max(limit, NEAREST)
        stems = self._index.stems
        asked = self._compiler.recall(filter_, visibility, upto=upto, now=now)
        known = self._readable_rows.of(visibility, filter_)
        points = dict(
            await self._worked(
                lambda rows: _finished(best(Asking(rows, stems, asked, known), search, most)),
                reader,
                begun,
            )
        )
        if meanings is None:
            return list(points)
        question = await asyncio.to_thread(meanings.question, search.asked)
        near: list[int] = []
        parts = meanings.nearest(question)
        # For a viewer who may read few of many texts it would examine all of them.
        deadline = monotonic() + _SEARCH_S
        while len(near) < most and (part := await asyncio.to_thread(next, parts, None)):
            if monotonic() > deadline:
                raise TooWide
            left = most - len(near)
            query = self._compiler.readable(
                part, filter_, visibility, limit=left, upto=upto, now=now
            )
            near += [seq for (seq,) in await self.found(query, reader)]
        cosines = await asyncio.to_thread(meanings.cosines, question, {*points, *near})
        return fused(points, cosines, limit)

    async def found(
        self, query: Query, reader: AsyncReader, begun: asyncio.Event | None = None
    ) -> list[Any]:
        """Rows of a query that reads the index. Raises TooWide."""
        return await self._worked(lambda rows: rows(*query), reader, begun)

    async def _worked(
        self,
        work: Callable[[Callable[..., list[Any]]], T],
        reader: AsyncReader,
        begun: asyncio.Event | None,
    ) -> T:
        try:
            async with self._index_faults():
                return await reader.work_within(work, _SEARCH_S, begun)
        except TooSlow:
            raise TooWide from None


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")
