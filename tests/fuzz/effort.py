"""How many examples there are, and what became of them.

`EFFORT` (tests/effort.py) says how many all tests of this folder throw together, or
`FUZZ_EXAMPLES` in the environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Final

from hypothesis import HealthCheck, settings

from tests.effort import tries

EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", tries(200_000, 2_000, 500)))
_TELL_EVERY_S: Final = 10.0
_MANY: Final = 500


def share(percent: float) -> settings:
    """Of all examples, so many; whatever they cost is worth it."""
    return settings(
        max_examples=max(1, int(EXAMPLES * percent / 100)),
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )


class Tally:
    """Counts of one test; tells of itself while it runs, for those who wait for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._began = self._told = time.monotonic()

    def example(self) -> None:
        self.counts["examples"] += 1
        now = time.monotonic()
        if now - self._told > _TELL_EVERY_S:
            self._told = now
            print(self, file=sys.stderr, flush=True)

    @property
    def is_telling(self) -> bool:
        """Whether there were so many that each kind must have come up."""
        return self.counts["examples"] >= _MANY

    def __repr__(self) -> str:
        took = time.monotonic() - self._began
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items())
        return f"fuzz {self.name}: {counts} in {took:.0f} s"
