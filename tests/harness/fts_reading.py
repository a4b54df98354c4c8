"""What a search finds in one text, and its rank, as FTS5 says: what stores and live searches are
compared with."""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

from relay.nostr.nip50 import Needs, parted
from relay.storage.sqlite.fts import more_often
from relay.storage.sqlite.sql.named import SEARCH_QUERIES as QUERIES
from relay.storage.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.nip50 import Search, Searchable


class FtsReading:
    """Compares one text at a time with searches, by FTS5 in memory.

    Words are matched by FTS5, phrases in the list of tokens: FTS5 would take seconds when a phrase
    and a text repeat one word.
    """

    def __init__(self) -> None:
        self._tokenizer = Tokenizer()
        self._listed = lru_cache(1024)(self._tokenizer.listed)
        """Token lists of phrases."""
        self._tokens: str | None = None
        """Tokens of the current text; None: not computed yet."""
        self._db = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            cached_statements=16,
            check_same_thread=False,
        )
        self._db.execute(QUERIES["make_words"])
        self._text: Searchable | None = None

    def contains(self, text: Searchable, search: Search) -> bool:
        """Whether the text has every word and phrase that is required and none that is not."""
        match search.needs:
            case Needs.ALL:
                found = self._has_all(text, search.required)
            case Needs.ANY:
                found = self._has_any(text, search.required)
            case _:
                assert_never(search.needs)
        return found and not self._has_any(text, search.excluded)

    def _has_all(self, text: Searchable, terms: tuple[str, ...]) -> bool:
        """A term without any token is ignored; if no others are left, nothing is found."""
        words, phrases = parted(terms)
        listed = [tokens for tokens in map(self._listed, phrases) if tokens]
        if words and not self._matches(text, f"text : ({_quoted(words, ' ')})"):
            return False
        return bool(words or listed) and all(tokens in self._tokens_of(text) for tokens in listed)

    def _has_any(self, text: Searchable, terms: tuple[str, ...]) -> bool:
        words, phrases = parted(terms)
        if words and self._matches(text, f"text : ({_quoted(words, ' OR ')})"):
            return True
        listed = [tokens for tokens in map(self._listed, phrases) if tokens]
        return any(tokens in self._tokens_of(text) for tokens in listed)

    def _tokens_of(self, text: Searchable) -> str:
        self._take(text)
        if self._tokens is None:
            self._tokens = self._tokenizer.listed(text.text)
        return self._tokens

    def score(self, text: Searchable, search: Search) -> int:
        """The rank of a text that `contains` a search: the sum over its terms."""
        once, repeated, frequent = text.scores
        score = 0
        for term in search.required:
            worth, more = once, more_often(search, term)
            if more is not None and self._matches(text, more[0]):
                worth = frequent if self._matches(text, more[1]) else repeated
            score += worth
        return score

    def _matches(self, text: Searchable, match: str) -> bool:
        self._take(text)
        return (
            self._db.execute("SELECT 1 FROM words WHERE words MATCH ?", (match,)).fetchone()
            is not None
        )

    def _take(self, text: Searchable) -> None:
        if text is not self._text:
            self._db.execute(QUERIES["empty_words"])
            columns = text.text, text.repeated, text.frequent, ""
            self._db.execute(QUERIES["add_words"], (1, *columns))
            self._text, self._tokens = text, None

    def close(self) -> None:
        self._tokenizer.close()
        self._db.close()


def _quoted(terms: Iterable[str], between: str) -> str:
    return between.join('"' + term.replace('"', '""') + '"' for term in terms)
