"""`rookery policy diff`: what other policies would have made of everything that is stored."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from policies import load
from policies.diff import Comparison, Effect
from relay.cli.database import has_store
from relay.cli.humanize import counted
from relay.cli.options import DATA_VARIABLE, checked_folder, json_option, print_json, printable
from relay.cli.policy.folder import (
    groups_of,
    people_here,
    policy_folder,
    relay_key_of,
)
from relay.cli.policy.worlds import HistoryJudge
from relay.cli.progress import Amount, progress_bar
from relay.clock import unix_now
from relay.errors import UserError
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policies import PolicySet
    from policies.diff import Finding
    from relay.access.actors import Actors


@click.command("diff", epilog="Example: rookery policy diff ./new-policies --data ./data")
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="[OLD] NEW",
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option(
    "--data",
    default="data",
    envvar=DATA_VARIABLE,
    show_default=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    callback=checked_folder,
    help="The folder whose events are compared.",
)
@json_option
def diff_command(folders: tuple[Path, ...], data: Path, *, as_json: bool) -> None:
    """Compare two folders of policies over the stored history.

    Without OLD the folder in use is compared. Lists the stored events that the new policies would
    have refused, would hide or show (and to whom), and would remove. Nothing is changed.
    """
    if len(folders) > 2:
        raise click.UsageError("give one folder of policies, or an old and a new one")
    old, new = (data, *folders) if len(folders) == 1 else folders
    before, after = (load(policy_folder(each), MEMORY_SYSTEMS) for each in (old, new))
    if not has_store(data):
        raise UserError(f"{data} has no store: give the data folder with --data")
    compared = asyncio.run(_compared(before, after, data))
    if as_json:
        print_json(
            {
                "events": compared.events,
                "refused_by_both": compared.refused_by_both,
                "findings": [
                    {**asdict(finding), "effect": finding.effect.value}
                    for finding in compared.findings
                ],
            }
        )
        return
    for line in _lines(compared):
        click.echo(printable(line))


async def _compared(old: PolicySet, new: PolicySet, data: Path) -> Comparison:
    from relay.cli.data_folder import open_folder

    relay = relay_key_of(data)
    async with open_folder(data) as folder:
        head = await folder.head()
        groups = await groups_of(folder, relay)
        old = old.with_actors(await people_here(folder, _with_relay(old, relay)))
        new = new.with_actors(await people_here(folder, _with_relay(new, relay)))
        now = unix_now()
        compared = Comparison(
            old,
            new,
            groups,
            relay=relay,
            now=now,
            judge_of=lambda policy: HistoryJudge(policy, relay, now),
        )
        with progress_bar(Amount.OF_TOTAL) as progress:
            # The head counts rows that are no more as well: at the end the bar takes a leap.
            task = progress.add_task("compare", total=head)
            async for rows in folder.events(Filter()):
                for raw in rows:
                    compared.take(event_from_raw(raw))
                progress.update(task, completed=compared.events)
            progress.update(task, completed=head)
        return compared


def _with_relay(policy: PolicySet, relay: str) -> Actors:
    return replace(policy.actors, relay=relay)


# -- output ---------------------------------------------------------------------------------------

_TITLES: Final = {
    Effect.REFUSED: "Would be refused",
    Effect.HIDDEN: "Would be hidden",
    Effect.SHOWN: "Would be shown",
    Effect.KEPT: "Would keep other versions",
    Effect.SWEPT: "Would be removed by retention, unless pinned or waiting for other rows",
}


def _lines(compared: Comparison) -> Iterator[str]:
    title = None
    for finding in compared.findings:
        if finding.effect is not title:
            if title is not None:
                yield ""
            title = finding.effect
            yield _TITLES[title]
        yield from _finding_text(finding)
    if compared.findings:
        yield ""
    yield f"{counted(compared.events, 'event')} compared" + (
        "" if compared.findings else "; the new policies make no difference to any"
    )
    if compared.refused_by_both:
        yield (
            f"{counted(compared.refused_by_both, 'event')} would be refused by both: "
            "they are older than these rules, or came in by an import"
        )


def _finding_text(finding: Finding) -> Iterator[str]:
    line = f":{finding.line}" if finding.line else ""
    where = f" ({finding.file}{line})" if finding.file else ""
    was = " no longer hides" if finding.effect is Effect.SHOWN else ""
    size = f"{counted(finding.events, 'event')}, {finding.bytes:,} bytes"
    yield f"  {size}: {finding.rule}{where}{was}"
    if finding.says:
        yield f"      {finding.says}"
    if finding.audiences:
        whom = ", ".join(
            name if number == finding.events else f"{name} ({number:,})"
            for name, number in finding.audiences.items()
        )
        yield f"      {'to' if finding.effect is Effect.SHOWN else 'from'} {whom}"
    yield f"      as {' '.join(finding.examples)}"
