"""Outbox: what one connection still has to be sent. Bounded in bytes; one write a turn of the loop.

A websocket message costs its system call, not its bytes (DESIGN §7): payloads that gather within
one turn are framed and written together. A client that reads too slowly is told so and closed;
nothing is dropped silently from the middle, nothing is buffered without end.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SMALL: Final = [bytes((0x81, n)) for n in range(126)]
_MEDIUM: Final = [b"\x81\x7e" + struct.pack("!H", n) for n in range(8192)]


def frame_head(size: int) -> bytes:
    """Header of an unmasked, whole text frame of `size` bytes. RFC 6455 §5.2."""
    if size < 126:
        return _SMALL[size]
    if size < 8192:
        return _MEDIUM[size]
    if size < 65536:
        return b"\x81\x7e" + struct.pack("!H", size)
    return b"\x81\x7f" + struct.pack("!Q", size)


class Sink(Protocol):
    """What an outbox writes to: an asyncio transport will do."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def is_closing(self) -> bool: ...


class Turn:
    """The outboxes that have something to write in this turn of the loop."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        wrote: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`wrote` is told once a turn how many frames went out."""
        self._call_soon = call_soon
        self._wrote = wrote
        self._waiting: list[Outbox] = []

    def add(self, outbox: Outbox) -> None:
        if not self._waiting:
            self._call_soon(self.flush)
        self._waiting.append(outbox)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._wrote(sum([outbox.flush() for outbox in waiting]))


def framed(payload: bytes) -> bytes:
    """The whole text frame: made once, it can be put into many outboxes."""
    return frame_head(len(payload)) + payload


class Outbox:
    """Text frames on their way to one client.

    Promises: in the order in which they were put; whole or not at all; what is over `max_bytes`
    (queued here and in the transport together) calls `overflow` once and nothing more is taken.
    """

    __slots__ = (
        "_bytes",
        "_frames",
        "_full",
        "_max_bytes",
        "_overflow",
        "_pieces",
        "_sink",
        "_turn",
        "closed",
    )

    def __init__(
        self, sink: Sink, turn: Turn, *, max_bytes: int, overflow: Callable[[], object]
    ) -> None:
        self._sink = sink
        self._turn = turn
        self._max_bytes = max_bytes
        self._overflow = overflow
        self._pieces: list[bytes] = []
        self._frames = 0
        self._bytes = 0
        self._full = False
        self.closed = False

    def put(self, payload: bytes) -> None:
        """One message."""
        self.put_frame(frame_head(len(payload)) + payload)

    def put_frame(self, frame: bytes) -> None:
        """One message that is `framed` already."""
        if self.closed or self._full:
            return
        if not self._pieces:
            self._turn.add(self)
        self._pieces.append(frame)
        self._frames += 1
        self._bytes += len(frame)
        if self._bytes > self._max_bytes:
            self._check()

    def put_each(self, head: bytes, bodies: Sequence[bytes], tail: bytes) -> None:
        """A message `head` + body + `tail` for each body; joined with others only when written."""
        if self.closed or self._full or not bodies:
            return
        if not self._pieces:
            self._turn.add(self)
        sizes = list(map(len, bodies))
        around = len(head) + len(tail)
        heads = [frame_head(size + around) for size in sizes]
        self._pieces.extend(chain.from_iterable(zip(heads, repeat(head), bodies, repeat(tail))))
        self._frames += len(bodies)
        self._bytes += sum(sizes) + (around + 4) * len(bodies)

    def flush(self) -> int:
        """Write what has gathered; how many frames that were."""
        pieces, frames = self._pieces, self._frames
        if not pieces or self.closed:
            return 0
        self._pieces = []
        self._frames = self._bytes = 0
        if self._sink.is_closing():
            self.closed = True
            return 0
        self._sink.write(b"".join(pieces))
        self._check()
        return frames

    @property
    def backlog(self) -> int:
        """Bytes not yet taken by the client's socket."""
        return self._bytes + self._sink.get_write_buffer_size()

    def _check(self) -> None:
        if not (self.closed or self._full) and self.backlog > self._max_bytes:
            self._full = True
            self._overflow()

    def close(self) -> None:
        """Write what has gathered; take no more."""
        self.flush()
        self.closed = True
        self._pieces = []
