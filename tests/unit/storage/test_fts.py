"""The cache of the stems of words."""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING

from relay.storage.sqlite import fts
from relay.storage.sqlite.fts import Stems

if TYPE_CHECKING:
    import pytest


def test_the_stems_of_short_words_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two letters took four times what their letters should."""
    monkeypatch.setattr(fts, "_KEPT_BYTES", 100_000)
    stems, most = Stems(), 0
    for start in range(0, 3000, 100):
        words = [chr(0x4E00 + number) + "a" for number in range(start, start + 100)]
        assert stems.of(words) == {word: [word] for word in words}
        own = [*stems._known, *stems._known.values()]
        most = max(most, getsizeof(stems._known) + sum(map(getsizeof, own)))
    assert 60_000 < most < 150_000
    stems.close()


def test_the_stems_of_new_words_are_made_together() -> None:
    """Each alone takes six times as long; a text may have ten thousand."""
    stems, statements = Stems(), list[str]()
    stems._tokenizer._db.set_trace_callback(statements.append)
    words = [f"kettles{number}" for number in range(1000)]
    assert stems.of(words) == {word: [word] for word in words}
    assert len(statements) < 100
    stems.close()
