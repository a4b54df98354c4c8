"""Rows that leave in a batch: they expired, or retention releases them or their old versions.

Which ones are due was found before; each is looked at again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relay.groups.group import pins_of
from relay.lifecycle.deletion import key_target, placed_tombstone, remove
from relay.lifecycle.retention import hold_reason, tombstone_for
from relay.lifecycle.rows import LONG_EXPIRED
from relay.write.commands import Purpose
from relay.write.pins import pinning

if TYPE_CHECKING:
    from relay.lifecycle.rows import Stored
    from relay.write.changes import Changes
    from relay.write.commands import ExpireRows, SweepRows, SweepVersions


def expire(expiry: ExpireRows, changes: Changes) -> None:
    """Remove what has expired (N40-04), and from groups what followed from it."""
    expiry.removed.clear()
    for expired in expiry.rows:
        row = changes.found.rows.get(expired.id)
        if row is None or row.expires_at is None:
            continue
        is_dry = expiry.purpose is Purpose.DRY_RUN  # may be asked as of later
        if not is_dry and row.expires_at > changes.now:
            continue
        is_vanishing = key_target(row.event.pubkey) in changes.found.tombstones
        if row.expires_at == LONG_EXPIRED and is_vanishing and not is_dry:
            continue  # the request to vanish that is carried out deletes it, and notes it
        expiry.removed.append(row)
        if not is_dry:
            _remove(row, "expired", changes)
    if expiry.purpose is Purpose.DRY_RUN:
        return
    gone = {pin for row in expiry.removed for pin in pins_of(row.event)}
    for group_id in sorted(pinning(gone, changes.world.groups)):
        group = changes.world.groups.by_id[group_id]
        left = tuple([tag for tag in group.pins if (tag[0], tag[1]) not in gone])
        changes.notify(group, replace(group, pins=left))
    changes.forget(expiry.removed)


def sweep(sweeping: SweepRows, changes: Changes) -> None:
    """Remove rows that are still stored and not held; none when the rules have changed."""
    sweeping.removed.clear()
    sweeping.held.clear()
    world, found = changes.world, changes.found
    rules = world.policy.sweeps
    if sweeping.rules != rules:
        return
    for row in sweeping.rows:
        stored = found.rows.get(row.event.id)
        if stored is None:
            continue
        reason = hold_reason(stored, rules, world.actors, world.groups, found, changes.plan)
        if reason is not None:
            sweeping.held[reason] = sweeping.held.get(reason, 0) + 1
            continue
        sweeping.removed.append(stored)
        if sweeping.purpose is Purpose.SWEEP:
            _remove(stored, "sweep", changes)
            changes.keep_out(placed_tombstone(stored.event, stored.group, "sweep"))
    if sweeping.purpose is Purpose.SWEEP:
        changes.forget(sweeping.removed)


def sweep_versions(sweeping: SweepVersions, changes: Changes) -> None:
    """None when the rules have changed: the next sweep looks at all of them again."""
    if sweeping.rules == changes.world.policy.keep.history:
        changes.plan.dropped_versions |= sweeping.due
        changes.plan.version_deadlines.update(sweeping.deadlines)


def _remove(row: Stored, why: str, changes: Changes) -> None:
    remove(row, changes.found, changes.plan)
    changes.keep_out(tombstone_for(row, changes.world.policy.keep.keep_of(row.event), why))
