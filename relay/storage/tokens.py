"""Tokens of texts and of search terms, made by FTS5 in memory, and texts compared with searches.

One tokenizer decides what a text contains, in the index and for live events.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from functools import partial
from hashlib import blake2b
from secrets import randbits
from threading import Lock
from typing import TYPE_CHECKING, Final, assert_never

from relay.nostr.nip50 import Needs
from relay.storage.sqlite.sql.named import SEARCH_QUERIES as FTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from relay.nostr.nip50 import Search

_LONG_TOKEN: Final = 256
"""Bytes. Longer tokens are replaced by their hash: an index entry has at most 2,700 bytes."""


class Tokenizer:
    """May be used by several threads, and closed meanwhile."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # FTS5 cuts a token after 32 KiB, perhaps within a character.
        self._db.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._db.execute(FTS["make_words"])
        self._db.execute(FTS["make_tokens"])
        self._between = self.listed(f"between{randbits(64)}")
        """A token that no text has."""

    def tokens(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """The tokens of each text, in order. Raises sqlite3.ProgrammingError once it is closed."""
        found: list[list[tuple[int, str]]] = [[] for _ in texts]
        with self._lock:
            self._db.execute(FTS["empty_words"])
            for number, text in enumerate(texts, 1):
                self._db.execute(FTS["add_words"], (number, text, "", "", ""))
            for number, place, token in self._db.execute(FTS["tokens"]):
                found[number - 1].append((place, _kept(token)))
        return [tuple([token for _, token in sorted(places)]) for places in found]

    def listed(self, text: str) -> str:
        """The text's tokens in order, a space before and after each; empty when it has none."""
        with self._lock:
            self._db.execute(FTS["empty_words"])
            self._db.execute(FTS["add_words"], (1, text, "", "", ""))
            (listed,) = self._db.execute(FTS["listed_tokens"]).fetchone()
        return "" if listed is None else f" {listed} "

    def listed_each(self, texts: Sequence[str]) -> list[str]:
        """`listed` of each text: 5 us for a word, where each alone takes 50."""
        found: list[list[str]] = [[]]
        between = self._between.strip(" ")
        for token in self.listed(self._between.join(texts)).strip(" ").split(" "):
            if token == between:
                found.append([])
            elif token:
                found[-1].append(token)
        return [f" {' '.join(tokens)} " if tokens else "" for tokens in found]

    def tokens_of_terms(self, terms: Sequence[str]) -> list[tuple[str, ...]]:
        """As `tokens`: 5 us for a word, where that takes 30."""
        listed = [text.split(" ")[1:-1] for text in self.listed_each(terms)]
        return [tuple(map(_kept, tokens)) for tokens in listed]

    def close(self) -> None:
        # A thread whose task was cancelled goes on: SQLite would crash.
        with self._lock:
            self._db.close()


def _kept(token: str) -> str:
    if len(token) < _LONG_TOKEN:
        return token
    # No token has a `#`.
    return f"#{blake2b(token.encode(), digest_size=16).hexdigest()}"


class TokenMatcher:
    """Compares one text at a time with searches, as the full-text index would. For one thread."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer()
        self._known: dict[str, str] = {}
        """Term of an open search → the list of its tokens."""
        self._uses = Counter[str]()
        """How often each of these is in open searches."""
        self._text: str | None = None
        self._places: dict[str, list[int]] = {}
        """Token of that text → its places, ascending."""
        self._place_bits: dict[str, int] = {}
        """The same as bits, of the tokens of phrases."""

    @property
    def terms(self) -> Set[str]:
        """The terms that are kept."""
        return self._known.keys()

    def prepare(self, searches: Iterable[Search]) -> None:
        """Make the tokens of their terms, and keep them until `forget` is called with the same: a
        text is compared with many searches at once."""
        terms = _terms_of(searches)
        new = list(set(terms).difference(self._known))
        if new:
            self._known.update(zip(new, self._tokenizer.listed_each(new), strict=True))
        self._uses.update(terms)

    def forget(self, searches: Iterable[Search]) -> None:
        for term in _terms_of(searches):
            self._uses[term] -= 1
            if not self._uses[term]:
                del self._uses[term], self._known[term]

    def contains(self, text: str, search: Search) -> bool:
        """Whether the text has every term that is required, or one, and none that is not. A term
        without any token is ignored; if no others are left, nothing is found."""
        if text is not self._text:
            self._places = _places_of(self._tokenizer.listed(text))
            self._place_bits = {}
            self._text = text
        required = list(filter(None, map(self._listed, search.required)))
        match search.needs:
            case Needs.ALL:
                found = bool(required) and all(map(self._has, required))
            case Needs.ANY:
                found = any(map(self._has, required))
            case _:
                assert_never(search.needs)
        return found and not any(map(self._has, filter(None, map(self._listed, search.excluded))))

    def _listed(self, term: str) -> str:
        tokens = self._known.get(term)
        return self._tokenizer.listed(term) if tokens is None else tokens

    def _has(self, term: str) -> bool:
        """`term`: the list of its tokens, which follow each other in the text."""
        places, tokens = self._places, term.strip(" ").split(" ")
        if not all(map(places.__contains__, tokens)):
            return False
        if len(tokens) == 1:
            return True
        # Not by a search in the text: one that repeats words of the phrase takes up to 160 us.
        begins = self._bits(tokens[0])
        for offset, token in enumerate(tokens[1:], 1):
            begins &= self._bits(token) >> offset
            if not begins:
                return False
        return True

    def _bits(self, token: str) -> int:
        bits = self._place_bits.get(token)
        if bits is None:
            bits = self._place_bits[token] = _bits_of(self._places[token])
        return bits

    def close(self) -> None:
        self._tokenizer.close()


def _terms_of(searches: Iterable[Search]) -> list[str]:
    return [term for search in searches for term in (*search.required, *search.excluded)]


def _places_of(listed: str) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, token in enumerate(listed.strip(" ").split(" ")):
        places.setdefault(token, []).append(place)
    return places


def _bits_of(places: Sequence[int]) -> int:
    """`places`: ascending."""
    bits = bytearray(places[-1] // 8 + 1)
    for place in places:
        bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")
