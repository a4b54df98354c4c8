"""relay/storage/read_turns.py: who reads next on a connection that many wait for."""

from __future__ import annotations

import asyncio
from random import Random
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest

from relay.storage.read_turns import ReadTurns
from tests.faults.simulated.loop import SimulatedLoop
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from relay.storage import Verb


class Queue:
    """Reads whose time passes only while they run."""

    def __init__(self, at_once: int = 1) -> None:
        self.now = 100.0
        self.turns = ReadTurns(at_once, lambda: self.now)
        self.read: list[str] = []

    async def page(
        self, address: str | None, seconds: float = 0.01, key: str | None = None
    ) -> None:
        await self._read(address, "REQ", seconds, key)

    async def count(self, address: str | None, seconds: float = 3.0) -> None:
        await self._read(address, "COUNT", seconds)

    async def _read(
        self, address: str | None, verb: Verb, seconds: float, key: str | None = None
    ) -> None:
        async with self.turns.of(address, verb, key):
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


async def test_nothing_is_left_of_reads_whose_clients_leave_before_their_turn() -> None:
    """200,000 of them took 42 MB, for as long as the line was."""
    queue = Queue()
    async with queue.turns.of("192.0.2.1"):
        left = [
            asyncio.create_task(queue.page(address))
            for address in ("192.0.2.1", "192.0.2.2", "192.0.2.2")
        ]
        await asyncio.sleep(0)
        for each in left:
            each.cancel()
        await asyncio.wait(left)
        assert not queue.turns._others._networks
        assert not queue.turns._others._network_of
        assert not any(queue.turns._others._behind.values())
    assert await queue.all(queue.page("192.0.2.1")) == ["page of 192.0.2.1"]


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
        reads = [queue.page(each, 3 - number / 20) for number, each in enumerate(addresses)]
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


@pytest.mark.parametrize("is_known", [False, True])
async def test_an_address_waits_for_one_read_of_each_other_network(*, is_known: bool) -> None:
    """16 networks with 64 addresses each made the short reads of others wait for 1,000."""

    def page(network: int, number: int) -> Coroutine[None, None, None]:
        key = f"{network}.{number}" if is_known else None
        return queue.page(f"198.18.{network}.{number}", key=key)

    queue = Queue()
    others = [page(network, number) for number in range(16) for network in range(4)]
    read = await queue.all(*others, queue.page("192.0.2.1", key="own" if is_known else None))
    assert read.index("page of 192.0.2.1") <= 4 + 4


def test_who_reads_all_the_time_waits_for_one_read_of_each_other_network() -> None:
    """Also if its reads take as long as theirs."""
    others = [
        Client(f"198.18.{network}.{number}", repeated(0.01))
        for network in range(4)
        for number in range(64)
    ]
    waited = waits(Client("192.0.2.1", repeated(0.01), 0.1), others, for_s=60.0)
    assert waited.longest <= 4 * 2 * 0.01


def test_in_a_network_nobody_waits_for_long_behind_new_addresses_with_short_reads() -> None:
    """Though the network has every turn that goes to the one whose reads cost others least."""
    own, others = "198.18.0.1", [Client("192.0.2.1", repeated(10.0))]
    quick = [Client(f"198.18.0.{each}", repeated(0.5)) for each in range(2, 40)]
    waited = waits(Client(own, repeated(3.0), 1.0), [*others, *quick], for_s=20_000.0)
    assert waited.longest <= 2 * 39 * (10.0 + 0.5) * 2


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


class Client(NamedTuple):
    """Its reads follow each other."""

    address: str
    reads: Iterator[float]
    """Seconds that each takes."""
    rest_s: float = 0.002
    """Between two reads."""
    key: str | None = None
    """`{}`: the number of the read."""
    verb: Verb = "REQ"
    is_owner: bool = False


def repeated(*seconds: float) -> Iterator[float]:
    while True:
        yield from seconds


def waits(modest: Client, others: list[Client], at_once: int = 1, for_s: float = 2000.0) -> Waits:
    """What reads of `modest`, which has read before the others come, wait in virtual time."""

    async def all_read() -> Waits:
        loop = asyncio.get_running_loop()
        turns = ReadTurns(at_once, loop.time)
        waited: list[float] = []

        async def read(client: Client, number: int) -> float:
            began = loop.time()
            key = client.key and client.key.format(number)
            async with turns.of(client.address, client.verb, key, is_owner=client.is_owner):
                waited_s = loop.time() - began
                await asyncio.sleep(next(client.reads))
            await asyncio.sleep(client.rest_s)
            return waited_s

        async def read_on(client: Client) -> None:
            number = 0
            while True:
                number += 1
                await read(client, number)

        await read(modest, 0)
        tasks = [asyncio.create_task(read_on(each)) for each in others]
        while loop.time() < for_s:
            waited.append(await read(modest, len(waited) + 1))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return Waits(median(waited), max(waited))

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(Random(1))) as runner:
        return runner.run(all_read())


class Waits(NamedTuple):
    median: float
    longest: float


@pytest.mark.parametrize("own_s", [0.1, 0.5])
@pytest.mark.parametrize("quick", [0, 3, 7])
@pytest.mark.parametrize("number", [12, 60])
def test_short_reads_wait_for_one_or_two_long_ones(number: int, quick: int, own_s: float) -> None:
    """Quick reads between the long ones made an address count as quick, which then was first with
    its next long one: 60 of them kept others waiting for 10 minutes. From their first read on."""
    others = [
        Client(f"198.18.0.{each}", repeated(10.0, *[0.012] * quick)) for each in range(number)
    ]
    waited = waits(Client("192.0.2.1", repeated(own_s), 3.0), others)
    assert waited.median <= 10.0
    assert waited.longest <= 20.0


@pytest.mark.parametrize("rest_s", [60.0, 180.0])
def test_who_rests_or_waits_between_long_reads_is_not_as_good_as_new(rest_s: float) -> None:
    others = [
        Client(f"198.18.0.{each}", repeated(10.0, *[0.012] * 3), rest_s / 4) for each in range(60)
    ]
    waited = waits(Client("192.0.2.1", repeated(0.5), 3.0), others)
    assert waited.median <= 10.0
    assert waited.longest <= 20.0


def test_a_long_read_is_forgotten_within_the_hour() -> None:
    long_once = Client("192.0.2.1", iter([10.0, *[0.1] * 9]), 3600.0)
    others = [Client(f"198.18.0.{each}", repeated(10.0)) for each in range(60)]
    assert waits(long_once, others, for_s=8 * 3600.0).median <= 10.0


@pytest.mark.parametrize("number", [250, 500])
def test_short_reads_wait_for_some_of_a_tenth_second_if_two_go_on_at_once(number: int) -> None:
    """As on PostgreSQL, where these waited 5 to 10 s. While the others are new, they may wait
    longer."""
    others = [Client(f"198.18.{each}.0", repeated(0.1, *[0.002] * 4)) for each in range(number)]
    waited = waits(Client("192.0.2.1", repeated(0.02), 3.0), others, at_once=2, for_s=30.0)
    assert waited.median <= 0.1
    assert waited.longest <= 1.0


@pytest.mark.parametrize("seconds", [0.2, 0.3])
def test_of_turns_at_once_each_count_owes_its_time_to_other_reads(seconds: float) -> None:
    """Of four that began at once one was paid back: members waited 1.4 and 1.9 s."""
    counting = [
        Client(f"198.18.{number % 16}.{number}", repeated(seconds), verb="COUNT")
        for number in range(128)
    ]
    members = [Client(f"192.0.{number}.1", repeated(0.06), 1.0) for number in range(60)]
    modest = Client("203.0.113.1", repeated(0.06), 1.0)
    assert waits(modest, [*counting, *members], at_once=4, for_s=60.0).median <= 0.3


async def test_while_other_reads_wait_one_of_several_turns_is_a_count() -> None:
    turns, begun = ReadTurns(4), list[str]()
    may_end = asyncio.Event()

    async def read(address: str, verb: Verb) -> None:
        async with turns.of(address, verb):
            begun.append(verb)
            await may_end.wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(read(f"198.18.{number}.1", "REQ"))
        await asyncio.sleep(0)
        for number in range(9):
            tasks.create_task(read(f"203.0.{number}.1", "COUNT"))
        for number in range(9):
            tasks.create_task(read(f"192.0.{number}.1", "REQ"))
        await asyncio.sleep(0)
        begun.clear()
        may_end.set()
        may_end.clear()
        for _ in range(9):
            await asyncio.sleep(0)
        assert sorted(begun) == ["COUNT", "REQ", "REQ", "REQ"]
        may_end.set()
    assert begun.count("COUNT") == 9


def test_who_has_read_before_waits_for_one_or_two_of_60_new_addresses_that_come_all_the_time() -> (
    None
):
    """Only others that are new wait for the first reads of all."""
    others = [Client(f"198.18.0.{each}", repeated(10.0)) for each in range(60)]
    waited = waits(Client("192.0.2.1", repeated(0.1), 3.0), others, for_s=600.0)
    assert waited.longest <= 20.0


@pytest.mark.parametrize("verb", ["REQ", "COUNT"])
@pytest.mark.parametrize("address", ["198.18.0.1", "192.0.2.1"])
def test_members_wait_for_one_or_two_counts_of_one_member_however_many_it_sends(
    address: str, verb: Verb
) -> None:
    """40 COUNTs of 10 s from one address made the slow reads of all members take minutes. Also of
    those with the same address, as behind a proxy that does not tell them apart."""
    greedy = [Client("198.18.0.1", repeated(10.0), key="greedy", verb="COUNT") for _ in range(40)]
    modest = Client(address, repeated(0.5), 3.0, "modest", verb)
    waited = waits(modest, greedy)
    assert waited.median <= 10.0
    assert waited.longest <= 20.0


def test_one_key_has_one_turn_however_many_addresses_it_has() -> None:
    greedy = [Client(f"198.18.0.{each}", repeated(10.0), key="greedy") for each in range(40)]
    assert waits(Client("192.0.2.1", repeated(5.0), 3.0, "long"), greedy).longest <= 20.0


def test_a_new_key_is_what_its_address_is() -> None:
    """A member may have a new one for each read."""
    greedy = [Client("198.18.0.1", repeated(10.0), key=f"{each}.{{}}") for each in range(40)]
    new = Client("192.0.2.1", repeated(0.5), 3.0, "new {}")
    waited = waits(new, greedy)
    assert waited.median <= 10.0
    assert waited.longest <= 20.0


def test_owners_go_first_for_half_of_the_time_whatever_they_have_read() -> None:
    others = [Client(f"198.18.0.{each}", repeated(1.0), 1.0, f"{each}") for each in range(60)]
    owner = Client("192.0.2.1", repeated(5.0), key="owner", is_owner=True)
    assert waits(owner, others).longest <= 8.0
    other = Client("192.0.2.2", repeated(9.0), 1.0, "owner")  # with one of its keys only
    assert waits(owner, [*others, other]).longest <= 9.0 + 8.0


def test_an_account_whose_read_took_long_is_expected_to_read_long_again() -> None:
    queue = Queue()
    assert not queue.turns.expects_long("192.0.2.1", "key")
    queue.turns.note_long("192.0.2.1", "key")
    assert queue.turns.expects_long("192.0.2.1", "key")
    assert queue.turns.expects_long("198.51.100.1", "key"), "from another address, too"
    assert queue.turns.expects_long("192.0.2.1", "new key"), "a member may have any number"
    assert not queue.turns.expects_long("192.0.2.2", "other")
    queue.now += 181
    assert not queue.turns.expects_long("192.0.2.1", "key")


async def test_long_reads_of_a_network_are_expected_of_its_new_accounts_alone() -> None:
    """An office may have one network, and its members read quickly."""
    queue = Queue()
    await queue.all(queue.page("192.0.2.99", key="member"))
    for number in range(4):
        assert not queue.turns.expects_long("192.0.2.100", None)
        queue.turns.note_long(f"192.0.2.{number}", f"key {number}")
    assert queue.turns.expects_long("192.0.2.100", None)
    assert not queue.turns.expects_long("192.0.2.99", "member")
    assert not queue.turns.expects_long("198.51.100.1", None)


def test_the_accounts_whose_long_reads_are_remembered_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.storage.read_turns._MAX_RECORDS", 5)
    queue = Queue()
    for number in range(9):
        queue.turns.note_long(f"192.0.{number}.1", None)
    assert len(queue.turns._long) == 5
    assert queue.turns.expects_long("192.0.8.1", None)
    queue.turns.note_long(None, None)
    assert not queue.turns.expects_long(None, None)
