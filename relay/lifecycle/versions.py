"""What survives: which version holds a slot, and why an event is not stored.

Invariants: stores look facts up and apply plans; the deciding is here, once, in Python, inside the
store's transaction. `Found` is the world as the events before in the batch leave it; `plan_for`
changes it and the batch's plan together, so that the next event sees what this one did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.groups.group import Groups
from relay.lifecycle.deletion import (
    is_deleted,
    remove,
)
from relay.lifecycle.rows import (
    Keep,
    Stored,
    expiry_of,
    keep_by_kind,
    slot_of,
    version_of,
)
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.kinds import is_ephemeral
from relay.verdict import WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.access.read_rules import Match
    from relay.lifecycle.rows import Found, Slot, WritePlan
    from relay.nostr.event import Event

_NO_GROUPS: Final = Groups()


def loses(event: Event, version: int, keep: Keep, holder: Stored, *, high_tie: bool) -> bool:
    """Whether the event is older than, or loses the tie against, the slot's holder."""
    if version != holder.version:
        return version < holder.version
    # Lowest id wins (NIP-01); for `ts` the highest, as the original's indexer has it.
    if keep is Keep.LATEST_TS and high_tie:
        return event.id < holder.event.id
    return event.id > holder.event.id


def unstored_outcome(
    event: Event, slot: Slot | None, keep: Keep, found: Found, *, now: int, high_tie: bool
) -> WriteOutcome | None:
    """Why an event that no rule objects to is not stored; None: it is. `slot`: of the event."""
    expires_at = expiry_of(event)
    if expires_at is not None and expires_at <= now:
        return WriteOutcome.EXPIRED
    if event.id in found.rows:
        return WriteOutcome.DUPLICATE
    if is_deleted(event, slot, found):
        return WriteOutcome.DELETED
    if is_ephemeral(event.kind):
        return WriteOutcome.PASSED_ON
    holder = None if slot is None else found.slots.get(slot)
    if holder is None:
        return None
    if keep is Keep.FIRST:
        return WriteOutcome.TAKEN
    if loses(event, version_of(event, keep), keep, holder, high_tie=high_tie):
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
    high_tie: bool,
    quiet: bool = False,
) -> Stored | WriteOutcome:
    """`add_row`, or why an event that no rule objects to is not stored."""
    slot = slot_of(event, keep)
    outcome = unstored_outcome(event, slot, keep, found, now=now, high_tie=high_tie)
    if outcome is not None:
        return outcome
    return add_row(event, slot, keep, group, found, plan, quiet=quiet)


def add_row(
    event: Event,
    slot: Slot | None,
    keep: Keep,
    group: str | None,
    found: Found,
    plan: WritePlan,
    *,
    quiet: bool = False,
) -> Stored:
    """Store an event of which `unstored` is None, in place of its slot's holder.

    Gives the new row; its `seq` is the next one.
    """
    holder = None if slot is None else found.slots.get(slot)
    if holder is not None:
        remove(holder, found, plan)
    found.last_seq += 1
    row = Stored(
        found.last_seq, event, group, quiet, slot, version_of(event, keep), expiry_of(event)
    )
    plan.adds[event.id] = row
    found.rows[event.id] = row
    if found.named:
        ids = found.named.get(RecordName(event.kind, event.d))
        if ids is not None:
            ids.add(event.id)
    found.usage.add(event.pubkey, event.kind, group, len(event.raw))
    if slot is not None:
        found.slots[slot] = row
    if (
        group is not None
        and event.kind not in kinds.GROUP_RECORDS
        and event.kind not in kinds.GROUP_STATE
    ):
        found.groups_with_content.add(group)
    return row


@dataclass(frozen=True, slots=True)
class KeepRule:
    """`[[retention]]` with `keep`: of several that match a row the last one counts."""

    name: str
    match: Match
    keep: Keep


class KeepRules:
    """`keep` of an event by the retention rules, indexed by kind."""

    def __init__(self, rules: Iterable[KeepRule], *, high_tie: bool = True) -> None:
        self.rules = tuple(rules)
        self.high_tie = high_tie
        self._by_kind: dict[int, tuple[KeepRule, ...]] = {}

    def keep_of(self, event: Event) -> Keep:
        rules = self._by_kind.get(event.kind)
        if rules is None:
            rules = tuple(
                rule
                for rule in reversed(self.rules)
                if rule.match.kinds is None or event.kind in rule.match.kinds
            )
            self._by_kind[event.kind] = rules  # at most 65,536 kinds exist
        if rules:
            row = Stored(0, event, event.tag("h"))
            for rule in rules:
                if rule.match.matches(row, _NO_GROUPS):
                    return rule.keep
        return keep_by_kind(event.kind)
