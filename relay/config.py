"""rookery.toml → Config: what the admin set for the server, read once at start. DESIGN §10, rows R.

Invariants: frozen; each room gets only its own slice. A key that is not known, stands in the wrong
table or belongs in a policy file is a fault with its line; all faults come at once. A reader gives
the value, or None when the key is not there or wrong (then it noted the fault).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from relay.errors import ConfigFaults, Fault
from relay.nostr.filters import FilterTerms
from relay.nostr.nip42 import relay_address
from relay.toml.fields import Source, Table, nearest
from relay.toml.lines import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Reader = Callable[[Table, str], object]
    Agreement = Callable[[Table, dict[str, object]], None]

S = TypeVar("S")
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class Synchronous(StrEnum):
    """`[storage] synchronous`: when a commit counts as durable. NORMAL may lose acknowledged
    events at a power loss (contract §9); whoever starts the relay says so in the log."""

    FULL = "FULL"
    NORMAL = "NORMAL"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    AUTO = "auto"
    """Text on a terminal, else JSON lines."""
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """`[relay]`: what NIP-11 shows, unless NIP-86 changed it since."""

    name: str = "Rookery"
    description: str = ""
    contact: str = ""
    icon: str = ""
    banner: str = ""
    terms_of_service: str = ""
    url: str | None = None
    """Public URL for AUTH, NIP-98 and vanish; its path is the endpoint."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    host: str = "127.0.0.1"
    port: int = 7777
    """0: the system picks one."""
    tls_cert: Path | None = None
    """Set exactly when `tls_key` is."""
    tls_key: Path | None = None
    trusted_proxies: tuple[Network, ...] = ()
    metrics_from: tuple[Network, ...] = LOOPBACK
    compression: bool = False
    """permessage-deflate; 106 KiB a connection (DESIGN §7)."""


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """`[limits]` of rookery.toml: of a connection. Those of an event stand in the policy files."""

    max_message_length: int = 524_288
    """Bytes of a frame."""
    max_subscriptions: int = 200
    """Per connection."""
    max_filters: int = 50
    """Per REQ or COUNT."""
    max_limit: int = 50_000
    """Rows of a filter."""
    default_limit: int = 50_000
    """Rows of a filter that names no `limit`; never more than `max_limit`."""
    max_connections: int = 5000
    """0: no bound."""
    connections_per_address: int = 0
    """0: no bound."""
    outbox_bytes: int = 4_194_304
    """Per connection."""
    neg_records: int = 1_000_000
    """Of one negentropy session."""
    neg_sessions: int = 16
    """Per connection."""


@dataclass(frozen=True, slots=True)
class StorageConfig:
    synchronous: Synchronous = Synchronous.FULL
    index_tags: frozenset[str] = FilterTerms().index_tags
    prefix_d_kinds: frozenset[int] = FilterTerms().prefix_d_kinds

    @property
    def terms(self) -> FilterTerms:
        """What filters may name here."""
        return FilterTerms(self.index_tags, self.prefix_d_kinds)


@dataclass(frozen=True, slots=True)
class LogConfig:
    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


@dataclass(frozen=True, slots=True)
class Config:
    """A rookery.toml."""

    relay: RelayConfig = field(default_factory=RelayConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    log: LogConfig = field(default_factory=LogConfig)
    ignored: tuple[str, ...] = ()
    """One text for each setting of an earlier version that the file still names."""


def load_config(path: Path) -> Config:
    """Settings of this file; defaults when it is not there. Raises ConfigFaults with all faults."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return Config()
    except OSError as wrong:
        raise ConfigFaults([Fault(str(path), 0, wrong.strerror or str(wrong))]) from None
    except UnicodeDecodeError as wrong:
        line = wrong.object.count(b"\n", 0, wrong.start) + 1
        raise ConfigFaults([Fault(str(path), line, "is not UTF-8 text")]) from None
    return config_from(text, path)


def config_from(text: str, path: Path) -> Config:
    """Settings of a text that stands (or will stand) in `path`. Raises ConfigFaults."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigFaults([_syntax_fault(wrong, text, path)]) from None
    except RecursionError:
        raise ConfigFaults([Fault(str(path), 0, "not valid TOML: nested too deep")]) from None
    except ValueError:  # what tomllib lets int() say of thousands of digits
        fault = Fault(str(path), 0, "not valid TOML: a number has too many digits")
        raise ConfigFaults([fault]) from None
    source = Source(str(path), lines_of(text), [])
    top = Table(source, (), values)
    ignored = _take_former_settings(top, values)
    _refuse_unknown_tables(top)
    config = Config(
        relay=_section(top, "relay", RelayConfig),
        server=_placed(_section(top, "server", ServerConfig), path.parent),
        limits=_section(top, "limits", LimitsConfig),
        storage=_section(top, "storage", StorageConfig),
        log=_section(top, "log", LogConfig),
        ignored=ignored,
    )
    if source.faults:
        raise ConfigFaults(sorted(source.faults, key=lambda fault: fault.line))
    return config


def _section(top: Table, name: str, kind: Callable[..., S]) -> S:
    if isinstance(top.values.get(name), list):
        _stranger(top, name, f"[{name}] is one table, no list")
        return kind()
    table = top.table(name)
    if table is None:
        return kind()
    readers = SETTINGS[name]
    for key in table.values:
        if key not in readers:
            _stranger(table, key, _unknown_key(name, key))
    found = {key: reader(table, key) for key, reader in readers.items()}
    if name in AGREEMENTS:
        AGREEMENTS[name](table, found)
    return kind(**{key: value for key, value in found.items() if value is not None})


def _placed(server: ServerConfig, home: Path) -> ServerConfig:
    """Files are named from where rookery.toml is, not from where the relay was started."""
    # Whether they are there is not asked: export or doctor do not need them, and TLS tells itself.
    if server.tls_cert is None or server.tls_key is None:
        return server
    return replace(server, tls_cert=home / server.tls_cert, tls_key=home / server.tls_key)


# -- values ---------------------------------------------------------------------------------------


def _whole(least: int, most: int = 2**31 - 1) -> Reader:
    def read(table: Table, key: str) -> int | None:
        value = table.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        if table.has(key):
            table.wrong(key, f"{key} must be a whole number from {least} to {most}")
        return None

    return read


def _boolean(table: Table, key: str) -> bool | None:
    return table.boolean(key)


def _choice(words: type[StrEnum]) -> Reader:
    def read(table: Table, key: str) -> StrEnum | None:
        return table.choice(key, words)

    return read


def _text(table: Table, key: str) -> str | None:
    """May be empty, which is the default of what NIP-11 shows."""
    value = table.values.get(key)
    if isinstance(value, str):
        return value
    if table.has(key):
        table.wrong(key, f"{key} must be a text")
    return None


def _name(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is not None and len(value) > _MAX_NAME:
        table.wrong(key, f"{key} has {len(value)} characters, at most {_MAX_NAME} are allowed")
        return None
    return value


def _web_url(table: Table, key: str) -> str | None:
    value = _text(table, key)
    if value and not value.lower().startswith(("https://", "http://")):
        table.wrong(key, f"{key} must be a URL that begins with https:// or http://")
        return None
    return value


def _relay_url(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is None:
        return None
    if not value.lower().startswith(("wss://", "ws://")) or relay_address(value) is None:
        table.wrong(
            key, f"{key} must be like wss://relay.example.org or wss://example.org:8443/relay"
        )
        return None
    return value


def _host(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is not None and re.search(r"[\s/\[\]]", value):
        table.wrong(key, f'{key} must be an address or a host name, like "0.0.0.0" or "::"')
        return None
    return value


def _path(table: Table, key: str) -> Path | None:
    value = table.text(key)
    return None if value is None else Path(value)


def _networks(table: Table, key: str) -> tuple[Network, ...] | None:
    return table.networks(key)


def _index_tags(table: Table, key: str) -> frozenset[str] | None:
    values = table.strings(key)
    if values is None:
        return None
    for number, value in enumerate(values):
        if len(value) == 1:
            table.wrong_item(
                key,
                number,
                f'{key}: "{value}": single letters can be filtered by anyway; name tags of several',
            )
        elif not _TAG_NAME(value):
            table.wrong_item(key, number, f"{key}: {value!r} cannot be the name of a tag")
        elif value in NEVER_FILTERED:
            table.wrong_item(
                key,
                number,
                f'{key}: "{value}" decides who may read an event; no filter may ask for it',
            )
    return frozenset(values)


def _kinds(table: Table, key: str) -> frozenset[int] | None:
    found = table.kinds(key)
    if found is None:
        return None
    return frozenset(kind for low, high in found.ranges for kind in range(low, high + 1))


_MAX_NAME: Final = 30
"""Characters (N11-04)."""
_TAG_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f#\"]{2,64}").fullmatch
NEVER_FILTERED: Final = frozenset({"enc", "snow:tier", "visibility", "scope"})
"""Tags that packaged read rules ask for (DESIGN §4)."""

SETTINGS: Final[Mapping[str, Mapping[str, Reader]]] = {
    "relay": {
        "name": _name,
        "description": _text,
        "contact": _text,
        "icon": _web_url,
        "banner": _web_url,
        "terms_of_service": _web_url,
        "url": _relay_url,
    },
    "server": {
        "host": _host,
        "port": _whole(0, 65535),
        "tls_cert": _path,
        "tls_key": _path,
        "trusted_proxies": _networks,
        "metrics_from": _networks,
        "compression": _boolean,
    },
    "limits": {
        "max_message_length": _whole(1),
        "max_subscriptions": _whole(1),
        "max_filters": _whole(1),
        "max_limit": _whole(1),
        "default_limit": _whole(1),
        "max_connections": _whole(0),
        "connections_per_address": _whole(0),
        "outbox_bytes": _whole(1),
        "neg_records": _whole(1),
        "neg_sessions": _whole(1),
    },
    "storage": {
        "synchronous": _choice(Synchronous),
        "index_tags": _index_tags,
        "prefix_d_kinds": _kinds,
    },
    "log": {"level": _choice(LogLevel), "format": _choice(LogFormat)},
}
"""Every table and key of rookery.toml, with what reads it."""


def _files_agree(table: Table, found: dict[str, object]) -> None:
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if table.has(one) and not table.has(other):
            table.wrong(one, f"{one} needs {other} beside it")


def _limits_agree(table: Table, found: dict[str, object]) -> None:
    most = found["max_limit"] or LimitsConfig().max_limit
    default = found["default_limit"] or LimitsConfig().default_limit
    assert isinstance(most, int)
    assert isinstance(default, int)
    if default <= most:
        return
    if table.has("default_limit"):
        table.wrong("default_limit", f"default_limit must not be over max_limit, which is {most}")
    else:
        found["default_limit"] = most


AGREEMENTS: Final[Mapping[str, Agreement]] = {
    "server": _files_agree,
    "limits": _limits_agree,
}
"""What the keys of a table ask of each other."""


# -- settings of earlier versions -----------------------------------------------------------------

_FORMER: Final[Mapping[str, Mapping[str, str | None]]] = {
    "storage": {"backend": "sqlite", "dsn": None},
    "bus": {"backend": "local", "url": None},
}
"""By table and key, the only value that was ever accepted; None: there was none."""


def _take_former_settings(top: Table, values: dict[str, object]) -> tuple[str, ...]:
    """Remove them from `values`; one text for each that is ignored."""
    ignored = []
    for name, former in _FORMER.items():
        section = values.get(name)
        if not isinstance(section, dict):
            continue
        table = Table(top.source, (name,), section)
        for key in former.keys() & section.keys():
            value, accepted = section.pop(key), former[key]
            if accepted is None:
                table.not_offered(key)
            elif value == accepted:
                ignored.append(f"[{name}] {key} is no longer a setting and is ignored")
            else:
                table.wrong(
                    key, f"{key} {value!r} is not offered by this version; known: {accepted}"
                )
        if not section and name not in SETTINGS:
            del values[name]
    return tuple(sorted(ignored))


# -- keys that are not ours -----------------------------------------------------------------------

_POLICY_TABLES: Final = (
    "include",
    "actors",
    "groups",
    "auth",
    "search",
    "bans",
    "allow",
    "memory",
    "rule",
    "retention",
    "plugin",
)
_POLICY_LIMITS: Final = (
    "created_at_upper",
    "created_at_lower",
    "max_content_length",
    "max_event_tags",
    "min_pow_difficulty",
)


def _refuse_unknown_tables(top: Table) -> None:
    for key in top.values:
        if key in SETTINGS:
            continue
        if key in _POLICY_TABLES:
            _stranger(top, key, f'"{key}" belongs in policies/*.toml')
        elif key in _POLICY_LIMITS:
            _stranger(top, key, f'"{key}" belongs in [limits] of policies/*.toml')
        elif homes := _homes_of(key):
            _stranger(top, key, f'"{key}" belongs under {" or ".join(homes)}')
        else:
            _stranger(top, key, f'unknown table "{key}"{nearest(key, SETTINGS)}')


def _stranger(table: Table, key: str, text: str) -> None:
    """A fault where the text first speaks of the key: `[rule.match]` alone gives `rule` no line."""
    path = (*table.path, key)
    ok_reply = (known for known in table.source.lines if known[: len(path)] == path)
    table.source.fault(next(ok_reply, path), text)


def _unknown_key(section: str, key: str) -> str:
    if section == "limits" and key in _POLICY_LIMITS:
        return f'"{key}" belongs in [limits] of policies/*.toml'
    close = nearest(key, SETTINGS[section])
    homes = _homes_of(key)
    if homes and "did you mean" not in close:
        return f'"{key}" belongs under {" or ".join(homes)}'
    return f'unknown key "{key}" in [{section}]{close}'


def _homes_of(key: str) -> Sequence[str]:
    return [f"[{name}]" for name, readers in SETTINGS.items() if key in readers]


_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def _syntax_fault(wrong: tomllib.TOMLDecodeError, text: str, path: Path) -> Fault:
    said = str(wrong)
    place = _PLACE.search(said)
    last = text.count("\n") + (not text.endswith("\n"))
    line = int(place[1]) if place and place[1] else last if place else 0
    return Fault(str(path), line, f"not valid TOML: {_PLACE.sub('', said)}")
