"""Terms: what the checks of memory records may look at beside the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 10_000
"""X-03."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of `[memory]`, and the moment."""

    latest: int | None = None
    """Unix seconds: the latest that `ts` may be (G-14); None: no window of time holds (imports)."""
    ts_is_created_at: bool = False
    """A-08."""
    verify_hash: bool = False
    """A-12."""
    max_chars: int = MAX_CHARS
    """Code points of an entry's content (X-03)."""
    max_bytes: int = 0
    """Of its UTF-8; 0: no limit."""
