"""Backup, restore and verify beside a running relay, and after its folder is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, Wire, command, connected

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

BEFORE = 2000
GROUP = ["h", "tea"]


async def sent(wire: Wire, events: list[Event]) -> None:
    """All at once, and every one acknowledged."""
    wanted = {event.id for event in events}
    for event in events:
        await wire.send_event(event)
    while wanted:
        frame = await wire.receive()
        if frame[0] == "OK":
            assert frame[2], frame
            wanted.discard(frame[1])


def messages(first: int, number: int, now: int) -> list[Event]:
    robot = cast.robot
    return [
        robot.sign(9, [GROUP], f"message {each}", now)
        if each % 2
        else robot.sign(30078, [["d", f"record:{each % 100}"]], f"{each}", now - 90_000 + each)
        for each in range(first, first + number)
    ]


class Load:
    """Goes on writing until it is stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = asyncio.Event()
        self.number = 0

    async def run(self) -> None:
        async with connected(self._url) as wire:
            while not self._stop.is_set():
                now = int(time.time())
                await sent(wire, messages(BEFORE + self.number, 50, now))
                self.number += 50

    def stop(self) -> None:
        self._stop.set()


async def asked(*args: str, code: int = 0) -> dict[str, object]:
    given, text = await command(*args, "--json")
    assert given == code, text
    answer: dict[str, object] = json.loads(text.splitlines()[-1])
    return answer


@pytest.mark.slow
async def test_a_relay_under_load_is_backed_up_lost_and_restored(tmp_path: Path) -> None:
    owner, now = cast.owner, int(time.time())
    folder, new, file = tmp_path / "data", tmp_path / "new", tmp_path / "backup.tar.gz"
    key_file = tmp_path / "owner.nsec"
    key_file.write_text(owner.nsec)
    data = ("--data", str(folder))
    before = messages(0, BEFORE, now)
    async with Rookery(folder) as rookery:
        await rookery.init(
            *("--owner", owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open")
        )
        await rookery.start()
        async with connected(rookery.url) as wire:
            made = [
                owner.sign(9007, [GROUP], "", now),
                owner.sign(9002, [GROUP, ["private"]], "", now),
                owner.sign(9000, [GROUP, ["p", cast.robot.pubkey]], "", now),
            ]
            for event in made:
                assert await wire.publish(event) == (True, "")
            deleted = before[1]
            await sent(wire, before)
            assert await wire.publish(
                cast.robot.sign(5, [["e", deleted.id], GROUP], "", int(time.time()))
            ) == (True, "")
        code, text = await command(
            *("ban", cast.stranger.pubkey),
            *("--relay", rookery.url, "--key-file", str(key_file)),
        )
        assert code == 0, text

        load = Load(rookery.url)
        writing = asyncio.create_task(load.run())
        backup = await asked("backup", str(file), *data)
        verified = await asked("verify", *data)
        load.stop()
        await writing
        assert load.number
        assert verified["findings"] == []
        assert isinstance(verified["events"], int)
        assert verified["events"] > BEFORE // 2

        code, text = await command("verify", "--repair", *data)
        assert code == 1
        assert "stop it first" in text
        await rookery.stop(signal.SIGKILL)
    shutil.rmtree(folder)

    drill = await asked("restore", str(file), "--check")
    assert drill["findings"] == []
    assert drill["search_checked"] is True
    code, text = await command("restore", str(file), str(new))
    assert code == 0, text
    assert (await asked("verify", "--data", str(new)))["events"] == backup["events"]
    async with Rookery(new) as rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.query({"kinds": [9]}) == []  # still private
            await wire.log_in(cast.robot, rookery.url, int(time.time()))
            kept = {event.id for event in before if event.kind == 9 and event is not deleted}
            assert await wire.query_ids([*kept, deleted.id]) == kept
            records = await wire.query({"kinds": [30078]})
            assert len(records) == 50
            [members] = await wire.query({"kinds": [39002], "#d": ["tea"]})
            named = {tag[1] for tag in members["tags"] if tag[0] == "p"}
            assert named == {owner.pubkey, cast.robot.pubkey}
            said = await wire.publish(deleted)
            assert said[0] is False
            assert "deleted" in said[1]
            banned = cast.stranger.sign(1, [], "", int(time.time()))
            assert (await wire.publish(banned))[1].startswith("blocked:")
        assert await rookery.stop() == 0
    assert (await asked("verify", "--data", str(new)))["findings"] == []


async def test_a_store_is_sound_after_a_kill(tmp_path: Path) -> None:
    now = int(time.time())
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.start()
        async with connected(rookery.url) as wire:
            for event in (
                cast.owner.sign(9007, [GROUP], "", now),
                cast.owner.sign(9000, [GROUP, ["p", cast.robot.pubkey]], "", now),
            ):
                assert await wire.publish(event) == (True, "")
            await sent(wire, messages(0, 100, now))
        await rookery.stop(signal.SIGKILL)
        report = await asked("verify", "--data", str(rookery.folder))
    assert report["findings"] == []
