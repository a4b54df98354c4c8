"""relay/groups/group.py, membership.py: the fold, and the effect of deleted rows."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from relay.groups.actions import UNTOLD_FLAGS, Flag, InviteUse
from relay.groups.context import Joins
from relay.groups.group import (
    EndedGroup,
    Group,
    Groups,
    GroupsByKey,
    Invite,
    Replay,
    pins_of,
    replayed,
)
from relay.groups.key_map import KeyMap
from relay.groups.membership import Cause, groups_without_rows, removals_from_groups, repair_drafts
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, dave, owner, robot, stranger
from tests.unit.groups.world import GUARDED, NOON, OPEN, RELAY, STORED, World, event, tea_party

if TYPE_CHECKING:
    from collections.abc import Set


def lived_in() -> World:
    """A group with members, invites, requests, pins and a removal."""
    world = tea_party(GUARDED)
    world.invite(admin, "open sesame", ["reusable"])
    world.invite(admin, "used up now")
    world.join(stranger, "open sesame")
    world.join(carol, "used up now")
    world.remove(admin, stranger)
    world.leave(carol)
    world.edit(admin, ["name", "Tea"], ["theme", "green"], ["supported_kinds", "9"], ["hidden"])
    world.make(robot, "coffee")
    world.put(robot, alice, "poet", group="coffee")
    world.make(robot, "gone")
    world.end(robot, "gone")
    return world


@pytest.mark.proves("N29-55", "N29-56", "N29-82")
def test_a_replay_gives_the_live_state() -> None:
    world = lived_in()
    assert world.rebuilt() == world.groups
    assert world.groups.ended.keys() == {"gone"}
    assert world.groups.groups_of(alice.pubkey) == {"tea", "coffee"}
    assert world.tea.invites["used up now"].used == 1
    assert world.tea.removed.keys() == {stranger.pubkey}
    assert world.tea.involved.keys() == {
        who.pubkey for who in (owner, admin, alice, bob, stranger, carol)
    }


def test_a_change_compares_those_whom_it_names_not_all_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To compare 10,000 took 3 of the 4 ms of each change."""
    compared: list[int] = []

    def counting(index: Any, moves: Any) -> Any:
        moves = list(moves)
        compared.extend(max(len(old), len(new)) for old, new, _ in moves)
        return moved(index, moves)

    moved = GroupsByKey.moved
    monkeypatch.setattr(GroupsByKey, "moved", counting)
    world = tea_party(OPEN)
    world.do(admin, 9000, *(["p", f"{number:064x}"] for number in range(100)))
    compared.clear()
    world.put(admin, stranger)
    world.remove(admin, stranger)
    world.join(dave)
    world.leave(dave)
    assert compared == [1, 1, 1, 1]
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-55")
def test_a_replay_does_not_depend_on_the_policy() -> None:
    """Flags come from the relay's 39000."""
    world = World(OPEN)
    world.make(admin)
    world.settings = GUARDED
    assert world.rebuilt().by_id["tea"].flags == frozenset()


@pytest.mark.proves("N29-60", "N29-73")
def test_flags_are_taken_only_from_39000_by_this_relay() -> None:
    """Without one a group is private and hidden."""
    world = tea_party(OPEN)
    foreign = replayed(Groups(), world.log, stranger.pubkey)
    assert foreign.by_id["tea"].flags == UNTOLD_FLAGS
    assert foreign.by_id["tea"].members == world.tea.members
    forged = event(admin, 39000, ["d", "tea"], ["name", "Mine"])
    assert replayed(world.groups, [forged], RELAY) == world.groups


@pytest.mark.proves("N29-83")
def test_a_self_removal_tag_counts_only_by_the_relay() -> None:
    """Anyone else may write it too."""
    world = tea_party(OPEN)
    assert world.do(admin, 9000, ["p", carol.pubkey]) == STORED
    assert world.do(admin, 9001, ["p", carol.pubkey], ["self-removal"]) == STORED
    assert carol.pubkey in world.tea.removed


@pytest.mark.proves("N29-73", "N29-37")
def test_a_code_stays_used_up_when_the_relay_has_a_new_key() -> None:
    """And another one after that: of earlier keys only the one of the 9007 is known. So an `invite`
    tag counts in a 9000 by any key: who may add members has no need of a code."""
    world = tea_party(OPEN)
    world.invite(admin, "open sesame")
    made = world.last(kinds.CREATE_INVITE).id
    assert world.do(admin, 9000, ["p", carol.pubkey], ["invite", made, "0"]) == STORED
    assert world.tea.invites["open sesame"].used == 1
    rotated = replayed(Groups(), world.log, stranger.pubkey)
    assert rotated.by_id["tea"].invites["open sesame"].used == 1


@pytest.mark.proves("N29-55")
def test_replaying_one_by_one_equals_all_at_once() -> None:
    world = lived_in()
    groups = Groups()
    for row in world.log:
        groups = replayed(groups, [row], RELAY)
    assert world.with_last_members(groups) == world.groups


@pytest.mark.proves("N29-55")
def test_a_replay_applies_malformed_and_unauthorized_records() -> None:
    """It was accepted, perhaps by an older version."""
    log = [
        event(admin, 9007, ["h", "a/b"]),
        event(stranger, 9000, ["h", "a/b"], ["p", alice.pubkey, *"123456789"], ["p", "short"], []),
        event(RELAY, 9000, ["h", "a/b"], ["p", bob.pubkey], ["invite", "x", "one"], ["invite"]),
        event(stranger, 9009, ["h", "a/b"], ["code", "short"], ["expiration", "soon"]),
        event(alice, 1, ["h", "a/b"]),
        event(alice, 9021),
        event(alice, 9003, ["h", "a/b"], ["p", "x"]),
    ]
    groups = replayed(Groups(), log, RELAY)
    group = groups.by_id["a/b"]
    assert group.members == {alice.pubkey: tuple("123456789"), bob.pubkey: ()}
    assert group.invites["short"].expires_at is None
    assert list(groups.by_id) == ["a/b"]


@pytest.mark.slow
@pytest.mark.proves("N29-55")
def test_twenty_thousand_records_are_replayed_to_the_end() -> None:
    log = [event(admin, 9007, ["h", "tea"])]
    log += [event(admin, 9000, ["h", "tea"], ["p", f"{n % 500:064x}"]) for n in range(20_000)]
    log.append(event(admin, 9001, ["h", "tea"], ["p", f"{0:064x}"]))
    groups = replayed(Groups(), log, RELAY)
    assert len(groups.by_id["tea"].members) == 499


@pytest.mark.proves("N29-10", "N29-11", "N29-97")
def test_flags_decide_who_reads_and_writes() -> None:
    assert not Group("tea", flags=frozenset({Flag.CLOSED})).only_members_write
    assert Group("tea", flags=frozenset({Flag.RESTRICTED})).only_members_write
    assert not Group("tea", flags=frozenset({Flag.RESTRICTED})).only_members_read
    for flag in (Flag.PRIVATE, Flag.HIDDEN):
        assert Group("tea", flags=frozenset({flag})).only_members_read
        assert Group("tea", flags=frozenset({flag})).only_members_write


# Deleted rows


@pytest.mark.proves("N29-37", "N29-55")
def test_deleted_invites_and_requests_leave_the_state() -> None:
    world = tea_party(replace(OPEN, joins=Joins.REVIEW))
    world.invite(admin, "open sesame", ["expiration", str(NOON + 5)])
    world.join(stranger)
    rows = [row for row in world.log if row.kind in (9009, 9021)]
    world.log = [row for row in world.log if row not in rows]
    world.groups = groups_without_rows(world.groups, rows)
    assert world.tea.invites == {}
    assert world.tea.requests == {}
    assert stranger.pubkey not in world.tea.involved
    assert world.rebuilt() == world.groups


def test_a_replay_without_a_9005_gives_the_same() -> None:
    """What it names was deleted with it, so relays that share a database need not replay a group
    when one expires."""
    world = tea_party(replace(OPEN, joins=Joins.REVIEW))
    world.invite(admin, "open sesame")
    world.join(stranger)
    world.say(alice, "hi")
    rows = [world.last(kind) for kind in (kinds.CREATE_INVITE, kinds.JOIN_REQUEST, kinds.CHAT)]
    assert world.delete(admin, *(row.id for row in rows)) == STORED
    world.join(stranger)
    deletion = world.last(kinds.DELETE_EVENT)
    assert not {row.id for row in rows} & {row.id for row in world.log}
    before = world.groups
    world.forget(deletion)
    assert deletion not in world.log
    assert world.groups == before == world.rebuilt()
    assert (len(world.tea.invites), len(world.tea.requests)) == (0, 1)


def test_invites_of_a_group_that_has_ended_expire_without_effect() -> None:
    world = tea_party(OPEN)
    world.invite(admin, "open sesame", ["expiration", str(NOON + 5)])
    invite = world.last(kinds.CREATE_INVITE)
    world.end(admin)
    assert groups_without_rows(world.groups, [invite]) == world.groups


@pytest.mark.proves("N29-84")
def test_a_vanished_member_leaves_every_group_and_may_join_again() -> None:
    world = tea_party(OPEN)
    world.make(alice, "coffee")
    groups, drafts = removals_from_groups(world.groups, alice.pubkey, NOON, Cause.OWN_WISH, RELAY)
    assert [draft.kind for draft in drafts] == [9001, 9001]
    assert not groups.is_member(alice.pubkey)
    world.mend(drafts)
    assert world.groups == world.rebuilt()
    assert world.groups.memberships == groups.memberships
    assert world.tea.removed == {}
    assert world.join(alice) == STORED


def test_who_leaves_many_groups_has_their_ids_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A founder of 9,000 leaves 16 in a transaction."""
    world = tea_party(OPEN)
    for number in range(20):
        world.make(alice, f"g{number}")
    left = {f"g{number}" for number in range(16)}
    asked: list[int] = []

    def counting(index: Any, moves: Any) -> Any:
        moves = list(moves)
        asked.append(len(moves))
        return moved(index, moves)

    moved = GroupsByKey.moved
    monkeypatch.setattr(GroupsByKey, "moved", counting)
    groups, drafts = removals_from_groups(
        world.groups, alice.pubkey, NOON, Cause.OWN_WISH, RELAY, left=left
    )
    assert sorted(asked) == [0, 0, 16]
    assert {draft.tags[0] for draft in drafts} == {("h", each) for each in left}
    assert groups.groups_of(alice.pubkey) == world.groups.groups_of(alice.pubkey) - left


@pytest.mark.proves("N29-84", "N29-40")
def test_a_banned_member_is_removed_from_every_group() -> None:
    world = tea_party(OPEN)
    groups, drafts = removals_from_groups(world.groups, alice.pubkey, NOON, Cause.BANNED, RELAY)
    world.mend(drafts)
    assert world.groups == world.rebuilt()
    assert world.tea.removed == groups.by_id["tea"].removed == {alice.pubkey: 1}
    assert world.join(alice) == (False, "restricted: pending review")


@pytest.mark.proves("N29-58")
def test_members_stay_when_their_admin_vanishes() -> None:
    """The relay signs records to the same effect."""
    world = tea_party(OPEN)
    world.put(admin, carol)
    for who, put_by in ((dave, owner), (stranger, admin)):
        world.put(put_by, who)
        world.remove(admin, who)
    world.put(owner, robot)
    world.leave(robot)
    world.do(owner, 9000, ["p", bob.pubkey])
    world.do(admin, 9000, ["p", bob.pubkey, "poet"])
    world.put(admin, alice, "admin")
    world.make(admin, "gone")
    world.end(admin, "gone")
    before, drafts = removals_from_groups(
        world.groups, admin.pubkey, NOON + 1, Cause.OWN_WISH, RELAY
    )
    world.log = [row for row in world.log if row.pubkey != admin.pubkey]
    world.groups = world.rebuilt()
    world.mend(drafts)
    mended = repair_drafts(before, world.groups, NOON + 1, RELAY)
    assert [draft.kind for draft in mended] == [9008, 9001, 9000]
    world.mend(mended)
    assert world.groups == world.rebuilt()
    assert world.tea.members == before.by_id["tea"].members
    assert world.tea.removed.keys() == before.by_id["tea"].removed.keys()
    assert world.tea.removed.keys() == {dave.pubkey, stranger.pubkey}
    assert world.tea.flags == before.by_id["tea"].flags
    assert world.groups.ended.keys() == {"gone"}
    assert world.groups.memberships == before.memberships


def test_a_vanish_without_moderation_records_needs_no_repair() -> None:
    world = tea_party(OPEN)
    world.put(admin, carol)
    world.put(admin, dave)
    world.remove(admin, dave)
    before, drafts = removals_from_groups(
        world.groups, alice.pubkey, NOON + 1, Cause.OWN_WISH, RELAY
    )
    world.log = [row for row in world.log if row.pubkey != alice.pubkey]
    world.groups = world.rebuilt()
    world.mend(drafts)
    assert repair_drafts(before, world.groups, NOON + 1, RELAY) == ()


def test_a_record_of_the_relay_names_at_most_five_hundred_keys() -> None:
    users = {f"{number:064x}": () for number in range(1001)}
    before = Groups().with_group(Group("tea").with_users(users))
    drafts = repair_drafts(before, Groups(), NOON, RELAY)
    assert [draft.kind for draft in drafts] == [kinds.PUT_USER] * 3
    named = [[tag[1] for tag in draft.tags if tag[0] == "p"] for draft in drafts]
    assert [len(keys) for keys in named] == [500, 500, 1]
    assert [key for keys in named for key in keys] == list(users)


# Values


def test_a_code_admits_until_it_expires() -> None:
    code = Invite("9" * 64, admin.pubkey, NOON, NOON + 10, reusable=False, index=0)
    assert code.is_open(now=NOON + 9, uses=1)
    assert not code.is_open(now=NOON + 10, uses=1)
    assert not code.is_open(now=NOON, uses=0)


def test_invites_hold_nothing_of_those_who_were_removed() -> None:
    """5,000 codes and one 9001 with 5,000 keys took 1.3 GB, and again at each start."""
    codes = [["code", f"code number {number}"] for number in range(1000)]
    keys = [["p", f"{number:064x}"] for number in range(1000)]
    made = [event(admin, 9007, ["h", "tea"]), event(admin, 9009, ["h", "tea"], *codes)]
    groups = replayed(Groups(), made, RELAY)
    removal = event(admin, 9001, ["h", "tea"], *keys)
    tracemalloc.start()
    try:
        tea = replayed(groups, [removal], RELAY).by_id["tea"]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tea.removed) == len(tea.invites) == 1000
    assert held < 1_000_000


def test_a_group_is_copied_once_for_all_its_codes_that_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 of 10,000 codes in a group that knows 100,000 keys took 1.4 s, in one transaction."""
    codes = [
        [event(admin, 9009, ["h", h], ["code", f"code of {h} {n}"]) for n in range(9)]
        for h in ("tea", "den")
    ]
    made = [event(admin, 9007, ["h", h]) for h in ("tea", "den")]
    groups = replayed(Groups(), [*made, *codes[0], *codes[1]], RELAY)
    copied: list[str] = []

    def counting(group: Group, ids: Set[str]) -> Group:
        copied.append(group.id)
        return without_rows(group, ids)

    without_rows = Group.without_rows
    monkeypatch.setattr(Group, "without_rows", counting)
    left = groups_without_rows(groups, [*codes[0][:8], *codes[1]])
    assert {h: [*left.by_id[h].invites] for h in left.by_id} == {
        "tea": ["code of tea 8"],
        "den": [],
    }
    assert sorted(copied) == ["den", "tea"]


def test_a_deleted_message_or_a_used_code_does_not_go_through_requests_and_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100,000 requests that was 120 ms for each 9005, also at each start."""
    world = tea_party(replace(OPEN, joins=Joins.REVIEW))
    world.invite(admin, "open sesame", ["code", "open barley"])
    world.join(stranger)
    tea = world.tea
    for name in ("__iter__", "items"):
        monkeypatch.setattr(KeyMap, name, lambda _: pytest.fail("went through all of them"))
    assert tea.without_rows({"e" * 64}) is tea
    joined = tea.with_use_of(InviteUse(world.last(kinds.CREATE_INVITE).id, 1))
    assert [joined.invites[code].used for code in ("open sesame", "open barley")] == [0, 1]
    for other in (InviteUse("e" * 64, 0), InviteUse(world.last(kinds.CREATE_INVITE).id, 2)):
        assert tea.with_use_of(other) is tea


def test_a_replay_changes_no_group_that_it_was_given() -> None:
    before = tea_party(OPEN).groups
    kept = dict(before.by_id["tea"].members)
    replay = Replay(before, RELAY)
    for kind in (9000, 9001, 9000):
        replay.add([event(admin, kind, ["h", "tea"], ["p", carol.pubkey])])
    after = replay.groups()
    assert after.groups_of(carol.pubkey) == {"tea"}
    replay.add([event(admin, 9000, ["h", "tea"], ["p", dave.pubkey])])
    assert dave.pubkey not in after.by_id["tea"].members, "each is a value of its own"
    assert before.by_id["tea"].members == kept


def test_membership_of_any_group() -> None:
    groups = tea_party(OPEN).groups
    assert groups.is_member(alice.pubkey)
    assert not groups.is_member(stranger.pubkey)


def test_a_pin_is_removed_whatever_follows_in_its_tag() -> None:
    pins = (("e", "1" * 64, "wss://relay.example"), ("e", "2" * 64))
    group = Group("tea", pins=pins)
    assert group.without_pin(("e", "1" * 64)).pins == pins[1:]
    assert Groups().with_group(group).pinned.keys() == {("e", "1" * 64), ("e", "2" * 64)}


def test_a_replaceable_event_is_pinned_without_its_d_tag() -> None:
    _, by_address = pins_of(event(alice, 10009, ["d", "mine"]))
    assert by_address == ("a", f"10009:{alice.pubkey}:")
    _, by_address = pins_of(event(alice, 30023, ["d", "mine"]))
    assert by_address == ("a", f"30023:{alice.pubkey}:mine")


def test_records_of_a_group_that_has_ended_do_not_bring_it_back() -> None:
    world = tea_party(OPEN)
    world.end(admin)
    late = event(admin, 9000, ["h", "tea"], ["p", carol.pubkey])
    assert replayed(world.groups, [late], RELAY) == world.groups


def test_a_join_request_of_a_member_in_the_log_changes_nothing() -> None:
    world = tea_party(OPEN)
    asked = event(alice, 9021, ["h", "tea"])
    assert replayed(world.groups, [asked], RELAY) == world.groups


def test_a_group_that_ends_keeps_who_may_know_of_it() -> None:
    for flag, is_public in ((Flag.CLOSED, True), (Flag.PRIVATE, False), (Flag.HIDDEN, False)):
        world = tea_party(OPEN, flag)
        members = frozenset(world.tea.members)
        world.end(admin)
        assert world.groups.ended == {"tea": EndedGroup(members, is_public=is_public)}
        assert world.groups.ended_with(alice.pubkey) == {"tea"}


def test_a_change_of_members_copies_little_of_what_all_others_are_in() -> None:
    """Beside 200,000 members of other groups each change took 25 ms, and 512 are one batch."""
    keys = [f"{number:064x}" for number in range(20_000)]
    groups = Groups().with_group(Group("crowd").with_users(dict.fromkeys(keys, ())))
    few = Group("few").with_users({alice.pubkey: ()})
    after = groups.with_group(few)
    assert after.memberships == {**groups.memberships, alice.pubkey: {"few"}}
    before, now = groups.memberships.parts, after.memberships.parts
    assert sum(map(len, now)) == 20_001
    copied = [new for old, new in zip(before, now, strict=True) if new is not old]
    assert len(copied) == 1
    assert len(copied[0]) < 400
    left = after.with_group(few.without_users({alice.pubkey}))
    assert left.memberships == groups.memberships
    assert alice.pubkey not in left.memberships
