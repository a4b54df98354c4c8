"""What `relay.storage.recall` asks of the text index, by one viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.storage.recall import Ranked
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
    "SELECT json_group_array(w.rowid) FROM search.words AS w"
    # With `+` it is no key: the words are looked up once.
    " WHERE +w.rowid IN (SELECT value FROM json_each(?)) AND words MATCH ?"
)
_RANKED: Final = (
    "SELECT json_group_array(r.seq), json_group_array(r.thread), json_group_array(r.created_at),"
    " json_group_array(r.once), json_group_array(r.repeated), json_group_array(r.frequent)%s"
    " FROM json_each(?) AS j CROSS JOIN search.ranks AS r ON r.seq = j.value"
    " CROSS JOIN search.texts AS t ON t.seq = j.value"
)
_COUNTED: Final = (
    ", json_group_array(CASE 0 WHEN instr(t.stems, ?) THEN 0 WHEN instr(t.stems, ?) THEN 1"
    " WHEN instr(t.stems, ?) THEN 2 ELSE 3 END)"
)
"""Of a stem. To go through all rows of a frequent word would take much longer."""


class Asking:
    """One search by one viewer; a match is a MATCH expression. Its methods never wait."""

    def __init__(
        self,
        rows: Callable[[str, Sequence[Value]], list[Any]],
        stems: fts.Stems,
        readable: str,
        values: Sequence[Value],
    ) -> None:
        """`rows`: of a query; `readable`: READABLE with what must hold of `e`; `values`: of its
        first parameters."""
        self._rows = rows
        self._stems = stems
        self._readable = readable
        self._values = values

    def match(self, search: Search) -> str:
        return f"({fts.expression(search)})"

    def either(self, matches: Iterable[str]) -> str:
        return f"({' OR '.join(matches)})"

    def both(self, one: str, other: str) -> str:
        return f"(({one}) AND {other})"

    async def newest(self, matches: Iterable[str], limit: int) -> list[list[int]]:
        return _lists(self._rows(self._readable, [*self._values, limit, _json([*matches])]))

    async def ranked(self, seqs: Sequence[int], terms: Mapping[str, Search]) -> Ranked:
        tokens = self._stems.of(terms)
        alone = [term for term in terms if len(tokens[term]) == 1]
        stems = [
            f" {sign}{tokens[term][0]} " for term in alone for sign in ("", fts.TWICE, fts.OFTEN)
        ]
        (columns,) = self._rows(_RANKED % (_COUNTED * len(alone)), [*stems, _json(seqs)])
        found, threads, times, *counts = map(orjson.loads, columns)
        once, repeated, frequent, *counted = counts
        counted += [
            self._counted(found, search, term)
            for term, search in terms.items()
            if len(tokens[term]) != 1
        ]
        return Ranked(found, threads, times, once, repeated, frequent, counted)

    def _counted(self, seqs: Sequence[int], search: Search, term: str) -> list[int]:
        """As `Ranked.counted`, of a term of several words."""
        matches = [fts.expression(search), *(fts.more_often(search, term) or ())]
        found = [set(_lists(self._rows(_AMONG, [_json(seqs), match]))[0]) for match in matches]
        return [sum([seq in rows for rows in found]) for seq in seqs]


def _lists(rows: Iterable[tuple[str]]) -> list[list[int]]:
    return [orjson.loads(seqs) for (seqs,) in rows]


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return orjson.dumps(values).decode()
