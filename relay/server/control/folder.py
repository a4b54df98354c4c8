"""What can be asked of a data folder, wherever it is: opened here, or held by a running relay."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from relay.verdict import Facts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.access.usage import Sized, SizedBy
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import Refusal
    from relay.verdict import Origin
    from relay.write.commands import Purpose
    from relay.write.sweeper import SweepLine


class Rows(Enum):
    """Which rows of a folder are given."""

    ALL = auto()
    PUBLIC = auto()
    """What anybody may read who is not logged in: of these alone others may hear."""


class Folder(Protocol):
    """The events of a data folder, wherever they are."""

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        """The third and fourth element of OK for each event, in order, after the commit."""

    def events(self, filter_: Filter, rows: Rows = Rows.ALL) -> AsyncIterator[Sequence[bytes]]:
        """Pages of stored bytes in order of seq: all that match; `limit` plays no part."""

    async def head(self) -> int:
        """seq of the newest row ever committed."""


class Verdicts(Protocol):
    """What the relay of a data folder would decide, and what it has decided."""

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        """What would become of an event that came from a connection with these logins."""

    async def standings(self) -> Sequence[tuple[str, str]]:
        """(ALLOWED or BANNED, key) of whom NIP-86 calls have allowed and banned."""

    async def refusals(self, after: int) -> Sequence[Refusal]:
        """The last refusals behind this number, oldest first."""


class Contents(Protocol):
    """How much a data folder holds, and what it forgets."""

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        """By kind, author or group: most bytes first, at most `limit` lines."""

    def sweep(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        """Apply retention now; lines to add up, as it goes."""


class DataFolder(Folder, Verdicts, Contents, Protocol):
    """All that can be asked of a data folder."""


ALLOWED: Final = "allowed"
BANNED: Final = "banned"


class DryRunReply(msgspec.Struct, frozen=True, tag_field="is", tag="foreseen"):
    """The OK that an event would get, the rule that gives it, and what rules look at."""

    ok: bool
    message: str
    rule: str | None
    facts: Facts | None
    """None: the form is wrong before any rule is asked."""
