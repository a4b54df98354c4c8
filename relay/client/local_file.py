"""LocalFile: a client's SQLite file, readable by its owner only, shared by threads."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from threading import Lock, Timer
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from relay.files import make_private, private_database
from relay.nostr.event import event_from_raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.nostr.event import Event

_BUSY_S: Final = 10.0
"""SQLite busy timeout: how long to wait for another writing program."""
_RETRY_S: Final = 0.01
_ERASE_AFTER_S: Final = 1.0
"""From a deletion to the truncation of the WAL, for all deletions in between."""
NOT_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
"""Errors that do not mean that the content is damaged."""


class Damaged(Exception):
    """The file is no database, is corrupt, or has another schema version."""


class LocalFile:
    """All access is by transaction; calls block briefly, so make them in a thread."""

    def __init__(self, path: Path, schema: str, version: int, *, may_lag: bool = False) -> None:
        """Created with this schema and mode 0600 if missing. Raises Damaged, OSError (also for a
        symbolic link, whose target may belong to somebody else).

        `may_lag`: the last transactions may be lost on power failure.
        """
        make_private(path.parent)
        private_database(path, follows=False)
        self._path = path
        self._lock = Lock()
        self._eraser: Timer | None = None
        self._is_open = True
        with self._translated_errors():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare(schema, version, may_lag=may_lag)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Waits for a running transaction of another thread."""
        with self._lock:
            if self._eraser is not None:
                self._erase()
            self._is_open = False
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Atomic. Raises Damaged, OSError."""
        with self._lock, self._translated_errors():
            self._begin()
            with self._connection:  # commits, or rolls back
                yield self._connection

    def _begin(self) -> None:
        # While another program makes the file or removes its log, SQLite may not wait.
        until = monotonic() + _BUSY_S
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > until:
                    raise
                sleep(_RETRY_S)
            else:
                return

    def erase_soon(self) -> None:
        """After a transaction that deleted something: no byte of it stays in the files."""
        with self._lock:
            if self._eraser is None:
                self._eraser = Timer(_ERASE_AFTER_S, self._run_eraser)
                self._eraser.daemon = True
                self._eraser.start()

    def _run_eraser(self) -> None:
        with self._lock:
            self._eraser = None
            is_erased = not self._is_open or self._erase()
        if not is_erased:
            self.erase_soon()

    def _erase(self) -> bool:
        """False: another program reads the file."""
        if self._eraser is not None:
            self._eraser.cancel()
            self._eraser = None
        try:
            # The file itself was overwritten by `secure_delete`.
            busy: int = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return True  # a disk that fails is noticed by the next transaction
        return not busy

    def _prepare(self, schema: str, version: int, *, may_lag: bool) -> None:
        with self._translated_errors():
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.execute("PRAGMA temp_store = MEMORY")
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A program that was killed may have left deleted texts in it.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if may_lag else 'FULL'}")
        with self.transaction() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, version):
                raise Damaged(f"its schema version is {found}, expected {version}")
            if found == 0:
                for statement in schema.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")
            fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if fault != "ok":
                raise Damaged(fault)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # used after `close`
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF in NOT_DAMAGE:
                raise OSError(code, str(error), str(self._path)) from error
            raise Damaged(str(error)) from error


def kept_event(raw: bytes) -> Event:
    """An event as written by this client. Raises Damaged."""
    try:
        return event_from_raw(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("an event in it is unreadable") from error
