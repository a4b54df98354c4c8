"""Natural-language questions as keyword searches: the keywords, and one ranking of their results.

A NIP-50 search matches texts that contain all of its words, and few texts contain every word of a
question. So each keyword is searched for by itself, and texts with several keywords rank first. The
rarity of a keyword is estimated from the results: it reveals nothing that the reader may not see.
"""

from __future__ import annotations

import re
from math import log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_KEYWORDS: Final = 16
"""Of one question; further keywords are ignored."""
RESULTS_PER_KEYWORD: Final = 100
"""`limit` of each search: more results did not improve recall (docs/benchmarks.md)."""

_WORD: Final = re.compile(r"[^\W_]+")
_ENDING: Final = re.compile(r"(?<=\w)['\u2019](?:s|t|d|m|ll|re|ve)\b", re.IGNORECASE)
_STOP_WORDS_TEXT: Final = (
    "a about after again all also am an and any are as at be because been before being between"
    " both but by can could did didn do does doesn doing don during each ever few for from"
    " further had has have having he her here hers herself him himself his how i if in into is"
    " isn it its itself just me more most my myself no nor not of off on once only or other our"
    " ours out over own same she should so some such than that the their theirs them themselves"
    " then there these they this those through to too under until up us very was wasn we were"
    " what when where which while who whom whose why will with would you your yours"
)
"""English. Stop words of other languages weigh little, since they are common."""
_STOP_WORDS: Final = frozenset(_STOP_WORDS_TEXT.split())
_LAST_WEIGHT: Final = 0.75
"""Weight of the last result of a keyword; that of the first is 1."""


def keywords(question: str) -> tuple[str, ...]:
    """The words to search for, each once, in order; a question of stop words only keeps them. They
    contain no search syntax."""
    plain = _ENDING.sub("", question).casefold()
    words = tuple(dict.fromkeys(_WORD.findall(plain)))
    significant = tuple(word for word in words if word not in _STOP_WORDS)
    return (significant or words)[:MAX_KEYWORDS]


def any_of(question: str) -> str:
    """An FTS5 query for texts with any of the keywords; empty if there is none."""
    return " OR ".join(keywords(question))


def merged(results: Sequence[Sequence[str]], limit: int = RESULTS_PER_KEYWORD) -> list[str]:
    """One ranking of ids, best first. `results`: of each keyword, best first, at most `limit`.

    A keyword weighs more the fewer results it has, and a result more the higher it ranks. Ties keep
    the order of first appearance.
    """
    scores: dict[str, float] = {}
    for ids in results:
        if not ids:
            continue
        rarity = log(1 + limit / len(ids))
        for rank, id_ in enumerate(ids):
            weight = rarity * (1 - (1 - _LAST_WEIGHT) * rank / len(ids))
            scores[id_] = scores.get(id_, 0.0) + weight
    return sorted(scores, key=lambda id_: -scores[id_])
