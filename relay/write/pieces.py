"""Pieces: a deletion of too much for one transaction takes several.

Invariants: a piece deletes some of the rows, if the event would be accepted at that time; it stores
no event and sends no OK. The last pass looks for all rows again: those that it finds fit into one
transaction, and the event is judged and stored as any other. Rates and quotas are for the first
piece, which takes the tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from relay.facts import Origin
from relay.lifecycle.deletion import (
    DeletionTargets,
    delete_by_author,
    delete_in_group,
    delete_named,
    deleted_rows,
    deletion_targets,
    is_old_request,
    note_erased,
)
from relay.lifecycle.rows import MOST_DELETED, Leaving, Slot
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.write.judge import are_restricted
from relay.write.pins import pinning_rows
from relay.write.world import Removed, is_told_of, knows_own_rows, target_row

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from relay.access.quotas import Token
    from relay.groups.group import Groups
    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.event import Event
    from relay.write.candidate import Candidate
    from relay.write.judge import Judgement
    from relay.write.world import World

_WHOLE: Final = frozenset({kinds.VANISH, kinds.DELETE_GROUP})
_LEFT_AT_ONCE: Final = 16
"""Groups that a vanishing key leaves in one transaction: the relay signs three events for each."""
_FORGOTTEN_AT_ONCE: Final = 256
"""Ended groups of which a vanishing key is no former member any more in one transaction: 12 us
each, and other relays on the database read each again."""
_RESTATED_AT_ONCE: Final = 16
"""Groups of which the relay restates in one transaction what a vanishing key had said: it signs
five events or more for each."""
MOST_RECORDS: Final = 16 << 20
"""Bytes of the records of groups that one transaction replays for a request to vanish: 40 to 140 ms
and 8 MB of memory for each megabyte. A request of a key that moderated a group with more is
refused, unless an operator imports it."""
_RECORDS_AT_ONCE: Final = 1 << 20
"""The same for a request that has no turn of its own."""
Target = str | Slot
"""An id or an address."""


class _Code(NamedTuple):
    """An invite code that a kind 5 withdraws: its 9009 is deleted."""

    code: str


class Pieces(ABC):
    """Progress of one event's deletion. The calls of a pass: `part_of`, `leave` and `lookups`, then
    `begin`, then `delete` if the event would be accepted, then `advance`. If the lookups are too
    large: `shrink`."""

    def __init__(self) -> None:
        self.removed = Removed()
        self.has_turn = False
        """Whether this pass may take longer than others."""
        self.signed = Counter[tuple[int, str]]()
        """(kind, group) → in how many passes the relay has signed such events for the request."""
        self.taken: Sequence[Token] | None = None
        """The tokens that the first piece took: from then on no rate or quota refuses the event."""

    @property
    @abstractmethod
    def is_last(self) -> bool:
        """The rest fits into one transaction: the event is judged and stored as any other."""

    def part_of(self, candidate: Candidate) -> Candidate:
        """The candidate that is judged in this pass."""
        return candidate

    def leave(self, candidate: Candidate, groups: Groups) -> Set[str] | None:
        """The groups that a vanishing key leaves in this pass; None: all that it is in."""
        return None

    @abstractmethod
    def lookups(self, wanted: Lookups, candidate: Candidate, groups: Groups) -> Lookups:
        """The part of `wanted`, the event's lookups, that this pass needs."""

    @abstractmethod
    def begin(self, candidate: Candidate, world: World) -> bool:
        """Whether this pass may have rows to delete."""

    @abstractmethod
    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Sequence[Stored]:
        """Add a piece of an accepted deletion to the plan. Returns the deleted rows on which the
        state of groups may depend."""

    @property
    def left_groups(self) -> Set[str]:
        """Groups that a vanishing key leaves in this pass."""
        return frozenset()

    @property
    def left_ended(self) -> frozenset[str]:
        """Ended groups of which a vanishing key is no former member after this pass."""
        return frozenset()

    @property
    def unpinned(self) -> Set[Target]:
        """Rows whose pins this pass removes."""
        return frozenset()

    @abstractmethod
    def advance(self, found: Found) -> None:
        """The piece is done; `found`: afterwards."""

    @abstractmethod
    def shrink(self) -> None:
        """The lookups or the last pass were too large: make the next piece smaller."""


class _Named(Pieces):
    """Rows that a kind 5 or 9005 names, by id or address; then those that a kind 5 names by code.
    Old versions that it names leave with rows, or in further passes.

    A kind 5 is judged by whether it deletes rows of its author that may be told of: without the
    author's login, passes that only look for one come first. Else the answer would depend on the
    place of hidden rows among its targets.
    """

    def __init__(self, event: Event) -> None:
        super().__init__()
        rows, codes = _named_by(event), _codes_of(event)
        self._targets: list[Target | _Code] = [*rows, *codes]
        self._number_of_rows = len(rows)
        self._size = max(1, len(self._targets) // 2)
        """Number of targets in the next piece."""
        self._place = 0
        """Index of its first target."""
        self._kept: set[Target | _Code] = set()
        """Targets that were found and that this event must not delete."""
        self._withdrawn: dict[_Code, str] = {}
        """Codes of this pass → ids of their 9009s."""
        self._takes_old_versions = event.kind != kinds.DELETION
        """Also in a pass without rows. A kind 5 is judged by whether it deletes rows, and is known
        to delete one after the first passes."""
        self._is_looking: bool | None = None
        """None: not known before the first pass."""

    @property
    def is_last(self) -> bool:
        return self._place >= len(self._targets)

    @property
    def _next(self) -> frozenset[Target | _Code]:
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
        group = groups.get(candidate.group)
        self._withdrawn = {
            each: group.invites[each.code].event_id
            for each in targets
            if group is not None and isinstance(each, _Code) and each.code in group.invites
        }
        ids = targets.union(self._withdrawn.values())
        # A 9005 is judged by all that it names.
        judged = [each for each in self._targets if isinstance(each, str)]
        return replace(
            wanted,
            present=wanted.present.union(judged if candidate.targets is None else ()),
            own_rows=frozenset([own for own in wanted.own_rows if own.id in ids]),
            own_slots=wanted.own_slots & targets,
            most_own=MOST_DELETED if is_divisible else None,
        )

    def begin(self, candidate: Candidate, world: World) -> bool:
        event, targets, removed = candidate.event, candidate.targets, self.removed
        if event.id in world.found.begun and not removed.rows:  # it broke off
            removed.were_restricted = True
        if targets is None:
            return True
        if self._is_looking is None:
            self._is_looking = not knows_own_rows(candidate)
        rows = deleted_rows(event, targets, world.found)
        if self._is_looking:
            removed.are_told = any(is_told_of(row, candidate, world) for row in rows)
            return False
        if self._takes_old_versions and world.found.old_versions:
            return True
        return bool(rows) or any(each in world.found.rows for each in self._withdrawn.values())

    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Sequence[Stored]:
        event, found = candidate.event, world.found
        own: Sequence[Stored] = ()
        if candidate.targets is not None:
            own = delete_by_author(event, candidate.targets, found, plan)
        removes = () if judged.ruling is None else judged.ruling.removes
        here = [each for each in removes if each in found.rows]
        of_group = delete_named(event, here, found, plan)
        if judged.ruling is not None and candidate.group is not None:
            for old in sorted(found.old_versions.intersection(judged.ruling.keeps_out)):
                delete_in_group(event, old, candidate.group, found, plan)
        note_erased(event, [*own, *of_group], plan, world.now)
        # A kind 5 is not judged by the codes that it withdraws.
        rows = of_group if candidate.targets is None else own
        self.removed.rows.update((row.event.id, target_row(row)) for row in rows)
        self.removed.slots.update(row.slot for row in rows if row.slot is not None)
        if are_restricted(rows, world):
            self.removed.were_restricted = True
        if any(is_told_of(row, candidate, world) for row in rows):
            self.removed.are_told = True
        return [*own, *of_group]

    def advance(self, found: Found) -> None:
        if self._is_looking:
            self._place += self._size
            if self.removed.are_told or self._place >= self._number_of_rows:
                self._place, self._is_looking = 0, False
            return
        there = found.rows.keys() | found.slots.keys()
        self._kept |= self._next & there
        if self._takes_old_versions:
            self._kept |= found.old_versions
        self._kept |= {code for code, event_id in self._withdrawn.items() if event_id in there}
        self._place += self._size
        self._size *= 2

    def shrink(self) -> None:
        if self.is_last:
            self._place, self._size, self._takes_old_versions = 0, len(self._targets), True
        self._size = max(1, self._size // 2)


class _Emptying(Pieces):
    """For a key that vanishes, or a group that ends. All rows but records of groups leave first,
    until the rest fits into one transaction. A pass finds the pinned rows that leave next; the pass
    after it unpins them, whether they leave in that pass or later. Then the relay signs again what
    the key's records say, of some groups in each pass; in it these records expire, and then leave
    as other rows do."""

    is_last = False

    def __init__(self) -> None:
        super().__init__()
        self._left_groups: frozenset[str] = frozenset()
        self._left_ended: frozenset[str] = frozenset()
        self._unpinned: frozenset[Target] = frozenset()
        """Rows that this pass unpins."""

    def leave(self, candidate: Candidate, groups: Groups) -> Set[str] | None:
        if self.is_last:
            return None
        self._left_groups = self._left_ended = frozenset()
        pubkey = candidate.event.pubkey
        if leaves_many(candidate, groups):
            self._left_groups = frozenset(nsmallest(_LEFT_AT_ONCE, groups.groups_of(pubkey)))
        if forgets_many(candidate, groups):
            ended_with = groups.ended_with(pubkey)
            self._left_ended = frozenset(nsmallest(_FORGOTTEN_AT_ONCE, ended_with))
        return self._left_groups

    def lookups(self, wanted: Lookups, candidate: Candidate, groups: Groups) -> Lookups:
        """The lookups that the judge needs, and the rows to delete; the others only in the last
        pass."""
        if self.is_last:
            return wanted
        event = candidate.event
        most = MOST_RECORDS if self.has_turn else _RECORDS_AT_ONCE
        pinning = pinning_rows(self._unpinned, groups)
        lists = [wanted.pinned_in(group_id).slots for group_id in pinning]
        notices = frozenset([slot for slot in wanted.slots if slot.d in self._left_groups])
        return replace(
            wanted,
            ids=frozenset({event.id}),
            slots=notices.union(*lists),
            present=frozenset(),
            vanishing_keys={},
            record_groups=frozenset(),
            ending_groups=frozenset(),
            leaving=Leaving(
                event.pubkey if candidate.vanishes else None,
                event.created_at,
                candidate.group,
                _PinnedBy(groups, self._unpinned),
                MOST_DELETED,
                _RESTATED_AT_ONCE,
                None if candidate.sender.origin is Origin.TRUSTED_IMPORT else most,
            ),
        )

    def begin(self, candidate: Candidate, world: World) -> bool:
        found = world.found
        # Groups that are restated are left with that.
        if found.group_records or is_old_request(candidate.event, world.now):
            self._left_groups = frozenset()
        if not (
            found.leaving
            or self._left_groups
            or self._left_ended
            or found.group_records
            or found.too_many_records
        ):
            return False  # it unpins only what leaves
        world.found.stored_keys = frozenset({candidate.event.pubkey})
        return True

    def delete(
        self, candidate: Candidate, judged: Judgement, world: World, plan: WritePlan
    ) -> Sequence[Stored]:
        if candidate.vanishes:
            note_erased(candidate.event, (), plan, world.now)
        elif candidate.group is not None:
            plan.ending[candidate.event.id] = candidate.group
        if world.found.leaving:
            plan.leaving[candidate.event.id] = world.found.leaving
        return ()

    @property
    def left_groups(self) -> Set[str]:
        return self._left_groups

    @property
    def left_ended(self) -> frozenset[str]:
        return self._left_ended

    @property
    def unpinned(self) -> Set[Target]:
        return self._unpinned

    def advance(self, found: Found) -> None:
        self._unpinned = frozenset(found.pinned)
        left = self._left_groups or self._left_ended
        self.is_last = not (found.leaving or self._unpinned or left or found.group_records)

    def shrink(self) -> None:
        self.is_last = False  # rows came since


class _PinnedBy(Container[Target]):
    """What groups pin; it is not copied, for there may be a hundred thousand."""

    def __init__(self, groups: Groups, but: Set[Target]) -> None:
        self._groups = groups
        self._but = but

    def __contains__(self, named: object) -> bool:
        if named in self._but or not isinstance(named, str | Slot):
            return False
        return bool(pinning_rows([named], self._groups))


def leaves_many(candidate: Candidate, groups: Groups) -> bool:
    """Whether a key that vanishes is in too many groups to leave them in one transaction."""
    return candidate.vanishes and len(groups.groups_of(candidate.event.pubkey)) > _LEFT_AT_ONCE


def forgets_many(candidate: Candidate, groups: Groups) -> bool:
    """Whether a key that vanishes is a former member of too many ended groups for one
    transaction."""
    pubkey = candidate.event.pubkey
    return candidate.vanishes and len(groups.ended_with(pubkey)) > _FORGOTTEN_AT_ONCE


def pieces_for(event: Event) -> Pieces:
    """The pieces for an event that deletes too much."""
    return _Emptying() if event.kind in _WHOLE else _Named(event)


def bounded(wanted: Lookups, indivisible: int) -> Lookups:
    """The lookups with a limit, so that a store raises TooMuchToRead for too large a deletion. No
    limit for at most `indivisible` named rows: they cannot be divided further."""
    named = len(wanted.own_rows) + len(wanted.own_slots)
    if named > indivisible or wanted.vanishing_keys or wanted.ending_groups:
        return replace(
            wanted,
            most_own=MOST_DELETED,
            most_moderated=_RESTATED_AT_ONCE,
            most_records=_RECORDS_AT_ONCE,
        )
    return wanted


def _named_by(event: Event) -> list[Target]:
    if event.kind == kinds.DELETION:
        ids, slots = deletion_targets(event)
        return list(dict.fromkeys([*ids, *slots]))
    return list(dict.fromkeys(filter(is_hex64, event.tag_values("e"))))


def _codes_of(event: Event) -> list[_Code]:
    codes = event.tag_values("code") if event.kind == kinds.DELETION else ()
    return [_Code(code) for code in dict.fromkeys(codes)]
