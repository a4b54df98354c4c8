"""Subscription: stored events, then live ones, none missing and none twice."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import (
    Client,
    ClientClosed,
    QueryClosed,
    Subscription,
    Timeouts,
    Unanswered,
    connection,
)
from relay.client import subscription as subscription_module
from relay.client.errors import AnswerTooLong
from relay.client.reconnect import Reconnector
from relay.client.resume import ResumeState
from relay.nostr.event import weight_of
from tests.cast import alice, bob
from tests.harness.fake_relay import closing, ignoring
from tests.harness.held import without_garbage_collection
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

CHAT = {"kinds": [9]}
NOW = 1_700_000_000


def chat(text: str, at: int = NOW) -> Event:
    return bob.sign(9, [["h", "tea"]], text, at)


def client_of(fake: FakeRelay, timeouts: Timeouts) -> Client:
    return Client(fake.url, alice, timeouts=timeouts, now=lambda: NOW)


async def texts(events: Subscription, count: int) -> list[str]:
    async with asyncio.timeout(ANSWER_S):
        return [(await anext(events)).content for _ in range(count)]


async def test_stored_events_come_first_then_live_ones(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("old", NOW - 2), chat("new", NOW - 1)]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        assert [event.content async for event in events.stored()] == ["new", "old"]
        assert events.is_live
        await fake.publish(chat("live"))
        assert await texts(events, 1) == ["live"]


async def test_eose_can_be_awaited(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("old")]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await events.eose
        assert not events.is_live, "nothing was read yet"
        assert await texts(events, 1) == ["old"]


@pytest.mark.slow
async def test_a_missing_eose_raises_at_the_deadline(fake: FakeRelay) -> None:
    fake.on["REQ"] = ignoring
    hasty = Timeouts(deadline_s=0.2)
    async with Client(fake.url, timeouts=hasty) as relay, relay.subscribe(CHAT) as events:
        with pytest.raises(Unanswered, match="EOSE"):
            await events.eose
        with pytest.raises(Unanswered, match="stored events"):
            await anext(events.stored())


async def test_a_subscription_receives_events_of_its_own_client(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await relay.send(9, "echo")
        assert await texts(events, 1) == ["echo"]


async def test_duplicate_unrequested_and_forged_events_are_dropped(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        once, note = chat("once"), bob.sign(1, [], "note", NOW)
        forged = chat("forged")
        (visitor,) = fake.visitors
        (sub,) = visitor.subs
        await visitor.show(sub, once)
        await visitor.show(sub, once)
        await visitor.show(sub, note)
        await visitor.say(
            "EVENT",
            sub,
            {
                "id": forged.id,
                "pubkey": forged.pubkey,
                "created_at": NOW,
                "kind": 9,
                "tags": forged.tags,
                "content": "forged",
                "sig": once.sig,
            },
        )
        await visitor.show(sub, chat("end"))
        assert await texts(events, 2) == ["once", "end"]


async def test_leaving_the_async_with_closes_the_subscription(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay:
        async with relay.subscribe(CHAT) as events:
            await events.eose
        await fake.until(lambda: not fake.visitors[0].subs)
        with pytest.raises(ClientClosed, match="ended"):
            await anext(events)


async def test_what_was_not_read_is_not_kept_until_garbage_is_collected(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def leave() -> None:
        async with relay.subscribe(CHAT) as events:
            await events.eose

    fake.events = [chat("x" * 100_000, NOW - n) for n in range(20)]
    async with client_of(fake, timeouts) as relay:
        await leave()  # what is made once
        with without_garbage_collection() as held:
            for _ in range(3):
                await leave()
            assert held() < 1_000_000


async def test_what_was_read_is_not_kept(fake: FakeRelay, timeouts: Timeouts) -> None:
    """A slow reader of large messages took twice the memory that may wait."""
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await fake.stop()
        fake.events = [chat("x" * 100_000, NOW + n) for n in range(20)]
        with without_garbage_collection() as held:
            await fake.start()
            await texts(events, 20)
            async with asyncio.timeout(ANSWER_S):
                while held() >= 1_000_000:  # noqa: ASYNC110 -- nobody tells when buffers are freed
                    await asyncio.sleep(0.01)


async def test_closing_the_client_ends_a_subscription_that_is_still_read(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    events = client_of(fake, timeouts)
    async with events as relay:
        subscription = await relay.subscribe(CHAT).__aenter__()
    with pytest.raises(ClientClosed):
        await anext(subscription)
    await subscription.__aexit__(None, None, None)


async def test_a_cancelled_read_loses_no_event(fake: FakeRelay, timeouts: Timeouts) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(events)
        await fake.publish(chat("later"))
        assert await texts(events, 1) == ["later"]


# Reconnecting


async def test_after_a_reconnect_no_event_is_missing_or_repeated(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat("stored", NOW - 5)]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        assert await texts(events, 1) == ["stored"]
        await events.eose
        await fake.publish(chat("live", NOW - 4))
        assert await texts(events, 1) == ["live"]
        await fake.stop()
        # Late, and dated before what was seen last: clocks differ.
        fake.events += [chat("meanwhile", NOW - 3), chat("backdated", NOW - 60)]
        await fake.start()
        assert sorted(await texts(events, 2)) == ["backdated", "meanwhile"]
        await fake.publish(chat("live again", NOW))
        assert await texts(events, 1) == ["live again"]
    since = fake.verbs("REQ")[-1][2]["since"]
    assert since == NOW - 4 - 900


async def test_missed_events_are_yielded_oldest_first(fake: FakeRelay, timeouts: Timeouts) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await fake.stop()
        fake.events += [chat("third", NOW - 1), chat("first", NOW - 3), chat("second", NOW - 2)]
        await fake.start()
        assert await texts(events, 3) == ["first", "second", "third"]
        await fake.publish(chat("live again", NOW))
        assert await texts(events, 1) == ["live again"]


@pytest.mark.parametrize("bound", ["bytes", "number"])
async def test_a_second_loss_while_catching_up_loses_no_event(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Also if they are more than half of what can be held."""
    missed = [chat(f"{n}", NOW + n) for n in range(10)]
    most = sum(map(weight_of, missed))
    if bound == "number":
        monkeypatch.setattr("relay.client.subscription.MAX_ANSWER", len(missed))
        most *= 10
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=most) as events,
    ):
        await events.eose
        await fake.stop()
        fake.events = missed

        async def part_of_an_answer(visitor: Visitor, frame: list[Any]) -> None:
            fake.on["REQ"] = fake.answer
            for event in fake.events[3:]:
                await visitor.show(frame[1], event)
            await visitor.hang_up()

        fake.on["REQ"] = part_of_an_answer
        await fake.start()
        assert await texts(events, 10) == [f"{n}" for n in range(10)]


async def test_a_connection_lost_before_eose_repeats_no_stored_event(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}", NOW - n) for n in range(10)]

    async def half_an_answer(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["REQ"] = fake.answer
        for event in fake.events[:5]:
            await visitor.show(frame[1], event)
        await visitor.hang_up()

    fake.on["REQ"] = half_an_answer
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        assert [event.content async for event in events.stored()] == [f"{n}" for n in range(10)]


async def test_a_live_only_subscription_stays_one_after_a_reconnect(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat("history", NOW - 5)]
    async with client_of(fake, timeouts) as relay, relay.subscribe({**CHAT, "limit": 0}) as events:
        await events.eose
        await fake.stop()
        fake.events.append(chat("meanwhile", NOW + 1))
        await fake.start()
        assert await texts(events, 1) == ["meanwhile"]


# CLOSED


async def test_a_subscription_that_the_relay_refuses_raises(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["REQ"] = closing("restricted: not a member")
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        for _ in range(2):
            with pytest.raises(QueryClosed, match="restricted: not a member"):
                await anext(events)
        with pytest.raises(QueryClosed):
            await events.eose


async def test_events_received_before_closed_are_read_before_it_raises(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        (visitor,) = fake.visitors
        (sub,) = visitor.subs
        await fake.publish(chat("last words"))
        await visitor.say("CLOSED", sub, "restricted: you were removed")
        assert await texts(events, 1) == ["last words"]
        with pytest.raises(QueryClosed, match="removed"):
            await anext(events)


async def test_auth_required_is_answered_and_the_subscription_asked_again(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def ask_who(visitor: Visitor, frame: list[Any]) -> None:
        if visitor.keys:
            await fake.answer(visitor, frame)
        else:
            await visitor.say("AUTH", visitor.challenge)
            await visitor.say("CLOSED", frame[1], "auth-required: who are you?")

    fake.on["REQ"] = ask_who
    fake.events = [chat("secret")]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        assert await texts(events, 1) == ["secret"]
    async with Client(fake.url, timeouts=timeouts) as relay, relay.subscribe(CHAT) as events:
        with pytest.raises(QueryClosed, match="auth-required"):
            await anext(events)


async def test_a_live_subscription_closed_by_a_busy_relay_is_opened_again(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await fake.publish(chat("before"))
        (visitor,) = fake.visitors
        (sub,) = visitor.subs
        del visitor.subs[sub]
        await visitor.say("CLOSED", sub, "error: the relay is stopping")
        fake.events.append(chat("meanwhile", NOW + 1))
        assert await texts(events, 2) == ["before", "meanwhile"]
    assert len(fake.verbs("REQ")) == 2


async def test_a_relay_with_no_place_for_it_is_asked_less_and_less_often(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers with the stored events and EOSE, then CLOSED: each answer costs it work."""
    attempts: list[int] = []

    def backoff_s(self: Reconnector, attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    async def answered_once(visitor: Visitor, frame: list[Any]) -> None:
        await fake.answer(visitor, frame)
        visitor.subs.pop(frame[1], None)
        await visitor.say("CLOSED", frame[1], "rate-limited: too many costly subscriptions")

    monkeypatch.setattr(Reconnector, "backoff_s", backoff_s)
    fake.on["REQ"] = answered_once
    fake.events = [chat("stored")]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        assert await texts(events, 1) == ["stored"]
        fake.events.append(chat("meanwhile", NOW + 1))
        assert await texts(events, 1) == ["meanwhile"]
        await fake.until(lambda: len(attempts) > 3)
        assert await relay.query(CHAT) == fake.events[::-1]
    assert attempts[:4] == [0, 1, 2, 3]


async def test_a_relay_that_says_that_it_stops_and_stays_is_left(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ENDING_S", 0.05)
    fake.on["REQ"] = closing("error: the relay is stopping")
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT):
        await fake.until(lambda: fake.visits == 3)
    assert len(fake.verbs("REQ")) <= 3


# A slow reader


async def test_a_slow_reader_misses_no_event(fake: FakeRelay, timeouts: Timeouts) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT, queue=10) as events:
        await events.eose
        for n in range(100):
            await fake.publish(chat(f"{n}", NOW + n))
        # Its own publishing goes on while the queue is full.
        await relay.publish(chat("mine", NOW + 100))
        got = await texts(events, 101)
    assert sorted(got) == sorted([*(f"{n}" for n in range(100)), "mine"])
    assert got[:10] == [f"{n}" for n in range(10)]


async def test_too_many_stored_events_raise(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "MAX_ANSWER", 3)
    fake.events = [chat(f"{n}", NOW - n) for n in range(9)]
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, keeps_newest=False) as events,
    ):
        await fake.until(lambda: bool(fake.verbs("CLOSE")))
        assert await texts(events, 3) == ["0", "1", "2"]
        with pytest.raises(AnswerTooLong):
            await anext(events)


async def test_a_slow_reader_of_large_events_misses_none(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """A relay that means harm sent 10,000 of 16 MB."""
    live = 60_000
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=4 * live) as events,
    ):
        await events.eose
        for n in range(60):
            await fake.publish(chat(f"{n}".rjust(1000), NOW + n))
        await relay.publish(chat("mine", NOW + 60))
        assert len(events._ready) + len(events._unchecked) < 30
        got = await texts(events, 61)
    assert sorted(text.strip() for text in got) == sorted([*(f"{n}" for n in range(60)), "mine"])


async def test_stored_events_that_are_too_large_together_raise(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}".rjust(1000), NOW - n) for n in range(9)]
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=10_000, keeps_newest=False) as events,
    ):
        await fake.until(lambda: bool(fake.verbs("CLOSE")))
        assert [text.strip() for text in await texts(events, 3)] == ["0", "1", "2"]
        with pytest.raises(AnswerTooLong, match="10000 bytes"):
            await anext(events)


async def test_stored_events_that_were_read_may_be_kept_and_count(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """A relay that means harm sent them without end."""
    fake.events = [chat(f"{n}", NOW - n) for n in range(9)]
    most = 3 * weight_of(fake.events[0])
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        stored = events.stored(most_bytes=most)
        assert [(await anext(stored)).content for _ in range(3)] == ["0", "1", "2"]
        with pytest.raises(AnswerTooLong, match=f"{most} bytes"):
            await anext(stored)


async def test_stored_events_have_a_deadline_for_all(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "_DEADLINES", 0)
    fake.events = [chat("stored")]
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        with pytest.raises(Unanswered, match="no end of the stored events"):
            await anext(events.stored())


async def test_of_more_missed_events_than_can_be_held_the_newest_are_kept(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=10_000) as events,
    ):
        await events.eose
        await fake.stop()
        fake.events = [chat(f"{n}".rjust(1000), NOW + n) for n in range(9)]
        await fake.start()
        assert [text.strip() for text in await texts(events, 3)] == ["6", "7", "8"]
        assert events.dropped == 6
        await fake.publish(chat("live", NOW + 9))
        assert await texts(events, 1) == ["live"]


async def test_of_more_stored_events_than_can_be_held_the_newest_are_kept(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}".rjust(1000), NOW + n) for n in range(9)]
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=10_000) as events,
    ):
        await events.eose
        assert [text.strip() for text in await texts(events, 3)] == ["8", "7", "6"]
        assert events.dropped == 6
        await fake.publish(chat("live", NOW + 9))
        assert await texts(events, 1) == ["live"]


@pytest.mark.parametrize("is_live", [True, False])
async def test_the_newest_event_is_not_dropped_while_stored_ones_wait(
    fake: FakeRelay, timeouts: Timeouts, *, is_live: bool
) -> None:
    async def without_eose(visitor: Visitor, frame: list[Any]) -> None:
        for event in reversed(fake.events):
            await visitor.show(frame[1], event)
        fake.on["REQ"] = fake.answer

    fake.events = [chat(f"{n}".rjust(1000), NOW + n) for n in range(9)]
    if not is_live:
        fake.on["REQ"] = without_eose
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe(CHAT, most_bytes=10_000) as events,
    ):
        await relay.query({"kinds": [1]})
        await fake.stop()
        fake.events.append(chat("newest", NOW + 9))
        visits = fake.visits
        await fake.start()
        await fake.until(lambda: fake.visits > visits)
        for _ in range(3):  # the relay has answered what was asked before
            await relay.query({"kinds": [1]})
        assert [text.strip() for text in await texts(events, 4)] == ["8", "7", "6", "newest"]
        assert events.dropped == 6


async def test_a_flood_of_large_events_ends_no_subscription(
    fake: FakeRelay, timeouts: Timeouts, caplog: pytest.LogCaptureFixture
) -> None:
    """260 messages of 400 kB by a stranger ended an agent that took 50 ms for each."""
    async with (
        client_of(fake, timeouts) as relay,
        relay.subscribe({**CHAT, "limit": 0}, most_bytes=10_000) as events,
    ):
        await events.eose
        for n in range(30):
            await fake.publish(chat(f"{n}".rjust(1000), NOW + n))
        await relay.publish(chat("mine", NOW + 30))
        count = 0
        async with asyncio.timeout(ANSWER_S):
            while (await anext(events)).content != "mine":
                count += 1
        assert events.dropped == 30 - count > 0
        assert f"{events.dropped} events were dropped" in caplog.text
        await fake.publish(chat("live", NOW + 31))
        assert await texts(events, 1) == ["live"]


async def test_a_missed_event_may_come_twice(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another signature, too: that is verified later."""
    monkeypatch.setattr(subscription_module, "ResumeState", partial(ResumeState, max_ids=3))

    async def twice(visitor: Visitor, frame: list[Any]) -> None:
        for event in fake.events:
            await visitor.show(frame[1], event)
            forged = {**json.loads(event.raw), "sig": "0" * 128}
            await visitor.say("EVENT", frame[1], forged)
        await visitor.say("EOSE", frame[1])

    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await fake.stop()
        fake.events = [chat(f"{n}", NOW - n) for n in range(9)]
        fake.on["REQ"] = twice
        await fake.start()
        assert await texts(events, 9) == [f"{n}" for n in reversed(range(9))]


async def test_several_tasks_wait_until_what_was_received_is_read(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with client_of(fake, timeouts) as relay, relay.subscribe(CHAT) as events:
        await events.eose
        await relay.publish(chat("one"))
        waiting = [asyncio.create_task(events.until_read())]
        await relay.publish(chat("two"))
        waiting.append(asyncio.create_task(events.until_read()))
        await asyncio.sleep(0)
        assert await texts(events, 1) == ["one"]
        await waiting[0]
        assert await texts(events, 1) == ["two"]
        async with asyncio.timeout(ANSWER_S):
            await waiting[1]
