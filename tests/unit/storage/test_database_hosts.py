"""relay/storage/postgres/connections.py: several hosts, and hosts that vanish."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from relay.errors import StoreFault
from relay.storage.postgres.connections import Connections, fault_of, urls_of
from tests.harness.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]


@pytest.mark.parametrize(
    ("url", "each"),
    [
        ("postgresql://r@a/db", ["postgresql://r@a/db"]),
        ("postgresql:///db?host=/run", ["postgresql:///db?host=/run"]),
        (
            "postgresql://r:x,y@a:1,b/db?sslmode=require",
            [
                "postgresql://r:x,y@a:1/db?sslmode=require",
                "postgresql://r:x,y@b/db?sslmode=require",
            ],
        ),
        ("postgresql://a,b?port=5", ["postgresql://a?port=5", "postgresql://b?port=5"]),
        (
            "postgresql://r@/db?host=/one,/other&port=1,2&search_path=x,y",
            [
                "postgresql://r@/db?host=/one&port=1&search_path=x,y",
                "postgresql://r@/db?host=/other&port=2&search_path=x,y",
            ],
        ),
        ("postgresql:///db?search_path=x,y", ["postgresql:///db?search_path=x,y"]),
    ],
)
def test_an_address_is_taken_apart_by_its_hosts(url: str, each: list[str]) -> None:
    assert urls_of(url) == each


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """The port of a host that takes connections and answers nothing."""
    came = list[asyncio.StreamWriter]()
    server = await asyncio.start_server(lambda _, writer: came.append(writer), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for each in came:
            each.close()


@pytest.mark.process
async def test_a_host_that_does_not_answer_takes_no_time_from_the_next(
    postgres: PostgresServer,
) -> None:
    async with silent() as port:
        host = postgres.socket.parent
        database = Connections(f"postgresql://rookery@/postgres?host=127.0.0.1,{host}&port={port}")
        database._urls[1] = postgres.url("public")
        await database.open()
        db = await database.listener(2)
        assert await db.fetchval("SELECT 1") == 1
        await db.close()
        assert database._urls[0] == postgres.url("public"), "it is asked first from now on"
        await database.close()


async def test_a_lost_host_is_noticed_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.create_server(("127.0.0.1", 0))

    class Connected:
        """As asyncpg has it."""

        def __init__(self) -> None:
            self._transport = self

        def get_extra_info(self, _: str) -> socket.socket:
            return made

    async def connect(*_: Any, **__: Any) -> Connected:
        return Connected()

    monkeypatch.setattr(asyncpg, "connect", connect)
    monkeypatch.setattr("relay.storage.postgres.connections._Statements.take_over", id)
    await Connections("postgresql:///rookery").listener()
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


async def test_no_host_that_answers_is_a_fault() -> None:
    with pytest.raises(StoreFault):
        await Connections("postgresql:///x?host=/nowhere,/neither").listener(0.1)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ProtocolViolationError("unsupported startup parameter: jit"),
        asyncpg.InvalidSQLStatementNameError('prepared statement "jit" does not exist'),
        asyncpg.DuplicatePreparedStatementError('prepared statement "jit" already exists'),
    ],
)
def test_what_only_a_pooler_says_is_explained(error: asyncpg.PostgresError) -> None:
    """Its words suggest a setting with which the relay starts, and cannot write."""
    text = str(fault_of(error))
    assert "name the server itself in [storage] url" in text
    assert "jit" in text
