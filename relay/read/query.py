"""The road of REQ and COUNT: gate, cursor, stored rows in pages, EOSE, then what came meanwhile.

A query that one short read answers is answered on the spot. Any other waits its turn in the
`QueryQueue`
of its connection, one at a time, page by page, as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from relay.errors import Prefix, Refused, StoreFault
from relay.nostr import messages, nip45
from relay.read.fanout import Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.observe import Metrics
    from relay.read.fanout import Fanout, Reader
    from relay.read.outbox import Outbox
    from relay.state import RelayState
    from relay.storage import Place, Store

_log = logging.getLogger(__name__)

_PAGE: Final = 500
"""Rows of a page."""
_MAX_WAITING: Final = 4096
"""Live rows that may wait while one subscription catches up."""
_MAX_COUNTS: Final = 16
"""COUNTs of one connection that may wait for their turn."""
_MAX_AUTHORS: Final = 20_000
"""Of a count that gets registers; each takes 0.15 us on the loop."""
_STORE_DOWN: Final = Refused(Prefix.ERROR, "the store cannot answer now, try again later")
_OUR_FAULT: Final = Refused(Prefix.ERROR, "this query met a fault of ours")
_TOO_SLOW: Final = Refused(Prefix.ERROR, "more came meanwhile than can wait; ask again")
_BEHIND: Final = "the search index is behind, try again in a moment"
_MAX_CHANGES: Final = 16
"""Pages of one answer that may be read again because somebody's rights changed meanwhile."""
_RIGHTS_CHANGE: Final = "who may read what changed faster than pages could be read"
_MERGED_BYTES: Final = 1 << 20


class QueryLimits(Protocol):
    @property
    def max_limit(self) -> int: ...
    @property
    def default_limit(self) -> int: ...


class SearchIndex(Protocol):
    """What follows the log for searches."""

    async def reached(self, seq: int) -> bool:
        """Wait until rows up to `seq` can be found; False: that takes too long."""


class Client(Protocol):
    """The connection that asked."""

    @property
    def reader(self) -> Reader: ...
    @property
    def outbox(self) -> Outbox: ...

    @property
    def is_reading(self) -> bool:
        """Whether it takes what it is sent without a queue."""

    async def drained(self) -> None:
        """Until the client has read most of what was sent."""

    def closed_by_relay(self, sub: str) -> None:
        """The relay ends a subscription: forget that it is open."""


class QueryQueue:
    """Queries of one connection that wait for their turn, REQs before COUNTs.

    Bounded: as many REQs as may be open, `_MAX_COUNTS` COUNTs. A REQ that is closed or replaced
    leaves the queue.
    """

    def __init__(self, queries: QueryRunner, client: Client) -> None:
        self._queries = queries
        self._client = client
        self._open: dict[str, Subscription] = {}
        self._behind: dict[str, Subscription] = {}
        self._counts: deque[tuple[str, tuple[Filter, ...]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, sub: str, filters: tuple[Filter, ...]) -> None:
        """Answer a REQ and leave it open."""
        subscription = self._queries.start(self._client, sub, filters)
        if subscription is None:
            self._client.closed_by_relay(sub)
            return
        self._open[sub] = subscription
        if subscription.waiting is not None:
            self._behind[sub] = subscription
            self._start()

    def count(self, sub: str, filters: tuple[Filter, ...]) -> None:
        if len(self._counts) >= _MAX_COUNTS:
            busy = Refused(Prefix.RATE_LIMITED, f"at most {_MAX_COUNTS} counts may wait")
            self._client.outbox.put(messages.closed(sub, busy))
            return
        self._counts.append((sub, filters))
        self._start()

    def drop(self, sub: str) -> None:
        """CLOSE, or a REQ that replaces: nothing of the old one follows."""
        subscription = self._open.pop(sub, None)
        self._behind.pop(sub, None)
        if subscription is not None:
            self._queries.stop(subscription)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="scans")

    async def _run(self) -> None:
        while self._behind or self._counts:
            if self._behind:
                work = self._behind.pop(next(iter(self._behind)))
                if not await self._caught_up(work):
                    self._close(work)
            else:
                sub, filters = self._counts.popleft()
                await self._count(sub, filters)

    async def _caught_up(self, work: Subscription) -> bool:
        try:
            return await self._queries.catch_up(work, self._client, self._is_open)
        except Exception:  # the last frame of this task: the others wait behind it  # noqa: BLE001
            _log.exception("a query was not answered")
            self._client.outbox.put(messages.closed(work.sub, _OUR_FAULT))
            return False

    async def _count(self, sub: str, filters: tuple[Filter, ...]) -> None:
        try:
            await self._queries.count(self._client, sub, filters)
        except Exception:  # as above  # noqa: BLE001
            _log.exception("a count was not answered")
            self._client.outbox.put(messages.closed(sub, _OUR_FAULT))

    def _is_open(self, subscription: Subscription) -> bool:
        return self._open.get(subscription.sub) is subscription

    def _close(self, subscription: Subscription) -> None:
        if self._is_open(subscription):
            del self._open[subscription.sub]
            self._client.closed_by_relay(subscription.sub)
        self._queries.stop(subscription)

    async def aclose(self) -> None:
        """The connection is gone."""
        for subscription in self._open.values():
            self._queries.stop(subscription)
        self._open.clear()
        self._behind.clear()
        self._counts.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class QueryRunner:
    """What all connections share on this road."""

    def __init__(
        self,
        store: Store,
        state: RelayState,
        fanout: Fanout,
        limits: QueryLimits,
        *,
        clock: Callable[[], int],
        metrics: Metrics,
        index: SearchIndex | None = None,
    ) -> None:
        """`index`: None where search is not offered."""
        self._store = store
        self._state = state
        self._fanout = fanout
        self._index = index
        self._limits = limits
        self._clock = clock
        self._metrics = metrics

    @property
    def open_subscriptions(self) -> int:
        return len(self._fanout)

    def start(self, client: Client, sub: str, filters: tuple[Filter, ...]) -> Subscription | None:
        """Open a subscription, answered already when that was quick (`waiting` is None then).

        None: refused, and told so.
        """
        visibility = self._state.visibility(client.reader.viewer)
        objected = visibility.gate(filters)
        if objected is not None:
            client.outbox.put(messages.closed(sub, objected.refused()))
            return None
        # Cursor and registration before the first row is read: what commits from here on is live.
        subscription = Subscription(
            sub,
            filters,
            client.reader,
            client.outbox,
            self._store.committed(),
            max_waiting=_MAX_WAITING,
        )
        self._fanout.open(subscription)
        if len(filters) == 1 and filters[0].search is None and client.is_reading:
            began = perf_counter()
            try:
                page = self._store.page_now(
                    filters[0],
                    visibility,
                    limit=self._limit_of(filters[0]),
                    upto=subscription.cursor,
                    now=self._clock(),
                    after=None,
                    size=_PAGE,
                )
            except StoreFault as fault:
                self._fail(client, subscription, fault)
                return None
            if page is not None and page.next is None:
                client.outbox.put_each(subscription.head, page.raws, messages.EVENT_END)
                self._metrics.scanned(len(page.raws), perf_counter() - began)
                self._finish(client, subscription)
        return subscription

    def stop(self, subscription: Subscription) -> None:
        self._fanout.close(subscription)

    async def catch_up(
        self,
        subscription: Subscription,
        client: Client,
        is_open: Callable[[Subscription], bool],
    ) -> bool:
        """Send the stored rows, EOSE, then what waited. False: CLOSED instead, and told so."""
        began, rows = perf_counter(), 0
        try:
            async for raws in self._pages(subscription, client):
                if not is_open(subscription):
                    return True
                rows += len(raws)
                client.outbox.put_each(subscription.head, raws, messages.EVENT_END)
                await client.drained()
            await self._fanout.look_again(subscription)
        except StoreFault as fault:
            self._fail(client, subscription, fault)
            return False
        except Refused as refused:
            client.outbox.put(messages.closed(subscription.sub, refused))
            return False
        self._metrics.scanned(rows, perf_counter() - began)
        if not is_open(subscription):
            return True
        return self._finish(client, subscription)

    def _finish(self, client: Client, subscription: Subscription) -> bool:
        if subscription.missed:
            client.outbox.put(messages.closed(subscription.sub, _TOO_SLOW))
            return False
        client.outbox.put(messages.eose(subscription.sub))
        self._fanout.caught_up(subscription)
        return True

    def _fail(self, client: Client, subscription: Subscription, fault: StoreFault) -> None:
        _log.error("a query was not answered: %s", fault)
        self._fanout.close(subscription)
        client.outbox.put(messages.closed(subscription.sub, _STORE_DOWN))

    def _limit_of(self, filter_: Filter) -> int:
        limit = self._limits.default_limit if filter_.limit is None else filter_.limit
        return min(limit, self._limits.max_limit)

    async def _pages(
        self, subscription: Subscription, client: Client
    ) -> AsyncIterator[Sequence[bytes]]:
        """Stored rows: of each search by rank, then of the other filters in one order (N01-76).

        None twice (N01-63). Each page is of what may be seen when it is sent: who was removed while
        it was read does not get it (N29-94).
        """
        found: set[int] = set()
        for filter_ in subscription.filters:
            if filter_.search is not None:
                async for raws in self._found(filter_, subscription.cursor, client, found):
                    yield raws
        walks = [
            _Walk(self._store, filter_, self._limit_of(filter_), subscription.cursor)
            for filter_ in subscription.filters
            if filter_.search is None
        ]
        changes = 0
        while walks:
            visibility = self._state.visibility(client.reader.viewer)
            places = [walk.place for walk in walks]
            raws = await self._page(walks, visibility, found)
            if self._state.visibility(client.reader.viewer).gives_all_of(visibility):
                yield raws
                if all(walk.is_done for walk in walks):
                    return
                continue
            changes += 1
            if changes > _MAX_CHANGES:
                raise StoreFault(_RIGHTS_CHANGE)
            for walk, place in zip(walks, places, strict=True):
                walk.go_back(place)

    async def _found(
        self, filter_: Filter, upto: int, client: Client, found: set[int]
    ) -> AsyncIterator[Sequence[bytes]]:
        """What one search finds that is not `found` already, best first (N50-03, N50-06).

        Raises Refused when it cannot be answered now.
        """
        await self._is_indexed(upto)
        seqs = await self._store.search(
            filter_,
            self._state.visibility(client.reader.viewer),
            limit=self._limit_of(filter_),
            upto=upto,
            now=self._clock(),
        )
        left = [seq for seq in seqs if seq not in found]
        found.update(left)
        changes = 0
        while left:
            visibility = self._state.visibility(client.reader.viewer)
            raws, looked_at = await self._store.rows(
                left[:_PAGE], filter_, visibility, now=self._clock()
            )
            if self._state.visibility(client.reader.viewer).gives_all_of(visibility):
                yield raws
                left = left[looked_at:]
                continue
            changes += 1
            if changes > _MAX_CHANGES:
                raise StoreFault(_RIGHTS_CHANGE)

    async def _is_indexed(self, upto: int) -> None:
        if self._index is None or not await self._index.reached(upto):
            raise Refused(Prefix.ERROR, _BEHIND)

    async def _page(
        self, walks: Sequence[_Walk], visibility: Visibility, found: set[int]
    ) -> Sequence[bytes]:
        """The next rows of the walks together, without those that searches have found."""
        now = self._clock()
        if len(walks) == 1 and not found:
            return await walks[0].page(visibility, now)
        raws: list[bytes] = []
        size = 0
        heads: list[tuple[int, int, int, int]] = []
        for number, walk in enumerate(walks):
            await self._line_up(heads, number, walk, visibility, now)
        while heads and len(raws) < _PAGE and size < _MERGED_BYTES:
            _, _, seq, _ = heads[0]
            raw = b""
            while heads and heads[0][2] == seq:  # found by several filters
                number = heapq.heappop(heads)[3]
                raw = walks[number].take()
                await self._line_up(heads, number, walks[number], visibility, now)
            if seq not in found:
                raws.append(raw)
                size += len(raw)
        return raws

    async def _line_up(
        self,
        heads: list[tuple[int, int, int, int]],
        number: int,
        walk: _Walk,
        visibility: Visibility,
        now: int,
    ) -> None:
        place = await walk.head(visibility, now)
        if place is not None:
            heapq.heappush(heads, (-place.created_at, place.tie, place.seq, number))

    async def count(self, client: Client, sub: str, filters: tuple[Filter, ...]) -> None:
        """Answer a COUNT: exactly what a REQ could give this viewer, limits aside (N45-04).

        Of what may be read when it is said: counted again when that changed meanwhile (N29-94).
        """
        for _ in range(_MAX_CHANGES):
            visibility = self._state.visibility(client.reader.viewer)
            objected = visibility.gate(filters)
            if objected is not None:
                client.outbox.put(messages.closed(sub, objected.refused()))
                return
            try:
                if any(filter_.search is not None for filter_ in filters):
                    await self._is_indexed(self._store.committed())
                number = await self._store.count(filters, visibility, now=self._clock())
                registers = await self._registers(filters, visibility)
            except StoreFault as fault:
                _log.error("a count was not answered: %s", fault)
                break
            except Refused as refused:
                client.outbox.put(messages.closed(sub, refused))
                return
            if self._state.visibility(client.reader.viewer).gives_all_of(visibility):
                client.outbox.put(messages.count(sub, number, registers))
                return
        client.outbox.put(messages.closed(sub, _STORE_DOWN))

    async def _registers(self, filters: Sequence[Filter], visibility: Visibility) -> str | None:
        """HyperLogLog of who wrote what is counted, for one filter with one tag condition."""
        value = filters[0].first_tag_value if len(filters) == 1 else None
        if value is None or filters[0].search is not None:
            return None
        authors = await self._store.authors(
            filters[0], visibility, now=self._clock(), at_most=_MAX_AUTHORS
        )
        return None if authors is None else nip45.registers(authors, nip45.offset_of(value))


class _Walk:
    """One filter's rows, from where the last page ended."""

    def __init__(self, store: Store, filter_: Filter, limit: int, upto: int) -> None:
        self._store = store
        self._filter = filter_
        self._upto = upto
        self._left = limit
        self._after: Place | None = None
        self._rows: Sequence[tuple[Place, bytes]] = ()
        self._at = 0
        self._seen_as: Visibility | None = None
        self.is_done = False

    @property
    def place(self) -> tuple[Place | None, int]:
        """Where it stands: behind which row, and how many it may still give."""
        return self._after, self._left

    def go_back(self, place: tuple[Place | None, int]) -> None:
        self._after, self._left = place
        self._rows, self._at, self._seen_as, self.is_done = (), 0, None, False

    async def page(self, visibility: Visibility, now: int) -> Sequence[bytes]:
        """The next rows of the only filter."""
        page = await self._store.page(
            self._filter,
            visibility,
            limit=self._left,
            upto=self._upto,
            now=now,
            after=self._after,
            size=_PAGE,
        )
        self._left -= len(page.raws)
        self._after = page.next
        self.is_done = page.next is None
        return page.raws

    async def head(self, visibility: Visibility, now: int) -> Place | None:
        """The next row's place; None at the end."""
        if self._at == len(self._rows) or self._seen_as is not visibility:
            self._rows = await self._store.places(
                self._filter,
                visibility,
                limit=self._left,
                upto=self._upto,
                now=now,
                after=self._after,
                size=_PAGE,
            )
            self._at, self._seen_as = 0, visibility
            self.is_done = not self._rows
        return self._rows[self._at][0] if self._rows else None

    def take(self) -> bytes:
        """The row that `head` found."""
        self._after, raw = self._rows[self._at]
        self._at += 1
        self._left -= 1
        return raw
