"""`rookery group`: NIP-29 administration as a signed client. Signs as the owner (contract §2).

Works on any relay with NIP-29; what it shows is what the relay itself signed (kinds 39000–39003).
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
from relay.cli.tables import Column, Holds, print_table, say_nothing_found
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
_SHUT: Final = frozenset(_FLAGS[:3])
"""What a group is when some flags are named and others not: opening one opens no other."""
_OPPOSITE: Final = {
    "private": "public",
    "restricted": "unrestricted",
    "closed": "open",
    "hidden": "visible",
}
"""The word that confirms, in a 9002, that a flag is left out on purpose (NIPS.md Z-03)."""
_TEXTS: Final = ("name", "about", "picture")
_SHOWN: Final = (
    kinds.GROUP_METADATA,
    kinds.GROUP_ADMINS,
    kinds.GROUP_MEMBERS,
    kinds.GROUP_ROLES,
)
_GROUPS: Final = 29
"""The NIP."""
_MIN_CODE: Final = 8
_DAY_S: Final = 86_400
_AGENT_ROLE: Final = "agent"
"""Lets its holder write memory in the group, unless `[actors] agent_role` says another: no 39003
lists that."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a relay says about one group."""

    id: str
    texts: Mapping[str, str]
    flags: frozenset[str]
    supported_kinds: tuple[str, ...] | None
    admins: Mapping[str, tuple[str, ...]]
    """pubkey → roles."""
    members: tuple[str, ...] | None
    """None: not for this key to see."""
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
@click.option("--name", metavar="TEXT", help="What people see.")
@click.option("--about", metavar="TEXT", help="What it is for.")
@click.option("--picture", metavar="URL", help="What it looks like.")
@_flag("private", "Only members read.")
@_flag("restricted", "Only members write.")
@_flag("closed", "Nobody joins without an invite.")
@_flag("hidden", "Only members see that it exists.")
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
    """Create a group; who creates it is its admin.

    No flag named: they are the relay's choice. Some named: the others are as in --private
    --restricted --closed --visible.
    """
    texts = {"name": name, "about": about, "picture": picture}
    given = {text: value for text, value in texts.items() if value is not None}
    flagged = {flag: is_on for flag, is_on in flags.items() if is_on is not None}

    async def work(client: Client) -> Card:
        return await _created(client, group_id, given, flagged)

    card = with_client(Actor.OWNER, relay, key_file, work)
    if as_json:
        print_json(card.as_json())
    else:
        click.echo(f"created {printable(group_id)} ({_flags_in_words(card)})")
        if kept := [flag for flag in _FLAGS if flagged.get(flag) is False and flag in card.flags]:
            click.echo(f"the relay keeps its groups {', '.join(kept)}", err=True)


@group.command("add", epilog="Example: rookery group add tea npub1… --role admin")
@click.argument("group_id", metavar="ID")
@click.argument("people", metavar="KEY...", type=PublicKey(), nargs=-1, required=True)
@click.option("--role", "roles", multiple=True, help="A role, such as admin; once for each.")
@client_options
@json_option
def add(
    group_id: str,
    people: tuple[str, ...],
    roles: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Put people into a group, or give members other roles: exactly those named."""
    tags = [["h", group_id], *(["p", person, *roles] for person in people)]

    async def work(client: Client) -> Event:
        if roles:
            _warn_of_unlisted(roles, await _card(client, group_id))
        return await client.send(kinds.PUT_USER, "", tags)

    event = with_client(Actor.OWNER, relay, key_file, work)
    _say(event, f"added {_people(people)} to {printable(group_id)}", as_json=as_json)


@group.command("remove", epilog="Example: rookery group remove tea npub1…")
@click.argument("group_id", metavar="ID")
@click.argument("people", metavar="KEY...", type=PublicKey(), nargs=-1, required=True)
@client_options
@json_option
def remove(
    group_id: str,
    people: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Take people out of a group; they stop receiving at once."""
    tags = [["h", group_id], *(["p", person] for person in people)]

    async def work(client: Client) -> tuple[Event, Card]:
        """The removal, and the group before it."""
        before = await _card(client, group_id)
        return await client.send(kinds.REMOVE_USER, "", tags), before

    event, before = with_client(Actor.OWNER, relay, key_file, work)
    # The relay takes a removal that names one member, or turns a request to join away.
    inside = people if before.members is None else {*before.members, *before.admins}
    gone = [person for person in people if person in inside]
    if len(gone) < len(people):
        others = [person for person in people if person not in inside]
        click.echo(f"not in {printable(group_id)}: {_people(others)}", err=True)
    if gone or as_json:
        _say(event, f"removed {_people(gone)} from {printable(group_id)}", as_json=as_json)


@group.command("invite", epilog="Example: rookery group invite tea --days 7")
@click.argument("group_id", metavar="ID")
@click.option("--code", metavar="TEXT", help=f"A code of your own, {_MIN_CODE} characters or more.")
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Valid for so long."
)
@click.option("--reusable", is_flag=True, help="For more than one person.")
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
    """Make an invite code: who sends it with a join request becomes a member."""
    if code is not None and len(code) < _MIN_CODE:
        raise click.BadParameter(f"needs {_MIN_CODE} characters or more", param_hint="--code")
    word = code if code is not None else secrets.token_urlsafe(12)

    async def work(client: Client) -> tuple[Event, str | None]:
        """The invite, and the group's address if the relay says who signs it."""
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
    """List the groups that this key may see."""
    cards = with_client(Actor.OWNER, relay, key_file, _cards)
    if as_json:
        print_json([card.as_json() for card in cards])
        return
    if not cards:
        say_nothing_found("`rookery group create ID` makes a group")
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
                printable(card.id),
                printable(card.texts.get("name", "")),
                _flags_in_words(card),
                "–" if card.members is None else str(len(card.members)),
                str(len(card.admins)),
            )
            for card in cards
        ],
    )


@group.command("show", epilog="Example: rookery group show tea")
@click.argument("group_id", metavar="ID")
@client_options
@json_option
def show(group_id: str, relay: str | None, key_file: Path | None, *, as_json: bool) -> None:
    """Show one group: what it is, who is in it, and their roles."""

    async def work(client: Client) -> Sequence[Card]:
        return await _cards(client, group_id)

    cards = with_client(Actor.OWNER, relay, key_file, work)
    if not cards:
        raise UserError(
            f"there is no group {group_id!r} that this key may see; `rookery group list` shows all"
        )
    (card,) = cards
    if as_json:
        print_json(card.as_json())
        return
    out = console()
    out.print(f"{printable(card.id)}: {_flags_in_words(card)}")
    for name in _TEXTS:
        if name in card.texts:
            out.print(f"{name}: {printable(card.texts[name])}")
    if card.supported_kinds is not None:
        out.print(f"kinds: {printable(', '.join(card.supported_kinds) or 'none')}")
    if card.roles:
        out.print(f"roles: {printable(', '.join(card.roles))}")
    print_table(
        (Column("Member", Holds.KEY), Column("Roles")),
        [
            (npub(person), printable(", ".join(card.admins.get(person, ()))))
            for person in dict.fromkeys((*card.admins, *(card.members or ())))
        ],
    )
    if card.members is None:
        out.print("its members are not for this key to see")


async def _created(
    client: Client, group_id: str, texts: Mapping[str, str], flags: Mapping[str, bool]
) -> Card:
    wanted = None
    if flags:
        wanted = frozenset(flag for flag in _FLAGS if flags.get(flag, flag in _SHUT))
    tags = [*([name, text] for name, text in texts.items()), *_flag_tags(wanted, flags)]
    # All in the one event, so that a hidden group is hidden from the first moment.
    await client.send(kinds.CREATE_GROUP, "", [["h", group_id], *tags])
    card = await _card(client, group_id)
    # Not every relay looks at the tags of a 9007, and without a flag this one takes its own.
    if any(card.texts.get(name) != text for name, text in texts.items()) or (
        wanted is not None and card.flags != wanted
    ):
        kept = card.flags if wanted is None else wanted
        tags = [*([name, text] for name, text in texts.items()), *_flag_tags(kept, flags)]
        await client.send(kinds.EDIT_METADATA, "", [["h", group_id], *tags])
        card = await _card(client, group_id)
    return card


def _flag_tags(wanted: frozenset[str] | None, flags: Mapping[str, bool]) -> list[list[str]]:
    """The flags, and for what was turned off by name the word that confirms it."""
    on = [[flag] for flag in _FLAGS if wanted is not None and flag in wanted]
    return on + [[_OPPOSITE[flag]] for flag, is_on in flags.items() if not is_on]


async def _card(client: Client, group_id: str) -> Card:
    cards = await _cards(client, group_id)
    return cards[0] if cards else Card(group_id, {}, frozenset(), None, {}, None, ())


async def _cards(client: Client, group_id: str | None = None) -> list[Card]:
    """One for each group whose 39000 can be read, by id; `group_id`: of this one only."""
    filter_: dict[str, object] = {"kinds": list(_SHOWN)}
    if group_id is not None:
        filter_["#d"] = [group_id]
    if (relay_key := await _self_of(client)) is not None:
        # What others sign under these kinds is no group of this relay (N29-60).
        filter_["authors"] = [relay_key]
    newest: dict[str, dict[int, Event]] = {}
    async for event in client.query_all(filter_):
        newest.setdefault(event.d, {}).setdefault(event.kind, event)
    return [
        _card_of(id_, events)
        for id_, events in sorted(newest.items())
        if kinds.GROUP_METADATA in events
    ]


def _card_of(group_id: str, events: Mapping[int, Event]) -> Card:
    metadata = events[kinds.GROUP_METADATA]
    admins, members, roles = (events.get(kind) for kind in _SHOWN[1:])
    supported = next((tag[1:] for tag in metadata.tags if tag[:1] == ["supported_kinds"]), None)
    return Card(
        id=group_id,
        texts={name: text for name in _TEXTS if (text := metadata.tag(name)) is not None},
        flags=frozenset(flag for flag in _FLAGS if metadata.has_tag(flag)),
        supported_kinds=None if supported is None else tuple(supported),
        admins={}
        if admins is None
        else {tag[1]: tuple(tag[2:]) for tag in admins.tags if _is_person(tag)},
        members=None
        if members is None
        else tuple(tag[1] for tag in members.tags if _is_person(tag)),
        roles=() if roles is None else tuple(roles.tag_values("role")),
    )


def _is_person(tag: Sequence[str]) -> bool:
    return len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])


async def is_seen(client: Client, group_id: str) -> bool:
    """Whether this key may see the group; True at a relay that does not say it has groups."""
    if not lists_nip(await client.information_or_empty(), _GROUPS):
        return True
    return bool(await _cards(client, group_id))


async def _self_of(client: Client) -> str | None:
    """The relay's own key (N11-07), if it says so."""
    try:
        relay_key = (await client.information()).get("self")
    except ClientError:
        return None
    return relay_key if isinstance(relay_key, str) and is_hex64(relay_key) else None


def _naddr(group_id: str, relay_key: str, url: str) -> str:
    """NIP-19 reference of a group: the address of its 39000, and where (N19-02)."""
    return encode_pointer(AddressPointer(group_id, relay_key, kinds.GROUP_METADATA, (url,)))


def _warn_of_unlisted(roles: Sequence[str], card: Card) -> None:
    """Of a role that is neither in the group's 39003 nor held in the group: it is a label.

    A relay that lists none gives any (N29-111).
    """
    held = [role for roles_held in card.admins.values() for role in roles_held]
    listed = dict.fromkeys((*card.roles, _AGENT_ROLE, *held))
    for role in roles:
        if role not in listed and card.roles:
            near = get_close_matches(role, listed, n=1)
            click.echo(
                f"the role {role!r} is a label without powers; {card.id} has {', '.join(listed)}"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                err=True,
            )


def _say(event: Event, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "kind": event.kind, "group": event.tag("h")})
    else:
        click.echo(text)


def _people(people: Sequence[str]) -> str:
    return ", ".join(npub(person) for person in people)


def _flags_in_words(card: Card) -> str:
    return ", ".join(flag for flag in _FLAGS if flag in card.flags) or "open to all"
