"""What `relay.storage.recall` asks of this store, by one viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relay.storage.postgres.sql.conditions import all_of, any_of
from relay.storage.postgres.sql.named import SEARCH_QUERIES as QUERIES
from relay.storage.postgres.sql.parameters import Parameters
from relay.storage.recall import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage.postgres.sql.filters import Compiler
    from relay.storage.postgres.sql.words import Words

    Match = Callable[[Parameters], str]
    """A condition over `w`, whose values it adds."""


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
        self._ranked: Sequence[int] = ()

    def match(self, search: Search) -> Match:
        return lambda p: self._words.contains(search, p)

    def more_often(self, search: Search, term: str) -> tuple[Match, Match] | None:
        def having(number: int) -> Match:
            def condition(p: Parameters) -> str:
                more = self._words.more_often(term, p)
                assert more is not None
                return all_of([more[number], self._words.contains(search, p)])

            return condition

        return (
            None if self._words.more_often(term, Parameters()) is None else (having(0), having(1))
        )

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

    async def ranks(self, seqs: Sequence[int]) -> Ranks:
        ranks = Ranks({}, {}, {}, {}, {})
        for seq, *rank in await self._db.fetch(QUERIES["ranks"], seqs):
            for column, value in zip(ranks, rank, strict=True):
                column[seq] = value
        self._ranked = list(ranks.threads)
        return ranks

    async def among(self, matches: Mapping[str, Match]) -> dict[str, list[int]]:
        if not matches:
            return {}
        p = Parameters()
        lists = [f"array_agg(w.seq) FILTER (WHERE {match(p)})" for match in matches.values()]
        seqs = p.add(list(self._ranked), "bigint[]")
        query = p.query(f"SELECT {', '.join(lists)} FROM texts AS w WHERE w.seq = ANY({seqs})")
        (found,) = await self._db.fetch(query.sql, *query.values)
        return {term: there for term, there in zip(matches, found, strict=True) if there}
