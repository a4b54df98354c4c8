"""relay/config.py: rookery.toml → Config."""

from __future__ import annotations

from dataclasses import fields, replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from relay.config import (
    SETTINGS,
    Config,
    LogFormat,
    LogLevel,
    Synchronous,
    config_from,
    load_config,
)
from relay.errors import ConfigFaults
from relay.nostr.filters import FilterTerms

FILE = Path("/srv/rookery/rookery.toml")

SETTINGS_AND_DEFAULTS: dict[str, dict[str, object]] = {
    "relay": {
        "name": "Rookery",
        "description": "",
        "contact": "",
        "icon": "",
        "banner": "",
        "terms_of_service": "",
        "url": None,
    },
    "server": {
        "host": "127.0.0.1",
        "port": 7777,
        "tls_cert": None,
        "tls_key": None,
        "trusted_proxies": (),
        "metrics_from": (ip_network("127.0.0.0/8"), ip_network("::1/128")),
        "compression": False,
    },
    "limits": {
        "max_message_length": 524288,
        "max_subscriptions": 200,
        "max_filters": 50,
        "max_live_filters": 1000,
        "max_limit": 50000,
        "default_limit": 50000,
        "max_connections": 5000,
        "connections_per_address": 50,
        "outbox_bytes": 4194304,
        "neg_records": 1000000,
        "neg_sessions": 16,
    },
    "storage": {
        "url": None,
        "password_file": None,
        "replica": None,
        "shared": False,
        "policies": "folder",
        "synchronous": "FULL",
        "index_tags": {"hk"},
        "prefix_d_kinds": {30078, 78},
    },
    "search": {"meaning": False},
    "console": {"enabled": True},
    "log": {"level": "info", "format": "auto"},
}


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigFaults) as raised:
        config_from(text, FILE)
    return [f"{fault.line}: {fault.text}" for fault in raised.value.faults]


# -- what is read ---------------------------------------------------------------------------------


def test_every_setting_has_its_default() -> None:
    config = Config()
    assert {name: set(readers) for name, readers in SETTINGS.items()} == {
        name: set(keys) for name, keys in SETTINGS_AND_DEFAULTS.items()
    }
    for name, keys in SETTINGS_AND_DEFAULTS.items():
        section = getattr(config, name)
        assert {field.name: getattr(section, field.name) for field in fields(section)} == keys


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    assert load_config(tmp_path / "rookery.toml") == Config()


def test_a_database_is_named_with_a_file_for_its_password() -> None:
    config = config_from(
        '[storage]\nurl = "postgresql://rookery@db/rookery"\npassword_file = "secret"', FILE
    )
    assert config.storage.url == "postgresql://rookery@db/rookery"
    assert config.storage.password_file == FILE.parent / "secret"


@pytest.mark.parametrize(
    "url", ["postgresql://rookery:hunter2@db/x", "postgres://db/x?user=rookery&password=hunter2"]
)
def test_a_password_in_the_settings_is_refused_and_not_repeated(url: str) -> None:
    (fault,) = faults(f'[storage]\nurl = "{url}"')
    assert fault == "2: url must not have the password: put it into a file, password_file"


def test_an_empty_file_means_defaults() -> None:
    assert config_from("", FILE) == config_from("[limits]\n[relay]\n", FILE) == Config()


def test_every_key_can_be_set() -> None:
    config = config_from(
        """
        [relay]
        name = "Tea house"
        description = "All about tea."
        contact = "mailto:owner@example.org"
        icon = "https://example.org/icon.png"
        banner = "https://example.org/banner.png"
        terms_of_service = "https://example.org/terms"
        url = "wss://example.org/relay"
        [server]
        host = "::"
        port = 0
        tls_cert = "tls/cert.pem"
        tls_key = "/etc/tls/key.pem"
        trusted_proxies = ["10.0.0.1/32", "fd00::/8"]
        metrics_from = ["10.1.0.0/16"]
        compression = true
        [limits]
        max_message_length = 1
        max_subscriptions = 2
        max_filters = 3
        max_live_filters = 4
        max_limit = 500
        default_limit = 100
        max_connections = 0
        connections_per_address = 7
        outbox_bytes = 8
        neg_records = 9
        neg_sessions = 10
        [storage]
        synchronous = "NORMAL"
        index_tags = ["hk", "title"]
        prefix_d_kinds = [78, "30000-30002"]
        [log]
        level = "debug"
        format = "json"
        """,
        FILE,
    )
    assert config.relay.name == "Tea house"
    assert config.relay.url == "wss://example.org/relay"
    assert (config.server.host, config.server.port) == ("::", 0)
    assert config.server.trusted_proxies == (ip_network("10.0.0.1/32"), ip_network("fd00::/8"))
    assert config.server.metrics_from == (ip_network("10.1.0.0/16"),)
    assert config.server.compression is True
    assert (config.limits.max_message_length, config.limits.neg_sessions) == (1, 10)
    assert config.limits.max_connections == 0
    assert config.storage.synchronous is Synchronous.NORMAL
    assert config.storage.terms == FilterTerms(
        frozenset({"hk", "title"}), frozenset({78, 30000, 30001, 30002})
    )
    assert (config.log.level, config.log.format) == (LogLevel.DEBUG, LogFormat.JSON)


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("[storage]\n[bus]\n", ()),
        (
            '[storage]\nbackend = "sqlite"',
            ("[storage] backend is no longer a setting and is ignored",),
        ),
        (
            '[bus]\nbackend = "local"\n[storage]\nbackend = "sqlite"\nindex_tags = ["hk"]',
            (
                "[bus] backend is no longer a setting and is ignored",
                "[storage] backend is no longer a setting and is ignored",
            ),
        ),
    ],
)
def test_a_file_of_an_earlier_version_that_names_defaults_is_still_read(
    text: str, ignored: tuple[str, ...]
) -> None:
    config = config_from(text, FILE)
    assert config.ignored == ignored
    assert replace(config, ignored=()) == Config()


def test_certificate_paths_are_relative_to_the_file() -> None:
    config = config_from('[server]\ntls_cert = "tls/c.pem"\ntls_key = "/etc/k.pem"\n', FILE)
    assert config.server.tls_cert == Path("/srv/rookery/tls/c.pem")
    assert config.server.tls_key == Path("/etc/k.pem")


def test_a_lower_max_limit_lowers_default_limit() -> None:
    limits = config_from("[limits]\nmax_limit = 500\n", FILE).limits
    assert (limits.max_limit, limits.default_limit) == (500, 500)


def test_lists_may_be_empty() -> None:
    config = config_from(
        "[server]\nmetrics_from = []\n[storage]\nindex_tags = []\nprefix_d_kinds = []\n", FILE
    )
    assert config.server.metrics_from == ()
    assert config.storage.terms == FilterTerms(frozenset(), frozenset())


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "rookery.toml"
    file.write_bytes(b'\xef\xbb\xbf[relay]\r\nname = "Tea"\r\n')
    assert load_config(file).relay.name == "Tea"


# -- what is refused ------------------------------------------------------------------------------

BAD = [
    # keys that are not known
    ("[server]\nprot = 1", '2: unknown key "prot" in [server]; did you mean "port"?'),
    ("[log]\n\nzzz = 1", '3: unknown key "zzz" in [log]; known: format, level'),
    ("[serer]\n", '1: unknown table "serer"; did you mean "server"?'),
    ("[server.tls]\ncert = 1", '1: unknown key "tls" in [server]; did you mean "tls_key"?'),
    # keys in the wrong place
    ("port = 1", '1: "port" belongs under [server]'),
    ("url = 1", '1: "url" belongs under [relay] or [storage]'),
    ('[server]\nlevel = "info"', '2: "level" belongs under [log]'),
    ('include = ["aman-app"]', '1: "include" belongs in policies/*.toml'),
    ("[actors]\nowners = []", '1: "actors" belongs in policies/*.toml'),
    ("\n[[rule]]\nname = 1", '2: "rule" belongs in policies/*.toml'),
    ("\n[memory.aman]\ntie = 1", '2: "memory" belongs in policies/*.toml'),
    ("[limits]\nmax_event_tags = 1", '2: "max_event_tags" belongs in [limits] of policies/*.toml'),
    ("min_pow_difficulty = 1", '1: "min_pow_difficulty" belongs in [limits] of policies/*.toml'),
    # tables
    ("log = 3", "1: log must be a table"),
    ("\n[[log]]", "2: [log] must be a table, not an array of tables"),
    # [relay]
    (f'[relay]\nname = "{"x" * 31}"', "2: name has 31 characters, at most 30 are allowed"),
    ('[relay]\nname = ""', "2: name must not be empty"),
    ("[relay]\ndescription = 1", "2: description must be a string"),
    ('[relay]\nicon = "icon.png"', "2: icon must be a URL that begins with https:// or http://"),
    ('[relay]\nbanner = "ftp://x"', "2: banner must be a URL that begins with https:// or http://"),
    (
        '[relay]\nterms_of_service = "be nice"',
        "2: terms_of_service must be a URL that begins with https:// or http://",
    ),
    *[
        (
            f'[relay]\nurl = "{url}"',
            "2: url must be like wss://relay.example.org or wss://example.org:8443/relay",
        )
        for url in (
            "https://example.org",
            "example.org",
            "wss://",
            "wss://a@b",
            "wss://b?x=1",
            "wss://b#x",
            "wss://b:99999",
        )
    ],
    ("[relay]\nurl = 5", "2: url must be a string"),
    # [server]
    *[
        (f"[server]\nport = {port}", "2: port must be an integer from 0 to 65535")
        for port in ("-1", "65536", "1.5", '"7777"', "true")
    ],
    ('[server]\nhost = ""', "2: host must not be empty"),
    (
        '[server]\nhost = "http://x"',
        '2: host must be an address or a host name, like "0.0.0.0" or "::"',
    ),
    ('[server]\ntls_cert = "c"', "2: tls_cert requires tls_key"),
    ('[server]\ntls_key = "k"', "2: tls_key requires tls_cert"),
    (
        '[server]\ntrusted_proxies = "10.0.0.300"',
        "2: trusted_proxies: '10.0.0.300' is not a CIDR block (like \"10.1.2.0/24\")",
    ),
    (
        '[server]\nmetrics_from = [\n"::1",\n"10.1.2.3/8"]',
        "4: metrics_from: '10.1.2.3/8' is not a CIDR block; did you mean \"10.0.0.0/8\"?",
    ),
    ("[server]\nmetrics_from = 5", "2: metrics_from must be a list of strings"),
    ('[server]\ncompression = "yes"', "2: compression must be true or false"),
    # [limits]
    *[
        (f"[limits]\n{key} = {value}", f"2: {key} must be an integer from 1 to 2147483647")
        for key in (
            "max_message_length",
            "max_subscriptions",
            "max_filters",
            "max_live_filters",
            "max_limit",
            "default_limit",
            "outbox_bytes",
            "neg_records",
            "neg_sessions",
        )
        for value in ("0", "2147483648")
    ],
    *[
        (f"[limits]\n{key} = -1", f"2: {key} must be an integer from 0 to 2147483647")
        for key in ("max_connections", "connections_per_address")
    ],
    (
        "[limits]\nmax_limit = 10\ndefault_limit = 20",
        "3: default_limit must be at most max_limit (10)",
    ),
    (
        "[limits]\ndefault_limit = 50001",
        "2: default_limit must be at most max_limit (50000)",
    ),
    # [storage], [bus], [log]
    (
        '[storage]\nbackend = "postgres"',
        "2: backend 'postgres' is not offered by this version; known: sqlite",
    ),
    (
        '[storage]\nurl = "sqlite:///x"',
        "2: url must be like postgresql://rookery@db.example.org/rookery",
    ),
    ('[storage]\npassword_file = "x"', "2: password_file requires url"),
    ('[storage]\nreplica = "postgresql://db/x"', "2: replica requires url"),
    ("[storage]\nshared = true", "2: shared requires url"),
    (
        '[storage]\npolicies = "database"',
        '2: policies = "database" requires url: with SQLite the folder policies/ is the place',
    ),
    (
        '[storage]\nurl = "postgresql://db/x"\nsynchronous = "FULL"',
        "3: synchronous is of SQLite: PostgreSQL's is synchronous_commit",
    ),
    (
        '[storage]\nurl = "postgresql://db/x"\n[search]\nmeaning = true',
        "4: meaning is not offered with [storage] url",
    ),
    ("[storage]\nbackend = 1", "2: backend 1 is not offered by this version; known: sqlite"),
    ('[storage]\ndsn = "x"', '2: "dsn" in [storage] is not offered by this version'),
    ('[storage]\nsynchronous = "OFF"', "2: synchronous cannot be 'OFF'; known: FULL, NORMAL"),
    ("[storage]\nindex_tags = [1]", "2: index_tags must be a list of strings"),
    (
        '[storage]\nindex_tags = ["hk", "e"]',
        '2: index_tags: "e": single-letter tags are always indexed; name longer ones',
    ),
    (
        '[storage]\nindex_tags = ["two words"]',
        "2: index_tags: 'two words' is not a valid tag name",
    ),
    ('[storage]\nindex_tags = [""]', "2: index_tags: '' is not a valid tag name"),
    (
        '[storage]\nindex_tags = ["enc"]',
        '2: index_tags: "enc" decides who may read an event; filters may not name it',
    ),
    ('[bus]\nbackend = "nats"', "2: backend 'nats' is not offered by this version; known: local"),
    ('[bus]\nurl = "nats://x"', '2: "url" in [bus] is not offered by this version'),
    (
        "[bus]\nsize = 1",
        '1: unknown table "bus"; known: console, limits, log, relay, search, server, storage',
    ),
    ('[log]\nlevel = "warn"', "2: level cannot be 'warn'; did you mean \"warning\"?"),
    ('[log]\nformat = "xml"', "2: format cannot be 'xml'; known: auto, json, text"),
    # what is no TOML
    ("[relay]\n" + "a." * 20_000 + "a = 1\n", "2: a key has more than 32 parts with dots between"),
    ("[" + '"a" . ' * 20_000 + "a]\n", "1: a key has more than 32 parts with dots between"),
    ("[relay]\nname = \n", '2: not valid TOML: the value is missing, or a text without "quotes"'),
    ("[relay]\n[relay]\n", "2: not valid TOML: this table is written twice; put its keys together"),
    ("\n\n[relay", '3: not valid TOML: the name of a table in "[" needs "]" after it'),
    (
        "[relay]\nname",
        '2: not valid TOML: a line needs the form: key = value, or [table]; a "#" begins a comment',
    ),
    ('[relay]\nname = "a\n', "2: not valid TOML: a text in quotes does not end on its line"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_fault_has_its_line_and_a_hint(text: str, said: str) -> None:
    assert faults(text) == [said]


def test_a_kind_out_of_range_is_a_fault() -> None:
    (said,) = faults("[storage]\nprefix_d_kinds = [78, 70000]")
    assert said.startswith("2: prefix_d_kinds: 70000 is not a kind")


def test_all_faults_are_reported_in_order_of_lines() -> None:
    assert faults("[log]\nlevel = 1\n[relay]\nname = 2\nnmae = 3\n[actors]\n") == [
        "2: level cannot be 1; known: debug, error, info, warning",
        "4: name must be a string",
        '5: unknown key "nmae" in [relay]; did you mean "name"?',
        '6: "actors" belongs in policies/*.toml',
    ]


def test_a_fault_reads_as_file_line_text() -> None:
    with pytest.raises(ConfigFaults, match=r"^/srv/rookery/rookery\.toml:2: port must be"):
        config_from("[server]\nport = -1\n", FILE)


def test_text_that_is_not_utf8_is_a_fault_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rookery.toml"
    file.write_bytes(b'[relay]\nname = "T\xe9"\n')
    with pytest.raises(ConfigFaults, match=r"rookery\.toml:2: is not UTF-8 text"):
        load_config(file)


def test_a_folder_in_the_place_of_the_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigFaults, match="Is a directory"):
        load_config(tmp_path)
