"""`rookery init` and `rookery keygen`, and the data folder that `serve` creates.

The settings file lists every default as a comment. Secret files are readable by their owner only.
Existing files are not overwritten.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson

from relay.cli.database import refuse_store_fault
from relay.cli.folder_lock import filling, refuse_root_to_make
from relay.cli.names import PublicKey
from relay.cli.options import WholeNumber, json_option, print_json, refuse_half_restored
from relay.config import config_from
from relay.errors import ConfigFaults, UserError
from relay.files import MAX_KEY_FILE, content_of, make_private
from relay.memory.fence import shell_word
from relay.nostr.keys import SecretKey, npub, read_key_file

if TYPE_CHECKING:
    from collections.abc import Sequence

PRESETS: Final = ("group", "open")
_SECRET: Final = 0o600
_PUBLIC: Final = 0o644
"""A new data folder is private: its database holds the messages of private groups."""

_SETTINGS: Final = """\
# Settings of the server, read at start.
# A commented line shows the default, or an example where it says "none".
# Policies are in policies/*.toml and are reloaded when a file changes.

[relay]
{name}
# description = ""
# contact = ""                         # a URI: mailto:… or https://…
# icon = ""
# banner = ""
# terms_of_service = ""
# The public URL, which clients sign in NIP-42. Its path is the endpoint.
{url}

[server]
# host = "127.0.0.1"                   # "0.0.0.0" or "::" to accept other machines
{port}
# tls_cert = "cert.pem"                # none
# tls_key = "key.pem"                  # none
# trusted_proxies = []                 # CIDRs whose X-Forwarded-For is trusted
# metrics_from = ["127.0.0.0/8", "::1/128"]
# compression = false                  # permessage-deflate; about 100 KiB per connection

[limits]
# max_message_length = 524288          # bytes per frame
# max_subscriptions = 200              # per connection
# max_filters = 50                     # per REQ or COUNT
# max_live_filters = 1000              # of all open subscriptions of a connection
# max_limit = 50000                    # rows per filter
# default_limit = 50000                # rows of a filter without limit
# max_connections = 5000
# connections_per_address = 50         # or IPv6 /64, not of this machine; 0: no limit
# outbox_bytes = 4194304               # buffered per connection
# neg_records = 1000000                # records per negentropy session
# neg_sessions = 16                    # negentropy sessions per connection

[storage]
# url = "postgresql://rookery@/rookery"  # none: SQLite here; needs the extra "postgres"
# password_file = "database.password"  # none; of the database
# replica = "postgresql://rookery@replica.example.org/rookery"  # none; clients read there
# shared = false                       # true: other relays use the database too, with the same key
# policies = "folder"                  # "database": all relays on it take what `policy push` stores
# synchronous = "FULL"                 # "NORMAL" may lose acknowledged events at a power loss
# index_tags = ["hk"]                  # multi-letter tags that filters may name
# prefix_d_kinds = [30078, 78]         # kinds where a #d value ending in ":" is a prefix

[search]
# meaning = false                      # recall ranks by meaning too; needs the extra "semantic"

[console]
# enabled = true                       # pages for browsers on the relay's address

[log]
# level = "info"
# format = "auto"                      # text on a terminal, else json
"""

_ACTORS: Final = """\
# Actors. Public keys as npub or 64 hex; reloaded when this file changes.

[actors]
# Owners write configuration and have admin rights in every group.
owners = [{owners}]
# Agents store their memory on this relay.
agents = [{agents}]
# agent_role = "agent"                 # group role that permits writing memory there
# trusted_readers = []                 # CIDRs that may read agents' memory without authentication

# [[actors.household]]                 # an owner with agents of their own
# name = "kitchen"
# owner = "npub1…"
# agents = ["npub1…"]
"""


@dataclass(frozen=True, slots=True)
class FreshFolder:
    """What `fresh_folder` created, for `serve` to print."""

    folder: Path
    owner_key_file: Path
    owner: str
    """64 hex."""
    agent_key_file: Path
    agent: str


@click.command("init", epilog="Example: rookery init ./data --owner npub1… --agent npub1…")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--owner",
    "owners",
    type=PublicKey(),
    multiple=True,
    metavar="KEY",
    help="Public key of an owner, npub or 64 hex; repeatable; at least one.",
)
@click.option(
    "--agent",
    "agents",
    type=PublicKey(),
    multiple=True,
    metavar="KEY",
    help="Public key of an agent, npub or 64 hex; repeatable.",
)
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="group",
    show_default=True,
    help="group: private relay for a team and its agents. open: anyone may write.",
)
@click.option("--name", metavar="TEXT", help="Name of the relay.")
@click.option("--url", metavar="URL", help="Public URL of the relay, wss://…")
@click.option("--port", metavar="N", type=WholeNumber(1, 65535), help="Port to listen on.")
@json_option
def init(
    folder: Path,
    owners: tuple[str, ...],
    agents: tuple[str, ...],
    preset: str,
    name: str | None,
    url: str | None,
    port: int | None,
    *,
    as_json: bool,
) -> None:
    """Create a data folder: settings, policies and the relay's key."""
    if not owners:
        raise click.MissingParameter(
            "Give an npub: `rookery keygen -o FILE` makes a key pair and prints it.",
            param_hint="'--owner'",
            param_type="option",
        )
    made = init_folder(folder, owners, agents, preset, name, url, port)
    if as_json:
        print_json({"folder": str(folder), "wrote": list(map(str, made))})
        return
    for path in made:
        click.echo(f"wrote {path}")
    click.echo(f"start it with: rookery serve --data {shell_word(folder)}")


@click.command("keygen", epilog="Example: rookery keygen -o me.nsec")
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the nsec to a new file (0600) and print the npub only.",
)
@json_option
def keygen(*, file: Path | None, as_json: bool) -> None:
    """Create a key pair and print it; without -o it is not saved."""
    key = new_key()
    if file is not None:
        write_new(file, f"{key.nsec}\n", _SECRET)
        if as_json:
            print_json({"file": str(file), "npub": key.npub, "public": key.pubkey})
        else:
            option = f"--key-file {shell_word(file)}"
            click.echo(f"npub  {key.npub}   (nsec saved in {file}: sign with {option})")
        return
    if as_json:
        print_json({"nsec": key.nsec, "npub": key.npub, "secret": key.hex, "public": key.pubkey})
        return
    click.echo(f"nsec  {key.nsec}   (secret: whoever has it can sign as you)")
    click.echo(f"npub  {key.npub}")
    click.echo(f"hex   {key.pubkey}   (the npub in hex)")


def new_key() -> SecretKey:
    return SecretKey(secrets.token_bytes(32))


def write_key(path: Path, key: SecretKey) -> None:
    """A new key file, and its folder. Raises UserError when it exists."""
    make_private(path.parent)
    write_new(path, f"{key.nsec}\n", _SECRET)


def is_fresh(folder: Path) -> bool:
    """Whether the folder contains no data folder files yet; other files may exist in it."""
    return not any(os.path.lexists(folder / file) for file in (*_FILES, "rookery.db"))


def fresh_folder(folder: Path) -> FreshFolder:
    """Create what `init --preset group` creates, for a new owner and a new agent. Raises UserError.

    Their secret keys are written to keys/{owner,agent}.nsec; existing keys are used.
    """
    _refuse_to_overwrite(folder)
    make_private(folder / "keys")
    pairs = []
    for name in ("owner", "agent"):
        path = folder / "keys" / f"{name}.nsec"
        if path.exists():
            key = read_key_file(content_of(path, MAX_KEY_FILE).decode(), str(path))
        else:
            key = new_key()
            write_new(path, f"{key.nsec}\n", _SECRET)
        pairs.append((path, key.pubkey))
    (owner_file, owner), (agent_file, agent) = pairs
    init_folder(folder, [owner], [agent], "group", None, None)
    return FreshFolder(folder, owner_file, owner, agent_file, agent)


def init_folder(
    folder: Path,
    owners: Sequence[str],
    agents: Sequence[str],
    preset: str,
    name: str | None,
    url: str | None,
    port: int | None = None,
) -> tuple[Path, ...]:
    """Write the files of a data folder, all or none. Raises UserError if one exists, or if the
    relay would not start with these settings.

    `owners`, `agents`: 64 hex. `preset`: one of PRESETS. None: the default.
    """
    texts = {
        # The settings are written last: a folder that has them is complete.
        "relay.key": (f"{new_key().nsec}\n", _SECRET),
        "policies/00-actors.toml": (_actors(owners, agents), _PUBLIC),
        "policies/10-preset.toml": (_preset(preset), _PUBLIC),
        "rookery.toml": (_checked(_settings(name, url, port)), _PUBLIC),
    }
    made: list[Path] = []
    refuse_root_to_make(folder)
    make_private(folder)
    with filling(folder):
        _refuse_to_overwrite(folder)
        make_private(folder / "policies")
        try:
            for file, (text, mode) in texts.items():
                write_new(folder / file, text, mode)
                made.append(folder / file)
        except BaseException:
            for path in made:
                with suppress(OSError):
                    path.unlink()
            raise
    return tuple(made)


_FILES: Final = ("rookery.toml", "policies/00-actors.toml", "policies/10-preset.toml", "relay.key")


def _refuse_to_overwrite(folder: Path) -> None:
    refuse_half_restored(folder)
    for file in _FILES:
        if os.path.lexists(folder / file):
            raise UserError(
                f"{folder / file} exists and is not overwritten; choose another folder, or move"
                " the file away"
            )
    refuse_store_fault(folder)


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a new file durably, or none; links are not followed. A lost key cannot be recreated."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, mode)
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; choose another path") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _settings(name: str | None, url: str | None, port: int | None) -> str:
    return _SETTINGS.format(
        name='# name = "Rookery"' if name is None else f"name = {_toml(name)}",
        url=(
            '# url = "wss://relay.example.org"   # none: localhost and the listening port'
            if url is None
            else f"url = {_toml(url)}"
        ),
        port="# port = 7777" if port is None else f"port = {port}",
    )


def _checked(settings: str) -> str:
    """The text, if `serve` takes it. Else raises UserError: a fault begins with its key, which is
    named as the option."""
    try:
        config_from(settings, Path("rookery.toml"))
    except ConfigFaults as wrong:
        raise UserError("\n".join(f"--{each.text}" for each in wrong.faults), code=2) from None
    return settings


def _actors(owners: Sequence[str], agents: Sequence[str]) -> str:
    return _ACTORS.format(owners=_keys(owners), agents=_keys(agents))


def _keys(pubkeys: Sequence[str]) -> str:
    """Unique, in order, one per line."""
    lines = "".join(f'    "{npub(pubkey)}",\n' for pubkey in dict.fromkeys(pubkeys))
    return f"\n{lines}" if lines else ""


def _preset(preset: str) -> str:
    resource = files("policies") / "presets" / f"{preset}.toml"
    try:
        return resource.read_text("utf-8")
    except FileNotFoundError:
        # Without the preset the relay would run with other policies than requested.
        raise UserError(
            f"policies/presets/{preset}.toml is missing from this installation; reinstall Rookery"
        ) from None


def _toml(text: str) -> str:
    """A TOML string: JSON escapes are valid TOML, but JSON does not escape DEL."""
    try:
        return orjson.dumps(text).decode().replace("\x7f", "\\u007f")
    except orjson.JSONEncodeError:
        raise UserError("--name is not valid text", code=2) from None
