"""What the rules of groups may look at beside the event, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from relay.errors import Prefix, Reject
from relay.facts import Origin, Who
from relay.groups.actions import PRIVATE_FLAGS
from relay.groups.group import Groups, Pin

if TYPE_CHECKING:
    from relay.groups.actions import Flag
    from relay.groups.group import Group
    from relay.groups.notices import Compat, Draft

RULE: Final = "groups"
"""The rule that all refusals of `relay.groups` name."""

NOT_A_MEMBER: Final = Reject(Prefix.RESTRICTED, "not a member", RULE)
"""Also for a group that is hidden from the author or does not exist (N29-06, N29-12)."""


def drawn(salt: bytes, name: str, below: int) -> int:
    """A number from 0 on that `name` always has during this start of the relay, and that nobody can
    know without the salt. 0 without a salt."""
    digest = blake2b(name.encode(), digest_size=4, key=salt).digest()
    return int.from_bytes(digest, "big") % below if salt and below else 0


def rejected(prefix: Prefix, text: str) -> Reject:
    return Reject(prefix, text, RULE)


class Joins(Enum):
    """`[groups] joins`: what becomes of a join request to a group that is not closed (N29-33)."""

    ADMIT = "admit"
    REVIEW = "review"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`[groups]` of the policy files; the defaults are those of preset `group`."""

    always: frozenset[Flag] = PRIVATE_FLAGS
    """Flags that no 9002 drops."""
    new: frozenset[Flag] = PRIVATE_FLAGS
    """Flags for a 9007 without flags."""
    create: frozenset[Who] = frozenset({Who.OWNER, Who.AGENT})
    joins: Joins = Joins.ADMIT
    invite_uses: int = 1
    """How many users a code without `reusable` admits."""
    late_s: int = 600
    """Greatest age of a message or moderation event in seconds (N29-26); 0: any."""
    derived: frozenset[int] = frozenset()
    """Kinds that, without `h`, belong to the group of the event that they name."""
    previous: int = 0
    """References that chat and moderation events must have (N29-24)."""
    compat: frozenset[Compat] = frozenset()
    """Clients for which 39000 and 39001 have more tags than NIP-29 requires."""
    foreign_h: frozenset[int] = frozenset()
    """Kinds whose `h` names no group of NIP-29: they are outside of all groups (NK-10)."""


class NotStored(Enum):
    """No version of the address is stored."""

    NOT_STORED = auto()


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A stored event that a 9005 names."""

    group: str | None
    kind: int
    pubkey: str


class GroupContext(msgspec.Struct, frozen=True, gc=False):
    """What a ruling on one event is based on: the state after earlier events, and look-ups."""

    groups: Groups
    settings: GroupSettings
    now: int
    """Unix seconds."""
    origin: Origin
    who: frozenset[Who]
    """Who-words of the author in the group: `relay.access.actors.author_words`."""
    may_change_many: bool = False
    """The author is an owner or agent by the policy files, not by a role that admins give."""
    has_content: bool = False
    """For a 9002 and an imported 9008: the group has a stored row beside 9000–9022 and
    39000–39005 (Z-03)."""
    rows_in_group: int = 0
    """Those with which `has_content`, as of `Found.group_rows`."""
    rows_moving: int = 0
    """As of `Found`."""
    previous_found: frozenset[str] = frozenset()
    """The prefixes in the event's `previous` tags that match an event of the group."""
    targets: Mapping[str, TargetRow] = msgspec.field(default_factory=dict)
    """For a 9005: id → row, of the named ids that are stored."""
    pinnable: frozenset[Pin] = frozenset()
    """For a 9010: those of its pins that are stored, unexpired events of the group. In an import
    also addresses without an event: their newest version may come later in the file."""
    moved_from: str | NotStored | None = NotStored.NOT_STORED
    """Group of the stored version of the event's address; None: stored outside all groups."""
    is_memory: bool = False
    """The event is a memory record (G-31, G-33)."""
    h_is_label: bool = False
    """A memory record whose `h` does not place it in a group."""
    relay: str = ""
    """The relay's own key; its 9000–9022 may be imported."""
    operators: frozenset[str] = frozenset()
    """Owners of the whole relay; those of a household are not."""
    banned: frozenset[str] = frozenset()
    salt: bytes = b""
    """Of this start of the relay; nobody else knows it."""
    has_changed: bool = False
    """A 9002 or 9010 was made from another 39000 or 39005 than the group's."""
    is_piece: bool = False
    """A 9008 deletes only some rows of its group now."""

    @property
    def was_accepted(self) -> bool:
        """Whether the event is from one's own export: nobody's rights of then are known now."""
        return self.origin is Origin.TRUSTED_IMPORT

    def acts_as_admin(self, pubkey: str) -> bool:
        """Whether the key has the rights of an admin in every group: owners and the relay."""
        return pubkey in self.operators or pubkey == self.relay

    def knows_group(self, pubkey: str, group: Group) -> bool:
        """Whether the key may learn that the group exists although it is hidden (Z-02)."""
        was_told = not group.involved.get(pubkey, True)
        return was_told or self.acts_as_admin(pubkey)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What an accepted 9000–9022 changes."""

    groups: Groups
    """The groups afterwards, `automatic` included; the notices have still to be made."""
    automatic: tuple[Draft, ...] = ()
    """9000 or 9001 by the relay, stored after the event in this order (N29-81)."""
    removes: tuple[str, ...] = ()
    """Ids of rows that a 9005 deletes; each gets a tombstone."""
    keeps_out: tuple[str, ...] = ()
    """Ids that a 9005 names: what is not stored of them is refused when it comes later."""
    relatives: tuple[str, ...] = ()
    """Ids of other groups that change too: parents and subgroups."""
    ended: str | None = None
    """The group that a 9008 deletes: of its rows only its 9007 and 9008 stay."""
    reply: Reject | None = None
    """The OK of a refused event that is stored nevertheless: a pending 9021 (Z-01)."""
    refusal: Reject | None = None
    """Why it is refused, where that tells of others: only what is within all rates learns it, and
    takes their tokens."""
    superseded: tuple[str, ...] = ()
    """Ids of deleted rows: the author's earlier pending 9021 (N29-35)."""
