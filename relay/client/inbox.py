"""Inbox: messages that wait for their reader, by rank.

Each rank has bounds of its own, so that nobody's messages delay those of a higher rank.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from relay.nostr.event import weight_of

if TYPE_CHECKING:
    from relay.nostr.event import Event

_MOST: Final = 1_000
"""Messages in a queue."""
_MOST_BYTES: Final = 2**24
"""… and what they take in memory, as `weight_of` estimates it."""


class Rank(IntEnum):
    """Whose messages are read first."""

    OURS = 0
    """Owners and agents."""
    KNOWN = 1
    """Members of the group, and users whom the agent remembers."""
    OTHERS = 2


class MessageQueue(asyncio.Queue["Event"]):
    """Full by their number, or by what they take in memory."""

    _bytes = 0

    def full(self) -> bool:
        return self.qsize() >= _MOST or self._bytes >= _MOST_BYTES

    async def get_some(self, most: int) -> list[Event]:
        """What waits, at least one."""
        some = [await self.get()]
        while len(some) < most and not self.empty():
            some.append(self.get_nowait())
        return some

    def put_newest(self, message: Event) -> int:
        """Put it without waiting: if it is full, the oldest are dropped. How many were."""
        dropped = 0
        while self.full():
            self.get_nowait()
            self.task_done()
            dropped += 1
        self.put_nowait(message)
        return dropped

    def _put(self, item: Event) -> None:
        super()._put(item)
        self._bytes += weight_of(item)

    def _get(self) -> Event:
        item = super()._get()
        self._bytes -= weight_of(item)
        return item


class Inbox:
    """For one reader."""

    def __init__(self) -> None:
        self._queues = {rank: MessageQueue() for rank in Rank}
        self._waiting = asyncio.Semaphore(0)

    async def put(self, message: Event, rank: Rank) -> None:
        """Waits while there are too many of this rank."""
        await self._queues[rank].put(message)
        self._waiting.release()

    async def get(self) -> Event:
        """The oldest of the highest rank."""
        await self._waiting.acquire()
        return next(q for q in self._queues.values() if not q.empty()).get_nowait()

    def qsize(self) -> int:
        return sum(queue.qsize() for queue in self._queues.values())

    def clear(self) -> None:
        """Nobody reads any more: let in whoever waits in `put`."""
        for queue in self._queues.values():
            while not queue.empty():
                queue.get_nowait()
