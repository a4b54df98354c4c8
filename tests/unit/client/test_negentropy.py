"""Client.reconcile (NIP-77) under refusals, lost connections and misbehaving relays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Incomparable, QueryClosed, Unanswered, negentropy
from tests.cast import alice
from tests.harness.fake_relay import ignoring, items
from tests.harness.held import without_garbage_collection

if TYPE_CHECKING:
    from relay.client import Timeouts
    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

NOTES = {"kinds": [1]}
MANY = [alice.sign(1, [], f"note {number}", 1_700_000_000 + number // 3) for number in range(1000)]
EVENTS = MANY[:400]


def ids(events: list[Event]) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(event.id) for event in events)


@pytest.mark.proves("N77-01", "N77-02", "N77-03", "N77-06")
async def test_missing_events_of_both_sides_are_found_without_transferring_any(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += [*EVENTS[:300], alice.sign(7, [], "+", 1_700_000_000)]
    async with Client(fake.url, timeouts=timeouts) as relay:
        difference = await relay.reconcile(NOTES, items(EVENTS[20:]))
        await fake.until(lambda: bool(fake.verbs("NEG-CLOSE")))
    assert difference.have == ids(EVENTS[300:])
    assert difference.need == ids(EVENTS[:20])
    (opening,) = fake.verbs("NEG-OPEN")
    sub = opening[1]
    assert opening[2] == NOTES
    further = fake.verbs("NEG-MSG")
    assert [frame[1] for frame in further] == [sub] * len(further)
    assert fake.seen[-1] == ["NEG-CLOSE", sub]
    assert difference.rounds == 1 + len(further)
    assert difference.sent_bytes == sum(len(frame[-1]) for frame in (opening, *further))
    assert not fake.verbs("EVENT")
    assert not fake.verbs("REQ")


async def test_equal_sets_are_found_equal_in_one_round(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events += EVENTS
    async with Client(fake.url, timeouts=timeouts) as relay:
        difference = await relay.reconcile(NOTES, items(EVENTS))
    assert (difference.have, difference.need) == (frozenset(), frozenset())
    assert difference.rounds == 1
    assert difference.received_bytes == 2  # the version, and nothing more


@pytest.mark.proves("N77-32")
async def test_a_relay_with_small_frames_needs_more_rounds(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += MANY[:500]
    fake.frame_bytes = 4096
    rounds: list[None] = []
    async with Client(fake.url, timeouts=timeouts) as relay:
        difference = await relay.reconcile(
            NOTES, items(MANY[500:]), answered=lambda: rounds.append(None)
        )
    assert difference.have == ids(MANY[500:])
    assert difference.need == ids(MANY[:500])
    assert difference.rounds == len(rounds) > 5


async def test_the_deadline_is_that_of_each_message(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real, late = loop.time, 0.0

    async def take_six_seconds(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal late
        late += 6.0
        await fake.negotiate(visitor, frame)

    fake.on["NEG-OPEN"] = fake.on["NEG-MSG"] = take_six_seconds
    fake.events += MANY[:500]
    fake.frame_bytes = 4096
    async with Client(fake.url, timeouts=timeouts) as relay:
        monkeypatch.setattr(loop, "time", lambda: real() + late)
        difference = await relay.reconcile(NOTES, items(MANY[400:]), deadline_s=10)
    assert difference.need == ids(MANY[:400])
    assert late > 20


async def test_a_comparison_ends_however_often_the_relay_answers(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real, late = loop.time, 0.0

    async def take_an_hour(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal late
        late += 3600.0
        await fake.negotiate(visitor, frame)

    fake.on["NEG-MSG"] = take_an_hour
    fake.events += MANY[:500]
    fake.frame_bytes = 4096
    async with Client(fake.url, timeouts=timeouts) as relay:
        monkeypatch.setattr(loop, "time", lambda: real() + late)
        with pytest.raises(Unanswered, match="the comparison took over 3600 s"):
            await relay.reconcile(NOTES, items(MANY[400:]), deadline_s=10_000)


async def test_a_relay_that_wants_a_login_first_gets_it(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def ask_who(visitor: Visitor, frame: list[Any]) -> None:
        if visitor.keys:
            await fake.negotiate(visitor, frame)
        else:
            await visitor.say("AUTH", visitor.challenge)
            await visitor.say("NEG-ERR", frame[1], "auth-required: who is there?")

    fake.on["NEG-OPEN"] = ask_who
    fake.events += EVENTS[:3]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert (await relay.reconcile(NOTES, items([]))).need == ids(EVENTS[:3])
    async with Client(fake.url, timeouts=timeouts) as nobody:
        with pytest.raises(QueryClosed, match="auth-required: who is there"):
            await nobody.reconcile(NOTES, items([]))


async def test_a_lost_connection_restarts_the_reconciliation(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events += MANY[:500]
    fake.frame_bytes = 4096

    async def vanish_once(visitor: Visitor, frame: list[Any]) -> None:
        if fake.visits == 1 and len(fake.verbs("NEG-MSG")) == 3:
            fake.events.append(MANY[500])
            visitor.drop_connection()
        else:
            await fake.negotiate(visitor, frame)

    fake.on["NEG-MSG"] = vanish_once
    async with Client(fake.url, timeouts=timeouts) as relay:
        difference = await relay.reconcile(NOTES, items(MANY[400:]))
    assert difference.need == ids(MANY[:400])
    assert difference.have == ids(MANY[501:])
    assert len(fake.verbs("NEG-OPEN")) == 2


async def test_a_refusal_raises_with_its_prefix(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events += EVENTS
    fake.most_records = 399
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed, match="too many records") as closed:
            await relay.reconcile(NOTES, items([]))
        assert await relay.count(NOTES) == 400  # an answer later than any NEG-CLOSE
    assert closed.value.prefix == "blocked"
    assert not fake.verbs("NEG-CLOSE")  # the relay has ended it


async def test_a_refused_comparison_is_not_kept_until_garbage_is_collected(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def compare() -> None:
        ours = items(MANY * 20)
        with pytest.raises(QueryClosed):
            await relay.reconcile(NOTES, ours)

    fake.events += EVENTS
    fake.most_records = 399
    async with Client(fake.url, timeouts=timeouts) as relay:
        await compare()  # what is made once
        with without_garbage_collection() as held:
            for _ in range(3):
                await compare()
            assert held() < 500_000


# A relay without it


async def say_what(visitor: Visitor, frame: list[Any]) -> None:
    await visitor.say("NOTICE", f"ERROR: bad msg: unknown cmd {frame[0]}")


async def test_a_notice_reveals_a_relay_without_negentropy(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["NEG-OPEN"] = say_what
    fake.information = {"supported_nips": [1, 11]}
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match=r"offers no negentropy \(NIP-77\).*unknown cmd"):
            await relay.reconcile(NOTES, items(EVENTS))


async def test_a_silent_relay_without_negentropy_raises_at_the_deadline(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["NEG-OPEN"] = ignoring
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match=r"offers no negentropy \(NIP-77\)"):
            await relay.reconcile(NOTES, items(EVENTS), deadline_s=0.05)
        fake.information = {"supported_nips": [77]}
        with pytest.raises(Unanswered, match="NEG-MSG"):
            await relay.reconcile(NOTES, items(EVENTS), deadline_s=0.05)


async def test_a_notice_of_a_relay_with_negentropy_is_ignored(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def greet(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NOTICE", "welcome!")
        await fake.negotiate(visitor, frame)

    fake.on["NEG-OPEN"] = greet
    fake.information = {"supported_nips": [1, 77]}
    fake.events += EVENTS[:2]
    async with Client(fake.url, timeouts=timeouts) as relay:
        assert (await relay.reconcile(NOTES, items([]))).need == ids(EVENTS[:2])


# A relay that is broken, or means ill


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("zz", "not hex"),
        ("60", "does not support version 1"),
        ("", "ends where"),
        ("610001", "is truncated"),
        ("62", "does not support version 1"),
    ],
)
async def test_an_unreadable_reply_ends_the_reconciliation(
    fake: FakeRelay, timeouts: Timeouts, answer: str, says: str
) -> None:
    async def talk_nonsense(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NEG-MSG", frame[1], answer)

    fake.on["NEG-OPEN"] = talk_nonsense
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match=says):
            await relay.reconcile(NOTES, items(EVENTS))
        await fake.until(lambda: bool(fake.verbs("NEG-CLOSE")))


async def test_a_relay_that_answers_more_than_it_is_asked_is_not_listened_to(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """Each answer may have 16 MB, and all waited in memory."""

    async def flood(visitor: Visitor, frame: list[Any]) -> None:
        for _ in range(50):
            await visitor.say("NEG-MSG", frame[1], "61000001" + "ab" * 16)

    fake.on["NEG-OPEN"] = flood
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match="answers more than it was asked"):
            await relay.reconcile(NOTES, items(EVENTS))


async def test_the_number_of_rounds_is_bounded(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def differ(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NEG-MSG", frame[1], "61000001" + "ab" * 16)

    fake.on["NEG-OPEN"] = fake.on["NEG-MSG"] = differ
    monkeypatch.setattr(negentropy, "_MAX_ROUNDS", 20)
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match="does not agree after 20 messages"):
            await relay.reconcile(NOTES, items(EVENTS))


async def test_the_number_of_needed_ids_is_bounded(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events += EVENTS[:50]
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(Incomparable, match=r"more than 49 events .*use a narrower filter"):
            await relay.reconcile(NOTES, items([]), most_needed=49)
        assert len((await relay.reconcile(NOTES, items([]), most_needed=50)).need) == 50


async def test_cancellation_sends_neg_close(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.on["NEG-OPEN"] = ignoring
    async with Client(fake.url, timeouts=timeouts) as relay:
        asking = asyncio.create_task(relay.reconcile(NOTES, items(EVENTS)))
        await fake.until(lambda: bool(fake.verbs("NEG-OPEN")))
        asking.cancel()
        await fake.until(lambda: bool(fake.verbs("NEG-CLOSE")))
        with pytest.raises(asyncio.CancelledError):
            await asking
