"""A database that does not let the store do everything: it is read still, and written to again."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.storage.postgres import listening
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.test_postgres_shared import in_the_end
from tests.contract.writing import TERMS, read, stored, takes_over, unsigned
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

_REVOKE = "REVOKE INSERT, DELETE ON of_guest.events, of_guest.changes FROM guest"
_GRANT = "GRANT ALL ON of_guest.events, of_guest.changes TO guest"
_FILL = """
CREATE FUNCTION of_guest.is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER is_full BEFORE INSERT ON of_guest.events EXECUTE FUNCTION of_guest.is_full()
"""

_WAITING = """
SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'rookery'
AND (wait_event_type = 'Lock' OR wait_event = 'SyncRep')
"""


async def test_a_user_who_may_not_make_tables_is_told(postgres: PostgresServer) -> None:
    async with guest(postgres) as his:
        await postgres.execute("REVOKE CREATE ON SCHEMA of_guest FROM guest")
        with pytest.raises(StoreFault, match="permission denied for schema"):
            await PostgresStore.open(his, TERMS)


async def test_a_read_only_database_is_refused(postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    with pytest.raises(StoreFault, match="the database is read-only"):
        await PostgresStore.open(f"{url}&default_transaction_read_only=on", TERMS)


@asynccontextmanager
async def guest(server: PostgresServer) -> AsyncIterator[str]:
    """The address of an empty database for a user who is not the server's."""
    await server.execute("CREATE ROLE guest LOGIN; CREATE SCHEMA of_guest AUTHORIZATION guest")
    try:
        yield server.url("of_guest").replace("rookery@", "guest@")
    finally:
        await server.execute("DROP OWNED BY guest; DROP ROLE guest")


async def read_for_a_while(store: PostgresStore) -> list[bytes]:
    """Longer than until the next look for what others did, which would write too."""
    for _ in range(10):
        await read(store)
        await asyncio.sleep(listening._POLL_S / 5)
    return await read(store)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize(
    ("trouble", "cure"),
    [
        (_REVOKE, _GRANT),
        ("ALTER ROLE guest SET default_transaction_read_only = on", "ALTER ROLE guest RESET ALL"),
        (_FILL, "DROP FUNCTION of_guest.is_full() CASCADE"),
    ],
    ids=["rights", "read-only", "full"],
)
async def test_a_database_that_takes_nothing_is_read_still(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    cure: str,
    *,
    is_shared: bool,
) -> None:
    monkeypatch.setattr(listening, "_DROP_EVERY_S", 0.0)
    async with guest(postgres) as his:
        store = await PostgresStore.open(his, TERMS, is_shared=is_shared)
        if is_shared:
            store.take_over = takes_over
        row = await stored(store, unsigned(cast.alice))
        await postgres.execute(trouble)
        await postgres.kill_connections()  # settings of a user hold for new ones
        assert await in_the_end(lambda: read_for_a_while(store)) == [row.event.raw]
        with pytest.raises(StoreFault):
            await stored(store, unsigned(cast.bob))
        assert await in_the_end(lambda: read_for_a_while(store)) == [row.event.raw]
        await postgres.execute(cure)
        await postgres.kill_connections()
        assert (await in_the_end(lambda: stored(store, unsigned(cast.bob)))).seq == 2
        await store.close()


@asynccontextmanager
async def without_its_replica(server: PostgresServer) -> AsyncIterator[None]:
    """Inside, commits wait for a synchronous replica that is away."""
    try:
        await _set_replicas(server, "SET synchronous_standby_names = '*'")
        yield
    finally:
        await _set_replicas(server, "RESET synchronous_standby_names")


async def _set_replicas(server: PostgresServer, setting: str) -> None:
    await server.execute(f"ALTER SYSTEM {setting}")
    await server.execute("SELECT pg_reload_conf()")


def head_is_locked(server: PostgresServer, schema: str) -> AbstractAsyncContextManager[None]:
    return server.unwritable(f"{schema}.head")


def replica_is_away(server: PostgresServer, _schema: str) -> AbstractAsyncContextManager[None]:
    return without_its_replica(server)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("trouble", [head_is_locked, replica_is_away])
async def test_a_database_that_lets_writes_wait_is_read_still(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[PostgresServer, str], AbstractAsyncContextManager[None]],
    *,
    is_shared: bool,
) -> None:
    """The relay itself drops old changes meanwhile, on the connection that it listens on."""
    monkeypatch.setattr(listening, "_DROP_EVERY_S", 0.0)
    url = await postgres.new_schema()
    schema = postgres.schema_of(url)
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    if is_shared:
        store.take_over = takes_over
    rows = [await stored(store, unsigned(cast.alice, at=at)) for at in (2, 1)]
    await eventually("it drops changes", store.is_first)
    async with trouble(postgres, schema):
        writing = asyncio.create_task(stored(store, unsigned(cast.bob)))
        await eventually("it waits", lambda: postgres.value(_WAITING))
        old = f"UPDATE {schema}.changes SET at = at - interval '2 minutes'"
        await postgres.execute(f"SET synchronous_commit = off; {old}")
        tried = set[float]()

        def has_tried_twice() -> bool:  # what runs now may have begun before
            tried.add(store._listener._drop_at)
            return len(tried) > 2

        await eventually("it has tried", has_tried_twice)
        assert await read_for_a_while(store) == [row.event.raw for row in rows]
    assert (await writing).seq == 3
    await store.close()
    await postgres.empty(url)


async def test_a_relay_reconnects_while_writes_wait_for_a_replica(
    postgres: PostgresServer,
) -> None:
    """With `[storage] replica` it names the history of the database whenever it connects."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, replica=url)
    row = await stored(store, unsigned(cast.alice))
    async with without_its_replica(postgres):
        await postgres.kill_connections()
        assert await in_the_end(lambda: read_for_a_while(store)) == [row.event.raw]
    await store.close()
    await postgres.empty(url)
