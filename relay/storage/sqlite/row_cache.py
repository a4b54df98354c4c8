"""Cache of the bytes of rows that were read recently, by seq.

SQL decides which rows are in an answer; the cache only saves copying `raw` out of its page, which
takes longer than finding its seq in a covering index. It is exact: a seq names one row for ever,
and `raw` never changes. Rows are not added when they are written: allocated among the buffers of an
ingest, they would keep a heap of five times their size from shrinking. While few of the requested
rows are found, because queries in turn read more rows than fit, the cache is not used: to look up
and add 500 rows takes as long as to fetch them.

Invariants: at most `max_bytes`, including the overhead of the entries. Deleted rows are removed
with the commit.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW_CACHE_BYTES: Final = 16 << 20
_ENTRY_BYTES: Final = 150
"""Bytes of an entry besides those of the row."""
_LARGE: Final = 64 << 10
"""Rows over this size are not kept."""
_LATELY: Final = 4096
"""Requested rows after which the counts of requested and found rows are halved."""
_TRIED_AGAIN: Final = 16
"""While few rows are found, one page in this many is looked up."""


class RowCache:
    """Two generations: when the young one is full it replaces the old one. So a hit costs one
    look-up, and no order of use is recorded. Written on any thread, read on any."""

    def __init__(self, max_bytes: int = ROW_CACHE_BYTES) -> None:
        self._max_young = max_bytes // 2
        self._young: dict[int, bytes] = {}
        self._young_bytes = 0
        self._old: dict[int, bytes] = {}
        self._lock = Lock()
        self.discarded = 0
        """Number of calls of `discard`."""
        self._asked = self._found = 0
        self._left_out = 0

    def pays(self) -> bool:
        """Whether to look up a page: at least two thirds of the rows requested recently were
        found."""
        if 3 * self._found >= 2 * self._asked:
            return True
        self._left_out += 1
        return self._left_out % _TRIED_AGAIN == 0

    def raws(self, seqs: Sequence[int]) -> list[bytes | None]:
        """None for rows that are not cached."""
        discarded = self.discarded
        young = self._young
        old = self._old  # read second: entries move from the young one to it
        raws = list(map(young.get, seqs))
        if old and not all(raws):
            again = []
            for at, raw in enumerate(raws):
                if raw is None and (found := old.get(seqs[at])) is not None:
                    raws[at] = found
                    again.append((seqs[at], found))
            self.add(again, discarded)
        self._asked += len(raws)
        self._found += len(raws) - raws.count(None)
        if self._asked > _LATELY:
            self._asked //= 2
            self._found //= 2
        return raws

    def add(self, rows: Iterable[tuple[int, bytes]], discarded: int) -> None:
        """(seq, raw) of rows that are committed. `discarded`: what it was before they were read;
        if rows were discarded meanwhile, these may be among them, and none is added."""
        with self._lock:
            if discarded != self.discarded:
                return
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
            self.discarded += 1
            for seq in seqs:
                raw = self._young.pop(seq, None)
                if raw is not None:
                    self._young_bytes -= len(raw) + _ENTRY_BYTES
                self._old.pop(seq, None)
