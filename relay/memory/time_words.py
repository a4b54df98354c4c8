"""Time words of a question as periods: "in May", "7 May 2023", "last week", "3 days ago"."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_YEARS_BACK: Final = 6
"""Years searched for a month without a year."""
_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_NUMBERS: Final = {
    **{name: number for number, name in enumerate(_MONTHS, 1)},
    **{name[:3]: number for number, name in enumerate(_MONTHS, 1)},
    "sept": 9,
}
_WEEKDAYS: Final = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_COUNTS: Final = {
    word: number
    for number, word in enumerate(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 1
    )
} | {"a": 1, "an": 1}

# Months begin with a capital: "may" and "march" are words.
_MONTH: Final = (
    "(?P<month>"
    + "|".join(sorted((name.capitalize() for name in _NUMBERS), key=len, reverse=True))
    + r")\b\.?"
)
_DAY: Final = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\b"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_DATES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?P<year>(?:19|20)\d\d)-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?\b",
        rf"\b{_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?",
        rf"\b{_MONTH} {_DAY}(?:,? {_YEAR})?",
        rf"\b{_MONTH}(?:,? {_YEAR})?",
        rf"\b{_YEAR}",
    )
)
_RELATIVE: Final = re.compile(
    r"\b(?:(?P<when>today|yesterday)"
    rf"|(?P<which>last|this) (?P<unit>week|month|year|{'|'.join(_WEEKDAYS)})"
    rf"|(?P<count>\d{{1,3}}|{'|'.join(_COUNTS)}) (?P<of>day|week|month|year)s? ago)\b",
    re.IGNORECASE,
)
_UNIT_DAYS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}


def periods(question: str, now: int) -> tuple[tuple[int, int], ...]:
    """First and last second (UTC) of each period that it names, before `now` in Unix seconds."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0)
    found = [*_dates(question, today), *_relative(question, today)]
    seconds = [
        (int(first.timestamp()), int(after.timestamp()) - 1)
        for first, after in found
        if first.year > 1970 and first.timestamp() <= now
    ]
    return tuple(dict.fromkeys(seconds))


def _dates(question: str, today: datetime) -> Iterator[tuple[datetime, datetime]]:
    for pattern in _DATES:
        for match in pattern.finditer(question):
            named = match.groupdict()
            month = int(named.get("number") or 0) or _NUMBERS.get(
                (named.get("month") or "").lower()
            )
            year = named.get("year")
            if month == 5 and match.start() == 0 and not (year or named.get("day")):
                continue  # "May I …"
            years = [int(year)] if year else range(today.year, today.year - _YEARS_BACK, -1)
            for each in years:
                try:
                    yield _period(each, month, int(named.get("day") or 0))
                except ValueError:
                    continue  # 30 February
        question = pattern.sub(" ", question)


def _period(year: int, month: int | None, day: int) -> tuple[datetime, datetime]:
    """Raises ValueError for a date that is none."""
    if month is None:
        return datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    first = datetime(year, month, day or 1, tzinfo=UTC)
    return first, first + timedelta(days=1 if day else monthrange(year, month)[1])


def _relative(question: str, today: datetime) -> Iterator[tuple[datetime, datetime]]:
    day = timedelta(days=1)
    for match in _RELATIVE.finditer(question.lower()):
        if when := match["when"]:
            first = today if when == "today" else today - day
            yield first, first + day
        elif match["count"]:
            count = _COUNTS.get(match["count"]) or int(match["count"])
            length = day * _UNIT_DAYS[match["of"]]
            # As vague as the unit: "3 weeks ago" is the week around that day.
            middle = today - min(count * length, day * 36_500)
            yield middle - length / 2 + day / 2, middle + length / 2 + day / 2
        else:
            yield _named(match["which"], match["unit"], today)


def _named(which: str, unit: str, today: datetime) -> tuple[datetime, datetime]:
    day = timedelta(days=1)
    if unit in _WEEKDAYS:
        back = (today.weekday() - _WEEKDAYS.index(unit)) % 7
        first = today - day * (back or (7 if which == "last" else 0))
        return first, first + day
    if unit == "week":
        first = today - day * today.weekday()
        return (first - day * 7, first) if which == "last" else (first, first + day * 7)
    if unit == "month":
        first = today.replace(day=1)
        earlier = (first - day).replace(day=1)
        return (earlier, first) if which == "last" else (first, (first + day * 31).replace(day=1))
    year = today.year - (which == "last")
    return _period(year, None, 0)
