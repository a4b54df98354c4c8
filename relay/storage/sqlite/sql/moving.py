"""Statements about the tables that `rookery move` copies as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.storage.sqlite.sql.named import FILES

if TYPE_CHECKING:
    from relay.storage.moving import Table

MOVE_QUERIES: Final = FILES.statements("moving.sql")
LOG_SCRIPT: Final = FILES.script("moving_log.sql")
TRIGGERS: Final = LOG_SCRIPT.count("CREATE TRIGGER ")


def entries_of(table: Table) -> str:
    return f"SELECT {', '.join(table.columns)} FROM {table.name}"


def entries_at(table: Table) -> str:
    columns = ", ".join(table.columns)
    return f"SELECT {columns} FROM {table.name} WHERE {_named(table)} ORDER BY {columns}"


def drop_entries(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {_named(table)}"


def add_entry(table: Table) -> str:
    columns = ", ".join(table.columns)
    values = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {table.name} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"


def drop_trigger(name: str) -> str:
    """`name` is one of `log_triggers`."""
    return f"DROP TRIGGER {name}"


def _named(table: Table) -> str:
    return " AND ".join([f"{key} = ?" for key in table.keys])
