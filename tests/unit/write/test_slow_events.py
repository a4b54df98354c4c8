"""Events that take longer than they cost: their clients pay for the time, others do not wait."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.write import batch as batches
from relay.write.commands import Unconnected, WriteEvent
from relay.write.commit_limits import ClientLimits, Overruns
from relay.write.judge import judge
from tests.cast import alice, bob, carol, owner
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import NOON, STORED, Batches, Home, Letter, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.nostr.keys import SecretKey
    from relay.write.batch import Batch
    from relay.write.candidate import Candidate
    from relay.write.commands import LaneItem
    from relay.write.judge import Judgement
    from relay.write.world import World

SLOW_S = 0.03


class Processor:
    """Its time passes only while events of `slow` keys are judged."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slow = {alice.pubkey}

    def __call__(self) -> float:
        return self.now

    def judge(self, candidate: Candidate, world: World) -> Judgement:
        self.now += SLOW_S if candidate.event.pubkey in self.slow else 0.00005
        return judge(candidate, world)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    made = Processor()
    monkeypatch.setattr(batches, "thread_time", made)
    monkeypatch.setattr(batches, "judge", made.judge)
    return made


@pytest.fixture
async def home(processor: Processor) -> AsyncIterator[Home]:
    async with store_of("reference") as store, Home(store, policy_of("open")) as home:
        yield home


def flood(home: Home, clients: int = 60, each: int = 5) -> list[Letter]:
    """Slow events from so many addresses."""
    letters = []
    for number in range(clients * each):
        letter = home.letter_from(f"192.0.2.{number % clients}")
        letter.counted_as = f"192.0.2.{number % clients}"
        home.ingest.submit(home.made(alice, 1, content=f"{number}"), letter, Origin.WIRE)
        letters.append(letter)
    return letters


def events_in(batch: Sequence[LaneItem]) -> list[WriteEvent]:
    return [item for item in batch if isinstance(item, WriteEvent)]


def slow_in(batch: Sequence[LaneItem]) -> int:
    return sum(item.event.pubkey == alice.pubkey for item in events_in(batch))


async def test_a_batch_ends_when_its_events_took_long_enough(home: Home) -> None:
    """256 comments that each named a row of 5,000 tags sixteen times took 4.6 s."""
    watched = Batches(home.ingest)
    letters = flood(home)
    assert [await letter.answer for letter in letters] == [STORED] * len(letters)
    assert max(map(len, watched.committed)) <= 8
    assert [len(letter.answers) for letter in letters] == [1] * len(letters)
    in_order = [row.event.content for row in await home.store.since(0, 999)]
    of_one = [content for content in in_order if int(content) % 60 == 7]
    assert of_one == sorted(of_one, key=int)


async def test_a_batch_has_an_event_even_if_time_passed_before_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection of 0.1 s there left the batch empty: it failed with `error:`."""
    monkeypatch.setattr(batches, "thread_time", partial(next, count(step=1.0)))
    letters = flood(home, clients=3, each=2)
    assert [await letter.answer for letter in letters] == [STORED] * 6


async def test_after_a_slow_batch_others_wait_for_few_slow_events(home: Home) -> None:
    watched = Batches(home.ingest)
    letters = flood(home)
    waited = []
    for number in range(20):
        before = len(watched.committed)
        note = home.post(home.made(bob, 1, content=f"{number}"), connection=1)
        assert await note.answer == STORED
        waited.append(sum(map(slow_in, watched.committed[before:])))
    assert [await letter.answer for letter in letters] == [STORED] * len(letters)
    assert max(waited[2:]) <= 16, "events of 30 ms before one of 0.05 ms"


async def test_a_slow_event_costs_what_the_last_ones_of_its_client_took(home: Home) -> None:
    """So cheap events of one client come before those of another that take long."""
    for number in range(2):  # the first one is not measured
        await home.post(home.made(alice, 1, content=f"first {number}"), connection=2).answer
    watched = Batches(home.ingest)
    slow = [home.post(home.made(alice, 1, content=f"{n}"), connection=2) for n in range(40)]
    fast = [home.post(home.made(bob, 1, content=f"{n}"), connection=3) for n in range(40)]
    assert [await letter.answer for letter in slow + fast] == [STORED] * 80
    order = [item.event.pubkey for batch in watched.committed for item in events_in(batch)]
    assert order == [bob.pubkey] * 40 + [alice.pubkey] * 40


async def test_who_is_no_longer_slow_is_served_as_before(home: Home, processor: Processor) -> None:
    await home.take(*[home.made(alice, 1, content=f"first {number}") for number in range(9)])
    assert home.ingest._lane.max_batch == 16
    processor.slow = set()
    for number in range(60):
        assert await home.take(home.made(alice, 1, content=f"then {number}")) == [STORED]
    assert home.ingest._lane.max_batch == 512
    assert not home.ingest._overruns.is_measuring
    assert not home.ingest._overruns._ratios


async def test_a_batch_that_takes_as_long_as_it_costs_is_not_measured(home: Home) -> None:
    assert await home.take(*[home.made(carol, 1, content=f"{n}") for n in range(400)])
    assert home.ingest._lane.max_batch == 512


async def test_the_client_of_a_long_transaction_rests(home: Home) -> None:
    """What made it long may be a look-up or a deletion that nobody has thought of."""
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    assert await home.post(home.made(bob, 1), connection=2).answer == STORED
    home.store.append_s = 0.0
    later = home.post(home.made(bob, 1, content="later"), connection=2)
    for number in range(20):
        note = home.post(home.made(carol, 1, content=f"{number}"), connection=3)
        assert await note.answer == STORED
    assert not later.answer.done()
    home.ingest._lane.hurry()
    assert await later.answer == STORED


async def test_after_a_long_transaction_of_several_clients_batches_are_small(home: Home) -> None:
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    letters = [home.post(home.made(bob, 1, content=f"{n}"), connection=n) for n in range(40)]
    assert [await letter.answer for letter in letters] == [STORED] * 40
    home.store.append_s = 0.0
    watched = Batches(home.ingest)
    letters = [home.post(home.made(bob, 1, content=f"b{n}"), connection=n) for n in range(100)]
    assert [await letter.answer for letter in letters] == [STORED] * 100
    assert max(map(len, watched.committed)) <= 32
    for number in range(60):
        assert await home.take(home.made(bob, 1, content=f"then {number}")) == [STORED]
    assert home.ingest._lane.max_batch == 512


def alice_takes_long(home: Home) -> None:
    """A second for each transaction with an event of hers, from now on."""
    store, stored = home.store, home.ingest._stored
    assert isinstance(store, ReferenceStore)

    async def timed(items: Sequence[LaneItem]) -> Batch:
        store.append_s = 1.0 if slow_in(items) else 0.0
        return await stored(items)

    home.ingest._stored = timed  # type: ignore[method-assign]


def authors_of(batches: Sequence[Sequence[LaneItem]]) -> list[set[str]]:
    return [{item.event.pubkey for item in events_in(batch)} for batch in batches]


async def test_after_a_long_transaction_of_several_clients_the_slow_one_alone_rests(
    home: Home, processor: Processor
) -> None:
    """Supersessions from two addresses took over a second together, and nobody was charged."""
    processor.slow = set()
    alice_takes_long(home)
    watched = Batches(home.ingest)
    people = {alice: 1, bob: 2, carol: 3}

    def all_post(content: str) -> list[Letter]:
        return [
            home.post(home.made(who, 1, content=content), connection=n) for who, n in people.items()
        ]

    assert [await letter.answer for letter in all_post("together")] == [STORED] * 3
    assert [await letter.answer for letter in all_post("apart")] == [STORED] * 3
    later, *others = all_post("together again")
    assert [await letter.answer for letter in others] == [STORED] * 2
    hers, his, another = ({who.pubkey} for who in people)
    together, *apart, again = authors_of(watched.committed)
    assert together == hers | his | another
    assert sorted(apart, key=min) == sorted([hers, his, another], key=min)
    assert again == his | another
    assert not later.answer.done()
    home.ingest._lane.hurry()
    assert await later.answer == STORED


async def test_who_rested_is_apart_until_it_is_quick(home: Home, processor: Processor) -> None:
    processor.slow = set()
    alice_takes_long(home)
    home.ingest.hurry()  # no rest: what comes after it
    watched = Batches(home.ingest)
    assert await home.post(home.made(alice, 1), connection=1).answer == STORED
    for content in "ab":
        both = [
            home.post(home.made(who, 1, content=content), connection=n)
            for who, n in ((bob, 2), (alice, 1))
        ]
        assert [await letter.answer for letter in both] == [STORED] * 2
    assert all(len(authors) == 1 for authors in authors_of(watched.committed))


def sent_by(client: int, who: SecretKey = alice, *, is_owner: bool = False) -> WriteEvent:
    author = Unconnected(connection=client, is_owner=is_owner)
    return WriteEvent(who.sign(1, [], "", NOON), 1, 1, author, Origin.WIRE)


def test_who_shares_a_second_long_transaction_soon_stays_apart_as_long_as_a_rest() -> None:
    """Two addresses that sent one quick event after each slow one together would never rest."""
    limits, sent = ClientLimits(), [sent_by(1)]

    def is_apart_after_a_quick_commit(now: float) -> bool:
        limit = limits.take(1)
        limit.succeeded(now)
        limits.set(1, limit)
        return 1 in limits.apart(sent)[1]

    limits.time_apart([1], 0.0, 6.0)
    assert not is_apart_after_a_quick_commit(0.1)
    limits.time_apart([1], 2.0, 6.0)
    assert all(is_apart_after_a_quick_commit(7.9) for _ in range(20))
    assert not is_apart_after_a_quick_commit(8.1)
    limits.time_apart([1], 100.0, 6.0)
    assert not is_apart_after_a_quick_commit(100.1)


def test_several_slow_clients_hold_the_lane_for_a_quarter_of_the_time() -> None:
    overruns, now, held = Overruns(), 0.0, 0.0
    rested_at = dict.fromkeys(range(12), 0.0)
    while now < 1000:
        client = min(rested_at, key=rested_at.__getitem__)
        now = max(now, rested_at[client]) + 1.5
        held += 1.5
        rests = overruns.long_transaction([sent_by(client)], 1.5, now)
        rested_at[client] = now + rests[client]
    assert held / now < 0.27


def test_owners_neither_rest_nor_wait_for_one_client_after_the_other() -> None:
    overruns = Overruns()
    alone, other = sent_by(1, owner, is_owner=True), sent_by(2)
    assert overruns.long_transaction([alone], 1.5, 0.0) == {}
    assert overruns.long_transaction([alone, other], 1.5, 0.0) == {2: 0.0}


def test_who_sends_what_an_owner_signed_rests() -> None:
    """With a copy of an owner's event in each batch a client would never have rested."""
    overruns = Overruns()
    copy, slow = sent_by(1, owner), sent_by(1)
    assert overruns.long_transaction([copy, slow], 1.5, 0.0) == {1: 6.0}
    assert overruns.long_transaction([copy, slow, sent_by(2)], 1.5, 10.0) == {1: 0.0, 2: 0.0}
