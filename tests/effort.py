"""How much the tests do: `EFFORT` in the environment.

Unset or `part`, by `make test`: every test but those of broken programs (`mutant`), with a tenth
of the examples where these are many, and one variant or a small load where others prove the same.
`full`, by CI in the time that is left: several times as many. `all`, by `make faults` and
`make fuzz`: as many as one has hours for.
"""

from __future__ import annotations

import os
from typing import Final

_LEVELS: Final = ("part", "full", "all")
_LEVEL: Final = _LEVELS.index(os.environ.get("EFFORT") or "part")

IS_PART: Final = _LEVEL == 0
IS_ALL: Final = _LEVEL == 2


def tries(everything: int, full: int, part: int | None = None) -> int:
    """How many there are by `EFFORT`: `all`, `full`, and `part`, by default as many as `full`."""
    return (full if part is None else part, full, everything)[_LEVEL]


def examples(full: int) -> int:
    """Of Hypothesis, for one test: as many, or a tenth of them by `make test`."""
    return full if _LEVEL else max(10, full // 10)
