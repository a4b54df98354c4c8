"""`rookery group`: NIP-29 groups as a signed client: create, edit, delete, list, show, add, remove.

Signs as the owner. Works on any NIP-29 relay; output is based on events signed by the relay (kinds
39000–39003).
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import wraps
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli import chat, group_joining
from relay.cli.connect import called, with_client, with_settings
from relay.cli.group_view import (
    AGENT_ROLE,
    DEFAULT_ON,
    FLAGS,
    TEXTS,
    GroupView,
    flags_in_words,
    group_argument,
    no_group,
    npubs_of,
    report,
    send_edit,
    view_of_group,
    views_of_groups,
)
from relay.cli.names import (
    Listed,
    Names,
    banned_names,
    keys_of,
    people_argument,
    read_names,
)
from relay.cli.options import (
    CommandGroup,
    Server,
    client_options,
    confirm,
    console,
    print_json,
    printable,
)
from relay.cli.tables import Column, Holds, print_found, print_table
from relay.client import ClientError, PublishRefused
from relay.client.settings import Actor
from relay.errors import Prefix, UserError
from relay.groups.actions import MAX_ID_CHARS, OPPOSITE, edit_tags
from relay.nostr import kinds
from relay.nostr.nip50 import normalized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_ID: Final = re.compile(r"[a-z0-9_-]+").fullmatch
_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9_]+")


@click.group(
    "group", cls=CommandGroup, epilog="Example: rookery group create tea --name 'Tea room'"
)
def group() -> None:
    """Create and manage NIP-29 groups. Signs as the owner."""


def _flag(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(f"--{name}/--{OPPOSITE[name]}", name, default=None, help=what)


def _described(work: Callable[..., Any]) -> Callable[..., Any]:
    """Options for texts and flags; the command gets those that were given as `texts`, `flags`."""

    @wraps(work)
    def command(**given: Any) -> Any:
        texts = {name: given.pop(name) for name in TEXTS}
        flags = {name: given.pop(name) for name in FLAGS}
        return work(texts=_without_none(texts), flags=_without_none(flags), **given)

    for option in reversed(
        (
            click.option("--name", metavar="TEXT", help="Display name."),
            click.option("--about", metavar="TEXT", help="Description."),
            click.option("--picture", metavar="URL", help="Picture URL."),
            _flag("private", "Only members read."),
            _flag("restricted", "Only members write."),
            _flag("closed", "Joining needs an invite."),
            _flag("hidden", "Only members see the group."),
        )
    ):
        command = option(command)
    return command


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _say_made(
    done: str, view: GroupView, flagged: Mapping[str, bool], *, other: bool, as_json: bool
) -> None:
    """`other`: more was done than these flags. Raises UserError when nothing was done."""
    kept = [flag for flag in FLAGS if flagged.get(flag) is False and flag in view.flags]
    refusal = f"the relay does not allow turning off: {', '.join(kept)}"
    if as_json:
        print_json({**view.as_json(Names()), "refused": kept})
    if not other and len(kept) == len(flagged):
        raise UserError(f"nothing changed: {refusal}")
    if not as_json:
        click.echo(f"{done} {printable(view.id)} ({flags_in_words(view)})")
        if kept:
            click.echo(refusal, err=True)


def check_new_id(group_id: str) -> None:
    """Raises click.BadParameter, which proposes an id that every NIP-29 client can use."""
    if _ID(group_id) and len(group_id) <= MAX_ID_CHARS:
        return
    ascii_text = normalized("NFKD", group_id).encode("ascii", "ignore").decode()
    proposed = _NOT_IN_AN_ID.sub("-", ascii_text.lower())[:MAX_ID_CHARS].strip("-_")
    raise click.BadParameter(
        f"{printable(group_id)[:100]!r} is no group id: 1 to {MAX_ID_CHARS} of a-z, 0-9, - and _"
        f"{f', such as {proposed}' if proposed else ''}; --name takes any text",
        param_hint="ID",
    )


@group.command("create", epilog="Example: rookery group create tea --name 'Tea room' --private")
@click.argument("group_id", metavar="[ID]", required=False)
@_described
@client_options
def create(
    group_id: str | None,
    server: Server,
    texts: Mapping[str, str],
    flags: Mapping[str, bool],
    *,
    as_json: bool,
) -> None:
    """Create a group; its creator becomes admin.

    Without ID it gets a random one, which nobody can guess. Without flags the relay chooses them.
    If some are given, the others default to --private --restricted --closed --visible.
    """
    if group_id is not None:
        check_new_id(group_id)
    new_id = group_id or token_hex(8)

    async def work(client: Client) -> GroupView:
        return await _created(client, new_id, texts, flags)

    view = with_client(Actor.OWNER, server, work)
    _say_made("created", view, flags, other=True, as_json=as_json)


@group.command("edit", epilog="Example: rookery group edit tea --about 'Green tea' --hidden")
@group_argument
@_described
@client_options
def edit(
    group_id: str,
    server: Server,
    texts: Mapping[str, str],
    flags: Mapping[str, bool],
    *,
    as_json: bool,
) -> None:
    """Change a group's name, description, picture and flags.

    Options that are not given keep their value. An empty text removes the value.
    """
    if not texts and not flags:
        raise click.UsageError("nothing to change: give --name, --about, --picture or a flag")

    async def work(client: Client) -> GroupView:
        await _edit(client, group_id, texts, flags)
        return await view_of_group(client, group_id)

    view = with_client(Actor.OWNER, server, work)
    _say_made("changed", view, flags, other=bool(texts), as_json=as_json)


@group.command("delete", epilog="Example: rookery group delete tea --yes")
@group_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(group_id: str, server: Server, *, yes: bool, as_json: bool) -> None:
    """Delete a group. Its id cannot be used again; this cannot be undone."""
    if not yes:
        question = f"Delete the group {printable(group_id)}? This cannot be undone."
        confirm(question)
    event = with_client(
        Actor.OWNER,
        server,
        lambda client: client.send(kinds.DELETE_GROUP, "", [["h", group_id]]),
    )
    report(event, f"deleted {printable(group_id)}", as_json=as_json)


@group.command("add", epilog="Example: rookery group add tea npub1… --role admin")
@group_argument
@people_argument
@click.option("--role", "roles", multiple=True, help="A role, such as admin; repeatable.")
@click.option("--anyway", is_flag=True, help="Also assign roles that the group does not list.")
@client_options
def add(
    group_id: str,
    users: tuple[str, ...],
    roles: tuple[str, ...],
    server: Server,
    *,
    anyway: bool,
    as_json: bool,
) -> None:
    """Add users, or replace the roles of members."""

    async def work(client: Client, settings: ClientSettings) -> Event:
        keys = await keys_of(client, settings, users, group_id)
        if roles and not anyway:
            _check_listed(roles, await view_of_group(client, group_id))
        tags = [["h", group_id], *(["p", key, *roles] for key in keys)]
        return await client.send(kinds.PUT_USER, "", tags)

    event = with_settings(Actor.OWNER, server, work)
    added = npubs_of(event.tag_values("p"))
    report(event, f"added {added} to {printable(group_id)}", as_json=as_json)


@group.command("remove", epilog="Example: rookery group remove tea npub1…")
@group_argument
@people_argument
@client_options
def remove(
    group_id: str,
    users: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Remove users from a group; they stop receiving events immediately."""

    async def work(client: Client, settings: ClientSettings) -> tuple[Event, GroupView]:
        """The removal, and the group before it."""
        keys = await keys_of(client, settings, users, group_id)
        before = await view_of_group(client, group_id)
        tags = [["h", group_id], *(["p", key] for key in keys)]
        try:
            return await client.send(kinds.REMOVE_USER, "", tags), before
        except PublishRefused as refused:
            is_none = before.members is not None and not set(keys).intersection(before.people)
            if refused.prefix == Prefix.INVALID and is_none:
                raise UserError(f"not in {printable(group_id)}: {npubs_of(keys)}") from refused
            raise

    event, before = with_settings(Actor.OWNER, server, work)
    keys = event.tag_values("p")
    # The relay accepts a removal if it names at least one member, or declines a join request.
    members = keys if before.members is None else before.people
    removed = [key for key in keys if key in members]
    if len(removed) < len(keys):
        others = [key for key in keys if key not in members]
        click.echo(f"not in {printable(group_id)}: {npubs_of(others)}", err=True)
    if removed or as_json:
        report(event, f"removed {npubs_of(removed)} from {printable(group_id)}", as_json=as_json)


@group.command("list", epilog="Example: rookery group list --json")
@client_options
def list_groups(server: Server, *, as_json: bool) -> None:
    """List the groups that this key may read."""
    views = with_client(Actor.OWNER, server, views_of_groups)
    if as_json:
        print_json([view.as_json(Names()) for view in views])
        return
    columns = (
        Column("ID", Holds.KEY),
        Column("Name"),
        Column("Flags"),
        Column("Members"),
        Column("With a role"),
    )
    print_found(
        columns,
        [
            (
                printable(view.id),
                printable(view.texts.get("name", "")),
                flags_in_words(view),
                "–" if view.members is None else str(len(view.members)),
                # Every group has an admin: an empty list is one that this key may not read.
                str(len(view.with_role)) if view.with_role else "–",
            )
            for view in views
        ],
        "`rookery group create ID` creates a group",
    )


@group.command("show", epilog="Example: rookery group show tea")
@group_argument
@client_options
def show(group_id: str, server: Server, *, as_json: bool) -> None:
    """Show one group: metadata, members and roles."""

    async def work(client: Client, settings: ClientSettings) -> tuple[GroupView, Names, list[str]]:
        view = await _existing(client, group_id)
        names = await read_names(client, settings, view.people)
        rows = [each for each in await _banned(client) if each["pubkey"] in view.people]
        hidden = banned_names(rows, names.own).profiles
        return view, Names(names.own, {**names.profiles, **hidden}), [row["pubkey"] for row in rows]

    view, names, banned = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json({**view.as_json(names), "banned": banned})
        return
    out = console()
    out.print(f"{printable(view.id)}: {flags_in_words(view)}")
    for name in TEXTS:
        if name in view.texts:
            out.print(f"{name}: {printable(view.texts[name])}")
    if view.supported_kinds is not None:
        out.print(f"kinds: {printable(', '.join(view.supported_kinds) or 'none')}")
    if view.roles:
        out.print(f"roles with permissions: {printable(', '.join(view.roles))}")
    print_table(
        (Column("Member", Holds.KEY), Column("Roles"), *([Column("Relay")] if banned else ())),
        [
            (
                names.shown(user),
                printable(", ".join(view.with_role.get(user, ()))),
                *(["banned" if user in banned else ""] if banned else ()),
            )
            for user in view.people
        ],
    )
    if view.members is None:
        out.print("this key may not read the member list")


async def _banned(client: Client) -> list[Listed]:
    """Who is banned from the relay; only its owners are told."""
    try:
        found: list[Listed] = await called(client, list[Listed], "listbannedpubkeys")
    except (ClientError, UserError):
        return []
    return found


async def _created(
    client: Client, group_id: str, texts: Mapping[str, str], flags: Mapping[str, bool]
) -> GroupView:
    wanted = None
    if flags:
        wanted = frozenset(flag for flag in FLAGS if flags.get(flag, flag in DEFAULT_ON))
    tags = [*([name, text] for name, text in texts.items()), *_flag_tags(wanted, flags)]
    # All in one event, so that a hidden group is never visible.
    await client.send(kinds.CREATE_GROUP, "", [["h", group_id], *tags])
    view = await view_of_group(client, group_id)
    # Some relays ignore the tags of a 9007, and without flags this one sets its defaults.
    if any(view.texts.get(name) != text for name, text in texts.items()) or (
        wanted is not None and view.flags != wanted
    ):
        kept = view.flags if wanted is None else wanted
        tags = [*([name, text] for name, text in texts.items()), *_flag_tags(kept, flags)]
        await client.send(kinds.EDIT_METADATA, "", [["h", group_id], *tags])
        view = await view_of_group(client, group_id)
    return view


async def _edit(
    client: Client, group_id: str, texts: Mapping[str, str], flags: Mapping[str, bool]
) -> None:
    async def made() -> tuple[Event | None, list[list[str]]]:
        edited = (await _existing(client, group_id)).metadata
        assert edited is not None
        return edited, edit_tags(edited.tags, group_id, texts, flags)

    await send_edit(client, kinds.EDIT_METADATA, made)


async def _existing(client: Client, group_id: str) -> GroupView:
    """Raises UserError."""
    views = await views_of_groups(client, group_id)
    if not views:
        raise no_group(group_id)
    return views[0]


def _flag_tags(wanted: frozenset[str] | None, flags: Mapping[str, bool]) -> list[list[str]]:
    """The flags that are on, and the confirming tags of those turned off."""
    on = [[flag] for flag in FLAGS if wanted is not None and flag in wanted]
    return on + [[OPPOSITE[flag]] for flag, is_on in flags.items() if not is_on]


def _check_listed(roles: Sequence[str], view: GroupView) -> None:
    """Raises UserError for roles that are neither in the group's 39003 nor held by an admin.

    A relay that lists none may accept any (N29-111).
    """
    held = [role for roles_held in view.with_role.values() for role in roles_held]
    listed = dict.fromkeys((*view.roles, AGENT_ROLE, *held))
    for role in roles:
        if role not in listed and view.roles:
            near = get_close_matches(role, listed, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"{view.id} has no role {role!r}, only {', '.join(listed)}{meant}"
                " (--anyway gives it, without permissions)"
            )


for _command in (
    group_joining.join,
    group_joining.leave,
    group_joining.requests,
    group_joining.accept,
    group_joining.invite,
    group_joining.invites,
    group_joining.revoke,
    chat.say,
    chat.read,
    chat.pin,
):
    group.add_command(_command)
