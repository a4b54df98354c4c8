"""Group and Groups: what NIP-29 events add up to. Frozen; a change is a new value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Flag(StrEnum):
    """Independent of each other (contract §8)."""

    PRIVATE = "private"
    RESTRICTED = "restricted"
    HIDDEN = "hidden"
    CLOSED = "closed"
    LIVEKIT = "livekit"


class Role(StrEnum):
    """The roles with powers here (N29-112); any other name is a label."""

    ADMIN = "admin"
    MODERATOR = "moderator"


@dataclass(frozen=True, slots=True)
class Invite:
    """A live invite code; never shown but to admins."""

    event_id: str
    """The 9009 that made it."""
    created_at: int
    expires_at: int | None
    uses_left: int | None
    """None: reusable."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group as the events so far leave it."""

    id: str
    metadata: tuple[tuple[str, ...], ...] = ()
    """Tags of 39000 but `d`, the flags and `supported_kinds`, in order."""
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
    involved: frozenset[str] = frozenset()
    """Every key once put in, taken out or waiting: such a key may be told that the group exists."""
    stamps: Mapping[int, int] = field(default_factory=dict)
    """kind of 39000…39005 → created_at of its newest (N29-68)."""

    @property
    def is_guarded(self) -> bool:
        """Only insiders read its rows."""
        return Flag.PRIVATE in self.flags or Flag.HIDDEN in self.flags

    @property
    def is_hidden(self) -> bool:
        return Flag.HIDDEN in self.flags

    @property
    def members_only(self) -> bool:
        """Only insiders write (N29-10, N29-11)."""
        return Flag.RESTRICTED in self.flags or self.is_guarded

    def is_admin(self, pubkey: str) -> bool:
        return Role.ADMIN in self.members.get(pubkey, ())

    def admins(self) -> dict[str, tuple[str, ...]]:
        """Members that hold a role: what 39001 lists (N29-110)."""
        return {pubkey: roles for pubkey, roles in self.members.items() if roles}


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of this relay. Two readers may hold two of these: each is whole and consistent."""

    by_id: Mapping[str, Group] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    """Ids that were deleted and can never be used again (N29-124)."""
    memberships: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """pubkey → ids of the groups that it is a member of."""

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
        memberships = self.memberships
        if before is None or before.members is not group.members:
            memberships = _moved(memberships, before, group.members, group.id)
        return replace(self, by_id={**self.by_id, group.id: group}, memberships=memberships)

    def without_group(self, group_id: str) -> Groups:
        """These groups after the end of one; its id stays spent."""
        before = self.by_id.get(group_id)
        return Groups(
            {key: group for key, group in self.by_id.items() if key != group_id},
            self.ended | {group_id},
            _moved(self.memberships, before, {}, group_id),
        )


def _moved(
    memberships: Mapping[str, frozenset[str]],
    before: Group | None,
    members: Mapping[str, tuple[str, ...]],
    group_id: str,
) -> Mapping[str, frozenset[str]]:
    old = before.members.keys() if before is not None else frozenset[str]()
    out = dict(memberships)
    for pubkey in old - members.keys():
        left = out[pubkey] - {group_id}
        if left:
            out[pubkey] = left
        else:
            del out[pubkey]
    for pubkey in members.keys() - old:
        out[pubkey] = out.get(pubkey, frozenset()) | {group_id}
    return out
