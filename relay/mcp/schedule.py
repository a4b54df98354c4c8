"""Parses the time of a queued task, in nmem's notation (M-29)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from relay.mcp.arguments import LARGEST, ToolFault

_SPAN: Final = re.compile(r"(?:in\s+)?(\d{1,9})\s*([a-z]+)").fullmatch
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNITS: Final = {
    spelling: _SECONDS[unit]
    for unit, spellings in {
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
        "d": "d day days",
        "w": "w wk wks week weeks",
    }.items()
    for spelling in spellings.split()
}
_EVENING: Final = 21
"""Hour of `tonight`."""


def time_of(text: str, now: int) -> int:
    """Unix seconds. Times without a zone are local. Raises ToolFault."""
    words = text.strip().lower()
    if words == "tomorrow":
        return now + _SECONDS["d"]
    if words == "tonight":
        return _tonight(now)
    span = _SPAN(words)
    if span is not None and span[2] in _UNITS:
        return min(now + int(span[1]) * _UNITS[span[2]], LARGEST)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ToolFault(
            f"after: {text[:40]!r} is not a time: use 5m, 2h, 1d, tomorrow, tonight or an ISO date"
        ) from None


def _tonight(now: int) -> int:
    """This evening, or tomorrow's once it has begun."""
    here = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
    evening = here.replace(hour=_EVENING, minute=0, second=0)
    if evening.timestamp() <= now:
        evening += timedelta(days=1)  # wall-clock time, whatever daylight saving does
    return int(evening.timestamp())
