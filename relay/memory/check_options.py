"""CheckOptions: the settings of `[memory]` that checks of records use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 10_000
"""X-03."""
MAX_BYTES: Final = 10_240
"""The 10 KB of the specification's prose; clients warn above (X-03)."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    latest: int | None = None
    """Upper limit of tag `ts`, Unix seconds (G-14). None: no limit (imports)."""
    ts_is_created_at: bool = False
    """A-08."""
    verify_hash: bool = False
    """A-12."""
    max_chars: int = MAX_CHARS
    """Code points of an entry's content (X-03)."""
    max_bytes: int = 0
    """UTF-8 bytes of an entry's content; 0: no limit."""
