"""Edits: what waits for the next version of a record."""

from __future__ import annotations

from relay.memory.snowclaw.edits import Edits
from relay.memory.snowclaw.users import UserMemory


def applied(edits: Edits) -> UserMemory:
    memory = UserMemory()
    for edit in edits.of_user:
        memory = edit(memory)
    return memory


def test_messages_in_several_groups_wait_as_one_edit_for_each() -> None:
    edits = Edits()
    for at in range(100, 200):
        edits.user_seen(at, (("rook", 5),), "tea" if at % 2 else "chess")
    assert (len(edits), edits.changes) == (2, 1)
    memory = applied(edits)
    assert (memory.first_seen, memory.last_interaction) == (100, 199)
    assert memory.first_seen_group == "chess", "that of the first message"
    assert memory.display_names == (("rook", 5),)


def test_messages_after_a_version_that_is_being_published_wait_for_the_next_one() -> None:
    edits = Edits()
    edits.user_seen(1, (), "tea")
    edits.user_seen(2, (), "chess")
    edits.mark_in_flight()
    edits.user_seen(3, (), "tea")
    edits.user_seen(4, (), "chess")
    assert len(edits) == 4
    edits.drop_in_flight()
    assert (len(edits), applied(edits).last_interaction) == (2, 4)


def test_names_that_change_between_messages_count_as_changes() -> None:
    edits = Edits()
    for at in range(20):
        edits.user_seen(at, ((f"rook {at}", at),), "tea")
    assert edits.changes == 20, "the record is due"


def test_a_deletion_until_between_two_messages_leaves_the_later_one() -> None:
    edits = Edits()
    for at, group in ((1, "tea"), (2, "chess"), (3, "tea")):
        edits.user_seen(at, (), group)
    assert edits.drop_until(2)
    assert (len(edits), applied(edits).first_seen) == (1, 3)


def test_a_message_keeps_the_date_of_edits_after_a_deletion_that_is_not_for_them() -> None:
    edits = Edits()
    edits.user_seen(1, (), "tea")
    edits.date_after(5)
    edits.user_seen(2, (), "tea")
    assert not edits.drop_until(5)
    assert len(edits) == 1
