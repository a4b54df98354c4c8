"""How fast a store's file grows, estimated from the newest events; the relay may run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.storage.sqlite.connections import fault_of
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    from pathlib import Path

_MAX_ROWS: Final = 50_000


class Growth(NamedTuple):
    since: int
    """Unix seconds."""
    share: float
    """The part of all stored bytes that belongs to events dated since then, 0 to 1."""


def growth_of(path: Path, since: int) -> Growth | None:
    """By `created_at`, from at most 50,000 events. None: no file, or nothing stored.

    Raises StoreFault.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
            db.execute("PRAGMA query_only = ON")
            total = db.execute(QUERIES["stored_bytes"]).fetchone()[0]
            number, size, oldest = db.execute(QUERIES["newest_size"], (since, _MAX_ROWS)).fetchone()
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
    if not total:
        return None
    return Growth(oldest if number >= _MAX_ROWS else since, (size or 0) / total)
