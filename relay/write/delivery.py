"""Delivery: committed rows to live subscriptions, in the order of their commits.

Invariants: nothing is delivered while it is not known who may read (`RelayState.is_current`), and
an event that is only passed on reaches those alone who could read it when it came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from relay.errors import StoreFault
from relay.lifecycle.rows import LONG_EXPIRED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.observe import Metrics
    from relay.state import RelayState
    from relay.storage import EventLog

_log = logging.getLogger(__name__)

_READ_AT_ONCE: Final = 500
"""Rows that other relays on the store wrote."""
_TURN_S: Final = 0.02
"""After that the other tasks of the loop go on. Each time all outboxes are written to their
sockets, so rows that go to many cost less together."""

Links = TypeVar("Links")


class Subscribers(Protocol[Links]):
    """Satisfied by `relay.read.fanout.Fanout`."""

    def __len__(self) -> int: ...

    @property
    def is_behind(self) -> bool:
        """Whether much of what was delivered is not written to the sockets yet."""

    def number_for(self, event: Event) -> int:
        """How many filters match it or are compared with it, and what searches cost beside it, as a
        number of filters."""

    def receivers_for(self, event: Event) -> int:
        """How many filters match it or are compared with it: as often at most it is sent."""

    def filters_of(self, address: str | None) -> int:
        """How many filters the clients of its network (IPv4 /24, IPv6 /48) have open."""

    async def links_of(self, rows: Sequence[Stored]) -> Links:
        """What `deliver` must know beside these rows."""

    def deliver(self, rows: Sequence[Stored], links: Links) -> Iterator[tuple[int, int]]:
        """Committed rows, in order of seq, in pieces; others may have the loop between them. Yields
        the number of frames that were put into outboxes, and of rows that are done. Who has got a
        stored row gets it no more, also if it is read again."""


class Delivery:
    """What is due to subscribers. One batch of rows is delivered at a time."""

    def __init__(
        self, store: EventLog, state: RelayState, fanout: Subscribers[Any], metrics: Metrics
    ) -> None:
        self._store = store
        self._state = state
        self._fanout = fanout
        self._metrics = metrics
        self._due: deque[Sequence[Stored] | range] = deque()
        """In order; seqs of rows that other relays on the store wrote."""
        self._rights = state.rights
        """`RelayState.rights` as of which it is due."""
        self._delivering = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Batches of rows that are due or being delivered."""
        return len(self._due) + self._delivering.locked()

    def add(self, rows: Sequence[Stored]) -> None:
        """Rows of a commit whose state is in force."""
        self._forget_passed_on()
        if rows:
            self._due.append(rows)

    def add_others(self, seqs: range, passed_on: Mapping[int, Sequence[Stored]]) -> None:
        """Other relays wrote these, and their state is in force. `passed_on`: by the seq after
        which it is delivered, ascending."""
        self._forget_passed_on()
        start = seqs.start
        for seq, rows in passed_on.items():
            self._due += (range(start, seq + 1), rows)
            start = seq + 1
        if start < seqs.stop:
            self._due.append(range(start, seqs.stop))

    def _forget_passed_on(self) -> None:
        """Of what is due, if rights have changed: others might get it who could not read it then.
        Stored rows are read again, they may have been deleted before."""
        if self._rights != self._state.rights:
            self._rights = self._state.rights
            self._keep_stored()

    def _keep_stored(self) -> None:
        self._due = deque(filter(None, map(_seqs_of, self._due)))

    def begin(self) -> None:
        """Deliver what is due, beside the caller."""
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.run(), name="deliver")

    async def ended(self) -> None:
        """Wait for what `begin` has begun, or another call of `run`."""
        if self._task is not None:
            await self._task
        async with self._delivering:
            pass

    async def run(self) -> None:
        """Deliver what is due, as far as it may be."""
        if not self._due:
            return
        async with self._delivering:
            while self._due:
                if not self._state.is_current():
                    # Others may remove some of it and then give rights, so it is read again.
                    self._keep_stored()
                    return
                due = self._due.popleft()
                try:
                    rows = await self._read(due) if isinstance(due, range) else due
                except StoreFault as fault:
                    _log.error("stored events are not delivered yet: %s", fault)
                    self._due.appendleft(due)
                    return
                await self._deliver(rows)
                if self._due:  # many small batches would be one turn of the loop
                    await asyncio.sleep(0)

    async def _read(self, seqs: range) -> Sequence[Stored]:
        """The first of these; the others are due next. Raises StoreFault."""
        if not len(self._fanout):
            return ()
        rows = await self._store.since(seqs.start - 1, min(len(seqs), _READ_AT_ONCE))
        if rows and rows[-1].seq + 1 < seqs.stop:
            self._due.appendleft(range(rows[-1].seq + 1, seqs.stop))
        return [row for row in rows if row.seq in seqs and row.expires_at != LONG_EXPIRED]

    async def _still_stored(self, rows: Sequence[Stored]) -> list[Stored]:
        """These rows as they are now, without those that were deleted. Raises StoreFault."""
        stored: dict[int, Stored] = {}
        after, last = rows[0].seq - 1, rows[-1].seq
        while after < last:
            found = await self._store.since(after, _READ_AT_ONCE)
            stored.update((row.seq, row) for row in found if row.expires_at != LONG_EXPIRED)
            after = found[-1].seq if found else last
        return [stored[row.seq] for row in rows if row.seq in stored]

    async def _deliver(self, rows: Sequence[Stored]) -> None:
        began, rights = perf_counter(), self._rights
        try:
            pieces = self._fanout.deliver(rows, await self._fanout.links_of(rows))
            rest_at, done = perf_counter() + _TURN_S, 0
            while self._state.is_current() and self._state.rights == rights:
                piece = next(pieces, None)
                if piece is None:
                    break
                frames, done = piece
                self._metrics.delivered(frames)
                if self._fanout.is_behind or perf_counter() > rest_at:
                    await asyncio.sleep(0)
                    # Else the outboxes of clients that read would overflow.
                    while self._fanout.is_behind:  # noqa: ASYNC110 -- the loop writes
                        await asyncio.sleep(0)
                    rest_at = perf_counter() + _TURN_S
            else:  # nobody knows who may read the rest, or others may than before
                rest = [row for row in rows[done:] if row.seq]
                while rest and self._state.rights != rights:
                    self._forget_passed_on()
                    rights = self._rights
                    try:
                        rest = await self._still_stored(rest)
                    except StoreFault:  # `run` reads them, now or later
                        self._due.appendleft(_seqs_of(rest))
                        rest = []
                if rest:
                    self._due.appendleft(rest)
        except Exception:  # outermost frame: the lane must go on  # noqa: BLE001
            _log.exception("%d stored events were not delivered live", len(rows))
        self._metrics.write.deliver.add(perf_counter() - began)


def _seqs_of(due: range | Sequence[Stored]) -> range:
    """Empty for what is only passed on: it is not delivered late."""
    if isinstance(due, range):
        return due
    seqs = [row.seq for row in due if row.seq]
    return range(seqs[0], seqs[-1] + 1) if seqs else range(0)
