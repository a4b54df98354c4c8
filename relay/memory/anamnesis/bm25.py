"""BM25 over plain words: text ranks without a relay's search."""

from __future__ import annotations

import re
from collections import Counter
from math import log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WORD: Final = re.compile(r"\w+")
_K1: Final = 1.2
_B: Final = 0.75
"""As in SQLite's FTS5, so that both rankings agree."""


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def ranks(query: str, texts: Mapping[str, str]) -> dict[str, float]:
    """key → rank of the texts that hold any word of the query; lower is better, as FTS5 has it."""
    query_words = set(words(query))
    counted = {key: Counter(words(text)) for key, text in texts.items()}
    lengths = {key: sum(found.values()) for key, found in counted.items()}
    average = (sum(lengths.values()) / len(lengths) if lengths else 0.0) or 1.0
    weight = {
        word: _rarity(sum(word in found for found in counted.values()), len(texts))
        for word in sorted(query_words)
    }
    found_ranks = {}
    for key, found in counted.items():
        score = 0.0
        for word, rarity in weight.items():
            times = found[word]
            longer = 1 - _B + _B * lengths[key] / average
            score += rarity * times * (_K1 + 1) / (times + _K1 * longer)
        if query_words & found.keys():
            found_ranks[key] = -score
    return found_ranks


def _rarity(with_word: int, total: int) -> float:
    """Always positive: a word in half of the texts still matches (as in FTS5)."""
    return max(log((total - with_word + 0.5) / (with_word + 0.5)), 1e-6)


def normalised(ranked: Mapping[str, float]) -> dict[str, float]:
    """1 for the best and 0 for the last match; all 1 if they are equal (M-26)."""
    if not ranked:
        return {}
    best, last = min(ranked.values()), max(ranked.values())
    if best == last:
        return dict.fromkeys(ranked, 1.0)
    return {key: (rank - last) / (best - last) for key, rank in ranked.items()}


def text_of(content: str, tags: Iterable[str]) -> str:
    """The search text of an entry."""
    return "\n".join([content, *tags])
