"""relay/write/ingest.py: plug-ins are asked after the signature, before the lane."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from relay.errors import Prefix, Reject
from relay.facts import Arrival, Origin
from relay.write.commands import Series
from tests.cast import alice, owner, robot
from tests.harness.relay_in_process import (
    DUPLICATE,
    NOON,
    STORED,
    Home,
    Letter,
    policy_of,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.nostr.event import Event

FAILED = (False, "error: a plug-in of this relay failed, try again later")
NO = (False, "blocked: says the plug-in")


class Sifter:
    """Refuses content "bad"; records every request."""

    def __init__(self) -> None:
        self.asked: list[tuple[Event, Arrival]] = []
        self.batches: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_broken = False
        self.is_stopped = False

    def asks_about(self, event: Event, origin: Origin) -> bool:
        return event.kind != 62 and origin is not Origin.TRUSTED_IMPORT

    async def objections(self, events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        self.asked += events
        self.batches.append(len(events))
        await self.may_answer.wait()
        if self.is_broken:
            raise RuntimeError("a fault of ours")
        return [
            Reject(Prefix.BLOCKED, "says the plug-in", "sifter") if "bad" in event.content else None
            for event, _ in events
        ]

    async def stop(self) -> None:
        self.is_stopped = self.is_broken = True
        self.may_answer.set()


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with store_of("reference") as store:
        home = Home(store, policy_of("open"))
        home.plugins = Sifter()
        async with home:
            yield home


def sifter(home: Home) -> Sifter:
    assert isinstance(home.plugins, Sifter)
    return home.plugins


async def test_what_a_plug_in_objects_to_is_not_stored_and_the_rest_is(home: Home) -> None:
    good, bad = home.made(alice, 1, content="good"), home.made(alice, 1, content="bad")
    assert await home.take(good, bad) == [STORED, NO]
    assert await home.log() == [good]
    assert home.live.said == [good]


async def test_ephemeral_events_are_sifted_too(home: Home) -> None:
    good, bad = home.made(alice, 20001), home.made(alice, 20001, content="bad")
    assert await home.take(good, bad) == [STORED, NO]
    assert home.live.said == [good]


async def test_a_plug_in_hears_how_an_event_came(home: Home) -> None:
    letter = Letter()
    letter.authenticated = frozenset({robot.pubkey})
    letter.address = ip_address("10.1.2.3")
    home.ingest.submit(home.made(alice, 1), letter, Origin.WIRE)
    await letter.answer
    [(_, arrival)] = sifter(home).asked
    assert arrival == Arrival(NOON, Origin.WIRE, letter.authenticated, ip_address("10.1.2.3"))


async def test_a_plug_in_is_not_asked_about_what_is_not_signed_or_out_of_form(home: Home) -> None:
    forged = home.made(alice, 1, content="hello")
    forged = type(forged)(
        forged.id,
        forged.pubkey,
        forged.created_at,
        forged.kind,
        forged.tags,
        forged.content,
        "0" * 128,
        forged.raw,
    )
    late = home.made(alice, 1, at=NOON + 100_000)
    for accepted, text in await home.take(forged, late):
        assert not accepted
        assert text.startswith("invalid: ")
    assert sifter(home).asked == []


async def test_slow_plug_ins_are_asked_about_few_events_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event waits for those that are asked about before it: of 256 at 2 ms, half a second."""
    now = 0.0
    monkeypatch.setattr("relay.write.asking.perf_counter", lambda: now)
    objections = sifter(home).objections

    async def slow(events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        nonlocal now
        now += 0.01 * len(events)
        return await objections(events)

    monkeypatch.setattr(home.plugins, "objections", slow)
    await home.take(home.made(alice, 1, content="the first"))
    sifter(home).batches.clear()
    await home.take(*[home.made(alice, 1, content=f"{n}") for n in range(40)])
    assert max(sifter(home).batches) <= 8


async def test_a_client_with_many_connections_waits_as_one_for_slow_plug_ins(home: Home) -> None:
    sifter(home).may_answer.clear()

    async def sent(content: str, connection: int, address: str, number: int) -> Letter:
        """And waiting for the plug-ins."""
        letter = Letter()
        letter.connection, letter.counted_as = connection, address
        home.ingest.submit(home.made(alice, 1, content=content), letter, Origin.WIRE)
        while (  # noqa: ASYNC110 -- each is an iteration of the loop
            not sifter(home).asked or home.ingest.waiting["plugins"] < number
        ):
            await asyncio.sleep(0)
        return letter

    await sent("the first", 99, "203.0.113.5", 0)
    for number in range(1, 41):
        await sent(f"{number}", number, "203.0.113.5", number)
    last = await sent("of another", 98, "198.51.100.7", 41)
    sifter(home).may_answer.set()
    await last.answer
    assert [event.content for event, _ in sifter(home).asked].index("of another") <= 2


async def test_the_rules_speak_before_the_plug_in(home: Home) -> None:
    config = home.made(alice, 30078, ["d", "snowclaw:config:x"], content="bad")
    [(accepted, text)] = await home.take(config)
    assert not accepted
    assert text.startswith("restricted: ")


async def test_what_is_stored_is_a_duplicate_whatever_the_plug_in_says_now(home: Home) -> None:
    note = home.made(alice, 1, content="hello")
    assert await home.take(note) == [STORED]
    sifter(home).is_broken = True
    assert await home.take(note) == [DUPLICATE]
    assert await home.take(note, origin=Origin.IMPORT) == [DUPLICATE]


async def test_an_import_is_sifted_and_a_trusted_one_is_not(home: Home) -> None:
    one, other = home.made(alice, 1, content="bad one"), home.made(alice, 1, content="bad other")
    assert await home.take(one, origin=Origin.IMPORT) == [NO]
    assert await home.take(other, origin=Origin.TRUSTED_IMPORT) == [STORED]


@pytest.mark.proves("N62-11")
async def test_no_plug_in_holds_up_a_request_to_vanish(home: Home) -> None:
    sifter(home).may_answer.clear()
    await home.vanish(alice)


async def test_in_an_import_a_request_to_vanish_does_not_overtake_what_comes_before(
    home: Home,
) -> None:
    """A key that had vanished was an admin in the end: its 9000 was stored after the request."""
    sifter(home).may_answer.clear()
    founded = home.made(owner, 9007, h="tea")
    put = home.made(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")
    vanish = home.made(alice, 62, ["relay", "ALL_RELAYS"], at=home.now + 1)
    series, letters = Series(), [Letter() for _ in range(3)]
    for event, letter in zip((founded, put, vanish), letters, strict=True):
        home.ingest.submit(event, letter, Origin.IMPORT, series)
    while not sifter(home).asked:  # noqa: ASYNC110 -- each is an iteration of the loop
        await asyncio.sleep(0)
    sifter(home).may_answer.set()
    assert [await letter.answer for letter in letters] == [STORED] * 3
    assert alice.pubkey not in home.state.groups.by_id["tea"].members


async def test_failing_plug_ins_accept_nothing_and_the_lane_goes_on(home: Home) -> None:
    sifter(home).is_broken = True
    one, other = home.made(alice, 1), home.made(alice, 1)
    assert await home.take(one) == [FAILED]
    sifter(home).is_broken = False
    assert await home.take(other) == [STORED]
    assert await home.log() == [other]


async def test_a_slow_plug_in_holds_up_no_event_that_it_is_not_asked_about(home: Home) -> None:
    sifter(home).may_answer.clear()
    letter = Letter()
    home.ingest.submit(home.made(alice, 1), letter, Origin.WIRE)
    assert await home.take(home.made(owner, 1), origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert await home.call("banpubkey", robot.pubkey) == STORED
    assert not letter.answer.done()
    sifter(home).may_answer.set()
    assert await letter.answer == STORED


async def test_events_are_asked_about_in_bounded_batches_and_keep_their_order(home: Home) -> None:
    events = [home.made(alice, 1) for _ in range(600)]
    assert await home.take(*events) == [STORED] * 600
    assert max(sifter(home).batches) <= 256
    assert await home.log() == events


async def test_a_plug_in_that_does_not_answer_holds_the_end_up_for_moments_only(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.write.ingest._PLUGIN_SHUTDOWN_S", 0.05)
    sifter(home).may_answer.clear()
    letters = [Letter() for _ in range(100)]
    for letter in letters:
        home.ingest.submit(home.made(alice, 1), letter, Origin.WIRE)
    await asyncio.sleep(0)
    await home.restart()
    for letter in letters:
        accepted, text = await letter.answer
        assert not accepted
        assert text.startswith("error: ")
    assert await home.log() == []
