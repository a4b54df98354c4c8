"""Sweeps as SQL: rows that are due by a rule, and the oldest row that another depends on.

Equivalent to `relay.lifecycle.retention`; tests/property/test_overdue.py compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from relay.access.read_rules import Match
from relay.lifecycle.retention import MaxAge, Scope
from relay.lifecycle.rows import UpTo
from relay.nostr.filters import Filter
from relay.storage.sqlite.sql.conditions import TRUE, Condition, all_of, any_of, starts_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.lifecycle.retention import LastScan, MaxAmount, SweepRule
    from relay.lifecycle.rows import RetentionDependency
    from relay.nostr.kinds import KindSet
    from relay.storage.sqlite.sql.conditions import Bound, Query
    from relay.storage.sqlite.sql.filters import Compiler

_MAX_KINDS: Final = 64
"""Rules of more kinds than these scan all rows."""


class SweepQueries:
    """Makes queries for the tables of one store."""

    def __init__(self, compiler: Compiler, index_tags: frozenset[str]) -> None:
        self._compiler = compiler
        self._index_tags = index_tags

    def oldest(self, dependencies: RetentionDependency) -> Query:
        """One integer or null: the time of the oldest row."""
        match = dependencies.match
        tags = [(name, values) for name, values in match.tags if self._is_indexed(name)]
        scan = self._compiler.matching_seqs(
            Filter(
                authors=match.authors,
                kinds=_few(match.kinds),
                tags=tuple([(name, v) for name, v in tags if not isinstance(v, bool)]),
            )
        )
        column = "e.version" if dependencies.up_to is UpTo.TS else "e.created_at"
        of = self._compiler.matching(match)
        return self._query(
            f"SELECT min({column}) FROM ({scan.sql}) AS k"
            f" CROSS JOIN events AS e ON e.seq = k.seq WHERE {of.sql}",
            (*scan.values, *of.values),
        )

    def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        last_scan: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Query:
        """seq of rows, ordered by version and id."""
        covered = self._rule_condition(rule, exempt)
        if isinstance(rule.limit, MaxAge):
            found = self._too_old(rule, rule.limit, covered, now, last_scan)
        else:
            found = self._over_amount(rule.match, rule.limit, covered, last_scan)
        after_place = TRUE
        if after is not None:
            after_place = Condition(
                "(e.version, e.id) > (?, ?)", (after[0], bytes.fromhex(after[1]))
            )
        return self._query(
            f"SELECT e.seq FROM ({found.sql}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
            f" WHERE {after_place.sql} ORDER BY e.version, e.id LIMIT ?",
            (*found.values, *after_place.values, limit),
        )

    def has_new_rows(self, rule: SweepRule, exempt: Sequence[Match], last_scan: LastScan) -> Query:
        """A row when rows that the rule covers were added since the last scan."""
        covered = self._rule_condition(rule, exempt)
        return self._query(
            f"SELECT 1 FROM events AS e WHERE e.seq > ? AND {covered.sql} LIMIT 1",
            (last_scan.last_seq, *covered.values),
        )

    def _rule_condition(self, rule: SweepRule, exempt: Sequence[Match]) -> Condition:
        return all_of(
            [
                self._compiler.matching(rule.match),
                *[self._compiler.matching(match).negated() for match in exempt],
            ]
        )

    def _too_old(
        self, rule: SweepRule, age: MaxAge, covered: Condition, now: int, last_scan: LastScan | None
    ) -> Condition:
        limit = age.before(now)
        since = None if last_scan is None else age.before(last_scan.at)
        scan = self._compiler.matching_seqs(
            Filter(
                authors=rule.match.authors,
                kinds=_few(rule.match.kinds),
                since=since,
                until=limit - 1,
            )
        )
        sql = (
            f"SELECT e.seq AS seq FROM ({scan.sql}) AS k"
            f" CROSS JOIN events AS e ON e.seq = k.seq WHERE {covered.sql}"
        )
        if last_scan is None:
            return Condition(sql, (*scan.values, *covered.values))
        return Condition(
            f"{sql} UNION SELECT e.seq FROM events AS e"
            f" WHERE e.seq > ? AND e.created_at < ? AND {covered.sql}",
            (*scan.values, *covered.values, last_scan.last_seq, limit, *covered.values),
        )

    def _over_amount(
        self, match: Match, amount: MaxAmount, covered: Condition, last_scan: LastScan | None
    ) -> Condition:
        scan, scope = self._amounts_of(match, amount, last_scan), _scope(match, amount.per)
        rows = Condition(
            "SELECT e.seq AS seq, e.version AS version, e.id AS id, length(e.raw) AS size,"
            f" {scope.sql} FROM ({scan.sql}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
            f" WHERE {covered.sql}",
            (*scope.values, *scan.values, *covered.values),
        )
        held = Condition("a IS NOT NULL AND b IS NOT NULL")
        if last_scan is not None:
            held = Condition(
                f"(a, b) IN (SELECT {scope.sql} FROM events AS e"
                f" WHERE e.seq > ? AND {covered.sql})",
                (*scope.values, last_scan.last_seq, *covered.values),
            )
        most = [("events", amount.events), ("bytes", amount.bytes)]
        exceeded = any_of([Condition(f"{name} > ?", (n,)) for name, n in most if n is not None])
        return Condition(
            "SELECT seq FROM (SELECT seq, row_number() OVER w AS events, sum(size) OVER w AS bytes"
            f" FROM ({rows.sql}) WHERE {held.sql} WINDOW w AS (PARTITION BY a, b"
            " ORDER BY version DESC, id DESC ROWS UNBOUNDED PRECEDING))"
            f" WHERE {exceeded.sql}",
            (*rows.values, *held.values, *exceeded.values),
        )

    def _amounts_of(self, match: Match, amount: MaxAmount, last_scan: LastScan | None) -> Condition:
        """seq of the rows to count; only of authors with new rows, where that is enough."""
        kinds = _few(match.kinds)
        if last_scan is None or amount.per not in (Scope.AUTHOR, Scope.HK):
            return self._compiler.matching_seqs(Filter(authors=match.authors, kinds=kinds))
        of_kinds = self._compiler.matching(Match(match.kinds))
        return Condition(
            "SELECT e.seq AS seq FROM events AS e INDEXED BY events_author WHERE e.author_key IN"
            f" (SELECT n.author_key FROM events AS n WHERE n.seq > ?) AND {of_kinds.sql}",
            (last_scan.last_seq, *of_kinds.values),
        )

    def _query(self, sql: str, values: tuple[Bound, ...]) -> Query:
        return self._compiler.query(sql, values)

    def _is_indexed(self, name: str) -> bool:
        return name in self._index_tags or (len(name) == 1 and name.isascii() and name.isalpha())


def _few(kinds: KindSet | None) -> frozenset[int] | None:
    if kinds is None or sum(high - low + 1 for low, high in kinds.ranges) > _MAX_KINDS:
        return None
    return frozenset(kind for low, high in kinds.ranges for kind in range(low, high + 1))


def _scope(match: Match, per: Scope | None) -> Condition:
    """Two columns `a` and `b` by which rows are partitioned."""
    match per:
        case None:
            return Condition("'' AS a, '' AS b")
        case Scope.AUTHOR:
            return Condition("e.pubkey AS a, '' AS b")
        case Scope.GROUP:
            return Condition("e.grp AS a, '' AS b")
        case Scope.HK:
            return Condition("e.pubkey AS a, first_tag(e.raw, 'hk') AS b")
        case Scope.D_PREFIX:
            of = [starts_with(prefix) for prefix in match.d_prefixes or ()]
            cases = " ".join([f"WHEN {one.sql} THEN {number}" for number, one in enumerate(of)])
            return Condition(
                f"CASE {cases or 'WHEN 0 THEN 0'} END AS a, '' AS b",
                tuple([value for one in of for value in one.values]),
            )
        case _:
            assert_never(per)
