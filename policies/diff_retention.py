"""Which rows a new set of policies would sweep away that the old one keeps.

Counted without holding rows: 16 bytes for each that a rule with `count` or `bytes` is about. What
needs a look into the store (summaries, pins of nmem, `never_before`) is not asked, so what goes in
the end may be less.
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
class Going:
    """What one rule would take."""

    events: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, size: int) -> None:
        self.events += 1
        self.bytes += size


@dataclass(slots=True)
class _Scope:
    """The rows that are counted together."""

    versions: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    first: list[str] = field(default_factory=list)
    """Ids of the first rows; the place of each in the lists above is its own here."""


@dataclass(slots=True)
class _Asked:
    """One rule of the new set, and what has been seen of what it is about."""

    rule: SweepRule
    exempt: Sequence[Match]
    older: tuple[SweepRule, ...]
    """Rules of the old set that let rows go by their age."""
    going: Going = field(default_factory=Going)
    scopes: dict[object, _Scope] = field(default_factory=dict)


class Overdue:
    """Give it every stored event with `take`, then read `going`."""

    def __init__(self, old: SweepRules, new: SweepRules, groups: Groups, *, now: int) -> None:
        self._groups = groups
        self._now = now
        before = {(rule.match, rule.limit) for rule in old.rules}
        by_age = tuple([rule for rule in old.rules if isinstance(rule.limit, MaxAge)])
        self._asked = [
            _Asked(rule, new.exempt_from(rule), by_age)
            for rule in new.in_sweep_order()
            if (rule.match, rule.limit) not in before
        ]

    def take(self, event: Event, group_id: str | None, keep: Keep) -> None:
        """The next event of the log."""
        row: Stored | None = None
        for asked in self._asked:
            kinds = asked.rule.match.kinds
            if kinds is not None and event.kind not in kinds:
                continue
            row = row or Stored(0, event, group_id, version=version_of(event, keep))
            if self._is_about(asked, row):
                self._note(asked, row)

    def _is_about(self, asked: _Asked, row: Stored) -> bool:
        groups = self._groups
        return (
            asked.rule.match.matches(row, groups)
            and not any(match.matches(row, groups) for match in asked.exempt)
            and ("e", row.event.id) not in groups.pinned
        )

    def _note(self, asked: _Asked, row: Stored) -> None:
        event, cause = row.event, asked.rule.limit
        if not isinstance(cause, MaxAge):
            scope = scope_of(row, asked.rule.match, cause.per)
            if scope is not None:
                seen = asked.scopes.setdefault(scope, _Scope())
                seen.versions.append(row.version)
                seen.sizes.append(len(event.raw))
                if len(seen.first) < _EXAMPLES:
                    seen.first.append(event.id)
        elif self._is_over(cause, event) and not any(
            isinstance(rule.limit, MaxAge)
            and self._is_over(rule.limit, event)
            and rule.match.matches(row, self._groups)
            for rule in asked.older
        ):
            asked.going.note(len(event.raw))
            if len(asked.going.examples) < _EXAMPLES:
                asked.going.examples.append(event.id)

    def _is_over(self, age: MaxAge, event: Event) -> bool:
        return event.created_at < age.before(self._now)

    def going(self) -> Iterator[tuple[SweepRule, Going]]:
        """Each rule that would take something, and what."""
        for asked in self._asked:
            cause = asked.rule.limit
            total = asked.going if isinstance(cause, MaxAge) else _beyond(asked.scopes, cause)
            if total.events:
                yield asked.rule, total


def _beyond(scopes: dict[object, _Scope], amount: MaxAmount) -> Going:
    """The oldest rows of each scope that are too many."""
    going = Going()
    for scope in scopes.values():
        newest_first = sorted(range(len(scope.versions)), key=lambda at: (-scope.versions[at], -at))
        held = 0
        for number, at in enumerate(newest_first, 1):
            held += scope.sizes[at]
            if (amount.events is not None and number > amount.events) or (
                amount.bytes is not None and held > amount.bytes
            ):
                going.note(scope.sizes[at])
                if at < len(scope.first) and len(going.examples) < _EXAMPLES:
                    going.examples.append(scope.first[at])
    return going
