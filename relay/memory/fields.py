"""JSON contents of memory records: writing, reading, and the first invalid field.

Refusals read `content.<field> must be <shape>`.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeGuard

import orjson

from relay.nostr.event import (
    MAX_ARRAYS,
    has_too_many_arrays,
    json_in,
    object_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NOT_AN_OBJECT: Final = "content is not a JSON object"
_TOO_MANY_ARRAYS: Final = f"content has over {MAX_ARRAYS:,} arrays and objects"
_MAX_NESTING: Final = 200
"""Levels."""
_MAX_WRITTEN: Final = 254
"""Levels that orjson writes."""


def no_object(content: str) -> str:
    """Why `object_in` and `storable_object` give None."""
    return _TOO_MANY_ARRAYS if has_too_many_arrays(content) else NOT_AN_OBJECT


def compact(value: object) -> str:
    """JSON without spaces or escaped UTF-8, keys in the order given."""
    return orjson.dumps(value).decode()


def compact_repaired(value: object) -> str:
    """`compact` for text of people and models: lone surrogates, as in text cut inside a character,
    become U+FFFD. No event can contain them. What is nested over 200 levels becomes `…`."""
    try:
        return compact(value)
    except TypeError:
        return compact(_repaired(value))


def repaired(text: str) -> str:
    """The text with U+FFFD for each lone surrogate (D-13)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text


def readable_object(content: str) -> dict[str, object] | None:
    """As `object_in`, for display: what `compact` cannot write is replaced, so that a text of
    anybody can be shown in any form."""
    fields = storable_object(content)
    if fields is None and (given := object_in(content)) is not None:
        fields = {repaired(name): _repaired(value) for name, value in given.items()}
    return fields


def _repaired(value: object, levels: int = _MAX_NESTING) -> object:
    match value:
        case str():
            return repaired(value)
        case list() | tuple() | dict() if levels == 0:
            return "…"
        case list() | tuple():
            return [_repaired(item, levels - 1) for item in value]
        case dict():
            return {repaired(name): _repaired(item, levels - 1) for name, item in value.items()}
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
    return value


def storable_object(content: str) -> dict[str, object] | None:
    """As `object_in`, but only what `compact` and files can store, also as a part of something
    larger: no lone surrogates, no nesting over 200 levels. For readers that keep the value."""
    try:
        value = json_in(content)
    except ValueError:
        return None
    if content.count("[") + content.count("{") > _MAX_NESTING and _is_deep(value):
        return None
    return value if isinstance(value, dict) else None


def _is_deep(value: object) -> bool:
    # Written by orjson, not looked through in Python: 2 ms for 400,000 characters, not 30.
    for _ in range(_MAX_WRITTEN - _MAX_NESTING):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def whole_number(text: str | None) -> int | None:
    """A non-negative integer in ASCII digits, as in tags; None for anything else."""
    if text is not None and text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return None


def decoded(text: str) -> bytes | None:
    """The bytes of padded standard base64; None for anything else."""
    try:
        data = b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return None
    # Python accepts superfluous padding.
    return data if len(text) == 4 * -(-len(data) // 3) else None


def is_integer(value: object) -> TypeGuard[int]:
    """A JSON integer; not `true` (A-04)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_pairs(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, list) and len(i) == 2 for i in value)


def _is_string_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


class Shape(Enum):
    """The type of a field: its name in refusals, and the test."""

    STRING = "a string", lambda value: isinstance(value, str)
    COUNT = "an integer", _is_count
    """Non-negative."""
    INTEGER = "an integer", is_integer
    BOOLEAN = "a boolean", lambda value: isinstance(value, bool)
    STRINGS = "an array of strings", _are_strings
    PAIRS = "an array of pairs", _are_pairs
    STRING_MAP = "an object of strings", _is_string_map
    OBJECT = "an object", lambda value: isinstance(value, dict)
    STRING_OR_NULL = "a string or null", lambda value: value is None or isinstance(value, str)
    """A missing field counts as null."""
    OBJECT_OR_NULL = "an object or null", lambda value: value is None or isinstance(value, dict)

    def __init__(self, words: str, fits: Callable[[object], bool]) -> None:
        self.words = words
        self.fits = fits


class Need(Enum):
    """Whether a field may be missing or null."""

    REQUIRED = "must be there"
    OPTIONAL = "may be missing or null"
    IF_PRESENT = "may be missing, not null"


FieldSpec = tuple[str, Shape, Need]


def first_fault(fields: Mapping[str, object], specs: Iterable[FieldSpec]) -> str | None:
    """The refusal for the first invalid field; None if all are valid."""
    for name, shape, need in specs:
        value = fields.get(name)
        if value is None and (
            need is Need.OPTIONAL or (need is Need.IF_PRESENT and name not in fields)
        ):
            continue
        if not shape.fits(value):
            return f"content.{name} must be {shape.words}"
    return None
