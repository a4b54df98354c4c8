"""Statements about the tables that `rookery move` copies as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.storage.postgres.sql.named import FILES

if TYPE_CHECKING:
    from relay.storage.moving import Table

MOVE_QUERIES: Final = FILES.statements("moving.sql")
LOG_SCRIPT: Final = FILES.script("moving_log.sql")
TRIGGERS: Final = LOG_SCRIPT.count("CREATE TRIGGER ")
TOMBSTONE_SCRIPT: Final = FILES.script("moving_log_tombstone.sql")
_HASHED: Final = frozenset({("tombstones", "target"), ("tombstones", "by"), ("management", "item")})
"""Columns that may be longer than an entry of an index: it has their hashes."""


def entries_of(table: Table) -> str:
    return f"SELECT {', '.join(table.columns)} FROM {table.name}"


def entries_at(table: Table) -> str:
    columns = ", ".join(table.columns)
    return f"SELECT {columns} FROM {table.name} WHERE {_named(table)} ORDER BY {columns}"


def drop_entries(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {_named(table)}"


def add_entry(table: Table) -> str:
    columns = ", ".join(table.columns)
    values = ", ".join([f"${number}" for number in range(1, len(table.columns) + 1)])
    return f"INSERT INTO {table.name} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"


def _named(table: Table) -> str:
    return " AND ".join(
        [
            f"sha256({key}) = sha256(${number})"
            if (table.name, key) in _HASHED
            else f"{key} = ${number}"
            for number, key in enumerate(table.keys, 1)
        ]
    )
