"""Draft: an event that nobody has signed yet, as the codecs of memory make it."""

from __future__ import annotations

from typing import NamedTuple


class Draft(NamedTuple):
    """What `SecretKey.sign` wants beside the key."""

    kind: int
    tags: list[list[str]]
    content: str
    created_at: int
    """Unix seconds."""

    @property
    def d(self) -> str:
        """The address part, as `Event.d` has it."""
        return next((tag[1] for tag in self.tags if tag[0] == "d"), "")
