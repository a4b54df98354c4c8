"""The order of notes (D-25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.fields import whole_number

if TYPE_CHECKING:
    from relay.nostr.event import Event

NO_SEQ: Final = 4_294_967_295


def order_of(event: Event) -> tuple[int, int, str]:
    """Sort key of notes: (milliseconds, seq, id)."""
    ms, seq = whole_number(event.tag("ms")), whole_number(event.tag("seq"))
    return (
        event.created_at * 1000 if ms is None else ms,
        NO_SEQ if seq is None else seq,
        event.id,
    )
