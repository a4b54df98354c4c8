"""Negentropy sync (NIP-77): NEG-OPEN takes a snapshot of what the viewer may read.

Only ids are compared; events travel by EVENT and REQ (N77-06). One message of a connection is
processed at a time, on a worker thread: fingerprints of a million records take a second or two. A
snapshot is valid while its reader may read all of its records (N77-09). Where there is no memory
for another one, sets of addresses that hold clearly more are closed, see `HeldSets`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from relay.access.shares import HeldSets, Shares
from relay.errors import (
    RIGHTS_CHANGED,
    Invalid,
    Prefix,
    Refused,
    StoreFault,
    TooManyRecords,
    TooSlow,
)
from relay.nostr import messages
from relay.nostr.messages import NegClose, NegMessage, NegOpen
from relay.nostr.nip77 import reply_to
from relay.observe import REQUEST
from relay.read.query import INTERNAL, STORE_DOWN
from relay.read.scan import work_of
from relay.storage.read_turns import ReadTurns, site_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items
    from relay.read.peer import Peer, Reader
    from relay.state import RelayState
    from relay.storage import ClientReads

_log = logging.getLogger(__name__)

IDLE_TIMEOUT_S: Final = 120.0
"""A snapshot is dropped when its client sends nothing for this time (N77-08)."""
_MAX_SNAPSHOTS: Final = 4
"""All snapshots together have at most this many times `neg_records` records, see `Shares`."""
_RECORD_BYTES: Final = 40
_READING: Final = "sets that are being read"
"""Stands for an address in `Negentropy._held`."""
_MAX_QUEUED: Final = 64
"""Queued messages of all connections, see `Shares`."""
_FEW_QUEUED: Final = 4
"""Queued messages that one address may have beyond that. They wait until their client reads."""
_MAX_REGROUPED: Final = 64
"""Changes of groups after which open ids are compared with the rights of their readers."""
_RENEWED_S: Final = 0.002
"""Work on these comparisons after which other tasks run."""
_SHORT_S: Final = 0.01
"""After a message that took longer no other is compared for as long as it took: beside a thread
that works without a pause the loop has half of the interpreter, and waits for it at each call of
the system."""
_MAX_RETRIES: Final = 4
"""How often a snapshot is read again because read rights changed during the read."""
_CLOSED_FOR_OTHERS: Final = (
    "others need the memory, and your address has most of it; try again later"
)
_TOO_EARLY: Final = Refused(Prefix.RATE_LIMITED, "wait for the reply before the next message")


def _busy() -> Refused:
    return Refused(Prefix.RATE_LIMITED, "too many negentropy sessions, try again later")


def _holder(peer: Peer) -> str | None:
    """The address that memory counts for; IPv6: the /56, as in `ReadTurns`."""
    address = peer.counted_as
    return None if address is None else site_of(address)


def _rights_changed() -> Refused:
    return Refused(Prefix.RESTRICTED, f"{RIGHTS_CHANGED}, send NEG-OPEN again")


class NegentropyLimits(Protocol):
    @property
    def neg_records(self) -> int:
        """Most records of a snapshot."""

    @property
    def neg_sessions(self) -> int:
        """Most open ids of a connection."""


class Snapshot:
    """The records of one NEG-OPEN, and the rights before and after they were read: the store may
    have used either. Later both are the rights with which it was last found valid, see `renew`."""

    __slots__ = ("after", "has_targets", "holder", "items", "visibility")

    def __init__(
        self,
        items: Items,
        holder: str | None,
        visibility: Visibility,
        after: Visibility,
        *,
        has_targets: bool,
    ) -> None:
        """`has_targets`: whether records may be readable only like another row, of any group."""
        self.items = items
        self.has_targets = has_targets
        self.holder = holder
        """See `_holder`."""
        self.visibility = visibility
        self.after = after

    def may_be_read(self, now: Visibility) -> bool:
        """Whether all records still may be read. Only the groups of records count: who turns an own
        group private again and again must not end what others compare."""
        for before in (self.visibility, self.after):
            lost = now.lost_since(before)
            if lost is None or (lost and (self.has_targets or self.items.may_be_of(lost))):
                return False
        return True


class _Exchange:
    """One open id of a connection."""

    __slots__ = ("filter", "idle_timer", "is_busy", "queue", "snapshot", "sub")

    def __init__(self, queue: NegentropyQueue, sub: str, filter_: Filter) -> None:
        self.queue = queue
        self.sub = sub
        self.filter: Filter | None = filter_
        """None once the snapshot is read: it may be large, and an id is open for long."""
        self.snapshot: Snapshot | None = None
        self.is_busy = True
        """A message for this id is queued or being processed."""
        self.idle_timer: asyncio.TimerHandle | None = None


class Negentropy:
    """Snapshots and message processing for all connections."""

    def __init__(
        self,
        store: ClientReads,
        state: RelayState,
        limits: NegentropyLimits,
        *,
        clock: Callable[[], int],
        workers: Executor,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        """`workers`: two threads are enough; unknown keys occupy at most one."""
        self._store = store
        self._state = state
        self._clock = clock
        self._workers = workers
        self._held = Shares()
        """Number of records, by `_holder`."""
        self._closable = HeldSets[_Exchange]()
        """Sets that may be closed for others: all but those of owners."""
        self._renewed: dict[_Exchange, int] = {}
        """`regrouped` of the state of whose rights each snapshot knows. The oldest is the first."""
        self._to_renew = 0
        self._renewing: asyncio.Handle | None = None
        """The scheduled call of `_renew_oldest`."""
        self._queued = Shares()
        """Number of queued messages, by `_holder`."""
        self._reads = {True: ReadTurns(), False: ReadTurns()}
        """One snapshot at a time is read for known keys (True), and one for others."""
        self._replies = {True: ReadTurns(), False: ReadTurns()}
        """One message at a time is compared for known keys, and one for others, on the same thread:
        the loop has half of the interpreter beside one, a third beside two. A set whose message
        waits for its turn may be closed."""
        self._rests_until = 0.0
        """Time of the loop, see `_SHORT_S`."""
        self.limits = limits
        self.idle_timeout_s = idle_timeout_s

    @property
    def held(self) -> int:
        """Records in all snapshots, including those reserved for snapshots that are being read."""
        return self._held.used

    def is_busy(self, peer: Peer) -> bool:
        rights = self._state.visibility(peer.reader.viewer)
        return self._queued.room_for(rights, _holder(peer), _MAX_QUEUED, _FEW_QUEUED) <= 0

    async def snapshot(self, peer: Peer, filter_: Filter) -> Snapshot:
        """The records that match and that the peer's reader may read; held in memory until
        `release`. For it, snapshots of others may be closed.

        Raises Refused (TooManyRecords when there are more than `neg_records`) and StoreFault.
        """
        reader, address, holder = peer.reader, peer.counted_as, _holder(peer)
        for retry in range(_MAX_RETRIES):
            await self._state.settled(self._store.committed())
            regrouped = self._state.regrouped
            visibility = self._state.visibility(reader.viewer)
            refusal = visibility.gate((filter_,))
            if refusal is not None:
                raise refusal.refused()
            is_known = visibility.is_known
            # What is reserved for reads would be all that there is if each connection had one.
            turns, (site, key) = self._reads[is_known], visibility.share_of(address)
            async with turns.of(site, key=key, is_owner=visibility.is_owner):
                items = await self._items(filter_, visibility, holder)
            try:
                await self._state.commit_ended()
            except BaseException:  # the client has left
                self._held.add(holder, -len(items))
                raise
            after = self._state.visibility(reader.viewer)
            # Of more changes nobody knows which one the store had. Of a large set that is read for
            # long there may always be some.
            is_either = self._state.regrouped - regrouped <= 1 or retry == _MAX_RETRIES - 1
            has_targets = visibility.reads_targets(filter_.kinds)
            snapshot = Snapshot(items, holder, visibility, after, has_targets=has_targets)
            if is_either and snapshot.may_be_read(after):
                return snapshot
            self._held.add(holder, -len(items))
        raise _rights_changed()

    async def _items(self, filter_: Filter, visibility: Visibility, holder: str | None) -> Items:
        most, free = self.limits.neg_records, self._free(visibility, holder)
        at_most = min(most, max(free, self._most_by_closing(visibility, holder)))
        if at_most <= 0:
            raise _busy()
        # Reserved before the first record is read: other connections may ask during the read. Not
        # for the address, whose other clients would be refused although there are few records. Nor
        # beyond what is free: which sets are closed is known when all is read.
        reserved = min(at_most, free)
        self._held.add(_READING, reserved)
        try:
            items = await self._store.items(
                filter_,
                visibility,
                limit=filter_.limit,
                upto=self._store.committed(),
                now=self._clock(),
                at_most=at_most,
            )
        except TooSlow as slow:
            raise Refused(Prefix.BLOCKED, slow.text) from slow  # as of too many records
        else:
            if items is None:
                raise TooManyRecords(most) if at_most == most else _busy()
        finally:
            self._held.add(_READING, -reserved)
        self._close_for(len(items), visibility, holder)
        self._held.add(holder, len(items))
        return items

    def _free(self, visibility: Visibility, holder: str | None) -> int:
        """Records; 0 or more."""
        most = _MAX_SNAPSHOTS * self.limits.neg_records
        return max(0, self._held.room_for(visibility, holder, most))

    def _most_by_closing(self, visibility: Visibility, holder: str | None) -> int:
        """Records of the largest set that others may be closed for."""
        if visibility.is_owner:  # owners have a share of their own
            return 0
        return self._closable.most_for(self._held.of(holder), is_known=visibility.is_known)

    def _close_for(self, size: int, visibility: Visibility, holder: str | None) -> None:
        """Close sets of others if one of this size needs that. Raises Refused if they are too
        small."""
        short = size - self._free(visibility, holder)
        if short <= 0:
            return
        closed = None
        if not visibility.is_owner:
            own, is_known = self._held.of(holder), visibility.is_known
            closed = self._closable.to_close(own, size, short, is_known=is_known)
        if closed is None:
            raise _busy()
        for exchange in closed:
            exchange.queue.close_for_others(exchange)

    def hold(self, exchange: _Exchange, snapshot: Snapshot) -> None:
        """Keep the snapshot; from now on it may be closed for others."""
        exchange.snapshot = snapshot
        rights = snapshot.visibility
        self._renewed[exchange] = self._state.regrouped
        # With each that is added so many that no more than some `_MAX_REGROUPED` different rights
        # are left: each has the groups of its time in memory.
        due = self._to_renew + 1 + 2 * len(self._renewed) // _MAX_REGROUPED
        self._to_renew = min(due, len(self._renewed))
        if self._renewing is None:
            self._renew_oldest()
        if not rights.is_owner:
            size = len(snapshot.items)
            self._closable.add(exchange, snapshot.holder, size, is_known=rights.is_known)

    def drop(self, exchange: _Exchange) -> None:
        snapshot, exchange.snapshot = exchange.snapshot, None
        if snapshot is not None:
            del self._renewed[exchange]
            self._closable.remove(exchange)
            self.release(snapshot)

    def release(self, snapshot: Snapshot) -> None:
        self._held.add(snapshot.holder, -len(snapshot.items))

    def renew(self, exchange: _Exchange, snapshot: Snapshot, reader: Reader) -> bool:
        """Whether the reader still may read all records of the snapshot. Then it must keep the
        rights to them that it has now."""
        now = self._state.visibility(reader.viewer)
        if not snapshot.may_be_read(now):
            return False
        snapshot.visibility = snapshot.after = now
        del self._renewed[exchange]
        self._renewed[exchange] = self._state.regrouped
        return True

    def is_current(self) -> bool:
        """No commit that may change rights is under way."""
        return self._state.is_current()

    def _renew_oldest(self) -> None:
        """Renew `_to_renew` of the snapshots whose rights are old, in pieces."""
        self._renewing = None
        oldest = self._state.regrouped - _MAX_REGROUPED // 2
        rest_at = perf_counter() + _RENEWED_S
        for exchange, regrouped in [*islice(self._renewed.items(), self._to_renew)]:
            if regrouped >= oldest or not self.is_current():
                break
            exchange.queue.renew(exchange)
            self._to_renew -= 1
            if perf_counter() > rest_at:
                self._renewing = asyncio.get_running_loop().call_soon(self._renew_oldest)
                return
        self._to_renew = 0

    async def reply(self, message: bytes, exchange: _Exchange, peer: Peer) -> bytes | None:
        """The answer to a message; None: the exchange was closed before its turn. Raises Invalid
        for a malformed message."""
        loop = asyncio.get_running_loop()
        is_known = self._state.visibility(peer.reader.viewer).is_known
        async with self._replies[is_known].of(peer.counted_as):
            if (rest := self._rests_until - loop.time()) > 0:
                await asyncio.sleep(rest)
            # Not before: what is closed while it waits would stay in memory.
            snapshot = exchange.snapshot
            if snapshot is None:
                return None
            self._closable.begin_use(exchange)
            try:
                work = loop.run_in_executor(self._workers, _compared, message, snapshot.items)
                work.add_done_callback(self._rest_after)
                try:
                    reply, _ = await asyncio.shield(work)
                finally:  # its thread works on if this is cancelled
                    await asyncio.gather(work, return_exceptions=True)
            finally:
                self._closable.end_use(exchange)
        if isinstance(reply, Invalid):
            raise reply
        return reply

    def _rest_after(self, work: asyncio.Future[tuple[bytes | Invalid, float]]) -> None:
        if work.cancelled() or work.exception() is not None:
            return
        _, took = work.result()
        if took > _SHORT_S:
            now = asyncio.get_running_loop().time()
            self._rests_until = max(now, self._rests_until) + took

    def count_queued(self, peer: Peer) -> None:
        self._queued.add(_holder(peer), 1)

    def count_done(self, peer: Peer) -> None:
        self._queued.add(_holder(peer), -1)


def _compared(message: bytes, items: Items) -> tuple[bytes | Invalid, float]:
    """What `reply_to` returns or raises, and the processor time that it took."""
    began = thread_time()
    try:
        reply: bytes | Invalid = reply_to(message, items)
    except Invalid as invalid:
        reply = invalid
    return reply, thread_time() - began


class NegentropyQueue:
    """The open ids of one connection; messages are processed in the order they arrived.

    Bounded: `neg_sessions` ids with one message each. An id that was closed, replaced or ended by
    the relay gets no further reply.
    """

    def __init__(self, negentropy: Negentropy, peer: Peer) -> None:
        self._negentropy = negentropy
        self._peer = peer
        self._open: dict[str, _Exchange] = {}
        self._queue: list[tuple[_Exchange, bytes, str]] = []
        """A list because an empty deque would take 760 bytes of each connection."""
        self._task: asyncio.Task[None] | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of the records in its snapshots."""
        snapshots = [exchange.snapshot for exchange in self._open.values()]
        return _RECORD_BYTES * sum([len(each.items) for each in snapshots if each is not None])

    def take(self, message: NegOpen | NegMessage | NegClose) -> None:
        match message:
            case NegOpen(sub, filter_, payload):
                self._start(sub, filter_, payload)
            case NegMessage(sub, payload):
                self._continue(sub, payload)
            case NegClose(sub):
                self._drop(sub)
            case _:
                assert_never(message)

    def _start(self, sub: str, filter_: Filter, payload: bytes) -> None:
        self._drop(sub)  # N77-05
        most = self._negentropy.limits.neg_sessions
        if len(self._open) >= most:
            refused = Refused(Prefix.RATE_LIMITED, f"at most {most} open negentropy sessions")
            self._peer.outbox.put(messages.neg_error(sub, refused))
            return
        exchange = self._open[sub] = _Exchange(self, sub, filter_)
        self._enqueue(exchange, payload)

    def _continue(self, sub: str, payload: bytes) -> None:
        exchange = self._open.get(sub)
        if exchange is None:
            text = "unknown subscription handle"
            self._peer.outbox.put(messages.neg_ended(sub, text))
        elif exchange.is_busy:
            self._refuse(exchange, _TOO_EARLY)
        else:
            exchange.is_busy = True
            self._stop_idle_timer(exchange)
            self._enqueue(exchange, payload)

    def _enqueue(self, exchange: _Exchange, payload: bytes) -> None:
        if self._negentropy.is_busy(self._peer):
            self._refuse(exchange, _busy())
            return
        self._negentropy.count_queued(self._peer)
        self._queue.append((exchange, payload, self._peer.request_id()))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="negentropy")

    async def _run(self) -> None:
        while self._queue:
            await self._answer(*self._queue.pop(0))
            await self._peer.drained()

    async def _answer(self, exchange: _Exchange, payload: bytes, request: str) -> None:
        REQUEST.set(partial(str, request))
        try:
            if exchange.filter is not None:
                await self._peer.turn(work_of((exchange.filter,)))
            if self._is_open(exchange):
                await self._reply(exchange, payload)
        except Refused as refused:
            self._refuse(exchange, refused)
        except StoreFault as fault:
            _log.error("a negentropy message failed: %s", fault)
            self._refuse(exchange, STORE_DOWN)
        except Exception:  # last frame of the task: the queue must go on  # noqa: BLE001
            _log.exception("a negentropy message failed")
            self._refuse(exchange, INTERNAL)
        finally:
            # Before the client can have read the reply, and sends as many as it may again.
            self._negentropy.count_done(self._peer)

    async def _reply(self, exchange: _Exchange, payload: bytes) -> None:
        negentropy = self._negentropy
        if exchange.snapshot is None:
            await self._read(exchange)
            if not self._is_open(exchange):
                return
        reply = await negentropy.reply(payload, exchange, self._peer)
        snapshot = exchange.snapshot
        if reply is None or snapshot is None:
            return
        # Checked when the reply is sent: the reader may have lost rights meanwhile (N29-94).
        is_valid = negentropy.is_current() and negentropy.renew(
            exchange, snapshot, self._peer.reader
        )
        if not is_valid:
            raise _rights_changed()
        self._peer.outbox.put(messages.neg_message(exchange.sub, reply))
        exchange.is_busy = False
        loop = asyncio.get_running_loop()
        exchange.idle_timer = loop.call_later(negentropy.idle_timeout_s, self._time_out, exchange)

    async def _read(self, exchange: _Exchange) -> None:
        assert exchange.filter is not None
        snapshot = await self._negentropy.snapshot(self._peer, exchange.filter)
        exchange.filter = None
        if self._is_open(exchange):
            self._negentropy.hold(exchange, snapshot)
        else:
            self._negentropy.release(snapshot)

    def _time_out(self, exchange: _Exchange) -> None:
        seconds = round(self._negentropy.idle_timeout_s)
        self._end(exchange, messages.neg_ended(exchange.sub, f"no message for {seconds} s"))

    def renew(self, exchange: _Exchange) -> None:
        """The rights of its snapshot are old; see `Negentropy.renew`."""
        snapshot = exchange.snapshot
        if snapshot is not None and not self._negentropy.renew(
            exchange, snapshot, self._peer.reader
        ):
            self._refuse(exchange, _rights_changed())

    def close_for_others(self, exchange: _Exchange) -> None:
        """Others need its memory; see `HeldSets`."""
        self._end(exchange, messages.neg_ended(exchange.sub, _CLOSED_FOR_OTHERS))

    def _refuse(self, exchange: _Exchange, refused: Refused) -> None:
        self._end(exchange, messages.neg_error(exchange.sub, refused))

    def _end(self, exchange: _Exchange, frame: bytes) -> None:
        if self._is_open(exchange):
            self._drop(exchange.sub)
            self._peer.outbox.put(frame)

    def _is_open(self, exchange: _Exchange) -> bool:
        return self._open.get(exchange.sub) is exchange

    def _drop(self, sub: str) -> None:
        exchange = self._open.pop(sub, None)
        if exchange is None:
            return
        self._stop_idle_timer(exchange)
        self._negentropy.drop(exchange)
        for queued in [entry for entry in self._queue if entry[0] is exchange]:
            self._queue.remove(queued)
            self._negentropy.count_done(self._peer)

    @staticmethod
    def _stop_idle_timer(exchange: _Exchange) -> None:
        if exchange.idle_timer is not None:
            exchange.idle_timer.cancel()
            exchange.idle_timer = None

    async def aclose(self) -> None:
        """The connection is closed."""
        for sub in list(self._open):
            self._drop(sub)
        # Not kept: the exception of the task holds its frames, and these hold rows and this object.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
