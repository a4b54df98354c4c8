"""What a ruling may look at beside the event and the groups, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix
from relay.groups.group import SHUT
from relay.verdict import Origin, Reject, Who

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.groups.group import Flag, Group, Groups, Pin
    from relay.groups.notices import Draft

RULE: Final = "groups"
"""The rule that all refusals of this room name."""

NOT_A_MEMBER: Final = Reject(Prefix.RESTRICTED, "not a member", RULE)
"""Also of a group that is hidden from the author, or that does not exist (N29-06, N29-12)."""


def rejected(prefix: Prefix, text: str) -> Reject:
    return Reject(prefix, text, RULE)


class Joins(Enum):
    """`[groups] joins`: what a request to join a group that is not closed comes to (N29-33)."""

    ADMIT = "admit"
    REVIEW = "review"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`[groups]` of the policy files (DESIGN §10); the defaults are those of preset `group`."""

    always: frozenset[Flag] = SHUT
    """No 9002 drops these."""
    new: frozenset[Flag] = SHUT
    """Flags of a bare 9007."""
    create: frozenset[Who] = frozenset({Who.OWNER, Who.AGENT})
    joins: Joins = Joins.ADMIT
    invite_uses: int = 1
    """How often a code without `reusable` lets somebody in."""
    late_s: int = 600
    """Seconds that a message may lie back (N29-26); 0: any."""
    previous: int = 0
    """References that chat and moderation must have (N29-24)."""


class NotStored(Enum):
    """No version of the address is stored."""

    NOT_STORED = auto()


@dataclass(frozen=True, slots=True)
class Target:
    """A stored event that a 9005 names."""

    group: str | None
    kind: int
    pubkey: str


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The world around one event, as the events before it have left it."""

    now: int
    """Unix seconds."""
    origin: Origin
    who: frozenset[Who]
    """What the author is towards the group: `relay.access.actors.who_is_author`."""
    has_content: bool = False
    """For a 9002: the group has a stored row beside 9000–9022 and 39000–39005 (Z-03)."""
    previous_found: frozenset[str] = frozenset()
    """Those prefixes of the event's `previous` that some event of this group begins with."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    """For a 9005: id → event, of the named ids that are stored."""
    pinnable: frozenset[Pin] = frozenset()
    """For a 9010: those of its targets that are stored events of this group, not expired. In an
    import also addresses without an event: their newest version may come later in the file."""
    moved_from: str | NotStored | None = NotStored.NOT_STORED
    """Group of the stored version of the event's address; None: stored outside all groups."""
    is_memory: bool = False
    """The event is a memory record (G-31, G-33)."""
    h_is_label: bool = False
    """A memory record whose `h` does not place it in a group."""
    relay: str = ""
    """The relay's own key, whose 9000–9022 may come in by an import."""
    operators: frozenset[str] = frozenset()
    """Owners of the whole relay; the owner of a household rules no group by that."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What an accepted 9000–9022 does."""

    groups: Groups
    """As they are then, effects of `automatic` included, notices not yet stamped."""
    automatic: tuple[Draft, ...] = ()
    """9000 or 9001 by the relay, stored behind the event in this order (N29-81)."""
    removes: tuple[str, ...] = ()
    """Ids that a 9005 deletes for good."""
    relatives: tuple[str, ...] = ()
    """Ids of other groups that change with this one: its parents and subgroups."""
    ended: str | None = None
    """The group that a 9008 ended: all its rows go but its 9007 and 9008."""
    reply: Reject | None = None
    """The event is stored, yet this is its answer: a 9021 that waits (Z-01)."""
    superseded: tuple[str, ...] = ()
    """Ids of rows that go without a tombstone: the author's earlier pending 9021 (N29-35)."""


def acts_as_admin(pubkey: str, context: GroupContext) -> bool:
    """Owners may do in each group what its admin may (contract §5), and so may the relay itself."""
    return pubkey in context.operators or pubkey == context.relay


def knows_group(pubkey: str, group: Group, context: GroupContext) -> bool:
    """Whether the key may be told that the group exists, hidden as it may be (Z-02)."""
    was_told = pubkey in group.ever_involved and pubkey not in group.only_requested
    return was_told or acts_as_admin(pubkey, context)
