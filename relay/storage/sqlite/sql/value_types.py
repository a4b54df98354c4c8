"""Statements that find values of another type than their column has: SQLite keeps any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS: Final = {
    "events": "seq",
    "old_versions": "seq",
    "tags": "hash, seq",
    "tombstones": "target, by",
    "erasures": "request",
    "sizes": "pubkey, kind, grp",
    "received": "recipient",
    "groups": "id",
    "partition_moves": "grp",
    "members": "pubkey, grp",
    "former_members": "pubkey, grp",
    "management": "register, item",
}
"""The tables, and what names a row in them."""


def columns_of(table: str) -> str:
    """-> name, type, whether it is never null; nothing when there is no such table"""
    return f"SELECT name, type, \"notnull\" OR pk FROM pragma_table_info('{table}')"


def rows_of_another_type(
    table: str, columns: Sequence[tuple[str, str, bool]], max_bytes: int
) -> str:
    """`columns` as `columns_of` gives them. -> `KEYS` of a row with a value of another type, or one
    that is too large"""
    wrong = [_is_wrong(*column, max_bytes) for column in columns]
    return f"SELECT {KEYS[table]} FROM {table} WHERE {' OR '.join(wrong)} LIMIT 1"


def _is_wrong(name: str, type_: str, is_needed: bool, max_bytes: int) -> str:  # noqa: FBT001
    # A text instead of an event is found, and moved out, as any other that is none.
    allowed = [type_.lower(), *["text"] * (name == "raw"), *["null"] * (not is_needed)]
    listed = ", ".join([f"'{each}'" for each in allowed])
    wrong = f"typeof({name}) NOT IN ({listed})"
    return wrong if type_ == "INTEGER" else f"{wrong} OR length({name}) > {max_bytes}"
