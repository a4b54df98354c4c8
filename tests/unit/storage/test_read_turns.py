"""relay/storage/read_turns.py: who reads next on a connection that many wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relay.storage.read_turns import ReadTurns
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from relay.storage import Verb


class Queue:
    """Reads whose time passes only while they run."""

    def __init__(self, at_once: int = 1) -> None:
        self.now = 100.0
        self.turns = ReadTurns(at_once, lambda: self.now)
        self.read: list[str] = []

    async def page(self, address: str | None, seconds: float = 0.01) -> None:
        await self._read(address, "REQ", seconds)

    async def count(self, address: str | None, seconds: float = 3.0) -> None:
        await self._read(address, "COUNT", seconds)

    async def _read(self, address: str | None, verb: Verb, seconds: float) -> None:
        async with self.turns.of(address, verb):
            await asyncio.sleep(0)
            self.now += seconds
            self.read.append(f"{'count' if verb == 'COUNT' else 'page'} of {address}")

    async def all(self, *reads: Coroutine[None, None, None]) -> list[str]:
        """Reads that come one after the other while the first has its turn; their order."""
        self.read.clear()
        async with asyncio.timeout(ANSWER_S), asyncio.TaskGroup() as tasks:
            for read in reads:
                tasks.create_task(read)
        return self.read


async def test_pages_wait_for_one_count_however_many_addresses_count() -> None:
    queue = Queue()
    counts = [queue.count(f"198.18.0.{number}") for number in range(60)]
    pages = [queue.page(f"192.0.2.{number}") for number in range(9)]
    read = await queue.all(*counts, *pages)
    assert read[0].startswith("count")
    assert read[1:10] == [f"page of 192.0.2.{number}" for number in range(9)]


async def test_counts_have_half_of_the_time_beside_pages() -> None:
    queue = Queue()
    counts = [queue.count(f"198.18.0.{number}", 1.0) for number in range(3)]
    pages = [queue.page(f"192.0.2.{number}", 0.5) for number in range(6)]
    kinds = [each.split()[0] for each in await queue.all(*counts, *pages)]
    assert kinds == ["count", "page", "page"] * 3


async def test_an_address_whose_reads_took_long_lets_others_go_first() -> None:
    queue = Queue()
    greedy = [f"198.18.0.{number}" for number in range(9)]
    await queue.all(*[queue.page(each, 3.0) for each in greedy])
    read = await queue.all(
        *[queue.page(each, 3.0) for each in greedy],
        *[queue.page(f"192.0.2.{number}") for number in range(5)],
    )
    assert read[1:6] == [f"page of 192.0.2.{number}" for number in range(5)]


async def test_an_address_whose_reads_take_long_waits_twice_as_long_as_in_order_of_arrival() -> (
    None
):
    """However many others come all the time."""
    queue = Queue()
    await queue.all(queue.page("198.18.0.1", 1.0))
    short = [queue.page(f"192.0.2.{number}", 0.5) for number in range(20)]
    read = await queue.all(*short[:3], queue.page("198.18.0.1", 1.0), *short[3:])
    assert read.index("page of 198.18.0.1") <= 2 * 3


async def test_reads_that_take_about_as_long_go_on_in_order_of_arrival() -> None:
    queue = Queue()
    addresses = [f"192.0.2.{number}" for number in range(9)]
    for _ in range(3):
        reads = [queue.page(each, 3 - number / 9) for number, each in enumerate(addresses)]
        assert await queue.all(*reads) == [f"page of {each}" for each in addresses]


async def test_reads_of_one_address_wait_for_each_other_and_not_in_front_of_others() -> None:
    """Also those of the 256 networks that one household may have with IPv6."""
    queue = Queue(2)
    greedy = [f"2001:db8:1:{number:x}::/64" for number in range(9)]
    read = await queue.all(
        *[queue.page(each) for each in greedy],
        *[queue.page("198.18.0.1") for _ in range(9)],
        queue.page("2001:db8:1:100::/64"),
        queue.page("192.0.2.1"),
    )
    assert len(read) == 20
    assert {"page of 2001:db8:1:100::/64", "page of 192.0.2.1"} <= {*read[:6]}


async def test_a_client_without_an_address_counts_as_one_of_its_own() -> None:
    queue = Queue()
    reads = [queue.page("192.0.2.1"), *[queue.page(None) for _ in range(3)]]
    read = await queue.all(*reads, queue.page("192.0.2.1"))
    assert read == ["page of 192.0.2.1", *["page of None"] * 3, "page of 192.0.2.1"]


async def test_a_read_whose_client_has_left_keeps_nobody_waiting() -> None:
    queue = Queue(2)
    async with asyncio.timeout(ANSWER_S):
        async with queue.turns.of("first"), queue.turns.of("second"):
            gone, given, kept = [asyncio.create_task(queue.page(each)) for each in "abc"]
            await asyncio.sleep(0)
            gone.cancel()
        given.cancel()  # it has its turn, and does not run yet
        await asyncio.wait([gone, given, kept])
        async with queue.turns.of("d"), queue.turns.of("e"):
            assert queue.read == ["page of c"]
