"""Compacting the files of a stopped store: each is rewritten without free space.

The copy is made in the same folder and replaces the file when it is complete and on disk.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.files import sync
from relay.storage.sqlite.connections import connection, index_path
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ENDING: Final = ".compacting"


def unfinished(path: Path) -> Path:
    """The file that an interrupted compaction leaves beside the database file."""
    return path.with_name(path.name + _ENDING)


def files_of(store: Path) -> Iterator[Path]:
    """The store at this path and its text index, as far as they exist."""
    return (path for path in (store, index_path(store)) if path.exists())


def compact(path: Path) -> None:
    """Blocks; the caller holds the folder's lock, and no connection is open. Raises StoreFault.

    The file of an older version is changed so that later it shrinks by itself.
    """
    copy = unfinished(path)
    check_log(path)
    try:
        copy.unlink(missing_ok=True)
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(connection(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("VACUUM INTO ?", (str(copy),))
        if any(path.with_name(f"{path.name}{end}").exists() for end in ("-wal", "-journal")):
            raise StoreFault(f"{path}: another program has it open; close that and try again")
        sync(copy)
        copy.replace(path)
        sync(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreFault(f"{path} was not compacted, and is as it was: {error}") from error
    finally:
        copy.unlink(missing_ok=True)
