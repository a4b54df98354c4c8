"""`rookery log`: the last log lines and refusals of a running relay, in order of time."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import PublicKey, folder_option, json_option, print_json, printable
from relay.cli.tables import print_nothing_found
from relay.config import LogLevel
from relay.errors import UserError
from relay.nostr.keys import npub
from relay.observe import LogLine, Refusal
from relay.server.control import RemoteFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_EVERY_S: Final = 0.5
_LEVELS: Final = (*LogLevel,)


@click.command("log", epilog="Example: rookery log --data ./data --level warning --follow")
@folder_option
@click.option(
    "-n",
    "number",
    default=50,
    show_default=True,
    metavar="N",
    type=click.IntRange(min=0),
    help="The last N; the relay remembers 1000 lines and 1000 refusals.",
)
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

    With --json, one JSON object per line. A stopped relay remembers none: its log is where it was
    started, such as `journalctl -u rookery`.
    """
    if not (folder / "control.sock").exists():
        raise UserError(
            f"no relay runs on {folder}: only a running relay remembers its log; earlier lines are"
            " where it was started, such as `journalctl -u rookery`"
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

    async def work() -> None:
        async with RemoteFolder(folder / "control.sock") as relay:
            last_line = last_refusal = 0
            is_first = True
            while is_first or follow:
                if not is_first:
                    sys.stdout.flush()
                    await asyncio.sleep(_EVERY_S)
                lines, refusals = (
                    await relay.log_lines(last_line),
                    await relay.refusals(last_refusal),
                )
                last_line = lines[-1].number if lines else last_line
                last_refusal = refusals[-1].number if refusals else last_refusal
                entries: list[LogLine | Refusal] = [*lines, *refusals]
                found: Sequence[LogLine | Refusal] = sorted(
                    [entry for entry in entries if is_wanted(entry)], key=lambda entry: entry.at
                )
                if is_first:
                    found = found[-number:] if number else ()
                    if not (found or follow or as_json):
                        print_nothing_found()
                for entry in found:
                    _print(entry, as_json=as_json)
                is_first = False

    asyncio.run(work())


def _rank(level: str) -> int:
    levels = [each.value for each in _LEVELS]
    return levels.index(level) if level in levels else len(levels)  # critical


def _print(entry: LogLine | Refusal, *, as_json: bool) -> None:
    if as_json:
        print_json({"is": "line" if isinstance(entry, LogLine) else "refusal", **asdict(entry)})
        return
    clock = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S%z")
    if isinstance(entry, LogLine):
        text = f"{clock} {entry.level} {entry.logger}: {entry.text}"
    else:
        group = "" if entry.group is None else f"  group {entry.group}"
        text = (
            f"{clock} refused {entry.prefix}: {entry.text}  rule {entry.rule}  kind {entry.kind} by"
            f" {npub(entry.author)}{group}  id {entry.event_id}"
        )
    click.echo(printable(text))
