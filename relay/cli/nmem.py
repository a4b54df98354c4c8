"""`rookery nmem`: the memory of coding agents.

Commands that only read the cache need neither a relay nor a key. The others sign as the agent;
their writes are queued in the cache while the relay is unreachable.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from relay.cli.connect import settings_here
from relay.cli.humanize import age_of
from relay.cli.nmem_cache import key_here, reading_here, warn
from relay.cli.nmem_status import status
from relay.cli.options import (
    CommandGroup,
    Server,
    WholeNumber,
    anyway_option,
    client_options,
    json_option,
    limit_option,
    print_counts,
    print_json,
    printable,
    report_kept_out,
)
from relay.cli.progress import progress_bar
from relay.cli.tables import Column, Holds, print_nothing_found, print_table
from relay.client.errors import ClientError
from relay.client.nmem import queries
from relay.client.nmem.hooks import is_root
from relay.client.nmem.memory import Nmem
from relay.client.nmem.queries import Order, Scope
from relay.client.nmem.reader import NotFound
from relay.client.nmem.settings import find_nmem_settings
from relay.client.settings import Actor
from relay.clock import unix_now
from relay.errors import UserError
from relay.mcp.rows import hit
from relay.memory.fence import attributed
from relay.memory.nmem.capture import project_at
from relay.memory.nmem.records import ObsType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from relay.client.nmem.apply import Progress
    from relay.client.nmem.queries import Found
    from relay.client.nmem.settings import NmemSettings

    Result = TypeVar("Result")

_TYPES: Final = frozenset([*ObsType, queries.PROMPT])
_EXCERPT: Final = 120
"""Characters of a text in a table."""
_PATIENCE_S: Final = 3.0
"""How long a purge waits for the relay."""
_ROW: Final = WholeNumber(1, 2**63 - 1)
_ROW_OR_PROMPT: Final = WholeNumber(1 - 2**63, 2**63 - 1)
"""Searches show a prompt by its id with a minus."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

project_option = click.option("--project", metavar="P", help="Only this project.")


@click.group("nmem", cls=CommandGroup, epilog="Example: rookery nmem search 'dedupe relay'")
def nmem() -> None:
    """Search and manage the history of coding agents (see `rookery hook`)."""


# -- reading the cache ----------------------------------------------------------------------------


@nmem.command("search", epilog="Example: rookery nmem search 'schema migration' --project rook")
@click.argument("query", metavar="Q")
@project_option
@click.option(
    "--type",
    "obs_type",
    metavar="T",
    help="Observation type, such as file_edit, git_commit, marker, or prompt.",
)
@limit_option(20)
@click.option("--full", is_flag=True, help="Print full rows instead of excerpts.")
@click.option("--ids", is_flag=True, help="Print ids only, one per line.")
@click.option(
    "--order-by",
    type=click.Choice([order.value for order in Order]),
    show_default=True,
    default=Order.RELEVANCE.value,
    help="blended: relevance combined with age and type.",
)
@json_option
def search(
    query: str,
    project: str | None,
    obs_type: str | None,
    limit: int,
    order_by: str,
    *,
    full: bool,
    ids: bool,
    as_json: bool,
) -> None:
    """Find observations, and prompts (negative ids), by words: a table on a terminal, else JSON."""
    if full and ids:
        raise click.UsageError("--full and --ids exclude each other")
    scope = Scope(project, obs_type)
    with reading_here() as db:
        found = queries.search(db, query, scope, Order(order_by), unix_now(), limit, 0)
    if not found and obs_type is not None and obs_type not in _TYPES:
        known = ", ".join(sorted(_TYPES))
        click.echo(f"nothing has the type {printable(obs_type)!r}; known are {known}", err=True)
    if ids and not as_json:
        for row in found:
            click.echo(row.id)
        if not found:
            print_nothing_found()
    elif ids:
        print_json([row.id for row in found])
    elif not as_json and sys.stdout.isatty():
        _print_found(found, is_full=full)
    else:
        print_json([asdict(row) if full else hit(row) for row in found])


def _print_found(found: Sequence[Found], *, is_full: bool) -> None:
    if not found:
        print_nothing_found()
    elif is_full:
        for row in found:
            head = attributed(f"{row.id}  {_when(row)}  {row.obs_type}  {row.project}", row.author)
            click.echo(printable(head))
            click.echo("\n".join(f"  {printable(line)}" for line in row.content.splitlines()))
    else:
        columns = (
            Column("Id", Holds.NUMBER),
            Column("When", Holds.KEY),
            Column("Type", Holds.KEY),
            Column("Project", Holds.KEY),
            Column("Text"),
        )
        print_table(
            columns,
            [
                (
                    str(row.id),
                    _when(row),
                    printable(row.obs_type),
                    printable(row.project),
                    printable(attributed(" ".join(row.content[:_EXCERPT].split()), row.author)),
                )
                for row in found
            ],
        )


def _when(row: Found) -> str:
    return age_of(row.timestamp, unix_now())


nmem.add_command(status)


@nmem.command("context", epilog="Example: rookery nmem context --project rook")
@click.option("--project", metavar="P", help="By default the project of the current folder.")
@json_option
def context(project: str | None, *, as_json: bool) -> None:
    """Print the context an agent gets at the start of a session in this project.

    Pinned observations, recent edits and commits, summaries of the last sessions.
    """
    name = _here() if project is None else project
    with reading_here() as db:
        text = queries.fenced_context_of(db, name, unix_now())
    if as_json:
        print_json({"project": name, "context": text})
    elif text:
        click.echo(text)
    else:
        click.echo(f'No context available for project "{printable(name)}".')


# -- writing --------------------------------------------------------------------------------------


@nmem.command("pin", epilog="Example: rookery nmem pin 42")
@click.argument("number", metavar="ID", type=_ROW)
@client_options
def pin(number: int, server: Server, *, as_json: bool) -> int:
    """Exclude an observation from expiry, and show it to new sessions."""
    return _pin(number, server, is_pinned=True, as_json=as_json)


@nmem.command("unpin", epilog="Example: rookery nmem unpin 42")
@click.argument("number", metavar="ID", type=_ROW)
@client_options
def unpin(number: int, server: Server, *, as_json: bool) -> int:
    """Let an observation expire again."""
    return _pin(number, server, is_pinned=False, as_json=as_json)


def _pin(number: int, server: Server, *, is_pinned: bool, as_json: bool) -> int:
    async def work(memory: Nmem) -> bool:
        try:
            await (memory.pin(number) if is_pinned else memory.unpin(number))
        except NotFound as missing:
            click.echo(str(missing), err=True)
            return False
        return True

    if not _with_nmem(server, work):
        return 1
    if as_json:
        print_json({"id": number, "pinned": is_pinned})
    else:
        click.echo(f"{'pinned' if is_pinned else 'unpinned'} {number}")
    return 0


@nmem.command("mark", epilog="Example: rookery nmem mark 'the migration is irreversible'")
@click.argument("text", metavar="TEXT")
@click.option("--project", metavar="P", help="By default the project of the current folder.")
@anyway_option
@client_options
def mark(text: str, project: str | None, server: Server, *, anyway: bool, as_json: bool) -> None:
    """Store a text permanently: searches find it.

    `nmem pin ID` also puts it into the context of every new session.
    """
    name = _here() if project is None else project
    if not text.strip():
        raise click.UsageError("TEXT is empty")

    async def work(memory: Nmem) -> int:
        if anyway:
            memory.sieve = None
        number = await memory.mark(text, name)
        report_kept_out(memory)
        return number

    number = _with_nmem(server, work)
    if as_json:
        print_json({"id": number})
    else:
        click.echo(number)
        click.echo(
            f"searches find it; `rookery nmem pin {number}` shows it to new sessions", err=True
        )


# -- deleting -------------------------------------------------------------------------------------


@nmem.command("purge", epilog="Example: rookery nmem purge --project old --confirm")
@click.option("--before", metavar="TIME", help="ISO date or time (UTC), or Unix seconds.")
@click.option("--older-than", metavar="AGE", help="Such as 90d, 12h, 30m.")
@project_option
@click.option("--session", metavar="S", help="Only this session: its id, or the beginning.")
@click.option(
    "--id",
    "number",
    type=_ROW_OR_PROMPT,
    metavar="ID",
    help="Only this observation; with a minus, as searches show it, only this prompt.",
)
@click.option("--type", "obs_type", metavar="T", help="Only observations of this type.")
@click.option(
    "--search", metavar="Q", help="Only rows with these words, and summaries of sessions."
)
@click.option("--confirm", is_flag=True, help="Delete; without it matches are only counted.")
@client_options
def purge(
    before: str | None,
    older_than: str | None,
    project: str | None,
    session: str | None,
    number: int | None,
    obs_type: str | None,
    search: str | None,
    server: Server,
    *,
    confirm: bool,
    as_json: bool,
) -> None:
    """Delete recorded data that matches all options, here and at the relay.

    If the relay is unreachable, the data is deleted here, and by the next `rookery nmem sync` at
    the relay.
    """
    until = None if before is None else _time(before)
    age = None if older_than is None else _age(older_than)

    async def work(memory: Nmem) -> dict[str, object]:
        removed = await memory.purge(
            before=until,
            older_than=age,
            project=project,
            session=None if session is None else await memory.session_id(session),
            id=number,
            obs_type=obs_type,
            search=search,
            confirm=confirm,
        )
        if confirm and await memory.deletions_waiting():
            await _send_deletions(memory)
        return {**asdict(removed), "deleted": confirm}

    result = _with_nmem(server, work)
    if as_json:
        print_json(result)
        return
    verb = "deleted" if confirm else "would delete"
    click.echo(
        f"{verb} {result['observations']} observations, {result['prompts']} prompts,"
        f" {result['sessions']} sessions"
        + "".join(f", {result[name]} {name}" for name in ("summaries", "tasks") if result[name])
        + ("" if confirm else "; add --confirm to delete")
    )


async def _send_deletions(memory: Nmem) -> None:
    """Send the deletions, or report that they are pending."""
    try:
        await memory.send(_PATIENCE_S)
    except (UserError, ClientError) as away:
        click.echo(printable(f"not deleted at the relay yet: {away}"), err=True)
        return
    if await memory.deletions_waiting():
        click.echo(f"not deleted at {memory.url} yet: `rookery nmem sync` retries", err=True)


@nmem.command("maintain", epilog="Example: rookery nmem maintain --sweep")
@click.option("--sweep", is_flag=True, help="Remove expired rows from the cache; the default.")
@click.option("--rebuild-fts", is_flag=True, help="Rebuild the full-text index.")
@click.option("--session", metavar="S", help="End this session and summarise it now.")
@click.option(
    "--summarise", is_flag=True, help="Summarise now every session that ended without a summary."
)
@client_options
def maintain(
    session: str | None,
    server: Server,
    *,
    sweep: bool,
    rebuild_fts: bool,
    summarise: bool,
    as_json: bool,
) -> int:
    """Maintain the cache. Rows removed from the cache stay at the relay."""

    from relay.client.nmem.summaries import summarise_all, summarise_session

    async def work(memory: Nmem, settings: NmemSettings) -> dict[str, int] | str:
        result: dict[str, int] = {}
        if settings.shortfall:
            click.echo(settings.shortfall, err=True)
        if rebuild_fts:
            await memory.rebuild_index()
            result["indexed"] = (await memory.counts()).observations
        if session is not None:
            try:
                ended = await memory.session_id(session)
                await memory.end_session(ended)
            except NotFound as missing:
                return printable(str(missing))
            result["summarised"] = await summarise_session(memory.database, settings, ended)
        if summarise:
            done, left = await summarise_all(memory.database, settings, unix_now())
            result["summarised"] = result.get("summarised", 0) + done
            result["unsummarised"] = left
        if sweep or not result:
            result |= asdict(await memory.sweep())
        return result

    result = _with_settings(server, work)
    if isinstance(result, str):
        click.echo(result, err=True)
        return 1
    print_counts(result, as_json=as_json)
    return 0


# -- synchronisation ------------------------------------------------------------------------------


@nmem.command("sync", epilog="Example: rookery nmem sync --relay wss://relay.example")
@client_options
def sync(server: Server, *, as_json: bool) -> int:
    """Send queued records, and those that the relay refused because of their author or a policy;
    fetch those of other machines."""
    with _progress("records") as progress:
        synced = _with_nmem(server, lambda memory: memory.sync(progress, retries=True))
    print_counts(asdict(synced), as_json=as_json)
    return 1 if synced.refused or synced.waiting else 0


@nmem.command("rebuild", epilog="Example: rookery nmem rebuild")
@client_options
def rebuild(server: Server, *, as_json: bool) -> None:
    """Rebuild the cache from the relay."""
    with _progress("records") as progress:
        number = _with_nmem(server, lambda memory: memory.rebuild(progress))
    print_counts({"records": number}, as_json=as_json)


@nmem.command("import", epilog="Example: rookery nmem import ~/.nmem/nmem.db")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@client_options
def import_(file: Path, server: Server, *, as_json: bool) -> None:
    """Import a database of nmem; NMEM_KEY decrypts an encrypted one."""

    async def work(memory: Nmem) -> dict[str, int]:
        with _progress("rows") as progress:
            imported = await memory.import_file(file, key_here(), progress)
        return asdict(imported)

    print_counts(_with_nmem(server, work), as_json=as_json)


# -- private --------------------------------------------------------------------------------------


def _with_nmem(server: Server, work: Callable[[Nmem], Awaitable[Result]]) -> Result:
    return _with_settings(server, lambda memory, _: work(memory))


def _with_settings(
    server: Server,
    work: Callable[[Nmem, NmemSettings], Awaitable[Result]],
) -> Result:
    home = Path.home()
    _, settings = find_nmem_settings(home)
    found = settings_here(Actor.AGENT, server)

    async def opened() -> Result:
        memory = Nmem(
            found.relay,
            found.key,
            settings.db,
            key_here(),
            secrets=settings.secret_filter(),
            group=settings.group,
            agents=settings.agents,
            # Not where a person has typed another one.
            home_relay=found.file.relay if server.relay is None else None,
        )
        async with memory:
            warn(memory.database)
            return await work(memory, settings)

    return asyncio.run(opened())


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    with progress_bar("{task.completed:,.0f}") as bar:
        task = bar.add_task(what, total=None)
        yield lambda done: bar.advance(task, done)


def _here() -> str:
    return project_at(os.getcwd(), str(Path.home()), is_root)


def _time(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"--before: {text!r} is neither a date, nor a time, nor a number", code=2
        ) from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())


def _age(text: str) -> int:
    """An age such as `90d` in seconds."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if found is None:
        raise UserError(f"--older-than: {text!r} is not an age such as 90d, 12h, 30m", code=2)
    return int(found[1]) * _UNITS[found[2]]
