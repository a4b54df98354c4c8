"""The primary is lost and its replica is promoted: a store goes on with what was acknowledged, or
notices that it is gone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest

from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.test_postgres_commits import own_server, read_again, stored_again
from tests.contract.writing import TERMS, in_order, stored, takes_over, unsigned
from tests.harness.database_proxy import Proxy
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.postgres import PostgresServer

__all__ = ["own_server"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.usefixtures("unhurried"),
]


@asynccontextmanager
async def store_on(url: str, *, is_shared: bool) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    store.take_over = takes_over if is_shared else None
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def replica_of(primary: PostgresServer) -> AsyncIterator[PostgresServer]:
    replica = await asyncio.to_thread(primary.replica)
    try:
        yield replica
    finally:
        await asyncio.to_thread(replica.stop)


def either(url: str, primary: Path, other: Path) -> str:
    """The address of whichever of the hosts can be written to."""
    return url.replace(f"host={primary}", f"host={primary},{other}") + (
        "&target_session_attrs=read-write"
    )


async def has_come(replica: PostgresServer, url: str, seq: int) -> None:
    async with until("the replica has it") as tries:
        async for _ in tries:
            with suppress(asyncpg.PostgresError):  # perhaps the table has not come yet
                if await replica.value(f"SELECT seq FROM {replica.schema_of(url)}.head") == seq:
                    return


async def cut_off(replica: PostgresServer) -> None:
    """It gets nothing of the primary any more."""
    await replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
    await replica.execute("SELECT pg_reload_conf()")
    async with until("it is cut off") as tries:
        async for _ in tries:
            if not await replica.value("SELECT count(*) FROM pg_stat_wal_receiver"):
                return


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_store_goes_on_where_the_replica_has_all(
    own_server: PostgresServer, *, is_shared: bool
) -> None:
    url = await own_server.new_schema()
    before, after = (unsigned(cast.alice, content=each) for each in ("before", "after"))
    async with (
        replica_of(own_server) as replica,
        store_on(either(url, own_server.host, replica.host), is_shared=is_shared) as store,
    ):
        await has_come(replica, url, (await stored(store, before)).seq)
        own_server.crash()
        await replica.promote()
        assert (await stored_again(store, after)).seq == 2
        assert await read_again(store) == in_order(before, after)
        assert not store.set_back.is_set()


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_store_that_knew_more_than_the_replica_is_to_start_again(
    own_server: PostgresServer, *, is_shared: bool
) -> None:
    """Also when as many batches have come since, of others or of its own."""
    url = await own_server.new_schema()
    async with (
        replica_of(own_server) as replica,
        Proxy(replica.socket) as way,
        store_on(either(url, own_server.host, way.host), is_shared=is_shared) as store,
    ):
        first = unsigned(cast.alice)
        await has_come(replica, url, (await stored(store, first)).seq)
        await cut_off(replica)
        lost = unsigned(cast.alice, content="lost")
        await stored(store, lost)
        way.cut()
        own_server.crash()
        await replica.promote()
        other = unsigned(cast.bob)
        if is_shared:
            async with store_on(replica.url(replica.schema_of(url)), is_shared=True) as one:
                await stored(one, other)
        way.mend()
        await asyncio.wait_for(store.set_back.wait(), ANSWER_S)
        rows = f"SELECT count(*) FROM {replica.schema_of(url)}.events"
        assert await replica.value(rows) == (2 if is_shared else 1)
