"""The files of SqliteStore: which it creates, migrates and refuses."""

# ruff: noqa: ASYNC240 -- nobody waits for the loop of a test

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName
from relay.access.quotas import Account, Size, SizedBy
from relay.errors import StoreFault, StoreVersion, WriteOutcome
from relay.lifecycle.rows import Keep, Slot, version_of
from relay.lifecycle.versions import History
from relay.nostr.event import event_from_raw
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage.sqlite.beside_relay import growth_of
from relay.storage.sqlite.compacting import compact
from relay.storage.sqlite.connections import fault_of, index_path
from relay.storage.sqlite.copying import copy_store, facts_of, schema_of
from relay.storage.sqlite.group_flags import groups_without
from relay.storage.sqlite.moving import SqliteSide
from relay.storage.sqlite.opening import SCHEMA_VERSION
from relay.storage.sqlite.search_check import search_snapshot
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.verifying import snapshot
from tests import cast
from tests.contract.writing import (
    TERMS,
    asked,
    change,
    in_order,
    look_up,
    raws,
    read,
    unsigned,
    write,
)
from tests.harness.former_schema import put_back_to_schema_12
from tests.harness.patience import PROGRAM_S
from tests.harness.super_journal import make_hot_journal

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rookery.db"


async def made(path: Path) -> None:
    """A store with one row, closed."""
    store = await SqliteStore.open(path, TERMS)
    await write(store, unsigned(cast.alice))
    await store.close()


def pragma(path: Path, name: str, value: int) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA {name} = {value}")
    db.commit()
    db.close()


async def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    await made(path)
    pragma(path, "user_version", SCHEMA_VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(StoreVersion) as refused:
        await SqliteStore.open(path, TERMS)
    text = str(refused.value)
    assert str(path) in text
    assert f"{SCHEMA_VERSION + 1}" in text
    assert "newer version" in text
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE events (id TEXT)")
    db.close()
    with pytest.raises(StoreVersion, match="another program"):
        await SqliteStore.open(path, TERMS)
    db = sqlite3.connect(path)
    tables = db.execute("SELECT name FROM sqlite_master").fetchall()
    mode = db.execute("PRAGMA journal_mode").fetchone()
    db.close()
    assert tables == [("events",)]
    assert mode == ("delete",), "a foreign file is not even switched to WAL"


async def test_a_database_with_the_mark_of_another_program_is_refused(path: Path) -> None:
    await made(path)
    pragma(path, "application_id", 7)
    with pytest.raises(StoreVersion, match="another program"):
        await SqliteStore.open(path, TERMS)


@pytest.mark.parametrize(
    "foreign",
    [
        "CREATE TRIGGER moving_on AFTER INSERT ON events BEGIN DELETE FROM tombstones; END",
        "CREATE VIEW more AS"
        " WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n FROM c) SELECT n FROM c",
        "CREATE INDEX slow ON events (length(hex(raw)))",
        "CREATE INDEX some ON events (seq) WHERE raw LIKE '%a%'",
        "CREATE TABLE more (n)",
        "CREATE VIRTUAL TABLE words USING fts5 (text)",
        "ALTER TABLE events ADD COLUMN twice AS (raw || raw)",
        "ALTER TABLE groups ADD COLUMN n CHECK (length(hex(id)) > 0)",
        "DROP INDEX events_d; CREATE INDEX events_d ON events (d COLLATE NOCASE) WHERE d > ''",
        "DROP TABLE members; CREATE TABLE members (pubkey, grp, admin)",
        "CREATE TABLE one (tbl, idx, stat CHECK (length(hex(stat)))); PRAGMA writable_schema = 1;"
        " UPDATE sqlite_master SET name = 'sqlite_stat1', tbl_name = 'sqlite_stat1', sql ="
        " replace(sql, 'one', 'sqlite_stat1') WHERE name = 'one'",
    ],
)
async def test_a_file_with_something_of_somebody_else_is_refused(path: Path, foreign: str) -> None:
    """Somebody has changed a backup."""
    await made(path)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(foreign)
    said = "of somebody else: use another backup, or drop it"
    with pytest.raises(StoreVersion, match=said):
        await SqliteStore.open(path, TERMS)
    for look in (facts_of, snapshot, SqliteSide):
        with pytest.raises(StoreVersion, match=said):
            look(path)
    with pytest.raises(StoreVersion, match=said):
        copy_store(path, path.with_name("copy"), lambda _: None)


@pytest.mark.parametrize("of", ["store", "index"])
async def test_a_journal_that_names_a_file_to_delete_is_refused(path: Path, of: str) -> None:
    """Somebody else has made the folder."""
    await made(path)
    victim = path.with_name("relay.key")
    victim.write_text("mine")
    file = path if of == "store" else index_path(path)
    make_hot_journal(file, victim)
    said = f"{file}: {file.name}-journal names another file"
    with pytest.raises(StoreFault, match=said):
        await SqliteStore.open(path, TERMS)
    with pytest.raises(StoreFault, match=said):
        compact(file)
    looks: dict[str, tuple[Callable[[Path], object], ...]] = {
        "index": (search_snapshot,),
        "store": (
            schema_of,
            snapshot,
            SqliteSide,
            lambda store: growth_of(store, 0),
            lambda store: groups_without(store, set()),
            lambda store: copy_store(store, path.with_name("copy"), lambda _: None),
        ),
    }
    for look in looks[of]:
        with pytest.raises(StoreFault, match=said):
            look(path)
    assert victim.read_text() == "mine"


async def test_what_analyze_has_counted_is_dropped(path: Path) -> None:
    """No query is planned by it, an admin's or forged."""
    await made(path)
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ANALYZE; UPDATE sqlite_stat1 SET stat = '1000000 1000000 1000000'")
    facts_of(path)
    copy_store(path, path.with_name("copy"), lambda _: None)
    store = await SqliteStore.open(path, TERMS)
    assert len(await read(store)) == 1
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'sqlite_stat%'")
        assert found.fetchall() == []


async def test_a_file_that_lacks_an_index_is_refused(path: Path) -> None:
    """Each search by it would read the whole table."""
    await made(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX events_author")
    with pytest.raises(StoreFault, match="lacks 'events_author'"):
        await SqliteStore.open(path, TERMS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE events SET pubkey = 'abc'", "table events, row 1"),
        ("UPDATE events SET raw = 7", "table events, row 1"),
        ("UPDATE events SET expires_at = 'never'", "table events, row 1"),
        ("INSERT INTO members VALUES (7, 'tea', 0)", "table members, row 7 tea"),
        ("INSERT INTO groups VALUES (x'ff', 0, 0, 0, NULL)", "table groups, row b'"),
        (
            "INSERT INTO tombstones VALUES ('e:1', '', 'soon', '', NULL)",
            "table tombstones, row e:1",
        ),
        ("UPDATE meta SET value = 'x' WHERE name = 'tags_upto'", "table meta, row tags_upto"),
        ("DELETE FROM meta WHERE name = 'hash_key'", "table meta, row hash_key"),
        ("UPDATE events SET raw = zeroblob(64 * 1024 * 1024 + 1)", "table events, row 1"),
    ],
)
async def test_a_value_of_another_type_or_too_large_is_named(
    path: Path, change: str, named: str
) -> None:
    """Somebody has changed a backup: SQLite keeps what it is given."""
    await made(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for look in (facts_of, snapshot):
        with pytest.raises(StoreFault, match=named):
            look(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("raw = 7", "row 1 has no event"),
        ("expires_at = 'never'", "row 1 expires at no time"),
        ("raw = zeroblob(64 * 1024 * 1024 + 1)", "`rookery verify` names it"),
    ],
)
async def test_a_row_that_cannot_be_read_is_a_fault(path: Path, change: str, said: str) -> None:
    await made(path)
    store = await SqliteStore.open(path, TERMS)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE events SET {change}")
    with pytest.raises(StoreFault, match=said):
        await store.since(0, 10)
    await store.close()


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"these are not the rows you are looking for" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreFault) as refused:
        await SqliteStore.open(path, TERMS)
    assert not isinstance(refused.value, StoreVersion)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


async def test_a_folder_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(StoreFault, match="missing"):
        await SqliteStore.open(tmp_path / "missing" / "rookery.db", TERMS)


async def test_a_folder_in_place_of_the_file_is_a_fault(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreFault):
        await SqliteStore.open(path, TERMS)


@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_store_whose_closing_is_cancelled_is_closed(path: Path, turns: int) -> None:
    store = await SqliteStore.open(path, TERMS)
    note = unsigned(cast.alice)
    await write(store, note, unsigned(cast.alice, 5, [["e", note.id]], "", 2))
    closing = asyncio.create_task(store.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert list(path.parent.glob("*-wal")) == []
    assert [thread.name for thread in threading.enumerate() if "store-writer" in thread.name] == []


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    await made(path)
    store = await SqliteStore.open(path, TERMS)
    assert await store.head() == 1
    await store.close()


@pytest.mark.parametrize("tags", [[], [["t", "tea"]]])
async def test_a_start_after_a_stop_reads_no_rows_for_their_tags(
    path: Path, tags: list[list[str]]
) -> None:
    store = await SqliteStore.open(path, TERMS)
    for number in range(3):
        await write(store, unsigned(cast.alice, tags=tags, content=f"{number}"))
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        ((upto,),) = db.execute("SELECT value FROM meta WHERE name = 'tags_upto'")
    assert upto == 3


async def test_a_closed_store_leaves_two_files(path: Path) -> None:
    await made(path)
    assert sorted(left.name for left in path.parent.iterdir()) == ["rookery.db", "search.db"]


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_both_synchronous_modes_keep_what_was_closed(path: Path, synchronous: str) -> None:
    event = unsigned(cast.alice)
    for _ in range(2):
        store = await SqliteStore.open(path, TERMS, synchronous=synchronous)
        await write(store, event)
        assert await read(store) == raws(event)
        assert await store.head() == 1
        await store.close()


async def test_a_tag_named_later_is_indexed_at_start(path: Path) -> None:
    """A name that is new in `index_tags` is indexed at start."""
    named = FilterTerms(index_tags=frozenset({"hk", "proj"}))
    filter_ = filter_from({"#proj": ["x"]}, named)
    events = [unsigned(cast.alice, 1, [["proj", "x"], ["hk", "x"]], at=at) for at in range(3)]
    others = [unsigned(cast.bob, 1, [["proj", "y"], ["proj"]])]

    async def opened(terms: FilterTerms, *new: object) -> None:
        store = await SqliteStore.open(path, terms)
        await write(store, *new)  # type: ignore[arg-type]
        if terms is named:
            so_far = [event for event in events if event.raw in await read(store)]
            assert await read(store, filter_) == in_order(*so_far)
        by_hk = filter_from({"#hk": ["x"]}, terms)
        assert await read(store, by_hk) == [raw for raw in await read(store) if b'"hk"' in raw]
        await store.close()

    await opened(TERMS, events[0], *others)
    await opened(named, events[1])
    await opened(TERMS, events[2])
    await opened(named)


@pytest.mark.parametrize("kind", [0, 3, 10_002, 30_000, 30_077, 30_102, 39_999])
async def test_the_check_of_rows_finds_one_that_the_index_of_authors_and_kinds_lacks(
    path: Path, kind: int
) -> None:
    store = await SqliteStore.open(path, TERMS)
    await write(store, cast.alice.sign(kind, [], "", 1))
    assert await store.check(0, 9) == (1, [])
    await store.close()
    before = change_sql(path, "CREATE INDEX events_author_kind ON events (kind) WHERE kind < 0")
    with closing(sqlite3.connect(path)) as db:
        db.execute("REINDEX events_author_kind")
    change_sql(path, before)
    store = await SqliteStore.open(path, TERMS)
    [fault] = (await store.check(0, 9))[1]
    assert "an index does not have it" in fault
    await store.close()


def change_sql(path: Path, after: str) -> str:
    """Of the index, as it is noted; gives what it was."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        of = "WHERE name = 'events_author_kind'"
        [before] = db.execute(f"SELECT sql FROM sqlite_master {of}").fetchone()
        db.execute(f"UPDATE sqlite_master SET sql = ? {of}", (after,))
        return str(before)


# older files -------------------------------------------------------------------------------------


def of_version_1(path: Path) -> None:
    """A file that the code of schema 1 wrote: a note by alice, a chat in the den, a profile, and a
    deletion of bob's note."""
    db = sqlite3.connect(path)
    db.executescript((HERE / "schema_1.sql").read_text())
    db.close()


def shape(path: Path) -> dict[str, object]:
    """Tables and indices of a file, column by column."""
    db = sqlite3.connect(path)
    names = db.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    found: dict[str, object] = {
        name: db.execute(
            f"PRAGMA {'table_info' if kind == 'table' else 'index_xinfo'}({name})"
        ).fetchall()
        for kind, name in names.fetchall()
    }
    found["version"] = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return found


async def test_a_file_of_version_1_is_migrated(path: Path, tmp_path: Path) -> None:
    of_version_1(path)
    fresh = tmp_path / "fresh.db"
    for file in (path, fresh):
        await (await SqliteStore.open(file, TERMS)).close()
    assert shape(path) == shape(fresh)
    assert shape(path)["version"] == SCHEMA_VERSION


async def test_the_gift_wraps_of_a_file_of_version_6_are_counted(path: Path) -> None:
    alice, bob = cast.alice.pubkey, cast.bob.pubkey
    many = [["p", f"{number:064x}"] for number in range(16)]
    tags = [
        [["p", alice], ["p", alice], ["p"]],
        [["p", alice], ["p", bob], ["p", "x"]],
        [["p", alice], *many],
        [["e", alice]],
    ]
    wraps = [unsigned(cast.stranger, 1059, each, "é") for each in tags]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *wraps)
    await store.close()
    db = sqlite3.connect(path)
    put_back_to_schema_12(db)
    db.executescript(
        "DROP TABLE old_versions; DROP TABLE received; DROP INDEX events_group;"
        " DROP INDEX tags_kind; DROP INDEX former_members_group; PRAGMA user_version = 6"
    )
    db.close()
    store = await SqliteStore.open(path, TERMS)
    for_alice, for_bob = (Account(None, recipient=key) for key in (alice, bob))
    usage = (await look_up(store, usage=[for_alice, for_bob])).usage
    assert usage.size_of(for_alice) == Size(2, len(wraps[0].raw) + len(wraps[1].raw))
    assert usage.size_of(for_bob) == Size(1, len(wraps[1].raw))
    await store.close()


async def test_the_labelled_records_of_a_file_of_version_8_leave_their_group(path: Path) -> None:
    d, h = ["d", "snowclaw:config:group:tea"], ["h", "tea"]
    old, new = (unsigned(cast.owner, 30078, [d, h], at=at) for at in (1, 2))
    record = unsigned(cast.owner, 30078, [["d", "snowclaw:configs"], h])
    store = await SqliteStore.open(path, TERMS)
    for event in (old, new, record):
        await write(store, event, history=History(3))
    await store.close()
    db = sqlite3.connect(path)
    put_back_to_schema_12(db)
    db.executescript(
        "DROP INDEX events_group; DROP INDEX tags_kind; DROP INDEX former_members_group;"
        " PRAGMA user_version = 8"
    )
    db.close()
    store = await SqliteStore.open(path, TERMS)
    assert [row.group for row in await store.since(0, 10)] == [None, "tea"]
    slot = Slot(cast.owner.pubkey, 30078, d[1])
    rows = await store.versions(slot, before=None, limit=10, now=0)
    assert [(row.event.id, row.group) for row in rows] == [(new.id, None), (old.id, None)]
    sizes = {line.of: line.size for line in await store.sizes(SizedBy.GROUP, 10)}
    labelled = Size(2, len(old.raw) + len(new.raw))
    assert sizes == {None: labelled, "tea": Size(1, len(record.raw))}
    await store.close()


async def test_the_sizes_of_a_file_of_version_1_are_counted(path: Path) -> None:
    of_version_1(path)
    store = await SqliteStore.open(path, TERMS)
    raws_of = [row.event.raw for row in await store.since(0, 10)]
    sizes = [line.size for line in await store.sizes(SizedBy.KIND, 10)]
    assert sum(size.events for size in sizes) == len(raws_of) == 4
    assert sum(size.bytes for size in sizes) == sum(map(len, raws_of))
    assert {line.of for line in await store.sizes(SizedBy.GROUP, 10)} == {None, "den"}
    await store.close()


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        ([["ts", "77"]], 77),
        ([["hk", "a"], ["ts", "5"], ["ts", "6"]], 5),
        ([], 1000),
        ([["ts"]], 1000),
        ([["ts", ""]], 1000),
        ([["ts", "7a"]], 1000),
        ([["ts", "9" * 19]], 1000),
    ],
)
async def test_tool_history_of_version_1_gets_its_version_from_ts(
    path: Path, tags: list[list[str]], version: int
) -> None:
    """As `version_of` computes it for new rows (A-19)."""
    of_version_1(path)
    event = unsigned(cast.alice, 30_095, tags, at=1000)
    assert version_of(event, Keep.FIRST) == version
    db = sqlite3.connect(path)
    db.execute(
        "INSERT INTO events (seq, id, id_key, pubkey, author_key, kind, created_at, d, version,"
        " quiet, raw) VALUES (9, ?, 0, ?, 0, 30095, 1000, '', 1000, 0, ?)",
        (bytes.fromhex(event.id), bytes.fromhex(event.pubkey), event.raw),
    )
    db.commit()
    db.close()
    store = await SqliteStore.open(path, TERMS)
    (row,) = await store.since(8, 1)
    assert row.version == version
    await store.close()


async def test_a_file_of_version_1_keeps_all_that_was_in_it(path: Path) -> None:
    of_version_1(path)
    gone = unsigned(cast.bob, 1, [], "gone", at=1001)
    banned = ListChange(ListName.BANNED_KEYS, cast.bob.pubkey, "spam")
    for opening in range(2):
        store = await SqliteStore.open(path, TERMS)
        assert await store.head() == 5 + opening
        rows = [event_from_raw(raw) for raw in await read(store, asked(until=1004))]
        assert [(row.kind, row.created_at) for row in rows] == [
            (5, 1004),
            (0, 1003),
            (9, 1002),
            (1, 1000),
        ]
        assert await read(store, asked(tag_t=["tea"])) == [rows[-1].raw]
        assert await read(store, asked(tag_h=["den"])) == [rows[2].raw]
        assert await write(store, gone) == [WriteOutcome.DELETED]
        bans = dict((await store.management()).of(ListName.BANNED_KEYS))
        assert bans == ({} if opening == 0 else {cast.bob.pubkey: "spam"})
        await write(store, unsigned(cast.carol, at=2000 + opening))
        await change(store, lambda plan: plan.list_changes.append(banned))
        await store.close()


@pytest.mark.process
@pytest.mark.slow
def test_a_store_that_was_not_closed_does_not_keep_the_process_from_exiting(path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from relay.nostr.filters import FilterTerms\n"
        "from relay.storage.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    store = await SqliteStore.open(pathlib.Path(sys.argv[1]), FilterTerms())\n"
        "    raise SystemExit(7)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)], timeout=PROGRAM_S, check=False
    )
    assert ended.returncode == 7


async def test_the_tags_of_a_file_of_version_12_are_kept(path: Path) -> None:
    tags = "SELECT hash, kind_class, created_at, id_key, seq FROM tags"
    kinds = (7, 1, 100, 1059, 5000, 30_023)
    events = [unsigned(cast.alice, kind, [["t", "tea"]], at=at) for kind in kinds for at in (1, 2)]
    events.pop()
    store = await SqliteStore.open(path, TERMS)
    await write(store, *events)
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        before = db.execute(tags).fetchall()
        put_back_to_schema_12(db)
        db.execute("INSERT INTO tags VALUES (1, 2, 3, 999, 1059)")  # of a row that is gone
        db.commit()
    store = await SqliteStore.open(path, TERMS)
    assert await read(store, asked(tag_t=["tea"])) == in_order(*events)
    assert await read(store, asked(tag_t=["tea"], kinds=[7])) == in_order(*events[:2])
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(tags).fetchall() == before


@pytest.mark.parametrize(
    ("error", "free", "is_named"),
    [("disk I/O error", 4096, True), ("disk I/O error", 1 << 30, False), ("locked", 4096, False)],
)
def test_an_error_on_a_full_disk_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: str, free: int, *, is_named: bool
) -> None:
    """It was `disk I/O error`, and the advice was to restore a backup."""
    space = SimpleNamespace(free=free)
    monkeypatch.setattr("relay.storage.sqlite.connections.disk_usage", lambda _folder: space)
    failed = sqlite3.OperationalError(error)
    codes = {"disk I/O error": sqlite3.SQLITE_IOERR_SHMSIZE, "locked": sqlite3.SQLITE_BUSY}
    failed.sqlite_errorcode = codes[error]
    no_space = "; no space is left on this disk, free some" if is_named else ""
    assert f"{fault_of(failed, path)}" == f"{path}: {error}{no_space}"
    assert f"{fault_of(failed)}" == f"store: {error}"


GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "free", "is_nearly_full"),
    [
        (20 * GIB, GIB // 4, False),
        (20 * GIB, GIB // 4 - 1, True),
        (2 * GIB, GIB // 16, False),
        (2 * GIB, GIB // 16 - 1, True),
    ],
)
async def test_a_part_of_the_disk_is_for_owners(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    total: int,
    free: int,
    *,
    is_nearly_full: bool,
) -> None:
    """256 MiB, or a 32nd of a small disk, beside what the next checkpoint needs."""
    monkeypatch.setattr("relay.storage.sqlite.store._SPACE_S", 0.0)
    store = await SqliteStore.open(path, TERMS)
    wals = sum([wal.stat().st_size for wal in path.parent.glob("*-wal")])
    assert wals
    space = [total, 0, free + wals]
    monkeypatch.setattr("relay.storage.sqlite.store.disk_usage", lambda _folder: space)
    assert store.is_nearly_full() is is_nearly_full
    assert store.is_nearly_full() is is_nearly_full
    assert len(caplog.records) == is_nearly_full
    space[2] = GIB
    assert store.is_nearly_full() is False
    await store.close()
