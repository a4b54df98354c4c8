"""Line numbers of the keys of a TOML text, which `tomllib` does not give.

Precondition: `tomllib` has parsed the text, so it is valid.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

Path = tuple[str | int, ...]
"""`("rule", 2, "match", "kinds")`: key `kinds` of `match` of the third `[[rule]]`."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")
_ESCAPES: Final = re.compile(r"\\(.)", re.DOTALL)


@lru_cache(maxsize=32)  # the packaged policies are read at each reload
def lines_of(text: str) -> Mapping[Path, int]:
    """Line (from 1) of every key and table of a valid TOML text; each array of tables by index."""
    return _Scanner(text).lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}
        self.counted_at = (0, 1)
        table: Path = ()
        while self.skip_blank():
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.text[self.at] == "[":
                table = self.header(1)
            else:
                self.pair(table)

    def skip_blank(self) -> bool:
        """Skip whitespace and comments. False: the text is over."""
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif char in " \t\n":
                self.at += 1
            else:
                return True
        return False

    def note(self, path: Path, at: int) -> None:
        # Keys come in text order, so newlines are counted from the last position.
        seen, line = self.counted_at
        line += self.text.count("\n", seen, at)
        self.counted_at = (at, line)
        self.lines.setdefault(path, line)

    def header(self, brackets: int) -> Path:
        start = self.at
        self.at += brackets
        path = self.placed(self.dotted())
        if brackets == 2:
            number = self.counts.get(path, 0)
            self.counts[path] = number + 1
            path = (*path, number)
        self.at = self.text.index("]" * brackets, self.at) + brackets
        for size in range(1, len(path) + 1):
            self.note(path[:size], start)  # parent tables without a header of their own
        return path

    def placed(self, names: list[str]) -> Path:
        """`[[rule]]` then `[rule.match]`: the second belongs to the newest `[[rule]]`."""
        path: Path = ()
        for position, name in enumerate(names):
            path = (*path, name)
            if position < len(names) - 1 and path in self.counts:
                path = (*path, self.counts[path] - 1)
        return path

    def dotted(self) -> list[str]:
        names = [self.name()]
        while True:
            self.spaces()
            if self.text[self.at] != ".":
                return names
            self.at += 1
            names.append(self.name())

    def spaces(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1

    def name(self) -> str:
        self.spaces()
        if self.text[self.at] in "\"'":
            return self.string()
        found = _BARE.match(self.text, self.at)
        assert found is not None  # the text is valid
        self.at = found.end()
        return found.group()

    def string(self) -> str:
        text, quote = self.text, self.text[self.at]
        mark = quote * 3 if text.startswith(quote * 3, self.at) else quote
        start = at = self.at + len(mark)
        while not text.startswith(mark, at):
            at += 2 if text[at] == "\\" and quote == '"' else 1
        if len(mark) == 3:
            while text[at + 3 : at + 4] == quote:  # up to two quotes may touch the closing ones
                at += 1
        self.at = at + len(mark)
        return _ESCAPES.sub(r"\1", text[start:at]) if quote == '"' else text[start:at]

    def pair(self, table: Path) -> None:
        start = self.at
        path = table
        for name in self.dotted():
            path = (*path, name)
            self.note(path, start)
        self.at = self.text.index("=", self.at) + 1
        self.spaces()
        self.value(path)

    def value(self, path: Path) -> None:
        char = self.text[self.at]
        if char in "\"'":
            self.string()
        elif char == "[":
            self.list(path)
        elif char == "{":
            self.inline(path)
        else:
            found = _SCALAR.match(self.text, self.at)
            assert found is not None
            self.at = found.end()

    def list(self, path: Path) -> None:
        self.at += 1
        number = 0
        while self.skip_blank() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            place = (*path, number)
            self.note(place, self.at)
            self.value(place)
            number += 1
        self.at += 1

    def inline(self, path: Path) -> None:
        self.at += 1
        while self.skip_blank() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self.pair(path)
        self.at += 1
