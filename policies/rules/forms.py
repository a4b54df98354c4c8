"""Refusals of an event's form, cheap and made before its signature is verified.

None of them depends on the author or on what is stored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Reject
from relay.facts import Origin
from relay.nostr import kinds
from relay.nostr.event import has_too_many_arrays, json_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relay.nostr.event import Event

_WITH_CREDENTIALS: Final = Reject(
    Prefix.INVALID, "kind: a login is not an event to publish", "credentials"
)
_RUMOR: Final = Reject(
    Prefix.BLOCKED, "a private message is never signed; it travels inside a gift wrap", "rumors"
)
_SEAL: Final = Reject(Prefix.INVALID, "tags: a seal has none", "seals")
_WRAP: Final = Reject(Prefix.INVALID, "missing tag p", "gift wraps")
_KEY_SHARE: Final = Reject(
    Prefix.INVALID, "kind 1082 travels only inside a gift wrap", "key shares"
)
_REPOST: Final = Reject(Prefix.BLOCKED, "the reposted event is protected", "reposts")
_DASH: Final = re.compile(r'"(?:-|\\u002[dD])"')
"""The name of the tag of a protected event: few reposts have it, the others are not parsed."""
_IMPORTED_REQUEST: Final = Reject(
    Prefix.RESTRICTED, "kind: a request to join or leave is not imported", "relay membership"
)
_TWO_D: Final = Reject(Prefix.INVALID, "tags: more than one d", "one d")
_NO_CLAIM: Final = Reject(Prefix.INVALID, "missing tag claim", "relay membership")


def _credentials(event: Event, origin: Origin) -> Reject | None:
    """Login and HTTP authentication events must not be published (N42-10, N98-09)."""
    return _WITH_CREDENTIALS


def _rumor(event: Event, origin: Origin) -> Reject | None:
    return _RUMOR  # a signed kind 14 or 15 is a leak by mistake (N17-02)


def _seal(event: Event, origin: Origin) -> Reject | None:
    return _SEAL if event.tags else None  # N59-02


def _wrap(event: Event, origin: Origin) -> Reject | None:
    # Without a `p` tag nobody could read it (N59-07).
    return None if event.tag_values("p") else _WRAP


def _key_share(event: Event, origin: Origin) -> Reject | None:
    return _KEY_SHARE  # D-35


def _app_data(event: Event, origin: Origin) -> Reject | None:
    """Rules check the first `d`, filters match any: a second one would bypass the rules."""
    return _TWO_D if sum([tag[:1] == ["d"] for tag in event.tags]) > 1 else None


def _joining(event: Event, origin: Origin) -> Reject | None:
    if origin is not Origin.WIRE:
        return _IMPORTED_REQUEST
    return None if event.has_tag("claim") else _NO_CLAIM  # N43-03


def _leaving(_: Event, origin: Origin) -> Reject | None:
    return None if origin is Origin.WIRE else _IMPORTED_REQUEST


def _repost(event: Event, origin: Origin) -> Reject | None:
    """A repost must not contain a protected event (N70-05)."""
    if origin is not Origin.WIRE or _DASH.search(event.content) is None:
        return None
    if has_too_many_arrays(event.content):
        return _REPOST  # not parsed, so it may be
    try:
        inner = json_in(event.content)
    except ValueError:
        # Half of a surrogate pair or 1e400, which clients parse, may be beside a whole event.
        return _REPOST if event.content.lstrip(" \t\r\n").startswith("{") else None
    tags = inner.get("tags") if isinstance(inner, dict) else None
    if not isinstance(tags, list):
        return None
    protected = any(isinstance(tag, list) and tag and tag[0] == "-" for tag in tags)
    return _REPOST if protected else None


FORMS: Final[Mapping[int, Callable[[Event, Origin], Reject | None]]] = {
    kinds.CLIENT_AUTH: _credentials,
    kinds.HTTP_AUTH: _credentials,
    kinds.PRIVATE_MESSAGE: _rumor,
    kinds.PRIVATE_FILE: _rumor,
    kinds.SEAL: _seal,
    kinds.GIFT_WRAP: _wrap,
    kinds.EPHEMERAL_GIFT_WRAP: _wrap,
    kinds.KEY_SHARE: _key_share,
    kinds.RELAY_JOIN: _joining,
    kinds.RELAY_LEAVE: _leaving,
    kinds.APP_DATA: _app_data,
    kinds.APP_RECORD: _app_data,
    kinds.REPOST: _repost,
    kinds.GENERIC_REPOST: _repost,
}
