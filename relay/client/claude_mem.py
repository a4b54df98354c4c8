"""The database of claude-mem, read only and within bounds: it may come from somebody else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from relay.errors import Invalid, UserError
from relay.memory.interop.claude_mem import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_RECORDS: Final = 200_000
"""Rows of one table."""
_MAX_CELL: Final = 8 << 20
_MAX_ROWS: Final = 256 << 20
"""Bytes of the cells of one table."""
_CELL: Final = 64
"""Bytes of a cell in memory, beside its text."""
_MAX_STEPS: Final = 1_000
"""Steps of a million SQLite instructions, for all tables together."""


def tables_of(path: Path) -> Mapping[str, Sequence[dict[str, Any]]]:
    """Rows of its tables, by the names that an export gives these.

    Raises Invalid when it is another database, UserError when it cannot be read or is too large.
    """
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return steps > _MAX_STEPS

    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL)
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            db.text_factory = lambda data: data.decode(errors="replace")
            db.set_progress_handler(step, 1_000_000)
            # A view or a virtual table would run code from the file.
            known = (
                "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
            )
            names = {name for (name,) in db.execute(known)}
            if not {"sdk_sessions", "observations"} <= names:
                raise Invalid(
                    f"{path.name} is no database of claude-mem; one of nmem is imported by"
                    " `rookery nmem import`"
                )
            wanted = {name: means for name, means in TABLES.items() if name in names}
            for name in wanted:
                if _has_generated(db, name):
                    raise Invalid(
                        f"{path.name} is no database of claude-mem: its {name} has generated"
                        " columns"
                    )
            return {means: _rows_in(db, name) for name, means in wanted.items()}
    except sqlite3.Error as error:
        raise UserError(f"{path.name}: {error}") from error


def _has_generated(db: sqlite3.Connection, table: str) -> bool:
    """Generated columns are not stored: 12 kB may define gigabytes in one row, and no progress
    handler ends a function that computes one."""
    # Not `pragma_table_xinfo`: a virtual table of the file may have this name.
    return any(row[-1] for row in db.execute(f"PRAGMA table_xinfo({table})"))


def _rows_in(db: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    rows = db.execute(f"SELECT * FROM {table} ORDER BY id")  # noqa: S608  a name of ours
    names = [column[0] for column in rows.description]
    found = []
    size = 0
    for row in rows:
        found.append(dict(zip(names, row, strict=True)))
        # Defaults of columns added later are not stored in the rows: a small file may have many.
        size += sum([len(cell) for cell in row if isinstance(cell, (str, bytes))])
        size += _CELL * len(row)
        if len(found) > MAX_RECORDS or size > _MAX_ROWS:
            raise UserError(f"{table}: over {MAX_RECORDS} rows or {_MAX_ROWS >> 20} MiB")
    return found
