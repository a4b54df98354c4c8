"""Rows of the events table as values."""

from __future__ import annotations

from relay.lifecycle.rows import Slot, Stored
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindClass, class_of


def stored(row: tuple[int, bytes, str | None, int, int | None, int, int | None]) -> Stored:
    seq, raw, group, quiet, slot, version, expires_at = row
    event = event_from_raw(raw)
    place = None
    if slot is not None:
        d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
        place = Slot(event.pubkey, event.kind, d)
    return Stored(seq, event, group, bool(quiet), place, version, expires_at)
