"""Text matching of recall (X-18).

Matches found by a relay's search are ranked here, so that ranking does not depend on the relay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relay.memory.anamnesis.bm25 import ranks, text_of, words
from relay.nostr.keywords import keywords
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from relay.memory.anamnesis.archive import Archive


@dataclass(frozen=True, slots=True)
class Question:
    """A NIP-50 query: words, `"phrases"`, and `-word` exclusions."""

    required: tuple[str, ...]
    excluded: tuple[str, ...]
    is_loose: bool = False
    """Any of `required` suffices."""

    @classmethod
    def of(cls, query: str) -> Question:
        search = search_from(query)
        if search is None:
            return cls((), ())
        return cls(tuple(filter(words, search.required)), tuple(filter(words, search.excluded)))

    def loosened(self) -> tuple[Question, ...]:
        """Fallback if nothing contains all words; empty with fewer than two."""
        if len(self.required) < 2:
            return ()
        phrases = [term for term in self.required if len(term.split()) > 1]
        plain = " ".join(term for term in self.required if len(term.split()) == 1)
        return (replace(self, required=(*phrases, *keywords(plain)), is_loose=True),)

    def queries(self) -> list[str]:
        """Search queries for a relay; the union of their results is the result."""
        without = [f"-{_quoted(term)}" for term in self.excluded]
        terms = [_quoted(term) for term in self.required]
        if not terms:
            return []
        together = [[term] for term in terms] if self.is_loose else [terms]
        return [" ".join([*each, *without]) for each in together]

    def fits(self, text: str) -> bool:
        tokens = words(text)
        matched = [_contains(tokens, words(term)) for term in self.required]
        enough = any(matched) if self.is_loose else bool(matched) and all(matched)
        return enough and not any(_contains(tokens, words(term)) for term in self.excluded)


def text_ranks(
    question: Question, archive: Archive, found: Collection[str] | None = None
) -> Mapping[str, float]:
    """hash → rank of matching memories: BM25, lower is better.

    `found`: by the relay's search, which may use stemming and ignore diacritics; memories without
    any literal word rank last. None: those that fit the question.
    """
    hashes = archive.memories if found is None else archive.memories.keys() & found
    texts = {hashed: _text(hashed, archive) for hashed in sorted(hashes)}
    ranked = ranks(" ".join(question.required), texts)
    return {
        hashed: ranked.get(hashed, 0.0)
        for hashed, text in texts.items()
        if found is not None or question.fits(text)
    }


def _text(hashed: str, archive: Archive) -> str:
    """The search text of a memory, with amended tags."""
    document = archive.document(hashed) or {}
    tags = document.get("tags")
    return text_of(str(document.get("content", "")), tags if isinstance(tags, list) else ())


def _quoted(term: str) -> str:
    """Several words become a phrase."""
    plain = term.replace('"', " ").strip()
    return f'"{plain}"' if len(plain.split()) > 1 else plain


def _contains(tokens: list[str], wanted: list[str]) -> bool:
    """Whether `wanted` occurs as consecutive words."""
    size = len(wanted)
    return any(tokens[at : at + size] == wanted for at in range(len(tokens) - size + 1))
