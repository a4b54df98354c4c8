"""What items of the lanes cost: 1 is an event as most are, some 0.1 ms.

A batch is filled by cost, and connections take turns by it: see `relay.write.lane`. Of the
constants, `_…_PER_COST` is how many of something cost 1, `_…_COST` what one of something costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, assert_never

from relay.groups.actions import PIN_TAGS, previous_in, size_of_tags
from relay.groups.notices import (
    MAX_MEMBER_NOTICES,
    OF_ITS_AUTHOR,
    bytes_of_description,
    described_by,
    is_listed_apart,
    named_together,
    users_of,
)
from relay.groups.timeline import MAX_PREVIOUS
from relay.lifecycle.rows import UNPINNED_AT_ONCE
from relay.nostr import kinds
from relay.nostr.event import Event, indexed
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    SignLists,
    SweepRows,
    SweepVersions,
    WriteEvent,
)
from relay.write.pins import pinning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set

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
"""Kinds that may change a group."""
_WEIGHT_PER_COST: Final = 4096
"""Bytes, as `weight_of` estimates them."""
_STORED_TAGS_PER_COST: Final = 30
"""Tags are indexed too: with their weight 9 us each, so 5,000 cost as much as 440 events of few."""
_GROUPS_PER_COST: Final = 1000
"""Of all groups: for a key that vanishes each is looked at."""
_MEMBERS_PER_COST: Final = 1000
"""Of a group that an event changes, or of the relay: a list of them is signed once for a batch."""
_CODES_PER_COST: Final = 500
"""Of a group that an event changes: a request to join is compared with each."""
_LISTED_PER_COST: Final = 10
"""Members of a group whose lists are signed with the event: 10 us each."""
_ROLES_PER_COST: Final = 64
"""Of the members of such a group: the 39001 repeats up to 64 characters of each role."""
_SENT_PER_COST: Final = 4000
"""Members in such lists, times how often a list is delivered: 70 bytes each."""
_CHANGE_COST: Final = 4
"""What the relay signs for a group that changes: 39000 to 39005."""
_REMOVES: Final = frozenset({kinds.REMOVE_USER, kinds.LEAVE_REQUEST, kinds.DELETE_GROUP})
"""Kinds that remove members."""
_CHILD_COST: Final = 36
"""A subgroup whose 39000 is signed again: as if its description was as long as can be. To measure
64 KiB takes 0.35 ms."""
_LEFT_COST: Final = 30
"""A group that a vanishing key leaves: what the relay signs for it, 3 ms."""
_CHANGED_PER_COST: Final = 2
"""Members that an event changes: rows of the group's tables and of notices, 60 us each."""
_TARGETS_PER_COST: Final = 4
"""Of a deletion: each leaves a tombstone, 30 us."""
_PINS_PER_COST: Final = 32
"""Of the event's group: each is looked up, 4 us."""
_MEMBERSHIP_COST: Final = 3
"""What a request to join or leave the relay changes: two lists, and an 8000 or 8001."""
_FILTERS_PER_COST: Final = 16
"""Of open subscriptions, as `number_for` counts them: 2.5 us for each delivery, up to 10 in a group
that only members read, and searches count as more. The next batch waits for the delivery of this
one. But each commit takes some iterations of the loop: events must not have one each because of the
1,000 filters that sixteen networks may have here."""
_BYTES_PER_COST: Final = 100_000
"""Of what is delivered: each megabyte takes the loop 1 ms."""
_ROWS_PER_COST: Final = 4
"""Of a sweep: each is removed."""
_TAGS_PER_COST: Final = 8
"""Of an event whose signature is checked: the store prepares each tag, 5 us."""


class FilterNumbers(Protocol):
    """The part of `relay.write.delivery.AllSubscribers` that tells what a delivery costs: of the
    subscriptions that get the event before the next commit."""

    def number_for(self, event: Event) -> int:
        """What the delivery of the event costs, as a number of filters: those that match it or are
        compared with it, and more of them for searches."""

    def receivers_for(self, event: Event) -> int:
        """How many filters match the event or are compared with it: it is sent no more often."""


def cost_of_check(item: WriteEvent) -> int:
    """The cost of an event in the lane for signatures."""
    return 1 + len(item.event.tags) // _TAGS_PER_COST


def cost_of(
    item: LaneItem,
    groups: Groups,
    subscribers: FilterNumbers,
    relay: str,
    members: Callable[[], int],
    owners: Set[str],
) -> int:
    """The cost of an item in the lane for the store. `relay`: its key. `members`: how many keys its
    register has. `owners`: of the relay. Who is none of these needs a role to change a group: an
    event by somebody without one costs no more than its refusal."""
    match item:
        case WriteEvent(event=event) if event.kind in kinds.MEMBERSHIP_REQUESTS:
            about = _cost_of_event(item, groups, subscribers, relay, owners)
            return about + _MEMBERSHIP_COST + members() // _MEMBERS_PER_COST
        case WriteEvent():
            return _cost_of_event(item, groups, subscribers, relay, owners)
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


def charge_of(item: LaneItem, cost: int) -> int:
    """The part of its cost that decides whose turn comes next: without its delivery, or those who
    have subscribed would decide how long its author waits."""
    if not isinstance(item, WriteEvent):
        return cost
    return max(1, cost - cost * item.cost_of_delivery // item.cost)  # it may be a multiple


def _cost_of_event(
    item: WriteEvent,
    groups: Groups,
    subscribers: FilterNumbers,
    relay: str,
    owners: Set[str],
) -> int:
    number_for = subscribers.number_for
    event = indexed(item.event)
    filters = number_for(event)
    told = 0  # filters that are compared with what the relay signs about the event
    is_about_group = event.kind in CHANGES_GROUP
    group = groups.get(event.tag("h")) if is_about_group or groups.pinned else None
    changes_group = is_about_group and _may_change(event, group, {*owners, relay})
    cost = 1 + item.weight // _WEIGHT_PER_COST + len(event.tags) // _STORED_TAGS_PER_COST
    if group is not None:
        cost += len(group.pins) // _PINS_PER_COST
    unpinned = _unpinned_by(event, group, groups)
    if event.kind == kinds.DELETION:
        cost += len(event.tags) // _TARGETS_PER_COST
        for each in unpinned:
            # Its 39005 is written, and the version before that overwritten.
            stored_tags = len(each.pins) // _STORED_TAGS_PER_COST
            cost += 2 * (1 + size_of_tags(each.pins) // _WEIGHT_PER_COST + stored_tags)
    if event.kind == kinds.VANISH:
        cost += _ALONE + _LEFT_COST * len(groups.groups_of(event.pubkey))
    if changes_group:
        notices = min(len(event.tags), MAX_MEMBER_NOTICES)
        cost += _CHANGE_COST + notices + (len(event.tags) - notices) // _CHANGED_PER_COST
        for each in described_by(event, group, groups):
            # Its 39000 is written, and the version before that overwritten.
            cost += 2 * bytes_of_description(each) // _WEIGHT_PER_COST
            further = event.tags if each is group else ()
            tags = [["d", each.id], *map(list, each.metadata), *further]
            told += number_for(_signed(relay, kinds.GROUP_METADATA, tags))
        if event.kind == kinds.DELETE_GROUP and group is not None and group.is_admin(event.pubkey):
            cost += _ALONE + len(group.members) // _CHANGED_PER_COST
            for child in group.children:
                cost += _CHILD_COST
                told += number_for(_signed(relay, kinds.GROUP_METADATA, [["d", child]]))
    if cost > _MAX_SHARED:
        cost = max(cost, _ALONE)
    delivery = 0
    if filters:
        delivery = min(filters // _FILTERS_PER_COST, MAX_BATCH)
        # Few of the filters that are compared may match: more than a batch would be too much.
        if filters * len(event.raw) >= _BYTES_PER_COST:
            sent = subscribers.receivers_for(event) * len(event.raw)
            delivery += min(sent // _BYTES_PER_COST, MAX_BATCH)
    if event.tag("previous") is not None:
        # Each is looked up, 16 us, or 1 ms if 1,000 rows begin so; and judged, up to 40 us a row.
        cost += min(len(previous_in(event)), MAX_PREVIOUS)
    if event.kind == kinds.VANISH:
        cost += len(groups.by_id) // _GROUPS_PER_COST
    if changes_group:
        users = [["p", pubkey] for pubkey in users_of(event, group)]
        told += sum(map(number_for, _notices_about(event, users, relay)))
        if group is not None:
            cost += len(group.involved) // _MEMBERS_PER_COST
            cost += len(group.invites) // _CODES_PER_COST
        if group is None or not is_listed_apart(group):
            members: Mapping[str, Sequence[str]] = {} if group is None else group.members
            cost += len(members) // _LISTED_PER_COST
            cost += sum(map(len, members.values())) // _ROLES_PER_COST
            of_members, of_admins = _filters_of_lists(event, members, users, number_for, relay)
            told += of_members + of_admins
            delivery += min(of_members * len(members) // _SENT_PER_COST, MAX_BATCH)
    for each in unpinned:
        tags = [["d", each.id], *map(list, each.pins)]
        told += number_for(_signed(relay, kinds.GROUP_PINS, tags))
    if event.kind in kinds.MEMBERSHIP_REQUESTS:
        told += sum(map(number_for, _notices_of_member(event, relay)))
    delivery += min(told // _FILTERS_PER_COST, MAX_BATCH)
    item.cost_of_delivery = delivery
    return cost + delivery


def _may_change(event: Event, group: Group | None, operators: Set[str]) -> bool:
    """Whether a change of the group may be accepted, as far as it is known without the policies."""
    if group is None or event.kind == kinds.CREATE_GROUP:
        return group is None and event.kind == kinds.CREATE_GROUP
    is_for_anybody = event.kind in (kinds.JOIN_REQUEST, kinds.LEAVE_REQUEST)
    return is_for_anybody or event.pubkey in operators or bool(group.members.get(event.pubkey))


def _notices_about(event: Event, users: Sequence[list[str]], relay: str) -> Iterator[Event]:
    """What the relay signs about the change beside the lists and the 39000s of `described_by`, as
    far as filters are compared with it. `users`: tags `p`."""
    group_id = event.tag("h") or ""
    d, in_group = ["d", group_id], [["h", group_id], ["e", event.id]]
    kind, notice = kinds.PUT_USER, kinds.GROUP_MEMBER_ADDED
    if event.kind in _REMOVES:
        kind, notice = kinds.REMOVE_USER, kinds.GROUP_MEMBER_REMOVED
    for named in named_together(users):
        yield _signed(relay, notice, [*in_group, *named])
    if event.kind in OF_ITS_AUTHOR:
        yield _signed(relay, kind, [*in_group, *users])
    if event.kind == kinds.CREATE_GROUP:
        yield _signed(relay, kinds.GROUP_METADATA, [d, *event.tags])
        yield _signed(relay, kinds.GROUP_ROLES, [d])
    if event.kind == kinds.UPDATE_PINS:
        yield _signed(relay, kinds.GROUP_PINS, [d, *event.tags])


def _notices_of_member(event: Event, relay: str) -> Iterator[Event]:
    """What the relay signs about a request to join or leave it."""
    kind = kinds.MEMBER_ADDED if event.kind == kinds.RELAY_JOIN else kinds.MEMBER_REMOVED
    yield _signed(relay, kind, [["p", event.pubkey]])
    yield _signed(relay, kinds.RELAY_MEMBERS, [])


def _unpinned_by(event: Event, group: Group | None, groups: Groups) -> list[Group]:
    """Groups whose 39005 may be signed because the event deletes something that they pin: as many
    as one transaction takes."""
    if event.kind == kinds.DELETE_EVENT and group is not None and group.pins:
        return [group]
    if event.kind == kinds.DELETION and groups.pinned:
        named = [(tag[0], tag[1]) for tag in event.tags if len(tag) > 1 and tag[0] in PIN_TAGS]
        found = sorted(pinning(named, groups))[:UNPINNED_AT_ONCE]
        return [groups.by_id[group_id] for group_id in found]
    return []


def _filters_of_lists(
    event: Event,
    members: Mapping[str, Sequence[str]],
    users: Sequence[list[str]],
    number_for: Callable[[Event], int],
    relay: str,
) -> tuple[int, int]:
    """How many filters are compared with the 39002 and with the 39001 that are signed with it."""
    tags = [["d", event.tag("h") or ""], *users]
    admins = [["p", pubkey] for pubkey, roles in members.items() if roles]
    listed = [["p", pubkey] for pubkey in members]
    of_members = number_for(_signed(relay, kinds.GROUP_MEMBERS, [*tags, *listed]))
    return of_members, number_for(_signed(relay, kinds.GROUP_ADMINS, [*tags, *admins]))


def _signed(relay: str, kind: int, tags: list[list[str]]) -> Event:
    """An event of the relay with what `number_for` looks at."""
    return Event("", relay, 0, kind, tags, "", "", b"")
