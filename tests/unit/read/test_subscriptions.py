"""relay/read/subscriptions.py: from an event to the subscriptions that might match it."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.nostr.event import indexed
from relay.nostr.filters import FilterTerms, filter_from
from relay.read import subscriptions
from relay.read.subscriptions import Entry, Subscriptions, _Shared
from tests.cast import alice, bob, carol
from tests.contract.writing import unsigned
from tests.effort import examples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

TERMS = FilterTerms(search=True)


@dataclass(eq=True)
class Reader:
    """A subscriber with filters; two may be equal."""

    filters: tuple[Filter, ...]

    def wants(self, event: Event) -> bool:
        """The oracle: no index, every filter asked; words are asked for later."""
        return any(not f.impossible and f.matches(event) for f in self.filters)


def asked(**conditions: Any) -> Filter:
    return filter_from(
        {key.replace("tag_", "#"): value for key, value in conditions.items()}, TERMS
    )


def reader_of(index: Subscriptions[Reader], *filters: Filter) -> Reader:
    reader = Reader(filters)
    index.add(reader, filters)
    return reader


def each(index: Subscriptions[Reader], event: Event) -> Iterator[Entry[Reader]]:
    return chain.from_iterable(index.candidates(index.keys_of(event)))


def found(index: Subscriptions[Reader], event: Event) -> set[int]:
    """Who gets the event, as fan-out finds them: candidates, each confirmed unless sure."""
    return {
        id(entry.subscription)
        for entry in each(index, event)
        if entry.is_exact or entry.filter.matches(event)
    }


def note(**changes: Any) -> Event:
    return unsigned(**{"who": alice, **changes})


# A world so small that filters and events meet in it often; `t` is a broad name, `e` a narrow one.
ACTORS = [alice, bob]
IDS = ["e" * 64, "f" * 64]
WORDS = ["x", "snow:", "snow:a"]
KINDS = [1, 78, 30078]
pubkeys = st.sampled_from([key.pubkey for key in ACTORS])
words = st.lists(st.sampled_from(WORDS), max_size=2)
events = st.builds(
    lambda key, kind, tags, at: unsigned(key, kind, tags, at=at),
    st.sampled_from(ACTORS),
    st.sampled_from(KINDS),
    st.lists(
        st.tuples(st.sampled_from(["t", "d", "hk"]), st.sampled_from(WORDS))
        | st.tuples(st.just("e"), st.sampled_from(IDS))
        | st.tuples(st.just("p"), pubkeys)
        | st.tuples(st.sampled_from(["t", "d", "e"])),
        max_size=4,
    ),
    st.integers(0, 3),
)
EVENTS = st.lists(events, min_size=1, max_size=4)


@st.composite
def filters_about(draw: st.DrawFn, some: list[Event]) -> Filter:
    lists = {
        "ids": st.lists(st.sampled_from([event.id for event in some]), max_size=2),
        "authors": st.lists(pubkeys, max_size=2),
        "kinds": st.lists(st.sampled_from([*KINDS, 70000]), max_size=2),
        "since": st.integers(0, 3),
        "until": st.integers(0, 3),
        "limit": st.integers(0, 2),
        "search": st.sampled_from(["", "tea"]),
        **{f"#{name}": words for name in ("t", "d", "hk")},
        "#e": st.lists(st.sampled_from(IDS), max_size=2),
        "#p": st.lists(pubkeys, max_size=2),
    }
    names = draw(st.lists(st.sampled_from(sorted(lists)), max_size=3, unique=True))
    return filter_from({name: draw(lists[name]) for name in names}, TERMS)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(EVENTS, st.data())
def test_the_index_finds_exactly_the_matching_subscriptions(
    some: list[Event], data: st.DataObject
) -> None:
    """candidates, confirmed, are all subscriptions of which a filter matches; sure ones match."""
    readers = data.draw(st.lists(st.lists(filters_about(some), max_size=3), max_size=6))
    index: Subscriptions[Reader] = Subscriptions()
    everybody = [reader_of(index, *filters) for filters in readers]
    for event in some:
        assert found(index, event) == {id(one) for one in everybody if one.wants(event)}
        with patch("relay.nostr.event._FEW_TAGS", -1):
            whole = indexed(event)
        assert set(index.keys_of(whole)) == set(index.keys_of(event))
        assert index.numbers_for(whole) == index.numbers_for(event)
        assert index.awaits(whole) == index.awaits(event) == bool(index.keys_of(event))
        for entry in each(index, event):
            assert entry.filter in entry.subscription.filters
            if entry.is_exact:
                assert entry.filter.matches(event)
        for key in index.keys_of(event):
            if index.are_sure(key):
                assert all(entry.filter.matches(event) for entry in index.under(key))


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(EVENTS, st.data())
def test_removing_a_subscription_keeps_the_others(some: list[Event], data: st.DataObject) -> None:
    readers = data.draw(st.lists(st.lists(filters_about(some), max_size=3), max_size=6))
    index: Subscriptions[Reader] = Subscriptions()
    everybody = [reader_of(index, *filters) for filters in readers]
    order = data.draw(st.permutations(everybody))
    while order:
        leaving = order.pop()
        index.remove(leaving, leaving.filters)
        assert len(index) == len(order)
        for event in some:
            assert found(index, event) == {id(one) for one in order if one.wants(event)}
    # What it knows of nobody must be nothing: a relay opens and closes millions of these.
    assert not any(vars(index).values())


def test_a_removed_subscription_leaves_nothing() -> None:
    index: Subscriptions[Reader] = Subscriptions()
    reader = reader_of(index, asked(kinds=[1]), asked(authors=[alice.pubkey], tag_t=["x"]))
    remembered = weakref.ref(reader)
    index.remove(reader, reader.filters)
    del reader
    gc.collect()
    assert remembered() is None


@pytest.mark.parametrize(("number", "values"), [(500, 1), (10, 1000), (1, 30_000)])
def test_an_event_waits_for_few_subscriptions_to_be_indexed(
    number: int, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index: Subscriptions[Reader] = Subscriptions()
    asked_for = asked(tag_t=[f"{value}" for value in range(values)])
    everybody = [reader_of(index, asked_for) for _ in range(number)]
    indexed = []
    indexed_condition = subscriptions._indexed_condition

    def counted(filter_: Filter) -> tuple[str, Collection[str] | Collection[int], bool]:
        indexed.append(filter_.values)
        return indexed_condition(filter_)

    monkeypatch.setattr(subscriptions, "_indexed_condition", counted)
    assert found(index, note(tags=[["t", "0"]])) == set(map(id, everybody))
    assert len(indexed) <= 64
    assert sum(indexed) <= 64 * 64


def test_a_subscription_that_no_event_found_is_not_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most are closed right after their stored events."""
    monkeypatch.setattr(subscriptions, "_indexed_condition", None)
    index: Subscriptions[Reader] = Subscriptions()
    for number in range(1000):
        reader = reader_of(index, asked(kinds=[number]))
        index.remove(reader, reader.filters)
    assert not any(vars(index).values())


def test_values_of_several_subscriptions_are_no_work_for_the_garbage_collector() -> None:
    """It took 95 ms of the loop every ten seconds with 737,000 values, each open twice."""
    index: Subscriptions[Reader] = Subscriptions()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        reader_of(index, asked(tag_t=[f"{number}" for number in range(1_000)]))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert len(found(index, note(tags=[["t", "7"]]))) == 3


def test_equal_subscriptions_are_separate() -> None:
    """`S` is compared by identity."""
    index: Subscriptions[Reader] = Subscriptions()
    one, other = reader_of(index, asked(kinds=[1])), reader_of(index, asked(kinds=[1]))
    assert one == other
    assert found(index, note()) == {id(one), id(other)}
    index.remove(one, one.filters)
    assert found(index, note()) == {id(other)}


@pytest.mark.parametrize(
    ("filter_", "sure"),
    [
        (asked(), True),
        (asked(limit=0), True),
        (asked(kinds=[1, 7]), True),
        (asked(authors=[alice.pubkey]), True),
        (asked(tag_e=["e" * 64], limit=3), True),
        (asked(tag_h=["tea"]), True),
        (asked(tag_d=["snow:"], kinds=[1]), False),
        (asked(kinds=[1], authors=[alice.pubkey]), False),
        (asked(since=0), False),
        (asked(until=2**40), False),
        (asked(tag_h=["tea"], tag_e=["e" * 64]), False),
    ],
)
def test_an_entry_whose_key_is_the_whole_filter_is_exact(filter_: Filter, *, sure: bool) -> None:
    event = note(tags=[["h", "tea"], ["e", "e" * 64], ["d", "snow:"]])
    index: Subscriptions[Reader] = Subscriptions()
    reader_of(index, filter_)
    (entry,) = each(index, event)
    assert entry.is_exact is sure


def test_a_d_prefix_is_not_indexed_under_d() -> None:
    """G-09: a prefix is no trait of an event; live matching knows it as stored matching does."""
    index: Subscriptions[Reader] = Subscriptions()
    reader = reader_of(index, asked(kinds=[30078], tag_d=["snowclaw:memory:"]))
    by_author = reader_of(index, asked(kinds=[30078], tag_d=["snowclaw:"], authors=[alice.pubkey]))
    event = note(kind=30078, tags=[["d", "snowclaw:memory:npub1"]])
    assert found(index, event) == {id(reader), id(by_author)}
    assert found(index, note(kind=30078, tags=[["d", "other"]])) == set()


@pytest.mark.parametrize(
    "nothing", [{"ids": []}, {"kinds": []}, {"tag_t": []}, {"authors": [], "kinds": [1]}]
)
def test_an_impossible_filter_is_not_indexed(nothing: dict[str, Any]) -> None:
    """N01-67."""
    index: Subscriptions[Reader] = Subscriptions()
    reader = reader_of(index, asked(**nothing))
    assert list(each(index, note())) == []
    assert len(index) == 1
    index.remove(reader, reader.filters)
    assert len(index) == 0


def test_an_event_with_many_tags_yields_each_entry_once() -> None:
    """One subscription may come several times, with other filters."""
    index: Subscriptions[Reader] = Subscriptions()
    reader = reader_of(index, asked(tag_t=["a", "b"]), asked(kinds=[1]), asked(tag_t=["z"]))
    event = note(tags=[["t", "a"], ["t", "a"], ["t", "b"]])
    entries = list(each(index, event))
    assert {id(entry.subscription) for entry in entries} == {id(reader)}
    assert {entry.filter for entry in entries} == set(reader.filters[:2])
    assert len(entries) == 2


@pytest.mark.parametrize("number", [2, 3, 400])
def test_a_filter_is_compared_once_with_an_event_of_many_of_its_values(number: int) -> None:
    """A list of members was compared with such a filter once for each member."""
    index = Subscriptions[Reader]()
    names = [f"{each:064x}" for each in range(number)]
    wide = [reader_of(index, asked(kinds=[1], tag_p=names), asked(tag_p=["e" * 64])) for _ in "ab"]
    narrow, other = (reader_of(index, asked(tag_p=[name])) for name in (names[-1], "f" * 64))
    event = unsigned(alice, 39002, [["p", name] for name in names])
    candidates = [entry.subscription for entry in each(index, event)]
    assert sorted(map(id, candidates)) == sorted(map(id, [*wide, narrow]))
    assert found(index, event) == {id(narrow)}
    assert index.numbers_for(event)[0] in (0, 6)
    for reader in (*wide, narrow, other):
        index.remove(reader, reader.filters)
    assert not index._of_condition
    assert not index._by_condition


def test_filters_of_many_values_are_not_all_looked_at_for_one_that_an_event_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80 filters of 5,000 values took 25 ms without a pause, for each event of as many tags."""
    index = Subscriptions[Reader]()
    for number in range(20):
        reader_of(index, asked(tag_x=[f"{number}-{value}" for value in range(500)]))
    values = [f"{value}" for value in range(500)]
    one = reader_of(index, asked(tag_x=values, since=5))
    event = indexed(unsigned(alice, 1, [["x", value] for value in values], at=9))
    looked_up = 0

    class Counted(dict[str | int, Any]):
        def get(self, key: object, default: Any = None) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().get(key, default)  # type: ignore[call-overload]

    monkeypatch.setattr(_Shared, "under_any", lambda *_: pytest.fail("all are looked at"))
    index._by_condition["#x"] = Counted(index._by_condition["#x"])
    assert found(index, event) == {id(one)}
    assert looked_up <= len(values)


def test_an_event_of_many_values_is_compared_with_no_filter_of_others() -> None:
    """17 values with one filter each were 40,000 comparisons."""
    index = Subscriptions[Reader]()
    for number in range(200):
        reader_of(index, asked(tag_p=[f"{number:064x}"]))
    event = unsigned(alice, 1, [["p", f"{number:064x}"] for number in range(190, 210)])
    assert len([*each(index, event)]) == 10
    assert index.numbers_for(event) == (10, 0)


def test_an_event_of_a_kind_that_no_filter_by_its_tags_names_is_compared_with_none() -> None:
    """720 threads of one office were compared with each event that named their notes."""
    index = Subscriptions[Reader]()
    one = reader_of(index, asked(kinds=[1, 7], tag_t=["a"], since=5))
    two = reader_of(index, asked(kinds=[7], tag_t=["a"], since=5))
    event = unsigned(alice, 9999, [["t", "a"]])
    assert index.keys_of(event) == []
    assert index.keys_of(unsigned(alice, 7, [["t", "a"]]))
    any_kind = reader_of(index, asked(tag_t=["a"], since=5))
    assert index.keys_of(event)
    for reader in (any_kind, one):
        index.remove(reader, reader.filters)
    assert index.keys_of(event) == []
    assert index.keys_of(unsigned(alice, 1, [["t", "a"]])) == []
    assert found(index, unsigned(alice, 7, [["t", "a"]], at=9)) == {id(two)}


def test_few_candidates_for_a_selective_event() -> None:
    """Each filter hangs under the narrowest trait that it names."""
    index: Subscriptions[Reader] = Subscriptions()
    for number in range(500):
        reader_of(index, asked(kinds=[1], authors=[f"{number:064x}"]))
        reader_of(index, asked(kinds=[1], tag_e=[f"{number:064x}"]))
        reader_of(index, asked(kinds=[1], tag_h=[f"group {number}"]))
        reader_of(index, asked(authors=[f"{number:064x}"], tag_h=["tea"]))
        reader_of(index, asked(kinds=[1], ids=[f"{number:064x}"]))
    mine = reader_of(index, asked(kinds=[1], authors=[carol.pubkey], tag_h=["tea"]))
    entries = list(each(index, note(who=carol, tags=[["h", "tea"], ["e", "a" * 64]])))
    assert [entry.subscription for entry in entries] == [mine]


def test_how_many_searches_an_event_is_compared_with_is_known_before_however_few() -> None:
    """One is enough to make the tokens of the event's text."""
    index: Subscriptions[Reader] = Subscriptions()
    tea = asked(tag_t=["x"], search="tea")
    reader = reader_of(index, tea, asked(tag_t=["x"], search='"green tea"'), asked(tag_t=["x"]))
    alone = reader_of(index, tea)
    reader_of(index, asked(tag_t=["y"], search="tea"))
    assert index.numbers_for(unsigned(alice, 1, [["t", "x"]])) == (4, 3)
    assert index.numbers_for(unsigned(alice, 1, [["t", "y"]])) == (1, 1)
    index.remove(reader, reader.filters)
    assert index.numbers_for(unsigned(alice, 1, [["t", "x"]])) == (1, 1)
    index.remove(alone, alone.filters)
    assert index.numbers_for(unsigned(alice, 1, [["t", "x"]])) == (0, 0)


def test_how_many_filters_an_event_is_delivered_by_or_compared_with_is_known_before() -> None:
    index: Subscriptions[Reader] = Subscriptions()
    event = unsigned(alice, 1, [["t", "x"], ["t", "y"]])
    for letter in "xyz":
        reader_of(index, asked(tag_t=[letter]), asked(tag_t=[letter], kinds=[7]))
    assert index.numbers_for(event) == (0, 0)
    both = reader_of(index, *[asked(tag_t=["x", "y"], until=number) for number in range(10)])
    found(index, event)  # so that all are indexed
    assert index.numbers_for(event) == (16, 0)  # each is compared once
    assert index.numbers_for(unsigned(alice, 7)) == (0, 0)
    index.remove(both, both.filters)
    assert index.numbers_for(event) == (0, 0)  # few in all
    everybody = [reader_of(index, asked(tag_t=["x"])) for _ in range(20)]
    assert index.numbers_for(event) == (24, 0)
    for reader in everybody:
        index.remove(reader, reader.filters)
    assert not index.are_sure(("#t", "x"))
