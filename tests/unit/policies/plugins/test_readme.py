"""policies/README.md, "Plug-ins": both examples as they are written, and every key in the table."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from policies.plugins import Chain
from policies.plugins.definition import DEADLINE_MS, PLUGIN_KEYS
from relay.facts import Arrival, Origin
from tests.cast import alice
from tests.harness.folders import loaded
from tests.unit.policies import readme
from tests.unit.policies.plugins.stage import ARRIVAL, NOON, note, said, words

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.process

SECTION = readme.section("Plug-ins")
[PROCESS, FUNCTION] = re.findall(r"^```toml\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
[SCRIPT, MODULE] = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
[ENTRY_POINTS] = re.findall(r"^    \[project\.entry-points\.\"(.*?)\n\n", SECTION, re.M | re.S)


async def test_the_process_decides_as_it_says(tmp_path: Path) -> None:
    script = tmp_path / "allow.py"
    script.write_text(SCRIPT.replace("/usr/bin/env python3", sys.executable))
    script.chmod(0o755)
    (tmp_path / "friends.txt").write_text(f"{alice.pubkey}\n")
    async with Chain(loaded(tmp_path, a=PROCESS).plugins) as chain:
        assert await said(chain, "hello") == [""]
    (tmp_path / "friends.txt").write_text("")
    async with Chain(loaded(tmp_path, a=PROCESS).plugins) as chain:
        assert await said(chain, "hello") == ["restricted: friends only"]


async def test_the_function_decides_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, line = ENTRY_POINTS.replace('"]', "").split("\n")
    info = tmp_path / "site" / "my_rules-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.strip().replace(chr(34), '')}\n")
    (tmp_path / "site" / "my_rules.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    try:
        async with Chain(loaded(tmp_path, a=FUNCTION).plugins) as chain:
            assert await said(chain, "hello", "https://x") == [
                "",
                "restricted: log in to post links",
            ]
            logged_in = Arrival(NOON, Origin.WIRE, frozenset({alice.pubkey}), ARRIVAL.address)
            assert words(await chain.objections([(note("https://x"), logged_in)])) == [""]
    finally:
        sys.modules.pop("my_rules", None)


def test_every_key_and_the_default_stand_in_the_table() -> None:
    [table] = re.findall(r"^\| key of `\[\[plugin\]\]`.*?\n\n", SECTION, re.MULTILINE | re.DOTALL)
    keys = [
        key
        for row in table.splitlines()[2:]
        if row
        for key in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert keys == list(PLUGIN_KEYS)
    assert f"| `deadline_ms` | {DEADLINE_MS} |" in table
