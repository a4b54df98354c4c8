"""The promises of `Store.committed_after`, quoted, on every store."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault, TooMuchToRead
from relay.lifecycle.rows import OwnRow, WritePlan
from tests import cast
from tests.contract.writing import NOTHING_WANTED, Batch, stored, unsigned, write

if TYPE_CHECKING:
    from relay.lifecycle.rows import Found, Lookups
    from relay.storage import Store


async def waiting(store: Store, seq: int) -> asyncio.Task[int]:
    """A task that waits already."""
    task = asyncio.create_task(store.committed_after(seq))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_it_returns_at_once_when_it_is_greater_already(store: Store) -> None:
    row = await stored(store, unsigned(cast.alice))
    task = asyncio.create_task(store.committed_after(row.seq - 1))
    await asyncio.sleep(0)
    assert task.done()
    assert task.result() == row.seq


async def test_a_task_that_waits_is_woken(store: Store) -> None:
    """Wait until `committed` is greater than `seq`; gives `committed`."""
    task = await waiting(store, 0)
    row = await stored(store, unsigned(cast.alice))
    assert await task == row.seq == store.committed()


async def test_any_number_of_tasks_may_wait(store: Store) -> None:
    tasks = [await waiting(store, 0) for _ in range(3)]
    row = await stored(store, unsigned(cast.alice))
    assert await asyncio.gather(*tasks) == [row.seq] * 3


async def test_who_was_busy_gets_the_newest(store: Store) -> None:
    """And finds by `since` all rows that were committed meanwhile."""
    rows = [await stored(store, unsigned(cast.alice, at=at)) for at in range(3)]
    assert await store.committed_after(0) == rows[-1].seq
    assert list(await store.since(0, 100)) == rows


async def test_a_commit_without_a_new_row_wakes_nobody(store: Store) -> None:
    row = await stored(store, unsigned(cast.alice))
    task = await waiting(store, row.seq)
    await store.append(NOTHING_WANTED, lambda _: WritePlan(removes={row.seq}))
    await asyncio.sleep(0)
    assert not task.done()
    later = await stored(store, unsigned(cast.alice, at=2000))
    assert await task == later.seq


async def test_one_that_is_cancelled_disturbs_no_other(store: Store) -> None:
    gone, stays = await waiting(store, 0), await waiting(store, 0)
    gone.cancel()
    row = await stored(store, unsigned(cast.alice))
    assert await stays == row.seq
    assert gone.cancelled()


async def test_no_commit_is_missed_between_two_calls(store: Store) -> None:
    """A caller that passes the seq it got misses no commit."""
    seen: list[int] = []

    async def follow() -> None:
        seq = 0
        while seq < 50:
            seq = await store.committed_after(seq)
            seen.append(seq)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        for at in range(50):
            await write(store, unsigned(cast.alice, at=at))
    assert seen == sorted(set(seen))
    assert seen[-1] == 50


async def test_rows_up_to_it_can_be_read(store: Store) -> None:
    task = await waiting(store, 0)
    row = await stored(store, unsigned(cast.alice))
    await task
    assert list(await store.stored([row.seq])) == [row]


async def test_a_commit_whose_caller_was_cancelled_is_announced_too(store: Store) -> None:
    batch, decided = Batch(unsigned(cast.alice)), threading.Event()

    def decide(found: Found) -> WritePlan:
        decided.set()
        return batch.decide(found)

    task = await waiting(store, 0)
    append = asyncio.create_task(store.append(batch.wanted, decide))
    await asyncio.sleep(0)
    await asyncio.to_thread(decided.wait)
    append.cancel()
    assert await task == 1


async def test_closing_wakes_who_waits(store: Store) -> None:
    """StoreFault when the store closes meanwhile."""
    task = await waiting(store, 0)
    await store.close()
    with pytest.raises(StoreFault):
        await task
    with pytest.raises(StoreFault):
        await store.committed_after(0)


@pytest.mark.parametrize("bound", ["most", "most_own"])
async def test_rows_that_are_larger_than_may_be_read_are_not_read(store: Store, bound: str) -> None:
    """By id and by slot; what is to be deleted has a bound of its own."""
    events = [
        unsigned(cast.alice, content="x" * 3000),
        unsigned(cast.alice, 30023, [["d", "x"]], "y" * 3000),
        unsigned(cast.bob, content="z" * 3000),
    ]
    rows = [await stored(store, each) for each in events]
    slots = frozenset([row.slot for row in rows if row.slot is not None])
    others = OwnRow(events[2].id, cast.alice.pubkey)
    wanted = (
        replace(NOTHING_WANTED, ids=frozenset({events[0].id}), slots=slots)
        if bound == "most"
        else replace(
            NOTHING_WANTED,
            own_rows=frozenset({OwnRow(events[0].id, cast.alice.pubkey), others}),
            own_slots=slots,
        )
    )
    sizes = [len(event.raw) for event in events[:2]]
    tags = 80 * sum(event.raw.count(b"[") for event in events[:2])
    seen: list[int] = []

    def decide(found: Found) -> WritePlan:
        seen.append(len({row.seq for row in (*found.rows.values(), *found.slots.values())}))
        return WritePlan()

    def bounded(most: int | None) -> Lookups:
        if bound == "most":
            return replace(wanted, most=most)
        return replace(wanted, most_own=most)

    for most in (sum(sizes) - 1, max(sizes) - 1, 0):
        with pytest.raises(TooMuchToRead) as refused:
            await store.append(bounded(most), decide)
        named = (events[0].id, rows[1].slot)
        for key, size in zip(named, sizes, strict=True):
            share, limit = refused.value.shares[key], max(most, 1)
            assert size / limit <= share <= (size + tags) / limit
    assert seen == []
    for fitting in (None, sum(sizes) + tags):
        await store.append(bounded(fitting), decide)
    assert seen == [2, 2]
    assert await store.head() == rows[-1].seq
