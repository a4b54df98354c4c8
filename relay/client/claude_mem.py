"""The database of claude-mem, read only and within bounds: it may come from somebody else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from relay.client.foreign_database import code_in, opened, weight
from relay.errors import Invalid, UserError
from relay.memory.interop.claude_mem import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_RECORDS: Final = 200_000
"""Rows of one table."""
_MAX_ROWS: Final = 256 << 20
"""Bytes of the cells of one table."""
_CELL: Final = 64
"""Bytes of a cell in memory, beside its text."""


def tables_of(path: Path) -> Mapping[str, Sequence[dict[str, Any]]]:
    """Rows of its tables, by the names that an export gives these.

    Raises Invalid when it is another database, UserError when it cannot be read or is too large.
    """
    try:
        with closing(opened(path)) as db:
            db.text_factory = lambda data: data.decode(errors="replace")
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
                if fault := code_in(db, name):
                    raise Invalid(f"{path.name} is no database of claude-mem: its {fault}")
            return {means: _rows_in(db, name) for name, means in wanted.items()}
    except sqlite3.Error as error:
        raise UserError(f"{path.name}: {error}") from error


def _rows_in(db: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    rows = db.execute(f"SELECT * FROM {table} ORDER BY id")  # noqa: S608  a name of ours
    names = [column[0] for column in rows.description]
    found = []
    size = 0
    for row in rows:
        found.append(dict(zip(names, row, strict=True)))
        size += weight(row) + _CELL * len(row)
        if len(found) > MAX_RECORDS or size > _MAX_ROWS:
            raise UserError(f"{table}: over {MAX_RECORDS} rows or {_MAX_ROWS >> 20} MiB")
    return found
