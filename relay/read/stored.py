"""Stored rows as a list, for pages of the console: what a REQ of this viewer is sent up to EOSE."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Prefix, Refused
from relay.nostr.event import parsing_weight
from relay.read.outbox import FlushQueue, Outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.visibility import Viewer
    from relay.nostr.filters import Filter
    from relay.read.query import QueryRunner

_SUB: Final = "console"


class StoredRows:
    def __init__(self, queries: QueryRunner) -> None:
        self._queries = queries

    async def of(
        self,
        viewer: Viewer,
        filters: tuple[Filter, ...],
        max_weight: int,
        counted_as: str | None,
    ) -> Sequence[bytes]:
        """The rows in the order of the answer, up to and including the one with which they reach
        `max_weight`, see `parsing_weight`. `counted_as`: see `Sharer.counted_as`. Raises Refused
        for a REQ that would be closed without a row, or because of an error."""
        queries, peer = self._queries, _Peer(viewer, max_weight, counted_as)
        subscription = queries.admit(peer, _SUB, filters)
        if subscription is not None:
            await queries.catch_up(subscription, peer, lambda _: not peer.outbox.is_full)
        refused = peer.outbox.refused
        if refused is not None and (refused.prefix is Prefix.ERROR or not peer.outbox.raws):
            raise refused
        return peer.outbox.raws


class _Peer:
    """`Peer` and `Reader` of one query, without a connection."""

    is_reading = has_time = True

    def __init__(self, viewer: Viewer, max_weight: int, counted_as: str | None) -> None:
        self.viewer = viewer
        self.counted_as = counted_as
        self.outbox = _Rows(max_weight)

    @property
    def reader(self) -> _Peer:
        return self

    async def drained(self) -> None:
        await asyncio.sleep(0)  # let other tasks run between two pages

    async def turn(self, seconds: float) -> None:
        """The console has turns of its own; other tasks run in between."""
        await asyncio.sleep(0)

    def worked(self, seconds: float) -> bool:
        """Pages count their work themselves."""
        return False

    def request_id(self) -> str:
        return "no connection"

    def hold(self, size: int) -> None:
        """Nobody looks at it."""

    def closed_by_relay(self, sub: str) -> None:
        """`_Rows` has the CLOSED."""


class _NoSocket:
    """A `Sink` that sends nothing."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class _Rows(Outbox):
    """Keeps the rows of one query, and the CLOSED if it came before EOSE."""

    __slots__ = ("_is_whole", "_left", "raws", "refused")

    def __init__(self, max_weight: int) -> None:
        queue = FlushQueue(lambda _: None)
        super().__init__(_NoSocket(), queue, max_bytes=0, overflow=lambda: None)
        self.raws: list[bytes] = []
        self._left = max_weight
        self._is_whole = False
        self.refused: Refused | None = None

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def put(self, payload: bytes) -> None:
        verb, _, *rest = orjson.loads(payload)
        if verb == "EOSE":
            self._is_whole = True
        elif verb == "CLOSED" and not self._is_whole:
            prefix, _, text = rest[0].partition(": ")
            self.refused = Refused(Prefix(prefix), text)

    def put_each(self, head: bytes, bodies: Sequence[bytes], tail: bytes) -> None:
        for raw in bodies:
            if self.is_full:
                break
            self.raws.append(raw)
            self._left -= parsing_weight(raw)
