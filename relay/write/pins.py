"""Pins of groups (39005) and the events that they name (N29-170…172).

Invariants: when an event is removed, its pins are removed in the same transaction. Pins of an
expired event are removed with the next event written into the group, or when it is swept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.facts import Origin
from relay.groups.actions import PIN_TAGS
from relay.lifecycle.rows import Present, Stored, outline
from relay.nostr import kinds
from relay.nostr.event import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relay.groups.group import Group, Groups, Pin
    from relay.lifecycle.rows import ExpiredRow, Found, Slot
    from relay.nostr.event import Event
    from relay.write.candidate import Candidate


def row_of_pin(pin: Pin) -> str | Slot | None:
    """The id or the slot of what is pinned; None if the pin names neither."""
    return slot_of_pin(pin) or (pin[1] if pin[0] == "e" else None)


def pin_of_slot(slot: Slot) -> Pin:
    """The `a` pin of a slot."""
    return "a", str(slot)


def _pin_of(named: str | Slot) -> Pin:
    return ("e", named) if isinstance(named, str) else pin_of_slot(named)


def slot_of_pin(pin: Pin) -> Slot | None:
    """The slot that an `a` pin names; None for other spellings of an address: pins are looked up
    by their text."""
    name, value = pin
    slot = address_of(value) if name == "a" else None
    return slot if slot is not None and pin_of_slot(slot) == pin else None


def outdated_pins(candidate: Candidate, groups: Groups) -> frozenset[str]:
    """Ids of groups whose pins the event may outdate beside those of what it deletes: its own
    group, and those where something is pinned that it replaces."""
    if not groups.pinned:
        return frozenset()
    group = groups.get(candidate.group)
    found = frozenset({group.id}) if group is not None and group.pins else frozenset[str]()
    return found if candidate.slot is None else found | pinning_rows([candidate.slot], groups)


def pinning(pins: Iterable[Pin], groups: Groups) -> frozenset[str]:
    """Ids of the groups that have one of these pins."""
    return frozenset[str]().union(*map(groups.pinned.of, pins))


def pinning_rows(rows: Iterable[str | Slot], groups: Groups) -> frozenset[str]:
    """Ids of the groups that pin one of these rows."""
    return pinning(map(_pin_of, rows), groups)


def pinning_expired(row: ExpiredRow, groups: Groups) -> frozenset[str]:
    """Ids of the groups that pin the row."""
    pins = [("e", row.id)] if row.address is None else [("e", row.id), ("a", row.address)]
    return pinning(pins, groups)


def names_of(rows: Iterable[Stored]) -> frozenset[str | Slot]:
    """The ids and slots by which these rows may be pinned."""
    names = [(row.event.id, row.slot) for row in rows]
    return frozenset([name for each in names for name in each if name is not None])


def without_pins(rows: Iterable[str | Slot], groups: Groups) -> Groups:
    """These groups, without pins of these rows."""
    for named in rows:
        pin = _pin_of(named)
        for group_id in groups.pinned.of(pin):
            groups = groups.with_group(groups.by_id[group_id].without_pin(pin))
    return groups


def pins_left(group: Group, found: Found, now: int) -> tuple[tuple[str, ...], ...]:
    """The group's pins without those whose event is not stored; `found` must have all they name,
    whole or as `present`."""
    pins = ((tag, _there((tag[0], tag[1]), group.id, found, now)) for tag in group.pins)
    return tuple(tag for tag, row in pins if row is not None)


def pinnable(
    event: Event,
    group_id: str,
    found: Found,
    now: int,
    origin: Origin,
    is_known: Callable[[Stored], bool],
) -> frozenset[Pin]:
    """What a 9010 names that can be pinned: stored, unexpired events of its group (N29-171).
    `is_known`: whether its author may read a row, or one like this `outline`.

    In an import also addresses without a stored version: it may come later in the file.
    """
    if event.kind != kinds.UPDATE_PINS:
        return frozenset()
    named: list[Pin] = [
        (tag[0], tag[1]) for tag in event.tags if len(tag) > 1 and tag[0] in PIN_TAGS
    ]
    here: set[Pin] = set()
    for pin in named:
        row = _there(pin, group_id, found, now)
        if isinstance(row, Present):
            is_deletion = row.kind == kinds.DELETION  # it may be quiet
            row = outline(row.kind, row.pubkey, row.group, row.expires_at, quiet=is_deletion)
        if row is not None and is_known(row):
            here.add(pin)
    if origin is not Origin.WIRE:
        slots = {pin: slot_of_pin(pin) for pin in named}
        here |= {pin for pin, slot in slots.items() if slot and _held(slot, found) is None}
    return frozenset(here)


def _there(pin: Pin, group_id: str, found: Found, now: int) -> Stored | Present | None:
    """The unexpired row of the group that is pinned."""
    named = row_of_pin(pin)
    row = None if named is None else _held(named, found)
    if row is None or row.group != group_id:
        return None
    return row if row.expires_at is None or row.expires_at > now else None


def _held(named: str | Slot, found: Found) -> Stored | Present | None:
    """The row that an id or a slot has now, after the events before it in the batch."""
    row = found.rows.get(named) if isinstance(named, str) else found.slots.get(named)
    return found.present.get(named) if row is None else row
