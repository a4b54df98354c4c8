"""Policy files in the database: numbered versions, each pushed over the one that was seen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import asyncpg
import msgspec
import pytest

from relay.errors import ConfigFaults, Invalid, StoreVersion
from relay.storage.policy_versions import (
    KEPT,
    MAX_BYTES,
    MAX_FILES,
    Overtaken,
    PolicyVersion,
    packed,
    unpacked,
)
from relay.storage.postgres.policies import PolicyVersions, opened_policies
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.contract.writing import TERMS, read, stored, unsigned
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.postgres import PostgresServer

pytestmark = pytest.mark.process

FILES = {"20-own.toml": b"# own\n", "lists/banned.txt": b"", "10-preset.toml": b"\xff"}


@asynccontextmanager
async def opened_store(postgres: PostgresServer) -> AsyncIterator[tuple[PostgresStore, str]]:
    url = await postgres.new_schema()
    store = await PostgresStore.open(url, TERMS)
    try:
        yield store, url
    finally:
        await store.close()
        await postgres.empty(url)


async def pushed(versions: PolicyVersions, over: int, text: bytes = b"") -> PolicyVersion:
    files = {**FILES, "30.toml": text}
    return await versions.push(files, over=over, at=1_000 + over, by="anna", message="more")


async def test_what_is_pushed_is_read_back(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, _):
        versions = store.policies
        assert await versions.read() is None
        assert await versions.versions(9) == []
        first, second = await pushed(versions, 0, b"1"), await pushed(versions, 1, b"2")
        assert (first.number, first.at, first.by, first.message) == (1, 1_000, "anna", "more")
        assert (first.files, first.bytes) == (4, 8)
        assert await versions.versions(9) == [second, first]
        assert await versions.versions(1) == [second]
        assert await versions.read() == (second, {**FILES, "30.toml": b"2"})
        assert await versions.read(1) == (first, {**FILES, "30.toml": b"1"})
        assert await versions.read(3) is None


async def test_of_two_pushes_at_once_the_second_is_told_of_the_first(
    postgres: PostgresServer,
) -> None:
    async with opened_store(postgres) as (store, url), opened_policies(url, None) as other:
        await pushed(store.policies, 0)
        ends = await asyncio.gather(
            pushed(store.policies, 1, b"one"), pushed(other, 1, b"other"), return_exceptions=True
        )
        (stored,) = [end for end in ends if isinstance(end, PolicyVersion)]
        (overtaken,) = [end for end in ends if isinstance(end, Overtaken)]
        assert overtaken.newest == stored
        assert (await other.versions(9))[0] == stored


async def test_a_push_over_what_is_not_there_is_refused(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, _):
        with pytest.raises(Overtaken) as refused:
            await pushed(store.policies, 1)
        assert refused.value.newest is None


async def test_a_push_drops_versions_that_are_long_gone(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, url):
        await pushed(store.policies, 0)
        db = await asyncpg.connect(url)
        await db.execute(f"UPDATE policy_versions SET version = {KEPT}")
        await db.close()
        await pushed(store.policies, KEPT)
        assert [each.number for each in await store.policies.versions(9)] == [KEPT + 1, KEPT]
        await pushed(store.policies, KEPT + 1)
        assert [each.number for each in await store.policies.versions(9)] == [
            *range(KEPT + 2, KEPT - 1, -1)
        ]


async def test_a_store_hears_of_a_push(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, url), opened_policies(url, None) as other:
        heard = asyncio.Event()
        store.policies.changed = heard.set
        await pushed(other, 0)
        async with asyncio.timeout(ANSWER_S):
            await heard.wait()
        assert store.policies.newest == 1


async def test_a_store_hears_of_a_push_that_was_not_told(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, url):
        heard = asyncio.Event()
        store.policies.changed = heard.set
        db = await asyncpg.connect(url)
        await db.execute("INSERT INTO policy_versions VALUES (7, 0, '', '', '', 0, 0, '')")
        await db.close()
        async with asyncio.timeout(ANSWER_S):
            await heard.wait()
        assert store.policies.newest == 7


@pytest.mark.parametrize("forged", ["-1", "9223372036854775807", "9" * 5_000, "", "x"])
async def test_a_notification_of_somebody_else_changes_nothing(
    postgres: PostgresServer, forged: str
) -> None:
    """Whoever may connect to the database can send one, without a right to any table."""
    async with opened_store(postgres) as (store, url), opened_policies(url, None) as other:
        heard: list[int] = []

        async def hears(number: int) -> None:
            async with until("it hears of the version") as tries:
                async for _ in tries:
                    if store.policies.newest == number:
                        return

        store.policies.changed = lambda: heard.append(store.policies.newest)
        await pushed(other, 0, b"old")
        await pushed(other, 1, b"new")
        await hears(2)
        row = await stored(store, unsigned(cast.alice))
        schema = postgres.schema_of(url)
        await postgres.execute(f"SELECT pg_notify('rookery_{schema}', '{forged}')")
        await pushed(other, 2, b"newer")
        await hears(3)
        assert heard == sorted(set(heard))
        assert store.committed() == row.seq
        assert await read(store) == [row.event.raw]


async def test_a_version_that_was_damaged_is_refused(postgres: PostgresServer) -> None:
    async with opened_store(postgres) as (store, url):
        await pushed(store.policies, 0)
        db = await asyncpg.connect(url)
        await db.execute("UPDATE policy_versions SET files = files || '\\x00'::bytea")
        await db.close()
        with pytest.raises(ConfigFaults, match="version 1 of the policies: is damaged"):
            await store.policies.read()


async def test_a_database_without_tables_is_not_made_by_a_push(postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    schema = postgres.schema_of(url)  # perhaps of another test
    await postgres.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
    with pytest.raises(StoreVersion, match="no tables yet: start a relay on it first"):
        async with opened_policies(url, None):
            pass
    await (await PostgresStore.open(url, TERMS)).close()
    db = await asyncpg.connect(url)
    await db.execute("UPDATE meta SET value = '2' WHERE name = 'schema'")
    await db.close()
    with pytest.raises(StoreVersion, match="schema 2, this Rookery needs"):
        async with opened_policies(url, None):
            pass
    await postgres.empty(url)


# the set -----------------------------------------------------------------------------------------


def test_equal_files_are_packed_alike() -> None:
    assert packed(FILES) == packed(dict(reversed(FILES.items())))


@pytest.mark.parametrize(
    "name",
    ["", "/etc/x.toml", "../x.toml", "a/../../x.toml", "a//b", "./a", "a\\b", "a\0", "é" * 201],
)
def test_a_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(Invalid, match="is no name of a policy file"):
        packed({name: b""})


@pytest.mark.parametrize(
    "data",
    [msgspec.msgpack.encode([("../x.toml", b"")]), b"\x91\x92\xa1\xff\xc4\x00", b"\xff", b""],
)
def test_a_foreign_name_in_the_database_is_damage(data: bytes) -> None:
    version = PolicyVersion(3, 0, "", "", sha256(data).hexdigest(), 1, 0)
    with pytest.raises(ConfigFaults, match="version 3 of the policies: is damaged"):
        unpacked(data, version)


def test_a_set_is_bounded() -> None:
    with pytest.raises(Invalid, match=f"at most {MAX_FILES} are allowed"):
        packed({f"{n}.toml": b"" for n in range(MAX_FILES + 1)})
    with pytest.raises(Invalid, match="bytes in all"):
        packed({"a": bytes(MAX_BYTES), "b": b"1"})
