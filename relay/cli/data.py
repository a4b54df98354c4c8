"""`rookery export` and `rookery import`: a folder's events as JSON lines, out and in.

Both work on a folder whether a relay runs on it or not (`relay.cli.serve.open_folder`). An import
may be stopped and started again: it goes on behind the last batch that was acknowledged, and what
it repeats is a duplicate, not a second copy.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO, Final, assert_never

import click
import msgspec
import orjson

from relay.cli.options import json_option, print_json, printable
from relay.cli.progress import Amount, progress_bar
from relay.config import load_config
from relay.errors import Invalid, Refused, StoreFault, UserError
from relay.nostr.event import Event, event_from, is_hex64
from relay.nostr.filters import Filter, filter_from
from relay.nostr.kinds import is_ephemeral
from relay.verdict import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relay.nostr.filters import FilterTerms
    from relay.server.control import Folder

    Say = Callable[[str], None]

MAX_LINE: Final = 4 * 2**20
"""Bytes of one line of an import."""
_RATE: Final = "{task.fields[rate]}"
_BATCH_EVENTS: Final = 512
_BATCH_BYTES: Final = 8 * 2**20
_BATCH_LINES: Final = 4096
"""Of which most are refused or blank; a file of nothing else must not be held as one batch."""
_PAUSES_S: Final = (0.05, 0.2, 1.0)
"""Before what is only for now refused (`error:`, `rate-limited:`) is tried again."""
_FOR_NOW: Final = ("error:", "rate-limited:")

folder_option = click.option(
    "--data", "folder", default="data", show_default=True, metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path), help="The relay's folder.",
)  # fmt: skip


# -- export ---------------------------------------------------------------------------------------


@click.command("export", epilog="Example: rookery export --data ./data -o events.jsonl")
@folder_option
@click.option(
    "--filter", "filter_text", metavar="JSON",
    help="""Only events that match, as in a REQ: '{"kinds":[9],"#h":["tea"]}'.""",
)  # fmt: skip
@click.option(
    "-o", "--output", "target", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write here instead of stdout: the whole file or none.",
)  # fmt: skip
@json_option
def export_command(
    folder: Path, filter_text: str | None, target: Path | None, *, as_json: bool
) -> int:
    """Write stored events as JSON lines, in the order in which they were stored.

    With --json the summary is JSON; without -o, where stdout has the events, it is on stderr.
    """
    filter_ = None if filter_text is None else _filter_from(filter_text, folder)
    if target == Path("-"):
        target = None
    try:
        with ExitStack() as stack:
            if target is None:
                out = sys.stdout.buffer
            else:
                out = stack.enter_context(written_whole(target))
            done = asyncio.run(_export(folder, filter_, out, target))
            out.flush()
    except BrokenPipeError:
        # `rookery export | head`: its reader has what it wanted. Python must not try to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if as_json and target is not None:
        print_json({**asdict(done), "file": str(target)})
    elif as_json:
        click.echo(orjson.dumps(done), err=True)
    elif target is not None or sys.stderr.isatty():
        place = "" if target is None else f" to {printable(str(target))}"
        click.echo(f"{done.events} events, {done.bytes} bytes{place}", err=True)
    return 0


@dataclass(slots=True)
class Exported:
    events: int = 0
    bytes: int = 0


async def _export(
    folder: Path, filter_: Filter | None, out: BinaryIO, target: Path | None
) -> Exported:
    from relay.cli.serve import open_folder

    # Progress among the events themselves, when both go to one terminal, helps nobody.
    is_shown = sys.stderr.isatty() and (target is not None or not sys.stdout.isatty())
    async with open_folder(folder) as opened:
        # The head counts rows that are no more as well: at the end the bar takes a leap.
        total = await opened.head() if filter_ is None else None
        with progress_bar(Amount.OF_TOTAL, _RATE, is_shown=is_shown) as progress:
            task = progress.add_task("export", total=total, rate="")
            began = perf_counter()

            def note(done: Exported) -> None:
                rate = done.events / max(perf_counter() - began, 1e-3)
                progress.update(task, completed=done.events, rate=f"{rate:,.0f} events/s")

            done = await export_events(opened, filter_ or Filter(), out, note)
            progress.update(task, total=done.events, completed=done.events)
            return done


async def export_events(
    folder: Folder, filter_: Filter, out: BinaryIO, note: Callable[[Exported], None]
) -> Exported:
    """Write what matches to `out`; `note` hears how far it is, after each page."""
    done = Exported()
    pages = folder.events(filter_)
    try:
        async for rows in pages:
            if rows:
                done.events += len(rows)
                done.bytes += out.write(b"\n".join((*rows, b"")))
                note(done)
    finally:
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()
    return done


def _filter_from(text: str, folder: Path) -> Filter:
    return filter_of(text, load_config(folder / "rookery.toml").storage.terms)


def filter_of(text: str, terms: FilterTerms) -> Filter:
    """The value of --filter, for who takes all that matches. Raises BadParameter."""
    try:
        filter_ = filter_from(orjson.loads(text), terms)
    except orjson.JSONDecodeError as wrong:
        raise _bad_filter(f"not JSON (column {wrong.colno})") from None
    except Refused as refused:
        raise _bad_filter(refused.text) from None
    if filter_.limit is not None or filter_.search is not None:
        raise _bad_filter("limit and search choose among matches; here all of them are taken")
    return filter_


def _bad_filter(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="--filter")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete and on disk; else nothing changes.

    It is the owner's alone: an export holds what private groups say. What is no plain file (a pipe,
    /dev/null) is written as it is.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as wrong:
        raise UserError(f"{path.parent}: nothing can be written there: {wrong.strerror}") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


# -- import ---------------------------------------------------------------------------------------


@click.command("import", epilog="Example: rookery import events.jsonl --data ./data --trust")
@click.argument(
    "file", metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)  # fmt: skip
@folder_option
@click.option(
    "--trust", is_flag=True,
    help="Do not ask who may write: for an own export, or a move from another relay.",
)  # fmt: skip
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


@dataclass(slots=True)
class Tally:
    """What became of the lines so far, earlier runs of a resumed import included."""

    read: int = 0
    stored: int = 0
    passed_on: int = 0
    duplicates: int = 0
    superseded: int = 0
    refused: int = 0

    def __str__(self) -> str:
        parts = [f"{self.read} read", f"{self.stored} stored"]
        if self.passed_on:
            parts.append(f"{self.passed_on} passed on")
        parts.append(f"{self.duplicates} duplicate{'' if self.duplicates == 1 else 's'}")
        if self.superseded:
            parts.append(f"{self.superseded} superseded")
        parts.append(f"{self.refused} refused")
        return ", ".join(parts)

    def add(self, ending: Ending) -> None:
        self.read += 1
        match ending:
            case Ending.STORED:
                self.stored += 1
            case Ending.PASSED_ON:
                self.passed_on += 1
            case Ending.DUPLICATE:
                self.duplicates += 1
            case Ending.SUPERSEDED:
                self.superseded += 1
            case Ending.REFUSED:
                self.refused += 1
            case _:
                assert_never(ending)


class Ending(Enum):
    """How a line of an import ended."""

    STORED = auto()
    PASSED_ON = auto()
    """Ephemeral: to who listens now, and gone."""
    DUPLICATE = auto()
    SUPERSEDED = auto()
    REFUSED = auto()


def ending_of(event: Event, answer: tuple[bool, str]) -> Ending:
    """Read from the OK of this event (contract §6)."""
    accepted, text = answer
    is_duplicate = text.startswith("duplicate:")
    if accepted:
        if is_duplicate:
            return Ending.DUPLICATE
        return Ending.PASSED_ON if is_ephemeral(event.kind) else Ending.STORED
    return Ending.SUPERSEDED if is_duplicate else Ending.REFUSED


@dataclass(slots=True)
class Place:
    """How far an import is: behind this byte and this line everything is still to do."""

    offset: int = 0
    line: int = 0
    tally: Tally = field(default_factory=Tally)


async def _import(folder: Path, source: BinaryIO, path: Path | None, origin: Origin) -> Tally:
    """`path`: where `source` was opened; None is stdin."""
    from relay.cli.serve import open_folder

    name = "stdin" if path is None else str(path)
    async with open_folder(folder) as opened:
        bookmark = None if path is None else Bookmark.of(folder, source, path, origin)
        place = bookmark.read() if bookmark is not None else Place()
        with progress_bar(Amount.BYTES, _RATE) as progress:

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
    folder: Folder, source: BinaryIO, name: str, origin: Origin, place: Place, *,
    say: Say, note: Callable[[Place], None], pauses_s: Sequence[float] = _PAUSES_S,
) -> None:  # fmt: skip
    """Submit the lines of `source`, which stands at `place`; `place` moves with each batch.

    `say` hears every refusal, in order of lines; `note` the place after each acknowledged batch.
    Raises StoreFault when the folder takes nothing any more: then `place` is before that batch.
    """
    while batch := _batch_of(source, place):
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
        number for number, (accepted, text) in enumerate(answers)
        if not accepted and text.startswith(_FOR_NOW)
    ]  # fmt: skip


@dataclass(slots=True)
class _Batch:
    """Some lines of the file: what they hold, what is wrong with them, where they end."""

    offset: int
    line: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def _batch_of(source: BinaryIO, place: Place) -> _Batch | None:
    """The lines behind `place`, up to the bounds of a batch; None at the end of the file."""
    batch = _Batch(place.offset, place.line)
    while (
        len(batch.events) < _BATCH_EVENTS
        and batch.offset - place.offset < _BATCH_BYTES
        and batch.line - place.line < _BATCH_LINES
    ):
        text, size = _line(source)
        if not size:
            break
        batch.offset += size
        batch.line += 1
        if text is None:
            batch.refused[batch.line] = f"invalid: line is over {MAX_LINE} bytes"
            continue
        text = text.removeprefix(b"\xef\xbb\xbf") if batch.line == 1 else text
        if not text.strip():
            continue
        try:
            batch.events.append((batch.line, _event(text)))
        except Refused as refused:
            batch.refused[batch.line] = str(refused)
    return batch if batch.line > place.line else None


def _line(source: BinaryIO) -> tuple[bytes | None, int]:
    """A line (None: too long to be looked at) and its size in the file; size 0 at the end."""
    text = source.readline(MAX_LINE + 1)
    size = len(text)
    if size <= MAX_LINE or text.endswith(b"\n"):
        return text, size
    while not text.endswith(b"\n"):
        text = source.readline(MAX_LINE)
        if not text:
            break
        size += len(text)
    return None, size


def _event(text: bytes) -> Event:
    """Raises Invalid; its text ends with the id where one can be read."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as wrong:
        raise Invalid(f"not JSON (column {wrong.colno})") from None
    try:
        return event_from(fields)
    except Invalid as invalid:
        if isinstance(fields, dict) and is_hex64(fields.get("id")):
            raise Invalid(f"{invalid.text} (id {fields['id']})") from None
        raise


class _Note(msgspec.Struct, frozen=True):
    """What a bookmark file holds."""

    origin: str
    offset: int
    line: int
    tally: Tally


class Bookmark:
    """DIR/import-….resume: where an import of this file stopped.

    Its name comes from the file's path, size and time of change: another text begins anew.
    """

    def __init__(self, path: Path, size: int, origin: Origin) -> None:
        self._path = path
        self.size = size
        """Bytes of the file that is imported."""
        self._origin = origin.name

    @classmethod
    def of(cls, folder: Path, source: BinaryIO, path: Path, origin: Origin) -> Bookmark | None:
        """None for what cannot be read twice, as a pipe."""
        about = os.fstat(source.fileno())
        if not stat.S_ISREG(about.st_mode):
            return None
        key = f"{os.path.abspath(path)}\0{about.st_size}\0{about.st_mtime_ns}"
        digest = sha256(os.fsencode(key)).hexdigest()[:16]
        return cls(folder / f"import-{digest}.resume", about.st_size, origin)

    def read(self) -> Place:
        """The beginning when there is no note, none that can be read, or one of another origin."""
        try:
            note = msgspec.json.decode(self._path.read_bytes(), type=_Note)
        except (FileNotFoundError, msgspec.DecodeError):
            return Place()
        if note.origin != self._origin or not 0 <= note.offset <= self.size:
            return Place()
        return Place(note.offset, note.line, note.tally)

    def write(self, place: Place) -> None:
        # Not synced: a note that is lost or old repeats some lines, as duplicates.
        part = self._path.with_suffix(".part")
        note = _Note(self._origin, place.offset, place.line, place.tally)
        part.write_bytes(msgspec.json.encode(note))
        part.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
