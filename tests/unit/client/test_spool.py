"""Spool: durable, ordered, private, never discarded."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import stat
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

import pytest

from relay.client.spool import Spool, SpoolDamaged, SpoolFull
from relay.nostr.nip09 import targets_of
from tests.cast import owner, robot
from tests.harness.erasure import left_of

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey


@cache
def event(text: str) -> Event:
    return owner.sign(1, [], text, 1_700_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "aman.spool"


def texts(spool: Spool) -> list[str]:
    return [waiting.content for waiting in spool.waiting()]


def test_events_keep_their_order_across_programs(path: Path) -> None:
    spool = Spool(path)
    for text in ("one", "two", "three"):
        spool.put(event(text))
    spool.close()
    later = Spool(path)
    assert texts(later) == ["one", "two", "three"]
    assert later.waiting(2) == [event("one"), event("two")]
    later.close()


def test_an_event_put_twice_waits_once(path: Path) -> None:
    spool = Spool(path)
    spool.put(event("one"))
    spool.put(event("two"))
    spool.put(event("one"))
    assert texts(spool) == ["one", "two"]
    assert len(spool) == 2
    spool.close()


def test_the_deletions_that_wait_are_found_by_their_kind_alone(path: Path) -> None:
    spool = Spool(path)
    deletions = [owner.sign(5, [["e", event("one").id]], text, 1) for text in ("", "a", "b")]
    for each in (deletions[0], event('"kind":5,'), *deletions[1:], event("one")):
        spool.put(each)
    spool.refuse(deletions[1].id, "blocked: no")
    spool.put(owner.sign(1, [["kind", '"kind":5,']], "", 1))
    assert spool.deletions() == [deletions[0], deletions[2]]
    spool.done([deletions[0].id])
    assert spool.deletions() == [deletions[2]]
    spool.close()


def test_done_removes_an_event(path: Path) -> None:
    spool = Spool(path)
    for text in ("one", "two", "three"):
        spool.put(event(text))
    spool.done([event("one").id, event("three").id, event("never put").id])
    assert texts(spool) == ["two"]
    spool.close()


def test_a_refused_event_is_kept_with_its_reason_and_not_resent(path: Path) -> None:
    spool = Spool(path)
    spool.put(event("one"))
    spool.put(event("two"))
    spool.refuse(event("one").id, "restricted: only agents may write memory")
    assert texts(spool) == ["two"]
    assert spool.refused() == [(event("one"), "restricted: only agents may write memory")]
    assert len(spool) == 1
    spool.close()


def test_the_time_of_the_first_refusal_is_kept(path: Path) -> None:
    one, two = event("one"), event("two")
    with closing(Spool(path)) as spool:
        for each in (one, two):
            spool.put(each)
            spool.refuse(each.id, "blocked: no")
        assert (spool.long_refused(0), spool.long_refused(100)) == ({one.id, two.id}, set())
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE waiting SET refused_at = refused_at - 100")
        spool.send_again([one.id])
        spool.put(two)
        assert spool.long_refused(0) == set()
        for each in (one, two):
            spool.refuse(each.id, "blocked: no")
        assert spool.long_refused(100) == {one.id}


def test_a_file_of_an_earlier_program_gets_the_time_of_refusals(path: Path) -> None:
    with closing(Spool(path)) as spool:
        spool.put(event("one"))
        spool.refuse(event("one").id, "blocked: no")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("ALTER TABLE waiting DROP COLUMN refused_at")
    with closing(Spool(path)) as spool:
        assert (spool.refused(), spool.long_refused(0)) == ([(event("one"), "blocked: no")], set())
        spool.refuse(event("one").id, "blocked: no")
        assert spool.long_refused(0) == {event("one").id}


def test_a_refused_event_written_again_is_retried(path: Path) -> None:
    spool = Spool(path)
    spool.put(event("one"))
    spool.refuse(event("one").id, "restricted: only agents may write memory")
    spool.put(event("one"))
    assert texts(spool) == ["one"]
    assert spool.refused() == []
    spool.close()


def test_a_full_spool_refuses_and_names_the_number_of_writes(path: Path) -> None:
    spool = Spool(path, most=2)
    spool.put(event("one"))
    spool.put(event("two"))
    with pytest.raises(SpoolFull, match=r"2 writes wait for the relay in .*aman\.spool"):
        spool.put(event("three"))
    spool.done([event("one").id])
    spool.put(event("three"))
    assert texts(spool) == ["two", "three"]
    spool.close()


def test_its_files_are_private(path: Path) -> None:
    spool = Spool(path)
    spool.put(event("one"))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"aman.spool": 0o600, "aman.spool-wal": 0o600, "aman.spool-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    spool.close()


@pytest.mark.parametrize("content", [b"no database at all, but text" * 300, b"SQLite format 3\0"])
def test_a_damaged_file_is_reported_and_left_unchanged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(SpoolDamaged, match=r"aman\.spool holds writes .* move the file away"):
        Spool(path)
    assert path.read_bytes() == content


def test_a_truncated_file_is_reported_and_left_unchanged(path: Path) -> None:
    spool = Spool(path)
    for number in range(200):
        spool.put(event(f"{number}" * 50))
    spool.close()
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    with pytest.raises(SpoolDamaged, match="cannot be read"):
        Spool(path)
    assert path.read_bytes() == half


def test_a_file_of_a_later_version_is_left_unchanged(path: Path) -> None:
    Spool(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    file.close()
    with pytest.raises(SpoolDamaged, match="version is 9, expected 1"):
        Spool(path)


def test_a_read_only_folder_is_not_reported_as_damage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Spool(tmp_path / "file" / "aman.spool")


async def test_threads_share_one_spool(path: Path) -> None:
    spool = Spool(path)
    events = [event(f"{number}") for number in range(60)]

    def put_and_drop(one: Event) -> None:
        spool.put(one)
        spool.waiting()
        if int(one.content) % 2:
            spool.done([one.id])

    await asyncio.gather(*(asyncio.to_thread(put_and_drop, one) for one in events))
    assert sorted(map(int, texts(spool))) == list(range(0, 60, 2))
    spool.close()


def _put_fifty(path: Path, name: str) -> None:
    spool = Spool(path)
    for number in range(50):
        spool.put(event(f"{name} {number}"))
    spool.close()


@pytest.mark.slow
def test_programs_share_one_file_from_its_creation(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    programs = [context.Process(target=_put_fifty, args=(path, name)) for name in "abc"]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    assert [program.exitcode for program in programs] == [0, 0, 0]
    spool = Spool(path)
    assert sorted(texts(spool)) == sorted(f"{name} {n}" for name in "abc" for n in range(50))
    spool.close()


def test_a_version_takes_the_place_of_the_waiting_one_that_it_was_made_of(path: Path) -> None:
    with closing(Spool(path)) as spool:
        spool.put(event("second"), has_edits=True, base=event("first"))
        spool.put(event("third"), has_edits=True, base=event("second"))
        spool.put(event("of another record"), has_edits=True)
        assert [each[:-1] for each in spool.to_send(9)] == [
            (event("third"), True, event("first"), {}),
            (event("of another record"), True, None, {}),
        ]


def test_it_keeps_the_dates_of_the_edits_that_the_replaced_version_had(path: Path) -> None:
    """0: of the version before. Those of what the last version has no more are not kept."""
    with closing(Spool(path)) as spool:
        first, second = {"base": 0, "a": 5, "gone": 5}, {"base": 0, "a": 0, "b": 9}
        spool.put(event("second"), has_edits=True, base=event("first"), dates=first)
        spool.put(event("third"), has_edits=True, base=event("second"), dates=second)
        (waiting,) = spool.to_send(9)
        assert waiting.dates == {"a": 5, "b": 9}


@pytest.mark.parametrize("by", ["id", "address"])
def test_what_a_deletion_names_leaves_the_file_waiting_or_refused(path: Path, by: str) -> None:
    def version(text: str, d: str, at: int = 9, of: SecretKey = owner) -> Event:
        return of.sign(30078, [["d", d]], text, at)

    named = [version("forget me", "a"), version("forget me, refused", "b", 8)]
    kept = [version("other", "c"), version("later", "a", 10), version("robot's", "a", 9, robot)]
    tags = [
        ["e", each.id] if by == "id" else ["a", f"30078:{each.pubkey}:{each.d}"] for each in named
    ]
    deletion = owner.sign(5, tags, "", 9)
    with closing(Spool(path)) as spool:
        for each in (*named, *kept):
            spool.put(each, has_edits=True, base=event("what it is based on"))
        spool.refuse(named[1].id, "restricted: no")
        assert spool.bases([named[0].id, deletion.id]) == [event("what it is based on")]
        spool.put(deletion)
        assert spool.waiting() == [*kept, deletion]
        assert spool.refused() == []
        assert spool.left_of([each.id for each in (*named, *kept)]) == {each.id for each in kept}
        spool.drop(targets_of(owner.sign(5, [["e", deletion.id], ["e", kept[0].id]], "", 9)))
        assert spool.waiting() == [*kept[1:], deletion]  # a deletion of a deletion has no effect
    assert left_of(["forget me", "later"], path.parent) == {path.name: ["later"]}


def test_a_file_of_an_earlier_program_is_used_by_both(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as earlier:
        earlier.executescript(
            "CREATE TABLE waiting (position INTEGER PRIMARY KEY AUTOINCREMENT,"
            " id TEXT NOT NULL UNIQUE, raw BLOB NOT NULL, refusal TEXT); PRAGMA user_version = 1"
        )
        insert = "INSERT INTO waiting (id, raw) VALUES (?, ?)"
        with earlier:
            earlier.execute(insert, (event("one").id, event("one").raw))
        with closing(Spool(path)) as spool:
            with earlier:
                earlier.execute(insert, (event("two").id, event("two").raw))
            spool.put(event("three"), has_edits=True)
            assert texts(spool) == ["one", "two", "three"]
            assert [each.has_edits for each in spool.to_send(9)] == [False, False, True]
