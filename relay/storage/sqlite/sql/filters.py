"""Filters and visibilities as SQL: which index is scanned, and the other conditions on a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from relay.nostr.filters import Filter
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from relay.storage.asked import asked_by, fulfils
from relay.storage.sqlite.fts import expression
from relay.storage.sqlite.kind_classes import classes_of, share_classes
from relay.storage.sqlite.partitions import NO_GROUPS, UNPARTITIONED
from relay.storage.sqlite.sql import recall
from relay.storage.sqlite.sql.conditions import (
    AUTHOR_KEYS,
    AUTHORS,
    EVERY_PARTITION,
    IDS,
    TAGS,
    TRUE,
    UNEXPIRED,
    UPTO,
    Arguments,
    BufferedRows,
    Condition,
    Late,
    Query,
    all_of,
    any_of,
    binding_once,
    has_tag_of,
    listed,
    one_of,
    one_of_late,
    padded,
    partition_count,
    starts_with_any,
)
from relay.storage.sqlite.sql.scans import (
    AS_STORED,
    BY_TIME,
    IndexScan,
    Shape,
    by_authors,
    by_authors_of_kinds,
    by_buffer,
    by_d_prefixes,
    by_ids,
    by_kinds,
    by_pairs,
    by_tag,
    by_time,
    by_words,
    either,
    has_author_scan,
    listed_seqs,
    merged,
    score,
    shape_of,
    with_own,
)
from relay.storage.sqlite.sql.visibility import CACHED_KINDS, ReadConditions, inside
from relay.storage.visibility_cache import CACHED_PLANS, VisibilityCache, weight_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.nostr.nip50 import Search
    from relay.storage import Place
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.sql.conditions import Bound, Tagged, Value

    PairsOf = Callable[[Sequence[int], int], Sequence[tuple[int, int]] | None]
    """Hashes of tags and classes of kinds, as many as are given, of which there are rows in the tag
    table. None: these change now."""

PLACED: Final = "e.raw, e.created_at, e.id_key, e.seq"
"""raw and `Place` of a row."""
_ITEM: Final = "e.created_at, e.id, ifnull(e.grp, '')"
_MAX_MERGED: Final = 16
"""Up to this many keys of a filter have one ordered scan each, merged; for more see `Many`."""
_MAX_PAIRS: Final = 32
"""The same of hashes of a tag with a class of kinds, and of kinds in a partition; for more see
`Queue`."""
_FEW_PAIRS: Final = 4
_KIND_SCANS: Final = 128
"""For a filter of more kinds rows are scanned by time, and those of other kinds passed over."""
_KINDS_APART: Final = 32
"""Up to this many kinds of a search are sought in the text index, and have a condition each."""
_CACHED_PREFIXES: Final = 16
_CACHED_PREFIX_CHARS: Final = 1024
"""A plan with more of them is not cached: it has them several times."""


class Plan:
    """A query whose late values are not bound yet."""

    __slots__ = ("_buffered", "_fixed_hashes", "_late", "_late_rows", "sql", "values")

    def __init__(self, condition: Condition) -> None:
        self.sql, self.values = binding_once(*condition)
        values = self.values
        self._late_rows: list[tuple[BufferedRows, int]] = []
        self._late = [
            (at, value.list, value.item)
            for at, value in enumerate(values)
            if isinstance(value, Late)
        ]
        self._buffered: list[tuple[BufferedRows, int]] = []
        """Conditions on rows of the tag buffer, and the positions of their values. Mostly there are
        no such rows."""
        fixed: set[int] = set()
        for at, value in enumerate(values):
            if isinstance(value, BufferedRows):
                if isinstance(value.hashes, int):
                    self._late_rows.append((value, at))
                else:
                    self._buffered.append((value, at))
                    fixed.update(value.hashes)
                    values[at] = "[]"
        self._fixed_hashes = frozenset(fixed)

    @property
    def parts(self) -> Sequence[object]:
        """All that is kept of it."""
        late = self._late, self._late_rows
        return self.sql, self.values, self._buffered, self._fixed_hashes, *late

    def bound(self, arguments: Arguments) -> Query:
        values = self.values.copy()
        lists = arguments.lists
        for at, list_, item in self._late:
            values[at] = lists[list_][item]
        for rows, at in self._late_rows:
            values[at] = arguments.rows(rows)
        if self._fixed_hashes and arguments.buffer.has_any(self._fixed_hashes):
            for rows, at in self._buffered:
                values[at] = arguments.rows(rows)
        return Query(self.sql, values)  # type: ignore[arg-type]  # nothing late is left


class _LookedUp(NamedTuple):
    """How rows are found by a tag."""

    tag: int | None
    """The condition whose index is scanned; None: another index is."""
    pairs: int | None
    """Number of hashes with a class each, in order; None: they are too many, or no order is
    needed."""
    scans_buffer: bool
    """The tag buffer has rows for it."""
    scanned: int | None
    """As of `by_tag`."""


_NO_TAG: Final = _LookedUp(None, None, scans_buffer=False, scanned=None)


class _Matching(NamedTuple):
    """How the rows that match a filter are found."""

    arguments: Arguments
    shape: Shape
    scans: Sequence[IndexScan]
    rest: Condition
    scanned: int | None
    """As of `by_tag`."""


class Compiler:
    """Makes queries for the tables of one store; `e` is always the events table.

    `partitions`: those besides 0 that have rows which the viewer may read; None: the query finds
    them itself, and looks up no classes of tags before it runs.
    """

    def __init__(
        self,
        hashes: Hashes,
        index_tags: frozenset[str],
        buffer: Tagged,
        pairs_of: PairsOf,
        closed: Callable[[], str],
    ) -> None:
        """`closed`: as `PartitionMoves.closed`."""
        self._hashes = hashes
        self._buffer = buffer
        self._pairs_of = pairs_of
        self._closed = closed
        self._reading = ReadConditions(hashes, index_tags)
        self._plans = VisibilityCache[Plan](CACHED_PLANS, lambda plan: weight_of_plan(*plan.parts))

    @property
    def kept(self) -> int:
        """How many plans and conditions are kept."""
        return len(self._plans) + len(self._reading)

    def page(
        self,
        query: PageQuery,
        columns: str | None,
        partitions: frozenset[int] | None = None,
        *,
        is_long: bool = False,
    ) -> Query:
        """The next rows in order. `columns` are of `e`, the events table; None: one row, that has a
        JSON list of their seqs. `is_long`: see `Shape`."""
        filter_, visibility, limit, upto, now, size, after, *_ = query
        shape, arguments = self._asked(
            filter_,
            visibility,
            partitions,
            now=now,
            upto=upto,
            size=min(size, limit),
            after=after,
            is_long=is_long,
        )
        if columns == _ITEM:
            shape = shape._replace(is_nested=True)
        has_classes = partitions is not None
        looked_up = self._looked_up(shape, arguments, in_order=True, has_classes=has_classes)
        asked = shape, columns, looked_up
        plan = self._plans.get(visibility, asked)
        if plan is None:
            plan = Plan(self._page(shape, filter_, visibility, columns, looked_up))
            if _is_small(filter_):
                self._plans.keep(visibility, asked, plan)
        return plan.bound(arguments)

    def _page(
        self,
        shape: Shape,
        filter_: Filter,
        visibility: Visibility,
        columns: str | None,
        looked_up: _LookedUp,
    ) -> Condition:
        scans, rest = self._scans(shape, looked_up, in_order=True)
        rest = all_of(
            [
                rest,
                Condition("e.seq <= ?", (UPTO,)),
                UNEXPIRED,
                self.visible(visibility, filter_),
            ]
        )
        scanned = looked_up.scanned
        if columns is None:
            return with_own(listed_seqs(scans, shape, rest), shape, scanned)
        if len(scans) == 1 and scans[0].ordered:
            return scans[0].in_order(shape, rest, columns)
        return with_own(merged(scans, shape, rest, columns), shape, scanned)

    def matching_seqs(self, filter_: Filter) -> Condition:
        """A query: seq of the rows that match the filter, expired ones too."""
        shape, arguments = self._asked(filter_, None, None)
        scans, rest = self._scans(shape, self._looked_up(shape, arguments))
        if not scans:  # no authors at all
            return Condition("SELECT e.seq AS seq FROM events AS e WHERE 0")
        wheres = [all_of([scan.start, *scan.times(shape), rest]) for scan in scans]
        parts = [
            f"SELECT e.seq AS seq {scan.source} WHERE {where.sql}"
            for scan, where in zip(scans, wheres, strict=True)
        ]
        # A row may be found by several of its tags, and in the tag buffer.
        is_once = len(scans) == 1 and scans[0].ordered
        sql = parts[0] if is_once else f"SELECT DISTINCT seq FROM ({' UNION ALL '.join(parts)})"
        values = [arguments.value(value) for where in wheres for value in where.values]
        return Condition(sql, tuple(values))

    def partitions(self, visibility: Visibility, kinds: frozenset[int] | None) -> Condition:
        """As of `ReadConditions`."""
        return self._reading.partitions(visibility, kinds)

    def matching(self, match: Match) -> Condition:
        """`match.matches(e)` as SQL."""
        return self._reading.matching(match)

    def query(self, sql: str, values: tuple[Bound, ...]) -> Query:
        """The query for conditions that `matching` and `matching_seqs` returned."""
        return Plan(Condition(sql, values)).bound(self._arguments(Filter()))

    def _arguments(self, filter_: Filter, now: int = 0, upto: int = 0) -> Arguments:
        return Arguments(filter_, self._hashes, self._buffer.snapshot(), now=now, upto=upto)

    def count(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        partitions: frozenset[int] | None = None,
        *,
        now: int,
        is_long: bool = False,
    ) -> Query:
        """One number: rows that match any of the filters."""
        if len(filters) == 1:
            counted = self._count_in_index(filters[0], visibility, partitions, now)
            if counted is not None:
                return counted
        sql, values = self._found(filters, visibility, partitions, now, is_long=is_long)
        return Query(f"SELECT count(*) FROM ({sql})", values)

    def _count_in_index(
        self,
        filter_: Filter,
        visibility: Visibility,
        partitions: frozenset[int] | None,
        now: int,
    ) -> Query | None:
        """A count that is index-only for rows that anyone may read; None: not possible.

        Fetching a row takes fifty times as long as skipping it in the index. Authors are
        distinguished only by the first 8 bytes of their keys.
        """
        condition, plain = self._reading.readable(visibility, asked_by([filter_], visibility))
        named = filter_.ids is not None or filter_.tags or filter_.search is not None
        if plain is None or named or (filter_.authors is None and filter_.kinds is None):
            return None
        shape, arguments = self._asked(filter_, visibility, partitions, now=now)
        (scan,), rest = self._scans(shape, _NO_TAG)
        if scan.source == BY_TIME.source:
            return None
        of = [UNEXPIRED]
        of += scan.times(shape)
        if shape.authors is None:
            of.append(scan.start)
        else:
            of.append(one_of_late("e.author_key", AUTHOR_KEYS, shape.authors))
            if filter_.kinds is not None:
                of.append(one_of("e.kind", sorted(filter_.kinds)))
        in_index = all_of([*of, plain])
        in_table = all_of([*of, plain.negated(), scan.start, rest, condition])
        counts = [f"(SELECT count(*) {scan.source} WHERE {it.sql})" for it in (in_index, in_table)]
        whole = Condition(f"SELECT {' + '.join(counts)}", (*in_index.values, *in_table.values))
        return Plan(whole).bound(arguments)

    def authors(
        self,
        filter_: Filter,
        visibility: Visibility,
        partitions: frozenset[int] | None = None,
        *,
        now: int,
        at_most: int,
        is_long: bool = False,
    ) -> Query:
        """Distinct public keys of the rows that `count` counts."""
        sql, values = self._found([filter_], visibility, partitions, now, is_long=is_long)
        return Query(
            f"SELECT DISTINCT e.pubkey FROM ({sql}) AS k"
            " CROSS JOIN events AS e ON e.seq = k.seq LIMIT ?",
            (*values, at_most),
        )

    def _found(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        partitions: frozenset[int] | None,
        now: int,
        *,
        is_long: bool,
    ) -> Query:
        """Distinct seq of the rows that match any of the filters."""
        asked = asked_by(filters, visibility)
        may_read = self._reading.readable(visibility, asked).condition
        matching = [
            self._scans_to_count(filter_, visibility, partitions, now, is_long=is_long)
            for filter_ in filters
        ]
        # The condition of visibility is most of the text, and is written once.
        is_inside = len(matching) == 1 and len(matching[0].scans) == 1
        parts = []
        bound: list[Value] = []
        for filter_, found in zip(filters, matching, strict=True):
            arguments, shape, scans, beside, scanned = found
            rest = all_of([beside, UNEXPIRED, may_read if is_inside else TRUE])
            fulfilled = fulfils(filter_, asked) if may_read != TRUE else ()
            by = [f", {is_by:d} AS by{n}" for n, is_by in enumerate(fulfilled)]
            selects: list[str] = []
            values: list[Bound] = []
            for scan in scans:
                where = all_of([scan.start, *scan.times(shape), rest])
                once = "" if scan.ordered else "DISTINCT "
                columns = f"{once}e.seq AS seq{''.join(by)}"
                selects.append(f"SELECT {columns} {scan.source} WHERE {where.sql}")
                values += where.values
            whole = Condition(" UNION ".join(selects), tuple(values))
            if shape.may_scan_authors():  # in a subquery, since there may be one for each filter
                whole = with_own(whole, shape, scanned)
                selects = [f"SELECT * FROM ({whole.sql})"]
            parts += selects
            bound += [arguments.value(value) for value in whole.values]
        sql = " UNION ".join(parts)
        if not is_inside and may_read != TRUE:
            bound += [matching[0].arguments.value(value) for value in may_read.values]
            once = "DISTINCT " if asked.sometimes else ""
            sql = (
                f"SELECT {once}e.seq AS seq FROM ({sql}) AS f"
                f" CROSS JOIN events AS e ON e.seq = f.seq WHERE {may_read.sql}"
            )
        return Query(*binding_once(sql, bound))  # type: ignore[arg-type]  # as they were given

    def _scans_to_count(
        self,
        filter_: Filter,
        visibility: Visibility,
        partitions: frozenset[int] | None,
        now: int,
        *,
        is_long: bool,
    ) -> _Matching:
        shape, arguments = self._asked(filter_, visibility, partitions, now=now, is_long=is_long)
        search = filter_.sought
        if search is None:
            looked_up = self._looked_up(shape, arguments)
            scans = self._scans(shape, looked_up)
            return _Matching(arguments, shape, *scans, looked_up.scanned)
        rest = self._conditions(shape)
        words = [by_words(search, _few_kinds(filter_))]
        return _Matching(arguments, shape._replace(is_long=False), words, rest, None)

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
        """seq of the best `limit` rows, best first. The text index is attached as `search`.

        All matches are ordered within the index; then rows are looked up one by one until there are
        enough. No statistics over all texts are used: they would reveal hidden rows.
        """
        shape = shape_of(filter_)
        rest = self._beside_words(shape, filter_, visibility)
        arguments = self._arguments(filter_, now)
        kinds = _few_kinds(filter_)
        scored, values = score(search, kinds)
        best = (
            f"SELECT r.seq AS seq, {scored} AS score"
            " FROM search.words AS w CROSS JOIN search.ranks AS r ON r.seq = w.rowid"
            " WHERE words MATCH ? AND r.seq <= ?"
            " ORDER BY score DESC, r.created_at DESC, r.id_key, r.seq LIMIT -1"
        )
        whole = Condition(
            f"SELECT e.seq FROM ({best}) AS k CROSS JOIN events AS e ON e.seq = k.seq"
            f" WHERE {rest.sql} LIMIT ?",
            (*values, expression(search, kinds), upto, *rest.values, limit),
        )
        return Plan(whole).bound(arguments)

    def recall(
        self, filter_: Filter, visibility: Visibility, *, upto: int, now: int
    ) -> recall.Asked:
        def readable(shape: Shape) -> Condition:
            rest = self._beside_words(shape, filter_, visibility)
            return Condition(recall.READABLE % rest.sql, (UPTO, *rest.values))

        def checked(shape: Shape) -> Condition:
            rest = self._beside_words(shape, filter_, visibility)
            guided = [rule.match for rule in visibility.rules if rule.effective_target]
            others = [self.matching(match).negated() for match in guided]
            lasts = all_of([Condition("e.expires_at IS NULL"), *others])
            return Condition(
                recall.CHECKED % (lasts.sql, rest.sql), (None, *lasts.values, *rest.values)
            )

        arguments = self._arguments(filter_, now, upto)
        made = (("recall", readable), ("checked", checked))
        plans = [self._plan(name, filter_, visibility, make) for name, make in made]
        queries = [plan.bound(arguments) for plan in plans]
        return recall.Asked(upto, _few_kinds(filter_), *queries)

    def readable(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
    ) -> Query:
        """The first `limit` of these rows that match the rest of a search, in their order."""

        def made(shape: Shape) -> Condition:
            rest = self._beside_words(shape, filter_, visibility)
            return Condition(
                "SELECT e.seq FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value"
                f" WHERE e.seq <= ? AND {rest.sql} ORDER BY j.key LIMIT ?",
                (None, UPTO, *rest.values),
            )

        plan = self._plan("readable", filter_, visibility, made)
        sql, (_, *values) = plan.bound(self._arguments(filter_, now, upto))
        return Query(sql, [listed(seqs), *values, limit])

    def _plan(
        self,
        name: str,
        filter_: Filter,
        visibility: Visibility,
        made: Callable[[Shape], Condition],
    ) -> Plan:
        """The cached plan of this name, else the one that `made` returns."""
        shape = shape_of(filter_)
        plan = self._plans.get(visibility, (name, shape))
        if plan is not None:
            return plan
        plan = Plan(made(shape))
        if _is_small(filter_):
            self._plans.keep(visibility, (name, shape), plan)
        return plan

    def _beside_words(self, shape: Shape, filter_: Filter, visibility: Visibility) -> Condition:
        of_kinds = None
        if kinds := _few_kinds(filter_):
            of_kinds = self._visible_by_kind(kinds, visibility, filter_)
            shape = shape._replace(kinds=None)
        return all_of(
            [
                self._conditions(shape),
                *BY_TIME.times(shape),
                UNEXPIRED,
                self.visible(visibility, filter_) if of_kinds is None else of_kinds,
            ]
        )

    def _visible_by_kind(
        self, kinds: Sequence[int], visibility: Visibility, filter_: Filter
    ) -> Condition:
        """Rows of one of these kinds that are visible. For each kind only its own read rules are
        checked, which halves the time per row."""
        alike: dict[Condition, list[int]] = {}
        bare = replace(filter_, search=None)  # else it would be parsed again for each kind
        for kind in kinds:
            of_one = replace(bare, kinds=frozenset({kind}))
            alike.setdefault(self.visible(visibility, of_one), []).append(kind)
        # Not `IN` and not CASE: SQLite would build the list for each row, and evaluate all
        # conditions.
        return any_of([all_of([inside(KindSet.of(*some)), seen]) for seen, some in alike.items()])

    def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> Query:
        """raw, created_at, id_key and seq of these rows, in the order given."""

        def made(_: Shape) -> Condition:
            rest = all_of([UNEXPIRED, self.visible(visibility, filter_)])
            return Condition(
                f"SELECT {PLACED} FROM json_each(?) AS j"
                " CROSS JOIN events AS e ON e.seq = j.value"
                f" WHERE {rest.sql}",
                (None, *rest.values),
            )

        # In the order of the list without ORDER BY: to sort them, SQLite copies all their texts.
        plan = self._plan("rows", filter_, visibility, made)
        sql, (_, *values) = plan.bound(self._arguments(Filter(), now))
        return Query(sql, [listed(seqs), *values])

    def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        partitions: frozenset[int] | None = None,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Query:
        """created_at, id and group of `at_most` rows of the newest `limit`, ascending by the first
        two; the group is empty for none."""
        if limit is not None:
            newest = PageQuery(filter_, visibility, limit, upto, now, size=at_most)
            sql, known = self.page(newest, _ITEM, partitions, is_long=True)
        else:
            sql, known = self._all_items(
                filter_, visibility, partitions, upto=upto, now=now, at_most=at_most
            )
        # Else SQLite moves the order into a query that ends with a LIMIT. All rows would take twice
        # the memory.
        once = "" if limit is None else "MATERIALIZED "
        return Query(f"WITH found AS {once}({sql}) SELECT * FROM found ORDER BY 1, 2", known)

    def _all_items(
        self,
        filter_: Filter,
        visibility: Visibility,
        partitions: frozenset[int] | None,
        *,
        upto: int,
        now: int,
        at_most: int,
    ) -> Query:
        shape, arguments = self._asked(
            filter_, visibility, partitions, now=now, upto=upto, is_long=True
        )
        looked_up = self._looked_up(shape, arguments)
        scans, rest = self._scans(shape, looked_up)
        if (
            [scan.source for scan in scans] == [BY_TIME.source]
            and filter_.since is None
            and filter_.until is None
        ):
            scans = [AS_STORED]
        rest = all_of(
            [
                rest,
                Condition("e.seq <= ?", (UPTO,)),
                UNEXPIRED,
                self.visible(visibility, filter_),
            ]
        )
        parts = []
        values: list[Bound] = []
        for scan in scans:
            where = all_of([scan.start, *scan.times(shape), rest])
            parts.append(f"SELECT {_ITEM} {scan.source} WHERE {where.sql}")
            values.extend(where.values)
        # A row may be found by several of its tags.
        once = "" if len(scans) == 1 and scans[0].ordered else "DISTINCT "
        parts_ = Condition(" UNION ALL ".join(parts), tuple(values))
        found = with_own(parts_, shape, looked_up.scanned)
        sql = f"SELECT {once}* FROM ({found.sql}) LIMIT ?"
        return Plan(Condition(sql, (*found.values, at_most))).bound(arguments)

    # -- which index is scanned -----------------------------------------------------------------

    def _asked(
        self,
        filter_: Filter,
        visibility: Visibility | None,
        partitions: frozenset[int] | None,
        *,
        now: int = 0,
        upto: int = 0,
        size: int = 0,
        after: Place | None = None,
        is_long: bool = False,
    ) -> tuple[Shape, Arguments]:
        """`visibility`: None: all is found, also what has expired."""
        shape = shape_of(filter_, after, is_long=is_long)
        closed = self._closed()
        reached = self._reached(shape, filter_, partitions)
        if reached is not None:
            if len(reached) > 1:
                shape = shape._replace(partitions=partition_count(reached))
        elif visibility is not None:
            query = self._reading.partitions(visibility, filter_.kinds)
            shape = shape._replace(partitions=query)
        else:
            shape = shape._replace(partitions=EVERY_PARTITION)
        if visibility is None:
            shape = shape._replace(has_expired=True)
        if closed != NO_GROUPS and _passes_over_closed(shape):
            shape = shape._replace(has_closed=True)
        arguments = Arguments(
            filter_,
            self._hashes,
            self._buffer.snapshot(),
            now=now,
            upto=upto,
            size=size,
            after=after,
            partitions=reached,
            closed=closed,
        )
        return shape, arguments

    def _reached(
        self, shape: Shape, filter_: Filter, partitions: frozenset[int] | None
    ) -> Sequence[int] | None:
        """The partitions that the scan looks into; None: those that the query finds."""
        kinds = shape.kinds
        if shape.ids is not None or (kinds is not None and kinds <= UNPARTITIONED):
            return (0,)
        if shape.authors is not None and shape.driving_tag() is None:
            return (0,)  # the index of authors has no partitions
        if partitions is not None and not partitions:
            return (0,)
        groups = filter_.tag_values("h")
        if groups is not None:
            named = frozenset(map(self._hashes.partition, groups))
            partitions = named if partitions is None else named & partitions
        return None if partitions is None else (0, *partitions)

    def _looked_up(
        self,
        shape: Shape,
        arguments: Arguments,
        *,
        in_order: bool = False,
        has_classes: bool = False,
    ) -> _LookedUp:
        """Adds the pairs to `arguments`, if they are few. The snapshot of the buffer in these is
        older than the pairs: a row that has left the buffer since is in the table. `has_classes`:
        classes may be looked up."""
        tag, kinds = shape.driving_tag(), shape.kinds
        if tag is None:
            return _NO_TAG
        hashes = arguments.scan(tag)
        scans_buffer = bool(arguments.buffered(tag, kinds))
        if hashes is None:
            return _LookedUp(tag, None, scans_buffer, None)
        pairs: Sequence[tuple[int, int]] | None = None
        product = _MAX_PAIRS + 1 if kinds is None else len(hashes) * len(kinds)
        # To merge scans without rows takes longer than to look up which classes there are.
        if has_classes and product > _FEW_PAIRS and len(hashes) <= _MAX_PAIRS:
            pairs = self._pairs_of(hashes, _MAX_PAIRS + 1)
            if pairs is None or len(pairs) > _MAX_PAIRS:
                pairs = None
            elif kinds is not None:
                classes = classes_of(kinds)
                pairs = [pair for pair in pairs if pair[1] in classes]
        if in_order and pairs is None and kinds is not None and product <= _MAX_PAIRS:
            pairs = [(hash_, class_) for hash_ in hashes for class_ in classes_of(kinds)]
        if pairs is None:
            return _LookedUp(tag, None, scans_buffer, padded(len(hashes)))
        number = max(len(pairs), 1)
        if number > _FEW_PAIRS:
            number = (number + 3) & ~3  # so that there are few texts
        arguments.add_pairs(pairs, number)
        scanned = padded(len(hashes)) if shape.may_scan_authors() else 0
        return _LookedUp(tag, number, scans_buffer, scanned)

    def _scans(
        self, shape: Shape, looked_up: _LookedUp, *, in_order: bool = False
    ) -> tuple[list[IndexScan], Condition]:
        """The scans that find candidates, and what else must hold of them. Chosen by fixed rules.

        In order, some keys have one ordered scan each; more keys have one scan for all of them.
        """
        at_most = _MAX_MERGED if in_order else 1
        authors, kinds = shape.authors, shape.kinds
        sorted_kinds = None if kinds is None else sorted(kinds)
        rest: list[Condition] = []
        scans: list[IndexScan]
        tag = looked_up.tag
        if shape.ids is not None:
            scans = [by_ids(shape.ids)]
        elif tag is not None:
            name, number = shape.tags[tag]
            if looked_up.pairs is not None:
                scans = by_pairs(TAGS + len(shape.tags), looked_up.pairs)
            else:
                of = number, looked_up.scanned, sorted_kinds, shape.partitions
                scans = [by_tag(*of, in_order=in_order)]
            if looked_up.scans_buffer:
                scans.append(by_buffer(tag, kinds))
            if name == "d" and shape.d_prefixes:
                scans.append(by_d_prefixes(shape.d_prefixes))
            elif kinds is not None and not share_classes(kinds):
                kinds = None
            if shape.may_scan_authors():
                scans = either(scans, shape, _tag_holds(shape, tag))
        elif authors is not None:
            if in_order and sorted_kinds and has_author_scan(sorted_kinds, authors):
                scans = by_authors_of_kinds(authors, _MAX_PAIRS, sorted_kinds)
            else:
                scans = by_authors(authors, at_most, sorted_kinds)
            authors = kinds = None
        elif kinds is not None and len(kinds) <= _KIND_SCANS:
            most = _MAX_PAIRS if in_order and len(kinds) <= _MAX_MERGED else 1
            scans = by_kinds(sorted(kinds), most, shape.partitions, has_closed=shape.has_closed)
            kinds = None
        else:
            scans = [by_time(shape.partitions)]
        if kinds is not None:
            rest.append(one_of("e.kind", sorted(kinds)))
        if authors is not None:
            rest.append(one_of_late("e.pubkey", AUTHORS, authors))
        rest += [_tag_holds(shape, other) for other in range(len(shape.tags)) if other != tag]
        return scans, all_of(rest)

    def _conditions(self, shape: Shape) -> Condition:
        """The whole filter except its times, for candidates that another index found."""
        parts = [_tag_holds(shape, tag) for tag in range(len(shape.tags))]
        if shape.kinds is not None:
            parts.append(one_of("e.kind", sorted(shape.kinds)))
        if shape.authors is not None:
            parts.append(one_of_late("e.pubkey", AUTHORS, shape.authors))
        if shape.ids is not None:
            parts.append(one_of_late("e.id", IDS, shape.ids))
        return all_of(parts)

    def visible(self, visibility: Visibility, filter_: Filter) -> Condition:
        """`may_read(e, filter_)` as SQL."""
        return self._reading.readable(visibility, asked_by([filter_], visibility)).condition


def _passes_over_closed(shape: Shape) -> bool:
    """Whether rows are scanned by kinds, of which only members read any in a group of CLOSED."""
    others = shape.ids, shape.authors, shape.driving_tag()
    return (
        shape.kinds is not None
        and others == (None, None, None)
        and shape.partitions != EVERY_PARTITION
        and shape.kinds.isdisjoint(UNPARTITIONED)
    )


def _few_kinds(filter_: Filter) -> Sequence[int]:
    """The kinds of a search; none: it has too many, or is for all kinds."""
    kinds = filter_.kinds
    return () if kinds is None or len(kinds) > _KINDS_APART else sorted(kinds)


def _is_small(filter_: Filter) -> bool:
    """Whether a plan with these kinds and prefixes in its text is small enough to be cached."""
    prefixes = filter_.d_prefixes
    return (filter_.kinds is None or len(filter_.kinds) <= CACHED_KINDS) and (
        not prefixes
        or (len(prefixes) <= _CACHED_PREFIXES and sum(map(len, prefixes)) <= _CACHED_PREFIX_CHARS)
    )


def _tag_holds(shape: Shape, tag: int) -> Condition:
    name, number = shape.tags[tag]
    known = shape.kinds is not None and not share_classes(shape.kinds)
    found = has_tag_of(TAGS + tag, name, number, known=known)
    if name == "d" and shape.d_prefixes:
        return any_of([found, starts_with_any(shape.d_prefixes)])
    return found
