"""Classes of kinds in the table of tags."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from relay.nostr import kinds
from relay.storage.sqlite.kind_classes import (
    KNOWN_KINDS,
    SHARED,
    SHARED_CLASS,
    classes_of,
    kind_class,
    share_classes,
)
from relay.storage.sqlite.partitions import UNPARTITIONED
from relay.storage.sqlite.sql.conditions import FALSE, TAGS, has_tag_of
from relay.storage.sqlite.sql.named import FILES
from tests.property import test_tag_pages, world

any_kind = st.integers(0, kinds.MAX_KIND)


def test_a_known_kind_shares_its_class_with_no_other() -> None:
    of_class = Counter(map(kind_class, range(kinds.MAX_KIND + 1)))
    assert all(of_class[kind_class(kind)] == 1 for kind in KNOWN_KINDS)
    assert of_class.keys() == {*KNOWN_KINDS, *SHARED}


def test_there_are_few_classes() -> None:
    assert len(KNOWN_KINDS) + len(SHARED) < 330


def test_the_kinds_that_the_relay_names_are_known() -> None:
    named = {kind for kind in kinds.kind_names() if not kinds.is_ephemeral(kind)}
    groups = {*kinds.GROUP_RECORDS, *kinds.GROUP_STATE, *kinds.MARMOT, *UNPARTITIONED}
    assert named | groups <= KNOWN_KINDS


def test_the_migration_has_the_same_classes() -> None:
    (selected,) = re.findall(r"SELECT (iif\(e.kind IN .*?)\n    FROM", FILES.migration(14), re.S)
    sql = f"SELECT e.kind, {selected} FROM (SELECT value AS kind FROM json_each(?)) AS e"
    assert "iif(t.kind_class <= 64, t.kind_class, (" in FILES.migration(14)
    some = [*range(65, kinds.MAX_KIND + 1)]
    with closing(sqlite3.connect(":memory:")) as db:
        found = db.execute(sql, (str(some),)).fetchall()
    assert found == [(kind, kind_class(kind)) for kind in some]


def test_sql_has_the_same_shared_classes() -> None:
    sql = f"SELECT {SHARED_CLASS} FROM (SELECT ? AS kind) AS e"
    with closing(sqlite3.connect(":memory:")) as db:
        for kind in (65, 255, 287, 288, 5000, 65_535):
            assert db.execute(sql, (kind,)).fetchone() == (kind_class(kind),)


@given(st.frozensets(any_kind))
def test_classes_of_kinds(some: frozenset[int]) -> None:
    assert classes_of(some) == {kind_class(kind) for kind in some}


def test_some_kinds_of_the_tests_share_a_class() -> None:
    assert len(set(map(kind_class, test_tag_pages.OF_ONE_CLASS))) == 1
    assert len(set(map(kind_class, world.OF_ONE_CLASS))) == 1


def test_only_kinds_that_are_not_known_share_classes() -> None:
    assert not share_classes({0, 1, 1059, 39_000})
    assert share_classes({1, 5000})


def test_no_row_has_a_tag_with_one_of_no_values() -> None:
    """A rule of retention may name none."""
    assert has_tag_of(TAGS, "t", 0, known=False) == FALSE
