"""Rights that begin and end while a subscription is open, and what comes to those who name it.

Who may read what otherwise is the leak table, in `tests/leaks`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

FLAGS = {
    "square": [],
    "tea": ["private", "restricted", "closed"],
    "cave": ["private", "hidden", "restricted", "closed"],
}


def nip44() -> str:
    return base64.b64encode(bytes([2]) + bytes(120)).decode()


class RelayWithGroups:
    def __init__(self, rookery: Rookery, stack: contextlib.AsyncExitStack) -> None:
        self.rookery = rookery
        self.stack = stack
        self.now = int(time.time())

    async def enter(self, *keys: SecretKey) -> Wire:
        wire = await self.stack.enter_async_context(connected(self.rookery.url))
        for key in keys:
            await wire.log_in(key, self.rookery.url, int(time.time()))
        return wire

    async def say(
        self, key: SecretKey, kind: int, *tags: Sequence[str], content: str = ""
    ) -> Event:
        event = key.sign(kind, [list(tag) for tag in tags], content, self.now)
        assert await self.publisher.publish(event) == (True, ""), event
        return event

    async def make_groups(self) -> None:
        self.publisher = await self.enter(cast.robot)
        admin = cast.admin
        for group, flags in FLAGS.items():
            h = ["h", group]
            await self.say(admin, 9007, h, *([flag] for flag in flags))
            await self.say(
                admin, 9000, h, ["p", cast.alice.pubkey], ["p", cast.robot.pubkey, "agent"]
            )
        await self.say(admin, 9000, ["h", "square"], ["p", cast.carol.pubkey])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[RelayWithGroups]:
    async with Rookery(tmp_path / "data") as rookery, contextlib.AsyncExitStack() as stack:
        await rookery.init(
            "--owner",
            cast.owner.pubkey,
            "--agent",
            cast.robot.pubkey,
            "--agent",
            cast.rover.pubkey,
            "--preset",
            "open",
        )
        await rookery.start()
        place = RelayWithGroups(rookery, stack)
        await place.make_groups()
        yield place
        await stack.aclose()
        assert await rookery.stop() == 0
    print(*rookery.lines, sep="\n")
    assert "Traceback" not in "\n".join(rookery.lines)


async def until_marker(wire: Wire, marker: Event, *subs: str) -> dict[str, set[str]]:
    """What each subscription got until all of them got the marker."""
    got: dict[str, set[str]] = {sub: set() for sub in subs}
    while not all(marker.id in ids for ids in got.values()):
        frame = await wire.receive()
        assert frame[0] in ("EVENT", "EOSE"), frame
        if frame[0] == "EVENT":
            got[frame[1]].add(frame[2]["id"])
    return got


async def count(wire: Wire, *filters: dict[str, Any]) -> int | str:
    await wire.send("COUNT", "c", *filters)
    frame = await wire.receive()
    return int(frame[2]["count"]) if frame[0] == "COUNT" else str(frame[2])


# -- rights that end while a subscription is open --------------------------------------------------


async def quiet_since(place: RelayWithGroups, wire: Wire, sub: str) -> list[str]:
    """Contents that a subscription gets until a public marker, which it must ask for too."""
    marker = await place.say(cast.alice, 1, content=f"marker {time.monotonic_ns()}")
    got: list[str] = []
    while True:
        frame = await wire.receive()
        if frame[:2] == ["EVENT", sub]:
            if frame[2]["id"] == marker.id:
                return got
            got.append(frame[2]["content"])


@pytest.mark.proves("N29-101", "N29-94")
async def test_a_group_that_turns_private_is_silent_at_once(place: RelayWithGroups) -> None:
    wire = await place.enter(cast.stranger)
    await wire.send("REQ", "s", {"kinds": [9], "#h": ["square"]}, {"kinds": [1], "limit": 0})
    assert await wire.receive() == ["EOSE", "s"]
    await place.say(cast.alice, 9, ["h", "square"], content="open")
    assert await quiet_since(place, wire, "s") == ["open"]
    await place.say(cast.admin, 9002, ["h", "square"], ["private"], ["closed"])
    await place.say(cast.alice, 9, ["h", "square"], content="shut")
    assert await quiet_since(place, wire, "s") == []
    assert await wire.query({"kinds": [9]}) == []


@pytest.mark.proves("N29-95", "N29-124", "N29-125", "G-20")
async def test_who_is_added_hears_without_asking_again(place: RelayWithGroups) -> None:
    wire = await place.enter(cast.carol)
    await wire.send("REQ", "s", {"kinds": [9]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await place.say(cast.alice, 9, ["h", "tea"], content="before")
    await place.say(cast.admin, 9000, ["h", "tea"], ["p", cast.carol.pubkey])
    await place.say(cast.alice, 9, ["h", "tea"], content="after")
    assert await quiet_since(place, wire, "s") == ["after"]
    await place.say(cast.admin, 9008, ["h", "tea"])
    assert await quiet_since(place, wire, "s") == []
    told = await wire.query({"#h": ["tea"]})
    assert {event["kind"] for event in told} == {9008, 44100, 44101}, "how it ended, and no more"
    assert all(event["kind"] == 9008 or event["tags"][0][1] == cast.carol.pubkey for event in told)
    assert await wire.query({"kinds": [9000, 9001, 9007, 39000, 39002], "#h": ["tea"]}) == []


@pytest.mark.proves("N29-94", "N42-07")
async def test_one_of_two_keys_is_enough_until_it_is_gone(place: RelayWithGroups) -> None:
    wire = await place.enter(cast.stranger, cast.alice)
    await wire.send("REQ", "s", {"kinds": [9]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await place.say(cast.robot, 9, ["h", "cave"], content="to alice")
    assert await quiet_since(place, wire, "s") == ["to alice"]
    await place.say(cast.admin, 9001, ["h", "cave"], ["p", cast.alice.pubkey])
    await place.say(cast.robot, 9, ["h", "cave"], content="not to alice")
    await place.say(cast.robot, 9, ["h", "tea"], content="to alice still")
    assert await quiet_since(place, wire, "s") == ["to alice still"]
    assert await wire.query({"kinds": [9], "#h": ["cave"]}) == []


@pytest.mark.proves("N42-16", "G-01", "S-14")
async def test_an_agent_that_is_struck_off_hears_no_more_configuration(
    place: RelayWithGroups,
) -> None:
    wire = await place.enter(cast.rover)
    await wire.send("REQ", "s", {"kinds": [30078]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await place.say(cast.owner, 30078, ["d", "snowclaw:config:global"], content='{"n":1}')
    assert await quiet_since(place, wire, "s") == ['{"n":1}']
    await place.rookery.enforce("50-actors.toml", f'[actors]\nagents = ["{cast.robot.pubkey}"]\n')
    place.now += 1
    await place.say(cast.owner, 30078, ["d", "snowclaw:config:global"], content='{"n":2}')
    assert await quiet_since(place, wire, "s") == []
    assert await wire.query({"kinds": [30078]}) == []


@pytest.mark.proves("N42-16", "A-20", "G-01")
async def test_a_reader_that_is_trusted_no_more_hears_no_more(place: RelayWithGroups) -> None:
    await place.rookery.enforce("50-trust.toml", '[actors]\ntrusted_readers = ["127.0.0.0/8"]\n')
    wire = await place.enter()
    await wire.send("REQ", "s", {"kinds": [30093]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await place.say(cast.robot, 30093, *preference(place.now), content=pref(place.now))
    assert len(await quiet_since(place, wire, "s")) == 1
    await place.rookery.enforce("50-trust.toml", "[actors]\ntrusted_readers = []\n")
    ts = place.now = place.now + 1
    await place.say(cast.robot, 30093, *preference(ts), content=pref(ts))
    assert await quiet_since(place, wire, "s") == []
    assert await wire.query({"kinds": [30093]}) == []


def preference(ts: int) -> list[list[str]]:
    return [
        ["d", "hk:preference"],
        ["k", "aman_preference"],
        ["hk", "hk"],
        ["v", "1"],
        ["ts", str(ts)],
    ]


def pref(ts: int) -> str:
    return json.dumps({"history_key": "hk", "preference": "tea", "updated_at": ts})


async def test_envelopes_come_to_those_who_name_them(place: RelayWithGroups) -> None:
    sealed = cast.person("pns")
    envelope = await place.say(sealed, 1080, content=nip44())
    member, nobody = await place.enter(cast.carol), await place.enter()
    stranger = await place.enter(cast.stranger)
    asked: list[dict[str, object]] = [{"ids": [envelope.id]}, {"authors": [sealed.pubkey]}]
    for filters in asked:
        assert [row["id"] for row in await member.query(filters)] == [envelope.id]
        for wire in (nobody, stranger):
            assert await wire.query(filters) == []
            number = await count(wire, filters)
            assert number == 0 or f"{number}".startswith(("auth-required:", "restricted:"))
    for wire in (member, nobody, stranger):
        assert await wire.query({"kinds": [1080]}) == []
        assert await wire.query({"since": place.now - 10, "kinds": [1080, 1]}) == []
        assert await count(wire, {"kinds": [1080, 1]}) == 0


@pytest.mark.proves("N46-01", "N46-03")
async def test_remote_signing_comes_to_those_who_name_a_key(place: RelayWithGroups) -> None:
    signer = cast.person("signer")
    wire = await place.enter()
    for sub, filter_ in (
        ("all", {"kinds": [24133, 1]}),
        ("to", {"kinds": [24133], "#p": [cast.bob.pubkey]}),
        ("by", {"authors": [signer.pubkey]}),
    ):
        await wire.send("REQ", sub, filter_, {"kinds": [1]})
        assert await wire.receive() == ["EOSE", sub]
    message = await place.say(signer, 24133, ["p", cast.bob.pubkey], content="psst")
    marker = await place.say(cast.alice, 1, content="marker")
    got = await until_marker(wire, marker, "all", "to", "by")
    both = {message.id, marker.id}
    assert got == {"all": {marker.id}, "to": both, "by": both}
