"""relay/read/query.py and relay/read/fanout.py: a REQ or COUNT with `search`, stored and live.
NIP-50."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.errors import StoreFault, TooWide
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.filters import FilterTerms, filter_from
from relay.observe import Metrics
from relay.read.fanout import Fanout
from relay.read.query import QueryRunner
from relay.read.query_queue import QueryQueue
from relay.read.search_indexer import SearchIndexer
from relay.storage.tokens import TokenMatcher
from tests.cast import alice, bob
from tests.harness.client_in_memory import Client
from tests.harness.folders import loaded
from tests.harness.patience import ANSWER_S
from tests.unit.read.test_query import QuerySide, chat, note, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Set
    from typing import Any

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

TERMS = FilterTerms(search=True)


def asked(**conditions: Any) -> Filter:
    return filter_from({k.replace("tag_", "#"): v for k, v in conditions.items()}, TERMS)


class SearchSide(QuerySide):
    """A relay whose searches find everything that is written."""

    def __init__(self, policy: PolicySet) -> None:
        super().__init__(policy)
        self.words = TokenMatcher()
        self.fanout = Fanout(self.state, self.words)
        self.queries = QueryRunner(
            self.store,
            self.state,
            self.fanout,
            self.limits,
            clock=lambda: 0,
            metrics=Metrics(),
            index=self,
        )
        self.keeps_up = self.is_current = True
        self.between: list[Any] = []
        self.waited_for: list[tuple[int, Set[int] | None]] = []

    async def write(self, *events: Event) -> None:
        await super().write(*events)
        while (
            await self.store.index(MEMORY_SYSTEMS.search_text, "all", 10_000)
            < self.store.committed()
        ):
            pass

    async def reached(self, seq: int, kinds: Set[int] | None) -> bool:
        self.waited_for.append((seq, kinds))
        await asyncio.sleep(0)
        for event in self.between:
            await self.write(event)
        self.between = []
        return self.keeps_up


@pytest.fixture
async def relay(policy: PolicySet) -> AsyncIterator[SearchSide]:
    relay = SearchSide(policy)
    yield relay
    relay.words.close()


# stored ------------------------------------------------------------------------------------------


@pytest.mark.proves("N50-03")
async def test_search_results_are_ranked_before_the_limit(relay: SearchSide) -> None:
    await relay.write(
        note("tea with a lot of other words around it", 9), note("tea tea", 1), note("tea", 5)
    )
    whole = ["tea tea", "tea", "tea with a lot of other words around it"]
    assert await relay.answered(Client(), asked(search="tea")) == [*whole, "<EOSE>"]
    assert await relay.answered(Client(), asked(search="tea", limit=2)) == [*whole[:2], "<EOSE>"]
    assert await relay.answered(Client(), asked(search="tea", limit=0)) == ["<EOSE>"]


@pytest.mark.proves("N50-06")
async def test_each_search_is_ranked_separately_without_duplicates(relay: SearchSide) -> None:
    await relay.write(
        note("green tea", 1), note("tea tea", 2), note("green green leaves", 3), note("coffee", 4)
    )
    answer = await relay.answered(Client(), asked(search="tea"), asked(search="green"))
    assert answer == ["tea tea", "green tea", "green green leaves", "<EOSE>"]


@pytest.mark.proves("N50-06")
async def test_other_filters_of_the_req_follow_newest_first(relay: SearchSide) -> None:
    await relay.write(*[note(f"number {n}", n) for n in range(8)], note("tea 3", 3))
    answer = await relay.answered(Client(), asked(kinds=[1]), asked(search="tea"))
    assert answer == ["tea 3", *[f"number {n}" for n in reversed(range(8))], "<EOSE>"]
    answer = await relay.answered(
        Client(), asked(kinds=[1], limit=2), asked(search="tea"), asked(kinds=[1], until=0)
    )
    assert answer == ["tea 3", "number 7", "number 6", "number 0", "<EOSE>"]


@pytest.mark.proves("N50-07")
async def test_an_empty_search_is_no_condition(relay: SearchSide) -> None:
    await relay.write(note("a", 1), note("b", 2))
    assert await relay.answered(Client(), asked(search="")) == ["b", "a", "<EOSE>"]
    assert await relay.answered(Client(), asked(search="language:en")) == ["b", "a", "<EOSE>"]
    assert relay.waited_for == []


@pytest.mark.proves("N50-09", "N29-90")
async def test_hidden_rows_do_not_use_the_limit(relay: SearchSide) -> None:
    await relay.write(chat("tea tea tea tea", 9), note("tea for all", 1), note("more tea", 2))
    assert await relay.answered(Client(bob), asked(search="tea", limit=2)) == [
        "more tea",
        "tea for all",
        "<EOSE>",
    ]
    assert await relay.counted(Client(bob), asked(search="tea", limit=1)) == {"count": 2}
    assert await relay.counted(Client(alice), asked(search="tea")) == {"count": 3}


@pytest.mark.proves("N29-94", "N50-09")
@pytest.mark.parametrize("read", ["search", "rows"])
async def test_a_reader_removed_during_a_search_does_not_get_it(
    relay: SearchSide, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """While it is sought, or while what was found is read."""
    await relay.write(chat("tea of the den"), note("tea of all"))
    found = getattr(relay.store, read)

    async def removed_meanwhile(*asked: Any, **more: Any) -> Any:
        answer = await found(*asked, **more)
        await relay.remove_alice()
        return answer

    monkeypatch.setattr(relay.store, read, removed_meanwhile)
    assert await relay.answered(Client(alice), asked(search="tea")) == ["tea of all", "<EOSE>"]


async def test_what_searches_have_found_is_bounded_while_their_clients_read(
    relay: SearchSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MB of each client that read nothing, after a REQ of 60 bytes. Small answers are given, and
    of large ones the best rows."""
    monkeypatch.setattr("relay.read.scan._MAX_HELD", 4 * 5 * 112)
    monkeypatch.setattr("relay.read.scan._ORDINARY_HELD", 0)
    monkeypatch.setattr("relay.read.query._FEW_FOUND", 2 * 112)
    await relay.write(*(note(f"tea {number}") for number in range(5)))
    slow = [Client() for _ in range(3)]
    queues = [QueryQueue(relay.queries, client) for client in slow]
    for client, queue in zip(slow, queues, strict=True):
        client.may_read_on.clear()
        queue.subscribe("s", (asked(search="tea"), asked(ids=["0" * 64])))
        for _ in range(50):
            await asyncio.sleep(0)
    assert relay.queries.held_rows[False].used == (5 + 2 + 2) * 112
    for client in slow:
        client.may_read_on.set()
    for _ in range(50):
        await asyncio.sleep(0)
    ends = [client.stream("s")[-1] for client in slow]
    assert ["these are not all" in end for end in ends] == [False, True, True]
    assert [len(client.stream("s")) for client in slow] == [6, 3, 3]
    for queue in queues:
        await queue.aclose()
    assert relay.queries.held_rows[False].used == 0


async def test_what_all_searches_of_a_query_have_found_is_bounded_together(
    relay: SearchSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty of little each: 3 MB of each client that does not read the last rows."""
    monkeypatch.setattr("relay.read.scan._MAX_HELD", 64)
    monkeypatch.setattr("relay.read.scan._ORDINARY_HELD", 0)
    monkeypatch.setattr("relay.read.query._FEW_FOUND", 5 * 112)
    words = [str(number) * 3 for number in range(4)]
    await relay.write(*(note(f"{word} {number}") for word in words for number in range(2)))
    client = Client()
    queue = QueryQueue(relay.queries, client)
    queue.subscribe("s", tuple(asked(search=word) for word in words))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(client.stream("s")) == 5 + 1
    assert "rate-limited" in client.stream("s")[-1]
    await queue.aclose()


async def test_a_search_waits_for_the_rows_that_were_stored_before_it(relay: SearchSide) -> None:
    await relay.write(note("tea 1"), note("tea 2"))
    await relay.answered(Client(), asked(search="tea"))
    await relay.counted(Client(), asked(search="tea"), asked(search="milk", kinds=[1, 7]))
    assert relay.waited_for == [(2, None), (2, None), (2, {1, 7})]


async def test_a_search_of_memory_waits_for_no_other_rows(
    relay: SearchSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers can store any number of them. Ten rows are indexed here."""
    monkeypatch.setattr("relay.read.search_indexer._BATCH", 1)
    monkeypatch.setattr("relay.read.search_indexer._SMALL_BATCH", 1)
    memory = kinds.CONVERSATION_NOTE
    await QuerySide.write(relay, *(note(f"tea {number}") for number in range(50)))
    await QuerySide.write(relay, note("tea of an agent", kind=memory, who=alice))
    index, calls = relay.store.index, count(1)

    async def ten_times(*given: Any) -> int:
        if next(calls) > 10:
            await asyncio.Event().wait()
        return await index(*given)

    monkeypatch.setattr(relay.store, "index", ten_times)
    async with SearchIndexer(relay.store, relay.state, timeout_s=ANSWER_S / 2) as indexer:
        monkeypatch.setattr(relay.queries, "_index", indexer)
        of_memory = asked(search="tea", kinds=[memory])
        assert await relay.answered(Client(alice), of_memory) == ["tea of an agent", "<EOSE>"]
        assert await relay.counted(Client(alice), of_memory) == {"count": 1}
        assert indexer.lag > 0


@pytest.mark.parametrize("is_current", [True, False])
async def test_an_index_that_is_not_up_to_date_closes_the_search(
    relay: SearchSide, *, is_current: bool
) -> None:
    """Behind what there is: better than an EOSE that says that this is all. Under another policy
    there is nothing: it may leave out kinds that are in the index."""
    await relay.write(note("tea"))
    relay.keeps_up, relay.is_current = False, is_current
    end = "<CLOSED error: the search index is not up to date, try again in a moment>"
    client = Client()
    there = ["tea"] if is_current else []
    assert await relay.answered(client, asked(search="tea")) == [*there, end]
    assert client.closed == ["s"]
    await relay.queries.count(client, "c", (asked(search="tea"),))
    assert client.stream("c") == [end]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (TooWide(), "error: this search is too broad: add words, kinds or authors"),
        (StoreFault("disk"), "error: the store is not available, try again later"),
    ],
)
@pytest.mark.proves("N50-10")
async def test_no_fault_of_the_index_reaches_a_client(
    relay: SearchSide, fault: Exception, text: str
) -> None:
    async def fails(*_: object, **__: object) -> Any:
        raise fault

    relay.store.search = relay.store.count = fails  # type: ignore[method-assign]
    client = Client()
    assert await relay.answered(client, asked(search="tea")) == [f"<CLOSED {text}>"]
    await relay.queries.count(client, "c", (asked(search="tea"),))
    assert client.stream("c") == [f"<CLOSED {text}>"]
    assert relay.queries.open_subscriptions == 0


@pytest.mark.slow
async def test_a_long_answer_comes_in_pages(relay: SearchSide) -> None:
    await relay.write(*[note(f"tea {n}", n) for n in range(1200)])
    relay.limits.max_limit = relay.limits.default_limit = 5000
    answer = await relay.answered(Client(), asked(search="tea"))
    assert answer == [*[f"tea {n}" for n in reversed(range(1200))], "<EOSE>"]


# live --------------------------------------------------------------------------------------------


@pytest.mark.proves("N50-08")
async def test_a_live_event_is_matched_by_its_text(relay: SearchSide) -> None:
    client = Client()
    QueryQueue(relay.queries, client).subscribe(
        "s", (asked(search='kettle -broken "green tea"', kinds=[1]),)
    )
    await settled()
    await relay.write(
        note("the kettles sing of GREEN TEA"),
        note("kettle, tea that is green"),
        note("a broken kettle of green tea"),
        note("kettle of green tea", kind=7),
        note("nothing"),
    )
    assert client.stream() == ["<EOSE>", "the kettles sing of GREEN TEA"]


@pytest.mark.proves("N50-08", "N50-11")
async def test_live_search_finds_what_stored_search_would(relay: SearchSide) -> None:
    """By the same text: a tag that says encrypted hides an event live too."""
    client = Client()
    QueryQueue(relay.queries, client).subscribe("s", (asked(search="tea"),))
    await settled()
    await relay.write(
        note("tea", tags=[["encrypted", "nip44"]]),
        note("titled", kind=30023, tags=[["title", "tea"]]),
        note("", kind=1),
    )
    assert client.stream() == ["<EOSE>", "titled"]


@pytest.mark.proves("N50-08", "N29-90")
async def test_live_search_shows_nothing_that_may_not_be_read(relay: SearchSide) -> None:
    member, outsider = Client(alice), Client(bob)
    for client in (member, outsider):
        QueryQueue(relay.queries, client).subscribe("s", (asked(search="tea"),))
    await settled()
    await relay.write(chat("tea of the den"))
    assert member.stream() == ["<EOSE>", "tea of the den"]
    assert outsider.stream() == ["<EOSE>"]


@pytest.mark.proves("N50-08")
async def test_no_search_result_is_missed_or_doubled_between_stored_and_live(
    relay: SearchSide,
) -> None:
    await relay.write(note("tea before"))
    relay.between = [note("tea meanwhile"), note("coffee meanwhile")]
    client = Client()
    QueryQueue(relay.queries, client).subscribe("s", (asked(search="tea"),))
    await settled()
    await relay.write(note("tea after"))
    assert client.stream() == ["tea before", "<EOSE>", "tea meanwhile", "tea after"]


@pytest.mark.proves("N50-08")
async def test_searches_and_other_filters_share_a_subscription(relay: SearchSide) -> None:
    client = Client()
    QueryQueue(relay.queries, client).subscribe(
        "s", (asked(search="tea"), asked(authors=[alice.pubkey]))
    )
    await settled()
    await relay.write(
        note("tea by bob"), note("by alice", who=alice), note("tea by alice", who=alice)
    )
    assert client.stream() == ["<EOSE>", "tea by bob", "by alice", "tea by alice"]


@pytest.mark.proves("N50-08")
async def test_kinds_that_the_policy_leaves_out_are_not_found_live(
    relay: SearchSide, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = Client()
    QueryQueue(relay.queries, client).subscribe("s", (asked(search="tea"),))
    await settled()
    folder = tmp_path_factory.mktemp("chat-only")
    relay.state.enforce(loaded(folder, search='[search]\nkinds = ["9-12"]'))
    await relay.write(note("tea", kind=1), note("tea thread", kind=11))
    assert client.stream() == ["<EOSE>", "tea thread"]
