"""Database: the file of an nmem cache, encrypted where that can be. MEMORY.md M-08, M-09.

Several programs of one user share it: hooks, the sender, an MCP server. Each use is a short
transaction. A rebuilt file takes the place of the old one between two of them, which the file
beside it, `….lock`, holds apart.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from relay.client.errors import ClientError
from relay.client.nmem.cipher import cipher_module, database_errors, is_encrypted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.client.nmem.cipher import CacheKey

VERSION: Final = 2
"""`user_version`: the document's."""
_OUTSIDE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    }
)
"""Errors that say nothing about what is in the file."""
_ENDS: Final = ("", "-wal", "-shm")


class CacheUnusable(ClientError):
    """The file cannot be opened or read; says what to do. It is left as it is."""


class Database:
    """Its transactions block for a moment: call them in a thread. May raise CacheUnusable, and
    OSError for a disk that is full or a file that another program keeps busy."""

    def __init__(self, path: Path, key: CacheKey | None = None, *, busy_s: float = 10.0) -> None:
        """Made when it is not there, mode 0600. `busy_s`: how long another program is waited for.

        Raises CacheUnusable, OSError.
        """
        self.path = path
        self._key = key
        self._busy_s = busy_s
        self._turn = Lock()
        self._errors = database_errors()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(lock_of(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with self._turn, self._not_replaced():
                self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Once or more often."""
        with self._turn:
            if self._lock >= 0:
                self._connection.close()
                os.close(self._lock)
                self._lock = -1

    @property
    def warning(self) -> str:
        """What the user should know about how safe the file is; empty: nothing."""
        if self.is_encrypted:
            return ""
        if cipher_module() is None:
            return (
                f"{self.path} is not encrypted: SQLCipher is not installed"
                ' (pip install "rookery[sqlcipher]")'
            )
        if self._key is None:
            return ""
        return f"{self.path} is not encrypted; `rookery nmem rebuild` makes it anew, encrypted"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection; what is done with it is done whole or not at all."""
        with self._begun("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A connection that sees one state of the file."""
        with self._begun("BEGIN") as connection:
            yield connection

    @contextmanager
    def replacing(self) -> Iterator[Any]:
        """Its connection, while nobody else uses it: a rebuilt file may take its place."""
        with self._turn:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield self._connection
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def take_from(self, other: Path) -> None:
        """The file at `other` becomes this one; inside `replacing`."""
        self._connection.close()
        for end in _ENDS[1:]:
            with suppress(FileNotFoundError):
                beside(self.path, end).unlink()
        other.replace(self.path)
        self._open()

    @contextmanager
    def _begun(self, begin: str) -> Iterator[Any]:
        with self._turn, self._not_replaced():
            if self._is_another():
                self._connection.close()
                self._open()
            with self._said_plainly():
                self._connection.execute(begin)
                with self._connection:  # commits, or rolls back
                    yield self._connection

    @contextmanager
    def _not_replaced(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _is_another(self) -> bool:
        """Whether the file was replaced or deleted since it was opened."""
        try:
            return os.stat(self.path).st_ino != self._inode
        except FileNotFoundError:
            return True

    def _open(self) -> None:
        with self._said_plainly():
            self._connection, self.is_encrypted = opened(self.path, self._key, busy_s=self._busy_s)
            try:
                _prepare(self._connection, self.path)
            except BaseException:
                self._connection.close()
                raise
            self._inode = os.stat(self.path).st_ino

    @contextmanager
    def _said_plainly(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF in _OUTSIDE or "locked" in str(error):
                raise OSError(code, str(error), str(self.path)) from error
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_CONSTRAINT"):
                raise
            if code & 0xFF == sqlite3.SQLITE_ERROR and "no such" not in str(error):
                raise  # our own statement, or a query that FTS5 does not take
            raise CacheUnusable(_UNREADABLE.format(path=self.path, why=error)) from error


_UNREADABLE: Final = (
    "{path} cannot be read: {why}; with another key it may be (NMEM_KEY); if not, move it away and"
    " run `rookery nmem rebuild`"
)


def lock_of(path: Path) -> Path:
    """The file that holds users of the cache and its replacement apart."""
    return beside(path, ".lock")


def beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def opened(path: Path, key: CacheKey | None, *, busy_s: float) -> tuple[Any, bool]:
    """A connection to the file, and whether that is encrypted. A new one is, where it can be.

    Raises CacheUnusable.
    """
    encrypted = is_encrypted(path)
    cipher = cipher_module()
    if encrypted is None:
        encrypted = key is not None and cipher is not None
    # Made before SQLite does, which would make it readable for all.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    options: dict[str, Any] = {
        "timeout": busy_s,
        "isolation_level": None,
        "check_same_thread": False,
    }
    if not encrypted:
        return sqlite3.connect(path, **options), False
    if cipher is None:
        raise CacheUnusable(
            f"{path} is encrypted, or no database, and SQLCipher is not installed:"
            ' pip install "rookery[sqlcipher]"'
        )
    if key is None:
        raise CacheUnusable(f"{path} is encrypted: give its key in NMEM_KEY or [nmem] key_file")
    connection = cipher.connect(str(path), **options)
    # SQLCipher would tell stderr about a wrong key too, in words of its own.
    connection.execute("PRAGMA cipher_log_level = NONE")
    connection.execute(key.pragma)
    return connection, True


def _prepare(connection: Any, path: Path) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if found > VERSION or (tables and "_rk_about" not in tables):
        raise CacheUnusable(
            f"{path} was made by another program, in version {found}, and this one writes its own"
            f" in version {VERSION}: name another file as [nmem] db, and read this one into it"
            f" with `rookery nmem import {path}`"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    if not tables:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            # Another program may have been first while this one waited.
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in statements():
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")


@cache
def statements() -> tuple[str, ...]:
    """The schema's, one by one. A trigger ends with a line `END;`, any other with `;`."""
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
