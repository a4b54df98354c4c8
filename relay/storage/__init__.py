"""The storage port: what every store promises, each promise with a test in tests/contract.

A store looks rows up and applies plans. Which version is kept is decided by
`relay.lifecycle.versions`, called inside the transaction; who may read by
`relay.access.visibility`, which a store compiles to SQL.

Invariants: a store never gives a row to a reader without a Visibility; rows are given as the bytes
that were written; `seq` numbers rows in the order of commits and is never used again.

`Store` is the whole; its parts are what the users of it need:

    EventLog       what was committed, in order         state, data folder
    Appender       one transaction per batch            write.ingest
    ClientReads    pages, counts, searches              read.query, read.negentropy
    EventReader    and what is read for decisions       linked rows, versions, NIP-86
    SearchIndex    brings the log into the text index   read.search_indexer
    SweepSource    rows that may be deleted             write.sweeper
    Inspector      totals, lists, whether it can write  commands, HTTP
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

    from relay.access.management import ListName, Management
    from relay.access.quotas import Sized, SizedBy
    from relay.access.read_rules import Match
    from relay.access.visibility import Visibility
    from relay.groups.group import EndedGroup
    from relay.lifecycle.retention import LastScan, SweepRule
    from relay.lifecycle.rows import ExpiredRow, Found, Lookups, OldVersion, Slot, Stored, WritePlan
    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items


PAGE_BYTES: Final = 512 << 10
"""A page ends once its rows have this many bytes: it is written to one client before others go on,
and is held until then."""
PARSED_BYTES: Final = 1 << 17
"""The same for rows that the store parses, on the loop: 128 KiB with 40,000 tags take 8 ms."""
ITEMS_S: Final = {True: 30.0, False: 10.0}
"""How long the set of a NEG-OPEN may be read, by whether the client is an owner; others wait for
it."""
CLOSED: Final = "the store is closed"


class Place(NamedTuple):
    """A row's position in results: sorted by created_at, newest first, then by id, lowest first."""

    created_at: int
    id_key: int
    """The first 8 bytes of the id, as an integer that sorts like the id."""
    seq: int


class Listed(NamedTuple):
    """Rows behind a page that were found with it. Large rows fill a page with few, and those behind
    them need not be looked for again."""

    seqs: Sequence[int]
    """In order, in little memory; empty: none yet, but the rows are large."""
    are_last: bool
    """No others are behind them."""

    @property
    def is_end(self) -> bool:
        """No row is behind the page."""
        return self.are_last and not self.seqs


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a result, in order: stored bytes as they were written."""

    raws: Sequence[bytes]
    next: Place | None
    """The `after` of the next page; None: this is the last."""
    listed: Listed | None = None
    """The `listed` of the next page."""


class PageQuery(NamedTuple):
    """Asks for a page of the newest `limit` rows that match, in order of Place: up to `size` of
    them after `after`."""

    filter: Filter
    visibility: Visibility
    limit: int
    upto: int
    """Greatest seq."""
    now: int
    """Unix seconds; rows that have expired by then are left out."""
    size: int
    after: Place | None = None
    address: str | None = None
    """The client's, as `Sharer.counted_as`: it may decide who waits, and not which rows match."""
    listed: Listed | None = None
    """Only for the same viewer, whose rights may have changed; rows that they may read only since
    then are found behind the list. It decides how rows are found, not which."""

    def following(self, page: Page) -> PageQuery:
        """The query for the page after this one."""
        left = self.limit - len(page.raws)
        return self._replace(limit=left, after=page.next, listed=page.listed)


@dataclass(frozen=True, slots=True)
class Features:
    search: bool
    shared: bool
    """Several processes may write."""
    erased_from: str = "the files of this relay"
    """Where no byte of a text is left when `is_erased` is True; for receipts."""


@dataclass(frozen=True, slots=True)
class Others:
    """Commits of other relays on the store: the parts that change state."""

    after: int
    upto: int
    """seq: rows between these are theirs."""
    records: Sequence[Stored] = ()
    """The 9000–9022 and 39000–39005 among these rows that are still stored, in order of seq."""
    gone: Mapping[str, Set[str]] = field(default_factory=dict)
    """Group → ids of its 9009 and 9021 that were deleted; not of groups in `rebuilt`."""
    rebuilt: Mapping[str, Sequence[Stored]] = field(default_factory=dict)
    """Group → its remaining records, for groups of which some records were deleted."""
    ended: Mapping[str, EndedGroup] = field(default_factory=dict)
    """id → the groups in `rebuilt` that have ended."""
    lists: Mapping[ListName, Mapping[str, str]] = field(default_factory=dict)
    """NIP-86 lists that have changed, each complete."""
    passed_on: Mapping[int, Sequence[Stored]] = field(default_factory=dict)
    """seq of a batch, ascending → its `WritePlan.passed_on`."""
    rights_at: int = 0
    """seq of the newest change of groups or lists; 0: none changed."""


class EventLog(Protocol):
    """Committed rows in the order of their seq."""

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        """Rows with a greater seq that are still stored, ascending, at most `limit`; fewer when
        they are large. Empty only at the end."""

    async def seqs_of_kinds(
        self, kinds: Set[int], after: int, upto: int, limit: int
    ) -> Sequence[int]:
        """seqs of the stored rows of these kinds after `after`, up to `upto`, ascending, at most
        `limit`. Each call reads the index of all rows of these kinds, and no other rows."""

    async def stored(self, seqs: Sequence[int], most: int = PARSED_BYTES) -> Sequence[Stored]:
        """Those of these rows that are still stored, in the order given: as many as have at most
        `most` bytes with their old versions, or the first."""

    async def head(self) -> int:
        """seq of the newest row ever committed; 0 in an empty store. Never decreases."""

    def committed(self) -> int:
        """`head` without waiting, as far as this process knows; rows up to it can be read."""

    def is_nearly_full(self) -> bool:
        """Whether so little space is left that only owners may write, to free some. May be a second
        old."""

    async def ended_groups(self) -> Mapping[str, EndedGroup]:
        """id → the EndedGroup that plans stored."""

    async def committed_after(self, seq: int) -> int:
        """Wait until `committed` is greater than `seq`; gives `committed`.

        Returns at once if it is greater already: a caller that reads up to the seq it got and
        passes that seq again misses no commit, of other processes neither. After many commits it
        gets the newest. Any number of tasks may wait; cancelling one does not affect others. Raises
        StoreFault when the store closes meanwhile.
        """


class Appender(EventLog, Protocol):
    @property
    def append_s(self) -> float:
        """Seconds for which the last `append` worked, or waited for blocks of a disk, also if it
        stored nothing; on a server, seconds up to its commit, without waiting for others, taking
        over what they stored, or what short statements wait for a server that is far or busy."""

    @property
    def disk_s(self) -> float:
        """How much of `append_s` it waited for blocks of a disk; on a server 0, it is not known."""

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        """Look up, let `decide` plan, apply the plan, in one transaction.

        Gives the new head once the commit is durable. `decide` may run on another thread, once; if
        it raises, nothing changes and the error is raised here. Appends run one after the other.
        Raises TooMuchToRead, for the limits of `lookups`, before it calls `decide`; TookTooLong at
        any time before the commit. The parts
        of the plan that end a group, or delete the rows of a vanished or banned key, also delete
        rows that the same plan adds.
        """

    async def replicated(self) -> None:
        """Await before what the last `append` found is acknowledged: until no fail-over to a
        synchronous replica would lose it. Others may append meanwhile. Raises StoreFault.

        An `append` that changed something has done this itself.
        """

    async def make_room(self, tags: int) -> int:
        """Before events with so many tags are appended: do some of what earlier ones left to do, in
        a short transaction. Gives for how many tags there is room then; 0: nothing had to be done.

        It only keeps the transaction of `append` short. Raises StoreFault.
        """

    def prepare(self, events: Sequence[Event]) -> None:
        """A hint: these events will probably be appended soon.

        May be called on any thread. It only makes `append` faster.
        """


Verb = Literal["REQ", "COUNT"]


class ClientReads(Protocol):
    """Rows that match a filter, may be read by a viewer and are not expired: for answers."""

    def committed(self) -> int:
        """As in `EventLog`."""

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        """The next rows; fewer than `size` once they have PAGE_BYTES. `is_long`: `page_now` was
        just asked for them and gave None."""

    def page_now(self, query: PageQuery) -> Page | None:
        """`page` without waiting; None when it would take long: then call `page`."""

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed | None]:
        """As `page`, each row with its place, for merging several filters. With the `listed` of the
        query for the next ones."""

    async def count(
        self,
        filters: Sequence[Filter],
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> int:
        """How many rows match any of the filters; their `limit` is ignored (N45-04). `address`,
        here and below: as that of a PageQuery.

        A filter with `search` counts what `search` would give; then it may raise TooWide.
        """

    async def authors(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        at_most: int,
        address: str | None = None,
    ) -> Sequence[bytes] | None:
        """Distinct public keys, 32 bytes each, of the rows that `count` counts.

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
        """created_at and id of every row that `page` would give, of the newest `limit` (NIP-77),
        with the groups that the rows are of.

        None when there are more than `at_most`. Raises TooSlow after `ITEMS_S`.
        """

    async def search(
        self,
        filter_: Filter,
        visibility: Visibility,
        *,
        limit: int,
        upto: int,
        now: int,
        address: str | None = None,
    ) -> Sequence[int]:
        """seq of the best `limit` indexed rows up to `upto`, best first (NIP-50).

        Rows that contain what the filter's `search` requires and match the rest of the filter,
        ordered by the sum of `Searchable.scores` over the terms, then newest first, then lowest id:
        rows that the viewer may not read have no influence (N50-09). Raises TooWide when it takes
        too long.
        """

    async def rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> tuple[Sequence[bytes], int]:
        """Those of `seqs` that are stored and may be read, in the order given, and how many of
        `seqs` were checked: fewer than all once the rows have PAGE_BYTES."""

    async def plan(
        self, filters: Sequence[Filter], visibility: Visibility, verb: Verb, *, now: int
    ) -> Sequence[str]:
        """How the store answers, step by step, for the admin: tables and indices, no value."""


class EventReader(EventLog, ClientReads, Protocol):
    """`ClientReads`, and reads for decisions: these need what is committed here, not on a
    replica.

    No read of a client delays one for the relay itself; nor a method of the other parts, except
    `sizes` and those that may read the whole store.
    """

    async def page_for_relay(self, query: PageQuery) -> Page:
        """`page` for the relay itself."""

    async def versions(
        self, slot: Slot, *, before: int | None, limit: int, now: int
    ) -> Sequence[Stored]:
        """For the relay itself: the row of a slot, then its old versions, newest first.

        `before`: a seq; only versions older than this one follow the row. At most `limit`; fewer
        once their `parsing_weight` is PAGE_BYTES. Expired ones are left out. Empty when the slot
        has no row, also when it has expired.
        """

    async def old_version(self, slot: Slot, event_id: str) -> Stored | None:
        """For the relay itself: an old version of the slot, also when it has expired."""

    async def matching(
        self, filter_: Filter, *, limit: int, now: int, after: Stored | None = None
    ) -> Sequence[Stored]:
        """For the relay itself: the newest `limit` rows, without a Visibility.

        In order of Place, those behind `after`; fewer once their `parsing_weight` is PAGE_BYTES.
        """


class SearchIndex(EventLog, Protocol):
    """The text index of `EventReader.search`; it follows the log. No writer waits for it."""

    async def index(
        self,
        text_of: Callable[[Event], str | None],
        rules: str,
        limit: int,
        kinds: Set[int] | None = None,
    ) -> int:
        """Index the texts of the next `limit` rows of the log, fewer if they are long; gives the
        seq up to which all are.

        With `kinds`, which may only change when `rules` do: the next rows of these kinds, ahead of
        others, and the seq up to which all rows of these kinds are indexed.

        `text_of` may run on another thread. `rules` is its version: when it changes, the index is
        rebuilt. The index survives a restart, at least up to some earlier row.
        """

    async def embed_texts(self, limit: int) -> bool:
        """Compute the vectors of the next `limit` indexed texts, if the store compares meanings.
        True: call again. `search` with `match:any` then also finds rows with none of the words
        whose text is close in meaning."""

    async def tidy_index(self) -> bool:
        """A bounded step that removes texts of deleted rows; True: call again at once. It may wait
        for reads of clients, and `index` does not wait for it.

        Such rows are never found, whether their texts were removed or not. Expired rows keep theirs
        until they are swept: the clock may be wrong.
        """


class SweepSource(EventLog, Protocol):
    """Rows that retention and expiry may delete."""

    async def expired(
        self, now: int, limit: int, vanishing: Set[str] = frozenset()
    ) -> Sequence[ExpiredRow]:
        """At most `limit` rows that have expired and are still stored; but those of these keys that
        are LONG_EXPIRED."""

    async def due_rows(
        self,
        rule: SweepRule,
        exempt: Sequence[Match],
        *,
        now: int,
        last_scan: LastScan | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Sequence[int]:
        """seq of rows that are due by the rule and not `exempt`, by (version, id), after `after`.

        At most `limit`. Rows that were due already at the time of `last_scan` may be left out.
        """

    async def overdue_versions(self, now: int, limit: int) -> Sequence[OldVersion]:
        """At most `limit` old versions whose `drop_at` has come, fewer as in `since`; their `newer`
        is not counted."""

    async def old_versions(self, after: int, limit: int) -> Sequence[OldVersion]:
        """At most `limit` old versions with a greater seq, in order of seq; fewer as in `since`."""

    async def check(self, after: int, limit: int) -> tuple[int, Sequence[str]]:
        """Check at most `limit` rows after seq `after` for damage, fewer if they are large.

        Returns the seq to continue after, and a line for each damaged row; without rows 0, and a
        line if the totals are wrong.
        """


class Inspector(Protocol):
    features: Features

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        """Totals by kind, author or group: most bytes first, at most `limit` lines."""

    async def management(self) -> Management:
        """The lists after the `list_changes` of all plans."""

    async def is_writable(self) -> bool:
        """Whether a write would succeed now (disk not full, file not read-only)."""

    async def erasure(self, request: str) -> Erasure | None:
        """What the plan with this request in `erasures` deleted; kept for ERASURE_DAYS. `is_erased`
        knows of it then, whichever process committed it."""

    def is_erased(self, request: str) -> bool:
        """Whether no byte of what `erasure` names is left in `Features.erased_from`; False: not
        known yet."""

    def unerased_s(self) -> float:
        """Seconds since the oldest deletion whose bytes may still be there; 0: none. Counts every
        row that a committed plan deleted or replaced."""


TakeOver: TypeAlias = "Callable[[Others], Awaitable[Callable[[], Lookups] | None]]"


class SharedLog(EventLog, Protocol):
    """A store that other relays write to as well, if `take_over` is set."""

    take_over: TakeOver | None
    """Called with the commits of others: in `append` before its lookups, and in `follow`. Only then
    does `committed` include them. May return what gives changed Lookups for the batch. Must not
    raise, or the same commits come again; what it returns may raise TooMuchToRead."""

    async def news(self) -> None:
        """Wait until others have committed something."""

    async def follow(self) -> None:
        """Call `take_over` with the commits of others. Raises StoreFault, or Outdated."""

    def follow_from(self, seq: int) -> None:
        """Follow from this seq: the state already includes the log up to it."""

    def is_current(self) -> bool:
        """Whether everything that others had committed two seconds ago was taken over. If not, all
        methods of `EventReader` raise StoreFault."""

    def is_first(self) -> bool:
        """Whether this process does the work that only one of them does."""


class Store(Appender, EventReader, SearchIndex, SweepSource, Inspector, Protocol):
    """Durable events. Every method may raise StoreFault; every change is atomic."""

    async def close(self) -> None:
        """Finish running calls; after this every call raises StoreFault."""
