"""SQLite databases that may come from somebody else: read within bounds, and without running what
is in them."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAX_CELL: Final = 8 << 20
_MAX_STEPS: Final = 1_000
"""Steps of a million SQLite instructions, for all reads together."""
_MIN_ROOM: Final = 16 << 20
_EXPRESSION: Final = -2
"""Instead of the number of a column, in an index."""
_MAX_DEFAULTS: Final = 500
"""Characters of all defaults of a table that is written: a row has up to nine bytes of each."""
_MAX_INDEXED: Final = 32
"""Columns in all indices of a table that is written: each repeats the text of a row."""
_CHECK: Final = re.compile(r"\bcheck\b", re.IGNORECASE)
_TEXT: Final = "'[^']{0,40}'"
_CHEAP_DEFAULT: Final = re.compile(
    rf"null|true|false|current_(?:time|date|timestamp)|[+-]?[\d.]{{1,20}}|{_TEXT}|\"[^\"]{{0,40}}\""
    rf"|(?:date|time|datetime|unixepoch|strftime)\((?:{_TEXT}(?:, ?{_TEXT}){{0,2}})?\)",
    re.IGNORECASE,
)
_NO_TABLE: Final = (
    "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE"
    " AND (type <> 'table' OR sql NOT LIKE 'CREATE TABLE%')"
)


def opened(path: Path) -> sqlite3.Connection:
    """Read only, for one thread at a time. Raises sqlite3.Error, as reads do of longer values or
    after a billion instructions."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return steps > _MAX_STEPS

    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    bound(db)
    db.execute("PRAGMA query_only = ON")
    db.set_progress_handler(step, 1_000_000)
    return db


def bound(db: Any) -> None:
    """Bound the values that are read. SQLCipher's module has no limits."""
    if isinstance(db, sqlite3.Connection):
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL)
        db.execute("PRAGMA trusted_schema = OFF")


def code_in(db: Any, table: str) -> str | None:
    """Why reading this table would run code of the file; None: it would not. A view may have rows
    without end. Generated columns are not stored: 12 kB may define gigabytes in one row, and no
    progress handler ends a function that computes one."""
    if db.execute(_NO_TABLE, (table,)).fetchone():
        return f"{table} is no table"
    # Not `pragma_table_xinfo`: a virtual table of the file may have this name.
    if any(row[-1] for row in db.execute(f"PRAGMA table_xinfo({table})")):
        return f"{table} has generated columns"
    return None


def code_run_by_writing(db: Any, table: str) -> str | None:
    """As `code_in`, also of what writing this table would run: an expression in 200 bytes may take
    hours or make megabytes of each row."""
    schema = "SELECT type, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE"
    for kind, sql in db.execute(schema, (table,)):
        if kind == "trigger":
            return f"{table} has a trigger"
        if kind == "table" and _CHECK.search(sql or ""):
            return f"{table} has a CHECK"
    room = _MAX_DEFAULTS
    for *_, default, _, _ in db.execute(f"PRAGMA table_xinfo({table})"):
        if default is not None:
            if _CHEAP_DEFAULT.fullmatch(default) is None:
                return f"{table} has a default that is computed or long"
            room -= len(default)
    if room < 0:
        return f"{table} has defaults of over {_MAX_DEFAULTS} characters"
    room = _MAX_INDEXED
    for _, name, _, _, is_partial in db.execute(f"PRAGMA index_list({table})").fetchall():
        quoted = name.replace('"', '""')
        columns = [cid for _, cid, *_ in db.execute(f'PRAGMA index_xinfo("{quoted}")')]
        if is_partial or _EXPRESSION in columns:
            return f"{table} has an index with an expression"
        room -= len(columns)
    if room < 0:
        return f"{table} has indices of over {_MAX_INDEXED} columns"
    return code_in(db, table)


def room_in(path: Path) -> int:
    """At most so many bytes of text are in the rows of a table that was written row by row. The
    default of a column that was added later is in no row: a small file could give any number."""
    log = path.with_name(f"{path.name}-wal")
    files = (path, log) if log.exists() else (path,)
    return _MIN_ROOM + sum(each.stat().st_size for each in files)


def weight(row: Sequence[Any]) -> int:
    """Bytes of the texts of a row."""
    return sum([len(cell) for cell in row if isinstance(cell, (str, bytes))])
