"""A question in a sentence becomes searches for its words, and their answers become one.

A search of NIP-50 finds texts that have all of its words. A sentence has words that no text which
answers it has: who asks for all of them finds nothing. So each word is asked for by itself, and
what has several of them comes first. How rare a word is, is counted in what the reader was given:
nothing is learned that the reader may not see.
"""

from __future__ import annotations

import re
from math import log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_WORDS: Final = 16
"""Of a question; what follows is not asked for."""
ANSWERS_TO_A_WORD: Final = 100
"""What to ask the relay for, of each word: more found no better sessions (docs/benchmarks.md)."""

_WORD: Final = re.compile(r"[^\W_]+")
_ENDING: Final = re.compile(r"(?<=\w)['\u2019](?:s|t|d|m|ll|re|ve)\b", re.IGNORECASE)
_SAYING_LITTLE: Final = (
    "a about after again all also am an and any are as at be because been before being between"
    " both but by can could did didn do does doesn doing don during each ever few for from"
    " further had has have having he her here hers herself him himself his how i if in into is"
    " isn it its itself just me more most my myself no nor not of off on once only or other our"
    " ours out over own same she should so some such than that the their theirs them themselves"
    " then there these they this those through to too under until up us very was wasn we were"
    " what when where which while who whom whose why will with would you your yours"
)
"""In a question. Those of other languages than English only weigh little: they are common."""
_UNASKED: Final = frozenset(_SAYING_LITTLE.split())
_LAST: Final = 0.75
"""What the last answer to a word counts, when the first counts 1."""


def keywords(question: str) -> tuple[str, ...]:
    """Words to search for, each once, in their order; a question of nothing else keeps all of its
    words. They hold no syntax of any search."""
    plain = _ENDING.sub("", question).casefold()
    words = tuple(dict.fromkeys(_WORD.findall(plain)))
    telling = tuple(word for word in words if word not in _UNASKED)
    return (telling or words)[:MOST_WORDS]


def any_of(question: str) -> str:
    """One query of FTS5 for texts that have any of the keywords; empty: there is no word."""
    return " OR ".join(keywords(question))


def merged(answers: Sequence[Sequence[str]], asked: int = ANSWERS_TO_A_WORD) -> list[str]:
    """One order, best first, out of the answers to each word: ids, best first, at most `asked`.

    A word counts the more the fewer texts have it, and the more the earlier in its answer a text
    stands. Of equals the one that was met first comes first.
    """
    scores: dict[str, float] = {}
    for answer in answers:
        if not answer:
            continue
        rarity = log(1 + asked / len(answer))
        for place, id_ in enumerate(answer):
            here = rarity * (1 - (1 - _LAST) * place / len(answer))
            scores[id_] = scores.get(id_, 0.0) + here
    return sorted(scores, key=lambda id_: -scores[id_])
