"""SQL functions about the tags of a row, for `relay.storage.sqlite.sql`.

`json_extract` and `json_each` of SQLite cut a text at a NUL: they would take `a\\u0000b` for `a`.

A query may call them for each row that it scans, and an event of thousands of tags takes 10 ms to
parse. So they look for the tag in `Event.raw`, in which each text has one form. There `["` and a
name are the beginning of a tag and nothing else: a quote within a text has a backslash, and what
follows a text is no letter.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson

from relay.storage.sqlite.sql.conditions import listed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

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

    def tag_hash(self, raw: bytes, name: str) -> int | None:
        value = tag_value(raw, name)
        return None if value is None else self._hashes.tag(name, value)

    def buffered_rows(self, hash_: int | None, kinds: str) -> str:
        """seqs as a JSON list, of rows in whatever partition; `kinds`: a list, too."""
        return listed([] if hash_ is None else self._snapshot.seqs_of_any([hash_], _set_of(kinds)))


@lru_cache(maxsize=64)
def _set_of(kinds: str) -> frozenset[int]:
    return frozenset(orjson.loads(kinds))


def add_functions(db: sqlite3.Connection) -> None:
    """The functions that every connection has."""
    for function, number in (*OF_ROWS, (text_of, 1)):
        db.create_function(function.__name__, number, function, deterministic=True)


def has_tag(raw: bytes, name: str, values: str | None) -> bool:
    """Whether a tag of this name has one of these values, a JSON list; None: any value."""
    if values is None:
        return _head_of(name) + b"," in raw
    return any(each in raw for each in _heads_of(name, values))


def first_tag(raw: bytes, name: str) -> str | None:
    """As `Event.tag`: "" if the first such tag has no value, where `tag_value` looks further."""
    head = _head_of(name)
    start = raw.find(head)
    if start < 0:
        return None
    start += len(head)
    return _text_at(raw, start + 1) if raw.startswith(b",", start) else ""


def tag_value(raw: bytes, name: str) -> str | None:
    """The first value of a tag of this name that has one."""
    head = _head_of(name) + b","
    start = raw.find(head)
    return None if start < 0 else _text_at(raw, start + len(head))


@lru_cache(maxsize=64)
def _head_of(name: str) -> bytes:
    return b"[" + orjson.dumps(name)


@lru_cache(maxsize=64)
def _heads_of(name: str, values: str) -> list[bytes]:
    return [_head_of(name) + b"," + orjson.dumps(value) for value in orjson.loads(values)]


_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"')


def _text_at(raw: bytes, start: int) -> str:
    found = _TEXT.match(raw, start)
    assert found is not None
    text: str = orjson.loads(found[0])
    return text


def text_of(utf8: str) -> str:
    """`utf8`: in hex."""
    return bytes.fromhex(utf8).decode()


OF_ROWS: Final[Sequence[tuple[Callable[..., str | int | None], int]]] = (
    (has_tag, 3),
    (first_tag, 2),
    (tag_value, 2),
)
"""The functions that look through `Event.raw`, their first argument, and how many they take."""
