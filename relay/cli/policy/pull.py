"""`rookery policy pull`: a version of the database becomes the policy files of a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from policies import load
from relay.cli.folder_lock import refuse_root_to_make
from relay.cli.options import WholeNumber, folder_option, json_option, print_json, printable
from relay.cli.policy.pushed import described, files_in, versions_of
from relay.cli.policy.versions import as_object
from relay.cli.policy_files import (
    changes_of,
    files_of,
    has_changes,
    name_faults,
    plugin_faults,
    replace_folder,
    write_folder,
)
from relay.errors import ConfigFaults, UserError
from relay.memory.systems import MEMORY_SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.storage.policy_versions import PolicyVersion


@click.command("pull", epilog="Example: rookery policy pull ./policies --data ./data")
@click.argument(
    "home", type=click.Path(file_okay=False, path_type=Path), required=False, metavar="[DIR]"
)
@folder_option
@click.option(
    "--version",
    "number",
    type=WholeNumber(1),
    metavar="N",
    help="Write version N instead of the newest.",
)
@click.option("--force", is_flag=True, help="Also overwrite files of DIR that were not pushed.")
@json_option
def pull_command(
    home: Path | None, folder: Path, number: int | None, *, force: bool, as_json: bool
) -> None:
    """Write the policy files of the database into DIR, all or none.

    DIR defaults to the folder `policies` of the data folder. Its policy files are replaced only if
    they are those of a pushed version; other files are kept. It lists the files that are new,
    replaced or removed.
    """
    home = home or folder / "policies"
    refuse_root_to_make(home)
    version, files = asyncio.run(_version(folder, number))
    _check(files, version)
    if not force and home.is_dir() and has_changes(home):
        raise UserError(
            f"{home} has changes that were not pushed: push them, name another folder, or discard"
            " them with --force"
        )
    changes = changes_of(home, files)
    if changes.foreign and not force:
        raise UserError(
            f"{home} has files that were never pushed or pulled, and this version has others of the"
            f" same name: {_listed(changes.foreign)}; name another folder, or replace them with"
            " --force"
        )
    try:
        replace_folder(home, files, version)
    except OSError as error:
        raise UserError(f"{home} was not changed: {error.strerror or error}") from None
    if as_json:
        files_now = changes._asdict()
        del files_now["foreign"]
        print_json({"folder": str(home), **as_object(version), **files_now})
        return
    click.echo(f"{home} is {described(version)} now")
    for what in ("new", "replaced", "removed"):
        if names := getattr(changes, what):
            click.echo(f"{what}: {_listed(names)}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(printable, names))


def _check(files: Mapping[str, bytes], version: PolicyVersion) -> None:
    """Raises ConfigFaults for what no relay takes from a database: in a folder its plug-ins would
    be run, and for names that other programs obey. Raises UserError for files that are no
    policies."""
    with TemporaryDirectory() as parent:
        home = Path(parent) / f"version {version.number}"
        write_folder(home, files)
        policy = load(home, MEMORY_SYSTEMS)
        others = files.keys() - files_of(home, policy).keys()
    if others:
        raise UserError(
            f"version {version.number} has files that none of its policies names, so that"
            f" `policy push` did not write it: {_listed(sorted(others))}"
        )
    faults = [*plugin_faults(policy), *name_faults(files, home.name)]
    if faults:
        raise ConfigFaults(faults)


async def _version(data: Path, number: int | None) -> tuple[PolicyVersion, dict[str, bytes]]:
    async with versions_of(data) as versions:
        return await files_in(versions, number)
