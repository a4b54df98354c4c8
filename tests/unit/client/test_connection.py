"""Client: publishing, asking and logging in, seen from an author's side."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import (
    AnswerTooLong,
    Client,
    ClientClosed,
    NoKey,
    NotARelay,
    Pace,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
    answers,
)
from relay.errors import Invalid, Unsupported, UserError
from relay.nostr.filters import Filter
from tests.cast import alice, bob
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from tests.unit.client.fake_relay import FakeRelay, Visitor

CHAT = {"kinds": [9]}


def chat(text: str, at: int = 1_700_000_000) -> Event:
    return alice.sign(9, [["h", "tea"]], text, at)


# Publishing


async def test_a_published_event_is_on_the_relay_when_publish_returns(
    fake: FakeRelay, pace: Pace
) -> None:
    async with Client(fake.url, alice, pace=pace) as relay:
        event = await relay.send(9, "good morning", [["h", "tea"]])
    assert fake.events == [event]
    assert event.tags == [["h", "tea"]]
    assert event.pubkey == alice.pubkey


async def test_an_event_is_dated_by_the_client_s_clock(fake: FakeRelay, pace: Pace) -> None:
    client = Client(fake.url, alice, pace=pace, now=lambda: 1_234_567_890)
    assert client.sign(1).created_at == 1_234_567_890
    assert client.sign(1, created_at=5).created_at == 5
    assert client.sign(1, key=bob).pubkey == bob.pubkey


async def test_a_refused_event_raises_with_the_relay_s_word_and_text(
    fake: FakeRelay, pace: Pace
) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "restricted: not a member")

    fake.on["EVENT"] = refuse
    event = chat("let me in")
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(PublishRefused, match="restricted: not a member") as refused:
            await relay.publish(event)
    assert (refused.value.prefix, refused.value.text) == ("restricted", "not a member")
    assert refused.value.event == event


async def test_a_refusal_without_a_word_is_still_told(fake: FakeRelay, pace: Pace) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "No.")

    fake.on["EVENT"] = refuse
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(PublishRefused) as refused:
            await relay.publish(chat("hm"))
    assert (refused.value.prefix, refused.value.text) == ("", "No.")


async def test_publishing_what_is_stored_already_is_success(fake: FakeRelay, pace: Pace) -> None:
    event = chat("again")
    async with Client(fake.url, alice, pace=pace) as relay:
        await relay.publish(event)
        await relay.publish(event)
    assert fake.events == [event]


async def test_one_event_published_by_two_tasks_is_acknowledged_to_both(
    fake: FakeRelay, pace: Pace
) -> None:
    event = chat("twice")
    async with Client(fake.url, alice, pace=pace) as relay:
        await asyncio.gather(relay.publish(event), relay.publish(event))
    assert fake.events == [event]


async def test_a_relay_that_never_answers_ends_in_a_deadline_that_says_what_was_waited_for(
    fake: FakeRelay, pace: Pace
) -> None:
    async def ignore(visitor: Visitor, frame: list[Any]) -> None:
        pass

    fake.on["EVENT"] = fake.on["REQ"] = fake.on["COUNT"] = ignore
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(Unanswered, match=r"within 0\.05 s: waited for the OK for event"):
            await relay.publish(chat("hello?"), deadline_s=0.05)
        with pytest.raises(Unanswered, match="EOSE"):
            await relay.query(CHAT, deadline_s=0.05)
        with pytest.raises(Unanswered, match="COUNT"):
            await relay.count(CHAT, deadline_s=0.05)


async def test_a_client_without_a_key_reads_and_cannot_sign(fake: FakeRelay, pace: Pace) -> None:
    fake.events.append(chat("hi"))
    async with Client(fake.url, pace=pace) as relay:
        assert await relay.query(CHAT) == fake.events
        await relay.publish(chat("signed elsewhere"))
        with pytest.raises(NoKey):
            await relay.send(9, "hi")


async def test_many_events_are_published_in_order_with_a_window(
    fake: FakeRelay, pace: Pace
) -> None:
    events = [chat(f"{n}") for n in range(40)]
    on_their_way: list[str] = []

    async def hold_back(visitor: Visitor, frame: list[Any]) -> None:
        on_their_way.append(frame[1]["id"])
        if len(on_their_way) == 8 or frame[1]["id"] == events[-1].id:
            for id_ in on_their_way:
                await visitor.say_ok(id_)
            on_their_way.clear()

    fake.on["EVENT"] = hold_back
    async with Client(fake.url, alice, pace=pace) as relay:
        report = await relay.publish_many(events, window=8)
    assert (report.stored, report.duplicates, report.refused) == (40, 0, ())
    assert [frame[1]["id"] for frame in fake.verbs("EVENT")] == [event.id for event in events]


async def test_a_refusal_among_many_stops_nothing_and_is_reported_with_its_event(
    fake: FakeRelay, pace: Pace
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

    async with Client(fake.url, alice, pace=pace) as relay:
        report = await relay.publish_many(stream())
    assert (report.stored, report.duplicates) == (1, 1)
    assert [refusal.event for refusal in report.refused] == [bad]


async def test_publishing_many_raises_when_one_is_never_answered(
    fake: FakeRelay, pace: Pace
) -> None:
    async def ignore(visitor: Visitor, frame: list[Any]) -> None:
        pass

    fake.on["EVENT"] = ignore
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(Unanswered):
            await relay.publish_many([chat("a"), chat("b")], deadline_s=0.05)


# Asking


async def test_a_query_gives_what_is_stored_in_the_relay_s_order(
    fake: FakeRelay, pace: Pace
) -> None:
    fake.events = [chat("old", 1), chat("new", 3), chat("mid", 2), alice.sign(1, [], "note", 4)]
    async with Client(fake.url, alice, pace=pace) as relay:
        answer = await relay.query(CHAT)
    assert [event.content for event in answer] == ["new", "mid", "old"]


async def test_a_query_is_closed_at_the_relay_when_it_is_answered(
    fake: FakeRelay, pace: Pace
) -> None:
    async with Client(fake.url, alice, pace=pace) as relay:
        await relay.query(CHAT)
        await fake.until(lambda: bool(fake.verbs("CLOSE")))
    assert fake.verbs("CLOSE")[0][1] == fake.verbs("REQ")[0][1]


async def test_a_query_that_is_cancelled_is_closed_at_the_relay_too(
    fake: FakeRelay, pace: Pace
) -> None:
    async def ignore(visitor: Visitor, frame: list[Any]) -> None:
        pass

    fake.on["REQ"] = ignore
    async with Client(fake.url, alice, pace=pace) as relay:
        asking = asyncio.ensure_future(relay.query(CHAT))
        await fake.until(lambda: bool(fake.verbs("REQ")))
        asking.cancel()
        await fake.until(lambda: bool(fake.verbs("CLOSE")))


async def test_filters_are_given_as_filter_or_as_json(fake: FakeRelay, pace: Pace) -> None:
    fake.events = [chat("hi")]
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.query(Filter(kinds=frozenset({9}))) == fake.events
        assert await relay.query({"kinds": {9}, "#h": ("tea",)}) == fake.events
        assert await relay.query({"kinds": [9], "#hk": ["group:tea"]}) == []
        assert await relay.query({"kinds": [1]}, {"authors": [alice.pubkey]}) == fake.events


@pytest.mark.parametrize(
    ("filters", "fault"),
    [((), Invalid), (({"kinds": 9},), Invalid), (({"kind": [9]},), Unsupported)],
)
async def test_a_filter_that_no_relay_would_take_is_refused_here(
    fake: FakeRelay, pace: Pace, filters: tuple[Any, ...], fault: type[Exception]
) -> None:
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(fault):
            await relay.query(*filters)
    assert fake.verbs("REQ") == []


async def test_a_closed_query_raises_with_the_relay_s_word_and_text(
    fake: FakeRelay, pace: Pace
) -> None:
    async def close(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("CLOSED", frame[1], "unsupported: no such tag")

    fake.on["REQ"] = fake.on["COUNT"] = close
    async with Client(fake.url, alice, pace=pace) as relay:
        for ask in (relay.query, relay.count):
            with pytest.raises(QueryClosed, match="unsupported: no such tag") as closed:
                await ask(CHAT)
            assert (closed.value.prefix, closed.value.text) == ("unsupported", "no such tag")


async def test_a_count_is_the_relay_s_number(fake: FakeRelay, pace: Pace) -> None:
    fake.events = [chat("a"), chat("b")]
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.count(CHAT) == 2


async def test_what_is_not_asked_for_not_signed_or_sent_twice_is_dropped(
    fake: FakeRelay, pace: Pace
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
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.query(CHAT) == [good]


@pytest.mark.parametrize("length", [600, 3000], ids=["by threads", "by processes"])
async def test_a_forged_signature_is_found_in_a_long_answer_too(
    fake: FakeRelay, pace: Pace, length: int
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
    async with Client(fake.url, alice, pace=pace) as relay:
        for _ in range(3):  # processes are ready from the second on
            answer = await relay.query(CHAT)
            assert answer == [event for event in events if event is not forged]


async def test_frames_that_are_no_nostr_are_ignored(fake: FakeRelay, pace: Pace) -> None:
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
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.query(CHAT) == fake.events
        assert list(relay.notices) == ["mind the gap"]


async def test_an_answer_longer_than_may_be_held_raises(
    fake: FakeRelay, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers.StoredAnswer.__init__, "__defaults__", (3,))
    fake.events = [chat(f"{n}") for n in range(5)]
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(AnswerTooLong, match="more than 3 events"):
            await relay.query(CHAT)


async def test_an_answer_of_more_bytes_than_may_be_held_raises(
    fake: FakeRelay, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 10_000)
    fake.events = [chat("x" * 3000, 1000 + n) for n in range(5)]
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(AnswerTooLong, match="more than 10000 bytes"):
            await relay.query(CHAT)
        assert len([event async for event in relay.query_all(CHAT, page=1)]) == 5


# Paging


async def test_query_all_pages_through_a_relay_that_serves_little_at_a_time(
    fake: FakeRelay, pace: Pace
) -> None:
    fake.events = [chat(f"{n}", 1000 + n // 3) for n in range(50)]
    fake.most_rows = 7
    async with Client(fake.url, alice, pace=pace) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
    assert answer == sorted(fake.events, key=lambda event: (-event.created_at, event.id))


async def test_query_all_goes_on_below_a_second_that_is_fuller_than_a_page(
    fake: FakeRelay, pace: Pace
) -> None:
    fake.events = [*(chat(f"{n}", 2000) for n in range(10)), chat("older", 1000)]
    fake.most_rows = 4
    async with Client(fake.url, alice, pace=pace) as relay:
        answer = [event async for event in relay.query_all(CHAT)]
    assert len(answer) == 5
    assert answer[-1].content == "older"


async def test_query_all_honours_a_limit_beyond_one_page(fake: FakeRelay, pace: Pace) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(30)]
    fake.most_rows = 10
    async with Client(fake.url, alice, pace=pace) as relay:
        answer = [event async for event in relay.query_all({"kinds": [9], "limit": 25})]
    assert [event.content for event in answer] == [f"{n}" for n in range(29, 4, -1)]


async def test_query_all_gives_an_event_that_matches_two_filters_once(
    fake: FakeRelay, pace: Pace
) -> None:
    fake.events = [chat("a", 1), chat("b", 2)]
    both = {"authors": [alice.pubkey]}
    async with Client(fake.url, alice, pace=pace) as relay:
        for filters in ((CHAT, both), ({**CHAT, "limit": 5}, both)):
            answer = [event.content async for event in relay.query_all(*filters)]
            assert answer == ["b", "a"]


async def test_the_next_page_is_asked_for_before_this_one_is_worked_on(
    fake: FakeRelay, pace: Pace
) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    fake.most_rows = 10
    async with (
        Client(fake.url, alice, pace=pace) as relay,
        aclosing(relay.query_pages(CHAT)) as pages,
    ):
        assert len(await anext(pages)) == 10
        await fake.until(lambda: len(fake.verbs("REQ")) == 2)


async def test_who_reads_no_further_leaves_no_query_open(fake: FakeRelay, pace: Pace) -> None:
    fake.events = [chat(f"{n}", 1000 + n) for n in range(20)]
    fake.most_rows = 10
    answer = fake.on["REQ"]

    async def once(visitor: Visitor, frame: list[Any]) -> None:
        if len(fake.verbs("REQ")) == 1:
            await answer(visitor, frame)

    fake.on["REQ"] = once  # the second is never answered
    async with Client(fake.url, alice, pace=pace) as relay:
        async with aclosing(relay.query_pages(CHAT)) as pages:
            await anext(pages)
        await fake.until(lambda: len(fake.verbs("CLOSE")) == 2)


async def test_a_page_that_fails_is_told_to_who_reads_on(fake: FakeRelay, pace: Pace) -> None:
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
        Client(fake.url, alice, pace=pace) as relay,
        aclosing(relay.query_pages(CHAT)) as pages,
    ):
        assert len(await anext(pages)) == 10
        with pytest.raises(QueryClosed, match="the disk is full"):
            await anext(pages)


# Logging in


async def test_a_challenge_is_answered_before_the_first_query(fake: FakeRelay, pace: Pace) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, alice, pace=pace) as relay:
        await relay.query(CHAT)
        assert relay.logged_in == {alice.pubkey}
    assert [frame[0] for frame in fake.seen[:2]] == ["AUTH", "REQ"]


async def test_several_keys_log_in_on_one_connection(fake: FakeRelay, pace: Pace) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, alice, bob, pace=pace) as relay:
        assert relay.logged_in == {alice.pubkey, bob.pubkey}
        assert relay.pubkey == alice.pubkey


async def test_without_a_key_a_challenge_is_not_answered(fake: FakeRelay, pace: Pace) -> None:
    fake.challenges_at_once = True
    async with Client(fake.url, pace=pace) as relay:
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
    fake: FakeRelay, pace: Pace
) -> None:
    lock(fake)
    event = chat("knock knock")
    async with Client(fake.url, alice, pace=pace) as relay:
        await relay.publish(event)
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.query(CHAT) == [event]
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.count(CHAT) == 1


async def test_auth_required_is_raised_to_who_has_no_key(fake: FakeRelay, pace: Pace) -> None:
    lock(fake)
    async with Client(fake.url, pace=pace) as relay:
        with pytest.raises(QueryClosed, match="auth-required: who are you"):
            await relay.query(CHAT)
        with pytest.raises(PublishRefused, match="auth-required: who are you"):
            await relay.publish(chat("hi"))


async def test_a_refused_login_is_named_in_the_refusal(fake: FakeRelay, pace: Pace) -> None:
    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "invalid: created_at: must be now")

    lock(fake)
    fake.on["AUTH"] = refuse
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(QueryClosed, match="login refused: invalid: created_at: must be now"):
            await relay.query(CHAT)
        with pytest.raises(PublishRefused, match="login refused: invalid: created_at") as refused:
            await relay.publish(chat("hi"))
        assert relay.logged_in == frozenset()
    assert refused.value.prefix == "auth-required"


async def test_a_relay_that_asks_for_a_login_again_and_again_is_not_asked_for_ever(
    fake: FakeRelay, pace: Pace
) -> None:
    async def never_content(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("AUTH", visitor.challenge)
        await visitor.say("CLOSED", frame[1], "auth-required: once more")

    fake.on["REQ"] = never_content
    async with Client(fake.url, alice, pace=pace) as relay:
        with pytest.raises(QueryClosed):
            await relay.query(CHAT)
    assert len(fake.verbs("REQ")) == 2


# The connection


async def test_no_relay_at_the_url_is_told_at_once_and_in_words(
    fake: FakeRelay, pace: Pace
) -> None:
    await fake.stop()
    with pytest.raises(Unreachable, match=rf"cannot reach {fake.url}: connection refused"):
        async with Client(fake.url, alice, pace=pace):
            pass
    await fake.start()


async def test_a_patient_client_waits_for_its_relay_to_start(fake: FakeRelay) -> None:
    await fake.stop()
    patient = Pace(patience_s=ANSWER_S, challenge_s=0.05, first_wait_s=0.01, longest_wait_s=0.02)

    async def connected() -> None:
        async with Client(fake.url, alice, pace=patient) as relay:
            await relay.send(9, "there you are")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connected())
        await asyncio.sleep(0)
        await fake.start()
    assert [event.content for event in fake.events] == ["there you are"]


async def test_a_server_that_is_no_relay_is_told_from_one_that_is_down(
    fake: FakeRelay, pace: Pace
) -> None:
    with pytest.raises(Unreachable, match="answers HTTP 404 and no WebSocket"):
        async with Client(f"{fake.url}/elsewhere", alice, pace=pace):
            pass


@pytest.mark.parametrize("url", ["", "http://x", "relay.example.org", "ws://", "ws://a b?c"])
def test_what_is_no_relay_url_is_refused_when_the_client_is_made(url: str) -> None:
    with pytest.raises(UserError, match="not the URL of a relay"):
        Client(url)


async def test_outside_its_block_a_client_says_so(fake: FakeRelay, pace: Pace) -> None:
    client = Client(fake.url, alice, pace=pace)
    with pytest.raises(ClientClosed, match="async with"):
        await client.query(CHAT)
    with pytest.raises(ClientClosed, match="async with"):
        await client.information()
    async with client:
        pass
    with pytest.raises(ClientClosed, match="closed"):
        await client.query(CHAT)
    with pytest.raises(ClientClosed, match="make another"):
        async with client:
            pass


async def test_the_information_document_is_fetched(fake: FakeRelay, pace: Pace) -> None:
    fake.information = {"name": "Rookery", "self": bob.pubkey}
    async with Client(fake.url, alice, pace=pace) as relay:
        assert await relay.information() == {"name": "Rookery", "self": bob.pubkey}
        fake.information = ["not", "a", "document"]
        with pytest.raises(NotARelay):
            await relay.information()
