"""Filters and visibilities as statements: which index is scanned, and the other conditions on a
row.

A scan with several keys is one of each key, by LATERAL, and one text for any number of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from asyncpg import Range

from relay.nostr.filters import BROAD_TAGS
from relay.storage import PAGE_BYTES
from relay.storage.asked import asked_by, fulfils
from relay.storage.postgres.sql.conditions import (
    BEGINNING,
    FALSE,
    TRUE,
    all_of,
    any_of,
    following,
)
from relay.storage.postgres.sql.parameters import Late, Parameters, Query
from relay.storage.postgres.sql.visibility import NOW, ReadConditions, unexpired
from relay.storage.visibility_cache import CACHED_PLANS, VisibilityCache, weight_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage import PageQuery, Place
    from relay.storage.hashes import Hashes
    from relay.storage.postgres.sql.parameters import Bound, Value
    from relay.storage.postgres.sql.words import Words

_KIND_SCANS: Final = 8
"""With more kinds rows are read by time."""
_LISTED_KINDS: Final = 16
"""More kinds are compared as ranges, by binary search."""
_CACHED_KINDS: Final = 64
"""A plan with more kinds is not cached."""

UPTO: Final = Late("upto")
SIZE: Final = Late("size")
SINCE: Final = Late("since")
UNTIL: Final = Late("until")
AFTER_TIME: Final = Late("after", 0)
AFTER_KEY: Final = Late("after", 1)
AFTER_SEQ: Final = Late("after", 2)
IDS: Final = Late("ids")
ID: Final = Late("id")
"""The only one."""
AUTHORS: Final = Late("authors")
AUTHOR: Final = Late("author")
"""The only one."""
PREFIXES: Final = Late("prefixes", 0)
LOWS: Final = Late("prefixes", 1)
HIGHS: Final = Late("prefixes", 2)


class Shape(NamedTuple):
    """What the text of a statement depends on besides the viewer."""

    kinds: frozenset[int] | None
    ids: int
    """0: no condition, 1: one, 2: several."""
    authors: int
    tags: tuple[tuple[str, int], ...]
    has_prefixes: bool
    has_since: bool
    has_until: bool
    has_after: bool

    def driving_tag(self) -> int | None:
        """The tag condition whose index is scanned, if one is: its place in `tags`."""
        if self.ids:
            return None
        tags = range(len(self.tags))
        narrow = [tag for tag in tags if self.tags[tag][0] not in BROAD_TAGS]
        if narrow or not self.authors:
            return min(narrow or tags, key=lambda tag: self.tags[tag][1], default=None)
        return None


def shape_of(filter_: Filter, after: Place | None = None) -> Shape:
    return Shape(
        filter_.kinds,
        _number(filter_.ids),
        _number(filter_.authors),
        tuple([(name, _number(values)) for name, values in filter_.tags]),
        bool(filter_.d_prefixes),
        filter_.since is not None,
        filter_.until is not None,
        after is not None,
    )


def _number(values: Collection[str] | None) -> int:
    return 0 if values is None else min(2, len(values))


class Scan(NamedTuple):
    """A scan of one index."""

    source: str
    """FROM clause."""
    start: str
    """What its index finds, of one `key` where `keys` has several."""
    at: str
    """The table that has the place of a row: `e` or `t`."""
    keys: str = ""
    """An array: the scan is made for each item `x.key`."""
    finds_once: bool = True


class Plan:
    """A statement without its late values."""

    __slots__ = ("_late", "sql", "values")

    def __init__(self, sql: str, p: Parameters) -> None:
        self.sql, self.values = p.used_in(sql)
        self._late = [(at, v) for at, v in enumerate(self.values) if isinstance(v, Late)]

    @property
    def parts(self) -> Sequence[object]:
        """All that is kept of it."""
        return self.sql, self.values, self._late

    def bound(self, late: Mapping[Late, Value]) -> Query:
        values = self.values.copy()
        for at, name in self._late:
            values[at] = late[name]
        return Query(self.sql, values)  # type: ignore[arg-type]  # nothing late is left


class Compiler:
    """Makes queries for the tables of one store; `e` is always a row of events."""

    def __init__(self, hashes: Hashes, words: Words) -> None:
        self._hashes = hashes
        self._words = words
        self._reading = ReadConditions(hashes)
        self._plans = VisibilityCache[Plan](CACHED_PLANS, lambda plan: weight_of_plan(*plan.parts))

    def page(self, query: PageQuery, columns: Sequence[str]) -> Query:
        """The next rows in order, until they have PAGE_BYTES: these columns of events."""
        filter_, visibility, limit, upto, now, size, after, *_ = query
        shape = shape_of(filter_, after)
        hint = _hint(min(size, limit))
        asked = shape, columns, hint
        plan = self._plans.get(visibility, asked)
        if plan is None:
            p = Parameters()
            plan = Plan(self._page(shape, filter_, visibility, columns, hint, p), p)
            if filter_.kinds is None or len(filter_.kinds) <= _CACHED_KINDS:
                self._plans.keep(visibility, asked, plan)
        return plan.bound(self._late(filter_, now, upto, min(size, limit), after))

    def _page(
        self,
        shape: Shape,
        filter_: Filter,
        visibility: Visibility,
        columns: Sequence[str],
        hint: int,
        p: Parameters,
    ) -> str:
        named = list(dict.fromkeys([*columns, *_ORDERED]))
        found = self._newest(shape, filter_, visibility, named, hint, p)
        given = ", ".join([f"p.{name}" for name in columns])
        # octet_length reads no value that is stored apart.
        return (
            f"SELECT {given} FROM (SELECT q.*, sum(octet_length(q.raw)) OVER"
            " (ORDER BY q.created_at DESC, q.id_key, q.seq ROWS UNBOUNDED PRECEDING)"
            f" - octet_length(q.raw) AS before FROM ({found}) AS q) AS p"
            f" WHERE p.before < {PAGE_BYTES} ORDER BY p.created_at DESC, p.id_key, p.seq"
        )

    def _newest(
        self,
        shape: Shape,
        filter_: Filter,
        visibility: Visibility,
        columns: Sequence[str],
        hint: int,
        p: Parameters,
    ) -> str:
        """The first SIZE rows."""
        scans, rest = self._scans(shape, p)
        rest = [*rest, unexpired(p), _likely(self.visible(visibility, filter_, p))]
        size = p.add(SIZE, "bigint")
        # A plan is made for any SIZE: the other limit says for about how many rows.
        if len(scans) == 1 and not scans[0].keys:
            walk = _walk(scans[0], shape, rest, columns, p)
            return f"SELECT v.* FROM ({walk} LIMIT {hint}) AS v LIMIT {size}"
        parts = []
        for scan in scans:
            walk = _walk(scan, shape, rest, _KEYS, p)
            inner = f"SELECT v.* FROM ({walk} LIMIT {hint}) AS v LIMIT {size}"
            if scan.keys:
                inner = f"SELECT s.* FROM {scan.keys} CROSS JOIN LATERAL ({inner}) AS s"
            parts.append(f"({inner})")
        # A row may be found by several of its tags.
        once = "" if len(scans) == 1 and scans[0].finds_once else "DISTINCT "
        named = ", ".join([f"e.{name}" for name in columns])
        return (
            f"SELECT {named} FROM (SELECT {once}u.* FROM ({' UNION ALL '.join(parts)}) AS u"
            f" ORDER BY u.created_at DESC, u.id_key, u.seq LIMIT {size}) AS k"
            f" {_looked_up('k')}"
        )

    def count(
        self, filters: Sequence[Filter], visibility: Visibility, *, upto: int, now: int
    ) -> Query:
        """One number: rows that match any of the filters."""
        p = _Known()
        found = self._found(filters, visibility, upto, now, p)
        return p.query(f"SELECT count(*) FROM ({found}) AS k")

    def authors(
        self, filter_: Filter, visibility: Visibility, *, upto: int, now: int, at_most: int
    ) -> Query:
        """Distinct public keys of the rows that `count` counts."""
        p = _Known()
        found = self._found([filter_], visibility, upto, now, p)
        return p.query(
            f"SELECT DISTINCT e.pubkey FROM ({found}) AS k JOIN events AS e ON e.seq = k.seq"
            f" LIMIT {p.add(at_most, 'bigint')}"
        )

    def _found(
        self, filters: Sequence[Filter], visibility: Visibility, upto: int, now: int, p: _Known
    ) -> str:
        """Distinct seq of the rows up to `upto` that match any of the filters."""
        asked = asked_by(filters, visibility)
        parts = []
        for filter_ in filters:
            p.late = self._late(filter_, now, upto)
            rest = [f"e.seq <= {p.add(UPTO, 'bigint')}", unexpired(p)]
            if len(filters) == 1:
                rest.append(self.visible(visibility, filter_, p))
                return self._matching(filter_, rest, p)
            text = self._matching(filter_, rest, p)
            by = [f", {is_by} AS by{n}" for n, is_by in enumerate(fulfils(filter_, asked))]
            parts.append(f"SELECT m.seq{''.join(by)} FROM ({text}) AS m" if by else text)
        # The condition of visibility is most of the text, and is written once.
        seen = self._reading.readable(visibility, asked, p)
        once = "DISTINCT " if asked.sometimes else ""
        return (
            f"SELECT {once}e.seq FROM ({' UNION '.join(parts)}) AS f"
            f" JOIN events AS e ON e.seq = f.seq WHERE {seen}"
        )

    def _matching(self, filter_: Filter, rest: Sequence[str], p: _Known) -> str:
        """seq of the rows that match the filter and have `rest`; each once."""
        shape = shape_of(filter_)
        search = filter_.sought
        if search is None:
            scans, beside = self._scans(shape, p)
        else:
            source = "texts AS w JOIN events AS e ON e.seq = w.seq"
            scans = [Scan(source, self._words.contains(search, p), "e")]
            beside = self._conditions(shape, p)
        parts = [_all_rows(scan, shape, [*beside, *rest], "e.seq", p) for scan in scans]
        if len(scans) == 1 and scans[0].finds_once:
            return parts[0]
        return f"SELECT DISTINCT u.seq FROM ({' UNION ALL '.join(parts)}) AS u"

    def search(
        self,
        search: Search,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
    ) -> Query:
        """seq of the best `limit` rows, best first.

        All matches are ordered within the index; then rows are looked up one by one until there are
        enough. No statistics over all texts are used: they would reveal hidden rows.
        """
        p = _Known(self._late(filter_, now, upto))
        best = (
            f"SELECT w.seq, w.created_at, w.id_key, {self._words.score(search, p)} AS score"
            f" FROM texts AS w WHERE {self._words.contains(search, p)}"
            f" AND w.seq <= {p.add(UPTO, 'bigint')} ORDER BY 4 DESC, 2 DESC, 3, 1"
        )
        return p.query(
            f"SELECT e.seq FROM ({best}) AS k JOIN events AS e ON e.seq = k.seq"
            f" WHERE {self._beside_words(filter_, visibility, p)}"
            " ORDER BY k.score DESC, k.created_at DESC, k.id_key, k.seq"
            f" LIMIT {p.add(limit, 'bigint')}"
        )

    def recalled(
        self,
        match: Callable[[Parameters], str],
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
    ) -> Query:
        """seq of the newest `limit` rows that have `match`, a condition over `w`."""
        p = _Known(self._late(filter_, now, upto))
        return p.query(
            "SELECT w.seq FROM texts AS w JOIN events AS e ON e.seq = w.seq"
            f" WHERE {match(p)} AND w.seq <= {p.add(UPTO, 'bigint')}"
            f" AND {self._beside_words(filter_, visibility, p)}"
            f" ORDER BY w.seq DESC LIMIT {p.add(limit, 'bigint')}"
        )

    def _beside_words(self, filter_: Filter, visibility: Visibility, p: Parameters) -> str:
        shape = shape_of(filter_)
        parts = [*self._conditions(shape, p), *_times(shape, "e", p), unexpired(p)]
        return all_of([*parts, self.visible(visibility, filter_, p)])

    def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> Query:
        """raw of these rows and their positions in `seqs`, in that order, until PAGE_BYTES."""
        p = _Known(self._late(filter_, now))
        # The condition of visibility is for rows of the filter's kinds.
        kinds = TRUE if filter_.kinds is None else _one_of_kinds("e.kind", filter_.kinds, p)
        found = (
            "SELECT e.raw, j.place, sum(octet_length(e.raw)) OVER"
            " (ORDER BY j.place ROWS UNBOUNDED PRECEDING) - octet_length(e.raw) AS before"
            f" FROM unnest({p.add(list(seqs), 'bigint[]')}) WITH ORDINALITY AS j (seq, place)"
            " JOIN events AS e ON e.seq = j.seq"
            f" WHERE {all_of([kinds, unexpired(p), self.visible(visibility, filter_, p)])}"
        )
        return p.query(
            f"SELECT p.raw, p.place FROM ({found}) AS p"
            f" WHERE p.before < {PAGE_BYTES} ORDER BY p.place"
        )

    def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Query:
        """created_at, id and group of `at_most` rows of the newest `limit`, ascending by the first
        two; the group is empty for none."""
        shape, p = shape_of(filter_), _Known(self._late(filter_, now, upto))
        if limit is not None:
            size = min(limit, at_most)
            p.late = {**p.late, SIZE: size}
            columns = "created_at", "id_key", "seq", "id", "grp"
            found = self._newest(shape, filter_, visibility, columns, _hint(size), p)
        else:
            scans, rest = self._scans(shape, p)
            rest = [*rest, f"e.seq <= {p.add(UPTO, 'bigint')}", unexpired(p)]
            rest.append(self.visible(visibility, filter_, p))
            once = "" if len(scans) == 1 and scans[0].finds_once else "DISTINCT "
            named = "e.created_at, e.id, e.grp"
            parts = [_all_rows(scan, shape, rest, named, p) for scan in scans]
            found = (
                f"SELECT {once}u.* FROM ({' UNION ALL '.join(parts)}) AS u"
                f" LIMIT {p.add(at_most, 'bigint')}"
            )
        group = "coalesce(k.grp, ''::bytea)"
        return p.query(f"SELECT k.created_at, k.id, {group} FROM ({found}) AS k ORDER BY 1, 2")

    def visible(self, visibility: Visibility, filter_: Filter, p: Parameters) -> str:
        """`may_read(e, filter_)`."""
        return self._reading.readable(visibility, asked_by([filter_], visibility), p)

    # -- which index is scanned -----------------------------------------------------------------

    def _scans(self, shape: Shape, p: Parameters) -> tuple[list[Scan], list[str]]:
        """The scans that find candidates, and the other conditions on them. Chosen by fixed rules,
        as in SQLite."""
        ids, authors, kinds = shape.ids, shape.authors, shape.kinds
        tag = shape.driving_tag()
        if ids:
            one = ids == 1
            found = f"= {p.add(ID, 'bytea')}" if one else f"= ANY({p.add(IDS, 'bytea[]')})"
            scans, ids = [Scan(_EVENTS, f"e.id {found}", "e")], 0
        elif tag is not None:
            name, number = shape.tags[tag]
            finds_kinds = "" if kinds is None else _one_of_kinds("t.kind", kinds, p)
            hashes = Late("tag", tag)
            if number == 1:
                start = f"t.hash = {p.add(hashes._replace(name='only tag'), 'bigint')}"
                scans = [Scan(_TAGS, all_of([start, finds_kinds or TRUE]), "t")]
            else:
                keys = f"unnest({p.add(hashes, 'bigint[]')}) AS x (key)"
                start = all_of(["t.hash = x.key", finds_kinds or TRUE])
                scans = [Scan(_TAGS, start, "t", keys, finds_once=False)]
            if name == "d" and shape.has_prefixes:
                scans.append(_by_prefixes(p))
            else:
                kinds = None
        elif authors:
            if authors == 1:
                scans = [Scan(_EVENTS, f"e.pubkey = {p.add(AUTHOR, 'bytea')}", "e")]
            else:
                keys = f"unnest({p.add(AUTHORS, 'bytea[]')}) AS x (key)"
                scans = [Scan(_EVENTS, "e.pubkey = x.key", "e", keys)]
            authors = 0
        elif kinds is not None and 1 < len(kinds) <= _KIND_SCANS:
            keys = f"unnest({p.add(sorted(kinds), 'integer[]')}) AS x (key)"
            scans, kinds = [Scan(_EVENTS, "e.kind = x.key", "e", keys)], None
        else:
            scans = [Scan(_EVENTS, TRUE, "e")]
        rest = shape._replace(ids=ids, authors=authors, kinds=kinds)
        return scans, self._conditions(rest, p, but=tag)

    def _conditions(self, shape: Shape, p: Parameters, but: int | None = None) -> list[str]:
        """The conditions of the filter besides times and this tag."""
        parts = []
        for tag, (name, _) in enumerate(shape.tags):
            if tag != but:
                found = f"e.tags && {p.add(Late('tag', tag), 'bigint[]')}"
                if name == "d" and shape.has_prefixes:
                    prefixes = f"unnest({p.add(PREFIXES, 'bytea[]')}) AS x (prefix)"
                    found = any_of(
                        [found, f"EXISTS (SELECT 1 FROM {prefixes} WHERE {_STARTS_WITH_IT})"]
                    )
                parts.append(found)
        if shape.kinds is not None:
            parts.append(_one_of_kinds("e.kind", shape.kinds, p))
        if shape.authors:
            parts.append(f"e.pubkey = ANY({p.add(AUTHORS, 'bytea[]')})")
        if shape.ids:
            parts.append(f"e.id = ANY({p.add(IDS, 'bytea[]')})")
        return parts

    def _late(
        self,
        filter_: Filter,
        now: int,
        upto: int = 0,
        size: int = 0,
        after: Place | None = None,
    ) -> Mapping[Late, Value]:
        late: dict[Late, Value] = {NOW: now, UPTO: upto, SIZE: size}
        late[SINCE], late[UNTIL] = filter_.since, filter_.until
        if after is not None:
            late[AFTER_TIME], late[AFTER_KEY], late[AFTER_SEQ] = after
        if filter_.ids is not None:
            listed = late[IDS] = _blobs(filter_.ids)
            late[ID] = listed[0] if listed else None
        if filter_.authors is not None:
            keys = late[AUTHORS] = _blobs(filter_.authors)
            late[AUTHOR] = keys[0] if keys else None
        for tag, hashes in enumerate(self._hashes.of_filter(filter_)):
            late[Late("tag", tag)] = hashes
            late[Late("only tag", tag)] = hashes[0] if hashes else None
        if filter_.d_prefixes:
            prefixes = late[PREFIXES] = [prefix.encode() for prefix in filter_.d_prefixes]
            lows = late[LOWS] = [prefix[:BEGINNING] for prefix in prefixes]
            late[HIGHS] = [following(low) for low in lows]
        return late


class _Known(Parameters):
    """Parameters of a statement that is used once: late values are bound immediately."""

    def __init__(self, late: Mapping[Late, Value] | None = None) -> None:
        super().__init__()
        self.late = late or {}
        """Late values of the filter that is being composed."""

    def add(self, value: Bound, type_: str) -> str:
        return super().add(self.late[value] if isinstance(value, Late) else value, type_)


_EVENTS: Final = "events AS e"
_TAGS: Final = "tags AS t JOIN events AS e ON e.seq = t.seq"
_STARTS_WITH_IT: Final = "substring(e.d, 1, octet_length(x.prefix)) = x.prefix"
_KEYS: Final = ("created_at", "id_key", "seq")
_ORDERED: Final = ("raw", *_KEYS)


def _likely(condition: str) -> str:
    """Makes the planner estimate half of the rows; many plain conditions together would give
    none."""
    if condition in (TRUE, FALSE):
        return condition
    return f"CASE WHEN {condition} THEN true ELSE false END"


def _hint(size: int) -> int:
    """The next power of four: few texts for all sizes."""
    return 1 << ((size - 1).bit_length() + 1) // 2 * 2


def _walk(
    scan: Scan, shape: Shape, rest: Sequence[str], columns: Sequence[str], p: Parameters
) -> str:
    """The rows of a scan, in order."""
    named = ", ".join([f"{scan.at if name in _KEYS else 'e'}.{name}" for name in columns])
    source = f"tags AS t {_looked_up('t')}" if scan.source == _TAGS else scan.source
    upto = f"{scan.at}.seq <= {p.add(UPTO, 'bigint')}"
    where = all_of([scan.start, *_times(shape, scan.at, p), upto, *rest])
    return (
        f"SELECT {named} FROM {source} WHERE {where}"
        f" ORDER BY {scan.at}.created_at DESC, {scan.at}.id_key, {scan.at}.seq"
    )


def _looked_up(by: str) -> str:
    """A join with the row of events for each row of `by`, in no other order.

    With old statistics of a small table the planner would read all events instead.
    """
    return f"CROSS JOIN LATERAL (SELECT * FROM events WHERE seq = {by}.seq OFFSET 0) AS e"


def _all_rows(scan: Scan, shape: Shape, rest: Sequence[str], named: str, p: Parameters) -> str:
    """The rows of a scan, in no order."""
    keys = f"{scan.keys} CROSS JOIN " if scan.keys else ""
    where = all_of([scan.start, *_times(shape, scan.at, p), *rest])
    return f"SELECT {named} FROM {keys}{scan.source} WHERE {where}"


def _times(shape: Shape, at: str, p: Parameters) -> list[str]:
    out = []
    if shape.has_since:
        out.append(f"{at}.created_at >= {p.add(SINCE, 'bigint')}")
    if shape.has_until:
        out.append(f"{at}.created_at <= {p.add(UNTIL, 'bigint')}")
    if shape.has_after:
        time, key, seq = [p.add(each, "bigint") for each in (AFTER_TIME, AFTER_KEY, AFTER_SEQ)]
        out.append(f"{at}.created_at <= {time}")
        out.append(
            f"({at}.created_at < {time} OR {at}.id_key > {key}"
            f" OR ({at}.id_key = {key} AND {at}.seq > {seq}))"
        )
    return out


def _by_prefixes(p: Parameters) -> Scan:
    """A scan of rows by the beginning of `d`."""
    arrays = ", ".join([p.add(late, "bytea[]") for late in (PREFIXES, LOWS, HIGHS)])
    begins = f"substring(e.d, 1, {BEGINNING})"
    start = f"e.d <> '' AND {begins} >= x.low AND {begins} < x.high AND {_STARTS_WITH_IT}"
    keys = f"unnest({arrays}) AS x (prefix, low, high)"
    return Scan(_EVENTS, start, "e", keys, finds_once=False)


def _one_of_kinds(column: str, kinds: frozenset[int], p: Parameters) -> str:
    if not kinds:
        return FALSE
    if len(kinds) == 1:
        return f"{column} = {p.add(min(kinds), 'integer')}"
    if len(kinds) <= _LISTED_KINDS:
        return f"{column} = ANY({p.add(sorted(kinds), 'integer[]')})"
    ranges: list[Range[int]] = []
    for kind in sorted(kinds):
        if ranges and ranges[-1].upper == kind:
            ranges[-1] = Range(ranges[-1].lower, kind + 1)
        else:
            ranges.append(Range(kind, kind + 1))
    return f"{column} <@ {p.add(ranges, 'int4multirange')}"


def _blobs(keys: Collection[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in sorted(keys)]
