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
    address_target,
    deletion_targets,
    event_target,
    is_deleted,
    key_target,
    remove,
)
from relay.lifecycle.rows import (
    Keep,
    Lookups,
    Stored,
    address_of,
    expiry_of,
    keep_by_kind,
    slot_of,
    version_of,
)
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.kinds import is_ephemeral
from relay.verdict import WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    """Decide one event that no rule objects to, and note it in `plan` and `found`.

    Gives the row that was added (its `seq` is the next one), or why there is none.
    """
    slot = slot_of(event, keep)
    outcome = unstored_outcome(event, slot, keep, found, now=now, high_tie=high_tie)
    if outcome is not None:
        return outcome
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


def lookups_for(events: Sequence[tuple[Event, Keep]]) -> Lookups:
    """What must be looked up to decide these events."""
    ids: set[str] = set()
    slots: set[Slot] = set()
    targets: set[str] = set()
    prefixes: set[tuple[str, str]] = set()
    used: set[str] = set()
    for event, keep in events:
        ids.add(event.id)
        targets.add(event_target(event.id))
        targets.add(key_target(event.pubkey))
        slot = slot_of(event, keep)
        if slot is not None:
            slots.add(slot)
            targets.add(address_target(slot))
        kind = event.kind
        if kind == kinds.DELETION:
            named, addressed = deletion_targets(event)
            ids.update(named)
            slots.update(addressed)
        elif kind == kinds.DELETE_EVENT:
            ids.update(value for value in event.tag_values("e") if is_hex64(value))
        elif kind == kinds.UPDATE_PINS:
            ids.update(value for value in event.tag_values("e") if is_hex64(value))
            slots.update(filter(None, map(address_of, event.tag_values("a"))))
        elif kind == kinds.EDIT_METADATA:
            used.add(event.tag("h") or "")
        elif kind == kinds.GIFT_WRAP:
            targets.update(key_target(pubkey) for pubkey in event.tag_values("p"))
        for tag in event.tags:
            if tag and tag[0] == "previous":
                prefixes.update((event.tag("h") or "", value) for value in tag[1:])
    return Lookups(
        frozenset(ids), frozenset(slots), frozenset(targets), frozenset(prefixes), frozenset(used)
    )


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
