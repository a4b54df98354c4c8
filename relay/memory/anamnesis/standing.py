"""Who may say something about a stored memory. MEMORY.md X-05, X-07, X-16.

`records` are those that the author of the event may read: what is hidden from them counts as not
stored, so that no refusal tells of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from relay.errors import Prefix
from relay.memory.naming import ENTRY, PATCH, SUPERSEDED, replacement_in
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.nostr.event import Event
    from relay.verdict import RecordFacts

    Objection = tuple[Prefix, str]
    Owns = Callable[[str | None], bool]
    """Whether whoever writes is an owner to what this key wrote; None: to whatever anybody will."""

_MAY_NOT_SUPERSEDE: Final = (
    Prefix.RESTRICTED,
    "only the author or the owner may supersede a memory",
)
_MAY_NOT_PATCH: Final = Prefix.RESTRICTED, "only the author or the owner may change metadata"
_SELF: Final = Prefix.INVALID, "a memory cannot supersede itself"
_CYCLE: Final = Prefix.INVALID, "supersession cycle"


class _Dated(Protocol):
    """An event, or what is known of it."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> int: ...


_Entry = TypeVar("_Entry", bound=_Dated)


def original_of(entries: Iterable[_Entry]) -> _Entry | None:
    """Of the entries of one hash that of its original author: the earliest, then lowest id."""
    return min(entries, key=lambda entry: (entry.created_at, entry.id), default=None)


def against_supersession(
    event: Event, records: Sequence[RecordFacts], owns: Owns
) -> Objection | None:
    """Itself, unknown, not allowed, cycle: in this order. What is malformed is not looked at."""
    old, new = event.d.removeprefix(SUPERSEDED), replacement_in(event)
    if not is_hex64(old) or event.tag("x") != old:
        return None
    if old == new:
        return _SELF
    for hashed in [old] if new is None else [old, new]:
        if not _entries(records, hashed):
            return Prefix.INVALID, f"unknown memory {hashed[:12]}"
    if not _is_for(event.pubkey, _entries(records, old), owns):
        return _MAY_NOT_SUPERSEDE
    return _CYCLE if new is not None and _leads_to(old, new, records) else None


def against_patch(event: Event, records: Sequence[RecordFacts], owns: Owns) -> Objection | None:
    """A patch of what is not stored is for an owner of all: nobody is its author."""
    hashed = event.d.removeprefix(PATCH)
    if not is_hex64(hashed) or event.tag("x") != hashed:
        return None
    return None if _is_for(event.pubkey, _entries(records, hashed), owns) else _MAY_NOT_PATCH


def _is_for(pubkey: str, entries: Iterable[RecordFacts], owns: Owns) -> bool:
    original = original_of(entries)
    author = None if original is None else original.pubkey
    return author == pubkey or owns(author)


def _entries(records: Iterable[RecordFacts], hashed: str) -> list[RecordFacts]:
    d = ENTRY + hashed
    return [record for record in records if record.d == d]


def _leads_to(old: str, new: str, records: Sequence[RecordFacts]) -> bool:
    """Whether any stored supersessions lead from `new` back to `old`, whosever count."""
    onward: dict[str, set[str]] = {}
    for record in records:
        if record.superseded_by is not None:
            onward.setdefault(record.d.removeprefix(SUPERSEDED), set()).add(record.superseded_by)
    seen: set[str] = set()
    left = [new]
    while left:
        hashed = left.pop()
        if hashed == old:
            return True
        if hashed not in seen:
            seen.add(hashed)
            left.extend(onward.get(hashed, ()))
    return False
