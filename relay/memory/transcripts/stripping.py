"""Stripping: removes token usage, request ids, permission modes or secrets from lines before they
are sent. What names the machine is removed with the paths (`paths`).

A changed line is serialised anew (compact), and its event names the stripped parts, so that an
export can report that it differs from the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from relay.memory.fields import compact
from relay.memory.junk import known_formats

if TYPE_CHECKING:
    from relay.memory.transcripts.lines import Fields, Line

TAG: Final = "stripped"


class Part(StrEnum):
    """A part that can be stripped: a value of tag `stripped`."""

    USAGE = "usage"
    REQUEST_IDS = "request-ids"
    SECRETS = "secrets"
    PERMISSION_MODE = "permission-mode"
    MACHINE = "machine"
    """Home directories, and working directories outside of the session's: see `HidingTokens`."""


_PART_OF: Final = {
    "usage": Part.USAGE,
    "modelUsage": Part.USAGE,
    "total_cost_usd": Part.USAGE,
    "costUSD": Part.USAGE,
    "totalTokens": Part.USAGE,
    "requestId": Part.REQUEST_IDS,
    "request_id": Part.REQUEST_IDS,
    "permissionMode": Part.PERMISSION_MODE,
}
_OF_PATHS: Final = frozenset({Part.MACHINE})
_OWN: Final = frozenset({"message", "data", "toolUseResult"})
"""claude-code's own objects. Fields of tool inputs are content and stay."""


@dataclass(frozen=True, slots=True)
class Stripping:
    """What to strip."""

    parts: frozenset[Part] = frozenset()


KEEP_ALL: Final = Stripping()
ONLY_SECRETS: Final = Stripping(frozenset({Part.SECRETS}))
HIDE_MACHINE: Final = Stripping(frozenset({Part.MACHINE}))


@dataclass(frozen=True, slots=True)
class StrippedLine:
    text: str | None
    """None: not UTF-8."""
    fields: Fields | None
    stripped: tuple[Part, ...] = ()


def strip(line: Line, stripping: Stripping) -> StrippedLine:
    if stripping.parts <= _OF_PATHS:
        return StrippedLine(line.text, line.fields)
    if line.fields is None:
        return _strip_text(line, stripping)
    removed: set[Part] = set()
    try:
        fields = _without(line.fields, stripping, removed)
        if Part.SECRETS in stripping.parts:
            # Known formats only: ids of tools and messages are random and would look like secrets.
            hidden = _hidden(line.data)
            redacted, rest = known_formats().redacted([fields, hidden])
            if redacted != fields or rest != hidden:
                removed.add(Part.SECRETS)
            fields = redacted
        text = _serialised(fields) if removed else line.text
    except RecursionError:  # nested too deeply to check: send nothing of it
        parts = stripping.parts - _OF_PATHS
        return StrippedLine("", None, tuple(part for part in Part if part in parts))
    return StrippedLine(text, fields, tuple(part for part in Part if part in removed))


def _hidden(data: bytes) -> list[Fields]:
    """The fields of JSON objects that have a later one of their name: no parser shows them, but the
    text has them until it is serialised anew."""
    hidden: list[Fields] = []

    def object_of(pairs: list[tuple[str, object]]) -> Fields:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            hidden.extend({name: value} for name, value in pairs if fields[name] is not value)
        return fields

    # Numbers as text: Python refuses to read those of more than 4,300 digits.
    json.loads(data, object_pairs_hook=object_of, parse_int=str, parse_float=str)
    return hidden


def _strip_text(line: Line, stripping: Stripping) -> StrippedLine:
    """For lines that are no JSON: secrets only."""
    if Part.SECRETS not in stripping.parts:
        return StrippedLine(line.text, None)
    text, is_redacted = known_formats().filtered(line.data.decode(errors="replace"))
    return (
        StrippedLine(text, None, (Part.SECRETS,)) if is_redacted else StrippedLine(line.text, None)
    )


def _serialised(fields: Fields) -> str:
    try:
        return compact(fields)
    except TypeError:  # orjson rejects lone surrogates and deep nesting
        return json.dumps(fields, separators=(",", ":"))


def _without(fields: Fields, stripping: Stripping, removed: set[Part]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name, value in fields.items():
        part = _PART_OF.get(name)
        if part in stripping.parts:
            removed.add(part)
        elif name in _OWN and isinstance(value, dict):
            kept[name] = _without(value, stripping, removed)
        else:
            kept[name] = value
    return kept
