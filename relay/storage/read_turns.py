"""Turns of reads by clients: who reads next on a connection that many wait for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.access.shares import network_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from relay.storage import Verb

_MAX_RECORDS: Final = 4096
_HALF_LIFE_S: Final = 180.0
"""In which half of what an account has cost others is forgotten, and half of its long reads."""
_MOST_COST: Final = 1000.0
"""The cost of ten reads of 10 s, see `_Line`. More takes longer to forget, and tells nothing."""
_OF_NEW: Final = 2
"""A new account counts for this fraction (1/2) of what is expected of it: it goes before accounts
that have read for as long."""
_LONG_OF_ACCOUNT: Final = 0.5
"""Long reads of an account from which on more are expected: one within `_HALF_LIFE_S`."""
_LONG_OF_NETWORK: Final = 4.0
"""The same of a network, for its new accounts."""
_ALIKE: Final = 2 / 3
"""Two costs with a greater ratio count as equal."""


class ReadTurns:
    """Turns of reads that may take long. Each account has one of COUNTs, and one of other reads, at
    a time: a known key, else an address; an IPv6 /56 is one address. Networks (IPv4 /24, IPv6 /48)
    share the turns, and in each its accounts: a network may have thousands of addresses.

    A COUNT looks at all rows that match. After one, those of other reads that wait go first for as
    long as it took; and while they wait, one of several turns is a COUNT's.
    """

    def __init__(self, at_once: int = 1, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds, from any point in time."""
        self._free = at_once
        self._clock = clock
        self._counts = _Line()
        self._others = _Line()
        self._counting = 0
        """COUNTs that have a turn."""
        self._owed_s = 0.0
        """Seconds of reading that are due to other reads than COUNTs."""
        self._long: dict[object, tuple[float, float]] = {}
        """Account, address or network → number of its long reads as of a time, see `_faded`. Of the
        `_MAX_RECORDS` that had one last."""

    @property
    def is_anybody_waiting(self) -> bool:
        """Whether reads wait, without those of accounts that have a turn."""
        return bool(self._counts or self._others)

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
        account, site, network = _names(address, key)
        read = _Read(account, site, network, is_owner, _turn())
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
                self._owed_s = _owed_after(self._owed_s, took, owes=line is self._counts)
                line.end(read, took, now, was_oldest=was_oldest)
                self._free += 1
                self._counting -= line is self._counts
                self._give()
            else:
                line.drop(read)

    def note_long(self, address: str | None, key: str | None) -> None:
        """A read took long."""
        now = self._clock()
        for name in {*_names(address, key)}:
            if isinstance(name, str):  # else nobody reads by that name again
                number = _faded(self._long.pop(name, None), now)
                self._long[name] = number + 1, now
        while len(self._long) > _MAX_RECORDS:
            del self._long[next(iter(self._long))]

    def expects_long(self, address: str | None, key: str | None) -> bool:
        """Whether a read of the account took long in the last minutes. Of an account that has not
        read here: whether a read of its address did, or several of its network. An account that
        reads quickly here does not count for others of its network."""
        account, site, network = _names(address, key)
        now = self._clock()
        of_account, of_site, of_network = [
            _faded(self._long.get(name), now) for name in (account, site, network)
        ]
        if of_account >= _LONG_OF_ACCOUNT:
            return True
        if self._counts.has_read(account) or self._others.has_read(account):
            return False
        return of_site >= _LONG_OF_ACCOUNT or of_network >= _LONG_OF_NETWORK

    def _give(self) -> None:
        while self._free:
            now = self._clock()
            others_first = self._owed_s > 0 or self._counting > 0
            if not (others_first and self._others.give(now)):
                if self._counts.give(now):
                    self._counting += 1
                elif others_first or not self._others.give(now):
                    return
            self._free -= 1


@dataclass(slots=True, eq=False)
class _Read:
    account: object
    site: str | None
    network: object
    is_owner: bool
    turn: asyncio.Future[tuple[float, bool]]
    """When it was given, and whether none had waited longer."""


class _Line:
    """Accounts that wait. Half of the time the network that has waited longest has its turn, and in
    it the account that has waited longest; half of the time the network whose reads have cost
    others least, and in it such an account. So a short read waits for one long read of others, and
    nobody waits more than about twice as long as if networks, and in each its accounts, had turns
    in order of arrival.

    A read of t seconds costs t²: the longer it takes, the more come meanwhile, and the longer they
    wait. So quick reads beside a slow one change nothing, and a client with many short ones goes
    before one with a long one.
    """

    def __init__(self) -> None:
        self._networks: dict[object, dict[object, list[_Read]]] = {}
        """By network, in the order in which these came or had their last turn as the one that had
        waited longest, and by account, in the order in which these came or had their last turn. An
        account is in the network of its first read."""
        self._network_of: dict[object, object] = {}
        """Account that waits → its network."""
        self._behind: dict[object, list[_Read]] = {}
        """Account that has a turn → its further reads."""
        self._records: dict[object, tuple[float, float]] = {}
        """Account, address or network → what it has cost, and when it was in line last. Costs are
        forgotten only while it has no reads here, else who waits for hours would be as good as new.
        Of the `_MAX_RECORDS` that read last."""
        self._first_cost = 0.0
        """Mean cost of first reads, in which the last counts half: expected of a new account."""
        self._owed_s = 0.0
        """Seconds of reading that are due to those who have cost least: as long as turns of those
        who had waited longest took."""

    def __bool__(self) -> bool:
        """Whether an account waits."""
        return bool(self._networks)

    def has_read(self, account: object) -> bool:
        """Whether the account is among the `_MAX_RECORDS` that read here last."""
        return account in self._records

    def add(self, read: _Read, now: float) -> None:
        account = read.account
        names = {account, read.site}
        if read.network not in self._networks:
            names.add(read.network)
        if account in self._behind:
            names.discard(account)
            self._behind[account].append(read)
        elif account in self._network_of:
            names.discard(account)
            self._reads_of(account).append(read)
        else:
            self._wait(account, [read])
        for name in names:
            self._fade(name, now)

    def _reads_of(self, account: object) -> list[_Read]:
        return self._networks[self._network_of[account]][account]

    def _wait(self, account: object, reads: list[_Read]) -> None:
        network = self._network_of[account] = reads[0].network
        self._networks.setdefault(network, {})[account] = reads

    def _leave(self, account: object) -> list[_Read]:
        network = self._network_of.pop(account)
        accounts = self._networks[network]
        reads = accounts.pop(account)
        if not accounts:
            del self._networks[network]
        return reads

    def drop(self, read: _Read) -> None:
        """Its client has left before its turn."""
        account = read.account
        waits = account in self._network_of
        reads = self._reads_of(account) if waits else self._behind.get(account, [])
        if read in reads:
            reads.remove(read)
            if waits and not reads:
                self._leave(account)

    def give(self, now: float) -> bool:
        """Give the next turn; False: nobody waited."""
        while self._networks:
            oldest = next(iter(self._networks))
            oldest_account = next(iter(self._networks[oldest]))
            network, account = oldest, oldest_account
            if self._owed_s > 0:
                network = self._cheapest(self._networks, self._cost_of_network)
                account = self._cheapest(self._networks[network], self._cost)
            was_oldest = account is oldest_account
            reads = [read for read in self._leave(account) if not read.turn.done()]
            if was_oldest and oldest in self._networks:
                self._networks[oldest] = self._networks.pop(oldest)
            if reads:  # else their tasks are being cancelled
                reads.pop(0).turn.set_result((now, was_oldest))
                self._behind[account] = reads
                return True
        return False

    @staticmethod
    def _cheapest(waiting: Iterable[object], cost: Callable[[object], float]) -> object:
        costs = {each: cost(each) for each in waiting}
        oldest = next(iter(costs))
        cheapest = min(costs, key=costs.__getitem__)
        # Of two alike the one who came first, else a short read would wait for both.
        return cheapest if costs[cheapest] < costs[oldest] * _ALIKE else oldest

    def _cost_of_network(self, network: object) -> float:
        accounts = self._networks[network].values()
        return self._cost_to_expect([read for reads in accounts for read in reads], network)

    def _cost(self, account: object) -> float:
        reads = self._reads_of(account)
        # A member may have any number of keys: a new one is what its address is.
        return self._cost_to_expect(reads, account, reads[0].site)

    def _cost_to_expect(self, reads: Iterable[_Read], *names: object) -> float:
        # Another connection of the account may have its key without that of the owner.
        if any(read.is_owner for read in reads):
            return -1.0
        record = next(filter(None, map(self._records.get, names)), None)
        return self._first_cost / _OF_NEW if record is None else record[0]

    def end(self, read: _Read, took: float, now: float, *, was_oldest: bool) -> None:
        account = read.account
        self._owed_s = _owed_after(self._owed_s, took, owes=was_oldest)
        if reads := self._behind.pop(account):
            self._wait(account, reads)
        if read.is_owner or not isinstance(account, str):
            return
        names = {account, read.site} - {None}
        if self._records.keys().isdisjoint(names):
            self._first_cost = (self._first_cost + took**2) / 2
        for name in names | {read.network}:
            cost, _ = self._records.pop(name, (0.0, now))
            self._records[name] = min(cost + took**2, _MOST_COST), now
        while len(self._records) > _MAX_RECORDS:
            del self._records[next(iter(self._records))]

    def _fade(self, name: object, now: float) -> None:
        if name in self._records:
            self._records[name] = _faded(self._records[name], now), now


def _owed_after(owed_s: float, took: float, *, owes: bool) -> float:
    """What is due to others after a turn that `owes` them as long as it took, or that was theirs.
    Of several turns at once each owes as much."""
    return max(owed_s, 0.0) + took if owes else owed_s - took


def _faded(record: tuple[float, float] | None, now: float) -> float:
    """What is left now of an amount as of a time."""
    if record is None:
        return 0.0
    amount, at = record
    left: float = 0.5 ** ((now - at) / _HALF_LIFE_S)
    return amount * left


def _names(address: str | None, key: str | None) -> tuple[object, str | None, object]:
    """Account, address and network of a read, as of `ReadTurns.of`."""
    site = None if address is None else site_of(address)
    account = key or site or object()
    return account, site, account if site is None else network_of(site)


def _turn() -> asyncio.Future[tuple[float, bool]]:
    return asyncio.get_running_loop().create_future()


@lru_cache(_MAX_RECORDS)
def site_of(address: str) -> str:
    """Of IPv6 the /56 that is often given to one household, with 256 networks."""
    return str(IPv6Network(address).supernet(new_prefix=56)) if ":" in address else address
