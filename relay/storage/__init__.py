"""The door of storage: what every store promises. Each promise has a test in tests/contract.

A store looks facts up and applies plans; what survives is decided by `relay.lifecycle.versions`
inside the
store's transaction, who may read by `relay.access.visibility`, which a store compiles and never
weakens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.access.management import Management
    from relay.access.quotas import Sized, SizedBy
    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items


PAGE_BYTES: Final = 1 << 20
"""Where a page of large rows ends early."""


class Place(NamedTuple):
    """A row's place in the order of answers: newest created_at first, then lowest id.

    `tie` orders ids; `seq` is the row's place in the log.
    """

    created_at: int
    tie: int
    seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of an answer, in order: stored bytes as they were written."""

    raws: Sequence[bytes]
    next: Place | None
    """Where to go on; None: this was the last page."""


@dataclass(frozen=True, slots=True)
class Features:
    search: bool
    shared: bool
    """Several processes may write."""


class Store(Protocol):
    """Durable events. All methods may raise StoreFault; none leaves half a change behind."""

    features: Features

    async def append(self, wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        """Look `wanted` up, let `decide` plan, apply the plan: one transaction.

        Gives the new head after the commit is durable. `decide` may run on another thread, once; if
        it raises, nothing changes and the error comes out here. Appends run one after the other.
        What the plan `ends`, lets vanish or banishes takes along rows that the same plan adds.
        """

    def prepare(self, events: Sequence[Event]) -> None:
        """These will probably be appended soon: prepare what the events alone decide.

        May be called on any thread; never needed, changes nothing that can be seen.
        """

    async def page(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Page:
        """Up to `size` rows that match, that `visibility` lets through and that are not expired.

        Fewer when they are large: then a page ends at about PAGE_BYTES. In order of Place, from
        behind `after`; never a row with seq > `upto`; over all pages never more than the newest
        `limit` rows (the caller subtracts what it got).
        """

    def page_now(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Page | None:
        """`page` without waiting; None when it would take long: then ask `page`."""

    async def places(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        after: Place | None,
        size: int,
    ) -> Sequence[tuple[Place, bytes]]:
        """As `page`, each row with its place, for merging several filters."""

    async def count(self, filters: Sequence[Filter], visibility: Visibility, *, now: int) -> int:
        """How many rows match any filter and may be read; `limit` plays no part (N45-04).

        A filter with `search` counts what `search` would give. May raise TooWide then.
        """

    async def authors(
        self, filter_: Filter, visibility: Visibility, *, now: int, at_most: int
    ) -> Sequence[bytes] | None:
        """Public keys, 32 bytes each and each once, of those whose rows `count` counts.

        None when there are more than `at_most`.
        """

    async def items(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int | None,
        upto: int,
        now: int,
        at_most: int,
    ) -> Items | None:
        """created_at and id of every row that `page` would give, of the newest `limit`. NIP-77.

        None when there are more than `at_most`.
        """

    async def index(self, text_of: Callable[[Event], str | None], rules: str, limit: int) -> int:
        """Take the texts of the next `limit` rows of the log into the index that `search` asks.

        Gives the seq up to which every row is in it. `rules` names what `text_of` does (on another
        thread): under another name than before, the index begins anew. What is indexed survives a
        restart, at least up to some earlier row. Nothing that writes waits for it.
        """

    async def tidy_index(self, now: int) -> bool:
        """A bounded step towards an index without texts of rows that went or expired.

        True: more is due at once. What is left is never found.
        """

    async def search(
        self, filter_: Filter, visibility: Visibility, *, limit: int, upto: int, now: int
    ) -> Sequence[int]:
        """seq of the best `limit` indexed rows up to `upto`, best first. NIP-50.

        Of those that contain what the filter's `search` asks for, match the rest of it, may be read
        and are not expired. In order of the sum of `Searchable.scores` of each term, then
        newest first, then lowest id: rows that the viewer may not see change nothing (N50-09).
        May raise TooWide.
        """

    async def rows(
        self, seqs: Sequence[int], filter_: Filter, visibility: Visibility, *, now: int
    ) -> tuple[Sequence[bytes], int]:
        """Those of `seqs` that are stored, may be read and are not expired, in the order given.

        And how many of `seqs` are dealt with: fewer than all when the rows are large, as in `page`.
        """

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        """What is stored, by kind, author or group: most bytes first, at most `limit` lines."""

    async def management(self) -> Management:
        """What all `changes` of plans add up to."""

    async def expired(self, now: int, limit: int) -> Sequence[str]:
        """Ids of rows that are still stored though they have expired, at most `limit`."""

    async def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        seen: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        """seq of rows that the rule lets go and that are not `exempt`, in the order of sweeping.

        At most `limit`, from behind `after` (version, id). What was overdue already when all up to
        `seen` was looked at may be left out.
        """

    async def stored(self, seqs: Sequence[int]) -> Sequence[Stored]:
        """Those of these rows that are still stored, in the order given."""

    async def matching(self, filter_: Filter, *, limit: int, now: int) -> Sequence[Stored]:
        """The newest `limit` rows that match and are not expired, whoever may read them.

        In order of Place; fewer when they are large, as in `page`.
        """

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        """Rows with a greater seq that are still stored, in order of seq, at most `limit`."""

    async def head(self) -> int:
        """seq of the newest row ever committed; 0 in an empty store. Never goes back."""

    def committed(self) -> int:
        """`head` without waiting, as far as this process knows; rows up to it can be read."""

    async def committed_after(self, seq: int) -> int:
        """Wait until `committed` is greater than `seq`; gives `committed`.

        Returns at once when it is greater already: a caller that reads up to the seq it got and
        passes that seq again misses no commit, also not one of another process. A caller that was
        busy while many commits were made gets the newest. Any number of tasks may wait; one that is
        cancelled disturbs no other. Raises StoreFault when the store closes meanwhile.
        """

    async def is_writable(self) -> bool:
        """Whether a write would be taken now (disk not full, file not read-only)."""

    async def close(self) -> None:
        """Finish what was begun; after this every call raises StoreFault."""
