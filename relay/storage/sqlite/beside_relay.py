"""What commands read of a store's file while the relay may run. Raises StoreFault."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.storage.hashes import id_key
from relay.storage.sqlite.connections import file_connection, sqlite_faults
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MAX_ROWS: Final = 50_000


class Growth(NamedTuple):
    since: int
    """Unix seconds."""
    share: float
    """The part of all stored bytes that belongs to events dated since then, 0 to 1."""


def growth_of(path: Path, since: int) -> Growth | None:
    """By `created_at`, from at most 50,000 events. None: no file, or nothing stored."""
    if not path.exists():
        return None
    with _reading(path) as db:
        total = db.execute(QUERIES["stored_bytes"]).fetchone()[0]
        number, size, oldest = db.execute(QUERIES["newest_size"], (since, _MAX_ROWS)).fetchone()
    if not total:
        return None
    return Growth(oldest if number >= _MAX_ROWS else since, (size or 0) / total)


def profiles_in(path: Path, pubkeys: Iterable[str]) -> list[bytes]:
    """The profile (kind 0) of each key (64 hex) that has one, as it was sent."""
    keys = [(id_key(pubkey), bytes.fromhex(pubkey)) for pubkey in pubkeys]
    return _raws(path, "profile_of", keys)


def newest_profiles(path: Path, limit: int) -> list[bytes]:
    return _raws(path, "newest_profiles", [(limit,)])


def _raws(path: Path, query: str, asked: Iterable[tuple[object, ...]]) -> list[bytes]:
    if not path.exists():
        return []
    with _reading(path) as db:
        return [raw for each in asked for (raw,) in db.execute(QUERIES[query], each)]


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with (
        sqlite_faults(path),
        closing(file_connection(path)) as db,
    ):
        db.execute("PRAGMA query_only = ON")
        yield db
