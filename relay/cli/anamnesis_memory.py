"""Opens Anamnesis on a relay for the `rookery anamnesis` commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from relay.cli.connect import with_settings
from relay.cli.names import keys_of
from relay.cli.options import Server, printable, report_kept_out
from relay.client.anamnesis import Anamnesis, UnknownMemory
from relay.client.anamnesis.settings import anamnesis_settings
from relay.client.settings import Actor
from relay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings

    Result = TypeVar("Result")

SHORT: Final = 12
"""Characters of a shortened hash; every command accepts it."""
_LONGEST_LINE: Final = 200


@dataclass(frozen=True, slots=True)
class Author:
    """Options of a new entry's author; None: as in client.toml."""

    id: str | None = None
    name: str | None = None
    platform: str | None = None


def with_memory(
    server: Server,
    work: Callable[[Anamnesis], Awaitable[Result]],
    author: Author = Author(),
) -> Result:
    return with_keys(server, (), lambda memory, _: work(memory), author)


def with_keys(
    server: Server,
    people: Sequence[str],
    work: Callable[[Anamnesis, Sequence[str]], Awaitable[Result]],
    given: Author = Author(),
) -> Result:
    """`with_memory`, for work that takes the keys of `people`: what `Person` let through."""

    async def on(client: Client, settings: ClientSettings) -> Result:
        table = anamnesis_settings(settings.file, Path.home())
        name, who = given.name or table.author_name, given.id or table.author_id
        platform = given.platform or table.platform
        author = None
        if who or name or platform:
            who = who or settings.key.pubkey
            author = {"id": who, "name": name or who}
            author |= {"platform": platform} if platform else {}
        keys = await keys_of(client, settings, people) if people else ()
        async with Anamnesis(client, settings.key, author, reputations=table.reputations) as memory:
            try:
                result = await work(memory, keys)
            except UnknownMemory as unknown:
                raise UserError(
                    f"{unknown}; `rookery anamnesis recall WORDS` finds what this key may read"
                ) from None
            report_kept_out(memory)
            if memory.shortfall:
                click.echo(printable(memory.shortfall), err=True)
            for unread in memory.unread.values():
                click.echo(f"skipped {unread.event.id[:8]} {printable(unread.why)}", err=True)
            return result

    return with_settings(Actor.AGENT, server, on)


def one_line(text: str) -> str:
    words = printable(" ".join(text.split()))
    return words if len(words) <= _LONGEST_LINE else words[: _LONGEST_LINE - 1] + "…"
