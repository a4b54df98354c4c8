"""Codec of user and group records (S-21, S-22)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.fields import compact_repaired, no_object, storable_object
from relay.memory.snowclaw.contents import Contents
from relay.memory.snowclaw.encryption import content_of
from relay.memory.snowclaw.groups import GroupMemory, group_memory_in
from relay.memory.snowclaw.keys import OfGroup, OfUser, memory_scope
from relay.memory.snowclaw.users import UserMemory, user_memory_in
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.snowclaw.encryption import OwnKey
    from relay.nostr.event import Event


@dataclass(frozen=True, slots=True)
class UserRecord:
    """An author's memory of a user."""

    event: Event
    scope: OfUser
    memory: UserMemory


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """An author's memory of a group."""

    event: Event
    scope: OfGroup
    memory: GroupMemory


Record = UserRecord | GroupRecord


def record_in(event: Event, key: OwnKey | None = None) -> Record | UnreadableRecord:
    """Memory of a user or a group, in either spelling. `key`: of the reader."""
    content = content_of(event, key)
    if isinstance(content, UnreadableRecord):
        return content
    try:
        scope = memory_scope(event.d)
        fields = storable_object(content)
        if fields is None:
            raise Invalid(no_object(content))
        contents = Contents(fields)
        if isinstance(scope, OfUser):
            return UserRecord(event, scope, user_memory_in(contents, event.created_at))
        return GroupRecord(event, scope, group_memory_in(contents))
    except Invalid as fault:
        return UnreadableRecord(event, fault.text)


def record_draft(
    memory: UserMemory | GroupMemory, d: str, created_at: int, h: str | None = None
) -> Draft:
    """The next version of a record.

    `d`: of `keys.user_d` or `keys.group_d`. `h`: the group whose members may read it; None: author
    and owner only. For group memory it is that group or None (S-03).

    A group is not told of another one, which may be hidden, that the user was first seen there.
    """
    if isinstance(memory, UserMemory) and h is not None and memory.first_seen_group != h:
        memory = replace(memory, first_seen_group=None)
    tags = [["d", d]] if h is None else [["d", d], ["h", h]]
    return Draft(kinds.APP_DATA, tags, compact_repaired(memory.as_fields()), created_at)


def newest(events: Iterable[Event]) -> Event | None:
    """The current version among those under all forms of a key (S-02); tie: the lowest id."""
    return min(events, key=lambda event: (-event.created_at, event.id), default=None)


def annotated_user(memory: UserMemory, of_owners: Iterable[UserMemory]) -> UserMemory:
    """With the notes of the owners' records (S-22)."""
    return memory.annotated(*(note for owner in of_owners for note in owner.notes))


def annotated_group(memory: GroupMemory, of_owners: Iterable[GroupMemory]) -> GroupMemory:
    """With the notes of the owners' records (S-22)."""
    return memory.annotated(*(note for owner in of_owners for note in owner.notes))
