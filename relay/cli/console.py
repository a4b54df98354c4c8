"""`rookery console`: a link that signs in to the web console with a key file."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson

from relay.cli.connect import not_reached
from relay.cli.options import Server, client_options, print_json, printable
from relay.client import Unreachable
from relay.client.settings import Actor, find_settings
from relay.clock import unix_now
from relay.errors import UserError
from relay.files import make_private, replace_own_file
from relay.memory.secrets import SECRET_VARIABLES

if TYPE_CHECKING:
    from relay.client.settings import ClientSettings

_MAX_REPLY: Final = 65_536
"""Bytes."""


@click.command("console", epilog="Example: rookery console --relay wss://relay.example.org")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@client_options
def console_command(server: Server, *, no_browser: bool, as_json: bool) -> None:
    """Open the relay's web console, signed in with your key.

    The link works once, within a minute. The key stays on this machine.
    """
    settings = find_settings(
        Actor.OWNER,
        relay=server.relay,
        key_file=server.key_file,
        environ=os.environ,
        home=Path.home(),
        here=Path(),
    )
    link = asyncio.run(_link(settings))
    if as_json:
        print_json({"link": link, "pubkey": settings.key.pubkey})
        return
    click.echo(printable(link))
    if not no_browser:
        for name in SECRET_VARIABLES:  # a browser outlives this command and starts others
            os.environ.pop(name, None)
        webbrowser.open(_page(settings.data, link).as_uri())


def _page(folder: Path, link: str) -> Path:
    """A private file that leads to the link: all users of the machine can read the arguments that
    a browser is started with, and could follow the link first. Raises OSError."""
    make_private(folder)
    path = folder.absolute() / "console.html"
    to = escape(link)
    replace_own_file(
        path,
        f'<!doctype html><meta charset="utf-8"><title>Rookery</title>'
        f'<meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Sign in</a>\n'.encode(),
    )
    return path


async def _link(settings: ClientSettings) -> str:
    """Raises UserError."""
    import aiohttp

    from relay.client.connection import body_of, http_session
    from relay.client.reconnect import error_text
    from relay.nostr.nip98 import header_for

    base = "http" + settings.relay.rstrip("/")[2:]
    url = f"{base}/console/link"
    header = header_for(settings.key, url, b"", unix_now(), secrets.token_hex(8))
    try:
        async with (
            http_session() as session,
            session.post(url, headers={"Authorization": header}) as response,
        ):
            reply = orjson.loads(await body_of(response, _MAX_REPLY) or b"")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise not_reached(Unreachable(settings.relay, error_text(error))) from error
    except ValueError:
        reply = None
    if not isinstance(reply, dict) or not (reply.get("error") or reply.get("path")):
        raise UserError(f"{settings.relay} has no console: is [console] enabled = false?")
    if reply.get("error"):
        raise UserError(f"{settings.relay} refused: {printable(str(reply['error']))}")
    code = str(reply["path"]).rpartition("/")[2]
    if re.fullmatch(r"[A-Za-z0-9_-]{1,200}", code) is None:  # a browser follows it
        raise UserError(f"{settings.relay} returned an invalid link")
    return f"{url}/{code}"
