"""A store whose clients read on a replica: never what is older than what the store committed."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from relay.errors import TooSlow
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage.postgres.health import replica_health
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    TERMS,
    asked,
    change,
    in_order,
    read,
    stored,
    takes_over,
    unsigned,
)
from tests.harness.relay_program import eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.lifecycle.rows import WritePlan
    from relay.nostr.event import Event
    from relay.storage.postgres.replica import ReplicaReader
    from tests.harness.postgres import PostgresServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("unhurried")]


class Relay:
    """A store, and the reader of its clients."""

    def __init__(self, store: PostgresStore, url: str, there: str) -> None:
        assert store.reader is not None
        self.store = store
        self.url = url
        self.there = there
        """Where the replica has it."""
        self.reader: ReplicaReader = store.reader
        self._limit = 10

    def reads(self) -> tuple[float, float]:
        return self.reader.reads["replica"], self.reader.reads["primary"]

    async def gives(self, *events: Event) -> bool:
        """Whether exactly these; and whether they came from the replica."""
        there, _ = self.reads()
        self._limit += 1  # no page is kept of it
        assert await read(self.reader, limit=self._limit) == in_order(*events)
        return self.reads()[0] > there

    async def is_level(self, *events: Event) -> None:
        """Soon the replica gives these; meanwhile the primary does."""
        await eventually("clients read on the replica", lambda: self.gives(*events))

    async def is_behind(self, *events: Event) -> None:
        """The primary gives these, also when the replica is tried again."""
        tried = {self.reader.waited_s}
        async with until("the replica is tried again") as tries:
            async for _ in tries:
                assert not await self.gives(*events)
                tried.add(self.reader.waited_s)
                if len(tried) == 3:
                    break


@asynccontextmanager
async def relay(
    primary: PostgresServer, replica: str, *, is_shared: bool = False
) -> AsyncIterator[Relay]:
    """`replica`: its address, SCHEMA for that of the store."""
    url = await primary.new_schema()
    there = replica.replace("SCHEMA", primary.schema_of(url))
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared, replica=there)
    if is_shared:
        store.take_over = takes_over
    try:
        yield Relay(store, url, there)
    finally:
        await store.close()
    await primary.empty(url)


@asynccontextmanager
async def paused(replica: PostgresServer) -> AsyncIterator[None]:
    """What the primary commits meanwhile comes to it, and cannot be seen there."""
    await replica.execute("SELECT pg_wal_replay_pause()")
    async with until("it is paused") as tries:
        async for _ in tries:
            if await replica.value("SELECT pg_get_wal_replay_pause_state()") == "paused":
                break
    try:
        yield
    finally:
        with suppress(asyncpg.SerializationError):  # it has resumed, and what comes cancels this
            await replica.execute("SELECT pg_wal_replay_resume()")


async def test_clients_read_on_a_replica_that_is_level(
    postgres: PostgresServer, follower: PostgresServer
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as one:
        events = [unsigned(cast.alice, at=at, content="tea") for at in range(3)]
        for event in events:
            await stored(one.store, event)
        await one.is_level(*events)
        there, primary = one.reads()
        everything = [asked()]
        assert await one.reader.count(everything, EVERYTHING, now=0) == 3
        items = await one.reader.items(asked(), EVERYTHING, limit=None, upto=MAX, now=0, at_most=9)
        assert items is not None
        assert len(items) == 3
        assert one.reads() == (there + 2, primary)
        assert one.reader.lag_rows() == 0


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_behind_is_not_given(
    postgres: PostgresServer, follower: PostgresServer, *, is_shared: bool
) -> None:
    async with relay(postgres, follower.url("SCHEMA"), is_shared=is_shared) as one:
        old, new = unsigned(cast.alice, at=1), unsigned(cast.bob, at=2)
        await stored(one.store, old)
        await one.is_level(old)
        async with paused(follower):
            await stored(one.store, new)
            await one.is_behind(old, new)
            assert one.reader.lag_rows() == 1
            assert (await replica_health(one.url, one.there, None)).behind == 1
        await one.is_level(old, new)
        assert await replica_health(one.url, one.there, None) == (True, True, 0)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_was_deleted_is_not_given(
    postgres: PostgresServer, follower: PostgresServer, *, is_shared: bool
) -> None:
    """By a batch that adds nothing."""
    async with relay(postgres, follower.url("SCHEMA"), is_shared=is_shared) as one:
        kept = unsigned(cast.alice, at=1)
        await stored(one.store, kept)
        gone = await stored(one.store, unsigned(cast.bob, at=2))
        await one.is_level(kept, gone.event)

        def plan(out: WritePlan) -> None:
            out.removes.add(gone.seq)

        async with paused(follower):
            await change(one.store, plan)
            await one.is_behind(kept)
        await one.is_level(kept)


@pytest.mark.parametrize("of", [None, {1}])
async def test_a_search_waits_for_the_text_index_of_the_replica(
    postgres: PostgresServer, follower: PostgresServer, of: set[int] | None
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as one:
        event = unsigned(cast.alice, content="tea")
        row = await stored(one.store, event)
        await one.is_level(event)

        async def found() -> Sequence[int]:
            wanted = filter_from({"search": "tea"}, FilterTerms(search=True))
            return await one.reader.search(wanted, EVERYTHING, limit=9, upto=MAX, now=0)

        async with paused(follower):
            await one.store.index(lambda event: event.content, "1", 9, of)
            there, _ = one.reads()
            assert await found() == [row.seq]
            assert one.reads()[0] == there
        async with until("it is found there") as tries:
            async for _ in tries:
                assert await found() == [row.seq]
                if one.reads()[0] > there:
                    break


async def test_a_replica_that_was_killed_is_read_again_when_it_is_back(
    postgres: PostgresServer, follower: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as one:
        event = unsigned(cast.alice)
        await stored(one.store, event)
        await one.is_level(event)
        follower.crash()
        await one.is_behind(event)
        async with until("the log says it") as tries:
            async for _ in tries:
                assert not await one.gives(event)
                if "clients read on the primary" in caplog.text:
                    break
        follower.start()
        await one.is_level(event)
        assert caplog.text.count("clients read on the primary") == 1


async def test_a_read_that_recovery_cancels_is_repeated_on_the_primary(
    postgres: PostgresServer, follower: PostgresServer
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as one:
        event = unsigned(cast.alice)
        await stored(one.store, event)
        await one.is_level(event)
        asked_on: list[bool] = []

        async def ask(db: Any) -> list[Any]:
            asked_on.append(await db.fetchval("SELECT pg_is_in_recovery()"))
            rows: list[Any] = await db.fetch("SELECT seq FROM texts")
            if asked_on == [True]:
                await postgres.execute(f"TRUNCATE {postgres.schema_of(one.url)}.texts")
                await db.fetch("SELECT pg_sleep(60)")
            return rows

        assert await one.reader._ask(ask) == []
        assert asked_on == [True, False]
        await one.is_level(event)


async def test_a_read_that_takes_too_long_is_ended_on_the_replica(
    postgres: PostgresServer, follower: PostgresServer
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as one:
        await one.is_level()
        with pytest.raises(TooSlow):
            await one.reader._ask(lambda db: db.fetch("SELECT pg_sleep(60)"), 0.2)
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"
        async with until("it is ended") as tries:
            async for _ in tries:
                if not await follower.value(f"{running} AND state <> 'idle'"):
                    break
        assert await one.gives()


async def test_a_server_that_does_not_follow_the_database_is_not_read(
    postgres: PostgresServer, follower: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay(postgres, follower.url("SCHEMA")) as other:
        event = unsigned(cast.bob)
        await stored(other.store, event)
        await other.is_level(event)  # else the first reason is that its tables are not there
        of_another = follower.url(postgres.schema_of(other.url))
        for replica, why in ((postgres.url("SCHEMA"), "no replica"), (of_another, "not followed")):
            caplog.clear()
            async with relay(postgres, replica) as one, until("the log says it") as tries:
                async for _ in tries:
                    assert not await one.gives()
                    if why in caplog.text:
                        break


async def test_a_replica_of_the_primary_before_is_not_read(
    postgres: PostgresServer, follower: PostgresServer
) -> None:
    """After a fail-over its head may be as high, and be another one."""
    async with relay(postgres, follower.url("SCHEMA"), is_shared=True) as one:
        event = unsigned(cast.alice)
        await stored(one.store, event)
        await one.is_level(event)
        history = f"SELECT value FROM {postgres.schema_of(one.url)}.meta WHERE name = 'history'"
        before = await postgres.value(history)
        async with paused(follower):
            await postgres.kill_connections()
            async with until("it has connected again") as tries:
                async for _ in tries:
                    if await postgres.value(history) != before and one.store.is_current():
                        break
            await one.is_behind(event)
        await one.is_level(event)
