"""relay/cli/services.py: a start while a policy file is being written."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from policies import PolicySet
from relay.cli import services
from relay.cli.services import run_services
from relay.config import load_config
from tests.harness.stocked_folder import stocked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")

HALF = '[[rule]]\nname = "one"\nmatch = { kinds = [4444] }\nwrite = ["owner"]\n'
REST = '[[rule]]\nname = "two"\nmatch = { kinds = [4445] }\nwrite = ["owner"]\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    stocked(folder, 1)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


async def rules(folder: Path) -> str:
    """The write rules in force."""
    async with run_services(folder, load_config(folder / "rookery.toml")) as started:
        policy = started.state.policy
        assert isinstance(policy, PolicySet)
        return str(policy.write_rules)


async def test_a_start_waits_until_a_policy_file_is_written(folder: Path) -> None:
    """It took the half that was there: what the other rules refuse was accepted."""
    with (folder / "policies" / "zz.toml").open("w") as file:
        file.write(HALF)
        file.flush()
        start = asyncio.create_task(rules(folder))
        await asyncio.sleep(2 * services._LOOK_S)
        assert not start.done()
        file.write(REST)
    found = await start
    assert "4444" in found
    assert "4445" in found


async def test_a_start_does_not_wait_for_ever_and_says_which_file_it_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "_WRITTEN_S", 0.0)
    with (folder / "policies" / "zz.toml").open("w") as file:
        file.write(HALF)
        file.flush()
        assert "4444" in await rules(folder)
    assert "zz.toml is open for writing and may be half written" in caplog.text
