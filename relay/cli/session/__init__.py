"""`rookery session`: coding agents' sessions on a relay, and back to the byte. MEMORY.md §3.8.

Signs as the agent (contract §2). `pns` works on what it is given and asks no relay.
"""

from __future__ import annotations

import click

from relay.cli.session.envelopes import pns
from relay.cli.session.exporting import export_command, resume_command, verify_command
from relay.cli.session.following import follow_command
from relay.cli.session.importing import import_command
from relay.cli.session.reading import list_command, search_command, show_command


@click.group("session", epilog="Example: rookery session import ~/.claude/projects")
def session() -> None:
    """Keep the sessions of coding agents on a relay, and get them back to the byte."""


for _command in (
    import_command,
    follow_command,
    list_command,
    show_command,
    search_command,
    export_command,
    verify_command,
    resume_command,
    pns,
):
    session.add_command(_command)
