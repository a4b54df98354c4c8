"""Makes a database of nmem itself the cache: its rows become records that wait for the relay.

The file as it was is kept beside it, as `….original`.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from relay.client.nmem.database import VERSION, beside, create_missing, names_in, statements

if TYPE_CHECKING:
    from pathlib import Path

    from relay.client.nmem.import_db import Imported
    from relay.memory.secrets import SecretFilter

ADOPTED: Final = "adopted"
"""In `_rk_about`: what an adoption did, for the user."""
_TABLES: Final = ("sessions", "prompts", "observations", "_cursor")
_SUFFIXES: Final = ("", "-wal")
_KEPT_OPEN: Final[dict[tuple[int, int], int]] = {}
"""Device and inode → descriptor of databases that were copied: to close one would end all locks
that SQLite has on it in this process (fcntl(2)), in the middle of its transaction. It has none on a
WAL, which each connection may make anew."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """How rows of an original nmem database become records."""

    secrets: SecretFilter
    group: str | None = None

    def adopt(self, connection: Any, path: Path) -> None:
        """Adopt the database. Does nothing with any other database, or if another program did it
        meanwhile."""
        if not _is_original(connection):
            return
        connection.execute("BEGIN IMMEDIATE")  # nobody writes during the copy
        with connection:
            if "_rk_about" in names_in(connection):
                return
            backup = _name_of_copy(path)
            try:
                _copy(path, backup)
                done = self._as_cache(connection)
            except BaseException:
                for end in _SUFFIXES:
                    beside(backup, end).unlink(missing_ok=True)
                raise
            told = (
                f"{path} was nmem's own database: {done.sessions} sessions, {done.prompts} prompts"
                f" and {done.observations} observations will be sent to the relay,"
                f" {done.skipped} rows cannot, and are left out; the file as it was: {backup}"
            )
            connection.execute("INSERT INTO _rk_about VALUES (?, ?)", (ADOPTED, told))

    def _as_cache(self, connection: Any) -> Imported:
        from relay.client.nmem.import_db import adopt  # with it comes aiohttp

        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN"
        triggers += " ('observations', 'prompts')"
        for (name,) in connection.execute(triggers).fetchall():  # whatever they are called
            connection.execute(f'DROP TRIGGER "{name}"')
        create_missing(connection)
        return adopt(connection, self.secrets, self.group)


def _is_original(connection: Any) -> bool:
    """Whether it is a database of nmem itself with the tables of our version."""
    if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
        return False
    with closing(sqlite3.connect(":memory:")) as ours:
        for statement in statements():
            ours.execute(statement)
        return all(
            [row[1:3] for row in connection.execute(f"PRAGMA table_info({table})")]
            == [row[1:3] for row in ours.execute(f"PRAGMA table_info({table})")]
            for table in _TABLES
        )


def _name_of_copy(path: Path) -> Path:
    """One that is free."""
    number, backup = 0, beside(path, ".original")
    while backup.exists():
        number += 1
        backup = beside(path, f".original-{number}")
    return backup


def _copy(path: Path, backup: Path) -> None:
    """Copy a database without writers, and its WAL; mode 0600."""
    for end in _SUFFIXES:  # in this order: a checkpoint may move pages from the WAL
        with suppress(FileNotFoundError):
            copied, flags = beside(path, end), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            with (
                copied.open("rb") if end else _kept_open(copied) as source,
                os.fdopen(os.open(beside(backup, end), flags, 0o600), "wb") as target,
            ):
                copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())


def _kept_open(path: Path) -> BinaryIO:
    """The file from its start; its descriptor stays open when this is closed. Raises OSError."""
    about = path.stat()
    place = about.st_dev, about.st_ino
    if place not in _KEPT_OPEN:
        _KEPT_OPEN[place] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    file = os.fdopen(_KEPT_OPEN[place], "rb", closefd=False)
    file.seek(0)
    return file
