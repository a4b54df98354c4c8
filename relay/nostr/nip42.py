"""NIP-42: validation of AUTH events. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from unicodedata import normalize  # noqa: TID251  of a host, at most 253 characters
from urllib.parse import urlsplit

from relay.errors import Invalid
from relay.nostr.kinds import CLIENT_AUTH

if TYPE_CHECKING:
    from collections.abc import Collection

    from relay.nostr.event import Event

WINDOW_S: Final = 600
_MAX_HOST: Final = 253
"""Characters of a name in DNS (RFC 1035)."""
_MAX_URL: Final = 2048
"""Characters of a relay's URL."""
_MAX_BESIDE: Final = len("[]..:65535")
"""Characters that may be beside the host in the authority of a URL."""


_AUTHORITY: Final = re.compile(r"\s*[a-zA-Z]+://([^/?#]*)")


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """A normalized relay URL: equal for all spellings (N42-06)."""

    host: str
    port: int | None
    path: str


def relay_address(url: str) -> RelayAddress | None:
    """None for what is not a ws(s) or http(s) URL, has a user, query or fragment, or names a host
    that cannot be one."""
    address = _parsed(url)
    # IDNA takes microseconds for each character, of which one of `url` may become 18.
    if address is None or len(normalize("NFKC", address.host)) > _MAX_HOST:
        return None
    try:
        address.host.encode("idna")  # raises for a label that is empty or over 63 characters
    except ValueError:
        return None
    return address


def _parsed(url: str) -> RelayAddress | None:
    """`relay_address`, but the host may be one that cannot be."""
    authority = _AUTHORITY.match(url[:_MAX_URL])
    # `urlsplit` normalizes it (NFKC): of 2,048 combining marks that takes 5 ms.
    if len(url) > _MAX_URL or authority is None or len(authority[1]) > _MAX_HOST + _MAX_BESIDE:
        return None
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
        if not 0 < len(host) <= _MAX_HOST:
            return None
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if scheme not in ("ws", "wss", "http", "https"):
        return None
    if "@" in parts.netloc or parts.query or parts.fragment:
        return None
    # ws and wss are equal, since a proxy may terminate TLS; a default port counts as none.
    default = 443 if scheme in ("wss", "https") else 80
    bare = None if port == default else port
    return RelayAddress(host, bare, parts.path.rstrip("/"))


def may_stand_for(url: str, known: str) -> bool:
    """Whether a client may send to `url` what is for the relay at `known`: the same address, and
    not in clear text what would go by TLS."""
    is_clear = url.strip().lower().startswith(("ws:", "http:"))
    is_downgrade = is_clear and known.strip().lower().startswith(("wss:", "https:"))
    return relay_address(url) == relay_address(known) and not is_downgrade


def is_one_of(url: str, known: Collection[RelayAddress]) -> bool:
    """Whether `relay_address` of the URL is a known one. Without IDNA, as the known hosts can be:
    what somebody else sent is compared at the cost of its length."""
    return _parsed(url) in known


class OwnAddresses:
    """The addresses of this relay: its public URL, else those it listens on."""

    def __init__(self, url: str | None) -> None:
        address = relay_address(url) if url else None
        self._known = frozenset(() if address is None else (address,))

    def listens_on(self, addresses: frozenset[RelayAddress]) -> None:
        self._known = addresses

    def has(self, url: str) -> bool:
        # Parse only candidates: an event may name thousands of URLs.
        authority = _AUTHORITY.match(url)
        return (
            authority is not None
            and any(
                len(authority[1]) <= len(known.host) + _MAX_BESIDE
                and known.host in authority[1].lower()
                for known in self._known
            )
            and is_one_of(url, self._known)
        )


def check_login(event: Event, challenge: str, here: frozenset[RelayAddress], now: int) -> None:
    """Raises Invalid when the event does not answer this challenge on this relay (N42-05, 06, 15).

    Does not check the signature. `here`: every address of this relay on this connection.
    """
    if event.kind != CLIENT_AUTH:
        raise Invalid(f"kind: must be {CLIENT_AUTH}")
    if abs(event.created_at - now) > WINDOW_S:
        raise Invalid(f"created_at: must be within {WINDOW_S} seconds of now")
    if event.tag("challenge") != challenge:
        raise Invalid("challenge: is not the one sent on this connection")
    if not is_one_of(event.tag("relay") or "", here):
        raise Invalid("relay: is not this relay's URL")
