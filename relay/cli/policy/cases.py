"""`rookery policy test`: an admin's own expectations, as tables of cases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policies.cases import case_table
from policies.load import DEFAULTS
from relay.cli.humanize import counted
from relay.cli.options import json_option, print_json, printable
from relay.cli.policy.case_runner import results
from relay.cli.policy.folder import data_option, policy_folder
from relay.memory.systems import MEMORY_SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.cli.policy.case_runner import Result


@click.command("test", epilog="Example: rookery policy test cases.toml --data ./data")
@click.argument(
    "files", nargs=-1, required=True, metavar="CASES.toml…", type=click.Path(path_type=Path)
)
@data_option
@json_option
def cases_command(files: tuple[Path, ...], data: Path | None, *, as_json: bool) -> int:
    """Run tables of cases against a folder's policies.

    Without ./data they run against the packaged policies. A table's own preset and policy are
    applied on top of these.
    """
    folder = _folder(data)
    ran = [
        (table.file, result)
        for table in map(case_table, files)
        for result in results(table, folder, MEMORY_SYSTEMS)
    ]
    failed = [(file, result) for file, result in ran if not result.passed]
    if as_json:
        print_json(
            {
                "cases": len(ran),
                "against": None if folder is None else str(folder),
                "failed": [
                    {
                        "file": file,
                        "line": result.case.line,
                        "says": result.case.says,
                        "want": result.case.want,
                        "want_rule": result.case.rule,
                        "got": result.got,
                        "rule": result.rule or None,
                    }
                    for file, result in failed
                ],
            }
        )
        return 1 if failed else 0
    for file, result in failed:
        for line in _difference(file, result):
            click.echo(printable(line), file=sys.stderr)
    against = f"{folder}" if folder is not None else f"the packaged policies ({DEFAULTS})"
    click.echo(
        f"{counted(len(ran), 'case')}, {len(ran) - len(failed)} passed, "
        f"{len(failed)} failed, against {against}"
    )
    return 1 if failed else 0


def _folder(data: Path | None) -> Path | None:
    if data is None and not Path("data").is_dir():
        return None
    return policy_folder(data)


def _difference(file: str, result: Result) -> Iterator[str]:
    case = result.case
    yield f"{file}:{case.line}: {case.says}"
    yield f"    want {case.want}" + ("" if case.rule is None else f"  by {case.rule}")
    yield f"    got  {result.got}" + (f"  by {result.rule}" if result.rule else "")
