"""NIP-13: proof of work, computed from the id alone, before the signature check (N13-05)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.nostr.event import Event

MAX_DIFFICULTY: Final = 256


def difficulty(event_id: str) -> int:
    """Leading zero bits of an id of 64 hex (N13-01)."""
    return MAX_DIFFICULTY - int(event_id, 16).bit_length()


def committed_target(event: Event) -> int | None:
    """The target difficulty of the tag `nonce`, at most 256; None without one.

    0 for a target that is not a decimal number (N13-02, N13-04).
    """
    nonce = next((tag for tag in event.tags if tag and tag[0] == "nonce"), ())
    if len(nonce) < 3:
        return None
    target = nonce[2]
    if not (target.isascii() and target.isdigit()):
        return 0
    # Four digits are enough: more than 256 is clipped anyway.
    return min(int(target.lstrip("0")[:4] or "0"), MAX_DIFFICULTY)
