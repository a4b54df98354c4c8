"""The stores under contract. Each test runs on every one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from relay.storage.postgres.store import PostgresStore
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.tag_buffer import TAG_BUFFER_ROWS
from tests.contract.writing import TERMS
from tests.harness.postgres import postgres
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.storage import Store
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
        return await self.open()

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()
        if self._url is not None:
            await self._server.empty(self._url)


# The second sqlite writes the tags of its newest rows to the file in slices of a few: what the
# first does only after thousands of rows.
GENERATIONS = {"sqlite": TAG_BUFFER_ROWS, "sqlite, short tail": 5}


@pytest.fixture(
    params=["reference", *GENERATIONS, pytest.param("postgres", marks=pytest.mark.process)]
)
async def reopenable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopenable]:
    reopenable: Reopenable
    if request.param == "reference":
        reopenable = ReopenableReference()
    elif request.param == "postgres":
        reopenable = ReopenablePostgres(request.getfixturevalue("postgres"))
    else:
        reopenable = ReopenableSqlite(tmp_path, tag_buffer_rows=GENERATIONS[request.param])
    yield reopenable
    await reopenable.close()


@pytest.fixture
async def store(reopenable: Reopenable) -> Store:
    return await reopenable.open()
