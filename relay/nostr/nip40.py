"""NIP-40: when an event expires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Invalid

if TYPE_CHECKING:
    from relay.nostr.event import Event


def expiry_of(event: Event) -> int | None:
    """Unix seconds of the first `expiration` tag. Raises Invalid if it is no number (N40-06)."""
    value = event.tag("expiration")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise Invalid("bad expiration")
    return int(value)


def check_expiry(event: Event, now: int) -> None:
    """Raise Invalid for an `expiration` that is still to come and not after `created_at`: when it
    expires, its row would stand in front of those of now. What has expired is for others to tell.
    """
    if event.created_at > now:
        expires_at = expiry_of(event)
        if expires_at is not None and now < expires_at <= event.created_at:
            raise Invalid("expiration: must be after created_at")
