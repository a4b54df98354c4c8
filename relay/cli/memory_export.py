"""`rookery memory export`: memory as markdown files, or as signed events one per line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_settings
from relay.cli.memory_search import system_option
from relay.cli.names import profile_names
from relay.cli.options import Server, client_options, print_counts, shown_json
from relay.cli.progress import progress_bar
from relay.client.recall import SYSTEMS
from relay.client.settings import Actor
from relay.errors import UserError
from relay.files import atomic_file, make_private, own_file
from relay.memory.interop.exported import file_name, markdown_of
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_EXPORTED: Final = tuple(letter for letter in SYSTEMS if letter != "D")
"""Conversations have `rookery session export`."""


@click.command("export", epilog="Example: rookery memory export --to markdown notes")
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.option(
    "--to",
    "form",
    type=click.Choice(["markdown", "jsonl"]),
    required=True,
    help="markdown: a folder, one file per record; jsonl: a file, one signed event per line.",
)
@system_option(*_EXPORTED)
@click.option("--mine", is_flag=True, help="Only records signed by this key.")
@client_options
def export(
    path: Path, form: str, systems: tuple[str, ...], server: Server, *, mine: bool, as_json: bool
) -> None:
    """Write the memory that this key may read; `rookery memory import` reads it back.

    Conversations are exported by `rookery session export`.
    """
    if form == "jsonl" and path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    if form == "markdown" and path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: name a folder")
    wanted = {SYSTEMS[letter].name for letter in systems or _EXPORTED}

    async def work(client: Client, settings: ClientSettings) -> int:
        events = await _records(client, wanted, mine=mine)
        if form == "jsonl":
            with atomic_file(path) as file:
                is_terminal = file.isatty()
                for event in events:
                    file.write(
                        (shown_json(event.raw).encode() if is_terminal else event.raw) + b"\n"
                    )
            return len(events)
        names = await profile_names(client.query, {event.pubkey for event in events})
        _write_folder(
            path,
            {
                file_name(event): markdown_of(event, settings.own_keys(), names.get(event.pubkey))
                for event in events
            },
        )
        return len(events)

    print_counts({"exported": with_settings(Actor.USER, server, work)}, as_json=as_json)


async def _records(client: Client, systems: set[str], *, mine: bool) -> list[Event]:
    """Oldest first."""
    types = {record for name in systems for record in MEMORY_SYSTEMS.by_name[name].records}
    wanted = {record.kind for record in types}
    if with_nomen := "snowclaw" in systems:
        wanted.add(kinds.NOMEN_MEMORY)
    filter_: dict[str, object] = {"kinds": sorted(wanted)}
    if mine:
        filter_["authors"] = [client.pubkey]
    found: list[Event] = []
    with progress_bar("{task.completed:,.0f}") as bar:
        task = bar.add_task("reading", total=None)
        async for event in client.query_all(filter_):
            is_nomen = event.kind == kinds.NOMEN_MEMORY and with_nomen
            if is_nomen or MEMORY_SYSTEMS.type_of(event) in types:
                found.append(event)
                bar.advance(task)
    return sorted(found, key=lambda event: (event.created_at, event.id))


def _write_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """`texts`: by file name. Each file is replaced whole or not at all. Writes to no file that a
    symbolic link names, or that another user has made, or has open. Raises OSError."""
    make_private(folder)
    for name, text in texts.items():
        path, part = folder / name, folder / f".{name}.part"
        if os.path.lexists(path):
            os.close(own_file(path, os.O_NOFOLLOW))
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(own_file(part, os.O_NOFOLLOW | os.O_EXCL), "wb") as file:
                file.write(text.encode())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
