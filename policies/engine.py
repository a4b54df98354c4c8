"""PolicySet: the rules in force, in order. The first refusal decides; no rule can force acceptance.

Invariants: a rule sees the event and Facts only, and does not depend on other rules. Rules are
indexed by kind, with everything that depends on the kind alone evaluated once: this runs for every
event.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace as replace_facts

from policies.conditions import EVERYTHING, OF_GROUP
from policies.plugins.protocol import asks_plugins
from policies.rules.content import is_hit
from policies.rules.forms import FORMS
from policies.rules.memory import records_objection, schema_objection
from policies.rules.people import CODED_WRITER_RULES, needs_login, unproven
from policies.rules.work import too_little_work
from policies.settings import AuthWrites, Limits, Memory, SchemaMode
from policies.write_rule import Place, RulesByKind, WriteRule
from relay.access.quotas import Per
from relay.access.read_rules import judged_by_text
from relay.access.visibility import visibility_for
from relay.errors import Invalid, Prefix, Reject
from relay.facts import Origin, Who
from relay.groups.actions import group_of
from relay.lifecycle.retention import SweepRules
from relay.nostr import kinds
from relay.nostr.kinds import ALL_KINDS, ByKind, KindSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from policies.conditions import Condition
    from policies.plugins.definition import Plugin
    from policies.retention import RetentionEffect
    from relay.access.actors import Actors
    from relay.access.management import BannedAuthorRows
    from relay.access.membership import MemberSettings
    from relay.access.quotas import Quota, UsageLimit
    from relay.access.read_rules import ReadRule, Row
    from relay.access.visibility import Viewer
    from relay.errors import Fault
    from relay.facts import Facts
    from relay.groups.context import GroupSettings
    from relay.groups.group import Groups
    from relay.lifecycle.versions import KeepRules
    from relay.memory.registry import MemorySystems
    from relay.nostr.event import Event
    from relay.toml.fields import Network


class Stage(Enum):
    """The stage at which a rule is evaluated."""

    SCREEN = "before the signature"
    WRITER = "author"
    LOGIN = "login"
    FORM = "form"
    PLUGIN = "plug-in"
    """`matched`: it runs when the event is submitted."""
    QUOTA = "rates and quotas"
    """Rates and quotas: last, so that only accepted events count."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that was evaluated."""

    place: Place
    stage: Stage
    matched: bool
    verdict: Reject | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every rule that was evaluated for one event, in order."""

    steps: tuple[Step, ...]

    @property
    def decided(self) -> Step | None:
        """The first refusal; None: accepted."""
        return next((step for step in self.steps if step.verdict is not None), None)


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One read rule that matches a row, and whether it allows the viewer."""

    place: Place
    allowed: bool
    readers: str


class _IndexedRule:
    """A rule whose conditions on the kind are already evaluated."""

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

    @property
    def asks_group(self) -> bool:
        """Whether what it refuses depends on the group of the event's row."""
        conditions = (self.match, *self.excepts)
        return any(each.asks_group() for each in conditions) or not OF_GROUP.isdisjoint(
            self.writers or ()
        )

    @property
    def limit_asks_group(self) -> bool:
        """Whether its rate or quota depends on the group of the event's row: see `limits`."""
        limit = self.usage_limit
        return (
            self.match.asks_group()
            or any(each.asks_group(OF_GROUP - _AGENT) for each in self.excepts)
            or (limit is not None and limit.adds_up_groups)
        )

    def matches(self, event: Event, facts: Facts) -> bool:
        return self.always or (
            self.match.holds(event, facts)
            and not any(other.holds(event, facts) for other in self.excepts)
        )

    def limits(self, event: Event, facts: Facts) -> bool:
        """Whether its rate and quota apply: admins of a group except nobody by giving a role."""
        return self.always or (
            self.match.holds(event, facts)
            and not any(other.holds(event, _without_roles(facts)) for other in self.excepts)
        )

    def matches_always(self, event: Event) -> bool:
        """Whether it matches the event with any facts."""
        return self.always or (
            self.match.fits(event)
            and not any(other.fits(event) for other in self.excepts)
            and not any(each.asks_facts for each in (self.match, *self.excepts))
        )


class _OfKind(NamedTuple):
    """The rules that may match events of one kind."""

    writers: tuple[_IndexedRule, ...] = ()
    forms: tuple[_IndexedRule, ...] = ()
    limited: tuple[_IndexedRule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    asks_group: bool = False
    """Whether one of them depends on the group of the event's row."""


_NO_USAGE_LIMITS: Final[tuple[UsageLimit, ...]] = ()
_PATTERNS: Final = Reject(
    Prefix.BLOCKED, "content matches a reject pattern", "[memory] reject_patterns"
)
_AGENT: Final = frozenset({Who.AGENT})
_ANY_AGE: Final = frozenset({kinds.GIFT_WRAP, kinds.EPHEMERAL_GIFT_WRAP, kinds.VANISH})


class PolicySet:
    """The policy files as a value. Not changed after `load`; a reload makes another."""

    def __init__(
        self,
        *,
        actors: Actors,
        keep: KeepRules,
        read_rules: tuple[ReadRule, ...],
        write_rules: tuple[WriteRule, ...],
        groups: GroupSettings,
        members: MemberSettings,
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
        retention_effects: tuple[tuple[Place, RetentionEffect], ...] = (),
        files: tuple[str, ...] = (),
        key_files: tuple[str, ...] = (),
        notes: tuple[Fault, ...] = (),
    ) -> None:
        self.actors = actors
        self.keep = keep
        self.read_rules = read_rules
        self.judged_by_text = judged_by_text(read_rules)
        self.write_rules = write_rules
        self.groups = groups
        self.members = members
        self.limits = limits
        self.memory = memory
        self.systems = systems
        self.auth_writes = auth_writes
        self.banned_rows = banned_rows
        self.searched = searched
        """Kinds that a search may find."""
        self.trusted_readers = trusted_readers
        self.plugins = plugins
        """In the order in which `policies.plugins.Chain` asks them."""
        self.read_places = read_places
        """File and line of each of `read_rules`."""
        self.keep_places = keep_places
        """File and line of each of `keep.rules`."""
        self.sweeps = SweepRules(systems=systems) if sweeps is None else sweeps
        """Which rows are removed, and which are protected."""
        self.retention_effects = retention_effects
        """The part that each `[[retention]]` contributes."""
        self.files = files
        """All files read, in order."""
        self.key_files = key_files
        """Files of banned and allowed keys."""
        self.notes = notes
        """Notes for the admin: packaged rules that their files replace or switch off."""
        self._rules = RulesByKind(write_rules)
        self._by_kind = ByKind[_OfKind]()
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
        """Files that the policy files refer to: when one changes, the policies must be reloaded."""
        commands = [path for plugin in self.plugins for path in plugin.way.paths]
        return (*self.key_files, *commands)

    def with_actors(self, actors: Actors) -> PolicySet:
        """These policies with other actors."""
        changed = copy(self)
        changed.actors = actors
        return changed

    def screen(self, event: Event, now: int, origin: Origin) -> Reject | None:
        """The refusal for size, time, work or form of the event; made before its signature is
        verified."""
        if _was_accepted(event, origin):
            return None
        if len(event.content) > self._max_content:
            return self._too_long(event)
        if len(event.tags) > self._max_tags:
            return self._too_many_tags(event)
        ahead = event.created_at - now
        # A copy may be old. Dated ahead, anybody's notes would come first in each feed.
        is_early = ahead > self._upper and origin is not Origin.TRUSTED_IMPORT
        if is_early or (self._lower and -ahead > self._lower and origin is Origin.WIRE):
            refusal = self._out_of_time(event, ahead)
            if refusal is not None:
                return refusal
        # A request to vanish needs no proof of work (N62-11).
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

    def row_group(self, event: Event) -> str | None:
        """The group of the event's row, as far as the event tells: of an event without `h`, the
        events that it names may decide. None too if its `h` is malformed, names no group of
        NIP-29, or is a label (G-31)."""
        if self.systems.h_is_label(event):
            return None
        try:
            return group_of(event, self.groups.foreign_h)
        except Invalid:
            return None  # stored before it was checked

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

    def refusal(self, event: Event, facts: Facts) -> Reject | None:
        """The first refusal of all rules but rates and quotas; None: accepted.

        Rules about the author come first, so that an author who may not write learns nothing else
        (G-03);
        then login, then form and content. Rates and quotas: `usage_limits`.
        """
        if _was_accepted(event, facts.origin):
            return None
        writers, forms, _, _, _ = self._by_kind.get(event.kind) or self._rules_of_kind(event.kind)
        if not facts.origin.is_trusted:
            for indexed in writers:
                refusal = self._writer_refusal(indexed, event, facts)
                if refusal is not None:
                    return refusal
        if facts.origin is Origin.WIRE and event.kind != kinds.VANISH:
            refusal = unproven(event, facts, self.auth_writes)
            if refusal is not None:
                return refusal
        for indexed in forms:
            refusal = self._form_refusal(indexed, event, facts)
            if refusal is not None:
                return refusal
        return self._pattern_refusal(event)

    def wants_login(self, event: Event) -> bool:
        """Whether `[auth] writes` refuses the event on a connection without a login."""
        return event.kind != kinds.VANISH and needs_login(
            event, self.auth_writes, self.groups.foreign_h
        )

    def _pattern_refusal(self, event: Event) -> Reject | None:
        """`[memory] reject_patterns` (M-31)."""
        patterns = self.memory.reject_patterns
        if patterns is not None and self.systems.is_memory(event) and is_hit(event, patterns):
            return _PATTERNS
        return None

    def may_write(self, event: Event, who: Set[Who]) -> bool:
        """False if a rule refuses it of every author with these who-words, whatever is stored."""
        writers = (self._by_kind.get(event.kind) or self._rules_of_kind(event.kind)).writers
        return not any(
            indexed.writers is not None
            and indexed.writers.isdisjoint(who)
            and indexed.matches_always(event)
            for indexed in writers
        )

    def asks_group(self, kind: int) -> bool:
        """Whether a rule for events of this kind depends on the group of their row."""
        return (self._by_kind.get(kind) or self._rules_of_kind(kind)).asks_group

    def quotas_of(self, kind: int) -> tuple[Quota, ...]:
        """Quotas that may apply to events of this kind."""
        return (self._by_kind.get(kind) or self._rules_of_kind(kind)).quotas

    def usage_limits(self, event: Event, facts: Facts) -> Sequence[UsageLimit]:
        """The rates and quotas that apply to an event, in their order; none to a trusted import."""
        limited = (self._by_kind.get(event.kind) or self._rules_of_kind(event.kind)).limited
        if not limited or facts.origin.is_trusted:
            return _NO_USAGE_LIMITS
        return [
            indexed.usage_limit
            for indexed in limited
            if indexed.usage_limit is not None and indexed.limits(event, facts)
        ]

    def _rules_of_kind(self, kind: int) -> _OfKind:
        writers: list[_IndexedRule] = []
        forms: list[_IndexedRule] = []
        limited: list[_IndexedRule] = []
        quotas: list[Quota] = []
        for rule in self._rules.of(kind):
            match = rule.match.for_kind(kind)
            if match is None:
                continue
            excepts = [other.for_kind(kind) for other in rule.excepts]
            left = tuple([other for other in excepts if other is not None])
            if EVERYTHING in left:
                continue
            indexed = _IndexedRule(rule, match, left)
            # Anyone may send a request to vanish (N62-11), and `[members]` decides who may join:
            # only rules that name these kinds apply.
            is_exempt = kind == kinds.VANISH or (
                kind in kinds.MEMBERSHIP_REQUESTS and rule.match.kinds is None
            )
            if rule.asks_who and not is_exempt:
                writers.append(indexed)
            if rule.asks_form:
                forms.append(indexed)
            if indexed.usage_limit is not None and not (
                kind == kinds.VANISH and rule.match.kinds is None
            ):
                if rule.match.kinds is None:
                    indexed.usage_limit = self._of_who_writes(indexed.usage_limit, kind)
                quota = indexed.usage_limit.quota
                if quota is not None and quota.counts(kind):
                    quotas.append(quota)
                else:
                    indexed.usage_limit = replace(indexed.usage_limit, quota=None)
                if indexed.usage_limit.rate is not None or indexed.usage_limit.quota is not None:
                    limited.append(indexed)
        asks_group = any(indexed.asks_group for indexed in (*writers, *forms)) or any(
            indexed.limit_asks_group for indexed in limited
        )
        found = _OfKind(tuple(writers), tuple(forms), tuple(limited), tuple(quotas), asks_group)
        self._by_kind[kind] = found
        return found

    def _of_who_writes(self, limit: UsageLimit, kind: int) -> UsageLimit:
        """The limit of a rule that names no kinds, for this one. What people use up who may not
        write in a group does not count for it: requests to join; and what may only name its events
        counts apart. So its admins go on, too."""
        rate, quota = limit.rate, limit.quota
        if rate is not None and rate.per is Per.GROUP and kind in kinds.GROUP_RECORDS:
            rate = None
        if quota is not None and quota.per is Per.GROUP:
            counted = quota.kinds or ALL_KINDS
            derived = [each for each in self.groups.derived if each in counted]
            is_derived = kind in derived
            counted = KindSet.of(*derived) if is_derived else counted.without(derived)
            quota = replace(quota, kinds=counted)
        return replace(limit, rate=rate, quota=quota)

    def _writer_refusal(self, indexed: _IndexedRule, event: Event, facts: Facts) -> Reject | None:
        if indexed.writers is None:
            code = CODED_WRITER_RULES[indexed.rule.place.name]
            return code(event, facts, self.memory) if indexed.matches(event, facts) else None
        if indexed.writers.isdisjoint(facts.who) and indexed.matches(event, facts):
            return indexed.refusal
        return None

    def _form_refusal(self, indexed: _IndexedRule, event: Event, facts: Facts) -> Reject | None:
        rule = indexed.rule
        name = rule.place.name
        if not indexed.matches(event, facts):
            return None
        if rule.schema is not None and self.memory.schema_of(rule.schema) is SchemaMode.OFF:
            return records_objection(rule, event, facts, self.actors)
        # With `write`, reject is the text for the authors it refuses.
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
        """Every rule that `screen` and `refusal` evaluate for this event, in their order.

        Continues after the first refusal, so that an admin sees all of them.
        """
        return Explanation(tuple(self._steps(event, facts)))

    def _steps(self, event: Event, facts: Facts) -> Iterator[Step]:
        screened = self.screen(event, facts.now, facts.origin)
        rule = "limits and forms" if screened is None else screened.rule
        yield Step(Place(rule, "", 0), Stage.SCREEN, True, screened)  # noqa: FBT003
        if _was_accepted(event, facts.origin):
            return
        writers, forms, limited, _, _ = self._by_kind.get(event.kind) or self._rules_of_kind(
            event.kind
        )
        if not facts.origin.is_trusted:
            for indexed in writers:
                refusal = self._writer_refusal(indexed, event, facts)
                yield Step(indexed.rule.place, Stage.WRITER, indexed.matches(event, facts), refusal)
        if facts.origin is Origin.WIRE and event.kind != kinds.VANISH:
            login = unproven(event, facts, self.auth_writes)
            rule = "protected events, [auth] writes" if login is None else login.rule
            yield Step(Place(rule, "", 0), Stage.LOGIN, login is not None, login)
        for indexed in forms:
            refusal = self._form_refusal(indexed, event, facts)
            yield Step(indexed.rule.place, Stage.FORM, indexed.matches(event, facts), refusal)
        if self.memory.reject_patterns is not None and self.systems.is_memory(event):
            refused = self._pattern_refusal(event)
            yield Step(Place(_PATTERNS.rule, "", 0), Stage.FORM, refused is not None, refused)
        for plugin in self.plugins:
            is_asked = asks_plugins(event, facts.origin)
            yield Step(plugin.place, Stage.PLUGIN, is_asked, None)
        if not facts.origin.is_trusted:
            for indexed in limited:
                # The counters are the relay's: only the dry run knows whether a limit is exceeded.
                yield Step(indexed.rule.place, Stage.QUOTA, indexed.limits(event, facts), None)

    def explain_read(
        self, row: Row, viewer: Viewer, groups: Groups, beside: Sequence[Row] = ()
    ) -> Sequence[ReadStep]:
        """Every read rule that matches the row; readable when all of them allow the viewer.

        `only_by` counts as fulfilled: it is a condition on filters. `beside`: other stored rows
        that the row may refer to.
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


def _without_roles(facts: Facts) -> Facts:
    """These facts, where only keys of the policy files are agents."""
    if not facts.agent_by_role and not facts.login_by_role:
        return facts
    return replace_facts(
        facts,
        who=facts.who - _AGENT if facts.agent_by_role else facts.who,
        authenticated_who=(
            facts.authenticated_who - _AGENT if facts.login_by_role else facts.authenticated_who
        ),
    )


def _has(event: Event, name: str) -> bool:
    """Whether a required tag is there; only `d` must not be empty."""
    return event.d != "" if name == "d" else event.has_tag(name)


def _was_accepted(event: Event, origin: Origin) -> bool:
    """Whether it is a group record of one's own export, accepted under the policies of then. If one
    were refused, a removed member would be one again, or a private group public."""
    return origin is Origin.TRUSTED_IMPORT and event.kind in kinds.GROUP_RECORDS
