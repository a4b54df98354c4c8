"""A group comes over from another relay, whose key signed who came in and who left. N29-150…153."""

from __future__ import annotations

import pytest

from relay.access.actors import Actors
from relay.groups.actions import Flag
from relay.groups.group import replayed
from relay.verdict import Origin
from tests import cast
from tests.cast import admin, alice, bob, carol, dave, owner, robot, stranger
from tests.unit.groups.world import NOON, OPEN, RELAY, STORED, STRANGERS_ANSWER, World, event

OLD = cast.person("the relay before")


def founded(origin: Origin = Origin.TRUSTED_IMPORT, *flags: Flag) -> World:
    """What a file begins with: the 9007, and the old relay's word on who the founder is."""
    world = World(OPEN, origin=origin)
    assert world.do(admin, 9007, *([flag.value] for flag in flags), at=1) == STORED
    return world


def founding(world: World) -> tuple[bool, str]:
    return world.do(OLD, 9000, ["p", admin.pubkey, "admin"], at=1)


@pytest.mark.proves("N29-152", "N29-28")
def test_what_the_old_relay_signed_counts_in_a_file_that_the_operator_trusts() -> None:
    world = founded(Origin.TRUSTED_IMPORT, Flag.CLOSED)
    assert founding(world) == STORED
    invite = event(admin, 9009, ["h", "tea"], ["code", "open sesame"], at=2)
    assert world.send(invite) == STORED
    assert world.do(bob, 9021, ["code", "open sesame"], at=3) == STORED
    assert not world.is_in(bob), "the old relay has not said so yet"
    joined = ["p", bob.pubkey], ["invite", invite.id, "0"]
    assert world.do(OLD, 9000, *joined, at=3) == STORED
    assert world.is_in(bob)
    assert world.tea.invites["open sesame"].used == 1
    assert world.do(bob, 9022, at=4) == STORED
    assert world.is_in(bob)
    assert world.do(OLD, 9001, ["p", bob.pubkey], ["self-removal"], at=4) == STORED
    assert not world.is_in(bob)
    assert bob.pubkey not in world.tea.removed, "he left by himself"
    assert world.do(admin, 9000, ["p", carol.pubkey], at=5) == STORED
    assert world.do(admin, 9001, ["p", carol.pubkey], at=6) == STORED
    assert carol.pubkey in world.tea.removed
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-152")
def test_who_waited_there_waits_here_whatever_the_rules_are_here() -> None:
    world = founded()
    founding(world)
    assert world.do(stranger, 9021, at=2) == STORED
    assert not world.is_in(stranger)
    assert stranger.pubkey in world.tea.requests


@pytest.mark.proves("N29-152")
def test_the_old_relay_decides_nothing_once_the_group_is_here() -> None:
    world = founded()
    founding(world)
    world.origin = Origin.WIRE
    assert world.put(OLD, stranger) == STRANGERS_ANSWER
    assert world.remove(OLD, admin) == STRANGERS_ANSWER
    assert world.join(stranger) == STORED
    assert world.is_in(stranger)


@pytest.mark.proves("N29-152", "N29-44")
def test_it_counts_for_who_came_and_went_and_for_nothing_else() -> None:
    world = founded()
    founding(world)
    world.do(admin, 9, at=2)
    said = world.last(9).id
    for kind, tag in (
        (9002, ["name", "Ours"]),
        (9005, ["e", said]),
        (9008, []),
        (9009, ["code", "open sesame"]),
        (9010, []),
    ):
        assert world.do(OLD, kind, tag, at=3) == STRANGERS_ANSWER
    world.do(admin, 9007, group="coffee", at=4)
    world.do(admin, 9000, ["p", alice.pubkey], group="coffee", at=5)
    assert world.do(OLD, 9000, ["p", bob.pubkey], group="coffee", at=6) == STRANGERS_ANSWER


@pytest.mark.proves("N29-152", "N29-44")
@pytest.mark.parametrize("origin", [Origin.WIRE, Origin.IMPORT])
def test_of_any_other_road_nobody_is_the_old_relay(origin: Origin) -> None:
    world = World(OPEN, now=1, origin=origin)
    assert world.make(admin) == STORED
    assert world.put(OLD, admin, "admin") == STRANGERS_ANSWER
    assert world.put(OLD, stranger) == STRANGERS_ANSWER
    assert not world.tea.former_relay_keys


@pytest.mark.proves("N29-152")
@pytest.mark.parametrize(
    ("kind", "tags"),
    [
        (9000, [["p", admin.pubkey]]),
        (9000, [["p", admin.pubkey, "admin", "poet"]]),
        (9000, [["p", admin.pubkey, "admin"], ["p", OLD.pubkey, "admin"]]),
        (9000, [["p", OLD.pubkey, "admin"]]),
        (9001, [["p", admin.pubkey, "admin"]]),
    ],
)
def test_only_who_says_what_a_relay_says_first_is_taken_for_one(
    kind: int, tags: list[list[str]]
) -> None:
    world = founded()
    assert world.do(OLD, kind, *tags, at=1) == STRANGERS_ANSWER


@pytest.mark.proves("N29-152")
def test_nobody_is_taken_for_the_old_relay_in_a_group_that_has_begun() -> None:
    world = founded()
    world.do(admin, 9000, ["p", alice.pubkey], at=2)
    assert founding(world) == STRANGERS_ANSWER


@pytest.mark.proves("N29-152")
def test_a_group_that_everybody_left_is_nobodys_to_take() -> None:
    world = founded()
    assert world.do(admin, 9022, at=2) == STORED
    assert not world.tea.members
    assert world.do(OLD, 9000, ["p", bob.pubkey, "admin"], at=3) == STRANGERS_ANSWER


@pytest.mark.proves("N29-152")
def test_a_founder_is_no_relay() -> None:
    world = founded()
    assert world.do(admin, 9000, ["p", admin.pubkey, "admin"], at=1) == STORED
    assert world.do(admin, 9000, ["p", bob.pubkey, "admin"], at=2) == STORED
    assert world.do(bob, 9001, ["p", admin.pubkey], at=3) == STORED
    assert world.do(admin, 9000, ["p", admin.pubkey, "admin"], at=4) == STRANGERS_ANSWER


@pytest.mark.proves("N29-150", "N29-152")
def test_a_group_that_has_moved_before_may_move_again() -> None:
    """Both relays said who the founder is."""
    world = founded()
    founding(world)
    older = cast.person("the relay before that")
    assert world.do(older, 9000, ["p", admin.pubkey, "admin"], at=1) == STORED
    assert world.do(older, 9000, ["p", dave.pubkey], at=2) == STORED
    assert world.do(OLD, 9000, ["p", robot.pubkey], at=3) == STORED
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-152", "N29-61")
def test_the_relay_that_takes_over_says_itself_what_the_group_is() -> None:
    world = founded()
    founding(world)
    assert {row.pubkey for row in world.log if row.kind in (39000, 39001, 39002)} == {RELAY}
    signed = event(OLD, 39000, ["d", "tea"], ["name", "As it was"])
    assert replayed(world.groups, [signed], RELAY) == world.groups


@pytest.mark.proves("N29-01", "N29-151")
def test_the_same_id_elsewhere_is_another_group() -> None:
    """With other people and other rules; the events of one are nothing to the other."""
    here, there = World(OPEN), World(OPEN)
    here.make(admin, "tea", ["restricted"])
    there.make(bob, "tea", ["private"])
    there.put(bob, carol)
    there.say(carol, "hello")
    rows = [row for row in there.log if row.pubkey != RELAY]
    for row in rows:
        assert here.send(row)[0] is False
    assert here.tea.members.keys() == {admin.pubkey}
    assert here.tea.flags == {Flag.RESTRICTED}


@pytest.mark.proves("N29-55", "N29-152")
def test_what_a_record_did_elsewhere_is_kept_though_it_does_nothing_here() -> None:
    world = founded()
    assert world.do(admin, 9001, ["p", stranger.pubkey], at=2) == STORED
    assert world.do(admin, 9005, ["e", "0" * 64], at=3) == STORED
    assert [row.kind for row in world.log[-2:]] == [9001, 9005]
    world.origin, world.now = Origin.WIRE, NOON
    assert world.remove(admin, carol)[0] is False
    assert world.delete(admin, "0" * 64)[0] is False


@pytest.mark.proves("N29-44")
def test_an_owner_who_names_the_founder_again_gains_nothing() -> None:
    """It looks like a relay's first word, and is an owner's."""
    world = World(OPEN)
    world.make(admin)
    assert world.put(owner, admin, "admin") == STORED
    assert world.rebuilt() == world.groups
    world.actors = Actors()
    assert world.put(owner, stranger) == STRANGERS_ANSWER
