"""Conditions of WHERE clauses: fixed text with the values to bind.

Some values are bound only when the query runs (`Late`, `BufferedRows`), so that a text is composed
once for all filters of a shape.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import orjson

from relay.storage.hashes import id_key
from relay.storage.sqlite.kind_classes import KIND_CLASSES, KINDS_APART
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence, Set

    from relay.nostr.filters import Filter
    from relay.storage import Place
    from relay.storage.hashes import Hashes

Value = int | str | bytes | None


class Query(NamedTuple):
    sql: str
    values: Sequence[Value]


class Late(NamedTuple):
    """Bound when the query runs: an item of one of the lists of `Arguments`."""

    list: int
    item: int


class BufferedRows(NamedTuple):
    """Bound when the query runs: rows of the tag buffer that have one of these tags."""

    hashes: tuple[int, ...] | int
    """The hashes, or their index in `Arguments.hashes` plus TAGS."""
    kinds: frozenset[int] | None = None
    """Rows of other kinds may be among them; None: of all."""


Bound = Value | Late | BufferedRows

NOW: Final = Late(0, 0)
"""Unix seconds."""
UPTO: Final = Late(0, 1)
SIZE: Final = Late(0, 2)
SINCE: Final = Late(0, 3)
UNTIL: Final = Late(0, 4)
AFTER_TIME: Final = Late(0, 5)
AFTER_KEY: Final = Late(0, 6)
AFTER_SEQ: Final = Late(0, 7)
IDS: Final = 1
ID_KEYS: Final = 2
AUTHORS: Final = 3
AUTHOR_KEYS: Final = 4
TAGS: Final = 5
"""Index in `Arguments.lists` of the first tag condition's hashes; those of the next conditions
follow, and at last those of `Arguments.add_pairs`. Of a long list there are the hashes and the
values."""

MAX_PARAMETERS: Final = 16
"""Longer lists of values are bound as one JSON text."""
_MAX_LITERAL: Final = 256
_MOST_PARSED: Final = 16_384
"""Bytes of a row whose tags are compared with a long list of values: some 20 ns each at most, where
to look up 440 values takes 0.6 ms."""
_OWN_NUL: Final = "replace(%s, '\\u0000', CAST(x'5C7530303031FF' AS TEXT))"
"""SQLite cuts texts from JSON at a NUL. Instead these have a byte that is in no UTF-8."""


class Buffer(Protocol):
    """Rows with tags that the tag table may lack."""

    def seqs_of(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> Sequence[int]:
        """Rows with one of these tags, of these kinds (None: of any), perhaps deleted since."""

    def has_any(self, hashes: frozenset[int]) -> bool:
        """False: there is no row with one of these tags."""


class Tagged(Protocol):
    """The tag buffer, which changes."""

    def snapshot(self) -> Buffer: ...


class Arguments:
    """The late values of one query."""

    __slots__ = ("buffer", "hashes", "lists")

    def __init__(
        self,
        filter_: Filter,
        hashes: Hashes,
        buffer: Buffer,
        *,
        now: int,
        upto: int = 0,
        size: int = 0,
        after: Place | None = None,
    ) -> None:
        moment = [now, upto, size, filter_.since, filter_.until]
        if after is not None:
            moment += after
        ids = _NO_KEYS if filter_.ids is None else _keys(filter_.ids)
        authors = _NO_KEYS if filter_.authors is None else _keys(filter_.authors)
        self.lists: list[Sequence[Value]] = [moment, *ids, *authors]
        self.hashes = hashes.of_filter(filter_)
        """The hashes of each tag condition."""
        for (_, values), of_tag in zip(filter_.tags, self.hashes, strict=True):
            is_long = len(of_tag) > MAX_PARAMETERS
            self.lists.append((_json(of_tag), _json(list(values))) if is_long else of_tag)
        self.buffer = buffer

    def add_pairs(self, pairs: Sequence[tuple[int, int]], number: int) -> None:
        """Hashes and classes, as the last list: with so many pairs."""
        flat = [value for pair in pairs for value in pair]
        self.lists.append(flat + [0, _NO_CLASS] * (number - len(pairs)))

    def rows(self, buffered: BufferedRows) -> str:
        of, kinds = buffered
        hashes = self.hashes[of - TAGS] if isinstance(of, int) else of
        return listed(self.buffer.seqs_of(hashes, kinds))

    def value(self, bound: Bound) -> Value:
        if isinstance(bound, Late):
            return self.lists[bound.list][bound.item]
        return self.rows(bound) if isinstance(bound, BufferedRows) else bound


_NO_CLASS: Final = -1
_NO_KEYS: Final[tuple[Sequence[Value], Sequence[Value]]] = (), ()


def _keys(found: Collection[str]) -> tuple[Sequence[Value], Sequence[Value]]:
    """Hex values as bytes, and their integer keys for the index."""
    values = sorted(found)
    keys = [id_key(value) for value in values]
    if len(values) > MAX_PARAMETERS:
        # Anybody can think up any number of values with one key.
        return (_json(values),), (_json(sorted(set(keys))),)
    return [bytes.fromhex(value) for value in values], keys


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return orjson.dumps(values).decode()


class Condition(NamedTuple):
    """SQL text and its values, in the order of the question marks."""

    # A named tuple: a query makes a dozen of these, and a frozen dataclass takes 0.5 us.

    sql: str
    values: tuple[Bound, ...] = ()

    def negated(self) -> Condition:
        return Condition(f"NOT {self.sql}", self.values)

    def inlined(self) -> Condition:
        """With its values in the text, as far as they are known and short.

        For values that are the same in many queries: SQLite takes 0.1 us to bind one.
        """
        first, *rest = self.sql.split("?")
        text = [first]
        values = []
        for value, after in zip(self.values, rest, strict=True):
            literal = _literal(value)
            if literal is None:
                values.append(value)
            text += [literal or "?", after]
        return Condition("".join(text), tuple(values))


def _literal(value: Bound) -> str | None:
    match value:
        case int():
            return str(value)
        case bytes():
            return f"x'{value.hex()}'"
        case str() if len(value) <= _MAX_LITERAL and "\0" not in value:
            return "'" + value.replace("'", "''") + "'"
        case _:
            return None


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


UNEXPIRED: Final = Condition("(e.expires_at IS NULL OR e.expires_at > ?)", (NOW,))


def one_of(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """`column` equals one of `values`. The values are padded, so that there are few distinct texts:
    one for 5 to 8 values, and so on."""
    if not values:
        return FALSE
    if len(values) > MAX_PARAMETERS:
        return _in_list(column, values)
    padded = [values[number] for number in _padded(len(values))]
    return Condition(_equals(column, len(padded)), tuple(padded))


def one_of_late(column: str, list_: int, number: int) -> Condition:
    """`column` equals one of the first `number` values of this list of `Arguments`."""
    if not number:
        return FALSE
    if number > MAX_PARAMETERS:
        column = f"lower(hex({column}))" if list_ in (IDS, AUTHORS) else column
        return Condition(f"{column} IN (SELECT value FROM json_each(?))", (Late(list_, 0),))
    padded = [Late(list_, item) for item in _padded(number)]
    return Condition(_equals(column, len(padded)), tuple(padded))


def _padded(number: int) -> list[int]:
    """Indices of `number` values; the last index is repeated up to a power of two."""
    size = 1 << (number - 1).bit_length()
    return [*range(number), *[number - 1] * (size - number)]


def _equals(column: str, number: int) -> str:
    return f"{column} = ?" if number == 1 else f"{column} IN ({','.join('?' * number)})"


def _in_list(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """`one_of` with all values in one parameter: a filter may have more values than SQLite allows
    parameters."""
    if isinstance(values[0], bytes):
        column = f"lower(hex({column}))"
        text = _as_hex(tuple([value for value in values if isinstance(value, bytes)]))
    elif any(isinstance(value, str) and "\0" in value for value in values):
        column = f"lower(hex({column}))"  # SQLite cuts texts from JSON at a NUL
        text = _as_hex(tuple([value.encode() for value in values if isinstance(value, str)]))
    else:
        text = orjson.dumps(values).decode()
    return Condition(f"{column} IN (SELECT value FROM json_each(?))", (text,))


@lru_cache(maxsize=32)
def _as_hex(values: tuple[bytes, ...]) -> str:
    """Cached, so that all conditions of a viewer share one string: 64 keys take 4 kB in each of
    40."""
    return orjson.dumps([value.hex() for value in values]).decode()


def binding_once(sql: str, values: Iterable[Bound]) -> tuple[str, list[Bound]]:
    """The same with each value once: SQLite copies a value for each place, and 16 scans may have
    the same long list. None keeps a place of its own, for a value that a caller puts there; so do
    the question marks that are left after the last value."""
    numbers: dict[Bound, int] = {}
    once: list[Bound] = []
    left = [*values][::-1]

    def numbered(found: re.Match[str]) -> str:
        if found[0] != "?" or not left:
            return found[0]
        value = left.pop()
        if value in numbers:
            return f"?{numbers[value]}"
        once.append(value)
        if value is not None:
            numbers[value] = len(once)
        return "?"

    return _LITERAL_OR_PLACE.sub(numbered, sql), once


_LITERAL_OR_PLACE: Final = re.compile(r"'[^']*'|\?")


def listed(values: Sequence[int | str]) -> str:
    return orjson.dumps(values).decode() if values else "[]"


def kind_class_of(hash_: str, kind: int | str) -> str:
    """`relay.storage.sqlite.kind_classes.kind_class`; each may be an expression."""
    if isinstance(kind, int) and kind < KINDS_APART:
        return str(kind)
    text = QUERIES["shared_class" if isinstance(kind, int) else "kind_class"]
    return text.replace("k.value", str(kind)).replace("h.value", hash_)


def has_hash(hashes: Sequence[int]) -> Condition:
    """`e` has a tag with one of these hashes."""
    if not hashes:
        return FALSE
    buffered = BufferedRows(tuple(hashes))
    if len(hashes) > MAX_PARAMETERS:
        return _has_tag([listed(hashes)], buffered, in_json=True)
    return _has_tag(hashes, buffered)


@lru_cache(maxsize=1024)
def has_tag_of(list_: int, name: str, number: int) -> Condition:
    """`e` has a tag of this name with one of the first `number` values of this list of `Arguments`.
    Cached: to compose it takes half of the time of a filter with many tag names.

    The tags of a row are compared with a long list: to look up each of 440 values for each of
    60,000 rows that the other conditions leave took 10 s."""
    if not number:
        return FALSE
    if number <= MAX_PARAMETERS:
        return _has_tag([Late(list_, item) for item in range(number)], BufferedRows(list_))
    has_one = _has_tag([Late(list_, 0)], BufferedRows(list_), in_json=True)
    # The value first: few rows have one of the list, and many the name.
    return Condition(
        f"CASE WHEN length(e.raw) <= {_MOST_PARSED} THEN EXISTS (SELECT 1"
        f" FROM json_each({_OWN_NUL % 'CAST(e.raw AS TEXT)'}, '$.tags') AS j"
        " WHERE json_extract(j.value, '$[1]') IN"
        f" (SELECT value FROM json_each({_OWN_NUL % '?'}))"
        " AND json_extract(j.value, '$[0]') = ?)"
        f" ELSE {has_one.sql} END",
        (Late(list_, 1), name, *has_one.values),
    )


def _has_tag(
    hashes: Sequence[Bound], buffered: BufferedRows, *, in_json: bool = False
) -> Condition:
    """`in_json`: `hashes` is one JSON list. With `h`, the class does not depend on a column of `x`,
    so that it is looked up in the index."""
    values = tuple(hashes)
    if in_json:
        source, hash_ = "json_each(?) AS h CROSS JOIN ", "h.value"
    elif len(hashes) > 1:
        source, hash_ = f"(VALUES {','.join(['(?)'] * len(hashes))}) AS h CROSS JOIN ", "h.column1"
    else:
        source, hash_, values = "", "?", (*hashes, *hashes)
    has_one = (
        f"EXISTS (SELECT 1 FROM {source}tags AS x WHERE x.hash = {hash_}"
        f" AND x.kind_class = {kind_class_of(hash_, 'e.kind')}"
        " AND x.created_at = e.created_at AND x.id_key = e.id_key AND x.seq = e.seq)"
    )
    return Condition(
        f"({has_one} OR e.seq IN (SELECT value FROM json_each(?)))", (*values, buffered)
    )


def of_classes(of: str, kinds: Sequence[int]) -> Condition:
    """`of`, a tag, is of the class of one of these kinds under its hash. Not for an index."""
    apart = [kind for kind in kinds if kind < KINDS_APART]
    shared = [kind for kind in kinds if kind >= KINDS_APART]
    parts = [one_of(f"+{of}.kind_class", apart)]
    if len(shared) > KIND_CLASSES:
        parts.append(Condition(f"{of}.kind_class >= {KINDS_APART}"))
    elif shared:
        classes = kind_class_of(f"{of}.hash", "k.value")
        parts.append(
            Condition(
                f"{of}.kind_class IN (SELECT {classes} FROM json_each(?) AS k)", (listed(shared),)
            )
        )
    return any_of(parts)


def starts_with(prefix: str) -> Condition:
    """`d` starts with `prefix`, as a range, which an index can use."""
    if not prefix:
        return TRUE
    head = prefix.rstrip("\U0010ffff")  # no character follows this one
    if not head:
        return Condition("e.d >= ?", (prefix,))
    last = ord(head[-1])
    following = 0xE000 if last == 0xD7FF else last + 1
    return Condition("(e.d >= ? AND e.d < ?)", (prefix, head[:-1] + chr(following)))


def starts_with_any(prefixes: Sequence[str]) -> Condition:
    if len(prefixes) <= MAX_PARAMETERS:
        return any_of([starts_with(prefix) for prefix in prefixes])
    # As hex: SQLite cuts texts from JSON at a NUL, and would match too much.
    texts = [prefix.encode() for prefix in prefixes]
    listed = orjson.dumps([text.hex().upper() for text in texts]).decode()
    # LIMIT: without it, `head` would be computed again for each prefix.
    return Condition(
        "EXISTS (SELECT 1 FROM"
        " (SELECT hex(substr(CAST(e.d AS BLOB), 1, ?)) AS head LIMIT 1) AS o"
        " CROSS JOIN json_each(?) AS p WHERE substr(o.head, 1, length(p.value)) = p.value)",
        (max(map(len, texts)), listed),
    )
