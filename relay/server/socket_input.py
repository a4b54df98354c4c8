"""Input of sockets that is not parsed yet, or belongs to a request or message that has not arrived
whole: bounded in bytes, and in the time that the loop takes to parse it.

aiohttp limits each header but not their sum, and each message but not those of all connections; and
it parses as long as there is input. Invariants: a websocket's input is parsed only while few of its
messages wait to be handled, and only while this iteration of the loop has time; the rest waits as
it came, and counts as unfinished; while some input waits, the transport is not read.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from relay.access.quotas import subnet_of
from relay.access.shares import ByNetwork
from relay.server.http import FORWARDED, MAX_HEAD, unparsed_address
from relay.server.turns import Slice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
    from ipaddress import IPv4Network, IPv6Network
    from typing import Any

    from aiohttp import StreamReader
    from aiohttp.web_protocol import _RequestFactory

    from relay.server.turns import Account, Turns

_SMALL_HEAD: Final = 4096
"""Bytes; browsers send some 600 without cookies."""
_PIECE: Final = 4096
"""Bytes that are parsed between two looks at the time."""
_FRAMES_PIECE: Final = 16_384
"""The same of a websocket; 1 ms of the loop when all frames are empty. A piece takes 2 us more."""
_COMPRESSED_PIECE: Final = 1024
"""The same of one with compression: they expand to at most 1 MB, 5 ms of the loop."""
MAX_UNFINISHED: Final = 64 << 20
"""Bytes of unfinished messages (their end has not arrived) of all websockets, and of those that
wait in `SocketInput.waiting`."""
_SMALL: Final = 16_384
"""Bytes up to which an unfinished message counts only at `SocketInput.check`."""
_OF_UNKNOWN: Final = 4
"""Sockets without a known key keep this fraction (1/4) of `MAX_UNFINISHED`."""


_KEPT_HEADERS: Final = frozenset(
    name.lower()
    for name in (
        *FORWARDED,
        hdrs.HOST,
        hdrs.ORIGIN,
        hdrs.CONNECTION,
        hdrs.UPGRADE,
        hdrs.SEC_WEBSOCKET_EXTENSIONS,
        hdrs.SEC_WEBSOCKET_KEY,
        hdrs.SEC_WEBSOCKET_PROTOCOL,
        hdrs.SEC_WEBSOCKET_VERSION,
    )
)
"""Headers of a websocket's request that are read, some of them again after a reload."""


class Messages(Protocol):
    """A websocket, as far as its input is concerned."""

    counted_as: str | None
    """The address whose connections share limits; None: the connection has its own."""

    @property
    def is_known(self) -> bool:
        """Whether a key that is known here has logged in."""

    @property
    def is_beginning(self) -> bool:
        """Whether its first messages, which are few, wait as requests do before they are parsed."""

    @property
    def account(self) -> Account:
        """The turns that its input counts for."""

    @property
    def is_compressed(self) -> bool:
        """Whether its frames may be compressed."""

    @property
    def taken_bytes(self) -> int:
        """Bytes of the messages that were taken to be handled, of all that have `arrived`."""

    def arrived(self) -> tuple[int, int]:
        """How many messages have arrived whole, and their bytes; control frames do not count."""


class _Place(NamedTuple):
    """Where sockets count together."""

    address: Hashable
    is_known: bool
    """They have a known key."""


class Unfinished:
    """The unfinished messages of all websockets."""

    def __init__(self) -> None:
        self._held: dict[bool, ByNetwork[SocketInput]] = {False: ByNetwork(), True: ByNetwork()}
        """Sockets without a known key (False), and with one; of each address, the socket that has
        been silent for longest comes first."""
        self._places: dict[SocketInput, _Place] = {}
        """Where each socket is in `_held`."""

    @property
    def total(self) -> int:
        """Bytes of all unfinished messages that are counted."""
        return sum(each.total for each in self._held.values())

    def note(self, sender: SocketInput, size: int) -> None:
        """The socket's unfinished message has `size` bytes. When all together are too large,
        sockets of the network with most are closed, and in it of the address with most: among
        those without a known key while these have more than their share, else among the others."""
        place = self._places.get(sender)
        if place is not None:
            self._held[place.is_known].touch(sender, place.address)
        self._count(sender, size)
        self._make_room()

    def note_any(self, sender: SocketInput, size: int) -> None:
        """As `note`, now and then, also for few bytes; the socket keeps its place."""
        self._count(sender, size, few=0)
        self._make_room()

    def _make_room(self) -> None:
        while self.total > MAX_UNFINISHED:
            is_known = self._held[False].total <= MAX_UNFINISHED // _OF_UNKNOWN
            first = self._held[is_known].oldest()
            assert first is not None
            self._end(first)

    def _count(self, sender: SocketInput, size: int, few: int = _SMALL) -> None:
        place = self._places.get(sender)
        if place is None:
            if size > few:
                place = self._places[sender] = _Place(sender.address, sender.is_known)
                self._held[place.is_known].add(sender, place.address, size)
        elif size > few:
            self._held[place.is_known].resize(sender, place.address, size)
        else:
            del self._places[sender]
            self._held[place.is_known].discard(sender, place.address)

    def _end(self, sender: SocketInput) -> None:
        size, place = sender.unfinished(), self._places[sender]
        if sender.is_known is not place.is_known:  # since it was counted
            self._count(sender, 0)
            self._count(sender, size)
        elif (
            size < self._held[place.is_known].all[sender]
        ):  # counted before it was parsed; keeps its place
            self._count(sender, size)
        else:
            sender.drop()
            self._count(sender, 0)


class SocketInput(web.RequestHandler):
    """The protocol of one socket: aiohttp's, with bounds."""

    __slots__ = (
        "_arrived",
        "_body",
        "_fresh",
        "_head",
        "_heard_at",
        "_held",
        "_is_at_head",
        "_is_compressed",
        "_is_dropped",
        "_is_kept",
        "_is_refused",
        "_is_small",
        "_leave",
        "_left",
        "_resting",
        "_said",
        "_trusted_proxies",
        "_unfinished",
        "_waiting",
        "_websocket",
        "_work",
        "checks",
        "client_address",
    )

    def __init__(
        self,
        server: web.Server,
        turns: Turns,
        unfinished: Unfinished,
        trusted_proxies: Sequence[IPv4Network | IPv6Network] = (),
        **settings: Any,
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self._unfinished = unfinished
        self._trusted_proxies = trusted_proxies
        self._work = Slice(turns, thread_time)
        self._heard_at = perf_counter()
        self._resting: asyncio.Task[None] | None = None
        self._left = b""
        """Input that waits to be parsed: for the socket's turn, or until messages are handled."""
        self._head = 0
        """Bytes received since the last request head or body was complete."""
        self._body: StreamReader | None = None
        """Body of the newest request."""
        self._is_small = False
        """Whether the head of the newest request has few bytes."""
        self._is_at_head = True
        """Whether the next input begins a request: proxies send nothing behind one before it is
        answered."""
        self._said = ""
        """What `_sender` said of the newest head, when its first bytes came."""
        self._is_refused = False
        """The newest request is not well-formed: nothing behind it is parsed."""
        self.checks = 0
        """How often `HttpSockets` has looked at it while it was no websocket."""
        self.client_address = ""
        """Address of the newest request's client, see `subnet_of`; empty: no request yet, or a
        websocket."""
        self._websocket: Messages | None = None
        self._is_compressed = False
        self._arrived = (0, 0)
        """`Messages.arrived` when `_held` was computed."""
        self._held = 0
        """Bytes of the message that was unfinished at that time."""
        self._fresh = 0
        """Bytes received since that time."""
        self._waiting = 0
        """Bytes of a whole message, see `waiting`."""
        self._is_kept = False
        """That message is handled although the socket is closed meanwhile."""
        self._is_dropped = False
        """No message that has to wait is handled any more."""
        self._leave: asyncio.Timeout | None = None
        """Ends `while_open`."""

    @property
    def is_websocket(self) -> bool:
        return self._websocket is not None

    @property
    def is_answered(self) -> bool:
        """Whether the socket's request has arrived whole and is being answered."""
        request = self._current_request
        return request is not None and request.content.is_eof()

    @property
    def is_unheard(self) -> bool:
        """Whether nothing has been received from it."""
        return not (self._head or self._left)

    @property
    def waits_for_turn(self) -> bool:
        """Whether it holds only few bytes, which wait for the relay: first ones that are not parsed
        yet, or a handshake that is not answered yet."""
        if self._upgraded:
            return self._is_small and not (self._left or self._message_tail)
        return not self._head and 0 < len(self._left) <= _SMALL_HEAD

    @property
    def _is_in_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    @property
    def is_known(self) -> bool:
        return self._websocket is not None and self._websocket.is_known

    @property
    def address(self) -> Hashable:
        """Where its unfinished message counts."""
        return (self._websocket is not None and self._websocket.counted_as) or self

    @property
    def silent_s(self) -> float:
        """Seconds since the last input."""
        return perf_counter() - self._heard_at

    def check(self) -> None:
        """Count little input, too: of thousands of sockets it is much."""
        self._unfinished.note_any(self, self.unfinished())

    @asynccontextmanager
    async def while_open(self) -> AsyncIterator[None]:
        """Raises ConnectionError when the socket is closed, before or meanwhile."""
        is_closed = self.transport is None or self.transport.is_closing()
        if self._is_dropped or (is_closed and not self._is_kept):
            raise ConnectionResetError
        try:
            async with asyncio.timeout(None) as self._leave:
                yield
        except TimeoutError:
            raise ConnectionResetError from None
        finally:
            self._leave = None

    @asynccontextmanager
    async def waiting(self, size: int, *, is_kept: bool = False) -> AsyncIterator[None]:
        """For the time that a whole message of so many bytes, which was taken, waits to be handled:
        it counts as unfinished. `is_kept`: also when its client closes the socket behind it, as one
        may that sends an event; only when all together are too large it is dropped.

        Raises as `while_open`: or the messages of a closed socket would stay in memory.
        """
        self._is_kept = is_kept
        try:
            async with self.while_open():
                self._waiting = size
                self._unfinished.note(self, self.unfinished())
                yield
        finally:
            self._waiting, self._is_kept = 0, False
            self._unfinished.note(self, self.unfinished())

    def drop(self) -> None:
        """Close the socket, and drop the message that waits, and those behind it that would."""
        self._is_dropped = True
        if self.transport is not None:
            self.transport.abort()
        self._end_wait()

    def _end_wait(self) -> None:
        """End `while_open`, once: a timeout that has run out cannot be changed, and its task may
        not have run yet."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave.reschedule(0)

    def carries(self, messages: Messages) -> None:
        """From now on messages of this websocket arrive."""
        self._websocket = messages
        self._is_compressed = messages.is_compressed
        self.client_address = ""
        if not self._messages:
            # No request follows a websocket, and aiohttp's empty deque takes 760 bytes.
            self._messages = []  # type: ignore[assignment]
        self._parser = None  # it holds the headers of the request

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not data:  # aiohttp resumes
            self._take(data)
        elif self._left or self._resting is not None:
            self._hold(self._left + data)
        else:
            self._go_on(data)

    def _go_on(self, data: bytes) -> None:
        if self._work.has_time:
            self._take(data)
        else:  # thousands of sockets may be ready at once
            self._wait_for_turn(data)

    def _take(self, data: bytes) -> None:
        """Parse until enough messages wait, or the time slice is over; the rest waits for the next
        turn."""
        work, websocket = self._work, self._websocket
        if data and websocket is None and self._is_at_head:
            self._said = self._sender(data)
        take, size = self._take_piece, _PIECE
        if websocket is not None:
            take = self._take_of_websocket
            size = _COMPRESSED_PIECE if self._is_compressed else _FRAMES_PIECE
        for start in range(0, len(data) or 1, size):
            if self._reading_paused and websocket is not None:
                self._hold(data[start:])
                return
            self._heard_at = perf_counter()
            work.begin()
            take(data[start : start + size])
            if self._is_refused:
                return
            if work.end() and self._resting is None:
                self._wait_for_turn(data[start + size :])
                return

    def _hold(self, left: bytes) -> None:
        self._left = left
        self._pause_transport_reading()
        self._count()

    def _wait_for_turn(self, left: bytes) -> None:
        self._resting = asyncio.create_task(self._rest(), name="input waits for its turn")
        self._hold(left)

    def _take_of_websocket(self, data: bytes) -> None:
        super().data_received(data)
        self._fresh += len(data)
        if self._held + self._fresh > _SMALL:
            self._count()

    def _count(self) -> None:
        if self._held + self._fresh + len(self._left) > _SMALL:
            self._unfinished.note(self, self.unfinished())

    def _take_piece(self, data: bytes) -> None:
        before, was_in_body = self._request_count, self._is_in_body
        try:
            super().data_received(data)
        except (ValueError, LookupError):  # of yarl: aiohttp takes only HTTP errors for bad input
            self._refuse(_error(HTTPStatus.BAD_REQUEST), data)
            return
        if self._request_count != before and self._messages:
            message, self._body = self._messages[-1]
            refusal = _refusal_of(self._messages)
            if refusal is not None:
                self._refuse(refusal, data)
                return
            self._is_small = self._head + len(data) <= _SMALL_HEAD
            if self._upgraded and isinstance(message, RawRequestMessage):
                self._messages[-1] = (_without_unread_headers(message), self._body)
        is_in_body = self._is_in_body
        if is_in_body and self._request_count != before:
            self.client_address = self._sender(data)
        self._is_at_head = not is_in_body and (was_in_body or self._request_count != before)
        if self._upgraded and len(self._message_tail) > _SMALL:
            self.force_close()  # RFC 6455 §4.1: a client waits for the answer; nothing counts these
        if self._upgraded or self._request_count != before or is_in_body:
            self._head = len(data)
            return
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if hdrs.UPGRADE in request.headers and not isinstance(resp, web.WebSocketResponse):
            # What comes behind a declined upgrade is no request: aiohttp may drop it, or a part of
            # it, and a proxy would send the next handshake to this socket.
            self._message_tail = b""
            resp.force_close()
        return await super().finish_response(request, resp, start_time)

    def _refuse(self, error: _ErrInfo, head: bytes) -> None:
        """Answer with the error, in a turn as other requests: sockets that were refused at once
        would come again as fast as they are accepted, and fill the one line of these."""
        self._is_refused = True
        self.client_address = self._sender(head)
        self._messages.clear()
        self._messages.append((error, EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._pause_transport_reading()

    def _make_error_handler(
        self, err_info: _ErrInfo
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        answer = super()._make_error_handler(err_info)

        async def answer_in_turn(request: web.BaseRequest) -> web.StreamResponse:
            async with self.while_open():
                await self._work.rest_as_arriving(self.origin())
            return await answer(request)

        return answer_in_turn

    def unfinished(self) -> int:
        """Bytes of a message whose end has not arrived or has not been parsed; an upper bound when
        it has many frames. With whole ones that wait: a compressed one may be a thousand times as
        large as what came. Once the socket is closed, of one that is kept only."""
        if self._websocket is None or self.transport is None:
            return self._waiting if self._is_kept else 0
        arrived = self._websocket.arrived()
        number, size = self._arrived
        self._held += self._fresh
        if arrived[0] != number:
            # Earlier input ended with a whole message; the sizes of its frame heads are not known.
            self._held = max(0, min(self._held - (arrived[1] - size), self._fresh))
        self._arrived, self._fresh = arrived, 0
        waiting = self._waiting + arrived[1] - self._websocket.taken_bytes
        return self._held + len(self._left) + waiting

    def _sender(self, head: bytes) -> str:
        """The address of who sent this, see `subnet_of`: what a proxy says in the first bytes of a
        request, if it is trusted, else the other end's."""
        name = self.transport and self.transport.get_extra_info("peername")
        if not name:
            return ""
        if not self._is_at_head:
            return self._said
        return subnet_of(unparsed_address(head, name[0], self._trusted_proxies))

    def origin(self) -> str:
        """The address of its client, as far as it is known; see `_sender`."""
        return self.client_address or self._sender(self._left)

    def _arrives_from(self) -> str | None:
        """The address under which what is left waits as what arrives does; None: it waits for a
        turn of its websocket's account."""
        websocket = self._websocket
        if websocket is None:
            # A body may say that it is anybody's.
            return self.client_address if self._is_in_body else self._sender(self._left)
        is_little = self.unfinished() <= _SMALL_HEAD  # also of a message that comes in pieces
        return websocket.counted_as if is_little and websocket.is_beginning else None

    async def _rest(self) -> None:
        try:
            address = self._arrives_from()
            if address is None:
                assert self._websocket is not None
                self._work.account = self._websocket.account
                await self._work.rest()
            else:
                await self._work.rest_as_arriving(address)
        finally:
            self._resting = None
        self._resume(self._take)

    def _resume_transport_reading(self) -> None:
        if self._resting is None and not self._is_refused:
            self._resume(self._go_on)

    def _resume(self, go_on: Callable[[bytes], None]) -> None:
        left, self._left = self._left, b""
        if left:
            go_on(left)
        if not (self._left or self._resting or self._reading_paused or self._buffer_paused):
            super()._resume_transport_reading()

    def log_exception(self, *args: Any, **given: Any) -> None:
        if not _is_end_of_stop(given.get("exc_info")):
            super().log_exception(*args, **given)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._left = b""  # aiohttp resumes also after this, when messages that came are handled
        self._unfinished.note(self, self._waiting if self._is_kept else 0)
        if not self._is_kept:
            self._end_wait()
        if self._resting is not None:
            self._resting.cancel()
        super().connection_lost(exc)


def _is_end_of_stop(error: object) -> bool:
    """Whether a request ended at the moment when the time for it did: aiohttp's `shutdown` then
    cancels the future whose result `_handle_request` is about to set. The socket is closed anyway.
    What a handler raises is not seen there: aiohttp answers it with 500."""
    if not isinstance(error, asyncio.InvalidStateError):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    raised_in = web.RequestHandler._handle_request.__code__
    return last is not None and last.tb_frame.f_code is raised_in


def _error(status: HTTPStatus) -> _ErrInfo:
    return _ErrInfo(status, HttpProcessingError(message=status.phrase), status.phrase)


def _refusal_of(
    messages: Iterable[tuple[RawRequestMessage | _ErrInfo, StreamReader]],
) -> _ErrInfo | None:
    """The answer to requests of which one is not well-formed, or takes long to parse."""
    for message, body in messages:
        if isinstance(message, _ErrInfo):
            return message
        if message.chunked:  # of chunks of one byte, 4 kB take 5 ms of the loop
            return _error(HTTPStatus.LENGTH_REQUIRED)
        # What comes behind a CONNECT aiohttp takes for a request, though a proxy may have passed it
        # on as a body.
        if message.method == hdrs.METH_CONNECT or _is_deaf(message, body):
            return _error(HTTPStatus.BAD_REQUEST)
    return None


def _is_deaf(message: RawRequestMessage, body: StreamReader) -> bool:
    """Whether aiohttp may take all further input for that of a websocket: when the body, which a
    websocket's request does not have, ends after the answer. Other upgrades it ignores."""
    upgrade = message.headers.get(hdrs.UPGRADE, "").lower()
    return message.upgrade and body is not EMPTY_PAYLOAD and upgrade in {"websocket", "tcp"}


def without_host(make: _RequestFactory) -> _RequestFactory:
    """`make`, without the scheme and the host of an absolute request target (RFC 9112 §3.2.2).
    aiohttp would decode the host (IDNA), which takes a second for 8 kB, before any turn, and raises
    where it cannot; nothing here depends on it."""

    def request(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
        url: URL | None = message.url  # None: `CONNECT` without a target, which is refused
        if url is None or url.absolute:
            url = url and url.relative()
            url = url if url and url.raw_path else URL("/")
            message = message._replace(url=url, path=url.raw_path_qs)
        return make(message, *rest)

    return request


def _without_unread_headers(message: RawRequestMessage) -> RawRequestMessage:
    """aiohttp keeps the message for as long as the websocket is open."""
    if message.method != hdrs.METH_GET:
        return message
    items = message.headers.items()
    kept = CIMultiDict((name, text) for name, text in items if name.lower() in _KEPT_HEADERS)
    return message._replace(headers=CIMultiDictProxy(kept), raw_headers=())
