"""The queries of `relay.storage.recall` on the text index, for one viewer."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.storage.recall import Ranked
from relay.storage.sqlite import fts
from relay.storage.sqlite.sql.conditions import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from relay.nostr.nip50 import Search
    from relay.storage.sqlite.readable_rows import KnownRows
    from relay.storage.sqlite.sql.conditions import Query, Value

_BETWEEN: Final = "\n"
"""Separator of the stems of two rows; no token contains it."""
# In each: MATCH expressions as JSON, each answered with a JSON list of seq.
READABLE: Final = (
    "SELECT (SELECT json_group_array(seq) FROM (SELECT w.rowid AS seq FROM search.words AS w"
    " CROSS JOIN events AS e ON e.seq = w.rowid"
    " WHERE words MATCH asked.value AND w.rowid <= ? AND %s ORDER BY w.rowid DESC LIMIT ?))"
    " FROM json_each(?) AS asked ORDER BY asked.key"
)
FOUND: Final = (
    "SELECT (SELECT json_group_array(seq) FROM (SELECT rowid AS seq FROM search.words"
    " WHERE words MATCH asked.value AND rowid <= ? ORDER BY rowid DESC LIMIT ?))"
    " FROM json_each(?) AS asked ORDER BY asked.key"
)
CHECKED: Final = (
    "WITH j AS (SELECT value FROM json_each(?))"
    " SELECT json_group_array(e.seq), json_group_array(%s)"
    " FROM j CROSS JOIN events AS e ON e.seq = j.value WHERE %s"
)
"""The readable ones of these rows, and for each whether `readable_rows` may cache it."""
_AMONG: Final = (
    "SELECT json_group_array(w.rowid) FROM search.words AS w"
    # With `+` it is no key: the words are looked up once.
    " WHERE +w.rowid IN (SELECT value FROM json_each(?)) AND words MATCH ?"
)
_RANKED: Final = (
    "SELECT json_group_array(r.seq), json_group_array(r.thread), json_group_array(r.created_at),"
    " json_group_array(r.once), json_group_array(r.repeated), json_group_array(r.frequent)"
    " FROM json_each(?) AS j CROSS JOIN search.ranks AS r ON r.seq = j.value"
)
_OF_TEXTS: Final = "FROM json_each(?) AS j CROSS JOIN search.texts AS t ON t.seq = j.value"
_SIZES: Final = f"SELECT json_group_array(t.seq), json_group_array(length(t.stems)) {_OF_TEXTS}"
_STEMS: Final = (
    f"SELECT json_group_array(t.seq), group_concat(t.stems, char({ord(_BETWEEN)})) {_OF_TEXTS}"
)
_MAX_READ: Final = 32 << 20
"""Characters of stems that one search reads, of the texts with the fewest words first. In others a
term counts once, where it has found them."""
_READ_AT_ONCE: Final = 512 << 10
"""Characters of stems of several rows in one value: while it is converted no other thread runs."""
_SIZED_ROWS: Final = 500
"""Rows whose sizes are read at once; SQLite reads the stems for it."""


class Asked(NamedTuple):
    """The conditions of a filter besides its words, for one viewer."""

    upto: int
    kinds: Sequence[int]
    """As of `fts.expression`."""
    readable: Query
    """READABLE, with the values before the last two."""
    checked: Query
    """CHECKED; its first value is open."""


class Asking:
    """One search by one viewer; a match is a MATCH expression. Its methods never wait."""

    def __init__(
        self,
        rows: Callable[[str, Sequence[Value]], list[Any]],
        stems: fts.Stems,
        asked: Asked,
        known: KnownRows,
    ) -> None:
        """`rows`: returns the rows of a query."""
        self._rows = rows
        self._stems = stems
        self._asked = asked
        self._known = known
        self._newest: dict[str, Sequence[int]] = {}
        """What `newest` returned, by match."""

    def match(self, search: Search) -> str:
        return f"({fts.expression(search)})"

    def either(self, matches: Iterable[str]) -> str:
        return f"({' OR '.join(matches)})"

    def both(self, one: str, other: str) -> str:
        return self._of_kinds(f"({one}) AND {other}")

    def _of_kinds(self, match: str) -> str:
        kinds = self._asked.kinds
        return f"({fts.of_kinds(kinds)} AND {match})" if kinds else f"({match})"

    async def newest(self, matches: Iterable[str], limit: int) -> list[list[int]]:
        every = [*matches]
        found = self._found([*map(self._of_kinds, every)], limit)
        self._newest.update(zip(every, found, strict=True))
        return found

    def _found(self, every: Sequence[str], limit: int) -> list[list[int]]:
        if self._known.is_little:
            return self._readable(every, limit)
        found = _lists(self._rows(FOUND, [self._asked.upto, limit, listed(every)]))
        hidden = self._hidden(found)
        if not hidden:
            return found
        seen = [[seq for seq in seqs if seq not in hidden] for seqs in found]
        less = [n for n, seqs in enumerate(seen) if len(seqs) < limit == len(found[n])]
        if less:
            for n, seqs in zip(less, self._readable([every[n] for n in less], limit), strict=True):
                seen[n] = seqs
        return seen

    def _readable(self, matches: Sequence[str], limit: int) -> list[list[int]]:
        sql, values = self._asked.readable
        return _lists(self._rows(sql, [*values, limit, listed(matches)]))

    def _hidden(self, found: Iterable[Sequence[int]]) -> set[int]:
        """The found rows that the viewer may not read."""
        known, changes = self._known.seqs, self._known.changes
        fresh = [seqs for seqs in found if not known.issuperset(seqs)]
        unknown = {seq for seqs in fresh for seq in seqs if seq not in known}
        if not unknown:
            return unknown
        sql, (_, *values) = self._asked.checked
        (columns,) = self._rows(sql, [listed([*unknown]), *values])
        readable, lasting = map(orjson.loads, columns)
        self._known.add(compress(readable, lasting), changes)
        hidden = unknown.difference(readable)
        self._known.is_little = 2 * len(hidden) > len({seq for seqs in found for seq in seqs})
        return hidden

    async def ranked(self, seqs: Sequence[int], terms: Mapping[str, Search]) -> Ranked:
        (columns,) = self._rows(_RANKED, [listed(seqs)])
        found, threads, times, once, repeated, frequent = map(orjson.loads, columns)
        # Counted in these rows: reading all rows of a frequent word would take much longer, and SQL
        # three times as long as Python.
        tokens = {term: its[0] for term, its in self._stems.of(terms).items() if len(its) == 1}
        counted = {
            term: [0] * len(found) if term in tokens else self._counted(found, search, term)
            for term, search in terms.items()
        }
        shortest = sorted(range(len(found)), key=once.__getitem__, reverse=True)
        unread = {found[place]: place for place in shortest}
        for part in self._parts([*unread]) if tokens else ():
            of, texts = self._rows(_STEMS, [listed(part)])[0]
            places = [unread.pop(seq) for seq in orjson.loads(of)]
            stems = texts.split(_BETWEEN) if places else []
            for term, token in tokens.items():
                for place, count in zip(places, _counts(stems, token), strict=True):
                    counted[term][place] = count
        for term in tokens if unread else ():
            for seq in unread.keys() & self._newest.get(self.match(terms[term]), ()):
                counted[term][unread[seq]] = 1
        return Ranked(found, threads, times, once, repeated, frequent, [*counted.values()])

    def _parts(self, seqs: Sequence[int]) -> Iterator[list[int]]:
        """The rows whose stems are read together, up to `_MAX_READ`."""
        part: list[int] = []
        size, left = 0, _MAX_READ
        for begin in range(0, len(seqs), _SIZED_ROWS):
            (columns,) = self._rows(_SIZES, [listed(seqs[begin : begin + _SIZED_ROWS])])
            for seq, length in zip(*map(orjson.loads, columns), strict=True):
                left -= length
                if left < 0:
                    yield part
                    return
                size += length
                if part and size > _READ_AT_ONCE:
                    yield part
                    part, size = [], length
                part.append(seq)
        yield part

    def _counted(self, seqs: Sequence[int], search: Search, term: str) -> list[int]:
        """As `Ranked.counted`, of a term of several words."""
        kinds = self._asked.kinds
        matches = [
            fts.expression(search, kinds),
            *(fts.more_often(search, term, kinds) or ()),
        ]
        found = [set(_lists(self._rows(_AMONG, [listed(seqs), match]))[0]) for match in matches]
        return [sum([seq in rows for rows in found]) for seq in seqs]


def _counts(rows: Sequence[str], token: str) -> list[int]:
    """As `Ranked.counted`, in the lists of `fts.Stems`."""
    once, twice, often = (f" {sign}{token} " for sign in ("", fts.TWICE, fts.OFTEN))
    counts = [int(once in row) for row in rows]
    for place, count in enumerate(counts):
        if count and twice in (row := rows[place]):
            counts[place] = 3 if often in row else 2
    return counts


def _lists(rows: Iterable[tuple[str]]) -> list[list[int]]:
    return [orjson.loads(seqs) for (seqs,) in rows]
