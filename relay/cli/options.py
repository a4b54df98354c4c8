"""What commands share: options, the spelling of keys, and safe ways to print."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from relay.errors import Invalid
from relay.nostr.keys import public_key
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    KeyType = click.ParamType[str]
else:
    KeyType = click.ParamType  # takes no arguments in older versions of click

_WIDE: Final = 200
"""Columns when nobody looks: a table in a pipe must not break its keys in two."""

folder_option = click.option(
    "--data",
    "folder",
    default="data",
    show_default=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The relay's folder.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--relay` and `--key-file` (contract §2)."""
    relay = click.option("--relay", metavar="URL", help="The relay, ws:// or wss://.")
    key_file = click.option(
        "--key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file with the nsec or 64 hex that signs.",
    )
    return relay(key_file(command))


class Words(KeyType):
    """What a search looks for: an empty one would find everything."""

    name = "words"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if search_from(value) is None:
            self.fail("there is no word in it to look for", param, ctx)
        return value


class PublicKey(KeyType):
    """An npub or 64 hex; the value is 64 hex."""

    name = "key"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.strip().lower().startswith("nsec1"):
            # Never repeated, however it is spelt.
            self.fail("that is a secret key; give the public one (npub or 64 hex)", param, ctx)
        try:
            return public_key(value)
        except Invalid as invalid:
            self.fail(invalid.text, param, ctx)


_OBEYED: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is and a terminal may obey: DEL, C1, directions and ends of lines."""


def print_json(value: object) -> None:
    """One value on one line."""
    text = orjson.dumps(value).decode()
    click.echo(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    """`preferences 3, clears 1`, or one JSON document."""
    if as_json:
        print_json(counts)
    else:
        click.echo(", ".join(f"{name} {count}" for name, count in counts.items()))


def printable(text: str) -> str:
    """Text from the network with nothing in it that a terminal obeys."""
    return "".join(char if char.isprintable() else "�" for char in text)


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    out = partial(Console, markup=False, highlight=False, emoji=False)
    return out() if out().is_terminal else out(width=_WIDE)
