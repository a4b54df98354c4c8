"""Scans of one index each, as parts of a query, and how several of them are merged."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.nostr.filters import BROAD_TAGS
from relay.nostr.kinds import KindSet
from relay.storage.sqlite.fts import expression, more_often
from relay.storage.sqlite.kind_classes import classes_of
from relay.storage.sqlite.sql.conditions import (
    AFTER_KEY,
    AFTER_SEQ,
    AFTER_TIME,
    AUTHOR_KEYS,
    AUTHORS,
    FALSE,
    ID_KEYS,
    IDS,
    MAX_PARAMETERS,
    MAX_PARTITIONS,
    PARTITIONS,
    SCANNED,
    SINCE,
    SIZE,
    TRUE,
    UNEXPIRED_TAG,
    UNTIL,
    BufferedRows,
    Condition,
    Late,
    all_of,
    closed_groups,
    in_partitions,
    listed,
    mixed,
    of_no_group_in,
    one_of,
    one_of_late,
    partition_table,
    scan_of,
    starts_with_any,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.filters import Filter
    from relay.nostr.nip50 import Search
    from relay.storage import Place
    from relay.storage.sqlite.sql.conditions import Bound, Partitions

_MOST_PAIRS: Final = 4_096
"""Pairs, of a hash and a class or of an author and a kind, that are looked up one by one at most;
each takes some 0.5 us."""
_FEW_CLASSES: Final = 32
"""Of more pairs with more classes, those that there are of each hash are looked up: some 340 at
most, which anybody may store in groups that many others are in."""
_SORTED_OUT: Final = "ORDER BY k.created_at DESC, k.id_key, k.seq"
_FEW: Final = 5_000
"""Rows that are few enough to be sorted; to count so many in an index takes 1 ms."""
_FEW_OF_EACH: Final = 16
"""The same for each key of a queue: to begin with a key takes as long."""
_FEW_OF_PAIR: Final = 4
"""The same for each pair of a tag and a class, however many there are."""
_MOST_KNOWN: Final = 32_768
"""Pairs that are counted, 1 us each, to tell whether their rows are few."""
_STEPS: Final = 4
"""A queue of tags begins with at most so many for each row of the page."""
_STAGES: Final = ((1, 8), (32, None))
"""Then so many newest rows of a tag are sorted for each row of the page, then the queue goes on for
so many steps, and so on."""
_BEFORE_ALL: Final = -(1 << 63)
_MOST_OF_AUTHORS: Final = 20_000
"""Rows of a filter's authors and kinds of which all are looked at, some 2 us each; rows of its tag,
of which strangers may store any number, are not."""
_NEAR: Final = 2_000
"""Newest rows of all that are looked at before each kind of each partition is; 0.1 us each."""
_LEAST_NEAR: Final = 4
_MOST_NEAR: Final = 24
"""The same for each row of a page by many authors, 0.4 us each: the more authors, the more, since
they have more of these rows, and to merge theirs takes longer: 12 ms for a page of 200 rows by 300
authors."""
_SPAN_S: Final = 3_600
"""If too few of the newest rows of all are by the authors, their own rows of so many seconds are
looked for, then of four times as many, and so on, until there are `_SPAN_ROWS` for each row of the
page."""
_SPAN_ROWS: Final = 2
_MOST_COUNTED: Final = 100_000
"""Rows of a filter's authors, of any kind, that are counted at most: that takes 10 ms."""
_FEW_SCANS: Final = 4
"""See `_are_few_of_tags`."""
_REPEATED_CHARS: Final = 12_288
"""Up to this many the other conditions are repeated in each of several scans, where an index may
decide them. SQLite takes 0.4 us to prepare a character, and nothing interrupts that."""

_MOST_NESTED: Final = 8
"""Parentheses in each other of conditions that are repeated in a nested query: SQLite before 3.46
refuses an expression that is nested too deep ("parser stack overflow")."""


class Shape(NamedTuple):
    """What the text of a query depends on besides the viewer."""

    kinds: frozenset[int] | None
    ids: int | None
    """Number of ids; None: no condition."""
    authors: int | None
    tags: tuple[tuple[str, int], ...]
    """(name, number of values) of each condition."""
    d_prefixes: tuple[str, ...]
    has_since: bool
    has_until: bool
    has_after: bool
    is_long: bool = False
    """It is known to take long, so that it may begin with what takes some 10 ms."""
    partitions: Partitions = 1
    has_expired: bool = False
    """Rows that have expired are found, too."""
    has_closed: bool = False
    """Rows of closed groups that were not moved yet are passed over in the index of kinds."""
    is_nested: bool = False
    """The query stands in another one."""

    def driving_tag(self) -> int | None:
        """Index in `tags` of the condition whose index is scanned; None: another index is."""
        if self.ids is not None:
            return None
        tags = range(len(self.tags))
        narrow = [tag for tag in tags if self.tags[tag][0] not in BROAD_TAGS]
        if narrow or self.authors is None:
            return min(narrow or tags, key=lambda tag: self.tags[tag][1], default=None)
        return None

    def may_scan_authors(self) -> bool:
        """Whether the rows of its authors are scanned instead of those of a tag, if only they are
        few. A short read does not count them."""
        return self.is_long and bool(self.authors) and self.driving_tag() is not None


def shape_of(filter_: Filter, after: Place | None = None, *, is_long: bool = False) -> Shape:
    ids, authors = filter_.ids, filter_.authors
    return Shape(
        filter_.kinds,
        None if ids is None else len(ids),
        None if authors is None else len(authors),
        tuple([(name, len(values)) for name, values in filter_.tags]),
        filter_.d_prefixes,
        filter_.since is not None,
        filter_.until is not None,
        after is not None,
        is_long,
    )


class Many(NamedTuple):
    """More keys of an index than parameters. If they have more than `_FEW` rows, some keys are
    merged at a time, so that the first rows are found without those behind them: there may be a
    million. A row that is merged takes as long as three that are sorted."""

    keys: Late
    """As JSON."""
    column: str
    among: Condition
    """On other columns of the index."""
    full: Condition
    """On the row."""


class Queue(NamedTuple):
    """Two columns at the beginning of an index, and their values, of which there may be any number.
    The first rows are found by going through all at once: the next row of each is looked up when
    the one before it is taken."""

    columns: tuple[str, str]
    keys: Condition
    """A query for the values, which may go on from its own rows, `keys`."""
    among: Condition = TRUE
    """On `p`, a row of `keys`."""

    def tables(
        self, source: str, of: str, times: Condition, since: Condition, inside: Condition
    ) -> Condition:
        """The tables `keys` and `queue`, which is read in the order of results. `times`: of the
        first row of each; `since`: of the next ones; `inside`: what else must hold of all."""
        queue = self._queue("queue", source, of, times, since, inside)
        return Condition(
            f"keys (a, b) AS ({self.keys.sql}), {queue.sql}", (*self.keys.values, *queue.values)
        )

    def in_stages(
        self, source: str, of: str, times: Condition, since: Condition, inside: Condition
    ) -> tuple[Condition, Condition]:
        """As `tables`, with more of them, and a query that reads them one after the other, perhaps
        some rows again.

        In a queue a row takes a step for each of its values, which may be hundreds. So the queue
        ends after some steps, and the newest rows are sorted, up to the n-th of the value that
        reaches it first: there each row is once, at most n of each value are read, and many rows
        that are passed over take little. Then the queue goes on behind them, and so on.
        """
        tables = [self.tables(source, of, times, since, inside)]
        reads = [f"(SELECT * FROM queue LIMIT {_STEPS} * ?)"]
        values: list[Bound] = [SIZE]
        for rows, steps in _STAGES:
            last, near, far = f"last{rows}", f"near{rows}", f"far{rows}"
            tables.append(self._newest(last, near, source, of, all_of([times, inside]), rows))
            behind = Condition(
                f"{of}.created_at <= (SELECT at FROM {last})"
                f" AND ({of}.created_at < (SELECT at FROM {last})"
                f" OR {of}.id_key > (SELECT id_key FROM {last}))"
            )
            times = all_of([behind, since])
            tables.append(self._queue(far, source, of, times, since, inside))
            reads += [near, far if steps is None else f"(SELECT * FROM {far} LIMIT {steps} * ?)"]
            values += [] if steps is None else [SIZE]
        read = " UNION ALL ".join([f"SELECT created_at, id_key, seq FROM {each}" for each in reads])
        whole = Condition(
            ", ".join([each.sql for each in tables]),
            tuple([value for each in tables for value in each.values]),
        )
        return whole, Condition(read, tuple(values))

    def _newest(
        self, last: str, near: str, source: str, of: str, inside: Condition, rows: int
    ) -> Condition:
        """The table `last`, with the place of the (`rows` * SIZE)-th row of the value that reaches
        it first, if there is one, and `near`, the rows up to there, or all."""
        a, b = self.columns
        among = self.among
        where = all_of([Condition(f"{of}.{a} = p.a AND {of}.{b} = p.b"), inside])
        nth = self._row(source, of, "p", inside, TRUE, f" OFFSET {rows} * ? - 1")
        found = (
            f"SELECT {of}.created_at, {of}.id_key, {of}.seq FROM keys AS p"
            f" CROSS JOIN {source.removeprefix('FROM ')} WHERE {where.sql} AND {among.sql}"
        )
        at, key = f"(SELECT at FROM {last})", f"(SELECT id_key FROM {last})"
        return Condition(
            f"{last} (at, id_key) AS MATERIALIZED (SELECT n.created_at, n.id_key FROM keys AS p"
            f" CROSS JOIN {self._found(of, 'p', nth.sql)} WHERE {among.sql}"
            " ORDER BY 1 DESC, 2 LIMIT 1),"
            f" {near} AS (SELECT DISTINCT created_at, id_key, seq FROM ("
            f"{found} AND {of}.created_at > coalesce({at}, {_BEFORE_ALL}) UNION ALL"
            f" {found} AND {of}.created_at = {at} AND {of}.id_key <= {key})"
            " ORDER BY 1 DESC, 2, 3 LIMIT -1)",
            (
                *(*nth.values, SIZE, *among.values),
                *(*where.values, *among.values, *where.values, *among.values),
            ),
        )

    def _queue(
        self,
        name: str,
        source: str,
        of: str,
        times: Condition,
        since: Condition,
        inside: Condition,
    ) -> Condition:
        first = self._row(source, of, "p", times, inside)
        # In two parts, so that no row of the same second is passed over again.
        behind = f"({of}.id_key, {of}.seq) > (q.id_key, q.seq)"
        same = Condition(f"{of}.created_at = q.created_at AND {behind}")
        beside = self._row(source, of, "q", same, inside)
        before = all_of([Condition(f"{of}.created_at < q.created_at"), since])
        next_ = self._row(source, of, "q", before, inside)
        if of == "t":
            following = f"(SELECT * FROM {beside.sql} UNION ALL SELECT * FROM {next_.sql} LIMIT 1)"
        else:
            following = f"coalesce({beside.sql}, {next_.sql})"
        columns = "n.created_at, n.id_key, n.seq"
        return Condition(
            f"{name} (a, b, created_at, id_key, seq) AS ("
            f"SELECT p.a, p.b, {columns} FROM keys AS p"
            f" CROSS JOIN {self._found(of, 'p', first.sql)} WHERE {self.among.sql} UNION ALL"
            f" SELECT q.a, q.b, {columns} FROM {name} AS q"
            f" CROSS JOIN {self._found(of, 'q', following)}"
            # LIMIT -1: without it, SQLite leaves out the ORDER BY of a subquery.
            " ORDER BY 3 DESC, 4, 5 LIMIT -1)",
            (*first.values, *self.among.values, *beside.values, *next_.values),
        )

    def _row(
        self,
        source: str,
        of: str,
        key: str,
        times: Condition,
        inside: Condition,
        offset: str = "",
    ) -> Condition:
        """A query for a row of these values, as `_found` takes it."""
        a, b = self.columns
        where = all_of([Condition(f"{of}.{a} = {key}.a AND {of}.{b} = {key}.b"), times, inside])
        columns = "t.created_at, t.id_key, t.seq" if of == "t" else "e.seq"
        return Condition(
            f"(SELECT {columns} {source} WHERE {where.sql}"
            f" ORDER BY {of}.created_at DESC, {of}.id_key, {of}.seq LIMIT 1{offset})",
            where.values,
        )

    def _found(self, of: str, key: str, row: str) -> str:
        """`n`, that row. The table of tags has its place; the events are on pages far apart."""
        if of != "t":
            return f"events AS n ON n.seq = {row}"
        a, b = self.columns
        values = f"n.{a} = {key}.a AND n.{b} = {key}.b"
        return f"tags AS n ON {values} AND (n.created_at, n.id_key, n.seq) = {row}"


class ManyKinds(NamedTuple):
    """More kinds, in more partitions, than are merged."""

    kinds: Sequence[int]
    partitions: Partitions
    has_closed: bool

    def queue(self) -> Queue:
        table = partition_table(self.partitions)
        keys = Condition(
            f"SELECT p.value, k.value FROM {table.sql} AS p CROSS JOIN json_each(?) AS k"
            " WHERE NOT (SELECT few FROM found)",
            (*table.values, listed(self.kinds)),
        )
        return Queue(("partition", "kind"), keys)


class ManyTags(NamedTuple):
    """More hashes with a class each than are merged. If they have more than `_FEW_OF_EACH` rows for
    each hash, they are found by a `Queue`."""

    hashes: Condition
    """A table with the column `value`."""
    classes: Sequence[int] | None
    """None: those that the table has, which are found one after the other."""
    among: Condition
    """On `p.b`, of those that are found."""
    number: int
    """How many hashes there are."""
    repeats: bool
    """They are of several tags, so a row may have more than one."""

    def queue(self) -> Queue:
        hashes = f"{self.hashes.sql} AS h"
        many = "WHERE NOT (SELECT few FROM found)"
        if self.classes is not None:
            keys = Condition(
                f"SELECT DISTINCT h.value, c.value FROM {hashes}"
                f" CROSS JOIN json_each(?) AS c {many}",
                (*self.hashes.values, listed(self.classes)),
            )
        else:
            keys = self.found_keys("keys", many)
        return Queue(("hash", "kind_class"), keys, self.among)

    def found_keys(self, name: str, where: str = "") -> Condition:
        """A query for the hashes with each class that they have, which goes on from its own rows,
        `name`; the last row of each hash has NULL."""
        class_ = "(SELECT min(t.kind_class) FROM tags AS t WHERE t.hash = {hash}{after})"
        first = class_.format(hash="h.value", after="")
        next_ = class_.format(hash="p.a", after=" AND t.kind_class > p.b")
        return Condition(
            f"SELECT DISTINCT h.value, {first} FROM {self.hashes.sql} AS h {where} UNION ALL"
            f" SELECT p.a, {next_} FROM {name} AS p WHERE p.b IS NOT NULL",
            self.hashes.values,
        )


class ManyAuthors(NamedTuple):
    """More pairs of an author and a kind than are merged."""

    number: int
    """How many authors there are."""
    kinds: Sequence[int]

    def queue(self) -> Queue:
        if self.number > MAX_PARAMETERS:
            authors = Condition("json_each(?)", (Late(AUTHOR_KEYS, 0),))
        else:
            items = tuple([Late(AUTHOR_KEYS, item) for item in range(self.number)])
            places = ",".join("?" * self.number)
            authors = Condition(f"json_each(json_array({places}))", items)
        keys = Condition(
            f"SELECT DISTINCT a.value, k.value FROM {authors.sql} AS a"
            " CROSS JOIN json_each(?) AS k WHERE NOT (SELECT few FROM found)",
            (*authors.values, listed(self.kinds)),
        )
        return Queue(("author_key", "kind"), keys)


class IndexScan(NamedTuple):
    """A FROM clause and the condition on its index."""

    source: str
    start: Condition
    times_of: str
    ordered: bool
    one: bool = False
    """The scan finds at most one row, so that nothing must be sorted."""
    many: Many | ManyKinds | ManyTags | ManyAuthors | None = None

    @property
    def keys(self) -> str:
        of = self.times_of
        return f"{of}.created_at, {of}.id_key, {of}.seq"

    def times(self, shape: Shape) -> list[Condition]:
        """The conditions on the time and, as far as the index knows, that the row has not
        expired."""
        return [self._unexpired(shape), *self._times(shape)]

    def _times(self, shape: Shape) -> list[Condition]:
        of = self.times_of
        out = []
        if shape.has_since:
            out.append(Condition(f"{of}.created_at >= ?", (SINCE,)))
        if shape.has_until:
            out.append(Condition(f"{of}.created_at <= ?", (UNTIL,)))
        if shape.has_after:
            out.append(Condition(f"{of}.created_at <= ?", (AFTER_TIME,)))
            out.append(
                Condition(
                    f"({of}.created_at < ? OR {of}.id_key > ?"
                    f" OR ({of}.id_key = ? AND {of}.seq > ?))",
                    (AFTER_TIME, AFTER_KEY, AFTER_KEY, AFTER_SEQ),
                )
            )
        return out

    def _unexpired(self, shape: Shape) -> Condition:
        return UNEXPIRED_TAG if self.times_of == "t" and not shape.has_expired else TRUE

    def in_order(self, shape: Shape, rest: Condition, columns: str) -> Condition:
        where = all_of([self.start, *self.times(shape), rest])
        a = self.times_of
        order = "" if self.one else f" ORDER BY {a}.created_at DESC, {a}.id_key, {a}.seq"
        return Condition(
            f"SELECT {columns} {self.source} WHERE {where.sql}{order} LIMIT ?",
            (*where.values, SIZE),
        )

    def first(self, shape: Shape, rest: Condition) -> Condition:
        """The places of the first `size` rows of an unordered scan."""
        if self.many is None:  # a row may be found by several of its tags
            return self.in_order(shape, rest, f"DISTINCT {self.keys}")
        if isinstance(self.many, ManyKinds):
            return self._first_of_kinds(self.many, shape, rest)
        if isinstance(self.many, ManyTags):
            return self._first_of_tags(self.many, shape, rest)
        if isinstance(self.many, ManyAuthors):
            return self._first_of_authors(self.many, shape, rest)
        return self._first_of_many(self.many, shape, rest)

    def _first_of_many(self, many: Many, shape: Shape, rest: Condition) -> Condition:
        """First sought among the newest of all rows, then among the newest of the keys' rows, which
        are sorted if they are few; else the keys are merged. The first two only if the other
        conditions are short enough to be repeated."""
        merged_ = self._merged(self.source, many, all_of([many.among, *self.times(shape)]), rest)
        is_deep = shape.is_nested and _depth(rest.sql) > _MOST_NESTED
        if is_deep or 2 * len(rest.sql) > _REPEATED_CHARS:
            return merged_._replace(sql=f"WITH found AS (SELECT 0 AS few) {merged_.sql}")
        near = _NO_NEAR
        if 3 * len(rest.sql) <= _REPEATED_CHARS:
            near = self._near(many, shape, rest)
        recent = self._recent(many, shape, rest)
        return Condition(
            f"WITH RECURSIVE {near.sql}, {recent.sql},"
            # NULL: those before it are enough, or all there are.
            " found AS MATERIALIZED (SELECT CASE WHEN (SELECT is_enough FROM near_enough) THEN NULL"
            f" ELSE coalesce((SELECT rows <= {_FEW} AND (rows < {_SPAN_ROWS} * ?"
            " OR (SELECT count(*) FROM recent) >= ?) FROM span), 1) END AS few)"
            " SELECT * FROM near WHERE (SELECT few FROM found) IS NULL"
            " UNION ALL SELECT * FROM recent WHERE (SELECT few FROM found)"
            f" UNION ALL SELECT * FROM ({merged_.sql})",
            (*near.values, *recent.values, SIZE, SIZE, *merged_.values),
        )

    def _near(self, many: Many, shape: Shape, rest: Condition) -> Condition:
        """The table `near`, rows among the newest of all, where mostly enough of them are, and
        `near_enough`, which says so, or that there are no others."""
        kinds = TRUE if shape.kinds is None else one_of("n.kind", sorted(shape.kinds))
        of_keys = Condition(f"{many.column} IN (SELECT value FROM json_each(?))", (many.keys,))
        wanted = all_of([kinds, of_keys, many.full, rest])
        times = all_of(self.times(shape))
        newest = f"{BY_TIME.source} WHERE {times.sql}"
        number = max(_LEAST_NEAR, min((shape.authors or 0) // MAX_PARAMETERS, _MOST_NEAR))
        return Condition(
            f"near AS MATERIALIZED (SELECT {self.keys} FROM (SELECT e.seq, e.kind {newest}"
            f" ORDER BY e.created_at DESC, e.id_key, e.seq LIMIT {number} * ?) AS n"
            f" CROSS JOIN events AS e ON e.seq = n.seq WHERE {wanted.sql} LIMIT ?),"
            " near_enough AS MATERIALIZED (SELECT (SELECT count(*) FROM near) >= ? OR"
            f" (SELECT 1 {newest} LIMIT 1 OFFSET {number} * ?) IS NULL AS is_enough)",
            (*times.values, SIZE, *wanted.values, SIZE, SIZE, *times.values, SIZE),
        )

    def _recent(self, many: Many, shape: Shape, rest: Condition) -> Condition:
        """The table `recent`, the first rows of the keys since a time, and `span`, which has this
        time and how many rows there are in the index. From the newest on, the time is four times as
        long ago in each step, until there are enough rows: a step takes a look-up for each key."""
        keys, column, among, full = many
        index = all_of([among, *self.times(shape)])
        of_keys = f"{column} IN (SELECT value FROM json_each(?))"
        rows = (
            f"(SELECT count(*) FROM (SELECT 1 {self.source} WHERE {of_keys} AND {index.sql}"
            f" AND e.created_at >= %s LIMIT {_FEW + 1}))"
        )
        first, next_ = f"top.at - {_SPAN_S}", "top.at - a.length * 4"
        return Condition(
            "top (at) AS MATERIALIZED (SELECT max(at) FROM (SELECT (SELECT e.created_at"
            f" {self.source} WHERE {column} = k.value AND {index.sql}"
            " ORDER BY e.created_at DESC LIMIT 1) AS at FROM json_each("
            "CASE WHEN (SELECT is_enough FROM near_enough) THEN '[]' ELSE ? END) AS k)),"
            f" ago (length, since, rows) AS (SELECT {_SPAN_S}, {first}, {rows % first} FROM top"
            " WHERE top.at IS NOT NULL UNION ALL"
            f" SELECT a.length * 4, {next_}, {rows % next_} FROM ago AS a CROSS JOIN top"
            f" WHERE a.rows < {_SPAN_ROWS} * ? AND a.since > 0),"
            " span AS MATERIALIZED (SELECT since, rows FROM ago ORDER BY length DESC LIMIT 1),"
            " recent AS MATERIALIZED (SELECT k.created_at, k.id_key, k.seq FROM"
            f" (SELECT DISTINCT {self.keys} {self.source} WHERE {column} IN (SELECT value FROM"
            f" json_each(CASE WHEN (SELECT rows <= {_FEW} FROM span) THEN ? ELSE '[]' END))"
            f" AND {index.sql} AND e.created_at >= (SELECT since FROM span)"
            " ORDER BY 1 DESC, 2, 3 LIMIT -1) AS k CROSS JOIN events AS e ON e.seq = k.seq"
            f" WHERE {full.sql} AND {rest.sql} LIMIT ?)",
            (
                *(*index.values, keys, keys, *index.values, keys, *index.values, SIZE),
                *(keys, *index.values, *full.values, *rest.values, SIZE),
            ),
        )

    def _first_of_kinds(self, many: ManyKinds, shape: Shape, rest: Condition) -> Condition:
        is_short = 4 * len(rest.sql) <= _REPEATED_CHARS and _depth(rest.sql) <= _MOST_NESTED
        inside, outside = (rest, TRUE) if is_short else (TRUE, rest)
        times = all_of(self.times(shape))
        wanted = all_of(
            [in_partitions("n.partition", many.partitions), one_of("n.kind", many.kinds), rest]
        )
        closed = Condition("")
        if many.has_closed:
            closed = closed_groups(many.partitions)
            closed = closed._replace(sql=f" closed (id) AS MATERIALIZED ({closed.sql}),")
            inside = all_of([Condition(of_no_group_in("SELECT id FROM closed")), inside])
        tables = many.queue().tables(self.source, "e", times, _since("e", shape), inside)
        return Condition(
            # First among the newest of all rows, where mostly enough of them are.
            "WITH RECURSIVE near AS MATERIALIZED (SELECT e.created_at, e.id_key, e.seq FROM"
            f" (SELECT e.seq, e.partition, e.kind {BY_TIME.source} WHERE {times.sql}"
            f" ORDER BY e.created_at DESC, e.id_key, e.seq LIMIT {_NEAR}) AS n"
            f" CROSS JOIN events AS e ON e.seq = n.seq WHERE {wanted.sql} LIMIT ?),"
            # Enough, or all there are.
            f" found AS MATERIALIZED (SELECT count(*) >= ? OR (SELECT 1 {BY_TIME.source}"
            f" WHERE {times.sql} LIMIT 1 OFFSET {_NEAR}) IS NULL AS few FROM near),{closed.sql}"
            f" {tables.sql},"
            # Materialized: else SQLite moves the order of its reader behind this LIMIT.
            " far AS MATERIALIZED (SELECT k.created_at, k.id_key, k.seq FROM queue AS k"
            f" CROSS JOIN events AS e ON e.seq = k.seq WHERE {outside.sql} LIMIT ?)"
            " SELECT * FROM near WHERE (SELECT few FROM found) UNION ALL SELECT * FROM far",
            (
                *(*times.values, *wanted.values, SIZE, SIZE, *times.values, *closed.values),
                *(*tables.values, *outside.values, SIZE),
            ),
        )

    def _first_of_tags(self, many: ManyTags, shape: Shape, rest: Condition) -> Condition:
        # Without a kind no time is looked up in the index, and there may be a million rows.
        among = TRUE if many.classes is None else all_of(self.times(shape))
        found = Condition(
            f"tags AS t WHERE {self.start.sql} AND {among.sql}",
            (*self.start.values, *among.values),
        )
        if many.classes is not None and many.number * len(many.classes) > _MOST_PAIRS:
            # Else SQLite looks at the rows of all classes.
            found = Condition(
                f"{many.hashes.sql} AS h CROSS JOIN json_each(?) AS c CROSS JOIN tags AS t"
                f" WHERE t.hash = h.value AND t.kind_class = c.value AND {among.sql}",
                (*many.hashes.values, listed(many.classes), *among.values),
            )
        queue = many.queue(), self._unexpired(shape)
        least = min(_FEW, many.number * _FEW_OF_EACH)
        if many.classes is not None:
            pairs = many.number * len(many.classes)
            few = _most(max(least, pairs * _FEW_OF_PAIR))
        else:
            known = many.found_keys("known")
            few = Condition(
                f"known (a, b) AS ({known.sql} LIMIT {_MOST_KNOWN}), most (n) AS MATERIALIZED"
                f" (SELECT max({least}, count(*) * {2 * _FEW_OF_PAIR}) FROM known)",
                known.values,
            )
        return self._first_of_pairs(found, few, *queue, shape, rest, repeats=many.repeats)

    def _first_of_authors(self, many: ManyAuthors, shape: Shape, rest: Condition) -> Condition:
        where = all_of([self.start, *self.times(shape)])
        found = Condition(f"{self.source.removeprefix('FROM ')} WHERE {where.sql}", where.values)
        pairs = many.number * len(many.kinds)
        queue = many.queue(), _HAS_AUTHOR_KIND
        full = one_of_late("e.pubkey", AUTHORS, many.number)
        rest = all_of([full, rest])
        few = _most(min(_FEW, pairs * _FEW_OF_EACH))
        return self._first_of_pairs(found, few, *queue, shape, rest)

    def _first_of_pairs(
        self,
        found: Condition,
        few: Condition,
        queue: Queue,
        inside: Condition,
        shape: Shape,
        rest: Condition,
        *,
        repeats: bool = False,
    ) -> Condition:
        """`found`: the rows of the pairs, which are sorted if they are not more than the table
        `most` says, which `few` makes. `inside`: as of `Queue`.
        `repeats`: a row may be found by several of its tags."""
        times = all_of(self._times(shape))
        of = self.times_of
        how = of, times, _since(of, shape), inside
        queued = Condition("SELECT created_at, id_key, seq FROM queue")
        if repeats:  # the tags are those of stored rows
            tables, queued = queue.in_stages("FROM tags AS t", *how)
        else:
            tables = queue.tables(self.source, *how)
        return Condition(
            f"WITH RECURSIVE {few.sql}, found AS MATERIALIZED"
            " (SELECT count(*) <= (SELECT n FROM most) AS few"
            f" FROM (SELECT 1 FROM {found.sql} LIMIT (SELECT n FROM most) + 1)), {tables.sql}"
            " SELECT DISTINCT k.created_at, k.id_key, k.seq FROM (SELECT * FROM"
            f" (SELECT DISTINCT {self.keys} FROM found AS f CROSS JOIN {found.sql}"
            f" AND f.few AND {times.sql}"
            " ORDER BY 1 DESC, 2, 3 LIMIT -1)"
            f" UNION ALL {queued.sql}) AS k"
            f" CROSS JOIN events AS e ON e.seq = k.seq WHERE {rest.sql} LIMIT ?",
            (
                *(*few.values, *found.values, *tables.values, *found.values),
                *(*times.values, *queued.values, *rest.values, SIZE),
            ),
        )

    def _merged(self, source: str, many: Many, index: Condition, rest: Condition) -> Condition:
        keys, column, _, full = many
        parts = []
        values: list[Bound] = []
        for item in range(MAX_PARAMETERS):
            one = Condition(f"{column} = json_extract(wanted.keys, '$[{item}]')")
            where = all_of([one, index])
            parts.append(f"SELECT {self.keys} {source} WHERE {where.sql}")
            values.extend(where.values)
        rest = all_of([full, rest])
        found = (
            f"SELECT p.seq FROM ({' UNION '.join(parts)} ORDER BY 1 DESC, 2, 3 LIMIT -1) AS p"
            f" CROSS JOIN events AS e ON e.seq = p.seq WHERE {rest.sql} LIMIT ?"
        )
        return Condition(
            "SELECT DISTINCT k.created_at, k.id_key, k.seq FROM"
            " (SELECT json_group_array(value) AS keys FROM json_each("
            "CASE WHEN NOT (SELECT few FROM found) THEN ? ELSE '[]' END)"
            f" GROUP BY key / {MAX_PARAMETERS}) AS wanted"
            f" CROSS JOIN events AS k ON k.seq IN ({found}) {_SORTED_OUT} LIMIT ?",
            (keys, *values, *rest.values, SIZE, SIZE),
        )


def _most(rows: int) -> Condition:
    return Condition(f"most (n) AS (SELECT {rows})")


def _since(of: str, shape: Shape) -> Condition:
    return Condition(f"{of}.created_at >= ?", (SINCE,)) if shape.has_since else TRUE


_NO_NEAR: Final = Condition(
    # Named: the columns of a UNION have the names of its first part.
    "near AS (SELECT 0 AS created_at, 0 AS id_key, 0 AS seq WHERE 0),"
    " near_enough AS (SELECT 0 AS is_enough)"
)
FROM_TAGS: Final = "FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq"
_FROM_AUTHORS: Final = "FROM events AS e INDEXED BY events_author"
_FROM_AUTHOR_KINDS: Final = "FROM events AS e INDEXED BY events_author_kind"
AUTHOR_KINDS: Final = KindSet.of(0, 3, (10000, 19999), (30000, 30077), (30102, 39999))
"""Kinds that the index events_author_kind has: those that clients look up of any author."""
_HAS_AUTHOR_KIND: Final = Condition(
    "(e.kind IN (0, 3) OR e.kind BETWEEN 10000 AND 19999"
    " OR e.kind BETWEEN 30000 AND 30077 OR e.kind BETWEEN 30102 AND 39999)"
)
"""As the index has it: SQLite looks no further."""
BY_TIME: Final = IndexScan("FROM events AS e INDEXED BY events_time", TRUE, "e", ordered=True)
"""In all partitions."""
AS_STORED: Final = IndexScan("FROM events AS e NOT INDEXED", TRUE, "e", ordered=True)
"""In the order of seq, for all rows that are sorted afterwards."""


def by_words(search: Search, kinds: Sequence[int]) -> IndexScan:
    """`kinds`: as of `expression`."""
    if not search.required:
        return IndexScan("FROM events AS e", FALSE, "e", ordered=False)
    source = "FROM search.words AS w CROSS JOIN events AS e ON e.seq = w.rowid"
    found = Condition("words MATCH ?", (expression(search, kinds),))
    return IndexScan(source, found, "e", ordered=True)


def score(search: Search, kinds: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """The sum of `Searchable.scores` over the terms, of `r`, a row of `ranks`: an expression and
    its values. `kinds`: as of `expression`."""
    parts: list[str] = []
    values: list[str] = []
    has_more = "r.seq IN (SELECT rowid FROM search.words WHERE words MATCH ?)"
    for term in search.required:
        more = more_often(search, term, kinds)
        if more is not None:
            parts.append(
                f"CASE WHEN {has_more} THEN"
                f" CASE WHEN {has_more} THEN r.frequent ELSE r.repeated END ELSE r.once END"
            )
            values += more
        else:
            parts.append("r.once")
    return " + ".join(parts), tuple(values)


def by_time(partitions: Partitions) -> IndexScan:
    """Rows of other partitions are passed over in the index."""
    return BY_TIME._replace(start=in_partitions("e.partition", partitions))


def by_kinds(
    kinds: Sequence[int], at_most: int, partitions: Partitions, *, has_closed: bool
) -> list[IndexScan]:
    source = "FROM events AS e INDEXED BY events_kind"
    open_ = TRUE
    if has_closed:
        closed = closed_groups(partitions)
        open_ = Condition(of_no_group_in(closed.sql), closed.values)
        at_most = 1  # each scan would find all of these groups again
    if not isinstance(partitions, int) or partitions * len(kinds) > at_most:
        start = all_of([in_partitions("e.partition", partitions), one_of("e.kind", kinds), open_])
        many = ManyKinds(kinds, partitions, has_closed)
        return [IndexScan(source, start, "e", ordered=False, many=many)]
    of = [Condition("e.partition = ?", (Late(PARTITIONS, item),)) for item in range(partitions)]
    if partitions == 1:
        of = [in_partitions("e.partition", 1)]
    starts = [all_of([each, one_of("e.kind", [kind]), open_]) for each in of for kind in kinds]
    return [IndexScan(source, start, "e", ordered=True) for start in starts]


def by_authors(number: int, at_most: int, kinds: Sequence[int] | None) -> list[IndexScan]:
    """The `number` authors of the filter, and these kinds, which the index has; None: any kind."""
    if 1 < number <= at_most:
        keys = [_one(AUTHOR_KEYS, AUTHORS, ("author_key", "pubkey"), n) for n in range(number)]
    else:
        keys = [_any(AUTHOR_KEYS, AUTHORS, ("author_key", "pubkey"), number)] if number else []
    of = [] if kinds is None else [one_of("e.kind", kinds)]
    is_ordered = 1 <= number <= max(1, at_most)
    many = None
    if number > MAX_PARAMETERS:
        full = one_of_late("e.pubkey", AUTHORS, number)
        many = Many(Late(AUTHOR_KEYS, 0), "e.author_key", all_of(of), full)
    return [
        IndexScan(_FROM_AUTHORS, all_of([key, *of]), "e", is_ordered, many=many) for key in keys
    ]


def has_author_scan(kinds: Sequence[int], number: int) -> bool:
    """Whether the rows of so many authors and these kinds are found by `by_authors_of_kinds`."""
    return number * len(kinds) <= _MOST_PAIRS and all(kind in AUTHOR_KINDS for kind in kinds)


def by_authors_of_kinds(number: int, at_most: int, kinds: Sequence[int]) -> list[IndexScan]:
    """The `number` authors of the filter, and these kinds, which are of AUTHOR_KINDS. No row of
    another kind is passed over: an author may have a million."""
    source, columns = _FROM_AUTHOR_KINDS, ("author_key", "pubkey")
    if number <= MAX_PARAMETERS and number * len(kinds) <= at_most:
        keys = [_one(AUTHOR_KEYS, AUTHORS, columns, n) for n in range(number)]
        of = [one_of("e.kind", [kind]) for kind in kinds]
        starts = [all_of([key, each, _HAS_AUTHOR_KIND]) for key in keys for each in of]
        return [IndexScan(source, start, "e", ordered=True) for start in starts]
    any_ = one_of_late("e.author_key", AUTHOR_KEYS, number)
    start = all_of([any_, one_of("e.kind", kinds), _HAS_AUTHOR_KIND])
    return [IndexScan(source, start, "e", ordered=False, many=ManyAuthors(number, kinds))]


def with_own(query: Condition, shape: Shape, scanned: int | None) -> Condition:
    """A query with scans of `either`: with the table `own`, which says whether the authors have few
    rows, and the tag has not. `scanned`: as of `by_tag`."""
    tag = shape.driving_tag()
    if tag is None or not shape.may_scan_authors():
        return query
    author = one_of_late("e.author_key", AUTHOR_KEYS, shape.authors or 0)
    where = all_of([author, *IndexScan(_FROM_AUTHORS, author, "e", ordered=False).times(shape)])
    kinds = None if shape.kinds is None else sorted(shape.kinds)
    of_kinds = TRUE if kinds is None else one_of("r.kind", kinds)
    many = TRUE
    # Else all of its rows may have to be passed over to count those of the kinds.
    number = shape.tags[tag][1]
    if (scanned or number) * len(kinds or ()) <= _MOST_PAIRS and not shape.d_prefixes:
        of_tag = by_tag(number, scanned, kinds, shape.partitions, in_order=False).start
        many = Condition(
            f"((SELECT 1 FROM tags AS t WHERE {of_tag.sql} LIMIT 1 OFFSET {_FEW}) IS NOT NULL"
            f" OR json_array_length(?) > {_FEW})",
            (*of_tag.values, BufferedRows(scan_of(tag), shape.kinds)),
        )
    return Condition(
        f"WITH own AS MATERIALIZED (SELECT {many.sql} AND count(*) <= {_MOST_COUNTED}"
        f" AND total({of_kinds.sql}) <= {_MOST_OF_AUTHORS} AS few FROM"
        f" (SELECT e.kind AS kind {_FROM_AUTHORS} WHERE {where.sql}"
        f" LIMIT {_MOST_COUNTED + 1}) AS r) {query.sql}",
        (*many.values, *of_kinds.values, *where.values, *query.values),
    )


def either(of_tag: Sequence[IndexScan], shape: Shape, has_tag: Condition) -> list[IndexScan]:
    """These scans, or one of the authors' rows if the table `own` says that only those are few."""
    author = one_of_late("e.author_key", AUTHOR_KEYS, shape.authors or 0)
    of_kinds = TRUE if shape.kinds is None else one_of("e.kind", sorted(shape.kinds))
    start = all_of([_asked_if("few", "own", author), of_kinds, has_tag])
    guarded = [scan._replace(start=_asked_if("NOT few", "own", scan.start)) for scan in of_tag]
    return [*guarded, IndexScan(_FROM_AUTHORS, start, "e", ordered=False)]


def _asked_if(few: str, table: str, condition: Condition) -> Condition:
    """The condition, with NULL for its values, which no row has, unless `few` is true of the table.
    SQLite tests a condition with a subquery for each row, but looks up no row for NULL."""
    value = f"(SELECT CASE WHEN {few} THEN ? END FROM {table})"
    return condition._replace(sql=condition.sql.replace("?", value))


def by_ids(number: int) -> IndexScan:
    """The `number` ids of the filter."""
    start = _any(ID_KEYS, IDS, ("id_key", "id"), number)
    one = number == 1
    return IndexScan("FROM events AS e INDEXED BY events_id", start, "e", ordered=one, one=one)


def _any(keys: int, values: int, columns: tuple[str, str], number: int) -> Condition:
    """One of the filter's values: by the integer keys in the index, and by the full values."""
    key, value = columns
    found = one_of_late(f"e.{key}", keys, number)
    return all_of([found, one_of_late(f"e.{value}", values, number)])


def _one(keys: int, values: int, columns: tuple[str, str], item: int) -> Condition:
    key, value = columns
    return Condition(f"(e.{key} = ? AND e.{value} = ?)", (Late(keys, item), Late(values, item)))


def by_pairs(list_: int, number: int) -> list[IndexScan]:
    """Rows with one of the first `number` pairs of hash and class in this list of `Arguments`."""
    return [
        IndexScan(
            FROM_TAGS,
            Condition("(t.hash = ? AND t.kind_class = ?)", (Late(list_, at), Late(list_, at + 1))),
            "t",
            ordered=True,
        )
        for at in range(0, 2 * number, 2)
    ]


def by_tag(
    number: int,
    scanned: int | None,
    kinds: Sequence[int] | None,
    partitions: Partitions,
    *,
    in_order: bool,
) -> IndexScan:
    """Rows with one of the hashes in SCANNED, of the classes of these kinds; None: of any kind.
    `scanned`: how many there are, `padded`; None: those `number` in each of the partitions, too
    many to be computed before."""
    among = TRUE
    if scanned is None:
        table = partition_table(partitions)
        hashes = Condition(
            f"(SELECT {mixed('j.value', 'p.value')} AS value"
            f" FROM json_each(?) AS j CROSS JOIN {table.sql} AS p)",
            (Late(SCANNED, 0), *table.values),
        )
        found = Condition(f"t.hash IN (SELECT value FROM {hashes.sql})", hashes.values)
    else:
        found = one_of_late("t.hash", SCANNED, scanned)
        if scanned > MAX_PARAMETERS:
            hashes = Condition("json_each(?)", (Late(SCANNED, 0),))
        else:
            items = tuple([Late(SCANNED, item) for item in range(scanned)])
            hashes = Condition(f"json_each(json_array({','.join('?' * scanned)}))", items)
    classes = None if kinds is None else sorted(classes_of(frozenset(kinds)))
    if classes is not None and (scanned or number) * len(classes) > _MOST_PAIRS:
        # SQLite does not look up each.
        found = all_of([found, one_of("+t.kind_class", classes)])
        if len(classes) > _FEW_CLASSES:
            among, classes = one_of("p.b", classes), None
    elif classes is not None:
        found = all_of([found, one_of("t.kind_class", classes)])
    return IndexScan(
        FROM_TAGS,
        found,
        "t",
        ordered=scanned == 1 and not in_order,  # then only: each row once
        many=ManyTags(hashes, classes, among, scanned or MAX_PARTITIONS * number, number > 1),
    )


def by_buffer(tag: int, kinds: frozenset[int] | None) -> IndexScan:
    """Rows of the tag buffer with this condition, of the classes of these kinds; None: of any
    kind."""
    rows = BufferedRows(scan_of(tag), kinds)
    start = Condition("e.seq IN (SELECT value FROM json_each(?))", (rows,))
    return IndexScan("FROM events AS e NOT INDEXED", start, "e", ordered=False)


def by_d_prefixes(prefixes: Sequence[str]) -> IndexScan:
    return IndexScan(
        "FROM events AS e INDEXED BY events_d",
        all_of([Condition("e.d > ''"), starts_with_any(prefixes)]),
        "e",
        ordered=False,
    )


def merged(scans: Sequence[IndexScan], shape: Shape, rest: Condition, columns: str) -> Condition:
    """The first `size` rows of several scans, in order."""
    if _are_few_of_tags(scans):
        return _first_of_keys(_merged_keys(scans, shape, TRUE), rest, columns)
    places = _places(scans, shape, rest)
    # They come in order: SQLite sorts a subquery that has a LIMIT before it takes from it.
    return Condition(
        f"SELECT {columns} FROM ({places.sql}) AS k CROSS JOIN events AS e ON e.seq = k.seq",
        places.values,
    )


def listed_seqs(scans: Sequence[IndexScan], shape: Shape, rest: Condition) -> Condition:
    """seq of the first `size` rows, in order, as one JSON list. One row instead of many: the
    sqlite3 module releases the GIL for each row that it fetches."""
    if len(scans) == 1 and scans[0].ordered:
        found = scans[0].in_order(shape, rest, "e.seq AS seq")
    else:
        found = _places(scans, shape, rest)
    return Condition(f"SELECT json_group_array(seq) FROM ({found.sql})", found.values)


def _places(scans: Sequence[IndexScan], shape: Shape, rest: Condition) -> Condition:
    """created_at, id_key and seq: each part gives its first `size`, then they are sorted."""
    ordered = [scan for scan in scans if scan.ordered]
    found = [_first_of(ordered, shape, rest)] if ordered else []
    found += [scan.first(shape, rest) for scan in scans if not scan.ordered]
    if len(ordered) == len(scans) > 0:
        return found[0]
    parts = " UNION ".join([f"SELECT * FROM ({part.sql})" for part in found])
    values = [value for part in found for value in part.values]
    return Condition(f"{parts} ORDER BY 1 DESC, 2, 3 LIMIT ?", (*values, SIZE))


def _first_of(scans: Sequence[IndexScan], shape: Shape, rest: Condition) -> Condition:
    """The first `size` rows of ordered scans, which are merged while they are read."""
    is_short = len(scans) * len(rest.sql) <= _REPEATED_CHARS and not _are_few_of_tags(scans)
    keys = _merged_keys(scans, shape, rest if is_short else TRUE)
    if is_short:
        return Condition(f"{keys.sql} ?", (*keys.values, SIZE))
    return _first_of_keys(keys, rest, "k.*")


def _are_few_of_tags(scans: Sequence[IndexScan]) -> bool:
    """Whether the scans are few, and all by tags. Then the other conditions are not repeated in
    each: nothing of them is decided in the index, and a row that they refuse is merged quickly."""
    of_tags = all(scan.ordered and scan.source == FROM_TAGS for scan in scans)
    return of_tags and len(scans) <= _FEW_SCANS


def _merged_keys(scans: Sequence[IndexScan], shape: Shape, rest: Condition) -> Condition:
    """All places, in order. Ends with LIMIT."""
    wheres = [all_of([scan.start, *scan.times(shape), rest]) for scan in scans]
    parts = []
    for scan, where in zip(scans, wheres, strict=True):
        is_in_index = rest == TRUE and scan.source == FROM_TAGS
        source = "FROM tags AS t" if is_in_index else scan.source
        parts.append(f"SELECT {scan.keys} {source} WHERE {where.sql}")
    values = [value for where in wheres for value in where.values]
    return Condition(f"{' UNION '.join(parts)} ORDER BY 1 DESC, 2, 3 LIMIT", tuple(values))


def _first_of_keys(keys: Condition, rest: Condition, columns: str) -> Condition:
    # LIMIT -1: without it, SQLite leaves out the ORDER BY of a subquery.
    return Condition(
        f"SELECT {columns} FROM ({keys.sql} -1) AS k CROSS JOIN events AS e ON e.seq = k.seq"
        f" WHERE {rest.sql} LIMIT ?",
        (*keys.values, *rest.values, SIZE),
    )


def _depth(sql: str) -> int:
    """How many parentheses are open at most; those in texts count too."""
    return max(accumulate([(char == "(") - (char == ")") for char in sql]), default=0)
