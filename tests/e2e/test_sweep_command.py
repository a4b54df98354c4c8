"""`rookery policy sweep` and `rookery stats`, on a folder at rest and on one where a relay runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from relay.nostr.keys import npub
from tests import cast
from tests.harness.relay_program import Rookery, command, connected, until

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400
RULE = """
[[retention]]
name = "notes"
match = { kinds = [1] }
days = 10
"""


async def asked(*args: str) -> Any:
    code, text = await command(*args, "--json")
    assert code == 0, text
    return json.loads(text)


async def test_an_admin_sees_what_would_go_and_lets_it_go(tmp_path: Path) -> None:
    now = int(time.time())
    old = [cast.robot.sign(1, [], f"{number}", now - 20 * DAY_S) for number in range(600)]
    young = cast.robot.sign(1, [], "young", now)
    lines = tmp_path / "events.jsonl"
    lines.write_bytes(b"\n".join(event.raw for event in [*old, young]))
    folder = tmp_path / "data"
    data = ("--data", str(folder))
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        code, text = await command("import", str(lines), *data)
        assert code == 0, text
        assert (await asked("policy", "sweep", *data))["events"] == 0
        (folder / "policies" / "20-own.toml").write_text(RULE)
        trial = await asked("policy", "sweep", "--dry-run", *data)
        size = sum(len(event.raw) for event in old)
        assert trial == {
            "dry_run": True,
            "events": 600,
            "bytes": size,
            "lines": [
                {
                    "rule": "notes",
                    "place": f"{folder}/policies/20-own.toml:2",
                    "cause": "older than 10 days",
                    "kind": 1,
                    "held": None,
                    "events": 600,
                    "bytes": size,
                }
            ],
        }
        later = await asked("policy", "sweep", "--dry-run", "--days", "11", *data)
        assert later["events"] == 601
        code, text = await command("policy", "sweep", "--days", "11", *data)
        assert code == 2
        assert "nothing is removed before its time" in text
        stats = await asked("stats", *data)
        assert (stats["events"], stats["bytes"]) == (601, size + len(young.raw))
        assert stats["author"][0]["author"] == cast.robot.pubkey
        assert stats["files"]["rookery.db"] > 0
        code, text = await command("policy", "sweep", *data)
        assert code == 0
        assert "older than 10 days" in text
        assert f"600 events, {size} bytes removed" in text
        assert (await asked("stats", *data))["kind"] == [
            {"kind": 1, "events": 1, "bytes": len(young.raw)}
        ]


async def test_a_running_relay_sweeps_when_it_is_asked_and_by_itself(tmp_path: Path) -> None:
    now = int(time.time())
    folder = tmp_path / "data"
    data = ("--data", str(folder))
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        (folder / "policies" / "20-own.toml").write_text(RULE)
        await rookery.start()
        async with connected(rookery.url) as wire:
            for number in range(3):
                note = cast.robot.sign(1, [], f"{number}", now - 20 * DAY_S)
                assert await wire.publish(note) == (True, "")
            trial = await asked("policy", "sweep", "--dry-run", *data)
            assert trial["events"] in (3, 0)  # the relay's own sweep may have been faster
            await asked("policy", "sweep", *data)
            assert await wire.query({"kinds": [1]}) == []
            again = cast.robot.sign(1, [], "again", now - 20 * DAY_S)
            assert await wire.publish(again) == (True, "")
            fresh = cast.robot.sign(1, [], "fresh", now - 9 * DAY_S)
            assert await wire.publish(fresh) == (True, "")
            (folder / "policies" / "20-own.toml").write_text("nonsense")
            code, text = await command("policy", "sweep", "--dry-run", "--days", "2", *data)
            assert (code, "older than 10 days" in text) == (0, True)
            assert "the rules that the running relay goes on with" in text
            (folder / "policies" / "20-own.toml").write_text(RULE)
            code, text = await command("stats", *data)
            assert code == 0
            assert npub(cast.robot.pubkey) in text
            assert "1 (note)" in text
        await rookery.stop()
        await rookery.start()
        async with connected(rookery.url) as wire, until("the relay swept") as tries:
            async for _ in tries:
                if len(await wire.query({"kinds": [1]})) == 1:  # the fresh one
                    break
        assert await rookery.stop() == 0
