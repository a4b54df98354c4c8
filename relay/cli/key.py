"""`rookery key show`, the public key of a key file, and `rookery key rotate`, a new relay.key.

A rotation renames the file of the new key to relay.key, then opens the store, which signs groups
and members again in one transaction. If it is killed, relay.key has either the old or the new key,
and the next start signs the rest.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay.cli.humanize import counted
from relay.cli.options import CommandGroup, confirm, folder_option, json_option, print_json
from relay.cli.pushed_policies import policies_of
from relay.errors import FolderBusy, UserError
from relay.files import MAX_KEY_FILE, content_of, given_content, sync
from relay.nostr.keys import read_key_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.cli.services import Services
    from relay.nostr.keys import SecretKey


@click.group("key", cls=CommandGroup, epilog="Example: rookery key show ./data/keys/owner.nsec")
def key() -> None:
    """Show keys in files (`rookery keygen` makes one), and give the relay a new one."""


@key.command("show", epilog="Example: rookery key show ./data/keys/owner.nsec")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--npub", "form", flag_value="npub", help="Print the npub alone, for scripts.")
@click.option("--hex", "form", flag_value="hex", help="Print the 64 hex characters alone.")
@click.option("--secret", is_flag=True, help="Also print the secret key; only on a terminal.")
@json_option
def show(file: Path, form: str | None, *, secret: bool, as_json: bool) -> None:
    """Print the public key of a key file."""
    if form is not None and (secret or as_json):
        raise click.UsageError("--npub and --hex print one key alone: no --secret, no --json")
    if secret and not sys.stdout.isatty():
        raise UserError("--secret prints to a terminal only: a pipe or file would keep the key")
    try:
        found = read_key_file(given_content(file, MAX_KEY_FILE).decode(), str(file))
    except UnicodeDecodeError:
        raise UserError(f"{file} holds no nsec and no 64 hex characters") from None
    if as_json:
        shown = {"npub": found.npub, "public": found.pubkey}
        print_json({**shown, "nsec": found.nsec} if secret else shown)
        return
    if form is not None:
        click.echo(found.npub if form == "npub" else found.pubkey)
        return
    click.echo(f"npub  {found.npub}")
    click.echo(f"hex   {found.pubkey}   (the npub in hex)")
    if secret:
        click.echo(f"nsec  {found.nsec}   (secret: whoever has it can sign as you)")


@key.command("rotate", epilog="Example: rookery key rotate --data ./data")
@folder_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def rotate(folder: Path, *, yes: bool, as_json: bool) -> None:
    """Give a stopped relay a new key, and sign its groups and members again with it.

    Lists the consequences first. The old key is kept in a file of the data folder.
    """
    from relay.cli.folder_lock import locked

    try:
        with locked(folder):
            old, groups = asyncio.run(_opened(folder))
            for line in _consequences(old, groups, _naming(folder, old)):
                click.echo(line, err=True)
            if not yes:
                confirm("Give the relay a new key?")
            new, kept = replace_relay_key(folder, old)
            asyncio.run(_opened(folder))
    except FolderBusy as busy:
        raise UserError(f"{busy.fact}; stop it first: it holds the key") from None
    if as_json:
        print_json({"old": old.npub, "new": new.npub, "kept": str(kept), "groups": groups})
        return
    click.echo(f"new key  {new.npub}")
    click.echo(f"old key  {old.npub}   (kept in {kept}, in no backup; delete it if it has leaked)")
    click.echo("make a backup now: a relay restored from an older one signs with the old key again")


def replace_relay_key(folder: Path, old: SecretKey) -> tuple[SecretKey, Path]:
    """Replace relay.key; returns the new key and the file to which `old` was moved. The caller
    holds the lock. Raises UserError."""
    from relay.cli.init import new_key, write_new

    path, unfinished, made = folder / "relay.key", folder / "relay.key.new", new_key()
    kept = folder / f"relay-{old.pubkey[:16]}.key"
    try:
        for file, secret in ((unfinished, made), (kept, old)):
            file.unlink(missing_ok=True)  # of a rotation that was interrupted
            write_new(file, f"{secret.nsec}\n", 0o600)
        sync(folder)  # the old key has its other name before it loses this one
        unfinished.rename(path)
        sync(folder)
    except OSError as error:
        raise UserError(f"{path} was not replaced: {error.strerror or error}") from error
    return made, kept


async def _opened(folder: Path) -> tuple[SecretKey, int]:
    """The relay's key and its number of groups. Opening the store signs with this key what another
    key signed; a database must be this relay's alone meanwhile."""
    from relay.cli.services import run_services
    from relay.config import load_config

    config = load_config(folder / "rookery.toml")
    services: Services
    async with run_services(
        folder, replace(config, storage=replace(config.storage, shared=False))
    ) as services:
        return services.relay_key, len(services.state.groups.by_id)


def _naming(folder: Path, old: SecretKey) -> list[str]:
    """Policy files that name the key."""
    return [
        path.name
        for path in sorted(policies_of(folder).glob("*.toml"))
        if {old.npub, old.pubkey} & set(content_of(path).decode(errors="replace").split('"'))
    ]


def _consequences(old: SecretKey, groups: int, naming: Sequence[str]) -> list[str]:
    lines = [
        f"The relay's key {old.npub} is replaced. Then:",
        f"- {counted(groups, 'group')}: 39000 to 39005 are signed again by the new key, and those"
        " of the old one deleted; so are the relay's lists of members and roles (13534, 33534)",
        "- links to groups (naddr) name the old key, and many clients do not find the group by"
        " them: give out new ones. Invite codes, HOST'ID and lists of groups (10009) stay valid",
        "- clients read the relay's key from `self` of its information document: those that cache"
        " it must read it again",
        "- joins, notices of membership and receipts of erasure that the old key has signed stay as"
        " they are, until it asks to vanish; keep its npub in order to check them",
        "- only the new key has the relay's rights in groups and management calls",
        "- `backup --keep` counts the backups of each key separately: remove the earlier ones"
        " yourself",
    ]
    if naming:
        lines.append(f"- {', '.join(naming)} in policies/ names the old key: correct it")
    return lines
