"""`rookery memory why LINE`: where a line of memory comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from relay.cli.connect import with_settings
from relay.cli.memory_search import system_option
from relay.cli.memory_text import iso, readers_of
from relay.cli.names import read_names
from relay.cli.options import Words, client_options, print_json, printable
from relay.client.anamnesis.reader import AnamnesisReader
from relay.client.anamnesis.settings import anamnesis_settings
from relay.client.history import NoHistory, history_of, record_of
from relay.client.recall import SYSTEMS
from relay.client.settings import Actor
from relay.errors import UserError
from relay.memory.fields import storable_object
from relay.memory.snowclaw.keys import COLLECTIVE
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.cli.names import Names
    from relay.cli.options import Server
    from relay.client import Client
    from relay.client.claims import Provenance
    from relay.client.recall import Hit
    from relay.client.settings import ClientSettings
    from relay.memory.anamnesis.trust import Trust
    from relay.nostr.event import Event

_CANDIDATES = 50
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a line in one record."""

    hit: Hit
    line: str
    """The line as it stands in the record."""
    since: Event
    """The oldest version from which on all versions contain the line."""
    replaced: Event | None
    """The version before `since`."""
    versions: Sequence[Event]
    """Newest first; the event alone if its kind is not replaceable."""
    shortfall: str
    trust: Trust | None
    """Trust in a claim of Anamnesis."""
    members: frozenset[str] | None = field(default=None)
    """Members of the record's group; None: it has no group, or this key may not see them."""


class _Answer(NamedTuple):
    origin: Origin
    names: Names


@click.command("why", epilog="Example: rookery memory why 'Prefers short answers'")
@click.argument("line", type=Words())
@system_option(*SYSTEMS)
@click.option("--group", metavar="ID", help="Only records with the h tag of this group.")
@client_options
def why(
    line: str, systems: tuple[str, ...], group: str | None, server: Server, *, as_json: bool
) -> None:
    """Show the origin of a line of memory: signer, time, version, the replaced text, vouchers and
    readers.

    LINE is a line of a record that you may read, or a part of one. Old versions are found if the
    relay keeps them.
    """

    async def work(client: Client, settings: ClientSettings) -> _Answer:
        found = await _origin(client, settings, line, systems, group)
        keys = {found.hit.event.pubkey, *_vouching(found.hit.provenance)}
        return _Answer(found, await read_names(client, settings, sorted(keys)))

    found, names = with_settings(Actor.USER, server, work)
    if found.shortfall:
        click.echo(found.shortfall, err=True)
    if as_json:
        print_json(_as_json(found, names))
        return
    for label, text in _lines(found, names):
        click.echo(f"{label:<12}{printable(text)}".rstrip())


async def _origin(
    client: Client, settings: ClientSettings, line: str, systems: Sequence[str], group: str | None
) -> Origin:
    """Raises UserError when no record says it."""
    hits = await _hits(client, line, systems, group)
    if not hits:
        raise UserError(
            "no memory record that this key may read contains this; see `memory search`"
        )
    hit = hits[0]
    record = record_of(hit.event)
    versions, shortfall = [hit.event], ""
    if record is not None:
        try:
            versions, shortfall = await history_of(client, record, settings.key)
        except NoHistory as none:
            shortfall = str(none)
        versions = versions or [hit.event]
    said = _said_in(hit.event, line) or line
    older = [event for event in versions if event.created_at <= hit.event.created_at]
    since, replaced = hit.event, None
    for event in older:
        if event.id != hit.event.id and _said_in(event, said) is None:
            replaced = event
            break
        since = event
    reputations = anamnesis_settings(settings.file, Path.home()).reputations
    async with AnamnesisReader(client, settings.key, reputations=reputations) as reader:
        trust = await reader.trust(hit.hashed) if hit.hashed else None
    return Origin(
        hit,
        said,
        since,
        replaced,
        versions,
        shortfall,
        trust,
        await _members(client, hit.event.tag("h")),
    )


async def _hits(client: Client, line: str, systems: Sequence[str], group: str | None) -> list[Hit]:
    """Records that contain the line, best first: found literally, else by its words."""
    quoted = f'"{line.replace(chr(34), " ")}"'
    for question in (quoted, line):
        found = await client.recall(question, systems=systems, group=group, limit=_CANDIDATES)
        hits = [hit for hit in found.hits if _said_in(hit.event, line) is not None]
        if hits:
            return hits
    return []


def _said_in(event: Event, line: str) -> str | None:
    """The line of the event's text that contains this one, ignoring case and spaces."""
    wanted = " ".join(line.casefold().split())
    for each in _texts(event):
        if wanted in " ".join(each.casefold().split()):
            return each.strip()
    return None


def _texts(event: Event) -> list[str]:
    """Lines of the event's search text, and of the strings in its JSON content."""
    text = MEMORY_SYSTEMS.search_text(event) or ""
    found = text.split("\n")
    fields = storable_object(event.content)
    if fields is None:
        return found + event.content.split("\n")
    return found + [line for each in _strings(fields) for line in each]


def _strings(value: object) -> list[list[str]]:
    match value:
        case str():
            return [value.split("\n")]
        case list():
            return [lines for each in value for lines in _strings(each)]
        case dict():
            return [lines for each in value.values() for lines in _strings(each)]
        case _:
            return []


async def _members(client: Client, group: str | None) -> frozenset[str] | None:
    if group is None:
        return None
    lists = await client.query({"kinds": [kinds.GROUP_MEMBERS], "#d": [group]})
    return None if not lists else frozenset(lists[0].tag_values("p"))


def _vouching(provenance: Provenance | None) -> list[str]:
    return [] if provenance is None else [str(each["id"]) for each in provenance.vouchers]


def _readers(found: Origin) -> str:
    """Who may read the record, by the packaged rules."""
    event = found.hit.event
    group = event.tag("h")
    if group is not None:
        number = "" if found.members is None else f"{len(found.members)} "
        return f"the {number}members of group:{group}, its author and the owner"
    shared = event.d.startswith(COLLECTIVE) and event.tag("snow:tier") == "public"
    if shared or found.hit.system == "X":
        return "the owner, agents and members of any group here"
    return readers_of(event)


def _lines(found: Origin, names: Names) -> list[tuple[str, str]]:
    event, since, versions = found.hit.event, found.since, found.versions
    system = SYSTEMS[found.hit.system].name
    record = record_of(event)
    lines = [
        ("line", found.line),
        ("record", f"{system}, kind {event.kind}, {event.d}".removesuffix(", ")),
        ("signed by", _named(event.pubkey, names)),
        ("at", iso(since.created_at)),
        ("event", since.id),
    ]
    if record is not None:
        place = [each.id for each in versions].index(since.id) if since in versions else 0
        number = len(versions) - place
        text = f"{number} of {len(versions)} that are kept"
        if since.id != event.id:
            text += f"; unchanged since, the current one is {event.id[:_SHOWN]}"
        lines.append(("version", text))
    if found.replaced is not None:
        replaced = found.replaced
        at = iso(replaced.created_at)
        lines.append(("replaced", f"{replaced.id[:_SHOWN]} of {at}, which did not say it"))
        lines += [("", f"- {each}") for each in _lost(replaced, since)]
    told = found.hit.provenance
    if told is not None:
        lines += [("supersedes", old) for old in told.supersedes]
        if told.superseded_by is not None:
            lines.append(("superseded", f"by {told.superseded_by}"))
        lines += [("vouched by", _named(str(each["id"]), names)) for each in told.vouchers]
        if not told.vouchers:
            lines.append(("vouched by", "nobody"))
    if found.trust is not None:
        lines.append(("trust", str(found.trust)))
    lines.append(("read by", _readers(found)))
    return lines


def _named(pubkey: str, names: Names) -> str:
    name = names.of(pubkey)
    return npub(pubkey) if name is None else f"{name}, {npub(pubkey)}"


def _lost(before: Event, after: Event) -> list[str]:
    """Lines that a version no longer has; the first three."""
    kept = {each.strip() for each in _texts(after)}
    lost = [each.strip() for each in _texts(before) if each.strip() not in kept]
    return list(dict.fromkeys(filter(None, lost)))[:3]


def _as_json(found: Origin, names: Names) -> dict[str, object]:
    event, since = found.hit.event, found.since
    ids = [each.id for each in found.versions]
    told = found.hit.provenance
    return {
        "line": found.line,
        "system": found.hit.system,
        "record": None if (record := record_of(event)) is None else str(record),
        "id": since.id,
        "signed_by": since.pubkey,
        "name": names.of(since.pubkey),
        "signed_at": since.created_at,
        "current": event.id,
        "version": len(ids) - (ids.index(since.id) if since.id in ids else 0),
        "versions": len(ids),
        "replaced": None
        if found.replaced is None
        else {
            "id": found.replaced.id,
            "created_at": found.replaced.created_at,
            "lines": _lost(found.replaced, since),
        },
        "supersedes": [] if told is None else list(told.supersedes),
        "superseded_by": None if told is None else told.superseded_by,
        "vouchers": [] if told is None else list(told.vouchers),
        "trust": None if found.trust is None else found.trust.score,
        "h": event.tag("h"),
        "members": None if found.members is None else sorted(found.members),
        "read_by": _readers(found),
    }
