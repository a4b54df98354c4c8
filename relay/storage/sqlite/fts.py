"""FTS5 with the Porter stemmer, case and diacritics folded: MATCH expressions, and one text alone.

One tokenizer decides what a text contains, in the index and for live events. User input is data:
`expression` quotes every term (N50-10).
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, assert_never

from relay.nostr.nip50 import Needs, words_of
from relay.storage.sqlite.sql.named import SEARCH_QUERIES as QUERIES

if TYPE_CHECKING:
    from relay.nostr.nip50 import Search, Searchable

_KEPT_STATEMENTS: Final = 16


def expression(search: Search) -> str:
    """The right side of MATCH; `search` must require something."""
    match search.needs:
        case Needs.ALL:
            # An implicit AND: unlike AND, it ignores a term without any token.
            wanted = f"text : ({_quoted(search.required, ' ')})"
        case Needs.ANY:
            wanted = f"text : ({_quoted(search.required, ' OR ')})"
        case _:
            assert_never(search.needs)
    if not search.excluded:
        return wanted
    return f"{wanted} NOT text : ({_quoted(search.excluded, ' OR ')})"


def more_often(search: Search, term: str) -> tuple[str, str] | None:
    """MATCH expressions for results that have a term twice or more, four times or more.

    A phrase comes as often as the rarest of its words. None: it has no word that is counted.
    """
    words = words_of(term)
    if not words:
        return None
    # The shorter list first: FTS5 iterates over it and seeks in the others.
    all_of_it, found = _quoted(words, " "), expression(search)
    return f"repeated : ({all_of_it}) AND ({found})", f"frequent : ({all_of_it}) AND ({found})"


def _quoted(terms: tuple[str, ...], between: str) -> str:
    return between.join('"' + term.replace('"', '""') + '"' for term in terms)


class FtsMatcher:
    """One text at a time, and what searches find in it. In memory; for one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            cached_statements=_KEPT_STATEMENTS,
            check_same_thread=False,
        )
        self._db.execute(QUERIES["make_words"])
        self._text: Searchable | None = None

    def contains(self, text: Searchable, search: Search) -> bool:
        """Whether the text has every word and phrase that is required and none that is not."""
        return bool(search.required) and self._matches(text, expression(search))

    def score(self, text: Searchable, search: Search) -> int:
        """How well a text that `contains` it answers a search: the sum over its terms."""
        once, repeated, frequent = text.scores
        score = 0
        for term in search.required:
            worth, more = once, more_often(search, term)
            if more is not None and self._matches(text, more[0]):
                worth = frequent if self._matches(text, more[1]) else repeated
            score += worth
        return score

    def _matches(self, text: Searchable, match: str) -> bool:
        db = self._db
        if text is not self._text:
            db.execute(QUERIES["empty_words"])
            db.execute(QUERIES["add_words"], (1, text.text, text.repeated, text.frequent))
            self._text = text
        found = db.execute(QUERIES["matches"], (match,))
        return found.fetchone() is not None

    def close(self) -> None:
        self._db.close()
