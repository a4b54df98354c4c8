"""relay/client/paging.py: all matches of a filter, once, newest first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.client.paging import Paging
from relay.nostr.filters import Filter
from tests.cast import alice

if TYPE_CHECKING:
    from relay.nostr.event import Event

NOTES = [alice.sign(1, [], f"note {number}", 1000 + number // 3) for number in range(24)]


def newest_first(event: Event) -> tuple[int, str]:
    return -event.created_at, event.id


def answer_of(events: list[Event], wanted: Filter, most: int) -> list[Event]:
    """What a relay says that serves `most` events at a time."""
    assert wanted.limit is not None
    found = [event for event in events if wanted.matches(event)]
    return sorted(found, key=newest_first)[: min(most, wanted.limit)]


def read(paging: Paging, events: list[Event], most: int) -> list[list[Event]]:
    pages: list[list[Event]] = []
    while (wanted := paging.wanted) is not None:
        assert len(pages) < 1000
        pages.append(paging.add(answer_of(events, wanted, most)))
    return pages


@given(
    events=st.lists(st.sampled_from(NOTES), unique_by=lambda event: event.id),
    page=st.integers(1, 30),
    most=st.integers(4, 30),
    limit=st.none() | st.integers(0, 30),
)
def test_the_pages_contain_all_matches_for_every_page_size(
    events: list[Event], page: int, most: int, limit: int | None
) -> None:
    """As long as a relay serves more at a time than any second has."""
    given = [
        event
        for page_ in read(Paging(Filter(limit=limit), page, 0), events, most)
        for event in page_
    ]
    assert given == sorted(events, key=newest_first)[:limit]


@pytest.mark.parametrize("second", [2000, 0])
@pytest.mark.parametrize("page", [30, 5_000])
@pytest.mark.parametrize("limit", [None, 130, 260, 301])
def test_what_pages_cannot_give_of_a_second_is_read_by_ids(
    limit: int | None, page: int, second: int
) -> None:
    events = [alice.sign(1, [], f"{number}", second) for number in range(300)]
    paging = Paging(Filter(limit=limit), page, 0)
    found: list[Event] = []
    while (wanted := paging.wanted) is not None:
        assert limit is None or wanted.limit is None or wanted.limit <= limit
        found += paging.add(answer_of(events, wanted, 120))
        if (crowded := paging.take_crowded()) is not None:
            only, known = crowded
            paging.add_ids({event.id for event in events if only.matches(event)} - known)
    assert found == sorted(events, key=newest_first)[:limit]


def test_after_large_events_pages_grow_again() -> None:
    """Large events of one second made all that is older come one by one, and the reading end."""
    paging = Paging(Filter(), 16, 0)
    events = [alice.sign(1, [], f"{number}", 1000 + number) for number in range(200)]
    large = [alice.sign(1, [], f"large {number}", 2000) for number in range(5)]
    pages: list[list[Event]] = []
    while (wanted := paging.wanted) is not None:
        answer = answer_of([*events, *large], wanted, 100)
        if sum(event.created_at == 2000 for event in answer) > 2:
            assert paging.narrow()
        else:
            pages.append(paging.add(answer))
    given = [event for page in pages for event in page]
    assert set(map(repr, events)) <= set(map(repr, given))
    assert len(pages) < 50


def test_after_a_deadline_half_of_what_came_is_asked_for() -> None:
    """A page of 5,000 large events never came in time, at any try."""
    paging = Paging(Filter(), 5_000, 0)
    pages: list[list[Event]] = []
    asked: list[int | None] = []
    while (wanted := paging.wanted) is not None:
        answer = answer_of(NOTES, wanted, 100)
        asked.append(wanted.limit)
        if len(answer) > 10:
            paging.narrow_to(10)
        else:
            pages.append(paging.add(answer))
    assert [event for page in pages for event in page] == sorted(NOTES, key=newest_first)
    assert asked[:2] == [5_000, 5]
    assert len(asked) < 16


@given(
    events=st.lists(st.sampled_from(NOTES), unique_by=lambda event: event.id),
    most=st.integers(4, 30),
)
def test_an_answer_below_the_served_limit_is_the_last_page(events: list[Event], most: int) -> None:
    pages = read(Paging(Filter(), 5_000, most), events, most)
    assert sum(map(len, pages)) == len(events)
    assert len(pages) <= len(events) // (most - 3) + 1
    assert Counter(map(len, pages))[0] <= 1


def test_the_number_of_pages_within_one_second_is_bounded() -> None:
    paging, given = Paging(Filter(), 1, 0), 0
    while (wanted := paging.wanted) is not None and given < 1000:
        at = 5 if wanted.until is None else wanted.until
        paging.add([alice.sign(1, [], f"{given}", at)])
        given += 1
    assert 100 < given < 1000


def test_a_search_is_one_page_in_the_order_of_the_relay() -> None:
    answer = [NOTES[3], NOTES[9], NOTES[1]]
    paging = Paging(Filter(search="note"), 5_000, 0)
    assert paging.add(answer) == answer
    assert paging.wanted is None
