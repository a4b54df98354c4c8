"""`rookery session follow FILE|DIR`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import client_options, printable
from relay.cli.session.sharing import PATH, Server, plan_of, plan_options, with_spool
from relay.cli.words import counted
from relay.client.transcripts.following import Follower
from relay.client.transcripts.tailing import Turn
from relay.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from relay.client.errors import PublishRefused
    from relay.client.transcripts import Transcripts
    from relay.client.transcripts.following import Step

_PATIENCE_S: Final = 30.0


@click.command("follow", epilog="Example: rookery session follow ~/.claude/projects")
@click.argument("path", type=PATH, metavar="FILE|DIR")
@click.option("--once", is_flag=True, help="Send what is new, and end.")
@plan_options
@client_options
def follow_command(
    path: Path,
    session_id: str | None,
    group: str | None,
    max_inner: int | None,
    parts: tuple[str, ...],
    relay: str | None,
    key_file: Path | None,
    *,
    once: bool,
    sealed: bool,
    raw_paths: bool,
) -> int:
    """Send a running session line by line; of a folder, all that run below it.

    Goes on behind the last line that was sent, also when it is started anew. While the relay is
    away lines wait on disk. Ctrl-C ends it. With --once the exit code is 1 when something was
    refused.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if session_id is not None and path.is_dir():
        raise click.UsageError("--session names one session: give one file with it")
    plan = plan_of(session_id, group, parts, raw_paths=raw_paths)

    refused_now: list[PublishRefused] = []

    def tell(step: Step) -> None:
        _tell(step)
        if step.sent is not None and once:
            refused_now.extend(step.sent.refused)

    async def work(transcripts: Transcripts, folder: Path) -> None:
        presence = _Presence(transcripts, folder)
        await presence.look()
        for refused in await transcripts.refused():
            click.echo(f"refused, of an earlier run: {printable(refused.reason)}", err=True)
        await transcripts.drop_refused()
        fitted = await transcripts.fitted(plan, max_inner)
        follower = Follower(transcripts, path, fitted, folder / "follow", tell)
        if once:
            await follower.look()
            await transcripts.settled(_PATIENCE_S)
        else:
            await follower.run(presence.look)

    with_spool(Server(relay, key_file, sealed), work)
    return 1 if refused_now else 0


class _Presence:
    """Says once that the relay is away, and once that it is back."""

    def __init__(self, transcripts: Transcripts, folder: Path) -> None:
        self._transcripts = transcripts
        self._folder = folder
        self._is_away = False
        self._waiting = 0

    async def look(self) -> None:
        was_away, self._is_away = self._is_away, not self._transcripts.is_online
        url = self._transcripts.url
        if self._is_away:
            # As they are while it is away: when it is back they are on their way already.
            self._waiting = await self._transcripts.waiting()
            if not was_away:
                click.echo(
                    f"{url} is away: lines wait in {self._folder} and are sent when it is back",
                    err=True,
                )
        elif was_away:
            waited = counted(self._waiting, "event") + " waited"
            click.echo(f"{url} is back: {waited}", err=True)


def _tell(step: Step) -> None:
    session = printable(step.session)
    match step.turn:
        case Turn.REWRITTEN:
            click.echo(
                f"{printable(str(step.path))} was written anew: it is sent from its start; lines"
                f" that changed are in session {session} twice",
                err=True,
            )
        case Turn.GONE:
            click.echo(f"{printable(str(step.path))} is gone; waiting for it", err=True)
        case _ if step.sent is not None:
            sent = step.sent
            waiting = f", {sent.queued} waiting" if sent.queued else ""
            click.echo(
                f"{session}: {step.lines} lines, {sent.stored} stored,"
                f" {sent.duplicates} duplicates{waiting}"
            )
            for refusal in sent.refused:
                click.echo(f"  refused: {printable(str(refusal))}", err=True)
