"""Sockets over TLS: the same bounds as without, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
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
from tests.harness.tls_records import CIPHER, Records
from tests.unit.server.test_app import Relay, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


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
    is_closed = False

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})

    def abort(self) -> None:
        self.is_closed = True


class Peers:
    """Clients that begin handshakes. `most`, `per_address`: see `Handshakes`."""

    def __init__(self, most: int = 1000, per_address: int = 10) -> None:
        context = ssl.create_default_context()
        self.turns = Turns()
        self.handshakes = tls.Handshakes(
            lambda: context, asyncio.Protocol, most, per_address, self.turns
        )
        self.order = list[str]()
        """Addresses whose turn came."""

    def come(self, *addresses: str) -> list[Peer]:
        """They send a ClientHello."""
        return [self._comes(address) for address in addresses]

    def _comes(self, address: str) -> Peer:
        self.handshakes.begin(peer := Peer(address))
        self.handshakes.wait(peer, lambda: self.order.append(address))
        return peer

    def go(self, *addresses: str) -> None:
        """The handshakes of these fail."""
        for peer in self.come(*addresses):
            self.handshakes.ended(peer)

    async def have_had_turns(self, number: int) -> list[str]:
        await eventually("all had their turns", lambda: len(self.order) >= number)
        return self.order


def household(number: int, network: int = 0) -> str:
    """An address of an IPv6 /64 of its own, in one of many /48."""
    return f"2001:db8:{network:x}:{number:x}::1"


async def test_who_connects_waits_for_few_addresses_whose_handshakes_failed() -> None:
    """A hundred that sent ClientHellos and went took each newcomer 1.5 s of processor time."""
    peers = Peers()
    failing = [f"10.0.0.{number}" for number in range(1, 21)]
    peers.go(*failing)
    peers.come(*failing, "10.0.0.21")
    assert "10.0.0.21" in (await peers.have_had_turns(21))[:2]


async def test_who_connects_waits_for_few_networks_whose_handshakes_failed() -> None:
    """Each address was one of its own, and had not failed before."""
    peers = Peers()
    peers.go(*[household(1, network) for network in range(20)])
    peers.come(*[household(2, network) for network in range(20)], "10.0.0.1")
    assert "10.0.0.1" in (await peers.have_had_turns(21))[:2]


async def test_handshakes_of_a_network_of_members_wait_for_one_other_each() -> None:
    """An office that was cut waited for those of sixteen networks in front of each of its own."""
    peers = Peers()
    peers.turns.note_admitted("10.0.0.77")
    peers.come(*[household(number, network) for network in range(20) for number in range(3)])
    peers.come(*[f"10.0.0.{number}" for number in range(1, 10)])
    order = await peers.have_had_turns(69)
    members = [at for at, address in enumerate(order) if address.startswith("10.0.0.")]
    assert members[-1] <= 18


async def test_who_connects_waits_for_few_failed_handshakes_beside_members_that_return() -> None:
    """Of what members leave, too, every second turn is for who has failed less."""
    peers = Peers()
    peers.turns.note_admitted("10.0.0.77")
    peers.go(*[household(1, network) for network in range(20)])
    peers.come(*[household(2, network) for network in range(20)])
    peers.come(*[f"10.0.0.{number}" for number in range(1, 30)], "10.0.1.1")
    assert "10.0.1.1" in (await peers.have_had_turns(50))[:4]


@pytest.mark.parametrize("number", [20, 200])
async def test_who_connects_waits_for_few_handshakes_of_a_network(number: int) -> None:
    """500 addresses of one network that began one each in a second kept everybody else out."""
    peers = Peers()
    peers.come(*map(household, range(number)))
    peers.come("10.0.0.1", "10.0.0.1", "10.0.1.1")
    order = await peers.have_had_turns(number + 3)
    newcomers = [at for at, address in enumerate(order) if address.startswith("10.")]
    assert len(newcomers) == 3
    assert newcomers[-1] < 8


async def test_handshakes_end_when_memory_is_short_first_those_of_the_largest_network() -> None:
    """20 clients were closed while 5,000 handshakes held 350 MB."""
    peers = Peers()
    many = peers.come(*map(household, range(200)))
    few = peers.come(*[f"10.0.{number}.1" for number in range(60)])
    ended = peers.handshakes.end_for(100 * 65_536 - 1)
    assert ended == 100 * 65_536
    assert [each.is_closed for each in many] == [True] * 100 + [False] * 100
    assert peers.handshakes.end_for(1 << 30) == (100 + 60 - 64) * 65_536
    assert sum(each.is_closed for each in few) == 0
    assert peers.handshakes.end_for(1 << 30) == 0
    assert len(peers.handshakes) == 64


async def test_a_server_name_that_is_not_ascii_writes_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Python wrote a traceback to stderr for each."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(received, sent, server_hostname="a" * 60)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = sent.read().replace(b"a" * 60, b"\xff" * 60)
    async with serving_tls() as secure, asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.relay.server.port)
        writer.write(hello)
        assert await reader.read(1)
        writer.close()
    assert (capfd.readouterr().err, caplog.records) == ("", [])


async def test_in_a_network_addresses_take_turns() -> None:
    peers = Peers()
    peers.come(*["10.0.0.1"] * 10, *["10.0.0.2"] * 10, "10.0.0.3")
    assert "10.0.0.3" in (await peers.have_had_turns(21))[:4]


async def test_every_waiting_handshake_has_its_turn() -> None:
    """Also those of networks and addresses that failed often, and none that has ended."""
    peers = Peers()
    many = [household(number, network) for number in range(5) for network in range(5)]
    peers.go(*many[::2], *many[::3])
    gone = peers.come(*many, *many)[::4]
    for peer in gone:
        peers.handshakes.ended(peer)
    order = await peers.have_had_turns(50 - len(gone))
    assert sorted(order) == sorted([*many, *many][at] for at in range(50) if at % 4)
    assert not peers.handshakes._waiting


@pytest.mark.parametrize("networks", [1, 3])
async def test_too_many_handshakes_of_a_network_end_none_of_others(networks: int) -> None:
    """Each one more ended the oldest, whosever it was: that of who had waited for longest."""
    peers = Peers(most=9)
    few = peers.come("10.0.0.1", "10.0.1.1", "10.0.2.1")
    many = peers.come(*[household(number, number % networks) for number in range(30)])
    few += peers.come("10.0.3.1")
    assert not any(peer.is_closed for peer in few)
    assert [peer.is_closed for peer in many] == [True] * 25 + [False] * 5
    assert len(peers.handshakes) == 9


async def test_too_many_handshakes_in_one_network_end_the_oldest_of_the_address_with_most() -> None:
    peers = Peers(most=8)
    few = peers.come("10.0.0.1", "10.0.0.2", "10.0.0.2")
    many = peers.come(*["10.0.0.3"] * 9)
    assert not any(peer.is_closed for peer in few)
    assert [peer.is_closed for peer in many] == [True] * 4 + [False] * 5


@pytest.mark.parametrize("address", ["10.0.0.{}", "10.0.{}.1"], ids=["addresses", "networks"])
async def test_too_many_handshakes_of_one_each_end_the_oldest(address: str) -> None:
    peers = Peers(most=8)
    others = peers.come(*map(address.format, range(12)))
    assert [peer.is_closed for peer in others] == [True] * 4 + [False] * 8


async def test_too_many_handshakes_of_an_address_end_its_oldest() -> None:
    peers = Peers(per_address=2)
    few, many = peers.come("10.0.0.1", "10.0.0.1"), peers.come(*["10.0.0.2"] * 4)
    assert not any(peer.is_closed for peer in few)
    assert [peer.is_closed for peer in many] == [True, True, False, False]


async def test_the_counts_of_failed_handshakes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_MAX_FAILED", 8)
    peers = Peers()
    peers.go(*[household(number, number) for number in range(30)])
    handshakes = peers.handshakes
    assert max(len(handshakes._failed), len(handshakes._failed_networks)) <= 8
    handshakes.ended(peers.come(household(29, 29))[0], is_finished=True)
    assert household(29, 29) not in handshakes._failed
    assert not handshakes._begun
    assert handshakes._by_network.oldest() is None


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
            handshakes._end(next(iter(handshakes._begun)))
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
        assert len(made[0]._ssl_buffer) <= 16_384
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


class Received(asyncio.Protocol):
    """What a server was sent behind TLS."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport = asyncio.Transport()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.bytes += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


@dataclass
class Sending:
    """A client whose TLS records a test makes, and what it is connected to."""

    records: Records
    server: Received
    below: asyncio.StreamWriter

    async def has_sent(self, text: bytes) -> None:
        """Until all of it has come, with nothing else."""
        await eventually("all has come", lambda: len(self.server.bytes) >= len(text))
        assert self.server.bytes == text
        self.server.bytes.clear()

    def send(self, records: Iterable[bytes]) -> None:
        self.below.write(b"".join(records))


@asynccontextmanager
async def receiving(
    version: ssl.TLSVersion,
) -> AsyncIterator[tuple[int, ssl.SSLContext, list[Received]]]:
    """The port of a server, what trusts it, and what comes to it."""
    made = list[Received]()

    def make() -> Received:
        made.append(Received())
        return made[-1]

    with TemporaryDirectory() as folder:
        trusting = certificate(Path(folder))
        trusting.maximum_version = version
        trusting.keylog_filename = f"{folder}/keys"
        context = tls.usable(Path(folder, "cert.pem"), Path(folder, "key.pem"))
        handshakes = tls.Handshakes(lambda: context, make, 1000, 10, Turns())
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            server = await loop.create_server(handshakes, "127.0.0.1", 0)
            yield server.sockets[0].getsockname()[1], trusting, made
            server.close()


@asynccontextmanager
async def sending(first: str = "data") -> AsyncIterator[Sending]:
    """`first`: what it sends together with the end of the handshake."""
    async with receiving(ssl.TLSVersion.TLSv1_3) as (port, trusting, made):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, below = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                below.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        assert (client.cipher() or [""])[0] == CIPHER
        its = Sending(Records(Path(str(trusting.keylog_filename))), made[0], below)
        if first == "data":
            below.write(outgoing.read() + its.records.data(b"first"))
            await its.has_sent(b"first")
        else:
            updates = [its.records.key_update() for _ in range(600)]
            below.write(outgoing.read() + b"".join(updates))
        yield its
        below.close()


async def test_a_client_that_sends_key_updates_is_closed() -> None:
    """Each takes 60 us, not counted for anybody: 450 kB/s of one address stopped the relay."""
    async with sending() as its:
        updates = [its.records.key_update() for _ in range(600)]
        updates[24:] = [bytes(len(updates[0]))] * 576  # what these cause does not happen
        its.send([*updates, its.records.data(b"x")])
        assert isinstance(await its.server.ended, ConnectionAbortedError)
        assert its.server.bytes == b""


async def test_key_updates_that_waited_are_counted_too() -> None:
    """While messages waited, 9,700 would have."""
    async with sending() as its:
        its.server.transport.pause_reading()
        its.send(its.records.key_update() for _ in range(3000))
        await asyncio.sleep(0.1)
        assert not its.server.ended.done()
        its.server.transport.resume_reading()
        assert isinstance(await its.server.ended, ConnectionAbortedError)


@pytest.mark.parametrize("data", [1, 3])
async def test_key_updates_between_messages_are_counted(data: int) -> None:
    async with sending() as its:
        made = its.records
        its.send(
            each
            for _ in range(20)
            for each in [*[made.data(b"x") for _ in range(data)], made.key_update()]
        )
        assert isinstance(await its.server.ended, ConnectionAbortedError)


async def test_key_updates_with_the_end_of_a_handshake_are_counted() -> None:
    async with sending(first="updates") as its:
        assert isinstance(await its.server.ended, ConnectionAbortedError)


async def test_a_client_may_send_some_key_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a long-lived connection with new keys each hour."""
    monkeypatch.setattr("relay.server.tls._EMPTY_S", 0)
    async with sending() as its:
        for turn in range(40):
            its.send([its.records.key_update(is_answered=turn % 2 == 0), its.records.data(b"x")])
        await its.has_sent(b"x" * 40)
        assert not its.server.transport.is_closing()


@pytest.mark.parametrize("padding", [0, 40])
@pytest.mark.parametrize("most", [1, 5, 300, 16_000])
async def test_data_in_records_of_any_size_comes_as_it_was_sent(most: int, padding: int) -> None:
    async with sending() as its:
        chance = random.Random(most)
        texts = [chance.randbytes(chance.randint(1, most)) for _ in range(300)]
        its.send(its.records.data(each, padding=padding) for each in texts)
        await its.has_sent(b"".join(texts))
        assert not its.server.transport.is_closing()


async def test_data_that_comes_byte_by_byte_comes_as_it_was_sent() -> None:
    async with sending() as its:
        sent = its.records.data(b"abc") + its.records.key_update() + its.records.data(b"de")
        for at in range(len(sent)):
            its.below.write(sent[at : at + 1])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await its.has_sent(b"abcde")


async def test_little_is_taken_while_the_application_reads_nothing() -> None:
    """256 KiB of each socket: 3,000 had 1.2 GB, which no bound counted."""
    async with sending() as its:
        transport: Any = its.server.transport
        transport.pause_reading()
        its.send(its.records.data(bytes(1_000)) for _ in range(400))
        protocol = transport._ssl_protocol
        await eventually("it reads no more", lambda: not protocol._transport.is_reading())
        assert protocol._get_read_buffer_size() <= 2 * protocol.max_size
        transport.resume_reading()
        await its.has_sent(bytes(400_000))


async def test_data_that_waited_comes_as_it_was_sent() -> None:
    async with sending() as its:
        its.server.transport.pause_reading()
        its.send(its.records.data(bytes(16_000)) for _ in range(100))
        await asyncio.sleep(0.1)
        assert its.server.bytes == b""
        its.server.transport.resume_reading()
        await its.has_sent(bytes(1_600_000))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 200, 16_384, 1 << 20])
async def test_messages_of_a_client_come_as_they_were_sent(
    version: ssl.TLSVersion, size: int
) -> None:
    async with receiving(version) as (port, trusting, made):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        for _ in range(20):
            writer.write(bytes(size))
            await writer.drain()
        await eventually("all has come", lambda: len(made[0].bytes) >= 20 * size)
        writer.close()
        assert await made[0].ended is None
        assert made[0].bytes == bytes(20 * size)
