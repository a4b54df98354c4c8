"""A conversation in a terminal: messages, and tool calls shortened to one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from rich.text import Text

from relay.cli.options import printable
from relay.memory.fields import compact
from relay.memory.times import utc
from relay.memory.transcripts.display import (
    Message,
    Permission,
    Role,
    ToolUse,
    entries,
    mode_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from relay.memory.transcripts.display import Entry, Note

_STYLES: Final = {
    Role.USER: "bold green",
    Role.ASSISTANT: "bold cyan",
    Role.TOOL_CALL: "yellow",
    Role.TOOL_RESULT: "yellow",
    Role.PERMISSION_REQUEST: "bold magenta",
}
_SHORT: Final = 100
"""Length of a shortened line."""


def render(notes: Iterable[Note], *, is_full: bool) -> Iterator[Text]:
    """One block per entry: time, role, content."""
    for entry in entries(notes):
        yield from _render(entry, is_full=is_full)


def _render(entry: Entry, *, is_full: bool) -> Iterator[Text]:
    match entry:
        case Message(note):
            if is_full or not note.is_quiet:
                yield _block(note, _text_of(note), is_full=is_full)
        case ToolUse(call, output):
            if call is None:
                lines = [entry.name]
            else:
                lines = [call.content if is_full else _shortened(call.content)]
            if output is not None:
                lines.append(_output(output.summary, output.text, is_full=is_full))
            first = call or (output.note if output is not None else None)
            if first is not None:
                yield _block(first, "\n".join(lines), is_full=is_full)
        case Permission(request, tool_name, tool_input, decision):
            text = f"may {tool_name} run? {_shortened(compact(dict(tool_input)))}"
            if decision is None:
                text += "\n→ no answer"
            else:
                text += "\n→ allowed" if decision.is_allowed else "\n→ denied"
                text += f": {decision.message}" if decision.message else ""
            yield _block(request, text, is_full=is_full)
        case _:
            assert_never(entry)


def _text_of(note: Note) -> str:
    if note.role is Role.SET_PERMISSION_MODE:
        return f"permission mode: {mode_of(note) or 'unknown'}"
    return note.content


def _output(summary: str, text: str, *, is_full: bool) -> str:
    if is_full:
        return "\n".join(f"→ {part}" for part in (summary, text) if part) or "→ nothing"
    lines = text.count("\n") + 1 if text else 0
    text = summary or text
    more = f" (+{lines - 1} lines)" if lines > 1 and not summary else ""
    return f"→ {_shortened(text)}{more}"


def _block(note: Note, content: str, *, is_full: bool) -> Text:
    text = Text()
    text.append(f"{utc(note.ms // 1000)} ", style="dim")
    text.append(note.role.value, style=_STYLES.get(note.role, "dim"))
    if note.model is not None and is_full:
        text.append(f" {printable(note.model)}", style="dim")
    for line in content.splitlines():
        text.append(f"\n  {printable(line)}")
    if note.is_cut:
        text.append("\n  (truncated; `rookery session export` has the full text)", style="dim")
    text.append("\n")
    return text


def _shortened(text: str) -> str:
    line = next(iter(text.splitlines()), "")
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"
