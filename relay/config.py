"""rookery.toml → Config: the settings of the server, read once at start.

Invariants: frozen; a module gets only its own section. A key that is unknown, in the wrong table or
for a policy file is a fault with its line; all faults are reported at once. A reader returns the
value, or None when the key is missing or wrong (then it recorded a fault).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from relay.access.read_rules import RULE_TAGS
from relay.nostr.filters import FilterTerms
from relay.nostr.nip42 import relay_address
from relay.toml.fields import Source, Table, nearest
from relay.toml.lines import lines_of
from relay.toml.parsing import text_of, values_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Reader = Callable[[Table, str], object]
    Agreement = Callable[[Table, dict[str, object]], None]

S = TypeVar("S")
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class Synchronous(StrEnum):
    """`[storage] synchronous` of SQLite. NORMAL may lose acknowledged events at a power loss, and
    `serve` logs a warning."""

    FULL = "FULL"
    NORMAL = "NORMAL"


class PolicySource(StrEnum):
    """`[storage] policies`: where a relay reads its policies."""

    FOLDER = "folder"
    """`policies/` of its data folder."""
    DATABASE = "database"
    """The newest version that `rookery policy push` has stored, for all relays on the database."""


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
    """`[relay]`: fields of NIP-11; NIP-86 calls may override them."""

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
    """permessage-deflate; 106 KiB per connection."""


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """`[limits]` of rookery.toml: per connection. Limits of an event are in the policy files."""

    max_message_length: int = 524_288
    """Bytes per frame."""
    max_subscriptions: int = 200
    """Per connection."""
    max_filters: int = 50
    """Per REQ or COUNT."""
    max_live_filters: int = 1000
    """Of all open subscriptions of a connection."""
    max_limit: int = 50_000
    """Rows per filter."""
    default_limit: int = 50_000
    """Rows of a filter without `limit`; at most `max_limit`."""
    max_connections: int = 5000
    """0: no limit."""
    connections_per_address: int = 50
    """Of one IPv4 address or IPv6 /64, except of this machine. 0: no limit."""
    outbox_bytes: int = 4_194_304
    """Per connection."""
    neg_records: int = 1_000_000
    """Records per negentropy session."""
    neg_sessions: int = 16
    """Per connection."""


@dataclass(frozen=True, slots=True)
class StorageConfig:
    url: str | None = None
    """`postgresql://…` without a password; None: SQLite, in the data folder."""
    password_file: Path | None = None
    """Of the database. None: from the environment (PGPASSWORD, PGPASSFILE), or not needed."""
    replica: str | None = None
    """`postgresql://…` of a replica, for reads of clients; the same password."""
    shared: bool = False
    """Other relays with the same key and policies use the same database."""
    policies: PolicySource = PolicySource.FOLDER
    synchronous: Synchronous = Synchronous.FULL
    index_tags: frozenset[str] = FilterTerms().index_tags
    prefix_d_kinds: frozenset[int] = FilterTerms().prefix_d_kinds

    @property
    def terms(self) -> FilterTerms:
        """What a filter may name."""
        return FilterTerms(self.index_tags, self.prefix_d_kinds)


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    enabled: bool = True
    """Pages for browsers on the relay's address."""


@dataclass(frozen=True, slots=True)
class SearchConfig:
    meaning: bool = False
    """Rank by meaning too, where any word suffices; needs the extra `semantic`."""


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
    search: SearchConfig = field(default_factory=SearchConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    log: LogConfig = field(default_factory=LogConfig)
    ignored: tuple[str, ...] = ()
    """One text for each setting of an earlier version that the file still names."""


def load_config(path: Path) -> Config:
    """The defaults when the file does not exist. Raises ConfigFaults with all faults."""
    try:
        return config_from(text_of(path), path)
    except FileNotFoundError:
        return Config()


def config_from(text: str, path: Path) -> Config:
    """`path`: the file of this text, for faults and relative paths. Raises ConfigFaults."""
    values = values_in(text, str(path))
    source = Source(str(path), lines_of(text), [])
    top = Table(source, (), values)
    ignored = _take_former_settings(top, values)
    _refuse_unknown_tables(top)
    config = Config(
        relay=_section(top, "relay", RelayConfig),
        server=_resolve_paths(_section(top, "server", ServerConfig), path.parent),
        limits=_section(top, "limits", LimitsConfig),
        storage=_resolve_password(_section(top, "storage", StorageConfig), path.parent),
        search=_section(top, "search", SearchConfig),
        console=_section(top, "console", ConsoleConfig),
        log=_section(top, "log", LogConfig),
        ignored=ignored,
    )
    if config.storage.url is not None and config.search.meaning:
        source.fault(("search", "meaning"), "meaning is not offered with [storage] url")
    source.check()
    return config


def with_storage(text: str, wanted: Mapping[str, str], foreign: str) -> str:
    """The text of a rookery.toml with these keys of `[storage]`; `foreign`: one that the other
    store does not have."""
    lines, at = text.split("\n"), lines_of(text)
    new = [f"{key} = {json.dumps(value)}" for key, value in wanted.items()]
    header = at.get(("storage",))
    if header is None:
        return "\n".join([text.rstrip("\n"), "", "[storage]", *new, ""]) if new else text
    gone = {at.get(("storage", key)) for key in ("url", "password_file", "replica", foreign)}
    kept = [line for number, line in enumerate(lines[:header], 1) if number not in gone]
    rest = [line for number, line in enumerate(lines[header:], header + 1) if number not in gone]
    return "\n".join([*kept, *new, *rest])


def _section(top: Table, name: str, kind: Callable[..., S]) -> S:
    if isinstance(top.values.get(name), list):
        _misplaced(top, name, f"[{name}] must be a table, not an array of tables")
        return kind()
    table = top.table(name)
    if table is None:
        return kind()
    readers = SETTINGS[name]
    for key in table.values:
        if key not in readers:
            _misplaced(table, key, _unknown_key(name, key))
    found = {key: reader(table, key) for key, reader in readers.items()}
    if name in AGREEMENTS:
        AGREEMENTS[name](table, found)
    return kind(**{key: value for key, value in found.items() if value is not None})


def _resolve_paths(server: ServerConfig, folder: Path) -> ServerConfig:
    """Paths are relative to rookery.toml, not to the working directory."""
    # Not checked for existence: export and doctor do not need them, TLS reports it itself.
    if server.tls_cert is None or server.tls_key is None:
        return server
    return replace(server, tls_cert=folder / server.tls_cert, tls_key=folder / server.tls_key)


def _resolve_password(storage: StorageConfig, folder: Path) -> StorageConfig:
    if storage.password_file is None:
        return storage
    return replace(storage, password_file=folder / storage.password_file)


# -- values ---------------------------------------------------------------------------------------


def _integer(minimum: int, maximum: int = 2**31 - 1) -> Reader:
    def read(table: Table, key: str) -> int | None:
        value = table.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        if table.has(key):
            table.wrong(key, f"{key} must be an integer from {minimum} to {maximum}")
        return None

    return read


def _boolean(table: Table, key: str) -> bool | None:
    return table.boolean(key)


def _choice(words: type[StrEnum]) -> Reader:
    def read(table: Table, key: str) -> StrEnum | None:
        return table.choice(key, words)

    return read


def _text(table: Table, key: str) -> str | None:
    """May be empty: the field is then left out of NIP-11."""
    value = table.values.get(key)
    if isinstance(value, str):
        return value
    if table.has(key):
        table.wrong(key, f"{key} must be a string")
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


def _database_url(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is None:
        return None
    try:
        found = urlsplit(value)
        has_password = found.password is not None or "password" in parse_qs(found.query)
    except ValueError:
        found, has_password = urlsplit(""), False
    if has_password:  # the fault must not repeat it
        table.wrong(key, f"{key} must not have the password: put it into a file, password_file")
    elif found.scheme not in ("postgresql", "postgres"):
        table.wrong(key, f"{key} must be like postgresql://rookery@db.example.org/rookery")
    else:
        return value
    return None


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
                f'{key}: "{value}": single-letter tags are always indexed; name longer ones',
            )
        elif not _TAG_NAME(value):
            table.wrong_item(key, number, f"{key}: {value!r} is not a valid tag name")
        elif value in RULE_TAGS:
            table.wrong_item(
                key,
                number,
                f'{key}: "{value}" decides who may read an event; filters may not name it',
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
        "port": _integer(0, 65535),
        "tls_cert": _path,
        "tls_key": _path,
        "trusted_proxies": _networks,
        "metrics_from": _networks,
        "compression": _boolean,
    },
    "limits": {
        "max_message_length": _integer(1),
        "max_subscriptions": _integer(1),
        "max_filters": _integer(1),
        "max_live_filters": _integer(1),
        "max_limit": _integer(1),
        "default_limit": _integer(1),
        "max_connections": _integer(0),
        "connections_per_address": _integer(0),
        "outbox_bytes": _integer(1),
        "neg_records": _integer(1),
        "neg_sessions": _integer(1),
    },
    "storage": {
        "url": _database_url,
        "password_file": _path,
        "replica": _database_url,
        "shared": _boolean,
        "policies": _choice(PolicySource),
        "synchronous": _choice(Synchronous),
        "index_tags": _index_tags,
        "prefix_d_kinds": _kinds,
    },
    "search": {"meaning": _boolean},
    "console": {"enabled": _boolean},
    "log": {"level": _choice(LogLevel), "format": _choice(LogFormat)},
}
"""Every table and key of rookery.toml, with its reader."""


def _files_agree(table: Table, found: dict[str, object]) -> None:
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if table.has(one) and not table.has(other):
            table.wrong(one, f"{one} requires {other}")


def _limits_agree(table: Table, found: dict[str, object]) -> None:
    max_limit = found["max_limit"] or LimitsConfig().max_limit
    default = found["default_limit"] or LimitsConfig().default_limit
    assert isinstance(max_limit, int)
    assert isinstance(default, int)
    if default <= max_limit:
        return
    if table.has("default_limit"):
        table.wrong("default_limit", f"default_limit must be at most max_limit ({max_limit})")
    else:
        found["default_limit"] = max_limit


def _stores_agree(table: Table, found: dict[str, object]) -> None:
    for key in ("password_file", "replica"):
        if table.has(key) and not table.has("url"):
            table.wrong(key, f"{key} requires url")
    if found["shared"] and not table.has("url"):
        table.wrong("shared", "shared requires url")
    if found["policies"] is PolicySource.DATABASE and not table.has("url"):
        table.wrong(
            "policies",
            'policies = "database" requires url: with SQLite the folder policies/ is the place',
        )
    if table.has("synchronous") and table.has("url"):
        table.wrong("synchronous", "synchronous is of SQLite: PostgreSQL's is synchronous_commit")


AGREEMENTS: Final[Mapping[str, Agreement]] = {
    "server": _files_agree,
    "storage": _stores_agree,
    "limits": _limits_agree,
}
"""Checks across the keys of a table."""


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


# -- unknown and misplaced keys --------------------------------------------------------------------

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
            _misplaced(top, key, f'"{key}" belongs in policies/*.toml')
        elif key in _POLICY_LIMITS:
            _misplaced(top, key, f'"{key}" belongs in [limits] of policies/*.toml')
        elif tables := _tables_with(key):
            _misplaced(top, key, f'"{key}" belongs under {" or ".join(tables)}')
        else:
            _misplaced(top, key, f'unknown table "{key}"{nearest(key, SETTINGS)}')


def _misplaced(table: Table, key: str, text: str) -> None:
    """A fault at the first line below the key: `[rule.match]` alone gives `rule` no line."""
    path = (*table.path, key)
    below = (known for known in table.source.lines if known[: len(path)] == path)
    table.source.fault(next(below, path), text)


def _unknown_key(section: str, key: str) -> str:
    if section == "limits" and key in _POLICY_LIMITS:
        return f'"{key}" belongs in [limits] of policies/*.toml'
    close = nearest(key, SETTINGS[section])
    tables = _tables_with(key)
    if tables and "did you mean" not in close:
        return f'"{key}" belongs under {" or ".join(tables)}'
    return f'unknown key "{key}" in [{section}]{close}'


def _tables_with(key: str) -> Sequence[str]:
    return [f"[{name}]" for name, readers in SETTINGS.items() if key in readers]
