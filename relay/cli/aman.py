"""`rookery aman`: the memory of an Aman agent. Signs as the agent.

The secretbox key, if any, is read from NOSTR_SECRETBOX_KEY.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from relay.cli.connect import with_settings
from relay.cli.options import (
    CommandGroup,
    Server,
    WholeNumber,
    anyway_option,
    client_options,
    console,
    print_counts,
    print_json,
    printable,
    report_kept_out,
)
from relay.cli.progress import progress_bar
from relay.cli.tables import Column, Holds, print_table
from relay.client.aman import Aman
from relay.client.settings import Actor
from relay.client.writer import Outcome
from relay.memory.aman.records import payload_of
from relay.memory.times import utc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from rich.console import Console

    from relay.client import Client
    from relay.client.aman import Followed
    from relay.client.settings import ClientSettings
    from relay.client.writer import Written
    from relay.memory.aman.fold import Snapshot
    from relay.memory.unreadable import UnreadableRecord

    Result = TypeVar("Result")

_COUNTED: Final = ("preferences", "summaries", "tools", "clears", "skipped")
_FILE: Final = click.Path(dir_okay=False, path_type=Path)

any_author = click.option(
    "--any-author", is_flag=True, help="Include records of all authors, not only of this key."
)


@click.group("aman", cls=CommandGroup, epilog="Example: rookery aman show user-1")
def aman() -> None:
    """Read and edit the memory of an Aman agent: one set of records per history key HK.

    Signs as the agent. If NOSTR_SECRETBOX_KEY is set, records are written encrypted.
    """


@aman.command("set-preference", epilog="Example: rookery aman set-preference user-1 prefer_speed")
@click.argument("hk", metavar="HK")
@click.argument("text", metavar="TEXT")
@anyway_option
@client_options
def set_preference(hk: str, text: str, server: Server, *, anyway: bool, as_json: bool) -> None:
    """Set the preference of a history key."""
    _write(server, lambda memory: memory.set_preference(hk, text), anyway=anyway, as_json=as_json)


@aman.command(
    "set-summary", epilog="Example: rookery aman set-summary user-1 'likes tea' --count 12"
)
@click.argument("hk", metavar="HK")
@click.argument("text", metavar="TEXT")
@click.option(
    "--count",
    type=WholeNumber(min=0),
    required=True,
    metavar="N",
    help="Number of messages summarised.",
)
@anyway_option
@client_options
def set_summary(
    hk: str, text: str, count: int, server: Server, *, anyway: bool, as_json: bool
) -> None:
    """Set the summary of the conversation."""
    _write(
        server, lambda memory: memory.set_summary(hk, text, count), anyway=anyway, as_json=as_json
    )


@aman.command(
    "add-tool", epilog="Example: rookery aman add-tool user-1 weather --ok --content sunny"
)
@click.argument("hk", metavar="HK")
@click.argument("name", metavar="NAME")
@click.option("--ok/--failed", "success", default=None, help="Result of the tool.")
@click.option(
    "--content", required=True, metavar="T", help="Output of the tool; at most 2,000 characters."
)
@click.option("--sender", metavar="S", help="Who requested it.")
@click.option("--group", metavar="G", help="Group of the request.")
@anyway_option
@client_options
def add_tool(
    hk: str,
    name: str,
    content: str,
    sender: str | None,
    group: str | None,
    server: Server,
    *,
    success: bool | None,
    anyway: bool,
    as_json: bool,
) -> None:
    """Add an entry to the tool history."""
    if success is None:
        raise click.UsageError("give --ok or --failed")

    def add(memory: Aman) -> Awaitable[Written]:
        return memory.add_tool(hk, name, success, content, sender, group)

    _write(server, add, anyway=anyway, as_json=as_json)


@aman.command("clear", epilog="Example: rookery aman clear user-1")
@click.argument("hk", metavar="HK")
@click.option("--sender", metavar="S", help="Who requested it.")
@client_options
def clear(hk: str, sender: str | None, server: Server, *, as_json: bool) -> None:
    """Clear the context. Earlier summaries and tools are ignored; nothing is deleted."""
    _write(server, lambda memory: memory.clear(hk, sender), as_json=as_json)


@aman.command("subscribe", epilog="Example: rookery aman subscribe user-1 iran bitcoin")
@click.argument("hk", metavar="HK")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@client_options
def subscribe(hk: str, topics: tuple[str, ...], server: Server, *, as_json: bool) -> None:
    """Set the subscribed topics, replacing previous ones."""
    _write(
        server,
        lambda memory: memory.set_subscriptions(hk, topics),
        as_json=as_json,
    )


@aman.command("show", epilog="Example: rookery aman show user-1 --json")
@click.argument("hk", metavar="HK")
@any_author
@client_options
def show(hk: str, server: Server, *, any_author: bool, as_json: bool) -> int:
    """Show the memory of a history key: preference, summary, tools (newest first), clears."""

    async def work(memory: Aman) -> Snapshot:
        return await memory.snapshot(hk, any_author=any_author)

    snapshot = _with_aman(server, work)
    _report_unread(snapshot.unread)
    if as_json:
        print_json(_as_json(snapshot))
    elif snapshot.is_empty:
        click.echo(f"nothing stored for {printable(hk)}")
    else:
        _print(snapshot, console())
    return 1 if snapshot.is_empty else 0


@aman.command("rehydrate", epilog="Example: rookery aman rehydrate --db aman.db")
@click.option(
    "--db", type=_FILE, required=True, metavar="FILE", help="SQLite file; created if missing."
)
@click.option("--follow", is_flag=True, help="Keep the file current until Ctrl-C.")
@any_author
@client_options
def rehydrate(
    db: Path,
    server: Server,
    *,
    follow: bool,
    any_author: bool,
    as_json: bool,
) -> None:
    """Write the memory into an SQLite file.

    For each history key the rows of summaries, tools and clears are replaced. Rows of an earlier
    run from this relay's URL are removed if the relay no longer returns their record; other rows
    are kept. With --follow a ban is noticed within 15 minutes.
    """
    if follow:

        async def keep_current(memory: Aman) -> None:
            async for written in memory.follow_tables(db, any_author=any_author):
                _report_followed(written, as_json=as_json)

        _with_aman(server, keep_current)
        return

    async def work(memory: Aman) -> Mapping[str, int]:
        with progress_bar("{task.completed:,.0f}") as progress:
            task = progress.add_task("reading", total=None)
            done = await memory.rehydrate(
                db,
                any_author=any_author,
                progress=lambda read: progress.update(task, completed=read),
            )
        _report_unread(done.skipped)
        return dict(zip(_COUNTED, (*done.rows, len(done.skipped)), strict=True))

    print_counts(_with_aman(server, work), as_json=as_json)


@aman.command("import-sqlite", epilog="Example: rookery aman import-sqlite ~/aman/aman.db")
@click.argument("file", type=_FILE, metavar="FILE")
@client_options
def import_sqlite(file: Path, server: Server, *, as_json: bool) -> None:
    """Send an Aman agent's database to the relay. The times of its rows are kept.

    Records the relay already has are not sent again. Invalid rows and refused records are counted
    as skipped, with reasons on stderr.
    """

    async def work(memory: Aman) -> Mapping[str, int]:
        with progress_bar("{task.completed:,.0f}") as progress:
            task = progress.add_task("sending", total=None)
            done = await memory.import_tables(
                file,
                progress=lambda sent, total: progress.update(task, completed=sent, total=total),
            )
        for reason, count in Counter(done.skipped).most_common():
            click.echo(f"skipped {count}: {printable(reason)}", err=True)
        return dict(zip(_COUNTED, (*done.rows, len(done.skipped)), strict=True))

    print_counts(_with_aman(server, work), as_json=as_json)


# -- on a relay -----------------------------------------------------------------------------------


def _with_aman(server: Server, work: Callable[[Aman], Awaitable[Result]]) -> Result:
    async def on(client: Client, settings: ClientSettings) -> Result:
        async with Aman(client, settings.key) as memory:
            result = await work(memory)
            report_kept_out(memory)
            if memory.shortfall:
                click.echo(printable(memory.shortfall), err=True)
            return result

    return with_settings(Actor.AGENT, server, on)


def _write(
    server: Server,
    write: Callable[[Aman], Awaitable[Written]],
    *,
    as_json: bool,
    anyway: bool = False,
) -> None:
    async def work(memory: Aman) -> Written:
        if anyway:
            memory.sieve = None
        return await write(memory)

    written = _with_aman(server, work)
    event = written.event
    if as_json:
        record = {
            "outcome": written.outcome.value,
            "id": event.id,
            "kind": event.kind,
            "d": event.d,
        }
        print_json(record)
    elif written.outcome is Outcome.DUPLICATE:
        click.echo(f"duplicate {printable(event.d)}")
    elif written.outcome is Outcome.KEPT_OUT:
        click.echo(f"not stored {printable(event.d)}")
    else:
        click.echo(f"stored {event.id[:8]} {event.kind} {printable(event.d)}")


# -- output ---------------------------------------------------------------------------------------


def _as_json(snapshot: Snapshot) -> dict[str, Any]:
    preference, summary = snapshot.preference, snapshot.summary
    topics = snapshot.subscriptions
    return {
        "history_key": snapshot.history_key,
        "preference": None if preference is None else preference.record.preference,
        "summary": None if summary is None else payload_of(summary.record),
        "topics": None if topics is None else list(topics.record.topics),
        "tool_history": [payload_of(row.record) for row in snapshot.tools],
        "clears": [row.time for row in snapshot.clears],
        "unread": [{"id": unread.event.id, "why": unread.why} for unread in snapshot.unread],
    }


def _print(snapshot: Snapshot, out: Console) -> None:
    if snapshot.preference is not None:
        row = snapshot.preference
        out.print(f"preference ({utc(row.time)}): {printable(row.record.preference)}")
    if snapshot.summary is not None:
        summary = snapshot.summary.record
        out.print(f"summary of {summary.message_count} messages ({utc(snapshot.summary.time)}):")
        for line in summary.summary.splitlines():
            out.print(f"  {printable(line)}")
    if snapshot.subscriptions is not None:
        topics = ", ".join(map(printable, snapshot.subscriptions.record.topics))
        out.print(f"topics ({utc(snapshot.subscriptions.time)}): {topics or 'none'}")
    if snapshot.tools:
        columns = (
            Column("Tool", Holds.KEY),
            Column("Time", Holds.KEY),
            Column(""),
            Column("Content"),
        )
        rows = [
            (
                printable(call.record.tool_name),
                utc(call.time),
                "ok" if call.record.success else "failed",
                "\n".join(map(printable, call.record.content.splitlines())),
            )
            for call in snapshot.tools
        ]
        out.print("tools:")
        print_table(columns, rows)
    for cleared in snapshot.clears:
        sender = cleared.record.sender_id
        by = "" if sender is None else f" by {printable(sender)}"
        out.print(f"cleared {utc(cleared.time)}{by}")


def _report_followed(written: Followed, *, as_json: bool) -> None:
    _report_unread(written.skipped)
    counts = dict(zip(_COUNTED[:-1], written.rows, strict=True))
    if written.history_key is None:
        print_counts({**counts, _COUNTED[-1]: len(written.skipped)}, as_json=as_json)
    elif as_json:
        print_json({"history_key": written.history_key, **counts})
    else:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        click.echo(f"{printable(written.history_key)}: {shown}")


def _report_unread(unread: Iterable[UnreadableRecord]) -> None:
    for one in unread:
        click.echo(f"skipped {one.event.id[:8]} {printable(one.why)}", err=True)
