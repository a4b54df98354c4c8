"""Stored rows of the filters of one query, merged, in pages that its connection has turns for."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import ref

from relay.read.pace import Pace
from relay.storage import PAGE_BYTES, Listed, PageQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from weakref import ReferenceType

    from relay.access.shares import Shares
    from relay.access.visibility import Viewer, Visibility
    from relay.nostr.filters import Filter
    from relay.read.peer import Peer
    from relay.storage import ClientReads, Place

PAGE_ROWS: Final = 500
LONG_S: Final = 0.008
"""A query with more work on the loop than this waits for the turn of its connection."""
_MERGED_BYTES: Final = 1 << 20
"""Bytes of the rows of several filters that are held while a page is made; rows beyond these are
read one by one."""
_FEW_ROWS: Final = 16
"""Rows that are read of one filter at a time at least, however many filters there are."""
_LITTLE: Final = 64 << 10
"""As `_MERGED_BYTES`, while others hold very much."""
_FEWEST_ROWS: Final = 32
"""Rows that are read of all filters together while others hold very much; but two of each."""
_PLACE_BYTES: Final = 224
"""Bytes of a held row beside its text: its `Place`, with three numbers, and two tuples."""
_SEQ_BYTES: Final = 8
"""Bytes of a row of which only the seq is held."""
_MAX_HELD: Final = 64 << 20
"""Bytes that all queries hold, see `Shares`: each may wait for its turn or its client for long."""
_ORDINARY_HELD: Final = 1 << 20
"""Bytes of these that one address may hold whatever others hold."""
FILTER_S: Final = 3e-4
TAG_S: Final = 6e-5
SEARCH_S: Final = 3e-4
_VALUE_S: Final = 2e-6
"""Estimated time on the loop of a filter, of a tag name in it, whose condition SQLite prepares, of
a search, and of a value: each is compiled to SQL twice."""


def work_of(filters: Sequence[Filter]) -> float:
    """Estimated seconds on the loop."""
    if len(filters) == 1:  # as most
        (one,) = filters
        seconds = FILTER_S + len(one.tags) * TAG_S + one.values * _VALUE_S
        return seconds if one.search is None else seconds + SEARCH_S
    tags = sum([len(each.tags) for each in filters])
    searches = len([each for each in filters if each.search is not None])
    seconds = len(filters) * FILTER_S + tags * TAG_S + searches * SEARCH_S
    return seconds + values_in(filters) * _VALUE_S


def values_in(filters: Sequence[Filter]) -> int:
    return sum([each.values for each in filters])


class Scan:
    """Rows of all filters, newest first (N01-76), no row twice (N01-63)."""

    def __init__(
        self,
        store: ClientReads,
        filters: Sequence[tuple[Filter, int]],
        upto: int,
        peer: Peer,
        sent: Collection[int],
        held: HeldRows,
        *,
        is_long: bool = False,
    ) -> None:
        """`filters`: each with its limit; `upto`: seq of the newest row; `sent`: seqs of rows that
        the client has; `held`: what the query holds; `is_long`: the first page of the one filter
        takes more than a short read."""
        self._held = held
        self._scans = [_FilterScan(store, *each, upto, len(filters), held) for each in filters]
        self._is_long = is_long
        self._pace = Pace(peer)
        self._sent = sent
        self._before: Sequence[_Position] = ()

    @property
    def is_done(self) -> bool:
        """Whether all rows were in the pages so far."""
        return all(scan.is_done for scan in self._scans)

    async def page(self, visibility: Visibility, now: int) -> Sequence[bytes]:
        """The next rows, as `visibility` permits. Raises StoreFault."""
        self._before = [scan.position for scan in self._scans]
        await self._pace.rest()
        if len(self._scans) == 1 and not self._sent:
            is_long, self._is_long = self._is_long, False
            return await self._pace.through(self._scans[0].page(visibility, now, is_long=is_long))
        raws: list[bytes] = []
        try:
            await self._merge(raws, visibility, now)
        finally:
            self._held.add(-sum(map(len, raws)))
        return raws

    async def _merge(self, raws: list[bytes], visibility: Visibility, now: int) -> None:
        """The next rows of all filters."""
        size = 0
        heads: list[tuple[int, int, int, int]] = []
        for number in range(len(self._scans)):
            await self._push_head(heads, number, visibility, now)
        last: Place | None = None
        while heads and len(raws) < PAGE_ROWS and size < PAGE_BYTES:
            _, _, seq, number = heads[0]
            last = self._scans[number].place
            if seq not in self._sent:
                raw = await self._pace.through(self._scans[number].raw(visibility, now))
                if raw:
                    raws.append(raw)
                    self._held.add(len(raw))
                    size += len(raw)
            is_over = size >= _LITTLE and not self._held.has_room(visibility)
            while heads and heads[0][2] == seq:  # found by several filters
                number = heapq.heappop(heads)[3]
                self._scans[number].take()
                if not is_over:
                    await self._push_head(heads, number, visibility, now)
            if is_over:
                break
        if last is not None:
            # Rows before it that the reader may read only from now on would come out of order.
            for scan in self._scans:
                scan.skip_to(last)

    def sending(self) -> None:
        """The page is being sent. Its client may take long to read it: no row is held meanwhile."""
        self._before = ()
        self._pace.stop()
        self.forget()

    def forget(self) -> None:
        """Hold no row."""
        for scan in self._scans:
            scan.forget()

    def resume(self) -> None:
        """The client has read the page."""
        self._pace.resume()

    def rewind(self) -> None:
        """The last page was not sent: the next one is the same, read again."""
        for scan, position in zip(self._scans, self._before, strict=True):
            scan.rewind(position)

    async def _push_head(
        self, heads: list[tuple[int, int, int, int]], number: int, visibility: Visibility, now: int
    ) -> None:
        place = await self._pace.through(self._scans[number].head(visibility, now))
        if place is not None:
            heapq.heappush(heads, (-place.created_at, place.id_key, place.seq, number))
        await self._pace.rest()


class HeldRows:
    """Bytes that a query holds while it waits for its turns or its client: of rows that are merged,
    and what a search has found."""

    def __init__(self, shares: Shares, peer: Peer) -> None:
        """`shares`: of all queries."""
        self._shares = shares
        self._own = 0
        self._peer = peer
        self.address = peer.counted_as

    def add(self, size: int) -> None:
        """Negative when they are gone."""
        if size:
            self._own += size
            self._peer.hold(size)
            self._shares.add(self.address, size)

    def end(self) -> None:
        """Nothing is held any more."""
        self.add(-self._own)

    def has_room(self, rights: Visibility) -> bool:
        shares = self._shares
        return (
            shares.used < _MAX_HELD // 4
            or shares.room_for(rights, self.address, _MAX_HELD, _ORDINARY_HELD) > 0
        )

    def room(self, rights: Visibility, few: int) -> int:
        """Bytes that may be added. `few`: that the query may hold whatever others do."""
        room = self._shares.room_for(rights, self.address, _MAX_HELD, _ORDINARY_HELD)
        return max(room, few - self._own, 0)


class _Position(NamedTuple):
    """Where a scan is between two pages, when it holds no row."""

    after: Place | None
    """The last row taken."""
    left: int
    """How many rows the limit leaves."""
    listed: Listed | None


class _FilterScan:
    """The stored rows of one filter, from a position on."""

    def __init__(
        self,
        store: ClientReads,
        filter_: Filter,
        limit: int,
        upto: int,
        filters: int,
        held: HeldRows,
    ) -> None:
        """`filters`: how many share the memory for rows of one query."""
        self._store = store
        self._filter = filter_
        self._upto = upto
        self._held = held
        self._left = limit
        self._size = max(PAGE_ROWS // filters, _FEW_ROWS)
        self._bytes = _MERGED_BYTES // filters
        self._little = _LITTLE // filters
        self._fewest = max(_FEWEST_ROWS // filters, 2)
        self._after: Place | None = None
        self._listed: Listed | None = None
        """Rows that were found, but not read yet; only for `_viewer`."""
        self._rows: Sequence[tuple[Place, bytes]] = ()
        self._row_bytes = 0
        self._average = 1
        """Bytes of the rows that were read last."""
        self._index = 0
        self._read_as: ReferenceType[Visibility] | None = None
        """Weak: rights hold all groups as they were, and the client may take long."""
        self._viewer: Viewer | None = None
        """Who has those rights."""
        self.is_done = False

    @property
    def position(self) -> _Position:
        return _Position(self._after, self._left, self._listed)

    def rewind(self, position: _Position) -> None:
        self._after, self._left, self._listed = position
        self._read_as, self.is_done = None, False
        self._keep(())

    def forget(self) -> None:
        """Hold no row that was not taken: it is read again, but not looked for again where the
        store lists rows."""
        if self._listed is not None:
            self._list(self._rows[self._index :])
        self._keep(())

    async def page(self, visibility: Visibility, now: int, *, is_long: bool) -> Sequence[bytes]:
        """The next page; for a query of one filter."""
        self._check_rights(visibility)
        page = await self._store.page(self._query(visibility, now, PAGE_ROWS), is_long=is_long)
        self._left -= len(page.raws)
        self._after, self._listed = page.next, page.listed
        self._reads_as(visibility)
        self.is_done = page.next is None
        return page.raws

    async def head(self, visibility: Visibility, now: int) -> Place | None:
        """The place of the next row; None at the end."""
        self._check_rights(visibility)
        is_read = self._index < len(self._rows) or self.is_done
        if not is_read or self._read_as is None:
            self.forget()
            size, most = self._size, self._bytes
            if not self._held.has_room(visibility):
                most = self._little
                if self._listed is None:
                    size = min(size, self._fewest)
            if self._listed is not None and self._listed.seqs:
                size = max(1, min(size, most // self._average))
            # Before the read: others that wait for theirs look at it too.
            self._hold(most + size * _PLACE_BYTES)
            rows, self._listed = await self._store.places(self._query(visibility, now, size))
            self._keep(rows, most)
            self._reads_as(visibility)
            self.is_done = not rows
        return self.place if self._rows else None

    def _check_rights(self, visibility: Visibility) -> None:
        """Rows that were read with other rights do not count. Those that are listed do, unless the
        viewer has logged in since: the store checks them again, and anybody may change groups, also
        those of the viewer, at any time.
        """
        if self._read_as is None or self._read_as() is not visibility:
            self._read_as = None
            if self._viewer != visibility.viewer:
                self.forget()
                self._listed = None

    def _reads_as(self, visibility: Visibility) -> None:
        self._read_as, self._viewer = ref(visibility), visibility.viewer

    def _keep(self, rows: Sequence[tuple[Place, bytes]], most: int = 0) -> None:
        """Hold the rows as far as `most` bytes go; of the others only their places."""
        sizes = [*accumulate([_PLACE_BYTES + len(raw) for _, raw in rows])]
        if rows:
            self._average = sizes[-1] // len(rows)
        if self._listed is not None:
            number = max(1, bisect_right(sizes, most))
            self._list(rows[number:])
            rows = rows[:number]
        self._rows = [
            (place, raw if size <= most else b"")
            for (place, raw), size in zip(rows, sizes, strict=False)
        ]
        self._index = 0
        listed = 0 if self._listed is None else len(self._listed.seqs)
        rows_bytes = sum([_PLACE_BYTES + len(raw) for _, raw in self._rows])
        self._hold(rows_bytes + listed * _SEQ_BYTES)

    def _hold(self, size: int) -> None:
        """This filter's rows take so many bytes now."""
        self._held.add(size - self._row_bytes)
        self._row_bytes = size

    def _list(self, rows: Sequence[tuple[Place, bytes]]) -> None:
        """Put the seqs of these rows before those that are listed."""
        assert self._listed is not None
        seqs = array("q", [place.seq for place, _ in rows])
        self._listed = Listed(seqs + array("q", self._listed.seqs), self._listed.are_last)

    @property
    def place(self) -> Place:
        """The place that `head` gave."""
        return self._rows[self._index][0]

    async def raw(self, visibility: Visibility, now: int) -> bytes:
        """The row whose place `head` gave; empty if it was deleted since."""
        place, raw = self._rows[self._index]
        if not raw:
            found, _ = await self._store.rows(
                [place.seq], self._filter, visibility, now=now, address=self._held.address
            )
            raw = found[0] if found else b""
        return raw

    def _query(self, visibility: Visibility, now: int, size: int) -> PageQuery:
        return PageQuery(
            self._filter,
            visibility,
            self._left,
            self._upto,
            now,
            size,
            self._after,
            self._held.address,
            self._listed,
        )

    def skip_to(self, place: Place) -> None:
        """No row up to this place is read any more; the next one held is behind it."""
        self._after = place

    def take(self) -> None:
        """Move on behind the row whose place `head` gave."""
        self._after = self.place
        self._index += 1
        self._left -= 1
