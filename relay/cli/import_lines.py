"""The lines of a file on its way into a folder: in batches, with what became of each."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from typing import TYPE_CHECKING, BinaryIO, Final, assert_never

import msgspec
import orjson

from relay.errors import Invalid, Refused
from relay.nostr.event import Event, event_from, is_hex64
from relay.nostr.kinds import is_ephemeral

if TYPE_CHECKING:
    from pathlib import Path

    from relay.verdict import Origin

MAX_LINE: Final = 4 * 2**20
"""Bytes of one line of an import."""
_BATCH_EVENTS: Final = 512
_BATCH_BYTES: Final = 8 * 2**20
_BATCH_LINES: Final = 4096
"""Of which most are refused or blank; a file of nothing else must not be held as one batch."""


@dataclass(slots=True)
class Tally:
    """What became of the lines so far, earlier runs of a resumed import included."""

    read: int = 0
    stored: int = 0
    passed_on: int = 0
    duplicates: int = 0
    superseded: int = 0
    refused: int = 0

    def __str__(self) -> str:
        parts = [f"{self.read} read", f"{self.stored} stored"]
        if self.passed_on:
            parts.append(f"{self.passed_on} passed on")
        parts.append(f"{self.duplicates} duplicate{'' if self.duplicates == 1 else 's'}")
        if self.superseded:
            parts.append(f"{self.superseded} superseded")
        parts.append(f"{self.refused} refused")
        return ", ".join(parts)

    def add(self, ending: Ending) -> None:
        self.read += 1
        match ending:
            case Ending.STORED:
                self.stored += 1
            case Ending.PASSED_ON:
                self.passed_on += 1
            case Ending.DUPLICATE:
                self.duplicates += 1
            case Ending.SUPERSEDED:
                self.superseded += 1
            case Ending.REFUSED:
                self.refused += 1
            case _:
                assert_never(ending)


class Ending(Enum):
    """How a line of an import ended."""

    STORED = auto()
    PASSED_ON = auto()
    """Ephemeral: to who listens now, and gone."""
    DUPLICATE = auto()
    SUPERSEDED = auto()
    REFUSED = auto()


def ending_of(event: Event, answer: tuple[bool, str]) -> Ending:
    """Read from the OK of this event (contract §6)."""
    accepted, text = answer
    is_duplicate = text.startswith("duplicate:")
    if accepted:
        if is_duplicate:
            return Ending.DUPLICATE
        return Ending.PASSED_ON if is_ephemeral(event.kind) else Ending.STORED
    return Ending.SUPERSEDED if is_duplicate else Ending.REFUSED


@dataclass(slots=True)
class Place:
    """How far an import is: behind this byte and this line everything is still to do."""

    offset: int = 0
    line: int = 0
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Batch:
    """Some lines of the file: what they hold, what is wrong with them, where they end."""

    offset: int
    line: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def batch_of(source: BinaryIO, place: Place) -> Batch | None:
    """The lines behind `place`, up to the bounds of a batch; None at the end of the file."""
    batch = Batch(place.offset, place.line)
    while (
        len(batch.events) < _BATCH_EVENTS
        and batch.offset - place.offset < _BATCH_BYTES
        and batch.line - place.line < _BATCH_LINES
    ):
        text, size = _line(source)
        if not size:
            break
        batch.offset += size
        batch.line += 1
        if text is None:
            batch.refused[batch.line] = f"invalid: line is over {MAX_LINE} bytes"
            continue
        text = text.removeprefix(b"\xef\xbb\xbf") if batch.line == 1 else text
        if not text.strip():
            continue
        try:
            batch.events.append((batch.line, _event(text)))
        except Refused as refused:
            batch.refused[batch.line] = str(refused)
    return batch if batch.line > place.line else None


def _line(source: BinaryIO) -> tuple[bytes | None, int]:
    """A line (None: too long to be looked at) and its size in the file; size 0 at the end."""
    text = source.readline(MAX_LINE + 1)
    size = len(text)
    if size <= MAX_LINE or text.endswith(b"\n"):
        return text, size
    while not text.endswith(b"\n"):
        text = source.readline(MAX_LINE)
        if not text:
            break
        size += len(text)
    return None, size


def _event(text: bytes) -> Event:
    """Raises Invalid; its text ends with the id where one can be read."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as wrong:
        raise Invalid(f"not JSON (column {wrong.colno})") from None
    try:
        return event_from(fields)
    except Invalid as invalid:
        if isinstance(fields, dict) and is_hex64(fields.get("id")):
            raise Invalid(f"{invalid.text} (id {fields['id']})") from None
        raise


class _Note(msgspec.Struct, frozen=True):
    """What a bookmark file holds."""

    origin: str
    offset: int
    line: int
    tally: Tally


class Bookmark:
    """DIR/import-….resume: where an import of this file stopped.

    Its name comes from the file's path, size and time of change: another text begins anew.
    """

    def __init__(self, path: Path, size: int, origin: Origin) -> None:
        self._path = path
        self.size = size
        """Bytes of the file that is imported."""
        self._origin = origin.name

    @classmethod
    def of(cls, folder: Path, source: BinaryIO, path: Path, origin: Origin) -> Bookmark | None:
        """None for what cannot be read twice, as a pipe."""
        about = os.fstat(source.fileno())
        if not stat.S_ISREG(about.st_mode):
            return None
        key = f"{os.path.abspath(path)}\0{about.st_size}\0{about.st_mtime_ns}"
        digest = sha256(os.fsencode(key)).hexdigest()[:16]
        return cls(folder / f"import-{digest}.resume", about.st_size, origin)

    def read(self) -> Place:
        """The beginning when there is no note, none that can be read, or one of another origin."""
        try:
            note = msgspec.json.decode(self._path.read_bytes(), type=_Note)
        except (FileNotFoundError, msgspec.DecodeError):
            return Place()
        if note.origin != self._origin or not 0 <= note.offset <= self.size:
            return Place()
        return Place(note.offset, note.line, note.tally)

    def write(self, place: Place) -> None:
        # Not synced: a note that is lost or old repeats some lines, as duplicates.
        part = self._path.with_suffix(".part")
        note = _Note(self._origin, place.offset, place.line, place.tally)
        part.write_bytes(msgspec.json.encode(note))
        part.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
