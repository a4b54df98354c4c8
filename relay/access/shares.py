"""Shares: memory, or places, that the clients of all addresses share.

Invariants: pure. A quarter is for clients with a known key; the others of one address have a
quarter together, also when they have closed their connections. Those with known keys of one address
have half, and nothing of the last quarter from three eighths on: two addresses of one member leave
memory for others. Where `ordinary` is given, addresses that have little may have that much beyond
these shares; where owners are told apart, they may have a quarter more than all others.
"""

from __future__ import annotations

from typing import Protocol


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


class Shares:
    def __init__(self) -> None:
        self.used = 0
        """Of all together."""
        self._of: dict[str | None, int] = {}
        """Of each address that has any."""

    def has_room_for(self, client: Sharer, most: int, ordinary: int = 0) -> bool:
        """Whether it may have more. `most`: bytes of all together. `ordinary`: bytes that clients
        of one address may have also when others have all, up to twice `most`: else a few addresses
        would keep out all others."""
        used = self.used
        if used < most // 4:
            return True
        is_known, address = client.is_known, client.counted_as
        if ordinary and not is_known and self._of.get(address, 0) <= ordinary:
            return used < 2 * most
        return self._room(address, most, is_known=is_known) > 0

    def room_for(self, rights: Rights, address: str | None, most: int, ordinary: int = 0) -> int:
        """How much more a client with these rights may have; 0 or less: nothing. `address`: see
        `Sharer.counted_as`. `most`: of all together, except owners. `ordinary`: as in
        `has_room_for`; for unknown keys up to one and a half times `most`."""
        beyond = most * (2 if rights.is_known else 1.5) if ordinary else most
        if rights.is_owner:
            return int(beyond) + most // 4 - self.used
        room = self._room(address, most, is_known=rights.is_known)
        own = self._of.get(address, 0)
        return max(room, min(ordinary - own, int(beyond) - self.used))

    def _room(self, address: str | None, most: int, *, is_known: bool) -> int:
        left, quarter = most - self.used, most // 4
        own = self._of.get(address, 0)
        if not is_known:
            return min(quarter - own, left - quarter)
        if address is None:
            return left
        return max(min(most // 2 - own, left - quarter), min(most * 3 // 8 - own, left))

    def add(self, address: str | None, size: int) -> None:
        """`size`: bytes, negative when they are gone."""
        self.used += size
        left = self._of.pop(address, 0) + size
        if left:
            self._of[address] = left
