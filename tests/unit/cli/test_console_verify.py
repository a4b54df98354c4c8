"""relay/cli/console_verify.py: `rookery verify` as a process for the console."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from relay.cli.console_verify import VerifyRun
from relay.cli.data_folder import LocalFolder
from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import Refused
from relay.facts import Origin
from tests.cast import owner
from tests.harness.relay_program import outputs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

NOW = 1_700_000_000


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    code, _, err = await outputs("init", str(made), "--owner", owner.pubkey)
    assert code == 0, err
    async with run_services(made, load_config(made / "rookery.toml")) as services:
        note = owner.sign(1, [], "tea is ready", NOW)
        assert await LocalFolder(services).submit([note], Origin.IMPORT) == [(True, "")]
    return made


async def test_it_says_that_nothing_is_wrong_and_what_is(folder: Path) -> None:
    async with VerifyRun(folder, lambda: NOW) as run:
        assert run.state == {}
        run.start()
        with pytest.raises(Refused, match="already running"):
            run.start()
        found = await run.ended()
        assert (found["failure"], found["report"]["findings"]) == ("", [])
        assert (found["began_at"], found["ended_at"]) == (NOW, NOW)
        with sqlite3.connect(folder / "rookery.db") as db:
            db.execute(
                "UPDATE events SET kind = kind + 1 WHERE seq = (SELECT max(seq) FROM events)"
            )
        db.close()
        run.start()
        found = await run.ended()
        assert found["report"]["findings"]
        assert found["done"] == found["total"] == found["report"]["events"]


async def test_a_failure_is_told(tmp_path: Path) -> None:
    async with VerifyRun(tmp_path / "nowhere", lambda: NOW) as run:
        run.start()
        found = await run.ended()
        assert found["report"] is None
        assert "nowhere" in found["failure"]


async def test_it_is_stopped_after_its_time_and_at_the_end(folder: Path) -> None:
    async with VerifyRun(folder, lambda: NOW, most_s=0.0) as run:
        run.start()
        assert "stopped after" in (await run.ended())["failure"]
    async with VerifyRun(folder, lambda: NOW) as run:
        run.start()
    assert run.state["report"] is None
