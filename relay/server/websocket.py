"""aiohttp's websocket as the relay uses it: what has arrived whole can be counted, and is read in
less time; who sends too large a frame is told before the connection closes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp._websocket.reader import WebSocketDataQueue

from relay.errors import Invalid
from relay.nostr import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.http_websocket import WebSocketWriter
    from aiohttp.web_request import BaseRequest

CLOSE_S: Final = 1.0
"""How long the other side may take to answer a close frame."""
MESSAGES: Final = frozenset({WSMsgType.TEXT, WSMsgType.BINARY})
FRAME_HEAD: Final = 6
"""Bytes of a frame before its content, at least."""
_UNREAD_PONGS: Final = 4096
"""Bytes of pongs that may follow what the transport takes while the client does not read; with more
its socket is not read. Nothing counts them."""


class RelaySocket(web.WebSocketResponse):
    """aiohttp's websocket, with a NOTICE before it closes because a frame is too large."""

    def __init__(self, *, max_message_length: int, compression: bool) -> None:
        super().__init__(
            max_msg_size=max_message_length + 1,
            compress=compression,
            decode_text=False,
            timeout=CLOSE_S,
            writer_limit=_UNREAD_PONGS,
            autoping=False,  # or all pings that are buffered are answered before any other work
        )
        self._max_message_length = max_message_length
        self.taken = 0
        """Messages that `next` has given."""
        self.taken_bytes = 0
        """Their bytes, with those of their frames' heads."""
        self.started: Callable[[], None] = lambda: None
        """Called when messages may arrive: `prepare` may wait after that until earlier answers on
        the socket are read."""

    def can_prepare(self, request: BaseRequest) -> web.WebSocketReady:
        try:
            return super().can_prepare(request)
        except ValueError:  # aiohttp: for bytes that are not UTF-8, and numbers of 5,000 digits
            return web.WebSocketReady(ok=False, protocol=None)

    def _post_start(
        self, request: BaseRequest, protocol: str | None, writer: WebSocketWriter
    ) -> None:
        super()._post_start(request, protocol, writer)
        self.started()

    def next(self) -> Awaitable[Any]:
        """`receive`, in half of the time for a message that has already arrived."""
        reader = self._reader
        if reader is None or self._closing or self._closed:
            return self.receive()
        arrived = reader._buffer
        return reader.read() if arrived and arrived[0][0].type in MESSAGES else self.receive()

    @property
    def has_arrived(self) -> bool:
        """Whether `next` would not wait."""
        return self._reader is not None and bool(self._reader._buffer)

    def arrived(self) -> tuple[int, int]:
        """How many messages have arrived whole, and their bytes; control frames do not count."""
        number, size = self.taken, self.taken_bytes
        # aiohttp has no public way to look at the queue.
        for message, length in self._reader._buffer if self._reader is not None else ():
            if message.type in MESSAGES:
                number, size = number + 1, size + length + FRAME_HEAD
        return number, size

    async def close(
        self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True
    ) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and not self.closed:
            over = Invalid(f"message is over {self._max_message_length} bytes")
            with contextlib.suppress(ConnectionError):
                await self.send_frame(messages.notice(over), WSMsgType.TEXT)
            # To close while the rest of the message is unread would reset the connection, and the
            # client would lose the NOTICE. The old reader raises at once; this one waits until
            # the client closes, or for `CLOSE_S`, while aiohttp discards what arrives.
            loop = asyncio.get_running_loop()
            assert self._req is not None
            self._reader = WebSocketDataQueue(self._req.protocol, 0, loop=loop)
        elif self._reader is not None:
            self._reader = cast("WebSocketDataQueue", _InTurns(self._reader))
        return await super().close(code=code, message=message, drain=drain)


class _InTurns:
    """The messages that arrived before a close frame. aiohttp takes them all in one iteration of
    the loop, and each that it takes may make it parse, or expand, the next."""

    def __init__(self, reader: WebSocketDataQueue) -> None:
        self._reader = reader

    @property
    def _buffer(self) -> object:
        return self._reader._buffer

    async def read(self) -> object:
        await asyncio.sleep(0)
        return await self._reader.read()

    def feed_data(self, message: Any, size: int) -> None:
        self._reader.feed_data(message, size)
