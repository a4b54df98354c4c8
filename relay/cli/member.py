"""`rookery member`, `ban`, `unban`, `allow`: people of a relay (NIP-43), by NIP-86 calls.

Signs as the owner. A relay refuses methods that it does not offer; those for invites exist only on
this one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click

from relay.access.membership import claim_id
from relay.cli.connect import called, with_client, with_settings
from relay.cli.humanize import counted
from relay.cli.memory_text import iso
from relay.cli.names import (
    HexKey,
    Listed,
    Names,
    Person,
    banned_names,
    keys_in,
    keys_of,
    people_argument,
    read_names,
)
from relay.cli.options import (
    CommandGroup,
    Server,
    WholeNumber,
    client_options,
    print_json,
    printable,
)
from relay.cli.tables import Column, Holds, print_found, print_nothing_found, print_table
from relay.client.errors import ClientError
from relay.client.settings import Actor
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings

_CLAIM_ID: Final = re.compile(r"[0-9a-f]{16}").fullmatch


class _Member(TypedDict):
    pubkey: HexKey
    roles: list[str]
    reason: str | None


class _Invite(TypedDict):
    code: str
    id: str
    left: int | None
    until: int | None


class _ListedInvite(_Invite):
    by: HexKey


_reason = click.option("--reason", metavar="TEXT", default="", help="Stored with the key.")


@click.group(
    "member", cls=CommandGroup, epilog="Example: rookery member add npub1… --reason 'a neighbour'"
)
def member() -> None:
    """Manage the members of a relay (NIP-43). Signs as the owner."""


@member.command("list", epilog="Example: rookery member list --json")
@client_options
def list_members(server: Server, *, as_json: bool) -> None:
    """List the members of the relay: added or joined keys, owners and agents.

    Members of a group are listed by `rookery group show ID`.
    """
    members, names = with_settings(Actor.OWNER, server, _members)
    if as_json:
        print_json(members)
        return
    if not members:
        print_nothing_found("nobody was added or has joined yet: `rookery member add KEY`")
        return
    print_table(
        (Column("Member", Holds.KEY), Column("Roles"), Column("How")),
        [
            (
                names.shown(each["pubkey"]),
                printable(", ".join(each["roles"])),
                "owner or agent"
                if each["reason"] is None
                else printable(each["reason"] or "added"),
            )
            for each in members
        ],
    )
    click.echo("members of groups: `rookery group show ID`", err=True)


@member.command("add", epilog="Example: rookery member add npub1… --reason 'a neighbour'")
@people_argument
@_reason
@client_options
def add(users: tuple[str, ...], reason: str, server: Server, *, as_json: bool) -> None:
    """Add members: they are known to the relay, without being in a group."""
    _for_each("allowpubkey", users, reason, server, done="added", as_json=as_json)


@member.command("remove", epilog="Example: rookery member remove npub1…")
@people_argument
@client_options
def remove(users: tuple[str, ...], server: Server, *, as_json: bool) -> None:
    """Remove members. They stay in their groups: see `rookery group remove` and `rookery ban`.

    They do not join again by an invite that was made before.
    """
    _for_each(
        "unallowpubkey",
        users,
        "",
        server,
        done="removed",
        otherwise="was not added and has not joined",
        as_json=as_json,
    )


@member.command("invite", epilog="Example: rookery member invite --uses 5 --days 2")
@click.option(
    "--uses",
    type=WholeNumber(0, 100_000),
    metavar="N",
    help="Number of keys that may join with it; 0: any. Default: [members] claim_uses, 1 unless"
    " set.",
)
@click.option(
    "--days",
    type=WholeNumber(0, 100_000),
    metavar="N",
    help="Days it is valid; 0: no expiry. Default: [members] claim_days, 7 unless set.",
)
@click.option("--list", "listing", is_flag=True, help="List the open invites instead.")
@click.option("--revoke", metavar="ID", help="Withdraw this invite instead, by id or code.")
@client_options
def invite(
    uses: int | None,
    days: int | None,
    revoke: str | None,
    server: Server,
    *,
    listing: bool,
    as_json: bool,
) -> None:
    """Create an invite code; whoever joins with it becomes a member."""
    if (listing or revoke is not None) and (uses is not None or days is not None):
        raise click.UsageError("--uses and --days are for a new invite")
    if listing and revoke is not None:
        raise click.UsageError("--list and --revoke exclude each other")
    if revoke is not None:
        id_ = revoke if _CLAIM_ID(revoke) else claim_id(revoke)
        with_client(Actor.OWNER, server, lambda client: client.call("revokeinvite", id_))
        if as_json:
            print_json({"id": id_})
        else:
            click.echo(f"withdrawn: {id_}")
    elif listing:
        _list_invites(server, as_json=as_json)
    else:
        made = with_client(
            Actor.OWNER, server, lambda client: called(client, _Invite, "createinvite", uses, days)
        )
        if as_json:
            print_json(made)
        else:
            click.echo(f"code  {printable(made['code'])}")
            click.echo(f"id    {printable(made['id'])}")
            click.echo(f"for   {_uses_text(made['left'])}, {_until_text(made['until'])}")


def _list_invites(server: Server, *, as_json: bool) -> None:
    found, names = with_settings(Actor.OWNER, server, _invites)
    if as_json:
        print_json(found)
        return
    print_found(
        (
            Column("Code", Holds.KEY),
            Column("Id", Holds.KEY),
            Column("By", Holds.KEY),
            Column("Admits"),
            Column("Until"),
        ),
        [
            (
                printable(each["code"]),
                printable(each["id"]),
                names.shown(each["by"]),
                _uses_text(each["left"]),
                _until_text(each["until"]),
            )
            for each in found
        ],
        "`rookery member invite` creates an invite",
    )


async def _invites(client: Client, settings: ClientSettings) -> tuple[Any, Names]:
    found = await called(client, list[_ListedInvite], "listinvites")
    return found, await read_names(client, settings, [each["by"] for each in found])


def _uses_text(left: int | None) -> str:
    return "any number of keys" if left is None else counted(left, "key")


def _until_text(until: int | None) -> str:
    return "no expiry" if until is None else f"until {iso(until)}"


@click.command("ban", epilog="Example: rookery ban npub1… --reason spam")
@click.argument("users", metavar="[KEY...]", type=Person(), nargs=-1)
@_reason
@click.option("--list", "listing", is_flag=True, help="List the banned keys instead.")
@client_options
def ban(
    users: tuple[str, ...],
    reason: str,
    server: Server,
    *,
    listing: bool,
    as_json: bool,
) -> None:
    """Ban keys: they can neither write nor read, and their events are hidden.

    `rookery unban KEY` undoes it. Banned keys stay in the lists of group members: remove them with
    `rookery group remove`.
    """
    if listing == bool(users):
        raise click.UsageError("give the keys to ban, or --list")
    if listing:
        _list_bans(server, as_json=as_json)
        return
    _for_each("banpubkey", users, reason, server, done="banned", as_json=as_json)


def _list_bans(server: Server, *, as_json: bool) -> None:
    async def work(client: Client, settings: ClientSettings) -> tuple[Any, Names]:
        found = await called(client, list[Listed], "listbannedpubkeys")
        return found, banned_names(found, settings.file.names)

    found, names = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json(found)
        return
    print_found(
        (Column("Key", Holds.KEY), Column("Name"), Column("Reason")),
        [
            (
                npub(each["pubkey"]),
                names.of(each["pubkey"]) or "",
                printable(each.get("reason") or ""),
            )
            for each in found
        ],
    )


@click.command("unban", epilog="Example: rookery unban npub1…")
@people_argument
@client_options
def unban(users: tuple[str, ...], server: Server, *, as_json: bool) -> None:
    """Lift bans. Events of the keys are visible again, and the keys are still in their groups.

    They are not members of the relay again: see `rookery member add`.
    """
    _for_each(
        "unbanpubkey",
        users,
        "",
        server,
        done="unbanned",
        otherwise="was not banned",
        as_json=as_json,
    )


@click.command("allow", epilog="Example: rookery allow npub1… --reason 'a neighbour'")
@people_argument
@_reason
@client_options
def allow(users: tuple[str, ...], reason: str, server: Server, *, as_json: bool) -> None:
    """The same as `rookery member add`."""
    _for_each("allowpubkey", users, reason, server, done="added", as_json=as_json)


def _for_each(
    method: str,
    users: Sequence[str],
    reason: str,
    server: Server,
    *,
    done: str,
    as_json: bool,
    otherwise: str = "",
) -> None:
    """Call `method` with each key. `otherwise`: the text about keys that were not changed."""
    listing = "listbannedpubkeys" if "ban" in method else "listallowedpubkeys"

    async def work(client: Client, settings: ClientSettings) -> tuple[tuple[str, ...], set[str]]:
        listed = await called(client, list[Listed], listing)
        banned = banned_names(listed, settings.file.names) if method == "unbanpubkey" else Names()
        if all(is_hex64(user) or banned.keys_of(user) for user in users):
            keys = keys_in(banned, users)
        else:
            keys = await keys_of(client, settings, users)
        before = {each["pubkey"] for each in listed}
        for number, key in enumerate(keys):
            try:
                await client.call(method, key, *([reason] if reason else []))
            except ClientError:
                if number:
                    click.echo(f"done so far: {', '.join(map(npub, keys[:number]))}", err=True)
                raise
        is_removal = method.startswith("un")
        return keys, {key for key in keys if (key in before) is is_removal}

    keys, changed = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json([{"pubkey": key, "changed": key in changed} for key in keys])
        return
    said = changed if otherwise else set(keys)
    if said:
        click.echo(f"{done}: {', '.join(npub(key) for key in keys if key in said)}")
    for key in keys:
        if key not in said:
            click.echo(f"{npub(key)} {otherwise}", err=True)


async def _members(client: Client, settings: ClientSettings) -> tuple[list[dict[str, Any]], Names]:
    """Of each: pubkey, name, roles, reason (None: an owner or agent). Sorted by name and key."""
    if "listmembers" in await _methods(client):
        listed = await called(client, list[_Member], "listmembers")
        names = await read_names(client, settings, [each["pubkey"] for each in listed])
        return _sorted(listed, names), names
    register = await called(client, list[Listed], "listallowedpubkeys")
    reasons = {each["pubkey"]: each.get("reason", "") for each in register}
    relay_key = (await client.information_or_empty()).get("self")
    lists = await client.query({"kinds": [kinds.RELAY_MEMBERS], "authors": [relay_key], "limit": 1})
    roles = {
        tag[1]: tag[2:]
        for event in lists
        for tag in event.tags
        if len(tag) > 1 and tag[0] == "member" and is_hex64(tag[1])
    }
    pubkeys = list(dict.fromkeys([*reasons, *roles]))
    names = await read_names(client, settings, pubkeys)
    found = [
        {"pubkey": key, "roles": roles.get(key, []), "reason": reasons.get(key)} for key in pubkeys
    ]
    return _sorted(found, names), names


async def _methods(client: Client) -> Sequence[str]:
    found = await client.call("supportedmethods")
    return found if isinstance(found, list) else ()


def _sorted(members: Sequence[dict[str, Any]], names: Names) -> list[dict[str, Any]]:
    named = [
        {
            "pubkey": each["pubkey"],
            "npub": npub(each["pubkey"]),
            "name": names.of(each["pubkey"]),
            "roles": each["roles"],
            "reason": each["reason"],
        }
        for each in members
    ]
    return sorted(named, key=lambda each: (each["name"] is None, each["name"], each["pubkey"]))
