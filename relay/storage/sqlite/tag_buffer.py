"""The tags of the newest rows, in memory until they go to the file in sorted slices.

Tag rows lie all over their index: written with each batch they touch a page each, and pages are
what a commit costs. Here they gather for a generation; a full generation is sorted and sinks slice
by slice, each into neighbouring pages, riding on the commits of later batches. A watermark in the
file says up to which row it knows all tags; after a crash the rows behind it are indexed again.

Changed on the writer's thread only, after its commits; asked on any thread. What is asked first and
read from the file afterwards is complete: a row is here, or already there, or in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TagRow = tuple[int, int, int, int, int]
"""hash, created_at, id_key, seq, kind"""

Recent = tuple[dict[int, list[int]], dict[int, list[int]]]
"""hash → seqs, of each generation."""

GENERATION: Final = 32_768
"""Tag rows of one generation; at most two of them are held, some 10 MB."""
_PER_NEW_ROW: Final = 2
_SLICE: Final = 512
"""A slice is at least so many tag rows, and as many as let a generation sink while one gathers."""


def seqs_in(recent: Recent, hashes: Sequence[int]) -> list[int]:
    """Rows with one of these tags, perhaps deleted since."""
    out: list[int] = []
    for seqs in recent:
        if seqs:
            for hash_ in hashes:
                out += seqs.get(hash_, ())
    return out


class TagTail:
    """Two generations: one gathers, the one before sinks."""

    def __init__(self, generation: int = GENERATION) -> None:
        self._generation = generation
        self._slice = max(1, min(_SLICE, generation // 8))
        self._gathering: list[TagRow] = []
        self._sinking: list[TagRow] = []
        self._sunk = 0
        self._gone: set[int] = set()
        self._gathered_seqs: dict[int, list[int]] = {}
        self._sinking_seqs: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._gathering) + len(self._sinking) - self._sunk

    def seqs_of(self, hashes: Sequence[int]) -> list[int]:
        """Rows with one of these tags that the file may not know yet; perhaps deleted since."""
        return seqs_in(self.recent(), hashes)

    def recent(self) -> Recent:
        """What `seqs_of` asks, to be asked later: it still holds what sinks meanwhile."""
        gathered = self._gathered_seqs  # first: a generation goes from here to there
        return gathered, self._sinking_seqs

    # -- what goes to the file -------------------------------------------------------------------

    def slice_due(self, new_rows: int) -> list[TagRow]:
        """What should sink with a batch of so many tag rows; call `sank` after the commit."""
        if self._sunk == len(self._sinking):
            return []
        size = max(self._slice, _PER_NEW_ROW * new_rows)
        return self._sinking[self._sunk : self._sunk + size]

    def all_due(self) -> list[TagRow]:
        """Everything, sorted; call `sank_all` after the commit."""
        return sorted([*self._sinking[self._sunk :], *self._gathering])

    def kept(self, rows: Iterable[TagRow]) -> list[TagRow]:
        """Without the tags of deleted rows."""
        gone = self._gone
        return [row for row in rows if row[3] not in gone] if gone else list(rows)

    def watermark_after(self, rows: int) -> int | None:
        """Up to which seq the file knows all tags once so many more have sunk; None: as before."""
        if not self._sinking or self._sunk + rows < len(self._sinking):
            return None
        return max(row[3] for row in self._sinking)

    # -- after the commit ------------------------------------------------------------------------

    def sank(self, rows: int) -> None:
        self._sunk += rows
        if self._sinking and self._sunk == len(self._sinking):
            newest = max(row[3] for row in self._sinking)
            self._sinking, self._sunk, self._sinking_seqs = [], 0, {}
            self._gone = {seq for seq in self._gone if seq > newest}

    def sank_all(self) -> None:
        self._sinking, self._sunk, self._sinking_seqs = [], 0, {}
        self._gathering, self._gathered_seqs = [], {}
        self._gone.clear()

    def forget(self, seqs: Iterable[int]) -> None:
        """These rows were deleted."""
        if len(self):
            self._gone.update(seqs)

    def gather(self, rows: Sequence[TagRow]) -> None:
        """The tags of rows that were just committed."""
        self._gathering += rows
        seqs = self._gathered_seqs
        for row in rows:
            known = seqs.get(row[0])
            if known is None:
                seqs[row[0]] = [row[3]]
            else:
                known.append(row[3])
        if len(self._gathering) >= self._generation and not self._sinking:
            # In this order: who asks meanwhile finds a row twice rather than not at all.
            self._sinking_seqs = seqs
            self._gathered_seqs = {}
            self._sinking = sorted(self._gathering)
            self._gathering = []
