"""Shares: memory that the clients of all addresses share.

Invariants: pure. A quarter is for clients with a known key; the others of one address have a
quarter together, also when they have closed their connections. Those with known keys of one address
have half, and nothing of the last quarter from three eighths on: two addresses of one member leave
memory for others. Where `ordinary` is given, addresses that have little may have that much beyond
these shares.
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


class Shares:
    def __init__(self) -> None:
        self._used = 0
        self._of: dict[str | None, int] = {}
        """Of each address that has any."""

    def has_room_for(self, client: Sharer, most: int, ordinary: int = 0) -> bool:
        """Whether it may have more. `most`: bytes of all together. `ordinary`: bytes that clients
        of one address may have also when others have all, up to twice `most`: else a few addresses
        would keep out all others."""
        used = self._used
        if used < most // 4:
            return True
        own = self._of.get(client.counted_as, 0)
        if client.is_known:
            if client.counted_as is None:
                return used < most
            return used < most and own < (most // 2 if used < most - most // 4 else most * 3 // 8)
        if ordinary and own <= ordinary:
            return used < 2 * most
        return own < most // 4 and used < most - most // 4

    def add(self, address: str | None, size: int) -> None:
        """`size`: bytes, negative when they are gone."""
        self._used += size
        left = self._of.pop(address, 0) + size
        if left:
            self._of[address] = left
