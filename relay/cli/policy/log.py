"""`rookery policy log`: the last events that a running relay refused, and why; without content."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from relay.cli.names import Names, own_names
from relay.cli.options import folder_option, json_option, print_json, printable
from relay.cli.tables import print_nothing_found
from relay.errors import UserError
from relay.server.control import RemoteFolder

if TYPE_CHECKING:
    from pathlib import Path

    from relay.observe import Refusal

_EVERY_S: Final = 0.5


@click.command("log", epilog="Example: rookery policy log --data ./data -n 20 --follow")
@folder_option
@click.option(
    "-n",
    "number",
    default=20,
    show_default=True,
    metavar="N",
    type=click.IntRange(min=0),
    help="The last N refusals; the relay remembers 1000.",
)
@click.option("--connection", metavar="NUMBER", type=int, help="Only refusals of this connection.")
@click.option("--follow", is_flag=True, help="Keep printing new refusals.")
@json_option
def log_command(
    folder: Path, number: int, connection: int | None, *, follow: bool, as_json: bool
) -> None:
    """Print the last events that the running relay refused: author, rule and address.

    With --json, one JSON object per line.
    """
    if not (folder / "control.sock").exists():
        raise UserError(
            f"no relay runs on {folder}: only a running relay remembers its refusals;"
            f" `rookery serve --data {folder}` starts one"
        )
    asyncio.run(_log(folder / "control.sock", number, connection, follow=follow, as_json=as_json))


async def _log(
    socket: Path, number: int, connection: int | None, *, follow: bool, as_json: bool
) -> None:
    names = own_names()
    async with RemoteFolder(socket) as relay:
        remembered = await relay.refusals(0)
        last = remembered[-1].number if remembered else 0
        wanted = [each for each in remembered if connection in (None, each.connection)]
        for refusal in wanted[-number:] if number else []:
            _print(refusal, names, as_json=as_json)
        if not (wanted or follow or as_json):
            print_nothing_found()
        while follow:
            sys.stdout.flush()
            await asyncio.sleep(_EVERY_S)
            for refusal in await relay.refusals(last):
                if connection in (None, refusal.connection):
                    _print(refusal, names, as_json=as_json)
                last = refusal.number


def _print(refusal: Refusal, names: Names, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(refusal))
    else:
        click.echo(printable(refusal_text(refusal, names)))


def refusal_text(refusal: Refusal, names: Names) -> str:
    """One refusal as a line of text."""
    clock = datetime.fromtimestamp(refusal.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    source = "an import" if refusal.connection is None else f"connection {refusal.connection}"
    address = f" from {refusal.address}" if refusal.address else ""
    who = names.shown(refusal.author)
    return (
        f"{clock} {refusal.prefix}: {refusal.rule}  kind {refusal.kind} by {who}  "
        f"{source}{address}  id {refusal.event_id}"
    )
