"""RelayState: the policies, groups and NIP-86 management that are in force.

Invariants: values are replaced, never changed in place, so that a reader holds a consistent one.
Groups are a fold of the event log: `relay.write.replay` restores them after a restart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from relay.access.management import ListName, Management
from relay.access.read_rules import targets_of
from relay.access.visibility import row_readers, visibility_for
from relay.lifecycle.rows import Stored
from relay.nostr.kinds import ByKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set
    from ipaddress import IPv4Network, IPv6Network

    from relay.access.actors import Actors
    from relay.access.management import BannedAuthorRows
    from relay.access.membership import MemberSettings
    from relay.access.quotas import Quota, UsageLimit
    from relay.access.read_rules import ReadRule, Target
    from relay.access.visibility import LastingRights, RowReaders, Viewer, Visibility
    from relay.errors import Reject
    from relay.facts import Facts, Origin, Who
    from relay.groups.context import GroupSettings
    from relay.groups.group import Groups
    from relay.lifecycle.retention import SweepRules
    from relay.lifecycle.versions import KeepRules
    from relay.memory.registry import MemorySystems
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet

_CACHED_VIEWERS: Final = 8192
"""More than may be connected."""
_OLDEST_EVERY: Final = 8
"""Of so many that are dropped one is the oldest, the others are the newest: an event is compared
with all in the same order, and if the oldest went, none would be found again."""
_KEYS_PER_VIEW: Final = 64
"""Keys and attestations of a viewer that count as one viewer more: each login makes another."""


class EventLimits(Protocol):
    """Limits of an event in NIP-11; `Policy.screen` enforces them."""

    @property
    def created_at_upper(self) -> int: ...
    @property
    def created_at_lower(self) -> int: ...
    @property
    def max_content_length(self) -> int: ...
    @property
    def max_event_tags(self) -> int: ...
    @property
    def min_pow_difficulty(self) -> int: ...


class Policy(Protocol):
    """A set of policies, as the pipelines see it."""

    @property
    def actors(self) -> Actors: ...
    @property
    def keep(self) -> KeepRules: ...
    @property
    def sweeps(self) -> SweepRules: ...
    @property
    def systems(self) -> MemorySystems: ...
    @property
    def read_rules(self) -> tuple[ReadRule, ...]: ...
    @property
    def judged_by_text(self) -> KindSet:
        """Of `read_rules`: see the function of that name."""

    @property
    def groups(self) -> GroupSettings: ...
    @property
    def members(self) -> MemberSettings: ...
    @property
    def limits(self) -> EventLimits: ...
    @property
    def trusted_readers(self) -> Sequence[IPv4Network | IPv6Network]: ...
    @property
    def restricted_writes(self) -> bool: ...
    @property
    def banned_rows(self) -> BannedAuthorRows: ...
    @property
    def searched(self) -> KindSet:
        """Kinds that are indexed for NIP-50."""

    def row_group(self, event: Event) -> str | None:
        """The group of the event's row, as far as the event tells."""

    def screen(self, event: Event, now: int, origin: Origin) -> Reject | None:
        """Checks of size, time and kind, before the signature is verified."""

    def refusal(self, event: Event, facts: Facts) -> Reject | None:
        """The first write rule that refuses, or None. Called inside the transaction."""

    def wants_login(self, event: Event) -> bool:
        """Whether the event is refused on a connection without a login, whatever is stored."""

    def may_write(self, event: Event, who: Set[Who]) -> bool:
        """False if a rule refuses it of every author with these who-words, whatever is stored."""

    def asks_group(self, kind: int) -> bool:
        """Whether a rule for events of this kind depends on the group of their row."""

    def quotas_of(self, kind: int) -> Sequence[Quota]:
        """Quotas that may apply to this kind; their usage must be looked up."""

    def usage_limits(self, event: Event, facts: Facts) -> Sequence[UsageLimit]:
        """Rates and quotas that apply to this event, in order of their rules."""


class RelayState:
    """Only the write lane calls `adopt` and `manage`, only a policy reload calls `enforce`."""

    def __init__(
        self, policy: Policy, groups: Groups, management: Management | None = None
    ) -> None:
        self.policy = policy
        self.groups = groups
        self.regrouped = 0
        """How many commits have changed the groups."""
        self.views_made = 0
        """How often it was found out what a viewer may read; more for one with many keys, by the
        time that it takes."""
        self.rights = 0
        """How often it has changed who may read what."""
        self.management = management or Management()
        self.actors = self.management.applied_to(policy.actors)
        """From the policy files, plus the keys that NIP-86 has allowed or banned."""
        self.blocked = self.management.blocked()
        """Addresses that may not connect."""
        self._committing_from: int | None = None
        """The newest seq before the commit whose groups are not adopted yet."""
        self._settled = asyncio.Event()
        self.is_current: Callable[[], bool] = lambda: True
        """Whether reads may be permitted by this state. False while it is not known what other
        relays on the store have changed."""
        self._views: OrderedDict[Viewer, Visibility] = OrderedDict()
        self._cached = 0
        self._dropped = 0
        self._lasting: dict[Viewer, LastingRights] = {}
        """As long as the policy and the management are in force."""
        self._lasting_cached = 0
        self._vouchers: dict[str, bool] = {}
        """Keys that attest agents, and whether they may vouch; as long as `_views`."""
        self._rules_of_kind: ByKind[tuple[ReadRule, ...]] = ByKind()
        self._pointing_of_kind: ByKind[tuple[ReadRule, ...]] = ByKind()

    def begin_commit(self, head: int) -> None:
        """`head`: the newest seq before it. `end_commit` must follow, after `adopt`."""
        self._committing_from = head
        self._settled.clear()

    def end_commit(self) -> None:
        self._committing_from = None
        self._settled.set()

    def knows(self, head: int) -> bool:
        """Whether the rights as of this seq are in force: rows are committed before the caller of
        `append` continues."""
        return self._committing_from is None or head <= self._committing_from

    async def settled(self, head: int) -> None:
        """Wait until `knows`, so that no row is read with rights from before it."""
        if not self.knows(head):
            await self._settled.wait()

    async def commit_ended(self) -> None:
        """Wait for the end of the commit that is in progress, if any: a read that has ended may
        have seen it before `settled` knows its seq."""
        if self._committing_from is not None:
            await self._settled.wait()

    def adopt(self, groups: Groups) -> None:
        """Called after the commit that changed the groups."""
        if groups is not self.groups:
            self.groups = groups
            self.regrouped += 1
            self._forget_views()  # but not their lasting rights

    def manage(self, management: Management) -> None:
        """Called after the commit that changed it."""
        before = self.management
        if management is not before:
            self.management = management
            self.actors = management.applied_to(self.policy.actors)
            blocked = ListName.BLOCKED_ADDRESSES
            if management.of(blocked) is not before.of(blocked):
                self.blocked = management.blocked()
            self._forget_rights()

    def enforce(self, policy: Policy) -> None:
        self.policy = policy
        self.actors = self.management.applied_to(policy.actors)
        self._forget_rights()
        self._rules_of_kind = ByKind()
        self._pointing_of_kind = ByKind()

    def visibility(self, viewer: Viewer) -> Visibility:
        """What `viewer` may read now; cached until the state changes."""
        found = self._views.get(viewer)
        if found is None:
            policy, weight = self.policy, _weight(viewer)
            if len(self._vouchers) >= _CACHED_VIEWERS:
                self._vouchers.clear()
            found = visibility_for(
                viewer,
                policy.read_rules,
                self.actors,
                self.groups,
                policy.groups.foreign_h,
                vouchers=self._vouchers,
                lasting=self._lasting.get(viewer),
            )
            self._keep_lasting(viewer, weight, found.lasting)
            while self._views and self._cached + weight > _CACHED_VIEWERS:
                self._dropped += 1
                is_newest = self._dropped % _OLDEST_EVERY != 0
                dropped, _ = self._views.popitem(last=is_newest)
                self._cached -= _weight(dropped)
            self._views[viewer] = found
            self.views_made += weight
            self._cached += weight
        return found

    def _keep_lasting(self, viewer: Viewer, weight: int, lasting: LastingRights) -> None:
        if viewer not in self._lasting:
            self._lasting_cached += weight
        self._lasting[viewer] = lasting
        while self._lasting_cached > _CACHED_VIEWERS:
            oldest = next(iter(self._lasting))
            del self._lasting[oldest]
            self._lasting_cached -= _weight(oldest)

    def _forget_rights(self) -> None:
        self._lasting.clear()
        self._lasting_cached = 0
        self._forget_views()

    def _forget_views(self) -> None:
        self._views.clear()
        self._cached = 0
        self._vouchers.clear()
        self.rights += 1

    def is_public(self, row: Stored) -> bool:
        """No read rule applies to this row: everyone who is not banned may read it."""
        if row.event.pubkey in self.actors.banned:
            return False
        groups = self.groups
        return not any(rule.applies_to(row, groups) for rule in self._rules_for(row.event.kind))

    def row_readers(self, row: Stored) -> RowReaders | None:
        """See `relay.access.visibility.row_readers`."""
        return row_readers(row, self._rules_for(row.event.kind), self.actors, self.groups)

    def rules_about(self, event: Event, group_id: str | None) -> Sequence[ReadRule]:
        """The read rules that apply to an event that is stored as a row of this group."""
        row = Stored(0, event, group_id)
        return [rule for rule in self._rules_for(event.kind) if rule.applies_to(row, self.groups)]

    def _rules_for(self, kind: int) -> Sequence[ReadRule]:
        """The rules that may apply to rows of the kind."""
        rules = self._rules_of_kind.get(kind)
        if rules is None:
            rules = tuple(
                rule
                for rule in self.policy.read_rules
                if rule.match.kinds is None or kind in rule.match.kinds
            )
            self._rules_of_kind[kind] = rules
        return rules

    def targets_of(self, row: Stored) -> Sequence[tuple[Target, str]]:
        """Targets of the read rules that apply to this row, and the value that links it to each."""
        kind = row.event.kind
        rules = self._pointing_of_kind.get(kind)
        if rules is None:
            rules = tuple(
                rule for rule in self._rules_for(kind) if rule.effective_target is not None
            )
            self._pointing_of_kind[kind] = rules
        return targets_of(rules, row, self.groups) if rules else ()


def _weight(viewer: Viewer) -> int:
    return 1 + (len(viewer.keys) + len(viewer.attested)) // _KEYS_PER_VIEW
