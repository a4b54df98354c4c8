"""Client: publishing, querying and authentication."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import (
    AnswerTooLong,
    Client,
    ClientClosed,
    NoKey,
    NotARelay,
    PublishRefused,
    QueryClosed,
    Timeouts,
    Unanswered,
    Unreachable,
    connection,
    paging,
    responses,
)
from relay.errors import Invalid, Unsupported, UserError
from relay.nostr.filters import Filter
from tests.cast import alice, bob
from tests.harness.fake_relay import closing, ignoring, refusing
from tests.harness.held import without_garbage_collection
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

CHAT = {"kinds": [9]}


def chat(text: str, at: int = 1_700_000_000) -> Event:
    return alice.sign(9, [["h", "tea"]], text, at)


# Publishing


async def test_a_published_event_is_on_the_relay_when_publish_returns(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        event = await relay.send(9, "good morning", [["h", "tea"]])
    assert fake.events == [event]
    assert event.tags == [["h", "tea"]]
    assert event.pubkey == alice.pubkey


async def test_a_message_names_what_it_answers_and_the_newest(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    old = [chat(str(number), 1_700_000_000 + number) for number in range(4)]
    fake.events = [*old]
    async with Client(fake.url, bob, timeouts=timeouts) as relay:
        first = await relay.say("other", "alone")
        answer = await relay.say("tea", "yes", reply_to=old[0])
    assert (first.kind, first.tags) == (9, [["h", "other"]])
    assert answer.tags == [
        ["h", "tea"],
        ["previous", *(event.id[:8] for event in old[1:])],
        ["q", old[0].id, fake.url, alice.pubkey],
        ["p", alice.pubkey],
    ]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("not a member", "an admin adds it: `rookery group add tea {npub}`"),
        ("only agents may write memory", "an owner adds it to [actors] agents"),
        ("too many", ""),
    ],
)
def test_a_refusal_notes_who_signed_and_what_to_do(text: str, remedy: str) -> None:
    error = PublishRefused("restricted", text, chat("x"))
    assert error.remedy.startswith(remedy.format(npub=alice.npub))
    assert error.__notes__ == ["; ".join(filter(None, [f"signed with {alice.npub}", error.remedy]))]


@pytest.mark.parametrize("number", [5, 50])
async def test_a_message_is_sent_although_the_newest_ones_are_large(
    fake: FakeRelay, timeouts: Timeouts, number: int
) -> None:
    """50 large ones of a stranger kept an agent on a slow line from speaking."""
    fake.events = [chat("x" * 300_000, 1_700_000_000 + n) for n in range(number)]
    async with Client(fake.url, bob, timeouts=timeouts) as relay:
        sent = await relay.say("tea", "yes")
    assert sent.tags == [["h", "tea"]]
    asked = fake.rows(fake.filters_in(fake.verbs("REQ")[0]))
    assert len(asked) <= 10


async def test_a_message_is_sent_although_the_newest_ones_do_not_come(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.client._LOOK_S", 0.05)
    fake.on["REQ"] = ignoring
    async with Client(fake.url, bob, timeouts=timeouts) as relay:
        assert (await relay.say("tea", "yes")).tags == [["h", "tea"]]


async def test_an_event_is_dated_by_the_client_s_clock(fake: FakeRelay, timeouts: Timeouts) -> None:
    client = Client(fake.url, alice, timeouts=timeouts, now=lambda: 1_234_567_890)
    assert client.sign(1).created_at == 1_234_567_890
    assert client.sign(1, created_at=5).created_at == 5
    assert client.sign(1, key=bob).pubkey == bob.pubkey


async def test_a_refused_event_raises_with_prefix_and_text(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["EVENT"] = refusing("restricted: not a member")
    event = chat("let me in")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(PublishRefused, match="restricted: not a member") as refused:
            await relay.publish(event)
    assert (refused.value.prefix, refused.value.text) == ("restricted", "not a member")
    assert refused.value.event == event


async def test_a_refusal_without_a_prefix_still_raises(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.on["EVENT"] = refusing("No.")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(PublishRefused) as refused:
            await relay.publish(chat("hm"))
    assert (refused.value.prefix, refused.value.text) == ("", "No.")


async def test_publishing_a_stored_event_again_succeeds(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    event = chat("again")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.publish(event)
        await relay.publish(event)
    assert fake.events == [event]


async def test_one_event_published_by_two_tasks_is_acknowledged_to_both(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    event = chat("twice")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await asyncio.gather(relay.publish(event), relay.publish(event))
    assert fake.events == [event]


@pytest.mark.parametrize("is_of_each", [False, True])
async def test_the_deadline_of_a_query_is_for_the_whole_answer_or_for_each_event(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch, *, is_of_each: bool
) -> None:
    fake.events = [chat(str(number), 1000 + number) for number in range(30)]
    restarted: list[None] = []

    @asynccontextmanager
    async def deadline(*_: object) -> AsyncIterator[Callable[[], None]]:
        yield lambda: restarted.append(None)

    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        monkeypatch.setattr(relay._reconnector, "deadline", deadline)
        assert len(await relay.query(CHAT, is_of_each=is_of_each)) == 30
        assert len(restarted) == (30 if is_of_each else 0)


async def test_an_event_that_comes_after_the_deadline_of_each_does_not_end_the_client(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """It comes in the moment in which the query learns of the deadline: the program stood still."""
    fake.events = [chat("late")]

    async def stand_still(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.show(frame[1], fake.events[0])
        passed = monotonic() + 0.1
        while monotonic() < passed:
            pass
        fake.on["REQ"] = fake.answer

    fake.on["REQ"] = stand_still
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(Unanswered, match="EOSE"):
            await relay.query(CHAT, deadline_s=0.05, is_of_each=True)
        assert await relay.query(CHAT) == fake.events
    assert fake.visits == 1


async def test_without_an_answer_the_deadline_error_names_what_was_expected(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["EVENT"] = fake.on["REQ"] = fake.on["COUNT"] = ignoring
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(Unanswered, match=r"within 0\.05 s: waited for the OK for event"):
            await relay.publish(chat("hello?"), deadline_s=0.05)
        with pytest.raises(Unanswered, match="EOSE"):
            await relay.query(CHAT, deadline_s=0.05)
        with pytest.raises(Unanswered, match="COUNT"):
            await relay.count(CHAT, deadline_s=0.05)


async def test_a_client_without_a_key_reads_and_cannot_sign(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events.append(chat("hi"))
    async with Client(fake.url, timeouts=timeouts) as relay:
        assert await relay.query(CHAT) == fake.events
        await relay.publish(chat("signed elsewhere"))
        with pytest.raises(NoKey):
            await relay.send(9, "hi")


async def test_many_events_are_published_in_order(fake: FakeRelay, timeouts: Timeouts) -> None:
    events = [chat(f"{n}") for n in range(40)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        report = await relay.publish_many(events, window=8)
    assert (report.stored, report.duplicates, report.refused) == (40, 0, ())
    assert [frame[1]["id"] for frame in fake.verbs("EVENT")] == [event.id for event in events]


async def test_publish_many_continues_after_a_refusal_and_reports_its_event(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    bad, good, known = chat("bad"), chat("good"), chat("known")
    fake.events.append(known)

    async def picky(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["id"] == bad.id:
            await visitor.say_no(bad.id, "invalid: no")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = picky

    async def stream() -> AsyncIterator[Event]:
        for event in (bad, good, known):
            yield event

    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        report = await relay.publish_many(stream())
    assert (report.stored, report.duplicates) == (1, 1)
    assert [refusal.event for refusal in report.refused] == [bad]


async def test_publish_many_raises_when_an_event_is_never_answered(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["EVENT"] = ignoring
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(Unanswered):
            await relay.publish_many([chat("a"), chat("b")], deadline_s=0.05)


# Asking


async def test_a_query_returns_stored_events_in_the_relays_order(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat("old", 1), chat("new", 3), chat("mid", 2), alice.sign(1, [], "note", 4)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = await relay.query(CHAT)
    assert [event.content for event in answer] == ["new", "mid", "old"]


async def test_a_query_is_closed_after_eose(fake: FakeRelay, timeouts: Timeouts) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.query(CHAT)
        await fake.until(lambda: bool(fake.verbs("CLOSE")))
    assert fake.verbs("CLOSE")[0][1] == fake.verbs("REQ")[0][1]


async def test_a_cancelled_query_is_closed_at_the_relay(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["REQ"] = ignoring
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        asking = asyncio.ensure_future(relay.query(CHAT))
        await fake.until(lambda: bool(fake.verbs("REQ")))
        asking.cancel()
        await fake.until(lambda: bool(fake.verbs("CLOSE")))


async def test_filters_are_given_as_filter_or_as_json(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("hi")]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.query(Filter(kinds=frozenset({9}))) == fake.events
        assert await relay.query({"kinds": {9}, "#h": ("tea",)}) == fake.events
        assert await relay.query({"kinds": [9], "#hk": ["group:tea"]}) == []
        assert await relay.query({"kinds": [1]}, {"authors": [alice.pubkey]}) == fake.events


@pytest.mark.parametrize(
    ("filters", "fault"),
    [((), Invalid), (({"kinds": 9},), Invalid), (({"kind": [9]},), Unsupported)],
)
async def test_an_invalid_filter_is_refused_by_the_client(
    fake: FakeRelay, timeouts: Timeouts, filters: tuple[Any, ...], fault: type[Exception]
) -> None:
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(fault):
            await relay.query(*filters)
    assert fake.verbs("REQ") == []


async def test_a_closed_query_raises_with_prefix_and_text(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.on["REQ"] = fake.on["COUNT"] = closing("unsupported: no such tag")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        for ask in (relay.query, relay.count):
            with pytest.raises(QueryClosed, match="unsupported: no such tag") as closed:
                await ask(CHAT)
            assert (closed.value.prefix, closed.value.text) == ("unsupported", "no such tag")


async def test_count_returns_the_relays_number(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("a"), chat("b")]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.count(CHAT) == 2


async def test_unrequested_unsigned_and_duplicate_events_are_dropped(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    good, note = chat("good"), alice.sign(1, [], "not asked for", 1)

    async def lie(visitor: Visitor, frame: list[Any]) -> None:
        sub = frame[1]
        fields = {
            "id": good.id,
            "pubkey": good.pubkey,
            "created_at": good.created_at,
            "kind": 9,
            "tags": good.tags,
            "content": good.content,
            "sig": good.sig,
        }
        await visitor.say("EVENT", sub, fields | {"content": "changed"})
        await visitor.say("EVENT", sub, fields | {"kind": "9"})
        forged = chat("forged")
        await visitor.say("EVENT", sub, {**fields, "id": forged.id, "content": "forged"})
        await visitor.say("EVENT", sub)
        await visitor.say("EVENT", "another-subscription", fields)
        await visitor.show(sub, note)
        await visitor.show(sub, good)
        await visitor.show(sub, good)
        await visitor.say("EOSE", sub)

    fake.on["REQ"] = lie
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.query(CHAT) == [good]


@pytest.mark.slow
@pytest.mark.parametrize("length", [600, 3000], ids=["by threads", "by processes"])
async def test_a_forged_signature_is_found_in_a_long_answer_too(
    fake: FakeRelay, timeouts: Timeouts, length: int
) -> None:
    events = [chat(f"{n}", n) for n in range(length, 0, -1)]
    forged = events[-300]

    async def lie(visitor: Visitor, frame: list[Any]) -> None:
        for event in events:
            fields = {
                "id": event.id,
                "pubkey": event.pubkey,
                "created_at": event.created_at,
                "kind": 9,
                "tags": event.tags,
                "content": event.content,
                "sig": events[0].sig if event is forged else event.sig,
            }
            await visitor.say("EVENT", frame[1], fields)
        await visitor.say("EOSE", frame[1])

    fake.on["REQ"] = lie
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        for _ in range(3):  # processes are ready from the second on
            answer = await relay.query(CHAT)
            assert answer == [event for event in events if event is not forged]


async def test_invalid_frames_are_ignored(fake: FakeRelay, timeouts: Timeouts) -> None:
    async def babble(visitor: Visitor, frame: list[Any]) -> None:
        await visitor._socket.send_str("not json")
        await visitor._socket.send_str('{"a": 1}')
        await visitor._socket.send_bytes(b"bytes")
        await visitor.say()
        await visitor.say("EVENT")
        await visitor.say("OK", 5)
        await visitor.say("EOSE", ["x"])
        await visitor.say("AUTH", 7)
        await visitor.say("NOTICE", "mind the gap")
        await fake.answer(visitor, frame)

    fake.on["REQ"] = babble
    fake.events = [chat("hi")]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.query(CHAT) == fake.events
        assert list(relay.notices) == ["mind the gap"]


async def test_of_what_a_relay_says_little_is_kept(fake: FakeRelay, timeouts: Timeouts) -> None:
    async def babble(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NOTICE", "x" * 1_000_000)
        await visitor.say("CLOSED", frame[1], "error: " + "y" * 1_000_000)

    fake.on["REQ"] = babble
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed) as closed:
            await relay.query(CHAT)
        assert closed.value.prefix == "error"
        assert len(str(closed.value)) < 3000
        assert [len(notice) for notice in relay.notices] == [2000]


async def test_a_refusal_is_one_line(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.on["REQ"] = closing("blocked: no\nrookery: stored\r\u2028\u0085yes")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed) as closed:
            await relay.query(CHAT)
    assert len(str(closed.value).splitlines()) == 1
    assert (closed.value.prefix, closed.value.text[:18]) == ("blocked", "no rookery: stored")


async def test_a_large_frame_of_many_arrays_is_not_parsed(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take 35 times its bytes of memory."""

    async def babble(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NOTICE", "many", [[]] * 1000)
        await visitor.say("NOTICE", "[" * 10)
        await fake.answer(visitor, frame)

    monkeypatch.setattr(connection, "_LARGE", 2000)
    monkeypatch.setattr(connection, "_MAX_BRACKETS", 900)
    fake.on["REQ"] = babble
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.query(CHAT)
        assert list(relay.notices) == ["[" * 10]


async def test_an_answer_with_too_many_events_raises(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses.StoredAnswer.__init__, "__defaults__", (3,))
    fake.events = [chat(f"{n}") for n in range(5)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(AnswerTooLong, match="more than 3 events"):
            await relay.query(CHAT)


async def test_an_answer_with_too_many_bytes_raises(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("x" * 3000, 1000 + n) for n in range(5)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(AnswerTooLong, match="more than 25000 bytes"):
            await relay.query(CHAT, most_bytes=25_000)
        assert len([event async for event in relay.query_all(CHAT, page=1)]) == 5


@pytest.mark.parametrize("how", ["too long", "closed", "lost", "unanswered"])
async def test_an_answer_that_fails_is_not_kept_until_garbage_is_collected(
    fake: FakeRelay, timeouts: Timeouts, how: str
) -> None:
    """A relay that means harm filled memory with 512 MiB at each try."""
    large = [chat("x" * 100_000, 1000 + n) for n in range(20)]

    async def fail(visitor: Visitor, frame: list[Any]) -> None:
        for event in large:
            await visitor.show(frame[1], event)
        if how == "closed":
            await visitor.say("CLOSED", frame[1], "blocked: no")
        elif how == "lost":
            await visitor.hang_up()

    async def ask() -> None:
        with pytest.raises((AnswerTooLong, QueryClosed, Unanswered)):
            await relay.query(
                CHAT, most_bytes=1_900_000 if how == "too long" else 2**29, deadline_s=0.3
            )

    fake.on["REQ"] = fail
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await ask()  # what is made once
        with without_garbage_collection() as held:
            for _ in range(3):
                await ask()
            assert held() < 1_000_000


async def test_pages_that_are_too_long_for_an_answer_are_read_in_halves(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """51 events of 480 kB by one member ended every search, export and look-up of all others."""
    fake.information = {"supported_nips": [77]}

    async def read() -> list[str]:
        async with aclosing(relay.query_pages(CHAT, page_bytes=25_000)) as pages:
            return [event.content async for page in pages for event in page]

    fake.events = [chat("x" * 3000, 1000 + n) for n in range(9)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert len(await read()) == 9
        asked = [frame[2]["limit"] for frame in fake.verbs("REQ")]
        assert asked[0] == 5000
        assert asked[1] <= 4, "half of what could be held, not of what was asked for"
        fake.events = [chat(f"{n}" + "x" * 3000, 1000) for n in range(9)]
        fake.events.append(chat("older", 999))
        found = await read()
        assert found[-1] == "older"
        assert len(found) == 10, "also what one answer cannot hold of a second"
        fake.events = [chat("x" * 30_000, 1000)]
        with pytest.raises(AnswerTooLong):
            await read()


@pytest.mark.slow
async def test_a_page_that_comes_too_slowly_is_read_in_parts(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """Where others can store large events, each try to read them ended with the deadline."""
    fake.events = [chat(f"{n}", 1000 + n) for n in range(12)]

    async def slowly(visitor: Visitor, frame: list[Any]) -> None:
        if frame[2]["limit"] <= 8:
            await fake.answer(visitor, frame)
        else:
            for event in fake.events[-4:]:
                await visitor.show(frame[1], event)

    fake.on["REQ"] = slowly
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        found = [event async for event in relay.query_all(CHAT, deadline_s=0.5)]
        assert found == fake.events[::-1]
        asked = [frame[2]["limit"] for frame in fake.verbs("REQ")]
        assert asked[:2] == [5_000, 2]
        # Of a relay that gives nothing no less is asked for.
        fake.seen.clear()
        fake.on["REQ"] = ignoring
        with pytest.raises(Unanswered):
            await anext(relay.query_all(CHAT, deadline_s=0.05))
        assert len(fake.verbs("REQ")) == 1


async def test_a_second_with_more_events_than_come_in_time_is_read(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page has those of its first second that came before it, so it came no sooner."""
    fake.events = [chat(f"{n}") for n in range(20)]

    async def query_slowly(filter_: Filter, *, is_of_each: bool, **more: Any) -> list[Event]:
        assert filter_.limit is not None
        if filter_.limit > 6 and not is_of_each:
            error = Unanswered("no answer within 30 s")
            error.events = 6
            raise error
        return await query(filter_, is_of_each=is_of_each, **more)

    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        query = relay.query
        monkeypatch.setattr(relay, "query", query_slowly)
        found = [event async for event in relay.query_all(CHAT)]
        assert {event.id for event in found} == {event.id for event in fake.events}
        assert len(found) == 20


async def test_an_answer_of_many_short_values_counts_as_the_memory_that_it_takes(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    values = [f"{n}" for n in range(3000)]
    fake.events = [alice.sign(9, [["h", "tea"], ["t", *values]], "", 1000 + n) for n in range(9)]
    assert sum(len(event.raw) for event in fake.events) < 250_000
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(AnswerTooLong, match="more than 1000000 bytes"):
            await relay.query(CHAT, most_bytes=1_000_000)


# Paging


async def test_query_all_pages_through_a_relay_with_a_low_limit(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}", 1000 + n // 3) for n in range(50)]
    fake.most_rows = 7
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
    assert answer == sorted(fake.events, key=lambda event: (-event.created_at, event.id))


async def test_query_all_continues_below_a_second_with_more_events_than_a_page(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [*(chat(f"{n}", 2000) for n in range(10)), chat("older", 1000)]
    fake.most_rows = 4
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
    assert len(answer) == 5
    assert answer[-1].content == "older"


async def test_a_second_with_more_events_than_a_relay_returns_is_read_by_ids(
    fake: FakeRelay, timeouts: Timeouts, caplog: pytest.LogCaptureFixture
) -> None:
    """14 large messages of a stranger hid one of the same second from an agent that started."""
    fake.information = {"supported_nips": [77]}
    fake.events = [*(chat(f"{n}", 2000) for n in range(300)), chat("older", 1000)]
    fake.most_rows = 120
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
        assert answer == sorted(fake.events, key=lambda event: (-event.created_at, event.id))
        some = [event async for event in relay.query_all({**CHAT, "limit": 250})]
        assert some == answer[:250]
        assert not caplog.records
    fake.information = {}
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        fewer = [event async for event in relay.query_all(CHAT)]
        assert len(fewer) == 121
        assert "events of 1970-01-01 00:33:20 UTC may be left out" in caplog.text


async def test_of_a_crowded_second_no_more_is_fetched_than_the_limit(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """For 10 events more than one answer has, all of that second were fetched."""
    fake.information = {"supported_nips": [77]}
    fake.events = [*(chat(f"{n}", 2000) for n in range(600)), chat("older", 1000)]
    fake.most_rows = 120
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all({**CHAT, "limit": 130})]
        assert answer == sorted(fake.events[:-1], key=lambda event: event.id)[:130]
        asked = [len(frame[2].get("ids", ())) for frame in fake.verbs("REQ")]
        assert asked == [0, 0, 10]
        fake.seen.clear()
        assert [event async for event in relay.query_all(CHAT)][-1].content == "older"
        asked = [len(frame[2].get("ids", ())) for frame in fake.verbs("REQ")]
        assert sum(asked) == 480, "each id once"


async def test_of_a_crowded_second_no_other_ids_are_read_than_were_asked_for(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def more_than_asked_for(visitor: Visitor, frame: list[Any]) -> None:
        await fake.negotiate(visitor, ["NEG-OPEN", frame[1], CHAT, frame[-1]])

    fake.information = {"supported_nips": [77]}
    wanted = [chat(f"{n}", 2000) for n in range(150)]
    fake.events = [*wanted, chat("another", 2000)]
    fake.most_rows = 120
    fake.on["NEG-OPEN"] = more_than_asked_for
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        ids = [event.id for event in wanted]
        answer = [event async for event in relay.query_all({**CHAT, "ids": ids})]
    assert answer == sorted(wanted, key=lambda event: event.id)


async def test_of_a_second_that_was_read_completely_the_log_says_nothing(
    fake: FakeRelay, timeouts: Timeouts, caplog: pytest.LogCaptureFixture
) -> None:
    """As far as a relay without negentropy tells how many there are."""
    fake.events = [chat(f"{n}", 2000) for n in range(150)]
    fake.information = {"supported_nips": [45]}
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert len([event async for event in relay.query_all(CHAT)]) == 150
        assert not caplog.records
        fake.most_rows = 149
        assert len([event async for event in relay.query_all(CHAT)]) == 149
        assert "may be left out" in caplog.text


async def test_an_approximate_number_shows_of_no_second_that_it_was_read_completely(
    fake: FakeRelay, timeouts: Timeouts, caplog: pytest.LogCaptureFixture
) -> None:
    async def about(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("COUNT", frame[1], {"count": 149, "approximate": True})

    fake.events = [chat(f"{n}", 2000) for n in range(150)]
    fake.information = {"supported_nips": [45]}
    fake.most_rows = 149
    fake.on["COUNT"] = about
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert len([event async for event in relay.query_all(CHAT)]) == 149
        assert await relay.count(CHAT) == 149
    assert "may be left out" in caplog.text


@pytest.mark.parametrize("why", ["more than 400 events", "all ids of a second"])
async def test_a_second_without_end_is_left_out(
    fake: FakeRelay,
    timeouts: Timeouts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    """A relay that means harm told five million ids, or told them within an hour."""
    loop = asyncio.get_running_loop()
    real, late = loop.time, 0.0

    async def slowly(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal late
        late += timeouts.deadline_s * 2 / 3
        await fake.negotiate(visitor, frame)

    fake.information = {"supported_nips": [77]}
    fake.events = [*(chat(f"{n}", 2000) for n in range(600)), chat("older", 1000)]
    fake.most_rows = 120
    fake.frame_bytes = 4096
    if why.startswith("all"):
        fake.on["NEG-MSG"] = slowly
        monkeypatch.setattr(loop, "time", lambda: real() + late)
    else:
        monkeypatch.setattr("relay.client.client.MAX_ANSWER", 400)
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
    assert len(answer) == 121
    assert answer[-1].content == "older"
    (record,) = caplog.records
    assert "may be left out" in record.getMessage()
    assert why in record.getMessage()


async def test_query_all_honours_a_limit_beyond_one_page(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(30)]
    fake.most_rows = 10
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        answer = [event async for event in relay.query_all({"kinds": [9], "limit": 25})]
    assert [event.content for event in answer] == [f"{n}" for n in range(29, 4, -1)]


async def test_query_all_yields_an_event_matching_two_filters_once(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat("a", 1), chat("b", 2)]
    both = {"authors": [alice.pubkey]}
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        for filters in ((CHAT, both), ({**CHAT, "limit": 5}, both)):
            answer = [event.content async for event in relay.query_all(*filters)]
            assert answer == ["b", "a"]


@pytest.mark.parametrize("bound", ["_MAX_PAGES_OF_ALL", "_MAX_SMALL"])
async def test_pages_without_end_raise(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    async def one_more(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.show(frame[1], chat("more", frame[2].get("until", 1_700_000_000) - 1))
        await visitor.say("EOSE", frame[1])

    fake.on["REQ"] = one_more
    monkeypatch.setattr(paging, bound, 20)
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(AnswerTooLong, match=r"more than 20 .*pages; use a narrower filter"):
            [event async for event in relay.query_all(CHAT)]
    assert len(fake.verbs("REQ")) <= 22


async def test_small_pages_that_were_asked_for_may_be_many(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    monkeypatch.setattr(paging, "_MAX_SMALL", 2)
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert len([event async for event in relay.query_all(CHAT, page=4)]) == 20


async def test_pages_that_are_too_large_together_raise(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat("x" * 3000, 1000 + n) for n in range(5)]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(AnswerTooLong, match="more than 25000 bytes in pages"):
            [event async for event in relay.query_all(CHAT, page=1, most_bytes=25_000)]


async def test_the_next_page_is_prefetched(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    fake.most_rows = 10
    async with (
        Client(fake.url, alice, timeouts=timeouts) as relay,
        aclosing(relay.query_pages(CHAT)) as pages,
    ):
        assert len(await anext(pages)) == 10
        await fake.until(lambda: len(fake.verbs("REQ")) == 2)


async def test_stopping_the_iteration_leaves_no_query_open(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    fake.most_rows = 10
    answer = fake.on["REQ"]

    async def once(visitor: Visitor, frame: list[Any]) -> None:
        if len(fake.verbs("REQ")) == 1:
            await answer(visitor, frame)

    fake.on["REQ"] = once  # the second is never answered
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        async with aclosing(relay.query_pages(CHAT)) as pages:
            await anext(pages)
        await fake.until(lambda: len(fake.verbs("CLOSE")) == 2)


async def test_a_failed_page_raises_in_the_iteration(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    fake.most_rows = 10
    answer = fake.on["REQ"]

    async def once(visitor: Visitor, frame: list[Any]) -> None:
        if len(fake.verbs("REQ")) == 1:
            await answer(visitor, frame)
        else:
            await visitor.say("CLOSED", frame[1], "error: the disk is full")

    fake.on["REQ"] = once
    async with (
        Client(fake.url, alice, timeouts=timeouts) as relay,
        aclosing(relay.query_pages(CHAT)) as pages,
    ):
        assert len(await anext(pages)) == 10
        with pytest.raises(QueryClosed, match="the disk is full"):
            await anext(pages)


# Logging in


async def test_a_challenge_is_answered_before_the_first_query(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.query(CHAT)
        assert relay.logged_in == {alice.pubkey}
    assert [frame[0] for frame in fake.seen[:2]] == ["AUTH", "REQ"]


async def test_several_keys_log_in_on_one_connection(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, alice, bob, timeouts=timeouts) as relay:
        assert relay.logged_in == {alice.pubkey, bob.pubkey}
        assert relay.pubkey == alice.pubkey


async def test_without_a_key_a_challenge_is_not_answered(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, timeouts=timeouts) as relay:
        await relay.query(CHAT)
    assert fake.verbs("AUTH") == []


def lock(fake: FakeRelay) -> None:
    """Nothing without a login; the challenge comes with the refusal only."""

    def locked(word: str, place: int) -> None:
        answer = fake.on[word]

        async def ask_who(visitor: Visitor, frame: list[Any]) -> None:
            if visitor.keys:
                await answer(visitor, frame)
                return
            await visitor.say("AUTH", visitor.challenge)
            if word == "EVENT":
                await visitor.say_no(frame[1]["id"], "auth-required: who are you?")
            else:
                await visitor.say("CLOSED", frame[place], "auth-required: who are you?")

        fake.on[word] = ask_who

    for word in ("EVENT", "REQ", "COUNT"):
        locked(word, 1)


async def test_auth_required_is_answered_and_the_request_repeated(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    lock(fake)
    event = chat("knock knock")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.publish(event)
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.query(CHAT) == [event]
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.count(CHAT) == 1


async def test_auth_required_raises_without_a_key(fake: FakeRelay, timeouts: Timeouts) -> None:
    lock(fake)
    async with Client(fake.url, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed, match="auth-required: who are you"):
            await relay.query(CHAT)
        with pytest.raises(PublishRefused, match="auth-required: who are you"):
            await relay.publish(chat("hi"))


async def test_a_refused_login_is_named_in_the_refusal(fake: FakeRelay, timeouts: Timeouts) -> None:
    lock(fake)
    fake.on["AUTH"] = refusing("invalid: created_at: must be now")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed, match="login refused: invalid: created_at: must be now"):
            await relay.query(CHAT)
        with pytest.raises(PublishRefused, match="login refused: invalid: created_at") as refused:
            await relay.publish(chat("hi"))
        assert relay.logged_in == frozenset()
    assert refused.value.prefix == "auth-required"


async def test_repeated_auth_required_ends_with_an_error(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    async def never_content(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("AUTH", visitor.challenge)
        await visitor.say("CLOSED", frame[1], "auth-required: once more")

    fake.on["REQ"] = never_content
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        with pytest.raises(QueryClosed):
            await relay.query(CHAT)
    assert len(fake.verbs("REQ")) == 2


async def test_a_login_that_is_accepted_late_is_done_anew_on_the_next_connection(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    """It counted as refused for as long as the connection lasted."""
    late: list[tuple[Visitor, list[Any]]] = []

    async def keep_waiting(visitor: Visitor, frame: list[Any]) -> None:
        late.append((visitor, frame))
        fake.on["AUTH"] = fake.log_in

    fake.challenges_at_once = True
    fake.on["AUTH"] = keep_waiting
    async with Client(fake.url, alice, timeouts=replace(timeouts, login_s=0.05)) as relay:
        assert relay.login_refusal == "no answer"
        assert await relay.query(CHAT) == []
        (given,) = late
        await fake.log_in(*given)
        await fake.until(lambda: fake.visits == 2)
        await relay.wait_connected()
        assert relay.login_refusal == ""
        assert relay.logged_in == {alice.pubkey}


async def test_a_relay_whose_answers_all_take_longer_than_a_login_may_is_answered_by(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    login_s = 0.05

    async def slowly(visitor: Visitor, frame: list[Any]) -> None:
        await asyncio.sleep(4 * login_s)
        await (fake.log_in if frame[0] == "AUTH" else fake.answer)(visitor, frame)

    fake.challenges_at_once = True
    fake.on |= {"AUTH": slowly, "REQ": slowly}
    async with Client(fake.url, alice, timeouts=replace(timeouts, login_s=login_s)) as relay:
        await fake.until(lambda: fake.visits == 2)
        assert await relay.query(CHAT) == []
        assert relay.logged_in == {alice.pubkey}
        assert fake.visits == 2


async def test_challenges_are_answered_at_a_bounded_rate(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_again(visitor: Visitor, frame: list[Any]) -> None:
        await fake.log_in(visitor, frame)
        await visitor.say("AUTH", visitor.challenge)

    monkeypatch.setattr(connection, "_LOGIN_PAUSE_S", 1000)
    fake.challenges_at_once = True
    fake.on["AUTH"] = ask_again
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        for _ in range(10):  # each takes as long as a login
            await relay.query(CHAT)
    assert len(fake.verbs("AUTH")) == 3


async def test_a_challenge_of_a_megabyte_is_not_signed(fake: FakeRelay, timeouts: Timeouts) -> None:
    async def challenge(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("AUTH", "x" * 1_000_000)
        await fake.answer(visitor, frame)

    fake.on["REQ"] = challenge
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        await relay.query(CHAT)
        await relay.query(CHAT)
    assert fake.verbs("AUTH") == []


async def test_a_relay_that_says_that_it_stops_and_stays_is_left(
    fake: FakeRelay, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ENDING_S", 0.05)
    fake.on["REQ"] = closing("error: the relay is stopping")
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        asking = asyncio.create_task(relay.query(CHAT))
        await fake.until(lambda: fake.visits == 3)
        asking.cancel()
        await asyncio.wait([asking])
    assert len(fake.verbs("REQ")) <= 3


# The connection


async def test_an_unreachable_url_raises_at_once_with_the_reason(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    await fake.stop()
    with pytest.raises(Unreachable, match=rf"cannot reach {fake.url}: connection refused"):
        async with Client(fake.url, alice, timeouts=timeouts):
            pass
    await fake.start()


async def test_a_patient_client_waits_for_its_relay_to_start(fake: FakeRelay) -> None:
    await fake.stop()
    patient = Timeouts(
        patience_s=ANSWER_S, challenge_s=0.05, first_backoff_s=0.01, max_backoff_s=0.02
    )

    async def connected() -> None:
        async with Client(fake.url, alice, timeouts=patient) as relay:
            await relay.send(9, "there you are")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connected())
        await asyncio.sleep(0)
        await fake.start()
    assert [event.content for event in fake.events] == ["there you are"]


async def test_the_error_distinguishes_a_server_without_websocket_from_none(
    fake: FakeRelay, timeouts: Timeouts
) -> None:
    with pytest.raises(Unreachable, match="HTTP 404 instead of a WebSocket"):
        async with Client(f"{fake.url}/elsewhere", alice, timeouts=timeouts):
            pass


@pytest.mark.parametrize("url", ["", "http://x", "relay.example.org", "ws://", "ws://a b?c"])
def test_an_invalid_relay_url_is_refused_by_the_constructor(url: str) -> None:
    with pytest.raises(UserError, match="not a relay URL"):
        Client(url)


async def test_a_client_outside_its_async_with_raises(fake: FakeRelay, timeouts: Timeouts) -> None:
    client = Client(fake.url, alice, timeouts=timeouts)
    with pytest.raises(ClientClosed, match="async with"):
        await client.query(CHAT)
    with pytest.raises(ClientClosed, match="async with"):
        await client.information()
    async with client:
        pass
    with pytest.raises(ClientClosed, match="closed"):
        await client.query(CHAT)
    with pytest.raises(ClientClosed, match="create another"):
        async with client:
            pass


async def test_the_information_document_is_fetched(fake: FakeRelay, timeouts: Timeouts) -> None:
    fake.information = {"name": "Rookery", "self": bob.pubkey}
    async with Client(fake.url, alice, timeouts=timeouts) as relay:
        assert await relay.information() == {"name": "Rookery", "self": bob.pubkey}
        fake.information = ["not", "a", "document"]
        with pytest.raises(NotARelay):
            await relay.information()
