"""SQL of the stores: named queries out of `.sql` files; Filter and Visibility as WHERE text.

House rules: only this file builds SQL text, from fixed pieces; every value is bound. The text of
the visibility condition says exactly what `Visibility.may_read` says; tests/property holds the two
together.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.nostr.filters import BROAD_TAGS
from relay.verdict import Who

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage import Place
    from relay.visibility import KindSet, Match, ReadRule, Visibility

Value = int | str | bytes | None


class Recent(NamedTuple):
    """A value known when the query is asked: the newest rows that have one of these tags."""

    hashes: tuple[int, ...]


Bound = Value | Recent

RULE_TAGS: Final = frozenset({"enc", "snow:tier", "visibility", "scope"})
"""Tag names that packaged read rules ask for: in the tag table, though no filter may name them."""
_MERGED_AT_MOST: Final = 16
"""Up to so many keys of a filter are walked side by side in order; more are sorted."""
_KIND_WALKS: Final = 8
_BOUND_AT_MOST: Final = 16
"""Longer lists of values go in as one JSON text."""
_CACHED_CONDITIONS: Final = 512
_LONG_VALUE: Final = 256
_SORTED_OUT: Final = "ORDER BY k.created_at DESC, k.id_key, k.seq"


def named_queries(text: str) -> dict[str, str]:
    """Statements of a `.sql` file by the name in `-- :name  what it gives`."""
    parts = re.split(r"^-- :(\w+)[^\n]*\n", text, flags=re.MULTILINE)[1:]
    return {
        name: body.strip().rstrip(";") for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def id_key(event_id: str) -> int:
    """First 8 bytes of a hex id or key as a signed number of the same order."""
    return int(event_id[:16], 16) - 2**63


class Hashes:
    """Keyed 64-bit hashes of tags and slots: nobody outside can make two of them meet."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._short = lru_cache(maxsize=65_536)(self._hash)

    def tag(self, name: str, value: str) -> int:
        text = f"{name}\0{value}"
        return self._short(text) if len(text) < _LONG_VALUE else self._hash(text)

    def tag_name(self, name: str) -> int:
        """Of "has such a tag"; only for RULE_TAGS."""
        return self._short(f"\0{name}")

    def slot(self, pubkey: str, kind: int, d: str) -> int:
        return self._hash(f"{kind}:{pubkey}:{d}")

    def _hash(self, text: str) -> int:
        digest = blake2b(text.encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "big", signed=True)

    def of_event(self, event: Event, index_tags: frozenset[str]) -> set[int]:
        """Every hash under which the event can be found by a tag (N01-31)."""
        out = set()
        for tag in event.tags:
            if len(tag) > 1:
                name = tag[0]
                if len(name) == 1:
                    if name.isascii() and name.isalpha():
                        out.add(self.tag(name, tag[1]))
                elif name in RULE_TAGS:
                    out.add(self.tag(name, tag[1]))
                    out.add(self.tag_name(name))
                elif name in index_tags:
                    out.add(self.tag(name, tag[1]))
        return out


class Condition(NamedTuple):
    """Part of a WHERE clause with its values in the order of the question marks."""

    # Named tuples here: a query makes a dozen of these, and a frozen dataclass takes 0.5 us each.

    sql: str
    values: tuple[Bound, ...] = ()

    def negated(self) -> Condition:
        return Condition(f"NOT {self.sql}", self.values)


_TRUE: Final = Condition("1")
_FALSE: Final = Condition("0")


def _all(parts: Iterable[Condition]) -> Condition:
    return _joined([part for part in parts if part != _TRUE], " AND ", _TRUE)


def _any(parts: Iterable[Condition]) -> Condition:
    return _joined([part for part in parts if part != _FALSE], " OR ", _FALSE)


def _joined(parts: Sequence[Condition], word: str, empty: Condition) -> Condition:
    if not parts:
        return empty
    if len(parts) == 1:
        return parts[0]
    return Condition(
        "(" + word.join([part.sql for part in parts]) + ")",
        tuple([value for part in parts for value in part.values]),
    )


def _in(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """`column` equals one of `values`; the text is the same for 5 to 8 values, for 9 to 16."""
    if not values:
        return _FALSE
    if len(values) == 1:
        return Condition(f"{column} = ?", (values[0],))
    if len(values) > _BOUND_AT_MOST:
        return _in_list(column, values)
    size = 1 << (len(values) - 1).bit_length()
    padded = (*values, *[values[-1]] * (size - len(values)))
    return Condition(f"{column} IN ({','.join('?' * size)})", padded)


def _in_list(column: str, values: Sequence[int] | Sequence[str] | Sequence[bytes]) -> Condition:
    """As one bound value, however many they are: a message holds more than SQLite lets bind."""
    if isinstance(values[0], bytes):
        column = f"lower(hex({column}))"
        values = [value.hex() for value in values if isinstance(value, bytes)]
    listed = orjson.dumps(values).decode()
    return Condition(f"{column} IN (SELECT value FROM json_each(?))", (listed,))


class Query(NamedTuple):
    sql: str
    values: tuple[Value, ...]


class Compiler:
    """Filters and visibilities to SQL over the tables of one store."""

    def __init__(
        self,
        hashes: Hashes,
        index_tags: frozenset[str],
        recent: Callable[[Sequence[int]], Sequence[int]] = lambda _: (),
    ) -> None:
        """`recent`: seqs of rows with one of these tag hashes that the tag table may lack."""
        self._hashes = hashes
        self._recent = recent
        self._indexed = index_tags | RULE_TAGS
        self._conditions: OrderedDict[
            tuple[int, frozenset[int] | None, tuple[str, ...]], tuple[Visibility, Condition]
        ] = OrderedDict()

    def page(
        self, filter_: Filter, visibility: Visibility, *,
        columns: str, upto: int, now: int, after: Place | None, size: int,
    ) -> Query:  # fmt: skip
        """The next `size` rows in order. `columns` are of `e`, the events table."""
        walks, rest = self._walks(filter_)
        rest = _all(
            [
                rest,
                Condition("e.seq <= ?", (upto,)),
                Condition("(e.expires_at IS NULL OR e.expires_at > ?)", (now,)),
                self.visible(visibility, filter_),
            ]
        )
        if len(walks) == 1 and walks[0].ordered:
            sql, values = walks[0].in_order(filter_, rest, after, columns, size)
        else:
            sql, values = _merged(walks, filter_, rest, after, columns, size)
        return Query(sql, self._known(values))

    def _known(self, values: tuple[Bound, ...]) -> tuple[Value, ...]:
        return tuple(
            [
                _listed(self._recent(value.hashes)) if isinstance(value, Recent) else value
                for value in values
            ]
        )

    def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> Query:
        """One number: rows that any of the filters finds."""
        parts = []
        values: list[Bound] = []
        for filter_ in filters:
            walks, rest = self._walks(filter_, in_order=False)
            rest = _all(
                [
                    rest,
                    Condition("(e.expires_at IS NULL OR e.expires_at > ?)", (now,)),
                    self.visible(visibility, filter_),
                ]
            )
            for walk in walks:
                where = _all([walk.start, *walk.times(filter_, None), rest])
                once = "" if walk.ordered else "DISTINCT "
                parts.append(f"SELECT {once}e.seq AS seq {walk.source} WHERE {where.sql}")
                values.extend(where.values)
        return Query(
            f"SELECT count(*) FROM ({' UNION '.join(parts)})", self._known(tuple(values))
        )

    # -- which index drives -----------------------------------------------------------------

    def _walks(
        self, filter_: Filter, *, in_order: bool = True
    ) -> tuple[list[_Walk], Condition]:
        """How to find candidates, and what else must hold of them. Chosen by rule (DESIGN §7).

        `in_order`: few keys are walked side by side; else one walk finds the rows of all.
        """
        at_most = _MERGED_AT_MOST if in_order else 1
        left = dict(filter_.tags)
        authors, kinds = filter_.authors, filter_.kinds
        rest: list[Condition] = []
        walks: list[_Walk]
        tag = None if filter_.ids is not None else self._driving_tag(filter_)
        if filter_.ids is not None:
            walks = [_by_ids(sorted(filter_.ids))]
        elif tag is not None:
            walks = self._by_tag(filter_, tag, at_most)
            del left[tag]
        elif authors is not None:
            walks = _by_authors(sorted(authors), at_most)
            authors = None
        elif kinds is not None and len(kinds) <= _KIND_WALKS:
            walks = _by_kinds(sorted(kinds), at_most)
            kinds = None
        else:
            walks = [_BY_TIME]
        if kinds is not None:
            rest.append(_in("e.kind", sorted(kinds)))
        if authors is not None:
            rest.append(_in("e.pubkey", [bytes.fromhex(key) for key in sorted(authors)]))
        for name, values in left.items():
            found = self._tagged(name, sorted(values))
            if name == "d" and filter_.d_prefixes:
                found = _any([found, _begins_with_one(filter_.d_prefixes)])
            rest.append(found)
        return walks, _all(rest)

    def _driving_tag(self, filter_: Filter) -> str | None:
        names = [name for name, _ in filter_.tags]
        narrow = [name for name in names if name not in BROAD_TAGS]
        if narrow:
            return min(narrow, key=lambda name: len(filter_.tag_values(name) or ()))
        if names and filter_.authors is None:
            return min(names, key=lambda name: len(filter_.tag_values(name) or ()))
        return None

    def _by_tag(self, filter_: Filter, name: str, at_most: int) -> list[_Walk]:
        hashes = [self._hashes.tag(name, value) for value in sorted(filter_.tag_values(name) or ())]
        if len(hashes) > at_most:
            walks = [_Walk(_FROM_TAGS, _in("t.hash", hashes), "t", ordered=False)]
        else:
            walks = [_by_hash(hash_) for hash_ in hashes]
        recent = self._recent(hashes)
        if recent:
            walks.append(_by_seqs(recent))
        if name == "d" and filter_.d_prefixes:
            walks.append(_by_d_prefixes(filter_.d_prefixes))
        return walks

    def _tagged(self, name: str, values: Sequence[str]) -> Condition:
        """The row `e` has a tag of this name with one of these values."""
        return _has_hash([self._hashes.tag(name, value) for value in values])

    # -- what the viewer may see --------------------------------------------------------------

    def visible(self, visibility: Visibility, filter_: Filter) -> Condition:
        """`may_read(e, filter_)` as SQL."""
        if visibility.everything:
            return _TRUE
        # A filter matters by its kinds (fewer rules to ask) and by what it names (`only_by`).
        names = tuple(
            [key for key in ("authors", "ids") if getattr(filter_, key) is not None]
            + [f"#{name}" for name, _ in filter_.tags]
        )
        key = (id(visibility), filter_.kinds, names)
        kept = self._conditions.get(key)
        if kept is not None:
            self._conditions.move_to_end(key)
            return kept[1]
        condition = self._visible(visibility, filter_.kinds, frozenset(names))
        self._conditions[key] = (visibility, condition)  # the visibility stays alive: its id holds
        if len(self._conditions) > _CACHED_CONDITIONS:
            self._conditions.popitem(last=False)
        return condition

    def _visible(
        self, visibility: Visibility, kinds: frozenset[int] | None, names: frozenset[str]
    ) -> Condition:
        of_kinds, of_groups, others = [], [], []
        guarded: list[KindSet] = []
        for rule in visibility.rules:
            match = rule.match
            if kinds is not None and match.kinds is not None and not any(
                kind in match.kinds for kind in kinds
            ):
                continue
            condition = self._rule(rule, visibility, names)
            if match.kinds is not None:
                guarded.append(match.kinds)
                of_kinds.append(condition)
            elif match.h is True or isinstance(match.h, frozenset) or match.ended:
                of_groups.append(condition)
            else:
                others.append(condition)
        full = _all([*of_kinds, *of_groups])
        if kinds is None and of_kinds:
            # Most rows are of no group and of a kind that no rule names: two comparisons tell.
            plain = _all([Condition("e.grp IS NULL"), _outside(guarded)])
            full = _any([plain, full])
        elif not of_kinds and of_groups:
            full = _any([Condition("e.grp IS NULL"), full])
        return _all([*others, full])

    def _rule(
        self, rule: ReadRule, visibility: Visibility, names: frozenset[str]
    ) -> Condition:
        """Rows that the rule is not about, or that it allows."""
        outs = [self._match(rule.match).negated(), *[self._match(m) for m in rule.excepts]]
        if rule.only_by is not None and not rule.only_by & names:
            return _any(outs)
        if rule.readers & visibility.standing:
            return _TRUE
        return _any([*outs, *self._allowed(rule, visibility)])

    def _allowed(self, rule: ReadRule, visibility: Visibility) -> list[Condition]:
        readers = rule.readers
        keys = sorted(visibility.viewer.keys)
        blobs = [bytes.fromhex(key) for key in keys]
        out = []
        member = _in("pubkey", blobs)
        insider = Condition(
            f"e.grp IN (SELECT grp FROM members WHERE {member.sql})", member.values
        )
        if Who.GROUP in readers:
            out.append(_OPEN_GROUP)
        if Who.VISIBLE in readers:
            out.append(_SHOWN_GROUP)
        if not keys:
            return out
        if Who.AUTHOR in readers:
            out.append(_in("e.pubkey", blobs))
        if readers & {Who.INSIDER, Who.GROUP, Who.VISIBLE} and visibility.insider_of:
            out.append(insider)
        if Who.ADMIN in readers and visibility.admin_of:
            out.append(
                Condition(
                    f"e.grp IN (SELECT grp FROM members WHERE {member.sql} AND admin = 1)",
                    member.values,
                )
            )
        if Who.RECIPIENT in readers:
            out.append(self._tagged("p", keys))
        out.extend(self._with_tag(name, keys) for name in rule.tag_readers)
        for home in visibility.people.households:
            mine = visibility.viewer.keys
            if (Who.OWNER in readers and mine & home.owners) or (
                Who.AGENT in readers and mine & home.agents
            ):
                keys_at_home = sorted(home.owners | home.agents)
                out.append(_in("e.pubkey", [bytes.fromhex(key) for key in keys_at_home]))
        return out

    def _match(self, match: Match) -> Condition:
        parts = []
        if match.kinds is not None:
            parts.append(_inside(match.kinds))
        if match.h is True:
            parts.append(Condition("e.grp IS NOT NULL"))
        elif match.h is False:
            parts.append(Condition("e.grp IS NULL"))
        elif match.h is not None:
            one_of = _in("e.grp", sorted(match.h))
            parts.append(Condition(f"(e.grp IS NOT NULL AND {one_of.sql})", one_of.values))
        if match.quiet is not None:
            parts.append(Condition(f"e.quiet = {int(match.quiet)}"))
        if match.ended is not None:
            ended = "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND g.ended = 1)"
            parts.append(Condition(ended if match.ended else f"NOT {ended}"))
        if match.authors is not None:
            parts.append(_in("e.pubkey", [bytes.fromhex(key) for key in sorted(match.authors)]))
        if match.d is not None:
            parts.append(_in("e.d", sorted(match.d)))
        if match.d_prefixes is not None:
            parts.append(_any([_begins(prefix) for prefix in match.d_prefixes]))
        for name, wanted in match.tags:
            if isinstance(wanted, bool):
                has = self._with_name(name)
                parts.append(has if wanted else has.negated())
            else:
                parts.append(self._with_tag(name, sorted(wanted)))
        whole = _all(parts)
        return Condition(f"({whole.sql})", whole.values)

    def _with_tag(self, name: str, values: Sequence[str]) -> Condition:
        if self._is_indexed(name):
            return self._tagged(name, values)
        one_of = _in("json_extract(j.value, '$[1]')", values)
        return Condition(
            "EXISTS (SELECT 1 FROM json_each(CAST(e.raw AS TEXT), '$.tags') AS j"
            f" WHERE json_extract(j.value, '$[0]') = ? AND {one_of.sql})",
            (name, *one_of.values),
        )

    def _with_name(self, name: str) -> Condition:
        if name in RULE_TAGS:
            return _has_hash([self._hashes.tag_name(name)])
        return Condition(
            "EXISTS (SELECT 1 FROM json_each(CAST(e.raw AS TEXT), '$.tags') AS j"
            " WHERE json_extract(j.value, '$[0]') = ? AND json_array_length(j.value) > 1)",
            (name,),
        )

    def _is_indexed(self, name: str) -> bool:
        return name in self._indexed or (len(name) == 1 and name.isascii() and name.isalpha())


_OPEN_GROUP: Final = Condition(
    "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND g.guarded = 0 AND g.ended = 0)"
)
_SHOWN_GROUP: Final = Condition(
    "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND g.hidden = 0 AND g.ended = 0)"
)


class _Walk(NamedTuple):
    """One way through an index: FROM text, where it begins, the alias that holds the times."""

    source: str
    start: Condition
    times_of: str
    ordered: bool

    def times(self, filter_: Filter, after: Place | None) -> list[Condition]:
        column = f"{self.times_of}.created_at"
        out = []
        if filter_.since is not None:
            out.append(Condition(f"{column} >= ?", (filter_.since,)))
        if filter_.until is not None:
            out.append(Condition(f"{column} <= ?", (filter_.until,)))
        if after is not None:
            a = self.times_of
            out.append(Condition(f"{column} <= ?", (after.created_at,)))
            out.append(
                Condition(
                    f"({column} < ? OR {a}.id_key > ? OR ({a}.id_key = ? AND {a}.seq > ?))",
                    (after.created_at, after.tie, after.tie, after.seq),
                )
            )
        return out

    def in_order(
        self, filter_: Filter, rest: Condition, after: Place | None, columns: str, size: int
    ) -> Condition:
        where = _all([self.start, *self.times(filter_, after), rest])
        a = self.times_of
        return Condition(
            f"SELECT {columns} {self.source} WHERE {where.sql}"
            f" ORDER BY {a}.created_at DESC, {a}.id_key, {a}.seq LIMIT ?",
            (*where.values, size),
        )


_FROM_TAGS: Final = "FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq"
_BY_TIME: Final = _Walk("FROM events AS e INDEXED BY events_time", _TRUE, "e", ordered=True)


def _by_kinds(kinds: Sequence[int], at_most: int) -> list[_Walk]:
    source = "FROM events AS e INDEXED BY events_kind"
    if len(kinds) > at_most:
        return [_Walk(source, _in("e.kind", kinds), "e", ordered=False)]
    return [_Walk(source, _in("e.kind", [kind]), "e", ordered=True) for kind in kinds]


def _by_authors(authors: Sequence[str], at_most: int) -> list[_Walk]:
    source = "FROM events AS e INDEXED BY events_author"
    groups = [authors] if len(authors) > at_most else [[author] for author in authors]
    return [
        _Walk(
            source,
            _all(
                [
                    _in("e.author_key", [id_key(author) for author in group]),
                    _in("e.pubkey", [bytes.fromhex(author) for author in group]),
                ]
            ),
            "e",
            ordered=len(group) == 1,
        )
        for group in groups
    ]


def _by_ids(ids: Sequence[str]) -> _Walk:
    start = _all(
        [
            _in("e.id_key", [id_key(event_id) for event_id in ids]),
            _in("e.id", [bytes.fromhex(event_id) for event_id in ids]),
        ]
    )
    return _Walk("FROM events AS e INDEXED BY events_id", start, "e", ordered=len(ids) == 1)


def _by_hash(hash_: int) -> _Walk:
    return _Walk(_FROM_TAGS, Condition("t.hash = ?", (hash_,)), "t", ordered=True)


def _by_seqs(seqs: Sequence[int]) -> _Walk:
    start = Condition("e.seq IN (SELECT value FROM json_each(?))", (_listed(seqs),))
    return _Walk("FROM events AS e NOT INDEXED", start, "e", ordered=False)


def _listed(seqs: Sequence[int]) -> str:
    return orjson.dumps(seqs).decode() if seqs else "[]"


def _by_d_prefixes(prefixes: Sequence[str]) -> _Walk:
    return _Walk(
        "FROM events AS e INDEXED BY events_d",
        _all([Condition("e.d > ''"), _begins_with_one(prefixes)]), "e", ordered=False,
    )  # fmt: skip


def _merged(
    walks: Sequence[_Walk], filter_: Filter, rest: Condition, after: Place | None,
    columns: str, size: int,
) -> Condition:  # fmt: skip
    """The first `size` of several walks together: each gives its own first, one sort picks."""
    parts = []
    values: list[Bound] = []
    for walk in walks:
        keys = f"{walk.times_of}.created_at, {walk.times_of}.id_key, {walk.times_of}.seq"
        query = walk.in_order(filter_, rest, after, keys, size)
        # Unordered walks may meet one row by several tags.
        text = query.sql.replace("SELECT", "SELECT DISTINCT", 1) if not walk.ordered else query.sql
        parts.append(f"SELECT * FROM ({text})")
        values.extend(query.values)
    inner = " UNION ".join(parts) + " ORDER BY 1 DESC, 2, 3 LIMIT ?"
    return Condition(
        f"SELECT {columns} FROM ({inner}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
        f" {_SORTED_OUT}",
        (*values, size),
    )


def _has_hash(hashes: Sequence[int]) -> Condition:
    one_of = _in("x.hash", hashes)
    return Condition(
        f"(EXISTS (SELECT 1 FROM tags AS x WHERE {one_of.sql} AND x.created_at = e.created_at"
        " AND x.id_key = e.id_key AND x.seq = e.seq)"
        " OR e.seq IN (SELECT value FROM json_each(?)))",
        (*one_of.values, Recent(tuple(hashes))),
    )


def _begins(prefix: str) -> Condition:
    """`d` begins with `prefix`, as a range: the same in every collation of bytes."""
    if not prefix:
        return _TRUE
    last = ord(prefix[-1])
    following = 0xE000 if last == 0xD7FF else last + 1
    if following > 0x10FFFF:
        return Condition("e.d >= ?", (prefix,))
    return Condition("(e.d >= ? AND e.d < ?)", (prefix, prefix[:-1] + chr(following)))


def _begins_with_one(prefixes: Sequence[str]) -> Condition:
    if len(prefixes) <= _BOUND_AT_MOST:
        return _any([_begins(prefix) for prefix in prefixes])
    # As hex: SQLite ends texts out of JSON at a NUL, and would match more than was asked.
    listed = orjson.dumps([prefix.encode().hex().upper() for prefix in prefixes]).decode()
    return Condition(
        "EXISTS (SELECT 1 FROM json_each(?) AS p"
        " WHERE substr(hex(e.d), 1, length(p.value)) = p.value)",
        (listed,),
    )


def _inside(kinds: KindSet) -> Condition:
    return _any([_span(low, high) for low, high in kinds.ranges])


def _span(low: int, high: int) -> Condition:
    # Numbers of policy files, in the text: they are integers, and the planner can use them.
    if low == high:
        return Condition(f"e.kind = {low:d}")
    return Condition(f"e.kind BETWEEN {low:d} AND {high:d}")


def _outside(guarded: Iterable[KindSet]) -> Condition:
    """The kind is in none of the sets; as nested halves, so that few comparisons decide."""
    spans = sorted(span for kinds in guarded for span in kinds.ranges)
    merged: list[tuple[int, int]] = []
    for low, high in spans:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Condition(_halved(merged))


def _halved(spans: Sequence[tuple[int, int]]) -> str:
    if not spans:
        return "1"
    if len(spans) <= 2:
        return "(" + " AND ".join(
            f"e.kind <> {low}" if low == high else f"e.kind NOT BETWEEN {low} AND {high}"
            for low, high in spans
        ) + ")"  # fmt: skip
    middle = len(spans) // 2
    return (
        f"(CASE WHEN e.kind < {spans[middle][0]} THEN {_halved(spans[:middle])}"
        f" ELSE {_halved(spans[middle:])} END)"
    )


def chunks(count: int, sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Cut `count` rows into runs of the given sizes (descending, ending in 1): (start, size)."""
    start = 0
    for size in sizes:
        while count - start >= size:
            yield start, size
            start += size
