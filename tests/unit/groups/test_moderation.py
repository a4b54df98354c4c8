"""relay/groups/rules.py: 9000, 9001, 9005, 9009 and the rights for them. N29-44…58, N29-110…114."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.groups.actions import UNTOLD_FLAGS, Flag
from relay.groups.context import GroupContext, Joins
from relay.groups.group import Group, Groups
from relay.groups.membership import MAX_ASKED, loses_last_admin
from relay.groups.rules import (
    MAX_CHANGED,
    MAX_CODES,
    MAX_INVOLVED,
    MAX_MEMBERS,
    MAX_PUT_INTO,
    _most_groups,
)
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, dave, owner, robot, stranger
from tests.unit.groups.world import (
    GUARDED,
    NOON,
    NOT_A_MEMBER,
    OPEN,
    STORED,
    World,
    event,
    tea_party,
)

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

ADMINS_ONLY = (False, "restricted: only an admin of the group may do this")
ROLE_HOLDER = (False, "restricted: only an admin may change or remove a member with a role")
NOTHING_TO_DELETE = (False, "invalid: e: names no event of this group that can be deleted")


@pytest.fixture
def world() -> World:
    """admin, bob as moderator, alice and carol as members, dave with another role."""
    world = tea_party(OPEN)
    assert world.put(admin, carol) == STORED
    assert world.put(admin, dave, "poet") == STORED
    return world


# 9000


@pytest.mark.proves("N29-46", "N29-111")
def test_an_admin_puts_users_with_exactly_these_roles(world: World) -> None:
    assert world.put(admin, alice, "admin", "poet", "admin") == STORED
    assert world.tea.members[alice.pubkey] == ("admin", "poet")
    assert world.put(admin, alice) == STORED
    assert world.tea.members[alice.pubkey] == ()


def test_a_9000_fills_a_group_to_a_limit(world: World) -> None:
    """Each change of members costs time by their number."""
    keys = [["p", f"{number:064x}"] for number in range(MAX_MEMBERS)]
    before = len(world.tea.members)
    full = (False, "blocked: p: above 10000 members, add one in each event")
    assert world.do(owner, 9000, *keys) == full
    assert world.do(owner, 9000, *keys[before:]) == STORED
    assert world.do(owner, 9000, ["p", stranger.pubkey], ["p", "b" * 64]) == full
    assert world.put(admin, alice, "poet") == STORED, "who is in already"
    assert world.join(stranger) == STORED, "filling it keeps nobody out"
    assert world.do(admin, 9000, ["p", "b" * 64]) == STORED, "whoever has filled it"


@pytest.mark.parametrize("kind", [9000, 9001])
def test_an_admin_changes_some_members_at_once(world: World, kind: int) -> None:
    """Some clients that sent lists of 5,000 kept all writers waiting for a second."""
    many = [["p", f"{number:064x}"] for number in range(MAX_CHANGED)] + [["p", bob.pubkey]]
    text = "invalid: p: at most 500 members in one event, send several"
    assert world.do(admin, kind, *many) == (False, text)
    assert world.do(admin, kind, *many[1:]) == STORED


def test_an_admin_lifts_no_limit_by_the_role_of_an_agent(world: World) -> None:
    many = [["p", f"{number:064x}"] for number in range(MAX_CHANGED + 1)]
    assert world.make(owner, "den") == STORED
    for who in (admin, robot):
        assert world.put(owner, who, "admin", "agent", group="den") == STORED
    assert not world.do(admin, 9000, *many, group="den")[0]
    assert world.do(robot, 9000, *many, group="den") == STORED, "an agent of the relay"


def test_a_key_that_is_in_many_groups_is_put_into_another_if_it_asks() -> None:
    """Whoever put all members into 1,600 groups made each of their reads take 0.6 s. Who was put in
    and removed again could be put in above the bound."""
    world = World(replace(OPEN, joins=Joins.REVIEW))
    for number in range(MAX_PUT_INTO):
        assert world.make(admin, f"g{number}") == STORED
        assert world.put(admin, alice, group=f"g{number}") == STORED
    assert world.make(admin, "tea") == STORED
    text = f"p: {alice.pubkey} is in many groups: let it join by itself, or an owner put it in"
    assert world.do(admin, 9000, ["p", bob.pubkey], ["p", alice.pubkey]) == (
        False,
        f"blocked: {text}",
    )
    assert world.put(admin, bob) == STORED
    assert world.put(admin, alice, "poet", group="g1") == STORED, "it is in already"
    world.join(alice)
    assert alice.pubkey in world.tea.requests
    assert world.put(admin, alice) == STORED
    assert world.remove(admin, alice) == STORED
    assert not world.put(admin, alice)[0], "who was in"
    world.join(alice)
    assert world.put(admin, alice) == STORED
    assert world.make(bob, "den") == STORED
    assert not world.put(bob, alice, group="den")[0]
    assert world.put(owner, alice, group="den") == STORED
    for number in range(3):
        assert world.leave(alice, group=f"g{number}") == STORED
    assert world.make(bob, "pub") == STORED
    assert world.put(bob, alice, group="pub") == STORED


def test_how_many_groups_are_too_many_is_known_to_nobody() -> None:
    """A refusal would tell how many a key is in, hidden ones too."""
    keys = [f"{number:064x}" for number in range(200)]

    def most(salt: bytes, now: int = 1_700_000_000) -> list[int]:
        context = GroupContext(Groups(), OPEN, now, Origin.WIRE, frozenset(), salt=salt)
        return [_most_groups(key, context) for key in keys]

    of_start = most(b"a secret")
    assert set(of_start) == set(range(MAX_PUT_INTO, MAX_PUT_INTO + 16))
    assert of_start == most(b"a secret"), "asked again"
    assert of_start != most(b"another")
    by_minute = [most(b"a secret", 60 * minute)[0] for minute in range(60)]
    assert len({*by_minute}) == 8, "else it tells when a key gets into one more group"
    assert by_minute[7] == most(b"a secret", 7 * 60 + 59)[0], "else a minute's tries tell it"


def test_in_how_many_groups_a_key_is_is_asked_only_for_a_change_that_would_be_made() -> None:
    """By changes that are refused anyway anybody could ask, and nothing was stored."""
    world = World(OPEN)
    for number in range(MAX_PUT_INTO):
        assert world.make(admin, f"g{number}") == STORED
        assert world.put(admin, alice, group=f"g{number}") == STORED
    assert world.make(admin, "tea") == STORED
    without_admin = [["p", alice.pubkey], ["p", admin.pubkey]]
    text = "the last admin cannot leave while there are members; make another admin first"
    assert world.do(admin, 9000, *without_admin) == (False, f"restricted: {text}")
    assert not world.put(admin, alice)[0]


@pytest.mark.slow
def test_a_group_remembers_so_many_keys(world: World) -> None:
    keys = [["p", f"{number:064x}"] for number in range(MAX_INVOLVED)]
    full = (False, "blocked: p: a group knows at most 100000 keys")
    assert world.do(owner, 9001, ["p", bob.pubkey], *keys) == full
    assert world.do(owner, 9001, ["p", bob.pubkey], *keys[: -len(world.tea.involved)]) == STORED
    assert world.put(admin, stranger) == full
    assert world.put(admin, bob) == STORED
    assert world.remove(admin, bob) == STORED


@pytest.mark.slow
def test_who_asks_to_join_leaves_room_for_those_whom_admins_put_in(world: World) -> None:
    """Anybody has any number of keys: at 100,000 nobody could ever be put in again."""
    keys = [["p", f"{number:064x}"] for number in range(MAX_ASKED)]
    gone = ["p", bob.pubkey], *keys[: MAX_ASKED - len(world.tea.involved)]
    assert world.do(owner, 9001, *gone) == STORED
    full = (False, "blocked: the group takes no more requests to join; ask an admin to be put in")
    assert world.join(stranger) == full
    assert world.invite(admin, "open sesame") == STORED
    assert world.join(stranger, "open sesame") == STORED
    assert world.put(admin, bob) == STORED
    assert MAX_ASKED + MAX_MEMBERS == MAX_INVOLVED


def test_a_group_has_so_many_codes(world: World) -> None:
    codes = [["code", f"a code {number}"] for number in range(MAX_CODES)]
    assert world.do(admin, 9009, *codes) == STORED
    full = (False, "blocked: code: a group has at most 10000 codes")
    assert world.invite(admin, "one more") == full


@pytest.mark.proves("N29-46")
def test_several_users_are_put_at_once(world: World) -> None:
    """All or nothing."""
    both = (["p", robot.pubkey, "agent"], ["p", stranger.pubkey])
    assert world.do(bob, 9000, *both)[0] is False
    assert not world.is_in(stranger)
    assert world.do(admin, 9000, *both) == STORED
    assert world.tea.members[robot.pubkey] == ("agent",)
    assert world.is_in(stranger)


@pytest.mark.proves("N29-112")
def test_a_moderator_puts_plain_members_only(world: World) -> None:
    assert world.put(bob, stranger) == STORED
    refused = (False, "restricted: only an admin may give roles")
    assert world.put(bob, stranger, "moderator") == refused
    assert world.put(bob, stranger, "poet") == refused
    assert world.put(bob, admin) == ROLE_HOLDER
    assert world.put(bob, dave) == ROLE_HOLDER


@pytest.mark.proves("N29-112")
def test_a_moderator_uses_up_no_codes_of_others(world: World) -> None:
    """The relay's 9000 names the code by which its user joined; theirs made codes invalid."""
    world.invite(admin, "open sesame")
    use = ["invite", world.last(kinds.CREATE_INVITE).id, "0"]
    refused = (False, "restricted: only an admin may put in users by an invite")
    assert world.do(bob, 9000, ["p", stranger.pubkey], use) == refused
    assert world.join(stranger, "open sesame") == STORED


@pytest.mark.proves("N29-44", "N29-110", "N29-112")
def test_members_other_roles_and_non_members_may_not_moderate(world: World) -> None:
    """Roles other than admin and moderator have no rights."""
    world.say(alice, "hello")
    said = world.last(kinds.CHAT).id
    for who, answer in ((alice, ADMINS_ONLY), (dave, ADMINS_ONLY), (stranger, NOT_A_MEMBER)):
        assert world.put(who, stranger) == answer
        assert world.remove(who, carol) == answer
        assert world.edit(who, ["name", "Mine"]) == answer
        assert world.delete(who, said) == answer
        assert world.invite(who, "let me in") == answer
        assert world.end(who) == answer


def test_an_owner_has_the_rights_of_an_admin_in_every_group(world: World) -> None:
    assert world.put(owner, stranger, "admin") == STORED
    assert world.remove(owner, bob) == STORED
    assert world.edit(owner, ["name", "Owned"]) == STORED
    assert world.invite(owner, "by owner") == STORED
    assert owner.pubkey not in world.tea.members


@pytest.mark.proves("N29-44")
def test_a_role_counts_in_its_own_group_only(world: World) -> None:
    assert world.make(carol, "coffee") == STORED
    assert world.put(admin, alice, group="coffee") == NOT_A_MEMBER
    assert world.remove(carol, alice) == ADMINS_ONLY


# 9001


@pytest.mark.proves("N29-47")
def test_removal_ends_membership_and_roles(world: World) -> None:
    assert world.remove(admin, bob) == STORED
    assert not world.is_in(bob)
    assert bob.pubkey not in world.tea.admins()
    assert world.tea.removed.keys() == {bob.pubkey}
    assert world.put(bob, stranger) == NOT_A_MEMBER


@pytest.mark.proves("N29-47")
def test_a_removal_of_no_member_is_invalid(world: World) -> None:
    assert world.remove(admin, stranger) == (False, "invalid: p: none of these keys is a member")
    assert world.do(admin, 9001, ["p", stranger.pubkey], ["p", alice.pubkey]) == STORED
    assert not world.is_in(alice)


@pytest.mark.proves("N29-112")
def test_a_moderator_removes_plain_members_only(world: World) -> None:
    assert world.remove(bob, alice) == STORED
    assert world.remove(bob, dave) == ROLE_HOLDER
    assert world.remove(bob, admin) == ROLE_HOLDER
    assert world.do(bob, 9001, ["p", carol.pubkey], ["p", dave.pubkey]) == ROLE_HOLDER
    assert world.is_in(carol)


@pytest.mark.proves("N29-42", "N29-114")
def test_the_last_admin_cannot_be_removed_while_there_are_members(world: World) -> None:
    refused = (
        False,
        "restricted: the last admin cannot leave while there are members; make another admin first",
    )
    assert world.remove(admin, admin) == refused
    assert world.put(admin, admin, "moderator") == refused
    assert world.remove(owner, admin) == refused
    assert world.put(admin, alice, "admin") == STORED
    assert world.put(admin, admin, "moderator") == STORED
    assert world.remove(alice, alice) == refused


@pytest.mark.proves("N29-42")
def test_an_admin_without_other_members_may_leave(world: World) -> None:
    """The group stays."""
    for who in (alice, bob, carol, dave):
        assert world.remove(admin, who) == STORED
    assert world.put(admin, admin)[0] is False
    assert world.remove(admin, admin) == STORED
    assert world.tea.members == {}
    assert world.tea.removed.keys() == {who.pubkey for who in (alice, bob, carol, dave)}
    assert world.put(owner, alice) == STORED


# 9005


@pytest.mark.proves("N29-50")
def test_an_admin_deletes_events_of_this_group_only(world: World) -> None:
    """Unknown ids and those of other groups or none are skipped."""
    world.say(alice, "rude")
    rude = world.last(kinds.CHAT).id
    world.make(carol, "coffee")
    world.say(carol, "fine", group="coffee")
    fine = world.last(kinds.CHAT, "coffee").id
    note = event(alice, kinds.NOTE)
    world.send(note)
    assert world.delete(admin, fine) == NOTHING_TO_DELETE
    assert world.delete(admin, note.id) == NOTHING_TO_DELETE
    assert world.delete(admin, "0" * 64) == NOTHING_TO_DELETE
    assert world.delete(admin, rude, fine, note.id, "0" * 64) == STORED
    stored = {row.id for row in world.log}
    assert rude not in stored
    assert {fine, note.id} <= stored


@pytest.mark.proves("N29-51")
def test_records_and_group_state_cannot_be_deleted(world: World) -> None:
    for kind in (9000, 9007, 39000, 39001, 39002, 39003):
        assert world.delete(admin, world.last(kind).id) == NOTHING_TO_DELETE


@pytest.mark.proves("N29-112")
def test_a_moderator_deletes_events_of_plain_members_and_non_members(world: World) -> None:
    refused = (False, "restricted: only an admin may delete events of a member with a role")
    ids = {}
    for who in (admin, dave, bob, alice, stranger):
        world.say(who, "hello")
        ids[who.pubkey] = world.last(kinds.CHAT).id
    assert world.delete(bob, ids[admin.pubkey]) == refused
    assert world.delete(bob, ids[alice.pubkey], ids[dave.pubkey]) == refused
    assert world.delete(bob, ids[alice.pubkey], ids[stranger.pubkey], ids[bob.pubkey]) == STORED
    assert world.delete(admin, ids[dave.pubkey]) == STORED


@pytest.mark.proves("N29-51")
def test_deleting_an_invite_revokes_its_codes(world: World) -> None:
    world.edit(admin, ["closed"])
    assert world.do(admin, 9009, ["code", "sesame-1"], ["code", "sesame-2"]) == STORED
    assert world.delete(admin, world.last(9009).id) == STORED
    assert world.tea.invites == {}
    assert world.join(stranger, "sesame-1")[0] is False
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-112")
def test_a_moderator_revokes_only_their_own_invites(world: World) -> None:
    world.invite(admin, "by admin")
    assert world.delete(bob, world.last(9009).id)[0] is False
    world.invite(bob, "by the moderator")
    assert world.delete(bob, world.last(9009).id) == STORED


# kind 5 with `code`: chachi revokes an invite by it (src/lib/nostr/groups.ts, useRevokeInviteCode)


def withdraw(world: World, who: SecretKey, *codes: str, group: str = "tea") -> tuple[bool, str]:
    return world.do(who, kinds.DELETION, *(["code", code] for code in codes), group=group)


@pytest.mark.proves("N29-59")
def test_an_admins_kind_5_withdraws_the_invite_of_a_code(world: World) -> None:
    world.edit(admin, ["closed"])
    world.invite(admin, "sesame-1")
    world.invite(admin, "sesame-2")
    first = next(row for row in world.log if row.kind == 9009)
    assert withdraw(world, admin, "sesame-1", "no such code") == STORED
    assert world.tea.invites.keys() == {"sesame-2"}
    assert first not in world.log
    assert world.join(stranger, "sesame-1") == world.join(stranger, "never made")
    assert world.join(stranger, "sesame-2") == STORED
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-59")
def test_an_owner_of_the_relay_withdraws_invites_too(world: World) -> None:
    world.invite(admin, "sesame-1")
    assert withdraw(world, owner, "sesame-1") == STORED
    assert world.tea.invites == {}


@pytest.mark.proves("N29-59")
def test_a_kind_5_by_anybody_else_withdraws_nothing_and_says_nothing_of_codes(world: World) -> None:
    world.invite(admin, "sesame-1")
    for who in (alice, dave, stranger):
        assert withdraw(world, who, "sesame-1") == withdraw(world, who, "never made")
        assert world.tea.invites.keys() == {"sesame-1"}
    world.make(alice, "milk")
    assert withdraw(world, alice, "sesame-1", group="milk") == STORED
    assert world.tea.invites.keys() == {"sesame-1"}


@pytest.mark.proves("N29-59", "N29-112")
def test_a_moderators_kind_5_withdraws_what_their_9005_would(world: World) -> None:
    world.invite(admin, "by admin")
    world.invite(bob, "by the moderator")
    refused = (False, "restricted: only an admin may delete events of a member with a role")
    assert withdraw(world, bob, "by admin", "by the moderator") == refused
    assert withdraw(world, bob, "by the moderator") == STORED
    assert world.tea.invites.keys() == {"by admin"}


# 9009


@pytest.mark.proves("N29-37", "N29-112")
def test_invites_are_made_by_admins_and_moderators(world: World) -> None:
    assert world.invite(admin, "sesame-1") == STORED
    assert world.invite(bob, "sesame-2", ["expiration", str(NOON + 60)], ["reusable"]) == STORED
    first, second = (world.tea.invites[code] for code in ("sesame-1", "sesame-2"))
    assert (first.expires_at, first.reusable) == (None, False)
    assert (second.expires_at, second.reusable) == (NOON + 60, True)


@pytest.mark.proves("N29-37")
def test_a_code_is_unique_in_its_group(world: World) -> None:
    """Another group may have the same."""
    taken = (False, "duplicate: code: already in use in this group")
    assert world.invite(admin, "open sesame") == STORED
    assert world.invite(admin, "open sesame") == taken
    assert world.do(bob, 9009, ["code", "brand new"], ["code", "open sesame"]) == taken
    assert "brand new" not in world.tea.invites
    world.make(carol, "coffee")
    assert world.invite(carol, "open sesame", group="coffee") == STORED


# Time


@pytest.mark.proves("N29-26", "N29-27", "Z-19")
def test_a_moderation_event_must_be_recent(world: World) -> None:
    late = (False, "invalid: created_at: 601 s in the past, at most 600 s allowed")
    early = (False, "invalid: created_at: 61 s in the future, at most 60 s allowed")
    assert world.do(admin, 9000, ["p", stranger.pubkey], at=NOON - 601) == late
    assert world.do(admin, 9000, ["p", stranger.pubkey], at=NOON + 61) == early
    assert world.do(admin, 9002, ["name", "x"], at=NOON + 61) == early
    assert world.do(admin, 9000, ["p", stranger.pubkey], at=NOON + 60) == STORED
    assert world.do(admin, 9001, ["p", stranger.pubkey], at=NOON - 600) == STORED


@pytest.mark.proves("N29-28")
def test_an_import_checks_rights_but_not_time(world: World) -> None:
    for origin in (Origin.IMPORT, Origin.TRUSTED_SYNC):
        world.origin = origin
        assert world.do(alice, 9001, ["p", carol.pubkey], at=1) == ADMINS_ONLY
        assert world.do(stranger, 9000, ["p", stranger.pubkey], at=1) == NOT_A_MEMBER
    assert world.do(admin, 9001, ["p", carol.pubkey], at=1) == STORED
    world.origin, world.now = Origin.IMPORT, NOON + 100_000
    assert world.do(admin, 9001, ["p", bob.pubkey], at=NOON) == STORED


@pytest.mark.proves("N29-28")
def test_a_trusted_import_asks_nobody_for_rights_but_for_the_form(world: World) -> None:
    """It was accepted when it was written; who signed it may be no admin or owner any more."""
    world.origin = Origin.TRUSTED_IMPORT
    for who in (alice, stranger):
        assert world.do(who, 9000, ["p", carol.pubkey, "moderator"], at=1) == STORED
        assert world.do(who, 9009, ["code", f"{who.pubkey[:8]}"], at=1) == STORED
        assert world.do(who, 9001, ["p", carol.pubkey], at=1) == STORED
        assert world.do(who, 9002, ["name", "As it was"], at=1) == STORED
    assert world.do(stranger, 9001, ["p", admin.pubkey], at=1) == STORED
    assert not world.tea.has_admin()
    assert world.do(stranger, 9000, at=1)[1] == "invalid: p: missing"
    assert world.do(stranger, 9021, group="coffee", at=1) == NOT_A_MEMBER
    assert world.do(stranger, 9000, ["p", carol.pubkey], group="coffee", at=1) == STORED
    assert world.groups.by_id["coffee"].flags == UNTOLD_FLAGS  # its 9007 has gone
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-57")
def test_a_repeated_moderation_event_is_a_duplicate(world: World) -> None:
    put = event(admin, 9000, ["h", "tea"], ["p", stranger.pubkey])
    assert world.send(put) == STORED
    assert world.remove(admin, stranger) == STORED
    assert world.send(put) == (True, "duplicate: already have this event")
    assert not world.is_in(stranger)


# Hidden groups


@pytest.mark.proves("N29-06", "N29-93", "Z-02")
def test_a_hidden_group_answers_a_non_member_as_one_that_does_not_exist() -> None:
    """To every kind."""
    world = tea_party(GUARDED, Flag.HIDDEN)
    world.say(alice, "psst")
    for group in ("tea", "nowhere"):
        asked = [
            world.put(stranger, stranger, group=group),
            world.remove(stranger, alice, group),
            world.edit(stranger, group=group),
            world.delete(stranger, world.last(kinds.CHAT).id, group=group),
            world.invite(stranger, "open sesame", group=group),
            world.end(stranger, group),
            world.join(stranger, group=group),
            world.join(stranger, "open sesame", group),
            world.do(stranger, 9021, ["previous", "zz"], group=group),
            world.do(stranger, 9021, group=group, at=1),
            world.leave(stranger, group),
            world.say(stranger, "hello", group),
        ]
        assert asked == [NOT_A_MEMBER] * len(asked)


def test_whether_an_admin_is_left_is_known_without_all_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were looked through twice, for each record that changes some."""
    keys = {f"{number:064x}": () for number in range(2_000)}
    before = Group("tea").with_users({admin.pubkey: ("admin",), **keys})
    monkeypatch.setattr(Group, "has_admin", lambda *_: pytest.fail("all were looked at"))
    assert not loses_last_admin(before, before.without_users({f"{7:064x}"}), frozenset())
    assert not loses_last_admin(before, before.with_users({f"{7:064x}": ("admin",)}), frozenset())
    monkeypatch.undo()
    assert loses_last_admin(before, before.without_users({admin.pubkey}), frozenset())
    assert loses_last_admin(before, before.with_users({admin.pubkey: ()}), frozenset())
    assert not loses_last_admin(
        before, before.without_users({admin.pubkey}), frozenset({admin.pubkey})
    )
