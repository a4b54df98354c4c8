"""Snowclaw on a connection: loading, following, saving, searching."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import (
    Client,
    LeftInCache,
    PublishRefused,
    QueryClosed,
    Snowclaw,
    Unanswered,
    snowclaw,
)
from relay.client.snowclaw_records import FLUSH_AFTER_S, FLUSH_AT
from relay.client.writer import Outcome
from relay.errors import ANOTHER_VERSION, Invalid, UserError
from relay.memory.draft import Draft
from relay.memory.junk import Why
from relay.memory.snowclaw.agent_memory import AgentMemory
from relay.memory.snowclaw.context import Part, Section
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.snowclaw.users import MAX_NOTE, UserMemory
from relay.nostr import nip59
from relay.nostr.event import event_from
from relay.nostr.filters import Filter
from relay.nostr.keys import SecretKey
from relay.nostr.nip59 import unsigned, wrapped
from tests.cast import alice, bob, dave, owner, person, robot, rover
from tests.harness.erasure import left_of
from tests.harness.patience import ANSWER_S
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_debounce import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_700_000_000
ALICE = f"snowclaw:memory:npub:{alice.pubkey[:32]}"
ROOKERY = {
    "memory": {"prefix_d_kinds": [78, 30078]},
    "supported_nips": [1, 50],
}


@pytest.fixture(autouse=True)
def as_rookery(fake: FakeRelay) -> None:
    fake.information = ROOKERY


@asynccontextmanager
async def agent(
    fake: FakeRelay,
    folder: Path | None = None,
    signer: SecretKey = robot,
    now: Callable[[], int] = lambda: NOW,
    **more: Any,
) -> AsyncIterator[Snowclaw]:
    client = Client(fake.url, signer, timeouts=TIMEOUTS, now=now, start_offline=folder is not None)
    given: dict[str, Any] = {"names": ["robot"], "later": Clock().later} | more
    async with client, Snowclaw(client, signer, owner.npub, folder=folder, **given) as claw:
        yield claw


@asynccontextmanager
async def started(fake: FakeRelay, **more: Any) -> AsyncIterator[Snowclaw]:
    async with agent(fake, **more) as claw:
        await claw._client.wait_connected()
        await claw.start()
        yield claw


def record(d: str, fields: object, at: int = NOW - 9, by: SecretKey = robot) -> Event:
    return by.sign(30078, [["d", d]], json.dumps(fields), at)


def config(scope: str, at: int = NOW - 9, by: SecretKey = owner, **values: object) -> Event:
    return record(f"snowclaw:config:{scope}", values, at, by)


def said(text: str, at: int = NOW, group: str = "tea", by: SecretKey = alice) -> Event:
    return by.sign(9, [["h", group]], text, at)


def added(group: str, at: int = NOW - 9, by: SecretKey = owner, kind: int = 9000) -> Event:
    """The agent put into a group."""
    return by.sign(kind, [["h", group], ["p", robot.pubkey]], "", at)


def stored(fake: FakeRelay, d: str) -> list[dict[str, Any]]:
    return [json.loads(event.content) for event in fake.events if event.d == d]


def flushes(clock: Clock) -> int:
    """Timers of one that is due."""
    return len([seconds for seconds, _ in clock.timers if seconds == FLUSH_AFTER_S])


async def until(condition: Callable[[], object]) -> None:
    """What a client does with a frame it does a moment after the relay sent it."""
    async with asyncio.timeout(ANSWER_S):
        while not condition():  # noqa: ASYNC110  nothing rings when it is so
            await asyncio.sleep(0)


def delete_caches(folder: Path) -> None:
    for file in folder.glob("*.cache*"):
        file.unlink()


def asked(fake: FakeRelay) -> list[dict[str, Any]]:
    return [filter_ for frame in fake.verbs("REQ") for filter_ in frame[2:]]


def chats_asked(fake: FakeRelay) -> list[dict[str, Any]]:
    return [filter_ for filter_ in asked(fake) if filter_["kinds"] == [9, 11, 12]]


# -- starting, following -----------------------------------------------------------------------


@pytest.mark.proves("S-28")
async def test_start_loads_records_and_follows_changes(fake: FakeRelay) -> None:
    await fake.publish(record(ALICE, {"notes": ["likes tea"]}))
    await fake.publish(record("snowclaw:memory:group:tea", {"purpose": "to drink"}))
    await fake.publish(config("global", respond_mode="all"))
    async with started(fake, groups=["tea"]) as claw:
        assert claw.users() == {alice.pubkey[:32]: UserMemory(notes=("likes tea",))}
        assert [memory.purpose for memory in claw.groups().values()] == ["to drink"]
        assert (claw.respond_mode("tea"), claw.config().context_history) == ("all", 20)
        await fake.publish(record(ALICE, {"notes": ["and coffee"]}, NOW))
        await fake.publish(said("hello"))
        await until(lambda: claw.history("tea"))
        memory = claw.user(alice.npub)
        assert memory is not None
        assert memory.notes == ("and coffee",)
        assert claw.shortfall == ""
    records, chat = asked(fake)[0], asked(fake)[-1]
    assert records["#d"] == ["snowclaw:"]
    assert set(records["authors"]) == {robot.pubkey, owner.pubkey}
    assert any(f.get("kinds") == [9, 11, 12] and f["since"] == NOW for f in asked(fake)), chat


@pytest.mark.proves("S-28", "G-30")
async def test_without_prefix_queries_all_records_are_read_and_that_is_reported(
    fake: FakeRelay,
) -> None:
    fake.information = {"name": "another relay"}
    await fake.publish(record(ALICE, {"notes": ["x"]}))
    await fake.publish(record("some-app", {"notes": ["y"]}))
    async with started(fake) as claw:
        assert list(claw.users()) == [alice.pubkey[:32]]
        assert "does not support prefix queries" in claw.shortfall
    assert not any("#d" in filter_ for filter_ in asked(fake))


@pytest.mark.proves("S-18", "S-19")
async def test_the_owners_configuration_applies_from_the_next_message(
    fake: FakeRelay,
) -> None:
    async with started(fake, file_config={"respond_mode": "none"}) as claw:
        for number in range(3):
            claw.see(said(str(number), NOW + number))
        assert not claw.should_respond(said("robot?"))
        await fake.publish(config("group:tea", by=rover, respond_mode="all"))
        await fake.publish(config("group:tea", respond_mode="mention", context_history=1))
        await until(lambda: claw.respond_mode("tea") == "mention")
        assert claw.should_respond(said("robot?"))
        assert not claw.should_respond(said("hello?"))
        assert [message.content for message in claw.history("tea")] == ["2"]


@pytest.mark.proves("S-25")
async def test_a_deletion_is_seen_live(fake: FakeRelay) -> None:
    gone = record(ALICE, {"notes": ["x"]})
    await fake.publish(gone)
    async with started(fake) as claw:
        assert claw.user(alice.npub) is not None
        behind = NOW - 60  # the clock of who deletes
        await fake.publish(robot.sign(5, [["e", gone.id]], "", behind))
        await until(lambda: claw.user(alice.npub) is None)


@pytest.mark.proves("S-18")
async def test_names_and_members_are_followed_live(fake: FakeRelay) -> None:
    def listed(*members: SecretKey, at: int, group: str = "tea") -> Event:
        tags = [["d", group], *(["p", key.pubkey] for key in members)]
        return rover.sign(39002, tags, "", at)

    def named(name: str, at: int, by: SecretKey = alice) -> Event:
        return by.sign(0, [], json.dumps({"name": name}), at)

    fake.information = {**ROOKERY, "self": rover.pubkey}
    await fake.publish(listed(alice, robot, at=NOW - 2_000))
    await fake.publish(named("k0", NOW - 2_000))
    await fake.publish(named("bob", NOW - 2_000, bob))
    await fake.publish(bob.sign(39002, [["d", "tea"], ["p", "f" * 64]], "", NOW))  # no relay

    def members() -> tuple[tuple[str, str], ...]:
        memory = claw.group("tea")
        return () if memory is None else memory.members

    async with started(fake, groups=["tea"]) as claw:
        await fake.publish(said("hello"))
        await until(members)
        assert members() == ((alice.npub, "k0"), (robot.npub, ""))
        await fake.publish(named("Clarity", NOW + 5))
        await fake.publish(listed(alice, bob, at=NOW + 6))
        await fake.publish(listed(alice, at=NOW + 6, group="den"))
        await until(lambda: dict(members()).get(bob.npub))
        await claw.flush()
        assert "den" not in claw.groups()
    assert stored(fake, ALICE)[-1]["display_names"] == [["k0", NOW - 2_000], ["Clarity", NOW + 5]]
    assert stored(fake, "snowclaw:memory:group:tea")[-1]["members"] == [
        [alice.npub, "Clarity"],
        [bob.npub, "bob"],
    ]


async def test_direct_messages_are_heard_once_and_of_those_it_knows(fake: FakeRelay) -> None:
    def wrap(
        text: str, by: SecretKey = alice, at: int = NOW, *, kind: int = 14, tag: str = "p"
    ) -> Event:
        message = unsigned(by.pubkey, kind, [[tag, robot.pubkey]], text, at)
        return wrapped(message, by, robot.pubkey, rover, (at - 9, at - 9))

    await fake.publish(record(ALICE, {"notes": ["known"]}))
    await fake.publish(wrap("yesterday", at=NOW - 86_400))
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        hearing = anext(messages)
        for event in (
            wrap("of a stranger", bob),
            wrap("of last week", at=NOW - 7 * 86_400),
            wrap("of next week", at=NOW + 7 * 86_400),
            wrap("for a group", tag="h"),
            wrap("no message", kind=1),
            rover.sign(1059, [["p", robot.pubkey]], "not sealed", NOW),
            wrap("hello"),
            wrap("hello"),
            wrap("bye", at=NOW + 1),
        ):
            await fake.publish(event)
        assert [(await hearing).content, (await anext(messages)).content] == ["hello", "bye"]
        heard = [message.content for message in claw.direct_history(alice.npub)]
        assert heard == ["yesterday", "hello", "bye"]
        assert bob.pubkey[:32] not in claw.users()


async def test_the_members_of_a_group_are_known_although_its_list_was_told_first(
    fake: FakeRelay,
) -> None:
    fake.information = {**ROOKERY, "self": rover.pubkey}
    async with started(fake) as claw:
        tags = [["d", "pub"], ["p", robot.pubkey], ["p", bob.pubkey]]
        await fake.publish(rover.sign(39002, tags, "", NOW))
        await fake.publish(added("pub", NOW))
        await until(lambda: bob.pubkey in claw._chat.members("pub"))


async def test_an_owner_silences_the_agent_while_it_learns_the_members_of_another_group(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.information = {**ROOKERY, "self": rover.pubkey}
    asked = asyncio.Event()

    async def without_names(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2].get("authors") == [bob.pubkey]:
            asked.set()
        else:
            await fake.answer(visitor, frame)

    members = [["d", "tea"], ["p", robot.pubkey], ["p", owner.pubkey]]
    await fake.publish(rover.sign(39002, members, "", NOW - 9))
    await fake.publish(added("tea"))
    await fake.publish(config("group:tea", respond_mode="all"))
    async with started(fake) as claw:
        messages = claw.messages()
        fake.on["REQ"] = without_names
        members = [["d", "pub"], ["p", robot.pubkey], ["p", bob.pubkey]]
        await fake.publish(rover.sign(39002, members, "", NOW))
        await fake.publish(added("pub", NOW))
        await asked.wait()
        await fake.publish(config("group:tea", NOW, respond_mode="none"))
        await fake.publish(said("are you silent?", by=owner))
        assert not claw.should_respond(await anext(messages))


async def test_messages_of_a_group_that_the_agent_has_left_are_not_given_out(
    fake: FakeRelay,
) -> None:
    await fake.publish(added("den"))
    await fake.publish(config("group:den", respond_mode="all"))
    async with started(fake) as claw:
        messages = claw.messages()
        for number in range(3):
            await fake.publish(said(str(number), group="den"))
        await until(lambda: len(claw.history("den")) == 3)
        await fake.publish(added("den", NOW, kind=9001))
        await fake.publish(added("tea", NOW))
        await until(lambda: claw._consent.groups() == {"tea"})
        await fake.publish(said("tea?", group="tea"))
        assert (await anext(messages)).content == "tea?"


async def test_a_list_of_members_that_was_refused_once_is_read_before_direct_messages(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snowclaw, "_AGAIN_S", 0.01)
    fake.information = {**ROOKERY, "self": rover.pubkey}
    members = [["d", "tea"], ["p", robot.pubkey], ["p", bob.pubkey]]
    await fake.publish(rover.sign(39002, members, "", NOW - 5000))
    message = unsigned(bob.pubkey, 14, [["p", robot.pubkey]], "an hour ago", NOW - 3600)
    await fake.publish(wrapped(message, bob, robot.pubkey, rover, (NOW - 3600, NOW - 3600)))
    refused: list[Any] = []

    async def refuse_once(visitor: Visitor, frame: list[Any]) -> None:
        is_wanted = frame[2].get("#d") == ["tea"] and "since" not in frame[2]
        if is_wanted and not refused:
            refused.append(frame)
            await visitor.say("CLOSED", frame[1], "rate-limited: later")
        else:
            await fake.answer(visitor, frame)

    fake.on["REQ"] = refuse_once
    async with started(fake, groups=["tea"]) as claw:
        assert refused
        assert [each.content for each in claw.direct_history(bob.npub)] == ["an hour ago"]


async def test_the_members_of_a_group_that_the_agent_is_put_into_are_asked_for_twice(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy relay refuses once; without its members the agent hears no message of theirs."""
    monkeypatch.setattr(snowclaw, "_AGAIN_S", 0.01)
    fake.information = {**ROOKERY, "self": rover.pubkey}
    await fake.publish(record(ALICE, {"notes": ["known"]}))
    refused: list[Any] = []

    async def refuse_once(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2].get("#d") == ["tea"] and not refused:
            refused.append(frame)
            await visitor.say("CLOSED", frame[1], "rate-limited: later")
        else:
            await fake.answer(visitor, frame)

    async with started(fake) as claw:
        fake.on["REQ"] = refuse_once
        members = [["d", "tea"], ["p", robot.pubkey], ["p", bob.pubkey]]
        fake.events.append(rover.sign(39002, members, "", NOW))
        await fake.publish(added("tea", NOW))
        await until(lambda: bob.pubkey in claw._chat.members("tea"))
        assert refused


@pytest.mark.proves("S-28")
async def test_a_member_of_a_group_is_known_before_direct_messages_are_read(
    fake: FakeRelay,
) -> None:
    """What it had written while the agent was off was lost at each start."""
    fake.information = {**ROOKERY, "self": rover.pubkey}
    tags = [["d", "tea"], ["p", robot.pubkey], ["p", bob.pubkey]]
    await fake.publish(rover.sign(39002, tags, "", NOW - 99))
    at = NOW - 3600
    message = unsigned(bob.pubkey, 14, [["p", robot.pubkey]], "an hour ago", at)
    await fake.publish(wrapped(message, bob, robot.pubkey, rover, (at - 9, at - 9)))
    async with started(fake, groups=["tea"]) as claw:
        assert [each.content for each in claw.direct_history(bob.npub)] == ["an hour ago"]


@pytest.mark.parametrize("kind", [9001, 9008])
async def test_members_of_a_group_that_was_left_are_not_heard_any_more(
    fake: FakeRelay, kind: int
) -> None:
    def wrap(by: SecretKey, text: str) -> Event:
        message = unsigned(by.pubkey, 14, [["p", robot.pubkey]], text, NOW)
        return wrapped(message, by, robot.pubkey, rover, (NOW - 9, NOW - 9))

    await fake.publish(added("den"))
    await fake.publish(bob.sign(39002, [["d", "den"], ["p", bob.pubkey]], "", NOW - 9))
    await fake.publish(record(ALICE, {"notes": ["known"]}))
    async with started(fake) as claw:
        messages = claw.messages()
        await claw.learn_group("den")
        assert claw._chat.members("den") == (bob.pubkey,)
        await fake.publish(added("den", NOW, kind=kind))
        await until(lambda: not claw._consent.groups())
        await fake.publish(wrap(bob, "of a stranger"))
        await fake.publish(wrap(alice, "known"))
        assert (await anext(messages)).content == "known"


MEMBERS = tuple(SecretKey(bytes([7] * 31 + [number])) for number in range(1, 13))


@pytest.mark.parametrize(
    "others",
    [
        [],  # it does not name the agent
        [robot.pubkey, bob.pubkey],  # unknown
        [robot.pubkey, *(key.pubkey for key in MEMBERS)],
        [robot.pubkey, ""],
        [robot.pubkey, "f" * 64],  # no point of the curve
        [robot.pubkey, alice.pubkey.upper()],
    ],
)
async def test_a_direct_message_cannot_choose_whom_the_agent_writes_to(
    fake: FakeRelay, others: list[str]
) -> None:
    """One message of 306 kB became 2,003 gift wraps, and a key that was none ended the agent."""

    def wrap(text: str, *names: str) -> Event:
        message = unsigned(alice.pubkey, 14, [["p", name] for name in names], text, NOW)
        return wrapped(message, alice, robot.pubkey, rover, (NOW, NOW))

    await fake.publish(record(ALICE, {"notes": ["known"]}))
    members = [["p", key.pubkey] for key in (robot, alice, *MEMBERS)]
    await fake.publish(rover.sign(39002, [["d", "tea"], *members], "", NOW - 9))
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        hearing = anext(messages)
        await fake.publish(wrap("for others", *others))
        await fake.publish(wrap("hello", robot.pubkey, MEMBERS[0].pubkey))
        question = await hearing
        assert question.content == "hello"
        fake.events.clear()
        await claw.send_direct("here", question)
        told = {event.tag("p") for event in fake.events if event.kind == 1059}
        assert told == {alice.pubkey, MEMBERS[0].pubkey, robot.pubkey}
        tags = [["p", name] for name in (*others, "g")]
        with pytest.raises(Invalid):
            await claw.send_direct("no", unsigned(alice.pubkey, 14, tags, "", NOW))


def wrap_of(text: str, at: int, wrapped_at: int) -> Event:
    message = unsigned(alice.pubkey, 14, [["p", robot.pubkey]], text, at)
    return wrapped(message, alice, robot.pubkey, rover, (wrapped_at, wrapped_at))


def wraps_asked(fake: FakeRelay) -> list[dict[str, Any]]:
    return [filter_ for filter_ in asked(fake) if filter_["kinds"] == [1059]]


async def test_stored_direct_messages_are_not_in_memory_all_at_once(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """366 MB by one member ended an agent with 1 GiB at each start."""
    monkeypatch.setattr(snowclaw, "_PAGE_BYTES", 100_000, raising=False)
    monkeypatch.setattr(snowclaw, "_OPENED_BYTES", 10_000, raising=False)
    await fake.publish(record(ALICE, {"notes": ["known"]}))
    for n in range(50):  # the dates of wraps tell nothing of those of the messages
        text = f"{n}".ljust(1_000)
        await fake.publish(wrap_of(text, NOW - 99 + n, NOW - 1_000 - n * 7 % 50))
    kept: list[int] = []

    def opened(wrap: Event, reader: SecretKey) -> Event:
        kept.append(len(claw._chat.history(frozenset({alice.pubkey}))))
        return nip59.opened(wrap, reader)

    monkeypatch.setattr(snowclaw, "opened", opened)
    async with agent(fake) as claw:
        await claw.start()
        history = [message.content.strip() for message in claw.direct_history(alice.npub)]
    assert history == [f"{n}" for n in range(30, 50)]
    assert len(kept) == 50, "each is opened once"
    assert kept[10] > 0, "those opened first are put into the history meanwhile"
    assert min(filter_.get("limit", 50) or 50 for filter_ in wraps_asked(fake)) < 50


async def test_direct_messages_for_a_slow_program_wait_at_the_relay(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.inbox._MOST_BYTES", 10_000)
    monkeypatch.setattr(snowclaw, "WAITING_BYTES", 80_000)
    monkeypatch.setattr(snowclaw, "_PAGE_BYTES", 50_000, raising=False)
    monkeypatch.setattr(snowclaw, "_AGAIN_S", 0.0, raising=False)
    busy = 0

    async def too_busy(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal busy
        if busy == 0 and frame[2].get("kinds") == [1059] and frame[2].get("limit"):
            busy += 1
            await visitor.say("CLOSED", frame[1], "rate-limited: slow down")
        else:
            await fake.answer(visitor, frame)

    await fake.publish(record(ALICE, {"notes": ["known"]}))
    async with started(fake) as claw:
        fake.on["REQ"] = too_busy
        messages = claw.messages()
        for n in range(80):
            await fake.publish(wrap_of(f"{n}".ljust(1_000), NOW + n, NOW - 999 + n))
        await claw._client.publish(said("all of these were received"))
        assert claw._inbox is not None
        assert claw._inbox.qsize() < 10
        heard = [(await anext(messages)).content.strip() for _ in range(80)]
        assert sorted(heard, key=int) == [f"{n}" for n in range(80)]
        assert len([filter_ for filter_ in wraps_asked(fake) if filter_.get("limit") == 0]) > 1
        await fake.publish(wrap_of("another", NOW, NOW - 900))
        assert (await anext(messages)).content == "another"
        assert busy == 1


async def test_a_direct_message_that_was_missed_is_heard_whatever_its_wrap_s_date(
    fake: FakeRelay,
) -> None:
    await fake.publish(record(ALICE, {"notes": ["known"]}))
    await fake.publish(wrap_of("before", NOW - 9, NOW - 9))
    async with started(fake) as claw:
        messages = claw.messages()
        await fake.stop()
        fake.events.append(wrap_of("missed", NOW, NOW - 86_400))
        await fake.start()
        assert (await anext(messages)).content == "missed"
        heard = [message.content for message in claw.direct_history(alice.npub)]
        assert heard == ["before", "missed"]


async def test_earlier_messages_that_are_too_large_together_are_filled_with_the_newest(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snowclaw, "_PAGE_BYTES", 20_000, raising=False)
    for n in range(20):
        await fake.publish(said(f"{n}".ljust(2_000), NOW - 99 + n))
    for n, key in enumerate(MEMBERS):
        fields = json.dumps({"name": f"name{n}", "about": "x" * 2_000})
        await fake.publish(key.sign(0, [], fields, NOW - n))
    async with started(fake, groups=["tea"]) as claw:
        await claw.backfill()
        history = [message.content.strip() for message in claw.history("tea")]
        assert history == [f"{n}" for n in range(20 - len(history), 20)]
        assert 2 < len(history) < 9
        await claw.learn_name(*(key.pubkey for key in MEMBERS))
        names = {claw._chat.name_of(key.pubkey, "tea") for key in MEMBERS}
        assert names == {f"name{n}" for n in range(12)}


async def test_a_relay_that_gives_no_direct_messages_is_no_failure(fake: FakeRelay) -> None:
    async def closed(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2].get("kinds") == [1059]:
            await visitor.say("CLOSED", frame[1], "blocked: no wraps here")
        else:
            await fake.answer(visitor, frame)

    fake.on["REQ"] = closed
    async with started(fake, groups=["tea"]) as claw:
        assert "no wraps here" in claw.shortfall
        await fake.publish(said("hello"))
        await until(lambda: claw.history("tea"))
        assert claw.failure is None


async def test_it_follows_through_a_lost_connection(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        await fake.stop()
        fake.events.append(config("global", NOW, respond_mode="all"))
        await fake.start()
        await until(lambda: claw.respond_mode() == "all")


@pytest.mark.parametrize("may_lack_records", [False, True])
async def test_records_of_others_that_the_relay_no_longer_gives_are_gone_after_a_reconnect(
    fake: FakeRelay, *, may_lack_records: bool
) -> None:
    """As after a 9005 or a ban, which leave no kind 5."""
    fake.challenges_at_once = True
    fake.information = {**ROOKERY, "supported_nips": [1, 42, 50]}
    group = {"notes": ["poison"]}
    await fake.publish(record("snowclaw:memory:group:tea", group, by=rover))
    await fake.publish(record(ALICE, {"notes": ["likes tea"]}))
    await fake.publish(config("global", respond_mode="all"))
    async with started(fake, agents=[rover.pubkey]) as claw:
        assert claw.group("tea") is not None
        await fake.stop()
        fake.events.clear()
        fake.challenges_at_once = not may_lack_records
        seen = len(fake.seen)
        await fake.start()
        if may_lack_records:
            await claw._client.wait_connected()
            assert not await claw._drop_absent()
            assert claw.group("tea") is not None
            assert claw.respond_mode() == "all"
        else:
            await until(lambda: claw.group("tea") is None)
            assert claw.respond_mode() == "mention"
            assert len(fake.seen) > seen
        assert claw.user(alice.npub) is not None


@pytest.mark.parametrize("counts", [True, False])
async def test_what_the_relay_gives_no_more_is_dropped_while_the_agent_is_connected(
    fake: FakeRelay, tmp_path: Path, *, counts: bool
) -> None:
    """An admin's 9005, a ban or a request to vanish is told to nobody."""
    fake.information = {**ROOKERY, "supported_nips": [1, 45] if counts else [1]}
    clock = Clock()
    of_others = record("snowclaw:memory:group:tea", {"notes": ["poison"]}, by=rover)
    for event in (of_others, record(ALICE, {"notes": ["likes tea"]})):
        await fake.publish(event)
    async with started(
        fake, folder=tmp_path, agents=[rover.pubkey], later=clock.later, groups=["tea"]
    ) as claw:

        async def look() -> list[list[Any]]:
            """What the client asks of the relay in a quarter of an hour, or a tenth more."""
            (due,) = [timer for timer in clock.timers if 900.0 <= timer[0] <= 990.0]
            seen = len(fake.seen)
            clock.timers.remove(due)
            due[1]()
            await until(lambda: clock.timers)  # the next one is due
            return [frame for frame in fake.seen[seen:] if frame[0] in ("REQ", "COUNT")]

        (frame,) = await look()
        assert (frame[0], len(frame[2]["ids"])) == ("COUNT" if counts else "REQ", 2)
        assert claw.group("tea") is not None
        fake.events.clear()  # also one's own, of which there is no kind 5
        await look()
        assert claw.group("tea") is None
        assert claw.user(alice.npub) is not None
        await fake.stop()
        assert await look() == []
        await fake.start()
    assert not left_of(["poison"], tmp_path)


@pytest.mark.parametrize("text", ["deleted", "this event is banned here", "", "over the quota"])
async def test_of_one_s_own_a_connected_agent_drops_what_was_removed_and_sends_what_was_lost(
    fake: FakeRelay, tmp_path: Path, text: str
) -> None:
    """An admin's 9005 leaves no kind 5, and of a banevent nobody is told: the agent gave the text
    for ever, and stored it again with the next note."""
    clock, sent = Clock(), list[str]()

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        sent.append(frame[1]["id"])
        if text:
            await visitor.say_no(sent[-1], f"blocked: {text}")
        else:
            await fake.take(visitor, frame)

    stored = record(ALICE, {"notes": ["poison"]})
    await fake.publish(stored)
    async with started(fake, folder=tmp_path, later=clock.later, groups=["tea"]) as claw:
        fake.on["EVENT"] = refuse
        for _ in range(2):
            fake.events.clear()
            await claw._drop_absent_quietly()
        assert sent == [stored.id]
        is_removed = text not in ("", "over the quota")
        assert (claw.user(alice.npub) is None) is is_removed
    assert bool(left_of(["poison"], tmp_path)) is not is_removed


@pytest.mark.proves("S-34")
@pytest.mark.parametrize("groups", [["tea"], None])
async def test_a_deleted_message_leaves_the_context_at_once(
    fake: FakeRelay, groups: list[str] | None
) -> None:
    fake.information = {**ROOKERY, "supported_nips": [1, 29]}
    await fake.publish(added("tea"))
    by_author, by_admin = said("of its author"), said("of an admin")
    async with started(fake, groups=groups) as claw:
        messages = claw.messages()
        for event in (by_author, by_admin):
            await fake.publish(event)
        await until(lambda: len(claw.history("tea")) == 2)
        behind = NOW - 60  # the clock of who deletes
        await fake.publish(alice.sign(5, [["e", by_author.id], ["h", "tea"]], "", behind))
        await fake.publish(owner.sign(9005, [["e", by_admin.id], ["h", "tea"]], "", behind))
        await fake.publish(said("and now?"))
        await until(lambda: [each.content for each in claw.history("tea")] == ["and now?"])
        assert (await anext(messages)).content == "and now?"
        await messages.aclose()


@pytest.mark.proves("S-34")
@pytest.mark.parametrize("why", ["its author", "an admin", "its time", "a ban"])
async def test_a_message_that_is_withdrawn_before_it_is_answered_is_answered_by_nobody(
    fake: FakeRelay, why: str
) -> None:
    """It stood in the context, if it waited while the program answered another."""
    fake.information = {**ROOKERY, "supported_nips": [1, 29]}
    await fake.publish(config("group:tea", respond_mode="all", context_history=1))
    clock, now = Clock(), [NOW]
    tags = [["h", "tea"], ["expiration", str(NOW + 60)]]
    answered, waiting = (alice.sign(9, tags, f"poison {each}", NOW) for each in (1, 2))
    async with started(fake, groups=["tea"], later=clock.later, now=lambda: now[0]) as claw:
        messages = claw.messages()
        for event in (answered, waiting, said("and now?", by=bob)):
            await fake.publish(event)
        assert await anext(messages) == answered
        assert claw.should_respond(answered)
        await until(lambda: [each.content for each in claw.history("tea")] == ["and now?"])
        named = [["e", answered.id], ["e", waiting.id], ["h", "tea"]]
        match why:
            case "its author":
                await fake.publish(alice.sign(5, named, "", NOW))
            case "an admin":
                await fake.publish(owner.sign(9005, named, "", NOW))
            case "its time":
                now[0] += 60
            case "a ban":
                fake.events[:] = [event for event in fake.events if event.pubkey != alice.pubkey]
                (due,) = [timer for timer in clock.timers if 900.0 <= timer[0] <= 990.0]
                due[1]()
        await until(lambda: not claw.should_respond(answered))
        assert "poison" not in claw.assemble(answered, "", 4_000).text
        assert (await anext(messages)).content == "and now?"
        await messages.aclose()


async def test_a_deletion_is_seen_before_messages_that_wait(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the queue takes, while the program answers one."""
    monkeypatch.setattr("relay.client.inbox._MOST", 1)
    await fake.publish(config("group:tea", respond_mode="all"))
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        answered, waiting = said("hello"), said("poison")
        for event in (answered, waiting, *(said(str(number)) for number in range(5))):
            await fake.publish(event)
        assert await anext(messages) == answered
        assert claw.should_respond(waiting)
        await fake.publish(alice.sign(5, [["e", waiting.id], ["h", "tea"]], "", NOW))
        await until(lambda: not claw.should_respond(waiting))
        assert (await anext(messages)).content == "0"
        await messages.aclose()


async def test_of_what_waits_the_deletion_is_remembered(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others delete more than is remembered."""
    monkeypatch.setattr("relay.memory.snowclaw.deletions._MAX_IDS", 5)
    monkeypatch.setattr("relay.memory.snowclaw.deletions._MAX_SOURCES", 1)
    await fake.publish(config("group:tea", respond_mode="all"))
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        answered, waiting, of_bob = said("hello"), said("poison"), said("mine", by=bob)
        for event in (answered, waiting, of_bob, said("and now?")):
            await fake.publish(event)
        assert await anext(messages) == answered
        await until(lambda: len(claw.history("tea")) == 4)
        await fake.publish(alice.sign(5, [["e", waiting.id], ["h", "tea"]], "", NOW))
        await until(lambda: not claw.should_respond(waiting))
        many = [["e", f"{number:064}"] for number in range(9)]
        await fake.publish(bob.sign(5, [*many, ["e", of_bob.id], ["h", "tea"]], "", NOW))
        await until(lambda: not claw.should_respond(of_bob))
        assert not claw.should_respond(waiting)
        assert (await anext(messages)).content == "and now?"
        await messages.aclose()


async def test_a_9005_counts_only_where_the_relay_checks_who_may_send_it(fake: FakeRelay) -> None:
    kept = said("hello")
    async with started(fake, groups=["tea"]) as claw:
        await fake.publish(kept)
        await fake.publish(bob.sign(9005, [["e", kept.id], ["h", "tea"]], "", NOW))
        await fake.publish(said("and now?"))
        await until(lambda: len(claw.history("tea")) == 2)


async def test_messages_that_the_relay_gives_no_more_leave_the_context(fake: FakeRelay) -> None:
    """As after a ban, or a kind 5 without `h`; also the agent's own."""
    gone, own, kept = said("gone"), said("own", by=robot), said("kept")
    clock = Clock()
    async with started(fake, groups=["tea"], later=clock.later) as claw:
        for event in (gone, own, kept):
            await fake.publish(event)
        await until(lambda: len(claw.history("tea")) == 3)
        fake.events[:] = [kept]
        (due,) = [timer for timer in clock.timers if 900.0 <= timer[0] <= 990.0]
        due[1]()
        await until(lambda: [each.content for each in claw.history("tea")] == ["kept"])


async def test_an_expired_message_is_in_no_context(fake: FakeRelay) -> None:
    async with started(fake, groups=["tea"]) as claw:
        claw.see(alice.sign(9, [["h", "tea"], ["expiration", str(NOW)]], "poison", NOW - 9))
        claw.see(said("kept", NOW - 8))
        assert "poison" not in claw.assemble(said("now?"), "", 4_000).text
        claw.see(alice.sign(9, [["h", "tea"], ["expiration", str(NOW)]], "poison", NOW - 7))
        assert [message.content for message in claw.history("tea")] == ["kept"]


async def test_messages_are_yielded_after_see(fake: FakeRelay) -> None:
    await fake.publish(alice.sign(0, [], '{"name":"alice"}', NOW - 99))
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        reading = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await fake.publish(said("hello"))
        message = await asyncio.wait_for(reading, ANSWER_S)
        assert message.content == "hello"
        (kept,) = claw.history("tea")
        assert (kept.sender, kept.content) == ("alice", "hello")
        await messages.aclose()


async def test_profiles_of_strangers_are_not_kept(fake: FakeRelay) -> None:
    """Anybody can make up keys. A stranger who speaks is named nevertheless."""
    async with started(fake, groups=["tea"]) as claw:
        claw.note_user(alice.pubkey, "likes oolong")
        await fake.publish(rover.sign(0, [], '{"name":"stranger"}', NOW))
        await fake.publish(alice.sign(0, [], '{"name":"renamed"}', NOW))
        await until(lambda: claw._chat.name_of(alice.pubkey, None) == "renamed")
        assert not claw._chat.knows_name(rover.pubkey)
        await fake.publish(rover.sign(9, [["h", "tea"]], "hello", NOW))
        await until(lambda: claw.history("tea"))
        assert [message.sender for message in claw.history("tea")] == ["stranger"]


async def test_messages_are_kept_from_the_call_on_until_they_are_read(fake: FakeRelay) -> None:
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        for text in ("one", "two", "three"):
            await fake.publish(said(text))
        await until(lambda: len(claw.history("tea")) == 3)
        assert [(await anext(messages)).content for _ in range(2)] == ["one", "two"]
        await messages.aclose()
        # Nobody reads any more: what comes is still seen, however much it is.
        for number in range(1_100):
            await fake.publish(said(str(number)))
        await until(lambda: claw.history("tea")[-1].content == "1099")


@pytest.fixture
async def open_group(fake: FakeRelay) -> None:
    """Alice is a member of it."""
    fake.information = {**ROOKERY, "self": rover.pubkey}
    await fake.publish(rover.sign(39002, [["d", "tea"], ["p", alice.pubkey]], "", NOW - 99))


def strangers(number: int) -> list[SecretKey]:
    return [person(f"stranger {n}") for n in range(number)]


@pytest.mark.usefixtures("open_group")
async def test_no_flood_delays_owners_and_members(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may write in the group, each message with another key, while the program answers."""
    monkeypatch.setattr("relay.client.inbox._MOST", 5)
    async with started(fake, groups=["tea"], agents=[dave.pubkey]) as claw:
        messages = claw.messages()
        flood = strangers(50)
        for number, key in enumerate(flood):
            await fake.publish(said(str(number), by=key))
        await until(lambda: claw.unheard > 0)
        for text in ("1", "2", "3"):
            await fake.publish(said(f"member {text}"))
        await fake.publish(said("owner", by=owner))
        await fake.publish(said("agent", by=dave))
        expected = ["owner", "agent", "member 1", "member 2", "member 3"]
        await until(lambda: {*expected} <= {each.content for each in claw.history("tea")})
        assert [(await anext(messages)).content for _ in expected] == expected
        heard = [int((await anext(messages)).content)]
        while heard[-1] != len(flood) - 1:  # the newest are kept
            heard.append(int((await anext(messages)).content))
        assert heard == sorted(heard)
        assert claw.unheard == len(flood) - len(heard) > 0
        await messages.aclose()


@pytest.mark.usefixtures("open_group")
async def test_names_of_strangers_are_queried_together_and_delay_nobody_else(
    fake: FakeRelay,
) -> None:
    held: list[tuple[Visitor, list[Any]]] = []
    first, *others = strangers(20)

    async def late(visitor: Visitor, frame: list[Any]) -> None:
        if first.pubkey in frame[2].get("authors", ()):
            held.append((visitor, frame))
        else:
            await fake.answer(visitor, frame)

    for key in (first, *others):
        await fake.publish(key.sign(0, [], '{"name":"stranger"}', NOW - 99))
    async with started(fake, groups=["tea"]) as claw:
        fake.on["REQ"] = late
        messages = claw.messages()
        await fake.publish(said("first", by=first))
        await fake.until(lambda: bool(held))
        for key in others:
            await fake.publish(said("another", by=key))
        await fake.publish(said("owner", by=owner))
        await fake.publish(said("member"))
        for text in ("owner", "member"):
            assert (await anext(messages)).content == text
        asked_before = len(asked(fake))
        await fake.answer(*held[0])
        heard = [await anext(messages) for _ in range(20)]
        assert heard[0].content == "first"
        (together,) = asked(fake)[asked_before:]
        assert {*together["authors"]} == {key.pubkey for key in others}
        names = {each.sender for each in claw.history("tea") if each.content == "another"}
        assert names == {"stranger"}
        assert claw.unheard == 0
        await messages.aclose()


@pytest.mark.usefixtures("open_group")
async def test_an_agent_that_was_away_goes_on_whatever_others_wrote(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.subscription.MAX_ANSWER", 20)
    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        await fake.stop()
        fake.events.append(said("owner", NOW + 1, by=owner))
        flood = strangers(60)
        fake.events += [
            said(f"{number}", NOW + 2 + number, by=key) for number, key in enumerate(flood)
        ]
        fake.events += [key.sign(5, [["h", "tea"]], "", NOW + 2) for key in flood]
        await fake.start()
        heard = [(await anext(messages)).content]
        while heard[-1] != "59":
            heard.append((await anext(messages)).content)
        assert "owner" in heard
        assert claw.unheard >= len(flood) - (len(heard) - 1) > 0
        await fake.publish(said("live", NOW + 99))
        assert (await anext(messages)).content == "live"
        await messages.aclose()


def is_for_records(frame: list[Any]) -> bool:
    """Whether it is the REQ by which records are followed."""
    return frame[2].get("kinds") == [30078] and len(frame) > 3


@pytest.mark.usefixtures("open_group")
@pytest.mark.parametrize("refusal", ["", "rate-limited: slow down", "error: busy"])
async def test_records_are_followed_on_after_more_than_can_be_held(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Anybody may end groups of their own. The relay may be busy when it is asked again."""
    monkeypatch.setattr("relay.client.subscription.MAX_ANSWER", 50)
    monkeypatch.setattr(snowclaw, "_AGAIN_S", 0.0)
    times = 0

    async def second_refused(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal times
        times += is_for_records(frame)
        if refusal and times == 2 and is_for_records(frame):
            await visitor.say("CLOSED", frame[1], refusal)
        else:
            await fake.answer(visitor, frame)

    now = NOW
    await fake.publish(added("tea"))
    await fake.publish(added("den"))
    async with started(fake, now=lambda: now) as claw:
        messages = claw.messages()
        await fake.stop()
        fake.events = [event for event in fake.events if event.tag("h") != "den"]
        fake.events += [bob.sign(9008, [["h", f"{n}"]], "", NOW + 1) for n in range(60)]
        fake.events.append(bob.sign(9008, [["h", "den"]], "", NOW))  # hidden by the others
        fake.events.append(config("group:tea", NOW, respond_mode="none"))
        fake.events.append(added("pub", NOW + 2))
        now += 2_000
        fake.on["REQ"] = second_refused
        await fake.start()
        await until(lambda: claw._consent.groups() == {"tea", "pub"})
        await until(lambda: claw.config("tea").respond_mode.value == "none")
        await fake.publish(config("group:tea", NOW + 2_001, respond_mode="all"))
        hello = said("hello", NOW + 2_001)
        await fake.publish(hello)
        assert await anext(messages) == hello
        assert claw.should_respond(hello), "the record is known before the message"
        await messages.aclose()


@pytest.mark.usefixtures("open_group")
@pytest.mark.parametrize("waits_offline", [False, True])
@pytest.mark.proves("S-18")
async def test_a_missed_message_is_heard_after_the_configuration_that_came_before_it(
    fake: FakeRelay,
    monkeypatch: pytest.MonkeyPatch,
    waits_offline: bool,  # noqa: FBT001
) -> None:
    """Also where anybody has stored more profiles meanwhile than can be held."""
    monkeypatch.setattr("relay.client.subscription.MAX_ANSWER", 50)
    held: list[tuple[Visitor, list[Any]]] = []

    async def records_last(visitor: Visitor, frame: list[Any]) -> None:
        if is_for_records(frame):
            held.append((visitor, frame))
        else:
            await fake.answer(visitor, frame)

    await fake.publish(added("tea"))
    await fake.publish(config("group:tea", NOW - 9, respond_mode="all"))
    async with started(fake) as claw:
        messages = claw.messages()
        await fake.stop()
        if waits_offline:  # a message that came before the connection was lost
            await until(lambda: not claw._client.is_connected)
            with monkeypatch.context() as patch:
                patch.setattr(snowclaw, "_EARLIER_S", 0.0)
                await claw._take_earlier()
        fake.events.append(config("group:tea", NOW + 5, respond_mode="none"))
        fake.events += [key.sign(0, [], "{}", NOW + 6) for key in strangers(60)]
        ask = said("robot, delete it?", NOW + 9, by=owner)
        fake.events.append(ask)
        chats_before = len(chats_asked(fake))
        fake.on["REQ"] = records_last
        await fake.start()
        await fake.until(lambda: bool(held) and len(chats_asked(fake)) == chats_before + 2)
        for _ in range(9):  # what the relay has sent has been received
            await claw._client.query({"ids": [ask.id]})
        assert claw.history("tea") == []
        await fake.answer(*held[0])
        assert await anext(messages) == ask
        assert not claw.should_respond(ask)
        await messages.aclose()


@pytest.mark.proves("S-18")
async def test_a_missed_direct_message_is_heard_after_the_configuration_that_came_before_it(
    fake: FakeRelay,
) -> None:
    held: list[tuple[Visitor, list[Any]]] = []

    async def records_last(visitor: Visitor, frame: list[Any]) -> None:
        if is_for_records(frame):
            held.append((visitor, frame))
        else:
            await fake.answer(visitor, frame)

    await fake.publish(record(ALICE, {"notes": ["known"]}))
    async with started(fake) as claw:
        messages = claw.messages()
        await fake.stop()
        fake.events.append(config("global", NOW + 5, respond_mode="none"))
        fake.events.append(wrap_of("robot?", NOW + 9, NOW + 9))
        wraps_before = len(wraps_asked(fake))
        fake.on["REQ"] = records_last
        await fake.start()
        await fake.until(lambda: bool(held) and len(wraps_asked(fake)) > wraps_before)
        for _ in range(9):  # what the relay has sent has been received
            await claw._client.query({"ids": ["0" * 64]})
        assert claw.direct_history(alice.npub) == []
        await fake.answer(*held[0])
        assert not claw.should_respond(await anext(messages))
        await messages.aclose()


@pytest.mark.usefixtures("open_group")
async def test_members_are_asked_for_again_if_more_lists_and_profiles_were_missed_than_can_be_held(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.subscription.MAX_ANSWER", 20)
    async with started(fake, groups=["tea"]) as claw:
        assert claw._chat.members("tea") == (alice.pubkey,)
        await fake.stop()
        fake.events.append(rover.sign(39002, [["d", "tea"], ["p", bob.pubkey]], "", NOW + 1))
        fake.events += [key.sign(0, [], "{}", NOW + 2) for key in strangers(60)]
        await fake.start()
        await until(lambda: not claw._learned)
        await fake.publish(said("hello", NOW + 3, by=bob))
        await until(lambda: claw.history("tea"))
        assert claw._chat.members("tea") == (bob.pubkey,)


async def test_messages_wait_once_for_records_that_a_relay_does_not_give(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_record_only(visitor: Visitor, frame: list[Any]) -> None:
        if is_for_records(frame):
            await visitor.show(frame[1], config("global", NOW + 1, context_history=9))
        else:
            await fake.answer(visitor, frame)

    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        await fake.stop()
        fake.on["REQ"] = first_record_only
        fake.events.append(said("missed", NOW + 1))
        monkeypatch.setattr(snowclaw, "_EARLIER_S", 0.01)
        await fake.start()
        assert (await anext(messages)).content == "missed"
        monkeypatch.setattr(snowclaw, "_EARLIER_S", 10 * ANSWER_S)
        await fake.publish(said("next", NOW + 2))
        async with asyncio.timeout(ANSWER_S):
            assert (await anext(messages)).content == "next"
        await messages.aclose()


async def test_a_relay_that_will_not_have_it_is_an_error_for_the_reader(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        messages = claw.messages()
        reading = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        (visitor,) = fake.visitors
        chat = next(sub for sub, filters in visitor.subs.items() if 9 in (filters[0].kinds or ()))
        await visitor.say("CLOSED", chat, "restricted: not a member")
        assert claw.failure is None
        with pytest.raises(QueryClosed, match="not a member"):
            await asyncio.wait_for(reading, ANSWER_S)
        assert isinstance(claw.failure, QueryClosed)


@pytest.mark.parametrize("author", [owner, alice], ids=["owner", "member"])
@pytest.mark.usefixtures("open_group")
async def test_messages_that_came_before_a_subscription_ended_are_heard(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch, author: SecretKey
) -> None:
    """Also those that wait for their authors' names."""
    monkeypatch.setattr("relay.client.hearing._AT_ONCE", 1)
    held: list[tuple[Visitor, list[Any]]] = []

    async def late(visitor: Visitor, frame: list[Any]) -> None:
        held.append((visitor, frame))

    async with started(fake, groups=["tea"]) as claw:
        messages = claw.messages()
        monkeypatch.setattr(claw._chat, "knows_name", lambda _: False)
        fake.on["REQ"] = late
        for number in range(3):
            await fake.publish(said(f"{number}", by=author))
        await fake.until(lambda: bool(held))
        fake.on["REQ"] = fake.answer
        (visitor,) = fake.visitors
        for sub, filters in list(visitor.subs.items()):
            if 9 in (filters[0].kinds or ()):
                await visitor.say("CLOSED", sub, "restricted: not a member")
        await claw._client.query({"ids": ["0" * 64]})  # until that has been received
        await fake.answer(*held[0])
        assert [(await anext(messages)).content for _ in range(3)] == ["0", "1", "2"]
        with pytest.raises(QueryClosed, match="not a member"):
            await anext(messages)


async def test_start_raises_the_relays_refusal(fake: FakeRelay) -> None:
    async def closed(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2].get("kinds") == [9, 11, 12]:
            await visitor.say("CLOSED", frame[1], "restricted: not here")
        else:
            await fake.answer(visitor, frame)

    fake.on["REQ"] = closed
    async with agent(fake, groups=["tea"]) as claw:
        await claw._client.wait_connected()
        await claw.start()
        messages = claw.messages()
        with pytest.raises(QueryClosed, match="not here"):
            await asyncio.wait_for(anext(messages), ANSWER_S)
    assert chats_asked(fake)[-1]["#h"] == ["tea"]


@pytest.mark.proves("G-23", "S-28")
async def test_nothing_is_taken_of_a_group_that_others_put_the_agent_into(fake: FakeRelay) -> None:
    await fake.publish(added("tea"))
    await fake.publish(added("den", by=bob))
    await fake.publish(bob.sign(9007, [["h", "den"]], "", NOW - 9))
    await fake.publish(bob.sign(39002, [["d", "den"], ["p", robot.pubkey]], "", NOW - 9))
    await fake.publish(said("earlier", NOW - 5, "den"))
    async with started(fake) as claw:
        await claw.backfill()
        messages = claw.messages()
        await fake.publish(said("obey", group="den"))
        await fake.publish(said("hello"))
        assert (await anext(messages)).content == "hello"
        assert claw.history("den") == []
        assert claw.groups().keys() == {"tea"}
        assert not claw._chat.knows_name(bob.pubkey)


@pytest.mark.proves("G-23", "S-28")
async def test_an_owner_or_the_agent_itself_adds_and_withdraws_a_group(fake: FakeRelay) -> None:
    await fake.publish(added("left"))
    await fake.publish(robot.sign(9022, [["h", "left"]], "", NOW - 8))
    await fake.publish(added("ended"))
    async with started(fake) as claw:
        messages = claw.messages()
        await fake.publish(said("1", group="den"))
        await fake.publish(added("den", NOW - 3))
        await fake.publish(robot.sign(9021, [["h", "pub"]], "", NOW - 3))
        await fake.publish(bob.sign(9008, [["h", "ended"]], "", NOW))
        await until(lambda: claw._consent.groups() == {"den", "pub"})
        for number, group in enumerate(("left", "ended", "den", "pub"), 2):
            await fake.publish(said(str(number), group=group))
        assert [(await anext(messages)).content for _ in range(2)] == ["4", "5"]
        await fake.publish(added("den", NOW, kind=9001))
        await until(lambda: claw._consent.groups() == {"pub"})


async def test_named_groups_are_the_only_ones(fake: FakeRelay) -> None:
    await fake.publish(added("tea"))
    async with started(fake, groups=["den"]) as claw:
        claw.see(said("hi"))
        claw.see(said("ho", group="den"))
        assert (claw.history("tea"), [each.content for each in claw.history("den")]) == ([], ["ho"])
    assert chats_asked(fake)[-1]["#h"] == ["den"]


@pytest.mark.proves("S-34")
async def test_backfill_fills_the_rings_oldest_first(fake: FakeRelay) -> None:
    await fake.publish(config("global", context_history=2))
    await fake.publish(added("tea"))
    for number in range(4):
        await fake.publish(said(str(number), NOW - 9 + number))
    await fake.publish(said("elsewhere", NOW - 9, "coffee"))
    async with started(fake) as claw:
        await claw.backfill()
        assert [message.content for message in claw.history("tea")] == ["2", "3"]
        assert claw.history("coffee") == []
        assert claw.unsaved == 0


# -- saving ------------------------------------------------------------------------------------


@pytest.mark.proves("S-31")
async def test_changes_are_saved_five_minutes_after_the_first(fake: FakeRelay) -> None:
    clock = Clock()
    async with started(fake, later=clock.later) as claw:
        claw.note_user(alice.npub, "one")
        claw.note_user(alice.npub, "two")
        claw.set_purpose("tea", "to drink")
        assert flushes(clock) == 1
        assert fake.verbs("EVENT") == []
        clock.ring()
        await until(lambda: claw.unsaved == 0)
        assert [fields["notes"] for fields in stored(fake, ALICE)] == [["one", "two"]]
        assert len(fake.verbs("EVENT")) == 2
        claw.see(said("hi"))
        assert flushes(clock) == 1
    assert len(fake.verbs("EVENT")) == 4  # on close


@pytest.mark.proves("S-31")
async def test_twenty_changes_are_saved_at_once(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        for number in range(FLUSH_AT - 1):
            claw.note_user(alice.npub, str(number))
        await asyncio.sleep(0)
        assert fake.verbs("EVENT") == []
        claw.note_user(bob.npub, "the twentieth")
        await until(lambda: claw.unsaved == 0)
        assert len(fake.verbs("EVENT")) == 2


@pytest.mark.proves("S-31")
async def test_flush_publishes_changed_records_only(fake: FakeRelay) -> None:
    await fake.publish(record(ALICE, {"preferences": {"language": "en"}, "mood": 1}))
    async with started(fake) as claw:
        claw.set_preference(alice.npub, "language", "en")
        claw.add_theme("tea", "green")
        claw.add_decision("tea", "no milk")
        (written,) = await claw.flush()
        assert (written.event.d, written.event.tag("h")) == ("snowclaw:memory:group:tea", "tea")
        assert json.loads(written.event.content)["decisions"] == [["no milk", NOW]]
        assert await claw.flush() == ()


async def test_a_lone_surrogate_blocks_nothing(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        claw.note_user(alice.npub, "cut \ud83d")
        claw.note_group("tea", "cut \ud83d")
        await claw.flush()
        await claw.store("k", "cut \ud83d")
        await claw.store("sealed", "cut \ud83d", encrypted=True)
        assert [stored(fake, d)[0]["notes"] for d in (ALICE, "snowclaw:memory:group:tea")] == [
            ["cut \ufffd"],
            ["cut \ufffd"],
        ]
        texts = [memory.text for memory in claw.list()]
        assert texts == ["cut \ufffd", "cut \ufffd"]


async def test_no_text_about_a_user_or_group_is_longer_than_a_note_may_be(fake: FakeRelay) -> None:
    """A member says what an agent notes: one text filled the record, which then was refused."""
    most, longer = "x" * MAX_NOTE, "x" * (MAX_NOTE + 1)
    async with started(fake) as claw:
        edits: list[Callable[[str], None]] = [
            lambda text: claw.note_user(alice.npub, text),
            lambda text: claw.annotate_user(alice.npub, text),
            lambda text: claw.set_preference(alice.npub, "language", text),
            lambda text: claw.set_preference(alice.npub, text, "en"),
            lambda text: claw.note_group("tea", text),
            lambda text: claw.annotate_group("tea", text),
            lambda text: claw.set_purpose("tea", text),
            lambda text: claw.add_theme("tea", text),
            lambda text: claw.add_decision("tea", text),
        ]
        for edit in edits:
            with pytest.raises(Invalid, match=r"a text of 2001 characters, at most 2000 allowed"):
                edit(longer)
        assert claw.unsaved == 0
        for edit in edits:
            edit(most)


async def test_before_it_was_loaded_nothing_stored_is_lost_by_a_flush(fake: FakeRelay) -> None:
    await fake.publish(record(ALICE, {"notes": ["old"], "mood": 1}, NOW + 5))
    async with agent(fake) as claw:
        claw.note_user(alice.npub, "new")
        (written,) = await claw.flush()
        assert json.loads(written.event.content) | {"notes": ["old", "new"], "mood": 1} == (
            json.loads(written.event.content)
        )
        assert written.event.created_at == NOW + 6


@pytest.mark.proves("S-31")
async def test_offline_changes_stay_unsaved(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        await fake.stop()
        await until(lambda: not claw.is_online)
        claw.note_user(alice.npub, "x")
        with pytest.raises(Unanswered, match="1 changes are not saved"):
            await claw.flush()
        assert claw.unsaved == 1
        await fake.start()
        await claw._client.wait_connected()
        await claw.flush()
        assert [fields["notes"] for fields in stored(fake, ALICE)] == [["x"]]


async def note_and_lose_the_relay(fake: FakeRelay, error: Exception | None = None) -> None:
    """A run that ends with a change that cannot be saved."""
    async with started(fake) as claw:
        claw.note_user(alice.npub, "x")
        await fake.stop()
        await until(lambda: not claw.is_online)
        if error is not None:
            raise error


async def test_a_failed_save_on_close_raises(fake: FakeRelay) -> None:
    with pytest.raises(Unanswered, match="not saved"):
        await note_and_lose_the_relay(fake)
    await fake.start()
    with pytest.raises(ZeroDivisionError):  # which tells more than the other would
        await note_and_lose_the_relay(fake, ZeroDivisionError())
    await fake.start()


async def test_a_refused_record_keeps_no_other_from_being_saved(fake: FakeRelay) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if event.d == ALICE:
            await visitor.say_no(event.id, "restricted: only agents may write memory")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = refuse
    clock = Clock()
    with suppress(PublishRefused):
        async with started(fake, later=clock.later) as claw:
            claw.note_user(alice.npub, "x")
            claw.note_user(bob.npub, "y")
            with pytest.raises(PublishRefused, match="only agents"):
                await claw.flush()
            assert (claw.unsaved, len(fake.events)) == (1, 1)
            claw.note_user(alice.npub, "z")
            clock.ring()
            await until(lambda: claw.flush_failure is not None)
            assert isinstance(claw.flush_failure, PublishRefused)
            assert flushes(clock) == 1  # and again in five minutes


async def test_a_flush_that_fails_tells_whose_record_is_not_stored(fake: FakeRelay) -> None:
    """A program told each user of the refusal of one, although it had stored their notes."""

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if event.d in {ALICE, "snowclaw:memory:group:tea"}:
            await visitor.say_no(event.id, "invalid: the relay accepts no message of 9 bytes")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = refuse
    with suppress(PublishRefused):
        async with started(fake) as claw:
            for key in (alice.npub, bob.npub):
                claw.note_user(key, "x")
            claw.note_group("tea", "y")
            claw.note_group("den", "z")
            with pytest.raises(PublishRefused):
                await claw.flush()
            for key in (alice.npub, alice.pubkey, "group:tea"):
                assert "no message of 9 bytes" in str(claw.refusal_of(key))
            assert (claw.refusal_of(bob.npub), claw.refusal_of("group:den")) == (None, None)
            fake.on["EVENT"] = fake.take
            await claw.flush()
            assert claw.refusal_of(alice.npub) is None


async def test_what_a_relay_refuses_at_the_end_of_the_block_is_kept_and_not_sent_again(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """It was lost, as a record that is larger than the relay accepts."""

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "invalid: the relay accepts no message of 9 bytes")

    fake.on["EVENT"] = refuse
    with pytest.raises(PublishRefused, match="accepts no message"):  # noqa: PT012  its end raises
        async with started(fake, folder=tmp_path) as claw:
            claw.note_user(alice.npub, "of alice")
            claw.note_user(bob.npub, "forgotten")
            claw.note_group("tea", "of tea")
            with pytest.raises(PublishRefused):
                await claw.flush()
            assert (claw.unsaved, await claw.refused()) == (3, [])
            await claw.forget(f"snowclaw:memory:npub:{bob.pubkey[:32]}")
    fake.on["EVENT"] = fake.take
    async with started(fake, folder=tmp_path) as claw:
        kept = await claw.refused()
        assert [json.loads(each.event.content)["notes"] for each in kept[:1]] == [["of alice"]]
        assert len(kept) == 2
        assert "of tea" in kept[1].event.content
        assert {each.reason for each in kept} == {
            "invalid: the relay accepts no message of 9 bytes"
        }
        assert (await claw.waiting(), fake.events) == (0, [])


def seen_once(number: int) -> Event:
    return record(
        f"snowclaw:memory:npub:{number:04x}{'0' * 28}", {"first_seen": NOW - 9}, NOW - number
    )


async def test_a_start_holds_one_page_of_records_and_leaves_out_the_longest_silent(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some 100,000 records on, of keys that spoke once, an agent did not start."""
    monkeypatch.setattr("relay.memory.snowclaw.working_copy.MAX_SEEN", 5)
    fake.most_rows = 10
    fake.events = [seen_once(number) for number in range(1, 41)]
    fake.events.append(record(ALICE, {"notes": ["likes tea"]}, NOW - 50))
    restarts, asked_until_taken = 0, []
    async with agent(fake) as claw:
        take, query = claw._take, claw._client.query

        def taking(event: Event) -> bool:
            asked_until_taken.append(len(asked(fake)))
            return take(event)

        def querying(*filters: Any, **more: Any) -> Any:
            nonlocal restarts
            restarts += more["is_of_each"]
            return query(*filters, **more)

        monkeypatch.setattr(claw, "_take", taking)
        monkeypatch.setattr(claw._client, "query", querying)
        await claw.load()
        assert asked_until_taken[0] < asked_until_taken[-1]
        assert restarts == len(asked(fake)) >= 5
        newest = [f"{number:04x}{'0' * 28}" for number in range(1, 6)]
        assert sorted(claw.users()) == sorted([*newest, alice.pubkey[:32]])


async def test_a_note_is_made_on_a_record_that_was_left_out(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.memory.snowclaw.working_copy.MAX_SEEN", 1)

    async def refuse_once(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = fake.take
        await visitor.say_no(frame[1]["id"], f"duplicate: {ANOTHER_VERSION}")

    fake.events = [seen_once(1), record(ALICE, {"first_seen": NOW - 70}, NOW - 60)]
    async with started(fake, groups=[]) as claw:
        assert claw.user(alice.npub) is None
        fake.on["EVENT"] = refuse_once
        claw.note_user(alice.npub, "likes tea")
        (written,) = await claw.flush()
        fields = json.loads(written.event.content)
        assert (fields["notes"], fields["first_seen"]) == (["likes tea"], NOW - 70)
        assert written.event.tag("made-from") == fake.events[1].id


@pytest.mark.proves("S-24")
async def test_a_version_that_loses_is_written_again_on_the_one_that_won(fake: FakeRelay) -> None:
    async def lose_once(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = fake.take
        await fake.publish(record(ALICE, {"notes": ["of another program"]}, NOW + 3))
        await visitor.say_no(frame[1]["id"], "duplicate: a newer version is stored")

    async with started(fake) as claw:
        fake.on["EVENT"] = lose_once
        claw.note_user(alice.npub, "mine")
        (written,) = await claw.flush()
        assert written.event.created_at == NOW + 4
        notes = json.loads(written.event.content)["notes"]
        assert notes == ["of another program", "mine"]


@pytest.mark.proves("S-32")
async def test_a_fresh_start_equals_the_state_at_the_last_flush(
    fake: FakeRelay, tmp_path: Path
) -> None:
    async with started(fake, folder=tmp_path) as claw:
        claw.see(said("hello"))
        claw.annotate_user(alice.npub, "VIP")
        claw.add_theme("tea", "green")
        await claw.flush()
        known = claw.users(), claw.groups()
    delete_caches(tmp_path)
    async with started(fake, folder=tmp_path) as claw:
        assert (claw.users(), claw.groups()) == known


async def test_with_a_folder_it_starts_and_saves_offline(fake: FakeRelay, tmp_path: Path) -> None:
    async with started(fake, folder=tmp_path) as claw:
        claw.note_user(alice.npub, "old")
        await claw.flush()
    await fake.stop()
    async with agent(fake, tmp_path) as claw:
        await claw.start()
        claw.note_user(alice.npub, "new")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.QUEUED
        await fake.start()
        await fake.until(lambda: len(fake.events) == 2)
        await fake.publish(config("global", NOW, respond_mode="all"))
        await until(lambda: claw.respond_mode() == "all")
    assert [fields["notes"] for fields in stored(fake, ALICE)] == [["old"], ["old", "new"]]


async def test_unreadable_records_are_not_overwritten(fake: FakeRelay) -> None:
    await fake.publish(record(ALICE, {"notes": "no list"}))
    await fake.publish(record("snowclaw:memory:group:tea", {"themes": 5}))
    async with started(fake) as claw:
        with pytest.raises(UserError, match=r"would be overwritten: content\.notes must be"):
            claw.note_user(alice.npub, "x")
        with pytest.raises(UserError, match="would be overwritten"):
            claw.add_theme("tea", "x")
        assert len(claw.unread()) == 2
        with pytest.raises(Invalid):
            claw.note_user("alice", "x")
        with pytest.raises(Invalid):
            claw.note_group("", "x")


@pytest.mark.proves("S-39")
async def test_what_does_not_fit_a_context_is_summarised_by_whoever_can(fake: FakeRelay) -> None:
    asked: list[tuple[Part, tuple[str, ...], int]] = []

    async def summary(part: Part, texts: Sequence[str], tokens: int) -> str:
        asked.append((part, tuple(texts), tokens))
        return f"{len(texts)} {part}"

    await fake.publish(record(ALICE, {"notes": ["tea " * 300, "late"]}))
    await fake.publish(
        record("snowclaw:memory:group:tea", {"purpose": "x", "themes": ["y " * 700]})
    )
    async with started(fake, groups=["tea"]) as claw:
        whole = await claw.assemble_summarised(said("hi"), "", 4_000, summary)
        assert (whole.text, asked) == (claw.assemble(said("hi"), "", 4_000).text, [])
        made = await claw.assemble_summarised(said("hi"), "", 400, summary)
        assert made.tokens_used <= 400
        assert made.sections[Section.GROUP] == "Summary: 2 group"
        assert made.sections[Section.SENDER].endswith("Notes:\n- Summary: 2 notes")
    assert [(part, len(texts)) for part, texts, _ in asked] == [(Part.GROUP, 2), (Part.NOTES, 2)]
    assert all(0 < tokens < 400 for *_, tokens in asked)


@pytest.mark.proves("S-39")
@pytest.mark.parametrize("forgotten", [Part.GROUP, Part.NOTES])
@pytest.mark.parametrize("during", [Part.GROUP, Part.NOTES])
async def test_no_summary_is_used_of_what_was_forgotten_while_one_was_made(
    fake: FakeRelay, forgotten: Part, during: Part
) -> None:
    """A model may take a minute. The summary stood in the context."""
    of_group, long = "snowclaw:memory:group:tea", ["tea " * 300]
    await fake.publish(record(ALICE, {"notes": [*long, "the code is 4711"]}))
    await fake.publish(record(of_group, {"purpose": "the code is 4711", "themes": long}))
    async with started(fake, groups=["tea"]) as claw:

        async def summary(part: Part, texts: Sequence[str], tokens: int) -> str:
            if part is during:
                if forgotten is Part.GROUP:
                    await fake.publish(record(of_group, {"themes": long}, NOW))
                    await until(lambda: "4711" not in str(claw.group("tea")))
                else:
                    await fake.publish(record(ALICE, {"notes": long}, NOW))
                    await until(lambda: "4711" not in str(claw.user(alice.npub)))
            return f"4711 of {part}" if any("4711" in text for text in texts) else "nothing"

        made = await claw.assemble_summarised(said("hi"), "", 400, summary)
        assert f"4711 of {forgotten}" not in made.text
        kept = Part.NOTES if forgotten is Part.GROUP else Part.GROUP
        assert f"4711 of {kept}" in made.text
        assert made.dropped[forgotten] == 1


async def test_a_summary_is_used_though_something_was_noted_while_it_was_made(
    fake: FakeRelay,
) -> None:
    await fake.publish(record(ALICE, {"notes": ["tea " * 300, "late"]}))
    async with started(fake, groups=["tea"]) as claw:

        async def summary(part: Part, texts: Sequence[str], tokens: int) -> str:
            claw.note_user(alice.npub, "likes tea")
            return "likes much"

        made = await claw.assemble_summarised(said("hi"), "", 400, summary)
        assert "Summary: likes much" in made.text


@pytest.mark.proves("S-12", "S-13")
async def test_encrypted_records_stay_encrypted(fake: FakeRelay) -> None:
    key = OwnKey.of(robot)
    draft = Draft(30078, [["d", ALICE]], '{"notes":["secret"]}', NOW - 9)
    await fake.publish(robot.sign(*encrypted(draft, key, bytes(32))))
    async with started(fake) as claw:
        claw.note_user(alice.npub, "and more")
        (written,) = await claw.flush()
        assert written.event.tag("encrypted") == "nip44"
        assert "more" not in written.event.content
    async with started(fake) as claw:
        memory = claw.user(alice.npub)
        assert memory is not None
        assert memory.notes == ("secret", "and more")


@pytest.mark.proves("S-07", "S-10")
async def test_every_record_of_a_user_says_since_when(fake: FakeRelay) -> None:
    bobs = f"snowclaw:memory:npub:{bob.pubkey[:32]}"
    await fake.publish(record(bobs, {"notes": ["of a program that left it out"]}))
    async with started(fake) as claw:
        claw.note_user(alice.npub, "noted before a word was said")
        claw.note_user(bob.npub, "x")
        await claw.flush()
    assert stored(fake, ALICE)[-1]["first_seen"] == NOW
    assert stored(fake, bobs)[-1]["first_seen"] == NOW - 9


async def test_a_user_s_memory_is_encrypted_when_asked(fake: FakeRelay) -> None:
    await fake.publish(record(ALICE, {"notes": ["plain so far"]}))
    async with started(fake) as claw:
        claw.note_user(alice.npub, "secret")
        claw.encrypt_user(alice.npub)
        (written,) = await claw.flush()
        assert written.event.tag("encrypted") == "nip44"
        assert "plain" not in written.event.content
        memory = claw.user(alice.npub)
        assert memory is not None
        assert memory.notes == ("plain so far", "secret")


async def test_a_note_made_for_an_encrypted_record_is_encrypted_though_that_is_gone(
    fake: FakeRelay,
) -> None:
    """Another machine forgot the record before the flush, which wrote the note in plain text."""
    async with started(fake) as claw:
        claw.encrypt_user(alice.npub)
        claw.note_user(alice.npub, "secret")
        (first,) = await claw.flush()
    async with started(fake) as claw:
        claw.note_user(alice.npub, "more of it")
        fake.events.remove(first.event)
        await fake.publish(robot.sign(5, [["e", first.event.id]], "", NOW - 1))
        await until(lambda: first.event.id not in {e.id for e in claw._working_copy.events()})
        (second,) = await claw.flush()
        assert second.event.tag("encrypted") == "nip44"
        memory = claw.user(alice.npub)
        assert memory is not None
        assert memory.notes == ("more of it",)


async def test_a_group_s_record_of_a_user_is_not_taken_from_its_members(fake: FakeRelay) -> None:
    await fake.publish(robot.sign(30078, [["d", ALICE], ["h", "tea"]], "{}", NOW - 9))
    async with started(fake) as claw:
        with pytest.raises(UserError, match="is read by group:tea"):
            claw.encrypt_user(alice.npub)
        assert claw.unsaved == 0


@pytest.mark.proves("S-33")
@pytest.mark.parametrize("first", [None, "coffee"])
async def test_a_first_version_is_read_by_a_group_only_if_all_of_it_is_for_that_group(
    fake: FakeRelay, first: str | None
) -> None:
    """Both notes went to the group of the second one."""
    async with started(fake) as claw:
        claw.note_user(alice.npub, "looks for another job", group=first)
        claw.note_user(alice.npub, "likes tea", group="tea")
        claw.note_user(bob.npub, "likes tea", group="tea")
        claw.note_user(bob.npub, "green", group="tea")
        alices, bobs = await claw.flush()
    assert (alices.event.tag("h"), bobs.event.tag("h")) == (None, "tea")


@pytest.mark.proves("S-33")
async def test_a_note_for_one_group_is_kept_out_of_a_record_that_another_reads(
    fake: FakeRelay,
) -> None:
    """It was published to the group that reads the record, and shown in its context."""
    async with started(fake) as claw:
        claw.note_user(alice.npub, "will be fired in May", group="board")
        await fake.publish(
            robot.sign(30078, [["d", ALICE], ["h", "tea"]], '{"notes":["likes tea"]}', NOW + 1)
        )
        await until(lambda: claw.group_reading(alice.npub) == "tea")
        shown = claw._working_copy.user(alice.npub, "tea")
        assert shown is not None
        assert shown.notes == ("likes tea",)
        for change in (
            partial(claw.note_user, alice.npub, "more"),
            partial(claw.set_preference, alice.npub, "tone", "dry"),
        ):
            with pytest.raises(UserError, match="is read by group:tea, not by group:board"):
                change(group="board")
        with pytest.raises(Invalid, match="group:tea reads the stored version"):
            await claw.flush()
        assert stored(fake, ALICE) == [{"notes": ["likes tea"]}]
        await claw.forget(ALICE)


@pytest.mark.proves("S-33")
@pytest.mark.parametrize("is_heard", [True, False], ids=["before the flush", "meanwhile"])
async def test_a_note_for_the_owner_is_kept_out_of_a_record_that_another_machine_shared(
    fake: FakeRelay, *, is_heard: bool
) -> None:
    shared = robot.sign(30078, [["d", ALICE], ["h", "tea"]], '{"notes":["likes tea"]}', NOW + 1)
    take = fake.on["EVENT"]

    async def store_another_first(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        fake.events.append(shared)
        await visitor.say_no(frame[1]["id"], "duplicate: a newer version is stored")

    async with started(fake) as claw:
        claw.note_user(alice.npub, "looks for another job")
        if is_heard:
            await fake.publish(shared)
            await until(lambda: claw.group_reading(alice.npub) == "tea")
        else:
            fake.on["EVENT"] = store_another_first
        claw.add_theme("tea", "leaves")
        with pytest.raises(Invalid, match="group:tea reads the stored version"):
            await claw.flush()
        assert (claw.unsaved, stored(fake, ALICE)) == (1, [{"notes": ["likes tea"]}])
        assert stored(fake, "snowclaw:memory:group:tea")[-1]["themes"] == ["leaves"]
        await claw.forget(ALICE)


async def end_with_a_note_for_the_owner(
    fake: FakeRelay, folder: Path | None = None, error: Exception | None = None
) -> None:
    async with started(fake, folder=folder) as claw:
        await note_for_the_owner_and_the_group(fake, claw)
        if error is not None:
            raise error


async def note_for_the_owner_and_the_group(fake: FakeRelay, claw: Snowclaw) -> None:
    """Another machine shared the record between the two notes."""
    claw.note_user(alice.npub, "looks for another job")
    await fake.publish(
        robot.sign(30078, [["d", ALICE], ["h", "tea"]], '{"notes":["likes tea"]}', NOW + 1)
    )
    await until(lambda: claw.group_reading(alice.npub) == "tea")
    claw.note_user(alice.npub, "green", group="tea")


@pytest.mark.proves("S-33")
async def test_a_flush_tells_that_a_part_was_kept_from_the_readers(fake: FakeRelay) -> None:
    """It was a success, since the other note of the user was stored."""
    async with started(fake) as claw:
        await note_for_the_owner_and_the_group(fake, claw)
        with pytest.raises(Invalid, match=f"{ALICE}: group:tea reads the stored version"):
            await claw.flush()
        assert (claw.unsaved, stored(fake, ALICE)[-1]["notes"]) == (1, ["likes tea", "green"])
        await claw.forget(ALICE)


@pytest.mark.proves("S-33")
@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["its end", "an error"])
async def test_what_is_kept_from_the_readers_is_on_disk_after_the_block(
    fake: FakeRelay, tmp_path: Path, error: Exception | None
) -> None:
    """It was lost, without a word if there was another note of the user."""
    with pytest.raises(Invalid if error is None else ZeroDivisionError):
        await end_with_a_note_for_the_owner(fake, tmp_path, error)
    async with started(fake, folder=tmp_path) as claw:
        (kept,) = await claw.refused()
        assert (json.loads(kept.event.content)["notes"], kept.event.tag("h")) == (
            ["looks for another job"],
            None,
        )
        assert "group:tea reads the stored version" in kept.reason
        claw.note_user(bob.npub, "x")
        await claw.flush()  # sends the queue first
        assert stored(fake, ALICE)[-1]["notes"] == ["likes tea", "green"]
        await claw.forget(ALICE)
        assert await claw.refused() == []


async def test_without_a_folder_the_end_of_the_block_tells_what_is_lost(fake: FakeRelay) -> None:
    with pytest.raises(Invalid, match=ALICE):
        await end_with_a_note_for_the_owner(fake)


@pytest.mark.proves("S-25")
async def test_forget_deletes_the_record_and_unsaved_changes(fake: FakeRelay) -> None:
    old = record(ALICE, {"notes": ["x"]})
    await fake.publish(old)
    async with started(fake) as claw:
        claw.note_user(alice.npub, "y")
        written = await claw.forget(ALICE)
        assert written is not None
        assert (written.event.kind, written.event.tag_values("e")) == (5, [old.id])
        assert (claw.user(alice.npub), claw.unsaved) == (None, 0)
        assert await claw.forget(ALICE) is None


@pytest.mark.proves("S-25")
async def test_a_first_version_that_is_being_flushed_is_forgotten_too(fake: FakeRelay) -> None:
    """`forget` said that there was none, and then the flush stored it."""
    take, is_sent, may_go = fake.on["EVENT"], asyncio.Event(), asyncio.Event()

    async def hold(visitor: Visitor, frame: list[Any]) -> None:
        is_sent.set()
        await may_go.wait()
        fake.on["EVENT"] = take
        await take(visitor, frame)

    fake.on["EVENT"] = hold
    async with started(fake) as claw:
        claw.note_user(alice.npub, "looks for another job")
        flushed = asyncio.create_task(claw.flush())
        await is_sent.wait()
        forgotten = asyncio.create_task(claw.forget(ALICE))
        await asyncio.sleep(0)
        may_go.set()
        ((first,), written) = await asyncio.gather(flushed, forgotten)
        assert written is not None
        assert written.event.tag_values("e") == [first.event.id]
        assert claw.user(alice.npub) is None


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("by", ["oneself", "another process", "its author", "address"])
async def test_a_forgotten_record_does_not_come_back_without_the_relay(
    fake: FakeRelay, tmp_path: Path, by: str
) -> None:
    """It stood in the cache, and the next note would have stored it again."""
    author = rover if by == "its author" else robot
    stored = record("snowclaw:memory:group:tea", {"notes": ["forget me"]}, by=author)
    await fake.publish(stored)
    given: dict[str, Any] = {"folder": tmp_path, "agents": [rover.pubkey]}
    async with started(fake, **given) as claw:
        assert claw.group("tea") is not None
        if by == "oneself":
            await claw.forget("snowclaw:memory:group:tea")
        else:
            address = ["a", f"30078:{author.pubkey}:snowclaw:memory:group:tea"]
            named = address if by == "address" else ["e", stored.id]
            await fake.publish(author.sign(5, [named], "", NOW))
        await until(lambda: claw.group("tea") is None)
        assert claw._cache is not None
        cache = claw._cache
        await until(lambda: stored.id not in {event.id for event in cache.matching(Filter())})
    await fake.stop()
    async with agent(fake, **given) as claw:
        await claw.start()
        assert claw.group("tea") is None


@pytest.mark.proves("S-25")
async def test_a_deletion_that_came_while_the_disk_was_full_reaches_the_cache(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else needs to be read or written for it."""
    monkeypatch.setattr("relay.client.memory._RETRY_S", 0.01)
    stored = record("snowclaw:memory:group:tea", {"notes": ["forget me"]})
    await fake.publish(stored)
    async with started(fake, folder=tmp_path) as claw:
        assert claw._cache is not None
        cache = claw._cache

        def on_a_full_disk(*_: object) -> Callable[[sqlite3.Connection], int]:
            def write(_: sqlite3.Connection) -> int:
                raise OSError(errno.ENOSPC, "database or disk is full")

            return write

        with monkeypatch.context() as full:
            full.setattr("relay.client.cache._deletion", on_a_full_disk)
            await fake.publish(robot.sign(5, [["e", stored.id]], "", NOW))
            await until(lambda: claw.group("tea") is None)
            await until(lambda: cache.matching(Filter()) == [])
        with closing(sqlite3.connect(cache.path)) as file:
            left = "SELECT count(*) FROM events"
            await until(lambda: file.execute(left).fetchone() == (0,))


@pytest.mark.proves("S-25")
async def test_a_record_that_is_left_in_the_cache_is_forgotten_all_the_same(
    fake: FakeRelay, tmp_path: Path
) -> None:
    """The disk is full: the agent itself does not use it any more."""
    await fake.publish(record("snowclaw:memory:group:tea", {"notes": ["forget me"]}))
    async with started(fake, folder=tmp_path) as claw:
        assert claw._cache is not None
        claw._cache._file._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LeftInCache, match="the relay has deleted it"):
            await claw.forget("snowclaw:memory:group:tea")
        assert claw.group("tea") is None
        assert await claw.forget("snowclaw:memory:group:tea") is None


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("by", ["oneself", "another process", "another process, by id"])
async def test_no_earlier_version_of_a_forgotten_record_comes_back(
    fake: FakeRelay, tmp_path: Path, by: str
) -> None:
    """The cache had the version of the last read, and the one deleted was stored since: the next
    note would have stored the earlier one again."""
    tea = "snowclaw:memory:group:tea"
    await fake.publish(record(tea, {"notes": ["forget me"]}))
    async with started(fake, folder=tmp_path) as claw:
        last = record(tea, {"notes": ["forget me", "likes tea"]}, NOW)
        await fake.publish(last)
        await until(lambda: claw._working_copy.own(tea) == last)
        if by == "oneself":
            await claw.forget(tea)
        else:
            tags = [["e", last.id], ["a", f"30078:{robot.pubkey}:{tea}"]]
            await fake.publish(robot.sign(5, tags[: 1 if by.endswith("id") else 2], "", NOW))
        await until(lambda: claw.group("tea") is None)
        assert claw._cache is not None
        cache = claw._cache
        await until(lambda: cache.matching(Filter()) == [])
    await fake.stop()
    async with agent(fake, folder=tmp_path) as claw:
        await claw.start()
        assert claw.group("tea") is None
    await fake.start()


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("by", ["id", "address", ""])
async def test_what_was_deleted_elsewhere_long_ago_leaves_a_copy_that_began_offline(
    fake: FakeRelay, tmp_path: Path, by: str
) -> None:
    """A relay that lost the record without a kind 5 does not make the agent lose it too."""
    fake.challenges_at_once = True
    fake.information = {**ROOKERY, "supported_nips": [1, 42, 50]}
    stored = record("snowclaw:memory:group:tea", {"notes": ["forget me"]}, NOW - 2_000)
    await fake.publish(stored)
    async with started(fake, folder=tmp_path):
        pass
    await fake.stop()
    fake.events.clear()
    if by:
        address = ["a", f"30078:{robot.pubkey}:snowclaw:memory:group:tea"]
        named = address if by == "address" else ["e", stored.id]
        fake.events.append(robot.sign(5, [named], "", NOW - 1_000))
    async with agent(fake, folder=tmp_path) as claw:
        await claw.start()
        assert claw.group("tea") is not None
        await fake.start()
        await claw._client.wait_connected()
        if by:
            await until(lambda: claw.group("tea") is None)
        else:
            assert not await claw._drop_absent()
            assert claw.group("tea") is not None


# -- one's own memory, configuration, search ---------------------------------------------------


@pytest.mark.proves("S-05", "S-13")
async def test_one_s_own_memory_is_stored_read_and_listed(fake: FakeRelay) -> None:
    async with started(fake) as claw:
        await claw.store("city", "Lisbon")
        written = await claw.store("pin", "4711", "daily", "s1", encrypted=True)
        assert "4711" not in written.event.content
        assert written.event.tags == [
            ["d", "snowclaw:daily:pin"],
            ["app", "snowclaw"],
            ["category", "daily"],
            ["agent", "snowclaw"],
            ["session", "s1"],
            ["encrypted", "nip44"],
        ]
        assert claw.get("pin", "daily") == AgentMemory("pin", "4711", "daily", "s1")
        assert claw.get("nothing") is None
        assert {memory.key for memory in claw.list()} == {"city", "pin"}
        assert [memory.text for memory in claw.list("core:")] == ["Lisbon"]
        with pytest.raises(Invalid):
            await claw.store("x", "y", "config")


async def test_the_owner_s_own_note_is_a_record_of_the_owner(fake: FakeRelay) -> None:
    async with agent(fake, signer=owner) as claw:
        claw.annotate_user(alice.npub, "VIP")
        claw.annotate_group("tea", "quiet")
        await claw.flush()
    assert {event.pubkey for event in fake.events} == {owner.pubkey}
    assert stored(fake, ALICE)[0]["notes"] == ["VIP"]


async def test_values_that_another_program_set_meanwhile_are_kept(fake: FakeRelay) -> None:
    async with agent(fake, signer=owner) as claw:
        await claw.set_config("group:tea", context_history=8)
        await fake.publish(config("group:tea", NOW + 1, context_history=6))
        written = await claw.set_config("group:tea", respond_mode="all")
        assert json.loads(written.event.content) == {"respond_mode": "all", "context_history": 6}


async def test_a_group_s_memory_that_begins_with_a_note_names_its_members(
    fake: FakeRelay,
) -> None:
    fake.information = {**ROOKERY, "self": rover.pubkey}
    await fake.publish(rover.sign(39002, [["d", "tea"], ["p", alice.pubkey]], "", NOW - 9))
    await fake.publish(alice.sign(0, [], '{"name":"k0"}', NOW - 9))
    async with started(fake, groups=["tea"]) as claw:
        claw.note_group("tea", "drinks oolong")
        memory = claw.group("tea")
        assert memory is not None
        assert memory.members == ((alice.npub, "k0"),)


@pytest.mark.proves("S-20", "S-15")
async def test_only_an_owner_sets_configuration_and_other_values_are_kept(
    fake: FakeRelay,
) -> None:
    async with started(fake) as claw:
        with pytest.raises(UserError, match="restricted: only an owner may write config"):
            await claw.set_config("global", respond_mode="all")
    assert fake.events == []
    async with agent(fake, signer=owner) as claw:
        before = await claw.set_config("group:tea", respond_mode="ALL")
        written = await claw.set_config("group:tea", context_history="30")
        assert written.event.tags == [
            ["d", "snowclaw:config:group:tea"],
            ["h", "tea"],
            ["respond_mode", "all"],
            ["context_history", "30"],
            ["made-from", before.event.id, str(before.event.created_at)],
        ]
        assert written.event.content == '{"respond_mode":"all","context_history":30}'
        user = await claw.set_config(f"npub:{alice.npub}", respond_mode="silent")
        assert user.event.d == f"snowclaw:config:npub:{alice.pubkey[:32]}"
        assert claw.respond_mode("tea", alice.npub) == "none"
        for scope, values in (("global", {"respond_mode": "x"}), ("here", {})):
            with pytest.raises(Invalid):
                await claw.set_config(scope, **values)


@pytest.mark.proves("G-30")
async def test_recall_uses_the_relays_search_or_scans(fake: FakeRelay) -> None:
    searched: list[object] = []

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        """Finds everything."""
        if "search" in frame[2]:
            searched.append((frame[2].pop("search"), frame[2]["limit"]))
        await fake.answer(visitor, frame)

    fake.on["REQ"] = answer
    await fake.publish(record(ALICE, {"notes": [f"likes Green tea, gave {bob.nsec}"]}))
    await fake.publish(robot.sign(30078, [["d", "snowclaw:core:tea"]], "green is best", NOW))
    await fake.publish(config("global", respond_mode="all", note="green tea"))
    async with started(fake) as claw:
        found = await claw.recall("green", limit=5)
        assert {hit.event.d for hit in found} == {ALICE, "snowclaw:core:tea"}
    assert searched == [("green", 5)]
    fake.information = {"name": "another relay"}
    async with started(fake) as claw:
        (hit,) = await claw.recall("green tea likes")
        assert hit.event.d == ALICE
        assert bob.nsec not in hit.text
        assert len(await claw.recall("green", limit=1)) == 1
        assert await claw.recall("coffee") == []
        assert "does not support search" in claw.shortfall


@pytest.mark.proves("S-33")
async def test_recall_for_a_group_excludes_other_groups(fake: FakeRelay) -> None:
    fake.information = {"name": "another relay"}
    await fake.publish(record("snowclaw:memory:group:coffee", {"themes": ["beans"]}))
    await fake.publish(robot.sign(30078, [["d", "snowclaw:core:b"]], "beans", NOW))
    async with started(fake) as claw:
        assert len(await claw.recall("beans")) == 2
        assert [hit.event.d for hit in await claw.recall("beans", group="tea")] == [
            "snowclaw:core:b"
        ]


LIKES = "likes Green tea in the morning"


@pytest.mark.parametrize("key", [bob.npub, bob.pubkey])
async def test_what_was_recalled_of_one_user_may_be_noted_of_another(
    fake: FakeRelay, key: str
) -> None:
    fake.information = {"name": "another relay"}
    await fake.publish(record(ALICE, {"notes": [LIKES]}))
    async with started(fake) as claw:
        assert await claw.recall("green tea")
        claw.note_user(key, LIKES)
        claw.annotate_user(key, LIKES)
        claw.set_preference(key, "tea", LIKES)
        memory = claw.user(key)
        assert memory is not None
        assert (memory.notes, memory.owner_notes) == ((LIKES,), (LIKES,))
        assert memory.preferences == {"tea": LIKES}
        claw.annotate_user(alice.npub, LIKES)
        assert (await claw.store("tea", LIKES)).outcome is Outcome.KEPT_OUT
        assert [each.why for each in claw.kept_out] == [Why.ECHO] * 2


async def test_what_was_recalled_of_one_group_may_be_noted_of_another(fake: FakeRelay) -> None:
    fake.information = {"name": "another relay"}
    await fake.publish(record("snowclaw:memory:group:coffee", {"themes": [LIKES]}))
    async with started(fake) as claw:
        assert await claw.recall("green tea")
        claw.note_group("tea", LIKES)
        claw.annotate_group("coffee", LIKES)
        memory = claw.group("tea")
        assert memory is not None
        assert memory.notes == (LIKES,)
        assert [each.why for each in claw.kept_out] == [Why.ECHO]


async def test_a_private_note_that_was_recalled_of_one_user_may_be_made_of_another(
    fake: FakeRelay,
) -> None:
    fake.information = {"name": "another relay"}
    async with started(fake) as claw:
        for key in (alice.npub, bob.npub):
            claw.note_user(key, "drinks tea", group="tea")
        await claw.flush()
        await claw.annotate_privately(alice.npub, LIKES)
        assert await claw.recall("green tea")
        outcomes = []
        for key in (alice.npub, bob.npub):
            written = await claw.annotate_privately(key, LIKES)
            assert written is not None
            outcomes.append(written.outcome)
        assert outcomes == [Outcome.KEPT_OUT, Outcome.STORED]


async def test_records_readable_by_anyone_are_leaks(fake: FakeRelay) -> None:
    fake.challenges_at_once = True
    await fake.publish(rover.sign(39002, [["d", "tea"], ["p", bob.pubkey]], "", NOW))
    of_tea = robot.sign(30078, [["d", "snowclaw:memory:group:tea"], ["h", "tea"]], "{}", NOW)
    await fake.publish(of_tea)
    await fake.publish(config("global", respond_mode="all"))
    async with started(fake) as claw:
        leaks = await claw.verify_isolation([bob])
    by_reader = {
        reader: {leak.event.d for leak in leaks if leak.reader == reader}
        for reader in {leak.reader for leak in leaks}
    }
    assert by_reader.pop("") == {of_tea.d, "snowclaw:config:global"}
    assert by_reader.pop(bob.pubkey) == {"snowclaw:config:global"}
    (stranger_s,) = by_reader.values()
    assert stranger_s == {of_tea.d, "snowclaw:config:global"}
