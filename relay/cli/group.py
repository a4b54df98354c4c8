"""`rookery group`: NIP-29 group administration as a signed client. Signs as the owner.

Works on any NIP-29 relay; output is based on events signed by the relay (kinds 39000–39003).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.connect import with_client
from relay.cli.options import (
    PublicKey,
    client_options,
    console,
    json_option,
    print_json,
    printable,
)
from relay.cli.tables import Column, Holds, print_nothing_found, print_table
from relay.client import ClientError
from relay.client.information import lists_nip
from relay.client.settings import Actor
from relay.errors import UserError
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.keys import npub
from relay.nostr.nip19 import AddressPointer, encode_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from relay.client import Client
    from relay.nostr.event import Event

_FLAGS: Final[tuple[str, ...]] = ("private", "restricted", "closed", "hidden")
_DEFAULT_ON: Final = frozenset(_FLAGS[:3])
"""Default of the flags not named when some are: turning one off turns no other off."""
_OPPOSITE: Final = {
    "private": "public",
    "restricted": "unrestricted",
    "closed": "open",
    "hidden": "visible",
}
"""The tag that confirms in a 9002 that a flag is turned off intentionally (Z-03)."""
_TEXTS: Final = ("name", "about", "picture")
_SHOWN: Final = (
    kinds.GROUP_METADATA,
    kinds.GROUP_ADMINS,
    kinds.GROUP_MEMBERS,
    kinds.GROUP_ROLES,
)
_GROUPS: Final = 29
"""NIP number."""
_MIN_CODE: Final = 8
_DAY_S: Final = 86_400
_AGENT_ROLE: Final = "agent"
"""Role that permits writing memory in the group unless `[actors] agent_role` names another; 39003
does not list it."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The relay's events about one group."""

    id: str
    texts: Mapping[str, str]
    flags: frozenset[str]
    supported_kinds: tuple[str, ...] | None
    admins: Mapping[str, tuple[str, ...]]
    """pubkey → roles."""
    members: tuple[str, ...] | None
    """None: not readable with this key."""
    roles: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            **{name: self.texts.get(name) for name in _TEXTS},
            "flags": [flag for flag in _FLAGS if flag in self.flags],
            "supported_kinds": self.supported_kinds,
            "admins": dict(self.admins),
            "members": self.members,
            "roles": self.roles,
        }


@click.group("group", epilog="Example: rookery group create tea --name 'Tea room'")
def group() -> None:
    """Create and manage NIP-29 groups. Signs as the owner."""


def _flag(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(f"--{name}/--{_OPPOSITE[name]}", name, default=None, help=what)


@group.command("create", epilog="Example: rookery group create tea --name 'Tea room' --private")
@click.argument("group_id", metavar="ID")
@click.option("--name", metavar="TEXT", help="Display name.")
@click.option("--about", metavar="TEXT", help="Description.")
@click.option("--picture", metavar="URL", help="Picture URL.")
@_flag("private", "Only members read.")
@_flag("restricted", "Only members write.")
@_flag("closed", "Joining needs an invite.")
@_flag("hidden", "Only members see the group.")
@client_options
@json_option
def create(
    group_id: str,
    relay: str | None,
    key_file: Path | None,
    *,
    name: str | None,
    about: str | None,
    picture: str | None,
    as_json: bool,
    **flags: bool | None,
) -> None:
    """Create a group; its creator becomes admin.

    Without flags the relay chooses them. If some are given, the others default to --private
    --restricted --closed --visible.
    """
    texts = {"name": name, "about": about, "picture": picture}
    given = {text: value for text, value in texts.items() if value is not None}
    flagged = {flag: is_on for flag, is_on in flags.items() if is_on is not None}

    async def work(client: Client) -> GroupView:
        return await _created(client, group_id, given, flagged)

    view = with_client(Actor.OWNER, relay, key_file, work)
    if as_json:
        print_json(view.as_json())
    else:
        click.echo(f"created {printable(group_id)} ({_flags_in_words(view)})")
        if kept := [flag for flag in _FLAGS if flagged.get(flag) is False and flag in view.flags]:
            click.echo(f"the relay does not allow turning off: {', '.join(kept)}", err=True)


@group.command("add", epilog="Example: rookery group add tea npub1… --role admin")
@click.argument("group_id", metavar="ID")
@click.argument("users", metavar="KEY...", type=PublicKey(), nargs=-1, required=True)
@click.option("--role", "roles", multiple=True, help="A role, such as admin; repeatable.")
@client_options
@json_option
def add(
    group_id: str,
    users: tuple[str, ...],
    roles: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Add users, or replace the roles of members."""
    tags = [["h", group_id], *(["p", user, *roles] for user in users)]

    async def work(client: Client) -> Event:
        if roles:
            _warn_of_unlisted(roles, await _view(client, group_id))
        return await client.send(kinds.PUT_USER, "", tags)

    event = with_client(Actor.OWNER, relay, key_file, work)
    _report(event, f"added {_npubs(users)} to {printable(group_id)}", as_json=as_json)


@group.command("remove", epilog="Example: rookery group remove tea npub1…")
@click.argument("group_id", metavar="ID")
@click.argument("users", metavar="KEY...", type=PublicKey(), nargs=-1, required=True)
@client_options
@json_option
def remove(
    group_id: str,
    users: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Remove users from a group; they stop receiving events immediately."""
    tags = [["h", group_id], *(["p", user] for user in users)]

    async def work(client: Client) -> tuple[Event, GroupView]:
        """The removal, and the group before it."""
        before = await _view(client, group_id)
        return await client.send(kinds.REMOVE_USER, "", tags), before

    event, before = with_client(Actor.OWNER, relay, key_file, work)
    # The relay accepts a removal if it names at least one member, or declines a join request.
    members = users if before.members is None else {*before.members, *before.admins}
    removed = [user for user in users if user in members]
    if len(removed) < len(users):
        others = [user for user in users if user not in members]
        click.echo(f"not in {printable(group_id)}: {_npubs(others)}", err=True)
    if removed or as_json:
        _report(event, f"removed {_npubs(removed)} from {printable(group_id)}", as_json=as_json)


@group.command("invite", epilog="Example: rookery group invite tea --days 7")
@click.argument("group_id", metavar="ID")
@click.option(
    "--code",
    metavar="TEXT",
    help=f"Code to use instead of a random one; at least {_MIN_CODE} characters.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Days the code is valid.",
)
@click.option("--reusable", is_flag=True, help="May be used more than once.")
@client_options
@json_option
def invite(
    group_id: str,
    code: str | None,
    days: float | None,
    relay: str | None,
    key_file: Path | None,
    *,
    reusable: bool,
    as_json: bool,
) -> None:
    """Create an invite code. A join request with it makes its author a member."""
    if code is not None and len(code) < _MIN_CODE:
        raise click.BadParameter(f"must have at least {_MIN_CODE} characters", param_hint="--code")
    word = code if code is not None else secrets.token_urlsafe(12)

    async def work(client: Client) -> tuple[Event, str | None]:
        """The invite, and the group's naddr if the relay's key is known."""
        tags = [["h", group_id], ["code", word], *([["reusable"]] if reusable else [])]
        invited = client.sign(kinds.CREATE_INVITE, "", tags)
        if days is not None:
            ends = ["expiration", str(invited.created_at + int(days * _DAY_S))]
            at = invited.created_at
            invited = client.sign(kinds.CREATE_INVITE, "", [*tags, ends], created_at=at)
        await client.publish(invited)
        relay_key = await _self_of(client)
        return invited, relay_key and _naddr(group_id, relay_key, client.url)

    event, naddr = with_client(Actor.OWNER, relay, key_file, work)
    link = f"{naddr}?invite={word}" if naddr is not None else None
    if as_json:
        print_json({"id": event.id, "group": group_id, "code": word, "link": link})
        return
    click.echo(f"code  {printable(word)}")
    if link is not None:
        click.echo(f"link  {printable(link)}")


@group.command("list", epilog="Example: rookery group list --json")
@client_options
@json_option
def list_groups(relay: str | None, key_file: Path | None, *, as_json: bool) -> None:
    """List the groups that this key may read."""
    views = with_client(Actor.OWNER, relay, key_file, _views)
    if as_json:
        print_json([view.as_json() for view in views])
        return
    if not views:
        print_nothing_found("`rookery group create ID` creates a group")
        return
    columns = (
        Column("ID", Holds.KEY),
        Column("Name"),
        Column("Flags"),
        Column("Members"),
        Column("With a role"),
    )
    print_table(
        columns,
        [
            (
                printable(view.id),
                printable(view.texts.get("name", "")),
                _flags_in_words(view),
                "–" if view.members is None else str(len(view.members)),
                str(len(view.admins)),
            )
            for view in views
        ],
    )


@group.command("show", epilog="Example: rookery group show tea")
@click.argument("group_id", metavar="ID")
@client_options
@json_option
def show(group_id: str, relay: str | None, key_file: Path | None, *, as_json: bool) -> None:
    """Show one group: metadata, members and roles."""

    async def work(client: Client) -> Sequence[GroupView]:
        return await _views(client, group_id)

    views = with_client(Actor.OWNER, relay, key_file, work)
    if not views:
        raise UserError(
            f"no group {group_id!r} is visible to this key; `rookery group list` lists groups"
        )
    (view,) = views
    if as_json:
        print_json(view.as_json())
        return
    out = console()
    out.print(f"{printable(view.id)}: {_flags_in_words(view)}")
    for name in _TEXTS:
        if name in view.texts:
            out.print(f"{name}: {printable(view.texts[name])}")
    if view.supported_kinds is not None:
        out.print(f"kinds: {printable(', '.join(view.supported_kinds) or 'none')}")
    if view.roles:
        out.print(f"roles: {printable(', '.join(view.roles))}")
    print_table(
        (Column("Member", Holds.KEY), Column("Roles")),
        [
            (npub(user), printable(", ".join(view.admins.get(user, ()))))
            for user in dict.fromkeys((*view.admins, *(view.members or ())))
        ],
    )
    if view.members is None:
        out.print("this key may not read the member list")


async def _created(
    client: Client, group_id: str, texts: Mapping[str, str], flags: Mapping[str, bool]
) -> GroupView:
    wanted = None
    if flags:
        wanted = frozenset(flag for flag in _FLAGS if flags.get(flag, flag in _DEFAULT_ON))
    tags = [*([name, text] for name, text in texts.items()), *_flag_tags(wanted, flags)]
    # All in one event, so that a hidden group is never visible.
    await client.send(kinds.CREATE_GROUP, "", [["h", group_id], *tags])
    view = await _view(client, group_id)
    # Some relays ignore the tags of a 9007, and without flags this one sets its defaults.
    if any(view.texts.get(name) != text for name, text in texts.items()) or (
        wanted is not None and view.flags != wanted
    ):
        kept = view.flags if wanted is None else wanted
        tags = [*([name, text] for name, text in texts.items()), *_flag_tags(kept, flags)]
        await client.send(kinds.EDIT_METADATA, "", [["h", group_id], *tags])
        view = await _view(client, group_id)
    return view


def _flag_tags(wanted: frozenset[str] | None, flags: Mapping[str, bool]) -> list[list[str]]:
    """The flags that are on, and the confirming tags of those turned off."""
    on = [[flag] for flag in _FLAGS if wanted is not None and flag in wanted]
    return on + [[_OPPOSITE[flag]] for flag, is_on in flags.items() if not is_on]


async def _view(client: Client, group_id: str) -> GroupView:
    views = await _views(client, group_id)
    return views[0] if views else GroupView(group_id, {}, frozenset(), None, {}, None, ())


async def _views(client: Client, group_id: str | None = None) -> list[GroupView]:
    """Groups with a readable 39000, by id; `group_id`: only this one."""
    filter_: dict[str, object] = {"kinds": list(_SHOWN)}
    if group_id is not None:
        filter_["#d"] = [group_id]
    if (relay_key := await _self_of(client)) is not None:
        # These kinds signed by others are no group of this relay (N29-60).
        filter_["authors"] = [relay_key]
    newest: dict[str, dict[int, Event]] = {}
    async for event in client.query_all(filter_):
        newest.setdefault(event.d, {}).setdefault(event.kind, event)
    return [
        _view_of(id_, events)
        for id_, events in sorted(newest.items())
        if kinds.GROUP_METADATA in events
    ]


def _view_of(group_id: str, events: Mapping[int, Event]) -> GroupView:
    metadata = events[kinds.GROUP_METADATA]
    admins, members, roles = (events.get(kind) for kind in _SHOWN[1:])
    supported = next((tag[1:] for tag in metadata.tags if tag[:1] == ["supported_kinds"]), None)
    return GroupView(
        id=group_id,
        texts={name: text for name in _TEXTS if (text := metadata.tag(name)) is not None},
        flags=frozenset(flag for flag in _FLAGS if metadata.has_tag(flag)),
        supported_kinds=None if supported is None else tuple(supported),
        admins={}
        if admins is None
        else {tag[1]: tuple(tag[2:]) for tag in admins.tags if _is_user(tag)},
        members=None if members is None else tuple(tag[1] for tag in members.tags if _is_user(tag)),
        roles=() if roles is None else tuple(roles.tag_values("role")),
    )


def _is_user(tag: Sequence[str]) -> bool:
    return len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])


async def is_seen(client: Client, group_id: str) -> bool:
    """Whether this key may see the group; True for relays that do not list NIP-29."""
    if not lists_nip(await client.information_or_empty(), _GROUPS):
        return True
    return bool(await _views(client, group_id))


async def _self_of(client: Client) -> str | None:
    """The relay's own key (N11-07), if known."""
    try:
        relay_key = (await client.information()).get("self")
    except ClientError:
        return None
    return relay_key if isinstance(relay_key, str) and is_hex64(relay_key) else None


def _naddr(group_id: str, relay_key: str, url: str) -> str:
    """NIP-19 naddr of a group: its 39000 and the relay (N19-02)."""
    return encode_pointer(AddressPointer(group_id, relay_key, kinds.GROUP_METADATA, (url,)))


def _warn_of_unlisted(roles: Sequence[str], view: GroupView) -> None:
    """Warn about roles that are neither in the group's 39003 nor held by an admin.

    A relay that lists none may accept any (N29-111).
    """
    held = [role for roles_held in view.admins.values() for role in roles_held]
    listed = dict.fromkeys((*view.roles, _AGENT_ROLE, *held))
    for role in roles:
        if role not in listed and view.roles:
            near = get_close_matches(role, listed, n=1)
            click.echo(
                f"the role {role!r} has no permissions; roles of {view.id}: {', '.join(listed)}"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                err=True,
            )


def _report(event: Event, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "kind": event.kind, "group": event.tag("h")})
    else:
        click.echo(text)


def _npubs(users: Sequence[str]) -> str:
    return ", ".join(npub(user) for user in users)


def _flags_in_words(view: GroupView) -> str:
    return ", ".join(flag for flag in _FLAGS if flag in view.flags) or "open to all"
