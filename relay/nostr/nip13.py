"""NIP-13: proof of work. The id alone tells it, before any signature is checked (N13-05)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.nostr.event import Event

MAX_DIFFICULTY: Final = 256


def difficulty(event_id: str) -> int:
    """Leading zero bits of an id of 64 hex (N13-01)."""
    return MAX_DIFFICULTY - int(event_id, 16).bit_length()


def committed_target(event: Event) -> int | None:
    """Bits that the author set out to find, at most 256; None when the tag `nonce` names none.

    0 for what is no decimal number: it commits to nothing (N13-02, N13-04).
    """
    nonce = next((tag for tag in event.tags if tag and tag[0] == "nonce"), ())
    if len(nonce) < 3:
        return None
    target = nonce[2]
    if not (target.isascii() and target.isdigit()):
        return 0
    # Of a number of any length four digits tell that no id has as many bits.
    return min(int(target.lstrip("0")[:4] or "0"), MAX_DIFFICULTY)
