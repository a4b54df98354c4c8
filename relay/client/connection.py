"""Connection: one WebSocket to a relay, from its handshake to its end, and NIP-42 on it.

Invariants: the reader never sends, since it would deadlock with a relay that stops reading until
its own data is read. Frames of unknown subscriptions are dropped. When the socket ends, every
waiter is woken at once; the Client decides whether to send the request again.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
import orjson

from relay.client.errors import MAX_SAID, ConnectionLost, split_reason
from relay.errors import Prefix
from relay.nostr.filters import as_json
from relay.nostr.kinds import CLIENT_AUTH

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey

_MESSAGE_TOO_BIG: Final = 1009
_EVENT_START: Final = '["EVENT","'
"""Start of an EVENT frame that is encoded without spaces."""
_CLOSE_S: Final = 1.0
_ENDING_S: Final = 2.0
"""A relay that says that it stops ends the connection in this time."""
_MAX_CHALLENGE: Final = 1024
"""Characters: a challenge is signed and sent back."""
_FIRST_LOGINS: Final = 3
_LOGIN_PAUSE_S: Final = 1.0
"""Between logins after the first ones: a relay may ask for the next one with each answer."""
_LARGE: Final = 2**20
_MAX_BRACKETS: Final = 1_000_000
"""Arrays and objects of a large text: each takes up to 240 bytes of memory for 3 on the wire."""
_MAX_QUOTES: Final = 2_000_000
"""Quotes in a large text, two for each string: a string takes about 60 bytes of memory for 3 on the
wire."""


def is_bomb(text: str) -> bool:
    """Whether parsed JSON would take far more memory than its text."""
    if len(text) <= _LARGE:
        return False
    quotes = text.count('"') - text.count('\\"')  # those within a string are no strings
    return quotes > _MAX_QUOTES or text.count("[") + text.count("{") > _MAX_BRACKETS


async def _refuse_redirect(
    _session: aiohttp.ClientSession,
    _context: object,
    params: aiohttp.TraceRequestRedirectParams,
) -> None:
    place = params.response.headers.get("Location", "")
    raise aiohttp.ClientError(f"the answer is a redirect to {place[:200]!r}; use that URL")


def http_session() -> aiohttp.ClientSession:
    """A session that follows no redirect, of a WebSocket handshake neither: a signed request is
    for one URL, and its answer must come from there."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(trace_configs=[trace])


async def body_of(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body, decompressed; None: it is longer than `most` bytes, whatever was sent."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and retry intervals of a client, in seconds."""

    deadline_s: float = 30.0
    """Answer to a request, including reconnects."""
    connect_s: float = 10.0
    """One WebSocket handshake."""
    patience_s: float = 0.0
    """How long `async with` retries an unreachable relay; 0: one attempt."""
    challenge_s: float = 2.0
    """Wait for the challenge after a handshake, if there is a key. Relays send the challenge
    immediately, and may silently return fewer events before authentication."""
    login_s: float = 10.0
    """OK for an AUTH event."""
    first_backoff_s: float = 0.25
    """First reconnect delay; doubled on each failure, with jitter."""
    max_backoff_s: float = 30.0
    heartbeat_s: float = 30.0
    """Between pings; a relay that does not answer within half of it counts as lost."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One OK message."""

    accepted: bool
    prefix: str
    text: str

    @property
    def is_duplicate(self) -> bool:
        return self.prefix == Prefix.DUPLICATE


class Sink(Protocol):
    """Receives what a relay sends for one subscription id, and every NOTICE (which names none).

    Called by the reader: must not block.
    """

    @property
    def is_closed(self) -> bool:
        """Whether the relay has ended the subscription, so that no CLOSE is sent."""

    def receive(self, verb: str, frame: list[object]) -> None: ...

    def connection_lost(self) -> None:
        """The connection ended."""


class Notifier:
    """Wakes all waiters on every change; each re-evaluates its own condition."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._event.wait()


class Connection:
    """One connection. Created by Reconnector; `run()` is its lifetime."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        url: str,
        keys: Sequence[SecretKey],
        timeouts: Timeouts,
        now: Callable[[], int],
        notices: deque[str],
    ) -> None:
        self.logged_in: frozenset[str] = frozenset()
        """Authenticated public keys."""
        self.login_refusal = ""
        """Reason of the last refused AUTH."""
        self.is_login_late = False
        """Whether the relay accepted a login after `login_s`."""
        self.is_lost = False
        self._socket = socket
        self._url = url
        self._keys = keys
        self._timeouts = timeouts
        self._now = now
        self._notices = notices
        self._changed = Notifier()
        self._challenge = ""
        self._challenges = 0
        self._answered = 0
        self._replies: dict[str, list[asyncio.Future[Reply | None]]] = {}
        self._sinks: dict[str, Sink] = {}
        self._raw_sinks: dict[str, Callable[[str], None]] = {}
        """Subscription id → receiver of its EVENT frames as text, unparsed."""
        self._numbers = count(1)
        self._largest = (0, "")
        self._unanswered_logins: list[tuple[str, asyncio.Future[Reply | None]]] = []
        """AUTH events of the last challenge, which may be answered late."""

    @property
    def login_rounds(self) -> int:
        """Number of challenges answered and decided. For `login_after`."""
        return self._answered

    async def run(self, ready: Callable[[Connection], None]) -> None:
        """Read until the socket ends; `ready` is called when requests may start."""
        try:
            async with asyncio.TaskGroup() as tasks:
                work = (self._read(), self._answer_challenges(), self._authenticate_first(ready))
                running = [tasks.create_task(part) for part in work]
                await self._changed.wait_for(lambda: self.is_lost)
                for task in running:
                    task.cancel()
        finally:
            self._set_lost()
            await self._socket.close()

    async def publish(self, event_id: str, frame: bytes) -> Reply:
        """Send a frame that is answered by OK for this id. Raises ConnectionLost."""
        reply = await self.begin(event_id, frame)
        try:
            answer = await reply
        finally:
            self._drop_waiter(event_id, reply)
        if answer is None:
            raise ConnectionLost("the connection ended before the OK")
        return answer

    async def begin(self, event_id: str, frame: bytes) -> asyncio.Future[Reply | None]:
        """`publish` without waiting for the reply; its result is None if the connection ended
        first.

        Raises ConnectionLost.
        """
        reply = self._add_waiter(event_id)
        try:
            await self.send(frame, event_id)
        except BaseException:
            self._drop_waiter(event_id, reply)
            raise
        return reply

    @asynccontextmanager
    async def request(
        self,
        verb: str,
        filters: Iterable[Filter],
        sink: Sink,
        receive_raw: Callable[[str], None] | None = None,
    ) -> AsyncIterator[None]:
        """A REQ or COUNT for the duration of the block; `sink` receives its frames. Raises
        ConnectionLost.

        `receive_raw`, if given, receives EVENT frames encoded without spaces instead of `sink`.
        """
        sub = f"{verb[0].lower()}{next(self._numbers)}"
        opening = orjson.dumps([verb, sub, *map(as_json, filters)])
        if receive_raw is not None:
            self._raw_sinks[sub] = receive_raw
        async with self._subscription(sub, sink, opening, orjson.dumps(["CLOSE", sub])):
            yield

    @asynccontextmanager
    async def negentropy(
        self, filter_: Filter, message: str, sink: Sink
    ) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
        """A NEG-OPEN for the duration of the block; yields the function that sends NEG-MSG.

        Messages are hex. Raises ConnectionLost.
        """
        sub = f"n{next(self._numbers)}"

        async def send(further: str) -> None:
            await self.send(orjson.dumps(["NEG-MSG", sub, further]), sub)

        opening = orjson.dumps(["NEG-OPEN", sub, as_json(filter_), message])
        async with self._subscription(sub, sink, opening, orjson.dumps(["NEG-CLOSE", sub])):
            yield send

    @asynccontextmanager
    async def _subscription(
        self, sub: str, sink: Sink, opening: bytes, closing: bytes
    ) -> AsyncIterator[None]:
        self._sinks[sub] = sink
        try:
            await self.send(opening, sub)
            yield
        finally:
            del self._sinks[sub]
            self._raw_sinks.pop(sub, None)
            if not (sink.is_closed or self.is_lost):
                with suppress(ConnectionLost, TimeoutError):
                    # Also when a query is cancelled: the relay would keep the subscription open.
                    async with asyncio.timeout(_CLOSE_S):
                        await self.send(closing)

    async def login_after(self, rounds: int) -> bool:
        """Whether an AUTH after round `rounds` was accepted. Waits for a challenge that may follow.
        Raises ConnectionLost."""
        if not self._keys:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.challenge_s):
                await self._until(lambda: self._challenges > rounds)
            newest = self._challenges  # a relay may send the next one with each answer
            async with asyncio.timeout(self._timeouts.login_s):
                await self._until(lambda: self._answered >= newest)
        return self._answered > rounds and bool(self.logged_in)

    async def wait_lost(self) -> None:
        """Wait for the end that the relay has announced; end the connection if it does not come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                await self._changed.wait_for(lambda: self.is_lost)
        self._set_lost()

    async def send(self, frame: bytes, key: str = "") -> None:
        """`key`: the event or subscription id to fail if the relay finds the frame too large."""
        if self.is_lost:
            raise ConnectionLost("the connection has ended")
        if key and len(frame) > self._largest[0]:
            self._largest = (len(frame), key)
        try:
            await self._socket.send_frame(frame, aiohttp.WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            # The reader may notice a broken connection late, so waiters are woken here.
            self._set_lost()
            raise ConnectionLost(str(error)) from error

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._dispatch(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                # A frame over max_msg_size, or no valid WebSocket frame: not caused by what was
                # sent.
                break
        else:
            if self._socket.close_code == _MESSAGE_TOO_BIG:
                self._reject_largest()
        self._set_lost()

    def _dispatch(self, text: str) -> None:
        if is_bomb(text):
            return
        if text.startswith(_EVENT_START):
            receive_raw = self._raw_sinks.get(
                text[len(_EVENT_START) : text.find('"', len(_EVENT_START))]
            )
            if receive_raw is not None:
                receive_raw(text)
                return
        try:
            frame = orjson.loads(text)
        except (orjson.JSONDecodeError, RecursionError):
            return
        match frame:
            case ["OK", str(event_id), bool(accepted), *rest]:
                reason = rest[0] if rest and isinstance(rest[0], str) else ""
                self._resolve(event_id, Reply(accepted, *split_reason(reason)))
            case ["AUTH", str(challenge), *_] if len(challenge) <= _MAX_CHALLENGE:
                self._challenge = challenge
                self._challenges += 1
                self._changed.notify_all()
            case ["NOTICE", str(text), *_]:
                self._notices.append(text[:MAX_SAID])
                for sink in tuple(self._sinks.values()):
                    sink.receive("NOTICE", frame)
            case [str(verb), str(sub), *_] if sub in self._sinks:
                self._sinks[sub].receive(verb, frame)
            case _:
                pass

    async def _authenticate_first(self, ready: Callable[[Connection], None]) -> None:
        """Authenticate before the first request, if the relay sends a challenge in time."""
        with suppress(ConnectionLost):
            await self.login_after(0)
            ready(self)

    async def _answer_challenges(self) -> None:
        logins = 0
        with suppress(ConnectionLost):
            while self._keys:
                await self._until(lambda: self._challenges > self._answered)
                challenge_number = self._challenges
                await self._log_in(self._challenge)
                self._answered = challenge_number
                self._changed.notify_all()
                logins += 1
                if logins >= _FIRST_LOGINS:
                    await asyncio.sleep(_LOGIN_PAUSE_S)

    async def _log_in(self, challenge: str) -> None:
        """One AUTH event for each key, sent together. Authenticated keys are united (N42-07)."""
        for event_id, reply in self._unanswered_logins:
            self._drop_waiter(event_id, reply)
        self._unanswered_logins.clear()
        tags = [["relay", self._url], ["challenge", challenge]]
        logins = [(key, key.sign(CLIENT_AUTH, tags, "", self._now())) for key in self._keys]
        replies = [self._add_waiter(login.id) for _, login in logins]
        try:
            for _, login in logins:
                await self.send(b'["AUTH",' + login.raw + b"]", login.id)
            await asyncio.wait(replies, timeout=self._timeouts.login_s)
            for (key, _), reply in zip(logins, replies, strict=True):
                answer = reply.result() if reply.done() else None
                if answer is not None and answer.accepted:
                    self.logged_in |= {key.pubkey}
                else:
                    self.login_refusal = _refusal_text(answer)
        finally:
            for (_, login), reply in zip(logins, replies, strict=True):
                if reply.done():
                    self._drop_waiter(login.id, reply)
                else:
                    self._unanswered_logins.append((login.id, reply))
                    reply.add_done_callback(self._answer_late)

    def _answer_late(self, reply: asyncio.Future[Reply | None]) -> None:
        """End the connection if the relay accepts a login after `login_s`: what was asked meanwhile
        was asked as an unknown client. The next connection logs in first, and waits longer."""
        answer = reply.result()
        if answer is not None and answer.accepted:
            self.is_login_late = True
            self._set_lost()

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._changed.wait_for(lambda: self.is_lost or condition())
        if self.is_lost:
            raise ConnectionLost("the connection has ended")

    def _add_waiter(self, event_id: str) -> asyncio.Future[Reply | None]:
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._replies.setdefault(event_id, []).append(reply)
        return reply

    def _drop_waiter(self, event_id: str, reply: asyncio.Future[Reply | None]) -> None:
        waiting = self._replies.get(event_id, [])
        if reply in waiting:
            waiting.remove(reply)
        if not waiting:
            self._replies.pop(event_id, None)

    def _resolve(self, event_id: str, answer: Reply | None) -> None:
        for reply in self._replies.pop(event_id, ()):
            if not reply.done():
                reply.set_result(answer)

    def _reject_largest(self) -> None:
        # Sent again, it would end the next connection too.
        size, key = self._largest
        text = f"the relay accepts no message of {size} bytes"
        self._resolve(key, Reply(accepted=False, prefix=Prefix.INVALID, text=text))
        if key in self._sinks:
            self._sinks[key].receive("CLOSED", ["CLOSED", key, f"{Prefix.INVALID}: {text}"])

    def _set_lost(self) -> None:
        self.is_lost = True
        for event_id in list(self._replies):
            self._resolve(event_id, None)
        for sink in list(self._sinks.values()):
            sink.connection_lost()
        self._changed.notify_all()


def _refusal_text(answer: Reply | None) -> str:
    if answer is None:
        return "no answer"
    return f"{answer.prefix}: {answer.text}" if answer.prefix else answer.text
