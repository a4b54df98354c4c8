"""`rookery stats`: storage use of a data folder by kind, author and group, and its files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from relay.access.quotas import Size, SizedBy
from relay.cli.humanize import counted
from relay.cli.names import names_in_folder
from relay.cli.options import WholeNumber, folder_option, json_option, print_json, printable
from relay.cli.tables import Column, Holds, print_table
from relay.nostr.kinds import MAX_KIND, VANISH, kind_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from relay.access.quotas import Sized
    from relay.cli.names import Names

_FILES: Final = (
    "rookery.db",
    "rookery.db-wal",
    "rookery.db-shm",
    "search.db",
    "search.db-wal",
    "search.db-shm",
)

_NUMBERS: Final = tuple(Column(name, Holds.NUMBER) for name in ("events", "bytes", "share"))

_Sizes = dict[SizedBy, list["Sized"]]


@click.command("stats", epilog="Example: rookery stats --data ./data -n 5")
@folder_option
@click.option(
    "-n",
    "number",
    default=20,
    show_default=True,
    metavar="N",
    type=WholeNumber(min=1),
    help="Rows per table, largest first.",
)
@json_option
def stats(folder: Path, number: int, *, as_json: bool) -> None:
    """Show storage use by kind, author and group, and the sizes of the files.

    Event sizes are those of their JSON; files also contain indexes.
    """
    sizes = asyncio.run(_sizes(folder, number))
    kinds = sizes[SizedBy.KIND]
    # A request to vanish is kept for its author's key, not as an event.
    stored = [line.size for line in kinds if line.of != VANISH]
    requests = sum(line.size.events for line in kinds if line.of == VANISH)
    total = Size(sum(size.events for size in stored), sum(size.bytes for size in stored))
    files = {name: (folder / name).stat().st_size for name in _FILES if (folder / name).is_file()}
    if as_json:
        print_json(
            {
                **total._asdict(),
                **{
                    by.value: [_as_json(by, line) for line in lines[:number]]
                    for by, lines in sizes.items()
                },
                "files": files,
            }
        )
        return
    beside = f"; beside them {counted(requests, 'request')} to vanish (62)" if requests else ""
    click.echo(f"{counted(total.events, 'event')}, {counted(total.bytes, 'byte')}{beside}")
    names = names_in_folder(folder, (str(line.of) for line in sizes[SizedBy.AUTHOR][:number]))
    for by, lines in sizes.items():
        _print(by, lines, number, total, names)
    _print_files(files)


async def _sizes(folder: Path, number: int) -> _Sizes:
    from relay.cli.data_folder import open_folder

    async with open_folder(folder) as opened:
        return {
            # All kinds, for the total: there are few.
            by: list(await opened.sizes(by, MAX_KIND + 1 if by is SizedBy.KIND else number))
            for by in SizedBy
        }


def _as_json(by: SizedBy, line: Sized) -> Mapping[str, object]:
    return {by.value: line.of, **line.size._asdict()}


def _print(by: SizedBy, lines: Sequence[Sized], number: int, total: Size, names: Names) -> None:
    rows = [
        (
            _named(by, line.of, names),
            f"{line.size.events:,}",
            f"{line.size.bytes:,}",
            f"{100 * line.size.bytes / max(total.bytes, 1):.0f} %",
        )
        for line in lines[:number]
    ]
    if len(lines) > number:
        rows.append((f"and {len(lines) - number} more", "", "", ""))
    if lines:
        click.echo()
        print_table((Column(by.value, Holds.KEY), *_NUMBERS), rows)


def _named(by: SizedBy, of: int | str | None, names: Names) -> str:
    if by is SizedBy.GROUP:
        return "(no group)" if of is None else printable(str(of))
    if by is SizedBy.AUTHOR:
        return names.shown(str(of))
    name = kind_names().get(int(of)) if of is not None else None
    return str(of) if name is None else f"{of} ({name})"


def _print_files(files: Mapping[str, int]) -> None:
    click.echo()
    rows = [(name, f"{size:,}") for name, size in files.items()]
    columns = Column("file", Holds.KEY), Column("bytes", Holds.NUMBER)
    print_table(columns, rows)
