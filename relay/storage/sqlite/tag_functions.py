"""SQL functions for the rows that share a tag with a row (`target` of read rules).

Which tag that is depends on the row, so it cannot be a bound value of the filter.
`relay.storage.sqlite.sql.visibility` composes the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.nostr.event import event_from_raw
from relay.storage.sqlite.sql.conditions import listed
from relay.storage.sqlite.tag_buffer import buffered_seqs

if TYPE_CHECKING:
    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.tag_buffer import TagBuffer


class TagFunctions:
    """The functions of one connection."""

    def __init__(self, hashes: Hashes, tag_buffer: TagBuffer) -> None:
        self._hashes = hashes
        self._tag_buffer = tag_buffer
        self._snapshot = tag_buffer.snapshot()

    def begin(self) -> None:
        """Call before a statement: tags flushed after its snapshot was taken are not in it."""
        self._snapshot = self._tag_buffer.snapshot()

    def tag_hash(self, raw: bytes, name: str, d_prefix: str | None) -> int | None:
        value = tag_value(raw, name)
        if value is None:
            return None
        if d_prefix is None:
            return self._hashes.tag(name, value)
        return self._hashes.tag("d", d_prefix + value)

    def buffered_rows(self, hash_: int | None) -> str:
        """seqs as a JSON list."""
        return listed([] if hash_ is None else buffered_seqs(self._snapshot, [hash_]))


def tag_value(raw: bytes, name: str) -> str | None:
    """The first value of a tag of this name that has one."""
    return next(iter(event_from_raw(raw).tag_values(name)), None)
