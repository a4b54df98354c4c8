"""Connections to the store's file: the one that reads on the event loop, and those that wait.

A read that may take long runs on a connection of aiosqlite, which has a thread of its own.

Invariants: one query at a time on each connection. A statement that begins while another is open on
the connection shares its snapshot and would miss rows that were committed since.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from shutil import disk_usage
from threading import get_native_id
from time import monotonic, perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import aiosqlite
import orjson

from relay.access.shares import network_of_client
from relay.errors import StoreFault, TooSlow
from relay.files import refuse_super_journal
from relay.storage import CLOSED, PAGE_BYTES
from relay.storage.read_turns import ReadTurns
from relay.storage.rows import DAMAGED
from relay.storage.sqlite.sql.conditions import Query
from relay.storage.sqlite.tag_functions import OF_ROWS, TagFunctions, add_functions

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Coroutine,
        Iterator,
        Sequence,
    )

    from relay.access.visibility import Visibility
    from relay.storage import Verb
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.sql.conditions import Value
    from relay.storage.sqlite.tag_buffer import TagBuffer

T = TypeVar("T")

MAX_VALUE: Final = 64 * 2**20
"""Bytes of a text or blob that may be read; parsed it takes ten times as much memory."""
_NO_SPACE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite fails with on a full disk, where it cannot even make rookery.db-shm."""
_BLOCK_S: Final = 0.001 / 8
"""Seconds that 512 bytes take on a disk that reads 1,000 pages of a file in a second."""
_LEAST_SPACE: Final = 1 << 20
_INTERRUPT_S: Final = 0.05
"""Between two interrupts of the same query."""
_MMAP_BYTES: Final = 1 << 30
_CACHE_KIB: Final = 65_536
_BULK_CACHE_KIB: Final = 8_192
_UNMAPPED_CACHE_KIB: Final = 16_384
"""Cache of each reader while none maps the file into memory."""
_STATEMENTS: Final = 512
_MOST_KEPT: Final = 64 << 20
"""Bytes that the cached statements of a reader may keep, until a new connection replaces it."""
_PROGRAM_BYTES: Final = 24
"""Bytes of a prepared statement for each character of its text."""
_SHORT_VALUES: Final = 1024
"""Characters of the values of a statement up to which they are not counted."""
_PREPARE_S: Final = 1e-6
"""For each character of a text, on a busy machine."""
_LOOP_READ_S: Final = 0.05
"""How long a read on the loop may take, for reads that wait for the disk."""
_PROGRESS_STEPS: Final = 2_000
"""Instructions of SQLite's virtual machine between two calls of the progress handler: 0.02 to
0.08 ms, or 30 ms if each of 130 look-ups reads a page of a disk."""
_LOOP_BYTES: Final = 4 << 20
"""Bytes of rows in which a read on the loop may look for tags; each MiB takes up to 3 ms."""
_LOOP_CALLS: Final = 100
"""Calls of the progress handler after which a read on the loop is interrupted …"""
_LEAST_CALLS: Final = 20
"""… and while many are interrupted; most reads end sooner."""
_WASTED_PER_S: Final = 1500
"""Calls of interrupted reads, per second, that do not shorten the others: 10 % of the loop."""
_MAX_UNWASTED: Final = 200
"""Calls that interrupted reads may use at once."""
_CALL_S: Final = 0.0002
"""A call that comes later than this counts as several: some instructions read long texts."""
_WAIT_S: Final = 0.005
"""A read on the loop that took longer, and read more than `_FEW_READS` blocks of the disk, has kept
everybody waiting: then the file is not mapped until none has done so for `_MAP_AGAIN_S`."""
_FEW_READS: Final = 8
_REST_RATIO: Final = 100
_MAX_REST_S: Final = 10.0
"""For `_REST_RATIO` times as long as such a read took, at most for this time, further reads of its
network run on threads."""
_MAP_AGAIN_S: Final = 600.0
_WASTEFUL_S: Final = 60.0
"""For so long after a read of a network was interrupted, its reads may be shorter."""
_SAME_S: Final = 30.0
"""For so long after a statement of a network was interrupted, it is not tried on the loop again."""
_MAX_WASTEFUL: Final = 1024
"""Networks whose interrupted or slow reads are remembered."""
_MAX_INTERRUPTED: Final = 64
"""Statements that were interrupted, until a new connection replaces the one they were on."""
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


def file_connection(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection, statements: int = 128
) -> sqlite3.Connection:
    """The only way to a file of a store. Raises StoreFault for a journal that makes SQLite delete
    another file, and sqlite3.Error."""
    try:
        refuse_super_journal(path)
    except OSError as error:
        raise StoreFault(f"{path}: {error.strerror}") from error
    return sqlite3.connect(
        path,
        timeout=10,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=statements,
        factory=factory,
    )


def connection(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    db = file_connection(path, factory, _STATEMENTS)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    try:
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA secure_delete = ON")
        add_functions(db)
    except sqlite3.Error:  # the file is no database
        db.close()
        raise
    return db


def index_path(store: Path) -> Path:
    """The index of texts of the store at this path."""
    return store.with_name("search.db")


async def open_threaded(connector: Callable[[], sqlite3.Connection]) -> aiosqlite.Connection:
    """An aiosqlite connection that `connector` opens on its thread.

    Raises what `connector` raises. Then, or when cancelled, the thread has ended: aiosqlite stops
    it without waiting, and it could call a closed loop.
    """
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(connector())
        return made[0]

    db = aiosqlite.Connection(connect, iter_chunk_size=64)
    # A store left open by an error must not keep the process from exiting. aiosqlite has no option
    # for that; SQLAlchemy does the same.
    db._thread.daemon = True
    try:
        return await db
    except BaseException:
        await asyncio.to_thread(db._thread.join)
        for unused in made:
            unused.close()
        raise


def fault_of(error: sqlite3.Error, where: object = "store") -> StoreFault:
    """Names `where`, and what to do about a damaged file or, if it is a file, a full disk."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _NO_SPACE and isinstance(where, Path) and _has_no_space(where.parent):
        return StoreFault(f"{where}: {error}; no space is left on this disk, free some")
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreFault(
            f"{where}: a value is over {MAX_VALUE:,} bytes; `rookery verify` names it"
        )
    return StoreFault(f"{where}: {error}{f'; {DAMAGED}' if is_damage(error) else ''}")


def _has_no_space(folder: Path) -> bool:
    try:
        return disk_usage(folder).free < _LEAST_SPACE
    except OSError:
        return False


def is_damage(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def sqlite_faults(where: object = "store") -> Iterator[None]:
    """Errors of SQLite as `fault_of`."""
    try:
        yield
    except sqlite3.Error as error:
        raise fault_of(error, where) from error


class FileMap:
    """How much of the file connections map into memory. A page that is read through the map comes
    with 128 KiB around it: 330 pages are 40 MB, which replace in memory what other reads need where
    the memory is smaller than the store."""

    def __init__(self) -> None:
        self.bytes = _MMAP_BYTES


class TagReader(sqlite3.Connection):
    """A connection with the SQL functions of `TagFunctions`; used by one thread at a time.

    It counts what its cached statements may keep: their programs, and the texts bound to them last.
    Clients choose both, and the cache is bounded in number only.
    """

    _functions: TagFunctions | None = None
    _mapping: FileMap | None = None
    _mapped = 0
    _cursor = sqlite3.Cursor
    kept = 0
    """Bytes, also of statements that are no longer cached."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bound: dict[str, int] = {}
        """Statement → bytes of the texts bound to it last, if they were long."""

    def follow(self, functions: TagFunctions) -> None:
        self.create_function("tag_hash", 2, functions.tag_hash, deterministic=True)
        self.create_function("buffered_rows", 2, functions.buffered_rows)
        self._functions = functions

    def map(self, mapping: FileMap) -> None:
        """Map as much of the file as `mapping` says, also when that changes."""
        self._mapping = mapping
        self._map(mapping.bytes)

    def _map(self, size: int) -> None:
        self._mapped = size
        super().execute(f"PRAGMA mmap_size = {size}")
        cache_kib = _CACHE_KIB if size else _UNMAPPED_CACHE_KIB
        super().execute(f"PRAGMA cache_size = -{cache_kib}")

    def __call__(self, sql: str, /) -> Any:
        """Prepare a text that is not in the cache."""
        self.kept += len(sql) * _PROGRAM_BYTES
        return super().__call__(sql)

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        if self._functions is not None:
            self._functions.begin()
        if self._mapping is not None and self._mapping.bytes != self._mapped:
            self._map(self._mapping.bytes)
        chars = 0
        for value in values:
            if value.__class__ is str:
                chars += len(value)
        if chars > _SHORT_VALUES:
            size = sum([len(value.encode()) for value in values if isinstance(value, str)])
            self.kept += size - self._bound.get(sql, 0)
            self._bound[sql] = size
        return self.cursor(self._cursor).execute(sql, values)


class PageCursor(sqlite3.Cursor):
    def fetchmany(self, size: int | None = None) -> list[Any]:
        """All rows that are left, or as many as bring the sizes of column 0 to PAGE_BYTES."""
        assert size is None
        rows: list[Any] = []
        weight = 0
        # Not in chunks: sizes differ a thousandfold, and 100 large rows would follow small ones.
        try:
            for row in self:
                rows.append(row)
                weight += len(row[0])
                if weight >= PAGE_BYTES:
                    break
        except TypeError as error:
            raise sqlite3.DatabaseError(f"a row has no text; {DAMAGED}") from error
        return rows


class PageReader(TagReader):
    """`fetchmany` of its cursors gives a page."""

    _cursor = PageCursor


def page_of(db: sqlite3.Connection, query: Query) -> list[Any]:
    with closing(db.execute(query.sql, query.values)) as cursor:
        return cursor.fetchmany()


class LoopReader:
    """The connection for reads on the event loop: it interrupts those that take long.

    What an interrupted read did is lost. While clients cause many, each read of their networks may
    do less before it is interrupted, so that they do not hold up the loop.
    """

    def __init__(self, connector: Callable[[], TagReader], mapping: FileMap | None = None) -> None:
        """`mapping`: of all readers."""
        self._connector = connector
        self._mapping = FileMap() if mapping is None else mapping
        self._interrupted: dict[str, int] = {}
        """Statement → how often it was interrupted, see `_never_interrupted`."""
        self._calls_left: float = 0
        """Calls of the progress handler that the current read may still make."""
        self._called_at = 0.0
        self._until = 0.0
        """When the current read is interrupted at the latest."""
        self._bytes_left: float = 0
        """Bytes of rows in which the current read may still look for tags."""
        self._unwasted: float = _MAX_UNWASTED
        """Calls that interrupted reads may still use before others are shortened."""
        self._wasteful: dict[object, float] = {}
        """Network → when a read of it was interrupted last, in this order."""
        self._interrupted_at: dict[tuple[object, int], float] = {}
        """Network and hash of a statement's text → when it was interrupted last."""
        self._refilled_at = monotonic()
        self._waited_at = 0.0
        """When a read waited for the disk last."""
        self._resting: dict[object, float] = {}
        """Network whose reads are on threads → until when."""
        self._disk_reads = disk_reads()
        """`disk_reads` when it was last looked at."""
        self._db = self._connection()

    def read(
        self,
        query: Query,
        fetch: Callable[[sqlite3.Connection, Query], list[T]],
        address: str | None = None,
    ) -> list[T] | None:
        """What `fetch` gives. None: the read was interrupted, its text is long, or reads of its
        network are on threads for now. `address`: of the client, as `Sharer.counted_as`. Raises
        StoreFault."""
        if query.is_long:
            return None
        now = monotonic()
        if self._unwasted < _MAX_UNWASTED:
            more = (now - self._refilled_at) * _WASTED_PER_S
            self._unwasted = min(self._unwasted + more, _MAX_UNWASTED)
        self._refilled_at = now
        # Instructions come after the text was prepared, if it is not cached.
        self._called_at = now + len(query.sql) * _PREPARE_S
        self._until = now + _LOOP_READ_S
        self._bytes_left = _LOOP_BYTES
        network = network_of_client(address)
        if self._resting and now < self._resting.get(network, now):
            return None
        same = network, hash(query.sql)
        if now - self._interrupted_at.get(same, -inf) < _SAME_S:
            return None
        calls = _LOOP_CALLS
        if now - self._wasteful.get(network, -inf) < _WASTEFUL_S:
            calls = max(_LEAST_CALLS, min(int(self._unwasted), _LOOP_CALLS))
        self._calls_left = calls
        if self._db.kept > _MOST_KEPT:
            self._replace()
        if self._interrupted:
            query = self._never_interrupted(query)
        try:
            return fetch(self._db, query)
        except sqlite3.Error as error:  # DatabaseError: the file is damaged
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                raise fault_of(error) from error
        finally:
            self._note_wait(network, now)
        self._unwasted = max(self._unwasted - calls + min(self._calls_left, 0), 0)
        _note(self._wasteful, network, now)
        _note(self._interrupted_at, same, now)
        self._give_up(query.sql)
        return None

    def _note_wait(self, network: object, began: float) -> None:
        now = monotonic()
        took = now - began
        if took >= _WAIT_S:
            before, self._disk_reads = self._disk_reads, disk_reads()
            if self._disk_reads - before > _FEW_READS:
                self._waited_at, self._mapping.bytes = now, 0
                if network is not None:
                    until = now + min(_REST_RATIO * took, _MAX_REST_S)
                    _note(self._resting, network, until)
        elif not self._mapping.bytes and now > self._waited_at + _MAP_AGAIN_S:
            self._mapping.bytes = _MMAP_BYTES

    def one(self, sql: str, values: Sequence[Value]) -> Any:
        """The first row, or None; for a look-up by key, which is never interrupted: on a busy
        machine one step may seem to take long."""
        self._calls_left = self._until = self._bytes_left = inf
        with sqlite_faults():
            return self._db.execute(sql, values).fetchone()

    def close(self) -> None:
        self._db.close()

    def _connection(self) -> TagReader:
        db = self._connector()
        db.set_progress_handler(self._is_over, _PROGRESS_STEPS)
        for function, number in OF_ROWS:
            counted = partial(self._look_through, function)
            db.create_function(function.__name__, number, counted, deterministic=True)
        return db

    def _look_through(
        self, function: Callable[..., str | int | None], raw: bytes, *args: object
    ) -> str | int | None:
        """Call the function, and count the bytes of the row: to the progress handler the call is
        one instruction, however large the row is."""
        self._bytes_left -= len(raw)
        if self._bytes_left < 0:
            self._is_over()  # counts what it took
            self._db.interrupt()
            return None
        return function(raw, *args)

    def _is_over(self) -> bool:
        # Instructions rather than time alone: on a busy machine other processes use the time.
        now = monotonic()
        self._calls_left -= max(1, int((now - self._called_at) / _CALL_S))
        self._called_at = now
        return self._calls_left < 0 or now > self._until

    # Up to Python 3.11 the sqlite3 module keeps an interrupted statement marked as in use, and
    # prepares it again for each later call (90 us of 330). The same statement with a space more is
    # another one.

    def _never_interrupted(self, query: Query) -> Query:
        spaces = self._interrupted.get(query.sql)
        return query if spaces is None else Query(query.sql + " " * spaces, query.values)

    def _give_up(self, sql: str) -> None:
        statement = sql.rstrip(" ")
        self._interrupted[statement] = self._interrupted.get(statement, 0) + 1
        if sum(self._interrupted.values()) > _MAX_INTERRUPTED:
            self._replace()

    def _replace(self) -> None:
        with suppress(sqlite3.Error, StoreFault):  # then the next read tries again
            former, self._db = self._db, self._connection()
            former.close()
            self._interrupted.clear()


def _note(times: dict[T, float], name: T, time_s: float) -> None:
    """As the newest of at most `_MAX_WASTEFUL`."""
    times.pop(name, None)
    times[name] = time_s
    if len(times) > _MAX_WASTEFUL:
        del times[next(iter(times))]


class WorkClock:
    """Seconds for which this thread works, or waits for blocks of a disk, from its making on.

    Waiting for the processor or for the GIL looks like waiting for a block: so no more of all
    waiting counts than the blocks that were read take on a slow disk.
    """

    __slots__ = ("_began", "_disk_reads", "_worked")

    def __init__(self) -> None:
        self._worked, self._disk_reads = thread_time(), disk_reads()
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """All that counts. To be called on the same thread, as the others."""
        return self.worked_s + self.waited_s

    @property
    def worked_s(self) -> float:
        return thread_time() - self._worked

    @property
    def waited_s(self) -> float:
        """Waiting for blocks."""
        waited = perf_counter() - self._began - self.worked_s
        return max(0.0, min(waited, (disk_reads() - self._disk_reads) * _BLOCK_S))


def disk_reads() -> int:
    """How many blocks of a disk, of 512 bytes, this thread has read and waited for; 0 where the
    system does not tell."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    if who is None:
        return 0
    used = resource.getrusage(who)
    return used.ru_majflt + used.ru_inblock


def give_way() -> None:
    """Lower the CPU priority of this thread, where the system supports it."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 10)


class ReaderFactory:
    """Opens the connections that read a store."""

    def __init__(self, path: Path, hashes: Hashes, tag_buffer: TagBuffer) -> None:
        self._path = path
        self._hashes = hashes
        self._tag_buffer = tag_buffer
        self.mapping = FileMap()

    def page_reader(self) -> TagReader:
        db = self._opened(PageReader)
        db.map(self.mapping)
        return db

    def search_reader(self) -> TagReader:
        """A page reader with the index of texts attached as `search`."""
        db = self.page_reader()
        db.execute("ATTACH ? AS search", (str(index_path(self._path)),))
        return db

    def long_reader(self) -> TagReader:
        """As `search_reader`, for a thread of lower priority."""
        give_way()
        return self.search_reader()

    def bulk_reader(self) -> TagReader:
        """A reader with a small cache and without mmap, for a thread of lower priority."""
        give_way()
        db = self._opened(TagReader)
        db.execute(f"PRAGMA cache_size = -{_BULK_CACHE_KIB}")
        return db

    def _opened(self, factory: type[TagReader]) -> TagReader:
        db = connection(self._path, factory)
        assert isinstance(db, TagReader)
        db.follow(TagFunctions(self._hashes, self._tag_buffer))
        db.execute("PRAGMA query_only = ON")
        return db


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
        if isinstance(db, TagReader) and db.kept > _MOST_KEPT:
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
        key, is_owner = visibility.known_as, visibility.is_owner
        async with self.turns.of(address, verb, key, is_owner=is_owner):
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
        longer, key = self._longer, visibility.known_as
        if longer is None:
            async with self._turn_of(visibility, address, verb) as reader:
                return await work(reader, asyncio.Event())
        if not (is_long or self.turns.expects_long(address, key)):
            begun, note_long = asyncio.Event(), partial(self.turns.note_long, address, key)
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
