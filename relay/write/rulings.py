"""What an accepted 9000–9022, or a withdrawal of an invite, does to groups and rows in a batch, and
what the relay signs then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.facts import Origin
from relay.groups.actions import users_in
from relay.groups.notices import membership_notices
from relay.lifecycle.deletion import (
    delete_in_group,
    delete_named,
    note_erased,
    remove,
    remove_by_id,
    tombstone_of_id,
    tombstones_of_ended,
)
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.groups.context import Ruling
    from relay.write.candidate import Candidate
    from relay.write.changes import Changes


def apply_ruling(ruling: Ruling, group_id: str, candidate: Candidate, changes: Changes) -> None:
    event, action = candidate.event, candidate.action
    before, found, plan = changes.world.groups, changes.found, changes.plan
    changes.set_groups(ruling.groups)
    for draft in ruling.automatic:
        changes.sign(draft, group_id)
    if ruling.removes:
        rows = delete_named(event, ruling.removes, found, plan)
        note_erased(event, rows, plan, changes.now)
    removed = {*ruling.removes}
    for event_id in ruling.keeps_out:
        if event_id not in removed and event_id not in found.rows:
            delete_in_group(event, event_id, group_id, found, plan)
    for event_id in ruling.superseded:
        remove_by_id(event_id, found, plan)
        # Or who has it could send it again, after its author has left too (N29-35).
        changes.keep_out(tombstone_of_id(event_id, "9021"))
    if ruling.ended is not None:
        _end_group(ruling.ended, changes)
    for changed in (group_id, *ruling.relatives):
        after, former = changes.world.groups.get(changed), before.get(changed)
        if after is not None:
            changes.notify(former, after)
            if former is not None and after.only_members_read is not former.only_members_read:
                found.rows_moving += found.group_rows.get(changed, 0)
    if candidate.sender.origin is Origin.WIRE:  # members that an import puts in knew before
        for draft in membership_notices(
            before.get(group_id),
            changes.world.groups.get(group_id),
            None if action is None else users_in(action),
            cause=event.id,
            actor=event.pubkey,
            now=changes.now,
        ):
            changes.sign(draft, None)


def _end_group(group_id: str, changes: Changes) -> None:
    found, plan = changes.found, changes.plan
    plan.groups[group_id] = changes.world.groups.ended[group_id]
    plan.deleted_groups.add(group_id)
    kept = (kinds.CREATE_GROUP, kinds.DELETE_GROUP)
    rows = {row.seq: row for row in (*found.rows.values(), *found.slots.values())}
    for row in rows.values():
        if row.group == group_id and row.event.kind not in kept:
            remove(row, found, plan)
            for stone in tombstones_of_ended(row):
                changes.keep_out(stone)
