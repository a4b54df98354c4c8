"""`rookery memory search`: one question to all five memory systems. MEMORY.md G-26, G-23."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from relay.cli.connect import with_settings
from relay.cli.memory_text import iso
from relay.cli.options import (
    Words,
    client_options,
    console,
    json_option,
    print_json,
    printable,
)
from relay.cli.tables import say_nothing_found
from relay.client.anamnesis.reading import AnamnesisReader
from relay.client.information import can_search
from relay.client.settings import Actor
from relay.memory.anamnesis.references import ENTRY, PATCH
from relay.memory.fence import fenced
from relay.memory.fields import object_in, whole
from relay.memory.question import ANSWERS_TO_A_WORD, keywords, merged
from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.keys import npub
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from relay.client import Client
    from relay.client.anamnesis.reading import Said
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_LOOKED_THROUGH: Final = 5_000
"""Events of a system, on a relay that cannot search."""
_RECORDS: Final = (kinds.APP_RECORD, kinds.APP_DATA)


class System(NamedTuple):
    """Where the records of one system are that a search can find."""

    name: str
    kinds: tuple[int, ...]
    prefixes: tuple[str, ...] = ()
    """Of `d`; none: all of its kinds are its own."""


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
    """One record that was found."""

    system: str
    rank: int
    """In the answer of its own system, from 0."""
    event: Event
    text: str

    @property
    def hashed(self) -> str:
        """Of a claim, or of what amends one; empty: none."""
        is_claim = self.event.d.startswith((ENTRY, PATCH))
        hashed = self.event.tag("x") or "" if is_claim else ""
        return hashed if is_hex64(hashed) else ""


class Found(NamedTuple):
    hits: list[Hit]
    """Best first."""
    names: Mapping[str, str]
    """Public key → what its profile says."""
    said: Mapping[str, Said]
    """Hash of a claim → who vouches, and what took the place of what."""


@click.command("search", epilog="Example: rookery memory search 'green tea' --system S")
@click.argument("query", type=Words(), metavar="Q")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(list(SYSTEMS), case_sensitive=False),
    help="A aman, D transcripts, S snowclaw, M nmem, X anamnesis. Not given: all.",
)
@click.option(
    "--kind",
    "kind",
    type=click.IntRange(0, kinds.MAX_KIND),
    metavar="K",
    help="Of this kind only.",
)
@click.option("--group", metavar="ID", help="With the tag h of this group only.")
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=20,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "context"]),
    default="table",
    help="context: each text between <memory> and </memory>, for a model.",
)
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
    """Find what agents remember, best first. What is encrypted has no words to be found by."""

    async def work(client: Client, settings: ClientSettings) -> Found:
        is_searched = can_search(await client.information_or_empty())
        if not is_searched:
            click.echo(
                f"{client.url} has no search (NIP-50): the newest {_LOOKED_THROUGH:,} records of"
                " each system are looked through word by word",
                err=True,
            )
        asked = {
            system: wanted
            for system in systems or SYSTEMS
            if (wanted := _filter(SYSTEMS[system], kind, group)) is not None
        }
        hits: list[Hit] = []
        for system, wanted in asked.items():
            if is_searched:
                found = await client.query({**wanted, "search": query, "limit": limit})
            else:
                found = await _looked_through(client, wanted, query)
            hits += _hits(system, found)
        if not hits and is_searched and _is_plain(query):
            for system, wanted in asked.items():
                hits += _hits(system, await _by_any_word(client, wanted, query))
        best = sorted(hits, key=lambda hit: (hit.rank, -hit.event.created_at, hit.event.id))[:limit]
        async with AnamnesisReader(client, settings.key) as reader:
            said = await reader.said_of({hit.hashed for hit in best if hit.hashed})
        return Found(best, await _names(client, {hit.event.pubkey for hit in best}), said)

    hits, names, said = with_settings(Actor.USER, relay, key_file, work)
    if as_json:
        print_json([_as_json(hit, names, said.get(hit.hashed)) for hit in hits])
    elif not hits:
        say_nothing_found()
    elif form == "context":
        for hit in hits:
            source = f"{SYSTEMS[hit.system].name} {hit.event.kind} {hit.event.d}".strip()
            text = "\n".join(map(printable, hit.text.strip().split("\n")))
            click.echo(fenced(text, printable(source), npub(hit.event.pubkey)))
    else:
        _print(hits, names, said)


def _filter(system: System, kind: int | None, group: str | None) -> dict[str, object] | None:
    """None: the system has nothing of that kind."""
    if kind is not None and kind not in system.kinds:
        return None
    wanted: dict[str, object] = {"kinds": list(system.kinds) if kind is None else [kind]}
    if system.prefixes:
        wanted["#d"] = list(system.prefixes)
    if group is not None:
        wanted["#h"] = [group]
    return wanted


async def _looked_through(client: Client, wanted: Mapping[str, object], query: str) -> list[Event]:
    prefixes = wanted.get("#d", [""])
    assert isinstance(prefixes, list)
    everything = {name: value for name, value in wanted.items() if name != "#d"}
    words = query.casefold().split()
    return [
        event
        async for event in client.query_all({**everything, "limit": _LOOKED_THROUGH})
        if event.d.startswith(tuple(prefixes))
        and (text := MEMORY_SYSTEMS.search_text(event))
        and all(word in text.casefold() for word in words)
    ]


def _is_plain(query: str) -> bool:
    """Only words: whoever writes a phrase, or what must not be there, means just that."""
    search = search_from(query)
    return (
        search is not None
        and not search.excluded
        and all(len(term.split()) == 1 for term in search.required)
    )


async def _by_any_word(client: Client, wanted: Mapping[str, object], question: str) -> list[Event]:
    """For when nothing has all of the words, as is so with a question in a sentence."""
    answers = await asyncio.gather(
        *(
            client.query({**wanted, "search": word, "limit": ANSWERS_TO_A_WORD})
            for word in keywords(question)
        )
    )
    events = {event.id: event for answer in answers for event in answer}
    return [events[id_] for id_ in merged([[event.id for event in answer] for answer in answers])]


def _hits(system: str, events: Iterable[Event]) -> list[Hit]:
    """Each system answers with its best first, and says no scores: ranks are what can be merged."""
    return [
        Hit(system, rank, event, MEMORY_SYSTEMS.search_text(event) or "")
        for rank, event in enumerate(events)
        if not event.d.startswith(CONFIG)
    ]


async def _names(client: Client, authors: set[str]) -> dict[str, str]:
    """What authors call themselves in their profiles."""
    if not authors:
        return {}
    names: dict[str, str] = {}
    for event in await client.query({"kinds": [kinds.PROFILE], "authors": sorted(authors)}):
        name = (object_in(event.content) or {}).get("name")
        if isinstance(name, str) and name.strip():
            names.setdefault(event.pubkey, whole(name.strip()))
    return names


def _as_json(hit: Hit, names: Mapping[str, str], said: Said | None) -> dict[str, object]:
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
    if said is not None:
        shown |= {
            "vouchers": said.vouchers,
            "supersedes": said.supersedes,
            "superseded_by": said.superseded_by,
        }
    return shown


def _in_words(said: Said | None) -> str:
    """What stands behind a claim; empty when nothing was said of it."""
    if said is None:
        return ""
    words = []
    if said.vouchers:
        words.append(f"vouched by {', '.join(_voucher(each) for each in said.vouchers)}")
    if said.supersedes:
        words.append(f"supersedes {', '.join(old[:12] for old in said.supersedes)}")
    if said.superseded_by is not None:
        words.append(f"superseded by {said.superseded_by[:12]}")
    return "; ".join(words)


def _voucher(voucher: Mapping[str, object]) -> str:
    return str(voucher.get("name") or npub(str(voucher["id"]))[:12])


def _print(hits: Iterable[Hit], names: Mapping[str, str], said: Mapping[str, Said]) -> None:
    rows = [
        (
            hit.system,
            str(hit.event.kind),
            printable(names.get(hit.event.pubkey) or npub(hit.event.pubkey)[:12]),
            iso(hit.event.created_at),
            hit.event.id,
            printable(" ".join(hit.text.split())),
            printable(_in_words(said.get(hit.hashed))),
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
