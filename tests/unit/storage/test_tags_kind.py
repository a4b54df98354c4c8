"""The kinds that are looked up by a key: the same in both stores."""

from __future__ import annotations

import re

import pytest

from relay.nostr import kinds
from relay.storage.postgres.sql.named import FILES
from relay.storage.rows import FOUND_BY_KEY
from relay.storage.sqlite.sql.named import QUERIES

_INDEX = r"CREATE INDEX tags_kind ON tags [^;]*WHERE (kind [^;]+);"


@pytest.mark.parametrize(
    "text",
    [
        FILES.script("schema.sql"),
        FILES.migration(5),
    ],
    ids=["made", "migrated"],
)
def test_the_index_of_postgres_has_these_kinds(text: str) -> None:
    listed = re.search(_INDEX, text)
    assert listed is not None
    assert set(map(int, re.findall(r"\d+", listed[1]))) == FOUND_BY_KEY


def test_sqlite_asks_for_these_kinds() -> None:
    listed = ", ".join([str(kind) for kind in sorted(FOUND_BY_KEY) if kind != kinds.PUT_USER])
    assert f"kind_class IN ({listed})" in QUERIES["key_is_stored"]
    assert f"kind_class = {kinds.PUT_USER}" in QUERIES["key_is_stored"]
    assert f"e.kind IN ({', '.join(map(str, sorted(FOUND_BY_KEY)))})" in QUERIES["key_is_stored"]
