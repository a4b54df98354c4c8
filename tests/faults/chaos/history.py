"""What happened to several relays on one database: by one clock, and in the order of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.nostr.event import Event

CHAT, PUT, REMOVE, MODERATE = 9, 9000, 9001, 9005
DELETIONS: Final = frozenset({5, MODERATE})
VERSIONED: Final = frozenset({10_002, 30_023, 30_078})
"""Kinds of which the newest version is kept."""
_UNDECIDED: Final = ("error:", "rate-limited:")
"""May be sent again."""


@dataclass(slots=True)
class Attempt:
    """One EVENT message. Times in seconds of one clock."""

    relay: int
    invoked: float
    answered: float = inf
    is_stored: bool | None = None
    """None: no answer came."""
    text: str = ""

    @property
    def is_refused(self) -> bool:
        """For good."""
        return self.is_stored is False and not self.text.startswith(_UNDECIDED)


@dataclass(slots=True)
class Write:
    """An event, and every time that it was sent."""

    event: Event
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def invoked(self) -> float:
        return min(each.invoked for each in self.attempts)

    @property
    def acknowledged(self) -> float:
        """inf: never."""
        return min((each.answered for each in self.attempts if each.is_stored), default=inf)

    @property
    def group(self) -> str:
        """Empty: none."""
        return self.event.tag("h") or ""

    @property
    def targets(self) -> list[str]:
        """Ids that it deletes."""
        return list(self.event.tag_values("e")) if self.event.kind in DELETIONS else []

    @property
    def slot(self) -> tuple[str, int, str] | None:
        event = self.event
        return (event.pubkey, event.kind, event.d) if event.kind in VERSIONED else None


@dataclass(slots=True)
class Stream:
    """What one REQ of one connection got."""

    relay: int
    reader: str
    """Public key."""
    is_member: bool
    """Of every group, always: it must get everything."""
    asked: float = -inf
    ended: float = inf
    """When EOSE came."""
    closed: float = inf
    """From then on nobody listened."""
    since: int = 0
    """The oldest messages that it asks for."""
    got: list[tuple[float, str]] = field(default_factory=list)
    """When, and the id."""
    stored: int | None = None
    """So many came before EOSE; None: it did not come."""


@dataclass(slots=True)
class History:
    log: list[tuple[int, str]] = field(default_factory=list)
    """seq and id of each row, in the order of commits; also of rows that are gone since."""
    writes: dict[str, Write] = field(default_factory=dict)
    """By id. What is in the log and not here, the relays signed."""
    streams: list[Stream] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    """Seconds by which the clients were late, themselves."""
    found: dict[tuple[int, str], frozenset[str]] = field(default_factory=dict)
    """At the end, by relay and reader: the ids of all that it can read there; empty reader: by
    somebody who may read everything."""
    members: dict[tuple[int, str], frozenset[str]] = field(default_factory=dict)
    """At the end, by relay and group."""

    def attempt(self, event: Event, relay: int, at: float) -> Attempt:
        """It is sent now."""
        attempt = Attempt(relay, at)
        self.writes.setdefault(event.id, Write(event)).attempts.append(attempt)
        return attempt
