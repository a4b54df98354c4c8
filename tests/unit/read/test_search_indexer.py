"""relay/read/search_indexer.py: it follows the store, is rebuilt, and pauses during writes."""

from __future__ import annotations

import asyncio
from copy import copy
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.read.search_indexer import SearchIndexer, rules_for, text_by
from tests.cast import alice
from tests.contract.writing import EVERYTHING, unsigned
from tests.harness.folders import loaded
from tests.harness.patience import ANSWER_S
from tests.harness.read_side import ReadSide

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from policies import PolicySet
    from relay.nostr.event import Event

    TextOf = Callable[[Event], str | None]

TERMS = FilterTerms(search=True)


class IndexSide(ReadSide):
    def __init__(self, policy: PolicySet) -> None:
        super().__init__(policy)
        self.follower = self.another()

    def another(
        self, timeout_s: float = 5.0, loop_s: Callable[[], float] = lambda: 0.0
    ) -> SearchIndexer:
        return SearchIndexer(self.store, self.state, loop_s=loop_s, timeout_s=timeout_s)

    async def write_texts(self, *texts: str, kind: int = 1) -> None:
        await self.write(*[unsigned(alice, kind, content=text) for text in texts])

    async def found(self, query: str) -> int:
        filter_ = filter_from({"search": query}, TERMS)
        return await self.store.count([filter_], EVERYTHING, now=0)


@pytest.fixture
def relay(policy: PolicySet) -> IndexSide:
    return IndexSide(policy)


@pytest.mark.slow
async def test_stored_and_new_rows_are_indexed(relay: IndexSide) -> None:
    await relay.write_texts(*[f"tea {n}" for n in range(600)])
    async with relay.follower:
        assert await relay.follower.reached(600)
        assert await relay.found("tea") == 600
        await relay.write_texts("more tea")
        assert await relay.follower.reached(601)
        assert await relay.found("tea") == 601


async def test_waiting_for_the_index_times_out(relay: IndexSide) -> None:
    await relay.write_texts("tea")
    follower = relay.another(timeout_s=0.01)
    relay.store.may_index.clear()
    async with follower:
        assert not await follower.reached(1)
        relay.store.may_index.set()
    assert not await follower.reached(2)


async def test_nothing_is_indexed_while_the_disk_is_nearly_full(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index took what was left for owners, and then they could not even delete."""
    monkeypatch.setattr("relay.read.search_indexer._RETRY_S", 0.01)
    relay.store.has_little_space = True
    await relay.write_texts("tea")
    async with relay.another(timeout_s=0.1) as follower:
        assert not await follower.reached(1)
        assert (relay.store.index_calls, relay.store.tidy_called.is_set()) == (0, False)
        relay.store.has_little_space = False
        async with asyncio.timeout(ANSWER_S):
            while not await follower.reached(1):
                pass


async def test_indexing_continues_after_a_fault(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._RETRY_S", 0.0)
    relay.store.index_failures = 2
    await relay.write_texts("tea")
    async with relay.follower:
        assert await relay.follower.reached(1)
    assert relay.store.index_calls == 3


async def test_a_search_waits_for_no_tidying(relay: IndexSide) -> None:
    relay.store.may_tidy.clear()
    await relay.write_texts("tea")
    async with relay.another(timeout_s=ANSWER_S) as follower, asyncio.timeout(ANSWER_S / 2):
        await relay.store.tidy_called.wait()
        for number in (2, 3):
            await relay.write_texts(f"tea {number}")
            assert await follower.reached(number)
            assert await relay.found("tea") == number


async def test_tidying_goes_on_after_a_fault(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._RETRY_S", 0.0)
    tidied = asyncio.Event()
    calls = count(1)

    async def tidy() -> bool:
        if next(calls) == 1:
            raise StoreFault("no space left")
        tidied.set()
        return False

    monkeypatch.setattr(relay.store, "tidy_index", tidy)
    async with relay.follower, asyncio.timeout(ANSWER_S):
        await tidied.wait()


async def test_a_policy_change_rebuilds_the_index(
    relay: IndexSide, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._IDLE_S", 0.01)
    await relay.write_texts("tea note")
    await relay.write_texts("tea thread", kind=11)
    async with relay.follower:
        assert await relay.follower.reached(2)
        assert await relay.found("tea") == 2
        everything = relay.state.policy
        folder = tmp_path_factory.mktemp("less")
        relay.state.enforce(loaded(folder, search="[search]\nkinds = [11]"))
        assert await relay.follower.reached(2)
        assert await relay.found("tea") == 1
        relay.state.enforce(everything)
        assert await relay.follower.reached(2)
        assert await relay.found("tea") == 2


async def test_indexing_pauses_during_writes_unless_a_search_waits(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rest lasts for ever here: only a search ends it."""
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 1e12)
    await relay.write_texts(*[f"tea {n}" for n in range(400)])
    relay.store.may_index.clear()
    async with relay.follower:
        await asyncio.sleep(0)
        await relay.write_texts(*[f"tea {n}" for n in range(400, 600)])
        relay.store.may_index.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert relay.store.index_calls == 1
        assert await relay.follower.reached(600)
        assert relay.store.index_calls == 5, "a small batch, memory, then large ones"


async def test_a_pause_between_two_commits_is_not_the_end_of_writes(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a batch is indexed between two commits."""
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 1e12)
    monkeypatch.setattr("relay.read.search_indexer._WRITING_S", 3600.0)
    await relay.write_texts(*[f"tea {n}" for n in range(100)])
    async with relay.follower:
        for _ in range(20):
            await asyncio.sleep(0)
        assert relay.store.index_calls == 1
        assert await relay.follower.reached(100)


async def test_rows_are_gathered_while_there_are_writes(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._GATHER_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 0)
    await relay.write_texts("tea")
    async with relay.follower:
        for number in range(20):
            await relay.write_texts(f"tea {number}")
            await asyncio.sleep(0)
        assert relay.store.index_calls == 1
        assert await relay.follower.reached(21)
        assert relay.store.index_calls == 2


async def test_a_search_that_came_during_a_batch_waits_for_no_pause(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 1e12)
    await relay.write_texts(*[f"tea {n}" for n in range(60)])
    relay.store.may_index.clear()
    async with relay.follower:
        await asyncio.sleep(0)
        search = asyncio.create_task(relay.follower.reached(60))
        await asyncio.sleep(0)
        relay.store.may_index.set()
        assert await search


async def test_indexing_gives_way_to_a_busy_loop_unless_a_search_waits(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rest lasts for ever here: only a search ends it. The loop has worked for years."""
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 1e12)
    monkeypatch.setattr("relay.read.search_indexer._WRITING_S", 0.0)
    worked = count(10**9, 10**9)
    follower = relay.another(loop_s=lambda: float(next(worked)))
    await relay.write_texts(*[f"tea {n}" for n in range(600)])
    async with follower:
        for _ in range(20):
            await asyncio.sleep(0)
        assert relay.store.index_calls == 1
        assert await follower.reached(600)


async def test_indexing_takes_half_of_the_time_of_a_busy_loop_while_searches_wait(
    relay: IndexSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search of a client without a key each 2 s kept a backlog of notes at the full work of a
    thread, and members waited for 3 s."""
    worked, sizes, naps = count(10**9, 10**9), list[int](), list[float]()
    follower = relay.another(loop_s=lambda: float(next(worked)))
    index, sleep = relay.store.index, asyncio.sleep

    async def slow(text_of: TextOf, rules: str, limit: int, *kinds: Set[int]) -> int:
        sizes.append(limit)
        await sleep(0.002)
        return await index(text_of, rules, limit, *kinds)

    async def noted(seconds: float) -> None:
        naps.append(seconds)
        await sleep(0)

    await relay.write_texts(*[f"tea {n}" for n in range(600)])
    monkeypatch.setattr(relay.store, "index", slow)
    monkeypatch.setattr("relay.read.search_indexer.asyncio.sleep", noted)
    async with follower:
        assert await follower.reached(600)
    assert len(sizes) >= 12
    assert max(sizes) <= 50
    assert len([nap for nap in naps if 0.002 <= nap < 1.0]) >= 11


def searching(policy: PolicySet, *kinds: int | tuple[int, int]) -> PolicySet:
    """This policy with other searchable kinds."""
    changed = copy(policy)
    changed.searched = KindSet.of(*kinds)
    return changed


def test_index_rules_differ_between_policies(policy: PolicySet) -> None:
    def rules(*kinds: int | tuple[int, int]) -> str:
        return rules_for(searching(policy, *kinds))

    assert rules(1) != rules(1, (9, 12))
    assert rules(1, 2) == rules((1, 2))


def test_only_searchable_kinds_have_a_text(policy: PolicySet) -> None:
    text_of = text_by(searching(policy, (9, 12)))
    assert text_of(unsigned(alice, 11, content="tea")) is not None
    assert text_of(unsigned(alice, 1, content="tea")) is None
