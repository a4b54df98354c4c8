"""Dialer: keeps one connection to a relay up, for as long as its Client lasts.

When a Link ends another is made, after a wait that doubles with each failure and is jittered, so
that the clients of a relay that restarts do not all come back at once. It never gives up;
what waits for it has deadlines.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import aiohttp
import orjson

from relay.client.errors import ClientClosed, NotARelay, Unanswered, Unreachable
from relay.client.link import Link
from relay.errors import UserError
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.client.link import Pace
    from relay.nostr.keys import SecretKey

MAX_FRAME: Final = 16 * 2**20
"""Bytes of one message of the relay."""
_MAX_INFORMATION: Final = 2**20
_CLOSE_S: Final = 2.0
_STEADY_S: Final = 10.0
"""A connection that stood so long was a good one: its loss counts as a first one."""
_JITTER: Final = random.SystemRandom()


class Dialer:
    """The way to one relay. Opened and closed by its Client."""

    def __init__(
        self, url: str, keys: Sequence[SecretKey], pace: Pace, now: Callable[[], int]
    ) -> None:
        """`now`: seconds since 1970. Raises UserError for what is no ws:// or wss:// URL."""
        url = url.strip()
        if relay_address(url) is None or not url.lower().startswith(("ws://", "wss://")):
            raise UserError(f"not the URL of a relay: {url!r} (ws://… or wss://…)")
        self.url = url
        self.pace = pace
        self.now = now
        self.link: Link | None = None
        """The connection of this moment."""
        self.notices: deque[str] = deque(maxlen=32)
        self._keys = keys
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._up: asyncio.Future[Link] | None = None
        self._why = ""

    async def open(self) -> None:
        """Connect and log in. Raises Unreachable."""
        self._begin()
        try:
            self._stay_up_from(await self._first_socket())
            try:
                async with self.deadline(None, "the relay to keep the connection"):
                    await self.link_up()
            except Unanswered as late:
                raise Unreachable(self.url, str(late)) from None
        except BaseException:
            await self.close()
            raise

    def open_anyway(self) -> None:
        """Begin to connect, and go on trying."""
        self._begin()
        self._stay_up_from(None)

    async def close(self) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        finally:
            if self._session is not None:
                await self._session.close()

    async def link_up(self) -> Link:
        """The connection to use now; waits for one. Raises ClientClosed."""
        if self._up is None:
            raise ClientClosed("use the client inside its `async with`")
        while (link := await asyncio.shield(self._up)).is_lost:
            # It has ended and is only not cleared away yet: who asked it again would spin.
            self._went_down()
        return link

    def wait_before(self, attempt: int) -> float:
        """Seconds before trying again: doubled with each attempt up to a bound, with jitter."""
        whole = min(self.pace.longest_wait_s, self.pace.first_wait_s * 2.0 ** min(attempt, 32))
        return _JITTER.uniform(whole / 2, whole)

    @asynccontextmanager
    async def deadline(self, seconds: float | None, what: str) -> AsyncIterator[Callable[[], None]]:
        """Raises Unanswered when the block takes longer; None: the pace's own deadline.

        The block is given what makes the time begin anew.
        """
        seconds = self.pace.deadline_s if seconds is None else seconds
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as limit:
                yield lambda: limit.reschedule(loop.time() + seconds)
        except TimeoutError:
            why = f"; no connection: {self._why}" if self.link is None and self._why else ""
            raise Unanswered(f"no answer within {seconds:g} s: waited for {what}{why}") from None

    async def information(self) -> dict[str, object]:
        """NIP-11. Raises Unreachable, NotARelay."""
        if self._session is None:
            raise ClientClosed("use the client inside its `async with`")
        body = bytearray()
        try:
            async with self._session.get(
                "http" + self.url[2:], headers={"Accept": "application/nostr+json"}
            ) as response:
                async for chunk in response.content.iter_chunked(2**16):
                    body += chunk
                    if len(body) > _MAX_INFORMATION:
                        break
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.url, _reason(error)) from error
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise NotARelay(f"{self.url} gives no relay information document (NIP-11)")
        return document

    def _begin(self) -> None:
        if self._session is not None:
            raise ClientClosed("this client was used before; make another")
        self._up = asyncio.get_running_loop().create_future()
        self._session = aiohttp.ClientSession()

    def _stay_up_from(self, socket: aiohttp.ClientWebSocketResponse | None) -> None:
        self._task = asyncio.create_task(self._stay_up(socket))
        self._task.add_done_callback(self._ended)

    async def _first_socket(self) -> aiohttp.ClientWebSocketResponse:
        loop = asyncio.get_running_loop()
        patient_until, attempt = loop.time() + self.pace.patience_s, 0
        while True:
            try:
                return await self._socket()
            except Unreachable:
                wait = self.wait_before(attempt)
                if loop.time() + wait > patient_until:
                    raise
            await asyncio.sleep(wait)
            attempt += 1

    async def _stay_up(self, socket: aiohttp.ClientWebSocketResponse | None) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            while socket is None:
                try:
                    socket = await self._socket()
                except Unreachable as unreachable:
                    self._why = unreachable.why
                    await asyncio.sleep(self.wait_before(attempt))
                    attempt += 1
            begun = loop.time()
            link = Link(socket, self.url, self._keys, self.pace, self.now, self.notices)
            try:
                await link.live(self._went_up)
            finally:
                self._went_down()
            self._why = f"the connection ended ({socket.close_code})"
            attempt = 0 if loop.time() - begun >= _STEADY_S else attempt
            await asyncio.sleep(self.wait_before(attempt))
            attempt, socket = attempt + 1, None

    async def _socket(self) -> aiohttp.ClientWebSocketResponse:
        assert self._session is not None
        try:
            async with asyncio.timeout(self.pace.connect_s):
                return await self._session.ws_connect(
                    self.url,
                    max_msg_size=MAX_FRAME,
                    compress=0,
                    heartbeat=self.pace.heartbeat_s,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except TimeoutError:
            raise Unreachable(self.url, f"no answer within {self.pace.connect_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.url, _reason(error)) from error

    def _went_up(self, link: Link) -> None:
        self.link = link
        if self._up is not None and not self._up.done():
            self._up.set_result(link)

    def _went_down(self) -> None:
        self.link = None
        if self._up is not None and self._up.done():
            self._up = asyncio.get_running_loop().create_future()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        failure = ClientClosed(f"the client failed: {error!r}" if error else "the client is closed")
        failure.__cause__ = error
        if self._up is None or self._up.done():
            self._up = task.get_loop().create_future()
        self._up.set_exception(failure)
        self._up.exception()  # marks it as seen: perhaps nobody waits


def _reason(error: Exception) -> str:
    """The reason in a few words, without addresses and names of Python."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"it answers HTTP {error.status} and no WebSocket"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted (one of your own: name it in SSL_CERT_FILE)"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "no TLS could be agreed on (is it ws:// there?)"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
