"""DIR/control.sock: a folder's events, given to other commands by the relay that runs on it.

Protocol, one line of JSON at a time, any number of requests on a connection, one after the other:

    → {"do":"submit","origin":"IMPORT","sizes":[412,388]}   then so many rows of so many bytes
    ← {"is":"results","results":[[true,""],[false,"blocked: deleted"]]}
    → {"do":"events","filter":{"kinds":[9]}}
    ← {"is":"page","sizes":[412,388]}                       then the rows; any number of pages
    ← {"is":"page","sizes":[]}                              the end
    → {"do":"public_events","filter":{}}                    the same, only what anybody may read
    → {"do":"foresee","logins":["<key>"],"size":412}        then the event; nothing comes of it
    ← {"is":"foreseen","ok":false,"message":"…","rule":"…","facts":{…}}
    → {"do":"standings"}                                    keys that NIP-86 calls allowed, banned
    ← {"is":"page","sizes":[80]}                            rows of ["banned","<key>"], as above
    → {"do":"sizes","by":"kind","limit":20}                 what is stored, by kind, author, group
    ← {"is":"page","sizes":[60]}                            rows of [1,[events,bytes]], as above
    → {"do":"sweep","purpose":"TRIAL"}                      what retention takes; SWEEP takes it
    ← {"is":"page","sizes":[310]}                           rows of JSON, as it goes
    → {"do":"refusals","after":17}                          the last events that were refused
    ← {"is":"page","sizes":[310]}                           rows of JSON, as above
    → {"do":"head"}
    ← {"is":"head","head":80}
    ← {"is":"failed","prefix":"invalid","text":"…"}         instead of any of these

A row is the event's bytes and a line end. What is public is asked for by a word of its own: a relay
that does not know it refuses, where one that did not know a field would give everything. Only the
user that the relay runs as may connect. Bounded are connections and what a request may hold; a page
is read from the store when the one before is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
import orjson

from relay.decision import Purpose
from relay.errors import FolderBusy, Invalid, Prefix, Refused, StoreFault, UserError
from relay.nostr.event import event_from
from relay.nostr.filters import Filter
from relay.observe import Refusal
from relay.sweep import SweepLine
from relay.usage import Sized, SizedBy
from relay.verdict import Facts, Origin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event

_log = logging.getLogger(__name__)
A = TypeVar("A")

MAX_ROWS: Final = 512
"""Of one request to submit."""
_MAX_BYTES: Final = 64 * 2**20
"""Of one request to submit."""
_PAGE_BYTES: Final = 4 * 2**20
"""Rows are gathered up to here; a larger one goes alone."""
_MAX_LINE: Final = 2**20
"""Bytes of a request or answer without its rows."""
_MAX_CONNECTIONS: Final = 16
_IDLE_S: Final = 30.0
"""A connection without a request, or one that is never finished, ends."""
_STALLED_S: Final = 600.0
"""A reader that takes nothing for so long is cut off."""
_ANSWER_S: Final = 120.0
"""What a command waits for the relay."""
_GOODBYE_S: Final = 3.0
"""What a relay that stops gives to batches that are being committed."""


class Rows(Enum):
    """Which rows of a folder are given."""

    ALL = auto()
    PUBLIC = auto()
    """What anybody may read who is not logged in: of these alone others may hear."""


class Folder(Protocol):
    """The events of a data folder, wherever they are."""

    async def submit(
        self, events: Sequence[Event], origin: Origin
    ) -> Sequence[tuple[bool, str]]:
        """The third and fourth element of OK for each event, in order, after the commit."""

    def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        """Pages of stored bytes in order of seq: all that match; `limit` plays no part."""

    async def head(self) -> int:
        """seq of the newest row ever committed."""


class Verdicts(Protocol):
    """What the relay of a data folder would decide, and what it has decided."""

    async def foreseen(self, event: Event, logins: frozenset[str]) -> Foresight:
        """What would become of an event that came from a connection with these logins."""

    async def standings(self) -> Sequence[tuple[str, str]]:
        """(ALLOWED or BANNED, key) of whom NIP-86 calls have allowed and banned."""

    async def refusals(self, after: int) -> Sequence[Refusal]:
        """The last refusals behind this number, oldest first."""


class Contents(Protocol):
    """How much a data folder holds, and what it forgets."""

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        """By kind, author or group: most bytes first, at most `limit` lines."""

    def sweep(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        """Apply retention now; lines to add up, as it goes."""


class DataFolder(Folder, Verdicts, Contents, Protocol):
    """All that can be asked of a data folder."""


ALLOWED: Final = "allowed"
BANNED: Final = "banned"


class Foresight(msgspec.Struct, frozen=True, tag_field="is", tag="foreseen"):
    """The OK that an event would get, the rule that gives it, and what rules look at."""

    ok: bool
    message: str
    rule: str | None
    facts: Facts | None
    """None: the form is wrong before any rule is asked."""


# -- the protocol ---------------------------------------------------------------------------------


class _Submit(msgspec.Struct, frozen=True, tag_field="do", tag="submit"):
    origin: str
    sizes: list[int]


class _Events(msgspec.Struct, frozen=True, tag_field="do", tag="events"):
    filter: Filter


class _PublicEvents(msgspec.Struct, frozen=True, tag_field="do", tag="public_events"):
    filter: Filter


class _Foresee(msgspec.Struct, frozen=True, tag_field="do", tag="foresee"):
    logins: list[str]
    size: int


class _Standings(msgspec.Struct, frozen=True, tag_field="do", tag="standings"):
    pass


class _Refusals(msgspec.Struct, frozen=True, tag_field="do", tag="refusals"):
    after: int


class _Head(msgspec.Struct, frozen=True, tag_field="do", tag="head"):
    pass


class _Results(msgspec.Struct, frozen=True, tag_field="is", tag="results"):
    results: list[tuple[bool, str]]


class _Page(msgspec.Struct, frozen=True, tag_field="is", tag="page"):
    sizes: list[int]


class _HeadIs(msgspec.Struct, frozen=True, tag_field="is", tag="head"):
    head: int


class _Failed(msgspec.Struct, frozen=True, tag_field="is", tag="failed"):
    prefix: Prefix
    text: str


class _Sizes(msgspec.Struct, frozen=True, tag_field="do", tag="sizes"):
    by: SizedBy
    limit: int


class _Sweep(msgspec.Struct, frozen=True, tag_field="do", tag="sweep"):
    purpose: str


_Request = (
    _Submit | _Events | _PublicEvents | _Foresee | _Standings | _Refusals | _Head | _Sizes | _Sweep
)
_Answer = _Results | _Page | Foresight | _HeadIs | _Failed

_requests: Final = msgspec.json.Decoder(_Request)
_answers: Final = msgspec.json.Decoder(_Answer)
_encode: Final = msgspec.json.Encoder().encode
_standings_in: Final = msgspec.json.Decoder(tuple[str, str]).decode
_refusal_in: Final = msgspec.json.Decoder(Refusal).decode
_sized_in: Final = msgspec.json.Decoder(Sized).decode
_swept_in: Final = msgspec.json.Decoder(SweepLine).decode


def _sizes(rows: Sequence[bytes]) -> list[int]:
    return [len(row) for row in rows]


def _with_rows(head: msgspec.Struct, rows: Sequence[bytes]) -> bytes:
    return b"\n".join((_encode(head), *rows, b""))


async def _rows(reader: asyncio.StreamReader, sizes: Sequence[int]) -> list[bytes]:
    block = await reader.readexactly(sum(sizes) + len(sizes))
    rows, start = [], 0
    for size in sizes:
        rows.append(block[start : start + size])
        start += size + 1
    return rows


def _in_parts(rows: Sequence[bytes], most: int) -> Iterator[Sequence[bytes]]:
    """The rows in order, in parts of at most so many bytes, or of one row."""
    start = size = 0
    for at, row in enumerate(rows):
        if at > start and size + len(row) > most:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    if start < len(rows):
        yield rows[start:]


# -- the relay's side -----------------------------------------------------------------------------


class ControlServer:
    """`async with` it: answers on the socket inside, finishes what it commits when left.

    Whoever makes one holds the folder's lock, so a socket that nobody answers on is a dead relay's.
    """

    def __init__(self, path: Path, folder: DataFolder) -> None:
        self._path = path
        self._folder = folder
        self._tasks: set[asyncio.Task[None]] = set()
        self._submitting: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None
        self._is_closing = False

    async def __aenter__(self) -> ControlServer:
        listening = _bound(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listening, limit=_MAX_LINE
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        assert self._server is not None
        self._server.close()
        for task in self._tasks - self._submitting:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GOODBYE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closing:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            failed = await self._requests(reader, writer)
            if failed is not None:
                await _say(writer, _encode(failed) + b"\n")
                writer.write_eof()
                # Closed with rows unread, the socket would be reset, and our last word lost.
                async with asyncio.timeout(_GOODBYE_S):
                    while await reader.read(_MAX_LINE):
                        pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the command has gone; what it submitted is committed or not, as it was told
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            await _close(writer)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Failed | None:
        """Answer until the command has no more; what went wrong."""
        stranger = _stranger(writer.get_extra_info("socket"))
        if stranger is not None:
            return _Failed(Prefix.RESTRICTED, stranger)
        if len(self._tasks) > _MAX_CONNECTIONS:
            return _Failed(Prefix.RATE_LIMITED, "too many commands at a time; try again")
        try:
            while not self._is_closing and await self._answered(reader, writer):
                pass
        except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
            return _Failed(Prefix.INVALID, f"request: {wrong}")
        except Refused as refused:
            return _Failed(refused.prefix, refused.text)
        except StoreFault as fault:
            return _Failed(Prefix.ERROR, str(fault))
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception:  # the last frame of this task  # noqa: BLE001
            _log.exception("a request on the control socket failed")
            return _Failed(Prefix.ERROR, "the relay failed at this; see its log")
        return None

    async def _answered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request; False when there is none any more."""
        try:
            async with asyncio.timeout(_IDLE_S):
                line = await reader.readuntil()
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return False
        match _requests.decode(line):
            case _Submit(origin, sizes):
                await self._submit(reader, writer, _origin(origin), sizes)
            case _Events(filter_):
                await self._send(writer, self._folder.events(filter_))
            case _PublicEvents(filter_):
                await self._send(writer, self._folder.events(filter_, Rows.PUBLIC))
            case _Foresee(logins, size):
                if not 0 <= size <= _MAX_BYTES:
                    raise Invalid(f"size: an event has at most {_MAX_BYTES} bytes")
                async with asyncio.timeout(_IDLE_S):
                    (row,) = await _rows(reader, [size])
                event = event_from(_decoded(row))
                seen = await self._folder.foreseen(event, frozenset(logins))
                await _say(writer, _encode(seen) + b"\n")
            case _Standings():
                await self._send(writer, _one_page(await self._folder.standings()))
            case _Sizes(by, limit):
                await self._send(writer, _one_page(await self._folder.sizes(by, limit)))
            case _Sweep(purpose):
                await self._send(writer, _encoded(self._folder.sweep(_purpose(purpose))))
            case _Refusals(after):
                await self._send(writer, _one_page(await self._folder.refusals(after)))
            case _Head():
                await _say(writer, _encode(_HeadIs(await self._folder.head())) + b"\n")
        return True

    async def _submit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        origin: Origin, sizes: Sequence[int],
    ) -> None:  # fmt: skip
        if len(sizes) > MAX_ROWS or min(sizes, default=0) < 0 or sum(sizes) > _MAX_BYTES:
            raise Invalid(f"sizes: at most {MAX_ROWS} rows of {_MAX_BYTES} bytes together")
        async with asyncio.timeout(_IDLE_S):
            rows = await _rows(reader, sizes)
        task = asyncio.current_task()
        self._submitting.add(task)
        try:
            results = await self._results(rows, origin)
            await _say(writer, _encode(_Results(results)) + b"\n")
        finally:
            self._submitting.discard(task)

    async def _results(self, rows: Sequence[bytes], origin: Origin) -> list[tuple[bool, str]]:
        """What became of each row; one that is no event does not stop the others."""
        results: list[tuple[bool, str]] = [(False, "")] * len(rows)
        places: list[int] = []
        events: list[Event] = []
        for place, row in enumerate(rows):
            try:
                events.append(event_from(orjson.loads(row)))
            except orjson.JSONDecodeError:
                results[place] = (False, f"{Prefix.INVALID}: not JSON")
            except Refused as refused:
                results[place] = (False, str(refused))
            else:
                places.append(place)
        if events:
            answers = await self._folder.submit(events, origin)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    async def _send(
        self, writer: asyncio.StreamWriter, pages: AsyncIterator[Sequence[bytes]]
    ) -> None:
        try:
            async for rows in pages:
                for part in _in_parts(rows, _PAGE_BYTES):
                    await _say(writer, _with_rows(_Page(_sizes(part)), part))
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()  # now, not when it is collected: the command may be gone
        await _say(writer, _with_rows(_Page([]), ()))


def _decoded(row: bytes) -> object:
    try:
        return orjson.loads(row)
    except orjson.JSONDecodeError:
        raise Invalid("not JSON") from None


async def _encoded(
    pages: AsyncIterator[Sequence[object]]
) -> AsyncIterator[Sequence[bytes]]:
    async for values in pages:
        if values:  # an empty page would be the end
            yield [_encode(value) for value in values]


def _purpose(name: str) -> Purpose:
    try:
        return Purpose[name]
    except KeyError:
        raise Invalid(f"purpose: must be one of {', '.join(Purpose.__members__)}") from None


async def _one_page(values: Sequence[object]) -> AsyncIterator[Sequence[bytes]]:
    yield [_encode(value) for value in values]


async def _say(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Sent, or at least so far that the next may be read from the store."""
    writer.write(data)
    async with asyncio.timeout(_STALLED_S):
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await writer.wait_closed()
    except (ConnectionError, TimeoutError):
        writer.transport.abort()


def _origin(name: str) -> Origin:
    try:
        return Origin[name]
    except KeyError:
        raise Invalid(f"origin: must be one of {', '.join(Origin.__members__)}") from None


def _peer(connection: socket.socket) -> tuple[int, int] | None:
    """Process and user id of the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def _stranger(connection: socket.socket) -> str | None:
    """Why the other end may not talk to us; the mode 0600 of the socket says the same."""
    peer, own = _peer(connection), os.geteuid()
    if peer is None or peer[1] == own:
        return None
    return f"this relay runs as user {own}; run the command as that user, not as {peer[1]}"


def _bound(path: Path) -> socket.socket:
    """A socket on the path that only we may open. Raises FolderBusy when somebody answers there."""
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before it listens, so that there is no moment in which others could connect.
    before = os.umask(0o177)
    try:
        with _address(path) as address:
            listening.bind(address)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{path} is in the way: it is no socket; move it elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, _address(path) as address:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink()
            return
        peer = _peer(probe)
    raise FolderBusy(str(path.parent), None if peer is None else peer[0])


_MAX_ADDRESS: Final = 100
"""Bytes; Linux takes 107 of a socket's path, others 103."""


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path, or a short detour to it: folders may be deeper than a socket's address is long."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        detour = f"/proc/self/fd/{folder}"
        if not os.path.isdir(detour):
            raise UserError(f"{path}: too long for a socket; use a folder with a shorter path")
        yield f"{detour}/{path.name}"
    finally:
        os.close(folder)


# -- the command's side ---------------------------------------------------------------------------


class RemoteFolder:
    """`DataFolder`, through the control socket of the relay that runs on it.

    `async with` it: UserError when no relay answers. Each request has a connection of its own, so
    several may run at a time. Raises Refused, or StoreFault when the relay fails or goes away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> RemoteFolder:
        await self.head()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def submit(
        self, events: Sequence[Event], origin: Origin
    ) -> Sequence[tuple[bool, str]]:
        results: list[tuple[bool, str]] = []
        if not events:
            return results
        async with self._connection() as (reader, writer):
            raws = [event.raw for event in events]
            for start in range(0, len(raws), MAX_ROWS):
                for rows in _in_parts(raws[start : start + MAX_ROWS], _MAX_BYTES // 4):
                    await _say(writer, _with_rows(_Submit(origin.name, _sizes(rows)), rows))
                    answer = await _answer(reader, _Results)
                    if len(answer.results) != len(rows):
                        raise StoreFault("the relay answered for another number of events")
                    results += answer.results
        return results

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        request = _Events(filter_) if rows is Rows.ALL else _PublicEvents(filter_)
        async for raws in self._pages(request):
            yield raws

    async def _pages(
        self, request: _Events | _PublicEvents | _Standings | _Refusals | _Sizes | _Sweep
    ) -> AsyncIterator[Sequence[bytes]]:
        async with self._connection() as (reader, writer):
            await _say(writer, _encode(request) + b"\n")
            while True:
                page = await _answer(reader, _Page)
                if not page.sizes:
                    return
                async with asyncio.timeout(_ANSWER_S):
                    raws = await _rows(reader, page.sizes)
                yield raws

    async def foreseen(self, event: Event, logins: frozenset[str]) -> Foresight:
        async with self._connection() as (reader, writer):
            request = _Foresee(sorted(logins), len(event.raw))
            await _say(writer, _with_rows(request, [event.raw]))
            return await _answer(reader, Foresight)

    async def standings(self) -> Sequence[tuple[str, str]]:
        return [
            _standings_in(row) async for rows in self._pages(_Standings()) for row in rows
        ]

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        return [_sized_in(row) async for rows in self._pages(_Sizes(by, limit)) for row in rows]

    async def sweep(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        async for rows in self._pages(_Sweep(purpose.name)):
            yield [_swept_in(row) for row in rows]

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return [_refusal_in(row) async for rows in self._pages(_Refusals(after)) for row in rows]

    async def head(self) -> int:
        async with self._connection() as (reader, writer):
            await _say(writer, _encode(_Head()) + b"\n")
            return (await _answer(reader, _HeadIs)).head

    @contextlib.asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            with _address(self._path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=_MAX_LINE)
        except (FileNotFoundError, ConnectionRefusedError):
            raise UserError(
                f"no relay answers on {self._path}: it may just start or stop; try again"
            ) from None
        except PermissionError:
            raise UserError(
                f"{self._path} belongs to another user: run the command as the relay's user"
            ) from None
        try:
            yield reader, writer
        except (ConnectionError, asyncio.IncompleteReadError):
            raise StoreFault("the relay went away before it had answered") from None
        except TimeoutError:
            raise StoreFault(f"the relay did not answer within {_ANSWER_S:.0f} s") from None
        finally:
            await _close(writer)


async def _answer(reader: asyncio.StreamReader, expected: type[A]) -> A:
    try:
        async with asyncio.timeout(_ANSWER_S):
            line = await reader.readuntil()
        answer = _answers.decode(line)
    except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
        raise StoreFault(f"the relay answered what this version cannot read: {wrong}") from None
    if isinstance(answer, expected):
        return answer
    if not isinstance(answer, _Failed):
        raise StoreFault("the relay answered something else than was asked")
    if answer.prefix is Prefix.ERROR:
        raise StoreFault(answer.text)
    raise Refused(answer.prefix, answer.text)
