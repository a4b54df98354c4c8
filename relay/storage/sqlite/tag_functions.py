"""SQL functions about the tags of a row, for `relay.storage.sqlite.sql`.

`json_extract` and `json_each` of SQLite cut a text at a NUL: they would take `a\\u0000b` for `a`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

from relay.nostr.event import event_from_raw
from relay.storage.sqlite.sql.conditions import listed
from relay.storage.sqlite.tag_buffer import buffered_seqs

if TYPE_CHECKING:
    import sqlite3

    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.tag_buffer import TagBuffer


class TagFunctions:
    """The functions for the rows that share a tag with a row (`target` of read rules): which tag
    that is depends on the row, so it cannot be a bound value of the filter."""

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


def add_functions(db: sqlite3.Connection) -> None:
    """The functions that every connection has."""
    for function, number in ((has_tag, 3), (first_tag, 2), (tag_value, 2), (text_of, 1)):
        db.create_function(function.__name__, number, function, deterministic=True)


def has_tag(raw: bytes, name: str, values: str | None) -> bool:
    """Whether a tag of this name has one of these values, a JSON list; None: any value."""
    found = event_from_raw(raw).tag_values(name)
    return bool(found) if values is None else not _listed(values).isdisjoint(found)


@lru_cache(maxsize=64)
def _listed(values: str) -> frozenset[str]:
    return frozenset(orjson.loads(values))


def first_tag(raw: bytes, name: str) -> str | None:
    """As `Event.tag`: "" if the first such tag has no value, where `tag_value` looks further."""
    return event_from_raw(raw).tag(name)


def tag_value(raw: bytes, name: str) -> str | None:
    """The first value of a tag of this name that has one."""
    return next(iter(event_from_raw(raw).tag_values(name)), None)


def text_of(utf8: str) -> str:
    """`utf8`: in hex."""
    return bytes.fromhex(utf8).decode()
