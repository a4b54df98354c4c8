"""What a line says to a reader: the notes it makes, by role. MEMORY.md D-08, D-09."""

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
"""Characters of a tool's input and output that a note shows; the archive has all of them."""


class Said(NamedTuple):
    """One note to be."""

    role: str
    content: str
    """As it was parsed: it may have halves of surrogate pairs."""
    tool_id: str | None = None
    tool_name: str | None = None


def said(fields: Fields) -> list[Said]:
    """At least one; more than one where a line has several blocks."""
    match fields.get("type"):
        case "user":
            return _by_user(fields)
        case "assistant":
            return _by_assistant(fields)
        case "progress":
            return [Said("progress", _progress(fields))]
        case "queue-operation":
            operation = fields.get("operation")
            named = isinstance(operation, str) and operation
            text = f"[queue: {operation}]" if named else "[queue]"
            return [Said("queue-operation", text)]
        case "file-history-snapshot":
            return [Said("file-history-snapshot", "[file history snapshot]")]
        case "system":
            return [Said("system", _text(fields.get("content")))]
        case _:
            return [Said("unknown", "")]


def _by_user(fields: Fields) -> list[Said]:
    content = inner(fields, "message").get("content")
    if any(block.get("type") == "tool_result" for block in _blocks(content)):
        return list(_of_blocks("user", content))
    return [Said("user", _joined(content).removeprefix("Human: "))]


def _by_assistant(fields: Fields) -> list[Said]:
    content = inner(fields, "message").get("content")
    if isinstance(content, str):
        return [Said("assistant", content)]
    return list(_of_blocks("assistant", content)) or [Said("assistant", "")]


def _of_blocks(speaker: str, content: object) -> Iterator[Said]:
    for block in _blocks(content):
        match block.get("type"):
            case "text":
                yield Said(speaker, _text(block.get("text")))
            case "tool_use":
                name = name_in(block, "name")
                given = _cut(_spaced(block.get("input")), MAX_INPUT)
                yield Said("tool_call", f"{name or ''}: {given}", name_in(block, "id"), name)
            case "tool_result":
                shown = _cut(_output(block.get("content")), MAX_OUTPUT)
                yield Said("tool_result", shown, name_in(block, "tool_use_id"))


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
    """A message's own words."""
    if isinstance(content, str):
        return content
    return "".join(_text(b.get("text")) for b in _blocks(content) if b.get("type") == "text")


def _output(content: object) -> str:
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


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
