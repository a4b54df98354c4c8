"""The bytes of rows that were read lately, by seq.

SQL decides which rows are in an answer; this only saves fetching them: copying `raw` out of its
page takes longer than finding its seq in a covering index. It is exact because a seq names one row
for ever and `raw` never changes. Rows are not added when they are written: allocated among the
buffers of an ingest they would keep a heap of five times their size from shrinking.

Invariants: at most `max_bytes`, with what the entries take. Deleted rows are removed with the
commit.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW_CACHE_BYTES: Final = 16 << 20
_ENTRY_BYTES: Final = 150
"""What an entry takes besides the bytes of the row."""
_LARGE: Final = 64 << 10
"""Rows over this size are not kept."""


class RowCache:
    """Two generations: when the young one is full it replaces the old one. So a hit costs one
    look-up, and no order of use is recorded. Written on any thread, read on any."""

    def __init__(self, max_bytes: int = ROW_CACHE_BYTES) -> None:
        self._max_young = max_bytes // 2
        self._young: dict[int, bytes] = {}
        self._young_bytes = 0
        self._old: dict[int, bytes] = {}
        self._lock = Lock()

    def raws(self, seqs: Sequence[int]) -> list[bytes | None]:
        """None for rows that are not cached."""
        old = self._old  # read first: entries move from the young one to it
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
