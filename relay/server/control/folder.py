"""The operations on a data folder, opened in this process or held by a running relay."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from relay.facts import Facts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.access.quotas import Sized, SizedBy
    from relay.facts import Origin
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import LogLine, Refusal, Status
    from relay.write.commands import Purpose
    from relay.write.sweeper import SweepLine


INDEXED_VALUES: Final = 16
"""Values of a tag in a filter of one kind that are looked up; with more the whole store is read."""


class Rows(Enum):
    """Which rows an export reads."""

    ALL = auto()
    WITH_OLD_VERSIONS = auto()
    """Also what newer versions replaced, where it is kept."""
    PUBLIC = auto()
    """Only what an anonymous viewer may read: the rows that may be sent to other relays."""


class Folder(Protocol):
    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        """Third and fourth element of OK for each event, in order; returns after the commit. After
        one that is refused with `error:` no other is stored: it may depend on it. All others are
        refused so too, except those that are refused in any case."""

    def events(self, filter_: Filter, rows: Rows = Rows.ALL) -> AsyncIterator[Sequence[bytes]]:
        """Pages of stored bytes in order of seq: all matches that are stored at the end, perhaps
        beside some that were deleted or replaced meanwhile. `limit` is ignored. Raises StoreFault
        if more is stored meanwhile than can be read."""

    async def head(self) -> int:
        """seq of the newest row ever committed."""


class Judgements(Protocol):
    """What the relay would decide, and what it has decided."""

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        """The verdict on an event from a connection with these keys logged in; stores nothing."""

    async def managed_keys(self) -> Sequence[tuple[str, str]]:
        """(ALLOWED or BANNED, key) of keys that NIP-86 calls have allowed or banned."""

    async def refusals(self, after: int) -> Sequence[Refusal]:
        """The last refusals with a higher number, oldest first."""

    async def log_lines(self, after: int) -> Sequence[LogLine]:
        """The last lines of the log with a higher number, oldest first."""

    async def status(self) -> Status:
        """The counters and state of the relay since its start."""


class Contents(Protocol):
    """How much a data folder holds, and what retention deletes."""

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        """Stored bytes by kind, author or group: most first, at most `limit` lines."""

    def sweep(self, purpose: Purpose, ahead_s: int = 0) -> AsyncIterator[Sequence[SweepLine]]:
        """Apply retention now; yields partial sums while it runs. `ahead_s`: a dry run counts rows
        that are due in so many seconds."""


class DataFolder(Folder, Judgements, Contents, Protocol):
    """All operations on a data folder."""

    async def restart(self) -> None:
        """Start the relay again; returns before it stops. Raises Refused when the new start would
        fail."""


ALLOWED: Final = "allowed"
BANNED: Final = "banned"


class DryRunReply(msgspec.Struct, frozen=True, tag_field="is", tag="dry_run"):
    """The OK that an event would get, the rule that decides, and the facts it decides on."""

    ok: bool
    message: str
    rule: str | None
    facts: Facts | None
    """None: refused before the rules were asked."""
