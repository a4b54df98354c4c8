"""Secrets leave a text before anybody stores or sends it. MEMORY.md M-30.

The engine is RE2 and texts are looked at as bytes, so time is linear in the text whatever it
holds and whatever an admin's own patterns are. Nothing here says what was found.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from math import log2
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import re2

from relay.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Span = tuple[int, int]

_MARK: Final = b"[REDACTED]"
_BEYOND: Final = 4096
"""Characters behind a cut that are looked at too: what begins before it is taken out whole."""

_VALUE: Final = r"""["']?\s*[=:]\s*(?:"[^"\n]*"|'[^'\n]*'|\S+)"""
_KNOWN: Final = (
    r"AKIA[A-Z0-9]{16}",
    rf"(?i)aws[_\s-]?secret[_\s-]?access[_\s-]?key{_VALUE}",
    r"github_pat_[A-Za-z0-9_]{82,}",
    r"gh[pos]_[A-Za-z0-9]{36,}",
    r"\bsk-(?:ant-)?[A-Za-z0-9_-]{20,}",
    r"(?i)bearer\s+[A-Za-z0-9._~+/=-]{20,}",
    r"-----BEGIN (?:(?:RSA|EC|DSA|OPENSSH|PGP|ENCRYPTED) )?PRIVATE KEY(?: BLOCK)?(?:-----)?",
    r"(?i)(?:postgres(?:ql)?|mysql|mongodb(?:\+srv)?|rediss?|amqps?|https?)://[^\s:@/]*:[^\s@]+@",
    rf"(?i)(?:password|passwd|secret|token|api_key|apikey){_VALUE}",
)
_HARMLESS: Final = (
    r"(?:/|\./|~/|https?://|file://)"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
    r"|[0-9a-fA-F]{40}$|[0-9a-fA-F]{7,12}$"
)
"""How a token begins, or what it is as a whole: paths, URLs, UUIDs, hashes."""


class Sensitivity(StrEnum):
    NORMAL = "normal"
    STRICT = "strict"
    RELAXED = "relaxed"
    """Known forms only."""


class _Entropy(NamedTuple):
    bits: float
    """A byte, from which on a token is a secret."""
    length: int
    """Bytes, from which on it is looked at."""


_ENTROPY: Final = {
    Sensitivity.NORMAL: _Entropy(4.0, 20),
    Sensitivity.STRICT: _Entropy(3.5, 16),
    Sensitivity.RELAXED: None,
}


class Filtered(NamedTuple):
    text: str
    is_redacted: bool


class SecretFilter:
    """Takes secrets out of texts. Raises Invalid for a pattern that cannot be used, naming it."""

    __slots__ = ("_entropy", "_harmless", "_patterns", "_tokens")

    def __init__(
        self, sensitivity: Sensitivity = Sensitivity.NORMAL, patterns: Sequence[str] = ()
    ) -> None:
        self._patterns = [_compiled(text) for text in (*_KNOWN, *patterns)]
        self._entropy = _ENTROPY[sensitivity]
        if self._entropy is not None:
            self._tokens = _compiled(rf"""[^\s"'()\[\]{{}}`,;]{{{self._entropy.length},}}""")
            self._harmless = _compiled(_HARMLESS)

    def filtered(self, text: str, limit: int | None = None) -> Filtered:
        """The text, or its first `limit` characters, without its secrets."""
        window = text if limit is None else text[: limit + _BEYOND]
        raw = _bytes(window)
        end = len(raw) if limit is None else len(_bytes(window[:limit]))
        kept, at = [], 0
        for start, stop in self._secrets(raw):
            if start >= end:
                break
            kept += [raw[at:start], _MARK]
            at = stop
        kept.append(raw[at:end])  # nothing when a secret lies across the end
        return Filtered(b"".join(kept).decode(errors="replace")[:limit], at > 0)

    def freed(self, value: Any) -> Any:
        """JSON without the secrets of its texts. A text that its name calls one is one."""
        match value:
            case str():
                return self.filtered(value).text
            case list():
                return [self.freed(item) for item in value]
            case dict():
                return {
                    self.filtered(key).text: _MARK.decode()
                    if isinstance(item, str) and self.filtered(f"{key}=x").is_redacted
                    else self.freed(item)
                    for key, item in value.items()
                }
            case _:
                return value

    def _secrets(self, raw: bytes) -> Iterator[Span]:
        """Where secrets are, in order, apart from each other."""
        known = _joined(
            found.span() for pattern in self._patterns for found in pattern.finditer(raw)
        )
        at = 0
        for start, stop in known:
            yield from self._random(raw, at, start)
            yield start, stop
            at = stop
        yield from self._random(raw, at, len(raw))

    def _random(self, raw: bytes, start: int, stop: int) -> Iterator[Span]:
        """Tokens of the part that look like drawn by lot."""
        if self._entropy is None:
            return
        bits, length = self._entropy
        if stop - start < length:
            return
        fewest = 2**bits
        part = raw[start:stop]
        for found in self._tokens.finditer(part):
            token = found.group()
            # So few different bytes cannot have so much entropy: most tokens end here.
            if len(set(token)) < fewest or entropy(token) < bits:
                continue
            if self._harmless.match(token) is None:
                yield start + found.start(), start + found.end()


def entropy(data: bytes) -> float:
    """Shannon's, in bits a byte."""
    size = len(data)
    return -sum(n / size * log2(n / size) for n in Counter(data).values())


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if start == stop:  # an admin's pattern may match nothing at all
            continue
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # JSON may hold half of a character


def _compiled(text: str) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError):
        raise Invalid(f"pattern {text!r} cannot be used") from None
