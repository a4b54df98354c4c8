"""NIP-98: does this Authorization header speak for this HTTP request? Pure; now is an argument.

Whether the event was used before is for its caller to know (N98-08).
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.keys import is_signed
from relay.nostr.kinds import HTTP_AUTH
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.nip42 import RelayAddress

WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What the event must say of a request; `query` without its question mark."""

    method: str
    query: str
    body: bytes


def authorization(
    header: str | None, request: HttpRequest, here: frozenset[RelayAddress], now: int
) -> Event:
    """The event of the header: signed by whose request this is. Raises Invalid (N98-01…07).

    `here`: every address that the request may call this place. The caller answers Invalid with
    401, and remembers the id for WINDOW_S after `created_at`.
    """
    event = _event_in(header)
    if event.kind != HTTP_AUTH:
        raise Invalid(f"kind: must be {HTTP_AUTH}")
    if abs(event.created_at - now) > WINDOW_S:
        raise Invalid(f"created_at: must be within {WINDOW_S} seconds of now")
    # ws and http forms of the address are one, as are those with and without the last slash:
    # clients send what they have the relay saved under (N86-02).
    place, _, query = (event.tag("u") or "").partition("?")
    if relay_address(place) not in here or query != request.query:
        raise Invalid("u: is not the URL of this request")
    if (event.tag("method") or "").upper() != request.method.upper():
        raise Invalid(f"method: is not {request.method.upper()}")
    _check_payload(event.tag("payload"), request.body)
    if not is_signed(event):
        raise Invalid("sig: is no signature of this event by its pubkey")
    return event


def _event_in(header: str | None) -> Event:
    """N98-01."""
    if header is None:
        raise Invalid("authorization: missing; needed is: Nostr <base64 of the event>")
    scheme, _, code = header.strip().partition(" ")
    if scheme.lower() != "nostr":
        raise Invalid("authorization: the scheme must be Nostr")
    code = code.strip()
    try:
        text = b64decode(code + "=" * (-len(code) % 4), validate=True)
    except ValueError:
        raise Invalid("authorization: is no base64") from None
    try:
        fields = orjson.loads(text)
    except ValueError:
        raise Invalid("authorization: is no JSON under its base64") from None
    return event_from(fields)


def _check_payload(payload: str | None, body: bytes) -> None:
    """N98-06."""
    if payload is None:
        if body:
            raise Invalid("payload: missing; a request with a body needs its hash")
    elif payload != sha256(body).hexdigest():
        raise Invalid("payload: is not the SHA-256 of the body in lowercase hex")
