"""Outbox: frames queued for one connection, bounded in bytes; one write per loop iteration.

A websocket message costs its system call, not its bytes: payloads that are put within one iteration
of the event loop are written together. Where very much is queued for many connections, some are
written in later iterations, so that the loop is not held up. Invariants: a client that reads too
slowly is closed with a reason; no frame is dropped from the middle; no buffer grows without bound.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter, deque
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Protocol

from relay.observe import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)

_LARGE_BYTES: Final = 65_536
"""An outbox with more may wait for a later iteration of the loop; others are written at once."""
UNREAD_SHARE: Final = 4
"""While more than this fraction of an outbox (1/4) is unread, scans pause and live rows wait."""
FEW_UNREAD: Final = 64 << 10
"""Bytes that a client may leave unread before they count: up to so many a transport takes without
asking to wait."""
_LARGE_AT_ONCE: Final = 2 << 20
"""Bytes of large outboxes that are written in one iteration, the last one whole: 1 ms for each
megabyte."""

_MOST_LIVE: Final = 16 << 20
"""Bytes of live rows in all outboxes that wait for the loop to write them. With more no other row
is delivered: it would fill the outboxes even of clients that read."""

LARGE_ROW: Final = 2 << 10
"""A live row of more bytes waits while …"""
_MOST_LARGE: Final = 512 << 10
"""… so many bytes of such rows wait for the loop in outboxes of one network: one of 390 kB that
goes to 1,000 clients takes 200 iterations, and the next commit would wait for them."""

_HEADS: Final = [
    bytes((0x81, n)) if n < 126 else b"\x81\x7e" + struct.pack("!H", n) for n in range(8192)
]


def frame_head(size: int) -> bytes:
    """Header of an unmasked, whole text frame of `size` bytes. RFC 6455 §5.2."""
    if size < len(_HEADS):
        return _HEADS[size]
    if size < 65536:
        return b"\x81\x7e" + struct.pack("!H", size)
    return b"\x81\x7f" + struct.pack("!Q", size)


class Sink(Protocol):
    """The part of an asyncio transport that an outbox uses."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def is_closing(self) -> bool: ...


class FlushQueue:
    """The outboxes to be flushed in this iteration of the event loop, and large ones that wait."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        traffic: Traffic | None = None,
    ) -> None:
        """`traffic`: where frames and bytes are counted."""
        self._call_soon = call_soon
        self.traffic = Traffic() if traffic is None else traffic
        self._waiting: list[Outbox] = []
        self._late: deque[Outbox] = deque()
        """Large ones, in the order in which they were added."""
        self._is_due = False
        self.live_bytes = 0
        """Bytes of the live rows in outboxes."""
        self._large_of = Counter[str]()
        """Network → bytes of those over LARGE_ROW."""

    @property
    def is_behind(self) -> bool:
        """Whether the loop should write before more is delivered."""
        return self.live_bytes > _MOST_LIVE

    def has_room_for(self, network: str) -> bool:
        """Whether the loop should not write large live rows of the network first."""
        return self._large_of[network] < _MOST_LARGE

    def count_large(self, network: str, size: int) -> None:
        """Of such rows so many bytes were put into an outbox, or have left it (negative)."""
        self._large_of[network] += size
        if not self._large_of[network]:
            del self._large_of[network]

    def add(self, outbox: Outbox) -> None:
        self._waiting.append(outbox)
        if not self._is_due:
            self._is_due = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_due = False
        late = self._late
        for outbox in waiting:
            if outbox.queued_bytes <= _LARGE_BYTES:
                outbox.flush()
            else:
                outbox.is_late = True
                late.append(outbox)
        left = _LARGE_AT_ONCE
        while late and left > 0:
            left -= late[0].queued_bytes
            late.popleft().flush()
        if late and not self._is_due:
            self._is_due = True
            self._call_soon(self.flush)


def framed(payload: bytes) -> bytes:
    """The whole text frame, to be put into many outboxes."""
    return frame_head(len(payload)) + payload


class Outbox:
    """Queued text frames of one client.

    Promises: order is kept; a frame is sent whole or not at all; when more than `max_bytes` are
    queued here and in the transport together, or twice as much while this waits for a later
    iteration, or if they cannot be written, `overflow` is called once and further frames are
    ignored; a page of stored rows that is put while few bytes are queued has room in any case.
    `unread` is called when more than `FEW_UNREAD` bytes wait in the transport after a write, or in
    backlogs, with the number of bytes that waited before it.
    """

    __slots__ = (
        "_behind_bytes",
        "_flush_queue",
        "_frames",
        "_full",
        "_large_bytes",
        "_live_bytes",
        "_max_bytes",
        "_network",
        "_overflow",
        "_page_bytes",
        "_pieces",
        "_sink",
        "_unread",
        "closed",
        "held_bytes",
        "is_behind",
        "is_held",
        "is_late",
        "queued_bytes",
        "written_bytes",
    )

    def __init__(
        self,
        sink: Sink,
        flush_queue: FlushQueue,
        *,
        max_bytes: int,
        overflow: Callable[[], object],
        unread: Callable[[int], object] = lambda _: None,
        network: str | None = None,
    ) -> None:
        """`network`: of its client, or an admitted key; None: unknown."""
        self._sink = sink
        self._flush_queue = flush_queue
        self._max_bytes = max_bytes
        self._behind_bytes = max_bytes // UNREAD_SHARE
        self._overflow = overflow
        self._unread = unread
        self._pieces: list[bytes] = []
        self._frames = 0
        self.queued_bytes = 0
        """Bytes not yet given to the transport."""
        self._live_bytes = 0
        """Bytes of live rows among these."""
        self._network = network
        self._large_bytes = 0
        """Bytes of live rows over LARGE_ROW among these, as far as they count for the network."""
        self.written_bytes = 0
        """Bytes given to the transport since the beginning."""
        self._page_bytes = 0
        """Bytes of the last page of stored rows."""
        self._full = False
        self.closed = False
        self.is_behind = False
        """Live rows should wait until the client has read: much was unread at the last write, or
        was queued since."""
        self.is_held = False
        """True: `put` schedules no write. The code that sets it calls `flush` before it returns to
        the loop."""
        self.is_late = False
        """Whether what is queued could have been written in an earlier iteration."""
        self.held_bytes = 0
        """Bytes of live rows in the backlogs of this client's subscriptions."""

    def count_for(self, network: str | None) -> None:
        """From now on it has a share of this network, or admitted key."""
        if network != self._network:
            self._forget_large()
            self._network = network

    def wait_for_others(self) -> None:
        """Before a live row over LARGE_ROW: let it wait for other clients of the network."""
        network = self._network
        if network is not None and not self._flush_queue.has_room_for(network):
            self.is_behind = True

    def hold(self, size: int) -> None:
        """A backlog of this client took a row of so many bytes."""
        self.held_bytes += size
        if self.held_bytes > FEW_UNREAD:
            self._unread(self.waiting_bytes - size)

    @property
    def may_hold(self) -> bool:
        """Whether a backlog of this client may take another row."""
        return self.held_bytes < self._max_bytes

    def put(self, payload: bytes) -> None:
        """Queue one message."""
        size = len(payload)
        self.put_framed((_HEADS[size] if size < len(_HEADS) else frame_head(size)) + payload)

    def put_framed(self, frames: bytes, number: int = 1, *, is_live: bool = False) -> None:
        """Queue messages that are already `framed`: `number` of them, joined. `is_live`: live rows,
        of which only so many may wait for the loop."""
        if self.closed or self._full:
            return
        if not (self._pieces or self.is_held):
            self._flush_queue.add(self)
        size = len(frames)
        self._pieces.append(frames)
        self._frames += number
        self.queued_bytes += size
        if is_live:
            self._live_bytes += size
            self._flush_queue.live_bytes += size
            if size > LARGE_ROW:
                self._count_large(size)
        if self.queued_bytes > self._behind_bytes:
            self._check()

    def put_each(self, head: bytes, bodies: Sequence[bytes], tail: bytes) -> None:
        """Queue a message `head` + body + `tail` for each body, a page of stored rows; concatenated
        only when written."""
        before = self.queued_bytes
        self._queue_each(head, bodies, tail)
        self._page_bytes = self.queued_bytes - before

    def _queue_each(self, head: bytes, bodies: Sequence[bytes], tail: bytes) -> None:
        if self.closed or self._full or not bodies:
            return
        if not (self._pieces or self.is_held):
            self._flush_queue.add(self)
        around = len(head) + len(tail)
        if len(bodies) == 1:  # a third of the time for one
            (body,) = bodies
            size = len(body) + around
            self._pieces += (frame_head(size), head, body, tail)
            self._frames += 1
            self.queued_bytes += size + 4
            return
        sizes = list(map(len, bodies))
        if max(sizes) + around < len(_HEADS):  # a call takes three times as long
            heads = [_HEADS[size + around] for size in sizes]
        else:
            heads = [frame_head(size + around) for size in sizes]
        self._pieces.extend(chain.from_iterable(zip(heads, repeat(head), bodies, repeat(tail))))
        self._frames += len(bodies)
        self.queued_bytes += sum(sizes) + (around + 4) * len(bodies)

    def put_live(self, head: bytes, body: bytes, tail: bytes) -> None:
        """Queue the three joined, as `put`. Until the write, the body is shared with other
        outboxes."""
        before = self.queued_bytes
        self._queue_each(head, (body,), tail)
        size = self.queued_bytes - before
        self._live_bytes += size
        self._flush_queue.live_bytes += size
        if size > LARGE_ROW:
            self._count_large(size)
        if self.queued_bytes > self._behind_bytes:
            self._check()

    def _count_large(self, size: int) -> None:
        if self._network is not None:
            self._large_bytes += size
            self._flush_queue.count_large(self._network, size)

    def flush(self) -> None:
        """Write what is queued."""
        self.is_late = False
        pieces, frames = self._pieces, self._frames
        if not pieces or self.closed:
            return
        self._forget()
        if self._sink.is_closing():
            self.closed = True
            return
        try:
            written = b"".join(pieces)
            self._sink.write(written)
            self.written_bytes += len(written)
            traffic = self._flush_queue.traffic
            traffic.frames_out += frames
            traffic.bytes_out += len(written)
            unread = self._sink.get_write_buffer_size()
            self.is_behind = unread > self._behind_bytes
            if unread > self._max_bytes:
                self._check()
            if unread > FEW_UNREAD and not self._full:
                self._unread(unread - len(written) + self.held_bytes)
        except Exception:  # such as MemoryError: the outboxes behind it must be written  # noqa: BLE001
            _log.exception("a client is closed, because its frames cannot be written")
            self._end()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the client to read them, those in backlogs included; without what is
        queued here, which the relay has not written yet."""
        return self._sink.get_write_buffer_size() + self.held_bytes

    @property
    def read_bytes(self) -> int:
        """Those of the `written_bytes` that do not wait in the transport any more."""
        return self.written_bytes - self._sink.get_write_buffer_size()

    @property
    def buffered_bytes(self) -> int:
        """Bytes queued here and in the transport."""
        return self.queued_bytes + self._sink.get_write_buffer_size()

    def _check(self) -> None:
        self.is_behind = True
        if max(self.queued_bytes, self._sink.get_write_buffer_size()) <= self._max_bytes:
            return
        # If this had been written in time, a client that reads would have read some of it; to write
        # it now would take the loop 6 ms in the middle of a delivery.
        most = max(self._max_bytes, 2 * self._page_bytes) * (2 if self.is_late else 1)
        if not self.closed and self.buffered_bytes > most:
            self._end()

    def _end(self) -> None:
        if not self._full:
            self._full = True
            self._overflow()

    def close(self) -> None:
        """Write what is queued; further frames are ignored."""
        self.flush()
        self.discard()

    def discard(self) -> None:
        """Drop what is queued; further frames are ignored."""
        self.closed = True
        self._forget()

    def _forget(self) -> None:
        self._pieces = []
        self._frames = self.queued_bytes = 0
        self._flush_queue.live_bytes -= self._live_bytes
        self._live_bytes = 0
        self._forget_large()

    def _forget_large(self) -> None:
        if self._large_bytes and self._network is not None:
            self._flush_queue.count_large(self._network, -self._large_bytes)
            self._large_bytes = 0
