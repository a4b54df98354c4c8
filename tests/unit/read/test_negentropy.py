"""relay/read/negentropy.py: the road of NEG-OPEN, on the reference store. NIPS.md N77, N29-94."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from blockbuster import blockbuster_ctx

from relay.access.visibility import Viewer
from relay.groups.group import Flag, Group, Groups
from relay.nostr import messages
from relay.nostr.filters import FilterTerms
from relay.nostr.messages import NegClose, NegMessage, NegOpen
from relay.read.negentropy import Negentropy, NegentropyQueue
from relay.read.outbox import FlushQueue, Outbox
from relay.state import RelayState
from tests.cast import admin, alice, bob, owner
from tests.contract.writing import unsigned, write
from tests.harness.patience import ANSWER_S
from tests.harness.reference_store import ReferenceStore
from tests.unit.policies.folders import loaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip77 import Items

DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users(
    {admin.pubkey: ("admin",), alice.pubkey: ()}
)
ASK_FOR_ALL = "6100000200"


class Shelf(ReferenceStore):
    """The reference store; the test holds the door of `items`."""

    def __init__(self) -> None:
        super().__init__()
        self.door = asyncio.Event()
        self.door.set()
        self.asked = asyncio.Event()

    async def items(self, *asked: Any, **more: Any) -> Items | None:
        found = await super().items(*asked, **more)
        self.asked.set()
        await self.door.wait()
        return found


@dataclass
class Limits:
    neg_records: int = 100
    neg_sessions: int = 2


class Client:
    """A connection: who reads, and what it was told."""

    def __init__(self, negentropy: Negentropy, *people: SecretKey) -> None:
        self.viewer = Viewer(frozenset(key.pubkey for key in people))
        self.outbox = Outbox(
            self,
            FlushQueue(lambda _: None),
            max_bytes=1 << 30,
            overflow=lambda: pytest.fail("too slow"),
        )
        self.reader = self
        self.said: list[list[Any]] = []
        self.queue = NegentropyQueue(negentropy, self)

    def write(self, data: bytes) -> None:
        while data:
            size, head = data[1], 2
            if size > 125:
                head, size = 4, int.from_bytes(data[2:4])
            self.said.append(orjson.loads(data[head : head + size]))
            data = data[head + size :]

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    async def drained(self) -> None:
        self.outbox.flush()

    def says(self, *frame: object) -> None:
        message = messages.parse(orjson.dumps(frame), FilterTerms(), 10)
        assert isinstance(message, NegOpen | NegMessage | NegClose)
        self.queue.take(message)
        self.outbox.flush()

    async def hears(self) -> list[Any]:
        async with asyncio.timeout(ANSWER_S):
            while not self.said:
                await asyncio.sleep(0)
                self.outbox.flush()
        return self.said.pop(0)


class House:
    def __init__(self, policy: PolicySet, workers: ThreadPoolExecutor) -> None:
        self.shelf = Shelf()
        self.state = RelayState(policy, Groups().with_group(DEN))
        self.limits = Limits()
        self._workers = workers
        self.negentropy = self.negentropy_that_waits(60)
        self.clients: list[Client] = []

    def negentropy_that_waits(self, idle_timeout_s: float) -> Negentropy:
        return Negentropy(
            self.shelf,
            self.state,
            self.limits,
            clock=lambda: 0,
            workers=self._workers,
            idle_timeout_s=idle_timeout_s,
        )

    def client(self, *people: SecretKey) -> Client:
        self.clients.append(Client(self.negentropy, *people))
        return self.clients[-1]

    def removes_alice(self) -> None:
        self.state.adopt(
            self.state.groups.with_group(DEN.without_users({alice.pubkey}, removed_at=1))
        )


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return loaded(tmp_path_factory.mktemp("policies"), actors=f'[actors]\nowners=["{owner.npub}"]')


@pytest.fixture
async def house(policy: PolicySet) -> AsyncIterator[House]:
    with ThreadPoolExecutor(1) as workers, blockbuster_ctx("relay"):
        house = House(policy, workers)
        yield house
        for client in house.clients:
            await client.queue.aclose()


def notes(count: int, **more: Any) -> list[Event]:
    return [unsigned(bob, content=str(n), at=n, **more) for n in range(count)]


def all_of(*events: Event) -> str:
    """A message that lists these ids, oldest first, as the whole set."""
    return f"61000002{len(events):02x}" + "".join(event.id for event in events)


async def test_a_set_is_taken_once_and_asked_as_often_as_wanted(house: House) -> None:
    one, two = notes(2)
    await write(house.shelf, one)
    client = house.client()
    client.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one)]
    await write(house.shelf, two)
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one)]
    client.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one, two)]


@pytest.mark.proves("N77-04", "N77-10")
async def test_a_set_that_is_too_large_is_blocked_and_the_maximum_told(house: House) -> None:
    house.limits.neg_records = 3
    await write(house.shelf, *notes(4))
    client = house.client()
    client.says("NEG-OPEN", "n", {}, "61")
    assert await client.hears() == ["NEG-ERR", "n", "blocked: the set has over 3 records", 3]
    client.says("NEG-OPEN", "n", {"limit": 3}, "61")
    assert await client.hears() == ["NEG-MSG", "n", "61"]


@pytest.mark.proves("N77-10")
async def test_a_connection_has_so_many_sets_open(house: House) -> None:
    client = house.client()
    for sub in ("a", "b", "b"):
        client.says("NEG-OPEN", sub, {}, "61")
        assert await client.hears() == ["NEG-MSG", sub, "61"]
    client.says("NEG-OPEN", "c", {}, "61")
    assert await client.hears() == [
        "NEG-ERR",
        "c",
        "rate-limited: at most 2 open negentropy sessions",
    ]
    client.says("NEG-CLOSE", "a")
    client.says("NEG-OPEN", "c", {}, "61")
    assert await client.hears() == ["NEG-MSG", "c", "61"]


@pytest.mark.proves("N77-10")
async def test_all_connections_together_hold_so_many_records(house: House) -> None:
    house.limits.neg_records = 4
    await write(house.shelf, *notes(4))
    clients = [house.client() for _ in range(5)]
    for client in clients[:4]:
        client.says("NEG-OPEN", "n", {}, "61")
        assert await client.hears() == ["NEG-MSG", "n", "61"]
    last = clients[4]
    busy = ["NEG-ERR", "n", "rate-limited: too many negentropy sessions, try again later"]
    last.says("NEG-OPEN", "n", {}, "61")
    assert await last.hears() == busy
    await clients[0].queue.aclose()  # its connection is gone
    last.says("NEG-OPEN", "n", {}, "61")
    assert await last.hears() == ["NEG-MSG", "n", "61"]
    clients[1].says("NEG-CLOSE", "n")
    clients[2].says("NEG-OPEN", "other", {"ids": []}, "61")
    assert await clients[2].hears() == ["NEG-MSG", "other", "61"]


async def test_the_next_message_waits_for_the_answer(house: House) -> None:
    house.shelf.door.clear()
    client = house.client()
    client.says("NEG-OPEN", "n", {}, "61")
    client.says("NEG-MSG", "n", "61")
    assert await client.hears() == [
        "NEG-ERR",
        "n",
        "rate-limited: wait for the reply before the next message",
    ]
    house.shelf.door.set()
    client.says("NEG-OPEN", "m", {}, "61")
    assert await client.hears() == ["NEG-MSG", "m", "61"]


@pytest.mark.proves("N77-03")
async def test_nothing_follows_a_close(house: House) -> None:
    house.shelf.door.clear()
    client = house.client()
    client.says("NEG-OPEN", "n", {}, "61")
    client.says("NEG-OPEN", "waits", {}, "61")
    await house.shelf.asked.wait()
    client.says("NEG-CLOSE", "n")
    client.says("NEG-CLOSE", "waits")
    house.shelf.door.set()
    client.says("NEG-OPEN", "m", {}, "61")
    assert await client.hears() == ["NEG-MSG", "m", "61"]


@pytest.mark.proves("N77-08", "N77-04")
async def test_who_is_silent_too_long_is_told_so(house: House) -> None:
    house.negentropy = house.negentropy_that_waits(0.01)
    client = house.client()
    client.says("NEG-OPEN", "n", {}, "61")
    assert await client.hears() == ["NEG-MSG", "n", "61"]
    assert await client.hears() == ["NEG-ERR", "n", "closed: no message for 0 s"]
    client.says("NEG-MSG", "n", "61")
    assert await client.hears() == ["NEG-ERR", "n", "closed: unknown subscription handle"]


@pytest.mark.proves("N77-09", "N29-94")
async def test_who_loses_a_right_is_told_so_at_the_next_message(house: House) -> None:
    secret = unsigned(admin, 9, [["h", "den"]])
    await write(house.shelf, secret)
    client = house.client(alice)
    client.says("NEG-OPEN", "n", {"kinds": [9], "#h": ["den"]}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(secret)]
    house.removes_alice()
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    verb, sub, text = await client.hears()
    assert (verb, sub, text.split(":")[0]) == ("NEG-ERR", "n", "restricted")


@pytest.mark.proves("N29-94")
async def test_a_set_is_read_anew_when_rights_are_lost_while_it_is_read(house: House) -> None:
    note = notes(1)[0]
    await write(house.shelf, note, unsigned(admin, 9, [["h", "den"]]))
    client = house.client(alice)
    house.shelf.door.clear()
    client.says("NEG-OPEN", "n", {"kinds": [1, 9]}, ASK_FOR_ALL)
    await house.shelf.asked.wait()
    house.removes_alice()
    house.shelf.door.set()
    assert await client.hears() == ["NEG-MSG", "n", all_of(note)]


async def test_a_store_that_fails_is_our_fault(house: House) -> None:
    await house.shelf.close()
    client = house.client()
    client.says("NEG-OPEN", "n", {}, "61")
    verb, sub, text = await client.hears()
    assert (verb, sub, text.split(":")[0]) == ("NEG-ERR", "n", "error")
