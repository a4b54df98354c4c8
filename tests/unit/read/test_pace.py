"""What a query works on the loop counts for its connection, in full and at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from relay.read.pace import Pace
from tests.harness.client_in_memory import Client

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Loop:
    """A clock of the loop's work, and what one client was charged for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.charged: list[float] = []
        self.client = Client()
        monkeypatch.setattr("relay.read.pace.thread_time", lambda: self.now)
        monkeypatch.setattr(self.client, "worked", self._worked)

    def _worked(self, seconds: float) -> bool:
        self.charged.append(seconds)
        return False


async def through(pace: Pace, work: Coroutine[Any, Any, T]) -> T:
    return await pace.through(work)


async def test_what_is_done_before_a_wait_counts_when_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have turns meanwhile: they would take uncounted work for that of nobody."""
    loop, ready = Loop(monkeypatch), asyncio.Event()

    async def read() -> str:
        loop.now += 0.2
        await ready.wait()
        loop.now += 0.1
        return "rows"

    pace = Pace(loop.client)
    reading = asyncio.create_task(through(pace, read()))
    await asyncio.sleep(0)
    assert loop.charged == [pytest.approx(0.2)]
    loop.now += 5  # others work
    ready.set()
    assert await reading == "rows"
    pace.stop()
    assert loop.charged == [pytest.approx(0.2), pytest.approx(0.1)]


async def test_work_that_waits_for_nothing_counts_at_the_next_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As measured work: what a turn is expected to take is another matter."""
    loop, turns = Loop(monkeypatch), list[float]()

    async def turn(seconds: float) -> None:
        turns.append(seconds)

    async def read() -> None:
        loop.now += 0.3

    monkeypatch.setattr(loop.client, "turn", turn)
    pace = Pace(loop.client)
    for _ in range(2):
        await pace.through(read())
        await pace.rest()
    await pace.rest()
    assert loop.charged == [pytest.approx(0.3)] * 2
    assert turns == [0.0, 0.0]


async def test_a_cancellation_and_an_error_reach_the_work_and_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, ended = Loop(monkeypatch), list[str]()

    async def read(error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    pace = Pace(loop.client)
    with pytest.raises(ValueError, match="damaged"):
        await pace.through(read(ValueError("damaged")))
    reading = asyncio.create_task(through(pace, read(None)))
    await asyncio.sleep(0)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    assert reading.cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await pace.through(read(None))
    assert ended == ["ended"] * 3


class Rows(bytearray):
    pass


async def test_what_a_cancelled_query_held_is_freed_at_once() -> None:
    """Filters make the garbage collector run rarely: each query that ended kept 1 MB until then."""
    held: list[weakref.ref[Rows]] = []

    async def read() -> None:
        rows = Rows(100)
        held.append(weakref.ref(rows))
        await asyncio.Event().wait()
        del rows

    gc.disable()
    try:
        reading = asyncio.create_task(through(Pace(Client()), read()))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        del reading
        await asyncio.sleep(0)
        assert [ref() for ref in held] == [None]
    finally:
        gc.enable()
