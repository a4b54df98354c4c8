"""SQL of the stores: named queries out of `.sql` files; filters as WHERE text and walks of indices.

Invariants: only this file and its neighbours `walks`, `conditions`, `sql_sweep` and
`sql_visibility` build SQL,
from fixed pieces; every value is bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.nostr.filters import BROAD_TAGS
from relay.nostr.nip50 import search_from
from relay.storage.sqlite.fts import expression
from relay.storage.sqlite.hashes import Hashes, id_key
from relay.storage.sqlite.sql.conditions import (
    TRUE,
    Condition,
    Moment,
    Recent,
    all_of,
    any_of,
    begins_with_one,
    has_hash,
    listed,
    one_of,
    unexpired,
)
from relay.storage.sqlite.sql.visibility import ReadConditions
from relay.storage.sqlite.sql.walks import (
    AS_STORED,
    BY_TIME,
    FROM_TAGS,
    Walk,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage import Place
    from relay.storage.sqlite.sql.conditions import Bound, Value

_MERGED_AT_MOST: Final = 16
"""Up to so many keys of a filter are walked side by side in order; more are sorted."""
_KIND_WALKS: Final = 8


class Query(NamedTuple):
    sql: str
    values: tuple[Value, ...]


class Compiler:
    """Filters and visibilities to SQL over the tables of one store."""

    def __init__(
        self,
        hashes: Hashes,
        index_tags: frozenset[str],
        recent: Callable[[Sequence[int]], Sequence[int]] = lambda _: (),
    ) -> None:
        """`recent`: seqs of rows with one of these tag hashes that the tag table may lack."""
        self._hashes = hashes
        self._recent = recent
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
        walks, rest = self._walks(filter_)
        rest = all_of(
            [
                rest,
                Condition("e.seq <= ?", (upto,)),
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        if len(walks) == 1 and walks[0].ordered:
            sql, values = walks[0].in_order(filter_, rest, after, columns, size)
        else:
            sql, values = merged(walks, filter_, rest, after, columns, size)
        return Query(sql, self.known(values, now))

    def found(self, filter_: Filter) -> Condition:
        """seq of the rows that the filter finds, expired ones too, as a query."""
        walks, rest = self._walks(filter_, in_order=False)
        if not walks:  # of no author
            return Condition("SELECT e.seq AS seq FROM events AS e WHERE 0")
        wheres = [all_of([walk.start, *walk.times(filter_, None), rest]) for walk in walks]
        parts = [
            f"SELECT e.seq AS seq {walk.source} WHERE {where.sql}"
            for walk, where in zip(walks, wheres, strict=True)
        ]
        # A row may be met by several of its tags, and in the tail.
        is_once = len(walks) == 1 and walks[0].ordered
        sql = parts[0] if is_once else f"SELECT DISTINCT seq FROM ({' UNION ALL '.join(parts)})"
        return Condition(sql, tuple([value for where in wheres for value in where.values]))

    def matching(self, match: Match) -> Condition:
        """`match.matches(e)` as SQL."""
        return self._reading.matching(match)

    def known(self, values: tuple[Bound, ...], now: int) -> tuple[Value, ...]:
        """With those that are only known when the query is asked."""
        return tuple(
            [
                listed(self._recent(value.hashes))
                if isinstance(value, Recent)
                else now
                if isinstance(value, Moment)
                else value
                for value in values
            ]
        )

    def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> Query:
        """One number: rows that any of the filters finds."""
        counted = self._counted_by_index(filters[0], visibility, now) if len(filters) == 1 else None
        if counted is not None:
            return counted
        sql, values = self._found(filters, visibility, now)
        return Query(f"SELECT count(*) FROM ({sql})", self.known(values, now))

    def _counted_by_index(self, filter_: Filter, visibility: Visibility, now: int) -> Query | None:
        """A count that asks the table only for rows that not everybody may read, if there is one.

        The index has all that the others depend on; to fetch a row takes fifty times as long as to
        pass it there. Authors are then told apart by the first half of their keys alone.
        """
        condition, plain = self._reading.readable(visibility, filter_)
        named = filter_.ids is not None or filter_.tags or filter_.search is not None
        if plain is None or named or (filter_.authors is None and filter_.kinds is None):
            return None
        (walk,), rest = self._walks(filter_, in_order=False)
        if walk == BY_TIME:
            return None
        of = [unexpired(now)]
        of += walk.times(filter_, None)
        if filter_.authors is not None:
            of.append(one_of("e.author_key", [id_key(key) for key in sorted(filter_.authors)]))
        if filter_.kinds is not None:
            of.append(one_of("e.kind", sorted(filter_.kinds)))
        in_index = all_of([*of, plain])
        in_table = all_of([*of, plain.negated(), walk.start, rest, condition])
        return Query(
            f"SELECT (SELECT count(*) {walk.source} WHERE {in_index.sql})"
            f" + (SELECT count(*) {walk.source} WHERE {in_table.sql})",
            self.known((*in_index.values, *in_table.values), now),
        )

    def authors(self, filter_: Filter, visibility: Visibility, *, now: int, at_most: int) -> Query:
        """Public keys of the rows that `count` counts, each once, at most so many."""
        sql, values = self._found([filter_], visibility, now)
        return Query(
            f"SELECT DISTINCT e.pubkey FROM ({sql}) AS k"
            " CROSS JOIN events AS e ON e.seq = k.seq LIMIT ?",
            self.known((*values, at_most), now),
        )

    def _found(self, filters: Sequence[Filter], visibility: Visibility, now: int) -> Condition:
        """seq of the rows that any of the filters finds, each once."""
        readable = [self.visible(visibility, filter_) for filter_ in filters]
        # Who may read is most of the text of a query: said once where it is the same for all.
        common = readable[0] if len(set(readable)) == 1 < len(filters) else None
        parts = []
        values: list[Bound] = []
        for filter_, may_read in zip(filters, readable, strict=True):
            search = None if filter_.search is None else search_from(filter_.search)
            if search is None:
                walks, rest = self._walks(filter_, in_order=False)
            else:
                walks, rest = [by_words(search)], self._conditions(filter_)
            rest = all_of(
                [
                    rest,
                    unexpired(now),
                    may_read if common is None else TRUE,
                ]
            )
            for walk in walks:
                where = all_of([walk.start, *walk.times(filter_, None), rest])
                once = "" if walk.ordered else "DISTINCT "
                parts.append(f"SELECT {once}e.seq AS seq {walk.source} WHERE {where.sql}")
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
        """seq of the best `limit` rows, best first. The index of texts is attached as `search`.

        All that the index finds is ordered by what it knows; then row after row is asked for until
        there are enough. Values that the whole collection of texts would change play no part.
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
            self.known((*values, expression(search), upto, *rest.values, limit), now),
        )

    def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> Query:
        """raw of these rows and their places among `seqs`, in that order."""
        rest = all_of(
            [
                unexpired(now),
                self.visible(visibility, filter_),
            ]
        )
        return Query(
            "SELECT e.raw, j.key FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value"
            f" WHERE {rest.sql} ORDER BY j.key",
            self.known((listed(seqs), *rest.values), now),
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
        walks, rest = self._walks(filter_, in_order=False)
        if walks == [BY_TIME] and filter_.since is None and filter_.until is None:
            walks = [AS_STORED]
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
        for walk in walks:
            where = all_of([walk.start, *walk.times(filter_, None), rest])
            parts.append(f"SELECT e.created_at, e.id {walk.source} WHERE {where.sql}")
            values.extend(where.values)
        # A row that is met twice, by two of its tags, is one.
        once = "" if len(walks) == 1 and walks[0].ordered else "DISTINCT "
        sql = f"SELECT {once}* FROM ({' UNION ALL '.join(parts)}) LIMIT ?"
        return Query(sql, self.known((*values, at_most), now))

    # -- which index drives -----------------------------------------------------------------

    def _walks(self, filter_: Filter, *, in_order: bool = True) -> tuple[list[Walk], Condition]:
        """How to find candidates, and what else must hold of them. Chosen by rule.

        `in_order`: few keys are walked side by side; else one walk finds the rows of all.
        """
        at_most = _MERGED_AT_MOST if in_order else 1
        left = dict(filter_.tags)
        authors, kinds = filter_.authors, filter_.kinds
        rest: list[Condition] = []
        walks: list[Walk]
        tag = None if filter_.ids is not None else self._driving_tag(filter_)
        if filter_.ids is not None:
            walks = [by_ids(sorted(filter_.ids))]
        elif tag is not None:
            walks = self._by_tag(filter_, tag, at_most)
            del left[tag]
        elif authors is not None:
            walks = by_authors(sorted(authors), at_most)
            authors = None
        elif kinds is not None and len(kinds) <= _KIND_WALKS:
            walks = by_kinds(sorted(kinds), at_most)
            kinds = None
        else:
            walks = [BY_TIME]
        if kinds is not None:
            rest.append(one_of("e.kind", sorted(kinds)))
        if authors is not None:
            rest.append(one_of("e.pubkey", [bytes.fromhex(key) for key in sorted(authors)]))
        rest.extend([self._tag_holds(filter_, *tag) for tag in left.items()])
        return walks, all_of(rest)

    def _conditions(self, filter_: Filter) -> Condition:
        """All that the filter says of a row but its times: for a walk that it does not drive."""
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
            return any_of([found, begins_with_one(filter_.d_prefixes)])
        return found

    def _driving_tag(self, filter_: Filter) -> str | None:
        names = [name for name, _ in filter_.tags]
        narrow = [name for name in names if name not in BROAD_TAGS]
        if narrow:
            return min(narrow, key=lambda name: len(filter_.tag_values(name) or ()))
        if names and filter_.authors is None:
            return min(names, key=lambda name: len(filter_.tag_values(name) or ()))
        return None

    def _by_tag(self, filter_: Filter, name: str, at_most: int) -> list[Walk]:
        hashes = [self._hashes.tag(name, value) for value in sorted(filter_.tag_values(name) or ())]
        if len(hashes) > at_most:
            walks = [Walk(FROM_TAGS, one_of("t.hash", hashes), "t", ordered=False)]
        else:
            walks = [by_hash(hash_) for hash_ in hashes]
        recent = self._recent(hashes)
        if recent:
            walks.append(by_seqs(recent))
        if name == "d" and filter_.d_prefixes:
            walks.append(by_d_prefixes(filter_.d_prefixes))
        return walks

    def _tagged(self, name: str, values: Sequence[str]) -> Condition:
        """The row `e` has a tag of this name with one of these values."""
        return has_hash([self._hashes.tag(name, value) for value in values])

    def visible(self, visibility: Visibility, filter_: Filter) -> Condition:
        """`may_read(e, filter_)` as SQL."""
        return self._reading.readable(visibility, filter_).condition
