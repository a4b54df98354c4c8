"""`rookery memory`: agents' memory of users and groups, and agents' own memory.

Signs as the agent. `memory search` is in `memory_search`, `memory why` in `memory_why`, `memory
import` and `export` in `memory_import` and `memory_export`; versions of records are in
`memory_versions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.connect import with_settings
from relay.cli.memory_export import export
from relay.cli.memory_import import import_
from relay.cli.memory_keys import Key, KeyType, records_of
from relay.cli.memory_search import search
from relay.cli.memory_text import Shown, iso, lines_of, readers_of, shown_in
from relay.cli.memory_versions import VERSION_COMMANDS
from relay.cli.memory_why import why
from relay.cli.names import Names, read_names
from relay.cli.options import (
    CommandGroup,
    Server,
    anyway_option,
    client_options,
    console,
    print_json,
    printable,
    report_kept_out,
)
from relay.cli.owners import owner_option, owners_at
from relay.cli.tables import print_nothing_found
from relay.client import Client
from relay.client.information import reads_prefixes
from relay.client.settings import Actor
from relay.client.snowclaw_records import SnowclawRecords
from relay.client.writer import Outcome, Written
from relay.errors import UserError
from relay.memory.fence import shell_word
from relay.memory.snowclaw.encryption import OwnKey
from relay.memory.snowclaw.keys import (
    AGENT,
    COLLECTIVE,
    CONFIG,
)
from relay.nostr import kinds
from relay.nostr.keys import npub
from relay.nostr.nip09 import address_tags

if TYPE_CHECKING:
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

ONLY_AGENTS: Final = "restricted: only agents may write memory"


@click.group("memory", cls=CommandGroup, epilog="Example: rookery memory get npub1…")
def memory() -> None:
    """Read and edit agents' memory.

    KEY is a user (npub1…, hex or npub:NAME), group:ID, a key of the agent's own memory, or a
    topic.
    """


for command in (search, why, import_, export, *VERSION_COMMANDS):
    memory.add_command(command)


@memory.command("get", epilog="Example: rookery memory get group:techteam")
@click.argument("key", type=KeyType())
@owner_option
@client_options
def get(key: Key, owners: tuple[str, ...], server: Server, *, as_json: bool) -> int:
    """Show the memory of a user or group, or the value of a key."""

    async def work(client: Client, settings: ClientSettings) -> list[Shown]:
        events = await records_of(client, key)
        return shown_in(events, OwnKey.of(settings.key), await owners_at(client, owners))

    found = with_settings(Actor.USER, server, work)
    if not found:
        click.echo(f"no memory for {printable(key.text)}", err=True)
        return 1
    if as_json:
        first, *others = (one.as_json() for one in found)
        print_json({**first, "others": others})
        return 0
    out = console()
    for position, one in enumerate(found):
        if position > 0:
            click.echo()
        rows = lines_of(one)
        if not out.is_terminal:
            for name, text in rows:
                click.echo(f"{name:<13}{printable(text)}".rstrip())
            continue
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        for name, text in rows:
            grid.add_row(name, printable(text))
        out.print(grid)
    return 0


@memory.command("set", epilog="Example: rookery memory set npub1… --note 'Likes short answers'")
@click.argument("key", type=KeyType())
@click.argument("text", required=False)
@click.option("--note", "notes", multiple=True, metavar="TEXT", help="Add a note.")
@click.option(
    "--preference", "preferences", multiple=True, metavar="K=V", help="Set a preference of a user."
)
@click.option("--purpose", metavar="TEXT", help="Set the purpose of a group.")
@click.option("--theme", "themes", multiple=True, metavar="TEXT", help="Add a theme of a group.")
@click.option(
    "--decision", "decisions", multiple=True, metavar="TEXT", help="Add a decision of a group."
)
@click.option("--group", metavar="ID", help="Group whose members may read it.")
@click.option(
    "--encrypted", is_flag=True, help="Encrypt TEXT, or the record of a user, for the agent only."
)
@anyway_option
@owner_option
@client_options
def set_(
    key: Key,
    text: str | None,
    owners: tuple[str, ...],
    server: Server,
    *,
    anyway: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Add to the memory of a user or group, or store TEXT under a key of the agent's own memory.

    Memory of a user is readable by the agent and the owner, or by the members of --group.

    Without --group an owner's note is stored in a separate record that no group can read.

    An owner's note is written by the agent and marked as the owner's if client.toml has its
    agent_key_file. Otherwise it is written with the owner's key, which needs a relay with
    owner_annotations; the agent reads it as a member of --group.
    """
    _check(key, text, given)

    async def work(client: Client, settings: ClientSettings) -> Written | None:
        known = await owners_at(client, owners)
        signer, is_for_owner = _signer(settings, known)
        if signer is settings.key:
            return await _written(client, signer, known, is_for_owner=is_for_owner)
        async with Client(client.url, signer) as agents:
            return await _written(agents, signer, known, is_for_owner=is_for_owner)

    async def _written(
        client: Client, signer: SecretKey, known: frozenset[str], *, is_for_owner: bool
    ) -> Written | None:
        if signer.pubkey in known and not _is_only_notes(given):
            raise UserError(
                f"{ONLY_AGENTS}; this is an owner's key: set agent_key_file in client.toml, or give"
                " the agent's key with --key-file"
            )
        async with SnowclawRecords(client, signer, known) as claw:
            if anyway:
                claw.sieve = None
            written = await _stored(claw, signer, known, is_for_owner=is_for_owner)
            report_kept_out(claw)
            return None if written and written.outcome is Outcome.KEPT_OUT else written

    async def _stored(
        claw: SnowclawRecords, signer: SecretKey, known: frozenset[str], *, is_for_owner: bool
    ) -> Written | None:
        if key.plain is not None:
            category, _, name = key.plain.partition(":")
            return await claw.store(name, text or "", category, encrypted=given["encrypted"])
        await claw.load(at=[*key.ds, *key.private_ds])
        _check_readers(claw, key, given["group"], is_own_record=signer.pubkey in known)
        written = None
        if key.user is not None and is_for_owner and given["group"] is None:
            shared = []
            for note in given["notes"]:
                private = await claw.annotate_privately(
                    key.user, note, encrypted=given["encrypted"]
                )
                written = private or written
                shared += [note] if private is None else []
            given["notes"] = tuple(shared)
        if given["encrypted"] and key.user is not None and _is_left(given):
            if signer.pubkey in known:
                raise UserError(
                    "no agent could read it, encrypted with an owner's key: set"
                    " agent_key_file in client.toml, or give the agent's key with --key-file"
                )
            claw.encrypt_user(key.user)
        _note(claw, key, given, is_for_owner=is_for_owner)
        return next(iter(await claw.flush()), written)

    written = with_settings(Actor.USER, server, work)
    if written is None:
        click.echo(f"{printable(key.text)} is unchanged: it has this value already", err=True)
    elif as_json:
        event = written.event
        about = {"id": event.id, "d": event.d, "author": event.pubkey}
        print_json({**about, "read_by": readers_of(event)})
    else:
        click.echo(f"stored {written.event.id[:8]} {printable(written.event.d)}")
        click.echo(f"read by {printable(readers_of(written.event))}", err=True)


def _check(key: Key, text: str | None, given: dict[str, Any]) -> None:
    fits = (
        {"notes", "preferences", "group", "encrypted"}
        if key.user
        else ({"notes", "purpose", "themes", "decisions"})
    )
    given_names = {name for name, value in given.items() if value}
    if key.plain is not None:
        if given_names - {"encrypted"}:
            raise click.UsageError(
                f"{printable(key.text)!r} is a key of the agent's own memory: it accepts only TEXT;"
                " users are an npub, 64, 32 or 16 hex, or npub:NAME (of [names] in client.toml),"
                " groups are group:ID"
            )
        if text is None or text == "":
            raise click.UsageError(f"{printable(key.text)!r} accepts only TEXT")
        return
    if given["group"] and given["encrypted"]:
        raise click.UsageError("--encrypted is for the agent only: give it without --group")
    if text is not None or not given_names - {"group", "encrypted"} or given_names - fits:
        options = (
            "--note or --preference" if key.user else ("--note, --purpose, --theme or --decision")
        )
        raise click.UsageError(f"{printable(key.text)!r} accepts {options}")
    for pair in given["preferences"]:
        if not pair.partition("=")[0] or "=" not in pair:
            raise click.UsageError(f"--preference {printable(pair)!r} is not K=V")


def _is_left(given: dict[str, Any]) -> bool:
    """Whether there is more than what went into a record apart."""
    return bool(given["notes"] or given["preferences"])


def _check_readers(
    claw: SnowclawRecords, key: Key, group: str | None, *, is_own_record: bool
) -> None:
    """Raises UserError when the text would be read by a group that is not the one given.

    `is_own_record`: of an owner, who has no record apart for private notes.
    """
    reading = None if key.user is None else claw.group_reading(key.user)
    if reading is None or reading == group:
        return
    if group is not None:
        raise UserError(
            f"the memory of {printable(key.text)} is read by group:{printable(reading)}, not by"
            f" group:{printable(group)}"
        )
    if is_own_record:
        raise UserError(
            f"your notes about {printable(key.text)} are read by group:{printable(reading)}: give"
            f" --group {shell_word(reading)}, or set agent_key_file in client.toml for a"
            " private one"
        )


def _is_only_notes(given: dict[str, Any]) -> bool:
    return {name for name, value in given.items() if value} - {"group", "encrypted"} == {"notes"}


def _signer(settings: ClientSettings, owners: frozenset[str]) -> tuple[SecretKey, bool]:
    """The signing key, and whether it writes on behalf of an owner (S-23)."""
    agent = settings.agent_key()
    may_be_owner = not owners or settings.key.pubkey in owners
    if agent is None or agent.pubkey == settings.key.pubkey or not may_be_owner:
        return settings.key, False
    return agent, True


def _note(claw: SnowclawRecords, key: Key, given: dict[str, Any], *, is_for_owner: bool) -> None:
    readers = given["group"]
    for note in given["notes"]:
        if key.user is not None:
            note_user = claw.annotate_user if is_for_owner else claw.note_user
            note_user(key.user, note, group=readers)
        elif key.group is not None:
            (claw.annotate_group if is_for_owner else claw.note_group)(key.group, note)
    if key.user is not None:
        for pair in given["preferences"]:
            name, _, value = pair.partition("=")
            claw.set_preference(key.user, name, value, group=readers)
    if key.group is not None:
        if given["purpose"] is not None:
            claw.set_purpose(key.group, given["purpose"])
        for theme in given["themes"]:
            claw.add_theme(key.group, theme)
        for decision in given["decisions"]:
            claw.add_decision(key.group, decision)


@memory.command("list", epilog="Example: rookery memory list --json")
@client_options
def list_(server: Server, *, as_json: bool) -> None:
    """List the keys that this key may read, with time of last change and author.

    Authors' npubs are shortened; --json prints them in full.
    """

    async def work(client: Client, settings: ClientSettings) -> tuple[list[Event], Names]:
        wanted: dict[str, object] = {"kinds": [kinds.APP_DATA], "#d": [AGENT, COLLECTIVE]}
        if not reads_prefixes(await client.information_or_empty(), kinds.APP_DATA):
            click.echo(
                f"{client.url} does not support prefix queries: only this key's records are shown",
                err=True,
            )
            wanted = {"kinds": [kinds.APP_DATA], "authors": [client.pubkey]}
        found = [
            event
            async for event in client.query_all(wanted)
            if event.d.startswith((AGENT, COLLECTIVE)) and not event.d.startswith(CONFIG)
        ]
        return found, await read_names(client, settings, [event.pubkey for event in found])

    found, names = with_settings(Actor.USER, server, work)
    found.sort(key=lambda event: (event.d, -event.created_at, event.id))
    if as_json:
        print_json(
            [{"d": e.d, "created_at": e.created_at, "author": e.pubkey, "id": e.id} for e in found]
        )
        return
    for event in found:
        is_named = names.of(event.pubkey) is not None
        author = names.shown(event.pubkey) if is_named else npub(event.pubkey)[:12]
        click.echo(f"{printable(event.d)}  {iso(event.created_at)}  {author}")
    if not found:
        print_nothing_found("`rookery memory set KEY TEXT` adds a record")


@memory.command("forget", epilog="Example: rookery memory forget npub1…")
@click.argument("key", type=KeyType())
@owner_option
@client_options
def forget(key: Key, owners: tuple[str, ...], server: Server, *, as_json: bool) -> int:
    """Delete permanently the agent's records under a key. Other agents' records are kept.

    Only the author of a record can delete it. With an owner's key, agents whose key is not in
    client.toml are asked to delete theirs; they do so at once, or when they next start.
    """

    async def work(
        client: Client, settings: ClientSettings
    ) -> tuple[list[str], list[Event], list[Event]]:
        left = await records_of(client, key)
        is_owner = settings.key.pubkey in await owners_at(client, owners)
        deleted: list[str] = []
        for signer in (settings.key, settings.agent_key()):
            if signer is None or (deleted and not is_owner):
                continue
            ds = {event.d for event in left if event.pubkey == signer.pubkey}
            if ds and signer is settings.key:
                deleted += await _delete_records(client, signer, ds)
            elif ds:
                async with Client(client.url, signer) as agents:
                    deleted += await _delete_records(agents, signer, ds)
            left = [event for event in left if event.pubkey != signer.pubkey]
        if not is_owner:
            return deleted, [], [] if deleted else left
        asked = [event for event in left if event.d.startswith(AGENT)]
        for event in asked:
            # By address too: the agent may have a version that waits for the relay.
            named = [["e", event.id], *address_tags([event]), ["k", str(event.kind)]]
            await client.send(kinds.DELETION, "", [*named, ["p", event.pubkey]])
        return deleted, asked, [event for event in left if event not in asked]

    deleted, asked, left = with_settings(Actor.USER, server, work)
    if as_json:
        told = [{"agent": event.pubkey, "d": event.d} for event in asked]
        print_json({"forgotten": deleted, **({"asked": told} if told else {})})
    else:
        for d in deleted:
            click.echo(f"forgot {printable(d)}")
        for event in asked:
            click.echo(f"asked {npub(event.pubkey)} to forget {printable(event.d)}")
    if asked:
        click.echo(
            "an agent of `relay.client.Snowclaw` does so at once, or when it next starts; sign as"
            " the agent (--key-file, or agent_key_file in client.toml) to delete now",
            err=True,
        )
    for event in left:
        click.echo(
            f"{printable(event.d)} is kept: only {npub(event.pubkey)}, who wrote it, can delete it",
            err=True,
        )
    if not (deleted or asked or left):
        click.echo(f"no memory for {printable(key.text)}", err=True)
    return 0 if deleted or asked else 1


async def _delete_records(client: Client, signer: SecretKey, ds: set[str]) -> list[str]:
    async with SnowclawRecords(client, signer, ()) as claw:
        await claw.load(at=ds)
        return [d for d in sorted(ds) if await claw.forget(d) is not None]
