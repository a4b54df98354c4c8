"""publish_many: retries, bounds and cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Unanswered
from tests.cast import robot
from tests.harness.fake_relay import ignoring, refusing
from tests.unit.client.conftest import TIMEOUTS

if TYPE_CHECKING:
    from tests.harness.fake_relay import FakeRelay, Visitor

EVENTS = [robot.sign(9, [["h", "tea"]], str(number), 1_700_000_000) for number in range(20)]


async def test_events_wait_for_a_login_that_the_relay_asks_for(fake: FakeRelay) -> None:
    async def known_alone(visitor: Visitor, frame: list[Any]) -> None:
        if visitor.keys:
            await fake.take(visitor, frame)
            return
        await visitor.say_no(frame[1]["id"], "auth-required: who are you?")
        await visitor.say("AUTH", visitor.challenge)

    fake.on["EVENT"] = known_alone
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        report = await client.publish_many(EVENTS, window=4)
    assert (report.stored, report.duplicates, report.refused) == (20, 0, ())
    assert {event.id for event in fake.events} == {event.id for event in EVENTS}


async def test_a_lost_connection_loses_no_event(fake: FakeRelay) -> None:
    async def vanish_once(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = fake.take
        visitor.drop_connection()

    fake.on["EVENT"] = vanish_once
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        report = await client.publish_many(EVENTS, window=7)
    assert report.stored + report.duplicates == 20
    assert {event.id for event in fake.events} == {event.id for event in EVENTS}


async def test_at_most_window_events_are_in_flight(fake: FakeRelay) -> None:
    in_flight: list[tuple[Visitor, str]] = []

    async def hold(visitor: Visitor, frame: list[Any]) -> None:
        in_flight.append((visitor, frame[1]["id"]))

    fake.on["EVENT"] = hold
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client, asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(client.publish_many(EVENTS[:18], window=3))
        for _ in range(6):
            await fake.until(lambda: len(in_flight) >= 3)
            await client.count({})  # a fourth event would have been sent before this
            assert len(in_flight) == 3
            answered, in_flight[:] = in_flight[:], []
            for visitor, event_id in answered:
                await visitor.say_ok(event_id)
    assert publishing.result().stored == 18


async def test_a_missing_ok_raises_unanswered(fake: FakeRelay) -> None:
    async def silent(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] != EVENTS[1].id:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = silent
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        with pytest.raises(Unanswered, match=r"no answer within 0\.05 s"):
            await client.publish_many(EVENTS, deadline_s=0.05)
        await client.publish(EVENTS[0])


async def test_cancellation_leaves_no_task_behind(fake: FakeRelay) -> None:
    fake.on["EVENT"] = ignoring
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        running = asyncio.all_tasks()
        publishing = asyncio.create_task(client.publish_many(EVENTS))
        await fake.until(lambda: len(fake.verbs("EVENT")) == 20)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert asyncio.all_tasks() <= running
        fake.on["EVENT"] = fake.take
        fake.drop_connection()
        assert (await client.publish_many(EVENTS)).stored == 20


async def test_rate_limited_events_are_retried_at_the_relays_rate(fake: FakeRelay) -> None:
    bucket = 5

    async def at_a_pace(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal bucket
        bucket -= 1
        if bucket < 0:
            bucket = 3  # it has filled a little while the client waited
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down; try again in 0 s")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = at_a_pace
    waits: list[tuple[int, int]] = []
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        client.on_wait = lambda accepted, waiting: waits.append((accepted, waiting))
        report = await client.publish_many(EVENTS, window=8)
    assert (report.stored, report.refused) == (len(EVENTS), ())
    assert waits
    assert all(accepted + waiting <= len(EVENTS) and waiting for accepted, waiting in waits)
    assert waits == sorted(waits, key=lambda wait: wait[0])


async def test_rate_limited_events_are_refused_after_patience_s(fake: FakeRelay) -> None:
    fake.on["EVENT"] = refusing("rate-limited: no more today; try again in 9999 s")
    async with Client(fake.url, robot, timeouts=TIMEOUTS) as client:
        report = await client.publish_many(EVENTS, patience_s=0.05)
    assert len(report.refused) == len(EVENTS)
    assert {refusal.text for refusal in report.refused} == {"no more today; try again in 9999 s"}
