"""The TOML of docs/memory.md and docs/versions.md loads, defaults hold, a document is as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import orjson
import pytest

import policies
from policies import load
from relay.config import Config
from relay.groups.group import Groups
from relay.memory.systems import MEMORY_SYSTEMS
from relay.server.http import information
from relay.state import RelayState
from tests import cast
from tests.harness.reference_store import ReferenceStore

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join([(DOCS / name).read_text("utf-8") for name in ("memory.md", "versions.md")])
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
OF_POLICIES = [block for block in BLOCKS if "channels_config" not in block]
DEFAULTS = Path(policies.__file__).parent / "defaults"


def told_settings() -> dict[str, dict[str, object]]:
    """`[memory…]` of the block of settings: table → keys."""
    return tables(tomllib.loads(OF_POLICIES[0])["memory"])


def tables(memory: dict[str, object]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {"": {}}
    for key, value in memory.items():
        if isinstance(value, dict):
            found[key] = value
        else:
            found[""][key] = value
    return found


@pytest.mark.parametrize("block", OF_POLICIES, ids=range(len(OF_POLICIES)))
def test_a_block_of_policies_loads(tmp_path: Path, block: str) -> None:
    (tmp_path / "20-block.toml").write_text(block.replace("npub1…", cast.owner.npub))
    load(tmp_path, MEMORY_SYSTEMS)


def test_what_stands_there_is_the_default() -> None:
    packaged = tables(tomllib.loads((DEFAULTS / "20-memory.toml").read_text("utf-8"))["memory"])
    told = told_settings()
    assert {table: told[table].keys() >= keys.keys() for table, keys in packaged.items()} == (
        dict.fromkeys(packaged, True)
    )
    for table, keys in packaged.items():
        assert {key: told[table][key] for key in keys} == keys


def test_what_the_relay_says_of_memory_is_as_shown(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    state = RelayState(load(tmp_path, MEMORY_SYSTEMS), Groups())
    document = orjson.loads(
        information(Config(), state, cast.owner.pubkey, ReferenceStore.features)
    )
    assert {"memory": document["memory"]} == orjson.loads(shown)
