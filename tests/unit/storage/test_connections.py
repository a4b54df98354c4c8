"""relay/storage/sqlite/connections.py: one query at a time, and pauses between them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import StoreFault
from relay.storage.sqlite import connections
from relay.storage.sqlite.connections import (
    AsyncReader,
    BulkReader,
    FileMap,
    LoopReader,
    Pauses,
    TagReader,
    open_threaded,
)
from relay.storage.sqlite.sql.conditions import LONG_TEXT, Query
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
    monkeypatch.setattr(connections, "monotonic", lambda: now)
    reader = connections.TurnReader(lambda: sqlite3.connect(":memory:"), number=2)
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


class LoopReads:
    """Queries of any length on a `LoopReader`, with the instructions that SQLite did for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.opened = self.calls = 0
        self.call_s = 0.0
        """Seconds between two calls of the progress handler."""
        monkeypatch.setattr(connections, "monotonic", lambda: self.now)
        self.mapping = FileMap()
        self._texts = count()
        self.reader = LoopReader(self._connect, self.mapping)

    def _connect(self) -> TagReader:
        self.opened += 1
        return sqlite3.connect(":memory:", factory=self._noting())

    def _noting(self) -> type[TagReader]:
        reads = self

        class Noting(TagReader):
            def set_progress_handler(self, is_over: Any, steps: int) -> None:
                def noted() -> bool:
                    reads.calls += 1
                    reads.now += reads.call_s
                    over: bool = is_over()
                    return over

                super().set_progress_handler(noted, steps)

        return Noting

    def read(self, rows: int, address: str | None = None, text: str = "") -> bool:
        """Whether it ended. A statement of its own each time, or one that `text` names."""
        self.calls = 0
        numbers = "SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?"
        text = text or f"{next(self._texts)}"
        query = Query(f"WITH c(n) AS ({numbers}) SELECT max(n) FROM c -- {text}", (rows,))
        found = self.reader.read(query, lambda db, asked: db.execute(*asked).fetchall(), address)
        assert found in (None, [(rows,)])
        return found is not None


def test_a_long_text_is_not_prepared_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite takes 0.4 us for a character, and nothing interrupts that."""
    reads = LoopReads(monkeypatch)

    def read(text: str) -> list[Any] | None:
        return reads.reader.read(Query(text, ()), lambda db, asked: db.execute(*asked).fetchall())

    assert read("SELECT 1") == [(1,)]
    assert read("SELECT 1" + " + 0" * LONG_TEXT) is None
    reads.reader.close()


def test_while_many_reads_are_interrupted_each_may_do_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40 connections with a long one each took 0.7 s of the loop at once."""
    reads = LoopReads(monkeypatch)
    done = []
    for _ in range(40):
        assert not reads.read(10**9)
        done.append(reads.calls)
        assert reads.read(100), "a short read was interrupted"
    assert done[0] == connections._LOOP_CALLS + 1
    assert set(done[5:]) == {connections._LEAST_CALLS + 1}
    assert sum(done) < 2 * connections._LOOP_CALLS + 41 * (connections._LEAST_CALLS + 1)
    reads.now += 60
    assert not reads.read(10**9)
    assert reads.calls == connections._LOOP_CALLS + 1
    reads.reader.close()


def test_reads_of_a_network_whose_reads_were_not_interrupted_may_do_as_much_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four connections with reads that are interrupted sent ordinary pages of all to the thread."""
    reads = LoopReads(monkeypatch)
    for number in range(40):
        assert not reads.read(10**9, f"198.18.0.{number}")
    assert reads.calls == connections._LEAST_CALLS + 1
    for address in ("192.0.2.1", "2001:db8::/64", None):
        assert not reads.read(10**9, address)
        assert reads.calls == connections._LOOP_CALLS + 1
        assert not reads.read(10**9, address)
        assert reads.calls == connections._LEAST_CALLS + 1
    reads.now += connections._WASTEFUL_S
    assert not reads.read(10**9, "192.0.2.1")
    assert reads.calls == connections._LOOP_CALLS + 1
    reads.reader.close()


def test_a_statement_that_was_interrupted_is_not_tried_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Home feeds of 60 members were read twice, on the loop in vain: a quarter of its time."""
    reads = LoopReads(monkeypatch)
    assert not reads.read(10**9, "192.0.2.1", "feed")
    assert not reads.read(100, "192.0.2.77", "feed")
    assert reads.calls == 0
    assert reads.read(100, "192.0.2.1", "another")
    assert reads.read(100, "198.51.100.1", "feed"), "in another network it may be short"
    reads.now += connections._SAME_S
    assert reads.read(100, "192.0.2.1", "feed")
    reads.reader.close()


def test_the_networks_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_WASTEFUL", 3)
    reads = LoopReads(monkeypatch)
    for number in range(9):
        assert not reads.read(10**9, f"198.18.{number}.1")
    assert len(reads.reader._interrupted_at) == 3
    assert [*reads.reader._wasteful] == [f"198.18.{number}.0/24" for number in (6, 7, 8)]
    reads.reader.close()


def test_a_read_looks_for_tags_in_few_large_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 events of 500 kB that a read rule hides took a second of the loop for each REQ."""
    looked: list[int] = []

    def has_tag(raw: bytes, _name: str, _values: str | None) -> bool:
        looked.append(len(raw))
        return False

    monkeypatch.setattr(connections, "OF_ROWS", ((has_tag, 3),))
    reads = LoopReads(monkeypatch)

    def read(rows: int, size: int) -> list[Any] | None:
        looked.clear()
        numbers = "SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?"
        texts = f"WITH c(n) AS ({numbers}) SELECT zeroblob(? + n) AS raw FROM c"
        query = Query(f"SELECT 1 FROM ({texts}) WHERE has_tag(raw, 'x', NULL)", (rows, size))
        return reads.reader.read(query, lambda db, asked: db.execute(*asked).fetchall())

    assert read(100, 1000) == []
    assert len(looked) == 100
    assert read(100, 500_000) is None
    assert sum(looked) <= connections._LOOP_BYTES
    reads.now += connections._SAME_S
    assert read(100, 1000) == []
    reads.reader.close()


def test_to_prepare_a_text_is_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of members' filters it took 4 to 16 ms, so that the read was interrupted and its text was
    prepared anew."""
    reads = LoopReads(monkeypatch)
    reads.call_s = 60 * connections._CALL_S
    text = "x" * round(reads.call_s / connections._PREPARE_S)
    assert not reads.read(10**9, text="short")
    assert reads.calls == 2
    assert not reads.read(10**9, "192.0.2.1", text)
    assert reads.calls == 3
    reads.reader.close()


def test_few_slow_instructions_are_as_long_a_read_as_many_fast_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A function of a long text is one instruction, whatever it costs."""
    reads = LoopReads(monkeypatch)
    reads.call_s = 0.005
    for _ in range(20):
        assert not reads.read(10**9)
    assert reads.calls == 1
    reads.call_s = connections._CALL_S
    assert not reads.read(10**9)
    assert reads.calls == connections._LEAST_CALLS + 1
    reads.reader.close()


def test_the_file_is_not_mapped_while_reads_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a store larger than the memory, 192 clients with reads that were interrupted after 0.1
    to 0.3 s each kept everybody waiting for 40 s."""
    waits = 0
    monkeypatch.setattr(connections, "disk_reads", lambda: waits)
    reads = LoopReads(monkeypatch)

    def slow_read(*, of_disk: int) -> None:
        nonlocal waits
        waits += of_disk
        reads.call_s = 0.03
        assert not reads.read(10**9)
        assert reads.calls == 1, "it ends at the first look"
        reads.call_s = 0.0

    slow_read(of_disk=1)
    assert reads.mapping.bytes, "it was the processor"
    waits += 100
    assert reads.read(100)
    assert reads.mapping.bytes, "it was quick"
    slow_read(of_disk=0)
    for _ in range(2):
        slow_read(of_disk=100)
        assert not reads.mapping.bytes
        reads.now += 599
        assert reads.read(100)
        assert not reads.mapping.bytes
    reads.now += 2
    assert reads.read(100)
    assert reads.mapping.bytes
    reads.reader.close()


def test_a_network_whose_read_waited_for_the_disk_reads_on_threads_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It closes each REQ, and sends the next: each waited on the loop, again."""
    waits = 0
    monkeypatch.setattr(connections, "disk_reads", lambda: waits)
    reads = LoopReads(monkeypatch)
    reads.call_s, waits = 0.03, 100
    assert not reads.read(10**9, "192.0.2.1")
    reads.call_s = 0.0
    assert not reads.read(100, "192.0.2.77")
    assert reads.calls == 0
    for address in ("198.51.100.1", None):
        assert reads.read(100, address)
    reads.now += 2.9
    assert not reads.read(100, "192.0.2.1")
    reads.now += 0.2
    assert reads.read(100, "192.0.2.1")
    reads.call_s, waits = 0.03, 200
    assert not reads.read(10**9, None)
    reads.call_s = 0.0
    assert reads.read(100, None), "the relay, and programs on its machine"
    reads.reader.close()


def test_waiting_for_blocks_of_a_disk_is_work_and_waiting_for_the_processor_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """512 events of cold pages took 17 s, of which the processor worked for 1."""
    worked, now, blocks = 7.0, 100.0, 4000
    monkeypatch.setattr(connections, "thread_time", lambda: worked)
    monkeypatch.setattr(connections, "perf_counter", lambda: now)
    monkeypatch.setattr(connections, "disk_reads", lambda: blocks)
    work = connections.WorkClock()
    worked, now = worked + 1.0, now + 5.0
    assert work.seconds == pytest.approx(1.0), "others had the processor, or the GIL"
    blocks += 8 * 2000
    assert work.seconds == pytest.approx(3.0), "2,000 pages, 1 ms each, of 4 s that it waited"
    blocks += 8 * 90_000
    assert work.seconds == pytest.approx(5.0), "not longer than it waited"


def test_readers_map_the_file_as_long_as_that_is_quick(tmp_path: Path) -> None:
    db, mapping = connections.connection(tmp_path / "store", TagReader), FileMap()
    assert isinstance(db, TagReader)
    with closing(db):
        db.execute("CREATE TABLE t (n)")
        db.map(mapping)

        def mapped() -> tuple[int, int]:
            ((size,),) = db.execute("PRAGMA mmap_size").fetchall()
            ((cache,),) = db.execute("PRAGMA cache_size").fetchall()
            return size, cache

        assert mapped() == (1 << 30, -65_536)
        mapping.bytes = 0
        assert mapped() == (0, -16_384)


def test_interrupted_statements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = LoopReads(monkeypatch)
    for _ in range(3 * connections._MAX_INTERRUPTED):
        assert not reads.read(10**9)
    assert reads.opened <= 4
    assert reads.read(100)
    reads.reader.close()


class Opening:
    """A connection whose opening waits until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.thread: threading.Thread | None = None

    def __call__(self) -> sqlite3.Connection:
        self.thread = threading.current_thread()
        self.began.set()
        assert self.let_go.wait(ANSWER_S)
        return self.db


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


async def test_a_connection_whose_opening_is_cancelled_is_closed() -> None:
    slow = Opening()
    opening = asyncio.create_task(open_threaded(slow))
    assert await asyncio.to_thread(slow.began.wait, ANSWER_S)
    opening.cancel()
    slow.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert slow.thread is not None
    assert not slow.thread.is_alive()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        slow.db.execute("SELECT 1")


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
