"""Forgetting: which stored rows `[[retention]]` lets go, and what holds them back.

A row goes when any rule lets it go and nothing holds it. What lets it go (its age, how many there
are) stays true once it is found, so a store may look for it beside the writes. What holds it can
come at any moment: a pin, a summary, a row that must go first. That is asked again inside the
transaction that takes the row, so that wherever a sweep is cut off, no rule is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from relay.access.read_rules import Match
from relay.groups.group import Groups
from relay.lifecycle.deletion import address_target
from relay.lifecycle.rows import Keep, RetentionDependency, Slot, Tombstone, UpTo
from relay.memory.registry import NO_SYSTEMS, Authors, Sweeping
from relay.nostr import kinds
from relay.nostr.kinds import KindSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from relay.access.actors import Actors
    from relay.lifecycle.rows import Found, Stored, WritePlan
    from relay.memory.registry import Hold, MemorySystems
    from relay.nostr.event import Event

DAY_S: Final = 86_400


class Scope(Enum):
    """What `count` and `bytes` are counted for."""

    AUTHOR = "author"
    GROUP = "group"
    HK = "hk"
    """Each history key of each author (A-13)."""
    D_PREFIX = "d_prefix"
    """Each prefix that the rule's `match` names, whoever the authors are."""


class MaxAge(NamedTuple):
    """Rows older than so many days by their created_at."""

    days: int

    def __str__(self) -> str:
        return f"older than {self.days} days"

    def before(self, now: int) -> int:
        """The created_at from which on rows are young enough."""
        return max(0, now - self.days * DAY_S)


class MaxAmount(NamedTuple):
    """The oldest rows beyond a number, or beyond so many bytes. A-19."""

    per: Scope | None
    """None: all that match together."""
    events: int | None = None
    bytes: int | None = None

    def __str__(self) -> str:
        limits = [f"{self.events} events"] if self.events is not None else []
        limits += [f"{self.bytes} bytes"] if self.bytes is not None else []
        per = "" if self.per is None else f" per {self.per.value}"
        return f"more than {' or '.join(limits)}{per}"


@dataclass(frozen=True, slots=True)
class SweepRule:
    """Rows that may go, and why."""

    name: str
    place: str
    """`file:line`, for people."""
    match: Match
    limit: MaxAge | MaxAmount


@dataclass(frozen=True, slots=True)
class NeverBefore:
    """`never_before`: rows that wait until older rows of `kinds` have gone. A-18."""

    kinds: KindSet
    same: tuple[str, ...]
    """`author`, `group`, and names of tags: what both rows have in common."""
    up_to: UpTo

    def kin_of(self, row: Stored) -> RetentionDependency | None:
        """The rows that this one waits for, if they are not newer; None: it has none."""
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
NOT_FIRST: Final = "older rows must go first"
"""Reasons to keep a row that a rule would remove; memory systems have their own."""

_GROUP_STATE: Final = (9000, 9020), (39_000, 39_005)
"""The state of groups follows from these kinds."""
_ONLY_BY_KIND: Final = KindSet.of(kinds.DELETION, kinds.VANISH, (9021, 9022))


def never_swept(systems: MemorySystems) -> KindSet:
    """Kinds that no rule removes."""
    return KindSet.of(*_GROUP_STATE, *systems.never_swept.ranges)


@dataclass(frozen=True, slots=True)
class SweepRules:
    """All retention rules. A sweep is given up when the rules in force no longer equal its own."""

    rules: tuple[SweepRule, ...] = ()
    never: tuple[Match, ...] = ()
    waiting: tuple[tuple[Match, NeverBefore], ...] = ()
    systems: MemorySystems = NO_SYSTEMS

    def in_order(self) -> Iterator[SweepRule]:
        """So that what others wait for goes first."""
        late = [match.kinds for match, _ in self.waiting]
        yield from (rule for rule in self.rules if rule.match.kinds not in late)
        yield from (rule for rule in self.rules if rule.match.kinds in late)

    def exempt_from(self, rule: SweepRule) -> tuple[Match, ...]:
        """Rows that the rule does not take although it matches them.

        Some are never taken at all, some only by a rule that names their kind or their `d`.
        """
        spared = [*self.never, Match(never_swept(self.systems))]
        if rule.match.kinds is None:
            spared.append(Match(_ONLY_BY_KIND))
        named = (*(rule.match.d or ()), *(rule.match.d_prefixes or ()))
        spared += [
            Match(KindSet.of(record.kind), d_prefixes=(record.prefix,))
            for record in self.systems.record_types(Sweeping.NAMED)
            if not any(d.startswith(record.prefix) for d in named)
        ]
        return tuple(spared)

    def kin_of(self, row: Stored) -> Iterator[RetentionDependency]:
        """All that the row must not go before."""
        for match, before in self.waiting:
            if match.matches(row, _NO_GROUPS):
                dependencies = before.kin_of(row)
                if dependencies is not None:
                    yield dependencies


_NO_GROUPS: Final = Groups()


def time_of(row: Stored, up_to: UpTo) -> int:
    return row.version if up_to is UpTo.TS else row.event.created_at


# -- what holds a row -----------------------------------------------------------------------------


def _slots_of(hold: Hold, event: Event, actors: Actors) -> Iterator[Slot]:
    """The records that decide about a hold."""
    authors = {event.pubkey}
    if hold.by is Authors.AUTHOR_OR_OWNERS:
        authors.update(actors.owners, *(home.owners for home in actors.households))
    return (Slot(pubkey, *hold.name) for pubkey in authors)


def hold_lookups(
    rows: Iterable[Stored], rules: SweepRules, actors: Actors
) -> tuple[frozenset[Slot], frozenset[RetentionDependency]]:
    """What must be looked up before it can be said whether these rows are held."""
    slots: set[Slot] = set()
    dependencies: set[RetentionDependency] = set()
    for row in rows:
        dependencies.update(rules.kin_of(row))
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
    for dependencies in rules.kin_of(row):
        own, earliest = (
            time_of(row, dependencies.up_to),
            found.oldest_dependencies.get(dependencies),
        )
        if earliest is not None and earliest <= own:
            return NOT_FIRST
        # What the events before it in the batch brought.
        for added in plan.adds.values():
            if time_of(added, dependencies.up_to) <= own and dependencies.match.matches(
                added, groups
            ):
                return NOT_FIRST
    return None


def _is_pinned(row: Stored, groups: Groups) -> bool:
    """In a group, by id or by address."""
    if ("e", row.event.id) in groups.pinned:
        return True
    if row.slot is None:
        return False
    return ("a", f"{row.slot.kind}:{row.slot.pubkey}:{row.slot.d}") in groups.pinned


def tombstone_for(row: Stored, keep: Keep, why: str) -> Tombstone | None:
    """What must stay of a row that time takes.

    Versions from before the newest must not come back (N40-08). What was kept whole may: sent again
    it is as old as before, and goes again, or is refused as expired.
    """
    if row.slot is None or keep not in (Keep.LATEST, Keep.LATEST_TS):
        return None
    return Tombstone(address_target(row.slot), row.event.pubkey, row.event.created_at, why)


# -- what lets a row go: what stores compile to SQL -----------------------------------------------


class LastScan(NamedTuple):
    """How far an earlier look went."""

    head: int
    at: int
    """Unix seconds."""


def sweep_order_key(row: Stored) -> tuple[int, str]:
    """Oldest first by `ts`, then lowest id (A-19)."""
    return row.version, row.event.id


def due_rows(
    rows: Iterable[Stored], rule: SweepRule, spared: Sequence[Match], groups: Groups, now: int
) -> list[Stored]:
    """Of all rows those that the rule lets go, in the order in which they go."""
    about = [
        row
        for row in rows
        if rule.match.matches(row, groups) and not any(m.matches(row, groups) for m in spared)
    ]
    if isinstance(rule.limit, MaxAge):
        earliest = rule.limit.before(now)
        found = [row for row in about if row.event.created_at < earliest]
    else:
        found = _beyond(about, rule.match, rule.limit)
    return sorted(found, key=sweep_order_key)


def _beyond(rows: list[Stored], about: Match, amount: MaxAmount) -> list[Stored]:
    found = []
    held: dict[object, tuple[int, int]] = {}
    for row in sorted(rows, key=sweep_order_key, reverse=True):
        scope = scope_of(row, about, amount.per)
        if scope is None:
            continue
        events, size = held.get(scope, (0, 0))
        events, size = events + 1, size + len(row.event.raw)
        held[scope] = events, size
        if (amount.events is not None and events > amount.events) or (
            amount.bytes is not None and size > amount.bytes
        ):
            found.append(row)
    return found


def scope_of(row: Stored, about: Match, per: Scope | None) -> object:
    """With which rows this one is counted; None: with none, so it is never too many."""
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
            prefixes = about.d_prefixes or ()
            return next((p for p in prefixes if row.event.d.startswith(p)), None)
        case _:
            assert_never(per)
