"""Which records refer to which: entries, supersessions and metadata patches of one hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.registry import NO_REFERENCES, RecordName, References
from relay.nostr import kinds
from relay.nostr.event import is_hex64, object_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event

ENTRY: Final = "anamnesis:memory:"
VOUCH: Final = "anamnesis:vouch:"
SUPERSEDED: Final = "anamnesis:superseded:"
PATCH: Final = "anamnesis:meta:"
MAX_SUPERSESSION: Final = 4_096
"""Characters of its content: parsed before any rule is asked, 400,000 took 30 ms of the loop."""


def entry_references(event: Event) -> References:
    """Entries with the same content, by other authors (X-05)."""
    hashed = event.d.removeprefix(ENTRY)
    return References(names=frozenset({entries_of(hashed)})) if is_hex64(hashed) else NO_REFERENCES


def supersession_references(event: Event) -> References:
    """Entries and supersessions of the old and the new memory (X-07, X-16): followed, they lead
    along the chain."""
    return _references([event.d.removeprefix(SUPERSEDED), replacement_in(event)])


def patch_references(event: Event) -> References:
    return _references([event.d.removeprefix(PATCH)])


def _references(hashes: Iterable[str | None]) -> References:
    names = frozenset(
        name
        for hashed in hashes
        if hashed is not None and is_hex64(hashed)
        for name in (entries_of(hashed), supersessions_of(hashed))
    )
    return References(names=names) if names else NO_REFERENCES


def entries_of(hashed: str) -> RecordName:
    return RecordName(kinds.APP_RECORD, ENTRY + hashed)


def supersessions_of(hashed: str) -> RecordName:
    return RecordName(kinds.APP_DATA, SUPERSEDED + hashed)


def replacement_in(event: Event) -> str | None:
    """The hash of the new memory that a supersession names; None in one that is too long."""
    fields = None if len(event.content) > MAX_SUPERSESSION else object_in(event.content)
    new = None if fields is None else fields.get("superseded_by")
    return new if isinstance(new, str) and is_hex64(new) else None
