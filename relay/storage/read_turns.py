"""Turns of reads by clients: who reads next on a connection that many wait for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from relay.storage import Verb

_MAX_RECORDS: Final = 4096
_HALF_LIFE_S: Final = 180.0
"""In which half of what an account has cost others is forgotten."""
_MOST_COST: Final = 1000.0
"""Of ten reads of 10 s. More would take longer to forget, and tells nothing."""
_OF_NEW: Final = 2
"""Who is new goes before those who have read for as long as is expected of it."""
_ALIKE: Final = 2 / 3
"""Two costs with a greater ratio count as equal."""


class ReadTurns:
    """Turns of reads that may take long. Each account has one of COUNTs, and one of other reads, at
    a time: a known key, else an address; an IPv6 /56 is one address.

    A COUNT looks at all rows that match. After one, those of other reads that wait go first for as
    long as it took.
    """

    def __init__(self, at_once: int = 1, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds, from any point in time."""
        self._free = at_once
        self._clock = clock
        self._counts = _Line()
        self._others = _Line()
        self._owed_s = 0.0
        """Of reading, to others than COUNTs."""

    @asynccontextmanager
    async def of(
        self,
        address: str | None,
        verb: Verb = "REQ",
        key: str | None = None,
        *,
        is_owner: bool = False,
    ) -> AsyncIterator[None]:
        """`address`: as `Sharer.counted_as`; None: one that nobody else has. `key`: as
        `Visibility.known_as`. Owners go first for half of the time, whatever they have read."""
        line = self._counts if verb == "COUNT" else self._others
        site = None if address is None else site_of(address)
        read = _Read(key or site or object(), site, is_owner, _turn())
        line.add(read, self._clock())
        self._give()
        try:
            await read.turn
            yield
        finally:
            if not read.turn.cancelled():
                given_at, was_oldest = read.turn.result()
                now = self._clock()
                took = now - given_at
                self._owed_s = took if line is self._counts else self._owed_s - took
                line.end(read, took, now, was_oldest=was_oldest)
                self._free += 1
                self._give()
            else:
                line.drop(read)

    def _give(self) -> None:
        while self._free:
            first, second, now = self._counts, self._others, self._clock()
            if self._owed_s > 0:
                first, second = second, first
            if not (first.give(now) or second.give(now)):
                return
            self._free -= 1


@dataclass(slots=True, eq=False)
class _Read:
    account: object
    site: str | None
    is_owner: bool
    turn: asyncio.Future[tuple[float, bool]]
    """When it was given, and whether no account had waited longer."""


class _Line:
    """Those who wait. Half of the time the account that has waited longest has its turn, half of
    the time the one whose reads have cost others least. So a short read waits for one long one of
    others, and nobody about twice as long as in order of arrival.

    A read of t seconds costs t²: the longer it takes, the more come meanwhile, and the longer they
    wait. So quick reads beside a slow one change nothing, and a client with many short ones goes
    before one with a long one.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, list[_Read]] = {}
        """By account, in the order in which these came or had their last turn."""
        self._behind: dict[object, list[_Read]] = {}
        """Of the accounts that have a turn."""
        self._records: dict[object, tuple[float, float]] = {}
        """What each account, and each address of one, has cost, and when it was in line last: it
        is forgotten only while it has no reads here, else who waits for hours would be as good as
        new. Of the `_MAX_RECORDS` that read last."""
        self._first_cost = 0.0
        """Of first reads, a mean in which the last counts half: what to expect of who is new."""
        self._owed_s = 0.0
        """Of reading, to those who have cost less than the last who had waited longest."""

    def add(self, read: _Read, now: float) -> None:
        account, site = read.account, read.site
        behind = self._behind.get(account)
        if behind is None and account not in self._waiting:
            self._fade(account, now)
        if account != site:
            self._fade(site, now)
        (self._waiting.setdefault(account, []) if behind is None else behind).append(read)

    def drop(self, read: _Read) -> None:
        """Its client has left before its turn."""
        account = read.account
        reads = self._waiting.get(account) or self._behind.get(account) or []
        if read in reads:
            reads.remove(read)
            if not reads:
                self._waiting.pop(account, None)

    def give(self, now: float) -> bool:
        """Whether somebody waited."""
        while self._waiting:
            oldest = next(iter(self._waiting))
            account = oldest if self._owed_s <= 0 else self._least_costly(oldest)
            reads = [read for read in self._waiting.pop(account) if not read.turn.done()]
            if reads:  # else their tasks are being cancelled
                reads.pop(0).turn.set_result((now, account is oldest))
                self._behind[account] = reads
                return True
        return False

    def _least_costly(self, oldest: object) -> object:
        account = min(self._waiting, key=self._cost)
        # Of two alike the one who came first, else a short read would wait for both.
        return account if self._cost(account) < self._cost(oldest) * _ALIKE else oldest

    def _cost(self, account: object) -> float:
        reads = self._waiting[account]
        # Another connection of the account may have its key without that of the owner.
        if any(read.is_owner for read in reads):
            return -1.0
        record = self._records.get(account)
        if record is None:
            # A member may have any number of keys: a new one is what its address is.
            record = self._records.get(reads[0].site)
        return self._first_cost / _OF_NEW if record is None else record[0]

    def end(self, read: _Read, took: float, now: float, *, was_oldest: bool) -> None:
        account = read.account
        self._owed_s = took if was_oldest else self._owed_s - took
        if reads := self._behind.pop(account):
            self._waiting[account] = reads
        if read.is_owner or not isinstance(account, str):
            return
        names = {account, read.site} - {None}
        if self._records.keys().isdisjoint(names):
            self._first_cost = (self._first_cost + took**2) / 2
        for name in names:
            cost, _ = self._records.pop(name, (0.0, now))
            self._records[name] = min(cost + took**2, _MOST_COST), now
        while len(self._records) > _MAX_RECORDS:
            del self._records[next(iter(self._records))]

    def _fade(self, name: object, now: float) -> None:
        if name in self._records:
            cost, at = self._records[name]
            self._records[name] = cost * 0.5 ** ((now - at) / _HALF_LIFE_S), now


def _turn() -> asyncio.Future[tuple[float, bool]]:
    return asyncio.get_running_loop().create_future()


@lru_cache(_MAX_RECORDS)
def site_of(address: str) -> str:
    """Of IPv6 the /56 that is often given to one household, with 256 networks."""
    return str(IPv6Network(address).supernet(new_prefix=56)) if ":" in address else address
