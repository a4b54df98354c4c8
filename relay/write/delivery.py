"""Delivery: committed rows to live subscriptions, in the order of their commits.

Invariants: nothing is delivered while it is not known who may read (`RelayState.is_current`), and
an event that is only passed on reaches those alone who could read it when it came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import chain, groupby
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from relay.errors import StoreFault
from relay.nostr.event import indexed
from relay.write.costs import FilterNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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

_MOST_BYTES: Final = 1 << 20
"""Bytes of stored events that wait for the delivery to one network apart; parsed they take up to
twenty times as much memory. And bytes of events that are only passed on, to anybody, after which
one is not delivered there any more."""
_MOST_DUE: Final = 1024
"""Batches, or runs of rows, that wait for that delivery, beside events that are only passed on;
with more, all rows between two of these are read as one run."""

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
    waits for turns. Of what is due to a set apart at most `_MOST_BYTES` are kept in memory: beyond
    that stored rows are read again. Events that are only passed on are dropped when as many bytes
    of such events have followed, for whomever they are: if it were those that the set awaits, who
    lacks an event of its own would learn that there was one that it may not read.
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
        self._due: deque[list[Stored] | range] = deque()
        """In order. A range: seqs of rows that are read when their turn comes, see `_keep_stored`
        and `add_others`."""
        self._passed_on: deque[tuple[int, list[Stored]]] = deque()
        """Apart: the lists in `_due` of events that are only passed on, and `_passed_on_bytes` when
        they came."""
        self._passed_on_bytes = 0
        """Of all such events so far, whether due here or not."""
        self._rights = state.rights
        """`RelayState.rights` when `_due` was last checked against them."""
        self._bytes = 0
        """Of the stored rows in `_due`, as far as they were counted."""
        self._subscribers_apart = apart
        self._apart: dict[Subscribers[Any], Delivery] = {}
        self._delivering = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Batches of rows that are due or being delivered."""
        return len(self._due) + self._delivering.locked()

    def add(self, rows: Sequence[Stored]) -> None:
        """Rows of a commit whose state is in force."""
        self._forget_passed_on()
        self._append(rows)
        apart = self.deliveries_apart()
        if apart:
            self._note_passed_on(rows)
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

    def _note_passed_on(self, rows: Sequence[Stored]) -> None:
        """Count these, which came to the relay, for all sets apart, and drop older ones there."""
        self._passed_on_bytes += sum([len(row.event.raw) for row in rows if not row.seq])
        for each in self._apart.values():
            each._passed_on_bytes = self._passed_on_bytes
            waiting = each._passed_on
            while waiting and each._passed_on_bytes - waiting[0][0] > _MOST_BYTES:
                waiting.popleft()[1].clear()

    def _append(self, due: Sequence[Stored] | range) -> None:
        """If too much is due, keep less of it in memory."""
        if not due:
            return
        is_apart = self._fanout.work is not None
        if isinstance(due, range):
            self._due.append(due)
        elif not is_apart:
            self._due.append([*due])
        else:
            for is_stored, each in groupby(due, lambda row: row.seq > 0):
                rows = [*each]
                self._due.append(rows)
                if not is_stored:
                    self._passed_on.append((self._passed_on_bytes, rows))
            self._bytes += _bytes_of(due)
        if is_apart and (self._bytes > _MOST_BYTES or self._has_many_due):
            self._keep_stored()

    @property
    def _has_many_due(self) -> bool:
        return len(self._due) > _MOST_DUE + 2 * len(self._passed_on)

    def add_others(self, seqs: range, passed_on: Mapping[int, Sequence[Stored]]) -> None:
        """Rows that other relays wrote, whose state is in force. `passed_on`: events that are not
        stored, by the seq after which they are delivered, ascending."""
        self._forget_passed_on()
        apart = self.deliveries_apart()
        if apart:
            self._note_passed_on([*chain.from_iterable(passed_on.values())])
        for each in apart:
            each.add_others(seqs, passed_on)
        start = seqs.start
        for seq, rows in passed_on.items():
            self._append(range(start, seq + 1))
            self._append(rows)
            start = seq + 1
        if start < seqs.stop:
            self._append(range(start, seqs.stop))

    def _forget_passed_on(self) -> None:
        """If rights have changed, drop events that are only passed on: viewers might get them who
        could not read them when they came. Stored rows are read again: some may have been deleted
        before the rights changed."""
        if self._rights != self._state.rights:
            self._rights = self._state.rights
            self._drop_passed_on()

    def _drop_passed_on(self) -> None:
        """Of what is due keep only the seqs of stored rows, which are then read again."""
        while self._passed_on:
            self._passed_on.pop()[1].clear()
        self._keep_stored()

    def _keep_stored(self) -> None:
        """Of the stored rows that are due keep only the seqs."""
        due = self._due
        left: list[list[Stored] | range] = []
        # What was kept before is ranges already, and there may be many: rights change at any time.
        number = next((n for n, each in enumerate(due) if not isinstance(each, range)), len(due))
        while len(due) > number:
            left.append(due.pop())
        is_apart = self._fanout.work is not None
        for each in reversed(left):
            if is_apart and not isinstance(each, range) and each and not each[0].seq:
                due.append(each)
                continue
            for run in _runs_of(each):
                last = due[-1] if due else None
                if isinstance(last, range) and last.stop == run.start:
                    due[-1] = range(last.start, run.stop)
                else:
                    due.append(run)
        if is_apart and self._has_many_due:  # it has waited for long
            self._due = deque()
            for each in due:
                last = self._due[-1] if self._due else None
                if isinstance(last, range) and isinstance(each, range):
                    self._due[-1] = range(last.start, each.stop)
                else:
                    self._due.append(each)
        self._bytes = 0

    def begin(self) -> None:
        """Deliver what is due, in tasks of their own."""
        self._begin_apart()
        if self._due and (self._task is None or self._task.done()):
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
        if not self._due:
            return
        work = self._fanout.work
        async with self._delivering:
            if work is not None:
                await work.rest()
            while self._due:
                if not self._state.is_current():
                    # Other relays may delete some rows and then give rights, so all are read again.
                    self._drop_passed_on()
                    return
                due, rights = self._due.popleft(), self._rights
                self._bytes -= min(self._bytes, _bytes_of(due))
                if self._passed_on and self._passed_on[0][1] is due:
                    self._passed_on.popleft()
                try:
                    rows = await self._read(due) if isinstance(due, range) else self._left_of(due)
                except StoreFault as fault:
                    _log.error("stored events are not delivered yet: %s", fault)
                    self._due.appendleft(due)
                    return
                if self._rights != rights:  # some may have been deleted before others got rights
                    self._due.extendleft(reversed(_runs_of(rows)))
                    continue
                await self._deliver(rows)
                if self._due and work is None:  # many small batches would be one turn of the loop
                    await asyncio.sleep(0)

    async def _read(self, seqs: range) -> Sequence[Stored]:
        """The first of these rows; the others are due next. Raises StoreFault."""
        if not len(self._fanout):
            return ()
        at_once = _READ_AT_ONCE if self._fanout.work is None else _READ_APART
        rows = await self._store.since(seqs.start - 1, min(len(seqs), at_once))
        if rows and rows[-1].seq + 1 < seqs.stop:
            self._due.appendleft(range(rows[-1].seq + 1, seqs.stop))
        return self._left_of([row for row in rows if row.seq in seqs])

    def _left_of(self, rows: Sequence[Stored]) -> Sequence[Stored]:
        """Those that have not expired since; many, or apart, may have waited. Of LONG_EXPIRED ones
        none is left."""
        now = self._clock()
        return [row for row in rows if row.expires_at is None or row.expires_at > now]

    async def _still_stored(self, rows: Sequence[Stored]) -> list[Stored]:
        """These rows as they are now, without those that were deleted. Raises StoreFault."""
        stored: dict[int, Stored] = {}
        after, last = rows[0].seq - 1, rows[-1].seq
        while after < last:
            found = await self._store.since(after, _READ_AT_ONCE)
            stored.update((row.seq, row) for row in self._left_of(found))
            after = found[-1].seq if found else last
        return [stored[row.seq] for row in rows if row.seq in stored]

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
                rest = [row for row in rows[done:] if row.seq]
                while rest and self._state.rights != rights:
                    self._forget_passed_on()
                    rights = self._rights
                    try:
                        rest = await self._still_stored(rest)
                    except StoreFault:  # `run` reads them, now or later
                        self._due.extendleft(reversed(_runs_of(rest)))
                        rest = []
                if rest:
                    self._due.appendleft(rest)
        except Exception:  # outermost frame: the lane must go on  # noqa: BLE001
            _log.exception("%d stored events were not delivered live", len(rows))
        if self._fanout.work is None:
            self._metrics.write.deliver.add(perf_counter() - began)


def _bytes_of(due: range | Sequence[Stored]) -> int:
    """Of the stored events; of a range none are in memory."""
    return 0 if isinstance(due, range) else sum([len(row.event.raw) for row in due if row.seq])


def _runs_of(due: range | Sequence[Stored]) -> list[range]:
    """The seqs of the stored rows among these, without those in between: of thousands of rows that
    are written in a second, a network may await few. What is only passed on is not delivered late,
    and left out."""
    if isinstance(due, range):
        return [due] if due else []
    runs: list[range] = []
    for row in due:
        if row.seq and runs and runs[-1].stop == row.seq:
            runs[-1] = range(runs[-1].start, row.seq + 1)
        elif row.seq:
            runs.append(range(row.seq, row.seq + 1))
    return runs
