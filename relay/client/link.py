"""Link: one socket to a relay, from its handshake to its end, and the login on it (NIP-42).

Invariants: the reader never sends, since a relay that waits until we read and a reader that waits
until it may send would wait for each other. Frames for nobody are dropped. When the socket ends,
all who wait on this link are told at once; the Client behind them decides whether to ask again.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
import orjson

from relay.client.errors import ConnectionLost, split_reason
from relay.errors import Prefix
from relay.nostr.filters import as_json
from relay.nostr.kinds import CLIENT_AUTH

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey

_TOO_BIG: Final = 1009
_EVENT: Final = '["EVENT","'
"""How an EVENT frame begins that is written without spaces."""
_HANG_UP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a client waits for what; all in seconds."""

    deadline_s: float = 30.0
    """For the answer to a request, reconnecting included."""
    connect_s: float = 10.0
    """For one handshake."""
    patience_s: float = 0.0
    """How long `async with` goes on trying when the relay is not there; 0: one try."""
    challenge_s: float = 2.0
    """For the challenge after a handshake, with a key. A relay that sends one sends it at once, and
    gives less, without a word, to who asks before the login."""
    login_s: float = 10.0
    """For the OK to a login."""
    first_wait_s: float = 0.25
    """Before the first try to reconnect; doubled with each, halved at random."""
    longest_wait_s: float = 30.0
    heartbeat_s: float = 30.0
    """Between pings; a relay that does not answer for half of that is gone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One OK."""

    accepted: bool
    prefix: str
    text: str

    @property
    def is_duplicate(self) -> bool:
        return self.prefix == Prefix.DUPLICATE


class Sink(Protocol):
    """Takes what a relay sends for one subscription id, and every NOTICE, which names none.

    Called by the reader: must not wait.
    """

    @property
    def is_over(self) -> bool:
        """Whether the relay has ended it, so that no CLOSE is due."""

    def take(self, verb: str, frame: list[object]) -> None: ...

    def lose(self) -> None:
        """The connection ended."""


class Bell:
    """Wakes all who wait; each looks for itself whether what it waits for has come."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._rung.wait()


class Link:
    """One connection. Made by Client, lives in `live()`."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        url: str,
        keys: Sequence[SecretKey],
        pace: Pace,
        now: Callable[[], int],
        notices: deque[str],
    ) -> None:
        self.logged_in: frozenset[str] = frozenset()
        """Public keys that the relay took."""
        self.login_refusal = ""
        """What the relay said about the last login that it did not take."""
        self.is_lost = False
        self._socket = socket
        self._url = url
        self._keys = keys
        self._pace = pace
        self._now = now
        self._notices = notices
        self._bell = Bell()
        self._challenge = ""
        self._challenges = 0
        self._answered = 0
        self._replies: dict[str, list[asyncio.Future[Reply | None]]] = {}
        self._sinks: dict[str, Sink] = {}
        self._texts: dict[str, Callable[[str], None]] = {}
        """Subscription id → what takes its EVENT frames unparsed."""
        self._numbers = count(1)
        self._largest = (0, "")

    @property
    def login_rounds(self) -> int:
        """How many challenges were answered, and the answers judged. For `login_after`."""
        return self._answered

    async def live(self, ready: Callable[[Link], None]) -> None:
        """Read until the socket ends; `ready` is called when requests may begin."""
        try:
            async with asyncio.TaskGroup() as tasks:
                work = (self._read(), self._answer_challenges(), self._settle(ready))
                running = [tasks.create_task(part) for part in work]
                await self._bell.until(lambda: self.is_lost)
                for task in running:
                    task.cancel()
        finally:
            self._end()
            await self._socket.close()

    async def publish(self, event_id: str, frame: bytes) -> Reply:
        """Send a frame that is answered by OK for this id. Raises ConnectionLost."""
        reply = await self.begin(event_id, frame)
        try:
            answer = await reply
        finally:
            self._unexpected(event_id, reply)
        if answer is None:
            raise ConnectionLost("the connection ended before the OK")
        return answer

    async def begin(self, event_id: str, frame: bytes) -> asyncio.Future[Reply | None]:
        """`publish`, without waiting for the answer; None: the connection ended before it.

        Raises ConnectionLost.
        """
        reply = self._expected(event_id)
        try:
            await self.send(frame, event_id)
        except BaseException:
            self._unexpected(event_id, reply)
            raise
        return reply

    @asynccontextmanager
    async def asking(
        self,
        verb: str,
        filters: Iterable[Filter],
        sink: Sink,
        take_text: Callable[[str], None] | None = None,
    ) -> AsyncIterator[None]:
        """A REQ or COUNT for the time of the block; `sink` is told all. Raises ConnectionLost.

        `take_text` is given, in its stead, the EVENT frames that are spelt without spaces.
        """
        sub = f"{verb[0].lower()}{next(self._numbers)}"
        opening = orjson.dumps([verb, sub, *map(as_json, filters)])
        if take_text is not None:
            self._texts[sub] = take_text
        try:
            async with self._told(sub, sink, opening, orjson.dumps(["CLOSE", sub])):
                yield
        finally:
            self._texts.pop(sub, None)

    @asynccontextmanager
    async def negotiating(
        self, filter_: Filter, message: str, sink: Sink
    ) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
        """A NEG-OPEN for the time of the block, which is given what sends a further message.

        Messages are hex. Raises ConnectionLost.
        """
        sub = f"n{next(self._numbers)}"

        async def send(further: str) -> None:
            await self.send(orjson.dumps(["NEG-MSG", sub, further]), sub)

        opening = orjson.dumps(["NEG-OPEN", sub, as_json(filter_), message])
        async with self._told(sub, sink, opening, orjson.dumps(["NEG-CLOSE", sub])):
            yield send

    @asynccontextmanager
    async def _told(
        self, sub: str, sink: Sink, opening: bytes, closing: bytes
    ) -> AsyncIterator[None]:
        self._sinks[sub] = sink
        try:
            await self.send(opening, sub)
            yield
        finally:
            del self._sinks[sub]
            if not (sink.is_over or self.is_lost):
                with suppress(ConnectionLost, TimeoutError):
                    # Also on the way out of a cancelled query: else the relay keeps it open.
                    async with asyncio.timeout(_HANG_UP_S):
                        await self.send(closing)

    async def login_after(self, rounds: int) -> bool:
        """Whether a login later than `rounds` was taken; waits for a challenge that is on its way.

        Raises ConnectionLost.
        """
        if not self._keys:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.challenge_s):
                await self._until(lambda: self._challenges > rounds)
            async with asyncio.timeout(self._pace.login_s):
                await self._until(lambda: self._answered >= self._challenges)
        return self._answered > rounds and bool(self.logged_in)

    async def send(self, frame: bytes, key: str = "") -> None:
        """`key`: the event or subscription id that is to blame if the frame is too big."""
        if self.is_lost:
            raise ConnectionLost("the connection has ended")
        if key and len(frame) > self._largest[0]:
            self._largest = (len(frame), key)
        try:
            await self._socket.send_frame(frame, aiohttp.WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            # Not only for who sends: the reader of a broken connection may hear of it late.
            self._end()
            raise ConnectionLost(str(error)) from error

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._take(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                # A frame over max_msg_size, or one that is no WebSocket frame: nothing that we sent
                # is to blame.
                break
        else:
            if self._socket.close_code == _TOO_BIG:
                self._blame_largest()
        self._end()

    def _take(self, text: str) -> None:
        if text.startswith(_EVENT):
            take_text = self._texts.get(text[len(_EVENT) : text.find('"', len(_EVENT))])
            if take_text is not None:
                take_text(text)
                return
        try:
            frame = orjson.loads(text)
        except (orjson.JSONDecodeError, RecursionError):
            return
        match frame:
            case ["OK", str(event_id), bool(accepted), *rest]:
                reason = rest[0] if rest and isinstance(rest[0], str) else ""
                self._reply(event_id, Reply(accepted, *split_reason(reason)))
            case ["AUTH", str(challenge), *_]:
                self._challenge = challenge
                self._challenges += 1
                self._bell.ring()
            case ["NOTICE", str(text), *_]:
                self._notices.append(text)
                for sink in tuple(self._sinks.values()):
                    sink.take("NOTICE", frame)
            case [str(verb), str(sub), *_] if sub in self._sinks:
                self._sinks[sub].take(verb, frame)
            case _:
                pass

    async def _settle(self, ready: Callable[[Link], None]) -> None:
        """Log in before the first request, if the relay asks for it promptly."""
        with suppress(ConnectionLost):
            await self.login_after(0)
            ready(self)

    async def _answer_challenges(self) -> None:
        with suppress(ConnectionLost):
            while self._keys:
                await self._until(lambda: self._challenges > self._answered)
                round_ = self._challenges
                await self._log_in(self._challenge)
                self._answered = round_
                self._bell.ring()

    async def _log_in(self, challenge: str) -> None:
        """One AUTH event for each key, all in one go. The keys count together (N42-07)."""
        tags = [["relay", self._url], ["challenge", challenge]]
        logins = [(key, key.sign(CLIENT_AUTH, tags, "", self._now())) for key in self._keys]
        replies = [self._expected(login.id) for _, login in logins]
        try:
            for _, login in logins:
                await self.send(b'["AUTH",' + login.raw + b"]", login.id)
            await asyncio.wait(replies, timeout=self._pace.login_s)
            for (key, _), reply in zip(logins, replies, strict=True):
                answer = reply.result() if reply.done() else None
                if answer is not None and answer.accepted:
                    self.logged_in |= {key.pubkey}
                else:
                    self.login_refusal = _refusal(answer)
        finally:
            for (_, login), reply in zip(logins, replies, strict=True):
                self._unexpected(login.id, reply)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._bell.until(lambda: self.is_lost or condition())
        if self.is_lost:
            raise ConnectionLost("the connection has ended")

    def _expected(self, event_id: str) -> asyncio.Future[Reply | None]:
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._replies.setdefault(event_id, []).append(reply)
        return reply

    def _unexpected(self, event_id: str, reply: asyncio.Future[Reply | None]) -> None:
        waiting = self._replies.get(event_id, [])
        if reply in waiting:
            waiting.remove(reply)
        if not waiting:
            self._replies.pop(event_id, None)

    def _reply(self, event_id: str, answer: Reply | None) -> None:
        for reply in self._replies.pop(event_id, ()):
            if not reply.done():
                reply.set_result(answer)

    def _blame_largest(self) -> None:
        # Sent again on the next connection it would end that one too, and so on.
        size, key = self._largest
        text = f"the relay takes no message of {size} bytes"
        self._reply(key, Reply(accepted=False, prefix=Prefix.INVALID, text=text))
        if key in self._sinks:
            self._sinks[key].take("CLOSED", ["CLOSED", key, f"{Prefix.INVALID}: {text}"])

    def _end(self) -> None:
        self.is_lost = True
        for event_id in list(self._replies):
            self._reply(event_id, None)
        for sink in list(self._sinks.values()):
            sink.lose()
        self._bell.ring()


def _refusal(answer: Reply | None) -> str:
    if answer is None:
        return "no answer"
    return f"{answer.prefix}: {answer.text}" if answer.prefix else answer.text
