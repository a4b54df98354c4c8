"""Reads between a commit and the groups that follow from it: the store has the rows already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from relay.observe import Metrics
from relay.read.negentropy import Negentropy
from relay.read.query import QueryRunner
from relay.read.query_queue import QueryQueue
from tests.cast import alice, bob
from tests.contract.writing import asked
from tests.harness.client_in_memory import Client
from tests.harness.read_side import Limits
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import STORED, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class LateStore(ReferenceStore):
    """Its thread has committed, and the loop does not know yet."""

    def __init__(self) -> None:
        super().__init__()
        self.may_return = asyncio.Event()
        self.may_return.set()
        self.has_committed = asyncio.Event()

    async def append(self, *given: Any) -> int:
        head = await super().append(*given)
        self.has_committed.set()
        await self.may_return.wait()
        return head


class Late:
    """A public group that becomes private, and a post in the same commit."""

    def __init__(self, home: Home, store: LateStore) -> None:
        self.home, self.store, self.limits = home, store, Limits()
        self.queries = QueryRunner(
            store, home.state, home.live, self.limits, clock=lambda: home.now, metrics=Metrics()
        )

    async def commits(self) -> asyncio.Task[Any]:
        home = self.home
        await home.do(alice, 9007, h="den")
        self.store.has_committed.clear()
        self.store.may_return.clear()
        changed = home.made(alice, 9002, ["private"], h="den")
        said = home.made(alice, 9, h="den", content="psst")
        taking = asyncio.create_task(home.take(changed, said))
        await self.store.has_committed.wait()
        return taking

    async def returns(self, taking: asyncio.Task[Any]) -> None:
        self.store.may_return.set()
        assert await taking == [STORED, STORED]
        for _ in range(9):
            await asyncio.sleep(0)


@pytest.fixture
async def late() -> AsyncIterator[Late]:
    store = LateStore()
    async with Home(store, policy_of("open")) as home:
        yield Late(home, store)


@pytest.mark.proves("N29-94")
async def test_rows_are_read_by_the_rights_that_came_with_them(late: Late) -> None:
    taking = await late.commits()
    others, members = Client(bob), Client(alice)
    for client in (others, members):
        QueryQueue(late.queries, client).subscribe("s", (asked(kinds=[9]),))
    await late.returns(taking)
    assert others.stream() == ["<EOSE>"]
    assert members.stream() == ["psst", "<EOSE>"]


async def test_a_count_waits_for_the_rights_too(late: Late) -> None:
    taking = await late.commits()
    client = Client(bob)
    QueryQueue(late.queries, client).count("c", (asked(kinds=[9]),))
    await asyncio.sleep(0)
    await late.returns(taking)
    client.outbox.flush()
    assert client.received == [["COUNT", "c", {"count": 0}]]


async def test_so_does_a_negentropy_set(late: Late) -> None:
    unused: Any = None
    sets = Negentropy(
        late.store, late.home.state, late.limits, clock=lambda: late.home.now, workers=unused
    )
    taking = await late.commits()
    asking = asyncio.create_task(sets.snapshot(Client(bob), asked(kinds=[9])))
    await asyncio.sleep(0)
    await late.returns(taking)
    assert len((await asking).items) == 0
