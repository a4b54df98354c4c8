"""The story of a group and its agent, told through a client of other people: `nostr-sdk`.

The library connects, logs in, signs, publishes, fetches and subscribes. Where it has no word for
what is asked (a COUNT that is CLOSED never ends in it), `Wire` asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from nostr_sdk import (
    Authenticator,
    ClientBuilder,
    ClientMessage,
    Event,
    EventBuilder,
    Filter,
    Keys,
    Kind,
    NostrSdkError,
    RelayUrl,
    ReqTarget,
    SignerAuthenticator,
    Tag,
    Timestamp,
    uniffi_set_event_loop,
)

from tests import cast
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import Rookery, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.nostr.keys import SecretKey

# Threads of nostr-sdk may ask for a login after `shutdown`, so their loop outlives the tests.
LASTING_LOOP = pytest.mark.asyncio(loop_scope="session")

pytestmark = [pytest.mark.slow, LASTING_LOOP]

WAIT = timedelta(seconds=ANSWER_S)
GROUP_KINDS = [9, 30078, 30093, 30095, 9000, 9002, 9007, 39001, 39002]
HK = "tea"
Draft = tuple[int, list[list[str]], str]
"""Kind, tags, content."""
CONFIG = "snowclaw:config:global"


class Person:
    """A key, its connection by nostr-sdk, and every message that came in on it, in order."""

    def __init__(self, key: SecretKey, url: str) -> None:
        self.key = key
        self.keys = Keys.parse(key.hex)
        self.url = RelayUrl.parse(url)
        self.messages: list[list[Any]] = []
        self.login_id = ""
        self._came = asyncio.Condition()
        self._counts = 0

    @contextlib.asynccontextmanager
    async def here(self, *, login: bool = True) -> AsyncIterator[Person]:
        builder = ClientBuilder()
        if login:
            builder = builder.authenticator(_Login(self))
        self.client = builder.build()
        notifications = self.client.notifications()
        listening = asyncio.create_task(self._listen(notifications))
        try:
            await self.client.add_relay(self.url)
            await self.client.connect(and_wait=WAIT)
            await self.heard(lambda frame: frame[0] == "AUTH")
            if login:
                answer = await self.heard(
                    lambda frame: frame[0] == "OK" and frame[1] == self.login_id
                )
                assert answer[2], answer
            yield self
        finally:
            await self.client.shutdown()  # ends the notifications, so the task ends by itself
            await asyncio.wait_for(listening, ANSWER_S)

    async def _listen(self, notifications: Any) -> None:
        while (notification := await notifications.next()) is not None:
            if notification.is_shutdown():
                return
            if notification.is_message():
                async with self._came:
                    self.messages.append(json.loads(notification.message.as_json()))
                    self._came.notify_all()

    async def heard(self, wanted: Callable[[list[Any]], bool]) -> list[Any]:
        """The first message like this, from the beginning on; waits for it."""

        def found() -> list[Any] | None:
            return next((frame for frame in self.messages if wanted(frame)), None)

        async with self._came, asyncio.timeout(WAIT.total_seconds()):
            await self._came.wait_for(lambda: found() is not None)
        frame = found()
        assert frame is not None
        return frame

    def event(
        self, kind: int, tags: Sequence[Sequence[str]], content: str = "", at: int | None = None
    ) -> Event:
        builder = EventBuilder(Kind(kind), content).tags([Tag.parse(list(tag)) for tag in tags])
        if at is not None:
            builder = builder.custom_created_at(Timestamp.from_secs(at))
        return builder.finalize(self.keys)

    async def publish(self, event: Event) -> tuple[bool, str]:
        """What the relay said; nostr-sdk's own view of it must agree."""
        sent = await self.client.send_event(event)
        id_ = _id(event)
        answer = await self.heard(lambda frame: frame[0] == "OK" and frame[1] == id_)
        assert bool(sent.success) is answer[2], (answer, sent.failed)
        return answer[2], answer[3]

    async def say(self, *about: Any, **more: Any) -> str:
        """Publish what must be taken; its id."""
        event = self.event(*about, **more)
        assert await self.publish(event) == (True, ""), event.as_json()
        return _id(event)

    async def fetch(self, **conditions: Any) -> list[str]:
        """Contents of the stored events, newest first."""
        return [event["content"] for event in await self.fetch_events(**conditions)]

    async def fetch_events(self, **conditions: Any) -> list[dict[str, Any]]:
        found = await self.client.fetch_events(
            ReqTarget.single(self.url, [_filter(conditions)]), timeout=WAIT
        )
        return [json.loads(event.as_json()) for event in found]

    async def why_not(self, **conditions: Any) -> str:
        """Why a REQ is CLOSED."""
        relay = await self.client.relay(self.url)
        assert relay is not None
        with pytest.raises(NostrSdkError) as refused:
            await relay.fetch_events(_filter(conditions), timeout=WAIT)
        return str(refused.value)

    async def count(self, **conditions: Any) -> int:
        """By frames of nostr-sdk's: its own `count_events` misses an answer that comes at once."""
        relay = await self.client.relay(self.url)
        assert relay is not None
        self._counts += 1
        sub = f"count {self._counts}"
        await relay.send_msg(ClientMessage.count(sub, _filter(conditions)))
        answer = await self.heard(lambda frame: frame[:2] == ["COUNT", sub])
        number = answer[2]["count"]
        assert isinstance(number, int)
        return number

    async def subscribe(self, *filters: dict[str, Any]) -> str:
        """Open it, wait for EOSE."""
        wanted = [_filter(filter_) for filter_ in filters]
        opened = await self.client.subscribe(ReqTarget.single(self.url, wanted))
        assert opened.success, opened.failed
        await self.heard(lambda frame: frame[:2] == ["EOSE", opened.id])
        return str(opened.id)

    def got(self, sub: str) -> list[str]:
        """Contents of what a subscription brought so far."""
        return [frame[2]["content"] for frame in self.messages if frame[:2] == ["EVENT", sub]]

    async def gets(self, sub: str, content: str) -> None:
        """Wait until the subscription brings an event of this content."""
        await self.heard(
            lambda frame: frame[:2] == ["EVENT", sub] and frame[2]["content"] == content
        )


class _Login(Authenticator):  # type: ignore[misc]
    """NIP-42 by nostr-sdk, telling which event it was, so that its OK can be waited for."""

    def __init__(self, person: Person) -> None:
        super().__init__()
        self._person = person
        self._real = SignerAuthenticator(person.keys)

    async def make_auth_event(self, relay_url: RelayUrl, challenge: str) -> Event | None:
        event = await self._real.make_auth_event(relay_url, challenge)
        assert event is not None
        self._person.login_id = _id(event)
        return event


def _id(event: Event) -> str:
    return str(event.id().to_hex())


def _filter(conditions: dict[str, Any]) -> Filter:
    """`h=["tea"]` is `#h`: Python has no `#` in names."""
    named = {(f"#{key}" if len(key) == 1 else key): value for key, value in conditions.items()}
    return Filter.from_json(json.dumps(named))


# -- what an agent remembers -----------------------------------------------------------------------


def aman(kind: int, label: str, d: str, payload: dict[str, Any], ts: int) -> Draft:
    """Kind, tags in the order of A-01 with the group behind, content."""
    tags = [["d", d], ["k", label], ["hk", HK], ["v", "1"], ["ts", str(ts)], ["h", "tea"]]
    return kind, tags, compact(payload)


def tool(content: str, ts: int) -> Draft:
    payload = {
        "history_key": HK,
        "tool_name": "weather",
        "success": True,
        "content": content,
        "sender_id": cast.alice.pubkey,
        "group_id": "tea",
        "created_at": ts,
    }
    d = f"{HK}:{hashlib.sha256(compact(payload).encode()).hexdigest()}"
    return aman(30095, "aman_tool_history", d, payload, ts)


def preference(text: str, ts: int) -> Draft:
    payload = {"history_key": HK, "preference": text, "updated_at": ts}
    return aman(30093, "aman_preference", f"{HK}:preference", payload, ts)


def group_memory(purpose: str, ts: int) -> Draft:
    content = {
        "purpose": purpose,
        "members": [[cast.alice.npub, "alice"]],
        "themes": ["oolong"],
        "decisions": [["tea at four", ts]],
    }
    return 30078, [["d", "snowclaw:memory:group:tea"], ["h", "tea"]], compact(content)


def config(mode: str, **tags: str) -> Draft:
    """Document's form and code's form at once (S-15)."""
    fields = [["respond_mode", mode], ["context_history", "20"]]
    content = compact({"respond_mode": mode, "context_history": 20})
    return 30078, [["d", CONFIG], *fields, *([key, value] for key, value in tags.items())], content


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# -- the place ------------------------------------------------------------------------------------


class RelayWithGroup:
    """A relay with the private group `tea`: alice is a member, the robot an agent in it."""

    def __init__(self, rookery: Rookery, stack: contextlib.AsyncExitStack) -> None:
        self.rookery = rookery
        self._stack = stack
        self.now = int(time.time())

    async def enter(self, key: SecretKey, *, login: bool = True) -> Person:
        person = Person(key, self.rookery.url)
        return await self._stack.enter_async_context(person.here(login=login))

    async def make_group(self) -> None:
        owner = self.owner = await self.enter(cast.owner)
        await owner.say(9007, [["h", "tea"]])
        flags = [["private"], ["restricted"], ["closed"]]
        await owner.say(9002, [["h", "tea"], ["name", "Tea room"], *flags])
        await owner.say(9000, [["h", "tea"], ["p", cast.alice.pubkey]])
        await owner.say(9000, [["h", "tea"], ["p", cast.robot.pubkey, "agent"]])
        self.robot = await self.enter(cast.robot)

    async def remember(self) -> dict[str, str]:
        """The agent writes one of each; their contents."""
        said = {
            "chat": (9, [["h", "tea"]], "the kettle is on"),
            "memory": group_memory("to drink tea", self.now),
            "tool": tool("sunny", self.now),
            "preference": preference("oolong", self.now),
        }
        for about in said.values():
            await self.robot.say(*about)
        return {name: about[2] for name, about in said.items()}


@pytest_asyncio.fixture(loop_scope="session")
async def place(tmp_path: Path) -> AsyncIterator[RelayWithGroup]:
    uniffi_set_event_loop(asyncio.get_running_loop())
    async with Rookery(tmp_path / "data") as rookery, contextlib.AsyncExitStack() as stack:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.start()
        place = RelayWithGroup(rookery, stack)
        await place.make_group()
        yield place
        await stack.aclose()
        assert await rookery.stop() == 0
        assert not any("Traceback" in line for line in rookery.lines), rookery.lines


# -- the story ------------------------------------------------------------------------------------


async def test_the_group_is_what_its_owner_made_it(place: RelayWithGroup) -> None:
    member = await place.enter(cast.alice)
    [about] = await member.fetch_events(kinds=[39000], d=["tea"])
    tags = about["tags"]
    assert ["name", "Tea room"] in tags
    assert {tag[0] for tag in tags} >= {"private", "restricted", "closed"}
    [members] = await member.fetch_events(kinds=[39002], d=["tea"])
    people = {tag[1] for tag in members["tags"] if tag[0] == "p"}
    assert people == {cast.owner.pubkey, cast.alice.pubkey, cast.robot.pubkey}


async def test_tool_history_is_first_come_and_a_preference_goes_by_ts(
    place: RelayWithGroup,
) -> None:
    robot, now = place.robot, place.now
    first = tool("sunny", now)
    await robot.say(*first, at=now)
    again = robot.event(*first, at=now + 1)
    assert await robot.publish(again) == (True, "duplicate: already stored under this d")
    [kept] = await robot.fetch_events(kinds=[30095], h=["tea"])
    assert (kept["created_at"], kept["content"]) == (now, first[2])
    assert await robot.fetch(ids=[_id(again)]) == []

    await robot.say(*preference("green", now), at=now + 5)
    await robot.say(*preference("oolong", now + 10), at=now)
    assert await robot.fetch(kinds=[30093]) == [preference("oolong", now + 10)[2]]
    late = robot.event(*preference("black", now + 9), at=now + 20)
    assert await robot.publish(late) == (False, "duplicate: a newer version is stored")
    assert await robot.fetch(kinds=[30093]) == [preference("oolong", now + 10)[2]]


async def test_a_member_reads_what_the_agent_wrote_stored_and_live(place: RelayWithGroup) -> None:
    member = await place.enter(cast.alice)
    live = await member.subscribe({"h": ["tea"], "since": place.now}, {"kinds": GROUP_KINDS})
    said = await place.remember()
    for content in said.values():
        await member.gets(live, content)
    assert len([text for text in member.got(live) if text in said.values()]) == len(said)

    assert await member.fetch(kinds=[9], h=["tea"]) == [said["chat"]]
    assert await member.fetch(kinds=[30078], d=["snowclaw:memory:group:tea"]) == [said["memory"]]
    assert await member.fetch(kinds=[30095], authors=[cast.robot.pubkey]) == [said["tool"]]
    assert await member.fetch(kinds=[30093], d=["tea:preference"]) == [said["preference"]]
    found = await member.fetch_events(kinds=[9, 30078, 30093, 30095], h=["tea"])
    assert sorted(event["content"] for event in found) == sorted(said.values())
    assert all(event["pubkey"] == cast.robot.pubkey for event in found)
    assert await member.count(kinds=[9, 30078, 30093, 30095], h=["tea"]) == len(said)
    answer = member.event(9, [["h", "tea"]], "coming")
    assert await member.publish(answer) == (True, "")
    assert await place.robot.fetch(kinds=[9], authors=[cast.alice.pubkey]) == ["coming"]


@pytest.mark.parametrize("login", [False, True], ids=["unknown", "as a stranger"])
async def test_an_outsider_gets_nothing(place: RelayWithGroup, *, login: bool) -> None:
    before = await place.remember()
    robot_rows = await place.robot.fetch_events(kinds=[9, 30078, 30093, 30095])
    ids = [event["id"] for event in robot_rows]
    assert len(ids) == len(before)
    outsider = await place.enter(cast.stranger, login=login)
    word = "restricted:" if login else "auth-required:"

    assert word in await outsider.why_not(h=["tea"])
    assert word in await outsider.why_not(kinds=[9], h=["tea"])
    memory = {"kinds": [30078], "d": ["snowclaw:memory:group:tea"]}
    if login:  # they might have such a record of their own
        assert await outsider.fetch(**memory) == []
    else:
        assert word in await outsider.why_not(**memory)
    for conditions in (
        {"ids": ids},
        {"kinds": [9]},
        {"authors": [cast.robot.pubkey]},
        {"kinds": GROUP_KINDS},
        {"p": [cast.alice.pubkey]},
        {"since": place.now - 100, "kinds": [9, 11, 12]},
        {"d": ["tea:preference"]},
        {"kinds": [39002], "d": ["tea"]},
    ):
        assert await outsider.fetch(**conditions) == [], conditions

    live = await outsider.subscribe(
        {"kinds": [9]},
        {"kinds": GROUP_KINDS},
        {"authors": [cast.robot.pubkey]},
        {"kinds": [1]},
        {"d": ["tea:preference", "snowclaw:memory:group:tea"]},
    )
    await place.robot.say(9, [["h", "tea"]], "not for everybody")
    await place.robot.say(*preference("white", place.now + 3))
    await place.owner.say(1, [], "for everybody")
    await outsider.gets(live, "for everybody")
    assert outsider.got(live) == ["for everybody"]

    async with connected(place.rookery.url) as wire:
        if login:
            await wire.log_in(cast.stranger, place.rookery.url, int(time.time()))
        for filter_ in (
            {"ids": ids},
            {"kinds": [9]},
            {"authors": [cast.robot.pubkey]},
            {"#h": ["tea"]},
            {"kinds": [30078]},
            {"kinds": [30093, 30095], "#h": ["tea"]},
            {"kinds": GROUP_KINDS},
            {"#d": ["snowclaw:memory:group:tea"]},
        ):
            await wire.send("COUNT", "c", filter_)
            frame = await wire.receive()
            if frame[0] == "COUNT":  # and its HyperLogLog, where it has one, counts nobody
                assert frame[2]["count"] == 0, (filter_, frame)
                assert set(frame[2].get("hll", "0")) == {"0"}, (filter_, frame)
            else:
                assert frame[:2] == ["CLOSED", "c"], (filter_, frame)
                assert frame[2].startswith(word), (filter_, frame)
        await wire.send("COUNT", "c", {"kinds": [9], "#h": ["tea"]})
        assert (await wire.receive())[0] == "CLOSED"


async def test_an_outsider_may_not_write_either(place: RelayWithGroup) -> None:
    outsider = await place.enter(cast.stranger)
    taken, text = await outsider.publish(outsider.event(9, [["h", "tea"]], "hello?"))
    assert (taken, text.split(":")[0]) == (False, "restricted")
    taken, text = await outsider.publish(outsider.event(*preference("mud", place.now)))
    assert (taken, text.split(":")[0]) == (False, "restricted")
    member = await place.enter(cast.alice)
    taken, text = await member.publish(member.event(*preference("mud", place.now)))
    assert (taken, text) == (False, "restricted: only agents may write memory")


async def test_a_removed_members_open_subscription_is_silent_at_once(place: RelayWithGroup) -> None:
    member = await place.enter(cast.alice)
    wanted = ({"kinds": [9, 30078, 30093, 30095], "h": ["tea"]}, {"kinds": [1]})
    live = await member.subscribe(*wanted)
    staying = await place.owner.subscribe(*wanted)
    await place.robot.say(9, [["h", "tea"]], "to all of you")
    await member.gets(live, "to all of you")

    await place.owner.say(9001, [["h", "tea"], ["p", cast.alice.pubkey]])
    await place.robot.say(9, [["h", "tea"]], "not to alice")
    await place.robot.say(*preference("not to alice either", place.now + 4))
    await place.robot.say(1, [], "marker")
    await place.owner.gets(staying, "marker")
    await member.gets(live, "marker")
    assert member.got(live) == ["to all of you", "marker"]
    assert place.owner.got(staying) == [
        "to all of you",
        "not to alice",
        preference("not to alice either", place.now + 4)[2],
        "marker",
    ]

    assert await member.fetch(kinds=[9]) == []
    assert await member.fetch(authors=[cast.robot.pubkey], kinds=[9, 30093, 30095, 30078]) == []
    taken, text = await member.publish(member.event(9, [["h", "tea"]], "still here?"))
    assert (taken, text.split(":")[0]) == (False, "restricted")


async def test_config_is_the_owners_and_read_by_owner_and_agents_only(
    place: RelayWithGroup,
) -> None:
    owner, robot = place.owner, place.robot
    member = await place.enter(cast.alice)
    for person in (robot, member):
        taken, text = await person.publish(person.event(*config("all")))
        assert (taken, text) == (False, "restricted: only an owner may write config")

    watching = {"kinds": [30078, 1]}
    at_owner, at_robot = await owner.subscribe(watching), await robot.subscribe(watching)
    at_member = await member.subscribe(watching)
    text = config("mention")[2]
    await owner.say(*config("mention"), at=place.now)
    newer = config("none", h="tea")
    await owner.say(*newer, at=place.now + 1)
    await owner.say(1, [], "marker")
    for person, sub in ((owner, at_owner), (robot, at_robot)):
        await person.gets(sub, "marker")
        assert person.got(sub) == [text, newer[2], "marker"]
        assert await person.fetch(kinds=[30078], d=[CONFIG]) == [newer[2]]
        assert await person.fetch(kinds=[30078], h=["tea"]) == [newer[2]]
        assert await person.count(kinds=[30078], d=["snowclaw:config:"]) == 1
    await member.gets(at_member, "marker")
    assert member.got(at_member) == ["marker"]
    assert await member.fetch(kinds=[30078]) == []
    assert await member.fetch(authors=[cast.owner.pubkey], kinds=[30078]) == []
    assert await member.count(kinds=[30078]) == 0
    assert "restricted:" in await member.why_not(kinds=[30078], d=[CONFIG])


async def test_the_whole_story_survives_a_restart(place: RelayWithGroup) -> None:
    said = await place.remember()
    await place.owner.say(9001, [["h", "tea"], ["p", cast.alice.pubkey]])
    await place.owner.say(9000, [["h", "tea"], ["p", cast.bob.pubkey]])
    assert await place.rookery.stop() == 0
    await place.rookery.start()
    bob, alice = await place.enter(cast.bob), await place.enter(cast.alice)
    found = await bob.fetch(kinds=[9, 30078, 30093, 30095], h=["tea"])
    assert sorted(found) == sorted(said.values())
    assert await alice.fetch(kinds=[9, 30078, 30093, 30095]) == []
