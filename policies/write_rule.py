"""The write part of one `[[rule]]` of a policy file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from policies.conditions import EVERYTHING
from policies.rules.memory import asks_records
from policies.rules.people import CODED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.conditions import Condition
    from policies.rules.content import Content
    from policies.settings import System
    from relay.access.quotas import Meter
    from relay.verdict import Who


@dataclass(frozen=True, slots=True)
class Place:
    """Name, file and line of a rule."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class WriteRule:
    place: Place
    match: Condition = EVERYTHING
    excepts: tuple[Condition, ...] = ()
    writers: frozenset[Who] | None = None
    """None: any author."""
    require: tuple[str, ...] = ()
    schema: System | None = None
    """The memory system that checks the record; its mode `off` also disables `require` (G-05)."""
    pow_bits: int = 0
    reject: str | None = None
    content: Content | None = None
    meter: Meter | None = None
    """`rate` and `quota`."""

    @property
    def asks_who(self) -> bool:
        return self.writers is not None or self.place.name in CODED

    @property
    def asks_form(self) -> bool:
        return bool(
            self.require
            or self.schema
            or self.pow_bits
            or self.content
            or asks_records(self.place.name)
        )


_NARROW: Final = 256
"""A rule with more kinds than this is tried for every event: an entry per kind would cost more."""


class RulesByKind:
    """Rules in order, indexed by kind: rules of other kinds cost nothing."""

    def __init__(self, rules: Sequence[WriteRule]) -> None:
        self._rules = rules
        self._wide: list[int] = []
        self._narrow: dict[int, list[int]] = {}
        for number, rule in enumerate(rules):
            spans = None if rule.match.kinds is None else rule.match.kinds.ranges
            if spans is None or sum(high - low for low, high in spans) >= _NARROW:
                self._wide.append(number)
                continue
            for low, high in spans:
                for kind in range(low, high + 1):
                    self._narrow.setdefault(kind, []).append(number)

    def of(self, kind: int) -> list[WriteRule]:
        """The rules that may match events of this kind."""
        return [self._rules[each] for each in sorted([*self._wide, *self._narrow.get(kind, ())])]
