"""A search with `match:any`: rows with any of its words, ranked.

A word of at most MAX_ROWS rows finds them. A more frequent word finds none, but counts in those
rows; if all words are more frequent, rows with two of them are found.

The fewer threads have a word, the higher its weight. A row gets points for its own words, for those
of its thread (rows by its author on the same day under the same `d`, without a hash at the end),
and for a time in or soon after one of the periods of the search.

Invariant: only rows that the viewer may read count, for all of this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from hashlib import blake2b
from heapq import nlargest
from math import log
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from relay.nostr.nip50 import Search, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.nostr.event import Event

M = TypeVar("M")
"""A condition on texts, as a store has it."""

MAX_ROWS: Final = 500
"""A word in more rows finds none by itself."""
PAIRED_ROWS: Final = 1000
"""The newest rows with two words that are found."""
_FEW: Final = 300
"""A word in this many threads has the weight log 2."""
_DAY_S: Final = 86_400
_NEAR_POINTS: Final = 5_000_000
"""Points of a row in a period of 2 to 31 days; twice as many in a shorter one, half in a longer
one."""
NEAR_S: Final = 14 * _DAY_S
"""After a period the points decrease to 0 within this time: most things are told later."""


class Ranked(NamedTuple):
    """Facts about rows with a text, in the order of `seqs`."""

    seqs: Sequence[int]
    threads: Sequence[int]
    times: Sequence[int]
    """created_at."""
    once: Sequence[int]
    """Points of a word that occurs once; `repeated`: twice or more, `frequent`: four times or
    more."""
    repeated: Sequence[int]
    frequent: Sequence[int]
    counted: Sequence[Sequence[int]]
    """For each term, a number for each row: 0, or 1, 2, 3 if the term occurs once, at least twice,
    at least four times."""


class Asking(Protocol[M]):
    """One search by one viewer."""

    def match(self, search: Search) -> M: ...
    def either(self, matches: Iterable[M]) -> M: ...
    def both(self, one: M, other: M) -> M: ...

    async def newest(self, matches: Iterable[M], limit: int) -> list[list[int]]:
        """For each match: seq of readable rows, the newest first."""

    async def ranked(self, seqs: Sequence[int], terms: Mapping[str, Search]) -> Ranked:
        """Facts about these rows. `terms`: term → a search for this term alone. A phrase occurs as
        often as the rarest of its words."""


def thread_of(event: Event) -> int:
    """64-bit id of the event's thread."""
    d = event.d[:-65] if event.d[-65:-64] == ":" else event.d
    of = [event.pubkey, event.kind, event.created_at // _DAY_S, d, event.tag("h")]
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "big", signed=True)


def rarity(threads: int) -> int:
    """The weight of a word in this many threads, in thousandths."""
    return round(1000 * log(1 + _FEW / threads))


def period_points(since: int, until: int) -> int:
    """Points of a row dated within this period, Unix seconds."""
    days = (until - since) // _DAY_S
    return _NEAR_POINTS * (4 if days < 2 else 2 if days < 32 else 1) // 2


async def best(asking: Asking[M], search: Search, limit: int) -> list[tuple[int, int]]:
    """seq and points of the best rows, best first."""
    terms = {term: Search((term,), search.excluded) for term in search.required if words_of(term)}
    matches = {term: asking.match(alone) for term, alone in terms.items()}
    found = zip(terms, await asking.newest(matches.values(), MAX_ROWS + 1), strict=True)
    newest = {term: seqs for term, seqs in found if seqs}
    rare = {term for term, seqs in newest.items() if len(seqs) <= MAX_ROWS}
    chosen = {seq for term in rare for seq in newest[term]}
    if not rare and len(newest) > 1:
        two = _two_of(asking, [matches[term] for term in newest])
        (paired,) = await asking.newest([two], PAIRED_ROWS)
        chosen.update(paired)
    if not chosen:
        chosen.update(*(seqs[:MAX_ROWS] for seqs in newest.values()))
    rows = await asking.ranked([*chosen], {term: terms[term] for term in newest})
    threads, worth = rows.threads, (rows.once, rows.once, rows.repeated, rows.frequent)
    points = [0] * len(rows.seqs)
    of_thread: defaultdict[int, int] = defaultdict(int)
    for counts in rows.counted:
        hits = [place for place, count in enumerate(counts) if count]
        there = Counter([threads[place] for place in hits])
        weight = rarity(max(1, len(there)))
        for thread, number in there.items():
            of_thread[thread] += weight * 1000 * number // (number + 1)
        for place in hits:
            points[place] += weight * worth[counts[place]][place]
    told: list[tuple[int, int]] = []
    for seq, of_row, thread, at in zip(rows.seqs, points, threads, rows.times, strict=True):
        near = _near_points(search, at) if search.near else 0
        told.append((of_row + of_thread[thread] + near, seq))
    return [(seq, most) for most, seq in nlargest(limit, told)]


def _two_of(asking: Asking[M], matches: Sequence[M]) -> M:
    return asking.either(
        asking.both(match, asking.either(matches[n:])) for n, match in enumerate(matches[:-1], 1)
    )


def _near_points(search: Search, at: int) -> int:
    return max(
        (
            period_points(since, until) * (NEAR_S - max(0, at - until)) // NEAR_S
            for since, until in search.near
            if since <= at < until + NEAR_S
        ),
        default=0,
    )
