"""SqliteStore: one file in WAL mode, one writer, short reads on the event loop.

- The writer is a plain connection on its own thread, and a batch is one call to it: Python decides
  between two halves of a transaction, and with a call for each statement the file would stay locked
  while the loop does other work.
- Short reads run on the loop: a call to another thread takes longer than they do (32 against 12 us
  for 10 rows, `python -m tests.bench.trips`). A progress handler stops one that exceeds its budget;
  it starts again on another connection.
- Long work runs on connections of aiosqlite: `reader_conn` for wide scans, `search_conn` for
  full-text searches, `long_conn` for pages, searches and COUNTs that take long while others wait,
  `bulk_conn` for queries over the whole file, four more for the same by unknown keys,
  `relay_conn` for what the relay reads for itself, one for the text index, and one for
  checkpoints, which no commit waits for.
- The tags of the newest rows are in memory (`tag_buffer`): writing the tag table is most of a
  commit's cost.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from itertools import accumulate
from math import inf
from shutil import disk_usage
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from relay.access.management import ListChange, ListName, management_of
from relay.access.quotas import Size, Sized
from relay.errors import StoreFault
from relay.lifecycle.retention import MaxAmount
from relay.lifecycle.rows import OldVersion
from relay.nostr.event import parsing_weight
from relay.nostr.nip50 import Needs
from relay.nostr.nip77 import Items, ItemsBuilder
from relay.storage import (
    CLOSED,
    ITEMS_S,
    PAGE_BYTES,
    PARSED_BYTES,
    Features,
    Listed,
    Page,
    PageQuery,
    Place,
)
from relay.storage.checking import faults_of
from relay.storage.hashes import Hashes, id_key
from relay.storage.page_cache import PageCache
from relay.storage.rows import (
    EVERYTHING,
    ended_groups,
    erasure_of,
    event_in,
    expired_row,
    is_full,
    place_of,
    rows_after,
    stored,
)
from relay.storage.sqlite.checkpoints import Checkpoints, Upkeep
from relay.storage.sqlite.connections import ReaderFactory, connection, page_of, sqlite_faults
from relay.storage.sqlite.group_tables import Comparison
from relay.storage.sqlite.loop_reader import LoopReader
from relay.storage.sqlite.meanings import Meanings
from relay.storage.sqlite.opening import fill_tag_buffer, open_file
from relay.storage.sqlite.partitions import ReadablePartitions
from relay.storage.sqlite.readable_rows import ReadableRows
from relay.storage.sqlite.readers import (
    QUICK_S,
    SHORT_S,
    AsyncReader,
    BulkReader,
    Pauses,
    TurnReader,
)
from relay.storage.sqlite.row_cache import RowCache
from relay.storage.sqlite.searching import Searching
from relay.storage.sqlite.sql.conditions import Query, listed
from relay.storage.sqlite.sql.filters import PLACED, Compiler
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.sweep import SweepQueries
from relay.storage.sqlite.tag_buffer import TAG_BUFFER_ROWS, TagBuffer
from relay.storage.sqlite.text_index import opened_index
from relay.storage.sqlite.wal import opened
from relay.storage.sqlite.work_thread import WorkClock, WorkThread
from relay.storage.sqlite.writer import Writer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Mapping,
        Sequence,
        Set,
    )
    from pathlib import Path

    from relay.access.management import Management
    from relay.access.quotas import SizedBy
    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.groups.group import EndedGroup, Groups
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import ExpiredRow, Found, Lookups, Slot, Stored, WritePlan
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter, FilterTerms
    from relay.storage import Verb
    from relay.storage.checking import CheckedRow
    from relay.storage.sqlite.meanings import Embedder
    from relay.storage.sqlite.sql.conditions import Condition
    from relay.storage.sqlite.text_index import TextIndex

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NO_ROWS: Final = Page((), None)
_END: Final = Listed((), are_last=True)
_LISTED: Final = 4
"""A long look-up lists so many times as many rows as it reads …"""
_LISTED_ROWS: Final = 500
"""… up to so many: the seq of each is held."""
_PLACED_BY_SEQ: Final = QUERIES["placed_by_seq"]
_MANY_VALUES: Final = 4_096
"""A query with more values is not tried on the loop: it would be compiled to SQL and read twice."""
_READ_S: Final = 10.0
"""How long one page of a query may take on the reader's thread; others wait for it."""
_COUNT_S: Final = {True: 10.0, False: 3.0}
"""The same of a count, by whether the client has a known key. Unlike a page it looks at all rows of
all filters, and pages of other clients without a known key may have to wait for it."""
RESERVED_SPACE: Final = 256 << 20
"""Bytes of the disk that are left for owners, the log and what the relay removes. A deletion takes
space before it gives some."""
_OF_DISK: Final = 32
"""Of a small disk only this part (1/32) is left for these."""
_SPACE_S: Final = 1.0
"""Shortest time between two looks at the disk."""
_QUICK_READERS: Final = 8
"""Connections for short reads of known keys."""
_MAX_EXPLAINED: Final = 4
_MAX_INT: Final = 2**63 - 1
_MAX_STEPS: Final = 64
_MAX_REQUESTS: Final = 10_000
"""Requests whose deletions are known one by one, while their bytes may be left in the files."""
_MEMBERS: Final = 20_000
"""Rows of `members` that are read at a time."""
_MOST_NAMED: Final = 10
_STORED_COLUMNS: Final = "e.raw, e.seq, e.grp, e.quiet, e.slot, e.version, e.expires_at"


class SqliteStore:
    """The Store port on one SQLite file in WAL mode."""

    features = Features(search=True, shared=False)

    def __init__(
        self,
        path: Path,
        writer: sqlite3.Connection,
        hashes: Hashes,
        terms: FilterTerms,
        head: int,
        tag_buffer: TagBuffer,
        index: TextIndex,
        meanings: Meanings | None,
    ) -> None:
        """Use `open`."""
        self._hashes = hashes
        self._compiler = Compiler(
            hashes, terms.index_tags, tag_buffer, self._pairs_of, lambda: self._writer.closed
        )
        self._tag_kinds = tag_buffer.kinds
        self._index = index
        self._row_cache = RowCache()
        self._page_cache = PageCache()
        readable_rows = ReadableRows()
        self._sweeps = SweepQueries(self._compiler, terms.index_tags)
        self._writer = Writer(
            writer,
            hashes,
            terms.index_tags,
            head,
            tag_buffer,
            self._row_cache,
            readable_rows,
            index.forget,
            self._sweeps,
        )
        self._has_room_for = tag_buffer.has_room_for
        self._committed = asyncio.Event()
        self._waiting = 0
        """Tasks in `committed_after`."""
        self._writing = WorkThread("store-writer")
        self._factory = ReaderFactory(path, hashes, tag_buffer)
        self._loop_conn = LoopReader(self._factory.quick_reader, self._factory.mapping)
        self._partitions = ReadablePartitions(
            self._compiler.partitions,
            self._partitions_read,
            lambda: self._writer.group_changes,
        )
        quick, pages = self._factory.quick_reader, self._factory.page_reader
        searches = self._factory.search_reader
        self._long_conn = TurnReader(searches)
        self._unknown_long_conn = TurnReader(searches)
        self._short_conn = TurnReader(pages, SHORT_S, self._long_conn)
        self._unknown_short_conn = TurnReader(pages, SHORT_S, self._unknown_long_conn)
        self._reader_conn = TurnReader(quick, QUICK_S, self._short_conn, number=_QUICK_READERS)
        self._search_conn = TurnReader(searches, SHORT_S, self._long_conn)
        self._unknown_conn = TurnReader(pages, QUICK_S, self._unknown_short_conn)
        self._unknown_search_conn = TurnReader(searches, SHORT_S, self._unknown_long_conn)
        self._relay_conn = AsyncReader(self._factory.quick_reader)
        """For what the relay reads for itself: writes wait for some of it, so no read of a client
        may hold it."""
        pauses = Pauses()
        long_readers = self._unknown_long_conn, self._long_conn
        searchers = self._unknown_search_conn, self._search_conn
        paused = partial(pauses.of, long_readers, searchers)
        self._searching = Searching(self._compiler, index, meanings, readable_rows, paused)
        self._checkpoint_conn = AsyncReader(partial(connection, path))
        self._bulk_conn = BulkReader(self._factory.bulk_reader)
        self._unknown_bulk_conn = BulkReader(self._factory.bulk_reader)
        self._checkpoints = Checkpoints(
            path,
            self._checkpoint_conn,
            (
                (self._bulk_conn, self._unknown_bulk_conn),
                long_readers,
                (self._unknown_short_conn, self._short_conn),
                (self._unknown_conn, *self._reader_conn.connections, *searchers),
            ),
            pauses,
            self._relay_conn,
            self._writing,
            self._writer.check_files,
            self._writer.flush_some,
            lambda: tag_buffer.is_behind,
            self._writer.give_back,
            lambda: self._writer.has_moves,
            self._writer.repartition,
        )
        self._path = path
        self._space_at = -inf
        self._is_nearly_full = False
        self._files = ExitStack()
        self._open_connections = AsyncExitStack()
        self._others_at = monotonic()
        """When other requests than those in `_erasing` may have deleted something."""
        self._erasing: dict[str, float] = {}
        """Request → time of its deletion, while bytes of it may be left in the files."""
        self._noted_erasures = 0
        self.append_s = self.disk_s = 0.0
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        terms: FilterTerms,
        *,
        synchronous: str = "FULL",
        tag_buffer_rows: int = TAG_BUFFER_ROWS,
        embedder: Embedder | None = None,
    ) -> SqliteStore:
        """Open or make the file. Raises StoreVersion for one of another version or program.

        `tag_buffer_rows`: see `TagBuffer`. `embedder`: None: searches compare words only.
        """
        writer, hashes, head = await asyncio.to_thread(open_file, path, terms, synchronous)
        tag_buffer = TagBuffer(tag_buffer_rows)
        async with AsyncExitStack() as opened_so_far:
            files = ExitStack()
            files.enter_context(opened(path))
            opened_so_far.callback(files.close)
            opened_so_far.callback(writer.close)
            with sqlite_faults(path):
                await asyncio.to_thread(fill_tag_buffer, writer, hashes, terms, tag_buffer)
            meanings = None if embedder is None else Meanings(embedder)
            index = await opened_index(path, hashes.fingerprint(), head, meanings)
            opened_so_far.push_async_callback(index.close)
            with sqlite_faults(path):
                store = cls(path, writer, hashes, terms, head, tag_buffer, index, meanings)
                await store._connect()
            store._files = files
            store._others_at = monotonic()  # a crash may have left more to erase
            opened_so_far.pop_all()
        return store

    async def _connect(self) -> None:
        async with AsyncExitStack() as connections:
            connections.callback(self._loop_conn.close)
            for db in (
                *self._reader_conn.connections,
                self._search_conn,
                self._unknown_conn,
                self._unknown_search_conn,
                self._short_conn,
                self._unknown_short_conn,
                self._long_conn,
                self._unknown_long_conn,
                self._relay_conn,
                self._bulk_conn,
                self._unknown_bulk_conn,
                self._checkpoint_conn,
            ):
                await connections.enter_async_context(db)
            await self._checkpoints.start()
            self._open_connections = connections.pop_all()

    # -- writing --------------------------------------------------------------------------------

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        self._check_open()
        loop = asyncio.get_running_loop()
        head = await self._writing.run(partial(self._append, loop, lookups, decide))
        self._checkpoints.committed()
        return head

    def _append(
        self,
        loop: asyncio.AbstractEventLoop,
        lookups: Lookups,
        decide: Callable[[Found], WritePlan],
    ) -> int:
        """`append`, on the writer's thread, so that waiting tasks are woken even if the caller was
        cancelled."""
        writer = self._writer
        erasures, work = writer.erasures, WorkClock()
        try:
            head = writer.append(lookups, decide)
        finally:
            self.disk_s = work.waited_s
            self.append_s = work.worked_s + self.disk_s
            if writer.erasures > erasures:
                requests, writer.requests = writer.requests, []
                loop.call_soon_threadsafe(self._erased, writer.erasures, requests)
        if self._waiting:
            loop.call_soon_threadsafe(self._wake)
        return head

    def _erased(self, number: int, requests: Sequence[str]) -> None:
        """After a commit that deleted something, on the loop."""
        self._checkpoints.erased()
        now = monotonic()
        upto = now - self.unerased_s()
        self._erasing = {name: at for name, at in self._erasing.items() if at >= upto}
        self._erasing.update(dict.fromkeys(requests, now))
        if len(self._erasing) > _MAX_REQUESTS:
            self._erasing, self._others_at = {}, now
        self._noted_erasures = number

    def _wake(self) -> None:
        """Wake the tasks in `committed_after`, on the loop."""
        self._committed.set()
        self._committed = asyncio.Event()

    async def replicated(self) -> None: ...

    async def make_room(self, tags: int) -> int:
        self._check_open()
        if self._has_room_for(tags):
            return 0
        flushed = await self._writing.run(self._writer.flush_some)
        if flushed:
            self._checkpoints.committed()
        return flushed

    def prepare(self, events: Sequence[Event]) -> None:
        self._writer.prepared.add(events)

    async def erasure(self, request: str) -> Erasure | None:
        self._check_open()
        query = Query(QUERIES["erasure"], (bytes.fromhex(request),))
        rows = await self._relay_conn.rows(query)
        return erasure_of(request, rows[0]) if rows else None

    def is_erased(self, request: str) -> bool:
        if self._writer.erasures > self._noted_erasures:
            return False
        at = self._erasing.get(request, self._others_at)
        return at < monotonic() - self.unerased_s()

    @property
    def upkeep(self) -> Upkeep:
        return self._checkpoints.upkeep

    def unerased_s(self) -> float:
        return max(self._checkpoints.pending_s, self._index.pending_s)

    # -- reading --------------------------------------------------------------------------------

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        found = await self._of_listed(query)
        if found is None:
            page = None if is_long else self.page_now(query)
            if page is not None:
                return page
            found = await self._long_page(query)
        rows, behind = found
        raws = [raw for raw, *_ in rows]
        if behind.is_end:
            return Page(raws, None)
        return Page(raws, Place(*rows[-1][1:]), behind)

    async def page_for_relay(self, query: PageQuery) -> Page:
        page = self.page_now(query)
        if page is not None:
            return page
        rows = await self._in_partitions(
            [query.filter],
            query.visibility,
            lambda those: self._relay_conn.page_within(
                self._compiler.page(query, "e.raw", those, is_long=True), None
            ),
        )
        return self._paged(rows, query)

    async def _long_page(self, query: PageQuery) -> tuple[list[Any], Listed]:
        """Raw and place of the first rows, and the seqs of those behind them. Raises TooSlow."""
        reader = self._reader_for(query.visibility)
        # More than a page of one of several filters has: to look for them again takes longer.
        most = query.size
        wide = query._replace(size=max(most, min(_LISTED_ROWS, _LISTED * most)))

        async def found(those: frozenset[int] | None) -> list[Any]:
            sql, fetch = self._compiler.page(wide, None, those, is_long=True), _PLACED_BY_SEQ

            async def read(reader: AsyncReader, begun: asyncio.Event) -> list[Any]:
                return [*await reader.listed_within(sql, fetch, most, _READ_S, begun)]

            is_long = sql.is_long
            return [*await reader.read(query.visibility, query.address, read, is_long=is_long)]

        seqs, rows = await self._in_partitions([query.filter], query.visibility, found)
        if seqs and not rows:  # all were deleted meanwhile
            return await self._long_page(query)
        return rows, _behind(rows, seqs, wide, most)

    async def _of_listed(self, query: PageQuery) -> tuple[list[Any], Listed] | None:
        """As `_long_page`, of rows that were listed with the page before; None: they must be looked
        for."""
        if query.listed is None:
            return None
        seqs, are_last = query.listed
        asked = [*seqs[: min(query.size, query.limit)]]
        if not asked:
            return ([], query.listed) if query.listed.is_end else None
        rows, checked = await self._rows(
            asked, query.filter, query.visibility, now=query.now, address=query.address
        )
        behind = Listed(seqs[checked:], are_last)
        return (rows, behind) if rows or behind.is_end else None

    async def _in_partitions(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        read: Callable[[frozenset[int] | None], Awaitable[T]],
    ) -> T:
        """What `read` gives for the partitions that the viewer may read. With None it has to find
        them itself: that takes longer, and is needed where they change meanwhile, or rows are moved
        between them, since some rows would be missing."""
        if not self._writer.has_moves:
            moves, those = self._tag_kinds.moves, self._partitions.of(filters, visibility)
            found = await read(those)
            is_whole = self._partitions.suffice(those, filters, visibility)
            if moves == self._tag_kinds.moves and is_whole:
                return found
        return await read(None)

    def _now_in_partitions(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        read: Callable[[frozenset[int] | None], list[Any] | None],
    ) -> list[Any] | None:
        """As `_in_partitions`, on the loop, also while rows are moved: `_pairs_of` looks up no
        classes of tags then. `read` gives None if it was interrupted."""
        before = self._writer.group_changes, self._tag_kinds.moves
        those = self._partitions.of(filters, visibility)
        found = read(those)
        changes, moves = self._writer.group_changes, self._tag_kinds.moves
        if found is None or (changes, moves) == before:
            return found
        is_whole = moves == before[1] and self._partitions.suffice(those, filters, visibility)
        return found if is_whole else read(None)

    def page_now(self, query: PageQuery) -> Page | None:
        self._check_open()
        if min(query.size, query.limit) <= 0 or query.filter.impossible:
            return _NO_ROWS
        state = self._writer.commits
        page = self._page_cache.page(state, query)
        if page is None:
            page = self._page_read_now(query)
            if page is not None:
                self._page_cache.add(state, query, page)
        return page

    def _page_read_now(self, query: PageQuery) -> Page | None:
        if query.filter.values > _MANY_VALUES:
            return None
        # The index of ids has only their first bytes, so the rows are fetched in any case.
        ids = query.filter.ids
        is_fetched = ids is not None or not (query.listed is not None or self._row_cache.pays())
        is_listed = not is_fetched or (ids is not None and len(ids) == 1)
        columns, fetch = "e.raw" if is_fetched else None, _all_of if is_listed else page_of

        def read(those: frozenset[int] | None) -> list[Any] | None:
            sql = self._compiler.page(query, columns, those)
            return self._loop_conn.read(sql, fetch, query.visibility.client_at(query.address))

        rows = self._now_in_partitions([query.filter], query.visibility, read)
        if rows is None:
            return None
        if is_fetched:
            return self._paged(rows, query)
        return self._page_of_seqs(orjson.loads(rows[0][0]), query)

    def _paged(self, rows: list[tuple[bytes]], query: PageQuery) -> Page:
        if not rows:
            return _NO_ROWS
        raws = [raw for (raw,) in rows]
        is_short = len(raws) < min(query.size, query.limit)
        if len(raws) == query.limit or (is_short and not is_full(raws)):
            return Page(raws, None)
        behind = Listed((), are_last=False) if is_short else None
        return Page(raws, self._place_of(raws[-1]), behind)

    def _page_of_seqs(self, seqs: list[int], query: PageQuery) -> Page | None:
        """The page of rows just found; None: fetching them exceeded the budget."""
        if not seqs:
            return _NO_ROWS
        discarded = self._row_cache.discarded
        kept = self._row_cache.raws(seqs)
        end = len(seqs)
        if not all(kept):
            missing = [seq for seq, raw in zip(seqs, kept, strict=True) if raw is None]
            asked = Query(QUERIES["raw_by_seq"], (listed(missing),))
            client = query.visibility.client_at(query.address)
            rows = self._loop_conn.read(asked, page_of, client)
            if rows is None:
                return None
            fetched = {seq: raw for raw, seq in rows}
            self._row_cache.add(fetched.items(), discarded)
            if is_full(fetched.values()):
                end = seqs.index(rows[-1][1]) + 1
            kept = [
                fetched.get(seq) if raw is None else raw
                for seq, raw in zip(seqs, kept, strict=True)
            ]
        raws = [raw for raw in kept[:end] if raw is not None]
        if is_full(raws):
            weights = accumulate([0 if raw is None else len(raw) for raw in kept])
            end = next(at for at, weight in enumerate(weights, 1) if weight >= PAGE_BYTES)
            raws = [raw for raw in kept[:end] if raw is not None]
        behind = _listed(seqs[end:], seqs, query)
        if behind.is_end:
            return Page(raws, None)
        if not raws:
            return None
        return Page(raws, self._place_of(raws[-1]), behind if behind.seqs else None)

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed]:
        self._check_open()
        if min(query.size, query.limit) <= 0 or query.filter.impossible:
            return [], _END
        found = await self._of_listed(query)
        if found is None:
            found = self._placed_now(query)
        if found is None:
            found = await self._long_page(query)
        rows, behind = found
        return [(Place(*place), raw) for raw, *place in rows], behind

    def _placed_now(self, query: PageQuery) -> tuple[list[Any], Listed] | None:
        """As `_long_page`; None: it takes long."""
        columns = None if query.listed is not None else PLACED
        client = query.visibility.client_at(query.address)

        def now(those: frozenset[int] | None) -> list[Any] | None:
            sql = self._compiler.page(query, columns, those)
            return self._loop_conn.read(sql, page_of if columns else _all_of, client)

        rows = self._now_in_partitions([query.filter], query.visibility, now)
        if rows is None:
            return None
        if columns:
            is_all = len(rows) < min(query.size, query.limit) and not _are_full(rows)
            return rows, Listed((), is_all or len(rows) == query.limit)
        placed = Query(_PLACED_BY_SEQ, rows[0])
        found, seqs = self._loop_conn.read(placed, page_of, client), orjson.loads(rows[0][0])
        if found is None or (seqs and not found):  # all were deleted meanwhile
            return None
        return found, _behind(found, seqs, query, query.size)

    async def count(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> int:
        self._check_open()
        possible = [filter_ for filter_ in filters if not filter_.impossible]
        if not possible:
            return 0
        compiled = partial(self._compiler.count, possible, visibility, now=now)
        rows = await self._counted(possible, compiled, visibility, address)
        number: int = rows[0][0]
        return number

    async def authors(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        at_most: int,
        address: str | None = None,
    ) -> Sequence[bytes] | None:
        self._check_open()
        if filter_.impossible:
            return []
        compiled = partial(
            self._compiler.authors, filter_, visibility, now=now, at_most=at_most + 1
        )
        keys = [key for (key,) in await self._counted([filter_], compiled, visibility, address)]
        return keys if len(keys) <= at_most else None

    async def _counted(
        self,
        filters: Sequence[Filter],
        compiled: Callable[..., Query],
        visibility: Visibility,
        address: str | None,
    ) -> list[Any]:
        """`compiled`: called with partitions and `is_long`, see `Compiler` and `Shape`."""
        searches = any(filter_.search is not None for filter_ in filters)
        values = sum([filter_.values for filter_ in filters])
        is_long = values > _MANY_VALUES
        if not is_long and not searches:

            def now(those: frozenset[int] | None) -> list[Any] | None:
                nonlocal is_long
                query = compiled(those, is_long=False)
                is_long = query.is_long
                return self._loop_conn.read(query, _all_of, visibility.client_at(address))

            rows = self._now_in_partitions(filters, visibility, now)
            if rows is not None:
                return rows
        within_s = _COUNT_S[visibility.is_known]

        async def later(reader: AsyncReader, begun: asyncio.Event) -> list[Any]:
            async def found(those: frozenset[int] | None) -> list[Any]:
                query = compiled(those, is_long=True)
                if searches:
                    return await self._searching.found(query, reader, begun)
                return await reader.rows_within(query, within_s, begun)

            return await self._in_partitions(filters, visibility, found)

        reader = self._reader_for(visibility, searches=searches)
        return [*await reader.read(visibility, address, later, "COUNT", is_long=is_long)]

    async def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Items | None:
        self._check_open()
        if limit == 0 or filter_.impossible:
            return Items(array("Q"), b"")
        reader = self._bulk_conn if visibility.is_known else self._unknown_bulk_conn

        async def read(those: frozenset[int] | None) -> ItemsBuilder:
            query = self._compiler.items(
                filter_, visibility, those, limit=limit, upto=upto, now=now, at_most=at_most + 1
            )
            found = ItemsBuilder()
            await reader.chunks(query, found.add, ITEMS_S[visibility.is_owner])
            return found

        found = await self._in_partitions([filter_], visibility, read)
        return None if len(found) > at_most else found.items()

    async def management(self) -> Management:
        self._check_open()
        rows = await self._relay_conn.rows(Query(QUERIES["management"], ()))
        return management_of(ListChange(ListName(name), item, note) for name, item, note in rows)

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        self._check_open()
        query = Query(QUERIES[f"sizes_by_{by.value}"], (limit,))
        rows = await self._reader_conn.rows(query)
        return [Sized(of, Size(events, size)) for of, events, size in rows]

    async def expired(
        self, now: int, limit: int, vanishing: Set[str] = frozenset()
    ) -> Sequence[ExpiredRow]:
        self._check_open()
        query = Query(QUERIES["expired"], (now, listed(list(vanishing)), limit))
        return [expired_row(*row) for row in await self._all_rows(query)]

    async def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        last_scan: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        self._check_open()
        queries = [
            self._sweeps.due_rows(
                rule, exempt, now=now, last_scan=last_scan, after=after, limit=limit
            )
        ]
        if last_scan is not None and isinstance(rule.limit, MaxAmount):
            # Without new rows no amount can be newly exceeded.
            queries.insert(0, self._sweeps.has_new_rows(rule, exempt, last_scan))
        found: list[int] = []
        for query in queries:
            found = [seq for (seq,) in await self._bulk_conn.rows(query)]
            if not found:
                break
        return found

    async def overdue_versions(self, now: int, limit: int) -> Sequence[OldVersion]:
        self._check_open()
        query = Query(QUERIES["old_due"], (now, limit, PARSED_BYTES))
        rows = await self._relay_conn.rows(query)
        return [OldVersion(stored(row[:7]), *row[7:]) for row in rows]

    async def old_versions(self, after: int, limit: int) -> Sequence[OldVersion]:
        self._check_open()
        rows = await self._rows_after("old_after", after, limit)
        return [OldVersion(stored(row[:7]), *row[7:]) for row in rows]

    async def stored(self, seqs: Sequence[int], most: int = PARSED_BYTES) -> Sequence[Stored]:
        self._check_open()
        query = Query(QUERIES["rows_by_seq"], (listed(list(seqs)), most))
        rows = await self._relay_conn.rows(query)
        return [stored(row) for row in rows]

    async def check(self, after: int, limit: int) -> tuple[int, Sequence[str]]:
        self._check_open()
        asked = Query(QUERIES["rows_to_check"], (after, limit, PARSED_BYTES))
        rows = await self._bulk_conn.rows(asked)
        faults = await asyncio.to_thread(faults_of, rows)
        untagged = await self._untagged(rows)
        if untagged and await self._untagged(rows):  # one moved from memory to the table meanwhile
            faults += [f"row {seq} is not found by its tags" for seq in sorted(untagged)]
        if rows:
            return rows[-1][0], faults
        ((there, noted),) = await self._bulk_conn.rows(Query(QUERIES["number_of_rows"], ()))
        if there != noted:
            faults.append(f"{there} rows are there, and the totals say {noted}")
        return 0, faults

    async def _untagged(self, rows: Sequence[CheckedRow]) -> set[int]:
        """seq of those that are stored and lack a row in the tag table and in its buffer."""
        tags = await asyncio.to_thread(self._writer.tags_of, rows)
        missing = await self._bulk_conn.rows(Query(QUERIES["missing_tags"], (tags,)))
        seqs_of = self._writer.buffered_seqs
        return {seq for seq, hash_ in missing if seq not in seqs_of([hash_])}

    async def versions(
        self, slot: Slot, *, before: int | None, limit: int, now: int
    ) -> Sequence[Stored]:
        self._check_open()
        asked = (self._hashes.slot(*slot), _MAX_INT if before is None else before, limit - 1)
        found = await self._page_rows(Query(QUERIES["old_of_slot"], asked))
        holders: list[Stored] = []
        old: list[Stored] = []
        weight = 0
        for _, raw, seq, *noted, is_holder in found:
            if old and weight >= PAGE_BYTES:
                break
            weight += parsing_weight(raw)
            row = stored((seq, raw, *noted))
            if row.slot == slot and (row.expires_at is None or row.expires_at > now):
                (holders if is_holder else old).append(row)
        return [*holders, *old] if holders else []

    async def old_version(self, slot: Slot, event_id: str) -> Stored | None:
        self._check_open()
        asked = (bytes.fromhex(event_id), self._hashes.slot(*slot))
        found = [stored(row) for row in await self._all_rows(Query(QUERIES["old_one"], asked))]
        return next((row for row in found if row.slot == slot), None)

    async def matching(
        self, filter_: Filter, *, limit: int, now: int, after: Stored | None = None
    ) -> Sequence[Stored]:
        self._check_open()
        if filter_.impossible:
            return []
        behind = None if after is None else place_of(after)
        query = PageQuery(filter_, EVERYTHING, limit, self._writer.head, now, limit, behind)
        rows = await self._page_rows(self._compiler.page(query, _STORED_COLUMNS))
        weights = accumulate([parsing_weight(raw) for raw, *_ in rows], initial=0)
        return [
            stored((seq, raw, *noted))
            for (raw, seq, *noted), weight in zip(rows, weights, strict=False)
            if weight < PAGE_BYTES
        ]

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        self._check_open()
        return [stored(row) for row in await self._rows_after("rows_since", seq, limit)]

    async def seqs_of_kinds(
        self, kinds: Set[int], after: int, upto: int, limit: int
    ) -> Sequence[int]:
        self._check_open()
        query = Query(QUERIES["seqs_of_kinds"], (listed(sorted(kinds)), after, upto, limit))
        return [seq for (seq,) in await self._relay_conn.rows(query)]

    async def _rows_after(self, name: str, seq: int, limit: int) -> list[Any]:
        def read(after: int, most: int) -> Awaitable[list[Any]]:
            return self._relay_conn.rows(Query(QUERIES[name], (after, most)))

        return await rows_after(read, seq, limit)

    async def ended_groups(self) -> Mapping[str, EndedGroup]:
        self._check_open()
        return ended_groups(await self._all_rows(Query(QUERIES["ended_groups"], ())))

    async def check_groups(self, groups: Groups) -> None:
        """Raises StoreFault, naming the groups, if the tables differ from these, replayed ones."""
        self._check_open()
        compared = Comparison(groups)
        compared.flags(await self._all_rows(Query(QUERIES["group_rows"], ())))
        after: tuple[Any, ...] = (b"", "")
        while rows := await self._all_rows(Query(QUERIES["members_after"], (*after, _MEMBERS))):
            compared.members(rows)
            after = rows[-1][:2]
        compared.finish()
        if wrong := sorted(map(repr, compared.wrong)):
            more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            raise StoreFault(
                f"store: the records of {', '.join(wrong[:_MOST_NAMED])}{more} give other members"
                " or flags than the tables of groups have: one of them is damaged, and somebody"
                " might read or write who may not. See `rookery verify`, and restore a backup;"
                " `rookery verify --repair` takes the records for right unless one is damaged"
            )

    async def head(self) -> int:
        self._check_open()
        return self._writer.head

    def committed(self) -> int:
        return self._writer.head

    async def committed_after(self, seq: int) -> int:
        self._check_open()
        self._waiting += 1  # before `head` is read: the writer reads it after it has changed `head`
        try:
            while self._writer.head <= seq:
                await self._committed.wait()
                self._check_open()
        finally:
            self._waiting -= 1
        return self._writer.head

    async def is_writable(self) -> bool:
        self._check_open()
        try:
            await self._writing.run(self._writer.touch)
        except StoreFault:
            return False
        return True

    def is_nearly_full(self) -> bool:
        now = monotonic()
        if now - self._space_at >= _SPACE_S:
            self._space_at = now
            self._set_nearly_full()
        return self._is_nearly_full

    def _set_nearly_full(self) -> None:
        folder = self._path.parent
        try:
            total, _, free = disk_usage(folder)
            # A checkpoint copies what is in these to the end of their files.
            free -= sum([wal.stat().st_size for wal in folder.glob("*.db-wal")])
        except OSError:  # as it was: the next write tells
            return
        is_nearly_full = free < min(RESERVED_SPACE, total // _OF_DISK)
        if is_nearly_full and not self._is_nearly_full:
            text = (
                "%s: only %d MB are free: events of others than owners are refused, and new texts"
                " are not indexed"
            )
            _log.warning(text, folder, max(0, free) // 1_000_000)
        self._is_nearly_full = is_nearly_full

    async def _all_rows(self, query: Query) -> list[Any]:
        """All rows, for the relay itself: on the loop if that is short, else again on
        `relay_conn`."""
        rows = self._loop_conn.read(query, _all_of)
        return await self._relay_conn.rows(query) if rows is None else rows

    async def _page_rows(self, query: Query) -> list[Any]:
        """As `_all_rows`, but ends as `PageCursor.fetchmany` does."""
        rows = self._loop_conn.read(query, page_of)
        return await self._relay_conn.page_within(query, None) if rows is None else rows

    async def _page_within(
        self, query: Query, visibility: Visibility, address: str | None
    ) -> list[Any]:
        """A page for clients. Raises TooSlow."""
        rows = self._loop_conn.read(query, page_of, visibility.client_at(address))
        if rows is not None:
            return rows
        return await self._page_on_thread(query, visibility, address)

    async def _page_on_thread(
        self, query: Query, visibility: Visibility, address: str | None
    ) -> list[Any]:
        def page(reader: AsyncReader, begun: asyncio.Event) -> Coroutine[Any, Any, list[Any]]:
            return reader.page_within(query, _READ_S, begun)

        reader = self._reader_for(visibility)
        return [*await reader.read(visibility, address, page, is_long=query.is_long)]

    def _reader_for(self, visibility: Visibility, *, searches: bool = False) -> TurnReader:
        """`searches`: it reads the text index."""
        if searches:
            return self._search_conn if visibility.is_known else self._unknown_search_conn
        return self._reader_conn if visibility.is_known else self._unknown_conn

    def _place_of(self, raw: bytes) -> Place:
        event = event_in(raw)
        key = id_key(event.id)
        row = self._loop_conn.one(QUERIES["seq_of_id"], (key, bytes.fromhex(event.id)))
        # Deleted since the page was read; with seq 0 the rows after it are the same.
        return Place(event.created_at, key, row[0] if row else 0)

    # -- searching ------------------------------------------------------------------------------

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        kinds: Set[int] | None = None,
    ) -> int:
        self._check_open()
        return await self._searching.index(text_of, rules, limit, self._writer.head, kinds)

    @property
    def vectors(self) -> int:
        """How many texts can be compared by meaning."""
        return self._searching.vectors

    async def embed_texts(self, limit: int) -> bool:
        self._check_open()
        return await self._searching.embed_texts(limit)

    async def tidy_index(self) -> bool:
        self._check_open()
        return await self._searching.tidy_index()

    async def search(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        address: str | None = None,
    ) -> Sequence[int]:
        self._check_open()
        search = partial(
            self._searching.search, filter_, visibility, limit=limit, upto=upto, now=now
        )
        return await self._reader_for(visibility, searches=True).read(visibility, address, search)

    async def rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> tuple[Sequence[bytes], int]:
        rows, checked = await self._rows(seqs, filter_, visibility, now=now, address=address)
        return [raw for raw, *_ in rows], checked

    async def _rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None,
    ) -> tuple[list[Any], int]:
        """As `rows`, but gives raw and place."""
        self._check_open()
        query = self._compiler.rows(seqs, filter_, visibility, now=now)
        rows = await self._page_within(query, visibility, address)
        return rows, _number_checked(rows, seqs)

    async def plan(
        self, filters: Sequence[Filter], visibility: Visibility, verb: Verb, *, now: int
    ) -> Sequence[str]:
        self._check_open()
        possible = [filter_ for filter_ in filters if not filter_.impossible][:_MAX_EXPLAINED]
        those = self._partitions.of(possible, visibility)
        queries = [self._compiler.count(possible, visibility, those, now=now)] if possible else []
        if verb == "REQ":
            queries = [self._first_page(filter_, visibility, now) for filter_ in possible]
        steps: list[str] = []
        for sql, values in queries:
            query = Query(f"EXPLAIN QUERY PLAN {sql}", values)
            steps += [step for *_, step in await self._search_conn.rows(query)]
        return steps[:_MAX_STEPS]

    def _partitions_read(self, query: Condition, key: str | None) -> list[Any] | None:
        # By key: after one look-up that took long, those of all others would not be tried.
        return self._loop_conn.read(Query(*query), _all_of, key)  # type: ignore[arg-type]

    def _pairs_of(self, hashes: Sequence[int], most: int) -> Sequence[tuple[int, int]] | None:
        """As `PairsOf`."""
        if self._writer.has_moves:
            return None
        pairs = self._tag_kinds.pairs_of(hashes)
        if pairs is None:
            flushes = self._tag_kinds.flushes
            asked = (listed(hashes), most + len(hashes))
            found = self._loop_conn.one(QUERIES["classes_of_tags"], asked)
            pairs = [*zip(*map(orjson.loads, found), strict=True)]
            if len(pairs) < most:
                self._tag_kinds.keep(hashes, pairs, flushes)
        return pairs

    def _first_page(self, filter_: Filter, visibility: Visibility, now: int) -> Query:
        """The query of a first page, to be explained: its size does not matter for that."""
        upto = self._writer.head
        search = filter_.sought
        if search is not None and search.required and search.needs is Needs.ANY:
            asked = self._compiler.recall(filter_, visibility, upto=upto, now=now)
            return Query(asked.readable.sql, [*asked.readable.values, 1, "[]"])
        if search is not None and search.required:
            return self._compiler.search(search, filter_, visibility, limit=1, upto=upto, now=now)
        query = PageQuery(filter_, visibility, 1, upto, now, size=1)
        return self._compiler.page(query, None, self._partitions.of([filter_], visibility))

    # -- both -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault(CLOSED)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake()
        async with AsyncExitStack() as last_first:  # each, also when one is cancelled
            last_first.callback(self._files.close)
            last_first.callback(self._writing.close)
            last_first.push_async_callback(self._writing.run, self._writer.finish)
            last_first.push_async_callback(self._index.close)
            last_first.push_async_callback(self._open_connections.aclose)
            await self._checkpoints.close()


def _number_checked(rows: Sequence[Any], seqs: Sequence[int]) -> int:
    """How many of `seqs` were looked up for a page of `rows`, which have a raw and a place."""
    return seqs.index(rows[-1][3]) + 1 if _are_full(rows) else len(seqs)


def _are_full(rows: Sequence[Any]) -> bool:
    return is_full([raw for raw, *_ in rows])


def _behind(rows: Sequence[Any], seqs: Sequence[int], query: PageQuery, most: int) -> Listed:
    """The seqs behind the page `rows`, which has some of the first `most` rows that were found."""
    return _listed(seqs[_number_checked(rows, seqs[:most]) :], seqs, query)


def _listed(behind: Sequence[int], seqs: Sequence[int], query: PageQuery) -> Listed:
    """The seqs behind a page. `seqs`: all that were found."""
    return Listed(array("q", behind), len(seqs) < query.size or len(seqs) == query.limit)


def _all_of(db: sqlite3.Connection, query: Query) -> list[Any]:
    return db.execute(query.sql, query.values).fetchall()
