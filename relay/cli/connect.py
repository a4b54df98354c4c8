"""How a command becomes a client: its relay, its key, and what is said when the relay says no."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from relay.client import Client, PublishRefused, QueryClosed, Unreachable
from relay.client.settings import find_settings
from relay.errors import Prefix, UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.client.settings import Actor, ClientSettings

    Result = TypeVar("Result")

_ABOUT_WHO: Final = frozenset({Prefix.RESTRICTED, Prefix.BLOCKED, Prefix.AUTH_REQUIRED})


class Server(NamedTuple):
    """Which relay, and who signs: the options that commands take."""

    relay: str | None
    key_file: Path | None


def advice_on(login_refusal: str) -> str:
    """What to do about it: something only where it is about the login's `relay` tag (N42-06)."""
    word, _, text = login_refusal.partition(":")
    if word in _ABOUT_WHO or "relay" not in text:
        return ""
    return "; use the address that the relay has as [relay] url"


def with_client(
    actor: Actor,
    relay: str | None,
    key_file: Path | None,
    work: Callable[[Client], Awaitable[Result]],
) -> Result:
    """What `work` returns, given a client that signs as the actor or as the user says."""
    return with_settings(actor, relay, key_file, lambda client, settings: work(client))


def with_settings(
    actor: Actor,
    relay: str | None,
    key_file: Path | None,
    work: Callable[[Client, ClientSettings], Awaitable[Result]],
) -> Result:
    """`with_client`, for work that wants to know whose key it is, or more of client.toml."""
    settings = find_settings(
        actor,
        relay=relay,
        key_file=key_file,
        environ=os.environ,
        home=Path.home(),
        here=Path(),
    )

    async def connected() -> Result:
        async with Client(settings.relay, settings.key) as client:
            if client.login_refusal:
                # Going on would show less than the key may see, without a word.
                raise UserError(
                    f"{settings.relay} refused the login of {settings.key.npub}:"
                    f" {client.login_refusal}{advice_on(client.login_refusal)}"
                )
            return await work(client, settings)

    try:
        return asyncio.run(connected())
    except (PublishRefused, QueryClosed) as error:
        if error.prefix not in _ABOUT_WHO:
            raise UserError(f"{settings.relay} refused: {error}") from error
        of_groups = "; its groups: `rookery group list`" if "not a member" in str(error) else ""
        raise UserError(
            f"{settings.relay} refused: {error}; that was {settings.key.npub}: another key is given"
            f" with --key-file or ROOKERY_KEY{of_groups}"
        ) from error
    except Unreachable as error:
        raise UserError(
            f"{error}; start one with `rookery serve --data ./data`, or name another with --relay"
        ) from error
