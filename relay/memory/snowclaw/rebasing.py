"""The changes of a version that waited while another one was stored, applied to that one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_draft
from relay.memory.snowclaw.edit_dates import without_younger
from relay.memory.snowclaw.edits import GroupChanges, UserChanges, added
from relay.memory.snowclaw.encryption import is_encrypted
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.isolation import not_for
from relay.memory.snowclaw.keys import category_and_key, is_private
from relay.memory.snowclaw.records import UserRecord, newest, record_draft
from relay.memory.snowclaw.users import UserMemory

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.memory.snowclaw.edit_dates import Deleted
    from relay.memory.snowclaw.record_index import RecordIndex
    from relay.memory.snowclaw.records import GroupRecord
    from relay.nostr.event import Event

M = TypeVar("M", UserMemory, GroupMemory)


def rebased(
    index: RecordIndex,
    version: Event,
    base: Event | None,
    stored: Event | None,
    at: int,
    deleted: Deleted | None = None,
) -> tuple[Draft | None, bool]:
    """The changes from `base` to `version`, applied to `stored`: a draft, and whether it must
    be encrypted. No draft: `stored` has all of them. `index` reads the three.

    `base`: None if `version` is a first one; `stored`: None if it was deleted; `deleted`: which
    changes are. Raises Invalid if one cannot be read, or if a group would read text that was
    not written for it.
    """
    was_encrypted = stored is not None and is_encrypted(stored)
    encrypted = was_encrypted or is_encrypted(version)
    is_to_encrypt = stored is not None and encrypted != was_encrypted
    if is_private(version.d):
        lines, noted = _notes(index, version, base, stored, deleted)
        if lines == noted and not is_to_encrypt:
            return None, encrypted
        category, key = category_and_key(version.d)
        return agent_memory_draft(AgentMemory(key, "\n".join(lines), category), at), encrypted
    memory, known = _memories(index, version, base, stored, deleted)
    if memory == known and not is_to_encrypt:
        return None, encrypted
    h = (version if stored is None else stored).tag("h")
    if h not in (None, version.tag("h")) and _texts(memory) != _texts(known):
        raise not_for(version.d, h)
    if isinstance(memory, UserMemory) and memory.first_seen is None:
        memory = replace(memory, first_seen=memory.known_since(version.created_at))
    return record_draft(memory, version.d, at, h), encrypted


def _notes(
    index: RecordIndex,
    version: Event,
    base: Event | None,
    stored: Event | None,
    deleted: Deleted | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Private notes, with the changes and as stored."""
    mine, before, theirs = map(index.notes, (version, base, stored))
    if deleted is not None:
        before = without_younger(before, mine, deleted, index.hash_key)
    return added(before, mine, theirs), theirs


def _memories(
    index: RecordIndex,
    version: Event,
    base: Event | None,
    stored: Event | None,
    deleted: Deleted | None,
) -> tuple[UserMemory | GroupMemory, UserMemory | GroupMemory]:
    """As `_notes`, of a user or group."""
    mine, before, theirs = map(index.record, (version, base, stored))
    assert mine is not None
    is_newer = stored is None or newest((version, stored)) is version
    if isinstance(mine, UserRecord):
        user, had = memory_of(theirs, UserMemory()), memory_of(before, UserMemory())
        if deleted is not None:
            had = without_younger(had, mine.memory, deleted, index.hash_key)
        return UserChanges(had, mine.memory, is_newer)(user), user
    group, of_group = memory_of(theirs, GroupMemory()), memory_of(before, GroupMemory())
    if deleted is not None:
        of_group = without_younger(of_group, mine.memory, deleted, index.hash_key)
    return GroupChanges(of_group, mine.memory, is_newer)(group), group


def memory_of(record: UserRecord | GroupRecord | None, empty: M) -> M:
    """The memory in a record; `empty`: if there is none."""
    found = empty if record is None else record.memory
    return found if isinstance(found, type(empty)) else empty


def _texts(memory: UserMemory | GroupMemory) -> object:
    """The parts of a memory that an agent wrote, without those that it only observed."""
    if isinstance(memory, GroupMemory):
        return replace(memory, members=(), last_activity=None)
    return memory.notes, memory.owner_notes, memory.preferences
