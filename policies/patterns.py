"""Regular expressions of an admin's, searched for in time linear in the text, with bounded memory.

The engine is RE2: what a backtracking one may chew on for hours is either found here at the cost of
a plain search or refused when the file is read. Nothing here says or logs what was found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import re2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.toml.fields import Table

_MEMORY: Final = 1 << 20
"""Bytes that one expression may use: its program, and what it remembers while it searches."""
_MAX_PROGRAM: Final = 500
"""Steps. The worst that a text can do is 3 ns a step and a byte: 0.6 s for 400,000 characters."""
_MAX_PATTERNS: Final = 200
_SHOWN: Final = 60


class _Pattern(Protocol):
    def search(self, text: bytes) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Patterns:
    """What a content must not hold."""

    texts: tuple[str, ...]
    _compiled: tuple[_Pattern, ...] = field(compare=False, repr=False)

    def found_in(self, content: str) -> bool:
        raw = content.encode(errors="replace")
        return any(pattern.search(raw) is not None for pattern in self._compiled)


def patterns_from(table: Table, key: str) -> Patterns | None:
    """The list of expressions under a key; each that cannot be used is a fault with its line."""
    texts = table.strings(key)
    if texts is None:
        return None
    if len(texts) > _MAX_PATTERNS:
        table.wrong(key, f"{key} has {len(texts)} patterns, at most {_MAX_PATTERNS} are searched")
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
    """The expression, or what is wrong with it and what to write instead."""
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        found = re2.compile(text, options)
    except re2.error as wrong:
        return _advice(wrong)
    except UnicodeEncodeError:
        return "holds half of a character"
    if found.programsize > _MAX_PROGRAM:
        return (
            f"is too large ({found.programsize} steps, at most {_MAX_PROGRAM}): repeat less often, "
            "or write it as several patterns"
        )
    pattern: _Pattern = found
    if all(pattern.search(text) is not None for text in (b"", b" ", b"x")):
        return "is found in every content: leave out what may be absent"
    return pattern


_INSTEAD: Final[Sequence[tuple[str, str]]] = (
    ("invalid perl operator: (?=", "say what must be there itself; nothing can look ahead"),
    ("invalid perl operator: (?!", "leave it out and use `except`; nothing can look ahead"),
    ("invalid perl operator: (?<", "say what must be there itself; nothing can look behind"),
    ("invalid perl operator: (?>", "write (?: … ): no search goes back"),
    ("invalid perl operator: (?#", "leave the comment out"),
    ("invalid perl operator", "write (?: … ) for a group, (?i) for either case"),
    ("bad repetition operator", "leave one of them out"),
    ("invalid repetition size", "at most {1000}, repetitions within repetitions multiplied"),
    ("no argument for repetition operator", "write \\ before it if it is meant as it stands"),
    ("missing )", "write \\( if it is meant as it stands"),
    ("unexpected )", "write \\) if it is meant as it stands"),
    ("missing ]", "write \\[ if it is meant as it stands"),
    ("pattern too large", "repeat less often, or write it as several patterns"),
)
_REFERENCE: Final = frozenset(f"invalid escape sequence: \\{digit}" for digit in "123456789")


def _advice(wrong: Exception) -> str:
    """`wrong` carries the engine's words as bytes."""
    said = wrong.args[0]
    words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    if words in _REFERENCE:
        hint = "spell out what shall come twice; nothing can refer back"
    elif words.startswith("invalid escape sequence: \\Z"):
        hint = "write \\z for the end of the text"
    elif words.startswith("invalid escape sequence"):
        hint = "write \\\\ for a backslash"
    else:
        hint = next((text for start, text in _INSTEAD if words.startswith(start)), "")
    return f"cannot be used: {words}" + (f"; {hint}" if hint else "")
