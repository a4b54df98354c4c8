"""Retention: which stored rows a sweep removes by `[[retention]]`, and what holds them.

A row is removed when any rule is due for it and nothing holds it.

Invariants: a row that is due (by age or number) stays due, so the store may look for such rows
outside of the write lane. A hold (a pin, a missing summary, a row that must go first) can appear at
any time: it is checked inside the transaction that removes the row, so that a sweep may stop after
any row and no rule is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from relay.access.read_rules import Match
from relay.groups.group import Groups
from relay.lifecycle.deletion import tombstone_of_slot
from relay.lifecycle.rows import Keep, RetentionDependency, Slot, UpTo
from relay.memory.registry import NO_SYSTEMS, Authors, Sweeping
from relay.nostr import kinds
from relay.nostr.kinds import KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from relay.access.actors import Actors
    from relay.lifecycle.rows import Found, Stored, Tombstone, WritePlan
    from relay.memory.registry import Hold, MemorySystems
    from relay.nostr.event import Event

DAY_S: Final = 86_400


class Scope(Enum):
    """What `count` and `bytes` are counted per."""

    AUTHOR = "author"
    GROUP = "group"
    """Only rows with the `h` of the group: anybody may write what names its rows without `h`."""
    HK = "hk"
    """Each author and value of the tag `hk` (A-13)."""
    D_PREFIX = "d_prefix"
    """Each `d` prefix in the rule's `match`, of all authors together."""


class MaxAge(NamedTuple):
    """Removes rows whose created_at is more than `days` ago."""

    days: int

    def __str__(self) -> str:
        return f"older than {self.days} day{'' if self.days == 1 else 's'}"

    def before(self, now: int) -> int:
        """The first created_at that is kept."""
        return max(0, now - self.days * DAY_S)


class MaxAmount(NamedTuple):
    """Removes the oldest rows above a number of events or bytes (A-19)."""

    per: Scope | None
    """None: counted over all rows that match."""
    events: int | None = None
    bytes: int | None = None

    def __str__(self) -> str:
        limits = (
            [f"{self.events} event{'' if self.events == 1 else 's'}"]
            if self.events is not None
            else []
        )
        limits += [f"{self.bytes} bytes"] if self.bytes is not None else []
        per = "" if self.per is None else f" per {self.per.value}"
        return f"more than {' or '.join(limits)}{per}"


@dataclass(frozen=True, slots=True)
class SweepRule:
    """A `[[retention]]` rule that removes rows."""

    name: str
    place: str
    """`file:line`."""
    match: Match
    limit: MaxAge | MaxAmount


@dataclass(frozen=True, slots=True)
class SweepStep:
    """A rule, and which of its rows it removes in this step."""

    rule: SweepRule
    only: tuple[Match, ...] | None = None
    """Rows that match one of these; None: all rows of the rule."""
    later: tuple[Match, ...] = ()
    """Rows that match one of these are left to a later step."""

    def removes(self, row: Stored) -> bool:
        if self.only is not None and not _any_matches(self.only, row):
            return False
        return not _any_matches(self.later, row)


@dataclass(frozen=True, slots=True)
class NeverBefore:
    """`never_before`: rows stay until older rows of `kinds` are removed (A-18)."""

    kinds: KindSet
    same: tuple[str, ...]
    """What must be equal in both rows: `author`, `group`, names of tags."""
    up_to: UpTo

    def dependency_of(self, row: Stored) -> RetentionDependency | None:
        """The dependency of this row; None: it lacks one of the tags."""
        match = Match(self.kinds)
        for word in self.same:
            if word == "author":
                match = replace(match, authors=frozenset({row.event.pubkey}))
            elif word == "group":
                h = False if row.group is None else frozenset({row.group})
                match = replace(match, h=h)
            else:
                value = row.event.tag(word)
                if value is None:
                    return None
                match = replace(match, tags=(*match.tags, (word, frozenset({value}))))
        return RetentionDependency(match, self.up_to)


NEVER: Final = "never"
PINNED: Final = "pinned"
TOO_LARGE: Final = "what may hold it is too large to be read"
NOT_FIRST: Final = "older rows must go first"
"""Reasons why a due row is held; memory systems have their own."""

_GROUP_STATE: Final = (9000, 9020), (min(kinds.GROUP_STATE), max(kinds.GROUP_STATE))
"""Groups are replayed from these kinds."""
_MEMBERSHIP_STATE: Final = sorted(kinds.MEMBERSHIP_STATE)
_ONLY_BY_KIND: Final = KindSet.of(kinds.DELETION, kinds.VANISH, (9021, 9022))
_WITHOUT_H: Final = Match(tags=(("h", False),))


def never_swept(systems: MemorySystems) -> KindSet:
    """Kinds that no rule removes."""
    return KindSet.of(*_GROUP_STATE, *_MEMBERSHIP_STATE, *systems.never_swept.ranges)


@dataclass(frozen=True, slots=True)
class SweepRules:
    """All retention rules. A sweep is given up when the rules in force no longer equal its own."""

    rules: tuple[SweepRule, ...] = ()
    never: tuple[Match, ...] = ()
    waiting: tuple[tuple[Match, NeverBefore], ...] = ()
    systems: MemorySystems = NO_SYSTEMS

    def in_sweep_order(self) -> Iterator[SweepStep]:
        """First all rules for rows that wait for no others (`never_before`), then those for rows
        that wait for these, and so on: no row is held by one that the same sweep removes."""
        levels = self._levels()
        for level in range(max(levels, default=0) + 1):
            of = [(match, at) for (match, _), at in zip(self.waiting, levels, strict=True)]
            now = tuple([match for match, at in of if at == level])
            later = tuple([match for match, at in of if at > level])
            for rule in self.rules:
                if level and any(_overlap(rule.match.kinds, match.kinds) for match in now):
                    yield SweepStep(rule, now, later)
                elif not level and Match(rule.match.kinds) not in later:
                    yield SweepStep(rule, None, later)

    def _levels(self) -> list[int]:
        """For each entry of `waiting`: the length of the longest chain of entries that its rows
        wait for."""
        levels = [1] * len(self.waiting)
        for _ in self.waiting:  # rows that wait for each other get the highest level
            levels = [
                1 + max([levels[at] for at in self._waited_for(before)], default=0)
                for _, before in self.waiting
            ]
        return levels

    def _waited_for(self, before: NeverBefore) -> Iterator[int]:
        """Indexes in `waiting` of the entries that may match rows of `before.kinds`."""
        for at, (match, _) in enumerate(self.waiting):
            if _overlap(match.kinds, before.kinds):
                yield at

    def exempt_from(self, rule: SweepRule) -> tuple[Match, ...]:
        """Rows that the rule matches and must not remove: some are never removed, some only by a
        rule that names their kind or their `d`, and some count for no group.
        """
        exempt = [*self.never, Match(never_swept(self.systems))]
        if isinstance(rule.limit, MaxAmount) and (
            rule.limit.per is Scope.GROUP
            or (rule.limit.per is None and rule.match.h not in (None, False))
        ):
            exempt.append(_WITHOUT_H)
        if rule.match.kinds is None:
            exempt.append(Match(_ONLY_BY_KIND))
        named = (*(rule.match.d or ()), *(rule.match.d_prefixes or ()))
        exempt += [
            Match(KindSet.of(record.kind), d_prefixes=(record.prefix,))
            for record in self.systems.record_types(Sweeping.NAMED)
            if not any(d.startswith(record.prefix) for d in named)
        ]
        return tuple(exempt)

    def dependencies_of(self, row: Stored) -> Iterator[RetentionDependency]:
        """The dependencies of this row."""
        for match, before in self.waiting:
            if match.matches(row, _NO_GROUPS):
                dependency = before.dependency_of(row)
                if dependency is not None:
                    yield dependency


_NO_GROUPS: Final = Groups()


def _any_matches(matches: tuple[Match, ...], row: Stored) -> bool:
    return any(match.matches(row, _NO_GROUPS) for match in matches)


def _overlap(some: KindSet | None, others: KindSet | None) -> bool:
    return some is None or others is None or some.overlaps(others)


def time_of(row: Stored, up_to: UpTo) -> int:
    return row.version if up_to is UpTo.TS else row.event.created_at


# -- holds ----------------------------------------------------------------------------------------


def _slots_of(hold: Hold, event: Event, actors: Actors) -> Iterator[Slot]:
    """The records that a hold depends on."""
    authors = {event.pubkey}
    if hold.by is Authors.AUTHOR_OR_OWNERS:
        authors.update(actors.owners, *(home.owners for home in actors.households))
    return (Slot(pubkey, *hold.name) for pubkey in authors)


def hold_lookups(
    rows: Iterable[Stored], rules: SweepRules, actors: Actors
) -> tuple[frozenset[Slot], frozenset[RetentionDependency]]:
    """The lookups that `hold_reason` needs for these rows."""
    slots: set[Slot] = set()
    dependencies: set[RetentionDependency] = set()
    for row in rows:
        dependencies.update(rules.dependencies_of(row))
        for hold in rules.systems.holds(row.event):
            slots.update(_slots_of(hold, row.event, actors))
    return frozenset(slots), frozenset(dependencies)


def hold_reason(
    row: Stored, rules: SweepRules, actors: Actors, groups: Groups, found: Found, plan: WritePlan
) -> str | None:
    """Why a sweep must not remove the row now, None if it may. Needs `hold_lookups` in `found`."""
    if any(match.matches(row, groups) for match in rules.never):
        return NEVER
    if _is_pinned(row, groups):
        return PINNED
    for hold in rules.systems.holds(row.event):
        for slot in _slots_of(hold, row.event, actors):
            record = found.slots.get(slot)
            if hold.holds(None if record is None else record.event):
                return hold.reason
    for dependency in rules.dependencies_of(row):
        time, oldest = time_of(row, dependency.up_to), found.oldest_dependencies.get(dependency)
        if oldest is not None and oldest <= time:
            return NOT_FIRST
        # Rows that events earlier in the batch added.
        for added in plan.adds.values():
            if time_of(added, dependency.up_to) <= time and dependency.match.matches(added, groups):
                return NOT_FIRST
    return None


def _is_pinned(row: Stored, groups: Groups) -> bool:
    """Whether a group pins the row, by id or by address."""
    if ("e", row.event.id) in groups.pinned:
        return True
    return row.slot is not None and ("a", str(row.slot)) in groups.pinned


def tombstone_for(row: Stored, keep: Keep, why: str) -> Tombstone | None:
    """The tombstone for a row that has expired or was swept; None: it needs none.

    An older version must not take the place of the newest (N40-08). A row of keep `all` or `first`
    that is sent again is as old as before: it is swept again, or refused as expired. It is of
    nobody: one of the author's would take the place of what a kind 5 of theirs has left.
    """
    if keep not in (Keep.LATEST, Keep.LATEST_TS):
        return None
    return tombstone_of_slot(row, why)


# -- due rows: what a store compiles to SQL -------------------------------------------------------


class LastScan(NamedTuple):
    """Extent of the previous scan: the next one looks only for rows that became due since."""

    last_seq: int
    at: int
    """Unix seconds."""


def sweep_order_key(row: Stored) -> tuple[int, str]:
    """Oldest first by `ts`, then lowest id (A-19)."""
    return row.version, row.event.id


def due_rows(
    rows: Iterable[Stored], rule: SweepRule, exempt: Sequence[Match], groups: Groups, now: int
) -> list[Stored]:
    """The rows that the rule removes if nothing holds them, in sweep order."""
    matching = [
        row
        for row in rows
        if rule.match.matches(row, groups) and not any(m.matches(row, groups) for m in exempt)
    ]
    if isinstance(rule.limit, MaxAge):
        earliest = rule.limit.before(now)
        found = [row for row in matching if row.event.created_at < earliest]
    else:
        found = _above(matching, rule.match, rule.limit)
    return sorted(found, key=sweep_order_key)


def _above(rows: list[Stored], match: Match, amount: MaxAmount) -> list[Stored]:
    found = []
    counted: dict[object, tuple[int, int]] = {}
    for row in sorted(rows, key=sweep_order_key, reverse=True):
        scope = scope_of(row, match, amount.per)
        if scope is None:
            continue
        events, size = counted.get(scope, (0, 0))
        events, size = events + 1, size + len(row.event.raw)
        counted[scope] = events, size
        if (amount.events is not None and events > amount.events) or (
            amount.bytes is not None and size > amount.bytes
        ):
            found.append(row)
    return found


def scope_of(row: Stored, match: Match, per: Scope | None) -> object:
    """Rows of equal scope are counted together; None: the row is not counted."""
    match per:
        case None:
            return ""
        case Scope.AUTHOR:
            return row.event.pubkey
        case Scope.GROUP:
            return row.group
        case Scope.HK:
            hk = row.event.tag("hk")
            return None if hk is None else (row.event.pubkey, hk)
        case Scope.D_PREFIX:
            prefixes = match.d_prefixes or ()
            return next((p for p in prefixes if row.event.d.startswith(p)), None)
        case _:
            assert_never(per)
