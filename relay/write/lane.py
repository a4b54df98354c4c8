"""Lane: a queue with one consumer that takes everything queued in one batch."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


class Lane(Generic[T]):
    """A serial, batching worker.

    Invariants: items are committed in the order in which they were put; one commit runs at a time;
    a batch waits for no timer: it is what was queued while the previous one ran, at most
    `max_batch` items. At most `max_waiting` items are queued; `put` refuses more. `commit` reports
    results itself and does not raise.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[T]], Awaitable[None]],
        *,
        max_batch: int,
        max_waiting: int,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`waited` gets the seconds that one item of a batch was queued, mostly the first one."""
        self._commit = commit
        self._waited = waited
        self._timed_at = 0.0
        """When the item was put whose wait is measured; 0: none is."""
        self._timed_behind = 0
        """How many items are queued before it."""
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def put(self, item: T) -> bool:
        """False when the lane is full or closing: the item is not queued."""
        if self._closing or len(self._items) >= self._max_waiting:
            return False
        if not self._timed_at:
            self._timed_at, self._timed_behind = perf_counter(), len(self._items)
        self._items.append(item)
        if not self._wake.is_set():
            self._wake.set()
            self._idle.clear()
        return True

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Commit batches until `close`; items put before it are still committed."""
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
            self._timed_behind -= size
            if self._timed_behind < 0 and self._timed_at:
                self._waited(perf_counter() - self._timed_at)
                self._timed_at = 0.0
            await self._commit([items.popleft() for _ in range(size)])

    async def drained(self) -> None:
        """Wait until the queue is empty."""
        await self._idle.wait()

    def close(self) -> None:
        """Refuse further items; `run` returns when the queue is empty."""
        self._closing = True
        self._idle.clear()
        self._wake.set()
