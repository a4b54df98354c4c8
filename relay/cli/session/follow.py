"""`rookery session follow FILE|DIR`"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from relay.cli.humanize import counted
from relay.cli.options import Server, printable, server_options
from relay.cli.session.common import PATH, forgotten_notice, plan_of, plan_options, with_spool
from relay.client.transcripts.follower import Follower
from relay.client.transcripts.tail import FileChange
from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from relay.client.errors import PublishRefused
    from relay.client.spool import Refused
    from relay.client.transcripts import Transcripts
    from relay.client.transcripts.follower import Step

_PATIENCE_S: Final = 30.0


@click.command("follow", epilog="Example: rookery session follow ~/.claude/projects")
@click.argument("path", type=PATH, metavar="FILE|DIR")
@click.option("--once", is_flag=True, help="Send new lines, and exit.")
@plan_options
@server_options
def follow_command(
    path: Path,
    session_id: str | None,
    group: str | None,
    max_inner: int | None,
    parts: tuple[str, ...],
    server: Server,
    *,
    once: bool,
    sealed: bool,
    raw_paths: bool,
    classic: bool,
    with_machine: bool,
) -> int:
    """Send a running session line by line; for a folder, all sessions below it.

    Continues after the last line sent, also after a restart. While the relay is unreachable lines
    are queued on disk; what it then refuses for a time is sent again at each start, for a week.
    Ctrl-C ends it. With --once the exit code is 1 if anything was refused for the first time.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if session_id is not None and path.is_dir():
        raise click.UsageError("--session is for one file, not a folder")
    plan = plan_of(
        session_id, group, parts, raw_paths=raw_paths, classic=classic, with_machine=with_machine
    )

    refused_now: list[PublishRefused] = []

    def tell(step: Step) -> None:
        _report(step)
        if step.sent is not None and once:
            refused_now.extend(step.sent.refused)

    async def work(transcripts: Transcripts, folder: Path) -> int:
        online_reports = _OnlineReports(transcripts, folder)
        await online_reports.poll()
        again, dropped = await transcripts.retry_refused()
        _tell_refused(again, "refused in an earlier run, sent again")
        _tell_refused(dropped, "refused in an earlier run, discarded")
        known = {refused.event.id for refused in again}
        fitted = await transcripts.fitted(plan, max_inner)
        follower = Follower(transcripts, path, fitted, folder / "follow", tell)
        if once:
            await follower.poll()
            await transcripts.wait_until_sent(_PATIENCE_S)
            refused = [each for each in await transcripts.refused() if each.event.id not in known]
            _tell_refused(refused, "refused")
            if refused:
                return 1
        else:
            await follower.run(online_reports.poll)
        return 1 if refused_now else 0

    return with_spool(server, work, is_sealed=sealed)


def _tell_refused(refused: Iterable[Refused], what: str) -> None:
    for reason, number in Counter(each.reason for each in refused).items():
        click.echo(f"{counted(number, 'event')} {what}: {printable(reason)}", err=True)


class _OnlineReports:
    """Reports once when the relay becomes unreachable, and once when it is reachable again."""

    def __init__(self, transcripts: Transcripts, folder: Path) -> None:
        self._transcripts = transcripts
        self._folder = folder
        self._is_offline = False
        self._waiting = 0

    async def poll(self) -> None:
        was_offline, self._is_offline = self._is_offline, not self._transcripts.is_online
        url = self._transcripts.url
        if self._is_offline:
            # Counted while offline: after the reconnect they are already being sent.
            self._waiting = await self._transcripts.waiting()
            if not was_offline:
                click.echo(
                    f"{url} is unreachable: lines are queued in {self._folder} and sent later",
                    err=True,
                )
        elif was_offline:
            waited = counted(self._waiting, "event") + " queued"
            click.echo(f"{url} is reachable again: {waited}", err=True)


def _report(step: Step) -> None:
    session = printable(step.session)
    match step.change:
        case FileChange.REWRITTEN:
            click.echo(
                f"{printable(str(step.path))} was rewritten: it is sent from the start; changed"
                f" lines are in session {session} twice",
                err=True,
            )
        case FileChange.GONE:
            click.echo(f"{printable(str(step.path))} was removed; waiting for it", err=True)
        case FileChange.UNREADABLE:
            click.echo(
                f"{printable(str(step.path))}: {step.change.value}; waiting for a change", err=True
            )
        case _ if step.sent is not None:
            sent = step.sent
            waiting = f", {sent.queued} waiting" if sent.queued else ""
            click.echo(
                f"{session}: {counted(step.lines, 'line')}, {sent.stored} stored,"
                f" {counted(sent.duplicates, 'duplicate')}{waiting}"
            )
            if sent.forgotten:
                click.echo(forgotten_notice(sent.forgotten), err=True)
            for refusal in sent.refused:
                click.echo(f"  refused: {printable(str(refusal))}", err=True)
