"""`kill -9` at any moment: nothing acknowledged is lost, nothing deleted is back."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import websockets

from relay.groups.group import Groups, replayed
from relay.groups.notices import notices_for
from relay.nostr.event import event_from_raw
from relay.nostr.keys import read_key_file
from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected, outputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.nostr.event import Event

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


# -- groups, killed in the middle ------------------------------------------------------------------


def moderation(chance: random.Random, groups: list[str], said: list[str]) -> Iterator[Event]:
    """What an owner does to four groups without end; some of it is refused, as no cycles are."""
    owner, people = cast.owner, [cast.alice, cast.bob, cast.carol, cast.dave]
    for number, group in enumerate(groups):
        yield owner.sign(9007, [["h", group]], f"{number}", int(time.time()))
    while True:
        group, other = chance.sample(groups, 2)
        who = chance.choice(people).pubkey
        e = [["e", event_id] for event_id in chance.sample(said, min(3, len(said)))]
        kind, tags = chance.choice(
            [
                (9, []),
                (9, []),
                (9, []),
                (9010, e),
                (9010, e),
                (9010, []),
                (9005, e[:1]),
                (5, e[:1]),
                (9000, [["p", who, *chance.choice([(), ("admin",)])]]),
                (9001, [["p", who]]),
                (9002, [["parent", other]]),
                (9002, [["parent", other]]),
                (9002, [["hidden"]]),
                (9002, [["child", other], ["visible"]]),
                (9002, [["visible"]]),
            ]
        )
        number += 1
        yield owner.sign(kind, [["h", group], *tags], f"{number}", int(time.time()))


async def moderate(wire: Wire, events: Iterator[Event], said: list[str]) -> list[Event]:
    """Send until the connection breaks; gives what was acknowledged as stored."""
    room, sent, stored = asyncio.Semaphore(60), {}, []

    async def send() -> None:
        for event in events:
            await room.acquire()
            sent[event.id] = event
            await wire.send_event(event)

    sending = asyncio.create_task(send())
    try:
        while True:
            frame = await wire.receive()
            if frame[0] == "OK":
                room.release()
                if frame[2]:
                    event = sent[frame[1]]
                    stored.append(event)
                    if event.kind == 9:
                        said.append(event.id)
    except websockets.ConnectionClosed:
        return stored
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def kept_in(folder: Path) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """What the file keeps of groups beside the log: (id, guarded, hidden), (key, group, admin)."""
    with closing(sqlite3.connect(f"file:{folder / 'rookery.db'}?mode=ro", uri=True)) as db:
        groups = db.execute("SELECT id, guarded, hidden FROM groups WHERE NOT ended")
        members = db.execute("SELECT lower(hex(pubkey)), grp, admin FROM members")
        return set(groups), set(members)


async def is_told_by_the_log(rookery: Rookery) -> Groups:
    """The relay's 39000 to 39005 and its tables say what a replay of the log comes to."""
    code, out, err = await outputs("export", "--data", str(rookery.folder))
    assert code == 0, err
    log = [event_from_raw(line) for line in out.splitlines()]
    relay = read_key_file((rookery.folder / "relay.key").read_text(), "relay.key").pubkey
    groups = replayed(Groups(), log, relay)
    shown = {(row.kind, row.d): row.tags for row in log if row.kind // 10 == 3900}
    assert len(shown) == sum(row.kind // 10 == 3900 for row in log)
    ids = {row.id for row in log}
    for group in groups.by_id.values():
        for draft in notices_for(None, group, 0)[1]:
            assert shown[draft.kind, group.id] == [list(tag) for tag in draft.tags]
        assert shown.get((39005, group.id), [])[1:] == [list(tag) for tag in group.pins]
        assert {tag[1] for tag in group.pins} <= ids
        assert all(groups.by_id[child].parent == group.id for child in group.children)
    assert kept_in(rookery.folder) == (
        {(group.id, group.only_members_read, group.is_hidden) for group in groups.by_id.values()},
        {
            (key, group.id, group.is_admin(key))
            for group in groups.by_id.values()
            for key in group.members
        },
    )
    return groups


@pytest.mark.proves("N29-55", "N29-56", "N29-139", "N29-172")
@pytest.mark.slow
async def test_pins_members_and_the_tree_survive_kills_in_the_middle(tmp_path: Path) -> None:
    chance, groups = random.Random(29), ["tea", "food", "green", "black"]
    said: list[Any] = []
    events, acknowledged = moderation(chance, groups, said), []
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init(
            "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open"
        )
        for _ in range(4):
            await rookery.start()
            async with connected(rookery.url) as wire:
                moderating = asyncio.create_task(moderate(wire, events, said))
                await asyncio.wait([moderating], timeout=chance.uniform(0.3, 1.5))
                assert not moderating.done(), "\n".join(rookery.lines)
                await rookery.stop(signal.SIGKILL)
                acknowledged += await moderating
            await is_told_by_the_log(rookery)
        replayed = await is_told_by_the_log(rookery)
    kinds = {event.kind for event in acknowledged}
    assert kinds >= {9, 9000, 9001, 9002, 9005, 9007, 9010}
    assert any(event.has_tag("parent") for event in acknowledged)
    records = {event.id for event in acknowledged if event.kind >= 9000}
    _, out, _ = await outputs("export", "--data", str(rookery.folder))
    assert records <= {event_from_raw(line).id for line in out.splitlines()}
    assert replayed.by_id.keys() == set(groups)
