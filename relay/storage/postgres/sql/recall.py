"""The queries of `relay.storage.recall` on this store, for one viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.storage.postgres.sql.conditions import all_of, any_of
from relay.storage.postgres.sql.parameters import Parameters
from relay.storage.recall import Ranked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage.postgres.sql.filters import Compiler
    from relay.storage.postgres.sql.words import Words

    Match = Callable[[Parameters], str]
    """A condition over `w`, whose values it adds."""


_RANKS: Final = "w.seq, w.thread, w.created_at, w.once, w.repeated, w.frequent"


class Asking:
    """One search, on one connection."""

    def __init__(
        self,
        db: Any,
        compiler: Compiler,
        words: Words,
        filter_: Filter,
        visibility: Visibility,
        *,
        upto: int,
        now: int,
    ) -> None:
        self._db = db
        self._compiler = compiler
        self._words = words
        self._filter = filter_
        self._visibility = visibility
        self._upto = upto
        self._now = now

    def match(self, search: Search) -> Match:
        return lambda p: self._words.contains(search, p)

    def either(self, matches: Iterable[Match]) -> Match:
        several = list(matches)
        return lambda p: any_of([match(p) for match in several])

    def both(self, one: Match, other: Match) -> Match:
        return lambda p: all_of([one(p), other(p)])

    async def newest(self, matches: Iterable[Match], limit: int) -> list[list[int]]:
        out = []
        for match in matches:
            query = self._compiler.recalled(
                match, self._filter, self._visibility, limit=limit, upto=self._upto, now=self._now
            )
            out.append([seq for (seq,) in await self._db.fetch(query.sql, *query.values)])
        return out

    async def ranked(self, seqs: Sequence[int], terms: Mapping[str, Search]) -> Ranked:
        p = Parameters()
        counts = [self._count(term, p) for term in terms]
        wanted = p.add(list(seqs), "bigint[]")
        query = p.query(
            f"SELECT {', '.join([_RANKS, *counts])} FROM texts AS w WHERE w.seq = ANY({wanted})"
        )
        rows = await self._db.fetch(query.sql, *query.values)
        columns = [list(column) for column in zip(*rows, strict=True)]
        found, threads, times, *numbers = columns or [[] for _ in range(6 + len(counts))]
        once, repeated, frequent, *counted = numbers
        return Ranked(found, threads, times, once, repeated, frequent, counted)

    def _count(self, term: str, p: Parameters) -> str:
        """As `Ranked.counted`."""
        more = self._words.more_often(term, p) or ()
        often = " + ".join(["1", *[f"({condition})::int" for condition in more]])
        return f"CASE WHEN {self._words.has(term, p)} THEN {often} ELSE 0 END"
