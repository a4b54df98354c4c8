"""`rookery context`: the context a model would get in a group, and why. Signs as the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from relay.cli.connect import with_settings
from relay.cli.group_view import is_seen, no_group
from relay.cli.names import Person, keys_of
from relay.cli.options import (
    Server,
    WholeNumber,
    client_options,
    console,
    print_json,
    printable,
)
from relay.cli.owners import owner_option, owners_at
from relay.client import Snowclaw
from relay.client.settings import Actor
from relay.errors import UserError
from relay.memory.snowclaw.chat import KINDS
from relay.memory.snowclaw.history import oldest_first
from relay.nostr import kinds
from relay.nostr.nip59 import unsigned

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.tree import Tree

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.memory.snowclaw.context import Context
    from relay.nostr.event import Event

_BUDGET: Final = 4_000
_LOOKED_AT: Final = 100
_BEGINNING: Final = 60
"""Characters shown of each piece."""


@click.command("context", epilog="Example: rookery context techteam --budget 2000")
@click.argument("group", metavar="GROUP")
@click.option(
    "--budget",
    type=WholeNumber(min=0),
    default=_BUDGET,
    show_default=True,
    metavar="N",
    help="Budget in tokens of four characters.",
)
@click.option(
    "--message",
    metavar="TEXT",
    help="The message to answer; default: the newest in the group that is not the agent's own.",
)
@click.option(
    "--sender", metavar="KEY", type=Person(), help="Author of --message; default: an owner."
)
@click.option("--system", "system", metavar="TEXT", default="", help="Added to the system prompt.")
@owner_option
@client_options
def context(
    group: str,
    budget: int,
    message: str | None,
    sender: str | None,
    system: str,
    owners: tuple[str, ...],
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Print the context a model would get to answer a message, and why each part is kept or
    trimmed."""
    if sender is not None and message is None:
        raise click.UsageError("--sender is the author of --message: give both")

    async def work(client: Client, settings: ClientSettings) -> Context:
        known = await owners_at(client, owners)
        table, agent = settings.file.snowclaw, settings.agent_key()
        # An owner's own key is no agent's: the agent of client.toml is asked, as by `memory set`.
        signer = agent if agent is not None and settings.key.pubkey in known else settings.key
        async with Snowclaw(
            client,
            signer,
            known,
            table.config,
            groups=[group],
            key_style=table.key_style,
            trim_order=table.trim_order,
            history_style=table.history_style,
        ) as claw:
            await claw.load()
            await claw.backfill()
            newest = None
            if message is None:
                # A key that is no owner's is an agent's own.
                own = [key for key in (signer.pubkey,) if key not in known]
                newest = await _newest(client, group, own)
            if newest is not None:
                return claw.assemble(newest, system, budget)
            if message is None and claw.group(group) is None:
                if not await is_seen(client, group):
                    raise no_group(group)
                raise UserError(
                    f"no message in {printable(group)!r} that {settings.key.npub} may read and"
                    f" {signer.npub} could answer; `rookery group add` adds a key, --message TEXT"
                    " gives a message"
                )
            by = min(known, default=settings.key.pubkey)
            if sender is not None:
                (by,) = await keys_of(client, settings, [sender], group)
            await claw.learn_name(by)
            unsent = unsigned(by, kinds.CHAT, [["h", group]], message or "", client.now())
            return claw.assemble(unsent, system, budget)

    made = with_settings(Actor.USER, server, work)
    if as_json:
        print_json(_as_json(made))
        return
    click.echo("\n".join(map(printable, made.text.split("\n"))))
    click.echo()
    out = console()
    if out.is_terminal:
        out.print(_tree(made))
        return
    click.echo(_summary(made))
    for piece in made.pieces:
        click.echo(
            f"{'kept' if piece.is_kept else 'trimmed':<8} {piece.tokens:>6}"
            f"  {piece.section:<20}  {piece.why}: {_beginning(piece.text)}"
        )


async def _newest(client: Client, group: str, own: Collection[str]) -> Event | None:
    """The newest message by others, among the last `_LOOKED_AT`."""
    wanted = {"kinds": list(KINDS), "#h": [group], "limit": _LOOKED_AT}
    found = oldest_first(await client.query(wanted))
    return next((event for event in reversed(found) if event.pubkey not in own), None)


def _summary(made: Context) -> str:
    over = "; the untrimmable part alone exceeds the budget" if made.over_budget else ""
    dropped = ", ".join(f"{count} {part}" for part, count in made.dropped.items() if count > 0)
    return f"{made.tokens_used} of {made.budget} tokens, dropped: {dropped or 'nothing'}{over}"


def _tree(made: Context) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(_summary(made))
    branches: dict[str, Tree] = {}
    for piece in made.pieces:
        if piece.section not in branches:
            branches[piece.section] = tree.add(piece.section)
        mark = ("✓", "green") if piece.is_kept else ("✗", "red")
        why = (f" {piece.tokens:>5}  {piece.why}  ", "dim")
        line = Text.assemble(mark, why, _beginning(piece.text))
        branches[piece.section].add(line)
    return tree


def _beginning(text: str) -> str:
    # Of a message the text, without its header.
    body = text.partition("\n")[2] if text.startswith("[nostr:") else text
    line = " ".join(body.split())
    return printable(line if len(line) <= _BEGINNING else f"{line[:_BEGINNING]}…")


def _as_json(made: Context) -> dict[str, object]:
    return {
        "text": made.text,
        "sections": {str(section): text for section, text in made.sections.items()},
        "tokens_used": made.tokens_used,
        "budget": made.budget,
        "dropped": {str(part): count for part, count in made.dropped.items()},
        "over_budget": made.over_budget,
        "pieces": [
            {
                "section": piece.section,
                "part": piece.part,
                "kept": piece.is_kept,
                "tokens": piece.tokens,
                "why": piece.why,
                "text": piece.text,
            }
            for piece in made.pieces
        ],
    }
