"""What goes down the lane, in one order: events, management, and rows that leave the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from relay.verdict import Origin, Reject, WriteOutcome

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from relay.access.management import ListChange
    from relay.lifecycle.retention import SweepRules
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.verdict import Facts, Result


class Author(Protocol):
    """Where an event came from, and whom its OK goes to."""

    @property
    def authenticated(self) -> frozenset[str]: ...

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """Where the client is, as far as it can be known."""

    @property
    def connection(self) -> int | None:
        """A number of its own for each connection; None: it came over none."""

    def answered(self, event: Event, result: Result) -> None:
        """Called once per event, after the commit; must not block or raise."""


@dataclass(slots=True)
class WriteEvent:
    """An event on its road."""

    event: Event
    author: Author
    origin: Origin
    result: Result = WriteOutcome.STORED
    objection: Reject | None = None
    """What the first plug-in says that does not want it."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of an event that came now."""

    result: Result
    facts: Facts | None
    """What rules look at beside it; None: its form is wrong before that."""


@dataclass(slots=True)
class ManagementChange:
    """What a NIP-86 call changes, on its road: it has its place between the events."""

    changes: tuple[ListChange, ...]
    answered: Callable[[Reject | None], None]
    """Called once, after the commit and before what came with it is delivered to anybody; must not
    block or raise."""
    deleted_authors: frozenset[str] = frozenset()
    """Keys that a file bans and whose rows go: `[bans] stored = "delete"`."""
    result: Reject | None = None


@dataclass(slots=True)
class ExpireRows:
    """Rows that have expired, on their road out of the store."""

    ids: tuple[str, ...]
    purpose: Purpose
    done: Future[bool]
    """Whether they are gone: set after the commit, or when there is none."""
    gone: list[Stored] = field(default_factory=list)


@dataclass(slots=True)
class SweepRows:
    """Rows that retention rules let go, on their road out of the store."""

    rows: Sequence[Stored]
    rules: SweepRules
    """As they were when the rows were found."""
    purpose: Purpose
    done: Future[bool]
    """Whether it was decided: set after the commit, or when there is none."""
    gone: list[Stored] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    """What for, and how many rows."""


class Purpose(Enum):
    SWEEP = auto()
    TRIAL = auto()
    """Only to see what would go."""


Work = WriteEvent | ManagementChange | ExpireRows | SweepRows
"""What the lane takes, in one order."""
