"""NIP-29 "Timeline references" and "Late publication": checks of `previous` and `created_at`.

Invariants: callers check membership first, because these refusals reveal which ids are stored
(N29-25).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Reject
from relay.facts import Origin
from relay.groups.context import RULE, rejected
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Set

    from relay.groups.context import GroupContext, GroupSettings
    from relay.nostr.event import Event

_CHAT: Final = frozenset(
    {kinds.CHAT, kinds.THREAD_REPLY, kinds.THREAD, kinds.THREAD_COMMENT, kinds.COMMENT}
)
_DATED: Final = _CHAT | frozenset(kinds.GROUP_RECORDS)
"""Kinds that must be published soon after their created_at (Z-19)."""
_WITHOUT_REFERENCES: Final = frozenset({kinds.CREATE_GROUP, kinds.JOIN_REQUEST})
"""Their authors may not have read any event of the group yet."""
_REFERRING: Final = (
    _DATED | {kinds.NOTE, kinds.REPOST, kinds.REACTION, kinds.GENERIC_REPOST}
) - _WITHOUT_REFERENCES
"""Kinds that `[groups] previous` is about; clients of memory systems do not know references."""

_MAX_AHEAD_S: Final = 60
"""Seconds. A moderation event dated further ahead would take precedence over later ones
(N29-27)."""
MAX_PREVIOUS: Final = 64
"""References of one event; an import may have more, which are not looked up."""
_UNKNOWN: Final = Reject(
    Prefix.INVALID, "previous: names an event that is not known in this group", RULE, reveals=True
)
_PREFIX: Final = re.compile(r"[0-9a-f]{8,64}").fullmatch


def check_number_of_previous(event: Event) -> Reject | None:
    """Why an event names too many; before anything looks at each of them: a tag has tens of
    thousands."""
    if not event.has_tag("previous"):
        return None
    number = sum([len(tag) - 1 for tag in event.tags if tag and tag[0] == "previous"])
    if number <= MAX_PREVIOUS:
        return None
    return rejected(
        Prefix.INVALID, f"previous: {number} references, at most {MAX_PREVIOUS} allowed"
    )


def previous_to_find(prefixes: Set[str]) -> Set[str]:
    """The prefixes to look up; none when `check_previous` refuses them for their form."""
    return prefixes if len(prefixes) <= MAX_PREVIOUS and all(map(_PREFIX, prefixes)) else set()


def check_created_at(kind: int, created_at: int, context: GroupContext) -> Reject | None:
    """Why an event of this kind comes too late or too early (N29-26, N29-27, Z-19)."""
    if context.origin is not Origin.WIRE:
        return None
    return check_date(kind, created_at, context.now, context.settings)


def check_date(kind: int, created_at: int, now: int, settings: GroupSettings) -> Reject | None:
    """As `check_created_at`, of an event that a client sent."""
    if kind not in _DATED:
        return None
    age, most = now - created_at, settings.late_s
    if most and age > most:
        return rejected(
            Prefix.INVALID, f"created_at: {age} s in the past, at most {most} s allowed"
        )
    if -age > _MAX_AHEAD_S and kind in kinds.MODERATION:
        return rejected(
            Prefix.INVALID, f"created_at: {-age} s in the future, at most {_MAX_AHEAD_S} s allowed"
        )
    return None


def check_previous(kind: int, prefixes: Set[str], context: GroupContext) -> Reject | None:
    """What is wrong with the prefixes of the event's `previous` tags (N29-20…25)."""
    if context.origin is not Origin.WIRE:
        return None
    if not all(map(_PREFIX, prefixes)):
        return rejected(Prefix.INVALID, "previous: must be 8 to 64 lowercase hex characters")
    if not prefixes <= context.previous_found:
        return _UNKNOWN
    least = context.settings.previous
    if len(prefixes) < least and kind in _REFERRING:
        return rejected(
            Prefix.INVALID, f"previous: {len(prefixes)} references, at least {least} needed"
        )
    return None
