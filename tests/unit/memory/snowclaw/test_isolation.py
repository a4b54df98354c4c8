"""relay/memory/snowclaw/isolation.py: what stays in its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.memory.snowclaw.isolation import enters, leaks
from relay.memory.snowclaw.keys import group_d, user_d
from relay.memory.snowclaw.records import record_in
from relay.memory.unreadable import UnreadableRecord
from tests.cast import alice, bob, owner, robot
from tests.unit.memory.snowclaw.making import TAGS_OF_COLLECTIVE, config, record

if TYPE_CHECKING:
    from relay.memory.snowclaw.records import Record
    from relay.nostr.event import Event

TEA, DEN = ["h", "tea"], ["h", "den"]
USER = user_d(alice.pubkey)


def read(event: Event) -> Record:
    found = record_in(event)
    assert not isinstance(found, UnreadableRecord)
    return found


@pytest.mark.proves("S-33")
def test_memory_of_a_group_enters_its_own_context_alone() -> None:
    for tags in ([TEA], []):
        found = read(record(group_d("tea"), None, *tags))
        assert [enters(found, group) for group in ("tea", "den")] == [True, False]
    assert not enters(read(record(group_d("tea"), None, DEN)), "tea")
    assert not enters(read(record(group_d("tea"), None, DEN)), "den")


@pytest.mark.proves("S-33")
def test_notes_about_a_user_enter_every_context_but_when_they_are_a_groups() -> None:
    everywhere, of_tea = read(record(USER)), read(record(USER, None, TEA))
    assert [enters(everywhere, group) for group in ("tea", "den")] == [True, True]
    assert [enters(of_tea, group) for group in ("tea", "den")] == [True, False]


@pytest.mark.proves("S-33")
def test_what_a_member_should_never_have_been_given_is_named() -> None:
    right = [
        record(USER, None, TEA),
        record(group_d("tea"), None, TEA),
        record("snow:memory:x", None, *TAGS_OF_COLLECTIVE),
        record("snow:memory:x", None, ["snow:tier", "group"], TEA),
        record("snowclaw:core:x", None, TEA),
        record("snowclaw:core:mine", by=bob),
        record("other:thing"),
        robot.sign(9, [DEN], "chat", 1),
    ]
    wrong = [
        record(USER),
        record(USER, None, DEN),
        record(group_d("tea")),
        record(group_d("den"), None, DEN),
        record(group_d("den"), None, TEA),
        record("snow:memory:x", None, ["snow:tier", "private"], TEA),
        record("snow:memory:x", None, ["snow:tier", "group"], DEN),
        record("snow:memory:x", None, ["snow:tier", "group"]),
        record("snowclaw:core:x"),
        config("group:tea", None, TEA),
        config("global", by=owner),
    ]
    assert leaks([*right, *wrong], {"tea"}, bob.pubkey) == wrong


@pytest.mark.proves("S-33")
def test_whoever_is_in_no_group_should_have_nothing() -> None:
    given = [record(USER, None, TEA), record("snow:memory:x", None, *TAGS_OF_COLLECTIVE)]
    assert leaks(given, frozenset(), bob.pubkey) == given
