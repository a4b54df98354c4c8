"""What `relay.storage.recall` asks of the text index, by one viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.storage.recall import Ranks
from relay.storage.sqlite import fts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from relay.nostr.nip50 import Search
    from relay.storage.sqlite.sql.conditions import Value

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


class Asking:
    """One search by one viewer; a match is a MATCH expression. Its methods never wait."""

    def __init__(
        self,
        rows: Callable[[str, Sequence[Value]], list[Any]],
        readable: str,
        values: Sequence[Value],
    ) -> None:
        """`rows`: of a query; `readable`: READABLE with what must hold of `e`; `values`: of its
        first parameters."""
        self._rows = rows
        self._readable = readable
        self._values = values
        self._ranked = "[]"

    def match(self, search: Search) -> str:
        return f"({fts.expression(search)})"

    def more_often(self, search: Search, term: str) -> tuple[str, str] | None:
        return fts.more_often(search, term)

    def either(self, matches: Iterable[str]) -> str:
        return f"({' OR '.join(matches)})"

    def both(self, one: str, other: str) -> str:
        return f"(({one}) AND {other})"

    async def newest(self, matches: Iterable[str], limit: int) -> list[list[int]]:
        return _lists(self._rows(self._readable, [*self._values, limit, _json([*matches])]))

    async def ranks(self, seqs: Sequence[int]) -> Ranks:
        ((self._ranked, *ranks),) = self._rows(_RANKS, [_json(seqs)])
        found = orjson.loads(self._ranked)
        return Ranks(*[dict(zip(found, orjson.loads(rank), strict=True)) for rank in ranks])

    async def among(self, matches: Mapping[str, str]) -> dict[str, list[int]]:
        found = _lists(self._rows(_AMONG, [self._ranked, _json([*matches.values()])]))
        return {term: there for term, there in zip(matches, found, strict=True) if there}


def _lists(rows: Iterable[tuple[str]]) -> list[list[int]]:
    return [orjson.loads(seqs) for (seqs,) in rows]


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return orjson.dumps(values).decode()
