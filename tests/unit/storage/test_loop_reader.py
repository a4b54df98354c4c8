"""relay/storage/sqlite/loop_reader.py: reads on the event loop are bounded in work."""

from __future__ import annotations

import sqlite3
from itertools import count
from typing import TYPE_CHECKING, Any

from relay.access.actors import Actors
from relay.access.visibility import Viewer, visibility_for
from relay.groups.group import Groups
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage import PageQuery
from relay.storage.sqlite import loop_reader
from relay.storage.sqlite.connections import FileMap, TagReader
from relay.storage.sqlite.loop_reader import LoopReader
from relay.storage.sqlite.sql.conditions import LONG_TEXT, Query
from tests import cast
from tests.harness.relay_in_process import store_of

if TYPE_CHECKING:
    import pytest


class LoopReads:
    """Queries of any length on a `LoopReader`, with the instructions that SQLite did for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.opened = self.calls = 0
        self.call_s = 0.0
        """Seconds between two calls of the progress handler."""
        monkeypatch.setattr(loop_reader, "monotonic", lambda: self.now)
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
    assert done[0] == loop_reader._LOOP_CALLS + 1
    assert set(done[5:]) == {loop_reader._LEAST_CALLS + 1}
    assert sum(done) < 2 * loop_reader._LOOP_CALLS + 41 * (loop_reader._LEAST_CALLS + 1)
    reads.now += 60
    assert not reads.read(10**9)
    assert reads.calls == loop_reader._LOOP_CALLS + 1
    reads.reader.close()


def test_reads_of_a_network_whose_reads_were_not_interrupted_may_do_as_much_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four connections with reads that are interrupted sent ordinary pages of all to the thread."""
    reads = LoopReads(monkeypatch)
    for number in range(40):
        assert not reads.read(10**9, f"198.18.0.{number}")
    assert reads.calls == loop_reader._LEAST_CALLS + 1
    for address in ("192.0.2.1", "2001:db8::/64", None):
        assert not reads.read(10**9, address)
        assert reads.calls == loop_reader._LOOP_CALLS + 1
        assert not reads.read(10**9, address)
        assert reads.calls == loop_reader._LEAST_CALLS + 1
    reads.now += loop_reader._WASTEFUL_S
    assert not reads.read(10**9, "192.0.2.1")
    assert reads.calls == loop_reader._LOOP_CALLS + 1
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
    reads.now += loop_reader._SAME_S
    assert reads.read(100, "192.0.2.1", "feed")
    reads.reader.close()


def test_the_networks_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_reader, "_MAX_WASTEFUL", 3)
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

    monkeypatch.setattr(loop_reader, "OF_ROWS", ((has_tag, 3),))
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
    assert sum(looked) <= loop_reader._LOOP_BYTES
    reads.now += loop_reader._SAME_S
    assert read(100, 1000) == []
    reads.reader.close()


def test_to_prepare_a_text_is_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of members' filters it took 4 to 16 ms, so that the read was interrupted and its text was
    prepared anew."""
    reads = LoopReads(monkeypatch)
    reads.call_s = 60 * loop_reader._CALL_S
    text = "x" * round(reads.call_s / loop_reader._PREPARE_S)
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
    reads.call_s = loop_reader._CALL_S
    assert not reads.read(10**9)
    assert reads.calls == loop_reader._LEAST_CALLS + 1
    reads.reader.close()


def test_the_file_is_not_mapped_while_reads_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a store larger than the memory, 192 clients with reads that were interrupted after 0.1
    to 0.3 s each kept everybody waiting for 40 s."""
    waits = 0
    monkeypatch.setattr(loop_reader, "disk_reads", lambda: waits)
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
    monkeypatch.setattr(loop_reader, "disk_reads", lambda: waits)
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


def test_interrupted_statements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = LoopReads(monkeypatch)
    for _ in range(3 * loop_reader._MAX_INTERRUPTED):
        assert not reads.read(10**9)
    assert reads.opened <= 4
    assert reads.read(100)
    reads.reader.close()


async def test_reads_of_members_of_one_network_are_shortened_for_their_own_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an office all went to threads for half a minute after one that took long."""
    clients, read = list[str | None](), LoopReader.read

    def noted(self: LoopReader, query: Query, fetch: Any, address: str | None = None) -> Any:
        clients.append(address)
        return read(self, query, fetch, address)

    monkeypatch.setattr(LoopReader, "read", noted)
    actors = Actors(owners=frozenset({cast.owner.pubkey}))
    filter_ = filter_from({"kinds": [1]}, FilterTerms())
    async with store_of("sqlite") as store:
        for who, client in ((cast.owner, cast.owner.pubkey), (cast.stranger, "203.0.113.7")):
            clients.clear()
            seen = visibility_for(Viewer(frozenset({who.pubkey})), (), actors, Groups())
            query = PageQuery(filter_, seen, 5, upto=9, now=1, size=5, address="203.0.113.7")
            assert store.page_now(query) is not None
            assert clients[-1] == client
