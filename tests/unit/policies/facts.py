"""Events and facts of a test, made without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from relay.facts import Facts, Origin, Who

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

NOW = 1_772_000_000

NOBODY = Facts(
    now=NOW,
    origin=Origin.WIRE,
    authenticated=frozenset(),
    who=frozenset({Who.ANYONE, Who.AUTHOR}),
    authenticated_who=frozenset(),
    wraps_for_known=False,
    deletes_own=False,
    replaces=False,
    has_group=False,
)
"""A stranger, on a connection without login."""


def being(*who: Who) -> Facts:
    """Facts about an author who is all this."""
    return replace(NOBODY, who=NOBODY.who | frozenset(who))


def event_by(
    author: SecretKey,
    kind: int,
    tags: list[list[str]] | None = None,
    content: str = "",
    created_at: int = NOW,
) -> Event:
    return author.sign(kind, tags or [], content, created_at)
