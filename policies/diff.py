"""Compares two policy sets over stored events: refused, hidden, shown, kept otherwise, swept.

Invariants: events come in order of seq, each once; memory grows only with the authors and groups
that rates and quotas count. Events are judged against the members and roles of their time, as far
as the log has them; flags of groups and readers are the current ones.

An event is judged as an import is (no logins, no windows of time, no plug-ins); but rates count, at
created_at. A kind 5 counts as having found its targets; any other event replaces nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from policies.diff_readers import ReaderClasses, Turn
from policies.diff_retention import RetentionDiff
from relay.groups.group import Groups, replayed
from relay.lifecycle.rows import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policies.engine import PolicySet
    from policies.write_rule import Place
    from relay.errors import Reject
    from relay.lifecycle.rows import Keep
    from relay.nostr.event import Event

_EXAMPLES: Final = 3
_NO_GROUPS: Final = Groups()


class Effect(Enum):
    """What the new set does to a stored event, unlike the old one."""

    REFUSED = "refuse"
    HIDDEN = "hide"
    SHOWN = "show"
    KEPT = "keep otherwise"
    SWEPT = "sweep"


@dataclass(slots=True)
class Finding:
    """One effect of one rule."""

    effect: Effect
    rule: str
    """Of the new set; for SHOWN of the old set, which hid it."""
    file: str = ""
    line: int = 0
    says: str = ""
    """The refusal of the first example, or how versions are kept."""
    events: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)
    """The first ids."""
    audiences: dict[str, int] = field(default_factory=dict)
    """Reader → number of events."""

    def note(self, event: Event) -> None:
        self.events += 1
        self.bytes += len(event.raw)
        if len(self.examples) < _EXAMPLES:
            self.examples.append(event.id)


class Judge(Protocol):
    """Judges every event of the log that it is given, in order, under one policy set."""

    def refusal(self, event: Event, groups: Groups) -> Reject | None:
        """Why the set refuses the event with these groups, or None."""


class Comparison:
    """Pass every stored event to `take`, then read `findings`."""

    def __init__(
        self,
        old: PolicySet,
        new: PolicySet,
        groups: Groups,
        *,
        relay: str,
        now: int,
        judge_of: Callable[[PolicySet], Judge],
    ) -> None:
        """`groups`: today's; `relay`: its public key."""
        self.events = 0
        self.refused_by_both = 0
        """Refused by the old set too: stored before it was in force, or by an import."""
        self._relay = relay
        self._new, self._old = new, old
        self._new_judge, self._old_judge = judge_of(new), judge_of(old)
        self._old_counts = any(rule.usage_limit is not None for rule in old.write_rules)
        """True: the old set's rates and quotas must count every event; otherwise it judges few
        events."""
        self._groups_then = Groups()
        self._readers = ReaderClasses(old, new, groups)
        self._places = {
            rule.place.name: rule.place for rule in (*old.write_rules, *new.write_rules)
        }
        self._retention = RetentionDiff(old.sweeps, new.sweeps, groups, now=now)
        self._found: dict[tuple[Effect, str], Finding] = {}

    @property
    def findings(self) -> Sequence[Finding]:
        """By effect, then by number of events."""
        order = list(Effect)
        swept = [
            Finding(
                Effect.SWEPT,
                rule.name,
                *_file_and_line(rule.place),
                str(rule.limit),
                rows.events,
                rows.bytes,
                rows.examples,
            )
            for rule, rows in self._retention.swept()
        ]
        return sorted(
            [*self._found.values(), *swept],
            key=lambda each: (order.index(each.effect), -each.events),
        )

    def take(self, event: Event) -> None:
        """The next event of the log."""
        self.events += 1
        group_id = self._new.row_group(event)
        if event.pubkey != self._relay:
            self._judge(event)
        self._compare_readers(event, group_id)
        kept = self._compare_keep(event)
        self._retention.take(event, group_id, kept)
        self._groups_then = replayed(self._groups_then, [event], self._relay)

    # -- writing ----------------------------------------------------------------------------------

    def _judge(self, event: Event) -> None:
        refusal = self._new_judge.refusal(event, self._groups_then)
        if refusal is None and not self._old_counts:
            return
        before = self._old_judge.refusal(event, self._groups_then)
        if refusal is None:
            return
        if before is not None:
            self.refused_by_both += 1
            return
        finding = self._finding(Effect.REFUSED, refusal.rule, self._places.get(refusal.rule))
        finding.says = finding.says or f"{refusal.prefix}: {refusal.text}"
        finding.note(event)

    # -- reading and keeping -----------------------------------------------------------------------

    def _compare_readers(self, event: Event, group_id: str | None) -> None:
        for turn, rules in self._readers.changes(event, group_id).items():
            effect = Effect.HIDDEN if turn is Turn.HIDDEN else Effect.SHOWN
            for (rule, place), audiences in rules.items():
                finding = self._finding(effect, rule, place)
                finding.note(event)
                for audience in audiences:
                    finding.audiences[audience] = finding.audiences.get(audience, 0) + 1

    def _compare_keep(self, event: Event) -> Keep:
        """How versions of the event are kept under the new set."""
        old, new = self._old.keep.keep_of(event), self._new.keep.keep_of(event)
        if old is new:
            return new
        row, rules = Stored(0, event, event.tag("h")), self._new.keep.rules
        name, place = "NIP-01", None
        for rule, at in zip(rules, self._new.keep_places, strict=True):
            if rule.match.matches(row, _NO_GROUPS):
                name, place = rule.name, at
        finding = self._finding(Effect.KEPT, name, place)
        finding.says = finding.says or f"{new.value} instead of {old.value}"
        finding.note(event)
        return new

    def _finding(self, effect: Effect, rule: str, place: Place | None) -> Finding:
        found = self._found.get((effect, rule))
        if found is None:
            found = Finding(effect, rule)
            if place is not None:
                found.file, found.line = place.file, place.line
            self._found[effect, rule] = found
        return found


def _file_and_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return (file, int(line)) if line.isdigit() else (place, 0)
