"""Slots: which connections stay when more come than there is room for.

A fifth of all places, and of those of each address, is reserved for keys that are known here. A
connection that takes a reserved place is on trial: it is closed when no known key has logged in
after `TRIAL_S`, or earlier, when another connection on trial needs its place.

Connections with a known key stay, unless they have more than four fifths of all places: then one of
the network that has most connections makes room for a client of another network. That client has
`TRIAL_S` to log in, too, and clients of networks that have more do not displace it meanwhile. If it
has not logged in by then, it stays while clients without a known key have up to a fifth of all
places; if no place is free, another connection of the network with most is closed. Owners always
stay.

Invariants: pure; the work of a call does not grow with the number of connections. Connections with
new keys or none cannot keep out one with a known key, whether they stay or are being closed, and
those with known keys of one network cannot keep out others. A client ends the trials of its own
network before those of others, unless another network has more.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from relay.access.shares import ByNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

TRIAL_S: Final = 10.0
_KEPT: Final = 5
"""One place in this many is reserved for known keys."""
_PARTS: Final = 20
"""A network with so large a part of the reserved places on trial ends its own trials, while over a
fifth of all have no known key: sixteen networks leave those of others that have settled …"""
_FEW: Final = 8
"""… but not with fewer than so many."""
_MAX_LEAVING: Final = 64
"""Connections that may still read why they are closed to make room; with more, those that have been
leaving for longest are cut off. They do not count for the limits."""


class Occupant(Protocol):
    @property
    def is_known(self) -> bool:
        """Whether one of its keys is known here now."""

    @property
    def is_owner(self) -> bool:
        """Whether one of them is an owner's."""


C = TypeVar("C", bound=Occupant)


class Full(Enum):
    """No connection can be closed to make room."""

    RELAY = auto()
    ADDRESS = auto()


class Slots(Generic[C]):
    def __init__(self, most: int, per_address: int) -> None:
        """`most`: of all connections; 0: no limit. `per_address`: of one address, likewise."""
        self._most = most
        self._per_address = per_address
        self._origins: dict[C, str] = {}
        """Address of each connection."""
        self._unlimited: set[C] = set()
        """Connections that `per_address` does not apply to."""
        self._leaving: dict[C, None] = {}
        """In the order in which they were displaced."""
        self._here: Counter[str] = Counter()
        """Number of connections by address, without `_leaving`; `_number` is their sum."""
        self._number = 0
        self._settled: ByNetwork[C] = ByNetwork()
        self._on_trial: ByNetwork[C] = ByNetwork()
        """`_settled` and `_on_trial` leave out connections in `_leaving` and those seen with a
        known key."""
        self._unknown: ByNetwork[C] = ByNetwork()
        """The connections of `_settled` and `_on_trial`."""
        self._known: set[C] = set()
        """Connections seen with a known key that is no owner's."""
        self._owners: set[C] = set()
        """Connections seen with an owner's key."""
        self._others: ByNetwork[C] = ByNetwork()
        """The connections of `_unknown` and `_known`."""

    def __len__(self) -> int:
        """Including those in `_leaving`."""
        return len(self._origins)

    def make_room(self, address: str, *, is_limited: bool) -> C | Full | None:
        """The connection to close so that one more of this address fits; None: there is room."""
        if is_limited and 0 < self._per_address <= self._here[address]:
            kept = self._per_address // _KEPT
            if not kept:
                return Full.ADDRESS
            settled, on_trial = self._settled.of(address), self._on_trial.of(address)
            found = self._displaced(
                partial(_newest, settled),
                partial(_oldest, on_trial),
                lambda: len(on_trial) < kept,
            )
            return found or Full.ADDRESS
        if 0 < self._most <= self._number:
            kept, least = self._most // _KEPT, 0
            of_network = kept
            if len(self._unknown.all) >= kept:
                found = self._of_largest(address)
                of_network = max(kept // _PARTS, _FEW)
            else:
                # Those with known keys have places that are for who may log in yet: clients of
                # networks that have more do not displace others, nor end their trials.
                found = self._of_all(address)
                least = self._others.in_network(address)
            trials = self._on_trial
            if found is None and kept:
                found = self._displaced(
                    partial(self._settled_for, least),
                    partial(self._trial_for, address, least),
                    lambda: len(trials.all) < kept and trials.in_network(address) < of_network,
                )
            return found or Full.RELAY
        return None

    def _of_all(self, address: str) -> C | None:
        """Displace a connection of the network with most, as `ByNetwork.of_largest`."""
        while found := self._others.of_largest(address):
            if not found.is_owner:
                return self._leave(found)
            self.logged_in(found)
        return None

    def _displaced(
        self,
        settled: Callable[[], C | None],
        trial: Callable[[], C | None],
        are_few: Callable[[], bool],
    ) -> C | None:
        """Displace a `settled` connection; if there is none, or not only `are_few` on trial, the
        one whose `trial` ends."""
        while True:
            found = (settled() if are_few() else None) or trial()
            if found is None or not self.logged_in(found):
                return None if found is None else self._leave(found)

    def _settled_for(self, least: int) -> C | None:
        """The newest settled one, but one of the network with most if that has more. None: its
        network has less than `least` connections."""
        newest = _newest(self._settled.all)
        if newest is None:
            return None
        found = self._settled.of_largest(self._origins[newest]) or newest
        return None if self._of_network_of(found) < least else found

    def _trial_for(self, address: str, least: int) -> C | None:
        """Whose trial ends for a client of this address: one of the network with most on trial,
        else of its own network, else the oldest. None: its network has less than `least`
        connections."""
        trials = self._on_trial
        found = trials.of_largest(address) or trials.oldest_in_network(address)
        found = found or _oldest(trials.all)
        if found is None or self._of_network_of(found) < least:
            return None
        return found

    def _of_network_of(self, connection: C) -> int:
        """Connections of its network that are not an owner's."""
        return self._others.in_network(self._origins[connection])

    def _of_largest(self, address: str) -> C | None:
        """Displace a connection of the network with most unknown ones, if these are more than the
        network of this address would then have: so no network can keep all others out."""
        while found := self._unknown.of_largest(address):
            if not self.logged_in(found):
                return self._leave(found)
        return None

    def logged_in(self, connection: C) -> bool:
        """Call after a login, and when a key may have become known, or unknown. True: one is
        known, so the connection keeps its place."""
        address, is_known = self._origins.get(connection), connection.is_known
        if address is None or connection in self._leaving:
            return is_known
        if connection.is_owner:
            self._forget(connection)
            self._owners.add(connection)
        elif is_known:
            self._owners.discard(connection)
            self._forget_unknown(connection, address)
            self._known.add(connection)
            self._others.add(connection, address)
        elif connection in self._owners or connection in self._known:
            self._forget(connection)
            self._settled.add(connection, address)
            self._unknown.add(connection, address)
            self._others.add(connection, address)
        return is_known

    def _forget(self, connection: C) -> None:
        """Count it no more as an owner's, a known or an unknown one."""
        address = self._origins.get(connection, "")
        self._owners.discard(connection)
        self._known.discard(connection)
        self._others.discard(connection, address)
        self._forget_unknown(connection, address)

    def _forget_unknown(self, connection: C, address: str) -> None:
        if self._unknown.discard(connection, address):
            self._settled.discard(connection, address)
            self._on_trial.discard(connection, address)

    def _leave(self, connection: C) -> C:
        self._forget(connection)
        self._leaving[connection] = None
        self._count(self._origins[connection], -1)
        return connection

    def cut_off(self) -> C | None:
        """Call after each connection that is displaced. The one whose socket must be closed now,
        because too many are leaving; it is removed."""
        if len(self._leaving) <= _MAX_LEAVING:
            return None
        longest = next(iter(self._leaving))
        self.remove(longest)
        return longest

    def _count(self, address: str, change: int) -> None:
        self._number += change
        self._here[address] += change
        if not self._here[address]:
            del self._here[address]

    def add(self, connection: C, address: str, *, is_limited: bool) -> bool:
        """Give it a place; whether it is on trial: `end_trial` is due after `TRIAL_S`."""
        is_on_trial = not self._is_free(address, is_limited=is_limited)
        self._origins[connection] = address
        self._count(address, 1)
        if not is_limited:
            self._unlimited.add(connection)
        (self._on_trial if is_on_trial else self._settled).add(connection, address)
        self._unknown.add(connection, address)
        self._others.add(connection, address)
        return is_on_trial

    def _is_free(self, address: str, *, is_limited: bool) -> bool:
        """Whether a place is free that is not reserved for known keys."""
        number = self._number - len(self._on_trial.all)
        is_full = 0 < self._most <= number + self._most // _KEPT
        return not is_full and self._is_free_of(address, is_limited=is_limited)

    def _is_free_of(self, address: str, *, is_limited: bool) -> bool:
        """Whether the address has a free place that is not reserved for known keys."""
        number = self._here[address] - len(self._on_trial.of(address))
        most = self._per_address
        return not is_limited or not most or number < most - most // _KEPT

    def end_trial(self, connection: C) -> C | None:
        """The connection that is displaced, and must be closed: this one, or another in whose place
        it stays."""
        address = self._origins.get(connection, "")
        if connection not in self._on_trial.of(address) or self.logged_in(connection):
            return None
        displaced, is_limited = None, connection not in self._unlimited
        if not self._is_free(address, is_limited=is_limited):
            stays = False
            if self._is_free_of(address, is_limited=is_limited):
                are_few = len(self._unknown.all) <= self._most // _KEPT
                stays = are_few and self._number < self._most
                if not stays:
                    displaced = self._of_largest(address)
                if not stays and displaced is None and are_few:
                    displaced = self._of_all(address)
            if displaced is None and not stays:
                return self._leave(connection)
        self._on_trial.discard(connection, address)
        self._settled.add(connection, address)
        return displaced

    def remove(self, connection: C) -> None:
        """The connection is closed; it may have been cut off before."""
        self._forget(connection)
        address = self._origins.pop(connection, None)
        if address is not None and connection not in self._leaving:
            self._count(address, -1)
        self._unlimited.discard(connection)
        self._leaving.pop(connection, None)


def _newest(connections: dict[C, Any]) -> C | None:
    return next(reversed(connections), None)


def _oldest(connections: dict[C, Any]) -> C | None:
    return next(iter(connections), None)
