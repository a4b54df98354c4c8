"""What an Action does, if its author has the right: Ruling or Reject.

Invariants: everything that is judged is judged against the groups as the event before left them;
nothing here knows a store or a clock. A refusal says the same of a hidden group, to whom it is
hidden, as of one that was never made: `_unless_hidden` is the last word of every ruling.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, assert_never

from relay.errors import Prefix
from relay.groups.actions import (
    Action,
    CreateGroup,
    CreateInvites,
    DeleteEvents,
    DeleteGroup,
    EditMetadata,
    JoinRequest,
    LeaveRequest,
    Moderation,
    PutUsers,
    RemoveUsers,
    UpdatePins,
)
from relay.groups.context import (
    NOT_A_MEMBER,
    RULE,
    GroupContext,
    GroupSettings,
    Joins,
    NotStored,
    Ruling,
    Target,
    acts_as_admin,
    knows_group,
    rejected,
)
from relay.groups.group import Flag, Group, Groups, Role, group_after
from relay.groups.membership import LAST_ADMIN, is_migrating, joining, leaving, loses_last_admin
from relay.groups.notices import Draft
from relay.groups.subgroups import check_placement, detach_subgroups, place_group
from relay.groups.writing import (
    RELAY_ONLY,
    check_created_at,
    check_previous,
    is_relay_only,
    objection,
)
from relay.nostr import kinds
from relay.verdict import Origin, Reject

if TYPE_CHECKING:
    from relay.groups.actions import Description
    from relay.nostr.event import Event

__all__ = [
    "NOT_A_MEMBER",
    "RELAY_ONLY",
    "Draft",
    "GroupContext",
    "GroupSettings",
    "Joins",
    "NotStored",
    "Ruling",
    "Target",
    "is_relay_only",
    "objection",
    "ruling_on",
]

_ADMINS_ONLY: Final = Reject(Prefix.RESTRICTED, "only an admin of the group may do this", RULE)
_ROLE_HOLDER: Final = Reject(
    Prefix.RESTRICTED, "only an admin may change or remove who holds a role", RULE
)
_UNDELETABLE: Final = (frozenset(kinds.MODERATION) | frozenset(kinds.GROUP_STATE)) - {
    kinds.CREATE_INVITE
}
"""A 9005 does not take these (N29-51); taking a 9009 revokes its codes."""

_ISSUED: Final = frozenset({kinds.PUT_USER, kinds.REMOVE_USER})
"""What a relay issues by itself, and what counts of it when a group moves here (N29-152)."""


class _Rank(IntEnum):
    """What a key may do in a group (N29-112)."""

    NONE = 0
    MODERATOR = 1
    ADMIN = 2


def ruling_on(
    event: Event,
    action: Action,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    """What the 9000–9022 that asks for `action` does, or why it is refused."""
    if isinstance(action, CreateGroup):
        return _creation(event, action, groups, settings, context)
    group = groups.get(action.group)
    if group is None:
        return NOT_A_MEMBER
    ruling: Ruling | Reject
    match action:
        case JoinRequest() | LeaveRequest() if is_migrating(group, context):
            # What came of it the old relay says next: who is let in here must not depend on today.
            ruling = Ruling(groups.with_group(group_after(group, event, context.relay)))
        case JoinRequest():
            ruling = joining(event, action, group, groups, settings, context)
        case LeaveRequest():
            ruling = leaving(event, group, groups, settings, context)
        case _:
            ruling = _moderation(event, action, group, groups, settings, context)
    return _unless_hidden(ruling, event.pubkey, group, context)


def _unless_hidden(
    ruling: Ruling | Reject, pubkey: str, group: Group, context: GroupContext
) -> Ruling | Reject:
    """The ruling, its refusal unspecific for whom the group does not exist (N29-06, Z-02)."""
    if not group.is_hidden or knows_group(pubkey, group, context):
        return ruling
    return NOT_A_MEMBER if isinstance(ruling, Reject) else ruling


def _rank_of(event: Event, group: Group, context: GroupContext) -> _Rank:
    pubkey = event.pubkey
    if acts_as_admin(pubkey, context) or group.is_admin(pubkey):
        return _Rank.ADMIN
    if (
        context.origin is Origin.TRUSTED_IMPORT
        and event.kind in _ISSUED
        and (pubkey in group.former_relay_keys or (group.members and group.is_founding(event)))
    ):
        return _Rank.ADMIN
    if Role.MODERATOR in group.members.get(pubkey, ()):
        return _Rank.MODERATOR
    return _Rank.NONE


def _creation(
    event: Event,
    action: CreateGroup,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    if settings.create.isdisjoint(context.who) and event.pubkey != context.relay:
        return rejected(Prefix.RESTRICTED, "you may not create groups here")
    if action.group in groups.by_id or action.group in groups.ended:
        # The one place where a hidden id shows: it cannot be made twice (N29-120).
        return rejected(Prefix.DUPLICATE, "this group id is taken")
    refusal = check_created_at(event, settings, context) or check_previous(event, settings, context)
    if refusal is not None:
        return refusal
    said = action.description
    said = replace(said, flags=said.flags or settings.new)
    founder = {event.pubkey: (Role.ADMIN.value,)}
    group = _described(Group(action.group), said, settings).with_users(founder)
    led = _led(said.parent, event.pubkey, groups, context)
    refusal = check_placement(Group(action.group), group, led, groups)
    if refusal is not None:
        return refusal
    groups, relatives = place_group(groups, group)
    tags = (("h", group.id), ("p", event.pubkey, Role.ADMIN.value))
    automatic = Draft(kinds.PUT_USER, tags, "", context.now)
    return Ruling(groups, automatic=(automatic,), relatives=relatives)


def _described(group: Group, said: Description, settings: GroupSettings) -> Group:
    """The group as a 9002 or 9007 wants it, with the flags that the policy forces."""
    return replace(
        group,
        metadata=said.metadata,
        flags=said.flags | settings.always,
        supported_kinds=said.supported_kinds,
        parent=said.parent,
        children=said.children,
    )


def _led(group_id: str | None, pubkey: str, groups: Groups, context: GroupContext) -> Group | None:
    """The group of this id, if the key leads it (N29-136)."""
    group = groups.get(group_id)
    if group is None or not (group.is_admin(pubkey) or acts_as_admin(pubkey, context)):
        return None
    return group


def _moderation(
    event: Event,
    action: Moderation,
    group: Group,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    rank = _rank_of(event, group, context)
    if rank is _Rank.NONE:
        return _ADMINS_ONLY if event.pubkey in group.members else NOT_A_MEMBER
    refusal = (
        _beyond(rank, event.pubkey, action, group, context)
        or check_created_at(event, settings, context)
        or check_previous(event, settings, context)
        or check_has_effect(action, group, context)
    )
    if refusal is not None:
        return refusal
    match action:
        case EditMetadata():
            return _edition(event.pubkey, action, group, groups, settings, context)
        case DeleteGroup():
            groups, relatives = detach_subgroups(groups, group)
            return Ruling(groups, ended=group.id, relatives=relatives)
        case UpdatePins(pins=pins):
            here = tuple(tag for tag in pins if tag[:2] in context.pinnable)
            return Ruling(groups.with_group(replace(group, pins=here)))
        case _:
            after = group_after(group, event, context.relay)
    if loses_last_admin(group, after):
        return LAST_ADMIN
    removes = _deletable(action, group, context) if isinstance(action, DeleteEvents) else ()
    return Ruling(groups.with_group(after), removes=removes)


def _edition(
    author: str,
    action: EditMetadata,
    group: Group,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    """What a 9002 does that its author may write."""
    said = action.description
    after = _described(group, said, settings)
    refusal = _unconfirmed(author, action, group, settings, context) or check_placement(
        group, after, _led(said.parent, author, groups, context), groups
    )
    if refusal is not None:
        return refusal
    groups, relatives = place_group(groups, after)
    return Ruling(groups, relatives=relatives)


def _beyond(
    rank: _Rank, author: str, action: Moderation, group: Group, context: GroupContext
) -> Reject | None:
    """Why the action is beyond the author's rank (N29-112)."""
    if rank is _Rank.ADMIN:
        return None
    match action:
        case PutUsers(users=users):
            if any(users.values()):
                return rejected(Prefix.RESTRICTED, "only an admin may give roles")
            return _ROLE_HOLDER if any(group.members.get(pubkey) for pubkey in users) else None
        case RemoveUsers(pubkeys=pubkeys):
            return _ROLE_HOLDER if any(group.members.get(pubkey) for pubkey in pubkeys) else None
        case DeleteEvents():
            authors = {
                context.targets[event_id].pubkey for event_id in _deletable(action, group, context)
            }
            if any(group.members.get(pubkey) for pubkey in authors - {author}):
                return rejected(
                    Prefix.RESTRICTED, "only an admin may delete what a role holder wrote"
                )
            return None
        case CreateInvites() | UpdatePins():
            return None
        case EditMetadata() | DeleteGroup():
            return _ADMINS_ONLY
        case _:
            assert_never(action)


def check_has_effect(action: Moderation, group: Group, context: GroupContext) -> Reject | None:
    """Why the action would do nothing at all, or not what it says.

    Of an import some is not asked: what a removal did may have been done here by another record,
    and what was deleted or pinned has often gone since.
    """
    if isinstance(action, CreateInvites) and not group.invites.keys().isdisjoint(action.codes):
        return rejected(Prefix.DUPLICATE, "code: already in use in this group")
    if context.origin is not Origin.WIRE:
        return None
    match action:
        case RemoveUsers(pubkeys=pubkeys):
            # Who only waits is turned away by a 9001; that is something.
            if pubkeys.isdisjoint(group.members) and pubkeys.isdisjoint(group.requests):
                return rejected(Prefix.INVALID, "p: none of these keys is a member")
        case DeleteEvents() if not _deletable(action, group, context):
            # One text for ids unknown, of another group, of none, and never deleted (N29-50).
            return rejected(Prefix.INVALID, "e: names no event of this group that can be deleted")
        case UpdatePins(pins=pins) if not all(tag[:2] in context.pinnable for tag in pins):
            # One text for what is malformed, unknown, of another group or of none (N29-171).
            return rejected(Prefix.INVALID, "e, a: must name stored events of this group")
        case _:
            pass
    return None


def _deletable(action: DeleteEvents, group: Group, context: GroupContext) -> tuple[str, ...]:
    """Those of the named ids that are events of this very group and may be deleted."""
    return tuple(
        event_id
        for event_id in action.ids
        if (target := context.targets.get(event_id)) is not None
        and target.group == group.id
        and target.kind not in _UNDELETABLE
    )


def _unconfirmed(
    author: str,
    action: EditMetadata,
    group: Group,
    settings: GroupSettings,
    context: GroupContext,
) -> Reject | None:
    """Why a 9002 that would open a group in use is not taken for meant (Z-03)."""
    if not context.has_content and group.members.keys() <= {author}:
        return None
    flags = action.description.flags | settings.always
    dropped = group.flags - flags
    wanted = {Flag.PRIVATE: "public", Flag.HIDDEN: "visible"}
    if Flag.PRIVATE in flags or Flag.HIDDEN in flags:
        # What stays for members only would be read by the next who asks to join.
        wanted[Flag.CLOSED] = "open"
    missing = {
        flag: tag for flag, tag in wanted.items() if flag in dropped and tag not in action.confirmed
    }
    if not missing:
        return None
    lost = " and ".join(missing)
    tags = " and ".join(f'["{tag}"]' for tag in missing.values())
    return rejected(
        Prefix.INVALID, f"this drops {lost} from a group in use; if that is meant, add {tags}"
    )
