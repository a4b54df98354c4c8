"""The wall clock of tests of whole programs. Every other test passes `now` itself.

Call it inside the test: a time taken at import is old by the time the test runs, and the relay
refuses events that are too old.
"""

from __future__ import annotations

import time


def now() -> int:
    """Unix seconds."""
    return int(time.time())
