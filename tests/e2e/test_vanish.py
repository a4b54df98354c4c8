"""Who vanished stays away: over a `kill -9`, over a restart, over an import. NIP-62."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, Wire, command, connected

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

DELETED = (False, "blocked: deleted")
NOT_A_MEMBER = (False, "restricted: not a member")
STORED = (True, "")


async def members_of(wire: Wire, group: str) -> set[str]:
    (shown,) = await wire.query({"kinds": [39002], "#d": [group]})
    return {tag[1] for tag in shown["tags"] if tag[0] == "p"}


async def life_of(wire: Wire, now: int) -> list[Event]:
    """What the robot wrote, and what was sent to it; all of it is stored."""
    owner, robot = cast.owner, cast.robot
    made = [
        owner.sign(9007, [["h", "tea"]], "", now),
        owner.sign(9000, [["h", "tea"], ["p", robot.pubkey, "admin"]], "", now),
        robot.sign(9000, [["h", "tea"], ["p", cast.alice.pubkey]], "", now),
    ]
    own = [
        made[-1],
        *(robot.sign(1, [["t", "x"]], str(number), now) for number in range(200)),
        robot.sign(9, [["h", "tea"]], "hello", now),
        robot.sign(0, [], "{}", now),
        robot.sign(5, [["e", "0" * 64]], "", now),
        cast.alice.sign(1059, [["p", robot.pubkey]], "sealed", now),
    ]
    for event in [*made, *own[1:]]:
        assert await wire.publish(event) == STORED, event
    return own


@pytest.mark.slow
async def test_who_vanished_is_not_back_after_a_kill(tmp_path: Path) -> None:
    """N62-01…08."""
    owner, robot, now = cast.owner, cast.robot, int(time.time())
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", owner.pubkey, "--agent", robot.pubkey)
        await rookery.start()
        async with connected(rookery.url) as wire:
            own = await life_of(wire, now)
            request = robot.sign(62, [["relay", f"{rookery.url}/"]], "goodbye", now)
            assert await wire.publish(request) == STORED
            await rookery.stop(signal.SIGKILL)
        for _ in range(2):
            await rookery.start()
            async with connected(rookery.url) as wire:
                for key in (owner, robot):
                    await wire.log_in(key, rookery.url, int(time.time()))
                assert await wire.query_ids([event.id for event in [*own, request]]) == set()
                assert await wire.query({"authors": [robot.pubkey]}) == []
                assert await wire.query({"kinds": [1059]}) == []
                assert await wire.query({"#t": ["x"]}) == []
                assert await members_of(wire, "tea") == {owner.pubkey, cast.alice.pubkey}
                for event in own:
                    # A group says first who is no member of it.
                    answer = NOT_A_MEMBER if event.tag("h") else DELETED
                    assert await wire.publish(event) == answer
                # The first one names a port of before the restart: today that is another relay.
                other = robot.sign(62, [["relay", "ALL_RELAYS"]], "", now)
                assert await wire.publish(other) == STORED
            assert await rookery.stop() == 0
        lines = b"\n".join(event.raw for event in own)
        code, text = await command(
            "import", "-", "--data", str(rookery.folder), "--trust", "--json", stdin=lines
        )
        assert code == 1, text
        tally = json.loads(text[text.index("{") :])
        assert (tally["stored"], tally["refused"]) == (0, len(own))
        code, text = await command("export", "--data", str(rookery.folder))
        assert code == 0
        assert robot.pubkey not in {json.loads(line)["pubkey"] for line in text.splitlines()}


@pytest.mark.slow
async def test_a_request_in_a_file_acts_on_a_folder_without_a_server(tmp_path: Path) -> None:
    """N62-03: by the configured URL, or ALL_RELAYS; order in the file does not matter."""
    robot, rover, now = cast.robot, cast.rover, int(time.time()) - 100
    folder = str(tmp_path / "data")
    code, text = await command(
        "init",
        folder,
        "--owner",
        cast.owner.pubkey,
        "--agent",
        robot.pubkey,
        "--agent",
        rover.pubkey,
        "--url",
        "wss://rookery.example/relay",
    )
    assert code == 0, text
    events = [
        robot.sign(1, [], "hello", now),
        robot.sign(62, [["relay", "wss://elsewhere.example"]], "", now + 1),
        rover.sign(62, [["relay", "WSS://Rookery.example:443/relay/"]], "", now + 2),
        rover.sign(1, [], "hello", now),
        rover.sign(1, [], "hello again", now + 3),
    ]
    lines = b"\n".join(event.raw for event in events)
    code, text = await command("import", "-", "--data", folder, "--json", stdin=lines)
    assert code == 1, text
    code, text = await command("export", "--data", folder)
    assert code == 0
    kept = [json.loads(line)["id"] for line in text.splitlines()]
    assert kept == [events[0].id, events[1].id, events[4].id]


async def test_stats_count_as_many_events_as_are_exported(tmp_path: Path) -> None:
    """A request to vanish is no event of the store, and has a row of its own kind."""
    now = int(time.time())
    data = ("--data", str(tmp_path / "data"))
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        await rookery.start()
        async with connected(rookery.url) as wire:
            request = cast.owner.sign(62, [["relay", f"{rookery.url}/"]], "goodbye", now)
            assert await wire.publish(request) == STORED
            assert await wire.publish(cast.owner.sign(1, [], "again", now + 1)) == STORED
        _, exported = await command("export", *data)
        _, page = await command("stats", "--json", *data)
        stats = json.loads(page)
        assert stats["events"] == len(exported.splitlines())
        assert stats["bytes"] == sum(each["bytes"] for each in stats["author"])
        (kept,) = (each for each in stats["kind"] if each["kind"] == 62)
        assert kept["events"] == 1
        _, page = await command("stats", *data)
        assert f"{len(exported.splitlines())} event" in page.splitlines()[0]
        assert "1 request to vanish" in page.splitlines()[0]
