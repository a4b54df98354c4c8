"""Lookups: what must be read from the store before a batch is judged.

Invariants: everything is read before the first event of the batch is judged. Each event contributes
its own lookups, from the groups as they are before the batch and the rights that earlier events of
the batch may give. A lookup for which a right is needed is made only for authors that may have the
right: docs/security.md says what an event can make the writer read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, assert_never

from relay.access.actors import author_words
from relay.access.management import BannedAuthorRows, ListName
from relay.access.quotas import Per
from relay.facts import Origin, Who
from relay.groups.actions import OPPOSITE, Flag, previous_in
from relay.groups.group import pins_of
from relay.groups.notices import LISTS, NOTICES, is_listed_apart
from relay.groups.timeline import check_date, previous_to_find
from relay.lifecycle.deletion import (
    address_target,
    event_target,
    key_target,
    refusals_of,
    slot_target,
    versions_target,
)
from relay.lifecycle.retention import hold_lookups
from relay.lifecycle.rows import (
    Lookups,
    OwnRow,
    PinnedRows,
    RetentionDependency,
    Slot,
    address_slot,
    no_accounts,
    no_pins,
    no_refusals,
    no_slots,
)
from relay.memory.registry import NO_REFERENCES
from relay.nostr import kinds
from relay.nostr.event import address_of, is_hex64
from relay.write.commands import (
    ExpireRows,
    ManagementChange,
    SignLists,
    SweepRows,
    SweepVersions,
)
from relay.write.judge import check_vanish
from relay.write.passed_over import deletions_in
from relay.write.pins import (
    names_of,
    outdated_pins,
    pinning_expired,
    pinning_rows,
    row_of_pin,
)
from relay.write.world import FOLLOW_CHAINS, misses_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Set

    from relay.access.actors import Actors
    from relay.access.quotas import Account, Quota
    from relay.groups.context import GroupSettings
    from relay.groups.group import Group, Groups
    from relay.lifecycle.rows import ExpiredRow, Found, Reference, Stored
    from relay.memory.registry import MemorySystems, RecordName
    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet
    from relay.state import EventLimits
    from relay.write.candidate import Candidate


_FOR_MEMBERS: Final = (
    *(Flag.PRIVATE, Flag.HIDDEN),
    *(OPPOSITE[Flag.PRIVATE], OPPOSITE[Flag.HIDDEN]),
)
"""Tags of a 9002 by which a group becomes one that only its members read, or no longer is."""
_BY_ADMINS: Final = frozenset({kinds.EDIT_METADATA, kinds.DELETE_GROUP})
"""Kinds of moderation that are refused to moderators (N29-112)."""


class Policy(Protocol):
    """The part of a policy that lookups need."""

    @property
    def systems(self) -> MemorySystems: ...
    @property
    def groups(self) -> GroupSettings: ...
    @property
    def limits(self) -> EventLimits: ...
    @property
    def judged_by_text(self) -> KindSet: ...
    @property
    def banned_rows(self) -> BannedAuthorRows: ...

    def quotas_of(self, kind: int) -> Sequence[Quota]: ...
    def wants_login(self, event: Event) -> bool: ...
    def may_write(self, event: Event, who: Set[Who]) -> bool: ...


def lookups_for(
    candidates: Sequence[Candidate],
    commands: Iterable[ManagementChange | ExpireRows | SweepRows | SweepVersions | SignLists],
    *,
    groups: Groups,
    actors: Actors,
    policy: Policy,
    relay: str,
    now: int,
    left_groups: Set[str] | None = None,
    longest_s: float | None = None,
) -> Lookups:
    """What this batch must know of the store. `groups`: before the batch; `relay`: its key.
    `left_groups`: the groups whose state a piece of a request to vanish looks up; None: of all that
    a vanishing key leaves. `longest_s`: as of Lookups."""
    commands = [*commands]
    wanted = _Builder(groups, actors, relay, policy, now)
    wanted.people_may_change = any(isinstance(command, ManagementChange) for command in commands)
    for candidate in candidates:
        if is_looked_up(candidate, policy):
            wanted.add_event(candidate)
            wanted.accounts.update(accounts_of(candidate, policy))
    wanted.usage_by = accounts_by(candidates, policy)
    most_ahead = policy.limits.created_at_upper
    wanted.add_vanishing(
        [
            each
            for each in candidates
            if each.vanishes and check_vanish(each, groups, relay, now, most_ahead) is None
        ],
        candidates,
        left_groups,
    )
    for command in commands:
        match command:
            case ManagementChange():
                wanted.add_change(command)
            case ExpireRows():
                wanted.ids.update(row.id for row in command.rows)
                wanted.add_pin_lists(command.rows)
            case SweepRows():
                wanted.ids.update(row.event.id for row in command.rows)
                slots, dependencies = hold_lookups(command.rows, command.rules, actors)
                wanted.slots |= slots
                wanted.dependencies |= dependencies
            case SweepVersions():
                pass
            case SignLists():
                wanted.add_notices(command.groups, LISTS)
            case _:
                assert_never(command)
    return wanted.lookups(longest_s)


def is_looked_up(candidate: Candidate, policy: Policy) -> bool:
    """False for events that the judge refuses whatever is stored."""
    if candidate.malformed is not None:
        return candidate.vanishes
    return not misses_login(candidate, policy)


def accounts_of(candidate: Candidate, policy: Policy) -> Iterable[Account]:
    """Whose usage the quotas about this event need."""
    quotas = policy.quotas_of(candidate.event.kind)
    if not quotas:
        return ()
    event, group = candidate.event, candidate.row_group
    return [account for quota in quotas for account in quota.accounts_of(event, group)]


def accounts_by(
    candidates: Sequence[Candidate], policy: Policy
) -> Callable[[Found], Iterable[Account]]:
    """As `Lookups.usage_by`: an event without `h` counts in a group of these events, or of a row
    that is found."""
    named = {each.event.kind for each in candidates if each.named and each.targets is None}
    quotas = {each for kind in named for each in policy.quotas_of(kind) if each.per is Per.GROUP}
    if not quotas:
        return no_accounts

    def accounts(found: Found) -> Iterable[Account]:
        groups = {candidate.row_group for candidate in candidates}
        groups.update([row.group for row in (*found.rows.values(), *found.slots.values())])
        owed = [quota.account_of("", group) for quota in quotas for group in groups]
        return filter(None, owed)

    return accounts


class _Builder:
    """Collects what a `Lookups` holds."""

    def __init__(
        self, groups: Groups, actors: Actors, relay: str, policy: Policy, now: int
    ) -> None:
        self._groups = groups
        self._actors = actors
        self._operators = {*actors.owners, relay}
        """Keys that have an admin's rights in every group."""
        self._admitted: set[tuple[str, str]] = set()
        self._appointed: set[tuple[str, str]] = set()
        """(group, key) that an event of this batch may make a member, possibly with a role."""
        self._makers: set[tuple[str, str]] = set()
        """(group, key) that an event of this batch may make the group's founder."""
        self._joining: set[str] = set()
        """Keys that an event of this batch may make members of a group, or of the relay."""
        self._settings = policy.groups
        self._now = now
        self._relay = relay
        self._systems = policy.systems
        self._may_write_record = policy.may_write
        self.people_may_change = False
        """Whether the batch may make any key an owner, agent or known one."""
        self._whole_kinds = policy.judged_by_text
        self._banned_rows = policy.banned_rows
        self.ids: set[str] = set()
        self.slots: set[Slot] = set()
        self.accounts: set[Account] = set()
        self.usage_by: Callable[[Found], Iterable[Account]] = no_accounts
        self.dependencies: set[RetentionDependency] = set()
        self._tombstones: set[str] = set()
        self._candidates: list[Candidate] = []
        self._present: set[str | Slot] = set()
        self._prefixes: set[tuple[str, str]] = set()
        self._used_groups: set[str] = set()
        self._counted_groups: set[str] = set()
        self._vanishing: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._named: set[RecordName] = set()
        self._named_near: set[RecordName] = set()
        self._own_rows: set[OwnRow] = set()
        self._own_slots: set[Slot] = set()
        self._ending: set[str] = set()
        self._deleted_keys: set[str] = set()
        self._requests: set[str] = set()
        self._expiry_windows: set[int] = set()
        self._referrers: set[Reference] = set()

    def lookups(self, longest_s: float | None) -> Lookups:
        return Lookups(
            frozenset(self.ids),
            frozenset(self.slots),
            frozenset(self._tombstones),
            refusals=self._refusals if self._candidates else no_refusals,
            present=frozenset(self._present),
            id_prefixes=frozenset(self._prefixes),
            whole_kinds=self._whole_kinds,
            groups_with_content=frozenset(self._used_groups),
            counted_groups=frozenset(self._counted_groups),
            expiry_windows=frozenset(self._expiry_windows),
            vanishing_keys=self._vanishing,
            record_groups=frozenset(self._recorded),
            usage=frozenset(self.accounts),
            usage_by=self.usage_by,
            dependencies=frozenset(self.dependencies),
            own_rows=frozenset(self._own_rows),
            own_slots=frozenset(self._own_slots),
            slots_by=self._pin_lists if self._groups.pinned else no_slots,
            ending_groups=frozenset(self._ending),
            requests=frozenset(self._requests),
            named=frozenset(self._named),
            named_near=frozenset(self._named_near),
            deleted_keys=frozenset(self._deleted_keys),
            pinned_in=(
                self._pinned_in
                if self._vanishing or self._ending or self._deleted_keys
                else no_pins
            ),
            names_in=self._systems.names_in,
            referrers=frozenset(self._referrers),
            referring_kinds=self._settings.derived,
            longest_s=longest_s,
        )

    def _refusals(self) -> Iterable[tuple[str, str]]:
        for candidate in self._candidates:
            event, base = candidate.event, candidate.base
            yield from refusals_of(event)
            if base is not None:
                yield event_target(base.id), event.pubkey

    # -- events -------------------------------------------------------------------------------

    def add_event(self, candidate: Candidate) -> None:
        event, kind = candidate.event, candidate.event.kind
        tombstones = self._tombstones
        self._candidates.append(candidate)
        self.ids.add(event.id)
        tombstones.add(event_target(event.id))
        tombstones.add(key_target(event.pubkey))
        if kind in kinds.MEMBERSHIP_REQUESTS:
            self.slots.add(Slot(self._relay, kinds.RELAY_MEMBERS, ""))
        slot = candidate.slot
        if slot is not None:
            self.slots.add(slot)
        address = slot or address_slot(event)
        if address is not None:
            tombstones.update((address_target(address), slot_target(address)))
            if candidate.base is not None:
                tombstones.add(event_target(candidate.base.id))
                tombstones.add(versions_target(address))
        if candidate.targets is not None:
            if candidate.sender.origin.is_trusted:
                self.ids.update(candidate.targets.ids)  # whether they are here is asked then
            own = (OwnRow(event_id, event.pubkey) for event_id in candidate.targets.ids)
            self._own_rows.update(own)
            self._requests.add(event.id)
            self._own_slots.update(candidate.targets.slots)
        elif kind == kinds.GIFT_WRAP:
            tombstones.update(key_target(pubkey) for pubkey in event.tag_values("p"))
        if candidate.named is not None:
            self.ids.update(candidate.named.ids)
            self.slots.update(candidate.named.slots)
        if candidate.sender.origin is not Origin.WIRE and (candidate.group or candidate.named):
            # In an import a target may come after what names it.
            self._referrers.update(pins_of(event))
        if kind == kinds.RELAY_JOIN:
            self._joining.add(event.pubkey)
        if candidate.references is not NO_REFERENCES:
            self.ids |= candidate.references.ids
            if self._follows_chains(candidate):
                self._named |= candidate.references.names
            elif self._may_refer(candidate):
                self._named_near |= candidate.references.names
        if candidate.expiry_window is not None:
            self._expiry_windows.add(candidate.expiry_window)
        if candidate.group is not None:
            self._add_in_group(candidate, candidate.group)
        if self._groups.pinned:
            self._add_pins(outdated_pins(candidate, self._groups))

    def _may_refer(self, candidate: Candidate) -> bool:
        """Whether the author may be allowed to write such a record when it is judged. Anybody may
        give thousands of rows the names that it refers to."""
        if (
            candidate.sender.origin is not Origin.WIRE
            or candidate.named is not None  # its group is not known yet
            or self.people_may_change
        ):
            return True
        return self._may_write_record(candidate.event, self._words(candidate))

    def _follows_chains(self, candidate: Candidate) -> bool:
        """Whether `_records` of the world may follow chains of records for this author."""
        is_sent = candidate.sender.origin is Origin.WIRE
        return not is_sent or bool(self._words(candidate) & FOLLOW_CHAINS)

    def _words(self, candidate: Candidate) -> Set[Who]:
        """The who-words that the author may have when the event is judged."""
        pubkey, group_id = candidate.event.pubkey, candidate.group
        group = self._groups.get(group_id)
        who = author_words(pubkey, self._actors, self._groups, group)
        is_vouched_for = any(each.agent == pubkey for each in candidate.sender.attested)
        if is_vouched_for or pubkey in self._joining:
            who |= {Who.MEMBER, Who.KNOWN} | ({Who.INSIDER} if group_id else set())
        if (group_id, pubkey) in self._appointed:
            who |= {Who.ADMIN} | ({Who.AGENT} if self._may_have_agents(group_id) else set())
        return who

    def _may_have_agents(self, group_id: str | None) -> bool:
        """As `holds_agent_role`: whether roles may make agents in this group."""
        group, actors = self._groups.get(group_id), self._actors
        made_by = {maker for made, maker in self._makers if made == group_id}
        if group is not None:
            made_by.add(group.founder)
        return any(
            actors.is_owner(maker) or actors.is_agent(maker) or maker == self._relay
            for maker in made_by
        )

    def _may_write(self, candidate: Candidate, group: Group) -> bool:
        """Whether the author may be allowed to write into the group, by its flags and members."""
        pubkey = candidate.event.pubkey
        vouching = (each.owner for each in candidate.sender.attested if each.agent == pubkey)
        return (
            not group.only_members_write
            or pubkey in self._operators
            or any(
                key in group.members or (group.id, key) in self._admitted
                for key in (pubkey, *vouching)
            )
        )

    def _may_moderate(self, candidate: Candidate, group_id: str) -> bool:
        """Whether the author may have the role in the group that the event needs when it is
        judged."""
        pubkey, group = candidate.event.pubkey, self._groups.get(group_id)
        if (
            candidate.sender.origin is not Origin.WIRE
            or pubkey in self._operators
            or (group_id, pubkey) in self._appointed
        ):
            return True
        if group is None:
            return False
        is_for_admins = candidate.event.kind in _BY_ADMINS
        return group.is_admin(pubkey) if is_for_admins else group.is_moderated_by(pubkey)

    def _is_untimely(self, candidate: Candidate) -> bool:
        event = candidate.event
        if candidate.sender.origin is not Origin.WIRE:
            return False
        return check_date(event.kind, event.created_at, self._now, self._settings) is not None

    def _admit(self, candidate: Candidate, group_id: str) -> None:
        """Note the keys that the event may make members of the group."""
        event, group = candidate.event, self._groups.get(group_id)
        if event.kind == kinds.CREATE_GROUP and group is None:
            may_create = bool(self._words(candidate) & self._settings.create)
            is_sent = candidate.sender.origin is Origin.WIRE
            if may_create or self.people_may_change or not is_sent:
                self._makers.add((group_id, event.pubkey))
                self._appoint(group_id, [event.pubkey])
        elif event.kind == kinds.JOIN_REQUEST:
            self._admitted.add((group_id, event.pubkey))
            self._joining.add(event.pubkey)
        elif event.kind == kinds.PUT_USER and self._may_moderate(candidate, group_id):
            self._appoint(group_id, event.tag_values("p"))

    def _appoint(self, group_id: str, pubkeys: Iterable[str]) -> None:
        """Note keys that the event may give a role in the group; a join request never gives one."""
        appointed = [(group_id, pubkey) for pubkey in pubkeys]
        self._joining.update([pubkey for _, pubkey in appointed])
        self._appointed.update(appointed)
        self._admitted.update(appointed)

    def _add_previous(self, candidate: Candidate, group_id: str) -> None:
        """Look up the prefixes for `check_previous`, unless the author is refused before that
        check."""
        group, event = self._groups.get(group_id), candidate.event
        if group is None or candidate.sender.origin is not Origin.WIRE:
            return
        if event.kind == kinds.JOIN_REQUEST:
            is_asked = not group.only_members_read
        elif event.kind in kinds.MODERATION:
            is_asked = self._may_moderate(candidate, group_id)
        else:
            is_asked = self._may_write(candidate, group)
        if is_asked:
            prefixes = previous_to_find(previous_in(event))
            self._prefixes.update((group_id, prefix) for prefix in prefixes)

    def _add_in_group(self, candidate: Candidate, group_id: str) -> None:
        event, kind = candidate.event, candidate.event.kind
        self._add_previous(candidate, group_id)
        if kind == kinds.DELETION:
            self._add_withdrawn(candidate, group_id)
        if kind == kinds.GROUP_METADATA and candidate.sender.origin is Origin.TRUSTED_IMPORT:
            self._add_replaced(group_id)
        if kind not in kinds.GROUP_RECORDS:
            return
        self._admit(candidate, group_id)
        if kind in kinds.MODERATION and (
            not self._may_moderate(candidate, group_id) or self._is_untimely(candidate)
        ):
            return  # it is refused for that
        if kind == kinds.DELETE_EVENT:
            named_ids = filter(is_hex64, event.tag_values("e"))
            self._own_rows.update(OwnRow(event_id, None, group_id) for event_id in named_ids)
        elif kind == kinds.UPDATE_PINS:
            self._present.update(filter(is_hex64, event.tag_values("e")))
            self._present.update(filter(None, map(address_of, event.tag_values("a"))))
        elif kind == kinds.EDIT_METADATA or (
            kind == kinds.DELETE_GROUP and candidate.sender.origin is not Origin.WIRE
        ):
            self._used_groups.add(group_id)
            if any(map(event.has_tag, _FOR_MEMBERS)):
                self._counted_groups.add(group_id)
                self.accounts.add(deletions_in(group_id))
        if kind == kinds.DELETE_GROUP:
            self._ending.add(group_id)
        # The relay will replace its 39000–39005 of this group, and the 39000 of related ones.
        self._add_replaced(group_id)
        related = _related_groups(event, group_id, self._groups)
        self.slots.update(Slot(self._relay, kinds.GROUP_METADATA, other) for other in related)
        group = self._groups.get(group_id)
        if kind == kinds.JOIN_REQUEST and group is not None and event.pubkey in group.requests:
            self.ids.add(group.requests[event.pubkey])

    def _add_replaced(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        is_apart = group is not None and is_listed_apart(group)
        self.add_notices([group_id], NOTICES - LISTS if is_apart else NOTICES)

    def add_notices(self, group_ids: Iterable[str], which: Set[int]) -> None:
        """Look up the ones that the relay will replace."""
        for group_id in group_ids:
            self.slots.update(Slot(self._relay, kind, group_id) for kind in which)

    def _add_withdrawn(self, candidate: Candidate, group_id: str) -> None:
        """Look up the 9009 of the codes that a kind 5 withdraws; nothing for authors without a
        role, so that not even the time it takes reveals a code."""
        group = self._groups.get(group_id)
        if group is None or not group.invites or not self._may_moderate(candidate, group_id):
            return
        codes = group.invites.keys() & candidate.event.tag_values("code")
        made_by = {group.invites[code].event_id for code in codes}
        self._own_rows.update(OwnRow(event_id, None, group_id) for event_id in made_by)

    def add_vanishing(
        self,
        requests: Iterable[Candidate],
        candidates: Iterable[Candidate],
        left_groups: Set[str] | None,
    ) -> None:
        """Look up the state of the groups that vanishing keys leave. `candidates`: of the batch;
        `left_groups`: as of `lookups_for`."""
        leaving = self._vanishing
        for candidate in requests:
            key, at = candidate.event.pubkey, candidate.event.created_at
            leaving[key] = max(at, leaving.get(key, at))
        if not leaving:
            return
        if left_groups is not None:  # a key may be in ten thousand, and takes as many pieces
            for group_id in left_groups:
                self._add_replaced(group_id)
            return
        groups = self._groups
        self.slots.add(Slot(self._relay, kinds.RELAY_MEMBERS, ""))
        for pubkey in leaving:
            for group_id in groups.groups_of(pubkey):
                self._add_replaced(group_id)
        for group in groups.by_id.values():  # there may be a hundred thousand
            if group.requests:
                self.ids.update([group.requests[key] for key in leaving if key in group.requests])
        self._recorded.update(
            candidate.group
            for candidate in candidates
            if candidate.event.pubkey in leaving
            and candidate.event.kind in kinds.MODERATION
            and candidate.group is not None
        )

    def _pinned_in(self, group_id: str) -> PinnedRows:
        group = self._groups.get(group_id)
        if group is None or not group.pins:
            return PinnedRows()
        listed = Slot(self._relay, kinds.GROUP_PINS, group_id)
        return PinnedRows(frozenset(_rows_of_pins(group)), frozenset({listed}))

    def _pin_lists(self, rows: Iterable[Stored]) -> frozenset[Slot]:
        """The 39005 of groups that pin one of these rows.

        Whether the others that a group pins are stored, a deletion need not know.
        """
        group_ids = pinning_rows(names_of(rows), self._groups)
        return frozenset([Slot(self._relay, kinds.GROUP_PINS, each) for each in group_ids])

    # -- commands -----------------------------------------------------------------------------

    def add_change(self, command: ManagementChange) -> None:
        """Look up the events that a NIP-86 call bans, and the keys whose rows it deletes."""
        self._own_rows.update(
            OwnRow(change.item) for change in command.changes if change.bans_event
        )
        self._deleted_keys |= command.deleted_authors
        if self._banned_rows is BannedAuthorRows.DELETE:
            self._deleted_keys.update(change.item for change in command.changes if change.bans_key)
        self.slots.add(Slot(self._relay, kinds.RELAY_MEMBERS, ""))
        self.slots.update(
            Slot(self._relay, kinds.RELAY_ROLE, change.item)
            for change in command.changes
            if change.list_name is ListName.ROLES
        )

    def add_pin_lists(self, expired: Iterable[ExpiredRow]) -> None:
        """Look up the 39005 of groups that pin one of these rows.

        The other pinned events are not looked up: anybody may pin thousands of large ones.
        """
        for row in expired:
            for group_id in pinning_expired(row, self._groups):
                self.slots.add(Slot(self._relay, kinds.GROUP_PINS, group_id))

    def _add_pins(self, group_ids: Set[str]) -> None:
        """Look up whether the pinned events of these groups are stored, and the 39005 that lists
        them."""
        for group_id in group_ids:
            self.slots.add(Slot(self._relay, kinds.GROUP_PINS, group_id))
            self._present.update(_rows_of_pins(self._groups.by_id[group_id]))


def _rows_of_pins(group: Group) -> Iterable[str | Slot]:
    return filter(None, [row_of_pin((name, value)) for name, value, *_ in group.pins])


def _related_groups(event: Event, group_id: str, groups: Groups) -> Iterable[str]:
    """Groups whose 39000 may change together with that of the event's group: those above it that it
    comes to or leaves, and its subgroups when it ends. An event with two parents is refused."""
    group = groups.get(group_id)
    parent = () if group is None or group.parent is None else (group.parent,)
    if event.kind == kinds.DELETE_GROUP:
        return parent if group is None else (*parent, *group.children)
    if event.kind in (kinds.EDIT_METADATA, kinds.CREATE_GROUP):
        return (*parent, *event.tag_values("parent")[:1])
    return ()
