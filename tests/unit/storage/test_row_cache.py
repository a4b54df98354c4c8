"""relay/storage/sqlite/row_cache.py: what it keeps, and how much of it."""

from __future__ import annotations

from relay.storage.sqlite.row_cache import RowCache


def numbered(first: int, last: int, size: int = 850) -> list[tuple[int, bytes]]:
    """Rows that take 1,000 bytes each with their entries."""
    return [(seq, b"%d:" % seq + bytes(size - len(b"%d:" % seq))) for seq in range(first, last)]


def test_rows_come_in_the_order_they_are_asked_for_and_unknown_ones_are_none() -> None:
    cache = RowCache()
    cache.add([(1, b"one"), (2, b"two")], cache.discarded)
    assert cache.raws([2, 3, 1]) == [b"two", None, b"one"]


def test_a_row_that_is_used_stays_while_newer_ones_push_others_out() -> None:
    cache = RowCache(20_000)
    cache.add(numbered(0, 10), cache.discarded)
    for first in range(10, 100, 5):
        assert cache.raws([3]) != [None]
        cache.add(numbered(first, first + 5), cache.discarded)
    assert cache.raws([4]) == [None]


def test_it_never_holds_more_than_its_bytes() -> None:
    cache = RowCache(20_000)
    cache.add(numbered(0, 500), cache.discarded)
    held = [raw for raw in cache.raws(range(500)) if raw is not None]
    assert 9 <= len(held) <= 20


def test_a_deleted_row_leaves_both_generations() -> None:
    cache = RowCache(20_000)
    cache.add(numbered(0, 15), cache.discarded)
    cache.discard([2, 14])
    assert cache.raws([2, 14]) == [None, None]
    assert None not in cache.raws([1, 13])


def test_a_row_that_is_deleted_while_it_is_read_is_not_kept() -> None:
    cache = RowCache()
    before = cache.discarded
    cache.discard([2])
    cache.add([(1, b"one"), (2, b"two")], before)
    assert cache.raws([1, 2]) == [None, None]
    cache.add([(1, b"one")], cache.discarded)
    assert cache.raws([1]) == [b"one"]


def test_room_of_deleted_rows_is_used_again() -> None:
    cache = RowCache(20_000)
    for _ in range(50):
        cache.add(numbered(100, 105), cache.discarded)
        cache.discard(range(100, 105))
    cache.add(numbered(0, 8), cache.discarded)
    cache.add(numbered(20, 21), cache.discarded)
    assert None not in cache.raws(range(8))


def test_a_large_row_is_not_kept() -> None:
    cache = RowCache()
    cache.add(numbered(1, 2, 65_537), cache.discarded)
    assert cache.raws([1]) == [None]


def test_it_is_left_out_while_more_is_read_by_turns_than_it_holds() -> None:
    cache = RowCache(20_000)
    looked_up = 0
    for first in [*range(0, 100, 10)] * 20:
        if cache.pays():
            looked_up += 1
            cache.raws(range(first, first + 10))
            cache.add(numbered(first, first + 10), cache.discarded)
    assert looked_up < 200 / 12


def test_it_is_used_again_when_rows_are_found_in_it() -> None:
    cache = RowCache()
    cache.raws(range(4_000))  # of which none was held
    rows = numbered(0, 100)
    pays = []
    for _ in range(3_000):
        pays.append(cache.pays())
        if pays[-1]:
            cache.raws(range(100))
            cache.add(rows, cache.discarded)
    assert not any(pays[:15])
    assert all(pays[-100:])
