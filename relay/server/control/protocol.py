"""Requests, replies and rows of the control socket, and their encoding."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.quotas import Sized, SizedBy
from relay.errors import Prefix
from relay.nostr.filters import Filter
from relay.observe import LogLine, Refusal, Status
from relay.server.control.folder import DryRunReply
from relay.write.sweeper import SweepLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_ROWS: Final = 512
"""Per submit request."""
MAX_BYTES: Final = 64 * 2**20
"""Per submit request."""
PAGE_BYTES: Final = 4 * 2**20
"""Bytes of a page; a larger row is sent alone."""
MAX_LINE: Final = 2**20
"""Bytes of a request or reply without its rows."""
WRITE_TIMEOUT_S: Final = 600.0
"""A peer that reads nothing for this time is disconnected."""
REPLY_TIMEOUT_S: Final = 120.0
"""How long a command waits for the next line of the relay."""
STOP_TIMEOUT_S: Final = 3.0
"""How long a stopping relay waits for batches that are being committed."""


class Submit(msgspec.Struct, frozen=True, tag_field="do", tag="submit"):
    origin: str
    sizes: list[int]


class Events(msgspec.Struct, frozen=True, tag_field="do", tag="events"):
    filter: Filter


class PublicEvents(msgspec.Struct, frozen=True, tag_field="do", tag="public_events"):
    filter: Filter


class EventsAndVersions(msgspec.Struct, frozen=True, tag_field="do", tag="events_and_versions"):
    filter: Filter


class DryRun(msgspec.Struct, frozen=True, tag_field="do", tag="dry_run"):
    logins: list[str]
    size: int


class ManagedKeys(msgspec.Struct, frozen=True, tag_field="do", tag="managed_keys"):
    pass


class Refusals(msgspec.Struct, frozen=True, tag_field="do", tag="refusals"):
    after: int


class Log(msgspec.Struct, frozen=True, tag_field="do", tag="log"):
    after: int


class StatusRequest(msgspec.Struct, frozen=True, tag_field="do", tag="status"):
    pass


class Head(msgspec.Struct, frozen=True, tag_field="do", tag="head"):
    pass


class Restart(msgspec.Struct, frozen=True, tag_field="do", tag="restart"):
    pass


class Results(msgspec.Struct, frozen=True, tag_field="is", tag="results"):
    results: list[tuple[bool, str]]


class Page(msgspec.Struct, frozen=True, tag_field="is", tag="page"):
    sizes: list[int]


class HeadReply(msgspec.Struct, frozen=True, tag_field="is", tag="head"):
    head: int


class Failed(msgspec.Struct, frozen=True, tag_field="is", tag="failed"):
    prefix: Prefix
    text: str


class Sizes(msgspec.Struct, frozen=True, tag_field="do", tag="sizes"):
    by: SizedBy
    limit: int


class Sweep(msgspec.Struct, frozen=True, tag_field="do", tag="sweep"):
    purpose: str
    ahead_s: int = 0


Paged = (
    Events
    | EventsAndVersions
    | PublicEvents
    | ManagedKeys
    | Refusals
    | Log
    | StatusRequest
    | Sizes
    | Sweep
    | Restart
)
Request = Submit | DryRun | Head | Paged
Reply = Results | Page | DryRunReply | HeadReply | Failed

requests: Final = msgspec.json.Decoder(Request)
replies: Final = msgspec.json.Decoder(Reply)
encode: Final = msgspec.json.Encoder().encode
decode_managed_key: Final = msgspec.json.Decoder(tuple[str, str]).decode
decode_refusal: Final = msgspec.json.Decoder(Refusal).decode
decode_log_line: Final = msgspec.json.Decoder(LogLine).decode
decode_status: Final = msgspec.json.Decoder(Status).decode
decode_sized: Final = msgspec.json.Decoder(Sized).decode
decode_sweep_line: Final = msgspec.json.Decoder(SweepLine).decode


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


def in_parts(rows: Sequence[bytes], max_bytes: int) -> Iterator[Sequence[bytes]]:
    """The rows in order, in parts of at most `max_bytes` or of one row."""
    start = size = 0
    for at, row in enumerate(rows):
        if at > start and size + len(row) > max_bytes:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    if start < len(rows):
        yield rows[start:]


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Returns when the buffer is below the high-water mark: the next page may be read."""
    writer.write(data)
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await writer.drain()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await writer.wait_closed()
    except (ConnectionError, TimeoutError):
        writer.transport.abort()
