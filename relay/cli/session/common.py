"""Shared by the `rookery session` commands: relay, plan, error output."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from relay.cli.connect import settings_here, with_settings
from relay.cli.humanize import counted
from relay.cli.names import PublicKey
from relay.cli.options import Server, WholeNumber, printable
from relay.client.settings import Actor
from relay.client.transcripts import NoSession, Transcripts
from relay.errors import UserError, how_to_install
from relay.memory.junk import known_formats
from relay.memory.transcripts.plan import Layout, Paths, Plan
from relay.memory.transcripts.stripping import Part, Stripping
from relay.nostr import kinds
from relay.nostr.pns import derive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from relay.client import Client
    from relay.client.settings import ClientSettings

    Result = TypeVar("Result")

PATH: Final = click.Path(path_type=Path)
_MAX_CANDIDATES: Final = 10
_WHOLE: Final = 36
"""Characters of a coding agent's id: no other begins with it."""

session_argument = click.argument("session", metavar="S")


def author_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--author",
        type=PublicKey(),
        metavar="KEY",
        help="Author of the lines, if several keys wrote the session.",
    )(command)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for how files become events."""
    for option in (
        click.option(
            "--strip",
            "parts",
            multiple=True,
            type=click.Choice([part.value for part in Part]),
            help="Omit this part; exports report it as missing. Repeatable.",
        ),
        click.option(
            "--classic",
            is_flag=True,
            help="Write the original form: only notes, which contain the lines.",
        ),
        click.option(
            "--with-machine",
            is_flag=True,
            help="Also share this machine's name, home and working folder with the group.",
        ),
        click.option("--raw-paths", is_flag=True, help="Keep absolute paths."),
        click.option(
            "--max-inner",
            type=WholeNumber(min=2_000),
            metavar="N",
            help="Bytes of an event inside an envelope.  [default: 65535]",
        ),
        click.option(
            "--pns", "sealed", is_flag=True, help="Encrypt: send envelopes of a derived key."
        ),
        click.option("--group", metavar="G", help="Share the session with this group."),
        click.option("--session", "session_id", metavar="S", help="Session id to store it under."),
    ):
        command = option(command)
    return command


def plan_of(
    session: str | None,
    group: str | None,
    parts: Iterable[str],
    *,
    raw_paths: bool,
    classic: bool,
    with_machine: bool,
) -> Plan:
    """Hides the machine from a group unless asked."""
    stripped = {Part(part) for part in parts}
    if group is not None and not with_machine:
        stripped.add(Part.MACHINE)
    return Plan(
        session=session,
        group=group,
        paths=Paths.RAW if raw_paths else Paths.TOKENS,
        stripping=_stripping(stripped),
        homes=(str(Path.home()),),
        layout=Layout.CLASSIC if classic else Layout.ARCHIVE,
    )


def forgotten_notice(events: int) -> str:
    return (
        f"  not sent: {counted(events, 'event')} from before `session forget`; --session stores the"
        " file under another id"
    )


def on_relay(
    server: Server,
    work: Callable[[Transcripts], Awaitable[Result]],
    *,
    is_sealed: bool = False,
) -> Result:
    """The result of `work` with a connected relay. `is_sealed`: what it writes is in envelopes."""

    async def on(client: Client, settings: ClientSettings) -> Result:
        channel = derive(settings.key) if is_sealed else None
        async with Transcripts(client, settings.key, channel) as transcripts:
            return await work(transcripts)

    return with_settings(Actor.AGENT, server, on)


async def of_session(
    transcripts: Transcripts, begin: str, read: Callable[[str], Awaitable[Result]]
) -> tuple[str, Result]:
    """The session id that `begin` stands for, and the result of `read` for it.

    `begin`: an id, or the beginning of a single one; of one's own before another key's id. `read`
    raises NoSession if there is none. Raises UserError if no id, or several ids, begin with it.
    """
    try:
        result = await read(begin)
        meant = await _own_beginning(transcripts, begin)
        if not meant:
            return begin, result
    except NoSession as error:
        ids = {row.session for row in await transcripts.sessions()}
        meant = sorted(id_ for id_ in ids if id_ != begin and id_.startswith(begin))
        if not meant:
            text = f"{printable(str(error))}; `rookery session list` lists sessions"
            raise UserError(text) from error
    if len(meant) > 1:
        listed = ", ".join(map(printable, meant[:_MAX_CANDIDATES]))
        more = ", …" if len(meant) > _MAX_CANDIDATES else ""
        raise UserError(f"{len(meant)} sessions begin with {printable(begin)}: {listed}{more}")
    return meant[0], await read(meant[0])


async def _own_beginning(transcripts: Transcripts, begin: str) -> list[str]:
    """One's own sessions that begin so; none if this is the id of one. Another key may have made a
    session of that id, which would be taken for one's own."""
    if len(begin) >= _WHOLE:
        return []
    own = {"authors": [transcripts.pubkey], "#d": [begin], "limit": 1}
    if await transcripts.read({"kinds": [kinds.CONVERSATION_NOTE, kinds.SESSION_STATE]} | own):
        return []
    rows = [row for row in await transcripts.sessions() if row.author == transcripts.pubkey]
    meant = {row.session for row in rows if row.session.startswith(begin)}
    return [] if begin in meant else sorted(meant)


def with_spool(
    server: Server,
    work: Callable[[Transcripts, Path], Awaitable[Result]],
    *,
    is_sealed: bool = False,
) -> Result:
    """The result of `work`, also given the client's folder; the relay may be unreachable."""
    settings = settings_here(Actor.AGENT, server)

    async def run() -> Result:
        channel = derive(settings.key) if is_sealed else None
        folder = settings.data
        async with Transcripts(settings.relay, settings.key, channel, folder=folder) as transcripts:
            return await work(transcripts, folder)

    return asyncio.run(run())


def _stripping(parts: set[Part]) -> Stripping:
    if Part.SECRETS in parts:
        try:
            known_formats()
        except ImportError:
            raise UserError(f"--strip secrets needs RE2: {how_to_install()}") from None
    return Stripping(frozenset(parts))
