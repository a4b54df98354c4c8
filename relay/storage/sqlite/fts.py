"""FTS5 with the Porter stemmer, case and diacritics folded: MATCH expressions, and stems of words.

User input is data: `expression` quotes every term (N50-10).

A text has a token for its kind, too. FTS5 seeks in the longer lists of an AND: so a search with
kinds does not read the texts of other kinds, of which strangers may store any number. The kinds go
into the AND of the words, not beside it: a NOT, or an AND in an OR, goes on by itself until it has
found a row.
"""

from __future__ import annotations

from sys import getsizeof
from threading import Lock
from typing import TYPE_CHECKING, Final, assert_never

from relay.nostr.nip50 import Needs, words_of
from relay.storage.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.nostr.nip50 import Search, Searchable

TWICE: Final = "+"
"""Prefix of a stem that a text has at least twice; no token contains these signs."""
OFTEN: Final = "*"
"""Prefix of a stem that it has at least four times."""
_KEPT_BYTES: Final = 8 << 20
"""Bytes of the words whose tokens are cached, with these."""
_WORD_BYTES: Final = 80
"""Bytes of the place of a word in the cache."""


def kind_token(kind: int) -> str:
    """No text has it: a text has no tab, see `nip50.indexed_part`."""
    return f"\t{kind}"


def of_kinds(kinds: Iterable[int]) -> str:
    """MATCH expression for all texts of these kinds."""
    return f"kind : ({_quoted(map(kind_token, kinds), ' OR ')})"


def expression(search: Search, kinds: Sequence[int] = ()) -> str:
    """The right side of MATCH; `search` must require something. `kinds`: finds texts of these
    only, if there are any."""
    match search.needs:
        case Needs.ALL:
            # An implicit AND: unlike AND, it ignores a term without any token.
            wanted = f"text : ({_quoted(search.required, ' ')})"
        case Needs.ANY:
            wanted = f"text : ({_quoted(search.required, ' OR ')})"
        case _:
            assert_never(search.needs)
    if kinds:
        wanted = f"({of_kinds(kinds)} AND {wanted})"
    if not search.excluded:
        return wanted
    return f"{wanted} NOT text : ({_quoted(search.excluded, ' OR ')})"


def more_often(search: Search, term: str, kinds: Sequence[int] = ()) -> tuple[str, str] | None:
    """MATCH expressions for results that have a term twice or more, four times or more.

    A phrase counts as often as the rarest of its words. None: it has no word that is counted.
    """
    words = words_of(term)
    if not words:
        return None
    # The shorter list first: FTS5 iterates over it and seeks in the other.
    all_of_it, found = _quoted(words, " "), expression(search, kinds)
    return f"repeated : ({all_of_it}) AND ({found})", f"frequent : ({all_of_it}) AND ({found})"


def _quoted(terms: Iterable[str], between: str) -> str:
    return between.join('"' + term.replace('"', '""') + '"' for term in terms)


class Stems:
    """The tokens of words, as the index has them. In memory; may be used by several threads."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer()
        self._lock = Lock()
        self._known: dict[str, str] = {}
        """Word → its tokens, each followed by a space."""
        self._bytes = 0
        """Bytes of the cached words."""

    def of(self, words: Iterable[str]) -> dict[str, list[str]]:
        """The tokens of each word; most have one."""
        with self._lock:
            self._forget()
            asked = set(words)
            known = self._with(asked)
            return {word: known[word].split() for word in asked}

    def listed(self, texts: Sequence[Searchable]) -> list[str]:
        """For each text: its stems between spaces, then those with a prefix."""
        with self._lock:
            self._forget()
            split = [dict.fromkeys(each.text.split()) for each in texts]
            marked = [(each.repeated.split(), each.frequent.split()) for each in texts]
            words = {word for words in split for word in words}
            known = self._with(words.union(*[twice for twice, _ in marked]))
            return [
                f" {''.join(map(known.__getitem__, words))}"
                + "".join([f"{TWICE}{token} " for word in twice for token in known[word].split()])
                + "".join([f"{OFTEN}{token} " for word in often for token in known[word].split()])
                for words, (twice, often) in zip(split, marked, strict=True)
            ]

    def _forget(self) -> None:
        if self._bytes > _KEPT_BYTES:
            self._known.clear()
            self._bytes = 0

    def _with(self, words: set[str]) -> Mapping[str, str]:
        """The cache, with these words."""
        known = self._known
        unknown = [*(words - known.keys())]
        if unknown:
            tokens = self._tokenizer.tokens_of_terms(unknown)
            known.update(
                {
                    word: "".join([f"{token} " for token in its])
                    for word, its in zip(unknown, tokens, strict=True)
                }
            )
            kept = [size for word in unknown for size in (getsizeof(word), getsizeof(known[word]))]
            self._bytes += sum(kept) + _WORD_BYTES * len(unknown)
        return known

    def close(self) -> None:
        self._tokenizer.close()
