"""A rolling summary made of the last exchanges, and how long the texts in memory are. A-27."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.memory.aman.records import Summary

MOST_OF_A_TEXT: Final = 160
MOST_OF_A_TOOL: Final = 2000
MOST_OF_A_SUMMARY: Final = 1200
"""All three in characters."""
MOST_EXCHANGES: Final = 8

_USER: Final = "U: "
_ASSISTANT: Final = "A: "
_ELLIPSIS: Final = "..."


def append_exchange(summary: Summary, user: str, assistant: str) -> Summary:
    """The summary with one exchange more, the oldest dropped as far as needed.

    `updated_at` stays: the time is set when it is written.
    """
    exchanges = _exchanges(summary.summary)
    exchanges.append(f"{_USER}{_line(user)}\n{_ASSISTANT}{_line(assistant)}")
    exchanges = exchanges[-MOST_EXCHANGES:]
    while len(text := "\n".join(exchanges)) > MOST_OF_A_SUMMARY:
        del exchanges[0]
    return replace(summary, summary=text, message_count=summary.message_count + 1)


def tool_content(text: str) -> str:
    """As much of a tool's output as is remembered."""
    return cut(text, MOST_OF_A_TOOL)


def cut(text: str, most: int) -> str:
    """At most so many characters; `...` at the end, counted in, tells that there were more."""
    if len(text) <= most:
        return text
    return text[: max(most - len(_ELLIPSIS), 0)] + _ELLIPSIS[:most]


def _line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return cut(" ".join(line for line in lines if line), MOST_OF_A_TEXT)


def _exchanges(summary: str) -> list[str]:
    """Each begins with what the user said; what somebody wrote before the first is one too."""
    exchanges: list[list[str]] = []
    for line in summary.splitlines():
        if line.startswith(_USER.rstrip()) or not exchanges:
            exchanges.append([])
        exchanges[-1].append(line)
    return ["\n".join(lines) for lines in exchanges]
