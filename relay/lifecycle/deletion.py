"""What kind 5, kind 62 and bans delete, and the tombstones that keep it deleted.

Invariants: `Found` and the batch's WritePlan change together, as in `relay.lifecycle.versions`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import Prefix, Reject, WriteOutcome
from relay.lifecycle.rows import DeletedBy, Forgotten, Slot, Tombstone, Vanish
from relay.nostr import kinds
from relay.nostr.erasure import Erasure
from relay.nostr.event import MADE_FROM, address_of, event_from_raw, is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.event import Base, Event

CLOCK_SKEW_S: Final = 900
"""How far an author's clock may be behind."""


MAX_TARGETS: Final = 1000
"""Ids, addresses and codes that a kind 5 or 9005 of a client names. Each takes the writer 12 us,
and a page of the file is written for the tombstone of most."""
_OF_AUTHOR: Final = "kind 5"
_OF_ADMIN: Final = "9005"
_VANISH: Final = "kind 62"
_REQUESTS: Final = frozenset({_OF_AUTHOR, _VANISH})
"""Why, in the tombstones of what an author asked to delete."""


def address_target(slot: Slot) -> str:
    return f"a:{slot.kind}:{slot.pubkey}:{slot.d}"


def slot_target(slot: Slot) -> str:
    """For the versions that the order of the slot puts at or before one that was removed, where
    that may be an order by `ts`."""
    return f"s:{slot.kind}:{slot.pubkey}:{slot.d}"


def versions_target(slot: Slot) -> str:
    """For the versions of an address that others were made from. None of them is refused itself:
    an `e` says nothing about older versions (N09-02)."""
    return f"v:{slot.kind}:{slot.pubkey}:{slot.d}"


def event_target(event_id: str) -> str:
    return f"e:{event_id}"


def key_target(pubkey: str) -> str:
    return f"p:{pubkey}"


class DeletionTargets(NamedTuple):
    """The targets of a kind 5."""

    ids: list[str]
    slots: list[Slot]


def deletion_targets(event: Event) -> DeletionTargets:
    """The well-formed ids and own addresses that a kind 5 names."""
    ids = [value for value in event.tag_values("e") if is_hex64(value)]
    slots = []
    for value in event.tag_values("a"):
        slot = address_of(value)
        if slot is not None and slot.pubkey == event.pubkey:
            slots.append(slot)
    return DeletionTargets(ids, slots)


def check_number_of_targets(event: Event) -> Reject | None:
    """Why a kind 5 or 9005 names too many."""
    is_deletion = event.kind == kinds.DELETION or event.kind == kinds.DELETE_EVENT
    if not is_deletion or len(event.tags) <= MAX_TARGETS:
        return None
    names = ("e", "a", "code") if event.kind == kinds.DELETION else ("e", "a")
    number = sum(len(event.tag_values(name)) for name in names)
    if number <= MAX_TARGETS:
        return None
    text = f"{', '.join(names)}: {number} targets, at most {MAX_TARGETS} allowed in one deletion"
    return Reject(Prefix.INVALID, text, "form")


def may_delete(deletion: Event, target: Event) -> bool:
    """Whether a kind 5 may delete this event: its author's, or a gift wrap's recipient's (N09-02,
    N59-08)."""
    if kinds.is_undeletable(target.kind):
        return False
    if target.pubkey == deletion.pubkey:
        return True
    return target.kind == kinds.GIFT_WRAP and target.has_value("p", (deletion.pubkey,))


def is_deleted(
    event: Event, slot: Slot | None, version: int, found: Found, group: str | None
) -> bool:
    """Whether a tombstone refuses this event (N09-10, N09-11, G-12). `version`: `version_of`;
    `group`: that of its row, as far as the event tells."""
    if not found.tombstones:  # as in most batches
        return False
    stones = found.tombstones.get(event_target(event.id))
    if stones is not None:
        by = {stone.by for stone in stones}
        if "" in by or (event.pubkey in by and not kinds.is_undeletable(event.kind)):
            return True
        if event.kind == kinds.GIFT_WRAP and event.has_value("p", by):
            return True
        if (
            group is not None
            and _admins_of(group) in by
            and event.tag("h") == group
            and kinds.is_deletable_by_admin(event.kind)
        ):
            return True
    targets = [key_target(event.pubkey)]
    if slot is not None:
        targets.append(address_target(slot))
        for tombstone in found.tombstones.get(slot_target(slot), ()):
            if _refuses(tombstone, event, version):
                return True
    if event.kind == kinds.GIFT_WRAP:
        targets.extend(key_target(pubkey) for pubkey in event.tag_values("p"))
    return any(
        _refuses(tombstone, event, event.created_at)
        for target in targets
        for tombstone in found.tombstones.get(target, ())
    )


def refusals_of(event: Event) -> Iterator[tuple[str, str]]:
    """Target and `by` of the tombstones by which `is_deleted` refuses an event for its id."""
    target = event_target(event.id)
    yield target, ""
    yield target, event.pubkey
    h = event.tag("h")
    if h is not None and "\0" not in h:  # no group is called so
        yield target, _admins_of(h)
    if event.kind == kinds.GIFT_WRAP:
        yield from ((target, pubkey) for pubkey in event.tag_values("p") if is_hex64(pubkey))


def _refuses(tombstone: Tombstone, event: Event, number: int) -> bool:
    """`number`: the event's version or date. `allowevent` may let a banned event in again."""
    return (
        tombstone.until is not None
        and number <= tombstone.until
        and tombstone.why != _why_banned(event.id)
    )


def is_base_deleted(event: Event, base: Base, slot: Slot, found: Found) -> bool:
    """Whether the version that an event was made from was deleted as one of the event's author.

    Only by a tombstone of the author, or for a record of theirs: the tag may name any id, and
    whether an admin deleted that must not be told. Not by what a sweep leaves: nobody asked to
    forget that.
    """
    if base.id == "" or not found.tombstones or kinds.is_undeletable(event.kind):
        return False
    stones = found.tombstones
    if any(stone.by == event.pubkey for stone in stones.get(event_target(base.id), ())):
        return True
    dated = [*stones.get(address_target(slot), ()), *stones.get(key_target(event.pubkey), ())]
    dated = [stone for stone in dated if stone.why in _REQUESTS]
    holder = found.slots.get(slot)
    is_stored = holder is not None and holder.event.id == base.id  # `allowevent` let it in again
    dated += [
        stone
        for stone in stones.get(versions_target(slot), ())
        if not (is_stored and stone.why == _why_banned(base.id))
    ]
    return any(stone.until is not None and base.at <= stone.until for stone in dated)


def _add_versions_tombstone(row: Stored, why: str, found: Found, plan: WritePlan) -> None:
    """The versions that a deleted one replaced are deleted with it, as what others were made from:
    they hold its text, or most of it. Only where the versions say what they were made from."""
    if row.slot is not None and row.event.has_tag(MADE_FROM):
        target = versions_target(row.slot)
        add_tombstone(Tombstone(target, row.event.pubkey, row.version, why), found, plan)


def remove(row: Stored, found: Found, plan: WritePlan, cause: DeletedBy | None = None) -> None:
    """Delete a row, stored before or added by this batch, with its old versions."""
    if row.slot is not None:
        plan.forgotten.append(Forgotten(row.seq, row.slot, cause=cause))
    take_out(row, found, plan)


def remove_by_id(
    event_id: str, found: Found, plan: WritePlan, cause: DeletedBy | None = None
) -> None:
    row = found.rows.get(event_id)
    if row is not None:
        remove(row, found, plan, cause)


def take_out(row: Stored, found: Found, plan: WritePlan) -> None:
    """Delete a row that a newer version replaces."""
    if plan.adds.pop(row.event.id, None) is None:
        plan.removes.add(row.seq)
    event = row.event
    if found.present:
        found.present.pop(event.id, None)
        if row.slot is not None:
            found.present.pop(row.slot, None)
    if found.rows.pop(event.id, None) is not None or (
        row.slot is not None and found.slots.get(row.slot) is row
    ):
        found.usage.remove(event, row.group)
    if row.slot is not None and found.slots.get(row.slot) is row:
        del found.slots[row.slot]


def add_tombstone(tombstone: Tombstone | None, found: Found, plan: WritePlan) -> None:
    if tombstone is not None:
        plan.tombstones.append(tombstone)
        note_tombstone(tombstone, found)


def note_tombstone(tombstone: Tombstone, found: Found) -> None:
    """For the rest of the batch alone."""
    found.tombstones.setdefault(tombstone.target, []).append(tombstone)


BAN: Final = "ban"
"""Why, in the tombstones of rows of a banned key."""
END_OF_GROUP: Final = "9008"
"""Why, in the tombstones of rows that went with their group; the query of PostgreSQL has it too."""


def tombstone_of_id(event_id: str, why: str) -> Tombstone:
    """Refuses the event from whomever it comes."""
    return Tombstone(event_target(event_id), "", None, why)


def _admins_of(group: str) -> str:
    """`Tombstone.by`; no key is written like this."""
    return f"h:{group}"


def tombstone_of_slot(row: Stored, why: str) -> Tombstone | None:
    """Refuses what the row had replaced, and the row: whoever has an older version could send it
    again. None: all versions are kept."""
    if row.slot is None:
        return None
    if row.event.tag("ts") is not None:
        return Tombstone(slot_target(row.slot), "", row.version, why)
    # Ordered by date, whatever the policy says: earlier versions know this one.
    return Tombstone(address_target(row.slot), "", row.event.created_at, why)


def tombstones_of_banned(row: Stored) -> list[Tombstone]:
    """As `tombstone_of_slot`, but the list of bans refuses the row: `allowevent` takes it off. And
    for what was made from the row, which holds its text, or from what it had replaced."""
    if row.slot is None:
        return []
    why = _why_banned(row.event.id)
    made = Tombstone(versions_target(row.slot), row.event.pubkey, row.version, why)
    stones = tombstone_of_slot(row, why), made
    return [stone for stone in stones if stone is not None]


def _why_banned(event_id: str) -> str:
    return f"banevent {event_id}"


def placed_tombstone(event: Event, group: str | None, why: str) -> Tombstone | None:
    """For a deleted row that is of a group because of what it names, which may be gone too: sent
    again, it would be of no group, and public. None: the event tells its group itself."""
    if group is None or event.tag("h") == group or is_group_record(event):
        return None
    return tombstone_of_id(event.id, why)


def tombstones_of_ended(row: Stored) -> list[Tombstone]:
    """For a row that is deleted with its group. What it had replaced may be of no group."""
    if is_group_record(row.event):
        return []
    stones = (
        placed_tombstone(row.event, row.group, END_OF_GROUP),
        tombstone_of_slot(row, END_OF_GROUP),
    )
    return [stone for stone in stones if stone is not None]


def tombstones_of_author(row: Stored) -> list[Tombstone]:
    """For a row that is deleted with a ban of its author."""
    stones = tombstone_of_id(row.event.id, BAN), tombstone_of_slot(row, BAN)
    return [stone for stone in stones if stone is not None]


def delete_by_author(
    event: Event, targets: DeletionTargets, found: Found, plan: WritePlan
) -> Sequence[Stored]:
    """Apply an accepted kind 5: delete its targets, add tombstones (NIP-09).

    Returns the deleted rows.
    """
    rows = deleted_rows(event, targets, found)
    cause = DeletedBy(event.id, event.pubkey, _OF_AUTHOR)
    for row in rows:
        remove(row, found, plan, cause)
        _add_versions_tombstone(row, _OF_AUTHOR, found, plan)
    for event_id in targets.ids:
        add_tombstone(
            Tombstone(event_target(event_id), event.pubkey, None, _OF_AUTHOR), found, plan
        )
        plan.forgotten.append(Forgotten(found.last_seq, id=event_id, by=event.pubkey, cause=cause))
        found.old_versions.discard(event_id)
    for slot in targets.slots:
        plan.forgotten.append(Forgotten(found.last_seq, slot, until=event.created_at, cause=cause))
        add_tombstone(
            Tombstone(address_target(slot), event.pubkey, event.created_at, _OF_AUTHOR), found, plan
        )
    return rows


def delete_named(
    event: Event, ids: Iterable[str], found: Found, plan: WritePlan
) -> Sequence[Stored]:
    """Delete the rows that a 9005 names, or the 9009 whose code a kind 5 withdraws; returns the
    rows. Older versions of them are deleted too: whoever has one could send it again."""
    rows = [found.rows[event_id] for event_id in ids if event_id in found.rows]
    why = _OF_ADMIN if event.kind == kinds.DELETE_EVENT else f"kind {event.kind}"
    cause = DeletedBy(event.id, "", why)
    for event_id in ids:
        remove_by_id(event_id, found, plan, cause)
        add_tombstone(tombstone_of_id(event_id, why), found, plan)
    for row in rows:
        add_tombstone(tombstone_of_slot(row, why), found, plan)
        # An author is told what became of their own events (see `is_base_deleted`).
        if not kinds.is_undeletable(row.event.kind):
            stone = Tombstone(event_target(row.event.id), row.event.pubkey, None, why)
            add_tombstone(stone, found, plan)
            _add_versions_tombstone(row, why, found, plan)
    return rows


def delete_in_group(event: Event, event_id: str, group: str, found: Found, plan: WritePlan) -> None:
    """For an id that a 9005 names and that is not there, because it was deleted before the 9005 was
    copied, or comes later: delete an old version, and refuse the event, in this group. The 9005 may
    name ids of any events, and nobody knows which of them are of the group."""
    cause = DeletedBy(event.id, "", _OF_ADMIN)
    plan.forgotten.append(Forgotten(found.last_seq, id=event_id, cause=cause, group=group))
    found.old_versions.discard(event_id)
    stone = Tombstone(event_target(event_id), _admins_of(group), None, _OF_ADMIN)
    add_tombstone(stone, found, plan)


def note_erased(request: Event, rows: Iterable[Stored], plan: WritePlan, now: int) -> None:
    """Note the deleted rows in the plan, for the receipt of the request."""
    erasure = plan.erasures.setdefault(
        request.id, Erasure(request.id, request.pubkey, request.kind, now)
    )
    for row in sorted(rows, key=lambda row: row.seq):
        erasure.add(row.event.id, row.event.kind)


def deleted_rows(event: Event, targets: DeletionTargets, found: Found) -> list[Stored]:
    """The stored rows that a kind 5 deletes."""
    rows = {}
    h = event.tag("h")  # once: it has a tag for each target
    for event_id in targets.ids:
        row = found.rows.get(event_id)
        # A kind 5 with an `h` deletes rows of that group or of none (N09-14).
        if row is not None and may_delete(event, row.event) and _within(h, row):
            rows[row.seq] = row
    for slot in targets.slots:
        row = found.slots.get(slot)
        if (
            row is not None
            and row.event.created_at <= event.created_at
            and may_delete(event, row.event)
            and _within(h, row)
        ):
            rows[row.seq] = row
    return list(rows.values())


def _within(h: str | None, row: Stored) -> bool:
    return h is None or row.group is None or row.group == h


def is_group_record(event: Event) -> bool:
    """Whether the event may be needed to replay a group."""
    return is_of_record(event.kind)


def is_of_record(kind: int) -> bool:
    """As `is_group_record`, of an event that is not read."""
    return kind in kinds.GROUP_RECORDS or kind in kinds.GROUP_STATE


def is_old_request(request: Event, now: int) -> bool:
    """Whether the author of this request to vanish may have begun anew since: anyone can send an
    old one again."""
    return request.created_at + CLOCK_SKEW_S < now


def vanish_outcome(request: Event, found: Found) -> WriteOutcome | None:
    """The outcome of a kind 62 that a stored one with a later date covers (N62-10); None: it is
    new."""
    until, kept = _last_request(request.pubkey, found)
    if kept is None or request.created_at > until:
        return None
    id_ = event_from_raw(kept).id if _is_whole(kept) else kept.decode()
    same = id_ == request.id
    return WriteOutcome.DUPLICATE if same else WriteOutcome.STORED


def not_vanished(lookups: Lookups, found: Found) -> list[str]:
    """The `Lookups.vanishing_keys` but those whose request is covered so: nothing more is looked up
    for these."""
    asked = lookups.vanishing_keys.items()
    return [key for key, at in asked if at > _last_request(key, found)[0]]


def _last_request(pubkey: str, found: Found) -> tuple[int, bytes | None]:
    """The date of the last stored request of a key to vanish, and what is kept of it. -1: none."""
    until, kept = -1, None
    for tombstone in found.tombstones.get(key_target(pubkey), ()):
        if tombstone.request is None or tombstone.until is None:
            continue
        if tombstone.until > until:
            until, kept = tombstone.until, tombstone.request
    return until, kept


def _is_whole(kept: bytes | None) -> bool:
    """Whether `Tombstone.request` is the whole event, not only its id."""
    return kept is not None and kept.startswith(b"{")


def vanish(request: Event, found: Found, plan: WritePlan) -> Sequence[Stored]:
    """Apply a kind 62 for this relay; the store deletes the rows that are not in `found`.

    Returns the deleted rows that are in `found`.
    """
    vanished = Vanish(request.pubkey, request.created_at, request.id, found.last_seq)
    rows = chain(found.rows.values(), found.slots.values(), found.group_records)
    by_seq = {row.seq: row for row in rows if vanished.covers(row.event)}
    deleted = [row for _, row in sorted(by_seq.items())]
    for row in deleted:
        remove(row, found, plan)
    for named, about in list(found.present.items()):
        if vanished.covers_present(about):
            del found.present[named]
    target = key_target(vanished.pubkey)
    kept = request.raw
    if deleted or vanished.pubkey in found.stored_keys:
        plan.vanishes.append(vanished)
    elif not any(_is_whole(stone.request) for stone in found.tombstones.get(target, ())):
        kept = request.id.encode()  # anybody may send them by any number of new keys
    add_tombstone(Tombstone(target, vanished.pubkey, vanished.until, _VANISH, kept), found, plan)
    return deleted


def expire_own_records(request: Event, found: Found, plan: WritePlan) -> Sequence[Stored]:
    """Make those of the author's records that are in `found` LONG_EXPIRED: they may be too many to
    delete in one transaction. Returns them."""
    vanished = Vanish(request.pubkey, request.created_at)
    records = [row for row in found.group_records if vanished.covers(row.event)]
    plan.expired.update([row.seq for row in records])
    return records


def tombstone_while_vanishing(request: Event) -> Tombstone:
    """Refuses what the request deletes while it is carried out, before `vanish`. Not stored."""
    return Tombstone(key_target(request.pubkey), request.pubkey, request.created_at, _VANISH)


def delete_banned_author(pubkey: str, found: Found, plan: WritePlan) -> None:
    """Delete the rows of a banned key; the store deletes those that are not in `found`.

    Group records stay: the key had the right to write them at the time.
    """
    for row in {row.seq: row for row in (*found.rows.values(), *found.slots.values())}.values():
        if row.event.pubkey == pubkey and not is_group_record(row.event):
            remove(row, found, plan)
            for stone in tombstones_of_author(row):
                add_tombstone(stone, found, plan)
    for named, about in list(found.present.items()):
        if about.pubkey == pubkey and not is_of_record(about.kind):
            del found.present[named]
    plan.deleted_authors[pubkey] = found.last_seq


def remaining_records(groups: Set[str], found: Found, plan: WritePlan) -> Sequence[Event]:
    """The log of these groups after the batch; `Lookups.record_groups` must have named them.

    For groups in `plan.deleted_groups` it includes rows that are deleted with the group: a replay
    ends with the 9008 anyway.
    """
    gone = plan.removes | plan.expired
    stored = [row for row in found.group_records if row.seq not in gone]
    added = [row for row in plan.adds.values() if is_group_record(row.event)]
    return [row.event for row in (*stored, *added) if row.group in groups]
