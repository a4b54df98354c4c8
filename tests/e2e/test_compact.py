"""`rookery compact`: retention is applied, the files get smaller, nothing else changes."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tests import cast
from tests.e2e.test_sweep_command import DAY_S, RULE, asked
from tests.harness.erasure import left_of
from tests.harness.relay_program import Rookery, command

if TYPE_CHECKING:
    from pathlib import Path


async def exported(folder: Path) -> str:
    code, text = await command("export", "--data", str(folder))
    assert code == 0, text
    return text


async def test_a_folder_is_compacted(tmp_path: Path) -> None:
    """One whose file is older than `auto_vacuum`, with what a killed compaction left."""
    now = int(time.time())
    old = [cast.robot.sign(1, [], f"old {number} " * 99, now - 20 * DAY_S) for number in range(600)]
    young = [cast.robot.sign(1, [], f"young {number}", now) for number in range(50)]
    lines = tmp_path / "events.jsonl"
    lines.write_bytes(b"\n".join(event.raw for event in [*old, *young]))
    folder = tmp_path / "data"
    store, data = folder / "rookery.db", ("--data", str(folder))
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        code, text = await command("import", str(lines), *data)
        assert code == 0, text
        with closing(sqlite3.connect(store, isolation_level=None)) as db:
            db.execute("PRAGMA auto_vacuum = NONE")
            db.execute("VACUUM")
        (folder / "rookery.db.compacting").write_bytes(old[0].raw)
        (folder / "policies" / "20-own.toml").write_text(RULE)
        large = store.stat().st_size

        compacted = await asked("compact", *data)

        assert compacted["removed"] == 600
        sizes = compacted["files"]["rookery.db"]
        assert sizes == {"before": large, "after": store.stat().st_size}
        assert sizes["after"] < large / 5
        assert set(compacted["files"]) == {"rookery.db", "search.db"}
        assert not list(folder.glob("*.compacting"))
        assert left_of(["old 1 old", "old 599 old"], folder) == {}
        assert store.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(store)) as db:
            assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert set((await exported(folder)).splitlines()) == {event.raw.decode() for event in young}

        code, text = await command("compact", *data)
        assert code == 0
        assert "0 events removed" in text
        assert "rookery.db: " in text


async def test_the_folder_of_a_running_relay_is_refused(tmp_path: Path) -> None:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        await rookery.start()
        code, text = await command("compact", "--data", str(rookery.folder))
        assert code == 1
        assert f"process {rookery.pid}" in text
        assert "stop it first" in text
        assert await rookery.stop() == 0


async def test_a_file_that_another_program_reads_is_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with Rookery(folder) as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        await exported(folder)  # creates the store
        with closing(sqlite3.connect(folder / "rookery.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            inode = (folder / "rookery.db").stat().st_ino
            code, text = await command("compact", "--data", str(folder))
            assert code == 1
            assert "another program has it open" in text
        assert (folder / "rookery.db").stat().st_ino == inode
        assert not list(folder.glob("*.compacting"))
