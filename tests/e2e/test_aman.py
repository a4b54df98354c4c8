"""Aman and `rookery aman` on a real relay: nothing is lost when it dies, and the original's own
events are read."""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Aman, Timeouts, base
from relay.client.writer import Outcome
from relay.nostr.keys import SecretKey
from tests import cast
from tests.golden import document
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import Rookery, eventually, outputs, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.slow

GOLDEN: dict[str, Any] = document("memory/aman.json")
GOLDEN_KEY = GOLDEN["secretbox"]["key_forms"]["hex"]


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOSTR_SECRETBOX_KEY", raising=False)


async def made(folder: Path, agent: SecretKey, lines: Iterable[bytes] = ()) -> Rookery:
    rookery = Rookery(folder)
    await rookery.init("--owner", cast.owner.pubkey, "--agent", agent.pubkey)
    if lines:
        code, out, err = await outputs(
            "import", "-", "--data", str(folder), stdin=b"\n".join(lines)
        )
        assert code == 0, (out, err)
    return rookery


def delete_caches(folder: Path) -> None:
    for file in folder.glob("*.cache*"):
        file.unlink()


async def test_two_programs_of_one_agent_write_through_the_death_of_the_relay(
    tmp_path: Path,
) -> None:
    async with await made(tmp_path / "relay", cast.robot) as rookery:
        await rookery.start()
        async with (
            Aman(rookery.url, cast.robot, folder=tmp_path / "one") as one,
            Aman(rookery.url, cast.robot, folder=tmp_path / "two") as two,
        ):
            assert (await one.set_preference("u", "before")).outcome is Outcome.STORED
            snapshots = two.watch("u")
            first = await anext(snapshots)
            assert first.preference is not None
            await rookery.stop(signal.SIGKILL)
            await eventually(
                "both know that it is away", lambda: not (one.is_online or two.is_online)
            )
            for number in range(20):
                by_one = await one.add_tool("u", f"one {number}", success=True, content="")
                by_two = await two.add_tool("u", f"two {number}", success=True, content="")
                assert (by_one.outcome, by_two.outcome) == (Outcome.QUEUED, Outcome.QUEUED)
            await one.set_preference("u", "of one, while away")
            # What was read and written before is there without the relay.
            assert len(await one.tools("u")) == 20
        # Both programs end with the relay still away; the next runs of them send what waits.
        await rookery.start_again()
        async with (
            Aman(rookery.url, cast.robot, folder=tmp_path / "one") as one,
            Aman(rookery.url, cast.robot, folder=tmp_path / "two") as two,
        ):
            async with until("nothing waits any more") as tries:
                async for _ in tries:
                    if await one.waiting() + await two.waiting() == 0:
                        break
            assert await one.refused() + await two.refused() == []
            delete_caches(tmp_path / "two")
            async with Aman(rookery.url, cast.robot, folder=tmp_path / "two") as anew:
                names = {call.tool_name for call in await anew.tools("u")}
            assert names == {f"{who} {number}" for who in ("one", "two") for number in range(20)}
            preference = await two.get_preference("u")
            assert preference is not None
            assert preference.preference == "of one, while away"


async def test_a_watcher_follows_through_a_restart_of_the_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it looks for the relay every half a minute only.
    monkeypatch.setattr(base, "Timeouts", partial(Timeouts, max_backoff_s=0.5))
    async with await made(tmp_path / "relay", cast.robot) as rookery:
        await rookery.start()
        async with (
            Aman(rookery.url, cast.robot, folder=tmp_path / "one") as one,
            Aman(rookery.url, cast.robot, folder=tmp_path / "two") as two,
        ):
            snapshots = two.watch("u")
            assert (await anext(snapshots)).is_empty
            await one.add_tool("u", "before", success=True, content="")
            assert len((await anext(snapshots)).tools) == 1
            await rookery.stop(signal.SIGKILL)
            await eventually("the writer knows", lambda: not one.is_online)
            await one.add_tool("u", "away", success=True, content="")
            await rookery.start_again()
            async with asyncio.timeout(ANSWER_S):
                assert len((await anext(snapshots)).tools) == 2
            await snapshots.aclose()  # type: ignore[attr-defined]


@pytest.mark.proves("A-17", "A-22", "A-26")
async def test_what_the_original_wrote_is_read_by_the_client_and_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = SecretKey.parse(GOLDEN["keys"]["agent"]["nsec"])
    key_file = tmp_path / "agent.nsec"
    key_file.write_text(agent.nsec)
    key_file.chmod(0o600)
    sealed = [case["event"] for case in GOLDEN["secretbox"]["cases"]]
    events = [*GOLDEN["projection"]["events"], *sealed]
    lines = [json.dumps(event).encode() for event in events]
    async with await made(tmp_path / "relay", agent, lines) as rookery:
        await rookery.start()
        server = ("--relay", rookery.url, "--key-file", str(key_file))

        async with Aman(rookery.url, agent) as aman:
            snapshot = await aman.snapshot("proj")
            assert snapshot.preference is not None
            assert snapshot.preference.record.preference == "survives"
            assert [row.record.tool_name for row in snapshot.tools] == ["c"]
            done = await aman.rehydrate(tmp_path / "locked.db")
            assert {unread.event.id for unread in done.skipped} == {e["id"] for e in sealed}
        async with Aman(rookery.url, agent, GOLDEN_KEY) as aman:
            assert (await aman.rehydrate(tmp_path / "open.db")).skipped == ()

        code, out, err = await outputs("aman", "show", "proj", "--json", *server)
        assert (code, err) == (0, "")
        shown, wanted = json.loads(out), GOLDEN["projection"]["snapshot"]
        assert shown["preference"] == wanted["preference"]
        assert shown["summary"] is None
        assert shown["clears"] == wanted["clears"]
        (call,) = shown["tool_history"]
        assert {name: call[name] for name in wanted["tool_history"][0]} == (
            wanted["tool_history"][0]
        )
        monkeypatch.setenv("NOSTR_SECRETBOX_KEY", GOLDEN_KEY)
        code, out, err = await outputs("aman", "show", "user-1", *server)
        assert (code, err) == (0, "")
        assert b"prefer_speed" in out


async def test_the_commands_say_on_a_real_relay_what_they_should(tmp_path: Path) -> None:
    key_file = tmp_path / "agent.nsec"
    key_file.write_text(cast.robot.nsec)
    key_file.chmod(0o600)
    stranger = tmp_path / "stranger.nsec"
    stranger.write_text(cast.stranger.nsec)
    stranger.chmod(0o600)
    async with await made(tmp_path / "relay", cast.robot) as rookery:
        await rookery.start()

        async def aman(*args: str, key: Path = key_file) -> tuple[int, str, str]:
            server = ("--relay", rookery.url, "--key-file", str(key))
            code, out, err = await outputs("aman", *args, *server)
            return code, out.decode(), err

        code, out, err = await aman("set-preference", "HK", "prefer_speed")
        assert (code, err) == (0, "")
        assert out.startswith("stored ")
        assert out.endswith(" 30093 HK:preference\n")
        code, out, err = await aman("show", "nobody")
        assert (code, out, err) == (1, "nothing stored for nobody\n", "")
        code, out, err = await aman("set-preference", "HK", "mine", key=stranger)
        assert (code, out) == (1, "")
        assert "restricted: only agents may write memory" in err
        counted = "preferences 1, summaries 0, tools 0, clears 0, skipped 0\n"
        db = str(tmp_path / "aman.db")
        for command in (("rehydrate", "--db", db), ("import-sqlite", db)):
            assert await aman(*command) == (0, counted, "")
        await rookery.stop()
        code, out, err = await aman("show", "HK")
        assert (code, out) == (1, "")
        assert "start a relay with `rookery serve" in err
