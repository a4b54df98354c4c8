"""The folder that the commands of `rookery policy` read, and what they read from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay.cli.database import has_store
from relay.cli.folder_lock import refuse_root
from relay.cli.options import DATA_VARIABLE, no_data_folder, refuse_unnamed
from relay.cli.pushed_policies import has_pushed_policies, policies_of
from relay.errors import UserError
from relay.files import MAX_KEY_FILE, content_of
from relay.groups.group import Groups, Replay
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.nostr.keys import read_key_file
from relay.server.control import ALLOWED, BANNED

if TYPE_CHECKING:
    from relay.access.actors import Actors
    from relay.server.control import DataFolder, Folder

data_option = click.option(
    "--data",
    envvar=DATA_VARIABLE,
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Data folder, or a folder of policy files.  [default: ./data]",
)


def policy_folder(given: Path | None) -> Path:
    """The folder of policy files to read. Raises UserError."""
    home = given or Path("data")
    if given is None:
        refuse_unnamed(home)
    if policies_of(home).is_dir():
        refuse_root(home)
        return policies_of(home)
    if not home.is_dir():
        raise no_data_folder(home)
    if (home / "rookery.toml").exists():
        if has_pushed_policies(home):
            raise UserError(
                f"{home} reads its policies from the database, and its relay has loaded none"
                " yet: start it, or name a folder of policy files"
            )
        raise UserError(f"{home} has no subfolder policies; `rookery init` makes one")
    return home


def store_folder(given: Path | None) -> Path | None:
    """The data folder of these policies if it has a store; None: policy files only.

    Policies outside a data folder are not those of a relay.
    """
    home = policy_folder(given).absolute()
    for folder in (home.parent, home.parent.parent):
        is_whole = has_store(folder) and (folder / "relay.key").is_file()
        if is_whole and policies_of(folder) == home:
            return folder
    return None


def relay_key_of(folder: Path) -> str:
    """The public key with which the relay of this folder signs."""
    path = folder / "relay.key"
    return read_key_file(content_of(path, MAX_KEY_FILE).decode("ascii"), str(path)).pubkey


async def groups_of(folder: Folder, relay_key: str) -> Groups:
    """The groups, folded from the log of the folder."""
    wanted = Filter(kinds=frozenset({*kinds.GROUP_RECORDS, *kinds.GROUP_STATE}))
    replay = Replay(Groups(), relay_key)
    async for rows in folder.events(wanted):
        replay.add([event_from_raw(raw) for raw in rows])
    return replay.groups()


async def people_here(folder: DataFolder, actors: Actors) -> Actors:
    """The keys of the policy files, with those that NIP-86 calls allowed and banned."""
    managed = await folder.managed_keys()
    allowed = frozenset(key for state, key in managed if state == ALLOWED)
    banned = frozenset(key for state, key in managed if state == BANNED)
    operators = actors.owners | {actors.relay}
    return replace(
        actors, allowed=actors.allowed | allowed, banned=actors.banned | banned - operators
    )
