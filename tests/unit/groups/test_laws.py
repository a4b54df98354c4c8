"""Properties of relay/groups over random histories: the live state equals a replay of the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.groups.actions import PRIVATE_FLAGS, Flag, action_of, logged_action
from relay.groups.context import Joins
from relay.groups.group import Groups, Replay, pins_of, replayed
from relay.groups.membership import Cause, removals_from_groups, repair_drafts
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, owner, robot, stranger
from tests.unit.groups.world import (
    GUARDED,
    NOT_A_MEMBER,
    OPEN,
    RELAY,
    STORED,
    World,
    event,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.groups.context import GroupSettings
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Step = Callable[[World], object]

# Few keys and groups, so that events often concern the same ones.
PEOPLE = [admin, alice, bob, carol, owner]
people = st.sampled_from([bob, carol, bob, carol, alice, admin, owner])
leaders = st.sampled_from([admin, owner, admin, owner, alice])
ids = st.sampled_from(["tea", "tea", "tea", "tea", "coffee"])
codes = st.sampled_from(["sesame-1", "sesame-2"])
roles = st.lists(st.sampled_from(["admin", "moderator", "poet"]), max_size=2).filter(
    lambda held: len(held) != 1 or held[0] != "poet"
)
some_flags = st.lists(st.sampled_from(list(Flag)), max_size=3, unique=True)
policies = st.builds(
    replace,
    st.sampled_from([OPEN, OPEN, GUARDED]),
    joins=st.sampled_from(Joins),
    invite_uses=st.integers(1, 2),
)


def put(
    world: World, who: SecretKey, whom: list[tuple[SecretKey, list[str]]], group: str
) -> object:
    tags = [["p", key.pubkey, *held] for key, held in whom]
    return world.do(who, 9000, *tags, group=group)


def remove(world: World, who: SecretKey, whom: list[SecretKey], group: str) -> object:
    return world.do(who, 9001, *(["p", key.pubkey] for key in whom), group=group)


def edit(world: World, who: SecretKey, flags: list[Flag], sure: bool, group: str) -> object:  # noqa: FBT001
    sure_tags = [["public"], ["visible"], ["open"]] if sure else []
    more = [["name", "Tea"], ["t", "x"], ["supported_kinds", "9"]][: len(flags)]
    flag_tags = [[flag.value] for flag in flags]
    return world.edit(who, *flag_tags, *sure_tags, *more, *place_of(world, group), group=group)


def place_of(world: World, group: str) -> list[list[str]]:
    """The tags that keep the group's parent and children."""
    now = world.groups.get(group)
    if now is None:
        return []
    above = [] if now.parent is None else [["parent", now.parent]]
    return above + [["child", child] for child in now.children]


def place(world: World, who: SecretKey, parent: str, group: str) -> object:
    """With another parent or none, and the children in another order."""
    flags = [[flag] for flag in world.groups.by_id[group].flags] if group in ids_of(world) else []
    children = [tag for tag in place_of(world, group) if tag[0] == "child"][::-1]
    above = [["parent", parent]] if parent else []
    return world.edit(who, *flags, *above, *children, group=group)


def ids_of(world: World) -> list[str]:
    return list(world.groups.by_id)


def pin(world: World, who: SecretKey, places: list[float], group: str) -> object:
    """Rows of any group, by id or by address."""
    chosen = [world.log[int(place_ * len(world.log))] for place_ in places if world.log]
    tags = [
        ["a", f"{row.kind}:{row.pubkey}:{row.d}"] if row.kind > 30000 else ["e", row.id]
        for row in chosen
        if group in (row.tag("h"), row.tag("d")) or len(chosen) < 2
    ]
    return world.pin(who, *tags, group=group)


def invite(world: World, who: SecretKey, some: list[str], extra: list[str], group: str) -> object:
    return world.do(who, 9009, *(["code", code] for code in some), [*extra], group=group)


def join(world: World, who: SecretKey, place: float | None, group: str) -> object:
    """With a code that some group has or had, if any."""
    codes_ = [row.tag("code") for row in world.log if row.kind == 9009]
    code = codes_[int(place * len(codes_))] if codes_ and place is not None else None
    return world.join(who, code, group)


def delete(world: World, who: SecretKey, places: list[float], group: str) -> object:
    wanted = {9009, 9021, 9, 9000}
    rows = [row for row in world.log if row.kind in wanted]
    chosen = [rows[int(place * len(rows))].id for place in places if rows]
    return world.delete(who, *chosen, group=group)


def sweep(world: World, place: float) -> None:
    """An invite, a request or a message expires or is swept."""
    going = (9009, 9021, 9, 30023)
    rows = [row for row in world.log if row.kind in going and row.tag("h") != "apart"]
    if rows:
        world.forget(rows[int(place * len(rows))])


def write(world: World, who: SecretKey, d: str, group: str) -> object:
    return world.do(who, 30023, ["d", d], group=group, at=world.now)


def leave_all(world: World, who: SecretKey, cause: Cause) -> None:
    world.now += 1  # as after a vanish: what a key does next is later than it
    _, drafts = removals_from_groups(world.groups, who.pubkey, world.now, cause, RELAY)
    world.mend(drafts)


def change_policy(world: World, settings: GroupSettings) -> None:
    world.settings = settings


def step(
    function: Callable[..., object], *arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[Step]:
    return st.tuples(*arguments).map(lambda given_: lambda world: function(world, *given_))


places = st.floats(0, 1, exclude_max=True)
puts = step(put, leaders, st.lists(st.tuples(people, roles), min_size=1, max_size=2), ids)
removals = step(remove, leaders, st.lists(people, min_size=1, max_size=2), ids)
invites = step(
    invite,
    leaders,
    st.lists(codes, min_size=1, max_size=2, unique=True),
    st.sampled_from([[], ["reusable"], ["reusable"], ["expiration", "1700000003"]]),
    ids,
)
joins = step(join, people, st.none() | places, ids)
# Repeated as weights: `one_of` would give each the same.
steps: st.SearchStrategy[Step] = st.sampled_from(
    [
        *[joins] * 6,
        *[invites] * 3,
        *[puts] * 2,
        *[removals] * 2,
        step(World.leave, people, ids),
        step(World.leave, people, ids),
        step(edit, leaders, some_flags, st.booleans(), ids),
        step(place, leaders, st.sampled_from(["tea", "coffee", "coffee", ""]), ids),
        step(place, leaders, st.sampled_from(["tea", "tea", "coffee", ""]), ids),
        step(pin, leaders, st.lists(places, max_size=3), ids),
        step(pin, leaders, st.lists(places, min_size=2, max_size=3), ids),
        step(delete, leaders, st.lists(places, min_size=1, max_size=2), ids),
        step(delete, leaders, st.lists(places, min_size=1, max_size=2), ids),
        step(World.say, people, st.just("hello"), ids),
        step(write, people, st.sampled_from("xy"), ids),
        step(World.make, leaders, ids, some_flags.map(lambda flags: [str(f) for f in flags])),
        step(World.end, leaders, st.sampled_from(["coffee", "coffee", "coffee", "tea"])),
        step(sweep, places),
        step(leave_all, people, st.sampled_from(Cause)),
        step(change_policy, policies),
        step(lambda world, seconds: setattr(world, "now", world.now + seconds), st.integers(0, 2)),
    ]
).flatmap(lambda chosen: chosen)
beginnings = st.tuples(policies, st.sampled_from([["closed"], ["closed"], ["private"], ["hidden"]]))
histories = st.builds(
    lambda beginning, history: [lambda world: begin(world, *beginning), *history],
    beginnings,
    st.lists(steps, min_size=5, max_size=30),
)


def begin(world: World, settings: GroupSettings, flags: list[str]) -> None:
    """A group by admin with a moderator; afterwards the drawn policy applies."""
    world.settings = OPEN
    world.make(admin, "tea", *([flag] for flag in flags))
    world.do(admin, 9000, ["p", alice.pubkey, "moderator"])
    world.make(owner, "coffee")
    world.settings = settings


def lived(history: list[Step]) -> World:
    world = World(OPEN)
    for do in history:
        do(world)
    return world


@pytest.mark.proves("N29-55", "N29-56")
@given(histories)
def test_the_live_state_equals_a_replay_of_the_log(history: list[Step]) -> None:
    """After every step."""
    world = World(OPEN)
    for do in history:
        do(world)
        assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-55")
@given(histories, st.data())
def test_splitting_the_log_into_batches_makes_no_difference(
    history: list[Step], data: st.DataObject
) -> None:
    world = lived(history)
    groups, replay = Groups(), Replay(Groups(), RELAY)
    left: list[Event] = list(world.log)
    while left:
        size = data.draw(st.integers(1, len(left)))
        groups = replayed(groups, left[:size], RELAY)
        replay.add(left[:size])
        left = left[size:]
    assert world.with_last_members(groups) == world.groups
    assert world.with_last_members(replay.groups()) == world.groups


@given(histories)
def test_an_event_is_the_same_action_when_it_is_written_and_when_it_is_replayed(
    history: list[Step],
) -> None:
    for row in lived(history).log:
        action = action_of(row)
        if action is not None:
            assert logged_action(row, RELAY) == action


@given(histories)
def test_the_index_of_memberships_agrees_with_the_groups(history: list[Step]) -> None:
    groups = lived(history).groups
    for who in PEOPLE:
        of = {group.id for group in groups.by_id.values() if who.pubkey in group.members}
        assert groups.groups_of(who.pubkey) == of
        assert groups.is_member(who.pubkey) is bool(of)
    for group in groups.by_id.values():
        requested = {key for key, is_only_requested in group.involved.items() if is_only_requested}
        assert requested <= group.requests.keys() <= group.involved.keys()
        assert group.members.keys() <= group.involved.keys()
    assert groups.ended.keys().isdisjoint(groups.by_id)


@pytest.mark.proves("N29-61", "N29-62", "N29-63", "N29-64", "N29-68")
@given(histories)
def test_the_notices_describe_the_group(history: list[Step]) -> None:
    world = World(OPEN)
    notice_times: dict[tuple[str, int], int] = {}
    for do in history:
        do(world)
        for group in world.groups.by_id.values():
            for kind, stamp in group.notice_times.items():
                assert notice_times.setdefault((group.id, kind), stamp) <= stamp
                notice_times[group.id, kind] = stamp
                assert world.last(kind, group.id).created_at == stamp
        notice_times = {key: at for key, at in notice_times.items() if key[0] in world.groups.by_id}
    for group in world.groups.by_id.values():
        members = world.last(kinds.GROUP_MEMBERS, group.id).tag_values("p")
        assert members == list(group.members)
        admins = world.last(kinds.GROUP_ADMINS, group.id)
        held = {tag[1]: tuple(tag[2:]) for tag in admins.tags if tag[0] == "p"}
        assert held == group.admins()
        shown = {tag[0] for tag in world.last(kinds.GROUP_METADATA, group.id).tags}
        assert shown & {flag.value for flag in Flag} == {flag.value for flag in group.flags}


@pytest.mark.proves("N29-131", "N29-134", "N29-137", "N29-142")
@given(histories)
def test_parents_and_children_agree(history: list[Step]) -> None:
    world = World(OPEN)
    for do in history:
        do(world)
        by_id = world.groups.by_id
        for group in by_id.values():
            assert len(set(group.children)) == len(group.children)
            assert all(by_id[child].parent == group.id for child in group.children)
            assert group.parent is None or group.id in by_id[group.parent].children
            assert group.parent is None or by_id[group.parent].is_hidden is group.is_hidden
            line = [group]
            while line[-1].parent is not None:
                line.append(by_id[line[-1].parent])
                assert len(line) <= len(by_id)
            shown = world.last(kinds.GROUP_METADATA, group.id)
            assert shown.tag("parent") == group.parent
            assert shown.tag_values("child") == list(group.children)


@pytest.mark.proves("N29-171", "N29-172")
@given(histories)
def test_pinned_events_are_stored(history: list[Step]) -> None:
    """After every step; the index of pins agrees."""
    world = World(OPEN)
    for do in history:
        do(world)
        for group in world.groups.by_id.values():
            pins = [(tag[0], tag[1]) for tag in group.pins]
            assert len(set(pins)) == len(pins)
            for name, value in pins:
                assert any((name, value) in pins_of(row) for row in world.log)
            if kinds.GROUP_PINS in group.notice_times:
                shown = world.last(kinds.GROUP_PINS, group.id).tags
                assert shown == [["d", group.id], *map(list, group.pins)]
            else:
                assert not pins
        indexed = {(pin_, of) for pin_, ids_ in world.groups.pinned.items() for of in ids_}
        assert indexed == {
            ((tag[0], tag[1]), group.id)
            for group in world.groups.by_id.values()
            for tag in group.pins
        }


@pytest.mark.proves("N29-42", "N29-114")
@given(histories)
def test_no_ruling_removes_the_last_admin_of_members(history: list[Step]) -> None:
    world = World(OPEN)
    for do in history:
        before, ids_before = world.groups, {row.id for row in world.log}
        do(world)
        new = [row for row in world.log if row.id not in ids_before]
        if any(row.pubkey == RELAY and row.kind == 9001 for row in new):
            continue  # a vanish or a ban removes the last admin too
        for group in world.groups.by_id.values():
            old = before.get(group.id)
            if old is not None and old.has_admin() and group.members:
                assert group.has_admin()


@pytest.mark.proves("N29-06", "N29-93", "Z-02")
@given(histories, st.sampled_from(list(range(9000, 9023))), codes)
def test_a_non_member_cannot_tell_a_hidden_group_from_none(
    history: list[Step], kind: int, code: str
) -> None:
    """Whatever happened there, unless they are admitted."""
    world = lived(history)
    if kind == kinds.CREATE_GROUP or "tea" not in world.groups.by_id:
        return
    world.groups = world.groups.with_group(
        replace(world.tea, flags=world.tea.flags | {Flag.HIDDEN})
    )
    asks = [["p", stranger.pubkey], ["e", world.log[-1].id], ["code", code], ["previous", "x" * 8]]
    for tags in (asks, asks[:3]):
        known = world.do(stranger, kind, *tags)
        assert known == (True, "") or known == world.do(stranger, kind, *tags, group="nowhere")
    if not world.groups.is_member(stranger.pubkey):
        assert world.say(stranger, "hello") == NOT_A_MEMBER


@pytest.mark.proves("Z-03")
@given(histories)
def test_forced_flags_are_on_in_every_group_that_is_made_or_edited(history: list[Step]) -> None:
    world = lived(history)
    for group_id in ids_of(world):  # a tree is hidden as a whole: first let each be a root
        assert place(world, owner, "", group_id) == STORED
    world.settings = GUARDED
    for group in list(world.groups.by_id.values()):
        world.edit(owner, ["public"], ["visible"], ["open"], group=group.id)
        assert world.groups.by_id[group.id].flags == PRIVATE_FLAGS
    world.make(robot, "new one", ["livekit"])
    assert world.groups.by_id["new one"].flags == PRIVATE_FLAGS | {Flag.LIVEKIT}


@pytest.mark.proves("N29-58")
@given(histories, st.sampled_from([admin, alice, owner]))
def test_a_vanish_changes_nobody_elses_membership(history: list[Step], who: SecretKey) -> None:
    """Their records are deleted, the effect on others stays."""
    world = lived(history)
    before, drafts = removals_from_groups(
        world.groups, who.pubkey, world.now + 1, Cause.OWN_WISH, RELAY
    )
    world.log = [row for row in world.log if row.pubkey != who.pubkey]
    world.groups = world.rebuilt()
    world.mend(drafts)
    world.mend(repair_drafts(before, world.groups, world.now + 2, RELAY))
    assert world.groups == world.rebuilt()
    assert world.groups.ended.keys() == before.ended.keys()
    assert world.groups.memberships == before.memberships
    for group in before.by_id.values():
        mended = world.groups.by_id[group.id]
        assert mended.members == group.members
        assert mended.flags == group.flags
        assert mended.metadata == group.metadata
        assert mended.removed.keys() >= group.removed.keys()


@pytest.mark.proves("N29-50")
@given(histories, histories)
def test_actions_in_one_group_change_no_other(one: list[Step], two: list[Step]) -> None:
    """9005 and 9009 have effect only in their own group."""
    world = lived(one)
    world.make(robot, "apart")
    world.invite(robot, "sesame-1", ["reusable"], group="apart")
    world.send(event(robot, 9, ["h", "apart"], at=world.now))
    apart = world.groups.by_id["apart"]
    rows = [row for row in world.log if "apart" in (row.tag("h"), row.tag("d"))]
    for do in two:
        do(world)
    assert world.groups.by_id["apart"] == apart
    assert [row for row in world.log if row in rows] == rows
