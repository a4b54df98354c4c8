"""Searches as conditions over `w`, a row of texts, and its score.

Equivalent to `TokenMatcher`: the same tokenizer makes tokens of texts and of terms, and a phrase is
tokens that follow each other. No statistics over all texts: they would reveal hidden rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.nostr.nip50 import Needs, words_of
from relay.storage.postgres.sql.conditions import FALSE, all_of, any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.nip50 import Search
    from relay.storage.postgres.sql.parameters import Parameters
    from relay.storage.tokens import Tokenizer

Tokens = tuple[str, ...]
_KEPT_TERMS: Final = 1024
_WORDS: Final = "string_to_array(w.words, ' ')"
"""The expression on which the GIN index is built."""


class Words:
    """Makes conditions for one store; used on the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, Tokens] = {}
        """By term."""

    def contains(self, search: Search, p: Parameters) -> str:
        """A term without any token is no condition; without terms nothing is found."""
        required = self._tokens(search.required)
        if not required:
            return FALSE
        if search.needs is Needs.ANY:
            wanted = _has_one_of(required, p)
        else:
            singly = sorted({token for tokens in required for token in tokens})
            phrases = [_phrase(tokens, p) for tokens in required if len(tokens) > 1]
            wanted = all_of([f"{_WORDS} @> {p.add(singly, 'text[]')}", *phrases])
        excluded = self._tokens(search.excluded)
        return all_of([wanted, f"NOT {_has_one_of(excluded, p)}"]) if excluded else wanted

    def has(self, term: str, p: Parameters) -> str:
        """For rows that are found otherwise: `contains` makes an array of each text, 2 ms for a
        long one."""
        tokens = self._tokens([term])
        return _phrase(tokens[0], p) if tokens else FALSE

    def score(self, search: Search, p: Parameters) -> str:
        """The sum over the terms, as `Searchable.scores` says."""
        parts = []
        self._tokens([word for term in search.required for word in words_of(term)])
        for term in search.required:
            more = self.more_often(term, p)
            if more is None:
                parts.append("w.once")
            else:
                parts.append(
                    f"CASE WHEN {more[0]} THEN CASE WHEN {more[1]} THEN w.frequent"
                    " ELSE w.repeated END ELSE w.once END"
                )
        return " + ".join(parts)

    def more_often(self, term: str, p: Parameters) -> tuple[str, str] | None:
        """`w`, which has the term, has it twice or more, four times or more.

        A phrase comes as often as the rarest of its words. None: it has no word that is counted.
        """
        words = self._tokens(words_of(term))
        if not words:
            return None
        there = [p.add(_spaced(tokens), "text") for tokens in words]
        twice, often = (
            all_of([f"strpos(w.{column}, {value}) > 0" for value in there])
            for column in ("words_repeated", "words_frequent")
        )
        return twice, often

    def _tokens(self, terms: Sequence[str]) -> list[Tokens]:
        """Those of each term that has any; made together, as one alone takes 110 us."""
        new = [*{*terms}.difference(self._known)]
        if new:
            if len(self._known) + len(new) > _KEPT_TERMS:
                self._known = {term: self._known[term] for term in terms if term in self._known}
            self._known.update(zip(new, self._tokenizer.tokens_of_terms(new), strict=True))
        return [tokens for term in terms if (tokens := self._known[term])]


def _has_one_of(terms: Iterable[Tokens], p: Parameters) -> str:
    terms = list(dict.fromkeys(terms))
    alone = sorted(token for token, *more in terms if not more)
    parts = [f"{_WORDS} && {p.add(alone, 'text[]')}"] if alone else []
    for tokens in terms:
        if len(tokens) > 1:
            has_each = f"{_WORDS} @> {p.add(sorted(set(tokens)), 'text[]')}"
            parts.append(all_of([has_each, _phrase(tokens, p)]))
    return f"({any_of(parts)})"


def _phrase(tokens: Tokens, p: Parameters) -> str:
    return f"strpos(' ' || w.words || ' ', {p.add(_spaced(tokens), 'text')}) > 0"


def _spaced(tokens: Iterable[str]) -> str:
    return f" {' '.join(tokens)} "
