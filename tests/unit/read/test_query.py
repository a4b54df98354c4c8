"""relay/read/query.py and relay/read/query_queue.py: REQ and COUNT, on the reference store with the
packaged read rules.

N01-54…84, N29-91…94, N45.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from dataclasses import replace
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Self

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.visibility import Viewer
from relay.errors import Prefix, Refused, StoreFault
from relay.groups.actions import Flag
from relay.groups.group import Group
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored
from relay.nostr.nip45 import offset_of, registers
from relay.observe import Metrics
from relay.read.query import QueryRunner
from relay.read.query_queue import QueryQueue
from relay.storage import Listed, Page, PageQuery
from tests.cast import admin, alice, bob, carol, owner, person, stranger
from tests.contract.test_store_search import sought
from tests.contract.writing import asked, change, unsigned, write
from tests.effort import examples
from tests.harness.client_in_memory import Client
from tests.harness.read_side import DEN, ReadSide
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.storage import Place

    Places = tuple[Sequence[tuple[Place, bytes]], Listed]

PAGE = 3


class QuerySide(ReadSide):
    """With small pages."""

    now = 0

    def __init__(self, policy: PolicySet) -> None:
        super().__init__(policy, page_size=PAGE)
        self.metrics = Metrics()
        self.queries = QueryRunner(
            self.store,
            self.state,
            self.fanout,
            self.limits,
            clock=lambda: self.now,
            metrics=self.metrics,
        )

    async def answered(self, client: Client, *filters: Filter, sub: str = "s") -> list[str]:
        """All that a client hears of a REQ until its stored rows are sent."""
        scans = QueryQueue(self.queries, client)
        scans.subscribe(sub, filters or (asked(),))
        await settled()
        return client.stream(sub)

    async def counted(self, client: Client, *filters: Filter) -> Any:
        await self.queries.count(client, "c", filters)
        client.outbox.flush()
        return client.received[-1][2]


async def settled() -> None:
    """Until no scan has anything left to do."""
    me = asyncio.current_task()
    while busy := [task for task in asyncio.all_tasks() - {me} if task.get_name() == "queries"]:
        await asyncio.wait(busy)


async def scanning(relay: QuerySide, client: Client, *filters: Filter) -> QueryQueue:
    """A client that has had one page of an answer and does not read on."""
    client.may_read_on.clear()
    scans = QueryQueue(relay.queries, client)
    scans.subscribe("s", filters or (asked(),))
    await client.has_a_page.wait()
    return scans


@pytest.fixture
async def relay(policy: PolicySet) -> AsyncIterator[QuerySide]:
    with blockbuster_ctx("relay"):
        yield QuerySide(policy)


def note(text: object, at: int = 1000, who: SecretKey = bob, **more: Any) -> Event:
    return unsigned(who, content=str(text), at=at, **{"kind": 1, **more})


def chat(text: object, at: int = 1000, who: SecretKey = admin) -> Event:
    return note(text, at, who, kind=9, tags=[["h", "den"]])


def newest_first(*events: Event) -> list[str]:
    return [e.content for e in sorted(events, key=lambda e: (-e.created_at, e.id))]


# order and limits --------------------------------------------------------------------------------


@pytest.mark.proves("N01-75", "N01-76")
@pytest.mark.parametrize("is_reading", [True, False])
@pytest.mark.parametrize("number", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 1])
async def test_stored_rows_newest_first_then_eose_then_live_rows(
    relay: QuerySide, number: int, *, is_reading: bool
) -> None:
    """N01-75, N01-76: however many pages, ties across their borders, quick answer or slow."""
    notes = [note(n, at=1000 + n // 5) for n in range(number)]
    await relay.write(*notes)
    client = Client()
    client.is_reading = is_reading
    assert await relay.answered(client, asked(kinds=[1])) == [*newest_first(*notes), "<EOSE>"]
    await relay.write(note("live", at=5))
    assert client.stream()[number:] == ["<EOSE>", "live"]


LARGE = "x" * 20_000


@pytest.mark.parametrize(
    ("conditions", "is_cut"),
    [
        ([{"kinds": [30_000]}], True),
        ([{"tag_p": [bob.pubkey]}], True),
        ([{"authors": [bob.pubkey]}, {"kinds": [30_000], "tag_p": [bob.pubkey]}], True),
        ([{"kinds": [30_000], "authors": [bob.pubkey]}], False),
        ([{"kinds": [30_000], "tag_p": [bob.pubkey], "tag_h": ["kept"]}], False),
        ([{"kinds": [30_000], "tag_h": ["anybody's"]}], True),
        ([{"kinds": [30_000], "tag_h": ["joined"]}], True),
        ([{"kinds": [30_000], "tag_h": ["kept", "anybody's"]}], True),
        ([{"kinds": [30_000], "tag_h": ["kept", "none"]}], True),
        ([{"kinds": [1]}], False),
    ],
)
@pytest.mark.parametrize("who", ["unknown", "known", "owner", "local", "of a closed relay"])
async def test_who_does_not_say_whose_rows_gets_few_bytes_of_large_ones(
    policy: PolicySet,
    monkeypatch: pytest.MonkeyPatch,
    conditions: list[dict[str, Any]],
    who: str,
    *,
    is_cut: bool,
) -> None:
    """Of lists of 5,000 follows a network may store ten a day: after some days the followers of
    somebody were 195 MB, and 60 who asked for these waited for 15 s."""
    monkeypatch.setattr("relay.read.query._MOST_LARGE", 4 * len(LARGE))
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    relay = QuerySide(policy if who == "of a closed relay" else policy_of("open"))
    groups = {"kept": {Flag.RESTRICTED, Flag.CLOSED}, "joined": {Flag.RESTRICTED}, "anybody's": ()}
    for group, flags in groups.items():
        relay.state.adopt(relay.state.groups.with_group(Group(group, flags=frozenset(flags))))
    tags = [["p", bob.pubkey], *[["h", each] for each in conditions[0].get("tag_h", ())][:1]]
    lists = [note(LARGE, n, kind=30_000, tags=[["d", f"{n}"], *tags]) for n in range(10)]
    await relay.write(*lists, *(note(n, at=n) for n in range(10)))
    keys = {"known": [alice], "owner": [owner]}.get(who, [])
    client = Client(*keys, counted_as=None if who == "local" else "192.0.2.7")
    answer = await relay.answered(client, *[asked(**each) for each in conditions])
    notices = [frame[1] for frame in client.received if frame[0] == "NOTICE"]
    assert answer[-1] == "<EOSE>"
    if is_cut and who in ("unknown", "known"):
        assert 4 <= answer.count(LARGE) <= 4 + PAGE
        assert ["`until`" in text for text in notices] == [True]
    else:
        assert answer.count(LARGE) == (0 if conditions == [{"kinds": [1]}] else 10)
        assert not notices


@pytest.mark.parametrize("who", [bob, alice])
async def test_how_many_bytes_an_answer_has_does_not_tell_of_a_hidden_group(
    monkeypatch: pytest.MonkeyPatch, who: SecretKey
) -> None:
    """All rows of other filters came beside the id of one that is closed and restricted."""
    monkeypatch.setattr("relay.read.query._MOST_LARGE", 4 * len(LARGE))
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    relay = QuerySide(policy_of("open"))
    flags = frozenset({Flag.RESTRICTED, Flag.CLOSED, Flag.PRIVATE, Flag.HIDDEN})
    members = OrderedMap[str, tuple[str, ...]]({alice.pubkey: ()})
    relay.state.adopt(relay.state.groups.with_group(Group("den", flags=flags, members=members)))
    lists = [note(LARGE, n, kind=30_000, tags=[["d", f"{n}"]]) for n in range(10)]
    await relay.write(*lists)
    answers = []
    for group in ("den", "none"):
        client = Client(who, counted_as="192.0.2.7")
        filters = asked(authors=[bob.pubkey]), asked(kinds=[9], tag_h=[group])
        answer = await relay.answered(client, *filters)
        answers.append((answer.count(LARGE), [frame[0] for frame in client.received]))
    assert (answers[0] == answers[1]) is (who is bob)


class Measured(Client):
    """A client with the sizes of what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, data: bytes) -> None:
        self.sizes.append(len(data))
        super().write(data)


@pytest.mark.parametrize("is_reading", [True, False])
async def test_large_rows_are_written_in_pieces(relay: QuerySide, *, is_reading: bool) -> None:
    """Or a page of a megabyte would be joined and written before others go on."""
    notes = [note(str(n).rjust(200_000), at=n) for n in range(7)]
    await relay.write(*notes)
    client = Measured()
    client.is_reading = is_reading
    assert await relay.answered(client, asked(kinds=[1])) == [*newest_first(*notes), "<EOSE>"]
    assert max(client.sizes) < 800_000


async def test_of_queries_that_wait_for_their_turn_few_rows_are_held(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 1,500 held a page and its filters' rows, 2 MB: the process was ended with 2 GiB. A
    client that reads on has the whole answer, whatever others hold."""
    monkeypatch.setattr("relay.read.pace._REST_S", 0.0)
    monkeypatch.setattr("relay.read.scan._LITTLE", 1_000)
    monkeypatch.setattr("relay.read.scan._MAX_HELD", 400_000)
    monkeypatch.setattr("relay.read.scan._ORDINARY_HELD", 0)
    relay.store.page_size = None
    notes = [note(str(n).rjust(20_000), at=n) for n in range(40)]
    await relay.write(*notes)
    most = 0

    class Waiting(Client):
        async def turn(self, seconds: float) -> None:
            nonlocal most
            most = max(most, relay.queries.held_rows[False].used)
            assert relay.queries.held_rows[False].used == sum(each.held_bytes for each in clients)
            await asyncio.sleep(0)  # all others have turns

        def worked(self, seconds: float) -> bool:
            return True

    clients = [Waiting() for _ in range(30)]
    answers = [
        asyncio.create_task(relay.answered(client, asked(kinds=[1]), asked(since=number)))
        for number, client in enumerate(clients)
    ]
    for answer in answers:
        assert await answer == [*newest_first(*notes), "<EOSE>"]
    assert 100_000 < most < 2_000_000
    assert relay.queries.held_rows[False].used == sum(each.held_bytes for each in clients) == 0


async def test_places_of_rows_that_are_merged_count_and_are_few_while_others_hold_much(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 rows of each of 50 filters took 0.3 MB of each of 1,200 clients."""
    relay.store.page_size = None
    await relay.write(*(note(number, at=number) for number in range(100)))
    filters = [asked(since=number) for number in range(20)]
    held, places = list[int](), relay.store.places

    async def noted(query: PageQuery) -> Places:
        held.append(relay.queries.held_rows[False].used)
        return await places(query)

    monkeypatch.setattr(relay.store, "places", noted)
    whole = await relay.answered(Client(), *filters)
    assert max(held) > 300_000
    held.clear()
    monkeypatch.setattr("relay.read.scan._ORDINARY_HELD", 0)
    relay.queries.held_rows[False].add("others", 64 << 20)
    assert await relay.answered(Client(), *filters) == whole
    assert max(held) - (64 << 20) < 2 * (64 << 10)
    assert relay.queries.held_rows[False].used == 64 << 20


async def test_rows_that_others_hold_leave_room_to_whom_an_owner_has_admitted(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """480 REQs of keys known by groups of their own held all there was: members read two rows of
    each filter at a time, and waited 3 to 6 s."""
    relay.store.page_size = None
    await relay.write(*(note(number, at=number) for number in range(100)))
    filters = [asked(since=number) for number in range(5)]
    reads, places = list[int](), relay.store.places

    async def noted(query: PageQuery) -> Places:
        reads.append(query.size)
        return await places(query)

    monkeypatch.setattr(relay.store, "places", noted)
    await relay.answered(Client(owner), *filters)
    before = len(reads)
    monkeypatch.setattr("relay.read.scan._ORDINARY_HELD", 0)
    relay.queries.held_rows[False].add("others", 64 << 20)
    await relay.answered(Client(owner), *filters)
    assert len(reads) == 2 * before
    await relay.answered(Client(), *filters)
    assert len(reads) > 4 * before


async def test_of_listed_rows_no_more_are_read_than_there_is_memory_for(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would only be listed again: 250 rows were read for each few that were given."""
    monkeypatch.setattr("relay.read.scan._MERGED_BYTES", 2 * 3_000)
    relay.store.page_size = 2
    await relay.write(*(note(f"{n}".rjust(600), at=n) for n in range(9)))
    sizes, places = list[int](), relay.store.places

    async def noted(query: PageQuery) -> Places:
        if query.listed is not None and query.listed.seqs:
            sizes.append(query.size)
        return await places(query)

    monkeypatch.setattr(relay.store, "places", noted)
    told = await relay.answered(Client(), asked(kinds=[1]), asked(kinds=[7]))
    assert [text.strip() for text in told] == [*"876543210", "<EOSE>"]
    assert set(sizes) == {2}


@pytest.mark.proves("N01-77", "N11-18")
async def test_limits_are_per_filter_and_capped(relay: QuerySide) -> None:
    """N01-77, N01-79, N11-18, N11-19."""
    await relay.write(*(note(n, at=n) for n in range(10)))
    relay.limits.max_limit, relay.limits.default_limit = 7, 5
    for limit, rows in [(0, 0), (1, 1), (PAGE, PAGE), (6, 6), (99, 7), (None, 5)]:
        more = {} if limit is None else {"limit": limit}
        client = Client()
        assert len(await relay.answered(client, asked(**more))) == rows + 1
        await relay.write(note(f"live {limit}", at=-1))
        assert client.stream()[-1] == f"live {limit}"


FILTERS = st.builds(
    lambda authors, kinds, limit: asked(
        **({"authors": authors} if authors else {}),
        **({"kinds": kinds} if kinds else {}),
        **({} if limit is None else {"limit": limit}),
    ),
    st.lists(st.sampled_from([key.pubkey for key in (alice, bob, carol)]), max_size=2),
    st.lists(st.sampled_from([1, 7]), max_size=2),
    st.none() | st.integers(0, 8),
)
NOTES = st.lists(
    st.builds(
        lambda who, kind, at, text: note(text, at, who, kind=kind),
        st.sampled_from([alice, bob, carol]),
        st.sampled_from([1, 7]),
        st.integers(0, 3),
        st.integers(0, 99),
    ),
    max_size=25,
    unique_by=lambda event: event.id,
)


@pytest.mark.proves("N01-63", "N01-76", "N01-77")
@pytest.mark.slow
@settings(max_examples=examples(80))
@given(NOTES, st.lists(FILTERS, min_size=1, max_size=4))
def test_several_filters_are_merged_each_with_its_own_limit(
    policy: PolicySet, notes: list[Event], filters: list[Filter]
) -> None:
    """N01-63, N01-76, N01-77: one order over the union, no row twice. N45-01, 04: COUNT is all."""

    async def law() -> None:
        relay, client = QuerySide(policy), Client()
        await relay.write(*notes)
        ordered = sorted(notes, key=lambda event: (-event.created_at, event.id))
        wanted = {
            event.id for f in filters for event in [e for e in ordered if f.matches(e)][: f.limit]
        }
        await relay.answered(client, *filters)
        told = [frame[2]["id"] for frame in client.received if frame[0] == "EVENT"]
        assert told == [event.id for event in ordered if event.id in wanted]
        every = sum(any(f.matches(event) for f in filters) for event in notes)
        assert await relay.counted(client, *filters) == {"count": every}

    asyncio.run(law())


# while writes go on ------------------------------------------------------------------------------


@pytest.mark.proves("N01-80")
@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=8),
    st.sampled_from([(asked(),), (asked(kinds=[1]), asked(authors=[bob.pubkey]), asked(until=4))]),
)
def test_no_row_is_missed_or_sent_twice_during_writes(
    policy: PolicySet, before: list[int], meanwhile: list[list[int]], filters: tuple[Filter, ...]
) -> None:
    """N01-80: whatever is written between two pages comes once, after EOSE.

    Also when a member is added during the scan and pages are read again.
    """

    async def law() -> None:
        relay, client, number = QuerySide(policy), Client(), len(before)
        client.is_reading = False
        await relay.write(*(note(n, at=at) for n, at in enumerate(before)))
        batches = iter(meanwhile)

        async def write_on() -> None:
            nonlocal number
            batch = next(batches, [])
            for at in batch:
                await relay.write(note(number, at=at))
                number += 1
            if len(batch) == 2:
                den = DEN.with_users({f"{number:064x}": ()})
                relay.state.adopt(relay.state.groups.with_group(den))

        relay.store.before_page = write_on
        heard = await relay.answered(client, *filters)
        await relay.write(note(number))
        heard = client.stream()
        eose = heard.index("<EOSE>")
        assert {int(text) for text in heard[:eose]} == set(range(len(before)))
        assert [int(text) for text in heard[eose + 1 :]] == list(range(len(before), number + 1))
        assert len(heard) == len(set(heard))

    asyncio.run(law())


@pytest.mark.parametrize("is_reading", [True, False])
@pytest.mark.parametrize("more", [(), (asked(kinds=[1]),)])
async def test_a_subscription_that_is_too_costly_gets_its_stored_rows(
    relay: QuerySide, more: tuple[Filter, ...], *, is_reading: bool
) -> None:
    """They need no place among live subscriptions. It leaves none behind, and other addresses have
    theirs."""
    await relay.write(note("stored"))
    busy, client, other = (Client(counted_as=f"192.0.2.{number}") for number in (1, 1, 2))
    held = QueryQueue(relay.queries, busy)
    for number in range(2):
        held.subscribe(f"{number}", (asked(since=1),) * 250)
    client.is_reading = is_reading
    whole = ["stored", "<EOSE>"]
    closed = "rate-limited: too many costly subscriptions are open on this relay, try again later"
    open_ = relay.queries.open_subscriptions
    assert await relay.answered(client, asked(since=1), *more) == [*whole, f"<CLOSED {closed}>"]
    assert (client.closed, relay.queries.open_subscriptions) == (["s"], open_)
    assert await relay.answered(other, asked(since=1)) == whole
    await relay.write(note("live"))
    assert len(client.stream()) == 3
    assert other.stream() == [*whole, "live"]
    await held.aclose()


@pytest.mark.proves("N01-99")
async def test_a_backlog_overflow_closes_the_subscription(relay: QuerySide) -> None:
    """CLOSED, no EOSE, nothing live after it; the client may subscribe again."""
    client = Client()
    client.is_reading = False
    burst = [Stored(2 + n, note(n)) for n in range(5000)]

    async def a_burst() -> None:
        relay.deliver(burst)

    await relay.write(note("stored"))
    relay.store.before_page = a_burst
    closed = "<CLOSED error: backlog overflow, subscribe again>"
    assert await relay.answered(client) == ["stored", closed]
    assert client.closed == ["s"]
    await relay.write(note("live"))
    assert client.stream()[-1] == closed
    assert len(relay.fanout) == 0


# who may read ------------------------------------------------------------------------------------

ALL_OF_THE_DEN = (asked(kinds=[9], tag_h=["den"]),)
IN_TWO_FILTERS = (asked(kinds=[9], authors=[admin.pubkey]), asked(kinds=[9], authors=[bob.pubkey]))


@pytest.mark.parametrize(
    ("filters", "of_bob"),
    [(ALL_OF_THE_DEN, 0), (IN_TWO_FILTERS, 1), (IN_TWO_FILTERS, 2 * PAGE)],
)
async def test_a_reader_removed_between_pages_gets_no_more(
    relay: QuerySide, filters: tuple[Filter, ...], of_bob: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N29-94: running stored queries stop too."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    await relay.write(*(chat(f"bob {n}", at=100 - 2 * n, who=bob) for n in range(of_bob)))
    await relay.write(*(chat(f"admin {n}", at=99 - 2 * n) for n in range(4 * PAGE)))
    await scanning(relay, client := Client(alice), *filters)
    await relay.remove_alice()
    client.may_read_on.set()
    await settled()
    assert len(client.stream()[:-1]) == PAGE
    assert client.stream()[-1] == "<EOSE>"


async def test_a_reader_added_between_pages_gets_no_rows_from_before_the_last_page(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N01-76: newest first over the whole answer; the filter of the chat had no row until then.
    Only where a store lists no rows behind a page are they read with the new rights (N29-95)."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    places = relay.store.places

    async def without_list(query: PageQuery) -> Places:
        return (await places(query))[0], Listed((), are_last=False)

    monkeypatch.setattr(relay.store, "places", without_list)
    await relay.write(*(note(f"note {n}", at=100 - 2 * n) for n in range(2 * PAGE)))
    await relay.write(*(chat(f"chat {n}", at=99 - 2 * n) for n in range(2 * PAGE)))
    client = Client(carol)
    await scanning(relay, client, asked(kinds=[1]), asked(authors=[admin.pubkey]))
    relay.state.adopt(relay.state.groups.with_group(DEN.with_users({carol.pubkey: ()})))
    client.may_read_on.set()
    await settled()
    first = [f"note {n}" for n in range(PAGE)]
    rest = [f"{what} {n}" for n in range(PAGE, 2 * PAGE) for what in ("note", "chat")]
    assert client.stream() == [*first, f"chat {PAGE - 1}", *rest, "<EOSE>"]


@pytest.mark.parametrize("more", [(), (asked(kinds=[7]),)])
async def test_who_logs_in_between_pages_gets_what_the_key_may_read_among_the_rest(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, more: tuple[Filter, ...]
) -> None:
    """Also where rows behind the page were listed for it before."""
    relay.store.page_size = 2
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", 2)
    for n in range(4):
        mail = note(n, at=2 * n, who=admin, kind=4, tags=[["p", bob.pubkey]])
        await relay.write(note(f"note {n}", at=2 * n + 1), mail)
    client = Client(carol)
    await scanning(relay, client, asked(kinds=[1, 4]), *more)
    client.viewer = Viewer(frozenset({carol.pubkey, bob.pubkey}))
    client.may_read_on.set()
    await settled()
    told = client.stream()
    assert told == ["note 3", "note 2", "2", "note 1", "1", "note 0", "0", "<EOSE>"]


async def test_a_row_that_becomes_readable_during_a_page_hides_no_other(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one filter are read again, one by one, because there is no memory for them."""
    monkeypatch.setattr("relay.read.scan._MERGED_BYTES", 600)
    await relay.write(*(note(n, at=n) for n in range(4)))
    places, asked_for = relay.store.places, 0

    async def places_without_2_at_first(query: PageQuery) -> Places:
        nonlocal asked_for
        asked_for += 1
        rows, behind = await places(query)
        found = rows if asked_for > 2 else [row for row in rows if row[0].created_at != 2]
        return found, behind

    monkeypatch.setattr(relay.store, "places", places_without_2_at_first)
    told = await relay.answered(Client(), asked(kinds=[1]), asked(authors=[bob.pubkey]))
    assert told == ["3", "1", "0", "<EOSE>"]


async def test_a_reader_removed_during_a_page_does_not_get_it(relay: QuerySide) -> None:
    """N29-94: membership is evaluated at the moment of each send; nothing is queued past it."""
    await relay.write(*(chat(n) for n in range(2 * PAGE)))

    async def meanwhile() -> None:
        relay.store.before_page = None
        await relay.remove_alice()

    relay.store.before_page = meanwhile
    assert await relay.answered(Client(alice), *ALL_OF_THE_DEN) == ["<EOSE>"]


def with_groups(relay: QuerySide, number: int) -> list[str]:
    """Ids of groups like "den"."""
    groups = [replace(DEN, id=f"den {n}") for n in range(number)]
    for group in groups:
        relay.state.adopt(relay.state.groups.with_group(group))
    return [group.id for group in groups]


def one_less(relay: QuerySide, groups: list[str]) -> Callable[[], Awaitable[None]]:
    async def end_one() -> None:
        relay.state.adopt(relay.state.groups.without_group(groups.pop()))

    return end_one


async def test_rights_lost_during_every_page_end_the_query(relay: QuerySide) -> None:
    """CLOSED, instead of reading the same page for ever."""
    groups = with_groups(relay, 99)
    said = [note(group, at, kind=9, tags=[["h", group]]) for at, group in enumerate(groups)]
    await relay.write(*said)
    relay.store.before_page = one_less(relay, groups)
    (closed,) = await relay.answered(client := Client(alice), asked(kinds=[9]))
    assert closed.startswith("<CLOSED error: ")
    assert client.closed == ["s"]


async def test_who_is_removed_gets_no_row_that_is_read_with_one_of_the_group(
    relay: QuerySide,
) -> None:
    """A vouch has no `h`: who may read the memory that it names may read it."""
    memory = "a" * 64
    tags = [["d", f"anamnesis:vouch:{memory}"], ["x", memory]]
    vouches = [note(n, kind=30078, tags=tags, who=person(f"{n}")) for n in range(1, 8)]
    await relay.write(
        note("tea", kind=78, tags=[["d", f"anamnesis:memory:{memory}"], ["h", "den"]]), *vouches
    )
    keeps_words = relay.state.groups.by_id["den"]
    relay.state.adopt(relay.state.groups.with_group(replace(keeps_words, id="other")))

    async def meanwhile() -> None:
        relay.store.before_page = None
        await relay.remove_alice()

    assert len(await relay.answered(Client(alice), asked(kinds=[30078]))) == 8
    relay.store.before_page = meanwhile
    assert await relay.answered(Client(alice), asked(kinds=[30078])) == ["<EOSE>"]


@pytest.mark.parametrize("kind", [9, 7])
async def test_groups_of_others_that_end_break_off_no_query(relay: QuerySide, kind: int) -> None:
    """Who turned an own group private again and again ended all long queries of others. Of what
    answers something the group is not known, so it is read again."""
    groups = with_groups(relay, 99)
    await relay.write(*(chat(n) for n in range(2 * PAGE)), note("+", at=0, kind=kind))
    relay.store.before_page = one_less(relay, groups)
    *texts, end = await relay.answered(Client(alice), asked(kinds=[7, 9]))
    assert len(texts) == 2 * PAGE + (kind == 9)
    assert end.startswith("<EOSE" if kind == 9 else "<CLOSED error: ")


@pytest.mark.proves("N29-94")
async def test_a_reader_removed_between_two_pages_gets_no_more(relay: QuerySide) -> None:
    relay.store.page_size = 2
    await relay.write(*(chat(str(n).rjust(600), at=n) for n in range(8)))
    client = Client(alice)
    client.has_time = False
    await scanning(relay, client, *ALL_OF_THE_DEN)
    await relay.remove_alice()
    client.may_read_on.set()
    await settled()
    assert [text.strip() for text in client.stream()] == ["7", "6", "<EOSE>"]


@pytest.mark.proves("N29-94")
async def test_a_reader_removed_while_rows_that_came_meanwhile_are_read_does_not_get_them(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came live while the client read the stored ones, and are read again after EOSE."""
    await relay.write(*(chat(n, at=n) for n in range(2 * PAGE)))
    await scanning(relay, client := Client(alice), *ALL_OF_THE_DEN)
    await relay.write(chat("live", at=2000))
    rows = relay.store.rows

    async def read_meanwhile(*asked: Any, **more: Any) -> Any:
        found = await rows(*asked, **more)
        await relay.remove_alice()
        return found

    monkeypatch.setattr(relay.store, "rows", read_meanwhile)
    client.may_read_on.set()
    await settled()
    texts = client.stream()
    assert len(texts) == 2 * PAGE + 1
    assert texts[-1] == "<EOSE>"


async def test_a_query_during_which_rights_are_not_known_gets_no_eose(relay: QuerySide) -> None:
    """As while another relay on the database has written what this one has not read: the client
    asks again."""
    await relay.write(*(note(n, at=n) for n in range(PAGE + 1)))
    await scanning(relay, client := Client())
    relay.state.is_current = lambda: False
    client.may_read_on.set()
    await settled()
    assert client.stream()[-1].startswith("<CLOSED error: ")


async def test_rows_that_a_page_listed_are_not_looked_for_again(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends at 512 kB: of rows of 7.6 kB, 500 were looked for eight times."""
    asked_for = list[Listed | None]()
    page, places = relay.store.page, relay.store.places

    async def noted(query: PageQuery, *, is_long: bool = False) -> Page:
        asked_for.append(query.listed)
        return await page(query, is_long=is_long)

    async def places_noted(query: PageQuery) -> Places:
        asked_for.append(query.listed)
        return await places(query)

    await relay.write(*(note(n, at=n) for n in range(9)))
    monkeypatch.setattr(relay.store, "page", noted)
    monkeypatch.setattr(relay.store, "places", places_noted)
    relay.store.page_size = 2
    wanted = [*"876543210", "<EOSE>"]
    assert await relay.answered(Client(), asked(kinds=[1])) == wanted
    numbers = [None if each is None else len(each.seqs) for each in asked_for]
    # A page is read again when carol is known no more.
    assert [number for number, _ in groupby(numbers)] == [None, 3, 1, 0, 2]
    asked_for.clear()
    assert await relay.answered(Client(), asked(kinds=[1]), asked(kinds=[7])) == wanted
    numbers = [None if each is None else len(each.seqs) for each in asked_for]
    assert numbers == [None, None, 3, 1, 0, 2, 0]


async def test_of_rows_that_are_listed_only_their_place_in_the_store_counts(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 bytes each; once more with each read, they would have counted as a megabyte."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", 40)
    await relay.write(*(note(n, at=n) for n in range(60)))
    relay.store.page_size = 2
    client = Client()
    client.has_time = False
    await scanning(relay, client, asked(kinds=[1]), asked(authors=[alice.pubkey, bob.pubkey]))
    assert len(client.stream()) == 40
    assert relay.queries.held_rows[False].used == 2 * 8 * 5
    client.may_read_on.set()
    await settled()
    assert len(client.stream()) == 61
    assert relay.queries.held_rows[False].used == 0


@pytest.mark.parametrize("is_of_reader", [False, True])
@pytest.mark.parametrize("who", ["stranger", "alice", "both", "carol"])
async def test_changes_of_groups_make_no_query_look_again(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, who: str, *, is_of_reader: bool
) -> None:
    """Whoever edited an own group 60 times a second, or put the readers in and took them out, kept
    60 readers of large rows waiting for 9 to 16 seconds instead of 1."""
    asked_for = list[Listed | None]()
    page, places = relay.store.page, relay.store.places
    keys = {"stranger": (), "alice": (alice,), "both": (alice, bob), "carol": (carol,)}[who]
    relay.state.adopt(
        relay.state.groups.with_group(replace(DEN, id="own").with_users({bob.pubkey: ()}))
    )

    def change() -> None:
        users = {person(f"{len(asked_for)}").pubkey: ()}
        if is_of_reader and len(asked_for) % 2:
            users |= {each.pubkey: () for each in (alice, bob, carol)}
        other = Group("other").with_users(users)
        relay.state.adopt(relay.state.groups.with_group(other))

    async def noted(query: PageQuery, *, is_long: bool = False) -> Page:
        asked_for.append(query.listed)
        found = await page(query, is_long=is_long)
        change()
        return found

    async def places_noted(query: PageQuery) -> Places:
        asked_for.append(query.listed)
        found = await places(query)
        change()
        return found

    await relay.write(*(note(n, at=n) for n in range(9)))
    monkeypatch.setattr(relay.store, "page", noted)
    monkeypatch.setattr(relay.store, "places", places_noted)
    relay.store.page_size = 2
    wanted = [*"876543210", "<EOSE>"]
    assert await relay.answered(Client(*keys), asked(kinds=[1])) == wanted
    numbers = [None if each is None else len(each.seqs) for each in asked_for]
    # A page is read again when carol is known no more.
    assert [number for number, _ in groupby(numbers)] == [None, 3, 1, 0, 2]
    asked_for.clear()
    assert await relay.answered(Client(*keys), asked(kinds=[1]), asked(kinds=[7])) == wanted
    assert [each is None for each in asked_for].count(True) == 2


BY_TAG = """
[[rule]]
name = "reactions"
match = { kinds = [7] }
read = ["anyone"]
only_by = ["#e"]
"""


@pytest.mark.parametrize("filters", [1, 2])
@pytest.mark.parametrize("is_of_group", [False, True])
@pytest.mark.parametrize("rules", ["", BY_TAG])
async def test_of_reactions_the_store_says_which_a_removed_reader_may_still_read(
    monkeypatch: pytest.MonkeyPatch, filters: int, rules: str, *, is_of_group: bool
) -> None:
    """Their tags do not tell of which group they are. Who added and removed readers kept them from
    what is of no group: each page was read again, up to 16 times."""
    relay = QuerySide(policy_of("open", rules))
    own = Group("own").with_users({alice.pubkey: ()})
    relay.state.adopt(relay.state.groups.with_group(own))
    reactions = [note(n, kind=7, at=n, tags=[["e", "a" * 64]]) for n in range(2, 5)]
    await write(relay.store, *reactions, group="den" if is_of_group else None)
    reads = 0

    def removed(read: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            found = await read(*args, **options)
            await relay.remove_alice()
            return found

        return noted

    for name in ("page", "places"):
        monkeypatch.setattr(relay.store, name, removed(getattr(relay.store, name)))
    client = Client(alice)
    client.is_reading = False
    wanted = [asked(kinds=[7], tag_e=["a" * 64]), asked(kinds=[6])]
    answer = await relay.answered(client, *wanted[:filters])
    assert answer == (["<EOSE>"] if is_of_group else ["4", "3", "2", "<EOSE>"])
    assert reads == {1: (1, 2), 2: (3, 5)}[filters][is_of_group]


async def test_a_reader_removed_during_a_count_gets_the_new_count(
    relay: QuerySide,
) -> None:
    """N29-94, N45-04: of what this reader may read when it is said."""
    await relay.write(*(chat(n) for n in range(3)))
    relay.store.before_page = relay.remove_alice
    client = Client(alice)
    await relay.queries.count(client, "c", (asked(kinds=[1, 9]),))
    client.outbox.flush()
    assert client.received[-1] == ["COUNT", "c", {"count": 0}]


def changing_groups(relay: QuerySide, number: int, changes: int) -> Callable[[], Awaitable[None]]:
    """Groups of others, of which one turns private and another public, so many times."""
    for n in range(number):
        relay.state.adopt(relay.state.groups.with_group(Group(f"den {n}")))
    turns = iter(range(changes))

    async def change() -> None:
        if (now := next(turns, None)) is not None:
            for n, flags in ((now % number, DEN.flags), ((now + 1) % number, frozenset())):
                group = Group(f"den {n}", flags=flags)
                relay.state.adopt(relay.state.groups.with_group(group))

    return change


async def test_a_count_is_answered_however_often_a_few_groups_turn_private(
    relay: QuerySide,
) -> None:
    """One key with twelve groups of its own kept everybody from counting what takes long."""
    relay.store.before_page = changing_groups(relay, 12, 1000)
    await relay.write(*(note(n) for n in range(3)))
    await relay.write(*(note(n, tags=[["h", f"den {n}"]]) for n in range(12)))
    assert await relay.counted(Client(stranger), asked(kinds=[1])) == {"count": 3}


@pytest.mark.parametrize("filter_", [asked(), asked(kinds=[30078])])
async def test_a_count_is_answered_however_many_groups_turn_private(
    relay: QuerySide, filter_: Filter
) -> None:
    """At last without the rows of groups that its reader is not in."""
    relay.store.before_page = changing_groups(relay, 100, 1000)
    await relay.write(*(note(n, tags=[["h", f"den {n}"]]) for n in range(9)), chat(1), note(99))
    assert await relay.counted(Client(alice), asked()) == {"count": 2}
    assert await relay.counted(Client(alice), filter_) is not None


async def test_a_count_of_who_is_removed_while_it_is_read_for_the_last_time_fails(
    relay: QuerySide,
) -> None:
    change, reads = changing_groups(relay, 100, 1000), count(1)
    await relay.write(chat(1))

    async def at_last_also_remove() -> None:
        await change()
        if next(reads) == 4:
            await relay.remove_alice()

    relay.store.before_page = at_last_also_remove
    client = Client(alice)
    await relay.queries.count(client, "c", (asked(),))
    client.outbox.flush()
    assert client.received[-1][0] == "CLOSED"


async def test_a_count_is_exact_where_a_group_turned_private_once(relay: QuerySide) -> None:
    relay.store.before_page = changing_groups(relay, 2, 1)
    await relay.write(*(note(n, tags=[["h", f"den {n}"]]) for n in range(2)))
    assert await relay.counted(Client(stranger), asked(kinds=[1])) == {"count": 1}
    assert relay.store.pages == 2


async def test_owners_count_once_whatever_groups_turn_private(relay: QuerySide) -> None:
    relay.store.before_page = changing_groups(relay, 2, 1)
    await relay.write(*(note(n, tags=[["h", f"den {n}"]]) for n in range(2)))
    assert await relay.counted(Client(owner), asked(kinds=[1])) == {"count": 2}
    assert relay.store.pages == 1


@pytest.mark.parametrize("is_long", [True, False])
async def test_a_query_for_which_there_is_no_time_now_waits_for_its_turn(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, *, is_long: bool
) -> None:
    """40 connections that ask at once took 0.7 s of the loop; each long read was begun twice."""
    await relay.write(*(note(n) for n in range(2)))
    client, order = Client(alice), list[str]()
    client.has_time = is_long
    page_now, page = relay.store.page_now, relay.store.page

    def read_now(query: PageQuery) -> Page | None:
        order.append("short read")
        return None if is_long else page_now(query)

    async def read(query: PageQuery, *, is_long: bool = False) -> Page:
        order.append("long read" if is_long else "read")
        return await page(query)

    async def turn(_: float) -> None:
        order.append("turn")

    monkeypatch.setattr(relay.store, "page_now", read_now)
    monkeypatch.setattr(relay.store, "page", read)
    monkeypatch.setattr(client, "turn", turn)
    assert len(await relay.answered(client)) == 3
    assert order == (["short read", "long read"] if is_long else ["turn", "read"])


async def test_a_query_that_is_closed_while_it_waits_for_its_turn_is_not_read(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.write(note(1))
    client, reads = Client(alice), list[PageQuery]()
    client.has_time = False
    queue = QueryQueue(relay.queries, client)

    async def read(query: PageQuery, *, is_long: bool = False) -> Page:
        reads.append(query)
        return Page((), None)

    async def turn(_: float) -> None:
        queue.cancel("s")

    monkeypatch.setattr(relay.store, "page", read)
    monkeypatch.setattr(client, "turn", turn)
    queue.subscribe("s", (asked(),))
    await settled()
    assert reads == []


async def test_a_count_that_was_answered_keeps_no_filters_while_its_client_reads_nothing(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were counted no more: 1 MB of a client for 99 kB, and again with each COUNT."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    await relay.write(*(note(number) for number in range(PAGE + 1)))
    client = Client()
    client.may_read_on.clear()
    filters = (asked(kinds=list(range(3))),)
    before = sys.getrefcount(filters)
    queue = QueryQueue(relay.queries, client)
    queue.count("c", filters)
    await asyncio.sleep(0)
    queue.subscribe("s", (asked(), asked(kinds=[7])))
    await client.has_a_page.wait()
    assert client.received[0][0] == "COUNT"
    assert sys.getrefcount(filters) == before
    await queue.aclose()


async def test_a_req_that_is_closed_keeps_no_filters_while_its_client_reads_nothing(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    await relay.write(*(note(number) for number in range(2 * PAGE)))
    filters = (asked(), asked(kinds=[7]))
    before = [sys.getrefcount(each) for each in filters]
    client = Client()
    client.is_reading = False
    queue = await scanning(relay, client, *filters)
    queue.cancel("s")
    queue.subscribe("later", (asked(), asked(kinds=[8])))
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()
    assert [sys.getrefcount(each) for each in filters] == before
    client.may_read_on.set()
    await settled()
    assert client.stream("later")[-1] == "<EOSE>"


async def test_what_is_asked_anew_waits_until_the_client_reads(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each REQ that a CLOSE follows put one page more into its outbox, up to the limit."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    await relay.write(*(note(number) for number in range(2 * PAGE)))
    client = Client()
    client.is_reading = False
    queue = await scanning(relay, client)
    had = len(client.received)
    for number in range(5):
        queue.cancel(f"{number - 1}" if number else "s")
        queue.subscribe(f"{number}", (asked(),))
        for _ in range(30):
            await asyncio.sleep(0)
    assert len(client.received) == had
    client.may_read_on.set()
    await settled()
    assert [client.stream(f"{number}")[-1:] for number in range(5)] == [[]] * 4 + [["<EOSE>"]]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_client_that_does_not_read_keeps_no_groups_of_their_time(
    relay: QuerySide, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large group that changes again and again would be copied for each."""
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", PAGE)
    await relay.write(*(note(number) for number in range(2 * PAGE)))
    client = Client(alice)
    await scanning(relay, client, *(asked(kinds=[1, each]) for each in range(number)))
    rights = weakref.ref(relay.state.visibility(client.viewer))
    relay.state.adopt(relay.state.groups.with_group(DEN.with_users({carol.pubkey: ()})))
    relay.state.visibility(client.viewer)
    gc.collect()
    assert rights() is None
    client.may_read_on.set()
    await settled()


async def test_a_count_that_waits_counts_as_memory_of_its_client(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the groups of its time: 1,000 that waited were 90 MB that no connection seemed to
    hold."""
    client, held = Client(), list[int]()

    async def counted(*_: object, **__: object) -> int:
        held.append(client.held_bytes)
        return 0

    monkeypatch.setattr(relay.store, "count", counted)
    queue = QueryQueue(relay.queries, client)
    queue.count("c", (asked(),))
    await settled()
    assert (held, client.held_bytes) == ([64 << 10], 0)


async def test_each_count_waits_for_its_turn(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 short ones took the loop in one piece, of each connection: 20 kept others out. One that
    was composed for 0.2 s counted as 15 ms."""
    ticks, turns, client = count(), list[int](), Client()
    worked = [0.0]

    async def noted(_: float) -> None:
        turns.append(len(client.received))
        worked.append(0.0)
        client.outbox.flush()

    def add(seconds: float) -> bool:
        worked[-1] += seconds
        return False

    monkeypatch.setattr("relay.read.pace.thread_time", lambda: next(ticks) / 4)
    monkeypatch.setattr(client, "turn", noted)
    monkeypatch.setattr(client, "worked", add)
    queue = QueryQueue(relay.queries, client)
    for number in range(4):
        queue.count(f"c{number}", (asked(),))
    while len(client.received) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await queue.aclose()
    assert turns == [0, 0, 1, 2]
    assert min(worked[1:4]) >= 0.25


async def test_a_count_has_few_tag_names(relay: QuerySide) -> None:
    """To make its text takes the loop 35 us for each name: 80 ms for 50 filters with 50, and twice
    as long on the thread, for which reads of all members waited."""
    client = Client(alice)
    queue = QueryQueue(relay.queries, client)
    names = [asked(**{f"tag_{name}": ["x"] for name in "abcdfgijklmnoqrs"}) for _ in range(17)]
    queue.count("many", tuple(names))
    client.outbox.flush()
    refused = "invalid: a COUNT may have at most 256 tag names in its filters"
    assert client.received == [["CLOSED", "many", refused]]
    queue.count("few", tuple(names[1:]))
    await settled()
    client.outbox.flush()
    assert client.received[1] == ["COUNT", "few", {"count": 0}]


async def test_queued_counts_of_numbers_are_bounded_too(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 of 700 kinds on each of 600 connections took 350 MB; of 30,000 values on 50, 3 GB."""
    monkeypatch.setattr("relay.read.query_queue._VALUE_BYTES", 1)
    monkeypatch.setattr("relay.read.query_queue._FILTER_BYTES", 0)
    monkeypatch.setattr("relay.read.query_queue._MAX_BYTES", 10)
    monkeypatch.setattr("relay.read.query._MAX_ALL_BYTES", 20)
    monkeypatch.setattr("relay.read.query._ORDINARY_BYTES", 2)

    def queued(*whose: SecretKey, values: int, address: str = "") -> tuple[QueryQueue, Client]:
        client = Client(*whose, counted_as=address)
        queue = QueryQueue(relay.queries, client)
        queue.count("c", (asked(kinds=list(range(values))),))
        client.outbox.flush()
        return queue, client

    busy = "rate-limited: too many costly COUNTs are queued on this relay, try again later"
    known, itself = queued(alice, values=10, address="a")
    known.count("d", (asked(kinds=[1]),))
    itself.outbox.flush()
    text = "rate-limited: at most 10 bytes of filters in queued COUNTs"
    assert itself.received == [["CLOSED", "d", text]]
    assert queued(alice, values=11)[1].received == [["CLOSED", "c", text]]
    one, first = queued(values=5)
    assert not first.received
    assert queued(values=3)[1].received == [["CLOSED", "c", busy]]
    assert queued(values=3, address="b")[1].received == [["CLOSED", "c", busy]]
    few = [queued(values=2, address=f"{number}") for number in range(9)]
    assert [client.received for _, client in few] == [*[[]] * 7, *[[["CLOSED", "c", busy]]] * 2]
    assert one.held_bytes == 5
    assert relay.queries.counted_bytes.used == 29
    await one.aclose()
    for queue in [known, *[queue for queue, client in few if not client.received]]:
        assert queue._task is not None
        await queue._task
        assert queue.held_bytes == 0
    assert relay.queries.counted_bytes.used == 0
    itself.outbox.flush()
    assert itself.received[-1][:2] == ["COUNT", "c"]


async def test_queued_counts_hold_a_bounded_number_of_bytes(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 of half a megabyte on each of 13 connections took 340 MB."""
    monkeypatch.setattr("relay.read.query_queue._FILTER_BYTES", 0)
    monkeypatch.setattr("relay.read.query_queue._VALUE_BYTES", 0)
    monkeypatch.setattr("relay.read.query_queue._MAX_BYTES", 1000)
    monkeypatch.setattr("relay.read.query._MAX_ALL_BYTES", 4000)
    monkeypatch.setattr("relay.read.query._ORDINARY_BYTES", 100)
    queues = list[QueryQueue]()

    def queued(client: Client, text: str) -> None:
        queues.append(QueryQueue(relay.queries, client))
        for sub in "ab":
            queues[-1].count(sub, (asked(tag_t=[text]),))
        client.outbox.flush()

    busy = "rate-limited: too many costly COUNTs are queued on this relay, try again later"
    text = "rate-limited: at most 1000 bytes of filters in queued COUNTs"
    queued(first := Client(), "x" * 200 + "\U0001f600")
    assert first.received == [["CLOSED", "b", text]]
    queued(second := Client(), "x" * 900)
    assert [reply[:2] for reply in second.received] == [["CLOSED", "a"], ["CLOSED", "b"]]
    assert second.received[0][2] == busy
    queued(few := Client(stranger), "")
    assert not few.received
    queued(known := Client(alice), "x" * 900)
    assert known.received == [["CLOSED", "b", text]]
    for queue in queues:
        await queue.aclose()
    assert relay.queries.counted_bytes.used == 0


@pytest.mark.proves("N45-04")
@pytest.mark.parametrize("who", [(), (alice,), (bob,), (owner,), (alice, bob)])
async def test_a_count_equals_the_rows_of_a_query(
    relay: QuerySide, who: tuple[SecretKey, ...]
) -> None:
    """N45-01, N45-04: to this reader, each event once, `limit` aside."""
    wraps = [note("w", who=carol, kind=1059, tags=[["p", key.pubkey]]) for key in (alice, bob)]
    await relay.write(*(chat(n) for n in range(5)), *(note(n) for n in range(5)), *wraps)
    wide = asked(kinds=[1, 9, 1059], limit=2), asked(kinds=[9], limit=1)
    rows = await relay.answered(Client(*who), asked(kinds=[1, 9, 1059]))
    assert await relay.counted(Client(*who), *wide) == {"count": len(rows) - 1}
    assert len(rows) - 1 == 5 + {(): 0, (alice,): 6, (bob,): 1, (owner,): 5}.get(who, 7)


@pytest.mark.proves("N42-11", "N42-12")
@pytest.mark.parametrize("filters", [ALL_OF_THE_DEN, (asked(kinds=[1059]),)])
async def test_a_query_that_can_match_nothing_readable_is_closed(
    relay: QuerySide, filters: tuple[Filter, ...]
) -> None:
    """N42-11, N42-12, N45-02: REQ and COUNT alike; nothing stays open."""
    needs = (
        "this group is for its members"
        if filters is ALL_OF_THE_DEN
        else ("authentication is needed to read this")
    )
    passer, guest = Client(), Client(stranger)
    for_nobody = (asked(kinds=[1059], tag_p=[bob.pubkey]),)
    foreign = filters if filters is ALL_OF_THE_DEN else for_nobody
    assert await relay.answered(passer, *filters) == [f"<CLOSED auth-required: {needs}>"]
    assert await relay.answered(guest, *foreign) == ["<CLOSED restricted: you may not read this>"]
    assert passer.closed == guest.closed == ["s"]
    assert len(relay.fanout) == 0
    assert await relay.counted(passer, *filters) == f"auth-required: {needs}"
    assert await relay.counted(guest, *foreign) == "restricted: you may not read this"


# the end of a query ------------------------------------------------------------------------------


async def test_a_scan_pauses_while_the_client_does_not_read(relay: QuerySide) -> None:
    """In pages under back-pressure."""
    await relay.write(*(note(n) for n in range(9 * PAGE)))
    client = Client()
    await scanning(relay, client)
    assert (len(client.stream()), relay.store.pages) == (PAGE, 1)
    client.may_read_on.set()
    await settled()
    assert len(client.stream()) == 9 * PAGE + 1


class Copy(bytes):
    """A row as a store gives it; all of them are counted."""

    held = most = 0

    def __new__(cls, raw: bytes) -> Self:
        Copy.held += len(raw)
        Copy.most = max(Copy.most, Copy.held)
        return super().__new__(cls, raw)

    def __del__(self) -> None:
        Copy.held -= len(self)


async def test_a_query_of_many_filters_holds_no_more_than_a_page(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 filters it held 50 MiB, as long as its client liked."""
    places, rows = relay.store.places, relay.store.rows

    async def places_copied(query: PageQuery) -> Places:
        found, behind = await places(query)
        return [(place, Copy(raw)) for place, raw in found], behind

    async def rows_copied(*asked: Any, **more: Any) -> tuple[list[Copy], int]:
        found, checked = await rows(*asked, **more)
        return [Copy(raw) for raw in found], checked

    relay.store.page_size = None
    monkeypatch.setattr(relay.store, "places", places_copied)
    monkeypatch.setattr(relay.store, "rows", rows_copied)
    for bound in ("_MERGED_BYTES", "PAGE_BYTES"):
        monkeypatch.setattr(f"relay.read.scan.{bound}", 20_000)
    notes = [note(f"{n} {'x' * 1000}", at=n) for n in range(60)]
    await relay.write(*notes)
    client = Client()
    await scanning(relay, client, *(asked(kinds=[1], since=-n) for n in range(20)))
    assert Copy.held < 22_000
    client.may_read_on.set()
    await settled()
    assert client.stream() == [*newest_first(*notes), "<EOSE>"]
    one_read = 16 * 1300
    assert Copy.most < 20_000 + 22_000 + one_read


async def test_what_is_deleted_while_the_client_reads_is_not_sent(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.store.page_size = None
    monkeypatch.setattr("relay.read.scan.PAGE_ROWS", 4)
    await relay.write(*(note(n, at=n) for n in range(9)))
    client = Client()
    await scanning(relay, client, asked(kinds=[1]), asked(authors=[bob.pubkey]))
    rows = await relay.store.since(0, 9)
    await change(relay.store, lambda plan: plan.removes.add(rows[2].seq))
    client.may_read_on.set()
    await settled()
    assert client.stream() == ["8", "7", "6", "5", "4", "3", "1", "0", "<EOSE>"]


async def test_what_is_gone_since_it_came_live_is_not_sent_after_the_answer(
    relay: QuerySide,
) -> None:
    """A client may leave an answer unread for minutes."""
    await relay.write(*(note(n, at=n) for n in range(2 * PAGE)))
    client = Client()
    await scanning(relay, client)
    gone, kept = note("deleted"), note("kept")
    expired = note("expired", tags=[["expiration", "100"]])
    first, second = (note(text, at=at, kind=0) for at, text in enumerate(("old", "new"), 2000))
    await relay.write(gone, kept, expired, first, second)
    (row,) = [row for row in await relay.store.since(0, 99) if row.event.id == gone.id]
    await change(relay.store, lambda plan: plan.removes.add(row.seq))
    relay.now = 100
    client.may_read_on.set()
    await settled()
    stored = [f"{number}" for number in reversed(range(2 * PAGE))]
    assert client.stream() == [*stored, "<EOSE>", "kept", "new"]


async def test_a_query_of_many_filters_waits_for_its_turn_between_them(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 50 took the loop for 0.15 s; 20 connections of 5 each kept others out for 3 s."""
    ticks, turns, client = count(), list[float](), Client()

    async def noted(seconds: float) -> None:
        turns.append(seconds)

    monkeypatch.setattr("relay.read.pace.thread_time", lambda: next(ticks) / 1000)
    monkeypatch.setattr(client, "turn", noted)
    await relay.write(*(note(n, at=n) for n in range(9)))
    assert len(await relay.answered(client, *(asked(since=-n) for n in range(12)))) == 10
    assert len(turns) > 12
    assert max(turns) < 0.009


@pytest.mark.proves("N01-56")
@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("rows", [PAGE, 9 * PAGE])
async def test_close_stops_the_scan(relay: QuerySide, rows: int, *, is_gone: bool) -> None:
    """N01-56: no EOSE either, and nothing live; so does the end of the connection."""
    await relay.write(*(note(n) for n in range(rows)))
    client = Client()
    client.is_reading = False
    scans = await scanning(relay, client)
    if is_gone:
        await scans.aclose()
    scans.cancel("s")
    client.may_read_on.set()
    await settled()
    await relay.write(note("live"))
    assert len(client.stream()) == PAGE
    assert relay.store.pages <= 2
    assert len(relay.fanout) == 0


@pytest.mark.parametrize("has_time", [True, False])
async def test_others_have_turns_while_subscriptions_are_closed_with_their_connection(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, *, has_time: bool
) -> None:
    """200 connections with 4,000 values each, closed at the same time, took the loop 0.8 s."""
    client, left, worked = Client(), list[int](), list[float]()
    queue = QueryQueue(relay.queries, client)
    for number in range(4):
        queue.subscribe(f"{number}", (asked(tag_t=[f"{number}"]),))
    await settled()
    client.has_time = has_time

    async def turn(seconds: float) -> None:
        left.append(len(relay.fanout))
        client.has_time = True

    def is_due(seconds: float) -> bool:
        worked.append(seconds)
        return len(worked) % 2 == 0

    monkeypatch.setattr(client, "turn", turn)
    monkeypatch.setattr(client, "worked", is_due)
    await queue.aclose()
    assert left == ([2] if has_time else [4, 2])
    assert len(worked) == 4
    assert len(relay.fanout) == 0


async def test_others_have_turns_while_all_subscriptions_of_a_connection_end(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 connections of thousands of values took a second of the loop when the relay stopped.
    Nothing is sent to those that have ended, and new ones may have their ids."""
    client, left = Client(), list[int]()
    queue = QueryQueue(relay.queries, client)
    for number in range(4):
        queue.subscribe(f"{number}", (asked(kinds=[1]),))
    await settled()
    client.has_time = False

    async def turn(seconds: float) -> None:
        left.append(len(relay.fanout))

    monkeypatch.setattr(client, "turn", turn)
    monkeypatch.setattr(client, "worked", lambda _: True)
    queue.end_all()
    queue.subscribe("0", (asked(kinds=[7]),))
    assert len(relay.fanout) == 5
    await relay.write(note("for those that have ended"), note("for the new one", kind=7))
    await settled()
    assert [client.stream(f"{number}") for number in range(4)] == [
        ["<EOSE>", "<EOSE>", "for the new one"],
        *[["<EOSE>"]] * 3,
    ]
    assert sorted(left)[-4:] == [2, 3, 4, 5]
    assert len(relay.fanout) == 1


@pytest.mark.parametrize("is_closing", [True, False])
async def test_subscriptions_may_end_while_their_connection_is_closed(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, *, is_closing: bool
) -> None:
    """The relay stops, or the client's key is banned."""
    client = Client()
    queue = QueryQueue(relay.queries, client)
    for sub in ("a", "b"):
        queue.subscribe(sub, (asked(),))
    await settled()
    client.has_time = False

    async def turn(seconds: float) -> None:
        queue.end_all()
        await asyncio.sleep(0)

    monkeypatch.setattr(client, "turn", turn)
    if not is_closing:
        queue.end_all()
    await queue.aclose()
    await settled()
    assert len(relay.fanout) == 0


async def test_the_rows_of_a_connection_that_is_closed_are_freed_at_once(relay: QuerySide) -> None:
    """Not by the garbage collector, which comes when there are many objects, not many bytes."""
    await relay.write(*(note(n) for n in range(3 * PAGE)))
    client = Client()
    client.is_reading = False
    scans = await scanning(relay, client)
    freed = weakref.ref(scans)
    gc.disable()
    try:
        await scans.aclose()
        del scans
        await asyncio.sleep(0)
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.proves("N01-54")
async def test_nothing_is_sent_for_a_replaced_query(relay: QuerySide) -> None:
    """N01-54: stored results of the old one must not mix in after the new one's first message."""
    await relay.write(*(note(n) for n in range(9 * PAGE)), note("seven", kind=7))
    client = Client()
    scans = await scanning(relay, client, asked(kinds=[1]))
    scans.cancel("s")
    scans.subscribe("s", (asked(kinds=[7]), asked(kinds=[8])))
    client.may_read_on.set()
    await settled()
    await relay.write(note("live one"), note("live seven", kind=7))
    assert client.stream()[PAGE:] == ["seven", "<EOSE>", "live seven"]


@pytest.mark.parametrize("fails", [StoreFault("down"), Refused(Prefix.ERROR, "no"), KeyError()])
async def test_a_replaced_query_that_fails_closes_nothing(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, fails: Exception
) -> None:
    """Its id is that of the new one."""
    await relay.write(*(note(n) for n in range(3 * PAGE)))
    client = Client()
    scans = await scanning(relay, client, asked(kinds=[1]))
    scans.cancel("s")
    scans.subscribe("s", (asked(kinds=[7]),))

    async def failing(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise fails

    monkeypatch.setattr("relay.read.scan.Scan.page", failing)
    client.may_read_on.set()
    await settled()
    await relay.write(note("live", kind=7))
    assert client.stream()[PAGE:] == ["<EOSE>", "live"]


async def test_replaced_queries_are_not_scanned(relay: QuerySide) -> None:
    """At most as many wait as a client may subscribe."""
    await relay.write(*(note(n) for n in range(2 * PAGE)))
    scans = await scanning(relay, client := Client(), asked(kinds=[1]))
    for number in range(100):
        scans.cancel("s")
        scans.subscribe("s", (asked(kinds=[7]), asked(kinds=[8])))
        scans.subscribe(f"{number}", (asked(kinds=[7]), asked(kinds=[8])))
        scans.cancel(f"{number}")
    client.may_read_on.set()
    await settled()
    assert client.stream()[-1] == "<EOSE>"
    assert relay.store.pages <= 6


async def test_queued_counts_are_bounded_and_queries_go_first(relay: QuerySide) -> None:
    """N45-02: CLOSED with the id of the count."""
    client = Client()
    client.is_reading = False
    scans = QueryQueue(relay.queries, client)
    for number in range(20):
        scans.count(f"c{number}", (asked(),))
    scans.subscribe("s", (asked(),))
    await settled()
    client.outbox.flush()
    refused, answered = client.received[:4], client.received[4:]
    assert [frame[1] for frame in refused] == [f"c{number}" for number in range(16, 20)]
    assert all(frame[2].startswith("rate-limited: ") for frame in refused)
    assert [frame[1] for frame in answered] == ["s", *(f"c{number}" for number in range(16))]


class UpToDate:
    is_current = True

    async def reached(self, _seq: int, _kinds: object) -> bool:
        return True


@pytest.mark.parametrize("read", ["page", "places", "search", "rows", "count", "authors"])
async def test_the_store_knows_the_address_that_a_read_is_for(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """One read of each address waits there, however many connections it has. On the loop a REQ of
    one filter that took long keeps it off for the others of its network, not for all."""
    addresses: list[str | None] = []

    async def found(*_: object, **__: object) -> list[int]:
        return [1]

    monkeypatch.setattr(relay.store, "search", found)
    original = getattr(relay.store, read)

    async def noted(*asked: Any, **more: Any) -> Any:
        query = asked[0]
        addresses.append(query.address if isinstance(query, PageQuery) else more["address"])
        return await original(*asked, **more)

    monkeypatch.setattr(relay.store, "page_now", lambda query: addresses.append(query.address))
    monkeypatch.setattr(relay.store, read, noted)
    monkeypatch.setattr(relay.queries, "_index", UpToDate())
    await relay.write(note("tea", kind=7, tags=[["t", "tea"]]))
    client = Client(counted_as="192.0.2.1")
    if read in ("count", "authors"):
        await relay.counted(client, asked(kinds=[7], tag_t=["tea"]))
    elif read in ("search", "rows"):
        await relay.answered(client, sought("tea"))
    else:
        await relay.answered(client, *[asked()] * (1 if read == "page" else 2))
    assert {*addresses} == {"192.0.2.1"}


@pytest.mark.parametrize("is_reading", [True, False])
async def test_a_store_fault_closes_the_query(
    relay: QuerySide, caplog: pytest.LogCaptureFixture, *, is_reading: bool
) -> None:
    """N01-93: after it nothing more for that id."""
    await relay.store.close()
    client = Client()
    client.is_reading = is_reading
    down = "error: the store is not available, try again later"
    assert await relay.answered(client) == [f"<CLOSED {down}>"]
    assert await relay.counted(client, asked()) == down
    assert client.closed == ["s"]
    assert len(relay.fanout) == 0
    assert "the store is closed" in caplog.text


@pytest.mark.parametrize("where", ["store.page_now", "queries._measured"])
async def test_a_bug_in_a_query_closes_it_and_not_the_connection(
    relay: QuerySide,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    """An IndexError in the read on the loop ended the websocket."""

    def fails(*_: object) -> Page:
        raise IndexError("no such value")

    client = Client()
    with monkeypatch.context() as patch:
        of, name = where.split(".")
        patch.setattr(getattr(relay, of), name, fails)
        QueryQueue(relay.queries, client).subscribe("s", (asked(),))
    assert client.stream()[-1] == "<CLOSED error: internal error, try again later>"
    assert client.closed == ["s"]
    assert len(relay.fanout) == 0
    assert "no such value" in caplog.text
    assert await relay.answered(Client()) == ["<EOSE>"]


# registers ----------------------------------------------------------------------------------------


@pytest.mark.proves("N45-10", "N45-14", "N45-15")
async def test_a_count_by_one_tag_has_hyperloglog_registers_of_its_authors(
    relay: QuerySide,
) -> None:
    about = [["e", "e" * 64], ["t", "tea"]]
    await relay.write(
        *[note("+", who=who, kind=7, tags=about) for who in (alice, bob, carol)],
        note("again", 1001, who=carol, kind=7, tags=about),
    )
    expected = registers(
        [bytes.fromhex(who.pubkey) for who in (alice, bob, carol)], offset_of("e" * 64)
    )
    client = Client()
    assert await relay.counted(client, asked(kinds=[7], tag_e=["e" * 64])) == {
        "count": 4,
        "hll": expected,
    }
    for without in (
        [asked(kinds=[7])],
        [asked(tag_e=["e" * 64], tag_t=["tea"])],
        [asked(tag_e=["e" * 64]), asked(tag_t=["tea"])],
        [asked(tag_e=[])],
    ):
        assert "hll" not in await relay.counted(client, *without)


async def test_the_authors_of_no_rows_are_not_asked_for(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ReferenceStore, "authors")
    count = await relay.counted(Client(), asked(tag_t=[str(number) for number in range(1000)]))
    assert count == {"count": 0, "hll": registers([], offset_of("0"))}


@pytest.mark.proves("N45-11")
async def test_the_first_received_value_gives_the_register_offset(relay: QuerySide) -> None:
    values = ["f" * 64, "0" * 64]
    await relay.write(note("+", kind=7, tags=[["e", "f" * 64]]))
    counts = [await relay.counted(Client(), asked(tag_e=order)) for order in (values, values[::-1])]
    author = [bytes.fromhex(bob.pubkey)]
    assert [count["hll"] for count in counts] == [
        registers(author, offset_of("f" * 64)),
        registers(author, offset_of("0" * 64)),
    ]


@pytest.mark.proves("N45-16", "N45-06")
async def test_registers_count_readable_rows_only(relay: QuerySide) -> None:
    secret = note("psst", who=admin, kind=9, tags=[["h", "den"], ["t", "tea"]])
    await relay.write(secret, note("tea", tags=[["t", "tea"]]))
    outside = await relay.counted(Client(), asked(tag_t=["tea"]))
    inside = await relay.counted(Client(alice), asked(tag_t=["tea"]))
    offset = offset_of("tea")
    assert outside["hll"] == registers([bytes.fromhex(bob.pubkey)], offset)
    assert inside["hll"] == registers([bytes.fromhex(who.pubkey) for who in (admin, bob)], offset)


# costly queries ----------------------------------------------------------------------------------


async def test_a_slow_query_is_logged_with_its_plan_that_is_asked_for_once(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked_for: list[tuple[str, int]] = []

    async def plan(filters: Sequence[Filter], _: object, verb: str, *, now: int) -> Sequence[str]:
        assert now == 0
        asked_for.append((verb, len(filters)))
        return ["SEARCH events", "SCAN words"]

    ticks = count()
    monkeypatch.setattr("relay.read.query.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr("relay.read.query._PLAN_PAUSE_S", 0)
    monkeypatch.setattr(relay.store, "plan", plan)
    caplog.set_level("INFO", "relay.read.query")
    await relay.write(note("one"))
    for _ in range(3):
        await relay.answered(Client(), asked(kinds=[1]), asked(ids=["0" * 64]))
        await relay.counted(Client(), asked(kinds=[1]))
        await asyncio.sleep(0)
    assert sorted(asked_for) == [("COUNT", 1), ("REQ", 2)]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 6
    assert any("rows, REQ kinds 1 | ids 1" in line for line in lines)
    assert {vars(record)["plan"] for record in caplog.records} == {"SEARCH events; SCAN words"}
    reads = relay.metrics.costly_reads
    assert [read.plan for read in reads.most(9)] == [["SEARCH events", "SCAN words"]] * 2
    assert reads.slow == 6


async def test_many_shapes_and_large_filters_get_no_plans_at_the_cost_of_others(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiled its filters again on the loop, 10 to 22 ms, for whoever varied the kinds."""
    asked_for: list[Sequence[Filter]] = []

    async def plan(filters: Sequence[Filter], *_: object, **__: object) -> Sequence[str]:
        asked_for.append(filters)
        return []

    ticks = count()
    monkeypatch.setattr("relay.read.query.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(relay.store, "plan", plan)
    half = [f"{number}" for number in range(129)]
    small = asked(tag_t=half)
    for filters in ([small, small], [asked(kinds=[1], tag_t=half)], [small], [asked(kinds=[7])]):
        await relay.answered(Client(), *filters)
        await asyncio.sleep(0)
    assert len(asked_for) == 1
    assert [each.kinds for each in asked_for[0]] == [frozenset({1})]


async def test_a_plan_that_cannot_be_had_hurts_nobody(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plan(*_: object, **__: object) -> Sequence[str]:
        raise StoreFault("the disk is gone")

    ticks = count()
    monkeypatch.setattr("relay.read.query.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(relay.store, "plan", plan)
    assert await relay.answered(Client(), asked(kinds=[1])) == ["<EOSE>"]
    await asyncio.sleep(0)
    assert [read.plan for read in relay.metrics.costly_reads.most(9)] == [()]


@pytest.mark.parametrize("who", [None, alice])
async def test_of_one_network_only_so_many_filters_are_compared_before_the_next_commit(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch, who: SecretKey | None
) -> None:
    """Sixteen had 140,000: each message of others took 0.3 to 0.6 s. To close what was too many
    told who had them that there was an event, and people of one network lost their feeds."""
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 3)
    own = Group("own", members=OrderedMap({alice.pubkey: ()}))  # anybody may make one
    relay.state.adopt(relay.state.groups.with_group(own))
    keys = [who] if who else []
    network = [Client(*keys, counted_as=f"192.0.2.{number}") for number in range(5)]
    others = [Client(counted_as="198.51.100.1"), *[Client() for _ in range(5)]]
    queues = {}
    for client in (*network, *others):
        queues[client] = QueryQueue(relay.queries, client)
        queues[client].subscribe("s", (asked(kinds=[1]),))

    def deliver(number: int) -> list[Client]:
        assert [*relay.fanout.deliver([Stored(number, note(number))])]
        return [each for each in (*network, *others) if each.stream()[-1] == f"{number}"]

    assert deliver(1) == [*network[:3], *others]
    (apart,) = relay.fanout.apart
    assert [*apart.deliver([Stored(1, note(1))])]
    assert [client.stream() for client in network] == [["<EOSE>", "1"]] * 5
    assert (len(relay.fanout), len(apart)) == (11, 2)
    for client in network[:2]:
        queues[client].cancel("s")
    for client in network[:2]:
        queues[client].subscribe("s", (asked(kinds=[1], limit=1),) * 2)
    await settled()
    assert deliver(2) == [network[0], network[2], *others]
    for client in (network[1], *network[3:]):
        queues[client].cancel("s")
    assert not relay.fanout.apart
    assert len(relay.fanout) == 8


async def test_what_equal_viewers_may_read_is_not_found_by_comparing_their_keys(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """51,740 subscriptions of connections with the same 64 keys: each private message took 2 s."""
    compared = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    for _ in range(3):
        client = Client()
        client.viewer = Viewer(frozenset(Key(f"{number:064x}") for number in range(64)))
        queue = QueryQueue(relay.queries, client)
        for sub in range(50):
            queue.subscribe(f"{sub}", (asked(kinds=[1059]),))
    await settled()
    compared = 0
    assert [*relay.fanout.deliver([Stored(0, note("psst", kind=1059, tags=[["p", "f" * 64]]))])]
    assert compared <= 3 * 2 * 64


async def test_only_the_first_reqs_that_wait_get_live_rows(
    relay: QuerySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """185 connections had 30,000 that waited; to keep each note for these took 0.1 s and more."""
    monkeypatch.setattr("relay.read.query_queue._MOST_BACKLOGS", 2)
    await relay.write(*(note(number, at=number) for number in range(2 * PAGE)))
    client = Client()
    queue = await scanning(relay, client, asked(kinds=[1]))
    for sub in range(4):
        queue.subscribe(f"{sub}", (asked(kinds=[1], since=2 * PAGE), asked(kinds=[2])))
    queue.cancel("3")
    assert len(relay.fanout) == 1 + 2
    meanwhile, later = note("tea?", at=9999), note("milk?", at=9999)
    await relay.write(meanwhile)
    client.may_read_on.set()
    await settled()
    assert len(relay.fanout) == 1 + 3
    await relay.write(later)
    assert client.stream("s")[-3:] == ["<EOSE>", "tea?", "milk?"]
    assert [client.stream(f"{sub}") for sub in range(4)] == [
        *[["<EOSE>", "tea?", "milk?"]] * 2,
        ["tea?", "<EOSE>", "milk?"],
        [],
    ]
