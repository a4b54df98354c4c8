"""An import without --trust brings no moderation from before the group that is here."""

from __future__ import annotations

import pytest

from relay.facts import Origin
from tests.cast import admin, alice, bob
from tests.unit.groups.world import NOON, STORED, World

DAY = 86_400
OLDER = (
    False,
    "invalid: created_at: older than the group of this name here; only --trust imports it",
)
IN_USE = (False, "blocked: the group has events here; only --trust lets an import delete it")

RECORDS = {
    9000: [["p", bob.pubkey]],
    9001: [["p", alice.pubkey]],
    9002: [["name", "Before"]],
    9005: [["e", "0" * 64]],
    9008: [],
    9009: [["code", "open sesame"]],
    9010: [],
}


def of_today(origin: Origin) -> World:
    """A group that was made over the wire, with a member."""
    world = World()
    assert world.make(admin) == STORED
    assert world.put(admin, alice) == STORED
    world.origin = origin
    return world


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("age", [1, 80 * DAY])
def test_what_is_older_than_the_group_is_refused(kind: int, age: int) -> None:
    world = of_today(Origin.IMPORT)
    before = world.groups
    assert world.do(admin, kind, *RECORDS[kind], at=NOON - age) == OLDER
    assert world.groups == before


@pytest.mark.parametrize("kind", [9021, 9022])
def test_so_are_old_requests_of_members_and_others(kind: int) -> None:
    world = of_today(Origin.IMPORT)
    who = bob if kind == 9021 else alice
    assert world.do(who, kind, at=NOON - DAY) == OLDER
    assert (world.is_in(alice), world.is_in(bob)) == (True, False)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_trusted_import_takes_it(kind: int) -> None:
    world = of_today(Origin.TRUSTED_IMPORT)
    assert world.do(admin, kind, *RECORDS[kind], at=NOON - 80 * DAY) == STORED


@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_IMPORT])
def test_an_old_group_is_imported_from_its_first_record_on(origin: Origin) -> None:
    world = World(origin=origin)
    assert world.do(admin, 9007, at=NOON - 90 * DAY) == STORED
    assert world.do(admin, 9000, ["p", alice.pubkey], at=NOON - 89 * DAY) == STORED
    assert world.do(admin, 9000, ["p", bob.pubkey], at=NOON - 88 * DAY) == STORED
    assert world.do(admin, 9001, ["p", bob.pubkey], at=NOON - 87 * DAY) == STORED
    assert world.do(admin, 9008, at=NOON - 80 * DAY) == STORED
    assert "tea" in world.groups.ended


def test_the_start_of_a_group_outlives_a_restart() -> None:
    world = of_today(Origin.IMPORT)
    world.groups = world.rebuilt()
    assert world.do(admin, 9008, at=NOON - 1) == OLDER


def test_a_group_in_use_is_deleted_by_a_trusted_import_alone() -> None:
    world = World(origin=Origin.IMPORT)
    assert world.do(admin, 9007, at=NOON - 100 * DAY) == STORED
    world.origin = Origin.WIRE
    assert world.say(admin, "still here") == STORED
    world.origin = Origin.IMPORT
    assert world.do(admin, 9008, at=NOON - 80 * DAY) == IN_USE
    world.origin = Origin.TRUSTED_IMPORT
    assert world.do(admin, 9008, at=NOON - 80 * DAY) == STORED
