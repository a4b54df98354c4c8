"""`rookery memory history`, `show`, `diff` and `restore`: versions of a record.

Of any replaceable or addressable event, as far as the relay keeps them.
"""

from __future__ import annotations

from difflib import unified_diff
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import orjson

from relay.cli.anamnesis_options import Moment
from relay.cli.connect import with_settings
from relay.cli.memory_keys import Key, KeyType, records_of
from relay.cli.memory_text import iso, readers_of
from relay.cli.names import read_names
from relay.cli.options import (
    Colour,
    client_options,
    coloured,
    print_json,
    printable,
)
from relay.cli.tables import Column, Holds, print_table
from relay.client.history import NoHistory, history_of, record_of
from relay.client.settings import Actor
from relay.errors import Invalid, UserError
from relay.memory.snowclaw.edit_dates import NOTED_SINCE
from relay.memory.snowclaw.encryption import OwnKey, content_of
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import MADE_FROM, Address, is_hex64
from relay.nostr.keys import npub
from relay.nostr.kinds import MAX_KIND, KindClass, class_of
from relay.nostr.nip19 import AddressPointer, decode_pointer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.cli.options import Server
    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_SHOWN: Final = 12
"""Characters of an id that are shown; as few as `_LEAST` name a version."""
_LEAST: Final = 4
_MAX_INDENTED: Final = 1 << 20
"""Bytes: deeply nested JSON can take 250 times what it takes without indentation."""
_MAX_COMPARED: Final = 250_000
"""Pairs of lines: comparing takes up to the third power of their number, 3 s for 500 with 500."""
_COLUMNS: Final = (
    Column("version", Holds.KEY),
    Column("changed", Holds.KEY),
    Column("bytes", Holds.NUMBER),
    Column("signed by"),
    Column(""),
)


class RecordType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """naddr1…, KIND:PUBLIC-KEY:D, or a KEY of the memory commands."""

    name = "record"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address | Key:
        if isinstance(value, Address | Key):
            return value
        text = str(value)
        kind, _, rest = text.partition(":")
        pubkey, colon, d = rest.partition(":")
        if kind.isascii() and kind.isdigit() and colon:
            if len(kind) > 5 or int(kind) > MAX_KIND or not is_hex64(pubkey):
                self.fail(f"{text!r} is no address KIND:PUBLIC-KEY:D, with 64 hex", param, ctx)
            return self._checked(Address(pubkey, int(kind), d), param, ctx)
        if text.lower().startswith("naddr1"):
            try:
                pointer = decode_pointer(text)
            except Invalid as invalid:
                self.fail(invalid.text, param, ctx)
            if not isinstance(pointer, AddressPointer):
                self.fail("is no naddr", param, ctx)
            record = Address(pointer.author, pointer.kind, pointer.d)
            return self._checked(record, param, ctx)
        return KeyType().convert(text, param, ctx)

    def _checked(
        self, record: Address, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        of = class_of(record.kind)
        if of is KindClass.REPLACEABLE:
            return record._replace(d="")
        if of is not KindClass.ADDRESSABLE:
            self.fail(f"events of kind {record.kind} are never replaced", param, ctx)
        return record


class Found(NamedTuple):
    record: Address
    versions: list[Event]
    """Newest first; there is one at least."""
    reader: OwnKey
    signer: str
    """The author's name, with the beginning of the key."""

    def version(self, named: str) -> Event:
        """The version whose id begins with `named`. Raises UserError."""
        wanted = named.lower()
        found = [event for event in self.versions if event.id.startswith(wanted)]
        if len(wanted) < _LEAST or len(found) != 1:
            raise UserError(
                f"{printable(named)!r} names {'several' if found else 'no'} versions of this"
                f" record: give at least {_LEAST} characters of an id that `rookery memory history`"
                " lists",
                code=2,
            )
        return found[0]

    def as_of(self, at: int) -> Event:
        """The newest version as of a time. Raises UserError."""
        for event in self.versions:
            if event.created_at <= at:
                return event
        oldest = self.versions[-1].created_at
        raise UserError(f"no version of {iso(at)}: the oldest that is kept is of {iso(oldest)}")

    def lines(self, event: Event) -> list[str]:
        """Tags and content of a version, for people."""
        tags = [
            f"{tag[0]}: {' '.join(tag[1:])}"
            for tag in event.tags
            if tag and tag[0] not in ("d", MADE_FROM, NOTED_SINCE)
        ]
        return [*map(printable, tags), *self.content(event)]

    def content(self, event: Event) -> list[str]:
        text = content_of(event, self.reader)
        if isinstance(text, UnreadableRecord):
            return [f"({text.why})"]
        return [printable(line) for line in _formatted(text).split("\n")]


def _formatted(text: str) -> str:
    """JSON objects over several lines, so that a diff shows what changed in them."""
    if text[:1] not in "{[":
        return text
    try:
        indented = orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2)
    except (orjson.JSONDecodeError, TypeError):  # TypeError: nested too deeply
        return text
    return indented.decode() if len(indented) <= _MAX_INDENTED else text


async def find(client: Client, settings: ClientSettings, wanted: Address | Key) -> Found:
    """Raises UserError when nothing is found."""
    record = wanted if isinstance(wanted, Address) else await _record_named(client, wanted)
    try:
        versions, shortfall = await history_of(client, record, settings.key)
    except NoHistory as none:
        raise UserError(str(none)) from none
    if not versions:
        raise UserError(f"nothing is stored under {printable(str(record))} that this key may read")
    if shortfall:
        click.echo(shortfall, err=True)
    names = await read_names(client, settings, [record.pubkey])
    return Found(record, versions, OwnKey.of(settings.key), names.shown(record.pubkey))


async def _record_named(client: Client, key: Key) -> Address:
    """The one record of a KEY; of several the reader's own. Raises UserError."""
    found = [record for event in await records_of(client, key) if (record := record_of(event))]
    own = [record for record in found if record.pubkey == client.pubkey]
    chosen = own if len(own) == 1 else found
    if len(chosen) == 1:
        return chosen[0]
    if not found:
        raise UserError(f"no memory for {printable(key.text)}")
    found.sort(key=lambda record: (record.kind, *record))
    listed = "".join(f"\n  {printable(str(record))}" for record in found)
    raise UserError(f"{printable(key.text)} has several records, give one of them:{listed}", code=2)


@click.command("history", epilog="Example: rookery memory history group:techteam")
@click.argument("wanted", type=RecordType(), metavar="RECORD")
@client_options
def history(wanted: Address | Key, server: Server, *, as_json: bool) -> None:
    """List the versions of a record, newest first.

    RECORD is naddr1…, KIND:PUBLIC-KEY:D (of any replaceable or addressable kind), or a KEY. The
    relay keeps old versions if its policies have `[[retention]] history`.
    """
    found = with_settings(
        Actor.USER, server, lambda client, settings: find(client, settings, wanted)
    )
    if as_json:
        print_json({"record": str(found.record), "versions": [*map(_as_json, found.versions)]})
        return
    rows = [
        (
            event.id[:_SHOWN],
            iso(event.created_at),
            f"{len(event.raw):,}",
            found.signer,
            "current" if event is found.versions[0] else "",
        )
        for event in found.versions
    ]
    click.echo(printable(str(found.record)))
    print_table(_COLUMNS, rows)


def _as_json(event: Event) -> dict[str, object]:
    return {
        "id": event.id,
        "created_at": event.created_at,
        "author": event.pubkey,
        "bytes": len(event.raw),
    }


@click.command("show", epilog="Example: rookery memory show group:techteam --as-of 1771000000")
@click.argument("wanted", type=RecordType(), metavar="RECORD")
@click.option("--as-of", type=Moment(), metavar="TIME", help="The version of that time.")
@click.option("--version", "named", metavar="ID", help="This version: the beginning of its id.")
@client_options
def show(
    wanted: Address | Key,
    as_of: int | None,
    named: str | None,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Show one version of a record; default: the current one.

    TIME is Unix seconds or 2026-02-02T16:00:00Z. RECORD is as for `memory history`.
    """
    if as_of is not None and named is not None:
        raise click.UsageError("give --as-of or --version, not both")
    found = with_settings(
        Actor.USER, server, lambda client, settings: find(client, settings, wanted)
    )
    event = found.versions[0]
    if as_of is not None:
        event = found.as_of(as_of)
    elif named is not None:
        event = found.version(named)
    if as_json:
        print_json({**orjson.loads(event.raw), "current": event is found.versions[0]})
        return
    place = found.versions.index(event)
    state = "current" if place == 0 else f"replaced {iso(found.versions[place - 1].created_at)}"
    click.echo(f"record   {printable(str(found.record))}")
    click.echo(f"version  {event.id[:_SHOWN]} of {iso(event.created_at)}, {state}")
    click.echo(f"author   {found.signer}")
    click.echo(f"read by  {printable(readers_of(event))}")
    click.echo()
    for line in found.lines(event):
        click.echo(line)


@click.command("diff", epilog="Example: rookery memory diff group:techteam 5c1f")
@click.argument("wanted", type=RecordType(), metavar="RECORD")
@click.argument("old", required=False, metavar="[OLD]")
@click.argument("new", required=False, metavar="[NEW]")
@client_options
def diff(
    wanted: Address | Key, old: str | None, new: str | None, server: Server, *, as_json: bool
) -> int:
    """Compare two versions of a record: tags, and content line by line.

    OLD and NEW are beginnings of ids; default: the version before NEW, and the current one.
    """
    found = with_settings(
        Actor.USER, server, lambda client, settings: find(client, settings, wanted)
    )
    after = found.versions[0] if new is None else found.version(new)
    if old is not None:
        before = found.version(old)
    else:
        place = found.versions.index(after) + 1
        if place == len(found.versions):
            raise UserError(f"no version before {after.id[:_SHOWN]} is kept")
        before = found.versions[place]
    was, now = (f"{event.id[:_SHOWN]} {iso(event.created_at)}" for event in (before, after))
    old_lines, new_lines = found.lines(before), found.lines(after)
    lines = _compared(old_lines, new_lines, was, now)
    if as_json:
        print_json({"old": before.id, "new": after.id, "diff": lines})
        return 0
    for number, line in enumerate(lines):
        click.echo(line if number < 2 else _painted(line))
    if not lines:
        click.echo("the two versions are equal", err=True)
    return 0


def _compared(before: list[str], after: list[str], was: str, now: str) -> list[str]:
    """A unified diff; of many lines all between the first and the last that differ."""
    if len(before) * len(after) <= _MAX_COMPARED:
        return list(unified_diff(before, after, was, now, lineterm=""))
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    pairs = zip(before, after, strict=False)
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    removed, added = (f"-{line}" for line in before[start:]), (f"+{line}" for line in after[start:])
    changed = [*removed, *added]
    return [f"--- {was}", f"+++ {now}", *changed] if changed else []


def _painted(line: str) -> str:
    if line.startswith("+"):
        return coloured(line, Colour.OK)
    return coloured(line, Colour.REFUSED) if line.startswith("-") else line


@click.command("restore", epilog="Example: rookery memory restore group:techteam 5c1f")
@click.argument("wanted", type=RecordType(), metavar="RECORD")
@click.argument("named", metavar="VERSION")
@client_options
def restore(wanted: Address | Key, named: str, server: Server, *, as_json: bool) -> None:
    """Publish an old version's tags and content anew, as the newest version.

    The key that signed the record signs it: `key_file` or `agent_key_file` of client.toml, or
    --key-file. The version that it replaces stays in the history. It has the same readers as the
    old version.
    """

    async def work(client: Client, settings: ClientSettings) -> tuple[Event, Event | None]:
        found = await find(client, settings, wanted)
        old, current = found.version(named), found.versions[0]
        if _says(old) == _says(current):
            return current, None
        event = _again(old, current, _author(settings, found), client.now())
        await client.publish(event)
        return current, event

    current, event = with_settings(Actor.USER, server, work)
    if event is None:
        if as_json:
            print_json({"id": current.id, "restored": False})
            return
        click.echo("unchanged: the current version is equal", err=True)
        return
    if as_json:
        print_json({"id": event.id, "created_at": event.created_at, "restored": True})
        return
    click.echo(f"restored as {event.id[:_SHOWN]}; before it was {current.id[:_SHOWN]}")
    click.echo(f"read by {printable(readers_of(event))}", err=True)


def _author(settings: ClientSettings, found: Found) -> SecretKey:
    """The key that signs versions of this record. Raises UserError."""
    for key in (settings.key, settings.agent_key()):
        if key is not None and key.pubkey == found.record.pubkey:
            return key
    raise UserError(
        f"only its author can restore it, {npub(found.record.pubkey)}: give that key with"
        " --key-file"
    )


def _says(event: Event) -> tuple[list[list[str]], str]:
    return [tag for tag in event.tags if tag[:1] not in (["ts"], [MADE_FROM])], event.content


def _again(old: Event, current: Event, key: SecretKey, now: int) -> Event:
    """A new version with the content and tags of `old`, newer than `current`; also by tag `ts`,
    where versions are compared by it."""
    times = [int(ts) for ts in (current.tag("ts") or "",) if ts.isascii() and ts.isdigit()]
    at = max(now, current.created_at + 1, *(ts + 1 for ts in times))
    kept = [tag for tag in old.tags if tag[:1] != [MADE_FROM]]
    tags = [["ts", str(at)] if tag[:1] == ["ts"] else list(tag) for tag in kept]
    return key.sign(old.kind, tags, old.content, at)


VERSION_COMMANDS: Final[Sequence[click.Command]] = (history, show, diff, restore)
