"""A relay that speaks TLS itself: its certificate, read again when its files change; handshakes.

Invariants: a handshake never uses a certificate with the key of another. Files that cannot be used
change nothing; the log and `/readyz` say why. The number of unfinished handshakes is bounded, and
so is what a client can have decrypted without sending data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from asyncio.sslproto import SSLProtocol, SSLProtocolState, _SSLProtocolTransport
from collections import Counter
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final

from relay.access.quotas import subnet_of
from relay.access.shares import ByNetwork, RoundRobin, network_of
from relay.errors import UserError
from relay.files import regular_file
from relay.server.turns import Arrivals, Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from relay.observe import Readiness
    from relay.server.turns import Turns

    Files = tuple[tuple[int, ...] | None, ...]

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_PIECE: Final = 64 << 10
"""Bytes that are encrypted at once."""
_HANDSHAKE_S: Final = 15
_HANDSHAKE_BYTES: Final = 64 << 10
"""Memory of an unfinished handshake."""
_FEW: Final = 64
"""So many handshakes are not worth closing when memory is short."""
_HEADER: Final = 5
"""Bytes of a TLS record before what is encrypted; the last two are the length of that."""
_MAX_EMPTY: Final = 8
"""TLS records without data that a client may send in `_EMPTY_S`. Real ones send a KeyUpdate for
millions of records, or each hour."""
_EMPTY_S: Final = 60
_AT_ONCE: Final = 16
"""TLS records that OpenSSL is given before they are counted: 1 ms if all are KeyUpdates."""
_OPEN: Final = SSLProtocolState.WRAPPED
"""An attribute of an Enum class takes 0.1 us each time."""


class Certificate:
    """`[server] tls_cert` and `tls_key`."""

    def __init__(self, cert: Path, key: Path, readiness: Readiness) -> None:
        """Raises UserError when they cannot be used."""
        self._cert, self._key = cert, key
        self._readiness = readiness
        self._tried = self._files()
        self._current = usable(cert, key)

    def current(self) -> ssl.SSLContext:
        """The context for a new handshake, which keeps it. Not by `sni_callback`: Python writes a
        traceback to stderr for each name that is not ASCII."""
        return self._current

    async def watch(self) -> None:
        """Look at the files every second; until it is cancelled."""
        before = self._tried
        while True:
            await asyncio.sleep(_POLL_S)
            files = await asyncio.to_thread(self._files)
            # The two files are written one after the other: wait until neither has changed for a
            # while.
            if files == before and files != self._tried:
                self._tried = files
                await self._read()
            before = files

    async def _read(self) -> None:
        try:
            self._current = await asyncio.to_thread(usable, self._cert, self._key)
        except UserError as error:
            text = f"{error}. The certificate that was read before stays in use"
            _log.error("%s", text)
            self._readiness.note("certificate", text)
        else:
            _log.info("the certificate %s was read again", self._cert)
            self._readiness.clear("certificate")

    def _files(self) -> Files:
        return _state_of(self._cert), _state_of(self._key)


_MAX_FAILED: Final = 4096
"""Addresses whose failed handshakes are counted, and networks; with more, the count begins anew."""


class _Failed(Counter[str]):
    """Address, or network → number of its handshakes that have failed since the last finished."""

    def note(self, name: str, *, is_finished: bool) -> None:
        if is_finished:
            del self[name]
            return
        if len(self) >= _MAX_FAILED:
            self.clear()
        self[name] += 1

    def least(self, names: Iterable[str]) -> str:
        """The first of the names that have failed least."""
        # Mostly one has not failed: to compare 5,000 takes 0.3 ms.
        first = next((name for name in names if name not in self), None)
        return min(names, key=self.__getitem__) if first is None else first


class _Waiting(RoundRobin[asyncio.BaseTransport]):
    """Unfinished handshakes that have input, by address. Every second turn is for who has failed
    less: else who connects would wait for each network, and each address, that begins handshakes
    and goes."""

    __slots__ = ("_failed", "_failed_networks", "_turn")

    def __init__(self, failed: _Failed, failed_networks: _Failed) -> None:
        super().__init__()
        self._failed, self._failed_networks = failed, failed_networks
        self._turn = 0
        """Number of the last turn."""

    def pop(self, *_: object) -> asyncio.BaseTransport:
        self._turn += 1
        return super().pop(
            self._failed_networks.least if self._turn % 2 else None,
            self._failed.least if self._turn % 4 < 2 else None,
        )


class Handshakes:
    """Protocol factory: the protocol that `make` returns, behind TLS.

    asyncio allows any number of unfinished handshakes, each for a minute; one takes 64 KiB, and 1
    ms of the loop to continue. Here one is closed when there are more than `most`: the oldest of
    the network that has most, and in it of the address that has most; or when there are more than
    `per_address` of one address: its oldest. 0: no limit. What arrives for one waits for its turn:
    networks take turns, those of members apart from others, and in each its addresses, of both
    every second time those with fewer failed handshakes. All handshakes together have at most half
    of the loop's time.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.BaseProtocol],
        most: int,
        per_address: int,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._account = turns.account()
        self._context = context
        self._make = make
        self._most = most
        self._per_address = per_address
        self._begun: dict[asyncio.BaseTransport, str] = {}
        """Unfinished handshakes → address."""
        self._by_network: ByNetwork[asyncio.BaseTransport] = ByNetwork()
        """Unfinished handshakes, oldest first."""
        self._failed, self._failed_networks = _Failed(), _Failed()
        self._waiting: Arrivals[asyncio.BaseTransport] = Arrivals(
            turns.is_of_members, partial(_Waiting, self._failed, self._failed_networks)
        )
        self._inputs: dict[asyncio.BaseTransport, Callable[[], None]] = {}
        """What to call when it is their turn."""
        self._giving: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Number of unfinished handshakes."""
        return len(self._begun)

    def __call__(self) -> asyncio.BaseProtocol:
        return _Handshake(self, self._context(), self._make())

    def begin(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        address = subnet_of(ip_address(peer[0].partition("%")[0])) if peer else ""
        self._begun[transport] = address
        self._by_network.add(transport, address)
        its = self._by_network.of(address)
        if 0 < self._per_address < len(its):
            self._end(next(iter(its)))
        elif 0 < self._most < len(self._begun):
            self._end(self._by_network.oldest())

    def end_for(self, needed: int) -> int:
        """The process needs so many bytes of memory: close handshakes that hold them, those of the
        network that has most first; `_FEW` stay. Returns the bytes that those closed held."""
        number = min(needed // _HANDSHAKE_BYTES + 1, len(self._begun) - _FEW)
        for _ in range(number):
            self._end(self._by_network.oldest())
        return max(number, 0) * _HANDSHAKE_BYTES

    def _end(self, transport: Any) -> None:
        self.ended(transport)
        transport.abort()

    def wait(self, transport: asyncio.BaseTransport, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it is the turn of this handshake, if it has not ended."""
        address = self._begun.get(transport)
        if address is None:
            return
        self._inputs[transport] = go_on
        self._waiting.add(address, transport)
        if self._giving is None:
            self._giving = asyncio.create_task(self._give_turns(), name="TLS handshakes")

    async def _give_turns(self) -> None:
        work = Slice(self._turns, thread_time, self._account)
        while self._waiting:
            work.charge()
            await self._turns.wait_for_tls()
            if not self._waiting:  # those that waited have ended
                break
            go_on = self._inputs.pop(self._waiting.pop())
            work.begin()
            try:
                go_on()
            except Exception:  # the others must go on  # noqa: BLE001
                _log.exception("a TLS handshake could not go on")
            took = work.so_far
            work.end()
            # Few connections are accepted in each iteration of the loop. With a signature in each,
            # those of other addresses would not be accepted before all that came earlier.
            await asyncio.sleep(took)
        self._giving = None

    def ended(self, transport: asyncio.BaseTransport, *, is_finished: bool = False) -> None:
        """The handshake has finished, or failed."""
        address = self._begun.pop(transport, None)
        if address is None:
            return
        network = network_of(address)
        self._failed.note(address, is_finished=is_finished)
        self._failed_networks.note(network, is_finished=is_finished)
        self._by_network.discard(transport, address)
        if self._inputs.pop(transport, None) is not None:
            self._waiting.discard(address, transport)


class _Handshake(SSLProtocol):
    max_size = 16 << 10
    """Bytes of the buffer that each socket has for what it receives: one TLS record. asyncio's have
    256 KiB. Also what is read at once: so each read gives the data of one record."""
    if TYPE_CHECKING:  # the type stubs do not have these
        _state: SSLProtocolState
        _app_protocol: asyncio.Protocol
        _app_reading_paused: bool
        _ssl_buffer: bytearray
        _ssl_buffer_view: memoryview
        _incoming: ssl.MemoryBIO
        _sslobj: ssl.SSLObject
        _do_read: Callable[[], None]
        _call_eof_received: Callable[[], None]

    _has_transport = False
    _missing = 0
    """Bytes of the TLS record that OpenSSL was given last which have not arrived."""
    _empty = 0
    """TLS records that OpenSSL was given, without those that gave data."""
    _empty_since = 0.0

    def __init__(
        self, all_: Handshakes, context: ssl.SSLContext, protocol: asyncio.BaseProtocol
    ) -> None:
        loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = loop.create_future()
        super().__init__(
            loop,
            protocol,
            context,
            self._finished,
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_S,
        )
        # What waits while the application reads nothing: asyncio takes 256 KiB of each socket.
        self._set_read_buffer_limits(high=self.max_size)  # type: ignore[attr-defined]
        self._all = all_
        self._waiting = bytearray()
        """Bytes that have arrived after the handshake, and that OpenSSL was not given yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._finished.add_done_callback(lambda done: self._ended(done, transport))
        self._all.begin(transport)
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if self._finished.done():
            if self._state is _OPEN:  # at the end, nobody needs what the client still sends
                self._received(nbytes)
            return
        below: Any = self._transport
        if below is None:
            return
        below.pause_reading()  # what arrived stays in the buffer
        self._all.wait(below, lambda: self._go_on(nbytes, below))

    def _go_on(self, nbytes: int, below: asyncio.Transport) -> None:
        if not below.is_closing():
            below.resume_reading()  # before: TLS may pause it again
            super().buffer_updated(nbytes)

    def _ended(self, done: asyncio.Future[None], transport: asyncio.BaseTransport) -> None:
        # Retrieved, or asyncio logs a failed handshake as an error.
        self._all.ended(transport, is_finished=done.exception() is None)

    # asyncio gives OpenSSL all that has arrived, which then reads until a record has data. A
    # KeyUpdate of 27 bytes takes 60 us: with 450 kB/s one client stopped the relay.

    def _on_handshake_complete(self, fault: BaseException | None) -> None:
        self._waiting += self._incoming.read()  # OpenSSL has read to the end of a record
        self._empty_since = perf_counter()
        super()._on_handshake_complete(fault)

    def _received(self, size: int) -> None:
        buffer = self._ssl_buffer
        if not self._waiting and not self._app_reading_paused:
            end, number = _next_records(buffer, self._missing, size)
            if end >= size:  # nearly always; 5 us less
                self._missing = end - size
                self._empty += number
                self._incoming.write(self._ssl_buffer_view[:size])
                self._do_read()
                return
        self._waiting += self._ssl_buffer_view[:size]
        self._do_read()

    def _give(self) -> bool:
        """Give OpenSSL the next records that wait; whether there were some."""
        waiting = self._waiting
        size = len(waiting)
        end, number = _next_records(waiting, self._missing, size)
        self._missing = max(end - size, 0)
        self._empty += number
        given = waiting[:end]
        del waiting[:end]
        self._incoming.write(given)
        return bool(given)

    def _get_read_buffer_size(self) -> int:
        return self._incoming.pending + len(self._waiting)

    def _do_read__copied(self) -> None:
        chunks: list[bytes] = []  # `list[bytes]()` takes 2 us
        is_open = True
        while not self._waiting or self._give():
            before = len(chunks)
            try:
                while chunk := self._sslobj.read(self.max_size):
                    chunks.append(chunk)
                is_open = False  # close_notify
            except (ssl.SSLWantReadError, ssl.SSLSyscallError):  # `suppress` takes 10 us
                pass
            self._empty -= len(chunks) - before
            if self._empty > _MAX_EMPTY:
                self._check_empty()
            if not self._waiting or not is_open:
                break
        if chunks:
            self._app_protocol.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if not is_open:
            self._call_eof_received()
            self._start_shutdown()

    def _check_empty(self) -> None:
        now = perf_counter()
        if now < self._empty_since + _EMPTY_S:
            raise ConnectionAbortedError("TLS records without data")  # asyncio logs no OSError
        self._empty, self._empty_since = 0, now

    # The type stubs do not have these two either.

    def _get_app_transport(self) -> Any:
        if not self._has_transport:
            self._has_transport = self._app_transport_created = True
            self._app_transport = _Transport(self._loop, self)
        return super()._get_app_transport()  # type: ignore[misc]

    def _get_write_buffer_size(self) -> Any:
        """With the bytes that the socket has not taken: asyncio counts those of TLS alone, also
        after the end."""
        below: Any = self._transport
        if below is None:
            return 0
        return super()._get_write_buffer_size() + below.get_write_buffer_size()  # type: ignore[misc]

    def _do_write(self) -> None:
        """Give TLS what is queued in pieces. The buffer of encrypted bytes keeps the size of the
        largest that it had for as long as the connection lives: with whole answers, 7 MB each."""
        fields = vars(self)
        backlog, connection = fields["_write_backlog"], fields["_sslobj"]
        with suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
            while backlog and not self._waits_for_socket():
                data = memoryview(backlog[0])
                count = connection.write(data[:_PIECE])
                fields["_write_buffer_size"] -= count
                if count < len(data):
                    backlog[0] = data[count:]
                else:
                    del backlog[0]
                self._process_outgoing()  # type: ignore[attr-defined]
        self._process_outgoing()  # type: ignore[attr-defined]

    def _waits_for_socket(self) -> bool:
        """Whether to write only when the socket has taken more. At the end all is written."""
        fields = vars(self)
        is_open = fields["_state"] == SSLProtocolState.WRAPPED
        return is_open and bool(fields["_ssl_writing_paused"])

    # asyncio waits 30 s for the client's own close_notify, with a buffer of the size of the largest
    # answer. Without TLS a socket that is closed waits only until the client has read.

    def _do_shutdown(self) -> None:
        self._do_write()
        super()._do_shutdown()  # type: ignore[misc]
        self._close_when_written()

    def resume_writing(self) -> None:
        super().resume_writing()
        match vars(self)["_state"]:
            case SSLProtocolState.WRAPPED:
                self._do_write()
            case SSLProtocolState.SHUTDOWN:
                self._close_when_written()

    def _close_when_written(self) -> None:
        outgoing: ssl.MemoryBIO = vars(self)["_outgoing"]
        if self._transport is not None and not outgoing.pending:
            self._transport.close()


def _next_records(data: bytearray, start: int, size: int) -> tuple[int, int]:
    """Where the records from `start` on end, up to `_AT_ONCE` of them, and their number. The last
    one may end behind `size`, if its header is before it."""
    end, number = start, 0
    while end + _HEADER <= size and number < _AT_ONCE:
        end += _HEADER + (data[end + 3] << 8 | data[end + 4])
        number += 1
    return end, number


class _Transport(_SSLProtocolTransport):
    """asyncio's forgets its protocol when it is closed twice, as aiohttp does; then it raises
    AttributeError when it is asked what was not sent, and cannot be aborted."""

    def close(self) -> None:
        if not self.is_closing():
            super().close()


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def usable(cert: Path, key: Path) -> ssl.SSLContext:
    """A context with this certificate and key. Raises UserError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        for path in (cert, key):  # OpenSSL would wait for who writes to a pipe
            os.close(regular_file(str(path), os.O_RDONLY | os.O_CLOEXEC))
        # Without `password`, OpenSSL would ask on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"[server] tls_cert {cert} with tls_key {key} cannot be used: {_fault(error)};"
            " `rookery doctor` looks at both"
        ) from error
    return context


def _fault(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    match error.reason:
        case "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        case "EE_KEY_TOO_SMALL" | "CA_MD_TOO_WEAK":
            return "the certificate is too weak: its key is short, or it is signed with an old hash"
        case _:
            return "one of them is no PEM file, or the key has a passphrase"
