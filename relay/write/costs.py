"""What items of the lanes cost: 1 is an event as most are, some 0.1 ms.

A batch is filled by cost, and connections take turns by it: see `relay.write.lane`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from relay.groups.actions import previous_in, size_of_tags
from relay.groups.notices import MAX_MEMBER_NOTICES, is_listed_apart
from relay.groups.timeline import MAX_PREVIOUS
from relay.nostr import kinds
from relay.nostr.event import Event
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    SignLists,
    SweepRows,
    SweepVersions,
    WriteEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.groups.group import Group, Groups
    from relay.write.commands import LaneItem

COST_S: Final = 0.0001
"""Seconds of 1."""
MAX_BATCH: Final = 512
"""Cost of what is judged and committed together."""
_MAX_SHARED: Final = 64
"""Cost of an event itself up to which it is committed together with others, which wait for it. Its
delivery and the lists of a group do not count: they cost less for many events at once."""
_ALONE: Final = MAX_BATCH // 2 + 1
"""Cost of what `Lane` commits alone: also of a request to vanish and of the end of a group, which
delete up to 64 KiB of rows at once."""
CHANGES_GROUP: Final = frozenset({*kinds.MODERATION, kinds.JOIN_REQUEST, kinds.LEAVE_REQUEST})
_WEIGHT_PER_COST: Final = 4096
"""Bytes as `weight_of` has them."""
_STORED_TAGS_PER_COST: Final = 30
"""Tags are indexed too: with their weight 9 us each, so 5,000 cost as much as 440 events of few."""
_GROUPS_PER_COST: Final = 1000
"""Of all groups: each is asked about a key that vanishes."""
_MEMBERS_PER_COST: Final = 1000
"""Of a group that an event changes, or of the relay: its list is signed once for a batch."""
_CODES_PER_COST: Final = 500
"""Of such a group: a request to join is compared with each, and each use copies them."""
_LISTED_PER_COST: Final = 10
"""Of a group whose lists are signed with the event: 10 us each."""
_ROLES_PER_COST: Final = 64
"""Of its members: 39001 repeats up to 64 characters of each."""
_SENT_PER_COST: Final = 4000
"""Of members in such lists, as often as a list is delivered: 70 bytes each."""
_CHANGE_COST: Final = 4
"""What the relay signs for a group that changes: 39000 to 39005."""
_DESCRIBES: Final = frozenset({kinds.CREATE_GROUP, kinds.EDIT_METADATA})
_CHILD_SIZE: Final = 72
"""Bytes of a tag in a 39000 that names a subgroup."""
_LEFT_COST: Final = 30
"""A group that a vanishing key leaves: what the relay signs for it, 3 ms."""
_CHANGED_PER_COST: Final = 2
"""Members that an event changes: rows of the group's tables and of notices, 60 us each."""
_PREVIOUS_PER_COST: Final = 2
"""Each is looked up, 10 us, and its row judged, up to 40 us."""
_TARGETS_PER_COST: Final = 4
"""Of a deletion: each leaves a tombstone, 30 us."""
_MEMBERSHIP_COST: Final = 3
"""What a request to join or leave the relay changes: two lists, and an 8000 or 8001."""
_FILTERS_PER_COST: Final = 16
"""Of open subscriptions that match the event or are compared with it: 2.5 us for each delivery, or
as long as that takes of what searches cost. The next batch waits for the delivery of this one."""
_PRIVATE_FILTERS_PER_COST: Final = 4
"""The same in a group that members alone read: each reader is looked at, up to 10 us."""
_ROWS_PER_COST: Final = 4
"""Of a sweep."""
_TAGS_PER_COST: Final = 8
"""Where signatures are checked: the store prepares each tag, 5 us."""


def cost_of_check(item: WriteEvent) -> int:
    """Where signatures are checked."""
    return 1 + len(item.event.tags) // _TAGS_PER_COST


def cost_of(
    item: LaneItem,
    groups: Groups,
    number_for: Callable[[Event], int],
    relay: str,
    members: Callable[[], int],
) -> int:
    """Where batches are committed. `number_for`: as `Subscribers.number_for`. `relay`: its key.
    `members`: number of those in its register."""
    match item:
        case WriteEvent(event=event) if event.kind in kinds.MEMBERSHIP_REQUESTS:
            about = _cost_of_event(item, groups, number_for, relay)
            return about + _MEMBERSHIP_COST + members() // _MEMBERS_PER_COST
        case WriteEvent():
            return _cost_of_event(item, groups, number_for, relay)
        case ManagementChange():
            return 1 + len(item.changes)
        case ExpireRows() | SweepRows():
            return 1 + len(item.rows) // _ROWS_PER_COST
        case SweepVersions():
            return 1 + len(item.due) // _ROWS_PER_COST
        case SignLists():
            return MAX_BATCH
        case _:
            assert_never(item)


def _cost_of_event(
    item: WriteEvent, groups: Groups, number_for: Callable[[Event], int], relay: str
) -> int:
    event, filters = item.event, number_for(item.event)
    changes_group = event.kind in CHANGES_GROUP
    group = groups.get(event.tag("h")) if filters or changes_group else None
    cost = 1 + item.weight // _WEIGHT_PER_COST + len(event.tags) // _STORED_TAGS_PER_COST
    if event.kind == kinds.DELETION:
        cost += len(event.tags) // _TARGETS_PER_COST
    if event.kind == kinds.VANISH:
        cost += _ALONE + _LEFT_COST * len(groups.groups_of(event.pubkey))
    if changes_group:
        told = min(len(event.tags), MAX_MEMBER_NOTICES)
        cost += _CHANGE_COST + told + (len(event.tags) - told) // _CHANGED_PER_COST
        for each in _described(event, group, groups):
            # It is written, and the version before it overwritten.
            size = size_of_tags(each.metadata) + _CHILD_SIZE * len(each.children)
            cost += 2 * size // _WEIGHT_PER_COST
            tags = [["d", each.id], *map(list, each.metadata)]
            signed = Event("", relay, 0, kinds.GROUP_METADATA, tags, "", "", b"")
            cost += number_for(signed) // _FILTERS_PER_COST
        if event.kind == kinds.DELETE_GROUP and group is not None and group.is_admin(event.pubkey):
            cost += _ALONE + len(group.members) // _CHANGED_PER_COST
            cost += _CHANGE_COST * len(group.children)
    if cost > _MAX_SHARED:
        cost = max(cost, _ALONE)
    if filters:
        is_private = group is not None and group.only_members_read
        cost += filters // (_PRIVATE_FILTERS_PER_COST if is_private else _FILTERS_PER_COST)
    if event.tag("previous") is not None:
        cost += min(len(previous_in(event)), MAX_PREVIOUS) // _PREVIOUS_PER_COST
    if event.kind == kinds.VANISH:
        cost += len(groups.by_id) // _GROUPS_PER_COST
    if changes_group and group is not None:
        cost += len(group.involved) // _MEMBERS_PER_COST
        cost += len(group.invites) // _CODES_PER_COST
        if not is_listed_apart(group):
            cost += _cost_of_list(group, number_for, relay)
    return cost


def _described(event: Event, group: Group | None, groups: Groups) -> list[Group]:
    """Those whose 39000 is signed again: the group, and those above and below it that it comes to
    or leaves."""
    found: list[Group | None]
    if event.kind == kinds.DELETE_GROUP and group is not None:
        found = [groups.get(group.parent), *map(groups.get, group.children)]
    elif event.kind in _DESCRIBES:
        found = [group, groups.get(event.tag("parent"))]
        if group is not None:
            found.append(groups.get(group.parent))
    else:
        return []
    return [each for each in found if each is not None]


def _cost_of_list(group: Group, number_for: Callable[[Event], int], relay: str) -> int:
    """Of its 39001 and 39002, which are signed with the event, and delivered."""
    tags = [["d", group.id]]
    filters = number_for(Event("", relay, 0, kinds.GROUP_MEMBERS, tags, "", "", b""))
    members = len(group.members)
    return (
        members // _LISTED_PER_COST
        + sum(map(len, group.members.values())) // _ROLES_PER_COST
        + filters // _FILTERS_PER_COST
        + filters * members // _SENT_PER_COST
    )
