"""Owners whose configuration records a command accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.names import PublicKey
from relay.client.information import owners_in

if TYPE_CHECKING:
    from relay.client import Client

owner_option: Final = click.option(
    "--owner",
    "owners",
    metavar="KEY",
    multiple=True,
    type=PublicKey(),
    help="Public key of an owner; repeatable. Default: the relay's owner (NIP-11).",
)


async def owners_at(client: Client, given: tuple[str, ...]) -> frozenset[str]:
    """Those given, else the owner in the information document (NIP-11 `pubkey`); may be empty."""
    return frozenset(given) if given else owners_in(await client.information_or_empty())
