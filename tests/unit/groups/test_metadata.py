"""relay/groups/rules.py: 9002 replaces all metadata; forced flags, confirmations. N29-48, N29-49,
Z-03."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.groups.actions import Flag
from relay.groups.rules import MAX_CLOSINGS, MAX_MOVING
from relay.nostr import kinds
from tests.cast import admin, alice, bob, owner
from tests.unit.groups.world import GUARDED, OPEN, STORED, World, tea_party

PRIVATE, HIDDEN, CLOSED = Flag.PRIVATE, Flag.HIDDEN, Flag.CLOSED


@pytest.mark.proves("N29-48")
def test_metadata_that_an_edit_omits_is_unset() -> None:
    world = tea_party(OPEN)
    assert world.edit(admin, ["name", "Tea"], ["about", "x"], ["supported_kinds", "9"]) == STORED
    assert world.edit(admin, ["about", "leaves"], ["restricted"]) == STORED
    assert world.tea.metadata == (("about", "leaves"),)
    assert world.tea.flags == {Flag.RESTRICTED}
    assert world.tea.supported_kinds is None


@pytest.mark.proves("N29-112")
def test_only_admins_and_owners_edit() -> None:
    world = tea_party(OPEN)
    assert world.edit(bob, ["name", "Bob's"])[0] is False
    assert world.edit(alice, ["name", "Alice's"])[0] is False
    assert world.edit(owner, ["name", "Ours"]) == STORED


@pytest.mark.proves("Z-03")
def test_forced_flags_stay_on_silently() -> None:
    """The 9002 is accepted, 39000 has them."""
    world = tea_party(GUARDED)
    world.say(alice, "hello")
    assert world.edit(admin, ["name", "Tea"]) == STORED
    assert world.tea.flags == GUARDED.always
    names = {tag[0] for tag in world.last(kinds.GROUP_METADATA).tags}
    assert names == {"d", "name", "private", "restricted", "closed"}


@pytest.mark.proves("Z-03")
@pytest.mark.parametrize(
    ("flags", "kept", "dropped", "confirming"),
    [
        ([PRIVATE], [], "private", "public"),
        ([HIDDEN], [], "hidden", "visible"),
        ([PRIVATE, CLOSED], [PRIVATE], "closed", "open"),
        ([HIDDEN, CLOSED], [HIDDEN], "closed", "open"),
        ([PRIVATE, HIDDEN], [HIDDEN], "private", "public"),
        ([PRIVATE, HIDDEN], [PRIVATE], "hidden", "visible"),
    ],
)
def test_opening_a_group_in_use_needs_confirmation(
    flags: list[Flag], kept: list[Flag], dropped: str, confirming: str
) -> None:
    world = tea_party(OPEN, *flags)
    wanted = [[flag.value] for flag in kept]
    text = f'this drops {dropped} from a group in use; if that is meant, add ["{confirming}"]'
    assert world.edit(admin, ["name", "Tea"], *wanted) == (False, f"invalid: {text}")
    assert world.tea.flags == frozenset(flags)
    assert world.edit(admin, ["name", "Tea"], *wanted, [confirming]) == STORED
    assert world.tea.flags == frozenset(kept)
    assert world.tea.metadata == (("name", "Tea"),)


@pytest.mark.proves("Z-03")
def test_the_refusal_names_all_missing_confirmations() -> None:
    world = tea_party(OPEN, PRIVATE, HIDDEN, CLOSED)
    answer = (
        "invalid: this drops private and hidden from a group in use; "
        'if that is meant, add ["public"] and ["visible"]'
    )
    assert world.edit(admin) == (False, answer)
    assert world.edit(admin, ["public"])[0] is False
    assert world.edit(admin, ["public"], ["visible"]) == STORED
    assert world.tea.flags == frozenset()


@pytest.mark.proves("Z-03")
def test_dropping_closed_needs_no_confirmation_in_a_public_group() -> None:
    """`open` is needed only where only members read."""
    world = tea_party(OPEN, PRIVATE, CLOSED)
    assert world.edit(admin, ["public"]) == STORED
    world = tea_party(OPEN, CLOSED)
    assert world.edit(admin) == STORED


@pytest.mark.proves("Z-03")
def test_a_new_group_is_opened_without_confirmation() -> None:
    """No content, and no member but the author of the 9002."""
    world = World(OPEN)
    world.make(admin, "tea", ["private"], ["closed"])
    assert world.edit(admin, ["name", "Tea"]) == STORED
    assert world.tea.flags == frozenset()


def test_a_group_with_messages_is_made_private_and_opened_some_times_an_hour() -> None:
    """Whoever opened and closed groups of 300,000 messages kept others waiting for their moves."""
    world = tea_party(OPEN)
    assert world.say(admin, "hello") == STORED
    for _ in range(MAX_CLOSINGS - 1):
        assert world.edit(admin, ["private"]) == STORED
        assert world.edit(admin, ["public"]) == STORED
        world.now += 60
    assert world.edit(admin, ["private"]) == STORED
    text = "rate-limited: made private 3 times; it can be opened in 3480 seconds"
    assert world.edit(admin, ["public"]) == (False, text)
    assert world.edit(admin, ["hidden"], ["public"]) == STORED, "it is still for members"
    assert world.edit(admin, ["public"], ["visible"])[0] is False
    world.now += 3480
    assert world.edit(admin, ["public"], ["visible"]) == STORED
    assert world.edit(admin, ["private"]) == STORED, "at any time"
    assert world.edit(admin, ["public"])[0] is False
    assert world.edit(owner, ["public"]) == STORED, "an owner opens it at any time"


def test_while_many_messages_are_moved_no_other_group_with_some_is_made_private() -> None:
    """600 groups that were made private together kept everybody waiting for a minute."""
    world = tea_party(OPEN)
    world.rows_moving = MAX_MOVING + 1
    assert world.edit(admin, ["private"]) == STORED, "it has no messages"
    assert world.edit(admin, ["public"]) == STORED
    assert world.say(admin, "hello") == STORED
    later = "messages of other groups are being made private or public; try again in a minute"
    text = f"rate-limited: {later}"
    assert world.edit(admin, ["private"]) == (False, text)
    assert world.edit(admin, ["hidden"]) == (False, text)
    assert world.edit(admin, ["name", "Tea"]) == STORED
    assert world.edit(owner, ["private"]) == STORED
    assert world.edit(admin, ["private"], ["name", "Den"]) == STORED, "it is private"
    assert world.edit(owner, ["public"]) == STORED
    world.rows_moving = MAX_MOVING
    assert world.edit(admin, ["private"]) == STORED
    assert world.edit(owner, ["public"]) == STORED
    world.rows_moving, world.rows_in_group["tea"] = 1, MAX_MOVING
    assert world.edit(admin, ["private"]) == (False, text), "both together"


def test_while_many_messages_are_moved_no_group_with_some_is_opened() -> None:
    """All readers looked into 320 groups that were opened together, for minutes."""
    world = tea_party(OPEN)
    assert world.say(admin, "hello") == STORED
    later = "messages of other groups are being made private or public; try again in a minute"
    text = f"rate-limited: {later}"
    assert world.edit(admin, ["private"]) == STORED
    world.rows_moving, world.rows_in_group["tea"] = 1, MAX_MOVING
    assert world.edit(admin, ["public"]) == (False, text)
    world.rows_in_group["tea"] = MAX_MOVING - 1
    assert world.edit(admin, ["public"]) == STORED
    assert world.edit(admin, ["private"]) == STORED
    world.rows_moving, world.rows_in_group["tea"] = 0, MAX_MOVING + 1
    assert world.edit(admin, ["public"]) == STORED, "nothing else is moved"
    assert world.edit(owner, ["private"]) == STORED
    world.now += 3600
    world.rows_moving = 1
    assert world.edit(admin, ["public"]) == (False, text)
    assert world.edit(owner, ["public"]) == STORED


def test_a_group_with_very_many_messages_is_made_private_by_an_owner() -> None:
    """One of 720,000 kept everybody waiting for minutes."""
    world = tea_party(OPEN)
    assert world.say(admin, "hello") == STORED
    world.rows_in_group["tea"] = MAX_MOVING
    assert world.edit(admin, ["private"]) == STORED
    assert world.edit(admin, ["public"]) == STORED
    world.rows_in_group["tea"] += 1
    text = (
        "restricted: it has more than 10,000 messages, or 10 MB of them: delete some (9005), or"
        " ask an owner of the relay to make it private"
    )
    assert world.edit(admin, ["private"]) == (False, text)
    assert world.edit(admin, ["name", "Tea"]) == STORED
    assert world.edit(owner, ["private"]) == STORED
    assert world.edit(admin, ["private"], ["name", "Den"]) == STORED, "it is private"


def test_a_group_without_messages_is_opened_any_number_of_times() -> None:
    world = tea_party(OPEN)
    for _ in range(2 * MAX_CLOSINGS):
        assert world.edit(admin, ["private"]) == STORED
        assert world.edit(admin, ["public"]) == STORED


@pytest.mark.proves("Z-03")
def test_a_group_with_content_or_another_member_is_in_use() -> None:
    world = World(OPEN)
    world.make(admin, "tea", ["private"])
    world.say(admin, "a diary")
    assert world.edit(admin)[0] is False
    world.make(admin, "coffee", ["private"])
    assert world.edit(owner, group="coffee")[0] is False
    assert world.put(admin, alice, group="coffee") == STORED
    assert world.edit(admin, group="coffee")[0] is False


@pytest.mark.proves("Z-03")
def test_dropping_restricted_needs_no_confirmation() -> None:
    """Z-03 names private, hidden and closed."""
    world = tea_party(OPEN, Flag.RESTRICTED)
    assert world.edit(admin) == STORED


@pytest.mark.proves("Z-03")
def test_a_forced_flag_is_added_by_the_next_edit() -> None:
    """The policy may be stricter than when the group was created."""
    world = tea_party(OPEN)
    world.settings = replace(OPEN, always=frozenset({PRIVATE}))
    assert world.edit(admin, ["name", "Tea"]) == STORED
    assert world.tea.flags == {PRIVATE}
    world.settings = OPEN
    assert world.rebuilt() == world.groups
