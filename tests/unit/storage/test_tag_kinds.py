"""Kinds of tags that are kept in memory: never fewer than the table has."""

from __future__ import annotations

from contextlib import suppress

import pytest

from relay.storage.sqlite import tag_kinds
from relay.storage.sqlite.tag_kinds import TagKinds


def test_kinds_are_known_of_tags_that_were_looked_up() -> None:
    kinds = TagKinds()
    assert kinds.pairs_of([5]) is None
    kinds.keep([5, 6], [(5, 1), (5, 7)], kinds.flushes)
    assert kinds.pairs_of([5, 6]) == [(5, 1), (5, 7)]
    assert kinds.pairs_of([5, 8]) is None


def test_a_kind_that_the_table_gets_makes_its_tag_unknown() -> None:
    kinds = TagKinds()
    kinds.keep([5, 6], [(5, 1), (6, 1)], kinds.flushes)
    kinds.flushed([(5, 1, 9, 9, 9, None), (6, 7, 9, 9, 9, None)])
    assert kinds.pairs_of([5]) == [(5, 1)]
    assert kinds.pairs_of([6]) is None


def test_what_was_looked_up_before_a_flush_is_not_kept() -> None:
    kinds = TagKinds()
    before = kinds.flushes
    kinds.flushed([(5, 7, 9, 9, 9, None)])
    kinds.keep([5], [(5, 1)], before)
    assert kinds.pairs_of([5]) is None


def test_only_so_many_tags_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_kinds, "_MAX_KNOWN", 2)
    kinds = TagKinds()
    for hash_ in range(4):
        kinds.keep([hash_], [], kinds.flushes)
    assert [kinds.pairs_of([hash_]) for hash_ in range(4)] == [None, None, [], []]


@pytest.mark.parametrize("fails", [True, False])
def test_a_commit_that_moves_rows_is_noticed(*, fails: bool) -> None:
    kinds = TagKinds()
    kinds.keep([5, 6], [(5, 1), (6, 1)], kinds.flushes)
    with suppress(ValueError), kinds.moving([(5, 2, 9, 9, 9, None), (6, 1, 9, 9, 9, None)]):
        assert kinds.moves == 1
        if fails:
            raise ValueError
    assert kinds.moves == 2
    assert kinds.pairs_of([5]) is None
    assert kinds.pairs_of([6]) == [(6, 1)]
