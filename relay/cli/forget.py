"""`rookery forget`: deletes events at a relay, with a receipt of their erasure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.connect import with_settings
from relay.cli.names import PublicKey, read_names
from relay.cli.options import (
    Server,
    client_options,
    confirm,
    print_json,
    printable,
)
from relay.client.settings import Actor
from relay.errors import UserError
from relay.files import atomic_file, given_content
from relay.nostr import kinds
from relay.nostr.event import address_of, is_hex64
from relay.nostr.keys import npub
from relay.nostr.nip09 import address_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_MAX_TARGETS: Final = 500
_ADDRESS: Final = re.compile(r"[0-9]{1,5}:[0-9a-f]{64}:.*", re.DOTALL)
_ID_OR_BEGINNING: Final = re.compile(r"[0-9a-f]{8,64}").fullmatch
_LOOKED_AT: Final = 1_000
"""Newest events, of the group or of the key, among which the beginning of an id is looked for."""
_NO_KEY_HERE: Final = (
    "--vanish accepts no key or event: it deletes everything that the signing key wrote"
    " (--key-file). If you do not have the person's key: `rookery ban KEY` hides what it wrote, and"
    ' deletes it with `[bans] stored = "delete"` in the relay\'s policies'
)


@click.command("forget", epilog="Example: rookery forget 5c1f… --proof -o receipt.json")
@click.argument("targets", nargs=-1, metavar="[EVENT-ID|ADDRESS]…")
@click.option("--group", metavar="ID", help="As a moderator of this group (kind 9005).")
@click.option(
    "--vanish", is_flag=True, help="Delete everything that the key wrote, for ever (NIP-62)."
)
@click.option("--reason", default="", metavar="TEXT", help="Sent and stored with the request.")
@click.option("--yes", is_flag=True, help="Do not ask before --vanish.")
@click.option("--proof", is_flag=True, help="Wait for the relay's signed receipt of the erasure.")
@click.option("--receipt", "request", metavar="ID", help="Only fetch the receipt of a request.")
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the receipt to a file.",
)
@click.option(
    "--verify",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Only check a saved receipt; needs no relay.",
)
@click.option("--relay-key", type=PublicKey(), help="With --verify: the key of the relay.")
@client_options
def forget_command(
    targets: Sequence[str],
    group: str | None,
    request: str | None,
    output: Path | None,
    file: Path | None,
    relay_key: str | None,
    server: Server,
    reason: str,
    *,
    vanish: bool,
    yes: bool,
    proof: bool,
    as_json: bool,
) -> None:
    """Delete events at the relay: by id or address (KIND:PUBLIC-KEY:D), or all of a key.

    Signs as the owner, or with --key-file. With --group ID, as a moderator of the group, also
    events of others. To delete everything of another key, use `rookery ban KEY` with `[bans] stored
    = "delete"` in the relay's policies; otherwise a ban only hides it. You may shorten an id to its
    first 8 or more characters. It is looked up among the newest 1,000 events of the signing key, or
    of the group with --group (`rookery group read ID --ids` lists them).

    A receipt is an event signed by the relay. It names the request, the time, and the number, kinds
    and ids of the erased events, but repeats no text. The relay signs it once no byte of the events
    is left in its files. For 90 days the author of the request and the relay's owners can fetch it.
    """
    if sum((bool(targets), vanish, request is not None, file is not None)) != 1:
        raise click.UsageError(
            _NO_KEY_HERE
            if vanish and targets
            else "give events to delete, or one of --vanish, --receipt, --verify"
        )
    if file is not None:
        _verify(file, relay_key, as_json=as_json)
        return
    if request is not None and not is_hex64(request):
        raise click.BadParameter("must be the id of a kind 5, 9005 or 62, 64 hex", param_hint="ID")
    draft = _draft(targets, group, vanish=vanish)
    if vanish and not yes:
        confirm(with_settings(Actor.OWNER, server, _question))

    async def work(
        client: Client, settings: ClientSettings
    ) -> tuple[str, Event | None, Erasure | None]:
        wanted = request
        if wanted is None:
            kind, tags = draft
            tags = await _whole(client, settings, group, tags)
            if group is None:
                tags += await _addresses(client, settings.key.pubkey, tags)
            of_relay = [["relay", client.url]] if vanish else []
            wanted = (await client.send(kind, reason, [*of_relay, *tags])).id
        if not proof and request is None:
            return wanted, None, None
        return wanted, *await _receipt(client, settings.key, wanted)

    wanted, event, erasure = with_settings(Actor.OWNER, server, work)
    if output is not None and event is not None:
        with atomic_file(output) as receipt:
            receipt.write(event.raw + b"\n")
    if as_json:
        print_json({"request": wanted, "receipt": None if event is None else _json(event)})
        return
    click.echo(f"request {wanted}")
    if event is not None and erasure is not None:
        _print(event, erasure)
        if output is None:
            click.echo("the receipt, as signed (with -o FILE it is saved instead):", err=True)
            print_json(_json(event))


def _draft(
    targets: Sequence[str], group: str | None, *, vanish: bool
) -> tuple[int, list[list[str]]]:
    if vanish:
        return kinds.VANISH, []
    if len(targets) > _MAX_TARGETS:
        raise click.UsageError(f"at most {_MAX_TARGETS} events at a time")
    tags = []
    for target in targets:
        if _ID_OR_BEGINNING(target):
            tags.append(["e", target])
        elif group is None and _ADDRESS.fullmatch(target):
            tags.append(["a", target])
        else:
            known = "an event id, or 8 hex of it or more"
            known += "" if group is not None else ", or KIND:PUBLIC-KEY:D"
            raise click.BadParameter(f"{target!r} is not {known}", param_hint="EVENT-ID")
    if group is not None:
        return kinds.DELETE_EVENT, [["h", group], *tags]
    return kinds.DELETION, tags


async def _question(client: Client, settings: ClientSettings) -> str:
    names = await read_names(client, settings, [settings.key.pubkey])
    who = printable(names.of(settings.key.pubkey) or "")
    named = f"{who}, {settings.key.npub}," if who else settings.key.npub
    return f"Delete everything that {named} wrote at {client.url}, for ever?"


async def _whole(
    client: Client, settings: ClientSettings, group: str | None, tags: list[list[str]]
) -> list[list[str]]:
    """The tags with whole ids, where they have beginnings. Raises UserError."""
    if all(is_hex64(value) for name, value in tags if name == "e"):
        return tags
    where = {"authors": [settings.key.pubkey]} if group is None else {"#h": [group]}
    newest = [event.id for event in await client.query({**where, "limit": _LOOKED_AT})]
    of = "this key" if group is None else f"group {printable(group)}"
    whole = []
    for name, value in tags:
        ids = [id_ for id_ in newest if id_.startswith(value)]
        if name != "e" or is_hex64(value):
            whole.append([name, value])
        elif len(ids) == 1:
            whole.append([name, *ids])
        else:
            raise UserError(
                f"{len(ids) or 'none'} of the newest {len(newest):,} events of {of} begin with"
                f" {value}: give the whole id{''.join(f'{chr(10)}  {each}' for each in ids[:10])}"
            )
    return whole


async def _addresses(client: Client, author: str, tags: list[list[str]]) -> list[list[str]]:
    """For the older versions of the events: whoever has one could send it again. None are named
    beside events of other groups, since who reads one would learn of the others. Raises UserError
    if one that was given would be."""
    filters: list[dict[str, object]] = []
    if ids := [value for name, value in tags if name == "e"]:
        filters.append({"ids": ids, "authors": [author], "limit": len(ids)})
    given = [address_of(value) for name, value in tags if name == "a"]
    ds: dict[int, list[str]] = {}
    for address in given:
        if address is not None and address.pubkey == author:
            ds.setdefault(address.kind, []).append(address.d)
    for kind, named in ds.items():
        filters.append({"kinds": [kind], "authors": [author], "#d": named})
    found = [event for each in filters for event in await client.query(each)]
    if len({event.tag("h") for event in found}) <= 1:
        return [tag for tag in address_tags(found) if tag not in tags]
    if given:
        raise UserError(
            "the events are of different groups, or some of none: delete them one at a time, since"
            " the members of one group would read the addresses of the others"
        )
    return []


async def _receipt(client: Client, key: SecretKey, request: str) -> tuple[Event, Erasure]:
    from relay.client.receipts import NoReceipt, receipt_of

    try:
        return await receipt_of(client, request, key)
    except NoReceipt as none:
        raise UserError(
            f"request {request}: {none}; try again with `rookery forget --receipt {request}`."
            " Events of others are deleted with --group, by a moderator"
        ) from none


def _verify(file: Path, relay_key: str | None, *, as_json: bool) -> None:
    from relay.client.receipts import NoReceipt, verified

    try:
        event, erasure = verified(given_content(file), relay_key, None)
    except NoReceipt as none:
        raise UserError(f"{file}: {none}") from none
    if as_json:
        print_json(
            {
                "relay": event.pubkey,
                "request": erasure.request,
                "by": erasure.by,
                "deleted_at": erasure.at,
                "signed_at": event.created_at,
                "events": erasure.total,
                "kinds": {str(kind): number for kind, number in erasure.numbers.items()},
            }
        )
        return
    _print(event, erasure)
    if relay_key is None:
        click.echo(
            "compare the relay's key with `self` of its information document, or --relay-key"
        )


def _print(event: Event, erasure: Erasure) -> None:
    from relay.cli.memory_text import iso

    of_kinds = ", ".join(f"{number} of kind {kind}" for kind, number in erasure.numbers.items())
    click.echo(f"{erasure.total} erased: {of_kinds}")
    click.echo(f"deleted {iso(erasure.at)} at the request of {npub(erasure.by)}")
    click.echo(f"erased from the files before {iso(event.created_at)}, says {npub(event.pubkey)}")


def _json(event: Event) -> Any:
    import orjson

    return orjson.loads(event.raw)
