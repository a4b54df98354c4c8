"""Sockets over TLS: the same bounds as without, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import weakref
from asyncio.sslproto import SSLProtocolState
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession

from relay.errors import UserError
from relay.server import tls
from relay.server.turns import Turns
from tests.harness.certificate import certificate
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually, until
from tests.unit.server.test_app import Relay, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Secure:
    """A relay that speaks TLS."""

    relay: Relay
    trusting: ssl.SSLContext

    async def get(self) -> tuple[int, str]:
        """One request of a browser that then goes."""
        url = f"https://{self.relay.at}/"
        async with ClientSession() as browser, browser.get(url, ssl=self.trusting) as answer:
            return answer.status, await answer.text()

    async def connect(
        self, address: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`address`: the client's own."""
        port = self.relay.server.port
        return await asyncio.open_connection(
            "127.0.0.1", port, ssl=self.trusting, limit=1024, local_addr=(address, 0)
        )

    async def has_forgotten(self) -> None:
        """Until the relay counts the unread bytes of no answer any more."""
        async with until("the relay forgets the sockets", ANSWER_S) as tries:
            async for _ in tries:
                if not self.relay.server._http_sockets.answered:
                    return


@asynccontextmanager
async def serving_tls(config: str = "") -> AsyncIterator[Secure]:
    with TemporaryDirectory() as folder:
        trusting = certificate(Path(folder))
        tls = f'tls_cert = "{folder}/cert.pem"\ntls_key = "{folder}/key.pem"\n'
        async with serving(f"{config}[server]\n{tls}") as relay:
            yield Secure(relay, trusting)


async def test_the_handshakes_of_an_address_wait_for_those_of_no_other() -> None:
    """1,500 a second of one address delayed new connections by 10 s."""
    finished: list[str] = []

    async def connected(address: str) -> asyncio.StreamWriter:
        _, writer = await secure.connect(address)
        finished.append(address)
        return writer

    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        many = [connected("127.0.0.4") for _ in range(80)]
        for writer in await asyncio.gather(*many, connected("127.0.0.5")):
            writer.close()
    assert finished.index("127.0.0.5") < 10


class Peer(asyncio.Transport):
    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})


async def test_who_connects_waits_for_few_addresses_whose_handshakes_failed() -> None:
    """A hundred that sent ClientHellos and went took each newcomer 1.5 s of processor time."""
    handshakes = tls.Handshakes(ssl.create_default_context(), asyncio.Protocol, 1000, 10, Turns())
    order = list[str]()

    def comes(address: str) -> Peer:
        handshakes.begin(peer := Peer(address))
        handshakes.wait(peer, lambda: order.append(address))
        return peer

    failing = [f"10.0.0.{number}" for number in range(1, 21)]
    for address in failing:
        handshakes.ended(comes(address))
    for address in failing:
        comes(address)
    comes("10.0.1.1")
    await eventually("all had their turns", lambda: len(order) == 21)
    assert "10.0.1.1" in order[:2]


async def test_a_handshake_that_has_ended_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waited for a turn stayed in memory until garbage was collected: 300 kB of each."""
    made: list[weakref.ref[Any]] = []
    connection_made = tls._Handshake.connection_made

    def noted(self: tls._Handshake, transport: asyncio.BaseTransport) -> None:
        made.append(weakref.ref(self))
        connection_made(self, transport)

    monkeypatch.setattr("relay.server.tls._Handshake.connection_made", noted)
    monkeypatch.setattr("relay.server.tls.Handshakes._give_turns", lambda _: asyncio.sleep(0))
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        handshakes = secure.relay.server._handshakes
        assert handshakes is not None
        _, writer = await asyncio.open_connection("127.0.0.1", secure.relay.server.port)
        writer.write(b"\x16\x03\x01")
        while not handshakes._waiting:  # noqa: ASYNC110  nothing rings when it is so
            await asyncio.sleep(0)
        gc.collect()
        gc.disable()
        try:
            handshakes._end_oldest("127.0.0.1")
            while made[0]() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        finally:
            gc.enable()
        assert not handshakes._waiting
        writer.close()


async def test_a_socket_has_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 sockets that sent nothing took 1.2 GB."""
    made: list[tls._Handshake] = []
    connection_made = tls._Handshake.connection_made

    def noted(self: tls._Handshake, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        connection_made(self, transport)

    monkeypatch.setattr("relay.server.tls._Handshake.connection_made", noted)
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        _, writer = await secure.connect("127.0.0.4")
        assert len(made[0]._ssl_buffer) <= 16_384  # type: ignore[attr-defined]
        writer.close()


async def test_silent_sockets_are_closed_after_others_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio forgets what is behind a TLS transport that is closed twice, as aiohttp does."""
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 3)
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        assert (await secure.get())[0] == 200
        await secure.has_forgotten()
        silent = [await secure.connect() for _ in range(6)]
        for reader, _ in silent[:3]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_socket_that_the_relay_closes_waits_for_no_word_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stayed for 30 s, with a buffer of the size of the answer that was sent before."""
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 1_000_000)
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * 100_000)
    loop = asyncio.get_running_loop()
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = secure.trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", secure.relay.server.port)) as below:
            below.settimeout(0)
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            await loop.sock_sendall(below, outgoing.read())
            while True:
                incoming.write(await loop.sock_recv(below, 65_536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
            client.write(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
            await loop.sock_sendall(below, outgoing.read())
            while some := await loop.sock_recv(below, 65_536):
                incoming.write(some)
            assert client.read(15) == b"HTTP/1.1 200 OK"


async def test_a_large_answer_comes_after_other_sockets_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was an internal error after the first socket that a client closed."""
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * 100_000)
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        for _ in range(2):
            assert await secure.get() == (200, "x" * 100_000)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_large_answer_is_encrypted_in_pieces(
    monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    """Each open connection kept memory for its largest answer, encrypted: 190 held 1.4 GB."""
    encrypted = list[int]()
    process_outgoing = tls._Handshake._process_outgoing  # type: ignore[attr-defined]

    def noted(self: Any) -> None:
        if self._state == SSLProtocolState.WRAPPED:
            encrypted.append(self._outgoing.pending)
        process_outgoing(self)

    monkeypatch.setattr("relay.server.tls._Handshake._process_outgoing", noted)
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * (16 << 20))
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        reader, writer = await secure.connect()
        request = f"GET / HTTP/1.1\r\nHost: relay\r\nConnection: {connection}\r\n\r\n"
        writer.write(request.encode())
        await reader.readuntil(b"\r\n\r\n")  # the socket is full, and the rest waits
        assert await reader.readexactly(16 << 20) == b"x" * (16 << 20)
        writer.close()
    assert 0 < max(encrypted) < 70_000


async def test_answers_that_are_not_read_are_dropped_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio counts no byte that TLS has given to the socket below it: a whole answer."""
    monkeypatch.setattr("relay.server.eviction._MAX_UNREAD", 17 << 20)
    monkeypatch.setattr("relay.server.http.page", lambda *_: "x" * (16 << 20))
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        sockets = []
        for _ in range(6):
            reader, writer = await secure.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
            assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
            sockets.append((reader, writer))
        oldest, got = sockets[0][0], 0
        with contextlib.suppress(ConnectionError):
            while some := await oldest.read(1 << 20):
                got += len(some)
        for _, writer in sockets:
            writer.transport.abort()
        await secure.has_forgotten()
        assert got < 16 << 20, "it was cut off"


async def test_a_fault_does_not_end_the_check_of_silent_sockets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("relay.server.eviction._MAX_SILENT", 0)
    monkeypatch.setattr("relay.server.eviction._CHECK_EVERY_S", 0.01)
    faults = [RuntimeError("a fault")]

    def drop_unread(_: object) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr("relay.server.eviction.HttpSockets.drop_unread", drop_unread)
    with caplog.at_level(logging.ERROR):
        async with serving() as relay, asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
            assert await reader.read() == b""
            writer.close()
    assert [each.getMessage() for each in caplog.records] == [
        "the sockets without a websocket could not be checked"
    ]


@pytest.mark.parametrize("name", ["cert.pem", "key.pem"])
def test_a_pipe_in_place_of_a_file_is_said_and_not_waited_for(tmp_path: Path, name: str) -> None:
    """The check of a running relay waited for ever: valid files were not taken afterwards, and
    SIGTERM did not end the process."""
    certificate(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"cannot be used: \S+{name}: it is a pipe, not a file"):
        tls.usable(tmp_path / "cert.pem", tmp_path / "key.pem")
