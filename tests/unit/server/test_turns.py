"""relay/server/turns.py: much work for the event loop waits behind little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.access.shares import Standing
from relay.server.turns import (
    BUSY_SLICE_S,
    CREDIT_S,
    ITERATION_S,
    SLICE_S,
    Account,
    CostlyWork,
    Network,
    Networks,
    Slice,
    Turns,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Clock:
    """Seconds; moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(work: Slice, clock: Clock, seconds: float) -> bool:
    work.begin()
    clock.now += seconds
    return work.end()


async def test_a_turn_is_due_after_a_slice_of_work_however_it_is_cut() -> None:
    clock = Clock()
    work = Slice(Turns(clock), clock)
    assert not worked(work, clock, SLICE_S * 0.9)
    clock.now += 60  # nothing to read: this is no work
    assert not worked(work, clock, SLICE_S * 0.05)
    assert worked(work, clock, SLICE_S * 0.1)
    await work.rest()
    assert not worked(work, clock, SLICE_S * 0.9)


async def test_work_that_was_not_measured_counts() -> None:
    clock = Clock()
    work = Slice(Turns(clock), clock)
    work.begin()
    assert not work.end(SLICE_S * 0.9)
    work.begin()
    assert work.end(SLICE_S * 0.2)


async def test_one_goes_on_per_iteration_in_the_order_of_coming() -> None:
    turns, seen = Turns(Clock()), list[str]()

    async def greedy(name: str) -> None:
        for _ in range(3):
            seen.append(name)
            await turns.wait(turns.account())

    async def others() -> None:
        for _ in range(9):
            seen.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(greedy("a"), greedy("b"), greedy("c"), others())
    # Between two turns of the greedy, who asks for little has had one too.
    text = "".join(seen)
    assert text.startswith("abc.")
    assert not any(f"{x}{y}" in text[3:] for x in "abc" for y in "abc")
    assert [each for each in text if each != "."] == [*"abcabcabc"]


async def test_after_a_long_delivery_several_accounts_go_on_and_each_once() -> None:
    """A delivery to many made 20 iterations a second, and somebody else had a turn of ten."""
    clock = Clock()
    turns, seen = Turns(clock), list[str]()
    accounts = {name: turns.account() for name in "abcdef"}

    async def waits(name: str) -> None:
        await turns.wait(accounts[name])
        turns.charge(accounts[name], 0.001, 0.001)
        seen.append(name)

    waiting = [asyncio.create_task(waits(name)) for name in "aaabbbcdef"]
    await asyncio.sleep(0)
    clock.now += 0.02  # a delivery
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [*"abcd"]
    for number in range(5, 10):
        clock.now += 0.04
        turns.spend(0.04)  # their own work gives nobody more
        turns.charge(accounts["f"], 0.04, 0.04)
        await asyncio.sleep(0)
        assert len(seen) == number
    await asyncio.gather(*waiting)


async def test_members_with_little_work_have_as_much_time_as_others_and_not_as_many_turns() -> None:
    """A part of a delivery took 3 ms, a message 0.3: members had 38 turns a second together."""
    clock = Clock()
    turns, seen = Turns(clock), list[bool]()

    async def works(address: str, seconds: float, standing: Standing) -> None:
        work = Slice(turns, clock, turns.account(address, standing))
        for _ in range(30):
            await work.rest()
            seen.append(standing is Standing.KNOWN)
            worked(work, clock, seconds)

    tasks = [works(f"10.0.{n}.1", 0.0003, Standing.KNOWN) for n in range(20)]
    tasks += [works(f"10.1.{n}.1", 0.003, Standing.UNKNOWN) for n in range(8)]
    waiting = [asyncio.create_task(each) for each in tasks]
    await asyncio.gather(*waiting)
    both = seen[seen.index(False) : len(seen) - seen[::-1].index(True)]
    assert 8 < both.count(True) / both.count(False) <= 10


@pytest.mark.parametrize("address", ["10.0.{}.1", "10.0.0.{}", "10.0.0.1"])
async def test_members_have_half_of_the_loop_whatever_the_work_of_others_is(address: str) -> None:
    """Requests of 10 ms each, light work without a key and pauses of none: 60 members had one turn
    in each iteration, 32 a second; and those of one network had so if their addresses had not."""
    clock = Clock()
    began, turns, of_members = clock.now, Turns(clock), 0.0

    async def works(address: str, seconds: float, standing: Standing) -> None:
        nonlocal of_members
        work = Slice(turns, clock, turns.account(address, standing))
        while clock.now < began + 5:
            await work.rest()
            worked(work, clock, seconds)
            of_members += seconds * (standing is Standing.KNOWN)

    async def requests(address: str) -> None:
        while clock.now < began + 5:
            await turns.wait_for_request(address, 0.01)
            clock.now += 0.01

    tasks = [works(address.format(n), 0.0003, Standing.KNOWN) for n in range(60)]
    tasks += [works(f"10.1.{n}.1", 0.0001, Standing.UNKNOWN) for n in range(16)]
    await asyncio.gather(*tasks, *(requests(f"10.2.{n}.1") for n in range(16)))
    assert 0.4 < of_members / (clock.now - began) < 0.6


async def test_members_keep_their_turns_beside_known_keys_whose_turns_are_long() -> None:
    """Requests that were expected to take 0.1 s, of keys known by groups of their own, made the
    mean turn of all long: members had 1 to 3 turns in an iteration, of 14."""
    clock = Clock()
    began, turns, numbers = clock.now, Turns(clock), {"member": 0, "costly": 0}

    async def asks(address: str, name: str, expected_s: float, seconds: float) -> None:
        work = Slice(turns, clock, turns.account(address, Standing.KNOWN))
        while clock.now < began + 5:
            await work.take(expected_s)
            worked(work, clock, seconds)
            numbers[name] += 1

    async def requests(address: str) -> None:
        while clock.now < began + 5:
            await turns.wait_for_request(address, 0.01)
            clock.now += 0.01

    tasks = [asks(f"10.0.{n}.1", "member", 0.0, 0.0003) for n in range(60)]
    tasks += [asks(f"10.1.{n}.{i}", "costly", 0.1, 0.003) for n in range(16) for i in range(8)]
    await asyncio.gather(*tasks, *(requests(f"10.2.{n}.1") for n in range(16)))
    iterations = (clock.now - began) / 0.02
    assert numbers["member"] > 8 * iterations


@pytest.mark.parametrize("is_admitted", [True, False])
async def test_members_have_half_of_known_keys_part_beside_long_turns_of_others(
    *, is_admitted: bool
) -> None:
    """Every fourth turn was for who had waited longest, and these were always requests of 20 ms by
    keys known by groups of their own: members waited 2 to 8 s."""
    clock = Clock()
    began, turns, of_members = clock.now, Turns(clock), 0.0

    async def member(number: int) -> None:
        nonlocal of_members
        standing = Standing.ADMITTED if is_admitted else Standing.KNOWN
        name = f"{number:064x}" if is_admitted else f"10.0.{number}.1"
        work = Slice(turns, clock, turns.account(name, standing))
        while clock.now < began + 5:
            await work.rest()
            worked(work, clock, 0.002)
            of_members += 0.002

    async def asks(address: str) -> None:
        work = Slice(turns, clock, turns.account(address, Standing.KNOWN))
        while clock.now < began + 5:
            await work.take(0.02)
            worked(work, clock, 0.02)

    async def deliveries() -> None:
        while clock.now < began + 5:
            clock.now += 0.05
            await asyncio.sleep(0)

    others = [asks(f"10.1.{n}.1") for n in range(16)]
    await asyncio.gather(*(member(n) for n in range(60)), *others, deliveries())
    assert of_members / (clock.now - began) > (0.3 if is_admitted else 0.18)


@pytest.mark.parametrize("address", ["10.0.{}.1", "10.0.0.{}"])
async def test_beside_long_deliveries_ever_more_go_on_that_have_little_work(address: str) -> None:
    """1,000 subscribers made 37 ms of an iteration: 60 members had 45 turns a second together."""
    clock = Clock()
    turns, seen, numbers = Turns(clock), list[str](), list[int]()

    async def waits(name: str, seconds: float) -> None:
        work = Slice(turns, clock, turns.account(address.format(name)))
        await work.rest()
        worked(work, clock, seconds)
        work.charge()
        seen.append(name)

    async def rounds(number: int) -> None:
        for _ in range(number):
            clock.now += 0.08  # a delivery
            before = len(seen)
            await asyncio.sleep(0)
            numbers.append(len(seen) - before)

    waiting = [asyncio.create_task(waits(f"{n}", 0.001)) for n in range(4 + 8 + 16 + 16 + 4)]
    await asyncio.sleep(0)
    await rounds(5)
    assert numbers == [0, 11, 11, 16, 10]
    waiting += [asyncio.create_task(waits(f"{n}", 0.005)) for n in range(100, 132)]
    while len(seen) < len(waiting):
        await rounds(1)
    assert max(numbers[6:]) <= 5, "not of longer ones"
    await asyncio.gather(*waiting)


async def test_an_office_without_a_login_has_a_part_of_the_loop_beside_deliveries() -> None:
    """Beside deliveries of 50 ms and requests of others it had two turns of 0.5 ms in each, and
    live events came 9 s late."""
    clock = Clock()
    began, turns, of_office = clock.now, Turns(clock), 0.0

    async def works(address: str) -> None:
        nonlocal of_office
        work = Slice(turns, clock, turns.account(address))
        while clock.now < began + 5:
            await work.rest()
            worked(work, clock, 0.0005)
            of_office += 0.0005

    async def requests(address: str) -> None:
        while clock.now < began + 5:
            await turns.wait_for_request(address, 0.01)
            clock.now += 0.01

    async def deliveries() -> None:
        while clock.now < began + 5:
            clock.now += 0.05
            await asyncio.sleep(0)

    office = (works(f"10.1.1.{n}") for n in range(60))
    await asyncio.gather(*office, *(requests(f"10.2.{n}.1") for n in range(16)), deliveries())
    assert 0.08 < of_office / (clock.now - began) < 0.15


@pytest.mark.parametrize("is_measured", [True, False])
async def test_turns_with_much_work_go_on_one_at_a_time(*, is_measured: bool) -> None:
    """Filters of 10,000 values, 25 ms each, from eight addresses: four went on in an iteration."""
    clock = Clock()
    turns, seen, numbers = Turns(clock), list[str](), list[int]()

    async def waits(name: str) -> None:
        work = Slice(turns, clock, turns.account(name))
        if is_measured:
            await work.rest()
            worked(work, clock, 0.025)
            work.charge()
        else:
            await work.take(0.025)
            clock.now += 0.025
        seen.append(name)

    waiting = [asyncio.create_task(waits(name)) for name in "abcdefghijkl"]
    await asyncio.sleep(0)
    while len(seen) < len(waiting):
        clock.now += 0.01  # a batch is written
        before = len(seen)
        await asyncio.sleep(0)
        numbers.append(len(seen) - before)
    assert numbers == [0, 4, *[1] * 8]


@pytest.mark.parametrize("iteration_s", [0.05, 0.2])
@pytest.mark.parametrize(
    ("what", "cost_s"),
    [
        ("handshake", 8 * 0.002),
        ("tls", 8 * 0.002),
        ("input", 16 * 0.0003),
        ("request", 16 * 0.003),
    ],
)
async def test_arrivals_have_a_part_of_the_loop_beside_their_turns(
    what: str, cost_s: float, iteration_s: float
) -> None:
    """With one in an iteration of 50 ms, a fifth of those who connected anew gave up after 20 s."""
    clock = Clock()
    turns, arrived = Turns(clock), list[int]()

    async def connects(number: int) -> None:
        await arrival(turns, what, f"10.{number % 16}.0.{number}")
        arrived.append(number)

    waiting = [asyncio.create_task(connects(number)) for number in range(600)]
    await asyncio.sleep(0)
    for _ in range(10):
        clock.now += iteration_s  # a batch is written
        turns.expect(iteration_s)  # by connections
        await asyncio.sleep(0)
    most = 10 * iteration_s / cost_s
    assert most * 0.9 - 3 <= len(arrived) <= most + 10
    for each in waiting:
        each.cancel()


@pytest.mark.parametrize("what", ["handshake", "request"])
async def test_who_arrives_has_every_second_turn_and_addresses_take_them_in_turn(what: str) -> None:
    """HTTP requests of 120 addresses waited for 120 turns each, of which each waited for those of
    all websockets."""
    turns, seen = Turns(Clock()), list[str]()

    async def comes(address: str) -> None:
        if what == "handshake":
            await turns.wait_for_handshake(address)
        else:
            await turns.wait_for_request(address, 0.0)
        seen.append(address)

    async def waits() -> None:
        await turns.wait(turns.account())
        seen.append(".")

    waiting = [asyncio.create_task(waits()) for _ in range(6)]
    waiting += [asyncio.create_task(comes(address)) for address in "aaaabc"]
    await asyncio.sleep(0)
    waiting[9].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert "".join(seen) == "a.b.c.a.a.."


def arrival(turns: Turns, what: str, address: str) -> Coroutine[Any, Any, None]:
    match what:
        case "handshake":
            return turns.wait_for_handshake(address)
        case "request":
            return turns.wait_for_request(address, 0.0)
        case "tls":
            return turns.wait_for_tls()
        case _:
            return turns.wait_for_input(address)


@pytest.mark.parametrize("what", ["handshake", "request", "input"])
@pytest.mark.parametrize("network", ["2001:db8:0:{:x}::/64", "203.0.113.{}"])
async def test_who_arrives_waits_for_one_of_each_other_network(what: str, network: str) -> None:
    """It waited for one of each address: of an IPv6 /48 for 65,536."""
    turns, seen = Turns(Clock()), list[str]()

    async def comes(name: str, address: str) -> None:
        await arrival(turns, what, address)
        seen.append(name)

    many = [asyncio.create_task(comes("m", network.format(number))) for number in range(200)]
    await asyncio.sleep(0)
    other = [asyncio.create_task(comes("o", "198.51.100.1")) for _ in range(2)]
    await asyncio.gather(*many, *other)
    assert "".join(seen).rindex("o") <= 5


@pytest.mark.parametrize("what", ["handshake", "request", "input"])
async def test_arrivals_of_one_network_take_turns_by_address(what: str) -> None:
    """As in an office, on one machine, or behind a proxy that names no client: nobody has more or
    less turns than if there were no networks."""
    turns, seen = Turns(Clock()), list[str]()

    async def comes(name: str) -> None:
        await arrival(turns, what, f"127.0.0.{ord(name)}")
        seen.append(name)

    waiting = [asyncio.create_task(comes(name)) for name in "aaaabbcd"]
    await asyncio.sleep(0)
    waiting[6].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert "".join(seen) == "abdabaa"


async def order_of_arrival(turns: Turns, what: str) -> str:
    """Of 20 networks of others (o), and 10 addresses of one (m) that come after them."""
    seen = list[str]()

    async def comes(name: str, address: str) -> None:
        await arrival(turns, what, address)
        seen.append(name)

    others = [asyncio.create_task(comes("o", f"198.51.{number}.1")) for number in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(*others, *[comes("m", f"203.0.113.{number}") for number in range(10)])
    return "".join(seen)


@pytest.mark.parametrize("what", ["handshake", "request", "input"])
async def test_networks_of_members_arrive_apart_from_others(what: str) -> None:
    """200 members of one office that was cut came back after up to 54 s, one in each of the rounds
    in which sixteen networks had a turn."""
    turns = Turns(Clock())
    assert await order_of_arrival(turns, what) == "o" * 20 + "m" * 10
    turns.note_admitted("203.0.113.77")
    assert await order_of_arrival(turns, what) == "omo" + "mo" * 9 + "o" * 9


async def test_the_networks_of_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are kept where a member has been last."""
    monkeypatch.setattr("relay.server.turns._MOST_NETWORKS_OF_MEMBERS", 2)
    turns = Turns(Clock())
    for address in ("203.0.113.1", "192.0.2.1", "203.0.113.2", "192.88.99.1"):
        turns.note_admitted(address)
    assert "momomomo" in await order_of_arrival(turns, "handshake")
    turns.note_admitted("192.88.99.1")
    turns.note_admitted("192.0.2.1")
    assert "mom" not in await order_of_arrival(turns, "handshake")


async def test_a_network_has_its_turn_though_one_of_it_waits_no_more() -> None:
    turns, seen = Turns(Clock()), list[str]()

    async def comes(address: str) -> None:
        await turns.wait_for_handshake(address)
        seen.append(address)

    first = "203.0.113.1"
    before, gone, *waiting = [
        asyncio.create_task(comes(address))
        for address in (first, "192.0.2.1", "192.0.2.2", "198.51.100.1", "198.51.100.2")
    ]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(before, *waiting)
    assert seen == [first, "192.0.2.2", "198.51.100.1", "198.51.100.2"]
    alone = asyncio.create_task(comes("192.0.2.1"))
    await asyncio.sleep(0)
    alone.cancel()
    async with asyncio.timeout(5):
        await comes("203.0.113.1")  # also when all of a network wait no more


async def test_handshakes_requests_unparsed_input_and_tls_arrive_by_turns() -> None:
    turns, seen = Turns(Clock()), list[str]()

    async def waits(what: str, turn: Coroutine[Any, Any, None]) -> None:
        await turn
        seen.append(what)

    waiting = [waits(".", turns.wait(turns.account())) for _ in range(4)]
    waiting += [waits("h", turns.wait_for_handshake(f"{number}")) for number in range(3)]
    waiting += [waits("r", turns.wait_for_request(f"{number}", 0.0)) for number in range(3)]
    waiting += [waits("i", turns.wait_for_input(f"{number}")) for number in range(3)]
    waiting += [waits("t", turns.wait_for_tls()) for _ in range(3)]
    await asyncio.gather(*waiting)
    assert "".join(seen) == "h.t.i.r.htirhtir"


async def test_a_cancelled_wait_takes_no_turn() -> None:
    turns = Turns(Clock())
    tasks = [asyncio.create_task(turns.wait(turns.account())) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, False, False]
    async with asyncio.timeout(5):
        await turns.wait(turns.account())


async def test_who_has_used_least_goes_next_however_many_wait() -> None:
    """200 floods, each with a slice behind it: somebody with small questions waits for none."""
    clock = Clock()
    turns, asked = Turns(clock), list[str]()

    async def flood(name: str) -> None:
        work = Slice(turns, clock)
        while "end" not in asked:
            while not worked(work, clock, SLICE_S):
                pass
            await work.rest()
            asked.append(name)

    async def small() -> None:
        work = Slice(turns, clock)
        for _ in range(100):
            if worked(work, clock, 0.0002):
                await work.rest()
            asked.append("small")
            await asyncio.sleep(0)

    floods = [asyncio.create_task(flood(f"{number}")) for number in range(200)]
    while len(asked) < 200 * 12:  # noqa: ASYNC110 — each turn is an iteration of the loop
        await asyncio.sleep(0)
    # Among equals each has its turn before anybody has a second one.
    assert len(set(asked[:200])) == len(set(asked[200:400])) == 200
    asked.clear()
    await small()
    assert len(asked) <= 3 * 100, "somebody with little work waited behind the floods"
    asked.append("end")
    await asyncio.gather(*floods)


async def test_while_others_wait_a_slice_is_shorter() -> None:
    """Else 500 that begin at once would each have a whole one before the first small answer."""
    clock = Clock()
    turns = Turns(clock)
    work = Slice(turns, clock)
    assert not worked(work, clock, BUSY_SLICE_S)
    waiting = asyncio.create_task(turns.wait(turns.account()))
    await asyncio.sleep(0)
    assert worked(work, clock, 0.00001)
    await waiting


async def test_an_iteration_has_time_for_some_work_of_all_together() -> None:
    """40 connections that ask at once, each less than a slice, kept others out for 0.7 s."""
    clock = Clock()
    turns = Turns(clock)
    asking = [Slice(turns, clock) for _ in range(40)]
    for _ in range(2):
        began = 0
        for work in asking:
            if work.has_time:
                began += 1
                worked(work, clock, SLICE_S * 0.8)
        assert began == ITERATION_S / (SLICE_S * 0.8)
        await asyncio.sleep(0)


async def test_who_was_idle_has_credit_for_some_work_only() -> None:
    """Its first flood does not keep all others out."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def greedy(name: str, rounds: int) -> None:
        work = Slice(turns, clock)
        for _ in range(rounds):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append(name)

    await greedy("o", 20)
    await asyncio.gather(greedy("o", 30), greedy("n", 30))
    text = "".join(order[20:])
    assert max(map(len, text.split("o"))) <= CREDIT_S / SLICE_S + 1
    assert max(map(len, text.split("n")[:30])) <= CREDIT_S / SLICE_S + 1


async def test_who_worked_while_nobody_waited_waits_for_nobody_longer() -> None:
    """20 idle connections that begin at once took a second before somebody with small questions."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()
    idle = [Slice(turns, clock) for _ in range(20)]

    async def works(work: Slice, name: str, rounds: int) -> None:
        for _ in range(rounds):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append(name)

    steady = Slice(turns, clock)
    await works(steady, "alone", 20)
    await asyncio.gather(works(steady, "steady", 1), *(works(each, "idle", 10) for each in idle))
    assert order[20:].index("steady") <= 20


async def test_who_always_comes_anew_keeps_nobody_out() -> None:
    """20 connections, each closed and opened again after the work that it had credit for."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def anew() -> None:
        while order.count("steady") < 40:
            work = Slice(turns, clock)
            for _ in range(int(CREDIT_S / SLICE_S)):
                worked(work, clock, SLICE_S)
                await work.rest()
                order.append("anew")

    async def steady() -> None:
        work = Slice(turns, clock)
        for _ in range(40):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append("steady")

    async with asyncio.timeout(5):
        await asyncio.gather(steady(), *(anew() for _ in range(20)))
    waits = "".join(each[0] for each in order).split("s")
    assert max(map(len, waits[:40])) <= 2 * 20 + CREDIT_S / SLICE_S


async def test_works_that_come_at_once_go_in_order_behind_who_has_little() -> None:
    """Thousands of HTTP requests, and somebody with small questions."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()
    requests = Slice(turns, clock)

    async def request(number: int) -> None:
        await requests.take(SLICE_S)
        order.append(f"{number}")

    async def small() -> None:
        work = Slice(turns, clock)
        for _ in range(10):
            worked(work, clock, 0.0002)
            await work.rest()
            order.append("small")

    await asyncio.gather(*(request(number) for number in range(100)), small())
    assert [each for each in order if each != "small"] == [f"{number}" for number in range(100)]
    assert "small" not in order[14:], "it waited behind the requests"


@pytest.mark.parametrize("networks", [20, 200])
async def test_who_stays_waits_for_no_others_that_always_come_anew(networks: int) -> None:
    """Whose last connection is closed has used nothing when it comes again: all such went first."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def works(name: str, *, comes_anew: bool) -> None:
        work = Slice(turns, clock, turns.account(name))
        while len(order) < 40 * networks:
            await work.rest()
            order.append(name)
            worked(work, clock, BUSY_SLICE_S)
            if comes_anew:
                work.charge()
                del work
                work = Slice(turns, clock, turns.account(name))

    others = [works(f"10.{number}.0.1", comes_anew=True) for number in range(networks)]
    await asyncio.gather(works("192.0.2.1", comes_anew=False), *others)
    assert order.count("192.0.2.1") >= 8
    assert len(turns._unknown._heap) <= 2 * networks + 64


async def test_connections_of_one_address_have_the_turns_of_one() -> None:
    """Somebody alone at an address has half of the turns, not one in 51."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def flood(name: str) -> None:
        work = Slice(turns, clock, turns.account(name))
        for _ in range(20):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append(name)

    await asyncio.gather(*(flood("many") for _ in range(50)), flood("one"))
    last = len(order) - 1 - order[::-1].index("one")
    assert order[: last + 1].count("many") <= 50 + 20 + CREDIT_S / SLICE_S


async def test_work_of_connections_that_end_counts_for_their_address() -> None:
    """A member's read waited for all of 180 connections from nine addresses, closed at once."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def ends(name: str) -> None:
        work = Slice(turns, clock, turns.account(name))
        await work.rest()
        worked(work, clock, 0.003)
        work.charge()
        order.append(name)

    async def reads() -> None:
        work = Slice(turns, clock, turns.account("member", Standing.KNOWN))
        worked(work, clock, SLICE_S)
        await work.rest()
        order.append("member")

    kept = [turns.account(f"{number}") for number in range(9)]
    await asyncio.gather(*(ends(f"{number % len(kept)}") for number in range(180)), reads())
    assert order.index("member") <= 2 * len(kept)


async def test_known_keys_have_more_turns() -> None:
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def flood(name: str) -> None:
        standing = Standing.KNOWN if name == "known" else Standing.UNKNOWN
        work = Slice(turns, clock, turns.account(standing=standing))
        for _ in range(50):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append(name)

    await asyncio.gather(*(flood(f"{number}") for number in range(20)), flood("known"))
    last = len(order) - 1 - order[::-1].index("known")
    assert last <= 2 * 50


async def test_a_known_key_has_every_second_turn_however_many_others_wait() -> None:
    """3,800 addresses had a turn each before that of who had just come: a write took a minute."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def asks(name: str, number: int, standing: Standing = Standing.UNKNOWN) -> None:
        work = Slice(turns, clock, turns.account(name, standing))
        for _ in range(number):
            worked(work, clock, BUSY_SLICE_S)
            await work.rest()
            order.append(name)

    waited = list[int]()

    async def comes() -> None:
        while len(order) < 1_000:  # noqa: ASYNC110 — each turn is an iteration of the loop
            await asyncio.sleep(0)
        came = len(order)
        await asks("member", 10, Standing.KNOWN)
        waited.append(len(order) - came)

    await asyncio.gather(comes(), *(asks(f"{number}", 10) for number in range(400)))
    assert waited[0] <= 2 * 10 + 2


@pytest.mark.parametrize("network", ["2001:db8:1:{:x}::/64", "198.51.100.{}"])
async def test_addresses_of_one_network_have_the_turns_of_one(network: str) -> None:
    """3,800 addresses with a known key each, which anybody makes in an open relay, kept out all
    members."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def asks(address: str, number: int) -> None:
        work = Slice(turns, clock, turns.account(address, Standing.KNOWN))
        for _ in range(number):
            worked(work, clock, SLICE_S)
            await work.rest()
            order.append(address)

    many = [network.format(number) for number in range(1, 200)]
    member = "2001:db8:2::/64"
    await asyncio.gather(*(asks(address, 3) for address in many), asks(member, 20))
    last = len(order) - 1 - order[::-1].index(member)
    assert last <= 2 * 20 + CREDIT_S / SLICE_S
    assert set(order[:300]) > set(many[:100]), "within the network each has its turn"


async def test_many_known_keys_leave_turns_to_the_others() -> None:
    """In an open relay anybody makes a key known, by a group of its own: others waited for 25 s
    with 240 addresses. Who has used least of them goes first; who comes anew has no credit."""
    clock = Clock()
    turns, order = Turns(clock), list[str]()

    async def asks(name: str, number: int, seconds: float, standing: Standing) -> None:
        work = Slice(turns, clock, turns.account(name, standing))
        for _ in range(number):
            worked(work, clock, seconds)
            await work.rest()
            order.append(name)

    async def comes_anew() -> None:
        number = 0
        while "ended" not in order:
            await asks(f"new {number}", 1, SLICE_S, Standing.UNKNOWN)
            number += 1

    async def person() -> None:
        await asks("person", 20, SLICE_S / 5, Standing.UNKNOWN)
        order.append("ended")

    floods = [asks(f"known {number}", 50, SLICE_S, Standing.KNOWN) for number in range(40)]
    heavy = [asks(f"unknown {number}", 5, SLICE_S, Standing.UNKNOWN) for number in range(5)]
    await asyncio.gather(*floods, *heavy, comes_anew(), person())
    last = order.index("ended")
    assert last <= 2 * (20 * 2 + 2 * 5) + 40
    known = [name for name in order[:last] if name.startswith("known")]
    assert len(known) >= last * 2 // 5


class Timers:
    """`call_later` of the loop; the time comes by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._add)

    def _add(self, delay: float, callback: Callable[[], None]) -> None:
        self.due.append((delay, callback))

    def ring(self) -> float:
        delay, callback = self.due.pop()
        callback()
        return delay


async def test_costly_work_rests_for_nine_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, costly = Timers(monkeypatch), CostlyWork()
    a, b = Account(Network(Networks())), Account(Network(Networks()))
    await costly.begin(a, 0.02)
    second = asyncio.create_task(costly.begin(b, 0.02))
    await asyncio.sleep(0)
    costly.end(a, 0.02)
    await asyncio.sleep(0)
    assert not second.done()
    assert timers.ring() == pytest.approx(0.18)
    await second
    costly.end(b, 3600)
    assert timers.ring() == 1.0
    await costly.begin(a, 0.02)
    costly.end(a, 0.001)
    assert timers.due == []
    await costly.begin(a, 0.02)


class Pieces:
    """Of costly work. One is under way all the time; none is so long that a rest follows."""

    def __init__(self) -> None:
        self._costly = CostlyWork()
        self._under_way = (Account(Network(Networks())), 0.0)
        self._waiting = list[asyncio.Task[None]]()
        self.begun = list[str]()

    async def begin(self) -> None:
        await self._costly.begin(*self._under_way)

    async def come(
        self, name: str, account: Account, size: float, estimated: float | None = None
    ) -> None:
        """One waits. `size`: what it will take, in units of a microsecond."""

        async def piece() -> None:
            await self._costly.begin(account, (size if estimated is None else estimated) / 1e6)
            self._waiting.remove(task)
            self.begun.append(name)
            self._under_way = account, size / 1e6

        task = asyncio.create_task(piece(), name=name)
        self._waiting.append(task)
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        """The first of those with this name that wait."""
        for task in self._waiting:
            if task.get_name() == name:
                self._waiting.remove(task)
                task.cancel()
                await asyncio.wait([task])
                return

    async def go_on(self) -> str:
        """What is under way ends. Returns what begins then."""
        number = len(self.begun)
        self._costly.end(*self._under_way)
        await asyncio.sleep(0)
        (name,) = self.begun[number:]
        return name

    async def begin_all(self) -> list[str]:
        while self._waiting:
            await self.go_on()
        return self.begun


@pytest.fixture
async def pieces() -> Pieces:
    pieces = Pieces()
    await pieces.begin()
    return pieces


NewAccount = Callable[[], Account]


def new_accounts(*, are_of_one_network: bool) -> NewAccount:
    network = Network(Networks())
    return lambda: Account(network if are_of_one_network else Network(Networks()))


@pytest.fixture(params=[False, True], ids=["networks", "addresses of one network"])
def new(request: pytest.FixtureRequest) -> NewAccount:
    return new_accounts(are_of_one_network=request.param)


@pytest.mark.parametrize("sizes", [(100, 100), (100, 1000), (1000, 100)])
async def test_costly_work_of_a_network_waits_for_as_much_of_each_other_network(
    pieces: Pieces, sizes: tuple[int, int]
) -> None:
    """One of 1,000 authors waited for a piece of each of 4,000 addresses: for 72 s and more."""
    many, one = Network(Networks()), Network(Networks())
    for _ in range(100):
        await pieces.come("many", Account(many), sizes[0])
    for _ in range(3):
        await pieces.come("one", Account(one), sizes[1])
    begun = await pieces.begin_all()
    assert "one" in begun[:4]
    assert begun[:15].count("one") == 3


async def test_of_those_with_costly_work_one_of_each_address_goes_on(
    pieces: Pieces, new: NewAccount
) -> None:
    accounts = {"a": new(), "b": new()}
    for part in "aaaab":
        await pieces.come(part, accounts[part], 1)
    assert await pieces.begin_all() == ["a", "b", "a", "a", "a"]


async def test_a_small_piece_of_costly_work_waits_for_as_much_of_each_other(
    pieces: Pieces, new: NewAccount
) -> None:
    """A REQ of 70 authors waited for one of 9,900 values of each of 60 addresses."""
    small = new()
    for _ in range(60):
        await pieces.come("large", new(), 1000)
    await pieces.go_on()
    for _ in range(12):
        await pieces.come("small", small, 100)
    begun = await pieces.begin_all()
    assert begun[1:3] == ["small"] * 2
    assert "small" not in begun[15:60], "as much of each"


async def test_who_begins_anew_waits_for_as_much_of_each_other(
    pieces: Pieces, new: NewAccount
) -> None:
    """Behind more than 64 addresses of its network a small piece waited for all of them."""
    for _ in range(200):
        await pieces.come("large", new(), 1000)
    for _ in range(10):
        await pieces.go_on()
        await pieces.come("small", new(), 100)
        assert "small" in [await pieces.go_on(), await pieces.go_on()]


@pytest.mark.parametrize(("large", "most"), [(0, 8), (60, 60)])
async def test_those_who_begin_anew_are_not_ahead_of_who_waits(
    pieces: Pieces, new: NewAccount, large: int, most: int
) -> None:
    """Three connections, each from a new address with a small REQ, kept all larger ones waiting."""
    for _ in range(large):
        await pieces.come("large", new(), 1000)
    for _ in range(3):
        await pieces.come("new", new(), 100)
    await pieces.come("waits", new(), 250)
    while "waits" not in pieces.begun and len(pieces.begun) < 500:
        if await pieces.go_on() == "new":
            await pieces.come("new", new(), 100)
    assert len(pieces.begun) <= most


async def test_who_waits_for_costly_work_pays_for_what_it_took(
    pieces: Pieces, new: NewAccount
) -> None:
    """Whatever was estimated."""
    liar, other = new(), new()
    for _ in range(8):
        await pieces.come("liar", liar, 500, estimated=1)
        await pieces.come("other", other, 100)
    begun = await pieces.begin_all()
    assert begun[:10].count("liar") <= 4


NAMES = st.sampled_from("abcd")
SIZES = st.integers(1, 1500)
Step = tuple[Sequence[tuple[str, int, int]], str]
STEPS = st.lists(st.tuples(st.lists(st.tuples(NAMES | st.just("new"), SIZES, SIZES)), NAMES))
"""Account, size and estimate of those that come, and of which account one is cancelled."""


@given(
    before=st.lists(st.tuples(NAMES, SIZES), max_size=12),
    size=SIZES,
    steps=STEPS,
    are_of_one_network=st.booleans(),
)
def test_who_waits_for_costly_work_is_overtaken_a_bounded_number_of_times(
    before: Sequence[tuple[str, int]],
    size: int,
    steps: Sequence[Step],
    *,
    are_of_one_network: bool,
) -> None:
    """By whoever comes later, with whatever work: before it begin at most four pieces for each
    account that came earlier, and three more."""

    async def begun_before() -> int:
        pieces, new = Pieces(), new_accounts(are_of_one_network=are_of_one_network)
        accounts = {name: new() for name in "abcd"}
        await pieces.begin()
        for name, each in before:
            await pieces.come(name, accounts[name], each)
        await pieces.come("waits", new(), size)
        further = iter(steps)
        while "waits" not in pieces.begun and len(pieces.begun) < 100:
            coming, leaving = next(further, ([("new", 1, 1)], ""))
            for name, each, estimated in coming:
                await pieces.come(name, accounts.get(name) or new(), each, estimated)
            await pieces.cancel(leaving)
            await pieces.go_on()
        return len(pieces.begun) - 1

    assert asyncio.run(begun_before()) <= 4 * len({name for name, _ in before}) + 3


@pytest.mark.parametrize("is_given", [True, False])
async def test_who_is_cancelled_leaves_costly_work_to_the_next(*, is_given: bool) -> None:
    costly, a = CostlyWork(), Account(Network(Networks()))
    await costly.begin(a, 0)
    gone, next_ = [asyncio.create_task(costly.begin(a, 0)) for _ in range(2)]
    await asyncio.sleep(0)
    if is_given:
        costly.end(a, 0)
    gone.cancel()
    await asyncio.sleep(0)
    if not is_given:
        costly.end(a, 0)
    await next_
    assert gone.cancelled()
