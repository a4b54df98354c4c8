"""A store is copied to another while it changes; the copy is equal, or it is said where not."""

from __future__ import annotations

import re
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from relay.cli.data_folder import LocalFolder
from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import StoreFault, UserError
from relay.facts import Origin
from relay.groups.group import EndedGroup
from relay.lifecycle.rows import LONG_EXPIRED, Lookups, WritePlan
from relay.nostr.filters import FilterTerms
from relay.storage.moving import TABLES, TOTALS, Move
from relay.storage.postgres.moving import PostgresSide
from relay.storage.postgres.store import PostgresStore
from relay.storage.sqlite.moving import SqliteSide
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.harness.postgres import postgres
from tests.harness.stocked_folder import stocked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.cli.services import Services
    from relay.nostr.event import Event
    from relay.storage import Appender
    from relay.storage.moving import Side
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.process

NOT_ENTRIES = {
    *("meta", "head", "events", "old_versions", "tags", "texts", "changes", "used_calls"),
    *("policy_versions", "partition_moves"),
}
"""Rows, what follows from them, and what is kept for minutes or is of one store."""


@asynccontextmanager
async def sides(url: str, file: Path) -> AsyncIterator[tuple[Side, Side, Appender]]:
    """The file, the database, and a store that writes to the database."""
    store = await PostgresStore.open(url, FilterTerms())
    target = await PostgresSide.open(url, None)
    source = SqliteSide(file)
    try:
        yield source, target, store
    finally:
        await source.close()
        await target.close()
        await store.close()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Services]:
    async with run_services(folder, load_config(folder / "rookery.toml")) as services:
        yield services


def with_history(folder: Path) -> None:
    file = folder / "policies" / "70-history.toml"
    file.write_text(
        "[[retention]]\nname = 'essays'\nmatch = { kinds = [30023] }\nhistory = { count = 2 }\n"
    )


async def written(services: Services, *events: Event) -> None:
    replies = await LocalFolder(services).submit(events, Origin.IMPORT)
    assert [reply for reply in replies if not reply[0]] == []


async def changed(services: Services, before: list[Event], now: int) -> None:
    """Everything that changes or deletes what was copied."""
    alice, owner, bob = cast.alice, cast.owner, cast.bob
    essays = [alice.sign(30023, [["d", "essay"]], f"version {each}", now + each) for each in (1, 2)]
    await written(services, *essays)
    await written(
        services,
        alice.sign(5, [["e", before[-2].id]], "", now + 3),
        owner.sign(9001, [["h", "tea"], ["p", alice.pubkey]], "", now + 3),
        owner.sign(9008, [["h", "food"]], "", now + 3),
        bob.sign(1, [], "said meanwhile", now + 3),
        cast.carol.sign(1, [], "soon forgotten", now + 3),
    )
    await written(services, cast.carol.sign(62, [["relay", "ALL_RELAYS"]], "", now + 4))


def nothing(_done: int, _total: int) -> None:
    pass


@pytest.fixture
def before(tmp_path: Path) -> list[Event]:
    """What is in `folder`."""
    events = stocked(tmp_path / "data")
    with_history(tmp_path / "data")
    return events


@pytest.fixture
def folder(tmp_path: Path, before: list[Event]) -> Path:
    return tmp_path / "data"


async def test_what_changes_while_it_is_copied_is_followed(
    folder: Path, before: list[Event], postgres: PostgresServer
) -> None:
    url, now = await postgres.new_schema(), int(time.time())
    async with running(folder) as services:
        await written(services, cast.alice.sign(30023, [["d", "essay"]], "first", now))
        async with sides(url, folder / "rookery.db") as (source, target, store):
            move = await Move.begun(source, target, store)
            await move.copy(nothing)
            await changed(services, before, now)
            await move.catch_up()
            there = await move.verify()
            assert there.old_versions == 2
            assert there.entries["tombstones"] > 1
            await written(services, cast.bob.sign(5, [["k", "1"], ["e", before[12].id]], "", now))
            await move.end()
            assert await target.head() == await source.head()
            assert (await move.verify()).events == there.events + 1
    async with sides(url, folder / "rookery.db") as (source, _, store):
        vanished = [stone async for stones in source.entries(TABLES[0]) for stone in stones]
        assert any(stone[4] for stone in vanished)
        assert await store.since(0, 5) != []


async def test_a_move_goes_on_where_it_was_killed(folder: Path, postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (source, target, store):
        killed = await Move.begun(source, target, store)
        await killed._step()
        copied = await target.head()
        assert copied > 0
        again = await Move.begun(source, target, store)
        await again.copy(nothing)
        await again.verify()
        await again.end()
        assert await PostgresSide.why_closed(target) == ""  # type: ignore[arg-type]


async def test_an_unfinished_copy_is_opened_by_no_relay(
    folder: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (source, target, store):
        await Move.begun(source, target, store)
        assert "run `rookery move` again" in await PostgresSide.why_closed(target)  # type: ignore[arg-type]


async def test_a_database_with_something_else_is_left_alone(
    folder: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (source, target, store):
        await (await Move.begun(source, target, store)).copy(nothing)
        await source.end_log()
        with pytest.raises(UserError, match="holds a part of another move"):
            await Move.begun(source, target, store)
        await target.set_mark(None)
        with pytest.raises(UserError, match="has events already"):
            await Move.begun(source, target, store)


@pytest.mark.parametrize("table", ["tombstones", "groups", "members", "sizes", "received"])
async def test_a_copy_that_differs_is_noticed(
    folder: Path, postgres: PostgresServer, table: str
) -> None:
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (source, target, store):
        move = await Move.begun(source, target, store)
        await move.copy(nothing)
        await postgres.execute(f"DELETE FROM {postgres.schema_of(url)}.{table}")
        with pytest.raises(StoreFault, match=f"differs from what was copied: {table}"):
            await move.verify()


async def test_nothing_ends_that_was_not_compared(folder: Path, postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (source, target, store):
        move = await Move.begun(source, target, store)
        await move.copy(nothing)
        with pytest.raises(StoreFault, match="never compared"):
            await move.end()


async def test_what_came_after_the_comparison_is_compared_before_the_switch(
    folder: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    async with (
        running(folder) as services,
        sides(url, folder / "rookery.db") as (source, target, store),
    ):
        move = await Move.begun(source, target, store)
        await move.copy(nothing)
        await move.verify()
        await written(services, cast.bob.sign(1, [], "said since", int(time.time())))
        while await move._step():
            pass
        head = await target.head()
        await postgres.execute(f"DELETE FROM {postgres.schema_of(url)}.events WHERE seq = {head}")
        with pytest.raises(StoreFault, match="differs from what was copied: rows after"):
            await move.catch_up()


@pytest.mark.parametrize(
    ("rounds", "fault"),
    [
        ([9_000, 150], ""),
        ([9_000, 900, 950], ""),  # the next would leave no less
        ([9_000, 3_000, 3_100, 2_000, 100], ""),
        ([600_000, 300_000, 300_000], "more is written than is copied"),
    ],
)
async def test_it_is_followed_until_little_is_left(
    monkeypatch: pytest.MonkeyPatch, rounds: list[int], fault: str
) -> None:
    async def one_round(_: Move) -> int:
        return rounds.pop(0)

    monkeypatch.setattr(Move, "_round", one_round)
    following = Move.__new__(Move).catch_up()
    with pytest.raises(UserError, match=fault) if fault else nullcontext():
        await following
    assert rounds == []


async def test_it_comes_back_as_it_went(
    folder: Path, tmp_path: Path, postgres: PostgresServer
) -> None:
    url, there = await postgres.new_schema(), tmp_path / "back" / "rookery.db"
    there.parent.mkdir()
    async with sides(url, folder / "rookery.db") as (source, database, store):
        move = await Move.begun(source, database, store)
        await move.copy(nothing)
        gone = await move.verify()
        await move.end()
        await database.set_mark(None)
        file_store = await SqliteStore.open(there, FilterTerms())
        file = SqliteSide(there)
        try:
            move = await Move.begun(database, file, file_store)
            await move.copy(nothing)
            assert await move.verify() == gone
            await move.end()
        finally:
            await file.close()
            await file_store.close()


@pytest.fixture(params=["to a database", "to a file"])
async def move(
    request: pytest.FixtureRequest, folder: Path, tmp_path: Path, postgres: PostgresServer
) -> AsyncIterator[tuple[Move, Appender]]:
    """A move that has begun, and what writes to its source, with alice in an ended group."""
    async with AsyncExitStack() as open_:
        database, file_path = await postgres.new_schema(), tmp_path / "file" / "rookery.db"
        file_path.parent.mkdir()
        file_store = await SqliteStore.open(file_path, FilterTerms())
        open_.push_async_callback(file_store.close)
        file, there, store = await open_.enter_async_context(sides(database, file_path))
        source, target = file, there
        written_by: Appender = file_store
        to = store
        if request.param == "to a file":
            source, target, written_by, to = there, file, store, file_store
        stock = SqliteSide(folder / "rookery.db")
        open_.push_async_callback(stock.close)
        stocking = await Move.begun(stock, source, written_by)
        await stocking.copy(nothing)
        await source.set_mark(None)
        await planned(written_by, WritePlan(groups={"over": EndedGroup(frozenset({ALICE}))}))
        yield await Move.begun(source, target, to), written_by


ALICE = cast.alice.pubkey


async def planned(store: Appender, plan: WritePlan) -> None:
    await store.append(Lookups(frozenset(), frozenset(), frozenset()), lambda _found: plan)


@pytest.mark.parametrize("compared", [False, True])
async def test_a_row_that_is_deleted_while_it_is_moved_stays_deleted(
    move: tuple[Move, Appender],
    compared: bool,  # noqa: FBT001
) -> None:
    """The end of a large group leaves its records to the sweep. A copy kept them for ever."""
    moving, store = move
    await moving.copy(nothing)
    if compared:
        await moving.verify()
    first, *_ = await moving._source.rows(0, 1)
    await planned(store, WritePlan(expired={first[0]}))
    await moving.catch_up()
    await moving.verify()
    await moving.end()
    (there,) = await moving._target.rows(first[0] - 1, 1)
    assert there == (*first[:-1], LONG_EXPIRED)


@pytest.mark.parametrize("compared", [False, True])
async def test_a_key_that_vanishes_during_a_move_is_no_former_member_in_the_copy(
    move: tuple[Move, Appender],
    compared: bool,  # noqa: FBT001
) -> None:
    """The comparison failed for ever, or did not notice."""
    moving, store = move
    await moving.copy(nothing)
    if compared:
        await moving.verify()
    await planned(store, WritePlan(left_ended={ALICE: frozenset({"over"})}))
    await moving.catch_up()
    await moving.verify()
    await moving.end()
    (former,) = [table for table in TABLES if table.name == "former_members"]
    assert await moving._target.entries_at(former, ["over"]) == []


async def test_a_row_that_gets_deleted_between_copy_and_switch_is_compared(
    folder: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    async with (
        running(folder) as services,
        sides(url, folder / "rookery.db") as (source, target, store),
    ):
        move = await Move.begun(source, target, store)
        await move.copy(nothing)
        await move.verify()
        first, *_ = await source.rows(0, 1)
        await planned(services.store, WritePlan(expired={first[0]}))
        while await move._step():
            pass
        await postgres.execute(f"UPDATE {postgres.schema_of(url)}.events SET expires_at = NULL")
        with pytest.raises(StoreFault, match="differs from what was copied: groups or expiries"):
            await move.end()


async def test_a_log_of_an_earlier_version_begins_anew(
    folder: Path, postgres: PostgresServer
) -> None:
    """It lacks changes that are noted by now."""
    url = await postgres.new_schema()
    async with sides(url, folder / "rookery.db") as (_, database, _store):
        log = await database.begin_log()
        assert await database.begin_log() == log
        schema = postgres.schema_of(url)
        await postgres.execute(f"DROP TRIGGER moving_former ON {schema}.former_members")
        assert await database.begin_log() != log
        await database.end_log()


@pytest.mark.parametrize(
    ("store", "of_no_copy"), [("sqlite", {"partition"}), ("postgres", {"tags"})]
)
def test_every_column_that_changes_in_a_row_is_copied_again(
    store: str, of_no_copy: set[str]
) -> None:
    """A new one must be thought of: `Move._apply` and `_compare_lines`, and the triggers."""
    sql = resources.files(f"relay.storage.{store}.sql")
    text = sql.joinpath("queries.sql").read_text("utf-8")
    changed = set(re.findall(r"UPDATE events (?:AS e )?SET (\w+) =", text))
    assert changed - of_no_copy == {"grp", "expires_at"}


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_table_is_copied_or_made_anew(store: str) -> None:
    """A new one must be thought of."""
    schema = resources.files(f"relay.storage.{store}.sql")
    text = schema.joinpath("schema.sql").read_text("utf-8")
    tables = set(re.findall(r"^CREATE TABLE (\w+)", text, re.MULTILINE))
    known = {table.name for table in (*TABLES, *TOTALS)}
    assert tables - NOT_ENTRIES == known
    for table in (*TABLES, *TOTALS):
        (body,) = re.findall(rf"^CREATE TABLE {table.name} \((.*?)^\)", text, re.M | re.S)
        columns = re.findall(r"^    ([a-z_]+) ", body, re.MULTILINE)
        assert list(table.columns) == [name for name in columns if name != "partition"]
