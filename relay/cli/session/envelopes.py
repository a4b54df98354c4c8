"""`rookery session pns …`: create and open envelopes, without a relay (D-29)."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from relay.cli.connect import settings_here
from relay.cli.options import CommandGroup, Server, text_of_stdin
from relay.client.settings import Actor
from relay.clock import unix_now
from relay.errors import Invalid, UserError
from relay.nostr import pns as envelopes
from relay.nostr.event import event_from
from relay.nostr.keys import read_key_file

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.pns import Channel

key_option = click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the secret key of the device: nsec or 64 hex.",
)


@click.group(
    "pns", cls=CommandGroup, epilog="Example: rookery session pns derive < data/keys/agent.nsec"
)
def pns() -> None:
    """Create and open envelopes (kind 1080) of a device's derived key."""


@pns.command("derive", epilog="Example: rookery session pns derive < data/keys/agent.nsec")
def derive() -> None:
    """Print the public key that signs a device's envelopes. Reads the device key from stdin."""
    key = read_key_file(text_of_stdin(sys.stdin.read), "stdin")
    click.echo(envelopes.derive(key).pubkey)


@pns.command("wrap", epilog="Example: rookery session pns wrap < note.json > envelope.json")
@key_option
def wrap(key_file: Path | None) -> None:
    """Wrap a signed event, read from stdin, in an envelope."""
    envelope = envelopes.wrap(
        _channel(key_file), _event_on_stdin(), unix_now(), secrets.token_bytes(32)
    )
    click.echo(envelope.raw)


@pns.command("unwrap", epilog="Example: rookery session pns unwrap < envelope.json")
@key_option
def unwrap(key_file: Path | None) -> None:
    """Print the event in an envelope read from stdin."""
    click.echo(envelopes.unwrap(_channel(key_file), _event_on_stdin()).raw)


def _channel(key_file: Path | None) -> Channel:
    return envelopes.derive(settings_here(Actor.AGENT, Server(None, key_file)).key)


def _event_on_stdin() -> Event:
    try:
        return event_from(orjson.loads(sys.stdin.buffer.read()))
    except orjson.JSONDecodeError:
        raise UserError("stdin is not JSON: expected one event") from None
    except Invalid as fault:
        raise UserError(f"stdin holds no event: {fault.text}") from None
