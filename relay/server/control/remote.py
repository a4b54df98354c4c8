"""The command's side of the control socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from relay.errors import Prefix, Refused, StoreFault, UserError
from relay.server.control.folder import DryRunReply, Rows
from relay.server.control.protocol import (
    ANSWER_S,
    MAX_BYTES,
    MAX_LINE,
    MAX_ROWS,
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
    answers,
    close,
    encode,
    in_parts,
    read_rows,
    refusal_in,
    say,
    sized_in,
    sizes_of,
    standings_in,
    swept_in,
    with_rows,
)
from relay.server.control.socket_file import address_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.access.usage import Sized, SizedBy
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import Refusal
    from relay.verdict import Origin
    from relay.write.commands import Purpose
    from relay.write.sweeper import SweepLine

A = TypeVar("A")


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

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        results: list[tuple[bool, str]] = []
        if not events:
            return results
        async with self._connection() as (reader, writer):
            raws = [event.raw for event in events]
            for start in range(0, len(raws), MAX_ROWS):
                for rows in in_parts(raws[start : start + MAX_ROWS], MAX_BYTES // 4):
                    await say(writer, with_rows(Submit(origin.name, sizes_of(rows)), rows))
                    answer = await _answer(reader, Results)
                    if len(answer.results) != len(rows):
                        raise StoreFault("the relay answered for another number of events")
                    results += answer.results
        return results

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        request = Events(filter_) if rows is Rows.ALL else PublicEvents(filter_)
        async for raws in self._pages(request):
            yield raws

    async def _pages(
        self, request: Events | PublicEvents | Standings | Refusals | Sizes | Sweep
    ) -> AsyncIterator[Sequence[bytes]]:
        async with self._connection() as (reader, writer):
            await say(writer, encode(request) + b"\n")
            while True:
                page = await _answer(reader, Page)
                if not page.sizes:
                    return
                async with asyncio.timeout(ANSWER_S):
                    raws = await read_rows(reader, page.sizes)
                yield raws

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        async with self._connection() as (reader, writer):
            request = Foresee(sorted(logins), len(event.raw))
            await say(writer, with_rows(request, [event.raw]))
            return await _answer(reader, DryRunReply)

    async def standings(self) -> Sequence[tuple[str, str]]:
        return [standings_in(row) async for rows in self._pages(Standings()) for row in rows]

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        return [sized_in(row) async for rows in self._pages(Sizes(by, limit)) for row in rows]

    async def sweep(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        async for rows in self._pages(Sweep(purpose.name)):
            yield [swept_in(row) for row in rows]

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return [refusal_in(row) async for rows in self._pages(Refusals(after)) for row in rows]

    async def head(self) -> int:
        async with self._connection() as (reader, writer):
            await say(writer, encode(Head()) + b"\n")
            return (await _answer(reader, HeadIs)).head

    @contextlib.asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            with address_of(self._path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_LINE)
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
            raise StoreFault(f"the relay did not answer within {ANSWER_S:.0f} s") from None
        finally:
            await close(writer)


async def _answer(reader: asyncio.StreamReader, expected: type[A]) -> A:
    try:
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readuntil()
        answer = answers.decode(line)
    except (msgspec.DecodeError, asyncio.LimitOverrunError) as wrong:
        raise StoreFault(f"the relay answered what this version cannot read: {wrong}") from None
    if isinstance(answer, expected):
        return answer
    if not isinstance(answer, Failed):
        raise StoreFault("the relay answered something else than was asked")
    if answer.prefix is Prefix.ERROR:
        raise StoreFault(answer.text)
    raise Refused(answer.prefix, answer.text)
