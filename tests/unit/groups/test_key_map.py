"""KeyMap: a dict that is copied in parts."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.groups.group import Group, Groups, GroupsByKey, Replay, replayed
from relay.groups.key_map import KeyMap, OrderedMap, TwoWayMap, changed_set
from relay.nostr.event import event_from_raw
from tests.cast import admin, alice
from tests.effort import tries
from tests.unit.groups.world import RELAY, event

if TYPE_CHECKING:
    from collections.abc import Set

KEYS = st.integers(0, 40)
CHANGES = st.lists(st.tuples(st.dictionaries(KEYS, st.integers(0, 2)), st.sets(KEYS)))
MANY = 2_000
"""Over the number of keys that are in one dict."""


@given(CHANGES, st.sampled_from([1, MANY]))
def test_a_map_equals_a_dict_after_the_same_changes(
    changes: list[tuple[dict[int, int], Set[int]]], size: int
) -> None:
    expected = {-number: 0 for number in range(1, size)}
    found = KeyMap(expected).changed({})
    for added, removed in changes:
        before = dict(found)
        after = found.changed(added, removed)
        assert dict(found) == before, "the map before the change is as it was"
        expected = {key: value for key, value in expected.items() if key not in removed} | added
        found = after
        assert (dict(found), len(found)) == (expected, len(expected))
        for key in range(41):
            assert found.get(key) == expected.get(key)
            assert (key in found) == (key in expected)
        assert found.among(range(-5, 41)) == expected.keys() & set(range(-5, 41))


@given(CHANGES, st.sampled_from([1, 300, MANY]))
def test_keys_that_differ_are_those_whose_value_is_another(
    changes: list[tuple[dict[int, int], Set[int]]], size: int
) -> None:
    before = found = KeyMap({-number: 0 for number in range(1, size)}).changed({})
    for added, removed in changes:
        found = found.changed(added, removed)
    both = before.keys() | found.keys()
    different = {key for key in both if before.get(key) != found.get(key)}
    assert found.differing(before) == before.differing(found) == different


@given(CHANGES, st.sampled_from([1, MANY]))
def test_a_two_way_map_finds_the_keys_of_the_values_that_it_has(
    changes: list[tuple[dict[int, int], Set[int]]], size: int
) -> None:
    found = TwoWayMap({-number: (-number, 0) for number in range(1, size)})
    for added, removed in changes:
        found = found.changed({key: (key, value) for key, value in added.items()}, removed)
        assert dict(found.keys_of) == {value: key for key, value in found.items()}


def test_a_map_that_outgrows_one_dict_differs_by_what_was_added() -> None:
    before = KeyMap({number: number for number in range(512)})
    assert before.changed({512: 512}).differing(before) == {512}


def test_a_key_that_is_removed_twice_is_removed_once() -> None:
    left = KeyMap({1: "one", 2: "two"}).without([1, 1, 3])
    assert (dict(left), len(left)) == ({2: "two"}, 1)


def test_a_map_that_grows_and_shrinks_keeps_its_items() -> None:
    found = KeyMap[int, int]()
    for number in range(MANY):
        found = found.changed({number: number})
    assert dict(found) == {number: number for number in range(MANY)}
    assert not found.without(range(MANY))


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 30), st.none()), st.sets(st.integers(0, 30))),
        max_size=8,
    ),
    st.sampled_from([1, 5, 100]),
)
def test_an_ordered_map_knows_the_order_of_a_dict(
    changes: list[tuple[dict[int, None], set[int]]], few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay.groups.key_map._FEW", few)
        ordered, wanted = OrderedMap[int, None](), dict[int, None]()
        for added, removed in changes:
            ordered = ordered.changed(added, removed)
            for key in removed:
                wanted.pop(key, None)
            wanted |= added
            assert [*ordered.in_order()] == [*wanted]
            some = [key for key in ordered if key % 2]
            assert [*ordered.in_order(some)] == [key for key in wanted if key % 2]


def test_a_record_of_a_group_copies_few_of_the_keys_that_it_knows() -> None:
    """Each of some hundred thousand records copied 100,000 keys at each start: 2.5 ms."""
    keys = [["p", f"{number:064x}"] for number in range(20_000)]
    tea = ["h", "tea"]
    made = [event(admin, 9007, tea), event(admin, 9000, tea, ["p", admin.pubkey, "admin"])]
    removals = [event(admin, 9001, tea, *keys[at : at + 4_000]) for at in range(0, 20_000, 4_000)]
    groups = replayed(Groups(), [*made, *removals], RELAY)
    more = [
        event(author, kind, tea, *tags)
        for author, kind, *tags in (
            (admin, 9000, ["p", alice.pubkey]),
            (admin, 9001, ["p", alice.pubkey]),
            (alice, 9021),
        )
    ]
    versions = []
    tracemalloc.start()
    for _ in range(tries(100, 30)):
        for each in more:
            groups = replayed(groups, [each], RELAY)
            versions.append(groups)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000 * len(versions)


def test_a_member_more_copies_few_of_those_that_there_are() -> None:
    """Each query that waits may keep the groups of its time: 200 kB of a group of 10,000."""
    key = alice.pubkey
    group = Group("tea").with_users({f"{number:064x}": () for number in range(10_000)})
    versions = [group]
    tracemalloc.start()
    for _ in range(tries(100, 30)):
        versions.append(versions[-1].with_users({key: ()}))
        versions.append(versions[-1].without_users({key}))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 24_000 * len(versions)


@given(st.lists(st.tuples(st.frozensets(KEYS), st.frozensets(KEYS))), st.sampled_from([1, 5, 100]))
def test_a_set_equals_a_frozenset_after_the_same_changes(
    changes: list[tuple[frozenset[int], frozenset[int]]], few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay.groups.key_map._FEW", few)
        found, wanted = cast("Set[int]", frozenset[int]()), frozenset[int]()
        for added, removed in changes:
            before, was = found, wanted
            found, wanted = changed_set(found, added, removed), (wanted - removed) | added
            assert (before, found, len(found), bool(found)) == (
                was,
                wanted,
                len(wanted),
                bool(wanted),
            )
            for other in (added, removed, before):
                assert (found & other, other & found) == (wanted & other, wanted & other)
                assert (found - other, other - found) == (wanted - other, other - wanted)
                assert (found <= other) is (wanted <= other)


def test_what_a_large_set_has_of_a_small_one_is_looked_up_in_the_large_one() -> None:
    """With 5,000 groups of an owner each view of an agent took 0.9 ms."""
    looked_up = list[int]()

    class Number(int):
        def __hash__(self) -> int:
            looked_up.append(self)
            return super().__hash__()

    large = changed_set(frozenset(), frozenset(range(MANY)), frozenset())
    small = [Number(number) for number in range(3)]
    found = frozenset(small)
    looked_up.clear()
    assert large & found == found & large == {0, 1, 2}
    assert len(looked_up) < 40


def test_one_more_group_of_a_key_copies_few_of_those_that_it_has() -> None:
    """Each query that waits may keep the groups of its time: 1 MB of a key with 10,000."""
    many = [replace(Group(f"{number}"), founder=admin.pubkey) for number in range(10_000)]
    users = {admin.pubkey: ("admin",)}
    groups = Groups().with_groups([each.with_users(users) for each in many])
    versions = [groups]
    tracemalloc.start()
    for number in range(tries(50, 20)):
        group = replace(Group(f"new {number}"), founder=admin.pubkey).with_users(users)
        versions.append(versions[-1].with_group(group))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 60_000 * len(versions)


def test_a_new_group_copies_few_of_those_that_there_are() -> None:
    """Each of 100,000 groups copied all that had been made: a start took a minute."""
    many = {f"{number}": Group(f"{number}") for number in range(20_000)}
    groups = Groups(KeyMap[str, Group]().changed(many))
    versions = []
    tracemalloc.start()
    for number in range(tries(100, 30)):
        groups = replayed(groups, [event(admin, 9007, ["h", f"new {number}"])], RELAY)
        versions.append(groups)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000 * len(versions)


def test_a_small_group_takes_little_memory_after_a_replay() -> None:
    """Anybody may make 100,000 of them."""
    number = 1_000
    log = [
        row.raw
        for name in (f"{each:06}" for each in range(number))
        for row in (
            event(admin, 9007, ["h", name], ["public"], ["open"]),
            event(RELAY, 9000, ["h", name], ["p", admin.pubkey, "admin"]),
            event(RELAY, 39000, ["d", name]),
            event(RELAY, 39001, ["d", name], ["p", admin.pubkey, "admin"]),
            event(RELAY, 39002, ["d", name], ["p", admin.pubkey]),
            event(RELAY, 39003, ["d", name]),
        )
    ]
    tracemalloc.start()
    groups = replayed(Groups(), map(event_from_raw, log), RELAY)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(groups.by_id) == number
    assert held < 1_700 * number


def test_a_replay_copies_the_ids_of_the_groups_of_one_key_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that makes 100,000 groups is in all of them."""
    asked: list[int] = []

    def counting(index: GroupsByKey[Any], moves: Any) -> Any:
        moves = list(moves)
        asked.append(len(moves))
        return moved(index, moves)

    moved = GroupsByKey.moved
    monkeypatch.setattr(GroupsByKey, "moved", counting)
    replay = Replay(Groups(), RELAY)
    for number in range(50):  # however many parts the log is read in
        replay.add([event(admin, 9007, ["h", f"{number}"])])
    replay.groups()
    assert sorted(asked) == [0, 50, 50]


@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sampled_from("abc"))))
def test_several_groups_change_their_keys_as_one_after_the_other(
    changes: list[tuple[Set[int], str]],
) -> None:
    together = one_by_one = GroupsByKey[int]()
    keys: dict[str, Set[int]] = {}
    moves = []
    for new, group_id in changes:
        move = (keys.get(group_id, set()), new, group_id)
        keys[group_id] = new
        moves.append(move)
        one_by_one = one_by_one.moved([move])
    together = together.moved(moves)
    expected = {
        key: frozenset(group_id for group_id in keys if key in keys[group_id]) for key in range(6)
    }
    assert dict(together) == dict(one_by_one) == {key: ids for key, ids in expected.items() if ids}
