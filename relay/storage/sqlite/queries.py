"""The named statements of `queries.sql`, and rows as the rest of the relay knows them."""

from __future__ import annotations

from importlib import resources
from typing import Final

from relay.lifecycle.rows import Slot, Stored
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindClass, class_of
from relay.storage.sqlite.sql import named_queries


def script(name: str) -> str:
    """The text of a `.sql` file of this package."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


QUERIES: Final = named_queries(script("queries.sql"))


def stored(row: tuple[int, bytes, str | None, int, int | None, int, int | None]) -> Stored:
    seq, raw, group, quiet, slot, version, expires_at = row
    event = event_from_raw(raw)
    place = None
    if slot is not None:
        d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
        place = Slot(event.pubkey, event.kind, d)
    return Stored(seq, event, group, bool(quiet), place, version, expires_at)
