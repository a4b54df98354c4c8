"""The relay's side of the control socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from relay.errors import Invalid, Prefix, Refused, StoreFault
from relay.nostr.event import event_from
from relay.server.control.folder import Rows
from relay.server.control.protocol import (
    GOODBYE_S,
    MAX_BYTES,
    MAX_LINE,
    MAX_ROWS,
    PAGE_BYTES,
    Events,
    Failed,
    Foresee,
    Head,
    HeadIs,
    Page,
    PublicEvents,
    Refusals,
    Results,
    Sizes,
    Standings,
    Submit,
    Sweep,
    close,
    encode,
    in_parts,
    read_rows,
    requests,
    say,
    sizes_of,
    with_rows,
)
from relay.server.control.socket_file import bound, stranger
from relay.verdict import Origin
from relay.write.commands import Purpose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.server.control.folder import DataFolder

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 16
_IDLE_S: Final = 30.0
"""A connection without a request, or one that is never finished, ends."""


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
        listening = bound(self._path)
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
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)
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

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            failed = await self._requests(reader, writer)
            if failed is not None:
                await say(writer, encode(failed) + b"\n")
                writer.write_eof()
                # Closed with rows unread, the socket would be reset, and our last word lost.
                async with asyncio.timeout(GOODBYE_S):
                    while await reader.read(MAX_LINE):
                        pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the command has gone; what it submitted is committed or not, as it was told
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            await close(writer)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Failed | None:
        """Answer until the command has no more; what went wrong."""
        refusal = stranger(writer.get_extra_info("socket"))
        if refusal is not None:
            return Failed(Prefix.RESTRICTED, refusal)
        if len(self._tasks) > _MAX_CONNECTIONS:
            return Failed(Prefix.RATE_LIMITED, "too many commands at a time; try again")
        try:
            while not self._is_closing and await self._answered(reader, writer):
                pass
        except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
            return Failed(Prefix.INVALID, f"request: {wrong}")
        except Refused as refused:
            return Failed(refused.prefix, refused.text)
        except StoreFault as fault:
            return Failed(Prefix.ERROR, str(fault))
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception:  # the last frame of this task  # noqa: BLE001
            _log.exception("a request on the control socket failed")
            return Failed(Prefix.ERROR, "the relay failed at this; see its log")
        return None

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when there is none any more."""
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
            case PublicEvents(filter_):
                await self._send(writer, self._folder.events(filter_, Rows.PUBLIC))
            case Foresee(logins, size):
                if not 0 <= size <= MAX_BYTES:
                    raise Invalid(f"size: an event has at most {MAX_BYTES} bytes")
                async with asyncio.timeout(_IDLE_S):
                    (row,) = await read_rows(reader, [size])
                event = event_from(_decoded(row))
                seen = await self._folder.dry_run(event, frozenset(logins))
                await say(writer, encode(seen) + b"\n")
            case Standings():
                await self._send(writer, _one_page(await self._folder.standings()))
            case Sizes(by, limit):
                await self._send(writer, _one_page(await self._folder.sizes(by, limit)))
            case Sweep(purpose):
                await self._send(writer, _encoded(self._folder.sweep(_purpose(purpose))))
            case Refusals(after):
                await self._send(writer, _one_page(await self._folder.refusals(after)))
            case Head():
                await say(writer, encode(HeadIs(await self._folder.head())) + b"\n")
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
            await say(writer, encode(Results(results)) + b"\n")
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
                for part in in_parts(rows, PAGE_BYTES):
                    await say(writer, with_rows(Page(sizes_of(part)), part))
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()  # now, not when it is collected: the command may be gone
        await say(writer, with_rows(Page([]), ()))


def _decoded(row: bytes) -> object:
    try:
        return orjson.loads(row)
    except orjson.JSONDecodeError:
        raise Invalid("not JSON") from None


async def _encoded(pages: AsyncIterator[Sequence[object]]) -> AsyncIterator[Sequence[bytes]]:
    async for values in pages:
        if values:  # an empty page would be the end
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
