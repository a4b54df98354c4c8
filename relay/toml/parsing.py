"""TOML text → values, or one fault with its line, said in words."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from relay.errors import ConfigFaults, Fault
from relay.files import content_of

if TYPE_CHECKING:
    from pathlib import Path

_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_LONG_KEY: Final = re.compile(
    r"""(?<![\w.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}"""
)
"""A dotted key of more than 32 parts: one of 40,000 characters takes `tomllib` 14 s, and four times
as long for twice as much."""
_WORDS: Final = {
    "Expected '=' after a key": 'a line needs the form: key = value, or [table]; a "#" begins a'
    " comment",
    "Invalid value": 'the value is missing, or a text without "quotes"',
    "Illegal character '\\n'": "a text in quotes does not end on its line",
    "Unterminated string": "a text in quotes does not end",
    "Unescaped '\\'": "in a text in quotes, a backslash is written twice",
    "Expected newline or end of document after a statement": "something follows the value; a text"
    ' needs "quotes", and a line has one key',
    "Cannot overwrite a value": "this key or table is set twice",
    "Cannot declare": "this table is written twice; put its keys together",
    "Invalid statement": "a line needs the form: key = value, or [table]",
    "Expected ']]'": 'the name of a table in "[[" needs "]]" after it',
    "Expected ']'": 'the name of a table in "[" needs "]" after it',
    "Unclosed array": 'a list that begins with "[" needs "]" at its end',
    "Unclosed inline table": 'what begins with "{" needs "}" on the same line',
}
"""Beginning of a message of tomllib → what is wrong. Other messages are shown as they are."""


def text_of(path: Path) -> str:
    """Without a byte order mark. Raises FileNotFoundError, and ConfigFaults with one fault."""
    try:
        return content_of(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise
    except OSError as wrong:
        fault = Fault(str(path), 0, wrong.strerror or str(wrong))
    except UnicodeDecodeError as wrong:
        fault = no_text(wrong, str(path))
    raise ConfigFaults([fault])


def no_text(wrong: UnicodeDecodeError, name: str) -> Fault:
    """`name`: of the file."""
    return Fault(name, wrong.object.count(b"\n", 0, wrong.start) + 1, "is not UTF-8 text")


def values_in(text: str, name: str) -> dict[str, Any]:
    """The values. `name`: of the file, for the fault. Raises ConfigFaults with one fault."""
    if long := _LONG_KEY.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise ConfigFaults([Fault(name, line, "a key has more than 32 parts with dots between")])
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        message = str(wrong)
        place = _PLACE.search(message)
        last = text.count("\n") + (not text.endswith("\n"))
        line = int(place[1]) if place and place[1] else last if place else 0
        message = (
            repr(_PLACE.sub("", message))[1:-1] if "\n" in message else _PLACE.sub("", message)
        )
        said = next(
            (words for start, words in _WORDS.items() if message.startswith(start)), message
        )
        fault = Fault(name, line, f"not valid TOML: {said}")
    except RecursionError:
        fault = Fault(name, 0, "not valid TOML: nested too deep")
    except ValueError:  # int() in tomllib refuses thousands of digits
        fault = Fault(name, 0, "not valid TOML: a number has too many digits")
    raise ConfigFaults([fault])
