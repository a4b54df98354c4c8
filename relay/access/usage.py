"""Usage: how many rows and bytes are stored, by author, kind and group.

The store keeps the numbers in the transaction that changes its rows; here they are counted on while
a batch is decided, so that an event is judged by what the events before it in the batch left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from relay.nostr.kinds import KindSet


class Size(NamedTuple):
    """So many rows, and bytes of them as they are sent."""

    events: int = 0
    bytes: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.events + other.events, self.bytes + other.bytes)

    def minus(self, other: Size) -> Size:
        return Size(self.events - other.events, self.bytes - other.bytes)


class Account(NamedTuple):
    """Rows that are summed up: those of an author, or of groups, or both; of some kinds."""

    pubkey: str | None
    """None: of anybody."""
    kinds: KindSet | None = None
    h: bool | frozenset[str] | None = None
    """As in a match: rows of any group, of none, of these."""

    def has(self, pubkey: str, kind: int, group: str | None) -> bool:
        """Whether a row of this author, kind and group counts here."""
        if self.pubkey is not None and pubkey != self.pubkey:
            return False
        if self.kinds is not None and kind not in self.kinds:
            return False
        if isinstance(self.h, bool):
            return (group is not None) is self.h
        return self.h is None or group in self.h


class SizedBy(Enum):
    """What a table of sizes has a line for."""

    KIND = "kind"
    AUTHOR = "author"
    GROUP = "group"
    """Rows of no group have a line too, under None."""


class Sized(NamedTuple):
    """A line of such a table."""

    of: int | str | None
    size: Size


@dataclass(slots=True)
class UsageCounter:
    """Accounts as the events before in the batch leave them."""

    _sizes: dict[Account, Size] = field(default_factory=dict)
    _by_author: dict[str | None, list[Account]] = field(default_factory=dict)

    def open(self, account: Account, size: Size) -> None:
        """Note what the store holds of an account."""
        if account not in self._sizes:
            self._by_author.setdefault(account.pubkey, []).append(account)
        self._sizes[account] = size

    def size_of(self, account: Account) -> Size:
        """Raises KeyError for an account that was not wanted."""
        return self._sizes[account]

    def add(self, pubkey: str, kind: int, group: str | None, size: int) -> None:
        """A row of so many bytes came."""
        for account in self._with(pubkey, kind, group):
            self._sizes[account] = self._sizes[account].plus(Size(1, size))

    def remove(self, pubkey: str, kind: int, group: str | None, size: int) -> None:
        """A row of so many bytes went."""
        for account in self._with(pubkey, kind, group):
            self._sizes[account] = self._sizes[account].minus(Size(1, size))

    def _with(self, pubkey: str, kind: int, group: str | None) -> list[Account]:
        if not self._sizes:
            return []
        return [
            account
            for owner in (pubkey, None)
            for account in self._by_author.get(owner, ())
            if account.has(pubkey, kind, group)
        ]
