"""Connections to the files of a store: how they are opened, and what those that read keep."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import disk_usage
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiosqlite

from relay.errors import StoreFault
from relay.files import refuse_super_journal
from relay.storage import PAGE_BYTES
from relay.storage.rows import DAMAGED
from relay.storage.sqlite.tag_functions import TagFunctions, add_functions

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterator,
    )

    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.sql.conditions import Query
    from relay.storage.sqlite.tag_buffer import TagBuffer

T = TypeVar("T")

MAX_VALUE: Final = 64 * 2**20
"""Bytes of a text or blob that may be read; parsed it takes ten times as much memory."""
_NO_SPACE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite fails with on a full disk, where it cannot even make rookery.db-shm."""
_LEAST_SPACE: Final = 1 << 20
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

    def end(self) -> None:
        self.bytes = 0

    def begin(self) -> None:
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

    @property
    def keeps_too_much(self) -> bool:
        """Then a new connection should replace it."""
        return self.kept > _MOST_KEPT

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

    def quick_reader(self) -> TagReader:
        """A reader whose cursors give pages."""
        db = self._opened(PageReader)
        db.map(self.mapping)
        return db

    def page_reader(self) -> TagReader:
        """The same, for a thread of lower priority: several that read took half of the loop."""
        give_way()
        return self.quick_reader()

    def search_reader(self) -> TagReader:
        """A page reader with the index of texts attached as `search`."""
        db = self.page_reader()
        db.execute("ATTACH ? AS search", (str(index_path(self._path)),))
        return db

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
