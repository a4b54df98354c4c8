"""Responses to REQ: which events are accepted, for every JSON spacing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from tests.cast import alice

if TYPE_CHECKING:
    from relay.client import Timeouts
    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

WANTED = {"kinds": [9], "#h": ["tea"]}


def chat(text: str, kind: int = 9, group: str = "tea") -> Event:
    return alice.sign(kind, [["h", group]], text, 1_700_000_000)


@pytest.fixture(params=[(",", ":"), (", ", ": ")], ids=["compact", "with spaces"])
def spelling(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


async def test_only_requested_and_signed_events_are_returned_once(
    fake: FakeRelay, timeouts: Timeouts, spelling: tuple[str, str]
) -> None:
    good = [chat(f"{number}") for number in range(12)]
    fields: list[Any] = [json.loads(event.raw) for event in good]
    altered = {**fields[0], "content": "altered"}
    unsigned = {**json.loads(chat("unsigned").raw), "sig": "0" * 128}
    other = [json.loads(chat("x", kind=1).raw), json.loads(chat("x", group="coffee").raw)]
    shown = [*fields[:6], altered, unsigned, *other, None, 7, fields[0], *fields[6:]]

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        for event in shown:
            text = json.dumps(["EVENT", frame[1], event], separators=spelling)
            await visitor._socket.send_str(text)
        await visitor._socket.send_str(f'["EVENT","{frame[1]}"]')
        await visitor._socket.send_str(f'["EVENT","{frame[1]}",{{')
        await visitor._socket.send_str('["EVENT","of nobody",{}]')
        await visitor.say("EOSE", frame[1])

    fake.on["REQ"] = answer
    async with Client(fake.url, timeouts=timeouts) as relay:
        assert await relay.query(WANTED) == good
        assert [event.raw for event in await relay.query(WANTED)] == [e.raw for e in good]


async def test_a_relay_that_says_how_much_it_sends_is_not_asked_for_more_than_that(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    for number in range(5):
        await fake.publish(chat(f"{number}"))
    async with Client(fake.url, timeouts=timeouts) as relay:
        pages = [page async for page in relay.query_pages(WANTED, served=500)]
        assert sum(map(len, pages)) == 5
        assert len(fake.verbs("REQ")) == 1
        pages = [page async for page in relay.query_pages(WANTED)]
        assert sum(map(len, pages)) == 5
        assert len(fake.verbs("REQ")) > 2
