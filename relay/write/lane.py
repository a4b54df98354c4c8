"""Lane: many put, one commit runs at a time and takes all that queued while the last one ran."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


class Lane(Generic[T]):
    """A serial, batching worker.

    Promises: items are committed in the order in which they were put; at most one commit runs; a
    batch never waits for a timer, it is what queued while the one before ran, at most `max_batch`.
    Bounded: at most `max_waiting` items wait, `put` says no to more. `commit` answers its items
    itself and does not raise.
    """

    def __init__(
        self, commit: Callable[[Sequence[T]], Awaitable[None]], *, max_batch: int, max_waiting: int
    ) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def put(self, item: T) -> bool:
        """False when the lane is full or closing; then nothing happens with the item."""
        if self._closing or len(self._items) >= self._max_waiting:
            return False
        self._items.append(item)
        if not self._wake.is_set():
            self._wake.set()
            self._idle.clear()
        return True

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Commit until `close`; what was put before that is still committed."""
        items = self._items
        while True:
            if not items:
                self._wake.clear()
                self._idle.set()
                if self._closing:
                    return
                await self._wake.wait()
                continue
            size = min(len(items), self._max_batch)
            await self._commit([items.popleft() for _ in range(size)])

    async def drained(self) -> None:
        """Until everything that was put is committed."""
        await self._idle.wait()

    def close(self) -> None:
        """Take no more; `run` ends when what waits is committed."""
        self._closing = True
        self._idle.clear()
        self._wake.set()
