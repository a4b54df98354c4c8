"""NIP-50: what a query asks for, and what makes one answer better than another.

Invariants: the text of a query is data. It is read here, once, into words, phrases and what must
not occur; whatever cannot be read is words (N50-10). How a text falls into words is the business of
the index behind a store; the order of answers is not: no number in it is taken from a collection of
texts, since who orders by how rare a word is tells of texts that the reader may not see.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

MOST_TERMS: Final = 32
"""Words and phrases of a query; what follows is not asked."""
LONGEST_QUERY: Final = 2048
"""Characters of a query that are read."""
LONGEST_TEXT: Final = 100_000
"""Characters of an event's text that can be found."""

_PIECE: Final = re.compile(r'(-?)"([^"]*)"|(\S+)')
_EXTENSION: Final = re.compile(r"-?[A-Za-z][\w.-]*:(?!//)[^\s\"].*", re.DOTALL)
_WORD: Final = re.compile(r"[^\W_]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_OFTEN: Final = 4
_SATURATION: Final = 1.2
_WEIGHT_OF_LENGTH: Final = 0.75
_USUAL_LENGTH: Final = 40
"""Words of a text that is neither short nor long. A constant, see above."""


@dataclass(frozen=True, slots=True)
class Search:
    """A text matches when it contains every one of `required` and none of `excluded`.

    Each is the text of a word or of a phrase, which matches as its words one behind the other.
    Those that hold no word at all, as `!!!`, ask for nothing; a Search of only such finds nothing,
    and so does one of exclusions alone: there is nothing to rank by.
    """

    required: tuple[str, ...]
    excluded: tuple[str, ...] = ()


def search_from(query: str) -> Search | None:
    """Read a query; None when it asks nothing, so that it is as if absent (N50-04, N50-07).

    `"…"` is a phrase, `-` before a word or phrase excludes it, `key:value` is ignored (a URL is
    not one).
    """
    required: dict[str, None] = {}
    excluded: dict[str, None] = {}
    for minus, phrase, word in _PIECE.findall(_CONTROL.sub(" ", query[:LONGEST_QUERY])):
        if len(required) + len(excluded) == MOST_TERMS:
            break
        if word and _EXTENSION.fullmatch(word):
            continue
        if not word:
            term, into = phrase, excluded if minus else required
        elif len(word) > 1 and word.startswith("-"):
            term, into = word[1:], excluded
        else:
            term, into = word, required
        if term.strip():
            into[term] = None
    return Search(tuple(required), tuple(excluded)) if required or excluded else None


def words_of(term: str) -> tuple[str, ...]:
    """Those by which it counts more in a text that has all of them more than once."""
    return tuple(_WORD.findall(term))


@dataclass(frozen=True, slots=True)
class Searchable:
    """A text as an index keeps it."""

    text: str
    repeated: str
    """Its words that come twice or more."""
    frequent: str
    """Its words that come four times or more."""
    worth: tuple[int, int, int]
    """What one term of a query adds to the score: found once, twice or more, four times or more."""


def searchable(text: str) -> Searchable:
    text = _CONTROL.sub(" ", text[:LONGEST_TEXT])
    words = _WORD.findall(text.casefold())
    counts = Counter(words)
    repeated = [word for word, count in counts.items() if count > 1]
    frequent = [word for word in repeated if counts[word] >= _OFTEN]
    worth = (_worth(1, len(words)), _worth(2, len(words)), _worth(_OFTEN, len(words)))
    return Searchable(text, " ".join(repeated), " ".join(frequent), worth)


def _worth(times: int, length: int) -> int:
    """BM25 of one word without its statistics: more often is better, in fewer words is better."""
    relative = 1 - _WEIGHT_OF_LENGTH + _WEIGHT_OF_LENGTH * length / _USUAL_LENGTH
    return round(1000 * times * (_SATURATION + 1) / (times + _SATURATION * relative))
