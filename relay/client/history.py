"""Versions of one record, the newest first, as far as the relay keeps them (`docs/memory.md`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

import orjson

from relay.client.connection import http_session
from relay.client.errors import ClientError
from relay.client.signed_get import reason_in, signed_get
from relay.errors import Invalid
from relay.nostr.event import Address, event_from, weight_of
from relay.nostr.keys import is_signed
from relay.nostr.kinds import KindClass, class_of

if TYPE_CHECKING:
    from relay.client.client import Client
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_MAX_BYTES: Final = 4 << 20
_MAX_PAGES: Final = 1_000
_MAX_HELD: Final = 2**27
"""Bytes of memory for all versions, as `weight_of` estimates it."""
_DEADLINE_S: Final = 300.0
"""Deadline for all pages together."""


class NoHistory(ClientError):
    """The answer of the relay is not the versions of this record."""


class History(NamedTuple):
    versions: list[Event]
    """Newest first; empty: nothing is stored, or nothing that this key may read."""
    shortfall: str
    """Why there are no old versions, for people; empty: the relay keeps some."""


def record_of(event: Event) -> Address | None:
    """None: events of this kind are not replaced."""
    if class_of(event.kind) not in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
        return None
    d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
    return Address(event.pubkey, event.kind, d)


async def history_of(client: Client, record: Address, key: SecretKey) -> History:
    """Raises NoHistory, Unreachable, QueryClosed."""
    memory = (await client.known_information()).get("memory")
    kept = memory.get("history") if isinstance(memory, dict) else None
    if not isinstance(kept, bool):
        wanted: dict[str, object] = {"kinds": [record.kind], "authors": [record.pubkey]}
        if class_of(record.kind) is not KindClass.REPLACEABLE:
            wanted["#d"] = [record.d]
        newest = [event for event in await client.query(wanted) if record_of(event) == record]
        return History(newest[:1], f"{client.url} offers no old versions")
    try:
        async with asyncio.timeout(_DEADLINE_S):
            versions = await _versions(client, record, key)
    except TimeoutError:
        late = f"{client.url} does not give all versions within {_DEADLINE_S:g} s"
        raise NoHistory(late) from None
    none = f"the policies of {client.url} keep no old versions; its admin turns that on with"
    return History(versions, "" if kept else f'{none} include = ["memory-history"]')


async def _versions(client: Client, record: Address, key: SecretKey) -> list[Event]:
    versions: list[Event] = []
    held = 0
    before: dict[str, str] = {}
    async with http_session() as session:
        for _ in range(_MAX_PAGES):
            query = urlencode({"history": str(record), **before})
            answer = await signed_get(session, client, query, key, _MAX_BYTES)
            if answer is None:
                raise NoHistory(f"{client.url} answers with more than {_MAX_BYTES} bytes")
            status, body = answer
            if status == 404 and not before:
                return []
            if status != 200:
                raise NoHistory(f"{client.url} gives no versions: {reason_in(status, body)}")
            found, following = _page_in(body, record)
            versions += found
            held += sum(map(weight_of, found))
            if held > _MAX_HELD:
                raise NoHistory(f"{client.url} gives more than {_MAX_HELD} bytes of versions")
            if following is None:
                return versions
            before = {"before": following}
    raise NoHistory(f"{client.url} gives versions without end")


def _page_in(body: bytes, record: Address) -> tuple[list[Event], str | None]:
    """Raises NoHistory."""
    try:
        answer = orjson.loads(body)
        versions = [event_from(fields) for fields in answer["versions"]]
        following = answer["next"]
    except (orjson.JSONDecodeError, KeyError, TypeError, Invalid) as wrong:
        raise NoHistory(f"not a list of versions: {wrong}") from None
    if not all(record_of(event) == record and is_signed(event) for event in versions):
        raise NoHistory("the relay gives versions of another record, or of a wrong signature")
    return versions, following if isinstance(following, str) else None
