"""SqliteStore: what the cached statements of its connections keep in memory."""

from __future__ import annotations

import _sqlite3
import ctypes
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from relay.access.actors import Actors
from relay.access.visibility import ANONYMOUS, visibility_for
from relay.groups.group import Groups
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage import PageQuery
from relay.storage.rows import EVERYTHING
from relay.storage.sqlite import connections
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import change, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from relay.nostr.filters import Filter

TERMS = FilterTerms(search=True)
MOST = 1 << 19
UNKNOWN = visibility_for(ANONYMOUS, (), Actors(), Groups())


def held() -> int:
    """Bytes that SQLite holds in this process."""
    memory_used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    memory_used.restype = ctypes.c_int64
    return int(memory_used())


def of_other_shapes() -> Iterator[Filter]:
    """With as many long lists as scans, and each with a text of its own."""
    values = [f"{number:x}" for number in range(200)]
    lists: dict[str, Any] = {}
    for scans, letter in enumerate("bcdfgijklmnoqrst", 1):
        lists[f"#{letter}"] = values
        for more in ({}, {"since": 1}):
            yield filter_from({"#a": values[:scans], **lists, **more}, TERMS)


async def page(store: SqliteStore, filter_: Filter) -> None:
    await store.page(PageQuery(filter_, EVERYTHING, 5, upto=9, now=1, size=5))


async def long_page(store: SqliteStore, filter_: Filter) -> None:
    await store.page(PageQuery(filter_, EVERYTHING, 5, upto=9, now=1, size=5), is_long=True)


async def long_page_of_nobody(store: SqliteStore, filter_: Filter) -> None:
    await store.page(PageQuery(filter_, UNKNOWN, 5, upto=9, now=1, size=5), is_long=True)


async def count(store: SqliteStore, filter_: Filter) -> None:
    await store.count([filter_], EVERYTHING, now=1)


async def search(store: SqliteStore, filter_: Filter) -> None:
    sought = replace(filter_, search="tea")
    await store.search(sought, EVERYTHING, limit=5, upto=9, now=1)


async def items(store: SqliteStore, filter_: Filter) -> None:
    await store.items(filter_, EVERYTHING, limit=None, upto=9, now=1, at_most=5)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    yield opened
    await opened.close()


@pytest.mark.parametrize("ask", [page, long_page, long_page_of_nobody, count, search, items])
async def test_statements_do_not_keep_all_that_clients_have_sent(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    """Each of 512 keeps its program and its last values, whatever their size."""
    monkeypatch.setattr(connections, "_MOST_KEPT", MOST)
    await ask(store, filter_from({"kinds": [1]}, TERMS))
    before = held()
    for filter_ in of_other_shapes():
        await ask(store, filter_)
    assert held() - before < 3 * MOST


async def test_what_a_statement_keeps_is_not_underestimated(store: SqliteStore) -> None:
    reader = store._factory.quick_reader()
    for number, filter_ in enumerate(of_other_shapes()):
        query = store._compiler.page(PageQuery(filter_, UNKNOWN, 5, 9, 1, 5), "e.raw")
        if number == 0:
            reader.execute(*query).fetchall()
            before, counted = held(), reader.kept
        reader.execute(*query).fetchall()
    assert 0 < held() - before < 1.1 * (reader.kept - counted)
    reader.close()


async def test_each_list_is_bound_once_however_many_scans_need_it(store: SqliteStore) -> None:
    *_, filter_ = of_other_shapes()
    page = store._compiler.page(PageQuery(filter_, UNKNOWN, 5, 9, 1, 5), "e.raw")
    for query in (page, store._compiler.count([filter_, filter_], UNKNOWN, now=1)):
        assert len([value for value in query.values if len(str(value)) > 1000]) == 16


async def test_the_statements_that_insert_large_events_keep_few_of_them(
    store: SqliteStore,
) -> None:
    def held_by_statements() -> int:
        store._writer._db.execute("PRAGMA shrink_memory")  # the pages that it caches
        return held()

    before = held_by_statements()
    for number in (1, 2, 4, 8, 16, 32):
        events = [unsigned(cast.alice, at=each, content="x" * 300_000) for each in range(number)]
        await write(store, *events)
    assert held_by_statements() - before < 4 << 20


async def test_a_ban_holds_few_index_rows_of_deleted_events(store: SqliteStore) -> None:
    """10,000 events of 1,000 tags took 1.5 GB: the relay ended, and again at each try."""
    for number in range(40):
        tags = [["t", f"{number}-{each}"] for each in range(1000)]
        await write(store, unsigned(cast.alice, 1, tags))
    tracemalloc.start()
    try:
        await change(store, lambda plan: plan.deleted_authors.update({cast.alice.pubkey: 99}))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert await store.since(0, 9) == []
    assert most < 2 << 20
