"""relay/read/search_indexer.py: it keeps up, it begins anew, it lets writers go first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from policies import load
from relay.errors import StoreFault
from relay.groups.group import Groups
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.kinds import KindSet
from relay.read.search_indexer import SearchIndexer, rules_for, text_by
from relay.state import RelayState
from tests.cast import alice
from tests.contract.writing import EVERYTHING, unsigned, write
from tests.harness.reference_store import ReferenceStore
from tests.unit.policies.folders import loaded

if TYPE_CHECKING:
    from pathlib import Path

TERMS = FilterTerms(search=True)


class Shelf(ReferenceStore):
    """The reference store; the test sees and stops each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.fails = 0
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def index(self, *given: Any) -> int:
        await self.may_go.wait()
        self.steps += 1
        if self.fails:
            self.fails -= 1
            raise StoreFault("no space left")
        return await super().index(*given)

    async def found(self, query: str) -> int:
        filter_ = filter_from({"search": query}, TERMS)
        return await self.count([filter_], EVERYTHING, now=0)


class House:
    def __init__(self, folder: Path) -> None:
        self.store = Shelf()
        self.state = RelayState(load(folder), Groups())
        self.follower = self.another()

    def another(self, timeout_s: float = 5.0) -> SearchIndexer:
        return SearchIndexer(self.store, self.state, clock=lambda: 0, timeout_s=timeout_s)

    async def writes(self, *texts: str, kind: int = 1) -> None:
        await write(self.store, *[unsigned(alice, kind, content=text) for text in texts])


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_it_indexes_what_is_there_and_what_comes(house: House) -> None:
    await house.writes(*[f"tea {n}" for n in range(600)])
    async with house.follower:
        assert await house.follower.reached(600)
        assert await house.store.found("tea") == 600
        await house.writes("more tea")
        assert await house.follower.reached(601)
        assert await house.store.found("tea") == 601


async def test_waiting_has_an_end(house: House) -> None:
    await house.writes("tea")
    follower = house.another(timeout_s=0.01)
    house.store.may_go.clear()
    async with follower:
        assert not await follower.reached(1)
        house.store.may_go.set()
    assert not await follower.reached(2)


async def test_after_a_fault_it_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.read.search_indexer._RETRY_S", 0.0)
    house.store.fails = 2
    await house.writes("tea")
    async with house.follower:
        assert await house.follower.reached(1)
    assert house.store.steps == 3


async def test_what_the_policy_leaves_out_is_hidden_and_comes_back(
    house: House, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.search_indexer._IDLE_S", 0.01)
    await house.writes("tea note")
    await house.writes("tea thread", kind=11)
    async with house.follower:
        assert await house.follower.reached(2)
        assert await house.store.found("tea") == 2
        everything = house.state.policy
        folder = tmp_path_factory.mktemp("less")
        house.state.enforce(loaded(folder, search="[search]\nkinds = [11]"))
        assert await house.follower.reached(2)
        assert await house.store.found("tea") == 1
        house.state.enforce(everything)
        assert await house.follower.reached(2)
        assert await house.store.found("tea") == 2


async def test_it_rests_while_others_write_unless_somebody_searches(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rest lasts for ever here: only a search ends it."""
    monkeypatch.setattr("relay.read.search_indexer._MAX_PAUSE_S", 3600.0)
    monkeypatch.setattr("relay.read.search_indexer._PAUSE_RATIO", 1e12)
    await house.writes(*[f"tea {n}" for n in range(400)])
    house.store.may_go.clear()
    async with house.follower:
        await asyncio.sleep(0)
        await house.writes(*[f"tea {n}" for n in range(400, 600)])
        house.store.may_go.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert house.store.steps == 1
        assert await house.follower.reached(600)
        assert house.store.steps == 3


def test_rules_tell_policies_apart() -> None:
    assert rules_for(KindSet.of(1)) != rules_for(KindSet.of(1, (9, 12)))
    assert rules_for(KindSet.of(1, 2)) == rules_for(KindSet.of((1, 2)))


def test_only_kinds_that_may_be_found_have_a_text() -> None:
    text_of = text_by(KindSet.of((9, 12)))
    assert text_of(unsigned(alice, 11, content="tea")) is not None
    assert text_of(unsigned(alice, 1, content="tea")) is None
