"""Classes of kinds in the table of tags."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from random import Random

import pytest

from relay.storage.sqlite.kind_classes import KIND_CLASSES, classes_of, kind_class
from relay.storage.sqlite.sql.conditions import FALSE, TAGS, has_tag_of, kind_class_of
from relay.storage.sqlite.sql.named import FILES

EDGES = [0, 1, 255, 256, 1059, 9000, 65_535]
RANDOM = Random(1)
HASHES = [-(2**63), -1, 0, 1, 2**63 - 1, *[RANDOM.getrandbits(64) - 2**63 for _ in range(200)]]
KINDS = [*EDGES, *[RANDOM.randrange(65_536) for _ in range(200)]]


def test_sql_has_the_same_classes() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        sql = f"SELECT {kind_class_of('?1', '?2')}"
        for hash_ in HASHES:
            for kind in KINDS:
                assert db.execute(sql, (hash_, kind)).fetchone()[0] == kind_class(hash_, kind)


def test_the_migration_has_the_same_classes() -> None:
    assert kind_class_of("hash", "kind") in FILES.migration(13)


@pytest.mark.parametrize("kind", EDGES)
def test_the_text_for_a_known_kind_has_the_same_classes(kind: int) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for hash_ in HASHES:
            sql = f"SELECT {kind_class_of('h.value', kind)} FROM (SELECT ? AS value) AS h"
            assert db.execute(sql, (hash_,)).fetchone()[0] == kind_class(hash_, kind)


def test_there_are_few_classes() -> None:
    for hash_ in HASHES[:10]:
        classes = {kind_class(hash_, kind) for kind in range(65_536)}
        assert max(classes) < KIND_CLASSES
        assert all(kind_class(hash_, kind) == kind for kind in range(256))


@pytest.mark.parametrize("pair", [(1059, 1060), (1059, 1315), (1059, 33_827), (445, 65_535)])
def test_two_kinds_share_a_class_under_one_in_128_hashes_at_most(pair: tuple[int, int]) -> None:
    one, other = pair
    shared = sum(kind_class(low, one) == kind_class(low, other) for low in range(65_536))
    assert shared <= 65_536 // 128


def test_classes_of_many_kinds_are_all_that_are_shared() -> None:
    kinds = frozenset(range(200, 1000))
    assert classes_of(7, kinds, 10) == {*range(200, KIND_CLASSES)}
    assert classes_of(7, kinds) <= classes_of(7, kinds, 10)
    assert classes_of(7, frozenset({1, 7})) == {1, 7}


def test_no_row_has_a_tag_with_one_of_no_values() -> None:
    """A rule of retention may name none."""
    assert has_tag_of(TAGS, "t", 0) == FALSE
