"""The words in which yes and no are said: who somebody is, what a rule objects to, how it ends.

`ok_reply` is the only maker of what an author reads in an OK.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, assert_never

from relay.errors import Prefix, Refused

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True, slots=True)
class Reject:
    """An objection: the wire word, a text without secrets, and the rule that spoke."""

    prefix: Prefix
    text: str
    rule: str

    def refused(self) -> Refused:
        return Refused(self.prefix, self.text)


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


class Origin(Enum):
    """How an event came; decides which rules are asked (`import`)."""

    WIRE = auto()
    IMPORT = auto()
    """Every rule but AUTH, protected events, rates and windows of time."""
    TRUSTED_IMPORT = auto()
    """Also without the rules about the author."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How an event came: what is known of it before anything of ours is looked at."""

    at: int
    """Unix seconds."""
    origin: Origin
    authenticated: frozenset[str]
    """Keys that logged in on the connection."""
    address: IPv4Address | IPv6Address | None
    """The client's, as far as it can be known."""


class RecordFacts(NamedTuple):
    """What rules look at of a stored event that a memory record refers to."""

    d: str
    pubkey: str
    created_at: int
    """Unix seconds."""
    id: str
    refers_to: tuple[str, ...] = ()
    """The `d` of the records that it refers to itself."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a verdict may look at beside the event, as the events before it have left the world."""

    now: int
    """Unix seconds."""
    origin: Origin
    authenticated: frozenset[str]
    """Keys that logged in on the connection."""
    who: frozenset[Who]
    """What the author is (ANYONE, OWNER, AGENT, MEMBER, KNOWN, INSIDER, ADMIN): `who_is_author`."""
    authenticated_who: frozenset[Who]
    """The same words, united over the keys in `authenticated`, for rules about the connection."""
    wraps_for_known: bool
    """Some `p` names a known key: gift wraps and NIP-46 messages find their reader here."""
    deletes_own: bool
    """A kind 5 that names a stored event of its author (or a wrap sent to its author)."""
    replaces: bool
    """A version in the event's slot is stored."""
    has_group: bool
    """The group that `h` names exists."""
    records: tuple[RecordFacts, ...] | None = None
    """The stored events that a memory record refers to, as far as its author may read them.

    None: not looked up, so that no rule about them is asked.
    """


class WriteOutcome(Enum):
    """How a write that no rule objected to ended."""

    STORED = auto()
    PASSED_ON = auto()
    """Ephemeral: delivered, never stored."""
    DUPLICATE = auto()
    TAKEN = auto()
    """Append-only, and the first under this `d` stays."""
    SUPERSEDED = auto()
    REGENERATED = auto()
    """Group state that came in by an import: the relay signs its own."""
    DELETED = auto()
    EXPIRED = auto()


Result = WriteOutcome | Reject
"""What the author of an event is told in its OK."""


def ok_reply(result: Result) -> tuple[bool, str]:
    """The third and fourth element of OK."""
    if isinstance(result, Reject):
        return False, f"{result.prefix}: {result.text}"
    match result:
        case WriteOutcome.STORED | WriteOutcome.PASSED_ON:
            return True, ""
        case WriteOutcome.DUPLICATE:
            return True, "duplicate: already have this event"
        case WriteOutcome.REGENERATED:
            return True, "duplicate: the relay signs this itself"
        case WriteOutcome.TAKEN:
            return True, "duplicate: already stored under this d"
        case WriteOutcome.SUPERSEDED:
            return False, "duplicate: a newer version is stored"
        case WriteOutcome.DELETED:
            return False, "blocked: deleted"
        case WriteOutcome.EXPIRED:
            return False, "invalid: event expired"
        case _:
            assert_never(result)
