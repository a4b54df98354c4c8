"""Edits: changes to the record of one user or group that the relay has not stored yet (S-31)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from relay.memory.bounded import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.users import UserMemory

    UserEdit = Callable[[UserMemory], UserMemory]
    GroupEdit = Callable[[GroupMemory], GroupMemory]
    Names = tuple[tuple[str, int], ...]
    """(name, time of the profile that told it)."""

_MAX_SENT: Final = 256
"""Versions of one record without an answer."""
T = TypeVar("T")
E = TypeVar("E")


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


@dataclass(frozen=True, slots=True)
class UserChanges:
    """The edits between two versions, to be applied to a third one. Applying them twice changes
    nothing."""

    before: UserMemory
    after: UserMemory
    is_newer: bool
    """Whether `after` is newer than the third version: then its value of a preference wins."""

    def __call__(self, memory: UserMemory) -> UserMemory:
        before, after = self.before, self.after
        is_first = memory.first_seen is None
        seen = _changed(before.first_seen, after.first_seen, memory.first_seen)
        last = _changed(before.last_interaction, after.last_interaction, memory.last_interaction)
        known = memory.preferences
        preferences = {
            name: value
            for name, value in after.preferences.items()
            if before.preferences.get(name) != value
            and (self.is_newer or known.get(name) == before.preferences.get(name))
        }
        memory = replace(
            memory,
            first_seen=min(seen, default=None),
            first_seen_group=after.first_seen_group if is_first else memory.first_seen_group,
            last_interaction=max(last, default=None),
            notes=added(before.notes, after.notes, memory.notes),
            owner_notes=added(before.owner_notes, after.owner_notes, memory.owner_notes),
            preferences={**known, **preferences},
            is_owner=memory.is_owner or after.is_owner,
        )
        for name, since in added(before.display_names, after.display_names, ()):
            memory = memory.named(name, since)
        return memory


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """As `UserChanges`. The members of the third version are kept: its program followed the
    group."""

    before: GroupMemory
    after: GroupMemory
    is_newer: bool

    def __call__(self, memory: GroupMemory) -> GroupMemory:
        before, after = self.before, self.after
        purpose = memory.purpose
        if after.purpose != before.purpose and (self.is_newer or purpose == before.purpose):
            purpose = after.purpose
        last = _changed(before.last_activity, after.last_activity, memory.last_activity)
        return replace(
            memory,
            purpose=purpose,
            members=memory.members or after.members,
            themes=added(before.themes, after.themes, memory.themes),
            decisions=added(before.decisions, after.decisions, memory.decisions),
            notes=added(before.notes, after.notes, memory.notes),
            owner_notes=added(before.owner_notes, after.owner_notes, memory.owner_notes),
            last_activity=max(last, default=None),
        )


def added(before: Iterable[T], after: Iterable[T], known: tuple[T, ...]) -> tuple[T, ...]:
    """`known`, and what `after` has beyond `before` and `known`."""
    others = {*before, *known}
    return (*known, *(each for each in dict.fromkeys(after) if each not in others))


def _changed(before: int | None, after: int | None, known: int | None) -> list[int]:
    """Times to choose from: the known one, and a new one."""
    new = None if after == before else after
    return [at for at in (known, new) if at is not None]


class EditReaders(NamedTuple):
    """Who may read an edit of a user's record: beside the owner, members of these groups."""

    group: str | None
    """That it was made for."""
    stored: str | None
    """That read the stored record when it was made."""
    is_encrypted: bool = False
    """Whether that record was: then the owner may not read it either."""


class _Made(NamedTuple, Generic[E]):
    edit: E
    at: int
    """Unix seconds: when it was made, or the time of the message that it is about."""
    readers: EditReaders | None = None
    """None: it says nothing that somebody may not read."""


class Edits:
    """Edits of one record, in order: `of_user` or `of_group`."""

    def __init__(self) -> None:
        self._of_user: list[_Made[UserEdit]] = []
        self._of_group: list[_Made[GroupEdit]] = []
        self.changes = 0
        """Number of changes; all messages together count as one, or as many as there were changes
        of the user's name."""
        self._in_flight = 0
        """Number of edits in the version being published."""
        self._sent: BoundedDict[str, list[object]] = BoundedDict(_MAX_SENT)
        """Id of a version that was sent, and not answered → the edits in it."""

    def __len__(self) -> int:
        return len(self._of_user) + len(self._of_group)

    @property
    def of_user(self) -> list[UserEdit]:
        return [made.edit for made in self._of_user]

    @property
    def of_group(self) -> list[GroupEdit]:
        return [made.edit for made in self._of_group]

    def add_user_edit(self, edit: UserEdit, at: int, readers: EditReaders | None = None) -> None:
        """`readers`: None: it says nothing that somebody may not read."""
        self._of_user.append(_Made(edit, at, readers))
        self.changes += 1

    @property
    def _readers(self) -> set[EditReaders]:
        return {made.readers for made in self._of_user if made.readers is not None}

    @property
    def group(self) -> str | None:
        """The group that all were made for, whose members may read a first version."""
        groups = {readers.group for readers in self._readers}
        return groups.pop() if len(groups) == 1 else None

    def of_user_for(self, group: str | None) -> list[UserEdit]:
        """Those that may be in a record that this group reads; None: the owner only."""
        return [made.edit for made in self._of_user if _may_be_read(made, group)]

    def kept_from(self, group: str | None) -> list[tuple[UserEdit, int, str | None]]:
        """Those that say what this group may not read: each with its time, and the group that it
        was made for."""
        return [
            (made.edit, made.at, None if made.readers is None else made.readers.group)
            for made in self._of_user
            if _is_kept_from(made, group)
        ]

    @property
    def is_encrypted(self) -> bool:
        """Whether one was made for an encrypted record."""
        return any(readers.is_encrypted for readers in self._readers)

    def may_enter(self, group: str) -> bool:
        """Whether none was made for another group."""
        return all(readers.group in (None, group) for readers in self._readers)

    def add_group_edit(self, edit: GroupEdit, at: int) -> None:
        self._of_group.append(_Made(edit, at))
        self.changes += 1

    def user_seen(self, at: int, names: Names, group: str | None) -> None:
        told = {names}
        is_new = True
        for place, made in enumerate(self._of_user[self._in_flight :], self._in_flight):
            seen = made.edit
            if not isinstance(seen, _SeenUser):
                continue
            told.add(seen.names)
            if (seen.names, seen.group) == (names, group):
                seen = replace(seen, first=min(seen.first, at), last=max(seen.last, at))
                self._of_user[place] = _Made(seen, max(made.at, seen.last))
                is_new = False
        if is_new:
            self._of_user.append(_Made(_SeenUser(at, at, names, group), at))
        self.changes = max(self.changes, len(told))

    def group_seen(self, at: int) -> None:
        last = self._of_group[-1].edit if len(self) > self._in_flight else None
        if isinstance(last, _SeenGroup):
            at = max(last.last, at)
            self._of_group[-1] = _Made(_SeenGroup(at), at)
        else:
            self._of_group.append(_Made(_SeenGroup(at), at))
        self.changes = max(self.changes, 1)

    def group_members(self, members: tuple[tuple[str, str], ...]) -> None:
        waiting = self._of_group[self._in_flight :]
        kept = [made for made in waiting if not isinstance(made.edit, _Members)]
        # Without a time, it goes with any deletion; it is made again with the next edit.
        self._of_group[self._in_flight :] = [*kept, _Made(_Members(members), 0)]
        self.changes = max(self.changes, 1)

    @property
    def users_in_flight(self) -> list[tuple[UserEdit, int]]:
        """Those in the version being published, with their times."""
        return [(made.edit, made.at) for made in self._of_user[: self._in_flight]]

    @property
    def groups_in_flight(self) -> list[tuple[GroupEdit, int]]:
        """As `users_in_flight`."""
        return [(made.edit, made.at) for made in self._of_group[: self._in_flight]]

    def mark_in_flight(self, group: str | None = None) -> None:
        """A version with all edits is being published, but for what its readers may not read."""
        kept = [made for made in self._of_user if _is_kept_from(made, group)]
        self._of_user = [m for m in self._of_user if not _is_kept_from(m, group)] + kept
        self._in_flight = len(self) - len(kept)

    def noted_since(self, at: int) -> int:
        """When the oldest text in flight was noted. `at`: of a version without any."""
        users, groups = self._of_user[: self._in_flight], self._of_group[: self._in_flight]
        times = [made.at for made in users if not isinstance(made.edit, _SeenUser)]
        times += [made.at for made in groups if not isinstance(made.edit, (_SeenGroup, _Members))]
        return min([at, *times])

    def drop_in_flight(self) -> None:
        """That version is stored."""
        del self._of_user[: self._in_flight], self._of_group[: self._in_flight]
        self._in_flight, self.changes = 0, len(self)
        self._sent.clear()

    def note_sent(self, version: str) -> None:
        """That version has this id. The answer may be lost."""
        in_flight = (*self.users_in_flight, *self.groups_in_flight)
        self._sent[version] = [edit for edit, _ in in_flight]

    def drop_sent(self, version: str) -> None:
        """Drop those in a version that was sent, if there was one with this id: it is stored."""
        stored = {id(edit) for edit in self._sent.pop(version, ())}
        if stored:
            edits = (*self.of_user, *self.of_group)
            self._in_flight = sum(id(edit) not in stored for edit in edits[: self._in_flight])
            self._of_user = [made for made in self._of_user if id(made.edit) not in stored]
            self._of_group = [made for made in self._of_group if id(made.edit) not in stored]
            self.changes = len(self)

    def date_after(self, at: int) -> None:
        """Date them after a deletion that is not for them."""
        self._of_user = [made._replace(at=max(made.at, at + 1)) for made in self._of_user]
        self._of_group = [made._replace(at=max(made.at, at + 1)) for made in self._of_group]

    def drop_until(self, at: int) -> bool:
        """Drop those made up to this time. Whether there were any."""
        before = len(self)
        times = [made.at for made in self._of_user] + [made.at for made in self._of_group]
        self._in_flight = sum(made_at > at for made_at in times[: self._in_flight])
        self._of_user = [_since(made, at) for made in self._of_user if made.at > at]
        self._of_group = [made for made in self._of_group if made.at > at]
        if len(self) == before:
            return False
        self.changes = len(self)
        return True


def _may_be_read(made: _Made[UserEdit], group: str | None) -> bool:
    """Of another group, or of a direct message, not even the time: it tells that there was one."""
    if group is not None and isinstance(made.edit, _SeenUser):
        return made.edit.group == group
    return not _is_kept_from(made, group)


def _is_kept_from(made: _Made[UserEdit], group: str | None) -> bool:
    """Whether it says what this group may not read: it was made for another one, even if this group
    read the record then, or for none while none did."""
    if group is None or made.readers is None:
        return False
    named, stored, _ = made.readers
    return group != (stored if named is None else named)


def _since(made: _Made[UserEdit], at: int) -> _Made[UserEdit]:
    """Without messages up to this time."""
    seen = made.edit
    if isinstance(seen, _SeenUser) and seen.first <= at:
        return made._replace(edit=replace(seen, first=seen.last))
    return made
