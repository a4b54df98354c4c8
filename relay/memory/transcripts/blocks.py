"""The readable texts of a line, by role: one note each (D-08, D-09)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.memory.transcripts.lines import inner, name_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from relay.memory.transcripts.lines import Fields

    Block = Mapping[str, object]

MAX_INPUT: Final = 200
MAX_OUTPUT: Final = 500
"""Characters of a tool's input and output in a note; the archive has the whole text."""


class NoteText(NamedTuple):
    """Role and content of one note."""

    role: str
    content: str
    """As parsed: may contain lone surrogates."""
    tool_id: str | None = None
    tool_name: str | None = None


def note_texts(fields: Fields) -> list[NoteText]:
    """One per block, at least one."""
    match fields.get("type"):
        case "user":
            return _by_user(fields)
        case "assistant":
            return _by_assistant(fields)
        case "progress":
            return [NoteText("progress", _progress(fields))]
        case "queue-operation":
            operation = fields.get("operation")
            named = isinstance(operation, str) and operation
            text = f"[queue: {operation}]" if named else "[queue]"
            return [NoteText("queue-operation", text)]
        case "file-history-snapshot":
            return [NoteText("file-history-snapshot", "[file history snapshot]")]
        case "system":
            return [NoteText("system", _text(fields.get("content")))]
        case _:
            return [NoteText("unknown", "")]


def _by_user(fields: Fields) -> list[NoteText]:
    content = inner(fields, "message").get("content")
    if any(block.get("type") == "tool_result" for block in _blocks(content)):
        return list(_of_blocks("user", content))
    return [NoteText("user", _joined(content).removeprefix("Human: "))]


def _by_assistant(fields: Fields) -> list[NoteText]:
    content = inner(fields, "message").get("content")
    if isinstance(content, str):
        return [NoteText("assistant", content)]
    return list(_of_blocks("assistant", content)) or [NoteText("assistant", "")]


def _of_blocks(speaker: str, content: object) -> Iterator[NoteText]:
    for block in _blocks(content):
        match block.get("type"):
            case "text":
                yield NoteText(speaker, _text(block.get("text")))
            case "tool_use":
                name = name_in(block, "name")
                given = _cut(_spaced(block.get("input")), MAX_INPUT)
                yield NoteText("tool_call", f"{name or ''}: {given}", name_in(block, "id"), name)
            case "tool_result":
                shown = _cut(output_text(block.get("content")), MAX_OUTPUT)
                yield NoteText("tool_result", shown, name_in(block, "tool_use_id"))


def _progress(fields: Fields) -> str:
    message = fields.get("message")
    text = _joined(message.get("content")) if isinstance(message, dict) else _text(message)
    if text:
        return text
    data = inner(fields, "data")
    words = [_text(data.get("type")), _text(data.get("hookName")) or _text(data.get("hookEvent"))]
    known = " ".join(word for word in words if word)
    return f"[progress: {known}]" if known else "[progress]"


def _blocks(content: object) -> list[Block]:
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def _joined(content: object) -> str:
    """The text blocks of a message."""
    if isinstance(content, str):
        return content
    return "".join(_text(b.get("text")) for b in _blocks(content) if b.get("type") == "text")


def output_text(content: object) -> str:
    """The text of a tool's result."""
    if not isinstance(content, list):
        return _text(content)
    return "\n".join(
        _text(part.get("text")) if part.get("type") == "text" else f"[{_text(part.get('type'))}]"
        for part in _blocks(content)
    )


def _spaced(value: object) -> str:
    """JSON with `", "` and `": "`."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "..."


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
