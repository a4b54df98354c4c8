"""A relay whose events are in PostgreSQL (`[storage] url`)."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName
from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import Reject
from relay.storage.postgres import writer
from tests import cast
from tests.contract.test_postgres_troubles import is_waiting, without_its_replica
from tests.harness.patience import ANSWER_S
from tests.harness.postgres import postgres
from tests.harness.relay_program import Rookery, command, connected, eventually, outputs, until

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.slow


async def made(folder: Path, url: str, more: str = "") -> Rookery:
    rookery = Rookery(folder)
    await rookery.init(
        "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open"
    )
    rookery.set_up("storage", f'url = "{url}"{more}')
    return rookery


def note(text: str) -> Event:
    return cast.alice.sign(1, [["t", "tea"]], text, int(time.time()))


async def found_by(rookery: Rookery, **filter_: object) -> set[str]:
    """ids."""
    async with connected(rookery.url) as wire:
        return {event["id"] for event in await wire.query(filter_)}


async def test_events_outlive_a_killed_relay(tmp_path: Path, postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    event = note("steeped leaves")
    async with await made(tmp_path / "data", url) as rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.publish(event) == (True, "")
        await eventually("it is found by its words", lambda: found_by(rookery, search="leaves"))
        await rookery.stop(signal.SIGKILL)
        await postgres.kill_connections()  # the server may not know yet that the relay is dead
        await rookery.start()
        assert await found_by(rookery, **{"#t": ["tea"]}) == {event.id}
        assert not list(rookery.folder.glob("*.db"))
        assert await rookery.stop() == 0
        code, out, err = await outputs("export", "--data", str(rookery.folder))
        assert (code, err) == (0, "")
        assert event.raw in out.splitlines()


async def test_a_relay_writes_again_once_the_database_answers(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    async with await made(tmp_path / "data", url) as rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            await postgres.kill_connections()
            events = [note("one"), note("another")]
            for event in events:
                async with until("it is stored") as tries:
                    async for _ in tries:
                        if (await wire.publish(event))[0]:
                            break
            async with until("the lock is held again, and all is read") as tries:
                async for _ in tries:
                    found = await wire.query({"kinds": [1]})
                    if {event["id"] for event in found} == {event.id for event in events}:
                        break
        assert await rookery.stop() == 0


async def test_clients_read_on_a_replica_and_nothing_that_was_deleted(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_schema()
    follower = postgres.replica()
    there = f'\nreplica = "{follower.url(postgres.schema_of(url))}"'
    event = note("steeped leaves")
    deletion = cast.alice.sign(5, [["e", event.id]], "", int(time.time()))
    async with await made(tmp_path / "data", url, there) as rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.publish(event) == (True, "")
            async with until("clients read on the replica") as tries:
                async for _ in tries:
                    assert len(await wire.query({"kinds": [1]})) == 1
                    if await rookery.metric('replica_reads_total{from="replica"}'):
                        break
            await follower.execute("SELECT pg_wal_replay_pause()")
            assert await wire.publish(deletion) == (True, "")
            assert await wire.query({"kinds": [1]}) == []
        assert await rookery.stop() == 0
    follower.stop()


async def test_two_relays_do_not_share_a_database(tmp_path: Path, postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    async with (
        await made(tmp_path / "one", url) as one,
        await made(tmp_path / "other", url) as other,
    ):
        await one.start()
        with pytest.raises(AssertionError, match="another relay has the database open"):
            await other.start()


async def test_what_works_on_files_says_so(tmp_path: Path, postgres: PostgresServer) -> None:
    url = await postgres.new_schema()
    rookery = await made(tmp_path / "data", url)
    data = ("--data", str(rookery.folder))
    for words in (("backup", str(tmp_path)), ("verify",), ("compact",)):
        code, text = await command(*words, *data)
        assert code == 1, text
        assert f"the events of {rookery.folder} are in PostgreSQL" in text
    for words in (("stats",), ("status",), ("policy", "sweep"), ("policy", "check"), ("doctor",)):
        code, text = await command(*words, *data)
        assert "Traceback" not in text
        assert code == 0 or words == ("doctor",), text


async def test_a_folder_with_events_of_its_own_is_not_moved(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """They would be gone, without a word."""
    url = await postgres.new_schema()
    rookery = await made(tmp_path / "data", url)
    (rookery.folder / "rookery.db").touch()
    for words in (("serve", "--check"), ("export",)):
        code, text = await command(*words, "--data", str(rookery.folder))
        assert code == 1
        assert "rookery.db has events, and [storage] url names a database" in text


async def test_a_password_is_in_no_message(tmp_path: Path, postgres: PostgresServer) -> None:
    (tmp_path / "data.password").write_text("hunter2\n")
    wrong = (await postgres.new_schema()).replace("rookery@", "nobody@")
    rookery = await made(tmp_path / "data", wrong, '\npassword_file = "../data.password"')
    code, text = await command("export", "--data", str(rookery.folder))
    assert code == 1
    assert 'role "nobody" does not exist' in text
    assert "hunter2" not in text


async def test_a_relay_ends_while_a_commit_waits_for_a_replica(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_COMMIT_S", 0.1)
    folder = (await made(tmp_path / "data", await postgres.new_schema())).folder
    banned = [ListChange(ListName.BANNED_KEYS, who.pubkey, "") for who in (cast.alice, cast.bob)]
    async with AsyncExitStack() as away, asyncio.timeout(ANSWER_S):
        async with run_services(folder, load_config(folder / "rookery.toml")) as services:
            assert await services.ingest.changed(banned[0]) is None
            await away.enter_async_context(without_its_replica(postgres))
            waiting = asyncio.create_task(services.ingest.changed(banned[1]))
            await is_waiting(postgres, waiting)
        assert isinstance(await waiting, Reject)
