"""Statements that PostgreSQL keeps prepared for reads whose clients leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from relay.storage.postgres.connections import Connections
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

_IN_TRANSACTION = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rookery' AND xact_start < now()
"""
_SLEEPING = """
    SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'
"""


async def test_connections_whose_statements_are_interrupted_end_now_and_then(
    postgres: PostgresServer,
) -> None:
    """asyncpg closes no statement that was prepared for a task that was cancelled: 105 kB for each
    stayed on the server as long as the connection. The server must not go on with the statement of
    a connection that has ended."""
    pool = Connections(await postgres.new_schema())
    await pool.open()
    used = set[int]()
    try:
        for _ in range(33):
            asked = asyncio.Event()

            async def sleeps(asked: asyncio.Event = asked) -> None:
                async with pool.paging() as db:
                    used.add(await db.fetchval("SELECT pg_backend_pid()"))
                    asked.set()
                    await db.fetch("SELECT pg_sleep(60)")

            task = asyncio.create_task(sleeps())
            await asked.wait()
            async with until("the server is in the statement") as tries:
                async for _ in tries:
                    if await postgres.value(_SLEEPING):
                        break
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert await postgres.value(_SLEEPING) == 0
    finally:
        await pool.close()
    assert len(used) == 3


async def test_a_read_interrupted_before_its_statement_runs_leaves_no_transaction(
    postgres: PostgresServer,
) -> None:
    """To prepare a statement begins one. The next snapshot on that connection failed, for another
    client: `SET TRANSACTION ISOLATION LEVEL must be called before any query`."""
    pool = Connections(await postgres.new_schema())
    await pool.open()
    try:
        with suppress(asyncio.CancelledError):
            async with pool.reading() as db:
                first = await db.fetchval("SELECT pg_backend_pid()")
                await db.prepare("SELECT count(*) FROM pg_class")
                raise asyncio.CancelledError
        assert await postgres.value(_IN_TRANSACTION) == 0
        async with pool.snapshot() as db:
            assert await db.fetchval("SELECT pg_backend_pid()") == first
    finally:
        await pool.close()
