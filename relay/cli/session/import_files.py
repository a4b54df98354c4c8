"""`rookery session import FILE|DIR…`"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from relay.cli.humanize import counted
from relay.cli.options import Server, client_options, print_json, printable
from relay.cli.progress import Amount, progress_bar
from relay.cli.session.common import PATH, forgotten_notice, on_relay, plan_of, plan_options
from relay.client.transcripts.files import files_in, root_of, session_file, session_ids
from relay.errors import Invalid, UserError
from relay.memory.transcripts.lines import SessionFacts, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from relay.client.transcripts import ImportResult, Transcripts
    from relay.client.transcripts.files import SessionFile


@click.command(
    "import", epilog="Example: rookery session import ~/.claude/projects/-home-me-rook --group tea"
)
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="FILE|DIR...")
@plan_options
@client_options
def import_command(
    paths: tuple[Path, ...],
    session_id: str | None,
    group: str | None,
    max_inner: int | None,
    parts: tuple[str, ...],
    server: Server,
    *,
    sealed: bool,
    raw_paths: bool,
    classic: bool,
    with_machine: bool,
    as_json: bool,
) -> int:
    """Send session files to the relay: every line unchanged, and readable notes.

    Folders are searched for .jsonl files. Events the relay already has are not sent again, so an
    interrupted import is continued by the same command. One of several files that cannot be sent
    does not keep out the others; the exit code is 1 then.
    """
    files = _files(paths)
    if session_id is not None and len(files) > 1:
        raise click.UsageError(f"--session is for one file, not {len(files)}")
    plan = plan_of(
        session_id, group, parts, raw_paths=raw_paths, classic=classic, with_machine=with_machine
    )

    async def work(transcripts: Transcripts) -> bool:
        fitted = await transcripts.fitted(plan, max_inner)
        all_taken = True
        with _progress(sum(file.size for file in files.values())) as advance:
            before = 0
            for id_, file in files.items():
                is_own = session_id is not None or id_ == file.session
                own = fitted if is_own else replace(fitted, session=id_)
                if not is_own:
                    transcripts.note_renamed(id_, file.session)
                try:
                    result = await transcripts.import_session(file, own, partial(advance, before))
                except (UserError, Invalid, OSError) as fault:
                    if len(files) == 1:
                        raise
                    told = f"{file.path} was not imported to its end: {fault}"
                    click.echo(printable(told), err=True)
                    all_taken = False
                    continue
                finally:
                    before += file.size
                _report(result, file, is_renamed=not is_own, as_json=as_json)
                all_taken = all_taken and not result.refused
        return all_taken

    return 0 if on_relay(server, work, is_sealed=sealed) else 1


def _files(paths: Sequence[Path]) -> Mapping[str, SessionFile]:
    """Session id → file, for all paths given. Raises UserError."""
    found: dict[Path, SessionFile] = {}
    for path in paths:
        inside = files_in(path)
        if not inside:
            raise UserError(f"{path} contains no session file (*.jsonl)")
        for file in inside:
            try:
                found[file] = session_file(file, root_of(path))
                if not _has_an_object(found[file]):
                    del found[file]
                    raise UserError(f"{file} is no session: no line of it is a JSON object")
            except UserError as fault:
                if file == path:
                    raise
                click.echo(f"skipped: {printable(str(fault))}", err=True)
    if not found:
        raise UserError("none of these files is a session")
    chosen: dict[str, SessionFile] = {}
    for at, id_ in session_ids(found.values()).items():
        of_session = [each for each in (chosen.get(id_), found[at]) if each is not None]
        longest = chosen[id_] = max(of_session, key=lambda each: each.size)
        for each in of_session:
            if each is not longest:
                shown = printable(str(each.path)), printable(str(longest.path))
                click.echo(f"skipped: {shown[0]} is the beginning of {shown[1]}", err=True)
    return chosen


def _has_an_object(file: SessionFile) -> bool:
    if file.opening != SessionFacts():
        return True
    return any(line_of(0, raw).fields is not None for raw in file.lines())


def _report(result: ImportResult, file: SessionFile, *, is_renamed: bool, as_json: bool) -> None:
    if as_json:
        refused = [str(refusal) for refusal in result.refused]
        print_json(
            {**asdict(replace(result, refused=())), "file": str(file.path), "refused": refused}
        )
    else:
        click.echo(
            f"{printable(result.session)}: {counted(result.lines, 'line')},"
            f" {counted(result.notes, 'note')},"
            f" {counted(result.archive, 'source event')}, {result.stored} stored,"
            f" {counted(result.duplicates, 'duplicate')}"
        )
    if is_renamed:
        name, named = printable(file.path.name), printable(file.session)
        click.echo(
            f"  {name} was written by a sub-agent of session {named}"
            if file.is_of_sub_agent
            else f"  {name} names session {named}, as another file does",
            err=True,
        )
    if result.secrets:
        click.echo(
            f"  {counted(result.secrets, 'line')} with what looks like a secret, sent as they are;"
            " --strip secrets takes it out",
            err=True,
        )
    if result.forgotten:
        click.echo(forgotten_notice(result.forgotten), err=True)
    for reason, count in Counter(map(str, result.refused)).items():
        click.echo(f"  refused {count}: {printable(reason)}", err=True)
    if result.others:
        click.echo(
            f"  the relay has {result.others} other events of this session: the file was"
            " rewritten since, or another file was sent under its id (see --session)",
            err=True,
        )


@contextmanager
def _progress(size: int) -> Iterator[Callable[[int, int], None]]:
    with progress_bar(Amount.BYTES, Amount.SPEED) as progress:
        task = progress.add_task("", total=size)
        yield lambda before, read: progress.update(task, completed=before + read)
