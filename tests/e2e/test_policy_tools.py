"""`rookery policy log`, `explain` and `diff` beside a relay that runs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from tests.cast import alice, bob, owner, stranger
from tests.harness.patience import ANSWER_S
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, command, connected, eventually, outputs, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def told(rookery: Rookery, *args: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and lines of JSON of `rookery policy …`."""
    code, out, err = await outputs("policy", *args, "--data", str(rookery.folder), "--json")
    assert err == "", err
    return code, [json.loads(line) for line in out.splitlines()]


async def test_the_log_says_who_was_refused_and_why_and_not_what_they_said(
    rookery: Rookery,
) -> None:
    now = int(time.time())
    unwelcome = stranger.sign(1, [["t", "hidden tag"]], "hidden words", now)
    forged = json.loads(alice.sign(1, [], "not hers", now).raw) | {"sig": "0" * 128}
    ahead = alice.sign(1, [], "tomorrow", now + 90_000)
    async with connected(rookery.url) as one, connected(rookery.url) as other:
        assert (await one.publish(unwelcome))[0] is False
        await other.send("EVENT", forged)
        assert (await other.receive())[2] is False
        assert (await other.publish(ahead))[0] is False
        assert (await other.publish(owner.sign(1, [], "welcome", now)))[0] is True
    code, refusals = await told(rookery, "log")
    assert code == 0
    assert [(each["rule"], each["prefix"], each["author"]) for each in refusals] == [
        ("known people write", "restricted", stranger.pubkey),
        ("sig", "invalid", alice.pubkey),
        ("[limits] created_at_upper", "invalid", alice.pubkey),
    ]
    assert [each["number"] for each in refusals] == [1, 2, 3]
    assert refusals[0]["event_id"] == unwelcome.id
    assert refusals[0]["connection"] != refusals[1]["connection"] == refusals[2]["connection"]
    assert {each["address"] for each in refusals} == {"127.0.0.1"}
    assert abs(refusals[0]["at"] - now) < 60

    _, last = await told(rookery, "log", "-n", "1")
    assert last == refusals[-1:]
    _, ones = await told(rookery, "log", "--connection", str(refusals[0]["connection"]))
    assert ones == refusals[:1]
    args = "policy", "log", "--data", str(rookery.folder), "--connection", "1000"
    assert await outputs(*args) == (
        0,
        b"",
        f"nothing found; this is the relay of {rookery.folder}, see --data\n",
    )

    code, out, _ = await outputs("policy", "log", "--data", str(rookery.folder))
    page = out.decode()
    assert code == 0
    why = "only people known here may write; join a group first"
    said = f"refused restricted: {why}  rule known people write  kind 1"
    assert re.search(rf"^[-0-9]+ [:0-9]+[+-]\d{{4}} {re.escape(said)}  connection", page, re.M)
    assert f"  by {stranger.npub}  id {unwelcome.id}\n" in page
    assert "hidden" not in page


async def test_the_log_outlives_a_restart(rookery: Rookery) -> None:
    now = int(time.time())
    async with connected(rookery.url) as wire:
        refused = [stranger.sign(1, [["h", "tea"]], f"hidden {n}", now) for n in range(3)]
        for event in refused[:2]:
            assert (await wire.publish(event))[0] is False
        profile = owner.sign(0, [], '{"name":"Ada"}', now)
        assert await wire.publish(profile) == (True, "")
        late = owner.sign(1, [], "late", now - 10**9)
        assert await wire.publish(late) == (True, "")
        assert (await wire.publish(owner.sign(1, [], "early", now + 10**9)))[0] is False
    assert await rookery.stop() == 0
    assert (rookery.folder / "refusals.json").stat().st_mode & 0o777 == 0o600
    assert b"hidden" not in (rookery.folder / "refusals.json").read_bytes()
    _, stopped = await told(rookery, "log")
    assert [each["event_id"] for each in stopped[:2]] == [event.id for event in refused[:2]]
    assert [(each["group"], each["number"]) for each in stopped] == [
        ("tea", 1),
        ("tea", 2),
        (None, 3),
    ]
    await rookery.start()
    async with connected(rookery.url) as wire:
        assert (await wire.publish(refused[2]))[0] is False
    _, after = await told(rookery, "log")
    assert after[:3] == stopped
    assert (after[3]["event_id"], after[3]["number"]) == (refused[2].id, 4)
    _, page = await command("policy", "log", "--data", str(rookery.folder))
    assert "group tea  connection" in page
    ada = f"Ada ({owner.npub[:20]}…)"
    assert f"by {ada}" in page
    _, page = await command("stats", "--data", str(rookery.folder))
    assert f"\n{ada} " in page
    _, page = await command("policy", "show", "--data", str(rookery.folder))
    assert f"owners: {ada}\n" in page


async def test_the_log_follows_what_is_refused_from_now_on(rookery: Rookery) -> None:
    following = await start_rookery(
        "policy",
        "log",
        "--data",
        str(rookery.folder),
        "--follow",
        "--json",
        stderr=PIPE,
    )
    assert following.stdout is not None
    assert following.stderr is not None
    try:
        async with connected(rookery.url) as wire, asyncio.timeout(ANSWER_S):
            for number in range(3):
                event = stranger.sign(1, [], str(number), int(time.time()))
                await wire.publish(event)
                assert json.loads(await following.stdout.readline())["event_id"] == event.id
        following.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(following.wait(), ANSWER_S) == 130
        assert (await following.stderr.read()).strip() == b""  # no traceback
    finally:
        if following.returncode is None:
            following.kill()
            await following.wait()


async def test_a_log_that_is_followed_ends_with_its_relay(rookery: Rookery) -> None:
    following = asyncio.create_task(
        command("policy", "log", "--data", str(rookery.folder), "--follow")
    )
    async with connected(rookery.url) as wire:
        await wire.publish(stranger.sign(1, [], "", int(time.time())))
    assert await rookery.stop() == 0
    code, text = await following
    assert code == 1
    assert "Traceback" not in text


@pytest.mark.proves("G-29")
async def test_explain_and_diff_work_while_the_relay_runs(rookery: Rookery, tmp_path: Path) -> None:
    now = int(time.time())
    said = alice.sign(9, [["h", "tea"]], "hello", now)
    async with connected(rookery.url) as wire:
        for event in (
            owner.sign(9007, [["h", "tea"]], "", now),
            owner.sign(9000, [["h", "tea"], ["p", alice.pubkey]], "", now),
            said,
        ):
            assert await wire.publish(event) == (True, "")
        asked = tmp_path / "asked.json"
        for author, accepted in ((alice, True), (bob, False)):
            event = author.sign(9, [["h", "tea"]], "hi", now)
            asked.write_bytes(event.raw)
            code, [answer] = await told(rookery, "explain", str(asked))
            assert (code, answer["ok"]) == (0 if accepted else 1, accepted)
            # The relay says the very same when the event comes.
            assert await wire.publish(event) == (answer["ok"], answer["message"])
    asked.write_bytes(said.raw)
    for viewer, code in ((alice.npub, 0), (bob.npub, 1)):
        assert (await told(rookery, "explain", str(asked), "--read", viewer))[0] == code

    new = tmp_path / "new"
    new.mkdir()
    for path in (rookery.folder / "policies").glob("*.toml"):
        (new / path.name).write_text(path.read_text())
    (new / "20-new.toml").write_text(
        '[[rule]]\nname = "owners chat"\nmatch = { kinds = [9] }\nwrite = ["owner"]\n'
    )
    code, [compared] = await told(rookery, "diff", str(new))
    assert code == 0
    [finding] = compared["findings"]
    assert (finding["rule"], finding["effect"], finding["events"]) == ("owners chat", "refuse", 2)
    assert finding["examples"][0] == said.id


async def test_who_is_banned_is_known_to_explain(rookery: Rookery, tmp_path: Path) -> None:
    (rookery.folder / "policies" / "20-open.toml").write_text(
        '[[rule]]\nname = "known people write"\nenabled = false\n'
    )
    rookery.send_signal(signal.SIGHUP)
    event = stranger.sign(1, [], "hi", int(time.time()))
    asked = tmp_path / "asked.json"
    asked.write_bytes(event.raw)
    async with until("the door is open") as tries:
        async for _ in tries:
            if (await told(rookery, "explain", str(asked)))[0] == 0:
                break
    (rookery.folder / "policies" / "banned.txt").write_text(f"{stranger.npub}\n")
    (rookery.folder / "policies" / "30-bans.toml").write_text('[bans]\nfiles = ["banned.txt"]\n')
    rookery.send_signal(signal.SIGHUP)
    async with until("the key is banned") as tries:
        async for _ in tries:
            code, [answer] = await told(rookery, "explain", str(asked))
            if code == 1:
                break
    assert answer["message"].startswith("blocked: ")
    assert (await told(rookery, "explain", str(asked), "--read", "nobody"))[0] == 1


async def test_a_reload_says_in_the_log_what_it_changed(rookery: Rookery) -> None:
    (rookery.folder / "policies" / "20-mine.toml").write_text(
        '[[rule]]\nname = "no reactions"\nmatch = { kinds = [7] }\nwrite = ["nobody"]\n'
        "[limits]\nmax_event_tags = 9\n"
    )
    await eventually(
        "the log names the rule", lambda: any("policies reloaded" in line for line in rookery.lines)
    )
    [line] = [line for line in rookery.lines if "policies reloaded" in line]
    assert "added: no reactions; settings changed: limits" in line


async def test_a_reload_says_in_the_log_who_may_write_now_and_could_not(rookery: Rookery) -> None:
    (rookery.folder / "policies" / "20-mine.toml").write_text(
        '[[rule]]\nname = "known people write"\nenabled = false\n'
    )
    await eventually(
        "the log says so",
        lambda: any("unknown authors may write now: notes (1)" in line for line in rookery.lines),
    )
    [line] = [line for line in rookery.lines if "unknown authors" in line]
    assert "before: known keys, members of the group" in line
    assert "warning" in line.lower()


async def test_the_log_says_that_a_packaged_rule_is_replaced(rookery: Rookery) -> None:
    files = rookery.folder / "policies"
    mine = '[[rule]]\nname = "transcripts"\nmatch = { kinds = [1988] }\nread = ["author"]\n'
    (files / "20-mine.toml").write_text(mine)
    await eventually(
        "the log names the rule", lambda: any("replaces" in line for line in rookery.lines)
    )
    (files / "20-mine.toml").write_text(f"# moved\n{mine}[limits]\nmax_event_tags = 9\n")
    await eventually(
        "the files are read again", lambda: any("limits" in line for line in rookery.lines)
    )
    said = 'replaces the packaged rule "transcripts"'
    [line] = [line for line in rookery.lines if "replaces" in line]
    assert said in line.replace("\\", "")
    await rookery.stop()
    await rookery.start()
    await eventually(
        "the log of the start names it too",
        lambda: sum("replaces" in line for line in rookery.lines) == 2,
    )
