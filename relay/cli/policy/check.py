"""`rookery policy check`: every fault of the policy files, and warnings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policies import load
from policies.lint import warnings_of
from relay.cli.humanize import counted
from relay.cli.options import Colour, coloured, json_option, print_json, printable
from relay.cli.policy.access_changes import access_changes, preset_of, preset_policy
from relay.cli.policy.folder import data_option, policy_folder
from relay.errors import ConfigFaults
from relay.memory.systems import MEMORY_SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policies import PolicySet
    from relay.errors import Fault


@click.command("check", epilog="Example: rookery policy check --data ./data")
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@data_option
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Compare who may write and read with these policies: a data folder, or a folder of policy"
    " files.  [default: the packaged preset]",
)
@click.option("--strict", is_flag=True, help="Also exit with 1 if there are warnings.")
@json_option
def check_command(
    folder: Path | None, data: Path | None, against: Path | None, *, strict: bool, as_json: bool
) -> int:
    """Read the policy files and name every fault, each with file and line.

    A warning names a rule that is valid but has no effect, or another effect than it seems to have.
    Other warnings compare access before and after an edit: what unknown authors may now write, what
    nobody may write any more, what anybody, or members of any group, may now read. --strict counts
    these warnings only together with --against.
    """
    home = policy_folder(folder or data)
    try:
        found = load(home, MEMORY_SYSTEMS)
    except ConfigFaults as wrong:
        if as_json:
            print_json({"ok": False, "faults": listed(wrong.faults), "warnings": []})
        print_faults(wrong.faults)
        return 1
    warnings = warnings_of(found)
    before = (
        preset_policy(preset_of(home), MEMORY_SYSTEMS)
        if against is None
        else load(policy_folder(against), MEMORY_SYSTEMS)
    )
    changes = access_changes(before, found)
    if as_json:
        print_json(
            {
                "ok": True,
                "faults": [],
                "warnings": listed(warnings),
                "access": changes,
                "notes": left_open(found),
                "rules": rules_in(found),
                "files": found.files,
            }
        )
    else:
        print_warnings(found, [*map(str, warnings), *changes])
        number = len(warnings) + len(changes)
        told = f", {counted(number, 'warning')}" if number else ""
        ok = coloured("ok:", Colour.OK)
        held = f"{counted(rules_in(found), 'rule')} in {counted(len(found.files), 'file')}"
        click.echo(f"{ok} {held}{told}, {printable(str(home))}")
    return 1 if strict and (warnings or (changes and against is not None)) else 0


def print_faults(faults: Iterable[Fault]) -> None:
    for fault in faults:
        said = coloured(printable(str(fault)), Colour.REFUSED, sys.stderr)
        click.echo(said, file=sys.stderr)


def print_warnings(found: PolicySet, warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"{printable(warning)} {coloured('(warning)', Colour.WARNING)}")
    for note in left_open(found):
        click.echo(f"note: {note}")


def listed(faults: Iterable[Fault]) -> list[dict[str, object]]:
    return [{"file": fault.file, "line": fault.line, "text": fault.text} for fault in faults]


def rules_in(found: PolicySet) -> int:
    """The number of rules in force, packaged ones included."""
    named = {rule.place.name for rule in found.write_rules}
    named |= {place.name for place in found.read_places}
    kept = {place.name for place in found.keep_places}
    kept |= {place.name for place, _ in found.retention_effects}
    return len(named) + len(kept)


def left_open(found: PolicySet) -> list[str]:
    """Notes about what nobody may do because no file names a key for it."""
    actors, notes = found.actors, []
    if not (actors.owners or actors.households):
        notes.append("[actors] owners is empty: nobody may write configuration or govern groups")
    if not (actors.agents or actors.households):
        notes.append("[actors] agents is empty: nobody may write memory outside groups")
    return notes
