"""How long tests wait for what must happen, in seconds.

Invariants: a test waits for an event, never for a time; a limit ends only a test that would wait
for ever, so it is far above what a machine four times slower than usual needs, with other programs
on all its cores. What must hold *within* a time is scaled by
`here`.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Final

ANSWER_S: Final = 90.0
"""An answer, a message, a condition of a running program."""
PROGRAM_S: Final = 150.0
"""A program that starts, stops, or runs from start to end."""

_BLOCK: Final = bytes(1_000_000)
_BLOCKS: Final = 40
_QUIET_S: Final = 0.035
"""What hashing them takes on a quiet machine of CI."""


def slowdown() -> float:
    """How many times slower this machine is now than a quiet one; at least 1. Takes 0.04 s."""
    began = time.perf_counter()
    for _ in range(_BLOCKS):
        sha256(_BLOCK).digest()
    return max(1.0, (time.perf_counter() - began) / _QUIET_S)


def here(quiet_s: float) -> float:
    """The seconds that may pass here and now where a quiet machine may take `quiet_s`.

    More than in proportion: how busy the machine is varies while a test runs.
    """
    return quiet_s * (1 + 4 * (slowdown() - 1))
