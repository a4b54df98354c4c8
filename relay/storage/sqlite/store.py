"""SqliteStore: one file, one writer thread, reads on the loop as long as they are short.

The writer is a plain connection on a thread of its own, since a batch must be one trip to a thread
(DESIGN §7) and a batch is a Python decision between two halves of one transaction. Rows of a batch
go in by statements of many rows, so that SQLite runs without the GIL for the whole of each. Short
reads run on the loop thread (a hand-over costs more than they do); a budget cuts them off, and they
begin again on a reader thread. Checkpoints run beside the writer, so that no commit waits for one.
The tags of the newest rows are in memory (`tail.py`): their index is what a commit costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from array import array
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.access.actors import Actors
from relay.access.management import ListChange, ListName, management_of
from relay.access.quotas import Size, Sized
from relay.access.visibility import everything_visible
from relay.errors import StoreFault, TooWide
from relay.groups.group import Groups
from relay.lifecycle.retention import MaxAmount
from relay.nostr.event import event_from_raw
from relay.nostr.nip50 import search_from
from relay.nostr.nip77 import Items
from relay.storage import PAGE_BYTES, Features, Page, Place
from relay.storage.sqlite.conditions import listed
from relay.storage.sqlite.hashes import Hashes, id_key
from relay.storage.sqlite.opening import Readers, connection, gather, opened
from relay.storage.sqlite.queries import QUERIES, stored
from relay.storage.sqlite.sql import Compiler, Query
from relay.storage.sqlite.sql_sweep import SweepQueries
from relay.storage.sqlite.tail import GENERATION, TagTail
from relay.storage.sqlite.text_index import index_path, opened_index
from relay.storage.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from relay.access.management import Management
    from relay.access.quotas import SizedBy
    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter, FilterTerms
    from relay.storage.sqlite.text_index import TextIndex

T = TypeVar("T")

_PATIENCE_S: Final = 0.05
"""How long a read that waits for the disk may hold the loop thread."""
_BUDGET_LOOKS: Final = 10
"""How much work it may be: so many times `_BUDGET_STEPS`, about 5 ms."""
_BUDGET_STEPS: Final = 20_000
"""Steps of SQLite's machine between two looks at it: about half a millisecond."""
_ROWS_AT_FIRST: Final = 4
_ROWS_AT_ONCE: Final = 100
_ITEMS_AT_ONCE: Final = 10_000
_SEARCH_S: Final = 2.0
"""How long a search may take; a word that every text has takes one in a million of them."""
_NOTED: Final = "e.raw, e.seq, e.grp, e.quiet, e.slot, e.version, e.expires_at"
_EVERYTHING: Final = everything_visible(Actors(), Groups())
_CHECKPOINT_BYTES: Final = 128 << 20
_STOP_AND_CHECKPOINT_BYTES: Final = 1 << 30


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
        tail: TagTail,
        index: TextIndex,
    ) -> None:
        """Use `open`."""
        self._path = path
        self._wal = f"{path}-wal"
        self._compiler = Compiler(hashes, terms.index_tags, tail.seqs_of)
        self._index = index
        self._sweeping = SweepQueries(self._compiler, terms.index_tags)
        self._writer = Writer(
            writer, hashes, terms.index_tags, head, tail, index.forget, self._sweeping
        )
        self._loop = asyncio.get_running_loop()
        self._committed = asyncio.Event()
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(1, "store-reader")
        self._surveying = ThreadPoolExecutor(1, "store-survey")
        self._checkpointing = ThreadPoolExecutor(1, "store-checkpoint")
        self._indexing = ThreadPoolExecutor(1, "store-index")
        self._searching = ThreadPoolExecutor(1, "store-search")
        self._readers = Readers(path, hashes, tail)
        self._near = self._readers.reader()
        self._far = self._readers.reader()
        self._seeker = self._new_seeker()
        self._tidy = connection(path)
        self._checkpoint: asyncio.Future[None] | None = None
        self._closed = False
        self._looks = 0
        self._patience_ends = 0.0
        self._near.set_progress_handler(self._is_late, _BUDGET_STEPS)

    @classmethod
    async def open(
        cls,
        path: Path,
        terms: FilterTerms,
        *,
        synchronous: str = "FULL",
        generation: int = GENERATION,
    ) -> SqliteStore:
        """Open or make the file. Raises StoreVersion for one of another version or program.

        `generation`: tag rows that gather in memory before they go to their index.
        """
        writer, hashes, head = await asyncio.to_thread(opened, path, terms, synchronous)
        tail = TagTail(generation)
        try:
            await asyncio.to_thread(gather, writer, hashes, terms, tail)
            index = await asyncio.to_thread(opened_index, path, hashes.fingerprint(), head)
            return cls(path, writer, hashes, terms, head, tail, index)
        except sqlite3.Error as error:
            writer.close()
            raise _fault(error) from error
        except StoreFault:
            writer.close()
            raise

    # -- writing --------------------------------------------------------------------------------

    async def append(self, wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        self._check_open()
        head = await self._on(self._writing, self._append, wanted, decide)
        self._tend_wal()
        return head

    def _append(self, wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        """On the writer's thread: a commit is announced also when its caller was cancelled."""
        head = self._writer.append(wanted, decide)
        self._loop.call_soon_threadsafe(self._wake)
        return head

    def _wake(self) -> None:
        """Wake the tasks in `committed_after`, on the loop."""
        self._committed.set()
        self._committed = asyncio.Event()

    def prepare(self, events: Sequence[Event]) -> None:
        self._writer.prepare(events)

    def _tend_wal(self) -> None:
        """Copy a grown log back, beside the writer; in its way only when the log is huge."""
        if self._checkpoint is not None and not self._checkpoint.done():
            return
        try:
            size = os.stat(self._wal).st_size
        except FileNotFoundError:
            return
        if size < _CHECKPOINT_BYTES:
            return
        # A full log is written over only when it was copied whole while no reader stood in it.
        mode = "TRUNCATE" if size > _STOP_AND_CHECKPOINT_BYTES else "PASSIVE"
        loop = asyncio.get_running_loop()
        self._checkpoint = loop.run_in_executor(self._checkpointing, _checkpoint, self._tidy, mode)

    # -- reading --------------------------------------------------------------------------------

    async def page(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Page:
        page = self.page_now(
            filter_, visibility, limit=limit, upto=upto, now=now, after=after, size=size
        )
        if page is not None:
            return page
        query = self._compiler.page(
            filter_,
            visibility,
            columns="e.raw",
            upto=upto,
            now=now,
            after=after,
            size=min(size, limit),
        )
        raws = await self._on(self._reading, _raws, self._far, query)
        return self._paged(raws, min(size, limit), limit)

    def page_now(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Page | None:
        self._check_open()
        size = min(size, limit)
        if size <= 0 or filter_.impossible:
            return Page((), None)
        query = self._compiler.page(
            filter_, visibility, columns="e.raw", upto=upto, now=now, after=after, size=size
        )
        raws = self._read_now(query, _raws)
        return None if raws is None else self._paged(raws, size, limit)

    def _paged(self, raws: list[bytes], size: int, limit: int) -> Page:
        if not raws or len(raws) == limit or (len(raws) < size and not _is_full(raws)):
            return Page(raws, None)
        return Page(raws, self._place_of(raws[-1]))

    async def places(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Sequence[tuple[Place, bytes]]:
        self._check_open()
        size = min(size, limit)
        if size <= 0 or filter_.impossible:
            return []
        query = self._compiler.page(
            filter_,
            visibility,
            columns="e.raw, e.created_at, e.id_key, e.seq",
            upto=upto,
            now=now,
            after=after,
            size=size,
        )
        rows = await self._read(query, _weighed)
        return [(Place(*place), raw) for raw, *place in rows]

    async def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> int:
        self._check_open()
        possible = [filter_ for filter_ in filters if not filter_.impossible]
        if not possible:
            return 0
        query = self._compiler.count(possible, visibility, now=now)
        rows = await self._counted(possible, query)
        number: int = rows[0][0]
        return number

    async def authors(
        self, filter_: Filter, visibility: Visibility, *, now: int, at_most: int
    ) -> Sequence[bytes] | None:
        self._check_open()
        if filter_.impossible:
            return []
        query = self._compiler.authors(filter_, visibility, now=now, at_most=at_most + 1)
        keys = [key for (key,) in await self._counted([filter_], query)]
        return keys if len(keys) <= at_most else None

    async def _counted(self, filters: Sequence[Filter], query: Query) -> list[Any]:
        if any(filter_.search is not None for filter_ in filters):
            return await self._on(self._searching, self._sought, query)
        return await self._read(query, _fetched)

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
        query = self._compiler.items(
            filter_, visibility, limit=limit, upto=upto, now=now, at_most=at_most + 1
        )
        return await self._on(self._surveying, _items, self._readers, query, at_most)

    async def management(self) -> Management:
        self._check_open()
        rows = await self._on(self._reading, _managed, self._far)
        return management_of(ListChange(ListName(name), item, note) for name, item, note in rows)

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        self._check_open()
        query = Query(QUERIES[f"sizes_by_{by.value}"], (limit,))
        rows = await self._on(self._reading, _fetched, self._far, query)
        return [Sized(of, Size(events, size)) for of, events, size in rows]

    async def expired(self, now: int, limit: int) -> Sequence[str]:
        self._check_open()
        query = Query(QUERIES["expired"], (now, limit))
        return [event_id.hex() for (event_id,) in await self._read(query, _fetched)]

    async def due_rows(
        self,
        rule: SweepRule,
        spared: Sequence[Match],
        *,
        now: int,
        seen: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        self._check_open()
        queries = [
            self._sweeping.due_rows(rule, spared, now=now, seen=seen, after=after, limit=limit)
        ]
        if seen is not None and isinstance(rule.limit, MaxAmount):
            # Nothing can have become too much where nothing came.
            queries.insert(0, self._sweeping.changed(rule, spared, seen))
        return await self._on(self._surveying, _surveyed, self._readers, queries)

    async def stored(self, seqs: Sequence[int]) -> Sequence[Stored]:
        self._check_open()
        query = Query(QUERIES["rows_by_seq"], (listed(list(seqs)),))
        rows = await self._on(self._reading, _fetched, self._far, query)
        return [stored(row) for row in rows]

    async def matching(self, filter_: Filter, *, limit: int, now: int) -> Sequence[Stored]:
        self._check_open()
        if filter_.impossible:
            return []
        query = self._compiler.page(
            filter_,
            _EVERYTHING,
            columns=_NOTED,
            upto=self._writer.head,
            now=now,
            after=None,
            size=limit,
        )
        rows = await self._read(query, _weighed)
        return [stored((seq, raw, *noted)) for raw, seq, *noted in rows]

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        self._check_open()
        rows = await self._on(self._reading, _logged, self._far, seq, limit)
        return [stored(row) for row in rows]

    async def head(self) -> int:
        self._check_open()
        return self._writer.head

    def committed(self) -> int:
        return self._writer.head

    async def committed_after(self, seq: int) -> int:
        self._check_open()
        while self._writer.head <= seq:
            await self._committed.wait()
            self._check_open()
        return self._writer.head

    async def is_writable(self) -> bool:
        self._check_open()
        try:
            await self._on(self._writing, self._writer.touch)
        except StoreFault:
            return False
        return True

    def _is_late(self) -> bool:
        # Steps and not time: on a busy machine the clock runs on while others do.
        self._looks += 1
        return self._looks > _BUDGET_LOOKS or monotonic() > self._patience_ends

    def _read_now(
        self, query: Query, fetch: Callable[[sqlite3.Connection, Query], list[T]]
    ) -> list[T] | None:
        """On the loop thread; None when that took too long."""
        self._looks = 0
        self._patience_ends = monotonic() + _PATIENCE_S
        try:
            return fetch(self._near, query)
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise _fault(error) from error
        # The sqlite3 module takes an interrupted statement to be in use for ever, and would prepare
        # it anew at each later call: 90 us of 330. A new connection forgets it.
        self._near.close()
        self._near = self._readers.reader()
        self._near.set_progress_handler(self._is_late, _BUDGET_STEPS)
        return None

    async def _read(
        self, query: Query, fetch: Callable[[sqlite3.Connection, Query], list[T]]
    ) -> list[T]:
        """Here when it is short, else begun again on the reader thread."""
        found = self._read_now(query, fetch)
        if found is not None:
            return found
        return await self._on(self._reading, fetch, self._far, query)

    def _place_of(self, raw: bytes) -> Place:
        event = event_from_raw(raw)
        key = id_key(event.id)
        row = self._near.execute(QUERIES["seq_of_id"], (key, bytes.fromhex(event.id))).fetchone()
        # Deleted since the page was read: any row behind it in the order is behind this place too.
        return Place(event.created_at, key, row[0] if row else 0)

    # -- searching ------------------------------------------------------------------------------

    async def index(self, text_of: Callable[[Event], str | None], rules: str, limit: int) -> int:
        self._check_open()
        head = self._writer.head
        return await self._on(self._indexing, self._index.follow, text_of, rules, limit, head)

    async def tidy_index(self, now: int) -> bool:
        self._check_open()
        return await self._on(self._indexing, self._index.tidy, now)

    async def search(
        self, filter_: Filter, visibility: Visibility, *, limit: int, upto: int, now: int
    ) -> Sequence[int]:
        self._check_open()
        search = search_from(filter_.search or "")
        if limit <= 0 or filter_.impossible or search is None or not search.required:
            return ()
        query = self._compiler.search(search, filter_, visibility, limit=limit, upto=upto, now=now)
        return [seq for (seq,) in await self._on(self._searching, self._sought, query)]

    async def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> tuple[Sequence[bytes], int]:
        self._check_open()
        rows = await self._read(self._compiler.rows(seqs, filter_, visibility, now=now), _weighed)
        raws = [raw for raw, _ in rows]
        return raws, rows[-1][1] + 1 if _is_full(raws) else len(seqs)

    def _sought(self, query: Query) -> list[Any]:
        """On the searching thread. Raises TooWide."""
        late = monotonic() + _SEARCH_S
        self._seeker.set_progress_handler(lambda: monotonic() > late, _BUDGET_STEPS)
        try:
            return self._seeker.execute(query.sql, query.values).fetchall()
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
        self._seeker.close()  # as in `_read_now`
        self._seeker = self._new_seeker()
        raise TooWide

    def _new_seeker(self) -> sqlite3.Connection:
        """A reader that has the index of texts beside the store."""
        db = self._readers.reader()
        db.execute("ATTACH ? AS search", (str(index_path(self._path)),))
        return db

    # -- both -----------------------------------------------------------------------------------

    async def _on(self, pool: ThreadPoolExecutor, work: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(pool, work, *args)
        except sqlite3.Error as error:
            raise _fault(error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault("the store is closed")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake()
        loop = asyncio.get_running_loop()
        if self._checkpoint is not None:
            with contextlib.suppress(sqlite3.Error):
                await self._checkpoint
        await loop.run_in_executor(self._reading, self._far.close)
        self._near.close()
        await loop.run_in_executor(self._checkpointing, self._tidy.close)
        await loop.run_in_executor(self._searching, self._seeker.close)
        await loop.run_in_executor(self._indexing, self._index.close)
        await loop.run_in_executor(self._writing, self._writer.finish)
        for pool in (
            self._writing,
            self._reading,
            self._surveying,
            self._checkpointing,
            self._indexing,
            self._searching,
        ):
            pool.shutdown()


def _fetched(db: sqlite3.Connection, query: Query) -> list[Any]:
    return db.execute(query.sql, query.values).fetchall()


def _weighed(db: sqlite3.Connection, query: Query) -> list[Any]:
    """Rows whose first column weighs, until there are no more or the page is large enough."""
    cursor = db.execute(query.sql, query.values)
    rows: list[Any] = []
    weight, at_once = 0, _ROWS_AT_FIRST
    while weight < PAGE_BYTES and (more := cursor.fetchmany(at_once)):
        rows += more
        weight += sum([len(row[0]) for row in more])
        # As many as fit if they are like those before: rows may be a thousand times as large.
        at_once = max(1, min(_ROWS_AT_ONCE, (PAGE_BYTES - weight) * len(rows) // weight))
    cursor.close()
    return rows


def _logged(db: sqlite3.Connection, seq: int, limit: int) -> list[Any]:
    return db.execute(QUERIES["rows_since"], {"seq": seq, "limit": limit}).fetchall()


def _managed(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return db.execute(QUERIES["management"]).fetchall()


def _raws(db: sqlite3.Connection, query: Query) -> list[bytes]:
    return [raw for (raw,) in _weighed(db, query)]


def _items(readers: Readers, query: Query, at_most: int) -> Items | None:
    """On a connection of its own: it may read the whole file, and others should not wait for it."""
    timestamps, ids = array("Q"), bytearray()
    with contextlib.closing(readers.surveyor()) as db:
        cursor = db.execute(query.sql, query.values)
        while rows := cursor.fetchmany(_ITEMS_AT_ONCE):
            timestamps.extend(map(itemgetter(0), rows))
            ids += b"".join(map(itemgetter(1), rows))
    return None if len(timestamps) > at_most else Items(timestamps, bytes(ids))


def _surveyed(readers: Readers, queries: Sequence[Query]) -> array[int]:
    """Numbers that the last query gives, if those before it find anything."""
    found = array("q")
    with contextlib.closing(readers.surveyor()) as db:
        for query in queries:
            found = array("q", map(itemgetter(0), db.execute(query.sql, query.values)))
            if not found:
                break
    return found


def _is_full(raws: Sequence[bytes]) -> bool:
    return sum(map(len, raws)) >= PAGE_BYTES


def _checkpoint(db: sqlite3.Connection, mode: str) -> None:
    db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()


def _fault(error: sqlite3.Error) -> StoreFault:
    return StoreFault(f"store: {error}")
