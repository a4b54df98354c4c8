"""relay/groups/notices.py: 39000–39003 and 39005. N29-60…71."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from relay.groups.actions import Flag
from relay.groups.group import Group
from relay.groups.key_map import OrderedMap
from relay.groups.notices import MAX_TAGS_BYTES, membership_notices, notices_for
from relay.nostr import kinds
from relay.nostr.event import id_bytes
from tests.cast import admin, alice, bob, carol, stranger
from tests.unit.groups.world import NOON, OPEN, RELAY, World, tea_party

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS = {admin.pubkey: ("admin",), alice.pubkey: (), bob.pubkey: ("moderator", "poet")}


@pytest.mark.proves("N29-62", "N29-63", "N29-64", "N29-65", "N29-69")
def test_a_new_group_is_described_in_full() -> None:
    group = Group(
        "tea",
        metadata=(("name", "Tea"), ("about", "leaves"), ("theme", "green")),
        flags=frozenset(Flag),
        supported_kinds=frozenset({11, 9}),
        members=OrderedMap(MEMBERS),
    )
    stamped, drafts = notices_for(None, group, NOON)
    assert [draft.kind for draft in drafts] == [39000, 39001, 39002, 39003]
    assert {(draft.content, draft.created_at) for draft in drafts} == {("", NOON)}
    metadata, admins, members, roles = (draft.tags for draft in drafts)
    assert metadata == (
        ("d", "tea"),
        ("name", "Tea"),
        ("about", "leaves"),
        ("private",),
        ("restricted",),
        ("hidden",),
        ("closed",),
        ("livekit",),
        ("supported_kinds", "9", "11"),
        ("theme", "green"),
    )
    assert admins == (
        ("d", "tea"),
        ("p", admin.pubkey, "admin"),
        ("p", bob.pubkey, "moderator", "poet"),
    )
    assert members == (("d", "tea"), *(("p", pubkey) for pubkey in MEMBERS))
    assert [tag[:2] for tag in roles] == [("d", "tea"), ("role", "admin"), ("role", "moderator")]
    assert stamped == replace(group, notice_times=dict.fromkeys(range(39000, 39004), NOON))


@pytest.mark.proves("N29-62")
def test_a_flag_that_is_off_is_absent() -> None:
    _, drafts = notices_for(None, Group("tea"), NOON)
    assert drafts[0].tags == (("d", "tea"),)


@pytest.mark.proves("N29-13")
def test_an_empty_supported_kinds_is_published() -> None:
    _, drafts = notices_for(None, Group("tea", supported_kinds=frozenset()), NOON)
    assert drafts[0].tags == (("d", "tea"), ("supported_kinds",))


@pytest.mark.proves("N29-69")
def test_only_changed_notices_are_made() -> None:
    world = tea_party(OPEN)
    steps: list[tuple[Callable[[], object], list[int]]] = [
        (lambda: world.put(admin, carol), [9000, 39002]),
        (lambda: world.put(admin, carol, "admin"), [9000, 39001]),
        (lambda: world.put(admin, stranger, "poet"), [9000, 39001, 39002]),
        (lambda: world.remove(admin, alice), [9001, 39002]),
        (lambda: world.remove(admin, stranger), [9001, 39001, 39002]),
        (lambda: world.edit(admin, ["name", "Tea"]), [9002, 39000]),
        (lambda: world.edit(admin, ["name", "Tea"]), [9002]),
        (lambda: world.invite(admin, "open sesame"), [9009]),
        (lambda: world.leave(carol), [9022, 9001, 39001, 39002]),
    ]
    for step, expected in steps:
        newest = {row.id for row in world.log}
        step()
        assert [row.kind for row in world.log if row.id not in newest] == expected


@pytest.mark.proves("N29-68")
def test_notices_have_increasing_created_at() -> None:
    """Also two of one second."""
    world = World(OPEN)
    world.make(admin)
    for n, who in enumerate((alice, bob, carol), start=1):
        world.put(admin, who)
        assert world.last(kinds.GROUP_MEMBERS).created_at == NOON + n
    world.now += 100
    world.put(admin, stranger)
    assert world.last(kinds.GROUP_MEMBERS).created_at == NOON + 100
    assert world.tea.notice_times[kinds.GROUP_MEMBERS] == NOON + 100
    world.now = NOON  # a clock that was set back
    world.remove(admin, stranger)
    assert world.last(kinds.GROUP_MEMBERS).created_at == NOON + 101


@pytest.mark.proves("N29-60", "N29-61")
def test_one_notice_of_each_kind_is_stored_and_by_the_relay() -> None:
    world = tea_party(OPEN)
    state = [row for row in world.log if row.kind in kinds.GROUP_STATE]
    assert sorted(row.kind for row in state) == [39000, 39001, 39002, 39003]
    assert {row.pubkey for row in state} == {RELAY}


@pytest.mark.proves("N29-69")
def test_no_change_makes_no_notice() -> None:
    group = Group("tea", members=OrderedMap(MEMBERS), notice_times={39000: NOON})
    assert notices_for(group, group, NOON) == (group, ())


@pytest.mark.proves("N29-64", "N29-71")
def test_a_list_too_long_for_a_message_is_cut() -> None:
    members = {f"{n:064x}": ("ö" * 64,) * 8 for n in range(8000)}
    _, drafts = notices_for(None, Group("tea", members=OrderedMap(members)), NOON)
    for draft in drafts:
        tags = [list(tag) for tag in draft.tags]
        size = len(id_bytes(RELAY, NOON, draft.kind, tags, ""))
        assert size < MAX_TAGS_BYTES + 1000
        if draft.kind in (39001, 39002):
            assert tags[1][:2] == ["p", f"{0:064x}"]
            assert 100 < len(tags) < 8000


# -- notices of membership -------------------------------------------------------------------------


def told(before: Group | None, after: Group | None) -> list[tuple[int, list[str]]]:
    """Kind and `p` of each notice."""
    drafts = membership_notices(before, after, cause="c" * 64, actor=admin.pubkey, now=NOON)
    return [(draft.kind, [tag[1] for tag in draft.tags if tag[0] == "p"]) for draft in drafts]


@pytest.mark.proves("B-05")
def test_who_comes_and_who_goes_is_noted_and_a_role_is_not() -> None:
    group = Group("tea", members=OrderedMap(MEMBERS))
    changed = replace(group, members=OrderedMap({alice.pubkey: ("poet",), carol.pubkey: ()}))
    assert told(group, changed) == [
        (44100, [carol.pubkey]),
        *((44101, [key]) for key in sorted([admin.pubkey, bob.pubkey])),
    ]
    assert told(changed, changed) == []
    assert [kind for kind, _ in told(None, group)] == [44100] * 3
    assert [kind for kind, _ in told(group, None)] == [44101] * 3


@pytest.mark.proves("B-05")
@pytest.mark.parametrize("number", [1, 100, 101, 5000])
def test_many_members_share_at_most_a_hundred_notices(number: int) -> None:
    keys = [f"{n:064x}" for n in range(number)]
    notices = told(Group("tea"), Group("tea", members=OrderedMap(dict.fromkeys(keys, ()))))
    assert len(notices) <= min(number, 100)
    assert sorted(key for _, part in notices for key in part) == keys


@pytest.mark.parametrize("number", [600, 8_000])
def test_a_long_list_names_those_first_who_joined_first(number: int) -> None:
    """Above some 6,700 members the others are left out, and agents read the first 500."""
    keys = [hashlib.sha256(f"{each}".encode()).hexdigest() for each in range(number)]
    group = Group("tea").with_users({admin.pubkey: ("admin",)})
    for key in keys:
        group = group.with_users({key: ()})
    _, (draft,) = notices_for(None, group, NOON, which={kinds.GROUP_MEMBERS})
    named = [tag[1] for tag in draft.tags if tag[0] == "p"]
    assert named == [admin.pubkey, *keys][: len(named)]
    assert len(named) >= min(number, 6_500)
