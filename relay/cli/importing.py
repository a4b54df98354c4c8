"""`rookery import`: store events from JSON lines in a data folder, with or without a running relay.

It can be interrupted and repeated: it continues after the last acknowledged batch, if the store has
that still, and repeated lines are duplicates.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from relay.cli.group_records import GroupRecords
from relay.cli.import_lines import (
    ImportProgress,
    Lines,
    Outcome,
    Place,
    batch_of,
    lines_before_targets,
    outcome_of,
)
from relay.cli.options import (
    Colour,
    coloured,
    json_option,
    new_folder_option,
    print_json,
    printable,
)
from relay.cli.progress import RATE, Amount, progress_bar, tell
from relay.client.sync import filters_for_groups, groups_in, is_another
from relay.errors import StoreFault, UserError, WriteOutcome, is_error, ok_reply
from relay.facts import Origin
from relay.files import own_file
from relay.memory.fence import shell_word
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.server.control import INDEXED_VALUES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from relay.cli.import_lines import Batch, Tally
    from relay.nostr.event import Event
    from relay.server.control import Folder

    Report = Callable[[str], None]

_RETRY_DELAYS_S: Final = (0.05, 0.2, 1.0, 3.0, 6.0)
"""Delays before what could not be stored (`error:`) is tried again: space may be made meanwhile."""
_LONG_S: Final = 1.0
"""From here on a delay is explained."""
_OTHER_GROUP: Final = (
    "restricted: the group of this id here is another one, or there is none; only --trust imports"
    " its events"
)
_NEVER_LATER: Final = frozenset({*kinds.GROUP_RECORDS, kinds.DELETION, kinds.VANISH})
"""Kinds that give or take rights, or delete: stored after a later one, it could undo that."""
_IS_THERE: Final = ok_reply(WriteOutcome.DUPLICATE)
_NOT_TRIED: Final = (False, "")
_NO_LINES: Final = Lines()
_MAX_CHAIN: Final = 8
"""Events of which each names one of a later line."""
_MAX_LISTED: Final = 1_000_000
"""Refused lines listed in one run: a file that is no export may consist of such lines."""


@click.command("import", epilog="Example: rookery import events.jsonl --data ./data --trust")
@click.argument(
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
@new_folder_option
@click.option(
    "--trust",
    is_flag=True,
    help="Skip write permissions, also in groups, and the limit of dates in the future: for an"
    " export of this relay, or of one that moves here.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only count lines and group records (kinds 9000 to 9022) and report the changes of these.",
)
@click.option("-v", "verbose", is_flag=True, help="List each refused line on stderr.")
@click.option(
    "--refused",
    "refusals",
    metavar="F",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append each refused line with its reason to this file.",
)
@json_option
def import_command(
    file: Path,
    folder: Path,
    refusals: Path | None,
    *,
    trust: bool,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Store events from JSON lines in FILE ("-": stdin).

    Every event is verified, and may be of any age; one dated ahead of the clock by more than
    [limits] created_at_upper is refused. Refusals are counted by reason on stderr, and the exit
    code is 1; -v lists the lines. Events in which another relay describes its groups and members
    are skipped. Events deleted here are refused (`blocked: deleted`), even with --trust; the author
    can sign the text again as a new event. After an interruption the same command continues where
    it stopped.

    Group records are counted on stderr before anything is stored (from stdin: batch by batch).
    Without --trust, records older than the existing group are refused, and so is 9008 for a group
    with events. A file with the newest events first is not imported if it creates a group.
    """
    if dry_run:
        return _dry_run(file, as_json=as_json)
    origin = Origin.TRUSTED_IMPORT if trust else Origin.IMPORT
    if not folder.is_dir():
        raise UserError(
            f"{folder} does not exist: `rookery restore FILE {shell_word(folder)}` restores a"
            f" backup, with the relay's key; `rookery init {shell_word(folder)} --owner KEY` makes"
            " a new relay"
        )
    with ExitStack() as opened:
        listed: list[Report] = []
        if verbose:
            listed.append(lambda text: click.echo(printable(text), err=True))
        if refusals is not None:
            file_of_refusals = own_file(refusals, os.O_APPEND | os.O_NOFOLLOW)
            out = opened.enter_context(os.fdopen(file_of_refusals, "a", encoding="utf-8"))
            listed.append(lambda text: print(printable(text), file=out))
        is_stdin = file == Path("-")
        source = sys.stdin.buffer if is_stdin else opened.enter_context(file.open("rb"))
        path = None if is_stdin else file
        tally = asyncio.run(_import(folder, source, path, origin, listed))
    for text, reason in sorted(tally.reasons.items(), key=lambda each: -each[1].count):
        where = (
            f"line {reason.first_line}" if reason.count == 1 else f"first line {reason.first_line}"
        )
        refused = coloured("refused", Colour.REFUSED, sys.stderr)
        click.echo(f"{refused} {reason.count:,} × {printable(text)} ({where})", err=True)
    if tally.left_out:
        click.echo(
            f"skipped {tally.left_out:,}: another relay's events about its groups and members"
            " (39000 to 39005, 44100 …); this relay signs its own",
            err=True,
        )
    if tally.refused and not listed:
        click.echo("-v lists the refused lines, --refused F writes them to a file", err=True)
    if as_json:
        print_json({"file": str(file), **asdict(tally)})
    else:
        click.echo(str(tally))
    return 1 if tally.refused else 0


def _dry_run(file: Path, *, as_json: bool) -> int:
    records = GroupRecords()
    with click.open_file(str(file), "rb") as source:
        lines = records.add_lines(source)
    if records:
        click.echo(printable(_announcement(file, records)), err=True)
    if as_json:
        print_json({"file": str(file), "read": lines, "stored": 0})
    else:
        click.echo(f"{lines} read, nothing stored")
    return 0


def _announcement(file: Path | None, records: GroupRecords) -> str:
    name = "stdin" if file is None or file == Path("-") else str(file)
    return f"{name} has group records: {records}"


async def _import(
    folder: Path, source: BinaryIO, path: Path | None, origin: Origin, listed: Sequence[Report]
) -> Tally:
    """`path`: the file opened as `source`; None is stdin."""
    from relay.cli.data_folder import open_folder

    name = "stdin" if path is None else str(path)
    async with open_folder(folder) as opened:
        progress_file = None if path is None else ImportProgress.of(folder, source, path, origin)
        place = progress_file.read() if progress_file is not None else Place()
        with progress_bar(Amount.BYTES, RATE) as progress:
            if place.last is not None and not await _has(opened, place.last):
                tell(
                    f"{name}: starts over: an earlier import had come to line {place.line}, but the"
                    " last event that it stored is not there"
                )
                place = Place()
            if place.offset:
                tell(f"{name}: continues after line {place.line}, where an earlier import stopped")
                source.seek(place.offset)
            early = _NO_LINES
            if progress_file is not None:
                records = GroupRecords()
                records.add_lines(source)
                if records:
                    tell(_announcement(path, records))
                    records.check_order(name)
                if origin is not Origin.TRUSTED_IMPORT:
                    # Before the messages: their 9007 may come after them.
                    await note_other_groups(opened, records.made, place)
                early = lines_before_targets(source)
                source.seek(place.offset)
            total = None if progress_file is None else progress_file.size
            task = progress.add_task("import", total=total, completed=place.offset, rate="")
            began, before = perf_counter(), place.tally.read

            def note(place: Place) -> None:
                if progress_file is not None:
                    progress_file.write(place)
                rate = (place.tally.read - before) / max(perf_counter() - began, 1e-3)
                progress.update(task, completed=place.offset, rate=f"{rate:,.0f} events/s")

            numbers = count(1)

            def report_line(text: str) -> None:
                number = next(numbers)
                if number > _MAX_LISTED + 1:
                    return
                for each in listed:
                    each(text if number <= _MAX_LISTED else "more lines are only counted")

            def announce(events: Iterable[Event]) -> None:
                records = GroupRecords()
                for event in events:
                    records.add(event.kind, event.tags, event.id)
                if records and progress_file is None:
                    tell(_announcement(path, records))
                    records.check_order(name)

            try:
                await import_events(
                    opened,
                    source,
                    name,
                    origin,
                    place,
                    announce,
                    early=early,
                    report=report_line,
                    note=note,
                )
            except StoreFault as fault:
                raise UserError(f"{fault}; {_stopped(name, place)}") from fault
            except (asyncio.CancelledError, KeyboardInterrupt):
                tell(_stopped(name, place))
                raise
        if progress_file is not None:
            progress_file.remove()
        return place.tally


async def _has(folder: Folder, event_id: str) -> bool:
    return any([page async for page in folder.events(Filter(ids=(event_id,)))])


def _stopped(name: str, place: Place) -> str:
    return f"{name} is imported up to line {place.line}; repeat the command to continue"


async def import_events(
    folder: Folder,
    source: BinaryIO,
    name: str,
    origin: Origin,
    place: Place,
    announce: Callable[[Iterable[Event]], None] = lambda _: None,
    *,
    early: Lines = _NO_LINES,
    report: Report,
    note: Callable[[Place], None],
    pauses_s: Sequence[float] = _RETRY_DELAYS_S,
) -> None:
    """Submit the lines of `source`, positioned at `place`; `place` advances with each batch.

    `announce` is called with the events of each batch before they are stored, `report` with each
    refusal, in line order, `note` with the place after each acknowledged batch. The lines of
    `early` are submitted after all others. Raises StoreFault when the store accepts nothing more:
    `place` is then before that batch.
    """

    async def submit(batch: Batch) -> None:
        refused = dict(batch.refused)
        made: Mapping[str, Collection[str]] = {}
        if origin is not Origin.TRUSTED_IMPORT:
            made = groups_in(event for _, event in batch.events if event.kind == kinds.CREATE_GROUP)
            await note_other_groups(folder, made, place, are_made_next=True)
        taken = []
        for line, event in batch.events:
            # Who leads both groups would change the one here; its 9007 is refused by the rules.
            if event.kind != kinds.CREATE_GROUP and event.tag("h") in place.other_groups:
                refused[line] = f"{_OTHER_GROUP} (id {event.id})"
            else:
                taken.append((line, event))
        answers = await submit_with_retries(folder, [event for _, event in taken], origin, pauses_s)
        # After a 9007 that was refused here, anybody may make the group.
        await note_other_groups(folder, made, place)
        tally = place.tally
        for (line, event), answer in zip(taken, answers, strict=True):
            outcome = outcome_of(event, answer)
            if outcome is Outcome.REFUSED:
                refused[line] = f"{answer[1]} (id {event.id})"
            else:
                tally.add(outcome)
                # What was there before says nothing of what this import has stored.
                is_there = answer == _IS_THERE and not tally.stored
                if outcome is Outcome.STORED or is_there:
                    place.last = event.id
        for line in sorted(refused):
            tally.refuse(refused[line], line)
            report(f"{name}:{line}: {refused[line]}")

    while batch := batch_of(source, place):
        announce([event for _, event in batch.events])
        batch.events = [each for each in batch.events if not early.has(*each)]
        await submit(batch)
        place.offset, place.line = batch.offset, batch.line
        note(place)
    for round_ in range(_MAX_CHAIN):
        if not early:
            break
        is_last = round_ == _MAX_CHAIN - 1
        later = _NO_LINES if is_last else lines_before_targets(source, early)
        source.seek(0)
        again = Place()
        while batch := batch_of(source, again):
            again = Place(batch.offset, batch.line)
            batch.refused.clear()  # counted above
            batch.events = [
                each for each in batch.events if early.has(*each) and not later.has(*each)
            ]
            await submit(batch)
        early = later


async def note_other_groups(
    folder: Folder,
    made: Mapping[str, Collection[str]],
    place: Place,
    *,
    are_made_next: bool = False,
) -> None:
    """Note those of these groups, as of `groups_in`, that were made elsewhere while another of the
    same id is here: with its flags and members, it would show their messages to others, and have
    those of their records. And those that are not here, unless `are_made_next`: anybody may make
    another one meanwhile."""
    here = await groups_here(folder, made) if made else {}
    for group, there in made.items():
        is_here = group in here
        if is_another(group, there, here[group]) if is_here else not are_made_next:
            place.other_groups.add(group)
        else:
            place.other_groups.discard(group)


async def groups_here(folder: Folder, ids: Collection[str]) -> Mapping[str, Collection[str]]:
    """As `relay.client.sync.Side.groups`."""
    named = sorted(ids)
    parts = [named[at : at + INDEXED_VALUES] for at in range(0, len(named), INDEXED_VALUES)]
    events = [
        event_from_raw(raw)
        for part in parts
        for filter_ in filters_for_groups(part)
        async for raws in folder.events(filter_, Rows.ALL)
        for raw in raws
    ]
    return groups_in(events)


async def submit_with_retries(
    folder: Folder,
    events: Sequence[Event],
    origin: Origin,
    pauses_s: Sequence[float] = _RETRY_DELAYS_S,
) -> Sequence[tuple[bool, str]]:
    """The replies. An event that could not be stored is tried again, alone, before those that
    follow it.

    It is refused if the fault is shown to be its own: another event was stored, and it fails once
    more. Else raises StoreFault, and for `_NEVER_LATER` and what a 9005 deletes in any case: a
    repeated import would store it after those that follow it.

    `rate-limited:` is no such fault: rates and quotas of a day are not for imports, and waiting
    changes nothing for an author, group or recipient whose quota is full. Others may have room.
    """
    deleted = _deleted_in(events)
    answers = [_NOT_TRIED] * len(events)
    waiting, most = [*range(len(events))], len(events)
    pauses, passed_over = iter(pauses_s), list[int]()
    while waiting:
        part = waiting[:most]
        replies = await folder.submit([events[number] for number in part], origin)
        for number, reply in zip(part, replies, strict=True):
            answers[number] = reply
        failed = [number for number in part if is_error(answers[number])]
        waiting[:most] = failed
        if len(failed) < len(part):
            pauses = iter(pauses_s)
        if any(outcome_of(events[number], answers[number]) is Outcome.STORED for number in part):
            for number in passed_over:
                (answers[number],) = await folder.submit([events[number]], origin)
            passed_over.clear()
        if not failed:
            most *= 2
            continue
        most = 1
        pause = None if passed_over else next(pauses, None)
        if pause is not None:
            if pause >= _LONG_S:
                tell(f"{answers[waiting[0]][1]}; trying again in {pause:g} s")
            await asyncio.sleep(pause)
        elif (
            passed_over
            or events[waiting[0]].kind in _NEVER_LATER
            or events[waiting[0]].id in deleted
        ):
            break
        else:
            passed_over.append(waiting.pop(0))
    left = [*passed_over, *waiting]
    if left:
        raise StoreFault(f"{answers[left[0]][1]} (id {events[left[0]].id})")
    return answers


def _deleted_in(events: Sequence[Event]) -> frozenset[str]:
    """Ids that a 9005 names: it leaves no tombstone for what has no `h` and is not stored."""
    return frozenset(
        value
        for event in events
        if event.kind == kinds.DELETE_EVENT
        for value in event.tag_values("e")
    )
