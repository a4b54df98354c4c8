"""How long observations are kept. MEMORY.md M-23…M-25."""

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
"""Type of observation → days (M-24). Of other types, markers among them, none goes."""


@dataclass(frozen=True, slots=True)
class Aged:
    """What a sweep asks about an observation."""

    obs_type: str
    timestamp: int
    """Unix seconds."""
    has_summary: bool
    """Its session has one."""
    is_pinned: bool


def is_swept(row: Aged, now: int, days: Mapping[str, int] = DAYS) -> bool:
    """Whether the row goes; 0 days are for ever."""
    due = due_before(now, days).get(row.obs_type)
    return due is not None and row.timestamp < due and row.has_summary and not row.is_pinned


def due_before(now: int, days: Mapping[str, int] = DAYS) -> dict[str, int]:
    """Type → the time, in Unix seconds, before which an observation is too old."""
    return {name: now - number * _DAY for name, number in days.items() if number > 0}
