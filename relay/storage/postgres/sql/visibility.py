"""Visibility as a WHERE condition, equivalent to `Visibility.may_read`.

tests/property/test_reading.py compares the two.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from relay.facts import Who
from relay.nostr.kinds import GROUP_RECORDS, KindSet
from relay.storage.asked import asked_by_tag
from relay.storage.postgres.hashes import is_letter
from relay.storage.postgres.sql.conditions import (
    BEGINNING,
    FALSE,
    TRUE,
    all_of,
    any_of,
    has_hash,
    has_one_of,
    keys_in,
    negated,
    starts_with,
    texts_in,
)
from relay.storage.postgres.sql.parameters import Late

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.access.read_rules import Match, ReadRule, Target
    from relay.access.visibility import Visibility
    from relay.storage.asked import Asked
    from relay.storage.hashes import Hashes
    from relay.storage.postgres.sql.parameters import Parameters

_FEW_KINDS: Final = 64
"""For filters with more kinds it is not checked which of them a rule names."""
NOW: Final = Late("now")
"""Unix seconds."""


class ReadConditions:
    """Read rules as conditions on `e`, for one store."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes

    def readable(self, visibility: Visibility, asked: Asked, p: Parameters) -> str:
        """`may_read(e, filter_)`, for every row. For `asked.sometimes` it names the columns by0,
        by1, … of `f`, the found rows."""
        of_kinds, of_groups, others = [], [], []
        guarded: list[KindSet] = []
        kinds = None if asked.kinds is None else sorted(asked.kinds)
        for rule in visibility.rules:
            match = rule.match
            if kinds is not None and match.kinds is not None and not match.kinds.has_one_of(kinds):
                continue
            condition = self._rule(rule, visibility, asked, p)
            if match.kinds is not None:
                guarded.append(match.kinds)
                of_kinds.append(condition)
            elif match.h is True or isinstance(match.h, frozenset) or match.ended:
                of_groups.append(condition)
            else:
                others.append(condition)
        full = all_of([*of_kinds, *of_groups])
        if not of_kinds:
            full = any_of(["e.grp IS NULL", full]) if of_groups else TRUE
        elif kinds is None:
            # Most rows are of no group and of a kind that no rule names: few comparisons decide.
            plain = all_of(["e.grp IS NULL", negated(_inside(KindSet.of(*_spans(guarded))))])
            full = any_of([plain, full])
        return all_of([*others, full])

    def _rule(self, rule: ReadRule, visibility: Visibility, asked: Asked, p: Parameters) -> str:
        """The rule does not apply to `e`, or allows it."""
        outs = [negated(self.matching(rule.match, p, asked.kinds))]
        outs += [self.matching(match, p, asked.kinds) for match in rule.excepts]
        by = TRUE
        if rule.only_by in asked.sometimes:
            by = f"f.by{asked.sometimes.index(rule.only_by)}"
        elif rule.only_by is not None and rule.only_by not in asked.always:
            return any_of(outs)
        if visibility.allows_every_row(rule.readers):
            return TRUE if by == TRUE else any_of([*outs, by])
        lets = self._allowed(rule, visibility, p)
        if rule.effective_target is not None:  # last, as it is a subquery
            lets.append(self._target_condition(rule.effective_target, visibility, p))
        return any_of([*outs, *lets] if by == TRUE else [*outs, all_of([by, any_of(lets)])])

    def _target_condition(self, target: Target, visibility: Visibility, p: Parameters) -> str:
        """`e` shares its tag with a target row that may be read."""
        unlinked = visibility.without_targets()
        seen = self.readable(unlinked, asked_by_tag(target.lookup_tag, target.kinds, unlinked), p)
        kinds = f"= ANY({p.add(sorted(target.kinds), 'integer[]')})"
        rows = all_of([f"e.kind {kinds}", unexpired(p), seen])
        tag = p.add(target.tag, "text")
        # Within the subquery `e` is the target row; in its FROM it still is the outer row.
        if target.d_prefix is not None:  # by first `d`: any row may have the tag as a further one
            d = f"{p.add(target.d_prefix.encode(), 'bytea')} || first_tag(e.raw, {tag})"
            begins = f"substring(e.d, 1, {BEGINNING}) = substring(o.d, 1, {BEGINNING})"
            return (
                f"EXISTS (SELECT 1 FROM (SELECT {d} AS d OFFSET 0) AS o"
                f" JOIN events AS e ON {begins} AND e.d <> '' WHERE e.d = o.d AND {rows})"
            )
        key = f"tag_hash({tag}, first_tag(e.raw, {tag}))"
        return (
            f"EXISTS (SELECT 1 FROM (SELECT {key} AS hash OFFSET 0) AS o"
            f" JOIN tags AS y ON y.hash = o.hash AND y.kind {kinds}"
            f" JOIN events AS e ON e.seq = y.seq WHERE {rows})"
        )

    def _allowed(self, rule: ReadRule, visibility: Visibility, p: Parameters) -> list[str]:
        readers, keys = rule.readers, visibility.viewer.keys
        out = []
        if Who.GROUP in readers:
            out.append(_OPEN_GROUP)
            if visibility.was_insider_of:
                out.append(_group_of("former_members", keys, p))
        if Who.VISIBLE in readers:
            out.append(_SHOWN_GROUP)
        if not keys:
            return out
        if Who.AUTHOR in readers:
            out.append(keys_in("e.pubkey", keys, p))
        # Also for who is in no group: one that takes the reader in may become private meanwhile.
        if readers & {Who.INSIDER, Who.GROUP, Who.VISIBLE}:
            out.append(_group_of("members", visibility.members, p))
        if Who.ADMIN in readers:
            out.append(_group_of("members", keys, p, " AND admin"))
        if Who.RECIPIENT in readers:
            out.append(self._has("p", keys, p))
        out += [self._has(name, keys, p) for name in rule.tag_readers]
        homes = visibility.actors.households
        if readers & visibility.global_words:  # `agent`, `member`: not rows of households
            at_home = set(chain(*(home.keys for home in homes)))
            out.append(negated(keys_in("e.pubkey", at_home, p)))
        for home in homes:
            if visibility.allows_household(readers - {Who.OWNER}, home):
                out.append(keys_in("e.pubkey", home.keys, p))
            elif visibility.allows_household(readers, home):
                out.append(all_of([keys_in("e.pubkey", home.keys, p), _NO_GROUP_RECORD]))
        return out

    def matching(self, match: Match, p: Parameters, kinds: frozenset[int] | None = None) -> str:
        """`match.matches(e)`, where `e` is of one of these kinds."""
        parts = []
        if match.kinds is not None:
            parts.append(_inside(match.kinds, kinds))
        if match.h is True:
            parts.append("e.grp IS NOT NULL")
        elif match.h is False:
            parts.append("e.grp IS NULL")
        elif match.h is not None:
            parts.append(all_of(["e.grp IS NOT NULL", texts_in("e.grp", match.h)]))
        if match.quiet is not None:
            parts.append("e.quiet" if match.quiet else "NOT e.quiet")
        if match.ended is not None:
            parts.append(_ENDED_GROUP if match.ended else f"NOT {_ENDED_GROUP}")
        if match.authors is not None:
            parts.append(keys_in("e.pubkey", match.authors, p))
        if match.d is not None:
            parts.append(texts_in("e.d", match.d))
        if match.d_prefixes is not None:
            parts.append(any_of([starts_with(prefix) for prefix in match.d_prefixes]))
        for name, wanted in match.tags:
            if isinstance(wanted, bool):
                has = has_hash("e.rule_tags", [self._hashes.tag_name(name)])
                parts.append(has if wanted else negated(has))
            else:
                parts.append(has_hash(_column_of(name), self._hashed(name, wanted)))
        return all_of(parts)

    def _has(self, name: str, values: Iterable[str], p: Parameters) -> str:
        """`e` has a tag of this name with one of these values."""
        return has_one_of(_column_of(name), self._hashed(name, values), p)

    def _hashed(self, name: str, values: Iterable[str]) -> list[int]:
        return [self._hashes.tag(name, value) for value in sorted(values)]


def _column_of(name: str) -> str:
    """Where the hashes of tags of this name are."""
    return "e.tags" if is_letter(name) else "e.rule_tags"


def unexpired(p: Parameters) -> str:
    return f"(e.expires_at IS NULL OR e.expires_at > {p.add(NOW, 'bigint')})"


_NO_GROUP_RECORD: Final = f"e.kind NOT BETWEEN {GROUP_RECORDS[0]} AND {GROUP_RECORDS[-1]}"
_OPEN_GROUP: Final = "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND NOT g.guarded)"
_SHOWN_GROUP: Final = (
    "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND NOT g.hidden AND NOT g.ended)"
)
_ENDED_GROUP: Final = "EXISTS (SELECT 1 FROM groups AS g WHERE g.id = e.grp AND g.ended)"


def _group_of(table: str, keys: Iterable[str], p: Parameters, more: str = "") -> str:
    """`e` is of a group that this table has with one of these keys."""
    found = keys_in("m.pubkey", keys, p)
    return f"EXISTS (SELECT 1 FROM {table} AS m WHERE m.grp = e.grp AND {found}{more})"


def _inside(kinds: KindSet, asked: frozenset[int] | None = None) -> str:
    """Whether the kind is in the set, where it is one of those that are asked for."""
    if asked is not None and len(asked) <= _FEW_KINDS:
        inside = sum([kind in kinds for kind in asked])
        if inside in (0, len(asked)):
            return TRUE if inside else FALSE
    # Literals: they come from policy files as integers, and the planner can use them.
    alone = [low for low, high in kinds.ranges if low == high]
    parts = [f"e.kind IN ({', '.join([f'{kind:d}' for kind in alone])})"] if alone else []
    parts += [f"e.kind BETWEEN {low:d} AND {high:d}" for low, high in kinds.ranges if low != high]
    return any_of(parts)


def _spans(sets: Iterable[KindSet]) -> Sequence[tuple[int, int]]:
    return [span for kinds in sets for span in kinds.ranges]
