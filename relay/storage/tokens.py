"""Tokens of texts and of search terms, made by FTS5 in memory, as for live events."""

from __future__ import annotations

import sqlite3
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Final

from relay.storage.sqlite.sql.named import SEARCH_QUERIES as FTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONG_TOKEN: Final = 256
"""Bytes. Longer tokens are replaced by their hash: an index entry has at most 2,700 bytes."""


class Tokenizer:
    """May be used by several threads, and closed meanwhile."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # FTS5 cuts a token after 32 KiB, perhaps within a character.
        self._db.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._db.execute(FTS["make_words"])
        self._db.execute(FTS["make_tokens"])

    def tokens(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """The tokens of each text, in order. Raises sqlite3.ProgrammingError once it is closed."""
        found: list[list[tuple[int, str]]] = [[] for _ in texts]
        with self._lock:
            self._db.execute(FTS["empty_words"])
            for number, text in enumerate(texts, 1):
                self._db.execute(FTS["add_words"], (number, text, "", ""))
            for number, place, token in self._db.execute(FTS["tokens"]):
                found[number - 1].append((place, _kept(token)))
        return [tuple([token for _, token in sorted(places)]) for places in found]

    def listed(self, text: str) -> str:
        """The text's tokens in order, a space before and after each; empty when it has none."""
        with self._lock:
            self._db.execute(FTS["empty_words"])
            self._db.execute(FTS["add_words"], (1, text, "", ""))
            (listed,) = self._db.execute(FTS["listed_tokens"]).fetchone()
        return "" if listed is None else f" {listed} "

    def close(self) -> None:
        # A thread whose task was cancelled goes on: SQLite would crash.
        with self._lock:
            self._db.close()


def _kept(token: str) -> str:
    if len(token) < _LONG_TOKEN:
        return token
    # No token has a `#`.
    return f"#{blake2b(token.encode(), digest_size=16).hexdigest()}"
