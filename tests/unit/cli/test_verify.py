"""`rookery verify`: finds each planted fault, alone, and repairs it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli.backup import drop_safety_copies
from relay.cli.services import run_services
from relay.config import load_config
from relay.groups.actions import UNTOLD_FLAGS, Flag
from relay.lifecycle.rows import LONG_EXPIRED
from relay.storage.hashes import Hashes
from relay.storage.sqlite.connections import connection
from tests import cast
from tests.harness.stocked_folder import WRAPPED_FOR, as_json, exported, findings, rookery, stocked

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "data"
    stocked(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "data")


ALICE = f"x'{cast.alice.pubkey}'"
GROUP_MESSAGE = "kind = 9"
NOTE = "seq = (SELECT max(seq) FROM events WHERE kind = 1)"
EXTRA_TAG = (
    f"INSERT INTO tags SELECT 7, kind, created_at, id_key, seq, NULL FROM events WHERE {NOTE}"
)

TEN = {
    "a flipped byte": (
        f"UPDATE events SET raw = CAST(replace(raw, 'teapots', 'teapotz') AS BLOB) WHERE {NOTE}",
        "id",
        "is not the hash",
    ),
    "a wrong signature": (
        "UPDATE events SET raw = CAST(substr(raw, 1, length(raw) - 34) || '{}' ||"
        f" substr(raw, -2) AS BLOB) WHERE {NOTE}".format("0" * 32),
        "signature",
        "the signature is wrong",
    ),
    "a missing tag": (
        f"DELETE FROM tags WHERE seq = (SELECT seq FROM events WHERE {GROUP_MESSAGE})",
        "tags",
        "1 missing in the index",
    ),
    "a tag too many": (EXTRA_TAG, "tags", "1 in the index that it does not have"),
    "a wrong total": (
        "UPDATE sizes SET bytes = bytes + 5 WHERE kind = 9",
        "sizes",
        "kind 9",
    ),
    "a wrong slot": (
        "UPDATE events SET slot = 42 WHERE kind = 30023",
        "slot",
        "not in the slot",
    ),
    "a message out of its private group": (
        f"UPDATE events SET grp = NULL WHERE {GROUP_MESSAGE}",
        "group",
        "in no group, and its event is of 'tea'",
    ),
    "a missing member": (
        f"DELETE FROM members WHERE pubkey = {ALICE}",
        "groups",
        "is a member, and is not noted",
    ),
    "a deleted row": (
        f"INSERT INTO tombstones SELECT 'e:' || lower(hex(id)), '', NULL, 'ban', NULL"
        f" FROM events WHERE {NOTE}",
        "tombstone",
        "was deleted, and is stored",
    ),
    "a text that cannot be found": (
        f"DELETE FROM search.texts WHERE seq = (SELECT seq FROM events WHERE {NOTE})",
        "search",
        "its text is missing",
    ),
}
MORE = {
    "a row that is no JSON": (f"UPDATE events SET raw = 'oops' WHERE {NOTE}", "id", "not JSON"),
    "an event in another form": (
        f"UPDATE events SET raw = CAST(raw || ' ' AS BLOB) WHERE {NOTE}",
        "id",
        "in the form",
    ),
    "no slot at all": ("UPDATE events SET slot = NULL WHERE kind = 0", "slot", "not in the slot"),
    "a wrong author": (
        f"UPDATE events SET author_key = 1 WHERE {NOTE}",
        "columns",
        "wrong in author_key",
    ),
    "a time to expire that is gone": (
        "UPDATE events SET expires_at = NULL WHERE expires_at IS NOT NULL",
        "columns",
        "wrong in expires_at",
    ),
    "a tag of a row that is gone": (
        "INSERT INTO tags VALUES (7, 1, 7, 7, 1000000, NULL)",
        "tags",
        "row 1000000",
    ),
    "a tag that expires early": (
        "UPDATE tags SET expires_at = 5 WHERE kind_class = 9",
        "tags",
        "expires at another time in the index",
    ),
    "a total of nothing": (
        f"INSERT INTO sizes VALUES ({ALICE}, 7777, 'tea', 1, 10)",
        "sizes",
        "kind 7777",
    ),
    "a wrong total of gift wraps": (
        "UPDATE received SET events = 3",
        "sizes",
        f"gift wraps for {WRAPPED_FOR}",
    ),
    "a member who is none": (
        "INSERT INTO members VALUES (x'{}', 'tea', 0)".format("ab" * 32),
        "groups",
        "is noted as a member, and is none",
    ),
    "an admin who is a member only": (
        f"UPDATE members SET admin = 1 WHERE pubkey = {ALICE}",
        "groups",
        "an admin, and is none",
    ),
    "a private group that is open": ("UPDATE groups SET guarded = 0", "groups", "differs from"),
    "a partition of another group": (
        f"UPDATE events SET partition = 7 WHERE {GROUP_MESSAGE}",
        "columns",
        "wrong in partition",
    ),
    "a private group without a partition": (
        "UPDATE groups SET partition = NULL",
        "partition",
        "group 'tea' has no partition",
    ),
    "a group that is missing": ("DELETE FROM groups", "groups", "is missing"),
    "a deleted author": (
        f"INSERT INTO tombstones SELECT 'p:' || lower(hex(pubkey)), lower(hex(pubkey)),"
        f" created_at, 'kind 62', NULL FROM events WHERE {GROUP_MESSAGE}",
        "tombstone",
        "was deleted",
    ),
    "a removed version": (
        "INSERT INTO tombstones SELECT 's:30023:' || lower(hex(pubkey)) || ':' || d, '', version,"
        " '9005', NULL FROM events WHERE kind = 30023",
        "tombstone",
        "was deleted",
    ),
    "words that lead nowhere": (
        "INSERT INTO search.words (words, rowid, text, repeated, frequent, kind)"
        " SELECT 'delete', seq, text, '', '', '' FROM search.texts"
        " WHERE seq = (SELECT seq FROM events WHERE kind = 30023)",
        "search",
        "its words are not those",
    ),
    "a text of another kind": (
        f"UPDATE search.texts SET kind = 9 WHERE seq = (SELECT seq FROM events WHERE {NOTE})",
        "search",
        "missing or different",
    ),
    "stems that are not those of the text": (
        f"UPDATE search.texts SET stems = ' x ' WHERE seq = (SELECT seq FROM events WHERE {NOTE})",
        "search",
        "missing or different",
    ),
}
FAULTS = TEN | MORE


def plant(folder: Path, sql: str) -> None:
    with closing(sqlite3.connect(folder / "rookery.db", isolation_level=None)) as db:
        db.execute("ATTACH ? AS search", (str(folder / "search.db"),))
        assert db.execute(sql).rowcount != 0, sql


def test_a_sound_store_has_no_finding(folder: Path) -> None:
    printed, code = rookery("verify", "--data", folder)
    assert code == 0
    assert "nothing is wrong" in printed
    assert "search.db" not in printed
    assert as_json("verify", "--data", folder)["findings"] == []


def test_records_that_wait_for_a_sweep_are_no_fault(folder: Path) -> None:
    """No group has its state from them any more."""
    put = f"kind = 9000 AND grp = 'food' AND instr(raw, '{cast.alice.pubkey}')"
    plant(folder, f"UPDATE events SET expires_at = {LONG_EXPIRED} WHERE {put}")
    plant(folder, f"DELETE FROM members WHERE grp = 'food' AND pubkey = {ALICE}")
    assert as_json("verify", "--data", folder)["findings"] == []
    plant(folder, "DELETE FROM groups")
    assert as_json("verify", "--data", folder, "--repair")["left"]["findings"] == []
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        left = db.execute(f"SELECT count(*) FROM members WHERE grp = 'food' AND pubkey = {ALICE}")
        assert left.fetchone() == (0,)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_repaired(folder: Path, fault: str) -> None:
    sql, check, text = FAULTS[fault]
    plant(folder, sql)

    report = as_json("verify", "--data", folder, code=1)
    assert text in "\n".join(each["text"] for each in report["findings"] if each["check"] == check)
    if fault in TEN:
        # The row is counted in no group, and noted in its own.
        also = {"sizes"} if check == "group" else set()
        assert set(report["counts"]) == {check} | also, report

    repaired = as_json("verify", "--data", folder, "--repair")
    assert repaired["counts"] == report["counts"]
    assert repaired["repaired"]
    assert repaired["left"]["findings"] == []
    assert (folder / "before-repair.tar.gz").stat().st_mode & 0o777 == 0o600
    assert rookery("restore", folder / "before-repair.tar.gz", folder.parent / "old")[1] == 0
    assert findings(folder) == []


def test_the_copy_of_an_earlier_repair_stays_for_its_week(folder: Path) -> None:
    """What that repair deleted is nowhere else."""
    first, last = folder / "before-repair.tar.gz", folder / "before-last-repair.tar.gz"

    def repaired() -> str:
        plant(folder, EXTRA_TAG)
        return str(as_json("verify", "--data", folder, "--repair")["backup"])

    assert repaired() == str(first)
    written_at = first.stat().st_mtime_ns
    for _ in range(2):
        assert repaired() == str(last)
        assert first.stat().st_mtime_ns == written_at
    a_week_ago = time.time() - 8 * 86_400
    os.utime(first, (a_week_ago, a_week_ago))
    assert repaired() == str(first)
    assert first.stat().st_mtime > a_week_ago
    for copy in (first, last):
        os.utime(copy, (a_week_ago, a_week_ago))
    assert drop_safety_copies(folder, int(time.time())) == [first, last]
    assert not list(folder.glob("before-*"))


@pytest.mark.parametrize("fault", ["a flipped byte", "a wrong signature"])
def test_what_is_no_event_is_moved_into_a_file(folder: Path, fault: str) -> None:
    plant(folder, FAULTS[fault][0])
    repaired = as_json("verify", "--data", folder, "--repair")
    [moved] = folder.glob("verify-*.jsonl")
    assert repaired["moved_to"] == str(moved)
    assert moved.stat().st_mode & 0o777 == 0o600
    assert "note number 38" in moved.read_text()
    assert "note number 38" not in exported(folder)


def test_what_was_deleted_is_moved_nowhere(folder: Path) -> None:
    plant(folder, FAULTS["a deleted row"][0])
    assert as_json("verify", "--data", folder, "--repair")["moved_to"] is None
    assert not list(folder.glob("verify-*"))
    assert "note number 38" not in exported(folder)


def test_of_two_rows_in_one_slot_the_newer_stays(folder: Path) -> None:
    newer = cast.alice.sign(30023, [["d", "essay"]], "a newer essay", 2_000_000_000)
    older = folder / "rookery.db"
    with closing(connection(older)) as db:
        db.execute(
            "INSERT INTO events SELECT 1000, x'00', 0, pubkey, author_key, kind, created_at, grp,"
            " d, slot, version, expires_at, quiet, ?, partition FROM events WHERE kind = 30023",
            (newer.raw,),
        )
        db.execute(
            "UPDATE events SET id = ?, id_key = ?, created_at = ?, version = ? WHERE seq = 1000",
            (
                bytes.fromhex(newer.id),
                int(newer.id[:16], 16) - 2**63,
                newer.created_at,
                newer.created_at,
            ),
        )
    assert "all in one slot" in rookery("verify", "--data", folder)[0]
    assert as_json("verify", "--data", folder, "--repair")["left"]["findings"] == []
    text = exported(folder)
    assert "a newer essay" in text
    assert "oolong" not in text


@pytest.mark.parametrize("newest", ["stored", "banned"])
def test_what_was_stored_while_all_versions_were_kept_stays(folder: Path, newest: str) -> None:
    """The repair removed versions that the relay served, since they are older than the newest."""
    rules = folder / "policies" / "90-keep.toml"
    lines = folder.parent / "versions.jsonl"
    now = int(time.time())
    for keep, numbers in (("all", [1, 2]), ("latest", [3])):
        rules.write_text(
            f'[[retention]]\nname = "essays"\nmatch = {{ kinds = [30023] }}\nkeep = "{keep}"\n'
        )
        versions = [
            cast.alice.sign(30023, [["d", "tea"]], f"version {number}", now - 10 + number)
            for number in numbers
        ]
        lines.write_bytes(b"\n".join(event.raw for event in versions))
        assert rookery("import", lines, "--data", folder)[1] == 0
    if newest == "banned":
        with closing(connection(folder / "rookery.db")) as db:
            db.execute(
                "INSERT INTO tombstones VALUES (?, '', ?, 'ban', NULL)",
                (f"s:30023:{cast.alice.pubkey}:tea", now - 7),
            )
            db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
            db.commit()
    before = exported(folder)
    assert "version 1" in before
    assert "version 2" in before
    repaired = as_json("verify", "--data", folder, "--repair")
    assert "slot" not in repaired["counts"]
    assert "tombstone" not in repaired["counts"]
    assert exported(folder) == before


def test_a_record_of_a_group_stays_although_its_signature_is_wrong(folder: Path) -> None:
    """Without a 9001 the member whom it removed would be one again."""
    plant(
        folder,
        "UPDATE events SET raw = CAST(substr(raw, 1, length(raw) - 34) || '{}' ||"
        " substr(raw, -2) AS BLOB) WHERE kind = 9007".format("0" * 32),
    )
    before = exported(folder)
    report = as_json("verify", "--data", folder, "--repair", code=1)
    assert "signature" in {each["check"] for each in report["left"]["findings"]}
    assert "restore a backup" in " ".join(report["repaired"])
    assert exported(folder) == before


DAMAGED = {
    "a 9001 that is no JSON": ("9001", '["p"', 'Z"p"'),
    "a 9001 of another member": ("9001", f'["p","{cast.alice.pubkey[:1]}', '["p","g'),
    "a 9001 of another group": ("9001", '"den"', '"dem"'),
    "a 9000 of another key": ("9000", f'"{cast.bob.pubkey}', f'"{cast.carol.pubkey}'),
    "a 9007 that is no JSON": ("9007", '["h"', 'Z"h"'),
}


def damage(folder: Path, kind: str, old: str, new: str) -> None:
    plant(
        folder,
        f"UPDATE events SET raw = CAST(replace(raw, '{old}', '{new}') AS BLOB)"
        f" WHERE kind = {kind} AND grp = 'den'",
    )


def tables(folder: Path) -> tuple[list[object], set[object]]:
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        members = set(db.execute("SELECT pubkey, admin FROM members WHERE grp = 'den'"))
        return db.execute("SELECT * FROM groups WHERE id = 'den'").fetchall(), members


@pytest.fixture
def den(folder: Path) -> Path:
    """A folder with a hidden group that alice was removed from."""
    now = int(time.time())

    def record(kind: int, *tags: list[str]) -> bytes:
        return cast.owner.sign(kind, [["h", "den"], *tags], "", now).raw

    lines = folder.parent / "den.jsonl"
    records = [
        record(9007, ["private"], ["hidden"], ["closed"]),
        record(9000, ["p", cast.alice.pubkey]),
        record(9000, ["p", cast.bob.pubkey]),
        record(9001, ["p", cast.alice.pubkey]),
    ]
    lines.write_bytes(b"\n".join(records))
    assert rookery("import", lines, "--data", folder)[1] == 0
    assert findings(folder) == []
    return folder


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_record_of_a_group_lets_nobody_in(den: Path, what: str) -> None:
    """The tables know that alice is out; a replay without the record does not."""
    [flags], members = tables(den)
    damage(den, *DAMAGED[what])
    started = rookery("import", den.parent / "den.jsonl", "--data", den)
    assert started[1] == 1, "the relay would start"
    assert "damaged" in started[0]

    report = as_json("verify", "--data", den, "--repair", code=1)
    assert "records of 'den'" in " ".join(report["repaired"])
    assert "restore a backup" in " ".join(report["repaired"])
    assert report["left"]["findings"]
    after, left = tables(den)
    assert after == [flags]
    assert left <= members
    assert rookery("import", den.parent / "den.jsonl", "--data", den)[1] == 1
    backup = den / "before-repair.tar.gz"
    assert rookery("restore", backup, den.parent / "old")[1] == 0
    assert tables(den.parent / "old") == ([flags], members)


def test_damaged_records_are_dropped_when_asked_for_and_who_has_rights_again_is_told(
    den: Path,
) -> None:
    damage(den, *DAMAGED["a 9001 that is no JSON"])
    assert rookery("verify", "--drop-records", "--data", den)[1] == 2
    report = as_json("verify", "--data", den, "--repair", "--drop-records")
    told = " ".join(report["repaired"])
    assert f"group 'den': {cast.alice.pubkey} has rights again" in told
    assert cast.bob.pubkey not in told
    assert report["moved_to"] is not None
    assert rookery("import", den.parent / "den.jsonl", "--data", den)[1] == 0


@pytest.mark.parametrize(
    "sql",
    [
        f"DELETE FROM members WHERE pubkey = {ALICE} AND grp = 'tea'",
        f"UPDATE members SET admin = 1 WHERE pubkey = {ALICE}",
        "INSERT INTO members VALUES (x'{}', 'tea', 0)".format("ab" * 32),
        "UPDATE groups SET guarded = 0 WHERE id = 'tea'",
        "UPDATE groups SET hidden = 1 WHERE id = 'tea'",
        "DELETE FROM groups WHERE id = 'tea'",
    ],
)
def test_a_relay_does_not_start_on_tables_that_differ_from_the_records(
    folder: Path, sql: str
) -> None:
    """Stored rows would be shown by the ones, live ones by the others."""
    lines = folder.parent / "note.jsonl"
    lines.write_bytes(cast.alice.sign(1, [], "hello", int(time.time())).raw)
    plant(folder, sql)
    printed, code = rookery("import", lines, "--data", folder)
    assert code == 1
    assert "'tea'" in printed
    assert "rookery verify" in printed
    as_json("verify", "--data", folder, "--repair")
    assert rookery("import", lines, "--data", folder)[1] == 0


def test_a_group_without_its_metadata_event_is_hidden(folder: Path) -> None:
    """It may have been: other records do not tell."""
    hides = cast.owner.sign(9002, [["h", "food"], ["hidden"]], "", int(time.time()))
    lines = folder.parent / "hides.jsonl"
    lines.write_bytes(hides.raw)
    assert rookery("import", lines, "--data", folder)[1] == 0
    plant(
        folder,
        "UPDATE events SET raw = CAST(substr(raw, 1, length(raw) - 34) || '{}' ||"
        " substr(raw, -2) AS BLOB) WHERE kind = 39000 AND CAST(raw AS TEXT) LIKE '%food%'".format(
            "0" * 32
        ),
    )
    as_json("verify", "--data", folder, "--repair")

    async def flags_of(group_id: str) -> frozenset[Flag]:
        async with run_services(folder, load_config(folder / "rookery.toml")) as services:
            return services.state.groups.by_id[group_id].flags

    assert asyncio.run(flags_of("food")) == UNTOLD_FLAGS
    assert asyncio.run(flags_of("tea")) == {Flag.PRIVATE, Flag.CLOSED}


@pytest.fixture
def with_history(folder: Path) -> Path:
    """The essay has an old version."""
    rule = '[[retention]]\nname = "history"\nhistory = { count = 3 }\n'
    (folder / "policies" / "50-history.toml").write_text(rule)
    lines = folder.parent / "newer.jsonl"
    tags = [["d", "essay"], ["t", "tea"]]
    lines.write_bytes(cast.alice.sign(30023, tags, "a newer essay", int(time.time())).raw)
    assert rookery("import", lines, "--data", folder)[1] == 0
    assert findings(folder) == []
    return folder


@pytest.mark.parametrize(
    ("sql", "text", "left"),
    [
        (
            "UPDATE old_versions SET raw = CAST(replace(raw, 'oolong', 'oopong') AS BLOB)",
            "is not the hash",
            0,
        ),
        (
            "UPDATE old_versions SET raw = CAST(substr(raw, 1, length(raw) - 34) || '{}' ||"
            " substr(raw, -2) AS BLOB)".format("0" * 32),
            "the signature is wrong",
            0,
        ),
        ("UPDATE old_versions SET slot = 7", "not in the slot of its versions", 0),
        ("UPDATE old_versions SET created_at = 7", "its columns are not what", 0),
        (
            "INSERT INTO tombstones SELECT 'e:' || lower(hex(id)), '', NULL, 'ban', NULL"
            " FROM old_versions",
            "was deleted, and is stored",
            0,
        ),
        ("UPDATE events SET slot = 42 WHERE kind = 30023", "there is no newer version", 1),
    ],
)
def test_a_wrong_old_version_is_found_and_deleted(
    with_history: Path, sql: str, text: str, left: int
) -> None:
    folder = with_history
    plant(folder, sql)
    report = as_json("verify", "--data", folder, code=1)
    assert text in "\n".join(
        each["text"] for each in report["findings"] if each["check"] == "version"
    )
    assert as_json("verify", "--data", folder, "--repair")["left"]["findings"] == []
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        assert db.execute("SELECT count(*) FROM old_versions").fetchone() == (left,)
    assert "a newer essay" in exported(folder)


def test_an_old_version_of_a_row_that_is_moved_out_goes_too(with_history: Path) -> None:
    plant(with_history, "UPDATE events SET raw = 'oops' WHERE kind = 30023")
    assert as_json("verify", "--data", with_history, "--repair")["left"]["findings"] == []
    with closing(sqlite3.connect(with_history / "rookery.db")) as db:
        assert db.execute("SELECT count(*) FROM old_versions").fetchone() == (0,)


def test_a_deletion_within_another_group_deletes_nothing_here(folder: Path) -> None:
    """N09-14: its tombstone is for the author's event all the same."""
    with closing(connection(folder / "rookery.db")) as db:
        [target] = db.execute("SELECT lower(hex(id)) FROM events WHERE kind = 9").fetchone()
    deletion = cast.alice.sign(5, [["e", target], ["h", "food"]], "", int(time.time()))
    lines = folder.parent / "deletion.jsonl"
    lines.write_bytes(deletion.raw)
    printed, code = rookery("import", lines, "--data", folder, "--trust")
    assert code == 0, printed
    assert "the secret kettle" in exported(folder)
    assert findings(folder) == []
    plant(folder, "DELETE FROM tags")  # of the deletion too
    assert {each["check"] for each in findings(folder)} == {"tags"}


@pytest.mark.parametrize("name", ["e", "a"])
@pytest.mark.parametrize(("group", "is_deleted"), [("food", False), ("tea", True), (None, True)])
def test_a_deletion_within_another_group_deletes_no_old_version_either(
    with_history: Path, name: str, group: str | None, *, is_deleted: bool
) -> None:
    """`--repair` deleted an old version that its history serves. N09-14."""
    folder, now = with_history, int(time.time())
    tags = [["d", "pot"], ["h", "tea"]]
    old = cast.alice.sign(30023, tags, "a whole pot", now - 10)
    target = old.id if name == "e" else f"30023:{cast.alice.pubkey}:pot"
    h = [] if group is None else [["h", group]]
    deletion = cast.alice.sign(5, [[name, target], *h], "", now - 5)
    newer = cast.alice.sign(30023, tags, "half a pot", now)

    def versions() -> set[tuple[Any, ...]]:
        with closing(sqlite3.connect(folder / "rookery.db")) as db:
            return set(db.execute("SELECT * FROM old_versions"))

    def take(event: Event) -> None:
        lines = folder.parent / "event.jsonl"
        lines.write_bytes(event.raw)
        assert rookery("import", lines, "--data", folder, "--trust")[1] == 0

    before = versions()
    take(old)
    if not is_deleted:
        take(deletion)
    take(newer)
    [version] = versions() - before
    assert findings(folder) == []
    if not is_deleted:
        plant(folder, "DELETE FROM tags")  # of the deletion too
        assert {each["check"] for each in findings(folder)} == {"tags"}
        return
    take(deletion)
    assert versions() == before
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        places = ", ".join("?" * len(version))
        db.execute(f"INSERT INTO old_versions VALUES ({places})", version)
        db.commit()
    assert "version" in {each["check"] for each in findings(folder)}


@pytest.mark.parametrize("group", [["h", "tea"], ["alt", "of no group"]])
def test_a_deletion_of_earlier_versions_deletes_no_later_one(
    folder: Path, group: list[str]
) -> None:
    """With the tombstone of a deletion in another group, `--repair` deleted an article that nothing
    had deleted. N09-04, N09-14."""
    now = int(time.time())
    article = cast.alice.sign(30023, [["d", "x"], ["h", "tea"]], "a whole pot", now)
    address = f"30023:{cast.alice.pubkey}:x"
    events = [
        cast.alice.sign(5, [["a", address], group], "", now - 10),
        article,
        cast.alice.sign(5, [["e", article.id], ["h", "food"]], "", now),
    ]
    lines = folder.parent / "events.jsonl"
    lines.write_bytes(b"\n".join(event.raw for event in events))
    printed, code = rookery("import", lines, "--data", folder, "--trust")
    assert code == 0, printed
    assert "a whole pot" in exported(folder)
    assert findings(folder) == []


def test_what_was_not_deleted_stays_after_the_deletion_has_expired(folder: Path) -> None:
    """Its tombstone remains, and does not say in which group it holds."""
    with closing(connection(folder / "rookery.db")) as db:
        [target] = db.execute("SELECT lower(hex(id)) FROM events WHERE kind = 9").fetchone()
        db.execute(
            "INSERT INTO tombstones VALUES (?, ?, NULL, 'kind 5', NULL)",
            (f"e:{target}", cast.alice.pubkey),
        )
        db.commit()
    assert findings(folder) == []
    plant(folder, "UPDATE tombstones SET why = '9005', by = ''")
    assert [each["check"] for each in findings(folder)] == ["tombstone"]


def test_a_tag_that_only_the_writer_knows_is_no_fault(folder: Path) -> None:
    """As after a crash: `tags_upto` says which rows may lack theirs."""
    plant(folder, "UPDATE meta SET value = 3 WHERE name = 'tags_upto'")
    plant(folder, "DELETE FROM tags WHERE seq > 3 AND seq % 2")
    assert findings(folder) == []
    plant(folder, "INSERT INTO tags VALUES (7, 1, 7, 7, 5, NULL)")
    assert [each["check"] for each in findings(folder)] == ["tags"]


def test_tags_of_names_that_are_no_longer_indexed_are_no_fault(folder: Path) -> None:
    with closing(connection(folder / "rookery.db")) as db:
        [key] = db.execute("SELECT value FROM meta WHERE name = 'hash_key'").fetchone()
        hash_ = Hashes(bytes.fromhex(key)).tag("t", "tea")
        db.execute("UPDATE meta SET value = '[]' WHERE name = 'index_tags'")
        assert db.execute("SELECT count(*) FROM tags WHERE hash = ?", (hash_,)).fetchone() == (1,)
    assert findings(folder) == []


def test_an_index_that_is_behind_or_gone_is_no_fault(folder: Path) -> None:
    plant(folder, "UPDATE search.meta SET value = 'other' WHERE name = 'rules'")
    printed, code = rookery("verify", "--data", folder)
    assert code == 0
    assert "search.db is built at the next start" in printed
    for file in folder.glob("search.db*"):
        file.unlink()
    assert rookery("verify", "--data", folder) == (printed, 0)


def test_an_index_that_is_ahead_is_no_fault(folder: Path) -> None:
    """As when an older copy of rookery.db was put back: the next start builds it."""
    plant(folder, "UPDATE search.meta SET value = 1000 WHERE name = 'upto'")
    plant(folder, "DELETE FROM search.texts")
    printed, code = rookery("verify", "--data", folder)
    assert code == 0, printed
    assert "search.db is built at the next start" in printed


def test_a_damaged_index_of_the_file_is_built_again(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "rookery.db", isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("CREATE TABLE scratch (a)")
        # The index now misses a row: the table's page is changed behind its back.
        db.execute(
            "UPDATE sqlite_master SET sql = sql || ' WHERE kind < 0' WHERE name = 'events_kind'"
        )
        db.execute("DROP TABLE scratch")
    with closing(sqlite3.connect(folder / "rookery.db", isolation_level=None)) as db:
        db.execute("REINDEX events_kind")
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' WHERE kind < 0', '')"
            " WHERE name = 'events_kind'"
        )
    found = findings(folder)
    assert {each["check"] for each in found} == {"file"}
    assert "events_kind" in found[0]["text"]
    repaired = as_json("verify", "--data", folder, "--repair")
    assert repaired["left"]["findings"] == []


def test_what_is_held_grows_with_the_rows_not_with_their_numbers(folder: Path) -> None:
    tagged = f"seq = (SELECT seq FROM events WHERE {GROUP_MESSAGE})"
    for what in (
        f"tags SET seq = 1 << 50 WHERE {tagged}",
        f"events SET seq = 1 << 50 WHERE {tagged}",
    ):
        plant(folder, f"UPDATE {what}")
    plant(folder, "UPDATE meta SET value = 1 << 50 WHERE name = 'tags_upto'")
    assert "tags" not in {each["check"] for each in findings(folder)}
    plant(folder, "DELETE FROM tags WHERE seq = 1 << 50")
    assert "tags" in {each["check"] for each in findings(folder)}


def test_thousands_of_findings_are_counted_and_a_hundred_shown(folder: Path) -> None:
    plant(folder, "DELETE FROM tags")
    plant(folder, "UPDATE meta SET value = 1000 WHERE name = 'tags_upto'")
    plant(folder, "UPDATE sizes SET events = events + 1")
    report = as_json("verify", "--data", folder, code=1)
    assert report["counts"]["tags"] > 40
    assert as_json("verify", "--data", folder, "--repair")["left"]["findings"] == []


@pytest.mark.parametrize("file", ["rookery.db", "relay.key"])
def test_a_folder_without_a_store_is_refused(folder: Path, file: str) -> None:
    (folder / file).unlink()
    printed, code = rookery("verify", "--data", folder)
    assert code == 1
    assert file in printed
