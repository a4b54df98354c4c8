"""Sweeps as SQL: rows that are due by a rule, and the oldest row that another depends on.

Equivalent to `relay.lifecycle.retention`; tests/property/test_overdue.py compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from relay.lifecycle.retention import MaxAge, Scope
from relay.lifecycle.rows import UpTo
from relay.storage.postgres.sql.conditions import TRUE, all_of, any_of, starts_with
from relay.storage.postgres.sql.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.read_rules import Match
    from relay.lifecycle.retention import LastScan, MaxAmount, SweepRule
    from relay.lifecycle.rows import RetentionDependency
    from relay.storage.postgres.sql.parameters import Query
    from relay.storage.postgres.sql.visibility import ReadConditions

_COUNTED_BEFORE: Final = (
    "w AS (PARTITION BY a, b ORDER BY version DESC, id DESC ROWS UNBOUNDED PRECEDING)"
)


class SweepQueries:
    """Makes queries for the tables of one store."""

    def __init__(self, conditions: ReadConditions) -> None:
        self._conditions = conditions

    def oldest(self, dependencies: RetentionDependency) -> Query:
        """One integer or null: the time of the oldest row."""
        p = Parameters()
        column = "e.version" if dependencies.up_to is UpTo.TS else "e.created_at"
        of = self._conditions.matching(dependencies.match, p)
        return p.query(f"SELECT min({column}) FROM events AS e WHERE {of}")

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
        p = Parameters()
        covered = self._covered(rule, exempt, p)
        if isinstance(rule.limit, MaxAge):
            found = _too_old(rule.limit, covered, now, last_scan, p)
        else:
            found = _over_amount(rule.match, rule.limit, covered, last_scan, p)
        following = TRUE
        if after is not None:
            version, id_ = after[0], bytes.fromhex(after[1])
            following = f"(e.version, e.id) > ({p.add(version, 'bigint')}, {p.add(id_, 'bytea')})"
        return p.query(
            f"SELECT e.seq FROM events AS e WHERE e.seq IN ({found}) AND {following}"
            f" ORDER BY e.version, e.id LIMIT {p.add(limit, 'bigint')}"
        )

    def has_new_rows(self, rule: SweepRule, exempt: Sequence[Match], last_scan: LastScan) -> Query:
        """A row when rows that the rule covers were added since the last scan."""
        p = Parameters()
        covered = self._covered(rule, exempt, p)
        newer = f"e.seq > {p.add(last_scan.last_seq, 'bigint')}"
        return p.query(f"SELECT 1 FROM events AS e WHERE {newer} AND {covered} LIMIT 1")

    def _covered(self, rule: SweepRule, exempt: Sequence[Match], p: Parameters) -> str:
        matching = self._conditions.matching
        return all_of([matching(rule.match, p), *[f"NOT {matching(m, p)}" for m in exempt]])


def _too_old(age: MaxAge, covered: str, now: int, last_scan: LastScan | None, p: Parameters) -> str:
    old = f"e.created_at < {p.add(age.before(now), 'bigint')}"
    found = f"SELECT e.seq FROM events AS e WHERE {old} AND {covered}"
    if last_scan is None:
        return found
    since = f"e.created_at >= {p.add(age.before(last_scan.at), 'bigint')}"
    newer = f"e.seq > {p.add(last_scan.last_seq, 'bigint')}"
    return f"{found} AND {since} UNION {found} AND {newer}"


def _over_amount(
    match: Match, amount: MaxAmount, covered: str, last_scan: LastScan | None, p: Parameters
) -> str:
    scope = _scope(match, amount.per, p)
    held = "a IS NOT NULL AND b IS NOT NULL"
    if last_scan is not None:
        newer = f"e.seq > {p.add(last_scan.last_seq, 'bigint')}"
        held = f"(a, b) IN (SELECT {scope} FROM events AS e WHERE {newer} AND {covered})"
    most = [("events", amount.events), ("bytes", amount.bytes)]
    exceeded = any_of([f"{name} > {p.add(n, 'bigint')}" for name, n in most if n is not None])
    return (
        "SELECT seq FROM (SELECT seq, row_number() OVER w AS events, sum(size) OVER w AS bytes"
        f" FROM (SELECT e.seq, e.version, e.id, octet_length(e.raw) AS size, {scope}"
        f" FROM events AS e WHERE {covered}) AS r WHERE {held} WINDOW {_COUNTED_BEFORE}) AS c"
        f" WHERE {exceeded}"
    )


def _scope(match: Match, per: Scope | None, p: Parameters) -> str:
    """Two columns `a` and `b` by which rows are partitioned."""
    match per:
        case None:
            return "0 AS a, 0 AS b"
        case Scope.AUTHOR:
            return "e.pubkey AS a, 0 AS b"
        case Scope.GROUP:
            return "e.grp AS a, 0 AS b"
        case Scope.HK:
            return "e.pubkey AS a, first_tag(e.raw, 'hk', true) AS b"
        case Scope.D_PREFIX:
            of = [starts_with(prefix) for prefix in match.d_prefixes or ()]
            cases = " ".join([f"WHEN {one} THEN {number}" for number, one in enumerate(of)])
            return f"CASE {cases or 'WHEN false THEN 0'} END AS a, 0 AS b"
        case _:
            assert_never(per)
