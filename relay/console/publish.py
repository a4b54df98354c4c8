"""An event of a page to the write pipeline, as from a connection with the session's key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.verdict import Origin, ok_reply

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    from relay.nostr.agents import Attestation
    from relay.nostr.event import Event
    from relay.verdict import Result
    from relay.write.ingest import Ingest


@dataclass(frozen=True, slots=True)
class _Sender:
    """`Author` of the write pipeline."""

    authenticated: frozenset[str]
    address: IPv4Address | IPv6Address | None
    reply: asyncio.Future[tuple[bool, str]]
    attested: frozenset[Attestation] = frozenset()
    connection: int | None = None
    message: int | None = None

    def answered(self, event: Event, result: Result) -> None:
        if not self.reply.done():
            self.reply.set_result(ok_reply(result))


async def published(
    ingest: Ingest,
    text: str,
    keys: frozenset[str],
    address: IPv4Address | IPv6Address | None,
) -> tuple[bool, str]:
    """Third and fourth element of the OK. Raises Invalid for what is no event."""
    try:
        fields = orjson.loads(text)
    except ValueError:
        raise Invalid("event: is not JSON") from None
    event = event_from(fields)
    reply: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
    ingest.submit(event, _Sender(keys, address, reply), Origin.WIRE)
    return await reply
