"""`rookery status`, `top` and `log`: what a relay does, while it runs and when it is stopped."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cast import alice, owner, stranger
from tests.harness.relay_program import Rookery, command, connected, outputs, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def status(rookery: Rookery) -> dict[str, Any]:
    code, out, err = await outputs("status", "--data", str(rookery.folder), "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


async def test_the_status_of_a_relay_that_runs(rookery: Rookery) -> None:
    now = int(time.time())
    async with connected(rookery.url) as one, connected(rookery.url) as other:
        await other.log_in(alice, rookery.url, now)
        for number in range(300):
            assert (await one.publish(owner.sign(1, [], f"note {number}", now)))[0] is True
        assert (await one.publish(stranger.sign(1, [], "hidden words", now)))[0] is False
        for _ in range(20):
            await one.query({"kinds": [1, 7], "#t": ["hidden", "tag"], "limit": 500})
            await one.query({"kinds": [1], "limit": 500})
        found = await status(rookery)
        code, out, _ = await outputs("status", "--data", str(rookery.folder))
    assert found["running"] is True
    assert found["url"] == rookery.url
    assert found["numbers"]["connections"] == 2
    assert found["numbers"]["connections_logged_in"] == 1
    assert found["refusals"] == {"known people write": 1}
    assert found["rates"]["events"] == 0
    assert found["disk"]["free_bytes"] > 0
    assert found["disk"]["bytes_per_day"] > 0
    shapes = [read["shape"] for read in found["reads"]]
    assert "REQ kinds 1 limit <=1000" in shapes
    page = out.decode()
    assert code == 0
    assert "connections 2 (1 logged in)" in page
    assert "known people write" in page
    assert "kinds 1 limit <=1000" in page
    assert "hidden" not in page + json.dumps(found)


async def test_the_status_of_a_stopped_relay_is_read_from_its_files(rookery: Rookery) -> None:
    assert await rookery.stop() == 0
    found = await status(rookery)
    assert found["running"] is False
    assert found["disk"]["store_bytes"] > 0
    assert found["disk"]["backup_at"] is None
    code, text = await command(
        "backup", str(rookery.folder.parent / "b.tar.gz"), "--data", str(rookery.folder)
    )
    assert code == 0, text
    assert abs((await status(rookery))["disk"]["backup_at"] - time.time()) < 60
    code, text = await command("top", "--data", str(rookery.folder))
    assert code == 0
    assert f"no relay runs on {rookery.folder}" in text
    assert "last backup: just now" in text


async def test_what_is_no_data_folder_has_no_status(tmp_path: Path) -> None:
    code, text = await command("status", "--data", str(tmp_path))
    assert code == 1
    assert "is no data folder: name" in text


async def test_the_doctor_says_nothing_of_a_relay_that_runs_and_what_it_reports(
    rookery: Rookery,
) -> None:
    assert await command("doctor", "--data", str(rookery.folder)) == (
        0,
        f"ok: nothing wrong with {rookery.folder}\n",
    )
    (rookery.folder / "policies" / "20-own.toml").write_text("[nothing]\n")
    rookery.send_signal(signal.SIGHUP)
    async with until("the relay has tried to reload") as tries:
        async for _ in tries:
            if (await status(rookery))["problems"]:
                break
    code, out, _ = await outputs("doctor", "--data", str(rookery.folder), "--json")
    (finding,) = json.loads(out)["findings"]
    assert code == 1
    assert f"{rookery.folder}/policies/20-own.toml" in finding["text"], "told once, with its file"
    (rookery.folder / "policies" / "20-own.toml").write_text("")
    code, out, _ = await outputs("doctor", "--data", str(rookery.folder), "--json")
    (finding,) = json.loads(out)["findings"]
    assert "the running relay says: policies: " in finding["text"], "until it has reloaded them"


async def test_the_log_has_lines_and_refusals_by_level_author_and_group(rookery: Rookery) -> None:
    now = int(time.time())
    async with connected(rookery.url) as wire:
        refused = stranger.sign(1, [["h", "tea"]], "hidden words", now)
        assert (await wire.publish(refused))[0] is False
        assert (await wire.publish(alice.sign(1, [], "hidden words", now)))[0] is False
    (rookery.folder / "policies" / "20-own.toml").write_text("[nothing]\n")
    rookery.send_signal(signal.SIGHUP)
    async with until("the relay has tried to reload") as tries:
        async for _ in tries:
            if (await status(rookery))["problems"]:
                break

    async def told(*args: str) -> list[dict[str, Any]]:
        code, out, err = await outputs("log", "--data", str(rookery.folder), "--json", *args)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    assert [each["is"] for each in await told()].count("refusal") == 2
    errors = await told("--level", "error")
    assert [each["level"] for each in errors] == ["error"]
    assert "policies not reloaded" in errors[0]["text"]
    (of_author,) = await told("--author", stranger.npub)
    assert (of_author["event_id"], of_author["group"]) == (refused.id, "tea")
    assert of_author["text"]
    assert of_author["request"] == f"{of_author['connection']}.1"
    profile = rookery.folder.parent / "profile.jsonl"
    profile.write_bytes(stranger.sign(0, [], '{"name": "Vera"}', now).raw)
    await command("import", str(profile), "--trust", "--data", str(rookery.folder))
    by_name = ("log", "--json", "--data", str(rookery.folder), "--author")
    code, out, err = await outputs(*by_name, "vera")
    assert (code, json.loads(out), err) == (0, of_author, f"vera is {stranger.npub}\n")
    code, _, err = await outputs(*by_name, "mallory")
    assert code == 1
    assert "nobody is named 'mallory' here" in err
    assert await told("--group", "tea") == [of_author]
    assert await told("--group", "coffee") == []
    code, text = await command("log", "--data", str(rookery.folder))
    assert code == 0
    assert "kind 1  group tea  connection" in text
    assert f"by Vera ({stranger.npub[:20]}…)  id {refused.id}" in text
    assert "hidden" not in text
    assert await rookery.stop() == 0
    code, text = await command("log", "--data", str(rookery.folder))
    assert code == 0
    assert "info rookery: stopping" in text
    assert "policies not reloaded" in text
    assert "group tea" in text
    (found,) = await told("--group", "tea")
    assert found == of_author
    code, text = await command("log", "--follow", "--data", str(rookery.folder))
    assert code == 1
    assert "no relay runs on" in text


async def test_the_log_of_a_killed_relay_is_in_its_folder(rookery: Rookery) -> None:
    (rookery.folder / "policies" / "20-own.toml").write_text("[nothing]\n")
    rookery.send_signal(signal.SIGHUP)
    async with until("the relay has tried to reload") as tries:
        async for _ in tries:
            if (await status(rookery))["problems"]:
                break
    assert await rookery.stop(signal.SIGKILL) != 0
    code, text = await command("log", "--data", str(rookery.folder))
    assert code == 0
    assert "policies not reloaded" in text
