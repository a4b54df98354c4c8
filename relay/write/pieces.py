"""Pieces: a deletion of too much for one transaction takes several.

Invariants: a piece deletes some of the rows, if the event would be accepted then; it stores no
event and answers nothing. The last pass looks for all rows again: what it finds fits into one
transaction, and the event is judged and stored as any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from relay.lifecycle.deletion import (
    DeletionTargets,
    delete_by_author,
    delete_named,
    deleted_rows,
    deletion_targets,
    note_erased,
)
from relay.lifecycle.rows import Leaving, Slot
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.write.judge import are_restricted
from relay.write.pins import row_of_pin
from relay.write.world import Removed, target_row

if TYPE_CHECKING:
    from collections.abc import Set

    from relay.groups.group import Groups
    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event
    from relay.write.candidate import Candidate
    from relay.write.judge import Judgement
    from relay.write.world import World

_MOST_DELETED: Final = 64 << 10
"""Bytes of the rows that the deletions of a batch name: to delete such a row of 5,000 tags takes
50 ms. A deletion of more goes in pieces."""
_WHOLE: Final = frozenset({kinds.VANISH, kinds.DELETE_GROUP})
Target = str | Slot
"""An id or an address."""


class Pieces(ABC):
    """How far the deletion by one event has come. In a pass: `part_of` and `lookups`, then `begin`,
    then `delete` if the event would be accepted, then `advance`; `shrink`, if that is too much."""

    def __init__(self) -> None:
        self.removed = Removed()

    @property
    @abstractmethod
    def is_last(self) -> bool:
        """What is left fits into one transaction: the event is judged and stored as any other."""

    def part_of(self, candidate: Candidate) -> Candidate:
        """What is judged."""
        return candidate

    @abstractmethod
    def lookups(self, wanted: Lookups, candidate: Candidate, groups: Groups) -> Lookups:
        """Those of `wanted`, for the event, that this pass needs."""

    @abstractmethod
    def begin(self, candidate: Candidate, found: Found) -> bool:
        """Whether a piece may have something to delete."""

    @abstractmethod
    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Set[str]:
        """What a piece of an accepted deletion does; it uses up nothing. Gives the ids of groups
        of which some pins may have to be removed."""

    @abstractmethod
    def advance(self, found: Found) -> None:
        """The piece is done. `found`: afterwards."""

    @abstractmethod
    def shrink(self) -> None:
        """What is looked up is too large."""


class _Named(Pieces):
    """Rows that a kind 5 or 9005 names, by id or address."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._targets = _named_by(event)
        self._size = max(1, len(self._targets) // 2)
        """How many targets the next piece has."""
        self._place = 0
        """Of its first target."""
        self._kept: set[Target] = set()
        """Found, and not to be deleted by this event."""

    @property
    def is_last(self) -> bool:
        return self._place >= len(self._targets)

    @property
    def _next(self) -> Set[Target]:
        return frozenset(self._targets[self._place : self._place + self._size])

    def part_of(self, candidate: Candidate) -> Candidate:
        """A kind 5, as if these were its only targets."""
        named = candidate.targets
        if named is None or self.is_last:
            return candidate
        targets = self._next
        ids = [each for each in named.ids if each in targets]
        slots = [each for each in named.slots if each in targets]
        return msgspec.structs.replace(candidate, targets=DeletionTargets(ids, slots))

    def lookups(self, wanted: Lookups, candidate: Candidate, groups: Groups) -> Lookups:
        # In the last pass too what came since.
        targets = frozenset(self._targets) - self._kept if self.is_last else self._next
        is_divisible = self.is_last or self._size > 1
        return replace(
            wanted,
            # A 9005 is judged by all that it names.
            present=wanted.present.union(self._targets if candidate.targets is None else ()),
            own_rows=frozenset([own for own in wanted.own_rows if own.id in targets]),
            own_slots=wanted.own_slots & targets,
            most_own=_MOST_DELETED if is_divisible else None,
        )

    def begin(self, candidate: Candidate, found: Found) -> bool:
        targets, removed = candidate.targets, self.removed
        if candidate.event.id in found.begun and not removed.rows:  # it broke off
            removed.were_restricted = True
        return targets is None or bool(deleted_rows(candidate.event, targets, found))

    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Set[str]:
        event, found = candidate.event, world.found
        if candidate.targets is not None:
            rows = delete_by_author(event, candidate.targets, found, plan)
        else:
            removes = () if judged.ruling is None else judged.ruling.removes
            here = [each for each in removes if each in found.rows]
            rows = delete_named(event, here, found, plan)
        note_erased(event, rows, plan, world.now)
        self.removed.rows.update((row.event.id, target_row(row)) for row in rows)
        if are_restricted(rows, world):
            self.removed.were_restricted = True
        return judged.outdated_pins

    def advance(self, found: Found) -> None:
        there = found.rows.keys() | found.slots.keys()
        self._kept |= self._next & there
        self._place += self._size
        self._size *= 2

    def shrink(self) -> None:
        if self.is_last:
            self._place, self._size = 0, len(self._targets)
        self._size = max(1, self._size // 2)


class _Emptying(Pieces):
    """A key that vanishes, or a group that ends: rows that nothing else depends on leave first."""

    is_last = False

    def lookups(self, wanted: Lookups, candidate: Candidate, groups: Groups) -> Lookups:
        """What the judge needs, and rows that may leave: not what the last pass does beside."""
        if self.is_last:
            return wanted
        event = candidate.event
        return replace(
            wanted,
            ids=frozenset({event.id}),
            slots=frozenset(),
            present=frozenset(),
            vanishing_keys=frozenset(),
            record_groups=frozenset(),
            ending_groups=frozenset(),
            leaving=Leaving(
                event.pubkey if candidate.vanishes else None,
                event.created_at,
                candidate.group,
                frozenset(filter(None, map(row_of_pin, groups.pinned))),
                _MOST_DELETED,
            ),
        )

    def begin(self, candidate: Candidate, found: Found) -> bool:
        if found.leaving:
            found.stored_keys = frozenset({candidate.event.pubkey})
        return bool(found.leaving)

    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Set[str]:
        if candidate.vanishes:
            note_erased(candidate.event, (), plan, world.now)
        plan.leaving[candidate.event.id] = world.found.leaving
        return frozenset()

    def advance(self, found: Found) -> None:
        self.is_last = not found.leaving

    def shrink(self) -> None:
        raise AssertionError("the last pass has no bound")


def pieces_for(event: Event) -> Pieces:
    """Of an event that deletes too much."""
    return _Emptying() if event.kind in _WHOLE else _Named(event)


def bounded(wanted: Lookups, indivisible: int) -> Lookups:
    """The same, raising TooMuchToRead for deletions of too much; any bytes of so many named rows
    that cannot be less."""
    named = len(wanted.own_rows) + len(wanted.own_slots)
    if named > indivisible or wanted.vanishing_keys or wanted.ending_groups:
        return replace(wanted, most_own=_MOST_DELETED)
    return wanted


def _named_by(event: Event) -> list[Target]:
    if event.kind == kinds.DELETION:
        ids, slots = deletion_targets(event)
        return list(dict.fromkeys([*ids, *slots]))
    return list(dict.fromkeys(filter(is_hex64, event.tag_values("e"))))
