"""One websocket: frames to the Session, its effects to the pipelines, the outbox to the socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from enum import Enum
from functools import partial
from itertools import count
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, assert_never, cast

from aiohttp import WSCloseCode, WSMsgType, web

from relay.access.actors import attestation_at_login
from relay.access.shares import Shares, Standing, network_of
from relay.access.visibility import BANNED
from relay.errors import Invalid, Prefix, Refused, WriteOutcome, ok_reply
from relay.facts import Origin
from relay.nostr import messages
from relay.nostr.keys import is_signed
from relay.nostr.messages import (
    BadFrame,
    Close,
    Count,
    NegClose,
    NegMessage,
    NegOpen,
    Publish,
    Subscribe,
)
from relay.observe import REQUEST, SAMPLED_OF, request_id
from relay.read.negentropy import NegentropyQueue
from relay.read.outbox import FEW_UNREAD, UNREAD_SHARE, Outbox
from relay.read.query_queue import QueryQueue
from relay.read.scan import FILTER_S, SEARCH_S, TAG_S, work_of
from relay.server.session import POLICY_VIOLATION, Hangup, Reply, Session, VerifyLogin
from relay.server.turns import Slice
from relay.server.websocket import CLOSE_S, FRAME_HEAD, MESSAGES
from relay.write.judge import BAD_SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ipaddress import IPv4Address, IPv6Address
    from typing import Never

    from relay.errors import Result
    from relay.nostr.agents import Attestation
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.messages import ClientMessage
    from relay.nostr.nip42 import RelayAddress
    from relay.server.services import ServerServices
    from relay.server.session import Effect
    from relay.server.socket_input import SocketInput
    from relay.server.turns import Account, Turns
    from relay.server.websocket import RelaySocket

_log = logging.getLogger(__name__)

_MAX_UNANSWERED: Final = 1024
"""Events of one connection that wait for their OK; with more its socket is not read."""
_MAX_UNANSWERED_WEIGHT: Final = 4 << 20
"""… or with more than this many bytes of them in memory, as `weight_of` estimates it."""
_MAX_UNSENT: Final = 64 << 20
"""Bytes that wait in the outboxes of all connections, see `Shares`; with more, a connection gets
the next stored rows when it has itself read most of what waits for it, whatever others read."""
MAX_UNREAD: Final = 128 << 20
"""The same with live rows; with more, connections are closed, see `UnreadRows`."""
_MAX_OPEN: Final = 256 << 20
"""`Session.open_weight` of all connections, see `Shares`."""
_ORDINARY_OPEN: Final = 1 << 20
"""Weight that those of one address may have whatever others have: some 3,000 authors."""
_FEW_OPEN: Final = 16 << 10
"""Weight up to which a connection's subscriptions do not count: none of them is refused."""
_LINGER_S: Final = 5.0
"""How long a client may still read what was sent before the close frame. It keeps its place until
then: or clients that read nothing and come again would have as much memory with each."""
_STOP_S: Final = 2.5
"""How long a stop waits for the OKs of accepted events."""
_HEARTBEAT_S: Final = 60.0
"""A client that sends nothing for this time gets a ping; after half of it without an answer the
connection is closed."""
_CHECKS: Final = 12
"""Checks of each connection in `_HEARTBEAT_S`."""
_CHECKED_AT_ONCE: Final = 100
"""Connections; a ping takes 15 us of the loop."""
_PING: Final = b"\x89\x00"
_CONNECTIONS_OF_ONE: Final = 10
"""Without a known key the connections of one address have together no more subscriptions than so
many of them may have. An event of somebody else may have to be sent to each: 3 us of the loop."""
_LARGE_FRAME: Final = 16 << 10
"""Bytes; parsing the content of a larger one can take 0.2 s of the loop."""
_FEW_VALUES: Final = 768
"""Filter values in a frame, where 128 bytes count as one more value, a tag name as 20, and a search
as 100: 500 authors, or 700 short tag values. They take the loop little more than 2 ms."""
_VALUE_S: Final = 3e-6
"""Estimated time on the loop of such a value: to parse it, and what `work_of` estimates."""
_FEW_VALUES_FRAME: Final = 384
"""Bytes; a smaller one is not looked at."""
_EVENT: Final = re.compile(rb'\s*+\[\s*+"EVENT"')
_KEPT: Final = re.compile(rb'\s*+\[\s*+"(?:EVENT|AUTH)"')
"""Frames that are taken although the client has left: events, and the logins they may need."""
_LOGIN: Final = re.compile(rb'\s*+\[\s*+"AUTH"')
_FIRST_MESSAGES: Final = 4
"""Frames of a connection from a network of members that wait among what arrives, while it is not
logged in: in turns of their account they would wait behind all others without a known key."""
_FIRST_BYTES: Final = 4096
"""Bytes that these have together at most."""
_FIRST_LOGIN: Final = 1024
"""Bytes of a login among these that is handled without a further turn once it is read."""
_HANDLED: Final = MESSAGES | {WSMsgType.PING, WSMsgType.PONG}
_FRAME_S: Final = 3e-6
"""Estimated time of aiohttp for a frame, spent before the measurement here begins."""
_CONNECTION_IDS: Final = count(1)
_MAX_DELAY_S: Final = 3600
"""Longest delay of a timer, because the system clock may be set meanwhile."""
_BINARY: Final = BadFrame(Invalid("binary frames are not Nostr messages"))
_SLOW: Final = Refused(Prefix.ERROR, "you read too slowly")


class Stop(Enum):
    """Why the relay closes every connection: code and reason of the close frame."""

    FOR_GOOD = (WSCloseCode.GOING_AWAY, messages.STOPPING)
    RESTART = (WSCloseCode.SERVICE_RESTART, messages.RESTARTING)


class Connection:
    """`Peer` of the read pipeline, `Author` of the write pipeline."""

    __slots__ = (
        "_address",
        "_all_answered",
        "_at_release",
        "_counted",
        "_drain",
        "_expiry",
        "_hangup",
        "_input",
        "_is_over",
        "_is_stopping",
        "_logged_in",
        "_make_room",
        "_may_read_on",
        "_negentropy",
        "_open_of_all",
        "_open_weight",
        "_outbox_bytes",
        "_queries",
        "_request",
        "_rows_bytes",
        "_services",
        "_session",
        "_silent_checks",
        "_slice",
        "_socket",
        "_turns",
        "_unanswered",
        "_unanswered_weight",
        "_unsent_of_all",
        "_unsent_upto",
        "connection",
        "counted_as",
        "is_local",
        "message",
        "opened_at",
        "outbox",
        "reader",
        "unsent",
        "unsent_since",
    )

    def __init__(
        self,
        services: ServerServices,
        request: web.Request,
        socket: RelaySocket,
        addresses: frozenset[RelayAddress],
        turns: Turns,
        *,
        address: IPv4Address | IPv6Address | None,
        trusted: bool,
        logged_in: Callable[[Connection], object],
        counted_as: str | None = None,
        is_local: bool = False,
        unsent: Shares | None = None,
        open_filters: Shares | None = None,
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        """`logged_in` is called after each login, and when its keys become known or unknown.
        `counted_as`: the address whose connections have turns together; None: it has its own.
        `is_local`: see `Facts.is_local`.
        `unsent`, `open_filters`: of all connections. `make_room` is called when more is unread than
        `MAX_UNREAD`."""
        transport = request.transport
        assert transport is not None
        limits = services.config.limits
        self._services = services
        self._outbox_bytes = limits.outbox_bytes
        self._request: web.Request | None = request
        self._input = cast("SocketInput", request.protocol)
        self._address = address
        self.connection = next(_CONNECTION_IDS)
        self.message = 0
        """Number of the frame that is being handled, from 1."""
        self._socket = socket
        self._at_release: tuple[int, int] | None = None
        """What `arrived` gave at `release`: the socket may be open for longer, until its client has
        read all."""
        self.reader = self._session = Session(
            secrets.token_hex(16),
            addresses,
            max_subscriptions=limits.max_subscriptions,
            max_live_filters=limits.max_live_filters,
            trusted=trusted,
        )
        self.outbox = Outbox(
            transport,
            services.flush_queue,
            max_bytes=limits.outbox_bytes,
            overflow=self._overflowed,
            unread=self._left_unread,
            network=None if counted_as is None else network_of(counted_as),
        )
        self._queries = QueryQueue(services.queries, self)
        self._negentropy = NegentropyQueue(services.negentropy, self)
        self._unsent_of_all = Shares() if unsent is None else unsent
        self._make_room = make_room
        self.unsent = 0
        """Bytes of this connection in `_unsent_of_all`."""
        self.opened_at = perf_counter()
        self.unsent_since = 0.0
        """`perf_counter` since which something has been unread."""
        self._unsent_upto = 0
        """`Outbox.written_bytes` at that time."""
        self._is_over = False
        """True: the connection ends, and what it had counts no longer, except for `unsent`."""
        self._open_of_all = Shares() if open_filters is None else open_filters
        self._open_weight = 0
        """Weight of this connection in `_open_of_all`."""
        self._rows_bytes = 0
        """Bytes of the rows that its queries hold."""
        self._turns = turns
        self.counted_as = counted_as
        self.is_local = is_local
        self._counted = 0
        """Subscriptions of this connection in `Account.subscriptions`."""
        self._slice = Slice(turns, thread_time, turns.account(counted_as))
        self._unanswered = 0
        self._unanswered_weight = 0
        self._may_read_on: asyncio.Event | None = None
        self._hangup: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None
        self._logged_in = logged_in
        self._expiry: asyncio.TimerHandle | None = None
        """Ends attestations when the first of them ends."""
        self._silent_checks = 0
        """Checks since the client was silent for `_HEARTBEAT_S` and got a ping."""
        self._is_stopping = False
        self._all_answered: asyncio.Event | None = None
        """Awaited when the relay stops."""

    # -- Peer and Author --------------------------------------------------------------------------

    @property
    def authenticated(self) -> frozenset[str]:
        return self._session.viewer.keys

    @property
    def attested(self) -> frozenset[Attestation]:
        return self._session.viewer.attested

    @property
    def is_known(self) -> bool:
        """Whether one of its keys is known here now."""
        return self._services.state.visibility(self._session.viewer).is_known

    @property
    def is_owner(self) -> bool:
        return self._services.state.visibility(self._session.viewer).is_owner

    @property
    def is_over(self) -> bool:
        return self._is_over or self._transport is None

    @property
    def _transport(self) -> asyncio.Transport | None:
        return None if self._request is None else self._request.transport

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        return self._address

    @property
    def subscriptions(self) -> int:
        return self._session.number_open

    @property
    def is_reading(self) -> bool:
        unsent = self.outbox.buffered_bytes
        if unsent >= self._outbox_bytes // UNREAD_SHARE:
            return False
        return unsent <= FEW_UNREAD or self._unsent_of_all.has_room_for(self, _MAX_UNSENT)

    def count_unsent(self, few: int = FEW_UNREAD) -> None:
        """Count in `unsent` what waits for the client now, if it is more than `few` bytes."""
        if self._is_over:
            return
        unsent = self.outbox.waiting_bytes
        if unsent <= few:
            unsent = 0
        self._set_unsent(unsent)
        outbox = self.outbox
        if unsent and outbox.read_bytes >= self._unsent_upto and not outbox.held_bytes:
            self._begin_unsent()  # it has read all that waited, and then more was written

    def _begin_unsent(self) -> None:
        self.unsent_since = perf_counter()
        self._unsent_upto = self.outbox.written_bytes

    def _set_unsent(self, unsent: int) -> None:
        if unsent != self.unsent:
            if not self.unsent:
                self._begin_unsent()
            self._unsent_of_all.add(self.counted_as, unsent - self.unsent)
            self.unsent = unsent

    def arrived(self) -> tuple[int, int]:
        """See `Messages.arrived`."""
        return self._socket.arrived() if self._at_release is None else self._at_release

    @property
    def is_closing(self) -> bool:
        """The relay closes it: its client has been told why, and may not have read that yet."""
        return self._hangup is not None

    @property
    def taken_bytes(self) -> int:
        """Bytes of all messages that were taken from the socket; none is once it is over."""
        return self._socket.taken_bytes if self._at_release is None else self._at_release[1]

    @property
    def held_bytes(self) -> int:
        """Bytes in memory for this connection, as its limits count them."""
        outbox = self.outbox
        of_client = self._open_weight + self._unanswered_weight + self._input.unfinished()
        of_queries = self._queries.held_bytes + self._rows_bytes + self._negentropy.held_bytes
        return of_client + outbox.waiting_bytes + outbox.queued_bytes + of_queries

    @property
    def is_beginning(self) -> bool:
        """Whether what it sends waits as what arrives: it has sent little, from a network of
        members, and is not logged in."""
        address = self.counted_as
        return (
            address is not None
            and self.message <= _FIRST_MESSAGES
            and not self._session.viewer.keys
            and self.taken_bytes <= _FIRST_BYTES
            and self._turns.is_of_members(address)
        )

    @property
    def queries_waiting(self) -> int:
        return len(self._queries)

    async def drained(self) -> None:
        work = self._slice
        work.begin()
        self.outbox.flush()
        is_over = work.end()
        self.count_unsent()
        if not self.is_reading:
            with contextlib.suppress(ConnectionError):
                await self._read_by_client()
            self.count_unsent()
        elif is_over:
            await work.rest()
        else:
            await asyncio.sleep(0)  # let other tasks run between two pages

    @property
    def is_compressed(self) -> bool:
        """See `Messages.is_compressed`."""
        return bool(self._socket.compress)

    @property
    def account(self) -> Account:
        """The turns that its work counts for."""
        return self._slice.account

    @property
    def has_time(self) -> bool:
        return self._slice.has_time

    async def turn(self, seconds: float) -> None:
        await self._slice.take(seconds)

    def worked(self, seconds: float) -> bool:
        return self._slice.add(seconds)

    def request_id(self) -> str:
        return request_id(self.connection, self.message)

    def hold(self, size: int) -> None:
        self._rows_bytes += size

    def closed_by_relay(self, sub: str) -> None:
        self._session.closed_by_relay(sub)
        self._count()

    def _count(self, number: int | None = None) -> None:
        """Count its open subscriptions; `number`: as if it had so many."""
        if self._is_over:
            number = 0
        number = self._session.number_open if number is None else number
        self._slice.account.subscriptions += number - self._counted
        self._counted = number
        weight = self._session.open_weight if number else 0
        if weight <= _FEW_OPEN:
            weight = 0
        if weight != self._open_weight:
            self._open_of_all.add(self.counted_as, weight - self._open_weight)
            self._open_weight = weight

    def _subscribe(self, sub: str, filters: tuple[Filter, ...]) -> None:
        self._count()
        account = self._slice.account
        most = _CONNECTIONS_OF_ONE * self._services.config.limits.max_subscriptions
        if not account.is_known and account.subscriptions > most:
            text = f"at most {most} open subscriptions from your address without a known key"
        elif self._open_weight and not self._has_room_for_filters():
            text = "too many filters are open on this relay, try again later"
        else:
            self._queries.subscribe(sub, filters)
            return
        self.closed_by_relay(sub)
        self.outbox.put(messages.closed(sub, Refused(Prefix.RATE_LIMITED, text)))

    def _has_room_for_filters(self) -> bool:
        rights = self._services.state.visibility(self._session.viewer)
        of_all, address = self._open_of_all, self.counted_as
        return of_all.room_for(rights, address, _MAX_OPEN, _ORDINARY_OPEN) >= 0

    def answered(self, event: Event, weight: int, result: Result) -> None:
        self._unanswered -= 1
        self._unanswered_weight -= weight
        if result is WriteOutcome.STORED:
            self.outbox.put(messages.ok(event.id, None))
        else:
            accepted, text = ok_reply(result)
            self.outbox.put(messages.ok_text(event.id, text, accepted=accepted))
        if self._all_answered is not None and not self._unanswered:
            self._all_answered.set()
        if (
            self._may_read_on is not None
            and self._unanswered < _MAX_UNANSWERED // 2
            and self._unanswered_weight < _MAX_UNANSWERED_WEIGHT // 2
        ):
            self._may_read_on.set()

    def close_subscriptions(self) -> None:
        """One of its keys was banned: close what is open; `gate` refuses further requests
        (N42-16)."""
        self._queries.end_all()
        for sub in self._session.open:
            self.closed_by_relay(sub)
            self.outbox.put(messages.closed(sub, BANNED.refused()))

    def close_blocked(self) -> None:
        """Close it: its address was blocked (N86-27)."""
        self._queries.end_all()
        self._hang_up(POLICY_VIOLATION, "blocked: your address is blocked")

    def close_displaced(
        self, text: str = "too many connections; a member who logs in stays"
    ) -> None:
        """Close it: its place was given to another connection, or `text` says why."""
        self._queries.end_all()
        if self.outbox.buffered_bytes >= self._outbox_bytes // UNREAD_SHARE:
            self.cut_off()  # it has no place to keep until it reads the reason
        self._hang_up(WSCloseCode.TRY_AGAIN_LATER, f"error: {text}")

    def cut_off(self) -> None:
        """Close the socket at once: what is unsent is dropped."""
        transport = self._transport
        if transport is not None:
            transport.abort()

    def trust(self, *, trusted: bool) -> None:
        """After a reload: whether `trusted_readers` has the client's address."""
        self._session.trust(trusted=trusted)

    # -- the loop of one socket -------------------------------------------------------------------

    async def serve(self) -> None:
        """Answer the handshake. Returns when the connection is closed, by either side."""
        socket, work = self._socket, self._slice
        traffic = self._services.metrics.traffic
        REQUEST.set(self.request_id)
        _log.debug("connected", extra={"address": str(self._address)})
        try:
            socket.started = partial(self._input.carries, self)
            assert self._request is not None
            await socket.prepare(self._request)
            self.outbox.put(self._session.greeting())
            while True:
                if socket.compress and socket.has_arrived:
                    frame = await self._next_compressed()
                else:
                    frame = await socket.next()
                if frame.type not in _HANDLED:  # the socket is closed, or closes
                    break
                if self._is_stopping:
                    continue
                traffic.frames_in += 1
                self.message += 1
                if frame.type in MESSAGES:
                    # Before anything else is awaited: input that comes meanwhile is counted too.
                    socket.taken += 1
                    socket.taken_bytes += len(frame.data) + FRAME_HEAD
                if frame.type is WSMsgType.TEXT:
                    if self.is_over and self._may_skip(frame.data):
                        continue  # nobody is there to be answered
                    try:
                        await self._take_in_turn(frame.data)
                    except ConnectionError:
                        if not self._may_skip(frame.data):
                            raise
                        continue
                elif frame.type is WSMsgType.BINARY:
                    work.begin()
                    self._take(_BINARY, frame.data)
                else:
                    if frame.type is WSMsgType.PING:
                        await socket.pong(frame.data)
                    work.begin()  # after the pong: it may wait until the client reads
                    if work.end(_FRAME_S):
                        await self._rest_while_open()
                    continue
                traffic.bytes_in += len(frame.data)
                # Not kept in memory while the next one is awaited: parsed it can take 11 MB.
                del frame
                is_over = work.end(_FRAME_S)
                if (
                    self._unanswered >= _MAX_UNANSWERED
                    or self._unanswered_weight >= _MAX_UNANSWERED_WEIGHT
                ):
                    await self._wait_for_answers()
                if self._hangup is not None:
                    break
                if is_over:  # more frames may be buffered, and reading those never waits
                    await self._rest_while_open()
        except ConnectionError:
            pass  # closed before a pong was sent, or while answers or a turn were waited for
        finally:
            self._is_over = True
            self._count()
            if self._expiry is not None:
                self._expiry.cancel()
            self.outbox.close()
            try:
                try:
                    if self._session.is_heavy:
                        await work.rest()
                finally:
                    await self._queries.aclose()
                    await self._negentropy.aclose()
                    work.charge()
                transport = self._transport
                if self._hangup is not None:
                    await self._hangup
                elif transport is not None and transport.get_write_buffer_size():
                    await self._linger(transport)
            finally:
                self._set_unsent(0)
            _log.debug("connection closed")

    def release(self) -> None:
        """After `serve`, when nothing lists it any more: free what belongs to its socket, 20 kB.
        Its last events may wait in the lane for minutes, and each keeps it."""
        self._at_release = self._socket.arrived()
        self._request = None
        del self._socket

    async def _next_compressed(self) -> Any:
        """The next frame. When aiohttp gives one it expands a further one: this is work, too."""
        self._slice.begin()
        frame = await self._socket.next()
        if self._slice.end():
            await self._rest()
        return frame

    async def _rest_while_open(self) -> None:
        """Wait for a turn, or until the socket is closed: then what came before is taken, as far as
        this iteration of the loop has time."""
        with contextlib.suppress(ConnectionError):
            async with self._input.while_open():
                await self._rest()

    async def _rest(self) -> None:
        work, address = self._slice, self.counted_as
        if address is not None and self.is_beginning:
            await work.rest_as_arriving(address)
        else:
            await work.rest()

    def _may_skip(self, data: bytes) -> bool:
        """Whether this message of a client that has left is dropped alone: events may have arrived
        behind it."""
        return self._hangup is None and not _KEPT.match(data)

    async def _take_in_turn(self, data: bytes) -> None:
        """Raises ConnectionError when it had to wait and is dropped, see `SocketInput.waiting`."""
        work = self._slice
        is_long = len(data) > _LARGE_FRAME or self._session.is_heavy
        # Others may have sent as much as a long one just now.
        if is_long or not (work.has_time or self._is_first_login(data)):
            async with self._input.waiting(len(data), is_kept=bool(_KEPT.match(data))):
                await self._rest()
        work.begin()
        costly_s = self._costly_s(data)
        if costly_s:
            work.end()
            await self._take_costly(data, costly_s)
        else:
            self._take_text(data)

    def _is_first_login(self, data: bytes) -> bool:
        return self.is_beginning and len(data) <= _FIRST_LOGIN and bool(_LOGIN.match(data))

    def _costly_s(self, data: bytes) -> float:
        """Estimated seconds on the loop, if it has many filter values, tag names or searches.

        0: few, or the client has a known key."""
        if len(data) <= _FEW_VALUES_FRAME or self._slice.account.is_known or _EVENT.match(data):
            return 0.0
        values = data.count(b",") + len(data) // 128
        tags = data.count(b'"#') + data.count(b'"\\u0023')
        # Each letter of the key may be written as an escape.
        searches = data.count(b'"search"') + data.count(b"\\u00")
        seconds = values * _VALUE_S + tags * TAG_S + searches * SEARCH_S
        if seconds <= _FEW_VALUES * _VALUE_S:
            return 0.0
        return seconds + data.count(b"{") * FILTER_S

    async def _take_costly(self, data: bytes, seconds: float) -> None:
        """Take a costly frame when its turn comes, see `CostlyWork`: 9,900 values take 30 ms
        without a pause. `seconds`: estimated."""
        costly, work = self._turns.costly, self._slice
        account = work.account
        async with self._input.waiting(len(data)):
            await costly.begin(account, seconds)
        took = 0.0
        try:
            if not work.has_time:
                async with self._input.waiting(len(data)):
                    await work.rest()
            work.begin()
            if not self._is_stopping and self._hangup is None:
                # Not by the clock: waiting for the processor is no work that others must be spared.
                message = self._take_text(data)
                took = work.so_far
                if isinstance(message, Subscribe | Count):
                    took += work_of(message.filters)  # of the query, which follows
        finally:
            costly.end(account, took)

    def _take_text(self, data: bytes) -> ClientMessage:
        services = self._services
        message = messages.parse(data, services.terms, services.config.limits.max_filters)
        if self.message % SAMPLED_OF == 1:
            services.metrics.write.parse.add(self._slice.so_far)
        self._take(message, data)
        return message

    def _take(self, message: ClientMessage, data: bytes) -> None:
        outbox = self.outbox
        outbox.is_held = True
        try:
            for effect in self._session.receive(message, self._services.clock(), len(data)):
                self._act(effect)
        finally:
            outbox.is_held = False
            outbox.flush()

    def _act(self, effect: Effect) -> None:
        match effect:
            case Publish(event):
                self._unanswered += 1
                # Not in one statement: `submit` may call `answered`, which changes both numbers.
                is_only = self._unanswered == 1
                weight = self._services.ingest.submit(event, self, Origin.WIRE, is_only=is_only)
                self._unanswered_weight += weight
            case Subscribe(sub, filters):
                self._subscribe(sub, filters)
            case Close(sub):
                self._queries.cancel(sub)
                self._count()
            case Reply(payload):
                self.outbox.put(payload)
            case Count(sub, filters):
                self._queries.count(sub, filters)
            case NegOpen() | NegMessage() | NegClose():
                self._negentropy.take(effect)
            case VerifyLogin(event):
                self._log_in(event)
            case Hangup(code, reason):
                self._hang_up(code, reason)
            case _:
                assert_never(effect)

    def _log_in(self, event: Event) -> None:
        state, now = self._services.state, self._services.clock()
        # On the loop (25 µs): the next message of the client must already find the key.
        if not is_signed(event):
            reply = self._session.login_refused(event, BAD_SIGNATURE.refused())
        elif event.pubkey in state.actors.banned:
            reply = self._session.login_refused(event, BANNED.refused())
            self._services.metrics.refusals.note(
                BANNED, event, now, self.connection, self.address, self.message
            )
        else:
            try:
                attestation = attestation_at_login(event, state.actors, state.groups, now)
            except Refused as refused:
                reply = self._session.login_refused(event, refused)
            else:
                reply = self._session.logged_in(event, attestation)
                self._queries.logged_in()
                self._end_attestations()
                self._take_account()
        self.outbox.put(reply.payload)

    def _end_attestations(self) -> None:
        now = self._services.clock()
        until = self._session.end_attestations(now)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if until is not None:
            delay = min(until - now, _MAX_DELAY_S)
            self._expiry = asyncio.get_running_loop().call_later(delay, self._end_attestations)

    async def _wait_for_answers(self) -> None:
        """Raises ConnectionError when the socket is closed."""
        self._may_read_on = asyncio.Event()
        async with self._input.while_open():
            await self._may_read_on.wait()
        self._may_read_on = None

    def _take_account(self) -> None:
        """Have the turns of the standing of its keys, which may have changed."""
        rights = self._services.state.visibility(self._session.viewer)
        account, name, standing = self._slice.account, *rights.counted_as(self.counted_as)
        if standing is Standing.ADMITTED and self.counted_as is not None:
            self._turns.note_admitted(self.counted_as)
        if (name, standing) != (account.name, account.standing):
            self._count(0)
            self._slice.account = self._turns.account(name, standing)
            self._count()
            self.outbox.count_for(None if name is None else network_of(name))
        if self._session.viewer.keys:
            self._logged_in(self)

    def check(self) -> None:
        """Ping a client that was silent for `_HEARTBEAT_S`; close the connection if it stays
        silent for half of it."""
        self._take_account()
        self._input.check()
        self.count_unsent(few=0)  # little of each of thousands is much
        if self.unsent and not self._unsent_of_all.has_room_for(self, MAX_UNREAD):
            self._make_room()
        if self._input.silent_s < _HEARTBEAT_S:
            self._silent_checks = 0
            return
        if self._silent_checks == 0:
            self.outbox.put_framed(_PING)
        elif self._silent_checks >= _CHECKS // 2:
            self.cut_off()
        self._silent_checks += 1

    # -- closing ----------------------------------------------------------------------------------

    def _left_unread(self, before: int) -> None:
        """`before`: see `Outbox`."""
        if before <= FEW_UNREAD:  # it had read what was counted last
            self._set_unsent(0)
        self.count_unsent()
        if not self._unsent_of_all.has_room_for(self, MAX_UNREAD):
            self._make_room()

    def close_unread(self) -> None:
        """Close it: all clients together have too much unread, and this one most of it."""
        self.cut_off()  # a close frame would wait behind it
        self._set_unsent(0)
        self._too_slow()

    def _overflowed(self) -> None:
        # Not at once: it may be called while the fanout iterates over the subscriptions.
        asyncio.get_running_loop().call_soon(self._too_slow)

    def _too_slow(self) -> None:
        self._services.metrics.too_slow()
        self._queries.end_all()
        self.outbox.discard()  # nobody would read it in time, and it takes the loop 1 ms a megabyte
        self._hang_up(WSCloseCode.TRY_AGAIN_LATER, f"{_SLOW.prefix}: {_SLOW.text}")

    def _hang_up(self, code: int, reason: str) -> None:
        if self._hangup is None and not self._is_over:
            self.outbox.close()
            self._hangup = asyncio.create_task(self._close(code, reason), name="hang up")

    async def _close(self, code: int, reason: str) -> None:
        transport = self._transport
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._socket.close(code=code, message=reason.encode(), drain=False)
        if transport is not None:
            await self._linger(transport)

    async def _linger(self, transport: asyncio.Transport) -> None:
        """Wait while the client reads what was sent, but not for long: a transport that is closed
        stays open until all is read, however long that takes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LINGER_S
        loop.call_at(end, transport.abort)
        if not self._is_stopping:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._read_by_client()

    async def _read_by_client(self) -> None:
        """Wait until the client has read most of what was sent. Raises ConnectionError.

        All tasks that wait in `drain` share one future, and the first that is cancelled cancels it
        for the others. So only one task waits there, which nobody cancels.
        """
        if self._drain is None or self._drain.done():
            assert self._request is not None
            self._drain = asyncio.create_task(self._request.writer.drain(), name="drain")
            self._drain.add_done_callback(_retrieve)
        await asyncio.shield(self._drain)

    async def stop(self, why: Stop) -> None:
        """The relay stops: CLOSED for what is open, the OKs that are still due, a close frame."""
        self._is_stopping = True
        code, said = why.value
        self._queries.end_all()
        for sub in self._session.open:
            self.outbox.put(messages.closed(sub, said))
        if self._unanswered:
            self._all_answered = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._all_answered.wait()
        self._hang_up(code, said.text)
        assert self._hangup is not None
        await asyncio.wait([self._hangup], timeout=2 * CLOSE_S)
        if not self._hangup.done():
            self.cut_off()


def _retrieve(drain: asyncio.Task[None]) -> None:
    """Look at its exception: perhaps no task waits for it any more, and asyncio would log that."""
    if not drain.cancelled():
        drain.exception()


async def check_all(connections: Iterable[Connection]) -> Never:
    """`check` the open connections again and again. One task for all: a timer of each connection
    would take 700 bytes."""
    while True:
        await asyncio.sleep(_HEARTBEAT_S / _CHECKS)
        for number, each in enumerate(tuple(connections), 1):
            try:
                each.check()
            except Exception:  # the others must be checked  # noqa: BLE001
                _log.exception("a connection could not be checked")
            if number % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
