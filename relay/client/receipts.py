"""Receipts of erasure from a relay (`docs/reliability.md`), asked for by HTTP and verified."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from relay.client.connection import http_session
from relay.client.errors import ClientError
from relay.client.signed_get import reason_in, signed_get
from relay.errors import Invalid
from relay.nostr.erasure import erasure_in
from relay.nostr.event import event_from, is_hex64

if TYPE_CHECKING:
    from relay.client.client import Client
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_MAX_BYTES: Final = 1 << 20
_POLL_S: Final = 0.5


class NoReceipt(ClientError):
    """The relay gives no receipt, or a wrong one; the text says why."""


async def receipt_of(
    client: Client, request: str, key: SecretKey, *, deadline_s: float = 60.0
) -> tuple[Event, Erasure]:
    """The receipt for this request once its events are erased.

    Raises NoReceipt, Unreachable.
    """
    url = client.url
    relay_key = (await client.information()).get("self")
    if not isinstance(relay_key, str) or not is_hex64(relay_key):
        raise NoReceipt(f"{url} names no key of its own, so it gives no receipts")
    why = f"no answer within {deadline_s:g} s"
    try:
        async with asyncio.timeout(deadline_s), http_session() as session:
            while True:
                answer = await signed_get(session, client, f"receipt={request}", key, _MAX_BYTES)
                if answer is None:
                    raise NoReceipt(f"{url} answers with more than {_MAX_BYTES} bytes")
                status, body = answer
                if status == 200:
                    return verified(body, relay_key, request)
                why = reason_in(status, body)
                if status != 202:
                    break
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        pass  # the last answer was 202, or there was none
    raise NoReceipt(f"{url} gives no receipt: {why}")


def verified(body: bytes, relay_key: str | None, request: str | None) -> tuple[Event, Erasure]:
    """A receipt as it was saved. None: of any relay, for any request. Raises NoReceipt."""
    try:
        event = event_from(orjson.loads(body))
        erasure = erasure_in(event)
    except orjson.JSONDecodeError:
        raise NoReceipt("not a receipt: no JSON") from None
    except Invalid as invalid:
        raise NoReceipt(f"not a receipt: {invalid.text}") from None
    if relay_key is not None and event.pubkey != relay_key:
        raise NoReceipt("the receipt is signed by another key than the relay's")
    if request is not None and erasure.request != request:
        raise NoReceipt("the receipt is for another request")
    return event, erasure
