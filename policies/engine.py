"""PolicySet: every rule in force, asked in order. The first objection wins; none can force a yes.

Invariants: a rule gets all it needs in Facts and works alone. Each kind has its own short list of
the rules that may be about it, with all that depends on the kind alone answered beforehand: this
runs for each event on its way in.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.conditions import EVERYTHING
from policies.plugins.protocol import asks_plugins
from policies.rules.content import is_hit
from policies.rules.forms import FORMS
from policies.rules.memory import records_objection, schema_objection
from policies.rules.people import CODED, unproven
from policies.rules.work import too_little_work
from policies.settings import AuthWrites, Limits, Memory, SchemaMode
from policies.write_rule import Place, RulesByKind, WriteRule
from relay.access.visibility import visibility_for
from relay.errors import Prefix
from relay.lifecycle.retention import SweepRules
from relay.nostr import kinds
from relay.verdict import Origin, Reject, Who

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.conditions import Condition
    from policies.plugins.definition import Plugin
    from policies.retention import Forgetting
    from relay.access.actors import Actors
    from relay.access.management import BannedAuthorRows
    from relay.access.quotas import Quota, UsageLimit
    from relay.access.read_rules import ReadRule, Row
    from relay.access.visibility import Viewer
    from relay.errors import Fault
    from relay.groups.context import GroupSettings
    from relay.groups.group import Groups
    from relay.lifecycle.versions import KeepRules
    from relay.memory.registry import MemorySystems
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet
    from relay.toml.fields import Network
    from relay.verdict import Facts


class Stage(Enum):
    """When a rule is asked."""

    SCREEN = "before the signature"
    WRITER = "who writes"
    LOGIN = "login"
    FORM = "form"
    PLUGIN = "plug-in"
    """Matched: it is asked, when the event comes."""
    QUOTA = "how much"
    """Rates and quotas: asked when all else is well, so that only what is taken counts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that was consulted."""

    place: Place
    stage: Stage
    matched: bool
    verdict: Reject | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every rule consulted about one event, in order, and the one that decided."""

    steps: tuple[Step, ...]

    @property
    def decided(self) -> Step | None:
        """The first objection; None: accepted."""
        return next((step for step in self.steps if step.verdict is not None), None)


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One read rule about a row, and whether it lets the viewer read it."""

    place: Place
    allowed: bool
    readers: str


class _Asked:
    """A rule with what depends on the kind alone already answered."""

    __slots__ = ("always", "excepts", "match", "refusal", "rule", "usage_limit", "writers")

    def __init__(self, rule: WriteRule, match: Condition, excepts: tuple[Condition, ...]) -> None:
        self.rule = rule
        self.match = match
        self.excepts = excepts
        self.always = match == EVERYTHING and not excepts
        self.usage_limit = rule.usage_limit
        self.writers = rule.writers
        self.refusal = Reject(
            Prefix.RESTRICTED,
            rule.reject or f"not allowed by the rule {rule.place.name!r}",
            rule.place.name,
        )

    def about(self, event: Event, facts: Facts) -> bool:
        return self.always or (
            self.match.holds(event, facts)
            and not any(other.holds(event, facts) for other in self.excepts)
        )


class _OfKind(NamedTuple):
    """The rules that may be about events of one kind."""

    writers: tuple[_Asked, ...] = ()
    forms: tuple[_Asked, ...] = ()
    limited: tuple[_Asked, ...] = ()
    quotas: tuple[Quota, ...] = ()


_NO_RULES: Final = _OfKind()
_NO_USAGE_LIMITS: Final[tuple[UsageLimit, ...]] = ()
_PATTERNS: Final = Reject(
    Prefix.BLOCKED, "content matches a reject pattern", "[memory] reject_patterns"
)
_ANY_AGE: Final = frozenset({kinds.GIFT_WRAP, kinds.EPHEMERAL_GIFT_WRAP, kinds.VANISH})


class PolicySet:
    """What the policy files say, whole. Not changed after `load`; a reload makes another."""

    def __init__(
        self,
        *,
        actors: Actors,
        keep: KeepRules,
        read_rules: tuple[ReadRule, ...],
        write_rules: tuple[WriteRule, ...],
        groups: GroupSettings,
        limits: Limits,
        memory: Memory,
        systems: MemorySystems,
        auth_writes: AuthWrites,
        banned_rows: BannedAuthorRows,
        searched: KindSet,
        trusted_readers: tuple[Network, ...],
        plugins: tuple[Plugin, ...] = (),
        read_places: tuple[Place, ...] = (),
        keep_places: tuple[Place, ...] = (),
        sweeps: SweepRules | None = None,
        forgetting: tuple[tuple[Place, Forgetting], ...] = (),
        files: tuple[str, ...] = (),
        key_files: tuple[str, ...] = (),
        notes: tuple[Fault, ...] = (),
    ) -> None:
        self.actors = actors
        self.keep = keep
        self.read_rules = read_rules
        self.write_rules = write_rules
        self.groups = groups
        self.limits = limits
        self.memory = memory
        self.systems = systems
        self.auth_writes = auth_writes
        self.banned_rows = banned_rows
        self.searched = searched
        """Kinds that a search may find."""
        self.trusted_readers = trusted_readers
        self.plugins = plugins
        """In the order in which they are asked; who asks them is `policies.plugins.Chain`."""
        self.read_places = read_places
        """Where each of `read_rules` stands."""
        self.keep_places = keep_places
        """Where each of `keep.rules` stands."""
        self.sweeps = SweepRules(systems=systems) if sweeps is None else sweeps
        """Which rows go, and which must not."""
        self.forgetting = forgetting
        """What of it each `[[retention]]` says."""
        self.files = files
        """Every file that was read, in order."""
        self.key_files = key_files
        """Files of banned and allowed keys."""
        self.notes = notes
        """What an admin should know: packaged rules that their files replace or switch off."""
        self._rules = RulesByKind(write_rules)
        self._by_kind: dict[int, _OfKind] = {}
        self._max_content = limits.max_content_length
        self._max_tags = limits.max_event_tags
        self._upper = limits.created_at_upper
        self._lower = limits.created_at_lower
        self._pow = limits.min_pow_difficulty

    @property
    def restricted_writes(self) -> bool:
        """Whether only some may write ordinary events (NIP-11)."""
        return any(
            rule.match.kinds is None
            and rule.match == EVERYTHING
            and rule.writers is not None
            and Who.ANYONE not in rule.writers
            for rule in self.write_rules
        )

    @property
    def watched(self) -> tuple[str, ...]:
        """Files that the policy files name: when one changes, these policies are others."""
        commands = [path for plugin in self.plugins for path in plugin.way.paths]
        return (*self.key_files, *commands)

    def with_actors(self, actors: Actors) -> PolicySet:
        """These policies with other people."""
        changed = copy(self)
        changed.actors = actors
        return changed

    def screen(self, event: Event, now: int, origin: Origin) -> Reject | None:
        """What is wrong with an event whatever its author and our state; before its signature."""
        if len(event.content) > self._max_content:
            return self._too_long(event)
        if len(event.tags) > self._max_tags:
            return self._too_many_tags(event)
        ahead = event.created_at - now
        if (ahead > self._upper or (self._lower and -ahead > self._lower)) and (
            origin is Origin.WIRE
        ):
            refusal = self._out_of_time(event, ahead)
            if refusal is not None:
                return refusal
        # A request to vanish is not held up by work (N62-11).
        if self._pow and event.kind != kinds.VANISH:
            refusal = too_little_work(event, self._pow, "[limits] min_pow_difficulty")
            if refusal is not None:
                return refusal
        form = FORMS.get(event.kind)
        return None if form is None else form(event, origin)

    def _too_long(self, event: Event) -> Reject:
        return Reject(
            Prefix.INVALID,
            f"content: has {len(event.content)} characters, at most {self._max_content} allowed",
            "[limits] max_content_length",
        )

    def _too_many_tags(self, event: Event) -> Reject:
        return Reject(
            Prefix.INVALID,
            f"tags: has {len(event.tags)}, at most {self._max_tags} allowed",
            "[limits] max_event_tags",
        )

    def _out_of_time(self, event: Event, ahead: int) -> Reject | None:
        if ahead > self._upper:
            return Reject(
                Prefix.INVALID,
                f"created_at: {ahead} s in the future, at most {self._upper} s allowed",
                "[limits] created_at_upper",
            )
        if event.kind in _ANY_AGE or self.systems.is_memory(event):  # N59-06, N62-01, G-14
            return None
        return Reject(
            Prefix.INVALID,
            f"created_at: {-ahead} s in the past, at most {self._lower} s allowed",
            "[limits] created_at_lower",
        )

    def judge(self, event: Event, facts: Facts) -> Reject | None:
        """Why this event may not be written, given the state before it; None: no objection.

        Who writes first, so that whoever may not write learns nothing else (G-03); then logins,
        then the form. How much somebody may do is another question: `usage_limits`.
        """
        writers, forms, _, _ = self._by_kind.get(event.kind) or self._asked_about(event.kind)
        if facts.origin is not Origin.TRUSTED_IMPORT:
            for asked in writers:
                refusal = self._writer_refusal(asked, event, facts)
                if refusal is not None:
                    return refusal
        if facts.origin is Origin.WIRE and event.kind != kinds.VANISH:
            refusal = unproven(event, facts, self.auth_writes)
            if refusal is not None:
                return refusal
        for asked in forms:
            refusal = self._form_refusal(asked, event, facts)
            if refusal is not None:
                return refusal
        return self._secret(event)

    def _secret(self, event: Event) -> Reject | None:
        """M-31: what memory must not hold."""
        patterns = self.memory.reject_patterns
        if patterns is not None and self.systems.is_memory(event) and is_hit(event, patterns):
            return _PATTERNS
        return None

    def quotas_of(self, kind: int) -> tuple[Quota, ...]:
        """Those that may be about events of this kind."""
        return (self._by_kind.get(kind) or self._asked_about(kind)).quotas

    def usage_limits(self, event: Event, facts: Facts) -> Sequence[UsageLimit]:
        """The rates and quotas about an event that `judge` does not object to, in their order.

        What an operator brings in of their own is not measured.
        """
        asked_about = (self._by_kind.get(event.kind) or self._asked_about(event.kind)).limited
        if not asked_about or facts.origin is Origin.TRUSTED_IMPORT:
            return _NO_USAGE_LIMITS
        return [
            asked.usage_limit
            for asked in asked_about
            if asked.usage_limit is not None and asked.about(event, facts)
        ]

    def _asked_about(self, kind: int) -> _OfKind:
        writers: list[_Asked] = []
        forms: list[_Asked] = []
        limited: list[_Asked] = []
        quotas: list[Quota] = []
        for rule in self._rules.of(kind):
            match = rule.match.for_kind(kind)
            if match is None:
                continue
            excepts = [other.for_kind(kind) for other in rule.excepts]
            left = tuple([other for other in excepts if other is not None])
            if EVERYTHING in left:
                continue
            asked = _Asked(rule, match, left)
            # A request to vanish is not held up by who its author is (N62-11).
            if rule.asks_who and kind != kinds.VANISH:
                writers.append(asked)
            if rule.asks_form:
                forms.append(asked)
            if asked.usage_limit is not None:
                quota = asked.usage_limit.quota
                if quota is not None and quota.counts(kind):
                    quotas.append(quota)
                else:
                    asked.usage_limit = replace(asked.usage_limit, quota=None)
                if asked.usage_limit.rate is not None or asked.usage_limit.quota is not None:
                    limited.append(asked)
        # At most 65,536 kinds exist, and most of them share the empty answer.
        found = _OfKind(tuple(writers), tuple(forms), tuple(limited), tuple(quotas))
        if found == _NO_RULES:
            found = _NO_RULES
        self._by_kind[kind] = found
        return found

    def _writer_refusal(self, asked: _Asked, event: Event, facts: Facts) -> Reject | None:
        if asked.writers is None:
            code = CODED[asked.rule.place.name]
            return code(event, facts, self.memory) if asked.about(event, facts) else None
        if asked.writers.isdisjoint(facts.who) and asked.about(event, facts):
            return asked.refusal
        return None

    def _form_refusal(self, asked: _Asked, event: Event, facts: Facts) -> Reject | None:
        rule = asked.rule
        name = rule.place.name
        if not asked.about(event, facts):
            return None
        if rule.schema is not None and self.memory.schema_of(rule.schema) is SchemaMode.OFF:
            return records_objection(rule, event, facts, self.actors)
        # With `write` it is said to whom that keeps out.
        custom = rule.reject if rule.writers is None else None
        for tag in rule.require:
            if not _has(event, tag):
                return Reject(Prefix.INVALID, custom or f"missing tag {tag}", name)
        record = None if rule.schema is None else self.systems.type_of(event)
        missing = None if record is None else record.missing_tag(event)
        if missing is not None:
            return Reject(Prefix.INVALID, custom or f"missing tag {missing}", name)
        if rule.pow_bits:
            refusal = too_little_work(event, rule.pow_bits, name)
            if refusal is not None:
                return refusal if custom is None else Reject(Prefix.POW, custom, name)
        refusal = records_objection(rule, event, facts, self.actors)
        if refusal is not None:
            return refusal
        if rule.schema is not None:
            refusal = schema_objection(rule.schema, name, event, facts, self.memory)
            if refusal is not None:
                return refusal
        if rule.content is not None:
            return rule.content.objection(event, name, custom)
        return None

    def explain(self, event: Event, facts: Facts) -> Explanation:
        """Every rule that `screen` and `judge` consult about this event, in their order.

        Goes on behind the first objection, so that an admin sees what else would object.
        """
        return Explanation(tuple(self._steps(event, facts)))

    def _steps(self, event: Event, facts: Facts) -> Iterator[Step]:
        screened = self.screen(event, facts.now, facts.origin)
        rule = "limits and forms" if screened is None else screened.rule
        yield Step(Place(rule, "", 0), Stage.SCREEN, True, screened)  # noqa: FBT003
        writers, forms, limited, _ = self._by_kind.get(event.kind) or self._asked_about(event.kind)
        if facts.origin is not Origin.TRUSTED_IMPORT:
            for asked in writers:
                refusal = self._writer_refusal(asked, event, facts)
                yield Step(asked.rule.place, Stage.WRITER, asked.about(event, facts), refusal)
        if facts.origin is Origin.WIRE and event.kind != kinds.VANISH:
            unproved = unproven(event, facts, self.auth_writes)
            rule = "protected events, [auth] writes" if unproved is None else unproved.rule
            yield Step(Place(rule, "", 0), Stage.LOGIN, unproved is not None, unproved)
        for asked in forms:
            refusal = self._form_refusal(asked, event, facts)
            yield Step(asked.rule.place, Stage.FORM, asked.about(event, facts), refusal)
        if self.memory.reject_patterns is not None and self.systems.is_memory(event):
            secret = self._secret(event)
            yield Step(Place(_PATTERNS.rule, "", 0), Stage.FORM, secret is not None, secret)
        for plugin in self.plugins:
            is_asked = asks_plugins(event, facts.origin)
            yield Step(plugin.place, Stage.PLUGIN, is_asked, None)
        if facts.origin is not Origin.TRUSTED_IMPORT:
            for asked in limited:
                # Whether it is too much is told by the relay alone, when the event comes.
                yield Step(asked.rule.place, Stage.QUOTA, asked.about(event, facts), None)

    def explain_read(
        self, row: Row, viewer: Viewer, groups: Groups, beside: Sequence[Row] = ()
    ) -> Sequence[ReadStep]:
        """Every read rule about the row; it is readable when all of them allow the viewer.

        `only_by` is taken as fulfilled: it is a question to a filter. `beside`: what is stored that
        the row may point to.
        """
        seen = visibility_for(viewer, self.read_rules, self.actors, groups)
        readable = {
            target
            for target, value in seen.targets_of(row)
            if seen.may_read_one_of(beside, target, value)
        }
        steps = []
        for rule, place in zip(self.read_rules, self.read_places, strict=True):
            if rule.applies_to(row, groups):
                open_rule = replace(rule, only_by=None)
                words = [*sorted(word.value for word in rule.readers)]
                words += [f"tag:{name}" for name in rule.tag_readers]
                allowed = seen.allows(open_rule, row, None, readable)
                steps.append(ReadStep(place, allowed, ", ".join(words)))
        return steps


def _has(event: Event, name: str) -> bool:
    """A required tag; a `d` must also say something, others may be empty."""
    return event.d != "" if name == "d" else event.has_tag(name)
