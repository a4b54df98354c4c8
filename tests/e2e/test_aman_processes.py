"""Two processes of one Aman agent: clears and rows of one second, a followed database."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Aman, Client
from relay.client.writer import Outcome
from relay.clock import unix_now
from relay.memory.aman.records import Subscriptions, draft_of
from tests import cast
from tests.e2e.machines import machine
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import Rookery, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@asynccontextmanager
async def process(rookery: Rookery, now: int) -> AsyncIterator[Aman]:
    """One whose clock stands still."""
    async with (
        Client(rookery.url, cast.robot, now=lambda: now) as client,
        Aman(client, cast.robot) as aman,
    ):
        yield aman


async def names(aman: Aman) -> list[str]:
    return sorted(call.tool_name for call in await aman.tools("u"))


@pytest.mark.proves("A-15")
async def test_a_row_after_another_process_cleared_in_that_second_is_seen(
    rookery: Rookery,
) -> None:
    now = unix_now()
    async with process(rookery, now) as one, process(rookery, now) as two:
        await one.add_tool("u", "before", success=True, content="")
        await one.set_summary("u", "before", 1)
        assert (await one.clear("u")).outcome is Outcome.STORED
        for number, aman in enumerate((two, one, two)):
            done = await aman.add_tool("u", f"after {number}", success=True, content="")
            assert done.outcome is Outcome.STORED
        await two.set_summary("u", "after", 2)
        for aman in (one, two):
            assert await names(aman) == ["after 0", "after 1", "after 2"]
            summary = await aman.get_summary("u")
            assert summary is not None
            assert summary.summary == "after"


@pytest.mark.proves("A-15")
async def test_a_clear_after_another_process_wrote_in_that_second_hides_it(
    rookery: Rookery,
) -> None:
    now = unix_now()
    async with process(rookery, now) as one, process(rookery, now) as two:
        for _ in range(3):
            await one.clear("u")
            await two.add_tool("u", "mine", success=True, content="")
            assert await names(one) == ["mine"]
            assert (await one.clear("u")).outcome is Outcome.STORED
            assert (await names(one), await names(two)) == ([], [])
        stored = await one.fold()
        assert len(stored.snapshot("u", cast.robot.pubkey).clears) >= 4
        await one.add_tool("u", "a time of its own", success=True, content="", created_at=now)
        async with Client(rookery.url, cast.robot) as client:
            assert await client.count({"kinds": [30095]}) == 4, "nothing is lost"


@pytest.mark.proves("A-05")
async def test_subscriptions_under_any_d_are_taken_and_read(rookery: Rookery) -> None:
    now = unix_now()
    record = Subscriptions("u", ("iran",), now - 5)
    for d in ("anything", "u:topics", "another"):
        draft = draft_of(record)
        tags = [["d", d], *draft.tags[1:]]
        async with Client(rookery.url, cast.robot) as client:
            reply = await client.publish(cast.robot.sign(30097, tags, draft.content, now - 5))
            assert not reply.is_duplicate
    async with process(rookery, now) as aman:
        found = await aman.get_subscriptions("u")
        assert found is not None
        assert found.topics == ("iran",)
        await aman.set_subscriptions("u", ["bitcoin"])
        found = await aman.get_subscriptions("u")
        assert found is not None
        assert found.topics == ("bitcoin",)


def rows(db: Path, table: str, column: str) -> list[Any]:
    with closing(sqlite3.connect(db)) as file:
        return [row[0] for row in file.execute(f"SELECT {column} FROM {table} ORDER BY rowid")]


@pytest.mark.proves("A-17")
async def test_a_followed_database_stays_current_through_a_restart_of_the_relay(
    rookery: Rookery, tmp_path: Path
) -> None:
    db = tmp_path / "aman.db"
    async with (
        machine(cast.robot, rookery.url) as robot,
        Aman(rookery.url, cast.robot, folder=tmp_path / "writer") as aman,
    ):
        await aman.set_subscriptions("u", ["iran", "bitcoin"])
        await aman.set_preference("other", "stays")
        following = await robot.begin("aman", "rehydrate", "--db", str(db), "--follow")
        assert following.stdout is not None

        async def said() -> str:
            assert following.stdout is not None
            read = following.stdout.readline()
            return (await asyncio.wait_for(read, ANSWER_S)).decode().rstrip()

        counted = "preferences 1, summaries 0, tools 0, clears 0, skipped 0"
        assert await said() == counted
        assert rows(db, "subscription_state", "topics") == ['["iran","bitcoin"]']
        await aman.add_tool("u", "weather", success=True, content="sunny")
        assert await said() == "u: preferences 0, summaries 0, tools 1, clears 0"
        assert rows(db, "tool_history", "tool_name") == ["weather"]
        await aman.clear("u")
        assert await said() == "u: preferences 0, summaries 0, tools 0, clears 1"
        assert rows(db, "tool_history", "tool_name") == []
        port = rookery.url.rsplit(":", 1)[1].rstrip("/")
        await rookery.stop()
        await aman.add_tool("u", "away", success=True, content="")
        await aman.set_subscriptions("u", ["tea"])
        await rookery.start("--port", port)
        await eventually(
            "the database has what was written meanwhile",
            lambda: (
                rows(db, "subscription_state", "topics") == ['["tea"]']
                and (rows(db, "tool_history", "tool_name") == ["away"])
            ),
        )
        assert rows(db, "preferences", "preference") == ["stays"]
        following.terminate()
        await following.wait()
