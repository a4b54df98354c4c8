"""Rules about the author that who-words cannot express: sealed envelopes and logins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.settings import AuthWrites
from relay.errors import Prefix
from relay.nostr import kinds
from relay.verdict import Origin, Reject, Who

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.settings import Memory
    from relay.nostr.event import Event
    from relay.verdict import Facts

ENVELOPES: Final = "sealed envelopes"

_SEALED_BY_NOBODY: Final = Reject(
    Prefix.AUTH_REQUIRED, "sealed events need authentication", ENVELOPES
)
_SEALED_BY_STRANGER: Final = Reject(
    Prefix.RESTRICTED, "only members may write sealed events", ENVELOPES
)
_MAY_SEAL: Final = frozenset({Who.OWNER, Who.AGENT, Who.MEMBER})


def sealed(event: Event, facts: Facts, memory: Memory) -> Reject | None:
    """The author is a derived key in no list, so the keys logged in on the connection count
    (D-31)."""
    if facts.origin is not Origin.WIRE or event.pubkey in memory.envelope_keys:
        return None
    if not facts.authenticated:
        return _SEALED_BY_NOBODY
    return _SEALED_BY_STRANGER if facts.authenticated_who.isdisjoint(_MAY_SEAL) else None


CODED_WRITER_RULES: Final[Mapping[str, Callable[[Event, Facts, Memory], Reject | None]]] = {
    ENVELOPES: sealed
}
"""Packaged rules, by name, whose authors no who-word describes."""


_PROTECTED: Final = "this event may be published by its author only"
_LOGIN: Final = "log in to write here"
_OWN_LOGIN: Final = "log in with the key that signed this"


def unproven(event: Event, facts: Facts, writes: AuthWrites) -> Reject | None:
    """The refusal for a missing login: protected events (N70), `[auth] writes` (Z-10).

    Does not apply to imports, nor to a request to vanish, whose signature suffices (N62-11).
    """
    # Another relay could pass on a request to leave; Flotilla sends it without `-` (N43-05).
    if event.kind == kinds.RELAY_LEAVE and event.pubkey not in facts.authenticated:
        return Reject(_word(facts), _PROTECTED, "protected events")
    for tag in event.tags:
        if tag and tag[0] == "-":
            if event.pubkey not in facts.authenticated:
                return Reject(_word(facts), _PROTECTED, "protected events")
            break
    if writes is AuthWrites.NEVER:
        return None
    is_in_group = event.kind == kinds.CREATE_GROUP or event.has_tag("h")
    if writes is AuthWrites.GROUPS and (facts.h_is_foreign or not is_in_group):
        return None
    if not facts.authenticated:
        return Reject(Prefix.AUTH_REQUIRED, _LOGIN, "[auth] writes")
    # A moderation event seen elsewhere could be replayed by another key within its window (N29-45).
    if event.kind in kinds.GROUP_RECORDS and event.pubkey not in facts.authenticated:
        return Reject(Prefix.RESTRICTED, _OWN_LOGIN, "[auth] writes")
    return None


def _word(facts: Facts) -> Prefix:
    return Prefix.RESTRICTED if facts.authenticated else Prefix.AUTH_REQUIRED
