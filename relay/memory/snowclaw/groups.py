"""GroupMemory: an agent's memory of one group (S-09, S-10)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from relay.memory.fields import Shape
from relay.memory.snowclaw.contents import joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.snowclaw.contents import Contents


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Times are Unix seconds."""

    purpose: str | None = None
    members: tuple[tuple[str, str], ...] = ()
    """(npub or hex key, name or empty)."""
    themes: tuple[str, ...] = ()
    decisions: tuple[tuple[str, int], ...] = ()
    """(text, time)."""
    notes: tuple[str, ...] = ()
    owner_notes: tuple[str, ...] = ()
    """From the owner's own record (S-22)."""
    last_activity: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    """Unknown fields of the stored version: kept on rewrite (S-10)."""

    def seen(self, at: int) -> GroupMemory:
        """After a message (S-30)."""
        last = at if self.last_activity is None else max(self.last_activity, at)
        return replace(self, last_activity=last)

    def noted(self, text: str) -> GroupMemory:
        return replace(self, notes=(*self.notes, text))

    def annotated(self, *texts: str) -> GroupMemory:
        """With notes of the owner, each once (S-22)."""
        return replace(self, owner_notes=tuple(dict.fromkeys((*self.owner_notes, *texts))))

    def with_theme(self, theme: str) -> GroupMemory:
        return replace(self, themes=tuple(dict.fromkeys((*self.themes, theme))))

    def with_decision(self, text: str, at: int) -> GroupMemory:
        return replace(self, decisions=(*self.decisions, (text, at)))

    def as_fields(self) -> dict[str, object]:
        """The JSON fields: those of the format, our additions, then unknown ones (S-10)."""
        own: dict[str, object] = {
            "purpose": self.purpose,
            "members": self.members,
            "themes": self.themes,
            "decisions": self.decisions,
            "notes": self.notes,
            "owner_notes": self.owner_notes if self.owner_notes != () else None,
            "last_activity": self.last_activity,
        }
        return joined(own, self.extra)


def group_memory_in(contents: Contents) -> GroupMemory:
    """From either spelling (S-09). Raises Invalid."""
    members = contents.text_pairs("members")
    if members is None:
        keys = contents.from_json("members_json", Shape.STRINGS.fits)
        members = tuple((key, "") for key in keys) if isinstance(keys, list) else ()
    return GroupMemory(
        purpose=contents.text("purpose"),
        members=members,
        themes=contents.texts("themes"),
        decisions=contents.dated_texts("decisions") or (),
        notes=contents.texts("notes"),
        owner_notes=contents.texts("owner_notes"),
        last_activity=contents.number("last_activity"),
        extra=contents.left(),
    )
