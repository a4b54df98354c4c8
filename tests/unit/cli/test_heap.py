"""Memory of a burst is given back to the system, not only to the process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.cli import heap

MIB = 1 << 20


class Buffer:
    """A megabyte in blocks of the heap, in a cycle, as a closed connection leaves it."""

    def __init__(self) -> None:
        self.blocks = [bytes(64 << 10) for _ in range(16)]
        self.itself = self


@pytest.mark.skipif(heap.own_bytes() == 0, reason="this system does not tell how much there is")
async def test_what_closed_connections_held_is_given_back() -> None:
    small: list[bytes] = []
    before = heap.own_bytes()
    for _ in range(128):
        Buffer()
        small.append(bytes(2000))  # stays: the heap cannot shrink from its end alone
    await heap.give_back()
    assert heap.own_bytes() - before < 32 * MIB
    assert len(small) == 128


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([100, 140, 140], 0),
        ([100, 160, 105, 150], 1),
        ([100, 160, 105, 160, 110], 2),
        ([100, 60, 110, 70], 1),
    ],
    ids=["small growth", "large growth", "again", "growth since it was smallest"],
)
async def test_it_is_looked_at_when_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], times: int
) -> None:
    """Sizes in MiB, as they are read."""
    given_back = 0
    left = iter(sizes)

    def own_bytes() -> int:
        size = next(left, None)
        if size is None:
            raise asyncio.CancelledError
        return size * MIB

    async def give_back(*_: Any) -> None:
        nonlocal given_back
        given_back += 1

    monkeypatch.setattr(heap, "_CHECK_S", 0)
    monkeypatch.setattr(heap, "own_bytes", own_bytes)
    monkeypatch.setattr(heap, "give_back", give_back)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_small()
    assert given_back == times
