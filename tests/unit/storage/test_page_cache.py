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
from relay.storage import Page, PageQuery
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


def test_a_page_is_kept_while_nothing_changes() -> None:
    cache, page = PageCache(), Page([NOTE], None)
    assert cache.page(1, NOTES) is None
    cache.add(1, NOTES, page)
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
    cache.page(1, query)
    cache.add(1, query, page)
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


def test_kept_pages_and_their_filters_have_a_bound() -> None:
    cache = PageCache(100_000)
    filters = [Filter(tags=(("t", frozenset({f"{n}" + "x" * 20_000})),)) for n in range(9)]
    some = [NOTES._replace(filter=filter_) for filter_ in filters]
    for query in some:
        cache.page(1, query)
        cache.add(1, query, Page([b"x" * 10_000], None))
        assert cache.page(1, query) is not None
    assert sum(cache.page(1, query) is not None for query in some) == 3
    cache.add(1, NOTES, Page([b"x" * 100_000], None))
    assert cache.page(1, NOTES) is None
    many = NOTES._replace(filter=Filter(authors=frozenset(f"{n:064}" for n in range(101))))
    cache.add(1, many, Page([], None))
    assert cache.page(1, many) is None
