"""The pager on a terminal, drawn with curses."""

from __future__ import annotations

import curses
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def is_possible() -> bool:
    """Whether text can be written at any place of the terminal."""
    try:
        curses.setupterm()
    except curses.error:  # TERM is unknown
        return False
    return bool(curses.tigetstr("cup"))


def run(pager: Pager) -> None:
    """Until the user quits."""
    curses.wrapper(_run, pager)


def _run(window: Any, pager: Pager) -> None:
    with suppress(curses.error):  # some terminals cannot hide their cursor
        curses.curs_set(0)
    looks = {**_LOOKS, **_colours()}
    while not pager.is_done:
        height, width = window.getmaxyx()
        pager.resize(width, height)
        window.erase()
        for at, row in enumerate(pager.screen()):
            _draw(window, at, row, width, looks)
        window.refresh()
        try:
            key = window.get_wch()
        except (curses.error, KeyboardInterrupt):
            return
        pager.press(_KEYS.get(key, key if isinstance(key, str) else ""))


def _colours() -> Mapping[str, int]:
    """Colour → attribute."""
    if curses.has_colors():
        curses.use_default_colors()  # else all is white on black
    if not curses.has_colors() or os.environ.get("NO_COLOR"):
        return dict.fromkeys(_COLOURS, 0)
    for number, colour in enumerate(_COLOURS.values(), 1):
        curses.init_pair(number, colour, -1)
    return {name: curses.color_pair(number) for number, name in enumerate(_COLOURS, 1)}


def _draw(window: Any, at: int, row: Row, width: int, looks: Mapping[str, int]) -> None:
    window.move(at, 0)
    for text, style in row.parts:
        try:
            attributes = sum({looks[word] for word in style.split()})
            window.addnstr(text, width, attributes)
        except curses.error:  # the corner at the bottom cannot be written
            return
