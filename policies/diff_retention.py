"""Counts the rows that a new policy set would sweep and the old one keeps.

Rows are not held in memory: 16 bytes for each that a rule with `count` or `bytes` matches. Holds
that need the store (pins of records, `never_before`) are not checked, so a sweep may remove less.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.lifecycle.retention import MaxAge, scope_of
from relay.lifecycle.rows import Stored, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.access.read_rules import Match
    from relay.groups.group import Groups
    from relay.lifecycle.retention import MaxAmount, SweepRule, SweepRules
    from relay.lifecycle.rows import Keep
    from relay.nostr.event import Event

_EXAMPLES: Final = 3


@dataclass(slots=True)
class SweptRows:
    """Rows that one rule would sweep."""

    events: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, size: int) -> None:
        self.events += 1
        self.bytes += size


@dataclass(slots=True)
class _Scope:
    """Rows that are counted together."""

    versions: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    first: list[str] = field(default_factory=list)
    """Ids of the first rows, at the same index as in `versions` and `sizes`."""


@dataclass(slots=True)
class _RuleRows:
    """One rule of the new set, and the rows that it matched so far."""

    rule: SweepRule
    exempt: Sequence[Match]
    older: Sequence[tuple[SweepRule, Sequence[Match]]]
    """Rules of the old set with `days`, and what was exempt from each."""
    swept: SweptRows = field(default_factory=SweptRows)
    scopes: dict[object, _Scope] = field(default_factory=dict)


class RetentionDiff:
    """Pass every stored event to `take`, then read `swept`."""

    def __init__(self, old: SweepRules, new: SweepRules, groups: Groups, *, now: int) -> None:
        self._groups = groups
        self._now = now
        before = {(rule.match, rule.limit, old.exempt_from(rule)) for rule in old.rules}
        by_age = [
            (rule, old.exempt_from(rule)) for rule in old.rules if isinstance(rule.limit, MaxAge)
        ]
        self._rules = [
            _RuleRows(rule, exempt, by_age)
            for rule in new.rules
            if (rule.match, rule.limit, exempt := new.exempt_from(rule)) not in before
        ]

    def take(self, event: Event, group_id: str | None, keep: Keep) -> None:
        """The next event of the log."""
        row: Stored | None = None
        for counted in self._rules:
            kinds = counted.rule.match.kinds
            if kinds is not None and event.kind not in kinds:
                continue
            row = row or Stored(0, event, group_id, version=version_of(event, keep))
            if self._matches(counted, row):
                self._note(counted, row)

    def _matches(self, counted: _RuleRows, row: Stored) -> bool:
        groups = self._groups
        return (
            counted.rule.match.matches(row, groups)
            and not any(match.matches(row, groups) for match in counted.exempt)
            and ("e", row.event.id) not in groups.pinned
        )

    def _note(self, counted: _RuleRows, row: Stored) -> None:
        event, cause = row.event, counted.rule.limit
        if not isinstance(cause, MaxAge):
            scope = scope_of(row, counted.rule.match, cause.per)
            if scope is not None:
                seen = counted.scopes.setdefault(scope, _Scope())
                seen.versions.append(row.version)
                seen.sizes.append(len(event.raw))
                if len(seen.first) < _EXAMPLES:
                    seen.first.append(event.id)
        elif self._is_older(cause, event) and not any(
            isinstance(rule.limit, MaxAge)
            and self._is_older(rule.limit, event)
            and rule.match.matches(row, self._groups)
            and not any(match.matches(row, self._groups) for match in exempt)
            for rule, exempt in counted.older
        ):
            counted.swept.note(len(event.raw))
            if len(counted.swept.examples) < _EXAMPLES:
                counted.swept.examples.append(event.id)

    def _is_older(self, age: MaxAge, event: Event) -> bool:
        return event.created_at < age.before(self._now)

    def swept(self) -> Iterator[tuple[SweepRule, SweptRows]]:
        """Each rule that would sweep rows, and those rows."""
        for counted in self._rules:
            cause = counted.rule.limit
            total = counted.swept if isinstance(cause, MaxAge) else _above(counted.scopes, cause)
            if total.events:
                yield counted.rule, total


def _above(scopes: dict[object, _Scope], amount: MaxAmount) -> SweptRows:
    """The oldest rows of each scope, above the limit."""
    swept = SweptRows()
    for scope in scopes.values():
        newest_first = sorted(range(len(scope.versions)), key=lambda at: (-scope.versions[at], -at))
        held = 0
        for number, at in enumerate(newest_first, 1):
            held += scope.sizes[at]
            if (amount.events is not None and number > amount.events) or (
                amount.bytes is not None and held > amount.bytes
            ):
                swept.note(scope.sizes[at])
                if at < len(scope.first) and len(swept.examples) < _EXAMPLES:
                    swept.examples.append(scope.first[at])
    return swept
