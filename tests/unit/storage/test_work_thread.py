"""relay/storage/sqlite/work_thread.py: functions run one at a time, in their order."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.storage.sqlite import work_thread
from relay.storage.sqlite.work_thread import WorkThread

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def thread() -> Iterator[WorkThread]:
    thread = WorkThread("worker")
    yield thread
    thread.close()


async def test_functions_run_on_the_thread_in_their_order(thread: WorkThread) -> None:
    ran: list[int] = []
    results = [thread.run(lambda n=n: ran.append(n) or n) for n in range(20)]  # type: ignore[misc,func-returns-value]
    assert await asyncio.gather(*results) == ran == [*range(20)]
    assert await thread.run(lambda: threading.current_thread().name) == "worker"


async def test_who_waits_gets_the_exception_and_the_thread_goes_on(thread: WorkThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 1) == 1


async def test_an_error_of_sqlite_is_a_fault_of_the_store(thread: WorkThread) -> None:
    def work() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreFault, match="store: disk I/O error") as raised:
        await thread.run(work)
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)


async def test_what_is_cancelled_before_it_begins_does_not_run_and_later_runs_to_its_end(
    thread: WorkThread,
) -> None:
    begun, may_end, ran = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        may_end.wait()
        ran.append("first")

    running, waiting = thread.run(first), thread.run(lambda: ran.append("second"))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    waiting.cancel()
    may_end.set()
    await thread.run(lambda: None)
    assert ran == ["first"]


async def test_close_waits_and_then_nothing_more_is_taken() -> None:
    thread, ran = WorkThread("worker"), list[int]()
    results = [thread.run(lambda n=n: ran.append(n)) for n in range(3)]  # type: ignore[misc]
    thread.close()
    assert ran == [0, 1, 2]
    with pytest.raises(StoreFault, match="worker has ended"):
        thread.run(lambda: None)
    await asyncio.gather(*results)


def test_waiting_for_blocks_of_a_disk_is_work_and_waiting_for_the_processor_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """512 events of cold pages took 17 s, of which the processor worked for 1."""
    worked, now, blocks = 7.0, 100.0, 4000
    monkeypatch.setattr(work_thread, "thread_time", lambda: worked)
    monkeypatch.setattr(work_thread, "perf_counter", lambda: now)
    monkeypatch.setattr(work_thread, "disk_reads", lambda: blocks)
    work = work_thread.WorkClock()
    worked, now = worked + 1.0, now + 5.0
    assert work.seconds == pytest.approx(1.0), "others had the processor, or the GIL"
    blocks += 8 * 2000
    assert work.seconds == pytest.approx(3.0), "2,000 pages, 1 ms each, of 4 s that it waited"
    blocks += 8 * 90_000
    assert work.seconds == pytest.approx(5.0), "not longer than it waited"
