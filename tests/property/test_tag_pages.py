"""Pages by tags: the rows that match, in order, each once; whichever way they are found."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.nostr.event import event_from_raw
from relay.storage.sqlite.sql import filters as sql_filters
from relay.storage.sqlite.sql import scans
from relay.storage.sqlite.store import SqliteStore
from tests.cast import alice, bob
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    TERMS,
    asked,
    in_order,
    read_in_pages,
    unsigned,
    write,
)
from tests.effort import examples
from tests.harness.patience import ANSWER_S
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage import Page, PageQuery

VALUES = tuple("abc")
OF_ONE_CLASS = (5000, 5032, 65_512)
KINDS = (0, 1, 7, 9, 445, 39_000, 65_535, *OF_ONE_CLASS)

OTHERS = [alice.pubkey, *[f"{number:064x}" for number in range(20)]]
"""Too many for parameters."""

rows = st.lists(
    st.tuples(
        st.sampled_from((alice, bob)),
        st.sampled_from(KINDS),
        st.integers(1, 3),
        st.lists(st.sampled_from(VALUES), max_size=3),
        st.lists(st.sampled_from(VALUES), max_size=1),
    ),
    min_size=1,
    max_size=40,
)
"""(author, kind, created_at, values of `t`, values of `k`)"""


@st.composite
def tag_filters(draw: st.DrawFn) -> Filter:
    values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    # Of no row. With them they are too many for a scan each, or for parameters.
    values += [f"none {number}" for number in range(draw(st.sampled_from([0, 0, 1, 20])))]
    conditions: dict[str, object] = {"tag_t": values}
    kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=4) | st.just([*range(40)])
    optional = {
        "kinds": kinds | st.just([*range(65_536)]),
        "tag_k": st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
        "tag_d": st.lists(st.sampled_from(["1", "2", "3", "4", *VALUES]), min_size=1, max_size=3),
        "authors": st.sampled_from([[alice.pubkey], [alice.pubkey, bob.pubkey], OTHERS]),
        "since": st.integers(1, 3),
        "until": st.integers(1, 3),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True)):
        conditions[name] = draw(optional[name])
    return asked(**conditions)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Over which rows are found in another way."""

    buffer: int
    few: int
    pairs: int
    most_pairs: int
    of_authors: int


bounds = st.builds(
    Bounds,
    buffer=st.sampled_from([1, 8, 1000]),
    few=st.sampled_from([0, 5, 5000]),
    pairs=st.sampled_from([1, 4, 32]),
    most_pairs=st.sampled_from([0, 4096]),
    of_authors=st.sampled_from([0, 3, 20_000]),
)


class LongReads(SqliteStore):
    """Reads pages as if they had been interrupted."""

    reads_as_long = False

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        return await super().page(query, is_long=is_long or self.reads_as_long)


async def long_count(store: SqliteStore, filters: Sequence[Filter]) -> int:
    query = store._compiler.count(filters, EVERYTHING, now=0, is_long=True)
    ((number,),) = await store._reader_conn.rows_within(query, ANSWER_S)
    return int(number)


async def check(
    drawn: Sequence[Event], later: Sequence[Event], filters: Sequence[Filter], of: Bounds, size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "_FEW", of.few)
        patched.setattr(scans, "_MOST_OF_AUTHORS", of.of_authors)
        patched.setattr(sql_filters, "_MAX_PAIRS", of.pairs)
        patched.setattr(scans, "_MOST_PAIRS", of.most_pairs)
        path = Path(folder) / "rookery.db"
        store = await SqliteStore.open(path, TERMS, tag_buffer_rows=of.buffer)
        await write(store, *drawn)
        await store.close()
        store = await LongReads.open(path, TERMS, tag_buffer_rows=of.buffer)
        assert isinstance(store, LongReads)
        try:
            events = [*drawn]
            for event in [None, *later]:
                if event is not None:
                    await write(store, event)
                    events.append(event)
                for filter_ in filters:
                    wanted = in_order(*[each for each in events if filter_.matches(each)])
                    for as_long in (False, True):
                        store.reads_as_long = as_long
                        pages = await read_in_pages(store, filter_, size=size)
                        assert [raw for page in pages for raw in page] == wanted
                    assert await store.count([filter_], EVERYTHING, now=0) == len(wanted)
                    for asked_for in ([filter_], filters):
                        among = [e for e in events if any(f.matches(e) for f in asked_for)]
                        assert await long_count(store, asked_for) == len(among)
                    items = await store.items(
                        filter_, EVERYTHING, limit=None, upto=MAX, now=0, at_most=99
                    )
                    assert items is not None
                    assert len(items) == len(wanted)
                    newest = [event_from_raw(raw) for raw in wanted[:size]]
                    items = await store.items(
                        filter_, EVERYTHING, limit=size, upto=MAX, now=0, at_most=99
                    )
                    assert items is not None
                    ids = {items.id(n).hex() for n in range(len(items))}
                    assert ids == {event.id for event in newest}
        finally:
            await store.close()


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    rows,
    st.integers(0, 4),
    st.lists(tag_filters(), min_size=1, max_size=4),
    bounds,
    st.integers(1, 5),
)
def test_pages_by_tags_are_the_rows_that_match(
    drawn: list[tuple[object, int, int, list[str], list[str]]],
    late: int,
    filters: list[Filter],
    of: Bounds,
    size: int,
) -> None:
    events = [
        # Regular rows: of others an older version is replaced.
        unsigned(
            who,  # type: ignore[arg-type]
            kind,
            [
                *[["t", value] for value in t],
                *[["k", value] for value in k],
                *[["d", value] for value in [str(number), *t]],
            ],
            str(number),
            at if 0 < kind < 30_000 else at + 10 * number,
        )
        for number, (who, kind, at, t, k) in enumerate(drawn)
        if kind
    ]
    world.run(check(events[late:], events[:late], filters, of, size))
