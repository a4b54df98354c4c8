"""UserMemory: an agent's memory of one user (S-07, S-08, S-10)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from relay.memory.fields import Shape, is_integer
from relay.memory.snowclaw.contents import joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.snowclaw.contents import Contents

MAX_NAMES: Final = 50
"""Names in the history: whoever changes theirs often must not fill the record."""
MAX_NAME: Final = 64
"""Characters of a name that are kept: it is in the records of its user and of their groups, which
must not become larger than a relay accepts. A context shows 40."""
MAX_NOTE: Final = 2_000
"""Characters of a note or another text about a user or group: whoever says what an agent notes must
not fill the record, and the contexts made of it."""


@dataclass(frozen=True, slots=True)
class UserMemory:
    """Times are Unix seconds."""

    display_names: tuple[tuple[str, int], ...] = ()
    """(name, time of the profile that told it), oldest first."""
    first_seen: int | None = None
    notes: tuple[str, ...] = ()
    owner_notes: tuple[str, ...] = ()
    preferences: Mapping[str, str] = field(default_factory=dict)
    is_owner: bool = False
    last_interaction: int | None = None
    first_seen_group: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    """Unknown fields of the stored version: kept on rewrite (S-10)."""

    @property
    def name(self) -> str | None:
        return self.display_names[-1][0] if self.display_names else None

    @property
    def is_noted(self) -> bool:
        """Whether more is known than what any message tells: names, and times."""
        noted = self.notes or self.owner_notes or self.preferences or self.extra
        return self.is_owner or bool(noted)

    def named(self, name: str, at: int) -> UserMemory:
        """With a name since `at`, the time of the profile that tells it.

        Names may come in any order, and again: two programs that share the record, and learn of
        messages and profiles in different orders, keep the same names. A name that ended before
        the first message is left out.
        """
        if (name, at) in self.display_names:
            return self
        before = [known for known in self.display_names if known[1] <= at]
        after = [known for known in self.display_names if known[1] > at]
        if before and before[-1][0] == name:
            return self
        if after and after[0][0] == name:
            after = after[1:]
        if self.first_seen is not None:
            if after and after[0][1] <= self.first_seen:
                return self
            if at <= self.first_seen:
                before = []
        return replace(self, display_names=(*before, (name, at), *after)[-MAX_NAMES:])

    def seen(self, at: int, group: str | None = None) -> UserMemory:
        """After a message: first and last time (S-30)."""
        is_first = self.first_seen is None
        return replace(
            self,
            first_seen=min(self.known_since(at), at),
            first_seen_group=group if is_first else self.first_seen_group,
            last_interaction=(
                at if self.last_interaction is None else max(self.last_interaction, at)
            ),
        )

    def known_since(self, at: int) -> int:
        """`first_seen`, or what the names tell of a record without it; `at` if there are none."""
        if self.first_seen is not None:
            return self.first_seen
        return min([at, *(since for _, since in self.display_names)])

    def noted(self, text: str) -> UserMemory:
        return replace(self, notes=(*self.notes, text))

    def annotated(self, *texts: str) -> UserMemory:
        """With notes of the owner, each once (S-22)."""
        return replace(self, owner_notes=tuple(dict.fromkeys((*self.owner_notes, *texts))))

    def preferring(self, name: str, value: str) -> UserMemory:
        return replace(self, preferences={**self.preferences, name: value})

    def as_fields(self) -> dict[str, object]:
        """The JSON fields: those of the format, our additions, then unknown ones (S-10)."""
        own: dict[str, object] = {
            "display_names": self.display_names,
            "first_seen": self.first_seen,
            "notes": self.notes,
            "preferences": self.preferences,
            "is_owner": self.is_owner,
            "owner_notes": self.owner_notes,
            "last_interaction": self.last_interaction,
            "first_seen_group": self.first_seen_group,
        }
        return joined(own, self.extra)


def user_memory_in(contents: Contents, written_at: int) -> UserMemory:
    """From either spelling (S-07). `written_at`: start of a name without a time of its own.

    Raises Invalid.
    """
    first_seen = contents.number("first_seen")
    names = contents.dated_texts("display_names")
    if names is None:
        names = _names_in_history(contents, written_at if first_seen is None else first_seen)
    return UserMemory(
        display_names=tuple((name[:MAX_NAME], at) for name, at in names),
        first_seen=first_seen,
        notes=contents.texts("notes"),
        owner_notes=contents.texts("owner_notes"),
        preferences=contents.text_map("preferences"),
        is_owner=contents.is_set("is_owner"),
        last_interaction=contents.number("last_interaction"),
        first_seen_group=contents.text("first_seen_group"),
        extra=contents.left(),
    )


def _names_in_history(contents: Contents, first_seen: int) -> tuple[tuple[str, int], ...]:
    """The history has [end, old name]; a name starts where the one before ends (S-08)."""
    history = contents.from_json("name_history_json", _is_history)
    names: list[tuple[str, int]] = []
    begins = first_seen
    for ends, old in history if isinstance(history, list) else ():
        names.append((old, begins))
        begins = ends
    current = contents.text("display_name")
    if current is not None:
        names.append((current, begins))
    return tuple(names)


def _is_history(value: object) -> bool:
    return (
        isinstance(value, list)
        and Shape.PAIRS.fits(value)
        and all(is_integer(ends) and isinstance(old, str) for ends, old in value)
    )
