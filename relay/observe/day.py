"""A day of metrics: one sample a minute, for the console.

Invariant: at most `MAX_SAMPLES` are held.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.observe.histogram import Histogram

DAY_S: Final = 86_400
MAX_SAMPLES: Final = 1440


class Sample(NamedTuple):
    """`at`: Unix seconds of its end; the rates are per second since the sample before."""

    at: int
    stored: float
    refused: float
    deliveries: float
    queries: float
    connections: float
    commit_p99_s: float
    """Upper bound of the bucket; 0: there was no commit. The same for queries."""
    query_p99_s: float
    resident_bytes: float
    """0: not available on this system."""
    disk_bytes: float


class Totals(NamedTuple):
    """What is counted since start."""

    stored: float
    refused: float
    deliveries: float
    queries: float


class Day:
    """The samples of the last day, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._totals = Totals(0, 0, 0, 0)
        self._times: dict[str, Sequence[int]] = {}
        self._at_s = 0.0

    @property
    def samples(self) -> Sequence[Sample]:
        return tuple(self._samples)

    def restore(self, samples: Iterable[Sample]) -> None:
        """Samples from before the start, oldest first."""
        self._samples.extend(samples)

    def add(
        self,
        at: int,
        up_s: float,
        totals: Totals,
        commits: Histogram,
        queries: Histogram,
        connections: float,
        disk_bytes: float,
    ) -> None:
        """`up_s`: monotonic seconds since start."""
        passed_s = max(up_s - self._at_s, 1.0)
        rates = Totals(
            *((new - old) / passed_s for new, old in zip(totals, self._totals, strict=True))
        )
        self._samples.append(
            Sample(
                at,
                rates.stored,
                rates.refused,
                rates.deliveries,
                rates.queries,
                connections,
                self._p99("commit", commits),
                self._p99("query", queries),
                resident_bytes(),
                disk_bytes,
            )
        )
        self._totals, self._at_s = totals, up_s

    def _p99(self, name: str, times: Histogram) -> float:
        before, self._times[name] = self._times.get(name, ()), times.numbers
        return times.quantile(0.99, before)


def resident_bytes() -> float:
    """Memory of this process; 0 where there is no /proc."""
    with suppress(OSError, ValueError):
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return float(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0
