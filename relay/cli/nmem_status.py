"""`rookery nmem status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay.cli.humanize import age_of, counted, size_of
from relay.cli.nmem_cache import opened_here, take_warning, tell_adoption
from relay.cli.options import json_option, print_json, printable
from relay.client.nmem import queries
from relay.client.nmem.settings import find_nmem_settings
from relay.clock import unix_now
from relay.memory.times import utc

if TYPE_CHECKING:
    from relay.memory.nmem.records import Session


@click.command("status", epilog="Example: rookery nmem status --json")
@json_option
def status(*, as_json: bool) -> None:
    """Show the cache: file, row counts, and records waiting for the relay."""
    _, settings = find_nmem_settings(Path.home())
    with opened_here() as database:
        tell_adoption(database)
        take_warning(database)  # status always shows the warning itself
        with database.reading() as db:
            counts = queries.counts(db)
            last = queries.last_session(db)
            refused = queries.refused(db)
    size = database.path.stat().st_size
    if database.warning:
        click.echo(f"warning: {database.warning}", err=True)
    if as_json:
        print_json(
            {
                "file": str(database.path),
                "bytes": size,
                "encrypted": database.is_encrypted,
                **asdict(counts),
                "last_session": None if last is None else _as_json(last),
                "summaries_by": settings.summary_model,
                "refusals": [{"d": d, "reason": reason} for d, reason in refused],
            }
        )
        return
    for name, value in (
        ("file", str(database.path)),
        ("size", size_of(size)),
        ("encrypted", "yes" if database.is_encrypted else "no"),
        ("sessions", f"{counts.sessions:,}"),
        ("prompts", f"{counts.prompts:,}"),
        ("observations", f"{counts.observations:,}, {counts.pinned:,} of them pinned"),
        ("last session", "none yet" if last is None else _in_words(last, unix_now())),
        (
            "kept out",
            f"secrets of {counted(counts.redacted, 'observation')},"
            f" recalled text of {counted(counts.echoes, 'prompt')}",
        ),
        ("waiting", counted(counts.waiting, "record") + " for the relay"),
        ("summaries", settings.shortfall or f"by {settings.summary_model}"),
        ("refused", counted(counts.refused, "record") + " by the relay"),
    ):
        click.echo(f"{name}: {printable(value)}")
    for d, reason in refused:
        click.echo(f"  {printable(d)}: {printable(reason)}")


def _in_words(session: Session, now: int) -> str:
    if session.ended_at is None:
        how = f"started {age_of(session.started_at, now)}, not ended"
    else:
        how = f"ended {age_of(session.ended_at, now)}"
    return f"{session.id} ({session.project}, {utc(session.started_at)} UTC), {how}"


def _as_json(session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "project": session.project,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
    }
