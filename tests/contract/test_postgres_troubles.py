"""A database that does not let the store do everything: it is read still, and written to again."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault, WriteOutcome
from relay.storage.postgres import connections, listening, writer
from relay.storage.postgres import store as store_module
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.test_postgres_commits import Noted
from tests.contract.test_postgres_shared import in_the_end
from tests.contract.writing import TERMS, read, stored, takes_over, unsigned, write
from tests.harness.patience import ANSWER_S
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
_WRITE = "SELECT pg_logical_emit_message(true, 'test', ''::text)"
_WAITS_FOR_REPLICA = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


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
    tried = list[asyncio.Task[None]]()

    async def is_in_force() -> bool:
        """The server obeys some time after it was told."""
        if not tried or tried[-1].done():
            tried.append(asyncio.create_task(server.execute(_WRITE)))
        return bool(await server.value(_WAITS_FOR_REPLICA))

    try:
        await _set_replicas(server, "SET synchronous_standby_names = '*'")
        await eventually("commits wait", is_in_force)
        yield
    finally:
        await _set_replicas(server, "RESET synchronous_standby_names")
        await asyncio.gather(*tried)


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


_END_WAITS = """
SELECT {}(pid) FROM pg_stat_activity WHERE application_name = 'rookery' AND wait_event = 'SyncRep'
"""
"""With the batch kept: the server ends such a wait, and never the commit."""


async def is_waiting(server: PostgresServer, writing: asyncio.Task[object]) -> None:
    """For a replica, or a lock."""
    await eventually("it waits", lambda: writing.done() or server.value(_WAITING))
    assert not writing.done(), writing


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_what_the_primary_alone_has_is_not_acknowledged(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, how: str, *, is_shared: bool
) -> None:
    """A fail-over would lose it. Nor is it a duplicate when it is sent again, before the replica
    has it."""
    monkeypatch.setattr(writer, "_ASK_AGAIN_S", (0.1,))
    monkeypatch.setattr(writer, "_REPLICA_S", 0.5)
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    store.take_over = takes_over if is_shared else None
    first, event = await stored(store, unsigned(cast.alice)), unsigned(cast.bob)
    async with without_its_replica(postgres):
        writing = asyncio.create_task(stored(store, event))
        await is_waiting(postgres, writing)
        await postgres.execute(_END_WAITS.format(how))
        with pytest.raises(StoreFault, match="nothing confirms it"):
            await writing
        again = asyncio.create_task(write(store, event))
        await is_waiting(postgres, again)
        assert first.event.raw in await read_for_a_while(store)
        assert not again.done()
    if is_shared:
        assert await again == [WriteOutcome.DUPLICATE]
    else:
        with pytest.raises(StoreFault):  # state lacks it
            await again
        assert store.set_back.is_set()
    await store.close()
    await postgres.empty(url)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_replica_that_comes_back_confirms_a_batch_whose_connection_was_lost(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, *, is_shared: bool
) -> None:
    monkeypatch.setattr(writer, "_REPLICA_S", ANSWER_S)
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=is_shared)
    store.take_over = takes_over if is_shared else None
    await stored(store, unsigned(cast.alice))
    async with without_its_replica(postgres):
        writing = asyncio.create_task(stored(store, unsigned(cast.bob)))
        await is_waiting(postgres, writing)
        noted = Noted(QUERIES)
        monkeypatch.setattr(writer, "QUERIES", noted)
        await postgres.execute(_END_WAITS.format("pg_terminate_backend"))
        await eventually("it asks the replica", lambda: "replicate" in noted.asked)
        # It may have lost its connection to the server meanwhile, too.
        db = await store._connections.listener()
        assert await store._listener._is_same_history(db)
        await db.close()
        assert not writing.done()
    assert (await writing).seq == 2
    assert (await stored(store, unsigned(cast.bob, at=2))).seq == 3
    assert not store.set_back.is_set()
    await store.close()
    await postgres.empty(url)


@pytest.mark.usefixtures("unhurried")
async def test_what_another_relay_stored_is_no_duplicate_before_a_replica_has_it(
    postgres: PostgresServer,
) -> None:
    url = await postgres.new_schema()
    store, other = [await PostgresStore.open(url, TERMS, is_shared=True) for _ in range(2)]
    store.take_over = other.take_over = takes_over
    await stored(store, unsigned(cast.alice))
    await stored(other, unsigned(cast.alice, at=2))
    event = unsigned(cast.bob)
    async with without_its_replica(postgres):
        writing = asyncio.create_task(stored(store, event))
        await is_waiting(postgres, writing)
        await postgres.execute(_END_WAITS.format("pg_terminate_backend"))
        again = asyncio.create_task(write(other, event))
        await is_waiting(postgres, again)
        await asyncio.wait([writing])
        assert not again.done()
    assert await again == [WriteOutcome.DUPLICATE]
    await store.close()
    await other.close()
    await postgres.empty(url)


@pytest.mark.usefixtures("unhurried")
async def test_a_new_relay_confirms_what_the_one_before_it_left(postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    event = (await stored(store, unsigned(cast.alice))).event
    await store.close()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    store.take_over = takes_over
    async with without_its_replica(postgres):
        again = asyncio.create_task(write(store, event))
        await is_waiting(postgres, again)
    assert await again == [WriteOutcome.DUPLICATE]
    await store.close()
    await postgres.empty(url)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.slow
async def test_a_commit_that_waits_for_a_replica_has_no_limit(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that of other statements the server was asked to cancel it, and had it without the
    replica."""
    url = await postgres.new_schema()
    await (await PostgresStore.open(url, TERMS)).close()
    noted = Noted(QUERIES)
    monkeypatch.setattr(writer, "QUERIES", noted)
    monkeypatch.setattr(writer, "_COMMIT_S", 0.5)
    monkeypatch.setattr(connections, "_COMMAND_S", 5)
    store = await PostgresStore.open(url, TERMS)
    await stored(store, unsigned(cast.alice))
    async with without_its_replica(postgres):
        writing = asyncio.create_task(stored(store, unsigned(cast.bob)))
        looks = "waits_for_replica"
        await eventually("looks", lambda: writing.done() or noted.asked.count(looks) > 12)
        assert not writing.done()
    assert (await writing).seq == 2
    assert "has_committed" not in noted.asked
    await store.close()
    await postgres.empty(url)


@pytest.mark.usefixtures("unhurried")
async def test_a_store_closes_while_a_commit_waits_for_a_replica(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_COMMIT_S", 0.1)
    monkeypatch.setattr(store_module, "_WRITABLE_S", 0.1)
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await stored(store, unsigned(cast.alice))
    async with without_its_replica(postgres):
        writing = asyncio.create_task(stored(store, unsigned(cast.bob)))
        await is_waiting(postgres, writing)
        assert not await store.is_writable()
        await asyncio.wait_for(store.close(), ANSWER_S)
        with pytest.raises(StoreFault, match="nothing confirms it"):
            await writing
    rows = f"SELECT count(*) = 2 FROM {postgres.schema_of(url)}.events"
    await eventually("the server commits it", lambda: postgres.value(rows))
    await postgres.empty(url)


async def test_without_a_synchronous_replica_none_is_asked_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted(QUERIES)
    monkeypatch.setattr(writer, "QUERIES", noted)
    url = await postgres.new_schema()
    store, other = [await PostgresStore.open(url, TERMS, is_shared=True) for _ in range(2)]
    store.take_over = other.take_over = takes_over
    for at, each in enumerate((store, other)):
        await stored(each, unsigned(cast.alice, at=at))
    event = (await stored(store, unsigned(cast.bob))).event
    for each in (other, store):
        assert await write(each, event) == [WriteOutcome.DUPLICATE]
    assert "replicate" not in noted.asked
    await store.close()
    await other.close()
    await postgres.empty(url)


async def test_a_call_is_used_while_a_replica_is_away(postgres: PostgresServer) -> None:
    """It waited for the replica, on one of three connections that reads need, too."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    store.take_over = takes_over
    async with without_its_replica(postgres), asyncio.timeout(ANSWER_S):
        for call in ("aa", "bb", "cc", "dd"):
            assert await store.use_call(call, until=10, now=9)
            assert not await store.use_call(call, until=10, now=9)
    await store.close()
    await postgres.empty(url)
