"""relay/groups/rules.py: making and ending groups. NIPS.md N29-120…125, Z-03."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.groups.actions import Flag
from relay.groups.context import GroupSettings
from relay.groups.group import PRIVATE_FLAGS
from relay.nostr import kinds
from relay.verdict import Origin, Who
from tests.cast import admin, alice, bob, carol, owner, robot, stranger
from tests.unit.groups.world import (
    GUARDED,
    NOON,
    OPEN,
    RELAY,
    STORED,
    STRANGERS_ANSWER,
    World,
    tea_party,
)

TAKEN = (False, "duplicate: this group id is taken")


@pytest.mark.proves("N29-82", "N29-120", "N29-121")
def test_who_makes_a_group_is_its_first_admin() -> None:
    world = World(OPEN)
    assert world.make(admin) == STORED
    assert world.tea.members == {admin.pubkey: ("admin",)}
    put = world.last(kinds.PUT_USER)
    assert put.pubkey == RELAY
    assert put.tags == [["h", "tea"], ["p", admin.pubkey, "admin"]]
    assert put.created_at == NOON
    assert world.kinds_since(0) == [9007, 9000, 39000, 39001, 39002, 39003]


@pytest.mark.proves("N29-120")
def test_owners_and_agents_make_groups_on_a_guarded_relay() -> None:
    """Contract §5."""
    assert World(GUARDED).make(owner) == STORED
    assert World(GUARDED).make(robot) == STORED


@pytest.mark.proves("N29-120")
def test_others_do_not_and_learn_no_id_by_trying() -> None:
    world = tea_party(GUARDED)
    refused = (False, "restricted: you may not create groups here")
    assert world.make(stranger, "coffee") == refused
    assert world.make(stranger, "tea") == refused
    assert world.make(alice, "coffee") == refused


@pytest.mark.proves("N29-120")
def test_nobody_creates_groups_where_the_policy_names_nobody() -> None:
    world = World(replace(OPEN, create=frozenset()))
    assert world.make(owner)[0] is False


@pytest.mark.proves("N29-120", "N29-123", "N29-124")
def test_an_id_is_used_once() -> None:
    """In use, hidden or ended, one text."""
    world = tea_party(OPEN)
    assert world.make(carol, "tea") == TAKEN
    assert world.make(admin, "secret", ["hidden"]) == STORED
    assert world.make(carol, "secret") == TAKEN
    assert world.end(admin, "secret") == STORED
    assert world.make(carol, "secret") == TAKEN
    assert world.make(admin, "secret") == TAKEN


@pytest.mark.proves("N29-02")
def test_ids_differ_by_every_byte() -> None:
    world = World(OPEN)
    assert world.make(admin, "tea") == STORED
    assert world.make(admin, "Tea") == STORED
    assert world.make(admin, "te\u0301a") == STORED
    assert world.make(admin, "t\u00e9a") == STORED


@pytest.mark.proves("N29-122", "Z-03")
def test_a_bare_9007_has_the_flags_of_the_policy() -> None:
    world = World(GUARDED)
    world.make(owner)
    assert world.tea.flags == PRIVATE_FLAGS
    new = replace(OPEN, new=frozenset({Flag.CLOSED}), always=frozenset({Flag.RESTRICTED}))
    world = World(new)
    world.make(admin)
    assert world.tea.flags == {Flag.CLOSED, Flag.RESTRICTED}


@pytest.mark.proves("N29-121", "Z-03")
def test_a_9007_with_flags_has_these_and_what_is_always() -> None:
    new = replace(OPEN, new=frozenset({Flag.CLOSED}), always=frozenset({Flag.RESTRICTED}))
    world = World(new)
    world.make(admin, "tea", ["hidden"], ["name", "Tea"], ["supported_kinds", "9"])
    assert world.tea.flags == {Flag.HIDDEN, Flag.RESTRICTED}
    assert world.tea.metadata == (("name", "Tea"),)
    assert world.tea.supported_kinds == {9}


@pytest.mark.proves("N29-26", "N29-27")
def test_a_stale_or_far_future_9007_is_refused() -> None:
    world = World(OPEN)
    assert "created_at" in world.do(admin, 9007, at=NOON - 601)[1]
    assert "created_at" in world.do(admin, 9007, at=NOON + 61)[1]
    assert world.do(admin, 9007, at=NOON - 600) == STORED


@pytest.mark.proves("N29-28")
def test_an_import_makes_old_groups_but_asks_for_the_right() -> None:
    """Contract §2."""
    for origin in (Origin.IMPORT, Origin.TRUSTED_IMPORT):
        world = World(GUARDED, origin=origin)
        assert world.do(owner, 9007, at=1) == STORED
        assert world.do(stranger, 9007, group="coffee", at=1)[0] is False


@pytest.mark.proves("N29-124", "N29-125")
def test_the_end_of_a_group_leaves_two_records() -> None:
    world = tea_party(OPEN)
    world.say(alice, "hello")
    assert world.end(admin) == STORED
    assert world.kinds_since(0) == [9007, 9008]
    assert world.groups.get("tea") is None
    assert not world.groups.is_member(alice.pubkey)
    assert world.say(alice, "anybody?") == STRANGERS_ANSWER
    assert world.put(admin, alice) == STRANGERS_ANSWER
    assert world.end(owner) == STRANGERS_ANSWER
    assert world.join(alice) == STRANGERS_ANSWER
    assert world.rebuilt() == world.groups


@pytest.mark.proves("N29-124", "N29-44")
def test_only_admins_and_owners_end_a_group() -> None:
    world = tea_party(OPEN)
    refused = (False, "restricted: only an admin of the group may do this")
    assert world.end(alice) == refused
    assert world.end(bob) == refused
    assert world.end(stranger) == STRANGERS_ANSWER
    assert world.end(owner) == STORED


@pytest.mark.proves("N29-44")
def test_the_relay_needs_no_right() -> None:
    """`self`, as by an import of its own export."""
    world = World(GUARDED, origin=Origin.IMPORT)
    assert world.do(RELAY, 9007) == STORED
    assert world.do(RELAY, 9000, ["p", alice.pubkey]) == STORED


def test_settings_default_to_the_guarded_preset() -> None:
    """DESIGN §10."""
    settings = GroupSettings()
    assert settings.always == settings.new == PRIVATE_FLAGS
    assert settings.create == {Who.OWNER, Who.AGENT}
    assert (settings.invite_uses, settings.late_s, settings.previous) == (1, 600, 0)
