"""The keyed hashes of this store: SHA-256, which PostgreSQL computes too."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from relay.storage.hashes import Hashes

if TYPE_CHECKING:
    from relay.nostr.event import Event


def is_letter(name: str) -> bool:
    """Whether every tag of this name is indexed (N01-31)."""
    return len(name) == 1 and name.isascii() and name.isalpha()


class KeyedHashes(Hashes):
    """The first 8 bytes of SHA-256 of the key and the text; `tag_hash` in `sql/functions.sql`."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._keyed = sha256(key)

    def of_rules(self, event: Event) -> set[int]:
        """Hashes that only rules use: of tag names, and of tags with longer names. No rule names an
        empty one, whose tags would have the hashes of tag names."""
        out = set()
        for tag in event.tags:
            if len(tag) > 1 and tag[0]:
                out.add(self.tag_name(tag[0]))
                if not is_letter(tag[0]):
                    out.add(self.tag(tag[0], tag[1]))
        return out

    def _hash(self, text: str) -> int:
        digest = self._keyed.copy()
        digest.update(text.encode())
        return int.from_bytes(digest.digest()[:8], "big", signed=True)
