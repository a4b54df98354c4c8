"""Slots: which connections stay when more come than there is room for.

A fifth of all places, and of those of each address, is kept for connections that log in. Who comes
when only that part is left is on trial: it is closed when it has not logged in after `TRIAL_S`, or
before, when others on trial need its place.

Invariants: pure. A connection with a login is never displaced, and connections without one never
keep somebody out who logs in.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

TRIAL_S: Final = 10.0
_KEPT: Final = 5
"""One place in so many is kept for those who log in."""
_MAX_LEAVING: Final = 64
"""Connections that are being closed to make room: they stay beyond the limit meanwhile."""


class Occupant(Protocol):
    @property
    def authenticated(self) -> Set[str]: ...


C = TypeVar("C", bound=Occupant)


class Full(Enum):
    """Nobody without a login is left to make room."""

    RELAY = auto()
    ADDRESS = auto()


class Slots(Generic[C]):
    def __init__(self, most: int, per_address: int) -> None:
        """0: no limit."""
        self._most = most
        self._per_address = per_address
        self._origins: dict[C, str] = {}
        """Address of each connection; the oldest first."""
        self._unlimited: set[C] = set()
        """For which `per_address` does not count."""
        self._on_trial: set[C] = set()
        self._leaving: set[C] = set()
        self._here: Counter[str] = Counter()
        """Of each address, without those that leave."""

    def __len__(self) -> int:
        """Those that leave included."""
        return len(self._origins)

    def make_room(self, address: str, *, is_limited: bool) -> C | Full | None:
        """The connection to be closed for one more of this address; None: there is room."""
        if is_limited and 0 < self._per_address <= self._here[address]:
            here = [each for each, origin in self._origins.items() if origin == address]
            return self._displaced(here, self._per_address) or Full.ADDRESS
        if 0 < self._most <= self._here.total():
            displaced = self._of_a_crowd(address) or self._displaced(
                list(self._origins), self._most
            )
            return displaced or Full.RELAY
        return None

    def _displaced(self, among: Sequence[C], most: int) -> C | None:
        """The oldest that is on trial; the newest other when fewer are than places are kept."""
        silent = [each for each in among if self._may_be_displaced(each)]
        on_trial = [each for each in silent if each in self._on_trial]
        settled = [each for each in silent if each not in self._on_trial]
        kept = most // _KEPT
        if not kept or len(self._leaving) >= _MAX_LEAVING:
            return None
        if settled and len(on_trial) < kept:
            return self._leave(settled[-1])
        return self._leave(on_trial[0] if on_trial else None)

    def _of_a_crowd(self, address: str) -> C | None:
        """The oldest without a login of the address that has most, if that has more than this one
        will: nobody alone keeps all others out."""
        if len(self._leaving) >= _MAX_LEAVING:
            return None
        least = self._here[address] + 1
        silent = [each for each in self._origins if self._may_be_displaced(each)]
        crowds = {self._origins[each] for each in silent}
        crowded = max(crowds, key=lambda origin: self._here[origin], default=address)
        if self._here[crowded] <= least:
            return None
        return self._leave(next(each for each in silent if self._origins[each] == crowded))

    def _may_be_displaced(self, connection: C) -> bool:
        return not connection.authenticated and connection not in self._leaving

    def _leave(self, connection: C | None) -> C | None:
        if connection is not None:
            self._leaving.add(connection)
            self._here[self._origins[connection]] -= 1
        return connection

    def add(self, connection: C, address: str, *, is_limited: bool) -> bool:
        """Whether it is on trial: `end_trial` is due after `TRIAL_S`."""
        is_on_trial = not self._is_free(address, is_limited=is_limited)
        self._origins[connection] = address
        self._here[address] += 1
        if not is_limited:
            self._unlimited.add(connection)
        if is_on_trial:
            self._on_trial.add(connection)
        return is_on_trial

    def _is_free(self, address: str, *, is_limited: bool) -> bool:
        """Whether a place is free that is not kept for logins."""
        if is_limited and self._per_address:
            here = self._here[address] - self._count_trials(address)
            if here >= self._per_address - self._per_address // _KEPT:
                return False
        here = self._here.total() - self._count_trials(None)
        return not self._most or here < self._most - self._most // _KEPT

    def _count_trials(self, address: str | None) -> int:
        """On trial and without a login, of an address or of all."""
        return sum(
            address in (None, self._origins[each]) and self._may_be_displaced(each)
            for each in self._on_trial
        )

    def end_trial(self, connection: C) -> bool:
        """False: it must be closed now."""
        if connection not in self._on_trial or connection in self._leaving:
            return True  # gone, or about to go
        self._on_trial.discard(connection)
        is_limited = connection not in self._unlimited
        address = self._origins[connection]
        self._here[address] -= 1
        may_stay = bool(connection.authenticated) or self._is_free(address, is_limited=is_limited)
        self._here[address] += 1
        if not may_stay:
            self._leave(connection)
        return may_stay

    def remove(self, connection: C) -> None:
        """It is closed."""
        address = self._origins.pop(connection)
        if connection not in self._leaving:
            self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]
        for kept in (self._unlimited, self._on_trial, self._leaving):
            kept.discard(connection)
