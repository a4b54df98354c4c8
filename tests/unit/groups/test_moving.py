"""A group is moved from another relay, which signed its 9000 and 9001. N29-150…153."""

from __future__ import annotations

import pytest

from relay.access.actors import Actors
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.group import replayed
from tests import cast
from tests.cast import admin, alice, bob, carol, dave, owner, robot, stranger
from tests.unit.groups.world import NOON, NOT_A_MEMBER, OPEN, RELAY, STORED, World, event

OLD = cast.person("the relay before")


def founded(origin: Origin = Origin.TRUSTED_IMPORT, *flags: Flag) -> World:
    """The first rows of an export: 9007, and the old relay's 9000 for the founder."""
    world = World(OPEN, origin=origin)
    assert world.do(admin, 9007, *([flag.value] for flag in flags), at=1) == STORED
    return world


def founding(world: World) -> tuple[bool, str]:
    return world.do(OLD, 9000, ["p", admin.pubkey, "admin"], at=1)


@pytest.mark.proves("N29-152", "N29-28")
@pytest.mark.parametrize("origin", [Origin.TRUSTED_IMPORT, Origin.TRUSTED_SYNC])
def test_records_by_the_old_relay_count_where_the_source_is_trusted(origin: Origin) -> None:
    world = founded(origin, Flag.CLOSED)
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
@pytest.mark.parametrize("origin", [Origin.TRUSTED_IMPORT, Origin.TRUSTED_SYNC])
def test_pending_requests_stay_pending_whatever_the_policy(origin: Origin) -> None:
    world = founded(origin)
    founding(world)
    assert world.do(stranger, 9021, at=2) == STORED
    assert not world.is_in(stranger)
    assert stranger.pubkey in world.tea.requests


@pytest.mark.proves("N29-152")
def test_the_old_relay_has_no_rights_after_the_import() -> None:
    world = founded()
    founding(world)
    world.origin = Origin.WIRE
    assert world.put(OLD, stranger) == NOT_A_MEMBER
    assert world.remove(OLD, admin) == NOT_A_MEMBER
    assert world.join(stranger) == STORED
    assert world.is_in(stranger)


@pytest.mark.proves("N29-152", "N29-44")
def test_only_9000_and_9001_by_the_old_relay_count() -> None:
    world = founded(Origin.TRUSTED_SYNC)
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
        assert world.do(OLD, kind, tag, at=3) == NOT_A_MEMBER
    world.do(admin, 9007, group="coffee", at=4)
    world.do(admin, 9000, ["p", alice.pubkey], group="coffee", at=5)
    assert world.do(OLD, 9000, ["p", bob.pubkey], group="coffee", at=6) == NOT_A_MEMBER


@pytest.mark.proves("N29-152", "N29-44")
@pytest.mark.parametrize("origin", [Origin.WIRE, Origin.IMPORT])
def test_other_origins_recognise_no_old_relay(origin: Origin) -> None:
    world = World(OPEN, now=1, origin=origin)
    assert world.make(admin) == STORED
    assert world.put(OLD, admin, "admin") == NOT_A_MEMBER
    assert world.put(OLD, stranger) == NOT_A_MEMBER
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
def test_only_a_founding_9000_marks_a_relay_key(kind: int, tags: list[list[str]]) -> None:
    world = founded(Origin.TRUSTED_SYNC)
    assert world.do(OLD, kind, *tags, at=1) == NOT_A_MEMBER


@pytest.mark.proves("N29-152")
def test_no_relay_key_is_recognised_in_a_group_with_history() -> None:
    world = founded(Origin.TRUSTED_SYNC)
    world.do(admin, 9000, ["p", alice.pubkey], at=2)
    assert founding(world) == NOT_A_MEMBER


@pytest.mark.proves("N29-152")
def test_an_empty_group_recognises_no_relay_key() -> None:
    world = founded(Origin.TRUSTED_SYNC)
    assert world.do(admin, 9022, at=2) == STORED
    assert not world.tea.members
    assert world.do(OLD, 9000, ["p", bob.pubkey, "admin"], at=3) == NOT_A_MEMBER


@pytest.mark.proves("N29-152")
def test_the_founder_is_not_taken_for_a_relay() -> None:
    world = founded(Origin.TRUSTED_SYNC)
    assert world.do(admin, 9000, ["p", admin.pubkey, "admin"], at=1) == STORED
    assert world.do(admin, 9000, ["p", bob.pubkey, "admin"], at=2) == STORED
    assert world.do(bob, 9001, ["p", admin.pubkey], at=3) == STORED
    assert world.do(admin, 9000, ["p", admin.pubkey, "admin"], at=4) == NOT_A_MEMBER


@pytest.mark.proves("N29-150", "N29-152")
def test_a_group_may_move_twice() -> None:
    """Both relays signed a founding 9000."""
    world = founded()
    founding(world)
    older = cast.person("the relay before that")
    assert world.do(older, 9000, ["p", admin.pubkey, "admin"], at=1) == STORED
    assert world.do(older, 9000, ["p", dave.pubkey], at=2) == STORED
    assert world.do(OLD, 9000, ["p", robot.pubkey], at=3) == STORED
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-152", "N29-61")
def test_the_new_relay_signs_its_own_notices() -> None:
    world = founded()
    founding(world)
    assert {row.pubkey for row in world.log if row.kind in (39000, 39001, 39002)} == {RELAY}
    signed = event(OLD, 39000, ["d", "tea"], ["name", "As it was"])
    assert replayed(world.groups, [signed], RELAY) == world.groups


@pytest.mark.proves("N29-01", "N29-151")
def test_the_same_id_on_another_relay_is_another_group() -> None:
    """With other members and flags; records of the one are refused by the other."""
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
def test_imported_records_without_effect_are_stored() -> None:
    world = founded()
    assert world.do(admin, 9001, ["p", stranger.pubkey], at=2) == STORED
    assert world.do(admin, 9005, ["e", "0" * 64], at=3) == STORED
    assert [row.kind for row in world.log[-2:]] == [9001, 9005]
    world.origin, world.now = Origin.WIRE, NOON
    assert world.remove(admin, carol)[0] is False
    assert world.delete(admin, "0" * 64)[0] is False


@pytest.mark.proves("N29-44")
def test_an_owner_is_not_taken_for_a_former_relay() -> None:
    """It looks like a founding 9000."""
    world = World(OPEN)
    world.make(admin)
    assert world.put(owner, admin, "admin") == STORED
    assert world.rebuilt() == world.groups
    world.actors = Actors()
    assert world.put(owner, stranger) == NOT_A_MEMBER
