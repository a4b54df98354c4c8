"""`rookery export`: the events of a data folder as JSON lines, with or without a running relay."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO

import click
import orjson

from relay.cli.humanize import counted
from relay.cli.options import folder_option, json_option, print_json, printable, shown_json
from relay.cli.progress import RATE, Amount, progress_bar
from relay.config import load_config
from relay.errors import Refused
from relay.files import atomic_file
from relay.nostr.filters import Filter, filter_from
from relay.nostr.keys import public_key
from relay.server.control.folder import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.filters import FilterTerms
    from relay.server.control import Folder


@click.command("export", epilog="Example: rookery export --data ./data -o events.jsonl")
@folder_option
@click.option(
    "--filter",
    "filter_text",
    metavar="JSON",
    help="""Only events that match, as in a REQ: '{"kinds":[9],"#h":["tea"]}'.""",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file, written atomically; default: stdout.",
)
@click.option(
    "--versions",
    "rows",
    flag_value="versions",
    help="Also old versions, where the policies keep them.",
)
@json_option
def export_command(
    folder: Path, filter_text: str | None, target: Path | None, rows: str | None, *, as_json: bool
) -> int:
    """Write stored events as JSON lines, in the order they were stored.

    With --versions an import restores the history of records too, if the policies there keep it:
    old versions stand before the newer ones.

    With --json the summary is JSON; without -o it is on stderr, since stdout has the events.
    """
    filter_ = None
    if filter_text is not None:
        filter_ = filter_of(filter_text, load_config(folder / "rookery.toml").storage.terms)
    if target == Path("-"):
        target = None
    try:
        with ExitStack() as stack:
            stdout = sys.stdout.buffer
            out = stdout if target is None else stack.enter_context(atomic_file(target))
            which = Rows.ALL if rows is None else Rows.WITH_OLD_VERSIONS
            done = asyncio.run(_export(folder, filter_, out, target, which))
            out.flush()
    except BrokenPipeError:
        # `rookery export | head` closed the pipe. Python must not flush stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if as_json and target is not None:
        print_json({**asdict(done), "file": str(target)})
    elif as_json:
        click.echo(orjson.dumps(done), err=True)
    elif target is not None or sys.stderr.isatty() or not done.events:
        place = "" if target is None else f" to {printable(str(target))}"
        click.echo(
            f"{counted(done.events, 'event')}, {counted(done.bytes, 'byte')}{place}", err=True
        )
    return 0


@dataclass(slots=True)
class Exported:
    events: int = 0
    bytes: int = 0


async def _export(
    folder: Path, filter_: Filter | None, out: BinaryIO, target: Path | None, rows: Rows
) -> Exported:
    from relay.cli.data_folder import open_folder

    # No progress bar when events and bar would share one terminal.
    is_shown = sys.stderr.isatty() and (target is not None or not sys.stdout.isatty())
    async with open_folder(folder) as opened:
        # The head also counts removed rows, so the bar may jump at the end.
        total = await opened.head() if filter_ is None else None
        with progress_bar(Amount.OF_TOTAL, RATE, is_shown=is_shown) as progress:
            task = progress.add_task("export", total=total, rate="")
            began = perf_counter()

            def note(done: Exported) -> None:
                rate = done.events / max(perf_counter() - began, 1e-3)
                progress.update(task, completed=done.events, rate=f"{rate:,.0f} events/s")

            wanted = Filter() if filter_ is None else filter_
            done = await export_events(opened, wanted, out, note, rows)
            progress.update(task, total=done.events, completed=done.events)
            return done


async def export_events(
    folder: Folder,
    filter_: Filter,
    out: BinaryIO,
    note: Callable[[Exported], None],
    rows: Rows = Rows.ALL,
) -> Exported:
    """Write the matching events; `note` is called after each page. On a terminal their control
    characters are escaped: the same events in other bytes."""
    done = Exported()
    is_terminal = out.isatty()
    pages = folder.events(filter_, rows)
    try:
        async for raws in pages:
            if raws:
                lines = b"\n".join((*raws, b""))
                done.events += len(raws)
                done.bytes += out.write(shown_json(lines).encode() if is_terminal else lines)
                note(done)
    finally:
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()
    return done


def filter_of(text: str, terms: FilterTerms) -> Filter:
    """The filter of --filter, which must select all matches. Raises BadParameter."""
    try:
        filter_ = filter_from(_with_hex_keys(orjson.loads(text)), terms)
    except orjson.JSONDecodeError as wrong:
        raise _bad_filter(f"not JSON (column {wrong.colno})") from None
    except Refused as refused:
        raise _bad_filter(refused.text) from None
    if filter_.limit is not None or filter_.search is not None:
        raise _bad_filter("limit and search are not supported here: all matches are taken")
    return filter_


def _with_hex_keys(filter_: object) -> object:
    """The filter with each npub of `authors` and `#p` as hex. Raises Invalid."""
    if not isinstance(filter_, dict):
        return filter_
    lists = {name: filter_.get(name) for name in ("authors", "#p")}
    return filter_ | {
        name: [public_key(key) if str(key).startswith("npub1") else key for key in keys]
        for name, keys in lists.items()
        if isinstance(keys, list)
    }


def _bad_filter(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="--filter")
