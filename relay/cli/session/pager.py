"""Pager: reads in a conversation: scrolls, folds, searches, jumps. Knows no terminal."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from relay.cli.options import printable
from relay.cli.session.chat import Row, fitted, rows_of
from relay.memory.times import utc
from relay.memory.transcripts.view import Speaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from relay.memory.transcripts.view import Block

HELP: Final = """\
j k ↓ ↑          a line              space b  PgDn PgUp  a page
g G              beginning, end      ] [      next, previous block
u U              next, previous words of the user
t T              next, previous tool
Enter, Tab       unfold or fold      a        all tools
/words Enter     search              n N      next, previous match
:14:05 Enter     jump to a time      :120     to a block
. (dot)          show or hide progress and the like
q                quit                ?        this"""
_MARK: Final = "reverse"


class Pager:
    """Its position is a row of the laid out conversation."""

    def __init__(self, blocks: Iterable[Block], name: str, authors: Mapping[str, str]) -> None:
        """`name`: of the session. `authors`: as in `rows_of`."""
        self._all = tuple(blocks)
        self._authors = authors
        self._name = printable(name)
        self._unfolded: set[str] = set()
        self._shows_quiet = False
        self._width, self._height = 80, 24
        self._top = 0
        self._words = ""
        self._line: str | None = None
        """What is being typed, with its `/` or `:`."""
        self._said = ""
        self._is_helping = False
        self.is_done = False
        self._blocks: list[Block] = []
        self._rows: list[Row] = []
        self._starts: list[int] = []
        """First row of each block."""
        self._lay_out()

    # -- what is drawn ----------------------------------------------------------------------------

    def resize(self, width: int, height: int) -> None:
        """Cells. Keeps the block at the top."""
        if (width, height) != (self._width, self._height):
            self._width, self._height = max(width, 10), max(height, 2)
            self._lay_out()

    def screen(self) -> list[Row]:
        """`height` rows; the last one is the status."""
        page = self._height - 1
        if self._is_helping:
            rows = [Row(((line, ""),)) for line in HELP.splitlines()][:page]
        else:
            rows = [self._marked(row) for row in self._rows[self._top : self._top + page]]
        return [*rows, *[Row(())] * (page - len(rows)), Row(((self._status(), _MARK),))]

    def _status(self) -> str:
        if self._line is not None:
            return self._line
        if self._said:
            return self._said
        if not self._blocks:
            return f"{self._name}: nothing to show"
        at = self._at()
        day = utc(self._blocks[at].ms // 1000)
        share = min(100, 100 * (self._top + self._height - 1) // max(len(self._rows), 1))
        return f"{self._name}  {at + 1}/{len(self._blocks)}  {day}  {share} %  ? for keys"

    def _marked(self, row: Row) -> Row:
        """The row with the searched words marked."""
        if not self._words:
            return row
        parts: list[tuple[str, str]] = []
        for text, style in row.parts:
            folded = text.casefold()
            at = 0
            # Casefolding may change lengths; then nothing is marked.
            while len(folded) == len(text) and (found := folded.find(self._words, at)) >= 0:
                end = found + len(self._words)
                parts += (text[at:found], style), (text[found:end], f"{style} {_MARK}".strip())
                at = end
            parts.append((text[at:], style))
        return Row(tuple(parts))

    def _lay_out(self) -> None:
        before = self._blocks[self._at()].id if self._blocks else ""
        self._blocks = [block for block in self._all if self._shows_quiet or not block.is_quiet]
        self._rows, self._starts = [], []
        for block in self._blocks:
            self._starts.append(len(self._rows))
            is_folded = block.folds and block.id not in self._unfolded
            for row in rows_of(block, self._authors, is_folded=is_folded):
                self._rows += _wrapped(row, self._width)
            self._rows.append(Row(()))
        starts = dict(zip((block.id for block in self._blocks), self._starts, strict=True))
        self._go(starts.get(before, self._top))

    def _at(self) -> int:
        """The block at the top."""
        return max(bisect_right(self._starts, self._top) - 1, 0)

    # -- keys -------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """A character, or `up`, `down`, `page up`, `page down`, `home`, `end`, `enter`, `tab`,
        `backspace`, `escape`. Others do nothing."""
        self._said = ""
        if self._line is not None:
            self._type(key)
        elif self._is_helping:
            self._is_helping = False
        elif key in ("/", ":"):
            self._line = key
        elif (act := self._acts().get(key)) is not None:
            act()

    def _acts(self) -> dict[str, Callable[[], object]]:
        page = self._height - 2
        return {
            "q": self._quit,
            "?": self._help,
            **dict.fromkeys(("j", "down"), lambda: self._go(self._top + 1)),
            **dict.fromkeys(("k", "up"), lambda: self._go(self._top - 1)),
            **dict.fromkeys((" ", "page down"), lambda: self._go(self._top + page)),
            **dict.fromkeys(("b", "page up"), lambda: self._go(self._top - page)),
            **dict.fromkeys(("g", "home"), lambda: self._go(0)),
            **dict.fromkeys(("G", "end"), lambda: self._go(len(self._rows))),
            "]": lambda: self._jump(1, lambda _: True),
            "[": lambda: self._jump(-1, lambda _: True),
            "u": lambda: self._jump(1, _is_of_user),
            "U": lambda: self._jump(-1, _is_of_user),
            "t": lambda: self._jump(1, _is_tool),
            "T": lambda: self._jump(-1, _is_tool),
            "n": lambda: self._search(1),
            "N": lambda: self._search(-1),
            **dict.fromkeys(("enter", "tab"), self._fold),
            "a": self._fold_all,
            ".": self._toggle_quiet,
        }

    def _type(self, key: str) -> None:
        assert self._line is not None
        line = self._line
        match key:
            case "enter":
                self._line = None
                if line[0] == "/":
                    self._words = line[1:].casefold() or self._words
                    self._search(0)
                else:
                    self._jump_to(line[1:].strip())
            case "escape":
                self._line = None
            case "backspace":
                self._line = line[:-1] or None
            case _ if len(key) == 1 and key.isprintable():
                self._line = line + key

    def _go(self, row: int) -> None:
        self._top = max(0, min(row, len(self._rows) - self._height + 1))

    def _show(self, block: int) -> None:
        """At the top, or as near as the end allows."""
        self._go(self._starts[block])
        self._top = max(self._top, min(self._starts[block], len(self._rows) - 1))

    def _jump(self, step: int, is_wanted: Callable[[Block], bool]) -> bool:
        at = self._at() + step
        while 0 <= at < len(self._blocks):
            if is_wanted(self._blocks[at]):
                self._show(at)
                return True
            at += step
        self._said = "no more"
        return False

    def _search(self, step: int) -> None:
        """Go to the next match from the block at the top, in the direction of `step`; 0: the block
        itself counts too."""
        if not self._words:
            return
        if step == 0 and self._blocks and self._blocks[self._at()].contains(self._words):
            found = True
        else:
            found = self._jump(step or 1, lambda block: block.contains(self._words))
        if not found:
            self._said = f"not found: {self._words}"
            return
        block = self._blocks[self._at()]
        if block.folds and block.id not in self._unfolded:
            self._unfolded.add(block.id)
            self._lay_out()
            self._show(self._blocks.index(block))
        self._to_match()

    def _to_match(self) -> None:
        """Scroll within a long block to its first match."""
        at = self._at()
        end = self._starts[at + 1] if at + 1 < len(self._starts) else len(self._rows)
        for row in range(self._starts[at], end):
            if self._words in self._rows[row].text.casefold():
                if row >= self._top + self._height - 1:
                    self._top = row
                return

    def _jump_to(self, where: str) -> None:
        """Go to the block with this number, or at this time: the beginning of a time as shown."""
        if where.isascii() and where.isdigit():
            if self._blocks:
                self._show(min(max(int(where), 1), len(self._blocks)) - 1)
            return
        for at, block in enumerate(self._blocks):
            day, _, time = utc(block.ms // 1000).partition(" ")
            if where and (f"{day} {time}" >= where if "-" in where else time >= where):
                self._show(at)
                return
        self._said = f"nothing at {where}"

    def _fold(self) -> None:
        block = self._blocks[self._at()] if self._blocks else None
        if block is not None and block.folds:
            self._unfolded ^= {block.id}
            self._lay_out()

    def _fold_all(self) -> None:
        tools = {block.id for block in self._all if block.folds}
        self._unfolded = set() if self._unfolded & tools else tools
        self._lay_out()

    def _toggle_quiet(self) -> None:
        self._shows_quiet = not self._shows_quiet
        self._lay_out()

    def _help(self) -> None:
        self._is_helping = True

    def _quit(self) -> None:
        self.is_done = True


def _is_of_user(block: Block) -> bool:
    return block.speaker is Speaker.USER


def _is_tool(block: Block) -> bool:
    return block.speaker is Speaker.TOOL


def _wrapped(row: Row, width: int) -> list[Row]:
    """Headings are cut; a line of text is continued below."""
    return fitted(row, width)[: 1 if len(row.parts) > 1 else None]
