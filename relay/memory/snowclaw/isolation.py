"""What may enter which group's context, and what a reader should never have been given. S-33."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG, MEMORY
from relay.memory.snowclaw.records import GroupRecord, UserRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from relay.memory.snowclaw.records import Record
    from relay.nostr.event import Event


def enters(record: Record, group: str) -> bool:
    """Whether a record may be used in the context of a group.

    Memory of a group only in its own; notes about a user everywhere, unless the record has the
    `h` of another group.
    """
    h = record.event.tag("h")
    match record:
        case GroupRecord():
            return record.scope.id == group and h in (None, group)
        case UserRecord():
            return h in (None, group)


def leaks(given: Iterable[Event], member_of: Set[str], reader: str) -> list[Event]:
    """Of what a relay gave to a reader, the memory that it should have kept from them.

    For readers who are neither owner nor agent: `reader` is their public key, `member_of` the ids
    of their groups.
    """
    return [
        event
        for event in given
        if event.d.startswith((AGENT, COLLECTIVE))
        and event.pubkey != reader
        and not _is_theirs(event, member_of)
    ]


def _is_theirs(event: Event, member_of: Set[str]) -> bool:
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
