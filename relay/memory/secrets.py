"""Redaction of secrets before text is stored or sent (M-30), and from what other programs get.

RE2 on bytes: linear time for any text and any configured pattern. Nothing reports what was found.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from functools import cache
from itertools import chain
from math import log2
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import re2

from relay.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Span = tuple[int, int]

SECRET_VARIABLES: Final = ("ROOKERY_KEY", "NOSTR_SECRETBOX_KEY", "NMEM_KEY", "PGPASSWORD")
"""Environment variables that other programs do not get: keys, and the password of the database."""
_MARK: Final = b"[REDACTED]"
_LOOKAHEAD: Final = 4096
"""Characters after a cut that are searched too, so that a secret across the cut is redacted."""

KEY_BLOCK: Final = 16 << 10
"""Bytes after the head of a private key in which its end is looked for; all of them belong to it if
there is none. Keys have 1 to 13 KB."""

_KEY_HEAD: Final = (
    r"-----BEGIN (?:(?:RSA|EC|DSA|OPENSSH|PGP|ENCRYPTED) )?PRIVATE KEY(?: BLOCK)?(?:-----)?"
)
_KEY_END: Final = r"-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?(?:-----)?"
_NAMES: Final = r"(?:password|passwd|secret|token|api_key|apikey)"
_AWS: Final = r"aws[_\s-]?secret[_\s-]?access[_\s-]?key"
_EQUALS: Final = r"""\\*["']?\s*[=:]\s*"""  # with the end of a quoted name, escaped inside JSON
_VALUE: Final = r"""(?:"[^"\n]*"|'[^'\n]*'|\S+)"""
"""If backslashes escape nothing: a path of Windows, `'` in a shell."""
_ESCAPED_VALUE: Final = (
    r"""(?:"{3}(?s:.*?)"{3}|'{3}(?s:.*?)'{3}|"{3}\S*|'{3}\S*"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\\+"[^"\n]*"|\\+'[^'\n]*'|\S+)"""
)


def _assigned(name: str) -> tuple[str, str]:
    """Patterns for names with their value. One reads escapes, and goes on to the value of the last
    name that stands in a value without quotes (`a,token: b`)."""
    last = rf"""(?:(?:[^\s"']\S*)?{name}{_EQUALS})?"""
    head = rf"(?i){name}{_EQUALS}"
    return head + _VALUE, head + last + _ESCAPED_VALUE


_KNOWN: Final = (
    r"AKIA[A-Z0-9]{16}",
    *_assigned(_AWS),
    r"github_pat_[A-Za-z0-9_]{82,}",
    r"gh[pos]_[A-Za-z0-9]{36,}",
    r"\bn(?:crypt)?sec1[02-9ac-hj-np-z]{58,}",
    r"\bsk-(?:ant-)?[A-Za-z0-9_-]{20,}",
    r"\bxox(?:[a-np-z]-|o-[0-9])[A-Za-z0-9%/+=-]{9,}",
    r"\bAIza[A-Za-z0-9_-]{35,}",
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?",
    r"(?i)bearer\s+[A-Za-z0-9._~+/=-]{20,}",
    # Base64 of a name and a password, and not a word.
    r"""(?i:authorization[\\"'\s]*[=:,][\\"'\s]*basic)\s+"""
    r"[A-Za-z0-9+/][a-z]*[A-Z0-9=][A-Za-z0-9+/=]{4,}",
    _KEY_HEAD,
    r"(?i)(?:postgres(?:ql)?|mysql|mongodb(?:\+srv)?|rediss?|amqps?|https?)://[^\s:@/]*:[^\s@]+@",
    *_assigned(_NAMES),
)
_BLOCK_HEAD: Final = (
    rf"(?i)(?:{_NAMES}|{_AWS}){_EQUALS}"
    r"[|>][-+0-9]{0,2}(?:[ \t]+#[^\n]*)?\s*\n[ \t+0-9-]"
)
"""The head of a block of lines in YAML, and how its first line begins."""
_INDENT: Final = b" \t-+0123456789\xe2\x86\x92"
"""Spaces, marks of a list or a diff, and numbers of lines (`12→`)."""
_HARMLESS: Final = (
    r"(?:/|\./|~/|https?://|file://)"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
    r"|[0-9a-fA-F]{40}$|[0-9a-fA-F]{7,12}$"
)
"""Prefixes and forms of harmless tokens: paths, URLs, UUIDs, hashes."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for starting another program."""
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}


class Sensitivity(StrEnum):
    NORMAL = "normal"
    STRICT = "strict"
    RELAXED = "relaxed"
    """Known formats only."""


class _Entropy(NamedTuple):
    bits: float
    """Bits per byte from which a token counts as a secret."""
    length: int
    """Minimum length of a checked token, bytes."""


_ENTROPY: Final = {
    Sensitivity.NORMAL: _Entropy(4.0, 20),
    Sensitivity.STRICT: _Entropy(3.5, 16),
    Sensitivity.RELAXED: None,
}


class Filtered(NamedTuple):
    text: str
    is_redacted: bool


class SecretFilter:
    """Redacts secrets. Raises Invalid for an unusable pattern."""

    __slots__ = ("_any", "_entropy", "_harmless", "_patterns", "_tokens")

    def __init__(
        self, sensitivity: Sensitivity = Sensitivity.NORMAL, patterns: Sequence[str] = ()
    ) -> None:
        self._patterns = [_compiled(text) for text in (*_KNOWN, *patterns)]
        self._any = _any_of((*_KNOWN, *patterns)) if patterns else _any_known()
        self._entropy = _ENTROPY[sensitivity]
        if self._entropy is not None:
            self._tokens = _compiled(rf"""[^\s"'()\[\]{{}}`,;]{{{self._entropy.length},}}""")
            self._harmless = _compiled(_HARMLESS)

    def filtered(self, text: str, limit: int | None = None) -> Filtered:
        """The text, or its first `limit` characters, without secrets."""
        window = text if limit is None else text[: limit + _LOOKAHEAD]
        raw = _bytes(window)
        end = len(raw) if limit is None else len(_bytes(window[:limit]))
        kept, at = [], 0
        for start, stop in self._secrets(raw):
            if start >= end:
                break
            kept += [raw[at:start], _MARK]
            at = stop
        kept.append(raw[at:end])  # empty if a secret crosses the end
        return Filtered(b"".join(kept).decode(errors="replace")[:limit], at > 0)

    @classmethod
    def finds_known(cls, raw: bytes) -> bool:
        """Whether a line of a file holds a known format."""
        return _any_known().search(raw) is not None

    def redacted(self, value: Any) -> Any:
        """A JSON value with redacted strings; fields named like a secret are redacted whole, but
        for those that say yes or no, or nothing."""
        match value:
            case str():
                return self.filtered(value).text
            case list() if _is_split_key(value):  # lines of a patch
                return self.filtered("\n".join(value)).text.split("\n")
            case list():
                return [self.redacted(item) for item in value]
            case dict():
                return {
                    self.filtered(key).text: _MARK.decode()
                    if item and item is not True and self._is_secret(key, item)
                    else self.redacted(item)
                    for key, item in value.items()
                }
            case _:
                return value

    def _is_secret(self, key: str, item: object) -> bool:
        """Whether a field is named like a secret, or is a header that holds one."""
        is_header = isinstance(item, str) and key.lower().endswith("authorization")
        return self.filtered(f"{key}={item if is_header else 'x'}").is_redacted

    def _secrets(self, raw: bytes) -> Iterator[Span]:
        """The spans of secrets, in order, disjoint."""
        known: list[Span] = []
        if self._any.search(raw) is not None:  # most texts, and names of fields, have none
            found = (each.span() for pattern in self._patterns for each in pattern.finditer(raw))
            known = _joined(chain(found, _private_keys(raw), _yaml_blocks(raw)))
        at = 0
        for start, stop in known:
            yield from self._random(raw, at, start)
            yield start, stop
            at = stop
        yield from self._random(raw, at, len(raw))

    def _random(self, raw: bytes, start: int, stop: int) -> Iterator[Span]:
        """The spans of random-looking tokens in a part."""
        if self._entropy is None:
            return
        bits, length = self._entropy
        if stop - start < length:
            return
        min_distinct = 2**bits
        part = raw[start:stop]
        for found in self._tokens.finditer(part):
            token = found.group()
            # Too few distinct bytes for this entropy: rejects most tokens cheaply.
            if len(set(token)) < min_distinct or entropy(token) < bits:
                continue
            if self._harmless.match(token) is None:
                yield start + found.start(), start + found.end()


@cache
def _any_known() -> Any:
    return _any_of(_KNOWN)


def _any_of(patterns: Iterable[str]) -> Any:
    return _compiled("|".join(f"(?:{pattern})" for pattern in patterns))


@cache
def _block_head() -> Any:
    return _compiled(_BLOCK_HEAD)


@cache
def _key_marks() -> tuple[Any, Any]:
    return _compiled(_KEY_HEAD), _compiled(_KEY_END)


def _private_keys(raw: bytes) -> Iterator[Span]:
    """The spans of private keys (PEM), disjoint: no byte is searched for the ends of two."""
    head, end = _key_marks()
    at = 0
    while (begin := head.search(raw, at)) is not None:
        limit = min(begin.end() + KEY_BLOCK, len(raw))
        found = end.search(raw, begin.end(), limit)
        at = limit if found is None else found.end()
        yield begin.start(), at


def _yaml_blocks(raw: bytes) -> Iterator[Span]:
    """The spans of blocks with the name of a secret, disjoint: the lines indented deeper."""
    at = 0
    while (head := _block_head().search(raw, at)) is not None:
        begin = stop = at = head.end() - 1
        depth = _indent(raw[raw.rfind(b"\n", 0, head.start()) + 1 : head.start()])
        while at < len(raw):
            end = raw.find(b"\n", at)
            line = raw[at : len(raw) if end < 0 else end].rstrip()
            if _indent(line) > depth:
                stop = at + len(line)
            elif line.lstrip(_INDENT):  # else an empty line
                break
            at = len(raw) if end < 0 else end + 1
        if stop > begin:
            yield head.start(), stop


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(_INDENT))


def _is_split_key(items: list[Any]) -> bool:
    """Whether these are the lines of a text with a private key."""
    head, _ = _key_marks()
    return all(isinstance(item, str) and "\n" not in item for item in items) and any(
        head.search(_bytes(item)) is not None for item in items
    )


def entropy(data: bytes) -> float:
    """Shannon entropy in bits per byte."""
    size = len(data)
    return -sum(n / size * log2(n / size) for n in Counter(data).values())


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if start == stop:  # a configured pattern may match the empty string
            continue
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # JSON may contain lone surrogates


def _compiled(text: str) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError):
        raise Invalid(f"pattern {text!r} cannot be used") from None
