"""`rookery policy log`: the last events that a relay refused, and why; without content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from relay.cli.log import number_option, print_log
from relay.cli.options import WholeNumber, folder_option, json_option
from relay.observe import Refusal
from relay.server.control import RemoteFolder
from relay.server.refusal_file import FILE, read_refusals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from relay.observe import LogLine


@click.command("log", epilog="Example: rookery policy log --data ./data -n 20 --follow")
@folder_option
@number_option(20, "The last N refusals; 1000 are kept, across restarts.")
@click.option(
    "--connection", metavar="NUMBER", type=WholeNumber(), help="Only refusals of this connection."
)
@click.option("--follow", is_flag=True, help="Keep printing new refusals.")
@json_option
def log_command(
    folder: Path, number: int, connection: int | None, *, follow: bool, as_json: bool
) -> None:
    """Print the last events that the relay refused: time, reason, rule, author, address.

    With --json, one JSON object per line. For a stopped relay: those up to its stop.
    """

    def is_wanted(entry: LogLine | Refusal) -> bool:
        return isinstance(entry, Refusal) and connection in (None, entry.connection)

    def stopped() -> Sequence[LogLine | Refusal]:
        return read_refusals(folder / FILE)

    reads = (RemoteFolder.refusals,)
    print_log(folder, reads, stopped, is_wanted, number, follow=follow, as_json=as_json)
