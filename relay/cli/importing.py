"""`rookery import`: JSON lines of events into a folder, whether a relay runs on it or not.

It may be stopped and started again: it goes on behind the last batch that was acknowledged, and
what it repeats is a duplicate, not a second copy.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from relay.cli.import_lines import Bookmark, Ending, Place, batch_of, ending_of
from relay.cli.options import folder_option, json_option, print_json, printable
from relay.cli.progress import RATE, Amount, progress_bar
from relay.errors import StoreFault, UserError
from relay.verdict import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.cli.import_lines import Tally
    from relay.nostr.event import Event
    from relay.server.control import Folder

    Say = Callable[[str], None]

_PAUSES_S: Final = (0.05, 0.2, 1.0)
"""Before what is only for now refused (`error:`, `rate-limited:`) is tried again."""
_FOR_NOW: Final = ("error:", "rate-limited:")


@click.command("import", epilog="Example: rookery import events.jsonl --data ./data --trust")
@click.argument(
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
@folder_option
@click.option(
    "--trust",
    is_flag=True,
    help="Do not ask who may write: for an own export, or a move from another relay.",
)
@json_option
def import_command(file: Path, folder: Path, *, trust: bool, as_json: bool) -> int:
    """Read JSON lines of events ("-": from stdin).

    Every event is verified. What is refused is named on stderr by its line; then the exit code is
    1. Stopped half way, the same command goes on where it was.
    """
    origin = Origin.TRUSTED_IMPORT if trust else Origin.IMPORT
    if file == Path("-"):
        tally = asyncio.run(_import(folder, sys.stdin.buffer, None, origin))
    else:
        with file.open("rb") as source:
            tally = asyncio.run(_import(folder, source, file, origin))
    if as_json:
        print_json({"file": str(file), **asdict(tally)})
    else:
        click.echo(str(tally))
    return 1 if tally.refused else 0


async def _import(folder: Path, source: BinaryIO, path: Path | None, origin: Origin) -> Tally:
    """`path`: where `source` was opened; None is stdin."""
    from relay.cli.data_folder import open_folder

    name = "stdin" if path is None else str(path)
    async with open_folder(folder) as opened:
        bookmark = None if path is None else Bookmark.of(folder, source, path, origin)
        place = bookmark.read() if bookmark is not None else Place()
        with progress_bar(Amount.BYTES, RATE) as progress:

            def say(text: str) -> None:
                progress.console.out(printable(text), highlight=False)

            if place.offset:
                say(f"{name}: goes on behind line {place.line}, where an earlier import stopped")
                source.seek(place.offset)
            total = None if bookmark is None else bookmark.size
            task = progress.add_task("import", total=total, completed=place.offset, rate="")
            began, before = perf_counter(), place.tally.read

            def note(place: Place) -> None:
                if bookmark is not None:
                    bookmark.write(place)
                rate = (place.tally.read - before) / max(perf_counter() - began, 1e-3)
                progress.update(task, completed=place.offset, rate=f"{rate:,.0f} events/s")

            try:
                await import_events(opened, source, name, origin, place, say=say, note=note)
            except StoreFault as fault:
                raise UserError(f"{fault}; {_stopped(name, place)}") from fault
            except asyncio.CancelledError:
                say(_stopped(name, place))
                raise
        if bookmark is not None:
            bookmark.remove()
        return place.tally


def _stopped(name: str, place: Place) -> str:
    return f"{name} is imported up to line {place.line}; the same command goes on there"


async def import_events(
    folder: Folder,
    source: BinaryIO,
    name: str,
    origin: Origin,
    place: Place,
    *,
    say: Say,
    note: Callable[[Place], None],
    pauses_s: Sequence[float] = _PAUSES_S,
) -> None:
    """Submit the lines of `source`, which stands at `place`; `place` moves with each batch.

    `say` hears every refusal, in order of lines; `note` the place after each acknowledged batch.
    Raises StoreFault when the folder takes nothing any more: then `place` is before that batch.
    """
    while batch := batch_of(source, place):
        events = [event for _, event in batch.events]
        answers = await settled(folder, events, origin, pauses_s)
        refused = dict(batch.refused)
        tally = place.tally
        for (line, event), answer in zip(batch.events, answers, strict=True):
            ending = ending_of(event, answer)
            tally.add(ending)
            if ending is Ending.REFUSED:
                refused[line] = f"{answer[1]} (id {event.id})"
        for line in sorted(refused):
            say(f"{name}:{line}: {refused[line]}")
        for _ in batch.refused:
            tally.add(Ending.REFUSED)
        place.offset, place.line = batch.offset, batch.line
        note(place)


async def settled(
    folder: Folder, events: Sequence[Event], origin: Origin, pauses_s: Sequence[float] = _PAUSES_S
) -> Sequence[tuple[bool, str]]:
    """The answers, asked for again where they said "not now". Raises StoreFault."""
    if not events:
        return []
    answers = list(await folder.submit(events, origin))
    for pause in pauses_s:
        waiting = _for_now(answers)
        if not waiting:
            return answers
        await asyncio.sleep(pause)
        again = await folder.submit([events[number] for number in waiting], origin)
        for number, answer in zip(waiting, again, strict=True):
            answers[number] = answer
    # One event that fails for ever is told as refused; when all do, it is not for their own sake,
    # and going on would only mean to refuse the rest of the file as well.
    if 1 < len(answers) == len(_for_now(answers)):
        raise StoreFault(answers[0][1])
    return answers


def _for_now(answers: Sequence[tuple[bool, str]]) -> Sequence[int]:
    return [
        number
        for number, (accepted, text) in enumerate(answers)
        if not accepted and text.startswith(_FOR_NOW)
    ]
