"""`kill -9` at any moment: nothing acknowledged is lost, nothing deleted is back. Contract §9."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
import websockets

from tests import cast
from tests.e2e.rookery import Rookery, Wire, connected

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 10
IN_FLIGHT = 200


class Load:
    """Events on their way, and what was acknowledged of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.acknowledged: list[str] = []
        self.deleted: list[str] = []
        self.ended = ""
        self._deletions: dict[str, str] = {}
        self._number = 0
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._milestone = 0
        self._reached = asyncio.Event()

    async def write(self, wire: Wire, round_: int) -> None:
        """Notes, now and then a deletion of an acknowledged one, until the connection breaks."""
        writing = asyncio.create_task(self._send(wire, round_))
        try:
            while True:
                frame = await wire.receive()
                if frame[0] == "OK":
                    self._room.release()
                    assert frame[2], frame
                    if frame[1] in self._deletions:
                        self.deleted.append(self._deletions[frame[1]])
                    else:
                        self.acknowledged.append(frame[1])
                    if len(self.acknowledged) >= self._milestone:
                        self._reached.set()
        except websockets.ConnectionClosed as closed:
            self.ended = str(closed)
        finally:
            self._reached.set()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def acknowledges(self, number: int) -> None:
        """Until so many more events were acknowledged, or the connection broke."""
        self._milestone = len(self.acknowledged) + number
        self._reached.clear()
        await self._reached.wait()

    def asked_to_go(self) -> set[str]:
        """Targets of every deletion sent, whether it was acknowledged or not."""
        return set(self._deletions.values())

    async def _send(self, wire: Wire, round_: int) -> None:
        now = int(time.time())
        robot = cast.robot
        self._room = asyncio.Semaphore(IN_FLIGHT)
        while True:
            for _ in range(20):
                await self._room.acquire()
                self._number += 1
                await wire.send_event(robot.sign(1, [], f"{round_} {self._number}", now))
            if self.acknowledged:
                target = self.chance.choice(self.acknowledged)
                deletion = robot.sign(5, [["e", target]], f"{self._number}", now)
                self._deletions[deletion.id] = target
                await self._room.acquire()
                await wire.send_event(deletion)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_every_acknowledged_event_survives_ten_kills(tmp_path: Path) -> None:
    load = Load(seed=20)
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        for round_ in range(ROUNDS):
            await rookery.start()
            async with connected(rookery.url) as wire:
                writing = asyncio.create_task(load.write(wire, round_))
                await load.acknowledges(load.chance.randrange(50, 1500))
                assert not writing.done(), "\n".join([load.ended, *rookery.lines])
                await rookery.stop(signal.SIGKILL)
                await writing
        await rookery.start()
        async with connected(rookery.url) as wire:
            gone = set(load.deleted)
            kept = [event_id for event_id in load.acknowledged if event_id not in gone]
            found = await wire.query_ids(load.acknowledged)
        # What was asked to go but not acknowledged may be either way.
        unsure = load.asked_to_go() - gone
        assert set(kept) - unsure <= found, "acknowledged events are missing"
        assert not gone & found, "deleted events came back"
        assert len(kept) > ROUNDS * 50
        assert await rookery.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_group_state_after_a_kill_is_what_the_log_says(tmp_path: Path) -> None:
    owner, now = cast.owner, int(time.time())
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.start()
        members: set[str] = {owner.pubkey}
        async with connected(rookery.url) as wire:
            assert await wire.publish(owner.sign(9007, [["h", "tea"]], "", now)) == (True, "")
            people = [cast.alice, cast.bob, cast.carol]
            for number, person in enumerate(people):
                event = owner.sign(9000, [["h", "tea"], ["p", person.pubkey]], "", now + number)
                assert await wire.publish(event) == (True, "")
                members.add(person.pubkey)
            event = owner.sign(9001, [["h", "tea"], ["p", cast.bob.pubkey]], "", now + 5)
            assert await wire.publish(event) == (True, "")
            members.discard(cast.bob.pubkey)
        await rookery.stop(signal.SIGKILL)
        await rookery.start()
        async with connected(rookery.url) as wire:
            await wire.log_in(owner, rookery.url, int(time.time()))
            [state] = await wire.query({"kinds": [39002], "#d": ["tea"]})
            assert {tag[1] for tag in state["tags"] if tag[0] == "p"} == members
            late = cast.bob.sign(9, [["h", "tea"]], "still here?", int(time.time()))
            accepted, text = await wire.publish(late)
            assert (accepted, text.split(":")[0]) == (False, "restricted")
            ok = cast.alice.sign(9, [["h", "tea"]], "I am", int(time.time()))
            assert await wire.publish(ok) == (True, "")
        assert await rookery.stop() == 0
