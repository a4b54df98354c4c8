"""`rookery profile set`: the profile (kind 0) of a key. Signs as the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import orjson

from relay.cli.connect import with_client
from relay.cli.options import (
    CommandGroup,
    Server,
    client_options,
    print_json,
    printable,
)
from relay.client.settings import Actor
from relay.errors import UserError
from relay.memory.fields import compact_repaired
from relay.nostr import kinds
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from relay.client import Client


@click.group("profile", cls=CommandGroup, epilog="Example: rookery profile set --name Ada")
def profile() -> None:
    """Set the profile of a key (kind 0)."""


@profile.command("set", epilog="Example: rookery profile set --name Ada --about 'Runs the relay'")
@click.option("--name", metavar="TEXT", help="The name to be shown.")
@click.option("--about", metavar="TEXT", help="A line about yourself.")
@click.option("--picture", metavar="URL", help="URL of a picture.")
@client_options
def set_profile(
    name: str | None,
    about: str | None,
    picture: str | None,
    server: Server,
    *,
    as_json: bool,
) -> None:
    """Change name, about or picture; other fields are kept. An empty text removes a field."""
    texts = {"name": name, "about": about, "picture": picture}
    given = {field: text for field, text in texts.items() if text is not None}
    if not given:
        raise click.UsageError("nothing to change: give --name, --about or --picture")

    async def work(client: Client) -> dict[str, object]:
        newest = await client.query(
            {"kinds": [kinds.PROFILE], "authors": [client.pubkey], "limit": 1}
        )
        before, at, tags = {}, client.now(), []
        if newest:
            known = object_in(newest[0].content)
            if known is None:
                raise UserError(
                    f"the content of your profile {newest[0].id} is no JSON object: other clients"
                    " would lose what it holds; write it with the client that made it"
                )
            # Of two profiles of one second the lower id would count.
            before, tags = known, newest[0].tags
            at = max(at, newest[0].created_at + 1)
        changed = {field: text for field, text in {**before, **given}.items() if text != ""}
        content = compact_repaired(changed)
        await client.publish(client.sign(kinds.PROFILE, content, tags, created_at=at))
        return dict(orjson.loads(content))

    changed = with_client(Actor.OWNER, server, work)
    if as_json:
        print_json(changed)
    else:
        for field, text in changed.items():
            click.echo(printable(f"{field}: {text}"))
