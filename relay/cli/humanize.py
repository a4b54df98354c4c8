"""Human-readable counts, sizes and ages."""

from __future__ import annotations

from typing import Final

_PERIODS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def counted(number: int, what: str) -> str:
    """`1 event`, `1,200 events`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size_of(number: int) -> str:
    """A number of bytes: `512 bytes`, `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(number)


def age_of(at: int, now: int) -> str:
    """Age of `at` at `now`, both in Unix seconds: `just now`, `3 hours ago`."""
    for seconds, name in _PERIODS:
        if now - at >= seconds:
            return f"{counted((now - at) // seconds, name)} ago"
    return "just now" if now - at >= 0 else "in the future"
