"""Assembly of a session file from its events, for any order of arrival (D-18, D-19, D-23, D-24).

Three formats are read: ours (1989 with `line`), notedeck's (1989 without), and the specification's
(`source-data` in the notes, ordered by reply chain).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from relay.errors import UserError
from relay.memory.fields import decoded, whole_number
from relay.memory.transcripts.blocks import note_texts
from relay.memory.transcripts.copies import line_in
from relay.memory.transcripts.lines import ENDS, Eol
from relay.memory.transcripts.notes import SOURCE
from relay.memory.transcripts.order import ordered
from relay.memory.transcripts.paths import MAX_GROWTH, with_field
from relay.memory.transcripts.sources import source_of
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.event import object_of_any_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from relay.memory.transcripts.copies import FileLine
    from relay.memory.transcripts.order import Ordered
    from relay.memory.transcripts.paths import Directory
    from relay.memory.transcripts.sources import Source
    from relay.nostr.event import Event


class Form(Enum):
    """Format of the events."""

    LINES = "1989, numbered by line"
    SEQUENCE = "1989 in the order of their seq"
    NOTES = "source-data in the notes"


@dataclass(frozen=True, slots=True)
class Assembly:
    """The assembled file of one session."""

    form: Form
    lines: tuple[FileLine, ...]
    faults: tuple[str, ...]
    """Missing and conflicting lines, one text each. With any fault the file is incomplete."""
    unread: tuple[UnreadableRecord, ...]
    notice: str | None = None
    """What is uncertain about the order of the lines."""
    author: str = ""
    """Who signed the lines, 64 hex; empty if not known."""

    @property
    def stripped(self) -> Counter[str]:
        """Stripped part → number of lines."""
        return Counter(part for line in self.lines for part in line.stripped)

    @property
    def relative(self) -> int:
        """Number of lines with relative paths that cannot be restored (D-23)."""
        return sum(_is_relative(line) and _may_name_paths(line) for line in self.lines)

    def file(self, directory: Directory | None, git_branch: str | None = None) -> Iterator[bytes]:
        """The file, line by line, without gaps.

        `directory`: replaces tokens and a `cwd` of `.`; with the original one the bytes are
        identical. `git_branch`: D-24. Raises UserError for tokens without a directory, and for more
        than `MAX_GROWTH`.
        """
        with_tokens = [line.text for line in self.lines if line.has_tokens]
        if directory is None and with_tokens:
            raise UserError("this session has paths to fill in: name a directory (--cwd)")
        if directory is not None and sum(map(directory.growth, with_tokens)) > MAX_GROWTH:
            raise UserError(
                f"the paths to fill in take over {MAX_GROWTH >> 20} MiB: name a short directory"
                " (--cwd)"
            )
        return (_data(line, directory, git_branch) + ENDS[line.eol] for line in self.lines)


def assembled(events: Iterable[Event]) -> Assembly:
    """The file of one session, from its events 1988 and 1989, in any order, with duplicates."""
    archive: list[Source] = []
    notes: list[Event] = []
    unread: list[UnreadableRecord] = []
    last_note = -1
    for event in events:
        if event.kind == kinds.SOURCE_DATA:
            source = source_of(event)
            if isinstance(source, UnreadableRecord):
                unread.append(source)
            else:
                archive.append(source)
        elif event.kind == kinds.CONVERSATION_NOTE:
            last_note = max(last_note, _number_of(event))
            notes.append(event)
    if any(source.line is not None for source in archive):
        lines, faults = _by_line(archive)
        if last_note > max(source.seq for source in archive):
            # An import stopped between notes and their line.
            faults.append("the lines of the last notes are missing")
        return Assembly(Form.LINES, lines, tuple(faults), tuple(unread))
    if archive:
        archive.sort(key=lambda source: (source.seq, source.event.created_at, source.event.id))
        return Assembly(Form.SEQUENCE, _in_order(archive), (), tuple(unread))
    chain = ordered(notes)
    lines = tuple(_of_notes(chain, unread))
    return Assembly(Form.NOTES, lines, (), tuple(unread), chain.notice if lines else None)


def _number_of(note: Event) -> int:
    """`seq` of a note from a line of a file; -1 for other notes."""
    seq = whole_number(note.tag("seq")) if note.tag("source") == SOURCE else None
    return -1 if seq is None else seq


def _by_line(archive: Sequence[Source]) -> tuple[tuple[FileLine, ...], list[str]]:
    of_line: dict[int, list[Source]] = {}
    for source in archive:
        if source.line is not None:
            of_line.setdefault(source.line, []).append(source)
    lines: list[FileLine] = []
    faults: list[str] = []
    expected = 1
    last = max(of_line)
    for number in sorted(of_line):
        if number == expected + 1:
            faults.append(f"line {expected} is missing")
        elif number > expected:
            faults.append(f"lines {expected} to {number - 1} are missing")
        expected = number + 1
        line, its_faults = line_in(of_line[number])
        lines.append(line)
        if line.eol is Eol.NONE and number != last:
            its_faults.append("its end is missing")  # it was the last line once
        faults += (f"line {number}: {fault}" for fault in its_faults)
    return tuple(lines), faults


def _in_order(archive: Iterable[Source]) -> tuple[FileLine, ...]:
    """Older formats: equal texts are one line, each ends with LF."""
    first_of: dict[str, Source] = {}
    for source in archive:
        first_of.setdefault(source.data, source)
    return tuple(line_in([source])[0] for source in first_of.values())


def _of_notes(chain: Ordered, unread: list[UnreadableRecord]) -> Iterator[FileLine]:
    """The lines in a chain of notes. The notes of one line may each have its text."""
    last_at: dict[str, int] = {}
    for at, note in enumerate(chain.events):
        if not note.has_tag("source-data"):
            continue
        source = source_of(note)
        if isinstance(source, UnreadableRecord):
            unread.append(source)
            continue
        before, last_at[source.data] = last_at.get(source.data), at
        if before is None or (chain.is_chain and not _is_same_line(source.data, at - before)):
            yield line_in([source])[0]


def _is_same_line(text: str, distance: int) -> bool:
    """Whether two notes of a chain with this text are blocks of one line, and not of two equal
    lines."""
    fields = object_of_any_size(text)
    if fields is None:
        return False
    return "uuid" in fields or (distance == 1 and len(note_texts(fields)) > 1)


def _data(line: FileLine, directory: Directory | None, git_branch: str | None) -> bytes:
    if line.is_base64:
        return decoded(line.text) or b""
    text = line.text
    if directory is not None:
        if line.has_tokens:
            text = directory.restored(text)
        elif _is_relative(line):
            text = with_field(text, "cwd", directory.path)
    if git_branch is not None:
        text = with_field(text, "gitBranch", git_branch)
    return text.encode()


def _is_relative(line: FileLine) -> bool:
    """Whether it is in the specification's format, whose paths were made relative."""
    if line.has_tokens or line.is_base64 or '"."' not in line.text:
        return False
    fields = object_of_any_size(line.text)
    return fields is not None and fields.get("cwd") == "."


def _may_name_paths(line: FileLine) -> bool:
    return "/" in line.text or "\\" in line.text
