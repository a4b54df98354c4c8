"""What the lane takes, in one order: events, NIP-86 changes, and rows to expire or sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

import msgspec

from relay.access.shares import network_of_client
from relay.errors import Prefix, Reject, Result, WriteOutcome
from relay.facts import Origin
from relay.nostr.event import Event
from relay.state import Policy
from relay.write.candidate import Sender
from relay.write.pieces import Pieces

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from relay.access.management import ListChange
    from relay.facts import Facts
    from relay.lifecycle.retention import SweepRules
    from relay.lifecycle.rows import ExpiredRow, Stored
    from relay.lifecycle.versions import HistoryRules
    from relay.nostr.agents import Attestation


class Author(Protocol):
    """The sender of an event, who gets its OK."""

    @property
    def authenticated(self) -> frozenset[str]: ...

    @property
    def attested(self) -> frozenset[Attestation]: ...

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The client's address; None: unknown."""

    @property
    def counted_as(self) -> str | None:
        """The address whose clients share limits; None: unknown."""

    @property
    def is_local(self) -> bool:
        """See `Facts.is_local`."""

    @property
    def is_known(self) -> bool:
        """Whether one of its keys is known."""

    @property
    def is_owner(self) -> bool:
        """Whether one of its keys is an owner's."""

    @property
    def connection(self) -> int | None:
        """Unique number of the connection; None: not from a WebSocket."""

    @property
    def is_over(self) -> bool:
        """Whether nobody gets the answer: the connection is closed."""

    @property
    def message(self) -> int | None:
        """Number of the message that is being handled, counted per connection."""

    def answered(self, event: Event, weight: int, result: Result) -> None:
        """Called once per event, after the commit or a refusal. Must not block or raise.

        `weight`: memory of the event in bytes, as `weight_of` estimates it.
        """


@dataclass(frozen=True, slots=True)
class Unconnected:
    """An `Author` without a websocket: for events of a page, an import or a dry run."""

    authenticated: frozenset[str] = frozenset()
    address: IPv4Address | IPv6Address | None = None
    told: Callable[[Result], None] | None = None
    attested: frozenset[Attestation] = frozenset()
    connection: int | None = None
    message: int | None = None
    counted_as: str | None = None
    is_local: bool = False
    is_known: bool = False
    is_owner: bool = False
    is_over: bool = False

    def answered(self, event: Event, weight: int, result: Result) -> None:
        if self.told is not None:
            self.told(result)


def sender_of(author: Author, origin: Origin) -> Sender:
    return Sender(
        origin,
        author.authenticated,
        author.address,
        author.connection,
        author.attested,
        author.is_local,
    )


def is_fault(result: Result) -> bool:
    """Whether the relay could not take the event."""
    return isinstance(result, Reject) and result.prefix is Prefix.ERROR


class Series:
    """Events of which a later one may depend on an earlier one, as in an import: after one that is
    refused with `error:` the others are too, and can be submitted again in order."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False

    def note(self, result: Result) -> None:
        """The result of one of them."""
        self.is_broken = self.is_broken or is_fault(result)


class WriteEvent(msgspec.Struct):
    """A submitted event. A Struct for the same reason as `Candidate`."""

    event: Event
    weight: int
    """The estimate of `weight_of`, made once."""
    share: int
    """Bytes that it counts for while it waits."""
    author: Author
    origin: Origin
    result: Result = WriteOutcome.STORED
    message: int | None = None
    """`Author.message` when it was submitted."""
    objection: Reject | None = None
    """The refusal of the first plug-in that refused the event."""
    screened_by: Policy | None = None
    """The policy that screened the event; None: the one in force."""
    pieces: Pieces | None = None
    """Progress of a deletion that is too large for one transaction."""
    series: Series | None = None
    room: int = 0
    """Tags for which the store made room while the event waited for room."""
    needs_turn: bool = False
    """The event is a request to vanish for which many records of groups are to be read."""
    times_left: int = 0
    """How often the event was put back because its batch read too much."""
    cost: int = 1
    """What `cost_of` gave when the event was next in its queue."""
    cost_of_delivery: int = 0
    """The part of `cost` that comes from open filters."""
    took_s: float = 0.0
    """Processor time of its judgement; 0: not measured."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The outcome that an event would have now."""

    result: Result
    facts: Facts | None
    """What policy rules look at; None: malformed, so no rule is asked."""


@dataclass(slots=True)
class ManagementChange:
    """What a NIP-86 call changes; ordered with the events of the lane."""

    changes: tuple[ListChange, ...]
    answered: Callable[[Reject | None], None]
    """Called once, after the commit and before delivery. Must not block or raise."""
    deleted_authors: frozenset[str] = frozenset()
    """Keys banned by a file, whose rows are deleted: `[bans] stored = "delete"`."""
    result: Reject | None = None


@dataclass(slots=True)
class ExpireRows:
    """Rows to remove because they expired (NIP-40)."""

    rows: Sequence[ExpiredRow]
    purpose: Purpose
    done: Future[bool]
    """True after the commit, False if it failed or the lane was full."""
    took_s: float = 0.0
    """Seconds of its transactions, also of those that failed."""
    removed: list[Stored] = field(default_factory=list)


@dataclass(slots=True)
class SweepRows:
    """Rows to remove because of retention rules."""

    rows: Sequence[Stored]
    rules: SweepRules
    """The rules in force when the rows were found."""
    purpose: Purpose
    done: Future[bool]
    """True after the commit, False if it failed or the lane was full."""
    took_s: float = 0.0
    """Seconds of its transactions, also of those that failed."""
    removed: list[Stored] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    """Reason → number of rows that are kept for now."""
    reads_too_much: bool = False
    """Nothing was done: what may hold the rows is too large to be read at once."""


@dataclass(slots=True)
class SweepVersions:
    """Old versions to delete, and `drop_at` to set, because of `[[retention]] history`."""

    due: frozenset[int]
    """seq of old versions."""
    deadlines: Mapping[int, int | None]
    rules: HistoryRules
    """The rules in force when the versions were found."""
    done: Future[bool]
    """True after the commit, False if it failed or the lane was full."""
    took_s: float = 0.0
    """Seconds of its transactions, also of those that failed."""


@dataclass(slots=True)
class SignLists:
    """Groups whose 39001 and 39002 are to be signed: see `is_listed_apart`."""

    groups: Sequence[str]
    """Their ids. As many are done as fit into a transaction."""


class Purpose(Enum):
    SWEEP = auto()
    DRY_RUN = auto()
    """Nothing is removed."""


LaneItem = WriteEvent | ManagementChange | ExpireRows | SweepRows | SweepVersions | SignLists


def client_or_type(item: LaneItem) -> int | str | type[LaneItem]:
    """The address of the client, or its connection; items of no client count together by type."""
    if not isinstance(item, WriteEvent):
        return type(item)
    return item.author.counted_as or item.author.connection or type(item)


class Standing(Enum):
    """Of a client. Each standing has an equal share of a lane."""

    OWNER = auto()
    """Also of what comes from no client."""
    KNOWN = auto()
    UNKNOWN = auto()


def share_of(item: LaneItem) -> tuple[Standing, object]:
    """The standing whose share of a lane the item has, and the network whose share of that: else
    somebody could send costly events from thousands of addresses, and others would wait for one
    event of each."""
    client = client_or_type(item)
    if not isinstance(item, WriteEvent) or client is WriteEvent or item.author.is_owner:
        return Standing.OWNER, client
    standing = Standing.KNOWN if item.author.is_known else Standing.UNKNOWN
    return standing, network_of_client(client)


def connection_or_type(item: LaneItem) -> int | frozenset[str] | type[LaneItem]:
    """The connection, or the key of a page's session; items of neither count together by type."""
    if not isinstance(item, WriteEvent):
        return type(item)
    return item.author.connection or item.author.authenticated or type(item)
