"""Stored events that a memory record refers to: what to look up, and what its author may know.

Invariants: a row that the record's author may not read counts as not stored, so that no refusal
reveals it (X-16). Holds inside a batch too: `Found` includes the events before this one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from relay.access.visibility import Visibility
    from relay.lifecycle.rows import Found, Lookups, Stored
    from relay.memory.registry import MemorySystems, RecordName
    from relay.nostr.event import Event
    from relay.verdict import RecordFacts


def with_references(wanted: Lookups, events: Iterable[Event], systems: MemorySystems) -> Lookups:
    """Also what these events refer to."""
    ids: set[str] = set()
    names: set[RecordName] = set()
    for event in events:
        references = systems.references(event)
        ids |= references.ids
        names |= references.names
    if not ids and not names:
        return wanted
    return replace(
        wanted, ids=wanted.ids | ids, named=wanted.named | names, names_in=systems.names_in
    )


def has_references(event: Event, systems: MemorySystems) -> bool:
    references = systems.references(event)
    return bool(references.ids or references.names)


def referenced(
    event: Event,
    seen: Visibility,
    found: Found,
    now: int,
    systems: MemorySystems,
    *,
    along_chains: bool,
) -> tuple[RecordFacts, ...]:
    """The stored events that the event refers to, and the chains of records behind them.

    `seen`: what its author may see. `along_chains`: a long chain takes a tenth of a second, so it
    is followed for agents and owners only.
    """
    references = systems.references(event)
    by_id = [
        row
        for id_ in references.ids
        if (row := found.rows.get(id_)) is not None
        and _lasts(row, now)
        and _may_read_by_id(row, seen)
    ]
    chained = _chained(references.names, found, systems)
    named = chained if along_chains else _named(references.names, found)
    by_name = [
        row for row in named if _lasts(row, now) and _may_know(row, seen, found, now, systems)
    ]
    return tuple([systems.facts_of(row.event) for row in (*by_id, *by_name)])


def _may_read_by_id(row: Stored, seen: Visibility) -> bool:
    """Also rows that are only given to a filter with `ids`."""
    return seen.may_read(row, Filter(ids=frozenset({row.event.id})))


def _lasts(row: Stored, now: int) -> bool:
    return row.expires_at is None or row.expires_at > now


def _named(names: Iterable[RecordName], found: Found) -> Iterator[Stored]:
    for name in names:
        yield from found.rows_named(name)


def _chained(names: Iterable[RecordName], found: Found, systems: MemorySystems) -> Iterator[Stored]:
    """Rows of these names, and of the names that they refer to in turn."""
    stack = list(names)
    seen = set(stack)
    while stack:
        for row in found.rows_named(stack.pop()):
            yield row
            further = systems.names_in(row.event) - seen
            seen |= further
            stack.extend(further)


def _may_know(
    row: Stored, seen: Visibility, found: Found, now: int, systems: MemorySystems
) -> bool:
    """Whether a viewer may read the row; with a `target` rule, as one of the rows it refers to
    (X-22)."""
    readable = set()
    targets = seen.targets_of(row)
    if targets:
        rows = [other for other in _named(systems.names_in(row.event), found) if _lasts(other, now)]
        for target, value in targets:
            if seen.may_read_one_of(rows, target, value):
                readable.add(target)
    return seen.may_read(row, None, readable)
