"""Group and Groups: what NIP-29 events add up to. Frozen; a change is a new value.

Invariants: `group_after` is the one fold. `relay.groups.rules` folds with it what it lets in,
`replayed` what the store gives back, so that both come to the same. It never raises and judges
nothing: what stands in the log was accepted, perhaps under other rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from relay.nostr.event import Event

_V = TypeVar("_V")
_K = TypeVar("_K")

Pin = tuple[str, str]
"""("e", id) or ("a", address): what a pin names."""


class Flag(StrEnum):
    """Independent of each other (contract §8)."""

    PRIVATE = "private"
    RESTRICTED = "restricted"
    HIDDEN = "hidden"
    CLOSED = "closed"
    LIVEKIT = "livekit"


FLAGS: Final[Mapping[str, Flag]] = {flag.value: flag for flag in Flag}

SINGLE_VALUED: Final = ("name", "picture", "banner", "about")
"""What 39000 says once and first (N29-62)."""

PIN_TAGS: Final = ("e", "a")
_NO_METADATA: Final = ("d", "supported_kinds", "parent", "child")

SHUT: Final = frozenset({Flag.PRIVATE, Flag.RESTRICTED, Flag.CLOSED})
"""What a group counts as until its 39000 is read: a log with a hole in it opens nothing."""


class Role(StrEnum):
    """The roles with powers here (N29-112); any other name is a label."""

    ADMIN = "admin"
    MODERATOR = "moderator"


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite code; never shown but to admins. Stays, spent or not, as long as its 9009 does."""

    event_id: str
    """The 9009 that made it."""
    created_at: int
    expires_at: int | None = None
    reusable: bool = False
    index: int = 0
    """Which of the `code` tags of its 9009."""
    used: int = 0
    """Counted, not subtracted: how often is often enough is the policy of the day (Z-14)."""
    excluded: frozenset[str] = frozenset()
    """Keys that an admin removed after it was made: it lets none of them back in (N29-40)."""

    def admits(self, pubkey: str, *, now: int, uses: int) -> bool:
        """Whether the code lets this key in; `uses`: how often a code not `reusable` is good."""
        if self.expires_at is not None and self.expires_at <= now:
            return False
        return (self.reusable or self.used < uses) and pubkey not in self.excluded


@dataclass(frozen=True, slots=True)
class Group:
    """One group as the events so far leave it."""

    id: str
    metadata: tuple[tuple[str, ...], ...] = ()
    """Tags of 39000 but `d`, the flags, `supported_kinds`, `parent` and `child`, in order."""
    flags: frozenset[Flag] = frozenset()
    supported_kinds: frozenset[int] | None = None
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """pubkey → roles; a plain member has none."""
    invites: Mapping[str, Invite] = field(default_factory=dict)
    """code → invite."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """pubkey → created_at of the 9001 by which an admin removed it (N29-40)."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """pubkey → id of its pending 9021 (N29-35)."""
    ever_involved: frozenset[str] = frozenset()
    """Every key once put in, taken out or waiting: such a key may be told that the group exists."""
    only_requested: frozenset[str] = frozenset()
    """Those of `ever_involved` who only wait: without their 9021 they are nobody here."""
    parent: str | None = None
    """The group that this one is a subgroup of (N29-131)."""
    children: tuple[str, ...] = ()
    """Its subgroups, in the order that its admins gave them (N29-137)."""
    pins: tuple[tuple[str, ...], ...] = ()
    """`e` and `a` tags of 39005, in order (N29-172)."""
    former_relay_keys: frozenset[str] = frozenset()
    """Keys that first said, as a relay does, who the founder is (N29-82): of relays that the group
    was moved from, whose records of that time count as this relay's own (N29-152)."""
    notice_times: Mapping[int, int] = field(default_factory=dict)
    """kind of 39000…39005 → created_at of its newest (N29-68)."""

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
        """Whether the key has a role with powers here; such count as admins (N29-110)."""
        return not {Role.ADMIN, Role.MODERATOR}.isdisjoint(self.members.get(pubkey, ()))

    def has_admin(self) -> bool:
        return any(Role.ADMIN in roles for roles in self.members.values())

    def admins(self) -> dict[str, tuple[str, ...]]:
        """Members that hold a role: what 39001 lists (N29-110)."""
        return {pubkey: roles for pubkey, roles in self.members.items() if roles}

    def is_relay_key(self, pubkey: str, relay_pubkey: str) -> bool:
        """Whether a record by this key is one that a relay issued by itself (N29-80, N29-152)."""
        return pubkey == relay_pubkey or pubkey in self.former_relay_keys

    def is_founding(self, event: Event) -> bool:
        """Whether a 9000 says of this fresh group who founded it, first or once more, and nothing
        else: what a relay does and no member can."""
        people = users_in(event.tags)
        return (
            event.kind == kinds.PUT_USER
            and (not self.members or people == self.members)
            and list(people.values()) == [(Role.ADMIN.value,)]
            and event.pubkey not in people
        )

    def with_users(self, users: Mapping[str, tuple[str, ...]]) -> Group:
        """With these keys as members, holding exactly these roles (N29-46); all is forgiven."""
        return replace(
            self,
            members={**self.members, **users},
            removed=_without(self.removed, users.keys()),
            requests=_without(self.requests, users.keys()),
            invites={
                code: replace(invite, excluded=invite.excluded.difference(users))
                if invite.excluded
                else invite
                for code, invite in self.invites.items()
            },
            ever_involved=self.ever_involved.union(users),
            only_requested=self.only_requested.difference(users),
        )

    def without_users(self, pubkeys: Set[str], *, removed_at: int | None) -> Group:
        """Without these keys; `removed_at`: created_at of an admin's 9001, None: they left.

        Also a key that was no member counts from then on as taken out: it may read that 9001.
        """
        if not pubkeys:
            return self
        left = replace(
            self,
            members=_without(self.members, pubkeys),
            requests=_without(self.requests, pubkeys),
            ever_involved=self.ever_involved.union(pubkeys),
            only_requested=self.only_requested.difference(pubkeys),
        )
        if removed_at is None:
            return left
        return replace(
            left,
            removed={**self.removed, **dict.fromkeys(pubkeys, removed_at)},
            # Order of acceptance tells an invite before the removal from one after it (N29-55);
            # created_at cannot, its second is too long.
            invites={
                code: replace(invite, excluded=invite.excluded.union(pubkeys))
                for code, invite in self.invites.items()
            },
        )

    def with_invites(self, invites: Mapping[str, Invite]) -> Group:
        return replace(self, invites={**self.invites, **invites})

    def with_use_of(self, event_id: str, index: int) -> Group:
        """With one use more of the code that tag number `index` of this 9009 made."""
        return replace(
            self,
            invites={
                code: replace(invite, used=invite.used + 1)
                if invite.event_id == event_id and invite.index == index
                else invite
                for code, invite in self.invites.items()
            },
        )

    def with_request(self, pubkey: str, event_id: str) -> Group:
        """With this 9021 as the one that waits for the key (N29-35)."""
        is_new = pubkey not in self.ever_involved
        return replace(
            self,
            requests={**self.requests, pubkey: event_id},
            ever_involved=self.ever_involved | {pubkey},
            only_requested=self.only_requested | {pubkey} if is_new else self.only_requested,
        )

    def without_pin(self, pin: Pin) -> Group:
        return replace(self, pins=tuple(tag for tag in self.pins if tag[:2] != pin))

    def without_rows(self, ids: Set[str]) -> Group:
        """When these events are gone: a 9009 takes its codes along, a pending 9021 the request."""
        invites = {code: inv for code, inv in self.invites.items() if inv.event_id not in ids}
        withdrawn = {pubkey for pubkey, event_id in self.requests.items() if event_id in ids}
        if len(invites) == len(self.invites) and not withdrawn:
            return self
        return replace(
            self,
            invites=invites,
            requests=_without(self.requests, withdrawn),
            ever_involved=self.ever_involved.difference(self.only_requested & withdrawn),
            only_requested=self.only_requested.difference(withdrawn),
        )


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of this relay. Two readers may hold two of these: each is whole and consistent."""

    by_id: Mapping[str, Group] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    """Ids that were deleted and can never be used again (N29-124)."""
    memberships: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """pubkey → ids of the groups that it is a member of."""
    pinned: Mapping[Pin, frozenset[str]] = field(default_factory=dict)
    """What is pinned → ids of the groups where it is."""

    def get(self, group_id: str | None) -> Group | None:
        return self.by_id.get(group_id) if group_id is not None else None

    def is_member(self, pubkey: str) -> bool:
        """Member of any group here."""
        return pubkey in self.memberships

    def groups_of(self, pubkey: str) -> frozenset[str]:
        return self.memberships.get(pubkey, frozenset())

    def with_group(self, group: Group) -> Groups:
        """These groups with `group` new or in place of the one of its id."""
        before = self.by_id.get(group.id)
        memberships, pinned = self.memberships, self.pinned
        if before is None or before.members is not group.members:
            old = frozenset[str]() if before is None else before.members.keys()
            memberships = _moved(memberships, old, group.members.keys(), group.id)
        if (() if before is None else before.pins) != group.pins:
            pinned = _moved(pinned, _pinned_by(before), _pinned_by(group), group.id)
        by_id = {**self.by_id, group.id: group}
        return replace(self, by_id=by_id, memberships=memberships, pinned=pinned)

    def without_group(self, group_id: str) -> Groups:
        """These groups after the end of one; its id stays spent."""
        before = self.by_id.get(group_id)
        old = frozenset[str]() if before is None else before.members.keys()
        return Groups(
            {key: group for key, group in self.by_id.items() if key != group_id},
            self.ended | {group_id},
            _moved(self.memberships, old, frozenset(), group_id),
            _moved(self.pinned, _pinned_by(before), frozenset(), group_id),
        )


def replayed(groups: Groups, event: Event, relay_pubkey: str) -> Groups:
    """These groups after one more event of the log; events come in order of seq."""
    return rebuilt(groups, (event,), relay_pubkey)


def rebuilt(groups: Groups, events: Iterable[Event], relay_pubkey: str) -> Groups:
    """These groups after some more events of the log, in order of seq; how they are split into
    calls does not matter.

    The log may hold all kinds; only 9000–9022 and the relay's own 39000–39005 count. What an event
    that is gone had done is undone if its going was noted (`Group.without_rows`).
    """
    touched: dict[str, Group] = {}
    for event in events:
        kind = event.kind
        if kind in kinds.GROUP_RECORDS:
            group_id = event.tag("h")
        elif kind in kinds.GROUP_STATE and event.pubkey == relay_pubkey:
            group_id = event.tag("d")
        else:
            continue
        if not group_id or group_id in groups.ended:
            continue
        if kind == kinds.DELETE_GROUP:
            touched.pop(group_id, None)
            groups = groups.without_group(group_id)
            continue
        # A record proves that its group was made, should the 9007 be gone (vanish of its author).
        group = touched.get(group_id) or groups.get(group_id) or Group(group_id, flags=SHUT)
        touched[group_id] = group_after(group, event, relay_pubkey)
    for group in touched.values():
        groups = groups.with_group(group)
    return groups


def group_after(group: Group, event: Event, relay_pubkey: str) -> Group:
    """The group after an accepted event of its own; 9007 and 9008 make and end it elsewhere."""
    match event.kind:
        case kinds.PUT_USER:
            users = users_in(event.tags)
            if group.is_founding(event) and event.pubkey != relay_pubkey:
                group = replace(group, former_relay_keys=group.former_relay_keys | {event.pubkey})
                return group.with_users(users)
            if not group.is_relay_key(event.pubkey, relay_pubkey):
                return group.with_users(users)
            joins = not users.keys() <= group.members.keys()
            return _with_invite_used(group, event) if joins else group.with_users(users)
        case kinds.REMOVE_USER:
            named = frozenset(users_in(event.tags))
            by_relay = group.is_relay_key(event.pubkey, relay_pubkey)
            if by_relay and event.has_tag("self-removal"):
                return group.without_users(named, removed_at=None)
            own = named & {event.pubkey}
            return group.without_users(own, removed_at=None).without_users(
                named - own, removed_at=event.created_at
            )
        case kinds.DELETE_EVENT:
            return group.without_rows(frozenset(event.tag_values("e")))
        case kinds.CREATE_INVITE:
            return group.with_invites(invites_in(event))
        case kinds.JOIN_REQUEST if event.pubkey not in group.members:
            return group.with_request(event.pubkey, event.id)
        case kind if kind in kinds.GROUP_STATE:
            return _with_notice(group, event)
        case _:
            return group


def _with_invite_used(group: Group, event: Event) -> Group:
    """After the relay's 9000 for somebody who came in; `["invite", <9009>, <index>]` says how."""
    for tag in event.tags:
        if len(tag) > 2 and tag[0] == "invite":
            index = number_in(tag[2])
            group = group if index is None else group.with_use_of(tag[1], index)
    return group.with_users(users_in(event.tags))


def _with_notice(group: Group, event: Event) -> Group:
    stamped = replace(group, notice_times={**group.notice_times, event.kind: event.created_at})
    if event.kind == kinds.GROUP_PINS:
        pins = tuple(tuple(tag) for tag in event.tags if len(tag) > 1 and tag[0] in PIN_TAGS)
        return replace(stamped, pins=pins)
    if event.kind != kinds.GROUP_METADATA:
        return stamped
    flags = frozenset(FLAGS[tag[0]] for tag in event.tags if tag and tag[0] in FLAGS)
    supported = next((tag for tag in event.tags if tag and tag[0] == "supported_kinds"), None)
    return replace(
        stamped,
        flags=flags,
        supported_kinds=None if supported is None else frozenset(map(int, supported[1:])),
        metadata=tuple(
            tuple(tag)
            for tag in event.tags
            if tag and tag[0] not in FLAGS and tag[0] not in _NO_METADATA
        ),
        parent=event.tag("parent"),
        children=tuple(event.tag_values("child")),
    )


def users_in(tags: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """pubkey → roles, of the `p` tags of a 9000 or 9001."""
    return {
        tag[1]: tuple(dict.fromkeys(tag[2:]))
        for tag in tags
        if len(tag) > 1 and tag[0] == "p" and is_hex64(tag[1])
    }


def invites_in(event: Event) -> dict[str, Invite]:
    """code → invite, of the `code` tags of a 9009."""
    expires_at = number_in(event.tag("expiration"))
    reusable = event.has_tag("reusable")
    return {
        code: Invite(event.id, event.created_at, expires_at, reusable, index)
        for index, code in enumerate(event.tag_values("code"))
    }


def pins_of(event: Event) -> tuple[Pin, Pin]:
    """How a pin may name the event: by its id or by its address."""
    d = "" if kinds.class_of(event.kind) is kinds.KindClass.REPLACEABLE else event.d
    return ("e", event.id), ("a", f"{event.kind}:{event.pubkey}:{d}")


def number_in(text: str | None) -> int | None:
    """A decimal integer from 0 to below 10^18; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return int(text)


def _without(mapping: Mapping[str, _V], keys: Set[str]) -> Mapping[str, _V]:
    """The mapping itself when it has none of the keys."""
    if keys.isdisjoint(mapping):
        return mapping
    return {key: value for key, value in mapping.items() if key not in keys}


def _pinned_by(group: Group | None) -> frozenset[Pin]:
    return frozenset() if group is None else frozenset((tag[0], tag[1]) for tag in group.pins)


def _moved(
    index: Mapping[_K, frozenset[str]], old: Set[_K], new: Set[_K], group_id: str
) -> Mapping[_K, frozenset[str]]:
    """An index to groups, when this one had the `old` keys and has the `new` ones."""
    out = dict(index)
    for key in old - new:
        left = out[key] - {group_id}
        if left:
            out[key] = left
        else:
            del out[key]
    for key in new - old:
        out[key] = out.get(key, frozenset()) | {group_id}
    return out
