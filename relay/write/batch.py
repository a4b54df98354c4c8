"""Batch: one transaction of the lane. Judges its items in order and collects what they change.

Invariants: each item is judged against the world as the items before it leave it. No I/O and
no await: `decide` fills a WritePlan for the store, the groups and lists as they are then, and the
rows to deliver. It may run on another thread than the event loop's. Rate tokens and tried invite
codes are counted here, and stay counted when the commit fails.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from relay.access.quotas import subnet_of
from relay.errors import Prefix, Reject, TooMuchToRead, WriteOutcome
from relay.facts import Origin
from relay.lifecycle.deletion import (
    delete_by_author,
    is_old_request,
    note_erased,
    note_tombstone,
    tombstone_of_slot,
)
from relay.lifecycle.rows import Stored, WritePlan, references_of, size_with_tags
from relay.lifecycle.versions import add_row, move
from relay.nostr import kinds
from relay.write.candidate import Candidate, candidate_of
from relay.write.changes import Changes
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    Series,
    SignLists,
    SweepRows,
    SweepVersions,
    WriteEvent,
    is_fault,
    sender_of,
)
from relay.write.derived import followers
from relay.write.judge import EVERYBODY, guesser, is_paced, judge, screen_and_judge
from relay.write.lookups import lookups_for
from relay.write.pieces import bounded, forgets_many, leaves_many
from relay.write.pins import names_of
from relay.write.relay_lists import RelayLists
from relay.write.rulings import apply_ruling
from relay.write.swept_rows import expire, sweep, sweep_versions
from relay.write.vanishing import (
    forget_member,
    leave_groups,
    remove_author,
    restate_groups,
    withdraw_requests,
)
from relay.write.world import Removed, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from relay.access.quotas import Guesses, MinuteCounter, TokenBuckets
    from relay.errors import Result
    from relay.groups.group import Group
    from relay.lifecycle.rows import Found, Limited, Lookups, Slot, Tombstone
    from relay.nostr.keys import SecretKey
    from relay.state import RelayState
    from relay.write.candidate import Sender
    from relay.write.commands import LaneItem
    from relay.write.judge import Judgement

_MOST_READ: Final = 2 << 20
"""Bytes of stored rows, and TAG_BYTES for each tag, that a batch of several items may read. Parsed
they can take twenty times as much, and each event may name 16 of up to 500 kB."""
_MOST_REPLACED: Final = 8000
"""Tags of the versions that a batch of several items may replace: each is a row of the index, 5 us,
or ten times as much if its pages are far apart. Without those of the relay's own lists, which are
replaced once for all changes of a batch."""
_LONGEST_S: Final = 3.0
"""Seconds of the statements of a transaction for clients, see `Lookups.longest_s`: none that is
known takes a tenth of it on the processor. Above it one event is refused rather than that all
wait."""
_LONGEST_SHARED_S: Final = 1.5
"""The same for several events, which are tried in smaller parts above it: where each reads pages of
a slow disk, they take 20 ms each."""
_LONGEST_DELETION_S: Final = 60.0
"""The same for a deletion that is alone, which has bounds of its own: of a group with 150,000
records the last piece takes 5 s, and refused it could never end."""
_DELETIONS: Final = frozenset(
    {kinds.DELETION, kinds.DELETE_EVENT, kinds.DELETE_GROUP, kinds.VANISH}
)
_JUDGED_S: Final = 0.1
"""Processor time of the judgement after which the rest of the items is left to another batch."""
_CHECKED_AFTER: Final = 8
"""Items after which the time is looked at: the call takes 1 us."""
_AFTER_REFUSED: Final = Reject(
    Prefix.ERROR, "an event before it was not taken, try again later", "order"
)
_TOO_MANY_RECORDS: Final = Reject(
    Prefix.ERROR,
    "a group that this key moderated has too many records, so not everything was deleted: ask the"
    " relay's operator to import this request",
    "requests to vanish",
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
        guesses: Guesses,
        buckets: TokenBuckets,
        vanished: MinuteCounter,
        joined: MinuteCounter,
        salt: bytes = b"",
        vanishing: Sequence[Tombstone],
        ending: Set[str],
        unlisted: Set[str],
        list_room: int,
        measures_each: bool = False,
    ) -> None:
        """`is_here`: whether a URL is this relay's. `vanishing`: of requests that are carried out.
        `ending`: groups that end in pieces.
        `unlisted`: those of earlier batches. `list_room`: bytes of lists that may be signed with
        their changes. `measures_each`: sets `WriteEvent.took_s`."""
        self.plan = WritePlan()
        self.rows: list[Stored] = []
        """Everything accepted, in order."""
        self.delivered = self.rows
        """The rows for live delivery."""
        self.taken_at = self.began_at = self.decided_at = self.stored_at = self.judged_s = 0.0
        """`perf_counter` when it is given to the store, at the begin and end of `decide`, and when
        it is stored; seconds of the first judgement."""
        self.took_s = 0.0
        """Processor time of `decide`."""
        self._measures_each = measures_each
        self.number = len(items)
        """How many of the items were judged: the first ones, at least one."""
        self._judge = self._timed_judge
        self.unlisted: Iterable[str] = ()
        """Groups whose lists another batch will sign, in order."""
        self.listed: Set[str] = frozenset()
        """Groups of a `SignLists` whose lists are signed."""
        self.listed_bytes = 0
        """Bytes of all lists that were signed."""
        self._unlisted_before = unlisted
        self._list_room = list_room
        self._has_moved = False
        """Whether a row turned out to belong to a group."""
        self.is_piece = False
        """Its only item has to come again: it was neither stored nor refused."""
        self._sizes: Mapping[Limited, int] = {}
        """What it read by id, slot and prefix, if that is more than half of `_MOST_READ`."""
        self.needs_turn = False
        """Nothing was done for its only item, a request to vanish: the records of a group that its
        key moderated are so many that it has to come again with a turn of its own."""
        self._items = items
        self._policy = state.policy
        """Also for the look-ups: a reload meanwhile is for the next batch."""
        self.begin(state)
        self._relay_key = relay_key
        self._now = now
        self._guesses = guesses
        self._buckets = buckets
        self._vanished = vanished
        self._joined = joined
        self._salt = salt
        self._vanishing = vanishing
        self._ending = ending
        policy = state.policy
        history = policy.keep.history
        self._history = history if history.rules else None
        derived = policy.groups.derived
        keep_of, systems = policy.keep.keep_of, policy.systems
        foreign_h = policy.groups.foreign_h
        is_of_clients = all(
            isinstance(item, WriteEvent) and item.origin is Origin.WIRE for item in items
        )
        self._longest_s = _longest_s(items) if is_of_clients else None
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
        """Set the state that the items are judged against; before `lookups`."""
        self.groups, self.management = state.groups, state.management
        self._actors = (
            state.actors
            if state.policy is self._policy
            else state.management.applied_to(self._policy.actors)
        )

    @property
    def lookups(self) -> Lookups:
        """Raises TooMuchToRead."""
        candidates, pieces = self._candidates, self._pieces
        if pieces is None and any(map(self._leaves_in_pieces, candidates)):
            raise TooMuchToRead({each.event.id: 1.0 for each in candidates if each.vanishes})
        if pieces is not None and not pieces.is_last:  # its own group is for the last pass
            candidates = [msgspec.structs.replace(each, named=None) for each in candidates]
        commands = [item for item in self._items if not isinstance(item, WriteEvent)]
        left_groups = None if pieces is None else pieces.leave(candidates[0], self.groups)
        wanted = self._lookups_for(candidates, commands, left_groups=left_groups)
        if pieces is not None:
            return pieces.lookups(wanted, candidates[0], self.groups)
        if len(self._items) == 1:
            wanted = bounded(wanted, indivisible=1)
            (item,) = self._items
            if not isinstance(item, SweepRows):
                return wanted
            # An event names 16 rows; what may hold rows is whatever agents have left.
            own = sum(map(size_with_tags, item.rows))
            return replace(wanted, most=_MOST_READ + own)
        wanted = bounded(wanted, indivisible=0)
        # A row with the id of an event that was sent is as large as that; on PostgreSQL a question.
        sent = {candidate.event.id for candidate in candidates}
        if wanted.ids <= sent and not (wanted.slots or wanted.id_prefixes):
            return wanted
        return replace(wanted, most=_MOST_READ)

    def _leaves_in_pieces(self, candidate: Candidate) -> bool:
        """Whether it is a request to vanish for which more groups are left, or former members of
        more forgotten, than in one transaction: they are not looked up before."""
        is_old = is_old_request(candidate.event, self._now)
        leaves = leaves_many(candidate, self.groups) and not is_old
        return leaves or forgets_many(candidate, self.groups)

    @property
    def _lookups_for(self) -> Callable[..., Lookups]:
        return partial(
            lookups_for,
            groups=self.groups,
            actors=self._actors,
            policy=self._policy,
            relay=self._relay_key.pubkey,
            now=self._now,
            longest_s=self._longest_s,
        )

    def shares(self, of: Mapping[Any, float]) -> Iterator[tuple[LaneItem, float]]:
        """The part of what may be read that each item reads. `of`: `TooMuchToRead.shares`, from a
        store."""
        candidates = iter(self._candidates)
        for item in self._items:
            if isinstance(item, WriteEvent):
                candidate = next(candidates)
                none = frozenset[str]() if self._leaves_in_pieces(candidate) else None
                wanted = self._lookups_for([candidate], (), left_groups=none)
            else:
                wanted = self._lookups_for((), [item])
            yield item, sum([of.get(each, 0.0) for each in wanted.limited])

    def large_readers(self) -> Iterator[LaneItem]:
        """The items that read more than a quarter of what several may read. Empty if all together
        read less than half of that."""
        if self._sizes:
            parts = {key: size / _MOST_READ for key, size in self._sizes.items()}
            yield from (item for item, share in self.shares(parts) if share > 1 / 4)

    def decide(self, found: Found) -> WritePlan:
        """Judge every item, or as many as there is time for, and set its result. The callback of
        the store's transaction.

        Raises TooMuchToRead."""
        self.began_at, began = perf_counter(), thread_time()
        self._broken = set[Series]()
        sizes = found.sizes()
        if sum(sizes.values()) > _MOST_READ // 2:
            self._sizes = sizes
        if len(self._items) > 1:
            if found.named_too_large:
                names = [each.references.names for each in self._candidates]
                raise TooMuchToRead(dict.fromkeys(chain.from_iterable(names), 1.0))
            self._check_tags(found.slots)
            found.index_tags()
        for stone in self._vanishing:
            note_tombstone(stone, found)
        unsigned: dict[str, Group] = {}
        world = World(
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
            self._joined,
            Removed() if self._pieces is None else self._pieces.removed,
            self._salt,
            self._pieces is not None and not self._pieces.is_last,
            None if self._pieces is None else self._pieces.taken,
            ending=self._ending,
            vanishing={stone.by for stone in self._vanishing},
            unsigned=unsigned,
        )
        self._changes = changes = Changes(
            world,
            self.plan,
            self.rows,
            self._relay_key,
            unsigned,
            self._unlisted_before,
            self._list_room,
            Counter() if self._pieces is None else self._pieces.signed,
        )
        self._found = found
        self._lists = RelayLists(changes)
        candidates = iter(self._candidates)
        begun = reached = thread_time()
        self.number = len(self._items)
        for place, item in enumerate(self._items):
            if not (self._measures_each or place % _CHECKED_AFTER):
                reached = thread_time()
            if place and reached - begun > _JUDGED_S:
                self.number = place
                break
            match item:
                case WriteEvent():
                    if item.screened_by not in (None, self._policy):
                        # It waited while these came into force, and the rest of the batch too.
                        self._judge = screen_and_judge
                    item.result = self._write_next(item, next(candidates))
                    if self._measures_each:
                        before, reached = reached, thread_time()
                        item.took_s = reached - before
                case ManagementChange():
                    item.result = self._lists.manage(item)
                case ExpireRows():
                    expire(item, changes)
                case SweepRows():
                    sweep(item, changes)
                case SweepVersions():
                    sweep_versions(item, changes)
                case SignLists():
                    changes.sign_lists(item)
                case _:
                    assert_never(item)
        changes.sign_last()
        self._lists.sign_members()
        self.unlisted, self.listed = changes.unlisted, changes.listed
        self.listed_bytes = changes.listed_bytes
        groups, management = changes.world.groups, changes.world.management
        stored = map(self.groups.get, self.plan.groups)
        self.plan.members_before = {each.id: each.members for each in stored if each is not None}
        if groups is not self.groups or management is not self.management or self._has_moved:
            self.delivered = self._left()
        self.groups, self.management = groups, management
        self.decided_at, self.took_s = perf_counter(), thread_time() - began
        return self.plan

    def _left(self) -> list[Stored]:
        """The rows as they are stored, without those that the batch removed: it may have given
        rights to somebody who never could read them."""
        added = {row.seq: row for row in self.plan.adds.values()}
        return [added.get(row.seq, row) for row in self.rows if not row.seq or row.seq in added]

    def _check_tags(self, versions: Mapping[Slot, Stored]) -> None:
        """Raises TooMuchToRead if the versions that may be replaced have too many tags."""
        relay = self._relay_key.pubkey
        tags = {
            slot: len(row.event.tags) for slot, row in versions.items() if row.event.pubkey != relay
        }
        if sum(tags.values()) > _MOST_REPLACED:
            raise TooMuchToRead({slot: number / _MOST_REPLACED for slot, number in tags.items()})

    # -- an event -----------------------------------------------------------------------------

    def _timed_judge(self, candidate: Candidate, world: World) -> Judgement:
        """`judge`, measured, for the first event of the batch."""
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
        pieces, world = self._pieces, self._changes.world
        if pieces is None or pieces.is_last:
            return self._carry_out(candidate, self._judge(candidate, world))
        if pieces.begin(candidate, world):
            judged = self._judge(candidate, world)
            if not _is_accepted(judged, candidate):
                return self._carry_out(candidate, judged)
            if self._found.too_many_records:
                if pieces.has_turn:
                    return _TOO_MANY_RECORDS
                self.needs_turn = self.is_piece = True
                return WriteOutcome.STORED  # said to nobody
            rows = pieces.delete(candidate, judged, world, self.plan)
            self._take(judged)
            if pieces.taken is None:
                pieces.taken = judged.tokens
            if self._found.withdrawn:
                withdraw_requests(self._changes)
            if pieces.left_groups:
                leave_groups(candidate.event, pieces.left_groups, self._changes)
            if pieces.left_ended:
                forget_member(candidate.event.pubkey, pieces.left_ended, self._changes)
            if pieces.unpinned:
                self._changes.unpin_rows(pieces.unpinned)
            if self._found.group_records:
                restate_groups(candidate.event, self._changes)
            if rows:
                self._unpin(rows, candidate)
                self._changes.unpin(judged.outdated_pins)
                self._changes.forget(rows, keeps_pins=candidate.sender.origin is not Origin.WIRE)
        pieces.advance(self._found)
        pieces.signed.update(self._changes.signed)
        self.is_piece = True
        return WriteOutcome.STORED  # said to nobody

    def _carry_out(self, candidate: Candidate, judged: Judgement) -> Result:
        address = candidate.sender.address
        if judged.is_guess:
            self._guesses.count(guesser(candidate), address, self._now)
        self._take(judged)
        self._changes.keep_out(judged.kept_out)
        if candidate.vanishes:
            if judged.vanishes:
                if is_paced(candidate, self._changes.world):
                    self._vanished.count(subnet_of(address), self._now)
                remove_author(candidate.event, self._changes, self._lists)
        elif judged.outcome is WriteOutcome.PASSED_ON:
            # seq 0: it has no place in the log
            row = Stored(0, candidate.event, judged.group)
            self.rows.append(row)
            self.plan.passed_on.append(row)
        elif judged.outcome is WriteOutcome.STORED:
            self._store(candidate, judged)
        elif judged.ruling is not None and judged.group is not None:
            apply_ruling(judged.ruling, judged.group, candidate, self._changes)
        if judged.joins_without_code:
            self._joined.count(EVERYBODY, self._now)
        for change in judged.list_changes:
            self._lists.change(change)
        return judged.result

    def _take(self, judged: Judgement) -> None:
        for rate, name, cost in judged.tokens:
            self._buckets.take(rate, name, self._now, cost)

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
        # First: it has the groups as they were judged, before a pin is removed.
        if judged.ruling is not None and judged.group is not None:
            apply_ruling(judged.ruling, judged.group, candidate, self._changes)
        if candidate.targets is not None:
            rows = delete_by_author(event, candidate.targets, found, self.plan)
            self._note_old_versions(rows)
            self._unpin(rows, candidate)
            note_erased(event, rows, self.plan, self._now)
        if judged.outdated_pins:
            self._changes.unpin(judged.outdated_pins)

    def _unpin(self, deleted: Iterable[Stored], candidate: Candidate) -> None:
        if candidate.sender.origin is Origin.WIRE:  # a later line of an import may contain the row
            self._changes.unpin_rows(names_of(deleted))

    def _note_old_versions(self, rows: Iterable[Stored]) -> None:
        """The store finds the old versions of deleted rows, and keeps them out, after the batch."""
        for row in rows:
            if self._history is not None and self._history.of(row) is not None:
                stone = tombstone_of_slot(row, "history")
                if stone is not None:
                    note_tombstone(stone, self._found)

    def _note_references(self, row: Stored, candidate: Candidate) -> None:
        """Note what the row names: in an import that may come later in the batch."""
        if candidate.named is not None:
            for reference in references_of(row.event):
                self._found.referrers.setdefault(reference, set()).add(row.event.id)

    def _place_followers(self, row: Stored, candidate: Candidate) -> None:
        """Put what names this row into its group, and what names that in turn."""
        found = self._found
        stack = [row]
        while stack:
            for follower in followers(stack.pop(), candidate, self._changes.world):
                move(follower, found, self.plan)
                self._has_moved = True
                stack.append(follower)


def _is_accepted(judged: Judgement, candidate: Candidate) -> bool:
    return judged.vanishes if candidate.vanishes else judged.outcome is WriteOutcome.STORED


def _sender_of(item: WriteEvent, made: dict[int, Sender]) -> Sender:
    """One `Sender` for all events of an author in a batch; `made`: by identity of the author."""
    sender = made.get(id(item.author))
    if sender is None or sender.origin is not item.origin:
        sender = made[id(item.author)] = sender_of(item.author, item.origin)
    return sender


def _longest_s(items: Sequence[LaneItem]) -> float:
    (first, *others) = items
    is_deletion = isinstance(first, WriteEvent) and first.event.kind in _DELETIONS
    if others:
        return _LONGEST_SHARED_S
    return _LONGEST_DELETION_S if is_deletion else _LONGEST_S
