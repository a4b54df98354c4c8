"""Whose word is configuration: the owners that a command goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import PublicKey
from relay.client.information import owners_in

if TYPE_CHECKING:
    from relay.client import Client

owner_option: Final = click.option(
    "--owner",
    "owners",
    metavar="KEY",
    multiple=True,
    type=PublicKey(),
    help="An owner's public key; once for each. Not given: the one that the relay names.",
)


async def owners_at(client: Client, given: tuple[str, ...]) -> frozenset[str]:
    """Those given; else whom the relay names as its own (NIP-11 `pubkey`); empty: nobody says."""
    return frozenset(given) if given else owners_in(await client.information_or_empty())
