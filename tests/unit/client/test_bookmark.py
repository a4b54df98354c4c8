"""Bookmark: what to ask for next, and what was had already. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.client.bookmark import OVERLAP_S, Bookmark, SeenIds
from relay.nostr.filters import Filter
from tests.cast import alice

if TYPE_CHECKING:
    from relay.nostr.event import Event

BEGUN = 1_000_000
ALL = Filter(kinds=frozenset({1}))


def note(text: str, at: int) -> Event:
    return alice.sign(1, [], text, at)


def test_a_full_memory_forgets_what_is_oldest_by_date_not_by_arrival() -> None:
    seen = SeenIds(2)
    new, mid, old = note("new", 3), note("mid", 2), note("old", 1)
    assert [seen.add(event) for event in (new, mid, old)] == [True, True, True]
    assert [seen.add(event) for event in (new, mid)] == [False, False]
    assert seen.add(old)


def test_before_the_stored_events_are_all_taken_they_are_asked_for_again() -> None:
    bookmark = Bookmark([ALL], BEGUN)
    assert bookmark.is_new(note("a", BEGUN - 5))
    assert bookmark.filters_from(BEGUN + 60) == (ALL,)
    assert not bookmark.is_new(note("a", BEGUN - 5))


def test_a_live_subscription_goes_on_a_little_before_its_last_event() -> None:
    bookmark = Bookmark([ALL], BEGUN)
    bookmark.is_new(note("a", BEGUN - 5))
    bookmark.catch_up()
    assert bookmark.filters_from(BEGUN + 60) == (
        Filter(kinds=ALL.kinds, since=BEGUN - 5 - OVERLAP_S),
    )


def test_an_event_from_the_future_does_not_hide_what_comes_before_it() -> None:
    bookmark = Bookmark([ALL], BEGUN)
    bookmark.catch_up()
    bookmark.is_new(note("ahead", BEGUN + 10**6))
    (filter_,) = bookmark.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN + 60 - OVERLAP_S


def test_without_any_event_the_clock_says_where_to_go_on() -> None:
    bookmark = Bookmark([ALL], BEGUN)
    bookmark.catch_up()
    (filter_,) = bookmark.filters_from(BEGUN + 3600)
    assert filter_.since == BEGUN + 3600 - OVERLAP_S


def test_a_second_loss_while_catching_up_begins_where_the_first_did() -> None:
    bookmark = Bookmark([ALL], BEGUN)
    bookmark.catch_up()
    bookmark.is_new(note("a", BEGUN))
    first = bookmark.filters_from(BEGUN + 10_000)
    # Newest first: what lies between this one and the last is still missing.
    bookmark.is_new(note("z", BEGUN + 9_999))
    assert bookmark.filters_from(BEGUN + 20_000) == first
    bookmark.catch_up()
    assert bookmark.filters_from(BEGUN + 20_000) != first


def test_the_since_of_the_filter_is_never_undercut() -> None:
    bookmark = Bookmark([Filter(since=BEGUN + 30)], BEGUN)
    bookmark.catch_up()
    (filter_,) = bookmark.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN + 30


def test_what_lies_beyond_a_limit_is_not_fetched_by_a_reconnect() -> None:
    bookmark = Bookmark([Filter(limit=2)], BEGUN)
    bookmark.is_new(note("b", BEGUN - 1))
    bookmark.is_new(note("a", BEGUN - 2))
    bookmark.catch_up()
    (filter_,) = bookmark.filters_from(BEGUN + 60)
    assert (filter_.since, filter_.limit) == (BEGUN - 2, None)


def test_a_limit_that_was_not_reached_bounds_nothing() -> None:
    bookmark = Bookmark([Filter(limit=5)], BEGUN)
    bookmark.is_new(note("a", BEGUN - 2))
    bookmark.catch_up()
    (filter_,) = bookmark.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN - 2 - OVERLAP_S


def test_a_live_only_filter_begins_when_it_began() -> None:
    bookmark = Bookmark([Filter(limit=0)], BEGUN)
    (lost_at_once,) = bookmark.filters_from(BEGUN + 1)
    bookmark.catch_up()
    (lost_later,) = bookmark.filters_from(BEGUN + 60)
    assert lost_at_once.since == lost_later.since == BEGUN
    assert lost_later.limit is None
