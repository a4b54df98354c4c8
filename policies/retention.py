"""`[[retention]]` and the ages of memory records: which rows a sweep removes and which it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from relay.access.read_rules import Match
from relay.lifecycle.retention import (
    MaxAge,
    MaxAmount,
    NeverBefore,
    Scope,
    SweepRule,
    SweepRules,
    never_swept,
)
from relay.lifecycle.rows import UpTo
from relay.lifecycle.versions import History, HistoryRule
from relay.nostr.kinds import KindSet
from relay.toml.fields import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.write_rule import Place
    from relay.memory.registry import AgedRecords, MemorySystems
    from relay.toml.fields import Table

HISTORY_KEYS: Final = ("count", "days")
MAX_OLD_VERSIONS: Final = 1000
"""Of one record, because a request for its history reads them all."""
MAX_OLD_DAYS: Final = 999_999_999
"""The time at which an old version is deleted is stored, in 64 bits: it must fit."""
COUNT_KEYS: Final = ("per", "max")
NEVER_BEFORE_KEYS: Final = ("kinds", "same", "up_to")
_SAME: Final = ("author", "group", "hk", "d")


@dataclass(frozen=True, slots=True)
class RetentionEffect:
    """What one `[[retention]]` removes, and what it keeps."""

    rules: tuple[SweepRule, ...] = ()
    never: Match | None = None
    waiting: tuple[Match, NeverBefore] | None = None

    def for_rows(self, match: Match) -> RetentionEffect:
        """The same for other rows."""
        return RetentionEffect(
            tuple([replace(rule, match=match) for rule in self.rules]),
            None if self.never is None else match,
            None if self.waiting is None else (match, self.waiting[1]),
        )


def effect_from(
    table: Table, place: Place, match: Match, systems: MemorySystems
) -> RetentionEffect:
    """The effect of a retention rule on rows that `match`."""
    where = f"{place.file}:{place.line}"
    rules = [SweepRule(place.name, where, match, limit) for limit in _limits(table, match)]
    never, kept = table.boolean("never"), never_swept(systems)
    if never and rules:
        table.wrong("never", "never keeps these rows; days, count and bytes remove them")
    if (
        rules
        and match.kinds is not None
        and match.kinds.ranges
        and not any(
            kind not in kept for low, high in match.kinds.ranges for kind in range(low, high + 1)
        )
    ):
        table.wrong(
            "match",
            "these kinds are never swept: the state of groups follows from 9000-9020 and "
            f"39000-39005{_also_kept(systems)}",
        )
    before = _never_before(table)
    return RetentionEffect(
        tuple(rules), match if never else None, None if before is None else (match, before)
    )


def history_from(table: Table, place: Place, match: Match) -> HistoryRule | None:
    """`history = { count, days }`; `false`: nothing is kept, whatever an earlier rule says."""
    if not table.has("history"):
        return None
    where = f"{place.file}:{place.line}"
    if table.values["history"] is False:
        return HistoryRule(place.name, where, match, None)
    held = table.table("history")
    if held is None:
        return None
    held.refuse_unknown(HISTORY_KEYS)
    count, days = held.integer("count", 1), held.integer("days", 1)
    if not held.has("count"):
        table.wrong("history", "history needs count: how many old versions of a record are kept")
    elif count is not None and count > MAX_OLD_VERSIONS:
        held.wrong("count", f"count must be at most {MAX_OLD_VERSIONS}")
    if days is not None and days > MAX_OLD_DAYS:
        held.wrong("days", f"days must be at most {MAX_OLD_DAYS}")
    return None if count is None else HistoryRule(place.name, where, match, History(count, days))


def _also_kept(systems: MemorySystems) -> str:
    ranges = [
        str(low) if low == high else f"{low}-{high}" for low, high in systems.never_swept.ranges
    ]
    return f", and memory systems keep {', '.join(ranges)}" if ranges else ""


def _limits(table: Table, match: Match) -> list[MaxAge | MaxAmount]:
    found: list[MaxAge | MaxAmount] = []
    days = table.integer("days", 1)
    if days is not None:
        found.append(MaxAge(days))
    size = table.integer("bytes", 1)
    count = table.table("count")
    if count is None:
        return found if size is None else [*found, MaxAmount(None, bytes=size)]
    count.refuse_unknown(COUNT_KEYS)
    per, most = count.choice("per", Scope), count.integer("max", 1)
    for key in COUNT_KEYS:
        if not count.has(key):
            table.wrong("count", f"count needs {key}")
    if per is Scope.D_PREFIX and match.d_prefixes is None:
        count.wrong("per", 'per = "d_prefix" counts for each d_prefix of match, and there is none')
    if per is None or most is None:
        return found
    return [*found, MaxAmount(per, most, size)]


def _never_before(table: Table) -> NeverBefore | None:
    held = table.table("never_before")
    if held is None:
        return None
    held.refuse_unknown(NEVER_BEFORE_KEYS)
    of, same = held.kinds("kinds"), held.strings("same")
    up_to = held.choice("up_to", UpTo) if held.has("up_to") else UpTo.TS
    for key in ("kinds", "same"):
        if not held.has(key):
            table.wrong("never_before", f"never_before needs {key}")
    for number, word in enumerate(same or ()):
        if word not in _SAME and not (len(word) == 1 and word.isascii() and word.isalpha()):
            held.wrong_item("same", number, f'unknown word "{word}" in same{nearest(word, _SAME)}')
    if of is None or same is None or up_to is None:
        return None
    return NeverBefore(of, tuple(same), up_to)


def days_by_type(table: Table, key: str) -> Mapping[str, int] | None:
    """`retention_days`: type → days; 0: never."""
    inner = table.table(key)
    if inner is None:
        return None
    days = {name: inner.integer(name) for name in inner.values}
    return {name: number for name, number in days.items() if number is not None}


def sweep_rules(
    found: Sequence[RetentionEffect],
    settings: Mapping[tuple[str, str], Any],
    systems: MemorySystems,
) -> SweepRules:
    """All rules of the files, and the ages that memory systems have (M-24)."""
    rules = [rule for each in found for rule in each.rules]
    for system in systems.systems:
        table = f"memory.{system.name}"
        if system.aged is not None and settings.get((table, "sweep"), True):
            days = {**system.aged.days, **settings.get((table, "retention_days"), {})}
            rules += _rules_by_age(system.aged, f"[{table}] retention_days", days)
    return SweepRules(
        tuple(rules),
        tuple([each.never for each in found if each.never is not None]),
        tuple([each.waiting for each in found if each.waiting is not None]),
        systems,
    )


def _rules_by_age(aged: AgedRecords, place: str, days: Mapping[str, int]) -> list[SweepRule]:
    types: dict[int, list[str]] = {}
    for name, number in days.items():
        types.setdefault(number, []).append(f"type:{name}")
    return [
        SweepRule(
            aged.rule,
            place,
            Match(
                KindSet.of(aged.kind),
                d_prefixes=(aged.prefix,),
                tags=(("t", frozenset(named)),),
            ),
            MaxAge(number),
        )
        for number, named in sorted(types.items())
        if number > 0
    ]
