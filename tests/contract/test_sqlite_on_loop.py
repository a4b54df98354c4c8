"""Small batches of SqliteStore, which are committed on the event loop, and when they are not."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from relay.lifecycle.rows import Stored
from relay.storage.sqlite import store as store_module
from relay.storage.sqlite.checkpoints import Checkpoints
from relay.storage.sqlite.connections import OneThread
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import TERMS, Batch, asked, raws, read, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.lifecycle.rows import Found, WritePlan


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """On a disk that counts as quick, and without upkeep, which has work for the thread."""
    monkeypatch.setattr(store_module, "_QUICK_S", 3600.0)
    monkeypatch.setattr(Checkpoints, "_start", lambda _: None)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    yield store
    await store.close()


class Small(Batch):
    """Tells which threads decided."""

    threads: tuple[threading.Thread, ...] = ()

    def decide(self, found: Found) -> WritePlan:
        self.threads = (*self.threads, threading.current_thread())
        return super().decide(found)

    @property
    def is_on_loop(self) -> bool:
        (thread,) = self.threads  # once
        return thread is threading.current_thread()


async def appended(store: SqliteStore, batch: Small, *, is_small: bool = True) -> Small:
    await store.append(batch.wanted, batch.decide, is_small=is_small)
    assert all(isinstance(result, Stored) for result in batch.results)
    return batch


async def test_a_small_batch_is_committed_on_the_loop(store: SqliteStore) -> None:
    assert (await appended(store, Small(unsigned(cast.alice)))).is_on_loop
    large = await appended(store, Small(unsigned(cast.bob)), is_small=False)
    assert not large.is_on_loop
    assert store.committed() == 2


async def test_after_a_slow_one_the_thread_commits_for_a_while(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [0.0]
    monkeypatch.setattr(store_module, "monotonic", lambda: times[-1])
    monkeypatch.setattr(store_module, "_QUICK_S", 0.002)

    class Slow(Small):
        def decide(self, found: Found) -> WritePlan:
            times.append(times[-1] + 0.01)
            return super().decide(found)

    assert (await appended(store, Slow(unsigned(cast.alice)))).is_on_loop
    times.append(0.9)
    assert not (await appended(store, Small(unsigned(cast.bob)))).is_on_loop
    times.append(1.02)
    assert (await appended(store, Small(unsigned(cast.carol)))).is_on_loop


async def test_the_loop_does_not_wait_for_another_process(
    store: SqliteStore, tmp_path: Path
) -> None:
    batch = Small(unsigned(cast.alice))
    with closing(sqlite3.connect(tmp_path / "rookery.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        append = asyncio.create_task(appended(store, batch))
        await asyncio.sleep(0)
        assert not batch.threads
        other.execute("ROLLBACK")
        assert not (await append).is_on_loop
    assert (await appended(store, Small(unsigned(cast.bob)))).is_on_loop


async def test_it_does_not_overtake_what_the_thread_has_to_do(store: SqliteStore) -> None:
    may_decide = threading.Event()

    class Held(Small):
        def decide(self, found: Found) -> WritePlan:
            may_decide.wait()
            return super().decide(found)

    first = asyncio.create_task(appended(store, Held(unsigned(cast.alice)), is_small=False))
    await asyncio.sleep(0)
    second = asyncio.create_task(appended(store, Small(unsigned(cast.bob))))
    await asyncio.sleep(0)
    may_decide.set()
    assert not (await second).is_on_loop
    rows = [*(await first).results, *(await second).results]
    assert [row.seq for row in rows if isinstance(row, Stored)] == [1, 2]


async def test_a_version_that_replaces_a_large_one_is_for_the_thread(store: SqliteStore) -> None:
    """To take its tags out of the index would take long."""
    tags = [["d", "list"], *(["p", f"{number:064x}"] for number in range(500))]
    await write(store, unsigned(cast.alice, kind=30000, tags=tags, at=1))
    newer = unsigned(cast.alice, kind=30000, tags=[["d", "list"]], at=2)
    assert not (await appended(store, Small(newer))).is_on_loop
    small = unsigned(cast.alice, kind=30000, tags=[["d", "list"]], at=3)
    assert (await appended(store, Small(small))).is_on_loop
    assert await read(store, asked()) == raws(small)


async def test_one_that_raises_changes_nothing(store: SqliteStore) -> None:
    batch = Small(unsigned(cast.alice))

    def raising(found: Found) -> WritePlan:
        batch.decide(found)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.append(batch.wanted, raising, is_small=True)
    assert store.committed() == 0
    assert (await appended(store, Small(unsigned(cast.bob)))).is_on_loop


async def test_who_waits_for_a_commit_is_woken(store: SqliteStore) -> None:
    waiting = asyncio.create_task(store.committed_after(0))
    await asyncio.sleep(0)
    await appended(store, Small(unsigned(cast.alice)))
    assert await waiting == 1


def test_a_thread_is_idle_when_all_of_its_work_has_ended() -> None:
    may_end = threading.Event()
    with OneThread("test") as thread:
        assert thread.is_idle
        running = thread.submit(may_end.wait)
        cancelled = thread.submit(may_end.wait)
        assert cancelled.cancel()
        assert not thread.is_idle
        may_end.set()
        running.result()
        with pytest.raises(ZeroDivisionError):
            thread.submit(lambda: 1 // 0).result()
    assert thread.is_idle
