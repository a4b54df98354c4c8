"""relay/write/commands.py: what an event weighs while it waits."""

from __future__ import annotations

import tracemalloc

import pytest

from relay.nostr.event import event_from_raw
from relay.write.commands import weight_of
from tests.cast import alice


@pytest.mark.parametrize(
    "tags",
    [
        [["t", f"{number:x}"] for number in range(5000)],
        [["t", *(f"{number:x}" for number in range(60_000))]],
        [["t", "", *(f"{number:x}" for number in range(20))] for _ in range(2500)],
        [[] for _ in range(5000)],
    ],
    ids=["many tags", "many values of one tag", "many values of many tags", "empty tags"],
)
def test_an_event_takes_no_more_memory_than_it_weighs(tags: list[list[str]]) -> None:
    raw = alice.sign(1, tags, "", 1).raw
    tracemalloc.start()
    try:
        event = event_from_raw(raw)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held + len(raw) <= 1.2 * weight_of(event)
