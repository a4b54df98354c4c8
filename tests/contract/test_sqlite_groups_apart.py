"""Long reads of SqliteStore pass over no rows of groups that their reader may not read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

import pytest

from relay.access.actors import Actors, Household
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from relay.storage.sqlite.sql import scans
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import TERMS, asked, change, in_order, stored, unsigned, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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
FILTERS = [
    asked(kinds=[1]),
    asked(kinds=[*KINDS]),
    asked(kinds=[*KINDS], since=100, until=150),
    asked(kinds=[7, 9002], until=150),
    asked(kinds=[*KINDS, *range(100, 113)]),
]
PAGE = 20


class Town:
    """A store with rows of no group and of several groups."""

    def __init__(self, store: SqliteStore, path: Path) -> None:
        self.store = store
        self._path = path
        self.rows: list[Stored] = []

    async def add(self, group: str | None, times: range, kinds: tuple[int, ...] = KINDS) -> None:
        events = [
            unsigned(cast.carol, kind, content=f"{group} {n}", at=at)
            for n, at in enumerate(times)
            for kind in kinds
        ]
        results = await write(self.store, *events, group=group)
        self.rows += [row for row in results if isinstance(row, Stored)]

    def readable(self, filter_: Filter, seen: Visibility) -> list[Event]:
        return [
            row.event
            for row in self.rows
            if filter_.matches(row.event) and seen.may_read(row, filter_)
        ]

    def steps(self, query: Query) -> tuple[list[object], int]:
        """What it finds, and the instructions of SQLite that it takes."""
        with closing(sqlite3.connect(self._path)) as db:
            worked = count()
            db.set_progress_handler(lambda: next(worked) < 0, 100)
            return [value for (value,) in db.execute(*query)], next(worked) * 100

    async def page(
        self, filter_: Filter, seen: Visibility, after: Place | None = None
    ) -> tuple[list[object], int, Place | None]:
        query = PageQuery(filter_, seen, 500, self.store.committed(), 0, PAGE, after)
        page = await self.store.page(query, is_long=True)
        found, steps = self.steps(self.store._compiler.page(query, "e.raw", is_long=True))
        assert found == list(page.raws)
        return found, steps, page.next


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    path = tmp_path / "rookery.db"
    store = await SqliteStore.open(path, TERMS)
    await change(store, lambda plan: plan.groups.update({**GROUPS.ended, **GROUPS.by_id}))
    town = Town(store, path)
    for group in (None, "open", "den", "gone", "unknown"):
        await town.add(group, range(0, 180, 3))
    await town.add("open", range(90, 270, 3))
    yield town
    await store.close()


async def costs(town: Town, seen: Visibility) -> list[int]:
    """The steps of some long reads, which find what they should."""
    steps = []
    for filter_ in FILTERS:
        wanted = town.readable(filter_, seen)
        ordered = in_order(*wanted)
        place = None
        for start in range(0, 100, PAGE):
            found, taken, place = await town.page(filter_, seen, place)
            assert found == ordered[start : start + PAGE]
            steps.append(taken)
            if place is None:
                break
        compiler = town.store._compiler
        for filters in ([filter_], [filter_, filter_]):
            number, taken = town.steps(compiler.count(filters, seen, now=0, is_long=True))
            assert number == [len(wanted)]
            steps.append(taken)
        by, taken = town.steps(compiler.authors(filter_, seen, now=0, at_most=9, is_long=True))
        assert {*by} == {bytes.fromhex(event.pubkey) for event in wanted}
        steps.append(taken)
    return steps


@pytest.mark.parametrize("repeated", [0, 12_288], ids=["long conditions", "short conditions"])
@pytest.mark.parametrize("reader", READERS)
async def test_rows_of_groups_that_a_reader_may_not_read_cost_him_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch, reader: str, repeated: int
) -> None:
    """Somebody wrote 300,000 notes into a private group: each page of all notes then took 0.1 s,
    and others waited for it."""
    monkeypatch.setattr(scans, "_REPEATED_CHARS", repeated)
    seen = visibility_for(READERS[reader], RULES, Actors(), GROUPS)
    before = await costs(town, seen)
    for group in ("his", "unknown"):
        await town.add(group, range(270, 2_270))
    for few, many in zip(before, await costs(town, seen), strict=True):
        assert many <= few + 500


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
    named = unsigned(cast.bob, 1, [["p", reader]], at=40)
    town.rows.append(await stored(town.store, named, group="his"))
    seen = visibility_for(Viewer(frozenset({reader})), [rule], people, groups)
    assert any(
        event.content[:3] == "his" or event is named for event in town.readable(FILTERS[0], seen)
    )
    await costs(town, seen)


async def test_a_page_looks_once_into_each_group(town: Town) -> None:
    """Anybody may make some thousands that all may read."""
    names = [f"group {number}" for number in range(300)]
    made = {name: Group(name) for name in names}
    await change(town.store, lambda plan: plan.groups.update(made))
    groups = GROUPS
    for name in names:
        groups = groups.with_group(made[name])
        await town.add(name, range(300, 330), (1,))
    seen = visibility_for(ANONYMOUS, RULES, Actors(), groups)
    filter_ = asked(kinds=[1])
    found, steps, _ = await town.page(filter_, seen)
    assert found == in_order(*town.readable(filter_, seen))[:PAGE]
    assert steps < 300 * len(names)


async def test_a_page_passes_once_over_the_rows_of_a_second(town: Town) -> None:
    seen = visibility_for(ANONYMOUS, RULES, Actors(), GROUPS)
    events = [unsigned(cast.carol, 1, content=f"{n}", at=900) for n in range(2_000)]
    await write(town.store, *events, group="open")
    ordered, place = in_order(*events), None
    for start in range(0, len(events), PAGE):
        found, steps, place = await town.page(asked(kinds=[1]), seen, place)
        assert found == ordered[start : start + PAGE]
        assert steps < 25 * len(events)
