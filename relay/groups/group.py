"""Group and Groups: the fold of the Actions in a log. Frozen; a change is a new value.

Invariants: `group_after` is the only fold of Actions: `relay.groups.rules` applies accepted Actions
with it, and `replayed` stored ones. So the live state equals a replay of the log, except for the
last members of deleted groups (`EndedGroup`). It does not raise and checks no rights.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

from relay.groups.actions import (
    UNTOLD_FLAGS,
    CreateGroup,
    CreateInvites,
    DeleteEvents,
    DeleteGroup,
    EditMetadata,
    Flag,
    JoinRequest,
    LeaveRequest,
    Notice,
    PutUsers,
    RemoveUsers,
    UpdatePins,
    logged_action,
)
from relay.groups.key_map import KeyMap, OrderedMap, TwoWayMap, changed_set
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from relay.groups.actions import Action, Description, InviteUse
    from relay.nostr.event import Event

_V = TypeVar("_V")
_K = TypeVar("_K")

_NONE: Final = KeyMap[str, Any]()
"""Shared, as `_NO_REQUESTS`: anybody may make 100,000 groups, and most have one member only."""
_NO_REQUESTS: Final = TwoWayMap[str, str]()
_NOBODY: Final = OrderedMap[str, tuple[str, ...]]()
_NOTICES: Final = {kind: kind for kind in kinds.GROUP_STATE}
"""One int object for each kind."""

Pin = tuple[str, str]
"""("e", id) or ("a", address): what a pin names."""


class Role(StrEnum):
    """The roles that have rights (N29-112); any other is only a name."""

    ADMIN = "admin"
    MODERATOR = "moderator"


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite code, kept as long as its 9009, used up or not. Only admins may read it."""

    event_id: str
    """The 9009 that made it."""
    made_by: str
    """Public key of the author of the 9009."""
    created_at: int
    expires_at: int | None
    reusable: bool
    index: int
    """Which of the `code` tags of its 9009."""
    used: int = 0
    """How often it was used; the current policy says how often it may be (Z-14)."""
    removals: int = 0
    """`Group.removals` when it was made: it does not admit keys that were removed later (N29-40).
    Compared by order of acceptance (N29-55), because created_at has a resolution of one second."""

    def is_open(self, *, now: int, uses: int) -> bool:
        """Whether the code admits anybody; `uses`: the limit for a code without `reusable`."""
        if self.expires_at is not None and self.expires_at <= now:
            return False
        return self.reusable or self.used < uses


@dataclass(frozen=True, slots=True)
class Group:
    """One group after the events so far."""

    id: str
    began_at: int = 0
    """created_at of its first record, the 9007 if that is stored."""
    metadata: tuple[tuple[str, ...], ...] = ()
    """Tags of 39000 in order, without `d`, the flags, `supported_kinds`, `parent` and `child`."""
    flags: frozenset[Flag] = frozenset()
    supported_kinds: frozenset[int] | None = None
    members: OrderedMap[str, tuple[str, ...]] = field(default_factory=lambda: _NOBODY)
    """pubkey → roles; a plain member has none."""
    invites: KeyMap[str, Invite] = field(default_factory=lambda: _NONE)
    """code → invite."""
    codes: KeyMap[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    """id of a 9009 → its codes."""
    removed: KeyMap[str, int] = field(default_factory=lambda: _NONE)
    """pubkey → value of `removals` after the last removal of the key by an admin (N29-40)."""
    removals: int = 0
    """Number of removals by admins so far."""
    requests: TwoWayMap[str, str] = field(default_factory=lambda: _NO_REQUESTS)
    """pubkey → id of its pending 9021 (N29-35)."""
    involved: KeyMap[str, bool] = field(default_factory=lambda: _NONE)
    """Every key that was ever added, removed or asked to join: it may know of the group. True: only
    because of a pending 9021; the entry is removed together with it."""
    founder: str = ""
    """The key that made the group, of the 9007 or as the relay's first 9000 names it; empty:
    unknown."""
    parent: str | None = None
    """The group that this one is a subgroup of (N29-131)."""
    children: tuple[str, ...] = ()
    """Its subgroups, in the order that its admins gave them (N29-137)."""
    pins: tuple[tuple[str, ...], ...] = ()
    """`e` and `a` tags of 39005, in order (N29-172)."""
    closed_at: tuple[int, ...] = field(default=(), compare=False)
    """When a 9002 made it private last, by the clock of the relay; forgotten by a restart."""
    former_relay_keys: frozenset[str] = frozenset()
    """Keys of relays that the group was moved from (N29-152): they signed a 9000 that names the
    founder (N29-82). Their records count as this relay's own."""
    notice_times: Mapping[int, int] = field(default_factory=dict)
    """39000…39005 → created_at of the newest of that kind (N29-68)."""

    @property
    def only_members_read(self) -> bool:
        """Only insiders read its rows."""
        return Flag.PRIVATE in self.flags or Flag.HIDDEN in self.flags

    @property
    def is_hidden(self) -> bool:
        return Flag.HIDDEN in self.flags

    @property
    def is_closed(self) -> bool:
        """Join requests need an invite code (N29-34)."""
        return Flag.CLOSED in self.flags

    @property
    def only_members_write(self) -> bool:
        """Only insiders write (N29-10, N29-11)."""
        return Flag.RESTRICTED in self.flags or self.only_members_read

    def is_admin(self, pubkey: str) -> bool:
        return Role.ADMIN in self.members.get(pubkey, ())

    def is_moderated_by(self, pubkey: str) -> bool:
        """Whether the key has a role with rights; NIP-29 calls all of these admins (N29-110)."""
        return not {Role.ADMIN, Role.MODERATOR}.isdisjoint(self.members.get(pubkey, ()))

    def has_admin(self, banned: frozenset[str] = frozenset()) -> bool:
        return any(
            Role.ADMIN in roles and pubkey not in banned for pubkey, roles in self.members.items()
        )

    def admins(self) -> dict[str, tuple[str, ...]]:
        """pubkey → roles of members with a role: what 39001 lists (N29-110)."""
        found = [key for key, roles in self.members.items() if roles]
        return {key: self.members[key] for key in self.members.in_order(found)}

    def is_relay_key(self, pubkey: str, relay_pubkey: str) -> bool:
        """Whether the key is this relay's or a former relay's (N29-80, N29-152)."""
        return pubkey == relay_pubkey or pubkey in self.former_relay_keys

    def is_founding(self, put: PutUsers) -> bool:
        """Whether a 9000 only names the founder of this new group, as a relay does after a 9007
        (N29-82). Signed by another key, it tells that the group was moved (N29-152)."""
        return (
            (not self.members or put.users == self.members)
            and (not self.founder or self.founder in put.users)
            and list(put.users.values()) == [(Role.ADMIN.value,)]
            and put.pubkey not in put.users
        )

    def with_description(self, description: Description) -> Group:
        return replace(
            self,
            metadata=description.metadata,
            flags=description.flags,
            supported_kinds=description.supported_kinds,
            parent=description.parent,
            children=description.children,
        )

    def with_users(self, users: Mapping[str, tuple[str, ...]]) -> Group:
        """With these members and exactly these roles (N29-46); earlier removals are void."""
        return replace(
            self,
            members=self.members.changed(users),
            removed=self.removed.without(users),
            requests=self.requests.without(users),
            involved=_with_known(self.involved, users),
        )

    def without_users(self, pubkeys: Set[str]) -> Group:
        """Without these members, who left by themselves."""
        if not pubkeys:
            return self
        return replace(
            self,
            members=self.members.without(pubkeys),
            requests=self.requests.without(pubkeys),
            involved=_with_known(self.involved, pubkeys),
        )

    def with_removed(self, pubkeys: Set[str]) -> Group:
        """Without these keys, which an admin removed. Keys that were not members are recorded too:
        they may read that 9001."""
        if not pubkeys:
            return self
        removals = self.removals + 1
        return replace(
            self.without_users(pubkeys),
            removed=self.removed.changed(dict.fromkeys(pubkeys, removals)),
            removals=removals,
        )

    def admits(self, invite: Invite, pubkey: str, *, now: int, uses: int) -> bool:
        """Whether the code admits this key."""
        was_removed = self.removed.get(pubkey, 0) > invite.removals
        return not was_removed and invite.is_open(now=now, uses=uses)

    def with_codes(self, action: CreateInvites) -> Group:
        return replace(
            self,
            invites=self.invites.changed(_invites_of(action, self.removals)),
            codes=self.codes.changed({action.id: action.codes}),
        )

    def with_use_of(self, use: InviteUse) -> Group:
        """With one more use of this code."""
        codes = self.codes.get(use.event_id, ())
        code = codes[use.code_index] if use.code_index < len(codes) else ""
        invite = self.invites.get(code)
        if invite is None or (invite.event_id, invite.index) != use:  # of another 9009
            return self
        used = replace(invite, used=invite.used + 1)
        return replace(self, invites=self.invites.changed({code: used}))

    def with_request(self, pubkey: str, event_id: str) -> Group:
        """With this 9021 as the key's pending one (N29-35)."""
        is_new = {} if pubkey in self.involved else {pubkey: True}
        return replace(
            self,
            requests=self.requests.changed({pubkey: event_id}),
            involved=self.involved.changed(is_new),
        )

    def without_pin(self, pin: Pin) -> Group:
        return replace(self, pins=tuple(tag for tag in self.pins if tag[:2] != pin))

    def without_rows(self, ids: Set[str]) -> Group:
        """Without the codes and pending requests of these rows (9009, 9021), which were deleted."""
        made = {id_ for id_ in ids if id_ in self.codes}
        asked_in = self.requests.keys_of
        withdrawn = [asked_in[id_] for id_ in ids if id_ in asked_in]
        if not made and not withdrawn:
            return self
        codes = {
            code
            for id_ in made
            for code in self.codes[id_]
            if code in self.invites and self.invites[code].event_id == id_  # not of another 9009
        }
        return replace(
            self,
            invites=self.invites.without(codes),
            codes=self.codes.without(made),
            requests=self.requests.without(withdrawn),
            involved=self.involved.without([key for key in withdrawn if self.involved[key]]),
        )


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """Who may read the 9008 of a deleted group. Its log is deleted, so the store keeps this."""

    members: frozenset[str] = frozenset()
    """Members at the end of the group, except keys that vanished since."""
    is_public: bool = False
    """The group was neither private nor hidden."""


def ended(group: Group) -> EndedGroup:
    return EndedGroup(frozenset(group.members), is_public=not group.only_members_read)


_NO_GROUPS: Final[frozenset[str]] = frozenset()


class GroupsByKey(KeyMap[_K, "Set[str]"]):
    """Key → ids of groups: anybody may make hundreds of thousands of keys members of groups."""

    __slots__ = ()

    def of(self, key: _K) -> Set[str]:
        ids: Set[str] = self.get(key, _NO_GROUPS)
        return ids

    def moved(self, moves: Iterable[tuple[Set[_K], Set[_K], str]]) -> GroupsByKey[_K]:
        """With changed keys of some groups; `moves`: (old keys, new keys, group id) of each."""
        came: dict[_K, frozenset[str] | set[str]] = {}
        left: dict[_K, set[str]] = {}
        for old, new, group_id in moves:
            alone = frozenset((group_id,))  # shared, because most keys are in one group
            for key in old - new:
                left.setdefault(key, set()).add(group_id)
                if key in came:
                    came[key] -= alone
            for key in new - old:
                ids = came.get(key)
                if ids is None:
                    came[key] = alone
                elif isinstance(ids, set):
                    ids.add(group_id)
                else:
                    came[key] = {group_id, *ids}
        changed = {
            key: changed_set(self.of(key), came.get(key, _NO_GROUPS), left.get(key, _NO_GROUPS))
            for key in left.keys() | came.keys()
        }
        there = {key: ids for key, ids in changed.items() if ids}
        return self.changed(there, changed.keys() - there.keys())


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of this relay."""

    by_id: KeyMap[str, Group] = field(default_factory=KeyMap)
    ended: KeyMap[str, EndedGroup] = field(default_factory=KeyMap)
    """Deleted groups, whose ids cannot be used again (N29-124)."""
    memberships: GroupsByKey[str] = field(default_factory=GroupsByKey)
    """pubkey → ids of the groups that it is a member of."""
    pinned: GroupsByKey[Pin] = field(default_factory=GroupsByKey)
    """pin → ids of the groups that pin it."""
    former: GroupsByKey[str] = field(default_factory=GroupsByKey)
    """pubkey → ids of the deleted groups that it was a member of at their end."""
    founded: GroupsByKey[str] = field(default_factory=GroupsByKey)
    """pubkey → ids of the groups that it made."""

    def get(self, group_id: str | None) -> Group | None:
        return self.by_id.get(group_id) if group_id is not None else None

    def is_member(self, pubkey: str) -> bool:
        """Whether the key is a member of any group."""
        return pubkey in self.memberships

    def groups_of(self, pubkey: str) -> Set[str]:
        return self.memberships.of(pubkey)

    def made_by(self, pubkey: str) -> Set[str]:
        """The groups of which the key is the founder."""
        return self.founded.of(pubkey)

    def ended_with(self, pubkey: str) -> Set[str]:
        """The deleted groups that the key was a member of at their end."""
        return self.former.of(pubkey)

    def with_group(self, group: Group, users: Set[str] | None = None) -> Groups:
        """`with_groups` for one group."""
        return self.with_groups((group,), users)

    def with_groups(self, groups: Iterable[Group], users: Set[str] | None = None) -> Groups:
        """With these groups added, or in place of those with their ids. Each id occurs once.
        `users`: keys whose membership may differ; None: any."""
        changed: dict[str, Group] = {}
        members: list[tuple[Set[str], Set[str], str]] = []
        pins: list[tuple[Set[Pin], Set[Pin], str]] = []
        founders: list[tuple[Set[str], Set[str], str]] = []
        for group in groups:
            changed[group.id] = group
            before = self.by_id.get(group.id)
            if before is None or before.members is not group.members:
                was, are = _NONE if before is None else before.members, group.members
                differing = was.differing(are) if users is None else users
                members.append((_among(differing, was), _among(differing, are), group.id))
            if (() if before is None else before.pins) != group.pins:
                pins.append((_pinned_by(before), _pinned_by(group), group.id))
            if before is None or before.founder != group.founder:
                founders.append((_founder_of(before), {group.founder}, group.id))
        if not changed:
            return self
        return replace(
            self,
            by_id=self.by_id.changed(changed),
            memberships=self.memberships.moved(members),
            pinned=self.pinned.moved(pins),
            founded=self.founded.moved(founders),
        )

    def without_group(self, group_id: str, left: EndedGroup | None = None) -> Groups:
        """These groups after one is deleted; without `left` only operators read its 9008."""
        before = self.by_id.get(group_id)
        old = frozenset[str](() if before is None else before.members)
        groups = replace(
            self,
            by_id=self.by_id.without((group_id,)),
            memberships=self.memberships.moved([(old, frozenset(), group_id)]),
            pinned=self.pinned.moved([(_pinned_by(before), frozenset(), group_id)]),
            founded=self.founded.moved([(_founder_of(before), frozenset(), group_id)]),
        )
        return groups.with_ended({group_id: left or EndedGroup()})

    def with_last_members(self, known: Mapping[str, EndedGroup]) -> Groups:
        """After a replay: the ended groups, with their members as the store has them."""
        return self.with_ended({key: known[key] for key in self.ended.keys() & known.keys()})

    def with_ended(self, added: Mapping[str, EndedGroup]) -> Groups:
        """These groups with deleted ones added, or in place of those with their ids."""
        members = (
            (self.ended.get(group_id, EndedGroup()).members, group.members, group_id)
            for group_id, group in added.items()
        )
        return replace(self, ended=self.ended.changed(added), former=self.former.moved(members))


class Replay:
    """These groups after more events of the log, added in parts, in order of seq.

    Events that change no group are skipped. What a deleted row had changed,
    `relay.groups.membership.groups_without_rows` undoes.
    """

    def __init__(self, groups: Groups, relay_pubkey: str) -> None:
        self._groups = groups
        self._relay_pubkey = relay_pubkey
        self._touched: dict[str, Group] = {}

    def add(self, events: Iterable[Event]) -> None:
        touched = self._touched
        for event in events:
            action = logged_action(event, self._relay_pubkey)
            if action is None or action.group in self._groups.ended:
                continue
            group_id = action.group
            if isinstance(action, DeleteGroup):
                touched.pop(group_id, None)
                self._groups = self._groups.without_group(group_id)
                continue
            # Its 9007 may be deleted (vanish of the author): any record proves that there is one.
            group = (
                touched.get(group_id)
                or self._groups.get(group_id)
                or Group(group_id, action.created_at, flags=UNTOLD_FLAGS)
            )
            touched[group_id] = group_after(group, action, self._relay_pubkey)

    def groups(self) -> Groups:
        """Once, at the end: the groups that were changed are compared with what they were."""
        return self._groups.with_groups(self._touched.values())


def replayed(groups: Groups, events: Iterable[Event], relay_pubkey: str) -> Groups:
    """`Replay` of all these events; several calls with parts of the log give the same."""
    replay = Replay(groups, relay_pubkey)
    replay.add(events)
    return replay.groups()


def group_after(group: Group, action: Action | Notice, relay_pubkey: str) -> Group:
    """The group after an accepted Action, or after a Notice.

    A 9002 or 9010 has no effect here but by its Notice, because the effect depends on the policy.
    """
    match action:
        case PutUsers():
            return _after_put(group, action, relay_pubkey)
        case RemoveUsers(pubkeys=pubkeys):
            if action.is_own_wish and group.is_relay_key(action.pubkey, relay_pubkey):
                return group.without_users(pubkeys)
            own = pubkeys & {action.pubkey}
            return group.without_users(own).with_removed(pubkeys - own)
        case DeleteEvents(ids=ids):
            return group.without_rows(frozenset(ids))
        case CreateInvites():
            return group.with_codes(action)
        case JoinRequest(pubkey=pubkey):
            return group if pubkey in group.members else group.with_request(pubkey, action.id)
        case Notice():
            return _after_notice(group, action)
        case CreateGroup(pubkey=pubkey):
            # A former relay key may vanish, and its first 9000 with it.
            return replace(group, founder=pubkey)
        case EditMetadata() | DeleteGroup() | UpdatePins() | LeaveRequest():
            return group
        case _:
            assert_never(action)


def _after_put(group: Group, put: PutUsers, relay_pubkey: str) -> Group:
    if group.is_founding(put) and put.pubkey != relay_pubkey:
        group = replace(group, former_relay_keys=group.former_relay_keys | {put.pubkey})
    elif not group.founder and group.is_founding(put):
        # The 9007 of a founder that vanished is deleted; the relay's 9000 is not.
        group = replace(group, founder=next(iter(put.users)))
    elif not put.users.keys() <= group.members.keys():  # by any key: the relay's may have changed
        for use in put.invite_uses:
            group = group.with_use_of(use)
    return group.with_users(put.users)


def _after_notice(group: Group, notice: Notice) -> Group:
    times = {**group.notice_times, _NOTICES[notice.kind]: notice.created_at}
    group = replace(group, notice_times=times)
    if notice.description is not None:
        group = group.with_description(notice.description)
    return group if notice.pins is None else replace(group, pins=notice.pins)


def _invites_of(action: CreateInvites, removals: int) -> dict[str, Invite]:
    """code → invite."""
    return {
        code: Invite(
            action.id,
            action.pubkey,
            action.created_at,
            action.expires_at,
            action.reusable,
            index,
            removals=removals,
        )
        for index, code in enumerate(action.codes)
    }


def pins_of(event: Event) -> tuple[Pin, Pin]:
    """The pins that would name the event: by id, by address."""
    d = "" if kinds.class_of(event.kind) is kinds.KindClass.REPLACEABLE else event.d
    return ("e", event.id), ("a", f"{event.kind}:{event.pubkey}:{d}")


def _among(users: Set[str], members: KeyMap[str, Any]) -> frozenset[str]:
    return frozenset([key for key in users if key in members])


def _with_known(involved: KeyMap[str, bool], keys: Iterable[str]) -> KeyMap[str, bool]:
    """With these keys marked as involved for another reason than a pending 9021."""
    return involved.changed({key: False for key in keys if involved.get(key, True)})


def _pinned_by(group: Group | None) -> frozenset[Pin]:
    return frozenset() if group is None else frozenset((tag[0], tag[1]) for tag in group.pins)


def _founder_of(group: Group | None) -> frozenset[str]:
    return frozenset() if group is None else frozenset((group.founder,))
