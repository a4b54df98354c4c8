"""Worlds to judge events in outside the lane: of a test case, of a stored history, of no store.

`relay.write.judge` decides; this module builds its input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from relay.access.quotas import (
    CountedEvent,
    Size,
    TokenBuckets,
    UsageCounter,
    check_usage_limits,
)
from relay.errors import Reject, WriteOutcome
from relay.facts import Origin, Who
from relay.groups.group import Group, Groups, Role
from relay.groups.notices import bytes_signed
from relay.lifecycle.rows import Found, Stored, slot_of, version_of
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.kinds import is_ephemeral
from relay.write.candidate import Candidate, Sender, candidate_of
from relay.write.judge import screen_and_judge
from relay.write.lookups import accounts_by, accounts_of
from relay.write.world import World, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from policies import PolicySet
    from policies.cases import Given
    from relay.access.actors import Actors
    from relay.nostr.event import Event

CONNECTION: Final = 0
"""The number of the one connection of such a world."""


def candidate_in(event: Event, policy: PolicySet, sender: Sender) -> Candidate:
    """An event as this policy set reads it. A kind 62 counts as one for this relay only if it is
    for all relays."""
    return candidate_of(
        event,
        policy.keep.keep_of(event),
        policy.systems,
        sender,
        lambda _url: False,
        foreign_h=policy.groups.foreign_h,
        derived=policy.groups.derived,
    )


# -- a case ---------------------------------------------------------------------------------------


def case_world(
    candidate: Candidate,
    policy: PolicySet,
    groups: Groups,
    given: Given,
    beside: Iterable[Event],
    now: int,
) -> World:
    """The world of a test case. `beside`: events that are stored."""
    found = Found(0)
    for event in beside:
        group = policy.row_group(event)
        _add(event, group, policy, found)
    if given.replaces:
        _add_replaced(candidate, found)
    if given.deletes_own:
        found.rows.update({row.event.id: row for row in _own_targets(candidate)})
    derived = accounts_by([candidate], policy)(found)
    for account in (*accounts_of(candidate, policy), *derived):
        found.usage.open(account, given.stored)
    world = World(policy, groups, policy.actors, found, policy.actors.relay, now)
    for _ in range(given.sent):
        _count_rates(candidate, world)
    return world


def _add(event: Event, group: str | None, policy: PolicySet, found: Found) -> None:
    keep = policy.keep.keep_of(event)
    slot = slot_of(event, keep)
    row = Stored(1, event, group, slot=slot, version=version_of(event, keep))
    found.rows[event.id] = row
    found.named.setdefault(RecordName(event.kind, event.d), set()).add(event.id)
    if slot is not None:
        found.slots[slot] = row


def _add_replaced(candidate: Candidate, found: Found) -> None:
    """An older version of the event, in the same group."""
    event, slot = candidate.event, candidate.slot
    if slot is None:
        return
    older = msgspec.structs.replace(event, id="0" * 64, created_at=event.created_at - 1)
    version = version_of(event, candidate.keep) - 1
    found.slots[slot] = Stored(1, older, candidate.group, slot=slot, version=version)


def _own_targets(candidate: Candidate) -> Iterator[Stored]:
    """The events that a kind 5 names, assumed to be stored and by its author."""
    event, targets = candidate.event, candidate.targets
    if targets is None:
        return
    for event_id in targets.ids:
        named = msgspec.structs.replace(event, id=event_id, kind=kinds.NOTE, tags=[])
        yield Stored(1, named, candidate.group)


def _count_rates(candidate: Candidate, world: World) -> None:
    """Count one more event for each rate that applies to the candidate."""
    event, sender = candidate.event, candidate.sender
    facts = facts_of(candidate, world)
    for limit in world.policy.usage_limits(event, facts):
        counted = CountedEvent(
            event,
            facts.group,
            candidate.row_group,
            sender.connection,
            is_rated=True,
            is_stored=not is_ephemeral(event.kind),
            replaces=None,
            address=sender.address,
            is_own=event.pubkey in sender.authenticated,
            signed=bytes_signed(event, world.groups),
            is_sent=sender.origin is Origin.WIRE,
        )
        # Each limit by itself: one that is exceeded does not keep the others from counting.
        tokens = check_usage_limits([limit], counted, world.found.usage, world.buckets, world.now)
        for rate, name, cost in () if isinstance(tokens, Reject) else tokens:
            world.buckets.take(rate, name, world.now, cost)


# -- a stored history -----------------------------------------------------------------------------


_IMPORT: Final = Sender(Origin.IMPORT)


class HistoryJudge:
    """Judges the stored events of a log in order, each once, under one policy set.

    As an import: no logins, no limit of age. Rates count at created_at, in the author's, group's
    and kind's buckets (connections and addresses are not known); quotas count what this set
    accepted before. Memory grows with the authors and groups that rates and quotas are about.
    """

    def __init__(self, policy: PolicySet, relay: str, now: int) -> None:
        """`relay`: its public key."""
        self._policy = policy
        self._usage = UsageCounter()
        self._buckets = TokenBuckets()
        self._is_rated = any(
            rule.usage_limit is not None and rule.usage_limit.rate is not None
            for rule in policy.write_rules
        )
        self._world = World(
            policy,
            Groups(),
            policy.actors,
            Found(0, usage=self._usage),
            relay,
            now,
            buckets=self._buckets,
            rated_origins=frozenset({Origin.IMPORT}),
        )

    def refusal(self, event: Event, groups: Groups) -> Reject | None:
        """Why the event is refused by this set with these groups; None: it is not."""
        candidate = candidate_in(event, self._policy, _IMPORT)
        world = self._world = self._world.with_groups(groups)
        if candidate.targets is not None:
            rows = {row.event.id: row for row in _own_targets(candidate)}
            world = replace(world, found=Found(0, rows, usage=self._usage))
        if self._is_rated:
            world = replace(world, now=event.created_at)
        for account in accounts_of(candidate, self._policy):
            if account not in self._usage:
                self._usage.open(account, Size())
        judged = screen_and_judge(candidate, world)
        if isinstance(judged.outcome, Reject):
            return judged.outcome
        for rate, name, cost in judged.tokens:
            self._buckets.take(rate, name, world.now, cost)
        if judged.outcome is WriteOutcome.STORED:
            self._usage.add(event, judged.group)
        return None


# -- no store -------------------------------------------------------------------------------------

_OTHER_GROUP: Final = "a group of somebody else"


def supposed_world(
    event: Event,
    group_id: str | None,
    policy: PolicySet,
    actors: Actors,
    groups: Groups,
    supposed: Set[Who],
    now: int,
) -> World:
    """A relay with these groups and nothing else stored, whose event's author is `supposed`."""
    pubkey = event.pubkey
    if Who.OWNER in supposed:
        actors = replace(actors, owners=actors.owners | {pubkey})
    if Who.AGENT in supposed:
        actors = replace(actors, agents=actors.agents | {pubkey})
    if Who.KNOWN in supposed:
        actors = replace(actors, allowed=actors.allowed | {pubkey})
    if Who.MEMBER in supposed:
        groups = _with_member(groups, _OTHER_GROUP, pubkey, ())
    if group_id is not None and Who.ADMIN in supposed:
        groups = _with_member(groups, group_id, pubkey, (Role.ADMIN.value,))
    elif group_id is not None and Who.INSIDER in supposed:
        groups = _with_member(groups, group_id, pubkey, ())
    return World(policy, groups, actors, Found(0), actors.relay, now)


def _with_member(groups: Groups, group_id: str, pubkey: str, roles: tuple[str, ...]) -> Groups:
    group = groups.get(group_id) or Group(group_id)
    return groups.with_group(group.with_users({pubkey: roles}))
