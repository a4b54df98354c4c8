"""What is due is delivered once and in order, whatever happens between two pieces of the work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from relay.access.shares import Standing
from relay.access.visibility import Viewer
from relay.errors import StoreFault
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import LONG_EXPIRED, Stored
from relay.nostr.event import IndexedEvent
from relay.observe import Metrics
from relay.read.fanout import Fanout, Part, Subscription
from relay.read.linked_rows import NO_LINKS
from relay.read.outbox import FlushQueue, Outbox
from relay.read.subscriptions import Subscriptions
from relay.state import RelayState
from relay.write.delivery import Delivery
from tests.cast import alice, bob, carol, owner, person
from tests.contract.writing import asked, unsigned
from tests.harness.client_in_memory import Client
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import policy_of
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.read.linked_rows import Links

ADDRESS = "192.0.2.1"
EVERYTHING = [asked(), asked(since=0), asked(kinds=[1, 7, 20001])]
"""Filters whose subscriptions get rows in different ways: one by one, or a run of them together."""


class Log(ReferenceStore):
    """Rows that were not judged, made anew each time they are read."""

    written: Sequence[Stored] = ()
    failing = 0
    """How many reads fail next."""
    rows_read = 0

    async def since(self, seq: int, limit: int) -> Sequence[Stored]:
        if self.failing:
            self.failing -= 1
            raise StoreFault("database: no answer in time")
        found = [structs.replace(row) for row in self.written if row.seq > seq][:limit]
        self.rows_read += len(found)
        return found


class Interrupted:
    """Something happens once, after the first piece that puts a frame into an outbox."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happens: Callable[[], None] | None = None
        pieces_of = Part.deliver

        def deliver(
            part: Part, rows: Sequence[Stored], links: Links = NO_LINKS
        ) -> Iterator[tuple[int, int]]:
            for frames, done in pieces_of(part, rows, links):
                if frames and self.happens is not None:
                    happens, self.happens = self.happens, None
                    happens()
                yield frames, done

        monkeypatch.setattr(Part, "deliver", deliver)


class Relay:
    def __init__(self, interrupted: Interrupted) -> None:
        self.now = 1000
        self.log = Log()
        self.state = RelayState(policy_of("open"), Groups())
        self.fanout = Fanout(self.state)
        self.interrupted = interrupted
        self.delivery = self._delivery()

    def _delivery(self) -> Delivery:
        metrics = Metrics()
        return Delivery(
            self.log,
            self.state,
            self.fanout,
            metrics,
            lambda: self.now,
            lambda: self.fanout.apart,
        )

    def flushes(self, queue: FlushQueue) -> None:
        self.fanout = Fanout(self.state, flush_queue=queue)
        self.delivery = self._delivery()

    async def delivers(self) -> None:
        """Those apart too."""
        await self.delivery.run()
        for each in self.delivery.deliveries_apart():
            await each.ended()

    def follows(self, *filters: Filter, key: SecretKey = alice) -> Client:
        client = Client(key)
        subscription = Subscription("s", filters, client, client.outbox, 0, ADDRESS)
        subscription.begin_backlog(100)
        self.fanout.open(subscription)
        subscription.end_backlog()
        return client

    def commits(self, *kinds: int) -> None:
        """Notes "1", "2", …; an ephemeral kind has no seq."""
        rows, seq = [], 0
        for number, kind in enumerate(kinds, 1):
            is_stored = kind < 20_000
            seq += is_stored
            rows.append(Stored(seq if is_stored else 0, unsigned(alice, kind, [], f"{number}")))
        self.log.written = [row for row in rows if row.seq]
        self.delivery.add(rows)

    def changes_rights(self) -> None:
        self.state.adopt(Groups())

    def deletes(self, *contents: str) -> None:
        """As another relay on the store, which changes rights too."""
        self.log.written = [row for row in self.log.written if row.event.content not in contents]
        self.changes_rights()

    def expires(self, *contents: str) -> None:
        """Records of groups, as another relay on the store, until a sweep deletes them."""
        self.log.written = [
            structs.replace(row, expires_at=LONG_EXPIRED) if row.event.content in contents else row
            for row in self.log.written
        ]
        self.changes_rights()


@pytest.fixture(params=[False, True], ids=["at once", "apart"])
def relay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Relay:
    """Delivers to one subscription after the other; "apart": of a network that has many."""
    monkeypatch.setattr("relay.read.fanout._WORK_AT_ONCE", 1)
    monkeypatch.setattr("relay.read.fanout._ASKED_AT_ONCE", 1)
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 0 if request.param else 256)
    return Relay(Interrupted(monkeypatch))


@pytest.mark.parametrize("filter_", EVERYTHING)
@pytest.mark.parametrize("gone", [["1"], ["2"], ["3"], ["1", "2"], ["2", "4"]])
@pytest.mark.parametrize("kinds", [(1, 1, 1, 7, 1), (1, 1, 1, 1, 1, 1)])
async def test_a_deletion_during_a_delivery_keeps_no_other_row_back_and_repeats_none(
    relay: Relay, filter_: Filter, gone: list[str], kinds: Sequence[int]
) -> None:
    clients = [relay.follows(filter_) for _ in range(3)]
    relay.interrupted.happens = lambda: relay.deletes(*gone)
    relay.commits(*kinds)
    await relay.delivers()
    every = [f"{number}" for number, _ in enumerate(kinds, 1)]
    left = [text for text in every if text not in gone]
    for client in clients:
        said = client.contents()
        assert [text for text in said if text in left] == left
        assert said == [text for text in every if text in said]


async def test_a_row_that_is_deleted_while_it_is_read_again_is_not_delivered_with_later_rights(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted before its group was opened."""
    client = relay.follows(asked(kinds=[1]))
    relay.log.written = [Stored(n, unsigned(alice, 1, [], f"{n}")) for n in (1, 2, 3)]
    since = relay.log.since
    calls = 0

    async def slowly(seq: int, limit: int) -> Sequence[Stored]:
        nonlocal calls
        calls += 1
        found = await since(seq, limit)
        if calls == 1:
            relay.deletes("2")
            relay.delivery.add([])
        return found

    monkeypatch.setattr(relay.log, "since", slowly)
    relay.delivery.add_others(range(1, 4), {})
    await relay.delivers()
    assert client.contents() == ["1", "3"]


@pytest.mark.parametrize("filter_", EVERYTHING)
async def test_a_row_that_expires_at_once_is_not_delivered_any_more(
    relay: Relay, filter_: Filter
) -> None:
    """Its author has vanished, or its group has ended."""
    clients = [relay.follows(filter_) for _ in range(3)]
    relay.interrupted.happens = lambda: relay.expires("2", "4")
    relay.commits(1, 1, 1, 7, 1)
    await relay.delivers()
    assert clients[-1].contents() == ["1", "3", "5"]
    later = relay.follows(filter_)
    relay.delivery.add_others(range(1, 6), {})
    await relay.delivers()
    assert later.contents() == ["1", "3", "5"]


@pytest.mark.parametrize("filter_", EVERYTHING)
@pytest.mark.parametrize("failing", [1, 2])
async def test_rows_that_cannot_be_read_again_stay_due(
    relay: Relay, filter_: Filter, failing: int
) -> None:
    """Rights change during the delivery, and the store does not answer."""
    clients = [relay.follows(filter_) for _ in range(3)]

    def happens() -> None:
        relay.changes_rights()
        relay.log.failing = failing

    relay.interrupted.happens = happens
    relay.commits(1, 1, 1, 7, 1)
    for _ in range(failing):
        await relay.delivers()
        of_relay = [relay.delivery, *relay.delivery.deliveries_apart()]
        assert sum(map(len, of_relay)) == 1
    await relay.delivers()
    assert [client.contents() for client in clients] == [["1", "2", "3", "4", "5"]] * 3


@pytest.mark.parametrize("filter_", EVERYTHING)
async def test_a_passed_on_event_that_is_given_up_keeps_no_stored_row_back(
    relay: Relay, filter_: Filter
) -> None:
    clients = [relay.follows(filter_) for _ in range(3)]
    relay.interrupted.happens = relay.changes_rights
    relay.commits(20001, 1, 20001, 1, 7, 1)
    await relay.delivers()
    for client in clients:
        assert [text for text in client.contents() if text not in "13"] == ["2", "4", "5", "6"]


@pytest.mark.parametrize("filter_", EVERYTHING)
async def test_who_has_a_row_does_not_get_it_again_when_rights_were_unknown_for_a_while(
    relay: Relay, filter_: Filter
) -> None:
    is_current = True

    def loses_touch() -> None:
        nonlocal is_current
        is_current = False

    relay.state.is_current = lambda: is_current
    clients = [relay.follows(filter_) for _ in range(3)]
    relay.interrupted.happens = loses_touch
    relay.commits(1, 1, 7)
    await relay.delivers()
    is_current = True
    await relay.delivers()
    assert [client.contents() for client in clients] == [["1", "2", "3"]] * 3


class Reading:
    """The socket of a client that reads whatever is written, at once."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, data: bytes) -> None:
        self.rows += data.count(b'"EVENT"')

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize(("size", "number"), [(300_000, 12), (15_500, 240)])
@pytest.mark.parametrize("at_once", [1, 3])
async def test_rows_wait_until_the_loop_has_written_those_before(
    relay: Relay, size: int, number: int, at_once: int
) -> None:
    """Notes of 390 kB, or 15 kB, for 300 clients came faster than the loop could write: they were
    closed for reading too slowly."""
    loop = asyncio.get_running_loop()
    queue = FlushQueue(loop.call_soon)
    relay.flushes(queue)
    sockets = [Reading() for _ in range(100)]
    for socket in sockets:
        outbox = Outbox(
            socket, queue, max_bytes=1 << 20, overflow=lambda: pytest.fail("it reads at once")
        )
        subscription = Subscription("s", (asked(kinds=[1]),), Client(alice), outbox, 0, ADDRESS)
        subscription.begin_backlog(100)
        relay.fanout.open(subscription)
        subscription.end_backlog()
    rows = [Stored(n, unsigned(alice, 1, [], f"{n}{'x' * size}")) for n in range(1, number + 1)]
    relay.log.written = rows
    for first in range(0, number, at_once):
        relay.delivery.add(rows[first : first + at_once])
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, queue.live_bytes)
        loop.call_soon(watch)

    watch()
    await relay.delivers()
    await eventually("all is written", lambda: not queue.live_bytes)
    assert [socket.rows for socket in sockets] == [number] * 100
    assert most < 40 << 20, "in all outboxes together"


class Turns:
    """The turns of work, one for each that is given."""

    def __init__(self) -> None:
        self.given = asyncio.Semaphore(0)

    def begin(self) -> None: ...
    def end(self) -> bool:
        return True

    async def rest(self) -> None:
        await self.given.acquire()


@pytest.fixture
def turns(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Of the deliveries to a network of which one subscription is not apart."""
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 1)
    turns = Turns()
    relay.fanout.work_of = lambda _name, _standing: turns
    return turns


async def test_a_commit_waits_for_no_delivery_apart(relay: Relay, turns: Turns) -> None:
    """To compare an event with all filters of sixteen networks took up to a second."""
    first, *others = [relay.follows(asked(kinds=[1])) for _ in range(4)]
    relay.commits(1, 20001, 1)
    await relay.delivery.run()
    assert first.contents() == ["1", "3"]
    assert not any(client.contents() for client in others)
    turns.given.release()
    await eventually("the first piece", lambda: others[0].outbox.queued_bytes > 0)
    assert not others[1].contents()
    for _ in range(20):
        turns.given.release()
    for each in relay.delivery.deliveries_apart():
        await each.ended()
    assert [client.contents() for client in others] == [["1", "3"]] * 3


async def test_whom_an_owner_has_admitted_waits_for_no_filters_of_the_network(
    relay: Relay, turns: Turns
) -> None:
    """An office whose members are in one network got live events 14 s late."""
    members = OrderedMap[str, tuple[str, ...]]({bob.pubkey: (), carol.pubkey: ()})
    tea = Group("tea", flags=frozenset({Flag.CLOSED}), members=members, founder=owner.pubkey)
    relay.state.adopt(relay.state.groups.with_group(tea))
    office = [Client(each) for each in (alice, bob, carol, alice, bob)]
    subscriptions = [
        Subscription("s", (asked(kinds=[1]),), client, client.outbox, 0, ADDRESS)
        for client in office
    ]
    for each in subscriptions:
        relay.fanout.open(each)
    assert len(relay.fanout.apart) == 2, "of the unknown key, and of a second filter of Bob"
    relay.commits(1)
    await relay.delivery.run()
    assert [client.contents() for client in office] == [["1"], ["1"], ["1"], [], []]
    for each in subscriptions:
        relay.fanout.close(each)
    assert not relay.fanout.apart
    assert not len(relay.fanout)
    assert not relay.fanout._filters.used
    turns.given.release()


async def test_no_commit_waits_for_filters_of_very_many_tag_values(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of 5,000 values in each of sixteen networks made deliveries of 28 ms."""
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 64)
    few = relay.follows(asked(tag_x=[f"{number}" for number in range(31 * 32)]))
    many = relay.follows(asked(tag_x=[f"{number}" for number in range(33 * 32)]))
    event = unsigned(alice, 1, [["x", "1"]])
    relay.delivery.add([Stored(1, event)])
    await relay.delivery.run()
    assert few.outbox.queued_bytes
    assert not many.outbox.queued_bytes
    for _ in range(20):
        turns.given.release()
    await relay.delivers()
    assert many.outbox.queued_bytes


async def test_no_commit_waits_for_the_rights_of_very_many_keys(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 readers of 64 keys made each commit take up to 12 s."""
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 8)
    keys = [person(f"{number}") for number in range(64)]
    clients = [Client(*keys[:40]), Client(alice), Client(*keys)]
    subscriptions = [
        Subscription("s", (asked(kinds=[1]),), each, each.outbox, 0, ADDRESS) for each in clients
    ]
    for each in subscriptions:
        relay.fanout.open(each)
    assert [each.part is relay.fanout for each in subscriptions] == [True, True, False]
    clients[1].viewer = Viewer(frozenset({each.pubkey for each in keys[:15]}))
    assert relay.fanout.reweigh(subscriptions[1])
    clients[1].viewer = Viewer(frozenset({each.pubkey for each in keys[:16]}))
    assert not relay.fanout.reweigh(subscriptions[1])
    for each in subscriptions:
        relay.fanout.close(each)
    assert not relay.fanout._filters.used
    turns.given.release()


async def test_known_keys_do_not_wait_for_the_filters_of_others_in_their_network(
    relay: Relay, turns: Turns
) -> None:
    """3,000 filters of a neighbour made live events of an office 4 s late."""
    of_known = Turns()
    relay.fanout.work_of = lambda _, standing: turns if standing is Standing.UNKNOWN else of_known
    first, *others = [relay.follows(asked(kinds=[1])) for _ in range(4)]
    office = [relay.follows(asked(kinds=[1]), key=owner) for _ in range(4)]
    relay.commits(1, 1)
    await relay.delivery.run()
    for _ in range(20):
        of_known.given.release()
    await eventually("delivered", lambda: office[-1].outbox.queued_bytes > 0)
    assert not any(client.outbox.queued_bytes for client in others)
    for _ in range(20):
        turns.given.release()
    await relay.delivers()
    assert [client.contents() for client in (first, *others, *office)] == [["1", "2"]] * 8


async def test_the_tags_of_an_event_are_gone_through_once_for_all_networks_apart(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 tags took 5 ms for each of sixteen networks, before the next commit."""
    for number in range(4):
        for _ in range(2):
            client = Client(alice)
            address = f"10.0.{number}.1"
            subscription = Subscription(
                "s", (asked(tag_x=["1"]),), client, client.outbox, 0, address
            )
            relay.fanout.open(subscription)
    assert len(relay.fanout.apart) == 4
    asked_of: list[Event] = []
    awaits = Subscriptions.awaits

    def noted(index: Subscriptions[Subscription], event: Event) -> bool:
        asked_of.append(event)
        return awaits(index, event)

    monkeypatch.setattr(Subscriptions, "awaits", noted)
    event = unsigned(alice, 1, [["x", f"{value}"] for value in range(2, 200)])
    relay.delivery.add([Stored(1, event)])
    assert [isinstance(each, IndexedEvent) for each in asked_of] == [True] * 4
    assert len({id(each) for each in asked_of}) == 1
    assert not any(map(len, relay.delivery.deliveries_apart()))


async def test_of_what_is_due_apart_only_so_many_bytes_wait(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored rows are read again, each once, and what was only passed on is dropped."""
    monkeypatch.setattr("relay.write.delivery._MOST_BYTES", 500)
    relay.follows(asked(kinds=[1]))
    client = relay.follows(asked(kinds=[1, 20001]))
    relay.log.written = rows = [Stored(n, unsigned(alice, 1, [], f"{n}")) for n in range(1, 21)]
    for number in range(0, 20, 2):
        passed_on = Stored(0, unsigned(alice, 20001, [], f"-{number}"))
        relay.delivery.add([rows[number], passed_on, rows[number + 1]])
        await relay.delivery.run()
        (apart,) = relay.delivery.deliveries_apart()
        waiting = [rows for due in apart._due if not isinstance(due, range) for rows in due[1:]]
        assert len(waiting) == 1
        assert len(apart._old) <= 1
    for _ in range(60):
        turns.given.release()
    await apart.ended()
    said = client.contents()
    assert [text for text in said if text[0] != "-"] == [f"{n}" for n in range(1, 21)]
    assert len(said) == 21


@pytest.mark.parametrize("number", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("bound", ["_MOST_BYTES", "_MOST_DUE"])
async def test_what_a_network_apart_may_not_read_changes_nothing_in_what_it_gets(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch, bound: str, number: int
) -> None:
    """Hidden messages that waited there dropped events of its own, or had them read again, which
    told that there were some."""
    monkeypatch.setattr(f"relay.write.delivery.{bound}", 900 if bound == "_MOST_BYTES" else 3)
    members = OrderedMap[str, tuple[str, ...]]({bob.pubkey: ()})
    flags = frozenset({Flag.PRIVATE, Flag.HIDDEN})
    hidden = Group("den", flags=flags, members=members, founder=bob.pubkey)
    own = [
        Stored(0, unsigned(alice, 20001, [], "first")),
        Stored(1, unsigned(alice, 1, [], "second")),
        Stored(0, unsigned(alice, 20001, [], "third")),
    ]
    said = [Stored(2 + n, unsigned(bob, 9, [["h", "den"]], "psst"), "den") for n in range(number)]
    last = Stored(100, unsigned(alice, 1, [], "last"))
    answers = []
    for kinds in ([1, 20001], [1, 9, 20001]):
        relay = Relay(relay.interrupted)
        relay.fanout.work_of = lambda _name, _standing: turns
        relay.state.adopt(Groups(OrderedMap({"den": hidden})))
        relay.delivery.add([])
        relay.follows(asked(kinds=[1]))
        client = relay.follows(asked(kinds=kinds))
        relay.log.written = [*said, last]  # "second" was deleted
        for rows in (own, *[[row] for row in said], [last]):
            relay.delivery.add(rows)
            await relay.delivery.run()
        for _ in range(200):
            turns.given.release()
        (apart,) = relay.delivery.deliveries_apart()
        await apart.ended()
        answers.append(client.contents())
    assert answers[0] == answers[1]
    if number == 0:
        assert answers[0] == ["first", "second", "third", "last"]
    assert answers[0][-1] == "last"


@pytest.mark.parametrize("kind", [20001, 20002])
async def test_events_that_are_passed_on_to_anybody_drop_older_ones_that_wait_apart(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Whether or not the network awaits them, too."""
    monkeypatch.setattr("relay.write.delivery._MOST_BYTES", 1000)
    relay.follows(asked(kinds=[1]))
    client = relay.follows(asked(kinds=[20001], authors=[alice.pubkey, bob.pubkey]))
    relay.delivery.add([Stored(0, unsigned(alice, 20001, [], "old"))])
    relay.delivery.add([Stored(0, unsigned(bob, kind, [], "x" * 900))])
    relay.delivery.add([Stored(0, unsigned(alice, 20001, [], "new"))])
    await relay.delivery.run()
    for _ in range(100):
        turns.given.release()
    (apart,) = relay.delivery.deliveries_apart()
    await apart.ended()
    assert [text for text in client.contents() if text[0] != "x"] == ["new"]


@pytest.mark.parametrize("is_read_again", [True, False])
async def test_what_expires_while_it_waits_is_not_delivered(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch, *, is_read_again: bool
) -> None:
    if is_read_again:
        monkeypatch.setattr("relay.write.delivery._MOST_BYTES", 1)
    relay.follows(asked(kinds=[1]))
    client = relay.follows(asked(kinds=[1]))
    relay.log.written = rows = [
        Stored(n, unsigned(alice, 1, [], f"{n}"), expires_at=expires_at)
        for n, expires_at in enumerate([None, 1001, 1002], 1)
    ]
    relay.delivery.add(rows)
    await relay.delivery.run()
    relay.now = 1001
    for _ in range(10):
        turns.given.release()
    (apart,) = relay.delivery.deliveries_apart()
    await apart.ended()
    assert client.contents() == ["1", "3"]


async def test_a_network_apart_that_is_behind_reads_only_what_it_awaits(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 2,000 notes a second its own messages came half a minute late."""
    monkeypatch.setattr("relay.write.delivery._MOST_BYTES", 500)
    relay.follows(asked(kinds=[1]))
    client = relay.follows(asked(kinds=[7]))
    rows = [Stored(n, unsigned(alice, 7 if n % 10 == 0 else 1, [], f"{n}")) for n in range(1, 101)]
    relay.log.written = rows
    for number in range(0, 100, 5):
        relay.delivery.add(rows[number : number + 5])
        await relay.delivery.run()
    (apart,) = relay.delivery.deliveries_apart()
    relay.log.rows_read = 0
    for _ in range(60):
        turns.given.release()
    await apart.ended()
    assert client.contents() == [f"{n}" for n in range(10, 101, 10)]
    assert relay.log.rows_read <= 10


async def test_what_other_relays_wrote_waits_apart_in_few_ranges(
    relay: Relay, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.write.delivery._MOST_DUE", 3)
    relay.follows(asked(kinds=[1]))
    client = relay.follows(asked(kinds=[1]))
    relay.log.written = [Stored(n, unsigned(alice, 1, [], f"{n}")) for n in range(1, 21)]
    for number in range(1, 21):
        relay.delivery.add_others(range(number, number + 1), {})
        await relay.delivery.run()
        (apart,) = relay.delivery.deliveries_apart()
        assert len(apart._due) <= 3
    for _ in range(60):
        turns.given.release()
    await apart.ended()
    assert client.contents() == [f"{n}" for n in range(1, 21)]


async def test_nothing_is_delivered_apart_after_the_end(relay: Relay, turns: Turns) -> None:
    clients = [relay.follows(asked(kinds=[1])) for _ in range(3)]
    relay.commits(1)
    await relay.delivery.run()
    await asyncio.sleep(0)
    relay.delivery.stop()
    turns.given.release()
    (apart,) = relay.delivery.deliveries_apart()
    with pytest.raises(asyncio.CancelledError):
        await apart.ended()
    assert [client.contents() for client in clients] == [["1"], [], []]
