"""Relay URL and key of a command, and the file `~/.config/rookery/client.toml`.

Precedence: command-line options, environment, file, then the relay that runs on `./data` and the
key files that `rookery serve` creates there. Error texts name where a key was read from, never the
key.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import ConfigFaults, Fault, Invalid, UserError
from relay.files import (
    MAX_KEY_FILE,
    content_of,
    given_content,
    place_of_others,
    socket_address,
)
from relay.memory.fence import name_in
from relay.memory.snowclaw.config import GroupConfig, config_of
from relay.memory.snowclaw.context import HistoryStyle, TrimOrder
from relay.memory.snowclaw.keys import KeyStyle
from relay.nostr.event import is_hex64
from relay.nostr.keys import SecretKey, public_key, read_key_file
from relay.nostr.nip42 import relay_address
from relay.toml.parsing import text_of, values_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DEFAULT_RELAY: Final = "ws://127.0.0.1:7777"
_ANSWER_S: Final = 2.0
FILE: Final = Path(".config/rookery/client.toml")
"""Relative to the home folder."""
KEYS: Final = ("relay", "key_file", "agent_key_file", "data")
_TABLES: Final = ("names", "snowclaw", "nmem", "anamnesis")
"""Known tables; tables not checked here are checked by their readers."""
SNOWCLAW_KEYS: Final = (
    "respond_mode",
    "context_history",
    "key_style",
    "trim_order",
    "history_style",
)
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "key_style": tuple(style.name.lower() for style in KeyStyle),
    "trim_order": tuple(TrimOrder),
    "history_style": tuple(HistoryStyle),
}


class Actor(Enum):
    """Whose key a command signs with if it was given none."""

    OWNER = "owner"
    """`key_file`, else the owner's key created by `serve`."""
    AGENT = "agent"
    """`agent_key_file`, else `key_file`, else the agent's key created by `serve`."""
    USER = "user"
    """`key_file`, else as AGENT (S-23)."""


@dataclass(frozen=True, slots=True)
class SnowclawSettings:
    """[snowclaw]: the file level of the configuration (S-17), and encoding choices."""

    config: GroupConfig = field(default_factory=GroupConfig)
    key_style: KeyStyle = KeyStyle.HEX
    trim_order: TrimOrder = TrimOrder.NOTES_FIRST
    history_style: HistoryStyle = HistoryStyle.HEADER


@dataclass(frozen=True, slots=True)
class ClientFile:
    """Content of client.toml; None for what it does not set."""

    relay: str | None = None
    key_file: Path | None = None
    agent_key_file: Path | None = None
    data: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """[names]: name → public key, 64 hex."""
    snowclaw: SnowclawSettings = field(default_factory=SnowclawSettings)
    tables: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """(name, content) of the tables present, unchecked."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Relay and key of one command."""

    relay: str
    key: SecretKey
    data: Path
    """Caches and spools of the client; not the relay's data folder."""
    agent_key_file: Path | None
    file: ClientFile

    def agent_key(self) -> SecretKey | None:
        """The agent's key if one is configured beside `key` (S-23). Raises UserError."""
        if self.agent_key_file is None:
            return None
        return _key_in(self.agent_key_file, f", which agent_key_file in ~/{FILE} names")

    def own_keys(self) -> dict[str, SecretKey]:
        """Public key → `key` (first), and those that client.toml names, as far as readable."""
        keys = [self.key]
        for path in filter(None, (self.file.key_file, self.file.agent_key_file)):
            with suppress(UserError):
                keys.append(_key_in(path))
        return {key.pubkey: key for key in keys}


def find_settings(
    actor: Actor,
    *,
    relay: str | None,
    key_file: Path | None,
    environ: Mapping[str, str],
    home: Path,
    here: Path | None,
) -> ClientSettings:
    """`relay`, `key_file`: options of the command. `here`: the current folder; None if the user did
    not choose it, as for hooks started by a coding agent: keys are not read from project folders.

    Raises UserError with the next step to take, ConfigFaults for an invalid client.toml.
    """
    file = read_client_file(home)
    if relay is not None:
        url = relay_url(relay, "--relay")
    elif environ.get("ROOKERY_RELAY"):
        url = relay_url(environ["ROOKERY_RELAY"], "ROOKERY_RELAY")
    else:
        nearby = None if file.relay or here is None else _running_on(_data_folder(environ, here))
        url = file.relay or nearby or DEFAULT_RELAY
    return ClientSettings(
        relay=url,
        key=_key(actor, key_file, file, environ, here),
        data=file.data or home / ".local/share/rookery",
        agent_key_file=file.agent_key_file,
        file=file,
    )


def _data_folder(environ: Mapping[str, str], here: Path) -> Path:
    """As of the commands about a data folder."""
    return here / (environ.get("ROOKERY_DATA") or "data")


def _running_on(folder: Path) -> str | None:
    """URL of the relay that runs on a data folder; None: none answers. Raises UserError."""
    # Any folder may be called so, and be closed to us: `Path.exists` would raise.
    path = folder / "control.sock"
    if not os.path.exists(path):
        return None
    remedy = "name a relay with --relay"
    _refuse_foreign(folder, remedy)
    _refuse_foreign(path, remedy)
    if path.is_symlink():
        # The folder of a clone, whose settings would name the relay for that of another folder.
        raise UserError(f"{path} is a symbolic link; {remedy}")
    try:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(_ANSWER_S)
            with socket_address(path) as address:
                control.connect(address)
            control.sendall(b'{"do":"status"}\n')
            with control.makefile("rb") as reply:
                (size,) = orjson.loads(reply.readline())["sizes"]
                url = str(orjson.loads(reply.read(size))["url"])
        settings = values_in(text_of(folder / "rookery.toml"), "rookery.toml")
        # A login names the public URL.
        url = str(settings.get("relay", {}).get("url") or url)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigFaults):
        return None
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:") or None


def _refuse_foreign(path: Path, remedy: str) -> None:
    """Raises UserError for a file of the current folder that belongs to another user: its owner
    knows the key in it, and may run the relay that memory would be sent to."""
    with suppress(OSError):
        owner = path.stat().st_uid
        if owner not in (0, os.geteuid()):
            raise UserError(f"{path} belongs to another user ({owner}); {remedy}")


def read_client_file(home: Path) -> ClientFile:
    """client.toml; all None if it is missing. Raises ConfigFaults with all faults, also if another
    user may have made it: it names the relay and the keys."""
    path = home / FILE
    try:
        text = text_of(path)
    except FileNotFoundError:
        return ClientFile()
    if others := place_of_others(path, home):
        raise ConfigFaults([Fault(str(path), 0, f"not used, {others}")])
    content = values_in(text, str(path))
    faults = [
        Fault(str(path), _line_of(key, text), fault)
        for key, value in content.items()
        if (fault := _fault_in(key, value))
    ]
    faults += (
        Fault(str(path), _line_of(key, text) or _line_of("snowclaw", text), fault)
        for key, fault in _snowclaw_faults(content.get("snowclaw"))
    )
    faults += (
        Fault(str(path), _line_of(name, text) or _line_of("names", text), fault)
        for name, fault in _name_faults(content.get("names"))
    )
    if faults:
        raise ConfigFaults(faults)
    return ClientFile(
        relay=content.get("relay"),
        key_file=path_in(content, "key_file", home),
        agent_key_file=path_in(content, "agent_key_file", home),
        data=path_in(content, "data", home),
        names={name: public_key(key) for name, key in content.get("names", {}).items()},
        snowclaw=_snowclaw_in(content.get("snowclaw", {})),
        tables=tuple((name, content[name]) for name in _TABLES if name in content),
    )


def named_key(key_file: Path | None, environ: Mapping[str, str]) -> SecretKey | None:
    """The key given to this command by option or environment, if any. Raises UserError."""
    if key_file is not None:
        return _key_in(key_file, read=given_content)
    if environ.get("ROOKERY_KEY"):
        try:
            return SecretKey.parse(environ["ROOKERY_KEY"])
        except Invalid:
            raise UserError(
                "ROOKERY_KEY holds no nsec and no 64 hex characters; it is the key itself,"
                " a file is given with --key-file"
            ) from None
    return None


def _key(
    actor: Actor,
    key_file: Path | None,
    file: ClientFile,
    environ: Mapping[str, str],
    here: Path | None,
) -> SecretKey:
    named = named_key(key_file, environ)
    if named is not None:
        return named
    name = "agent"
    files = [("key_file", file.key_file), ("agent_key_file", file.agent_key_file)]
    match actor:
        case Actor.OWNER:
            name, files = "owner", files[:1]
        case Actor.AGENT:
            files.reverse()
        case Actor.USER:
            pass
    for setting, path in files:
        if path is not None:
            return _key_in(path, f", which {setting} in ~/{FILE} names")
    if here is None:
        raise UserError(
            f"no key to sign with: name agent_key_file in ~/{FILE} (`rookery keygen` makes a key),"
            " or set ROOKERY_KEY"
        )
    made_by_serve = _data_folder(environ, here) / "keys" / f"{name}.nsec"
    if made_by_serve.exists():
        _refuse_foreign(made_by_serve, "name a key with --key-file")
        return _key_in(made_by_serve)
    raise UserError(
        f"no key to sign with: give --key-file FILE or set ROOKERY_KEY (there is no key_file in"
        f" ~/{FILE} and no {made_by_serve}; `rookery keygen` makes a key)"
    )


def _key_in(
    path: Path, named_by: str = "", *, read: Callable[[Path, int], bytes] = content_of
) -> SecretKey:
    """`named_by`: what named the file, for the error text."""
    try:
        return read_key_file(read(path, MAX_KEY_FILE).decode(), str(path))
    except FileNotFoundError:
        if is_hex64(path.name.lower()):  # the key itself, perhaps
            raise UserError(
                f"there is no file of the given name{named_by}: name one that holds the key"
            ) from None
        raise UserError(
            f"there is no key file {path}{named_by}; `rookery keygen` makes a key"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} holds no nsec and no 64 hex characters") from None
    except OSError as error:
        raise UserError(f"cannot read the key file {path}: {error.strerror}") from error


def relay_url(url: str, where: str) -> str:
    """The normalised URL. `where`: the option or variable, for the error text. Raises UserError."""
    url = url.strip()
    if not _is_relay_url(url):
        scheme, _, rest = url.partition("://")
        meant = {"http": "ws", "https": "wss"}.get(scheme.lower())
        if meant is not None and _is_relay_url(f"{meant}://{rest}"):
            raise UserError(
                f"{where}: {url!r} is no relay URL; did you mean {meant}://{rest}?", code=2
            )
        raise UserError(
            f"{where}: {url!r} is no relay URL; it begins with ws:// or wss://, has no password,"
            " and no part of its host has over 63 characters",
            code=2,
        )
    return url


def _is_relay_url(url: str) -> bool:
    return url.lower().startswith(("ws://", "wss://")) and relay_address(url) is not None


def _fault_in(key: str, value: object) -> str:
    """The fault of one entry, or empty. Values are not quoted: one may be a secret."""
    if key in _TABLES:
        return "" if isinstance(value, dict) else f"{key}: must be a table, [{key}]"
    if key not in KEYS:
        what = f"[{key}]" if isinstance(value, dict) else key
        return f"unknown key {what}; {suggestion(key, (*KEYS, *_TABLES))}"
    if not isinstance(value, str):
        return f"{key}: must be a string"
    if key == "relay" and not _is_relay_url(value):
        return "relay: must be a URL that begins with ws:// or wss://"
    return ""


def suggestion(key: str, known: Sequence[str]) -> str:
    """`did you mean …?`, or the known keys, for an unknown key."""
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _name_faults(table: object) -> Iterator[tuple[str, str]]:
    """(name, fault) for each invalid entry of [names]. Keys are not quoted: one may be secret."""
    for name, key in table.items() if isinstance(table, dict) else ():
        if not name or name_in(name) != name or is_hex64(name):
            yield name, "[names]: a name has 1 to 40 letters, digits, spaces or .,_-'&+@!?/"
            continue
        try:
            public_key(key if isinstance(key, str) else "")
        except Invalid:
            yield name, f"[names] {name}: must be a public key, npub or 64 hex"


def _snowclaw_faults(table: object) -> Iterator[tuple[str, str]]:
    """(key, fault) for each invalid key of [snowclaw]."""
    for key, value in table.items() if isinstance(table, dict) else ():
        if key not in SNOWCLAW_KEYS:
            yield key, f"unknown key [snowclaw] {key}; {suggestion(key, SNOWCLAW_KEYS)}"
        elif key in _CHOICES:
            if value not in _CHOICES[key]:
                yield key, f"[snowclaw] {key}: must be {' or '.join(_CHOICES[key])}"
        else:
            try:
                config_of({key: value})
            except Invalid as invalid:
                yield key, f"[snowclaw] {invalid.text}"


def _snowclaw_in(table: Mapping[str, str]) -> SnowclawSettings:
    return SnowclawSettings(
        config=config_of(table),
        key_style=KeyStyle[table.get("key_style", "hex").upper()],
        trim_order=TrimOrder(table.get("trim_order", "notes_first")),
        history_style=HistoryStyle(table.get("history_style", "header")),
    )


def path_in(content: Mapping[str, object], key: str, home: Path) -> Path | None:
    """The path under a key, if set. `~` is the home folder; relative paths start at the folder of
    client.toml."""
    if key not in content:
        return None
    text = str(content[key])
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return (home / FILE).parent / text


def _line_of(key: str, text: str) -> int:
    """Line number of a top-level key or table, which tomllib does not report."""
    name = re.escape(key)
    entry = re.compile(rf"""\s*(\[+\s*)?["']?{name}["']?\s*[=.\]]""").match
    return next((n for n, line in enumerate(text.splitlines(), 1) if entry(line)), 0)
