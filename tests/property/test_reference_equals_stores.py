"""Every store answers as ReferenceStore, whatever is written, deleted or queried."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from relay.access.quotas import Account, SizedBy
from relay.access.visibility import visibility_for
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.deletion import address_target, event_target, key_target
from relay.lifecycle.rows import Forgotten, Lookups, Slot, Tombstone, Vanish
from relay.lifecycle.versions import History
from relay.nostr.filters import filter_from
from relay.nostr.kinds import KindSet
from relay.storage import PageQuery
from tests.contract.conftest import ReopenablePostgres, ReopenableSqlite
from tests.contract.writing import (
    MAX,
    TERMS,
    Batch,
    change,
    look_up,
    read_in_pages,
    unsigned,
)
from tests.effort import examples, tries
from tests.harness.reference_store import ReferenceStore
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from relay.access.actors import Actors
    from relay.access.read_rules import ReadRule
    from relay.access.visibility import Viewer
    from relay.lifecycle.rows import Found, WritePlan
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.storage import Store
    from tests.contract.conftest import Reopenable
    from tests.harness.postgres import PostgresServer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """A query; `ids` are positions among the events written so far."""

    filters: Sequence[Filter]
    viewer: Viewer
    rules: Sequence[ReadRule]
    actors: Actors
    limit: int
    size: int
    back: int
    """How many of the newest rows the query does not see."""
    now: int


questions = st.builds(
    Question,
    st.lists(world.filters(), min_size=1, max_size=3),
    world.viewers,
    st.just([]) | world.rule_sets,
    world.peoples,
    st.sampled_from([1000, 1000, 1000, 5, 3, 1, 0]),
    st.integers(1, 4),
    st.sampled_from([0, 0, 1, 3]),
    world.nows,
)
asked = st.lists(questions, min_size=1, max_size=3)
histories = st.sampled_from([None, History(1), History(2, days=1), History(9)])
batches = st.lists(world.drafts, min_size=1, max_size=6)
crowds = st.lists(world.drafts, min_size=12, max_size=24)


class Twins(RuleBasedStateMachine):
    """Two stores with the same history."""

    server: PostgresServer | None = None
    """Where the database of the second is; None: it is an SQLite file."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.reference = ReferenceStore()
        self.reopenable: Reopenable = (
            ReopenableSqlite(Path(self.folder.name), tag_buffer_rows=9, synchronous="NORMAL")
            if self.server is None
            else ReopenablePostgres(self.server)
        )
        self.durable = self.do(self.reopenable.open())
        self.groups = Groups()
        self.events: list[Event] = []

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def teardown(self) -> None:
        self.do(self.reopenable.close())
        self.loop.close()
        self.folder.cleanup()

    def both(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """The answer, which must be the same of both."""
        expected = self.do(ask(self.reference))
        answered = self.do(ask(self.durable))
        assert answered == expected
        return expected

    @initialize(drafts=crowds, asked=asked)
    def begin(self, drafts: list[world.Draft], asked: list[Question]) -> None:
        self.write(drafts=drafts, now=0, kept=History(2), asked=asked)

    @rule(drafts=batches, now=world.nows, kept=histories, asked=asked)
    def write(
        self, drafts: list[world.Draft], now: int, kept: History | None, asked: list[Question]
    ) -> None:
        events = list(self.events)
        for draft in drafts:
            events.append(draft.event(events))
        new = events[len(self.events) :]

        async def append(store: Store) -> object:
            batch = Batch(*new, now=now, history=kept)
            head = await store.append(batch.wanted, batch.decide)
            return head, batch.results, batch.plan

        self.both(append)
        self.events = events
        self.ask(asked)

    @rule(drafts=batches)
    def fail(self, drafts: list[world.Draft]) -> None:
        """The invariants check that nothing has changed."""
        batch = Batch(*(draft.event(self.events) for draft in drafts))

        def decide(found: Found) -> WritePlan:
            batch.decide(found)
            raise LookupError

        for store in (self.reference, self.durable):
            batch.results.clear()
            with pytest.raises(LookupError):
                self.do(store.append(batch.wanted, decide))

    @rule(chosen=st.sets(st.integers(0, 12), max_size=3), until=world.times, asked=asked)
    def sweep(self, chosen: set[int], until: int, asked: list[Question]) -> None:
        """Remove rows and add tombstones, as an admin or a sweep does."""
        rows = self.do(self.reference.since(0, 1000))
        gone = [row for number, row in enumerate(reversed(rows)) if number in chosen]

        def plan(out: WritePlan) -> None:
            out.removes.update(row.seq for row in gone)
            for row in gone:
                if row.slot is not None:
                    out.forgotten.append(Forgotten(row.seq, row.slot))
                out.tombstones.append(Tombstone(event_target(row.event.id), "", None, "9005"))
                if row.slot is not None:
                    target = address_target(row.slot)
                    out.tombstones.append(Tombstone(target, row.event.pubkey, until, "sweep"))

        self.both(lambda store: change(store, plan))
        self.ask(asked)

    @rule(
        group_id=st.sampled_from(world.GROUPS),
        flags=world.flags,
        members=world.members,
        asked=asked,
    )
    def change_group(
        self, group_id: str, flags: frozenset[Any], members: dict[str, Any], asked: list[Question]
    ) -> None:
        if group_id in self.groups.ended:
            return
        group = Group(group_id, flags=flags, members=OrderedMap(members))
        self.both(lambda store: change(store, lambda plan: plan.groups.update({group_id: group})))
        self.groups = self.groups.with_group(group)
        self.ask(asked)

    @rule(group_id=st.sampled_from(world.GROUPS), drafts=batches, asked=asked)
    def end_group(self, group_id: str, drafts: list[world.Draft], asked: list[Question]) -> None:
        """Rows written into it in the same batch are deleted too."""
        events = list(self.events)
        for draft in drafts[:2]:
            events.append(draft.event(events))
        events.append(unsigned(world.ACTORS[0], 9008, [["h", group_id]], at=3))
        new = events[len(self.events) :]

        async def append(store: Store) -> int:
            batch = Batch(*new)

            def decide(found: Found) -> WritePlan:
                plan = batch.decide(found)
                plan.deleted_groups.add(group_id)
                plan.groups[group_id] = EndedGroup()
                return plan

            return await store.append(batch.wanted, decide)

        self.both(append)
        self.events = events
        self.groups = self.groups.without_group(group_id)
        self.ask(asked)

    @rule(who=world.actors, until=world.times, drafts=batches, cut=st.integers(0, 3), asked=asked)
    def vanish(
        self, who: SecretKey, until: int, drafts: list[world.Draft], cut: int, asked: list[Question]
    ) -> None:
        """Rows of the same batch are deleted too, before or after the request."""
        events = list(self.events)
        for draft in drafts:
            events.append(draft.event(events))
        new = events[len(self.events) :]
        request = unsigned(who, 62, [["relay", "ALL_RELAYS"]], at=until)

        async def append(store: Store) -> object:
            batch = Batch(*new[:cut], request, *new[cut:], history=History(2))
            lookups: list[object] = []

            def decide(found: Found) -> WritePlan:
                puts = {key: row for key, row in found.rows.items() if row.event.kind == 9000}
                lookups.append((puts, list(found.group_records)))
                return batch.decide(found)

            wanted = replace(batch.wanted, record_groups=frozenset({"den"}))
            head = await store.append(wanted, decide)
            return head, batch.results, batch.plan, lookups

        self.both(append)
        self.events = events
        self.ask(asked)
        gone = Vanish(request.pubkey, request.created_at)
        rows = self.do(self.reference.since(0, 1000))
        assert not [row for row in rows if gone.covers(row.event)]

    @rule()
    def restart(self) -> None:
        self.durable = self.do(self.reopenable.restart())

    @rule(asked=asked)
    def ask(self, asked: list[Question]) -> None:
        for question in asked:
            self._ask(question)

    def _ask(self, question: Question) -> None:
        visibility = visibility_for(question.viewer, question.rules, question.actors, self.groups)
        upto = self.do(self.reference.head()) - question.back
        first = question.filters[0]

        async def places(store: Store) -> object:
            found, _ = await store.places(
                PageQuery(
                    first,
                    visibility,
                    limit=question.limit,
                    upto=upto,
                    now=question.now,
                    after=None,
                    size=1000,
                )
            )
            return list(found)

        async def pages(store: Store) -> object:
            pages = await read_in_pages(
                store,
                first,
                visibility,
                limit=question.limit,
                upto=upto,
                now=question.now,
                size=question.size,
            )
            return [raw for page in pages for raw in page]

        async def count(store: Store) -> int:
            return await store.count(question.filters, visibility, now=question.now)

        self.both(places)
        self.both(pages)
        self.both(count)

    @rule(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=5), question=questions)
    def ask_by_id(self, numbers: list[int], question: Question) -> None:
        ids = [self.events[number].id for number in numbers if number < len(self.events)]
        for conditions in ({"ids": ids}, {"ids": ids, "kinds": world.KINDS[:6]}):
            by_id = filter_from(conditions, TERMS)
            self._ask(replace(question, filters=[by_id, *question.filters]))

    @invariant()
    def both_hold_the_same_rows(self) -> None:
        async def rows(store: Store) -> object:
            return await store.head(), list(await store.since(0, 1000))

        self.both(rows)

    @rule(chosen=st.sets(st.integers(0, 9), max_size=3), deadline=st.none() | world.times)
    def sweep_versions(self, chosen: set[int], deadline: int | None) -> None:
        old = list(self.do(self.reference.old_versions(0, 1000)))
        named = [each.row.seq for number, each in enumerate(old) if number in chosen]

        def plan(out: WritePlan) -> None:
            out.dropped_versions.update(named[:1])
            out.version_deadlines.update(dict.fromkeys(named[1:], deadline))

        self.both(lambda store: change(store, plan))

    @invariant()
    def both_hold_the_same_old_versions(self) -> None:
        async def versions(store: Store) -> object:
            old = list(await store.old_versions(0, 1000))
            slots = [each.row.slot for each in old]
            asked = [
                list(await store.versions(slot, before=before, limit=limit, now=2))
                for slot in slots
                if slot is not None
                for limit in (2, 9)
                for before in (None, old[0].row.seq)
            ]
            named = [
                await store.old_version(slot, old[0].row.event.id)
                for slot in slots
                if slot is not None
            ]
            due = await store.overdue_versions(3, 1000)
            return old, asked, named, {each.row.seq for each in due}

        old: Any = self.both(versions)
        held = {row.slot for row in self.do(self.reference.since(0, 1000))}
        assert {each.row.slot for each in old[0]} <= held

    @invariant()
    def both_know_how_much_they_hold(self) -> None:
        accounts = frozenset(
            Account(pubkey, KindSet.of((0, 9999), 30_095), h)
            for pubkey in (None, world.ACTORS[0].pubkey)
            for h in (None, True, False, frozenset(world.GROUPS[:1]))
        )

        async def sizes(store: Store) -> object:
            found = await look_up(store, usage=list(accounts))
            counted = {account: found.usage.size_of(account) for account in accounts}
            return counted, [await store.sizes(by, 1000) for by in SizedBy]

        self.both(sizes)

    @invariant()
    def both_find_the_same_facts(self) -> None:
        events = self.events[-40:]
        ids = {event.id for event in events}
        slots = {Slot(event.pubkey, event.kind, event.d) for event in events}
        slots |= {Slot(event.pubkey, event.kind, "") for event in events}
        wanted = Lookups(
            frozenset(ids),
            frozenset(slots),
            frozenset(
                {event_target(event_id) for event_id in ids}
                | {address_target(slot) for slot in slots}
                | {key_target(key.pubkey) for key in world.ACTORS}
            ),
            frozenset((group, event_id[:8]) for group in world.GROUPS for event_id in ids),
            frozenset(world.GROUPS),
        )

        async def facts(store: Store) -> object:
            found = await look_up(
                store,
                ids=list(wanted.ids),
                slots=list(wanted.slots),
                tombstones=list(wanted.tombstones),
                prefixes=list(wanted.id_prefixes),
                groups_with_content=list(wanted.groups_with_content),
            )
            rows = {key: row for key, row in found.rows.items() if key in ids}
            # Of several by one key only the latest counts; a store need not keep the others.
            stones: dict[tuple[str, str], int] = {}
            for target, held in found.tombstones.items():
                for stone in held:
                    key = target, stone.by
                    until = MAX if stone.until is None else stone.until
                    stones[key] = max(stones.get(key, 0), until)
            return (
                found.last_seq,
                rows,
                found.slots,
                stones,
                found.id_prefixes,
                found.groups_with_content,
            )

        self.both(facts)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def test_every_store_equals_the_reference(store: str, request: pytest.FixtureRequest) -> None:
    class Compared(Twins):
        server = request.getfixturevalue("postgres") if store == "postgres" else None

    run_state_machine_as_test(
        Compared,
        settings=settings(
            max_examples=examples(60) if store == "sqlite" else tries(15, 15, 4),
            stateful_step_count=12,
            deadline=None,
        ),
    )
