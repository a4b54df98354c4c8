"""`rookery session`: sessions of coding agents on a relay, exported byte for byte.

Signs as the agent. `pns` needs no relay.
"""

from __future__ import annotations

import click

from relay.cli.options import CommandGroup
from relay.cli.session.envelopes import pns
from relay.cli.session.export import export_command, resume_command, verify_command
from relay.cli.session.follow import follow_command
from relay.cli.session.forget import forget_command
from relay.cli.session.import_files import import_command
from relay.cli.session.read import list_command, search_command, show_command, view_command


@click.group(
    "session", cls=CommandGroup, epilog="Example: rookery session import ~/.claude/projects"
)
def session() -> None:
    """Store sessions of coding agents on a relay, and export them byte for byte."""


for _command in (
    import_command,
    follow_command,
    list_command,
    show_command,
    view_command,
    search_command,
    export_command,
    verify_command,
    resume_command,
    forget_command,
    pns,
):
    session.add_command(_command)
