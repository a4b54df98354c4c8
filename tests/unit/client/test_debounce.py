"""relay/client/debounce.py: work runs once, a delay after the first request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relay.client.debounce import Debounce
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Timers that a test lets ring."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, ring: Callable[[], None]) -> Clock.Timer:
        timer = (seconds, ring)
        self.timers.append(timer)
        return Clock.Timer(self, timer)

    def ring(self) -> None:
        for _, ring in self.timers:
            ring()
        self.timers.clear()

    class Timer:
        def __init__(self, clock: Clock, timer: tuple[float, Callable[[], None]]) -> None:
            self._clock, self._timer = clock, timer

        def cancel(self) -> None:
            if self._timer in self._clock.timers:
                self._clock.timers.remove(self._timer)


class Work:
    def __init__(self) -> None:
        self.clock = Clock()
        self.times = 0
        self.done = asyncio.Event()
        self.due = Debounce(self.work, 300.0, self.clock.later)
        self.due.start()

    async def work(self) -> None:
        self.times += 1
        self.done.set()

    async def finished(self) -> None:
        await asyncio.wait_for(self.done.wait(), ANSWER_S)
        self.done.clear()


async def test_requests_within_the_delay_run_the_work_once() -> None:
    work = Work()
    for _ in range(3):
        work.due.soon()
    assert [seconds for seconds, _ in work.clock.timers] == [300.0]
    assert work.times == 0
    work.clock.ring()
    await work.finished()
    work.due.soon()
    assert len(work.clock.timers) == 1
    await work.due.stop()
    assert (work.times, work.clock.timers) == (1, [])


async def test_now_runs_the_work_at_once_and_restarts_the_delay() -> None:
    work = Work()
    work.due.soon()
    work.due.now()
    await work.finished()
    assert (work.times, work.clock.timers) == (1, [])
    await work.due.stop()


async def test_cleared_work_does_not_run() -> None:
    work = Work()
    work.due.soon()
    work.due.clear()
    assert work.clock.timers == []
    work.due.now()
    await work.finished()
    assert work.times == 1
    await work.due.stop()


async def test_the_default_clock_is_the_loops() -> None:
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    due = Debounce(work, 0.0)
    due.start()
    due.soon()
    await asyncio.wait_for(done.wait(), ANSWER_S)
    await due.stop()
