"""NIP-29: which group a 9007 makes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from relay.nostr.event import Event


def uuid_from(event_id: str) -> str:
    """The id of the group that a 9007 without `h` makes: the same in every replay."""
    return str(UUID(hex=event_id[:32], version=4))


def made_by(creation: Event) -> str:
    """The id of the group that a valid 9007 makes."""
    return creation.tag("h") or uuid_from(creation.id)
