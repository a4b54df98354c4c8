"""`rookery config`: configuration of agents by their owner. Signs as the owner."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_settings
from relay.cli.group_view import is_seen
from relay.cli.memory_text import iso
from relay.cli.names import Names, read_names
from relay.cli.options import (
    CommandGroup,
    Server,
    client_options,
    print_json,
    printable,
)
from relay.cli.owners import owner_option, owners_at
from relay.cli.user_keys import user_in
from relay.client.settings import Actor, suggestion
from relay.client.snowclaw_records import SnowclawRecords
from relay.errors import Invalid, UserError
from relay.memory.snowclaw.config import HISTORY, MODE, config_of, effective
from relay.memory.snowclaw.keys import CONFIG, Everywhere, OfGroup, OfUser, scope_in
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.client.writer import Written
    from relay.memory.snowclaw.config import ConfigRecord, EffectiveConfig, GroupConfig
    from relay.memory.snowclaw.keys import Scope
    from relay.nostr.event import Event

_NAMES: Final = (MODE, HISTORY)


class ScopeType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """`global`, `group:<id>`, `npub:<key>`; an npub alone is `npub:<npub>`."""

    name = "scope"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Scope:
        if isinstance(value, (Everywhere, OfGroup, OfUser)):
            return value
        text = str(value)
        lowered = text.strip().lower()
        try:
            if lowered.startswith(("npub:", "npub1", "nsec1")):
                user = lowered.removeprefix("npub:")
                user_in(user)
                return OfUser(user)
            return scope_in(text)
        except Invalid as invalid:
            why = (
                invalid.text
                if lowered.startswith(("npub", "nsec"))
                else (
                    f"{printable(text)!r} is neither global, nor group:ID, nor npub:KEY with an"
                    " npub or 16, 32 or 64 hex"
                )
            )
            self.fail(why, param, ctx)


@click.group(
    "config",
    cls=CommandGroup,
    epilog="Example: rookery config set group:techteam respond_mode=mention",
)
def config() -> None:
    """Read and change how agents behave: globally, in one group, or with one user."""


@config.command(
    "set", epilog="Example: rookery config set group:techteam respond_mode=all context_history=30"
)
@click.argument("scope", type=ScopeType())
@click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
@owner_option
@client_options
def set_(
    scope: Scope,
    values: tuple[str, ...],
    owners: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Set respond_mode (all, mention, owner, none) or context_history (0 to 1000).

    SCOPE is global, group:ID or npub:KEY. Values that are not given are kept. Running agents apply
    the change to the next message.
    """
    changes = _changes(values)

    async def work(client: Client, settings: ClientSettings) -> Written:
        async with await _as_owner(client, settings, owners) as claw:
            written = await claw.set_config(scope, **changes)
        if isinstance(scope, OfGroup) and not await is_seen(client, scope.id):
            click.echo(
                f"warning: there is no group {printable(scope.id)!r} that {settings.key.npub} may"
                " see: the setting applies once it exists; list groups with `rookery group list`",
                err=True,
            )
        return written

    _print_stored(with_settings(Actor.OWNER, server, work).event, as_json=as_json)


@config.command("unset", epilog="Example: rookery config unset group:techteam context_history")
@click.argument("scope", type=ScopeType())
@click.argument("names", metavar="[NAME...]", nargs=-1, type=click.Choice(_NAMES))
@owner_option
@client_options
def unset(
    scope: Scope,
    names: tuple[str, ...],
    owners: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> int:
    """Remove values of a scope, so that the next scope's values apply; without NAME all of them."""

    async def work(client: Client, settings: ClientSettings) -> Written | None:
        async with await _as_owner(client, settings, owners) as claw:
            return await claw.unset_config(scope, names or _NAMES)

    written = with_settings(Actor.OWNER, server, work)
    if written is None:
        click.echo(f"{printable(str(scope))} does not set {' or '.join(names or _NAMES)}", err=True)
        return 1
    _print_stored(written.event, as_json=as_json)
    return 0


@config.command("list", epilog="Example: rookery config list --json")
@owner_option
@client_options
def list_(owners: tuple[str, ...], server: Server, *, as_json: bool) -> None:
    """List the values of every scope, with time and signer, in the order of precedence.

    `file` is [snowclaw] in client.toml.
    """

    async def work(
        client: Client, settings: ClientSettings
    ) -> tuple[list[ConfigRecord], GroupConfig, Names]:
        async with _loaded(client, settings, owners) as claw:
            found = claw.configs()
        names = await read_names(client, settings, [each.event.pubkey for each in found])
        return found, settings.file.snowclaw.config, names

    found, file, names = with_settings(Actor.OWNER, server, work)
    if as_json:
        stored = [
            {
                "scope": str(each.scope),
                **_values(each.config),
                "created_at": each.event.created_at,
                "author": each.event.pubkey,
            }
            for each in found
        ]
        given = [{"scope": scope, **values} for scope, values in _unstored(file)]
        print_json([*stored, *given])
        return
    for each in found:
        when, who = iso(each.event.created_at), names.shown(each.event.pubkey)
        click.echo(f"{_line(str(each.scope), _values(each.config))}  {when}  {who}")
    for scope, values in _unstored(file):
        click.echo(_line(scope, values))


@config.command("get", epilog="Example: rookery config get group:techteam --npub npub1…")
@click.argument("scope", type=ScopeType())
@click.option("--npub", "user", metavar="KEY", help="Effective values for this user in the group.")
@owner_option
@client_options
def get(
    scope: Scope,
    user: str | None,
    owners: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Show the effective values and their sources: npub, group, global, file or default.

    The file is [snowclaw] in client.toml.
    """
    group = scope.id if isinstance(scope, OfGroup) else None
    whose = scope.key if isinstance(scope, OfUser) else user
    if user is not None:
        try:
            user_in(user)
        except Invalid as invalid:
            raise click.BadParameter(invalid.text, param_hint="--npub") from None

    async def work(client: Client, settings: ClientSettings) -> EffectiveConfig:
        async with _loaded(client, settings, owners) as claw:
            return claw.config(group, whose)

    found = with_settings(Actor.OWNER, server, work)
    shown = (
        (MODE, found.respond_mode.value, found.respond_mode_from),
        (HISTORY, found.context_history, found.context_history_from),
    )
    if as_json:
        print_json({name: {"value": value, "from": source} for name, value, source in shown})
        return
    for name, value, source in shown:
        click.echo(f"{name}={value} ({source})")


async def _as_owner(
    client: Client, settings: ClientSettings, owners: tuple[str, ...]
) -> SnowclawRecords:
    """Raises UserError when the key is known to be no owner's (S-20)."""
    known = await owners_at(client, owners)
    if known and settings.key.pubkey not in known:
        raise UserError(
            f"restricted: only an owner may write config; {settings.key.npub} is not the"
            " owner's key: give the owner's key with --key-file or ROOKERY_KEY, or another"
            " owner with --owner"
        )
    return SnowclawRecords(client, settings.key, known or {settings.key.pubkey})


@asynccontextmanager
async def _loaded(
    client: Client, settings: ClientSettings, owners: tuple[str, ...]
) -> AsyncIterator[SnowclawRecords]:
    known = await owners_at(client, owners) or {settings.key.pubkey}
    async with SnowclawRecords(client, settings.key, known, settings.file.snowclaw.config) as claw:
        # Only these records are queried, so that a refusal names them.
        has_prefixes = await claw.offers("prefix_d_kinds", kinds.APP_DATA)
        await claw.load(at=[CONFIG] if has_prefixes else ())
        yield claw


def _unstored(file: GroupConfig) -> list[tuple[str, dict[str, object]]]:
    """What applies where no owner set a value."""
    given = [("file", _values(file)), ("default", _values(effective([])))]
    return [(scope, values) for scope, values in given if values]


def _values(config: GroupConfig) -> dict[str, object]:
    return {name: value for name in _NAMES if (value := getattr(config, name)) is not None}


def _line(scope: str, values: Mapping[str, object]) -> str:
    return f"{printable(scope)}  {' '.join(f'{name}={value}' for name, value in values.items())}"


def _print_stored(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "d": event.d, "content": event.content})
    else:
        click.echo(f"stored {event.id[:8]} {printable(event.d)}")


def _changes(values: tuple[str, ...]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for text in values:
        name, is_pair, value = text.partition("=")
        if not is_pair:
            raise click.UsageError(f"{printable(text)!r} is not NAME=VALUE")
        if name not in _NAMES:
            raise click.UsageError(f"unknown name {printable(name)}; {suggestion(name, _NAMES)}")
        changes[name] = value
    try:
        config_of(changes)
    except Invalid as invalid:
        raise click.UsageError(invalid.text) from None
    return changes
