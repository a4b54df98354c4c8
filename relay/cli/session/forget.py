"""`rookery session forget S`: deletes what one's own key stored of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.humanize import counted
from relay.cli.options import Server, client_options, confirm, print_json, printable
from relay.cli.session.common import of_session, on_relay, session_argument
from relay.client.transcripts import NoSession
from relay.client.transcripts.files import SUB_AGENT
from relay.memory.fence import shell_word
from relay.memory.transcripts.lines import copied_from, name_in, session_of
from relay.nostr import kinds
from relay.nostr.event import object_of_any_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from relay.client.transcripts import Transcripts
    from relay.memory.transcripts.lines import Fields
    from relay.nostr.event import Event

_LINES: Final = (kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA)
_KINDS: Final = (*_LINES, kinds.SESSION_STATE, kinds.RUN_CONFIGURATION)
_FEW: Final = 20
"""Newest lines that are looked at: of a long line, one event of many names the session."""
_LOOKED_AT: Final = 4
"""Seconds of a session in which copies of its lines are looked for: a fork has all lines from the
first one on, or up to the last one."""
_PER_SECOND: Final = 100
"""Events."""


@click.command("forget", epilog="Example: rookery session forget 7f3c")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def forget_command(session: str, server: Server, *, yes: bool, as_json: bool) -> None:
    """Delete the lines, notes and state of a session that this key stored (NIP-09), and those of
    its sub-agents. Forks of it, which begin with copies of its lines, stay and are named.

    Lines written before the command are not sent again under this id by this key: not by a later
    import or follow, from another folder or in another layout, and not by one that waits for the
    relay. Neither is a second file of the session, which an import of a folder stores under another
    id, nor what the file of a fork marks as a copy. Lines written after the command are sent, so
    stop `rookery session follow` first. Envelopes (--pns) are not deleted, and `import --pns` makes
    new ones.
    """

    async def work(transcripts: Transcripts) -> tuple[dict[str, int], list[str]]:
        async def own(id_: str) -> list[Event]:
            wanted = {"kinds": list(_KINDS), "authors": [transcripts.pubkey], "#d": [id_]}
            found = await transcripts.read(wanted)
            if not found:
                raise NoSession(id_)
            return found

        id_, events = await of_session(transcripts, session, own)
        files, shared = {id_: events}, []
        for other in sorted([each async for each in _others_naming(transcripts, id_)]):
            found = await own(other)
            if _named_in(found) - {id_}:
                shared.append(other)
            else:
                files[other] = found
        shared += await _forks_of(transcripts, id_, events)
        shared = sorted({*shared} - files.keys())
        if not yes:
            number = sum(map(len, files.values()))
            what = f"{counted(number, 'event')} of session {', '.join(map(printable, files))}"
            confirm(f"Delete {what}? This cannot be undone.")
        for each in reversed(files):  # itself last: what is interrupted can be repeated
            refusal = await transcripts.forget(each, files[each])
            if refusal is not None:
                click.echo(
                    f"session {printable(each)} may come back by an import or follow when its group"
                    f" ends, or when this key leaves it: {printable(str(refusal))}",
                    err=True,
                )
        return {each: len(found) for each, found in files.items()}, shared

    deleted, shared = on_relay(server, work)
    id_, *others = deleted
    if as_json:
        of_others = {each: deleted[each] for each in others}
        print_json({"session": id_, "deleted": deleted[id_], "others": of_others, "left": shared})
        return
    shown = printable(id_)
    click.echo(f"deleted {counted(deleted[id_], 'event')} of session {shown}")
    for each in others:
        what = f"{counted(deleted[each], 'event')} of session {printable(each)}"
        click.echo(f"deleted {what}, whose lines name session {shown}")
    for each in shared:
        click.echo(
            f"{printable(each)} holds lines of this session and of another, and stays:"
            f" `rookery session forget -- {shell_word(each)}` deletes it",
            err=True,
        )


async def _others_naming(transcripts: Transcripts, session: str) -> AsyncIterator[str]:
    """This key's other sessions that hold a file of this one: a sub-agent's, or a second one. The
    state says so; those that earlier versions stored are known by their id and lines."""
    own = {"authors": [transcripts.pubkey]}
    for state in await transcripts.read({**own, "kinds": [kinds.SESSION_STATE]}):
        id_, named = state.d, state.tag("cli_session")
        if id_ == session:
            continue
        if named == session:
            yield id_
        elif named == id_ and id_.rpartition("/")[2].startswith((SUB_AGENT, session)):
            few = {**own, "#d": [id_], "limit": _FEW}
            lines = await transcripts.read(
                {**few, "kinds": [kinds.SOURCE_DATA]}, {**few, "kinds": [kinds.CONVERSATION_NOTE]}
            )
            if session in _named_in(lines):
                yield id_


async def _forks_of(transcripts: Transcripts, session: str, events: Iterable[Event]) -> set[str]:
    """This key's other sessions that hold copies of lines of this one: those that say so, and, of
    earlier versions of the coding agent, those of the same id. `events`: of this session."""
    own = [(event, line) for event, line in _lines_in(events) if copied_from(line) is None]
    uuids = {uuid for _, line in own if (uuid := name_in(line, "uuid")) is not None}
    times = sorted({event.created_at for event, _ in own})
    if not times:
        return set()
    some = {times[(len(times) - 1) * each // (_LOOKED_AT - 1)] for each in range(_LOOKED_AT)}
    wanted = {"kinds": [*_LINES], "authors": [transcripts.pubkey], "limit": _PER_SECOND}
    found = await transcripts.read(*({**wanted, "since": at, "until": at} for at in some))
    return {
        event.d
        for event, line in _lines_in(found)
        if copied_from(line) == session or name_in(line, "uuid") in uuids
    }


def _named_in(events: Iterable[Event]) -> set[str]:
    """The sessions that whole lines in these events name."""
    return {named for _, line in _lines_in(events) if (named := session_of(line))}


def _lines_in(events: Iterable[Event]) -> Iterator[tuple[Event, Fields]]:
    """Those that are whole."""
    for event in events:
        line = object_of_any_size(event.tag("source-data") or "")
        if line is not None:
            yield event, line
