"""Two sets of events become alike: what differs is found by negentropy (NIP-77), then moved.

"Ours" is a Side: a relay over the wire (`RelaySide`), or a folder of events. "Theirs" is a relay.
Beginning again is always safe, and moves only what is missing still. Never are all events in
memory, only the ids of what differs; while one batch is taken the next is fetched.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from relay.client.errors import PublishRefused, QueryClosed
from relay.errors import Prefix
from relay.nostr.filters import Filter
from relay.nostr.kinds import GROUP_STATE
from relay.nostr.nip77 import Bound, Items

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from relay.client.connection import Client
    from relay.client.reconciling import Difference
    from relay.nostr.event import Event

_FETCHED_AT_ONCE: Final = 250
"""Ids of one REQ; relays take some hundred."""
_MOST_REASONS: Final = 32
"""Of refusals, told apart; some relays put an id into each."""
_MAX_DEPTH: Final = 64
"""Of halving: a million items are one after 20, and the time since 1970 is a second after 31."""
_PAUSES_S: Final = (0.5, 2.0, 8.0)
"""Before what is only for now refused is sent again."""
_FOR_NOW: Final = frozenset({Prefix.RATE_LIMITED, Prefix.ERROR})
_NOTHING: Final = Items(array("Q"), b"")


class Direction(Enum):
    BOTH = auto()
    DOWN = auto()
    """From them to us."""
    UP = auto()


@dataclass(slots=True)
class Taken:
    """What became of events that were given to a side."""

    stored: int = 0
    duplicates: int = 0
    """It had them already."""
    refused: list[tuple[Event, str]] = field(default_factory=list)
    """With the reason in the words of OK."""


class Side(Protocol):
    """A set of events that can be read by filter and by id, and added to."""

    async def items(self, filter_: Filter) -> Items:
        """What it would give away of what the filter finds; nothing of GROUP_STATE."""

    def events(
        self, filter_: Filter, ids: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Those of the ids that are still there, in batches, older ones and causes first.

        `filter_` is the one that the ids were found by.
        """

    async def take(self, events: Sequence[Event]) -> Taken:
        """Add them in this order; returns when they are stored."""


class RelaySide:
    """A relay over the wire. A Side."""

    def __init__(self, reader: Client, writer: Client) -> None:
        """`reader` may be logged in as somebody who sees less than the author of what is sent."""
        self._reader = reader
        self._writer = writer

    async def items(self, filter_: Filter) -> Items:
        timestamps, ids = array("Q"), bytearray()
        async for event in self._reader.query_all(filter_):
            if event.kind not in GROUP_STATE:
                timestamps.append(event.created_at)
                ids += bytes.fromhex(event.id)
        return items_of(timestamps, ids)

    async def events(
        self, filter_: Filter, ids: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Event], None]:
        for start in range(0, len(ids), _FETCHED_AT_ONCE):
            wanted = {id_.hex() for id_ in ids[start : start + _FETCHED_AT_ONCE]}
            # Asked again while it brings something: a relay may serve fewer at a time.
            while wanted and (found := await self._reader.query(Filter(ids=frozenset(wanted)))):
                wanted.difference_update(event.id for event in found)
                yield sorted(found, key=lambda event: (event.created_at, event.id))

    async def take(self, events: Sequence[Event]) -> Taken:
        """Raises PublishRefused when all of many are refused for now, and for so long."""
        taken, waiting = Taken(), events
        for pause in (*_PAUSES_S, None):
            report = await self._writer.publish_many(waiting, patience_s=0)
            taken.stored += report.stored
            taken.duplicates += report.duplicates
            for_now = {
                refusal.event.id: refusal
                for refusal in report.refused
                if pause is not None and refusal.prefix in _FOR_NOW
            }
            taken.refused += [
                (refusal.event, str(refusal))
                for refusal in report.refused
                if refusal.event.id not in for_now
            ]
            if pause is None or not for_now:
                break
            await asyncio.sleep(pause)
            waiting = [event for event in waiting if event.id in for_now]
        if 1 < len(events) == sum(_is_for_now(refusal) for refusal in report.refused):
            # Not for the sake of these events: going on would mean to refuse the rest as well.
            raise report.refused[0]
        return taken


def _is_for_now(refusal: PublishRefused) -> bool:
    return refusal.prefix in _FOR_NOW


def items_of(timestamps: array[int], ids: bytes | bytearray) -> Items:
    """Items of what stands in any order: 64-bit timestamps, and 32 bytes of id for each."""
    order = sorted(range(len(timestamps)), key=timestamps.__getitem__)
    return Items(
        array("Q", (timestamps[at] for at in order)),
        b"".join([ids[32 * at : 32 * at + 32] for at in order]),
    )


@dataclass(slots=True)
class Tally:
    """How far it is. Bytes are those of the comparison, not of the events that move."""

    compared: int = 0
    """Events of ours."""
    need: int = 0
    """To be fetched."""
    have: int = 0
    """To be sent."""
    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    received: int = 0
    """Stored here."""
    sent: int = 0
    """Stored there."""
    known_here: int = 0
    known_there: int = 0
    """It came, and was there already."""
    refused_here: Counter[str] = field(default_factory=Counter)
    """Reason → events."""
    refused_there: Counter[str] = field(default_factory=Counter)
    not_given: int = 0
    """Needed, and when they were asked for the relay had them no more."""
    relay_signed: int = 0
    """Theirs under 39000 to 39005: each relay signs its own."""
    protected: int = 0
    """Ours that only their author may publish (N70-01)."""


class Sync:
    """One run: `await sync.compare()`, and, if they shall be made alike, `await sync.move(…)`.

    Both raise ClientError, and what `ours` raises; what was moved stays moved.
    """

    def __init__(
        self,
        ours: Side,
        theirs: Client,
        filter_: Filter,
        *,
        now: int,
        note: Callable[[Tally], None],
    ) -> None:
        """`now`: seconds since 1970. `note` hears the tally whenever it has grown.

        ValueError for a filter that is not `comparable`.
        """
        self.tally = Tally()
        self._ours = ours
        self._theirs = theirs
        self._filter = comparable(filter_)
        self._now = now
        self._note = note
        self._have: Sequence[bytes] = ()
        self._need: Sequence[bytes] = ()

    async def compare(self) -> None:
        """Find what differs. Raises QueryClosed, Incomparable, Unanswered."""
        items = await self._ours.items(self._filter)
        self.tally.compared = len(items)
        self._note(self.tally)
        differences = await self._differences(self._filter, items)
        have = frozenset().union(*(difference.have for difference in differences))
        need = frozenset().union(*(difference.need for difference in differences))
        if need and self._filter.kinds is None:
            # A filter cannot leave kinds out; so what is left out is found by one of its own.
            state = replace(self._filter, kinds=frozenset(GROUP_STATE))
            for difference in await self._differences(state, _NOTHING):
                self.tally.relay_signed += len(need & difference.need)
                need -= difference.need
        self._have = [id_ for id_ in _ids(items) if id_ in have]
        self._need = sorted(need)
        self.tally.have, self.tally.need = len(self._have), len(self._need)
        self._note(self.tally)

    async def move(self, direction: Direction) -> None:
        """Fetch what we lack, send what they lack; what is refused is counted by its reason."""
        if direction is not Direction.UP:
            await self._receive()
        if direction is not Direction.DOWN:
            await self._send()

    async def _receive(self) -> None:
        source = RelaySide(self._theirs, self._theirs)
        tally = self.tally
        early: list[tuple[int, bytes]] = []
        """(created_at, id) of what was refused for who wrote it."""
        why_early: Counter[str] = Counter()
        given = 0

        async def take(events: Sequence[Event]) -> None:
            nonlocal given
            given += len(events)
            ours = [event for event in events if event.kind not in GROUP_STATE]
            tally.relay_signed += len(events) - len(ours)
            taken = await self._ours.take(ours)
            tally.received += taken.stored
            tally.known_here += taken.duplicates
            for event, reason in taken.refused:
                counted = _count(tally.refused_here, reason)
                if reason.startswith(f"{Prefix.RESTRICTED}:"):
                    early.append((event.created_at, bytes.fromhex(event.id)))
                    why_early[counted] += 1
            self._note(tally)

        await _flow(source.events(self._filter, self._need), take)
        tally.not_given = len(self._need) - given
        if early and tally.received:
            # Ids come in no order: what makes somebody a member may have come after what they said.
            # So these are offered once more, in the order of time.
            again = [id_ for _, id_ in sorted(early)]
            tally.refused_here -= why_early
            await _flow(source.events(self._filter, again), take)

    async def _send(self) -> None:
        target = RelaySide(self._theirs, self._theirs)
        tally = self.tally

        async def take(events: Sequence[Event]) -> None:
            open_ = [event for event in events if not event.has_tag("-")]
            tally.protected += len(events) - len(open_)
            taken = await target.take(open_)
            tally.sent += taken.stored
            tally.known_there += taken.duplicates
            for _, reason in taken.refused:
                _count(tally.refused_there, reason)
            self._note(tally)

        await _flow(self._ours.events(self._filter, self._have), take)

    async def _differences(self, filter_: Filter, items: Items) -> list[Difference]:
        """Of the whole, or of parts of it where the relay finds too many to compare at once."""
        found: list[Difference] = []
        parts = [(filter_, items, 0)]
        while parts:
            part, some, depth = parts.pop()
            try:
                difference = await self._theirs.reconcile(part, some, answered=self._answered)
            except QueryClosed as closed:
                pieces = halves(part, some, self._now)
                if closed.prefix != Prefix.BLOCKED or pieces is None or depth == _MAX_DEPTH:
                    raise
                parts += [(*piece, depth + 1) for piece in pieces]
                continue
            found.append(difference)
            self.tally.sent_bytes += difference.sent_bytes
            self.tally.received_bytes += difference.received_bytes
        return found

    def _answered(self) -> None:
        self.tally.rounds += 1
        self._note(self.tally)


def comparable(filter_: Filter) -> Filter:
    """The filter without the kinds that each relay signs for itself.

    ValueError when nothing is left to find, and for one that chooses among what it finds.
    """
    if filter_.limit is not None or filter_.search is not None:
        raise ValueError("limit and search choose among matches; all of them are compared")
    if filter_.kinds is not None:
        filter_ = replace(filter_, kinds=filter_.kinds - frozenset(GROUP_STATE))
    if filter_.impossible or filter_.kinds == frozenset():
        raise ValueError("it matches nothing that two relays may have in common")
    return filter_


def halves(
    filter_: Filter, items: Items, now: int
) -> tuple[tuple[Filter, Items], tuple[Filter, Items]] | None:
    """The filter and our items in two parts of time: half of the items each, or half of the time.

    None when one second is left.
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
        (replace(filter_, until=cut - 1), _part(items, 0, place)),
        (replace(filter_, since=cut), _part(items, place, len(items))),
    )


def _part(items: Items, first: int, last: int) -> Items:
    timestamps = array("Q", (items.bound_at(at).timestamp for at in range(first, last)))
    return Items(timestamps, items.ids(first, last))


def _ids(items: Items) -> Iterable[bytes]:
    return map(items.id, range(len(items)))


def _count(reasons: Counter[str], reason: str) -> str:
    """The name that it is counted under."""
    if reason not in reasons and len(reasons) >= _MOST_REASONS:
        reason = "other reasons"
    reasons[reason] += 1
    return reason


async def _flow(
    batches: AsyncGenerator[Sequence[Event], None],
    take: Callable[[Sequence[Event]], Awaitable[None]],
) -> None:
    """Each batch is taken while the next is fetched; one at a time, in order."""

    async def take_one(batch: Sequence[Event]) -> None:
        await take(batch)

    try:
        async with aclosing(batches), asyncio.TaskGroup() as tasks:
            taking: asyncio.Task[None] | None = None
            async for batch in batches:
                if taking is not None:
                    await taking
                taking = tasks.create_task(take_one(batch))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
