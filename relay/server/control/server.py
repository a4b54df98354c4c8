"""Server side of the control socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from relay.errors import Invalid, Prefix, Refused, StoreFault, is_error
from relay.facts import Origin
from relay.nostr.event import event_from
from relay.server.control.folder import Rows
from relay.server.control.protocol import (
    MAX_BYTES,
    MAX_LINE,
    MAX_ROWS,
    PAGE_BYTES,
    STOP_TIMEOUT_S,
    DryRun,
    Events,
    EventsAndVersions,
    Failed,
    Head,
    HeadReply,
    Log,
    ManagedKeys,
    Page,
    PublicEvents,
    Refusals,
    Restart,
    Results,
    Sizes,
    StatusRequest,
    Submit,
    Sweep,
    close,
    encode,
    in_parts,
    read_rows,
    requests,
    send,
    sizes_of,
    with_rows,
)
from relay.server.control.socket_file import bound_socket, peer_refusal
from relay.server.turns import Pauses
from relay.write.commands import Purpose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.server.control.folder import DataFolder

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 16
_IDLE_S: Final = 30.0
"""A connection without a complete request for this time is closed."""
_MAX_ROW: Final = 4 * 2**20
"""Bytes of a submitted event; as of a line of an import."""
_MAX_BRACKETS: Final = 200_000
"""Arrays and objects of a submitted event. Each takes up to 240 bytes of memory for 3 in the row.
No event of the default `max_message_length` has as many tags; brackets in its content count too."""
_MAX_QUOTES: Final = 500_000
"""Quotes of a submitted event: two for each string, and a string takes about 60 bytes for 3 in the
row."""
_PART_BYTES: Final = 2 * 2**20
"""Submitted events are stored in parts of this many bytes: only one part is held in parsed form."""


class ControlServer:
    """`async with` it: listens inside; on exit it waits for batches that are being committed.

    The caller holds the folder's lock, so a socket that refuses connections was left by a dead
    relay.
    """

    def __init__(self, path: Path, folder: DataFolder) -> None:
        self._path = path
        self._folder = folder
        self._tasks: set[asyncio.Task[None]] = set()
        self._submitting: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None
        self._is_closing = False

    async def __aenter__(self) -> ControlServer:
        listening = bound_socket(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listening, limit=MAX_LINE
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        assert self._server is not None
        self._server.close()
        for task in self._tasks - self._submitting:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
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
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            failed = await self._serve_requests(reader, writer)
            if failed is not None:
                await send(writer, encode(failed) + b"\n")
                writer.write_eof()
                # Closing with unread rows would reset the socket and lose this reply.
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    while await reader.read(MAX_LINE):
                        pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the command is gone; it knows from the replies what was committed
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            await close(writer)

    async def _serve_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Failed | None:
        """Serve requests until the command closes. Returns the fault that ends the connection."""
        refusal = peer_refusal(writer.get_extra_info("socket"))
        if refusal is not None:
            return Failed(Prefix.RESTRICTED, refusal)
        if len(self._tasks) > _MAX_CONNECTIONS:
            return Failed(Prefix.RATE_LIMITED, "too many commands at the same time; try again")
        try:
            while not self._is_closing and await self._serve_one(reader, writer):
                pass
        except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
            return Failed(Prefix.INVALID, f"request: {wrong}")
        except Refused as refused:
            return Failed(refused.prefix, refused.text)
        except StoreFault as fault:
            return Failed(Prefix.ERROR, str(fault))
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception:  # last frame of the task  # noqa: BLE001
            _log.exception("a request on the control socket failed")
            return Failed(Prefix.ERROR, "internal error; see the log of the relay")
        return None

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request. False: the command closed the connection."""
        try:
            async with asyncio.timeout(_IDLE_S):
                line = await reader.readuntil()
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return False
        match requests.decode(line):
            case Submit(origin, sizes):
                await self._submit(reader, writer, _origin(origin), sizes)
            case Events(filter_):
                await self._send(writer, self._folder.events(filter_))
            case EventsAndVersions(filter_):
                rows = self._folder.events(filter_, Rows.WITH_OLD_VERSIONS)
                await self._send(writer, rows)
            case PublicEvents(filter_):
                await self._send(writer, self._folder.events(filter_, Rows.PUBLIC))
            case DryRun(logins, size):
                if not 0 <= size <= _MAX_ROW:
                    raise Invalid(f"size: an event has at most {_MAX_ROW} bytes")
                async with asyncio.timeout(_IDLE_S):
                    (row,) = await read_rows(reader, [size])
                event = event_from(_decoded(row))
                reply = await self._folder.dry_run(event, frozenset(logins))
                await send(writer, encode(reply) + b"\n")
            case ManagedKeys():
                await self._send(writer, _one_page(await self._folder.managed_keys()))
            case Sizes(by, limit):
                await self._send(writer, _one_page(await self._folder.sizes(by, limit)))
            case Sweep(purpose, ahead_s):
                await self._send(writer, _encoded(self._folder.sweep(_purpose(purpose), ahead_s)))
            case Refusals(after):
                await self._send(writer, _one_page(await self._folder.refusals(after)))
            case Log(after):
                await self._send(writer, _one_page(await self._folder.log_lines(after)))
            case StatusRequest():
                await self._send(writer, _one_page([await self._folder.status()]))
            case Restart():
                await self._folder.restart()
                await self._send(writer, _one_page(()))
            case Head():
                await send(writer, encode(HeadReply(await self._folder.head())) + b"\n")
        return True

    async def _submit(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        origin: Origin,
        sizes: Sequence[int],
    ) -> None:
        if len(sizes) > MAX_ROWS or min(sizes, default=0) < 0 or sum(sizes) > MAX_BYTES:
            raise Invalid(f"sizes: at most {MAX_ROWS} rows of {MAX_BYTES} bytes together")
        async with asyncio.timeout(_IDLE_S):
            rows = await read_rows(reader, sizes)
        task = asyncio.current_task()
        self._submitting.add(task)
        try:
            results = await self._results(rows, origin)
            await send(writer, encode(Results(results)) + b"\n")
        finally:
            self._submitting.discard(task)

    async def _results(self, rows: Sequence[bytes], origin: Origin) -> list[tuple[bool, str]]:
        """The reply for each row; a row that is no event does not stop the others."""
        results: list[tuple[bool, str]] = [(False, "")] * len(rows)
        indexes: list[int] = []
        events: list[Event] = []
        size = 0
        pauses = Pauses()
        for index, row in enumerate(rows):
            try:
                events.append(event_from(_decoded(row)))
            except Refused as refused:
                results[index] = (False, str(refused))
            else:
                indexes.append(index)
                size += len(row)
            is_last = index == len(rows) - 1
            if events and (is_last or size >= _PART_BYTES):
                replies = await self._folder.submit(events, origin)
                for at, reply in zip(indexes, replies, strict=True):
                    results[at] = reply
                fault = next(filter(is_error, replies), None)
                if fault is not None:
                    return [*results[: index + 1], *[fault] * (len(rows) - index - 1)]
                indexes, events, size = [], [], 0
                pauses.resume()
            else:
                await pauses.rest()
        return results

    async def _send(
        self, writer: asyncio.StreamWriter, pages: AsyncIterator[Sequence[bytes]]
    ) -> None:
        try:
            async for rows in pages:
                if not rows:
                    await send(writer, b"\n")
                for part in in_parts(rows, PAGE_BYTES):
                    await send(writer, with_rows(Page(sizes_of(part)), part))
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()  # now, not at garbage collection: the command may have ended
        await send(writer, with_rows(Page([]), ()))


def _decoded(row: bytes) -> object:
    """The JSON value of a row. Raises Invalid, without parsing, for a row that would take too much
    time or memory."""
    if len(row) > _MAX_ROW:
        raise Invalid(f"event is over {_MAX_ROW} bytes")
    if row.count(b"[") + row.count(b"{") > _MAX_BRACKETS or row.count(b'"') > _MAX_QUOTES:
        raise Invalid("event has too many tags or values")
    try:
        return orjson.loads(row)
    except orjson.JSONDecodeError:
        raise Invalid("not JSON") from None


async def _encoded(pages: AsyncIterator[Sequence[object]]) -> AsyncIterator[Sequence[bytes]]:
    async for values in pages:
        if values:  # an empty page would be read as the last one
            yield [encode(value) for value in values]


def _purpose(name: str) -> Purpose:
    try:
        return Purpose[name]
    except KeyError:
        raise Invalid(f"purpose: must be one of {', '.join(Purpose.__members__)}") from None


async def _one_page(values: Sequence[object]) -> AsyncIterator[Sequence[bytes]]:
    yield [encode(value) for value in values]


def _origin(name: str) -> Origin:
    try:
        return Origin[name]
    except KeyError:
        raise Invalid(f"origin: must be one of {', '.join(Origin.__members__)}") from None
