"""GET requests to a relay, signed by NIP-98: receipts of erasure, old versions."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import TYPE_CHECKING

import aiohttp
import orjson
from yarl import URL

from relay.client.connection import body_of
from relay.client.errors import MAX_SAID, Unreachable
from relay.nostr.kinds import HTTP_AUTH

if TYPE_CHECKING:
    from relay.client.client import Client
    from relay.nostr.keys import SecretKey


async def signed_get(
    session: aiohttp.ClientSession, client: Client, query: str, key: SecretKey, max_bytes: int
) -> tuple[int, bytes] | None:
    """Status and body; None: the body is longer than `max_bytes`. `query`: percent-encoded.

    Raises Unreachable.
    """
    url = client.url
    at = f"http{url[2:]}?{query}"
    # Each request has another content: two of one second would be the same event.
    tags = [["u", at], ["method", "GET"]]
    signed = key.sign(HTTP_AUTH, tags, str(time.monotonic_ns()), client.now())
    headers = {"Authorization": f"Nostr {b64encode(signed.raw).decode()}"}
    try:
        async with session.get(URL(at, encoded=True), headers=headers) as response:
            body = await body_of(response, max_bytes)
            return None if body is None else (response.status, body)
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(url, str(error)) from error


def reason_in(status: int, body: bytes) -> str:
    """Why an answer is none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    text = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(text, str) and text.isprintable():
        return text[:MAX_SAID]
    return f"HTTP status {status}"
