"""Edits: unpublished changes to the record of one user or group (S-31)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.users import UserMemory

    UserEdit = Callable[[UserMemory], UserMemory]
    GroupEdit = Callable[[GroupMemory], GroupMemory]
    Names = tuple[tuple[str, int], ...]
    """(name, time of the profile that told it)."""


@dataclass(frozen=True, slots=True)
class _SeenUser:
    """Messages of a user, with the names in the author's profiles (S-30)."""

    first: int
    last: int
    names: Names
    group: str | None

    def __call__(self, memory: UserMemory) -> UserMemory:
        memory = memory.seen(self.first, self.group).seen(self.last, self.group)
        for name, since in self.names:
            memory = memory.named(name, since)
        return memory


@dataclass(frozen=True, slots=True)
class _SeenGroup:
    """Messages in a group."""

    last: int

    def __call__(self, memory: GroupMemory) -> GroupMemory:
        return memory.seen(self.last)


@dataclass(frozen=True, slots=True)
class _Members:
    """The member list of a group, with names (S-18)."""

    members: tuple[tuple[str, str], ...]

    def __call__(self, memory: GroupMemory) -> GroupMemory:
        return replace(memory, members=self.members)


class Edits:
    """Edits of one record, in order: `of_user` or `of_group`."""

    def __init__(self) -> None:
        self.of_user: list[UserEdit] = []
        self.of_group: list[GroupEdit] = []
        self.changes = 0
        """Number of changes; all messages together count as one."""
        self._in_flight = 0
        """Number of edits in the version being published."""

    def __len__(self) -> int:
        return len(self.of_user) + len(self.of_group)

    def add_user_edit(self, edit: UserEdit) -> None:
        self.of_user.append(edit)
        self.changes += 1

    def add_group_edit(self, edit: GroupEdit) -> None:
        self.of_group.append(edit)
        self.changes += 1

    def user_seen(self, at: int, names: Names, group: str | None) -> None:
        last = self.of_user[-1] if len(self) > self._in_flight else None
        if isinstance(last, _SeenUser) and (last.names, last.group) == (names, group):
            seen = _SeenUser(min(last.first, at), max(last.last, at), names, group)
            self.of_user[-1] = seen
        else:
            self.of_user.append(_SeenUser(at, at, names, group))
        self.changes = max(self.changes, 1)

    def group_seen(self, at: int) -> None:
        last = self.of_group[-1] if len(self) > self._in_flight else None
        if isinstance(last, _SeenGroup):
            self.of_group[-1] = _SeenGroup(max(last.last, at))
        else:
            self.of_group.append(_SeenGroup(at))
        self.changes = max(self.changes, 1)

    def group_members(self, members: tuple[tuple[str, str], ...]) -> None:
        waiting = self.of_group[self._in_flight :]
        kept = [edit for edit in waiting if not isinstance(edit, _Members)]
        self.of_group[self._in_flight :] = [*kept, _Members(members)]
        self.changes = max(self.changes, 1)

    def mark_in_flight(self) -> None:
        """A version with all edits is being published."""
        self._in_flight = len(self)

    def drop_in_flight(self) -> None:
        """That version is stored."""
        del self.of_user[: self._in_flight], self.of_group[: self._in_flight]
        self._in_flight, self.changes = 0, len(self)
