"""`rookery doctor` about the database: each planted fault is found, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.cli.doctor_database import database_findings
from relay.config import PolicySource, StorageConfig
from relay.nostr.filters import FilterTerms
from relay.storage.postgres.store import PostgresStore
from tests.harness.postgres import postgres

if TYPE_CHECKING:
    from pathlib import Path

    from relay.cli.findings import Finding
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.process

OF_TESTS = {"fsync is off", "full_page_writes is off", "autovacuum is off"}
"""A server for tests keeps nothing."""


async def made(postgres: PostgresServer) -> str:
    url = await postgres.new_schema()
    await (await PostgresStore.open(url, FilterTerms())).close()
    return url


async def found(url: str, *, is_running: bool = False) -> list[Finding]:
    """What is wrong beside the settings of the server for tests."""
    findings = await database_findings(StorageConfig(url), is_running=is_running)
    return [each for each in findings if each.text.partition(":")[0] not in OF_TESTS]


async def test_a_folder_without_a_database_is_not_asked() -> None:
    assert await database_findings(StorageConfig(), is_running=False) == ()


async def test_a_server_that_may_lose_what_it_has_committed_is_found(
    postgres: PostgresServer,
) -> None:
    findings = await database_findings(StorageConfig(await made(postgres)), is_running=False)
    assert {each.text.partition(":")[0] for each in findings} == OF_TESTS


async def test_policies_that_nobody_pushed_are_missed(postgres: PostgresServer) -> None:
    storage = StorageConfig(await made(postgres), policies=PolicySource.DATABASE)
    findings = await database_findings(storage, is_running=False)
    assert "no policies were pushed to the database" in {each.text for each in findings}


async def test_a_database_before_its_first_start_is_well(postgres: PostgresServer) -> None:
    assert await found(await postgres.new_schema()) == []


@pytest.mark.parametrize(
    ("plant", "severity", "says", "cure"),
    [
        (
            "DROP INDEX {}.events_slot",
            "error",
            "events_slot is missing",
            "CREATE INDEX events_slot",
        ),
        ("CREATE TABLE {}.meta (name text)", "error", "of another program", "make one"),
        ("UPDATE {}.meta SET value = '99' WHERE name = 'schema'", "error", "schema 99", "newer"),
        (
            """INSERT INTO {}.meta VALUES ('moving', '{{"log":"x"}}')""",
            "error",
            "holds a part of what is moved",
            "rookery move",
        ),
    ],
)
async def test_a_planted_fault_is_the_one_that_is_found(
    postgres: PostgresServer, plant: str, severity: str, says: str, cure: str
) -> None:
    is_other = plant.startswith("CREATE TABLE")
    url = await postgres.new_schema() if is_other else await made(postgres)
    schema = postgres.schema_of(url)
    await postgres.execute(plant.format(schema))
    if is_other:
        await postgres.execute(f"ALTER TABLE {schema}.meta ADD COLUMN value text")
    (one,) = await found(url)
    assert one.severity == severity
    assert says in one.text
    assert cure in one.cure


async def test_a_database_that_others_may_connect_to_is_found(postgres: PostgresServer) -> None:
    url = await made(postgres)
    await postgres.execute("CREATE ROLE guest LOGIN")
    try:
        (one,) = await found(url)
        assert "every role of the server may connect" in one.text
        await postgres.execute(one.cure)
        assert await found(url) == []
    finally:
        await postgres.execute("GRANT CONNECT ON DATABASE postgres TO PUBLIC; DROP ROLE guest")


async def test_commits_that_a_crash_loses_are_found(postgres: PostgresServer) -> None:
    (one,) = await found(f"{await made(postgres)}&synchronous_commit=off")
    assert "a crash of the server loses acknowledged events" in one.text


async def test_a_read_only_database_is_found(postgres: PostgresServer) -> None:
    (one,) = await found(f"{await made(postgres)}&default_transaction_read_only=on")
    assert one.text == "the database is read-only: nothing can be written"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql:///none?host=/nowhere", "the database does not answer: "),
        ("postgresql://nobody@/postgres?host={}", "the database does not answer: "),
    ],
)
async def test_a_database_that_does_not_answer_is_found(
    postgres: PostgresServer, url: str, says: str
) -> None:
    host = postgres.url("public").partition("host=")[2].partition("&")[0]
    (one,) = await database_findings(StorageConfig(url.format(host)), is_running=False)
    assert one.text.startswith(says)


async def test_a_pooler_is_found(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In transaction mode writes failed, and no text said why."""
    url = await made(postgres)
    monkeypatch.setattr("asyncpg.Connection.get_server_pid", lambda _: 1)  # as it makes one up
    (one,) = await found(url)
    assert one.text.startswith("a pooler is between the relay and the database")


async def test_a_replica_that_does_not_answer_or_is_none_is_found(
    postgres: PostgresServer,
) -> None:
    url = await made(postgres)
    for replica, says in (
        ("postgresql:///none?host=/nowhere", "the replica does not answer: "),
        (url, "[storage] replica names a primary server"),
    ):
        findings = await database_findings(StorageConfig(url, replica=replica), is_running=False)
        assert findings[-1].text.startswith(says)


async def test_a_password_file_that_is_not_there_is_found(tmp_path: Path) -> None:
    storage = StorageConfig("postgresql:///none", tmp_path / "none")
    (one,) = await database_findings(storage, is_running=False)
    assert "password_file" in one.text
