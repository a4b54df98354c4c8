"""What the file of a store holds, and whether its tables agree with each other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_TABLES: Final = (
    "events",
    "tombstones",
    "erasures",
    "sizes",
    "received",
    "groups",
    "members",
    "former_members",
    "management",
)

Contents = dict[str, frozenset[tuple[Any, ...]]]
"""Table → rows, of all tables that say something of events. Not of `meta` and `tags`."""


def contents(path: Path) -> Contents:
    with closing(sqlite3.connect(path)) as db:
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        return {table: frozenset(_rows(db, table)) for table in _TABLES if table in there}


def _rows(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Without `partition`: rows are moved while nothing is written."""
    columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    named = ", ".join([name for name in columns if name != "partition"])
    return db.execute(f"SELECT {named} FROM {table}").fetchall()


def raws_in(found: Contents) -> dict[str, bytes]:
    """Id → raw."""
    return {row[1].hex(): row[-1] for row in found.get("events", ())}


def contradictions(path: Path) -> list[str]:
    """Between the tables, and what SQLite finds itself."""
    found = []
    with closing(sqlite3.connect(path)) as db:
        counted = db.execute(
            "SELECT pubkey, kind, ifnull(grp, ''), count(*), sum(length(raw)) FROM events"
            " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ).fetchall()
        noted = db.execute("SELECT * FROM sizes ORDER BY 1, 2, 3").fetchall()
        lost = db.execute(
            "SELECT count(*) FROM tags WHERE seq NOT IN (SELECT seq FROM events)"
        ).fetchone()[0]
        checked = db.execute("PRAGMA integrity_check").fetchone()[0]
    if counted != noted:
        found.append(f"sizes are {noted}, and there is {counted}")
    if lost:
        found.append(f"{lost} tags of rows that are gone")
    if checked != "ok":
        found.append(checked)
    return found
