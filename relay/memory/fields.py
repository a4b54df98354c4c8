"""JSON contents of memory records: how they are written, read, and what is wrong with a field.

The texts are those of MEMORY.md's tables: `content.<field> must be <shape>`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as NotBase64
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeGuard

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NOT_AN_OBJECT: Final = "content is not a JSON object"


def compact(value: object) -> str:
    """The one way we write JSON: no spaces, UTF-8 as it is, keys in the order given."""
    return orjson.dumps(value).decode()


def compact_whole(value: object) -> str:
    """`compact`, of what people and models say: halves of surrogate pairs, as a text has them that
    was cut in the middle of a character, become U+FFFD. No event can hold them."""
    try:
        return compact(value)
    except TypeError:
        return compact(_whole(value))


def whole(text: str) -> str:
    """A text without halves of surrogate pairs: they become U+FFFD (D-13)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text


def _whole(value: object) -> object:
    match value:
        case str():
            return whole(value)
        case list() | tuple():
            return [_whole(item) for item in value]
        case dict():
            return {whole(name): _whole(item) for name, item in value.items()}
    return value


def object_in(content: str) -> dict[str, object] | None:
    """The fields of a text that is a JSON object; None when it is none."""
    if not content.lstrip(" \t\r\n").startswith("{"):
        return None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        # JSON that orjson does not read: nested over 1024 deep, halves of surrogate pairs.
        try:
            value = json.loads(content, parse_constant=_no_json)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def object_to_keep(content: str) -> dict[str, object] | None:
    """As `object_in`, but only what `compact` can write again and a file can take: no halves of
    surrogate pairs, nothing nested over 1024 deep. For readers, who keep what they read."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _no_json(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are Python's, not JSON's


def whole_number(text: str | None) -> int | None:
    """A number from 0 on in plain digits, as tags spell it."""
    if text is not None and text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return None


def decoded(text: str) -> bytes | None:
    """The bytes of standard base64, padded; None for anything else."""
    try:
        data = b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return None
    # Python takes more padding than there is to fill.
    return data if len(text) == 4 * -(-len(data) // 3) else None


def is_integer(value: object) -> TypeGuard[int]:
    """JSON's integers; `true` is none (A-04)."""
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
    """What a field must be: the words of a refusal, and the test."""

    STRING = "a string", lambda value: isinstance(value, str)
    COUNT = "an integer", _is_count
    """From 0 on."""
    INTEGER = "an integer", is_integer
    BOOLEAN = "a boolean", lambda value: isinstance(value, bool)
    STRINGS = "an array of strings", _are_strings
    PAIRS = "an array of pairs", _are_pairs
    STRING_MAP = "an object of strings", _is_string_map
    OBJECT = "an object", lambda value: isinstance(value, dict)
    STRING_OR_NULL = "a string or null", lambda value: value is None or isinstance(value, str)
    """Missing is null."""
    OBJECT_OR_NULL = "an object or null", lambda value: value is None or isinstance(value, dict)

    def __init__(self, words: str, fits: Callable[[object], bool]) -> None:
        self.words = words
        self.fits = fits


class Need(Enum):
    """Whether a field may be missing or null."""

    REQUIRED = "must be there"
    OPTIONAL = "may be missing or null"
    IF_PRESENT = "may be missing, not null"


Wanted = tuple[str, Shape, Need]


def first_fault(fields: Mapping[str, object], wanted: Iterable[Wanted]) -> str | None:
    """What is wrong with the first field that is not as wanted; None: nothing."""
    for name, shape, need in wanted:
        value = fields.get(name)
        if value is None and (
            need is Need.OPTIONAL or (need is Need.IF_PRESENT and name not in fields)
        ):
            continue
        if not shape.fits(value):
            return f"content.{name} must be {shape.words}"
    return None
