"""What of a line does not leave the machine, on request: token usage, request ids, secrets.

A line that lost something is written anew (compact), and its event says what it lost: the export
of such a session is no longer the file, and can say so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.memory.fields import compact

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.memory.transcripts.lines import Fields, Line

TAG: Final = "stripped"


class Part(StrEnum):
    """What may be left out, as the tag `stripped` names it."""

    USAGE = "usage"
    REQUEST_IDS = "request-ids"
    SECRETS = "secrets"


_PART_OF: Final = {
    "usage": Part.USAGE,
    "modelUsage": Part.USAGE,
    "total_cost_usd": Part.USAGE,
    "costUSD": Part.USAGE,
    "totalTokens": Part.USAGE,
    "requestId": Part.REQUEST_IDS,
    "request_id": Part.REQUEST_IDS,
}
_OWN: Final = frozenset({"message", "data", "toolUseResult"})
"""Objects of claude-code's own; a tool's input is the work itself, whatever its names."""


@dataclass(frozen=True, slots=True)
class Stripping:
    """What to leave out."""

    parts: frozenset[Part] = frozenset()
    redacted: Callable[[str], str] | None = None
    """Any text without its secrets; goes with SECRETS, and with it alone."""

    def __post_init__(self) -> None:
        if (Part.SECRETS in self.parts) is not (self.redacted is not None):
            raise ValueError("SECRETS and `redacted` go together")


KEEP_ALL: Final = Stripping()


@dataclass(frozen=True, slots=True)
class Left:
    """What of a line may leave."""

    text: str | None
    """None: the line is no UTF-8."""
    fields: Fields | None
    lost: tuple[Part, ...] = ()


def left_of(line: Line, stripping: Stripping) -> Left:
    if not stripping.parts:
        return Left(line.text, line.fields)
    if line.fields is None:
        return _left_of_text(line, stripping)
    taken: set[Part] = set()
    try:
        fields = _without(line.fields, stripping, taken)
        if stripping.redacted is not None:
            fields = {name: _redacted(v, stripping.redacted, taken) for name, v in fields.items()}
        text = _written(fields) if taken else line.text
    except RecursionError:  # too deep to be looked into: nothing of it leaves
        return Left("", None, tuple(part for part in Part if part in stripping.parts))
    return Left(text, fields, tuple(part for part in Part if part in taken))


def _left_of_text(line: Line, stripping: Stripping) -> Left:
    """Of a line that is no JSON: secrets are taken from it all the same."""
    if stripping.redacted is None:
        return Left(line.text, None)
    text = line.data.decode(errors="replace")
    redacted = stripping.redacted(text)
    return Left(line.text, None) if redacted == text else Left(redacted, None, (Part.SECRETS,))


def _written(fields: Fields) -> str:
    try:
        return compact(fields)
    except TypeError:  # halves of surrogate pairs, deep nesting: orjson writes neither
        return json.dumps(fields, separators=(",", ":"))


def _without(fields: Fields, stripping: Stripping, taken: set[Part]) -> dict[str, object]:
    left: dict[str, object] = {}
    for name, value in fields.items():
        part = _PART_OF.get(name)
        if part in stripping.parts:
            taken.add(part)
        elif name in _OWN and isinstance(value, dict):
            left[name] = _without(value, stripping, taken)
        else:
            left[name] = value
    return left


def _redacted(value: object, redacted: Callable[[str], str], taken: set[Part]) -> object:
    if isinstance(value, str):
        text = redacted(value)
        if text != value:
            taken.add(Part.SECRETS)
        return text
    if isinstance(value, list):
        return [_redacted(item, redacted, taken) for item in value]
    if isinstance(value, dict):
        return {name: _redacted(item, redacted, taken) for name, item in value.items()}
    return value
