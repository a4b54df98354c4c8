"""What was read lately: the bytes of rows, by seq, and whole pages, by what was asked.

SQL decides which rows are in an answer, this only saves fetching them: copying `raw` out of its
page takes longer than finding its seq in a covering index. It is exact because a seq names one row
for ever and `raw` never changes. Rows do not come here when they are written: among the buffers of
an ingest they keep a heap from shrinking that is five times their size.

A page is kept for the second and the committed state that it was read in: many clients ask the same
of a relay when they connect again. It is exact because nothing else decides what is in it.

Invariants: at most `max_bytes` each, with what the entries take. Deleted rows leave the rows with
the commit; each commit, and each second, empties the pages.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from relay.nostr.filters import Filter
    from relay.storage import Page

ROW_CACHE_BYTES: Final = 16 << 20
_ENTRY_BYTES: Final = 150
"""What an entry takes besides the bytes of the row."""
PAGE_CACHE_BYTES: Final = 8 << 20
_PAGE_BYTES: Final = 1000
_VALUE_BYTES: Final = 100
"""What a page, and each value of its filter, takes besides the bytes of rows and of tag values."""
_MAX_VALUES: Final = 100
"""Pages of filters with more of them are not kept."""
_LARGE: Final = 64 << 10
"""Rows over this size are not kept."""


class RowCache:
    """Two generations: when the young one is full it becomes the old one, which is dropped.

    So a hit costs one look-up, and needs no order of use. Written on any thread, read on any.
    """

    def __init__(self, max_bytes: int = ROW_CACHE_BYTES) -> None:
        self._max_young = max_bytes // 2
        self._young: dict[int, bytes] = {}
        self._young_bytes = 0
        self._old: dict[int, bytes] = {}
        self._lock = Lock()

    def raws(self, seqs: Sequence[int]) -> list[bytes | None]:
        """None for rows that are not here."""
        old = self._old  # first: what leaves the young one is in it
        young = self._young
        raws = list(map(young.get, seqs))
        if old and not all(raws):
            again = []
            for at, raw in enumerate(raws):
                if raw is None and (found := old.get(seqs[at])) is not None:
                    raws[at] = found
                    again.append((seqs[at], found))
            self.add(again)
        return raws

    def add(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """(seq, raw) of rows that are committed."""
        with self._lock:
            young, size = self._young, self._young_bytes
            for seq, raw in rows:
                if len(raw) > _LARGE or seq in young:
                    continue
                young[seq] = raw
                size += len(raw) + _ENTRY_BYTES
                if size > self._max_young:
                    self._old, self._young = young, {}
                    young, size = self._young, 0
            self._young_bytes = size

    def discard(self, seqs: Iterable[int]) -> None:
        with self._lock:
            for seq in seqs:
                raw = self._young.pop(seq, None)
                if raw is not None:
                    self._young_bytes -= len(raw) + _ENTRY_BYTES
                self._old.pop(seq, None)


class PageCache:
    """Pages of one state of the store. On one thread."""

    def __init__(self, max_bytes: int = PAGE_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._state: Hashable = None
        self._bytes = 0
        self._pages: dict[tuple[Filter, Hashable], tuple[object, Page]] = {}

    def page(self, state: Hashable, asked: tuple[Filter, Hashable]) -> Page | None:
        """None: not here. `state`: what a page depends on besides, and that does not come back."""
        if state != self._state:
            self._state, self._bytes = state, 0
            self._pages.clear()
            return None
        found = self._pages.get(asked)
        return None if found is None else found[1]

    def add(
        self, state: Hashable, asked: tuple[Filter, Hashable], page: Page, kept: object
    ) -> None:
        """`kept`: whose `id` is in `asked`, so that it is not used again."""
        filter_, values = asked[0], asked[0].values
        if state != self._state or values > _MAX_VALUES:
            return
        size = _PAGE_BYTES + values * _VALUE_BYTES + sum(map(len, page.raws))
        for _, listed in filter_.tags:
            size += sum(map(len, listed))
        if self._bytes + size <= self._max_bytes:
            self._pages[asked] = kept, page
            self._bytes += size
