"""Front matter: the `key: value` lines between two `---` at the head of a markdown file.

A small part of YAML, on purpose: scalars and lists at the top level. Anchors, aliases and tags are
text; what is nested is skipped. No value is larger than the lines it stands in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINES: Final = 500
MAX_CHARS: Final = 64 << 10
FENCE: Final = re.compile(r"---[ \t]*(?:\r?\n|\Z)")
_FIELD: Final = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*)|)")
_ITEM: Final = re.compile(r"[ \t]*-[ \t]+(.*)")
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][\w@.+/-]*", re.ASCII)


class Value(NamedTuple):
    text: str
    """A list: its items, each as it stands, joined by `, `."""
    line: int
    """In the file, from 1."""


class FrontMatter(NamedTuple):
    fields: Mapping[str, Value]
    """The first of each name."""
    body: str
    """What follows; the whole text if there is no front matter."""

    def text(self, name: str) -> str:
        """Empty if absent, empty or null."""
        value = self.fields[name].text if name in self.fields else ""
        return "" if value in ("null", "~") else value

    def first(self, *names: str) -> str:
        """The first of these fields that is not empty; an empty string if none is."""
        return next((name for name in names if self.text(name)), "")


def front_matter_in(text: str) -> FrontMatter:
    """A block without an end, or over the limits, is none."""
    end = _end_of_block(text)
    if end is None:
        return FrontMatter({}, text)
    fields: dict[str, Value] = {}
    name = ""
    for number, line in enumerate(text[:end].split("\n")[1:], 2):
        if (item := _ITEM.fullmatch(line)) is not None and name:
            known = fields[name]
            parts = (known.text, _scalar(item[1]))
            fields[name] = Value(", ".join(filter(None, parts)), known.line)
        elif (field := _FIELD.fullmatch(line.rstrip())) is not None:
            name = "" if field[1] in fields else field[1]
            fields.setdefault(field[1], Value(_value(field[2] or ""), number))
    return FrontMatter(fields, text[end:])


def _end_of_block(text: str) -> int | None:
    """Where the body begins."""
    opening = FENCE.match(text)
    if opening is None or not opening[0].endswith("\n"):
        return None
    at = opening.end()
    for _ in range(MAX_LINES):
        end = text.find("\n", at, MAX_CHARS)
        line = text[at:] if end < 0 else text[at : end + 1]
        if len(line) > MAX_CHARS:
            return None
        if FENCE.fullmatch(line) is not None:
            return at + len(line)
        if end < 0:
            return None
        at = end + 1
    return None


def _value(text: str) -> str:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return ", ".join(filter(None, map(_scalar, text[1:-1].split(","))))
    return _scalar(text)


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return text[1:-1]
        return str(value)
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return _COMMENT.sub("", text).strip()


def with_front_matter(fields: Mapping[str, object], body: str) -> str:
    """The body below those fields that are not empty; below none as it is.

    Values are JSON, which is YAML too; plain words stand without quotes.
    """
    lines = [f"{name}: {_written(value)}" for name, value in fields.items() if value]
    return "\n".join(["---", *lines, "---", body]) if lines else body


def _written(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return orjson.dumps(value).decode()
