"""`rookery group join`, `leave`, `requests`, `accept`, `invite`, `invites`, `revoke`.

How people come into a NIP-29 group and leave it. Signs as the owner; requests and invites are
readable by admins of the group only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_client, with_settings
from relay.cli.group_view import (
    group_argument,
    group_in,
    naddr_of,
    npubs_of,
    relay_key_of,
    report,
    view_of_group,
)
from relay.cli.memory_text import iso
from relay.cli.names import Names, keys_of, people_argument, read_names
from relay.cli.options import Number, Server, client_options, print_json, printable
from relay.cli.tables import Column, Holds, print_found
from relay.client import PublishRefused
from relay.client.settings import Actor
from relay.errors import Prefix, UserError
from relay.groups.actions import MIN_CODE_CHARS, number_in
from relay.memory.fence import shell_word
from relay.nostr import kinds
from relay.nostr.nip42 import may_stand_for

if TYPE_CHECKING:
    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_DAY_S: Final = 86_400
_MAX_REQUESTS: Final = 500
_MAX_INVITES: Final = 500
_PENDING: Final = "pending review"
"""Text in the OK of a request that waits for an admin (N29-35)."""


@click.command("join", epilog="Example: rookery group join tea --code 3q8xT0aP")
@click.argument("group", metavar="ID")
@click.option("--code", metavar="TEXT", help="An invite code.")
@click.option("--reason", metavar="TEXT", default="", help="Message to the admins.")
@client_options
def join(
    group: str,
    code: str | None,
    reason: str,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Ask to join a group. ID may be the link of an invite: naddr1…?invite=CODE."""
    group_id, linked, relays = group_in(group)
    word = code if code is not None else linked
    tags = [["h", group_id], *([["code", word]] if word is not None else [])]

    async def work(client: Client, settings: ClientSettings) -> str:
        # The code is a secret of that relay, and the id names another group on this one.
        if relays and not any(may_stand_for(settings.relay, relay) for relay in relays):
            url = printable(relays[0])
            raise UserError(
                f"the link is of a group on {url}, not {settings.relay}: add --relay"
                f" {shell_word(relays[0])}"
            )
        request = client.sign(kinds.JOIN_REQUEST, reason, tags)
        try:
            await client.publish(request)
        except PublishRefused as refused:
            if refused.prefix == Prefix.DUPLICATE:
                return "member"
            if _PENDING not in refused.text:
                raise
            return "requested"
        return "joined"

    became = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json({"group": group_id, "result": became})
        return
    said = {
        "requested": "asked to join {}: an admin of the group decides",
        "member": "already a member of {}",
        "joined": "joined {}",
    }
    click.echo(said[became].format(printable(group_id)))


@click.command("leave", epilog="Example: rookery group leave tea")
@group_argument
@client_options
def leave(group_id: str, server: Server, *, as_json: bool) -> None:
    """Leave a group."""
    event = with_client(
        Actor.OWNER,
        server,
        lambda client: client.send(kinds.LEAVE_REQUEST, "", [["h", group_id]]),
    )
    report(event, f"left {printable(group_id)}", as_json=as_json)


@click.command("requests", epilog="Example: rookery group requests tea")
@group_argument
@client_options
def requests(group_id: str, server: Server, *, as_json: bool) -> None:
    """List requests to join; `rookery group accept` accepts them, `remove` declines."""

    async def work(client: Client, settings: ClientSettings) -> tuple[list[Event], Names]:
        found = await _pending(client, group_id)
        return found, await read_names(client, settings, [event.pubkey for event in found])

    found, names = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json(
            [
                {
                    "pubkey": event.pubkey,
                    "name": names.of(event.pubkey),
                    "reason": event.content,
                    "created_at": event.created_at,
                    "id": event.id,
                }
                for event in found
            ]
        )
    else:
        print_found(
            (Column("Who", Holds.KEY), Column("Since", Holds.KEY), Column("Reason")),
            [
                (names.shown(event.pubkey), iso(event.created_at), printable(event.content))
                for event in found
            ],
        )


@click.command("accept", epilog="Example: rookery group accept tea ada")
@group_argument
@people_argument
@client_options
def accept(
    group_id: str,
    users: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Accept requests to join a group."""

    async def work(client: Client, settings: ClientSettings) -> Event:
        asking = {event.pubkey for event in await _pending(client, group_id)}
        keys = await keys_of(client, settings, users, group_id, near=sorted(asking))
        if others := [key for key in keys if key not in asking]:
            raise UserError(
                f"no request to join {group_id} by {npubs_of(others)}; `rookery group add` adds"
                " people who have not asked"
            )
        tags = [["h", group_id], *(["p", key] for key in keys)]
        return await client.send(kinds.PUT_USER, "", tags)

    event = with_settings(Actor.OWNER, server, work)
    added = npubs_of(event.tag_values("p"))
    report(event, f"added {added} to {printable(group_id)}", as_json=as_json)


@click.command("invite", epilog="Example: rookery group invite tea --days 7")
@group_argument
@click.option(
    "--code",
    metavar="TEXT",
    help=f"Code to use instead of a random one; at least {MIN_CODE_CHARS} characters.",
)
@click.option(
    "--days",
    type=Number(min=0, min_open=True),
    metavar="N",
    help="Days the code is valid; default: no expiry.",
)
@click.option("--reusable", is_flag=True, help="May be used more than once.")
@client_options
def invite(
    group_id: str,
    code: str | None,
    days: float | None,
    server: Server,
    *,
    reusable: bool,
    as_json: bool,
) -> None:
    """Create an invite code. A join request with it makes its author a member."""
    if code is not None and len(code) < MIN_CODE_CHARS:
        raise click.BadParameter(
            f"must have at least {MIN_CODE_CHARS} characters", param_hint="--code"
        )
    word = code if code is not None else secrets.token_hex(12)

    async def work(client: Client) -> tuple[Event, str | None]:
        """The invite, and the group's naddr if the relay's key is known."""
        tags = [["h", group_id], ["code", word], *([["reusable"]] if reusable else [])]
        invited = client.sign(kinds.CREATE_INVITE, "", tags)
        if days is not None:
            ends = ["expiration", str(invited.created_at + int(days * _DAY_S))]
            at = invited.created_at
            invited = client.sign(kinds.CREATE_INVITE, "", [*tags, ends], created_at=at)
        await client.publish(invited)
        relay_key = await relay_key_of(client)
        return invited, relay_key and naddr_of(group_id, relay_key, client.url)

    event, naddr = with_client(Actor.OWNER, server, work)
    link = f"{naddr}?invite={word}" if naddr is not None else None
    if as_json:
        print_json({"id": event.id, "group": group_id, "code": word, "link": link})
        return
    click.echo(f"code  {printable(word)}")
    if link is not None:
        click.echo(f"link  {printable(link)}")
    keys, ends = "any number of keys" if reusable else "1 key", number_in(event.tag("expiration"))
    click.echo(f"for   {keys}, {'no expiry' if ends is None else f'until {iso(ends)}'}")


@dataclass(frozen=True, slots=True)
class _Invite:
    """One code of a 9009."""

    code: str
    event: Event
    uses: int
    is_reusable: bool
    until: int | None


@click.command("invites", epilog="Example: rookery group invites tea")
@group_argument
@client_options
def invites(group_id: str, server: Server, *, as_json: bool) -> None:
    """List a group's invite codes, used ones too."""

    async def work(client: Client, settings: ClientSettings) -> tuple[list[_Invite], Names]:
        found = await _invites(client, group_id)
        return found, await read_names(client, settings, [each.event.pubkey for each in found])

    found, names = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json(
            [
                {
                    "code": each.code,
                    "id": each.event.id,
                    "by": each.event.pubkey,
                    "uses": each.uses,
                    "reusable": each.is_reusable,
                    "until": each.until,
                }
                for each in found
            ]
        )
    else:
        print_found(
            (
                Column("Code", Holds.KEY),
                Column("By", Holds.KEY),
                Column("Used", Holds.NUMBER),
                Column("Reusable"),
                Column("Until"),
            ),
            [
                (
                    printable(each.code),
                    names.shown(each.event.pubkey),
                    str(each.uses),
                    "yes" if each.is_reusable else "no",
                    "no expiry" if each.until is None else iso(each.until),
                )
                for each in found
            ],
            f"`rookery group invite {shell_word(group_id)}` creates an invite",
        )


@click.command("revoke", epilog="Example: rookery group revoke tea 3q8xT0aP")
@group_argument
@click.argument("codes", metavar="CODE...", nargs=-1, required=True)
@client_options
def revoke(
    group_id: str,
    codes: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Withdraw invites by code; keys that joined with them stay members."""

    async def work(client: Client) -> Event:
        known = {each.code: each.event.id for each in await _invites(client, group_id)}
        if missing := [printable(code) for code in codes if code not in known]:
            raise UserError(
                f"no such invite of {group_id}: {', '.join(missing)};"
                f" `rookery group invites {shell_word(group_id)}` lists them"
            )
        ids = dict.fromkeys(known[code] for code in codes)
        tags = [["h", group_id], *(["e", event_id] for event_id in ids)]
        return await client.send(kinds.DELETE_EVENT, "", tags)

    event = with_client(Actor.OWNER, server, work)
    report(event, f"withdrawn: {printable(', '.join(codes))}", as_json=as_json)


async def _pending(client: Client, group_id: str) -> list[Event]:
    """The newest 9021 of each key that is no member and was not declined since; oldest first.

    At most `_MAX_REQUESTS` are read.
    """
    here = {"#h": [group_id], "limit": _MAX_REQUESTS}
    asked: dict[str, Event] = {}
    for event in await client.query({"kinds": [kinds.JOIN_REQUEST], **here}):
        known = asked.setdefault(event.pubkey, event)
        if event.created_at > known.created_at:
            asked[event.pubkey] = event
    for member in (await view_of_group(client, group_id)).people:
        asked.pop(member, None)
    if not asked:
        return []
    moved = {"kinds": [kinds.PUT_USER, kinds.REMOVE_USER], "#p": sorted(asked), **here}
    for event in await client.query(moved):
        for pubkey in event.tag_values("p"):
            if pubkey in asked and asked[pubkey].created_at <= event.created_at:
                del asked[pubkey]
    return sorted(asked.values(), key=lambda event: event.created_at)


async def _invites(client: Client, group_id: str) -> list[_Invite]:
    """Newest first, of at most `_MAX_INVITES` 9009."""
    here = {"#h": [group_id], "limit": _MAX_INVITES}
    made = await client.query({"kinds": [kinds.CREATE_INVITE], **here})
    uses: dict[tuple[str, str], int] = {}
    if (relay_key := await relay_key_of(client)) is not None:
        # The relay's 9000 for a join says which code of which 9009 was used.
        admitted = {"kinds": [kinds.PUT_USER], "authors": [relay_key], **here}
        for event in await client.query(admitted):
            for tag in event.tags:
                if len(tag) > 2 and tag[0] == "invite":
                    uses[tag[1], tag[2]] = uses.get((tag[1], tag[2]), 0) + 1
    return [
        _Invite(
            code,
            event,
            uses.get((event.id, str(index)), 0),
            event.has_tag("reusable"),
            number_in(event.tag("expiration")),
        )
        for event in made
        for index, code in enumerate(event.tag_values("code"))
    ]
