"""World: what an event is judged against, as the events before it in the batch leave it.

Made by the batch in the lane, by `rookery policy test`, `diff` and `explain`, and by tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from relay.access.actors import author_words, is_known, lent_words, vouching
from relay.access.management import ListName, Management
from relay.access.membership import JOINED_PER_MINUTE
from relay.access.quotas import VANISHED_PER_ADDRESS, Guesses, MinuteCounter, TokenBuckets
from relay.access.visibility import Viewer, visibility_for
from relay.facts import Facts, Origin, Who
from relay.groups.actions import DeleteEvents, previous_in
from relay.groups.context import GroupContext, NotStored, TargetRow
from relay.groups.notices import notices_for
from relay.groups.timeline import previous_to_find
from relay.lifecycle.deletion import deleted_rows
from relay.lifecycle.rows import Slot
from relay.nostr import kinds
from relay.nostr.filters import Filter
from relay.write.candidate import GROUP_STATE_OF
from relay.write.derived import derived_group, places
from relay.write.pins import pinnable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from relay.access.actors import Actors
    from relay.access.quotas import Token
    from relay.access.visibility import Visibility
    from relay.facts import RecordFacts
    from relay.groups.group import Group, Groups
    from relay.lifecycle.rows import Found, Stored
    from relay.memory.registry import MemorySystems, RecordName
    from relay.nostr.event import Event
    from relay.state import Policy
    from relay.write.candidate import Candidate

_ANYONE: Final = frozenset({Who.ANYONE})
_ABOUT_PEOPLE: Final = (ListName.ALLOWED_KEYS, ListName.BANNED_KEYS)
_LENT_IN_GROUPS: Final = frozenset({Who.INSIDER})
"""The who-words that an owner lends its agent inside groups. Not KNOWN: the agent could found a
group and remain its member when its owner leaves."""
OPERATE: Final = frozenset({Who.OWNER, Who.AGENT})
MAX_EVENT: Final = 2 << 20
"""Bytes; half of the unread bytes that a connection may have by default."""
_MAX_WHO: Final = 65_536
_MIN_PREFIX: Final = 8
"""Characters of an id that a `previous` tag must have (N29-21)."""


class _Logins(Protocol):
    def wants_login(self, event: Event) -> bool: ...


@dataclass(slots=True)
class Removed:
    """Rows that earlier pieces deleted: the event is judged as if they were still stored."""

    rows: dict[str, TargetRow] = field(default_factory=dict)
    """id → row."""
    slots: set[Slot] = field(default_factory=set)
    """Slots of the rows that have one."""
    were_restricted: bool = False
    """True: some of the rows may not be read by everybody."""
    are_told: bool = False
    """True: an answer may depend on some of the rows."""


@dataclass(frozen=True, slots=True)
class World:
    """Not changed by judging. `found` and `added` change while a batch is applied."""

    policy: Policy
    groups: Groups
    actors: Actors
    """The actors of the policy files, with the keys that NIP-86 calls have allowed and banned."""
    found: Found
    """The store's rows that `lookups` asked for."""
    relay: str
    """The relay's public key."""
    now: int
    """Unix seconds."""
    management: Management = field(default_factory=Management)
    added: Mapping[str, Stored] = field(default_factory=dict)
    """id → row that an earlier event of the batch added."""
    guesses: Guesses = field(default_factory=Guesses)
    buckets: TokenBuckets = field(default_factory=TokenBuckets)
    vanished: MinuteCounter = field(default_factory=lambda: MinuteCounter(VANISHED_PER_ADDRESS))
    """Requests to vanish by keys of which nothing is stored, by address."""
    joined: MinuteCounter = field(default_factory=lambda: MinuteCounter(JOINED_PER_MINUTE))
    """Keys that joined the relay without a code."""
    removed: Removed = field(default_factory=Removed)
    """Rows that earlier pieces of the same deletion deleted."""
    salt: bytes = b""
    """As of `GroupContext`."""
    is_piece: bool = False
    """The event deletes some rows now, and is neither stored nor answered."""
    taken: Sequence[Token] | None = None
    """The tokens that an earlier piece of the same deletion took: no rate or quota refuses the
    rest."""
    ending: Set[str] = frozenset()
    """Groups that end in pieces."""
    vanishing: Set[str] = frozenset()
    """Keys that vanish in pieces."""
    max_event: int = MAX_EVENT
    """Bytes of an event, wherever it comes from."""
    unsigned: Mapping[str, Group] = field(default_factory=dict)
    """Groups that earlier events of the batch changed, as they were: what the relay signs about
    them comes last."""
    rated_origins: frozenset[Origin] = frozenset({Origin.WIRE})
    """Rates count events of these origins."""
    _who: dict[tuple[str, str | None], frozenset[Who]] = field(default_factory=dict)
    """Cache of `who`."""
    _seen: dict[tuple[Viewer, bool], Visibility] = field(default_factory=dict)
    """Cache of `seen_by`."""

    def with_groups(self, groups: Groups) -> World:
        return self if groups is self.groups else replace(self, groups=groups, _who={}, _seen={})

    def with_management(self, management: Management) -> World:
        before = self.management
        if all(management.of(name) is before.of(name) for name in _ABOUT_PEOPLE):
            return replace(self, management=management)
        if management.of(ListName.BANNED_KEYS) is before.of(ListName.BANNED_KEYS):
            actors = replace(self.actors, registered=management.of(ListName.ALLOWED_KEYS))
        else:
            actors = management.applied_to(self.policy.actors)
        return replace(self, management=management, actors=actors, _who={}, _seen={})

    def seen_by(self, viewer: Viewer, *, shows_banned: bool = False) -> Visibility:
        """What the viewer may read. Cached: at most two for each connection of a batch.

        `shows_banned`: also what the bans of others hide as long as they last.
        """
        key = viewer, shows_banned
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = visibility_for(
                viewer,
                self.policy.read_rules,
                self.actors,
                self.groups,
                shows_banned=shows_banned,
            )
        return seen

    def who(self, pubkey: str, group_id: str | None) -> frozenset[Who]:
        """The who-words of an author who writes into this group (None: outside groups)."""
        key = (pubkey, group_id)
        who = self._who.get(key)
        if who is None:
            if len(self._who) >= _MAX_WHO:
                self._who.clear()
            group = self.groups.get(group_id)
            who = self._who[key] = author_words(pubkey, self.actors, self.groups, group)
        return who


def facts_of(candidate: Candidate, world: World) -> Facts:
    """What policy rules may look at. The only builder of Facts.

    For an event that will be refused for a missing login nothing is looked up: rows that it deletes
    or replaces count as its author's, so that the login is the reason given.

    A new fact is added in two places: a field of `Facts`, and its value here. One that needs rows
    that are not looked up yet also takes a line in `relay.write.lookups`.
    """
    event, sender, found = candidate.event, candidate.sender, world.found
    actors, groups, named = world.actors, world.groups, candidate.group
    kind, slot, targets = event.kind, candidate.slot, candidate.targets
    derived = derived_group(candidate, world) if _asks_derived_group(candidate, world) else None
    words = _words(candidate, world, derived or named)
    return Facts(
        now=world.now,
        origin=sender.origin,
        # A ban leaves connections open: what their banned keys were gives nothing any more.
        authenticated=sender.authenticated - actors.banned,
        who=words.who,
        authenticated_who=words.authenticated_who,
        agent_by_role=words.agent_by_role,
        login_by_role=words.login_by_role,
        is_local=sender.is_local,
        wraps_for_known=kind in kinds.WRAPS
        and _wraps_for_known(candidate, world, words.who | words.authenticated_who),
        deletes_own=targets is not None
        and (
            bool(world.removed.rows or deleted_rows(event, targets, found))
            or misses_login(candidate, world.policy)
        ),
        replaces=slot is not None
        and (slot in found.slots or misses_login(candidate, world.policy)),
        has_group=groups.get(named) is not None,
        group=derived or candidate.row_group,
        h_is_foreign=kind in world.policy.groups.foreign_h,
        records=_records(candidate, world),
    )


def _wraps_for_known(candidate: Candidate, world: World, words: Set[Who]) -> bool:
    """`Facts.wraps_for_known`. By each wrap an unknown sender learns whether one key is known here.
    If it learned that of thousands at once, it would find the known ones by halving them."""
    recipients = {*candidate.event.tag_values("p")}
    if len(recipients) > 1 and candidate.sender.origin is Origin.WIRE and Who.KNOWN not in words:
        return False
    return any(is_known(pubkey, world.actors, world.groups) for pubkey in recipients)


def _asks_derived_group(candidate: Candidate, world: World) -> bool:
    """Whether a rule depends on the group that another event decides. Not of a kind 5: the pieces
    of a large one would be judged by what each deletes."""
    return (
        candidate.named is not None
        and candidate.targets is None
        and world.policy.asks_group(candidate.event.kind)
    )


class _Words(NamedTuple):
    """The fields of `Facts` that depend on the group of the event."""

    who: frozenset[Who]
    authenticated_who: frozenset[Who]
    agent_by_role: bool
    login_by_role: bool


def _words(candidate: Candidate, world: World, group_id: str | None) -> _Words:
    """The who-words of the author, and of all keys of the connection, towards this group."""
    sender, pubkey, actors = candidate.sender, candidate.event.pubkey, world.actors
    who, readers = world.who(pubkey, group_id), _ANYONE
    logins = sender.authenticated - actors.banned
    for key in logins:
        readers |= world.who(key, group_id)
    about = [each for each in sender.attested if each.is_about(candidate.event.kind)]
    for attestation in vouching(about, actors, world.groups, {}):
        lent = lent_words(attestation, actors, world.groups.get(group_id))
        readers |= lent
        if attestation.agent == pubkey:
            who |= lent
    return _Words(
        who,
        readers,
        Who.AGENT in who and not actors.is_agent(pubkey),
        Who.AGENT in readers and not any(map(actors.is_agent, logins)),
    )


def told_facts(candidate: Candidate, world: World, facts: Facts) -> Facts:
    """These facts, as if rows of groups that the connection may not read were not stored; the same
    object if nothing is different.

    Anybody may send what others signed, and would learn of such rows by the answer.
    """
    event, found = candidate.event, world.found
    if knows_own_rows(candidate):
        return facts
    deletes_own, replaces, records = facts.deletes_own, facts.replaces, facts.records
    is_derived = facts.group != candidate.row_group
    about_rows = deletes_own or replaces or records or is_derived
    if not about_rows or misses_login(candidate, world.policy):
        return facts
    if is_derived:
        seen = seen_by_sender(candidate, world)
        group = derived_group(
            candidate,
            world,
            lambda row: is_told_of(row, candidate, world) and places(row, seen),
        )
        if group != facts.group:
            words = _words(candidate, world, group)
            facts = msgspec.structs.replace(facts, group=group, **words._asdict())
    if deletes_own and candidate.targets is not None:
        rows = deleted_rows(event, candidate.targets, found)
        deletes_own = world.removed.are_told or any(
            is_told_of(row, candidate, world) for row in rows
        )
    if replaces and candidate.slot is not None:
        replaces = is_told_of(found.slots[candidate.slot], candidate, world)
    if records:
        records = _records(candidate, world, are_told=True)
    if (deletes_own, replaces, records) == (facts.deletes_own, facts.replaces, facts.records):
        return facts
    return msgspec.structs.replace(
        facts, deletes_own=deletes_own, replaces=replaces, records=records
    )


def knows_own_rows(candidate: Candidate) -> bool:
    """Whether the author's rows, wherever they are, may be told of to who sent the event."""
    sender = candidate.sender
    return sender.origin is not Origin.WIRE or candidate.event.pubkey in sender.authenticated


def target_row(row: Stored) -> TargetRow:
    return TargetRow(row.group, row.event.kind, row.event.pubkey)


def misses_login(candidate: Candidate, policy: _Logins) -> bool:
    """Whether the event is refused for a missing login, whatever is stored."""
    sender = candidate.sender
    return (
        sender.origin is Origin.WIRE
        and not sender.authenticated
        and policy.wants_login(candidate.event)
    )


def seen_by_sender(candidate: Candidate, world: World) -> Visibility:
    """What the keys of the connection may read."""
    sender = candidate.sender
    return world.seen_by(Viewer(sender.authenticated, attested=sender.attested))


def is_told_of(row: Stored, candidate: Candidate, world: World) -> bool:
    """Whether an answer to the event may depend on this row: its author is logged in, the row is in
    no group, or the connection may read it (N01-96)."""
    sender = candidate.sender
    return (
        sender.origin is not Origin.WIRE
        or row.group is None
        or candidate.event.pubkey in sender.authenticated
        or may_know_by_id(row, seen_by_sender(candidate, world), world)
    )


def group_context(candidate: Candidate, world: World, facts: Facts) -> GroupContext:
    """What the rules of groups may look at."""
    event, found = candidate.event, world.found
    group_id = candidate.group or ""
    slot = candidate.slot
    holder = None if slot is None else found.slots.get(slot)

    author = Viewer(frozenset({event.pubkey}), attested=candidate.sender.attested)

    judged: dict[tuple[int, str, bool], bool] = {}

    def is_known(row: Stored) -> bool:
        """Whether the author of the event may read this row of the group: else an answer would tell
        what reports and invites are stored. Members hold what a ban hides, and go on naming it."""
        if candidate.sender.origin is not Origin.WIRE:
            return True
        seen = world.seen_by(author, shows_banned=True)
        if row.event.raw:
            return may_know_by_id(row, seen, world)
        about = row.event.kind, row.event.pubkey, row.quiet  # all that an outline tells
        if about not in judged:
            judged[about] = may_know_by_id(row, seen, world)
        return judged[about]

    previous = frozenset(
        prefix
        for prefix in previous_to_find(previous_in(event))
        if prefix in found.crowded_prefixes
        or any(map(is_known, _rows_with_prefix(group_id, prefix, world)))
    )
    targets: dict[str, TargetRow] = {}
    if isinstance(candidate.action, DeleteEvents):
        targets.update(world.removed.rows)
        for event_id in candidate.action.ids:
            row, about = found.rows.get(event_id), found.present.get(event_id)
            if row is not None:
                targets[event_id] = target_row(row)
            elif about is not None:  # of a later piece
                targets[event_id] = TargetRow(about.group, about.kind, about.pubkey)
    return GroupContext(
        groups=world.groups,
        settings=world.policy.groups,
        now=world.now,
        origin=facts.origin,
        who=world.who(event.pubkey, candidate.group) | (facts.who & _LENT_IN_GROUPS),
        may_change_many=not world.who(event.pubkey, None).isdisjoint(OPERATE),
        has_content=group_id in found.groups_with_content,
        rows_in_group=found.group_rows.get(group_id, 0),
        rows_moving=found.rows_moving,
        previous_found=previous,
        targets=targets,
        pinnable=pinnable(event, group_id, found, world.now, facts.origin, is_known),
        moved_from=NotStored.NOT_STORED if holder is None else holder.group,
        is_memory=world.policy.systems.is_memory(event),
        h_is_label=world.policy.systems.h_is_label(event),
        relay=world.relay,
        operators=world.actors.owners,
        banned=world.actors.banned,
        salt=world.salt,
        has_changed=candidate.action is not None and _has_changed(candidate, group_id, world),
        is_piece=world.is_piece,
    )


def _has_changed(candidate: Candidate, group_id: str, world: World) -> bool:
    """Whether a 9002 or 9010 was made from another 39000 or 39005 than the group's."""
    if candidate.base is None:
        return False
    state = GROUP_STATE_OF[candidate.event.kind]
    held = world.found.slots.get(Slot(world.relay, state, group_id))
    if candidate.base.id != ("" if held is None else held.event.id):
        return True
    before, after = world.unsigned.get(group_id), world.groups.get(group_id)
    if before is None or after is None:
        return False
    compat = world.policy.groups.compat
    return bool(notices_for(before, after, world.now, compat, {state})[1])


def _rows_with_prefix(group_id: str, prefix: str, world: World) -> Iterator[Stored]:
    """Rows of the group whose id begins so, and that last."""
    for row in world.found.id_prefixes.get((group_id, prefix), ()):
        if _lasts(row, world.now):
            yield row
    if len(prefix) >= _MIN_PREFIX:
        for event_id, row in world.added.items():
            if row.group == group_id and event_id.startswith(prefix):
                yield row


# -- events that a memory record refers to --------------------------------------------------------

FOLLOW_CHAINS: Final = frozenset({Who.AGENT, Who.OWNER})
"""Only for owners and agents: following a long chain takes a tenth of a second."""


def _records(
    candidate: Candidate, world: World, *, are_told: bool = False
) -> tuple[RecordFacts, ...]:
    """The stored events that the record refers to, and the chains of records behind them. A row
    that the author may not read counts as not stored, so that no refusal reveals it (X-16).
    `are_told`: only rows that the connection may know."""
    references, found, now = candidate.references, world.found, world.now
    if not references.ids and not references.names:
        return ()
    systems, pubkey = world.policy.systems, candidate.event.pubkey
    author = Viewer(frozenset({pubkey}))
    seen = visibility_for(author, world.policy.read_rules, world.actors, world.groups)
    by_id = [
        row
        for id_ in references.ids
        if (row := found.rows.get(id_)) is not None
        and _lasts(row, now)
        and _may_read_by_id(row, seen)
        and (not are_told or is_told_of(row, candidate, world))
    ]
    follows = not world.who(pubkey, candidate.group).isdisjoint(FOLLOW_CHAINS)
    names = references.names
    named = _chained(names, found, systems) if follows else _named(names, found)
    by_name = [
        row
        for row in named
        if _lasts(row, now)
        and _may_know(row, seen, world)
        and (not are_told or is_told_of(row, candidate, world))
    ]
    return tuple([systems.facts_of(row.event) for row in (*by_id, *by_name)])


def _may_read_by_id(row: Stored, seen: Visibility) -> bool:
    """Whether the viewer may read the row by a filter with `ids`, as `only_by` may require."""
    return seen.may_read(row, _by_id(row))


def may_know_by_id(row: Stored, seen: Visibility, world: World) -> bool:
    """Whether the viewer may read the row when it asks by id; with a `target` rule also because it
    may read a row that this one refers to."""
    return _may_know(row, seen, world, _by_id(row))


def _by_id(row: Stored) -> Filter:
    return Filter(ids=frozenset({row.event.id}))


def _lasts(row: Stored, now: int) -> bool:
    return row.expires_at is None or row.expires_at > now


def _named(names: Iterable[RecordName], found: Found) -> Iterator[Stored]:
    for name in names:
        yield from found.rows_named(name)


def _chained(names: Iterable[RecordName], found: Found, systems: MemorySystems) -> Iterator[Stored]:
    """Rows of these names, and of the names that they refer to in turn."""
    stack = list(names)
    seen = set(stack)
    while stack:
        for row in found.rows_named(stack.pop()):
            yield row
            further = systems.names_in(row.event) - seen
            seen |= further
            stack.extend(further)


def _may_know(row: Stored, seen: Visibility, world: World, filter_: Filter | None = None) -> bool:
    """Whether the viewer may read the row as a match of this filter (None: no filter); with a
    `target` rule also because it may read a row that this one refers to (X-22)."""
    readable = set()
    targets = seen.targets_of(row)
    if targets:
        named = _named(world.policy.systems.names_in(row.event), world.found)
        rows = [other for other in named if _lasts(other, world.now)]
        for target, value in targets:
            if seen.may_read_one_of(rows, target, value):
                readable.add(target)
    return seen.may_read(row, filter_, readable)
