"""relay/state.py: policies and groups in force, and how they come back after a restart."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.access.visibility import Viewer
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups, ended
from relay.groups.key_map import KeyMap, OrderedMap
from relay.lifecycle.rows import Stored
from relay.nostr.agents import Attestation
from relay.observe import Metrics
from relay.read.fanout import Fanout
from relay.state import RelayState
from relay.storage import PARSED_BYTES
from relay.write.ingest import Ingest
from relay.write.replay import rebuilt_groups
from tests.cast import admin, alice, bob, carol, owner, person, robot
from tests.contract.writing import unsigned, write
from tests.effort import examples
from tests.harness.folders import loaded
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from policies import PolicySet
    from relay.errors import Result
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

relay = person("relay")
RELAY = relay.pubkey
NOW = 1_772_000_000
DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users({alice.pubkey: ()})
CHAT = Stored(7, unsigned(alice, 9, [["h", "den"]]), "den")
NOTE = Stored(8, unsigned(alice, 1))
ALICE, BOB = Viewer(frozenset({alice.pubkey})), Viewer(frozenset({bob.pubkey}))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return loaded(tmp_path_factory.mktemp("policies"), actors=f'[actors]\nowners=["{owner.npub}"]')


@pytest.fixture
def state(policy: PolicySet) -> RelayState:
    return RelayState(policy, Groups().with_group(DEN))


# the state ---------------------------------------------------------------------------------------


def test_what_a_key_may_read_is_held_once_for_all_that_log_in_beside_it(
    policy: PolicySet,
) -> None:
    """A key of 5,000 groups, beside 2,500 made-up keys: 2 GB."""
    alone = Groups()
    for number in range(10):
        alone = alone.with_group(Group(f"{number}").with_users({alice.pubkey: ("admin",)}))
    state = RelayState(policy, alone.with_group(DEN).without_group("den", ended(DEN)))
    views = [
        state.visibility(Viewer(frozenset({alice.pubkey, person(f"{number}").pubkey})))
        for number in range(3)
    ]
    assert "9" in views[0].insider_of
    assert "9" in views[0].admin_of
    assert views[0].was_insider_of == {"den"}
    for name in ("insider_of", "was_insider_of"):
        assert len({id(getattr(view, name)) for view in views}) == 1


def test_a_change_of_a_group_makes_no_union_for_keys_of_many_groups(policy: PolicySet) -> None:
    """50 connections with 64 keys of 1,500 groups held the loop for 0.3 s after each change."""
    keys = [person(f"{number}").pubkey for number in range(8)]
    many = [Group(f"{number}").with_users(dict.fromkeys(keys, ("admin",))) for number in range(500)]
    state = RelayState(policy, Groups().with_groups(many).with_group(DEN))
    viewers = [Viewer(frozenset(keys) - {key}) for key in keys]
    for viewer in viewers:
        state.visibility(viewer)
    gc.collect()
    tracemalloc.start()
    try:
        state.adopt(state.groups.with_group(Group("new")))
        before, _ = tracemalloc.get_traced_memory()
        views = [state.visibility(viewer) for viewer in viewers]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 20_000
    assert all("499" in view.insider_of and "499" in view.admin_of for view in views)
    assert not any("new" in view.insider_of or "new" in view.admin_of for view in views)


def test_of_viewers_with_many_keys_fewer_are_cached(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each login on a connection makes another viewer: 9 MB of logins left 250 MB."""
    monkeypatch.setattr("relay.state._CACHED_VIEWERS", 60)

    def made_again(viewers: list[Viewer]) -> int:
        """As for an event, which is compared with all in the same order."""
        state = RelayState(policy, Groups())
        for viewer in viewers:
            state.visibility(viewer)
        views = state._views.copy()
        return sum([viewer not in views for viewer in viewers])

    keys = [person(f"{number}").pubkey for number in range(64)]
    assert made_again([Viewer(frozenset({key})) for key in keys]) == 4
    assert made_again([Viewer(frozenset(keys) | {f"{n}"}) for n in range(64)]) == 34


def test_of_more_viewers_than_are_cached_most_are_found_again(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the oldest went, none would be: each private event found all rights anew."""
    monkeypatch.setattr("relay.state._CACHED_VIEWERS", 50)
    state = RelayState(policy, Groups())
    viewers = [Viewer(frozenset({person(f"{number}").pubkey})) for number in range(64)]
    for _ in range(10):
        made = state.views_made
        for viewer in viewers:
            state.visibility(viewer)
    assert state.views_made - made < len(viewers) // 2


def test_an_owner_of_many_agents_is_looked_at_once_until_the_groups_change(
    policy: PolicySet,
) -> None:
    """64 attestations on each of 240 connections, of an owner in 200 groups: 3 ms for each."""
    looked = Counter[str]()

    class Looked(KeyMap[str, Group]):
        def __getitem__(self, group_id: str) -> Group:
            looked[group_id] += 1
            return super().__getitem__(group_id)

    def groups_named(*names: str) -> Groups:
        groups = Groups().with_groups(
            Group(name, members=OrderedMap({alice.pubkey: ()}), founder=owner.pubkey)
            for name in names
        )
        return replace(groups, by_id=Looked(groups.by_id))

    agents = [person(f"{number}").pubkey for number in range(64)]
    attested = frozenset(Attestation(agent, alice.pubkey) for agent in agents)
    viewers = [Viewer(frozenset({*agents, f"{n}"}), attested=attested) for n in range(3)]
    state = RelayState(policy, groups_named("tea", "den"))
    for groups in (state.groups, groups_named("tea", "den", "tap")):
        state.adopt(groups)
        looked.clear()
        known_as = [state.visibility(viewer).known_as for viewer in viewers]
        assert known_as == [f"agents of {alice.pubkey}"] * 3
        assert looked == dict.fromkeys(groups.by_id, 1)
    state.adopt(Groups())
    assert [state.visibility(viewer).known_as for viewer in viewers] == [None] * 3


def test_keys_that_may_vouch_are_kept_for_a_bounded_number(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.state._CACHED_VIEWERS", 60)
    state = RelayState(policy, Groups().with_group(DEN))
    for number in range(200):
        attestation = Attestation(robot.pubkey, person(f"{number}").pubkey)
        state.visibility(Viewer(frozenset({robot.pubkey}), attested=frozenset({attestation})))
        assert len(state._vouchers) <= 60


def test_visibility_uses_the_current_groups(state: RelayState) -> None:
    """N29-94, N29-95."""
    assert state.visibility(ALICE).may_read(CHAT, None)
    assert not state.visibility(BOB).may_read(CHAT, None)
    den = DEN.with_users({bob.pubkey: ()}).with_removed({alice.pubkey})
    state.adopt(state.groups.with_group(den))
    assert not state.visibility(ALICE).may_read(CHAT, None)
    assert state.visibility(BOB).may_read(CHAT, None)


def test_a_visibility_in_use_does_not_change(state: RelayState) -> None:
    """Swapped whole, never changed in place: a reader that holds one value holds a consistent one.

    That the realm gives another one is how a running answer notices that something changed.
    """
    held = state.visibility(ALICE)
    assert state.visibility(Viewer(frozenset({alice.pubkey}))) is held
    state.adopt(state.groups)
    assert state.visibility(ALICE) is held
    state.adopt(state.groups.without_group("den"))
    assert held.may_read(CHAT, None)
    assert state.visibility(ALICE) is not held


def test_new_policies_take_effect_at_once(
    state: RelayState, policy: PolicySet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """G-01: also for rows that were public under the old policies."""
    assert state.is_public(NOTE)
    memory = Stored(1, unsigned(robot, 30093, [["d", "x"]]))
    assert not state.visibility(ALICE).may_read(memory, None)
    shut = loaded(
        tmp_path_factory.mktemp("policies"),
        actors=f'[actors]\nowners=["{alice.npub}"]',
        notes='[[rule]]\nname = "notes"\nmatch = { kinds = [1] }\nread = ["owner"]',
    )
    state.enforce(shut)
    assert not state.is_public(NOTE)
    assert not state.visibility(BOB).may_read(NOTE, None)
    assert state.visibility(ALICE).may_read(NOTE, None)
    assert state.visibility(ALICE).may_read(memory, None)
    state.enforce(policy)
    assert state.is_public(NOTE)


@pytest.mark.parametrize(
    ("row", "is_public"),
    [
        (NOTE, True),
        (CHAT, False),
        (Stored(1, unsigned(alice, 9, [["h", "tea"]]), "tea"), False),
        (Stored(1, unsigned(alice, 5)), True),
        (Stored(1, unsigned(alice, 5), quiet=True), False),
        (Stored(1, unsigned(alice, 4)), False),
        (Stored(1, unsigned(alice, 24133, [["p", bob.pubkey]])), False),
    ],
)
def test_a_row_without_a_read_rule_is_public(
    state: RelayState, row: Stored, *, is_public: bool
) -> None:
    """Only public rows need no check of the reader."""
    assert state.is_public(row) is is_public
    if is_public:
        assert state.visibility(Viewer()).may_read(row, None)


def test_every_viewer_has_its_own_visibility(state: RelayState) -> None:
    """More of them than are remembered."""
    crowd = [Viewer(frozenset({f"{number:064x}"})) for number in range(4100)]
    for viewer in crowd:
        assert not state.visibility(viewer).may_read(CHAT, None)
        assert state.visibility(viewer).viewer is viewer
    assert state.visibility(ALICE).may_read(CHAT, None)
    assert state.visibility(crowd[0]).viewer == crowd[0]


# after a restart ---------------------------------------------------------------------------------


class ShortPages(ReferenceStore):
    """Gives fewer rows of the log than it is asked for: the promise says `at most`."""

    async def seqs_of_kinds(
        self, kinds: Set[int], after: int, upto: int, limit: int
    ) -> Sequence[int]:
        return await super().seqs_of_kinds(kinds, after, upto, min(limit, 5))

    async def stored(self, seqs: Sequence[int], most: int = PARSED_BYTES) -> Sequence[Stored]:
        return await super().stored(seqs[:2], most)


def record(who: SecretKey, kind: int, *tags: list[str], h: str = "den") -> Event:
    return who.sign(kind, [["h", h], *tags], "", NOW)


HISTORY = (
    record(admin, 9007),
    record(relay, 9000, ["p", admin.pubkey, "admin"]),
    unsigned(relay, 39000, [["d", "den"], ["private"], ["name", "The den"]]),
    record(admin, 9000, ["p", alice.pubkey], ["p", bob.pubkey, "moderator"]),
    record(alice, 9, ["e", "e" * 64]),
    record(admin, 9001, ["p", alice.pubkey]),
    unsigned(carol, 39000, [["d", "den"], ["name", "Not the relay's word"]]),
    record(admin, 9007, h="yard"),
    record(admin, 9008, h="yard"),
    record(admin, 9000, ["p", alice.pubkey], h="yard"),
)


@pytest.mark.parametrize("made", [ReferenceStore, ShortPages])
async def test_groups_are_rebuilt_from_the_log(made: type[ReferenceStore]) -> None:
    """N29-55: by the order of acceptance, to its end, page by page; none is asked twice."""
    store = made()
    await write(store, *HISTORY)
    groups = await rebuilt_groups(store, RELAY)
    den = groups.by_id["den"]
    assert den.members == {admin.pubkey: ("admin",), bob.pubkey: ("moderator",)}
    assert den.removed.keys() == {alice.pubkey}
    assert den.flags == {Flag.PRIVATE}
    assert den.metadata == (("name", "The den"),)
    assert groups.ended.keys() == {"yard"}
    assert groups.groups_of(alice.pubkey) == frozenset()


async def test_an_empty_log_has_no_groups() -> None:
    assert await rebuilt_groups(ReferenceStore(), RELAY) == Groups()


async def test_a_group_without_metadata_is_closed() -> None:
    """A log with a hole in it opens nothing."""
    store = ReferenceStore()
    await write(store, record(admin, 9000, ["p", alice.pubkey]))
    den = (await rebuilt_groups(store, RELAY)).by_id["den"]
    assert den.only_members_read
    assert den.only_members_write
    assert den.is_closed


@pytest.mark.slow
async def test_a_long_log_is_read_to_its_end() -> None:
    """The replay has no limit."""
    store = ReferenceStore()
    noise = [unsigned(alice, 9, [["h", "den"]], str(number)) for number in range(20_000)]
    await write(store, *HISTORY[:4], *noise, record(admin, 9000, ["p", carol.pubkey]))
    den = (await rebuilt_groups(store, RELAY)).by_id["den"]
    assert den.members.keys() == {admin.pubkey, alice.pubkey, bob.pubkey, carol.pubkey}


def test_the_current_group_guards_its_rows(state: RelayState) -> None:
    """N29-101: when a group turns private, all its rows do at once; the reverse opens them."""
    state.adopt(state.groups.with_group(replace(DEN, flags=frozenset())))
    assert state.visibility(BOB).may_read(CHAT, None)
    state.adopt(state.groups.with_group(replace(DEN, flags=frozenset({Flag.HIDDEN}))))
    assert not state.visibility(BOB).may_read(CHAT, None)


# any history -------------------------------------------------------------------------------------

actors = st.sampled_from([owner, owner, alice, alice, bob, carol])
p = actors.map(lambda key: key.pubkey)
codes = st.sampled_from(["sesame-1", "sesame-2"])
TAGS = {
    9: st.just(("t", "x")),
    9000: st.tuples(st.just("p"), p, st.sampled_from(["admin", "admin", "moderator", "poet"])),
    9001: st.tuples(st.just("p"), p),
    9002: st.sampled_from([("private",), ("closed",), ("hidden",), ("name", "Tea"), ("public",)]),
    9005: st.tuples(st.just("e"), st.integers(1, 9)),
    9007: st.sampled_from([("private",), ("closed",), ("name", "Tea")]),
    9008: st.just(("because", "")),
    9009: st.tuples(st.just("code"), codes),
    9021: st.tuples(st.just("code"), codes),
    9022: st.just(("bye", "")),
    62: st.just(("relay", "ALL_RELAYS")),
}
often = [9, 9, 9000, 9000, 9001, 9005, 9009, 9021, 9021, 9022]
groups = st.sampled_from(["tea", "tea", "tea", "den"])
steps = st.sampled_from([*often, *TAGS]).flatmap(
    lambda kind: st.tuples(st.just(kind), actors, groups, TAGS[kind])
)
policies = st.sampled_from(["", 'joins = "review"', 'always = ["private", "closed"]'])


class Postbox:
    """The author of everything, not logged in: counts the answers."""

    authenticated: frozenset[str] = frozenset()
    attested = frozenset[Never]()
    address = None
    connection = None
    message = None
    counted_as = None
    is_local = False
    is_known = False
    is_owner = False
    is_over = False

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Result] = asyncio.Queue()

    def answered(self, _event: Event, _weight: int, result: Result) -> None:
        self.answers.put_nowait(result)


def log_of(history: list[Any]) -> list[Event]:
    """Each event is later than the one before; a 9005 names one so far before it."""
    log = [owner.sign(9007, [["h", "tea"]], "", NOW), alice.sign(9007, [["h", "den"]], "", NOW)]
    for number, (kind, who, h, (name, *values)) in enumerate(history, 1):
        if name == "e":
            values = [log[-min(values[0], len(log))].id]
        log.append(who.sign(kind, [["h", h], [name, *values]], "", NOW + number))
    return log


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.lists(steps, min_size=20, max_size=80), st.sets(st.integers(1, 80)), policies)
def test_groups_are_the_same_after_a_restart(history: list[Any], cuts: set[int], more: str) -> None:
    """N29-55: equal to a replay of the log, and to what the store keeps of them."""

    async def law(policy: PolicySet, verifiers: ThreadPoolExecutor) -> None:
        store, state, postbox = ReferenceStore(), RelayState(policy, Groups()), Postbox()
        ingest = Ingest(
            store,
            state,
            relay,
            Fanout(state),
            clock=lambda: NOW + 50,
            verifiers=verifiers,
            metrics=Metrics(),
            is_here=lambda _: False,
        )
        log = log_of(history)
        starts = sorted({0, 2, *cuts})
        async with ingest:
            for start, end in zip(starts, [*starts[1:], len(log)], strict=True):
                for event in log[start:end]:
                    ingest.submit(event, postbox, Origin.WIRE)
                for _ in log[start:end]:
                    await postbox.answers.get()
                assert await rebuilt_groups(store, RELAY) == state.groups
                assert store.groups == {**state.groups.by_id, **state.groups.ended}

    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as verifiers:
        actors = f'[actors]\nowners = ["{owner.npub}"]\n[groups]\ncreate = ["anyone"]\n'
        open_ = f"{actors}{'' if 'always' in more else 'always = []'}\nnew = []\n{more}"
        rule = '[[rule]]\nname = "known people write"\nenabled = false'
        policy = loaded(Path(folder), a=open_, b=rule)
        asyncio.run(law(policy, verifiers))
