"""Turns: who has much work for the event loop waits for its turn behind who has little.

A task that reads input never gives up the loop while more is buffered: it must do so itself, after
`SLICE_S` of work.

Invariants: of all tasks that wait for a turn one goes on per iteration of the loop, in the order
in which they came. So an iteration takes one slice longer, however many wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_S: Final = 0.005
"""Work without a pause, in seconds."""


class Turns:
    """For one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Let every task that is ready run, and those that have waited longer for a turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._give)
        self._waiting.append(turn)
        await turn

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)


class Slice:
    """The work of one task since its last turn."""

    __slots__ = ("_began", "_clock", "_turns", "_worked")

    def __init__(self, turns: Turns, clock: Callable[[], float]) -> None:
        """`clock`: seconds, from any point in time."""
        self._turns = turns
        self._clock = clock
        self._began = 0.0
        self._worked = 0.0

    def begin(self) -> None:
        """A piece of work begins."""
        self._began = self._clock()

    def end(self) -> bool:
        """It ended; whether `Turns.wait` is due."""
        self._worked += self._clock() - self._began
        return self._worked >= SLICE_S

    async def rest(self) -> None:
        self._worked = 0.0
        await self._turns.wait()
