"""Tables that never truncate keys, ids or paths: users copy them into other commands."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from relay.cli.options import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

_MIN_TEXT: Final = 16
"""Minimum width of a readable text column."""
_PADDING: Final = 3
"""Most characters between two columns."""


class Holds(Enum):
    """Content of a column."""

    KEY = auto()
    """Copied by users: never truncated or wrapped."""
    NUMBER = auto()
    """As KEY, right-aligned."""
    TEXT = auto()
    """Wrapped."""


class Column(NamedTuple):
    name: str
    holds: Holds = Holds.TEXT


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """If the table is too wide, each row is printed as a paragraph: the first KEY column, then the
    other columns on the next line."""
    from rich.cells import cell_len

    out = console()
    names = [column.name for column in columns]
    wide = [max(map(cell_len, cells)) for cells in zip(names, *rows, strict=True)]
    needed = sum(
        (min(width, _MIN_TEXT) if column.holds is Holds.TEXT else width) + _PADDING
        for column, width in zip(columns, wide, strict=True)
    )
    if needed + 1 > out.width:
        _print_paragraphs(columns, rows)
        return
    out.print(as_table(columns, rows))


def as_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """However wide."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, _PADDING - 1, 0, 0))
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.holds is Holds.NUMBER else "left",
            no_wrap=column.holds is not Holds.TEXT,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def _print_paragraphs(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    keys = [at for at, column in enumerate(columns) if column.holds is Holds.KEY]
    head = keys[0] if keys else 0
    click.echo(f"{columns[head].name}:")
    for row in rows:
        click.echo(row[head])
        # Runs of blanks could place what others wrote where a terminal begins the next line.
        fields = [
            f"{column.name} {' '.join(cell.split())}"
            for at, (column, cell) in enumerate(zip(columns, row, strict=True))
            if at != head and cell
        ]
        click.echo(f"  {', '.join(fields)}")


def print_found(columns: Sequence[Column], rows: Sequence[Sequence[str]], hint: str = "") -> None:
    """The table, or that nothing was found."""
    if rows:
        print_table(columns, rows)
    else:
        print_nothing_found(hint)


def print_nothing_found(hint: str = "") -> None:
    """On stderr, so that stdout stays machine-readable. `hint`: what to do next."""
    click.echo(f"nothing found{'; ' if hint else ''}{hint}", err=True)
