"""Synchronise two sets of events: find the difference by negentropy (NIP-77), then transfer it.

"Ours" is a Side: a relay (`RelaySide`) or a data folder. "Theirs" is a relay. Restarting is safe
and transfers only what is still missing. Of the events, two batches of bounded size are held in
memory: the next is fetched while one is stored.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from relay.client.errors import (
    TEMPORARY,
    AnswerTooLong,
    Incomparable,
    PublishRefused,
    QueryClosed,
    Unanswered,
)
from relay.client.negentropy import MAX_NEED
from relay.client.paging import MAX_READ_BYTES
from relay.client.sync_order import Order, in_order, only_names
from relay.errors import RIGHTS_CHANGED, Prefix, kind_of_reason
from relay.nostr.event import weight_of
from relay.nostr.filters import Filter
from relay.nostr.kinds import (
    CREATE_GROUP,
    DELETE_GROUP,
    GIFT_WRAP,
    GROUP_METADATA,
    GROUP_RECORDS,
    MARMOT,
    RELAY_SIGNED,
)
from relay.nostr.nip29 import made_by
from relay.nostr.nip77 import Bound, Items

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )

    from relay.client.client import Client
    from relay.client.negentropy import Difference
    from relay.client.sync_order import Place
    from relay.nostr.event import Event

_FETCH_BATCH: Final = 250
"""Ids per REQ; relays accept a few hundred."""
_BATCH_BYTES: Final = 64 << 20
"""What these events take in memory, as `weight_of` estimates it, or fewer are asked for from then
on. Two such batches are held."""
_FETCH_S: Final = 300.0
"""For a batch, however few events the relay returns at a time; and for all that a run fetches,
beyond `_PACE_S` for each batch and a second for each `_PACE_BYTES`."""
_PACE_S: Final = 10.0
_PACE_BYTES: Final = 100_000
_COMPARISON_S: Final = 3600.0
"""For all parts of all comparisons of a run."""
_MAX_REASONS: Final = 32
"""Distinct refusal reasons; some relays put an id into each."""
_MAX_DEPTH: Final = 64
"""Levels of bisection: 20 cut a million items to one, 31 the time since 1970 to a second."""
_MAX_PARTS: Final = 20_000
"""Parts of one comparison: a relay may refuse every part but the smallest."""
_MAX_AGAIN: Final = 64
"""How often parts of one comparison are begun again because read rights changed."""
_RETRY_DELAYS_S: Final = (0.5, 2.0, 8.0)
"""Delays before retrying temporary refusals."""
_REFUSED_S: Final = 2.0
"""Delay after a batch of which all is refused for now, also after the retries."""
_MAX_REFUSED: Final = 16_384
"""Events of such batches in a row: by the packaged rules 10,000 may be over one quota."""
_MADE_WITHOUT_H: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOTHING: Final = Items(array("Q"), b"")
_MAX_GROUP_ID: Final = 256
"""Characters; a message with a longer `h` is of no group."""
_NO_GROUP: Final = f"{Prefix.RESTRICTED}: there is no such group, or none that the key reads"


class Direction(Enum):
    BOTH = auto()
    DOWN = auto()
    """From them to us."""
    UP = auto()


class Moderation(Enum):
    """Whether we take group records (kinds 9000 to 9022), which change our groups."""

    LEFT = auto()
    TAKEN = auto()


@dataclass(slots=True)
class StoreResult:
    """Outcome of storing events at a side."""

    stored: int = 0
    duplicates: int = 0
    """It already had them."""
    refused: list[tuple[Event, str]] = field(default_factory=list)
    """(event, text of the OK message)."""


class Side(Protocol):
    """A set of events that can be read by filter and by id, and added to."""

    takes_any_order: bool
    """Whether `store` may get an event before those that it names."""

    async def items(self, filter_: Filter) -> Items:
        """Items of the filter's matches that may be exported; never kinds in RELAY_SIGNED."""

    def events(
        self, filter_: Filter, ids: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of those ids that still exist, in batches, older events and dependencies
        first.

        `filter_` is the filter that found the ids.
        """

    async def store(self, events: Sequence[Event]) -> StoreResult:
        """Store them in this order."""

    async def groups(self, ids: Collection[str]) -> Mapping[str, Collection[str]]:
        """Those of these groups that exist, as far as they can be read → ids of their 9007."""


class RelaySide:
    """A relay. A Side."""

    # A reaction that comes before its target is stored outside of the target's group (N29-106).
    takes_any_order = False

    def __init__(self, reader: Client, writer: Client) -> None:
        """`reader` may be authenticated as a key that may read less than the publishing one."""
        self._reader = reader
        self._writer = writer
        self._patience_s = _FETCH_S
        """How much longer fetching may take than the pace."""
        self._refused = 0
        """Events of the last batches, if all of them were refused for now."""

    async def items(self, filter_: Filter) -> Items:
        timestamps, ids = array("Q"), bytearray()
        async for event in self._reader.query_all(filter_, most_bytes=MAX_READ_BYTES):
            if event.kind not in RELAY_SIGNED:
                timestamps.append(event.created_at)
                ids += bytes.fromhex(event.id)
        return items_of(timestamps, ids)

    async def events(
        self, filter_: Filter, ids: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Event], None]:
        clock = asyncio.get_running_loop().time
        at, size = 0, _FETCH_BATCH
        while at < len(ids):
            part = ids[at : at + size]
            wanted = {id_.hex() for id_ in part}
            found: list[Event] = []
            number, most_s, began = len(part), self._patience_s + _PACE_S, clock()
            left, is_too_large = _BATCH_BYTES, False
            try:
                async with asyncio.timeout(most_s):
                    # Repeated while it returns events: a relay may return fewer at a time.
                    while wanted and (some := await self._query(wanted, left)):
                        wanted.difference_update(event.id for event in some)
                        found += some
                        left -= sum(map(weight_of, some))
            except AnswerTooLong:
                is_too_large = True
            except TimeoutError:
                raise Unanswered(
                    f"got {len(found)} of {number} events within {most_s:.0f} s"
                ) from None
            allowed_s = _PACE_S + sum([len(event.raw) for event in found]) / _PACE_BYTES
            if is_too_large and number > 1:
                # Not in parts as they come: within a batch, older events are first.
                size = number // 2
                allowed_s = _PACE_S + _BATCH_BYTES / _PACE_BYTES
                found.clear()
            else:
                at += number  # without an event that is too large alone
                if left > _BATCH_BYTES * 3 // 4:
                    size = min(2 * size, _FETCH_BATCH)  # a few large ones slow down no others
            self._patience_s -= max(0.0, clock() - began - allowed_s)
            if found:
                yield in_order(found)

    async def _query(self, ids: Iterable[str], most_bytes: int) -> Sequence[Event]:
        return await self._reader.query(Filter(ids=frozenset(ids)), most_bytes=most_bytes)

    async def store(self, events: Sequence[Event]) -> StoreResult:
        """Group records one at a time: sent again after a later one, a 9000 would undo its 9001.
        Raises PublishRefused if one of them is still refused for now after the last retry, or all
        of several other events with `error:`, or of very many in a row."""
        result = StoreResult()
        for is_record, run in groupby(events, lambda event: event.kind in GROUP_RECORDS):
            if is_record:
                for event in run:
                    await self._store([event], result)
            else:
                await self._store([*run], result)
        return result

    async def groups(self, ids: Collection[str]) -> Mapping[str, Collection[str]]:
        return groups_in(await self._writer.query(*filters_for_groups(ids)))

    async def _store(self, events: Sequence[Event], result: StoreResult) -> None:
        waiting = events
        for pause in (*_RETRY_DELAYS_S, None):
            report = await self._writer.publish_many(waiting, patience_s=0)
            result.stored += report.stored
            result.duplicates += report.duplicates
            refused = [refusal for refusal in report.refused if refusal.prefix in TEMPORARY]
            limited = sum(refusal.prefix == Prefix.RATE_LIMITED for refusal in refused)
            # After such a batch retries are of no use.
            is_another = self._refused > 0 and 1 < len(events) == limited
            is_last = pause is None or is_another
            again = set() if is_last else {refusal.event.id for refusal in refused}
            result.refused += [
                (refusal.event, str(refusal))
                for refusal in report.refused
                if refusal.event.id not in again
            ]
            if pause is None or not again:
                break
            await asyncio.sleep(pause)
            waiting = [event for event in waiting if event.id in again]
        if len(refused) == len(events):
            await self._note_refused(refused)
        else:
            self._refused = 0

    async def _note_refused(self, refused: Sequence[PublishRefused]) -> None:
        """All events of a batch are refused for now. Raises the refusal if others would be refused,
        too. A full quota of an author, group or recipient says nothing of others: whoever fills it
        must not end each run at the same place. That of a recipient is filled by anybody."""
        first = refused[0]
        if len(refused) == 1 and first.event.kind not in GROUP_RECORDS:
            return
        if len(refused) == 1 or all(refusal.prefix == Prefix.ERROR for refusal in refused):
            raise first
        self._refused += len(refused)
        others = [refusal for refusal in refused if refusal.event.kind != GIFT_WRAP]
        if others and self._refused > _MAX_REFUSED:
            raise others[0]
        await asyncio.sleep(_REFUSED_S)


def filters_for_groups(ids: Collection[str]) -> Sequence[Filter]:
    """For the events of which `groups_in` tells these groups."""
    return (
        Filter(kinds=frozenset({GROUP_METADATA}), tags=(("d", frozenset(ids)),)),
        Filter(kinds=frozenset({CREATE_GROUP}), tags=(("h", frozenset(ids)),)),
    )


def groups_in(events: Iterable[Event]) -> Mapping[str, Collection[str]]:
    """As `Side.groups`."""
    found: dict[str, set[str]] = {}
    for event in events:
        is_made = event.kind == CREATE_GROUP
        made = found.setdefault(made_by(event) if is_made else event.d, set())
        if is_made and event.has_tag("h"):
            made.add(event.id)
    return found


def is_another(group: str, there: Collection[str] | None, here: Collection[str]) -> bool:
    """Whether two groups of this id, as of `groups_in`, are not the same one.

    A 9007 without `h` is not found by the group; the id of that group is part of its own.
    """
    if not here and not there and _MADE_WITHOUT_H.fullmatch(group):
        return False
    return set(here).isdisjoint(there or ())


def _needed(differences: Iterable[Difference]) -> frozenset[bytes]:
    return frozenset().union(*(difference.need for difference in differences))


def _of_group_records(filter_: Filter) -> Filter | None:
    """The filter for the matches that are group records; None: it matches none."""
    wanted = frozenset(GROUP_RECORDS)
    if filter_.kinds is not None:
        wanted &= filter_.kinds
    return structs.replace(filter_, kinds=wanted) if wanted else None


def items_of(timestamps: array[int], ids: bytes | bytearray) -> Items:
    """Items from unsorted input: 64-bit timestamps, and 32 bytes of id for each."""
    order = sorted(range(len(timestamps)), key=timestamps.__getitem__)
    return Items(
        array("Q", (timestamps[at] for at in order)),
        b"".join([ids[32 * at : 32 * at + 32] for at in order]),
    )


@dataclass(slots=True)
class Tally:
    """Progress. Byte counts are of the reconciliation messages, not of events."""

    compared: int = 0
    """Number of our events that were compared."""
    need: int = 0
    """Number of events to fetch."""
    have: int = 0
    """Number of events to send."""
    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    received: int = 0
    """Stored here."""
    sent: int = 0
    """Stored there."""
    known_here: int = 0
    known_there: int = 0
    """Transferred, but already present."""
    refused_here: Counter[str] = field(default_factory=Counter)
    """Reason → number of events."""
    refused_there: Counter[str] = field(default_factory=Counter)
    not_given: int = 0
    """Needed, but no longer at the relay when fetched."""
    relay_signed: int = 0
    """Their events of kinds 39000 to 39005: each relay signs its own."""
    moderation: int = 0
    """Their group records (kinds 9000 to 9022) that we do not take."""
    not_asked: int = 0
    """Their events that the filter does not match, and group records that they did not list."""
    other_groups: Counter[str] = field(default_factory=Counter)
    """Group → number of events, not stored: where they would be, its id is that of another one."""
    protected: int = 0
    """Our events that only their author may publish (N70-01)."""


class Sync:
    """One run: `await sync.compare()`, then `await sync.move(…)` to transfer.

    Both raise ClientError and whatever `ours` raises; transferred events stay transferred.
    """

    def __init__(
        self,
        ours: Side,
        theirs: Client,
        filter_: Filter,
        *,
        now: int,
        note: Callable[[Tally], None],
        moderation: Moderation = Moderation.LEFT,
        foreign_h: Collection[int] = MARMOT,
    ) -> None:
        """`now`: seconds since 1970. `note` is called with the tally after each change.
        `foreign_h`: kinds whose `h` names no group.

        ValueError for a filter that is not `comparable`.
        """
        self.tally = Tally()
        self._ours = ours
        self._theirs = theirs
        self._filter = comparable(filter_)
        self._now = now
        self._note = note
        self._moderation = moderation
        self._foreign_h = foreign_h
        self._records: frozenset[bytes] = frozenset()
        """The ids in `_need` that are group records."""
        self._other_groups: dict[str, bool] = {}
        """Group → whether it is another one where events are stored."""
        self._at_source: dict[str, Collection[str] | None] = {}
        """Group → ids of its 9007 where events come from; None: it does not show the group."""
        self._have: Sequence[bytes] = ()
        self._need: Sequence[bytes] = ()

    async def compare(self) -> None:
        """Find the differing ids. Raises QueryClosed, Incomparable, Unanswered."""
        try:
            async with asyncio.timeout(_COMPARISON_S):
                await self._compare()
        except TimeoutError:
            raise Unanswered(
                f"the comparison took over {_COMPARISON_S:g} s; use a narrower filter"
            ) from None

    async def _compare(self) -> None:
        items = await self._ours.items(self._filter)
        self.tally.compared = len(items)
        self._note(self.tally)
        differences = await self._differences(self._filter, items)
        have = frozenset().union(*(difference.have for difference in differences))
        need = _needed(differences)
        if need and self._filter.kinds is None:
            # A filter cannot exclude kinds, so the ids of excluded kinds are found by a filter of
            # their own.
            state = structs.replace(self._filter, kinds=RELAY_SIGNED)
            signed = need & _needed(await self._differences(state, _NOTHING))
            self.tally.relay_signed += len(signed)
            need -= signed
        records = _of_group_records(self._filter)
        if need and records is not None:
            ours = await self._ours.items(records)
            moderation = need & _needed(await self._differences(records, ours))
            self._records = moderation
            if self._moderation is Moderation.LEFT:
                self.tally.moderation = len(moderation)
                need -= moderation
        self._have = [id_ for id_ in _ids(items) if id_ in have]
        # Not sorted: whoever fills a quota could choose ids that come first. The order of a set is
        # that of hashes whose key nobody knows, and another one in each process.
        self._need = [*need]
        self.tally.have, self.tally.need = len(self._have), len(self._need)
        self._note(self.tally)

    async def group_records(self) -> AsyncGenerator[Sequence[Event], None]:
        """The group records that `move` will take, in batches."""
        if self._moderation is Moderation.TAKEN:
            source = RelaySide(self._theirs, self._theirs)
            async for events in source.events(self._filter, sorted(self._records)):
                yield events

    async def move(self, direction: Direction) -> None:
        """Transfer missing events; refusals are counted by reason."""
        if direction is not Direction.UP:
            await self._receive()
        if direction is not Direction.DOWN:
            await self._send()

    async def _places(self, source: RelaySide) -> dict[bytes, Place]:
        """id → place in time of what we need."""
        order = Order()
        async for events in source.events(self._filter, self._need):
            for event in events:
                order.add(event)
        return order.places()

    async def _receive(self) -> None:
        source = RelaySide(self._theirs, self._theirs)
        tally = self.tally
        takes_records = bool(self._records) and self._moderation is Moderation.TAKEN
        places = await self._places(source) if takes_records else {}

        def place(id_: bytes) -> tuple[Place, bytes]:
            return places[id_], id_

        need = sorted(places, key=place) if takes_records else self._need
        retry: list[tuple[int, bytes]] = []
        """(created_at, id) of events refused because of their author."""
        retry_reasons: Counter[str] = Counter()
        later: list[tuple[int, bytes]] = []
        """(created_at, id) of events that name others: stored after everything else."""
        waits = not (takes_records or self._ours.takes_any_order)
        fetched = 0

        async def store(events: Sequence[Event]) -> None:
            nonlocal fetched
            fetched += len(events)
            if places:
                events = sorted(events, key=lambda event: place(bytes.fromhex(event.id)))
            ours = [event for event in events if event.kind not in RELAY_SIGNED]
            tally.relay_signed += len(events) - len(ours)
            # A relay may list ids of other events than those of the filter.
            before = len(ours)
            ours = [event for event in ours if self._filter.matches(event)]
            tally.not_asked += before - len(ours)
            before = len(ours)
            ours = [event for event in ours if self._is_taken(event)]
            if self._moderation is Moderation.LEFT:
                tally.moderation += before - len(ours)
            else:
                tally.not_asked += before - len(ours)
            if waits:
                naming = [event for event in ours if only_names(event)]
                later.extend((event.created_at, bytes.fromhex(event.id)) for event in naming)
                ours = [event for event in ours if not only_names(event)]
            await self._in_parts(ours, store_part, source, self._ours)
            self._note(tally)

        async def store_part(events: Sequence[Event]) -> None:
            ours, refused = self._of_same_groups(events)
            result = await self._ours.store(ours)
            tally.received += result.stored
            tally.known_here += result.duplicates
            for event, reason in (*refused, *result.refused):
                counted = _count(tally.refused_here, kind_of_reason(reason))
                # A group record that has no effect at its place must not have one at the end.
                # Without records no group is made meanwhile, and the relay could tell which
                # groups are here by what is not fetched again.
                is_final = event.kind in GROUP_RECORDS or (
                    reason == _NO_GROUP and not takes_records
                )
                if reason.startswith(f"{Prefix.RESTRICTED}:") and not is_final:
                    retry.append((event.created_at, bytes.fromhex(event.id)))
                    retry_reasons[counted] += 1

        await _pipelined(source.events(self._filter, need), store)
        tally.not_given = len(self._need) - fetched
        if retry and tally.received:
            # The event that makes an author a member may have come after the author's events. So
            # refused events are tried once more, ordered by time.
            retry_ids = [id_ for _, id_ in sorted(retry)]
            tally.refused_here -= retry_reasons
            await _pipelined(source.events(self._filter, retry_ids), store)
        waits = False
        if later:
            await _pipelined(source.events(self._filter, [id_ for _, id_ in sorted(later)]), store)

    def _is_taken(self, event: Event) -> bool:
        """Whether the event is no group record, or one of those that `group_records` returned."""
        if event.kind not in GROUP_RECORDS:
            return True
        return self._moderation is Moderation.TAKEN and bytes.fromhex(event.id) in self._records

    async def _in_parts(
        self,
        events: Sequence[Event],
        store: Callable[[Sequence[Event]], Awaitable[None]],
        source: Side,
        target: Side,
    ) -> None:
        """Store the events; after 9007, since the next ones may be of their groups, ask again for
        groups that were not there."""
        await self._ask_for_groups(events, source, target)
        begin = 0
        for end in range(1, len(events)):
            if events[end - 1].kind == CREATE_GROUP != events[end].kind:
                await store(events[begin:end])
                await self._ask_for_groups(events[end:], source, target)
                begin = end
        if events:
            await store(events[begin:])

    async def _ask_for_groups(self, events: Sequence[Event], source: Side, target: Side) -> None:
        """Tell apart the groups of events. Those that `target` does not show are asked for again
        with the next events: anybody may make them. `source` is asked for all, and once: it could
        learn from that which ones exist at `target`."""
        named = {h for event in events if (h := self._group_of(event)) is not None}
        named = {
            h for h in named if len(h) <= _MAX_GROUP_ID
        }  # kept for each event of another relay
        asked = named - self._other_groups.keys()
        there = await target.groups(asked) if asked else {}
        new = asked - self._at_source.keys()
        found = await source.groups(new) if new else {}
        self._at_source |= {h: found.get(h) for h in new}
        for h in asked & there.keys():
            self._other_groups[h] = is_another(h, self._at_source[h], there[h])

    def _group_of(self, event: Event) -> str | None:
        """The group of a message, or of a record that changes a group."""
        if event.kind == CREATE_GROUP or event.kind in self._foreign_h:
            return None
        return next(filter(None, event.tag_values("h")), None)

    def _of_same_groups(
        self, events: Sequence[Event]
    ) -> tuple[list[Event], list[tuple[Event, str]]]:
        """What may be stored, and what is refused: messages of a group that is not shown there.
        Messages and records are left out if the group of this id there is another one, or if a side
        does not show its 9007: with other flags and members, it would show messages to others, and
        who leads both would change the other one. Of all other records, and of the 9008 of a group
        that is gone where it comes from, the rules decide."""
        taken: list[Event] = []
        refused: list[tuple[Event, str]] = []
        for event in events:
            group = self._group_of(event)
            is_other = False if group is None else self._other_groups.get(group)
            if event.kind == DELETE_GROUP and self._at_source.get(str(group)) is None:
                is_other = False
            if is_other is None and event.kind not in GROUP_RECORDS:
                refused.append((event, _NO_GROUP))
            elif is_other:
                _count(self.tally.other_groups, str(group))
            else:
                taken.append(event)
        return taken, refused

    async def _send(self) -> None:
        target = RelaySide(self._theirs, self._theirs)
        tally = self.tally
        self._other_groups.clear()
        self._at_source.clear()

        async def store(events: Sequence[Event]) -> None:
            publishable = [event for event in events if not event.has_tag("-")]
            tally.protected += len(events) - len(publishable)
            await self._in_parts(publishable, store_part, self._ours, target)
            self._note(tally)

        async def store_part(events: Sequence[Event]) -> None:
            publishable, refused = self._of_same_groups(events)
            result = await target.store(publishable)
            tally.sent += result.stored
            tally.known_there += result.duplicates
            for _, reason in (*refused, *result.refused):
                _count(tally.refused_there, kind_of_reason(reason))

        await _pipelined(self._ours.events(self._filter, self._have), store)

    async def _differences(self, filter_: Filter, items: Items) -> list[Difference]:
        """The differences of the whole set, or of parts of it if the relay refuses to compare so
        many, or changes of read rights end the comparison."""
        found: list[Difference] = []
        asked = needed = again = 0
        parts = [(filter_, items, 0)]
        while parts:
            part, part_items, depth = parts.pop()
            asked += 1
            if asked > _MAX_PARTS or needed > MAX_NEED:
                raise Incomparable("the relay compares too many parts; use a narrower filter")
            try:
                difference = await self._theirs.reconcile(
                    part, part_items, answered=self._on_message
                )
            except QueryClosed as closed:
                pieces = None if depth == _MAX_DEPTH else halves(part, part_items, self._now)
                if closed.prefix == Prefix.RESTRICTED and closed.text.startswith(RIGHTS_CHANGED):
                    again += 1
                    if again > _MAX_AGAIN:
                        raise
                    # In halves: they take less time, and one of them may have none of these rows.
                    if pieces is None:
                        parts.append((part, part_items, depth))
                        continue
                elif closed.prefix != Prefix.BLOCKED or pieces is None:
                    raise
                parts += [(*piece, depth + 1) for piece in pieces]
                continue
            found.append(difference)
            needed += len(difference.need)
            self.tally.sent_bytes += difference.sent_bytes
            self.tally.received_bytes += difference.received_bytes
        return found

    def _on_message(self) -> None:
        self.tally.rounds += 1
        self._note(self.tally)


def comparable(filter_: Filter) -> Filter:
    """The filter without the kinds that each relay signs itself.

    ValueError if it then matches nothing, and for filters with `limit` or `search`.
    """
    if filter_.limit is not None or filter_.search is not None:
        raise ValueError("limit and search choose among matches; all of them are compared")
    if filter_.kinds is not None:
        filter_ = structs.replace(filter_, kinds=filter_.kinds - RELAY_SIGNED)
    if filter_.impossible or filter_.kinds == frozenset():
        raise ValueError("it matches nothing that two relays may have in common")
    return filter_


def halves(
    filter_: Filter, items: Items, now: int
) -> tuple[tuple[Filter, Items], tuple[Filter, Items]] | None:
    """Bisects filter and items by time: half of the items each, or half of the time.

    None for a range of one second.
    """
    low = max(filter_.since or 0, 0)
    latest = items.bound_at(len(items) - 1).timestamp if len(items) else 0
    high = max(now, latest, low) if filter_.until is None else filter_.until
    cut = items.bound_at(len(items) // 2).timestamp if len(items) else low
    if not low < cut <= high:
        cut = low + (high - low + 1) // 2
    if not low < cut <= high:
        return None
    place = items.place(Bound(cut), 0)
    return (
        (structs.replace(filter_, until=cut - 1), _part(items, 0, place)),
        (structs.replace(filter_, since=cut), _part(items, place, len(items))),
    )


def _part(items: Items, first: int, last: int) -> Items:
    timestamps = array("Q", (items.bound_at(at).timestamp for at in range(first, last)))
    return Items(timestamps, items.ids(first, last))


def _ids(items: Items) -> Iterable[bytes]:
    return map(items.id, range(len(items)))


def _count(reasons: Counter[str], reason: str) -> str:
    """Count a reason; returns the name it is counted under."""
    if reason not in reasons and len(reasons) >= _MAX_REASONS:
        reason = "other reasons"
    reasons[reason] += 1
    return reason


async def _pipelined(
    batches: AsyncGenerator[Sequence[Event], None],
    store: Callable[[Sequence[Event]], Awaitable[None]],
) -> None:
    """Process batches one at a time, in order, each while the next is fetched."""

    async def store_one(batch: Sequence[Event]) -> None:
        await store(batch)

    try:
        async with aclosing(batches), asyncio.TaskGroup() as tasks:
            storing: asyncio.Task[None] | None = None
            async for batch in batches:
                if storing is not None:
                    await storing
                storing = tasks.create_task(store_one(batch))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
