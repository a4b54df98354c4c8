"""`rookery move`: from a file to PostgreSQL and back."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from relay.nostr.filters import FilterTerms
from relay.storage.postgres.moving import PostgresSide
from relay.storage.postgres.store import PostgresStore
from tests import cast
from tests.e2e.test_restart import load
from tests.harness.patience import PROGRAM_S
from tests.harness.postgres import postgres
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, command, connected, eventually, outputs
from tests.harness.stocked_folder import rookery as run_here
from tests.harness.stocked_folder import stocked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

pytestmark = pytest.mark.slow


async def exported(folder: Path) -> bytes:
    code, out, err = await outputs("export", "--data", str(folder), "--versions")
    assert code == 0, err
    return out


async def moved(source: object, target: object) -> str:
    code, text = await command("move", "--from", str(source), "--to", str(target))
    assert code == 0, text
    return text


async def test_a_running_relay_is_moved_there_under_load_and_back(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    folder, url = tmp_path / "data", await postgres.new_schema()
    deleted = (await asyncio.to_thread(stocked, folder))[-2]
    rookery = Rookery(folder)
    async with rookery:
        await rookery.start()
        async with load(rookery):
            text = await moved(folder, url)
        assert "both sides are equal" in text
        assert "the relay gave no answers for" in text
        assert f'url = "{url}"' in (folder / "rookery.toml").read_text()
        assert [path.name for path in folder.glob("*.db*")] == ["rookery.db.moved"]
        async with connected(rookery.url) as wire:
            _, why = await wire.publish(deleted)
            assert why.startswith("blocked: "), why
        in_database = await exported(folder)
        await moved(url, folder)
        assert url not in (folder / "rookery.toml").read_text()
        assert await exported(folder) == in_database
        assert await rookery.stop() == 0
    assert "Traceback" not in "\n".join(rookery.lines)


async def test_a_stopped_relay_is_moved_too_and_its_old_database_stays_closed(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    before = await exported(folder)
    await moved(folder, url)
    assert await exported(folder) == before
    code, text = await command("move", "--from", str(folder), "--cancel")
    assert (code, "the events are in the database" in text) == (0, True), text
    with_database = (folder / "rookery.toml").read_text()
    await moved(url, folder)
    assert await exported(folder) == before
    (folder / "rookery.db").rename(tmp_path / "kept.db")
    (folder / "rookery.toml").write_text(with_database)
    code, text = await command("export", "--data", str(folder))
    assert code == 1
    assert "were moved to the file of a relay: drop its tables" in text


async def test_deletions_are_stored_while_a_database_is_moved(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """None was, nor what was in the same batch: the trigger that notes tombstones failed. A move
    that was killed had left it."""
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    await moved(folder, url)
    note = cast.alice.sign(1, [], "to be deleted", int(time.time()))
    side = await PostgresSide.open(url, None)
    log = await side.begin_log()
    await postgres.value(
        f"CREATE OR REPLACE FUNCTION {postgres.schema_of(url)}.moving_log_tombstone()"
        " RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new.by; END $$"
    )
    assert await side.begin_log() == log
    async with Rookery(folder) as rookery:
        await rookery.start()
        await rookery.store(note, cast.alice.sign(5, [["e", note.id]], "", note.created_at))
    assert "tombstones" in {line.table for line in await side.lines(0, 100)}
    await side.end_log()
    await side.close()


async def test_a_move_that_was_killed_goes_on(tmp_path: Path, postgres: PostgresServer) -> None:
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    before = await exported(folder)
    await (await PostgresStore.open(url, FilterTerms())).close()
    schema = postgres.schema_of(url)
    async with postgres.unwritable(f"{schema}.tombstones"):
        process = await start_rookery("move", "--from", str(folder), "--to", url)
        await eventually(
            "rows are copied", lambda: postgres.value(f"SELECT seq FROM {schema}.head"), PROGRAM_S
        )
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await postgres.kill_connections()
    (folder / "rookery.db").rename(folder / "away")
    settings = (folder / "rookery.toml").read_text()
    (folder / "rookery.toml").write_text(settings.replace("[storage]", f'[storage]\nurl = "{url}"'))
    code, text = await command("export", "--data", str(folder))
    assert code == 1
    assert "holds a part of what is moved to it: run `rookery move` again" in text
    (folder / "away").rename(folder / "rookery.db")
    (folder / "rookery.toml").write_text(settings)
    await moved(folder, url)
    assert await exported(folder) == before


async def test_a_relay_that_cannot_reach_the_database_goes_on(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """It is gone when the relay starts again: the events are where they were, and can be moved."""
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    async with Rookery(folder) as rookery:
        await rookery.start()
        (folder / "move.json").write_text('{"to":"postgresql:///none?host=/nowhere"}')
        code, _ = await command("restart", "--data", str(folder))
        assert code == 0
        async with connected(rookery.url) as wire:
            note = cast.alice.sign(1, [], "still here", int(time.time()))
            assert await wire.publish(note) == (True, "")
        assert any("the events stay where they are" in line for line in rookery.lines)
        await moved(folder, url)
        assert await rookery.stop() == 0


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("events", "has events already: name an empty one"),
        ("schema", "the database has schema 99, this Rookery knows up to"),
        ("unreachable", "database: "),
        ("settings", "write [storage] and its keys on lines of their own"),
        ("there", "are there already"),
        ("other folder", "`rookery backup` and `restore` do that"),
    ],
)
async def test_what_cannot_be_moved_is_told_and_stays(
    tmp_path: Path, postgres: PostgresServer, fault: str, says: str
) -> None:
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder, 2)
    before = await exported(folder)
    target = url
    match fault:
        case "events":
            await (await PostgresStore.open(url, FilterTerms())).close()
            await postgres.execute(
                f"UPDATE {postgres.schema_of(url)}.head SET seq = 7",
            )
        case "schema":
            await (await PostgresStore.open(url, FilterTerms())).close()
            meta = f"{postgres.schema_of(url)}.meta"
            await postgres.execute(f"UPDATE {meta} SET value = '99' WHERE name = 'schema'")
        case "unreachable":
            target = "postgresql:///none?host=/nowhere"
        case "settings":
            file = folder / "rookery.toml"
            file.write_text(
                "storage = { index_tags = [] }\n" + file.read_text().replace("[storage]\n", "")
            )
        case "there":
            target = str(folder)
        case _:
            target = str(tmp_path)
    code, text = await command("move", "--from", str(folder), "--to", target)
    assert code in (1, 2), text
    assert says in text
    assert await exported(folder) == before


async def _says_that_the_move_has_not_ended(folder: Path) -> None:
    """What `serve` will do: it was refused by `--check`, and not named by `doctor`."""
    code, text = await command("serve", "--data", str(folder), "--port", "0", "--check")
    assert code == 0, text
    assert "has not ended: the start ends it" in text
    _, text = await command("doctor", "--data", str(folder))
    assert "has not ended" in text
    code, text = await command("export", "--data", str(folder))
    assert code == 1
    assert "start the relay, or run the same `rookery move` again" in text


async def test_a_move_back_that_was_killed_before_its_last_step_is_completed_by_a_start(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    await moved(folder, url)
    before = await exported(folder)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("relay.cli.move_switch._write_settings", killed)
        _, code = await asyncio.to_thread(run_here, "move", "--from", url, "--to", folder)
    assert code == 130
    _, text = await command("doctor", "--data", str(folder))
    assert "error: " in text
    assert "rookery.db has events, and [storage] url names a database" in text
    (folder / "move.json").write_text('{"to":null}')  # as after kill -9
    await _says_that_the_move_has_not_ended(folder)
    async with Rookery(folder) as rookery:
        await rookery.start()
        assert await rookery.stop() == 0
    assert not (folder / "move.json").exists()
    assert await exported(folder) == before


@pytest.mark.parametrize("by_a_start", [False, True])
async def test_a_move_that_was_killed_before_its_last_step_is_completed(
    tmp_path: Path,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    by_a_start: bool,  # noqa: FBT001
) -> None:
    """`serve` and `move` refused what was left, and advised what could not be done."""
    folder, url = tmp_path / "data", await postgres.new_schema()
    await asyncio.to_thread(stocked, folder)
    before = await exported(folder)

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("relay.cli.move_switch._put_away", killed)
        _, code = await asyncio.to_thread(run_here, "move", "--from", folder, "--to", url)
    assert code == 130
    assert (folder / "rookery.db").exists()
    await _says_that_the_move_has_not_ended(folder)
    code, text = await command("move", "--from", str(folder), "--cancel")
    assert (code, "has not ended, and rookery.toml names" in text) == (1, True), text
    if by_a_start:
        async with Rookery(folder) as rookery:
            await rookery.start()
            assert await rookery.stop() == 0
    else:
        assert "is complete" in await moved(folder, url)
    assert [path.name for path in folder.glob("*.db*")] == ["rookery.db.moved"]
    assert not (folder / "move.json").exists()
    assert await exported(folder) == before
