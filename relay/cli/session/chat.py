"""The blocks of a conversation as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich.text import Text

from relay.cli.options import chopped, printable
from relay.memory.fence import plain
from relay.memory.times import utc
from relay.memory.transcripts.view import Speaker, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from relay.memory.transcripts.view import Block

SPEAKERS: Final = {
    Speaker.USER: "bold green",
    Speaker.AGENT: "bold cyan",
    Speaker.TOOL: "yellow",
    Speaker.OTHER: "magenta",
}
TONES: Final = {
    Tone.PLAIN: "",
    Tone.DIM: "dim",
    Tone.ADDED: "green",
    Tone.REMOVED: "red",
    Tone.HUNK: "cyan",
    Tone.FAULT: "bold red",
}
_INDENT: Final = "  "
_SHORT: Final = 100
"""Length of a line of a folded block."""
_TRUNCATED: Final = "(truncated; `rookery session export` has the full text)"


class Row(NamedTuple):
    """One line, safe to print: (text, style) parts."""

    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


def render(
    blocks: Iterable[Block], width: int, authors: Mapping[str, str], *, is_full: bool
) -> Iterator[Text]:
    """One text per block: time, role, content. `width`: cells of a line. `authors`: as in
    `rows_of`."""
    for block in blocks:
        if is_full or not block.is_quiet:
            whole = rows_of(block, authors, is_folded=block.folds and not is_full)
            rows = [part for row in whole for part in fitted(row, width)]
            text = Text("\n").join(Text.assemble(*row.parts) for row in rows)
            yield text.append("\n")


def rows_of(block: Block, authors: Mapping[str, str], *, is_folded: bool) -> list[Row]:
    """The lines of a block, its heading first. `authors`: author → what to show in the heading."""
    heading = [(f"{utc(block.ms // 1000)} ", "dim")]
    if block.author in authors:
        heading.append((f"by {printable(authors[block.author])}: ", "dim"))
    # Free texts of the author: one word each, or they could name another one.
    heading.append((plain(block.title), SPEAKERS[block.speaker]))
    if block.model is not None and not is_folded:
        heading.append((f" {plain(block.model)}", "dim"))
    rows = [Row(tuple(heading))]
    if is_folded:
        rows += (_row(_shortened(line)) for line in block.head)
    else:
        rows += (_row(line) for line in block.head[:1])
        rows += (_row(line.text, TONES[line.tone]) for line in block.lines)
    if block.is_cut:
        rows.append(_row(_TRUNCATED, "dim"))
    return rows


def fitted(row: Row, width: int) -> list[Row]:
    """The row cut to lines of this many cells. The rest of it is indented: in the first column it
    would look like the heading of another block."""
    first, *rest = chopped(row.text, width)
    if not rest:
        return [row]
    style = row.parts[0][1]
    lines = chopped("".join(rest), max(1, width - len(_INDENT)))
    return [Row(((first, style),)), *(Row(((f"{_INDENT}{line}", style),)) for line in lines)]


def _row(text: str, style: str = "") -> Row:
    return Row(((f"{_INDENT}{printable(text)}", style),))


def _shortened(line: str) -> str:
    head, mark, more = line.rpartition(" (+")
    if len(line) <= _SHORT:
        return line
    end = f"{mark}{more}" if mark and more.endswith(" lines)") else ""
    return f"{(head if end else line)[: _SHORT - 1]}…{end}"
