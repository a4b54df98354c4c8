"""The road of REQ and COUNT: gate, cursor, stored rows in pages, EOSE, then what came meanwhile.

A query that one short read answers is answered on the spot. Any other waits its turn in the `Scans`
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
from relay.fanout import Subscription
from relay.nostr import messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.fanout import Fanout, Reader
    from relay.nostr.filters import Filter
    from relay.observe import Metrics
    from relay.outbox import Outbox
    from relay.projections import Realm
    from relay.storage import Place, Store
    from relay.visibility import Visibility

_log = logging.getLogger(__name__)

_PAGE: Final = 500
"""Rows of a page."""
_MAX_WAITING: Final = 4096
"""Live rows that may wait while one subscription catches up."""
_STORE_DOWN: Final = Refused(Prefix.ERROR, "the store cannot answer now, try again later")
_TOO_SLOW: Final = Refused(Prefix.ERROR, "more came meanwhile than can wait; ask again")
_MERGED_BYTES: Final = 1 << 20


class QueryLimits(Protocol):
    @property
    def max_limit(self) -> int: ...
    @property
    def default_limit(self) -> int: ...


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


class Scans:
    """Queries of one connection that wait for their turn. At most as many as it may subscribe."""

    def __init__(self, answers: Answers, client: Client) -> None:
        self._answers = answers
        self._client = client
        self._waiting: deque[Subscription | tuple[str, tuple[Filter, ...]]] = deque()
        self._open: dict[str, Subscription] = {}
        self._task: asyncio.Task[None] | None = None

    def ask(self, sub: str, filters: tuple[Filter, ...]) -> None:
        """Answer a REQ and leave it open."""
        subscription = self._answers.start(self._client, sub, filters)
        if subscription is None:
            self._client.closed_by_relay(sub)
            return
        self._open[sub] = subscription
        if subscription.waiting is not None:
            self._wait(subscription)

    def count(self, sub: str, filters: tuple[Filter, ...]) -> None:
        if len(self._waiting) > _MAX_WAITING:
            busy = Refused(Prefix.RATE_LIMITED, "too many queries are waiting")
            self._client.outbox.put(messages.closed(sub, busy))
            return
        self._wait((sub, filters))

    def drop(self, sub: str) -> None:
        """CLOSE, or a REQ that replaces: nothing of the old one follows."""
        subscription = self._open.pop(sub, None)
        if subscription is not None:
            self._answers.stop(subscription)

    def _wait(self, work: Subscription | tuple[str, tuple[Filter, ...]]) -> None:
        self._waiting.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="scans")

    async def _run(self) -> None:
        while self._waiting:
            work = self._waiting.popleft()
            if isinstance(work, Subscription):
                if not await self._answers.catch_up(work, self._client, self._is_open):
                    self._close(work)
            else:
                await self._answers.count(self._client, *work)

    def _is_open(self, subscription: Subscription) -> bool:
        return self._open.get(subscription.sub) is subscription

    def _close(self, subscription: Subscription) -> None:
        if self._is_open(subscription):
            del self._open[subscription.sub]
            self._client.closed_by_relay(subscription.sub)
        self._answers.stop(subscription)

    async def aclose(self) -> None:
        """The connection is gone."""
        for subscription in self._open.values():
            self._answers.stop(subscription)
        self._open.clear()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Answers:
    """What all connections share on this road."""

    def __init__(
        self, store: Store, realm: Realm, fanout: Fanout, limits: QueryLimits, *,
        clock: Callable[[], int], metrics: Metrics,
    ) -> None:  # fmt: skip
        self._store = store
        self._realm = realm
        self._fanout = fanout
        self._limits = limits
        self._clock = clock
        self._metrics = metrics

    @property
    def open_subscriptions(self) -> int:
        return len(self._fanout)

    def start(
        self, client: Client, sub: str, filters: tuple[Filter, ...]
    ) -> Subscription | None:
        """Open a subscription, answered already when that was quick (`waiting` is None then).

        None: refused, and told so.
        """
        visibility = self._realm.visibility(client.reader.viewer)
        objected = visibility.gate(filters)
        if objected is not None:
            client.outbox.put(messages.closed(sub, objected.refused()))
            return None
        # Cursor and registration before the first row is read: what commits from here on is live.
        subscription = Subscription(
            sub, filters, client.reader, client.outbox, self._store.committed(),
            max_waiting=_MAX_WAITING,
        )
        self._fanout.open(subscription)
        if len(filters) == 1 and client.is_reading:
            began = perf_counter()
            try:
                page = self._store.page_now(
                    filters[0], visibility, limit=self._limit_of(filters[0]),
                    upto=subscription.cursor, now=self._clock(), after=None, size=_PAGE,
                )  # fmt: skip
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
        self, subscription: Subscription, client: Client,
        is_open: Callable[[Subscription], bool],
    ) -> bool:  # fmt: skip
        """Send the stored rows, EOSE, then what waited. False: CLOSED instead, and told so."""
        began, rows = perf_counter(), 0
        try:
            async for raws in self._pages(subscription, client):
                if not is_open(subscription):
                    return True
                rows += len(raws)
                client.outbox.put_each(subscription.head, raws, messages.EVENT_END)
                await client.drained()
        except StoreFault as fault:
            self._fail(client, subscription, fault)
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
        """Stored rows in order; the visibility is looked up anew for each page (N29-94)."""
        if len(subscription.filters) > 1:
            async for raws in self._merged(subscription, client):
                yield raws
            return
        filter_ = subscription.filters[0]
        left = self._limit_of(filter_)
        after: Place | None = None
        while True:
            page = await self._store.page(
                filter_, self._realm.visibility(client.reader.viewer), limit=left,
                upto=subscription.cursor, now=self._clock(), after=after, size=_PAGE,
            )  # fmt: skip
            yield page.raws
            left -= len(page.raws)
            after = page.next
            if after is None:
                return

    async def _merged(
        self, subscription: Subscription, client: Client
    ) -> AsyncIterator[Sequence[bytes]]:
        """Several filters: one order over all, each its own limit, no row twice (N01-63, 76)."""
        walks = [
            _Walk(self._store, filter_, self._limit_of(filter_), subscription.cursor)
            for filter_ in subscription.filters
        ]
        raws: list[bytes] = []
        size = 0
        last: Place | None = None
        heads: list[tuple[int, int, int, int]] = []
        for n, walk in enumerate(walks):
            place = await walk.first(self._realm, client.reader, self._clock())
            if place is not None:
                heads.append((-place.created_at, place.tie, place.seq, n))
        heapq.heapify(heads)
        while heads:
            _, _, seq, n = heads[0]
            walk = walks[n]
            if last is None or seq != last.seq:
                raw = walk.raw()
                raws.append(raw)
                size += len(raw)
                last = walk.place()
            if len(raws) == _PAGE or size > _MERGED_BYTES:
                yield raws
                raws, size = [], 0
            place = await walk.step(self._realm, client.reader, self._clock())
            if place is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (-place.created_at, place.tie, place.seq, n))
        yield raws

    async def count(self, client: Client, sub: str, filters: tuple[Filter, ...]) -> None:
        """Answer a COUNT: exactly what a REQ could give this viewer, limits aside (N45-04)."""
        visibility = self._realm.visibility(client.reader.viewer)
        objected = visibility.gate(filters)
        if objected is not None:
            client.outbox.put(messages.closed(sub, objected.refused()))
            return
        try:
            number = await self._store.count(filters, visibility, now=self._clock())
        except StoreFault as fault:
            _log.error("a count was not answered: %s", fault)
            client.outbox.put(messages.closed(sub, _STORE_DOWN))
            return
        client.outbox.put(messages.count(sub, number))


class _Walk:
    """One filter's rows among several, a page at a time."""

    def __init__(self, store: Store, filter_: Filter, limit: int, upto: int) -> None:
        self._store = store
        self._filter = filter_
        self._left = limit
        self._upto = upto
        self._rows: Sequence[tuple[Place, bytes]] = ()
        self._at = 0
        self._seen_as: Visibility | None = None

    def place(self) -> Place:
        return self._rows[self._at][0]

    def raw(self) -> bytes:
        return self._rows[self._at][1]

    async def first(self, realm: Realm, reader: Reader, now: int) -> Place | None:
        return await self._more(realm.visibility(reader.viewer), now, None)

    async def step(self, realm: Realm, reader: Reader, now: int) -> Place | None:
        """The next row's place; None at the end."""
        given = self.place()
        self._at += 1
        self._left -= 1
        visibility = realm.visibility(reader.viewer)
        if self._at < len(self._rows) and visibility is self._seen_as:
            return self.place()
        # At the end of the page, or what may be seen has changed since it was read (N29-94).
        return await self._more(visibility, now, given)

    async def _more(self, visibility: Visibility, now: int, after: Place | None) -> Place | None:
        rows = await self._store.places(
            self._filter, visibility, limit=self._left, upto=self._upto, now=now, after=after,
            size=_PAGE,
        )  # fmt: skip
        self._rows, self._at, self._seen_as = rows, 0, visibility
        return rows[0][0] if rows else None
