"""Parameters of a tool: their JSON schema, and validation of call arguments.

Optional arguments may be missing or null. A number above its maximum is clamped, as nmem does
(M-29). Other faults raise ToolFault, which names the argument for the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, assert_never

from relay.client.settings import suggestion
from relay.errors import RookeryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST: Final = 2**63 - 1
"""Largest integer the cache can store."""
_CAPITAL: Final = re.compile(r"[A-Z]")


class ToolFault(RookeryError):
    """A failed call; the text is for the calling model."""


class Kind(Enum):
    """Type of an argument: JSON Schema name, and text for errors."""

    TEXT = "string", "a string"
    INTEGER = "integer", "an integer"
    NUMBER = "number", "a number"
    FLAG = "boolean", "a boolean"
    IDS = "array", "an array of integers"

    def __init__(self, json_type: str, words: str) -> None:
        self.json_type = json_type
        self.words = words


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    name: str
    """Name in the schema; the keyword is the same in snake_case."""
    kind: Kind
    description: str
    is_required: bool = False
    default: float | str | None = None
    minimum: int | None = None
    """Smaller values are a fault."""
    maximum: int | None = None
    """Larger values are clamped."""
    choices: tuple[str, ...] = ()
    """Published in the schema; the tool itself checks the value."""

    @property
    def keyword(self) -> str:
        return _CAPITAL.sub(lambda found: f"_{found[0].lower()}", self.name)

    def schema(self) -> dict[str, Any]:
        """JSON Schema. No `maximum`, since larger values are clamped."""
        schema: dict[str, Any] = {"type": self.kind.json_type, "description": self.description}
        if self.kind is Kind.IDS:
            schema["items"] = {"type": "integer"}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        return schema


def input_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {each.name: each.schema() for each in parameters},
        "required": [each.name for each in parameters if each.is_required],
        "additionalProperties": False,
    }


def arguments_in(parameters: Sequence[Parameter], given: Mapping[str, object]) -> dict[str, Any]:
    """A value for each parameter, by keyword. Raises ToolFault."""
    names = [each.name for each in parameters]
    for name in given:
        if name not in names:
            raise ToolFault(f"unknown argument {name[:40]!r}; {suggestion(name, names)}")
    return {each.keyword: _value(each, given.get(each.name)) for each in parameters}


def _value(parameter: Parameter, value: object) -> object:
    if value is None:
        if parameter.is_required:
            raise ToolFault(f"{parameter.name} is missing: {parameter.description}")
        return parameter.default
    if not _fits(parameter.kind, value):
        raise ToolFault(f"{parameter.name} must be {parameter.kind.words}")
    if parameter.kind is Kind.INTEGER:
        value = int(value)  # type: ignore[call-overload]  # checked by _fits
    if parameter.minimum is not None and value < parameter.minimum:  # type: ignore[operator]
        raise ToolFault(f"{parameter.name} must be at least {parameter.minimum}")
    if parameter.maximum is not None and value > parameter.maximum:  # type: ignore[operator]
        return parameter.maximum
    return value


def _fits(kind: Kind, value: object) -> bool:
    match kind:
        case Kind.TEXT:
            return isinstance(value, str) and "\0" not in value
        case Kind.INTEGER:
            return _is_whole(value)
        case Kind.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Kind.FLAG:
            return isinstance(value, bool)
        case Kind.IDS:
            return isinstance(value, list) and all(_is_whole(each) for each in value)
        case _:
            assert_never(kind)


def _is_whole(value: object) -> bool:
    """JSON does not distinguish 5 from 5.0; `true` is no integer."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) < LARGEST
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
