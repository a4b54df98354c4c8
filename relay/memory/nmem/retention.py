"""Retention of observations (M-23…M-25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAY: Final = 86_400

DAYS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("git_commit", "git_push"), 730),
    **dict.fromkeys(
        (
            "file_write",
            "file_edit",
            "session_startup",
            "session_compact",
            "session_resume",
            "session_clear",
        ),
        365,
    ),
    **dict.fromkeys(("command", "github"), 180),
    **dict.fromkeys(
        ("file_read", "search", "mcp_call", "web_fetch", "web_search", "task_spawn", "tool_other"),
        90,
    ),
}
"""Type of observation → days (M-24). Other types, such as markers, are kept."""


@dataclass(frozen=True, slots=True)
class Aged:
    """The facts about an observation that decide a sweep."""

    obs_type: str
    timestamp: int
    """Unix seconds."""
    has_summary: bool
    """Whether its session has a summary."""
    is_pinned: bool


def is_swept(row: Aged, now: int, days: Mapping[str, int] = DAYS) -> bool:
    """Whether a sweep removes the row; 0 days: never."""
    due = due_before(now, days).get(row.obs_type)
    return due is not None and row.timestamp < due and row.has_summary and not row.is_pinned


def due_before(now: int, days: Mapping[str, int] = DAYS) -> dict[str, int]:
    """Type → Unix seconds before which an observation is removed."""
    return {name: now - number * _DAY for name, number in days.items() if number > 0}
