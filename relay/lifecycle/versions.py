"""Versions: which event of a slot is kept, and why an event is not stored.

What a newer version replaces may be kept as an old version (`[[retention]] history`). Old versions
are not rows: only `EventReader.versions` returns them.

Invariants: called inside the store's transaction; the store itself decides nothing. `add_row`
updates `Found` and the WritePlan together, so that the next event of the batch sees this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import WriteOutcome
from relay.groups.group import Groups
from relay.lifecycle.deletion import is_deleted, take_out
from relay.lifecycle.rows import (
    EXPIRY_WINDOW_S,
    Keep,
    Replaced,
    Stored,
    Tie,
    address_slot,
    keep_by_kind,
    slot_of,
    version_of,
)
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.event import indexed
from relay.nostr.kinds import ByKind, is_ephemeral
from relay.nostr.nip40 import expiry_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.access.read_rules import Match
    from relay.lifecycle.rows import Found, Slot, WritePlan
    from relay.nostr.event import Base, Event

DAY_S: Final = 86_400
_NO_GROUPS: Final = Groups()


def is_older(event: Event, version: int, keep: Keep, holder: Stored, tie: Tie) -> bool:
    """Whether the slot's holder is kept and the event is not; ties are decided by id."""
    return _loses(event.id, version, keep, holder, tie)


def is_rival(holder: Stored, base: Base, keep: Keep, tie: Tie, now: int) -> bool:
    """Whether the slot's holder is not taken into account by an event that was made from `base`.

    A holder that `base` would have replaced is none: this relay has missed `base`. Nor is one that
    has expired, which nobody finds.
    """
    if base.id == holder.event.id or (holder.expires_at is not None and holder.expires_at <= now):
        return False
    return base.id == "" or _loses(base.id, base.at, keep, holder, tie)


def _loses(event_id: str, version: int, keep: Keep, holder: Stored, tie: Tie) -> bool:
    if version != holder.version:
        return version < holder.version
    # NIP-01 keeps the lowest id; for `ts` AMAN's indexer keeps the highest.
    if keep is Keep.LATEST_TS and tie is Tie.HIGH:
        return event_id < holder.event.id
    return event_id > holder.event.id


def unstored_outcome(
    event: Event,
    slot: Slot | None,
    keep: Keep,
    found: Found,
    group: str | None,
    *,
    now: int,
    tie: Tie,
) -> WriteOutcome | None:
    """Why an accepted event is not stored; None: it is. `group`: as of `is_deleted`. Raises Invalid
    (`expiration`)."""
    expires_at = expiry_of(event)
    if expires_at is not None and expires_at <= now:
        return WriteOutcome.EXPIRED
    if event.id in found.rows:
        return WriteOutcome.DUPLICATE
    # Where all versions are kept, a deletion by address refuses those dated before it.
    version = version_of(event, keep)
    if found.tombstones and is_deleted(event, slot or address_slot(event), version, found, group):
        return WriteOutcome.DELETED
    if is_ephemeral(event.kind):
        return WriteOutcome.PASSED_ON
    holder = None if slot is None else found.slots.get(slot)
    if holder is None:
        return None
    if keep is Keep.FIRST:
        # What has expired is found by nobody; it is replaced if its row is still there.
        has_expired = holder.expires_at is not None and holder.expires_at <= now
        return None if has_expired else WriteOutcome.TAKEN
    if is_older(event, version, keep, holder, tie):
        return WriteOutcome.SUPERSEDED
    return None


def plan_for(
    event: Event,
    group: str | None,
    keep: Keep,
    found: Found,
    plan: WritePlan,
    *,
    now: int,
    tie: Tie,
    quiet: bool = False,
    history: HistoryRules | None = None,
) -> Stored | WriteOutcome:
    """`unstored_outcome`, or the row from `add_row`."""
    slot = slot_of(event, keep)
    outcome = unstored_outcome(event, slot, keep, found, group, now=now, tie=tie)
    if outcome is not None:
        return outcome
    return add_row(event, slot, keep, group, found, plan, quiet=quiet, history=history, now=now)


def add_row(
    event: Event,
    slot: Slot | None,
    keep: Keep,
    group: str | None,
    found: Found,
    plan: WritePlan,
    *,
    quiet: bool,
    now: int,
    history: HistoryRules | None = None,
) -> Stored:
    """Add a row for an event whose `unstored_outcome` is None; it replaces its slot's holder.

    `history`: which holders are kept as old versions; None: none.
    """
    assert slot is None or slot in found.looked_up, "the slot may have a holder that stays"
    event = indexed(event)  # later events of the batch may name it
    holder = None if slot is None else found.slots.get(slot)
    if holder is not None:
        kept = None if history is None else history.of(holder)
        take_out(holder, found, plan)
        if kept is not None:
            drop_at = kept.drop_at(holder, now)
            plan.replaced[holder.seq] = Replaced(holder, now, drop_at, kept.most)
            found.usage.add(holder.event, holder.group)  # an old version counts as before
    found.last_seq += 1
    expires_at = expiry_of(event)
    row = Stored(found.last_seq, event, group, quiet, slot, version_of(event, keep), expires_at)
    plan.adds[event.id] = row
    found.rows[event.id] = row
    if found.named:
        ids = found.named.get(RecordName(event.kind, event.d))
        if ids is not None:
            ids.add(event.id)
    found.usage.add(event, group)
    if expires_at is not None and found.expiring:
        window = expires_at // EXPIRY_WINDOW_S
        if window in found.expiring:
            found.expiring[window] += 1
    if slot is not None:
        found.slots[slot] = row
    if (
        group is not None
        and event.kind not in kinds.GROUP_RECORDS
        and event.kind not in kinds.GROUP_STATE
    ):
        found.groups_with_content.add(group)
    return row


def move(row: Stored, found: Found, plan: WritePlan) -> None:
    """Replace a row of no group, which has no slot, by `row`: the same in a group."""
    event = row.event
    if event.id in plan.adds:
        plan.adds[event.id] = row
    elif row.group is not None:
        plan.moves[row.seq] = row.group
    found.rows[event.id] = row
    found.usage.remove(event, None)
    found.usage.add(event, row.group)


class History(NamedTuple):
    """How many old versions of a record are kept, and how long."""

    most: int
    days: int | None = None
    """After the replacement; None: as long as there are no more than `most`."""

    def __str__(self) -> str:
        days = "" if self.days is None else f" for {self.days} day{'' if self.days == 1 else 's'}"
        return f"{self.most} old version{'' if self.most == 1 else 's'}{days}"

    def drop_at(self, row: Stored, at: int) -> int | None:
        """Unix seconds at which a row that was replaced at `at` must be deleted; None: never."""
        by_days = None if self.days is None else at + self.days * DAY_S
        if row.expires_at is None or by_days is None:
            return row.expires_at if by_days is None else by_days
        return min(row.expires_at, by_days)


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """`[[retention]]` with `history`; the last rule that matches a row decides."""

    name: str
    place: str
    """`file:line`."""
    match: Match
    history: History | None
    """None: `history = false`, nothing is kept."""


_MADE_BY_THE_RELAY: Final = frozenset({*kinds.GROUP_STATE, *kinds.MEMBERSHIP_STATE})
"""Their history is the log; here each change would keep a whole list of members."""


@dataclass(frozen=True, slots=True)
class HistoryRules:
    rules: tuple[HistoryRule, ...] = ()

    def of(self, row: Stored) -> History | None:
        """How this row is kept when it is replaced; None: not at all."""
        if row.event.kind in _MADE_BY_THE_RELAY or row.event.kind == kinds.GIFT_WRAP:
            return None
        for rule in reversed(self.rules):
            if rule.match.matches(row, _NO_GROUPS):
                return rule.history
        return None


NO_HISTORY: Final = HistoryRules()


@dataclass(frozen=True, slots=True)
class KeepRule:
    """`[[retention]]` with `keep`; the last rule that matches an event decides."""

    name: str
    match: Match
    keep: Keep


class KeepRules:
    """The KeepRules of a policy, indexed by kind."""

    def __init__(
        self,
        rules: Iterable[KeepRule],
        tie: Tie = Tie.HIGH,
        history: HistoryRules = NO_HISTORY,
    ) -> None:
        self.rules = tuple(rules)
        self.tie = tie
        self.history = history
        self._by_kind: ByKind[tuple[KeepRule, ...]] = ByKind()

    def keep_of(self, event: Event) -> Keep:
        """Rules do not apply to records of groups, on which their state depends, nor to what the
        relay signs: it may have to be signed whatever is stored."""
        if event.kind in kinds.GROUP_RECORDS or event.kind in kinds.RELAY_SIGNED:
            return keep_by_kind(event.kind)
        rules = self._by_kind.get(event.kind)
        if rules is None:
            rules = tuple(
                rule
                for rule in reversed(self.rules)
                if rule.match.kinds is None or event.kind in rule.match.kinds
            )
            self._by_kind[event.kind] = rules
        if rules:
            row = Stored(0, event, event.tag("h"))
            for rule in rules:
                if rule.match.matches(row, _NO_GROUPS):
                    return rule.keep
        return keep_by_kind(event.kind)
