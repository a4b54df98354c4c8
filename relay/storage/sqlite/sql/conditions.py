"""Conditions of WHERE clauses: fixed text with the values to bind."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Value = int | str | bytes | None


class BufferedRows(NamedTuple):
    """Bound when the query runs: rows of the tag buffer that have one of these tags."""

    hashes: tuple[int, ...]


class QueryTime(Enum):
    """Bound when the query runs."""

    NOW = auto()
    """Unix seconds."""


Bound = Value | BufferedRows | QueryTime

MAX_PARAMETERS: Final = 16
"""Longer lists of values are bound as one JSON text."""


class Condition(NamedTuple):
    """SQL text and its values, in the order of the question marks."""

    # A named tuple: a query makes a dozen of these, and a frozen dataclass takes 0.5 us.

    sql: str
    values: tuple[Bound, ...] = ()

    def negated(self) -> Condition:
        return Condition(f"NOT {self.sql}", self.values)


TRUE: Final = Condition("1")
FALSE: Final = Condition("0")


def all_of(parts: Iterable[Condition]) -> Condition:
    return _joined([part for part in parts if part != TRUE], " AND ", TRUE)


def any_of(parts: Iterable[Condition]) -> Condition:
    return _joined([part for part in parts if part != FALSE], " OR ", FALSE)


def _joined(parts: Sequence[Condition], word: str, empty: Condition) -> Condition:
    if not parts:
        return empty
    if len(parts) == 1:
        return parts[0]
    return Condition(
        "(" + word.join([part.sql for part in parts]) + ")",
        tuple([value for part in parts for value in part.values]),
    )


def unexpired(now: int | QueryTime) -> Condition:
    return Condition("(e.expires_at IS NULL OR e.expires_at > ?)", (now,))


def one_of(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """`column` equals one of `values`. Few distinct texts: one for 5 to 8 values, and so on."""
    if not values:
        return FALSE
    if len(values) == 1:
        return Condition(f"{column} = ?", (values[0],))
    if len(values) > MAX_PARAMETERS:
        return _in_list(column, values)
    size = 1 << (len(values) - 1).bit_length()
    padded = (*values, *[values[-1]] * (size - len(values)))
    return Condition(f"{column} IN ({','.join('?' * size)})", padded)


def _in_list(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """As one bound value: a filter may have more values than SQLite allows parameters."""
    if isinstance(values[0], bytes):
        column = f"lower(hex({column}))"
        values = [value.hex() for value in values if isinstance(value, bytes)]
    listed = orjson.dumps(values).decode()
    return Condition(f"{column} IN (SELECT value FROM json_each(?))", (listed,))


def listed(seqs: Sequence[int]) -> str:
    return orjson.dumps(seqs).decode() if seqs else "[]"


def has_hash(hashes: Sequence[int]) -> Condition:
    found = one_of("x.hash", hashes)
    return Condition(
        f"(EXISTS (SELECT 1 FROM tags AS x WHERE {found.sql} AND x.created_at = e.created_at"
        " AND x.id_key = e.id_key AND x.seq = e.seq)"
        " OR e.seq IN (SELECT value FROM json_each(?)))",
        (*found.values, BufferedRows(tuple(hashes))),
    )


def starts_with(prefix: str) -> Condition:
    """`d` starts with `prefix`, as a range, which an index can use."""
    if not prefix:
        return TRUE
    last = ord(prefix[-1])
    following = 0xE000 if last == 0xD7FF else last + 1
    if following > 0x10FFFF:
        return Condition("e.d >= ?", (prefix,))
    return Condition("(e.d >= ? AND e.d < ?)", (prefix, prefix[:-1] + chr(following)))


def starts_with_any(prefixes: Sequence[str]) -> Condition:
    if len(prefixes) <= MAX_PARAMETERS:
        return any_of([starts_with(prefix) for prefix in prefixes])
    # As hex: SQLite cuts texts from JSON at a NUL, and would match too much.
    listed = orjson.dumps([prefix.encode().hex().upper() for prefix in prefixes]).decode()
    return Condition(
        "EXISTS (SELECT 1 FROM json_each(?) AS p"
        " WHERE substr(hex(e.d), 1, length(p.value)) = p.value)",
        (listed,),
    )
