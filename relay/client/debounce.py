"""Debounce: work that is done some time after it was first asked for, once for all who asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Later = Callable[[float, Callable[[], None]], "Timer"]
    """As `call_later` of a loop."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Debounce:
    """Runs `work` in a task of its own, never twice at a time. `work` raises nothing."""

    def __init__(
        self, work: Callable[[], Awaitable[object]], delay_s: float, later: Later | None = None
    ) -> None:
        """`later`: a clock for tests; None: that of the loop."""
        self._work = work
        self._delay_s = delay_s
        self._later = later
        self._timer: Timer | None = None
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What is due is not done any more."""
        self.settle()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def soon(self) -> None:
        """`delay_s` from the first of these calls on."""
        if self._timer is None:
            later = asyncio.get_running_loop().call_later if self._later is None else self._later
            self._timer = later(self._delay_s, self.now)

    def now(self) -> None:
        self._due.set()

    def settle(self) -> None:
        """It is being done, or there is nothing to do: the next `soon` begins anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self.settle()
            await self._work()
