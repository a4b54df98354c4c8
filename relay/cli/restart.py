"""`rookery restart`: a running relay starts again, without a refused connection."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click

from relay.cli.options import folder_option
from relay.errors import StoreFault, UserError
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_S: Final = 0.02
_START_S: Final = 60.0


@click.command("restart", epilog="Example: rookery restart --data ./data")
@folder_option
def restart_command(folder: Path) -> None:
    """Restart the running relay, with the installed version and the current settings.

    Nothing happens if it would not start. Otherwise it commits and answers accepted events, and
    closes all connections. The port stays open, so new connections wait. The process id does not
    change.
    """
    seconds = asyncio.run(restarted(folder))
    click.echo(f"restarted: no answers for {seconds:.1f} s")


async def restarted(folder: Path) -> float:
    """Seconds until it answered again."""
    from relay.server.control import RemoteFolder

    socket = folder / "control.sock"
    remote, before = RemoteFolder(socket), _identity(socket)
    if before is None:
        raise UserError(
            f"no relay runs on {folder}: start one with `rookery serve --data {shell_word(folder)}`"
        )
    await remote.restart()
    began = perf_counter()
    while perf_counter() - began < _START_S:
        if _identity(socket) not in (before, None):
            try:
                await remote.head()
            except (UserError, StoreFault):  # not listening yet
                pass
            else:
                return perf_counter() - began
        await asyncio.sleep(_LOOK_S)
    raise UserError(f"the relay has not answered for {_START_S:g} s: see its log")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
