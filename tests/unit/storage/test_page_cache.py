"""relay/storage/page_cache.py: which pages are kept, for how long, and how many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.access.actors import Actors
from relay.access.read_rules import Match, ReadRule, Target
from relay.access.visibility import everything_visible
from relay.facts import Who
from relay.groups.group import Groups
from relay.nostr.filters import Filter
from relay.storage import Listed, Page, PageQuery
from relay.storage.page_cache import PageCache

if TYPE_CHECKING:
    from relay.access.visibility import Visibility

EVERYTHING = everything_visible(Actors(), Groups())
LINKED = replace(
    EVERYTHING,
    rules=(
        ReadRule(
            "linked", Match(), frozenset({Who.TARGET}), target=Target(frozenset({78}), "x", None)
        ),
    ),
)
NOTES = PageQuery(Filter(kinds=frozenset({1})), EVERYTHING, limit=10, upto=5, now=8, size=10)
NOTE = b'{"kind":1,"tags":[["x","expiration"]]}'
PASSING = b'{"kind":1,"tags":[["expiration","9"]]}'


def keep(cache: PageCache, query: PageQuery, page: Page) -> None:
    """It is read twice."""
    for _ in range(2):
        assert cache.page(1, query) is None
        cache.add(1, query, page)


def test_a_page_is_kept_while_nothing_changes() -> None:
    cache, page = PageCache(), Page([NOTE], None)
    keep(cache, NOTES, page)
    assert cache.page(1, NOTES) is page
    assert cache.page(1, NOTES._replace(now=100)) is page
    assert cache.page(1, NOTES._replace(now=7)) is None
    assert cache.page(1, NOTES._replace(limit=9)) is None
    assert cache.page(1, NOTES._replace(visibility=LINKED)) is None
    assert cache.page(2, NOTES) is None
    assert cache.page(1, NOTES) is None


@pytest.mark.parametrize(
    ("raw", "visibility"), [(PASSING, EVERYTHING), (NOTE, LINKED)], ids=["expires", "is linked"]
)
def test_a_page_whose_rows_may_pass_is_kept_for_its_second(
    raw: bytes, visibility: Visibility
) -> None:
    cache, page, newer = PageCache(), Page([raw], None), Page([], None)
    query = NOTES._replace(visibility=visibility)
    keep(cache, query, page)
    assert cache.page(1, query) is page
    later = query._replace(now=9)
    assert cache.page(1, later) is None
    cache.add(1, later, newer)
    assert cache.page(1, later) is newer


def test_a_page_of_a_state_that_has_passed_is_not_kept() -> None:
    cache = PageCache()
    assert cache.page(2, NOTES) is None
    cache.add(1, NOTES, Page([], None))
    assert cache.page(2, NOTES) is None


def notes_about(topic: str, size: int = 0) -> PageQuery:
    return NOTES._replace(filter=Filter(tags=(("t", frozenset({topic + "x" * size})),)))


def ask(cache: PageCache, query: PageQuery, page: Page) -> bool:
    """Whether the page was kept."""
    found = cache.page(1, query)
    if found is None:
        cache.add(1, query, page)
    return found is not None


def test_kept_pages_and_their_filters_have_a_bound() -> None:
    cache, page = PageCache(50_000), Page([b"x" * 5_000], None)
    some = [notes_about(f"{n}", 5_000) for n in range(9)]
    for query in some * 2:
        ask(cache, query, page)
    assert [cache.page(1, query) is not None for query in some] == [True] * 4 + [False] * 5
    cache = PageCache(50_000)
    wide = notes_about("\U0001f600", 13_000)  # each of its characters takes four bytes
    keep(cache, wide, page)
    assert cache.page(1, wide) is None
    keep(cache, NOTES, Page([b"x" * 100_000], None))
    assert cache.page(1, NOTES) is None
    many = NOTES._replace(filter=Filter(authors=frozenset(f"{n:064}" for n in range(101))))
    keep(cache, many, Page([], None))
    assert cache.page(1, many) is None


def test_rows_that_are_listed_behind_a_page_count() -> None:
    cache, none = PageCache(6_000), Page([NOTE], None)
    listed = Page([NOTE], None, Listed(range(500), are_last=True))
    for topic in ("a", "b"):
        keep(cache, notes_about(topic), listed)
    for topic in ("c", "d"):
        keep(cache, notes_about(topic), none)
    found = [cache.page(1, notes_about(topic)) is not None for topic in "abcd"]
    assert found == [True, False, False, False]


def test_a_full_cache_is_emptied_when_other_pages_are_asked_for() -> None:
    cache, page = PageCache(50_000), Page([b"x" * 10_000], None)
    for _ in range(20):
        for number in range(4):
            ask(cache, notes_about(f"old {number}"), page)
    asked = next(n for n in range(1_000) if ask(cache, notes_about("new"), page))
    assert asked < 40
    assert not any(ask(cache, notes_about(f"old {n}"), page) for n in range(3))


def test_a_full_cache_of_pages_that_are_asked_for_stays() -> None:
    """More is asked for by turns than it holds: half of that is found."""
    cache, page = PageCache(50_000), Page([b"x" * 10_000], None)
    found = [ask(cache, notes_about(f"{n % 8}"), page) for n in range(800)]
    assert sum(found) > 350


@pytest.mark.parametrize("size", [20, 20_000])
def test_a_page_is_kept_when_it_is_read_for_the_second_time(size: int) -> None:
    """Most are asked for once."""
    cache, page = PageCache(), Page([b"x" * size], None)
    assert [ask(cache, NOTES, page) for _ in range(4)] == [False, False, True, True]
    assert not any(ask(cache, notes_about(f"{n}"), page) for n in range(5_000))
    assert ask(cache, NOTES, page)
    unknown = 0
    for seq in range(2, 12):
        assert cache.page(seq, NOTES) is None
        cache.add(seq, NOTES, page)
        unknown += cache.page(seq, NOTES) is None
    assert unknown >= 5  # one in thirteen shares its place of `Recent` with another


def test_a_cache_learns_soon_that_other_pages_are_asked_for_whatever_was_before() -> None:
    """First pages of which few fit, in turn: it was emptied in vain. Then some that fit, and then
    others that fit: each of these is kept after few requests."""
    cache, small, large = PageCache(400_000), Page([b"x" * 100], None), Page([b"x" * 20_000], None)
    for number in range(4_000):
        ask(cache, notes_about(f"large {number % 200}"), large)
    for topic in ("one", "other"):
        some = [notes_about(f"{topic} {number}") for number in range(200)]
        found = [sum(ask(cache, query, small) for query in some) for _ in range(20)]
        assert found[-1] == 200
        assert sum(found) > 200 * 12
