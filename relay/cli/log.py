"""`rookery log`: the last log lines and refusals of a running relay, in order of time."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from relay.cli.names import Names, names_in_folder
from relay.cli.options import (
    Colour,
    PublicKey,
    coloured,
    folder_option,
    json_option,
    print_json,
    printable,
)
from relay.cli.tables import print_nothing_found
from relay.config import LogLevel
from relay.errors import UserError
from relay.observe import LogLine, Refusal
from relay.server.control import RemoteFolder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from relay.cli.options import Decorated

_EVERY_S: Final = 0.5
_LEVELS: Final = (*LogLevel,)


def number_option(default: int, help_text: str) -> Callable[[Decorated], Decorated]:
    """`-n N`."""
    return click.option(
        "-n",
        "number",
        default=default,
        show_default=True,
        metavar="N",
        type=click.IntRange(min=0),
        help=help_text,
    )


@click.command("log", epilog="Example: rookery log --data ./data --level warning --follow")
@folder_option
@number_option(50, "The last N; the relay remembers 1000 lines and 1000 refusals.")
@click.option(
    "--level",
    type=click.Choice([level.value for level in _LEVELS]),
    default=LogLevel.DEBUG.value,
    help="Lowest level. Refusals are info.",
)
@click.option("--author", type=PublicKey(), metavar="KEY", help="Only refusals of this key.")
@click.option("--group", metavar="ID", help="Only refusals of events with this group in `h`.")
@click.option("--follow", is_flag=True, help="Keep printing new ones.")
@json_option
def log_command(
    folder: Path,
    number: int,
    level: str,
    author: str | None,
    group: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the last log lines and refusals of a running relay, without any content.

    With --json, one JSON object per line. A stopped relay remembers its refusals only (`rookery
    policy log`): its log is where it was started, such as `journalctl -u rookery`.
    """
    if not (folder / "control.sock").exists():
        raise UserError(
            f"no relay runs on {folder}: only a running relay remembers its log; earlier lines are"
            " where it was started, such as `journalctl -u rookery`, earlier refusals in `rookery"
            " policy log`"
        )

    def is_wanted(entry: LogLine | Refusal) -> bool:
        found = entry.level if isinstance(entry, LogLine) else LogLevel.INFO.value
        if _rank(found) < _rank(level):
            return False
        if author is None and group is None:
            return True
        return (
            isinstance(entry, Refusal)
            and author in (None, entry.author)
            and group in (None, entry.group)
        )

    reads = (RemoteFolder.log_lines, RemoteFolder.refusals)
    asyncio.run(print_log(folder, reads, is_wanted, number, follow=follow, as_json=as_json))


async def print_log(
    folder: Path,
    reads: Sequence[Callable[[RemoteFolder, int], Awaitable[Sequence[LogLine | Refusal]]]],
    is_wanted: Callable[[LogLine | Refusal], bool],
    number: int,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """The last entries of a running relay, in order of time. `reads`: what is after a number."""
    last = [0] * len(reads)
    async with RemoteFolder(folder / "control.sock") as relay:

        async def news() -> Sequence[LogLine | Refusal]:
            entries: list[LogLine | Refusal] = []
            for at, read in enumerate(reads):
                found = await read(relay, last[at])
                last[at] = found[-1].number if found else last[at]
                entries += filter(is_wanted, found)
            return sorted(entries, key=lambda entry: entry.at)

        first = (await news())[-number:] if number else (await news())[:0]
        if first or not follow:
            print_entries(folder, first, as_json=as_json)
        while follow:
            sys.stdout.flush()
            await asyncio.sleep(_EVERY_S)
            if entries := await news():
                print_entries(folder, entries, as_json=as_json)


def print_entries(folder: Path, entries: Sequence[LogLine | Refusal], *, as_json: bool) -> None:
    if not (entries or as_json):
        print_nothing_found()
    authors = [entry.author for entry in entries if isinstance(entry, Refusal)]
    names = Names() if as_json else names_in_folder(folder, authors)
    for entry in entries:
        if as_json:
            print_json({"is": "line" if isinstance(entry, LogLine) else "refusal", **asdict(entry)})
        else:
            click.echo(_with_colour(entry, text_of(entry, names)))


def text_of(entry: LogLine | Refusal, names: Names) -> str:
    """On one line; a refusal on a terminal on four."""
    clock = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S%z")
    if isinstance(entry, LogLine):
        return printable(f"{clock} {entry.level} {entry.logger}: {entry.text}")
    source = "an import" if entry.connection is None else f"connection {entry.connection}"
    group = "" if entry.group is None else f"  group {entry.group}"
    where = f"{source} from {entry.address}" if entry.address else source
    lines = (
        f"{clock} refused {entry.prefix}: {entry.text}",
        f"rule {entry.rule}  kind {entry.kind}{group}  {where}",
        f"by {names.shown(entry.author)}",
        f"id {entry.event_id}",
    )
    return ("\n    " if sys.stdout.isatty() else "  ").join(map(printable, lines))


def _with_colour(entry: LogLine | Refusal, text: str) -> str:
    word = entry.level if isinstance(entry, LogLine) else "refused"
    if _rank(word) >= _rank(LogLevel.WARNING.value):
        colour = Colour.WARNING if word == LogLevel.WARNING.value else Colour.REFUSED
        return text.replace(f" {word} ", f" {coloured(word, colour)} ", 1)
    return text


def _rank(level: str) -> int:
    levels = [each.value for each in _LEVELS]
    return levels.index(level) if level in levels else len(levels)  # critical
