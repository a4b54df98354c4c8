"""`rookery policy push`: the policy files of a folder become those of all relays on a database."""

from __future__ import annotations

import asyncio
import sys
from getpass import getuser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import click

from policies import load
from policies.lint import warnings_of
from relay.cli.folder_lock import refuse_root_to_make
from relay.cli.humanize import counted
from relay.cli.options import WholeNumber, folder_option, json_option, print_json
from relay.cli.policy.access_changes import access_changes, preset_of, preset_policy
from relay.cli.policy.check import listed, print_faults, print_warnings
from relay.cli.policy.pushed import described, files_in, versions_of
from relay.cli.policy.versions import as_object
from relay.cli.policy_files import (
    digest_of,
    files_of,
    name_faults,
    note,
    note_of,
    plugin_faults,
    write_folder,
)
from relay.cli.pushed_policies import has_pushed_policies
from relay.clock import unix_now
from relay.errors import ConfigFaults, UserError
from relay.memory.systems import MEMORY_SYSTEMS
from relay.storage.policy_versions import MAX_NOTE, Overtaken, PolicyVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies import PolicySet
    from relay.storage.postgres.policies import PolicyVersions


class _Asked(NamedTuple):
    data: Path
    home: Path
    """Folder of the policy files."""
    number: int | None
    over: int | None
    by: str
    message: str


class _Checked(NamedTuple):
    files: Mapping[str, bytes]
    policy: PolicySet
    warnings: list[str]


class _Pushed(NamedTuple):
    version: PolicyVersion
    is_new: bool
    checked: _Checked


def _note(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None and (len(text) > MAX_NOTE or not text.isprintable()):
        raise click.BadParameter(f"must be one line of at most {MAX_NOTE} characters")
    return text


@click.command("push", epilog="Example: rookery policy push --data ./data -m 'more kinds'")
@click.argument(
    "home", type=click.Path(file_okay=False, path_type=Path), required=False, metavar="[DIR]"
)
@folder_option
@click.option(
    "--version",
    "number",
    type=WholeNumber(1),
    metavar="N",
    help="Push version N again instead of a folder, to go back to it.",
)
@click.option(
    "--over",
    type=WholeNumber(0),
    metavar="N",
    help="The newest version that you have seen; 0: none.  [default: what DIR was pulled from]",
)
@click.option("--by", metavar="NAME", callback=_note, help="Who pushes.  [default: the user name]")
@click.option(
    "-m", "--message", default="", metavar="TEXT", callback=_note, help="Description of the change."
)
@json_option
def push_command(
    home: Path | None,
    folder: Path,
    number: int | None,
    over: int | None,
    by: str | None,
    message: str,
    *,
    as_json: bool,
) -> int:
    """Check the policy files of DIR and store them in the database, for all its relays.

    DIR defaults to the folder `policies` of the data folder. Nothing is stored if a file has a
    fault, or if somebody else pushed a newer version than the one that DIR was pulled from. Relays
    with `[storage] policies = "database"` load the new version within 2 s.
    """
    if number is not None and home is not None:
        raise click.UsageError("name DIR or --version, not both")
    home = (home or folder / "policies").absolute()  # `packaged/` in a fault is no folder here
    refuse_root_to_make(home)
    asked = _Asked(folder, home, number, over, by or _user(), message)
    try:
        pushed = asyncio.run(_pushed(asked))
    except ConfigFaults as wrong:
        if as_json:
            print_json({"ok": False, "faults": listed(wrong.faults), "warnings": []})
        print_faults(wrong.faults)
        click.echo("nothing was pushed", file=sys.stderr)
        return 1
    _report(pushed, as_json=as_json)
    if not (as_json or has_pushed_policies(folder)):
        click.echo(
            f'the relay of {folder} reads its own files: with [storage] policies = "database" it'
            " takes what is pushed",
            err=True,
        )
    return 0


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a number without a name, as in a container
        raise UserError("this user has no name: say with --by who pushes", code=2) from None


async def _pushed(asked: _Asked) -> _Pushed:
    """Raises UserError, ConfigFaults, StoreFault."""
    async with versions_of(asked.data) as versions:
        newest = next(iter(await versions.versions(1)), None)
        seen = asked.over
        if asked.number is not None:
            _, files = await files_in(versions, asked.number)
            seen = newest.number if seen is None and newest is not None else seen
        else:
            files = await asyncio.to_thread(_own_files, asked.home)
            noted = note_of(asked.home)
            seen = noted.version if seen is None and noted is not None else seen
        checked = await asyncio.to_thread(_checked, files, await _files_before(versions), asked)
        is_new = newest is None or newest.sha256 != digest_of(files)
        if newest is None or is_new:
            newest = await _stored(versions, files, asked, seen or 0)
    if asked.number is None:
        _note_version(asked.home, newest, files)
    return _Pushed(newest, is_new, checked)


def _own_files(home: Path) -> dict[str, bytes]:
    """Raises UserError, ConfigFaults."""
    policy = load(home, MEMORY_SYSTEMS)
    faults = plugin_faults(policy)
    if faults:
        raise ConfigFaults(faults)
    return files_of(home, policy)


async def _files_before(versions: PolicyVersions) -> Mapping[str, bytes] | None:
    try:
        found = await versions.read()
    except ConfigFaults:
        return None
    return None if found is None else found[1]


def _checked(
    files: Mapping[str, bytes], before: Mapping[str, bytes] | None, asked: _Asked
) -> _Checked:
    """What a relay would read of them. Raises ConfigFaults."""
    with TemporaryDirectory() as parent:
        name = asked.home.name if asked.number is None else f"version {asked.number}"
        home = Path(parent) / "new" / name
        write_folder(home, files)
        policy = load(home, MEMORY_SYSTEMS)
        faults = [*plugin_faults(policy), *name_faults(files, name)]
        if faults:
            raise ConfigFaults(faults)
        was = None if before is None else _loaded(Path(parent) / "before", before)
        if was is None:
            was = preset_policy(preset_of(home), MEMORY_SYSTEMS)
        warnings = [str(each).removeprefix(f"{parent}/new/") for each in warnings_of(policy)]
        return _Checked(files, policy, [*warnings, *access_changes(was, policy)])


def _loaded(home: Path, files: Mapping[str, bytes]) -> PolicySet | None:
    write_folder(home, files)
    try:
        return load(home, MEMORY_SYSTEMS)
    except ConfigFaults:  # of another version of the program
        return None


async def _stored(
    versions: PolicyVersions, files: Mapping[str, bytes], asked: _Asked, seen: int
) -> PolicyVersion:
    message = asked.message
    if asked.number is not None and not message:
        message = f"as version {asked.number}"
    try:
        return await versions.push(files, over=seen, at=unix_now(), by=asked.by, message=message)
    except Overtaken as wrong:
        raise UserError(_overtaken(wrong.newest, seen)) from None


def _overtaken(newest: PolicyVersion | None, seen: int) -> str:
    if newest is None:
        return f"nothing was pushed: the database has no version {seen}; to begin anew, --over 0"
    why = (
        f"{described(newest)} is there, and these files are not from it"
        if seen == 0
        else f"{described(newest)} came after version {seen}"
    )
    return (
        f"nothing was pushed: {why}. Fetch it with `rookery policy pull NEWDIR`, put your changes"
        f" into its files and push NEWDIR; or push over it with --over {newest.number}"
    )


def _note_version(home: Path, version: PolicyVersion, files: Mapping[str, bytes]) -> None:
    try:
        note(home, version, files)
    except OSError as error:
        why = error.strerror or error
        click.echo(
            f"{home}: the version cannot be noted there ({why}): next time push with"
            f" --over {version.number}",
            err=True,
        )


def _report(pushed: _Pushed, *, as_json: bool) -> None:
    version, checked = pushed.version, pushed.checked
    if as_json:
        told = {"ok": True, "is_new": pushed.is_new, **as_object(version)}
        print_json({**told, "warnings": checked.warnings})
        return
    print_warnings(checked.policy, checked.warnings)
    if not pushed.is_new:
        click.echo(f"nothing to push: {described(version)} has the same files")
        return
    size = f"{counted(version.files, 'file')}, {counted(version.bytes, 'byte')}"
    click.echo(f"pushed {described(version)}: {size}, sha256 {version.sha256[:16]}…")
