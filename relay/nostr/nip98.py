"""NIP-98: the Authorization header of an HTTP request, made and validated. Pure.

The caller must refuse events that were used before (N98-08).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.keys import is_signed
from relay.nostr.kinds import HTTP_AUTH
from relay.nostr.nip42 import is_one_of

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip42 import RelayAddress

WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What the event must name; `query` without the question mark."""

    method: str
    query: str
    body: bytes | None
    """None: not read yet, and not checked."""


def header_for(key: SecretKey, url: str, body: bytes, now: int, nonce: str) -> str:
    """The header of a POST. `nonce`: two equal requests of one second need different ones."""
    tags = [["u", url], ["method", "POST"], ["payload", sha256(body).hexdigest()]]
    event = key.sign(HTTP_AUTH, [*tags, ["nonce", nonce]], "", now)
    return "Nostr " + b64encode(event.raw).decode()


def authorization(
    header: str | None, request: HttpRequest, here: frozenset[RelayAddress], now: int
) -> Event:
    """The validated event of the header; its author made the request. Raises Invalid (N98-01…07).

    `here`: every address of this relay. The caller replies 401 to Invalid and remembers the id for
    WINDOW_S after `created_at`.
    """
    event = _parse_header(header)
    if event.kind != HTTP_AUTH:
        raise Invalid(f"kind: must be {HTTP_AUTH}")
    if abs(event.created_at - now) > WINDOW_S:
        raise Invalid(f"created_at: must be within {WINDOW_S} seconds of now")
    # ws and http URLs are equal, with and without a trailing slash: clients send the URL under
    # which they know the relay (N86-02).
    place, _, query = (event.tag("u") or "").partition("?")
    if not is_one_of(place, here) or query != request.query:
        raise Invalid("u: is not the URL of this request")
    if (event.tag("method") or "").upper() != request.method.upper():
        raise Invalid(f"method: is not {request.method.upper()}")
    if request.body is not None:
        _check_payload(event.tag("payload"), request.body)
    if not is_signed(event):
        raise Invalid("sig: invalid signature")
    return event


def _parse_header(header: str | None) -> Event:
    """N98-01."""
    if header is None:
        raise Invalid("authorization: missing, must be: Nostr <base64 of the event>")
    scheme, _, code = header.strip().partition(" ")
    if scheme.lower() != "nostr":
        raise Invalid("authorization: the scheme must be Nostr")
    code = code.strip()
    try:
        text = b64decode(code + "=" * (-len(code) % 4), validate=True)
    except ValueError:
        raise Invalid("authorization: is not base64") from None
    try:
        fields = orjson.loads(text)
    except ValueError:
        raise Invalid("authorization: the base64 does not contain JSON") from None
    return event_from(fields)


def _check_payload(payload: str | None, body: bytes) -> None:
    """N98-06."""
    if payload is None:
        if body:
            raise Invalid("payload: missing; a request with a body needs its hash")
    elif payload != sha256(body).hexdigest():
        raise Invalid("payload: is not the SHA-256 of the body in lowercase hex")
