"""Statements of the writer that are composed: inserts of many rows, and sums over `sizes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.storage.sqlite.sql.conditions import Condition, Query, all_of, any_of, one_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.access.quotas import Account


def insert(table: str, columns: int, rows: int) -> str:
    key = (table, rows)
    if key not in _INSERTS:
        one = f"({','.join('?' * columns)})"
        # After a crash, tags that were indexed before it are inserted again.
        verb = "INSERT OR IGNORE" if table == "tags" else "INSERT"
        also = _ADDED_UP if table == "sizes" else ""
        _INSERTS[key] = f"{verb} INTO {table} VALUES {','.join([one] * rows)}{also}"
    return _INSERTS[key]


_ADDED_UP: Final = (
    " ON CONFLICT (pubkey, kind, grp) DO UPDATE"
    " SET events = events + excluded.events, bytes = bytes + excluded.bytes"
)
_INSERTS: Final[dict[tuple[str, int], str]] = {}


def usage_of(account: Account) -> Query:
    """events and bytes of an account without a recipient."""
    parts = []
    if account.pubkey is not None:
        parts.append(Condition("pubkey = ?", (bytes.fromhex(account.pubkey),)))
    if isinstance(account.h, bool):
        parts.append(Condition("grp > ''" if account.h else "grp = ''"))
    elif account.h is not None:
        parts.append(all_of([Condition("grp > ''"), one_of("grp", sorted(account.h))]))
    if account.kinds is not None:
        spans = [
            Condition(f"kind BETWEEN {low:d} AND {high:d}") for low, high in account.kinds.ranges
        ]
        parts.append(any_of(spans))
    where = all_of(parts)
    sql = f"SELECT ifnull(sum(events), 0), ifnull(sum(bytes), 0) FROM sizes WHERE {where.sql}"
    return Query(sql, where.values)  # type: ignore[arg-type]  # no BufferedRows among them


def chunks(count: int, sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Cut `count` rows into runs of the given sizes (descending, ending in 1): (start, size)."""
    start = 0
    for size in sizes:
        while count - start >= size:
            yield start, size
            start += size
