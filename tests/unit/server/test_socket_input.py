"""relay/server/socket_input.py: input that waits to be parsed, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import ClientError, ClientSession, web
from aiohttp.compression_utils import ZLibDecompressor

from relay.access.shares import Standing
from relay.server.session import MAX_BAD_FRAMES
from relay.server.turns import Account, Network, Networks, Slice, Turns
from tests.cast import alice
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually, until
from tests.unit.server.test_app import NOW, Relay, Visit, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.server.connection import Connection

PONG = b"\x8a\x80\0\0\0\0"
MANY = 30_000
"""Of them at once."""


@pytest.fixture
async def relay(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    """It reads no connection that has two events without their OKs."""
    monkeypatch.setattr("relay.server.connection._MAX_UNANSWERED", 2)
    async with serving() as relay:
        yield relay


async def floods(relay: Relay, text: str) -> tuple[Visit, Connection]:
    """A connection that is not read has sent many small frames, and the relay has got them."""
    visit = await relay.visit()
    connection = list(relay.server.connections)[-1]
    relay.disk.may_commit.clear()
    for tag in "ab":
        await visit.says("EVENT", orjson.loads(alice.sign(1, [["t", tag]], text, NOW).raw))
    await eventually("the events are taken", lambda: connection.message == 2)
    visit.socket._writer.transport.write(PONG * MANY)
    await eventually("the frames have arrived", lambda: connection._input.unfinished() > 32_000)
    return visit, connection


async def test_small_frames_wait_as_they_came_while_others_wait_to_be_handled(
    relay: Relay,
) -> None:
    """Parsed they take 190 bytes each; 600 connections took 560 MB, and parsed for seconds."""
    visit, connection = await floods(relay, "one")
    reader = connection._socket._reader
    assert reader is not None
    assert 0 < len(reader._buffer) < 256
    relay.disk.may_commit.set()
    assert [(await visit.hears())[0] for _ in "ab"] == ["OK", "OK"]
    assert await visit.asks({"ids": ["0" * 64]}) == [["EOSE", "s"]]
    assert connection.message == 2 + MANY + 1


async def test_input_that_waits_counts_as_unfinished(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, connection = await floods(relay, "one")
    held = connection._input.unfinished()
    monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", held)
    unfinished = connection._input._unfinished
    await floods(relay, "two")
    assert (await first.hears())[0] == "closed"
    assert unfinished.total <= held


async def test_a_socket_that_is_lost_counts_no_more_and_nothing_of_it_is_taken(
    relay: Relay,
) -> None:
    """Input that waited was taken after the end, or was looked at: the sum kept the socket, with
    its connection, until a restart."""
    _, connection = await floods(relay, "one")
    socket = connection._input
    assert socket.transport is not None
    socket.transport.abort()
    await eventually("the socket is lost", lambda: socket.transport is None)
    connection.check()
    socket._resume_transport_reading()  # as aiohttp does while what had arrived is handled
    relay.disk.may_commit.set()
    await eventually("the connection is over", lambda: not relay.server.connections)
    assert socket not in socket._unfinished._places
    assert socket._unfinished.total == 0
    assert (socket._left, socket._fresh) == (b"", 0)


async def test_a_socket_that_is_still_open_after_its_connection_may_be_counted(
    relay: Relay,
) -> None:
    """While its client has not read the last bytes: it ended the sockets of others that sent large
    messages then."""
    visit = await relay.visit()
    (connection,) = relay.server.connections
    input_ = connection._input
    client, server = visit.socket._response.connection, input_.transport
    assert client is not None
    assert client.transport is not None
    assert server is not None
    client.transport.pause_reading()
    while not server.get_write_buffer_size():
        server.write(b"\x8a\x00" * 1_000)  # pongs
    closing = asyncio.create_task(visit.socket.close())
    await eventually("the connection is over", lambda: not relay.server.connections)
    assert input_.transport is not None
    assert input_.unfinished() < 100
    server.abort()
    closing.cancel()


async def test_few_pongs_wait_for_a_client_that_does_not_read(relay: Relay) -> None:
    """Up to 256 KiB did, of each connection."""
    visit = await relay.visit()
    (connection,) = relay.server.connections
    connection._input.pause_writing()  # as the transport does when much is unread
    pings = b"\x89\xfd\0\0\0\0".ljust(131, b"x") * 1000
    visit.socket._writer.transport.write(pings)
    await eventually(
        "the relay waits for the client",
        lambda: connection._input._drain_waiter is not None or connection.message == 1000,
    )
    assert 0 < connection.message < 100
    connection._input.resume_writing()
    assert await visit.asks({"ids": ["0" * 64]}) == [["EOSE", "s"]]
    assert connection.message == 1000 + 1


async def test_few_frames_may_come_before_the_answer_to_a_handshake(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 KiB of each of 1,000 sockets waited, in no sum, and were parsed at once."""
    may_answer = asyncio.Event()
    turn = relay.server._turns.wait_for_handshake

    async def late(address: str) -> None:
        await may_answer.wait()
        await turn(address)

    monkeypatch.setattr(relay.server._turns, "wait_for_handshake", late)
    head = (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    few, many = [await asyncio.open_connection("127.0.0.1", relay.server.port) for _ in range(2)]
    few[1].write(head + PONG * 2000)
    many[1].write(head + PONG * 4000)
    async with asyncio.timeout(ANSWER_S):
        with contextlib.suppress(ConnectionError):
            assert await many[0].read() == b""
    may_answer.set()
    assert (await few[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 101")
    for _, writer in (few, many):
        writer.close()


async def test_an_open_websocket_holds_few_headers_of_its_request(relay: Relay) -> None:
    """15 kB of them took 77 kB of each connection for as long as it was open."""
    lines = {f"X-{number}": f"{number}".ljust(140, "x") for number in range(90)}
    visit = await relay.visit(Origin="https://example.com", **lines)
    (connection,) = relay.server.connections
    request, protocol = connection._request, connection._input
    assert request is not None
    assert request.headers["Origin"] == "https://example.com"
    assert len(request.headers) < 9
    assert request.raw_headers == ()
    assert protocol._parser is None
    assert await visit.asks({"ids": ["0" * 64]}) == [["EOSE", "s"]]


def compressed(payload: bytes) -> bytes:
    """A client's frame. RFC 7692."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = (packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    return struct.pack("!BBH4x", 0xC1, 0x80 | 126, len(data)) + data


async def test_compressed_frames_that_come_at_once_are_parsed_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """120 frames of 533 bytes that expand to 520,000 each took the loop 0.28 s."""
    ticks, turns, wait = count(), list[str](), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        task = asyncio.current_task()
        turns.append("" if task is None else task.get_name())
        await wait(self, account)

    async with serving("[server]\ncompression = true\n") as relay:
        monkeypatch.setattr("relay.server.socket_input.thread_time", lambda: next(ticks) / 100)
        url = f"ws://{relay.at}/"
        visit = Visit(await relay.browser.ws_connect(url, compress=15))
        await visit.hears()
        monkeypatch.setattr(Turns, "wait", noted)
        frames = compressed(b'["CLOSE","%s"]' % b"s".ljust(100_000)) * 60
        visit.socket._writer.transport.write(frames)
        await visit.asks({"ids": ["0" * 64]})
        assert turns.count("input waits for its turn") >= len(frames) // 1024 > 5


@pytest.mark.parametrize("compress", [0, 15])
async def test_input_waits_while_others_have_used_the_iteration(
    monkeypatch: pytest.MonkeyPatch, compress: int
) -> None:
    """40 sockets that were ready at once expanded 5 ms of input each; 4,000 parsed for 0.6 s."""
    names, wait = list[str](), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        task = asyncio.current_task()
        names.append("" if task is None else task.get_name())
        await wait(self, account)

    async with serving("[server]\ncompression = true\n") as relay:
        visit = Visit(await relay.browser.ws_connect(f"ws://{relay.at}/", compress=compress))
        await visit.hears()
        monkeypatch.setattr(Turns, "wait", noted)
        monkeypatch.setattr(Slice, "has_time", property(lambda _: True))
        monkeypatch.setattr("relay.server.turns.SLICE_S", 60.0)  # on a busy machine, too
        monkeypatch.setattr("relay.server.turns.BUSY_SLICE_S", 60.0)
        await visit.asks({"ids": ["0" * 64]})
        assert "input waits for its turn" not in names
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
        await visit.asks({"ids": ["0" * 64]})
        assert "input waits for its turn" in names


async def test_requests_wait_while_others_have_used_the_iteration(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 sockets of one address sent 4 kB each at once: others waited for 0.9 s."""
    async with ClientSession() as client:
        async with client.get(f"http://{relay.at}/healthz"):
            pass
        names, wait = list[str](), Turns.wait_for_input

        async def noted(self: Turns, address: str) -> None:
            task = asyncio.current_task()
            names.append("" if task is None else task.get_name())
            await wait(self, address)

        monkeypatch.setattr(Turns, "wait_for_input", noted)
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
        async with client.get(f"http://{relay.at}/healthz") as answer:
            assert answer.status == 200
        assert "input waits for its turn" in names


async def test_whole_messages_that_wait_count_as_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """540 bytes of each of 3,900 clients expanded to 520 kB that nothing counted: 2 GB."""
    async with serving("[server]\ncompression = true\n") as relay:
        visits = [
            Visit(await relay.browser.ws_connect(f"ws://{relay.at}/", compress=15))
            for _ in range(4)
        ]
        for visit in visits:
            await visit.hears()
        monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", 1 << 20)
        may_go_on, wait = asyncio.Event(), Turns.wait

        async def noted(self: Turns, account: Account) -> None:
            task = asyncio.current_task()
            if task is not None and task.get_name() != "input waits for its turn":
                await may_go_on.wait()
            await wait(self, account)

        monkeypatch.setattr(Turns, "wait", noted)
        for visit in visits:
            visit.socket._writer.transport.write(
                compressed(b'["EVENT",%s{}]' % b" ".ljust(500_000))
            )
        connections = relay.server.connections
        await eventually("some are closed", lambda: len(connections) < len(visits))
        await eventually(
            "the others fit",
            lambda: sum(each._input.unfinished() for each in connections) <= 1 << 20,
        )
        may_go_on.set()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_message_that_waits_is_dropped_once(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """Before its task has ended, it may be counted and dropped again, or its socket be lost: that
    raised, where the message of somebody else was counted."""
    waits = asyncio.Event()

    async def waited(_self: Slice, *_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Slice, "rest", waited)
    visit = await relay.visit()
    (connection,) = relay.server.connections
    await visit.says("REQ", "s", {"#t": ["x" * 20_000]})
    await waits.wait()
    input_ = connection._input
    leave = input_._leave
    assert leave is not None
    input_.drop()
    while not leave.expired():  # noqa: ASYNC110 -- until its task is cancelled, not until it has run
        await asyncio.sleep(0)
    assert connection in relay.server.connections
    input_.connection_lost(None) if is_lost else input_.drop()
    await eventually("it is over", lambda: not relay.server.connections)


@pytest.mark.parametrize("are_too_large", [False, True])
async def test_a_large_event_is_taken_although_its_client_has_left(
    monkeypatch: pytest.MonkeyPatch, *, are_too_large: bool
) -> None:
    """It may wait for its turn, and there are clients that wait for no OK."""
    event = alice.sign(1, [], "x" * 100_000, NOW)
    may_go_on, waits, wait = asyncio.Event(), asyncio.Event(), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name() != "input waits for its turn":
            waits.set()
            await may_go_on.wait()
        await wait(self, account)

    async with serving() as relay:
        monkeypatch.setattr(Turns, "wait", noted)
        visit = await relay.visit()
        (connection,) = relay.server.connections
        await visit.says("EVENT", orjson.loads(event.raw))
        await waits.wait()
        unfinished = connection._input._unfinished
        visit.socket._writer.transport.abort()
        await eventually("it has left", lambda: connection._input.transport is None)
        assert unfinished.total > 100_000
        if are_too_large:
            monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", 50_000)
            unfinished._make_room()
            await eventually("it is dropped", lambda: not relay.server.connections)
        may_go_on.set()
        await eventually("it is over", lambda: not relay.server.connections)
        assert unfinished.total == 0
        if are_too_large:
            assert not relay.disk.append_called.is_set()
        else:
            await relay.disk.append_called.wait()


@pytest.mark.parametrize(
    ("first", "end", "is_taken"),
    [
        ("a REQ", "it leaves", True),
        ("a costly REQ", "it leaves", True),
        ("a CLOSE", "it leaves", True),
        ("a login", "it leaves", True),
        ("nothing", "it leaves", True),
        ("a REQ", "all together are too large", False),
        ("a login", "all together are too large", False),
        ("a CLOSE", "its address is blocked", False),
    ],
)
async def test_an_event_is_taken_behind_what_waited_when_its_client_left(
    monkeypatch: pytest.MonkeyPatch, first: str, end: str, *, is_taken: bool
) -> None:
    """Any other frame that waited ended the connection, with all that had arrived behind it."""
    may_go_on, wait = asyncio.Event(), Turns.wait
    is_armed = False

    async def noted(self: Turns, account: Account) -> None:
        task = asyncio.current_task()
        if is_armed and task is not None and task.get_name() != "input waits for its turn":
            await may_go_on.wait()
        await wait(self, account)

    async with serving() as relay:
        monkeypatch.setattr(Turns, "wait", noted)
        visit = await relay.visit()
        (connection,) = relay.server.connections
        authors = [f"{number:064x}" for number in range(1000)]
        tags = [["-"]] if first == "a login" else []
        # A socket is not read while much has arrived: that it is closed is then not noticed.
        is_large = first == "nothing" or end == "all together are too large"
        event = alice.sign(1, tags, "x" * (20_000 if is_large else 9), NOW)
        frames = [b' [ "EVENT", %s]' % event.raw]  # blanks may be anywhere in JSON
        if first == "a REQ":
            connection.account.standing = Standing.KNOWN
            frames.insert(0, orjson.dumps(["REQ", "s", {"authors": authors[:300]}]))
        elif first == "a costly REQ":
            await connection._turns.costly.begin(Account(Network(Networks())), 0.1)
            frames.insert(0, orjson.dumps(["REQ", "s", {"authors": authors}]))
        elif first == "a CLOSE":
            connection._session.is_heavy = True
            frames.insert(0, b'["CLOSE","s"]')
        elif first == "a login":
            connection._session.is_heavy = True
            relays = [["relay", f"ws://{relay.at}"], ["challenge", visit.challenge]]
            frames.insert(0, b'["AUTH",%s]' % alice.sign(22242, relays, "", NOW).raw)
        is_armed = True
        for frame in frames:
            await visit.socket._writer.send_frame(frame, 1)
        arrived = len(frames)
        await eventually("all arrive", lambda: connection._socket.arrived()[0] == arrived)
        await eventually("the first waits", lambda: connection.message == 1)
        if end == "its address is blocked":
            connection.close_blocked()
        if end == "all together are too large":
            connection._input.drop()
        else:
            visit.socket._writer.transport.abort()
        await eventually("it has left", lambda: connection._input.transport is None)
        may_go_on.set()
        await eventually("it is over", lambda: not relay.server.connections)
        if is_taken:
            await eventually("it is written", relay.disk.append_called.is_set)
        else:
            assert connection._unanswered == 0
            assert not relay.disk.append_called.is_set()
        assert connection._input._unfinished.total == 0


async def test_compressed_frames_that_nobody_takes_any_more_are_expanded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the relay closed a connection, the frames that it still had took the loop 0.25 s."""
    expand = ZLibDecompressor.decompress_sync
    iterations, expanded = count(), Counter[int]()
    current = next(iterations)

    async def iterate() -> None:
        nonlocal current
        while True:
            current = next(iterations)
            await asyncio.sleep(0)

    def noted(self: ZLibDecompressor, *given: Any) -> bytes:
        expanded[current] += 1
        return expand(self, *given)

    async with serving("[server]\ncompression = true\n") as relay:
        visit = Visit(await relay.browser.ws_connect(f"ws://{relay.at}/", compress=15))
        await visit.hears()
        monkeypatch.setattr(ZLibDecompressor, "decompress_sync", noted)
        iterating = asyncio.create_task(iterate())
        frame = compressed(b"no message".ljust(100_000))
        visit.socket._writer.transport.write(frame * 100)
        assert (await visit.hears_all())[-1] == ["closed", 1008]
        iterating.cancel()
        assert expanded.total() > MAX_BAD_FRAMES
        assert max(expanded.values()) <= 2 * 1024 // len(frame)


async def test_a_request_that_ends_with_the_time_for_the_stop_is_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp 3.14 sets the result of a future that its timeout has just cancelled, and logged that
    with a traceback for each socket whose request was answered at that moment."""
    may_answer = asyncio.Event()

    async def held(*_: object) -> None:
        await may_answer.wait()

    monkeypatch.setattr(Turns, "wait_for_request", held)
    async with serving() as relay, ClientSession() as browser:
        asking = asyncio.create_task(browser.get(f"http://{relay.at}/"))
        async with until("the request is in progress") as tries:
            async for _ in tries:
                assert relay.server._runner.server is not None
                sockets = relay.server._runner.server.connections
                if sockets and sockets[0]._current_request is not None:
                    break
        stop = asyncio.create_task(sockets[0].shutdown(ANSWER_S))
        await asyncio.sleep(0)
        may_answer.set()  # the handler goes on first
        stop.cancel()  # as the timeout does
        with contextlib.suppress(asyncio.CancelledError):
            await stop
        with contextlib.suppress(ClientError):
            await asking
    assert caplog.records == []


async def test_what_arrived_before_a_close_is_taken_in_several_iterations(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that was closed for its tiny frames took the loop 40 ms for those behind them: 600
    of one address kept whoever connected waiting for 16 s."""
    iteration, taken = 0, Counter[int]()
    close = web.WebSocketResponse.close

    class Noted:
        def __init__(self, reader: Any) -> None:
            self._reader = reader
            self._buffer = reader._buffer

        async def read(self) -> Any:
            taken[iteration] += 1
            return await self._reader.read()

    async def noted(self: Any, **options: Any) -> bool:
        self._reader = Noted(self._reader)
        return await close(self, **options)

    async def counted() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    visit = await relay.visit()
    monkeypatch.setattr(web.WebSocketResponse, "close", noted)
    counting = asyncio.create_task(counted())
    visit.socket._writer.transport.write(b"\x81\x82\0\0\0\0[]" * 2_000)
    while await visit.hears() != ["closed", 1008]:
        pass
    await eventually("the connection is gone", lambda: not relay.server.connections)
    counting.cancel()
    assert taken.total() > 100
    assert max(taken.values()) == 1
