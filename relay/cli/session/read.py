"""`rookery session list|show|search`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from relay.cli.names import Names, names_by, profile_names
from relay.cli.options import (
    Server,
    Words,
    client_options,
    console,
    format_option,
    limit_option,
    print_json,
    printable,
    printable_lines,
    server_options,
)
from relay.cli.session.chat import render
from relay.cli.session.common import of_session, on_relay, session_argument
from relay.cli.session.pager import Pager
from relay.cli.tables import Column, Holds, print_found, print_nothing_found
from relay.client.transcripts import Detail, NoSession
from relay.memory.fence import attributed, attribution, recalled
from relay.memory.times import utc
from relay.memory.transcripts.view import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relay.client.transcripts import Conversation, Listed, Transcripts
    from relay.memory.transcripts.display import Note
    from relay.memory.transcripts.lines import Fields


@click.command("list", epilog="Example: rookery session list --json")
@click.option("--all", "include_deleted", is_flag=True, help="Include deleted sessions.")
@client_options
def list_command(server: Server, *, include_deleted: bool, as_json: bool) -> None:
    """List the sessions that this key may read, newest first."""

    async def work(transcripts: Transcripts) -> tuple[list[Listed], Names]:
        rows = await transcripts.sessions(include_deleted=include_deleted)
        return rows, await names_by(transcripts.read, {row.author for row in rows})

    rows, names = on_relay(server, work)
    if as_json:
        print_json([_as_json(row) for row in rows])
        return
    columns = (
        Column("Session", Holds.KEY),
        Column("Title"),
        Column("Author", Holds.KEY),
        Column("Status", Holds.KEY),
        Column("Notes", Holds.NUMBER),
        Column("Last", Holds.KEY),
    )
    print_found(
        columns,
        [
            (
                printable(row.session),
                printable(row.title),
                names.shown(row.author),
                row.status or "",
                str(row.notes),
                _time(row.last_ms),
            )
            for row in rows
        ],
        "`rookery session import FILE|DIR` adds sessions",
    )


@click.command("show", epilog="Example: rookery session show 5b0f6a1e… --full")
@session_argument
@click.option("--full", is_flag=True, help="Show full tool input and output.")
@client_options
def show_command(session: str, server: Server, *, full: bool, as_json: bool) -> None:
    """Show a session as a conversation, with shortened tool calls; `view` shows it full screen."""

    detail = Detail.LINES if full else Detail.TYPES
    conversation, authors = _conversation(server, session, detail)
    notes = conversation.notes
    if as_json:
        print_json([_note_as_json(note, conversation.lines.get(note.id)) for note in notes])
        return
    out = console()
    for text in render(conversation.blocks(), out.width, authors, is_full=full):
        out.print(text, soft_wrap=True)


@click.command("view", epilog="Example: rookery session view 5b0f6a1e…")
@session_argument
@server_options
def view_command(session: str, server: Server) -> None:
    """Read a session full screen: tools folded, changes as diffs; ? lists the keys.

    Without a terminal it is printed, as `show --full` does.
    """
    found, authors = _conversation(server, session, Detail.LINES)
    if console().is_terminal and sys.stdin.isatty():
        from relay.cli.session import screen

        if screen.is_possible():
            screen.run(Pager(found.blocks(), session, authors))
            return
    out = console()
    for text in render(found.blocks(), out.width, authors, is_full=True):
        out.print(text, soft_wrap=True)


def _conversation(
    server: Server, session: str, detail: Detail
) -> tuple[Conversation, Mapping[str, str]]:
    """And the names of its authors, if the reader is not the only one. `session`: as in
    `of_session`. Says what is uncertain about its order. Raises UserError."""

    async def work(transcripts: Transcripts) -> tuple[Conversation, Mapping[str, str]]:
        async def read(id_: str) -> Conversation:
            found = await transcripts.conversation(id_, detail)
            if not found.notes:
                raise NoSession(id_)
            return found

        found = (await of_session(transcripts, session, read))[1]
        authors = {note.author for note in found.notes}
        if authors == {transcripts.pubkey}:
            return found, {}
        names = await names_by(transcripts.read, authors)
        return found, {author: names.shown(author) for author in authors}

    conversation, authors = on_relay(server, work)
    if conversation.notice is not None:
        click.echo(conversation.notice, err=True)
    return conversation, authors


@click.command("search", epilog="Example: rookery session search 'migration failed' --limit 5")
@click.argument("query", type=Words(), metavar="Q")
@click.option("--session", "session_id", metavar="S", help="Only in this session.")
@click.option("--group", metavar="G", help="Only in sessions of this group.")
@limit_option(20)
@format_option("text")
@client_options
def search_command(
    query: str,
    session_id: str | None,
    group: str | None,
    limit: int,
    form: str,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Find notes with these words in all sessions, best first."""

    async def work(transcripts: Transcripts) -> tuple[list[Note], str, Mapping[str, str]]:
        if not await transcripts.searches():
            click.echo(
                f"{transcripts.url} does not support search: notes are fetched and scanned",
                err=True,
            )
        notes = await transcripts.search(query, session_id, group, limit)
        authors = () if as_json else {note.author for note in notes}
        names = await profile_names(transcripts.read, authors)
        return notes, transcripts.pubkey, names

    notes, reader, names = on_relay(server, work)
    if as_json:
        print_json([_note_as_json(note) for note in notes])
    elif not notes:
        print_nothing_found()
    elif form == "context":
        for note in notes:
            at = _time(note.ms).split()
            source = ("transcripts", "session", note.session, note.role, *at)
            name = names.get(note.author)
            fenced = recalled(note.content, source, note.author, reader, name)
            click.echo(printable_lines(fenced))
    else:
        _print_hits(notes, reader, names)


def _print_hits(notes: Iterable[Note], reader: str, names: Mapping[str, str]) -> None:
    for note in notes:
        head = f"{note.session}  {_time(note.ms)}  {note.role}  {note.id[:8]}"
        is_own = note.author == reader
        by = "" if is_own else attribution(note.author, names.get(note.author))
        click.echo(printable(attributed(head, by)))
        for line in note.content.splitlines()[:3]:
            click.echo(f"  {printable(line)[:160]}")


def _as_json(row: Listed) -> dict[str, object]:
    return {
        "session": row.session,
        "title": row.title,
        "status": row.status,
        "notes": row.notes,
        "last": row.last_ms // 1000,
        "author": row.author,
        "cwd": row.cwd,
    }


def _note_as_json(note: Note, line: Fields | None = None) -> dict[str, object]:
    """`line`: of a note that is no message."""
    return {
        "id": note.id,
        "author": note.author,
        "session": note.session,
        "ms": note.ms,
        "role": note.role,
        "type": note.line_type,
        "content": note.content or ("" if line is None else text_of(line)),
        "tool_id": note.tool_id,
        "tool_name": note.tool_name,
        "model": note.model,
        "truncated": note.is_cut,
    }


def _time(ms: int) -> str:
    return utc(ms // 1000)  # `ms` is the time the note claims
