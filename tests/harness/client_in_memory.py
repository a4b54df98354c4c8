"""A client whose socket is a list: who reads on it, and every frame that it was sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from relay.access.visibility import Viewer
from relay.read.outbox import FlushQueue, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relay.nostr.keys import SecretKey


def payloads(data: bytes) -> Iterator[bytes]:
    """Of WebSocket frames as an outbox makes them: whole and unmasked. RFC 6455 §5.2."""
    while data:
        size, head = data[1], 2
        if size > 125:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[2:head])
        yield data[head : head + size]
        data = data[head + size :]


class Client:
    """Reader, transport and client of one connection that is logged in with some keys."""

    def __init__(
        self, *keys: SecretKey, max_bytes: int = 1 << 30, counted_as: str | None = None
    ) -> None:
        self.counted_as = counted_as
        self.viewer = Viewer(frozenset(key.pubkey for key in keys))
        self.on_overflow: Callable[[], None] = lambda: pytest.fail("the outbox is full")
        self.outbox = Outbox(
            self,
            FlushQueue(lambda _: None),
            max_bytes=max_bytes,
            overflow=lambda: self.on_overflow(),
        )
        self.reader = self
        self.is_reading = self.has_time = True
        self.may_read_on = asyncio.Event()
        self.may_read_on.set()
        self.has_a_page = asyncio.Event()
        self.held_bytes = 0
        self.closed: list[str] = []
        """Subscriptions that the relay closed."""
        self.received: list[list[Any]] = []
        self._seen = 0

    # the relay's end

    def write(self, data: bytes) -> None:
        self.received += map(orjson.loads, payloads(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    async def drained(self) -> None:
        self.outbox.flush()
        self.has_a_page.set()
        await self.may_read_on.wait()
        await asyncio.sleep(0)

    async def turn(self, seconds: float) -> None:
        """At once."""

    def worked(self, seconds: float) -> bool:
        """It never has to wait for a turn."""
        return False

    def request_id(self) -> str:
        return "1.1"

    def hold(self, size: int) -> None:
        self.held_bytes += size

    def closed_by_relay(self, sub: str) -> None:
        self.closed.append(sub)

    # the client's end

    def frames(self) -> list[list[Any]]:
        """Everything received since the last call."""
        self.outbox.flush()
        new, self._seen = self.received[self._seen :], len(self.received)
        return new

    def contents(self) -> list[str]:
        """`content` of the events received since the last call."""
        return [frame[2]["content"] for frame in self.frames()]

    def stream(self, sub: str = "s") -> list[str]:
        """All of one subscription: `content` of events; `<EOSE>`, `<CLOSED …>` as they are."""
        self.outbox.flush()
        return [
            frame[2]["content"] if frame[0] == "EVENT" else f"<{' '.join([frame[0], *frame[2:]])}>"
            for frame in self.received
            if frame[1] == sub
        ]
