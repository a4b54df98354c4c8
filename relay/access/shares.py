"""Shares: memory, or places, that the clients of all addresses share.

Invariants: pure. A quarter is for clients with a known key; the others of one address have a
quarter together, also when they have closed their connections. Those with known keys of one address
have half, and nothing of the last quarter from three eighths on: two addresses of one member leave
memory for others. Where `ordinary` is given, addresses that have little may have that much beyond
these shares; where owners are told apart, they may have a quarter more than all others. `HeldSets`
tells what to close for those who have clearly less, `ByNetwork` of which address or network.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from heapq import heapify, heappop, heappush
from ipaddress import ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Held = TypeVar("Held")

_OF_ONE_NETWORK: Final = 16
"""What is ordinary is in one network together at most this fraction (1/16) of what is left, …"""
_FEW_ADDRESSES: Final = 8
"""… or, where that is less at first, what so many addresses may have."""
_NOTHING: Final[Mapping[str | None, int]] = MappingProxyType({})


class Sharer(Protocol):
    @property
    def counted_as(self) -> str | None:
        """The address whose clients share limits; None: unknown."""

    @property
    def is_known(self) -> bool:
        """Whether one of its keys is known."""


class Rights(Protocol):
    @property
    def is_known(self) -> bool: ...
    @property
    def is_owner(self) -> bool: ...


@lru_cache(16_384)
def network_of(address: str) -> str:
    """Its /48 (IPv6) or /24: what one can easily have. The address itself if it is none."""
    try:
        network = ip_network(address)
    except ValueError:
        return address
    return str(network.supernet(new_prefix=48 if network.version == 6 else 24))


def network_of_client(client: object) -> object:
    """Of its address; itself if it has none."""
    return network_of(client) if isinstance(client, str) else client


class Shares:
    def __init__(self) -> None:
        self.used = 0
        """Of all together."""
        self._of: dict[object, dict[str | None, int]] = {}
        """Of each address that has any, by network."""
        self._of_network: Counter[object] = Counter()
        """The sum of each."""

    def of(self, address: str | None) -> int:
        """What the clients of one address have."""
        return self._of.get(network_of_client(address), _NOTHING).get(address, 0)

    def has_room_for(self, client: Sharer, most: int) -> bool:
        """Whether it may have more. `most`: bytes of all together."""
        if self.used < most // 4:
            return True
        return self._room(client.counted_as, most, is_known=client.is_known) > 0

    def room_for(self, rights: Rights, address: str | None, most: int, ordinary: int = 0) -> int:
        """How much more a client with these rights may have; 0 or less: nothing. `address`: see
        `Sharer.counted_as`. `most`: of all together, except owners. `ordinary`: what clients of one
        address may have also when others have all, up to twice `most` (unknown keys: one and a half
        times): else a few addresses would keep out all others. Those of one network have a part
        of that together, as it may have thousands of addresses."""
        beyond = most * (2 if rights.is_known else 1.5) if ordinary else most
        if rights.is_owner:
            return int(beyond) + most // 4 - self.used
        room = self._room(address, most, is_known=rights.is_known)
        left = min(ordinary - self.of(address), int(beyond) - self.used)
        if room >= left or not ordinary:
            return max(room, left)
        network = network_of_client(address)
        most_of_network = (int(beyond) - self.used) // _OF_ONE_NETWORK
        if most // _OF_ONE_NETWORK < _FEW_ADDRESSES * ordinary:
            most_of_network = _FEW_ADDRESSES * ordinary
        # Not of each address what is ordinary at most: there may be thousands.
        addresses = len(self._of.get(network, _NOTHING))
        of_network = min(self._of_network[network], addresses * ordinary)
        return max(room, min(left, max(most_of_network, ordinary) - of_network))

    def _room(self, address: str | None, most: int, *, is_known: bool) -> int:
        left, quarter = most - self.used, most // 4
        own = self.of(address)
        if not is_known:
            return min(quarter - own, left - quarter)
        if address is None:
            return left
        return max(min(most // 2 - own, left - quarter), min(most * 3 // 8 - own, left))

    def add(self, address: str | None, size: int) -> None:
        """`size`: bytes, negative when they are gone."""
        if not size:
            return
        self.used += size
        network = network_of_client(address)
        sizes = self._of.setdefault(network, {})
        self._of_network[network] += size
        left = sizes.pop(address, 0) + size
        if left:
            sizes[address] = left
        elif not sizes:
            del self._of[network], self._of_network[network]


class _Counts:
    """Number that each address, or network, has, and which one has most."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._addresses: dict[int, dict[str, None]] = {}
        """Number → addresses that have so many."""
        self._most = 0

    def largest(self) -> str | None:
        return next(iter(self._addresses[self._most])) if self._most else None

    def larger_than(self, address: str) -> str | None:
        """The one with most, if this one would have less with one more."""
        return self.largest() if self._most > self.of[address] + 1 else None

    def count(self, address: str, change: int) -> None:
        """`change`: 1 or -1."""
        before = self.of[address]
        after = before + change
        if before:
            del self._addresses[before][address]
            if not self._addresses[before]:
                del self._addresses[before]
        if after:
            self.of[address] = after
            self._addresses.setdefault(after, {})[address] = None
        else:
            del self.of[address]
        if after > self._most or self._most not in self._addresses:
            self._most = after


class ByNetwork(Generic[Held]):
    """What clients hold, by network, and by address."""

    def __init__(self) -> None:
        self.all: dict[Held, None] = {}
        """Oldest first."""
        self._held: dict[str, dict[Held, None]] = {}
        """The same by address."""
        self._networks = _Counts()
        self._addresses: dict[str, _Counts] = {}
        """Network → its addresses."""

    def of(self, address: str) -> dict[Held, None]:
        """What one address has, oldest first."""
        return self._held.get(address, {})

    def number_in_network(self, address: str) -> int:
        return self._networks.of[network_of(address)]

    def add(self, held: Held, address: str) -> None:
        if held not in self.all:
            self.all[held] = self._held.setdefault(address, {})[held] = None
            self._count(address, 1)

    def discard(self, held: Held, address: str) -> bool:
        """Whether it was there."""
        if held not in self.all:
            return False
        its = self._held[address]
        del self.all[held], its[held]
        if not its:
            del self._held[address]
        self._count(address, -1)
        return True

    def _count(self, address: str, change: int) -> None:
        network = network_of(address)
        self._networks.count(network, change)
        addresses = self._addresses.setdefault(network, _Counts())
        addresses.count(address, change)
        if not addresses.of:
            del self._addresses[network]

    def oldest(self) -> Held | None:
        """That of the network with most, and in it of the address with most; with as many, of the
        one that has had so many for longest."""
        network = self._networks.largest()
        most = None if network is None else self._addresses[network].largest()
        return None if most is None else next(iter(self._held[most]))

    def of_largest(self, address: str) -> Held | None:
        """The oldest of the network with most, and in it of the address with most, if this network
        would have less with one more; else that of another address of this network, if this address
        would have less."""
        own = network_of(address)
        if self._networks.larger_than(own) is not None:
            return self.oldest()
        most = self._addresses[own].larger_than(address) if own in self._addresses else None
        return None if most is None else next(iter(self._held[most]))

    def oldest_in_network(self, address: str) -> Held | None:
        """That of the address with most, in the network of this one."""
        addresses = self._addresses.get(network_of(address))
        most = None if addresses is None else addresses.largest()
        return None if most is None else next(iter(self._held[most]))


class HeldSets(Generic[Held]):
    """Sets that may be closed for clients of addresses that hold clearly less than the one with
    most.

    Clearly: with the new set two thirds of it at most. So with each set that is closed, what the
    addresses hold becomes more even, and who was closed cannot close in return as long as he would
    hold more. Sets of unknown keys are closed first, those of known keys for known ones only.
    """

    def __init__(self) -> None:
        self._of: dict[Held, tuple[bool, str | None]] = {}
        """Of each set whether the key is known, and the address."""
        self._sizes: dict[tuple[bool, str | None], dict[Held, int]] = {}
        """Last used last."""
        self._sums: dict[bool, Counter[str | None]] = {False: Counter(), True: Counter()}
        self._in_use = set[Held]()

    def add(self, held: Held, address: str | None, size: int, *, is_known: bool) -> None:
        if size:  # else nothing is gained when it is closed
            self._of[held] = holder = is_known, address
            self._sizes.setdefault(holder, {})[held] = size
            self._sums[is_known][address] += size

    def begin_use(self, held: Held) -> None:
        """Until `end_use` it is not closed."""
        self._in_use.add(held)

    def end_use(self, held: Held) -> None:
        self._in_use.discard(held)
        if held in self._of:
            sizes = self._sizes[self._of[held]]
            sizes[held] = sizes.pop(held)

    def remove(self, held: Held) -> None:
        """Nothing happens if it was not added, or is empty."""
        if held in self._of:
            is_known, address = holder = self._of.pop(held)
            sizes, sums = self._sizes[holder], self._sums[is_known]
            sums[address] -= sizes.pop(held)
            if not sizes:
                del self._sizes[holder], sums[address]

    def most_for(self, own: int, *, is_known: bool) -> int:
        """The largest set that others may be closed for; 0 or less: none. `own`: what the address
        of its client holds."""
        sums = [self._sums[each] for each in _closed_for(is_known=is_known)]
        return max(max(each.values(), default=0) for each in sums) * 2 // 3 - own

    def to_close(self, own: int, size: int, short: int, *, is_known: bool) -> list[Held] | None:
        """What to close for a set of this size for which `short` is missing, 1 to `size`; None:
        that much cannot be had. `own`: as in `most_for`.

        Looks at all addresses, and at all sets of those some of whose are closed. Closed are about
        as many as one address has, at most: each is a mean one of its address or larger, and all of
        an address together are larger than `size`."""
        least = ((own + size) * 3 + 1) // 2
        closed = list[Held]()
        for each in _closed_for(is_known=is_known):
            addresses = [
                (-total, number, self._by_use((each, address)))
                for number, (address, total) in enumerate(self._sums[each].items())
                if total >= least
            ]
            heapify(addresses)
            while short > 0 and addresses:
                negative, number, by_use = heappop(addresses)
                for held, gone in by_use:
                    closed.append(held)
                    short -= gone
                    if -negative - gone >= least:
                        heappush(addresses, (negative + gone, number, by_use))
                    break
        return closed if short <= 0 else None

    def _by_use(self, holder: tuple[bool, str | None]) -> Iterator[tuple[Held, int]]:
        """Those that were used longest ago first, but small ones after the others: one address may
        have hundreds of one record."""
        sizes = self._sizes[holder]
        left = {held: size for held, size in sizes.items() if held not in self._in_use}
        while left:
            mean = sum(left.values()) / len(left)
            for held, size in list(left.items()):
                if size >= mean:
                    del left[held]
                    yield held, size


def _closed_for(*, is_known: bool) -> tuple[bool, ...]:
    """Whose sets are closed, first those of unknown keys (False)."""
    return (False, True) if is_known else (False,)
