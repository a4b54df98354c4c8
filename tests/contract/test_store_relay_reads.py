"""What the relay reads for itself: no read of a client delays it, as writes wait for some of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from math import inf
from threading import Event as ThreadEvent
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.actors import Actors
from relay.access.management import Management
from relay.access.visibility import ANONYMOUS, visibility_for
from relay.errors import TooSlow
from relay.groups.group import Groups
from relay.lifecycle.rows import Slot
from relay.storage import PageQuery
from relay.storage.postgres import connections as postgres_connections
from relay.storage.postgres import reading
from relay.storage.postgres.store import PostgresStore
from relay.storage.sqlite import searching
from relay.storage.sqlite import store as sqlite_store
from relay.storage.sqlite.readers import TurnReader
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.test_sqlite_erasure import becomes
from tests.contract.test_store_search import sought
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked, raws, unsigned, write
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items
    from relay.storage import Store
    from tests.harness.postgres import PostgresServer

UNKNOWN = visibility_for(ANONYMOUS, (), Actors(), Groups())
SLOT = Slot(cast.alice.pubkey, 0, "")
PROFILE = unsigned(cast.alice, 0, content="{}", at=1)
NOTE = unsigned(cast.bob, tags=[["t", "tea"]], content="tea", at=2)
DELETION = unsigned(cast.bob, 5, [["e", "f" * 64]], at=3)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def busy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    """A store all of whose connections for clients are held by their reads."""
    if request.param == "sqlite":
        async with busy_sqlite(tmp_path, monkeypatch) as store:
            yield store
    else:
        async with busy_postgres(request.getfixturevalue("postgres")) as store:
            yield store


@asynccontextmanager
async def busy_sqlite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    store = await SqliteStore.open(folder / "rookery.db", TERMS)
    await write(store, PROFILE, NOTE, DELETION)
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)  # none ends there
    monkeypatch.setattr(searching, "_SEARCH_S", ANSWER_S)
    monkeypatch.setattr(sqlite_store, "_READ_S", ANSWER_S)
    monkeypatch.setattr(sqlite_store, "_COUNT_S", {True: ANSWER_S, False: ANSWER_S})
    may_end = ThreadEvent()
    for storage in (sqlite_store, reading):
        monkeypatch.setattr(storage, "ITEMS_S", {True: ANSWER_S, False: ANSWER_S})
    readers = (
        *store._reader_conn.connections,
        store._unknown_conn,
        store._search_conn,
        store._unknown_search_conn,
        store._bulk_conn,
        store._unknown_bulk_conn,
    )
    for reader in readers:
        if isinstance(reader, TurnReader):
            monkeypatch.setattr(reader, "_most_s", inf)
        await reader._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    reads = reads_of_clients(store, asked(kinds=[1]))
    await becomes("all have begun", lambda: all(reader._lock.locked() for reader in readers))
    try:
        yield store
        assert not any(each.done() for each in reads)
    finally:
        may_end.set()
        await asyncio.gather(*reads)
        await store.close()


@asynccontextmanager
async def busy_postgres(server: PostgresServer) -> AsyncIterator[Store]:
    """By tag nothing is read while the table of tags is locked."""
    url = await server.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await write(store, PROFILE, NOTE, DELETION)
    async with server.unreadable(f"{server.schema_of(url)}.tags"):
        reads = reads_of_clients(store, asked(tag_t=["tea"]))
        async with until("they hold the connections") as tries:
            async for _ in tries:
                waiting = await server.value("SELECT count(*) FROM pg_locks WHERE NOT granted")
                if waiting >= postgres_connections._READERS + 2:
                    break
        try:
            yield store
            assert not any(each.done() for each in reads)
        except BaseException:
            for read in reads:
                read.cancel()
            raise
    await asyncio.gather(*reads)
    await store.close()
    await server.empty(url)


def reads_of_clients(store: Store, filter_: Filter) -> list[asyncio.Future[Any]]:
    return [
        asyncio.ensure_future(read)
        for viewer in (EVERYTHING, UNKNOWN)
        for _ in range(4)
        for read in (
            store.page(PageQuery(filter_, viewer, 1, MAX, 0, size=1), is_long=True),
            store.count([filter_], viewer, now=0),
            store.items(filter_, viewer, limit=None, upto=MAX, now=0, at_most=9),
            *(
                [store.search(sought("tea"), viewer, limit=5, upto=MAX, now=0)]
                if isinstance(store, SqliteStore)
                else []
            ),
        )
    ]


async def test_the_set_of_an_unknown_key_has_a_limit_of_time_and_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One frame read for minutes, and neither members nor the sweeper did meanwhile."""
    store = await SqliteStore.open(tmp_path / "rookery.db", TERMS)
    await write(store, PROFILE, NOTE)
    may_end = ThreadEvent()
    stop = store._unknown_bulk_conn._db.set_progress_handler
    await stop(lambda: not may_end.wait(ANSWER_S), 1)
    slow = asyncio.ensure_future(set_of(store, asked(), UNKNOWN))
    await becomes("it has begun", store._unknown_bulk_conn._lock.locked)
    assert len(await set_of(store, asked(), EVERYTHING)) == 2
    may_end.set()
    assert len(await slow) == 2
    monkeypatch.setattr(sqlite_store, "ITEMS_S", {True: ANSWER_S, False: 0.0})
    with pytest.raises(TooSlow):
        await set_of(store, asked(), UNKNOWN)
    assert len(await set_of(store, asked(), EVERYTHING)) == 2
    await store.close()


@pytest.mark.process
async def test_a_set_that_takes_too_long_leaves_the_connections_usable(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await write(store, PROFILE, NOTE)
    async with postgres.unreadable(f"{postgres.schema_of(url)}.tags"):
        monkeypatch.setattr(reading, "ITEMS_S", {True: 0.05, False: 0.05})
        for _ in range(2 * postgres_connections._READERS):
            with pytest.raises(TooSlow):
                await set_of(store, asked(tag_t=["tea"]), EVERYTHING)
        monkeypatch.setattr(reading, "ITEMS_S", {True: ANSWER_S, False: ANSWER_S})
        assert len(await set_of(store, asked(), EVERYTHING)) == 2
    assert len(await set_of(store, asked(tag_t=["tea"]), EVERYTHING)) == 1
    await store.close()
    await postgres.empty(url)


async def set_of(store: Store, filter_: Filter, viewer: Visibility) -> Items:
    found = await store.items(filter_, viewer, limit=None, upto=MAX, now=0, at_most=9)
    assert found is not None
    return found


async def test_reads_of_clients_keep_no_read_of_the_relay_waiting(busy: Store) -> None:
    query = PageQuery(asked(kinds=[1]), EVERYTHING, 1, busy.committed(), 0, size=1)
    async with asyncio.timeout(ANSWER_S):
        found = await busy.matching(asked(kinds=[1]), limit=9, now=0)
        assert [row.event for row in found] == [NOTE]
        assert (await busy.page_for_relay(query)).raws == raws(NOTE)
        assert [row.event for row in await busy.since(1, 9)] == [NOTE, DELETION]
        assert len(await busy.seqs_of_kinds({0}, 0, 9, 9)) == 1
        assert len(await busy.stored([1, 2])) == 2
        found = await busy.versions(SLOT, before=None, limit=9, now=0)
        assert [row.event for row in found] == [PROFILE]
        assert await busy.old_version(SLOT, NOTE.id) is None
        assert await busy.erasure(DELETION.id) is None
        assert await busy.expired(9, 9) == []
        assert await busy.overdue_versions(9, 9) == []
        assert await busy.old_versions(0, 9) == []
        assert await busy.ended_groups() == {}
        assert await busy.management() == Management()
        assert await busy.head() == 3
