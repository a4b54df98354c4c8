"""Reading an import file in batches, and the outcome of each line."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from math import inf
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, BinaryIO, Final, assert_never

import msgspec
import orjson

from relay.errors import Invalid, Prefix, Refused, WriteOutcome, kind_of_reason, ok_reply
from relay.files import content_of
from relay.lifecycle.rows import address_slot
from relay.nostr.event import Event, event_from, is_hex64
from relay.nostr.kinds import DELETION, RELAY_SIGNED, is_ephemeral
from relay.write.candidate import named_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Set
    from pathlib import Path

    from relay.facts import Origin
    from relay.lifecycle.rows import Slot
    from relay.write.candidate import NamedEvents

MAX_LINE: Final = 4 * 2**20
"""Bytes of one line of an import."""
_MAX_REASONS: Final = 50
_BATCH_EVENTS: Final = 512
_BATCH_BYTES: Final = 8 * 2**20
_BATCH_LINES: Final = 4096
"""Bounds batches of refused or blank lines."""
_MAX_WAITING: Final = 1_000_000
"""Names that `lines_before_targets` keeps, each as often as it is named: some 250 MB."""


@dataclass(slots=True)
class Reason:
    count: int
    first_line: int


@dataclass(slots=True)
class Tally:
    """Outcomes so far, including earlier runs of a resumed import."""

    read: int = 0
    stored: int = 0
    passed_on: int = 0
    duplicates: int = 0
    superseded: int = 0
    left_out: int = 0
    refused: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Reason → refusals; at most `_MAX_REASONS`, further ones are counted together."""

    def __str__(self) -> str:
        parts = [f"{self.read} read", f"{self.stored} stored"]
        if self.passed_on:
            parts.append(f"{self.passed_on} passed on")
        parts.append(f"{self.duplicates} duplicate{'' if self.duplicates == 1 else 's'}")
        if self.superseded:
            parts.append(f"{self.superseded} superseded")
        if self.left_out:
            parts.append(f"{self.left_out} left out")
        parts.append(f"{self.refused} refused")
        return ", ".join(parts)

    def refuse(self, said: str, line: int) -> None:
        self.add(Outcome.REFUSED)
        text = kind_of_reason(said)
        if text not in self.reasons and len(self.reasons) >= _MAX_REASONS:
            text = "other reasons"
        reason = self.reasons.setdefault(text, Reason(0, line))
        reason.count += 1

    def add(self, outcome: Outcome) -> None:
        self.read += 1
        match outcome:
            case Outcome.STORED:
                self.stored += 1
            case Outcome.PASSED_ON:
                self.passed_on += 1
            case Outcome.DUPLICATE:
                self.duplicates += 1
            case Outcome.SUPERSEDED:
                self.superseded += 1
            case Outcome.LEFT_OUT:
                self.left_out += 1
            case Outcome.REFUSED:
                self.refused += 1
            case _:
                assert_never(outcome)


class Outcome(Enum):
    """Outcome of one line."""

    STORED = auto()
    PASSED_ON = auto()
    """Ephemeral: delivered to subscriptions, not stored."""
    DUPLICATE = auto()
    SUPERSEDED = auto()
    LEFT_OUT = auto()
    """A group state or notice signed by another relay: each relay signs its own."""
    REFUSED = auto()


def outcome_of(event: Event, answer: tuple[bool, str]) -> Outcome:
    """The outcome, from the OK of this event."""
    accepted, text = answer
    is_signed_here = answer == ok_reply(WriteOutcome.REGENERATED)
    if is_signed_here or (event.kind in RELAY_SIGNED and text.startswith(f"{Prefix.RESTRICTED}:")):
        return Outcome.LEFT_OUT
    is_duplicate = text.startswith("duplicate:")
    if accepted:
        if is_duplicate:
            return Outcome.DUPLICATE
        return Outcome.PASSED_ON if is_ephemeral(event.kind) else Outcome.STORED
    return Outcome.SUPERSEDED if is_duplicate else Outcome.REFUSED


@dataclass(slots=True)
class Place:
    """Progress of an import: everything after this byte and line is still to do."""

    offset: int = 0
    line: int = 0
    tally: Tally = field(default_factory=Tally)
    last: str | None = None
    """Id of the last event that the store has acknowledged to have."""
    other_groups: set[str] = field(default_factory=set)
    """Groups of the file that are not here, or whose ids are those of other groups here."""


@dataclass(slots=True)
class Batch:
    """A batch of lines: events, refusals and end position."""

    offset: int
    line: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends what waits inside. asyncio's handler would only cancel the task, at its next
    `await`: a read of a pipe may wait for ever."""
    before = signal.getsignal(signal.SIGINT)
    # Else it is ignored, as in the background, or is for another thread.
    if not (callable(before) and current_thread() is main_thread()):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@_interruptible()
def batch_of(source: BinaryIO, place: Place) -> Batch | None:
    """The lines after `place`, up to the batch limits; None at the end of the file."""
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


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a file."""

    numbers: Set[int] = frozenset()
    after: float = inf
    """After this line all that name other events are meant too."""

    def __bool__(self) -> bool:
        return bool(self.numbers) or self.after < inf

    def has(self, line: int, event: Event) -> bool:
        return line in self.numbers or (line > self.after and _named_by(event) is not None)


def lines_before_targets(source: BinaryIO, among: Lines | None = None) -> Lines:
    """The lines of events without `h` that name an event of a later line. `among`: only those, and
    both. Reads the file from its start.

    A running relay would show them to everybody until it has the event whose group they belong to
    (N29-106).
    """
    source.seek(0)
    numbers: set[int] = set()
    after = inf
    waiting: dict[str | Slot, list[int]] = {}
    """By the id or address that is named."""
    kept = 0
    place = Place()
    while batch := batch_of(source, place):
        for line, event in batch.events:
            if among is not None and not among.has(line, event):
                continue
            numbers.update(waiting.pop(event.id, ()))
            slot = address_slot(event)
            if slot is not None:
                numbers.update(waiting.pop(slot, ()))
            named = _named_by(event)
            if named is None or line > after:
                continue
            if kept >= _MAX_WAITING:
                after = line - 1
                continue
            targets: tuple[str | Slot, ...] = (*named.ids, *named.slots)
            kept += len(targets)
            for target in targets:
                waiting.setdefault(target, []).append(line)
        place = Place(batch.offset, batch.line)
    return Lines(numbers, after)


def _named_by(event: Event) -> NamedEvents | None:
    """What an event names that may belong to the group of what it names (N29-106)."""
    if event.has_tag("h") or address_slot(event) is not None:
        return None
    # A deletion keeps away what comes after it.
    return None if event.kind == DELETION else named_events(event)


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
    """Raises Invalid; the text ends with the event id if it is readable."""
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
    """Content of the progress file."""

    origin: str
    offset: int
    line: int
    tally: Tally
    last: str | None = None
    other_groups: frozenset[str] = frozenset()


class ImportProgress:
    """DIR/import-….resume: how far an import of a file has come.

    The name derives from the path, size and mtime of the file: a changed file starts over.
    """

    def __init__(self, path: Path, size: int, origin: Origin) -> None:
        self._path = path
        self.size = size
        """Size of the imported file in bytes."""
        self._origin = origin.name

    @classmethod
    def of(
        cls, folder: Path, source: BinaryIO, path: Path, origin: Origin
    ) -> ImportProgress | None:
        """None for files that cannot be read twice, such as pipes."""
        about = os.fstat(source.fileno())
        if not stat.S_ISREG(about.st_mode):
            return None
        key = f"{os.path.abspath(path)}\0{about.st_size}\0{about.st_mtime_ns}"
        digest = sha256(os.fsencode(key)).hexdigest()[:16]
        return cls(folder / f"import-{digest}.resume", about.st_size, origin)

    def read(self) -> Place:
        """The saved place; the start if there is none, it is unreadable, or of another origin."""
        try:
            note = msgspec.json.decode(content_of(self._path), type=_Note)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Place()
        if note.origin != self._origin or not 0 <= note.offset <= self.size:
            return Place()
        return Place(note.offset, note.line, note.tally, note.last, set(note.other_groups))

    def write(self, place: Place) -> None:
        # Not synced: a lost or old progress file repeats some lines, as duplicates.
        part = self._path.with_suffix(".part")
        others = frozenset(place.other_groups)
        note = _Note(self._origin, place.offset, place.line, place.tally, place.last, others)
        try:
            part.unlink(missing_ok=True)  # perhaps a link
            with part.open("xb") as file:
                file.write(msgspec.json.encode(note))
            part.replace(self._path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
