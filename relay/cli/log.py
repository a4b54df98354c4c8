"""`rookery log`: the last log lines and refusals of a relay, in order of time."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final, assert_never

import click

from relay.cli.names import Names, Person, key_in_folder, names_in_folder
from relay.cli.options import (
    Colour,
    WholeNumber,
    coloured,
    folder_option,
    json_option,
    print_json,
    printable,
)
from relay.cli.tables import print_nothing_found
from relay.config import LogLevel
from relay.errors import UserError
from relay.memory.fence import shell_word
from relay.observe import LOG_FILE, LogLine, Refusal, read_log
from relay.server.control import RemoteFolder
from relay.server.refusal_file import FILE, read_refusals

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
        type=WholeNumber(min=0),
        help=help_text,
    )


@click.command("log", epilog="Example: rookery log --data ./data --level warning --follow")
@folder_option
@number_option(50, "The last N; 1000 lines and 1000 refusals are kept, across restarts.")
@click.option(
    "--level",
    type=click.Choice([level.value for level in _LEVELS]),
    default=LogLevel.DEBUG.value,
    help="Lowest level. Refusals are info.",
)
@click.option(
    "--author",
    type=Person(),
    metavar="KEY",
    help="Only refusals of this key, and lines that name it.",
)
@click.option(
    "--group",
    metavar="ID",
    help="Only refusals of events with this group in `h`, and lines that name it.",
)
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
    """Print the last log lines and refusals of a relay, without any content.

    With --json, one JSON object per line. For a stopped relay: those up to its stop.
    """
    if author is not None:
        author = key_in_folder(folder, author)

    def is_wanted(entry: LogLine | Refusal) -> bool:
        match entry:
            case LogLine(level=found, text=text):
                is_of_group = group is None or f"group {group!r}" in text
                return _rank(found) >= _rank(level) and (author or "") in text and is_of_group
            case Refusal():
                return (
                    _rank(LogLevel.INFO.value) >= _rank(level)
                    and author in (None, entry.author)
                    and group in (None, entry.group)
                )
            case _:
                assert_never(entry)

    def stopped() -> Sequence[LogLine | Refusal]:
        entries: list[LogLine | Refusal] = [
            *read_log(folder / LOG_FILE),
            *read_refusals(folder / FILE),
        ]
        return sorted(entries, key=lambda entry: entry.at)

    reads = (RemoteFolder.log_lines, RemoteFolder.refusals)
    print_log(folder, reads, stopped, is_wanted, number, follow=follow, as_json=as_json)


def print_log(
    folder: Path,
    reads: Sequence[Callable[[RemoteFolder, int], Awaitable[Sequence[LogLine | Refusal]]]],
    stopped: Callable[[], Sequence[LogLine | Refusal]],
    is_wanted: Callable[[LogLine | Refusal], bool],
    number: int,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """The last entries in order of time. `reads`: what a running relay has after a number;
    `stopped`: what a stopped one has left. Raises UserError."""
    socket = folder / "control.sock"
    try:
        if socket.exists():
            asyncio.run(
                _print_running(folder, reads, is_wanted, number, follow=follow, as_json=as_json)
            )
            return
    except UserError:  # a killed relay leaves its socket
        if follow:
            raise
    if follow or not (folder / "rookery.toml").exists():
        raise UserError(
            f"no relay runs on {folder}: `rookery serve --data {shell_word(folder)}` starts one"
        )
    try:
        found = [each for each in stopped() if is_wanted(each)]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None
    print_entries(folder, found[-number:] if number else (), as_json=as_json)


async def _print_running(
    folder: Path,
    reads: Sequence[Callable[[RemoteFolder, int], Awaitable[Sequence[LogLine | Refusal]]]],
    is_wanted: Callable[[LogLine | Refusal], bool],
    number: int,
    *,
    follow: bool,
    as_json: bool,
) -> None:
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
        print_nothing_found(f"this is the relay of {printable(str(folder))}, see --data")
    authors = [entry.author for entry in entries if isinstance(entry, Refusal)]
    names = Names() if as_json else names_in_folder(folder, authors)
    for entry in entries:
        if as_json:
            print_json({"is": "line" if isinstance(entry, LogLine) else "refusal", **asdict(entry)})
        else:
            click.echo(_with_colour(entry, text_of(entry, names)))


def text_of(entry: LogLine | Refusal, names: Names) -> str:
    """An entry as text on one line; a refusal on a terminal on four."""
    clock = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S%z")
    if isinstance(entry, LogLine):
        line = f"{clock} {entry.level} {entry.logger}: {entry.text}"
        return "\n  ".join(map(printable, (line, *entry.trace.splitlines())))
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
