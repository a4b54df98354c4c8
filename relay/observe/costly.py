"""The shapes of filters that take most of the time."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 — msgspec reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.nostr.filters import Filter

SLOW_S: Final = 0.5
"""A query that takes this long is slow; time in which it waited for its client does not count."""
_NOTE_S: Final = 0.001
_PLAN_S: Final = 0.05
_MAX_SHAPES: Final = 64
_MAX_LISTED: Final = 4
"""Kinds and filters that a shape names one by one."""


@dataclass(slots=True)
class CostlyRead:
    """The cost of REQs or COUNTs of one shape since start."""

    shape: str
    """Kinds, names of tags and numbers of values; never a value."""
    seconds: float
    """Sum of all, estimated: see `CostlyReads`."""
    longest_s: float
    rows: int
    """Rows sent by the longest."""
    plan: Sequence[str] | None = None
    """Steps of SQLite's query plan, as of one of its readers; None: not asked for."""

    @property
    def wants_plan(self) -> bool:
        return self.plan is None and self.seconds >= _PLAN_S


class CostlyReads:
    """The shapes of filters that take most of the time.

    The shape is computed once per millisecond of reading, not for each query: the query that
    completes a millisecond is recorded with all the time since the previous one. So shapes get
    their share on average, and long queries are always recorded.
    """

    def __init__(self) -> None:
        self._reads: dict[str, CostlyRead] = {}
        self._unnoted_s = 0.0
        self.slow = 0
        """How many queries were slow."""

    def took(
        self, verb: str, filters: Sequence[Filter], rows: int, seconds: float
    ) -> CostlyRead | None:
        """None: this one is not recorded."""
        self._unnoted_s += seconds
        if self._unnoted_s < _NOTE_S:
            return None
        self.slow += seconds >= SLOW_S
        shape = f"{verb} {shape_of(filters)}"
        read = self._reads.get(shape)
        if read is None:
            if len(self._reads) >= _MAX_SHAPES:
                del self._reads[min(self._reads.values(), key=lambda each: each.seconds).shape]
            read = self._reads[shape] = CostlyRead(shape, 0.0, 0.0, 0)
        read.seconds += self._unnoted_s
        self._unnoted_s = 0.0
        if seconds > read.longest_s:
            read.longest_s, read.rows = seconds, rows
        return read

    def most(self, number: int) -> Sequence[CostlyRead]:
        """Most seconds first."""
        return sorted(self._reads.values(), key=lambda each: -each.seconds)[:number]


def shape_of(filters: Sequence[Filter]) -> str:
    """`kinds 9,11 #h 1 since limit 100`: filters without their values, which are counted."""
    shapes = [_shape(filter_) for filter_ in filters[:_MAX_LISTED]]
    if len(filters) > _MAX_LISTED:
        shapes.append(f"{len(filters) - _MAX_LISTED} more")
    return " | ".join(shapes)


def _shape(filter_: Filter) -> str:
    words = []
    if filter_.kinds is not None:
        listed = sorted(filter_.kinds)[:_MAX_LISTED]
        more = [f"{_about(len(filter_.kinds) - _MAX_LISTED)} more"]
        named = [*map(str, listed), *(more if len(filter_.kinds) > _MAX_LISTED else ())]
        words.append(f"kinds {','.join(named)}")
    for name, values in (("ids", filter_.ids), ("authors", filter_.authors)):
        if values is not None:
            words.append(f"{name} {_about(len(values))}")
    words += [f"#{name} {_about(len(values))}" for name, values in filter_.tags]
    given = {"search": filter_.search, "since": filter_.since, "until": filter_.until}
    words += [name for name, value in given.items() if value is not None]
    if filter_.limit is not None:
        words.append(f"limit {_about(filter_.limit)}")
    return " ".join(words) or "everything"


def _about(number: int) -> str:
    """Rounded up to a power of ten, so that there are few shapes."""
    if number <= 1:
        return str(number)
    return f"<={10 ** len(str(number - 1))}"
