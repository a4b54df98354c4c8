"""Rules about the author that who-words cannot express: sealed envelopes and logins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from policies.settings import AuthWrites
from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from policies.settings import Memory
    from relay.facts import Facts
    from relay.nostr.event import Event

ENVELOPES: Final = "sealed envelopes"

_WITHOUT_LOGIN: Final = Reject(Prefix.AUTH_REQUIRED, "sealed events need authentication", ENVELOPES)
_NOT_A_MEMBER: Final = Reject(Prefix.RESTRICTED, "only members may write sealed events", ENVELOPES)
_MAY_SEAL: Final = frozenset({Who.OWNER, Who.AGENT, Who.MEMBER})


def sealed(event: Event, facts: Facts, memory: Memory) -> Reject | None:
    """The author is a derived key that is in no list, so the keys logged in on the connection count
    (D-31)."""
    if facts.origin is not Origin.WIRE or event.pubkey in memory.envelope_keys:
        return None
    if not facts.authenticated:
        return _WITHOUT_LOGIN
    return _NOT_A_MEMBER if facts.authenticated_who.isdisjoint(_MAY_SEAL) else None


CODED_WRITER_RULES: Final[Mapping[str, Callable[[Event, Facts, Memory], Reject | None]]] = {
    ENVELOPES: sealed
}
"""Packaged rules, by name, whose authors no who-word describes."""


_PROTECTED: Final = "this event may be published by its author only"
_LOGIN: Final = "log in to write here"
_OWN_LOGIN: Final = "log in with the key that signed this"
_MAY_PASS_ON: Final = frozenset({Who.INSIDER, Who.OWNER, Who.AGENT})
"""Who may send events that others signed for a group."""
_NO_KINDS: Final[frozenset[int]] = frozenset()


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
    foreign = frozenset({event.kind}) if facts.h_is_foreign else _NO_KINDS
    if not needs_login(event, writes, foreign):
        return None
    if not facts.authenticated:
        return Reject(Prefix.AUTH_REQUIRED, _LOGIN, "[auth] writes")
    if event.pubkey in facts.authenticated:
        return None
    # A moderation event seen elsewhere could be replayed by another key within its window (N29-45).
    # Also, the answer would reveal to outsiders that a member's event is stored here.
    is_outsider = event.has_tag("h") and facts.authenticated_who.isdisjoint(_MAY_PASS_ON)
    if event.kind in kinds.GROUP_RECORDS or (is_outsider and not facts.h_is_foreign):
        return Reject(Prefix.RESTRICTED, _OWN_LOGIN, "[auth] writes")
    return None


def needs_login(event: Event, writes: AuthWrites, foreign_h: Set[int]) -> bool:
    """Whether `[auth] writes` asks for a login; `foreign_h`: kinds whose `h` names no group."""
    match writes:
        case AuthWrites.NEVER:
            return False
        case AuthWrites.GROUPS:
            is_in_group = event.kind == kinds.CREATE_GROUP or event.has_tag("h")
            return is_in_group and event.kind not in foreign_h
        case AuthWrites.ALWAYS:
            return True
        case _:
            assert_never(writes)


def _word(facts: Facts) -> Prefix:
    return Prefix.RESTRICTED if facts.authenticated else Prefix.AUTH_REQUIRED
