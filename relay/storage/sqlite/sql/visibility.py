"""Visibility as a WHERE condition, equivalent to `Visibility.may_read`.

tests/property/test_reading.py compares the two.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.access.read_rules import RULE_TAGS
from relay.access.visibility import covers_groups
from relay.facts import Who
from relay.nostr.kinds import ALL_KINDS, GROUP_RECORDS, KindSet
from relay.storage.asked import asked_by_tag
from relay.storage.sqlite.kind_classes import classes_of
from relay.storage.sqlite.partitions import UNPARTITIONED
from relay.storage.sqlite.sql.conditions import (
    EVERY_PARTITION,
    TRUE,
    UNEXPIRED,
    Condition,
    all_of,
    any_of,
    has_hash,
    listed,
    mixed,
    one_of,
    partition_table,
    starts_with,
)
from relay.storage.visibility_cache import CACHED_PLANS, VisibilityCache, weight_of_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.access.read_rules import Match, ReadRule, Target
    from relay.access.visibility import Visibility
    from relay.storage.asked import Asked
    from relay.storage.hashes import Hashes

CACHED_KINDS: Final = 64
"""Conditions for a filter of more kinds are not cached: a set of 65,536 takes 5 MB."""


class Readable(NamedTuple):
    """Which rows a viewer may read by one filter."""

    condition: Condition
    """`may_read(e, filter_)` as SQL, for every row."""
    plain: Condition | None
    """A condition on `kind` and `grp` alone, true of rows that anyone may read; None: there is
    none."""


_ALL_READABLE: Final = Readable(TRUE, TRUE)


class ReadConditions:
    """Read rules as conditions on `e`, the events table, for one store.

    A store has the functions `tag_value(raw, name)`, an event's first value of a tag,
    `tag_hash(raw, name)`, its hash, `buffered_rows(hash, kinds)`, a list of the rows of these kinds
    with such a tag, in whatever partition, that the tag table may lack, and
    `has_tag(raw, name, values)`, whether it has the tag with one of these values.
    """

    def __init__(self, hashes: Hashes, index_tags: frozenset[str]) -> None:
        self._hashes = hashes
        self._indexed = index_tags | RULE_TAGS
        self._has_of = lru_cache(maxsize=32)(self._made_has)
        """Shared by all rules of a viewer, who may have 64 keys."""
        self._conditions = VisibilityCache[Readable](CACHED_PLANS, weight_of_plan)
        self._partitions = VisibilityCache[Condition](CACHED_PLANS, weight_of_plan)

    def __len__(self) -> int:
        """How many conditions are kept."""
        return len(self._conditions) + len(self._partitions)

    def readable(self, visibility: Visibility, asked: Asked) -> Readable:
        """For `asked.sometimes` the condition names the columns by0, by1, … of `f`, the found
        rows."""
        if not visibility.rules:
            return _ALL_READABLE
        kept = self._conditions.get(visibility, asked)
        if kept is not None:
            return kept
        readable = self._readable(visibility, asked)
        if asked.kinds is None or len(asked.kinds) <= CACHED_KINDS:
            self._conditions.keep(visibility, asked, readable)
        return readable

    def _readable(self, visibility: Visibility, asked: Asked) -> Readable:
        of_kinds, of_groups, others = [], [], []
        ruled: list[KindSet] = []
        kinds = None if asked.kinds is None else sorted(asked.kinds)
        for rule in visibility.rules:
            match = rule.match
            if kinds is not None and match.kinds is not None and not match.kinds.has_one_of(kinds):
                continue
            condition = self._rule(rule, visibility, asked)
            if match.kinds is not None:
                ruled.append(match.kinds)
                of_kinds.append(condition)
            elif match.h is True or isinstance(match.h, frozenset) or match.ended:
                of_groups.append(condition)
            else:
                others.append(condition)
        full = all_of([*of_kinds, *of_groups])
        plain = None
        if not of_kinds:
            plain = Condition("e.grp IS NULL") if of_groups else TRUE
        elif kinds is None:
            # Most rows are of no group and of a kind that no rule names: few comparisons decide.
            plain = all_of([Condition("e.grp IS NULL"), _outside(ruled)])
        if plain is not None:
            full = TRUE if plain == TRUE else any_of([plain, full])
        return Readable(all_of([*others, full]), None if others else plain)

    def _rule(self, rule: ReadRule, visibility: Visibility, asked: Asked) -> Condition:
        """The condition that the rule does not apply to `e`, or allows it."""
        outs = [
            self.matching(rule.match).negated().inlined(),
            *[self.matching(match).inlined() for match in rule.excepts],
        ]
        by = TRUE
        if rule.only_by in asked.sometimes:
            by = Condition(f"f.by{asked.sometimes.index(rule.only_by)}")
        elif rule.only_by is not None and rule.only_by not in asked.always:
            return any_of(outs)
        if visibility.allows_every_row(rule.readers):
            return TRUE if by == TRUE else any_of([*outs, by])
        lets = [let.condition for let in self._allowed(rule, visibility)]
        if rule.effective_target is not None:
            lets.append(
                self._target_condition(rule.effective_target, visibility)
            )  # last, as it is a subquery
        return any_of([*outs, *lets] if by == TRUE else [*outs, all_of([by, any_of(lets)])])

    def _target_condition(self, target: Target, visibility: Visibility) -> Condition:
        """The condition that `e` shares its tag with a target row that may be read."""
        unlinked = visibility.without_targets()
        asked = asked_by_tag(target.lookup_tag, target.kinds, unlinked)
        kinds = sorted(target.kinds)
        rows = all_of(
            [
                one_of("e.kind", kinds),
                UNEXPIRED,
                self._readable(unlinked, asked).condition,
            ]
        )
        # Within the subquery `e` is the target row; in its FROM it still is the outer row.
        outer = "FROM (SELECT e.raw AS raw) AS o"
        if target.d_prefix is not None:
            # Its first `d`, which only who may write such a record gives to a row of these kinds.
            # Any row may have the tag as a further one.
            return Condition(
                f"EXISTS (SELECT 1 {outer} CROSS JOIN events AS e INDEXED BY events_d"
                f" WHERE e.d > '' AND e.d = ? || tag_value(o.raw, ?) AND {rows.sql})",
                (target.d_prefix, target.tag, *rows.values),
            )
        classes = ", ".join(map(str, sorted(classes_of(target.kinds))))
        # LIMIT: without it, the hash would be computed again for each class.
        hashes = "(SELECT tag_hash(e.raw, ?) AS hash LIMIT 1)"
        if not target.kinds <= UNPARTITIONED:
            both = f"{hashes} AS v CROSS JOIN {partition_table(EVERY_PARTITION).sql} AS p"
            hashes = f"(SELECT {mixed('v.hash', 'p.value')} AS hash FROM {both})"
        return Condition(
            f"EXISTS (SELECT 1 {outer} CROSS JOIN"
            f" (SELECT y.seq AS seq FROM {hashes} AS w CROSS JOIN tags AS y"
            f" WHERE y.hash = w.hash AND y.kind_class IN ({classes})"
            " UNION ALL"
            " SELECT j.value FROM json_each(buffered_rows(tag_hash(e.raw, ?), ?)) AS j) AS k"
            f" CROSS JOIN events AS e ON e.seq = k.seq WHERE {rows.sql})",
            (target.tag, target.tag, listed(kinds), *rows.values),
        )

    def partitions(self, visibility: Visibility, kinds: frozenset[int] | None) -> Condition:
        """A query for the partitions besides 0 that have rows of these kinds (None: of any) which
        the viewer may read. Its values are known."""
        if kinds is not None and len(kinds) > CACHED_KINDS:
            kinds = None
        kept = self._partitions.get(visibility, kinds)
        if kept is not None:
            return kept
        query = self._partitions_of(visibility, kinds)
        self._partitions.keep(visibility, kinds, query)
        return query

    def _partitions_of(self, visibility: Visibility, kinds: frozenset[int] | None) -> Condition:
        sets = [_PARTITIONED]  # mostly one rule covers all, so that the query is that of any kinds
        if kinds is not None:
            sets.append(KindSet.of(*(kinds - UNPARTITIONED)))
        for wanted in sets:
            for rule in visibility.rules:
                groups = self._groups_of(rule, visibility) if covers_groups(rule, wanted) else None
                if groups is not None:
                    return Condition(
                        f"SELECT g.partition FROM ({groups.sql}) AS m CROSS JOIN groups AS g"
                        " ON g.id = m.grp WHERE g.partition IS NOT NULL",
                        groups.values,
                    )
        return EVERY_PARTITION

    def _groups_of(self, rule: ReadRule, visibility: Visibility) -> Condition | None:
        """A query for the groups with a partition whose rows alone the rule allows; None: it allows
        others."""
        if visibility.allows_every_row(rule.readers) or rule.effective_target is not None:
            return None
        queries = [_NO_GROUPS]
        for let in self._allowed(rule, visibility):
            if let.groups is None:
                return None
            queries.append(let.groups)
        values = tuple([value for query in queries for value in query.values])
        return Condition(" UNION ".join([query.sql for query in queries]), values)

    def _allowed(self, rule: ReadRule, visibility: Visibility) -> list[_Let]:
        readers = rule.readers
        keys = sorted(visibility.viewer.keys)
        blobs = [bytes.fromhex(key) for key in keys]
        out = []
        member = one_of("pubkey", blobs)
        lent = one_of("pubkey", [bytes.fromhex(key) for key in sorted(visibility.members)])
        if Who.GROUP in readers:
            out.append(_OPEN_GROUP)
            if visibility.was_insider_of:
                out.append(_in_groups("SELECT grp FROM former_members WHERE %s", member))
        if Who.VISIBLE in readers:
            out.append(_SHOWN_GROUP)
        if not keys:
            return out
        if Who.AUTHOR in readers:
            out.append(_Let(one_of("e.pubkey", blobs)))
        # Also for who is in no group: one that takes the reader in may become private meanwhile.
        if readers & {Who.INSIDER, Who.GROUP, Who.VISIBLE}:
            out.append(_in_groups("SELECT grp FROM members WHERE %s", lent))
        if Who.ADMIN in readers:
            out.append(_in_groups("SELECT grp FROM members WHERE %s AND admin = 1", member))
        if Who.RECIPIENT in readers:
            out.append(_Let(self._has("p", keys)))
        out.extend(_Let(self._with_tag(name, keys)) for name in rule.tag_readers)
        if rule.readers & visibility.global_words:  # `agent`, `member`: not rows of households
            homes = chain(*(home.keys for home in visibility.actors.households))
            out.append(_Let(_by(homes).negated()))
        for home in visibility.actors.households:
            if visibility.allows_household(readers - {Who.OWNER}, home):
                out.append(_Let(_by(home.keys)))
            elif visibility.allows_household(readers, home):
                out.append(_Let(all_of([_by(home.keys), _NO_GROUP_RECORD])))
        return out

    def matching(self, match: Match) -> Condition:
        """`match.matches(e)` as SQL."""
        parts = []
        if match.kinds is not None:
            parts.append(inside(match.kinds))
        if match.h is True:
            parts.append(Condition("e.grp IS NOT NULL"))
        elif match.h is False:
            parts.append(Condition("e.grp IS NULL"))
        elif match.h is not None:
            found = one_of("e.grp", sorted(match.h))
            parts.append(Condition(f"(e.grp IS NOT NULL AND {found.sql})", found.values))
        if match.quiet is not None:
            parts.append(Condition(f"e.quiet = {int(match.quiet)}"))
        if match.ended is not None:
            ended = "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND g.ended = 1)"
            parts.append(Condition(ended if match.ended else f"NOT {ended}"))
        if match.authors is not None:
            parts.append(one_of("e.pubkey", [bytes.fromhex(key) for key in sorted(match.authors)]))
        if match.d is not None:
            parts.append(one_of("e.d", sorted(match.d)))
        if match.d_prefixes is not None:
            parts.append(any_of([starts_with(prefix) for prefix in match.d_prefixes]))
        for name, wanted in match.tags:
            if isinstance(wanted, bool):
                has = self._with_name(name)
                parts.append(has if wanted else has.negated())
            else:
                parts.append(self._with_tag(name, sorted(wanted)))
        whole = all_of(parts)
        return Condition(f"({whole.sql})", whole.values)

    def _with_tag(self, name: str, values: Sequence[str]) -> Condition:
        if self._is_indexed(name):
            return self._has(name, values)
        return Condition("has_tag(e.raw, ?, ?)", (name, orjson.dumps(values).decode()))

    def _with_name(self, name: str) -> Condition:
        if name in RULE_TAGS:
            return has_hash([self._hashes.tag_name(name)])
        return Condition("has_tag(e.raw, ?, NULL)", (name,))

    def _is_indexed(self, name: str) -> bool:
        return name in self._indexed or (len(name) == 1 and name.isascii() and name.isalpha())

    def _has(self, name: str, values: Sequence[str]) -> Condition:
        """`e` has a tag of this name with one of these values."""
        return self._has_of(name, tuple(values))

    def _made_has(self, name: str, values: tuple[str, ...]) -> Condition:
        return has_hash([self._hashes.tag(name, value) for value in values])


_NO_GROUP_RECORD: Final = Condition(
    f"e.kind NOT BETWEEN {GROUP_RECORDS[0]} AND {GROUP_RECORDS[-1]}"
)


class _Let(NamedTuple):
    """One of the conditions under which a rule allows a row."""

    condition: Condition
    groups: Condition | None = None
    """A query for groups, if it is that the row is of one of these; perhaps without such as have no
    partition."""


def _of_groups(flags: str, source: str) -> _Let:
    return _Let(
        Condition(f"EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND {flags})"),
        Condition(f"SELECT g.id FROM {source} WHERE {flags}"),
    )


def _in_groups(query: str, members: Condition) -> _Let:
    query %= members.sql
    return _Let(Condition(f"e.grp IN ({query})", members.values), Condition(query, members.values))


_OPEN_GROUP: Final = _of_groups(
    # An open group has a partition only until its rows are moved.
    "g.guarded = 0",
    "partition_moves AS m CROSS JOIN groups AS g ON g.id = m.grp",
)
_SHOWN_GROUP: Final = _of_groups("g.hidden = 0 AND g.ended = 0", "groups AS g")
_NO_GROUPS: Final = Condition("SELECT NULL AS grp WHERE 0")
_PARTITIONED: Final = ALL_KINDS.without(UNPARTITIONED)


def _by(authors: Iterable[str]) -> Condition:
    return one_of("e.pubkey", [bytes.fromhex(key) for key in sorted(set(authors))])


def inside(kinds: KindSet) -> Condition:
    return any_of([_span(low, high) for low, high in kinds.ranges])


def _span(low: int, high: int) -> Condition:
    # Literals, since they come from policy files as integers and the planner can use them.
    if low == high:
        return Condition(f"e.kind = {low:d}")
    return Condition(f"e.kind BETWEEN {low:d} AND {high:d}")


def _outside(ruled: Iterable[KindSet]) -> Condition:
    """The kind is in none of the sets, by binary search."""
    spans = [span for kinds in ruled for span in kinds.ranges]
    return Condition(_halved(KindSet.of(*spans).ranges))


def _halved(spans: Sequence[tuple[int, int]]) -> str:
    if not spans:
        return "1"
    if len(spans) <= 2:
        return (
            "("
            + " AND ".join(
                f"e.kind <> {low}" if low == high else f"e.kind NOT BETWEEN {low} AND {high}"
                for low, high in spans
            )
            + ")"
        )
    middle = len(spans) // 2
    return (
        f"(CASE WHEN e.kind < {spans[middle][0]} THEN {_halved(spans[:middle])}"
        f" ELSE {_halved(spans[middle:])} END)"
    )
