"""Events that the relay signs for its groups, unsigned: 39000–39003 and 39005, its 9000 and 9001,
and the notices of membership 44100 and 44101.

Invariants: a notice is made only when what it says changes (N29-69), with a created_at above that
of the one before (N29-68). A list too long for one message is cut (N29-71).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, islice, takewhile
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from relay.groups.actions import MAX_STATE_BYTES, SINGLE_VALUED, Flag, PutUsers, size_of_tags
from relay.groups.group import Role
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

    from relay.groups.actions import RemoveUsers
    from relay.groups.group import Group, Groups
    from relay.nostr.event import Event

_T = TypeVar("_T")
_STYLED: Final = frozenset({kinds.GROUP_METADATA, kinds.GROUP_ADMINS})
"""Kinds whose notices depend on `Compat`."""
MAX_TAGS_BYTES: Final = 480_000
"""Bytes of the tags of a notice: its frame stays below the default `max_message_length` of 524,288.
Enough for 6,600 members."""
NOTICES: Final = frozenset(kinds.GROUP_STATE)
LISTS: Final = frozenset({kinds.GROUP_ADMINS, kinds.GROUP_MEMBERS})
"""Follow from other events; a replay of the log takes a description and pins from the notices."""
_LONG_LIST: Final = 500
"""Members. To sign their list and index it takes 5 ms and more."""

MAX_MEMBER_NOTICES: Final = 100
"""Notices of each kind for one event: each is signed and stored, 50 us. With more members several
of them share a notice; they may read each other's keys in the 9000 or 9001 anyway."""

_MEMBER_BYTES: Final = 71
"""Of a tag in a 39002."""
_LIST_BYTES: Final = 400
"""Of a list beside its tags."""
_KIND_BYTES: Final = 8
"""Of a value of `supported_kinds`."""
_TAG_BYTES: Final = 11
"""Of a tag `child` beside the id."""
_DESCRIBES: Final = frozenset({kinds.CREATE_GROUP, kinds.EDIT_METADATA})
OF_ITS_AUTHOR: Final = frozenset({kinds.CREATE_GROUP, kinds.JOIN_REQUEST, kinds.LEAVE_REQUEST})
"""The relay signs a 9000 or 9001 about their author."""

_PERMISSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    Role.ADMIN.value: (
        "put-user",
        "remove-user",
        "edit-metadata",
        "delete-event",
        "delete-group",
        "create-invite",
    ),
    Role.MODERATOR.value: ("put-user", "remove-user", "delete-event", "create-invite"),
}
"""For `Compat.OXCHAT`: the names that 0xchat supports (nostr-dart, lib/src/nips/nip_029.dart); it
fails at any other."""

_ROLES: Final = (
    (Role.ADMIN, "does everything in this group"),
    (
        Role.MODERATOR,
        "puts in and takes out plain members, deletes their events, makes invites, pins events",
    ),
)


class Compat(Enum):
    """`[groups] compat`: clients for which notices have more tags than NIP-29 requires."""

    OXCHAT = "0xchat"


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that the relay will sign with its own key."""

    kind: int
    tags: tuple[tuple[str, ...], ...]
    content: str
    created_at: int


def draft_of(action: PutUsers | RemoveUsers, *, cause: str | None = None) -> Draft:
    """A 9000 or 9001 by the relay. `cause`: id of the event that it follows from; without it two of
    the same second would have the same id."""
    because: tuple[tuple[str, ...], ...] = () if cause is None else (("e", cause),)
    if isinstance(action, PutUsers):
        users = (("p", pubkey, *roles) for pubkey, roles in action.users.items())
        # The 9009 by its id: members may not read the code itself (N29-38).
        uses = (("invite", use.event_id, str(use.code_index)) for use in action.invite_uses)
        tags: tuple[tuple[str, ...], ...] = (*users, *because, *uses)
    else:
        own: tuple[tuple[str, ...], ...] = (("self-removal",),) if action.is_own_wish else ()
        tags = (*(("p", pubkey) for pubkey in sorted(action.pubkeys)), *own, *because)
    return Draft(action.kind, (("h", action.group), *tags), "", action.created_at)


def notices_for(
    before: Group | None,
    after: Group,
    now: int,
    compat: Set[Compat] = frozenset(),
    which: Set[int] = NOTICES,
) -> tuple[Group, tuple[Draft, ...]]:
    """What of these kinds the relay must publish when `before` (None: the group is new) has become
    `after`.

    Returns `after` with the `notice_times` of these drafts, and the drafts in order of kind.
    """
    return _dated(_changed(before, after, compat, which), after, now)


def is_listed_apart(group: Group) -> bool:
    """Whether its lists are signed in a transaction of their own, after those that changed it:
    changes of many such groups would take seconds."""
    return len(group.members) > _LONG_LIST


def described_by(event: Event, group: Group | None, groups: Groups) -> list[Group]:
    """Groups whose 39000 the event makes the relay sign again: its own, and those above it that it
    comes to or leaves; not its subgroups, of which there may be hundreds."""
    was = None if group is None else group.parent
    if event.kind == kinds.DELETE_GROUP and group is not None:
        found = [groups.get(was)]
    elif event.kind in _DESCRIBES:
        becomes = event.tag("parent")
        above = [] if was == becomes else [groups.get(was), groups.get(becomes)]
        found = [group, *above]
    else:
        return []
    return [each for each in found if each is not None]


def users_of(event: Event, group: Group | None) -> Collection[str]:
    """Whose membership the event may change."""
    match event.kind:
        case kinds.PUT_USER | kinds.REMOVE_USER:
            return set(event.tag_values("p"))
        case kind if kind in OF_ITS_AUTHOR:
            return [event.pubkey]
        case kinds.DELETE_GROUP if group is not None and group.is_admin(event.pubkey):
            return [*islice(group.members, MAX_MEMBER_NOTICES)]
        case _:
            return ()


def bytes_signed(event: Event, groups: Groups) -> int:
    """About how many bytes of descriptions and pins the relay signs because of this change of a
    group, beside what the event itself says. Lists have a pace of their own (`ListSigning`). Other
    events count nothing: a refusal would tell what is hidden."""
    group, size = groups.get(event.tag("h")), 0
    for each in described_by(event, group, groups):
        size += _bytes_of_children(each) if each is group else bytes_of_description(each)
    if group is None:
        return size
    if event.kind == kinds.DELETE_GROUP:
        size += MAX_STATE_BYTES * len(group.children)
    elif event.kind == kinds.DELETE_EVENT:
        size += size_of_tags(group.pins)
    return size


def bytes_of_description(group: Group) -> int:
    """Of the tags of its 39000, about: to write thousands of kinds takes a millisecond."""
    of_kinds = _KIND_BYTES * len(group.supported_kinds or ())
    return size_of_tags(group.metadata) + of_kinds + _bytes_of_children(group)


def _bytes_of_children(group: Group) -> int:
    return sum(_TAG_BYTES + len(child.encode()) for child in group.children)


def bytes_of_lists(group: Group) -> int:
    """Of its 39001 and 39002, about."""
    roles = [each for each in group.members.values() if each]
    sizes = _MEMBER_BYTES * len(group.members), _MEMBER_BYTES * len(roles) + size_of_tags(roles)
    return sum(_LIST_BYTES + min(size, MAX_TAGS_BYTES) for size in sizes)


def bytes_of_changed_lists(before: Group | None, after: Group) -> int:
    """As `bytes_of_lists`; 0 if neither changes."""
    changes = before is None or _has_other_members(before, after) or _has_other_roles(before, after)
    return bytes_of_lists(after) if changes else 0


def notices_again(
    group: Group, which: Set[int], now: int, compat: Set[Compat]
) -> tuple[Group, tuple[Draft, ...]]:
    """The notices of these kinds once more, although the group has not changed."""
    return _dated(_changed(None, group, compat, which), group, now)


def is_outdated(event: Event, group: Group, compat: Set[Compat]) -> bool:
    """Whether a stored 39000 or 39001 of this group differs from what the current `compat` gives,
    or a 39002 from its members: the relay ended before it was signed."""
    is_of_members = event.kind == kinds.GROUP_MEMBERS
    if not is_of_members and event.kind not in _STYLED:
        return False
    _, wanted = next(iter(_changed(None, group, compat, {event.kind})))
    if is_of_members and len(wanted) <= len(group.members):  # `d` and as many as fit, in any order
        listed = set(event.tag_values("p"))
        return len(listed) != len(wanted) - 1 or not group.members.keys() >= listed
    return frozenset(map(tuple, event.tags)) != frozenset(wanted)


def _dated(
    notices: Iterable[tuple[int, tuple[tuple[str, ...], ...]]], group: Group, now: int
) -> tuple[Group, tuple[Draft, ...]]:
    drafts = tuple(
        Draft(kind, tags, "", max(now, group.notice_times.get(kind, -1) + 1))
        for kind, tags in notices
    )
    if not drafts:
        return group, ()
    notice_times = {**group.notice_times, **{draft.kind: draft.created_at for draft in drafts}}
    return replace(group, notice_times=notice_times), drafts


def membership_notices(
    before: Group | None,
    after: Group | None,
    users: Set[str] | None = None,
    *,
    cause: str,
    actor: str,
    now: int,
) -> Iterator[Draft]:
    """44100 for keys that became members, 44101 for keys that ceased to be; the form is Buzz's.

    `before` None: the group is new; `after` None: it has ended. `users`: keys whose membership may
    differ; None: any. `cause` and `actor`: id and author of the event that changed the members. The
    tag `e` makes the ids of notices of one second differ.
    """
    if before is not None and after is not None:
        differing = before.members.differing(after.members) if users is None else users
        was = {pubkey for pubkey in differing if pubkey in before.members}
        is_now = {pubkey for pubkey in differing if pubkey in after.members}
    else:
        was = set(() if before is None else before.members)
        is_now = set(() if after is None else after.members)
    group = after or before
    assert group is not None
    for kind, event_type, pubkeys in (
        (kinds.GROUP_MEMBER_ADDED, "member_added", is_now - was),
        (kinds.GROUP_MEMBER_REMOVED, "member_removed", was - is_now),
    ):
        content = {"type": event_type, "channel_id": group.id, "actor": actor}
        said = orjson.dumps(content).decode()
        for keys in named_together(sorted(pubkeys)):
            named = tuple(("p", pubkey) for pubkey in keys)
            yield Draft(kind, (*named, ("h", group.id), ("e", cause)), said, now)


def named_together(keys: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Those that each notice of membership names."""
    count = -(-len(keys) // MAX_MEMBER_NOTICES)
    for start in range(0, len(keys), max(1, count)):
        yield keys[start : start + count]


def _has_other_roles(before: Group, after: Group) -> bool:
    was, is_now = before.members, after.members
    return any(was.get(key, ()) != is_now.get(key, ()) for key in was.differing(is_now))


def _has_other_members(before: Group, after: Group) -> bool:
    was, is_now = before.members, after.members
    return any((key in was) is not (key in is_now) for key in was.differing(is_now))


def _changed(
    before: Group | None,
    after: Group,
    compat: Set[Compat],
    which: Set[int] = NOTICES,
) -> Iterable[tuple[int, tuple[tuple[str, ...], ...]]]:
    if kinds.GROUP_METADATA in which and (
        before is None or description_tags(before, compat) != description_tags(after, compat)
    ):
        yield kinds.GROUP_METADATA, description_tags(after, compat)
    if kinds.GROUP_ADMINS in which and (before is None or _has_other_roles(before, after)):
        yield kinds.GROUP_ADMINS, _list_of(after, _admins(after, compat))
    if kinds.GROUP_MEMBERS in which and (before is None or _has_other_members(before, after)):
        yield (
            kinds.GROUP_MEMBERS,
            _list_of(after, (("p", pubkey) for pubkey in after.members.in_order())),
        )
    if kinds.GROUP_ROLES in which and before is None:
        yield kinds.GROUP_ROLES, _list_of(after, (("role", name, text) for name, text in _ROLES))
    if kinds.GROUP_PINS in which and after.pins != (() if before is None else before.pins):
        yield kinds.GROUP_PINS, (("d", after.id), *after.pins)


def _admins(group: Group, compat: Set[Compat]) -> Iterable[tuple[str, ...]]:
    for pubkey, roles in group.admins().items():
        if Compat.OXCHAT in compat:
            # It takes a second role for a permission and does not know it.
            role = next((role.value for role in Role if role in roles), roles[0])
            yield "p", pubkey, role, *_PERMISSIONS.get(role, ())
        else:
            yield "p", pubkey, *roles


def description_tags(
    group: Group, compat: Set[Compat] = frozenset()
) -> tuple[tuple[str, ...], ...]:
    """Tags of 39000 in the order of N29-62; `relay.groups.actions` parses them."""
    known = tuple(tag for tag in group.metadata if tag[0] in SINGLE_VALUED)
    others = tuple(tag for tag in group.metadata if tag[0] not in SINGLE_VALUED)
    flags = tuple((flag.value,) for flag in Flag if flag in group.flags)
    if Compat.OXCHAT in compat:
        # It treats a group as private and closed unless it has the tags `public` and `open`.
        flags += () if group.only_members_read else (("public",),)
        flags += () if group.is_closed else (("open",),)
    supported: tuple[tuple[str, ...], ...] = ()
    if group.supported_kinds is not None:
        supported = (("supported_kinds", *map(str, sorted(group.supported_kinds))),)
    parent = () if group.parent is None else (("parent", group.parent),)
    children = tuple(("child", child) for child in group.children)
    return (("d", group.id), *known, *flags, *supported, *parent, *children, *others)


def _list_of(group: Group, tags: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """`d` and as many of these tags as fit into MAX_TAGS_BYTES."""
    every = (("d", group.id), *tags)
    if len(orjson.dumps(every)) <= MAX_TAGS_BYTES:  # as nearly always, and fast
        return every
    sizes = accumulate(len(each) + 1 for each in map(orjson.dumps, every))
    return every[: sum(1 for _ in takewhile(MAX_TAGS_BYTES.__ge__, sizes))]
