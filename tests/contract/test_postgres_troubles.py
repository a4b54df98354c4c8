"""A database that does not let the store do everything: it is read still, and written to again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault
from relay.storage.postgres import listening
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.test_postgres_shared import in_the_end
from tests.contract.writing import TERMS, read, stored, takes_over, unsigned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
