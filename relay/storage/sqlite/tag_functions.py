"""What readers need to follow a row to the rows that share a tag with it (`target` of read rules).

Which tag that is depends on the row, so it cannot be bound like the values of a filter: two
functions say it, by the names that `relay.storage.sqlite.sql.visibility` uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.nostr.event import event_from_raw
from relay.storage.sqlite.sql.conditions import listed
from relay.storage.sqlite.tag_buffer import seqs_in

if TYPE_CHECKING:
    from relay.storage.sqlite.hashes import Hashes
    from relay.storage.sqlite.tag_buffer import TagTail


class TagFunctions:
    """The functions of one connection."""

    def __init__(self, hashes: Hashes, tail: TagTail) -> None:
        self._hashes = hashes
        self._tail = tail
        self._recent = tail.recent()

    def begin(self) -> None:
        """Before a statement sees the file: a row is in the tail as it is now, or in the file."""
        self._recent = self._tail.recent()

    def tag_hash(self, raw: bytes, name: str, d_prefix: str | None) -> int | None:
        value = tag_value(raw, name)
        if value is None:
            return None
        if d_prefix is None:
            return self._hashes.tag(name, value)
        return self._hashes.tag("d", d_prefix + value)

    def recent_rows(self, hash_: int | None) -> str:
        return listed([] if hash_ is None else seqs_in(self._recent, [hash_]))


def tag_value(raw: bytes, name: str) -> str | None:
    """The first value of a tag of this name that has one."""
    return next(iter(event_from_raw(raw).tag_values(name)), None)
