"""`rookery policy versions`: what was pushed to the database, newest first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from relay.cli.humanize import counted
from relay.cli.options import folder_option, json_option, limit_option, print_json, printable
from relay.cli.policy.pushed import versions_of
from relay.cli.tables import Column, Holds, print_table
from relay.storage.policy_versions import KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from relay.storage.policy_versions import PolicyVersion

_COLUMNS = (
    Column("version", Holds.NUMBER),
    Column("pushed", Holds.KEY),
    Column("by"),
    Column("files", Holds.NUMBER),
    Column("sha256", Holds.KEY),
    Column("message"),
)


@click.command("versions", epilog="Example: rookery policy versions --data ./data")
@folder_option
@limit_option(20, KEPT)
@json_option
def versions_command(folder: Path, limit: int, *, as_json: bool) -> None:
    """List the versions of the policies that were pushed to the database, newest first."""
    found = asyncio.run(_versions(folder, limit))
    if as_json:
        print_json([as_object(each) for each in found])
    elif found:
        print_table(_COLUMNS, [_row(each) for each in found])
    else:
        click.echo("no policies were pushed yet")


async def _versions(folder: Path, limit: int) -> Sequence[PolicyVersion]:
    async with versions_of(folder) as versions:
        return await versions.versions(limit)


def _row(version: PolicyVersion) -> tuple[str, ...]:
    at = f"{datetime.fromtimestamp(version.at, UTC):%Y-%m-%d %H:%M} UTC"
    files = f"{version.files} ({counted(version.bytes, 'byte')})"
    who, message = printable(version.by), printable(version.message)
    return str(version.number), at, who, files, version.sha256[:16], message


def as_object(version: PolicyVersion) -> dict[str, object]:
    named = version._asdict()
    return {"version": named.pop("number"), **named}
