"""The door of the bus: what every bus promises. Each promise has a test in tests/contract.

A bus is a doorbell, not a mail-box: it says that the store has something new and never what. The
store stays the truth, so a ring that is lost heals: who wakes up asks `Store.since(seq)` with the
last seq it has dealt with, and finds all that it missed.
"""

from __future__ import annotations

from typing import Protocol


class Announcements(Protocol):
    """What one follower hears, for `async for`. One task at a time waits on it."""

    def __aiter__(self) -> Announcements: ...

    async def __anext__(self) -> int:
        """The newest seq announced and not yet heard; waits for one.

        Strictly ascending. A follower that was busy hears the newest only: one number waits for it,
        however many were announced. Ends when the bus or this is closed, after what was announced
        before.
        """

    async def aclose(self) -> None:
        """Hear no more; the bus forgets this follower."""


class Bus(Protocol):
    """A doorbell between all that follow one store, in this process and in others."""

    def announce(self, seq: int) -> None:
        """Say that rows up to `seq` are committed. Called on the event loop, after the commit.

        Never waits and never fails: a slow, gone or missing follower is not the writer's concern.
        After `close` it does nothing.
        """

    def announcements(self) -> Announcements:
        """A new follower, the announcer's own process included.

        Hears what is announced from this call on, also before it first waits: who calls this and
        then reads the store up to its head misses nothing between the two. It may be told of what
        it has read already.
        """

    async def close(self) -> None:
        """End every follower's iteration. A second call does nothing."""
