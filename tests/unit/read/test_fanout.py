"""relay/read/fanout.py: a committed row goes to those who ask for it and may read it now.

N01-78…83, N29-94…101, N42-13, N46-03.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from relay.access.actors import Attestations
from relay.access.visibility import Viewer, Visibility
from relay.errors import TooSlow
from relay.groups.group import Group
from relay.lifecycle.rows import Stored
from relay.nostr import kinds
from relay.nostr.agents import Attestation
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.observe import Metrics
from relay.read import fanout as module
from relay.read.fanout import Fanout, Subscription
from relay.read.query import QueryRunner
from relay.storage.tokens import Tokenizer, TokenMatcher
from tests.cast import admin, alice, bob, carol, owner, person, stranger
from tests.contract.test_store_search import sought
from tests.contract.writing import asked, group_of, unsigned
from tests.effort import examples
from tests.harness.client_in_memory import Client
from tests.harness.read_side import DEN, ReadSide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

IN_DEN = ["h", "den"]


class Subscribed(ReadSide):
    """Subscriptions, and rows that are delivered without being stored."""

    head = 0
    """seq of the newest row."""
    written: dict[int, Stored]
    leaves_off_after: int | None = None
    """Pieces of the first delivery; it is begun again with what is not done."""

    def __init__(self, policy: PolicySet) -> None:
        super().__init__(policy)
        self.written = {}

    def deliver(self, rows: Sequence[Stored]) -> int:
        pieces = [(0, 0), *islice(self.fanout.deliver(rows), self.leaves_off_after)]
        sent = sum(frames for frames, _ in pieces)
        if self.leaves_off_after is None:
            return sent
        self.leaves_off_after = None
        return sent + self.deliver(rows[pieces[-1][1] :])

    def opens(
        self,
        client: Client,
        *filters: Filter,
        sub: str = "s",
        cursor: int | None = None,
        max_backlog: int = 100,
    ) -> Subscription:
        """A REQ whose stored rows are still being read."""
        subscription = Subscription(
            sub,
            filters or (asked(),),
            client,
            client.outbox,
            self.head if cursor is None else cursor,
            client.counted_as,
        )
        subscription.begin_backlog(max_backlog)
        self.fanout.open(subscription)
        return subscription

    def follows(self, client: Client, *filters: Filter, sub: str = "s") -> Subscription:
        """A REQ that has had its EOSE."""
        subscription = self.opens(client, *filters, sub=sub)
        subscription.end_backlog()
        return subscription

    def sends_backlog(self, subscription: Subscription) -> None:
        """After EOSE; its client waits for nothing."""
        client = subscription.reader
        assert isinstance(client, Client)
        queries = QueryRunner(
            cast("Any", self),
            self.state,
            self.fanout,
            self.limits,
            clock=lambda: 0,
            metrics=Metrics(),
        )
        with pytest.raises(StopIteration):
            queries.send_backlog(client, subscription).send(None)

    async def rows(
        self,
        seqs: Sequence[int],
        filter_: Filter,
        visibility: Visibility,
        *,
        now: int,
        address: str | None = None,
    ) -> tuple[Sequence[bytes], int]:
        """As `ClientReads.rows`."""
        found = [self.written[seq] for seq in seqs if seq in self.written]
        return [row.event.raw for row in found if visibility.may_read(row, filter_)], len(seqs)

    def commits(self, *events: Event, quiet: bool = False) -> int:
        rows = []
        for event in events:
            if kinds.is_ephemeral(event.kind):
                rows.append(Stored(0, event, group_of(event)))
                continue
            self.head += 1
            row = self.written[self.head] = Stored(self.head, event, group_of(event), quiet)
            rows.append(row)
        return self.deliver(rows)


@pytest.fixture
def relay(policy: PolicySet) -> Subscribed:
    return Subscribed(policy)


def chat(text: str, who: SecretKey = admin) -> Event:
    return unsigned(who, 9, [IN_DEN], text)


def note(text: str, **changes: Any) -> Event:
    return unsigned(**{"who": admin, "content": text, **changes})


# who asked ---------------------------------------------------------------------------------------


@pytest.mark.proves("N01-82")
def test_every_matching_subscription_gets_the_event_the_authors_too(relay: Subscribed) -> None:
    """N01-82: in the order of the commit."""
    author, other, elsewhere = Client(), Client(), Client()
    for client in (author, other):
        relay.follows(client, asked(kinds=[1]))
    relay.follows(elsewhere, asked(kinds=[7]), asked(kinds=[1], until=5))
    assert relay.commits(note("tea?"), note("yes", who=bob), unsigned(bob, 3)) == 4
    assert author.contents() == other.contents() == ["tea?", "yes"]
    assert elsewhere.frames() == []


@pytest.mark.proves("N01-90")
def test_a_frame_names_its_subscription(relay: Subscribed) -> None:
    """N01-90, N01-53: equal ids on two connections are unrelated."""
    alices, bobs = Client(), Client()
    relay.follows(alices, sub='a "b" \\')
    relay.follows(alices, sub="other")
    relay.follows(bobs, sub="other")
    event = note("tea?")
    relay.commits(event)
    frame = orjson.loads(event.raw)
    assert sorted(alices.frames()) == [["EVENT", 'a "b" \\', frame], ["EVENT", "other", frame]]
    assert bobs.frames() == [["EVENT", "other", frame]]


def test_an_event_that_several_filters_match_is_sent_once(relay: Subscribed) -> None:
    """N01-63: of one REQ; two REQs get it each."""
    client = Client()
    relay.follows(client, asked(kinds=[1]), asked(authors=[admin.pubkey]), asked(tag_t=["a", "b"]))
    relay.follows(client, asked(kinds=[1]), sub="t")
    event = note("tea?", tags=[["t", "a"], ["t", "b"]])
    assert relay.commits(event, note("more")) == 4
    assert [frame[1] for frame in client.frames()].count("s") == 2


def test_limit_does_not_apply_to_live_events(relay: Subscribed) -> None:
    """N01-78, N01-79, N01-83."""
    client = Client()
    relay.follows(client, asked(limit=0))
    relay.commits(note("old", at=1), note("new", at=2**40), note("old again", at=1))
    assert client.contents() == ["old", "new", "old again"]


@pytest.mark.proves("N01-56", "N01-90")
def test_a_closed_subscription_gets_nothing(relay: Subscribed) -> None:
    """N01-56."""
    client = Client()
    open_, waiting = relay.follows(client), relay.opens(client, sub="w")
    for subscription in (open_, waiting, open_):
        relay.fanout.close(subscription)
    assert relay.commits(note("tea?")) == 0
    assert client.frames() == []
    assert len(relay.fanout) == 0


class _Counted(list[list[str]]):
    """Tags that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[list[str]]:
        _Counted.times += 1
        return super().__iter__()


@pytest.mark.parametrize("kind", [1, 4])
def test_the_tags_of_an_event_are_not_gone_through_for_each_filter_and_reader(
    relay: Subscribed, kind: int
) -> None:
    """A thousand filters of one connection took 2.6 s for each event of 5,000 tags."""
    tags = [*([name, "x"] for name in "bcfg"), ["p", alice.pubkey]]
    event = unsigned(admin, kind, [*([["q", f"{n}"] for n in range(100)]), *tags], "tea?")
    event = structs.replace(event, tags=_Counted(event.tags))
    wanted = {f"tag_{name}": ["x"] for name in "bcfg"}
    clients = [Client(alice, person(f"{number}")) for number in range(20)]
    for client in clients:
        relay.follows(client, *(asked(**wanted, tag_p=[alice.pubkey], until=n) for n in range(20)))
        relay.follows(client, asked(**wanted), sub="all")
    _Counted.times = 0
    assert relay.commits(event) == 20
    assert _Counted.times <= 4
    assert all(client.contents() == ["tea?"] for client in clients)


def test_a_live_search_is_split_into_words_when_it_is_opened(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the next event comes, which waits for all searches."""
    relay.fanout = Fanout(relay.state, TokenMatcher())
    relay.follows(Client(alice), sought("green tea -milk"))
    split: list[str] = []
    listed = Tokenizer.listed

    def counted(tokenizer: Tokenizer, text: str) -> str:
        split.append(text)
        return listed(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "listed", counted)
    relay.commits(note("a cup of tea"), note("green tea"))
    assert [text.strip() for text in split] == ["a cup of tea", "green tea"]


def test_the_words_of_a_live_search_are_kept_while_it_is_open(relay: Subscribed) -> None:
    matcher = TokenMatcher()
    relay.fanout = Fanout(relay.state, matcher)
    subscriptions = [relay.follows(Client(alice), sought(words)) for words in ("green tea", "tea")]
    assert matcher.terms == {"green", "tea"}
    relay.fanout.close(subscriptions[0])
    assert matcher.terms == {"tea"}
    relay.fanout.close(subscriptions[1])
    assert not matcher.terms


def test_the_beginning_of_a_long_text_is_compared_with_live_searches(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To split 100,000 characters took 20 to 60 ms of the loop, for each event."""
    monkeypatch.setattr(module, "_MAX_LIVE_TEXT", 20)
    relay.fanout = Fanout(relay.state, TokenMatcher())
    client = Client(alice)
    relay.follows(client, sought("tea"))
    early, late = f"tea {'x' * 40}", f"{'x' * 20} tea"
    relay.commits(note(early), note(late))
    assert client.contents() == [early]


def test_the_whole_of_a_text_that_is_parsed_counts_for_live_searches(relay: Subscribed) -> None:
    """It counted as its first 16,384 characters, however long it took to parse."""
    relay.fanout = Fanout(relay.state, TokenMatcher())
    relay.follows(Client(alice), sought("tea"))
    profile = alice.sign(0, [], f'{{"name":"{"x" * 200_000}"}}', 1)
    more = relay.fanout.number_for(profile) - relay.fanout.number_for(note("x" * 200_000))
    assert more >= 1_000


def test_a_row_that_cannot_be_compared_keeps_no_other_row_back(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def indexed_or_odd(text: str) -> str:
        if "odd" in text:
            raise ValueError(text)
        return text

    monkeypatch.setattr("relay.read.fanout.indexed_part", indexed_or_odd)
    relay.fanout = Fanout(relay.state, TokenMatcher())
    client = Client(alice)
    relay.follows(client, sought("tea"))
    relay.commits(note("odd"), note("green tea"))
    assert client.contents() == ["green tea"]
    assert "not compared" in caplog.text


# who may read ------------------------------------------------------------------------------------


def test_a_removed_member_stops_receiving_at_once(relay: Subscribed) -> None:
    """N29-94, G-20: and only that member."""
    alices, admins, strangers = Client(alice), Client(admin), Client(stranger)
    for client in (alices, admins, strangers):
        relay.follows(client, asked(kinds=[9]))
    relay.commits(chat("for us"))
    relay.replace_den(DEN.with_removed({alice.pubkey}))
    relay.commits(chat("not for alice any more"))
    assert alices.contents() == ["for us"]
    assert admins.contents() == ["for us", "not for alice any more"]
    assert strangers.contents() == []


def test_an_added_member_receives_on_open_subscriptions(relay: Subscribed) -> None:
    """N29-95, G-20."""
    client = Client(bob)
    relay.follows(client, asked(kinds=[9], tag_h=["den"]))
    relay.commits(chat("before"))
    relay.replace_den(DEN.with_users({bob.pubkey: ()}))
    relay.commits(chat("welcome"))
    assert client.contents() == ["welcome"]


def test_another_key_of_the_connection_may_still_be_a_member(relay: Subscribed) -> None:
    """N29-94, N42-07."""
    client = Client(alice, admin)
    relay.follows(client)
    relay.replace_den(DEN.with_removed({alice.pubkey}))
    relay.commits(chat("for admin"))
    assert client.contents() == ["for admin"]


@pytest.mark.proves("N42-13", "N42-16")
def test_rights_are_those_at_delivery(relay: Subscribed) -> None:
    """N42-13: live checks use the connection's current keys."""
    client = Client()
    relay.follows(client)
    relay.commits(chat("before the login"))
    client.viewer = Viewer(frozenset({alice.pubkey}))
    relay.commits(chat("after it"))
    assert client.contents() == ["after it"]


def test_a_group_that_becomes_private_is_not_sent_to_others(relay: Subscribed) -> None:
    """N29-101."""
    client = Client(bob)
    relay.replace_den(replace(DEN, flags=frozenset()))
    relay.follows(client)
    relay.commits(chat("open"))
    relay.replace_den(DEN)
    relay.commits(chat("shut"))
    assert client.contents() == ["open"]


def test_a_deletion_in_a_private_group_is_not_sent_to_others(relay: Subscribed) -> None:
    """N29-104."""
    alices, bobs = Client(alice), Client(bob)
    for client in (alices, bobs):
        relay.follows(client, asked(kinds=[5]))
    relay.commits(unsigned(admin, 5, [IN_DEN, ["e", "e" * 64]], "sh"), quiet=True)
    assert (alices.contents(), bobs.contents()) == (["sh"], [])


@pytest.mark.proves("N46-03")
def test_a_nip46_event_is_sent_to_filters_that_name_its_recipient(relay: Subscribed) -> None:
    """N46-03, N01-42: ephemeral, of no place in the log; the filter that matched decides."""
    signer, firehose, both = Client(), Client(), Client()
    by_name = asked(kinds=[24133], tag_p=[carol.pubkey])
    relay.follows(signer, by_name)
    relay.follows(firehose, asked(kinds=[24133]), asked())
    relay.follows(both, asked(), asked(kinds=[24133]), by_name)
    relay.commits(unsigned(stranger, 24133, [["p", carol.pubkey]], "connect"))
    assert (signer.contents(), firehose.contents(), both.contents()) == (
        ["connect"],
        [],
        ["connect"],
    )


# between stored and live -------------------------------------------------------------------------


def test_rows_up_to_the_cursor_are_not_sent_live(relay: Subscribed) -> None:
    """N01-80: rows up to the cursor belong to the stored answer, later ones to the live one."""
    client = Client()
    subscription = relay.opens(client, cursor=2)
    relay.commits(note("one"), note("two"), note("three"))
    relay.sends_backlog(subscription)
    assert client.contents() == ["three"]


def test_a_backlog_that_takes_too_long_to_read_is_closed_with_the_reason(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    subscription = relay.opens(client)
    relay.commits(note("one"))

    async def rows(*_: object, **__: object) -> None:
        raise TooSlow

    monkeypatch.setattr(relay, "rows", rows)
    relay.sends_backlog(subscription)
    assert client.frames() == [["CLOSED", "s", str(TooSlow())]]
    assert subscription.is_closed


@pytest.mark.proves("N01-75", "N01-80")
def test_live_rows_wait_for_the_stored_rows_and_are_sent_once(relay: Subscribed) -> None:
    client = Client()
    subscription = relay.opens(client, asked(kinds=[1]), asked(authors=[admin.pubkey]))
    relay.commits(note("one"), unsigned(admin, 20001, [], "two, ephemeral"))
    relay.commits(note("three"))
    assert client.contents() == []
    relay.sends_backlog(subscription)
    assert client.contents() == ["one", "two, ephemeral", "three"]
    relay.sends_backlog(subscription)
    relay.commits(note("four"))
    assert client.contents() == ["four"]


def test_a_reader_removed_during_the_scan_gets_nothing_of_the_backlog(relay: Subscribed) -> None:
    """N29-94: nothing is queued past the removal."""
    client = Client(alice)
    subscription = relay.opens(client)
    relay.commits(chat("for us"), note("for all"))
    relay.replace_den(DEN.with_removed({alice.pubkey}))
    relay.sends_backlog(subscription)
    assert client.contents() == ["for all"]


class Waiting(Client):
    """A client that must wait for a turn after any work; others act meanwhile."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        super().__init__(alice)
        self._meanwhile = list(meanwhile)

    def worked(self, seconds: float) -> bool:
        return True

    async def turn(self, seconds: float) -> None:
        if self._meanwhile:
            self._meanwhile.pop(0)()


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a backlog is sent at a time."""
    monkeypatch.setattr("relay.read.fanout._BACKLOG_ROWS", 1)


@pytest.mark.usefixtures("one_by_one")
def test_rows_that_come_while_the_backlog_is_sent_come_after_it(relay: Subscribed) -> None:
    client = Waiting(
        lambda: relay.commits(note("three"), note("four")), lambda: relay.commits(note("five"))
    )
    subscription = relay.opens(client)
    relay.commits(note("one"), note("two"))
    relay.sends_backlog(subscription)
    relay.commits(note("six"))
    assert client.contents() == ["one", "two", "three", "four", "five", "six"]


def test_parsing_an_event_of_the_backlog_counts_as_work(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """110 ephemeral events of 5,000 tags took the loop for 0.1 s."""
    client, worked, now = Client(), list[float](), 0.0

    def slow(raw: bytes) -> Event:
        nonlocal now
        now += 0.01
        return event_from_raw(raw)

    monkeypatch.setattr(module, "event_from_raw", slow)
    monkeypatch.setattr("relay.read.query.thread_time", lambda: now)
    monkeypatch.setattr(client, "worked", worked.append)
    subscription = relay.opens(client)
    relay.commits(*(unsigned(admin, 20001, [], f"{number}") for number in range(3)))
    relay.sends_backlog(subscription)
    assert worked == pytest.approx([0.01, 0.01, 0.01])
    assert client.contents() == ["0", "1", "2"]


def test_reading_the_backlog_counts_as_work(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 to 7 ms for a filter of many kinds: those of 24 slow clients kept everybody waiting."""
    client, worked, turns, now = Client(), list[float](), list[float](), 0.0
    rows = relay.rows

    async def slowly(*asked: Any, **more: Any) -> Any:
        nonlocal now
        now += 0.005
        return await rows(*asked, **more)

    async def turn(seconds: float) -> None:
        turns.append(seconds)

    def counted(seconds: float) -> bool:
        worked.append(seconds)
        return True

    monkeypatch.setattr(relay, "rows", slowly)
    monkeypatch.setattr("relay.read.query.thread_time", lambda: now)
    monkeypatch.setattr(client, "worked", counted)
    monkeypatch.setattr(client, "turn", turn)
    subscription = relay.opens(client, asked(kinds=[1]), asked(kinds=[7]))
    relay.commits(note("one"), unsigned(alice, 7, [], "two"), note("three"))
    relay.sends_backlog(subscription)
    assert client.contents() == ["one", "two", "three"]
    assert worked == pytest.approx([0.005] * 3)
    assert turns == [0.0] * 3


@pytest.mark.usefixtures("one_by_one")
def test_a_reader_removed_between_two_rows_of_the_backlog_gets_no_more(relay: Subscribed) -> None:
    client = Waiting(lambda: relay.replace_den(DEN.with_removed({alice.pubkey})))
    subscription = relay.opens(client)
    relay.commits(chat("one"), chat("two"), note("for all"))
    relay.sends_backlog(subscription)
    assert client.contents() == ["one", "for all"]


@pytest.mark.usefixtures("one_by_one")
def test_what_is_closed_while_its_backlog_is_sent_gets_no_more(relay: Subscribed) -> None:
    client = Waiting(lambda: relay.fanout.close(subscription))
    subscription: Subscription = relay.opens(client)
    relay.commits(note("one"), note("two"))
    relay.sends_backlog(subscription)
    relay.commits(note("three"))
    assert client.contents() == ["one"]
    assert client.outbox.held_bytes == 0


@pytest.mark.usefixtures("one_by_one")
def test_a_backlog_that_overflows_while_it_is_sent_is_noted(relay: Subscribed) -> None:
    client = Waiting(lambda: relay.commits(note("three"), note("four"), note("one too many")))
    subscription = relay.opens(client, max_backlog=3)
    relay.commits(note("one"), note("two"))
    relay.sends_backlog(subscription)
    (first, closed) = client.frames()
    assert first[2]["content"] == "one"
    assert closed[0] == "CLOSED"


@pytest.mark.proves("N01-99")
def test_a_full_backlog_is_noted(relay: Subscribed) -> None:
    """The subscription must be CLOSED, not go on with a gap."""
    client = Client()
    subscription = relay.opens(client, asked(kinds=[1]), max_backlog=2)
    relay.commits(note("one"), unsigned(admin, 7), note("two"))
    assert not subscription.has_overflowed
    relay.commits(note("three"))
    assert subscription.has_overflowed
    assert client.contents() == []
    assert len(relay.fanout) == 0, "it is still compared with each event"
    assert client.outbox.held_bytes == 0


def test_the_backlogs_of_a_connection_hold_as_many_bytes_as_its_outbox(relay: Subscribed) -> None:
    client = Client(max_bytes=3000)
    client.on_overflow = lambda: None
    first, second = (relay.opens(client, asked(kinds=[kind])) for kind in (20_001, 20_007))
    long = "x" * 1000
    relay.commits(*(unsigned(bob, kind, [], long) for kind in (20_001, 20_007, 20_001)))
    assert not first.has_overflowed
    assert not second.has_overflowed
    relay.commits(unsigned(bob, 20_007, [], "one too many"))
    assert not first.has_overflowed
    assert second.has_overflowed
    relay.fanout.close(first)
    relay.fanout.close(second)
    again = relay.opens(client, asked(kinds=[1]))
    relay.commits(note("there is room again"))
    relay.sends_backlog(again)
    assert not again.has_overflowed
    assert client.contents() == ["there is room again"]


@pytest.mark.slow
def test_a_subscription_holds_no_text_of_what_it_waits_with_or_was_sent(relay: Subscribed) -> None:
    """An event of 10,000 short values takes 600 kB beside its bytes."""
    waiting, served = Client(), Client()
    for number in range(20):
        relay.opens(waiting, asked(tag_t=[f"{number}"]), sub=f"{number}")
        relay.follows(served, asked(tag_t=[f"{number}"]), sub=f"{number}")
    values = [f"{number}" for number in range(10_000)]
    tracemalloc.start()
    try:
        for number in range(20):
            raw = alice.sign(1, [["t", f"{number}", *values]], "", 1).raw
            relay.commits(event_from_raw(raw))
            relay.written.clear()
            served.contents()
            served.received.clear()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20 * 3 * len(raw)


def test_an_event_in_parts_of_a_backlog_is_read_as_a_whole(relay: Subscribed) -> None:
    client = Client(alice)
    subscription = relay.opens(client)
    relay.commits(unsigned(bob, 9, [IN_DEN, ["t", "x"]], "for members"), note("for all"))
    relay.sends_backlog(subscription)
    assert client.contents() == ["for members", "for all"]


def test_what_is_refused_is_not_held(relay: Subscribed) -> None:
    for _ in range(1000):
        relay.opens(Client(), asked(since=1))
    refused = []
    for _ in range(3):
        client = Client()
        refused.append(weakref.ref(client))
        assert not relay.opens(client, asked(since=1)).is_indexed
        del client
    gc.collect()
    assert [each() for each in refused] == [None, None, None]


def test_unreadable_rows_do_not_fill_the_backlog(relay: Subscribed) -> None:
    """What others say in private is nothing that it could notice by being closed."""
    client = Client(stranger)
    subscription = relay.opens(client, max_backlog=1)
    relay.commits(*(chat(str(number)) for number in range(5)), note("for all"))
    assert not subscription.has_overflowed
    relay.sends_backlog(subscription)
    assert client.contents() == ["for all"]


def test_closing_a_slow_reader_does_not_affect_others(relay: Subscribed) -> None:
    """Its subscriptions end in the midst of a delivery."""
    clients = [Client(), Client(max_bytes=100), Client()]
    for client in clients:
        open_ = relay.follows(client, asked(kinds=[1]))
        client.on_overflow = partial(relay.fanout.close, open_)
    relay.commits(note("tea?"), note("more tea?"))
    assert clients[0].contents() == clients[2].contents() == ["tea?", "more tea?"]
    assert len(relay.fanout) == 2


# what live filters cost --------------------------------------------------------------------------


@pytest.fixture
def asked_filters(monkeypatch: pytest.MonkeyPatch) -> list[Filter]:
    """Each filter that is asked whether it matches an event."""
    counted: list[Filter] = []
    matches = Filter.matches

    def counting(self: Filter, event: Event) -> bool:
        counted.append(self)
        return matches(self, event)

    monkeypatch.setattr(Filter, "matches", counting)
    return counted


def test_filters_of_who_may_not_read_a_row_are_not_asked(
    relay: Subscribed, asked_filters: list[Filter]
) -> None:
    """Whether it may is asked once for each viewer, however many filters it has."""
    nosy, member = Client(stranger), Client(alice)
    for number in range(20):
        relay.follows(nosy, *(asked(since=n) for n in range(10)), sub=f"{number}")
    relay.follows(member, asked(since=1))
    with patch.object(Visibility, "reading", autospec=True, side_effect=Visibility.reading) as read:
        relay.commits(chat("psst"))
    assert (len(asked_filters), read.call_count) == (1, 2)
    assert member.contents() == ["psst"]
    assert nosy.contents() == []


def test_a_subscription_that_has_a_row_is_not_asked_again(
    relay: Subscribed, asked_filters: list[Filter]
) -> None:
    relay.follows(Client(stranger), *(asked(since=n) for n in range(10)))
    assert relay.commits(note("tea?")) == 1
    assert len(asked_filters) == 1


def many(relay: Subscribed, *filters: Filter, who: SecretKey = stranger) -> list[Client]:
    """20 connections, each with all these filters in 10 subscriptions."""
    clients = [Client(who) for _ in range(20)]
    for client in clients:
        for number in range(10):
            relay.follows(client, *filters, sub=f"{number}")
    return clients


def test_the_filters_that_one_event_fits_are_asked_in_pieces(
    relay: Subscribed, asked_filters: list[Filter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 of eleven conditions took the loop 45 ms without a pause."""
    monkeypatch.setattr("relay.read.fanout._WORK_AT_ONCE", 50)
    monkeypatch.setattr("relay.read.fanout._ASKED_AT_ONCE", 10)
    letters = {f"tag_{letter}": ["x"] for letter in "bcdf"}
    clients = many(relay, *(asked(**letters, until=n) for n in range(5)))
    event = unsigned(admin, 1, [[letter, "x"] for letter in "bcdf"], "tea?", at=4)
    pieces = []
    for frames, done in relay.fanout.deliver([Stored(1, event)]):
        pieces.append((len(asked_filters), frames, done))
        asked_filters.clear()
    assert max(asked for asked, _, _ in pieces) == 50
    assert sum(asked for asked, _, _ in pieces) == 1000
    assert sum(frames for _, frames, _ in pieces) == 200
    assert [done for _, _, done in pieces] == [*[0] * (len(pieces) - 1), 1]
    assert all(client.contents() == ["tea?"] * 10 for client in clients)


def test_after_a_change_of_rights_those_of_few_viewers_are_found_in_one_piece(
    relay: Subscribed,
) -> None:
    """500 took the loop up to 100 ms."""
    members = [person(f"{number}") for number in range(300)]
    users = {key.pubkey: () for key in members}
    relay.replace_den(DEN.with_users(users))
    clients = [Client(key) for key in members]
    for client in clients:
        client.viewer = Viewer(client.viewer.keys, trusted=True)  # else one is asked for all
        relay.follows(client, asked(kinds=[9]))
    made = [relay.state.views_made]
    for _ in relay.fanout.deliver([Stored(1, chat("tea?"), "den")]):
        made.append(relay.state.views_made)
    assert made[-1] - made[0] == len(members)
    assert max(after - before for before, after in pairwise(made)) <= 64
    assert all(client.contents() == ["tea?"] for client in clients)


def test_what_a_key_may_read_is_not_found_out_for_rows_that_do_not_name_it(
    relay: Subscribed,
) -> None:
    """4,600 connections with a key each made each message of a private group take 0.1 s, also with
    keys that another one vouched for."""
    relay.replace_den(DEN.with_users({alice.pubkey: ()}))
    others = [Client(person(f"{number}")) for number in range(50)]
    for client in others[25:]:
        attested = [Attestation(key, stranger.pubkey) for key in client.viewer.keys]
        client.viewer = Viewer(client.viewer.keys, attested=frozenset(attested))
    member, with_more_keys = Client(alice), Client(bob, alice)
    for client in (*others, member, with_more_keys):
        relay.follows(client, asked(kinds=[9, 4]))
    made = relay.state.views_made
    relay.commits(chat("tea?"))
    assert relay.state.views_made - made == 2
    relay.commits(unsigned(alice, 4, [["p", person("7").pubkey]], "psst"))
    assert not any(client.contents() for client in others if client is not others[7])
    assert others[7].contents() == ["psst"]
    assert member.contents() == with_more_keys.contents() == ["tea?", "psst"]


def test_nor_for_rows_of_a_public_group(relay: Subscribed) -> None:
    """After each change of any group 4,000 connections with a key each made a message take 0.2 s,
    though anybody may read it."""
    relay.replace_den(Group("den").with_users({alice.pubkey: ()}))
    clients = [Client(person(f"{number}")) for number in range(50)]
    for client in clients:
        relay.follows(client, asked(kinds=[9, 7]))
    made = relay.state.views_made
    relay.commits(chat("tea?"), unsigned(bob, 7, [IN_DEN], "+"))
    assert relay.state.views_made - made <= 2
    assert all(client.contents() == ["tea?", "+"] for client in clients)
    relay.replace_den(DEN.with_users({alice.pubkey: ()}))
    relay.commits(chat("psst"))
    assert not any(client.contents() for client in clients)


def test_nor_for_agents_whose_owners_it_does_not_name(relay: Subscribed) -> None:
    """Anybody who has made a group may attest any number of keys, which gives them no group."""
    relay.replace_den(DEN.with_users({alice.pubkey: ()}))
    agents = [Client(person(f"{number}")) for number in range(50)]
    for agent, lender in zip(agents, [alice, *[carol] * 49], strict=True):
        (key,) = agent.viewer.keys
        agent.viewer = Viewer(
            agent.viewer.keys, attested=frozenset({Attestation(key, lender.pubkey)})
        )
        relay.follows(agent, asked(kinds=[9]))
    made = relay.state.views_made
    relay.commits(chat("tea?"))
    assert relay.state.views_made - made <= 2
    relay.state.actors = replace(relay.state.actors, attestations=Attestations.GROUPS)
    relay.replace_den(DEN.with_users({alice.pubkey: ()}))
    made = relay.state.views_made
    relay.commits(chat("more"))
    assert relay.state.views_made - made <= 2
    assert [client.contents() for client in agents] == [["more"], *[[]] * 49]


def test_after_a_change_of_rights_a_piece_finds_those_of_fewer_viewers_with_many_keys(
    relay: Subscribed,
) -> None:
    """64 with 64 keys took the loop up to 20 ms."""
    relay.replace_den(DEN.with_users({alice.pubkey: ()}))
    keys = [person(f"{number}").pubkey for number in range(62)]
    clients = [Client(alice) for _ in range(100)]
    for number, client in enumerate(clients):
        client.viewer = Viewer(frozenset({*keys, alice.pubkey, f"{number}"}), trusted=True)
        relay.follows(client, asked(kinds=[9]))
    made, pieces = relay.state.views_made, []
    view_of_one = 2
    for _ in relay.fanout.deliver([Stored(1, chat("tea?"), "den")]):
        pieces.append(relay.state.views_made - made)
        made = relay.state.views_made
    assert sum(pieces) == len(clients) * view_of_one
    assert max(pieces) <= 16 * view_of_one
    assert all(client.contents() == ["tea?"] for client in clients)


def test_an_event_that_is_compared_with_searches_costs_the_more_the_longer_its_text_is(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """39 notes of 16,000 characters and 128 phrases were one batch, which took the loop 1 s."""
    relay.fanout = Fanout(relay.state, TokenMatcher())
    short, long = note("a b"), note("a " * 8000)
    assert relay.fanout.number_for(long) == 0
    for number in range(128):
        relay.follows(Client(counted_as=f"{number}"), sought('"a a b"'))
    assert 128 * 4 < relay.fanout.number_for(short) < 128 * 5
    assert relay.fanout.number_for(long) - relay.fanout.number_for(short) >= 16_000 // 32
    assert relay.fanout.receivers_for(long) == 128
    assert relay.fanout.number_for(note("a " * 40_000)) < 2 * relay.fanout.number_for(long)
    monkeypatch.setattr(relay.state.policy, "searched", kinds.KindSet.of(7))
    assert relay.fanout.number_for(long) == 128 * 4


def test_texts_that_are_compared_with_a_search_are_delivered_in_pieces(relay: Subscribed) -> None:
    """The tokens of 16,000 characters take 2 ms."""
    relay.fanout = Fanout(relay.state, TokenMatcher())
    client = Client()
    relay.follows(client, sought("b"))
    long = [Stored(number, note(f"{'a ' * 8000}{number} b")) for number in range(1, 9)]
    assert [done for _, done in relay.fanout.deliver(long)] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    short = [Stored(number, note(f"{number} b")) for number in range(9, 17)]
    assert [done for _, done in relay.fanout.deliver(short)] == [8]
    assert len(client.contents()) == 16


def test_of_an_event_few_copies_are_held_while_it_is_delivered(
    relay: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id of a subscription makes another frame, of up to 16 kB."""
    made: list[module._Compared] = []
    compared = module._Compared

    def noted(row: Stored) -> module._Compared:
        made.append(compared(row))
        return made[-1]

    monkeypatch.setattr(module, "_Compared", noted)
    monkeypatch.setattr(module, "_ASKED_AT_ONCE", 4)
    monkeypatch.setattr(module, "_WORK_AT_ONCE", 1)
    clients = [Client(alice) for _ in range(40)]
    for number, client in enumerate(clients):
        relay.follows(client, asked(kinds=[1], since=0), sub=f"s{number}")
    for _ in relay.fanout.deliver([Stored(1, unsigned(admin, 1, [], "tea?", at=4))]):
        assert len(made[0].frames) <= 2 * 4
    assert all(client.contents() == ["tea?"] for client in clients)


@pytest.mark.parametrize("filter_", [asked(kinds=[9]), asked(kinds=[9], since=0)])
def test_between_two_pieces_rights_may_change_and_subscriptions_end(
    relay: Subscribed, filter_: Filter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.fanout._WORK_AT_ONCE", 1)
    monkeypatch.setattr("relay.read.fanout._ASKED_AT_ONCE", 1)
    monkeypatch.setattr("relay.read.fanout._READ_AT_ONCE", 1)
    relay.replace_den(replace(DEN, flags=frozenset()))
    first, member, other, ended = (Client(who) for who in (stranger, alice, stranger, alice))
    for client in (first, member, other):
        relay.follows(client, filter_)
    subscription = relay.follows(ended, filter_)
    rows = [Stored(number, chat(f"{number}"), "den") for number in (1, 2)]
    pieces = relay.fanout.deliver(rows)
    while not (told := first.contents()):
        next(pieces)
    relay.replace_den(DEN)
    relay.fanout.close(subscription)
    for _ in pieces:
        pass
    assert told[0] == "1"
    assert member.contents() == ["1", "2"]
    assert [client.contents() for client in (first, other, ended)] == [[], [], []]


FILTERS = [
    asked(kinds=[1]),
    asked(kinds=[1, 7]),
    asked(kinds=[1], since=1),
    asked(authors=[alice.pubkey]),
    asked(tag_h=["den"]),
    asked(),
]
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 7, 20001]), st.sampled_from([alice, bob]), st.booleans()),
    max_size=8,
)
READERS = st.lists(
    st.tuples(
        st.sampled_from([alice, stranger]),
        st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2),
        st.sampled_from(["s", "another"]),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ROWS, READERS, st.sampled_from([1, 1000, 100_000]), st.sampled_from([1, 3]), st.integers(0, 9)
)
def test_a_subscriber_gets_the_rows_of_a_commit_in_order_each_once(
    policy: PolicySet, written: list[Any], readers: list[Any], large: int, work: int, leave: int
) -> None:
    """What a plain walk over rows and filters finds, however rows are put together, and in
    whatever pieces they are delivered."""
    with (
        patch("relay.read.fanout._LARGE", large),
        patch("relay.read.fanout._WORK_AT_ONCE", work),
        patch("relay.read.fanout._ASKED_AT_ONCE", work),
    ):
        a_walk_finds_the_same(policy, written, readers, leave)


def a_walk_finds_the_same(
    policy: PolicySet, written: list[Any], readers: list[Any], leave: int
) -> None:
    relay = Subscribed(policy)
    relay.leaves_off_after = leave
    opened = []
    for who, filters, sub, cursor, is_released in readers:
        client = Client(who)
        subscription = relay.opens(client, *filters, sub=sub, cursor=cursor)
        if is_released:
            relay.sends_backlog(subscription)
        opened.append((client, subscription))
    events = [
        unsigned(who, kind, [IN_DEN] if in_den else [], f"tea {number}")
        for number, (kind, who, in_den) in enumerate(written)
    ]
    sent = relay.commits(*events)
    for (who, filters, sub, cursor, is_released), (client, subscription) in zip(
        readers, opened, strict=True
    ):
        seqs = accumulate(0 if kinds.is_ephemeral(event.kind) else 1 for event in events)
        expected = [
            [sub, event.content]
            for seq, event, (_, _, in_den) in zip(seqs, events, written, strict=True)
            if (kinds.is_ephemeral(event.kind) or seq > cursor)
            and any(filter_.matches(event) for filter_ in filters)
            and (who is alice or not in_den)
        ]
        received = [[frame[1], frame[2]["content"]] for frame in client.frames()]
        if not is_released:
            assert not received
            relay.sends_backlog(subscription)
            received = [[frame[1], frame[2]["content"]] for frame in client.frames()]
        else:
            sent -= len(received)
        assert received == expected
    assert sent == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("filter_", [asked(kinds=[1]), asked(kinds=[1], since=1)])
def test_a_large_row_is_not_copied_for_each_id_of_a_subscription(
    relay: Subscribed, filter_: Filter, number: int
) -> None:
    """40 connections with 200 made-up ids each, and one note of 390 kB: 3 GB of memory."""
    clients = [Client() for _ in range(4)]
    for at, client in enumerate(clients):
        for each in range(100):
            relay.follows(client, filter_, sub=f"{at} {each}")
    rows = [note(f"{each}" + "x" * 100_000) for each in range(number)]
    tracemalloc.start()
    try:
        relay.commits(*rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    for client in clients:
        received = sorted([(len(text), text[0]) for text in client.contents()])
        assert received == [(100_001, f"{each}") for each in range(number) for _ in range(100)]


def test_large_rows_fill_an_outbox_no_further_than_small_ones(relay: Subscribed) -> None:
    client, full = Client(max_bytes=250_000), list[int]()
    client.on_overflow = lambda: full.append(1)
    for each in range(100):
        relay.follows(client, asked(kinds=[1]), sub=f"{each}")
    relay.commits(note("x" * 100_000))
    assert (len(client.contents()), full) == (3, [1])


def fills(relay: Subscribed, filter_: Filter, *keys: SecretKey, at: str) -> list[Subscription]:
    """As many subscriptions as one address may open."""
    client, found = Client(*keys, counted_as=at), list[Subscription]()
    while (each := relay.opens(client, filter_)).is_indexed:
        found.append(each)
    return found


COSTLY = pytest.mark.parametrize(
    ("filter_", "most"),
    [
        (asked(since=1), 2000),
        (structs.replace(asked(kinds=[1]), search="tea"), 512),
        (asked(**{f"tag_{letter}": ["x"] for letter in "abcdfghijkl"}), 2000),
    ],
)


@pytest.mark.slow
@COSTLY
def test_costly_filters_of_all_connections_are_limited(
    relay: Subscribed, filter_: Filter, most: int
) -> None:
    """One address holds no places of others: without a known key a quarter, else half. Known keys
    of any address have a few."""
    fill, few = partial(fills, relay, filter_), most // 128
    first = fill(at="203.0.113.1")
    assert len(first) == most // 4
    assert len(fill(stranger, at="203.0.113.1")) == 0
    assert relay.opens(Client(counted_as="203.0.113.1"), asked(kinds=[1])).is_indexed
    assert len(fill(stranger, at="203.0.113.2")) == most // 4
    assert len(fill(at="203.0.113.3")) == most // 4
    assert len(fill(at="203.0.113.4")) == 0
    assert len(fill(alice, at="203.0.113.5")) == most // 4
    assert len(fill(bob, at="203.0.113.6")) == 0
    assert len(fill(admin, at="203.0.113.6")) == few
    owners = fill(owner, at="203.0.113.6")
    assert len(owners) == most * 5 // 4 - few
    for each in (*owners, *first):
        relay.fanout.close(each)
    assert len(fill(at="203.0.113.4")) == 0
    assert len(fill(alice, at="203.0.113.5")) == most // 8


@pytest.mark.slow
@COSTLY
def test_a_network_leaves_costly_filters_to_known_keys_of_others(
    relay: Subscribed, filter_: Filter, most: int
) -> None:
    """One known key at three addresses held all live searches."""
    for number in range(600):
        fills(relay, filter_, alice, at=f"2001:db8:0:{number:x}::/64")
    assert most <= len(relay.fanout) <= most * 17 // 16 + most // 128
    assert len(fills(relay, filter_, admin, at="203.0.113.6")) == most // 128
    for number in range(16):
        for host in range(10):
            fills(relay, filter_, alice, at=f"198.51.{number}.{host}")
    assert len(fills(relay, filter_, admin, at="203.0.114.6")) == most // 128
