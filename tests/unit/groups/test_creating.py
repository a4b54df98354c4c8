"""relay/groups/rules.py: 9007 and 9008. N29-120…125, Z-03."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.facts import Origin, Who
from relay.groups.actions import PRIVATE_FLAGS, Flag
from relay.groups.context import GroupSettings
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, owner, robot, stranger
from tests.unit.groups.world import (
    GUARDED,
    NOON,
    NOT_A_MEMBER,
    OPEN,
    RELAY,
    STORED,
    World,
    tea_party,
)

TAKEN = (False, "duplicate: this group already exists")


@pytest.mark.proves("N29-82", "N29-120", "N29-121")
def test_the_creator_is_the_first_admin() -> None:
    world = World(OPEN)
    assert world.make(admin) == STORED
    assert world.tea.members == {admin.pubkey: ("admin",)}
    put = world.last(kinds.PUT_USER)
    assert put.pubkey == RELAY
    assert put.tags == [["h", "tea"], ["p", admin.pubkey, "admin"]]
    assert put.created_at == NOON
    assert world.kinds_since(0) == [9007, 9000, 39000, 39001, 39002, 39003]


@pytest.mark.proves("N29-120")
def test_owners_and_agents_create_groups_with_preset_group() -> None:
    assert World(GUARDED).make(owner) == STORED
    assert World(GUARDED).make(robot) == STORED


@pytest.mark.proves("N29-120")
def test_others_may_not_create_and_cannot_probe_ids() -> None:
    world = tea_party(GUARDED)
    refused = (False, "restricted: you may not create groups here")
    assert world.make(stranger, "coffee") == refused
    assert world.make(stranger, "tea") == refused
    assert world.make(alice, "coffee") == refused


@pytest.mark.proves("N29-120")
def test_an_empty_create_list_allows_nobody() -> None:
    world = World(replace(OPEN, create=frozenset()))
    assert world.make(owner)[0] is False


@pytest.mark.proves("N29-120", "N29-123", "N29-124")
def test_an_id_cannot_be_used_twice() -> None:
    """One text whether it is in use, hidden or deleted."""
    world = tea_party(OPEN)
    assert world.make(carol, "tea") == TAKEN
    assert world.make(admin, "secret", ["hidden"]) == STORED
    assert world.make(carol, "secret") == TAKEN
    assert world.end(admin, "secret") == STORED
    assert world.make(carol, "secret") == TAKEN
    assert world.make(admin, "secret") == TAKEN


@pytest.mark.proves("N29-02")
def test_ids_are_compared_byte_by_byte() -> None:
    world = World(OPEN)
    assert world.make(admin, "tea") == STORED
    assert world.make(admin, "Tea") == STORED
    assert world.make(admin, "te\u0301a") == STORED
    assert world.make(admin, "t\u00e9a") == STORED


@pytest.mark.proves("N29-122", "Z-03")
def test_a_9007_without_flags_gets_those_of_the_policy() -> None:
    world = World(GUARDED)
    world.make(owner)
    assert world.tea.flags == PRIVATE_FLAGS
    new = replace(OPEN, new=frozenset({Flag.CLOSED}), always=frozenset({Flag.RESTRICTED}))
    world = World(new)
    world.make(admin)
    assert world.tea.flags == {Flag.CLOSED, Flag.RESTRICTED}


@pytest.mark.proves("N29-121", "Z-03")
def test_a_9007_with_flags_gets_them_and_the_forced_ones() -> None:
    new = replace(OPEN, new=frozenset({Flag.CLOSED}), always=frozenset({Flag.RESTRICTED}))
    world = World(new)
    world.make(admin, "tea", ["hidden"], ["name", "Tea"], ["supported_kinds", "9"])
    assert world.tea.flags == {Flag.HIDDEN, Flag.RESTRICTED}
    assert world.tea.metadata == (("name", "Tea"),)
    assert world.tea.supported_kinds == frozenset({9})


@pytest.mark.proves("N29-26", "N29-27")
def test_a_stale_or_far_future_9007_is_refused() -> None:
    world = World(OPEN)
    assert "created_at" in world.do(admin, 9007, at=NOON - 601)[1]
    assert "created_at" in world.do(admin, 9007, at=NOON + 61)[1]
    assert world.do(admin, 9007, at=NOON - 600) == STORED


@pytest.mark.proves("N29-28")
def test_an_import_creates_old_groups_but_checks_the_right() -> None:
    for origin in (Origin.IMPORT, Origin.TRUSTED_SYNC):
        world = World(GUARDED, origin=origin)
        assert world.do(owner, 9007, at=1) == STORED
        assert world.do(stranger, 9007, group="coffee", at=1)[0] is False


@pytest.mark.proves("N29-28")
def test_a_trusted_import_takes_a_group_of_who_could_create_it_then() -> None:
    """Also where its parent may not have it any more."""
    world = World(GUARDED, origin=Origin.TRUSTED_IMPORT)
    assert world.do(stranger, 9007, ["hidden"], ["name", "Tea"], at=1) == STORED
    assert world.tea.is_hidden
    assert world.do(stranger, 9007, ["parent", "none"], ["hidden"], group="den", at=1) == STORED
    assert world.groups.by_id["den"].parent is None
    assert world.do(admin, 9007, ["parent", "tea"], ["hidden"], group="hut", at=1) == STORED
    assert world.tea.children == ("hut",)
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-124", "N29-125")
def test_a_deleted_group_keeps_its_9007_and_9008() -> None:
    world = tea_party(OPEN)
    world.say(alice, "hello")
    assert world.end(admin) == STORED
    assert world.kinds_since(0) == [9007, 9008]
    assert world.groups.get("tea") is None
    assert not world.groups.is_member(alice.pubkey)
    assert world.say(alice, "anybody?") == NOT_A_MEMBER
    assert world.put(admin, alice) == NOT_A_MEMBER
    assert world.end(owner) == NOT_A_MEMBER
    assert world.join(alice) == NOT_A_MEMBER
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-124", "N29-44")
def test_only_admins_and_owners_delete_a_group() -> None:
    world = tea_party(OPEN)
    refused = (False, "restricted: only an admin of the group may do this")
    assert world.end(alice) == refused
    assert world.end(bob) == refused
    assert world.end(stranger) == NOT_A_MEMBER
    assert world.end(owner) == STORED


@pytest.mark.proves("N29-44")
def test_the_relay_may_always_create_groups() -> None:
    """`self`, as by an import of its own export."""
    world = World(GUARDED, origin=Origin.IMPORT)
    assert world.do(RELAY, 9007) == STORED
    assert world.do(RELAY, 9000, ["p", alice.pubkey]) == STORED


def test_settings_default_to_preset_group() -> None:
    settings = GroupSettings()
    assert settings.always == settings.new == PRIVATE_FLAGS
    assert settings.create == {Who.OWNER, Who.AGENT}
    assert (settings.invite_uses, settings.late_s, settings.previous) == (1, 600, 0)
