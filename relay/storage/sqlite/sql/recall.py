"""A search with `match:any`: rows with any of its words, ranked.

A word of at most MAX_ROWS rows finds them. A more frequent word finds none, but counts in those
rows; if all words are more frequent, rows with two of them are found.

A word weighs more the fewer threads have it. A row gains by its own words, by those of its thread
(what its author stored on the same day under the same `d`, without a hash at the end), and by a
time in or soon after one of the periods of the search.

Invariant: only rows that the viewer may read count, for all of this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.nostr.nip50 import Search, words_of
from relay.storage.sqlite.fts import expression, more_often

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.nostr.event import Event
    from relay.storage.sqlite.sql.conditions import Value

MAX_ROWS: Final = 500
"""A word that more rows have finds none by itself."""
PAIRED_ROWS: Final = 1000
"""The newest rows with two words that are found."""
_FEW: Final = 300
"""A word in so many threads weighs log 2."""
_DAY_S: Final = 86_400
_NEAR_POINTS: Final = 5_000_000
"""Of a row in a period of more than two days; in a shorter one twice, in more than a month half."""
NEAR_S: Final = 14 * _DAY_S
"""So long after a period these points are gone: of most things people tell later."""

# In each: MATCH expressions as JSON, each answered with a JSON list of seq.
READABLE: Final = (
    "SELECT (SELECT json_group_array(seq) FROM (SELECT w.rowid AS seq FROM search.words AS w"
    " CROSS JOIN events AS e ON e.seq = w.rowid"
    " WHERE words MATCH asked.value AND w.rowid <= ? AND %s ORDER BY w.rowid DESC LIMIT ?))"
    " FROM json_each(?) AS asked ORDER BY asked.key"
)
_AMONG: Final = (
    "SELECT (SELECT json_group_array(w.rowid) FROM search.words AS w WHERE words MATCH asked.value"
    # With `+` it is no key: the words are looked up once.
    " AND +w.rowid IN (SELECT value FROM json_each(?)))"
    " FROM json_each(?) AS asked ORDER BY asked.key"
)
_RANKS: Final = (
    "SELECT json_group_array(r.seq), json_group_array(r.thread), json_group_array(r.created_at),"
    " json_group_array(r.once), json_group_array(r.repeated), json_group_array(r.frequent)"
    " FROM json_each(?) AS j CROSS JOIN search.ranks AS r ON r.seq = j.value"
)


def thread_of(event: Event) -> int:
    """Of a row: 64 bits."""
    d = event.d[:-65] if event.d[-65:-64] == ":" else event.d
    of = [event.pubkey, event.kind, event.created_at // _DAY_S, d, event.tag("h")]
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "big", signed=True)


def rarity(threads: int) -> int:
    """The weight of a word in so many threads, in thousandths."""
    return round(1000 * log(1 + _FEW / threads))


def period_points(since: int, until: int) -> int:
    """Of a row within this period."""
    days = (until - since) // _DAY_S
    return _NEAR_POINTS * (4 if days < 2 else 2 if days < 32 else 1) // 2


class Asking(NamedTuple):
    """One search by one viewer."""

    rows: Callable[[str, Sequence[Value]], list[Any]]
    """Of a query."""
    readable: str
    """READABLE with what must hold of `e`."""
    values: Sequence[Value]
    """Of its first parameters."""

    def newest(self, matches: Iterable[str], limit: int) -> list[list[int]]:
        """For each MATCH expression: readable rows, the newest first."""
        return _lists(self.rows(self.readable, [*self.values, limit, _json([*matches])]))

    def among(self, seqs: str, matches: Mapping[str, str]) -> dict[str, list[int]]:
        """For each MATCH expression that some of these rows match: these."""
        found = _lists(self.rows(_AMONG, [seqs, _json([*matches.values()])]))
        return {term: there for term, there in zip(matches, found, strict=True) if there}


def best(asking: Asking, search: Search, limit: int) -> list[tuple[int, int]]:
    """seq and points of the best rows, best first."""
    terms = {term: Search((term,), search.excluded) for term in search.required if words_of(term)}
    matches = {term: f"({expression(alone)})" for term, alone in terms.items()}
    found = zip(terms, asking.newest(matches.values(), MAX_ROWS + 1), strict=True)
    newest = {term: seqs for term, seqs in found if seqs}
    rare = finding = {term for term, seqs in newest.items() if len(seqs) <= MAX_ROWS}
    chosen = {seq for term in rare for seq in newest[term]}
    if not rare and len(newest) > 1:
        finding = {*newest}
        (paired,) = asking.newest([_two_of([matches[term] for term in newest])], PAIRED_ROWS)
        chosen.update(paired)
    if not chosen:
        finding = set()
        chosen.update(*(seqs[:MAX_ROWS] for seqs in newest.values()))
    ((ranked, *ranks),) = asking.rows(_RANKS, [_json([*chosen])])
    threads, times, once, repeated, frequent = (
        dict(zip(orjson.loads(ranked), orjson.loads(rank), strict=True)) for rank in ranks
    )
    beside = {
        term: " AND " + _either(matches[other] for other in finding if other != term)
        for term in newest
        if finding and term not in rare
    }

    def among(wanted: Mapping[str, str]) -> dict[str, list[int]]:
        asked = {term: f"({match}){beside.get(term, '')}" for term, match in wanted.items()}
        return asking.among(ranked, asked)

    hits = {term: [seq for seq in newest[term] if seq in threads] for term in rare}
    hits |= among({term: matches[term] for term in newest if term not in rare})
    more = {term: more_often(terms[term], term) or ("", "") for term in hits}
    twice = among({term: match for term, (match, _) in more.items()})
    often = among({term: more[term][1] for term in twice})
    weights: dict[str, int] = {}
    of_row: defaultdict[int, int] = defaultdict(int)
    of_thread: defaultdict[int, int] = defaultdict(int)
    for term, seqs in hits.items():
        there = Counter(map(threads.__getitem__, seqs))
        weight = weights[term] = rarity(max(1, len(there)))
        for seq in seqs:
            of_row[seq] += weight
        for thread, rows in there.items():
            of_thread[thread] += weight * 1000 * rows // (rows + 1)
    points = {seq: of_row[seq] * once[seq] + of_thread[own] for seq, own in threads.items()}
    for term, seqs in twice.items():
        for seq in seqs:
            points[seq] += weights[term] * (repeated[seq] - once[seq])
    for term, seqs in often.items():
        for seq in seqs:
            points[seq] += weights[term] * (frequent[seq] - repeated[seq])
    if search.near:
        for seq, at in times.items():
            points[seq] += _near_points(search, at)
    order = sorted(sorted(points, reverse=True), key=points.__getitem__, reverse=True)
    return [(seq, points[seq]) for seq in order[:limit]]


def _two_of(matches: Sequence[str]) -> str:
    return _either(
        f"({match} AND {_either(matches[n:])})" for n, match in enumerate(matches[:-1], 1)
    )


def _either(matches: Iterable[str]) -> str:
    return f"({' OR '.join(matches)})"


def _near_points(search: Search, at: int) -> int:
    return max(
        (
            period_points(since, until) * (NEAR_S - max(0, at - until)) // NEAR_S
            for since, until in search.near
            if since <= at < until + NEAR_S
        ),
        default=0,
    )


def _lists(rows: Iterable[tuple[str]]) -> list[list[int]]:
    return [orjson.loads(seqs) for (seqs,) in rows]


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return orjson.dumps(values).decode()
