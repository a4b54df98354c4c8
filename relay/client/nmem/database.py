"""Database: the SQLite file of an nmem cache, encrypted with SQLCipher if available (M-08, M-09).

Several programs of one user share it: hooks, the keeper, an MCP server. Each use is a short
transaction. `rebuild` replaces the file between transactions; a lock file, `….lock`, excludes both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from relay.client.errors import ClientError
from relay.client.local_file import NOT_DAMAGE
from relay.client.nmem.cipher import cipher_module, database_errors, is_encrypted
from relay.errors import how_to_install
from relay.files import make_private, own_file, private_database, take_lock
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relay.client.nmem.cipher import CacheKey

    Adopt = Callable[[Any, Path], None]
    """`Adoption.adopt`: makes a database of nmem itself a cache, given its connection and path;
    leaves any other as it is."""

MUST_ERASE: Final = "must_erase"
"""In `_rk_about`, in the transaction that deletes texts: their bytes may still be in the files."""
VERSION: Final = 2
"""`user_version` of nmem."""
_WRITE: Final = "BEGIN IMMEDIATE"
_MAY_END: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
_SUFFIXES: Final = ("", "-wal", "-shm")
_opened: Final[set[Database]] = set()
"""Those of this process."""


class CacheUnusable(ClientError):
    """The file cannot be opened or read; the text says what to do. The file is left unchanged."""


class CacheBusy(OSError):
    """Another program writes the cache for long, or the disk is full: try again later."""


class Database:
    """Its transactions block briefly: call them in a thread. May raise CacheUnusable, and OSError
    for a full disk or a file kept busy by another program."""

    def __init__(
        self,
        path: Path,
        key: CacheKey | None = None,
        *,
        busy_s: float = 10.0,
        adopt: Adopt | None = None,
    ) -> None:
        """Created with mode 0600 if missing. `busy_s`: SQLite busy timeout. `adopt`: for a file
        with tables that is no cache.

        Raises CacheUnusable, OSError.
        """
        self.path = path
        self._key = key
        self._busy_s = busy_s
        self._adopt = adopt
        self._thread_lock = Lock()
        self._errors = database_errors()
        make_private(path.parent)
        self.file: tuple[int, int] | None = None
        """Device and inode."""
        self._lock_path = lock_path(path)
        self._lock = own_file(self._lock_path, os.O_NOFOLLOW)
        try:
            remove_unfinished(path)
            with self._thread_lock, self._shared_lock():
                self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """May be called repeatedly."""
        with self._thread_lock:
            if self._lock >= 0:
                self._close_connection()
                os.close(self._lock)
                self._lock = -1

    def _close_connection(self) -> None:
        _opened.discard(self)  # a new file may get the same number
        self._connection.close()

    @property
    def warning(self) -> str:
        """Security warning for the user; empty: none."""
        if self.is_encrypted:
            return ""
        if cipher_module() is None:
            return (
                f"{self.path} is not encrypted: SQLCipher is not installed"
                f" ({how_to_install('sqlcipher')})"
            )
        if self._key is None:
            return ""
        return f"{self.path} is not encrypted; `rookery nmem rebuild` recreates it encrypted"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A write transaction; atomic."""
        with self._transaction(_WRITE) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction: a consistent snapshot."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def replacing(self) -> Iterator[Any]:
        """The connection with exclusive access: the file may be replaced by a rebuilt one."""
        with self._thread_lock:
            lock_for_cache(self._lock, self._lock_path, fcntl.LOCK_EX)
            try:
                yield self._connection
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def replace_with(self, other: Path) -> None:
        """Replace the file by `other`; inside `replacing`. Raises OSError; then it stays as it
        was."""
        with self._translated_errors():
            # While another program has the file open, closing it would leave the WAL, with
            # what waits for the relay: whatever fails now, it is in the file.
            query = "PRAGMA wal_checkpoint(TRUNCATE)"
            is_busy = self._connection.execute(query).fetchone()[0]
        if is_busy:
            raise OSError(errno.EBUSY, "another program reads or writes it", str(self.path))
        self._close_connection()
        try:
            other.replace(self.path)
            for end in _SUFFIXES[1:]:
                beside(self.path, end).unlink(missing_ok=True)
        finally:
            self._open()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Any]:
        with self._thread_lock, self._shared_lock():
            if self._was_replaced():
                self._close_connection()
                self._open()
            with self._translated_errors():
                self._connection.execute(begin)
                with self._connection:  # commits, or rolls back
                    yield self._connection
            if begin == _WRITE:
                with suppress(OSError), self._translated_errors():  # the write is committed
                    self._erase()

    def _erase(self) -> None:
        """Remove the bytes of deleted texts from the indexes, the WAL, the file, and what a killed
        rebuild left beside it.

        If another program reads or writes for long, or rebuilds, or the disk is full, a later
        transaction of any program does it.
        """
        db = self._connection
        query = "SELECT 1 FROM _rk_about WHERE name = ?"
        if db.execute(query, (MUST_ERASE,)).fetchone() is None:
            return
        # FTS5 keeps deleted words until it merges the segments that hold them.
        db.execute("INSERT INTO observations_fts(observations_fts) VALUES ('optimize')")
        db.execute("INSERT INTO prompts_fts(prompts_fts) VALUES ('optimize')")
        is_busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if not is_busy and remove_unfinished(self.path):
            db.execute("DELETE FROM _rk_about WHERE name = ?", (MUST_ERASE,))

    @contextmanager
    def _shared_lock(self) -> Iterator[None]:
        lock_for_cache(self._lock, self._lock_path, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def is_in_place(self) -> bool:
        """Whether the folder of the cache is still there."""
        try:
            return os.stat(self._lock_path).st_ino == os.fstat(self._lock).st_ino
        except OSError:
            return False

    def _was_replaced(self) -> bool:
        """Whether the file was replaced or deleted since it was opened."""
        try:
            return _file_at(self.path) != self.file
        except FileNotFoundError:
            return True

    def _open(self) -> None:
        with self._translated_errors():
            private_database(self.path)
            self._connection, self.is_encrypted = open_connection(
                self.path, self._key, busy_s=self._busy_s
            )
            try:
                _prepare(self._connection, self.path, self._adopt)
            except BaseException:
                self._connection.close()
                raise
            self.file = _file_at(self.path)
            _opened.add(self)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF in NOT_DAMAGE or "locked" in str(error):
                busy = code & 0xFF in _MAY_END or "locked" in str(error)
                raise (CacheBusy if busy else OSError)(code, str(error), str(self.path)) from error
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_CONSTRAINT"):
                raise
            if code & 0xFF == sqlite3.SQLITE_ERROR and "no such" not in str(error):
                raise  # our own statement, or a query that FTS5 rejects
            raise CacheUnusable(_UNREADABLE.format(path=self.path, why=error)) from error


_UNREADABLE: Final = (
    "{path} cannot be read: {why}; check the key (NMEM_KEY), or move the file away and run"
    " `rookery nmem rebuild`"
)


def lock_for_cache(fd: int, path: Path, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> None:
    """Lock an open file. Raises BlockingIOError, and CacheUnusable where there are no locks."""
    try:
        take_lock(fd, path, kind)
    except BlockingIOError:
        raise
    except OSError as none:
        raise CacheUnusable(f"{path} {none.strerror}") from None


@contextmanager
def rebuilding(path: Path) -> Iterator[Path]:
    """The name of the file that is to replace the cache, which is removed in the end unless it did.
    Raises BlockingIOError if another program rebuilds."""
    new, lock = beside(path, ".new"), beside(path, ".rebuilding")
    file = own_file(lock, os.O_NOFOLLOW)
    try:
        lock_for_cache(file, lock)
        _remove(new)
        try:
            yield new
        finally:
            _remove(new)
    finally:
        os.close(file)


def remove_unfinished(path: Path) -> bool:
    """Remove what a killed rebuild left: it has texts that may be deleted since. False: a rebuild
    runs."""
    if not beside(path, ".new").exists():
        return True
    try:
        with rebuilding(path):
            return True
    except BlockingIOError:
        return False


def _remove(new: Path) -> None:
    # The file last: the others are looked for where it is.
    for end in ("-wal", "-shm", ".lock", ""):
        beside(new, end).unlink(missing_ok=True)


def lock_path(path: Path) -> Path:
    """The file that locks the cache against replacement."""
    return beside(path, ".lock")


def beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def open_connection(path: Path, key: CacheKey | None, *, busy_s: float) -> tuple[Any, bool]:
    """A connection to the file, and whether it is encrypted. An empty one is, if possible.

    Raises CacheUnusable.
    """
    encrypted = _known_here(path)
    if encrypted is None:
        encrypted = is_encrypted(path)
    cipher = cipher_module()
    if encrypted is None:
        encrypted = key is not None and cipher is not None
    options: dict[str, Any] = {
        "timeout": busy_s,
        "isolation_level": None,
        "check_same_thread": False,
    }
    if not encrypted:
        return sqlite3.connect(path, **options), False
    if cipher is None:
        raise CacheUnusable(
            f"{path} is encrypted or not a database, and SQLCipher is not installed:"
            f" {how_to_install('sqlcipher')}"
        )
    if key is None:
        raise CacheUnusable(f"{path} is encrypted: set its key in NMEM_KEY or [nmem] key_file")
    connection = cipher.connect(str(path), **options)
    # SQLCipher would also report a wrong key on stderr.
    connection.execute("PRAGMA cipher_log_level = NONE")
    connection.execute(key.pragma)
    return connection, True


def _known_here(path: Path) -> bool | None:
    """Whether a file that this process has open is encrypted: a look at it would end the locks that
    the process has of it (fcntl(2))."""
    try:
        file = _file_at(path)
    except FileNotFoundError:
        return None
    return next((each.is_encrypted for each in _opened.copy() if each.file == file), None)


def _file_at(path: Path) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_dev, about.st_ino


def _prepare(connection: Any, path: Path, adopt: Adopt | None) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = names_in(connection)
    if adopt is not None and tables and "_rk_about" not in tables:
        adopt(connection, path)
        tables = names_in(connection)
    if found > VERSION or (tables and "_rk_about" not in tables):
        raise CacheUnusable(
            f"{path} was created by another program (version {found}, expected {VERSION}): set"
            f" another file as [nmem] db, and import this one with `rookery nmem import"
            f" {shell_word(path)}`"
        )
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    if any(created_by(statement) not in tables for statement in statements()):
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            create_missing(connection)  # another program may have created them meanwhile
            connection.execute(f"PRAGMA user_version = {VERSION}")


def create_missing(connection: Any) -> None:
    """Create what the database does not have of the schema: all, or what an earlier version of
    Rookery did not know. In a transaction."""
    names = names_in(connection)
    for statement in statements():
        if created_by(statement) not in names:
            connection.execute(statement)


def names_in(connection: Any) -> set[str]:
    """Names of tables, indexes and triggers."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


_CREATED: Final = re.compile(r"CREATE (?:VIRTUAL |UNIQUE )?(?:TABLE|INDEX|TRIGGER) (\w+)")


def created_by(statement: str) -> str:
    """Name of the table, index or trigger that a statement of the schema creates."""
    return _CREATED.match(statement)[1]  # type: ignore[index]


@cache
def statements() -> tuple[str, ...]:
    """The statements of the schema. A trigger ends with a line `END;`, any other with `;`."""
    text = files("relay.client.nmem").joinpath("schema.sql").read_text("utf-8")
    found: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("--") or not (line or lines):
            continue
        lines.append(line)
        is_trigger = lines[0].startswith("CREATE TRIGGER")
        if line == "END;" if is_trigger else line.endswith(";"):
            found.append("\n".join(lines).removesuffix(";"))
            lines = []
    return tuple(found)
