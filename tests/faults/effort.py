"""How much the tests of faults do: `FAULTS=1` in the environment is all of it, `make faults`.

Without it a part runs, so that the whole suite stays quick.
"""

from __future__ import annotations

import os
from typing import Final

EVERYTHING: Final = os.environ.get("FAULTS", "") not in ("", "0")


def tries(everything: int, part: int) -> int:
    """Of `make faults`, and of `make test`."""
    return everything if EVERYTHING else part
