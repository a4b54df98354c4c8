"""relay/write/lane.py: many producers, one commit at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.write.lane import Lane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

PLENTY = 1000


class Clerk:
    """A commit function that waits for permission and records each batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.at_work = 0
        self.most_at_work = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.has_begun = asyncio.Event()

    async def commit(self, batch: Sequence[str]) -> None:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.has_begun.set()
        await self.may_go_on.wait()
        self.batches.append(list(batch))
        self.at_work -= 1

    @property
    def committed(self) -> list[str]:
        return [item for batch in self.batches for item in batch]

    async def busy_with(self, lane: Lane[str], item: str) -> None:
        """Take up this item and do not finish with it."""
        self.may_go_on.clear()
        self.has_begun.clear()
        assert lane.put(item)
        await self.has_begun.wait()


@pytest.fixture
async def clerk() -> Clerk:
    return Clerk()


def lane_of(
    clerk: Clerk, *, max_batch: int = PLENTY, max_waiting: int = PLENTY, cost: int = 1
) -> Lane[str]:
    """Digits are of one sender, each letter is of its own; a capital costs `cost`."""
    return Lane(
        clerk.commit,
        max_batch=max_batch,
        max_waiting=max_waiting,
        turn_of=lambda item: item.isdigit() or item.lower(),
        cost_of=lambda item: cost if item.isupper() else 1,
    )


@asynccontextmanager
async def running(lane: Lane[str]) -> AsyncIterator[None]:
    """A running lane; closed and drained at the end."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.run())
        try:
            yield
        finally:
            lane.close()


def put_all(lane: Lane[str], items: Iterable[str]) -> None:
    for item in items:
        assert lane.put(item)


async def test_items_are_committed_in_the_order_in_which_they_were_put(clerk: Clerk) -> None:
    """Items are committed in the order in which they were put."""
    lane = lane_of(clerk, max_batch=2)
    async with running(lane):
        put_all(lane, "12345")
        await lane.drained()
        put_all(lane, "67")
    assert clerk.committed == list("1234567")


async def test_who_puts_one_item_does_not_wait_for_all_of_who_has_put_many(clerk: Clerk) -> None:
    lane = lane_of(clerk, max_batch=3)
    async with running(lane):
        await clerk.busy_with(lane, "a")
        put_all(lane, "aaaaaaaaaaaabbbbbb")
        put_all(lane, "c")
        clerk.may_go_on.set()
    assert clerk.batches[:3] == [["a"], [*"abc"], [*"aba"]]
    assert sorted(clerk.committed) == [*"a" * 13, *"b" * 6, "c"]


async def test_who_has_few_items_waits_for_no_full_batch_of_who_has_many(clerk: Clerk) -> None:
    """One address with thousands of events waiting delayed each of others by two batches."""
    lane = lane_of(clerk, max_batch=128)
    async with running(lane):
        await clerk.busy_with(lane, "0")
        for number in range(1, 300):
            assert lane.put(str(number))
        for letter in "abcde":
            assert lane.put(letter)
        clerk.may_go_on.set()
    assert [len(batch) for batch in clerk.batches[:3]] == [1, 6, 128]
    assert clerk.batches[1] == ["1", *"abcde"]


async def test_who_has_many_is_served_while_others_with_few_keep_coming(clerk: Clerk) -> None:
    letters = iter("abcdefghij")

    async def commit(batch: Sequence[str]) -> None:
        await clerk.commit(batch)
        if len(clerk.batches) <= 10:
            assert lane.put(next(letters))

    lane = Lane(
        commit, max_batch=64, max_waiting=PLENTY, turn_of=lambda item: item.isdigit() or item
    )
    for number in range(400):
        assert lane.put(str(number))
    async with running(lane):
        await lane.drained()
    assert [len(batch) for batch in clerk.batches[:10]] == [64, 1] * 5


async def test_who_has_many_lines_is_served_no_more_and_each_of_them_in_turn(clerk: Clerk) -> None:
    """One address with 800 connections was served 800 times as often as another one."""
    lane: Lane[str] = Lane(
        clerk.commit,
        max_batch=6,
        max_waiting=PLENTY,
        turn_of=lambda item: item[0],
        line_of=lambda item: item[:2],
    )
    many = [f"a{line}{number}" for line in "pqrstuvwxyz" for number in "12"]
    async with running(lane):
        await clerk.busy_with(lane, "b0")
        for item in [*many, "b01", "b02", "b03"]:
            assert lane.put(item)
        clerk.may_go_on.set()
    assert clerk.batches[1] == ["ap1", "b01", "aq1", "b02", "ar1", "b03"]
    assert clerk.committed[-14:] == [*(f"a{line}1" for line in "xyz"), *many[1::2]]


async def test_lines_that_are_put_back_come_first_and_in_their_order(clerk: Clerk) -> None:
    lane: Lane[str] = Lane(
        clerk.commit,
        max_batch=PLENTY,
        max_waiting=PLENTY,
        turn_of=lambda _: 1,
        line_of=lambda item: item[0],
    )
    for item in ("a3", "b2", "c1"):
        assert lane.put(item)
    lane.put_back(["b1", "a1", "a2"])
    async with running(lane):
        pass
    assert clerk.batches == [["b1", "a1", "c1", "b2", "a2", "a3"]]


async def test_turns_are_by_cost_and_no_batch_costs_much_more_than_allowed(clerk: Clerk) -> None:
    lane = lane_of(clerk, max_batch=24, cost=10)
    async with running(lane):
        await clerk.busy_with(lane, "z")
        put_all(lane, "AAAbbbbbbbbbbbbbbbbbbbb")
        clerk.may_go_on.set()
    assert clerk.batches == [["z"], [*"b" * 9 + "A" + "b" * 5], [*"b" * 5 + "A" + "b" + "A"]]


async def test_nobody_waits_for_the_commit_of_another_ones_costly_item(clerk: Clerk) -> None:
    lane = lane_of(clerk, max_batch=12, cost=10)
    async with running(lane):
        await clerk.busy_with(lane, "z")
        put_all(lane, "AAAbbbbbbbbbbbb")
        clerk.may_go_on.set()
    assert clerk.batches[:3] == [["z"], [*"b" * 9], ["A"]]
    assert [batch for batch in clerk.batches if "A" in batch] == [["A"]] * 3


async def test_a_cheap_item_waits_for_no_costly_ones_of_many_others(clerk: Clerk) -> None:
    """20 connections that send events of 5,000 tags delayed the events of others by 0.2 s."""
    lane = lane_of(clerk, max_batch=12, cost=10)
    async with running(lane):
        await clerk.busy_with(lane, "z")
        put_all(lane, "AABBCCDDEEFF")
        put_all(lane, "ggg")
        clerk.may_go_on.set()
    assert clerk.batches[:4] == [["z"], [*"ggg"], ["A"], ["B"]]


async def sent_again(
    clerk: Clerk, lane: Lane[str], items: str, *, again: str, batches: int
) -> None:
    """Those of `again` are put once more when they are committed, until so many batches are."""
    commit = clerk.commit

    async def answered(batch: Sequence[str]) -> None:
        await commit(batch)
        if len(clerk.batches) < batches:
            put_all(lane, "".join(item for item in batch if item in again))

    lane._commit = answered
    async with running(lane):
        await clerk.busy_with(lane, "z")
        put_all(lane, items)
        clerk.may_go_on.set()
        while len(clerk.batches) < batches:  # noqa: ASYNC110 -- each is an iteration of the loop
            await asyncio.sleep(0)


@pytest.mark.parametrize("order", ["AAAbc", "bAcAA", "bcAdeAA", "AbAcA"])
async def test_a_costly_item_is_committed_while_others_send_one_after_the_other(
    clerk: Clerk, order: str
) -> None:
    """Each of the others begins anew with nothing used, for ever before the costly one."""
    lane = lane_of(clerk, max_batch=12, cost=10)
    await sent_again(clerk, lane, order, again="bcde", batches=20)
    assert max(number for number, batch in enumerate(clerk.batches) if "A" in batch) <= 6


async def test_a_flood_of_cheap_items_from_many_holds_nothing_that_costs_more(
    clerk: Clerk,
) -> None:
    """Each of them begins anew when it was served, for ever before an item of twice the cost."""
    lane = lane_of(clerk, max_batch=8, cost=3)
    others = "bcdefghijklm"
    await sent_again(clerk, lane, f"{others}A", again=others, batches=40)
    assert next(number for number, batch in enumerate(clerk.batches) if "A" in batch) <= 8


@pytest.mark.parametrize("others", ["b", "bcdefghij"])
async def test_what_costs_most_is_committed_while_others_send_what_is_alone_too(
    clerk: Clerk, others: str
) -> None:
    """A batch of one item did not count, so what cost more was never committed: a message of a
    private group behind refused ones of a hundred addresses."""
    lane = lane_of(clerk, max_batch=12, cost=9)
    lane._cost_of = lambda item: 9 if item == "A" else 7
    await sent_again(clerk, lane, f"{others}A", again=others, batches=100)
    assert next(number for number, batch in enumerate(clerk.batches) if "A" in batch) <= 20


MANY = "ABCDEFGHIJKLMNOPQRST"


@pytest.mark.parametrize(
    ("of", "others"),
    [
        (("unknown", "far"), ["Y"]),
        (("known", "one"), ["Y"]),
        (("unknown", "far"), ["y", "y", "y"]),
    ],
    ids=["another network", "known", "cheap"],
)
async def test_who_shares_with_few_waits_for_no_others_of_one_network(
    clerk: Clerk, of: tuple[str, str], others: list[str]
) -> None:
    """Notes that the filters of thousands of addresses match were committed one at a time, one of
    each address: those of members took a minute."""
    batches = 60

    async def answered(batch: Sequence[str]) -> None:
        await clerk.commit(batch)
        if len(clerk.batches) < batches:
            put_all(lane, [item for item in batch if item in MANY])
        if len(clerk.batches) == batches // 2:
            put_all(lane, others)

    lane = Lane(
        answered,
        max_batch=12,
        max_waiting=PLENTY,
        turn_of=str.lower,
        cost_of=lambda item: 10 if item.isupper() else 1,
        share_of=lambda item: of if item.lower() == "y" else ("unknown", "one"),
    )
    put_all(lane, MANY * 2)
    async with running(lane):
        await lane.drained()
    served = [number for number, batch in enumerate(clerk.batches) if {*batch} & {*others}]
    assert served[-1] - batches // 2 <= 2
    kept = lane._shares, lane._queues_of, lane._parts_of, lane._weighted, lane._costs
    assert not any(kept)


@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize("cost", [3, 10])
async def test_what_comes_just_before_a_flood_of_one_network_does_not_wait_for_it(
    clerk: Clerk, before: int, cost: int
) -> None:
    """It was weighed beside few queues, and each of thousands came first a hundred times."""
    flood = [f"{number}" for number in range(before, 400)]
    lane = Lane(
        clerk.commit,
        max_batch=12,
        max_waiting=PLENTY,
        turn_of=str,
        cost_of=lambda item: cost if item == "y" else 1,
        share_of=lambda item: ("known", item == "y"),
    )
    put_all(lane, [f"{number}" for number in range(before)])
    put_all(lane, ["y", *flood])
    async with running(lane):
        await lane.drained()
    assert clerk.committed.index("y") <= 24


async def test_no_costly_item_comes_before_others_because_thousands_have_come(
    clerk: Clerk,
) -> None:
    """Weighed anew beside 1,000 queues, all costly ones that waited went before what others wrote:
    members waited for 6 s."""
    costly = [f"C{number}" for number in range(40)]

    async def put_again(batch: Sequence[str]) -> None:
        await commit(batch)
        sent.extend(batch)
        if len(sent) < 100:
            put_all(lane, [item for item in batch if item in costly])
        elif not may_end:
            may_end.append(len(sent))
            put_all(lane, [f"t{number}" for number in range(400)])
            put_all(lane, [f"m{number}" for number in range(10)])

    commit, sent, may_end = clerk.commit, list[str](), list[int]()
    lane = Lane(
        put_again,
        max_batch=12,
        max_waiting=PLENTY,
        turn_of=str,
        cost_of=lambda item: 10 if item in costly else 1,
        share_of=lambda item: ("known" if item[0] == "m" else "unknown", item[0]),
    )
    put_all(lane, costly)
    async with running(lane):
        while not may_end:  # noqa: ASYNC110 -- each is an iteration of the loop
            await asyncio.sleep(0)
        await lane.drained()
    later = sent[may_end[0] :]
    last = max(later.index(f"m{number}") for number in range(10))
    assert sum(item in costly for item in later[:last]) <= 4


async def test_one_network_has_its_part_beside_others(clerk: Clerk) -> None:
    """As each of its clients has of that."""
    counted: Counter[str] = Counter()

    async def answered(batch: Sequence[str]) -> None:
        counted.update(batch)
        await clerk.commit(batch)
        if len(clerk.batches) < 400:
            put_all(lane, batch)

    lane = Lane(
        answered,
        max_batch=1,
        max_waiting=PLENTY,
        turn_of=str,
        share_of=lambda item: ("all", item in "abcdefgh"),
    )
    put_all(lane, "abcdefghy" * 2)
    async with running(lane):
        await lane.drained()
    assert 180 <= counted["y"] <= 220
    assert all(20 <= counted[each] <= 30 for each in "abcdefgh")


async def test_a_queue_is_charged_for_less_than_the_cost_of_its_items(clerk: Clerk) -> None:
    """Those of `z` cost as much as others, and come first, as they are charged for a tenth."""
    lane = Lane(
        clerk.commit,
        max_batch=10,
        max_waiting=PLENTY,
        turn_of=str.lower,
        cost_of=lambda _: 10,
        charge_of=lambda item, cost: 1 if item == "z" else cost,
    )
    put_all(lane, "abcd" * 3)
    put_all(lane, "zzz")
    async with running(lane):
        await lane.drained()
    assert len(clerk.batches) == 15
    assert clerk.committed[:3] == [*"zzz"]


@pytest.fixture
async def resting(clerk: Clerk) -> Lane[str]:
    """The first of two characters is the client, the second one its connection. A capital costs
    more than half of a batch."""
    return Lane(
        clerk.commit,
        max_batch=12,
        max_waiting=PLENTY,
        turn_of=lambda item: item[0].lower(),
        line_of=str.lower,
        cost_of=lambda item: 10 if item.isupper() else 1,
    )


async def put_in_time(lane: Lane[str], *items: str) -> None:
    """And let all be committed that do not rest."""
    for item in items:
        assert lane.put(item)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_client_rests_on_all_its_connections(clerk: Clerk, resting: Lane[str]) -> None:
    async with running(resting):
        resting.rest("a", PLENTY)
        await put_in_time(resting, "AA", "aa", "AC", "BB", "bb")
        assert sorted(clerk.committed) == ["BB", "bb"]
        assert len(resting) == 3
    assert sorted(clerk.committed[2:]) == ["AA", "AC", "aa"]
    assert clerk.committed.index("aa") > clerk.committed.index("AA")


async def test_what_rests_makes_the_lane_not_busy(clerk: Clerk, resting: Lane[str]) -> None:
    assert not resting.is_busy
    async with running(resting):
        await clerk.busy_with(resting, "a1")
        assert resting.is_busy
        resting.rest("b", 3600.0)
        put_all(resting, ["b1"])
        clerk.may_go_on.set()
        while resting.is_busy:  # noqa: ASYNC110 -- the lane tells nobody
            await asyncio.sleep(0)
    assert clerk.committed == ["a1", "b1"]


async def test_a_rest_ends_by_itself(clerk: Clerk, resting: Lane[str]) -> None:
    async with running(resting), asyncio.timeout(PLENTY):
        resting.rest("a", 0.01)
        await put_in_time(resting, "AA")
        while not clerk.committed:  # noqa: ASYNC110 -- the lane tells nobody
            await asyncio.sleep(0.01)
    assert clerk.committed == ["AA"]


async def test_what_is_put_as_the_rest_of_an_empty_queue_ends_is_drained(
    clerk: Clerk, resting: Lane[str]
) -> None:
    """A relay that stopped refused what it had accepted."""
    async with running(resting):
        await put_in_time(resting)
        resting.rest("a", PLENTY)
        resting.hurry()
        await clerk.busy_with(resting, "bb")
        draining = asyncio.create_task(resting.drained())
        await put_in_time(resting, "BB")
        assert not draining.done()
        clerk.may_go_on.set()
        await draining
        assert clerk.committed == ["bb", "BB"]


async def test_a_lane_that_is_to_be_drained_lets_nobody_rest(
    clerk: Clerk, resting: Lane[str]
) -> None:
    async with running(resting):
        resting.rest("a", PLENTY)
        await put_in_time(resting, "AA")
        assert len(resting) == 1
        await resting.drained()
        assert clerk.committed == ["AA"]
        resting.rest("a", PLENTY)
        await put_in_time(resting, "AA")
        assert clerk.committed == ["AA", "AA"]


async def test_what_rests_can_be_put_back_and_dropped(clerk: Clerk, resting: Lane[str]) -> None:
    async with running(resting):
        resting.rest("a", PLENTY)
        await put_in_time(resting, "AA", "aa")
        resting.put_back(["Aa"])
        await put_in_time(resting)
        assert resting.drop() == ["Aa", "AA", "aa"]
        await put_in_time(resting, "bb")
    assert clerk.committed == ["bb"]


class Doors:
    """Items that are held until they are let through."""

    def __init__(self, *held: str) -> None:
        self.held = {*held}

    def __call__(self, item: str) -> bool:
        return item in self.held

    def open(self, lane: Lane[str], item: str) -> None:
        self.held.remove(item)
        lane.release(item)


@pytest.fixture
def doors() -> Doors:
    return Doors("a1", "a2", "b1")


@pytest.fixture
def holding(clerk: Clerk, doors: Doors) -> Lane[str]:
    """The first of two characters is the client and its connection: in capitals another one."""
    return Lane(
        clerk.commit,
        max_batch=12,
        max_waiting=PLENTY,
        turn_of=lambda item: item[0].lower(),
        line_of=lambda item: item[0],
        is_held=doors,
    )


async def test_what_follows_a_held_item_on_its_connection_waits_with_it(
    clerk: Clerk, doors: Doors, holding: Lane[str]
) -> None:
    async with running(holding):
        await put_in_time(holding, "a0", "a1", "a2", "a3", "A0", "A1", "b1", "c1")
        await put_in_time(holding, "a4", "A2")
        assert sorted(clerk.committed) == ["A0", "A1", "A2", "a0", "c1"]
        assert len(holding) == 5
        doors.open(holding, "a1")
        await put_in_time(holding)
        assert clerk.committed[5:] == ["a1"]
        doors.open(holding, "a2")
        await put_in_time(holding)
        assert clerk.committed[6:] == ["a2", "a3", "a4"]
        await holding.drained()
    assert clerk.committed[9:] == ["b1"]


async def test_what_is_put_back_before_a_held_item_waits_no_longer_than_before(
    doors: Doors,
) -> None:
    committed = list[str]()

    async def commit(batch: Sequence[str]) -> None:
        if not committed:
            lane.put_back(batch[1:])
        committed.extend(batch[:1] if not committed else batch)

    lane = Lane(
        commit, max_batch=12, max_waiting=PLENTY, line_of=lambda item: item[0], is_held=doors
    )
    async with running(lane):
        await put_in_time(lane, "c0", "a0", "a1", "a3")
        assert committed == ["c0", "a0"]
        doors.open(lane, "a1")
        await put_in_time(lane)
    assert committed == ["c0", "a0", "a1", "a3"]


async def test_what_is_held_is_dropped_with_the_others(clerk: Clerk, holding: Lane[str]) -> None:
    async with running(holding):
        await put_in_time(holding, "a1", "a3", "c1")
        assert holding.drop() == ["a1", "a3"]
        assert not len(holding)
    assert clerk.committed == ["c1"]


@given(
    st.lists(st.tuples(st.sampled_from("abcABC"), st.booleans()), max_size=40),
    st.integers(1, 12),
)
def test_held_or_not_all_of_a_connection_is_committed_in_order(
    sent: list[tuple[str, bool]], max_batch: int
) -> None:
    items = [f"{line}{number}" for number, (line, _) in enumerate(sent)]
    doors = Doors(*(item for item, (_, held) in zip(items, sent, strict=True) if held))
    asked = list[str]()
    committed = list[str]()

    def is_held(item: str) -> bool:
        if doors(item) and item not in asked:
            asked.append(item)
        return doors(item)

    async def commit(batch: Sequence[str]) -> None:
        keep = len(batch) // 2 + 1
        lane.put_back(batch[keep:])
        committed.extend(batch[:keep])
        if asked:
            doors.open(lane, asked.pop(0))

    lane: Lane[str]

    async def all_is_committed() -> None:
        nonlocal lane
        lane = Lane(
            commit,
            max_batch=max_batch,
            max_waiting=PLENTY,
            turn_of=lambda item: item[0].lower(),
            line_of=lambda item: item[0],
            is_held=is_held,
        )
        async with running(lane):
            await put_in_time(lane, *items)
            while doors.held:
                doors.open(lane, asked.pop(0))
                await put_in_time(lane)

    asyncio.run(all_is_committed())
    assert sorted(committed) == sorted(items)
    for line in "abcABC":
        of_line = [item for item in committed if item[0] == line]
        assert of_line == [item for item in items if item[0] == line]


async def test_what_is_put_back_after_all_was_dropped_is_dropped_too(clerk: Clerk) -> None:
    """What reads much is committed a few at a time: a stop took 25 seconds."""

    async def commit(batch: Sequence[str]) -> None:
        await clerk.commit(batch[:1])
        lane.put_back(batch[1:])

    lane: Lane[str] = Lane(commit, max_batch=PLENTY, max_waiting=PLENTY)
    put_all(lane, "abc")
    async with running(lane):
        clerk.may_go_on.clear()
        await clerk.has_begun.wait()
        assert lane.drop() == []
        clerk.may_go_on.set()
    assert clerk.committed == ["a"]
    assert lane.drop() == ["b", "c"]


async def test_who_waited_for_nothing_has_saved_up_nothing(clerk: Clerk) -> None:
    """One that comes later does not keep the others out for as long as they were served."""

    async def commit(batch: Sequence[str]) -> None:
        await clerk.commit(batch)
        if len(clerk.batches) == 20:
            put_all(lane, "b" * 50)

    lane = Lane(commit, max_batch=1, max_waiting=PLENTY, turn_of=str)
    put_all(lane, "a" * 50)
    async with running(lane):
        await lane.drained()
    assert clerk.committed == [*"a" * 20, *"ab" * 30, *"b" * 20]


async def test_what_queued_while_a_commit_ran_is_the_next_batch(clerk: Clerk) -> None:
    """A batch is what was queued while the previous one ran."""
    lane = lane_of(clerk)
    async with running(lane):
        await clerk.busy_with(lane, "a")
        put_all(lane, "bcd")
        clerk.may_go_on.set()
        await lane.drained()
    assert clerk.batches == [["a"], ["b", "c", "d"]]


async def test_a_lone_item_does_not_wait_for_company(clerk: Clerk) -> None:
    """A batch never waits for a timer."""
    lane = lane_of(clerk)
    async with running(lane):
        await asyncio.sleep(0)
        lane.put("a")
        await asyncio.sleep(0)  # one turn: the lane is woken by the item itself
        await asyncio.sleep(0)
        assert clerk.batches == [["a"]]


async def test_no_batch_is_larger_than_allowed(clerk: Clerk) -> None:
    """At most `max_batch`."""
    lane = lane_of(clerk, max_batch=3)
    async with running(lane):
        put_all(lane, "1234567")
    assert clerk.batches == [["1", "2", "3"], ["4", "5", "6"], ["7"]]


async def test_one_commit_runs_at_a_time(clerk: Clerk) -> None:
    """At most one commit runs."""
    lane = lane_of(clerk, max_batch=1)
    async with running(lane):
        await clerk.busy_with(lane, "a")
        put_all(lane, "bc")
        await asyncio.sleep(0)
        assert clerk.at_work == 1
        clerk.may_go_on.set()
    assert clerk.most_at_work == 1


async def test_a_full_lane_says_no_and_takes_more_when_there_is_room(clerk: Clerk) -> None:
    """At most `max_waiting` items are queued; `put` refuses more."""
    lane = lane_of(clerk, max_waiting=2)
    async with running(lane):
        await clerk.busy_with(lane, "a")
        put_all(lane, "bc")
        assert len(lane) == 2
        assert not lane.put("d")
        assert len(lane) == 2
        clerk.may_go_on.set()
        await lane.drained()
        assert lane.put("e")
    assert clerk.committed == list("abce")


async def test_a_lane_that_is_not_running_yet_is_bounded_too(clerk: Clerk) -> None:
    """Everything that waits is bounded."""
    lane = lane_of(clerk, max_waiting=1)
    assert lane.put("a")
    assert not lane.put("b")
    async with running(lane):
        await lane.drained()
    assert clerk.committed == ["a"]


async def test_closing_commits_what_waits_and_takes_no_more(clerk: Clerk) -> None:
    """`run` returns when the queue is empty."""
    lane = lane_of(clerk, max_batch=1)
    async with running(lane):
        await clerk.busy_with(lane, "a")
        put_all(lane, "bc")
        lane.close()
        assert not lane.put("d")
        clerk.may_go_on.set()
    assert clerk.committed == list("abc")


async def test_a_lane_that_closes_while_it_has_nothing_to_do_ends(clerk: Clerk) -> None:
    lane = lane_of(clerk)
    async with running(lane):
        await asyncio.sleep(0)
    assert clerk.batches == []
    lane = lane_of(clerk)
    lane.close()
    await lane.run()
    assert not lane.put("a")


async def test_what_a_commit_puts_is_committed_after_it() -> None:
    committed: list[list[str]] = []

    async def commit(batch: Sequence[str]) -> None:
        committed.append(list(batch))
        if "a" in batch:
            assert lane.put("an echo")

    lane = Lane(commit, max_batch=PLENTY, max_waiting=PLENTY)
    async with running(lane):
        put_all(lane, "ab")
        await lane.drained()
    assert committed == [["a", "b"], ["an echo"]]


async def test_drained_waits_for_the_commit_that_runs(clerk: Clerk) -> None:
    """`drained` waits until the queue is empty."""
    lane = lane_of(clerk)
    async with running(lane):
        await lane.drained()
        await clerk.busy_with(lane, "a")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(lane.drained())
            await asyncio.sleep(0)
            assert not waiting.done()
            clerk.may_go_on.set()
        assert clerk.committed == ["a"]
    await lane.drained()


async def test_a_commit_that_raises_is_no_secret() -> None:
    """A commit must not raise: the error comes out of `run`."""

    async def commit(_batch: Sequence[str]) -> None:
        raise LookupError("nobody foresaw this")

    lane = Lane(commit, max_batch=PLENTY, max_waiting=PLENTY)
    lane.put("a")
    with pytest.raises(LookupError):
        await lane.run()


@given(
    bursts=st.lists(st.text("ab1", max_size=5), max_size=12),
    max_batch=st.integers(1, 4),
    max_waiting=st.integers(1, 6),
)
def test_the_invariants_hold_for_any_order_of_arrival(
    bursts: list[str], max_batch: int, max_waiting: int
) -> None:
    """Each sender's in order, none lost or repeated, each batch within its bound."""

    async def law() -> None:
        clerk, taken, numbers = Clerk(), list[str](), count()
        lane = Lane(
            clerk.commit, max_batch=max_batch, max_waiting=max_waiting, turn_of=lambda item: item[0]
        )
        async with running(lane):
            for burst in bursts:
                for sender in burst:
                    item = f"{sender}{next(numbers)}"
                    assert len(lane) <= max_waiting
                    if lane.put(item):
                        taken.append(item)
                    else:
                        assert len(lane) == max_waiting
                await asyncio.sleep(0)
        assert all(1 <= len(batch) <= max_batch for batch in clerk.batches)
        for sender in "ab1":
            theirs = [item for item in taken if item[0] == sender]
            assert [item for item in clerk.committed if item[0] == sender] == theirs
        assert len(clerk.committed) == len(taken)

    asyncio.run(law())


async def test_what_is_put_back_comes_before_what_waits_and_others_have_their_turns() -> None:
    committed: list[str] = []
    batches: list[int] = []

    async def commit(batch: Sequence[str]) -> None:
        if len(batch) > 2:
            lane.put_back(batch[2:])
            batch = batch[:2]
        batches.append(len(batch))
        committed.extend(batch)
        if len(committed) == 2:
            assert lane.put("b1")

    lane: Lane[str] = Lane(commit, max_batch=5, max_waiting=PLENTY, turn_of=lambda item: item[0])
    for number in range(8):
        assert lane.put(f"a{number}")
    running = asyncio.create_task(lane.run())
    await lane.drained()
    assert [item for item in committed if item[0] == "a"] == [f"a{number}" for number in range(8)]
    assert "b1" in committed[:4]
    assert max(batches) == 2
    assert len(lane) == 0
    lane.close()
    await running


async def test_an_item_of_which_a_part_was_done_lets_others_take_their_turns() -> None:
    """And stays the first of its own turn."""
    committed: list[str] = []
    parts = 3

    async def commit(batch: Sequence[str]) -> None:
        nonlocal parts
        if batch[0] == "a0" and parts:
            parts -= 1
            committed.append("part")
            lane.put_back(batch, cost=1)
            return
        committed.append(batch[0])
        lane.put_back(batch[1:])

    lane: Lane[str] = Lane(
        commit, max_batch=PLENTY, max_waiting=PLENTY, turn_of=lambda item: item[0]
    )
    for item in ("a0", "a1", "b0", "b1", "b2", "b3"):
        assert lane.put(item)
    running = asyncio.create_task(lane.run())
    await lane.drained()
    assert committed.index("b0") == 1
    assert committed.index("b1") < committed.index("a0") < committed.index("a1")
    assert sorted(committed) == ["a0", "a1", "b0", "b1", "b2", "b3", *["part"] * 3]
    lane.close()
    await running


async def test_where_one_at_a_time_is_committed_those_put_back_take_turns() -> None:
    """Who had sent first was served until nothing of it was left."""
    committed: list[str] = []

    async def commit(batch: Sequence[str]) -> None:
        lane.put_back(batch[1:])
        committed.append(batch[0])

    lane: Lane[str] = Lane(
        commit, max_batch=PLENTY, max_waiting=PLENTY, turn_of=lambda item: item[0]
    )
    for item in (*(f"a{number}" for number in range(6)), "b0", "c0", "b1"):
        assert lane.put(item)
    running = asyncio.create_task(lane.run())
    await lane.drained()
    assert committed.index("b0") <= 2
    assert committed.index("c0") <= 2
    assert committed.index("b1") <= 5
    assert sorted(committed) == [*(f"a{number}" for number in range(6)), "b0", "b1", "c0"]
    assert [item for item in committed if item[0] == "a"] == [f"a{number}" for number in range(6)]
    lane.close()
    await running
