"""Filters and visibilities as SQL: which index is scanned, and what else must hold of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.nostr.filters import BROAD_TAGS
from relay.nostr.nip50 import search_from
from relay.storage.sqlite.fts import expression
from relay.storage.sqlite.hashes import Hashes, id_key
from relay.storage.sqlite.sql.conditions import (
    TRUE,
    BufferedRows,
    Condition,
    QueryTime,
    all_of,
    any_of,
    has_hash,
    listed,
    one_of,
    starts_with_any,
    unexpired,
)
from relay.storage.sqlite.sql.scans import (
    AS_STORED,
    BY_TIME,
    FROM_TAGS,
    IndexScan,
    by_authors,
    by_d_prefixes,
    by_hash,
    by_ids,
    by_kinds,
    by_seqs,
    by_words,
    merged,
    score,
)
from relay.storage.sqlite.sql.visibility import ReadConditions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage import Place
    from relay.storage.sqlite.sql.conditions import Bound, Value

_MAX_MERGED: Final = 16
"""Up to so many keys of a filter: one ordered scan each, merged; for more one scan and a sort."""
_KIND_SCANS: Final = 8


class Query(NamedTuple):
    sql: str
    values: tuple[Value, ...]


class Compiler:
    """For the tables of one store; `e` is always the events table."""

    def __init__(
        self,
        hashes: Hashes,
        index_tags: frozenset[str],
        buffered: Callable[[Sequence[int]], Sequence[int]] = lambda _: (),
    ) -> None:
        """`buffered`: seqs of rows with one of these tag hashes that the tag table may lack."""
        self._hashes = hashes
        self._buffered = buffered
        self._reading = ReadConditions(hashes, index_tags)

    def page(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        columns: str,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Query:
        """The next `size` rows in order. `columns` are of `e`, the events table."""
        scans, rest = self._scans(filter_)
        rest = all_of(
            [
                rest,
                Condition("e.seq <= ?", (upto,)),
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        if len(scans) == 1 and scans[0].ordered:
            sql, values = scans[0].in_order(filter_, rest, after, columns, size)
        else:
            sql, values = merged(scans, filter_, rest, after, columns, size)
        return Query(sql, self.bind(values, now))

    def matching_seqs(self, filter_: Filter) -> Condition:
        """A query: seq of the rows that match the filter, expired ones too."""
        scans, rest = self._scans(filter_, in_order=False)
        if not scans:  # no authors at all
            return Condition("SELECT e.seq AS seq FROM events AS e WHERE 0")
        wheres = [all_of([scan.start, *scan.times(filter_, None), rest]) for scan in scans]
        parts = [
            f"SELECT e.seq AS seq {scan.source} WHERE {where.sql}"
            for scan, where in zip(scans, wheres, strict=True)
        ]
        # A row may be found by several of its tags, and in the tag buffer.
        is_once = len(scans) == 1 and scans[0].ordered
        sql = parts[0] if is_once else f"SELECT DISTINCT seq FROM ({' UNION ALL '.join(parts)})"
        return Condition(sql, tuple([value for where in wheres for value in where.values]))

    def matching(self, match: Match) -> Condition:
        """`match.matches(e)` as SQL."""
        return self._reading.matching(match)

    def bind(self, values: tuple[Bound, ...], now: int) -> tuple[Value, ...]:
        """With the values that depend on the moment of the query."""
        return tuple(
            [
                listed(self._buffered(value.hashes))
                if isinstance(value, BufferedRows)
                else now
                if isinstance(value, QueryTime)
                else value
                for value in values
            ]
        )

    def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> Query:
        """One number: rows that match any of the filters."""
        counted = self._count_in_index(filters[0], visibility, now) if len(filters) == 1 else None
        if counted is not None:
            return counted
        sql, values = self._found(filters, visibility, now)
        return Query(f"SELECT count(*) FROM ({sql})", self.bind(values, now))

    def _count_in_index(self, filter_: Filter, visibility: Visibility, now: int) -> Query | None:
        """A count that is index-only for rows that anyone may read; None: not possible.

        Fetching a row takes fifty times as long as skipping it in the index. Authors are then
        distinguished by the first 8 bytes of their keys alone.
        """
        condition, plain = self._reading.readable(visibility, filter_)
        named = filter_.ids is not None or filter_.tags or filter_.search is not None
        if plain is None or named or (filter_.authors is None and filter_.kinds is None):
            return None
        (scan,), rest = self._scans(filter_, in_order=False)
        if scan == BY_TIME:
            return None
        of = [unexpired(now)]
        of += scan.times(filter_, None)
        if filter_.authors is not None:
            of.append(one_of("e.author_key", [id_key(key) for key in sorted(filter_.authors)]))
        if filter_.kinds is not None:
            of.append(one_of("e.kind", sorted(filter_.kinds)))
        in_index = all_of([*of, plain])
        in_table = all_of([*of, plain.negated(), scan.start, rest, condition])
        return Query(
            f"SELECT (SELECT count(*) {scan.source} WHERE {in_index.sql})"
            f" + (SELECT count(*) {scan.source} WHERE {in_table.sql})",
            self.bind((*in_index.values, *in_table.values), now),
        )

    def authors(self, filter_: Filter, visibility: Visibility, *, now: int, at_most: int) -> Query:
        """Distinct public keys of the rows that `count` counts."""
        sql, values = self._found([filter_], visibility, now)
        return Query(
            f"SELECT DISTINCT e.pubkey FROM ({sql}) AS k"
            " CROSS JOIN events AS e ON e.seq = k.seq LIMIT ?",
            self.bind((*values, at_most), now),
        )

    def _found(self, filters: Sequence[Filter], visibility: Visibility, now: int) -> Condition:
        """A query: distinct seq of the rows that match any of the filters."""
        readable = [self.visible(visibility, filter_) for filter_ in filters]
        # The condition of visibility is most of the text: once, where it is the same for all.
        common = readable[0] if len(set(readable)) == 1 < len(filters) else None
        parts = []
        values: list[Bound] = []
        for filter_, may_read in zip(filters, readable, strict=True):
            search = None if filter_.search is None else search_from(filter_.search)
            if search is None:
                scans, rest = self._scans(filter_, in_order=False)
            else:
                scans, rest = [by_words(search)], self._conditions(filter_)
            rest = all_of(
                [
                    rest,
                    unexpired(now),
                    may_read if common is None else TRUE,
                ]
            )
            for scan in scans:
                where = all_of([scan.start, *scan.times(filter_, None), rest])
                once = "" if scan.ordered else "DISTINCT "
                parts.append(f"SELECT {once}e.seq AS seq {scan.source} WHERE {where.sql}")
                values.extend(where.values)
        found = " UNION ".join(parts)
        if common is None:
            return Condition(found, tuple(values))
        return Condition(
            f"SELECT e.seq AS seq FROM ({found}) AS f CROSS JOIN events AS e ON e.seq = f.seq"
            f" WHERE {common.sql}",
            (*values, *common.values),
        )

    def search(
        self,
        search: Search,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
    ) -> Query:
        """seq of the best `limit` rows, best first. The text index is attached as `search`.

        All matches are ordered within the index; then rows are looked up one by one until there are
        enough. No statistics over all texts are used: they would reveal hidden rows.
        """
        scored, values = score(search)
        rest = all_of(
            [
                self._conditions(filter_),
                *by_words(search).times(filter_, None),
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        best = (
            f"SELECT r.seq AS seq, {scored} AS score"
            " FROM search.words AS w CROSS JOIN search.ranks AS r ON r.seq = w.rowid"
            " WHERE words MATCH ? AND r.seq <= ?"
            " ORDER BY score DESC, r.created_at DESC, r.id_key, r.seq LIMIT -1"
        )
        return Query(
            f"SELECT e.seq FROM ({best}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
            f" WHERE {rest.sql} LIMIT ?",
            self.bind((*values, expression(search), upto, *rest.values, limit), now),
        )

    def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> Query:
        """raw of these rows and their positions in `seqs`, in that order."""
        rest = all_of(
            [
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        return Query(
            "SELECT e.raw, j.key FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value"
            f" WHERE {rest.sql} ORDER BY j.key",
            self.bind((listed(seqs), *rest.values), now),
        )

    def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Query:
        """created_at and id of `at_most` rows of the newest `limit`, ascending by both."""
        if limit is not None:
            sql, known = self.page(
                filter_,
                visibility,
                columns="e.created_at, e.id",
                upto=upto,
                now=now,
                after=None,
                size=min(limit, at_most),
            )
        else:
            sql, known = self._all_items(filter_, visibility, upto=upto, now=now, at_most=at_most)
        return Query(f"SELECT * FROM ({sql}) ORDER BY 1, 2", known)

    def _all_items(
        self, filter_: Filter, visibility: Visibility, *, upto: int, now: int, at_most: int
    ) -> Query:
        scans, rest = self._scans(filter_, in_order=False)
        if scans == [BY_TIME] and filter_.since is None and filter_.until is None:
            scans = [AS_STORED]
        rest = all_of(
            [
                rest,
                Condition("e.seq <= ?", (upto,)),
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        parts = []
        values: list[Bound] = []
        for scan in scans:
            where = all_of([scan.start, *scan.times(filter_, None), rest])
            parts.append(f"SELECT e.created_at, e.id {scan.source} WHERE {where.sql}")
            values.extend(where.values)
        # A row may be found by several of its tags.
        once = "" if len(scans) == 1 and scans[0].ordered else "DISTINCT "
        sql = f"SELECT {once}* FROM ({' UNION ALL '.join(parts)}) LIMIT ?"
        return Query(sql, self.bind((*values, at_most), now))

    # -- which index is scanned -----------------------------------------------------------------

    def _scans(
        self, filter_: Filter, *, in_order: bool = True
    ) -> tuple[list[IndexScan], Condition]:
        """The scans that find candidates, and what else must hold of them. Chosen by fixed rules.

        `in_order`: one ordered scan for each of a few keys; otherwise one scan for all of them.
        """
        at_most = _MAX_MERGED if in_order else 1
        left = dict(filter_.tags)
        authors, kinds = filter_.authors, filter_.kinds
        rest: list[Condition] = []
        scans: list[IndexScan]
        tag = None if filter_.ids is not None else self._driving_tag(filter_)
        if filter_.ids is not None:
            scans = [by_ids(sorted(filter_.ids))]
        elif tag is not None:
            scans = self._by_tag(filter_, tag, at_most)
            del left[tag]
        elif authors is not None:
            scans = by_authors(sorted(authors), at_most)
            authors = None
        elif kinds is not None and len(kinds) <= _KIND_SCANS:
            scans = by_kinds(sorted(kinds), at_most)
            kinds = None
        else:
            scans = [BY_TIME]
        if kinds is not None:
            rest.append(one_of("e.kind", sorted(kinds)))
        if authors is not None:
            rest.append(one_of("e.pubkey", [bytes.fromhex(key) for key in sorted(authors)]))
        rest.extend([self._tag_holds(filter_, *tag) for tag in left.items()])
        return scans, all_of(rest)

    def _conditions(self, filter_: Filter) -> Condition:
        """The whole filter but its times, for candidates that another index found."""
        parts = [self._tag_holds(filter_, *tag) for tag in filter_.tags]
        if filter_.kinds is not None:
            parts.append(one_of("e.kind", sorted(filter_.kinds)))
        if filter_.authors is not None:
            keys = [bytes.fromhex(key) for key in sorted(filter_.authors)]
            parts.append(one_of("e.pubkey", keys))
        if filter_.ids is not None:
            parts.append(one_of("e.id", [bytes.fromhex(id_) for id_ in sorted(filter_.ids)]))
        return all_of(parts)

    def _tag_holds(self, filter_: Filter, name: str, values: Iterable[str]) -> Condition:
        found = self._tagged(name, sorted(values))
        if name == "d" and filter_.d_prefixes:
            return any_of([found, starts_with_any(filter_.d_prefixes)])
        return found

    def _driving_tag(self, filter_: Filter) -> str | None:
        names = [name for name, _ in filter_.tags]
        narrow = [name for name in names if name not in BROAD_TAGS]
        if narrow:
            return min(narrow, key=lambda name: len(filter_.tag_values(name) or ()))
        if names and filter_.authors is None:
            return min(names, key=lambda name: len(filter_.tag_values(name) or ()))
        return None

    def _by_tag(self, filter_: Filter, name: str, at_most: int) -> list[IndexScan]:
        hashes = [self._hashes.tag(name, value) for value in sorted(filter_.tag_values(name) or ())]
        if len(hashes) > at_most:
            scans = [IndexScan(FROM_TAGS, one_of("t.hash", hashes), "t", ordered=False)]
        else:
            scans = [by_hash(hash_) for hash_ in hashes]
        buffered = self._buffered(hashes)
        if buffered:
            scans.append(by_seqs(buffered))
        if name == "d" and filter_.d_prefixes:
            scans.append(by_d_prefixes(filter_.d_prefixes))
        return scans

    def _tagged(self, name: str, values: Sequence[str]) -> Condition:
        """`e` has a tag of this name with one of these values."""
        return has_hash([self._hashes.tag(name, value) for value in values])

    def visible(self, visibility: Visibility, filter_: Filter) -> Condition:
        """`may_read(e, filter_)` as SQL."""
        return self._reading.readable(visibility, filter_).condition
