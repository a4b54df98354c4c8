"""The queries of one connection: which subscriptions are open, and which REQs and COUNTs wait.

How each is answered is in `relay.read.query`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Refused
from relay.nostr import messages
from relay.nostr.filters import text_bytes
from relay.observe import REQUEST
from relay.read.pace import Pace
from relay.read.query import INTERNAL
from relay.read.scan import LONG_S, values_in, work_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from relay.nostr.filters import Filter
    from relay.read.fanout import Subscription
    from relay.read.peer import Peer
    from relay.read.query import QueryRunner

_log = logging.getLogger(__name__)

_MOST_BACKLOGS: Final = 8
"""REQs that wait and get live rows behind their stored ones. A later one is opened when its turn
comes, so that no event waits for it in the meantime: its stored rows have what was committed."""
_MOST_BEHIND: Final = 20_000
"""Live rows that wait while a client reads slowly."""
_PIECES: Final = 10
"""Pieces of that backlog, up to 100 rows each, that are sent between two other queries."""
_MAX_COUNTS: Final = 16
"""Queued COUNTs per connection."""
_MAX_COUNT_TAGS: Final = 256
"""Tag names in all filters of a COUNT: one statement has all filters, and making its text takes the
loop 35 us for each name without a pause."""
_TOO_MANY_TAGS: Final = Refused(
    Prefix.INVALID, f"a COUNT may have at most {_MAX_COUNT_TAGS} tag names in its filters"
)
_MANY_KEYS: Final = Refused(
    Prefix.RATE_LIMITED, "very many keys have logged in since it was opened, subscribe again"
)
_MAX_BYTES: Final = 8 << 20
"""Bytes of the filters in queued COUNTs."""
_VALUE_BYTES: Final = 200
"""Bytes that a filter value takes at most, beside the texts of tags."""
_GROUPS_BYTES: Final = 64 << 10
"""A COUNT that waits keeps the groups of its time: as much as differs for one large group."""
_FILTER_BYTES: Final = 512


class QueryQueue:
    """Queued queries of one connection, REQs before COUNTs; one is answered at a time.

    Bounded by `max_subscriptions`, `_MAX_COUNTS` and `_MAX_BYTES`. A REQ that is closed or replaced
    leaves the queue.
    """

    def __init__(self, queries: QueryRunner, peer: Peer) -> None:
        self._queries = queries
        self._peer = peer
        self._open: list[Subscription] = []
        """At most `max_subscriptions`. Not a dict: see `Session`."""
        self._ended: list[Subscription] | tuple[()] = ()
        """Closed subscriptions that are still to be removed from the index."""
        self._catching_up: dict[str, tuple[Subscription, float, str]] = {}
        """Subscription id → the subscription, when it was queued, and the id of its request."""
        self._behind: list[Subscription] = []
        """Subscriptions whose live rows wait because the client reads slowly."""
        self._counts: list[tuple[str, tuple[Filter, ...], str]] = []
        """At most `_MAX_COUNTS`; an empty deque would take 760 bytes of each connection."""
        self.held_bytes = 0
        """Estimated bytes of the filters in COUNTs that are queued or being answered."""
        self._task: asyncio.Task[None] | None = None
        self._answered: Subscription | None = None

    def subscribe(self, sub: str, filters: tuple[Filter, ...]) -> None:
        is_late = len(self._catching_up) >= _MOST_BACKLOGS
        subscription = self._queries.start(self._peer, sub, filters, is_late=is_late)
        if subscription is None:
            self._peer.closed_by_relay(sub)
            return
        self._open.append(subscription)
        subscription.follower = self
        if subscription.backlog is not None or not subscription.is_indexed:
            self._catching_up[sub] = subscription, perf_counter(), self._peer.request_id()
            self._start()

    def __len__(self) -> int:
        """REQs and COUNTs that wait."""
        return len(self._catching_up) + len(self._counts)

    def fell_behind(self, subscription: Subscription) -> None:
        """As in `Follower`."""
        subscription.begin_backlog(_MOST_BEHIND)
        self._behind.append(subscription)
        self._start()

    def count(self, sub: str, filters: tuple[Filter, ...]) -> None:
        size = _bytes_of(filters)
        if sum([len(filter_.tags) for filter_ in filters]) > _MAX_COUNT_TAGS:
            self._peer.outbox.put(messages.closed(sub, _TOO_MANY_TAGS))
            return
        if len(self._counts) >= _MAX_COUNTS:
            over = f"at most {_MAX_COUNTS} COUNTs may be queued"
        elif self.held_bytes + size > _MAX_BYTES:
            over = f"at most {_MAX_BYTES} bytes of filters in queued COUNTs"
        elif not self._queries.has_room_for(size, self._peer):
            over = "too many costly COUNTs are queued on this relay, try again later"
        else:
            over = ""
        if over:
            self._peer.outbox.put(messages.closed(sub, Refused(Prefix.RATE_LIMITED, over)))
            return
        self._hold(size)
        self._counts.append((sub, filters, self._peer.request_id()))
        self._start()

    def cancel(self, sub: str) -> None:
        """CLOSE, or a REQ with the same id: nothing more is sent for the old one."""
        for subscription in self._open:
            if subscription.sub == sub:
                self._withdraw(subscription)
                self._queries.stop(subscription)
                return

    def logged_in(self) -> None:
        """A key has logged in: subscriptions that count for too much then are closed."""
        for subscription in [*self._open]:
            if not self._queries.may_stay(subscription):
                self._peer.outbox.put(messages.closed(subscription.sub, _MANY_KEYS))
                self._withdraw(subscription)
                self._peer.closed_by_relay(subscription.sub)
                self._queries.stop(subscription)

    def _withdraw(self, subscription: Subscription) -> None:
        """The subscription is not open any more, and its answer ends."""
        self._open.remove(subscription)
        self._catching_up.pop(subscription.sub, None)
        if subscription in self._behind:
            self._behind.remove(subscription)
        if subscription is self._answered and not self._peer.is_reading:
            self._break_off()

    def _break_off(self) -> None:
        """End an answer that would keep its filters until the client reads."""
        before, self._task = self._task, None
        if before is not None:
            before.cancel()
            self._task = asyncio.create_task(self._run(before), name="queries")

    def end_all(self) -> None:
        """Nothing more is sent for any REQ. Others have turns while they leave the index."""
        if self._open:
            self._end_open()
            self._start()

    def _end_open(self) -> None:
        self._catching_up.clear()
        self._behind.clear()
        for subscription in self._open:
            self._queries.end(subscription)
        self._ended = [*self._ended, *self._open]
        self._open.clear()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="queries")

    async def _run(self, before: asyncio.Task[None] | None = None) -> None:
        """`before`: a cancelled task. The client must first read what that task has sent."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
            del before
            await self._peer.drained()
        while self._ended or self._behind or self._catching_up or self._counts:
            if self._ended:
                await self._leave_index()
            if self._behind:
                await self._next_behind()
            if self._catching_up:
                await self._next_req()
            elif self._counts:
                await self._next_count()

    async def _next_behind(self) -> None:
        subscription = self._behind.pop(0)
        self._answered = subscription
        try:
            await self._peer.drained()
            await self._peer.turn(0.0)  # a thousand of a network may have waited for each other
            self._peer.outbox.is_behind = False
            if not self._is_open(subscription):
                return
            answer = self._queries.send_backlog(self._peer, subscription, _PIECES)
            if not await self._answer(answer, subscription):
                self._close(subscription)
            elif subscription.backlog is not None:
                self._behind.append(subscription)
        finally:
            self._answered = None

    async def _next_req(self) -> None:
        subscription, since, request = self._catching_up.pop(next(iter(self._catching_up)))
        self._answered = subscription
        try:
            REQUEST.set(partial(str, request))
            await self._turn(subscription.filters)
            self._queries.waited(perf_counter() - since)
            # It may have been closed while it waited for its turn.
            if self._is_open(subscription):
                if subscription.backlog is None:
                    self._queries.open(subscription)
                answer = self._queries.catch_up(subscription, self._peer, self._is_open)
                if not await self._answer(answer, subscription):
                    self._close(subscription)
        finally:
            self._answered = None

    async def _next_count(self) -> None:
        sub, filters, request = self._counts.pop(0)
        REQUEST.set(partial(str, request))
        await self._peer.turn(0.0)  # its work is counted when it is done
        pace = Pace(self._peer)
        self._peer.hold(_GROUPS_BYTES)
        try:
            await pace.through(self._count(sub, filters))
        finally:
            self._peer.hold(-_GROUPS_BYTES)
        pace.stop()
        self._hold(-_bytes_of(filters))

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self._queries.counted_bytes.add(self._peer.counted_as, size)

    async def _turn(self, filters: Sequence[Filter]) -> None:
        seconds = work_of(filters)
        if seconds > LONG_S:
            await self._peer.turn(seconds)
        elif not self._peer.has_time:
            await self._peer.turn(0.0)  # its work is counted when it is done

    async def _answer(self, answer: Awaitable[bool], subscription: Subscription) -> bool:
        """False: CLOSED was sent."""
        try:
            return await answer
        except Exception:  # last frame of the task: the queue must go on  # noqa: BLE001
            _log.exception("a query failed")
            if self._is_open(subscription):
                self._peer.outbox.put(messages.closed(subscription.sub, INTERNAL))
            return False

    async def _count(self, sub: str, filters: tuple[Filter, ...]) -> None:
        try:
            await self._queries.count(self._peer, sub, filters)
        except Exception:  # as above  # noqa: BLE001
            _log.exception("a COUNT failed")
            self._peer.outbox.put(messages.closed(sub, INTERNAL))

    def _is_open(self, subscription: Subscription) -> bool:
        return subscription in self._open

    def _close(self, subscription: Subscription) -> None:
        if self._is_open(subscription):
            self._open.remove(subscription)
            self._peer.closed_by_relay(subscription.sub)
        self._queries.stop(subscription)

    async def aclose(self) -> None:
        """The connection is closed. Others have turns between its subscriptions."""
        self._end_open()
        self._counts.clear()
        # Not kept: the exception of the task holds its frames, and these hold rows and this object.
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self._leave_index()
        finally:
            for subscription in self._ended:
                self._queries.stop(subscription)
            self._ended = ()
            self._hold(-self.held_bytes)

    async def _leave_index(self) -> None:
        is_over = False
        while self._ended:
            # Before the first too: hundreds of connections may be closed at the same time.
            if is_over or not self._peer.has_time:
                await self._peer.turn(0.0)
            began = perf_counter()
            self._queries.stop(self._ended.pop())
            is_over = self._peer.worked(perf_counter() - began)
        self._ended = ()


def _bytes_of(filters: Sequence[Filter]) -> int:
    values, texts = values_in(filters), text_bytes(filters)
    return len(filters) * _FILTER_BYTES + values * _VALUE_BYTES + texts
