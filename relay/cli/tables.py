"""Tables that cut nothing: keys, ids and places in them are copied into other commands."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from relay.cli.options import console

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT: Final = 16
"""Characters of a line in which a text can still be read."""
_PADDING: Final = 3
"""Characters between two columns, at most."""


class Holds(Enum):
    """What stands in a column."""

    KEY = auto()
    """What is copied: never cut, nor broken into lines."""
    NUMBER = auto()
    """The same, at the right."""
    TEXT = auto()
    """Goes on in the next line."""


class Column(NamedTuple):
    name: str
    holds: Holds = Holds.TEXT


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, is_framed: bool = True
) -> None:
    """Where a table would have to cut, each row is a paragraph: what is in the first column that
    holds keys, below it the rest."""
    from rich.box import HEAVY_HEAD
    from rich.cells import cell_len
    from rich.table import Table

    out = console()
    names = [column.name for column in columns]
    wide = [max(map(cell_len, cells)) for cells in zip(names, *rows, strict=True)]
    needed = sum(
        (min(width, _TEXT) if column.holds is Holds.TEXT else width) + _PADDING
        for column, width in zip(columns, wide, strict=True)
    )
    if needed + 1 > out.width:
        _print_paragraphs(columns, rows)
        return
    table = Table(box=HEAVY_HEAD if is_framed else None)
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.holds is Holds.NUMBER else "left",
            no_wrap=column.holds is not Holds.TEXT,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print_paragraphs(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    keys = [at for at, column in enumerate(columns) if column.holds is Holds.KEY]
    head = keys[0] if keys else 0
    click.echo(f"{columns[head].name}:")
    for row in rows:
        click.echo(row[head])
        said = [
            f"{column.name} {cell}"
            for at, (column, cell) in enumerate(zip(columns, row, strict=True))
            if at != head and cell
        ]
        click.echo(f"  {', '.join(said)}")


def say_nothing_found(hint: str = "") -> None:
    """On stderr, where it is in no program's way. `hint`: what to do next."""
    click.echo(f"nothing found{'; ' if hint else ''}{hint}", err=True)
