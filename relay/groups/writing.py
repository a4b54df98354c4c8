"""Who may write what into a group beside 9000–9022, and when: membership, kinds, time, `previous`.

Invariants: membership is asked before anything that could tell a stranger what is stored (N29-25).
What has no group goes through here too: it may be a version of what a group holds (Z-07).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix
from relay.groups.context import NOT_A_MEMBER, RULE, NotStored, acts_as_admin, rejected
from relay.nostr import kinds
from relay.verdict import Origin, Reject, Who

if TYPE_CHECKING:
    from relay.groups.context import GroupContext, GroupSettings
    from relay.groups.group import Group, Groups
    from relay.nostr.event import Event

RELAY_ONLY: Final = Reject(
    Prefix.RESTRICTED, "kinds 39000 to 39005 are signed by this relay only", RULE
)
"""For 39000–39005 from outside, the relay's own included; stored ones are duplicates (N29-60)."""

_OF_NO_GROUP: Final = frozenset({kinds.PROFILE, kinds.CONTACTS, kinds.RELAY_LIST})
_ALWAYS_SUPPORTED: Final = frozenset({kinds.DELETION, kinds.VANISH})
_TALK: Final = frozenset(
    {kinds.CHAT, kinds.THREAD_REPLY, kinds.THREAD, kinds.THREAD_COMMENT, kinds.COMMENT}
)
_DATED: Final = _TALK | frozenset(kinds.GROUP_RECORDS)
"""What late publication is about (Z-19)."""
_WITHOUT_REFERENCES: Final = frozenset({kinds.CREATE_GROUP, kinds.JOIN_REQUEST})
"""Their authors may have seen nothing of the group yet."""
_REFERRING: Final = (
    _DATED | {kinds.NOTE, kinds.REPOST, kinds.REACTION, kinds.GENERIC_REPOST}
) - _WITHOUT_REFERENCES
"""Where `[groups] previous` demands references; memory clients know nothing of them."""

_MAX_AHEAD_S: Final = 60
"""A moderation event dated further ahead would outrank what comes after it (N29-27)."""
_PREFIX: Final = re.compile(r"[0-9a-f]{8,64}").fullmatch


def is_relay_only(kind: int) -> bool:
    return kind in kinds.GROUP_STATE


def objection(
    event: Event,
    group_id: str | None,
    groups: Groups,
    settings: GroupSettings,
    context: GroupContext,
) -> Reject | None:
    """Why an event that is no 9000–9022 may not be written, as far as groups are concerned."""
    if context.h_is_label and (group_id is None or Who.OWNER in context.who):
        return None  # G-33, G-31
    if group_id is None:
        return _moved(event, None, context)
    if event.kind in _OF_NO_GROUP:
        return rejected(Prefix.INVALID, f"h: an event of kind {event.kind} belongs to no group")
    group = groups.get(group_id)
    if group is None or not _may_write(event.pubkey, group, context):
        return NOT_A_MEMBER
    return (
        _unsupported(event.kind, group)
        or _moved(event, group_id, context)
        or check_created_at(event, settings, context)
        or check_previous(event, settings, context)
    )


def _may_write(pubkey: str, group: Group, context: GroupContext) -> bool:
    """By the author, not by who is logged in (N29-10); memory is members' in every group (G-33)."""
    if not (group.only_members_write or context.is_memory):
        return True
    return pubkey in group.members or acts_as_admin(pubkey, context)


def _unsupported(kind: int, group: Group) -> Reject | None:
    """N29-13; deletion and vanish are nobody's content (N29-14)."""
    if group.supported_kinds is None or kind in group.supported_kinds | _ALWAYS_SUPPORTED:
        return None
    return rejected(Prefix.BLOCKED, f"kind {kind} is not supported by this group")


def _moved(event: Event, group_id: str | None, context: GroupContext) -> Reject | None:
    """An address does not change its group (N29-16, Z-07); memory may come in or out (G-31)."""
    before = context.moved_from
    if isinstance(before, NotStored) or before == group_id:
        return None
    if context.is_memory and (before is None or group_id is None):
        return None
    return rejected(Prefix.INVALID, "address belongs to another group")


def check_created_at(event: Event, settings: GroupSettings, context: GroupContext) -> Reject | None:
    """Why the event comes too late or too early for a group (N29-26, N29-27, Z-19)."""
    if context.origin is not Origin.WIRE or event.kind not in _DATED:
        return None
    age = context.now - event.created_at
    if settings.late_s and age > settings.late_s:
        return rejected(
            Prefix.INVALID, f"created_at: {age} s in the past, at most {settings.late_s} s allowed"
        )
    if -age > _MAX_AHEAD_S and event.kind in kinds.MODERATION:
        return rejected(
            Prefix.INVALID, f"created_at: {-age} s in the future, at most {_MAX_AHEAD_S} s allowed"
        )
    return None


def check_previous(
    event: Event,
    settings: GroupSettings,
    context: GroupContext,
    *,
    group: Group | None = None,
) -> Reject | None:
    """What is wrong with the event's `previous` (N29-20…25).

    `group` is given when the author is no member of it: of a guarded group they learn nothing, not
    even whether an id is known there.
    """
    if context.origin is not Origin.WIRE:
        return None
    prefixes = {prefix for tag in event.tags if tag and tag[0] == "previous" for prefix in tag[1:]}
    if prefixes and group is not None and group.only_members_read:
        return rejected(Prefix.INVALID, "previous: not in a request to join this group")
    for prefix in prefixes:
        if not _PREFIX(prefix):
            return rejected(Prefix.INVALID, "previous: must be 8 to 64 lowercase hex characters")
    if not prefixes <= context.previous_found:
        return rejected(Prefix.INVALID, "previous: names an event that is not known in this group")
    if len(prefixes) < settings.previous and event.kind in _REFERRING:
        return rejected(
            Prefix.INVALID,
            f"previous: {len(prefixes)} references, at least {settings.previous} needed",
        )
    return None
