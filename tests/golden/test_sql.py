"""tests/golden/sql.txt shows the SQL that is composed now."""

from __future__ import annotations

import pytest

from tests.golden import sql_postgres
from tests.golden.sql import GOLDEN, cases, composed


def test_the_file_shows_the_sql_that_is_composed() -> None:
    if GOLDEN.read_text("utf-8") != composed():
        pytest.fail("look at the difference: python -m tests.golden.sql prints and writes it")


def test_the_file_shows_the_sql_that_is_composed_for_postgres() -> None:
    if sql_postgres.GOLDEN.read_text("utf-8") != sql_postgres.composed():
        program = "python -m tests.golden.sql_postgres"
        pytest.fail(f"look at the difference: {program} prints and writes it")


def test_it_covers_every_index_and_every_way_to_read() -> None:
    text = GOLDEN.read_text("utf-8")
    walks = ["time", "kind", "author", "id", "d"]
    sources = [f"INDEXED BY events_{name}" for name in walks]
    sources += ["NOT INDEXED", "FROM tags AS t", "search.words", "e.seq IN (SELECT value"]
    columns = ["g.guarded = 0", "g.hidden = 0", "g.ended = 1", "admin = 1", "tag_hash(", "e.quiet"]
    assert [part for part in sources + columns if part not in text] == []
    assert len(list(cases())) >= 40
