"""What the date of an event tells when the clock of its machine was ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.nostr.nip09 import named_by

if TYPE_CHECKING:
    from relay.nostr.event import Event

_MOST_AHEAD_S: Final = 60
"""Each version is a second newer than the one before, so many in a short time are dated ahead."""


def is_ahead(created_at: int, now: int) -> bool:
    """Whether the clock must be wrong by which an event was dated: of what was done before and what
    after it, its date tells nothing."""
    return created_at > now + _MOST_AHEAD_S


def deletes_waiting(deletion: Event, event: Event, now: int) -> bool:
    """Whether a kind 5 is for an event that no relay has yet. By a clock that is ahead it may have
    been signed before that was written: then only if it names the id."""
    if is_ahead(deletion.created_at, now):
        return event.id in deletion.tag_values("e")
    return bool(named_by(deletion, [event]))
