"""relay/console/measured.py: how much of the event loop a coroutine takes."""

from __future__ import annotations

import asyncio

import pytest

from relay.console import measured
from relay.console.measured import Measured


class Clock:
    """Seconds that pass by work alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measured, "thread_time", clock)
    return clock


async def test_its_work_counts_and_not_its_waiting(clock: Clock) -> None:
    async def work() -> str:
        clock.now += 1
        waited = await asyncio.get_running_loop().run_in_executor(None, lambda: "waited")
        clock.now += 2
        await asyncio.sleep(0)
        clock.now += 4
        return waited

    async def others() -> None:
        for _ in range(9):
            clock.now += 100
            await asyncio.sleep(0)

    working = Measured(work())
    other = asyncio.create_task(others())
    assert await working == "waited"
    await other
    assert working.work_s == 7


async def test_what_is_raised_goes_through(clock: Clock) -> None:
    async def work(future: asyncio.Future[None]) -> str:
        try:
            await future
        except KeyError:
            clock.now += 1
            return "handled"
        return "not reached"

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(KeyError())
    working = Measured(work(future))
    assert (await working, working.work_s) == ("handled", 1)


async def test_a_cancellation_reaches_it_and_its_work_is_counted(clock: Clock) -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            clock.now += 1

    working = Measured(work())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await working
    assert working.work_s == 1
