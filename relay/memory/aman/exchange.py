"""A rolling summary of the last exchanges, and the length limits of texts (A-27)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.memory.aman.records import Summary

MAX_TEXT: Final = 160
MAX_TOOL: Final = 2000
MAX_SUMMARY: Final = 1200
"""Characters, as the two above."""
MAX_EXCHANGES: Final = 8

_USER: Final = "U: "
_ASSISTANT: Final = "A: "
_ELLIPSIS: Final = "..."


def append_exchange(summary: Summary, user: str, assistant: str) -> Summary:
    """The summary with one more exchange, without the oldest ones that no longer fit.

    `updated_at` is unchanged: it is set on writing.
    """
    exchanges = _exchanges(summary.summary)
    exchanges.append(f"{_USER}{_line(user)}\n{_ASSISTANT}{_line(assistant)}")
    exchanges = exchanges[-MAX_EXCHANGES:]
    while len(text := "\n".join(exchanges)) > MAX_SUMMARY:
        del exchanges[0]
    return replace(summary, summary=text, message_count=summary.message_count + 1)


def tool_content(text: str) -> str:
    """The stored part of a tool's output."""
    return cut(text, MAX_TOOL)


def cut(text: str, max_chars: int) -> str:
    """At most `max_chars` characters; a cut text ends with `...`, which counts."""
    if len(text) <= max_chars:
        return text
    return text[: max(max_chars - len(_ELLIPSIS), 0)] + _ELLIPSIS[:max_chars]


def _line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return cut(" ".join(line for line in lines if line), MAX_TEXT)


def _exchanges(summary: str) -> list[str]:
    """Each begins with a user line; text before the first one counts as an exchange."""
    exchanges: list[list[str]] = []
    for line in summary.splitlines():
        if line.startswith(_USER.rstrip()) or not exchanges:
            exchanges.append([])
        exchanges[-1].append(line)
    return ["\n".join(lines) for lines in exchanges]
