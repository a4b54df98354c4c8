"""LocalFile: an SQLite file of a client, private to its owner, at which threads take turns."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from relay.nostr.event import event_from_raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.nostr.event import Event

_BUSY_S: Final = 10.0
"""How long another program that writes is waited for."""
_OUTSIDE: Final = frozenset(
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
"""Errors that say nothing about what is in the file."""


class Damaged(Exception):
    """What is in the file is no database, not a whole one, or one of another version."""


class LocalFile:
    """Every use of it is a transaction; it blocks for a moment, so call it in a thread."""

    def __init__(self, path: Path, schema: str, version: int, *, may_lag: bool = False) -> None:
        """Made with this schema when it is new; mode 0600. Raises Damaged, OSError: also for a
        link, since what is behind it is somebody else's.

        `may_lag`: the last transactions may be lost when the machine loses its power.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Before SQLite, which would make it readable for all.
        made = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(made).st_mode & 0o077:
                os.fchmod(made, 0o600)
        finally:
            os.close(made)
        self._path = path
        self._turn = Lock()
        with self._said_plainly():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare(schema, version, may_lag=may_lag)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Waits for the transaction that is under way in another thread."""
        with self._turn:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Whole or not at all. Raises Damaged, OSError."""
        with self._turn, self._said_plainly():
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:  # commits, or rolls back
                yield self._connection

    def _prepare(self, schema: str, version: int, *, may_lag: bool) -> None:
        with self._said_plainly():
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if may_lag else 'FULL'}")
        with self.transaction() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, version):
                raise Damaged(f"it is of version {found}, and this program reads {version}")
            if found == 0:
                for statement in schema.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")
            fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if fault != "ok":
                raise Damaged(fault)

    @contextmanager
    def _said_plainly(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # used after `close`
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF in _OUTSIDE:
                raise OSError(code, str(error), str(self._path)) from error
            raise Damaged(str(error)) from error


def kept_event(raw: bytes) -> Event:
    """An event as this client wrote it. Raises Damaged."""
    try:
        return event_from_raw(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("one of its events is unreadable") from error
