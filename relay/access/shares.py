"""Shares: memory, places, or work of the event loop, that the clients of all addresses share.

Invariants: pure. The last quarter of all is for clients with a known key. The clients without one
of one address have at most a quarter together, also while closed connections of theirs hold some of
it. The clients with known keys of one address have at most half together, and nothing of the last
quarter once they have three eighths: two addresses of one member leave memory for others. Where
`ordinary` is given, addresses that have little may have that much beyond these shares; where owners
are told apart, they may have a quarter more than all others. `HeldSets` tells what to close for
clients who have clearly less, `ByNetwork` of which address or network. In a `RoundRobin` networks
take turns, and their addresses.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from functools import lru_cache
from heapq import heapify, heappop, heappush
from ipaddress import ip_network
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Choice = Callable[[Iterable[str]], str]

Held = TypeVar("Held")
Queued = TypeVar("Queued")

_FEW_ADDRESSES: Final = 8
"""One network has at most what is `ordinary` for so many addresses …"""
_LEAST_PARTS: Final = 16
_MOST_PARTS: Final = 32
"""… or, if that would fit into `most` at least 16 times, 1/16 to 1/32 of what is left: known keys
in sixteen networks leave some to unknown ones."""
_NOTHING: Final[Mapping[str | None, int]] = MappingProxyType({})


class Sharer(Protocol):
    @property
    def counted_as(self) -> str | None:
        """The address whose clients share limits; None: unknown."""

    @property
    def is_known(self) -> bool:
        """Whether one of its keys is known."""


class Standing(Enum):
    """Of the keys of a client. Those of each standing share among themselves."""

    UNKNOWN = auto()
    """Anybody may make such keys."""
    KNOWN = auto()
    """Of a member, say: where everybody may make groups, anybody can have such keys, too."""
    ADMITTED = auto()
    """By an owner: see `admitted_among`."""


class Rights(Protocol):
    @property
    def is_known(self) -> bool: ...
    @property
    def is_owner(self) -> bool: ...


class Work(Protocol):
    """What pieces of work on the event loop are counted for, which takes turns with others.
    Satisfied by `relay.server.turns.Slice`."""

    def begin(self) -> object:
        """A piece of work begins."""

    def end(self) -> bool:
        """It ended; whether `rest` is due."""

    async def rest(self) -> None:
        """Wait for a turn."""


@lru_cache(16_384)
def network_of(address: str) -> str:
    """The /48 (IPv6) or /24 of an address: what one client can have. Else the text itself."""
    try:
        network = ip_network(address)
    except ValueError:
        return address
    return str(network.supernet(new_prefix=48 if network.version == 6 else 24))


def network_of_client(client: object) -> object:
    """The network of a client's address; the client itself if it has none."""
    return network_of(client) if isinstance(client, str) else client


class Shares:
    def __init__(self) -> None:
        self.used = 0
        """What all have together."""
        self._of: dict[object, dict[str | None, int]] = {}
        """Network → address → what its clients have."""
        self._of_network: Counter[object] = Counter()
        """Network → what its addresses have together."""

    def of(self, address: str | None) -> int:
        """What the clients of one address have."""
        return self._of.get(network_of_client(address), _NOTHING).get(address, 0)

    def of_network(self, address: str | None) -> int:
        """What the clients of its network have; 0 without an address."""
        return 0 if address is None else self._of_network[network_of(address)]

    def has_room_for(self, client: Sharer, most: int) -> bool:
        """Whether the client may have more. `most`: bytes of all together."""
        if self.used < most // 4:
            return True
        return self._room(client.counted_as, most, is_known=client.is_known) > 0

    def room_for(self, rights: Rights, address: str | None, most: int, ordinary: int = 0) -> int:
        """How much more a client with these rights may have; 0 or less: nothing. `address`: see
        `Sharer.counted_as`. `most`: of all together, except owners. `ordinary`: what clients of one
        address may have even if others have all of `most`, until all have twice `most` (unknown
        keys: one and a half times): else a few addresses would keep out all others. The addresses
        of one network have only a part of that together: there may be thousands. The caller must
        refuse more than the result: else an address that has nothing would get much more than what
        is ordinary."""
        beyond = most * (2 if rights.is_known else 1.5) if ordinary else most
        if rights.is_owner:
            return int(beyond) + most // 4 - self.used
        room = self._room(address, most, is_known=rights.is_known)
        left = min(ordinary - self.of(address), int(beyond) - self.used)
        if room >= left or not ordinary:
            return max(room, left)
        network = network_of_client(address)
        most_of_network = _FEW_ADDRESSES * ordinary
        if (parts := most // most_of_network) >= _LEAST_PARTS:
            most_of_network = (int(beyond) - self.used) // min(parts, _MOST_PARTS)
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


class _Sums:
    """What each network, or address, holds, and which one most. The work of a call grows with the
    logarithm of their number at most."""

    def __init__(self) -> None:
        self._of: dict[object, tuple[int, int]] = {}
        """What each holds, negative, and its number, in order of arrival."""
        self._holders: dict[int, object] = {}
        """Number → holder."""
        self._heap: list[tuple[int, int]] = []
        """The entries of `_of`, and former ones."""
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, holder: object) -> int:
        return -self._of.get(holder, (0, 0))[0]

    def largest(self) -> object:
        """The holder with most; of several with as much the one that came first. There must be
        one."""
        while True:
            entry = self._heap[0]
            holder = self._holders.get(entry[1])
            if self._of.get(holder) == entry:
                return holder
            heappop(self._heap)

    def larger_than(self, holder: object) -> object | None:
        """The holder with most, if this one would have less even with one more."""
        largest = self.largest()
        return largest if self.of(largest) > self.of(holder) + 1 else None

    def add(self, holder: object, change: int) -> None:
        """`change`: negative when it holds less."""
        negative, number = self._of.get(holder) or (0, next(self._numbers))
        negative -= change
        if negative:
            self._of[holder] = entry = negative, number
            self._holders[number] = holder
            heappush(self._heap, entry)
        else:
            del self._of[holder], self._holders[number]
        if len(self._heap) > 2 * len(self._of):  # no more former ones than others
            self._heap = list(self._of.values())
            heapify(self._heap)


class ByNetwork(Generic[Held]):
    """What clients hold, by network, and by address; who has no address is a network of its own."""

    def __init__(self) -> None:
        self.all: dict[Held, int] = {}
        """With their sizes, in the order in which they were added."""
        self.total = 0
        """The sum of their sizes."""
        self._held: dict[object, dict[Held, None]] = {}
        """Address → what it has, oldest first; `touch` puts one behind the others."""
        self._networks = _Sums()
        self._addresses: dict[object, _Sums] = {}
        """Network → its addresses."""

    def of(self, address: object) -> dict[Held, None]:
        """What one address has, oldest first."""
        return self._held.get(address, {})

    def in_network(self, address: object) -> int:
        """What the network of this address has."""
        return self._networks.of(network_of_client(address))

    def add(self, held: Held, address: object, size: int = 1) -> None:
        """If it was not added before."""
        if held not in self.all:
            self.all[held] = size
            self._held.setdefault(address, {})[held] = None
            self._count(address, size)

    def discard(self, held: Held, address: object) -> bool:
        """Whether it was there."""
        size = self.all.pop(held, None)
        if size is None:
            return False
        its = self._held[address]
        del its[held]
        if not its:
            del self._held[address]
        self._count(address, -size)
        return True

    def touch(self, held: Held, address: object) -> None:
        """It is the newest of its address now."""
        its = self._held[address]
        its[held] = its.pop(held)

    def resize(self, held: Held, address: object, size: int) -> None:
        change = size - self.all[held]
        if change:
            self.all[held] = size
            self._count(address, change)

    def _count(self, address: object, change: int) -> None:
        network = network_of_client(address)
        self.total += change
        self._networks.add(network, change)
        addresses = self._addresses.setdefault(network, _Sums())
        addresses.add(address, change)
        if not addresses:
            del self._addresses[network]

    def oldest(self) -> Held | None:
        """That of the network with most, and in it of the address with most; with as much, of the
        one that came first."""
        return self._oldest_in(self._networks.largest()) if self.all else None

    def of_largest(self, address: object) -> Held | None:
        """The oldest of the network with most, and in it of the address with most, if this network
        would have less with one more; else that of another address of this network, if this address
        would have less."""
        own = network_of_client(address)
        if self.all and self._networks.larger_than(own) is not None:
            return self.oldest()
        most = self._addresses[own].larger_than(address) if own in self._addresses else None
        return None if most is None else next(iter(self._held[most]))

    def oldest_in_network(self, address: object) -> Held | None:
        """That of the address with most, in the network of this one."""
        own = network_of_client(address)
        return self._oldest_in(own) if own in self._addresses else None

    def _oldest_in(self, network: object) -> Held:
        return next(iter(self._held[self._addresses[network].largest()]))


class RoundRobin(Generic[Queued]):
    """A queue in which networks take turns, and in each its addresses."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, dict[Queued, None]]] = {}
        """By network and address, in the order in which these go on."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, address: str, waiting: Queued) -> None:
        addresses = self._waiting.setdefault(network_of(address), {})
        addresses.setdefault(address, {})[waiting] = None

    def discard(self, address: str, waiting: Queued) -> None:
        network = network_of(address)
        addresses = self._waiting.get(network, {})
        queued = addresses.get(address, {})
        if waiting in queued:
            del queued[waiting]
            if not queued:
                del addresses[address]
                if not addresses:
                    del self._waiting[network]

    def pop(self, network_from: Choice | None = None, address_from: Choice | None = None) -> Queued:
        """Take out what goes on; something must be waiting. Choices: between networks, and between
        the addresses of one; None: the one that waits for longest."""
        network = (network_from or _first)(self._waiting)
        addresses = self._waiting.pop(network)
        address = (address_from or _first)(addresses)
        queued = addresses.pop(address)
        waiting = _first(queued)
        del queued[waiting]
        if queued:
            addresses[address] = queued  # behind the others
        if addresses:
            self._waiting[network] = addresses
        return waiting


def _first(waiting: Iterable[Queued]) -> Queued:
    return next(iter(waiting))


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
