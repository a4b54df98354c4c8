"""One line of input at the bottom of a terminal, under text that is printed meanwhile.

Invariant: what is typed is kept and redrawn after each text that is printed above it.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_PROMPT: Final = "> "
_MAX_CHARS: Final = 20_000
_MAX_LINES: Final = 1_000
"""Typed or pasted lines that wait to be sent."""
_READ: Final = 4_096
_CLEAR: Final = "\r\x1b[K"
_ERASE: Final = frozenset("\x7f\b")
_KILL_LINE: Final = "\x15"
_KILL_WORD: Final = "\x17"
_END_OF_INPUT: Final = "\x04"
END: Final = object()


class LineEditor:
    """Keys: Backspace, Ctrl-U (the line), Ctrl-W (a word), Ctrl-D on an empty line (the end).

    Other control characters and escape sequences, such as arrows, do nothing.
    """

    def __init__(self) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""
        self._waiting: asyncio.Queue[str | object] = asyncio.Queue(_MAX_LINES)

    def feed(self, data: bytes) -> list[str | object]:
        """The lines that these bytes end; END: the end of input."""
        done: list[str | object] = []
        for char in self._decoder.decode(data):
            if self._escape:
                self._skip(char)
            elif char == "\x1b":
                self._escape = char
            elif char in "\r\n":
                done.append(self.text)
                self.text = ""
            elif char == _END_OF_INPUT:
                if not self.text:
                    done.append(END)
            elif char in _ERASE:
                self.text = self.text[:-1]
            elif char == _KILL_LINE:
                self.text = ""
            elif char == _KILL_WORD:
                self.text = self.text.rstrip().rpartition(" ")[0]
            elif (char.isprintable() or char == "\u200d") and len(self.text) < _MAX_CHARS:
                self.text += char
        return done

    def _skip(self, char: str) -> None:
        """Through an escape sequence: ESC and a letter, or ESC [ … and a final character."""
        if self._escape == "\x1b" and char in "[O":
            self._escape += char
        elif self._escape == "\x1b" or "@" <= char <= "~":
            self._escape = ""

    def shown(self, width: int) -> str:
        """The prompt and the end of the line, in at most `width` - 1 columns."""
        from rich.cells import cell_len

        text = self.text
        while cell_len(_PROMPT) + cell_len(text) > max(width - 1, len(_PROMPT)):
            text = text[max(1, (cell_len(text) - width) // 2) :]
        return _PROMPT + text

    def print_above(self, text: str) -> None:
        """Print a text, and the line of input under it."""
        sys.stdout.write(f"{_CLEAR}{text}\n")
        self._draw()

    def _draw(self) -> None:
        sys.stdout.write(_CLEAR + self.shown(shutil.get_terminal_size().columns))
        sys.stdout.flush()

    async def lines(self) -> AsyncIterator[str]:
        """What is typed on stdin, line by line; inside `raw_terminal`."""
        loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
        loop.add_reader(number, self._read, number)
        self._draw()
        try:
            while isinstance(line := await self._waiting.get(), str):
                yield line
        finally:
            loop.remove_reader(number)
            sys.stdout.write(_CLEAR)
            sys.stdout.flush()

    def _read(self, number: int) -> None:
        if self._waiting.qsize() > _MAX_LINES // 2:
            return  # the terminal holds the rest until lines are sent
        data = os.read(number, min(_READ, _MAX_LINES // 2))
        for line in self.feed(data) if data else [END]:
            self._waiting.put_nowait(line)
        self._draw()


@contextmanager
def raw_terminal() -> Iterator[None]:
    """stdin without echo and line by line reading; Ctrl-C still interrupts."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
