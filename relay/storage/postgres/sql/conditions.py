"""Conditions of WHERE clauses: texts over `e`, a row of events.

What policy files say stands in the text as literals: to bind 60 such values took half of a short
read. Keys of viewers and values of clients are bound.

Invariant: a condition is true or false, never null, so that its negation is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.storage.postgres.sql.parameters import Parameters

TRUE: Final = "true"
FALSE: Final = "false"
BEGINNING: Final = 200
"""Bytes of `d` in its index."""


def all_of(parts: Iterable[str]) -> str:
    return _joined(parts, " AND ", TRUE, FALSE)


def any_of(parts: Iterable[str]) -> str:
    return _joined(parts, " OR ", FALSE, TRUE)


def _joined(parts: Iterable[str], word: str, empty: str, decisive: str) -> str:
    left = [part for part in parts if part != empty]
    if decisive in left:
        return decisive
    return f"({word.join(left)})" if len(left) > 1 else left[0] if left else empty


def negated(condition: str) -> str:
    return {TRUE: FALSE, FALSE: TRUE}.get(condition) or f"NOT ({condition})"


def keys_in(column: str, keys: Iterable[str], p: Parameters) -> str:
    """`column` is one of these ids or public keys, given in hex."""
    blobs = [bytes.fromhex(key) for key in sorted(keys)]
    return f"{column} = ANY({p.add(blobs, 'bytea[]')})" if blobs else FALSE


def texts_in(column: str, texts: Iterable[str]) -> str:
    blobs = [_literal(text.encode()) for text in sorted(texts)]
    return f"{column} IN ({', '.join(blobs)})" if blobs else FALSE


def has_hash(column: str, hashes: Sequence[int]) -> str:
    """`has_one_of` of hashes that a policy file makes."""
    listed = ",".join([f"{each:d}" for each in hashes])
    return f"{column} && '{{{listed}}}'::bigint[]" if hashes else FALSE


def has_one_of(column: str, hashes: Sequence[int], p: Parameters) -> str:
    return f"{column} && {p.add(list(hashes), 'bigint[]')}" if hashes else FALSE


def starts_with(prefix: str) -> str:
    """`d` starts with `prefix`."""
    low = prefix.encode()
    if not low:
        return TRUE
    return f"(e.d >= {_literal(low)} AND e.d < {_literal(following(low))})"


def _literal(text: bytes) -> str:
    """A literal of the text's bytes, valid whatever `standard_conforming_strings` is."""
    return f"decode('{text.hex()}', 'hex')"


def following(prefix: bytes) -> bytes:
    """The first that no longer starts with it; no byte of UTF-8 is 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
