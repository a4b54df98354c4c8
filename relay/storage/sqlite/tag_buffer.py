"""The tags of the newest rows, in memory until they are flushed to the table in sorted slices.

The tags of one batch belong to pages all over the table. Inserted at once, each would dirty a page
of its own, and pages are the cost of a commit. So tags are collected in a list; a full list is
sorted, and slices of it, whose tags belong on neighbouring pages, are inserted with the commits of
later batches. A batch may bring more tags than a slice has: full lists then wait, and are flushed
between the batches, all that wait together: the more, the fewer pages for each tag. `tags_upto` in
the file is the seq up to which the table has all tags; after a crash the rows after it are read
again.

Invariants: changed on the writer's thread only, after its commit; read on any thread. A reader that
takes a snapshot of this before its statement begins misses no row: each is here, in the table, or
in both.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import merge
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.storage.sqlite.kind_classes import classes_of
from relay.storage.sqlite.tag_kinds import TagKinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from relay.storage.sqlite.tag_kinds import TagRow

TAG_BUFFER_ROWS: Final = 32_768
"""Tag rows of one list; two lists together take about 10 MB."""
MOST_OF_A_TAG: Final = 4_096
"""A list with so many rows of one tag is flushed before it is full: a read by this tag looks at
each, 1 us."""
_MOST_LISTS: Final = 4
"""While the buffer has more rows than so many lists, each batch flushes as many as it brings."""
_SLICE_PER_NEW_ROW: Final = 2
_MIN_SLICE: Final = 512
"""Tag rows of a slice at least; more if the other list would be full before the flush ends."""
MAX_SLICE: Final = 2048
"""Tag rows of a slice at most, for the commit and what waits for it: in a table of 8 million most
rows are on pages of their own, 8 us each …"""
_LEAST_OF_SLICE: Final = 64
"""… or fewer, down to this, …"""
_SLICE_S: Final = 0.05
"""… so that a slice takes less than this: where the table is larger than the memory, a page takes
as long as the disk does, 0.3 ms or more."""


class Snapshot(NamedTuple):
    """What a reader found in the buffer; later rows may join it."""

    lists: tuple[dict[int, list[TagRow]], ...]
    """hash → its rows, for each list: from those being flushed, if any, to the one being
    filled."""
    partitioned: tuple[dict[int, list[TagRow]], ...]
    """The same of rows that have a partition, by the hash of the tag."""

    def seqs_of(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> list[int]:
        """Rows that the table has under one of these hashes, of the classes of these kinds (None:
        of any), perhaps deleted since."""
        return _seqs_in(self.lists, hashes, kinds)

    def seqs_of_any(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> list[int]:
        """Rows with one of these tags, in whatever partition; else as `seqs_of`."""
        return _seqs_in((*self.lists, *self.partitioned), hashes, kinds)

    def has_any(self, hashes: frozenset[int]) -> bool:
        """False: `seqs_of_any` finds no row."""
        lists = (*self.lists, *self.partitioned)
        return not all(rows.keys().isdisjoint(hashes) for rows in lists)


def _seqs_in(
    lists: Sequence[dict[int, list[TagRow]]], hashes: Sequence[int], kinds: Set[int] | None
) -> list[int]:
    out: list[int] = []
    classes = None if kinds is None else classes_of(kinds)
    for rows in lists:
        if rows:
            for hash_ in hashes:
                if hash_ in rows:
                    out += [row[4] for row in rows[hash_] if classes is None or row[1] in classes]
    return out


class _Full:
    """A full list, sorted."""

    def __init__(self, rows: list[TagRow]) -> None:
        self.rows = sorted(rows)
        self.newest = max([row[4] for row in rows])
        self.oldest = min([row[4] for row in rows])
        """The greatest seq, and the least."""
        self.flushed = 0
        """Number of rows, from the first on, that the table has."""

    def __len__(self) -> int:
        return len(self.rows) - self.flushed


class TagBuffer:
    """Lists: one fills up while earlier ones are flushed."""

    def __init__(self, list_rows: int = TAG_BUFFER_ROWS) -> None:
        self._list_rows = list_rows
        self._slice = max(1, min(_MIN_SLICE, list_rows // 8))
        self._most = MAX_SLICE
        """Rows of a slice, as long as slices take now."""
        self._filling: list[TagRow] = []
        self._filling_from = 0
        """The least seq in `_filling`."""
        self._full: list[_Full] = []
        """Lists that wait for the flush, the oldest first."""
        self._flushing: list[_Full] = []
        """Lists that are flushed together."""
        self._due: list[TagRow] = []
        """The slice that is being flushed."""
        self.kinds = TagKinds()
        self._deleted: set[int] = set()
        """seq of deleted rows, which may have tags in the buffer."""
        self._by_hash: tuple[dict[int, list[TagRow]], ...] = ({},)
        self._partitioned: tuple[dict[int, list[TagRow]], ...] = ({},)
        """Both as in `Snapshot`."""

    def __len__(self) -> int:
        return len(self._filling) + sum(map(len, self._all_full()))

    @property
    def flushed_upto(self) -> int | None:
        """The buffer has no tags of rows up to this seq; None: it has no tags at all."""
        oldest = next((each.oldest for each in self._all_full() if len(each)), None)
        if oldest is None and self._filling:
            oldest = self._filling_from
        return None if oldest is None else oldest - 1

    @property
    def is_behind(self) -> bool:
        """Whether more than one full list is not flushed yet."""
        return len(self._flushing) + len(self._full) > 1

    def has_room_for(self, rows: int) -> bool:
        """Whether a batch with so many flushes no more than a slice."""
        return rows <= self._most or len(self) + rows <= _MOST_LISTS * self._list_rows

    def seqs_of(self, hashes: Sequence[int], kinds: Set[int] | None = None) -> list[int]:
        """Rows with one of these tags that the table may lack; of the classes of these kinds, None:
        of any; perhaps deleted since."""
        return self.snapshot().seqs_of(hashes, kinds)

    def snapshot(self) -> Snapshot:
        """The tags that `seqs_of` reads now; tags that are flushed later stay in it."""
        return Snapshot(self._by_hash, self._partitioned)

    # -- before the commit ----------------------------------------------------------------------

    def start_flush(self) -> None:
        """Begin to flush the lists that wait, or the one that is being filled."""
        if self._flushing:
            return
        if not self._full:
            if not self._filling:
                return
            self._end_list()
        self._flushing, self._full = self._full, []

    def _end_list(self) -> None:
        self._full.append(_Full(self._filling))
        self._filling = []
        self._by_hash = (*self._by_hash, {})
        self._partitioned = (*self._partitioned, {})

    def next_slice(self, new_rows: int | None = None) -> list[TagRow]:
        """The next tags to insert, with a batch of `new_rows` tag rows, or without one; then call
        `slice_flushed`."""
        size = self._most
        if new_rows is not None:
            size = min(max(self._slice, _SLICE_PER_NEW_ROW * new_rows), size)
            if len(self) + new_rows > _MOST_LISTS * self._list_rows:
                size = max(size, new_rows)
        parts = [each.rows[each.flushed : each.flushed + size] for each in self._flushing]
        rows = [*islice(merge(*parts), size)]
        self._due = rows
        return rows

    def slice_took(self, seconds: float) -> None:
        """Note how long it took to insert the rows of `next_slice`: the next slices fit that."""
        if seconds > _SLICE_S:
            self._most = max(self._most // 2, _LEAST_OF_SLICE)
        elif seconds < _SLICE_S / 4 and self._due and len(self._due) >= self._most // 2:
            self._most = min(2 * self._most, MAX_SLICE)

    def all_rows(self) -> list[TagRow]:
        """All tags, sorted."""
        return sorted(
            chain(self._filling, *[each.rows[each.flushed :] for each in self._all_full()])
        )

    def _all_full(self) -> list[_Full]:
        return [*self._flushing, *self._full]

    def without_deleted(self, rows: Iterable[TagRow]) -> list[TagRow]:
        deleted = self._deleted
        return [row for row in rows if row[4] not in deleted] if deleted else list(rows)

    def complete_upto(self, rows: int) -> int | None:
        """The seq up to which the table has all tags once `rows` more are inserted; None:
        unchanged."""
        if not self._flushing or rows < sum(map(len, self._flushing)):
            return None
        return max([each.newest for each in self._flushing])

    # -- after the commit -----------------------------------------------------------------------

    def slice_flushed(self, rows: int) -> None:
        if not rows or not self._due:
            return
        self.kinds.flushed(self._due)
        for each in self._flushing:
            each.flushed = bisect_right(each.rows, self._due[-1], each.flushed)
        if not any(self._flushing):
            newest = max(each.newest for each in self._flushing)
            self._by_hash = self._by_hash[len(self._flushing) :]
            self._partitioned = self._partitioned[len(self._flushing) :]
            self._flushing = []
            self._deleted = {seq for seq in self._deleted if seq > newest}
            if self._full:
                self.start_flush()

    def rows_deleted(self, seqs: Iterable[int]) -> None:
        if len(self):
            self._deleted.update(seqs)

    def add(
        self, rows: Sequence[TagRow], partitions: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """The tags of rows that were just committed. `partitions`: seq → partition, of those that
        have one."""
        if rows and not self._filling:
            self._filling_from = min([row[4] for row in rows])
        self._filling += rows
        by_hash = self._by_hash[-1]
        is_crowded = False
        for row in rows:
            known = by_hash.get(row[0])
            if known is None:
                by_hash[row[0]] = [row]
            else:
                known.append(row)
                is_crowded = is_crowded or len(known) >= MOST_OF_A_TAG
        if partitions:
            by_tag = self._partitioned[-1]
            for row in rows:
                partition = partitions.get(row[4])
                if partition is not None:
                    known = by_tag.setdefault(row[0] ^ partition, [])
                    known.append(row)
                    is_crowded = is_crowded or len(known) >= MOST_OF_A_TAG
        if is_crowded or len(self._filling) >= self._list_rows:
            self._end_list()
            self.start_flush()
