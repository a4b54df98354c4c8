"""Rows of the events table as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.lifecycle.rows import Slot, Stored
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindClass, class_of

if TYPE_CHECKING:
    from relay.nostr.event import Event

DAMAGED: Final = "the file is damaged: restore a backup"


def event_in(raw: bytes) -> Event:
    """The event of a row. Raises StoreFault when the bytes are none."""
    try:
        return event_from_raw(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreFault(f"store: {repr(raw)[:80]}… is no event; {DAMAGED}") from error


def stored(row: tuple[int, bytes, str | None, int, int | None, int, int | None]) -> Stored:
    seq, raw, group, quiet, slot, version, expires_at = row
    event = event_in(raw)
    place = None
    if slot is not None:
        d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
        place = Slot(event.pubkey, event.kind, d)
    return Stored(seq, event, group, bool(quiet), place, version, expires_at)
