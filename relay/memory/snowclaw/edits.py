"""Edits: what was noted about one user or group and is in no published record yet. S-31."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.users import UserMemory

    UserEdit = Callable[[UserMemory], UserMemory]
    GroupEdit = Callable[[GroupMemory], GroupMemory]


@dataclass(frozen=True, slots=True)
class _SeenUser:
    """Messages of a user (S-30)."""

    first: int
    last: int
    name: str | None
    group: str

    def __call__(self, memory: UserMemory) -> UserMemory:
        once = memory.seen(self.first, self.name, self.group)
        return once.seen(self.last, self.name, self.group)


@dataclass(frozen=True, slots=True)
class _SeenGroup:
    """Messages in a group."""

    last: int

    def __call__(self, memory: GroupMemory) -> GroupMemory:
        return memory.seen(self.last)


class Edits:
    """Of one record, in their order. A user has those of the first kind, a group of the second."""

    def __init__(self) -> None:
        self.of_user: list[UserEdit] = []
        self.of_group: list[GroupEdit] = []
        self.changes = 0
        """For so many they count: all messages together are one."""
        self._under_way = 0
        """So many of the first are in the version that was made last."""

    def __len__(self) -> int:
        return len(self.of_user) + len(self.of_group)

    def of_user_noted(self, edit: UserEdit) -> None:
        self.of_user.append(edit)
        self.changes += 1

    def of_group_noted(self, edit: GroupEdit) -> None:
        self.of_group.append(edit)
        self.changes += 1

    def user_seen(self, at: int, name: str | None, group: str) -> None:
        last = self.of_user[-1] if len(self) > self._under_way else None
        if isinstance(last, _SeenUser) and (last.name, last.group) == (name, group):
            seen = _SeenUser(min(last.first, at), max(last.last, at), name, group)
            self.of_user[-1] = seen
        else:
            self.of_user.append(_SeenUser(at, at, name, group))
        self.changes = max(self.changes, 1)

    def group_seen(self, at: int) -> None:
        last = self.of_group[-1] if len(self) > self._under_way else None
        if isinstance(last, _SeenGroup):
            self.of_group[-1] = _SeenGroup(max(last.last, at))
        else:
            self.of_group.append(_SeenGroup(at))
        self.changes = max(self.changes, 1)

    def put_under_way(self) -> None:
        """A version with all of them was made."""
        self._under_way = len(self)

    def drop_under_way(self) -> None:
        """That version is stored."""
        del self.of_user[: self._under_way], self.of_group[: self._under_way]
        self._under_way, self.changes = 0, len(self)
