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
from relay.storage.sqlite.kind_classes import SHARED_CLASS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence, Set

    from relay.nostr.filters import Filter
    from relay.storage import Place
    from relay.storage.hashes import Hashes

Value = int | str | bytes | None


LONG_TEXT: Final = 32_768
"""Characters; one with more takes over 15 ms to prepare, which nothing interrupts. On a thread it
does not hold the GIL."""


class Query(NamedTuple):
    sql: str
    values: Sequence[Value]

    @property
    def is_long(self) -> bool:
        """Whether to prepare its text takes so long that no read should wait for it."""
        return len(self.sql) > LONG_TEXT


class Late(NamedTuple):
    """Bound when the query runs: an item of one of the lists of `Arguments`."""

    list: int
    item: int


class BufferedRows(NamedTuple):
    """Bound when the query runs: rows of the tag buffer that have one of these tags."""

    hashes: tuple[int, ...] | int
    """The hashes, or their index in `Arguments.hashes` plus TAGS; negative: as of `scan_of`."""
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
PARTITIONS: Final = 5
SCANNED: Final = 6
"""Hashes that the tag table has for the condition whose index is scanned: see `Arguments.scan`."""
CLOSED: Final = 7
"""One JSON list of guarded groups some of whose rows are not in their partitions yet."""
TAGS: Final = 8
"""Index in `Arguments.lists` of the first tag condition's hashes; those of the next conditions
follow, and at last those of `Arguments.add_pairs`. Of a long list there are the hashes and the
values."""

MAX_PARAMETERS: Final = 16
"""Longer lists of values are bound as one JSON text."""
MAX_PARTITIONS: Final = 32
"""The same of partitions."""
_MOST_SCANNED: Final = 4_096
"""Up to this many hashes XOR partition are computed before the query runs, some 0.1 us each."""
_MAX_LITERAL: Final = 256
_MOST_PARSED: Final = 16_384
"""Bytes of a row whose tags are compared with a long list of values, some 25 ns each; of a shorter
list at most 24 to 48 for each value, which takes as long to look up."""
_OWN_NUL: Final = "replace(%s, '\\u0000', CAST(x'5C7530303031FF' AS TEXT))"
"""SQLite cuts texts from JSON at a NUL. Instead these have a byte that is in no UTF-8."""


class Buffer(Protocol):
    """Rows with tags that the tag table may lack."""

    def seqs_of(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> Sequence[int]:
        """Rows that the table has under one of these hashes, of these kinds (None: of any), perhaps
        deleted since."""

    def seqs_of_any(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> Sequence[int]:
        """The same by hashes of tags, in whatever partition."""

    def has_any(self, hashes: frozenset[int]) -> bool:
        """False: there is no row with one of these tags."""


class Tagged(Protocol):
    """The tag buffer, which changes."""

    def snapshot(self) -> Buffer: ...


class Arguments:
    """The late values of one query."""

    __slots__ = ("_scanned", "buffer", "hashes", "lists", "partitions")

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
        partitions: Sequence[int] | None = (0,),
        closed: str = "[]",
    ) -> None:
        """`partitions`: into which the query looks; None: it finds them itself. `closed`: see
        CLOSED."""
        moment = [now, upto, size, filter_.since, filter_.until]
        if after is not None:
            moment += after
        ids = _NO_KEYS if filter_.ids is None else _keys(filter_.ids)
        authors = _NO_KEYS if filter_.authors is None else _keys(filter_.authors)
        self.partitions = partitions
        self._scanned: Sequence[int] | None = None
        in_list: Sequence[Value] = ()
        if partitions is not None and len(partitions) > 1:
            in_list = _partition_list(partitions)
        self.lists: list[Sequence[Value]] = [moment, *ids, *authors, in_list, (), (closed,)]
        self.hashes = hashes.of_filter(filter_)
        """The hashes of each tag condition."""
        for (_, values), of_tag in zip(filter_.tags, self.hashes, strict=True):
            is_long = len(of_tag) > MAX_PARAMETERS
            self.lists.append((listed(of_tag), listed(list(values))) if is_long else of_tag)
        self.buffer = buffer

    def add_pairs(self, pairs: Sequence[tuple[int, int]], number: int) -> None:
        """Hashes and classes, as the last list: with so many pairs."""
        flat = [value for pair in pairs for value in pair]
        self.lists.append(flat + [0, _NO_CLASS] * (number - len(pairs)))

    def scan(self, tag: int) -> Sequence[int] | None:
        """Under which hashes the tag table has rows with this condition, in these partitions; None:
        under too many to compute them here."""
        hashes, partitions = self.hashes[tag], self.partitions
        if partitions is None or len(hashes) * len(partitions) > _MOST_SCANNED:
            self.lists[SCANNED] = (listed(hashes),)
            self._scanned = None
        else:
            found = hashes
            if len(partitions) > 1:
                found = [hash_ ^ partition for hash_ in hashes for partition in partitions]
            self._scanned = found
            number = len(found)
            if number > MAX_PARAMETERS:
                self.lists[SCANNED] = (listed(found),)
            elif number:
                self.lists[SCANNED] = found + found[-1:] * (padded(number) - number)
        return self._scanned

    def buffered(self, tag: int, kinds: frozenset[int] | None) -> Sequence[int]:
        """Rows of the tag buffer that `scan` should find for this condition."""
        if self._scanned is None:
            return self.buffer.seqs_of_any(self.hashes[tag], kinds)
        return self.buffer.seqs_of(self._scanned, kinds)

    def rows(self, buffered: BufferedRows) -> str:
        of, kinds = buffered
        if isinstance(of, int) and of < 0:
            return listed(self.buffered(scan_of(of), kinds))
        hashes = self.hashes[of - TAGS] if isinstance(of, int) else of
        return listed(self.buffer.seqs_of_any(hashes, kinds))

    def value(self, bound: Bound) -> Value:
        if isinstance(bound, Late):
            return self.lists[bound.list][bound.item]
        return self.rows(bound) if isinstance(bound, BufferedRows) else bound


def scan_of(tag: int) -> int:
    """For `BufferedRows.hashes`: those that `Arguments.scan` gives for this condition; and back."""
    return -1 - tag


_LISTED: Final = 1 << 30
"""In place of a number over MAX_PARTITIONS: the partitions are one JSON list."""


def partition_count(partitions: Sequence[int]) -> int:
    """The number of partitions that the text of a query is for."""
    number = len(partitions)
    return _LISTED if number > MAX_PARTITIONS else padded(number)


def _partition_list(partitions: Sequence[int]) -> Sequence[Value]:
    number = partition_count(partitions)
    if number > MAX_PARTITIONS:
        return (listed(partitions),)
    return [*partitions, *[None] * (number - len(partitions))]  # no row has NULL


_NO_CLASS: Final = -1
_NO_KEYS: Final[tuple[Sequence[Value], Sequence[Value]]] = (), ()


def _keys(found: Collection[str]) -> tuple[Sequence[Value], Sequence[Value]]:
    """Hex values as bytes, and their integer keys for the index."""
    values = sorted(found)
    keys = [id_key(value) for value in values]
    if len(values) > MAX_PARAMETERS:
        # Anybody can think up any number of values with one key.
        return (listed(values),), (listed(sorted(set(keys))),)
    return [bytes.fromhex(value) for value in values], keys


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
UNEXPIRED_TAG: Final = Condition("(t.expires_at IS NULL OR t.expires_at > ?)", (NOW,))
"""The same in the table of tags; the row may have expired all the same."""


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
    return [*range(number), *[number - 1] * (padded(number) - number)]


def padded(number: int) -> int:
    """The next power of two, of which there are few."""
    return 1 << (number - 1).bit_length() if number else 0


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
    """The text and its values, each value once: SQLite copies a value for each place, and 16 scans
    may have the same long list. Each value None keeps its place, where a caller puts another value;
    so do question marks without a value, at the end."""
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
    """The values as a JSON list: one value of a statement, for `json_each`."""
    return orjson.dumps(values).decode() if values else "[]"


Partitions = int | Condition
"""How many partitions there are, as of `partition_count`, or a query for those besides 0."""
EVERY_PARTITION: Final = Condition(
    "SELECT g.partition FROM groups AS g WHERE g.partition IS NOT NULL"
)


def partition_table(partitions: Partitions) -> Condition:
    """The partitions, as a table with the column `value`."""
    if isinstance(partitions, Condition):
        return partitions._replace(sql=f"(SELECT 0 AS value UNION {partitions.sql})")
    if partitions == 1:
        return Condition("(SELECT 0 AS value)")
    if partitions > MAX_PARTITIONS:
        return Condition("json_each(?)", (Late(PARTITIONS, 0),))
    items = tuple([Late(PARTITIONS, item) for item in range(partitions)])
    return Condition(f"json_each(json_array({','.join('?' * partitions)}))", items)


def in_partitions(column: str, partitions: Partitions) -> Condition:
    """The column has one of the partitions."""
    if partitions == 1:
        return Condition(f"{column} = 0")
    if isinstance(partitions, int) and partitions <= MAX_PARTITIONS:
        items = tuple([Late(PARTITIONS, item) for item in range(partitions)])
        return Condition(f"{column} IN ({','.join('?' * partitions)})", items)
    table = partition_table(partitions)
    return Condition(f"{column} IN (SELECT value FROM {table.sql})", table.values)


def closed_groups(partitions: Partitions) -> Condition:
    """A query for the groups among CLOSED of which rows in none of these partitions are wanted."""
    known = in_partitions("g.partition", partitions)
    return Condition(
        "SELECT g.id FROM json_each(?) AS j CROSS JOIN groups AS g ON g.id = j.value"
        f" WHERE g.guarded = 1 AND g.ended = 0 AND NOT {known.sql}",
        (Late(CLOSED, 0), *known.values),
    )


def of_no_group_in(groups: str) -> str:
    """`e` is of none of the groups that this query finds: the index of kinds knows it."""
    return f"(e.grp IS NULL OR e.grp NOT IN ({groups}))"


def mixed(hash_: str, partition: str) -> str:
    """`hash_ ^ partition`, for which SQLite has no operator. Without overflow."""
    return f"({hash_} | {partition}) - ({hash_} & {partition})"


def has_hash(hashes: Sequence[int]) -> Condition:
    """`e` has a tag with one of these hashes."""
    if not hashes:
        return FALSE
    buffered = BufferedRows(tuple(hashes))
    if len(hashes) > MAX_PARAMETERS:
        return _has_tag([listed(hashes)], buffered, in_json=True)
    return _has_tag(hashes, buffered)


@lru_cache(maxsize=1024)
def has_tag_of(list_: int, name: str, number: int, *, known: bool) -> Condition:
    """`e` has a tag of this name with one of the first `number` values of this list of `Arguments`.
    `known`: its kind is of KNOWN_KINDS. Cached: to compose it takes half of the time of a filter
    with many tag names.

    The tags of a row are compared with a long list: to look up each of 440 values for each of
    60,000 rows that the other conditions leave took 10 s."""
    if not number:
        return FALSE
    if number <= MAX_PARAMETERS:
        hashes = [Late(list_, item) for item in range(number)]
        return _has_tag(hashes, BufferedRows(list_), known=known)
    has_one = _has_tag([Late(list_, 0)], BufferedRows(list_), in_json=True, known=known)
    most = min(_MOST_PARSED, 24 << number.bit_length())
    # The value first: few rows have one of the list, and many the name.
    return Condition(
        f"CASE WHEN length(e.raw) <= {most} THEN EXISTS (SELECT 1"
        f" FROM json_each({_OWN_NUL % 'CAST(e.raw AS TEXT)'}, '$.tags') AS j"
        " WHERE json_extract(j.value, '$[1]') IN"
        f" (SELECT value FROM json_each({_OWN_NUL % '?'}))"
        " AND json_extract(j.value, '$[0]') = ?)"
        f" ELSE {has_one.sql} END",
        (Late(list_, 1), name, *has_one.values),
    )


def _has_tag(
    hashes: Sequence[Bound],
    buffered: BufferedRows,
    *,
    known: bool = False,
    in_json: bool = False,
) -> Condition:
    """`in_json`: `hashes` is one JSON list. `known`: as of `has_tag_of`."""
    values = tuple(hashes)
    if in_json:
        source, hash_ = "json_each(?) AS h CROSS JOIN ", "h.value"
    elif len(hashes) > 1:
        source, hash_ = f"(VALUES {','.join(['(?)'] * len(hashes))}) AS h CROSS JOIN ", "h.column1"
    else:
        source, hash_, values = "", "?", (*hashes,) * 3
    # `grp` is in the indices, and `partition` behind the text of the row.
    of_row = f"iif(e.grp IS NULL, {hash_}, {mixed(hash_, 'e.partition')})"
    # SQLite does not know which kinds are known.
    of_kind = "= e.kind" if known else f"IN (e.kind, {SHARED_CLASS})"
    has_one = (
        f"EXISTS (SELECT 1 FROM {source}tags AS x WHERE x.hash = {of_row}"
        f" AND x.kind_class {of_kind}"
        " AND x.created_at = e.created_at AND x.id_key = e.id_key AND x.seq = e.seq)"
    )
    return Condition(
        f"({has_one} OR e.seq IN (SELECT value FROM json_each(?)))", (*values, buffered)
    )


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
