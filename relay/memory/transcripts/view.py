"""A conversation as blocks, for a terminal and for a web page: data only.

Texts are as others wrote them: the code that displays them must escape them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import unified_diff
from enum import StrEnum
from typing import TYPE_CHECKING, Final, assert_never

from relay.memory.fields import compact, readable_object
from relay.memory.transcripts.blocks import output_text
from relay.memory.transcripts.copies import line_in
from relay.memory.transcripts.display import Message, Permission, Role, ToolUse, entries, mode_of
from relay.memory.transcripts.lines import inner, name_in
from relay.memory.transcripts.paths import MAX_GROWTH, Directory
from relay.memory.transcripts.sources import Source, source_of
from relay.nostr import kinds
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.memory.transcripts.display import Note
    from relay.memory.transcripts.lines import Fields
    from relay.nostr.event import Event

MAX_LINES: Final = 2_000
"""Lines of one block; more are counted only."""
_MAX_HEAD: Final = 240
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_ARGUMENTS: Final = (
    "file_path",
    "notebook_path",
    "path",
    "command",
    "pattern",
    "query",
    "url",
    "description",
)
"""The argument that says most about a tool call: the first of these that is given."""


class Speaker(StrEnum):
    USER = "user"
    AGENT = "agent"
    TOOL = "tool"
    OTHER = "other"


class Tone(StrEnum):
    """The purpose of a line, for its style."""

    PLAIN = "plain"
    DIM = "dim"
    ADDED = "added"
    REMOVED = "removed"
    HUNK = "hunk"
    """The place of a change in a diff."""
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Block:
    """A unit of display: a message, a tool call with its result, or a permission."""

    id: str
    """Id of its first note."""
    author: str
    """64 hex, of all its notes; a decision of another key names that key."""
    speaker: Speaker
    title: str
    """The role; for a line of no role its type."""
    ms: int
    """Unix milliseconds."""
    model: str | None
    head: tuple[str, ...]
    """Lines of the folded block: a tool call, and its result. Empty for other blocks."""
    lines: tuple[Line, ...]
    folds: bool
    """Whether only the head is shown at first."""
    is_quiet: bool
    """Whether it may be hidden."""
    is_cut: bool
    """Whether the relay has only the beginning of the text."""

    def contains(self, words: str) -> bool:
        """`words`: casefolded."""
        texts = (*self.head, *(line.text for line in self.lines))
        return any(words in text.casefold() for text in texts)


def blocks(notes: Iterable[Note], lines: Mapping[str, Fields] | None = None) -> list[Block]:
    """`lines`: id of a line's first note → the line. With them tool calls are whole, and lines of
    other types than messages have a text."""
    lines = {} if lines is None else lines
    notes = list(notes)
    listed = entries(notes)
    # What another key wrote under the same tool id says nothing of this call.
    by_author = [(note.author, lines[note.id]) for note in notes if note.id in lines]
    tools = _Tools(by_author, _PAIRS + _PAIRS_OF_ENTRY * len(listed))
    found = []
    for entry in listed:
        match entry:
            case Message(note):
                found.append(_message(note, lines.get(note.id)))
            case ToolUse():
                found.append(_tool(entry, tools))
            case Permission(request, tool_name, tool_input, decision):
                said = [f"may {tool_name} run? {_short(compact(dict(tool_input)))}"]
                if decision is None:
                    said.append("→ no answer")
                else:
                    answer = "→ allowed" if decision.is_allowed else "→ denied"
                    if decision.note.author != request.author:
                        answer += f" by {npub(decision.note.author)}"
                    said.append(f"{answer}: {decision.message}" if decision.message else answer)
                found.append(_block(request, Speaker.OTHER, _Lines("\n".join(said))))
            case _:
                assert_never(entry)
    return found


def lines_of_notes(
    notes: Iterable[Event], archive: Iterable[Event], directory: str
) -> dict[str, Fields]:
    """Id of a note → the line that begins with it: from the archive events of the note's author,
    who alone may say what the line is, or from the note itself, as in the original's form.

    `directory`: of the session, as it is to be shown. Lines beyond `MAX_GROWTH` keep their tokens.
    """
    authors = {note.id: note.pubkey for note in notes}
    sources: dict[str, list[Source]] = {}
    for event in (*archive, *notes):
        id_ = event.tag("e") or "" if event.kind == kinds.SOURCE_DATA else event.id
        if authors.get(id_) == event.pubkey and event.has_tag("source-data"):
            source = source_of(event)
            if isinstance(source, Source):
                sources.setdefault(id_, []).append(source)
    paths = Directory(directory)
    growth = 0
    found: dict[str, Fields] = {}
    for id_, of_line in sources.items():
        line = line_in(of_line)[0]
        text = line.text
        if line.has_tokens:
            growth += paths.growth(text)
            text = paths.restored(text) if growth <= MAX_GROWTH else text
        fields = readable_object(text)
        if fields is not None:
            found[id_] = fields
    return found


def text_of(fields: Fields) -> str:
    """The text of a line that is no message: `summary`, `custom-title` and what else there is."""
    for name in (
        "summary",
        "customTitle",
        "aiTitle",
        "agentName",
        "lastPrompt",
        "title",
        "content",
    ):
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
    parts = _parts(inner(fields, "message"))
    thoughts = [text for part in parts if isinstance(text := part.get("thinking"), str)]
    if thoughts:
        return "\n".join(thoughts)
    if fields.get("type") in ("user", "assistant"):
        return ""
    left = {name: value for name, value in fields.items() if name not in _FRAME}
    return _short(compact(left)) if left else ""


_FRAME: Final = frozenset(
    {
        "type",
        "uuid",
        "parentUuid",
        "logicalParentUuid",
        "leafUuid",
        "sessionId",
        "timestamp",
        "cwd",
        "gitBranch",
        "version",
        "userType",
        "isSidechain",
        "slug",
        "isMeta",
        "entrypoint",
    }
)
"""Fields that most lines have."""


def _message(note: Note, fields: Fields | None) -> Block:
    content = note.content
    if note.role is Role.SET_PERMISSION_MODE:
        content = f"permission mode: {mode_of(note) or 'unknown'}"
    elif not content and fields is not None:
        content = text_of(fields)
        is_thought = note.role is Role.ASSISTANT and bool(content)
        tone = Tone.DIM if is_thought else Tone.PLAIN
        return _block(
            note, _speaker(note), _Lines(content, tone), is_quiet=is_thought or not content
        )
    return _block(note, _speaker(note), _Lines(content), is_quiet=note.is_quiet or not content)


def _tool(entry: ToolUse, tools: _Tools) -> Block:
    call, output = entry.call, entry.output
    first = call if call is not None or output is None else output.note
    assert first is not None
    # Shown once: anybody may name the same tool id in each of 500 notes.
    key = first.author, first.tool_id
    used = tools.calls.pop(key, None)
    body = _Lines()
    name, given = (entry.name, None) if used is None else used
    if call is None:
        head = [name]
    elif given is None:
        head = [_short(call.content)]
    else:
        head = [f"{name}: {_argument(given)}"]
        _add_input(body, name, given, tools.patches.pop(key, None), tools)
    cut = call is not None and call.is_cut
    if output is not None:
        whole = tools.outputs.pop(key, None)
        text, is_fault = (output.text, False) if whole is None else whole
        if output.summary:
            body.add([f"→ {output.summary}"], Tone.DIM)
        elif not text:
            body.add(["→ nothing"], Tone.DIM)
        _add_output(body, text, Tone.FAULT if is_fault else Tone.PLAIN)
        cut = cut or (whole is None and output.note.is_cut)
        head.append(_result(output.summary or text, is_fault=is_fault))
    return _block(first, Speaker.TOOL, body, head=head, is_cut=cut)


def _result(text: str, *, is_fault: bool) -> str:
    lines = text.splitlines()
    more = f" (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
    shown = lines[0] if lines else "nothing"
    return f"→ {'failed: ' if is_fault else ''}{_short(shown)}{more}"


def _block(
    note: Note,
    speaker: Speaker,
    lines: _Lines,
    *,
    head: Iterable[str] = (),
    is_quiet: bool = False,
    is_cut: bool | None = None,
) -> Block:
    more = lines.number - len(lines.first)
    if more:
        lines.first.append(Line(f"(+{more} lines)", Tone.DIM))
    return Block(
        id=note.id,
        author=note.author,
        speaker=speaker,
        title=note.label,
        ms=note.ms,
        model=note.model,
        head=tuple(head),
        lines=tuple(lines.first),
        folds=speaker is Speaker.TOOL,
        is_quiet=is_quiet,
        is_cut=note.is_cut if is_cut is None else is_cut,
    )


def _speaker(note: Note) -> Speaker:
    match note.role:
        case Role.USER:
            return Speaker.USER
        case Role.ASSISTANT:
            return Speaker.AGENT
        case _:
            return Speaker.OTHER


class _Lines:
    """Lines of a block. Only those that are shown are made: a text may have 240,000 empty ones."""

    def __init__(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        self.first: list[Line] = []
        self.number = 0
        self.add(text.splitlines(), tone)

    def add(
        self, texts: Sequence[str], tone: Tone | Callable[[str], Tone], before: str = ""
    ) -> None:
        """`before`: what each begins with."""
        self.number += len(texts)
        for text in texts[: MAX_LINES - len(self.first)]:
            self.first.append(Line(before + text, tone if isinstance(tone, Tone) else tone(text)))


def _add_output(body: _Lines, text: str, tone: Tone) -> None:
    """A tool's output; as a diff if it is one."""
    is_diff = False

    def tone_of(line: str) -> Tone:
        nonlocal is_diff
        is_diff = is_diff or line.startswith("diff --git ") or _HUNK.match(line) is not None
        return _diff_tone(line) if is_diff else tone

    body.add(text.splitlines(), tone_of)


def _diff_tone(line: str) -> Tone:
    match line[:1]:
        case "@":
            return Tone.HUNK
        case "+":
            return Tone.ADDED
        case "-":
            return Tone.REMOVED
        case _:
            return Tone.PLAIN


def _add_input(
    body: _Lines, name: str, given: Fields, patch: list[object] | None, tools: _Tools
) -> None:
    """What a tool was given, as the first lines of the block; a change of a file as a diff."""
    if patch is not None:
        for hunk in patch:
            _add_hunk(body, hunk)
        return
    edits = given.get("edits")
    for change in (given, *(edits if isinstance(edits, list) else ())):
        if isinstance(change, dict) and body.number <= MAX_LINES:
            _add_diff(body, change, tools)
    if body.number:
        return
    if name == "Write" and isinstance(content := given.get("content"), str):
        body.add(content.splitlines(), Tone.ADDED, "+")
        return
    for field, value in given.items():
        text = value if isinstance(value, str) else compact(value)
        first, *rest = text.splitlines() or [""]
        body.add([f"{field}: {first}"], Tone.DIM)
        body.add(rest, Tone.DIM, "  ")


def _add_diff(body: _Lines, change: Fields, tools: _Tools) -> None:
    old, new = change.get("old_string"), change.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str):
        return
    before, after = old.splitlines(), new.splitlines()
    pairs = len(before) * len(after)
    if pairs > min(_MAX_COMPARED, tools.pairs_left):
        body.add(before, Tone.REMOVED, "-")
        body.add(after, Tone.ADDED, "+")
        return
    tools.pairs_left -= pairs
    compared = list(unified_diff(before, after, lineterm="", n=2))
    body.add(compared[2:], _diff_tone)


_MAX_COMPARED: Final = 4_096
"""Pairs of lines: comparing takes up to the third power of their number, 6 ms for 64 with 64."""
_PAIRS: Final = 20_000
"""Pairs that are compared for one conversation: one call may have a thousand edits."""
_PAIRS_OF_ENTRY: Final = 400
"""Added for each entry: 20 lines compared with 20, 0.6 ms."""


class _Tools:
    """Whole calls and results, from the lines; by author and tool id."""

    def __init__(self, lines: Iterable[tuple[str, Fields]], pairs_left: int) -> None:
        """`lines`: each with its author."""
        self.pairs_left = pairs_left
        self.calls: dict[tuple[str, str | None], tuple[str, Fields]] = {}
        self.outputs: dict[tuple[str, str | None], tuple[str, bool]] = {}
        """Text, and whether the tool failed."""
        self.patches: dict[tuple[str, str | None], list[object]] = {}
        for author, fields in lines:
            for part in _parts(inner(fields, "message")):
                self._add(author, fields, part)

    def _add(self, author: str, fields: Fields, part: Fields) -> None:
        match part.get("type"):
            case "tool_use":
                id_ = name_in(part, "id")
                if id_ is not None:
                    self.calls[author, id_] = name_in(part, "name") or "", inner(part, "input")
            case "tool_result":
                id_ = name_in(part, "tool_use_id")
                if id_ is not None:
                    text = output_text(part.get("content"))
                    self.outputs[author, id_] = text, part.get("is_error") is True
                    patch = inner(fields, "toolUseResult").get("structuredPatch")
                    if isinstance(patch, list) and patch:
                        self.patches[author, id_] = patch


def _add_hunk(body: _Lines, hunk: object) -> None:
    if isinstance(hunk, dict):
        numbers = [hunk.get(name) for name in ("oldStart", "oldLines", "newStart", "newLines")]
        body.add(["@@ -{},{} +{},{} @@".format(*numbers)], Tone.HUNK)
        lines = hunk.get("lines")
        if isinstance(lines, list):
            body.add([line for line in lines if isinstance(line, str)], _diff_tone)


def _argument(given: Fields) -> str:
    values = (given.get(name) for name in _ARGUMENTS)
    return _short(next((v for v in values if isinstance(v, str) and v), None) or compact(given))


def _parts(message: Fields) -> list[Fields]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _short(text: str) -> str:
    line = next(iter(text[: _MAX_HEAD + 1].splitlines()), "")
    return line if len(line) <= _MAX_HEAD else f"{line[: _MAX_HEAD - 1]}…"
