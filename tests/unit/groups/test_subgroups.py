"""relay/groups/subgroups.py: where groups may stand, and whom a move concerns. N29-126,
N29-130…143."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from relay.groups.group import Group
from relay.groups.subgroups import MAX_CHILDREN, MAX_DEPTH
from relay.nostr import kinds
from tests.cast import admin, alice, bob, owner, stranger
from tests.unit.groups.world import GUARDED, OPEN, RELAY, STORED, World, event

NO_SUCH_PARENT = (False, "restricted: parent: names no group that you are an admin of")
BELOW_ITSELF = (False, "invalid: parent: a group cannot be its own ancestor")
HIDDEN_TOGETHER = (False, "invalid: hidden: a group and its parent are both hidden, or neither is")


def a_wood(*ids: str) -> World:
    """Groups by admin, each a root."""
    world = World(OPEN)
    for group_id in ids or ("food", "drink", "tea", "green"):
        assert world.make(admin, group_id) == STORED
    return world


def below(world: World, child: str, parent: str | None) -> tuple[bool, str]:
    """admin sets the parent, the children stay."""
    children = [["child", other] for other in world.groups.by_id[child].children]
    above = [] if parent is None else [["parent", parent]]
    return world.edit(admin, *above, *children, group=child)


def shown(world: World, group: str) -> list[list[str]]:
    """Parent and children in the relay's 39000."""
    tags = world.last(kinds.GROUP_METADATA, group).tags
    return [tag for tag in tags if tag[0] in ("parent", "child")]


@pytest.mark.proves("N29-131", "N29-132", "N29-137")
def test_a_9002_sets_the_parent_and_the_parent_lists_the_child() -> None:
    world = a_wood()
    length = len(world.log)
    assert below(world, "tea", "drink") == STORED
    assert shown(world, "tea") == [["parent", "drink"]]
    assert shown(world, "drink") == [["child", "tea"]]
    assert world.kinds_since(length - 2) == [9002, 39000, 39000]
    assert below(world, "food", "drink") == STORED
    assert shown(world, "drink") == [["child", "tea"], ["child", "food"]]
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-132", "N29-137", "N29-48")
def test_a_move_updates_the_old_and_the_new_parent() -> None:
    world = a_wood()
    below(world, "tea", "drink")
    assert below(world, "tea", "food") == STORED
    assert shown(world, "drink") == []
    assert shown(world, "food") == [["child", "tea"]]
    length = len(world.log)
    assert below(world, "tea", "food") == STORED
    assert world.kinds_since(length) == [9002]
    assert world.edit(admin, ["name", "Tea"], group="tea") == STORED
    assert shown(world, "tea") == shown(world, "food") == []
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-134")
def test_a_group_cannot_be_its_own_ancestor() -> None:
    world = a_wood()
    below(world, "drink", "food")
    below(world, "tea", "drink")
    for child in ("food", "drink", "tea"):
        assert below(world, child, child) == BELOW_ITSELF
    assert below(world, "food", "tea") == BELOW_ITSELF
    assert below(world, "food", "drink") == BELOW_ITSELF
    assert below(world, "tea", "food") == STORED


@pytest.mark.proves("N29-135", "N29-136")
def test_the_author_must_be_an_admin_of_the_parent() -> None:
    world = a_wood()
    assert world.make(bob, "mint") == STORED
    assert world.make(bob, "secret", ["hidden"]) == STORED
    assert world.put(bob, admin, "moderator", group="mint") == STORED
    for parent in ("mint", "secret", "nowhere"):
        assert below(world, "tea", parent) == NO_SUCH_PARENT
    assert world.end(bob, "secret") == STORED
    assert below(world, "tea", "secret") == NO_SUCH_PARENT
    assert world.put(bob, admin, "admin", group="mint") == STORED
    assert below(world, "tea", "mint") == STORED
    assert world.edit(owner, ["parent", "drink"], group="tea") == STORED


@pytest.mark.proves("N29-136", "Z-04")
def test_the_right_in_the_parent_is_checked_only_for_a_new_parent() -> None:
    world = a_wood()
    assert below(world, "tea", "drink") == STORED
    assert world.put(admin, alice, "admin", group="tea") == STORED
    assert world.edit(alice, ["parent", "drink"], ["name", "Tea"], group="tea") == STORED
    assert world.edit(alice, ["parent", "food"], group="tea") == NO_SUCH_PARENT
    assert world.edit(alice, ["name", "Tea"], group="tea") == STORED  # leaving asks nobody
    assert world.edit(alice, ["parent", "drink"], group="tea") == NO_SUCH_PARENT


@pytest.mark.proves("N29-138")
def test_an_edit_reorders_children_but_names_each() -> None:
    world = a_wood()
    for child in ("tea", "green", "drink"):
        below(world, child, "food")
    answer = (False, "invalid: child: must name each of the 3 subgroups once, and no other")
    for named in (
        [],
        ["tea"],
        ["tea", "green"],
        ["tea", "green", "green"],
        ["tea", "green", "drink", "drink"],
        ["tea", "green", "drink", "food"],
        ["tea", "green", "nowhere"],
    ):
        assert world.edit(admin, *(["child", name] for name in named), group="food") == answer
    ordered = [["child", name] for name in ("drink", "tea", "green")]
    assert world.edit(admin, *ordered, group="food") == STORED
    assert shown(world, "food") == ordered
    answer = (False, "invalid: child: must name each of the 0 subgroups once, and no other")
    assert world.edit(admin, ["parent", "food"], ["child", "drink"], group="tea") == answer
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-124", "N29-126", "N29-139")
def test_subgroups_of_a_deleted_group_become_roots() -> None:
    world = a_wood()
    below(world, "drink", "food")
    below(world, "tea", "drink")
    below(world, "green", "drink")
    assert world.end(admin, "drink") == STORED
    new = world.log[-4:]
    assert [(row.kind, row.d) for row in new] == [
        (9008, ""),
        (39000, "food"),
        (39000, "tea"),
        (39000, "green"),
    ]
    assert shown(world, "food") == shown(world, "tea") == shown(world, "green") == []
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-137", "N29-139")
def test_a_deleted_child_is_not_listed_any_more() -> None:
    world = a_wood()
    below(world, "tea", "drink")
    below(world, "green", "drink")
    world.end(admin, "tea")
    assert shown(world, "drink") == [["child", "green"]]


@pytest.mark.proves("N29-121", "N29-131", "N29-136")
def test_a_9007_may_name_a_parent() -> None:
    world = a_wood()
    assert world.make(admin, "mint", ["parent", "tea"]) == STORED
    assert shown(world, "tea") == [["child", "mint"]]
    assert world.make(bob, "mine", ["parent", "tea"]) == NO_SUCH_PARENT
    assert world.make(admin, "own", ["parent", "own"]) == NO_SUCH_PARENT
    assert world.make(admin, "own", ["child", "mint"])[0] is False
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-142")
def test_a_parent_and_its_child_are_both_hidden_or_neither() -> None:
    """All readers get the same 39000."""
    world = a_wood("food")
    world.make(admin, "dark", ["hidden"])
    world.make(admin, "darker", ["hidden"])
    assert world.edit(admin, ["parent", "food"], ["hidden"], group="dark") == HIDDEN_TOGETHER
    assert world.edit(admin, ["parent", "dark"], group="food") == HIDDEN_TOGETHER
    assert world.edit(admin, ["parent", "dark"], ["hidden"], group="darker") == STORED
    assert world.edit(admin, ["parent", "dark"], ["visible"], group="darker") == HIDDEN_TOGETHER
    assert world.edit(admin, ["child", "darker"], ["visible"], group="dark") == HIDDEN_TOGETHER
    assert world.make(admin, "dim", ["hidden"], ["parent", "food"]) == HIDDEN_TOGETHER
    assert world.edit(admin, ["parent", "food"], ["visible"], group="darker") == STORED


@pytest.mark.proves("N29-143")
def test_the_depth_of_a_tree_is_limited() -> None:
    chain = [str(number) for number in range(MAX_DEPTH + 1)]
    world = a_wood(*chain, "apart", "below it")
    for parent, child in pairwise(chain[:-1]):
        assert below(world, child, parent) == STORED
    too_deep = (False, "invalid: parent: groups can be nested at most 8 deep")
    assert below(world, chain[-1], chain[-2]) == too_deep
    below(world, "below it", "apart")
    assert below(world, "apart", chain[-3]) == too_deep
    assert below(world, "apart", chain[-4]) == STORED


def test_a_tree_of_over_a_thousand_groups_is_not_moved() -> None:
    """All of them are visited: 65,000 by each event."""
    world = a_wood("food", "tea", "green")
    others = [[f"{letter}{number}" for number in range(MAX_CHILDREN)] for letter in "abcd"]
    parents = [row[0] for row in others]
    for parent, row in zip(("tea", *parents), others, strict=False):
        for group_id in row:
            world.groups = world.groups.with_group(Group(group_id, parent=parent))
        full = replace(world.groups.by_id[parent], children=tuple(row))
        world.groups = world.groups.with_group(full)
    text = "invalid: parent: a group with over 1024 groups below it stays where it is"
    assert below(world, "tea", "food") == (False, text)
    assert below(world, "green", "food") == STORED
    smaller = replace(world.groups.by_id[parents[-2]], children=("green",))
    world.groups = world.groups.with_group(smaller)
    assert below(world, "tea", "food") == STORED


@pytest.mark.proves("N29-143")
def test_the_number_of_subgroups_is_limited() -> None:
    world = a_wood("food", "drink", "tea")
    others = tuple(map(str, range(MAX_CHILDREN - 1)))
    for group_id in others:
        world.groups = world.groups.with_group(Group(group_id, parent="food"))
    food = replace(world.groups.by_id["food"], children=others)
    world.groups = world.groups.with_group(food)
    assert below(world, "tea", "food") == STORED
    full = (False, "invalid: parent: has 256 subgroups, the most allowed")
    assert below(world, "drink", "food") == full
    assert below(world, "tea", None) == STORED
    assert below(world, "drink", "food") == STORED


@pytest.mark.proves("N29-140", "N29-141")
def test_a_move_changes_nothing_but_the_parent() -> None:
    world = a_wood()
    world.put(admin, alice, "moderator", group="drink")
    world.put(admin, bob, group="tea")
    world.say(bob, "hello", group="tea")
    rows = [row for row in world.log if row.tag("h") == "tea"]
    before = world.groups.by_id["tea"]
    below(world, "tea", "drink")
    after = world.groups.by_id["tea"]
    assert (after.members, after.flags, after.metadata) == (
        before.members,
        before.flags,
        before.metadata,
    )
    assert [row for row in world.log if row.tag("h") == "tea"][: len(rows)] == rows
    assert world.put(alice, stranger, group="tea")[0] is False
    assert not world.is_in(alice, "tea")


@pytest.mark.proves("N29-60")
def test_parents_are_taken_only_from_39000_by_this_relay() -> None:
    world = a_wood()
    below(world, "tea", "drink")
    world.log.append(event(admin, 39000, ["d", "green"], ["parent", "drink"]))
    assert world.rebuilt() == world.groups
    world.log.append(event(RELAY, 39000, ["d", "green"], ["parent", "drink"], ["x", "y"]))
    assert world.rebuilt().by_id["green"].parent == "drink"
    assert world.rebuilt().by_id["green"].metadata == (("x", "y"),)


@pytest.mark.proves("Z-03", "N29-132")
def test_forced_flags_hold_for_subgroups_too() -> None:
    world = World(GUARDED)
    for group_id in ("drink", "tea"):
        assert world.make(owner, group_id) == STORED
    assert world.edit(owner, ["parent", "drink"], group="tea") == STORED
    assert world.groups.by_id["tea"].flags == GUARDED.always
