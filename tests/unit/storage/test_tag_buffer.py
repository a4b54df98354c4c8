"""relay/storage/sqlite/tag_buffer.py: events of many tags are flushed in steps, none is missed."""

from __future__ import annotations

import asyncio
import sqlite3
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from relay.nostr.event import event_from_raw
from relay.storage.sqlite import checkpoints
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.tag_buffer import MAX_SLICE, MOST_OF_A_TAG, TagBuffer
from tests import cast
from tests.contract.writing import TERMS, asked, read, unsigned, write
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from relay.storage.sqlite.tag_kinds import TagRow

TAGS = 4900
LIST_ROWS = 10_000


def batch(seq: int, tags: int = TAGS) -> list[TagRow]:
    """The tags of one event; nobody else has them."""
    return [(seq * TAGS + n, 1, 1000, seq, seq, None) for n in range(tags)]


def commit(
    buffer: TagBuffer, rows: list[TagRow], partitions: Mapping[int, int] = MappingProxyType({})
) -> list[TagRow]:
    """As the writer does it; what is flushed with it."""
    flushed = buffer.next_slice(len(rows))
    buffer.slice_flushed(len(flushed))
    buffer.add(rows, partitions)
    return flushed


def step(buffer: TagBuffer) -> list[TagRow]:
    """Of the flush between commits."""
    buffer.start_flush()
    return commit(buffer, [])


def test_a_commit_flushes_no_more_than_a_slice_however_many_tags_it_brings() -> None:
    buffer = TagBuffer(LIST_ROWS)
    for seq in range(1, 7):
        assert len(commit(buffer, batch(seq))) <= MAX_SLICE


def test_a_slice_is_as_large_as_the_disk_permits() -> None:
    """2,048 tags, each on a page that is not in memory, took 0.7 s of a disk that reads 3,000 a
    second: everybody's notes waited for those with 800 tags."""
    buffer = TagBuffer(LIST_ROWS)
    for seq in range(1, 10):
        buffer.add(batch(seq))
    buffer.start_flush()
    sizes = []
    for seconds in (*[0.7] * 7, *[0.03] * 2, *[0.001] * 6):
        sizes.append(len(buffer.next_slice()))
        buffer.slice_took(seconds)
    grown = [64, 128, 256, 512, 1024, 2048]
    assert sizes == [*reversed(grown), 64, 64, 64, *grown]


def test_full_lists_wait_until_steps_between_commits_have_flushed_them() -> None:
    buffer = TagBuffer(LIST_ROWS)
    written: list[TagRow] = []
    flushed: list[TagRow] = []
    for seq in range(1, 7):
        written += batch(seq)
        flushed += commit(buffer, batch(seq))
    assert buffer.is_behind
    while buffer.is_behind:
        rows = step(buffer)
        assert 0 < len(rows) <= MAX_SLICE
        flushed += rows
    assert len(buffer) <= 2 * LIST_ROWS
    while len(buffer):
        flushed += step(buffer)
    assert sorted(flushed) == written


def test_the_buffer_is_bounded_also_without_steps_between_commits() -> None:
    buffer = TagBuffer(LIST_ROWS)
    for seq in range(1, 60):
        commit(buffer, batch(seq))
        assert len(buffer) <= 4 * LIST_ROWS + TAGS


@pytest.mark.parametrize("groups", [0, 50])
def test_a_few_thousand_rows_of_one_tag_wait_for_their_flush_at_most(groups: int) -> None:
    """In none of `groups` partitions, or spread over them. Each read by this tag looked at all
    32,768 of a list, and at those of the one that was flushed."""
    buffer = TagBuffer()
    for seq in range(1, 20_000):
        partition = seq % groups if groups else 0
        rows: list[TagRow] = [(7 ^ partition, 1, 1000, seq, seq, None)]
        rows += [(100 * seq + n, 1, 1000, seq, seq, None) for n in range(3)]
        commit(buffer, rows, {seq: partition} if partition else {})
        assert len(buffer.snapshot().seqs_of_any([7])) <= 2 * MOST_OF_A_TAG


def test_a_tag_is_found_in_each_list_until_it_is_flushed() -> None:
    buffer = TagBuffer(LIST_ROWS)
    flushed = set[int]()
    for seq in range(1, 7):
        flushed.update(row[0] for row in commit(buffer, batch(seq)))
    assert buffer.is_behind
    for seq in range(1, 7):
        for hash_ in (seq * TAGS, seq * TAGS + TAGS - 1):
            assert buffer.seqs_of([hash_]) == [seq] or hash_ in flushed
            assert buffer.snapshot().has_any(frozenset([hash_])) or hash_ in flushed


def test_rows_of_a_partition_are_found_by_the_hash_of_their_tag_until_they_are_flushed() -> None:
    buffer, partition = TagBuffer(LIST_ROWS), 2**62 + 5
    flushed = set[int]()
    for seq in range(1, 7):
        rows = [(row[0] ^ partition, *row[1:]) for row in batch(seq)]
        due = buffer.next_slice(len(rows))
        buffer.slice_flushed(len(due))
        flushed.update(row[0] ^ partition for row in due)
        buffer.add(rows, {seq: partition})
    assert buffer.is_behind
    for seq in range(1, 7):
        for hash_ in (seq * TAGS, seq * TAGS + TAGS - 1):
            found = buffer.snapshot()
            assert found.seqs_of_any([hash_]) == [seq] or hash_ in flushed
            assert found.seqs_of([hash_]) == []
            assert found.has_any(frozenset([hash_])) or hash_ in flushed
    while len(buffer):
        step(buffer)
    assert not buffer.snapshot().has_any(frozenset(range(10 * TAGS)))


def test_up_to_which_row_nothing_is_left_in_the_buffer() -> None:
    buffer = TagBuffer(LIST_ROWS)
    assert buffer.flushed_upto is None
    for seq in range(11, 17):
        buffer.add(batch(seq))
        assert buffer.flushed_upto == 10
    left = dict.fromkeys(range(11, 17), TAGS)
    while len(buffer):
        for row in step(buffer):
            left[row[4]] -= 1
        upto = buffer.flushed_upto
        assert not any(left[seq] for seq in left if upto is None or seq <= upto)
    assert buffer.flushed_upto is None
    buffer.add(batch(20))
    assert buffer.flushed_upto == 19


def test_the_table_is_complete_up_to_the_newest_row_of_the_list_that_ends() -> None:
    buffer = TagBuffer(LIST_ROWS)
    for seq in range(1, 8):
        buffer.add(batch(seq))
    upto = list[int | None]()
    while len(buffer):
        buffer.start_flush()
        due = buffer.next_slice(0)
        complete = buffer.complete_upto(len(due))
        if complete is not None:
            upto.append(complete)
        buffer.slice_flushed(len(due))
    assert upto == [3, 6, 7]


def test_lists_that_wait_are_flushed_together_in_one_order() -> None:
    """Then several of their tags belong on each page."""
    buffer = TagBuffer(list_rows=100)
    for seq in range(1, 5):
        buffer.add([(1000 * n + seq, 1, 1000, seq, seq, None) for n in range(100)])
    first = buffer.next_slice(100)
    assert first == [(1000 * n + 1, 1, 1000, 1, 1, None) for n in range(100)]
    buffer.slice_flushed(len(first))
    assert buffer.complete_upto(299) is None
    assert buffer.complete_upto(300) == 4
    flushed: list[TagRow] = []
    while rows := buffer.next_slice(7):
        assert rows == buffer.next_slice(7), "a slice whose commit failed comes again"
        buffer.slice_flushed(len(rows))
        flushed += rows
        assert sorted(buffer.all_rows() + flushed) == sorted({*buffer.all_rows(), *flushed})
    assert [row[0] for row in flushed] == [1000 * n + seq for n in range(100) for seq in (2, 3, 4)]
    assert not len(buffer)
    assert not buffer.seqs_of([2002])


async def test_the_store_flushes_full_lists_without_a_pause_between_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SETTLE_S", 3600.0)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS, tag_buffer_rows=LIST_ROWS)
    try:
        for n in range(1, 11):
            tags = [["t", f"{n} {place}"] for place in range(TAGS)]
            await write(store, unsigned(cast.alice, 1, tags, f"{n}"))
        await eventually(
            "the lists are flushed", lambda: len(store._writer._tag_buffer) <= 2 * LIST_ROWS
        )
        found = await read(store, asked(tag_t=["1 0", "5 4899", "10 7"]))
        assert {event_from_raw(raw).content for raw in found} == {"1", "5", "10"}
    finally:
        await store.close()


async def test_after_a_failed_flush_the_upkeep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task ended, and the texts of deleted events stayed in the log."""
    for name in ("_SETTLE_S", "_MAX_RETRY_S"):
        monkeypatch.setattr(checkpoints, name, 0.0)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    flush, has_failed = store._checkpoints._flush, False

    def fails_once() -> int:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise sqlite3.OperationalError("database or disk is full")
        return flush()

    monkeypatch.setattr(store._checkpoints, "_flush", fails_once)
    try:
        await write(store, unsigned(cast.alice, 1, [["t", "tea"]]))
        await eventually("the tags are flushed", lambda: not len(store._writer._tag_buffer))
        assert has_failed
        assert "the WAL was not checkpointed: store: database or disk is full" in caplog.text
    finally:
        await store.close()


async def test_a_commit_just_after_the_last_step_is_flushed_and_checkpointed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task had ended and still counted as running, so nothing was done until the next one."""
    for name in ("_SETTLE_S", "_QUIET_S"):
        monkeypatch.setattr(checkpoints, name, 0.0)
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    upkeep, loop, has_committed = store._checkpoints, asyncio.get_running_loop(), False
    wait = upkeep._wait

    def commits_after_the_last() -> float | None:
        nonlocal has_committed
        until_next = wait()
        if until_next is None and not has_committed:
            has_committed = True
            loop.call_soon(upkeep.committed)
        return until_next

    monkeypatch.setattr(upkeep, "_wait", commits_after_the_last)
    try:
        await write(store, unsigned(cast.alice, 1, [["t", "tea"]]))
        await eventually("nothing is due", lambda: has_committed and wait() is None)
    finally:
        await store.close()


def test_a_batch_for_which_there_is_room_flushes_no_more_than_a_slice() -> None:
    buffer = TagBuffer()
    made = 0
    for seq in range(1, 80):
        while not buffer.has_room_for(4_900):
            buffer.start_flush()
            buffer.slice_flushed(len(buffer.next_slice()))
            made += 1
        due = len(buffer.next_slice(4_900))
        assert due <= MAX_SLICE
        buffer.slice_flushed(due)
        buffer.add([(seq * 10_000 + row, 1, 1, seq, 1, None) for row in range(4_900)])
    assert made > 0
