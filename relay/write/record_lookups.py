"""Stored records that a memory record is about: which must be looked up, and what may be known.

Invariants: a row that the record's author may not read counts as not stored, so that no rule's
answer tells of it (X-16). Correct inside a batch: `Found` holds what the events before left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relay.memory.naming import entries_of, named_by, pinned_by, record_facts
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from relay.access.visibility import Visibility
    from relay.lifecycle.rows import Found, Lookups, Stored
    from relay.memory.naming import Named
    from relay.nostr.event import Event
    from relay.verdict import RecordFacts


def with_named(wanted: Lookups, events: Iterable[Event]) -> Lookups:
    """Also the records that these events are about."""
    named: set[Named] = set()
    pinned: set[str] = set()
    for event in events:
        named |= named_by(event)
        target = pinned_by(event)
        if target is not None:
            pinned.add(target)
    if not named and not pinned:
        return wanted
    return replace(wanted, ids=wanted.ids | pinned, named=wanted.named | named)


def names_any(event: Event) -> bool:
    return pinned_by(event) is not None or bool(named_by(event))


def records_about(
    event: Event, seen: Visibility, found: Found, now: int, *, along_chains: bool
) -> tuple[RecordFacts, ...]:
    """What is stored of what the event names, and the chains of supersessions behind it.

    `seen`: what its author may see. `along_chains`: a long one takes a tenth of a second, so that
    it is not for everybody to ask.
    """
    pinned = pinned_by(event)
    if pinned is not None:
        row = found.rows.get(pinned)
        if row is None or not _lasts(row, now) or not _may_pin(row, seen):
            return ()
        return (record_facts(row.event),)
    names = named_by(event)
    chained = _chained(names, found) if along_chains else _named(names, found)
    rows = [row for row in chained if _lasts(row, now)]
    return tuple([record_facts(row.event) for row in rows if _may_know(row, seen, found, now)])


def _may_pin(row: Stored, seen: Visibility) -> bool:
    """Also what is given only to who asks for it by its id."""
    return seen.may_read(row, Filter(ids=frozenset({row.event.id})))


def _lasts(row: Stored, now: int) -> bool:
    return row.expires_at is None or row.expires_at > now


def _named(names: Iterable[Named], found: Found) -> Iterator[Stored]:
    for name in names:
        yield from found.rows_named(name)


def _chained(names: Iterable[Named], found: Found) -> Iterator[Stored]:
    """Rows of these names, and of what they name in turn."""
    left = list(names)
    seen = set(left)
    while left:
        for row in found.rows_named(left.pop()):
            yield row
            further = named_by(row.event) - seen
            seen |= further
            left.extend(further)


def _may_know(row: Stored, seen: Visibility, found: Found, now: int) -> bool:
    """Whether a viewer may read the row; what points to an entry, by the readers of that (X-22)."""
    readable = set()
    for target, hashed in seen.targets_of(row):
        entries = [entry for entry in found.rows_named(entries_of(hashed)) if _lasts(entry, now)]
        if seen.may_read_one_of(entries, target, hashed):
            readable.add(target)
    return seen.may_read(row, None, readable)
