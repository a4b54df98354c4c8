"""Scans of one index each, as parts of a query, and how several of them are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.storage.sqlite.fts import expression, more_often
from relay.storage.sqlite.hashes import id_key
from relay.storage.sqlite.sql.conditions import (
    FALSE,
    TRUE,
    Condition,
    all_of,
    listed,
    one_of,
    starts_with_any,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage import Place
    from relay.storage.sqlite.sql.conditions import Bound

_SORTED_OUT: Final = "ORDER BY k.created_at DESC, k.id_key, k.seq"


class IndexScan(NamedTuple):
    """A FROM clause and the condition on its index."""

    source: str
    start: Condition
    times_of: str
    ordered: bool

    def times(self, filter_: Filter, after: Place | None) -> list[Condition]:
        column = f"{self.times_of}.created_at"
        out = []
        if filter_.since is not None:
            out.append(Condition(f"{column} >= ?", (filter_.since,)))
        if filter_.until is not None:
            out.append(Condition(f"{column} <= ?", (filter_.until,)))
        if after is not None:
            a = self.times_of
            out.append(Condition(f"{column} <= ?", (after.created_at,)))
            out.append(
                Condition(
                    f"({column} < ? OR {a}.id_key > ? OR ({a}.id_key = ? AND {a}.seq > ?))",
                    (after.created_at, after.id_key, after.id_key, after.seq),
                )
            )
        return out

    def in_order(
        self, filter_: Filter, rest: Condition, after: Place | None, columns: str, size: int
    ) -> Condition:
        where = all_of([self.start, *self.times(filter_, after), rest])
        a = self.times_of
        return Condition(
            f"SELECT {columns} {self.source} WHERE {where.sql}"
            f" ORDER BY {a}.created_at DESC, {a}.id_key, {a}.seq LIMIT ?",
            (*where.values, size),
        )


FROM_TAGS: Final = "FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq"
BY_TIME: Final = IndexScan("FROM events AS e INDEXED BY events_time", TRUE, "e", ordered=True)
AS_STORED: Final = IndexScan("FROM events AS e NOT INDEXED", TRUE, "e", ordered=True)
"""In the order of seq, for all rows that are sorted afterwards."""


def by_words(search: Search) -> IndexScan:
    if not search.required:
        return IndexScan("FROM events AS e", FALSE, "e", ordered=False)
    source = "FROM search.words AS w CROSS JOIN events AS e ON e.seq = w.rowid"
    return IndexScan(source, Condition("words MATCH ?", (expression(search),)), "e", ordered=True)


def score(search: Search) -> tuple[str, tuple[str, ...]]:
    """`FtsMatcher.score` of `r`, the row of `ranks`: an expression and its values."""
    parts: list[str] = []
    values: list[str] = []
    has_more = "r.seq IN (SELECT rowid FROM search.words WHERE words MATCH ?)"
    for term in search.required:
        more = more_often(search, term)
        if more is not None:
            parts.append(
                f"CASE WHEN {has_more} THEN"
                f" CASE WHEN {has_more} THEN r.frequent ELSE r.repeated END ELSE r.once END"
            )
            values += more
        else:
            parts.append("r.once")
    return " + ".join(parts), tuple(values)


def by_kinds(kinds: Sequence[int], at_most: int) -> list[IndexScan]:
    source = "FROM events AS e INDEXED BY events_kind"
    if len(kinds) > at_most:
        return [IndexScan(source, one_of("e.kind", kinds), "e", ordered=False)]
    return [IndexScan(source, one_of("e.kind", [kind]), "e", ordered=True) for kind in kinds]


def by_authors(authors: Sequence[str], at_most: int) -> list[IndexScan]:
    source = "FROM events AS e INDEXED BY events_author"
    groups = [authors] if len(authors) > at_most else [[author] for author in authors]
    return [
        IndexScan(
            source,
            all_of(
                [
                    one_of("e.author_key", [id_key(author) for author in group]),
                    one_of("e.pubkey", [bytes.fromhex(author) for author in group]),
                ]
            ),
            "e",
            ordered=len(group) == 1,
        )
        for group in groups
    ]


def by_ids(ids: Sequence[str]) -> IndexScan:
    start = all_of(
        [
            one_of("e.id_key", [id_key(event_id) for event_id in ids]),
            one_of("e.id", [bytes.fromhex(event_id) for event_id in ids]),
        ]
    )
    return IndexScan("FROM events AS e INDEXED BY events_id", start, "e", ordered=len(ids) == 1)


def by_hash(hash_: int) -> IndexScan:
    return IndexScan(FROM_TAGS, Condition("t.hash = ?", (hash_,)), "t", ordered=True)


def by_seqs(seqs: Sequence[int]) -> IndexScan:
    start = Condition("e.seq IN (SELECT value FROM json_each(?))", (listed(seqs),))
    return IndexScan("FROM events AS e NOT INDEXED", start, "e", ordered=False)


def by_d_prefixes(prefixes: Sequence[str]) -> IndexScan:
    return IndexScan(
        "FROM events AS e INDEXED BY events_d",
        all_of([Condition("e.d > ''"), starts_with_any(prefixes)]),
        "e",
        ordered=False,
    )


def merged(
    scans: Sequence[IndexScan],
    filter_: Filter,
    rest: Condition,
    after: Place | None,
    columns: str,
    size: int,
) -> Condition:
    """The first `size` rows of several scans: each gives its first `size`, then they are sorted."""
    parts = []
    values: list[Bound] = []
    for scan in scans:
        keys = f"{scan.times_of}.created_at, {scan.times_of}.id_key, {scan.times_of}.seq"
        query = scan.in_order(filter_, rest, after, keys, size)
        # An unordered scan may find a row by several of its tags.
        text = query.sql.replace("SELECT", "SELECT DISTINCT", 1) if not scan.ordered else query.sql
        parts.append(f"SELECT * FROM ({text})")
        values.extend(query.values)
    inner = " UNION ".join(parts) + " ORDER BY 1 DESC, 2, 3 LIMIT ?"
    return Condition(
        f"SELECT {columns} FROM ({inner}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
        f" {_SORTED_OUT}",
        (*values, size),
    )
