"""Pages of SqliteStore: rows in memory and rows of the file make the same answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count, product
from math import inf
from random import Random
from threading import Event as ThreadEvent
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from relay.access.actors import Actors
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.errors import TooSlow
from relay.facts import Who
from relay.groups.group import Groups
from relay.lifecycle.rows import Stored
from relay.nostr.kinds import KindSet
from relay.storage import PAGE_BYTES, Listed, PageQuery
from relay.storage.read_turns import ReadTurns
from relay.storage.sqlite import loop_reader, readers
from relay.storage.sqlite import store as sqlite_store
from relay.storage.sqlite.kind_classes import KNOWN_KINDS
from relay.storage.sqlite.row_cache import RowCache
from relay.storage.sqlite.sql import conditions as sql_conditions
from relay.storage.sqlite.sql import filters, scans
from relay.storage.sqlite.sql.conditions import Query
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.crowd import ORDERED, a_wide_crowd, matching
from tests.contract.test_sqlite_erasure import becomes
from tests.contract.test_store_search import sought
from tests.contract.writing import (
    EVERYTHING,
    TERMS,
    asked,
    change,
    in_order,
    read,
    read_in_pages,
    unsigned,
    with_id,
    write,
)
from tests.harness.partition_check import flush
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.storage.sqlite.readers import AsyncReader, TurnReader


OWN_CHATS = visibility_for(
    ANONYMOUS,
    (ReadRule("chats", Match(kinds=KindSet.of(9)), frozenset({Who.AUTHOR})),),
    Actors(),
    Groups(),
)
"""Others read no kind 9."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rookery.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, TERMS)
    yield opened
    await opened.close()


async def in_pages(store: SqliteStore, size: int) -> list[bytes]:
    return [raw for page in await read_in_pages(store, asked(kinds=[1]), size=size) for raw in page]


async def test_a_page_mixes_rows_of_the_file_with_rows_in_memory(store: SqliteStore) -> None:
    read_before = [unsigned(cast.alice, at=at) for at in range(0, 20, 2)]
    await write(store, *read_before)
    assert await read(store, asked(kinds=[1])) == in_order(*read_before)
    new = [unsigned(cast.alice, at=at) for at in range(1, 20, 2)]
    await write(store, *new)
    wanted = in_order(*read_before, *new)
    for _ in range(2):
        assert await read(store, asked(kinds=[1])) == wanted
    assert await in_pages(store, 3) == wanted


@pytest.mark.parametrize("kept", [0, 2_000, 1 << 25], ids=["no row", "few rows", "all rows"])
@pytest.mark.parametrize("pays", [True, False], ids=["looked up", "left out"])
async def test_large_rows_are_paged_whatever_the_cache_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: int, pays: bool
) -> None:
    monkeypatch.setattr(sqlite_store, "RowCache", lambda: RowCache(kept))
    monkeypatch.setattr(RowCache, "pays", lambda _: pays)
    store = await SqliteStore.open(path, TERMS)
    texts = ["x" * size for size in (10, PAGE_BYTES // 3, 60_000, PAGE_BYTES, 10, 50_000)] * 8
    events = [unsigned(cast.alice, content=text, at=at) for at, text in enumerate(texts)]
    await write(store, *events)
    for _ in range(2):
        pages = await read_in_pages(store, asked(kinds=[1]), size=20)
        assert [raw for page in pages for raw in page] == in_order(*events)
        assert all(sum(map(len, page[:-1])) < PAGE_BYTES for page in pages)
    await store.close()


async def test_large_rows_in_memory_make_no_larger_page(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCache, "pays", lambda _: True)
    events = [unsigned(cast.alice, content="x" * 60_000, at=at) for at in range(24)]
    await write(store, *events)
    for _ in range(2):
        pages = await read_in_pages(store, asked(kinds=[1]), size=20)
        assert [raw for page in pages for raw in page] == in_order(*events)
        assert all(sum(map(len, page[:-1])) < PAGE_BYTES for page in pages)


@pytest.mark.parametrize("pays", [True, False], ids=["looked up", "left out"])
async def test_large_rows_behind_small_ones_make_no_larger_page(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, pays: bool
) -> None:
    monkeypatch.setattr(RowCache, "pays", lambda _: pays)
    store = await SqliteStore.open(path, TERMS)
    large = [unsigned(cast.alice, content="x" * 300_000, at=at) for at in range(20)]
    small = [unsigned(cast.alice, at=at) for at in range(100, 140)]
    await write(store, *large, *small)
    query = PageQuery(asked(kinds=[1]), EVERYTHING, 500, store.committed(), 0, 500)
    for is_long in (False, True):
        page = await store.page(query, is_long=is_long)
        assert sum(map(len, page.raws)) < PAGE_BYTES + 301_000
        assert page.next is not None
    await store.close()


def looks_of(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pages that are looked for from now on."""
    sizes, compiled = list[int](), store._compiler.page

    def noted(query: PageQuery, *more: Any, **options: Any) -> Query:
        sizes.append(query.size)
        return compiled(query, *more, **options)

    monkeypatch.setattr(store._compiler, "page", noted)
    return sizes


@pytest.mark.parametrize(
    ("is_long", "pays", "times"), [(True, False, 1), (False, True, 1), (False, False, 2)]
)
async def test_large_rows_are_looked_for_once(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, *, is_long: bool, pays: bool, times: int
) -> None:
    """Twice where the first page has fetched them at once, as it does rows that are small."""
    monkeypatch.setattr(RowCache, "pays", lambda _: pays)
    events = [
        unsigned(cast.alice, tags=[["t", "a"]], content="x" * 99_000, at=at) for at in range(40)
    ]
    await write(store, *events)
    looked_for = looks_of(store, monkeypatch)
    query = PageQuery(asked(tag_t=["a", "b"]), EVERYTHING, 500, store.committed(), 0, 500)
    page = await store.page(query, is_long=is_long)
    found = [*page.raws]
    while page.next is not None:
        query = query.following(page)
        page = await store.page(query)
        found += page.raws
    assert (found, looked_for) == (in_order(*events), [500] * times)


@pytest.mark.parametrize("large", [0, 200_000])
async def test_a_long_look_up_lists_more_rows_than_it_reads(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """Each of three filters looked six times for a thousand rows."""
    tags = [["t", "a"]]
    events = [unsigned(cast.alice, 1, tags, "x" * (large * (n % 5 == 0)), n) for n in range(40)]
    await write(store, *events)
    looked_for = looks_of(store, monkeypatch)
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    query = PageQuery(asked(tag_t=["a", "b"]), EVERYTHING, 33, store.committed(), 0, 9)
    found: list[bytes] = []
    rows, listed = await store.places(query)
    while rows:
        assert len(rows) <= 9
        found += [raw for _, raw in rows]
        left = query.limit - len(rows)
        query = query._replace(limit=left, after=rows[-1][0], listed=listed)
        rows, listed = await store.places(query)
    assert found == in_order(*events)[:33]
    assert len([size for size in looked_for if size > 9]) == 1


async def test_rows_behind_deleted_ones_are_found(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that were listed may go before they are read."""
    events = [unsigned(cast.alice, at=at) for at in range(9)]
    await write(store, *events)
    read, deleted = store._loop_conn.read, list[Query]()

    def noted(query: Query, *more: Any) -> list[Any] | None:
        if query.sql == QUERIES["placed_by_seq"] and not deleted:
            deleted.append(query)
            return []
        return read(query, *more)

    monkeypatch.setattr(store._loop_conn, "read", noted)
    listed = Listed((), are_last=False)
    query = PageQuery(asked(), EVERYTHING, 500, store.committed(), 0, 4, listed=listed)
    placed, _ = await store.places(query)
    assert deleted
    assert [raw for _, raw in placed] == in_order(*events)[:4]


def steps_of(store: SqliteStore, path: Path, query: PageQuery) -> tuple[list[bytes], int]:
    """Its rows, and the instructions of SQLite that they took."""
    sql, values = store._compiler.page(query, "e.raw")
    with closing(sqlite3.connect(path)) as db:
        worked = count()
        db.set_progress_handler(lambda: next(worked) < 0, 100)
        return [raw for (raw,) in db.execute(sql, values)], next(worked) * 100


@pytest.mark.parametrize("few", [0, 5_000])
@pytest.mark.parametrize("by", ["authors", "tag_t"])
async def test_the_first_rows_of_many_keys_are_read_without_those_behind_them(
    path: Path, monkeypatch: pytest.MonkeyPatch, by: str, few: int
) -> None:
    """A feed of 17 authors read all their rows for each page: 1.2 s of 750,000. If there are few,
    all are read, which takes less time then."""
    monkeypatch.setattr(scans, "_FEW", few)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    monkeypatch.setattr(scans, "_LEAST_NEAR", 0)
    monkeypatch.setattr(scans, "_MOST_NEAR", 0)
    authors = [cast.person(f"author {number}") for number in range(40)]
    events = [
        unsigned(author, tags=[["t", author.pubkey]], at=at)
        for at in range(100)
        for author in authors
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *events)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(**{by: [author.pubkey for author in authors]})
    found, steps = steps_of(store, path, PageQuery(wanted, EVERYTHING, 50, len(events), 0, 50))
    await store.close()
    assert found == in_order(*events)[:50]
    assert (steps < 12 * len(events)) is not bool(few)


@pytest.mark.parametrize("span", [4, 3_600])
@pytest.mark.parametrize("others", [0, 1, 60])
async def test_a_feed_of_many_authors_is_the_same_wherever_it_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, others: int, span: int
) -> None:
    """Mostly it is among the newest rows: to merge the rows of 300 authors took 12 ms. Else few
    rows of the authors since some time are sorted."""
    monkeypatch.setattr(scans, "_FEW", 40)
    monkeypatch.setattr(scans, "_SPAN_S", span)
    chance = Random(others)
    authors = [cast.person(f"author {number}") for number in range(20 + others)]
    events = [
        unsigned(
            chance.choice(authors), kind=chance.choice([1, 1, 7, 9]), content=f"{n}", at=n // 3
        )
        for n in range(900)
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *events)
    followed = [author.pubkey for author in authors[:20]]
    for kinds, times, size in product(
        ({}, {"kinds": [1]}, {"kinds": [7, 9, 30023]}),
        ({}, {"since": 290}, {"since": 260}, {"since": 100, "until": 200}, {"until": 39}),
        (1, 30, 500),
    ):
        filter_ = asked(authors=followed, **kinds, **times)
        for visibility in (EVERYTHING, OWN_CHATS):
            pages = await read_in_pages(store, filter_, visibility, size=size, limit=150)
            found = [raw for page in pages for raw in page]
            seen = [each for each in events if visibility is EVERYTHING or each.kind != 9]
            assert found == in_order(*filter(filter_.matches, seen))[:150]
    newest = PageQuery(asked(authors=followed, kinds=[1]), EVERYTHING, 20, len(events), 0, 20)
    found, steps = steps_of(store, path, newest)
    await store.close()
    assert found == in_order(*filter(newest.filter.matches, events))[:20]
    assert steps < 12_000


async def test_rows_of_many_authors_are_found_however_long_the_other_conditions_are(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an agent for memory are between the two lengths from which on they are repeated less
    often, and each such read of 17 authors got CLOSED: its columns had no names."""
    authors = [cast.person(f"author {number}") for number in range(20)]
    events = [unsigned(author, kind=1, at=at) for at in range(4) for author in authors]
    await write(store, *events)
    wanted = asked(authors=[author.pubkey for author in authors])
    rights = [replace(OWN_CHATS) for _ in range(40)]  # else a text that was composed is used again
    for number, visibility in enumerate(rights):
        monkeypatch.setattr(scans, "_REPEATED_CHARS", 100 * number)
        for size in (7, 100):
            pages = await read_in_pages(store, wanted, visibility, size=size)
            assert [raw for page in pages for raw in page] == in_order(*events)
        query = PageQuery(wanted, visibility, 50, len(events), 0, 50)
        rows, _ = await store.places(query)
        assert [raw for _, raw in rows] == in_order(*events)[:50]


async def test_newer_rows_of_others_make_no_feed_of_many_authors_merge_these(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14,000 notes by a network, in five seconds, made the feeds of 900 authors take 110 ms."""
    monkeypatch.setattr(scans, "_FEW", 500)
    monkeypatch.setattr(scans, "_SPAN_S", 4)
    authors = [cast.person(f"author {number}") for number in range(100)]
    events = [unsigned(author, at=at) for at in range(20) for author in authors]
    others = [unsigned(cast.bob, content=f"{n}", at=1_000) for n in range(1_000)]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *events, *others)
    followed = asked(kinds=[1], authors=[author.pubkey for author in authors])
    query = PageQuery(followed, EVERYTHING, 50, 10_000, 0, 50)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*events)[:50]
    assert steps < 40_000


async def test_rows_with_many_of_the_tags_are_not_looked_at_for_each(path: Path) -> None:
    """600 notes of 100 `e` each, of one address, kept reads of reactions to fifty of these waiting
    for 13 s: a row took a step for each of them."""
    store = await SqliteStore.open(path, TERMS)
    tags = [["t", f"topic {number}"] for number in range(100)]
    events = [unsigned(cast.alice, tags=tags, content=f"{n}", at=n // 9) for n in range(400)]
    await write(store, *events)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(tag_t=[value for _, value in tags])
    query = PageQuery(wanted, EVERYTHING, 300, len(events), 0, 300)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*events)[:300]
    assert steps < 2_000_000


async def test_hidden_rows_with_many_of_the_tags_are_not_looked_at_for_each(path: Path) -> None:
    """2,700 hidden deletions of 50 `e` each kept reads of these waiting for 15 s."""
    store = await SqliteStore.open(path, TERMS)
    tags = [["t", f"topic {number}"] for number in range(50)]
    hidden = [unsigned(cast.alice, 9, tags, f"{n}", 100 + n) for n in range(1_000)]
    seen = [unsigned(cast.bob, 1, tags, f"{n}", n) for n in range(10)]
    await write(store, *seen, *hidden)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(kinds=[1, 9], tag_t=[value for _, value in tags])
    query = PageQuery(wanted, OWN_CHATS, 20, len(seen) + len(hidden), 0, 20)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*seen)
    assert steps < 100 * len(hidden) * len(tags)


async def test_rows_of_other_kinds_are_passed_over_by_no_read_of_very_many_tags(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is in 80 private groups looks for 30 tags in each: beside a row of every kind in each
    group a read of four kinds took 2 s."""
    monkeypatch.setattr(scans, "_MOST_PAIRS", 100)
    store = await SqliteStore.open(path, TERMS)
    tags = [["t", f"topic {number}"] for number in range(60)]
    events = [
        unsigned(cast.alice, kind, tags, at=kind) for kind in sorted(KNOWN_KINDS - {0, 3, 5, 62})
    ]
    await write(store, *events)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(kinds=[1, 7], tag_t=[value for _, value in tags])
    found, steps = steps_of(store, path, PageQuery(wanted, EVERYTHING, 50, 10_000, 0, 50))
    await store.close()
    assert found == in_order(*(event for event in events if event.kind in (1, 7)))
    assert steps < 30_000


@pytest.mark.parametrize("last", [0, 39])
async def test_few_rows_of_a_second_with_many_are_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """One of the tags has so many rows up to the end of this second, the others in its middle."""
    monkeypatch.setattr(scans, "_FEW", 0)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    topics = [["t", f"topic {number}"] for number in range(40)]
    newest = [unsigned(cast.alice, tags=topics, content=f"{n}", at=2_000) for n in range(5)]
    some = [
        with_id(event, "f" * 8 + event.id[8:])
        for event in (unsigned(cast.alice, tags=[topics[last]], content=f"{n}") for n in range(5))
    ]
    many = [
        unsigned(cast.bob, tags=[topic], content=f"{number}")
        for topic in topics
        if topic is not topics[last]
        for number in range(100)
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *newest, *some, *many)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    query = PageQuery(asked(tag_t=[value for _, value in topics]), EVERYTHING, 10, 5_000, 0, 10)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*newest, *some, *many)[:10]
    assert steps < 40_000


@pytest.mark.parametrize("kinds", [None, [1, 7], [1, 9]])
@pytest.mark.parametrize("tags", [(1, 1, 3, 30), (40,)], ids=["some", "all"])
@pytest.mark.parametrize("steps", [0, 1, 4])
async def test_rows_with_several_of_the_tags_are_found_once_and_in_order(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    tags: Sequence[int],
    kinds: list[int] | None,
) -> None:
    monkeypatch.setattr(scans, "_FEW", 0)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    monkeypatch.setattr(scans, "_STEPS", steps)
    monkeypatch.setattr(scans, "_STAGES", ((1, steps), (2, 1), (6, None)))
    chance = Random(steps)
    topics = [f"topic {number}" for number in range(40)]
    events = [
        unsigned(
            chance.choice((cast.alice, cast.bob)),
            chance.choice((1, 7, 9, 9, 9)),
            [["t", topic] for topic in chance.sample(topics, chance.choice(tags))],
            f"{number}",
            chance.choice((number // 50, number % 7)),
        )
        for number in range(400)
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *events)
    await flush(store)
    for number in (17, 40):
        for since, until in ((None, None), (2, 5)):
            more = {"kinds": kinds, "since": since, "until": until}
            given = {key: value for key, value in more.items() if value is not None}
            filter_ = asked(tag_t=topics[:number], **given)
            matching_ = [event for event in events if filter_.matches(event)]
            for visibility in (EVERYTHING, OWN_CHATS):
                shown = (each for each in matching_ if visibility is EVERYTHING or each.kind != 9)
                wanted = in_order(*shown)
                for limit, size in ((500, 500), (500, 7), (90, 40), (3, 2)):
                    pages = await read_in_pages(store, filter_, visibility, limit=limit, size=size)
                    assert [raw for page in pages for raw in page] == wanted[:limit]
    await store.close()


@pytest.mark.parametrize("number", [17, 40, 128])
async def test_rows_of_a_kind_that_is_not_asked_for_are_passed_over_by_no_feed(
    path: Path, number: int
) -> None:
    """Of more than 16 kinds all rows were passed over: 50 ms behind 500,000 that anybody wrote."""
    kinds = range(1_000, 1_000 + number)
    wanted = [unsigned(cast.alice, kind=kind, at=kind) for kind in kinds]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *wanted)
    others = [unsigned(cast.bob, kind=2_000, at=10_000 + at) for at in range(20_000)]
    await write(store, *others)
    query = PageQuery(asked(kinds=[*kinds]), EVERYTHING, 50, store.committed(), 0, 50)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*wanted)[:50]
    assert steps < 80_000


async def test_a_feed_of_many_kinds_looks_up_none_when_the_newest_rows_are_all(path: Path) -> None:
    """As a client that comes back asks."""
    store = await SqliteStore.open(path, TERMS)
    events = [unsigned(cast.alice, kind=1_000 + at % 300, at=at) for at in range(6_000)]
    await write(store, *events)
    wanted = asked(kinds=[*range(1_000, 1_128)], since=5_900)
    query = PageQuery(wanted, EVERYTHING, 500, store.committed(), 0, 500)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*filter(wanted.matches, events))
    assert steps < 4_500


@pytest.mark.parametrize("few", [0, 5_000])
@pytest.mark.parametrize("number", [1, 2, 40])
@pytest.mark.parametrize("kinds", [[0], [3, 10002, 30315]])
async def test_what_else_an_author_wrote_is_in_no_way_of_a_profile(
    path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[int], number: int, few: int
) -> None:
    """Clients look up the profile of whoever wrote a note, and somebody wrote 900,000 events."""
    monkeypatch.setattr(scans, "_FEW", few)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    authors = [cast.person(f"author {place}") for place in range(number)]
    store = await SqliteStore.open(path, TERMS)
    profiles = [
        unsigned(author, kind=kind, at=kind % 7) for author in authors[:30] for kind in kinds
    ]
    await write(store, *profiles)
    others = [unsigned(authors[0], kind=2_000, at=at) for at in range(10, 20_000)]
    await write(store, *others)
    wanted = asked(kinds=kinds, authors=[author.pubkey for author in authors])
    for limit in (500, 20):
        query = PageQuery(wanted, EVERYTHING, limit, store.committed(), 0, limit)
        found, steps = steps_of(store, path, query)
        assert found == in_order(*profiles)[:limit]
        assert steps < 30_000
    await store.close()


@pytest.mark.parametrize("few", [0, 5_000])
async def test_pages_of_statuses_follow_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(scans, "_FEW", few)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    authors = [cast.person(f"author {place}") for place in range(40)]
    statuses = [
        unsigned(author, kind=30315, tags=[["d", str(at)]], at=at % 3)
        for author in authors
        for at in range(4)
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *statuses)
    wanted = asked(kinds=[30315, 0], authors=[author.pubkey for author in authors])
    query = PageQuery(wanted, EVERYTHING, 500, store.committed(), 0, 30)
    found = list[bytes]()
    while True:
        page = await store.page(query)
        found += page.raws
        if page.next is None:
            break
        query = query.following(page)
    await store.close()
    assert found == in_order(*statuses)


@pytest.mark.parametrize("number", [1, 40])
async def test_notes_that_name_groups_as_d_are_in_no_way_of_their_states(
    path: Path, number: int
) -> None:
    """The first request of each client for a group passed over all of them: 0.4 s beside
    300,000, for good."""
    groups = [["d", f"group {place}"] for place in range(number)]
    states = [
        unsigned(cast.robot, kind=kind, tags=[group], at=kind)
        for group in groups
        for kind in (39000, 39002)
    ]
    store = await SqliteStore.open(path, TERMS)
    await write(store, *states)
    for place in range(100):
        notes = [unsigned(cast.alice, tags=groups, at=10**5 + 50 * place + at) for at in range(50)]
        await write(store, *notes)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(kinds=[39000, 39001, 39002], tag_d=[d for _, d in groups])
    query = PageQuery(wanted, EVERYTHING, 500, store.committed(), 0, 500)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert found == in_order(*states)
    assert steps < 1_000 * (number + 1)


async def test_a_feed_of_few_rows_is_read_on_the_loop(path: Path) -> None:
    authors = [cast.person(f"author {number}") for number in range(200)]
    store = await SqliteStore.open(path, TERMS)
    for at in range(20):
        await write(store, *(unsigned(author, at=at) for author in authors))
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    wanted = asked(authors=[author.pubkey for author in authors])
    query = PageQuery(wanted, EVERYTHING, 500, store.committed(), 0, 500)
    found, steps = steps_of(store, path, query)
    await store.close()
    assert len(found) == 500
    assert steps < 200_000


async def test_authors_that_begin_alike_are_looked_up_once(path: Path) -> None:
    """The index has the first 8 bytes: a frame of 7,800 keys that begin like that of somebody who
    wrote much kept a reader busy for minutes."""
    store = await SqliteStore.open(path, TERMS)
    events = [unsigned(cast.alice, at=at) for at in range(2_000)]
    await write(store, *events)
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    worked = list[int]()
    for number in (1, 500):
        alike = [f"{cast.alice.pubkey[:16]}{each:048x}" for each in range(number)]
        others = [f"{each:016x}{0:048x}" for each in range(17)]
        wanted = asked(authors=[*alike, *others])
        found, steps = steps_of(store, path, PageQuery(wanted, EVERYTHING, 50, len(events), 0, 50))
        assert not found
        worked.append(steps)
    await store.close()
    assert worked[1] < 5 * worked[0]


async def test_a_deleted_row_is_in_no_page_although_it_was_read(store: SqliteStore) -> None:
    events = [unsigned(cast.alice, at=at) for at in range(10)]
    fifth = (await write(store, *events))[4]
    assert isinstance(fifth, Stored)
    assert len(await read(store, asked(kinds=[1]))) == 10
    await change(store, lambda plan: plan.removes.add(fifth.seq))
    left = [event for event in events if event is not events[4]]
    assert await read(store, asked(kinds=[1])) == in_order(*left)


async def test_in_a_quiet_moment_tags_reach_their_table_and_the_log_the_file(
    store: SqliteStore, path: Path
) -> None:
    events = [unsigned(cast.alice, tags=[["t", f"word{n}"]], at=n) for n in range(300)]
    await write(store, *events)
    async with asyncio.timeout(ANSWER_S):
        while not is_settled(path):  # noqa: ASYNC110 -- another thread writes it
            await asyncio.sleep(0.01)
    for event in events[::50]:
        assert await read(store, asked(tag_t=[event.tag("t")])) == [event.raw]
    await store.close()
    again = await SqliteStore.open(path, TERMS)
    assert await read(again, asked(tag_t=["word7"])) == [events[7].raw]
    await again.close()


async def test_the_log_is_not_emptied_into_a_file_that_is_gone(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = path.with_name(f"{path.name}-wal")
    with closing(sqlite3.connect(path)) as reader:  # until then no checkpoint empties the log
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        (first,) = await write(store, unsigned(cast.alice, at=1))
        assert isinstance(first, Stored)
        shutil.move(path, path.with_name("away"))
    async with asyncio.timeout(ANSWER_S):
        while "was removed or replaced" not in caplog.text:  # noqa: ASYNC110 -- a task logs it
            await asyncio.sleep(0.01)
    assert log.stat().st_size > 0
    shutil.copy(path.with_name("away"), path)
    await store.close()
    again = await SqliteStore.open(path, TERMS)
    assert await read(again, asked(kinds=[1])) == [first.event.raw]
    await again.close()


def is_settled(path: Path) -> bool:
    """All tags are in the table, and a copy of the file alone has them."""
    db = sqlite3.connect(f"file:{path}?immutable=1", uri=True)  # without the log
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        return "tags" in tables and db.execute("SELECT count(*) FROM tags").fetchone()[0] >= 300
    except sqlite3.DatabaseError:  # some pages of a commit are in the file, others are not yet
        return False
    finally:
        db.close()


async def test_the_plan_of_a_query_names_indices_and_no_value(store: SqliteStore) -> None:
    await write(store, unsigned(cast.alice, at=5))
    words = sought("hidden", kinds=[1])
    wanted = asked(kinds=[1], authors=[cast.alice.pubkey], **{"#t": ["hidden"]})
    for verb in ("REQ", "COUNT"):
        steps = await store.plan([wanted, words], EVERYTHING, verb, now=0)
        text = "\n".join(steps)
        assert "INDEX" in text, verb
        assert "hidden" not in text
        assert cast.alice.pubkey[:16] not in text
    assert await store.plan([asked(kinds=[])], EVERYTHING, "REQ", now=0) == []


async def test_a_page_has_its_place_however_busy_the_machine_is(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is looked up on the loop, where reads that seem to take long are interrupted."""
    events = [unsigned(cast.alice, at=at) for at in range(600)]
    await write(store, *events)
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    ticks = count()
    monkeypatch.setattr(loop_reader, "monotonic", lambda: next(ticks) * 1.0)
    assert await in_pages(store, 2) == in_order(*events)


async def test_a_read_does_not_look_up_each_of_many_values_for_each_row(
    store: SqliteStore, path: Path
) -> None:
    """440 values and 60,000 rows took 10 s, for which all other clients without a key waited; also
    where many rows have one of the values."""
    events = [unsigned(cast.alice, tags=[["p", f"{n % 40:064x}"]], at=n) for n in range(1_000)]
    planted = [
        unsigned(cast.bob, tags=[["p", f"{n:064x}"] for n in range(100, 300)], at=n)
        for n in range(300)
    ]
    await write(store, *events, *planted)
    made_up = [f"{n:064x}" for n in range(100, 500)]
    for values, wanted in ((made_up, []), ([*made_up, f"{7:064x}"], in_order(*events[7::40]))):
        filter_ = asked(authors=[cast.alice.pubkey], tag_p=values)
        query = PageQuery(filter_, EVERYTHING, 500, store.committed(), 0, 500)
        found, steps = steps_of(store, path, query)
        assert found == wanted
        assert steps < 100 * len(events)


async def test_rows_with_many_tags_are_not_compared_with_few_values(
    store: SqliteStore, path: Path
) -> None:
    """To compare 1,600 tags with 17 values took 0.4 ms."""
    tags = [["p", f"{n}"] for n in range(400)]
    await write(store, *[unsigned(cast.alice, tags=tags, at=n) for n in range(100)])
    values = [f"{n:064x}" for n in range(17)]
    filter_ = asked(authors=[cast.alice.pubkey], tag_p=values)
    found, steps = steps_of(
        store, path, PageQuery(filter_, EVERYTHING, 500, store.committed(), 0, 500)
    )
    assert not found
    assert steps < 100 * 1_000


def compares(monkeypatch: pytest.MonkeyPatch, upto: int) -> None:
    """The tags of rows of up to so many bytes are compared with long lists of values."""
    monkeypatch.setattr(sql_conditions, "_MOST_PARSED", upto)
    monkeypatch.setattr(filters, "has_tag_of", sql_conditions.has_tag_of.__wrapped__)


LARGE = pytest.mark.parametrize("upto", [0, 400, 16_384], ids=["all large", "some", "none"])
BUFFERED = pytest.mark.parametrize(
    "buffered", [10, 10_000], ids=["tags in the table", "tags in memory"]
)


@LARGE
@BUFFERED
async def test_rows_with_one_of_many_values_are_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, buffered: int, upto: int
) -> None:
    compares(monkeypatch, upto)
    store = await SqliteStore.open(path, TERMS, tag_buffer_rows=buffered)
    events = [
        unsigned(author, kind, tags=[["p", f"{n % 50:064x}"], ["t", f"{n % 7}"]], at=n)
        for n in range(300)
        for author in (cast.alice, cast.bob)
        for kind in (1, 7)
    ]
    await write(store, *events)
    people = [f"{n:064x}" for n in range(0, 200, 3)]
    authors = [cast.alice.pubkey, *(f"{n:064x}" for n in range(20))]
    for filter_ in (
        asked(authors=[cast.alice.pubkey], tag_p=people),
        asked(authors=authors, tag_p=people, kinds=[1], since=50, until=250),
        asked(tag_t=["3"], tag_p=people, since=50),
        asked(tag_t=[f"{n}" for n in range(3, 40)], tag_p=people, kinds=[7, 8]),
        asked(authors=authors, tag_t=[f"{n}" for n in range(3, 40)], tag_p=people),
    ):
        wanted = in_order(*[event for event in events if filter_.matches(event)])
        assert wanted
        query = PageQuery(filter_, EVERYTHING, 5_000, store.committed(), 0, 5_000)
        assert list((await store.page(query, is_long=True)).raws) == wanted
        after = (await store.page(query._replace(size=20), is_long=True)).next
        page = await store.page(query._replace(size=20, after=after), is_long=True)
        assert list(page.raws) == wanted[20:40]
        monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
        assert await store.count([filter_], EVERYTHING, now=0) == len(wanted)
        items = await store.items(
            filter_, EVERYTHING, limit=None, upto=store.committed(), now=0, at_most=5_000
        )
        assert items is not None
        assert len(items) == len(wanted)
    await store.close()


NULS = ["a\0b", "a\0c", "a\0", "\0", "\0\0", "\0a", "\\\0", "\\u0000", "\\\\u0000"]
LIKE_NULS = ["", "a", "\x01", "a\x01b", "\\u0001", "\\u0001\xff", "\x01\xff", "\x1f", "\x7f"]
QUOTED = ["\\", '"', '\\"', '","a', "/", "\\/", "\n\t\r\b\f", "1", "null", "\\ud83d\\ude00"]
WIDE = ["é", "e\u0301", "\ufffd", "\ufffe", "\u2028", "😀"]
TEXTS = [*NULS, *LIKE_NULS, *QUOTED, *WIDE]


@LARGE
@BUFFERED
async def test_any_text_is_found_in_a_long_list_of_values(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, buffered: int, upto: int
) -> None:
    """SQLite cuts texts from JSON at a NUL."""
    compares(monkeypatch, upto)
    store = await SqliteStore.open(path, TERMS, tag_buffer_rows=buffered)
    tags = [[["t", text, "x"], [], ["t"], ["x", "a"], ["e", text + "e"]] for text in TEXTS]
    events = [unsigned(cast.alice, tags=of, at=at) for at, of in enumerate(tags)]
    events += [unsigned(cast.alice, tags=[["x", text]], content="\0") for text in TEXTS]
    events += [unsigned(cast.alice, tags=[["y", "t", text]]) for text in TEXTS]
    await write(store, *events)
    others = [f"other {n}" for n in range(20)]
    some, more = [*TEXTS[::2], *others], [*TEXTS[1::2], *others]
    for conditions in (
        *[{"tag_t": [text, *others]} for text in TEXTS],
        *[{"tag_t": some}, {"tag_t": more}, {"tag_x": some}, {"tag_x": more}],
        *[{"tag_t": some, "tag_x": [*others, "a"]}, {"tag_t": some, "tag_x": others}],
    ):
        filter_ = asked(authors=[cast.alice.pubkey], **conditions)
        wanted = in_order(*[event for event in events if filter_.matches(event)])
        assert bool(wanted) == (conditions.get("tag_x") != others)
        assert await read(store, filter_) == wanted
    await store.close()


@pytest.mark.parametrize("few", [0, 5_000], ids=["many rows", "few rows"])
@pytest.mark.parametrize("chars", [0, 1 << 20], ids=["written once", "in each scan"])
async def test_rows_of_merged_scans_are_the_same_wherever_the_other_conditions_are(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, chars: int, few: int
) -> None:
    monkeypatch.setattr(scans, "_REPEATED_CHARS", chars)
    monkeypatch.setattr(scans, "_FEW", few)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    crowd = a_wide_crowd()
    await write(store, *crowd)
    for name, conditions in ORDERED.items():
        filter_ = asked(**conditions)
        wanted = matching(filter_, crowd)
        for size in (1, 10):
            pages = await read_in_pages(store, filter_, size=size)
            assert [raw for page in pages for raw in page] == wanted, name
        assert await read(store, filter_, limit=7) == wanted[:7], name


async def test_a_long_count_is_not_prepared_on_the_loop(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 filters of 52 tag names take 0.15 s, which nothing interrupts."""
    events = [unsigned(cast.alice, tags=[["t", f"{n}"], ["x", "y"]], at=n) for n in range(50)]
    await write(store, *events)
    filters = [asked(tag_t=[f"{n}"], tag_x=["y", "z"]) for n in range(100)]
    monkeypatch.setattr(store._partitions, "of", lambda *_: frozenset())
    monkeypatch.setattr(store._loop_conn, "_db", None)
    assert await store.count(filters, EVERYTHING, now=0) == 50


UNKNOWN = visibility_for(ANONYMOUS, (), Actors(), Groups())
MEMBER = visibility_for(
    Viewer(frozenset([cast.alice.pubkey])),
    (),
    Actors(allowed=frozenset([cast.alice.pubkey])),
    Groups(),
)


async def test_a_page_of_some_time_is_read_in_its_order(store: SqliteStore) -> None:
    """To sort its rows again took half as long as to read them."""
    steps = await store.plan([asked(since=1, until=9)], UNKNOWN, "REQ", now=0)
    assert any("events_time" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in steps)


class Slow(NamedTuple):
    """Pages that take longer than ANSWER_S on the connection that reads them first."""

    wanted: list[bytes]
    query: PageQuery
    first: TurnReader
    then: TurnReader


@pytest.fixture(params=[UNKNOWN, MEMBER], ids=["unknown", "known"])
async def slow(
    request: pytest.FixtureRequest, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> Slow:
    events = [unsigned(cast.alice, at=at) for at in range(300)]
    await write(store, *events)
    monkeypatch.setattr(store._partitions, "of", lambda *_: frozenset())
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    monkeypatch.setattr(readers, "_LOOK_S", 0.001)
    monkeypatch.setattr(sqlite_store, "_READ_S", ANSWER_S)
    seen = request.param
    first, then = store._unknown_conn, store._unknown_short_conn
    if seen.is_known:
        first, then = store._reader_conn, store._short_conn
        monkeypatch.setattr(first, "connections", [first])
        monkeypatch.setattr(first.turns, "_free", 1)
    monkeypatch.setattr(first, "_most_s", 0.0)
    monkeypatch.setattr(then, "_most_s", inf)
    await first._db.set_progress_handler(lambda: sleep(0.2), 10)
    query = PageQuery(asked(kinds=[1]), seen, 500, store.committed(), 0, 500, address="198.18.0.1")
    return Slow(in_order(*events), query, first, then)


async def test_a_long_page_gives_way_and_ends_elsewhere(store: SqliteStore, slow: Slow) -> None:
    """Four connections kept the others without a key waiting for 20 s; 16 keys of members the other
    members for 38."""
    page = asyncio.create_task(store.page(slow.query, is_long=True))
    await becomes("it has begun", slow.first._lock.locked)
    other = slow.query._replace(filter=asked(kinds=[7]), address="192.0.2.1")
    if slow.query.visibility.is_known:
        other = other._replace(visibility=EVERYTHING)
    assert not (await store.page(other, is_long=True)).raws
    async with asyncio.timeout(ANSWER_S):
        assert list((await page).raws) == slow.wanted


async def test_a_long_page_goes_on_while_nobody_waits(
    store: SqliteStore, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slow.first._db.set_progress_handler(lambda: sleep(0.0001), 10)
    monkeypatch.setattr(slow.then, "listed_within", None)
    assert list((await store.page(slow.query, is_long=True)).raws) == slow.wanted


async def test_whose_page_was_long_has_the_next_one_elsewhere(
    store: SqliteStore, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feeds of members, of 10 to 40 ms, waited 20 s beside reads of 0.25 s of sixteen networks."""
    await slow.first._db.set_progress_handler(lambda: sleep(0.0001), 10)
    assert list((await store.page(slow.query, is_long=True)).raws) == slow.wanted
    monkeypatch.setattr(slow.first, "listed_within", None)
    assert list((await store.page(slow.query, is_long=True)).raws) == slow.wanted
    assert slow.first.turns._free == slow.then.turns._free == 1


async def test_a_page_that_waits_for_a_processor_does_not_give_way(
    store: SqliteStore, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feeds of 50 ms began again behind pages of 10 s while others used all processors."""
    monkeypatch.setattr(slow.first, "_most_s", 0.2)
    monkeypatch.setattr(readers, "_WAIT_RATIO", ANSWER_S / 0.2)
    await slow.first._db.set_progress_handler(lambda: sleep(0.005), 100)
    monkeypatch.setattr(slow.then, "listed_within", None)
    queries = [slow.query._replace(address=f"198.18.{n}.1") for n in range(3)]
    pages = await asyncio.gather(*[store.page(each, is_long=True) for each in queries])
    assert [list(page.raws) for page in pages] == [slow.wanted] * 3


async def test_known_keys_read_on_several_connections(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads a connection waits for some iterations of the loop: with one, feeds of 8 ms
    waited 8 s for each other where an iteration took 50 ms."""
    await write(store, unsigned(cast.alice))
    monkeypatch.setattr(store._loop_conn, "read", lambda *_: None)
    first = store._reader_conn
    query = PageQuery(asked(kinds=[1]), EVERYTHING, 1, store.committed(), 0, 1)
    may_end = ThreadEvent()
    await first._db.set_progress_handler(lambda: not may_end.wait(ANSWER_S), 1)
    held = asyncio.create_task(store.page(query, is_long=True))
    await becomes("it has begun", first._lock.locked)
    async with asyncio.timeout(ANSWER_S):
        pages = await asyncio.gather(*[store.page(query, is_long=True) for _ in range(6)])
    assert [len(page.raws) for page in pages] == [1] * 6
    assert not held.done()
    may_end.set()
    assert len((await held).raws) == 1


async def test_only_threads_of_quick_reads_of_known_keys_have_the_priority_of_the_loop(
    store: SqliteStore,
) -> None:
    """Long ones made short reads of all others take 20 s; with short ones, the loop had half of a
    core and each write waited 2 s."""

    async def priority(reader: AsyncReader) -> int:
        work = partial(os.getpriority, os.PRIO_PROCESS, 0)  # of the thread that asks
        found: int = await reader._db._execute(work)  # type: ignore[no-untyped-call]
        return found

    short = await priority(store._reader_conn)
    for reader in (
        store._short_conn,
        store._unknown_conn,
        store._unknown_short_conn,
        store._search_conn,
        store._unknown_search_conn,
        store._long_conn,
        store._unknown_long_conn,
        store._bulk_conn,
    ):
        assert await priority(reader) > short


async def test_a_long_page_that_takes_too_long_elsewhere_is_refused(
    store: SqliteStore, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slow.then._db.set_progress_handler(lambda: sleep(0.01), 10)
    monkeypatch.setattr(sqlite_store, "_READ_S", 1.0)
    monkeypatch.setattr(ReadTurns, "is_anybody_waiting", True)
    with pytest.raises(TooSlow):
        await store.page(slow.query, is_long=True)
    assert slow.first.turns._free == slow.then.turns._free == 1
