"""Rows of others that have the tag asked for, and that nobody gets, take no time."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.read_rules import Match, Target
from relay.facts import Who
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from relay.storage.sqlite.kind_classes import classes_of, kind_class
from relay.storage.sqlite.sql import scans
from relay.storage.sqlite.sql.conditions import Query
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.crowd import CAROL, keys, rule, seen_by
from tests.contract.writing import EVERYTHING, TERMS, asked, in_order, read, unsigned, write
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage.sqlite.sql.conditions import Value

PLANTED = 3_000
STEPS = 2_500
"""Of the virtual machine, that planted rows may add; to pass over each takes three."""
ID = "ab" * 32
STEPS_OF_CLASSES = 30_000
"""The same for rows of any number of kinds."""
TAGS = [["e", ID], ["p", ID], ["h", "tea"], ["d", "tea"], ["t", "tea"], ["k", "x"]]


async def stored_beside(
    path: Path, planted: int, kinds: Sequence[int] = (445,)
) -> tuple[SqliteStore, list[Event]]:
    """A store of ten events each of some kinds, and of so many newer ones of other `kinds`, all in
    the file; and those ten of each."""
    store = await SqliteStore.open(path, TERMS)
    wanted = [
        unsigned(cast.alice, kind, [*TAGS, ["e", f"{at:064x}"]], f"{at}", at)
        for kind in (7, 9, 9735, 1059)
        for at in range(10)
    ]
    wanted += [unsigned(cast.alice, kind, [["d", "tea"]]) for kind in (39_000, 39_001)]
    await write(store, *wanted)
    for start in range(0, planted, 1000):
        some = [
            unsigned(
                cast.bob, kinds[at % len(kinds)], [*TAGS, ["e", f"{at % 10:064x}"]], f"{at}", 2000
            )
            for at in range(start, start + 1000)
        ]
        await write(store, *some)
    await store.close()
    return await SqliteStore.open(path, TERMS), wanted


async def steps_of(store: SqliteStore, filter_: Filter) -> int:
    """Of a page, and of a COUNT."""
    query = PageQuery(filter_, EVERYTHING, 5, await store.head(), 0, 5)
    sql = store._compiler.page(query, None, frozenset())
    counted = store._compiler.count([filter_], EVERYTHING, frozenset(), now=0)
    return steps_taken(store, sql, counted)


def steps_taken(store: SqliteStore, *queries: Query | tuple[str, dict[str, Value]]) -> int:
    steps = count(1)
    db = store._loop_conn._db
    db.set_progress_handler(lambda: next(steps) < 0, 1)
    for each in queries:
        db.execute(*each).fetchall()
    return next(steps)


@pytest.mark.parametrize(
    "conditions",
    [
        {"kinds": [7], "tag_e": [ID]},
        {"kinds": [1, 6, 7, 9735], "tag_p": [ID]},
        {"kinds": [9], "tag_h": ["tea"], "since": 1},
        {"kinds": [9], "tag_h": ["tea"], "until": 5000},
        {"kinds": [39_000, 39_001], "tag_d": ["tea"]},
        {"kinds": [7], "tag_e": [f"{number:064x}" for number in range(100)]},
        {"kinds": [1, 6, 7, 9735], "tag_e": [ID, *[f"{number:064x}" for number in range(20)]]},
        {"kinds": [7], "tag_t": ["tea"], "tag_k": ["x"]},
        {"kinds": [*range(256), 9735], "tag_t": ["tea"]},
        {"kinds": [1059], "tag_p": [ID]},
    ],
    ids=lambda conditions: " ".join(
        f"{name} {len(conditions[name])}" if isinstance(conditions[name], list) else name
        for name in conditions
    ),
)
async def test_a_tag_of_some_kinds_is_looked_up_beside_any_number_of_others(
    tmp_path: Path, conditions: dict[str, Any]
) -> None:
    filter_ = asked(**conditions)
    steps = []
    for planted in (0, PLANTED):
        store, events = await stored_beside(tmp_path / f"{planted}.db", planted)
        wanted = in_order(*[event for event in events if filter_.matches(event)])
        assert await read(store, filter_) == wanted
        steps.append(await steps_of(store, filter_))
        await store.close()
    alone, beside = steps
    assert beside < alone + STEPS


def beside_any_of(kinds: Sequence[int]) -> list[int]:
    """Kinds of a class of one of these, or if there are none, some others."""
    classes = classes_of(frozenset(kinds))
    others = [kind for kind in range(65_536) if kind not in kinds]
    return [kind for kind in others if kind_class(kind) in classes] or [5000, 6000, 30_402]


@pytest.mark.parametrize(
    "conditions",
    [
        {"kinds": [1059], "tag_p": [ID]},
        {"kinds": [9735, 9802, 30_023], "tag_p": [ID]},
        {"kinds": [9735, 7], "tag_e": [ID, *[f"{number:064x}" for number in range(20)]]},
        {"kinds": [39_000, 39_001, 39_002, 39_003], "tag_d": ["tea"]},
        {"kinds": [39_000, 39_001], "tag_d": ["tea"], "tag_t": ["tea"]},
    ],
    ids=lambda conditions: " ".join(conditions),
)
async def test_no_kind_stands_in_front_of_one_that_clients_ask_for(
    tmp_path: Path, conditions: dict[str, Any]
) -> None:
    """Kinds are free to choose: whoever finds one of the same class may store any number."""
    filter_ = asked(**conditions)
    alike = beside_any_of(conditions["kinds"])
    steps = []
    for planted in (0, PLANTED):
        path = tmp_path / f"{planted}.db"
        store, events = await stored_beside(path, planted, alike)
        wanted = in_order(*[event for event in events if filter_.matches(event)])
        assert await read(store, filter_) == wanted
        steps.append(await steps_of(store, filter_))
        await store.close()
    alone, beside = steps
    assert beside < alone + STEPS


async def test_the_look_ups_of_a_key_pass_over_no_rows_of_other_kinds(tmp_path: Path) -> None:
    names = ["key_is_stored", "size_of_key", "leaving_of_key", "rows_of_key", "groups_with_key"]
    names += ["groups_put_into"]
    values: dict[str, Value] = {"key": 0, "pubkey": b"", "newest": "[]", "limit": 100_000}
    values |= {"until": 10_000, "upto": 1_000_000, "after": 0}
    alike = beside_any_of([1059, 9000, 44_100, 44_101])
    steps = []
    for planted in (0, PLANTED):
        path = tmp_path / f"{planted}.db"
        store, _ = await stored_beside(path, planted, alike)
        values["p"] = store._compiler._hashes.tag("p", ID)
        steps.append(steps_taken(store, *[(QUERIES[name], values) for name in names]))
        await store.close()
    alone, beside = steps
    assert beside < alone + STEPS


async def stored_behind(path: Path, planted: int) -> tuple[SqliteStore, list[Event]]:
    """A store of ten events of Alice, and of newer ones of Bob that have the same kinds and tags,
    so many of each kind."""
    store = await SqliteStore.open(path, TERMS)
    wanted = [
        unsigned(cast.alice, kind, [["d", f"{at}"], ["d", "tea"], ["e", ID]], f"{at}", at)
        for kind in (1, 30_023)
        for at in range(5)
    ]
    await write(store, *wanted)
    for start in range(0, planted, 1000):
        some = [
            unsigned(cast.bob, kind, [["d", f"{at}"], ["d", "tea"], ["e", ID]], f"{at}", 2000)
            for kind in (1, 30_023)
            for at in range(start, start + 1000)
        ]
        await write(store, *some)
    await store.close()
    return await SqliteStore.open(path, TERMS), wanted


@pytest.mark.parametrize(
    "conditions",
    [
        {"kinds": [30_023], "tag_d": ["tea"]},
        {"kinds": [30_023], "tag_d": ["tea", "milk"], "since": 1},
        {"kinds": [1], "tag_e": [ID], "until": 3000},
        {"tag_e": [ID], "tag_d": ["tea", "3"]},
        {"kinds": [1, 30_023], "tag_e": [ID], "others": 20},
    ],
    ids=lambda conditions: " ".join(conditions),
)
async def test_a_long_read_of_an_author_passes_over_no_rows_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditions: dict[str, Any]
) -> None:
    monkeypatch.setattr(scans, "_FEW", 100)
    others = [f"{number:064x}" for number in range(conditions.get("others", 0))]
    conditions = {name: value for name, value in conditions.items() if name != "others"}
    filter_ = asked(authors=[cast.alice.pubkey, *others], **conditions)
    steps = []
    for planted in (0, PLANTED):
        store, events = await stored_behind(tmp_path / f"{planted}.db", planted)
        wanted = in_order(*[event for event in events if filter_.matches(event)])
        query = PageQuery(filter_, EVERYTHING, 50, await store.head(), 0, 50)
        assert list((await store.page(query, is_long=True)).raws) == wanted
        found = store._compiler.page(query, "e.raw", frozenset(), is_long=True)
        counted = store._compiler.count([filter_], EVERYTHING, frozenset(), now=0, is_long=True)
        items = store._compiler.items(
            filter_, EVERYTHING, limit=None, upto=query.upto, now=0, at_most=50
        )
        steps.append(steps_taken(store, found, counted, items))
        await store.close()
    alone, beside = steps
    assert beside < alone + STEPS


@pytest.mark.parametrize("d_prefix", ["entry:", None])
@pytest.mark.parametrize("is_in_file", [True, False], ids=["file", "memory"])
async def test_rows_with_the_tag_of_a_target_take_no_time(
    tmp_path: Path, d_prefix: str | None, *, is_in_file: bool
) -> None:
    target = Target(frozenset({78}), "x", d_prefix)
    by_entry = rule(Match(KindSet.of(30_078)), Who.AUTHOR, Who.TARGET, target=target)
    visibility = seen_by(keys(CAROL), by_entry)
    vouches = [unsigned(cast.alice, 30_078, [["d", f"{at}"], ["x", "aa"]]) for at in range(5)]
    entry = unsigned(cast.alice, 78, [["d", "entry:aa"], ["x", "aa"]], at=1)
    # Where `d` decides, any key may give it as a further one to a row of the target's kind.
    kind = 1 if d_prefix is None else 78
    steps = []
    for planted in (0, PLANTED):
        path = tmp_path / f"{planted}.db"
        store = await SqliteStore.open(path, TERMS)
        for start in range(0, planted, 1000):
            some = [
                unsigned(cast.bob, kind, [["d", f"{at}"], ["d", "entry:aa"], ["x", "aa"]], "", 2000)
                for at in range(start, start + 1000)
            ]
            await write(store, *some)
        await write(store, entry, *vouches)
        if is_in_file:
            await store.close()
            store = await SqliteStore.open(path, TERMS)
        filter_ = asked(kinds=[30_078])
        assert await read(store, filter_, visibility) == in_order(*vouches)
        query = PageQuery(filter_, visibility, 50, await store.head(), 0, 50)
        steps.append(steps_taken(store, store._compiler.page(query, "e.raw", frozenset())))
        await store.close()
    alone, beside = steps
    assert beside < alone + STEPS


async def test_the_check_of_a_row_passes_over_no_rows_with_its_d(tmp_path: Path) -> None:
    steps = []
    for same in (False, True):
        store = await SqliteStore.open(tmp_path / f"{same}.db", TERMS)
        notes = [
            unsigned(cast.bob, 1, [["d", "tea" if same else f"{at}"]], f"{at}")
            for at in range(1000)
        ]
        await write(store, *notes)
        checked = Query(QUERIES["rows_to_check"], (900, 100, 1_000_000))
        assert len(await store._reader_conn.rows_within(checked, ANSWER_S)) == 100
        steps.append(steps_taken(store, checked))
        await store.close()
    apart, alike = steps
    assert alike < apart + STEPS


@pytest.mark.parametrize("number", [1, 41], ids=["one value", "many values"])
@pytest.mark.parametrize("is_again", [False, True], ids=["written", "restored after a crash"])
async def test_expired_rows_are_passed_over_in_the_index_of_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_again: bool
) -> None:
    """Until a sweep removes them; a row that is fetched takes some 60 steps."""
    monkeypatch.setattr(scans, "_FEW", 100)
    path = tmp_path / "r.db"
    store = await SqliteStore.open(path, TERMS)
    wanted = [unsigned(cast.alice, 1, [["t", "tea"]], at=at) for at in range(10)]
    await write(store, *wanted)
    gone = [
        unsigned(cast.bob, 1, [["t", "tea"], ["expiration", "5000"]], at=at)
        for at in range(100, 4_100)
    ]
    await write(store, *gone, now=4_000)
    if is_again:
        path = Path(shutil.copytree(tmp_path, tmp_path / "left")) / "r.db"
    await store.close()
    store = await SqliteStore.open(path, TERMS)
    while await store._writing.run(store._writer.flush_some):
        pass
    filter_ = asked(kinds=[1], tag_t=["tea", *map(str, range(number - 1))])
    steps = []
    for now, rows in ((4_000, in_order(*gone)), (6_000, in_order(*wanted))):
        query = PageQuery(filter_, EVERYTHING, 5, await store.head(), now, 5)
        assert [*(await store.page(query)).raws] == rows[:5]
        steps.append(steps_taken(store, store._compiler.page(query, None, frozenset())))
    await store.close()
    before, after = steps
    assert after < before + 20 * len(gone)


async def test_rows_behind_a_page_of_many_tags_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "_FEW", 100)
    filter_ = asked(kinds=[445], tag_e=[ID, *[f"{number:064x}" for number in range(40)]])
    steps = []
    for number in (1000, 3000):
        store, _ = await stored_beside(tmp_path / f"{number}.db", number)
        query = PageQuery(filter_, EVERYTHING, 5, await store.head(), 0, 5)
        steps.append(steps_taken(store, store._compiler.page(query, None, frozenset())))
        await store.close()
    few, many = steps
    assert many < few + STEPS


@pytest.mark.parametrize(
    "conditions",
    [{"tag_p": [ID]}, {"tag_e": [ID, "cd" * 32]}, {"kinds": [1059], "tag_p": [ID]}],
    ids=["one", "two", "of a kind"],
)
async def test_a_tag_is_looked_up_in_few_steps_however_many_kinds_its_rows_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditions: dict[str, Any]
) -> None:
    monkeypatch.setattr(scans, "_FEW", 100)
    filter_ = asked(**conditions)
    steps = []
    for name, kinds in (("one", (445,)), ("many", range(2000, 2000 + PLANTED))):
        store, _ = await stored_beside(tmp_path / f"{name}.db", PLANTED, kinds)
        steps.append(await steps_of(store, filter_))
        await store.close()
    of_one, of_many = steps
    assert of_many < of_one + STEPS_OF_CLASSES
