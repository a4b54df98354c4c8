"""Reads of SqliteStore pass over no rows of groups that their reader may not read."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.actors import Actors, Household
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored, WritePlan
from relay.nostr.event import event_from_raw
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from relay.storage.sqlite.sql import scans
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.test_store_items import items
from tests.contract.writing import (
    MAX,
    NOTHING_WANTED,
    TERMS,
    asked,
    change,
    in_order,
    stored,
    unsigned,
    write,
)
from tests.property.test_reading import packaged_rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.storage import Place
    from relay.storage.sqlite.sql.conditions import Query

ALICE, BOB = (OrderedMap[str, tuple[str, ...]]({key.pubkey: ()}) for key in (cast.alice, cast.bob))
GROUPS = (
    Groups()
    .with_group(Group("open", members=BOB))
    .with_group(Group("den", flags=frozenset({Flag.PRIVATE}), members=ALICE))
    .with_group(Group("his", flags=frozenset({Flag.HIDDEN}), members=BOB))
    .with_group(Group("gone"))
    .without_group("gone", EndedGroup(is_public=True))
)
SHOWN = Match(KindSet.of(9002))
RULES = (
    ReadRule("rows of a group", Match(h=True), frozenset({Who.GROUP, Who.OWNER}), (SHOWN,)),
    ReadRule("what a group is", SHOWN, frozenset({Who.VISIBLE, Who.OWNER})),
)
READERS = {
    "nobody": ANONYMOUS,
    "a stranger": Viewer(frozenset({cast.stranger.pubkey})),
    "a member": Viewer(frozenset({cast.alice.pubkey})),
}
KINDS = (1, 7, 9002)
TAGS = [["t", "tea"], ["p", cast.stranger.pubkey], ["e", "ab" * 32]]
OF_KINDS = [
    asked(kinds=[1]),
    asked(kinds=[*KINDS]),
    asked(kinds=[*KINDS], since=100, until=150),
    asked(kinds=[7, 9002], until=150),
    asked(kinds=[*KINDS, *range(100, 140)]),
]
FILTERS = [
    *OF_KINDS,
    asked(),
    asked(since=100),
    asked(tag_t=["tea"]),
    asked(kinds=[1], tag_t=["tea"]),
    asked(kinds=[*KINDS], tag_p=[cast.stranger.pubkey], until=150),
    asked(kinds=[1, 7], tag_e=["ab" * 32, *[f"{number:064x}" for number in range(30)]]),
    asked(tag_e=["ab" * 32, *[f"{number:064x}" for number in range(30)]], since=30),
    asked(kinds=[7], tag_t=["tea"], tag_p=[cast.stranger.pubkey]),
    asked(tag_t=["tea"], authors=[cast.alice.pubkey]),
]
PAGE = 20
STEPS = 3_000
"""Of the virtual machine, that 2,000 rows may add; to pass over each takes 20."""


class Town:
    """A store with rows of no group and of several groups."""

    def __init__(self, store: SqliteStore, path: Path) -> None:
        self.store = store
        self._path = path
        self.rows: list[Stored] = []

    async def add(self, group: str | None, times: range, kinds: tuple[int, ...] = KINDS) -> None:
        events = [
            unsigned(cast.carol, kind, TAGS, content=f"{group} {n}", at=at)
            for n, at in enumerate(times)
            for kind in kinds
        ]
        results = await write(self.store, *events, group=group)
        self.rows += [row for row in results if isinstance(row, Stored)]

    async def settle(self) -> None:
        """The table has all tags, and all rows are in the partitions of their groups."""
        while await self.store._writing.run(self.store._writer.flush_some):
            pass
        while self.store._writer.has_moves:
            await self.store._writing.run(self.store._writer.repartition)

    def readable(self, filter_: Filter, seen: Visibility) -> list[Event]:
        return [
            row.event
            for row in self.rows
            if filter_.matches(row.event) and seen.may_read(row, filter_)
        ]

    def steps(self, query: Query) -> tuple[list[Any], int]:
        """What it finds, and the instructions of SQLite that it takes."""
        db = self.store._loop_conn._db
        worked = count()
        db.set_progress_handler(lambda: next(worked) < 0, 10)
        try:
            return db.execute(*query).fetchall(), next(worked) * 10
        finally:
            db.set_progress_handler(None, 0)

    async def page(
        self, filter_: Filter, seen: Visibility, after: Place | None = None
    ) -> tuple[list[bytes], list[int], Place | None]:
        """Its rows; the steps of a short one, and of long ones."""
        store = self.store
        query = PageQuery(filter_, seen, 500, store.committed(), 0, PAGE, after)
        page = await store.page(query, is_long=True)
        those = store._partitions.of([filter_], seen)
        assert those is not None
        costs = []
        for partitions, is_long in ((those, False), (those, True), (None, True)):
            sql = store._compiler.page(query, "e.raw", partitions, is_long=is_long)
            found, steps = self.steps(sql)
            assert [raw for (raw,) in found] == list(page.raws)
            costs.append(steps)
        return list(page.raws), costs, page.next


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    monkeypatch.setattr(scans, "_NEAR", 50)
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    await change(store, lambda plan: plan.groups.update({**GROUPS.ended, **GROUPS.by_id}))
    town = Town(store, path)
    for group in (None, "open", "den", "gone", "unknown"):
        await town.add(group, range(0, 180, 3))
    await town.add("open", range(90, 270, 3))
    yield town
    await store.close()


async def costs(
    town: Town, seen: Visibility, filters: Sequence[Filter] = FILTERS
) -> list[tuple[str, int]]:
    """The steps of some reads, which find what they should."""
    steps: list[tuple[str, int]] = []
    for number, filter_ in enumerate(filters):
        wanted = town.readable(filter_, seen)
        ordered = in_order(*wanted)
        place = None
        for start in range(0, 100, PAGE):
            found, taken, place = await town.page(filter_, seen, place)
            assert found == ordered[start : start + PAGE]
            steps += [(f"{number} page {start}", each) for each in taken]
            if place is None:
                break
        compiler = town.store._compiler
        for those in (town.store._partitions.of([filter_], seen), None):
            for asked_for in ([filter_], [filter_, filter_]):
                query = compiler.count(asked_for, seen, those, now=0, is_long=True)
                counted, taken_ = town.steps(query)
                assert counted == [(len(wanted),)]
                steps.append((f"{number} count", taken_))
            query = compiler.authors(filter_, seen, those, now=0, at_most=9, is_long=True)
            by, taken_ = town.steps(query)
            assert {key for (key,) in by} == {bytes.fromhex(event.pubkey) for event in wanted}
            steps.append((f"{number} authors", taken_))
            for limit in (None, 3):
                query = compiler.items(
                    filter_, seen, those, limit=limit, upto=MAX, now=0, at_most=9_999
                )
                found_, taken_ = town.steps(query)
                ids = {bytes.fromhex(event_from_raw(raw).id) for raw in ordered[:limit]}
                assert {id_ for _, id_, _ in found_} == ids
                steps.append((f"{number} items {limit}", taken_))
    return steps


@pytest.mark.parametrize("repeated", [0, 12_288], ids=["long conditions", "short conditions"])
@pytest.mark.parametrize("few", [0, 5_000], ids=["few", "many"])
@pytest.mark.parametrize("reader", READERS)
async def test_rows_of_groups_that_a_reader_may_not_read_cost_him_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch, reader: str, repeated: int, few: int
) -> None:
    """Somebody wrote 300,000 notes into a private group: each page of all notes then took 0.1 s,
    and others waited for it."""
    monkeypatch.setattr(scans, "_REPEATED_CHARS", repeated)
    monkeypatch.setattr(scans, "_FEW", few)
    monkeypatch.setattr(scans, "_FEW_OF_PAIR", 0)
    seen = visibility_for(READERS[reader], RULES, Actors(), GROUPS)
    await town.settle()
    # Those of kind 9002 stay beside the others.
    filters = [each for each in FILTERS if each.kinds is not None and 9002 not in each.kinds]
    before = await costs(town, seen, filters)
    await town.add("his", range(270, 2_270), (1, 7))
    await town.settle()
    for (name, few_steps), (_, many) in zip(before, await costs(town, seen, filters), strict=True):
        assert many <= few_steps + STEPS, name


async def test_rows_of_all_kinds_are_passed_over_in_the_index(town: Town) -> None:
    seen = visibility_for(ANONYMOUS, RULES, Actors(), GROUPS)
    await town.settle()
    before = await costs(town, seen, [asked(), asked(kinds=[*KINDS, *range(100, 240)])])
    await town.add("his", range(270, 2_270), (1,))
    after = await costs(town, seen, [asked(), asked(kinds=[*KINDS, *range(100, 240)])])
    for (name, few), (_, many) in zip(before, after, strict=True):
        assert many <= few + 30 * 2_000, name


@pytest.mark.parametrize("reader", READERS)
async def test_rows_that_were_written_before_their_group_was_hidden_cost_nothing_once_moved(
    town: Town, reader: str
) -> None:
    seen = visibility_for(READERS[reader], RULES, Actors(), GROUPS)
    filters = [asked(kinds=[1]), asked(kinds=[1], tag_t=["tea"]), asked(tag_t=["tea"])]
    await town.settle()
    before = await costs(town, seen, filters)
    shown = Group("his", members=BOB)
    await change(town.store, lambda plan: plan.groups.update({"his": shown}))
    await town.add("his", range(270, 1_270), (1,))
    await change(town.store, lambda plan: plan.groups.update({"his": GROUPS.by_id["his"]}))
    await costs(town, seen, filters)
    await town.settle()
    for (name, few), (_, many) in zip(before, await costs(town, seen, filters), strict=True):
        assert many <= few + STEPS, name


@pytest.mark.parametrize("repeated", [0, 12_288], ids=["long conditions", "short conditions"])
@pytest.mark.parametrize("reader", READERS)
async def test_until_they_are_moved_they_are_passed_over_in_the_index(
    town: Town, monkeypatch: pytest.MonkeyPatch, reader: str, repeated: int
) -> None:
    """A row that is fetched takes 25 to 140 steps, one that is passed over 12 to 17."""
    monkeypatch.setattr(scans, "_REPEATED_CHARS", repeated)
    seen = visibility_for(READERS[reader], RULES, Actors(), GROUPS)
    await town.settle()
    shown = Group("his", members=BOB)
    await change(town.store, lambda plan: plan.groups.update({"his": shown}))
    await town.add("his", range(270, 2_270), (1, 7))
    await change(town.store, lambda plan: plan.groups.update({"his": GROUPS.by_id["his"]}))
    assert town.store._writer.has_moves
    for filter_ in (asked(kinds=[1]), asked(kinds=[1, 7]), asked(kinds=[1, 7], since=100)):
        found, steps, _ = await town.page(filter_, seen)
        assert found == in_order(*town.readable(filter_, seen))[:PAGE]
        rows = 2_000 * len(filter_.kinds or ())
        assert max(steps) < 20 * rows + 5_000


async def test_those_of_a_thousand_groups_are_passed_over_in_the_index(town: Town) -> None:
    seen = visibility_for(ANONYMOUS, RULES, Actors(), GROUPS)
    await town.settle()
    names = [f"group {number}" for number in range(1_000)]
    shown = {name: Group(name, members=BOB) for name in names}
    private = {
        name: replace(group, flags=frozenset({Flag.PRIVATE})) for name, group in shown.items()
    }
    await change(town.store, lambda plan: plan.groups.update(shown))
    for number, name in enumerate(names):
        await town.add(name, range(300 + 10 * number, 310 + 10 * number), (1,))
    await town.add(names[0], range(300, 301), (*range(2, 17),))
    await change(town.store, lambda plan: plan.groups.update(private))
    for kinds in ([1], [*range(1, 17)]):
        _, steps, _ = await town.page(asked(kinds=kinds), seen)
        assert max(steps) < 20 * 10_000 + 100_000


@pytest.mark.parametrize("word", [Who.AUTHOR, Who.RECIPIENT, Who.OWNER, Who.MEMBER, Who.ADMIN])
async def test_rows_that_are_allowed_for_another_reason_than_their_group_are_found(
    town: Town, word: Who
) -> None:
    """The reader is their author or the owner of their author's household, is named in their tag,
    is a member somewhere, or an admin of their group."""
    rule = ReadRule("rows of a group", Match(h=True), frozenset({Who.INSIDER, word}))
    reader = {Who.AUTHOR: cast.carol, Who.MEMBER: cast.alice}.get(word, cast.stranger).pubkey
    people, groups = Actors(), GROUPS
    if word in (Who.OWNER, Who.MEMBER):
        owner = frozenset({reader if word is Who.OWNER else cast.owner.pubkey})
        people = Actors(households=(Household("home", owner, frozenset({cast.carol.pubkey})),))
    if word is Who.ADMIN:
        groups = GROUPS.with_group(Group("his", members=OrderedMap({reader: ("admin",)})))
        await change(town.store, lambda plan: plan.groups.update(groups.by_id))
    await town.add("his", range(0, 90, 3))
    named = unsigned(cast.bob, 1, [*TAGS, ["p", reader]], at=40)
    town.rows.append(await stored(town.store, named, group="his"))
    seen = visibility_for(Viewer(frozenset({reader})), [rule], people, groups)
    assert any(
        event.content[:3] == "his" or event is named for event in town.readable(FILTERS[0], seen)
    )
    await costs(town, seen)


async def test_a_page_looks_into_no_group_that_all_may_read(town: Town) -> None:
    """Anybody may make some thousands."""
    names = [f"group {number}" for number in range(300)]
    made = {name: Group(name) for name in names}
    await change(town.store, lambda plan: plan.groups.update(made))
    groups = GROUPS
    for name in names:
        groups = groups.with_group(made[name])
        await town.add(name, range(300, 310), (1,))
    seen = visibility_for(ANONYMOUS, RULES, Actors(), groups)
    for filter_ in OF_KINDS:
        found, steps, _ = await town.page(filter_, seen)
        assert found == in_order(*town.readable(filter_, seen))[:PAGE]
        assert max(steps) < 10_000


async def test_a_page_looks_once_into_each_private_group_of_a_member(town: Town) -> None:
    names = [f"group {number}" for number in range(300)]
    made = {name: Group(name, flags=frozenset({Flag.PRIVATE}), members=ALICE) for name in names}
    await change(town.store, lambda plan: plan.groups.update(made))
    groups = GROUPS
    for name in names:
        groups = groups.with_group(made[name])
        await town.add(name, range(300, 303), (1,))
    seen = visibility_for(READERS["a member"], RULES, Actors(), groups)
    await town.settle()
    for filter_ in [each for each in FILTERS if all(len(values) == 1 for _, values in each.tags)]:
        found, steps, _ = await town.page(filter_, seen)
        assert found == in_order(*town.readable(filter_, seen))[:PAGE]
        assert max(steps) < 500 * len(names)


async def test_a_page_passes_once_over_the_rows_of_a_second(town: Town) -> None:
    seen = visibility_for(ANONYMOUS, RULES, Actors(), GROUPS)
    events = [unsigned(cast.carol, 1, content=f"{n}", at=900) for n in range(2_000)]
    await write(town.store, *events, group="open")
    ordered, place = in_order(*events), None
    for start in range(0, len(events), PAGE):
        found, steps, place = await town.page(asked(kinds=[1]), seen, place)
        assert found == ordered[start : start + PAGE]
        assert max(steps) < 25 * len(events)


class Meanwhile:
    """Commits between the look at partitions and the query, and after it."""

    def __init__(self, store: SqliteStore, *hooks: Callable[[], None]) -> None:
        self._of = store._partitions.of
        self._hooks = [*hooks]

    def of(self, filters: Sequence[Filter], seen: Visibility) -> frozenset[int] | None:
        """The first is called after the first look, the next one before the next look, …"""
        if len(self._hooks) == 1:
            self._hooks.pop()()
        found = self._of(filters, seen)
        if self._hooks:
            self._hooks.pop(0)()
        return found


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("filter_", FILTERS[:-1], ids=map(str, range(len(FILTERS) - 1)))
async def test_rows_that_become_readable_while_a_page_is_read_are_in_it(
    town: Town, monkeypatch: pytest.MonkeyPatch, filter_: Filter, *, is_long: bool
) -> None:
    both = OrderedMap[str, tuple[str, ...]]({cast.alice.pubkey: (), cast.bob.pubkey: ()})
    den = Group("den", flags=frozenset({Flag.PRIVATE}), members=both)
    viewer = Viewer(frozenset({cast.bob.pubkey}))
    seen = visibility_for(viewer, RULES, Actors(), GROUPS.with_group(den))

    def join() -> None:
        put(town.store, den)

    meanwhile = Meanwhile(town.store, join, lambda: None)
    monkeypatch.setattr(town.store._partitions, "of", meanwhile.of)
    query = PageQuery(filter_, seen, 999, town.store.committed(), 0, 999)
    page = await town.store.page(query, is_long=is_long)
    assert list(page.raws) == in_order(*town.readable(filter_, seen))


@pytest.mark.parametrize("is_closed", [False, True], ids=["closed now", "closed before"])
@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("filter_", OF_KINDS, ids=map(str, range(len(OF_KINDS))))
async def test_rows_of_a_closed_group_that_are_not_moved_yet_are_in_a_page_of_its_member(
    town: Town, monkeypatch: pytest.MonkeyPatch, filter_: Filter, *, is_long: bool, is_closed: bool
) -> None:
    """Who becomes a member, or whose group is closed, while the page is read."""
    store = town.store
    shown = Group("his", members=BOB)
    await change(store, lambda plan: plan.groups.update({"his": shown}))
    await town.add("his", range(0, 90, 3))
    if is_closed:
        await change(store, lambda plan: plan.groups.update({"his": GROUPS.by_id["his"]}))
    hidden = Group("his", flags=frozenset({Flag.HIDDEN}), members=ALICE)
    seen = visibility_for(READERS["a member"], RULES, Actors(), GROUPS.with_group(hidden))
    if is_closed and is_long:  # the query finds the partitions itself
        put(store, hidden)
    else:
        meanwhile = Meanwhile(store, lambda: put(store, hidden), lambda: None)
        monkeypatch.setattr(store._partitions, "of", meanwhile.of)
    query = PageQuery(filter_, seen, 999, store.committed(), 0, 999)
    page = await store.page(query, is_long=is_long)
    assert list(page.raws) == in_order(*town.readable(filter_, seen))


@pytest.mark.parametrize("comes_back", [False, True], ids=["moved", "moved and back"])
@pytest.mark.parametrize("filter_", FILTERS[:-1], ids=map(str, range(len(FILTERS) - 1)))
async def test_rows_that_are_moved_while_a_page_is_read_are_in_it(
    town: Town, monkeypatch: pytest.MonkeyPatch, filter_: Filter, *, comes_back: bool
) -> None:
    shown = Group("his", members=ALICE)
    hidden = Group("his", flags=frozenset({Flag.HIDDEN}), members=ALICE)
    store = town.store
    await change(store, lambda plan: plan.groups.update({"his": shown}))
    await town.add("his", range(0, 90, 3))
    await town.settle()
    viewer = Viewer(frozenset({cast.alice.pubkey}))
    groups = GROUPS.with_group(hidden)
    seen = visibility_for(viewer, RULES, Actors(), groups)

    def becomes(group: Group) -> None:
        put(store, group)
        while store._writer.has_moves:
            store._writer.repartition()

    later = shown if comes_back else hidden
    meanwhile = Meanwhile(store, lambda: becomes(hidden), lambda: becomes(later))
    monkeypatch.setattr(store._partitions, "of", meanwhile.of)
    query = PageQuery(filter_, seen, 999, store.committed(), 0, 999)
    page = await store.page(query, is_long=True)
    assert list(page.raws) == in_order(*town.readable(filter_, seen))


def put(store: SqliteStore, group: Group) -> None:
    """Commit it at once, on the loop."""
    plan = WritePlan()
    plan.groups[group.id] = group
    store._writer.append(NOTHING_WANTED, lambda _: plan)


@pytest.mark.parametrize("number", [3, 17, 40])
@pytest.mark.parametrize("kinds", [[30078], [0, 30078], [1, 30078]])
async def test_items_of_many_authors_are_not_nested_too_deep_for_sqlite(
    town: Town, number: int, kinds: list[int]
) -> None:
    """SQLite up to 3.45, for a member under the packaged rules: "parser stack overflow"."""
    seen = visibility_for(READERS["a member"], packaged_rules(), Actors(), GROUPS)
    filter_ = asked(kinds=kinds, authors=[f"{at:064x}" for at in range(number)])
    assert await items(town.store, filter_, seen, limit=3) == []
