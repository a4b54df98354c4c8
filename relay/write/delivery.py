"""Delivery: committed rows to live subscriptions, in the order of their commits.

Invariants: nothing is delivered while it is not known who may read (`RelayState.is_current`), and
an event that is only passed on reaches those alone who could read it when it came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from relay.errors import StoreFault
from relay.nostr.event import indexed
from relay.write.costs import FilterNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from relay.access.shares import Work
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.observe import Metrics
    from relay.state import RelayState
    from relay.storage import EventLog

_log = logging.getLogger(__name__)

_READ_AT_ONCE: Final = 500
"""Rows of the log that are read together: those that other relays wrote, and those that may have
been deleted since."""
_READ_APART: Final = 4
"""The same for one network apart: a row may have 512 kB, and there may be hundreds of networks."""
_TURN_S: Final = 0.02
"""Work of a delivery after which the other tasks of the loop have a turn. In each turn all outboxes
are written to their sockets: rows that go to many clients cost less in few turns."""

_MOST_BYTES: Final = 4 << 20
"""Bytes of events, for whomever they are, after which an older one does not wait in memory any more
for the delivery to a network apart; parsed they take up to twenty times as much memory."""
_MOST_DUE: Final = 1024
"""Runs of rows that then wait for that delivery; with more, all rows from the first to the last are
read as one run."""

Links = TypeVar("Links")


class Subscribers(Protocol[Links]):
    """Subscriptions that rows are delivered to together. Satisfied by `relay.read.fanout.Part`."""

    def __len__(self) -> int: ...

    @property
    def work(self) -> Work | None:
        """What the delivery to them is counted for; None: the next commit waits for it."""

    @property
    def is_behind(self) -> bool:
        """Whether much of what was delivered is not written to the sockets yet."""

    async def links_of(self, rows: Sequence[Stored]) -> Links:
        """What `deliver` must know beside these rows."""

    def awaits(self, event: Event) -> bool:
        """Whether some filter may match the event. Quick if its tags are `indexed`."""

    def deliver(self, rows: Sequence[Stored], links: Links) -> Iterator[tuple[int, int]]:
        """Deliver committed rows, in order of seq, in pieces, between which other tasks may have
        the loop. Yields after each piece the number of frames that it put into outboxes, and of
        rows that are done so far. No subscription gets a stored row twice, also if the caller has
        read it again."""


class AllSubscribers(Subscribers[Links], FilterNumbers, Protocol[Links]):
    """All subscriptions. Satisfied by `relay.read.fanout.Fanout`."""

    @property
    def apart(self) -> Collection[Subscribers[Links]]:
        """Sets of subscriptions to which rows are delivered later, beside the next commits."""


class _UncountedWork:
    """`Work` that counts for nobody. Other tasks of the loop wait for `_TURN_S` of it at most."""

    def __init__(self) -> None:
        self._rest_at = perf_counter() + _TURN_S

    def begin(self) -> None: ...
    def end(self) -> bool:
        return perf_counter() > self._rest_at

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._rest_at = perf_counter() + _TURN_S


class Delivery:
    """The rows that are due to a set of subscriptions. One batch of rows is delivered at a time.

    A delivery to all has one of its own for each set apart, which is late by as long as its work
    waits for turns. What is due to a set apart is kept in memory until `_MOST_BYTES` of events have
    followed: then stored rows are read again, and events that are only passed on are dropped. If
    only those counted that the set awaits, its clients could tell by what they get that there were
    some that they may not read.
    """

    def __init__(
        self,
        store: EventLog,
        state: RelayState,
        fanout: Subscribers[Any],
        metrics: Metrics,
        clock: Callable[[], int],
        apart: Callable[[], Collection[Subscribers[Any]]] = tuple,
    ) -> None:
        self._store = store
        self._state = state
        self._fanout = fanout
        self._metrics = metrics
        self._clock = clock
        self._old: deque[range] = deque()
        """Seqs of rows that are due first, in order, and read when their turn comes. Others may be
        between those of a run."""
        self._due: deque[tuple[int, Sequence[Stored]] | range] = deque()
        """What is due then, in order. With rows: `_bytes` when they came. A range: see
        `add_others`."""
        self._rights = state.rights
        """`RelayState.rights` when `_due` was last checked against them."""
        self._bytes = 0
        """Of all events that came while there were sets apart, whether due here or not."""
        self._subscribers_apart = apart
        self._apart: dict[Subscribers[Any], Delivery] = {}
        self._delivering = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Batches of rows that are due or being delivered."""
        return len(self._old) + len(self._due) + self._delivering.locked()

    def add(self, rows: Sequence[Stored]) -> None:
        """Rows of a commit whose state is in force."""
        self._forget_passed_on()
        if rows:
            self._due.append((self._bytes, rows))
        apart = self.deliveries_apart()
        if apart:
            self._count(rows)
            events = [indexed(row.event) for row in rows]
            for each in apart:
                awaits = each._fanout.awaits
                each.add([row for row, event in zip(rows, events, strict=True) if awaits(event)])

    def deliveries_apart(self) -> Collection[Delivery]:
        """One for each set of subscriptions apart. They have tasks of their own, see `begin`."""
        apart = self._subscribers_apart()
        if apart or self._apart:
            of_all = self._store, self._state
            self._apart = {
                each: self._apart[each]
                if each in self._apart
                else Delivery(*of_all, each, self._metrics, self._clock)
                for each in apart
            }
        return self._apart.values()

    def _count(self, rows: Sequence[Stored]) -> None:
        """Count what came, for all sets apart; what came long before waits in memory no more."""
        self._bytes += sum([len(row.event.raw) for row in rows])
        for each in self._apart.values():
            each._bytes = self._bytes
            each._age()

    def _age(self) -> None:
        due = self._due
        while due:
            first = due[0]
            if not isinstance(first, range):
                bytes_before, rows = first
                if self._bytes - bytes_before <= _MOST_BYTES:
                    break
                self._put_last(_runs_of(rows))
            else:
                self._put_last([first])
            due.popleft()
        if len(self._old) > _MOST_DUE:  # it has waited for long
            self._old = deque([range(self._old[0].start, self._old[-1].stop)])

    def _put_last(self, runs: Iterable[range]) -> None:
        """Let these rows, which have come later than those in `_old`, be read again."""
        old = self._old
        for run in runs:
            if old and old[-1].stop == run.start:
                old[-1] = range(old[-1].start, run.stop)
            elif run:
                old.append(run)

    def add_others(self, seqs: range, passed_on: Mapping[int, Sequence[Stored]]) -> None:
        """Rows that other relays wrote, whose state is in force. `passed_on`: events that are not
        stored, by the seq after which they are delivered, ascending."""
        self._forget_passed_on()
        apart = self.deliveries_apart()
        if apart:
            self._count([*chain.from_iterable(passed_on.values())])
        for each in apart:
            each.add_others(seqs, passed_on)
        start = seqs.start
        for seq, rows in passed_on.items():
            self._add_range(range(start, seq + 1))
            self._due.append((self._bytes, rows))
            start = seq + 1
        self._add_range(range(start, seqs.stop))

    def _add_range(self, seqs: range) -> None:
        last = self._due[-1] if self._due else None
        if isinstance(last, range) and last.stop == seqs.start:
            self._due[-1] = range(last.start, seqs.stop)
        elif seqs:
            self._due.append(seqs)

    def _forget_passed_on(self) -> None:
        """If rights have changed, drop events that are only passed on: viewers might get them who
        could not read them when they came. Stored rows are read again: some may have been deleted
        before the rights changed."""
        if self._rights != self._state.rights:
            self._rights = self._state.rights
            self._keep_stored()

    def _keep_stored(self) -> None:
        """Of what is due keep only the seqs of stored rows, which are then read again."""
        while self._due:
            first = self._due.popleft()
            self._put_last([first] if isinstance(first, range) else _runs_of(first[1]))

    def begin(self) -> None:
        """Deliver what is due, in tasks of their own."""
        self._begin_apart()
        if (self._old or self._due) and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.run(), name="deliver")

    def _begin_apart(self) -> None:
        for each in self._apart.values():
            each.begin()

    def stop(self) -> None:
        """Cancel the tasks that `begin` has started."""
        for each in (self, *self._apart.values()):
            if each._task is not None:
                each._task.cancel()

    async def ended(self) -> None:
        """Wait until the task that `begin` has started, or another call of `run`, has ended."""
        if self._task is not None:
            await self._task
        async with self._delivering:
            pass

    async def run(self) -> None:
        """Deliver what is due, until it is not known who may read, or the store fails."""
        self._begin_apart()
        if not (self._old or self._due):
            return
        work = self._fanout.work
        async with self._delivering:
            if work is not None:
                await work.rest()
            while self._old or self._due:
                if not self._state.is_current():
                    # Other relays may delete some rows and then give rights, so all are read again.
                    self._keep_stored()
                    return
                due = self._old.popleft() if self._old else self._due.popleft()
                rights = self._rights
                try:
                    rows = await self._read(due) if isinstance(due, range) else due[1]
                except StoreFault as fault:
                    _log.error("stored events are not delivered yet: %s", fault)
                    assert isinstance(due, range)
                    self._old.appendleft(due)
                    return
                if self._rights != rights:  # some may have been deleted before others got rights
                    self._put_first(rows)
                    continue
                await self._deliver(self._left_of(rows))
                # Many small batches would be one turn of the loop.
                if work is None and (self._old or self._due):
                    await asyncio.sleep(0)

    def _put_first(self, rows: Sequence[Stored]) -> None:
        """Let these rows, which have come earlier than all that is due, be read again."""
        self._old.extendleft(reversed(_runs_of(rows)))

    async def _read(self, seqs: range) -> Sequence[Stored]:
        """The first of these rows; the others are due next. Raises StoreFault."""
        if not len(self._fanout):
            return ()
        at_once = _READ_AT_ONCE if self._fanout.work is None else _READ_APART
        rows = await self._store.since(seqs.start - 1, min(len(seqs), at_once))
        if rows and rows[-1].seq + 1 < seqs.stop:
            self._old.appendleft(range(rows[-1].seq + 1, seqs.stop))
        return [row for row in rows if row.seq in seqs]

    def _left_of(self, rows: Sequence[Stored]) -> Sequence[Stored]:
        """Those that have not expired since; many, or apart, may have waited. Of LONG_EXPIRED ones
        none is left."""
        now = self._clock()
        return [row for row in rows if row.expires_at is None or row.expires_at > now]

    async def _deliver(self, rows: Sequence[Stored]) -> None:
        began, rights, work = perf_counter(), self._rights, self._fanout.work or _UncountedWork()
        try:
            pieces = self._fanout.deliver(rows, await self._fanout.links_of(rows))
            done = 0
            while self._state.is_current() and self._state.rights == rights:
                work.begin()
                piece = next(pieces, None)
                is_over = work.end()
                if piece is None:
                    break
                frames, done = piece
                self._metrics.delivered(frames)
                if is_over or self._fanout.is_behind:
                    await work.rest()
                    # Else the outboxes of clients that read would overflow.
                    while self._fanout.is_behind:  # noqa: ASYNC110 -- the loop writes
                        await asyncio.sleep(0)
            else:  # it is not known who may read the rest, or other viewers may than before
                self._forget_passed_on()
                self._put_first(rows[done:])
        except Exception:  # outermost frame: the lane must go on  # noqa: BLE001
            _log.exception("%d stored events were not delivered live", len(rows))
        if self._fanout.work is None:
            self._metrics.write.deliver.add(perf_counter() - began)


def _runs_of(rows: Sequence[Stored]) -> list[range]:
    """The seqs of the stored rows among these, without those in between: of thousands of rows that
    are written in a second, a network may await few. What is only passed on is not delivered late,
    and left out."""
    runs: list[range] = []
    for row in rows:
        if row.seq and runs and runs[-1].stop == row.seq:
            runs[-1] = range(runs[-1].start, row.seq + 1)
        elif row.seq:
            runs.append(range(row.seq, row.seq + 1))
    return runs
