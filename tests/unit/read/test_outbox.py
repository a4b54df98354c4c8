"""relay/read/outbox.py: bounded in bytes, one write per loop iteration. RFC 6455 §5.2."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.observe import Traffic
from relay.read.outbox import FlushQueue, Outbox, frame_head, framed

if TYPE_CHECKING:
    from collections.abc import Callable


class Sink:
    """A transport whose client reads only when it is told to."""

    def __init__(self, *, reads: bool = True) -> None:
        self.writes: list[bytes] = []
        self.reads = reads
        self.stuck = 0
        """Bytes that were written and not read."""
        self.is_gone = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if not self.reads:
            self.stuck += len(data)

    def get_write_buffer_size(self) -> int:
        return self.stuck

    def is_closing(self) -> bool:
        return self.is_gone

    @property
    def payloads(self) -> list[bytes]:
        return payloads_in(b"".join(self.writes))


class Loop:
    """Has one thing to offer: `call_soon`."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.traffic = Traffic()
        self.flush_queue = FlushQueue(self.soon.append, self.traffic)

    def turns(self) -> None:
        soon = self.soon[:]
        self.soon.clear()
        for call in soon:
            call()


def payloads_in(data: bytes) -> list[bytes]:
    """As a client reads them: whole, unmasked text frames of the shortest possible header."""
    found = []
    while data:
        assert data[0] == 0x81
        size, at = data[1], 2
        if size == 126:
            (size,), at = struct.unpack_from("!H", data, 2), 4
            assert size > 125
        elif size == 127:
            (size,), at = struct.unpack_from("!Q", data, 2), 10
            assert size > 65535
        assert len(data) >= at + size
        found.append(data[at : at + size])
        data = data[at + size :]
    return found


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def sink() -> Sink:
    return Sink()


def outbox_to(
    sink: Sink,
    loop: Loop,
    *,
    max_bytes: int = 1 << 20,
    overflow: Callable[[], None] = lambda: pytest.fail("not that much"),
) -> Outbox:
    return Outbox(sink, loop.flush_queue, max_bytes=max_bytes, overflow=overflow)


@pytest.mark.parametrize(("size", "is_full"), [(1_000, False), (300_000, True)])
def test_large_live_rows_wait_for_others_of_their_network(
    loop: Loop, size: int, *, is_full: bool
) -> None:
    """Those of 1,000 clients took 200 iterations of the loop, and a commit waited for them."""
    networks = ["192.0.2.0/24"] * 601 + ["198.51.100.0/24", None]
    outboxes = [
        Outbox(Sink(), loop.flush_queue, max_bytes=1 << 20, overflow=pytest.fail, network=network)
        for network in networks
    ]
    *of_one, last, other, unknown = outboxes
    for outbox in of_one[: 600 if size == 1_000 else 2]:
        outbox.wait_for_others()
        assert not outbox.is_behind
        outbox.put_live(b"", b"x" * size, b"")
    for outbox in (last, other, unknown):
        outbox.wait_for_others()
    assert [each.is_behind for each in (last, other, unknown)] == [is_full, False, False]
    other.put_live(b"", b"x" * 600_000, b"")
    other.count_for("admitted")
    loop.turns()
    last.is_behind = False
    for outbox in (last, other):
        outbox.wait_for_others()
        assert not outbox.is_behind
    assert not loop.flush_queue._large_of


def test_it_is_told_that_much_waits_in_the_transport(loop: Loop) -> None:
    sink, told = Sink(reads=False), list[int]()
    outbox = Outbox(
        sink,
        loop.flush_queue,
        max_bytes=1 << 20,
        overflow=lambda: pytest.fail("not that much"),
        unread=told.append,
    )
    for _ in range(3):
        outbox.put(b"x" * 40_000)
        loop.turns()
    assert told == [40_004, 80_008]  # before each
    for _ in range(2):  # rows in backlogs
        outbox.hold(40_000)
    assert told[2:] == [160_012]
    assert outbox.waiting_bytes == 200_012
    sink.stuck = outbox.held_bytes = 0
    outbox.put(b"x" * 80_000)
    assert outbox.waiting_bytes == 0  # nobody could read it yet
    loop.turns()
    assert told[3:] == [0]


# frames ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, "8100"),
        (1, "8101"),
        (125, "817d"),
        (126, "817e007e"),
        (127, "817e007f"),
        (8191, "817e1fff"),
        (8192, "817e2000"),
        (65535, "817effff"),
        (65536, "817f0000000000010000"),
        (2**32 + 5, "817f0000000100000005"),
    ],
)
def test_the_frame_header_has_the_payload_length(size: int, head: str) -> None:
    assert frame_head(size).hex() == head


@given(st.lists(st.sampled_from([2, 3, 125, 126, 200, 8191, 8192, 65535, 65536]), max_size=5))
def test_put_put_frame_and_put_each_send_the_same_frames(sizes: list[int]) -> None:
    loop, sink = Loop(), Sink()
    outbox = outbox_to(sink, loop)
    bodies = [bytes([number]) * (size - 2) for number, size in enumerate(sizes)]
    payloads = [b"<" + body + b">" for body in bodies]
    for payload in payloads:
        outbox.put(payload)
        outbox.put_framed(framed(payload))
    outbox.put_each(b"<", bodies, b">")
    assert outbox.buffered_bytes >= 3 * sum(sizes)
    loop.turns()
    assert sink.payloads == [payload for payload in payloads for _ in range(2)] + payloads


# one write per iteration -------------------------------------------------------------------------


def test_frames_of_one_iteration_are_written_together_and_in_order(sink: Sink, loop: Loop) -> None:
    """In the order in which they were put; a message costs its system call, not its bytes."""
    outbox = outbox_to(sink, loop)
    outbox.put(b"one")
    outbox.put_each(b"<", [b"two", b"three"], b">")
    outbox.put_each(b"<", [], b">")
    outbox.put_framed(framed(b"four"))
    assert sink.writes == []
    loop.turns()
    assert len(sink.writes) == 1
    assert sink.payloads == [b"one", b"<two>", b"<three>", b"four"]
    assert (loop.traffic.frames_out, loop.traffic.bytes_out) == (4, len(sink.writes[0]))


def test_all_outboxes_share_one_callback(sink: Sink, loop: Loop) -> None:
    other = Sink()
    first, second = outbox_to(sink, loop), outbox_to(other, loop)
    for outbox in (first, second, first):
        outbox.put(b"x")
    assert len(loop.soon) == 1
    loop.turns()
    assert loop.traffic.frames_out == 3
    assert [len(sink.writes), len(other.writes)] == [1, 1]
    assert [len(sink.payloads), len(other.payloads)] == [2, 1]


def test_the_next_iteration_writes_again(sink: Sink, loop: Loop) -> None:
    outbox = outbox_to(sink, loop)
    outbox.put(b"one")
    loop.turns()
    loop.turns()
    outbox.put(b"two")
    loop.turns()
    assert sink.payloads == [b"one", b"two"]
    assert len(sink.writes) == 2


def test_an_early_flush_writes_nothing_twice(sink: Sink, loop: Loop) -> None:
    outbox = outbox_to(sink, loop)
    outbox.put(b"one")
    outbox.flush()
    outbox.put(b"two")
    loop.turns()
    assert sink.payloads == [b"one", b"two"]


# very much in one iteration ----------------------------------------------------------------------


def test_much_for_many_connections_is_written_over_several_iterations(loop: Loop) -> None:
    """36 connections with 50 subscriptions each to an event of 75 kB held up the loop 110 ms."""
    sinks = [Sink(reads=False) for _ in range(36)]
    body = b"x" * 75_000
    for sink in sinks:
        outbox = outbox_to(sink, loop, max_bytes=4 << 20)
        for _ in range(50):
            outbox.put_live(b"<", body, b">")
    written = 0
    while loop.soon:
        assert len(loop.soon) == 1
        loop.turns()
        assert loop.traffic.bytes_out - written <= 6 << 20
        written = loop.traffic.bytes_out
    assert [len(sink.writes) for sink in sinks] == [1] * 36
    assert [len(sink.payloads) for sink in sinks] == [50] * 36


def test_a_short_answer_does_not_wait_for_much_of_others(sink: Sink, loop: Loop) -> None:
    for _ in range(36):
        outbox_to(Sink(), loop, max_bytes=4 << 20).put(b"x" * (3 << 20))
    loop.turns()
    outbox_to(sink, loop).put(b"answer")
    loop.turns()
    assert sink.payloads == [b"answer"]


def queue_much(loop: Loop) -> None:
    """Of others: more than is written in one iteration."""
    for _ in range(4):
        outbox_to(Sink(), loop, max_bytes=4 << 20).put(b"x" * (3 << 20))


def test_what_is_put_while_an_outbox_waits_is_written_with_it(sink: Sink, loop: Loop) -> None:
    queue_much(loop)
    outbox = outbox_to(sink, loop)
    outbox.put(b"x" * 100_000)
    loop.turns()
    outbox.put(b"y")
    while loop.soon:
        loop.turns()
    assert sink.payloads == [b"x" * 100_000, b"y"]
    assert len(sink.writes) == 1


def test_a_client_that_reads_is_not_too_slow_because_its_outbox_waited(
    sink: Sink, loop: Loop
) -> None:
    queue_much(loop)
    outbox = outbox_to(sink, loop, max_bytes=150_000)
    outbox.put(b"x" * 100_000)
    loop.turns()
    assert sink.writes == []
    outbox.put(b"y" * 100_000)
    assert sink.writes == []
    while not sink.writes:
        loop.turns()
    assert sink.payloads == [b"x" * 100_000, b"y" * 100_000]
    while loop.soon:
        loop.turns()
    assert len(sink.writes) == 1


def test_an_outbox_that_waits_may_be_closed(sink: Sink, loop: Loop) -> None:
    queue_much(loop)
    outbox = outbox_to(sink, loop)
    outbox.put(b"x" * 100_000)
    loop.turns()
    outbox.close()
    while loop.soon:
        loop.turns()
    assert sink.payloads == [b"x" * 100_000]


# bounds ------------------------------------------------------------------------------------------


def test_a_reading_client_never_overflows(sink: Sink, loop: Loop) -> None:
    outbox = outbox_to(sink, loop, max_bytes=100)
    for _ in range(50):
        outbox.put(b"x" * 90)
        loop.turns()
    assert len(sink.payloads) == 50


def test_max_bytes_is_inclusive(loop: Loop) -> None:
    told: list[str] = []
    outbox = outbox_to(Sink(), loop, max_bytes=99, overflow=lambda: told.append("slow"))
    for _ in range(33):
        outbox.put(b"x")
    assert outbox.buffered_bytes == 99
    assert told == []
    outbox.put(b"x")
    assert told == ["slow"]


def test_bytes_in_the_transport_count(loop: Loop) -> None:
    """Queued here and in the transport together."""
    told: list[str] = []
    outbox = outbox_to(Sink(reads=False), loop, max_bytes=92, overflow=lambda: told.append("slow"))
    outbox.put(b"x" * 90)
    loop.turns()
    assert outbox.buffered_bytes == 92
    assert told == []
    outbox.put(b"x" * 20)
    loop.turns()
    assert told == ["slow"]


def test_overflow_is_called_once(loop: Loop) -> None:
    """What is over `max_bytes` calls `overflow` once and nothing more is taken."""
    told: list[str] = []

    def overflow() -> None:
        told.append("slow")
        outbox.close()

    sink = Sink(reads=False)
    outbox = outbox_to(sink, loop, max_bytes=100, overflow=overflow)
    outbox.put(b"in time")
    loop.turns()
    for _ in range(3):
        outbox.put(b"x" * 60)
    loop.turns()
    assert told == ["slow"]
    assert sink.payloads[:1] == [b"in time"]
    assert set(sink.payloads[1:]) <= {b"x" * 60}


def test_nothing_is_queued_after_the_overflow(loop: Loop) -> None:
    """What is over `max_bytes` calls `overflow` once and nothing more is taken."""
    told: list[str] = []
    outbox = outbox_to(Sink(), loop, max_bytes=100, overflow=lambda: told.append("slow"))
    for _ in range(4):
        outbox.put(b"x" * 60)
    outbox.put_each(b"<", [b"one more"], b">")
    assert told == ["slow"]
    assert outbox.buffered_bytes == 124


def test_a_page_of_stored_rows_has_room_in_any_case(loop: Loop) -> None:
    """One of 512 KiB closed a client that read slowly, each time that it asked."""
    told: list[str] = []
    unread: list[int] = []
    sink = Sink(reads=False)
    outbox = Outbox(
        sink,
        loop.flush_queue,
        max_bytes=100_000,
        overflow=lambda: told.append("slow"),
        unread=unread.append,
    )
    outbox.put(b"x" * 20_000)
    outbox.flush()
    outbox.put_each(b"<", [b"y" * 50_000] * 6, b">")
    loop.turns()
    outbox.put(b"eose")
    outbox.put_live(b"<", b"z" * 50_000, b">")
    outbox.flush()
    assert not told
    assert sink.stuck > 370_000
    assert len(unread) == 2
    for _ in range(6):
        outbox.put_live(b"<", b"z" * 50_000, b">")
    outbox.flush()
    assert told == ["slow"]


def test_a_page_gives_live_rows_no_more_room_once_another_has_followed(loop: Loop) -> None:
    told: list[str] = []
    sink = Sink(reads=False)
    outbox = outbox_to(sink, loop, max_bytes=100_000, overflow=lambda: told.append("slow"))
    outbox.put_each(b"<", [b"y" * 50_000] * 6, b">")
    outbox.flush()
    sink.stuck = 0
    outbox.put_each(b"<", [b"last"], b">")
    outbox.put_live(b"<", b"z" * 100_000, b">")
    assert told == ["slow"]


# the end -----------------------------------------------------------------------------------------


def test_close_writes_what_is_queued_and_ignores_the_rest(sink: Sink, loop: Loop) -> None:
    outbox = outbox_to(sink, loop)
    outbox.put(b"goodbye")
    outbox.close()
    assert sink.payloads == [b"goodbye"]
    outbox.put(b"too late")
    outbox.put_each(b"too ", [b"late"], b"")
    outbox.put_framed(framed(b"too late"))
    outbox.flush()
    outbox.close()
    loop.turns()
    assert sink.payloads == [b"goodbye"]
    assert outbox.closed


def test_nothing_is_written_to_a_closing_transport(sink: Sink, loop: Loop) -> None:
    outbox = outbox_to(sink, loop)
    outbox.put(b"one")
    sink.is_gone = True
    loop.turns()
    assert sink.writes == []
    assert loop.traffic.frames_out == 0
    assert outbox.closed
    outbox.put(b"two")
    loop.turns()
    assert outbox.buffered_bytes == 0


def test_closing_one_outbox_does_not_affect_others(sink: Sink, loop: Loop) -> None:
    slow = outbox_to(Sink(reads=False), loop, max_bytes=10, overflow=lambda: slow.close())
    slow.put(b"x" * 8)
    fast = outbox_to(sink, loop)
    fast.put(b"x")
    loop.turns()
    slow.put(b"x" * 8)
    fast.put(b"y")
    loop.turns()
    assert slow.closed
    assert sink.payloads == [b"x", b"y"]


@pytest.mark.parametrize("end", ["written", "discarded", "lost", "closed"])
def test_live_rows_are_counted_until_they_are_written_or_dropped(
    sink: Sink, loop: Loop, end: str
) -> None:
    """Else the next delivery would wait for ever."""
    outbox = outbox_to(sink, loop)
    outbox.put(b"x" * 5000)
    outbox.put_framed(framed(b"y" * 30_000), is_live=True)
    outbox.put_live(b"[", b"y" * 40_000, b"]")
    assert 70_000 < loop.flush_queue.live_bytes < 70_100
    match end:
        case "discarded":
            outbox.discard()
        case "closed":
            outbox.close()
        case "lost":
            sink.is_gone = True
    loop.turns()
    assert loop.flush_queue.live_bytes == 0
    outbox.put_live(b"[", b"y" * 40_000, b"]")
    loop.turns()
    assert loop.flush_queue.live_bytes == 0


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_an_outbox_that_cannot_be_written_stops_no_other(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as when there is no memory to join its pieces: its client would miss a frame, so it is
    closed; those behind it were never written to again, and deliveries waited for their bytes."""

    class Broken(Sink):
        def write(self, _data: bytes) -> None:
            raise MemoryError

    loop, closed = Loop(), list[int]()
    sinks = [Sink(), Broken(), Sink()]
    outboxes = [
        Outbox(sink, loop.flush_queue, max_bytes=1 << 20, overflow=partial(closed.append, at))
        for at, sink in enumerate(sinks)
    ]
    for payload in (b"x", b"y"):
        for outbox in outboxes:
            outbox.put_framed(framed(payload * size), is_live=True)
        loop.turns()
    assert loop.flush_queue.live_bytes == 0
    assert not loop.soon
    assert closed == [1]
    assert "cannot be written" in caplog.text
    for sink in (sinks[0], sinks[2]):
        assert sink.payloads == [b"x" * size, b"y" * size]
