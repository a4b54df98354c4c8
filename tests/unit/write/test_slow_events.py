"""Events that take longer than they cost: their clients pay for the time, others do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.write import batch as batches
from relay.write.commands import WriteEvent
from relay.write.judge import judge
from tests.cast import alice, bob, carol
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import STORED, Batches, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.write.candidate import Candidate
    from relay.write.commands import LaneItem
    from relay.write.judge import Judgement
    from relay.write.world import World
    from tests.harness.relay_in_process import Letter

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
