"""One websocket: frames to the Session, its effects to the roads, the outbox to the socket."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from itertools import count
from typing import TYPE_CHECKING, Final, assert_never

from aiohttp import WSCloseCode, WSMsgType, web

from relay.access.visibility import BANNED
from relay.errors import Invalid, Prefix, Refused
from relay.nostr import messages
from relay.nostr.keys import is_signed
from relay.read.negentropy import Reconciliations
from relay.read.outbox import Outbox
from relay.read.query import QueryQueue
from relay.server.session import (
    POLICY_VIOLATION,
    Ask,
    CountRows,
    Drop,
    Hangup,
    Negotiate,
    Reply,
    Session,
    Submit,
    VerifyLogin,
)
from relay.verdict import Origin, WriteOutcome, ok_reply
from relay.write.ingest import BAD_SIGNATURE

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    from relay.nostr.event import Event
    from relay.nostr.nip42 import RelayAddress
    from relay.server.services import ServerServices
    from relay.server.session import Effect
    from relay.verdict import Result

_MAX_UNANSWERED: Final = 2048
"""Events of one connection on their road; then its socket is not read for a while."""
_BACKLOG_SHARE: Final = 4
"""A client whose backlog is over this part of its outbox waits for the rest of its answers."""
_CLOSE_S: Final = 1.0
_LINGER_S: Final = 5.0
_SETTLE_S: Final = 2.5
"""How long a stop waits for the answers to events that were taken."""
_HEARTBEAT_S: Final = 60.0
"""A peer that does not answer a ping within half of this is gone."""
_NUMBERS: Final = count(1)
"""Of connections, in the order in which they came."""
_SLOW: Final = Refused(Prefix.ERROR, "you read too slowly")


class RelaySocket(web.WebSocketResponse):
    """aiohttp's websocket, saying NOTICE before it closes over a frame that is too large."""

    def __init__(self, *, max_message_length: int, compression: bool) -> None:
        super().__init__(
            max_msg_size=max_message_length + 1,
            compress=compression,
            decode_text=False,
            timeout=_CLOSE_S,
            heartbeat=_HEARTBEAT_S,
        )
        self._max_message_length = max_message_length

    async def close(
        self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True
    ) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and not self.closed:
            over = Invalid(f"message is over {self._max_message_length} bytes")
            with contextlib.suppress(ConnectionError):
                await self.send_frame(messages.notice(over), WSMsgType.TEXT)
        return await super().close(code=code, message=message, drain=drain)


class Connection:
    """A client of `answer` and `reconciliation`, an author of `ingest`. Lives with its socket."""

    __slots__ = (
        "_address",
        "_hangup",
        "_leaving",
        "_outbox_bytes",
        "_reconciliations",
        "_request",
        "_room",
        "_scans",
        "_services",
        "_session",
        "_settled",
        "_socket",
        "_unanswered",
        "connection",
        "outbox",
    )

    def __init__(
        self,
        services: ServerServices,
        request: web.Request,
        socket: RelaySocket,
        addresses: frozenset[RelayAddress],
        *,
        address: IPv4Address | IPv6Address | None,
        trusted: bool,
    ) -> None:
        transport, loop = request.transport, asyncio.get_running_loop()
        assert transport is not None
        limits = services.config.limits
        self._services = services
        self._outbox_bytes = limits.outbox_bytes
        self._request = request
        self._address = address
        self.connection = next(_NUMBERS)
        self._socket = socket
        self._session = Session(
            secrets.token_hex(16),
            addresses,
            max_subscriptions=limits.max_subscriptions,
            trusted=trusted,
        )
        self.outbox = Outbox(
            transport,
            services.turn,
            max_bytes=limits.outbox_bytes,
            # Soon and not at once: it may be found while the subscriptions are walked through.
            overflow=lambda: loop.call_soon(self._too_slow),
        )
        self._scans = QueryQueue(services.queries, self)
        self._reconciliations = Reconciliations(services.negentropy, self)
        self._unanswered = 0
        self._room: asyncio.Event | None = None
        self._hangup: asyncio.Task[None] | None = None
        self._leaving = False
        self._settled = asyncio.Event()

    # -- what answer and ingest see --------------------------------------------------------------

    @property
    def reader(self) -> Session:
        return self._session

    @property
    def authenticated(self) -> frozenset[str]:
        return self._session.viewer.keys

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        return self._address

    @property
    def is_reading(self) -> bool:
        return self.outbox.backlog < self._outbox_bytes // _BACKLOG_SHARE

    async def drained(self) -> None:
        self.outbox.flush()
        if not self.is_reading:
            with contextlib.suppress(ConnectionError):
                await self._request.writer.drain()
        else:
            await asyncio.sleep(0)  # others have their turn between two pages

    def closed_by_relay(self, sub: str) -> None:
        self._session.closed_by_relay(sub)

    def answered(self, event: Event, result: Result) -> None:
        self._unanswered -= 1
        if result is WriteOutcome.STORED:
            self.outbox.put(messages.ok(event.id, None))
        else:
            accepted, text = ok_reply(result)
            self.outbox.put(messages.ok_text(event.id, text, accepted=accepted))
        if self._leaving and not self._unanswered:
            self._settled.set()
        if self._room is not None and self._unanswered < _MAX_UNANSWERED // 2:
            self._room.set()

    def shut_out(self) -> None:
        """A key of it was banned: what is open ends, and nothing will open any more (N42-16)."""
        for sub in list(self._session.open):
            self._scans.drop(sub)
            self._session.closed_by_relay(sub)
            self.outbox.put(messages.closed(sub, BANNED.refused()))

    def send_away(self) -> None:
        """Its address was blocked (N86-27)."""
        for sub in list(self._session.open):
            self._scans.drop(sub)
        self._hang_up(POLICY_VIOLATION, "blocked: your address is blocked")

    def trust(self, *, trusted: bool) -> None:
        """The policies changed: whether the client's address is a trusted reader's now."""
        self._session.trust(trusted=trusted)

    # -- the loop of one socket -------------------------------------------------------------------

    async def serve(self) -> None:
        """Until the client goes, or is sent away."""
        socket, services = self._socket, self._services
        terms, max_filters = services.terms, services.config.limits.max_filters
        clock = services.clock
        receive, act = self._session.receive, self._act
        count_frames = services.metrics.frames_in
        self.outbox.put(self._session.greeting())
        try:
            async for frame in socket:
                if self._leaving:
                    continue
                count_frames(1)
                if frame.type is WSMsgType.TEXT:
                    message = messages.parse(frame.data, terms, max_filters)
                elif frame.type is WSMsgType.BINARY:
                    message = messages.BadFrame(Invalid("binary frames are not Nostr messages"))
                else:
                    break
                for effect in receive(message, clock(), len(frame.data)):
                    act(effect)
                if self._unanswered >= _MAX_UNANSWERED:
                    await self._answers_to_come()
                if self._hangup is not None:
                    break
        except ConnectionError:
            pass  # gone while the socket answered its ping
        finally:
            self.outbox.close()
            await self._scans.aclose()
            await self._reconciliations.aclose()
            if self._hangup is not None:
                await self._hangup

    def _act(self, effect: Effect) -> None:
        match effect:
            case Submit(event):
                self._unanswered += 1
                self._services.ingest.submit(event, self, Origin.WIRE)
            case Ask(sub, filters):
                self._scans.ask(sub, filters)
            case Drop(sub):
                self._scans.drop(sub)
            case Reply(payload):
                self.outbox.put(payload)
            case CountRows(sub, filters):
                self._scans.count(sub, filters)
            case Negotiate(message):
                self._reconciliations.take(message)
            case VerifyLogin(event):
                self._log_in(event)
            case Hangup(code, reason):
                self._hang_up(code, reason)
            case _:
                assert_never(effect)

    def _log_in(self, event: Event) -> None:
        # On the loop, 25 µs: what the client sends next must already find its key.
        if not is_signed(event):
            reply = self._session.login_refused(event, BAD_SIGNATURE.refused())
        elif event.pubkey in self._services.state.people.banned:
            reply = self._session.login_refused(event, BANNED.refused())
        else:
            reply = self._session.logged_in(event)
        self.outbox.put(reply.payload)

    async def _answers_to_come(self) -> None:
        self._room = asyncio.Event()
        await self._room.wait()
        self._room = None

    # -- sending somebody away --------------------------------------------------------------------

    def _too_slow(self) -> None:
        self._services.metrics.too_slow()
        for sub in list(self._session.open):
            self._scans.drop(sub)
        self._hang_up(WSCloseCode.TRY_AGAIN_LATER, f"{_SLOW.prefix}: {_SLOW.text}")

    def _hang_up(self, code: int, reason: str) -> None:
        if self._hangup is None:
            self.outbox.close()
            self._hangup = asyncio.create_task(self._close(code, reason), name="hang up")

    async def _close(self, code: int, reason: str) -> None:
        transport = self._request.transport
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2 * _CLOSE_S):
                await self._socket.close(code=code, message=reason.encode(), drain=False)
        if transport is not None:
            # What was sent may still arrive; who does not read would hold its buffer for ever.
            asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    async def say_goodbye(self) -> None:
        """The relay stops: CLOSED, the answers to what is still on its road, a close frame."""
        self._leaving = True
        stopping = Refused(Prefix.ERROR, "the relay is stopping")
        for sub in list(self._session.open):
            self._scans.drop(sub)
            self.outbox.put(messages.closed(sub, stopping))
        if self._unanswered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self._settled.wait()
        self._hang_up(WSCloseCode.GOING_AWAY, "the relay is stopping")
        assert self._hangup is not None
        await asyncio.shield(self._hangup)
