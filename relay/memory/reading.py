"""What reading a record gives when it cannot be read: reported, and in nobody else's way (A-22)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.nostr.event import Event


@dataclass(frozen=True, slots=True)
class Unread:
    """One event that a codec could not read."""

    event: Event
    why: str
    """One line, without a word of the content."""
    is_locked: bool = False
    """Encrypted, and no key at hand opens it."""


def next_time(now: int, last: int | None) -> int:
    """`created_at` of the next version of a record, in seconds: always newer (A-10, S-24)."""
    return now if last is None else max(now, last + 1)
