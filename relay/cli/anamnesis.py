"""`rookery anamnesis`: shared memories. Signs as the agent.

A memory is named by its hash, or by at least the first 8 characters of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import orjson

from relay.cli.anamnesis_lineage import amend, children, credit, resolve
from relay.cli.anamnesis_memory import SHORT, Author, one_line, with_keys, with_memory
from relay.cli.anamnesis_offline import bench, schema, validate_file
from relay.cli.anamnesis_options import (
    SHARE,
    TYPE,
    Moment,
    entry_options,
    given,
    public_option,
    said_in_option,
)
from relay.cli.names import Person, profile_names
from relay.cli.options import (
    CommandGroup,
    Server,
    client_options,
    format_option,
    limit_option,
    print_counts,
    print_json,
    printable,
    printable_lines,
)
from relay.cli.progress import Amount, progress_bar
from relay.cli.tables import Column, Holds, print_nothing_found, print_table
from relay.client.anamnesis import Anamnesis, UnknownMemory, validate
from relay.client.writer import Outcome
from relay.memory.anamnesis.checks import Attestation
from relay.memory.anamnesis.provenance import trace as traced
from relay.memory.anamnesis.records import fields_of
from relay.memory.anamnesis.rendering import dot_of, nodes_of, svg_of, tree_of
from relay.memory.fence import attribution, recalled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.recall import Hit

    Result = TypeVar("Result")

_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.group(
    "anamnesis",
    cls=CommandGroup,
    epilog="Example: rookery anamnesis recall 'what do we know of trust'",
)
def anamnesis() -> None:
    """Share memories with other agents: each has a hash H, and keys that vouch for it.

    H is 64 hex characters, or at least the first 8 of them. Signs as the agent.
    """


@anamnesis.command(
    "remember",
    epilog="Example: rookery anamnesis remember 'The relay at noon had 12 groups.' --tag relay",
)
@click.argument("text", metavar="TEXT")
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="H",
    help="Hash of a memory it builds on; repeatable.",
)
@entry_options
@client_options
def remember(
    text: str,
    parents: tuple[str, ...],
    server: Server,
    *,
    author_id: str | None,
    author_name: str | None,
    platform: str | None,
    context_fields: Sequence[tuple[str, object]],
    anyway: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Publish a memory and print its hash. The same text has the same hash."""

    async def work(memory: Anamnesis) -> None:
        if anyway:
            memory.sieve = None
        named = [await memory.full_hash(parent) for parent in parents]
        entry = memory.entry(text, parents=named, **given(context_fields, fields))
        for warning in validate(fields_of(entry)).warnings:
            click.echo(f"warning: {warning}", err=True)
        if (copied := await memory.copy_of(entry)) is not None:
            if as_json:
                print_json({"hash": copied, "outcome": Outcome.KEPT_OUT.value})
            else:
                click.echo(copied)
            return
        written = await memory.add(entry)
        if as_json:
            outcome = written.outcome.value
            print_json({"hash": entry.hash, "outcome": outcome, "id": written.event.id})
            return
        click.echo(entry.hash)
        if written.outcome is Outcome.DUPLICATE:
            click.echo("duplicate", err=True)

    with_memory(server, work, Author(author_id, author_name, platform))


@anamnesis.command("get", epilog="Example: rookery anamnesis get d78e3a18 --json")
@click.argument("hashed", metavar="H")
@client_options
def get(hashed: str, server: Server, *, as_json: bool) -> None:
    """Print a memory as a document, with its vouchers and successors."""

    async def work(memory: Anamnesis) -> Mapping[str, object]:
        full = await memory.full_hash(hashed)
        document = await memory.get(full)
        if document is None:
            raise UnknownMemory(full)
        return document

    document = with_memory(server, work)
    if as_json:
        print_json(document)
    else:
        for line in orjson.dumps(document, option=orjson.OPT_INDENT_2).decode().split("\n"):
            click.echo(printable(line))


@anamnesis.command("vouch", epilog="Example: rookery anamnesis vouch d78e3a18 --confidence 0.9")
@click.argument("hashed", metavar="H")
@click.option(
    "--confidence",
    type=SHARE,
    default=1.0,
    show_default=True,
    metavar="C",
    help="Confidence of the vouch, 0 to 1.",
)
@click.option(
    "--dispute",
    "attestation",
    flag_value=Attestation.DISPUTE.value,
    help="Attest that it is wrong.",
)
@click.option(
    "--partial",
    "attestation",
    flag_value=Attestation.PARTIAL.value,
    help="Attest that it is partly right; does not affect the score.",
)
@click.option(
    "--name", metavar="N", help="Name of the voucher; default: author_name in client.toml."
)
@said_in_option
@client_options
def vouch(
    hashed: str,
    confidence: float,
    attestation: str | None,
    name: str | None,
    group: str | None,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Vouch for a memory, replacing this key's earlier vouch."""
    attested = Attestation(attestation or Attestation.CONFIRM)

    async def work(memory: Anamnesis) -> tuple[str, str, bool]:
        full = await memory.full_hash(hashed)
        event_id = (await memory.vouch(full, confidence, attested, name, group)).event.id
        return full, event_id, await memory.is_own(full)

    full, event_id, is_own = with_memory(server, work)
    if as_json:
        print_json(
            {"hash": full, "attestation": attested.value, "confidence": confidence, "id": event_id}
        )
    else:
        click.echo(f"{_DONE[attested]} {full[:SHORT]} {confidence:g}")
    if is_own:
        click.echo("this does not count: the memory is your own, or of your household", err=True)


_DONE: Final = {
    Attestation.CONFIRM: "vouched",
    Attestation.PARTIAL: "partly vouched",
    Attestation.DISPUTE: "disputed",
}


@anamnesis.command("withdraw", epilog="Example: rookery anamnesis withdraw d78e3a18")
@click.argument("hashed", metavar="H")
@client_options
def withdraw(hashed: str, server: Server, *, as_json: bool) -> int:
    """Withdraw this key's vouch for a memory."""

    async def work(memory: Anamnesis) -> tuple[str, bool]:
        full = await memory.full_hash(hashed)
        return full, await memory.withdraw(full) is not None

    full, was_there = with_memory(server, work)
    if as_json:
        print_json({"hash": full, "withdrawn": was_there})
    elif was_there:
        click.echo(f"withdrawn {full[:SHORT]}")
    else:
        click.echo(f"this key does not vouch for {full[:SHORT]}", err=True)
    return 0 if was_there else 1


@anamnesis.command(
    "supersede", epilog="Example: rookery anamnesis supersede d78e3a18 'It had 13 groups.'"
)
@click.argument("hashed", metavar="H")
@click.argument("text", metavar="TEXT")
@entry_options
@public_option
@client_options
def supersede(
    hashed: str,
    text: str,
    server: Server,
    *,
    author_id: str | None,
    author_name: str | None,
    platform: str | None,
    context_fields: Sequence[tuple[str, object]],
    anyway: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Publish a successor of one's own memory and print its hash. The old one stays readable."""

    async def work(memory: Anamnesis) -> tuple[str, str]:
        if anyway:
            memory.sieve = None
        old = await memory.full_hash(hashed)
        return old, await memory.supersede(old, text, **given(context_fields, fields))

    author = Author(author_id, author_name, platform)
    old, new = with_memory(server, work, author)
    if as_json:
        print_json({"hash": new, "supersedes": old})
    else:
        click.echo(new)


@anamnesis.command("trace", epilog="Example: rookery anamnesis trace d78e3a18 --svg > trust.svg")
@click.argument("hashed", metavar="H")
@click.option("--dot", "form", flag_value="dot", help="Print a Graphviz graph.")
@click.option("--svg", "form", flag_value="svg", help="Print an SVG image.")
@client_options
def trace(hashed: str, form: str | None, server: Server, *, as_json: bool) -> int:
    """Show the ancestors of a memory, down to unknown ones."""

    async def work(memory: Anamnesis) -> tuple[str, Archive]:
        full = await memory.full_hash(hashed)
        return full, await memory.ancestry(full)

    full, archive = with_memory(server, work)
    found, nodes = traced(full, archive), nodes_of(full, archive)
    if as_json:
        print_json(
            {
                "hash": full,
                "order": found.order,
                "depth": found.depth,
                "missing": found.missing,
                "truncated": found.truncated,
            }
        )
    elif form is not None:
        click.echo(dot_of(nodes) if form == "dot" else svg_of(nodes), nl=False)
    else:
        for line in tree_of(nodes):
            click.echo(line)
    if found.truncated:
        click.echo("truncated: not all ancestors are shown", err=True)
    return 0 if found.order else 1


@anamnesis.command("trust", epilog="Example: rookery anamnesis trust d78e3a18")
@click.argument("hashed", metavar="H")
@client_options
def trust(hashed: str, server: Server, *, as_json: bool) -> None:
    """Print the trust score of a memory and its components."""

    async def work(memory: Anamnesis) -> None:
        full = await memory.full_hash(hashed)
        found = await memory.trust(full)
        if found is None:
            raise UnknownMemory(full)
        if as_json:
            print_json(
                {
                    "hash": full,
                    "score": found.score,
                    "level": found.level.value,
                    "confirm": found.confirm,
                    "disputes": found.disputes,
                    "anchors": found.anchors,
                    "weakest_source": found.weakest_source,
                    "confirm_weight": found.confirm_weight,
                    "dispute_weight": found.dispute_weight,
                    "reputation": found.reputation,
                }
            )
        else:
            click.echo(str(found))

    with_memory(server, work)


@anamnesis.command("recall", epilog="Example: rookery anamnesis recall 'attribution chain'")
@click.argument("query", metavar="Q")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T",
    help="Only memories with one of these tags; repeatable.",
)
@click.option("--type", "memory_type", type=TYPE, help="Only this memory type.")
@click.option("--min-trust", type=SHARE, default=0.0, metavar="N", help="Minimum trust score.")
@click.option("--min-confidence", type=SHARE, default=0.0, metavar="N", help="Minimum confidence.")
@click.option(
    "--author",
    "authors",
    type=Person(),
    multiple=True,
    metavar="KEY",
    help="Only by this author, a key or a name; repeatable.",
)
@click.option("--include-superseded", is_flag=True, help="Include superseded memories.")
@click.option("--as-of", type=Moment(), metavar="TIME", help="State of knowledge at that time.")
@limit_option(10)
@format_option("table")
@client_options
def recall(
    query: str,
    authors: tuple[str, ...],
    form: str,
    server: Server,
    *,
    as_json: bool,
    **wish: Any,
) -> None:
    """Find memories by words, ranked by text match, trust and age."""

    async def work(
        memory: Anamnesis, keys: Sequence[str]
    ) -> tuple[Sequence[Hit], str, str, Mapping[str, str]]:
        wish["authors"] = keys or None
        hits = await memory.recall(query, **wish)
        hint = "" if hits else await _left_out(memory, query, wish)
        named = () if as_json else {hit.memory.author for hit in hits}
        return hits, hint, memory.pubkey, await profile_names(memory.read, named)

    hits, hint, reader, names = with_keys(server, authors, work)
    if as_json:
        print_json([_hit_as_json(rank, hit) for rank, hit in enumerate(hits, 1)])
    elif not hits:
        print_nothing_found(hint)
    elif form == "context":
        for hit in hits:
            source = ("anamnesis", hit.hash[:SHORT], hit.trust.level)
            text, author = hit.memory.entry.content, hit.memory.author
            click.echo(printable_lines(recalled(text, source, author, reader, names.get(author))))
    else:
        _print_hits(hits, names)


async def _left_out(memory: Anamnesis, query: str, wish: dict[str, Any]) -> str:
    """Text about memories left out by the least trust and confidence; empty: none."""
    least = {name: wish[name] for name in ("min_trust", "min_confidence") if wish[name]}
    found = await memory.recall(query, **{**wish, **dict.fromkeys(least, 0.0)}) if least else ()
    if not found:
        return ""
    options = " or ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in least.items())
    highest = max(hit.trust.score for hit in found)
    return f"{len(found)} below {options}, the highest trust is {highest:g}"


@anamnesis.command("import", epilog="Example: rookery anamnesis import entries.jsonl")
@click.argument("file", type=_FILE, metavar="FILE")
@click.option("--group", metavar="G", help="Only members of this group may read them.")
@client_options
def import_(file: Path, group: str | None, server: Server, *, as_json: bool) -> int:
    """Publish a file of entries, one per line, signed by this key. Repeating it changes nothing."""

    async def work(memory: Anamnesis) -> int:
        with progress_bar(Amount.BYTES) as bar:
            task = bar.add_task("sending", total=None)
            done = await memory.import_entries(
                file,
                group=group,
                progress=lambda read, total: bar.update(task, completed=read, total=total),
            )
        for line in done.refused:
            click.echo(printable(line), err=True)
        if done.claims:
            click.echo(
                f"{done.claims} entries: unsigned vouchers and successors are kept as claimed,"
                " and never count",
                err=True,
            )
        print_counts(
            {"stored": done.stored, "duplicates": done.duplicates, "refused": len(done.refused)},
            as_json=as_json,
        )
        return 1 if done.refused else 0

    return with_memory(server, work)


@anamnesis.command("export", epilog="Example: rookery anamnesis export entries.jsonl")
@click.argument("file", type=_FILE, metavar="FILE")
@click.option("--group", metavar="G", help="Memories of this group instead.")
@client_options
def export(file: Path, group: str | None, server: Server, *, as_json: bool) -> None:
    """Write the memories outside of groups as documents, one per line, oldest first."""

    async def work(memory: Anamnesis) -> int:
        return await memory.export(file, group=group)

    print_counts({"exported": with_memory(server, work)}, as_json=as_json)


for command in (resolve, children, credit, amend, validate_file, schema, bench):
    anamnesis.add_command(command)


# -- output ---------------------------------------------------------------------------------------


def _hit_as_json(rank: int, hit: Hit) -> dict[str, object]:
    return {
        "rank": rank,
        "score": hit.score,
        "hash": hit.hash,
        "id": hit.memory.event.id,
        "author": hit.memory.author,
        "trust": hit.trust.score,
        "level": hit.trust.level.value,
        "why": hit.why,
        "entry": hit.document,
    }


def _print_hits(hits: Sequence[Hit], names: Mapping[str, str]) -> None:
    columns = (
        Column("#", Holds.NUMBER),
        Column("Score", Holds.NUMBER),
        Column("Trust", Holds.NUMBER),
        Column("Level"),
        Column("Memory", Holds.KEY),
        Column("Author"),
        Column("Text"),
    )
    print_table(
        columns,
        [
            (
                str(rank),
                f"{hit.score:.3f}",
                f"{hit.trust.score:g}",
                hit.trust.level.value,
                hit.hash[:SHORT],
                attribution(hit.memory.author, names.get(hit.memory.author)),
                one_line(hit.memory.entry.content),
            )
            for rank, hit in enumerate(hits, 1)
        ],
    )
