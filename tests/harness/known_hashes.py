"""Stores of SQLite with a known key of their hashes: so it is known which kinds share a class."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relay.storage.hashes import Hashes
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.opening import open_file
from tests.contract.writing import TERMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEY: Final = "9553627933b214db60798fe40d2b4f8497781d024f53d62dc1b12469b7d53784"
HASHES: Final = Hashes(bytes.fromhex(KEY))


def put_empty_store(path: Path) -> None:
    """For `SqliteStore.open`."""
    path.write_bytes(_empty())


@lru_cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rookery.db"
        open_file(path, TERMS, "NORMAL")[0].close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE meta SET value = ? WHERE name = 'hash_key'", (KEY,))
            db.commit()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.read_bytes()


def of_one_class(tags: Sequence[tuple[str, str]], kinds: Iterable[int]) -> list[int]:
    """Some of these kinds, which share one class under each of the tags."""
    found: dict[tuple[int, ...], list[int]] = {}
    for kind in kinds:
        classes = tuple([kind_class(HASHES.tag(*tag), kind) for tag in tags])
        found.setdefault(classes, []).append(kind)
    return max(found.values(), key=len)


def of_class_of(tag: tuple[str, str], kind: int, kinds: Iterable[int]) -> int:
    """The first of these kinds that shares the class of `kind` under the tag."""
    hash_ = HASHES.tag(*tag)
    return next(
        each
        for each in kinds
        if each != kind and kind_class(hash_, each) == kind_class(hash_, kind)
    )
