"""Who comes in and goes out by their own wish: 9021 and 9022 (N29-30…43).

Invariants: whoever asks learns of a group what they may know, and no more; what is refused for
good leaves no trace.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix
from relay.groups.context import (
    NOT_A_MEMBER,
    RULE,
    GroupContext,
    GroupSettings,
    Joins,
    Ruling,
    knows_group,
    rejected,
)
from relay.groups.group import Group, Groups, group_after
from relay.groups.notices import Draft
from relay.groups.writing import check_created_at, check_previous
from relay.nostr import kinds
from relay.verdict import Origin, Reject

if TYPE_CHECKING:
    from relay.groups.actions import JoinRequest
    from relay.groups.group import Invite
    from relay.nostr.event import Event

LAST_ADMIN: Final = Reject(
    Prefix.RESTRICTED, "the last admin stays while there are members; make another one first", RULE
)
_PENDING: Final = Reject(Prefix.RESTRICTED, "pending review", RULE)


def is_migrating(group: Group, context: GroupContext) -> bool:
    """Whether the history of the group is being taken over from another relay (N29-152)."""
    return context.origin is Origin.TRUSTED_IMPORT and bool(group.former_relay_keys)


def joining(
    event: Event,
    action: JoinRequest,
    group: Group,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    pubkey = event.pubkey
    if pubkey in group.members:
        return rejected(Prefix.DUPLICATE, "already a member")
    refusal = check_created_at(event, settings, context) or check_previous(
        event, settings, context, group=group
    )
    if refusal is not None:
        return refusal
    waiting = group.requests.get(pubkey)
    superseded = () if waiting is None else (waiting,)
    asked = group_after(group, event, context.relay)
    tags: tuple[tuple[str, ...], ...] = (("h", group.id), ("p", pubkey))
    if pubkey in group.ever_involved:
        # In and out and in again within a second: without this the second 9000 has the id of the
        # first, is a duplicate, and the log would not say that they came back.
        tags += (("e", event.id),)
    # Without a code a hidden group says nothing to whom it is hidden, and keeps nothing of them.
    is_there = not group.is_hidden or knows_group(pubkey, group, context)
    walks_in = (
        is_there
        and not group.is_closed
        and settings.joins is Joins.ADMIT
        and pubkey not in group.removed
    )
    if not walks_in:
        invite = _invite_of(action.code, group)
        if invite is not None and invite.admits(pubkey, now=context.now, uses=settings.invite_uses):
            # The 9009 by its id: the code itself is no member's business (N29-38).
            tags += (("invite", invite.event_id, str(invite.index)),)
            asked = asked.with_use_of(invite.event_id, invite.index)
        elif not is_there:
            return NOT_A_MEMBER
        elif group.is_closed:
            lacks = "needs an invite code" if action.code is None else "this code is not valid"
            return rejected(Prefix.RESTRICTED, f"the group is closed: {lacks}")
        else:
            return Ruling(groups.with_group(asked), reply=_PENDING, superseded=superseded)
    return Ruling(
        groups.with_group(asked.with_users({pubkey: ()})),
        automatic=(Draft(kinds.PUT_USER, tags, "", context.now),),
        superseded=superseded,
    )


def _invite_of(code: str | None, group: Group) -> Invite | None:
    """The invite with this code. All are compared, each in a time that tells nothing (N29-39)."""
    if code is None:
        return None
    wanted, found = code.encode(), None
    for known, invite in group.invites.items():
        if hmac.compare_digest(known.encode(), wanted):
            found = invite
    return found


def leaving(
    event: Event,
    group: Group,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Ruling | Reject:
    pubkey = event.pubkey
    if pubkey not in group.members:
        return rejected(Prefix.INVALID, "not a member")
    refusal = check_created_at(event, settings, context) or check_previous(event, settings, context)
    if refusal is not None:
        return refusal
    after = group.without_users({pubkey}, removed_at=None)
    if loses_last_admin(group, after):
        return LAST_ADMIN
    tags = (("h", group.id), ("p", pubkey), ("self-removal",), ("e", event.id))
    automatic = Draft(kinds.REMOVE_USER, tags, "", context.now)
    return Ruling(groups.with_group(after), automatic=(automatic,))


def loses_last_admin(before: Group, after: Group) -> bool:
    """Members would be left with nobody to lead them (N29-42, N29-114)."""
    return bool(after.members) and before.has_admin() and not after.has_admin()
