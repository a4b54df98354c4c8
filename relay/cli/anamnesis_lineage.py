"""Successors, descendants and authors of a memory.

`rookery anamnesis resolve|children|credit|amend`. X-07, X-09, X-10, X-17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from relay.cli.anamnesis_memory import SHORT, one_line, with_memory
from relay.cli.anamnesis_options import SHARE, TYPE, context_option, given, said_in_option
from relay.cli.options import Server, client_options, print_json, printable
from relay.cli.tables import print_nothing_found
from relay.client.anamnesis import UnknownMemory
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.client.anamnesis import Anamnesis
    from relay.memory.anamnesis.correction import Resolution
    from relay.memory.anamnesis.provenance import Credit
    from relay.memory.anamnesis.records import Memory


@click.command("resolve", epilog="Example: rookery anamnesis resolve d78e3a18")
@click.argument("hashed", metavar="H")
@client_options
def resolve(hashed: str, server: Server, *, as_json: bool) -> None:
    """Print the chain of successors of a memory: hashes; the last one is current."""

    async def work(memory: Anamnesis) -> Resolution:
        full = await memory.full_hash(hashed)
        if await memory.get(full) is None:
            raise UnknownMemory(full)
        return await memory.resolve(full)

    found = with_memory(server, work)
    if as_json:
        print_json(
            {
                "current": found.current,
                "chain": found.chain,
                "forks": found.forks,
                "circle": found.is_cycle,
            }
        )
        return
    for each in found.chain:
        click.echo(each)
    for old, new in found.forks:
        click.echo(f"{new[:SHORT]} also supersedes {old[:SHORT]}, and is ignored", err=True)
    if found.is_cycle:
        click.echo("the chain is circular: it ends before the repetition", err=True)


@click.command("children", epilog="Example: rookery anamnesis children d78e3a18")
@click.argument("hashed", metavar="H")
@client_options
def children(hashed: str, server: Server, *, as_json: bool) -> None:
    """List the direct descendants of a memory, oldest first: hash and text."""

    async def work(memory: Anamnesis) -> Sequence[Memory]:
        return await memory.children(await memory.full_hash(hashed))

    found = with_memory(server, work)
    if as_json:
        print_json(
            [
                {
                    "hash": each.hash,
                    "id": each.event.id,
                    "author": each.author,
                    "content": each.entry.content,
                }
                for each in found
            ]
        )
        return
    for each in found:
        click.echo(f"{each.hash[:SHORT]}  {one_line(each.entry.content)}")
    if not found:
        print_nothing_found()


@click.command("credit", epilog="Example: rookery anamnesis credit d78e3a18")
@click.argument("hashed", metavar="H")
@client_options
def credit(hashed: str, server: Server, *, as_json: bool) -> None:
    """List the authors of a memory and its ancestors: number of entries, key and name."""

    async def work(memory: Anamnesis) -> Sequence[Credit]:
        full = await memory.full_hash(hashed)
        found = await memory.credit(full)
        if not found:
            raise UnknownMemory(full)
        return found

    found = with_memory(server, work)
    if as_json:
        print_json(
            [{"author": each.author, "name": each.name, "entries": each.entries} for each in found]
        )
        return
    for each in found:
        name = "" if each.name == each.author else printable(each.name)
        click.echo(f"{each.entries}  {npub(each.author)}  {name}".rstrip())


@click.command("amend", epilog="Example: rookery anamnesis amend d78e3a18 --confidence 0.9")
@click.argument("hashed", metavar="H")
@click.option("--type", "memory_type", type=TYPE, help="New memory type.")
@click.option(
    "--tag", "tags", multiple=True, metavar="T", help="New tag; repeatable, replaces all tags."
)
@click.option("--confidence", type=SHARE, metavar="C", help="New confidence.")
@context_option
@said_in_option
@click.option("--undo", is_flag=True, help="Restore the memory's own values.")
@client_options
def amend(
    hashed: str,
    memory_type: str | None,
    tags: tuple[str, ...],
    confidence: float | None,
    context_fields: Sequence[tuple[str, object]],
    group: str | None,
    server: Server,
    *,
    undo: bool,
    as_json: bool,
) -> None:
    """Change type, tags, confidence or context of one's own memory; text and hash are kept.

    An amendment replaces the previous one as a whole.
    """
    fields = given(
        context_fields, {"memory_type": memory_type, "tags": tags, "confidence": confidence}
    )
    if undo == bool(fields):
        raise click.UsageError(
            "give one or more of --type, --tag, --confidence and --context, or --undo"
        )

    async def work(memory: Anamnesis) -> tuple[str, str]:
        full = await memory.full_hash(hashed)
        return full, (await memory.amend(full, group=group, **fields)).event.id

    full, event_id = with_memory(server, work)
    if as_json:
        print_json({"hash": full, "amended": fields, "id": event_id})
    else:
        click.echo(f"amended {full[:SHORT]}")
