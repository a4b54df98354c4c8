"""relay/storage/sqlite/readers.py: one query at a time, and pauses between them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import StoreFault
from relay.storage.sqlite import readers
from relay.storage.sqlite.readers import AsyncReader, BulkReader, Pauses
from relay.storage.sqlite.sql.conditions import Query
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from pathlib import Path


class SlowQueries:
    """Each `SELECT run(n)` waits until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.reader = AsyncReader(self._connect)
        self.db = sqlite3.connect(":memory:", check_same_thread=False)

    def _connect(self) -> sqlite3.Connection:
        self.db.create_function("run", 1, self._run)
        return self.db

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


async def test_reads_that_wait_for_one_pause_count_its_time_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of connections whose reads take turns: what a read costs has no time of pauses in it."""
    now = 100.0
    monkeypatch.setattr(readers, "monotonic", lambda: now)
    reader = readers.TurnReader(lambda: sqlite3.connect(":memory:"), number=2)
    first, second = reader.connections
    async with first, second, asyncio.TaskGroup() as tasks:
        began = reader.unpaused_s()
        async with first.paused(), second.paused():
            tasks.create_task(second.rows(Query("SELECT 1", ())))
            await asyncio.sleep(0)
            now += 2.0
            tasks.create_task(first.rows(Query("SELECT 1", ())))
            await asyncio.sleep(0)
            now += 3.0
            assert reader.unpaused_s() == began
    assert reader.unpaused_s() == began
    now += 1.0
    assert reader.unpaused_s() == began + 1.0


async def test_readers_that_are_free_go_on_until_the_busy_one_is_paused() -> None:
    """Each truncation of the WAL held all readers for as long as one COUNT took."""
    free, slow, done = SlowQueries(), SlowQueries(), list[str]()
    async with free.reader, slow.reader, asyncio.TaskGroup() as tasks:
        tasks.create_task(slow.ask(1, done))
        assert await asyncio.to_thread(slow.began.acquire, timeout=ANSWER_S)

        async def pause() -> None:
            async with Pauses().of((free.reader, slow.reader)) as since:
                assert since >= freed_at
                assert free.reader.is_busy
                assert slow.reader.is_busy
                done.append("pause")

        pausing = tasks.create_task(pause())
        await asyncio.sleep(0)
        free.let_go.release()
        await free.ask(2, done)
        freed_at = monotonic()
        slow.let_go.release()
        await pausing
    assert done == ["query 2", "query 1", "pause"]


async def test_readers_that_are_paused_and_that_nobody_asks_have_kept_nobody_waiting() -> None:
    """A long query of another was taken for a hold, and truncations rest four times as long."""
    idle, slow, done = SlowQueries(), SlowQueries(), list[str]()
    async with idle.reader, slow.reader, asyncio.TaskGroup() as tasks:
        for asked_for in (False, True, False):
            tasks.create_task(slow.ask(1, done))
            assert await asyncio.to_thread(slow.began.acquire, timeout=ANSWER_S)

            async def pause() -> float:
                async with Pauses().of((idle.reader,), (slow.reader,)) as since:
                    return since

            pausing = tasks.create_task(pause())
            await eventually("one is paused", lambda: idle.reader.is_busy)
            if asked_for:
                idle.let_go.release()
                tasks.create_task(idle.ask(2, done))
                await eventually("a query waits", lambda: idle.reader.waiting_since < inf)
            ended = monotonic()
            slow.let_go.release()
            since = await pausing
            assert (since <= ended) is asked_for


async def test_a_reader_to_which_long_queries_move_is_paused_before_a_busy_one() -> None:
    """A long query moved there, and was waited for while its former reader was paused."""
    busy, long, done = SlowQueries(), SlowQueries(), list[str]()
    async with busy.reader, long.reader, asyncio.TaskGroup() as tasks:
        tasks.create_task(busy.ask(1, done))
        assert await asyncio.to_thread(busy.began.acquire, timeout=ANSWER_S)

        async def pause() -> None:
            async with Pauses().of((long.reader,), (busy.reader,)):
                done.append("pause")

        pausing = tasks.create_task(pause())
        while not long.reader.is_busy:  # noqa: ASYNC110 -- it tells nobody
            await asyncio.sleep(0)
        moved = tasks.create_task(long.ask(2, done))
        await asyncio.sleep(0)
        busy.let_go.release()
        await pausing
        long.let_go.release()
        await moved
    assert done == ["query 1", "pause", "query 2"]


_NUMBERS = """
    WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < ?)
    SELECT i FROM n ORDER BY -i
"""
_ENDLESS = 1 << 40


@pytest.mark.parametrize("numbers", [1_000_000, _ENDLESS])
async def test_who_leaves_a_bulk_read_leaves_no_snapshot_behind(
    tmp_path: Path, numbers: int
) -> None:
    """The statement stayed open: nothing could be erased, and the next read missed new rows."""
    began = threading.Event()

    def begin(x: int) -> int:
        began.set()
        return x

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(tmp_path / "db", check_same_thread=False)
        db.create_function("begin", 1, begin)
        return db

    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as writer:
        writer.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE t(x); INSERT INTO t VALUES(0)"
        )
        async with BulkReader(connect) as reader:
            query = Query(_NUMBERS.format(first="begin(x) FROM t"), (numbers,))
            read = asyncio.create_task(reader.chunks(query, lambda _: None))
            assert await asyncio.to_thread(began.wait, ANSWER_S)
            read.cancel()
            await asyncio.wait([read])
            writer.execute("INSERT INTO t VALUES (1)")
            async with asyncio.timeout(ANSWER_S), reader.paused():
                ((busy, *_),) = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert not busy
            assert await reader.rows(Query("SELECT count(*) FROM t", ())) == [(2,)]


async def test_a_bulk_read_that_fails_between_two_chunks_is_closed() -> None:
    """It was open as long as somebody had the error, and interrupted all that followed."""
    taken = list[list[Any]]()

    def take(rows: list[Any]) -> None:
        taken.append(rows)
        raise StoreFault("enough")

    async with BulkReader(partial(sqlite3.connect, ":memory:", check_same_thread=False)) as reader:
        query = Query(_NUMBERS.format(first="1"), (100_000,))
        with pytest.raises(StoreFault, match="enough") as kept:
            await reader.chunks(query, take)
        assert await reader.rows(Query("SELECT 1", ())) == [(1,)]
        assert len(taken) == 1
        del kept


async def test_reads_that_nobody_waits_for_do_not_pile_up() -> None:
    """Each went on to its end, before all that was asked later."""
    async with BulkReader(partial(sqlite3.connect, ":memory:", check_same_thread=False)) as reader:
        for _ in range(10):
            query = Query(_NUMBERS.format(first="1"), (_ENDLESS,))
            read = asyncio.create_task(reader.chunks(query, lambda _: None))
            await asyncio.sleep(0)
            read.cancel()
        async with asyncio.timeout(ANSWER_S):
            assert await reader.rows(Query("SELECT 1", ())) == [(1,)]


async def test_two_that_pause_the_same_readers_do_not_wait_for_each_other() -> None:
    """Each held the reader that it had waited for first, and waited for that of the other."""
    one, other, done = SlowQueries(), SlowQueries(), list[str]()
    pauses = Pauses()

    async def pause(*readers: AsyncReader) -> None:
        async with pauses.of(readers):
            done.append("pause")

    async with asyncio.timeout(ANSWER_S), one.reader, other.reader, asyncio.TaskGroup() as tasks:
        tasks.create_task(one.ask(1, done))
        assert await asyncio.to_thread(one.began.acquire, timeout=ANSWER_S)
        tasks.create_task(pause(other.reader, one.reader))  # waits for `one`, the busy one
        await asyncio.sleep(0)
        tasks.create_task(other.ask(2, done))
        assert await asyncio.to_thread(other.began.acquire, timeout=ANSWER_S)
        tasks.create_task(pause(other.reader, one.reader))  # waits for `other`
        await asyncio.sleep(0)
        one.let_go.release()
        other.let_go.release()
    assert sorted(done) == ["pause", "pause", "query 1", "query 2"]


async def test_a_page_that_nobody_waits_for_ends_at_once() -> None:
    began = threading.Event()
    endless = Query(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n", ()
    )

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.set_progress_handler(began.set, 100)
        return db

    async with AsyncReader(connect) as reader:
        reading = asyncio.create_task(reader.page_within(endless, None))
        assert await asyncio.to_thread(began.wait, ANSWER_S)
        reading.cancel()
        async with asyncio.timeout(ANSWER_S):
            assert await reader.rows(Query("SELECT 1", ())) == [(1,)]


async def test_a_page_that_nobody_waits_for_when_the_thread_is_free_does_not_begin() -> None:
    began, let_go = threading.Semaphore(0), threading.Event()

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.create_function("run", 0, began.release)
        return db

    async with AsyncReader(connect) as reader, asyncio.TaskGroup() as tasks:
        tasks.create_task(reader._db._execute(let_go.wait, ANSWER_S))  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)
        for read in (reader.page_within, reader.rows_within):
            reading = tasks.create_task(read(Query("SELECT run()", ()), ANSWER_S))
            await eventually("it waits for the thread", reader._lock.locked)
            reading.cancel()
            await asyncio.wait([reading])
        let_go.set()
        assert await reader.rows(Query("SELECT 1", ())) == [(1,)]
    assert not began.acquire(blocking=False)


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


async def test_a_connection_that_cannot_be_opened_leaves_no_thread() -> None:
    """It would answer to the event loop, which may be closed by then."""
    threads: list[threading.Thread] = []

    def refused() -> sqlite3.Connection:
        threads.append(threading.current_thread())
        raise sqlite3.OperationalError("unable to open database file")

    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        async with AsyncReader(refused):
            pass
    assert not threads[0].is_alive()


async def test_a_reader_is_closed_when_its_closing_is_cancelled() -> None:
    """It waits for the query that runs."""
    slow = SlowQueries()
    await slow.reader.__aenter__()
    asking = asyncio.create_task(slow.ask(1, []))
    assert await asyncio.to_thread(slow.began.acquire, timeout=ANSWER_S)
    closing = asyncio.create_task(slow.reader.__aexit__())
    await asyncio.sleep(0)
    closing.cancel()
    slow.let_go.release()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asking
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        slow.db.execute("SELECT 1")
