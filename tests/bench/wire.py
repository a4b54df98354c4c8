"""A websocket client (RFC 6455) that does next to nothing per frame: the relay is to be measured.

Frames are built and masked before the clock starts. What comes in is counted by its headers;
nothing is unpacked or parsed until the clock has stopped. Frames of one size in a row (events of
one corpus, answers to them) are counted by strided slices that look at every header, in C.
"""

import base64
import itertools
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

HOST = "127.0.0.1"
CONNECT_S = 10.0
ANSWER_S = 60.0
RECEIVE_BYTES = 1 << 18

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
FINAL = 0x80


class WireFault(Exception):
    """The relay closed, did not answer in time, or sent what is no websocket."""


def frame(payload: bytes, *, opcode: int = TEXT) -> bytes:
    """One masked client frame."""
    size = len(payload)
    if size < 126:
        head = bytes((FINAL | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((FINAL | opcode, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FINAL | opcode, 0x80 | 127)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


def extent(data: bytes | bytearray, at: int, end: int) -> tuple[int, int] | None:
    """Where the payload of the server frame at `at` begins and ends; None: the header is cut."""
    if end - at < 2:
        return None
    size = data[at + 1]
    if size < 126:
        return at + 2, at + 2 + size
    if size == 126:
        if end - at < 4:
            return None
        return at + 4, at + 4 + (data[at + 2] << 8 | data[at + 3])
    if size > 127:
        raise WireFault("the relay sent a masked frame")
    if end - at < 10:
        return None
    return at + 10, at + 10 + int.from_bytes(data[at + 2 : at + 10], "big")


def payloads(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset of its end, payload) of each whole text frame. For after the clock."""
    at = 0
    while (found := extent(stream, at, len(stream))) is not None and found[1] <= len(stream):
        if stream[at] == FINAL | TEXT:
            yield found[1], stream[found[0] : found[1]]
        at = found[1]


class Frames:
    """Counts whole text frames in a stream that arrives in pieces, by their headers."""

    __slots__ = ("count", "head", "pings", "size", "skip")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0  # of the frame before, header included
        self.skip = 0  # bytes of a frame whose end has not come yet
        self.head = b""  # of a frame whose header has not come whole
        self.pings: list[bytes] = []

    def feed(self, data: bytes | bytearray, end: int) -> int:
        """Takes `data[:end]`; gives how many frames became whole."""
        before = self.count
        at = 0
        if self.head:
            data = self.head + data[:end]
            end += len(self.head)
            self.head = b""
        elif self.skip:
            if self.skip > end:
                self.skip -= end
                return 0
            at = self.skip
            self.skip = 0
            self.count += 1
        try_run = True
        while at < end:
            if try_run and self.size and (many := (end - at) // self.size) > 1:
                if self._run(data, at, many):
                    at += many * self.size
                    self.count += many
                    continue
                try_run = False
            found = extent(data, at, end)
            if found is None:
                self.head = bytes(data[at:end])
                break
            start, stop = found
            if data[at] != FINAL | TEXT:
                if stop > end:  # control frames are short: wait for the whole of it
                    self.head = bytes(data[at:end])
                    break
                self._control(data[at], bytes(data[start:stop]))
                at = stop
                continue
            self.size = stop - at
            if stop > end:
                self.skip = stop - end
                break
            self.count += 1
            at = stop
        return self.count - before

    def _run(self, data: bytes | bytearray, at: int, many: int) -> bool:
        """Whether `many` text frames of the size before follow each other here."""
        size = self.size
        stop = at + many * size
        if data[at:stop:size].count(FINAL | TEXT) != many:
            return False
        if size < 128:
            return data[at + 1 : stop : size].count(size - 2) == many
        inner = size - 4
        return (
            inner < 1 << 16
            and data[at + 1 : stop : size].count(126) == many
            and data[at + 2 : stop : size].count(inner >> 8) == many
            and data[at + 3 : stop : size].count(inner & 255) == many
        )

    def _control(self, first: int, payload: bytes) -> None:
        match first & 15:
            case opcode if opcode == PING:
                self.pings.append(payload)
            case opcode if opcode == PONG:
                pass
            case opcode if opcode == CLOSE:
                raise WireFault(f"closed by the relay: {payload[2:].decode(errors='replace')}")
            case _:
                raise WireFault(f"unexpected websocket frame 0x{first:02x}")


class Connection:
    """One websocket on a plain socket, in `frames` counted and in `log`, when kept, with times."""

    __slots__ = ("frames", "log", "out", "sock")

    def __init__(self, port: int) -> None:
        self.frames = Frames()
        self.log: list[tuple[float, bytes]] | None = None
        self.out = bytearray()  # what the kernel has not taken yet
        self.sock = socket.create_connection((HOST, port), timeout=CONNECT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = self.sock.recv(4096)
            if not piece or len(answer) > 1 << 16:
                raise WireFault("no handshake")
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise WireFault(f"refused: {head[:80].decode(errors='replace')}")
        self.frames.feed(rest, len(rest))

    def close(self) -> None:
        self.sock.close()

    def settle(self) -> None:
        """Waits until the relay has answered a REQ, so that no greeting (AUTH) is counted later."""
        self.ask(frame(b'["REQ","settle",{"ids":["' + b"0" * 64 + b'"],"limit":1}]'))
        self.sock.sendall(frame(b'["CLOSE","settle"]'))

    def ask(self, request: bytes, ends: bytes = b'["EOSE"') -> list[bytes]:
        """Sends one request, blocking; gives the payloads up to the one that begins with `ends`.

        What it costs to read them is measured too, when the clock runs.
        """
        self.sock.settimeout(ANSWER_S)
        self.sock.sendall(request)
        stream = b""
        deadline = time.perf_counter() + ANSWER_S
        while time.perf_counter() < deadline:
            piece = self.sock.recv(RECEIVE_BYTES)
            if not piece:
                raise WireFault("closed by the relay")
            self.frames.feed(piece, len(piece))
            self.pong()
            stream += piece
            found = [payload for _, payload in payloads(stream)]
            if any(payload.startswith(b'["CLOSED"') for payload in found):
                raise WireFault(found[-1].decode())
            if found and found[-1].startswith(ends):
                return found
        raise WireFault(f"no {ends.decode()} within {ANSWER_S:.0f} s")

    def pong(self) -> None:
        for payload in self.frames.pings:
            self.sock.send(frame(payload, opcode=PONG))
        self.frames.pings.clear()


class Poller:
    """Many non-blocking connections; what one `send` does not take is sent when there is room."""

    def __init__(self, connections: list[Connection]) -> None:
        self._selector = selectors.DefaultSelector()
        self.select = self._selector.select
        for connection in connections:
            connection.sock.settimeout(0)
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def close(self) -> None:
        self._selector.close()

    def send(self, connection: Connection, data: bytes) -> None:
        if connection.out:
            connection.out += data
            return
        sent = 0
        with suppress(BlockingIOError):
            sent = connection.sock.send(data)
        if sent < len(data):
            connection.out += data[sent:]
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(connection.sock, both, connection)

    def flush(self, connection: Connection) -> None:
        with suppress(BlockingIOError):
            sent = connection.sock.send(connection.out)
            del connection.out[:sent]
        if not connection.out:
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)


def connected(port: int, count: int) -> list[Connection]:
    """`count` connections that have had an answer."""
    connections: list[Connection] = []
    try:
        for _ in itertools.repeat(None, count):
            connection = Connection(port)
            connections.append(connection)
            connection.settle()
    except BaseException:
        closed(connections)
        raise
    return connections


def closed(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
