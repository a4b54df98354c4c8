"""`rookery config`: configuration of agents by their owner. Signs as the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_settings
from relay.cli.group_view import is_seen
from relay.cli.options import client_options, json_option, print_json, printable
from relay.cli.owners import owner_option, owners_at
from relay.cli.user_keys import user_in
from relay.client.settings import Actor, suggestion
from relay.client.snowclaw_records import SnowclawRecords
from relay.errors import Invalid, UserError
from relay.memory.snowclaw.config import HISTORY, MODE, config_of
from relay.memory.snowclaw.keys import CONFIG, Everywhere, OfGroup, OfUser, scope_in
from relay.nostr import kinds

if TYPE_CHECKING:
    from pathlib import Path

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.client.writer import Written
    from relay.memory.snowclaw.config import EffectiveConfig
    from relay.memory.snowclaw.keys import Scope

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


@click.group("config", epilog="Example: rookery config set group:techteam respond_mode=mention")
def config() -> None:
    """Read and change how agents behave: globally, in one group, or with one user."""


@config.command(
    "set", epilog="Example: rookery config set group:techteam respond_mode=all context_history=30"
)
@click.argument("scope", type=ScopeType())
@click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
@owner_option
@client_options
@json_option
def set_(
    scope: Scope,
    values: tuple[str, ...],
    owners: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Set respond_mode (all, mention, owner, none) or context_history (0 to 1000).

    SCOPE is global, group:ID or npub:KEY. Values not named are kept. Running agents apply the
    change to the next message.
    """
    changes = _changes(values)

    async def work(client: Client, settings: ClientSettings) -> Written:
        known = await owners_at(client, owners)
        if known and settings.key.pubkey not in known:
            raise UserError(
                f"restricted: only an owner may write config; {settings.key.npub} is not the"
                " owner's key: give the owner's key with --key-file or ROOKERY_KEY, or another"
                " owner with --owner"
            )
        async with SnowclawRecords(client, settings.key, known or {settings.key.pubkey}) as claw:
            written = await claw.set_config(scope, **changes)
        if isinstance(scope, OfGroup) and not await is_seen(client, scope.id):
            click.echo(
                f"warning: there is no group {printable(scope.id)!r} that {settings.key.npub} may"
                " see: the setting applies once it exists; list groups with `rookery group list`",
                err=True,
            )
        return written

    event = with_settings(Actor.OWNER, relay, key_file, work).event
    if as_json:
        print_json({"id": event.id, "d": event.d, "content": event.content})
    else:
        click.echo(f"stored {event.id[:8]} {printable(event.d)}")


@config.command("get", epilog="Example: rookery config get group:techteam --npub npub1…")
@click.argument("scope", type=ScopeType())
@click.option("--npub", "user", metavar="KEY", help="Effective values for this user in the group.")
@owner_option
@client_options
@json_option
def get(
    scope: Scope,
    user: str | None,
    owners: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
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
        known = await owners_at(client, owners)
        async with SnowclawRecords(
            client, settings.key, known or {settings.key.pubkey}, settings.file.snowclaw.config
        ) as claw:
            # Only these records are queried, so that a refusal names them.
            has_prefixes = await claw.offers("prefix_d_kinds", kinds.APP_DATA)
            await claw.load(at=[CONFIG] if has_prefixes else ())
            return claw.config(group, whose)

    effective = with_settings(Actor.OWNER, relay, key_file, work)
    shown = (
        (MODE, effective.respond_mode.value, effective.respond_mode_from),
        (HISTORY, effective.context_history, effective.context_history_from),
    )
    if as_json:
        print_json({name: {"value": value, "from": source} for name, value, source in shown})
        return
    for name, value, source in shown:
        click.echo(f"{name}={value} ({source})")


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
