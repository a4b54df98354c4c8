"""Timestamps of Aman records, so that a clear applies exactly to the records written before it.

A-15: a clear also applies to records of the same second.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MAX_KEYS: Final = 10_000
"""History keys kept."""


class ClearOrder:
    """For the records of one program; times are Unix seconds."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        """History key → latest time assigned to a row."""
        self._cleared: OrderedDict[str, int] = OrderedDict()

    def after_clear(self, hk: str, now: int) -> int:
        """Time of a summary or tool call."""
        at = max(now, self._cleared.get(hk, -1) + 1)
        _record(self._newest, hk, at)
        return at

    def clearing(self, hk: str, now: int) -> int:
        """Time of a clear."""
        at = max(now, self._newest.get(hk, 0))
        self.cleared(hk, at)
        return at

    def wrote(self, hk: str, at: int) -> None:
        """Note a summary or tool call written with another time than `after_clear` returned."""
        _record(self._newest, hk, at)

    def cleared(self, hk: str, at: int) -> None:
        """Note that a clear was written with another time than `clearing` returned."""
        _record(self._cleared, hk, at)


def _record(times: OrderedDict[str, int], hk: str, at: int) -> None:
    times[hk] = max(at, times.pop(hk, 0))
    if len(times) > _MAX_KEYS:
        times.popitem(last=False)
