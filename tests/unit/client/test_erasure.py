"""Deleted texts leave the files of clients: caches, the spool, nmem's cache, Aman's tables.

SQLite here behaves as one that is built without SECURE_DELETE. A second connection keeps the WAL:
SQLite removes it when the last program closes the file.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from relay.client.aman_tables import replace_rows
from relay.client.cache import Cache
from relay.client.nmem.apply import bind, drop_deleted
from relay.client.nmem.database import Database, rebuilding
from relay.client.nmem.rebuild import rebuild
from relay.client.nmem.removal import Purge, purge, sweep
from relay.client.nmem.updates import summarise
from relay.client.spool import Spool
from relay.memory.aman.fold import Snapshot
from relay.memory.nmem.summary import Summary
from tests.cast import owner, robot
from tests.harness.erasure import erased, left_of, planted, without_secure_delete
from tests.unit.client.nmem_cache import DAY, NOW, cache, sent, told

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event


@pytest.fixture(autouse=True)
def _built_without_secure_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    without_secure_delete(monkeypatch)


def events(texts: list[str]) -> list[Event]:
    return [owner.sign(1, [["t", text]], f"{text} " * 50, NOW) for text in texts]


async def test_a_cache_erases_what_the_relay_no_longer_has(tmp_path: Path) -> None:
    texts = planted(2)
    made = events(texts)
    with closing(Cache(tmp_path / "cache", "a relay")) as kept:
        kept.change([*made, *events(["tea"])], [])
        assert left_of(texts, tmp_path)
        kept.change([], made)
        await erased(texts, tmp_path)
        assert left_of(["tea"], tmp_path)


async def test_a_spool_erases_what_the_relay_has_taken(tmp_path: Path) -> None:
    texts = planted(2)
    made = events(texts)
    with closing(Spool(tmp_path / "spool")) as spool, closing(Spool(tmp_path / "spool")) as other:
        for event in made:
            spool.put(event)
        spool.done([event.id for event in made[:5]])
        assert len(other) == 5
        await erased(texts[:5], tmp_path)
        spool.done([event.id for event in made[5:]])
        spool.close()  # at once: the other program still has it open
        assert left_of(texts, tmp_path) == {}


async def test_a_spool_that_another_program_reads_is_erased_later(tmp_path: Path) -> None:
    texts = planted(2)
    made = events(texts)
    path = tmp_path / "spool"
    with closing(Spool(path)) as spool, closing(sqlite3.connect(path)) as reader:
        reader.isolation_level = None
        for event in made:
            spool.put(event)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM waiting").fetchone()
        spool.done([event.id for event in made])
        assert left_of(texts, tmp_path)
        reader.execute("COMMIT")
        await erased(texts, tmp_path)


def test_what_a_killed_program_left_is_erased_by_the_next(tmp_path: Path) -> None:
    texts = planted(2)
    made = events(texts)
    path, left = tmp_path / "spool", tmp_path / "left"
    left.mkdir()
    with closing(Spool(path)) as spool:
        for event in made:
            spool.put(event)
        spool.done([event.id for event in made])
        for name in ("spool-wal", "spool"):
            (left / name).write_bytes((tmp_path / name).read_bytes())
    assert left_of(texts, left)
    Spool(left / "spool").close()
    assert left_of(texts, left) == {}


# -- nmem -----------------------------------------------------------------------------------------


def recorded(database: Database, texts: list[str]) -> None:
    told(database, "SessionStart", NOW, source="startup")
    for number, text in enumerate(texts):
        told(database, "UserPromptSubmit", NOW + number, prompt=f"work on {text}")
        told(
            database,
            "PostToolUse",
            NOW + number,
            tool_name="Edit",
            tool_input={"file_path": f"/w/rook/{text}.py"},
        )
    told(database, "Stop", NOW + 99)


def purged(database: Database) -> None:
    with database.transaction() as db:
        purge(db, Purge(session="s"), NOW, is_confirmed=True)


def deleted(database: Database) -> None:
    drop_deleted(database, [(event.id, robot.pubkey) for event in sent(database)])


def swept(database: Database) -> None:
    with database.transaction() as db:
        summarise(db, "s", Summary("tea"), None)
    sent(database)
    sweep(database, NOW + 999 * DAY)


@pytest.mark.parametrize("delete", [purged, deleted, swept], ids=lambda each: each.__name__)
def test_nmem_erases_what_leaves_its_cache(tmp_path: Path, delete: object) -> None:
    """Also its words from the full-text indexes; a second time, when the file is no longer new."""
    assert callable(delete)
    path = tmp_path / "nmem.db"
    with cache(path) as database, cache(path):
        for number in (2, 3):
            texts = planted(number)
            recorded(database, texts)
            assert left_of(texts, tmp_path)
            bind(database, robot.pubkey)
            delete(database)
            assert left_of(texts, tmp_path) == {}


def test_what_a_reader_kept_in_nmems_files_goes_with_the_next_write(tmp_path: Path) -> None:
    path, texts = tmp_path / "nmem.db", planted(2)
    with closing(Database(path, busy_s=0.05)) as database:
        recorded(database, texts)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM observations").fetchone()
            purged(database)
            assert left_of(texts, tmp_path)
            reader.execute("COMMIT")
            told(database, "SessionStart", NOW, "t", source="startup")
            assert left_of(texts, tmp_path) == {}


def killed_rebuild(database: Database, texts: list[str]) -> None:
    """Leaves the files of a rebuild that was killed."""
    left: dict[Path, bytes] = {}

    def killed(_: int) -> None:
        folder = database.path.parent
        left.update((path, path.read_bytes()) for path in folder.glob(f"{database.path.name}.new*"))

    rebuild(database, None, sent(database), robot.pubkey, frozenset(), progress=killed)
    for path, content in left.items():
        path.write_bytes(content)
    assert any(".new" in name for name in left_of(texts, database.path.parent))


def opened(database: Database) -> None:
    Database(database.path).close()


@pytest.mark.parametrize("delete", [purged, opened], ids=lambda each: each.__name__)
def test_what_a_killed_rebuild_of_nmem_left_is_erased(tmp_path: Path, delete: object) -> None:
    assert callable(delete)
    texts = planted(2)
    with cache(tmp_path / "nmem.db") as database:
        recorded(database, texts)
        killed_rebuild(database, texts)
        delete(database)
        assert [path.name for path in tmp_path.iterdir() if ".new" in path.name] == []
        if delete is purged:
            assert left_of(texts, tmp_path) == {}


def test_what_is_purged_during_a_rebuild_that_is_killed_goes_with_the_next_write(
    tmp_path: Path,
) -> None:
    texts = planted(2)
    with cache(tmp_path / "nmem.db") as database:
        recorded(database, texts)
        with rebuilding(database.path) as new:
            new.write_text("".join(texts))
            purged(database)
            with database.transaction():
                assert new.exists(), "it may still be written"
            new.rename(tmp_path / "nmem.db.kept")
        (tmp_path / "nmem.db.kept").rename(new)  # it was killed
        told(database, "SessionStart", NOW, "t", source="startup")
        assert left_of(texts, tmp_path) == {}


def test_what_is_purged_during_a_rebuild_is_not_in_the_rebuilt_cache(tmp_path: Path) -> None:
    texts = planted(2)
    with cache(tmp_path / "nmem.db") as database:
        recorded(database, texts)
        purge = [lambda: purged(database)]
        rebuild(
            database,
            None,
            sent(database),
            robot.pubkey,
            frozenset(),
            progress=lambda _: purge.pop()(),
        )
        assert left_of(texts, tmp_path) == {}


# -- Aman -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_amans_tables_keep_nothing_of_replaced_rows(tmp_path: Path, mode: str) -> None:
    path, texts = tmp_path / "aman.db", planted(2)
    empty = Snapshot("hk", None, None, None, None, (), (), None, ())
    with closing(sqlite3.connect(path, isolation_level=None)) as agent:
        agent.execute(f"PRAGMA journal_mode = {mode}")
        replace_rows(path, [empty], "wss://a")
        agent.executemany(
            "INSERT INTO tool_history (history_key, tool_name, success, content, created_at)"
            " VALUES ('hk', 'x', 1, ?, '')",
            [(text,) for text in texts],
        )
        assert left_of(texts, tmp_path)
        replace_rows(path, [empty], "wss://a")
        assert left_of(texts, tmp_path) == {}
