"""Opens a command's client, and translates relay errors into user errors."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from relay.cli.group_view import is_seen, no_group
from relay.cli.progress import Pace
from relay.client import CallRefused, Client, PublishRefused, QueryClosed, Unreachable
from relay.client.errors import ABOUT_AUTHOR
from relay.client.settings import find_settings
from relay.errors import Prefix, UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.cli.options import Server
    from relay.client.settings import Actor, ClientSettings

    Result = TypeVar("Result")

_ABOUT_KEY: Final = ABOUT_AUTHOR - {Prefix.BLOCKED}
"""Refusals that another key might not get; `blocked:` is about the event."""


def advice_on(login_refusal: str) -> str:
    """Advice for a refused login caused by the `relay` tag (N42-06); otherwise empty."""
    word, _, text = login_refusal.partition(":")
    if word in ABOUT_AUTHOR or "relay" not in text:
        return ""
    return "; use the URL set as [relay] url in the relay's rookery.toml"


def settings_here(actor: Actor, server: Server) -> ClientSettings:
    """Relay and key of a command that a user started in the current folder. Raises UserError."""
    return find_settings(
        actor,
        relay=server.relay,
        key_file=server.key_file,
        environ=os.environ,
        home=Path.home(),
        here=Path(),
    )


def with_client(
    actor: Actor,
    server: Server,
    work: Callable[[Client], Awaitable[Result]],
) -> Result:
    """The result of `work` with a client that signs with the actor's key or the given one."""
    return with_settings(actor, server, lambda client, settings: work(client))


def with_settings(
    actor: Actor,
    server: Server,
    work: Callable[[Client, ClientSettings], Awaitable[Result]],
) -> Result:
    """`with_client`, for work that also needs the settings."""
    settings = settings_here(actor, server)

    async def connected() -> Result:
        async with Client(settings.relay, settings.key) as client:
            client.on_wait = Pace()
            if client.login_refusal:
                # Continuing would silently show less than the key may read.
                raise UserError(
                    f"{settings.relay} refused the login of {settings.key.npub}:"
                    f" {client.login_refusal}{advice_on(client.login_refusal)}"
                )
            try:
                return await work(client, settings)
            except PublishRefused as refused:
                group = refused.event.tag("h") or ""
                if "not a member" in str(refused) and not await is_seen(client, group):
                    # The same text for a hidden group: it must not reveal its members.
                    raise no_group(group) from refused
                raise

    try:
        return asyncio.run(connected())
    except (PublishRefused, QueryClosed, CallRefused) as error:
        said = f"{settings.relay} refused: {error}"
        if error.prefix not in _ABOUT_KEY:
            raise UserError(said) from error
        signed = f"{said}; signed with {settings.key.npub}"
        if "the group is closed" in str(error):
            raise UserError(
                f"{signed}; an admin of the group creates a code with `rookery group invite`"
            ) from error
        if isinstance(error, CallRefused) and "owners" not in str(error):
            raise UserError(signed) from error  # about what was asked: another key gets it too
        steps = [f"{signed}: use --key-file or ROOKERY_KEY for another key"]
        if isinstance(error, PublishRefused) and error.remedy:
            steps.append(error.remedy)
        if "not a member" in str(error):
            steps.append("list its groups with `rookery group list`")
        raise UserError("; ".join(steps)) from error
    except Unreachable as error:
        raise not_reached(error) from error


async def called(client: Client, form: object, method: str, *params: object) -> Any:
    """The result of a NIP-86 call, of the type `form`. Raises UserError when it has another form:
    a relay may answer anything."""
    result = await client.call(method, *params)
    try:
        msgspec.convert(result, form)
    except msgspec.ValidationError as wrong:
        raise UserError(
            f"{client.url} returned an unexpected answer to {method}: {wrong}"
        ) from None
    return result


def not_reached(error: Unreachable) -> UserError:
    return UserError(
        f"{error}; start a relay with `rookery serve --data ./data`, or give another --relay"
    )
