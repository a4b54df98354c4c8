"""The kinds of which an index of tags has the kind: the same in the files of both stores."""

from __future__ import annotations

import re

import pytest

from relay.storage.postgres.sql.named import FILES as POSTGRES
from relay.storage.rows import FOUND_BY_KEY
from relay.storage.sqlite.sql.named import FILES as SQLITE
from relay.storage.sqlite.sql.named import QUERIES

_INDEX = r"CREATE INDEX tags_kind ON tags [^;]*WHERE (kind [^;]+);"


@pytest.mark.parametrize(
    "text",
    [
        SQLITE.script("schema.sql"),
        SQLITE.migration(11),
        POSTGRES.script("schema.sql"),
        POSTGRES.migration(5),
    ],
    ids=["sqlite", "sqlite, migrated", "postgres", "postgres, migrated"],
)
def test_the_index_has_the_kinds_that_are_looked_up_by_a_key(text: str) -> None:
    listed = re.search(_INDEX, text)
    assert listed is not None
    assert set(map(int, re.findall(r"\d+", listed[1]))) == FOUND_BY_KEY


def test_sqlite_is_asked_in_the_words_of_the_index() -> None:
    """Else it cannot prove that the index has all rows that are asked for."""
    listed = re.search(_INDEX, SQLITE.script("schema.sql"))
    assert listed is not None
    assert QUERIES["tags_by_kind"].endswith(f"WHERE ({listed[1]})")
