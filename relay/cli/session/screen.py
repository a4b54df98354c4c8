"""The pager on a terminal, drawn with curses."""

from __future__ import annotations

import curses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from relay.cli.session.chat import Row
    from relay.cli.session.pager import Pager

_KEYS: Final = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",
}
_COLOURS: Final = {
    "green": curses.COLOR_GREEN,
    "red": curses.COLOR_RED,
    "cyan": curses.COLOR_CYAN,
    "yellow": curses.COLOR_YELLOW,
    "magenta": curses.COLOR_MAGENTA,
}
_LOOKS: Final = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "reverse": curses.A_REVERSE}


def run(pager: Pager) -> None:
    """Until the user quits."""
    curses.wrapper(_run, pager)


def _run(window: Any, pager: Pager) -> None:
    curses.curs_set(0)
    curses.use_default_colors()
    for number, colour in enumerate(_COLOURS.values(), 1):
        curses.init_pair(number, colour, -1)
    while not pager.is_done:
        height, width = window.getmaxyx()
        pager.resize(width, height)
        window.erase()
        for at, row in enumerate(pager.screen()):
            _draw(window, at, row, width)
        window.refresh()
        try:
            key = window.get_wch()
        except (curses.error, KeyboardInterrupt):
            return
        pager.press(_KEYS.get(key, key if isinstance(key, str) else ""))


def _draw(window: Any, at: int, row: Row, width: int) -> None:
    window.move(at, 0)
    for text, style in row.parts:
        try:
            window.addnstr(text, width, _attributes(style))
        except curses.error:  # the corner at the bottom cannot be written
            return


def _attributes(style: str) -> int:
    found = 0
    for word in style.split():
        if word in _COLOURS:
            found |= curses.color_pair(list(_COLOURS).index(word) + 1)
        else:
            found |= _LOOKS[word]
    return found
