"""Client side of the control socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from relay.errors import Prefix, Refused, StoreFault, UserError, is_error
from relay.files import socket_address
from relay.server.control.folder import DryRunReply, Rows
from relay.server.control.protocol import (
    MAX_BYTES,
    MAX_LINE,
    MAX_ROWS,
    REPLY_TIMEOUT_S,
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
    decode_log_line,
    decode_managed_key,
    decode_refusal,
    decode_sized,
    decode_status,
    decode_sweep_line,
    encode,
    in_parts,
    read_rows,
    replies,
    send,
    sizes_of,
    with_rows,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from relay.access.quotas import Sized, SizedBy
    from relay.facts import Origin
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import LogLine, Refusal, Status
    from relay.server.control.protocol import Paged
    from relay.write.commands import Purpose
    from relay.write.sweeper import SweepLine

A = TypeVar("A")

_EVENTS: Final[Mapping[Rows, Callable[[Filter], Paged]]] = {
    Rows.ALL: Events,
    Rows.WITH_OLD_VERSIONS: EventsAndVersions,
    Rows.PUBLIC: PublicEvents,
}


class RemoteFolder:
    """`DataFolder` through the control socket of a running relay.

    `async with` it: raises UserError when no relay listens. Each request has its own connection, so
    several may run at the same time. Raises Refused, or StoreFault when the relay fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> RemoteFolder:
        await self.head()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        results: list[tuple[bool, str]] = []
        if not events:
            return results
        async with self._connection() as (reader, writer):
            raws = [event.raw for event in events]
            for start in range(0, len(raws), MAX_ROWS):
                for rows in in_parts(raws[start : start + MAX_ROWS], MAX_BYTES // 4):
                    await send(writer, with_rows(Submit(origin.name, sizes_of(rows)), rows))
                    reply = await _reply(reader, Results)
                    if len(reply.results) != len(rows):
                        raise StoreFault("the relay replied for another number of events")
                    results += reply.results
                    fault = next(filter(is_error, reply.results), None)
                    if fault is not None:
                        return [*results, *[fault] * (len(events) - len(results))]
        return results

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        async for raws in self._pages(_EVENTS[rows](filter_)):
            yield raws

    async def _pages(self, request: Paged) -> AsyncIterator[Sequence[bytes]]:
        async with self._connection() as (reader, writer):
            await send(writer, encode(request) + b"\n")
            while True:
                page = await _reply(reader, Page)
                if not page.sizes:
                    return
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    raws = await read_rows(reader, page.sizes)
                yield raws

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        async with self._connection() as (reader, writer):
            request = DryRun(sorted(logins), len(event.raw))
            await send(writer, with_rows(request, [event.raw]))
            return await _reply(reader, DryRunReply)

    async def managed_keys(self) -> Sequence[tuple[str, str]]:
        return [
            decode_managed_key(row) async for rows in self._pages(ManagedKeys()) for row in rows
        ]

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        return [decode_sized(row) async for rows in self._pages(Sizes(by, limit)) for row in rows]

    async def sweep(self, purpose: Purpose, ahead_s: int = 0) -> AsyncIterator[Sequence[SweepLine]]:
        async for rows in self._pages(Sweep(purpose.name, ahead_s)):
            yield [decode_sweep_line(row) for row in rows]

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return [decode_refusal(row) async for rows in self._pages(Refusals(after)) for row in rows]

    async def log_lines(self, after: int) -> Sequence[LogLine]:
        return [decode_log_line(row) async for rows in self._pages(Log(after)) for row in rows]

    async def restart(self) -> None:
        async for _ in self._pages(Restart()):
            pass

    async def status(self) -> Status:
        rows = [row async for rows in self._pages(StatusRequest()) for row in rows]
        return decode_status(rows[0])

    async def head(self) -> int:
        async with self._connection() as (reader, writer):
            await send(writer, encode(Head()) + b"\n")
            return (await _reply(reader, HeadReply)).head

    @contextlib.asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            with socket_address(self._path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_LINE)
        except (FileNotFoundError, ConnectionRefusedError):
            raise UserError(
                f"no relay listens on {self._path}: it may be starting or stopping; try again"
            ) from None
        except PermissionError:
            raise UserError(
                f"{self._path} belongs to another user: run the command as the relay's user"
            ) from None
        try:
            yield reader, writer
        except (ConnectionError, asyncio.IncompleteReadError):
            raise StoreFault("the relay closed the connection before it replied") from None
        except TimeoutError:
            raise StoreFault(f"the relay did not reply within {REPLY_TIMEOUT_S:.0f} s") from None
        finally:
            await close(writer)


async def _reply(reader: asyncio.StreamReader, expected: type[A]) -> A:
    line = b"\n"
    try:
        while line == b"\n":
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                line = await reader.readuntil()
        reply = replies.decode(line)
    except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
        raise StoreFault(f"the relay sent a reply that this version cannot read: {wrong}") from None
    if isinstance(reply, expected):
        return reply
    if not isinstance(reply, Failed):
        raise StoreFault("the relay sent another kind of reply than was requested")
    if reply.prefix is Prefix.ERROR:
        raise StoreFault(reply.text)
    raise Refused(reply.prefix, reply.text)
