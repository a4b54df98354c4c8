"""Lane: queues with one consumer that takes what is queued in batches, from each queue in turn.

A queue has lines, which take turns in it: with one queue for each client and one line for each of
its connections, who opens more connections is not served more.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, count
from time import perf_counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

_FEW: Final = 4
"""A queue with up to so many items has few."""
_FEW_PART: Final = 16
"""Queues that have few items are served alone up to this fraction (1/16) of a batch."""
_MANY: Final = 64
"""A queue with more items has many."""


class _Queue(Generic[T]):
    """The items of one turn. Its lines take turns. Empty only before the first `put`."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: OrderedDict[object, deque[T]] = OrderedDict()
        """The first is next."""

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._lines.values())

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def has_few(self) -> bool:
        return len(self._lines) <= _FEW and len(self) <= _FEW

    @property
    def first(self) -> T:
        return next(iter(self._lines.values()))[0]

    def put(self, line: object, item: T) -> None:
        items = self._lines.get(line)
        if items is None:
            self._lines[line] = deque((item,))
        else:
            items.append(item)

    def put_back(self, line: object, items: Sequence[T]) -> None:
        """Put items at the head of the line, which is then next."""
        self._lines.setdefault(line, deque()).extendleft(reversed(items))
        self._lines.move_to_end(line, last=False)

    def take_line(self) -> tuple[object, deque[T]]:
        """The line that is next, with its items."""
        return self._lines.popitem(last=False)

    def take(self) -> T:
        line, items = next(iter(self._lines.items()))
        item = items.popleft()
        if not items:
            del self._lines[line]
        elif len(self._lines) > 1:
            self._lines.move_to_end(line)
        return item


class Lane(Generic[T]):
    """A serial, batching worker.

    Invariants: items of one line are committed in the order in which they were put; one commit runs
    at a time; a batch waits for no timer: it is what was queued while the previous one ran, until
    its cost reaches `max_batch`. An item that costs more than half of that is alone in its batch:
    others do not wait for its commit. A queue can be made to `rest`, and a line be held: the other
    lines of its queue go on. At most `max_waiting` items are queued; `put` refuses more. `commit`
    reports results itself and does not raise.

    The next item comes from the queue that will have cost least with it (fair queuing by finish
    times). A queue that was empty begins with the cost of the one served at that time, or with an
    even share of what the batch cost if that is more. So a cheap item at the head of its queue
    waits for no costly one that has not begun, and a costly one does not wait for ever for queues
    that are empty between two items. Where some queues have few items and come before one that has
    many, every second batch ends there: who sends little waits for less than all that a flood could
    fill a batch with.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[T]], Awaitable[None]],
        *,
        max_batch: int,
        max_waiting: int,
        turn_of: Callable[[T], object] = lambda _: None,
        line_of: Callable[[T], object] = lambda _: None,
        cost_of: Callable[[T], int] = lambda _: 1,
        charge_of: Callable[[T, int], int] = lambda _, cost: cost,
        share_of: Callable[[T], tuple[object, object]] = lambda _: (None, None),
        is_held: Callable[[T], bool] = lambda _: False,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`turn_of`: the key of the item's queue; `line_of`: of its line there. `cost_of`: at least
        1, called when the item is next in its queue. `charge_of`: what of this cost its queue is
        charged for, at least 1. `share_of`: a pair; each first value has an equal share of the
        lane, each pair an equal share of that of its first value, and each queue one of that of its
        pair; called with the first item of a queue that was empty. `is_held`: whether an item that
        is next in its queue, and what is behind it in its line, waits until `release`. `waited`
        gets the seconds that one item of a batch was queued."""
        self._commit = commit
        self._turn_of = turn_of
        self._line_of = line_of
        self._cost_of = cost_of
        self._charge_of = charge_of
        self._share_of = share_of
        self._is_held = is_held
        self._waited = waited
        self._timed: T | None = None
        """The item whose wait is measured, and since when."""
        self._timed_at = 0.0
        self.max_batch = max_batch
        self._max_waiting = max_waiting
        self._queues: dict[object, _Queue[T]] = {}
        """Turn → its queue, which is not empty."""
        self._costs: dict[object, int] = {}
        """Turn → cost of the first item of its queue."""
        self._charges: dict[object, int] = {}
        """Turn → what of it the queue is charged for."""
        self._weighted: dict[object, float] = {}
        """The same, times how many times smaller the share of the queue is than an even one."""
        self._shares: dict[object, tuple[object, object]] = {}
        """Turn → see `share_of`."""
        self._queues_of: Counter[tuple[object, object]] = Counter()
        """Pair of `share_of` → number of its queues."""
        self._parts_of: Counter[object] = Counter()
        """First value of `share_of` → number of pairs with it."""
        self._turns: list[tuple[float, int, object]] = []
        """A heap: (charge so far and of the first item, number, turn), one for each queue that does
        not rest; -1 as charge for one that is next."""
        self._resting: dict[object, tuple[asyncio.TimerHandle, float | None]] = {}
        """Turn → the end of its rest, and what its queue has cost so far; None: it is in `_turns`,
        or empty."""
        self._held: dict[tuple[object, object], deque[T]] = {}
        """(turn, line) → its items, which are in no queue."""
        self._numbers = count()
        self._weighed = 1
        """Number of queues when `_weigh_all` was called last."""
        self._ended_early = False
        """Whether the last batch ended before a queue that has many items."""
        self._reached: float = 0
        """The cost with which a queue that was empty begins: that of the queue that had cost most
        when it was served, or an even share of all that was served."""
        self._size = 0
        self._left: list[T] | None = None
        """What was put back since `drop`; None: it was not called."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._is_committing = False
        self.is_ending = False
        """Nothing rests or is held any more."""

    def put(self, item: T) -> bool:
        """False when the lane is full or closing: the item is not queued."""
        if self._closing or self._size >= self._max_waiting:
            return False
        if self._timed is None:
            self._timed, self._timed_at = item, perf_counter()
        self._size += 1
        turn, line = self._turn_of(item), self._line_of(item)
        held = self._held.get((turn, line)) if self._held else None
        if held is not None:
            held.append(item)
            return True
        queue = self._queues.get(turn)
        if queue is not None:
            queue.put(line, item)
            return True
        queue = self._new_queue(turn, item)
        queue.put(line, item)
        self._push(turn, self._reached)
        self._wake.set()  # it may be set already: `run` has not seen yet that a rest has ended
        self._idle.clear()
        return True

    def put_back(self, items: Sequence[T], cost: int = 0) -> None:
        """Queue again, at the head of their queues, the last items of the batch that is being
        committed. `cost`: of the part of the first one that is done; its queue then comes after
        others. After `drop` they are not queued.
        """
        if self._left is not None:
            self._left += items
            return
        turns: dict[object, dict[object, list[T]]] = {}
        for item in items:
            lines = turns.setdefault(self._turn_of(item), {})
            lines.setdefault(self._line_of(item), []).append(item)
        for turn, lines in turns.items():
            for line, own in lines.items():
                own += self._held.pop((turn, line), ())
            self._put_first(turn, lines, cost)
            cost = 0
        self._size += len(items)

    def _put_first(self, turn: object, lines: dict[object, list[T]], cost: int = 0) -> None:
        queue = self._queues.get(turn)
        is_new = queue is None
        if queue is None:
            queue = self._new_queue(turn, next(iter(lines.values()))[0])
        for line, own in reversed(lines.items()):
            queue.put_back(line, own)
        if is_new:
            self._push(turn, self._reached + cost)
        else:
            self._costs[turn] = self._cost_of(queue.first)

    def _new_queue(self, turn: object, item: T) -> _Queue[T]:
        queue = self._queues[turn] = _Queue()
        share = self._shares[turn] = self._share_of(item)
        self._queues_of[share] += 1
        if self._queues_of[share] == 1:
            self._parts_of[share[0]] += 1
        return queue

    def _remove_queue(self, turn: object) -> None:
        del self._queues[turn], self._costs[turn], self._charges[turn], self._weighted[turn]
        share = self._shares.pop(turn)
        self._queues_of[share] -= 1
        if not self._queues_of[share]:
            del self._queues_of[share]
            self._parts_of[share[0]] -= 1
            if not self._parts_of[share[0]]:
                del self._parts_of[share[0]]

    def _weigh(self, turn: object, cost: int) -> float:
        """Note the cost of the queue's first item; returns what it is charged for, weighted."""
        share = self._shares[turn]
        parts = len(self._parts_of) * self._parts_of[share[0]] * self._queues_of[share]
        self._costs[turn] = cost
        charge = self._charges[turn] = self._charge_of(self._queues[turn].first, cost)
        weighted = self._weighted[turn] = charge * parts / len(self._queues)
        return weighted

    def release(self, item: T) -> None:
        """The line of the item is held no longer, and is next in its queue."""
        turn, line = self._turn_of(item), self._line_of(item)
        items = self._held.pop((turn, line), None)
        if items is not None:
            self._put_first(turn, {line: [*items]})
            self._wake.set()
        elif turn in self._queues:  # it was put back, and may cost more now
            self._costs[turn] = self._cost_of(self._queues[turn].first)

    def _weigh_all(self) -> None:
        """Weigh anew what is left to wait for: an item weighed beside few queues would wait for
        thousands of newer ones. What it has waited gives no credit: when thousands came, all costly
        ones would go before them, and before cheap ones of others."""
        self._weighed = len(self._queues)
        for place, (used, number, turn) in enumerate(self._turns):
            if used >= 0:
                before, left = self._weighted[turn], used - self._reached
                now = self._weigh(turn, self._costs[turn])
                if left > 0:
                    used = self._reached + left * now / before
                self._turns[place] = used, number, turn
        heapify(self._turns)

    def _push(self, turn: object, used: float) -> None:
        cost = self._weigh(turn, self._cost_of(self._queues[turn].first))
        heappush(self._turns, (used + cost, next(self._numbers), turn))

    def rest(self, turn: object, seconds: float) -> None:
        """The items of this queue, later ones too, wait so long."""
        if self.is_ending or turn in self._resting:
            return
        end = asyncio.get_running_loop().call_later(seconds, self._end_rest, turn)
        self._resting[turn] = end, None

    def _end_rest(self, turn: object) -> None:
        end, used = self._resting.pop(turn)
        end.cancel()
        if used is not None:
            self._push(turn, max(used, self._reached))
        self._wake.set()

    def hurry(self) -> None:
        """Nothing rests or is held from now on."""
        self.is_ending = True
        for turn in [*self._resting]:
            self._end_rest(turn)
        for items in [*self._held.values()]:
            self.release(items[0])

    @property
    def is_busy(self) -> bool:
        """Whether something is being committed, or could be: it neither rests nor is held."""
        return self._is_committing or bool(self._turns)

    def __len__(self) -> int:
        return self._size

    async def run(self) -> None:
        """Commit batches until `close`; items put before it are still committed."""
        while True:
            if not self._turns:
                self._wake.clear()
                if not self._size:
                    self._idle.set()
                    if self._closing:
                        return
                await self._wake.wait()
            elif batch := self._batch():
                self._is_committing = True
                await self._commit(batch)
                self._is_committing = False

    def _batch(self) -> list[T]:
        """The next batch; empty if all that is next rests or is held."""
        turns, queues, costs, timed = self._turns, self._queues, self._costs, self._timed
        weighted = self._weighted
        if not self._weighed < 2 * len(queues) < 4 * self._weighed:
            self._weigh_all()
        resting = self._resting
        batch: list[T] = []
        left, half = self.max_batch, self.max_batch // 2
        served, queued, began = 0, max(1, len(queues)), self._reached
        may_end_over = left if self._ended_early else left - left // _FEW_PART
        has_few = self._ended_early = False
        while turns and left > 0:
            used, _, turn = turns[0]
            queue, cost = queues[turn], costs[turn]
            if resting:
                rest = resting.get(turn)
                if rest is not None:
                    resting[turn] = rest[0], self._reached if used < 0 else used - weighted[turn]
                    heappop(turns)
                    continue
            if not self.is_ending and self._is_held(queue.first):
                line, items = queue.take_line()
                self._held[turn, line] = items
                if any(item is self._timed for item in items):
                    self._timed = None
                if queue:
                    used = self._reached if used < 0 else used - weighted[turn]
                    used += self._weigh(turn, self._cost_of(queue.first))
                    heapreplace(turns, (used, next(self._numbers), turn))
                else:
                    heappop(turns)
                    self._remove_queue(turn)
                continue
            if batch and cost > half:  # or cheap items that are queued meanwhile would come before
                heapreplace(turns, (-1, next(self._numbers), turn))
                break
            if left > may_end_over:
                if queue.has_few:
                    has_few = True
                elif has_few and len(queue) > _MANY:
                    self._ended_early = True
                    break
            used = self._reached if used < 0 else used - weighted[turn]
            while True:
                self._reached = max(self._reached, used, began + served / queued)
                item = queue.take()
                batch.append(item)
                if item is timed:
                    self._waited(perf_counter() - self._timed_at)
                    self._timed = None
                left = 0 if cost > half else left - cost
                used += weighted[turn]
                served += self._charges[turn]
                if not queue:
                    break
                cost = self._cost_of(queue.first)
                self._weigh(turn, cost)
                # A single queue needs no heap.
                if len(turns) > 1 or left <= 0 or cost > half or self._is_held(queue.first):
                    break
            if queue:
                heapreplace(turns, (used + weighted[turn], next(self._numbers), turn))
            else:
                heappop(turns)
                self._remove_queue(turn)
        if len(batch) == 1:  # else who always sends one would come before what costs more
            self._reached = max(self._reached, began + served / queued)
        self._size -= len(batch)
        return batch

    def drop(self) -> list[T]:
        """Take out all that is queued: it is not committed. What is put back later is not queued,
        but taken out by the next call."""
        waiting: list[Iterable[T]] = [*self._queues.values(), *self._held.values()]
        items = [*chain.from_iterable(waiting), *(self._left or ())]
        self._left = []
        self._queues.clear()
        self._held.clear()
        for of_turns in (self._costs, self._charges, self._weighted, self._shares):
            of_turns.clear()
        self._queues_of.clear()
        self._parts_of.clear()
        self._turns.clear()
        self._resting = {turn: (end, None) for turn, (end, _) in self._resting.items()}
        self._size = 0
        return items

    async def drained(self) -> None:
        """Wait until the queue is empty. Nothing rests or is held from now on."""
        self.hurry()
        await self._idle.wait()

    def close(self) -> None:
        """Refuse further items; nothing rests or is held from now on. `run` returns when the queue
        is empty."""
        self._closing = True
        self.hurry()
        self._idle.clear()
        self._wake.set()
