"""`kill -9` at any moment: nothing acknowledged is lost, nothing deleted is back."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Final

import pytest
import websockets

from relay.groups.group import Groups, replayed
from relay.groups.notices import notices_for
from relay.nostr.event import event_from_raw
from relay.nostr.keys import read_key_file
from tests import cast
from tests.effort import tries
from tests.faults.contents import contradictions
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Mutant, Rookery, Wire, connected, outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event

KILLS: Final = tries(100, 10, 5)
IN_FLIGHT: Final = 60
GROUPS: Final = ("tea", "food", "green", "black")
POLICY: Final = """
[[rule]]
name = "reloaded {}"
match = {{ kinds = [7777] }}
write = ["owner"]

[[retention]]
name = "few files"
match = {{ kinds = [1063] }}
count = {{ per = "author", max = 20 }}
"""


class Load:
    """What was sent over all rounds, and what was acknowledged of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stored: dict[str, Event] = {}
        """By id."""
        self.said: list[str] = []
        """Messages in groups."""
        self.deleted: set[str] = set()
        """Targets of deletions that were acknowledged."""
        self.asked_to_go: set[str] = set()
        """Targets of every deletion sent."""
        self.vanished: set[str] = set()
        self.asked_to_vanish: set[str] = set()
        self.refused: Counter[str] = Counter()
        self._number = 0
        self._moderation = moderation(self.chance, GROUPS, self.said)

    async def send(self, wire: Wire, events: Iterator[Event]) -> None:
        """Until the connection breaks."""
        room, sent = asyncio.Semaphore(IN_FLIGHT), {}

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
                    self._answered(sent[frame[1]], *frame[2:])
        except websockets.ConnectionClosed:
            pass
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _answered(self, event: Event, is_stored: bool, text: str) -> None:  # noqa: FBT001
        if not is_stored:
            self.refused[text] += 1
            return
        if event.kind == 62:
            self.vanished.add(event.pubkey)
            return
        self.stored[event.id] = event
        if event.kind == 5 and not event.has_tag("h"):  # with one: only of that group
            self.deleted.update(event.tag_values("e"))
        if event.kind == 9:
            self.said.append(event.id)

    def moderating(self) -> Iterator[Event]:
        for event in self._moderation:
            if event.kind in (5, 9005):
                self.asked_to_go.update(event.tag_values("e"))
            yield event

    def writing(self, now: int) -> Iterator[Event]:
        """Notes, deletions, records of memory, files that retention removes, keys that vanish."""
        chance, robot, mine = self.chance, cast.robot, list[str]()
        passer, begun = None, 0
        while True:
            self._number += 1
            text = f"{self._number}"
            match chance.randrange(10):
                case 0 | 1 if mine:
                    target = chance.choice(mine)
                    self.asked_to_go.add(target)
                    yield robot.sign(5, [["e", target]], text, now)
                case 2 | 3:
                    d = f"memory/{chance.randrange(20)}"
                    yield robot.sign(30023, [["d", d]], text, now - 100_000 + self._number)
                case 4:
                    yield robot.sign(1063, [], text, now)
                case 5:
                    at = str(now + chance.randrange(1, 4))
                    yield robot.sign(1, [["expiration", at]], text, now)
                case 6:
                    if passer is None:
                        passer, begun = cast.person(f"passer {self._number}"), self._number
                    if self._number < begun + 30:
                        yield passer.sign(1, [], text, now)
                    else:
                        self.asked_to_vanish.add(passer.pubkey)
                        yield passer.sign(62, [["relay", "ALL_RELAYS"]], "", now)
                        passer = None
                case _:
                    note = robot.sign(1, [], text, now)
                    mine.append(note.id)
                    yield note

    def losses(self, log: Sequence[Event]) -> list[str]:
        """What was acknowledged and is not in the log, and what is back in it."""
        there = {event.id for event in log}
        newest = {event.d: event.created_at for event in log if event.kind == 30023}
        found = [f"{e.raw.decode()} came back" for e in log if e.id in self.deleted]
        found += [f"{e.id} of a key that vanished" for e in log if e.pubkey in self.vanished]
        for event in self.stored.values():
            if event.kind == 30023:
                if newest.get(event.d, 0) < event.created_at:
                    found.append(f"{event.d} is older than {event.created_at}")
            elif not (
                event.id in there
                or event.id in self.asked_to_go
                or event.pubkey in self.asked_to_vanish
                or event.kind == 1063
                or event.has_tag("expiration")
            ):
                found.append(f"{event.id} of kind {event.kind} is missing")
        return found


async def _busy(rookery: Rookery, load: Load, round_: int) -> None:
    """A round: all at once, until the relay is killed."""
    sweep = await start_rookery(
        "policy", "sweep", "--data", str(rookery.folder), stdout=DEVNULL, stderr=DEVNULL
    )
    async with connected(rookery.url) as wire, connected(rookery.url) as other:
        # Who may not read a group is told OK for what it refuses too.
        await other.log_in(cast.owner, rookery.url, int(time.time()))
        sending = [
            asyncio.create_task(load.send(wire, load.writing(int(time.time())))),
            asyncio.create_task(load.send(other, load.moderating())),
        ]
        wanted = len(load.stored) + load.chance.randrange(20, 250)
        turn = 0
        while len(load.stored) < wanted and not any(task.done() for task in sending):
            turn += 1
            own = rookery.folder / "policies" / "20-own.toml"
            own.write_text(POLICY.format(f"{round_} {turn}"))
            rookery.send_signal(signal.SIGHUP)
            await asyncio.sleep(load.chance.random() / 20)
        assert not any(task.done() for task in sending), "\n".join(rookery.lines)
        await rookery.stop(signal.SIGKILL)
        await asyncio.gather(*sending)
    await sweep.wait()


async def killed_again_and_again(rookery: Rookery, load: Load, rounds: int) -> list[str]:
    await rookery.init(
        "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open"
    )
    for round_ in range(rounds):
        await rookery.start()
        await _busy(rookery, load, round_)
        _, verified, _ = await outputs("verify", "--data", str(rookery.folder), "--json")
        log = await log_of(rookery)
        found = load.losses(log) + contradictions(rookery.folder / "rookery.db")
        found += [f"{each['check']}: {each['text']}" for each in json.loads(verified)["findings"]]
        try:
            is_told_by(log, rookery)
        except AssertionError as differs:
            found.append(f"groups: {differs}")
        if found:
            return [f"after kill {round_ + 1}", *found]
    return []


@pytest.mark.proves("N29-55", "N29-56", "N29-139", "N29-172")
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    load = Load(seed=20)
    async with Rookery(tmp_path / "data") as rookery:
        assert await killed_again_and_again(rookery, load, KILLS) == []
        groups = is_told_by(await log_of(rookery), rookery)
    assert groups.by_id.keys() == set(GROUPS)
    kinds = {event.kind for event in load.stored.values()}
    assert kinds >= {1, 5, 9, 1063, 9000, 9001, 9002, 9005, 9007, 9010, 30023}
    assert load.deleted
    assert load.vanished
    assert len(load.stored) > KILLS * 20
    assert not any(text.startswith("error:") for text in load.refused), load.refused


@pytest.mark.mutant
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("answers_first", ("is missing", "of a key that vanished")),
        ("deletes_later", ("came back",)),
        # The next start tells it.
        ("groups_in_memory", ("give other members or flags than the tables",)),
    ],
)
async def test_a_relay_that_loses_something_by_a_kill_is_found(
    tmp_path: Path, name: str, faults: tuple[str, ...]
) -> None:
    async with Mutant(tmp_path / "data", name) as rookery:
        try:
            found = await killed_again_and_again(rookery, Load(seed=20), 6)
        except AssertionError as refusal:
            found = [str(refusal)]
    assert any(fault in line for fault in faults for line in found), found


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


def moderation(chance: random.Random, groups: Sequence[str], said: list[str]) -> Iterator[Event]:
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


def kept_in(folder: Path) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """What the file keeps of groups beside the log: (id, guarded, hidden), (key, group, admin)."""
    with closing(sqlite3.connect(f"file:{folder / 'rookery.db'}?mode=ro", uri=True)) as db:
        groups = db.execute("SELECT id, guarded, hidden FROM groups WHERE NOT ended")
        members = db.execute("SELECT lower(hex(pubkey)), grp, admin FROM members")
        return set(groups), set(members)


async def log_of(rookery: Rookery) -> list[Event]:
    code, out, err = await outputs("export", "--data", str(rookery.folder))
    assert code == 0, err
    return [event_from_raw(line) for line in out.splitlines()]


def is_told_by(log: list[Event], rookery: Rookery) -> Groups:
    """The relay's 39000 to 39005 and its tables say what a replay of the log comes to."""
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
