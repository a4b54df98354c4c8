"""ReferenceStore: the port as an executable specification, in dicts and lists.

Invariants: every result is a loop over all rows with `Filter.matches` and `Visibility.may_read`;
nothing is indexed or cached. Other stores are compared with it, so it must be obviously correct.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, assert_never

from msgspec import structs

from relay.access.management import Management
from relay.access.quotas import Size, Sized, SizedBy, recipients_of
from relay.errors import StoreFault, TooMuchToRead
from relay.groups.group import EndedGroup, Groups
from relay.lifecycle.deletion import (
    BAN,
    CLOCK_SKEW_S,
    event_target,
    is_group_record,
    not_vanished,
    tombstone_of_id,
    tombstones_of_author,
    tombstones_of_ended,
)
from relay.lifecycle.retention import due_rows, sweep_order_key, time_of
from relay.lifecycle.rows import (
    ERASURE_DAYS,
    EXPIRY_WINDOW_S,
    LONG_EXPIRED,
    MAX_EXPIRING,
    MAX_WITH_PREFIX,
    MOST_DELETED,
    MOST_NAMED,
    MOST_TOMBSTONES,
    SENT_TO_ONE,
    TAG_BYTES,
    UNPINNED_AT_ONCE,
    Found,
    Leaving,
    OldVersion,
    Present,
    Tombstone,
    Vanish,
    all_rows_of,
    narrowed,
    outline,
    references_of,
    with_slots_of,
)
from relay.memory.registry import MAX_REFERENCE_STEPS, NEAR_STEPS
from relay.nostr import kinds
from relay.nostr.nip50 import Needs, Search, Searchable, search_from, searchable, words_of
from relay.nostr.nip77 import Items
from relay.storage import (
    PAGE_BYTES,
    PARSED_BYTES,
    Features,
    Listed,
    Page,
    PageQuery,
    Place,
    recall,
)
from relay.storage.rows import (
    INDEXED_BYTES,
    BytesLeft,
    NoneLeft,
    check_sizes,
    check_vanish,
    expired_row,
    groups_by_prefix,
    is_read_whole,
    limited_reads,
    note_shares,
    parts_of,
    put_later,
    records_to_sweep,
)
from tests.harness.fts_reading import FtsReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.groups.group import Group
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import (
        ExpiredRow,
        Forgotten,
        Limited,
        Lookups,
        Reference,
        Slot,
        Stored,
        WritePlan,
    )
    from relay.memory.registry import RecordName
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_LISTED: Final = 3
"""Rows behind a page that are listed at most."""
_NO_GROUPS: Final = Groups()
_SENT_TO_KEYS: Final = frozenset({kinds.GIFT_WRAP, kinds.PUT_USER, *kinds.GROUP_MEMBER_NOTICES})
_OUTLIVE_THEIR_GROUP: Final = frozenset({kinds.CREATE_GROUP, kinds.DELETE_GROUP})


class ReferenceStore:
    """A Store in memory."""

    append_s = disk_s = 0.0

    features = Features(search=True, shared=False)

    def __init__(self) -> None:
        self.groups: dict[str, Group | EndedGroup] = {}
        """The tables about groups of other stores."""
        self._head = 0
        self._rows: dict[int, Stored] = {}
        self._old: dict[int, OldVersion] = {}
        self._tombstones: list[Tombstone] = []
        self._management = Management()
        self._erasures: dict[str, Erasure] = {}
        self._texts: dict[int, Searchable] = {}
        self._indexed: dict[frozenset[int] | None, int] = {}
        self._rules: str | None = None
        self._is_open = True
        self._changed = asyncio.Event()

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        self._must_be_open()
        found = self._found(lookups)
        self._apply(decide(found))
        # A seq is never used again, even when the same batch deletes its row.
        self._head = found.last_seq
        self._wake()
        return self._head

    def _found(self, lookups: Lookups) -> Found:
        """The facts, in containers of their own: `decide` may change them and then fail."""
        found = Found(self._head)
        stones = [stone for stone in self._tombstones if stone.target in lookups.tombstones]
        if len(stones) > MOST_TOMBSTONES:
            pairs = {*lookups.refusals()}
            targets = {target for target, _ in pairs}
            stones = [s for s in stones if s.target not in targets or (s.target, s.by) in pairs]
        for stone in stones:
            found.tombstones.setdefault(stone.target, []).append(stone)
        found.stored_keys = frozenset(filter(self._is_stored, not_vanished(lookups, found)))
        keys = found.stored_keys | lookups.deleted_keys
        with_keys = [r for r in self._rows.values() if _goes_with(keys, r.event)]
        groups = [row.group for row in with_keys]
        lookups = narrowed(lookups, found.stored_keys, filter(None, groups))
        own = [row for row in self._rows.values() if _is_own(row, lookups)]
        lookups = with_slots_of(own, lookups)
        found.looked_up |= lookups.slots | lookups.own_slots
        size = own_size = 0
        beginning: dict[Limited, int] = {}
        whole: dict[str, int] = {}
        for prefix in groups_by_prefix(lookups):
            sharing = [row for row in self._rows.values() if row.event.id.startswith(prefix)]
            if len(sharing) > MAX_WITH_PREFIX:
                found.crowded_prefixes.add(prefix)
        found.expiring.update(dict.fromkeys(lookups.expiry_windows, 0))
        prefixes = [each for each in lookups.id_prefixes if each[1] not in found.crowded_prefixes]
        for row in self._rows.values():
            is_wanted = row.event.id in lookups.ids or row.slot in lookups.slots
            is_own = _is_own(row, lookups)
            if row.event.id in lookups.ids or is_own:
                found.rows[row.event.id] = row
            size += len(row.event.raw) * is_wanted
            own_size += self._size_with_old(row) * is_own
            if row.slot is not None and row.slot in lookups.slots | lookups.own_slots:
                found.slots[row.slot] = row
            for named in lookups.present & {row.event.id, row.slot}:
                found.present[named] = _present(row, found.stored_keys)
            if row.group in lookups.groups_with_content and _is_content(row):
                found.groups_with_content.add(row.group)
            if row.expires_at is not None:
                window = row.expires_at // EXPIRY_WINDOW_S
                if found.expiring.get(window, MAX_EXPIRING) < MAX_EXPIRING:
                    found.expiring[window] += 1
            for group, prefix in prefixes:
                if row.group == group and row.event.id.startswith(prefix):
                    bytes_ = len(row.event.raw)
                    is_whole = is_read_whole(row.event.kind, bytes_, lookups)
                    if is_whole:
                        whole[row.event.id] = bytes_
                        beginning[group, prefix] = beginning.get((group, prefix), 0) + bytes_
                    about = row.event.kind, row.event.pubkey, group, row.expires_at
                    known = found.id_prefixes.setdefault((group, prefix), [])
                    known.append(row if is_whole else outline(*about, quiet=row.quiet))
        old_named = self._old_named(lookups)
        found.old_versions.update(old_named)
        own_size += sum(old_named.values())
        rows = self._counted()
        sizes: dict[Limited, int] = {}
        for key in lookups.vanishing_keys:
            sizes[key] = sum(len(row.event.raw) for row in rows if _goes_with({key}, row.event))
        rows = [row for row in rows if not is_group_record(row.event)]
        for ending in lookups.ending_groups:
            ended = [len(row.event.raw) for row in rows if row.group == ending]
            sizes[all_rows_of(ending)] = sum(ended)
        if lookups.most_own is not None:
            check_sizes(sizes, lookups.most_own)
        for bytes_, most in (
            (size + sum(whole.values()), lookups.most),
            (own_size, lookups.most_own),
        ):
            if most is not None and bytes_ > most:
                raise TooMuchToRead({**self._shares(lookups), **parts_of(beginning, most)})
        found.begun.update(lookups.requests & self._erasures.keys())
        if lookups.leaving is not None:
            self._find_leaving(lookups.leaving, found)
        found.group_records.extend(self._records(lookups, found))
        for account in lookups.usage.union(lookups.usage_by(found)):
            counted = [
                len(row.event.raw)
                for row in self._counted()
                if account.has(
                    row.event.pubkey, row.event.kind, _group_of(row), recipients_of(row.event)
                )
            ]
            found.usage.open(account, Size(len(counted), sum(counted)))
        for dependencies in lookups.dependencies:
            times = [
                time_of(row, dependencies.up_to)
                for row in self._rows.values()
                if dependencies.match.matches(row, _NO_GROUPS)
            ]
            if times:
                found.oldest_dependencies[dependencies] = min(times)
        self._find_named(lookups, found)
        self._find_referrers(lookups, found)
        return found

    def _old_named(self, lookups: Lookups) -> dict[str, int]:
        """id → bytes of those that go into `Found.old_versions`."""
        return {
            event.id: len(event.raw)
            for old in self._old.values()
            for event in [old.row.event]
            for own in lookups.own_rows
            if own.id == event.id
            and (own.pubkey == event.pubkey or own.group == (old.row.group or ""))
        }

    def _shares(self, lookups: Lookups) -> dict[Limited, float]:
        shares: dict[Limited, float] = {}
        if lookups.most_own is not None:
            note_shares(
                self._old_named(lookups).items(),
                lookups.most_own,
                {own.id: own.id for own in lookups.own_rows},
                shares,
            )
        for limit, ids, slots in limited_reads(lookups):
            named: dict[Limited | None, Limited] = {each: each for each in ids}
            named.update((each, each) for each in slots)
            sizes = [
                (key, len(row.event.raw))
                for row in self._rows.values()
                for key in (row.event.id, row.slot)
                if key in named
            ]
            note_shares(sizes, limit, named, shares)
        return shares

    def _is_stored(self, pubkey: str) -> bool:
        return any(
            row.event.pubkey == pubkey
            or (row.event.kind in _SENT_TO_KEYS and pubkey in row.event.tag_values("p"))
            for row in self._rows.values()
        )

    def _find_referrers(self, lookups: Lookups, found: Found) -> None:
        step = lookups.referrers
        while step:
            found.referrers.update((reference, set()) for reference in step)
            further: set[Reference] = set()
            for row in self._rows.values():
                named = step.intersection(references_of(row.event))
                if named and row.group is None and row.event.kind in lookups.referring_kinds:
                    found.rows[row.event.id] = row
                    for reference in named:
                        found.referrers[reference].add(row.event.id)
                    further.add(("e", row.event.id))
            step = frozenset(further - found.referrers.keys())

    def _find_named(self, lookups: Lookups, found: Found) -> None:
        left = BytesLeft(MOST_NAMED, TAG_BYTES)
        try:
            self._follow(lookups.named, lookups, found, left, MAX_REFERENCE_STEPS)
            near = lookups.named_near - found.named.keys()
            self._follow(near, lookups, found, left, NEAR_STEPS)
        except NoneLeft:
            found.named_too_large = True

    def _follow(
        self,
        step: frozenset[RecordName],
        lookups: Lookups,
        found: Found,
        left: BytesLeft,
        steps: int,
    ) -> None:
        for _ in range(steps):
            further: set[RecordName] = set()
            for name in step:
                rows = [r for r in self._rows.values() if (r.event.kind, r.event.d) == name]
                left.taken([(row.seq, row.event.raw) for row in rows])
                found.named[name] = {row.event.id for row in rows}
                found.rows.update((row.event.id, row) for row in rows)
                further.update(*(lookups.names_in(row.event) for row in rows))
            step = frozenset(further - found.named.keys())

    def _records(self, lookups: Lookups, found: Found) -> list[Stored]:
        most, leaving = lookups.most_moderated, lookups.leaving
        groups = set[str]()
        numbers: dict[Limited, int] = {}
        for key, at in lookups.vanishing_keys.items():
            moderated = self._moderated(key, at)
            groups.update(moderated)
            numbers[key] = len(moderated)
            found.put_later[key] = self._put_later(key, at)
        if most is not None and len(groups) > most:
            raise TooMuchToRead(parts_of(numbers, most))
        is_left = bool(found.leaving or found.pinned)
        if leaving is not None and leaving.pubkey is not None and not is_left:
            moderated = self._moderated(leaving.pubkey, leaving.until)
            some = self._with_few_records(moderated[: leaving.groups], leaving.most_records)
            found.too_many_records = bool(moderated) and not some
            if some:
                groups.update(some)
                pinned = frozenset().union(*(lookups.pinned_in(each).present for each in groups))
                for row in self._rows.values():
                    for named in pinned & {row.event.id, row.slot}:
                        found.present[named] = _present(row, found.stored_keys)
                later = self._put_later(leaving.pubkey, leaving.until)
                found.put_later[leaving.pubkey] = later
        groups |= lookups.record_groups
        if len(self._with_few_records(groups, lookups.most_records)) < len(groups):
            raise TooMuchToRead(dict.fromkeys(lookups.vanishing_keys, 1.0))
        rows = [self._rows[seq] for seq in sorted(self._rows)]
        rows = [row for row in rows if row.expires_at != LONG_EXPIRED]
        return [row for row in rows if row.group in groups and is_group_record(row.event)]

    def _with_few_records(self, groups: Iterable[str], most: int | None) -> list[str]:
        few = list[str]()
        for group in groups:
            if most is not None:
                most -= sum(
                    len(row.event.raw)
                    for row in self._counted()
                    if row.group == group and is_group_record(row.event)
                )
                if most < 0:
                    break
            few.append(group)
        return few

    def _moderated(self, pubkey: str, until: int) -> list[str]:
        groups = {
            row.group
            for row in self._rows.values()
            if row.event.pubkey == pubkey
            and row.event.created_at <= until
            and row.event.kind in kinds.MODERATION
            and row.group is not None
            and row.expires_at != LONG_EXPIRED
        }
        return sorted(groups)

    def _put_later(self, pubkey: str, at: int) -> set[str] | None:
        puts = [row for row in self._rows.values() if _puts_later(pubkey, at, row.event)]
        return put_later([row.group for row in puts if row.group is not None])

    def _leaving(self, leaving: Leaving) -> list[Stored]:
        """Old versions whose rows stay have no slot."""
        gone = None if leaving.pubkey is None else Vanish(leaving.pubkey, leaving.until)

        def leaves(row: Stored) -> bool:
            if gone is None:
                return row.group == leaving.group and not is_group_record(row.event)
            return gone.covers(row.event) and not _is_needed(row)

        rows = [row for row in self._rows.values() if leaves(row)]
        slots = {row.slot for row in rows}
        old = [each.row for each in self._old.values() if each.row.slot not in slots]
        return [*rows, *(structs.replace(row, slot=None) for row in old if leaves(row))]

    def _find_leaving(self, leaving: Leaving, found: Found) -> None:
        rows = self._leaving(leaving)
        fit = sum(
            size <= leaving.most for size in accumulate(self._size_with_old(row) for row in rows)
        )
        first = rows[: max(1, fit)]
        if len(first) == len(rows):
            return
        names = {
            row.seq: [name for name in (row.event.id, row.slot) if name and name in leaving.pinned]
            for row in first
        }
        found.leaving = [seq for seq, pinned in names.items() if not pinned]
        for row in first:
            is_request = row.event.kind == kinds.JOIN_REQUEST and not names[row.seq]
            if is_request and row.group is not None:
                found.withdrawn.setdefault(row.group, set()).add(row.event.id)
        pinned = [each for each in names.values() if each]
        found.pinned = [*chain.from_iterable(pinned[:UNPINNED_AT_ONCE])]

    def _apply(self, plan: WritePlan) -> None:
        for gone in plan.vanishes:
            rows = self._leaving(Leaving(gone.pubkey, gone.until, None, (), MOST_DELETED))
            check_vanish([(row.seq, self._size_with_old(row)) for row in rows], gone)
        for seq, moved_to in plan.moves.items():
            self._rows[seq] = structs.replace(self._rows[seq], group=moved_to)
        for seq in plan.removes:
            self._rows.pop(seq, None)
        for seq in plan.expired:
            self._rows[seq] = structs.replace(self._rows[seq], expires_at=LONG_EXPIRED)
        for row in plan.adds.values():
            self._rows[row.seq] = row
        for row, at, drop_at, count in plan.replaced.values():
            self._old[row.seq] = OldVersion(row, at, drop_at, 0)
            for seq in self._old_of(row.slot)[count:]:
                del self._old[seq]
        for named in plan.forgotten:
            self._forget(named, plan)
        for seq in plan.dropped_versions:
            self._old.pop(seq, None)
        for seq, drop_at in plan.version_deadlines.items():
            self._old[seq] = self._old[seq]._replace(drop_at=drop_at)
        for request, seqs in plan.leaving.items():
            rows = [self._rows.pop(seq) for seq in sorted(seqs) if seq in self._rows]
            if request in plan.ending:
                self._tombstones += chain.from_iterable(map(tombstones_of_ended, rows))
            forgotten = [self._old.pop(seq).row for seq in sorted(seqs) if seq in self._old]
            left = [*self._without_holder(), *rows, *forgotten]
            for row in left if request in plan.erasures else ():
                plan.erasures[request].add(row.event.id, row.event.kind)
        # After the adds: rows that the same batch adds to a deleted group are deleted too.
        for ending in plan.deleted_groups:
            rows = [row for row in self._rows.values() if row.group == ending]
            rows = [row for row in rows if row.event.kind not in _OUTLIVE_THEIR_GROUP]
            late = records_to_sweep((r.seq, r.event.kind, len(r.event.raw)) for r in rows)
            for row in rows:
                if row.seq in late:
                    self._rows[row.seq] = structs.replace(row, expires_at=LONG_EXPIRED)
                else:
                    del self._rows[row.seq]
                    self._tombstones += tombstones_of_ended(row)
        for seq, old in list(self._old.items()):
            if old.row.group in plan.deleted_groups:
                del self._old[seq]
        for gone in plan.vanishes:
            rows = [row for seq, row in self._rows.items() if seq <= gone.upto]
            rows = [self._rows.pop(row.seq) for row in rows if gone.covers(row.event)]
            went = self._without_holder()
            went += sorted(rows, key=lambda row: row.seq)
            of_key = [seq for seq, old in self._old.items() if gone.covers(old.row.event)]
            went += [self._old.pop(seq).row for seq in sorted(of_key)]
            erasure = plan.erasures.get(gone.request)
            if erasure is not None:
                for row in went:
                    erasure.add(row.event.id, row.event.kind)
        for noted in [each for each in plan.erasures.values() if each.total]:
            if noted.request in self._erasures:
                noted.add_earlier(self._erasures[noted.request])
            oldest = noted.at - ERASURE_DAYS * 86_400
            kept = {key: each for key, each in self._erasures.items() if each.at >= oldest}
            self._erasures = {**kept, noted.request: noted}
        for row in list(self._rows.values()):
            upto = plan.deleted_authors.get(row.event.pubkey, 0)
            if row.seq <= upto and not is_group_record(row.event):
                del self._rows[row.seq]
                self._tombstones += tombstones_of_author(row)
        for seq, old in list(self._old.items()):
            if seq <= plan.deleted_authors.get(old.row.event.pubkey, 0):
                del self._old[seq]
                self._tombstones.append(tombstone_of_id(old.row.event.id, BAN))
        # An old version without a current one is none.
        self._old = {seq: old for seq, old in self._old.items() if self._has_holder(old.row)}
        self._tombstones.extend(plan.tombstones)
        for change in plan.list_changes:
            self._management = self._management.after(change)
        for pubkey, group_ids in plan.left_ended.items():
            for group_id in group_ids:
                ended = self.groups[group_id]
                assert isinstance(ended, EndedGroup)
                self.groups[group_id] = replace(ended, members=ended.members - {pubkey})
        for group_id, group in plan.groups.items():
            self.groups[group_id] = group

    def _counted(self) -> list[Stored]:
        return [*self._rows.values(), *(old.row for old in self._old.values())]

    def _without_holder(self) -> list[Stored]:
        """Old versions whose current one is deleted, in order of seq; they are taken out."""
        gone = [seq for seq, old in self._old.items() if not self._has_holder(old.row)]
        return [self._old.pop(seq).row for seq in sorted(gone)]

    def _has_holder(self, old: Stored) -> bool:
        return any(row.slot == old.slot for row in self._rows.values())

    def _old_of(self, slot: Slot | None) -> list[int]:
        """Newest first."""
        return sorted((seq for seq, old in self._old.items() if old.row.slot == slot), reverse=True)

    def _size_with_old(self, row: Stored) -> int:
        old = [self._old[seq].row for seq in self._old_of(row.slot)] if row.slot else []
        return sum(len(each.event.raw) for each in (row, *old))

    def _forget(self, named: Forgotten, plan: WritePlan) -> None:
        for seq, (row, *_) in sorted(self._old.items()):
            event = row.event
            is_named = row.slot == named.slot if named.slot is not None else event.id == named.id
            if (
                is_named
                and seq <= named.upto
                and named.by in (None, event.pubkey)
                and (named.until is None or event.created_at <= named.until)
                and named.group in (None, row.group)
            ):
                del self._old[seq]
                if named.cause is not None:
                    _, by, why = named.cause
                    self._tombstones.append(Tombstone(event_target(event.id), by, None, why))
                    erasure = plan.erasure_of_versions(named.cause)
                    if erasure is not None:
                        erasure.add(event.id, event.kind)

    async def replicated(self) -> None: ...

    async def make_room(self, tags: int) -> int:
        return 0

    def prepare(self, events: Sequence[Event]) -> None:
        pass

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        return self.page_now(query)

    async def page_for_relay(self, query: PageQuery) -> Page:
        return self.page_now(query)

    def page_now(self, query: PageQuery) -> Page:
        given, behind = self._page(query)
        next_ = None if behind.is_end else _place(given[-1])
        return Page([row.event.raw for row in given], next_, behind)

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed]:
        given, behind = self._page(query)
        return [(_place(row), row.event.raw) for row in given], behind

    def _page(self, query: PageQuery) -> tuple[Sequence[Stored], Listed]:
        """And a few of the rows behind it."""
        seqs, are_last = query.listed or Listed((), are_last=False)
        left = self._listed(query, seqs)
        if left or are_last:
            given = _page(left, min(query.size, query.limit), PAGE_BYTES)
            behind = [row.seq for row in left[len(given) :]]
            return given, Listed(behind, are_last)
        left = self._result(query)
        given = _page(left, query.size, PAGE_BYTES)
        behind = [row.seq for row in left[len(given) :][:_LISTED]]
        return given, Listed(behind, are_last=len(left) == len(given) + len(behind))

    def _listed(self, query: PageQuery, seqs: Sequence[int]) -> list[Stored]:
        """Those of these rows that are still to be given."""
        if not seqs:
            return []
        rows = {row.seq: row for row in self._result(query._replace(limit=len(self._rows)))}
        return [rows[seq] for seq in seqs if seq in rows]

    def _result(self, query: PageQuery) -> list[Stored]:
        """All that is left to give, in order."""
        self._must_be_open()
        filter_, visibility, limit, upto, now, _, after, *_ = query
        rows = [
            row
            for row in self._rows.values()
            if row.seq <= upto
            and not _is_expired(row, now)
            and filter_.matches(row.event)
            and self._may_read(row, filter_, visibility, now)
            and (after is None or _order(after) < _order(_place(row)))
        ]
        rows.sort(key=lambda row: _order(_place(row)))
        return rows[:limit]

    def _may_read(self, row: Stored, filter_: Filter, visibility: Visibility, now: int) -> bool:
        readable = {
            target
            for target, value in visibility.targets_of(row)
            if visibility.may_read_one_of(self._served(now), target, value)
        }
        return visibility.may_read(row, filter_, readable)

    def _served(self, now: int) -> Iterator[Stored]:
        return (row for row in self._rows.values() if not _is_expired(row, now))

    async def count(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> int:
        self._must_be_open()
        return sum(
            not _is_expired(row, now)
            and any(
                filter_.matches(row.event)
                and self._may_read(row, filter_, visibility, now)
                and self._contains(row, filter_)
                for filter_ in filters
            )
            for row in self._rows.values()
        )

    async def authors(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        at_most: int,
        address: str | None = None,
    ) -> Sequence[bytes] | None:
        rows = self._result(_all_of(filter_, visibility, self._head, now))
        keys = {bytes.fromhex(row.event.pubkey) for row in rows}
        return sorted(keys) if len(keys) <= at_most else None

    async def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Items | None:
        query = _all_of(filter_, visibility, upto, now)
        rows = self._result(query if limit is None else query._replace(limit=limit))
        if len(rows) > at_most:
            return None
        found = sorted((row.event.created_at, bytes.fromhex(row.event.id)) for row in rows)
        ids = b"".join(id_ for _, id_ in found)
        return Items(
            array("Q", [at for at, _ in found]), ids, groups=[row.group or "" for row in rows]
        )

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        kinds: Set[int] | None = None,
    ) -> int:
        if rules != self._rules:
            self._texts, self._indexed, self._rules = {}, {}, rules
        upto = self._indexed.get(None, 0)
        if kinds is not None:
            upto = max(upto, self._indexed.get(frozenset(kinds), 0))
        later = [
            row
            for seq, row in sorted(self._rows.items())
            if seq > upto and (kinds is None or row.event.kind in kinds)
        ]
        rows, left = later[:limit], INDEXED_BYTES
        is_all = len(rows) < limit
        for row in rows:
            text = text_of(row.event)
            if text is not None:
                self._texts[row.seq] = searchable(text)
            upto = row.seq
            left -= len(row.event.raw)
            if left <= 0:
                is_all = False
                break
        if is_all:
            upto = self._head
        self._indexed[None if kinds is None else frozenset(kinds)] = upto
        return upto

    async def embed_texts(self, limit: int) -> bool:
        return False

    async def tidy_index(self) -> bool:
        self._must_be_open()
        return False

    async def erasure(self, request: str) -> Erasure | None:
        return self._erasures.get(request)

    def is_erased(self, request: str) -> bool:
        return True

    def unerased_s(self) -> float:
        return 0.0

    async def search(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        address: str | None = None,
    ) -> Sequence[int]:
        search = search_from(filter_.search or "")
        if search is None:
            return []
        rows = self._result(_all_of(filter_, visibility, upto, now))
        rows = [row for row in rows if self._contains(row, filter_)]
        with closing(FtsReading()) as reading:
            scores = (
                {row.seq: reading.score(self._texts[row.seq], search) for row in rows}
                if search.needs is Needs.ALL
                else self._recalled(rows, search, reading)
            )
        if search.needs is Needs.ANY:
            rows = sorted([row for row in rows if row.seq in scores], key=lambda row: -row.seq)
        # Sorting is stable: equals stay newest first.
        rows.sort(key=lambda row: -scores[row.seq])
        return [row.seq for row in rows][:limit]

    def _recalled(
        self, rows: Sequence[Stored], search: Search, reading: FtsReading
    ) -> dict[int, int]:
        """Points of the rows that are found."""
        newest = sorted(rows, key=lambda row: -row.seq)
        hits: dict[str, list[Stored]] = {}
        for term in filter(words_of, search.required):
            word = Search((term,))
            hits[term] = [row for row in newest if reading.contains(self._texts[row.seq], word)]
        rare = [there for there in hits.values() if len(there) <= recall.MAX_ROWS]
        found = {row.seq for there in rare for row in there}
        if not found:
            words = Counter(row.seq for there in hits.values() for row in there)
            both = [row.seq for row in newest if words[row.seq] > 1]
            found = set(both[: recall.PAIRED_ROWS])
        if not found:
            found = {row.seq for there in hits.values() for row in there[: recall.MAX_ROWS]}
        rows = [row for row in rows if row.seq in found]
        points = {row.seq: _near_points(search, row.event.created_at) for row in rows}
        threads = {row.seq: recall.thread_of(row.event) for row in rows}
        for term, there in hits.items():
            counted = [row for row in there if row.seq in found]
            if not counted:
                continue
            of_thread = Counter(threads[row.seq] for row in counted)
            weight = recall.rarity(len(of_thread))
            for row in counted:
                points[row.seq] += weight * reading.score(self._texts[row.seq], Search((term,)))
            for row in rows:
                beside = of_thread[threads[row.seq]]
                points[row.seq] += weight * 1000 * beside // (beside + 1)
        return points

    def _contains(self, row: Stored, filter_: Filter) -> bool:
        """What the filter's `search` asks for."""
        search = search_from(filter_.search or "")
        if search is None:
            return True
        text = self._texts.get(row.seq)
        with closing(FtsReading()) as reading:
            return text is not None and reading.contains(text, search)

    async def plan(self, *_asked: object, **_more: object) -> Sequence[str]:
        return ()

    async def rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> tuple[Sequence[bytes], int]:
        self._must_be_open()
        raws: list[bytes] = []
        for looked_at, seq in enumerate(seqs):
            if sum(map(len, raws)) >= PAGE_BYTES:
                return raws, looked_at
            row = self._rows.get(seq)
            if (
                row is not None
                and not _is_expired(row, now)
                and self._may_read(row, filter_, visibility, now)
            ):
                raws.append(row.event.raw)
        return raws, len(seqs)

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        self._must_be_open()
        sizes: dict[int | str | None, Size] = {}
        for row in self._counted():
            of = _line_of(row, by)
            sizes[of] = sizes.get(of, Size()).plus(Size(1, len(row.event.raw)))
        kept_until: dict[tuple[str, str], Tombstone] = {}
        for stone in self._tombstones:
            key = stone.target, stone.by
            if key not in kept_until or (stone.until or 0) > (kept_until[key].until or 0):
                kept_until[key] = stone
        stones = kept_until.values()
        requests = [len(each.request) for each in stones if each.request is not None]
        if requests and by is SizedBy.KIND:
            kept = Size(len(requests), sum(requests))
            sizes[kinds.VANISH] = sizes.get(kinds.VANISH, Size()).plus(kept)
        lines = [Sized(of, size) for of, size in sizes.items()]
        # Lines of one size in the order of their names, those of no group first.
        lines.sort(key=lambda line: (-line.size.bytes, line.of is not None, line.of))
        return lines[:limit]

    async def management(self) -> Management:
        self._must_be_open()
        return self._management

    async def expired(
        self, now: int, limit: int, vanishing: Set[str] = frozenset()
    ) -> Sequence[ExpiredRow]:
        self._must_be_open()
        rows = [
            row
            for row in self._rows.values()
            if _is_expired(row, now)
            and not (row.expires_at == LONG_EXPIRED and row.event.pubkey in vanishing)
        ]
        rows.sort(key=lambda row: row.expires_at or 0)
        return [
            expired_row(
                bytes.fromhex(row.event.id),
                self._size_with_old(row),
                row.event.kind,
                bytes.fromhex(row.event.pubkey),
                row.event.d,
            )
            for row in rows[:limit]
        ]

    async def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        last_scan: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        self._must_be_open()
        rows = due_rows(self._rows.values(), rule, exempt, _NO_GROUPS, now)
        left = [row.seq for row in rows if after is None or sweep_order_key(row) > after]
        return left[:limit]

    async def stored(self, seqs: Sequence[int], most: int = PARSED_BYTES) -> Sequence[Stored]:
        self._must_be_open()
        rows = [self._rows[seq] for seq in seqs if seq in self._rows]
        sizes = accumulate(map(self._size_with_old, rows))
        return rows[: max(1, sum(size <= most for size in sizes))]

    async def versions(
        self, slot: Slot, *, before: int | None, limit: int, now: int
    ) -> Sequence[Stored]:
        self._must_be_open()
        holders = [row for row in self._served(now) if row.slot == slot]
        seqs = self._old_of(slot)
        old = [self._old[seq].row for seq in seqs if before is None or seq < before]
        found = [*holders, *old[: limit - 1]] if holders else []
        return [row for row in found if not _is_expired(row, now)]

    async def old_version(self, slot: Slot, event_id: str) -> Stored | None:
        rows = [self._old[seq].row for seq in self._old_of(slot)]
        return next((row for row in rows if row.event.id == event_id), None)

    async def overdue_versions(self, now: int, limit: int) -> Sequence[OldVersion]:
        due = [old for old in self._old.values() if old.drop_at is not None and old.drop_at <= now]
        return sorted(due, key=lambda old: old.drop_at or 0)[:limit]

    async def old_versions(self, after: int, limit: int) -> Sequence[OldVersion]:
        return [
            self._old[seq]._replace(newer=self._old_of(self._old[seq].row.slot).index(seq))
            for seq in sorted(self._old)
            if seq > after
        ][:limit]

    async def matching(
        self, filter_: Filter, *, limit: int, now: int, after: Stored | None = None
    ) -> Sequence[Stored]:
        self._must_be_open()
        rows = [row for row in self._served(now) if filter_.matches(row.event)]
        if after is not None:
            rows = [row for row in rows if _order(_place(row)) > _order(_place(after))]
        return sorted(rows, key=lambda row: _order(_place(row)))[:limit]

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        self._must_be_open()
        return _page([self._rows[key] for key in sorted(self._rows) if key > seq], limit)

    async def seqs_of_kinds(
        self, kinds: Set[int], after: int, upto: int, limit: int
    ) -> Sequence[int]:
        self._must_be_open()
        found = [key for key, row in self._rows.items() if row.event.kind in kinds]
        return sorted(key for key in found if after < key <= upto)[:limit]

    async def ended_groups(self) -> Mapping[str, EndedGroup]:
        return {key: group for key, group in self.groups.items() if isinstance(group, EndedGroup)}

    async def head(self) -> int:
        self._must_be_open()
        return self._head

    def committed(self) -> int:
        return self._head

    async def committed_after(self, seq: int) -> int:
        self._must_be_open()
        while self._head <= seq:
            await self._changed.wait()
            self._must_be_open()
        return self._head

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, after: int, limit: int) -> tuple[int, Sequence[str]]:
        self._must_be_open()
        last = size = 0
        for seq in sorted(seq for seq in self._rows if seq > after)[:limit]:
            if size >= PARSED_BYTES:
                break
            last, size = seq, size + len(self._rows[seq].event.raw)
        return last, ()

    def is_nearly_full(self) -> bool:
        return False

    async def is_writable(self) -> bool:
        self._must_be_open()
        return True

    async def close(self) -> None:
        self._is_open = False
        self._wake()

    def _must_be_open(self) -> None:
        if not self._is_open:
            raise StoreFault("the store is closed")


def _all_of(filter_: Filter, visibility: Visibility, upto: int, now: int) -> PageQuery:
    return PageQuery(filter_, visibility, sys.maxsize, upto, now, sys.maxsize)


def _place(row: Stored) -> Place:
    # What a store with 64-bit keys can keep of an id; seq decides between ids that begin alike.
    id_key = int.from_bytes(bytes.fromhex(row.event.id[:16])) - 2**63
    return Place(row.event.created_at, id_key, row.seq)


def _order(place: Place) -> tuple[int, int, int]:
    return -place.created_at, place.id_key, place.seq


def _is_expired(row: Stored, now: int) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def _group_of(row: Stored) -> str | None:
    """None also for a name of no letters: no group has it."""
    return row.group or None


def _line_of(row: Stored, by: SizedBy) -> int | str | None:
    match by:
        case SizedBy.KIND:
            return row.event.kind
        case SizedBy.AUTHOR:
            return row.event.pubkey
        case SizedBy.GROUP:
            return _group_of(row)
        case _:
            assert_never(by)


def _present(row: Stored, vanishing: Set[str]) -> Present:
    event = row.event
    sent_to = vanishing & set(event.tag_values("p")) if event.kind in SENT_TO_ONE else ()
    return Present(
        row.group, row.expires_at, event.pubkey, event.kind, event.created_at, frozenset(sent_to)
    )


def _goes_with(pubkeys: Set[str], event: Event) -> bool:
    """Whether the event is removed when one of these keys vanishes."""
    is_to_one = event.kind in SENT_TO_ONE
    return event.pubkey in pubkeys or (is_to_one and not pubkeys.isdisjoint(event.tag_values("p")))


def _is_needed(row: Stored) -> bool:
    """Whether a group may have its state from the row."""
    is_record = row.event.kind in kinds.MODERATION and row.expires_at != LONG_EXPIRED
    return is_record or row.event.kind in kinds.GROUP_STATE


def _is_own(row: Stored, lookups: Lookups) -> bool:
    return row.slot in lookups.own_slots or any(own.is_it(row) for own in lookups.own_rows)


def _puts_later(pubkey: str, at: int, event: Event) -> bool:
    is_later = event.created_at > at + CLOCK_SKEW_S
    return is_later and event.kind == kinds.PUT_USER and pubkey in event.tag_values("p")


def _is_content(row: Stored) -> bool:
    """Something that people wrote into a group, not what says that there is one (Z-03)."""
    return row.event.kind not in kinds.GROUP_RECORDS and row.event.kind not in kinds.GROUP_STATE


def _near_points(search: Search, at: int) -> int:
    return max(
        (
            recall.period_points(since, until)
            * (recall.NEAR_S - max(0, at - until))
            // recall.NEAR_S
            for since, until in search.near
            if since <= at < until + recall.NEAR_S
        ),
        default=0,
    )


def _page(rows: Sequence[Stored], limit: int, most: int = PARSED_BYTES) -> Sequence[Stored]:
    """Up to the one that reaches so many bytes."""
    before = [0, *accumulate(len(row.event.raw) for row in rows)]
    return [row for row, size in zip(rows[:limit], before, strict=False) if size < most]
