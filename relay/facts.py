"""What rules look at beside the event: who-words, how it arrived, and what is stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


class Who(Enum):
    """The who-words of policy files: what a key may be towards the relay, a group or a row.

    `insider`, `admin`, `group`, `visible` are towards the row's group; `author`, `recipient` and
    `tag:NAME` (see `relay.access.read_rules.ReadRule.tag_readers`) towards the row.
    """

    ANYONE = "anyone"
    NOBODY = "nobody"
    OWNER = "owner"
    AGENT = "agent"
    MEMBER = "member"
    KNOWN = "known"
    INSIDER = "insider"
    ADMIN = "admin"
    GROUP = "group"
    VISIBLE = "visible"
    AUTHOR = "author"
    RECIPIENT = "recipient"
    TRUSTED = "trusted"
    TARGET = "target"


OF_A_GROUP: Final = frozenset({Who.INSIDER, Who.ADMIN, Who.GROUP, Who.VISIBLE})
"""Words towards the row's group: a change of it may make them hold or not."""


class Origin(Enum):
    """How an event arrived; decides which rules apply."""

    WIRE = auto()
    IMPORT = auto()
    """Every rule but AUTH, protected events, rates and how old an event may be."""
    TRUSTED_SYNC = auto()
    """Also without the rules about the author."""
    TRUSTED_IMPORT = auto()
    """Also without the rights of who signed a moderation event, and dated any time ahead: one's own
    export, where it was accepted when it was written."""

    @property
    def is_trusted(self) -> bool:
        """Whether the rules about the author are skipped."""
        return self is Origin.TRUSTED_SYNC or self is Origin.TRUSTED_IMPORT


@dataclass(frozen=True, slots=True)
class Arrival:
    """How an event arrived: what is known before stored data is looked up."""

    at: int
    """Unix seconds."""
    origin: Origin
    authenticated: frozenset[str]
    """Keys that logged in on the connection."""
    address: IPv4Address | IPv6Address | None
    """The client's, as far as it can be known."""


class RecordFacts(NamedTuple):
    """A stored event that a memory record refers to, as rules see it."""

    d: str
    pubkey: str
    created_at: int
    """Unix seconds."""
    id: str
    refers_to: tuple[str, ...] = ()
    """The `d` of the records that it refers to itself."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What rules may look at beside the event, after all earlier events of the batch.

    A Struct: one is made for each event, in 0.5 us; a frozen dataclass takes 3 us.
    """

    now: int
    """Unix seconds."""
    origin: Origin
    authenticated: frozenset[str]
    """Keys that logged in on the connection and are not banned."""
    who: frozenset[Who]
    """Who-words of the author: ANYONE, OWNER, AGENT, MEMBER, KNOWN, INSIDER, ADMIN."""
    authenticated_who: frozenset[Who]
    """The union of the who-words of all keys in `authenticated`, for rules about the connection."""
    wraps_for_known: bool
    """A `p` tag names a known key: the recipient of a gift wrap or NIP-46 message; of an unknown
    sender the only one."""
    deletes_own: bool
    """A kind 5 names a stored event of its author, or a gift wrap sent to its author."""
    replaces: bool
    """A version is stored in the event's slot."""
    has_group: bool
    """The group that `h` names exists."""
    group: str | None = None
    """The group that its row will belong to: of an event without `h`, that of the event it names,
    but of a kind 5 only its own `h`."""
    h_is_foreign: bool = False
    """`h` names no group of NIP-29: `[groups] foreign_h` has the kind."""
    agent_by_role: bool = False
    """AGENT is in `who` only by a role in the group, which its admins give: no limit is lifted."""
    login_by_role: bool = False
    """The same of `authenticated_who`."""
    is_local: bool = False
    """The client is a program on the relay's machine, and no proxy there says otherwise."""
    records: tuple[RecordFacts, ...] | None = None
    """The stored events that a memory record refers to, as far as its author may read them.

    None: not looked up; rules about them are skipped.
    """
