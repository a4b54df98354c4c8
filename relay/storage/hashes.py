"""64-bit keys of indexes. They only find candidates; the full values are compared."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from string import ascii_letters
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from relay.access.read_rules import RULE_TAGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.lifecycle.rows import Reference
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

_LETTERS: Final = frozenset(ascii_letters)
_CACHED: Final = 65_536
_CACHED_BYTES: Final = 192
"""Of a text in memory, if its hash is cached: all together take 20 MiB. ASCII has 143 characters,
texts with others 29 to 119."""
_CACHED_TAGS: Final = 1000
"""An event with more tags is hashed without the cache of hashes."""
_CACHED_VALUES: Final = 256
"""The same for a tag condition of a filter."""


def id_key(event_id: str) -> int:
    """The first 8 bytes of a hex id or public key as a signed integer that sorts alike."""
    return int(event_id[:16], 16) - 2**63


class Hashes:
    """Keyed 64-bit hashes of tags and slots: without the key nobody can produce collisions."""

    def __init__(self, key: bytes) -> None:
        self._unfed = blake2b(digest_size=8, key=key)
        self._short = lru_cache(maxsize=_CACHED)(self._hash)
        self._of_last: tuple[Filter | None, list[list[int]]] = None, []
        """Of the last filter with tags: one query of it follows the other, as the authors of a
        COUNT, or a page on a thread that took too long on the loop."""

    def tag(self, name: str, value: str) -> int:
        return self._kept(f"{name}\0{value}")

    def _kept(self, text: str) -> int:
        return self._short(text) if getsizeof(text) <= _CACHED_BYTES else self._hash(text)

    def of_filter(self, filter_: Filter) -> list[list[int]]:
        """Of each tag condition: the hashes of its values, in their order. Not to be changed."""
        if not filter_.tags:
            return []
        last, hashes = self._of_last
        if last is not filter_:
            hashes = []
            for name, values in filter_.tags:
                if len(values) > _CACHED_VALUES:
                    of = [self._hash(f"{name}\0{value}") for value in sorted(values)]
                else:
                    of = [self.tag(name, value) for value in sorted(values)]
                hashes.append(of)
            self._of_last = filter_, hashes
        return hashes

    def references(self, references: Iterable[Reference]) -> list[int]:
        """Hashes of the tags, lowercase and uppercase, that make these references."""
        return [
            self.tag(written, value)
            for name, value in references
            for written in (name, name.upper())
        ]

    def tag_name(self, name: str) -> int:
        """Hash for "has a tag of this name"."""
        return self._kept(f"\0{name}")

    def partition(self, group: str) -> int:
        """Of the rows of this group while it is guarded; never 0."""
        return self._hash(f"\0\0{group}") or 1

    def slot(self, pubkey: str, kind: int, d: str) -> int:
        return self._hash(f"{kind}:{pubkey}:{d}")

    def fingerprint(self) -> str:
        """Identifies the store without revealing its key."""
        return f"{self._hash('') % 2**64:016x}"

    def _hash(self, text: str) -> int:
        hashed = self._unfed.copy()  # a new hash object takes longer
        hashed.update(text.encode())
        return int.from_bytes(hashed.digest(), "big", signed=True)

    def of_event(self, event: Event, index_tags: frozenset[str]) -> set[int]:
        """Every hash under which the event can be found by a tag (N01-31)."""
        out = set[int]()
        add, long = out.add, self._hash
        # Many are met once, and would push those of other events out.
        short = self._short if len(event.tags) <= _CACHED_TAGS else long
        for tag in event.tags:
            if len(tag) > 1:
                name = tag[0]
                if name in _LETTERS or name in index_tags or name in RULE_TAGS:
                    text = f"{name}\0{tag[1]}"
                    add(short(text) if getsizeof(text) <= _CACHED_BYTES else long(text))
                    if name in RULE_TAGS:
                        add(self.tag_name(name))
        return out
