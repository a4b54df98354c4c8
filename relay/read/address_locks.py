"""Locks of client addresses: of each address one read waits for its turn, whatever it opens."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class AddressLocks:
    """In front of a queue in order of arrival: who waits there waits for as many reads as there are
    addresses, and not for as many as there are connections."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, address: str | None) -> asyncio.Lock:
        """None: a lock that nobody else has."""
        own = asyncio.Lock()
        return own if address is None else self._locks.setdefault(address, own)
