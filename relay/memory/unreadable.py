"""UnreadableRecord: the result for a record that cannot be read. Reading never raises (A-22)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.nostr.event import Event


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """An event that a codec could not read."""

    event: Event
    why: str
    """One line, without any of the content."""
    is_locked: bool = False
    """Encrypted, and no available key decrypts it."""


def next_created_at(now: int, last: int | None) -> int:
    """`created_at` of the next version of a record, Unix seconds: always newer (A-10, S-24)."""
    return now if last is None else max(now, last + 1)
