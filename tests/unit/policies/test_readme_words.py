"""Every word of the language has its line in policies/README.md, and no line is of another word."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from policies.cases import CASE_KEYS, EVENT_KEYS, GIVEN_KEYS
from policies.conditions import MATCH_KEYS
from policies.definitions import RETENTION_KEYS, RULE_KEYS
from policies.load import DEFAULTS, load
from policies.settings import (
    AnonymousRead,
    AuthWrites,
    SchemaMode,
    TsRule,
    Vouchers,
)
from policies.tables import settings_with
from relay.access.management import BannedAuthorRows
from relay.access.quotas import Per
from relay.errors import ConfigFaults
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.context import Joins
from relay.lifecycle.retention import Scope
from relay.lifecycle.rows import Keep, Tie, UpTo
from relay.memory.systems import MEMORY_SYSTEMS
from tests.unit.policies import readme

if TYPE_CHECKING:
    from enum import Enum
    from pathlib import Path


def _words(title: str, heading: str = "") -> list[str]:
    return [key for table, key, _ in readme.rows(title, heading) if not table]


def test_every_who_word_has_a_line() -> None:
    words = [word.value for word in Who]
    assert sorted(_words("The language", "Who")) == sorted([*words, "tag:e"])


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("`match` and `except`", MATCH_KEYS),
        ("`[[rule]]`", RULE_KEYS),
        ("`[[retention]]`", RETENTION_KEYS),
    ],
)
def test_every_key_has_a_line(heading: str, keys: tuple[str, ...]) -> None:
    assert sorted(_words("The language", heading)) == sorted(keys)


def test_every_key_of_a_case_has_a_line() -> None:
    told = [(table, key) for table, key, _ in readme.rows("Cases")]
    keys = {"case": CASE_KEYS, "event": EVENT_KEYS, "given": GIVEN_KEYS}
    assert sorted(told) == sorted((part, key) for part in keys for key in keys[part])


def test_every_link_within_the_page_leads_somewhere() -> None:
    headings = re.findall(r"^##+ (.+)$", readme.TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", readme.TEXT)) - anchors == set()


def test_every_memory_system_is_named() -> None:
    assert [system for system in MEMORY_SYSTEMS.by_name if f"`{system}`" not in readme.TEXT] == []


@pytest.mark.parametrize(
    "choices",
    [
        AuthWrites,
        SchemaMode,
        Tie,
        TsRule,
        AnonymousRead,
        Vouchers,
        BannedAuthorRows,
        Joins,
        Keep,
        Per,
        Flag,
        Scope,
        UpTo,
    ],
)
def test_every_word_to_choose_from_is_named(choices: type[Enum]) -> None:
    words = [word.value for word in choices]
    assert [word for word in words if not re.search(rf'[`"]{word}["`]', readme.TEXT)] == []


def _settings() -> list[str]:
    return ["include"] + [
        f"[{table}] {key}" for table, keys in settings_with(MEMORY_SYSTEMS).items() for key in keys
    ]


def test_every_setting_has_a_line() -> None:
    assert sorted(_words("Settings")) == sorted(_settings())


def test_every_default_is_what_the_packaged_files_say() -> None:
    packaged: dict[str, object] = {}
    for path in sorted(DEFAULTS.glob("*.toml")):
        _flattened(tomllib.loads(path.read_text("utf-8")), "", packaged)
    told = {
        key: default and tomllib.loads(f"value = {default}")["value"]
        for _, key, default in readme.rows("Settings")
    }
    assert told == {key: packaged.get(key) for key in _settings()}


def _flattened(values: dict[str, object], table: str, into: dict[str, object]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            _flattened(value, f"{table}.{key}".strip("."), into)
        else:
            into[f"[{table}] {key}"] = value


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, key, _ in readme.rows("The language") if table]
)
def test_the_tables_of_a_rule_have_the_keys_of_the_page(
    tmp_path: Path, table: str, key: str
) -> None:
    (tmp_path / "20-mine.toml").write_text(f'[[rule]]\nname = "a"\n{table} = {{ zzzz = 1 }}\n')
    with pytest.raises(ConfigFaults) as raised:
        load(tmp_path, MEMORY_SYSTEMS)
    assert f'unknown key "zzzz" in {table}' in str(raised.value)
