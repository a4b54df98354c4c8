"""What an Action does, if its author has the right: Ruling or Reject.

House rules: everything that is judged is judged against the groups as the event before left them;
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
)
from relay.groups.circumstances import (
    NOT_A_MEMBER,
    RULE,
    Circumstances,
    GroupSettings,
    Joins,
    NotStored,
    Ruling,
    Target,
    rejected,
)
from relay.groups.group import Flag, Group, Groups, Role, group_after
from relay.groups.notices import Draft
from relay.groups.writing import RELAY_ONLY, is_relay_only, objection, unfounded, untimely
from relay.nostr import kinds
from relay.verdict import Reject, Who

if TYPE_CHECKING:
    from relay.nostr.event import Event

__all__ = [
    "NOT_A_MEMBER",
    "RELAY_ONLY",
    "Circumstances",
    "Draft",
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
_LAST_ADMIN: Final = Reject(
    Prefix.RESTRICTED, "the last admin stays while there are members; make another one first", RULE
)
_PENDING: Final = Reject(Prefix.RESTRICTED, "pending review", RULE)

_UNDELETABLE: Final = (
    frozenset(kinds.MODERATION) | frozenset(kinds.GROUP_STATE)
) - {kinds.CREATE_INVITE}  # fmt: skip
"""A 9005 does not take these (N29-51); taking a 9009 revokes its codes."""


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
    circumstances: Circumstances,
) -> Ruling | Reject:
    """What the 9000–9022 that asks for `action` does, or why it is refused."""
    if isinstance(action, CreateGroup):
        return _creation(event, action, groups, settings, circumstances)
    group = groups.get(action.group)
    if group is None:
        return NOT_A_MEMBER
    match action:
        case JoinRequest():
            ruling = _joining(event, action, group, groups, settings, circumstances)
        case LeaveRequest():
            ruling = _leaving(event, group, groups, settings, circumstances)
        case _:
            ruling = _moderation(event, action, group, groups, settings, circumstances)
    return _unless_hidden(ruling, event.pubkey, group, circumstances)


def _unless_hidden(
    ruling: Ruling | Reject, pubkey: str, group: Group, circumstances: Circumstances
) -> Ruling | Reject:
    """The ruling, its refusal unspecific for whom the group does not exist (N29-06, Z-02)."""
    knows = pubkey in group.involved and pubkey not in group.newcomers
    if knows or not group.is_hidden or _rules_all(pubkey, circumstances):
        return ruling
    if isinstance(ruling, Reject):
        return NOT_A_MEMBER
    return ruling if ruling.reply is None else replace(ruling, reply=NOT_A_MEMBER)


def _rules_all(pubkey: str, circumstances: Circumstances) -> bool:
    """Owners may do in each group what its admin may (contract §5), and so may the relay itself."""
    return Who.OWNER in circumstances.who or pubkey == circumstances.relay


def _rank_of(pubkey: str, group: Group, circumstances: Circumstances) -> _Rank:
    if _rules_all(pubkey, circumstances) or group.is_admin(pubkey):
        return _Rank.ADMIN
    if Role.MODERATOR in group.members.get(pubkey, ()):
        return _Rank.MODERATOR
    return _Rank.NONE


def _creation(
    event: Event, action: CreateGroup, groups: Groups, settings: GroupSettings,
    circumstances: Circumstances,
) -> Ruling | Reject:  # fmt: skip
    if settings.create.isdisjoint(circumstances.who) and event.pubkey != circumstances.relay:
        return rejected(Prefix.RESTRICTED, "you may not create groups here")
    if action.group in groups.by_id or action.group in groups.ended:
        # The one place where a hidden id shows: it cannot be made twice (N29-120).
        return rejected(Prefix.DUPLICATE, "this group id is taken")
    refusal = untimely(event, settings, circumstances) or unfounded(event, settings, circumstances)
    if refusal is not None:
        return refusal
    founder = {event.pubkey: (Role.ADMIN.value,)}
    group = Group(
        action.group,
        metadata=action.metadata,
        flags=(action.flags or settings.new) | settings.always,
        supported_kinds=action.supported_kinds,
    ).with_users(founder)
    tags = (("h", group.id), ("p", event.pubkey, Role.ADMIN.value))
    automatic = Draft(kinds.PUT_USER, tags, "", circumstances.now)
    return Ruling(groups.with_group(group), automatic=(automatic,))


def _moderation(
    event: Event, action: Moderation, group: Group, groups: Groups, settings: GroupSettings,
    circumstances: Circumstances,
) -> Ruling | Reject:  # fmt: skip
    rank = _rank_of(event.pubkey, group, circumstances)
    if rank is _Rank.NONE:
        return _ADMINS_ONLY if event.pubkey in group.members else NOT_A_MEMBER
    refusal = (
        _beyond(rank, event.pubkey, action, group, circumstances)
        or untimely(event, settings, circumstances)
        or unfounded(event, settings, circumstances)
        or _fruitless(action, group, circumstances)
    )
    if refusal is not None:
        return refusal
    after = group_after(group, event, circumstances.relay)
    if isinstance(action, EditMetadata):
        refusal = _unconfirmed(event.pubkey, action, group, settings, circumstances)
        if refusal is not None:
            return refusal
        after = replace(
            after,
            metadata=action.metadata,
            flags=action.flags | settings.always,
            supported_kinds=action.supported_kinds,
        )
    if isinstance(action, DeleteGroup):
        return Ruling(groups.without_group(group.id), ended=group.id)
    if _loses_its_admin(group, after):
        return _LAST_ADMIN
    removes = _deletable(action, group, circumstances) if isinstance(action, DeleteEvents) else ()
    return Ruling(groups.with_group(after), removes=removes)


def _beyond(
    rank: _Rank, author: str, action: Moderation, group: Group, circumstances: Circumstances
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
                circumstances.targets[event_id].pubkey
                for event_id in _deletable(action, group, circumstances)
            }
            if any(group.members.get(pubkey) for pubkey in authors - {author}):
                return rejected(
                    Prefix.RESTRICTED, "only an admin may delete what a role holder wrote"
                )
            return None
        case CreateInvites():
            return None
        case EditMetadata() | DeleteGroup():
            return _ADMINS_ONLY
        case _:
            assert_never(action)


def _fruitless(action: Moderation, group: Group, circumstances: Circumstances) -> Reject | None:
    """Why the action would do nothing at all."""
    match action:
        case RemoveUsers(pubkeys=pubkeys):
            # Who only waits is turned away by a 9001; that is something.
            if pubkeys.isdisjoint(group.members) and pubkeys.isdisjoint(group.requests):
                return rejected(Prefix.INVALID, "p: none of these keys is a member")
        case DeleteEvents() if not _deletable(action, group, circumstances):
            # One text for ids unknown, of another group, of none, and never deleted (N29-50).
            return rejected(Prefix.INVALID, "e: names no event of this group that can be deleted")
        case CreateInvites(codes=codes) if not group.invites.keys().isdisjoint(codes):
            return rejected(Prefix.DUPLICATE, "code: already in use in this group")
        case _:
            pass
    return None


def _deletable(action: DeleteEvents, group: Group, circumstances: Circumstances) -> tuple[str, ...]:
    """Those of the named ids that are events of this very group and may be deleted."""
    return tuple(
        event_id
        for event_id in action.ids
        if (target := circumstances.targets.get(event_id)) is not None
        and target.group == group.id
        and target.kind not in _UNDELETABLE
    )


def _loses_its_admin(before: Group, after: Group) -> bool:
    """Members would be left with nobody to lead them (N29-42, N29-114)."""
    return bool(after.members) and before.has_admin() and not after.has_admin()


def _unconfirmed(
    author: str, action: EditMetadata, group: Group, settings: GroupSettings,
    circumstances: Circumstances,
) -> Reject | None:  # fmt: skip
    """Why a 9002 that would open a group in use is not taken for meant (Z-03)."""
    if not circumstances.has_content and group.members.keys() <= {author}:
        return None
    flags = action.flags | settings.always
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


def _joining(
    event: Event, action: JoinRequest, group: Group, groups: Groups, settings: GroupSettings,
    circumstances: Circumstances,
) -> Ruling | Reject:  # fmt: skip
    pubkey = event.pubkey
    if pubkey in group.members:
        return rejected(Prefix.DUPLICATE, "already a member")
    refusal = untimely(event, settings, circumstances) or unfounded(
        event, settings, circumstances, group=group
    )
    if refusal is not None:
        return refusal
    waiting = group.requests.get(pubkey)
    superseded = () if waiting is None else (waiting,)
    asked = group_after(group, event, circumstances.relay)
    tags: tuple[tuple[str, ...], ...] = (("h", group.id), ("p", pubkey))
    if pubkey in group.involved:
        # In and out and in again within a second: without this the second 9000 has the id of the
        # first, is a duplicate, and the log would not say that they came back.
        tags += (("e", event.id),)
    walks_in = not group.is_closed and settings.joins is Joins.ADMIT and pubkey not in group.removed
    if not walks_in:
        # Found by its hash, which Python salts, and never compared character by character with
        # another code: the time that it takes tells nothing of a wrong one (N29-39).
        invite = group.invites.get(action.code) if action.code is not None else None
        if invite is not None and invite.admits(
            pubkey, now=circumstances.now, uses=settings.invite_uses
        ):
            # The 9009 by its id: the code itself is no member's business (N29-38).
            tags += (("invite", invite.event_id, str(invite.index)),)
            asked = asked.with_use_of(invite.event_id, invite.index)
        elif group.is_closed:
            lacks = "needs an invite code" if action.code is None else "this code is not valid"
            return rejected(Prefix.RESTRICTED, f"the group is closed: {lacks}")
        else:
            return Ruling(groups.with_group(asked), reply=_PENDING, superseded=superseded)
    return Ruling(
        groups.with_group(asked.with_users({pubkey: ()})),
        automatic=(Draft(kinds.PUT_USER, tags, "", circumstances.now),),
        superseded=superseded,
    )


def _leaving(
    event: Event, group: Group, groups: Groups, settings: GroupSettings,
    circumstances: Circumstances,
) -> Ruling | Reject:  # fmt: skip
    pubkey = event.pubkey
    if pubkey not in group.members:
        return rejected(Prefix.INVALID, "not a member")
    refusal = untimely(event, settings, circumstances) or unfounded(event, settings, circumstances)
    if refusal is not None:
        return refusal
    after = group.without_users({pubkey}, removed_at=None)
    if _loses_its_admin(group, after):
        return _LAST_ADMIN
    tags = (("h", group.id), ("p", pubkey), ("self-removal",), ("e", event.id))
    automatic = Draft(kinds.REMOVE_USER, tags, "", circumstances.now)
    return Ruling(groups.with_group(after), automatic=(automatic,))
