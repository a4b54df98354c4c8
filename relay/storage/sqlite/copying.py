"""A copy of a store's file, consistent even while a relay writes to it.

The copy is one snapshot without free pages. Tags that only the writer's memory has are missing in
it; `tags_upto` tells the next start to add them.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import StoreFault, StoreVersion
from relay.files import sync
from relay.storage.sqlite.connections import connection, fault_of, file_connection
from relay.storage.sqlite.opening import APPLICATION_ID, SCHEMA_VERSION, check_schema, check_values
from relay.storage.sqlite.sql.named import QUERIES, VERIFY_QUERIES
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
_STEPS: Final = 100_000
"""Virtual machine instructions between two reports of progress."""


class CopyFacts(NamedTuple):
    """Facts about a store, read from its file."""

    schema: int
    events: int
    head: int


def schema_of(path: Path) -> int | None:
    """The schema of a store's file; None when there is none or it is empty.

    Raises StoreFault, also for a damaged log, and StoreVersion for a database of another program.
    """
    if not path.exists():
        return None
    check_log(path)
    try:
        with closing(file_connection(path)) as db:
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
    if application != APPLICATION_ID:
        if application == 0 and version == 0:
            return None
        raise StoreVersion(f"{path} is a database of another program; move it away")
    return version


def copy_store(path: Path, copy: Path, note: Callable[[int], None]) -> None:
    """Write the store at `path` to the new file `copy` (0600), synced.

    `note` gets the number of bytes written so far. Raises StoreFault, StoreVersion, OSError.
    """
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def report() -> int:
        note(copy.stat().st_size)
        return 0

    try:
        with closing(connection(path)) as db:
            check_schema(db, path)
            db.set_progress_handler(report, _STEPS)
            db.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _NO_ROOM:  # only the copy is written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copy)) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from None  # raised in `report`, which SQLite cannot pass on
        raise fault_of(error, path) from error
    sync(copy)


def facts_of(copy: Path) -> CopyFacts:
    """Checks a file that is not in use. Raises StoreFault, StoreVersion."""
    try:
        # Immutable, so that no -wal and -shm are made for a file that is only read.
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?immutable=1", uri=True)) as db:
            application = db.execute("PRAGMA application_id").fetchone()[0]
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            if application != APPLICATION_ID:
                raise StoreVersion(f"{copy} is a database of another program")
            if schema > SCHEMA_VERSION:
                raise StoreVersion(f"{copy} has schema {schema}, newer than {SCHEMA_VERSION}")
            check_schema(db, copy)
            wrong = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if wrong != "ok":
                raise StoreFault(f"{copy} is damaged: {' '.join(wrong.split())}")
            check_values(db, copy)
            events, newest = db.execute(VERIFY_QUERIES["state"]).fetchone()
            kept = db.execute(QUERIES["get_meta"], ("head",)).fetchone()
    except sqlite3.Error as error:
        raise fault_of(error, copy) from error
    return CopyFacts(schema, events, max(kept[0] if kept else 0, newest or 0))
