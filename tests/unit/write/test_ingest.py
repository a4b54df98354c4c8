"""relay/write/ingest.py: from submission to OK, on the reference store with real policies and
groups.

N29-18, 55…58, 80…82; G-06.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise, permutations
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from blockbuster import blockbuster_ctx
from msgspec import structs

from policies import PolicySet
from relay.access.membership import Claim, claim_change
from relay.errors import Prefix, Reject, StoreFault, WriteOutcome, ok_reply
from relay.facts import Origin, Who
from relay.groups.notices import bytes_of_lists, notices_for
from relay.nostr.event import Event, event_from
from relay.nostr.filters import Filter
from relay.read.fanout import Subscription
from relay.write import ingest, list_signing
from relay.write.batch import Batch
from relay.write.commands import ManagementChange, Series, Unconnected, WriteEvent
from relay.write.costs import MAX_BATCH, charge_of
from relay.write.list_signing import ListSigning
from relay.write.replay import rebuilt_groups
from tests.cast import alice, bob, carol, dave, owner, person, robot
from tests.harness.client_in_memory import Client
from tests.harness.controlled_store import ControlledStore
from tests.harness.folders import loaded
from tests.harness.patience import ANSWER_S
from tests.harness.relay_in_process import DUPLICATE, NOON, RELAY, STORED, Home, Letter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from relay.errors import Result
    from relay.facts import Facts
    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.keys import SecretKey
    from relay.write.candidate import Candidate

NOT_A_MEMBER = (False, "restricted: not a member")
NOT_HERE = (False, "error: the event could not be stored, try again later")
ACTORS = f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{robot.npub}"]\n'


@pytest.fixture(scope="module")
def verifiers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def policy(tmp_path: Path) -> PolicySet:
    return loaded(tmp_path, actors=ACTORS)


class Relay(Home):
    store: ControlledStore


@pytest.fixture
async def relay(
    policy: PolicySet, verifiers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Relay]:
    """With a group "tea" with alice, and "den" with everybody, so that all are known. Its batches
    are as large on a slow machine."""
    monkeypatch.setattr("relay.write.batch.thread_time", lambda: 0.0)
    everybody = [["p", who.pubkey] for who in (alice, bob, carol)]
    with blockbuster_ctx("relay"):
        async with Relay(ControlledStore(), policy, verifiers) as relay:
            made = on(owner, 9007), put(alice), on(owner, 9007, h="den")
            assert await relay.take(*made, on(owner, 9000, *everybody, h="den")) == [STORED] * 4
            for past in (relay.store.plans, relay.live.said):
                past.clear()
            relay.store.append_called.clear()
            yield relay


def on(
    who: SecretKey, kind: int, *tags: list[str], h: str = "tea", content: str = "", at: int = NOON
) -> Event:
    return who.sign(kind, [["h", h], *tags], content, at)


def put(whom: SecretKey) -> Event:
    return on(owner, 9000, ["p", whom.pubkey])


def out(whom: SecretKey, h: str = "tea") -> Event:
    return on(owner, 9001, ["p", whom.pubkey], h=h)


def chat(who: SecretKey, text: str) -> Event:
    return on(who, 9, content=text)


def article(at: int, d: str = "x", content: str = "") -> Event:
    return owner.sign(30023, [["d", d]], content or f"{at}", at)


# the commit --------------------------------------------------------------------------------------


@pytest.mark.proves("N01-82")
async def test_ok_comes_only_after_the_commit(relay: Relay) -> None:
    """Nothing is delivered before the commit."""
    relay.store.may_commit.clear()
    letter = relay.post(chat(alice, "tea?"))
    await relay.store.append_called.wait()
    assert (letter.answers, relay.live.said) == ([], [])
    relay.store.may_commit.set()
    await letter.answer
    assert letter.answers == [STORED]
    assert [event.content for event in relay.live.said] == ["tea?"]


async def test_events_submitted_together_are_one_commit(relay: Relay) -> None:
    """In order of submission."""
    assert await relay.take(*(chat(alice, str(n)) for n in range(100))) == [STORED] * 100
    assert [len(plan.adds) for plan in relay.store.plans] == [100]
    assert [event.content for event in await relay.log()][-100:] == [str(n) for n in range(100)]


async def test_what_waits_when_the_relay_stops_is_refused_after_a_while(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of large groups could keep it from ending for minutes."""
    monkeypatch.setattr(ingest, "_SHUTDOWN_S", 0.0)
    relay.store.may_commit.clear()
    begun = relay.post(chat(alice, "begun"))
    await relay.store.append_called.wait()
    waiting = [relay.post(chat(alice, str(number))) for number in range(3)]
    stopping = asyncio.create_task(relay.ingest.__aexit__())
    refusal = (False, "error: the relay is stopping, try again later")
    assert [await letter.answer for letter in waiting] == [refusal] * 3
    relay.store.may_commit.set()
    await stopping
    assert begun.answers == [STORED]


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_lane_that_fails_ends_what_runs_beside_it(
    policy: PolicySet, error: type[BaseException]
) -> None:
    """Nobody knew, and all writes waited for ever."""

    def fail(*_: object) -> None:
        raise error

    async def serve() -> None:
        async with Home(ControlledStore(), policy) as home:
            letter = home.letter_from("192.0.2.1")
            letter.answered = fail  # type: ignore[assignment, method-assign]
            home.ingest.submit(chat(alice, "tea?"), letter, Origin.WIRE)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(ANSWER_S):
            await serve()
    assert raised.group_contains((ZeroDivisionError, RuntimeError))


async def test_no_address_takes_the_memory_for_the_events_of_others(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor all unknown ones that for events of known clients."""
    monkeypatch.setattr(ingest, "_MAX_WEIGHT", 80_000)
    monkeypatch.setattr(ingest, "_ORDINARY", 0)
    relay.store.may_commit.clear()
    event = chat(alice, "x" * 4000)
    one, another, third, known = Letter(), Letter(), Letter(), Letter()
    for number, letter in enumerate((one, another, third)):
        letter.counted_as = f"10.0.0.{number}"
    known.is_known = True

    def takes(letter: Letter) -> bool:
        before = len(letter.answers)
        relay.ingest.submit(event, letter, Origin.WIRE)
        return len(letter.answers) == before

    assert [takes(one) for _ in range(4)] == [True, True, True, False]
    assert [takes(another) for _ in range(4)] == [True, True, True, False]
    assert [takes(third) for _ in range(4)] == [True, False, False, False]
    assert takes(known)
    relay.store.may_commit.set()
    for letter in (one, another, third, known):
        await letter.answer
    assert takes(one)


async def test_no_address_takes_the_places_of_the_events_of_others(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 connections of one address filled the queue, and members' events were refused."""
    monkeypatch.setattr(ingest, "_MAX_WEIGHT", 40 * ingest._LEAST_SHARE)
    monkeypatch.setattr(ingest, "_ORDINARY", 0)
    relay.store.may_commit.clear()
    flooder, member = Letter(), Letter()
    flooder.counted_as = "10.0.0.1"
    member.is_known = True
    for number in range(20):
        relay.ingest.submit(chat(alice, f"{number}"), flooder, Origin.WIRE)
    assert len(flooder.answers) == 10
    relay.ingest.submit(chat(alice, "hello"), member, Origin.WIRE)
    relay.store.may_commit.set()
    assert await member.answer == STORED


async def test_what_is_kept_of_a_closed_connection_is_counted(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that were closed behind one event took twice what it counted as: 1 GB."""
    monkeypatch.setattr(ingest, "_MAX_WEIGHT", 120 * ingest._LEAST_SHARE)
    monkeypatch.setattr(ingest, "_ORDINARY", 0)
    relay.store.may_commit.clear()
    letters = [Letter() for _ in range(20)]
    for number, letter in enumerate(letters):
        letter.counted_as = "10.0.0.1"
        relay.ingest.submit(chat(alice, f"{number}"), letter, Origin.WIRE, is_only=True)
    refused = [bool(letter.answers) for letter in letters]
    relay.store.may_commit.set()
    for letter in letters:
        await letter.answer
    assert refused == [False] * 10 + [True] * 10
    assert relay.ingest.waiting_weight == 0


@pytest.mark.parametrize("floods_are_known", [False, True])
async def test_who_has_few_events_under_way_has_room_beside_addresses_that_have_many(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, *, floods_are_known: bool
) -> None:
    """Four addresses kept the queue full: events of all others were refused, also of owners."""
    monkeypatch.setattr(ingest, "_MAX_WEIGHT", 40 * ingest._LEAST_SHARE)
    monkeypatch.setattr(ingest, "_ORDINARY", 2 * ingest._LEAST_SHARE)
    relay.store.may_commit.clear()
    for place in range(4):
        flooder = Letter()
        flooder.counted_as, flooder.is_known = f"10.0.0.{place}", floods_are_known
        for number in range(40):
            relay.ingest.submit(chat(alice, f"{place} {number}"), flooder, Origin.WIRE)
        assert flooder.answers, "it has no more room"
    visitor, member, owner = Letter(), Letter(), Letter()
    visitor.counted_as, member.counted_as = "10.0.1.1", "10.0.1.2"
    member.is_known = owner.is_known = owner.is_owner = True
    for number, letter in enumerate((visitor, member, owner, visitor, member)):
        relay.ingest.submit(chat(alice, f"hello {number}"), letter, Origin.WIRE)
    for number in range(5):
        relay.ingest.submit(chat(alice, f"more {number}"), owner, Origin.WIRE)
    assert not visitor.answers + member.answers + owner.answers
    relay.ingest.submit(chat(alice, "hello 5"), visitor, Origin.WIRE)
    assert visitor.answers == [(False, "rate-limited: too many events are waiting, slow down")]
    relay.store.may_commit.set()
    for letter, number in ((visitor, 3), (member, 2), (owner, 6)):
        async with asyncio.timeout(ANSWER_S):
            while len(letter.answers) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_the_rest_of_the_disk_is_for_owners(relay: Relay) -> None:
    """One address filled the disk, and then owners could not delete or ban either."""
    relay.store.has_little_space = True
    visitor, member, of_owner, signed, itself = [Letter() for _ in range(5)]
    member.is_known = of_owner.is_known = of_owner.is_owner = True
    relay.ingest.submit(chat(alice, "1"), visitor, Origin.WIRE)
    relay.ingest.submit(chat(alice, "2"), member, Origin.WIRE)
    relay.ingest.submit(chat(alice, "3"), of_owner, Origin.WIRE)
    relay.ingest.submit(article(1), signed, Origin.WIRE)  # not logged in
    relay.ingest.submit(chat(alice, "4"), itself, Origin.IMPORT)
    full = "error: the disk of this relay is nearly full, its owner has to free space"
    for letter in (visitor, member):
        assert await letter.answer == (False, full)
    for letter in (of_owner, signed, itself):
        assert (await letter.answer)[0]
    passing, later = Letter(), Letter()
    relay.ingest.submit(on(alice, 20_001), passing, Origin.WIRE)
    assert (await passing.answer)[0], "nothing of it is stored"
    relay.store.has_little_space = False
    relay.ingest.submit(chat(alice, "5"), later, Origin.WIRE)
    assert (await later.answer)[0]


async def test_an_event_over_what_is_ordinary_needs_room_that_is_shared(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 2.6 MB from each of 320 addresses with a known key took what is for all others."""
    monkeypatch.setattr(ingest, "_MAX_WEIGHT", 40 * ingest._LEAST_SHARE)
    monkeypatch.setattr(ingest, "_ORDINARY", 2 * ingest._LEAST_SHARE)
    relay.store.may_commit.clear()
    large = "x" * 4 * ingest._LEAST_SHARE
    refused = 0
    for place in range(40):
        flooder = Letter()
        flooder.counted_as, flooder.is_known = f"10.0.{place}.1", True
        relay.ingest.submit(chat(alice, f"{large} {place}"), flooder, Origin.WIRE)
        refused += len(flooder.answers)
    assert refused == 40 - len(relay.ingest._weights._of) > 25
    assert relay.ingest.waiting_weight < 50 * ingest._LEAST_SHARE
    visitor = Letter()
    visitor.counted_as = "10.1.0.1"
    relay.ingest.submit(chat(alice, "hello"), visitor, Origin.WIRE)
    assert not visitor.answers
    relay.store.may_commit.set()
    async with asyncio.timeout(ANSWER_S):
        while relay.ingest.waiting_weight:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_who_waits_for_no_other_answer_is_verified_before_a_flood(
    relay: Relay, verifiers: ThreadPoolExecutor
) -> None:
    """Beside a busy loop each batch of 128 takes up to 0.1 s."""
    may_verify = threading.Event()
    held = [verifiers.submit(may_verify.wait) for _ in range(2)]
    flood = [relay.post(chat(alice, f"{number}"), connection=1) for number in range(300)]
    await asyncio.sleep(0)
    while relay.ingest.waiting["verify"] == 300:  # noqa: ASYNC110 -- until a batch is taken up
        await asyncio.sleep(0)
    forged = event_from(orjson.loads(chat(alice, "forged").raw) | {"sig": "0" * 128})
    lone = [Letter(), Letter()]
    for event, letter in zip((chat(alice, "hello"), forged), lone, strict=True):
        relay.ingest.submit(event, letter, Origin.WIRE, is_only=True)
    try:
        assert not lone[1].answers[0][0]
        async with asyncio.timeout(ANSWER_S):
            assert await lone[0].answer == STORED
        assert not flood[0].answers
    finally:
        may_verify.set()
    assert [await letter.answer for letter in flood] == [STORED] * 300
    assert all(each.result() for each in held)


async def test_the_store_gets_the_gil_sooner_for_few_events(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 10,000 HTTP requests per second an OK took 170 ms, now 50."""
    waits: list[float] = []
    monkeypatch.setattr("relay.write.ingest.sys.setswitchinterval", waits.append)
    await relay.take(chat(alice, "one"))
    soon, usual = waits
    assert soon < usual
    waits.clear()
    await relay.take(*(chat(alice, f"{number}") for number in range(100)))
    assert waits == [usual, usual]


async def test_a_failing_store_changes_nothing_and_all_get_an_error(relay: Relay) -> None:
    """A full disk refuses writes with `error:`. The copies are dropped."""
    groups, rows, tries = relay.state.groups, await relay.log(), relay.store.appends
    relay.store.is_full = True
    named = on(owner, 9002, ["name", "Tea"])
    sent = [put(bob), chat(bob, "hello"), out(alice), named, article(NOON)]
    assert await relay.take(*sent) == [NOT_HERE] * 5
    assert relay.store.appends == tries + 1
    assert relay.state.groups is groups
    assert (await relay.log(), relay.live.said) == (rows, [])
    assert relay.store.groups["tea"] == groups.by_id["tea"]
    relay.store.is_full = False
    assert await relay.take(*sent[:3]) == [STORED] * 3


async def test_no_event_of_a_series_is_taken_after_one_that_was_not(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed member was one again: the 9000 was submitted again after the 9001."""
    relay.ingest._lane.max_batch = 1
    series, replies, tries = Series(), list[tuple[bool, str]](), 0
    append = relay.store.append

    async def fails_once(*asked: Any) -> int:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise StoreFault("disk I/O error")
        return await append(*asked)

    monkeypatch.setattr(relay.store, "append", fails_once)
    events = [article(NOON, "before"), put(bob), out(bob), article(NOON, "after")]
    authors = [Unconnected(told=lambda result: replies.append(ok_reply(result))) for _ in events]
    for event, author in zip(events, authors, strict=True):
        relay.ingest.submit(event, author, Origin.IMPORT, series)
    other = relay.post(article(NOON, "of another series"))
    assert await other.answer == STORED
    while len(replies) < len(events):  # noqa: ASYNC110 -- each is an iteration of the loop
        await asyncio.sleep(0)
    assert [accepted for accepted, _ in replies] == [True, False, False, False]
    assert {text.partition(":")[0] for accepted, text in replies if not accepted} == {"error"}


async def test_one_batch_breaks_off_a_series_too(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an event for which the plug-ins failed, for one."""
    failed = Reject(Prefix.ERROR, "a plug-in failed", "plug-ins")
    series, replies = Series(), list[tuple[bool, str]]()
    judge = Batch._write

    def faulty(batch: Batch, candidate: Candidate) -> Result:
        return failed if candidate.event.content == "faulty" else judge(batch, candidate)

    monkeypatch.setattr(Batch, "_write", faulty)
    for content in ("before", "faulty", "after"):
        author = Unconnected(told=lambda result: replies.append(ok_reply(result)))
        relay.ingest.submit(chat(alice, content), author, Origin.IMPORT, series)
    while len(replies) < 3:  # noqa: ASYNC110 -- each is an iteration of the loop
        await asyncio.sleep(0)
    assert [accepted for accepted, _ in replies] == [True, False, False]


async def test_leaving_commits_what_waits(policy: PolicySet, verifiers: ThreadPoolExecutor) -> None:
    """SIGTERM: queued events are committed and get their OK; later ones are refused."""
    async with Relay(ControlledStore(), policy, verifiers) as relay:
        letters = [relay.post(article(NOON, str(n))) for n in range(300)]
    assert {tuple(letter.answers) for letter in letters} == {(STORED,)}
    (refusal,) = relay.post(article(NOON)).answers
    assert not refusal[0]


async def test_an_event_that_raises_fails_alone(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is neither dropped nor accepted; the others keep their order."""
    policy, bad = relay.state.policy, chat(alice, "the one")

    def refusal(event: Event, facts: Facts, judged: Any = policy.refusal) -> Reject | None:
        verdict: Reject | None = judged(event, 1 / 0 if event is bad else facts)
        return verdict

    monkeypatch.setattr(policy, "refusal", refusal)
    sent = [chat(bob, "0"), put(bob), bad, chat(bob, "1"), out(bob), chat(bob, "2")]
    wanted = [NOT_A_MEMBER, STORED, NOT_HERE, STORED, STORED, NOT_A_MEMBER]
    assert await relay.take(*sent) == wanted
    assert await rebuilt_groups(relay.store, RELAY.pubkey) == relay.state.groups
    of_batch, of_event = [each for each in caplog.records if each.exc_info]
    assert of_batch.message == "a batch of 6 changes raised, each is tried alone"
    assert of_event.message == "an event of kind 9: internal error"
    assert "ZeroDivisionError" in caplog.text


async def test_lines_and_refusals_name_the_message_in_which_an_event_came(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the one that its author sends by then."""
    bad, judged = chat(alice, "the one"), relay.state.policy.refusal

    def refusal(event: Event, facts: Facts) -> Reject | None:
        return judged(event, 1 / 0 if event is bad else facts)  # type: ignore[arg-type]

    monkeypatch.setattr(relay.state.policy, "refusal", refusal)
    letters = [Letter(), Letter()]
    for number, (letter, event) in enumerate(zip(letters, (bad, chat(bob, "0")), strict=True), 42):
        letter.connection, letter.message = 7, number
        relay.ingest.submit(event, letter, Origin.WIRE)
        letter.message = 99
    for letter in letters:
        await letter.answer
    *_, failed = [each for each in caplog.records if each.exc_info]
    assert vars(failed)["request"] == "7.42"
    assert [each.request for each in relay.metrics.refusals.after(0)] == ["7.42", "7.43"]


@pytest.mark.proves("N01-98")
async def test_a_fault_after_the_commit_changes_no_ok(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N01-98: each answer exactly once."""

    def fall_over(_rows: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(relay.live, "deliver", fall_over)
    assert await relay.take(chat(alice, "tea?"), chat(alice, "more?")) == [STORED] * 2
    await relay.take(article(NOON))


@pytest.fixture
def sizes(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the batches."""
    sizes: list[int] = []
    stored = relay.ingest._stored

    async def noted(items: Sequence[Any]) -> Any:
        sizes.append(len(items))
        return await stored(items)

    monkeypatch.setattr(relay.ingest, "_stored", noted)
    return sizes


async def test_an_event_that_many_open_filters_are_asked_about_is_not_one_of_many_of_a_batch(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch waits for its delivery: of 1,000 that 10,000 filters fit, for 45 s."""
    monkeypatch.setattr(relay.live, "number_for", lambda event: 10_000 * (event.content == "hot"))
    letters = [chat(alice, "hot") for _ in range(4)], [chat(alice, f"{n}") for n in range(100)]
    await relay.take(*letters[0])
    assert max(sizes) == 1
    sizes.clear()
    await relay.take(*letters[1])
    assert max(sizes) > 50


@pytest.mark.parametrize("content", ["to all", "private"])
async def test_filters_of_others_make_an_event_no_costlier_than_a_batch(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """20,000 of them were worth twenty refused deletions of each address that sent such."""
    author = relay.letter_from("192.0.2.1")
    item = WriteEvent(chat(alice, content), 1, 1, author, Origin.WIRE)
    alone = relay.ingest._cost_of(item)
    monkeypatch.setattr(relay.live, "number_for", lambda _: 50_000)
    assert relay.ingest._cost_of(item) == alone + MAX_BATCH


async def test_who_writes_is_charged_for_no_delivery(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen networks subscribed to each other's events and those of others, so that a note of
    anybody cost as much as theirs, and waited 5 s for one of each. When only what the own network
    had subscribed to was charged, members of an office were charged for each other, and waited for
    twenty events of each stranger."""
    item = WriteEvent(article(NOON), 1, 1, relay.letter_from("192.0.2.1"), Origin.WIRE)
    monkeypatch.setattr(relay.live, "number_for", lambda _: 1000)
    cost = relay.ingest._cost_of(item)
    assert cost == 1 + 1000 // 16
    assert charge_of(item, cost) == 1
    many = owner.sign(1, [["t", f"{number}"] for number in range(300)], "", NOON)
    item = WriteEvent(many, 1, 1, relay.letter_from("192.0.2.1"), Origin.WIRE)
    cost = relay.ingest._cost_of(item)
    assert cost == 1 + 300 // 30 + 1000 // 16
    assert charge_of(item, cost) == 1 + 300 // 30
    # It took ten times as long before.
    assert charge_of(item, 10 * cost) == pytest.approx(10 * (1 + 300 // 30), abs=10)


async def test_a_change_of_a_group_is_not_charged_for_what_others_subscribed_to(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18,000 filters of one network, on what the relay signs about groups, made each change worth
    10,000 notes: it waited 9 s for those of fifteen networks."""
    author = relay.letter_from("192.0.2.1")
    join = alice.sign(28934, [["-"]], "", NOON)
    for event in (put(bob), out(bob, "den"), on(alice, 9021, h="den"), join):
        item = WriteEvent(event, 1, 1, author, Origin.WIRE)
        alone = relay.ingest._cost_of(item)
        monkeypatch.setattr(relay.live, "number_for", lambda heard: 20_000 * (heard.raw == b""))
        cost = relay.ingest._cost_of(item)
        assert alone + MAX_BATCH <= cost <= alone + 2 * MAX_BATCH
        assert charge_of(item, cost) == alone
        monkeypatch.setattr(relay.live, "number_for", lambda _: 0)


async def test_bytes_count_as_often_as_they_are_sent_not_for_what_searches_cost(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One open search of a stranger made each note of 60 kB a batch of its own."""
    monkeypatch.setattr(relay.live, "number_for", lambda _: 800)
    monkeypatch.setattr(relay.live, "receivers_for", lambda _: 1)
    large = [alice.sign(1, [], f"{n}" + "x" * 60_000, NOON) for n in range(20)]
    await relay.take(*large[:10])
    assert max(sizes) > 4
    sizes.clear()
    monkeypatch.setattr(relay.live, "receivers_for", lambda _: 800)
    await relay.take(*large[10:])
    assert max(sizes) <= 2


@pytest.mark.parametrize("content", ["to all", "private"])
async def test_messages_share_a_batch_whatever_filters_sixteen_networks_have(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Each message of a private group was a batch of its own: 12 in a second, of 60 members."""
    monkeypatch.setattr(relay.live, "number_for", lambda _: 16 * 64)
    await relay.take(*[chat(alice, f"{content} {n}") for n in range(100)])
    assert max(sizes) == 512 // (1 + 16 * 64 // 16) + 1


async def test_changes_for_which_the_relay_signs_many_notices_are_few_in_a_batch(
    relay: Relay, sizes: list[int]
) -> None:
    """Ten connections that put 40 people into a group 1,000 times a second, each time with 40
    notices, kept an event of another for 330 ms."""
    people = [["p", f"{n:064x}"] for n in range(1, 61)]
    changes = [on(owner, 9000, *people, content=f"{n}") for n in range(20)]
    assert await relay.take(*changes) == [STORED] * 20
    assert max(sizes) <= 10


@pytest.mark.parametrize("number", [130, 490])
async def test_a_change_of_many_members_is_alone_in_its_batch(
    relay: Relay, sizes: list[int], number: int
) -> None:
    """One of 490 took 30 ms: four addresses that sent them kept others for 120 ms and more."""
    people = [["p", f"{n:064x}"] for n in range(number)]
    changes = [on(owner, 9000, *people, content=f"{n}") for n in range(8)]
    assert await relay.take(*changes) == [STORED] * 8
    assert max(sizes) == 1


async def test_events_that_refer_to_many_are_few_in_a_batch(relay: Relay, sizes: list[int]) -> None:
    """Each reference is looked up, and the row judged: 178 events of 64 took 0.6 s."""
    previous = ["previous", *[f"{n:08x}" for n in range(64)]]
    await relay.take(*[on(alice, 9, previous, content=f"{n}") for n in range(100)])
    assert max(sizes) == 512 // (1 + 64) + 1


async def test_large_events_are_committed_one_by_one(relay: Relay) -> None:
    """Three of 2,000 tags were committed together, with a note that had waited for three others."""
    relay.store.may_commit.clear()
    letters = [relay.post(chat(alice, "begun"), connection=1)]
    await relay.store.append_called.wait()
    for number in range(6):
        large = on(alice, 9, *(["t", f"{n}"] for n in range(1000)), content=f"large {number}")
        letters.append(relay.post(large, connection=number % 3))
    letters += [relay.post(bob.sign(1, [], f"{n}", NOON), connection=9) for n in range(2)]
    while relay.ingest.waiting["commit"] < 8:  # noqa: ASYNC110 -- threads verify them
        await asyncio.sleep(0.001)
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 9
    batches = [[row.event.content for row in plan.adds.values()] for plan in relay.store.plans]
    assert batches[:2] == [["begun"], ["0", "1"]]
    assert sorted(batches[2:]) == [[f"large {number}"] for number in range(6)]


async def test_what_is_costly_to_deliver_alone_shares_a_commit(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of many events that one subscriber gets are written at once."""
    monkeypatch.setattr(relay.live, "number_for", lambda _: 1200)
    await relay.take(*[alice.sign(1, [], f"{n}", NOON) for n in range(40)])
    assert max(sizes) == 512 // (1 + 1200 // 16) + 1


async def test_the_tags_of_a_row_are_read_once_for_all_events_that_name_it(relay: Relay) -> None:
    """500 reactions to four records of 4,900 tags took 3 s in one transaction: read rules looked
    for the `d` of each again and again."""
    read = 0

    class Noted(list[list[str]]):
        def __iter__(self) -> Iterator[list[str]]:
            nonlocal read
            read += 1
            return super().__iter__()

    large = on(alice, 30078, *[["t", f"{n}"] for n in range(100)], ["d", "x"])
    large = structs.replace(large, tags=Noted(large.tags))
    for origin in (alice.sign(1, [], "begun", NOON), large):
        assert await relay.take(origin) == [STORED]
    times = list[int]()
    for number in (2, 20):
        read = 0
        named = [alice.sign(7, [["e", large.id]], f"{number} {n}", NOON) for n in range(number)]
        assert await relay.take(*named) == [STORED] * number
        times.append(read)
    assert times[0] == times[1]


LIST = (39002, "tea")


async def test_what_many_get_as_a_list_of_members_costs_as_much_as_to_send_it(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,800 subscriptions to the list of a group of 480, and 20 requests to join it in a second,
    kept others for as long as they came."""
    monkeypatch.setattr(
        relay.live, "number_for", lambda event: 1800 * ((event.kind, event.tag("d")) == LIST)
    )
    people = [["p", f"{n:064x}"] for n in range(1, 481)]
    for begin in range(0, 480, 60):
        assert await relay.take(on(owner, 9000, *people[begin : begin + 60])) == [STORED]
    sizes.clear()
    joining = [on(owner, 9000, ["p", person(f"{n}").pubkey]) for n in range(10)]
    assert await relay.take(*joining) == [STORED] * 10
    assert max(sizes) == 1


async def test_all_that_the_relay_signs_about_a_change_is_in_its_cost(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """72,000 filters on the `p` of a member were compared with each list of the group, and with
    what else the relay signs, for no cost: 70 changes took 1.4 s."""
    asked: list[Event] = []

    def number_for(event: Event) -> int:
        asked.append(event)
        return 0

    monkeypatch.setattr(relay.live, "number_for", number_for)
    people = [["p", f"{n:064x}", *["admin"][: n % 2]] for n in range(1, 121)]
    first, second, third = (on(owner, 9, content=text, h="club") for text in "123")
    code = ["code", "open sesame"]
    changes = [
        on(owner, 9007, ["t", "club"], h="club"),
        on(owner, 9000, ["p", bob.pubkey], h="club"),
        on(owner, 9000, *people, h="club"),
        on(owner, 9001, *people[:110], ["p", bob.pubkey], h="club"),
        on(owner, 9009, code, h="club"),
        on(carol, 9021, code, h="club"),
        on(carol, 9022, h="club"),
        on(owner, 9002, ["name", "club"], ["t", "other"], h="club"),
        *(first, second, third),
        on(owner, 9010, *[["e", each.id] for each in (first, second, third)], h="club"),
        on(owner, 9005, ["e", first.id], h="club"),
        owner.sign(5, [["e", second.id]], "", NOON),
        on(owner, 9008, h="club"),
    ]
    claim = claim_change("open sesame too", Claim(owner.pubkey, NOON))
    relay.ingest.manage(ManagementChange((claim,), lambda _: None))
    changes += [dave.sign(28934, [["claim", "open sesame too"]], "", NOON)]
    changes += [dave.sign(28936, [["-"]], "", NOON)]
    signed = Counter[int]()
    for change in changes:
        asked.clear()
        relay.store.plans.clear()
        await relay.post(change, logins={change.pubkey}).answer
        rows = [row for plan in relay.store.plans for row in plan.adds.values()]
        by_relay = [row.event for row in rows if row.event.pubkey == RELAY.pubkey]
        signed.update([event.kind for event in by_relay])
        assert not index_keys(by_relay) - index_keys(asked), change.kind
    moderation = {9000: 2, 9001: 1, 39000: 2, 39001: 3, 39002: 6, 39003: 1, 39005: 3}
    assert signed == {**moderation, 44100: 63, 44101: 68, 8000: 1, 8001: 1, 13534: 2}


def index_keys(events: Sequence[Event]) -> Counter[tuple[object, ...]]:
    """Under which open filters may be compared with them."""
    return Counter(
        (event.kind, *key)
        for event in events
        for key in {("author", event.pubkey), *[tuple(tag[:2]) for tag in event.tags]}
        if key[0] == "author" or (len(key[0]) == 1 and key[0].isalpha())
    )


async def test_what_many_filters_are_compared_with_for_a_group_above_counts(
    relay: Relay, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 9002 of a subgroup has the 39000s of both groups above signed, and delivered: 50 together
    took 2 s with 72,000 filters."""
    made = [on(owner, 9007, h=above) for above in ("left", "right")]
    made += [on(owner, 9007, ["parent", "left"], h=f"sub{number}") for number in range(6)]
    assert await relay.take(*made) == [STORED] * 8
    above = (39000, "right")
    monkeypatch.setattr(
        relay.live, "number_for", lambda event: 9000 * ((event.kind, event.tag("d")) == above)
    )
    sizes.clear()
    moves = [on(owner, 9002, ["parent", "right"], h=f"sub{number}") for number in range(6)]
    assert await relay.take(*moves) == [STORED] * 6
    assert max(sizes) == 1


async def test_others_are_committed_while_the_store_makes_room_for_many_tags(relay: Relay) -> None:
    """150 events of 4,900 tags kept an event of another for 50 to 110 ms each."""
    relay.store.tags_to_come.clear()
    relay.store.room_to_make = 3
    many = chat_of_tags(900)
    large = relay.post(many, connection=1)
    after = relay.post(chat(alice, "after it"), connection=1)
    small = relay.post(bob.sign(1, [], "small", NOON), connection=2)
    assert [await each.answer for each in (large, after, small)] == [STORED] * 3
    assert relay.store.tags_to_come[0] > 900
    assert [
        [event.event.content for event in plan.adds.values()] for plan in relay.store.plans
    ] == [["small"], ["many tags"], ["after it"]]


async def test_the_client_with_most_tags_waits_for_room_not_the_connection(relay: Relay) -> None:
    """A list of 1,200 tags waited for those of 45 connections of one address, 10 s and more."""
    relay.store.room_to_make = 1
    letters: list[Letter] = []
    for connection, tags in enumerate((40, 90, 41, 42), 1):
        letter = Letter()
        letter.connection = connection
        letter.counted_as = "198.51.100.7" if tags == 90 else "203.0.113.5"
        relay.ingest.submit(chat_of_tags(tags), letter, Origin.WIRE)
        letters.append(letter)
    assert [await letter.answer for letter in letters] == [STORED] * 4
    first, second = relay.store.plans
    assert [len(each.event.tags) for each in first.adds.values()] == [91]
    assert len(second.adds) == 3


async def test_clients_with_many_tags_share_the_room_that_is_made(relay: Relay) -> None:
    """Of 16 such clients one waited, and the tags of the others were flushed with everybody's."""
    relay.store.room_to_make, relay.store.room_made = 100, 300
    relay.store.may_commit.clear()
    letters = [relay.post(chat(alice, "begun"), connection=1)]
    await relay.store.append_called.wait()
    for number in range(5):
        letters.append(relay.letter_from(f"198.51.{number}.7"))
        letters[-1].counted_as = f"198.51.{number}.7"
        relay.ingest.submit(chat_of_tags(200 + number), letters[-1], Origin.WIRE)
    letters += [relay.post(bob.sign(1, [["t", "tea"]], "small", NOON), connection=50)]
    while relay.ingest.waiting["commit"] < 6:  # noqa: ASYNC110 -- each is an iteration of the loop
        await asyncio.sleep(0.001)
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 7
    sizes = [sum(len(each.event.tags) for each in p.adds.values()) for p in relay.store.plans]
    assert sizes[:2] == [1, 202], "who have fewest do not wait"
    assert max(sizes) <= 2 * 300


async def test_the_client_with_most_tags_rests_as_long_as_room_was_made(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it had every second batch while others waited for room."""
    rests: list[tuple[object, float]] = []
    make_room = relay.store.make_room

    async def slowly(tags: int) -> int:
        await asyncio.sleep(0.02)
        return await make_room(tags)

    monkeypatch.setattr(relay.ingest._lane, "rest", lambda *given: rests.append(given))
    monkeypatch.setattr(relay.store, "make_room", slowly)
    relay.store.room_to_make = 1
    few, many = relay.letter_from("203.0.113.5"), relay.letter_from("198.51.100.7")
    for letter, tags in ((few, 40), (many, 90)):
        letter.counted_as = str(letter.address)
        relay.ingest.submit(chat_of_tags(tags), letter, Origin.WIRE)
    assert [await letter.answer for letter in (few, many)] == [STORED] * 2
    ((client, seconds),) = rests
    assert "198.51.100.7" in str(client)
    assert seconds >= 0.02


@pytest.mark.parametrize(("tags", "times"), [(1200, 1), (2400, 2), (4900, 3)])
async def test_an_event_waits_only_until_there_is_room_for_it(
    relay: Relay, tags: int, times: int
) -> None:
    """A list was queued again before each batch that others needed room for."""
    relay.store.tags_to_come.clear()
    relay.store.room_to_make = 100
    assert await relay.take(chat_of_tags(tags)) == [STORED]
    assert len(relay.store.tags_to_come) == times + 1


async def test_of_many_events_those_are_committed_that_there_is_room_for(relay: Relay) -> None:
    relay.store.may_commit.clear()
    letters = [relay.post(chat(alice, "begun"), connection=1)]
    await relay.store.append_called.wait()
    relay.store.room_to_make = 100
    letters += [relay.post(chat_of_tags(100 + n), connection=n) for n in range(1, 31)]
    letters += [relay.post(bob.sign(1, [], "small", NOON), connection=50)]
    for letter in letters:
        letter.counted_as = "203.0.113.5"
    while relay.ingest.waiting["commit"] < 31:  # noqa: ASYNC110 -- each is an iteration of the loop
        await asyncio.sleep(0.001)
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 32
    sizes = [sum(len(each.event.tags) for each in p.adds.values()) for p in relay.store.plans]
    assert sizes[:2] == [1, 0]
    assert len(sizes) == 4
    assert max(sizes) <= 2048


async def test_an_event_for_which_the_store_cannot_make_room_is_answered(relay: Relay) -> None:
    relay.store.is_full = True
    assert await relay.take(chat_of_tags(900)) == [NOT_HERE]


async def test_an_event_that_is_only_passed_on_needs_no_room(relay: Relay) -> None:
    """Its tags are not stored."""
    relay.store.tags_to_come.clear()
    tags = [["t", f"{number}"] for number in range(900)]
    assert await relay.take(alice.sign(20_001, tags, "", NOON)) == [STORED]
    assert relay.store.tags_to_come == []


def chat_of_tags(number: int) -> Event:
    return on(alice, 9, *(["t", f"{n}"] for n in range(number)), content="many tags")


async def test_others_have_the_loop_between_the_pieces_of_a_delivery(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 filters that one event fits took the loop 45 ms for each event, in one piece."""
    turns = count()
    seen: list[int] = []

    async def another() -> None:
        for _ in turns:
            await asyncio.sleep(0)

    def deliver(rows: list[object], _links: object) -> Iterator[tuple[int, int]]:
        for _ in range(10):
            seen.append(next(turns))
            yield 1, 0
        yield 0, len(rows)

    monkeypatch.setattr("relay.write.delivery._TURN_S", 0)
    monkeypatch.setattr(relay.live, "deliver", deliver)
    other = asyncio.create_task(another())
    await relay.take(chat(alice, "tea?"))
    await relay.take(article(NOON))
    other.cancel()
    assert all(later - earlier > 1 for earlier, later in pairwise(seen[:10]))


async def test_a_delivery_that_was_left_off_goes_on_with_the_first_row_that_is_not_done(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is still there: who may read it now need not have been able to before."""
    begun: list[list[str]] = []

    def deliver(rows: list[Stored], _links: object) -> Iterator[tuple[int, int]]:
        begun.append([row.event.content for row in rows])
        yield 1, 1
        relay.state.is_current = lambda: False
        yield 1, 2
        raise AssertionError("it is not known who may read")

    reader = Client(alice)
    subscription = Subscription("s", (Filter(),), reader, reader.outbox, 0)
    subscription.begin_backlog(9)
    relay.live.open(subscription)
    subscription.end_backlog()
    monkeypatch.setattr(relay.live, "deliver", deliver)
    letters = [chat(alice, f"{n}") for n in range(4)]
    await relay.take(*letters)
    await relay.ingest.delivered()
    assert begun == [["0", "1", "2", "3"]]
    await relay.take(chat(alice, "4"), later := chat(alice, "5"))
    await relay.take(alice.sign(5, [["e", letters[3].id], ["e", later.id]], "not these", NOON))
    monkeypatch.undo()
    relay.state.is_current = lambda: True
    await relay.take(chat(alice, "6"))
    await relay.ingest.delivered()
    assert reader.contents() == ["2", "4", "not these", "6"]


@pytest.mark.parametrize(("tags", "is_on_loop"), [(10, True), (500, False)])
async def test_an_event_of_many_tags_is_prepared_off_the_loop(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, tags: int, *, is_on_loop: bool
) -> None:
    """40 events of 5,000 tags, one after the other, took the loop 40 ms each."""
    threads: list[threading.Thread] = []
    prepare = relay.store.prepare

    def noted(events: list[Event]) -> None:
        threads.append(threading.current_thread())
        prepare(events)

    monkeypatch.setattr(relay.store, "prepare", noted)
    many = [["t", f"{number}"] for number in range(tags)]
    assert await relay.take(on(alice, 9, *many)) == [STORED]
    assert [each is threading.main_thread() for each in threads] == [is_on_loop]


async def test_a_reload_during_a_commit_is_for_the_next_batch(
    relay: Relay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rules ask for what was not looked up: an author got `error:`, the log a traceback."""
    quota = (
        '[[rule]]\nname = "few"\nmatch = { kinds = [9] }\nquota = { per = "author", events = 1 }\n'
    )
    (tmp_path / "new").mkdir()
    stricter = await asyncio.to_thread(loaded, tmp_path / "new", actors=ACTORS, quota=quota)
    relay.store.may_commit.clear()
    letter = relay.post(chat(alice, "tea?"))
    await relay.store.append_called.wait()
    relay.state.enforce(stricter)
    relay.store.may_commit.set()
    await letter.answer
    assert letter.answers == [STORED]
    assert not caplog.records
    (refused,) = await relay.take(chat(alice, "more?"))
    assert refused[0] is False


async def test_what_waited_for_other_policies_is_screened_by_those_that_judge_it(
    relay: Relay, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    stricter = await asyncio.to_thread(
        loaded, tmp_path / "new", actors=ACTORS, own="[limits]\nmax_event_tags = 1\n"
    )
    relay.store.may_commit.clear()
    first = relay.post(chat(alice, "tea?"))
    await relay.store.append_called.wait()
    waiting = relay.post(on(alice, 9, ["t", "milk"], ["t", "sugar"]))
    relay.state.enforce(stricter)
    relay.store.may_commit.set()
    await waiting.answer
    assert first.answers == [STORED]
    assert [is_taken for is_taken, _ in waiting.answers] == [False]


async def test_no_batch_is_judged_by_two_sets_of_policies(
    relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push comes while the first of three events is judged."""
    (tmp_path / "new").mkdir()
    shut = '[[rule]]\nname = "shut"\nmatch = { kinds = [9] }\nwrite = ["nobody"]\n'
    stricter = await asyncio.to_thread(loaded, tmp_path / "new", actors=ACTORS, own=shut)
    refusal = PolicySet.refusal

    def pushed_meanwhile(policy: PolicySet, event: Event, facts: Facts) -> Reject | None:
        relay.state.enforce(stricter)
        return refusal(policy, event, facts)

    with monkeypatch.context() as patched:
        patched.setattr(PolicySet, "refusal", pushed_meanwhile)
        assert await relay.take(*[chat(alice, text) for text in "abc"]) == [STORED] * 3
    assert len(relay.store.plans) == 1
    assert [is_taken for is_taken, _ in await relay.take(chat(alice, "d"))] == [False]


# lists of large groups ---------------------------------------------------------------------------


def lists_said(relay: Relay) -> list[list[str]]:
    """The members in each 39002 of the group that was delivered."""
    return [
        sorted(event.tag_values("p"))
        for event in relay.live.said
        if event.kind == 39002 and event.d == "tea"
    ]


@pytest.mark.parametrize(("large", "lists"), [(1, 1), (500, 21)])
async def test_a_batch_signs_the_lists_of_a_large_group_once(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, large: int, lists: int
) -> None:
    """300 changes of 10,000 members, 129 kB, kept all other events waiting for 4 s."""
    signed: list[int] = []

    def noted(*args: Any) -> Any:
        group, drafts = notices_for(*args)
        signed.extend(draft.kind for draft in drafts)
        return group, drafts

    monkeypatch.setattr("relay.write.changes.notices_for", noted)
    monkeypatch.setattr("relay.write.changes._LARGE_GROUP", large)
    changes = [
        on(owner, kind, ["p", bob.pubkey], content=f"{n}")
        for n in range(10)
        for kind in (9000, 9001)
    ]
    assert await relay.take(*changes, put(carol)) == [STORED] * 21
    members = sorted([owner.pubkey, alice.pubkey, carol.pubkey])
    assert signed.count(39002) == lists
    assert lists_said(relay) == [members]
    assert [len(event.tags) for event in relay.live.said if event.kind == 44101] == [3] * 10
    stored = [event for event in await relay.log() if event.kind == 39002 and event.d == "tea"]
    assert [sorted(event.tag_values("p")) for event in stored] == [members]
    assert relay.store.groups["tea"] == relay.state.groups.by_id["tea"]
    assert await relay.take(out(carol)) == [STORED]
    assert lists_said(relay)[-1] == sorted([owner.pubkey, alice.pubkey])
    (newest,) = [event for event in await relay.log() if event.kind == 39002 and event.d == "tea"]
    assert newest.created_at > stored[0].created_at


def sign_lists_at_any_pace(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_signing, "_BYTES_PER_S", 1e12)
    relay.ingest._lists._paid_at = 0.0


async def test_the_lists_of_a_very_large_group_are_signed_after_its_changes(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that vanished from 24 groups of 10,000 kept all writers waiting for 5 s."""
    monkeypatch.setattr("relay.groups.notices._LONG_LIST", 3)
    monkeypatch.setattr(list_signing, "_MEMBERS_AT_ONCE", 10)
    monkeypatch.setattr(list_signing, "_PAUSE", 0)
    sign_lists_at_any_pace(relay, monkeypatch)
    groups = [f"g{number}" for number in range(5)]
    for h in groups:
        people = [["p", who.pubkey] for who in (alice, bob, carol, dave)]
        assert await relay.take(on(owner, 9007, h=h), on(owner, 9000, *people, h=h)) == [STORED] * 2
    await relay.ingest._lane.drained()
    relay.store.plans.clear()
    relay.live.said.clear()
    vanished = bob.sign(62, [["relay", "ALL_RELAYS"]], "", NOON)
    assert await relay.take(vanished) == [STORED]
    await relay.ingest._lane.drained()
    signed = [[row.event.kind for row in plan.adds.values()] for plan in relay.store.plans]
    assert 39002 not in signed[0]
    assert [kinds.count(39002) for kinds in signed[1:]] == [2, 2, 2]
    members = sorted(who.pubkey for who in (owner, alice, carol, dave))
    lists = [event for event in relay.live.said if event.kind == 39002]
    assert [event.d for event in lists] == ["den", *groups]
    assert all(sorted(event.tag_values("p")) == members for event in lists[1:])
    assert relay.store.groups["g4"] == relay.state.groups.by_id["g4"]


@pytest.mark.parametrize(("pace", "value"), [("_PAUSE", 1e9), ("_BYTES_PER_S", 1e-9)])
async def test_lists_of_very_large_groups_are_signed_with_pauses(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, pace: str, value: float
) -> None:
    """Those of 24 groups of 10,000, one after another, kept a writer waiting for 0.4 s; those of
    500 with roles are 4 MB a second for each reader."""
    monkeypatch.setattr("relay.groups.notices._LONG_LIST", 3)
    monkeypatch.setattr(list_signing, "_MEMBERS_AT_ONCE", 5)
    monkeypatch.setattr(list_signing, "_PAUSE", 0)
    sign_lists_at_any_pace(relay, monkeypatch)
    people = [["p", who.pubkey] for who in (alice, carol, dave)]
    groups = ["g0", "g1", "g2"]
    for h in groups:
        assert await relay.take(on(owner, 9007, h=h), on(owner, 9000, *people, h=h)) == [STORED] * 2
    await relay.ingest._lane.drained()
    monkeypatch.setattr(list_signing, pace, value)
    relay.live.said.clear()
    changes = [on(owner, 9000, ["p", bob.pubkey], h=h) for h in groups]
    assert await relay.take(*changes) == [STORED] * 3
    await relay.ingest._lane.drained()
    assert await relay.take(on(bob, 9, h="g2")) == [STORED]
    assert [event.d for event in relay.live.said if event.kind == 39002] == ["g0"]
    await relay.restart()  # the end waits for no pause
    lists = {event.d: event for event in await relay.log() if event.kind == 39002}
    assert all(bob.pubkey in lists[h].tag_values("p") for h in groups)


async def test_lists_of_any_group_wait_while_more_are_signed_than_readers_can_take(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """115 kB of requests to vanish changed the lists of six groups 40 times each, 85 MB for all who
    follow lists. What changes while a list waits is in it, and rights hold at once."""
    for h in ("g0", "g1", "g2"):
        people = [["p", who.pubkey] for who in (alice, bob, carol, dave)]
        assert await relay.take(on(owner, 9007, h=h), on(owner, 9000, *people, h=h)) == [STORED] * 2
    of_one = bytes_of_lists(relay.state.groups.by_id["g0"])
    monkeypatch.setattr(list_signing, "_BURST", of_one)
    monkeypatch.setattr(list_signing, "_BYTES_PER_S", 1e-9)
    relay.live.said.clear()
    assert await relay.take(bob.sign(62, [["relay", "ALL_RELAYS"]], "", NOON)) == [STORED]
    assert [event.d for event in relay.live.said if event.kind == 39002] == ["den"]
    assert await relay.take(out(carol, h="g2"), out(carol, h="g0")) == [STORED] * 2
    assert (await relay.take(on(carol, 9, h="g2")))[0] != STORED
    await relay.ingest._lane.drained()
    assert [event.d for event in relay.live.said if event.kind == 39002] == ["den"]
    await relay.restart()  # the end waits for no pause
    lists = {event.d: event for event in await relay.log() if event.kind == 39002}
    left = sorted(who.pubkey for who in (owner, alice, dave))
    assert sorted(lists["g1"].tag_values("p")) == sorted([*left, carol.pubkey])
    assert sorted(lists["g0"].tag_values("p")) == sorted(lists["g2"].tag_values("p")) == left


@pytest.mark.parametrize("bound", ["list_signing._GROUPS_AT_ONCE", "changes.BYTES_AT_ONCE"])
async def test_lists_that_waited_are_signed_in_small_transactions(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Those of 4,600 groups of one member were one transaction of 5 s. They may have grown while
    they waited."""
    groups = [f"g{number}" for number in range(4)]
    for h in groups:
        assert await relay.take(on(owner, 9007, h=h)) == [STORED]
    monkeypatch.setattr(list_signing, "_PAUSE", 0)
    monkeypatch.setattr(list_signing, "_BURST", 0)
    sign_lists_at_any_pace(relay, monkeypatch)
    monkeypatch.setattr(relay.ingest._lists, "_next_at", 1e9)
    changes = [on(owner, 9000, ["p", alice.pubkey], h=h) for h in groups]
    assert await relay.take(*changes) == [STORED] * 4
    size = bytes_of_lists(relay.state.groups.by_id["g0"])
    monkeypatch.setattr(f"relay.write.{bound}", 1 if bound.endswith("GROUPS_AT_ONCE") else size)
    people = [["p", person(f"{number}").pubkey] for number in range(50)]
    relay.store.plans.clear()
    assert await relay.take(on(owner, 9000, *people, h="g1")) == [STORED]
    monkeypatch.setattr(relay.ingest._lists, "_next_at", 0.0)
    assert await relay.take(on(alice, 9, h="g0")) == [STORED]
    await relay.ingest._lane.drained()
    signed = [
        [row.event.d for row in plan.adds.values() if row.event.kind == 39002]
        for plan in relay.store.plans
    ]
    assert [each for each in signed if each] == [["g0"], ["g1"], ["g2"], ["g3"]]


async def test_a_list_that_waited_has_as_many_members_as_fit(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from before the group grew that far was taken for right."""
    monkeypatch.setattr("relay.groups.notices._LONG_LIST", 3)
    sign_lists_at_any_pace(relay, monkeypatch)
    monkeypatch.setattr(list_signing, "_PAUSE", 0)
    people = [["p", person(f"{number}").pubkey] for number in range(30)]
    assert await relay.take(on(owner, 9000, *people[:5])) == [STORED]
    await relay.ingest._lane.drained()
    monkeypatch.setattr("relay.groups.notices.MAX_TAGS_BYTES", 1000)
    assert await relay.take(on(owner, 9000, *people[5:])) == [STORED]
    await relay.ingest._lane.drained()
    (stored,) = [each for each in await relay.log() if each.kind == 39002 and each.d == "tea"]
    assert len(stored.tag_values("p")) == 13


async def test_the_pause_after_lists_counts_their_delivery(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of 5,000 members is 250 MB for 720 subscriptions, and came with each change."""
    monkeypatch.setattr("relay.groups.notices._LONG_LIST", 3)
    monkeypatch.setattr(list_signing, "_PAUSE", 1)
    sign_lists_at_any_pace(relay, monkeypatch)
    seconds, deliver = [0.0], relay.live.deliver

    def slowly(rows: Sequence[Stored], *links: Any) -> Iterator[tuple[int, int]]:
        seconds[0] += 1e6 * any(row.event.kind == 39002 for row in rows)
        yield from deliver(rows, *links)

    monkeypatch.setattr("relay.write.ingest.perf_counter", lambda: seconds[0])
    monkeypatch.setattr(relay.live, "deliver", slowly)
    people = [["p", who.pubkey] for who in (alice, bob, carol, dave)]
    for h in ("g0", "g1"):
        assert await relay.take(on(owner, 9007, h=h), on(owner, 9000, *people, h=h)) == [STORED] * 2
        await relay.ingest._lane.drained()
    long = [event.d for event in relay.live.said if event.kind == 39002 and len(event.tags) > 4]
    assert long == ["g0"]


async def test_the_lists_of_a_batch_take_a_bounded_time(relay: Relay) -> None:
    """Events of 70 groups of 2000 each kept all others waiting for more than a second."""
    people = [["p", f"{number:064x}"] for number in range(1, 201)]
    groups = [f"g{number}" for number in range(40)]
    for h in groups:
        assert await relay.take(on(owner, 9007, h=h), on(owner, 9000, *people, h=h)) == [STORED] * 2
    relay.store.plans.clear()
    changes = [on(owner, 9000, ["p", bob.pubkey], h=h) for h in groups]
    assert await relay.take(*changes) == [STORED] * 40
    signed = [[row.event.kind for row in plan.adds.values()] for plan in relay.store.plans]
    assert max(kinds.count(39002) for kinds in signed) <= 20


@pytest.mark.parametrize(
    ("reason", "value"),
    [("relay.groups.notices._LONG_LIST", 3), ("relay.write.list_signing._BURST", 500)],
)
async def test_lists_that_were_not_signed_before_the_end_are_signed_at_the_start(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, reason: str, value: int
) -> None:
    monkeypatch.setattr(reason, value)
    people = [["p", who.pubkey] for who in (bob, carol, dave)]
    message = chat(alice, "to pin")
    assert await relay.take(on(owner, 9000, *people), message) == [STORED] * 2
    await relay.ingest._lane.drained()
    monkeypatch.setattr(ListSigning, "begin", lambda _: None)  # as if killed before
    await relay.take(out(bob), on(owner, 9002, ["name", "Tea"]), on(owner, 9010, ["e", message.id]))
    before = relay.state.groups
    await relay.restart()
    stored = {event.kind: event for event in await relay.log() if event.d == "tea"}
    members = sorted(who.pubkey for who in (owner, alice, carol, dave))
    assert sorted(stored[39002].tag_values("p")) == members
    assert relay.state.groups.by_id["tea"].pins == before.by_id["tea"].pins != ()
    assert relay.state.groups.by_id["tea"].metadata == before.by_id["tea"].metadata != ()
    seq = await relay.store.head()
    await relay.restart()
    assert await relay.store.head() == seq


async def test_a_large_group_does_not_end_just_after_another(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of 10,000 members, in one batch, kept all writers waiting for ten seconds. What is
    refused makes nobody wait."""
    monkeypatch.setattr(ingest, "_SLOW_END_S", 0.0)
    monkeypatch.setattr("relay.write.costs._CHANGED_PER_COST", 1 / 300)
    large = ("left", "right", "middle")
    for group in large:
        users = ["p", alice.pubkey, "admin"], ["p", bob.pubkey]
        await relay.take(on(owner, 9007, h=group), on(owner, 9000, *users, h=group))
    refusal = (False, "rate-limited: too many large groups end, wait a minute")
    refused = on(alice, 9008, h="left", at=NOON - 10**5)
    assert (await relay.take(refused))[0] not in (STORED, refusal)
    ends = [on(alice, 9008, h=group) for group in large]
    assert await relay.take(*ends[:2], on(alice, 9, h="right")) == [STORED, refusal, STORED]
    assert await relay.take(on(bob, 9008, h="left")) != [refusal], "bob is no admin of it"
    assert await relay.take(on(owner, 9008, h="middle")) == [STORED], "an owner need not wait"
    monkeypatch.setattr(relay.ingest, "_end_from", 0.0)
    assert await relay.take(ends[1]) == [STORED]


async def test_the_descriptions_of_subgroups_are_measured_for_no_end_of_their_group(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 250 took 90 ms of the loop, for each 9008 and whoever sent it."""
    for n in range(20):
        about = ["about", "x" * 100]
        assert await relay.take(
            on(owner, 9007, about, h=f"sub{n}"), on(owner, 9002, ["parent", "tea"], h=f"sub{n}")
        )
    measured = list[int]()

    def measure(tags: Sequence[Sequence[str]]) -> int:
        measured.append(len(tags))
        return 0

    monkeypatch.setattr("relay.write.costs.size_of_tags", measure)
    for who in (bob, alice, owner):
        await relay.take(on(who, 9008, h="tea"))
    assert "tea" in relay.state.groups.ended
    assert len(measured) <= 1


async def test_a_batch_signs_a_long_description_once(relay: Relay) -> None:
    """400 moves of a subgroup between two parents of 440 kB each took 4 s and 600 MB."""
    for name in ("left", "right", "child"):
        about = ["about", "x" * (10_000 if name != "child" else 10)]
        assert await relay.take(on(owner, 9007, about, h=name)) == [STORED]
    relay.live.said.clear()
    moves = [
        on(owner, 9002, ["parent", parent], ["name", f"{n}"], h="child")
        for n in range(10)
        for parent in ("left", "right")
    ]
    assert await relay.take(*moves) == [STORED] * 20
    said = [each.d for each in relay.live.said if each.kind == 39000]
    assert (said.count("left"), said.count("right"), said.count("child")) == (0, 1, 1)
    groups = relay.state.groups.by_id
    assert (groups["left"].children, groups["right"].children) == ((), ("child",))
    assert await rebuilt_groups(relay.store, RELAY.pubkey) == relay.state.groups


async def test_no_list_is_signed_of_a_group_that_ended_in_the_batch(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.write.changes._LARGE_GROUP", 1)
    monkeypatch.setattr("relay.write.costs._ALONE", 1)
    assert await relay.take(put(bob), on(owner, 9008), article(NOON)) == [STORED] * 3
    assert lists_said(relay) == []
    assert not [event for event in await relay.log() if event.kind == 39002 and event.d == "tea"]
    assert "tea" not in relay.state.groups.by_id


@pytest.mark.slow
@pytest.mark.parametrize("kind", [9000, 9001])
async def test_a_note_waits_for_few_changes_of_a_large_group(relay: Relay, kind: int) -> None:
    """300 changes of a group of 10,000 by its admin kept the others waiting for 2 s and more."""
    keys = [f"{number:064x}" for number in range(10**9, 10**9 + 6000)]
    for some in (keys[:3000], keys[3000:]):
        assert await relay.take(on(owner, 9000, *(["p", key] for key in some))) == [STORED]
    changed = keys[:300] if kind == 9001 else [f"{number:064x}" for number in range(300)]
    relay.store.plans.clear()
    relay.store.append_called.clear()
    relay.store.may_commit.clear()
    changes = [on(owner, kind, ["p", key]) for key in changed]
    letters = [relay.post(changes[0], connection=1)]
    await relay.store.append_called.wait()
    letters += [relay.post(change, connection=1) for change in changes[1:]]
    note = article(NOON)
    letters.append(relay.post(note, connection=2))
    while relay.ingest.waiting["commit"] < 300:  # noqa: ASYNC110 -- threads verify them
        await asyncio.sleep(0.001)
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 301

    def batches_now() -> list[list[int]]:
        return [[row.event.kind for row in plan.adds.values()] for plan in relay.store.plans]

    while not any(39002 in batch for batch in batches_now()):  # noqa: ASYNC110 -- after a pause
        await asyncio.sleep(0.001)
    batches = batches_now()
    mine = next(n for n, plan in enumerate(relay.store.plans) if note.id in plan.adds)
    # Each costs 13, a batch 512 at most; the first one was at work before. The note has its own.
    assert sum(batch.count(kind) for batch in batches[: mine + 1]) <= 1 + 512 // 13 + 1
    lists = [batch for batch in batches if 39002 in batch]
    assert all(batch.count(39002) == 1 and kind not in batch for batch in lists)
    assert 0 < len(lists) <= len(batches) - len(lists) <= 3 + 299 * 13 // 512


def deletions(number: int) -> Event:
    targets = [["e", f"{number * 1000 + n:064x}"] for n in range(100)]
    return alice.sign(5, targets, "", NOON)


@pytest.mark.parametrize(
    ("large", "together"),
    [
        (lambda n: article(NOON, d=f"{n}", content="x" * 100_000), 512 * 4096 // 100_000),
        (deletions, 512 // (100 // 4)),  # a tombstone for each target
        (lambda n: on(owner, 9002, ["about", f"{n}"]), 512 // (2 * 12)),
        (lambda n: owner.sign(62, [["relay", "ALL_RELAYS"]], "", NOON + n), 512 // (2 * 12)),
        (lambda n: on(person(f"j{n}"), 9021, ["code", "reusable"]), 36),
    ],
)
async def test_a_note_waits_for_few_large_events(
    relay: Relay, large: Callable[[int], Event], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one connection or many: 2 MiB are committed together, 2,000 targets of deletions, or few
    changes of a group of many keys or codes, or requests to vanish if there are many groups: here
    each of two, and a code, costs as much as 12,000."""
    code = on(owner, 9009, ["code", "reusable"], ["reusable"])
    assert await relay.take(code) == [STORED]
    relay.store.plans.clear()
    monkeypatch.setattr("relay.write.costs._CODES_PER_COST", 1 / 12)
    monkeypatch.setattr("relay.write.costs._MEMBERS_PER_COST", 1 / 12)
    monkeypatch.setattr("relay.write.costs._GROUPS_PER_COST", 1 / 12)
    relay.store.append_called.clear()
    relay.store.may_commit.clear()
    events = [large(number) for number in range(40)]
    letters = [relay.post(events[0], connection=1)]
    await relay.store.append_called.wait()
    letters += [relay.post(event, connection=n % 4) for n, event in enumerate(events[1:])]
    note = article(NOON + 50)  # later than the requests to vanish
    letters.append(relay.post(note, connection=9))
    while relay.ingest.waiting["commit"] < 40:  # noqa: ASYNC110 -- threads verify them
        await asyncio.sleep(0.001)
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 41
    batches = [list(plan.adds) for plan in relay.store.plans]
    assert note.id in batches[1]
    assert max(map(len, batches)) <= together + 2


async def test_a_change_of_rights_waits_for_nothing_that_others_only_have_passed_on(
    relay: Relay,
) -> None:
    """A flood of ephemeral events kept all groups, and the list of bans, from being changed."""
    relay.store.plans.clear()
    relay.store.append_called.clear()
    relay.store.may_commit.clear()
    flood = [alice.sign(20001, [], f"{number}", NOON) for number in range(20)]
    letters = [relay.post(flood[0], connection=1)]
    await relay.store.append_called.wait()
    letters += [relay.post(event, connection=1) for event in flood[1:]]
    change, note = put(carol), article(NOON)
    letters += [relay.post(change, connection=2), relay.post(note, connection=3)]
    while relay.ingest.waiting["commit"] < 21:  # noqa: ASYNC110 -- threads verify them
        await asyncio.sleep(0.001)
    (ban,) = relay.calls(("banpubkey", bob.pubkey))
    relay.store.may_commit.set()
    assert [await letter.answer for letter in letters] == [STORED] * 22
    assert await ban == (True, "")
    assert len(relay.store.plans) == 2
    assert relay.store.plans[1].adds.keys() >= {change.id, note.id}


async def test_moves_below_groups_of_long_descriptions_share_no_commit(relay: Relay) -> None:
    """A 9002 of 300 bytes has both descriptions signed again: 73 of 37 addresses took 5 s."""
    about = ["about", "x" * 60_000]
    made = [on(owner, 9007, about, h=above) for above in ("left", "right")]
    made += [on(owner, 9007, ["parent", "left"], h=f"sub{number}") for number in range(6)]
    assert await relay.take(*made) == [STORED] * 8
    relay.store.plans.clear()
    moves = [on(owner, 9002, ["parent", "right"], h=f"sub{number}") for number in range(6)]
    letters = [relay.post(move, connection=place) for place, move in enumerate(moves)]
    assert [await letter.answer for letter in letters] == [STORED] * 6
    moved = [plan.adds.keys() & {move.id for move in moves} for plan in relay.store.plans]
    assert max(map(len, moved)) == 1


# one batch, in order -----------------------------------------------------------------------------


@pytest.mark.parametrize("origin", Origin)
async def test_an_event_over_half_of_an_outbox_is_refused(relay: Relay, origin: Origin) -> None:
    """A tag of 15 MB, of another relay, closed the connection of each reader of its kind."""
    most = 2 << 20
    event = on(owner, 9, ["x", "a" * most])
    answer = (False, f"invalid: event: has {len(event.raw)} bytes, at most {most} allowed")
    assert await relay.take(event, origin=origin) == [answer]
    assert await relay.take(on(owner, 9, ["x", "a" * (most - 500)]), origin=origin) == [STORED]


async def test_a_removed_member_writes_nothing_later_in_the_batch(relay: Relay) -> None:
    """N29-18: judged in the state after the previous event."""
    sent = [chat(alice, "a"), out(alice), chat(alice, "b"), put(alice), chat(alice, "c")]
    answers = await relay.take(*sent, logins=[alice.pubkey])
    assert answers == [STORED, STORED, NOT_A_MEMBER, DUPLICATE, NOT_A_MEMBER]
    again = on(owner, 9000, ["p", alice.pubkey, "poet"])
    assert await relay.take(chat(alice, "d"), again, chat(alice, "e")) == [
        NOT_A_MEMBER,
        STORED,
        STORED,
    ]
    assert [len(plan.adds) for plan in relay.store.plans] == [4, 5]


async def test_who_was_known_a_moment_ago_is_known_no_more(relay: Relay) -> None:
    """In the state after the previous event, outside groups too."""
    one, other = (bob.sign(1, [], text, NOON) for text in "ab")
    answers = await relay.take(one, on(owner, 9001, ["p", bob.pubkey], h="den"), other)
    assert answers[:2] == [STORED] * 2
    assert answers[2] == (False, "restricted: only people known here may write; join a group first")


async def test_a_group_lives_and_ends_within_one_batch(relay: Relay) -> None:
    made, said, ended, late = (on(owner, kind, h="yard") for kind in (9007, 9, 9008, 1))
    assert await relay.take(made, said, ended, late) == [STORED] * 3 + [NOT_A_MEMBER]
    left = [row.kind for row in await relay.log() if row.tag("h") == "yard" and row.kind < 44100]
    assert left == [9007, 9008]
    assert await rebuilt_groups(relay.store, RELAY.pubkey) == relay.state.groups


@pytest.mark.proves("G-06")
async def test_the_order_within_a_batch_does_not_choose_the_version(relay: Relay) -> None:
    """G-06, N01-48."""
    older = (False, "duplicate: a newer version is stored")
    for number, order in enumerate(permutations([NOON, NOON - 1, NOON - 2])):
        versions = [article(at, str(number)) for at in order]
        results = await relay.take(*versions)
        newest = order.index(NOON)
        assert results[newest:] == [STORED] + [older] * (2 - newest)
        left = [event for event in await relay.log() if event.d == str(number)]
        assert left == [versions[newest]]


def aman(kind: int, name: str, ts: int, at: int, **fields: object) -> Event:
    tags = [["d", f"hk1:{name}"], ["k", f"aman_{name}"], ["hk", "hk1"], ["v", "1"], ["ts", f"{ts}"]]
    return robot.sign(kind, tags, orjson.dumps({"history_key": "hk1", **fields}).decode(), at)


@pytest.mark.proves("A-06", "A-07", "G-08")
async def test_memory_versions_are_decided_by_ts_or_by_the_first(relay: Relay) -> None:
    """A-06…A-09: FIRST and LATEST-ts, texts of the contract; G-08 live."""
    prefers = [
        aman(30093, "preference", ts, at, preference="tea", updated_at=ts)
        for ts, at in [(NOON - 9, NOON), (NOON - 5, NOON - 7), (NOON - 6, NOON - 1)]
    ]
    tools = [
        aman(
            30095,
            "tool_history",
            at,
            at,
            tool_name="kettle",
            success=True,
            content="hot",
            created_at=at,
        )
        for at in (NOON - 3, NOON - 2)
    ]
    assert await relay.take(*prefers, *tools, logins=[robot.pubkey]) == [
        STORED,
        STORED,
        (False, "duplicate: a newer version is stored"),
        STORED,
        (True, "duplicate: already stored under this d"),
    ]
    assert (await relay.log())[-2:] == [prefers[1], tools[0]]
    assert relay.live.said == [*prefers[:2], tools[0]]


@pytest.mark.proves("G-12")
async def test_what_was_deleted_does_not_come_back_in_the_same_batch(relay: Relay) -> None:
    """N09-10, G-12, N29-52: by its author or by an admin."""
    mine, theirs = chat(alice, "mine"), chat(alice, "theirs")
    takes_back = alice.sign(5, [["e", mine.id]], "", NOON)
    sent = [mine, takes_back, mine, theirs, on(owner, 9005, ["e", theirs.id]), theirs]
    deleted = (False, "blocked: deleted")
    answers = await relay.take(*sent, logins=[alice.pubkey])
    assert answers == [STORED, STORED, deleted, STORED, STORED, deleted]
    rows = await relay.log()
    assert mine not in rows
    assert theirs not in rows
    assert await relay.take(mine, theirs, logins=[alice.pubkey]) == [deleted] * 2


# groups ------------------------------------------------------------------------------------------


async def test_what_the_relay_signs_rides_in_the_same_transaction(relay: Relay) -> None:
    """N29-56, N29-80…82: cause, automatic event, state; live in that order."""
    await relay.take(on(owner, 9009, ["code", "sesame-1"]))
    assert await relay.take(on(bob, 9021, ["code", "sesame-1"])) == [STORED]
    plan = relay.store.plans[-1]
    rows = [row.event for row in plan.adds.values()]
    assert [row.kind for row in rows] == [9021, 9000, 39002, 44100]
    assert [row.pubkey for row in rows] == [bob.pubkey] + [RELAY.pubkey] * 3
    assert relay.live.said[1:] == rows
    assert plan.groups["tea"] is not None
    assert bob.pubkey in plan.groups["tea"].members
    assert all(event_from(orjson.loads(row.raw)) == row for row in rows)


async def test_who_waits_for_an_admin_is_refused_and_yet_stored_once(
    relay: Relay, tmp_path: Path
) -> None:
    """N29-35, Z-01: a later request replaces an earlier one, in one batch or in two."""
    review = f'{ACTORS}[groups]\njoins = "review"\nalways = []\nnew = []\n'
    relay.state.enforce(await asyncio.to_thread(loaded, tmp_path, actors=review))
    await relay.take(on(owner, 9007, h="yard"))
    asks = [on(bob, 9021, h="yard", content=text) for text in ("may I?", "please", "pretty please")]
    pending = (False, "restricted: pending review")
    assert [*await relay.take(*asks[:2]), *await relay.take(asks[2])] == [pending] * 3
    assert [row for row in await relay.log() if row.kind == 9021] == asks[2:]
    assert [row for row in relay.live.said if row.kind == 9021] == asks[1:]


@pytest.mark.proves("N29-60")
async def test_group_state_by_another_key_is_refused(relay: Relay) -> None:
    """Whatever its `d`, whoever signed it, and whether or not they lead the group."""
    answer = (False, "restricted: kinds 39000 to 39005 are signed by the relay alone")
    before = relay.state.groups
    for kind in range(39000, 39006):
        events = [
            who.sign(kind, [["d", group], ["name", "Mine"]], "", NOON)
            for who in (owner, alice, robot)
            for group in ("tea", "nowhere")
        ]
        assert await relay.take(*events) == [answer] * len(events)
    assert relay.state.groups == before


@pytest.mark.proves("N29-60")
async def test_what_the_relay_signed_and_gets_back_is_a_duplicate(relay: Relay) -> None:
    """An event by `self` from outside is refused unless it is stored as it is."""
    (stored,) = (row for row in await relay.log() if row.kind == 39000 and row.d == "tea")
    forged = RELAY.sign(39000, [["d", "tea"], ["name", "Mine"]], "", NOON + 1)
    assert await relay.take(stored, forged) == [
        DUPLICATE,
        (False, "restricted: only people known here may write; join a group first"),
    ]
    assert relay.state.groups.by_id["tea"].metadata == ()


# what must not happen twice, and what must not fall over -----------------------------------------


@pytest.mark.proves("N01-95", "N01-96")
async def test_a_message_sent_again_later_is_a_duplicate(relay: Relay) -> None:
    """Same id already stored; N01-96: for a connection that may read it."""
    message, late = chat(alice, "tea?"), "invalid: created_at: 601 s in the past"
    await relay.take(message)
    assert await relay.take(message) == [STORED]
    relay.now += 601
    assert await relay.take(message, logins=[alice.pubkey]) == [DUPLICATE]
    for other in (message, chat(alice, "milk?")):
        ((accepted, text),) = await relay.take(other)
        assert not accepted
        assert text.startswith(late)
    await relay.take(on(owner, 9001, ["p", alice.pubkey], at=relay.now))
    assert await relay.take(message, logins=[alice.pubkey]) == [NOT_A_MEMBER]


@pytest.mark.proves("N09-15")
@pytest.mark.parametrize("kind", ["x", "-1", "²", "9" * 5000], ids=lambda kind: kind[:9])
async def test_a_deletion_of_a_kind_that_is_none_is_taken(relay: Relay, kind: str) -> None:
    """N09-15: malformed values are skipped, the rest is executed."""
    mine = article(NOON)
    request = owner.sign(5, [["k", kind], ["a", f"{kind}:x:y"], ["e", mine.id]], "", NOON)
    assert await relay.take(mine, request) == [STORED] * 2
    assert mine not in await relay.log()


async def test_what_ends_with_a_group_holds_no_address(relay: Relay) -> None:
    """N29-124: in the batch that ends it as in any later one."""
    inside = on(owner, 30023, ["d", "x"])
    await relay.take(inside)
    assert await relay.take(on(owner, 9008), article(NOON + 1)) == [STORED] * 2


@pytest.mark.proves("N01-11")
async def test_a_forged_signature_costs_the_others_nothing(relay: Relay) -> None:
    """N01-11; however many are verified together."""
    forged = orjson.loads(chat(alice, "not hers").raw) | {"sig": "0" * 128}
    many = [chat(alice, str(number)) for number in range(50)]
    results = await relay.take(*many[:25], event_from(forged), *many[25:])
    assert results.pop(25) == (False, "invalid: sig: invalid signature")
    assert results == [STORED] * 50


@pytest.mark.proves("N01-42")
async def test_what_is_ephemeral_obeys_the_rules_and_leaves_no_trace(relay: Relay) -> None:
    """N01-42, N29-17."""
    typing = on(alice, 20001)
    assert await relay.take(typing, on(bob, 20001)) == [STORED, NOT_A_MEMBER]
    assert relay.live.said == [typing]
    assert typing not in await relay.log()


# -- what would become of an event ----------------------------------------------------------------


async def test_a_dry_run_stores_and_delivers_nothing(relay: Relay) -> None:
    removal = out(alice)
    seen = await relay.ingest.dry_run(removal, Letter())
    assert seen.result is WriteOutcome.STORED
    assert seen.facts is not None
    assert Who.ADMIN in seen.facts.who
    assert [plan.is_empty() for plan in relay.store.plans] == [True]
    assert relay.live.said == []
    # She is in the group still, and the next row has the next number.
    head = await relay.store.head()
    assert await relay.take(chat(alice, "still here")) == [STORED]
    assert await relay.store.head() == head + 1


async def test_no_batch_begins_before_a_cancelled_dry_run_has_left_the_store(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's goes on, and may take over the commits of other relays: a batch that began
    meanwhile was given the new state by the dry run, which made its look-ups."""
    append, began, may_end = relay.store.append, asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def appended(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        name = "a batch" if order else "dry run"
        order.append(f"{name} begins")
        began.set()
        if name == "dry run":
            await may_end.wait()
        head = await append(lookups, decide)
        order.append(f"{name} ends")
        return head

    async def shielded(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        return await asyncio.shield(asyncio.create_task(appended(lookups, decide)))

    monkeypatch.setattr(relay.store, "append", shielded)
    asking = asyncio.create_task(relay.ingest.dry_run(out(alice), Letter()))
    await began.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert relay.ingest._changing.locked()
    may_end.set()
    assert await relay.take(chat(alice, "tea?")) == [STORED]
    assert order == ["dry run begins", "dry run ends", "a batch begins", "a batch ends"]


async def test_a_dry_run_includes_checks_before_the_signature(relay: Relay) -> None:
    ahead = on(alice, 9, content="tomorrow", at=NOON + 90_000)
    seen = await relay.ingest.dry_run(ahead, Letter())
    assert isinstance(seen.result, Reject)
    assert seen.result.rule == "[limits] created_at_upper"
    large = on(alice, 9, ["x", "a" * (2 << 20)])
    seen = await relay.ingest.dry_run(large, Letter())
    assert isinstance(seen.result, Reject)
    assert seen.result.rule == "[limits] max_message_length"
    two = alice.sign(9, [["h", "tea"], ["h", "den"]], "", NOON)
    seen = await relay.ingest.dry_run(two, Letter())
    assert seen.facts is None
    assert ok_reply(seen.result) == (False, "invalid: one h tag only")


async def test_refusals_of_every_stage_are_recorded(relay: Relay) -> None:
    forged = orjson.loads(chat(alice, "forged").raw) | {"sig": "0" * 128}
    unsigned = event_from(forged)
    ahead = on(alice, 9, at=NOON + 90_000)
    strange = dave.sign(1, [], "who am I", NOON)
    await relay.take(unsigned, ahead, strange, chat(alice, "fine"))
    refused = relay.metrics.refusals.after(0)
    assert {(each.event_id, each.rule) for each in refused} == {
        (unsigned.id, "sig"),
        (ahead.id, "[limits] created_at_upper"),
        (strange.id, "known people write"),
    }
