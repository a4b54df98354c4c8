"""What a request to vanish (NIP-62) does in a batch: rows and memberships go; what the author's
records said of groups stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from relay.access.management import ListChange, ListName
from relay.access.membership import joined_at, withdrawn
from relay.groups.group import Groups, replayed
from relay.groups.key_map import KeyMap
from relay.groups.membership import Cause, groups_without_rows, removals_from_groups, repair_drafts
from relay.groups.rules import as_imported
from relay.lifecycle.deletion import (
    CLOCK_SKEW_S,
    delete_named,
    expire_own_records,
    note_erased,
    remaining_records,
    vanish,
)
from relay.lifecycle.rows import Slot, Vanish
from relay.nostr import kinds
from relay.write.pins import without_pins

if TYPE_CHECKING:
    from collections.abc import Set

    from relay.groups.group import Group
    from relay.groups.notices import Draft
    from relay.nostr.event import Event
    from relay.write.changes import Changes
    from relay.write.relay_lists import RelayLists

_ABOUT_MEMBERS: Final = (kinds.PUT_USER, kinds.REMOVE_USER, kinds.DELETE_GROUP)


def remove_author(request: Event, changes: Changes, lists: RelayLists) -> None:
    """Delete all that the author wrote, and take them out of every group (N62-01, N62-07)."""
    before, found = changes.world.groups, changes.found
    _note_slots(changes)
    # Anyone can send an old request again, also one that never came here: it must not end what its
    # author began since.
    rejoined = _rejoined(request, changes)
    pinned = set(found.present)
    removed = vanish(request, found, changes.plan)
    note_erased(request, removed, changes.plan, changes.now)
    groups = groups_without_rows(before, [row.event for row in removed])
    changes.set_groups(without_pins(pinned - found.present.keys(), groups))
    joined = joined_at(request.pubkey, changes.world.management)
    if joined is None or joined <= request.created_at + CLOCK_SKEW_S:
        lists.change(ListChange(ListName.ALLOWED_KEYS, request.pubkey, None, by_member=True))
        for withdrawal in withdrawn(request.pubkey, changes.world.management):
            lists.change(withdrawal)
    _leave(request, changes, changes.world.groups.groups_of(request.pubkey) - rejoined)
    forget_member(request.pubkey, before.ended_with(request.pubkey), changes)
    unrecorded = {
        row.group for row in removed if row.group is not None and row.event.kind in kinds.MODERATION
    }
    if unrecorded:
        _restate(unrecorded, request, changes)
    changes.notify_since(before)


def leave_groups(request: Event, group_ids: Set[str], changes: Changes) -> None:
    """Take the author out of these groups, before the rest of the request is carried out."""
    before = changes.world.groups
    _leave(request, changes, group_ids & before.groups_of(request.pubkey))
    changes.notify_since(before)


def forget_member(pubkey: str, ended_with: Set[str], changes: Changes) -> None:
    """From now on the key is no former member of these groups, which have ended."""
    groups = changes.world.groups
    if ended_with:
        ended = {
            group_id: replace(groups.ended[group_id], members=left)
            for group_id in ended_with
            for left in [groups.ended[group_id].members - {pubkey}]
        }
        changes.plan.left_ended[pubkey] = frozenset(ended_with)
        changes.set_groups(groups.with_ended(ended))


def withdraw_requests(changes: Changes) -> None:
    """Take 9021s that leave out of the requests that groups have."""
    before = groups = changes.world.groups
    for group_id, ids in changes.found.withdrawn.items():
        group = groups.get(group_id)
        if group is not None:
            groups = groups.with_group(group.without_rows(ids))
    changes.set_groups(groups)
    changes.notify_since(before)


def restate_groups(request: Event, changes: Changes) -> None:
    """Take the author out of the groups in `Found.group_records`, and make their records expire,
    before the rest of the request is carried out: it deletes them."""
    before, found = changes.world.groups, changes.found
    group_ids = {row.group for row in found.group_records if row.group is not None}
    _note_slots(changes)
    changes.forget(expire_own_records(request, found, changes.plan))
    vanished = Vanish(request.pubkey, request.created_at)
    # Else the relay would sign a 9010 that names them.
    own = {named for named, about in found.present.items() if vanished.covers_present(about)}
    changes.set_groups(without_pins(own, changes.world.groups))
    rejoined = _rejoined(request, changes)
    _leave(request, changes, (group_ids & before.groups_of(request.pubkey)) - rejoined)
    _restate(group_ids, request, changes)
    changes.notify_since(before)


def _note_slots(changes: Changes) -> None:
    """All 39000–39005 of the groups whose records were found: the relay may replace them."""
    found, relay = changes.found, changes.world.relay
    group_ids = {row.group for row in found.group_records if row.group is not None}
    slots = {Slot(relay, kind, each) for kind in kinds.GROUP_STATE for each in group_ids}
    unknown = slots - found.looked_up
    for row in found.group_records:
        if row.slot is not None and row.slot in unknown:
            found.rows.setdefault(row.event.id, row)
            found.slots[row.slot] = row
    found.looked_up |= slots


def _rejoined(request: Event, changes: Changes) -> Set[str]:
    """Groups that somebody put the author into since. All that it is in, if these are too many: a
    new request, which has none, takes it out."""
    rejoined = changes.found.put_later.get(request.pubkey, set())
    return changes.world.groups.groups_of(request.pubkey) if rejoined is None else rejoined


def _leave(request: Event, changes: Changes, left: Set[str]) -> None:
    world = changes.world
    groups, drafts = removals_from_groups(
        world.groups, request.pubkey, changes.now, Cause.OWN_WISH, world.relay, left=left
    )
    changes.set_groups(groups)
    for draft in drafts:
        _sign_for(request, draft, changes)


def _restate(group_ids: Set[str], request: Event, changes: Changes) -> None:
    """Sign with the relay's key what the author's 9000–9020 had said of groups (N29-58).

    The groups are then what the log says, also to an import that leaves out 39000 and 39005: only
    codes that the author made, or that only the author knew to be used, are gone.
    """
    world = changes.world
    groups, relay = world.groups, world.relay
    intended = Groups(
        KeyMap({key: groups.by_id[key] for key in group_ids if key in groups.by_id}),
        KeyMap({key: groups.ended[key] for key in group_ids if key in groups.ended}),
    )
    records = remaining_records(group_ids, changes.found, changes.plan)
    left = replayed(Groups(), records, relay)
    uncounted = _uncounted_invites(intended, left)
    if uncounted:
        stored = {row.event.id: row for row in changes.found.group_records}
        for event_id in uncounted & stored.keys():
            changes.found.rows.setdefault(event_id, stored[event_id])
        delete_named(request, uncounted, changes.found, changes.plan)
        records = remaining_records(group_ids, changes.found, changes.plan)
        left = replayed(Groups(), records, relay)
    copied = as_imported(left, records, world.policy.groups)
    drafts = repair_drafts(intended, copied, changes.now, relay)
    left = replayed(left, [_sign_for(request, draft, changes) for draft in drafts], relay)
    # The author's rows are no longer pinned, whatever the stored 39005 says.
    pins = {key: group.pins for key, group in (*left.by_id.items(), *intended.by_id.items())}
    changes.set_groups(
        groups.with_groups([replace(each, pins=pins[each.id]) for each in left.by_id.values()])
    )


def _uncounted_invites(before: Groups, left: Groups) -> Set[str]:
    """Ids of the 9009s with a code of which the log has lost uses: it would admit again.

    The author signed the 9000s that count them (N29-39), as a former key of this relay or of the
    one that a group was moved from. Or the 9001 of a member who came back by the code: in the log
    that is left the member never was away.
    """
    return {
        invite.event_id
        for group_id, group in left.by_id.items()
        for code, invite in group.invites.items()
        if not invite.reusable and invite.used < _uses_of(code, before.get(group_id))
    }


def _uses_of(code: str, group: Group | None) -> int:
    invite = None if group is None else group.invites.get(code)
    return 0 if invite is None else invite.used


def _sign_for(request: Event, draft: Draft, changes: Changes) -> Event:
    """Sign with the request's id, and the number of earlier passes that signed such an event: two
    drafts of one second would be the same event."""
    (_, group_id), *_ = draft.tags
    # Of a 9002 a tag `e` would become part of the 39000, of a 9010 a pin.
    name = "e" if draft.kind in _ABOUT_MEMBERS else "nonce"
    tags = (*draft.tags, (name, request.id))
    kind_and_group = draft.kind, group_id
    changes.signed.add(kind_and_group)
    if before := changes.signed_before.get(kind_and_group):
        tags += (("nonce", f"{before}"),)
    return changes.sign(replace(draft, tags=tags), group_id)
