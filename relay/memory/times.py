"""Times as people and the original's tables read them. MEMORY.md A-17, A-28."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: int) -> str:
    """`YYYY-MM-DD HH:MM:SS` in UTC; the bare number when it is beyond the year 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(seconds)
