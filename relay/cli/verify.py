"""`rookery verify`: checks what is stored, on a running relay too; repairs a stopped one."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

import click

from relay.cli.database import refuse_database, refuse_store_fault
from relay.cli.humanize import counted
from relay.cli.options import Colour, coloured, folder_option, json_option, print_json, printable
from relay.clock import unix_now
from relay.errors import FolderBusy, UserError
from relay.files import MAX_KEY_FILE, content_of
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from relay.storage.sqlite.row_check import Rules
    from relay.storage.sqlite.verifying import Report


@click.command("verify", epilog="Example: rookery verify --data ./data")
@folder_option
@click.option(
    "--repair",
    "is_repair",
    is_flag=True,
    help="Repair the faults found, after a backup in the folder. The relay must be stopped.",
)
@click.option(
    "--drop-records",
    "drops_records",
    is_flag=True,
    help="With --repair, without a backup: remove damaged records of groups too. If a removed"
    " record had expelled a member, that key is a member again. Such keys are listed.",
)
@click.option(
    "--progress",
    "is_counted",
    is_flag=True,
    hidden=True,
    help="Write the rows done to stderr, line by line.",
)
@json_option
def verify_command(
    folder: Path, *, is_repair: bool, drops_records: bool, is_counted: bool, as_json: bool
) -> int:
    """Check every event, its signature, and that all tables and indices agree with the events.

    Exit code 1 if a fault is found, or remains after a repair.
    """
    refuse_database(folder, "pg_amcheck checks its tables; a running relay compares every event")
    if is_repair:
        return _repaired(folder, drops_records=drops_records, as_json=as_json)
    if drops_records:
        raise click.UsageError("--drop-records goes with --repair")
    began = perf_counter()
    report = verified(folder, _told if is_counted else None)
    if as_json:
        print_json({**report_as_json(report), "seconds": round(perf_counter() - began, 3)})
    else:
        print_report(report)
        if report.findings:
            click.echo(
                f"repair it with: rookery verify --repair --data {shell_word(folder)}"
                " (stop the relay first)"
            )
    return 1 if report.findings else 0


def _told(done: int, total: int) -> None:
    """For `relay.cli.console_verify`."""
    click.echo(f"{done} of {total}", err=True)


def verified(folder: Path, note: Callable[[int, int], None] | None = None) -> Report:
    """`note`: see `verify`; None: a bar. Raises UserError, ConfigFaults, StoreFault."""
    from relay.cli.progress import Amount, progress_bar
    from relay.storage.sqlite.verifying import verify

    refuse_store_fault(folder)
    with progress_bar(Amount.OF_TOTAL) as progress:
        task = progress.add_task("verify", total=None)
        return verify(
            folder / "rookery.db",
            _rules_of(folder),
            unix_now(),
            note or (lambda done, total: progress.update(task, completed=done, total=total)),
        )


def _rules_of(folder: Path) -> Rules:
    import policies
    from relay.memory.systems import MEMORY_SYSTEMS
    from relay.nostr.keys import read_key_file
    from relay.read.search_indexer import rules_for, text_by
    from relay.storage.sqlite.row_check import Rules

    path = folder / "relay.key"
    if not path.is_file():
        raise UserError(f"{path} is missing: name the relay's data folder with --data")
    key = read_key_file(content_of(path, MAX_KEY_FILE).decode(errors="replace"), str(path))
    policy = policies.load(folder / "policies", MEMORY_SYSTEMS, key.pubkey)
    return Rules(
        key.pubkey,
        policy.keep,
        policy.row_group,
        text_by(policy),
        rules_for(policy),
    )


def print_report(report: Report) -> None:
    for finding in report.findings:
        check = coloured(finding.check.value, Colour.REFUSED)
        click.echo(f"{check}: {printable(finding.text)}")
    shown = len(report.findings)
    total = report.counts.total()
    if total > shown:
        click.echo(f"and {total - shown:,} more like these")
    found = coloured("nothing is wrong", Colour.OK)
    if total:
        found = coloured(counted(total, "finding"), Colour.REFUSED)
    search = "" if report.is_search_checked else "; search.db is built at the next start"
    click.echo(f"{counted(report.events, 'event')} verified: {found}{search}")


def report_as_json(report: Report) -> dict[str, object]:
    return {
        "events": report.events,
        "counts": {check.value: number for check, number in report.counts.items()},
        "findings": [{"check": each.check.value, "text": each.text} for each in report.findings],
        "search_checked": report.is_search_checked,
    }


def _repaired(folder: Path, *, drops_records: bool, as_json: bool) -> int:
    from relay.cli.backup import back_up_before_repair
    from relay.cli.folder_lock import locked
    from relay.storage.sqlite.repairing import repair

    now = unix_now()
    taken_out = folder / f"verify-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}.jsonl"

    def take_out(rows: Sequence[tuple[int, str, bytes | str]]) -> None:
        _append(taken_out, rows)

    done: list[str] = []
    backup: Path | None = None
    try:
        with locked(folder):
            report = verified(folder)
            if report.findings:
                backup = back_up_before_repair(folder, now)
                done = repair(
                    folder / "rookery.db",
                    _rules_of(folder),
                    report,
                    take_out,
                    drops_records=drops_records,
                )
                left = verified(folder)
            else:
                left = report
    except FolderBusy as busy:
        raise UserError(f"{busy.fact}; stop it first: `--repair` changes the store") from None
    if as_json:
        print_json(
            {
                **report_as_json(report),
                "repaired": done,
                "backup": None if backup is None else str(backup),
                "moved_to": str(taken_out) if taken_out.exists() else None,
                "left": report_as_json(left),
            }
        )
        return 1 if left.findings else 0
    print_report(report)
    for text in done:
        click.echo(f"repaired: {text}")
    if taken_out.exists():
        click.echo(f"removed rows are in {taken_out}")
    if backup is not None:
        click.echo(f"the backup before the repair is {backup}; a start after a week removes it")
        click.echo("verified again:")
        print_report(left)
    return 1 if left.findings else 0


def _append(path: Path, rows: Sequence[tuple[int, str, bytes | str]]) -> None:
    """One JSON line for each row, readable by its owner only, synced."""
    import orjson

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        for seq, why, raw in rows:
            # SQLite keeps what it is given: a faulty row may hold a text.
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
            file.write(orjson.dumps({"row": seq, "why": why, "raw": text}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
