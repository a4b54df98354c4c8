"""The promises of `EventReader` about pages and counts, quoted, on every store."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.actors import Actors, Household
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer
from relay.errors import WriteOutcome
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Found, Stored, WritePlan
from relay.nostr.event import event_from_raw
from relay.nostr.filters import MAX_PREFIXES
from relay.nostr.kinds import KindSet
from relay.storage import PAGE_BYTES, PageQuery, Place
from tests import cast
from tests.contract.conftest import WITH_TABLES
from tests.contract.crowd import (
    ALICE,
    BOB,
    CAROL,
    ORDERED,
    a_wide_crowd,
    filters_for,
    keys,
    matching,
    on_module_loop,
    rule,
    seen_by,
)
from tests.contract.writing import (
    EVERYTHING,
    MAX,
    NOTHING_WANTED,
    asked,
    change,
    in_order,
    look_up,
    raws,
    read,
    read_in_pages,
    set_groups,
    stored,
    unsigned,
    write,
)

if TYPE_CHECKING:
    from relay.nostr.filters import Filter
    from relay.storage import EventReader, Store

# page and places: order -------------------------------------------------------------------------


@pytest.mark.proves("N01-76")
async def test_results_are_newest_first_and_ties_lowest_id_first(store: Store) -> None:
    """Newest created_at first, then lowest id."""
    events = [unsigned(cast.alice, content=str(n), at=n % 7) for n in range(60)]
    await write(store, *events[:30])
    await write(store, *events[30:])
    assert await read(store) == in_order(*events)


@on_module_loop
async def test_every_filter_keeps_the_order(crowded: EventReader) -> None:
    """In order of Place."""
    crowd = a_wide_crowd()
    for name, conditions in ORDERED.items():
        filter_ = asked(**conditions)
        assert await read(crowded, filter_) == matching(filter_, crowd), name
        assert len(matching(filter_, crowd)) > 1, name


@on_module_loop
@pytest.mark.parametrize("size", [1, 3, 10, 1000])
async def test_pages_add_up_to_the_result(crowded: EventReader, size: int) -> None:
    """In order of Place, after `after`; no row is missed or given twice."""
    crowd = a_wide_crowd()
    for name, conditions in ORDERED.items():
        filter_ = asked(**conditions)
        pages = await read_in_pages(crowded, filter_, size=size)
        assert [raw for page in pages for raw in page] == matching(filter_, crowd), name
        assert all(len(page) <= size for page in pages), name


@on_module_loop
@pytest.mark.parametrize("kinds", [None, [0], [30078], [0, 30078], [1], [1, 7, 30078]])
async def test_a_filter_may_have_any_number_of_values(
    crowded: EventReader, kinds: list[int] | None
) -> None:
    """REQs by 17 to 32 authors and a replaceable kind failed: statements differ by the numbers."""
    crowd = a_wide_crowd()
    others = [f"{number:064x}" for number in range(130)]
    conditions = {} if kinds is None else {"kinds": kinds}
    for name, found in (
        ("authors", [BOB, ALICE, CAROL]),
        ("ids", [crowd[number].id for number in (0, 5, 110)]),
        ("#t", ["b", "a"]),
        ("#d", ["snow:a", "other"]),
    ):
        for number in (*range(38), 63, 64, 65, 126, 127):
            filter_ = asked(**conditions, **{name: [*found[:1], *others[:number], *found[1:]]})
            assert await read(crowded, filter_) == matching(filter_, crowd), (name, number)


@on_module_loop
async def test_a_filter_may_have_any_number_of_kinds(crowded: EventReader) -> None:
    crowd = a_wide_crowd()
    for name, conditions in ORDERED.items():
        for number in (*range(36), 63, 64, 127, 128, 129):
            filter_ = asked(**conditions | {"kinds": [1, *range(2000, 2000 + number), 30078]})
            assert await read(crowded, filter_) == matching(filter_, crowd), (name, number)


@on_module_loop
async def test_the_limit_cuts_off_the_oldest(crowded: EventReader) -> None:
    """Over all pages never more than the newest `limit` rows."""
    crowd = a_wide_crowd()
    for name, conditions in ORDERED.items():
        filter_ = asked(**conditions)
        whole = matching(filter_, crowd)
        for limit in (0, 1, 2, 7, len(whole), len(whole) + 1):
            assert await read(crowded, filter_, limit=limit) == whole[:limit], name
            pages = await read_in_pages(crowded, filter_, limit=limit, size=3)
            assert [raw for page in pages for raw in page] == whole[:limit], name


async def test_the_last_page_has_no_next(store: Store) -> None:
    """The `after` of the next page; None: this is the last."""
    await write(store, *[unsigned(cast.alice, at=at) for at in range(5)])
    ask = {"upto": MAX, "now": 0, "after": None}
    all_of_it = await store.page(PageQuery(asked(), EVERYTHING, limit=100, size=100, **ask))  # type: ignore[arg-type]
    assert all_of_it.next is None
    part = await store.page(PageQuery(asked(), EVERYTHING, limit=100, size=4, **ask))  # type: ignore[arg-type]
    assert part.next is not None
    nothing = await store.page(PageQuery(asked(kinds=[2]), EVERYTHING, limit=100, size=4, **ask))  # type: ignore[arg-type]
    assert (list(nothing.raws), nothing.next) == ([], None)


async def test_the_relay_reads_all_matches_page_by_page(store: Store) -> None:
    """In order of Place, those behind `after`; fewer once their weight is PAGE_BYTES."""
    events = [unsigned(cast.alice, content=str(n) * 200_000, at=n // 4) for n in range(9)]
    await write(store, *events, unsigned(cast.alice, 2))
    for limit in (2, 100):
        found: list[Stored] = []
        while page := await store.matching(
            asked(kinds=[1]), limit=limit, now=0, after=found[-1] if found else None
        ):
            assert len(page) <= limit
            found += page
        assert [row.event.raw for row in found] == in_order(*events)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 1000])
async def test_large_rows_take_more_pages(store: Store, size: int) -> None:
    """Fewer once they have PAGE_BYTES."""
    events = [unsigned(cast.alice, content=str(n) * 30_000, at=n // 2) for n in range(90)]
    await write(store, *events)
    pages = await read_in_pages(store, asked(), size=size)
    assert [raw for page in pages for raw in page] == in_order(*events)
    pages = await read_in_pages(store, asked(), size=size, limit=80)
    assert [raw for page in pages for raw in page] == in_order(*events)[:80]
    got: list[bytes] = []
    after = None
    while True:
        places, _ = await store.places(
            PageQuery(
                asked(), EVERYTHING, limit=90 - len(got), upto=MAX, now=0, after=after, size=size
            )
        )
        if not places:
            break
        got += [raw for _, raw in places]
        after = places[-1][0]
    assert got == in_order(*events)


@pytest.mark.parametrize("filter_", [asked(tag_t=["a", "b"]), asked(kinds=[1])])
@pytest.mark.parametrize("is_long", [False, True])
async def test_rows_listed_with_a_page_are_read_while_they_are_there(
    store: Store, filter_: Filter, *, is_long: bool
) -> None:
    """`Page.listed` decides how rows are found, not which."""
    text, tag = "x" * (PAGE_BYTES // 3), ["t", "a"]
    events = [unsigned(cast.alice, tags=[tag], content=text, at=at) for at in range(12)]
    events[4] = unsigned(cast.alice, tags=[tag, ["expiration", "100"]], content=text, at=4)
    rows = await write(store, *events)
    query = PageQuery(filter_, EVERYTHING, 500, MAX, now=99, size=500)
    page = await store.page(query, is_long=is_long)
    placed, behind = await store.places(query)
    assert list(page.raws) == [raw for _, raw in placed] == in_order(*events[-3:])
    deleted = rows[7]
    assert isinstance(deleted, Stored)
    await change(store, lambda plan: plan.removes.add(deleted.seq))
    left = in_order(*(event for event in events[:-3] if event not in (events[4], events[7])))
    found = list[bytes]()
    next_ = query
    while page.next is not None:
        next_ = next_.following(page)._replace(now=100)
        page = await store.page(next_)
        found += page.raws
    assert found == left
    found.clear()
    while placed:
        query = query._replace(after=placed[-1][0], listed=behind, now=100)
        placed, behind = await store.places(query)
        found += [raw for _, raw in placed]
    assert found == left


@pytest.mark.parametrize("filter_", [asked(tag_t=["a", "b"]), asked(kinds=[1])])
async def test_rows_behind_listed_ones_that_are_gone_are_found(
    store: Store, filter_: Filter
) -> None:
    """Three of six fill a page, and the three that are listed with it are deleted."""
    text = "x" * (PAGE_BYTES // 3)
    events = [unsigned(cast.alice, tags=[["t", "a"]], content=text, at=at) for at in range(9)]
    rows = await write(store, *events)
    query = PageQuery(filter_, EVERYTHING, 500, MAX, now=0, size=6)
    page = await store.page(query)
    placed, behind = await store.places(query)
    assert list(page.raws) == [raw for _, raw in placed] == in_order(*events[6:])
    gone = {row.seq for row in rows[3:6] if isinstance(row, Stored)}
    await change(store, lambda plan: plan.removes.update(gone))
    page = await store.page(query.following(page))
    assert list(page.raws) == in_order(*events[:3])
    placed, _ = await store.places(query._replace(after=placed[-1][0], listed=behind))
    assert [raw for _, raw in placed] == in_order(*events[:3])


@on_module_loop
async def test_a_short_page_is_given_without_waiting(crowded: EventReader) -> None:
    """`page` without waiting; None when it would take long."""
    for (name, conditions), (limit, size) in product(
        ORDERED.items(), ((1000, 5), (3, 5), (1000, 1000), (0, 5))
    ):
        query = PageQuery(
            asked(**conditions), EVERYTHING, limit, upto=MAX, now=0, after=None, size=size
        )
        page = crowded.page_now(query)
        if page is None:
            continue  # a slow machine
        other = await crowded.page(query)
        assert (list(page.raws), page.next) == (list(other.raws), other.next), name


async def test_a_page_that_was_kept_ends_with_the_next_commit_and_what_expires(
    store: Store,
) -> None:
    """Rows that match a filter and are not expired."""
    note = unsigned(cast.alice, at=1)
    passing = unsigned(cast.alice, tags=[["expiration", "100"]], at=2)
    first, _ = await write(store, note, passing)
    wanted = in_order(note, passing)
    for _ in range(2):
        assert await read(store, asked(kinds=[1]), now=99) == wanted
    assert await read(store, asked(kinds=[1]), now=100) == [note.raw]
    assert await read(store, asked(kinds=[1]), now=99) == wanted
    assert isinstance(first, Stored)
    await change(store, lambda plan: plan.removes.add(first.seq))
    assert await read(store, asked(kinds=[1]), now=99) == [passing.raw]


@on_module_loop
async def test_places_are_those_of_the_page(crowded: EventReader) -> None:
    """As `page`, each row with its place, for merging several filters."""
    crowd = a_wide_crowd()
    by_id = {row.event.id: row for row in await crowded.since(0, 1000)}
    filter_ = asked(kinds=[1, 7])
    got, _ = await crowded.places(
        PageQuery(filter_, EVERYTHING, limit=1000, upto=MAX, now=0, size=1000)
    )
    assert [raw for _, raw in got] == matching(filter_, crowd)
    for place, raw in got:
        row = by_id[event_from_raw(raw).id]
        assert (place.created_at, place.seq) == (row.event.created_at, row.seq)
    for (one, _), (other, _) in pairwise(got):
        assert (-one.created_at, one.id_key, one.seq) < (-other.created_at, other.id_key, other.seq)


@on_module_loop
async def test_places_are_valid_as_after(crowded: EventReader) -> None:
    """In order of Place, after `after`."""
    ask: dict[str, Any] = {"limit": 1000, "upto": MAX, "now": 0}
    whole, _ = await crowded.places(PageQuery(asked(), EVERYTHING, size=1000, **ask))
    for start in (0, 1, 17, len(whole) - 1):
        rest, _ = await crowded.places(
            PageQuery(
                asked(),
                EVERYTHING,
                after=whole[start][0],
                size=1000,
                **ask,
            )
        )
        assert rest == whole[start + 1 :]
        first_two, _ = await crowded.places(
            PageQuery(
                asked(),
                EVERYTHING,
                after=whole[start][0],
                size=2,
                **ask,
            )
        )
        assert first_two == whole[start + 1 : start + 3]


async def test_a_place_is_valid_after_its_row_is_deleted(store: Store) -> None:
    """After `after`."""
    events = [unsigned(cast.alice, content=str(n), at=n // 3) for n in range(9)]
    await write(store, *events)
    page = await store.page(PageQuery(asked(), EVERYTHING, limit=100, upto=MAX, now=0, size=4))
    assert page.next is not None
    last_seq = page.next.seq
    await change(store, lambda plan: plan.removes.add(last_seq))
    assert await read(store, after=page.next) == in_order(*events)[4:]


async def test_the_extremes_of_time_are_valid_as_after(store: Store) -> None:
    """In order of Place, at both ends of 64 bits."""
    events = [unsigned(cast.alice, content=str(n), at=at) for n in range(3) for at in (0, MAX)]
    await write(store, *events)
    pages = await read_in_pages(store, asked(), size=1)
    assert [raw for page in pages for raw in page] == in_order(*events)
    assert await read(store, after=Place(0, MAX, MAX)) == []
    assert await read(store, after=Place(MAX, -MAX - 1, 0)) == in_order(*events)


async def test_nothing_newer_than_upto_is_given(store: Store) -> None:
    """Never a row with seq > `upto`."""
    events = [unsigned(cast.alice, at=at) for at in range(6)]
    rows = await write(store, *events)
    for row in rows:
        assert isinstance(row, Stored)
        assert await read(store, upto=row.seq) == in_order(*events[: row.seq])
    assert await read(store, upto=0) == []


async def test_rows_committed_between_pages_are_left_out(store: Store) -> None:
    """Never a row with seq > `upto`."""
    events = [unsigned(cast.alice, at=at) for at in range(6)]
    await write(store, *events)
    head = await store.head()
    first = await store.page(PageQuery(asked(), EVERYTHING, limit=100, upto=head, now=0, size=3))
    await stored(store, unsigned(cast.alice, content="late", at=1))
    rest = await read(store, upto=head, after=first.next)
    assert [*first.raws, *rest] == in_order(*events)


# page: filters ----------------------------------------------------------------------------------


@on_module_loop
@pytest.mark.proves("N01-72")
async def test_a_filter_finds_what_it_matches(crowded: EventReader) -> None:
    """Rows for which `Filter.matches` holds (N01-72)."""
    kept = [event_from_raw(row.event.raw) for row in await crowded.since(0, 1000)]
    for name, filter_ in filters_for(a_wide_crowd()):
        wanted = matching(filter_, kept)
        assert await read(crowded, filter_) == wanted, name
        assert await crowded.count([filter_], EVERYTHING, now=0) == len(wanted), name


@on_module_loop
@pytest.mark.proves("N01-67")
@pytest.mark.parametrize("key", ["ids", "authors", "kinds", "#t", "#d", "#p", "#hk"])
async def test_an_empty_list_matches_nothing(crowded: EventReader, key: str) -> None:
    """An empty set matches nothing (N01-67)."""
    for beside in ({}, {"kinds": [30078]}, {"authors": [ALICE]}, {"#k": ["a"]}):
        filter_ = asked(**{**beside, key: []})
        assert await read(crowded, filter_) == []
        assert await crowded.count([filter_], EVERYTHING, now=0) == 0


@pytest.mark.proves("N01-31", "N01-35")
@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "\0",
        "a\0b",
        "a\0c",
        "'",
        '"',
        "\\",
        "%",
        "_",
        "a' OR 1=1 --",
        "ünï",
        "u\u0308nï",
        "🙂",
        "\U0010ffff",
        "\ud7ff",
        "\ue000",
        "A",
        "L" * 100_000,
        "L" * 99_999 + "M",
        "1",
        "1.0",
        "null",
        "x:",
        "[]",
    ],
)
async def test_a_tag_value_is_any_text(store: Store, value: str) -> None:
    """Every tag whose name is one letter is indexed by its value (N01-31); exact equality."""
    event = unsigned(cast.alice, 1, [["t", value], ["hk", value]])
    addressed = unsigned(cast.alice, 30078, [["d", value]])
    near = [value + "x", value[:-1], value.swapcase(), value + " ", value.strip() + "\0", "t"]
    crowd = [
        unsigned(cast.bob, 1, [["t", text], ["r", value]], str(number))
        for number, text in enumerate(near)
        if text != value
    ]
    await write(store, event, addressed, *crowd)
    assert await read(store, asked(**{"#t": [value]})) == raws(event)
    assert await read(store, asked(**{"#hk": [value]})) == raws(event)
    assert await read(store, asked(**{"#d": [value]})) == raws(addressed)
    assert await read(store, asked(**{"#d": [value], "authors": [ALICE]})) == raws(addressed)
    got = await read(store, asked(**{"#t": [value, *near]}))
    assert got == in_order(event, *crowd)


@pytest.mark.proves("G-09")
@pytest.mark.parametrize(
    "prefix", ["snow:", ":", "::", "ünï:", "🙂:", "a\0:", "'%_:", "\U0010ffff:", "L" * 1000 + ":"]
)
async def test_a_prefix_of_d_finds_all_that_start_with_it(store: Store, prefix: str) -> None:
    """`#d` values that end in ":" match as prefixes (G-09)."""
    tails = ["", "a", "\0", "\U0010ffff", "\U0010ffff\U0010ffff", ":", "\ud7ff", "é"]
    begins = [unsigned(cast.alice, 30078, [["d", prefix + tail]]) for tail in tails]
    others = [
        unsigned(cast.bob, 30078, [["d", d]])
        for d in (prefix[:-1], prefix[:-1] + ";", "x" + prefix, prefix[:-1] + "9", "", "~")
    ]
    await write(store, *begins, *others)
    assert await read(store, asked(**{"#d": [prefix], "kinds": [30078]})) == in_order(*begins)
    many = [prefix, *(f"{number}:" for number in range(40))]
    assert await read(store, asked(**{"#d": many, "kinds": [30078]})) == in_order(*begins)
    by_alice = asked(**{"#d": many, "kinds": [30078], "authors": [ALICE]})
    assert await read(store, by_alice) == in_order(*begins)


async def test_every_d_tag_counts_and_for_prefixes_the_first(store: Store) -> None:
    """Rows that match: stored as live (N01-61, N01-72, G-09)."""
    event = unsigned(cast.alice, 30078, [["d", "first"], ["d", "snow:second"]])
    bare = unsigned(cast.alice, 30078, [["d"], ["d", "snow:third"]])
    await write(store, event, bare)
    for conditions in (
        {"#d": ["snow:second", "snow:third"]},
        {"#d": ["snow:"], "kinds": [30078]},
        {"#d": ["snow:"], "kinds": [30078], "authors": [ALICE]},
        {"#d": ["first", ""]},
    ):
        filter_ = asked(**conditions)
        assert await read(store, filter_) == matching(filter_, [event, bare])


@pytest.mark.proves("N01-63")
async def test_a_row_is_given_once_however_often_it_matches(store: Store) -> None:
    """No event twice."""
    event = unsigned(
        cast.alice,
        30078,
        [["d", "snow:a:b"], ["t", "a"], ["t", "a"], ["t", "b"], ["t", "a", "more"], ["h", "tea"]],
    )
    await write(store, event)
    for conditions in (
        {"#t": ["a", "b"]},
        {"#t": ["a", "b"], "#d": ["snow:", "snow:a:", "snow:a:b"], "kinds": [78, 30078]},
        {"#d": ["snow:", "snow:a:", "snow:a:b"], "kinds": [78, 30078]},
        {"ids": [event.id, event.id]},
        {"kinds": [30078, 30078, 1], "authors": [ALICE, ALICE]},
        {"#t": ["a", "b", *(str(n) for n in range(50))]},
    ):
        filter_ = asked(**conditions)
        assert await read(store, filter_) == raws(event)
        assert await store.count([filter_, filter_, asked()], EVERYTHING, now=0) == 1


TIMES = [0, 1, 1000, 2**31, 2**32, 2**53, 2**53 + 1, MAX - 1, MAX]


async def test_times_are_64_bit_numbers(store: Store) -> None:
    """since <= created_at <= until, both ends included (N01-66); any size must not crash."""
    events = [unsigned(cast.alice, at=at) for at in TIMES]
    await write(store, *events)
    for bound in (*TIMES, -1, -(2**63), -(2**70), 2**63, 2**64, 2**70, 1e300, -1e300):
        for key in ("since", "until"):
            for beside in ({}, {"kinds": [1]}, {"authors": [ALICE]}):
                filter_ = asked(**{key: bound, **beside})
                assert await read(store, filter_) == matching(filter_, events), filter_
    assert await read(store) == in_order(*events)


@pytest.mark.slow
async def test_a_filter_may_be_as_large_as_a_message(store: Store) -> None:
    """Rows that match, for any filter that fits into a frame (512 KiB)."""
    events = [
        unsigned(cast.alice, 1, [["t", "39999"]]),
        unsigned(cast.alice, 30078, [["d", "snow:a"]]),
        unsigned(cast.bob, 9),
    ]
    await write(store, *events)
    ids = [f"{number:064x}" for number in range(7_500)]
    numbers = [str(number) for number in range(40_000)]
    prefixes = ["snow:", *(f"{number}:" for number in range(MAX_PREFIXES - 1))]
    for conditions in (
        {"ids": [*ids, *(event.id for event in events)]},
        {"authors": [*ids, ALICE]},
        {"ids": [*ids[:3_700], events[0].id], "authors": [*ids[:3_700], ALICE]},
        {"kinds": list(range(65_536))},
        {"kinds": list(range(65_536)), "authors": [ALICE]},
        {"#t": numbers},
        {"#t": numbers, "#k": [], "kinds": [1]},
        {"#t": numbers, "authors": [ALICE]},
        {"#t": numbers[20_000:], "#k": numbers[:20_000]},
        {"#d": [*prefixes, *numbers], "kinds": [78, 30078]},
        {"#d": [*prefixes, *numbers], "kinds": [30078], "authors": [ALICE]},
        {f"#{letter}": ["a", "b"] for letter in "abcdfghijklmnoqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"},
    ):
        filter_ = asked(**conditions)
        assert await read(store, filter_) == matching(filter_, events)
        assert await store.count([filter_], EVERYTHING, now=0) == len(matching(filter_, events))


@pytest.mark.proves("N01-04")
async def test_stored_bytes_are_given_unchanged(store: Store) -> None:
    """Stored bytes as they were written."""
    texts = ["", "\0", "\x7f\x80\u2028", "ünï🙂", '"\\/', "\n\r\t\b\f", "x" * 400_000, "{}[]"]
    events = [
        unsigned(cast.alice, 1, [[], [""], ["t", text], ["a", "b", text]], text, at=at)
        for at, text in enumerate(texts)
    ]
    await write(store, *events)
    assert await read(store) == in_order(*events)
    rows: list[Stored] = []
    while page := await store.since(rows[-1].seq if rows else 0, 100):
        rows += page
    assert [row.event for row in rows] == events
    found = await look_up(store, ids=[event.id for event in events])
    assert {row.event.id: row.event for row in found.rows.values()} == {
        event.id: event for event in events
    }
    assert all(type(raw) is bytes for raw in await read(store))


# page: what may be read -------------------------------------------------------------------------


async def test_a_limit_counts_only_what_may_be_read(store: Store) -> None:
    """Only readable rows count."""
    mine = [unsigned(cast.alice, 4, content=str(n), at=n) for n in range(5)]
    others = [unsigned(cast.bob, 4, content=str(n), at=100 + n) for n in range(50)]
    await write(store, *mine, *others)
    visibility = seen_by(keys(ALICE), rule(Match(KindSet.of(4)), Who.AUTHOR))
    assert await read(store, asked(), visibility, limit=3) == in_order(*mine)[:3]
    pages = await read_in_pages(store, asked(), visibility, size=2)
    assert [raw for page in pages for raw in page] == in_order(*mine)


async def test_every_rule_that_applies_to_a_row_must_allow_it(store: Store) -> None:
    """A row is readable when *every* read rule that matches it allows the viewer."""
    event = unsigned(cast.alice, 9, [["p", BOB], ["h", "tea"]])
    free = unsigned(cast.alice, 1)
    await write(store, event, free)
    two = (rule(Match(KindSet.of(9)), Who.RECIPIENT, Who.AUTHOR), rule(Match(h=True), Who.AUTHOR))
    assert await read(store, visibility=seen_by(keys(ALICE), *two)) == in_order(event, free)
    assert await read(store, visibility=seen_by(keys(BOB), *two)) == raws(free)
    assert await read(store, visibility=seen_by(keys(BOB), two[0])) == in_order(event, free)
    assert await read(store, visibility=seen_by(keys(BOB, ALICE), *two)) == in_order(event, free)
    assert await read(store, visibility=seen_by(ANONYMOUS, *two)) == raws(free)


async def test_a_rule_may_require_a_key_of_the_filter(store: Store) -> None:
    """Filter keys; the row is given only to a filter that names one of them."""
    event = unsigned(cast.alice, 24, [["p", BOB]])
    await write(store, event)
    visibility = seen_by(
        ANONYMOUS, rule(Match(KindSet.of(24)), Who.ANYONE, only_by=frozenset({"authors", "#p"}))
    )
    assert await read(store, asked(), visibility) == []
    assert await read(store, asked(kinds=[24]), visibility) == []
    assert await read(store, asked(ids=[event.id]), visibility) == []
    assert await read(store, asked(authors=[ALICE]), visibility) == raws(event)
    assert await read(store, asked(tag_p=[BOB]), visibility) == raws(event)
    assert await store.count([asked(), asked(kinds=[24])], visibility, now=0) == 0
    assert await store.count([asked(), asked(tag_p=[BOB])], visibility, now=0) == 1


async def test_each_filter_of_a_count_fulfils_for_itself_what_rules_require(store: Store) -> None:
    """Filter keys; a row is counted once, if one of the filters that match it is fit for it."""
    event, other, free = (
        unsigned(cast.alice, kind, [["p", BOB], ["t", "tea"]]) for kind in (24, 25, 1)
    )
    await write(store, event, other, free)
    visibility = seen_by(
        ANONYMOUS,
        rule(Match(KindSet.of(24)), Who.ANYONE, only_by=frozenset({"authors", "#p"})),
        rule(Match(KindSet.of(25)), Who.ANYONE, only_by=frozenset({"authors", "ids"})),
    )
    elsewhere = rule(Match(KindSet.of(26)), Who.ANYONE, only_by=frozenset({"#p", "ids"}))
    unrestricted = seen_by(ANONYMOUS, elsewhere)
    wanted = {
        ("kind",): 0,
        ("tag",): 1,
        ("p",): 2,
        ("author",): 3,
        ("kind", "tag"): 1,
        ("tag", "p"): 2,
        ("p", "tag", "other tag"): 2,
        ("p", "id"): 3,
        ("p", "id of the first"): 2,
        ("p", "author", "tag"): 3,
    }
    asking = {
        "kind": asked(kinds=[24, 25]),
        "tag": asked(tag_t=["tea"]),
        "other tag": asked(tag_t=["tea", "coffee"], kinds=[25]),
        "p": asked(tag_p=[BOB]),
        "author": asked(authors=[ALICE]),
        "id": asked(ids=[other.id]),
        "id of the first": asked(ids=[event.id]),
    }
    for names, number in wanted.items():
        filters = [asking[name] for name in names]
        assert await store.count(filters, visibility, now=0) == number, names
    named, all_ = asked(kinds=[1], tag_p=[BOB]), asked(kinds=[1])
    assert await store.count([named, all_], unrestricted, now=0) == 1, "by two filters"


async def test_a_rule_may_let_anyone_read_rows_of_an_author_that_is_asked_for(
    store: Store,
) -> None:
    """Filter keys; also of a rule about some authors alone."""
    event = unsigned(cast.alice)
    await write(store, event)
    of_alice = Match(authors=frozenset({ALICE}))
    named = rule(of_alice, Who.ANYONE, only_by=frozenset({"authors"}))
    visibility = seen_by(ANONYMOUS, named, rule(Match(authors=frozenset({BOB})), Who.NOBODY))
    assert await read(store, asked(), visibility) == []
    assert await read(store, asked(authors=[ALICE, BOB]), visibility) == raws(event)


async def test_groups_change_with_the_rows_that_change_them(store: Store) -> None:
    """Groups whose rows in `groups` and `members` change, in one transaction."""
    chat = unsigned(cast.bob, 9, [["h", "tea"]])
    note = unsigned(cast.bob, 1)
    await write(store, chat, note)
    tea = Group("tea", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({BOB: ("admin",)}))
    rules = (rule(Match(h=True), Who.GROUP),)

    async def seen(viewer: Viewer, groups: Groups) -> list[bytes]:
        return await read(store, visibility=seen_by(viewer, *rules, groups=groups))

    only_note, both = raws(note), in_order(chat, note)
    assert await seen(keys(ALICE), Groups()) == only_note  # no such group: nobody's

    steps: list[tuple[Group | None, list[bytes], list[bytes]]] = [
        (tea, only_note, only_note),
        (replace(tea, members=OrderedMap({BOB: ("admin",), ALICE: ()})), both, only_note),
        (replace(tea, members=OrderedMap({BOB: ("admin",)})), only_note, only_note),
        (replace(tea, flags=frozenset()), both, both),
        (replace(tea, flags=frozenset({Flag.HIDDEN})), only_note, only_note),
        (replace(tea, flags=frozenset(), members=OrderedMap({})), both, both),
    ]
    groups = Groups()
    for group, alice_sees, stranger_sees in steps:
        assert group is not None
        await set_groups(store, tea=group)
        groups = groups.with_group(group)
        assert await seen(keys(ALICE), groups) == alice_sees
        assert await seen(ANONYMOUS, groups) == stranger_sees
    for ended, bob_sees, stranger_sees in (
        (EndedGroup(), only_note, only_note),
        (EndedGroup(frozenset({BOB})), both, only_note),
        (EndedGroup(frozenset({BOB}), is_public=True), both, both),
        (EndedGroup(is_public=True), both, both),
        (EndedGroup(frozenset({ALICE})), only_note, only_note),
    ):
        await set_groups(store, tea=ended)
        assert await store.ended_groups() == {"tea": ended}
        after = groups.without_group("tea", ended)
        assert await seen(keys(BOB), after) == bob_sees
        assert await seen(ANONYMOUS, after) == stranger_sees


@pytest.mark.proves("N29-94")
@pytest.mark.parametrize("reopenable", WITH_TABLES, indirect=True)
@pytest.mark.parametrize("is_in_another", [False, True])
@pytest.mark.parametrize("word", [Who.INSIDER, Who.GROUP, Who.VISIBLE, Who.ADMIN])
async def test_rows_of_a_group_that_took_the_reader_in_meanwhile_are_read(
    store: Store, word: Who, *, is_in_another: bool
) -> None:
    """A read with the rights before the commit, which has become private in it, too; also for who
    was in no group before."""
    chat = unsigned(cast.bob, 9, [["h", "tea"]])
    await write(store, chat)
    tea = Group("tea", flags=frozenset({Flag.PRIVATE, Flag.HIDDEN}))
    groups = Groups().with_group(replace(tea, flags=frozenset()))
    den = Group("den", members=OrderedMap({ALICE: ()}))
    if is_in_another:
        groups = groups.with_group(den)
        await set_groups(store, den=den)
    before = seen_by(keys(ALICE), rule(Match(h=True), word), groups=groups)
    tea = replace(tea, members=OrderedMap({ALICE: ("admin",)}))
    await set_groups(store, tea=tea)
    assert await read(store, visibility=before) == raws(chat)
    assert await store.count([asked()], before, now=0) == 1


async def test_a_failed_change_of_a_group_reveals_nothing(store: Store) -> None:
    """None leaves half a change."""
    chat = unsigned(cast.bob, 9, [["h", "tea"]])
    await write(store, chat)
    tea = Group("tea", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({BOB: ()}))
    await set_groups(store, tea=tea)

    def decide(_found: Found) -> WritePlan:
        plan = WritePlan()
        plan.groups["tea"] = replace(tea, flags=frozenset(), members=OrderedMap({ALICE: ()}))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await store.append(NOTHING_WANTED, decide)
    seen = seen_by(keys(ALICE), rule(Match(h=True), Who.GROUP), groups=Groups().with_group(tea))
    assert await read(store, visibility=seen) == []


WORDS: dict[str, tuple[ReadRule, list[str]]] = {
    "nobody": (rule(Match(), Who.NOBODY), []),
    "nothing": (rule(Match()), []),
    "author": (rule(Match(), Who.AUTHOR), ["alice"]),
    "recipient": (rule(Match(), Who.RECIPIENT), ["carol"]),
    "tag": (rule(Match(), tag_readers=("scope",)), ["dave"]),
    "insider": (rule(Match(), Who.INSIDER), ["alice", "bob"]),
    "admin": (rule(Match(), Who.ADMIN), ["bob"]),
    "owner": (rule(Match(), Who.OWNER), ["owner", "relay", "head"]),
    "agent": (rule(Match(), Who.AGENT), ["child"]),
    "member": (rule(Match(), Who.MEMBER), ["alice"]),  # of a household
    "known": (
        rule(Match(), Who.KNOWN),
        ["alice", "bob", "owner", "robot", "head", "child", "friend"],
    ),
    "two words": (rule(Match(), Who.ADMIN, Who.RECIPIENT), ["bob", "carol"]),
    "of guarded groups": (rule(Match(h=True), Who.GROUP), ["alice", "bob"]),
    "of other kinds": (rule(Match(KindSet.of((10, 20))), Who.NOBODY), ["*"]),
    "except": (rule(Match(), Who.NOBODY, excepts=(Match(KindSet.of(9)),)), ["*"]),
    "except others": (rule(Match(), Who.ADMIN, excepts=(Match(KindSet.of(1)),)), ["bob"]),
}

VIEWERS = {
    **{
        name: cast.person(name).pubkey
        for name in (
            "alice",
            "bob",
            "carol",
            "dave",
            "owner",
            "robot",
            "relay",
            "head",
            "child",
            "friend",
            "mallory",
        )
    },
}


@pytest.mark.parametrize("word", WORDS)
async def test_who_words_mean_the_same_in_a_store(store: Store, word: str) -> None:
    """Who may read: a store compiles a Visibility and never weakens it."""
    read_rule, readers = WORDS[word]
    event = unsigned(cast.alice, 9, [["h", "tea"], ["p", CAROL], ["scope", cast.dave.pubkey]])
    await write(store, event)
    groups = Groups().with_group(
        Group(
            "tea",
            flags=frozenset({Flag.PRIVATE}),
            members=OrderedMap({ALICE: ("label",), BOB: ("admin",)}),
        )
    )
    await set_groups(store, **groups.by_id)
    actors = Actors(
        owners=frozenset({VIEWERS["owner"]}),
        agents=frozenset({VIEWERS["robot"]}),
        households=(
            Household("home", frozenset({VIEWERS["head"], ALICE}), frozenset({VIEWERS["child"]})),
            Household("away", frozenset({VIEWERS["mallory"]}), frozenset()),
        ),
        allowed=frozenset({VIEWERS["friend"]}),
        relay=VIEWERS["relay"],
    )
    row = Stored(1, event, "tea")
    for name, pubkey in VIEWERS.items():
        visibility = seen_by(keys(pubkey), read_rule, actors=actors, groups=groups)
        answer = await read(store, visibility=visibility)
        assert (answer == [event.raw]) is visibility.may_read(row, asked()), name
        if word not in ("owner", "known"):
            assert (answer == [event.raw]) is (name in readers or readers == ["*"]), name


async def test_a_household_reads_what_its_own_keys_wrote(store: Store) -> None:
    """In a household `owner`, `agent` and `member` mean, for a row by its keys, its own."""
    notes = [unsigned(who) for who in (cast.alice, cast.bob, cast.carol)]
    other = unsigned(cast.dave)
    await write(store, *notes, other)
    actors = Actors(
        owners=frozenset({VIEWERS["owner"]}),
        agents=frozenset({VIEWERS["robot"]}),
        households=(
            Household("one", frozenset({ALICE}), frozenset({BOB})),
            Household("other", frozenset({CAROL}), frozenset()),
        ),
    )
    groups = Groups().with_group(
        Group("tea", members=OrderedMap(dict.fromkeys((BOB, CAROL, cast.dave.pubkey), ())))
    )
    for word, reader, expected in (
        (Who.OWNER, ALICE, notes[:2]),
        (Who.OWNER, BOB, []),
        (Who.OWNER, CAROL, notes[2:]),
        (Who.AGENT, BOB, notes[:2]),
        (Who.AGENT, ALICE, []),
        (Who.AGENT, CAROL, []),
        (Who.OWNER, VIEWERS["owner"], [*notes, other]),
        (Who.AGENT, VIEWERS["robot"], [other]),
        (Who.MEMBER, ALICE, []),
        (Who.MEMBER, BOB, [*notes[:2], other]),
        (Who.MEMBER, CAROL, [*notes[2:], other]),
        (Who.MEMBER, cast.dave.pubkey, [other]),
    ):
        visibility = seen_by(keys(reader), rule(Match(), word), actors=actors, groups=groups)
        assert await read(store, visibility=visibility) == in_order(*expected)


async def test_records_of_groups_are_not_read_as_the_owner_of_a_household(store: Store) -> None:
    """As other rows by its agents are: 9009s have codes."""
    around = [unsigned(cast.bob, kind, [["h", "tea"]]) for kind in (8999, 9023)]
    records = [unsigned(cast.bob, kind, [["h", "tea"]]) for kind in (9000, 9009, 9021, 9022)]
    await write(store, *around, *records)
    actors = Actors(
        owners=frozenset({VIEWERS["owner"]}),
        households=(Household("one", frozenset({ALICE}), frozenset({BOB})),),
    )
    for words, reader, expected in (
        ((Who.OWNER,), ALICE, around),
        ((Who.OWNER, Who.AGENT), ALICE, around),
        ((Who.OWNER, Who.AGENT), BOB, [*around, *records]),
        ((Who.OWNER,), VIEWERS["owner"], [*around, *records]),
        ((Who.OWNER, Who.AUTHOR), BOB, [*around, *records]),
    ):
        visibility = seen_by(keys(reader), rule(Match(), *words), actors=actors)
        assert await read(store, visibility=visibility) == in_order(*expected)
        rows = [Stored(1, each, "tea") for each in (*around, *records)]
        assert [row.event for row in rows if visibility.may_read(row, asked())] == expected


@pytest.mark.parametrize("name", ["t", "hk", "enc", "scope", "team"])
async def test_a_rule_may_ask_for_any_tag(store: Store, name: str) -> None:
    """Who may read: a store compiles a Visibility and never weakens it."""
    values = [[], [name], [name, ""], [name, "a"], [name, "a", "b"], [name, "b"], ["x", name, "a"]]
    events = [unsigned(cast.alice, 1, [value], str(n)) for n, value in enumerate(values)]
    await write(store, *events)
    for wanted in (True, False, frozenset({"a"}), frozenset({"a", "b"})):
        visibility = seen_by(ANONYMOUS, rule(Match(tags=((name, wanted),)), Who.NOBODY))
        readable = [event for event in events if visibility.may_read(Stored(1, event), asked())]
        assert await read(store, visibility=visibility) == in_order(*readable), wanted
        assert 0 < len(readable) < len(events), wanted


@pytest.mark.parametrize("name", ["t", "hk", "enc", "team", "te\0am"])
async def test_a_rule_compares_tags_to_their_end(store: Store, name: str) -> None:
    """A NUL ends no text: neither a name nor a value is cut there."""
    values = ["a", "a\0", "a\0b", "", "\0", "\\u0000", "a\\u0000b"]
    tags = [*([name, value] for value in values), ["te", "a"], ["team\0", "a"]]
    events = [unsigned(cast.alice, 1, [tag], str(n)) for n, tag in enumerate(tags)]
    await write(store, *events)
    asked_for = [frozenset({value}) for value in values]
    for match in (
        Match(tags=((name, True),)),
        *(Match(tags=((name, wanted),)) for wanted in (*asked_for, frozenset(values[:3]))),
    ):
        visibility = seen_by(ANONYMOUS, rule(match, Who.NOBODY))
        readable = [event for event in events if visibility.may_read(Stored(1, event), asked())]
        assert await read(store, visibility=visibility) == in_order(*readable), match
        assert 0 < len(readable) < len(events), match


async def test_a_key_is_no_reader_by_the_beginning_of_a_tag(store: Store) -> None:
    notes = [unsigned(cast.alice, 1, [["team", BOB + end]]) for end in ("", "\0", "\0x")]
    await write(store, *notes)
    guard = replace(rule(Match(), Who.NOBODY), tag_readers=("team",))
    assert await read(store, visibility=seen_by(keys(BOB), guard)) == raws(notes[0])


async def test_a_rule_may_name_many_texts_with_a_nul(store: Store) -> None:
    events = [unsigned(cast.alice, 30078, [["d", d]]) for d in ("a", "a\0b", "a\0c", "9", "x")]
    await write(store, *events)
    many = frozenset({"a\0b", *map(str, range(40))})
    visibility = seen_by(ANONYMOUS, rule(Match(d=many), Who.NOBODY))
    shown = [event for event in events if event.d not in many]
    assert await read(store, visibility=visibility) == in_order(*shown)


async def test_an_admin_of_one_group_is_no_admin_of_another(store: Store) -> None:
    """Who may read: a store compiles a Visibility and never weakens it."""
    chats = [unsigned(cast.bob, 9, [["h", group]]) for group in ("tea", "den", "gone")]
    await write(store, *chats)
    groups = (
        Groups()
        .with_group(Group("tea", members=OrderedMap({ALICE: ("admin",)})))
        .with_group(Group("den", members=OrderedMap({ALICE: ("label",)})))
    )
    await set_groups(store, **groups.by_id, gone=EndedGroup())
    for word, expected in ((Who.ADMIN, chats[:1]), (Who.INSIDER, chats[:2])):
        visibility = seen_by(keys(ALICE), rule(Match(h=True), word), groups=groups)
        assert await read(store, visibility=visibility) == in_order(*expected)


# expiry -----------------------------------------------------------------------------------------


@pytest.mark.proves("N40-02", "N40-07")
async def test_expired_rows_are_not_given(store: Store) -> None:
    """Rows that are not expired: expired means expiration <= now (N40-04)."""
    lasting = unsigned(cast.alice, at=1)
    ending = unsigned(cast.alice, 1, [["expiration", "100"], ["t", "a"]], at=2)
    await write(store, lasting, ending)
    assert await read(store, now=99) == in_order(lasting, ending)
    for now in (100, 101, MAX):
        assert await read(store, now=now) == raws(lasting)
        assert await read(store, asked(tag_t=["a"]), now=now) == []
        assert await read(store, asked(ids=[ending.id]), now=now) == []
        assert await read(store, now=now, limit=1) == raws(lasting)
        assert await store.count([asked()], EVERYTHING, now=now) == 1
    assert await store.count([asked()], EVERYTHING, now=99) == 2


@pytest.mark.proves("N40-08")
async def test_an_expired_row_is_looked_up_until_it_is_swept(store: Store) -> None:
    """Rows that are still stored; when the newest version expires, older ones do not come back."""
    ending = await stored(store, unsigned(cast.alice, 0, [["expiration", "100"]], at=50))
    older = unsigned(cast.alice, 0, at=40)
    assert await write(store, older, now=200) == [WriteOutcome.SUPERSEDED]
    assert list(await store.since(0, 10)) == [ending]


async def test_an_expiry_may_be_far_in_the_future(store: Store) -> None:
    """expires_at is a 64-bit number."""
    event = unsigned(cast.alice, 1, [["expiration", "9" * 18]])
    await write(store, event)
    assert await read(store, now=10**18 - 2) == raws(event)
    assert await read(store, now=10**18 - 1) == []


# count ------------------------------------------------------------------------------------------


@on_module_loop
@pytest.mark.proves("N45-01")
async def test_count_counts_each_row_once(crowded: EventReader) -> None:
    """How many rows match any of the filters; their `limit` plays no part (N45-04)."""
    crowd = a_wide_crowd()
    several = [asked(kinds=[1]), asked(authors=[ALICE]), asked(tag_t=["a", "b"]), asked(kinds=[3])]
    expected = sum(any(filter_.matches(event) for filter_ in several) for event in crowd)
    assert await crowded.count(several, EVERYTHING, now=0) == expected
    assert await crowded.count([asked(limit=1)], EVERYTHING, now=0) == len(crowd)
    assert await crowded.count([asked(limit=0, kinds=[1])], EVERYTHING, now=0) == sum(
        event.kind == 1 for event in crowd
    )
    assert await crowded.count([], EVERYTHING, now=0) == 0


@on_module_loop
@pytest.mark.proves("N45-04")
async def test_count_leaves_out_unreadable_rows(crowded: EventReader) -> None:
    """How many rows may be read."""
    visibility = seen_by(keys(ALICE), rule(Match(KindSet.of(4, 9)), Who.AUTHOR))
    for filters in ([asked()], [asked(kinds=[4]), asked(kinds=[9, 1])], [asked(authors=[BOB])]):
        readable = {raw for filter_ in filters for raw in await read(crowded, filter_, visibility)}
        assert await crowded.count(filters, visibility, now=0) == len(readable)


@on_module_loop
async def test_count_takes_as_many_filters_as_a_message_holds(crowded: EventReader) -> None:
    """How many rows match any of the filters: of 50 with many values too."""
    crowd = a_wide_crowd()
    strangers = [f"{number:064x}" for number in range(15)]
    filters = [asked(authors=[*strangers, ALICE], until=number) for number in range(50)]
    expected = sum(event.pubkey == ALICE for event in crowd)
    assert await crowded.count(filters, EVERYTHING, now=0) == expected
