"""ResumeState: filters of the next REQ, and duplicate detection. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.client.resume import OVERLAP_S, ResumeState, SeenIds
from relay.nostr.filters import Filter
from relay.nostr.nip59 import MAX_BACKDATED_S
from tests.cast import alice

if TYPE_CHECKING:
    from relay.nostr.event import Event

BEGUN = 1_000_000
ALL = Filter(kinds=frozenset({1}))


def note(text: str, at: int) -> Event:
    return alice.sign(1, [], text, at)


def test_a_full_id_set_evicts_by_created_at_not_by_arrival() -> None:
    seen = SeenIds(2)
    new, mid, old = note("new", 3), note("mid", 2), note("old", 1)
    assert [seen.add(event) for event in (new, mid, old)] == [True, True, True]
    assert [seen.add(event) for event in (new, mid)] == [False, False]
    assert seen.add(old)


def test_of_one_second_a_full_id_set_evicts_the_highest_ids() -> None:
    seen = SeenIds(2)
    events = sorted((note(f"{n}", 1) for n in range(5)), key=lambda event: event.id)
    for event in reversed(events):
        seen.add(event)
    assert [event.id in seen for event in events] == [True, True, False, False, False]


@pytest.mark.parametrize("other", [None, [], {}, {"id": 7}, {"id": "no hex"}, {"id": "00" * 32}])
def test_a_repeated_event_is_known_by_its_id(other: object) -> None:
    resume = ResumeState([ALL], BEGUN)
    event = note("a", BEGUN)
    assert not resume.has_seen({"id": event.id})
    resume.is_new(event)
    assert resume.has_seen({"id": event.id})
    assert not resume.has_seen(other)


def test_before_eose_the_original_filters_are_repeated() -> None:
    resume = ResumeState([ALL], BEGUN)
    assert resume.is_new(note("a", BEGUN - 5))
    assert resume.filters_from(BEGUN + 60) == (ALL,)
    assert not resume.is_new(note("a", BEGUN - 5))


def test_a_live_subscription_resumes_a_little_before_its_last_event() -> None:
    resume = ResumeState([ALL], BEGUN)
    resume.is_new(note("a", BEGUN - 5))
    resume.catch_up()
    assert resume.filters_from(BEGUN + 60) == (
        Filter(kinds=ALL.kinds, since=BEGUN - 5 - OVERLAP_S),
    )


def test_gift_wraps_are_asked_for_as_far_back_as_they_are_dated() -> None:
    wraps = Filter(kinds=frozenset({1059}))
    resume = ResumeState([ALL, wraps], BEGUN)
    resume.catch_up()
    plain, wrapped = resume.filters_from(BEGUN + 60)
    assert (plain.since, wrapped.since) == (
        BEGUN + 60 - OVERLAP_S,
        BEGUN + 60 - OVERLAP_S - 2 * 86_400,
    )


def test_records_of_an_author_are_asked_for_however_old_they_are() -> None:
    """A version that waited in a queue keeps its date."""
    by, records = frozenset({alice.pubkey}), frozenset({30078})
    filters = (
        Filter(kinds=records, authors=by),
        Filter(kinds=records),
        Filter(kinds=records | {78}, authors=by),
        Filter(kinds=records, authors=by, since=BEGUN - OVERLAP_S),
        Filter(kinds=records, authors=by, limit=0),
    )
    resume = ResumeState(filters, BEGUN)
    resume.catch_up()
    again = [filter_.since for filter_ in resume.filters_from(BEGUN + 60)]
    assert again == [None, *[BEGUN + 60 - OVERLAP_S] * 3, BEGUN]


def test_an_event_from_the_future_does_not_move_the_resume_point_ahead() -> None:
    resume = ResumeState([ALL], BEGUN)
    resume.catch_up()
    resume.is_new(note("ahead", BEGUN + 10**6))
    (filter_,) = resume.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN + 60 - OVERLAP_S


def test_without_events_the_clock_gives_the_resume_point() -> None:
    resume = ResumeState([ALL], BEGUN)
    resume.catch_up()
    (filter_,) = resume.filters_from(BEGUN + 3600)
    assert filter_.since == BEGUN + 3600 - OVERLAP_S


def test_a_second_loss_while_catching_up_keeps_the_resume_point() -> None:
    resume = ResumeState([ALL], BEGUN)
    resume.catch_up()
    resume.is_new(note("a", BEGUN))
    first = resume.filters_from(BEGUN + 10_000)
    # Newest first: what lies between this one and the last is still missing.
    resume.is_new(note("z", BEGUN + 9_999))
    assert resume.filters_from(BEGUN + 20_000) == first
    resume.catch_up()
    assert resume.filters_from(BEGUN + 20_000) != first


def test_the_resume_point_is_never_before_the_filters_since() -> None:
    resume = ResumeState([Filter(since=BEGUN + 30)], BEGUN)
    resume.catch_up()
    (filter_,) = resume.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN + 30


def test_a_reconnect_does_not_fetch_events_beyond_the_limit() -> None:
    resume = ResumeState([Filter(limit=2)], BEGUN)
    resume.is_new(note("b", BEGUN - 1))
    resume.is_new(note("a", BEGUN - 2))
    resume.catch_up()
    (filter_,) = resume.filters_from(BEGUN + 60)
    assert (filter_.since, filter_.limit) == (BEGUN - 2, None)


def test_a_limit_that_was_not_reached_has_no_effect() -> None:
    resume = ResumeState([Filter(limit=5)], BEGUN)
    resume.is_new(note("a", BEGUN - 2))
    resume.catch_up()
    (filter_,) = resume.filters_from(BEGUN + 60)
    assert filter_.since == BEGUN - 2 - OVERLAP_S


def test_a_live_only_filter_resumes_no_earlier_than_its_start() -> None:
    resume = ResumeState([Filter(limit=0)], BEGUN)
    (lost_at_once,) = resume.filters_from(BEGUN + 1)
    resume.catch_up()
    (lost_later,) = resume.filters_from(BEGUN + 60)
    assert lost_at_once.since == lost_later.since == BEGUN
    assert lost_later.limit is None


def test_a_live_only_filter_of_gift_wraps_resumes_with_those_dated_before_its_start() -> None:
    resume = ResumeState([Filter(kinds=frozenset({1059}), limit=0)], BEGUN)
    resume.catch_up()
    (lost,) = resume.filters_from(BEGUN + 60)
    assert lost.since == BEGUN - MAX_BACKDATED_S
