"""Hashes of tags are cached, within a bound: clients choose the texts."""

from __future__ import annotations

import pytest

from relay.storage.hashes import Hashes
from relay.storage.postgres.hashes import KeyedHashes
from tests.cast import alice
from tests.contract.writing import unsigned

NAMES = frozenset({"t"})


@pytest.mark.parametrize("made", [Hashes, KeyedHashes])
@pytest.mark.parametrize("value", ["x" * 200, "\U0001f600" * 60], ids=["long", "wide"])
def test_no_hash_of_a_large_text_is_kept(made: type[Hashes], value: str) -> None:
    """65,536 of them took 76 MB; with names of tags, on PostgreSQL, as much as was sent."""
    hashes = made(bytes(32))
    event = unsigned(alice, tags=[["t", value], [value, "x"]])
    assert hashes.tag("t", value) in hashes.of_event(event, NAMES)
    hashes.tag_name(value)
    hashes.tag(value, "x")
    if isinstance(hashes, KeyedHashes):
        assert hashes.tag_name(value) in hashes.of_rules(event)
    assert hashes._short.cache_info().currsize == isinstance(hashes, KeyedHashes), "of the name t"


@pytest.mark.parametrize("made", [Hashes, KeyedHashes])
@pytest.mark.parametrize("value", ["ab" * 32, f"30023:{'ab' * 32}:a-title", "\u9053" * 40])
def test_the_hash_of_an_ordinary_text_is_kept(made: type[Hashes], value: str) -> None:
    hashes = made(bytes(32))
    of_event = hashes.of_event(unsigned(alice, tags=[["t", value]]), NAMES)
    assert of_event == {hashes.tag("t", value)} == {hashes._hash(f"t\0{value}")}
    assert hashes._short.cache_info().hits == 1
