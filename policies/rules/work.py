"""Proof of work (NIP-13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Prefix, Reject
from relay.nostr.nip13 import committed_target, difficulty

if TYPE_CHECKING:
    from relay.nostr.event import Event


def too_little_work(event: Event, bits: int, rule: str) -> Reject | None:
    """The refusal for less than `bits`, or less than the event commits to (N13-03, N13-04)."""
    found = difficulty(event.id)
    target = committed_target(event)
    # Bits beyond the committed target are luck, not work.
    counted = found if target is None else min(found, target)
    if counted < bits:
        return Reject(Prefix.POW, f"difficulty {counted} is less than {bits}", rule)
    if target is not None and found < target:
        text = f"difficulty {found} is less than the {target} that the tag nonce names"
        return Reject(Prefix.POW, text, rule)
    return None
