"""Isolation of groups: which records a context may use, and which rows a relay leaked (S-33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG, MEMORY
from relay.memory.snowclaw.records import GroupRecord, UserRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from relay.memory.snowclaw.records import Record
    from relay.nostr.event import Event


def enters(record: Record, group: str) -> bool:
    """Whether a record may be used in the context of a group.

    Group memory only in its own group; user memory anywhere, unless it has another group's `h`.
    """
    h = record.event.tag("h")
    match record:
        case GroupRecord():
            return record.scope.id == group and h in (None, group)
        case UserRecord():
            return h in (None, group)


def not_for(d: str, group: str | None) -> Invalid:
    """Why no version with other texts may replace the one that a group reads."""
    return Invalid(
        f"{d}: group:{group} reads the stored version, and must not read what was not noted for it"
    )


def leaks(returned: Iterable[Event], member_of: Set[str], reader: str) -> list[Event]:
    """The memory records that a relay should not have returned to a reader.

    For readers who are neither owner nor agent. `reader`: public key; `member_of`: ids of their
    groups.
    """
    return [
        event
        for event in returned
        if event.d.startswith((AGENT, COLLECTIVE))
        and event.pubkey != reader
        and not _may_read(event, member_of)
    ]


def _may_read(event: Event, member_of: Set[str]) -> bool:
    if event.d.startswith(CONFIG):
        return False
    if event.d.startswith(COLLECTIVE):
        match event.tag("snow:tier"):
            case "public":
                return len(member_of) > 0
            case "private":
                return False
    h = event.tag("h")
    if event.d.startswith(f"{MEMORY}group:") and h != event.d.removeprefix(f"{MEMORY}group:"):
        return False
    return h in member_of
