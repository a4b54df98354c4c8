"""relay/storage/sqlite/connections.py: opening, and how much of the file is mapped."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from relay.storage.sqlite import connections
from relay.storage.sqlite.connections import FileMap, TagReader, open_threaded
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from pathlib import Path


def test_readers_map_the_file_as_long_as_that_is_quick(tmp_path: Path) -> None:
    db, mapping = connections.connection(tmp_path / "store", TagReader), FileMap()
    assert isinstance(db, TagReader)
    with closing(db):
        db.execute("CREATE TABLE t (n)")
        db.map(mapping)

        def mapped() -> tuple[int, int]:
            ((size,),) = db.execute("PRAGMA mmap_size").fetchall()
            ((cache,),) = db.execute("PRAGMA cache_size").fetchall()
            return size, cache

        assert mapped() == (1 << 30, -65_536)
        mapping.bytes = 0
        assert mapped() == (0, -16_384)


class Opening:
    """A connection whose opening waits until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.thread: threading.Thread | None = None

    def __call__(self) -> sqlite3.Connection:
        self.thread = threading.current_thread()
        self.began.set()
        assert self.let_go.wait(ANSWER_S)
        return self.db


async def test_a_connection_whose_opening_is_cancelled_is_closed() -> None:
    slow = Opening()
    opening = asyncio.create_task(open_threaded(slow))
    assert await asyncio.to_thread(slow.began.wait, ANSWER_S)
    opening.cancel()
    slow.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert slow.thread is not None
    assert not slow.thread.is_alive()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        slow.db.execute("SELECT 1")
