"""relay/read/negentropy.py: NEG-OPEN, on the reference store. N77, N29-94."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from blockbuster import blockbuster_ctx

from relay.errors import TooSlow
from relay.groups.actions import Flag
from relay.groups.key_map import OrderedMap
from relay.nostr import messages
from relay.nostr.filters import FilterTerms
from relay.nostr.messages import NegClose, NegMessage, NegOpen
from relay.read import negentropy as module
from relay.read.negentropy import Negentropy, NegentropyQueue
from tests.cast import admin, alice, bob, owner, stranger
from tests.contract.writing import unsigned
from tests.harness.client_in_memory import Client
from tests.harness.patience import ANSWER_S
from tests.harness.read_side import DEN, ReadSide
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policies import PolicySet
    from relay.groups.group import Group
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip77 import Items

ASK_FOR_ALL = "6100000200"


class NegentropyClient(Client):
    def __init__(self, negentropy: Negentropy, *keys: SecretKey, at: str | None) -> None:
        super().__init__(*keys, counted_as=at)
        self.queue = NegentropyQueue(negentropy, self)

    async def drained(self) -> None:
        self.outbox.flush()

    def says(self, *frame: object) -> None:
        message = messages.parse(orjson.dumps(frame), FilterTerms(), 10)
        assert isinstance(message, NegOpen | NegMessage | NegClose)
        self.queue.take(message)
        self.outbox.flush()

    async def hears(self) -> list[Any]:
        """The next frame."""
        async with asyncio.timeout(ANSWER_S):
            while not self.received:
                await asyncio.sleep(0)
                self.outbox.flush()
        return self.received.pop(0)


class NegentropySide(ReadSide):
    def __init__(self, policy: PolicySet, workers: ThreadPoolExecutor) -> None:
        super().__init__(policy)
        self._workers = workers
        self._may_compare = threading.Event()
        self.negentropy = self.negentropy_that_waits(60)
        self.clients: list[NegentropyClient] = []

    def negentropy_that_waits(self, idle_timeout_s: float) -> Negentropy:
        return Negentropy(
            self.store,
            self.state,
            self.limits,
            clock=lambda: 0,
            workers=self._workers,
            idle_timeout_s=idle_timeout_s,
        )

    def stop_comparing(self) -> None:
        """Until `go_on`, nothing is answered."""
        self._workers.submit(self._may_compare.wait, ANSWER_S)

    def go_on(self) -> None:
        self._may_compare.set()

    @property
    def comparing(self) -> int:
        """Messages for a thread, which is not free."""
        return self._workers._work_queue.qsize()

    def client(self, *actors: SecretKey, at: str | None = None) -> NegentropyClient:
        self.clients.append(NegentropyClient(self.negentropy, *actors, at=at))
        return self.clients[-1]


@pytest.fixture
async def relay(policy: PolicySet) -> AsyncIterator[NegentropySide]:
    with ThreadPoolExecutor(1) as workers, blockbuster_ctx("relay"):
        relay = NegentropySide(policy, workers)
        yield relay
        for client in relay.clients:
            await client.queue.aclose()


def notes(count: int, **more: Any) -> list[Event]:
    return [unsigned(bob, content=str(n), at=n, **more) for n in range(count)]


def all_of(*events: Event) -> str:
    """A message that lists these ids, oldest first, as the whole set."""
    return f"61000002{len(events):02x}" + "".join(event.id for event in events)


async def test_a_snapshot_is_taken_once_and_answers_any_number_of_messages(
    relay: NegentropySide,
) -> None:
    one, two = notes(2)
    await relay.write(one)
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one)]
    await relay.write(two)
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one)]
    client.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(one, two)]


@pytest.mark.parametrize("message", [ASK_FOR_ALL, "61" + "01"])
async def test_after_a_long_message_none_is_compared_for_as_long_as_it_took(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """Also after one that is malformed at its end."""
    pauses: list[float] = []
    sleep, took = asyncio.sleep, 1000.0

    async def pause(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
            monkeypatch.setattr(relay.negentropy, "_rests_until", 0.0)
        await sleep(0)

    times = count()
    monkeypatch.setattr(module, "thread_time", lambda: took * next(times))
    monkeypatch.setattr(asyncio, "sleep", pause)
    client, other = relay.client(), relay.client(owner)
    client.says("NEG-OPEN", "n", {}, message)
    await client.hears()
    assert pauses == []
    other.says("NEG-OPEN", "n", {}, "61")
    assert await other.hears() == ["NEG-MSG", "n", "61"]
    (rest,) = pauses
    assert took / 2 < rest <= took


async def test_a_snapshot_is_read_in_a_turn_of_its_connection(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients whose filters had 75,000 values each made every write wait for 0.2 s."""
    client, turns, may_read = relay.client(), list[float](), asyncio.Event()

    async def turn(seconds: float) -> None:
        turns.append(seconds)
        await may_read.wait()

    monkeypatch.setattr(client, "turn", turn)
    client.says("NEG-OPEN", "many", {"#t": [f"{n}" for n in range(10_000)]}, "61")
    client.says("NEG-OPEN", "few", {"#t": ["1"]}, "61")
    await eventually("the first waits for its turn", lambda: len(turns) == 1)
    assert not relay.store.items_called.is_set()
    client.says("NEG-CLOSE", "many")
    may_read.set()
    assert await client.hears() == ["NEG-MSG", "few", "61"]
    client.says("NEG-MSG", "few", "61")
    assert await client.hears() == ["NEG-MSG", "few", "61"]
    many, few = turns
    assert many > 50 * few
    assert relay.negentropy.held == 0


@pytest.mark.proves("N77-04", "N77-10")
async def test_a_set_that_is_too_large_is_blocked_with_the_maximum(
    relay: NegentropySide,
) -> None:
    relay.limits.neg_records = 3
    await relay.write(*notes(4))
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    assert await client.hears() == ["NEG-ERR", "n", "blocked: more than 3 records match", 3]
    client.says("NEG-OPEN", "n", {"limit": 3}, "61")
    assert await client.hears() == ["NEG-MSG", "n", "61"]


async def test_a_set_that_takes_too_long_to_read_is_refused_as_one_that_is_too_large(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a client asks in halves of the time."""

    async def takes_too_long(*_asked: Any, **_more: Any) -> Items:
        raise TooSlow

    monkeypatch.setattr(relay.store, "items", takes_too_long)
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    frame, _, text = await client.hears()
    assert frame == "NEG-ERR"
    assert text.startswith("blocked: this query takes too long")
    assert relay.negentropy.held == 0


@pytest.mark.proves("N77-10")
async def test_neg_sessions_is_enforced(relay: NegentropySide) -> None:
    client = relay.client()
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
async def test_records_of_all_connections_are_bounded(relay: NegentropySide) -> None:
    relay.limits.neg_records = 4
    await relay.write(*notes(4))
    clients = [relay.client(alice) for _ in range(5)]
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


async def test_unknown_keys_leave_a_snapshot_and_places_in_the_queue_to_known_ones(
    relay: NegentropySide,
) -> None:
    relay.limits.neg_records = 4
    await relay.write(*notes(4))
    busy = ["NEG-ERR", "n", "rate-limited: too many negentropy sessions, try again later"]
    found = ["NEG-MSG", "n", "61"]
    for actors, at, answer in (
        ((), "192.0.2.1", found),
        ((stranger,), "192.0.2.1", busy),
        ((), "192.0.2.2", found),
        ((), "192.0.2.3", found),
        ((), "192.0.2.4", busy),
        ((stranger,), "192.0.2.5", busy),
        ((alice,), "192.0.2.5", found),
        ((admin,), "192.0.2.6", busy),
        ((owner,), "192.0.2.6", found),
    ):
        client = relay.client(*actors, at=at)
        client.says("NEG-OPEN", "n", {}, "61")
        assert await client.hears() == answer
    stranger_, other, known = (
        relay.client(at="192.0.2.1"),
        relay.client(at="192.0.2.2"),
        relay.client(alice, at="192.0.2.1"),
    )
    for _ in range(16):
        relay.negentropy.count_queued(stranger_)
    is_busy = relay.negentropy.is_busy
    assert [is_busy(each) for each in (stranger_, other, known)] == [True, False, False]
    for number in range(32):
        relay.negentropy.count_queued(relay.client(at=f"192.0.2.{number // 16 + 3}"))
    for _ in range(4):
        assert not is_busy(other)
        relay.negentropy.count_queued(other)
    assert [is_busy(each) for each in (stranger_, other, known)] == [True, True, False]


async def test_messages_that_wait_keep_out_nobody_who_has_few(relay: NegentropySide) -> None:
    """They wait as long as their client does not read: those of three addresses were all."""
    for number in range(3):
        client = relay.client(alice, at=f"2001:db8:0:{number}00::/64")
        while not relay.negentropy.is_busy(client):
            relay.negentropy.count_queued(client)
    household = relay.client(alice, at="2001:db8:0:1::/64")
    assert relay.negentropy.is_busy(household)
    for late in (relay.client(admin, at="192.0.2.1"), relay.client(at="192.0.2.2")):
        for _ in range(4):
            assert not relay.negentropy.is_busy(late)
            relay.negentropy.count_queued(late)
        assert relay.negentropy.is_busy(late)


async def test_what_is_answered_is_not_queued_even_if_the_client_does_not_read(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sent 16 again, as many as it may, was sometimes refused the last."""
    client, unread = relay.client(at="192.0.2.1"), asyncio.Event()
    monkeypatch.setattr(client, "drained", unread.wait)
    for _ in range(15):
        relay.negentropy.count_queued(client)
    client.says("NEG-OPEN", "n", {}, "61")
    assert await client.hears() == ["NEG-MSG", "n", "61"]
    assert not relay.negentropy.is_busy(client)
    unread.set()


async def test_members_of_one_address_leave_room_to_others(relay: NegentropySide) -> None:
    relay.limits.neg_records = 4
    await relay.write(*notes(4))
    answers = []
    for at in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"):
        client = relay.client(alice, at=at)
        client.says("NEG-OPEN", "n", {}, "61")
        answers.append((await client.hears())[0])
    assert answers == ["NEG-MSG", "NEG-MSG", "NEG-ERR", "NEG-MSG"]


async def test_who_holds_most_gives_up_a_set_for_an_address_with_none(
    relay: NegentropySide,
) -> None:
    """One key at three addresses kept out all other members."""
    relay.limits.neg_records, relay.limits.neg_sessions = 4, 16
    await relay.write(*notes(4))
    first, second, third = (relay.client(alice, at=f"192.0.2.{n}") for n in (1, 2, 3))
    late = relay.client(admin, at="192.0.2.4")
    for client, sub in ((first, "a"), (first, "b"), (second, "a"), (third, "a")):
        client.says("NEG-OPEN", sub, {}, "61")
        assert await client.hears() == ["NEG-MSG", sub, "61"]
    first.says("NEG-MSG", "a", "61")
    assert await first.hears() == ["NEG-MSG", "a", "61"]
    late.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    verb, _, message = await late.hears()
    assert (verb, message) == ("NEG-MSG", all_of(*notes(4)))
    gone = "closed: others need the memory, and your address has most of it; try again later"
    assert await first.hears() == ["NEG-ERR", "b", gone]
    assert relay.negentropy.held == 16
    busy = "rate-limited: too many negentropy sessions, try again later"
    for client in (first, second, late, relay.client(at="192.0.2.5")):
        client.says("NEG-OPEN", "more", {}, "61")
        assert await client.hears() == ["NEG-ERR", "more", busy]
    first.says("NEG-MSG", "b", "61")
    assert await first.hears() == ["NEG-ERR", "b", "closed: unknown subscription handle"]
    for client in (first, second, third):
        client.says("NEG-MSG", "a", "61")
        assert await client.hears() == ["NEG-MSG", "a", "61"]


async def test_all_networks_of_a_household_hold_sets_as_one_address(relay: NegentropySide) -> None:
    relay.limits.neg_records = 4
    await relay.write(*notes(4))
    answers = []
    for number in range(3):
        client = relay.client(alice, at=f"2001:db8:0:{number}::/64")
        client.says("NEG-OPEN", "n", {}, "61")
        answers.append((await client.hears())[0])
    assert answers == ["NEG-MSG", "NEG-MSG", "NEG-ERR"]


async def test_unknown_keys_too_give_up_sets_for_each_other_and_owners_for_nobody(
    relay: NegentropySide,
) -> None:
    relay.limits.neg_records, relay.limits.neg_sessions = 4, 16
    await relay.write(*notes(4))
    root = relay.client(owner, at="192.0.2.1")
    for number in range(4):
        root.says("NEG-OPEN", f"{number}", {}, "61")
        assert (await root.hears())[0] == "NEG-MSG"
    known = relay.client(admin, at="192.0.2.2")
    known.says("NEG-OPEN", "n", {"limit": 1}, "61")
    assert (await known.hears())[0] == "NEG-ERR"
    await root.queue.aclose()
    many, few = relay.client(at="192.0.2.3"), relay.client(at="192.0.2.4")
    for sub, limit in (("a", 2), ("b", 2)):
        many.says("NEG-OPEN", sub, {"limit": limit}, "61")
        assert (await many.hears())[0] == "NEG-MSG"
    for number in (5, 6):
        client = relay.client(at=f"192.0.2.{number}")
        client.says("NEG-OPEN", "n", {}, "61")
        assert (await client.hears())[0] == "NEG-MSG"
    few.says("NEG-OPEN", "n", {"limit": 2}, "61")
    assert (await few.hears())[0] == "NEG-MSG"
    assert (await many.hears())[:2] == ["NEG-ERR", "a"]
    assert relay.negentropy.held == 12


async def test_a_set_is_not_closed_while_a_message_is_compared_with_it(
    relay: NegentropySide,
) -> None:
    """But others of its address are, also with messages in the queue: else who sends some all the
    time would never give up any."""
    relay.limits.neg_records, relay.limits.neg_sessions = 4, 16
    await relay.write(*notes(4))
    first, again = relay.client(alice, at="192.0.2.1"), relay.client(alice, at="192.0.2.1")
    others = [relay.client(alice, at=f"192.0.2.{n}") for n in (2, 3)]
    late = relay.client(admin, at="192.0.2.4")
    for client in (first, again, *others):
        client.says("NEG-OPEN", "n", {}, "61")
        assert (await client.hears())[0] == "NEG-MSG"
    relay.stop_comparing()
    first.says("NEG-MSG", "n", ASK_FOR_ALL)
    again.says("NEG-MSG", "n", ASK_FOR_ALL)
    late.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    assert (await again.hears())[:2] == ["NEG-ERR", "n"]
    assert relay.negentropy.held == 16
    relay.go_on()
    assert await first.hears() == ["NEG-MSG", "n", all_of(*notes(4))]
    assert await late.hears() == ["NEG-MSG", "n", all_of(*notes(4))]


async def test_sets_that_one_member_has_read_keep_nobody_out(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reserved while sets are read was all that there is, also if nothing is found."""
    relay.limits.neg_records = 4
    await relay.write(*notes(4))
    asked, items = list[bool](), relay.store.items

    async def noted(filter_: Filter, *given: Any, **more: Any) -> Items | None:
        asked.append(filter_.kinds is None)
        return await items(filter_, *given, **more)

    monkeypatch.setattr(relay.store, "items", noted)
    relay.store.may_give_items.clear()
    for _ in range(8):
        client = relay.client(alice, at="192.0.2.1")
        client.says("NEG-OPEN", "n", {"kinds": [4]}, "61")
    for client in (relay.client(at="192.0.2.2"), relay.client(admin, at="192.0.2.3")):
        client.says("NEG-OPEN", "n", {}, "61")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(asked) == 2
    relay.store.may_give_items.set()
    for client in relay.clients:
        assert await client.hears() == ["NEG-MSG", "n", "61"]
    assert sorted(asked[:3]) == [False, True, True], "others need not wait for all of one address"


async def test_a_known_key_waits_for_at_most_one_snapshot_of_unknown_ones(
    relay: NegentropySide,
) -> None:
    relay.store.may_give_items.clear()
    reads = relay.store.items_asked
    for _ in range(5):
        relay.client().says("NEG-OPEN", "n", {}, "61")
    relay.client(owner).says("NEG-OPEN", "n", {}, "61")
    for _ in range(20):
        await asyncio.sleep(0)
    assert relay.store.items_asked - reads == 2
    relay.store.may_give_items.set()
    assert await relay.clients[-1].hears() == ["NEG-MSG", "n", "61"]
    for client in relay.clients[:-1]:
        assert await client.hears() == ["NEG-MSG", "n", "61"]


async def test_who_leaves_during_a_comparison_keeps_the_turn_until_its_thread_is_free(
    relay: NegentropySide,
) -> None:
    """Else unknown keys occupy all threads."""
    await relay.write(*notes(1))
    first, second = relay.client(at="192.0.2.1"), relay.client(at="192.0.2.2")
    for client in (first, second):
        client.says("NEG-OPEN", "n", {}, "61")
        assert (await client.hears())[0] == "NEG-MSG"
    relay.stop_comparing()
    await eventually("the thread is busy", lambda: relay.comparing == 0)
    first.says("NEG-MSG", "n", ASK_FOR_ALL)
    await eventually("it is to be compared", lambda: relay.comparing == 1)
    leaving = asyncio.ensure_future(first.queue.aclose())
    second.says("NEG-MSG", "n", ASK_FOR_ALL)
    for _ in range(20):
        await asyncio.sleep(0)
    assert relay.comparing == 1
    relay.go_on()
    assert await second.hears() == ["NEG-MSG", "n", all_of(*notes(1))]
    await leaving


async def test_one_message_of_known_keys_is_compared_at_a_time(relay: NegentropySide) -> None:
    """Two of 500 kB left the loop a third of the interpreter."""
    await relay.write(*notes(1))
    members = [relay.client(alice, at=f"192.0.2.{number}") for number in (1, 2)]
    for client in members:
        client.says("NEG-OPEN", "n", {}, "61")
        assert (await client.hears())[0] == "NEG-MSG"
    relay.stop_comparing()
    await eventually("the thread is busy", lambda: relay.comparing == 0)
    for client in members:
        client.says("NEG-MSG", "n", ASK_FOR_ALL)
    await eventually("one is to be compared", lambda: relay.comparing == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert relay.comparing == 1
    relay.go_on()
    for client in members:
        assert await client.hears() == ["NEG-MSG", "n", all_of(*notes(1))]


async def test_a_message_before_the_reply_is_refused(relay: NegentropySide) -> None:
    relay.store.may_give_items.clear()
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    client.says("NEG-MSG", "n", "61")
    assert await client.hears() == [
        "NEG-ERR",
        "n",
        "rate-limited: wait for the reply before the next message",
    ]
    relay.store.may_give_items.set()
    client.says("NEG-OPEN", "m", {}, "61")
    assert await client.hears() == ["NEG-MSG", "m", "61"]


@pytest.mark.proves("N77-03")
async def test_nothing_is_sent_after_neg_close(relay: NegentropySide) -> None:
    relay.store.may_give_items.clear()
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    client.says("NEG-OPEN", "waits", {}, "61")
    await relay.store.items_called.wait()
    client.says("NEG-CLOSE", "n")
    client.says("NEG-CLOSE", "waits")
    relay.store.may_give_items.set()
    client.says("NEG-OPEN", "m", {}, "61")
    assert await client.hears() == ["NEG-MSG", "m", "61"]


@pytest.mark.proves("N77-08", "N77-04")
async def test_an_idle_session_is_closed(relay: NegentropySide) -> None:
    relay.negentropy = relay.negentropy_that_waits(0.01)
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    assert await client.hears() == ["NEG-MSG", "n", "61"]
    assert await client.hears() == ["NEG-ERR", "n", "closed: no message for 0 s"]
    client.says("NEG-MSG", "n", "61")
    assert await client.hears() == ["NEG-ERR", "n", "closed: unknown subscription handle"]


@pytest.mark.proves("N77-09", "N29-94")
async def test_a_lost_right_ends_the_session_at_the_next_message(relay: NegentropySide) -> None:
    secret = unsigned(admin, 9, [["h", "den"]])
    await relay.write(secret)
    client = relay.client(alice)
    client.says("NEG-OPEN", "n", {"kinds": [9], "#h": ["den"]}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(secret)]
    await relay.remove_alice()
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    verb, sub, text = await client.hears()
    assert (verb, sub, text.split(":")[0]) == ("NEG-ERR", "n", "restricted")


@pytest.mark.proves("N29-94")
async def test_a_snapshot_is_read_again_when_rights_are_lost_during_the_read(
    relay: NegentropySide,
) -> None:
    note = notes(1)[0]
    await relay.write(note, unsigned(admin, 9, [["h", "den"]]))
    client = relay.client(alice)
    relay.store.may_give_items.clear()
    client.says("NEG-OPEN", "n", {"kinds": [1, 9]}, ASK_FOR_ALL)
    await relay.store.items_called.wait()
    await relay.remove_alice()
    relay.store.may_give_items.set()
    assert await client.hears() == ["NEG-MSG", "n", all_of(note)]


@pytest.mark.proves("N77-09", "N29-94")
async def test_a_group_that_was_public_during_the_read_only_ends_the_session(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may have read its rows with the rights of that time."""
    hidden = replace(DEN, flags=DEN.flags | {Flag.HIDDEN})
    note, secret = notes(1)[0], unsigned(admin, 9, [["h", "den"]], at=1)
    await relay.write(note, secret)
    relay.replace_den(hidden)
    client = relay.client()
    items = relay.store.items

    async def public_meanwhile(filter_: Filter, _: object, **more: Any) -> Any:
        relay.replace_den(replace(DEN, flags=frozenset()))
        return await items(filter_, relay.state.visibility(client.reader.viewer), **more)

    monkeypatch.setattr(relay.store, "items", public_meanwhile)
    client.says("NEG-OPEN", "n", {"kinds": [1, 9]}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(note, secret)]
    relay.replace_den(hidden)
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    assert (await client.hears())[0] == "NEG-ERR"


@pytest.mark.proves("N29-94")
async def test_a_snapshot_is_read_again_when_groups_changed_more_than_once_during_the_read(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may have been public for a moment, and the store read its rows then."""
    await relay.write(note := notes(1)[0])
    client, read = relay.client(), 0
    items = relay.store.items

    async def counted(*args: Any, **more: Any) -> Any:
        nonlocal read
        read += 1
        return await items(*args, **more)

    monkeypatch.setattr(relay.store, "items", counted)
    relay.store.may_give_items.clear()
    client.says("NEG-OPEN", "n", {"kinds": [1, 9]}, ASK_FOR_ALL)
    await relay.store.items_called.wait()
    relay.replace_den(replace(DEN, flags=frozenset()))
    relay.replace_den(DEN)
    relay.store.may_give_items.set()
    assert await client.hears() == ["NEG-MSG", "n", all_of(note)]
    assert read == 2


@pytest.mark.proves("N77-09", "N29-94")
@pytest.mark.parametrize(
    ("asked", "reader", "goes_on"),
    [
        ({"kinds": [1]}, stranger, True),
        ({"kinds": [1, 9]}, stranger, False),
        ({"kinds": [1, 30078]}, stranger, False),
        ({"kinds": [1, 30078]}, owner, True),
    ],
)
async def test_a_group_that_turns_private_ends_only_sets_that_may_have_rows_of_it(
    relay: NegentropySide, asked: dict[str, object], reader: SecretKey, *, goes_on: bool
) -> None:
    """Whoever turned an own group private and public again ended what all others compared. What is
    said of memory (30078) may be readable like a row of a group."""
    public = replace(DEN, flags=frozenset())
    note, said = notes(1)[0], unsigned(admin, 9, [["h", "den"]], at=1)
    await relay.write(note, said)
    relay.replace_den(public)
    client = relay.client(reader)
    client.says("NEG-OPEN", "n", asked, ASK_FOR_ALL)
    assert (await client.hears())[0] == "NEG-MSG"
    for _ in range(3):
        relay.replace_den(DEN)
        relay.replace_den(public)
    relay.replace_den(DEN)
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    frame = await client.hears()
    if goes_on:
        assert frame == ["NEG-MSG", "n", all_of(note)]
    else:
        assert frame == [
            "NEG-ERR",
            "n",
            "restricted: your read rights have changed, send NEG-OPEN again",
        ]


async def test_a_group_that_no_row_is_of_turns_private_during_a_read_that_counts(
    relay: NegentropySide,
) -> None:
    await relay.write(note := notes(1)[0])
    relay.replace_den(replace(DEN, flags=frozenset()))
    client = relay.client()
    relay.store.may_give_items.clear()
    client.says("NEG-OPEN", "n", {"kinds": [1]}, ASK_FOR_ALL)
    await relay.store.items_called.wait()
    relay.store.items_called.clear()
    relay.replace_den(DEN)
    relay.store.may_give_items.set()
    assert await client.hears() == ["NEG-MSG", "n", all_of(note)]
    assert not relay.store.items_called.is_set()


async def test_an_open_id_does_not_keep_its_filter(relay: NegentropySide) -> None:
    """100 MB of filters without results were 380 MB of memory until their ids were closed."""
    client = relay.client()
    client.says("NEG-OPEN", "n", {"#t": ["a" * 100_000]}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of()]
    (exchange,) = client.queue._open.values()
    assert exchange.filter is None
    client.says("NEG-MSG", "n", ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of()]


async def test_a_refused_id_does_not_keep_its_filter_while_its_client_reads_nothing(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = relay.client()
    monkeypatch.setattr(client, "drained", asyncio.Event().wait)
    client.says("NEG-OPEN", "n", {"kinds": [30093]}, ASK_FOR_ALL)
    filter_ = client.queue._open["n"].filter
    assert (await client.hears())[0] == "NEG-ERR"
    await asyncio.sleep(0)
    gc.collect()
    assert sys.getrefcount(filter_) == 2


def with_another_member(group: Group, number: int) -> Group:
    return replace(group, members=OrderedMap({**group.members, f"{number:064x}": ()}))


async def test_open_ids_do_not_keep_the_groups_of_their_time(relay: NegentropySide) -> None:
    """Each would have another state of a group with thousands of members, 190 kB of memory."""
    client = relay.client(alice)
    relay.limits = replace(relay.limits, neg_sessions=400)
    relay.negentropy.limits = relay.limits
    for number in range(300):
        relay.replace_den(with_another_member(DEN, number))
        client.says("NEG-OPEN", f"{number}", {}, ASK_FOR_ALL)
        assert await client.hears() == ["NEG-MSG", f"{number}", all_of()]
    snapshots = [exchange.snapshot for exchange in client.queue._open.values()]
    states = {id(each.visibility.groups) for each in snapshots if each is not None}
    assert len(snapshots) == 300
    assert len(states) < 80
    client.says("NEG-MSG", "0", ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "0", all_of()]


async def test_open_ids_are_renewed_in_pieces(
    relay: NegentropySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NEG-OPEN of anybody renewed a thirty-second of all: 60 ms with 5,000."""
    monkeypatch.setattr("relay.read.negentropy._RENEWED_S", -1.0)  # one in each piece
    client, other = relay.client(alice), relay.client()
    relay.negentropy.limits = replace(relay.limits, neg_sessions=400)
    for number in range(300):
        client.says("NEG-OPEN", f"{number}", {}, ASK_FOR_ALL)
        assert await client.hears() == ["NEG-MSG", f"{number}", all_of()]
    for number in range(40):
        relay.replace_den(with_another_member(DEN, number))
    renewed = [0]
    other.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    while renewed[-1] < 11:
        await asyncio.sleep(0)
        current = relay.state.regrouped
        renewed.append(sum(each == current for each in relay.negentropy._renewed.values()))
    # Its own id, and one of the others.
    assert max(after - before for before, after in pairwise(renewed)) <= 2
    for _ in range(20):
        await asyncio.sleep(0)
    assert sum(each == current for each in relay.negentropy._renewed.values()) == 11
    assert await other.hears() == ["NEG-MSG", "n", all_of()]


@pytest.mark.proves("N77-09", "N29-94")
async def test_an_id_whose_reader_has_lost_rights_is_ended_when_others_open(
    relay: NegentropySide,
) -> None:
    secret = unsigned(admin, 9, [["h", "den"]])
    await relay.write(secret)
    client, other = relay.client(alice), relay.client()
    client.says("NEG-OPEN", "n", {"kinds": [9], "#h": ["den"]}, ASK_FOR_ALL)
    assert await client.hears() == ["NEG-MSG", "n", all_of(secret)]
    await relay.remove_alice()
    without_her = relay.state.groups.by_id["den"]
    for number in range(70):
        relay.replace_den(with_another_member(without_her, number))
    other.says("NEG-OPEN", "n", {}, ASK_FOR_ALL)
    verb, sub, text = await client.hears()
    assert (verb, sub, text.split(":")[0]) == ("NEG-ERR", "n", "restricted")
    assert not client.queue._open


async def test_a_client_that_leaves_during_a_commit_leaves_no_records_behind(
    relay: NegentropySide,
) -> None:
    """They counted until the restart, and at last every NEG-OPEN was refused."""
    await relay.write(*notes(4))
    client = relay.client(owner)
    relay.store.may_give_items.clear()
    client.says("NEG-OPEN", "n", {}, "61")
    await relay.store.items_called.wait()
    relay.state.begin_commit(relay.store.committed())
    relay.store.may_give_items.set()
    await eventually("the records are read", lambda: relay.negentropy.held == 4)
    await client.queue.aclose()
    assert relay.negentropy.held == 0


async def test_a_store_fault_ends_the_session_with_error(relay: NegentropySide) -> None:
    await relay.store.close()
    client = relay.client()
    client.says("NEG-OPEN", "n", {}, "61")
    verb, sub, text = await client.hears()
    assert (verb, sub, text.split(":")[0]) == ("NEG-ERR", "n", "error")
