"""relay/nostr/event.py: what an event weighs while it is held."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import orjson
import pytest

from relay.nostr.event import event_from, weight_of
from tests.cast import alice

if TYPE_CHECKING:
    from relay.nostr.event import Event

_MANY = [f"{number:x}" for number in range(60_000)]


@pytest.mark.parametrize(
    ("tags", "content"),
    [
        ([["t", text] for text in _MANY[:5000]], ""),
        ([["t", *_MANY]], ""),
        ([["t", "", *_MANY[:20]] for _ in range(2500)], ""),
        ([[] for _ in range(5000)], ""),
        ([["p", "a" * 64], ["e", "b" * 64, "", "root"]], "hello"),
        ([], "a" * 400_000),
        ([], "😀" + "a" * 400_000),
        ([], "水" * 100_000),
        ([["t", "é" + "a" * 300] for _ in range(900)], ""),
        ([["t", "😀" + "a" * 300] for _ in range(1500)], ""),
        ([["t", *(f"😀{text}" for text in _MANY)]], ""),
    ],
    ids=[
        "many tags",
        "many values of one tag",
        "many values of many tags",
        "empty tags",
        "an ordinary note",
        "a long text",
        "a long text with one wide character",
        "a long text of wide characters",
        "some wide values",
        "more wide values",
        "short wide values",
    ],
)
def test_an_event_takes_no_more_memory_than_it_weighs(tags: list[list[str]], content: str) -> None:
    event, held = _received(tags, content)
    assert held <= 1.2 * weight_of(event)


@pytest.mark.parametrize("text", ["a" * 10_000, "ж" * 10_000, "水" * 10_000])
def test_text_in_any_script_weighs_about_what_it_takes(text: str) -> None:
    """… or a client would refuse answers that it can hold."""
    event, held = _received([["source-data", text]], text)
    assert weight_of(event) <= 1.5 * held


def _received(tags: list[list[str]], content: str) -> tuple[Event, int]:
    """An event as it is read from a frame, and the bytes that it holds."""
    raw = alice.sign(1, tags, content, 1).raw
    event_from(orjson.loads(raw))  # what is made once for all
    tracemalloc.start()
    try:
        event = event_from(orjson.loads(raw))
        return event, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
