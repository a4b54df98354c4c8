"""`rookery memory search`: one query to all five memory systems (G-23, G-26)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from relay.cli.connect import with_settings
from relay.cli.memory_text import iso
from relay.cli.names import profile_names
from relay.cli.options import (
    Server,
    WholeNumber,
    Words,
    client_options,
    console,
    format_option,
    limit_option,
    print_json,
    printable,
    printable_lines,
)
from relay.cli.tables import print_nothing_found
from relay.client.recall import SYSTEMS, letter_of
from relay.client.settings import Actor
from relay.memory.fence import attribution, recalled
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from relay.client import Client
    from relay.client.claims import Provenance
    from relay.client.recall import Hit
    from relay.client.settings import ClientSettings

    Decorated = TypeVar("Decorated", bound=Callable[..., object])


class Found(NamedTuple):
    hits: list[Hit]
    """Best first."""
    names: Mapping[str, str]
    """Public key → profile name."""
    reader: str
    """Public key."""


def system_option(*letters: str) -> Callable[[Decorated], Decorated]:
    """`--system`, repeatable; gives `systems`, letters."""
    known = [SYSTEMS[letter].name for letter in letters]
    told = ", ".join(f"{name} ({letter})" for letter, name in zip(letters, known, strict=True))
    return click.option(
        "--system",
        "systems",
        multiple=True,
        metavar="SYSTEM",
        type=click.Choice([*known, *letters], case_sensitive=False),
        callback=lambda _, __, given: tuple(map(letter_of, given)),
        help=f"Only this system: {told}. Repeatable.",
    )


@click.command("search", epilog="Example: rookery memory search 'green tea' --system S")
@click.argument("query", type=Words(), metavar="Q")
@system_option(*SYSTEMS)
@click.option(
    "--kind",
    "kind",
    type=WholeNumber(0, kinds.MAX_KIND),
    metavar="K",
    help="Only this kind.",
)
@click.option("--group", metavar="ID", help="Only records with the h tag of this group.")
@limit_option(20, 500)
@format_option("table")
@client_options
def search(
    query: str,
    systems: tuple[str, ...],
    kind: int | None,
    group: str | None,
    limit: int,
    form: str,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Search agents' memory, best first: any of the words, or a question.

    Times such as "in May" or "last week" rank records of that time higher. "A phrase" and -word are
    matched literally. Encrypted records cannot be found.
    """

    async def work(client: Client, settings: ClientSettings) -> Found:
        hits, shortfall = await client.recall(
            query, systems=systems, kind=kind, group=group, limit=limit
        )
        if shortfall:
            click.echo(shortfall, err=True)
        names = await profile_names(client.query, {hit.event.pubkey for hit in hits})
        return Found(hits, names, settings.key.pubkey)

    hits, names, reader = with_settings(Actor.USER, server, work)
    if as_json:
        print_json([_as_json(hit, names) for hit in hits])
    elif not hits:
        print_nothing_found()
    elif form == "context":
        for hit in hits:
            source = (SYSTEMS[hit.system].name, str(hit.event.kind), hit.event.d)
            author = hit.event.pubkey
            text = hit.text.strip()
            click.echo(printable_lines(recalled(text, source, author, reader, names.get(author))))
    else:
        _print(hits, names)


def _as_json(hit: Hit, names: Mapping[str, str]) -> dict[str, object]:
    event, provenance = hit.event, hit.provenance
    shown: dict[str, object] = {
        "system": hit.system,
        "kind": event.kind,
        "author": event.pubkey,
        "name": names.get(event.pubkey),
        "created_at": event.created_at,
        "id": event.id,
        "d": event.d,
        "h": event.tag("h"),
        "text": hit.text,
        "copies": hit.copies,
    }
    if provenance is not None:
        shown |= {
            "vouchers": provenance.vouchers,
            "supersedes": provenance.supersedes,
            "superseded_by": provenance.superseded_by,
        }
    return shown


def _provenance_text(provenance: Provenance | None) -> str:
    """Vouchers and supersessions of a claim; empty if none."""
    if provenance is None:
        return ""
    words = []
    if provenance.vouchers:
        words.append(f"vouched by {', '.join(_voucher(each) for each in provenance.vouchers)}")
    if provenance.supersedes:
        words.append(f"supersedes {', '.join(old[:12] for old in provenance.supersedes)}")
    if provenance.superseded_by is not None:
        words.append(f"superseded by {provenance.superseded_by[:12]}")
    return "; ".join(words)


def _voucher(voucher: Mapping[str, object]) -> str:
    return attribution(str(voucher["id"]), str(voucher.get("name") or ""))


def _print(hits: Iterable[Hit], names: Mapping[str, str]) -> None:
    rows = [
        (
            hit.system,
            str(hit.event.kind),
            attribution(hit.event.pubkey, names.get(hit.event.pubkey)),
            iso(hit.event.created_at),
            hit.event.id,
            printable(" ".join(hit.text.split())),
            printable(_provenance_text(hit.provenance)),
        )
        for hit in hits
    ]
    out = console()
    if not out.is_terminal:
        for row in rows:
            click.echo("  ".join(row).rstrip())
        return
    from rich.padding import Padding

    for system, kind, author, at, id_, text, of_it in rows:
        out.print("  ".join((system, kind, author, at, id_[:8])))
        for line in filter(None, (text[:200], of_it)):
            out.print(Padding(line, (0, 0, 0, 2), expand=False))
