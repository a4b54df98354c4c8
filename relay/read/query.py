"""REQ and COUNT: gate, cursor, stored rows in pages, EOSE, then the backlog of live rows.

A query that one short read answers is answered at once. Any other waits in the queue of its
connection (`relay.read.query_queue`) and is answered page by page, as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from array import array
from contextlib import aclosing
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec.structs import replace

from relay.access.shares import Shares
from relay.errors import Prefix, Refused, StoreFault
from relay.facts import Who
from relay.lifecycle.rows import Stored
from relay.nostr import kinds, messages, nip45
from relay.nostr.event import event_from_raw
from relay.observe import REQUEST, SAMPLED_OF, SLOW_S, shape_of
from relay.read.fanout import Subscription
from relay.read.linked_rows import may_be_of
from relay.read.pace import Pace
from relay.read.scan import LONG_S, PAGE_ROWS, HeldRows, Scan, work_of
from relay.storage import PageQuery

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Collection,
        Sequence,
        Set,
    )

    from relay.access.visibility import Viewer, Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import CostlyRead, Metrics, Stage
    from relay.observe.traces import Traces
    from relay.read.fanout import Fanout
    from relay.read.peer import Peer
    from relay.state import RelayState
    from relay.storage import ClientReads, Verb

_log = logging.getLogger(__name__)

_MAX_BACKLOG: Final = 4096
"""Live rows that may wait while one subscription catches up."""
_MAX_ALL_BYTES: Final = 64 << 20
"""Bytes of the filters in queued COUNTs of all connections, see `Shares`."""
_ORDINARY_BYTES: Final = 128 << 10
"""Bytes of these that one address may have queued whatever others have."""
_MAX_AUTHORS: Final = 20_000
"""A COUNT of more authors gets no HyperLogLog; each takes 0.15 us on the loop."""
_PLAN_PAUSE_S: Final = 1.0
_PLAN_VALUES: Final = 256
"""Values in filters up to which their query plan is asked for: the loop compiles the filters again,
which takes 20 ms for as many values as a REQ may have, and counts for no client."""
STORE_DOWN: Final = Refused(Prefix.ERROR, "the store is not available, try again later")
INTERNAL: Final = Refused(Prefix.ERROR, "internal error, try again later")
_MOST_COUNTED_S: Final = 0.02
"""Seconds that a piece of a backlog counts for its client at most."""
_OVERFLOW: Final = Refused(Prefix.ERROR, "backlog overflow, subscribe again")
_TOO_COSTLY: Final = Refused(
    Prefix.RATE_LIMITED, "too many costly subscriptions are open on this relay, try again later"
)
_TOO_MANY_FOUND: Final = "too many searches of very many results at once, these are not all"
_FEW_FOUND: Final = 64 << 10
"""Bytes that what one query's searches have found may take whatever others hold: 8,192 rows."""
_SENT_BYTES: Final = 104
"""Bytes that a row found by a search takes in the set of rows that are not sent again."""
_NOT_INDEXED: Final = "the search index is not up to date, try again in a moment"
"""Sent behind the results that there are, which may not be all."""
_NOT_CURRENT: Final = "who may read is not known at the moment"
_MAX_RETRIES: Final = 16
"""How often pages of one query are read again because read rights changed during the read."""
_MAX_CHECKS: Final = 4
"""How often the store is asked whether a page may still be sent, before it is read again."""
_LARGE: Final = 16 << 10
_MOST_LARGE: Final = 32 << 20
"""Bytes of large rows in the answer to a REQ that says neither whose rows it asks for nor of which
group that strangers cannot write in: anybody may store some that all such readers get."""
_MANY_LARGE: Final = (
    f"older events are left out behind {_MOST_LARGE >> 20} MiB of events over {_LARGE >> 10} KiB;"
    " ask for them with `until`"
)
_MAX_COUNTS: Final = 4
"""How often a COUNT is read because read rights changed during the read …"""
_EXACT_COUNTS: Final = 2
"""… and how often before groups that change are left out."""
_RIGHTS_CHANGED: Final = "read rights changed faster than pages could be read"


class QueryLimits(Protocol):
    @property
    def max_limit(self) -> int: ...
    @property
    def default_limit(self) -> int: ...


class SearchIndex(Protocol):
    async def reached(self, seq: int, kinds: Set[int] | None) -> bool:
        """Wait until rows up to `seq` are indexed, or those of these kinds. False: it timed out."""

    @property
    def is_current(self) -> bool:
        """Whether what is indexed may be searched before the rest is."""


class Invites(Protocol):
    """Makes the 28935 of a REQ; no row of that kind is ever stored (N43-04)."""

    def may_ask(self, viewer: Viewer) -> bool: ...

    async def event_for(self, viewer: Viewer) -> Event | None:
        """None: this viewer may not invite. Raises Refused."""


class QueryRunner:
    """Answers the queries of all connections."""

    def __init__(
        self,
        store: ClientReads,
        state: RelayState,
        fanout: Fanout,
        limits: QueryLimits,
        *,
        clock: Callable[[], int],
        metrics: Metrics,
        index: SearchIndex | None = None,
        invites: Invites | None = None,
    ) -> None:
        """`index`: None when the store has no search. `invites`: None: nobody gets one."""
        self._store = store
        self._state = state
        self._fanout = fanout
        self._index = index
        self._invites = invites
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._explaining: asyncio.Task[None] | None = None
        self._answered_at_once = 0
        """REQs that one short read answered."""
        self.counted_bytes = Shares()
        """Bytes of the filters in COUNTs of all connections that are queued or being answered."""
        self.held_rows = {is_admitted: Shares() for is_admitted in (False, True)}
        """Bytes of rows that queries of several filters hold while they are merged: of viewers with
        a `Visibility.admitted_as`, and of others, of whom everybody may have any number."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancel the query plan that is being read, so that the store may close."""
        if self._explaining is not None:
            self._explaining.cancel()
            await asyncio.gather(self._explaining, return_exceptions=True)

    def waited(self, seconds: float) -> None:
        """Record how long a REQ was queued behind others of its connection."""
        self._metrics.read.queue.add(seconds)

    def has_room_for(self, size: int, peer: Peer) -> bool:
        """Whether a COUNT with filters of this many bytes may be queued."""
        rights = self._state.visibility(peer.reader.viewer)
        room = self.counted_bytes.room_for(rights, peer.counted_as, _MAX_ALL_BYTES, _ORDINARY_BYTES)
        return size <= room

    @property
    def open_subscriptions(self) -> int:
        return len(self._fanout)

    def admit(self, peer: Peer, sub: str, filters: tuple[Filter, ...]) -> Subscription | None:
        """A query that gets no live rows: `catch_up` sends stored ones, EOSE and CLOSED.

        None: CLOSED was sent instead.
        """
        if not self._wants_invite(peer, filters):
            refusal = self._state.visibility(peer.reader.viewer).gate(filters)
            if refusal is not None:
                peer.outbox.put(messages.closed(sub, refusal.refused()))
                return None
        cursor, address = self._store.committed(), peer.counted_as
        return Subscription(sub, filters, peer.reader, peer.outbox, cursor, address)

    def start(
        self, peer: Peer, sub: str, filters: tuple[Filter, ...], *, is_late: bool = False
    ) -> Subscription | None:
        """Open a subscription. If one short read has all stored rows, they are sent at once, with
        EOSE; then `backlog` is None. Else `catch_up` must follow; with `is_late` `open` before it.

        None: CLOSED was sent, instead of everything or of EOSE, or behind EOSE.
        """
        arrived = perf_counter()
        subscription = self.admit(peer, sub, filters)
        if subscription is None:
            return None
        # Before the first read: rows committed after the cursor are sent as live.
        self._fanout.open(subscription)
        try:
            if self._started(peer, subscription, arrived) is None:
                return None
            if is_late and subscription.backlog is not None:
                self._fanout.postpone(subscription)
            return subscription
        except StoreFault as fault:
            self._fail(peer, subscription, fault)
        except Exception:  # the other requests of the connection must go on  # noqa: BLE001
            _log.exception("a query failed")
            self._close_failed(peer, subscription, INTERNAL)
        return None

    def open(self, subscription: Subscription) -> None:
        """Open a late subscription: rows that were committed until now are stored rows for it."""
        subscription.cursor = subscription.last_seq = self._store.committed()
        self._fanout.open(subscription)
        subscription.begin_backlog(_MAX_BACKLOG)

    def _started(
        self, peer: Peer, subscription: Subscription, arrived: float
    ) -> Subscription | None:
        """The rest of `start`, once the subscription is open. `arrived`: when its REQ came. Raises
        StoreFault."""
        filters, began = subscription.filters, perf_counter()
        is_long = False
        if (
            len(filters) == 1
            and filters[0].search is None
            and peer.is_reading
            and peer.has_time
            and not self._wants_invite(peer, filters)
            and work_of(filters) <= LONG_S
            and self._state.knows(subscription.cursor)
        ):
            visibility = self._state.visibility(peer.reader.viewer)
            query = PageQuery(
                filters[0],
                visibility,
                self._limit_of(filters[0]),
                subscription.cursor,
                self._clock(),
                PAGE_ROWS,
                address=peer.counted_as,
            )
            page = self._store.page_now(query)
            is_long = page is None
            if page is not None and page.next is None:
                found = perf_counter()
                peer.outbox.put_each(subscription.head, page.raws, messages.EVENT_END)
                sent = perf_counter()
                rows, metrics = len(page.raws), self._metrics
                self._answered_at_once += 1
                if self._answered_at_once % SAMPLED_OF == 1:
                    metrics.read.plan.add(began - arrived)
                    metrics.read.send.add(sent - found)
                self._measured(subscription, rows, found - began, sent - found)
                if metrics.traces is not None:
                    spans = (
                        ("plan", arrived, began),
                        ("query", began, found),
                        ("send", found, sent),
                    )
                    _trace(metrics.traces, filters, rows, spans, sent - found, peer.request_id())
                if self._finish(peer, subscription, visibility):
                    return subscription  # no live row had to wait: nothing was awaited
                self._fanout.close(subscription)
                return None
        self._metrics.read.plan.add(began - arrived)
        subscription.begin_backlog(_MAX_BACKLOG).is_long = is_long
        return subscription

    def may_stay(self, subscription: Subscription) -> bool:
        """False: more keys have logged in than it may have. `stop` follows."""
        return self._fanout.reweigh(subscription)

    def end(self, subscription: Subscription) -> None:
        """Nothing more is sent for it; `stop` follows."""
        self._fanout.end(subscription)

    def stop(self, subscription: Subscription) -> None:
        self._fanout.close(subscription)

    async def catch_up(
        self,
        subscription: Subscription,
        peer: Peer,
        is_open: Callable[[Subscription], bool],
    ) -> bool:
        """Send the stored rows, EOSE, then the backlog. False: CLOSED was sent instead of some."""
        began, rows, waited = perf_counter(), 0, 0.0
        await self._state.settled(subscription.cursor)
        try:
            if self._wants_invite(peer, subscription.filters):
                await self._put_invite(subscription, peer, is_open)
            left = _MOST_LARGE if self._is_bounded(subscription.filters, peer) else None
            async with aclosing(self._pages(subscription, peer)) as pages:
                async for raws, is_last in pages:
                    if not is_open(subscription):
                        return True
                    rows += len(raws)
                    if left is not None:
                        left -= sum([len(raw) for raw in raws if len(raw) > _LARGE])
                    found = perf_counter()
                    peer.outbox.put_each(subscription.head, raws, messages.EVENT_END)
                    del raws  # not held while the client reads
                    peer.worked(perf_counter() - found)
                    if left is not None and left <= 0 and not is_last:
                        text = f"REQ {subscription.sub}: {_MANY_LARGE}"
                        peer.outbox.put(messages.notice(Refused(Prefix.RATE_LIMITED, text)))
                        break
                    if not (is_last and peer.is_reading):  # else EOSE goes with it, in one write
                        await peer.drained()
                    waited += perf_counter() - found
            self._check_current()
        except StoreFault as fault:
            self._fail(peer, subscription, fault)
            return False
        except Refused as refused:
            took = perf_counter() - began - waited
            self._took("REQ", subscription.filters, peer, rows, took)
            if is_open(subscription):
                peer.outbox.put(messages.closed(subscription.sub, refused))
            return False
        ended, metrics = perf_counter(), self._metrics
        metrics.read.send.add(waited)
        self._measured(subscription, rows, ended - began - waited, waited)
        if metrics.traces is not None:
            spans, request = (("query", began, ended),), (REQUEST.get() or str)()
            _trace(metrics.traces, subscription.filters, rows, spans, waited, request)
        if not is_open(subscription):
            return True
        visibility = self._state.visibility(peer.reader.viewer)
        is_finished = self._finish(peer, subscription, visibility)
        return is_finished and await self.send_backlog(peer, subscription)

    async def send_backlog(
        self, peer: Peer, subscription: Subscription, at_once: int = sys.maxsize
    ) -> bool:
        """Send the rows that came live meanwhile and are still there, in pieces, while new ones go
        on waiting; then live rows are sent at once. After `at_once` pieces the backlog is left as
        it is. False: CLOSED was sent instead of some."""
        try:
            while (backlog := subscription.backlog) is not None and not backlog.has_overflowed:
                if not at_once:
                    return True
                at_once -= 1
                began = thread_time()
                waiting = backlog.next()
                if waiting is None:
                    break
                raws, number = await self._of_backlog(subscription, peer, *waiting)
                if subscription.is_closed:
                    return True
                backlog.drop(number)
                peer.outbox.put_each(subscription.head, raws, messages.EVENT_END)
                # The time may contain work of other tasks, if these rows were read on a thread.
                is_over = peer.worked(min(thread_time() - began, _MOST_COUNTED_S))
                if not peer.is_reading:
                    await peer.drained()
                if is_over or not peer.has_time:
                    await peer.turn(0.0)
        except StoreFault as fault:
            self._fail(peer, subscription, fault)
            return False
        except Refused as refused:
            self._close_failed(peer, subscription, refused)
            return False
        if subscription.has_overflowed and not subscription.is_closed:
            peer.outbox.put(messages.closed(subscription.sub, _OVERFLOW))
            return False
        subscription.end_backlog()
        return True

    async def _of_backlog(
        self,
        subscription: Subscription,
        peer: Peer,
        waiting: Sequence[int] | Stored,
        filter_: Filter,
    ) -> tuple[Sequence[bytes], int]:
        """The rows that may be read now, and how many entries of the backlog were looked at.
        Raises StoreFault."""
        if isinstance(waiting, Stored):
            may_read = await self._fanout.may_send(subscription, waiting, filter_)
            self._check_current()
            return [waiting.event.raw] if may_read else [], 1
        for _ in range(_MAX_RETRIES):
            visibility = self._state.visibility(subscription.reader.viewer)
            found = await self._store.rows(
                waiting, filter_, visibility, now=self._clock(), address=peer.counted_as
            )
            self._check_current()
            # A member may have been removed while the rows waited (N29-94).
            if await self._may_send(found[0], [filter_], peer, visibility):
                return found
        raise StoreFault(_RIGHTS_CHANGED)

    def _check_current(self) -> None:
        """Raises StoreFault when it is not known who may read: a client may have read slowly."""
        if not self._state.is_current():
            raise StoreFault(_NOT_CURRENT)

    def _measured(
        self,
        subscription: Subscription,
        rows: int,
        reading_s: float,
        sending_s: float,
    ) -> None:
        """All stored rows were sent. `sending_s`: how long the client made it wait."""
        metrics, filters = self._metrics, subscription.filters
        metrics.read.query.add(reading_s)
        read = metrics.scanned(filters, rows, reading_s, sending_s)
        if read is not None:
            visibility = self._state.visibility(subscription.reader.viewer)
            self._noted(read, "REQ", filters, visibility, rows, reading_s)

    def _took(
        self, verb: Verb, filters: Sequence[Filter], peer: Peer, rows: int, seconds: float
    ) -> None:
        """A query that got no EOSE, or a COUNT."""
        read = self._metrics.costly_reads.took(verb, filters, rows, seconds)
        if read is not None:
            visibility = self._state.visibility(peer.reader.viewer)
            self._noted(read, verb, filters, visibility, rows, seconds)

    def _noted(
        self,
        read: CostlyRead,
        verb: Verb,
        filters: Sequence[Filter],
        visibility: Visibility,
        rows: int,
        seconds: float,
    ) -> None:
        """Get the query plan of a costly shape, once, with a pause after each; log a slow query."""
        is_busy = self._explaining is not None and not self._explaining.done()
        is_large = sum(each.values for each in filters) > _PLAN_VALUES
        if is_busy or is_large or not read.wants_plan:
            _log_slow(read, rows, seconds)
        else:
            self._explaining = asyncio.create_task(
                self._explain(read, verb, filters, visibility, rows, seconds), name="query plan"
            )

    async def _explain(
        self,
        read: CostlyRead,
        verb: Verb,
        filters: Sequence[Filter],
        visibility: Visibility,
        rows: int,
        seconds: float,
    ) -> None:
        read.plan = ()
        try:
            read.plan = await self._store.plan(filters, visibility, verb, now=self._clock())
        except StoreFault as fault:
            _log.warning("no query plan of %s: %s", read.shape, fault)
        except Exception:  # last frame of the task  # noqa: BLE001
            _log.exception("no query plan of %s", read.shape)
        _log_slow(read, rows, seconds)
        await asyncio.sleep(_PLAN_PAUSE_S)

    def _wants_invite(self, peer: Peer, filters: Sequence[Filter]) -> bool:
        """Whether a filter names the kind of invites, and the viewer may get one."""
        for filter_ in filters:
            if filter_.kinds is not None and kinds.RELAY_INVITE in filter_.kinds:
                return self._invites is not None and self._invites.may_ask(peer.reader.viewer)
        return False

    async def _put_invite(
        self,
        subscription: Subscription,
        peer: Peer,
        is_open: Callable[[Subscription], bool],
    ) -> None:
        assert self._invites is not None
        event = await self._invites.event_for(peer.reader.viewer)
        if event is None or not is_open(subscription):
            return
        for filter_ in subscription.filters:
            is_named = filter_.kinds is not None and filter_.search is None and filter_.limit != 0
            if is_named and filter_.matches(event):
                peer.outbox.put_each(subscription.head, [event.raw], messages.EVENT_END)
                return

    def _finish(self, peer: Peer, subscription: Subscription, visibility: Visibility) -> bool:
        """Send EOSE. False: CLOSED was sent, instead or behind it. `visibility`: the viewer's,
        now."""
        if subscription.has_overflowed:
            peer.outbox.put(messages.closed(subscription.sub, _OVERFLOW))
            return False
        refusal = visibility.lists_for_login(subscription.filters)
        if refusal is not None:
            # In place of EOSE: 0xchat forgets a subscription at EOSE, and logs in at CLOSED only.
            peer.outbox.put(messages.closed(subscription.sub, refusal.refused()))
            return False
        peer.outbox.put(messages.eose(subscription.sub))
        if not subscription.is_indexed:  # too costly: who asks once has the whole answer
            peer.outbox.put(messages.closed(subscription.sub, _TOO_COSTLY))
            return False
        return True

    def _fail(self, peer: Peer, subscription: Subscription, fault: StoreFault) -> None:
        _log.error("a query failed: %s", fault)
        self._close_failed(peer, subscription, STORE_DOWN)

    def _close_failed(self, peer: Peer, subscription: Subscription, refused: Refused) -> None:
        if not subscription.is_closed:  # else its id may be that of another one
            self._fanout.close(subscription)
            peer.outbox.put(messages.closed(subscription.sub, refused))

    def _is_bounded(self, filters: Sequence[Filter], peer: Peer) -> bool:
        """Whether the answer has at most `_MOST_LARGE` bytes of large rows."""
        policy, rights = self._state.policy, self._state.visibility(peer.reader.viewer)
        if (
            peer.counted_as is None
            or policy.restricted_writes
            or not rights.global_words.isdisjoint({Who.OWNER, Who.AGENT})
        ):
            return False
        return any(
            each.ids is None
            and each.authors is None
            and not _only_members_write(rights, each.tag_values("h"))
            and (each.kinds is None or not each.kinds <= kinds.WRAPS)
            for each in filters
        )

    def _limit_of(self, filter_: Filter) -> int:
        limit = self._limits.default_limit if filter_.limit is None else filter_.limit
        return min(limit, self._limits.max_limit)

    async def _pages(
        self, subscription: Subscription, peer: Peer
    ) -> AsyncGenerator[tuple[Sequence[bytes], bool], None]:
        """Stored rows: of each search by rank, then of the other filters merged, newest first
        (N01-76). No row twice (N01-63). With whether they are known to be the last.

        A page is sent only while the reader may read its rows, else it is read again (N29-94).
        """
        is_admitted = self._state.visibility(peer.reader.viewer).admitted_as is not None
        held = HeldRows(self.held_rows[is_admitted], peer)
        sent: set[int] | None = set() if len(subscription.filters) > 1 else None
        upto, retries = subscription.cursor, 0
        try:
            for filter_ in subscription.filters:
                if filter_.search is not None:
                    async for page in self._search_pages(filter_, upto, peer, sent, held):
                        yield page.pop(), False  # it is not held here while the client reads
            filters = [
                (filter_, self._limit_of(filter_))
                for filter_ in subscription.filters
                if filter_.search is None
            ]
            backlog = subscription.backlog
            is_long = backlog is not None and backlog.is_long
            scan = Scan(self._store, filters, upto, peer, sent or (), held, is_long=is_long)
            asked = [filter_ for filter_, _ in filters]
            while not scan.is_done:
                visibility = self._state.visibility(peer.reader.viewer)
                page = [await scan.page(visibility, self._clock())]
                may_send = await self._may_send(page[0], asked, peer, visibility)
                del visibility  # it holds all groups as they were, and the client may take long
                if may_send:
                    is_last = scan.is_done
                    scan.sending()
                    yield page.pop(), is_last
                    scan.resume()
                    continue
                retries += 1
                if retries > _MAX_RETRIES:
                    raise StoreFault(_RIGHTS_CHANGED)
                scan.rewind()
        finally:
            held.end()

    async def _search_pages(
        self, filter_: Filter, upto: int, peer: Peer, sent: set[int] | None, held: HeldRows
    ) -> AsyncIterator[list[Sequence[bytes]]]:
        """Rows of one search that were not `sent`, to which they are added, best first (N50-03,
        N50-06); each page in a list, which the caller empties.

        Raises Refused behind the rows that are indexed when the index is not up to date, and behind
        the best ones when very many are found and others hold as many.
        """
        is_all = await self._is_indexed(upto, filter_)
        pace = Pace(peer)
        seqs = await pace.through(
            self._store.search(
                filter_,
                self._state.visibility(peer.reader.viewer),
                limit=self._limit_of(filter_),
                upto=upto,
                now=self._clock(),
                address=peer.counted_as,
            )
        )
        left = array("q", [seq for seq in seqs if seq not in sent] if sent else seqs)
        del seqs
        each = left.itemsize + (0 if sent is None else _SENT_BYTES)
        room = held.room(self._state.visibility(peer.reader.viewer), _FEW_FOUND) // each
        is_cut = len(left) > room
        del left[room:]
        held.add(len(left) * each)
        if sent is not None:
            sent.update(left)
        retries = 0
        while left:
            await pace.rest()
            visibility = self._state.visibility(peer.reader.viewer)
            raws, examined = await pace.through(
                self._store.rows(
                    left[:PAGE_ROWS].tolist(),
                    filter_,
                    visibility,
                    now=self._clock(),
                    address=peer.counted_as,
                )
            )
            page = [raws]
            may_send = await self._may_send(raws, [filter_], peer, visibility)
            del raws, visibility
            if may_send:
                pace.stop()
                yield page
                pace.resume()
                del left[:examined]
                continue
            retries += 1
            if retries > _MAX_RETRIES:
                raise StoreFault(_RIGHTS_CHANGED)
        if is_cut:
            raise Refused(Prefix.RATE_LIMITED, _TOO_MANY_FOUND)
        if not is_all:
            raise Refused(Prefix.ERROR, _NOT_INDEXED)

    async def _may_send(
        self, raws: Sequence[bytes], filters: Sequence[Filter], peer: Peer, before: Visibility
    ) -> bool:
        """Whether the reader still may read these rows, which were found by `filters` with the
        rights `before`.

        Only rows that may be of a group that it cannot read any more count: who turns an own group
        private again and again, or adds and removes the reader, must not break off what others
        read. Where their tags do not tell whether they are of it, the store is asked.
        """
        for _ in range(_MAX_CHECKS):
            rights = self._state.visibility(peer.reader.viewer)
            lost = rights.lost_since(before)
            if not lost:
                return lost is not None
            events = map(event_from_raw, raws)
            doubtful = {each.id for each in events if may_be_of(lost, each, self._state)}
            if not doubtful:
                return True
            # With their other conditions: a rule may require one of them (`only_by`).
            among = [_among(each, doubtful) for each in filters]
            number = await self._store.count(
                among, rights, now=self._clock(), address=peer.counted_as
            )
            if number < len(doubtful):
                return False
            before = rights
        return False

    async def _is_indexed(self, upto: int, filter_: Filter) -> bool:
        """Wait for the index. False: it is not up to date, but may be searched. Raises Refused."""
        if self._index is None:
            raise Refused(Prefix.ERROR, _NOT_INDEXED)
        is_all = await self._index.reached(upto, filter_.kinds)
        if not (is_all or self._index.is_current):
            raise Refused(Prefix.ERROR, _NOT_INDEXED)
        return is_all

    async def count(self, peer: Peer, sub: str, filters: tuple[Filter, ...]) -> None:
        """Answer a COUNT: exactly the rows that a REQ would give this viewer, without limits
        (N45-04); counted again when the viewer's rights changed during the count (N29-94). Who
        turns own groups private again and again must not keep others from counting: the third time
        rows of the groups that have changed are left out, the last time those of all that the
        viewer is not in.
        """
        changing: frozenset[str] | None = frozenset()
        for retry in range(_MAX_COUNTS):
            await self._state.settled(self._store.committed())
            visibility = self._state.visibility(peer.reader.viewer)
            # A COUNT has no partial result that could be sent before the CLOSED.
            refusal = visibility.gate(filters) or visibility.lists_for_login(filters)
            if refusal is not None:
                peer.outbox.put(messages.closed(sub, refusal.refused()))
                return
            began = perf_counter()
            try:
                for filter_ in filters:
                    if filter_.search is not None:
                        committed = self._store.committed()
                        if not await self._is_indexed(committed, filter_):
                            raise Refused(Prefix.ERROR, _NOT_INDEXED)
                is_exact = retry < _EXACT_COUNTS
                if retry == _MAX_COUNTS - 1:
                    changing = None
                rights = visibility if is_exact else visibility.without_groups(changing)
                number = await self._store.count(
                    filters, rights, now=self._clock(), address=peer.counted_as
                )
                registers = await self._registers(filters, rights, number, peer.counted_as)
            except StoreFault as fault:
                _log.error("a COUNT failed: %s", fault)
                break
            except Refused as refused:
                peer.outbox.put(messages.closed(sub, refused))
                return
            finally:
                self._took("COUNT", filters, peer, 0, perf_counter() - began)
            await self._state.settled(self._store.committed())
            lost = self._state.visibility(peer.reader.viewer).lost_since(visibility)
            if lost is None:
                continue
            if changing is None:
                counted = any(each in visibility.insider_of for each in lost)
            else:
                counted = bool(lost if is_exact else lost - changing)
                changing |= lost
            if not counted:
                peer.outbox.put(messages.count(sub, number, registers))
                return
        peer.outbox.put(messages.closed(sub, STORE_DOWN))

    async def _registers(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        number: int,
        address: str | None,
    ) -> str | None:
        """HyperLogLog of the authors of `number` rows, for one filter with a tag condition."""
        value = filters[0].first_tag_value if len(filters) == 1 else None
        if value is None or filters[0].search is not None:
            return None
        authors: Sequence[bytes] | None = ()
        if number:
            authors = await self._store.authors(
                filters[0],
                visibility,
                now=self._clock(),
                at_most=_MAX_AUTHORS,
                address=address,
            )
        return None if authors is None else nip45.registers(authors, nip45.offset_of(value))


def _among(filter_: Filter, ids: Set[str]) -> Filter:
    """The filter, of rows with these ids; without its search, which found them."""
    found = frozenset(ids if filter_.ids is None else ids & {*filter_.ids})
    return replace(filter_, ids=found, search=None, impossible=filter_.impossible or not found)


def _trace(
    traces: Traces,
    filters: Sequence[Filter],
    rows: int,
    spans: Sequence[Stage],
    sending_s: float,
    request: str,
) -> None:
    traces.span(
        "REQ",
        spans,
        rows=rows,
        filters=shape_of(filters),
        seconds_sending=sending_s,
        request=request,
    )


def _log_slow(read: CostlyRead, rows: int, seconds: float) -> None:
    if seconds >= SLOW_S:
        text = "slow query: %.1f s, %d rows, %s"
        _log.info(text, seconds, rows, read.shape, extra={"plan": "; ".join(read.plan or ())})


def _only_members_write(rights: Visibility, group_ids: Collection[str] | None) -> bool:
    """Whether only members write in all these groups, and an admin must accept who joins. A group
    that the viewer may not know of is as if it were not there."""
    if group_ids is None:
        return False
    groups = [rights.groups.get(each) for each in group_ids if rights.sees_group(each)]
    return len(groups) == len(group_ids) and all(
        group and group.only_members_write and group.is_closed for group in groups
    )
