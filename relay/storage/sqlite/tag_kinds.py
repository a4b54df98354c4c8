"""Cache of the classes of kinds of which the tag table has rows with a tag, as far as they were
looked up for the newest filters. Such a look-up takes as long as a short page.

Invariant: no class is missing that a row had before it left the tag buffer. Classes of rows that
were deleted since may be left.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TagRow = tuple[int, int, int, int, int, int | None]
"""hash XOR partition of the row, class of its kind, created_at, id_key, seq, which are the table's
key; when the row expires"""
_MAX_KNOWN: Final = 4096
"""Tags; of each some 32 classes at most, 4 MB together."""


class TagKinds:
    """May be used by several threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, ...]] = {}
        self._lock = Lock()
        self.flushes = 0
        """How many slices of the buffer the table has got."""
        self.moves = 0
        """Goes up before and after each commit that moves rows to another partition; odd: one is
        under way. A reader that looked up classes before misses rows that are moved meanwhile."""

    def pairs_of(self, hashes: Iterable[int]) -> list[tuple[int, int]] | None:
        """Hashes and classes; None: not all are known."""
        out: list[tuple[int, int]] = []
        for hash_ in hashes:
            known = self._known.get(hash_)
            if known is None:
                return None
            out += [(hash_, class_) for class_ in known]
        return out

    def keep(self, hashes: Iterable[int], pairs: Iterable[tuple[int, int]], flushes: int) -> None:
        """All pairs of these hashes, as they were looked up after so many flushes."""
        classes: dict[int, list[int]] = {hash_: [] for hash_ in hashes}
        for hash_, class_ in pairs:
            classes[hash_].append(class_)
        with self._lock:
            if flushes != self.flushes:
                return
            for hash_, known in classes.items():
                self._known[hash_] = tuple(known)
            while len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]

    def flushed(self, rows: Sequence[TagRow]) -> None:
        """Call after the commit, before rows of the buffer leave it."""
        with self._lock:
            self.flushes += 1
            known = self._known
            for row in rows:
                if row[0] in known and row[1] not in known[row[0]]:
                    del known[row[0]]

    @contextmanager
    def moving(self, rows: Sequence[TagRow]) -> Iterator[None]:
        """Around the commit that moves rows; `rows`: their new tags in the table."""
        self.moves += 1
        try:
            yield
        finally:
            self.flushed(rows)
            self.moves += 1
