"""Conditions of WHERE clauses: fixed pieces of text, and the values that are bound to them."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Value = int | str | bytes | None


class Recent(NamedTuple):
    """A value known when the query is asked: the newest rows that have one of these tags."""

    hashes: tuple[int, ...]


class Moment(Enum):
    """A value known when the query is asked."""

    NOW = auto()
    """Unix seconds."""


Bound = Value | Recent | Moment

BOUND_AT_MOST: Final = 16
"""Longer lists of values go in as one JSON text."""


class Condition(NamedTuple):
    """Part of a WHERE clause with its values in the order of the question marks."""

    # Named tuples here: a query makes a dozen of these, and a frozen dataclass takes 0.5 us each.

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


def unexpired(now: int | Moment) -> Condition:
    return Condition("(e.expires_at IS NULL OR e.expires_at > ?)", (now,))


def one_of(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """`column` equals one of `values`; the text is the same for 5 to 8 values, for 9 to 16."""
    if not values:
        return FALSE
    if len(values) == 1:
        return Condition(f"{column} = ?", (values[0],))
    if len(values) > BOUND_AT_MOST:
        return _in_list(column, values)
    size = 1 << (len(values) - 1).bit_length()
    padded = (*values, *[values[-1]] * (size - len(values)))
    return Condition(f"{column} IN ({','.join('?' * size)})", padded)


def _in_list(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """As one bound value, however many they are: a message holds more than SQLite lets bind."""
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
        (*found.values, Recent(tuple(hashes))),
    )


def begins(prefix: str) -> Condition:
    """`d` begins with `prefix`, as a range: the same in every collation of bytes."""
    if not prefix:
        return TRUE
    last = ord(prefix[-1])
    following = 0xE000 if last == 0xD7FF else last + 1
    if following > 0x10FFFF:
        return Condition("e.d >= ?", (prefix,))
    return Condition("(e.d >= ? AND e.d < ?)", (prefix, prefix[:-1] + chr(following)))


def begins_with_one(prefixes: Sequence[str]) -> Condition:
    if len(prefixes) <= BOUND_AT_MOST:
        return any_of([begins(prefix) for prefix in prefixes])
    # As hex: SQLite ends texts out of JSON at a NUL, and would match more than was asked.
    listed = orjson.dumps([prefix.encode().hex().upper() for prefix in prefixes]).decode()
    return Condition(
        "EXISTS (SELECT 1 FROM json_each(?) AS p"
        " WHERE substr(hex(e.d), 1, length(p.value)) = p.value)",
        (listed,),
    )
