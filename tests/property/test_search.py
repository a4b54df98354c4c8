"""Search: every store finds and orders as ReferenceStore; hidden rows have no effect on the order
and count of others (N50-09)."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.actors import Actors
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.nostr.event import event_from_raw
from relay.nostr.filters import FilterTerms, filter_from
from relay.storage import recall
from relay.storage.sqlite.sql import recall as sqlite_recall
from tests import cast
from tests.contract.writing import MAX, change, unsigned, write
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage import Store

TERMS = FilterTerms(search=True)
DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users({cast.alice.pubkey: ()})
RULES = [ReadRule("the den", Match(h=True), frozenset({Who.INSIDER}))]

words = st.sampled_from(
    [
        "tea",
        "teas",
        "Tea",
        "green",
        "greens",
        "café",
        "cafe",
        "run",
        "running",
        "x1",
        "-",
        "☕",
        "a-b",
        "b",
    ]
)
texts = st.lists(words, max_size=12).map(" ".join)
pieces = st.one_of(
    words,
    words.map(lambda word: f"-{word}"),
    st.lists(words, min_size=1, max_size=3).map(lambda some: f'"{" ".join(some)}"'),
    st.lists(words, min_size=1, max_size=2).map(lambda some: f'-"{" ".join(some)}"'),
    st.sampled_from(["language:en", '"', "OR", "AND", "NOT", "(", ")", "*", "^tea", "NEAR(", "\0"]),
)
plain = st.lists(st.sampled_from(["tea", "green", "run", "cafe"]), min_size=1, max_size=2)
queries = st.one_of(  # most of them find several rows
    plain.map(" ".join),
    plain.map(" ".join),
    st.lists(plain, min_size=1, max_size=2).map(
        lambda some: " ".join(["match:any near:1-2", *(word for words in some for word in words)])
    ),
    st.lists(pieces, min_size=1, max_size=4).map(lambda some: " ".join(["match:any", *some])),
    st.lists(pieces, min_size=1, max_size=4).map(" ".join),
    st.text(max_size=12),
)


@st.composite
def rows(draw: st.DrawFn) -> Event:
    who = draw(st.sampled_from(world.ACTORS))
    kind, at = draw(st.sampled_from([1, 9])), draw(st.integers(0, 3))
    tags = draw(st.sampled_from([[], [["h", "den"]], [["expiration", "2"]], [["t", "a"]]]))
    return unsigned(who, kind, tags, draw(texts), at)


filters = st.builds(
    lambda query, more: filter_from({**more, "search": query}, TERMS),
    queries,
    st.sampled_from(
        [
            *[{}, {}, {"kinds": [1]}, {"kinds": [1, 9]}, {"kinds": [*range(40)]}, {"since": 1}],
            *[{"#t": ["a"]}, {"until": 2, "kinds": [9]}],
        ]
    ),
)
corpora = st.lists(rows(), min_size=1, max_size=14)
limits = st.sampled_from([(recall.MAX_ROWS, recall.PAIRED_ROWS), (2, 3), (1, 2)])
"""The second and third: with words that too many rows have to be looked for by themselves, and few
texts read at once."""


@contextmanager
def limited_to(rows: tuple[int, int]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "MAX_ROWS", rows[0])
        patch.setattr(recall, "PAIRED_ROWS", rows[1])
        if rows[0] < 10:
            patch.setattr(sqlite_recall, "_READ_AT_ONCE", 30)
            patch.setattr(sqlite_recall, "_SIZED_ROWS", 3)
        yield


async def fill(store: Store, events: list[Event]) -> None:
    await change(store, lambda plan: plan.groups.update({"den": DEN}))
    for event in events:
        await write(store, event)
    await store.index(lambda event: event.content or None, "content", 100)


async def without(store: Store, gone: set[int]) -> None:
    await change(store, lambda plan: plan.removes.update(gone))
    await store.index(lambda event: event.content or None, "content", 100)


async def answer(
    store: Store, filter_: Filter, seen: Visibility, limit: int, now: int
) -> tuple[list[str], int]:
    """ids, best first, and how many there are."""
    if filter_.search is None:
        return [], await store.count([filter_], seen, now=now)
    seqs = await store.search(filter_, seen, limit=limit, upto=MAX, now=now)
    raws, looked_at = await store.rows(seqs, filter_, seen, now=now)
    assert len(raws) == looked_at == len(seqs)
    return [event_from_raw(raw).id for raw in raws], await store.count([filter_], seen, now=now)


def seen_by(viewer: Viewer) -> Visibility:
    return visibility_for(viewer, RULES, Actors(), Groups().with_group(DEN))


async def both_answer_alike(
    new_store: world.NewStore,
    events: list[Event],
    gone: set[int],
    asked: list[tuple[Filter, int, int]],
) -> None:
    """The first question is asked again when rows are gone, by viewers who have the same rights."""
    reference = ReferenceStore()
    views = [seen_by(ANONYMOUS), seen_by(Viewer(frozenset({cast.alice.pubkey})))]
    async with new_store() as durable:
        for store in (reference, durable):
            await fill(store, events)
        for questions in (asked[:1], asked):
            for (filter_, limit, now), seen in product(questions, views):
                expected = await answer(reference, filter_, seen, limit, now)
                assert await answer(durable, filter_, seen, limit, now) == expected
            for store in (reference, durable):
                await without(store, gone)
    await reference.close()


@pytest.mark.slow
@pytest.mark.proves("N50-10", "N50-03")
@settings(max_examples=examples(60))
@given(
    corpora,
    st.sets(st.integers(1, 14), max_size=3),
    st.lists(
        st.tuples(filters, st.sampled_from([100, 1, 3]), st.integers(0, 3)), min_size=1, max_size=5
    ),
    limits,
)
def test_a_store_finds_and_orders_as_the_reference(
    new_store: world.NewStore,
    events: list[Event],
    gone: set[int],
    asked: list[tuple[Filter, int, int]],
    most: tuple[int, int],
) -> None:
    with limited_to(most):
        world.run(both_answer_alike(new_store, events, gone, asked))


async def hidden_rows_change_nothing(
    new_store: world.NewStore,
    public: list[Event],
    hidden: list[Event],
    asked: list[tuple[Filter, int]],
) -> None:
    outside = seen_by(ANONYMOUS)
    async with new_store() as alone, new_store() as beside:
        await fill(alone, public)
        # Among and before the others, so that their number or their words could have an effect.
        mixed = [event for pair in zip(hidden, public, strict=False) for event in pair]
        rest = public[len(hidden) :] + hidden[len(public) :]
        await fill(beside, mixed + rest)
        for filter_, limit in asked:
            expected = await answer(alone, filter_, outside, limit, 0)
            assert await answer(beside, filter_, outside, limit, 0) == expected


@pytest.mark.slow
@pytest.mark.proves("N50-09", "N29-90")
@settings(max_examples=examples(60))
@given(
    st.lists(rows().filter(lambda event: not event.has_tag("h")), min_size=4, max_size=12),
    st.lists(texts, min_size=1, max_size=16),
    st.lists(st.tuples(filters, st.sampled_from([100, 1, 2])), min_size=3, max_size=8),
    limits,
)
def test_hidden_rows_change_neither_order_nor_count(
    new_store: world.NewStore,
    public: list[Event],
    secrets: list[str],
    asked: list[tuple[Filter, int]],
    most: tuple[int, int],
) -> None:
    """A rank by the rarity of words or by average lengths over all rows would fail here."""
    hidden = [unsigned(cast.alice, 9, [["h", "den"]], text, at) for at, text in enumerate(secrets)]
    with limited_to(most):
        world.run(hidden_rows_change_nothing(new_store, public, hidden, asked))
