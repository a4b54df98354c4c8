"""Events that take longer than they cost: their clients pay for the time, others do not wait."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from ipaddress import ip_address
from itertools import count
from math import inf
from random import Random
from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName
from relay.access.visibility import Viewer
from relay.errors import TookTooLong
from relay.facts import Origin
from relay.write import batch as batches
from relay.write import commit_limits, ingest
from relay.write.commands import Unconnected, WriteEvent, client_or_type, connection_or_type
from relay.write.commit_limits import ClientLimits, SlowClients
from relay.write.costs import MAX_BATCH
from relay.write.judge import judge
from relay.write.lane import Lane
from tests.cast import alice, bob, carol, owner
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import NOON, STORED, Batches, Home, Letter, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import ModuleType

    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.write.batch import Batch
    from relay.write.candidate import Candidate
    from relay.write.commands import LaneItem
    from relay.write.judge import Judgement
    from relay.write.world import World

SLOW_S = 0.03


class Processor:
    """Its time passes only while events of `slow` keys are judged."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slow = {alice.pubkey}

    def __call__(self) -> float:
        return self.now

    def judge(self, candidate: Candidate, world: World) -> Judgement:
        self.now += SLOW_S if candidate.event.pubkey in self.slow else 0.00005
        return judge(candidate, world)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    made = Processor()
    monkeypatch.setattr(batches, "thread_time", made)
    monkeypatch.setattr(batches, "judge", made.judge)
    return made


@pytest.fixture
async def home(processor: Processor) -> AsyncIterator[Home]:
    async with store_of("reference") as store, Home(store, policy_of("open")) as home:
        yield home


def flood(home: Home, clients: int = 60, each: int = 5) -> list[Letter]:
    """Slow events from so many addresses."""
    letters = []
    for number in range(clients * each):
        letter = home.letter_from(f"192.0.2.{number % clients}")
        letter.counted_as = f"192.0.2.{number % clients}"
        home.ingest.submit(home.made(alice, 1, content=f"{number}"), letter, Origin.WIRE)
        letters.append(letter)
    return letters


def events_in(batch: Sequence[LaneItem]) -> list[WriteEvent]:
    return [item for item in batch if isinstance(item, WriteEvent)]


def slow_in(batch: Sequence[LaneItem]) -> int:
    return sum(item.event.pubkey == alice.pubkey for item in events_in(batch))


async def test_a_batch_ends_when_its_events_took_long_enough(home: Home) -> None:
    """256 comments that each named a row of 5,000 tags sixteen times took 4.6 s."""
    watched = Batches(home.ingest)
    letters = flood(home)
    assert [await letter.answer for letter in letters] == [STORED] * len(letters)
    assert max(map(len, watched.committed)) <= 8
    assert [len(letter.answers) for letter in letters] == [1] * len(letters)
    in_order = [row.event.content for row in await home.store.since(0, 999)]
    of_one = [content for content in in_order if int(content) % 60 == 7]
    assert of_one == sorted(of_one, key=int)


async def test_a_batch_has_an_event_even_if_time_passed_before_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection of 0.1 s there left the batch empty: it failed with `error:`."""
    monkeypatch.setattr(batches, "thread_time", partial(next, count(step=1.0)))
    letters = flood(home, clients=3, each=2)
    assert [await letter.answer for letter in letters] == [STORED] * 6


async def test_after_a_slow_batch_others_wait_for_few_slow_events(home: Home) -> None:
    watched = Batches(home.ingest)
    letters = flood(home)
    waited = []
    for number in range(20):
        before = len(watched.committed)
        note = home.post(home.made(bob, 1, content=f"{number}"), connection=1)
        assert await note.answer == STORED
        waited.append(sum(map(slow_in, watched.committed[before:])))
    assert [await letter.answer for letter in letters] == [STORED] * len(letters)
    assert max(waited[2:]) <= 16, "events of 30 ms before one of 0.05 ms"


async def test_a_slow_event_costs_what_the_last_ones_of_its_client_took(home: Home) -> None:
    """So cheap events of one client come before those of another that take long."""
    for number in range(2):  # the first one is not measured
        await home.post(home.made(alice, 1, content=f"first {number}"), connection=2).answer
    watched = Batches(home.ingest)
    slow = [home.post(home.made(alice, 1, content=f"{n}"), connection=2) for n in range(40)]
    fast = [home.post(home.made(bob, 1, content=f"{n}"), connection=3) for n in range(40)]
    assert [await letter.answer for letter in slow + fast] == [STORED] * 80
    order = [item.event.pubkey for batch in watched.committed for item in events_in(batch)]
    assert order == [bob.pubkey] * 40 + [alice.pubkey] * 40


async def test_who_is_no_longer_slow_is_served_as_before(home: Home, processor: Processor) -> None:
    await home.take(*[home.made(alice, 1, content=f"first {number}") for number in range(9)])
    assert home.ingest._lane.max_batch == 16
    processor.slow = set()
    for number in range(60):
        assert await home.take(home.made(alice, 1, content=f"then {number}")) == [STORED]
    assert home.ingest._lane.max_batch == 512
    assert not home.ingest._overruns.is_measuring
    assert not home.ingest._overruns._ratios


async def test_a_batch_that_takes_as_long_as_it_costs_is_not_measured(home: Home) -> None:
    assert await home.take(*[home.made(carol, 1, content=f"{n}") for n in range(400)])
    assert home.ingest._lane.max_batch == 512


async def bob_waits(home: Home) -> None:
    """While others are served."""
    later = home.post(home.made(bob, 1, content="later"), connection=2)
    for number in range(20):
        note = home.post(home.made(carol, 1, content=f"{number}"), connection=3)
        assert await note.answer == STORED
    assert not later.answer.done()
    home.ingest._lane.hurry()
    assert await later.answer == STORED


async def test_the_client_of_a_long_transaction_rests(home: Home) -> None:
    """What made it long may be a look-up or a deletion that nobody has thought of."""
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    assert await home.post(home.made(bob, 1), connection=2).answer == STORED
    home.store.append_s = 0.0
    await bob_waits(home)


@pytest.mark.parametrize(("module", "step"), [(batches, "lookups_for"), (ingest, "log_changes")])
async def test_the_client_of_a_transaction_that_holds_the_event_loop_rests(
    home: Home, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    """Before and after what the store does: it measures neither."""
    seconds = [0.0]
    done = getattr(module, step)

    def slow(*args: object, **kwargs: object) -> object:
        seconds[0] += 1
        return done(*args, **kwargs)

    monkeypatch.setattr(ingest, "thread_time", lambda: seconds[0])
    with monkeypatch.context() as patched:
        patched.setattr(module, step, slow)
        assert await home.post(home.made(bob, 1), connection=2).answer == STORED
    await bob_waits(home)


async def test_after_a_long_transaction_of_several_clients_batches_are_small(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time passes: of those that are committed apart one is, after each batch of the others."""
    monkeypatch.setattr("relay.write.ingest.perf_counter", lambda: 1.0)
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    letters = [home.post(home.made(bob, 1, content=f"{n}"), connection=n) for n in range(40)]
    assert [await letter.answer for letter in letters] == [STORED] * 40
    home.store.append_s = 0.0
    watched = Batches(home.ingest)
    letters = [home.post(home.made(bob, 1, content=f"b{n}"), connection=n) for n in range(100)]
    assert [await letter.answer for letter in letters] == [STORED] * 100
    assert max(map(len, watched.committed)) <= 33
    for number in range(60):
        assert await home.take(home.made(bob, 1, content=f"then {number}")) == [STORED]
    assert home.ingest._lane.max_batch == 512


def alice_takes_long(home: Home) -> None:
    """A second for each transaction with an event of hers, from now on."""
    store, stored = home.store, home.ingest._stored
    assert isinstance(store, ReferenceStore)

    async def timed(items: Sequence[LaneItem]) -> Batch:
        store.append_s = 1.0 if slow_in(items) else 0.0
        return await stored(items)

    home.ingest._stored = timed  # type: ignore[method-assign]


def alice_takes_too_long(home: Home, *names: str) -> list[int]:
    """In transactions with one of these events of hers, or any. How many events each had."""
    refused: list[int] = []
    append = home.store.append

    async def timed(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        batch = home.ingest._batch
        assert batch is not None
        slow = [each for each in events_in(batch._items) if each.event.pubkey == alice.pubkey]
        if any(not names or each.event.content in names for each in slow):
            assert lookups.longest_s is not None
            refused.append(len(batch._items))
            raise TookTooLong
        return await append(lookups, decide)

    home.store.append = timed  # type: ignore[method-assign]
    return refused


TOO_LONG = (False, "error: storing the event would keep others waiting for too long")


async def test_an_event_whose_transaction_takes_too_long_is_refused_alone(
    home: Home, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may have thought of what makes it long: no other is refused for it."""
    monkeypatch.setattr(commit_limits, "_PAUSE", 0.0)
    refused = alice_takes_too_long(home, "slow")
    hers = [
        home.post(home.made(alice, 1, content=content), connection=1)
        for content in ("before", "slow", "after")
    ]
    his = [home.post(home.made(bob, 1, content=f"{n}"), connection=2) for n in range(5)]
    assert [await letter.answer for letter in his] == [STORED] * 5
    assert [await letter.answer for letter in hers] == [STORED, TOO_LONG, STORED]
    assert refused == [8, 3, 1], "of all, of the client, and the event itself"


async def test_a_slow_disk_makes_batches_smaller_and_no_client_slow(
    home: Home, processor: Processor
) -> None:
    """On a disk of 1,000 reads a second 512 events of cold pages took 17 s. Committed apart, one
    after the other, their clients waited for longer."""
    assert isinstance(home.store, ReferenceStore)
    processor.slow = set()
    home.store.append_s = home.store.disk_s = 1.5
    hers = home.post(home.made(alice, 1, content="slow"), connection=1)
    his = [home.post(home.made(bob, 1, content=f"{n}"), connection=2) for n in range(5)]
    assert [await letter.answer for letter in (hers, *his)] == [STORED] * 6
    assert home.ingest._lane.max_batch < 512
    assert not home.ingest._slow._quick_left
    assert not home.ingest._limits._limits


async def test_what_took_too_long_together_on_a_slow_disk_is_tried_in_small_parts(
    home: Home, processor: Processor
) -> None:
    store, append, tried = home.store, home.store.append, list[int]()
    assert isinstance(store, ReferenceStore)

    async def timed(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        batch = home.ingest._batch
        assert batch is not None
        tried.append(len(batch._items))
        store.append_s = store.disk_s = 0.02 * len(batch._items)
        if store.disk_s > 1.5:
            raise TookTooLong
        return await append(lookups, decide)

    store.append = timed  # type: ignore[method-assign]
    letters = []
    for number in range(200):
        letter = home.letter_from(f"192.0.2.{number}")
        letter.counted_as = f"192.0.2.{number}"
        home.ingest.submit(home.made(bob, 1, content=f"{number}"), letter, Origin.WIRE)
        letters.append(letter)
    assert [await letter.answer for letter in letters] == [STORED] * 200
    assert tried[0] > 100
    assert max(tried[1:]) <= 64
    assert not home.ingest._limits._limits, "no client is slow because of the disk"


async def test_the_client_of_a_transaction_that_took_too_long_rests(
    home: Home, processor: Processor
) -> None:
    processor.slow = set()
    assert isinstance(home.store, ReferenceStore)
    alice_takes_too_long(home)
    home.store.append_s = 3.0
    assert await home.post(home.made(alice, 1), connection=2).answer == TOO_LONG
    home.store.append_s = 0.0
    later = home.post(home.made(alice, 1, content="later"), connection=2)
    for number in range(20):
        note = home.post(home.made(carol, 1, content=f"{number}"), connection=3)
        assert await note.answer == STORED
    assert not later.answer.done()
    home.ingest._lane.hurry()
    assert await later.answer == TOO_LONG


@pytest.mark.parametrize("kind", [5, 62, 9005, 9008])
async def test_a_deletion_alone_may_take_longer(home: Home, kind: int) -> None:
    """The end of a group with 150,000 records takes 5 s: refused, it could never end."""
    limits: list[float | None] = []
    append = home.store.append

    async def noted(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        limits.append(lookups.longest_s)
        return await append(lookups, decide)

    home.store.append = noted  # type: ignore[method-assign]
    await home.take(home.made(bob, kind))
    assert limits == [60.0]
    await home.take(home.made(carol, 1), home.made(alice, 1))
    assert limits[1:] == [1.5]


async def test_a_deletion_that_takes_too_long_is_refused(home: Home) -> None:
    """Not begun again in pieces without end."""
    refused = alice_takes_too_long(home)
    vanish = home.made(alice, 62, ["relay", "ALL_RELAYS"])
    assert await home.post(vanish, connection=1).answer == TOO_LONG
    assert refused


async def test_what_owners_change_and_what_is_imported_may_take_any_time(home: Home) -> None:
    limits: list[float | None] = []
    append = home.store.append

    async def noted(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        limits.append(lookups.longest_s)
        return await append(lookups, decide)

    home.store.append = noted  # type: ignore[method-assign]
    await home.ingest.changed(ListChange(ListName.BANNED_KEYS, bob.pubkey, "spam"))
    await home.take(home.made(carol, 1), origin=Origin.IMPORT)
    assert limits == [None] * len(limits)
    await home.take(home.made(alice, 1))
    assert limits[-1] is not None


def authors_of(batches: Sequence[Sequence[LaneItem]]) -> list[set[str]]:
    return [{item.event.pubkey for item in events_in(batch)} for batch in batches]


async def test_after_a_long_transaction_of_several_clients_the_slow_one_alone_rests(
    home: Home, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supersessions from two addresses took over a second together, and nobody was charged."""
    processor.slow = set()
    alice_takes_long(home)
    monkeypatch.setattr(commit_limits, "_PAUSE", 4000.0)
    watched = Batches(home.ingest)
    people = {alice: 1, bob: 2, carol: 3}

    def all_post(content: str) -> list[Letter]:
        return [
            home.post(home.made(who, 1, content=content), connection=n) for who, n in people.items()
        ]

    assert [await letter.answer for letter in all_post("together")] == [STORED] * 3
    assert [await letter.answer for letter in all_post("apart")] == [STORED] * 3
    later, *others = all_post("still apart")
    assert [await letter.answer for letter in others] == [STORED] * 2
    hers, his, another = ({who.pubkey} for who in people)
    together, *apart = authors_of(watched.committed)
    assert together == hers | his | another
    assert sorted(apart[:3], key=min) == sorted([hers, his, another], key=min)
    assert sorted(apart[3:], key=min) == sorted([his, another], key=min)
    assert not later.answer.done()
    home.ingest._lane.hurry()
    assert await later.answer == STORED


async def test_a_slow_client_is_served_alone_until_some_of_its_events_were_quick(
    home: Home, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_limits, "_PAUSE", 0.0)
    processor.slow = set()
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    assert await home.post(home.made(alice, 1), connection=1).answer == STORED
    home.store.append_s = 0.0
    watched = Batches(home.ingest)
    for content in "abcd":
        both = [
            home.post(home.made(who, 1, content=content), connection=n)
            for who, n in ((bob, 2), (alice, 1))
        ]
        assert [await letter.answer for letter in both] == [STORED] * 2
    *apart, together = authors_of(watched.committed)
    assert all(len(authors) == 1 for authors in apart)
    assert together == {alice.pubkey, bob.pubkey}


async def test_what_others_sent_of_a_kind_that_took_long_waits_unless_it_is_what_people_say(
    home: Home,
) -> None:
    """Who comes from another address each time has no past."""
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    deletions = [home.made(bob, 5, ["e", f"{n:064x}"]) for n in range(4)]
    assert await home.post(deletions[0], connection=1).answer == STORED
    assert await home.post(home.made(bob, 7, ["e", f"{1:064x}"]), connection=2).answer == STORED
    home.store.append_s = 0.0
    held = home.post(deletions[1], connection=3)
    behind = home.post(home.made(bob, 1, content="then"), connection=3)
    others = [home.post(home.made(carol, kind), connection=4) for kind in (0, 1, 7, 9)]
    by_owner = home.letter_from("192.0.2.1")
    by_owner.is_owner = True
    home.ingest.submit(deletions[2], by_owner, Origin.WIRE)
    imported = home.post(deletions[3], Origin.IMPORT)
    answers = [await letter.answer for letter in (*others, by_owner, imported)]
    assert [accepted for accepted, _ in answers] == [True] * 6
    assert not held.answer.done()
    assert not behind.answer.done()
    assert home.ingest.waiting["commit"] == 2
    home.ingest.hurry()
    assert [await letter.answer for letter in (held, behind)] == [STORED] * 2
    assert [row.event.content for row in await home.store.since(0, 99)][-1] == "then"


async def test_what_is_put_back_before_what_waits_is_answered(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to join that was put back before a deletion, which had its turn: for ever."""
    monkeypatch.setattr(commit_limits, "_PAUSE", 0.0)
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    deletions = [home.made(bob, 5, ["e", f"{n:064x}"]) for n in range(2)]
    assert await home.post(deletions[0], connection=1).answer == STORED
    letters = []
    for connection, event in (
        (2, home.made(alice, 1, content="long")),
        (3, home.made(alice, 20001)),  # passed on: what may give rights behind it is put back
        (3, home.made(alice, 28934, ["claim", "x"])),
        (3, deletions[1]),
    ):
        letter = home.letter_from("192.0.2.1")
        letter.connection, letter.counted_as = connection, "192.0.2.1"
        home.ingest.submit(event, letter, Origin.WIRE)
        letters.append(letter)
    assert len([await letter.answer for letter in letters]) == 4


async def test_what_a_page_posts_waits_with_its_address(home: Home) -> None:
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0

    def posted(who: SecretKey, address: str) -> asyncio.Task[tuple[bool, str]]:
        event, keys = home.made(who, 1), frozenset({who.pubkey})
        return asyncio.create_task(
            home.ingest.published(event, keys, ip_address(address), counted_as=address)
        )

    assert await posted(bob, "192.0.2.1") == STORED
    home.store.append_s = 0.0
    later = posted(carol, "192.0.2.1")
    assert await posted(carol, "192.0.2.2") == STORED
    assert await posted(owner, "192.0.2.1") == STORED, "of an owner"
    assert not later.done()
    home.ingest.hurry()
    assert await later == STORED


async def test_what_waits_for_its_turn_is_not_carried_out_for_who_has_gone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(home.store, ReferenceStore)
    home.store.append_s = 1.0
    assert await home.post(home.made(bob, 1), connection=1).answer == STORED
    home.store.append_s = 0.0
    gone = [home.post(home.made(bob, 1, content="gone"), connection=1) for _ in range(2)]
    for letter in gone:
        letter.is_over = True
    assert await home.post(home.made(carol, 1), connection=2).answer == STORED
    assert not any(letter.answer.done() for letter in gone)
    home.ingest._slow.pause_ends = 0.0
    home.ingest._serve_slow()
    assert [await letter.answer for letter in gone] == [
        (False, "error: the connection was closed")
    ] * 2
    assert "gone" not in [row.event.content for row in await home.store.since(0, 99)]


NOTE = alice.sign(1, [], "", NOON)
VANISH = alice.sign(62, [["relay", "ALL_RELAYS"]], "", NOON)
DELETION = alice.sign(5, [["e", "0" * 64]], "", NOON)
CONNECTIONS = count(1000)
CHAT = alice.sign(9, [["h", "tea"]], "", NOON)


def sent_by(
    client: int | str,
    event: Event = NOTE,
    *,
    connection: int | None = None,
    is_owner: bool = False,
    is_known: bool = False,
    origin: Origin = Origin.WIRE,
) -> WriteEvent:
    """`client`: its number, or address. None: a connection of its own."""
    author = Unconnected(
        connection=connection or next(CONNECTIONS),
        counted_as=f"{client}",
        is_owner=is_owner,
        is_known=is_known,
    )
    return WriteEvent(event, 1, 1, author, origin)


def took(slow: SlowClients, now: float, seconds: float, *items: WriteEvent) -> Sequence[object]:
    """Commit these; the result is whose it may have been."""
    suspects = slow.note(items, seconds, 0.0, seconds, now)
    slow.ended(items)
    return suspects


class Writer:
    """Commits one transaction after the other in time of its own: of chat messages that known and
    unknown people send, one a second, and of events that take two seconds."""

    chat_s = 0.003
    slow_s = 2.0

    def __init__(self) -> None:
        self.slow = SlowClients()
        self.now = 0.0
        self.slow_time = 0.0
        self.waits = list[float]()
        self._chats = 0

    def run(self, events: deque[WriteEvent], until: float, *, again: bool = False) -> None:
        """`again`: who was served sends the same again."""
        while self.now < until:
            if not self._chat():
                self._serve(events, again=again)

    def _chat(self) -> bool:
        """What was sent before, as one batch."""
        sent = range(self._chats, int(self.now) + 1)
        batch = [sent_by(-1 - number % 40, CHAT, is_known=bool(number % 2)) for number in sent]
        assert not any(self.slow.holds(item, self.now) for item in batch)
        if batch:
            self.now += self.chat_s
            assert took(self.slow, self.now, self.chat_s, *batch) == ()
            self.waits += [self.now - number for number in sent]
            self._chats += len(batch)
        return bool(batch)

    def _serve(self, events: deque[WriteEvent], *, again: bool) -> None:
        given = self.slow.next(self.now)
        while events and not given:
            item = events.popleft()
            given = [] if self.slow.holds(item, self.now) else [item]
        if not given:
            self.now = float(self._chats)
            if self.slow.due_at is not None:
                self.now = min(self.now, max(self.slow.pause_ends, self.now - 1))
            return
        (item,) = given
        self.now += self.slow_s
        self.slow_time += self.slow_s
        assert took(self.slow, self.now, self.slow_s, item) == ()
        if again:
            events.append(item)


def test_slow_clients_have_a_quarter_of_the_time_however_many_they_are() -> None:
    writer = Writer()
    writer.run(deque(sent_by(client) for client in range(1, 61)), 3600.0, again=True)
    assert writer.slow_time / writer.now <= 0.25
    assert max(writer.waits) <= writer.slow_s + 2 * writer.chat_s


def test_so_have_clients_that_come_for_the_first_time() -> None:
    writer = Writer()
    writer.run(deque(sent_by(client, VANISH) for client in range(1, 2001)), 3600.0)
    assert 0.15 < writer.slow_time / writer.now <= 0.25
    assert max(writer.waits) <= writer.slow_s + 2 * writer.chat_s


def test_a_client_that_becomes_quick_is_free_again() -> None:
    slow = SlowClients()
    took(slow, 1.0, 1.0, sent_by(1))
    waiting = [sent_by(1) for _ in range(5)]
    assert all(slow.holds(item, 1.0) for item in waiting)
    for now in (5.0, 6.0, 7.0):
        (item,) = slow.next(now)
        took(slow, now, 0.01, item)
    assert len(slow.next(7.0)) == 2, "what waits of it waits no longer"
    assert slow.due_at is None
    assert not slow.holds(sent_by(1), 7.0)


def test_nobody_waits_for_what_another_client_took() -> None:
    slow = SlowClients()
    assert took(slow, 1.0, 1.5, sent_by(1), sent_by(2)) != ()
    took(slow, 3.0, 1.5, sent_by(3))
    assert slow.holds(sent_by(3), 3.0)
    assert not any(slow.holds(sent_by(client), 3.0) for client in (1, 2, 4))
    assert not any(slow.holds(sent_by(client, VANISH), 3.0) for client in (1, 2, 4))


def test_known_keys_come_first_and_who_waits_longest() -> None:
    slow = SlowClients()
    took(slow, 1.0, 1.0, sent_by(9, VANISH))
    one, another = sent_by(1, VANISH), sent_by(2, VANISH)
    same, known = sent_by(1, VANISH), sent_by(3, VANISH, is_known=True)
    assert all(slow.holds(item, 1.0) for item in (one, same, another, known))
    served = list[WriteEvent]()
    for _ in range(4):
        assert slow.next(slow.pause_ends - 0.1) == []
        served += slow.next(slow.pause_ends)
        assert slow.next(slow.pause_ends) == [], "one at a time"
        took(slow, slow.pause_ends + 1.0, 1.0, served[-1])
    assert [id(item) for item in served] == [id(item) for item in (known, one, another, same)]


@pytest.mark.parametrize("own", ["203.0.113.5", "2001:db8:7:fff::/64"])
@pytest.mark.parametrize("is_known", [True, False])
def test_networks_take_turns_and_in_each_its_clients(own: str, *, is_known: bool) -> None:
    """Of an IPv6 /48 each of 4,000 addresses had its turn before a member's deletion."""
    slow = SlowClients()
    took(slow, 1.0, 1.0, sent_by(9, VANISH))
    many = [
        sent_by(f"2001:db8:7:{number % 20}::/64", VANISH, is_known=is_known) for number in range(60)
    ]
    honest = sent_by(own, VANISH, is_known=is_known)
    assert all(slow.holds(item, 1.0) for item in (*many, honest))
    served = list[WriteEvent]()
    while honest not in served:
        served += slow.next(slow.pause_ends)
        took(slow, slow.pause_ends, 0.5, served[-1])
    assert len(served) == (2 if own.startswith("203") else 21)


def test_what_is_put_back_before_what_waits_has_its_turn() -> None:
    """The turn was of an event that could not be next on its connection, for ever."""
    slow = SlowClients()
    took(slow, 0.0, 2.0, sent_by(1, VANISH))
    first, behind = (sent_by(2, VANISH, connection=7) for _ in range(2))
    assert slow.holds(behind, 1.0)
    assert slow.holds(first, 1.0), "it was put back"
    assert slow.next(10.0) == [first]
    assert not slow.holds(first, 10.0)
    slow.ended([first])
    assert slow.holds(behind, 10.0)
    assert slow.next(20.0) == [behind]
    assert not slow.holds(first, 20.0), "put back before the one whose turn it is"
    slow.ended([first])
    assert slow.holds(behind, 20.0)
    assert slow.next(30.0) == [behind]


@pytest.mark.parametrize("before", [True, False])
async def test_what_is_put_back_has_its_turn_though_its_key_became_known_or_unknown(
    *, before: bool
) -> None:
    """The turn was of the event behind it, and all slow clients waited for ever."""
    slow, author = SlowClients(), Letter()
    author.counted_as, author.is_known = "2", before
    first, behind = (WriteEvent(VANISH, 1, 1, author, Origin.WIRE) for _ in range(2))
    took(slow, 0.0, 2.0, sent_by(1, VANISH))
    assert slow.holds(behind, 1.0)
    author.is_known = not before
    assert slow.holds(first, 1.0), "it was put back"
    assert slow.next(10.0) == [first]
    assert not slow.holds(first, 10.0)
    took(slow, 10.1, 0.1, first)
    assert slow.due_at is None, "its line waits once"


async def lane_with_slow_clients(random: Random) -> None:
    """Commit random events of known and unknown keys, some of which take long or are put back."""
    slow, now, numbers = SlowClients(), 0.0, count()
    authors = [Letter() for _ in range(4)]
    for connection, author in enumerate(authors, 1):
        author.connection, author.counted_as = connection, f"{connection % 3}"
    sent = {author.connection: list[int | None]() for author in authors}
    committed = {author.connection: list[int | None]() for author in authors}
    sends = 1000

    def send() -> None:
        nonlocal sends
        sends -= 1
        author, number = random.choice(authors), next(numbers)
        sent[author.connection].append(number)
        event = random.choice((NOTE, CHAT, DELETION, VANISH))
        item = WriteEvent(event, 1, 1, author, Origin.WIRE, message=number)
        item.needs_turn = event is VANISH and random.random() < 0.3
        assert lane.put(item)

    def serve() -> None:
        for item in slow.next(now):
            lane.release(item)

    def happen() -> None:
        """While a batch is committed, or nothing is."""
        nonlocal now
        for _ in range(random.randrange(3) if sends > 0 else 0):
            send()
        random.choice(authors).is_known ^= True
        now += random.choice((0.0, 0.0, 0.0, 0.0, 100.0))
        if slow.due_at is not None and random.random() < 0.5:
            now = max(now, slow.due_at)
            serve()

    async def commit(batch: Sequence[WriteEvent]) -> None:
        nonlocal now
        assert len(batch) == 1 or not any(map(slow.has_turn, batch)), "it is committed alone"
        happen()
        done = len(batch)
        if sends > 0 and random.random() < 0.7:
            done = random.randrange(min(done, 2) + 1)
            lane.put_back(batch[done:])
            happen()
        for item in batch[:done]:
            committed[item.author.connection].append(item.message)
        seconds = random.choice((0.001, 2.0))
        now += seconds
        if done:
            slow.note(batch[:done], seconds, 0.0, seconds, now)
        slow.ended(batch)
        happen()

    lane: Lane[WriteEvent] = Lane(
        commit,
        max_batch=MAX_BATCH,
        max_waiting=1000,
        turn_of=client_or_type,
        line_of=connection_or_type,
        cost_of=lambda item: MAX_BATCH if slow.has_turn(item) else 1,
        is_held=lambda item: slow.holds(item, now),
    )
    running = asyncio.create_task(lane.run())
    while sends > 0 or len(lane):
        happen()
        await asyncio.sleep(0)  # until nothing can be committed
        if sends <= 0 and len(lane):
            assert slow.due_at is not None, "they would wait for ever"
            now = max(now, slow.due_at)
            serve()
    lane.close()
    await running
    assert committed == sent, "each once, those of a connection in order"
    assert slow.served is None
    assert slow.due_at is None


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_put_back_and_whoever_is_known_all_have_their_turn(seed: int) -> None:
    await lane_with_slow_clients(Random(seed))


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_client_whose_first_event_makes_its_key_known_keeps_nobody_waiting(
    home: Home, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """What was behind waited as of an unknown key, what was put back before it as of a known."""
    monkeypatch.setattr(commit_limits, "LONG_S", -1.0)
    monkeypatch.setattr(commit_limits, "_PAUSE", 0.0)
    monkeypatch.setattr(batches, "_JUDGED_S", -1.0)
    monkeypatch.setattr(batches, "_CHECKED_AFTER", 1)
    assert await home.post(home.made(bob, 5, ["e", "0" * 64]), connection=1).answer == STORED
    home.ingest._slow._events._turns = turns
    letters = []
    for event in (
        home.made(carol, 9007, h="one"),
        home.made(carol, 9007, h="two"),
        home.made(carol, 5, ["e", "1" * 64]),
    ):
        letter = HerLetter(home, carol)
        home.ingest.submit(event, letter, Origin.WIRE)
        letters.append(letter)
    assert [await letter.answer for letter in letters] == [STORED] * 3
    assert await home.post(home.made(alice, 5, ["e", "2" * 64]), connection=3).answer == STORED


class HerLetter(Letter):
    """Known as soon as its key is."""

    def __init__(self, home: Home, who: SecretKey) -> None:
        self._home = home
        super().__init__()
        self.connection, self.counted_as = 2, "192.0.2.2"
        self.authenticated = frozenset({who.pubkey})

    @property
    def is_known(self) -> bool:
        return self._home.state.visibility(Viewer(self.authenticated)).is_known

    @is_known.setter
    def is_known(self, _: bool) -> None: ...


def test_known_keys_do_not_keep_others_waiting_for_ever() -> None:
    slow = SlowClients()
    took(slow, 0.0, 2.0, sent_by(1, VANISH))
    waiting = [*(sent_by(10 + number, VANISH, is_known=True) for number in range(9))]
    waiting.append(sent_by(2, VANISH))
    assert all(slow.holds(item, 1.0) for item in waiting)
    served = list[WriteEvent]()
    for number in range(4):
        served += slow.next(100.0 * (number + 1))
        slow.ended(served)
    assert [item.author.is_known for item in served] == [True, True, True, False]


def test_a_known_key_that_was_quick_waits_for_nobody_of_a_kind_that_takes_long() -> None:
    slow = SlowClients()
    took(slow, 1.0, 1.0, sent_by(9, VANISH))
    for client, is_known in ((1, True), (2, False)):
        first = sent_by(client, VANISH, is_known=is_known)
        assert slow.holds(first, 5.0)
        assert slow.next(slow.pause_ends) == [first]
        took(slow, slow.pause_ends, 0.01, first)
    assert not slow.holds(sent_by(1, VANISH, is_known=True), 6.0)
    assert slow.holds(sent_by(1, VANISH), 6.0)
    assert slow.holds(sent_by(2, VANISH), 6.0)
    assert not slow.holds(sent_by(3, VANISH), 66.0), "a minute after the last long one"


def test_nobody_waits_because_of_a_request_to_vanish_that_was_known_to_be_long() -> None:
    slow, large = SlowClients(), sent_by(1, VANISH)
    large.needs_turn = True
    assert slow.holds(large, 0.0)
    assert slow.has_request(client_or_type(large), is_known=True)
    assert not slow.has_request("another", is_known=True)
    assert [*slow.next(0.0)] == [large]
    assert took(slow, 2.0, 2.0, large) == ()
    assert not slow.holds(sent_by(2, VANISH), 2.0)
    another = sent_by(2, VANISH)
    another.needs_turn = True
    assert slow.holds(another, 2.0)
    assert slow.holds(sent_by(1), 2.0), "its client is slow"
    assert (slow.next(9.0), len(slow.next(10.0))) == ([], 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_others_wait_for_one_request_to_vanish_however_many_networks_send_them(
    *, is_known: bool
) -> None:
    slow = SlowClients()
    took(slow, 0.0, 2.0, sent_by(1, DELETION))
    requests = [sent_by(10 + number, VANISH, is_known=True) for number in range(9)]
    for item in requests:
        item.needs_turn = True
    others = [sent_by(2 + number, DELETION, is_known=is_known) for number in range(3)]
    assert all(slow.holds(item, 1.0) for item in [*requests, *others])
    served = list[WriteEvent]()
    for number in range(12):
        served += slow.next(100.0 * (number + 1))
        slow.ended(served)
    assert [item for item in served if item in others] == others
    assert [item for item in served if item in requests] == requests
    assert [item in requests for item in served] == [True, False] * 3 + [True] * 6
    assert slow.due_at is None


def test_a_request_that_follows_an_event_of_its_connection_waits_once() -> None:
    """What was put back before it takes its place."""
    slow = SlowClients()
    request = sent_by(1, VANISH, connection=7)
    request.needs_turn = True
    took(slow, 0.0, 2.0, sent_by(1))
    assert slow.holds(request, 1.0)
    assert slow.has_request("1")
    before = sent_by(1, connection=7)
    assert slow.holds(before, 1.0)
    assert not slow.has_request("1")
    assert slow.next(100.0) == [before]
    slow.ended([before])
    assert slow.due_at is None
    assert slow.holds(request, 100.0)
    assert slow.next(200.0) == [request]


def test_who_shares_a_long_transaction_stays_apart_as_long_as_a_pause() -> None:
    """Two addresses that sent one quick event after each slow one together would never rest."""
    limits, sent = ClientLimits(), [sent_by(1)]

    def is_apart_after_a_quick_commit(now: float) -> bool:
        limit = limits.take("1")
        limit.succeeded(now)
        limits.set("1", limit)
        return "1" in limits.apart(sent)[1]

    limits.time_apart(["1"], 6.0)
    assert all(is_apart_after_a_quick_commit(5.9) for _ in range(20))
    assert not is_apart_after_a_quick_commit(6.1)


@pytest.mark.parametrize("is_known", [True, False])
def test_of_those_apart_known_keys_come_first_then_networks_take_turns(*, is_known: bool) -> None:
    """One long transaction set apart all who had a part in it: beside 960 addresses of 16 networks
    that always had something waiting, sixty people were not served for 20 s."""
    limits, served = ClientLimits(), list[object]()
    many = [f"10.{n % 16}.0.{n // 16}" for n in range(960)]
    people = [f"192.{n}.2.1" for n in range(20)]
    parts: dict[object, Sequence[LaneItem]] = {client: [sent_by(client)] for client in many}
    parts |= {client: [sent_by(client, is_known=is_known)] for client in people}
    limits.time_apart(parts, inf)
    for _ in range(80):
        client = limits.next_of(parts)
        served.append(client)
        limits.set(client, limits.take(client))
    assert len(served) == 80
    assert all(served.count(client) >= (2 if is_known else 1) for client in people)
    assert len([client for client in served if client in many]) >= 16


async def test_those_apart_have_as_much_time_as_the_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 625 clients was committed after each transaction of the others, which took 0.3 s."""
    now, ingest, apart = 0.0, home.ingest, list[object]()

    async def committed(batch: Sequence[LaneItem]) -> int:
        nonlocal now
        now += 0.3
        return len(batch)

    async def limited(part: Sequence[LaneItem]) -> int:
        nonlocal now
        apart.append(client_or_type(part[0]))
        now += 0.03
        return len(part)

    monkeypatch.setattr("relay.write.ingest.perf_counter", lambda: now)
    monkeypatch.setattr(ingest, "_committed", committed)
    monkeypatch.setattr(ingest, "_limited", limited)
    ingest._limits.time_apart([f"{number}" for number in range(1, 31)], inf)
    batch = [sent_by(number) for number in range(40)]
    await ingest._commit(batch)
    assert 10 <= len({*apart}) <= 11
    assert len({*apart}) == len(apart)
    assert {client_or_type(item) for item in ingest._lane.drop()} == {
        f"{number}" for number in range(1, 31)
    } - {*apart}


def test_owners_are_not_slow_and_wait_for_nobody() -> None:
    slow = SlowClients()
    alone, other = sent_by(1, is_owner=True), sent_by(2)
    assert took(slow, 1.0, 1.5, alone) == ()
    assert not slow.holds(sent_by(1), 1.0)
    assert took(slow, 3.0, 1.5, alone, other) == ["2"]
    took(slow, 5.0, 1.5, other)
    assert not slow.holds(sent_by(2, is_owner=True), 5.0)
    assert not slow.holds(sent_by(2, origin=Origin.IMPORT), 5.0)
    assert slow.holds(sent_by(2), 5.0)


def test_who_sends_what_an_owner_signed_is_slow() -> None:
    """With a copy of an owner's event in each batch a client would never have been."""
    slow = SlowClients()
    copy = sent_by(1, owner.sign(1, [], "", NOON))
    assert took(slow, 1.0, 1.5, copy, sent_by(1)) == ()
    assert slow.holds(sent_by(1), 1.0)
    assert {*took(slow, 9.0, 1.5, copy, sent_by(2))} == {"1", "2"}
