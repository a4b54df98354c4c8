"""Who joins and leaves: 9021 and 9022 (N29-30…43), vanish and ban (NIP-62, NIP-86).

Invariants: the answer to a join request reveals no more of a group than its author may know; of
refused requests only a pending one is stored. The state always equals a replay of the log: where a
vanish deletes 9000–9022, the relay signs records of its own to the same effect (N29-58).
"""

from __future__ import annotations

import hmac
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Reject
from relay.facts import Origin
from relay.groups.actions import OPPOSITE, InviteUse, PutUsers, RemoveUsers, edit_tags
from relay.groups.context import NOT_A_MEMBER, RULE, GroupContext, Joins, Ruling, rejected
from relay.groups.group import Group, group_after, pins_of
from relay.groups.notices import Draft, description_tags, draft_of
from relay.groups.timeline import check_created_at, check_previous
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from relay.groups.actions import JoinRequest, LeaveRequest
    from relay.groups.group import Groups, Invite
    from relay.nostr.event import Event

LAST_ADMIN: Final = Reject(
    Prefix.RESTRICTED,
    "the last admin cannot leave while there are members; make another admin first",
    RULE,
)
_PENDING: Final = Reject(Prefix.RESTRICTED, "pending review", RULE)
_USERS_PER_DRAFT: Final = 500
MAX_ASKED: Final = 90_000
"""Keys in `Group.involved` above which nobody joins without an invite, or asks to: anybody has any
number of keys, and the rest is for those whom admins put in."""
_FULL: Final = Reject(
    Prefix.BLOCKED, "the group takes no more requests to join; ask an admin to be put in", RULE
)


def is_answered(group: Group, context: GroupContext) -> bool:
    """Whether the 9000 or 9001 that a 9021 or 9022 led to is in the import too: it is from one's
    own export, or the group is moved from another relay (N29-152)."""
    return context.was_accepted or (context.origin.is_trusted and bool(group.former_relay_keys))


def ruling_on_join(action: JoinRequest, group: Group, context: GroupContext) -> Ruling | Reject:
    pubkey, groups = action.pubkey, context.groups
    if pubkey in group.members:
        if context.origin is not Origin.WIRE:
            # Stored, it is not judged again when the import is repeated, after the member has left.
            return Ruling(groups)
        return rejected(Prefix.DUPLICATE, "already a member")
    refusal = (
        check_created_at(action.kind, action.created_at, context)
        or _check_previous_of_join(action, group, context)
        or check_previous(action.kind, action.previous, context)
    )
    if refusal is not None:
        return refusal
    pending = group.requests.get(pubkey)
    superseded = () if pending is None else (pending,)
    requested = group_after(group, action, context.relay)
    # A key that may not know of the hidden group needs a code; without one nothing is stored or
    # revealed.
    is_visible = not group.is_hidden or context.knows_group(pubkey, group)
    needs_no_code = (
        is_visible
        and not group.is_closed
        and context.settings.joins is Joins.ADMIT
        and pubkey not in group.removed
        and not _is_full(pubkey, group, context)
    )
    uses: tuple[InviteUse, ...] = ()
    if not needs_no_code:
        invite = _invite_of(action.code, group)
        if (
            invite is not None
            and _may_invite(invite.made_by, group, context)
            and group.admits(invite, pubkey, now=context.now, uses=context.settings.invite_uses)
        ):
            uses = (InviteUse(invite.event_id, invite.index),)
        elif not is_visible:
            return NOT_A_MEMBER
        elif _is_full(pubkey, group, context):
            return _FULL
        elif group.is_closed:
            why = "needs an invite code" if action.code is None else "this code is not valid"
            return rejected(Prefix.RESTRICTED, f"the group is closed: {why}")
        else:
            return Ruling(groups.with_group(requested), reply=_PENDING, superseded=superseded)
    put = PutUsers(
        group=group.id,
        pubkey=context.relay,
        created_at=context.now,
        users={pubkey: ()},
        invite_uses=uses,
    )
    cause = action.id if pubkey in group.involved else None
    return Ruling(
        groups.with_group(group_after(requested, put, context.relay), {pubkey}),
        automatic=(draft_of(put, cause=cause),),
        superseded=superseded,
    )


def _is_full(pubkey: str, group: Group, context: GroupContext) -> bool:
    """Where no invite lets the key in."""
    is_new = context.origin is Origin.WIRE and pubkey not in group.involved
    return is_new and len(group.involved) >= MAX_ASKED


def _check_previous_of_join(
    action: JoinRequest, group: Group, context: GroupContext
) -> Reject | None:
    """The author is not a member: the answer must not reveal which ids are in the group."""
    if context.origin is Origin.WIRE and action.previous and group.only_members_read:
        return rejected(Prefix.INVALID, "previous: not in a request to join this group")
    return None


def _invite_of(code: str | None, group: Group) -> Invite | None:
    """The invite with this code. All of the same length are compared, each in constant time
    (N29-39)."""
    if code is None:
        return None
    wanted, found, size = code.encode(), None, len(code)
    for known, invite in group.invites.items():
        # Other lengths cannot match, and comparing takes time in proportion to the code that was
        # sent.
        if len(known) == size and hmac.compare_digest(known.encode(), wanted):
            found = invite
    return found


def _may_invite(pubkey: str, group: Group, context: GroupContext) -> bool:
    """Whether the maker of a code may still invite: a removed or banned admin must not join as
    another key, with a code made before."""
    if pubkey in context.banned:
        return False
    return group.is_moderated_by(pubkey) or context.acts_as_admin(pubkey)


def ruling_on_leave(action: LeaveRequest, group: Group, context: GroupContext) -> Ruling | Reject:
    pubkey = action.pubkey
    if pubkey not in group.members:
        return rejected(Prefix.INVALID, "not a member")
    refusal = check_created_at(action.kind, action.created_at, context) or check_previous(
        action.kind, action.previous, context
    )
    if refusal is not None:
        return refusal
    removal = _removal(group.id, frozenset({pubkey}), context.relay, context.now, Cause.OWN_WISH)
    after = group_after(group, removal, context.relay)
    if loses_last_admin(group, after, context.banned):
        return LAST_ADMIN
    groups = context.groups.with_group(after, {pubkey})
    return Ruling(groups, automatic=(draft_of(removal, cause=action.id),))


def loses_last_admin(before: Group, after: Group, banned: frozenset[str]) -> bool:
    """Whether members would be left without an admin who is not banned (N29-42, N29-114)."""
    changed = before.members.differing(after.members)  # all members would be many
    loses_one = any(before.is_admin(key) and key not in banned for key in changed)
    return bool(after.members) and loses_one and not after.has_admin(banned)


# -- what follows from deleted rows ---------------------------------------------------------------


class Cause(Enum):
    """Why a key loses its memberships."""

    OWN_WISH = auto()
    """Leave or vanish: the key may join again like any other."""
    BANNED = auto()
    """As if an admin of each group had removed it (N29-40)."""


def groups_without_rows(
    groups: Groups, rows: Iterable[Event], *, keeps_pins: bool = False
) -> Groups:
    """These groups without the codes, requests and pins of rows that are deleted. `keeps_pins`: a
    later line of an import may contain the event again."""
    gone: dict[str, set[str]] = {}  # a group is copied once, not for each of its rows
    for event in rows:
        for pin in () if keeps_pins else pins_of(event):
            for group_id in groups.pinned.of(pin):
                groups = groups.with_group(groups.by_id[group_id].without_pin(pin))
        if event.kind in (kinds.CREATE_INVITE, kinds.JOIN_REQUEST) and (h := event.tag("h")):
            gone.setdefault(h, set()).add(event.id)
    for group_id, ids in gone.items():
        group = groups.get(group_id)
        if group is not None:
            groups = groups.with_group(group.without_rows(ids))
    return groups


def removals_from_groups(
    groups: Groups,
    pubkey: str,
    now: int,
    cause: Cause,
    relay: str,
    *,
    left: Set[str] | None = None,
) -> tuple[Groups, tuple[Draft, ...]]:
    """The key leaves these groups (None: every one), even as the last admin (N62-07, N29-84). It is
    a member of all of them.

    Returns the groups afterwards and a 9001 by the relay for each that it leaves.
    """
    named = groups.groups_of(pubkey) if left is None else left
    removals = [
        _removal(group_id, frozenset({pubkey}), relay, now, cause) for group_id in sorted(named)
    ]
    after = (group_after(groups.by_id[each.group], each, relay) for each in removals)
    return groups.with_groups(after, {pubkey}), tuple(map(draft_of, removals))


def repair_drafts(before: Groups, left: Groups, now: int, relay: str) -> tuple[Draft, ...]:
    """What the relay must sign to restore what `before` is and who is in it.

    `before` is the state after `removals_from_groups`, `left` what the rest of the log makes after
    a vanish, those removals included. Then <left and these, signed> is the state; invite codes that
    the vanished key made are not restored.
    """
    drafts = [
        Draft(kinds.DELETE_GROUP, (("h", group_id),), "", now)
        for group_id in sorted(before.ended.keys() - left.ended.keys())
    ]
    for group_id, group in sorted(before.by_id.items()):
        there = left.get(group_id) or Group(group_id)
        drafts += [draft_of(action) for action in _repairs(group, there, now, relay)]
        if _described(group) != _described(there):
            tags = edit_tags(
                description_tags(group),
                group_id,
                {},
                {flag: flag in group.flags for flag in OPPOSITE},
            )
            drafts.append(Draft(kinds.EDIT_METADATA, tuple(map(tuple, tags)), "", now))
        if group.pins != there.pins:
            pins = (("h", group_id), *group.pins)
            drafts.append(Draft(kinds.UPDATE_PINS, pins, "", now))
    return tuple(drafts)


def _described(group: Group) -> object:
    return group.flags, group.metadata, group.supported_kinds, group.parent


def _repairs(before: Group, left: Group, now: int, relay: str) -> Iterator[PutUsers | RemoveUsers]:
    removed = before.removed.keys() - left.removed.keys()
    for part in _parts(sorted(removed)):
        yield _removal(before.id, frozenset(part), relay, now, Cause.BANNED)
    differing = sorted(left.members.differing(before.members))
    departed = [key for key in differing if key not in before.members and key not in before.removed]
    for part in _parts(departed):
        yield _removal(before.id, frozenset(part), relay, now, Cause.OWN_WISH)
    kept = [key for key in differing if key in before.members]
    changed = [key for key in kept if left.members.get(key) != before.members[key]]
    for part in _parts(changed):
        users = {pubkey: before.members[pubkey] for pubkey in part}
        yield PutUsers(group=before.id, pubkey=relay, created_at=now, users=users)


def _parts(pubkeys: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(pubkeys)
    while part := list(islice(remaining, _USERS_PER_DRAFT)):
        yield part


def _removal(
    group_id: str, pubkeys: frozenset[str], relay: str, now: int, cause: Cause
) -> RemoveUsers:
    return RemoveUsers(
        group=group_id,
        pubkey=relay,
        created_at=now,
        pubkeys=pubkeys,
        is_own_wish=cause is Cause.OWN_WISH,
    )
