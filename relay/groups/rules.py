"""Group rules: whether an event may be written into a group, and what an Action changes.

Invariants: each event is judged against the groups after the event before it. A key that may not
know of a hidden group gets the refusal for a group that does not exist: `_conceal` is applied last
to every ruling. Membership is checked before anything that could reveal to a non-member what is
stored (N29-25).
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, assert_never

from relay.errors import GROUP_CHANGED, Prefix, Refused, Reject
from relay.facts import Origin, Who
from relay.groups.actions import (
    UNTOLD_FLAGS,
    Action,
    CreateGroup,
    CreateInvites,
    DeleteEvents,
    DeleteGroup,
    Description,
    EditMetadata,
    Flag,
    JoinRequest,
    LeaveRequest,
    Moderation,
    Notice,
    PutUsers,
    RemoveUsers,
    UpdatePins,
    action_of,
    logged_action,
    previous_in,
    users_in,
)
from relay.groups.context import (
    NOT_A_MEMBER,
    RULE,
    GroupContext,
    NotStored,
    Ruling,
    drawn,
    rejected,
)
from relay.groups.group import Group, Role, ended, group_after
from relay.groups.membership import (
    LAST_ADMIN,
    is_answered,
    loses_last_admin,
    ruling_on_join,
    ruling_on_leave,
)
from relay.groups.notices import draft_of
from relay.groups.subgroups import check_placement, detach_subgroups, place_group
from relay.groups.timeline import check_created_at, check_previous
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from relay.groups.context import GroupSettings
    from relay.groups.group import Groups
    from relay.nostr.event import Event

_ADMINS_ONLY: Final = Reject(Prefix.RESTRICTED, "only an admin of the group may do this", RULE)
_ROLE_HOLDER: Final = Reject(
    Prefix.RESTRICTED, "only an admin may change or remove a member with a role", RULE
)
_NOT_OF_ROLE_HOLDERS: Final = Reject(
    Prefix.RESTRICTED, "only an admin may delete events of a member with a role", RULE, reveals=True
)
_ELSEWHERE: Final = Reject(Prefix.INVALID, "address belongs to another group", RULE, reveals=True)
_CHANGED: Final = Reject(Prefix.DUPLICATE, GROUP_CHANGED, RULE)
_OLDER_THAN_GROUP: Final = Reject(
    Prefix.INVALID,
    "created_at: older than the group of this name here; only --trust imports it",
    RULE,
)
_IN_USE: Final = Reject(
    Prefix.BLOCKED, "the group has events here; only --trust lets an import delete it", RULE
)
MAX_MEMBERS: Final = 10_000
"""Above this a 9000 may add one member, as a join request does, and no more: each change of members
costs the writer up to 1 us per member, and a new 39002. Nobody can keep others out by filling a
group."""
MAX_INVOLVED: Final = 100_000
"""Keys that a group remembers: added, removed or asking to join."""
MAX_CHANGED: Final = 500
"""Members that one event of an author adds or removes who is neither an owner nor an agent: all
other writes wait 60 us for each."""
MAX_PUT_INTO: Final = 24
_MORE_PUT_INTO: Final = 16
"""A key that is in so many groups, or up to 15 more, is put into another only by an owner or agent,
or if it asks to join: a read by a member looks into each private group, and nobody is asked
before."""
MAX_CODES: Final = 10_000
MAX_MOVING: Final = 10_000
"""Only owners and agents make groups private, or open them, that have more messages together with
what the store still moves of others: all readers pass over these rows, or look into these groups.
Anybody opens a larger one when none are moved."""
_BYTES_OF_A_ROW: Final = 1_000
"""Larger messages count for several: each of their tags is moved, too."""
_MAX_MOVING_MB: Final = MAX_MOVING * _BYTES_OF_A_ROW // 1_000_000
MAX_CLOSINGS: Final = 3
"""How often a group with messages is made private in an hour; then only owners and agents open it
again. Its rows are moved in the indices, and everybody passes over those that are left."""
_CLOSINGS_S: Final = 3_600

_OF_NO_GROUP: Final = frozenset({kinds.PROFILE, kinds.CONTACTS, kinds.RELAY_LIST})
_DESCRIBING: Final = frozenset({kinds.CREATE_GROUP, kinds.EDIT_METADATA, kinds.UPDATE_PINS})
_ALWAYS_SUPPORTED: Final = frozenset({kinds.DELETION, kinds.VANISH})


# -- events that are no 9000–9022 -----------------------------------------------------------------


def check_write(event: Event, group_id: str | None, context: GroupContext) -> Reject | None:
    """Why an event that is no 9000–9022 may not be written, as far as groups are concerned, but for
    `check_address`."""
    if group_id is None or (context.h_is_label and Who.OWNER in context.who):
        return None  # G-33, G-31
    if event.kind in _OF_NO_GROUP:
        return rejected(Prefix.INVALID, f"h: an event of kind {event.kind} belongs to no group")
    group = context.groups.get(group_id)
    if group is None or not _may_write(event.pubkey, group, context):
        return NOT_A_MEMBER
    return (
        _check_kind(event.kind, group)
        or check_created_at(event.kind, event.created_at, context)
        or check_previous(event.kind, previous_in(event), context)
    )


def check_address(group_id: str | None, context: GroupContext) -> Reject | None:
    """The refusal of a version in another group than the stored one (N29-16), also of one outside
    all groups (Z-07). Memory may move in or out of groups (G-31)."""
    before = context.moved_from
    if isinstance(before, NotStored) or before == group_id:
        return None
    if context.h_is_label or (context.is_memory and (before is None or group_id is None)):
        return None
    return _ELSEWHERE


def ruling_on_withdrawal(event: Event, context: GroupContext) -> Ruling | Reject | None:
    """A kind 5 with `h` and `code` by an admin of the group withdraws the invite (N29-59): its 9009
    is deleted, as by a 9005. None: it withdraws nothing.

    The author may write into the group. Codes are looked up only for authors with a role, who may
    read them anyway (N29-38): for everybody else the answer does not depend on them.
    """
    group = context.groups.get(event.tag("h"))
    if group is None or not event.has_tag("code"):
        return None
    is_admin = context.acts_as_admin(event.pubkey) or group.is_admin(event.pubkey)
    if not is_admin and not group.is_moderated_by(event.pubkey):
        return None
    invites = [group.invites[code] for code in event.tag_values("code") if code in group.invites]
    if not invites:
        return None
    makers = {invite.made_by for invite in invites} - {event.pubkey}
    if not is_admin and any(group.members.get(maker) for maker in makers):
        return _NOT_OF_ROLE_HOLDERS
    ids = tuple(dict.fromkeys(invite.event_id for invite in invites))
    return Ruling(context.groups.with_group(group.without_rows(frozenset(ids))), removes=ids)


def _may_write(pubkey: str, group: Group, context: GroupContext) -> bool:
    """Whether the author may write (N29-10); AUTH does not count. Memory is written by members
    only, in every group (G-33)."""
    if context.origin.is_trusted:
        return True  # its author was a member when it was written
    if not (group.only_members_write or context.is_memory):
        return True
    is_insider = pubkey in group.members or Who.INSIDER in context.who
    return is_insider or context.acts_as_admin(pubkey)


def _check_kind(kind: int, group: Group) -> Reject | None:
    """The refusal of a kind that the group does not support (N29-13). Deletions and requests to
    vanish are always supported (N29-14)."""
    if group.supported_kinds is None or kind in group.supported_kinds | _ALWAYS_SUPPORTED:
        return None
    text = f"kind {kind} is not supported by this group"
    return Reject(Prefix.BLOCKED, text, RULE, reveals=group.is_hidden)  # else its 39000 is public


# -- 9000–9022 ------------------------------------------------------------------------------------


class _Rank(IntEnum):
    """What a key may do in a group (N29-112)."""

    NONE = 0
    MODERATOR = 1
    ADMIN = 2


def ruling_on(action: Action, context: GroupContext) -> Ruling | Reject:
    """What the Action changes, or why it is refused."""
    if isinstance(action, CreateGroup):
        return _ruling_on_creation(action, context)
    group = context.groups.get(action.group) or _begun_by(action, context)
    if group is None:
        return NOT_A_MEMBER
    ruling: Ruling | Reject
    match action:
        case JoinRequest() | LeaveRequest() if is_answered(group, context):
            # The relay's 9000 or 9001 follows: the current policy must not decide who was admitted.
            ruling = Ruling(context.groups.with_group(group_after(group, action, context.relay)))
        case JoinRequest() | LeaveRequest() if _is_of_another_group(action, group, context):
            ruling = _OLDER_THAN_GROUP
        case JoinRequest():
            ruling = ruling_on_join(action, group, context)
        case LeaveRequest():
            ruling = ruling_on_leave(action, group, context)
        case _:
            ruling = _ruling_on_moderation(action, group, context)
    return _conceal(ruling, action.pubkey, group, context)


def _is_own_import(action: Action, context: GroupContext) -> bool:
    """Whether it is from an export of this relay, and signed by it."""
    return context.origin.is_trusted and action.pubkey == context.relay


def _begun_by(action: Action, context: GroupContext) -> Group | None:
    """The group that a record proves, as in a replay: its 9007 went with its author. In a
    sync only a 9008 and what this relay signed prove one."""
    if not context.origin.is_trusted or action.group in context.groups.ended:
        return None
    was_accepted = context.was_accepted and not isinstance(action, JoinRequest | LeaveRequest)
    is_proof = action.pubkey == context.relay or isinstance(action, DeleteGroup)
    if not (was_accepted or is_proof):
        return None
    return Group(action.group, action.created_at, flags=UNTOLD_FLAGS)


def _is_of_another_group(action: Action, group: Group, context: GroupContext) -> bool:
    """Whether an imported record belongs to an earlier group with the same id, which has ended or
    is on another relay, perhaps with the same admin."""
    return context.origin is Origin.IMPORT and action.created_at < group.began_at


def _conceal(
    ruling: Ruling | Reject, pubkey: str, group: Group, context: GroupContext
) -> Ruling | Reject:
    """The ruling; for a key that may not know of the group every refusal is NOT_A_MEMBER (Z-02)."""
    if not group.is_hidden or context.knows_group(pubkey, group):
        return ruling
    return NOT_A_MEMBER if isinstance(ruling, Reject) else ruling


def _rank_of(action: Moderation, group: Group, context: GroupContext) -> _Rank:
    pubkey = action.pubkey
    if context.was_accepted or context.acts_as_admin(pubkey) or group.is_admin(pubkey):
        return _Rank.ADMIN
    if context.origin.is_trusted and _is_by_former_relay(action, group):
        return _Rank.ADMIN
    if Role.MODERATOR in group.members.get(pubkey, ()):
        return _Rank.MODERATOR
    return _Rank.NONE


def _is_by_former_relay(action: Moderation, group: Group) -> bool:
    """Whether the relay that the group was moved from signed this (N29-152)."""
    match action:
        case PutUsers():
            is_founding = bool(group.members) and group.is_founding(action)
            return is_founding or action.pubkey in group.former_relay_keys
        case RemoveUsers():
            return action.pubkey in group.former_relay_keys
        case _:
            return False


def _ruling_on_creation(action: CreateGroup, context: GroupContext) -> Ruling | Reject:
    groups, settings, founder = context.groups, context.settings, action.pubkey
    may_create = context.was_accepted or founder == context.relay
    if settings.create.isdisjoint(context.who) and not may_create:
        return rejected(Prefix.RESTRICTED, "you may not create groups here")
    if action.group in groups.by_id or action.group in groups.ended:
        # Reveals that a hidden group exists: its id cannot be used twice (N29-120).
        return rejected(Prefix.DUPLICATE, "this group already exists")
    refusal = check_created_at(action.kind, action.created_at, context) or check_previous(
        action.kind, action.previous, context
    )
    if refusal is not None:
        return refusal
    new = Group(action.group, action.created_at)
    put = PutUsers(
        group=new.id,
        pubkey=context.relay,
        created_at=context.now,
        users={founder: (Role.ADMIN.value,)},
    )
    group = group_after(_described(new, action, settings), put, context.relay)
    parent = _parent_for(founder, action.description, context)
    refusal = check_placement(new, group, parent, groups)
    if refusal is not None and not context.was_accepted:
        return refusal
    if refusal is not None:
        group = replace(group, parent=None, children=())
    groups, relatives = place_group(groups, group)
    return Ruling(groups, automatic=(draft_of(put),), relatives=relatives)


def _described(group: Group, action: CreateGroup | EditMetadata, settings: GroupSettings) -> Group:
    """The group as a 9002 or 9007 describes it, with the flags that the policy enforces."""
    flags = action.description.flags
    if isinstance(action, CreateGroup) and not flags:
        flags = settings.new
    return group.with_description(replace(action.description, flags=flags | settings.always))


def _parent_for(pubkey: str, description: Description, context: GroupContext) -> Group | None:
    """The parent in the description if the key is its admin (N29-136)."""
    parent = context.groups.get(description.parent)
    if parent is None or context.was_accepted:
        return parent
    return parent if parent.is_admin(pubkey) or context.acts_as_admin(pubkey) else None


def _ruling_on_moderation(
    action: Moderation, group: Group, context: GroupContext
) -> Ruling | Reject:
    rank = _rank_of(action, group, context)
    if rank is _Rank.NONE and isinstance(action, DeleteGroup) and _is_all_but_ended(group, context):
        rank = _Rank.ADMIN
    if rank is _Rank.NONE and action.pubkey not in group.members:
        return NOT_A_MEMBER
    untimely = check_created_at(action.kind, action.created_at, context)
    if untimely is not None:
        return untimely
    ruling = _ruling_of_rank(rank, action, group, context)
    return replace(ruling, reveals=True) if isinstance(ruling, Reject) else ruling


def _ruling_of_rank(
    rank: _Rank, action: Moderation, group: Group, context: GroupContext
) -> Ruling | Reject:
    if rank is _Rank.NONE:
        return _ADMINS_ONLY
    groups = context.groups
    refusal = (
        _check_rank(rank, action, group, context)
        or (_OLDER_THAN_GROUP if _is_of_another_group(action, group, context) else None)
        or check_previous(action.kind, action.previous, context)
        or _check_room(action, group, context)
        or (_CHANGED if context.has_changed else None)
        or check_has_effect(action, group, context)
    )
    if refusal is not None:
        return refusal
    match action:
        case EditMetadata():
            return _ruling_on_edit(action, group, context)
        case DeleteGroup():
            if context.origin is Origin.IMPORT and context.has_content:
                return _IN_USE
            if context.is_piece:  # 10,000 members take 50 ms
                return Ruling(groups)
            # An imported group ended elsewhere; its flags may have been different meanwhile.
            left = ended(group)
            if context.origin is not Origin.WIRE:
                left = replace(left, is_public=False)
            groups, relatives = detach_subgroups(groups, group, left)
            return Ruling(groups, ended=group.id, relatives=relatives)
        case UpdatePins(pins=pins):
            here = tuple(tag for tag in pins if tag[:2] in context.pinnable)
            return Ruling(groups.with_group(replace(group, pins=here)))
        case _:
            after = group_after(group, action, context.relay)
    is_final = context.was_accepted or action.pubkey == context.relay
    if loses_last_admin(group, after, context.banned) and not is_final:
        return LAST_ADMIN
    groups = groups.with_group(after, users_in(action))
    if isinstance(action, PutUsers):
        put = action.users.keys() - group.members.keys()
        return Ruling(groups, refusal=_check_put_into(put, group, context))
    if not isinstance(action, DeleteEvents):
        return Ruling(groups)
    removes = _deletable(action, group, context)
    # Of whom the others are is not known, and a moderator may not delete what admins wrote.
    may_delete_any = rank is _Rank.ADMIN or context.origin is not Origin.WIRE
    return Ruling(groups, removes=removes, keeps_out=action.ids if may_delete_any else ())


def _is_all_but_ended(group: Group, context: GroupContext) -> bool:
    """Whether it may be of an export that has nothing of it but its 9007 and 9008: the record that
    made the author of the 9008 an admin was deleted with the group."""
    is_new = len(group.members) <= 1 and not context.has_content
    return context.origin.is_trusted and is_new


def _ruling_on_edit(action: EditMetadata, group: Group, context: GroupContext) -> Ruling | Reject:
    after = _described(group, action, context.settings)
    parent = _parent_for(action.pubkey, action.description, context)
    misplaced = check_placement(group, after, parent, context.groups)
    if misplaced is not None and (context.was_accepted or _is_own_import(action, context)):
        # What it says of the flags counts, wherever its relatives are.
        after, misplaced = replace(after, parent=group.parent, children=group.children), None
    closes = after.only_members_read and not group.only_members_read
    refusal = _check_opening(action, group, context) or misplaced
    if refusal is None and after.only_members_read is not group.only_members_read:
        refusal = _check_moves(context, closes=closes)
    if refusal is not None:
        return refusal
    if closes:
        closed_at = (*_closings(group, context.now), context.now)[-MAX_CLOSINGS:]
        after = replace(after, closed_at=closed_at)
    groups, relatives = place_group(context.groups, after)
    return Ruling(groups, relatives=relatives)


def _check_rank(
    rank: _Rank, action: Moderation, group: Group, context: GroupContext
) -> Reject | None:
    """Why the author's rank does not allow the action (N29-112)."""
    if rank is _Rank.ADMIN:
        return None
    match action:
        case PutUsers(users=users):
            if any(users.values()):
                return rejected(Prefix.RESTRICTED, "only an admin may give roles")
            if action.invite_uses:
                return rejected(Prefix.RESTRICTED, "only an admin may put in users by an invite")
            return _ROLE_HOLDER if any(group.members.get(pubkey) for pubkey in users) else None
        case RemoveUsers(pubkeys=pubkeys):
            return _ROLE_HOLDER if any(group.members.get(pubkey) for pubkey in pubkeys) else None
        case DeleteEvents():
            authors = {
                context.targets[event_id].pubkey for event_id in _deletable(action, group, context)
            }
            if any(group.members.get(pubkey) for pubkey in authors - {action.pubkey}):
                return _NOT_OF_ROLE_HOLDERS
            return None
        case CreateInvites() | UpdatePins():
            return None
        case EditMetadata() | DeleteGroup():
            return _ADMINS_ONLY
        case _:
            assert_never(action)


def _check_room(action: Moderation, group: Group, context: GroupContext) -> Reject | None:
    """Why the group would take too much memory."""
    if context.origin is not Origin.WIRE:
        return None
    if isinstance(action, PutUsers | RemoveUsers) and not context.may_change_many:
        number = len(action.users if isinstance(action, PutUsers) else action.pubkeys)
        if number > MAX_CHANGED:
            text = f"p: at most {MAX_CHANGED} members in one event, send several"
            return rejected(Prefix.INVALID, text)
    match action:
        case PutUsers(users=users):
            new = {pubkey for pubkey in users if pubkey not in group.members}
            if len(new) > 1 and len(group.members) + len(new) > MAX_MEMBERS:
                text = f"p: above {MAX_MEMBERS} members, add one in each event"
                return rejected(Prefix.BLOCKED, text)
            return _check_involved(new, group)
        case RemoveUsers(pubkeys=pubkeys):
            return _check_involved(pubkeys, group)
        case CreateInvites(codes=codes) if len(group.invites) + len(codes) > MAX_CODES:
            return rejected(Prefix.BLOCKED, f"code: a group has at most {MAX_CODES} codes")
        case _:
            return None


def _check_involved(pubkeys: Set[str], group: Group) -> Reject | None:
    new = {pubkey for pubkey in pubkeys if pubkey not in group.involved}
    if new and len(group.involved) + len(new) > MAX_INVOLVED:
        return rejected(Prefix.BLOCKED, f"p: a group knows at most {MAX_INVOLVED} keys")
    return None


def _most_groups(pubkey: str, context: GroupContext) -> int:
    """Nobody knows how many: else a refusal would tell how many a key is in, hidden ones too; and
    it changes each minute: else it would tell at once when the key gets into one more."""
    more = _MORE_PUT_INTO // 2
    of_minute = drawn(context.salt, f"groups of {pubkey} {context.now // 60}", more)
    return MAX_PUT_INTO + drawn(context.salt, f"groups of {pubkey}", more + 1) + of_minute


def _check_put_into(pubkeys: Set[str], group: Group, context: GroupContext) -> Reject | None:
    if context.may_change_many or context.origin is not Origin.WIRE:
        return None
    for pubkey in pubkeys:
        if pubkey in group.requests:
            continue
        if len(context.groups.groups_of(pubkey)) >= _most_groups(pubkey, context):
            text = f"p: {pubkey} is in many groups: let it join by itself, or an owner put it in"
            return rejected(Prefix.BLOCKED, text)
    return None


def _is_code_taken(action: CreateInvites, group: Group) -> bool:
    """Whether another 9009 has one of the codes. The same 9009 sent again is not refused for this:
    that would reveal that it is stored (N01-96)."""
    taken = group.invites.keys() & action.codes
    return any(group.invites[code].event_id != action.id for code in taken)


def check_has_effect(action: Moderation, group: Group, context: GroupContext) -> Reject | None:
    """Why the action would have no effect, or not the one that it names.

    Imports skip most of these checks: another record may have removed a user here, and the events
    that were deleted or pinned are often no longer stored.
    """
    if isinstance(action, CreateInvites) and _is_code_taken(action, group):
        return rejected(Prefix.DUPLICATE, "code: already in use in this group")
    if context.origin is not Origin.WIRE:
        return None
    match action:
        case RemoveUsers(pubkeys=pubkeys):
            # A 9001 also declines a pending request.
            if not any(key in group.members or key in group.requests for key in pubkeys):
                return rejected(Prefix.INVALID, "p: none of these keys is a member")
        case DeleteEvents() if not _deletable(action, group, context):
            # One text whether an id is unknown, of another group or undeletable (N29-50).
            return rejected(Prefix.INVALID, "e: names no event of this group that can be deleted")
        case UpdatePins(pins=pins) if not all(tag[:2] in context.pinnable for tag in pins):
            # One text whether a pin is malformed, unknown or of another group (N29-171).
            return rejected(Prefix.INVALID, "e, a: must name stored events of this group")
        case _:
            pass
    return None


def _deletable(action: DeleteEvents, group: Group, context: GroupContext) -> tuple[str, ...]:
    """The named ids that are events of this group and may be deleted."""
    return tuple(
        event_id
        for event_id in action.ids
        if (target := context.targets.get(event_id)) is not None
        and target.group == group.id
        and kinds.is_deletable_by_admin(target.kind)
    )


def _check_opening(action: EditMetadata, group: Group, context: GroupContext) -> Reject | None:
    """Why a 9002 may not open a group in use: it lacks the confirming tags (Z-03)."""
    is_empty = not context.has_content and group.members.keys() <= {action.pubkey}
    if is_empty or context.was_accepted:
        return None
    flags = action.description.flags | context.settings.always
    dropped = group.flags - flags
    opens = group.only_members_read and not replace(group, flags=flags).only_members_read
    closed_at = _closings(group, context.now) if opens and context.has_content else ()
    if len(closed_at) == MAX_CLOSINGS and not context.may_change_many:
        left_s = closed_at[0] + _CLOSINGS_S - context.now
        text = f"made private {MAX_CLOSINGS} times; it can be opened in {left_s} seconds"
        return rejected(Prefix.RATE_LIMITED, text)
    confirmations = {Flag.PRIVATE: "public", Flag.HIDDEN: "visible"}
    if Flag.PRIVATE in flags or Flag.HIDDEN in flags:
        # Otherwise anyone could join, and read what is for members only.
        confirmations[Flag.CLOSED] = "open"
    missing = {
        flag: tag
        for flag, tag in confirmations.items()
        if flag in dropped and tag not in action.confirmed
    }
    if not missing:
        return None
    lost = " and ".join(missing)
    tags = " and ".join(f'["{tag}"]' for tag in missing.values())
    return rejected(
        Prefix.INVALID, f"this drops {lost} from a group in use; if that is meant, add {tags}"
    )


def weight_of_rows(rows: int, bytes_: int) -> int:
    """What these rows, of `bytes_` together, count for in MAX_MOVING."""
    return max(rows, bytes_ // _BYTES_OF_A_ROW)


def _check_moves(context: GroupContext, *, closes: bool) -> Reject | None:
    """Why the store may not move its messages now."""
    if context.may_change_many or context.was_accepted or not context.has_content:
        return None
    if closes and context.rows_in_group > MAX_MOVING:
        text = (
            f"it has more than {MAX_MOVING:,} messages, or {_MAX_MOVING_MB} MB of them: delete some"
            " (9005), or ask an owner of the relay to make it private"
        )
        return rejected(Prefix.RESTRICTED, text)
    moving = context.rows_moving
    if moving + context.rows_in_group <= MAX_MOVING or not (closes or moving):
        return None
    text = "messages of other groups are being made private or public; try again in a minute"
    return rejected(Prefix.RATE_LIMITED, text)


def _closings(group: Group, now: int) -> tuple[int, ...]:
    return tuple([at for at in group.closed_at if at + _CLOSINGS_S > now])


def ruling_on_own_notice(event: Event, groups: Groups, relay: str) -> Ruling | None:
    """What a 39000 of one's own export says of its group: the policy may have changed since it gave
    the flags of a 9007 or 9002. None: nothing. Its relatives follow from other records."""
    notice, group = logged_action(event, relay), groups.get(event.d)
    if group is None or not isinstance(notice, Notice) or notice.description is None:
        return None
    related = replace(notice.description, parent=group.parent, children=group.children)
    after = group.with_description(related)
    return None if after == group else Ruling(groups.with_group(after))


def as_imported(groups: Groups, records: Iterable[Event], settings: GroupSettings) -> Groups:
    """These groups with the description and pins that an import reads from their records.

    With another relay key it leaves out 39000 and 39005, from which a replay has them.
    """
    left = {
        group_id: replace(group.with_description(Description(flags=UNTOLD_FLAGS)), pins=())
        for group_id, group in groups.by_id.items()
    }
    for event in records:
        if event.kind not in _DESCRIBING:
            continue
        try:
            action = action_of(event)
        except Refused:  # an older version accepted it
            continue
        match action:
            case CreateGroup() | EditMetadata() if action.group in left:
                left[action.group] = _described(left[action.group], action, settings)
            case UpdatePins(pins=pins) if action.group in left:
                left[action.group] = replace(left[action.group], pins=pins)
            case _:
                pass
    return groups.with_groups(left.values())
