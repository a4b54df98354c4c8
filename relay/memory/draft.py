"""Draft: an unsigned event, as the codecs of memory records make it."""

from __future__ import annotations

from typing import NamedTuple


class Draft(NamedTuple):
    """The arguments of `SecretKey.sign`."""

    kind: int
    tags: list[list[str]]
    content: str
    created_at: int
    """Unix seconds."""

    @property
    def d(self) -> str:
        """As `Event.d`."""
        return next((tag[1] for tag in self.tags if tag[0] == "d"), "")
