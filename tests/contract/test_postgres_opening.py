"""Databases that PostgresStore migrates and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import orjson
import pytest

from relay.access.quotas import Size, SizedBy
from relay.errors import StoreFault, StoreVersion
from relay.lifecycle.rows import Slot
from relay.lifecycle.versions import History
from relay.storage.postgres import listening
from relay.storage.postgres.opening import SCHEMA_VERSION
from relay.storage.postgres.sql.named import QUERIES
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.writing import (
    EVERYTHING,
    TERMS,
    asked,
    read,
    stored,
    takes_over,
    unsigned,
    write,
)
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

_TO_VERSION_3 = """
DROP INDEX tags_kind, events_d;
CREATE INDEX events_d ON events (substring(d, 1, 200)) WHERE d <> '';
UPDATE meta SET value = '3' WHERE name = 'schema';
"""
_TO_VERSION_2 = f"""
{_TO_VERSION_3}
DROP TABLE policy_versions;
UPDATE meta SET value = '2' WHERE name = 'schema';
"""
_TO_VERSION_1 = f"""
{_TO_VERSION_2}
ALTER TABLE head DROP COLUMN changes_after;
DROP TABLE changes, used_calls;
UPDATE meta SET value = '1' WHERE name = 'schema';
"""
_SHAPE = """
SELECT table_name, column_name, data_type, is_nullable, column_default
FROM information_schema.columns WHERE table_schema = current_schema()
ORDER BY table_name, ordinal_position
"""
_INDICES = """
SELECT replace(indexdef, schemaname || '.', '') FROM pg_indexes
WHERE schemaname = current_schema() ORDER BY indexname
"""


async def queried(url: str, sql: str) -> list[Any]:
    db = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await db.fetch(sql)]
    finally:
        await db.close()


async def executed(url: str, sql: str) -> None:
    db = await asyncpg.connect(url)
    try:
        await db.execute(sql)
    finally:
        await db.close()


async def fault_of(work: Awaitable[object]) -> str:
    try:
        await work
    except StoreFault as fault:
        return str(fault)
    return ""


async def test_a_pooler_is_refused_unless_it_is_in_session_mode(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay started behind one, and could not write."""
    url = await postgres.new_schema()
    monkeypatch.setattr("asyncpg.Connection.get_server_pid", lambda _: 1)  # as it makes one up
    store = await PostgresStore.open(url, TERMS)
    await store.close()
    monkeypatch.setitem(QUERIES, "process", "SELECT 7")
    assert "a pooler is in between" in await fault_of(PostgresStore.open(url, TERMS))
    await postgres.empty(url)


@pytest.mark.parametrize("downgrade", [_TO_VERSION_1, _TO_VERSION_2, _TO_VERSION_3], ids="123")
async def test_a_database_of_an_earlier_version_is_migrated(
    postgres: PostgresServer, downgrade: str
) -> None:
    url = await postgres.new_schema()
    event = unsigned(cast.alice, content="from before")
    store = await PostgresStore.open(url, TERMS)
    row = await stored(store, event)
    await store.close()
    shape, indices = await queried(url, _SHAPE), await queried(url, _INDICES)
    await executed(url, downgrade)
    store = await PostgresStore.open(url, TERMS, is_shared=True)
    await store.follow()
    assert await read(store) == [event.raw]
    await store.close()
    assert (await queried(url, _SHAPE), await queried(url, _INDICES)) == (shape, indices)
    changes_after = row.seq if downgrade == _TO_VERSION_1 else 0
    assert await queried(url, "SELECT seq, changes_after FROM head") == [(row.seq, changes_after)]
    assert await queried(url, "SELECT value FROM meta WHERE name = 'schema'") == [
        (str(SCHEMA_VERSION),)
    ]
    await postgres.empty(url)


async def test_the_labelled_records_of_version_3_leave_their_group(
    postgres: PostgresServer,
) -> None:
    d, h = ["d", "snowclaw:config:group:tea"], ["h", "tea"]
    old, new = (unsigned(cast.owner, 30078, [d, h], at=at) for at in (1, 2))
    record = unsigned(cast.owner, 30078, [["d", "snowclaw:configs"], h])
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    for event in (old, new, record):
        await write(store, event, history=History(3))
    await store.close()
    await executed(url, _TO_VERSION_3)
    store = await PostgresStore.open(url, TERMS)
    assert [row.group for row in await store.since(0, 10)] == [None, "tea"]
    rows = await store.versions(Slot(cast.owner.pubkey, 30078, d[1]), before=None, limit=10, now=0)
    assert [(row.event.id, row.group) for row in rows] == [(new.id, None), (old.id, None)]
    sizes = {line.of: line.size for line in await store.sizes(SizedBy.GROUP, 10)}
    labelled = Size(2, len(old.raw) + len(new.raw))
    assert sizes == {None: labelled, "tea": Size(1, len(record.raw))}
    await store.close()
    await postgres.empty(url)


async def test_a_database_of_a_later_version_is_refused(postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    await (await PostgresStore.open(url, TERMS)).close()
    await executed(url, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(StoreVersion, match="schema 99, this Rookery knows up to"):
        await PostgresStore.open(url, TERMS)
    await postgres.empty(url)


async def test_a_database_is_not_migrated_below_the_relays_that_have_it(
    postgres: PostgresServer,
) -> None:
    url = await postgres.new_schema()
    older = await PostgresStore.open(url, TERMS, is_shared=True)
    await executed(url, _TO_VERSION_3)  # which takes no table from its listener
    with pytest.raises(StoreFault, match="a relay on it: stop all of them first"):
        await (await PostgresStore.open(url, TERMS, is_shared=True)).close()
    await older.close()
    await (await PostgresStore.open(url, TERMS, is_shared=True)).close()
    await postgres.empty(url)


async def test_a_relay_that_was_away_when_the_database_was_migrated_leaves_it_alone(
    postgres: PostgresServer,
) -> None:
    url = await postgres.new_schema()
    older = await PostgresStore.open(url, TERMS, is_shared=True)
    older.take_over = takes_over
    await executed(url, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    await postgres.kill_connections()
    async with until("it neither reads nor writes, and says why") as tries:
        async for _ in tries:
            told = [
                await fault_of(read(older)),
                await fault_of(write(older, unsigned(cast.alice))),
            ]
            if told == [listening.MIGRATED] * 2:
                break
    await older.close()
    await postgres.empty(url)


async def test_a_new_connection_finds_that_another_relay_has_had_the_database(
    postgres: PostgresServer,
) -> None:
    """It may be there before the listener notices that its own was lost."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await write(store, unsigned(cast.alice))
    await executed(url, "UPDATE meta SET value = 'another' WHERE name = 'opened_by'")
    with pytest.raises(StoreFault, match="another relay took the database"):
        await store._connections._pooled(**store._connections._options({}))
    assert "another relay took the database" in await fault_of(read(store))
    await store.close()
    await postgres.empty(url)


async def test_a_page_follows_the_index_that_finds_fewest(postgres: PostgresServer) -> None:
    """Also where statistics say that nearly all rows are of another kind, or of two authors."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    writers = (cast.alice, cast.robot)
    await write(store, *[unsigned(who, at=at) for at in range(1000) for who in writers])
    await executed(url, "ANALYZE events")
    alice = [cast.alice.pubkey]
    for index, filter_ in {
        "events_time": asked(),
        "events_kind": asked(kinds=[7]),
        "events_author": asked(kinds=[7], authors=alice),
    }.items():
        steps = " ".join(await store.plan([filter_], EVERYTHING, "REQ", now=0)).split()
        assert {step for step in steps if step.startswith("events_")} == {index}
    await store.close()
    await postgres.empty(url)


async def test_a_page_by_tags_begins_with_its_tags(postgres: PostgresServer) -> None:
    """Also by the statistics of a single row, where reading all events for each tag looks cheap."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await write(store, unsigned(cast.alice, tags=[["t", "a"], ["k", "a"]]))
    await executed(url, "VACUUM ANALYZE")
    values = ["a", "b", "c"]
    steps = await store.plan([asked(**{"#t": values, "#k": values})], EVERYTHING, "REQ", now=0)
    scans = [step for step in steps if " on " in step]
    assert scans[0] == "Index Only Scan on tags using tags_hash"
    await store.close()
    await postgres.empty(url)


async def test_what_mentions_a_key_or_name_is_not_read_for_its_kind(
    postgres: PostgresServer,
) -> None:
    """A note may have any `p` and `d`."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    key, d = cast.alice.pubkey, "anamnesis:memory:a"
    tags = [["p", key], ["d", d]]
    await write(store, *[unsigned(cast.bob, 1, tags, str(number)) for number in range(2000)])
    await store.close()
    await executed(url, "VACUUM ANALYZE")
    p, pubkey = store._hashes.tag("p", key), bytes.fromhex(key)
    asked_of: dict[str, tuple[object, ...]] = {
        "keys_stored": ([pubkey], [p]),
        "size_of_key": (pubkey, p, 100),
        "groups_with_keys": ([pubkey], [p]),
        "groups_put_into": (p, 0, 1),
        "leaving_of_key": (pubkey, p, 5000, 100),
        "rows_of_key": (pubkey, p, 5000, 10_000),
        "rows_by_name": ([78], [d.encode()], 1 << 20),
    }
    read = await pages_read(url, asked_of)
    assert max(read.values()) < 20, read
    await postgres.empty(url)


async def pages_read(
    url: str, asked_of: Mapping[str, tuple[object, ...]], mode: str = "auto", first: str = ""
) -> dict[str, int]:
    """Name of a query → pages that it reads with these values, in a transaction after `first`."""
    db = await asyncpg.connect(url, server_settings={"plan_cache_mode": mode})
    await db.execute(f"BEGIN; {first}")
    read = {}
    for name, values in asked_of.items():
        plan = await db.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {QUERIES[name]}", *values)
        top = orjson.loads(plan[0][0])[0]["Plan"]
        read[name] = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
    await db.close()
    return read


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_whether_anything_of_a_key_is_stored_is_looked_up_before_the_first_vacuum(
    postgres: PostgresServer, mode: str
) -> None:
    """Of many wraps with the same tags, each request to vanish of an unknown key read all: 0.5 s.
    By statistics every key has thousands of rows."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await write(store, *[unsigned(cast.alice, 1059, at=at) for at in range(2000)])
    await store.close()
    await executed(
        url,
        "INSERT INTO tags (hash, created_at, id_key, seq, kind)"
        " SELECT t, e.created_at, e.id_key, e.seq, 1059"
        " FROM events AS e, generate_series(1, 20) AS t",
    )
    await executed(url, "ANALYZE events, tags")
    for keys in (1, 100):
        unknown = [number.to_bytes(32, "big") for number in range(keys)]
        read = await pages_read(url, {"keys_stored": (unknown, list(range(-keys, 0)))}, mode)
        assert read["keys_stored"] < 30 * keys, read
    await postgres.empty(url)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_of_many_tombstones_for_few_ids_no_more_are_read_than_asked_for(
    postgres: PostgresServer, mode: str
) -> None:
    """5,400 deletions of the same 20 ids by as many keys: by its statistics, each batch then read
    the whole table, 1.7 s, for ever."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await store.close()
    await executed(
        url,
        "INSERT INTO tombstones (target, by, why) SELECT (i % 20)::text::bytea,"
        " (i / 20)::text::bytea, 'x' FROM generate_series(1, 40000) i",
    )
    await executed(url, "VACUUM ANALYZE")
    others = [b"e:%d" % number for number in range(10)]
    asked_of: dict[str, tuple[object, ...]] = {
        "tombstones": (others, 2049),
        "tombstones_by": (others, others),
    }
    read = await pages_read(url, asked_of, mode)
    assert max(read.values()) < 50, read
    await postgres.empty(url)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_old_versions_are_looked_up_by_name_however_many_the_others_have(
    postgres: PostgresServer, mode: str
) -> None:
    """By its statistics each name has thousands, and the whole table would be read."""
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    await store.close()
    await executed(
        url,
        "INSERT INTO old_versions (seq, id, pubkey, kind, created_at, slot, version, quiet,"
        " replaced_at, raw) SELECT i, i::text::bytea, 'x', 30023, i, i % 20, i, false, i,"
        " decode(repeat('ab', 400), 'hex') FROM generate_series(1, 40000) i",
    )
    await executed(url, "VACUUM ANALYZE")
    slots, ids = [*range(-60, 0), *[None] * 60], [*[None] * 60, *[b"%d" % -n for n in range(60)]]
    nothing = [None] * 120
    asked_of: dict[str, tuple[object, ...]] = {
        "forget_named": (slots, ids, [50_000] * 120, nothing, nothing, nothing)
    }
    read = await pages_read(url, asked_of, mode, QUERIES["by_index"])
    assert max(read.values()) < 500, read
    await postgres.empty(url)
