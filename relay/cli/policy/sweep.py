"""`rookery policy sweep`: run retention now, or show what it would remove."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from policies import load
from relay.cli.options import WholeNumber, folder_option, json_option, print_json
from relay.cli.pushed_policies import policies_of
from relay.cli.tables import Column, Holds, print_table
from relay.errors import ConfigFaults
from relay.lifecycle.retention import DAY_S
from relay.memory.systems import MEMORY_SYSTEMS
from relay.write.commands import Purpose

if TYPE_CHECKING:
    from pathlib import Path

    from relay.write.sweeper import SweepLine


@click.command("sweep", epilog="Example: rookery policy sweep --dry-run --data ./data")
@folder_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option(
    "--days",
    type=WholeNumber(0, 36_500),
    metavar="N",
    help="With --dry-run: what would be removed within the next N days.",
)
@json_option
def sweep_command(folder: Path, days: int | None, *, dry_run: bool, as_json: bool) -> None:
    """Remove expired events and those that the retention rules select, and list them with the
    reason.

    A running relay does the same every minute. Not removed: pinned rows, rows without a summary,
    and rows that must stay until older ones are removed (a dry run has not removed these).
    """
    if days is not None and not dry_run:
        raise click.UsageError("--days is for --dry-run: nothing is removed before its time")
    purpose = Purpose.DRY_RUN if dry_run else Purpose.SWEEP
    lines = asyncio.run(_swept(folder, purpose, (days or 0) * DAY_S))
    try:
        load(policies_of(folder), MEMORY_SYSTEMS)
    except ConfigFaults:  # else a stopped relay's folder would not have been opened
        click.echo(
            "the policy files have faults (`rookery policy check`): these are the rules that the"
            " running relay goes on with",
            err=True,
        )
    gone = [line for line in lines if line.held is None]
    events, size = sum(line.events for line in gone), sum(line.bytes for line in gone)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "events": events,
                "bytes": size,
                "lines": [asdict(line) for line in lines],
            }
        )
        return
    if lines:
        _print(lines)
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{events} event{'' if events == 1 else 's'}, {size} bytes {verb}")


async def _swept(folder: Path, purpose: Purpose, ahead_s: int) -> list[SweepLine]:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from relay.cli.data_folder import open_folder

    found: dict[tuple[object, ...], SweepLine] = {}
    columns = TextColumn("sweep"), TextColumn("{task.completed:,.0f} events")
    stderr = Console(stderr=True)
    async with open_folder(folder) as opened:
        with Progress(*columns, console=stderr, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("sweep", total=None)
            async for lines in opened.sweep(purpose, ahead_s):
                for line in lines:
                    key = line.rule, line.place, line.cause, line.kind, line.held
                    before = found.get(key)
                    if before is not None:
                        events, size = before.events + line.events, before.bytes + line.bytes
                        line = replace(line, events=events, bytes=size)
                    found[key] = line
                progress.advance(task, sum(line.events for line in lines if line.held is None))
    return list(found.values())


def _print(lines: list[SweepLine]) -> None:
    columns = (
        Column("rule"),
        Column("why"),
        Column("where", Holds.KEY),
        Column("kind"),
        Column("events", Holds.NUMBER),
        Column("bytes", Holds.NUMBER),
    )
    rows = []
    for line in lines:
        kind = "held: " + line.held if line.held is not None else str(line.kind)
        size = "" if line.held is not None else f"{line.bytes:,}"
        rows.append((line.rule, line.cause, line.place, kind, f"{line.events:,}", size))
    print_table(columns, rows)
