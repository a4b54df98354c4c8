"""Rows of guarded groups are in partitions of their own; they are moved when a group is made
guarded, or open."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored
from relay.storage.moving import TABLES
from relay.storage.sqlite import checkpoints, lookups, partition_moves
from relay.storage.sqlite.checkpoints import Checkpoints
from relay.storage.sqlite.moving import SqliteSide
from relay.storage.sqlite.partition_moves import PartitionMoves
from relay.storage.sqlite.repairing import repair
from relay.storage.sqlite.row_check import hashes_of
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.tag_buffer import TagBuffer
from tests import cast
from tests.contract.writing import TERMS, change, look_up, set_groups, unsigned, write
from tests.harness.partition_check import (
    RULES,
    faults,
    flush,
    move_all,
    move_some,
    partitions,
    report_of,
)
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.lifecycle.rows import WritePlan
    from relay.nostr.event import Event
    from relay.storage.sqlite.sql.conditions import Value

HERE = Path(__file__).parent
MEMBERS = OrderedMap[str, tuple[str, ...]]({cast.alice.pubkey: ()})
OPEN = Group("den", members=MEMBERS)
PRIVATE = Group("den", flags=frozenset({Flag.PRIVATE}), members=MEMBERS)
ENDED, ENDED_OPEN = EndedGroup(frozenset({cast.alice.pubkey})), EndedGroup(is_public=True)
ROWS = 40
TAGS = 4
"""Of each row."""


def chats(number: int, group: str = "den", start: int = 0, kind: int = 9) -> list[Event]:
    return [
        unsigned(
            cast.carol,
            kind,
            [["h", group], ["t", "tea"], ["t", f"{n % 7}"], ["p", cast.bob.pubkey]],
            f"{group} {n}",
            at=n,
        )
        for n in range(start, start + number)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rookery.db"


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are moved by the test alone."""

    async def nothing(self: Checkpoints) -> None:
        self._move_at = float("inf")

    monkeypatch.setattr(Checkpoints, "_move_rows", nothing)


@pytest.fixture
async def store(path: Path, by_hand: None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, TERMS)
    yield store
    await store.close()


def own(path: Path, group: str = "den") -> int:
    with closing(sqlite3.connect(path)) as db:
        return hashes_of(db).partition(group)


def noted(path: Path) -> list[tuple[str, int | None]]:
    """Groups and their partitions, as the table has them."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT id, partition FROM groups ORDER BY id").fetchall()


async def test_rows_of_a_guarded_group_are_written_into_its_partition(
    store: SqliteStore, path: Path
) -> None:
    await set_groups(store, den=PRIVATE, tea=Group("tea"))
    await write(store, *chats(3), *chats(2, "tea"), unsigned(cast.bob))
    records = [
        unsigned(cast.carol, kind, [["h", "den"], ["d", "den"]], at=kind)
        for kind in (9000, 9022, 39000, 39005, 1059, 44100, 44101, 30078, 78)
    ]
    await write(store, *records)
    assert partitions(path) == {"den": {own(path): 3, 0: len(records)}, "tea": {0: 2}, None: {0: 1}}
    assert noted(path) == [("den", own(path)), ("tea", None)]
    assert faults(path) == []
    await flush(store)
    assert faults(path) == []


async def test_rows_that_are_to_be_moved_into_partitions_are_counted(store: SqliteStore) -> None:
    await set_groups(store, den=OPEN, tea=OPEN)
    await write(store, *chats(ROWS), *chats(5, "tea"))
    both = ["den", "tea"]
    found = await look_up(store, groups_with_content=both, counted_groups=both)
    assert (found.group_rows, found.rows_moving) == ({"den": ROWS, "tea": 5}, 0)
    await set_groups(store, den=PRIVATE)
    found = await look_up(store, groups_with_content=both, counted_groups=["tea"])
    assert (found.group_rows, found.rows_moving) == ({"tea": 5}, ROWS)
    found = await look_up(store, groups_with_content=both)
    assert (found.group_rows, found.rows_moving) == ({}, 0)
    await flush(store)
    while store._writer.has_moves:
        await move_some(store)
    await set_groups(store, den=OPEN)
    found = await look_up(store, groups_with_content=["tea"], counted_groups=["tea"])
    assert found.rows_moving == ROWS
    while store._writer.has_moves:
        await move_some(store)
    found = await look_up(store, groups_with_content=["tea"], counted_groups=["tea"])
    assert found.rows_moving == 0


async def test_large_rows_that_are_to_be_moved_count_for_several(store: SqliteStore) -> None:
    """9,500 messages of 150 tags took minutes, and reads by one of these tags over a minute."""
    await set_groups(store, den=OPEN, tea=OPEN)
    tags = [["h", "den"], *(["e", f"{number:064x}"] for number in range(140))]
    large = [unsigned(cast.alice, 9, tags, content=f"{number}") for number in range(6)]
    await write(store, *large, *chats(5, "tea"))
    weight = sum(len(event.raw) for event in large) // 1000
    assert weight > 60
    found = await look_up(store, groups_with_content=["den", "tea"], counted_groups=["den", "tea"])
    assert (found.group_rows, found.rows_moving) == ({"den": weight, "tea": 5}, 0)
    await set_groups(store, den=PRIVATE)
    found = await look_up(store, groups_with_content=["tea"], counted_groups=["tea"])
    assert found.rows_moving == weight


async def test_requests_to_join_and_many_authors_make_no_group_large(store: SqliteStore) -> None:
    """Anybody can ask to join, and a community of a thousand has thousands of sizes."""
    await set_groups(store, den=OPEN)
    many = (*range(1_000, 2_000), *range(45_000, 46_000))
    await write(store, *(unsigned(cast.alice, kind, [["h", "den"]]) for kind in many))
    requests = [unsigned(cast.bob, 9021, [["h", "den"]], "x" * 20_000 + f"{n}") for n in range(100)]
    await write(store, *requests)
    found = await look_up(store, groups_with_content=["den"], counted_groups=["den"])
    assert found.group_rows == {"den": 2_000}


async def test_a_disk_that_fails_behind_a_commit_fails_no_batch(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, and whoever follows would not get it."""

    class Failing:
        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

    moves = store._writer._moves
    with monkeypatch.context() as patch:
        patch.setattr(moves, "_db", Failing())
        moves.note_committed()
    assert moves.are_left
    moves.note_moved()
    assert not moves.are_left


async def test_no_more_rows_of_a_group_are_counted_than_matter(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "MAX_MOVING", 4)
    await set_groups(store, den=OPEN, tea=OPEN)
    await write(store, *chats(4), *chats(9, "tea"), unsigned(cast.bob, 9021, [["h", "den"]]))
    found = await look_up(store, groups_with_content=["den", "tea"], counted_groups=["den", "tea"])
    assert found.group_rows == {"den": 4, "tea": 5}


async def test_rows_of_a_group_that_is_made_private_are_moved_some_at_a_time(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_CHANGES", 20)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS), *chats(5, "tea"))
    await write(store, *chats(3, kind=7, start=100), *chats(3, kind=9005))
    await set_groups(store, den=PRIVATE)
    await flush(store)
    assert partitions(path)["den"] == {0: ROWS + 6}
    moved = 0
    while store._writer.has_moves:
        assert await move_some(store)
        number = partitions(path)["den"].get(own(path), 0)
        assert 0 <= (number - moved) * (1 + TAGS) <= 20
        moved = number
        assert faults(path) == []
    assert partitions(path) == {"den": {0: 3, own(path): ROWS + 3}, "tea": {0: 5}}
    assert noted(path) == [("den", own(path))]


async def test_no_more_rows_are_looked_at_than_may_be(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made private and open again, before any row was moved."""
    monkeypatch.setattr(partition_moves, "MOST_LOOKED_AT", 20)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    await set_groups(store, den=OPEN)
    await flush(store)
    slices = await move_all(store)
    assert slices >= ROWS // 20
    assert partitions(path) == {"den": {0: ROWS}}
    assert noted(path) == [("den", None)]
    assert faults(path) == []


async def test_a_slice_has_few_bytes(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_BYTES", 10_000)
    large = [unsigned(cast.carol, 9, [["h", "den"]], "x" * 4000, at=n) for n in range(9)]
    await set_groups(store, den=OPEN)
    await write(store, *large)
    await set_groups(store, den=PRIVATE)
    await flush(store)
    await move_some(store)
    assert partitions(path)["den"] == {own(path): 3, 0: 6}


async def test_rows_of_a_group_that_is_made_open_are_moved_back(
    store: SqliteStore, path: Path
) -> None:
    await set_groups(store, den=PRIVATE)
    await write(store, *chats(ROWS))
    await set_groups(store, den=OPEN)
    await write(store, *chats(3, start=100))
    assert noted(path) == [("den", own(path))]  # rows are there still
    await flush(store)
    await move_all(store)
    assert partitions(path) == {"den": {0: ROWS + 3}}
    assert noted(path) == [("den", None)]
    assert faults(path) == []


async def test_a_group_may_change_while_its_rows_are_moved(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_CHANGES", 30)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    for turn, group in enumerate([PRIVATE, OPEN, PRIVATE, OPEN, PRIVATE]):
        await set_groups(store, den=group)
        await write(store, *chats(2, start=1000 * (turn + 1)))
        await flush(store)
        for _ in range(3):
            await move_some(store)
            assert faults(path) == []
    await move_all(store)
    assert partitions(path) == {"den": {own(path): ROWS + 10}}
    assert faults(path) == []


@pytest.mark.parametrize("crashes", [True, False])
async def test_a_restart_goes_on_with_the_moves(
    path: Path, by_hand: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, crashes: bool
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_CHANGES", 30)
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    await flush(store)
    await move_some(store)
    await write(store, *chats(3, start=100))  # tags in the buffer, under the partition
    after = tmp_path / "after"
    after.mkdir()
    if crashes:
        for file in path.parent.glob("rookery.db*"):
            shutil.copy(file, after)
    await store.close()
    if not crashes:
        shutil.copy(path, after)
    left = after / path.name
    assert faults(left) == []
    store = await SqliteStore.open(left, TERMS)
    assert faults(left) == []
    await flush(store)
    await move_all(store)
    assert partitions(left) == {"den": {own(left): ROWS + 3}}
    assert faults(left) == []
    await store.close()
    assert faults(left) == []


async def test_rows_whose_tags_are_not_in_the_table_are_moved_later(
    store: SqliteStore, path: Path
) -> None:
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    assert await move_some(store)  # flushes
    assert partitions(path) == {"den": {0: ROWS}}
    assert not len(store._writer._tag_buffer)
    await write(store, *chats(1, "tea"))
    # Tags of later rows do not matter.
    await move_all(store)
    assert len(store._writer._tag_buffer) == TAGS
    assert partitions(path) == {"den": {own(path): ROWS}, "tea": {0: 1}}
    assert faults(path) == []


async def test_rows_in_the_tag_buffer_are_found_by_both_hashes(store: SqliteStore) -> None:
    await set_groups(store, den=PRIVATE)
    results = await write(store, *chats(1), *chats(1, "tea"))
    den, tea = [row.seq for row in results if isinstance(row, Stored)]
    plain = store._hashes.tag("t", "tea")
    mixed = plain ^ store._hashes.partition("den")
    found = store._writer._tag_buffer.snapshot()
    for kinds in (None, {9}, {9, 30023}):
        assert found.seqs_of([plain], kinds) == [tea]
        assert found.seqs_of([mixed], kinds) == [den]
        assert sorted(found.seqs_of_any([plain], kinds)) == [den, tea]
    assert found.seqs_of_any([plain], {1}) == []
    await flush(store)
    assert store._writer._tag_buffer.snapshot().seqs_of_any([plain]) == []


@pytest.mark.parametrize("ended", [ENDED, ENDED_OPEN])
async def test_a_group_that_ends(store: SqliteStore, path: Path, ended: EndedGroup) -> None:
    await set_groups(store, den=PRIVATE)
    await write(store, *chats(ROWS))
    await write(store, unsigned(cast.carol, 9008, [["h", "den"]]))

    def end(plan: WritePlan) -> None:
        plan.groups["den"] = ended
        plan.deleted_groups.add("den")

    await change(store, end)
    assert not store._writer.has_moves
    assert partitions(path) == {"den": {0: 1}}
    assert noted(path) == [("den", None)]
    assert faults(path) == []


async def test_groups_without_messages_have_none_to_move(store: SqliteStore, path: Path) -> None:
    await set_groups(store, den=PRIVATE)
    await write(store, unsigned(cast.carol, 9007, [["h", "den"]]))
    assert noted(path) == [("den", own(path))]
    await set_groups(store, den=OPEN)
    assert noted(path) == [("den", None)]
    assert not store._writer.has_moves
    assert len(store._writer._tag_buffer)  # not flushed for this
    await write(store, *chats(1))
    await set_groups(store, den=PRIVATE)
    assert store._writer.has_moves


async def test_rows_that_are_moved_into_a_group_are_moved_to_its_partition(
    store: SqliteStore, path: Path
) -> None:
    """A reaction that came before its message."""
    reactions = [unsigned(cast.bob, 7, [["e", "a" * 64]], at=n) for n in range(3)]
    results = await write(store, *reactions)
    seqs = [row.seq for row in results if isinstance(row, Stored)]
    await set_groups(store, den=PRIVATE)
    await write(store, *chats(ROWS))
    await flush(store)
    await move_all(store)
    await change(store, lambda plan: plan.moves.update(dict.fromkeys(seqs[:2], "den")))
    assert partitions(path) == {"den": {own(path): ROWS, 0: 2}, None: {0: 1}}
    assert faults(path) == []
    await move_all(store)
    assert partitions(path) == {"den": {own(path): ROWS + 2}, None: {0: 1}}
    assert faults(path) == []


async def test_rows_without_partitions_stay_when_they_are_moved_into_a_group(
    store: SqliteStore, path: Path
) -> None:
    """By a rule of `[groups] derived`: others than the members find them by their tags."""
    wraps = [unsigned(cast.bob, kind, [["p", cast.alice.pubkey]], at=kind) for kind in (1059, 78)]
    results = await write(store, *wraps)
    seqs = [row.seq for row in results if isinstance(row, Stored)]
    await set_groups(store, den=PRIVATE)
    await flush(store)
    await change(store, lambda plan: plan.moves.update(dict.fromkeys(seqs, "den")))
    assert not store._writer.has_moves
    assert partitions(path) == {"den": {0: 2}}
    assert faults(path) == []


async def test_many_rows_are_moved_at_once(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_S", float("inf"))
    await set_groups(store, den=OPEN)
    await write(store, *chats(600))
    await set_groups(store, den=PRIVATE)
    await flush(store)
    assert await move_all(store) == 2
    assert partitions(path) == {"den": {own(path): 600}}
    assert faults(path) == []


async def test_a_transaction_ends_when_it_has_taken_its_time(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_S", 0.0)
    monkeypatch.setattr(partition_moves, "AT_ONCE", 20)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    await flush(store)
    assert await move_some(store)
    assert partitions(path)["den"] == {0: ROWS - 4, own(path): 4}
    await move_all(store)
    assert partitions(path) == {"den": {own(path): ROWS}}
    assert faults(path) == []


async def test_groups_take_turns(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some slices each: of many that were opened at once, all had rows left till the end."""
    monkeypatch.setattr(partition_moves, "MOST_CHANGES", 20)
    monkeypatch.setattr(partition_moves, "_MOST_SLICES", 2)
    names = ("ale", "den", "tea")
    await set_groups(store, **{name: Group(name) for name in names})
    for name in names:
        await write(store, *chats(ROWS, name))
    private = {name: Group(name, flags=frozenset({Flag.PRIVATE})) for name in names}
    await set_groups(store, **private)
    await flush(store)
    for wanted in ([8, 0, 0], [8, 8, 0], [8, 8, 8]):
        await move_some(store)
        await move_some(store)
        assert [partitions(path)[name].get(own(path, name), 0) for name in names] == wanted


async def test_many_small_groups_are_moved_together(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "MOST_S", float("inf"))
    names = [f"g{n}" for n in range(60)]
    await set_groups(store, **{name: Group(name) for name in names})
    await write(store, *[chat for name in names for chat in chats(1, name)])
    private = {name: Group(name, flags=frozenset({Flag.PRIVATE})) for name in names}
    await set_groups(store, **private)
    await flush(store)
    assert await move_all(store) < 5
    assert all(partitions(path)[name] == {own(path, name): 1} for name in names)


async def test_a_damaged_row_stays_where_it_is(store: SqliteStore, path: Path) -> None:
    await set_groups(store, den=OPEN)
    await write(store, *chats(3))
    await flush(store)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE events SET raw = x'00' WHERE seq = 2")
        db.commit()
    await set_groups(store, den=PRIVATE)
    await move_all(store)
    assert partitions(path) == {"den": {own(path): 2, 0: 1}}
    await set_groups(store, den=OPEN)
    await move_all(store)
    assert noted(path) == [("den", None)]


async def test_deleted_rows_leave_no_tags_in_a_partition(store: SqliteStore, path: Path) -> None:
    await set_groups(store, den=PRIVATE)
    results = await write(store, *chats(4))
    seqs = [row.seq for row in results if isinstance(row, Stored)]
    await change(store, lambda plan: plan.removes.add(seqs[0]))
    await flush(store)
    await change(store, lambda plan: plan.removes.add(seqs[1]))
    with closing(sqlite3.connect(path)) as db:
        (number,) = db.execute("SELECT count(*) FROM tags").fetchone()
    assert number == 2 * TAGS
    assert faults(path) == []


async def test_the_check_of_rows_finds_tags_in_a_partition(path: Path, by_hand: None) -> None:
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=PRIVATE)
    chat = cast.carol.sign(9, [["h", "den"], ["t", "tea"]], "", 1)
    await write(store, chat)
    assert await store.check(0, 9) == (1, [])
    await flush(store)
    assert await store.check(0, 9) == (1, [])
    await write(store, unsigned(cast.bob, 1, [["t", "tea"]]))
    await flush(store)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM tags WHERE seq = 1")
        db.commit()
    assert await store.check(0, 1) == (1, ["row 1 is not found by its tags"])
    await store.close()


async def test_groups_that_are_moved_to_a_store_keep_their_partitions(
    path: Path, by_hand: None
) -> None:
    """`rookery move` goes on after a restart, and writes the table of groups itself."""
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=PRIVATE)
    await write(store, *chats(3))
    side = SqliteSide(path)
    table = next(each for each in TABLES if each.name == "groups")
    entries = [("den", 0, 0, 0), ("tea", 1, 0, 0)]
    await side.put(table, [("den",), ("tea",)], entries)
    await side.close()
    await write(store, *chats(2, "tea"), *chats(1, start=9))
    await store.close()
    assert noted(path) == [("den", own(path)), ("tea", None)]
    store = await SqliteStore.open(path, TERMS)
    await move_all(store)
    assert partitions(path) == {"den": {0: 4}, "tea": {own(path, "tea"): 2}}
    assert noted(path) == [("den", None), ("tea", own(path, "tea"))]
    assert faults(path) == []
    await store.close()


async def test_the_relay_moves_rows_while_nothing_is_written(path: Path) -> None:
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    await moved(store)
    assert partitions(path) == {"den": {own(path): ROWS}}
    await store.close()
    assert faults(path) == []


async def test_the_relay_moves_rows_while_tags_are_always_to_be_flushed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as somebody wrote notes of thousands of tags, none were."""
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await set_groups(store, den=PRIVATE)
    monkeypatch.setattr(TagBuffer, "is_behind", True)
    await moved(store)
    await store.close()
    assert faults(path) == []


async def test_the_relay_moves_rows_while_a_truncation_waits_for_a_long_query(path: Path) -> None:
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    async with store._long_conn.paused():
        store._checkpoints.erased()
        await eventually("a truncation waits", store._checkpoints._pauses._lock.locked)
        await set_groups(store, den=PRIVATE)
        await moved(store)
        assert store.upkeep.truncated == 0
    await store.close()
    assert faults(path) == []


async def test_a_move_that_fails_keeps_no_truncation_from_erasing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody always had a long query, a damaged page kept deleted texts in the log."""
    monkeypatch.setattr(checkpoints, "_MAX_RETRY_S", 0.1)
    truncate, waits = Checkpoints._truncate, threading.Event()
    ended: list[bool | None] = []

    async def noted(self: Checkpoints) -> bool:
        ended.append(None)
        ended[-1] = await truncate(self)
        return bool(ended[-1])

    monkeypatch.setattr(Checkpoints, "_truncate", noted)
    store = await SqliteStore.open(path, TERMS)

    def fails() -> bool:
        if store._checkpoints._pauses._lock.locked():
            waits.set()
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(store._checkpoints, "_move", fails)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    async with store._long_conn.paused():
        await set_groups(store, den=PRIVATE)
        store._checkpoints.erased()
        await eventually("a move fails while a truncation waits", waits.is_set)
    await eventually("the log is erased", lambda: not store._checkpoints.pending_s)
    assert ended[0], "by the truncation that waited"
    assert store._writer.has_moves
    await store.close()


async def test_no_rows_are_moved_while_a_long_query_makes_the_log_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside queries of 10 s it had 6 GB."""
    monkeypatch.setattr(checkpoints, "_LARGE_BYTES", 1)
    monkeypatch.setattr(checkpoints, "_MOST_PAGES", 0)
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await flush(store)
    begun, ends = threading.Event(), threading.Event()

    def read_long(rows: Callable[[str, Sequence[Value]], list[object]]) -> None:
        rows("BEGIN", ())
        rows("SELECT count(*) FROM events", ())
        begun.set()
        ends.wait(ANSWER_S)
        rows("COMMIT", ())

    reading = asyncio.create_task(store._long_conn.work_within(read_long, ANSWER_S))
    await asyncio.to_thread(begun.wait, ANSWER_S)
    await set_groups(store, den=PRIVATE)
    await eventually("moves wait", lambda: not store._checkpoints._has_room)
    assert store._writer.has_moves
    ends.set()
    await reading
    await moved(store)
    await store.close()
    assert faults(path) == []


async def moved(store: SqliteStore) -> None:
    async with asyncio.timeout(ANSWER_S):
        while store._writer.has_moves:  # noqa: ASYNC110  # on another thread
            await asyncio.sleep(0.01)


async def test_the_rows_of_a_file_of_schema_13_are_moved_by_the_start(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript((HERE / "schema_13.sql").read_text())
        before = db.execute("SELECT seq, raw FROM events ORDER BY seq").fetchall()
    store = await SqliteStore.open(path, TERMS)
    assert not store._writer.has_moves
    await store.close()
    assert faults(path) == []
    assert noted(path) == [("food", None), ("tea", own(path, "tea"))]
    assert partitions(path)["tea"] == {0: 9, own(path, "tea"): 1}
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT seq, raw FROM events ORDER BY seq").fetchall() == before


async def test_a_start_that_is_ended_while_it_moves_rows_is_continued(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a crash of the former version, which left tags out of the table."""
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=OPEN)
    await write(store, *chats(ROWS))
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            """
            UPDATE groups SET guarded = 1;
            INSERT INTO meta VALUES ('unplaced', 1);
            DELETE FROM tags WHERE seq > 9;
            UPDATE meta SET value = 9 WHERE name = 'tags_upto';
            """
        )
    monkeypatch.setattr("relay.storage.sqlite.opening._TIMES", 1)
    monkeypatch.setattr(partition_moves, "MOST_CHANGES", 20)
    left = list[int]()

    def ended(moves: PartitionMoves) -> None:
        left.append(ROWS - moves.moved)
        raise StoreFault("ended")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionMoves, "note_moved", ended)
        with pytest.raises(StoreFault, match="ended"):
            await SqliteStore.open(path, TERMS)
    assert 0 < left[0] < ROWS
    assert partitions(path)["den"] == {0: left[0], own(path): ROWS - left[0]}
    store = await SqliteStore.open(path, TERMS)
    assert not store._writer.has_moves
    await store.close()
    assert partitions(path)["den"] == {own(path): ROWS}
    assert faults(path) == []


DAMAGES = {
    "a partition of another group": "UPDATE events SET partition = 77 WHERE seq = 2",
    "a partition of a row of no group": "UPDATE events SET partition = 77 WHERE grp IS NULL",
    "a partition of a record": (
        "UPDATE events SET partition = (SELECT partition FROM groups WHERE id = 'den')"
        " WHERE kind = 9000"
    ),
    "rows outside": "UPDATE events SET partition = 0 WHERE seq = 2",
    "rows that should be outside": (
        "UPDATE groups SET guarded = 0; DELETE FROM partition_moves WHERE grp = 'den'"
    ),
    "no partition": "UPDATE groups SET partition = NULL WHERE id = 'den'",
    "another partition": "UPDATE groups SET partition = 77 WHERE id = 'den'",
    "no group": "DELETE FROM groups WHERE id = 'den'",
    "tags of another partition": "UPDATE tags SET hash = hash + 1 WHERE seq = 2 AND kind_class = 9",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_wrong_partitions_are_found_and_repaired(
    path: Path, by_hand: None, damage: str
) -> None:
    store = await SqliteStore.open(path, TERMS)
    await set_groups(store, den=PRIVATE)
    await write(store, *chats(3), unsigned(cast.bob, 1, [["t", "tea"]]))
    await write(store, unsigned(cast.carol, 9000, [["h", "den"]]))
    await flush(store)
    await move_all(store)
    await store.close()
    assert faults(path) == []
    with closing(sqlite3.connect(path)) as db:
        db.executescript(damage)
    assert faults(path) != []
    repair(path, RULES, report_of(path), lambda _rows: None)
    assert faults(path) == []
    store = await SqliteStore.open(path, TERMS)
    assert not store._writer.has_moves
    await store.close()
