"""Batch: one transaction of the lane. Judges its items in order and collects what they change.

Invariants: each item is judged against the world as the items before it leave it. No I/O and
no await: `decide` fills a WritePlan for the store, the groups and lists as they are then, and the
rows to deliver. It may run on another thread than the event loop's. Rate tokens and tried invite
codes are counted here, and stay counted when the commit fails.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from relay.access.management import BannedAuthorRows, ListChange, ListName, check_change
from relay.access.membership import (
    follows_from,
    is_listed,
    joined_at,
    member_tags,
    role_tags,
    withdrawn,
)
from relay.access.quotas import subnet_of
from relay.errors import Prefix, Reject, TooMuchToRead, WriteOutcome
from relay.facts import Origin
from relay.groups.actions import users_in
from relay.groups.group import Groups, pins_of, replayed
from relay.groups.key_map import KeyMap
from relay.groups.membership import Cause, groups_without_rows, removals_from_groups, repair_drafts
from relay.groups.notices import (
    LISTS,
    NOTICES,
    Draft,
    is_listed_apart,
    membership_notices,
    notices_for,
)
from relay.groups.rules import as_imported
from relay.lifecycle.deletion import (
    add_tombstone,
    delete_banned_author,
    delete_by_author,
    delete_in_group,
    delete_named,
    is_group_record,
    note_erased,
    note_tombstone,
    placed_tombstone,
    remaining_records,
    remove,
    remove_by_id,
    tombstone_of_id,
    tombstone_of_slot,
    tombstones_of_banned,
    tombstones_of_ended,
    vanish,
)
from relay.lifecycle.retention import hold_reason, tombstone_for
from relay.lifecycle.rows import (
    Forgotten,
    Slot,
    Stored,
    WritePlan,
    references_of,
)
from relay.lifecycle.versions import add_row, move, plan_for
from relay.nostr import kinds
from relay.write.candidate import Candidate, candidate_of
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    Purpose,
    Series,
    SignLists,
    SweepRows,
    SweepVersions,
    WriteEvent,
    is_fault,
    sender_of,
)
from relay.write.derived import followers
from relay.write.judge import guesser, is_paced, judge, screen_and_judge
from relay.write.lookups import lookups_for
from relay.write.pieces import bounded
from relay.write.pins import all_pinning, pinning, pins_left, without_pins
from relay.write.world import Removed, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from relay.access.quotas import InviteGuesses, MinuteCounter, TokenBuckets
    from relay.errors import Result
    from relay.groups.context import Ruling
    from relay.groups.group import Group
    from relay.lifecycle.rows import Found, Lookups, Tombstone
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.state import RelayState
    from relay.write.candidate import Sender
    from relay.write.commands import LaneItem
    from relay.write.judge import Judgement

_LARGE_GROUP: Final = 50
"""Members. Its lists are signed once for all changes of a batch: one takes up to 15 ms and 700 kB,
and so many changes would keep all other events waiting for seconds."""
_LARGE_STATE: Final = 8192
"""Characters of what it is and pins, 4 more for each value: that is signed once then, too."""
_MOST_READ: Final = 2 << 20
"""Bytes of stored rows, and 80 for each tag, that a batch of several items may read. Parsed they
can take twenty times as much, and each event may name 16 of up to 500 kB."""
_MOST_REPLACED: Final = 20_000
"""Tags of the versions that a batch of several items may replace: each is a row of the index, 5 us.
Without those of the relay's own lists, which are replaced once for all changes of a batch."""
_ABOUT_MEMBERS: Final = (kinds.PUT_USER, kinds.REMOVE_USER, kinds.DELETE_GROUP)
_CLOCK_SKEW_S: Final = 900
"""How far an author's clock may be behind."""
_GROUP_RECORD: Final = Reject(
    Prefix.RESTRICTED,
    "events that define a group cannot be banned; use its moderation events",
    "NIP-86",
)


_AFTER_REFUSED: Final = Reject(
    Prefix.ERROR, "an event before it was not taken, try again later", "order"
)
_MEMBERSHIP_STATE: Final = Reject(
    Prefix.RESTRICTED, "the relay's lists of members and roles cannot be banned", "NIP-86"
)


class Batch:
    """`decide` is given to `Store.append` with `lookups`; read the rest after the commit."""

    def __init__(
        self,
        items: Sequence[LaneItem],
        state: RelayState,
        relay_key: SecretKey,
        *,
        now: int,
        is_here: Callable[[str], bool],
        guesses: InviteGuesses,
        buckets: TokenBuckets,
        vanished: MinuteCounter,
        vanishing: Sequence[Tombstone],
        unlisted: Mapping[str, Group],
    ) -> None:
        """`is_here`: whether a URL is this relay's. `vanishing`: of requests that are carried out.
        `unlisted`: those of earlier batches."""
        self.plan = WritePlan()
        self.rows: list[Stored] = []
        """Everything accepted, in order."""
        self.delivered = self.rows
        """For live delivery."""
        self.taken_at = self.began_at = self.decided_at = self.stored_at = self.judged_s = 0.0
        """`perf_counter` when it is given to the store, at the begin and end of `decide`, and when
        it is stored; seconds of the first judgement."""
        self._judge = self._timed_judge
        self._members_at = now
        """created_at of what is signed about members of the relay."""
        self._changed_groups: dict[str, Group] = {}
        """Large ones as they were; what is signed about them comes last."""
        self.unlisted: dict[str, Group] = {}
        """Groups whose lists another batch will sign, as they were when the last ones were."""
        self._unlisted_before = unlisted
        self._announced: set[str] = set()
        """Keys that joined or left the relay in this batch."""
        self._has_moved = False
        """Whether a row turned out to belong to a group."""
        self.is_piece = False
        """Its only item has to come again: it was neither stored nor refused."""
        self.restated = 0
        """Bytes of the records of groups that keys had moderated which vanished."""
        self._items = items
        self._policy = state.policy
        """Of the look-ups too: a reload meanwhile is for the next batch."""
        self.begin(state)
        self._relay_key = relay_key
        self._now = now
        self._guesses = guesses
        self._buckets = buckets
        self._vanished = vanished
        self._vanishing = vanishing
        policy = state.policy
        history = policy.keep.history
        self._history = history if history.rules else None
        derived = policy.groups.derived
        keep_of, systems = policy.keep.keep_of, policy.systems
        foreign_h = policy.groups.foreign_h
        senders: dict[int, Sender] = {}
        self._candidates = [
            candidate_of(
                item.event,
                keep_of(item.event),
                systems,
                _sender_of(item, senders),
                is_here,
                item.objection,
                foreign_h=foreign_h,
                derived=derived,
            )
            for item in items
            if isinstance(item, WriteEvent)
        ]
        first = items[0] if len(items) == 1 else None
        self._pieces = first.pieces if isinstance(first, WriteEvent) else None
        if self._pieces is not None:
            self._candidates = [self._pieces.part_of(self._candidates[0])]

    def begin(self, state: RelayState) -> None:
        """Against which state it is judged; before `lookups`."""
        self.groups, self.management = state.groups, state.management
        self._actors = (
            state.actors
            if state.policy is self._policy
            else state.management.applied_to(self._policy.actors)
        )

    @property
    def lookups(self) -> Lookups:
        candidates, pieces = self._candidates, self._pieces
        if pieces is not None and not pieces.is_last:  # its own group is for the last pass
            candidates = [msgspec.structs.replace(each, named=None) for each in candidates]
        wanted = lookups_for(
            candidates,
            [item for item in self._items if not isinstance(item, WriteEvent)],
            groups=self.groups,
            actors=self._actors,
            policy=self._policy,
            relay=self._relay_key.pubkey,
        )
        if pieces is not None:
            return pieces.lookups(wanted, candidates[0], self.groups)
        if len(self._items) == 1:
            return bounded(wanted, indivisible=1)
        wanted = bounded(wanted, indivisible=0)
        # A row with the id of an event that was sent is as large as that; on PostgreSQL a question.
        sent = {candidate.event.id for candidate in candidates}
        if wanted.ids <= sent and not (wanted.slots or wanted.id_prefixes):
            return wanted
        return replace(wanted, most=_MOST_READ)

    def decide(self, found: Found) -> WritePlan:
        """Judge every item and set its result. The callback of the store's transaction.

        Raises TooMuchToRead."""
        self.began_at = perf_counter()
        self._broken = set[Series]()
        if len(self._items) > 1:
            self._check_tags(found.slots.values())
        for stone in self._vanishing:
            note_tombstone(stone, found)
        self._found = found
        self._world = World(
            self._policy,
            self.groups,
            self._actors,
            found,
            self._relay_key.pubkey,
            self._now,
            self.management,
            self.plan.adds,
            self._guesses,
            self._buckets,
            self._vanished,
            Removed() if self._pieces is None else self._pieces.removed,
            unsigned=self._changed_groups,
        )
        listed = found.slots.get(Slot(self._relay_key.pubkey, kinds.RELAY_MEMBERS, ""))
        if listed is not None:  # each list is newer than the one before (as N29-68)
            self._members_at = max(self._now, listed.event.created_at + 1)
        candidates = iter(self._candidates)
        for item in self._items:
            match item:
                case WriteEvent():
                    if item.screened_by not in (None, self._policy):
                        # It waited while these came into force, and the rest of the batch too.
                        self._judge = screen_and_judge
                    item.result = self._write_next(item, next(candidates))
                case ManagementChange():
                    item.result = self._manage(item)
                case ExpireRows():
                    self._expire(item)
                case SweepRows():
                    self._sweep(item)
                case SweepVersions():
                    self._sweep_versions(item)
                case SignLists():
                    self._sign_lists(item)
                case _:
                    assert_never(item)
        for before in self._changed_groups.values():
            self._sign_last(before)
        if self._announced or any(isinstance(item, ManagementChange) for item in self._items):
            self._list_members()
        groups, management = self._world.groups, self._world.management
        if groups is not self.groups or management is not self.management or self._has_moved:
            self.delivered = self._left()
        self.groups, self.management = groups, management
        self.decided_at = perf_counter()
        return self.plan

    def _left(self) -> list[Stored]:
        """The rows as they are stored, without those that the batch removed: it may have given
        rights to somebody who never could read them."""
        added = self.plan.adds
        left = [row if not row.seq else added.get(row.event.id) for row in self.rows]
        return [row for row in left if row is not None]

    def _check_tags(self, versions: Iterable[Stored]) -> None:
        relay = self._relay_key.pubkey
        tags = sum([len(row.event.tags) for row in versions if row.event.pubkey != relay])
        if tags > _MOST_REPLACED:
            raise TooMuchToRead

    def _set_groups(self, groups: Groups) -> None:
        self._world = self._world.with_groups(groups)

    # -- an event -----------------------------------------------------------------------------

    def _timed_judge(self, candidate: Candidate, world: World) -> Judgement:
        """For the first event of the batch."""
        self._judge = judge
        began = perf_counter()
        judgement = judge(candidate, world)
        self.judged_s = perf_counter() - began
        return judgement

    def _write_next(self, item: WriteEvent, candidate: Candidate) -> Result:
        series = item.series
        if series is None:
            return self._write(candidate)
        if series.is_broken or series in self._broken:
            return _AFTER_REFUSED
        result = self._write(candidate)
        if is_fault(result):
            self._broken.add(series)
        return result

    def _write(self, candidate: Candidate) -> Result:
        pieces = self._pieces
        if pieces is None or pieces.is_last:
            return self._carry_out(candidate, self._judge(candidate, self._world))
        if pieces.begin(candidate, self._world):
            judged = self._judge(candidate, self._world)
            if not _is_accepted(judged, candidate):
                return self._carry_out(candidate, judged)
            rows = pieces.delete(candidate, judged, self._world, self.plan)
            if rows:
                self._unpin(judged.outdated_pins)
                self._forget(rows, keeps_pins=candidate.sender.origin is not Origin.WIRE)
        pieces.advance(self._found)
        self.is_piece = True
        return WriteOutcome.STORED  # said to nobody

    def _carry_out(self, candidate: Candidate, judged: Judgement) -> Result:
        if judged.tries_code:
            self._guesses.count(guesser(candidate), candidate.sender.address, self._now)
        for rate, name, cost in judged.tokens:
            self._buckets.take(rate, name, self._now, cost)
        if candidate.vanishes:
            if judged.vanishes:
                if is_paced(candidate, self._world):
                    self._world.vanished.count(subnet_of(candidate.sender.address), self._now)
                self._vanish(candidate.event)
        elif judged.outcome is WriteOutcome.PASSED_ON:
            # seq 0: it has no place in the log
            row = Stored(0, candidate.event, judged.group)
            self.rows.append(row)
            self.plan.passed_on.append(row)
        elif judged.outcome is WriteOutcome.STORED:
            self._store(candidate, judged)
        elif judged.ruling is not None and judged.group is not None:
            self._apply(judged.ruling, judged.group, candidate)
        for change in judged.list_changes:
            self._change(change)
        return judged.result

    def _store(self, candidate: Candidate, judged: Judgement) -> None:
        event, found = candidate.event, self._found
        row = add_row(
            event,
            candidate.slot,
            candidate.keep,
            judged.group,
            found,
            self.plan,
            quiet=judged.quiet,
            history=self._history,
            now=self._now,
        )
        self.rows.append(row)
        if row.group is None:
            self._note_references(row, candidate)
        elif candidate.sender.origin is not Origin.WIRE:
            self._place_followers(row, candidate)
        if candidate.targets is not None:
            rows = delete_by_author(event, candidate.targets, found, self.plan)
            self._note_old_versions(rows)
            note_erased(event, rows, self.plan, self._now)
        if judged.ruling is not None and judged.group is not None:
            self._apply(judged.ruling, judged.group, candidate)
        if judged.outdated_pins:
            self._unpin(judged.outdated_pins)

    def _note_old_versions(self, rows: Iterable[Stored]) -> None:
        """The store finds the old versions of deleted rows, and keeps them out, after the batch."""
        for row in rows:
            if self._history is not None and self._history.of(row) is not None:
                stone = tombstone_of_slot(row, "history")
                if stone is not None:
                    note_tombstone(stone, self._found)

    def _note_references(self, row: Stored, candidate: Candidate) -> None:
        """What it names may come later in the batch, with an import."""
        if candidate.named is not None:
            for reference in references_of(row.event):
                self._found.referrers.setdefault(reference, set()).add(row.event.id)

    def _place_followers(self, row: Stored, candidate: Candidate) -> None:
        """Put what names this row into its group, and what names that in turn."""
        found = self._found
        stack = [row]
        while stack:
            for follower in followers(stack.pop(), candidate, self._world):
                move(follower, found, self.plan)
                self._has_moved = True
                stack.append(follower)

    def _apply(self, ruling: Ruling, group_id: str, candidate: Candidate) -> None:
        """What a 9000–9022 or a withdrawal of an invite does: state, rows, 39000–39005, notices."""
        before = self._world.groups
        self._set_groups(ruling.groups)
        for draft in ruling.automatic:
            self._sign(draft, group_id)
        if ruling.removes:
            rows = delete_named(candidate.event, ruling.removes, self._found, self.plan)
            note_erased(candidate.event, rows, self.plan, self._now)
        action, is_imported = candidate.action, candidate.sender.origin is not Origin.WIRE
        removed = {*ruling.removes}
        for event_id in ruling.keeps_out:
            if event_id not in removed and event_id not in self._found.rows:
                delete_in_group(candidate.event, event_id, group_id, self._found, self.plan)
        for event_id in ruling.superseded:
            remove_by_id(event_id, self._found, self.plan)
            # Or who has it could send it again, after its author has left too (N29-35).
            self._keep_out(tombstone_of_id(event_id, "9021"))
        if ruling.ended is not None:
            self._end_group(ruling.ended)
        for changed in (group_id, *ruling.relatives):
            after = self._world.groups.get(changed)
            if after is not None:
                self._notify(before.get(changed), after)
        if not is_imported:  # members that an import puts in knew before
            for draft in membership_notices(
                before.get(group_id),
                self._world.groups.get(group_id),
                None if action is None else users_in(action),
                cause=candidate.event.id,
                actor=candidate.event.pubkey,
                now=self._now,
            ):
                self._sign(draft, None)

    def _end_group(self, group_id: str) -> None:
        self.plan.groups[group_id] = self._world.groups.ended[group_id]
        self.plan.deleted_groups.add(group_id)
        kept = (kinds.CREATE_GROUP, kinds.DELETE_GROUP)
        found = self._found
        rows = {row.seq: row for row in (*found.rows.values(), *found.slots.values())}
        for row in rows.values():
            if row.group == group_id and row.event.kind not in kept:
                remove(row, found, self.plan)
                for stone in tombstones_of_ended(row):
                    self._keep_out(stone)

    def _unpin(self, group_ids: Iterable[str]) -> None:
        """Drop pins of these groups whose event is removed or expired (N29-172)."""
        for group_id in sorted(group_ids):
            group = self._world.groups.get(group_id)
            if group is None:
                continue
            left = pins_left(group, self._found, self._now)
            if len(left) < len(group.pins):
                self._notify(group, replace(group, pins=left))

    def _notify(self, before: Group | None, after: Group) -> None:
        """Set the group, and store the 39000–39005 that differ, at last."""
        if before is None or not (_is_large(after) or self._is_apart(before, after)):
            self._sign_notices(before, after)
            return
        self._changed_groups.setdefault(after.id, before)
        self._set_groups(self._world.groups.with_group(after))
        self.plan.groups[after.id] = after

    def _is_apart(self, before: Group, after: Group) -> bool:
        """Whether the lists are left to another batch: this one did not look up the old ones."""
        groups = (before, after)
        return after.id in self._unlisted_before or any(map(is_listed_apart, groups))

    def _sign_last(self, before: Group) -> None:
        """What is signed once for all changes of the batch."""
        after = self._world.groups.get(before.id)
        if after is None:
            return  # it ended
        if not self._is_apart(before, after):
            self._sign_notices(before, after)
            return
        self.unlisted[before.id] = self._unlisted_before.get(before.id, before)
        self._sign_notices(before, after, NOTICES - LISTS)

    def _sign_lists(self, signing: SignLists) -> None:
        for group_id, before in signing.groups.items():
            after = self._world.groups.get(group_id)
            if after is not None:  # it did not end
                self._sign_notices(before, after, LISTS)

    def _sign_notices(self, before: Group | None, after: Group, which: Set[int] = NOTICES) -> None:
        compat = self._world.policy.groups.compat
        noted, drafts = notices_for(before, after, self._now, compat, which)
        self._set_groups(self._world.groups.with_group(noted))
        for draft in drafts:
            self._sign(draft, noted.id)
        self.plan.groups[noted.id] = noted

    def _sign(self, draft: Draft, group_id: str | None) -> Event:
        tags = [list(tag) for tag in draft.tags]
        event = self._relay_key.sign(draft.kind, tags, draft.content, draft.created_at)
        keep = self._world.policy.keep
        kept = plan_for(
            event,
            group_id,
            keep.keep_of(event),
            self._found,
            self.plan,
            now=self._now,
            tie=keep.tie,
        )
        if isinstance(kept, Stored):
            self.rows.append(kept)
        return event

    # -- expired and swept rows ---------------------------------------------------------------

    def _expire(self, expiry: ExpireRows) -> None:
        """Remove what has expired (N40-04), and from groups what followed from it."""
        expiry.removed.clear()
        for expired in expiry.rows:
            row = self._found.rows.get(expired.id)
            if row is None or row.expires_at is None:
                continue
            is_dry = expiry.purpose is Purpose.DRY_RUN  # may be asked as of later
            if not is_dry and row.expires_at > self._now:
                continue
            expiry.removed.append(row)
            if not is_dry:
                self._remove_swept(row, "expired")
        if expiry.purpose is Purpose.DRY_RUN:
            return
        gone = {pin for row in expiry.removed for pin in pins_of(row.event)}
        for group_id in sorted(pinning(gone, self._world.groups)):
            group = self._world.groups.by_id[group_id]
            left = tuple([tag for tag in group.pins if (tag[0], tag[1]) not in gone])
            self._notify(group, replace(group, pins=left))
        self._forget(expiry.removed)

    def _sweep(self, sweeping: SweepRows) -> None:
        """Remove rows that are still stored and not held; none when the rules have changed."""
        sweeping.removed.clear()
        sweeping.held.clear()
        world, found = self._world, self._found
        rules = world.policy.sweeps
        if sweeping.rules != rules:
            return
        for row in sweeping.rows:
            stored = found.rows.get(row.event.id)
            if stored is None:
                continue
            reason = hold_reason(stored, rules, world.actors, world.groups, found, self.plan)
            if reason is not None:
                sweeping.held[reason] = sweeping.held.get(reason, 0) + 1
                continue
            sweeping.removed.append(stored)
            if sweeping.purpose is Purpose.SWEEP:
                self._remove_swept(stored, "sweep")
                self._keep_out(placed_tombstone(stored.event, stored.group, "sweep"))
        if sweeping.purpose is Purpose.SWEEP:
            self._forget(sweeping.removed)

    def _sweep_versions(self, sweeping: SweepVersions) -> None:
        """None when the rules have changed: the next sweep looks at all of them again."""
        if sweeping.rules == self._world.policy.keep.history:
            self.plan.dropped_versions |= sweeping.due
            self.plan.version_deadlines.update(sweeping.deadlines)

    def _forget(self, rows: Iterable[Stored], *, keeps_pins: bool = False) -> None:
        """Codes, requests and pins that these removed rows gave to groups."""
        events = [row.event for row in rows]
        self._set_groups(groups_without_rows(self._world.groups, events, keeps_pins=keeps_pins))

    def _remove_swept(self, row: Stored, why: str) -> None:
        remove(row, self._found, self.plan)
        self._keep_out(tombstone_for(row, self._world.policy.keep.keep_of(row.event), why))

    def _keep_out(self, stone: Tombstone | None) -> None:
        add_tombstone(stone, self._found, self.plan)

    # -- NIP-86 -------------------------------------------------------------------------------

    def _manage(self, command: ManagementChange) -> Reject | None:
        """Make all changes of a call, or none."""
        for change in command.changes:
            objected = check_change(change, self._world.management, self._world.actors)
            if objected is not None:
                return objected
            row = self._found.rows.get(change.item)
            if change.bans_event and row is not None:
                if is_group_record(row.event):
                    return _GROUP_RECORD
                if row.event.kind in kinds.MEMBERSHIP_STATE:
                    return _MEMBERSHIP_STATE
        for change in command.changes:
            self._change(change)
        for pubkey in sorted(command.deleted_authors):
            delete_banned_author(pubkey, self._found, self.plan)
        if command.deleted_authors:
            self._unpin(all_pinning(self._world.groups))
        return None

    def _change(self, change: ListChange) -> None:
        before = self._world
        if not self._set_entry(change):
            return
        for further in follows_from(change, self._world.management, self._now):
            self._set_entry(further)
        if change.list_name in (ListName.ALLOWED_KEYS, ListName.BANNED_KEYS):
            self._announce(change.item, before)
        elif change.list_name is ListName.ROLES:
            self._state_role(change)
        if change.bans_event:
            row = self._found.rows.get(change.item)
            if row is not None:
                self._keep_in(row)
                for stone in tombstones_of_banned(row):
                    self._keep_out(stone)
                remove(row, self._found, self.plan)
            self.plan.forgotten.append(Forgotten(self._found.last_seq, id=change.item))
        elif change.is_ban and self._world.policy.banned_rows is BannedAuthorRows.DELETE:
            delete_banned_author(change.item, self._found, self.plan)
        if change.is_ban:
            self._unpin(all_pinning(self._world.groups))

    def _keep_in(self, row: Stored) -> None:
        """A banned event of a group that only members read: once allowed, it must not be public."""
        group = self._world.groups.get(row.group)
        if group is None or group.only_members_read:
            self._keep_out(placed_tombstone(row.event, row.group, "banevent"))

    def _set_entry(self, change: ListChange) -> bool:
        """Whether it has an effect."""
        changed = self._world.management.after(change)
        if changed is self._world.management:
            return False
        self._world = self._world.with_management(changed)
        self.plan.list_changes.append(change)
        return True

    # -- members of the relay (NIP-43) --------------------------------------------------------

    def _announce(self, pubkey: str, before: World) -> None:
        """Sign 8000 or 8001 when the key became, or is no longer, a listed member."""
        after = self._world
        was_listed = is_listed(pubkey, before.management, before.actors)
        if was_listed is is_listed(pubkey, after.management, after.actors):
            return
        if pubkey in self._announced:
            # Of two events about a key in one second clients could not tell the later one.
            self._members_at += 1
        self._announced.add(pubkey)
        kind = kinds.MEMBER_REMOVED if was_listed else kinds.MEMBER_ADDED
        self._sign(Draft(kind, (("-",), ("p", pubkey)), "", self._members_at), None)

    def _state_role(self, change: ListChange) -> None:
        """Sign the 33534 of a role, or remove it."""
        row = self._found.slots.get(Slot(self._relay_key.pubkey, kinds.RELAY_ROLE, change.item))
        if change.note is not None:
            at = self._now if row is None else max(self._now, row.event.created_at + 1)
            tags = role_tags(change.item, change.note)
            self._sign(Draft(kinds.RELAY_ROLE, tags, "", at), None)
        elif row is not None:
            remove(row, self._found, self.plan)

    def _list_members(self) -> None:
        """Sign 13534 when what it says has changed; the first time when the register is used."""
        world = self._world
        tags = member_tags(world.management, world.actors)
        listed = self._found.slots.get(Slot(self._relay_key.pubkey, kinds.RELAY_MEMBERS, ""))
        if listed is None:
            used = (ListName.ALLOWED_KEYS, ListName.ROLE_HOLDERS)
            is_due = bool(self._announced) or any(map(world.management.of, used))
        else:
            is_due = listed.event.tags != [list(tag) for tag in tags]
        if is_due:
            self._sign(Draft(kinds.RELAY_MEMBERS, tags, "", self._members_at), None)

    # -- a key that vanishes ------------------------------------------------------------------

    def _vanish(self, request: Event) -> None:
        """Delete all that the author wrote, and take them out of every group (N62-01, N62-07)."""
        before, found = self._world.groups, self._found
        rejoined = _joined_after(request, found.rows.values())
        pinned = set(found.present)
        removed = vanish(request, found, self.plan)
        note_erased(request, removed, self.plan, self._now)
        groups = groups_without_rows(before, [row.event for row in removed])
        self._set_groups(without_pins(pinned - found.present.keys(), groups))
        joined = joined_at(request.pubkey, self._world.management)
        if joined is None or joined <= request.created_at + _CLOCK_SKEW_S:
            self._change(ListChange(ListName.ALLOWED_KEYS, request.pubkey, None))
            for withdrawal in withdrawn(request.pubkey, self._world.management):
                self._change(withdrawal)
        groups, drafts = removals_from_groups(
            self._world.groups,
            request.pubkey,
            self._now,
            Cause.OWN_WISH,
            self._relay_key.pubkey,
            keeps=rejoined,
        )
        self._set_groups(groups)
        for draft in drafts:
            self._sign_for(request, draft)
        self._forget_member(request.pubkey)
        unrecorded = {
            row.group
            for row in removed
            if row.group is not None and row.event.kind in kinds.MODERATION
        }
        if unrecorded:
            self._restate(unrecorded, request)
        after = self._world.groups
        for group_id in sorted(after.by_id.differing(before.by_id)):
            group = after.get(group_id)
            if group is not None:
                self._notify(before.get(group_id), group)

    def _forget_member(self, pubkey: str) -> None:
        """In groups that have ended the key was no member."""
        groups = self._world.groups
        ended = {
            group_id: replace(groups.ended[group_id], members=left)
            for group_id in groups.ended_with(pubkey)
            for left in [groups.ended[group_id].members - {pubkey}]
        }
        if ended:
            self.plan.groups.update(ended)
            self._set_groups(groups.with_ended(ended))

    def _restate(self, group_ids: Set[str], request: Event) -> None:
        """Sign with the relay's key what the author's 9000–9020 had said of groups (N29-58).

        The groups are then what the log says, also to an import that leaves out 39000 and 39005:
        only codes that the author made are gone.
        """
        groups, relay = self._world.groups, self._relay_key.pubkey
        intended = Groups(
            KeyMap({key: groups.by_id[key] for key in group_ids if key in groups.by_id}),
            KeyMap({key: groups.ended[key] for key in group_ids if key in groups.ended}),
        )
        records = remaining_records(group_ids, self._found, self.plan)
        self.restated += sum([len(event.raw) for event in records])
        left = replayed(Groups(), records, relay)
        copied = as_imported(left, records, self._policy.groups)
        drafts = repair_drafts(intended, copied, self._now, relay)
        left = replayed(left, [self._sign_for(request, draft) for draft in drafts], relay)
        for group in left.by_id.values():
            before = groups.by_id.get(group.id)
            # The author's rows are no longer pinned, whatever the stored 39005 says.
            pins = group.pins if before is None else before.pins
            groups = groups.with_group(replace(group, pins=pins))
        self._set_groups(groups)

    def _sign_for(self, request: Event, draft: Draft) -> Event:
        """Sign with the request's id: two drafts of one second would be the same event."""
        (_, group_id), *_ = draft.tags
        # Of a 9002 a tag `e` would become part of the 39000, of a 9010 a pin.
        name = "e" if draft.kind in _ABOUT_MEMBERS else "nonce"
        return self._sign(replace(draft, tags=(*draft.tags, (name, request.id))), group_id)


def _is_large(group: Group) -> bool:
    tags = (*group.metadata, *group.pins)
    return (
        len(group.members) > _LARGE_GROUP
        or len(group.supported_kinds or ()) > _LARGE_STATE // 8
        or any(len(tag) > _LARGE_STATE // 4 for tag in tags)
        or sum([4 * len(tag) + sum(map(len, tag)) for tag in tags]) > _LARGE_STATE
    )


def _joined_after(request: Event, rows: Iterable[Stored]) -> Set[str]:
    """Groups that the author was put into long after the request to vanish.

    Anyone can send an old request again, also one that never came here: it must not end what its
    author began since.
    """
    return {
        row.group
        for row in rows
        if row.group is not None
        and row.event.kind == kinds.PUT_USER
        and row.event.created_at > request.created_at + _CLOCK_SKEW_S
        and request.pubkey in row.event.tag_values("p")
    }


def _is_accepted(judged: Judgement, candidate: Candidate) -> bool:
    return judged.vanishes if candidate.vanishes else judged.outcome is WriteOutcome.STORED


def _sender_of(item: WriteEvent, made: dict[int, Sender]) -> Sender:
    """One for all events of an author in a batch; `made`: by identity of the author."""
    sender = made.get(id(item.author))
    if sender is None or sender.origin is not item.origin:
        sender = made[id(item.author)] = sender_of(item.author, item.origin)
    return sender
