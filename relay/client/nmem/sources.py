"""Sources: whose records a cache of nmem takes in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose records a cache takes in, beside those of its own key and of the relay's owners."""

    group: str | None = None
    """Records of this group, by whomever the relay lets write there. Being a member of other groups
    is not enough: anybody can add a key to a group that they made."""
    agents: frozenset[str] = frozenset()
    """Other agents, 64 hex each: their records in any group."""
