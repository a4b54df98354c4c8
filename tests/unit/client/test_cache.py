"""Cache: a disposable copy of the relay's answers."""

from __future__ import annotations

import sqlite3
import stat
from random import Random
from typing import TYPE_CHECKING

import pytest

from relay.client import cache as cache_module
from relay.client import local_file
from relay.client.cache import Cache
from relay.nostr.filters import Filter
from relay.nostr.nip09 import targets_of
from tests.cast import owner, robot

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

KIND_1 = Filter(kinds=frozenset({1}))


def event(text: str, at: int = 1_700_000_000, kind: int = 1, by: SecretKey = owner) -> Event:
    return by.sign(kind, [["t", text]], text, at)


def version(text: str, at: int, d: str = "a", by: SecretKey = robot) -> Event:
    return by.sign(30078, [["d", d]], text, at)


def deletion(*tags: list[str], at: int = 10, by: SecretKey = robot) -> Event:
    return by.sign(5, list(tags), "", at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "aman.cache"


def texts(cache: Cache, *filters: Filter) -> list[str]:
    return [found.content for found in cache.matching(*filters)]


def test_matches_are_returned_newest_first(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("old", 1), event("new", 3), event("other", 2, kind=7)], [])
    assert texts(cache, KIND_1) == ["new", "old"]
    assert texts(cache, Filter(authors=frozenset({robot.pubkey}))) == []
    assert texts(cache, Filter(tags=(("t", frozenset({"old"})),))) == ["old"]
    assert texts(cache, KIND_1, Filter(kinds=frozenset({7}))) == ["new", "other", "old"]
    assert texts(cache, Filter(limit=1)) == ["new"]
    assert texts(cache) == []
    cache.close()


def test_events_of_one_second_come_lowest_id_first(path: Path) -> None:
    cache = Cache(path, "a relay")
    events = [event(f"{number}") for number in range(20)]
    cache.change(events, [])
    assert [e.id for e in cache.matching(Filter())] == sorted(e.id for e in events)
    cache.close()


def test_the_cache_survives_a_restart(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("kept"), event("dropped")], [])
    cache.change([event("kept"), event("added")], [event("dropped")])
    cache.close()
    later = Cache(path, "a relay")
    assert sorted(texts(later, Filter())) == ["added", "kept"]
    later.close()


def test_a_version_takes_the_place_of_older_ones(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([version("one", 1), version("of another", 1, by=owner), version("b", 1, "b")], [])
    cache.change([version("two", 2)], [])
    assert sorted(texts(cache, Filter())) == ["b", "of another", "two"]
    cache.change([], [version("three", 3)])  # dropped without having been here
    assert sorted(texts(cache, Filter())) == ["b", "of another"]
    cache.close()


@pytest.mark.parametrize("by", ["id", "address"])
def test_a_deletion_takes_what_it_names_and_nothing_else(path: Path, by: str) -> None:
    """Of a record every version up to its date, whichever of them this file has."""
    gone = version("gone, both name and text", 10)
    address = f"30078:{robot.pubkey}:a"
    kept = [
        version("other record", 1, "b"),
        version("other author", 1, by=owner),
        robot.sign(1, [["d", "a"]], "other kind", 1),
    ]
    for at, number in ((10, 0), (9, 1)):
        cache = Cache(path, "a relay")
        cache.change([gone, *kept], [])
        tag = ["e", gone.id] if by == "id" else ["a", address]
        cache.delete(targets_of(deletion(tag, at=9, by=owner)))
        cache.delete(targets_of(deletion(tag, at=at)))
        found = texts(cache, Filter())
        assert sorted(found)[-3:] == ["other author", "other kind", "other record"]
        assert len(found) == 3 + (number if by == "address" else 0)
        cache.close()
        is_left = any(b"gone, both" in file.read_bytes() for file in path.parent.iterdir())
        assert is_left == (len(found) > 3)
        path.unlink()


@pytest.mark.parametrize("by", ["id", "address"])
def test_what_was_deleted_is_not_taken_in_again(path: Path, by: str) -> None:
    """Nor after a restart, nor if it was not here when it was deleted."""
    old, gone, newer = version("old", 8), version("gone", 10), version("newer", 11)
    others = version("of another", 1, by=owner)
    named = ["e", gone.id] if by == "id" else ["a", f"30078:{robot.pubkey}:a"]
    cache = Cache(path, "a relay")
    cache.delete(targets_of(deletion(named, at=10)))
    cache.delete(targets_of(deletion(named, at=9)))  # an earlier one, known later
    left = ["gone"] if by == "id" else []
    assert [e.content for e in cache.undeleted([old, gone, others])] == (
        ["old", "of another"] if by == "id" else ["of another"]
    )
    cache.change([gone, others], [])
    assert texts(cache, Filter()) == ["of another"]
    cache.close()
    cache = Cache(path, "a relay")
    cache.change([gone], [])
    assert texts(cache, Filter()) == ["of another"]
    cache.change([newer], [])
    assert texts(cache, Filter()) == ["newer", "of another"]
    cache.undelete(targets_of(deletion(named, at=10)))
    assert cache.undeleted([gone]) == [gone]
    assert left or cache.undeleted([old]) == [old]
    cache.close()


def test_of_what_was_deleted_the_last_are_noted_and_no_text(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MOST_DELETED", 3)
    gone = [version("a text", 1, f"my secret {number}") for number in range(5)]
    cache = Cache(path, "a relay")
    for event in gone:
        cache.delete(targets_of(deletion(["a", f"30078:{robot.pubkey}:{event.d}"])))
    cache.delete(targets_of(deletion(["a", f"30078:{robot.pubkey}:{gone[2].d}"])))  # again
    cache.delete(targets_of(deletion(["a", f"30078:{robot.pubkey}:another"])))
    assert [event.d[-1] for event in cache.undeleted(gone)] == ["0", "1", "3"]
    cache.close()
    assert not any(b"secret" in file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("ends", ["goes on", "closes"])
def test_a_deletion_that_could_not_be_written_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(local_file, "_BUSY_S", 0)
    cache = Cache(path, "a relay")
    named, other = version("tea", 1), version("milk", 1, "b")
    cache.change([named, other], [])
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="locked"):
        cache.delete(targets_of(deletion(["a", f"30078:{robot.pubkey}:a"])))
    blocker.execute("ROLLBACK")
    blocker.close()
    if ends == "goes on":
        assert texts(cache, Filter()) == ["milk"]
        cache.change([named], [])
    cache.close()
    cache = Cache(path, "a relay")
    assert texts(cache, Filter()) == ["milk"]
    cache.close()


def test_what_a_relay_will_not_delete_is_not_deleted_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_file, "_BUSY_S", 0)
    cache = Cache(path, "a relay")
    cache.change([version("tea", 1)], [])
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    targets = targets_of(deletion(["a", f"30078:{robot.pubkey}:a"]))
    with pytest.raises(OSError, match="locked"):
        cache.delete(targets)
    with pytest.raises(OSError, match="locked"):
        cache.undelete(targets)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert texts(cache, Filter()) == ["tea"]
    cache.close()


def test_a_cache_of_another_relay_or_key_is_recreated(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("one")], [])
    cache.close()
    other = Cache(path, "another relay")
    assert texts(other, Filter()) == []
    other.close()


def test_a_cache_of_another_version_is_recreated(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("one")], [])
    cache.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    file.close()
    later = Cache(path, "a relay")
    assert texts(later, Filter()) == []
    later.change([event("two")], [])
    assert texts(later, Filter()) == ["two"]
    later.close()


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_cache_is_recreated(path: Path, part: float) -> None:
    cache = Cache(path, "a relay")
    cache.change([event(f"{number}" * 50) for number in range(300)], [])
    cache.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)] + b"\xa5" * 100)
    later = Cache(path, "a relay")
    assert texts(later, Filter()) == []
    later.change([event("one")], [])
    assert texts(later, Filter()) == ["one"]
    later.close()


def test_flipped_bits_give_no_other_event(path: Path) -> None:
    """Of 300 files with one flipped bit 85 gave a text that nobody had signed."""
    kept = [owner.sign(1, [["t", "x"]], f"text {number} " * 30, number) for number in range(20)]
    said = {(each.id, each.content) for each in kept}
    cache = Cache(path, "relay and key")
    cache.change(kept, [])
    cache.close()
    whole, noticed = path.read_bytes(), 0
    for seed in range(100):
        chance = Random(seed)
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        cache = Cache(path, "relay and key")
        found = cache.matching(Filter())
        cache.close()
        assert {(each.id, each.content) for each in found} <= said
        noticed += len(found) < len(kept)
    assert noticed > 20


def test_a_row_that_is_no_event_recreates_the_cache(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("one"), event("two")], [])
    with sqlite3.connect(path) as file:
        file.execute("UPDATE events SET raw = x'00' WHERE id = ?", (event("one").id,))
    file.close()
    assert texts(cache, Filter()) == []
    cache.change([event("three")], [])
    assert texts(cache, Filter()) == ["three"]
    cache.close()


def test_the_cache_file_is_private(path: Path) -> None:
    cache = Cache(path, "a relay")
    cache.change([event("one")], [])
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}
    cache.close()
