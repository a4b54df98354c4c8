"""Partitions: whatever is written, made guarded or open, moved and flushed in whatever order, every
reader finds what he may read, and the file agrees with itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.actors import Actors
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored
from relay.nostr.kinds import KindSet
from relay.storage.sqlite import partition_moves
from relay.storage.sqlite.checkpoints import Checkpoints
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.writing import (
    EVERYTHING,
    TERMS,
    asked,
    change,
    in_order,
    read,
    set_groups,
    unsigned,
    write,
)
from tests.effort import examples
from tests.harness.partition_check import faults, flush, move_all, move_some
from tests.property.world import run

if TYPE_CHECKING:
    from relay.lifecycle.rows import WritePlan

GROUPS = ("den", "tea")
KINDS = (1, 7, 9, 300, 9000, 30023)
SHOWN = Match(KindSet.of(9000))
RULES = (
    ReadRule("rows of a group", Match(h=True), frozenset({Who.GROUP, Who.OWNER}), (SHOWN,)),
    ReadRule("what a group is", SHOWN, frozenset({Who.VISIBLE, Who.OWNER})),
)
MEMBERS = OrderedMap[str, tuple[str, ...]]({cast.alice.pubkey: ()})
VIEWERS = (ANONYMOUS, Viewer(frozenset({cast.alice.pubkey})))
FILTERS = (
    asked(),
    asked(kinds=[1]),
    asked(kinds=[*KINDS], since=2),
    asked(tag_t=["a"]),
    asked(tag_t=["a", "b"], kinds=[1, 300]),
    asked(tag_h=["den"]),
    asked(tag_t=["b"], tag_h=["tea", "den"], authors=[cast.carol.pubkey]),
)


class Rows(NamedTuple):
    group: str | None
    rows: list[tuple[int, int, str]]
    """kind, created_at, value of `t`"""


class Flags(NamedTuple):
    group: str
    is_private: bool


class Ends(NamedTuple):
    group: str
    is_public: bool


class Deletes(NamedTuple):
    row: int


class IsPut(NamedTuple):
    """A row of no group into one."""

    row: int
    group: str


row = st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.sampled_from(("a", "b")))
groups = st.sampled_from(GROUPS)
steps = st.lists(
    st.one_of(
        st.builds(Rows, groups | st.none(), st.lists(row, min_size=1, max_size=8)),
        st.builds(Flags, groups, st.booleans()),
        st.sampled_from(["move", "move", "flush", "flush", "restart"]),
        st.builds(Deletes, st.integers(0, 20)),
        st.builds(IsPut, st.integers(0, 20), groups),
        st.builds(Ends, groups, st.booleans()),
    ),
    max_size=16,
)


class World:
    def __init__(self, store: SqliteStore, path: Path) -> None:
        self.store = store
        self._path = path
        self.groups = Groups()
        self.rows: dict[int, Stored] = {}
        self._written = 0

    async def set(self, **flags: bool) -> None:
        made = {
            name: Group(name, flags=frozenset({Flag.PRIVATE} if flag else ()), members=MEMBERS)
            for name, flag in flags.items()
        }
        for group in made.values():
            self.groups = self.groups.with_group(group)
        await set_groups(self.store, **made)

    async def do(self, step: Rows | Flags | Ends | Deletes | IsPut | str) -> None:
        match step:
            case Rows(group, rows):
                await self._write(group, rows)
            case Flags(group, is_private):
                await self.set(**{group: is_private})
            case Ends(group, is_public):
                await self._end(group, EndedGroup(is_public=is_public))
            case Deletes(number):
                for seq in [*self.rows][number : number + 1]:
                    del self.rows[seq]
                    await change(self.store, lambda plan: plan.removes.add(seq))  # noqa: B023
            case IsPut(number, group):
                free = [seq for seq, row in self.rows.items() if row.group is None]
                for seq in free[number : number + 1]:
                    self.rows[seq] = msgspec.structs.replace(self.rows[seq], group=group)
                    await change(self.store, lambda plan: plan.moves.update({seq: group}))  # noqa: B023
            case "move":
                await move_some(self.store)
            case "flush":
                await flush(self.store)
            case "restart":
                await self.store.close()
                self.store = await SqliteStore.open(self._path, TERMS, tag_buffer_rows=20)

    async def _write(self, group: str | None, rows: list[tuple[int, int, str]]) -> None:
        tags = [] if group is None else [["h", group]]
        events = []
        for kind, at, value in rows:
            self._written += 1
            d = ["d", f"{self._written}"]
            events.append(
                unsigned(cast.carol, kind, [*tags, ["t", value], d], f"{self._written}", at)
            )
        for row in await write(self.store, *events):
            assert isinstance(row, Stored)
            self.rows[row.seq] = row

    async def _end(self, group: str, ended: EndedGroup) -> None:
        self.groups = self.groups.without_group(group, ended)
        self.rows = {seq: row for seq, row in self.rows.items() if row.group != group}

        def end(plan: WritePlan) -> None:
            plan.groups[group] = ended
            plan.deleted_groups.add(group)

        await change(self.store, end)

    async def check(self) -> None:
        visibilities = [visibility_for(each, RULES, Actors(), self.groups) for each in VIEWERS]
        for seen in (EVERYTHING, *visibilities):
            for filter_ in FILTERS:
                wanted = [
                    row.event
                    for row in self.rows.values()
                    if filter_.matches(row.event) and seen.may_read(row, filter_)
                ]
                assert await read(self.store, filter_, seen, size=4) == in_order(*wanted)[:4]
                assert await self.store.count([filter_], seen, now=0) == len(wanted)


async def _nothing(self: Checkpoints) -> None:
    self._move_at = float("inf")


async def _law(
    world: World, path: Path, steps: list[Rows | Flags | Ends | Deletes | IsPut | str]
) -> None:
    await world.set(den=True, tea=False)
    for step in steps:
        await world.do(step)
        if step == "move":
            await world.check()
    assert faults(path) == []
    await flush(world.store)
    await move_all(world.store)
    await world.check()
    assert faults(path) == []


@settings(max_examples=examples(100))
@given(steps)
def test_every_reader_finds_what_he_may_read(
    steps: list[Rows | Flags | Ends | Deletes | IsPut | str],
) -> None:
    async def law() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rookery.db"
            world = World(await SqliteStore.open(path, TERMS, tag_buffer_rows=20), path)
            try:
                await _law(world, path, steps)
            finally:
                await world.store.close()

    with (
        patch.object(Checkpoints, "_move_rows", _nothing),
        patch.object(partition_moves, "MOST_CHANGES", 9),
        patch.object(partition_moves, "MOST_LOOKED_AT", 20),
    ):
        run(law())
