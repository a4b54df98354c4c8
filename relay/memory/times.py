"""UTC times as text, as Aman's tables have them (A-17, A-28)."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: int) -> str:
    """`YYYY-MM-DD HH:MM:SS` in UTC; the number itself beyond the year 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(seconds)
