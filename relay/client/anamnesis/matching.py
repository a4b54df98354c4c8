"""Which memories answer a question in words, and how well: the text part of recall. MEMORY.md X-18.

A relay's search finds; how well a text matches is computed here over what it found, so that hits
are ranked alike whoever found them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relay.memory.anamnesis.bm25 import ranks, text_of, words
from relay.memory.keywords import keywords
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.memory.anamnesis.archive import Archive


@dataclass(frozen=True, slots=True)
class Question:
    """A query as NIP-50 has it: words, `"phrases"`, and `-word` for what must not be there."""

    required: tuple[str, ...]
    excluded: tuple[str, ...]
    is_loose: bool = False
    """Any of `required` will do."""

    @classmethod
    def of(cls, query: str) -> Question:
        search = search_from(query)
        if search is None:
            return cls((), ())
        return cls(tuple(filter(words, search.required)), tuple(filter(words, search.excluded)))

    def loosened(self) -> tuple[Question, ...]:
        """For when nothing has all of the words; empty when there are not two of them."""
        if len(self.required) < 2:
            return ()
        phrases = [term for term in self.required if len(term.split()) > 1]
        plain = " ".join(term for term in self.required if len(term.split()) == 1)
        return (replace(self, required=(*phrases, *keywords(plain)), is_loose=True),)

    def queries(self) -> list[str]:
        """What a relay is asked; all answers together are the answer."""
        without = [f"-{_spelt(term)}" for term in self.excluded]
        terms = [_spelt(term) for term in self.required]
        if not terms:
            return []
        together = [[term] for term in terms] if self.is_loose else [terms]
        return [" ".join([*each, *without]) for each in together]

    def fits(self, text: str) -> bool:
        said = words(text)
        holds = [_has(said, words(term)) for term in self.required]
        enough = any(holds) if self.is_loose else bool(holds) and all(holds)
        return enough and not any(_has(said, words(term)) for term in self.excluded)


def text_ranks(question: Question, archive: Archive, *, is_searched: bool) -> Mapping[str, float]:
    """hash → rank of the memories that match: BM25, lower is better.

    `is_searched`: a relay has found them, by its own rules (stems of words, diacritics); what has
    none of the words as they are written comes last.
    """
    texts = {hashed: _text(hashed, archive) for hashed in archive.memories}
    ranked = ranks(" ".join(question.required), texts)
    return {
        hashed: ranked.get(hashed, 0.0)
        for hashed, text in texts.items()
        if is_searched or question.fits(text)
    }


def _text(hashed: str, archive: Archive) -> str:
    """With the tags as they were amended."""
    document = archive.document(hashed) or {}
    tags = document.get("tags")
    return text_of(str(document.get("content", "")), tags if isinstance(tags, list) else ())


def _spelt(term: str) -> str:
    """As it stands in a query: several words are one phrase."""
    plain = term.replace('"', " ").strip()
    return f'"{plain}"' if len(plain.split()) > 1 else plain


def _has(said: list[str], wanted: list[str]) -> bool:
    """One behind the other."""
    size = len(wanted)
    return any(said[at : at + size] == wanted for at in range(len(said) - size + 1))
