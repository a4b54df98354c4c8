"""Requests, answers and rows of the control socket: how they are written and read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.usage import Sized, SizedBy
from relay.errors import Prefix
from relay.nostr.filters import Filter
from relay.observe import Refusal
from relay.server.control.folder import DryRunReply
from relay.write.sweeper import SweepLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_ROWS: Final = 512
"""Of one request to submit."""
MAX_BYTES: Final = 64 * 2**20
"""Of one request to submit."""
PAGE_BYTES: Final = 4 * 2**20
"""Rows are gathered up to here; a larger one goes alone."""
MAX_LINE: Final = 2**20
"""Bytes of a request or answer without its rows."""
STALLED_S: Final = 600.0
"""A reader that takes nothing for so long is cut off."""
ANSWER_S: Final = 120.0
"""What a command waits for the relay."""
GOODBYE_S: Final = 3.0
"""What a relay that stops gives to batches that are being committed."""


class Submit(msgspec.Struct, frozen=True, tag_field="do", tag="submit"):
    origin: str
    sizes: list[int]


class Events(msgspec.Struct, frozen=True, tag_field="do", tag="events"):
    filter: Filter


class PublicEvents(msgspec.Struct, frozen=True, tag_field="do", tag="public_events"):
    filter: Filter


class Foresee(msgspec.Struct, frozen=True, tag_field="do", tag="foresee"):
    logins: list[str]
    size: int


class Standings(msgspec.Struct, frozen=True, tag_field="do", tag="standings"):
    pass


class Refusals(msgspec.Struct, frozen=True, tag_field="do", tag="refusals"):
    after: int


class Head(msgspec.Struct, frozen=True, tag_field="do", tag="head"):
    pass


class Results(msgspec.Struct, frozen=True, tag_field="is", tag="results"):
    results: list[tuple[bool, str]]


class Page(msgspec.Struct, frozen=True, tag_field="is", tag="page"):
    sizes: list[int]


class HeadIs(msgspec.Struct, frozen=True, tag_field="is", tag="head"):
    head: int


class Failed(msgspec.Struct, frozen=True, tag_field="is", tag="failed"):
    prefix: Prefix
    text: str


class Sizes(msgspec.Struct, frozen=True, tag_field="do", tag="sizes"):
    by: SizedBy
    limit: int


class Sweep(msgspec.Struct, frozen=True, tag_field="do", tag="sweep"):
    purpose: str


Request = Submit | Events | PublicEvents | Foresee | Standings | Refusals | Head | Sizes | Sweep
Answer = Results | Page | DryRunReply | HeadIs | Failed

requests: Final = msgspec.json.Decoder(Request)
answers: Final = msgspec.json.Decoder(Answer)
encode: Final = msgspec.json.Encoder().encode
standings_in: Final = msgspec.json.Decoder(tuple[str, str]).decode
refusal_in: Final = msgspec.json.Decoder(Refusal).decode
sized_in: Final = msgspec.json.Decoder(Sized).decode
swept_in: Final = msgspec.json.Decoder(SweepLine).decode


def sizes_of(rows: Sequence[bytes]) -> list[int]:
    return [len(row) for row in rows]


def with_rows(head: msgspec.Struct, rows: Sequence[bytes]) -> bytes:
    return b"\n".join((encode(head), *rows, b""))


async def read_rows(reader: asyncio.StreamReader, sizes: Sequence[int]) -> list[bytes]:
    block = await reader.readexactly(sum(sizes) + len(sizes))
    rows, start = [], 0
    for size in sizes:
        rows.append(block[start : start + size])
        start += size + 1
    return rows


def in_parts(rows: Sequence[bytes], most: int) -> Iterator[Sequence[bytes]]:
    """The rows in order, in parts of at most so many bytes, or of one row."""
    start = size = 0
    for at, row in enumerate(rows):
        if at > start and size + len(row) > most:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    if start < len(rows):
        yield rows[start:]


async def say(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Sent, or at least so far that the next may be read from the store."""
    writer.write(data)
    async with asyncio.timeout(STALLED_S):
        await writer.drain()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(GOODBYE_S):
            await writer.wait_closed()
    except (ConnectionError, TimeoutError):
        writer.transport.abort()
