"""Memory of a burst is given back to the system, not only to the process."""

from __future__ import annotations

import asyncio
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import heap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Never

MIB = 1 << 20


class Buffer:
    """A megabyte in blocks of the heap, in a cycle, as a closed connection leaves it."""

    def __init__(self) -> None:
        self.blocks = [bytes(64 << 10) for _ in range(16)]
        self.itself = self


def reading(sizes: list[int]) -> Callable[[], int]:
    """`own_bytes` in MiB, one after the other; at the end of them the task is cancelled."""
    left = iter(sizes)

    def own_bytes() -> int:
        size = next(left, None)
        if size is None:
            raise asyncio.CancelledError
        return size * MIB

    return own_bytes


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
    ("sizes", "again", "times"),
    [
        ([100, 140, 140], 0, 0),
        ([100, 160, 105, 150], 0, 1),
        ([100, 160, 105, 160, 110], 0, 2),
        ([100, 60, 110, 70], 0, 1),
        ([100, 390, 390, 390, 390, 390, 390, 390], 2, 3),
    ],
    ids=["small growth", "large growth", "again", "growth since it was smallest", "left in cycles"],
)
async def test_it_is_looked_at_when_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], again: int, times: int
) -> None:
    """Sizes in MiB, as they are read. 5,000 handshakes of TLS that were given up stayed as 390 MB
    of garbage."""
    given_back = 0

    async def give_back(*_: Any) -> float:
        nonlocal given_back
        given_back += 1
        return 0.0

    monkeypatch.setattr(heap, "_CHECK_S", 0)
    monkeypatch.setattr(heap, "_AGAIN", again)
    monkeypatch.setattr(heap, "own_bytes", reading(sizes))
    monkeypatch.setattr(heap, "give_back", give_back)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_small(lambda: 0)
    assert given_back == times


@pytest.mark.parametrize(
    ("blocks", "times"),
    [
        ([400_000, 2_900_000, 2_800_000, 2_700_000], 0),
        ([400_000, 2_900_000, 400_000, 400_000, 390_000], 1),
        ([2_900_000, 1_900_000, 900_000, 800_000], 2),
        ([400_000, 400_000, 2_900_000, 400_000, 2_900_000, 400_000], 2),
    ],
    ids=["little is freed", "all is", "in parts", "again"],
)
async def test_it_is_looked_at_when_much_was_freed(
    monkeypatch: pytest.MonkeyPatch, blocks: list[int], times: int
) -> None:
    """After 1.28 million values of subscriptions were closed it stayed as large as with them."""
    given_back = 0
    left = iter(blocks)
    last = 0

    def allocated_blocks() -> int:
        nonlocal last
        size = next(left, None)
        if size is None:
            raise asyncio.CancelledError
        last = size
        return size

    async def give_back(*_: Any) -> float:
        nonlocal given_back, left
        given_back += 1
        left = chain([last], left)  # it is read once more
        return 0.0

    monkeypatch.setattr(heap, "_CHECK_S", 0)
    monkeypatch.setattr(heap, "own_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(heap, "give_back", give_back)
    monkeypatch.setattr(sys, "getallocatedblocks", allocated_blocks)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_small(lambda: 0)
    assert given_back == times


@pytest.mark.parametrize(
    ("waiting", "looks"),
    [
        ([0, 0], [1]),
        ([10, 0], [1]),
        ([64, 64, 0, 0, 0], [3]),
        ([64] * 12, [5, 10]),
    ],
    ids=["nothing", "little", "much for a while", "much all the time"],
)
async def test_it_is_not_looked_at_beside_many_waiting_events_for_less_than_a_minute(
    monkeypatch: pytest.MonkeyPatch, waiting: list[int], looks: list[int]
) -> None:
    """MiB that wait at each check. Beside 1.3 million tags each look held the loop for 136 ms. The
    process is as large as before once they are gone, but closed connections may have left more."""
    check = 0
    given_back: list[int] = []

    def own_bytes() -> int:
        return (160 if check == 1 else 100) * MIB

    async def next_check(_: float) -> None:
        nonlocal check
        check += 1
        if check > len(waiting):
            raise asyncio.CancelledError

    async def give_back() -> float:
        given_back.append(check)
        return 0.0

    monkeypatch.setattr(heap, "_AGAIN", 1 if len(waiting) == 12 else 0)
    monkeypatch.setattr(heap, "own_bytes", own_bytes)
    monkeypatch.setattr(heap, "give_back", give_back)
    monkeypatch.setattr(asyncio, "sleep", next_check)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_small(lambda: waiting[check - 1] * MIB)
    assert given_back == looks
    assert (1 + heap._PUT_OFF) * heap._CHECK_S < 60


@pytest.mark.parametrize(
    ("sizes", "needed"),
    [
        ([90, 100, 90], []),
        ([110, 90, 90], []),
        ([110, 110, 90], [10]),
        ([110, 110, 104, 110, 110], [10, 10]),
        ([110, 110, 109, 110, 114, 116, 116, 90, 105, 105, 90], [10, 1, 5]),
        ([130, 130, 129, 130, 130, 130, 126, 126, 126], [30, 5, 1]),
        ([130, 130, 112, 112, 112, 100], [30, 12]),
        ([104, 104, 104, 110, 116, 116, 104, 110, 117, 117, 104], [4, 6, 7]),
    ],
    ids=[
        "small",
        "garbage",
        "large",
        "still large",
        "what stays is tolerated",
        "up to a limit",
        "some helps",
        "what stays, beside pulses",
    ],
)
async def test_connections_are_closed_while_the_process_is_too_large_and_that_helps(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], needed: list[int]
) -> None:
    """Sizes in MiB, as they are read, and what is missing at each closing. With 2 GiB the system
    ended the process. But what groups and the store take is in no connection: honest clients were
    closed every three seconds, for ever."""
    asked: list[int] = []

    async def close_some(size: int) -> str:
        asked.append(round(size / MIB))
        return "9 connections"

    async def give_back() -> float:
        return 0.0

    for pause in ("_PRESSURE_S", "_SETTLE_S"):
        monkeypatch.setattr(heap, pause, 0)
    monkeypatch.setattr(heap, "own_bytes", reading(sizes))
    monkeypatch.setattr(heap, "give_back", give_back)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_below(100 * MIB, close_some)
    assert asked == needed


async def test_what_looks_at_the_memory_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when no thread can be started."""
    begun = 0

    async def job() -> Never:
        nonlocal begun
        begun += 1
        raise MemoryError if begun < 3 else asyncio.CancelledError

    monkeypatch.setattr(heap, "_CHECK_S", 0)
    with pytest.raises(asyncio.CancelledError):
        await heap.restarted(job)
    assert begun == 3


async def test_a_look_that_takes_long_is_followed_by_a_long_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside 4,000 connections each held the loop for 0.2 s."""
    sizes, looks = [100, *[390] * 20], 0

    async def give_back() -> float:
        nonlocal looks
        looks += 1
        return 0.2

    async def next_check(_: float) -> None: ...

    monkeypatch.setattr(heap, "own_bytes", reading(sizes))
    monkeypatch.setattr(heap, "give_back", give_back)
    monkeypatch.setattr(asyncio, "sleep", next_check)
    with pytest.raises(asyncio.CancelledError):
        await heap.keep_small(lambda: 0)
    assert looks == 4, "one in 40 s"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 6144),
        ({"sys/fs/cgroup/memory.max": "2147483648"}, 1536),
        ({"sys/fs/cgroup/memory.max": "max"}, 6144),
        ({"sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "1073741824"}, 768),
        ({"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824"}, 768),
        ({"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712"}, 6144),
        ({"proc/meminfo": "", "proc/self/cgroup": "odd"}, None),
    ],
)
def test_the_limit_is_of_the_smallest_control_group_or_of_the_machine(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    files = {
        "proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": "0::/a/b\n4:memory:/x\n",
        **files,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    found = heap.memory_limit(tmp_path)
    assert (None if found is None else found / MIB) == limit
