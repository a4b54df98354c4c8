"""Profiles (kind 0) in a store's file; the relay may run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from relay.storage.hashes import id_key
from relay.storage.sqlite.connections import fault_of
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def profiles_in(path: Path, pubkeys: Iterable[str]) -> list[bytes]:
    """The profile of each key (64 hex) that has one, as it was sent. Raises StoreFault."""
    keys = [(id_key(pubkey), bytes.fromhex(pubkey)) for pubkey in pubkeys]
    return _read(path, "profile_of", keys)


def newest_profiles(path: Path, limit: int) -> list[bytes]:
    """Raises StoreFault."""
    return _read(path, "newest_profiles", [(limit,)])


def _read(path: Path, query: str, asked: Iterable[tuple[object, ...]]) -> list[bytes]:
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
            db.execute("PRAGMA query_only = ON")
            return [raw for each in asked for (raw,) in db.execute(QUERIES[query], each)]
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
