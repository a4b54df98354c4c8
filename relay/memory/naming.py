"""What a record names: stored records that must be known before it can be said whether it may come.

Records are named by kind and `d`, whoever wrote them, or by the id of their event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.memory.fields import object_in
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.verdict import RecordFacts

if TYPE_CHECKING:
    from relay.nostr.event import Event

PIN: Final = "nmem:pin:"
ENTRY: Final = "anamnesis:memory:"
SUPERSEDED: Final = "anamnesis:superseded:"
PATCH: Final = "anamnesis:meta:"

MOST_STEPS: Final = 1000
"""So far chains of records that name each other are looked up; it holds the lane for 0.2 s."""


class Named(NamedTuple):
    """Records of one kind and `d`, whoever wrote them."""

    kind: int
    d: str


_NOTHING: Final[frozenset[Named]] = frozenset()


def named_by(event: Event) -> frozenset[Named]:
    """Entries and supersessions that a record is about (X-07, X-16).

    Asked of a stored supersession in turn it leads along the chain.
    """
    if event.kind != kinds.APP_DATA:
        return _NOTHING
    if event.d.startswith(SUPERSEDED):
        hashes = {event.d.removeprefix(SUPERSEDED), replacement_in(event) or ""}
    elif event.d.startswith(PATCH):
        hashes = {event.d.removeprefix(PATCH)}
    else:
        return _NOTHING
    return frozenset(
        name
        for hashed in hashes
        if is_hex64(hashed)
        for name in (entries_of(hashed), supersessions_of(hashed))
    )


def pinned_by(event: Event) -> str | None:
    """Id of the event that an nmem pin is about; None: it is no pin, or of nothing."""
    if event.kind != kinds.APP_DATA or not event.d.startswith(PIN):
        return None
    target = event.d.removeprefix(PIN)
    return target if is_hex64(target) else None


def entries_of(hashed: str) -> Named:
    return Named(kinds.APP_RECORD, ENTRY + hashed)


def supersessions_of(hashed: str) -> Named:
    return Named(kinds.APP_DATA, SUPERSEDED + hashed)


def replacement_in(event: Event) -> str | None:
    """The hash of the newer memory that a supersession names."""
    fields = object_in(event.content)
    new = None if fields is None else fields.get("superseded_by")
    return new if isinstance(new, str) and is_hex64(new) else None


def record_facts(event: Event) -> RecordFacts:
    superseded_by = replacement_in(event) if event.d.startswith(SUPERSEDED) else None
    return RecordFacts(event.d, event.pubkey, event.created_at, event.id, superseded_by)
