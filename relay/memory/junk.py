"""Junk: secrets, echoes of recalled text, and near-duplicates of known texts. Every memory system
keeps it out when it writes.

Invariants: a report about junk contains no secret; a text with another word, number, sign, symbol
or order is no near-duplicate, because it may be a correction.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.memory.fence import harmless
from relay.nostr.nip50 import normalized

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.memory.secrets import SecretFilter

_FENCED: Final = re.compile(r"<memory source=\"[^\"\n]*\" author=.*?(?:</memory>|\Z)", re.DOTALL)
_WORD_OR_SYMBOL: Final = re.compile(r"\w+|[^\w\s]")
_PUNCTUATION: Final = re.compile(
    r"""
    (?<=[^\s.,;:!…"'”’)\]}»`]) (?: [.,;:!…”’)\]}»`] | (?<!\d)["'] )+ (?=\s|\Z)  # after a word
    | (?<!\S) ["'“‘(\[{«`]+ (?=[^\s"'“‘(\[{«`])                               # before a word
    | (?<!\S) [-–—]+ (?!\S) (?=\s*[^\W\d_])                                  # a dash or bullet
    | (?<=[^\W\d_]) [-‐'’] (?=[^\W\d_])                                      # within a word
    """,
    re.VERBOSE,
)
"""Marks where they are punctuation, and no sign: not those of -5, C#, !x, 3:2, .env or 5'."""
_RAISED: Final = re.compile("([²³¹¼-¾⁰-ₜ⅐-⅟↉])")
"""Digits and letters that are no exponent or fraction any more once normalised."""
_FILLERS: Final = frozenset({"an", "the", "that", "please", "really", "very", "just", "also"})
_SHORTEST_ECHO: Final = 4
"""Words. Shorter texts are no echo: "yes" repeats nobody."""
_MAX_RECALLED: Final = 1_000
"""Recalled texts that are remembered."""
_SHOWN: Final = 60


class Why(Enum):
    SECRET = "what looks like a secret: [REDACTED] stands in its place"  # noqa: S105
    ECHO = "recalled text"
    COPY = "what is known already"


class KeptOut(NamedTuple):
    why: Why
    known: str = ""
    """For a copy: the text that it repeats."""

    def __str__(self) -> str:
        shown = " ".join(harmless(known_formats().filtered(self.known).text).split())
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
        return f"{self.why.value}: {shown}" if shown else self.why.value


class Sifted(NamedTuple):
    text: str | None
    """What may be written; None: nothing."""
    kept_out: tuple[KeptOut, ...] = ()


class Sieve:
    """What one writer recalled, and the filter for secrets."""

    def __init__(self, secrets: SecretFilter | None = None) -> None:
        """`secrets`: None: known formats only."""
        self._secrets = secrets
        self._recalled: deque[tuple[tuple[str, ...], object]] = deque(maxlen=_MAX_RECALLED)

    def recalled(self, texts: Iterable[str], about: object = None) -> None:
        """Remember texts that the writer was given, whole and by lines, to recognise echoes.
        `about`: the user or group of their record; about another the same text is none."""
        for text in texts:
            for part in {text, *text.splitlines()}:
                words = core_of(part)
                if sum(map(_is_word, words)) >= _SHORTEST_ECHO:
                    self._recalled.append((words, about))

    def sifted(self, text: str, known: Iterable[str] = (), about: object = None) -> Sifted:
        """The text without junk. `known`: stored texts that it must not repeat. `about`: see
        `recalled`."""
        left = without_echo(text)
        echo = (KeptOut(Why.ECHO),) if left != text else ()
        words = core_of(left)
        for each in known:
            if words and core_of(each) == words:
                return Sifted(None, (*echo, KeptOut(Why.COPY, each)))
        if (echo and not any(map(_is_word, words))) or any(
            words == each and (about is None or of is None or about == of)
            for each, of in self._recalled
        ):
            return Sifted(None, (KeptOut(Why.ECHO),))
        filtered = (self._secrets or known_formats()).filtered(left)
        secret = (KeptOut(Why.SECRET),) if filtered.is_redacted else ()
        # Only what holds a secret is written otherwise than given: not lone surrogates.
        return Sifted(filtered.text if secret else left, (*echo, *secret))


def core_of(text: str) -> tuple[str, ...]:
    """Its words and symbols without case, punctuation and fillers: equal for near-duplicates."""
    normal = normalized("NFKC", _RAISED.sub(r"^\1", text))
    found = _WORD_OR_SYMBOL.findall(_PUNCTUATION.sub(" ", normal))
    # "A" may be a name, as of a plan or a grade.
    words = [word.casefold() for word in found if word != "a"]
    return tuple(word for word in words if word not in _FILLERS)


def _is_word(word_or_symbol: str) -> bool:
    return word_or_symbol[0].isalnum() or word_or_symbol[0] == "_"


def without_echo(text: str) -> str:
    """The text without what stands in a fence of recalled text (G-23)."""
    return _FENCED.sub("", text).strip() if "<memory source=" in text else text


@cache
def known_formats() -> SecretFilter:
    """Finds known formats only: other texts may have keys and hashes."""
    from relay.memory.secrets import SecretFilter, Sensitivity

    return SecretFilter(Sensitivity.RELAXED)
