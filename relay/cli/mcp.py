"""`rookery mcp`: nmem's tools for a coding agent, over stdio or HTTP (M-29)."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relay.cli.nmem_cache import key_here, take_warning
from relay.cli.options import Server, WholeNumber, server_options
from relay.client.nmem import Nmem
from relay.client.nmem.hooks import is_root
from relay.client.nmem.settings import find_nmem_settings
from relay.client.settings import Actor, find_settings
from relay.clock import unix_now
from relay.errors import UserError, how_to_install
from relay.memory.nmem.capture import project_at

if TYPE_CHECKING:
    from relay.client.nmem.settings import NmemSettings
    from relay.client.settings import ClientSettings

_PORT: Final = 7780


@click.command("mcp", epilog="Example: claude mcp add rookery -- rookery mcp")
@click.option(
    "--http",
    "port",
    type=WholeNumber(0, 65_535),
    is_flag=False,
    flag_value=_PORT,
    metavar="[PORT]",
    help=f"Streamable HTTP on 127.0.0.1 (port {_PORT}; 0 picks one) instead of stdio. Prints"
    " the token that clients need.",
)
@server_options
def mcp(port: int | None, server: Server) -> None:
    """Run an MCP server that gives a coding agent its memory.

    It searches the records of `rookery hook` from this and the owner's other machines, and stores
    notes of the agent. Works offline.
    """
    _check_sdk()
    settings = find_settings(
        Actor.AGENT,
        relay=server.relay,
        key_file=server.key_file,
        environ=os.environ,
        home=Path.home(),
        here=None,
    )
    _, nmem_settings = find_nmem_settings(Path.home())
    if port is None:
        # A thread blocked on stdin would prevent a graceful exit.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_serve(port, settings, nmem_settings))


def _check_sdk() -> None:
    """Raises UserError if the extra is not installed."""
    try:
        import_module("relay.mcp.server")
    except ImportError as error:
        raise UserError(
            f"the MCP extra is not installed ({error}): {how_to_install('mcp')}"
        ) from error


async def _serve(port: int | None, settings: ClientSettings, nmem_settings: NmemSettings) -> None:
    from relay.mcp.server import serve_stdio, server_of
    from relay.mcp.tools import Place, Toolbox

    here = Path.cwd()
    place = Place(here, project_at(str(here), str(Path.home()), is_root))
    async with AsyncExitStack() as opened:
        nmem = await opened.enter_async_context(
            Nmem(
                settings.relay,
                settings.key,
                nmem_settings.db,
                key_here(),
                secrets=nmem_settings.secret_filter(),
                group=nmem_settings.group,
                agents=nmem_settings.agents,
                home_relay=settings.file.relay,
            )
        )
        if warning := take_warning(nmem.database):
            _log(warning)
        toolbox = await opened.enter_async_context(Toolbox(nmem, place, unix_now))
        server = server_of(toolbox)
        if port is None:
            await serve_stdio(server)
        else:
            from relay.mcp.http import serve_http

            await serve_http(server, port, secrets.token_urlsafe(32), _log)


def _log(text: str) -> None:
    """On stderr: stdout carries the protocol."""
    click.echo(f"rookery mcp: {text}", file=sys.stderr)
