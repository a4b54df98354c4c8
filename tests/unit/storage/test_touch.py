"""relay/storage/postgres/listening.py: how long readers wait for the commits of other relays."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from relay.errors import StoreFault
from relay.storage.postgres import listening
from relay.storage.postgres.listening import Touch


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(listening, "monotonic", clock)
    return clock


@pytest.fixture
def touch(clock: Clock) -> Touch:
    """What was known with certainty is three seconds old."""
    touch = Touch()
    touch.begin(clock.now)
    clock.now += 3
    return touch


async def waiting(touch: Touch) -> asyncio.Task[None]:
    reading = asyncio.create_task(touch.current())
    await asyncio.sleep(0)
    return reading


async def test_readers_have_two_seconds_from_the_end_of_a_catch_up(
    touch: Touch, clock: Clock
) -> None:
    with touch.catching_up():
        asked_at = clock.now
        reading = await waiting(touch)
        clock.now += 50
    touch.confirm(asked_at)
    await asyncio.sleep(0)
    clock.now += 1.9
    touch.confirm(clock.now)
    await reading


@pytest.mark.parametrize(("catches_up", "waits_s"), [(False, 2.0), (True, 62.0)])
async def test_readers_do_not_wait_for_ever(
    touch: Touch, clock: Clock, *, catches_up: bool, waits_s: float
) -> None:
    with touch.catching_up() if catches_up else nullcontext():
        reading = await waiting(touch)
        clock.now += waits_s - 0.1
        touch.confirm(0.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not reading.done()
        clock.now += 0.2
        touch.confirm(0.0)
        with pytest.raises(StoreFault):
            await reading


async def test_readers_do_not_wait_for_a_database_that_is_lost(touch: Touch) -> None:
    with touch.catching_up():
        reading = await waiting(touch)
        touch.is_lost = True
        touch.confirm(0.0)
        with pytest.raises(StoreFault):
            await reading
