"""Debounce: runs work some time after the first of several requests for it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Later = Callable[[float, Callable[[], None]], "Timer"]
    """As `call_later` of a loop."""


_JITTER: Final = random.SystemRandom()


class Timer(Protocol):
    def cancel(self) -> None: ...


class Debounce:
    """Runs `work` in its own task, never twice at a time. `work` must not raise."""

    def __init__(
        self,
        work: Callable[[], Awaitable[object]],
        delay_s: float,
        later: Later | None = None,
        *,
        jitter_s: float = 0.0,
    ) -> None:
        """`later`: replaces the loop's `call_later` in tests. `jitter_s`: most that a delay is
        longer, at random: programs that began together do not work together."""
        self._work = work
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._later = later
        self._timer: Timer | None = None
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancels pending work."""
        self.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def soon(self) -> None:
        """Run `work` `delay_s` after the first of these calls."""
        if self._timer is None:
            later = asyncio.get_running_loop().call_later if self._later is None else self._later
            self._timer = later(self._delay_s + _JITTER.uniform(0.0, self._jitter_s), self.now)

    def now(self) -> None:
        self._due.set()

    def clear(self) -> None:
        """Clear the request: the next `soon` starts a new delay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self.clear()
            await self._work()
