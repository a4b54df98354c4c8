"""The stores under contract. Each test runs on every one.

A test has a store of its own, or, where many tests only read the same rows, one of its module.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
import pytest_asyncio

from relay.storage.postgres import listening, replica
from relay.storage.postgres.store import PostgresStore
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.tag_buffer import TAG_BUFFER_ROWS
from tests.contract.crowd import a_wide_crowd
from tests.contract.writing import TERMS, write
from tests.effort import tries
from tests.harness.patience import ANSWER_S
from tests.harness.postgres import postgres
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from relay.storage import EventReader, Store
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]


class Reopenable(Protocol):
    """A store that is opened once, and again after a restart or a crash."""

    async def open(self) -> Store: ...

    async def restart(self) -> Store:
        """Close and open again."""

    async def crash(self) -> Store:
        """Open what a `kill -9` would have left at this moment."""

    async def close(self) -> None: ...


class ReopenableReference:
    """In memory: reopening gives the same store."""

    def __init__(self) -> None:
        self._store = ReferenceStore()

    async def open(self) -> Store:
        return self._store

    restart = crash = open

    async def close(self) -> None:
        await self._store.close()


class ReopenableSqlite:
    def __init__(self, folder: Path, *, tag_buffer_rows: int, synchronous: str = "FULL") -> None:
        self._folder = folder
        self._options: dict[str, Any] = {
            "tag_buffer_rows": tag_buffer_rows,
            "synchronous": synchronous,
        }
        self._opened: list[SqliteStore] = []

    async def open(self) -> Store:
        path = self._folder / "rookery.db"
        self._opened.append(await SqliteStore.open(path, TERMS, **self._options))
        return self._opened[-1]

    async def restart(self) -> Store:
        await self._opened.pop().close()
        return await self.open()

    async def crash(self) -> Store:
        # WAL first: a checkpoint between the two copies then loses nothing.
        left = self._folder / f"left-{len(self._opened)}"
        left.mkdir()
        for name in ("rookery.db-wal", "rookery.db"):
            if (self._folder / name).exists():
                shutil.copy(self._folder / name, left / name)
        self._folder = left
        return await self.open()

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()


class ReopenablePostgres:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._url: str | None = None
        self._opened: list[PostgresStore] = []

    async def open(self) -> Store:
        if self._url is None:
            self._url = await self._server.new_schema()
        self._opened.append(await PostgresStore.open(self._url, TERMS))
        return self._opened[-1]

    async def restart(self) -> Store:
        await self._opened.pop().close()
        return await self.open()

    async def crash(self) -> Store:
        await self._server.kill_connections()
        await self.close_all()  # else it takes its lock again
        return await self.open()

    async def close(self) -> None:
        await self.close_all()
        if self._url is not None:
            await self._server.empty(self._url)

    async def close_all(self) -> None:
        while self._opened:
            await self._opened.pop().close()


class ReadsOnReplica(PostgresStore):
    """All of its reads, where they can be."""

    async def _ask(self, *args: Any, **options: Any) -> Any:
        assert self.reader is not None
        return await self.reader._ask(*args, **options)


class ReopenableReplicated:
    """Opened once."""

    def __init__(self, server: PostgresServer, follower: PostgresServer) -> None:
        self._server = server
        self._follower = follower
        self._store: PostgresStore

    async def open(self) -> Store:
        self._url = await self._server.new_schema()
        there = self._follower.url(self._server.schema_of(self._url))
        self._store = await ReadsOnReplica.open(self._url, TERMS, replica=there)
        return self._store

    async def close(self) -> None:
        assert self._store.reader is not None
        reads = self._store.reader.reads
        assert reads["replica"] > reads["primary"], reads
        await self._store.close()
        await self._server.empty(self._url)


@pytest.fixture(scope="module")
def follower(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A replica of the server."""
    server = postgres.replica()
    yield server
    server.stop()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there is given the time that it takes on a busy machine. One that has gone
    says so: its sockets are closed."""
    for module, names in (
        (listening, ("_ANSWER_S", "_ALONE_ANSWER_S", "_RECENT_S")),
        (replica, ("_ANSWER_S",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, ANSWER_S)


# The short tail writes the tags of its newest rows to the file in slices of a few: what the
# other does only after thousands of rows.
GENERATIONS = {"sqlite, short tail": 5, "sqlite": TAG_BUFFER_ROWS}
"""`make test` leaves the second to CI: the first has rows in the buffer too."""


STORES = [
    "reference",
    *[*GENERATIONS][: tries(2, full=2, part=1)],
    pytest.param("postgres", marks=pytest.mark.process),
]

WITH_TABLES: Final = STORES[1:]
"""Stores that look memberships up in their own tables; the reference takes them from the
Visibility."""

REPLICATED = pytest.param("postgres, read on a replica", marks=pytest.mark.process)
READ: Final = [*STORES, REPLICATED][: tries(5, full=5, part=3)]
"""`make test` leaves the last to CI; tests/contract/test_postgres_replica.py reads there too."""


def reopenable_on(request: pytest.FixtureRequest, folder: Path) -> Reopenable:
    """A new one, of the kind that the request names."""
    if request.param == "reference":
        return ReopenableReference()
    if request.param == "postgres":
        return ReopenablePostgres(request.getfixturevalue("postgres"))
    return ReopenableSqlite(folder, tag_buffer_rows=GENERATIONS[request.param])


@pytest.fixture(params=STORES)
async def reopenable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopenable]:
    reopenable = reopenable_on(request, tmp_path)
    yield reopenable
    await reopenable.close()


@pytest.fixture
async def store(reopenable: Reopenable) -> Store:
    return await reopenable.open()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=READ)
async def module_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Store]:
    """Empty, for a fixture that fills it and gives the tests of a module an EventReader.

    To open and to fill a store takes longer than to ask it. The tests run `on_module_loop`.
    """
    reopenable: Reopenable | ReopenableReplicated
    if request.param == REPLICATED.values[0]:
        servers = [request.getfixturevalue(name) for name in ("postgres", "follower")]
        reopenable = ReopenableReplicated(*servers)
    else:
        reopenable = reopenable_on(request, tmp_path_factory.mktemp("store"))
    yield await reopenable.open()
    await reopenable.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded(module_store: Store) -> EventReader:
    """What is in it: `a_wide_crowd`."""
    await write(module_store, *a_wide_crowd())
    return module_store
