"""Proof of work: how much went into an id, and whether it is enough. NIP-13."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Prefix
from relay.verdict import Reject

if TYPE_CHECKING:
    from relay.nostr.event import Event


def leading_zero_bits(event_id: str) -> int:
    """N13-01, of 64 hex."""
    return 256 - int(event_id, 16).bit_length()


def difficulty_of(event: Event) -> int:
    """Zero bits that count: no more than the author set out to find (N13-03)."""
    found = leading_zero_bits(event.id)
    for tag in event.tags:
        if tag and tag[0] == "nonce":
            if len(tag) < 3:
                return found
            target = tag[2]
            # A target that is no number commits to nothing; a long one is above every id.
            if not (target.isascii() and target.isdigit()):
                return 0
            return found if len(target) > 3 else min(found, int(target))
    return found


def too_little_work(event: Event, bits: int, rule: str) -> Reject | None:
    found = difficulty_of(event)
    if found >= bits:
        return None
    return Reject(Prefix.POW, f"difficulty {found} is less than {bits}", rule)
