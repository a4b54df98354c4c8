"""relay/storage/sqlite/connections.py: one query at a time, and pauses between them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from relay.errors import StoreFault
from relay.storage.sqlite.connections import AsyncReader
from relay.storage.sqlite.sql.filters import Query
from tests.harness.patience import ANSWER_S


class SlowQueries:
    """Each `SELECT run(n)` waits until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.reader = AsyncReader(self._connect)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.create_function("run", 1, self._run)
        return db

    def _run(self, number: int) -> int:
        self.began.release()
        assert self.let_go.acquire(timeout=ANSWER_S)
        return number

    async def ask(self, number: int, done: list[str]) -> None:
        ((answer,),) = await self.reader.rows(Query("SELECT run(?)", (number,)))
        done.append(f"query {answer}")


async def test_a_pause_waits_for_the_running_query_and_not_for_those_that_wait() -> None:
    slow, done = SlowQueries(), list[str]()
    async with slow.reader, asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(slow.ask(number, done))
        assert await asyncio.to_thread(slow.began.acquire, timeout=ANSWER_S)

        async def pause() -> None:
            async with slow.reader.paused():
                done.append("pause")
                await asyncio.sleep(0)
                assert not slow.began.acquire(blocking=False)

        pausing = tasks.create_task(pause())
        await asyncio.sleep(0)
        slow.let_go.release(5)
        await pausing
    assert done == ["query 0", "pause", *(f"query {number}" for number in range(1, 5))]


async def test_a_query_that_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    slow, done = SlowQueries(), list[str]()
    async with slow.reader:
        async with slow.reader.paused():
            waiting = asyncio.create_task(slow.ask(1, done))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        slow.let_go.release()
        await slow.ask(2, done)
    assert done == ["query 2"]
    with pytest.raises(StoreFault, match="closed"):
        await slow.ask(3, done)
