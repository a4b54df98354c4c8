"""The write part of one `[[rule]]` of a policy file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from policies.conditions import EVERYTHING
from policies.rules.people import CODED_WRITER_RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.conditions import Condition
    from policies.rules.content import Content
    from relay.access.quotas import UsageLimit
    from relay.facts import Who
    from relay.memory.registry import MemorySystem, RecordRule, RecordType


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
    schema: MemorySystem | None = None
    """The memory system whose required tags and check apply. Its mode `off` disables `require` too
    (G-05)."""
    pow_bits: int = 0
    reject: str | None = None
    content: Content | None = None
    usage_limit: UsageLimit | None = None
    """`rate` and `quota`."""
    record_rule: RecordRule | None = None
    """What a memory system also asks under the name of this rule."""

    @property
    def asks_who(self) -> bool:
        return self.writers is not None or self.place.name in CODED_WRITER_RULES

    @property
    def schema_tags(self) -> tuple[str, ...]:
        """The tags that the schema requires of the record types that the rule is about."""
        records = () if self.schema is None else self.schema.records
        return tuple(
            [tag for each in records if self._is_about(each) for tag in each.required_tags]
        )

    def _is_about(self, record: RecordType) -> bool:
        kinds, prefixes = self.match.kinds, self.match.d_prefixes
        return (
            (kinds is None or record.kind in kinds)
            and (prefixes is None or record.prefix.startswith(prefixes))
            and not any(
                (other.kinds is None or record.kind in other.kinds)
                and other.d_prefixes is not None
                and record.prefix.startswith(other.d_prefixes)
                for other in self.excepts
            )
        )

    @property
    def asks_form(self) -> bool:
        return bool(
            self.require or self.schema or self.pow_bits or self.content or self.record_rule
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
