"""Which time a record of Aman gets, so that a clear cuts all that came before it and nothing after.

A-15: a clear cuts what is as old as itself, and times are whole seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MOST: Final = 10_000
"""History keys that are remembered."""


class ClearOrder:
    """Of what one program writes; times are Unix seconds."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        """History key → the latest time that was given out for a row."""
        self._cleared: OrderedDict[str, int] = OrderedDict()

    def after_clear(self, hk: str, now: int) -> int:
        """For a summary or a tool call."""
        at = max(now, self._cleared.get(hk, -1) + 1)
        _note(self._newest, hk, at)
        return at

    def clearing(self, hk: str, now: int) -> int:
        """For a clear."""
        at = max(now, self._newest.get(hk, 0))
        _note(self._cleared, hk, at)
        return at


def _note(times: OrderedDict[str, int], hk: str, at: int) -> None:
    times[hk] = max(at, times.pop(hk, 0))
    if len(times) > _MOST:
        times.popitem(last=False)
