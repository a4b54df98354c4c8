"""Plan: how a session file shall become events, as whoever imports it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from relay.errors import Invalid
from relay.memory.transcripts.stripping import KEEP_ALL, Stripping

CHUNK: Final = 48_000
"""UTF-8 bytes of a piece of a line, and of a note (D-13, D-17)."""
_LEAST_CHUNK: Final = 4


class Paths(Enum):
    """What becomes of paths below the session's directory (D-20, D-22)."""

    TOKENS = "token"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Plan:
    """The same file, author and plan give the same ids (D-14). Raises Invalid."""

    session: str | None = None
    """The session id, whatever the file says."""
    group: str | None = None
    """The group that it is shared with: tag `h`, the last."""
    paths: Paths = Paths.TOKENS
    chunk: int = CHUNK
    """UTF-8 bytes."""
    max_event: int | None = None
    """Bytes of an event's JSON that none may be over (`--max-inner`, a relay's limit)."""
    stripping: Stripping = KEEP_ALL

    def __post_init__(self) -> None:
        if self.chunk < _LEAST_CHUNK:
            raise Invalid(f"chunk: must be {_LEAST_CHUNK} bytes or more")
