"""The query of a search with `match:any`: rows with any of its words, ranked.

A word weighs more the fewer threads have it. A row gains by its own words, by those of its thread
(what its author stored on the same day under the same `d`, without a hash at the end), and by a
time in or soon after one of the periods of the search.

Invariant: only rows that the viewer may read count, for weights and threads too.
"""

from __future__ import annotations

from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final

from relay.nostr.nip50 import Search, words_of
from relay.storage.sqlite.fts import expression, more_often
from relay.storage.sqlite.sql.conditions import Condition

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.storage.sqlite.sql.conditions import Bound

MAX_ROWS: Final = 1000
"""The newest rows with a word that are found by it."""
_FEW: Final = 300
"""A word in so many threads weighs log 2."""
_DAY_S: Final = 86_400
_NEAR_POINTS: Final = 5_000_000
"""Of a row in a period of more than two days; in a shorter one twice, in more than a month half."""
NEAR_S: Final = 14 * _DAY_S
"""So long after a period these points are gone: of most things people tell later."""

_HAS_MORE: Final = "r.seq IN (SELECT rowid FROM search.words WHERE words MATCH ?)"
_HITS: Final = (
    "SELECT * FROM (SELECT %d AS word, r.seq AS seq, r.thread AS thread,"
    f" CASE WHEN {_HAS_MORE} THEN CASE WHEN {_HAS_MORE} THEN r.frequent ELSE r.repeated END"
    " ELSE r.once END AS points"
    " FROM search.words AS w CROSS JOIN search.ranks AS r ON r.seq = w.rowid"
    " CROSS JOIN events AS e ON e.seq = r.seq"
    f" WHERE words MATCH ? AND e.seq <= ? AND %s ORDER BY w.rowid DESC LIMIT {MAX_ROWS})"
)
_RANKED: Final = (
    "WITH hits AS MATERIALIZED (%s),"
    " counts AS MATERIALIZED"
    " (SELECT thread, word, count(*) AS n FROM hits GROUP BY thread, word),"
    " weights AS MATERIALIZED (SELECT word, rarity(count(*)) AS weight FROM counts GROUP BY word),"
    " threads AS (SELECT thread, sum(weight * 1000 * n / (n + 1)) AS points"
    " FROM counts JOIN weights USING (word) GROUP BY thread),"
    " found AS (SELECT seq, thread, sum(points * weight) AS points"
    " FROM hits JOIN weights USING (word) GROUP BY seq)"
    " SELECT h.seq, h.points + t.points + %s AS points"
    " FROM found AS h JOIN threads AS t USING (thread)%s"
    " ORDER BY 2 DESC, h.seq DESC LIMIT ?"
)


def thread_of(event: Event) -> int:
    """Of a row: 64 bits."""
    d = event.d[:-65] if event.d[-65:-64] == ":" else event.d
    of = [event.pubkey, event.kind, event.created_at // _DAY_S, d, event.tag("h")]
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "big", signed=True)


def rarity(threads: int) -> int:
    """The weight of a word in so many threads, in thousandths. The SQL function `rarity`."""
    return round(1000 * log(1 + _FEW / threads))


def period_points(since: int, until: int) -> int:
    """Of a row within this period."""
    days = (until - since) // _DAY_S
    return _NEAR_POINTS * (4 if days < 2 else 2 if days < 32 else 1) // 2


def _near_sql(search: Search) -> Condition:
    """The points of `r.created_at`."""
    parts = ["0"]
    values: list[Bound] = []
    for since, until in search.near:
        parts.append(
            "CASE WHEN r.created_at BETWEEN ? AND ? THEN"
            f" ? * ({NEAR_S} - max(0, r.created_at - ?)) / {NEAR_S} ELSE 0 END"
        )
        values += [since, until + NEAR_S - 1, period_points(since, until), until]
    return Condition(f"max({', '.join(parts)}, 0)", tuple(values))


def best(search: Search, readable: Condition, *, upto: int, limit: int) -> Condition:
    """seq and points of the best rows, best first. `readable`: what else must hold of `e`."""
    words = [term for term in search.required if words_of(term)]
    if not words:
        return Condition("SELECT 0, 0 WHERE 0", ())
    parts: list[str] = []
    values: list[Bound] = []
    for number, word in enumerate(words):
        one = Search((word,), search.excluded)
        more = more_often(one, word)
        assert more is not None
        parts.append(_HITS % (number, readable.sql))
        values += [*more, expression(one), upto, *readable.values]
    hits = " UNION ALL ".join(parts)
    if not search.near:
        return Condition(_RANKED % (hits, "0", ""), (*values, limit))
    near = _near_sql(search)
    times = " CROSS JOIN search.ranks AS r ON r.seq = h.seq"
    return Condition(_RANKED % (hits, near.sql, times), (*values, *near.values, limit))
