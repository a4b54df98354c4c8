"""Meanings: a vector for each indexed text, and the texts nearest to a question.

Vectors are stored in the file of the text index as 384 signed bytes (cosines do not depend on their
length), and held in memory: 430 bytes a text. Candidates are found by the signs of the numbers,
then compared exactly.
"""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

NEAREST: Final = 200
"""Readable texts that are compared exactly, and best results by words to be ranked with them."""
_WEIGHT: Final = 0.5
"""Weight of meaning against words; both scores are relative to the best."""
_LEAST: Final = 0.3
"""Least cosine of a text without any word of the question. In LoCoMo three of four answers are
above it; for a word that occurs nowhere, most nearest texts are below it."""
_FIRST_LOOK: Final = 250
_GROWTH: Final = 8


class Embedder(Protocol):
    """May be used by several threads."""

    def embed(self, texts: Sequence[str]) -> Any:
        """A row for each text: float32, of length 1."""


class Meanings:
    """The vectors of one text index. May be used by several threads."""

    def __init__(self, embedder: Embedder) -> None:
        self._np: Any = import_module("numpy")
        self._embedder = embedder
        self._lock = Lock()
        self._count = 0
        self._places: dict[int, int] = {}
        self._seqs = self._np.zeros(0, "i8")
        self._bytes: Any = None
        self._signs: Any = None
        """Sign bits, 64 numbers of a vector per word: row n has the n-th word of all texts, so that
        one operation compares it for all texts."""

    def __len__(self) -> int:
        return self._count

    def vectors(self, texts: Sequence[str]) -> list[bytes]:
        """The vectors of texts, in the stored form."""
        rows = self._embedder.embed(texts)
        largest = self._np.abs(rows).max(axis=1, keepdims=True)
        return [row.tobytes() for row in self._np.rint(rows * (127 / largest)).astype("i1")]

    def question(self, text: str) -> Any:
        """The vector of `text` without names (guessed by capitals), which would make every text
        with the name near."""
        words = text.split()
        plain = [word for n, word in enumerate(words) if not n or not word[:1].isupper()]
        return self._embedder.embed([" ".join(plain)])[0]

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """(seq, vector) of each row."""
        with self._lock:
            self._add(rows)

    def _add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        np = self._np
        fresh = [row for row in rows if row[0] not in self._places]
        if not fresh:
            return
        found = np.frombuffer(b"".join(vector for _, vector in fresh), "i1").reshape(len(fresh), -1)
        if self._bytes is None:
            self._bytes = np.zeros((0, found.shape[1]), "i1")
            self._signs = np.zeros((found.shape[1] // 64, 0), "u8")
        end = self._count + len(fresh)
        if end > len(self._seqs):
            more = max(end, 2 * len(self._seqs)) - len(self._seqs)
            self._seqs = np.concatenate([self._seqs, np.zeros(more, "i8")])
            empty = np.zeros((more, found.shape[1]), "i1")
            self._bytes = np.concatenate([self._bytes, empty])
            self._signs = np.pad(self._signs, ((0, 0), (0, more)))
        for place, (seq, _) in enumerate(fresh, self._count):
            self._places[seq] = place
        self._seqs[self._count : end] = [seq for seq, _ in fresh]
        self._bytes[self._count : end] = found
        self._signs[:, self._count : end] = np.packbits(found > 0, axis=1).view("u8").T
        self._count = end

    def drop(self, seqs: Iterable[int]) -> None:
        with self._lock:
            for seq in seqs:
                place = self._places.pop(seq, None)
                if place is None:
                    continue
                self._count -= 1
                last = int(self._seqs[self._count])
                for each in (self._seqs, self._bytes, self._signs.T):
                    each[place] = each[self._count]
                    each[self._count] = 0
                if last != seq:
                    self._places[last] = place

    def clear(self) -> None:
        with self._lock:
            self._count, self._bytes, self._signs = 0, None, None
            self._seqs = self._np.zeros(0, "i8")
            self._places.clear()

    def nearest(self, question: Any) -> Iterator[list[int]]:
        """All seqs in growing parts, nearest first by signs."""
        np = self._np
        signs = np.packbits(question > 0).view("u8")
        with self._lock:
            if not self._count:
                return
            apart = np.zeros(self._count, "u2")
            for theirs, own in zip(self._signs, signs, strict=True):
                apart += np.bitwise_count(theirs[: self._count] ^ own)
            seqs = self._seqs[: self._count].copy()
        done, size = 0, _FIRST_LOOK
        while done < len(seqs):
            end = min(done + size, len(seqs))
            # Of equals the newest first, so that the order depends on the readable rows alone.
            order = np.lexsort((-seqs, apart)) if done else None
            if order is None and end < len(seqs):
                least = np.partition(apart, end - 1)[end - 1]
                near = np.flatnonzero(apart <= least)
                order = near[np.lexsort((-seqs[near], apart[near]))]
            elif order is None:
                order = np.lexsort((-seqs, apart))
            yield [int(seq) for seq in seqs[order[done:end]]]
            done, size = end, size * _GROWTH

    def cosines(self, question: Any, seqs: Collection[int]) -> dict[int, float]:
        with self._lock:
            known = [seq for seq in seqs if seq in self._places]
            if not known:
                return {}
            rows = self._bytes[[self._places[seq] for seq in known]].astype("f4")
        values = rows @ question / self._np.linalg.norm(rows, axis=1)
        return dict(zip(known, map(float, values), strict=True))


def fused(points: Mapping[int, int], cosines: Mapping[int, float], limit: int) -> list[int]:
    """seq of the best by words and by meaning, best first. `points`: by words, best first."""
    if not points:
        cosines = {seq: cosine for seq, cosine in cosines.items() if cosine >= _LEAST}
    most, nearest = max(points.values(), default=1), max(cosines.values(), default=1.0)
    scores = {
        seq: points.get(seq, 0) / most + _WEIGHT * cosines.get(seq, 0.0) / max(nearest, 1e-6)
        for seq in [*points, *(seq for seq in cosines if seq not in points)]
    }
    return sorted(scores, key=lambda seq: (-scores[seq], -seq))[:limit]
