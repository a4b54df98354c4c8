"""relay/groups/rules.py and timeline.py: events that are no 9000–9022. N29-06…29, Z-07, Z-19."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.facts import Origin, Who
from relay.groups.actions import Flag
from relay.groups.context import GroupContext
from relay.groups.group import Groups
from relay.groups.rules import check_write
from relay.nostr import kinds
from tests.cast import admin, alice, bob, carol, owner, robot, stranger
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

ELSEWHERE = (False, "invalid: address belongs to another group")
LATE = (False, "invalid: created_at: 601 s in the past, at most 600 s allowed")
UNKNOWN_PREVIOUS = (False, "invalid: previous: names an event that is not known in this group")


# Membership


@pytest.mark.proves("N29-10", "N29-11", "N29-12")
@pytest.mark.parametrize("flag", [Flag.RESTRICTED, Flag.PRIVATE, Flag.HIDDEN])
def test_only_members_write_to_restricted_private_and_hidden_groups(flag: Flag) -> None:
    world = tea_party(OPEN, flag)
    assert world.say(alice, "hello") == STORED
    assert world.say(stranger, "hello") == NOT_A_MEMBER
    assert world.say(owner, "hello from the owner") == STORED


@pytest.mark.proves("N29-10")
@pytest.mark.parametrize("flags", [[], [Flag.CLOSED], [Flag.LIVEKIT]])
def test_anyone_writes_to_other_groups(flags: list[Flag]) -> None:
    """`closed` restricts joining only."""
    world = tea_party(OPEN, *flags)
    assert world.say(stranger, "hello") == STORED


@pytest.mark.proves("N29-06", "N29-09", "N29-154")
def test_a_group_that_does_not_exist_refuses_all() -> None:
    """With the text that non-members get from a hidden group."""
    world = World(OPEN)
    assert world.say(admin, "hello", "nowhere") == NOT_A_MEMBER
    assert world.say(owner, "hello", "nowhere") == NOT_A_MEMBER


@pytest.mark.proves("N29-18")
def test_a_removed_member_writes_no_more() -> None:
    world = tea_party(OPEN, Flag.RESTRICTED)
    assert world.say(alice, "hello") == STORED
    world.remove(admin, alice)
    assert world.say(alice, "hello?") == NOT_A_MEMBER


@pytest.mark.proves("N29-15", "N29-17")
@pytest.mark.parametrize("kind", [1, 5, 7, 9, 11, 1111, 1984, 1059, 20001, 30023, 39999])
def test_membership_is_required_for_every_kind(kind: int) -> None:
    world = tea_party(OPEN, Flag.RESTRICTED)
    assert world.do(alice, kind, ["d", "x"]) == STORED
    assert world.do(stranger, kind, ["d", "x"]) == NOT_A_MEMBER


@pytest.mark.proves("Z-13")
def test_a_request_to_vanish_from_other_relays_needs_membership() -> None:
    """Z-13. One for this relay is not judged by groups (N62-11)."""
    world = tea_party(GUARDED)
    elsewhere = ["relay", "wss://elsewhere.example"]
    assert world.do(alice, kinds.VANISH, elsewhere) == STORED
    assert world.do(stranger, kinds.VANISH, elsewhere) == NOT_A_MEMBER


# supported_kinds


@pytest.mark.proves("N29-13", "N29-14")
def test_a_group_accepts_its_supported_kinds() -> None:
    world = tea_party(OPEN)
    world.edit(admin, ["supported_kinds", "9", "11"])
    assert world.say(alice, "hello") == STORED
    assert world.do(alice, 1) == (False, "blocked: kind 1 is not supported by this group")
    assert world.do(alice, kinds.DELETION, ["e", world.last(kinds.CHAT).id]) == STORED
    assert world.do(alice, kinds.VANISH) == STORED
    assert world.put(admin, carol) == STORED


@pytest.mark.proves("N29-13", "N29-14")
def test_an_empty_supported_kinds_accepts_no_content() -> None:
    """Admins can still moderate."""
    world = tea_party(OPEN)
    world.edit(admin, ["supported_kinds"])
    assert world.say(alice, "hello")[1].startswith("blocked: ")
    assert world.edit(admin) == STORED
    assert world.say(alice, "hello") == STORED


@pytest.mark.proves("N29-12", "N29-13")
def test_membership_is_checked_before_supported_kinds() -> None:
    world = tea_party(OPEN, Flag.RESTRICTED)
    world.edit(admin, ["restricted"], ["supported_kinds"])
    assert world.say(stranger, "hello") == NOT_A_MEMBER


# Addresses


@pytest.mark.proves("N29-16")
@pytest.mark.parametrize("kind", [0, 3, 10002])
def test_profiles_contacts_and_relay_lists_have_no_group(kind: int) -> None:
    world = tea_party(OPEN)
    answer = (False, f"invalid: h: an event of kind {kind} belongs to no group")
    assert world.do(alice, kind) == answer
    assert world.send(event(alice, kind)) == STORED


@pytest.mark.proves("N29-16", "Z-07")
def test_an_address_stays_in_its_group() -> None:
    """It is not moved, taken out or brought in."""
    world = tea_party(OPEN)
    world.make(carol, "coffee")
    assert world.do(alice, 30023, ["d", "essay"]) == STORED
    assert world.do(alice, 30023, ["d", "essay"]) == STORED
    assert world.do(alice, 30023, ["d", "essay"], group="coffee") == ELSEWHERE
    assert world.send(event(alice, 30023, ["d", "essay"])) == ELSEWHERE
    assert world.do(bob, 30023, ["d", "essay"], group="coffee") == STORED
    assert world.send(event(alice, 30023, ["d", "diary"])) == STORED
    assert world.do(alice, 30023, ["d", "diary"]) == ELSEWHERE


@pytest.mark.proves("N29-16")
def test_a_replaceable_event_stays_in_its_group() -> None:
    world = tea_party(OPEN)
    assert world.do(alice, 10777) == STORED
    assert world.send(event(alice, 10777)) == ELSEWHERE


def test_memory_may_move_in_or_out_but_not_between_groups() -> None:
    """G-31."""
    world = tea_party(OPEN)
    world.put(admin, robot)
    world.make(robot, "coffee")
    assert world.send(event(robot, 30078, ["d", "snow:memory:a"])) == STORED
    assert world.do(robot, 30078, ["d", "snow:memory:a"]) == STORED
    assert world.do(robot, 30078, ["d", "snow:memory:a"], group="coffee") == ELSEWHERE
    assert world.send(event(robot, 30078, ["d", "snow:memory:a"], content="out")) == STORED
    assert world.do(robot, 30078, ["d", "snow:memory:a"], group="coffee") == STORED


def test_memory_is_written_by_members_only_in_every_group() -> None:
    """G-33."""
    world = tea_party(OPEN)
    assert world.do(robot, 30078, ["d", "snow:memory:a"]) == NOT_A_MEMBER
    world.put(admin, robot)
    assert world.do(robot, 30078, ["d", "snow:memory:a"]) == STORED
    world.edit(admin, ["supported_kinds", "9"])
    refused = (False, "blocked: kind 30078 is not supported by this group")
    assert world.do(robot, 30078, ["d", "snow:memory:a"]) == refused


def test_the_h_of_an_owners_configuration_is_a_label() -> None:
    """G-33, G-31: whether the group exists or not."""
    world = tea_party(GUARDED)
    for group in ("tea", "nowhere", "coffee"):
        config = ["d", "snowclaw:config:group:tea"]
        assert world.do(owner, 30078, config, group=group) == STORED
    assert world.send(event(owner, 30078, ["d", "snowclaw:config:group:tea"])) == STORED
    assert world.do(stranger, 30078, ["d", "snowclaw:config:global"]) == NOT_A_MEMBER


# Late publication


@pytest.mark.proves("N29-26", "Z-19")
@pytest.mark.parametrize("kind", [9, 10, 11, 12, 1111])
def test_chat_is_not_published_late(kind: int) -> None:
    world = tea_party(OPEN)
    assert world.do(alice, kind, at=NOON - 601) == LATE
    assert world.do(alice, kind, at=NOON - 600) == STORED


@pytest.mark.proves("Z-19")
@pytest.mark.parametrize("kind", [1, 5, 7, 78, 1059, 1984, 1988, 30023, 30078, 30094])
def test_other_kinds_may_be_of_any_age(kind: int) -> None:
    """Z-19, G-14."""
    world = tea_party(OPEN)
    assert world.do(alice, kind, ["d", "x"], at=1) == STORED


@pytest.mark.proves("N29-26")
def test_outside_groups_late_publication_is_not_checked() -> None:
    assert World(OPEN).send(event(alice, 9, at=NOON - 7 * 86400)) == STORED


@pytest.mark.proves("N29-26")
def test_the_policy_sets_the_window() -> None:
    """0 means none."""
    world = tea_party(replace(OPEN, late_s=60))
    assert world.do(alice, 9, at=NOON - 61)[0] is False
    world.settings = replace(OPEN, late_s=0)
    assert world.do(alice, 9, at=0) == STORED


@pytest.mark.proves("N29-27")
def test_chat_in_the_near_future_is_accepted() -> None:
    """The limit of 60 seconds is for moderation."""
    world = tea_party(OPEN)
    assert world.do(alice, 9, at=NOON + 61) == STORED


@pytest.mark.proves("N29-28")
def test_an_import_may_be_old_but_needs_membership() -> None:
    world = tea_party(OPEN, Flag.RESTRICTED)
    for origin in (Origin.IMPORT, Origin.TRUSTED_IMPORT):
        world.origin = origin
        assert world.do(alice, 9, ["previous", "00000000"], at=1) == STORED
    world.origin = Origin.IMPORT
    assert world.do(stranger, 9, at=1) == NOT_A_MEMBER


@pytest.mark.proves("N29-28")
def test_a_trusted_import_takes_what_somebody_wrote_who_is_no_longer_a_member() -> None:
    """The record that made its author a member may be gone."""
    world = tea_party(OPEN, Flag.RESTRICTED)
    for origin in (Origin.TRUSTED_IMPORT, Origin.TRUSTED_SYNC):
        world.origin = origin
        assert world.do(stranger, 9, at=1) == STORED
        assert world.do(stranger, 9, group="coffee", at=1) == NOT_A_MEMBER
    assert world.do(stranger, 9002, ["public"], at=1) == NOT_A_MEMBER


# previous


@pytest.mark.proves("N29-20", "N29-21", "N29-22")
def test_previous_names_events_of_this_group() -> None:
    world = tea_party(OPEN)
    world.make(carol, "coffee")
    world.say(alice, "hello")
    world.say(carol, "hello", "coffee")
    here, there = world.last(kinds.CHAT).id, world.last(kinds.CHAT, "coffee").id
    assert world.do(bob, 9, ["previous", here[:8], here]) == STORED
    assert world.do(bob, 9, ["previous", there[:8]]) == UNKNOWN_PREVIOUS
    assert world.do(bob, 9, ["previous", here[:8]], ["previous", "00000000"]) == UNKNOWN_PREVIOUS
    assert world.do(admin, 9002, ["previous", "00000000"]) == UNKNOWN_PREVIOUS
    assert world.do(admin, 9002, ["previous", here[:8]]) == STORED
    assert world.do(alice, 9022, ["previous", "00000000"]) == UNKNOWN_PREVIOUS


@pytest.mark.proves("N29-24")
def test_a_message_without_references_is_fine() -> None:
    world = tea_party(OPEN)
    assert world.do(alice, 9, ["previous"]) == STORED


@pytest.mark.proves("N29-23")
@pytest.mark.parametrize("prefix", ["", "abcdef0", "ABCDEF01", "abcdefg0", "a" * 65])
def test_a_malformed_prefix_is_refused(prefix: str) -> None:
    answer = (False, "invalid: previous: must be 8 to 64 lowercase hex characters")
    assert tea_party(OPEN).do(alice, 9, ["previous", prefix]) == answer


@pytest.mark.proves("N29-25")
def test_non_members_learn_nothing_from_previous() -> None:
    """Known and unknown prefixes get one answer."""
    world = tea_party(OPEN, Flag.PRIVATE)
    world.say(alice, "hello")
    known = world.last(kinds.CHAT).id[:8]
    for prefix in (known, "00000000"):
        assert world.do(stranger, 9, ["previous", prefix]) == NOT_A_MEMBER
        assert world.do(stranger, 9021, ["previous", prefix]) == (
            False,
            "invalid: previous: not in a request to join this group",
        )


@pytest.mark.proves("N29-21")
def test_a_public_group_checks_references_of_join_requests() -> None:
    world = tea_party(OPEN)
    world.say(alice, "hello")
    assert world.do(stranger, 9021, ["previous", "00000000"]) == UNKNOWN_PREVIOUS
    assert world.do(stranger, 9021, ["previous", world.last(9).id[:8]]) == STORED


@pytest.mark.proves("N29-24")
def test_the_policy_may_require_references() -> None:
    """In chat and moderation, but not in 9007, 9021 and memory records."""
    world = tea_party(OPEN)
    world.settings = replace(OPEN, previous=2)
    ids = [row.id[:8] for row in world.log[:2]]
    answer = (False, "invalid: previous: 1 references, at least 2 needed")
    for kind in (9, 1, 9002):
        assert world.do(admin, kind, ["previous", ids[0]]) == answer
        assert world.do(admin, kind, ["previous", ids[0], ids[0]]) == answer
        assert world.do(admin, kind, ["previous", *ids]) == STORED
    assert world.join(stranger) == STORED
    assert world.make(carol, "coffee") == STORED
    assert world.do(alice, 30094, ["d", "x"]) == STORED


@pytest.mark.proves("N29-07")
def test_an_event_without_group_is_accepted() -> None:
    context = GroupContext(Groups(), GUARDED, NOON, Origin.WIRE, frozenset({Who.ANYONE}))
    assert check_write(event(stranger, 1), None, context) is None
