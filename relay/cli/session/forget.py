"""`rookery session forget S`: deletes what one's own key stored of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.humanize import counted
from relay.cli.options import Server, client_options, confirm, print_json, printable
from relay.cli.session.common import of_session, on_relay, session_argument
from relay.client.transcripts import NoSession
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.client.transcripts import Transcripts
    from relay.nostr.event import Event

_KINDS: Final = (
    kinds.CONVERSATION_NOTE,
    kinds.SOURCE_DATA,
    kinds.SESSION_STATE,
    kinds.RUN_CONFIGURATION,
)


@click.command("forget", epilog="Example: rookery session forget 7f3c")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def forget_command(session: str, server: Server, *, yes: bool, as_json: bool) -> None:
    """Delete the lines, notes and state of a session that this key stored (NIP-09).

    What was written of it until now is not sent again under this id by this key: not by a later
    import or follow, from another folder or in another layout, and not by one that waits for the
    relay. Nor is a second file of the session, to which a folder gives another id. Lines written
    later are sent: end a follow first. Envelopes (--pns) stay, and import --pns makes new ones.
    """

    async def work(transcripts: Transcripts) -> tuple[str, int]:
        async def own(id_: str) -> list[Event]:
            wanted = {"kinds": list(_KINDS), "authors": [transcripts.pubkey], "#d": [id_]}
            found = await transcripts.read(wanted)
            if not found:
                raise NoSession(id_)
            return found

        id_, events = await of_session(transcripts, session, own)
        if not yes:
            what = f"{counted(len(events), 'event')} of session {printable(id_)}"
            confirm(f"Delete {what}? This cannot be undone.")
        await transcripts.forget(id_, events)
        return id_, len(events)

    id_, number = on_relay(server, work)
    if as_json:
        print_json({"session": id_, "deleted": number})
    else:
        click.echo(f"deleted {counted(number, 'event')} of session {printable(id_)}")
