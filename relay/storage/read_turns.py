"""Turns of reads by clients: who reads next on a connection that many wait for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import lru_cache
from ipaddress import IPv6Network
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from relay.storage import Verb

    Turn = asyncio.Future[tuple[float, bool]]
    """When it was given, and whether nobody had waited longer."""

_MAX_ADDRESSES: Final = 4096


class ReadTurns:
    """Turns of reads that may take long. Each address has one of COUNTs, and one of other reads, at
    a time; an IPv6 /56 is one address.

    A COUNT looks at all rows that match. After one, those of other reads that wait go first for as
    long as it took.
    """

    def __init__(self, at_once: int = 1, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds of reading, from any point in time."""
        self._free = at_once
        self._clock = clock
        self._counts = _Line()
        self._others = _Line()
        self._owed_s = 0.0
        """Of reading, to others than COUNTs."""

    @asynccontextmanager
    async def of(self, address: str | None, verb: Verb = "REQ") -> AsyncIterator[None]:
        """`address`: as `Sharer.counted_as`; None: one that nobody else has."""
        line = self._counts if verb == "COUNT" else self._others
        who = object() if address is None else site_of(address)
        turn = line.add(who)
        self._give()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # else its client has left before
                given_at, was_oldest = turn.result()
                took = self._clock() - given_at
                self._owed_s = took if line is self._counts else self._owed_s - took
                line.end(who, took, was_oldest=was_oldest)
                self._free += 1
                self._give()

    def _give(self) -> None:
        while self._free:
            first, second, now = self._counts, self._others, self._clock()
            if self._owed_s > 0:
                first, second = second, first
            if not (first.give(now) or second.give(now)):
                return
            self._free -= 1


class _Line:
    """Those who wait. Half of the time the address that has waited longest has its turn, half of
    the time the one whose last reads took least. So a short read waits for one long one of others,
    and nobody about twice as long as in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[object, list[Turn]] = {}
        """By address, in the order in which these came or had their last turn."""
        self._behind: dict[object, list[Turn]] = {}
        """Of the addresses that have a turn."""
        self._took: dict[object, float] = {}
        """Seconds, a mean in which the last read of an address counts half. Of the
        `_MAX_ADDRESSES` that read last."""
        self._owed_s = 0.0
        """Of reading, to those whose reads take less than that of the last who had waited
        longest."""

    def add(self, who: object) -> Turn:
        turn: Turn = asyncio.get_running_loop().create_future()
        behind = self._behind.get(who)
        (self._waiting.setdefault(who, []) if behind is None else behind).append(turn)
        return turn

    def give(self, now: float) -> bool:
        """Whether somebody waited."""
        while self._waiting:
            oldest = next(iter(self._waiting))
            who = oldest if self._owed_s <= 0 else self._shortest(oldest)
            turns = [turn for turn in self._waiting.pop(who) if not turn.done()]
            if turns:  # else their tasks were cancelled
                turns.pop(0).set_result((now, who is oldest))
                self._behind[who] = turns
                return True
        return False

    def _shortest(self, oldest: object) -> object:
        took = self._took
        who = min(self._waiting, key=lambda each: took.get(each, 0.0))
        # Of two alike the one who came first, else a short read would wait for both.
        return who if took.get(who, 0.0) < took.get(oldest, 0.0) / 2 else oldest

    def end(self, who: object, took: float, *, was_oldest: bool) -> None:
        self._owed_s = took if was_oldest else self._owed_s - took
        if turns := self._behind.pop(who):
            self._waiting[who] = turns
        if isinstance(who, str):
            self._took[who] = (self._took.pop(who, 0.0) + took) / 2
            if len(self._took) > _MAX_ADDRESSES:
                del self._took[next(iter(self._took))]


@lru_cache(_MAX_ADDRESSES)
def site_of(address: str) -> str:
    """Of an IPv6 address the /56 that is often given to one household, with 256 networks."""
    return str(IPv6Network(address).supernet(new_prefix=56)) if ":" in address else address
