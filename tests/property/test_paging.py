"""Paging back by `until` and `limit` misses no row of a group and gives none twice but its last."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.nostr.event import event_from_raw
from tests.cast import alice
from tests.contract.writing import asked, read, unsigned, write
from tests.effort import examples
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.storage import Store
    from tests.property.world import NewStore

ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.sampled_from((9, 11))), min_size=1
)
"""(created_at, group, kind)"""


async def paged(store: Store, limit: int) -> list[list[Event]]:
    """As Amethyst asks (RelayGroupFilterBuilders.kt; its test plan, C3): each page from the oldest
    second of the one before."""
    pages: list[list[Event]] = []
    until = 2**40
    while True:
        wanted = asked(kinds=[9], tag_h=["a"], until=until, limit=limit)
        page = [event_from_raw(raw) for raw in await read(store, wanted, limit=limit)]
        if not page or (pages and page == pages[-1]):
            return pages
        pages.append(page)
        if len(page) < limit:
            return pages
        until = page[-1].created_at


async def check(store: Store, rows: list[tuple[int, str, int]], spare: int) -> None:
    events = [
        unsigned(alice, kind, [["h", group]], content=str(number), at=at)
        for number, (at, group, kind) in enumerate(rows)
    ]
    await write(store, *events)
    wanted = {e.id for e in events if e.kind == 9 and e.tag("h") == "a"}
    seconds = Counter(e.created_at for e in events if e.id in wanted)
    # A second with more rows than a page has cannot be passed by `until`.
    limit = max(seconds.values(), default=0) + spare
    pages = await paged(store, limit)
    assert {event.id for page in pages for event in page} == wanted
    for before, page in pairwise(pages):
        again = {event.id for event in before} & {event.id for event in page}
        assert {event.created_at for event in page if event.id in again} <= {before[-1].created_at}


@pytest.mark.proves("N01-76", "N01-77")
@given(rows=ROWS, spare=st.integers(1, 3))
@settings(max_examples=examples(150))
def test_paging_by_until_misses_no_row_of_a_group(
    rows: list[tuple[int, str, int]], spare: int
) -> None:
    asyncio.run(check(ReferenceStore(), rows, spare))


@pytest.mark.proves("N01-76", "N01-77")
@given(rows=ROWS, spare=st.integers(1, 3))
@settings(max_examples=examples(40))
def test_paging_by_until_misses_no_row_of_a_stored_group(
    new_store: NewStore, rows: list[tuple[int, str, int]], spare: int
) -> None:
    async def on_disk() -> None:
        async with new_store() as store:
            await check(store, rows, spare)

    asyncio.run(on_disk())
