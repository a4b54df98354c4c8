"""Reads on threads: a connection and its thread, turns of clients on several, and pauses of all.

Invariants: one query at a time on each connection. A statement that begins while another is open on
the connection shares its snapshot and would miss rows that were committed since.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import orjson

from relay.errors import StoreFault, TooSlow
from relay.storage import CLOSED
from relay.storage.read_turns import ReadTurns
from relay.storage.sqlite.connections import (
    TagReader,
    open_threaded,
    page_of,
    sqlite_faults,
)
from relay.storage.sqlite.sql.conditions import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence

    import aiosqlite

    from relay.access.visibility import Visibility
    from relay.storage import Verb
    from relay.storage.sqlite.sql.conditions import Value

T = TypeVar("T")

_INTERRUPT_S: Final = 0.05
"""Between two interrupts of the same query."""
QUICK_S: Final = 0.05
"""Processor time of a read of rows that begins again on another connection, if others wait …"""
SHORT_S: Final = 0.25
"""… and on a third one, as a search does."""
_WAIT_RATIO: Final = 4
"""So many times as long it may take, where it waits for the disk or for a processor."""
_LOOK_S: Final = 0.025
"""Between two looks at whether others wait."""
_CHUNK_ROWS: Final = 2_000
"""Rows of a negentropy set that are taken at once: 0.5 ms of the loop."""


class _Use:
    """Calls functions on the thread of a connection, until it is over."""

    __slots__ = ("_db", "cursor", "is_over")

    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db
        self.is_over = False
        self.cursor: sqlite3.Cursor | None = None
        """Left open between two calls."""

    def check(self) -> None:
        """Before each query, on the thread: one that has not begun cannot be interrupted, and
        nothing would end it."""
        if self.is_over:
            raise TooSlow

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db._conn

        def on_thread() -> T:
            self.check()
            return work(db)

        done: T = await self._db._execute(on_thread)  # type: ignore[no-untyped-call]
        return done

    def close(self) -> None:
        """On the thread, which then drops the result of its last function, too."""
        if self.cursor is not None:
            self.cursor.close()


class _HeldUp:
    """Inside it, a query waits for a pause."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        if not self._waiting:
            self._since = monotonic()
        self._waiting += 1

    def __exit__(self, *_: object) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._seconds += monotonic() - self._since

    @property
    def seconds(self) -> float:
        """For which any query waited."""
        return self._seconds + (monotonic() - self._since if self._waiting else 0.0)


class AsyncReader:
    """A connection with a thread of its own. Its methods raise StoreFault."""

    def __init__(
        self, connector: Callable[[], sqlite3.Connection], held_up: _HeldUp | None = None
    ) -> None:
        """`held_up`: of several connections whose reads take turns together."""
        self._connector = connector
        self._db: aiosqlite.Connection
        self._lock = asyncio.Lock()
        self._may_run = asyncio.Event()
        """Not set: queries wait, because a pause is wanted."""
        self._may_run.set()
        self._pauses = 0
        self._held_up = held_up or _HeldUp()
        self.waiting_since = inf
        """`monotonic` time since when a query waits for the pause that is wanted or lasts."""
        self._ending: asyncio.Task[None] | None = None
        """Ends the last query that was broken off."""
        self._is_open = True

    async def __aenter__(self) -> Self:
        """Raises sqlite3.Error."""
        self._db = await open_threaded(self._connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the current query."""
        try:
            async with self._lock:
                pass
        finally:  # also when cancelled
            self._is_open = False
            await self._db.close()

    async def rows(self, query: Query) -> list[Any]:
        async with self._use() as use:
            return await use.run(lambda db: db.execute(query.sql, query.values).fetchall())

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Wait for the current query, ahead of all that are queued. Inside, none runs and no
        snapshot is held."""
        self._pauses += 1
        self._may_run.clear()
        try:
            async with self._lock:
                yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._may_run.set()
                self.waiting_since = inf

    @property
    def is_busy(self) -> bool:
        """Whether a query runs, or a pause lasts."""
        return self._lock.locked()

    def unpaused_s(self) -> float:
        """Seconds from any point in time, without those for which queries waited for pauses."""
        return monotonic() - self._held_up.seconds

    def used_s(self) -> float:
        """Processor time of the thread; all time where that cannot be told."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return monotonic()
        thread = self._db._thread.ident
        assert thread is not None
        return time.clock_gettime(time.pthread_getcpuclockid(thread))

    async def rows_within(
        self, query: Query, seconds: float, begun: asyncio.Event | None = None
    ) -> list[Any]:
        """Raises TooSlow when the query takes longer; so do `work_within` and `page_within`.
        `begun`: set when it has the connection."""
        return await self.work_within(lambda rows: rows(*query), seconds, begun)

    async def work_within(
        self,
        work: Callable[[Callable[[str, Sequence[Value]], list[Any]]], T],
        seconds: float,
        begun: asyncio.Event | None = None,
    ) -> T:
        """The result of `work`, called on the thread with a function that queries rows."""
        async with self._use(seconds) as use:
            if begun is not None:
                begun.set()

            def work_on(db: sqlite3.Connection) -> T:
                def rows(sql: str, values: Sequence[Value]) -> list[Any]:
                    use.check()
                    return db.execute(sql, values).fetchall()

                return work(rows)

            return await use.run(work_on)

    async def page_within(
        self, query: Query, seconds: float | None, begun: asyncio.Event | None = None
    ) -> list[Any]:
        """As `PageCursor.fetchmany`. None: as long as its caller waits."""
        async with self._use(seconds) as use:
            if begun is not None:
                begun.set()
            return list(await use.run(lambda db: page_of(db, query)))

    async def listed_within(
        self,
        query: Query,
        fetch: str,
        most: int,
        seconds: float | None,
        begun: asyncio.Event | None = None,
    ) -> tuple[list[int], list[Any]]:
        """The JSON list that `query` gives, and as `PageCursor.fetchmany` the rows of `fetch`,
        whose value is this list, of its first `most` items."""
        async with self._use(seconds) as use:
            if begun is not None:
                begun.set()

            def read(db: sqlite3.Connection) -> tuple[list[int], list[Any]]:
                [listed] = db.execute(*query).fetchone()
                use.check()
                items = orjson.loads(listed)
                if len(items) > most:
                    listed = orjson.dumps(items[:most]).decode()
                return items, page_of(db, Query(fetch, (listed,)))

            return await use.run(read)

    @asynccontextmanager
    async def _use(self, seconds: float | None = None) -> AsyncIterator[_Use]:
        """Have the connection alone. A query that fails, takes longer than `seconds` (TooSlow) or
        that nobody waits for any more is interrupted, and others begin when it has ended."""
        await self._turn()
        if not self._is_open:
            self._lock.release()
            raise StoreFault(CLOSED)
        use = _Use(self._db)
        try:
            with sqlite_faults():
                async with asyncio.timeout(seconds):
                    yield use
                await self._settle()
        except BaseException as error:
            use.is_over = True
            self._ending = asyncio.create_task(self._end(use))
            if isinstance(error, TimeoutError):
                raise TooSlow from None
            raise
        self._lock.release()

    async def _end(self, use: _Use) -> None:
        """Wait until the thread has ended the query and has closed it: an open statement keeps its
        snapshot, and the connection interrupted."""
        ended = asyncio.ensure_future(self._db._execute(use.close))  # type: ignore[no-untyped-call]
        try:
            with suppress(sqlite3.Error, ValueError):  # ValueError: closed
                while not ended.done():
                    self._db._conn.interrupt()  # lost before the first step
                    await asyncio.wait([ended], timeout=_INTERRUPT_S)
                await self._settle()
        finally:
            self._lock.release()

    async def _settle(self) -> None:
        """After each use: replace a connection that keeps too much."""
        db = self._db._conn
        if isinstance(db, TagReader) and db.keeps_too_much:
            await self._db._execute(self._replace)  # type: ignore[no-untyped-call]

    def _replace(self) -> None:
        """On the thread."""
        with suppress(sqlite3.Error, StoreFault):  # then the next use tries again
            former, self._db._connection = self._db._conn, self._connector()
            former.close()

    async def _turn(self) -> None:
        """Acquire the lock, after all pauses that wait for it."""
        while True:
            if not self._may_run.is_set():
                self.waiting_since = min(self.waiting_since, monotonic())
                with self._held_up:
                    await self._may_run.wait()
            await self._lock.acquire()
            if self._may_run.is_set():
                return
            self._lock.release()


class TurnReader(AsyncReader):
    """A reader for clients, which take turns.

    A read that takes long while others wait begins again on the next connection; further ones of
    its account begin there. So who reads quickly waits for quick reads of others.
    """

    def __init__(
        self,
        connector: Callable[[], sqlite3.Connection],
        most_s: float = inf,
        longer: TurnReader | None = None,
        *,
        number: int = 1,
    ) -> None:
        """`most_s`: processor time after which reads are long, and go on on `longer`. `number`: of
        connections. From one read to the next a thread waits for several iterations of the loop:
        with one connection, quick reads waited for these and not for the store."""
        super().__init__(connector)
        others = [AsyncReader(connector, self._held_up) for _ in range(number - 1)]
        self.connections: Sequence[AsyncReader] = [self, *others]
        self.turns = ReadTurns(number, self.unpaused_s)
        self._taken: set[AsyncReader] = set()
        self._most_s = most_s
        self._longer = longer

    @asynccontextmanager
    async def _turn_of(
        self, visibility: Visibility, address: str | None, verb: Verb
    ) -> AsyncIterator[AsyncReader]:
        """A turn, and its connection: the first that is free, which has prepared most statements.
        On one whose turn is over, its read may have to end."""
        address, key = visibility.share_of(address)
        async with self.turns.of(address, verb, key, is_owner=visibility.is_owner):
            free = [each for each in self.connections if each not in self._taken]
            reader = min(free, key=lambda each: each.is_busy)
            self._taken.add(reader)
            try:
                yield reader
            finally:
                self._taken.remove(reader)

    async def read(
        self,
        visibility: Visibility,
        address: str | None,
        work: Callable[[AsyncReader, asyncio.Event], Coroutine[Any, Any, Sequence[T]]],
        verb: Verb = "REQ",
        *,
        is_long: bool = False,
    ) -> Sequence[T]:
        """The result of `work` on a connection, here or on a longer one; perhaps it is called
        again there. It sets the event when it has the connection: it may wait for a truncation.
        `is_long`: it begins on the last one."""
        longer, share = self._longer, visibility.share_of(address)
        if longer is None:
            async with self._turn_of(visibility, address, verb) as reader:
                return await work(reader, asyncio.Event())
        if not (is_long or self.turns.expects_long(*share)):
            begun, note_long = asyncio.Event(), partial(self.turns.note_long, *share)
            async with (
                self._turn_of(visibility, address, verb) as reader,
                _Look(reader, self.turns, begun, self._most_s, note_long),
            ):
                return await work(reader, begun)
        return await longer.read(visibility, address, work, verb, is_long=is_long)


class _Look:
    """Looks now and then at how long the read inside takes, and ends it if others wait. The read
    has no task of its own: with one, its turn would end some iterations of the loop later."""

    def __init__(
        self,
        reader: AsyncReader,
        turns: ReadTurns,
        begun: asyncio.Event,
        most_s: float,
        note_long: Callable[[], None],
    ) -> None:
        """`most_s`: processor time that the read may take once it has `begun`; it may take longer
        if it waits. `note_long`: called if it took more processor time."""
        self._reader = reader
        self._turns = turns
        self._begun = begun
        self._most_s = most_s
        self._note_long = note_long
        self._used_s = inf
        """The thread's time when the read had not begun."""
        self._began = inf
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle

    async def __aenter__(self) -> None:
        self._used_s = self._reader.used_s()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        await self._scope.__aenter__()

    async def __aexit__(self, *error: Any) -> bool:
        """True: the read was ended."""
        self._timer.cancel()
        if self._is_long():
            self._note_long()
        try:
            await self._scope.__aexit__(*error)
        except TimeoutError:
            return True
        return False

    def _is_long(self) -> bool:
        return self._begun.is_set() and self._reader.used_s() - self._used_s >= self._most_s

    def _look(self) -> None:
        now = monotonic()
        if not self._begun.is_set():
            self._used_s = self._reader.used_s()
        elif self._began == inf:
            self._began = now
        has_waited = now - self._began >= self._most_s * _WAIT_RATIO
        if (has_waited or self._is_long()) and self._turns.is_anybody_waiting:
            self._scope.reschedule(asyncio.get_running_loop().time())
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)


class BulkReader(AsyncReader):
    """A reader for queries that may read the whole file: these pages are not kept in memory."""

    async def chunks(
        self, query: Query, take: Callable[[list[Any]], None], seconds: float | None = None
    ) -> None:
        """Call `take` with some thousand rows at a time, on the loop. Raises TooSlow when the query
        takes longer than `seconds`."""
        async with self._use(seconds) as use:
            use.cursor = cursor = await use.run(lambda db: db.execute(query.sql, query.values))
            while rows := await use.run(lambda _: cursor.fetchmany(_CHUNK_ROWS)):
                take(rows)
            await use.run(lambda _: cursor.close())

    async def _settle(self) -> None:
        await super()._settle()
        await self._db.execute_fetchall("PRAGMA shrink_memory")


class Pauses:
    """Pauses of several readers, one such pause at a time: two that have paused some readers each
    would wait for each other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def of(self, *stages: Collection[AsyncReader]) -> AsyncIterator[float]:
        """Inside, each reader is `paused`. While the query of one is waited for, free ones go on.
        Gives the `monotonic` time since when a query has waited for a paused reader.

        Readers of a later stage go on while queries of an earlier one are waited for. So readers to
        which long queries of others move come in an early stage: from then on none moves there. And
        before them those whose queries take longest."""
        begun: list[tuple[AsyncReader, float]] = []
        async with self._lock, AsyncExitStack() as paused:
            for waiting in map(list, stages):
                while waiting:
                    reader = next((each for each in waiting if each.is_busy), waiting[0])
                    waiting.remove(reader)
                    await paused.enter_async_context(reader.paused())
                    begun.append((reader, monotonic()))
            yield min(monotonic(), *[max(at, reader.waiting_since) for reader, at in begun])
