"""Regular expressions from policy files, matched by RE2: linear time, bounded memory.

A pattern that RE2 cannot compile within the limits is a fault when the file is read. The matched
text is never logged or sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import re2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.toml.fields import Table

_MEMORY: Final = 1 << 20
"""Bytes for one expression: its program and its search state."""
_MAX_PROGRAM: Final = 500
"""Instructions. At worst 3 ns per instruction and byte: 0.6 s for 400,000 characters."""
_MAX_PATTERNS: Final = 200
_SHOWN: Final = 60


class _Pattern(Protocol):
    def search(self, text: bytes) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns that a content must not match."""

    texts: tuple[str, ...]
    _compiled: tuple[_Pattern, ...] = field(compare=False, repr=False)

    def found_in(self, content: str) -> bool:
        raw = content.encode(errors="replace")
        return any(pattern.search(raw) is not None for pattern in self._compiled)


def patterns_from(table: Table, key: str) -> Patterns | None:
    """The list of expressions under a key; each invalid one is a fault with its line."""
    texts = table.strings(key)
    if texts is None:
        return None
    if len(texts) > _MAX_PATTERNS:
        table.wrong(key, f"{key} has {len(texts)} patterns, at most {_MAX_PATTERNS} are allowed")
        return None
    compiled: list[_Pattern] = []
    for number, text in enumerate(texts):
        found = _compiled(text)
        if isinstance(found, str):
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            table.wrong_item(key, number, f"{key}: {shown!r} {found}")
        else:
            compiled.append(found)
    return Patterns(tuple(texts), tuple(compiled))


def _compiled(text: str) -> _Pattern | str:
    """The compiled expression, or what is wrong with it and what to write instead."""
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        found = re2.compile(text, options)
    except re2.error as wrong:
        return _advice(wrong)
    except UnicodeEncodeError:
        return "contains an unpaired surrogate"
    if found.programsize > _MAX_PROGRAM:
        return (
            f"is too large ({found.programsize} instructions, at most {_MAX_PROGRAM}): "
            "repeat less often, or write it as several patterns"
        )
    pattern: _Pattern = found
    if all(pattern.search(text) is not None for text in (b"", b" ", b"x")):
        return "matches every content: remove the part that may be empty"
    return pattern


_INSTEAD: Final[Sequence[tuple[str, str]]] = (
    ("invalid perl operator: (?=", "lookahead is not supported; match the text itself"),
    ("invalid perl operator: (?!", "lookahead is not supported; use `except` instead"),
    ("invalid perl operator: (?<", "lookbehind is not supported; match the text itself"),
    ("invalid perl operator: (?>", "write (?: … ): RE2 never backtracks"),
    ("invalid perl operator: (?#", "remove the comment"),
    ("invalid perl operator", "write (?: … ) for a group, (?i) to ignore case"),
    ("bad repetition operator", "remove one of them"),
    ("invalid repetition size", "at most {1000}, repetitions within repetitions multiplied"),
    ("no argument for repetition operator", "write \\ before it to match it literally"),
    ("missing )", "write \\( to match it literally"),
    ("unexpected )", "write \\) to match it literally"),
    ("missing ]", "write \\[ to match it literally"),
    ("pattern too large", "repeat less often, or write it as several patterns"),
)
_REFERENCE: Final = frozenset(f"invalid escape sequence: \\{digit}" for digit in "123456789")


def _advice(wrong: Exception) -> str:
    """The error text of RE2 (bytes in `wrong`) with a hint."""
    message = wrong.args[0]
    words = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    if words in _REFERENCE:
        hint = "back-references are not supported; write the repeated text out"
    elif words.startswith("invalid escape sequence: \\Z"):
        hint = "write \\z for the end of the text"
    elif words.startswith("invalid escape sequence"):
        hint = "write \\\\ for a backslash"
    else:
        hint = next((text for start, text in _INSTEAD if words.startswith(start)), "")
    return f"cannot be used: {words}" + (f"; {hint}" if hint else "")
