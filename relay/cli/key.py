"""`rookery key show`: the public key of a key file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relay.cli.options import json_option, print_json
from relay.errors import UserError
from relay.nostr.keys import read_key_file


@click.group("key", epilog="Example: rookery key show ./data/keys/owner.nsec")
def key() -> None:
    """Show keys in files (`rookery keygen` makes one)."""


@key.command("show", epilog="Example: rookery key show ./data/keys/owner.nsec")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--secret", is_flag=True, help="Also the secret key; only on a terminal.")
@json_option
def show(file: Path, *, secret: bool, as_json: bool) -> None:
    """Print the public key of a key file."""
    if secret and not sys.stdout.isatty():
        raise UserError("--secret prints to a terminal only: a pipe or file would keep the key")
    try:
        found = read_key_file(file.read_text("utf-8"), str(file))
    except UnicodeDecodeError:
        raise UserError(f"{file} holds no nsec and no 64 hex characters") from None
    if as_json:
        shown = {"npub": found.npub, "public": found.pubkey}
        print_json({**shown, "nsec": found.nsec} if secret else shown)
        return
    click.echo(f"npub  {found.npub}")
    click.echo(f"hex   {found.pubkey}   (the npub in hex)")
    if secret:
        click.echo(f"nsec  {found.nsec}   (secret: whoever has it can sign as you)")
