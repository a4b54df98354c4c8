"""The statements of SQLite's store that read a whole table: a known few. Others do that by mistake,
for want of an index, and nobody notices before the table is large."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from relay.storage.sqlite.sql.named import FILES, QUERIES
from relay.storage.sqlite.tag_functions import add_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

SCANNED: Final = {
    "has_old": {"old_versions"},  # its first row
    "has_moves": {"partition_moves"},  # likewise
    "closed_moves": {"partition_moves"},  # likewise
    # All is wanted, at a start.
    "all_rows": {"events"},  # after a change of the indexed tags
    "count_tables": {"sqlite_master"},
    "objects": {"sqlite_master"},
    "ended_groups": {"groups"},
    "group_rows": {"groups"},
    "management": {"management"},
    "guarded_groups": {"groups"},
    "groups_to_place": {"groups"},
    # Sums for an admin, and for checks of the store: on connections that only read.
    "sizes_by_kind": {"sizes", "tombstones"},
    "sizes_by_author": {"sizes"},
    "sizes_by_group": {"sizes"},
    "number_of_rows": {"events", "old_versions", "sizes"},
    "stored_bytes": {"sizes"},
    "seqs_of_kinds": {"groups"},  # for their partitions, at a start
}


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        add_functions(made)
        made.executescript(FILES.script("schema.sql"))
        yield made


def statements() -> dict[str, str]:
    """But pieces of others, and what changes the schema."""
    begins = re.compile(r"(?:SELECT|VALUES|INSERT|UPDATE|DELETE)\b").match
    return {name: text for name, text in QUERIES.items() if begins(text)}


def scanned(db: sqlite3.Connection, text: str) -> set[str]:
    """The tables that a statement reads from their first row on, or all of an index of theirs."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")} | {"sqlite_master"}
    aliases = {alias: table for table, alias in re.findall(r"\b(\w+) AS (\w+)", text)}
    names = set(re.findall(r":(\w+)", text))
    places = re.findall(r"\?\d*", text)
    number = len(set(places)) if "?1" in places else len(places)
    values = dict.fromkeys(names, 1) if names else [1] * number
    plan = db.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
    lines = "\n".join([line for *_, line in plan])
    named = re.findall(r"^SCAN (?:TABLE )?(\w+)(?! VIRTUAL)\b", lines, re.MULTILINE)
    return {aliases.get(name, name) for name in named} & tables


def test_a_table_is_read_whole_where_all_of_it_is_wanted(db: sqlite3.Connection) -> None:
    found = {name: scanned(db, text) for name, text in statements().items()}
    assert {name: tables for name, tables in found.items() if tables} == SCANNED


def test_a_join_that_finds_no_index_is_noticed(db: sqlite3.Connection) -> None:
    db.execute("DROP INDEX former_members_group")
    assert scanned(db, QUERIES["ended_groups"]) == {"groups", "former_members"}
    assert scanned(db, QUERIES["drop_former_members"]) == {"former_members"}
