"""Histogram: how many values are at most each of some bounds, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, repeat
from operator import sub
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS: Final = (0.00002, 0.0001, 0.0005, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Histogram:
    """prometheus-client's own takes 2 us and a lock for each value."""

    __slots__ = ("_bounds", "_numbers", "sum")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self._bounds = bounds
        self._numbers = [0] * (len(bounds) + 1)
        """Number of values in each bucket: at most its bound, above the previous one."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._numbers[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._numbers)

    @property
    def numbers(self) -> Sequence[int]:
        """Of values in each bucket."""
        return tuple(self._numbers)

    def quantile(self, share: float, before: Sequence[int] = ()) -> float:
        """Bound of the bucket in which that share of the values is reached; of those since
        `numbers` was `before`. 0: there are none."""
        new = [*accumulate(map(sub, self._numbers, before or repeat(0)))]
        if not new[-1]:
            return 0.0
        return self._bounds[min(bisect_left(new, share * new[-1]), len(self._bounds) - 1)]

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Bound → how many values are at most that."""
        bounds = (*map(str, self._bounds), "+Inf")
        return [*zip(bounds, map(float, accumulate(self._numbers)), strict=True)]
