"""NIP-50: parsing of search queries, and the ranking of results.

Invariants: a query is data: it is parsed here, once, into words, phrases and exclusions; what
cannot be parsed counts as words (N50-10). Tokenization belongs to the index of a store, ranking
does not: no corpus statistics are used, because ranking by rare words reveals texts that the reader
may not see.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, Literal

from relay.nostr.keywords import MAX_KEYWORDS, keywords

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
"""Of Unicode."""

MAX_TERMS: Final = 32
"""Words and phrases of a query; the rest is ignored."""
MAX_PIECES: Final = 256
"""Words, phrases and extensions of a query, also repeated ones; the rest is ignored."""
MAX_PHRASED: Final = 32
"""Words in all phrases that are required, and in all that are excluded; the rest is ignored. An
index takes 0.3 ms for each of them where a long text repeats it."""
MAX_QUERY: Final = 2048
"""Characters of a query; the rest is ignored."""
MAX_TEXT: Final = 100_000
"""Indexed characters of an event."""
MAX_PERIODS: Final = 16
"""`near:` periods of a query; the rest is ignored."""
MAX_MARKS: Final = 32
"""Combining marks in a row that are normalized together; letters of languages have a few."""
EXTENSIONS: Final = ("match", "near")
"""What a query may have as `key:value`, beside words."""

_PIECE: Final = re.compile(r'(-?)"([^"]*)"|(\S+)')
_EXTENSION: Final = re.compile(r"-?[A-Za-z][\w.-]*:(?!//)[^\s\"].*", re.DOTALL)
_GROUPS: Final = re.Match[str].groups
_NEAR: Final = re.compile(r"near:(\d{1,12})-(\d{1,12})")
_WORD: Final = re.compile(r"[^\W_]+")
_TOKEN: Final = re.compile(r"[^\W_\u19b0-\u19c9]+|[^\x00-\x7f]")
"""Finds at least as many tokens as an index does: FTS5 takes some signs for letters, and some
letters for signs."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MARK: Final = "\u0301"
_MANY_MARKS: Final = re.compile(f"{_MARK}{{{MAX_MARKS}}}(?={_MARK})")

_FREQUENT: Final = 4
_SATURATION: Final = 1.2
_LENGTH_WEIGHT: Final = 0.75
_AVERAGE_LENGTH: Final = 40
"""Words; a constant instead of the average of the corpus, see above."""


class Needs(Enum):
    """How many of its terms a text must contain to match a search."""

    ALL = auto()
    ANY = auto()


@dataclass(frozen=True, slots=True)
class Search:
    """A text matches when it contains every one of `required` (any, by `needs`) and none of
    `excluded`.

    A term is a word or a phrase, which matches its words in sequence. A term without a word, as
    `!!!`, is no condition. A Search without any word, or with exclusions only, finds nothing: there
    is nothing to rank.
    """

    required: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    needs: Needs = Needs.ALL
    asked: str = ""
    """With `needs` ANY: the whole question, for a store that compares meanings."""
    near: tuple[tuple[int, int], ...] = ()
    """Periods (first and last second): with `needs` ANY, texts of these times rank higher."""


def search_from(query: str) -> Search | None:
    """Parse a query; None when it has no terms: the same as no search (N50-04, N50-07).

    `"…"` is a phrase, `-` before a term excludes it. Of the `key:value` extensions (a URL is not
    one) `match:any` and `near:SECONDS-SECONDS` count; others are ignored. With `match:any` the
    query is a question: its keywords are looked for, and its phrases.
    """
    required: dict[str, None] = {}
    excluded: dict[str, None] = {}
    near: dict[tuple[int, int], None] = {}
    needs = Needs.ALL
    pieces = _PIECE.finditer(_CONTROL.sub(" ", query[:MAX_QUERY]))
    for minus, phrase, word in map(_GROUPS, islice(pieces, MAX_PIECES)):
        if len(required) + len(excluded) == MAX_TERMS:
            break
        if word and _EXTENSION.fullmatch(word):
            if word == "match:any":
                needs = Needs.ANY
            elif (period := _NEAR.fullmatch(word)) and len(near) < MAX_PERIODS:
                near[int(period[1]), int(period[2])] = None
            continue
        if not word:
            term, into = phrase, excluded if minus else required
        elif len(word) > 1 and word.startswith("-"):
            term, into = word[1:], excluded
        else:
            term, into = word, required
        if term.strip():
            into[term] = None
    if not required and not excluded:
        return None
    if needs is Needs.ALL:
        return Search(_bounded(required), _bounded(excluded))
    asked = " ".join(required)
    phrases = [term for term in required if len(words_of(term)) > 1 and " " in term]
    terms = tuple(dict.fromkeys([*keywords(asked), *phrases]))[:MAX_KEYWORDS]
    return Search(_bounded(terms), _bounded(excluded), needs, asked, tuple(near))


def _bounded(terms: Iterable[str]) -> tuple[str, ...]:
    """The terms, with at most MAX_PHRASED words in those that have several."""
    kept, left = [], MAX_PHRASED
    for term in terms:
        ends = [token.end() for token in _TOKEN.finditer(term)]
        if len(ends) < 2:
            kept.append(term)
        elif left:
            used = min(len(ends), left)
            kept.append(term if used == len(ends) else term[: ends[used - 1]])
            left -= used
    return tuple(kept)


@lru_cache(maxsize=2048)  # cached: used by live searches for each event
def parted(terms: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
    """Terms that are one word to any index, and terms that may be several; terms without a word are
    left out."""
    words, phrases = list[str](), list[str]()
    for term in terms:
        number = len(_TOKEN.findall(term))
        if number == 1 == len(words_of(term)):
            words.append(term)
        elif number:
            phrases.append(term)
    return words, phrases


def words_of(term: str) -> tuple[str, ...]:
    """The words of a term."""
    return tuple(_WORD.findall(term))


@dataclass(frozen=True, slots=True)
class Searchable:
    """A text as it is indexed."""

    text: str
    repeated: str
    """Words that occur at least twice."""
    frequent: str
    """Words that occur at least four times."""
    scores: tuple[int, int, int]
    """Score of a query term that occurs once, at least twice, at least four times."""


def indexed_part(text: str) -> str:
    """What of a text is indexed, and compared with live searches."""
    return _CONTROL.sub(" ", text[:MAX_TEXT])


def normalized(form: NormalForm, text: str) -> str:
    """A text in a normal form, but a row of more than MAX_MARKS combining marks in parts: Python
    sorts marks by insertion, for 100,000 of them 40 s in which no other thread runs."""
    if text.isascii():
        return text
    # Some are marks only once they are decomposed, as U+FF9E. Each character is looked at once.
    marks = {
        ord(each): _MARK
        for each in set(text)
        if unicodedata.combining(unicodedata.normalize("NFKD", each)[0])  # noqa: TID251
    }
    ends = [found.end() for found in _MANY_MARKS.finditer(text.translate(marks))]
    parts = (text[start:end] for start, end in pairwise([0, *ends, len(text)]))
    return "".join(unicodedata.normalize(form, part) for part in parts)  # noqa: TID251


def searchable(text: str) -> Searchable:
    text = indexed_part(text)
    words = _WORD.findall(text.casefold())
    counts = Counter(words)
    repeated = [word for word, count in counts.items() if count > 1]
    frequent = [word for word in repeated if counts[word] >= _FREQUENT]
    scores = (_score(1, len(words)), _score(2, len(words)), _score(_FREQUENT, len(words)))
    return Searchable(text, " ".join(repeated), " ".join(frequent), scores)


def _score(times: int, length: int) -> int:
    """BM25 of one term without inverse document frequency."""
    relative = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / _AVERAGE_LENGTH
    return round(1000 * times * (_SATURATION + 1) / (times + _SATURATION * relative))
