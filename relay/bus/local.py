"""LocalBus: the doorbell of a relay that is one process."""

from __future__ import annotations

import asyncio


class LocalBus:
    """A Bus for the tasks of one event loop."""

    def __init__(self) -> None:
        self._followers: set[LocalAnnouncements] = set()
        self._is_closed = False

    def announce(self, seq: int) -> None:
        for follower in self._followers:
            follower.ring(seq)

    def announcements(self) -> LocalAnnouncements:
        # Not an async generator: that would begin to listen only when first waited on.
        follower = LocalAnnouncements(self._followers)
        if self._is_closed:
            follower.end()
        else:
            self._followers.add(follower)
        return follower

    async def close(self) -> None:
        self._is_closed = True
        while self._followers:
            self._followers.pop().end()


class LocalAnnouncements:
    """One follower of a LocalBus. All that waits for it is one number."""

    def __init__(self, followers: set[LocalAnnouncements]) -> None:
        self._followers = followers
        self._announced = 0
        self._heard = 0
        self._is_over = False
        self._stirred = asyncio.Event()

    def ring(self, seq: int) -> None:
        if seq > self._announced:
            self._announced = seq
            self._stirred.set()

    def end(self) -> None:
        self._is_over = True
        self._stirred.set()

    def __aiter__(self) -> LocalAnnouncements:
        return self

    async def __anext__(self) -> int:
        while self._announced == self._heard:
            if self._is_over:
                raise StopAsyncIteration
            self._stirred.clear()
            await self._stirred.wait()
        self._heard = self._announced
        return self._heard

    async def aclose(self) -> None:
        self._followers.discard(self)
        self.end()
