"""Timestamps of session files (D-11)."""

from __future__ import annotations

import re
from datetime import date
from typing import Final

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH: Final = date(1970, 1, 1).toordinal()


def milliseconds(text: object) -> int | None:
    """Unix milliseconds of an RFC 3339 time with any offset, truncated; None for anything else and
    for times before 1970.
    """
    if not isinstance(text, str):
        return None
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    # Second 60 is a leap second.
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    if sign is not None:
        if int(hours) > 23 or int(minutes) > 59:
            return None
        offset = (int(hours) * 60 + int(minutes)) * 60
        seconds += -offset if sign == "+" else offset
    ms = seconds * 1000 + int(((fraction or "") + "000")[:3])
    return ms if ms >= 0 else None
