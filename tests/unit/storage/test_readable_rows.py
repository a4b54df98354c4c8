"""What is known to be readable: bounded, and gone with the commit that changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.access.actors import Actors
from relay.access.visibility import ANONYMOUS, visibility_for
from relay.groups.group import Groups
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage.sqlite.readable_rows import ReadableRows

if TYPE_CHECKING:
    from relay.nostr.filters import Filter

ANYONE = visibility_for(ANONYMOUS, [], Actors(), Groups())


def tea(**more: object) -> Filter:
    return filter_from({"search": "tea", **more}, FilterTerms(search=True))


def test_it_is_known_of_a_viewer_and_a_filter_whatever_words_are_searched_for() -> None:
    rows = ReadableRows()
    rows.of(ANYONE, tea()).add([1, 2], rows.changes)
    milk = filter_from({"search": "milk", "limit": 3}, FilterTerms(search=True))
    assert rows.of(ANYONE, milk).seqs == {1, 2}
    assert not rows.of(ANYONE, tea(kinds=[1])).seqs
    assert not rows.of(visibility_for(ANONYMOUS, [], Actors(), Groups()), tea()).seqs


def test_rows_that_are_deleted_or_moved_are_known_no_more() -> None:
    rows = ReadableRows()
    rows.of(ANYONE, tea()).add([1, 2], rows.changes)
    rows.changed({2}, groups=False)
    assert rows.of(ANYONE, tea()).seqs == {1}
    rows.changed((), groups=True)
    assert not rows.of(ANYONE, tea()).seqs


def test_what_was_read_before_a_deletion_does_not_come_after_it() -> None:
    rows = ReadableRows()
    known = rows.of(ANYONE, tea())
    before = known.changes
    rows.changed({1}, groups=False)
    known.add([1, 2], before)
    assert not known.seqs
    rows.changed((), groups=False)  # a commit that only adds
    known.add([2], known.changes)
    assert known.seqs == {2}


def test_it_is_bounded() -> None:
    rows = ReadableRows(max_rows=5)
    rows.of(ANYONE, tea(kinds=[1])).add(range(4), rows.changes)
    rows.of(ANYONE, tea()).add(range(4), rows.changes)
    assert len(rows) == 4
    assert rows.of(ANYONE, tea()).seqs == {0, 1, 2, 3}
    rows.of(ANYONE, tea()).add(range(9), rows.changes)
    assert not len(rows)
    for kind in range(200):
        rows.of(ANYONE, tea(kinds=[kind])).add([kind], rows.changes)
    assert len(rows) <= 5
    rows.of(ANYONE, tea(authors=[f"{n:064x}" for n in range(101)])).add([1], rows.changes)
    assert len(rows) <= 5


def test_filters_of_long_values_are_not_kept() -> None:
    """They are in no other bound, and stay until a group changes."""
    rows = ReadableRows()
    for text in ("x" * 8192, "x" * 8193, "x" * 2048 + "\U0001f600"):
        rows.of(ANYONE, tea(**{"#t": [text]})).add([1], rows.changes)
    assert len(rows) == 1
