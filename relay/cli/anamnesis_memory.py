"""Opens Anamnesis on a relay for the `rookery anamnesis` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from relay.cli.connect import Server, with_settings
from relay.cli.options import printable
from relay.client.anamnesis import Anamnesis, UnknownMemory
from relay.client.anamnesis.settings import anamnesis_settings
from relay.client.settings import Actor
from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.client import Client
    from relay.client.settings import ClientSettings

    Result = TypeVar("Result")

SHORT: Final = 12
"""Characters of a shortened hash; every command accepts it."""
_LONGEST_LINE: Final = 200


def with_memory(
    server: Server,
    work: Callable[[Anamnesis], Awaitable[Result]],
    author_id: str | None = None,
    author_name: str | None = None,
) -> Result:
    async def on(client: Client, settings: ClientSettings) -> Result:
        table = anamnesis_settings(settings.file, Path.home())
        name = author_name or table.author_name
        who = author_id or table.author_id
        author = None
        if who or name:
            author = {"id": who or settings.key.pubkey, "name": name or who}
        async with Anamnesis(client, settings.key, author, reputations=table.reputations) as memory:
            try:
                result = await work(memory)
            except UnknownMemory as unknown:
                raise UserError(
                    f"{unknown}; `rookery anamnesis recall WORDS` finds what this key may read"
                ) from None
            if memory.shortfall:
                click.echo(printable(memory.shortfall), err=True)
            for unread in memory.unread.values():
                click.echo(f"skipped {unread.event.id[:8]} {printable(unread.why)}", err=True)
            return result

    return with_settings(Actor.AGENT, server.relay, server.key_file, on)


def one_line(text: str) -> str:
    words = printable(" ".join(text.split()))
    return words if len(words) <= _LONGEST_LINE else words[: _LONGEST_LINE - 1] + "…"
