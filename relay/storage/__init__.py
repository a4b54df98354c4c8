"""The door of storage: what every store promises. Each promise has a test in tests/contract.

A store looks facts up and applies plans; what survives is decided by `relay.retention` inside the
store's transaction, who may read by `relay.visibility`, which a store compiles and never weakens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.retention import Found, Stored, Wanted, WritePlan
    from relay.visibility import Visibility


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

    async def append(self, wanted: Wanted, decide: Callable[[Found], WritePlan]) -> int:
        """Look `wanted` up, let `decide` plan, apply the plan: one transaction.

        Gives the new head after the commit is durable. `decide` may run on another thread, once; if
        it raises, nothing changes and the error comes out here. Appends run one after the other.
        What the plan `ends` or lets vanish takes along rows that the same plan adds.
        """

    def foresee(self, events: Sequence[Event]) -> None:
        """These will probably be appended soon: prepare what the events alone decide.

        May be called on any thread; never needed, changes nothing that can be seen.
        """

    async def page(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Page:  # fmt: skip
        """Up to `size` rows that match, that `visibility` lets through and that are not expired.

        Fewer when they are large: then a page ends at about PAGE_BYTES. In order of Place, from
        behind `after`; never a row with seq > `upto`; over all pages never more than the newest
        `limit` rows (the caller subtracts what it got).
        """

    def page_now(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Page | None:  # fmt: skip
        """`page` without waiting; None when it would take long: then ask `page`."""

    async def places(
        self, filter_: Filter, visibility: Visibility, *,
        limit: int, upto: int, now: int, after: Place | None, size: int,
    ) -> Sequence[tuple[Place, bytes]]:  # fmt: skip
        """As `page`, each row with its place, for merging several filters."""

    async def count(
        self, filters: Sequence[Filter], visibility: Visibility, *, now: int
    ) -> int:
        """How many rows match any filter and may be read; `limit` plays no part (N45-04)."""

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        """Rows with a greater seq that are still stored, in order of seq, at most `limit`."""

    async def head(self) -> int:
        """seq of the newest row ever committed; 0 in an empty store. Never goes back."""

    def committed(self) -> int:
        """`head` without waiting, as far as this process knows; rows up to it can be read."""

    async def is_writable(self) -> bool:
        """Whether a write would be taken now (disk not full, file not read-only)."""

    async def close(self) -> None:
        """Finish what was begun; after this every call raises StoreFault."""
