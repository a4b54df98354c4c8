"""Client: lost connections and reconnects."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, PublishRefused, QueryClosed, Timeouts, Unanswered
from relay.client.reconnect import Reconnector
from tests.cast import alice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

CHAT = {"kinds": [9]}


def chat(text: str, at: int = 1_700_000_000) -> Event:
    return alice.sign(9, [["h", "tea"]], text, at)


def is_visited_after(fake: FakeRelay, visits: int) -> bool:
    return fake.visits > visits and bool(fake.visitors)


async def dropped(visitor: Visitor) -> None:
    visitor.drop_connection()


async def test_an_unanswered_event_is_published_again_after_a_reconnect(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def store_and_go(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = fake.take
        await fake.publish(event)
        visitor.drop_connection()

    fake.on["EVENT"] = store_and_go
    event = chat("did you hear me?")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.publish(event)
    assert len(fake.verbs("EVENT")) == 2
    assert fake.events == [event]


async def test_publish_many_survives_a_lost_connection(fake: FakeRelay, timeouts: Timeouts) -> None:
    events = [chat(f"{n}") for n in range(100)]

    async def go_at_half(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] == events[50].id and fake.visits == 1:
            visitor.drop_connection()
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = go_at_half
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        report = await relay.publish_many(events, window=16)
    assert report.stored + report.duplicates == 100
    assert {event.id for event in fake.events} == {event.id for event in events}
    assert len(fake.events) == 100


async def test_a_query_interrupted_before_eose_is_repeated(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat("b", 2), chat("a", 1)]

    async def half_an_answer(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["REQ"] = fake.answer
        await visitor.show(frame[1], fake.events[0])
        visitor.drop_connection()

    fake.on["REQ"] = half_an_answer
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.query(CHAT) == fake.events


@pytest.mark.parametrize("code", [1001, 1012])
async def test_requests_to_a_relay_that_restarts_are_answered_by_its_next_start(
    fake: FakeRelay, timeouts: Timeouts, code: int
) -> None:
    fake.events = [chat("b", 2), chat("a", 1)]
    said = "stopping" if code == 1001 else "restarting"

    async def goodbye(visitor: Visitor, frame: list[Any]) -> None:
        """What comes after CLOSED is not read."""
        fake.on["REQ"] = silence
        await visitor.say("CLOSED", frame[1], f"error: the relay is {said}")

    async def silence(visitor: Visitor, _: list[Any]) -> None:
        fake.on["REQ"] = fake.answer
        await visitor.hang_up(code)

    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        fake.on["REQ"] = goodbye
        assert await relay.query(CHAT) == fake.events
        fake.on["REQ"] = goodbye
        async with relay.subscribe(CHAT) as events:
            assert [event async for event in events.stored()] == fake.events


async def test_each_connection_is_authenticated_before_other_requests(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        fake.drop_connection()
        await fake.until(lambda: fake.visits == 2)
        await relay.query(CHAT)
        assert relay.logged_in == {alice.pubkey}
    assert [frame[0] for frame in fake.seen[:3]] == ["AUTH", "AUTH", "REQ"]


async def test_a_relay_that_restarts_is_found_again(fake: FakeRelay, timeouts: Timeouts) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await fake.stop()
        publishing = asyncio.ensure_future(relay.send(9, "after the restart"))
        await fake.start()
        event = await publishing
    assert fake.events == [event]


@pytest.mark.slow
async def test_the_deadline_error_names_an_unreachable_relay(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await fake.stop()
        with pytest.raises(Unanswered, match=r"no connection: (connection refused|the connection)"):
            await relay.publish(chat("anybody?"), deadline_s=0.5)
    await fake.start()


async def test_an_event_too_large_for_the_relay_is_refused_and_not_resent(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    big = chat("x" * 2**21)
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(PublishRefused, match=r"invalid: the relay accepts no message of \d+"):
            await relay.publish(big)
        await relay.publish(chat("small"))
    assert fake.visits == 2


async def test_a_filter_too_large_for_the_relay_is_closed_and_not_resent(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed, match=r"invalid: the relay accepts no message of \d+"):
            await relay.query({"#t": ["x" * 2**21]})


@pytest.mark.parametrize(
    ("ends", "attempts"),
    [
        (lambda visitor: visitor.hang_up(1012), [0, 0, 0, 0]),
        (lambda visitor: visitor.hang_up(1001), [0, 0, 0, 0]),
        (lambda visitor: visitor.hang_up(1013), [0, 1, 2, 3]),
        (dropped, [0, 1, 2, 3]),
    ],
)
async def test_a_relay_that_says_that_it_restarts_is_found_without_a_growing_backoff(
    fake: FakeRelay,
    timeouts: Timeouts,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[Visitor], Awaitable[None]],
    attempts: list[int],
) -> None:
    waited: list[int] = []

    def noted(_: Reconnector, attempt: int) -> float:
        waited.append(attempt)
        return 0.0

    monkeypatch.setattr(Reconnector, "backoff_s", noted)
    async with Client(fake.url, timeouts=timeouts):
        for ended in range(4):
            await fake.until(partial(is_visited_after, fake, ended))
            await ends(fake.visitors[-1])
        await fake.until(lambda: fake.visits == 5)
    assert waited == attempts


def test_the_reconnect_backoff_is_exponential_bounded_and_jittered() -> None:
    reconnector = Reconnector(
        "ws://x", (), Timeouts(first_backoff_s=1, max_backoff_s=60), lambda: 0
    )
    for attempt, whole in [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (5000, 60)]:
        waits = {reconnector.backoff_s(attempt) for _ in range(50)}
        assert len(waits) > 1
        assert all(whole / 2 <= wait <= whole for wait in waits)
