"""`rookery memory search`: one query to all five memory systems (G-23, G-26)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from relay.cli.connect import with_settings
from relay.cli.memory_text import iso
from relay.cli.names import profile_names
from relay.cli.options import (
    Words,
    client_options,
    console,
    format_option,
    json_option,
    limit_option,
    print_json,
    printable,
)
from relay.cli.tables import print_nothing_found
from relay.client.anamnesis.reader import AnamnesisReader
from relay.client.information import can_search
from relay.client.settings import Actor
from relay.memory.anamnesis.references import ENTRY, PATCH
from relay.memory.fence import attribution, recalled
from relay.memory.keywords import RESULTS_PER_KEYWORD, keywords, merged
from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from relay.client import Client
    from relay.client.anamnesis.reader import Provenance
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_SCAN_LIMIT: Final = 5_000
"""Events scanned per system on a relay without search."""
_RECORDS: Final = (kinds.APP_RECORD, kinds.APP_DATA)


class System(NamedTuple):
    """The searchable records of one memory system."""

    name: str
    kinds: tuple[int, ...]
    prefixes: tuple[str, ...] = ()
    """Prefixes of `d`; none: all records of its kinds."""


SYSTEMS: Final[Mapping[str, System]] = {
    "A": System(
        "aman",
        (
            kinds.DOC_MANIFEST,
            kinds.CHUNK_REF,
            kinds.PREFERENCE,
            kinds.SUMMARY,
            kinds.TOOL_HISTORY,
            kinds.SUBSCRIPTION_STATE,
        ),
    ),
    "D": System(
        "transcripts", (kinds.CONVERSATION_NOTE, kinds.SESSION_STATE, kinds.RUN_CONFIGURATION)
    ),
    "S": System("snowclaw", (kinds.APP_DATA,), (AGENT, COLLECTIVE)),
    "M": System("nmem", _RECORDS, ("nmem:",)),
    "X": System("anamnesis", _RECORDS, ("anamnesis:",)),
}


class Hit(NamedTuple):
    """One record found."""

    system: str
    rank: int
    """Rank among the hits of its system, from 0."""
    event: Event
    text: str

    @property
    def hashed(self) -> str:
        """Hash of the claim, or of the claim it amends; empty: none."""
        is_claim = self.event.d.startswith((ENTRY, PATCH))
        hashed = self.event.tag("x") or "" if is_claim else ""
        return hashed if is_hex64(hashed) else ""


class Found(NamedTuple):
    hits: list[Hit]
    """Best first."""
    names: Mapping[str, str]
    """Public key → profile name."""
    provenance: Mapping[str, Provenance]
    """Hash of a claim → vouchers and supersessions."""
    reader: str
    """Public key."""


@click.command("search", epilog="Example: rookery memory search 'green tea' --system S")
@click.argument("query", type=Words(), metavar="Q")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(list(SYSTEMS), case_sensitive=False),
    help="A aman, D transcripts, S snowclaw, M nmem, X anamnesis; default: all.",
)
@click.option(
    "--kind",
    "kind",
    type=click.IntRange(0, kinds.MAX_KIND),
    metavar="K",
    help="Only this kind.",
)
@click.option("--group", metavar="ID", help="Only records with the h tag of this group.")
@limit_option(20, 500)
@format_option("table")
@client_options
@json_option
def search(
    query: str,
    systems: tuple[str, ...],
    kind: int | None,
    group: str | None,
    limit: int,
    form: str,
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Search agents' memory, best first. Encrypted records cannot be found."""

    async def work(client: Client, settings: ClientSettings) -> Found:
        is_searched = can_search(await client.information_or_empty())
        if not is_searched:
            click.echo(
                f"{client.url} does not support search (NIP-50): the newest {_SCAN_LIMIT:,} records"
                " of each system are scanned",
                err=True,
            )
        filters = {
            system: wanted
            for system in systems or SYSTEMS
            if (wanted := _filter(SYSTEMS[system], kind, group)) is not None
        }
        hits: list[Hit] = []
        for system, wanted in filters.items():
            if is_searched:
                found = await client.query({**wanted, "search": query, "limit": limit})
            else:
                found = await _scan(client, wanted, query)
            hits += _hits(system, found)
        if not hits and is_searched and _is_plain(query):
            for system, wanted in filters.items():
                hits += _hits(system, await _by_any_word(client, wanted, query))
        best = sorted(hits, key=lambda hit: (hit.rank, -hit.event.created_at, hit.event.id))[:limit]
        async with AnamnesisReader(client, settings.key) as reader:
            provenance = await reader.provenance_of({hit.hashed for hit in best if hit.hashed})
        names = await profile_names(client.query, {hit.event.pubkey for hit in best})
        return Found(best, names, provenance, settings.key.pubkey)

    hits, names, provenance, reader = with_settings(Actor.USER, relay, key_file, work)
    if as_json:
        print_json([_as_json(hit, names, provenance.get(hit.hashed)) for hit in hits])
    elif not hits:
        print_nothing_found()
    elif form == "context":
        for hit in hits:
            source = f"{SYSTEMS[hit.system].name} {hit.event.kind} {hit.event.d}".strip()
            text = "\n".join(map(printable, hit.text.strip().split("\n")))
            author = hit.event.pubkey
            click.echo(recalled(text, printable(source), author, reader, names.get(author)))
    else:
        _print(hits, names, provenance)


def _filter(system: System, kind: int | None, group: str | None) -> dict[str, object] | None:
    """None: the system has no records of that kind."""
    if kind is not None and kind not in system.kinds:
        return None
    wanted: dict[str, object] = {"kinds": list(system.kinds) if kind is None else [kind]}
    if system.prefixes:
        wanted["#d"] = list(system.prefixes)
    if group is not None:
        wanted["#h"] = [group]
    return wanted


async def _scan(client: Client, wanted: Mapping[str, object], query: str) -> list[Event]:
    prefixes = wanted.get("#d", [""])
    assert isinstance(prefixes, list)
    everything = {name: value for name, value in wanted.items() if name != "#d"}
    words = query.casefold().split()
    return [
        event
        async for event in client.query_all({**everything, "limit": _SCAN_LIMIT})
        if event.d.startswith(tuple(prefixes))
        and (text := MEMORY_SYSTEMS.search_text(event))
        and all(word in text.casefold() for word in words)
    ]


def _is_plain(query: str) -> bool:
    """Plain words only: phrases and exclusions are not relaxed."""
    search = search_from(query)
    return (
        search is not None
        and not search.excluded
        and all(len(term.split()) == 1 for term in search.required)
    )


async def _by_any_word(client: Client, wanted: Mapping[str, object], question: str) -> list[Event]:
    """Fallback when no record contains all words, as for a question in a sentence."""
    answers = await asyncio.gather(
        *(
            client.query({**wanted, "search": word, "limit": RESULTS_PER_KEYWORD})
            for word in keywords(question)
        )
    )
    events = {event.id: event for answer in answers for event in answer}
    return [events[id_] for id_ in merged([[event.id for event in answer] for answer in answers])]


def _hits(system: str, events: Iterable[Event]) -> list[Hit]:
    """Each relay answer is ordered by relevance without scores, so hits are merged by rank."""
    return [
        Hit(system, rank, event, MEMORY_SYSTEMS.search_text(event) or "")
        for rank, event in enumerate(events)
        if not event.d.startswith(CONFIG)
    ]


def _as_json(
    hit: Hit, names: Mapping[str, str], provenance: Provenance | None
) -> dict[str, object]:
    event = hit.event
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


def _print(
    hits: Iterable[Hit], names: Mapping[str, str], provenance: Mapping[str, Provenance]
) -> None:
    rows = [
        (
            hit.system,
            str(hit.event.kind),
            attribution(hit.event.pubkey, names.get(hit.event.pubkey)),
            iso(hit.event.created_at),
            hit.event.id,
            printable(" ".join(hit.text.split())),
            printable(_provenance_text(provenance.get(hit.hashed))),
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
