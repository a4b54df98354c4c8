"""Agents of Buzz: logging in with an owner's attestation, and what deer-flow's connector does.

`Connector` is written from the facts of deer-flow's `backend/app/channels/buzz.py` (11cd9507): it
asks before it logs in, opens everything again once its AUTH is acknowledged, lists channels by
`{"kinds": [39000]}`, listens to each with one REQ of one `#h`, learns of others by 44100 and 44101,
and gives up a subscription that ends with one of `FINAL`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from relay.nostr.agents import signed_digest
from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected, eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

FINAL = ("auth-required:", "restricted:", "blocked:", "mute:", "invalid:", "pow:")
HELPER = cast.person("helper")
"""An agent that nobody has enrolled."""
REFUSED = (False, "restricted: only people known here may write; join a group first")
NO_MEMBER = [False, "restricted: auth: the owner is no member of this relay"]
EXPIRED = [False, "restricted: auth: not valid yet, or expired"]


def attesting(owner: SecretKey, conditions: str = "", *, agent: SecretKey = HELPER) -> list[str]:
    signature = owner.sign_digest(signed_digest(agent.pubkey, conditions))
    return ["auth", owner.pubkey, conditions, signature]


class Place:
    """A relay with the preset `group`: owner and alice are in `tea`, the agent is in nothing."""

    def __init__(self, rookery: Rookery, stack: contextlib.AsyncExitStack, publisher: Wire) -> None:
        self.rookery = rookery
        self.stack = stack
        self.publisher = publisher

    async def enter(self) -> Wire:
        return await self.stack.enter_async_context(connected(self.rookery.url))

    async def answer_to_login(
        self,
        wire: Wire,
        *tags: Sequence[str],
        key: SecretKey = HELPER,
        url: str | None = None,
        at: int | None = None,
    ) -> list[Any]:
        relay = self.rookery.url if url is None else url
        own = [["relay", relay], ["challenge", wire.challenge]]
        now = int(time.time()) if at is None else at
        event = key.sign(22242, [*own, *map(list, tags)], "", now)
        await wire.send_event(event, "AUTH")
        while (frame := await wire.receive())[:2] != ["OK", event.id]:
            pass
        return frame[2:]

    async def agent(self, *tags: Sequence[str]) -> Wire:
        wire = await self.enter()
        assert await self.answer_to_login(wire, *tags) == [True, ""]
        return wire

    async def say(
        self, key: SecretKey, kind: int, *tags: Sequence[str], content: str = ""
    ) -> tuple[bool, str]:
        unique = ["nonce", f"{time.monotonic_ns()}"]
        own = [unique, *map(list, tags)]
        event = key.sign(kind, own, content, int(time.time()))
        return await self.publisher.publish(event)

    async def do(self, key: SecretKey, kind: int, *tags: Sequence[str], content: str = "") -> None:
        assert await self.say(key, kind, *tags, content=content) == (True, "")


async def writes(wire: Wire, kind: int = 1, key: SecretKey = HELPER, *tags: list[str]) -> Any:
    text, now = f"{time.monotonic_ns()}", int(time.time())
    return await wire.publish(key.sign(kind, list(tags), text, now))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with Rookery(tmp_path / "data") as rookery, contextlib.AsyncExitStack() as stack:
        await rookery.init(
            "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "group"
        )
        (tmp_path / "data" / "policies" / "20-own.toml").write_text(
            '[[rule]]\nname = "notes are for known people"\nmatch = { kinds = [1] }\n'
            'read = ["known"]\n'
        )
        # The connector opens at most 256 beside its first two; the default is 200.
        file = tmp_path / "data" / "rookery.toml"
        limits = "[limits]\nmax_subscriptions = 258\n"
        file.write_text(file.read_text().replace("[limits]\n", limits, 1))
        await rookery.start()
        publisher = await stack.enter_async_context(connected(rookery.url))
        place = Place(rookery, stack, publisher)
        await place.do(cast.owner, 9007, ["h", "tea"])
        await place.do(cast.owner, 9000, ["h", "tea"], ["p", cast.alice.pubkey])
        yield place
        await stack.aclose()
        assert await rookery.stop() == 0
    print(*rookery.lines, sep="\n")
    assert "Traceback" not in "\n".join(rookery.lines)


# -- attestations ----------------------------------------------------------------------------------


@pytest.mark.proves("B-11", "B-14")
async def test_an_agent_is_known_by_its_owner_on_its_connection_alone(place: Place) -> None:
    await place.do(cast.alice, 1, content="for us")
    plain, wire = await place.agent(), await place.agent(attesting(cast.alice))
    assert await writes(plain) == REFUSED
    assert await writes(wire) == (True, "")
    assert await writes(place.publisher) == REFUSED
    assert len(await wire.query({"kinds": [1]})) == 2
    assert await plain.query({"kinds": [1]}) == []
    # Not the owner's groups, not what the owner may sign, no group of its own.
    assert await wire.query({"kinds": [39002], "#d": ["tea"]}) == []
    assert await writes(wire, 9, HELPER, ["h", "tea"]) == (False, "restricted: not a member")
    assert await writes(wire, 1, cast.stranger) == REFUSED
    refused = (False, "restricted: you may not create groups here")
    assert await writes(wire, 9007, HELPER, ["h", "mine"]) == refused
    (tmp := place.rookery.folder / "policies" / "30-known.toml").write_text(
        '[groups]\ncreate = ["known"]\n'
    )
    place.rookery.send_signal(1)
    async with until("known people make groups") as tries:
        async for number in tries:
            made = cast.alice.sign(9007, [["h", f"g{number}"]], "", int(time.time()))
            if (await place.publisher.publish(made))[0]:
                break
    assert await writes(wire, 9007, HELPER, ["h", "mine"]) == refused
    assert tmp.exists()


@pytest.mark.proves("B-12")
async def test_an_owner_who_is_no_root_member_vouches_for_nobody(place: Place) -> None:
    wire = await place.enter()
    second = cast.person("second")
    for owner in (cast.stranger, cast.robot, HELPER):
        tag = attesting(owner, agent=second)
        assert await place.answer_to_login(wire, tag, key=second) == NO_MEMBER
    # A chain of two: its owner is here by an attestation itself.
    assert await place.answer_to_login(wire, attesting(cast.alice)) == [True, ""]
    tag = attesting(HELPER, agent=second)
    assert await place.answer_to_login(wire, tag, key=second) == NO_MEMBER
    assert await writes(wire, 1, second) == REFUSED
    # Who is known anyway needs none.
    tag = attesting(cast.stranger, agent=cast.alice)
    assert await place.answer_to_login(wire, tag, key=cast.alice) == [True, ""]


@pytest.mark.proves("B-10", "B-15")
async def test_a_bad_attestation_is_no_login(place: Place) -> None:
    wire, now = await place.enter(), int(time.time())
    elsewhere = await place.answer_to_login(
        wire, attesting(cast.alice), url="wss://elsewhere.example"
    )
    assert elsewhere == [False, "invalid: relay: is not this relay's URL"]
    for conditions, at in (
        (f"created_at<{now}", now),
        (f"created_at<{now - 60}", now - 120),
        (f"created_at>{now + 60}", now),
        (f"created_at>{now + 60}", now + 120),
    ):
        tag = attesting(cast.alice, conditions)
        assert await place.answer_to_login(wire, tag, at=at) == EXPIRED
    start = "restricted: auth: "
    foreign = attesting(cast.alice, agent=cast.stranger)
    for tags, why in (
        ([foreign], "not signed by this owner for this agent and these conditions"),
        ([attesting(cast.alice, "kind=1&x")], "condition 2 is malformed or unknown"),
        ([attesting(HELPER)], "nobody is their own owner"),
        ([attesting(cast.alice)] * 2, "one tag only"),
        ([["auth", cast.alice.pubkey]], "must have four elements"),
    ):
        assert await place.answer_to_login(wire, *tags) == [False, start + why]
    assert await writes(wire) == REFUSED
    assert await wire.query({"kinds": [44100], "#p": [HELPER.pubkey]}) == []
    assert await place.answer_to_login(wire, attesting(cast.alice)) == [True, ""]
    assert await writes(wire) == (True, "")


@pytest.mark.proves("B-13")
@pytest.mark.parametrize("how", ["removed", "vanished", "banned", "expired"])
async def test_what_an_owner_gave_ends_at_once(place: Place, how: str) -> None:
    await place.do(cast.owner, 9000, ["h", "tea"], ["p", cast.bob.pubkey])
    conditions = f"created_at<{int(time.time()) + 3}" if how == "expired" else ""
    wire = await place.agent(attesting(cast.bob, conditions))
    await wire.send("REQ", "live", {"kinds": [1, 30023]})
    assert await wire.receive() == ["EOSE", "live"]
    await place.do(cast.alice, 1, content="before")
    assert (await wire.receive())[2]["content"] == "before"
    match how:
        case "removed":
            await place.do(cast.owner, 9001, ["h", "tea"], ["p", cast.bob.pubkey])
        case "vanished":
            await place.do(cast.bob, 62, ["relay", "ALL_RELAYS"])
        case "banned":
            folder = place.rookery.folder / "policies"
            (folder / "banned.txt").write_text(cast.bob.pubkey)
            (folder / "30-ban.toml").write_text('[bans]\nfiles = ["banned.txt"]\n')
            place.rookery.send_signal(1)
    async with until("the agent is known no more") as tries:
        async for _ in tries:
            if await writes(wire) == REFUSED:
                break
            # Its own note comes back to it while it is known.
    await place.do(cast.alice, 1, content="after")
    await place.do(cast.alice, 30023, ["d", "marker"], content="marker")
    got: list[str] = []
    while not got or got[-1] != "marker":
        frame = await wire.receive()
        if frame[0] == "EVENT" and frame[2]["pubkey"] == cast.alice.pubkey:
            got.append(frame[2]["content"])
    assert got == ["marker"]
    await wire.send("CLOSE", "live")
    assert await wire.query({"kinds": [1]}) == []
    if how != "expired":
        answer = await place.answer_to_login(await place.enter(), attesting(cast.bob))
        assert answer == NO_MEMBER


@pytest.mark.proves("B-16")
async def test_kinds_of_an_attestation_bound_what_it_writes(place: Place) -> None:
    wire = await place.agent(attesting(cast.alice, "kind=1"))
    assert await writes(wire, 1) == (True, "")
    assert await writes(wire, 30023, HELPER, ["d", "x"]) == REFUSED
    # A later login of the same key replaces the attestation.
    assert await place.answer_to_login(wire, attesting(cast.alice, "kind=30023")) == [True, ""]
    assert await writes(wire, 1) == REFUSED
    assert await writes(wire, 30023, HELPER, ["d", "x"]) == (True, "")


@pytest.mark.proves("B-17")
async def test_the_policy_says_how_far_an_attestation_goes(place: Place) -> None:
    await place.do(cast.alice, 9, ["h", "tea"], content="for members")
    wire = await place.agent(attesting(cast.alice))
    asked = {"kinds": [9], "#h": ["tea"]}
    assert await wire.query(asked) == []
    policy = place.rookery.folder / "policies" / "30-members.toml"
    policy.write_text('[members]\nattestations = "groups"\n')
    place.rookery.send_signal(1)
    await eventually("the agent reads what its owner reads", lambda: wire.query(asked))
    assert await writes(wire, 9, HELPER, ["h", "tea"]) == (True, "")
    assert len(await wire.query({"kinds": [39002], "#d": ["tea"]})) == 1
    only_admins = (False, "restricted: not a member")
    assert await writes(wire, 9005, HELPER, ["h", "tea"], ["e", "0" * 64]) == only_admins
    await place.do(cast.owner, 9001, ["h", "tea"], ["p", cast.alice.pubkey])
    assert await wire.query(asked) == []
    assert (await writes(wire, 9, HELPER, ["h", "tea"]))[0] is False
    await place.do(cast.owner, 9000, ["h", "tea"], ["p", cast.alice.pubkey])
    assert len(await wire.query(asked)) == 2
    policy.write_text('[members]\nattestations = "off"\n')
    place.rookery.send_signal(1)
    async with until("attestations mean nothing") as tries:
        async for _ in tries:
            if await writes(wire) == REFUSED:
                break
    assert await wire.query(asked) == []
    later = await place.agent(["auth", "anything"])
    assert await writes(later) == REFUSED


# -- deer-flow's connector -------------------------------------------------------------------------


class Connector:
    """One session of the connector; `heard` is what it would hand to its agent."""

    def __init__(self, place: Place, wire: Wire, *tags: Sequence[str]) -> None:
        self._place = place
        self._wire = wire
        self._tags = tags
        self._since = int(time.time()) - 60
        self.channels: dict[str, dict[str, Any]] = {}
        self.listening: set[str] = set()
        self.heard: list[tuple[str, str]] = []
        self.lost: dict[str, str] = {}
        """Subscription → the final reason with which it ended after the login."""
        self.is_acknowledged = False

    async def start(self) -> None:
        await self._open()
        own = [["relay", self._place.rookery.url], ["challenge", self._wire.challenge]]
        login = HELPER.sign(22242, [*own, *map(list, self._tags)], "", int(time.time()))
        await self._wire.send_event(login, "AUTH")
        await self.run_until(lambda frame: frame[:3] == ["OK", login.id, True])
        self.is_acknowledged = True
        self.listening.clear()
        await self._open()
        await self.run_until(lambda frame: frame == ["EOSE", "buzz-membership"])

    async def _open(self) -> None:
        await self._wire.send("REQ", "buzz-discovery", {"kinds": [39000]})
        asked = {"kinds": [44100, 44101], "#p": [HELPER.pubkey], "since": self._since}
        await self._wire.send("REQ", "buzz-membership", asked)

    async def run_until(self, is_it: Any) -> None:
        while True:
            frame = await self._wire.receive()
            await self._take(frame)
            if is_it(frame):
                return

    async def _take(self, frame: list[Any]) -> None:
        match frame:
            case ["EVENT", _, {"kind": 39000} as event]:
                named = {tag[0]: tag[1] for tag in reversed(event["tags"]) if len(tag) > 1}
                self.channels[named["d"]] = named
                await self._listen(named["d"])
            case ["EVENT", _, {"kind": 44100 | 44101 as kind} as event]:
                (channel,) = [tag[1] for tag in event["tags"] if tag[0] == "h"]
                if kind == 44100:
                    await self._listen(channel)
                    if channel not in self.channels:
                        await self._wire.send("REQ", "buzz-discovery", {"kinds": [39000]})
                else:
                    self.listening.discard(channel)
                    self.channels.pop(channel, None)
                    await self._wire.send("CLOSE", f"buzz-chat-{channel}")
            case ["EVENT", sub, {"kind": 9} as event]:
                mentioned = ["p", HELPER.pubkey] in event["tags"]
                if mentioned and event["pubkey"] != HELPER.pubkey:
                    self.heard.append((sub.removeprefix("buzz-chat-"), event["content"]))
            case ["CLOSED", sub, reason]:
                self.listening.discard(sub.removeprefix("buzz-chat-"))
                assert reason.startswith(FINAL), reason
                if self.is_acknowledged:
                    self.lost[sub] = reason

    async def _listen(self, channel: str) -> None:
        if channel not in self.listening and len(self.listening) < 256:
            asked = {"kinds": [9], "#h": [channel]}
            await self._wire.send("REQ", f"buzz-chat-{channel}", asked)
            self.listening.add(channel)

    async def hears(self, what: tuple[str, str]) -> None:
        await self.run_until(lambda _frame: what in self.heard)


@pytest.mark.proves("B-05", "B-06", "B-11")
async def test_a_connector_hears_mentions_and_where_it_is_put(place: Place) -> None:
    mention = ["p", HELPER.pubkey]
    connector = Connector(place, await place.enter(), attesting(cast.alice))
    await connector.start()
    assert connector.channels.keys() == {"tea"}
    # Not a member of tea: its subscription has ended for good, and nothing else has.
    await connector.run_until(lambda frame: frame[0] == "CLOSED")
    assert connector.lost.keys() == {"buzz-chat-tea"}
    assert connector.listening == set()
    # It is put into a channel that a client of Buzz has made.
    made = cast.owner.sign(
        9007,
        [["name", "general"], ["visibility", "private"], ["channel_type", "stream"]],
        "",
        int(time.time()),
    )
    assert await place.publisher.publish(made) == (True, "")
    owner = await place.enter()
    await owner.log_in(cast.owner, place.rookery.url, int(time.time()))
    (channel,) = [
        tag[1]
        for event in await owner.query({"kinds": [44100], "#p": [cast.owner.pubkey]})
        for tag in event["tags"]
        if tag[0] == "h" and tag[1] != "tea"
    ]
    await place.do(cast.owner, 9000, ["h", channel], mention)
    await connector.run_until(lambda _frame: channel in connector.listening)
    await connector.run_until(lambda _frame: channel in connector.channels)
    assert connector.channels[channel]["name"] == "general"
    assert connector.channels[channel]["t"] == "stream"
    await place.do(cast.owner, 9, ["h", channel], content="to nobody")
    await place.do(cast.owner, 9, ["h", channel], mention, content="hello, agent")
    await connector.hears((channel, "hello, agent"))
    # It answers with a message, and edits that.
    answer = HELPER.sign(9, [["h", channel]], "…", int(time.time()))
    assert await place.publisher.publish(answer) == (True, "")
    edit = HELPER.sign(40003, [["h", channel], ["e", answer.id]], "done", int(time.time()))
    assert await place.publisher.publish(edit) == (True, "")
    # It is taken out, and hears no more of it.
    await place.do(cast.owner, 9001, ["h", channel], mention)
    await connector.run_until(lambda _frame: channel not in connector.listening)
    await place.do(cast.owner, 9, ["h", channel], mention, content="after")
    await place.do(cast.owner, 9000, ["h", "tea"], mention)
    await place.do(cast.owner, 9, ["h", "tea"], mention, content="tea is ready")
    await connector.hears(("tea", "tea is ready"))
    assert connector.heard == [(channel, "hello, agent"), ("tea", "tea is ready")]


async def test_a_connector_listens_to_256_channels(place: Place) -> None:
    mention = ["p", HELPER.pubkey]
    channels = [f"channel-{number}" for number in range(256)]
    await place.do(cast.owner, 9008, ["h", "tea"])  # it would take one of the 256
    for channel in channels:
        await place.do(cast.owner, 9007, ["h", channel])
        await place.do(cast.owner, 9000, ["h", channel], mention)
    connector = Connector(place, await place.enter())
    await connector.start()
    await connector.run_until(lambda frame: len(connector.listening) >= 256)
    for channel in channels[::85]:
        await place.do(cast.owner, 9, ["h", channel], mention, content="hello")
        await connector.hears((channel, "hello"))
    assert connector.lost == {}
