"""Retention of observations (M-23…M-25)."""

from __future__ import annotations

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


def due_before(now: int, days: Mapping[str, int] = DAYS) -> dict[str, int]:
    """Type → Unix seconds before which an observation is removed; 0 days: never."""
    return {name: now - number * _DAY for name, number in days.items() if number > 0}
