"""Reading: `may_read` equals its SQL; the gate closes only queries without readable rows; a
membership or an AUTH hides nothing."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from policies import load
from relay.access.actors import Attestations
from relay.access.read_rules import judged_by_text
from relay.access.visibility import ANONYMOUS, Reading, Viewer, row_readers, visibility_for
from relay.groups.group import Group, Groups
from relay.groups.key_map import KeyMap, OrderedMap
from relay.lifecycle.rows import Found, Keep, Stored, Tie, WritePlan, outline
from relay.lifecycle.versions import plan_for
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.agents import Attestation
from relay.nostr.filters import Filter, filter_from
from relay.nostr.kinds import GROUP_RECORDS, GROUP_STATE
from relay.storage import PageQuery
from relay.storage.hashes import Hashes
from relay.storage.postgres.hashes import KeyedHashes
from relay.storage.postgres.sql.filters import Compiler as PostgresCompiler
from relay.storage.postgres.sql.words import Words
from relay.storage.sqlite import partition_moves, partitions
from relay.storage.sqlite.loop_reader import LoopReader
from relay.storage.sqlite.sql import conditions, scans
from relay.storage.sqlite.sql import filters as sql_filters
from relay.storage.sqlite.sql.filters import Compiler
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.tag_buffer import TagBuffer
from relay.storage.tokens import Tokenizer
from tests import cast
from tests.contract.test_store_items import ascending, items
from tests.contract.writing import (
    NOTHING_WANTED,
    TERMS,
    asked,
    group_of,
    in_order,
    read_in_pages,
)
from tests.effort import examples
from tests.property import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from relay.access.actors import Actors
    from relay.access.read_rules import ReadRule, Target
    from relay.access.visibility import Visibility
    from relay.groups.actions import Flag
    from relay.nostr.event import Event
    from relay.storage import Store
    from relay.storage.sqlite.sql.conditions import Query


def noted(drafts: st.SearchStrategy[world.Draft]) -> st.SearchStrategy[list[Any]]:
    """Drafts with any `quiet`, and any `group` if they have no `h`, which would name it."""
    of_any = st.tuples(drafts, world.groups_or_none, st.booleans())
    return st.lists(of_any.map(_of_its_group), min_size=1, max_size=10)


def _of_its_group(
    noted: tuple[world.Draft, str | None, bool],
) -> tuple[world.Draft, str | None, bool]:
    draft, group, quiet = noted
    has_h = draft.h is not None and draft.kind not in GROUP_STATE
    return draft, draft.h if has_h and group is not None else group, quiet


class Bounds(NamedTuple):
    """Over which rows of partitions are found in another way in SQLite."""

    merged: int
    listed: int
    known: int
    mixed: int
    near: int
    few: int

    @contextmanager
    def patched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sql_filters, "_MAX_PAIRS", self.merged)
            patched.setattr(conditions, "MAX_PARTITIONS", self.listed)
            patched.setattr(partitions, "MOST_PARTITIONS", self.known)
            patched.setattr(conditions, "_MOST_SCANNED", self.mixed)
            patched.setattr(scans, "_NEAR", self.near)
            patched.setattr(scans, "_FEW", self.few)
            yield


USUAL = Bounds(32, 32, 4096, 4096, 2000, 5000)
bounds = st.just(USUAL) | st.builds(
    Bounds,
    merged=st.sampled_from([1, 4, 32]),
    listed=st.sampled_from([1, 2, 32]),
    known=st.sampled_from([0, 4096, 4096]),
    mixed=st.sampled_from([0, 4096, 4096]),
    near=st.sampled_from([0, 2, 2000]),
    few=st.sampled_from([0, 5000]),
)


@dataclass(frozen=True, slots=True)
class Past:
    """What the groups were when half of the rows were written, and what became of these."""

    flags: Mapping[str, frozenset[Flag]]
    flushes: int
    moves: int


pasts = st.builds(
    Past,
    flags=st.fixed_dictionaries(dict.fromkeys((*world.GROUPS, "gone"), world.flags)),
    flushes=st.sampled_from([0, 0, 9]),
    moves=st.sampled_from([0, 1, 2, 9]),
)


@dataclass(frozen=True, slots=True)
class ReadCase:
    """Stored rows, actors and groups."""

    drafts: Sequence[tuple[world.Draft, str | None, bool]]
    groups: Groups
    actors: Actors
    rules: Sequence[ReadRule]
    past: Past
    bounds: Bounds


read_cases = st.builds(
    ReadCase,
    noted(world.drafts),
    world.groups_of_the_world(),
    world.peoples,
    world.rule_sets,
    pasts,
    bounds,
)


pointing_cases = st.builds(
    ReadCase,
    noted(world.pointing_drafts),
    world.groups_of_the_world(),
    world.peoples,
    world.pointing_rule_sets,
    pasts,
    bounds,
)
"""Rows that share tags, and rules with targets."""


@lru_cache
def packaged_rules() -> tuple[ReadRule, ...]:
    with tempfile.TemporaryDirectory() as folder:
        return load(folder, MEMORY_SYSTEMS).read_rules


@st.composite
def packaged_cases(draw: st.DrawFn) -> ReadCase:
    rules = packaged_rules()
    return ReadCase(
        draw(noted(world.drafts_about(rules))),
        draw(world.groups_of_the_world()),
        draw(world.peoples),
        rules,
        draw(pasts),
        draw(bounds),
    )


@st.composite
def packaged_filters(draw: st.DrawFn) -> Filter:
    return draw(world.filters(world.kinds_in(packaged_rules())))


async def played(store: Store, case: ReadCase) -> list[Stored]:
    """Write the case into a store; returns its rows."""
    rows: list[Stored] = []
    events: list[Event] = []
    half = len(case.drafts) // 2

    def decide(drafts: Sequence[tuple[world.Draft, str | None, bool]], found: Found) -> WritePlan:
        plan = WritePlan()
        for draft, group, quiet in drafts:
            event = draft.event(events)
            if event.id in [other.id for other in events]:
                continue
            events.append(event)
            result = plan_for(
                events[-1], group, Keep.ALL, found, plan, now=0, tie=Tie.HIGH, quiet=quiet
            )
            if isinstance(result, Stored):
                rows.append(result)
        return plan

    await world.put_groups(store, earlier(case))
    await store.append(NOTHING_WANTED, partial(decide, case.drafts[:half]))
    await world.put_groups(store, case.groups)
    await store.append(NOTHING_WANTED, partial(decide, case.drafts[half:]))
    if isinstance(store, SqliteStore):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(partition_moves, "MOST_CHANGES", 4)
            for _ in range(case.past.flushes):
                await store._writing.run(store._writer.flush_some)
            for _ in range(case.past.moves):
                await store._writing.run(store._writer.repartition)
    return rows


def earlier(case: ReadCase) -> Groups:
    groups = Groups()
    for group_id in (*case.groups.by_id, "gone"):
        group = case.groups.get(group_id) or Group(group_id)
        groups = groups.with_group(replace(group, flags=case.past.flags[group_id]))
    return groups


def readable(rows: Sequence[Stored], filter_: Filter, visibility: Visibility) -> set[str]:
    return {
        row.event.id
        for row in rows
        if filter_.matches(row.event)
        and visibility.may_read(row, filter_, readable_targets(rows, row, visibility))
    }


def readable_targets(
    rows: Sequence[Stored], row: Stored, visibility: Visibility
) -> frozenset[Target]:
    return frozenset(
        [
            target
            for target, value in visibility.targets_of(row)
            if visibility.may_read_one_of(rows, target, value)
        ]
    )


def seen(case: ReadCase, viewer: Viewer, groups: Groups | None = None) -> Visibility:
    return visibility_for(viewer, case.rules, case.actors, groups or case.groups)


async def may_read_equals_its_sql(
    new_store: world.NewStore, case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    with case.bounds.patched():
        await _may_read_equals_its_sql(new_store, case, asking)


async def _may_read_equals_its_sql(
    new_store: world.NewStore, case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    async with new_store() as store:
        rows = await played(store, case)
        for viewer, filter_ in [(ANONYMOUS, asked()), *asking]:
            visibility = seen(case, viewer)
            for one in (filter_, asked()):
                given_out = await world.ids_seen(store, one, visibility)
                assert len(given_out) == len(set(given_out))
                assert set(given_out) == readable(rows, one, visibility)
            counted = [filter_, *[each for _, each in asking]]
            wanted = set[str]().union(*[readable(rows, each, visibility) for each in counted])
            assert await store.count(counted, visibility, now=0) == len(wanted)
            for row in rows:
                targets = readable_targets(rows, row, visibility)
                reading_agrees(row, visibility, targets)


def reading_agrees(row: Stored, visibility: Visibility, targets: frozenset[Target]) -> None:
    """What live delivery asks once for all filters of a viewer says the same as `may_read`."""
    reading = visibility.reading(row, targets)
    naming = [
        Filter(**{name: frozenset({"0" * 64})})  # type: ignore[arg-type]
        for name in ("ids", "authors")
    ]
    naming.append(Filter(tags=tuple((name, frozenset("x")) for name in "abcdeghpqtx")))
    every = Filter(ids=naming[0].ids, authors=naming[1].authors, tags=naming[2].tags)
    answers = [visibility.may_read(row, each, targets) for each in (None, *naming, every)]
    match reading:
        case Reading.NEVER:
            assert not any(answers)
        case Reading.ALWAYS:
            assert all(answers)
        case Reading.BY_FILTER:
            # With `only_by = []` no filter will do.
            asked_for = [rule.only_by for rule in visibility.rules if rule.only_by is not None]
            assert not answers[0]
            assert answers[-1] or not all(asked_for)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(read_cases, st.lists(st.tuples(world.viewers, world.filters()), min_size=1, max_size=4))
def test_may_read_equals_its_sql(
    new_store: world.NewStore, case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    world.run(may_read_equals_its_sql(new_store, case, asking))


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(pointing_cases, st.lists(st.tuples(world.viewers, world.filters()), max_size=3))
def test_may_read_equals_its_sql_for_rows_with_targets(
    new_store: world.NewStore, case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    world.run(may_read_equals_its_sql(new_store, case, asking))


@pytest.mark.proves("G-16")
@pytest.mark.slow
@settings(max_examples=examples(120))
@given(
    packaged_cases(),
    st.lists(st.tuples(world.viewers, packaged_filters()), min_size=1, max_size=4),
)
def test_may_read_equals_its_sql_with_the_packaged_rules(
    new_store: world.NewStore, case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    world.run(may_read_equals_its_sql(new_store, case, asking))


@settings(max_examples=examples(1000))
@given(
    packaged_cases() | read_cases,
    world.groups_of_the_world(),
    st.lists(st.tuples(world.viewers, packaged_filters()), min_size=1, max_size=4),
)
def test_what_a_store_keeps_of_lasting_rights_is_what_it_would_make_with_other_groups(
    case: ReadCase, later: Groups, asking: list[tuple[Viewer, Filter]]
) -> None:
    compilers: list[Callable[[], Any]] = [compiler_of_sqlite, compiler_of_postgres]
    for (viewer, filter_), new_compiler in product(asking, compilers):
        before = seen(case, viewer)
        after = visibility_for(viewer, case.rules, case.actors, later, lasting=before.lasting)
        compiler = new_compiler()
        composed(compiler, filter_, before)
        assert composed(compiler, filter_, after) == composed(new_compiler(), filter_, after)


def compiler_of_sqlite() -> Compiler:
    return Compiler(Hashes(bytes(32)), TERMS.index_tags, TagBuffer(10), lambda *_: [], lambda: "[]")


def compiler_of_postgres() -> PostgresCompiler:
    return PostgresCompiler(KeyedHashes(bytes(32)), Words(Tokenizer()))


def composed(compiler: Any, filter_: Filter, visibility: Visibility) -> list[object]:
    """Queries for a page, and for the partitions that it reads."""
    page = PageQuery(filter_, visibility, 5, upto=9, now=1, size=5)
    if isinstance(compiler, PostgresCompiler):
        return [compiler.page(page, ("raw",))]
    return [
        compiler.page(page, "e.raw", frozenset()),
        compiler.partitions(visibility, filter_.kinds),
    ]


grouped_cases = st.builds(
    ReadCase,
    noted(world.group_drafts),
    world.groups_of_the_world(),
    world.peoples,
    world.group_rule_sets,
    pasts,
    bounds,
)


def asked_of_kinds(kinds: list[int]) -> st.SearchStrategy[list[tuple[Viewer, Filter]]]:
    """Viewers, and filters without any condition but kinds and times."""
    of_kinds = st.lists(st.sampled_from(kinds), min_size=1, max_size=8)
    times = {"since": world.times, "until": world.times}
    drawn = st.fixed_dictionaries({"kinds": of_kinds}, optional=times)
    filters = drawn.map(lambda asked: filter_from(asked, TERMS))
    return st.lists(st.tuples(world.viewers, filters), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(grouped_cases, asked_of_kinds(world.GROUP_KINDS))
def test_a_long_read_of_kinds_gives_the_readable_rows(
    case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    """It leaves out groups that the viewer may not read: see `ReadConditions.partitions`."""
    long_reads_give_the_readable_rows(case, asking)


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(st.data(), packaged_cases())
def test_a_long_read_of_kinds_gives_what_the_packaged_rules_allow(
    data: st.DataObject, case: ReadCase
) -> None:
    asking = data.draw(asked_of_kinds(world.kinds_in(packaged_rules())))
    long_reads_give_the_readable_rows(case, asking)


@st.composite
def asked_of_authors(draw: st.DrawFn) -> list[tuple[Viewer, Filter]]:
    """Viewers, and filters with authors and a tag that few events share."""
    asking = []
    for _ in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(["kinds", "since", "#t", "#p"]), max_size=2))
        drawn = {name: draw(world.CONDITIONS[name]) for name in ["authors", "#d", *names]}
        asking.append((draw(world.viewers), filter_from(drawn, TERMS)))
    return asking


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(read_cases | pointing_cases | grouped_cases | packaged_cases(), asked_of_authors())
def test_a_long_read_of_authors_with_a_tag_gives_the_readable_rows(
    case: ReadCase, asking: list[tuple[Viewer, Filter]]
) -> None:
    """It scans the authors' rows where the tag has many: see `with_own`."""
    of_authors = case.bounds._replace(few=0)
    long_reads_give_the_readable_rows(replace(case, bounds=of_authors), asking)


def long_reads_give_the_readable_rows(case: ReadCase, asking: list[tuple[Viewer, Filter]]) -> None:
    async def law() -> None:
        async with world.sqlite_store() as store:
            rows = await played(store, case)
            by_id = {row.event.id: row.event for row in rows}
            for viewer, filter_ in asking:
                visibility = seen(case, viewer)
                wanted = readable(rows, filter_, visibility)
                ordered = in_order(*[by_id[each] for each in wanted])
                for size in (2, 100):
                    pages = await read_in_pages(store, filter_, visibility, size=size)
                    assert [raw for page in pages for raw in page] == ordered
                for limit in (None, 3):
                    found = await items(store, filter_, visibility, limit=limit)
                    assert found == ascending(ordered[:limit])
                both = wanted | readable(rows, asking[0][1], visibility)
                for filters, ids in (([filter_], wanted), ([filter_, asking[0][1]], both)):
                    assert await store.count(filters, visibility, now=0) == len(ids)
                keys = {bytes.fromhex(by_id[each].pubkey) for each in wanted}
                authors = await store.authors(filter_, visibility, now=0, at_most=9)
                assert authors is not None
                assert {*authors} == keys

    with case.bounds.patched(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(LoopReader, "read", only_partitions(LoopReader.read))
        world.run(law())


def only_partitions(read: Callable[..., Any]) -> Callable[..., Any]:
    """The loop reads nothing else."""

    def patched(reader: LoopReader, query: Query, *more: Any) -> Any:
        return read(reader, query, *more) if query.sql.startswith("SELECT g.partition") else None

    return patched


KEYS = [each.pubkey for each in (*world.ACTORS, cast.dave, cast.person("nobody"))]
EVERYBODY = [
    Viewer(frozenset(keys), attested=frozenset(attested))
    for number in range(3)
    for keys in combinations(KEYS, number)
    for attested in [(), *([Attestation(key, owner)] for key in keys for owner in KEYS)]
]


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(read_cases | packaged_cases(), st.sampled_from(Attestations))
def test_viewers_who_are_alike_read_a_row_alike(case: ReadCase, attestations: Attestations) -> None:
    """Live delivery asks for one of them."""
    case = replace(case, actors=replace(case.actors, attestations=attestations))
    everybody = [(viewer, seen(case, viewer)) for viewer in EVERYBODY]
    for draft, group, quiet in case.drafts[:3]:
        row = Stored(1, draft.event([]), group, quiet)
        readers = row_readers(row, case.rules, case.actors, case.groups)
        if readers is None:
            continue
        found: dict[object, Reading] = {}
        for viewer, visibility in everybody:
            reading = visibility.reading(row)
            assert found.setdefault(readers.alike(viewer), reading) is reading, viewer


@pytest.mark.proves("B-11", "B-14", "B-17")
@pytest.mark.slow
@settings(max_examples=examples(120))
@given(read_cases | packaged_cases(), st.sampled_from(Attestations), world.filters())
def test_an_attested_agent_reads_no_more_than_its_owner(
    new_store: world.NewStore, case: ReadCase, attestations: Attestations, filter_: Filter
) -> None:
    """And what it may read beside, a key without owner may read that is allowed here."""
    agent, owner = cast.carol.pubkey, cast.alice.pubkey
    banned = case.actors.banned - {owner}  # else the two keys together read nothing
    people = replace(case.actors, attestations=attestations, agents=frozenset(), households=())
    people = replace(people, banned=banned)
    case = replace(case, actors=people)
    attested = frozenset({Attestation(agent, owner)})
    viewer, allowed = Viewer(frozenset({agent}), attested=attested), Viewer(frozenset({agent}))
    world.run(may_read_equals_its_sql(new_store, case, [(viewer, filter_)]))
    ours, theirs = seen(case, viewer), seen(case, Viewer(frozenset({agent, owner})))
    as_known = replace(case, actors=replace(people, allowed=people.allowed | {agent}))
    known, alone = seen(as_known, allowed), seen(case, allowed)
    for draft, group, quiet in case.drafts:
        row = Stored(1, draft.event([]), group, quiet)
        may = ours.may_read(row, filter_)
        assert may <= theirs.may_read(row, filter_)
        assert may >= alone.may_read(row, filter_)
        if attestations is not Attestations.GROUPS:
            assert may <= known.may_read(row, filter_)
        if attestations is Attestations.OFF:
            assert may is alone.may_read(row, filter_)


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(
    read_cases | packaged_cases(),
    world.viewers,
    world.filters(),
    st.sampled_from(world.GROUPS),
    world.pubkeys,
)
def test_removing_a_member_makes_no_more_rows_readable(
    new_store: world.NewStore,
    case: ReadCase,
    viewer: Viewer,
    filter_: Filter,
    group_id: str,
    member: str,
) -> None:
    group = case.groups.get(group_id)
    if group is None:
        return
    left = {key: roles for key, roles in group.members.items() if key != member}
    after = case.groups.with_group(replace(group, members=OrderedMap(left)))

    async def law() -> None:
        async with new_store() as store:
            await played(store, case)
            for who in (viewer, Viewer(frozenset({member}))):
                before_ids = await world.ids_seen(store, filter_, seen(case, who))
                await world.put_groups(store, after)
                after_ids = await world.ids_seen(store, filter_, seen(case, who, after))
                await world.put_groups(store, case.groups)
                assert set(after_ids) <= set(before_ids)

    world.run(law())


@settings(max_examples=examples(1000))
@given(read_cases | packaged_cases(), world.viewers)
def test_an_outline_is_judged_as_its_row_unless_a_rule_looks_at_its_text(
    case: ReadCase, viewer: Viewer
) -> None:
    by_text, visibility = judged_by_text(case.rules), seen(case, viewer)
    for row in _rows_of(case):
        event = row.event
        bare = outline(event.kind, event.pubkey, row.group, row.expires_at, quiet=row.quiet)
        if event.kind not in by_text:
            assert visibility.reading(bare) is visibility.reading(row)


@settings(max_examples=examples(150))
@given(read_cases | packaged_cases(), world.viewers, world.filters())
def test_more_keys_never_read_less(case: ReadCase, viewer: Viewer, filter_: Filter) -> None:
    if viewer.keys & case.actors.banned:
        return  # who shows that they are banned sees nothing
    rows = _rows_of(case)
    alone = readable(rows, filter_, seen(case, ANONYMOUS))
    assert alone <= readable(rows, filter_, seen(case, viewer))
    for key in viewer.keys:
        one = readable(rows, filter_, seen(case, Viewer(frozenset({key}))))
        assert one <= readable(rows, filter_, seen(case, viewer))


@pytest.mark.proves("N86-11", "N86-12")
@settings(max_examples=examples(150))
@given(
    read_cases | packaged_cases(),
    world.viewers,
    world.filters(),
    st.frozensets(world.pubkeys, min_size=1, max_size=2),
)
def test_a_ban_hides_the_rows_of_the_key_and_no_others(
    case: ReadCase, viewer: Viewer, filter_: Filter, banned: frozenset[str]
) -> None:
    rows = _rows_of(case)
    free = replace(case, actors=replace(case.actors, banned=frozenset()))
    bound = replace(case, actors=replace(case.actors, banned=banned))
    before = readable(rows, filter_, seen(free, viewer))
    after = readable(rows, filter_, seen(bound, viewer))
    if viewer.keys & banned:
        assert after == set()
    else:
        left = {row.event.id for row in rows if row.event.pubkey not in banned}
        assert after == before & left


@st.composite
def narrow_filters(draw: st.DrawFn) -> Filter:
    """With one condition, so that the gate may close them."""
    kinds, ds = world.kinds_in(packaged_rules()), world.ds_in(packaged_rules())
    narrow = {
        "kinds": st.lists(st.sampled_from(kinds), min_size=1, max_size=2),
        "#h": st.lists(st.sampled_from([*world.GROUPS, "gone"]), min_size=1, max_size=2),
    }
    wide = {
        "authors": world.CONDITIONS["authors"],
        "#p": world.CONDITIONS["#p"],
        "#d": st.lists(st.sampled_from(ds), min_size=1, max_size=2),
    }
    names = draw(st.sampled_from([["kinds"], ["#h"], ["kinds", "#h"]]))
    more = draw(st.sampled_from([[], [], ["authors"], ["#p"], ["#d"], ["authors", "#d"]]))
    drawn = {name: draw({**narrow, **wide}[name]) for name in [*names, *more]}
    return filter_from(drawn, TERMS)


@settings(max_examples=examples(300))
@given(packaged_cases(), world.viewers, st.lists(narrow_filters(), min_size=1, max_size=2))
def test_the_gate_closes_only_queries_without_readable_rows(
    case: ReadCase, viewer: Viewer, filters: list[Filter]
) -> None:
    rows = [structs.replace(row, group=group_of(row.event)) for row in _rows_of(case)]
    there = case.groups.by_id.keys() | case.groups.ended.keys()
    # The relay stores no record of a group that never was.
    rows = [row for row in rows if row.group in there or row.event.kind not in GROUP_RECORDS]
    visibility = seen(case, viewer, _involving(case.groups, rows))
    if visibility.gate(filters) is not None:
        for filter_ in filters:
            assert readable(rows, filter_, visibility) == set()


def _involving(groups: Groups, rows: Sequence[Stored]) -> Groups:
    """These groups, with `involved` set from the 9000, 9001 and 9021 in the rows."""
    for group in list(groups.by_id.values()):
        involved = set(group.members)
        for row in rows:
            if row.group == group.id and row.event.kind in GROUP_RECORDS:
                involved.update([row.event.pubkey, *row.event.tag_values("p")])
        groups = groups.with_group(replace(group, involved=KeyMap(dict.fromkeys(involved, False))))
    return groups


def _rows_of(case: ReadCase) -> list[Stored]:
    events: list[Event] = []
    for draft, _, _ in case.drafts:
        events.append(draft.event(events))
    return [
        Stored(number, event, group, quiet)
        for number, (event, (_, group, quiet)) in enumerate(
            zip(events, case.drafts, strict=True), 1
        )
    ]
