"""The promises of `relay.bus`, quoted, on every bus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.contract.writing import stored, unsigned

if TYPE_CHECKING:
    from relay.bus import Announcements, Bus
    from relay.storage import Store


async def rest_of(heard: Announcements) -> list[int]:
    return [seq async for seq in heard]


async def test_a_follower_hears_what_is_announced(bus: Bus) -> None:
    """Hears what is announced from this call on, also before it first waits."""
    heard = bus.announcements()
    for seq in (1, 2, 7):
        bus.announce(seq)
        assert await anext(heard) == seq


async def test_every_follower_hears_the_ring(bus: Bus) -> None:
    """A doorbell between all that follow one store."""
    followers = [bus.announcements() for _ in range(3)]
    bus.announce(4)
    assert [await anext(heard) for heard in followers] == [4, 4, 4]


async def test_a_follower_that_waits_is_woken(bus: Bus) -> None:
    """The newest seq announced and not yet heard; waits for one."""
    heard = bus.announcements()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(heard))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert not waiting.done()
        bus.announce(3)
    assert waiting.result() == 3


async def test_rings_before_the_follower_came_are_not_heard(bus: Bus) -> None:
    """Hears what is announced from this call on."""
    bus.announce(5)
    heard = bus.announcements()
    await bus.close()
    assert await rest_of(heard) == []


async def test_a_busy_follower_hears_only_the_newest(bus: Bus) -> None:
    """One number waits for it, however many were announced."""
    heard = bus.announcements()
    for seq in range(1, 10_001):
        bus.announce(seq)
    await bus.close()
    assert await rest_of(heard) == [10_000]


async def test_what_is_heard_only_ever_grows(bus: Bus) -> None:
    """Strictly ascending."""
    heard = bus.announcements()
    bus.announce(5)
    assert await anext(heard) == 5
    for seq in (3, 5, 6):
        bus.announce(seq)
    await bus.close()
    assert await rest_of(heard) == [6]


async def test_nobody_listening_is_no_fault(bus: Bus) -> None:
    """Never waits and never fails: a missing follower is not the writer's concern."""
    bus.announce(1)


async def test_a_follower_that_was_cancelled_can_wait_again(bus: Bus) -> None:
    """A gone follower is not the writer's concern; a wait that was given up loses no ring."""
    heard = bus.announcements()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(heard)
    bus.announce(2)
    assert await anext(heard) == 2


async def test_close_ends_the_iteration_after_what_was_announced(bus: Bus) -> None:
    """Ends when the bus is closed, after what was announced before."""
    heard = bus.announcements()
    bus.announce(9)
    await bus.close()
    assert await rest_of(heard) == [9]


async def test_close_wakes_who_waits(bus: Bus) -> None:
    """End every follower's iteration."""
    heard = bus.announcements()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rest_of(heard))
        await asyncio.sleep(0)
        await bus.close()
    assert waiting.result() == []


async def test_a_closed_bus_is_silent(bus: Bus) -> None:
    """After `close` it does nothing. A second call does nothing."""
    before = bus.announcements()
    await bus.close()
    await bus.close()
    bus.announce(1)
    assert await rest_of(before) == []
    assert await rest_of(bus.announcements()) == []


async def test_one_follower_may_leave(bus: Bus) -> None:
    """Hear no more; the bus forgets this follower."""
    leaves, stays = bus.announcements(), bus.announcements()
    bus.announce(1)
    await leaves.aclose()
    bus.announce(2)
    assert await rest_of(leaves) == [1]
    assert await anext(stays) == 2


async def test_a_missed_ring_heals_by_since(bus: Bus, store: Store) -> None:
    """Who wakes up asks `Store.since(seq)` and finds all that it missed."""
    heard = bus.announcements()
    rows = []
    for at in range(3):
        row = await stored(store, unsigned(cast.alice, at=at))
        rows.append(row)
        if at != 1:  # a ring that is lost on its way
            bus.announce(row.seq)
    assert await anext(heard) == rows[-1].seq
    assert list(await store.since(0, 100)) == rows
