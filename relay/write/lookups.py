"""What a batch must know of the store because of the groups that its events are about.

Invariants: all this is asked before the first event of the batch is decided. What an event of the
batch makes or names itself is wanted by that event, so the groups before the batch suffice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relay.lifecycle.retention import hold_lookups
from relay.lifecycle.rows import Lookups, Slot, slot_of
from relay.nostr import kinds
from relay.write.pins import all_pinning, slot_of_pin, unsettled_pins

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from relay.access.actors import Actors
    from relay.access.management import ListChange
    from relay.groups.group import Groups
    from relay.lifecycle.retention import SweepRules
    from relay.lifecycle.rows import Keep, Stored
    from relay.nostr.event import Event
    from relay.state import Policy


def with_pins(wanted: Lookups, group_ids: Iterable[str], groups: Groups, relay: str) -> Lookups:
    """Also what these groups pin, and the 39005 that says so."""
    ids: set[str] = set()
    slots: set[Slot] = set()
    for group_id in group_ids:
        slots.add(Slot(relay, kinds.GROUP_PINS, group_id))
        for name, value, *_ in groups.by_id[group_id].pins:
            slot = slot_of_pin((name, value))
            if slot is not None:
                slots.add(slot)
            elif name == "e":
                ids.add(value)
    return replace(wanted, ids=wanted.ids | ids, slots=wanted.slots | slots)


def with_groups(
    wanted: Lookups, events: Sequence[tuple[Event, Keep]], groups: Groups, relay: str
) -> Lookups:
    """Also the rows that the relay itself will replace: its 39000–39005, and pending requests."""
    slots: set[Slot] = set()
    ids: set[str] = set()
    pinning: set[str] = set()
    for event, keep in events:
        pinning |= unsettled_pins(event, slot_of(event, keep), groups)
        group_id = event.tag("h") if event.kind in kinds.GROUP_RECORDS else None
        if group_id is None:
            continue
        slots.update(Slot(relay, kind, group_id) for kind in kinds.GROUP_STATE)
        slots.update(
            Slot(relay, kinds.GROUP_METADATA, other) for other in _relatives(event, groups)
        )
        group = groups.get(group_id)
        if group is not None and group.requests:
            for pubkey in (event.pubkey, *event.tag_values("p")):
                if pubkey in group.requests:
                    ids.add(group.requests[pubkey])
    if slots:
        wanted = replace(wanted, slots=wanted.slots | slots, ids=wanted.ids | ids)
    return with_pins(wanted, pinning, groups, relay) if pinning else wanted


def _relatives(event: Event, groups: Groups) -> Iterable[str]:
    """Groups whose 39000 may change with the event's own."""
    if event.kind not in (kinds.EDIT_METADATA, kinds.CREATE_GROUP, kinds.DELETE_GROUP):
        return ()
    named = event.tag_values("parent")
    group = groups.get(event.tag("h"))
    if group is None:
        return named
    return (*named, *group.children, *(() if group.parent is None else (group.parent,)))


def with_departures(
    wanted: Lookups, events: Sequence[Event], groups: Groups, leaving: Set[str], relay: str
) -> Lookups:
    """Also what must be known of the groups that these keys are about to vanish from."""
    replaced = {
        Slot(relay, kind, group_id)
        for pubkey in leaving
        for group_id in groups.groups_of(pubkey)
        for kind in kinds.GROUP_STATE
    }
    pending = {
        group.requests[pubkey]
        for group in groups.by_id.values()
        for pubkey in leaving & group.requests.keys()
    }
    recorded = {
        group_id
        for event in events
        if event.pubkey in leaving
        and event.kind in kinds.MODERATION
        and (group_id := event.tag("h")) is not None
    }
    wanted = replace(
        wanted,
        ids=wanted.ids | pending,
        slots=wanted.slots | replaced,
        vanishing_keys=frozenset(leaving),
        record_groups=frozenset(recorded),
    )
    return with_pins(wanted, all_pinning(groups), groups, relay)


def with_changes(
    wanted: Lookups, changes: Iterable[ListChange], groups: Groups, relay: str
) -> Lookups:
    """Also the events that a NIP-86 call bans, and what is pinned anywhere: it may go too."""
    for change in changes:
        if change.is_ban:
            wanted = with_pins(wanted, all_pinning(groups), groups, relay)
        if change.bans_event:
            wanted = replace(wanted, ids=wanted.ids | {change.item})
    return wanted


def with_swept(
    wanted: Lookups, rows: Sequence[Stored], rules: SweepRules, actors: Actors
) -> Lookups:
    """Also rows that may be swept, and what may hold them."""
    slots, dependencies = hold_lookups(rows, rules, actors)
    return replace(
        wanted,
        ids=wanted.ids | {row.event.id for row in rows},
        slots=wanted.slots | slots,
        dependencies=wanted.dependencies | dependencies,
    )


def with_expired(wanted: Lookups, ids: Iterable[str], groups: Groups, relay: str) -> Lookups:
    """Also these events, and what is pinned where one of them is."""
    wanted = replace(wanted, ids=wanted.ids.union(ids))
    return with_pins(wanted, all_pinning(groups), groups, relay)


def with_quotas(wanted: Lookups, events: Iterable[Event], policy: Policy) -> Lookups:
    """Also how much is stored of what the quotas about these events count."""
    accounts = {
        account
        for event in events
        for quota in policy.quotas_of(event.kind)
        if (account := quota.account_of(event.pubkey, event.tag("h"))) is not None
    }
    return replace(wanted, usage=frozenset(accounts)) if accounts else wanted
