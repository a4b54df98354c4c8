"""Plan: the options for encoding a session file as events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.transcripts.stripping import KEEP_ALL, Stripping

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK: Final = 48_000
"""Maximum UTF-8 bytes of a chunk of a line, and of a note (D-13, D-17)."""
_MIN_CHUNK: Final = 4


class Paths(Enum):
    """How paths below the session's directory are written (D-20, D-22)."""

    TOKENS = "token"
    RAW = "raw"


class Layout(Enum):
    """Where the lines of the file are stored."""

    ARCHIVE = "archive"
    """In events of their own (1989), beside the notes."""
    CLASSIC = "classic"
    """In the notes, as the specification has it."""


@dataclass(frozen=True, slots=True)
class StoredThread:
    """The notes of a session that are stored in the classic layout, whatever program wrote them."""

    root: str
    lines: Mapping[bytes, str]
    """Digest of each line, as `relay.memory.transcripts.classic` computes it → id of its last
    note."""
    notes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of an encoding. The same file, author and plan give the same event ids (D-14). Raises
    Invalid."""

    session: str | None = None
    """Overrides the session id of the file."""
    group: str | None = None
    """The group that it is shared with: the last tag, `h`."""
    paths: Paths = Paths.TOKENS
    chunk: int = CHUNK
    """UTF-8 bytes."""
    max_event: int | None = None
    """Maximum bytes of an event's JSON (`--max-inner`, a relay's limit)."""
    stripping: Stripping = KEEP_ALL
    layout: Layout = Layout.ARCHIVE
    origin: str | None = None
    """The directory of the session's first import, whose paths its events keep; None: that of the
    file."""
    stored: StoredThread | None = None
    """Stored notes in the classic layout, which new notes follow; their lines get no new notes."""
    homes: tuple[str, ...] = ()
    """Home directories to hide, beside the one that the session's directory is in."""

    def __post_init__(self) -> None:
        if self.chunk < _MIN_CHUNK:
            raise Invalid(f"chunk: must be {_MIN_CHUNK} bytes or more")
