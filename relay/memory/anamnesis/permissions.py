"""Who may store, supersede or patch a memory beside what is stored (X-05, X-07, X-16).

`records` are those that the author of the event may read: others count as not stored, so that no
refusal reveals them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from relay.errors import Prefix
from relay.memory.anamnesis.references import (
    ENTRY,
    MAX_SUPERSESSION,
    PATCH,
    SUPERSEDED,
    replacement_in,
)
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.facts import RecordFacts
    from relay.memory.registry import Objection, Owns
    from relay.nostr.event import Event

_MAY_NOT_SUPERSEDE: Final = (
    Prefix.RESTRICTED,
    "only the author or the owner may supersede a memory",
)
_MAY_NOT_PATCH: Final = Prefix.RESTRICTED, "only the author or the owner may change metadata"
_SOMEBODY_ELSES: Final = (
    Prefix.RESTRICTED,
    "this memory is somebody else's, vouch for it",
)
_TOO_LONG: Final = (
    Prefix.INVALID,
    f"content of a supersession is over {MAX_SUPERSESSION:,} characters",
)
_SELF: Final = Prefix.INVALID, "a memory cannot supersede itself"
_CYCLE: Final = Prefix.INVALID, "supersession cycle"


class _Dated(Protocol):
    """An event, or `RecordFacts` of one."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> int: ...


_Entry = TypeVar("_Entry", bound=_Dated)


def original_of(entries: Iterable[_Entry]) -> _Entry | None:
    """The entry of the original author: the earliest, then the lowest id."""
    return min(entries, key=lambda entry: (entry.created_at, entry.id), default=None)


def entry_objection(event: Event, records: Sequence[RecordFacts], _owns: Owns) -> Objection | None:
    """The refusal of an entry that would replace another author's as the original: a copy with an
    earlier date, or in the same second with a lower id."""
    original = original_of(record for record in records if record.d == event.d)
    if original is None or original.pubkey == event.pubkey:
        return None
    is_before = (event.created_at, event.id) < (original.created_at, original.id)
    return _SOMEBODY_ELSES if is_before else None


def supersession_objection(
    event: Event, records: Sequence[RecordFacts], owns: Owns
) -> Objection | None:
    """The refusal of a supersession, checked in this order: it is too long, names itself, names
    an unknown memory, is not allowed, makes a cycle. Malformed events are left to the check."""
    old, new = event.d.removeprefix(SUPERSEDED), replacement_in(event)
    if not is_hex64(old) or event.tag("x") != old:
        return None
    if len(event.content) > MAX_SUPERSESSION:  # what it names was not looked up
        return _TOO_LONG
    if old == new:
        return _SELF
    for hashed in [old] if new is None else [old, new]:
        if not _entries(records, hashed):
            return Prefix.INVALID, f"unknown memory {hashed[:12]}"
    if not _may_change(event.pubkey, _entries(records, old), owns):
        return _MAY_NOT_SUPERSEDE
    return _CYCLE if new is not None and _leads_to(old, new, records) else None


def patch_objection(event: Event, records: Sequence[RecordFacts], owns: Owns) -> Objection | None:
    """The refusal of a patch. A memory that is not stored has no author: only an owner over any key
    may patch it."""
    hashed = event.d.removeprefix(PATCH)
    if not is_hex64(hashed) or event.tag("x") != hashed:
        return None
    return None if _may_change(event.pubkey, _entries(records, hashed), owns) else _MAY_NOT_PATCH


def _may_change(pubkey: str, entries: Iterable[RecordFacts], owns: Owns) -> bool:
    original = original_of(entries)
    author = None if original is None else original.pubkey
    return author == pubkey or owns(author)


def _entries(records: Iterable[RecordFacts], hashed: str) -> list[RecordFacts]:
    d = ENTRY + hashed
    return [record for record in records if record.d == d]


def _leads_to(old: str, new: str, records: Sequence[RecordFacts]) -> bool:
    """Whether stored supersessions, by any author, lead from `new` back to `old`."""
    replacements: dict[str, set[str]] = {}
    for record in records:
        if record.d.startswith(SUPERSEDED):
            replacements.setdefault(record.d, set()).update(record.refers_to)
    seen: set[str] = set()
    stack = [SUPERSEDED + new]
    while stack:
        d = stack.pop()
        if d == SUPERSEDED + old:
            return True
        if d not in seen:
            seen.add(d)
            stack.extend(replacements.get(d, ()))
    return False
