"""Groups in the write pipeline: events of one batch, and rates of invite codes.

Each event is decided as the one before it left the world, and all of it is one transaction.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from relay.access.quotas import GUESSES_PER_KEY, Per, Rate
from relay.facts import Origin
from relay.groups.actions import PRIVATE_FLAGS, Flag
from relay.nostr import kinds
from relay.nostr.event import made_from
from relay.storage.sqlite.lookups import Finder
from relay.write.commands import WriteEvent
from tests.cast import admin, alice, bob, carol, owner, person, robot
from tests.harness.relay_in_process import RELAY, STORED, Batches, Home, policy_of, store_of
from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event
    from relay.write.commands import LaneItem

TAKEN = (False, "duplicate: this group already exists")
NOT_A_MEMBER = (False, "restricted: not a member")
BAD_CODE = (False, "restricted: the group is closed: this code is not valid")
TOO_MANY = (False, "rate-limited: too many invite codes tried, wait a minute")


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        yield home
        await is_sound(home)


async def is_sound(home: Home) -> None:
    """The replayed log, the stored 39xxx (each once) and the state in memory agree."""
    assert await home.rebuilt() == home.groups
    log = await home.log()
    said = Counter((row.kind, row.d) for row in log if row.kind in kinds.GROUP_STATE)
    assert set(said.values()) <= {1}
    for row in log:
        if row.kind == kinds.GROUP_METADATA:
            group = home.groups.by_id[row.d]
            assert row.tag("parent") == group.parent
            assert row.tag_values("child") == list(group.children)


async def test_the_store_is_told_which_members_it_has(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL wrote 10,000 members again for each invite code, 0.3 s."""
    await home.do(alice, 9007, h="tea")
    append = home.store.append
    plans: list[WritePlan] = []

    async def noted(wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        def noting(found: Found) -> WritePlan:
            plans.append(decide(found))
            return plans[-1]

        return await append(wanted, noting)

    monkeypatch.setattr(home.store, "append", noted)
    before = home.groups.by_id["tea"].members
    await home.do(alice, 9009, ["code", "before-1"], h="tea")
    await home.do(alice, 9000, ["p", bob.pubkey], h="tea")
    await home.do(alice, 9007, h="den")
    known = [plan.members_before for plan in plans]
    assert known == [{"tea": before}, {"tea": before}, {}]
    invited, added, _ = plans
    for plan, is_same in ((invited, True), (added, False)):
        group = plan.groups["tea"]
        assert (group.members is plan.members_before["tea"]) is is_same


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
async def test_groups_of_one_batch_that_are_made_private_count_too(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.groups.rules.MAX_MOVING", 8)
    for group in ("tea", "den", "inn"):
        await home.do(alice, 9007, h=group)
        for _ in range(3):
            await home.do(alice, 9, h=group)
    closings = [home.made(alice, 9002, ["private"], h=group) for group in ("tea", "den", "inn")]
    text = "messages of other groups are being made private or public; try again in a minute"
    later = (False, f"rate-limited: {text}")
    assert await home.take(*closings) == [STORED, STORED, later]


MANY_CLOSINGS: Final = (
    "very many messages of groups were made private within an hour, on this relay or by your"
    " network; try again later, or ask an owner of the relay"
)


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
async def test_one_network_does_not_use_up_the_messages_that_others_may_make_private(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of 16 networks that closed groups of their own kept all others from closing theirs.
    A large group takes from a bucket of its own: nobody who closes a small one waits for it."""
    for name, per, most in (
        ("CLOSINGS_OF_NETWORK", Per.NETWORK, 4),
        ("LARGE_OF_NETWORK", Per.NETWORK, 5),
        ("LARGE_CLOSINGS", Per.RELAY, 5),
    ):
        rate = Rate(name, per, most, most, 3_600)
        monkeypatch.setattr(f"relay.write.passed_over._{name}", rate)
    monkeypatch.setattr("relay.storage.sqlite.lookups.weight_of_rows", lambda rows, _: rows)
    for group, number in {"tea": 2, "den": 2, "inn": 2, "hall": 5, "pub": 5}.items():
        await home.do(alice, 9007, h=group)
        for _ in range(number):
            await home.do(alice, 9, h=group)

    async def close(group: str, address: str) -> tuple[bool, str]:
        letter = home.letter_from(address)
        home.ingest.submit(home.made(alice, 9002, ["private"], h=group), letter, Origin.WIRE)
        return await letter.answer

    many = (False, f"rate-limited: {MANY_CLOSINGS}")
    assert await close("hall", "203.0.113.1") == STORED
    assert await close("tea", "203.0.113.1") == STORED
    assert await close("den", "203.0.113.2") == STORED
    assert await close("inn", "203.0.113.3") == many
    assert await close("pub", "198.51.100.1") == many
    assert await close("inn", "198.51.100.1") == STORED


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
async def test_so_many_messages_are_made_private_in_an_hour(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of their tags pass over them until they are moved: with one group closed after the
    other they would always wait."""
    monkeypatch.setattr(
        "relay.write.passed_over._CLOSINGS", Rate("closings", Per.RELAY, 4, 4, 3_600)
    )
    monkeypatch.setattr("relay.write.passed_over._LARGE_CLOSINGS", Rate("large", Per.RELAY, 1, 1))
    monkeypatch.setattr("relay.storage.sqlite.lookups.weight_of_rows", lambda rows, _: rows)
    for group in ("tea", "den", "inn"):
        await home.do(alice, 9007, h=group)
        for _ in range(2):
            await home.do(alice, 9, h=group)
    private = [home.made(alice, 9002, ["private"], h=group) for group in ("tea", "den", "inn")]
    many = (False, f"rate-limited: {MANY_CLOSINGS}")
    assert await home.take(*private) == [STORED, STORED, many]
    assert await home.take(home.made(alice, 9002, ["name", "Inn"], h="inn")) == [STORED]
    assert await home.take(home.made(alice, 9002, ["private"], ["name", "T"], h="tea")) == [STORED]
    assert await home.take(home.made(alice, 9002, ["public"], h="den")) == [STORED]
    assert await home.take(home.made(owner, 9002, ["private"], h="inn")) == [STORED]
    home.now += 1_800
    assert await home.take(home.made(alice, 9002, ["private"], h="den")) == [STORED]
    assert await home.take(home.made(alice, 9002, ["public"], h="den")) == [STORED]
    later = home.made(alice, 9002, ["private"], h="den")
    assert await home.take(later) == [many]
    assert await home.take(later, origin=Origin.IMPORT) == [STORED]


@pytest.mark.proves("N29-123")
async def test_of_two_that_make_the_same_group_one_wins(home: Home) -> None:
    one, other = (home.made(who, 9007, h="tea") for who in (alice, bob))
    assert await home.take(one, other) == [STORED, TAKEN]
    assert home.groups.by_id["tea"].members.keys() == {alice.pubkey}


@pytest.mark.proves("N29-59")
async def test_an_invite_is_withdrawn_in_the_batch_that_makes_it_and_later(home: Home) -> None:
    await home.do(admin, 9007, ["closed"], h="tea")
    await home.do(admin, 9009, ["code", "before-1"], h="tea")
    both = home.made(admin, 9009, ["code", "sesame-1"], h="tea")
    withdrawn = home.made(admin, 5, ["code", "sesame-1"], ["code", "before-1"], h="tea")
    assert await home.take(both, withdrawn) == [STORED, STORED]
    assert home.groups.by_id["tea"].invites == {}
    assert 9009 not in {row.kind for row in await home.log()}
    assert await home.take(home.made(bob, 9021, ["code", "sesame-1"], h="tea")) == [BAD_CODE]


@pytest.mark.proves("N29-39", "Z-14")
async def test_of_two_with_the_same_single_code_one_wins(home: Home) -> None:
    await home.do(admin, 9007, ["closed"], h="tea")
    await home.do(admin, 9009, ["code", "open sesame"], h="tea")
    batch = [home.made(who, 9021, ["code", "open sesame"], h="tea") for who in (bob, carol)]
    assert await home.take(*batch) == [STORED, BAD_CODE]
    assert home.groups.by_id["tea"].members.keys() == {admin.pubkey, bob.pubkey}


@pytest.mark.proves("N29-39")
async def test_a_code_revoked_in_the_batch_admits_nobody(home: Home) -> None:
    await home.do(admin, 9007, ["closed"], h="tea")
    invite = await home.do(admin, 9009, ["code", "open sesame"], h="tea")
    revoking = home.made(admin, 9005, ["e", invite.id], h="tea")
    asking = home.made(bob, 9021, ["code", "open sesame"], h="tea")
    assert await home.take(revoking, asking) == [STORED, BAD_CODE]


@pytest.mark.proves("N29-18")
async def test_nothing_is_accepted_after_the_removal_of_its_author(home: Home) -> None:
    await home.do(admin, 9007, ["restricted"], h="tea")
    await home.do(admin, 9000, ["p", bob.pubkey], h="tea")
    batch = [
        home.made(bob, 9, h="tea"),
        home.made(admin, 9001, ["p", bob.pubkey], h="tea"),
        home.made(bob, 9, h="tea"),
    ]
    assert await home.take(*batch) == [STORED, STORED, NOT_A_MEMBER]


@pytest.mark.proves("N29-56", "N29-137", "N29-139")
async def test_a_tree_grows_and_falls_within_one_batch(home: Home) -> None:
    batch = [
        *(home.made(admin, 9007, h=group) for group in ("food", "tea", "green")),
        home.made(admin, 9002, ["parent", "food"], h="tea"),
        home.made(admin, 9002, ["parent", "tea"], h="green"),
        home.made(admin, 9007, ["parent", "tea"], h="black"),
        home.made(admin, 9008, h="tea"),
        home.made(admin, 9002, ["parent", "black"], h="green"),
        home.made(admin, 9002, ["parent", "green"], h="black"),
    ]
    cycle = (False, "invalid: parent: a group cannot be its own ancestor")
    lost = (False, "invalid: child: must name each of the 1 subgroups once, and no other")
    answers = await home.take(*batch)
    assert answers[:-1] == [STORED] * 8
    assert answers[-1] in (cycle, lost)
    assert {key: group.parent for key, group in home.groups.by_id.items()} == {
        "food": None,
        "green": "black",
        "black": None,
    }
    await is_sound(home)
    await home.restart()


@pytest.mark.proves("N29-70", "N29-137")
async def test_both_parents_are_announced_when_a_group_moves(home: Home) -> None:
    for group in ("food", "drink", "tea"):
        await home.do(admin, 9007, h=group)
    await home.do(admin, 9002, ["parent", "food"], h="tea")
    count = len(home.live.said)
    move = await home.do(admin, 9002, ["parent", "drink"], h="tea")
    assert [(row.id == move.id, row.kind, row.d) for row in home.live.said[count:]] == [
        (True, 9002, ""),
        (False, 39000, "tea"),
        (False, 39000, "food"),
        (False, 39000, "drink"),
    ]


def ages_ascend(rows: list[Event]) -> bool:
    return all(one.created_at < two.created_at for one, two in pairwise(rows))


@pytest.mark.proves("N29-68")
async def test_each_word_about_a_parent_is_newer_than_the_last(home: Home) -> None:
    await home.do(admin, 9007, h="food")
    batch = [home.made(admin, 9007, ["parent", "food"], h=f"tea {n}") for n in range(5)]
    for event in batch:
        assert await home.take(event) == [STORED]
    food = [row for row in home.live.said if (row.kind, row.d) == (39000, "food")]
    assert len(food) == 6
    assert ages_ascend(food)


@pytest.mark.proves("N29-48", "N29-101", "Z-05")
async def test_a_group_that_is_opened_or_described_anew_is_logged(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "relay.write.batch_log")
    await home.do(admin, 9007, ["private"], ["about", "leaves"], h="tea")
    await home.do(admin, 9000, ["p", bob.pubkey], h="tea")
    assert not caplog.records
    await home.do(admin, 9002, ["name", "Tea"], ["public"], h="tea")
    assert [(row.levelname, row.getMessage()) for row in caplog.records] == [
        ("WARNING", "group 'tea' is public now: everyone may read all its events"),
        ("INFO", "group 'tea': flags none, metadata name; before: flags private, metadata about"),
    ]


@pytest.mark.parametrize("members", [0, 60])
async def test_of_two_edits_made_from_one_state_in_one_batch_one_wins(
    home: Home, members: int
) -> None:
    """Of a group with many members the 39000 is signed at the end of the batch."""
    await home.do(admin, 9007, h="tea")
    users = [["p", person(f"member {number}").pubkey] for number in range(members)]
    if users:
        await home.do(admin, 9000, *users, h="tea")
    (now,) = await home.found(kinds=[39000])
    named, private = made_from(now), ["private"]
    joined = home.made(bob, 9021, h="tea")
    closed = home.made(admin, 9002, private, ["restricted"], named, h="tea")
    renamed = home.made(admin, 9002, ["name", "Tea"], ["public"], named, h="tea")
    logins = [admin.pubkey]
    *answers, first, second = await home.take(joined, closed, renamed, logins=logins)
    assert answers == [STORED]  # who is in it is not in the 39000
    assert (first, second) == (STORED, (False, "duplicate: the group was changed meanwhile"))
    assert Flag.PRIVATE in home.groups.by_id["tea"].flags
    (after,) = await home.found(kinds=[39000])
    assert not after.has_tag("made-from")
    assert after.has_tag("private")
    again = home.made(admin, 9002, private, ["name", "Tea"], made_from(after), h="tea")
    assert await home.take(again) == [STORED]


@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_SYNC, Origin.TRUSTED_IMPORT])
async def test_what_is_imported_replaces_whatever_it_was_made_from(
    home: Home, origin: Origin
) -> None:
    await home.do(admin, 9007, h="tea")
    edit = home.made(admin, 9002, ["name", "Tea"], ["public"], ["made-from", ""], h="tea")
    odd = home.made(admin, 9002, ["name", "Tea"], ["public"], ["made-from", "?"], h="tea")
    await home.take(alice.sign(30078, [["d", "a"]], "one", home.now - 9))
    newer = alice.sign(30078, [["d", "a"], ["made-from", ""]], "two", home.now)
    assert await home.take(edit, odd, newer, origin=origin) == [STORED] * 3


async def test_a_version_that_its_author_may_not_read_any_more_is_replaced(home: Home) -> None:
    """Else OK true would say so of a record that is not stored."""
    d = ["d", f"snowclaw:memory:npub:{alice.pubkey[:32]}"]
    await home.do(admin, 9007, ["private"], h="tea")
    await home.do(admin, 9000, ["p", robot.pubkey], h="tea")
    logins = [robot.pubkey]
    first = robot.sign(30078, [d, ["h", "tea"]], "{}", home.now - 9)
    assert await home.take(first, logins=logins) == [STORED]
    await home.do(admin, 9001, ["p", robot.pubkey], h="tea")
    anew = robot.sign(30078, [d, ["made-from", ""]], "{}", home.now)
    assert await home.take(anew, logins=logins) == [STORED]
    assert [event.id for event in await home.found(kinds=[30078])] == [anew.id]


async def test_an_expired_version_is_no_other_one(home: Home) -> None:
    """Nobody finds it."""
    first = alice.sign(30023, [["d", "a"], ["expiration", str(home.now + 5)]], "one", home.now)
    assert await home.take(first, logins=[alice.pubkey]) == [STORED]
    home.now += 10
    anew = alice.sign(30023, [["d", "a"], ["made-from", ""]], "two", home.now)
    assert await home.take(anew, logins=[alice.pubkey]) == [STORED]


@pytest.mark.proves("B-05")
async def test_a_notice_is_stored_with_the_list_of_members_and_not_for_an_import(
    home: Home,
) -> None:
    await home.do(admin, 9007, h="tea")
    count = len(home.live.said)
    await home.do(admin, 9000, ["p", bob.pubkey], h="tea")
    assert [row.kind for row in home.live.said[count:]] == [9000, 39002, 44100]
    said = home.live.said[-1]
    assert (said.tag("p"), said.tag("h"), said.pubkey) == (bob.pubkey, "tea", RELAY.pubkey)
    count = len(home.live.said)
    imported = home.made(admin, 9000, ["p", carol.pubkey], h="tea")
    assert await home.take(imported, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert [row.kind for row in home.live.said[count:]] == [9000, 39002]


@pytest.mark.proves("B-05")
async def test_an_export_brings_notices_back_and_nobody_publishes_one(home: Home) -> None:
    """Not even one that the relay has signed and deleted since."""
    refused = (False, "restricted: kinds 44100 and 44101 are signed by the relay alone")
    tags = [["p", bob.pubkey], ["h", "tea"]]
    own, foreign = (key.sign(44100, tags, "", home.now) for key in (RELAY, admin))
    assert await home.take(own, foreign) == [refused] * 2
    assert await home.take(foreign, origin=Origin.IMPORT) == [refused]
    skipped = (True, "duplicate: the relay signs this itself")
    assert await home.take(foreign, origin=Origin.TRUSTED_IMPORT) == [skipped]
    assert foreign.id not in {row.id for row in await home.log()}
    assert await home.take(own, origin=Origin.TRUSTED_IMPORT) == [STORED]


@pytest.mark.proves("B-06")
async def test_a_group_without_h_is_the_same_after_a_restart(home: Home) -> None:
    made = home.made(admin, 9007, ["name", "Tea"], ["visibility", "private"])
    assert await home.take(made) == [STORED]
    (group,) = home.groups.by_id.values()
    assert group.id == str(UUID(group.id))
    assert group.flags == PRIVATE_FLAGS
    assert await home.take(home.made(admin, 9007, ["name", "Tea"], h=group.id)) == [TAKEN]
    await home.restart()
    await home.do(admin, 9008, h=group.id)
    await home.restart()
    assert home.groups.ended.keys() == {group.id}


# -- guesses ---------------------------------------------------------------------------------------


@pytest.mark.proves("N29-39")
async def test_who_tries_too_many_codes_waits_and_learns_nothing_of_it(home: Home) -> None:
    """The refusal depends neither on the code nor on whether the group exists."""
    await home.do(admin, 9007, ["closed"], h="tea")
    await home.do(admin, 9007, ["hidden"], h="dark")
    await home.do(admin, 9009, ["code", "open sesame"], h="tea")
    guesses = [home.made(bob, 9021, ["code", f"sesame {n}"], h="tea") for n in range(12)]
    assert await home.take(*guesses) == [BAD_CODE] * 12
    for group in ("dark", "nowhere"):
        guesses = [home.made(bob, 9021, ["code", f"sesame {n}"], h=group) for n in range(9)]
        assert await home.take(*guesses) == [NOT_A_MEMBER] * 9
    assert GUESSES_PER_KEY == 12 + 9 + 9
    for group in ("tea", "dark", "nowhere"):
        right = home.made(bob, 9021, ["code", "open sesame"], h=group)
        assert await home.take(right) == [TOO_MANY]
    await home.do(carol, 9021, ["code", "open sesame"], h="tea")
    without = home.made(bob, 9021, h="tea")
    assert (await home.take(without))[0][1].startswith("restricted: ")
    home.now += 60
    assert await home.take(home.made(bob, 9021, ["code", "open sesame"], h="tea")) == [BAD_CODE]
    await home.do(admin, 9009, ["code", "come on in"], h="tea")
    await home.do(bob, 9021, ["code", "come on in"], h="tea")


@pytest.mark.proves("N29-39")
async def test_many_keys_of_one_address_do_not_get_further(home: Home) -> None:
    await home.do(admin, 9007, ["closed"], h="tea")
    keys = [person(f"guesser {n}") for n in range(11)]
    guesses = [home.made(keys[n % 11], 9021, ["code", "sesame!!"], h="tea") for n in range(301)]
    answers = await home.take(*guesses)
    assert answers == [BAD_CODE] * 300 + [TOO_MANY]


@pytest.mark.proves("N29-28", "N29-84")
async def test_an_import_tries_as_many_codes_as_it_holds(home: Home) -> None:
    await home.do(admin, 9007, ["closed"], h="tea")
    asked = [home.made(bob, 9021, ["code", "sesame!!"], h="tea") for _ in range(40)]
    assert await home.take(*asked, origin=Origin.IMPORT) == [BAD_CODE] * 40


@pytest.mark.proves("N29-104")
async def test_a_restored_deletion_of_what_is_not_here_is_not_for_everyone(home: Home) -> None:
    """What it deleted may have been private and is not stored any more."""
    gone = home.made(alice, 9, h="somewhere private")
    note = home.made(alice, 1)
    of_gone = home.made(alice, 5, ["e", gone.id])
    of_note = home.made(alice, 5, ["e", note.id])
    answers = await home.take(note, of_gone, of_note, origin=Origin.TRUSTED_IMPORT)
    assert answers == [STORED] * 3
    rows = {row.event.id: row.quiet for row in await home.store.since(0, 99)}
    assert (rows[of_gone.id], rows[of_note.id]) == (True, False)


async def test_an_import_without_trust_ends_no_group_that_is_in_use(home: Home) -> None:
    """Whether it is in use is looked up, or known of the same batch."""
    in_use = "blocked: the group has events here; only --trust lets an import delete it"
    for group, words in (("tea", "before"), ("den", "together")):
        at = home.now - 1000
        founded = home.made(admin, 9007, h=group, at=at)
        said = home.made(admin, 9, h=group, at=at, content=words)
        ended = home.made(admin, 9008, h=group, at=at + 1)
        if words == "before":
            assert await home.take(founded, said, origin=Origin.IMPORT) == [STORED] * 2
            assert await home.take(ended, origin=Origin.IMPORT) == [(False, in_use)]
        else:
            answers = await home.take(founded, said, ended, origin=Origin.IMPORT)
            assert answers == [STORED, STORED, (False, in_use)]
        assert await home.take(ended, origin=Origin.TRUSTED_IMPORT) == [STORED]


async def test_a_group_that_shrinks_from_large_to_small_in_a_batch_has_its_lists_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old ones had not been looked up, and stayed beside the new ones for ever."""
    monkeypatch.setattr("relay.groups.notices._LONG_LIST", 5)
    monkeypatch.setattr("relay.write.changes._LARGE_GROUP", 3)
    users = [["p", person(f"user-{number}").pubkey, "moderator"] for number in range(6)]
    await home.do(admin, 9007, h="tea")
    await home.do(admin, 9000, *users, h="tea")
    await lists_are_signed(home, 7)
    leave = [home.made(admin, 9001, user[:2], h="tea") for user in users]
    assert await home.take(*leave) == [STORED] * 6
    await lists_are_signed(home, 1)
    await home.do(admin, 9000, users[0], h="tea")
    await lists_are_signed(home, 2)


async def lists_are_signed(home: Home, members: int) -> None:
    """Those of large groups some time after the change. Of each kind one is stored."""
    async with until(f"the lists have {members} members") as tries:
        async for _ in tries:
            lists = await home.found(kinds=[39001, 39002])
            now = {each.kind for each in lists if len(each.tag_values("p")) == members}
            if len(now) == 2:
                break
    assert len(lists) == 2


async def test_an_event_that_would_leave_two_rows_in_a_slot_fails_alone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because what it replaces was not looked up."""
    await home.do(admin, 9007, h="tea")
    with monkeypatch.context() as patched:
        patched.setattr("relay.write.lookups._Builder._add_replaced", lambda *_: None)
        edit, note = home.made(admin, 9002, ["name", "Tea"], h="tea"), home.made(bob, 1)
        answers = await home.take(edit, note)
    assert answers == [(False, "error: the event could not be stored, try again later"), STORED]
    assert await home.take(edit) == [STORED]


def connections_of(batch: Sequence[LaneItem]) -> list[int | None]:
    return [item.author.connection for item in batch if isinstance(item, WriteEvent)]


@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_versions_of_many_tags_are_replaced_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """20 of 5,000 tags each took 0.7 s of one commit; who sends other events goes in between."""
    monkeypatch.setattr("relay.write.batch._MOST_REPLACED", 110)
    async with store_of(kind) as store, Home(store, policy_of("open")) as home:
        tags = [["t", f"{number}"] for number in range(49)]
        for d in "abcdefghijklmnopqrst":
            old = home.made(alice, 30001, ["d", d], *tags, at=home.now - 1)
            assert await home.take(old) == [STORED]
        watched = Batches(home.ingest)
        letters = [
            home.post(home.made(alice, 30001, ["d", d]), connection=1)
            for d in "abcdefghijklmnopqrst"
        ]
        letters += [home.post(home.made(bob, 1), connection=2) for _ in range(20)]
        assert [await letter.answer for letter in letters] == [STORED] * 40
        batches = [connections_of(batch) for batch in watched.committed]
        assert max(batch.count(1) for batch in batches) == 2
        assert sum(batch.count(1) for batch in batches) == 20
        done = next(place for place, batch in enumerate(batches) if 2 in batch)
        assert sum(batch.count(1) for batch in batches[: done + 1]) <= 4
        assert batches[done].count(2) > 2


async def test_connections_whose_events_read_much_are_served_by_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.write.batch._MOST_READ", 100)
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        watched = Batches(home.ingest)
        letters = [
            home.post(home.made(who, 30078, ["d", "x"], at=home.now + number), connection=place)
            for place, who in enumerate((alice, bob), 1)
            for number in range(100)
        ]
        for letter in letters:
            await letter.answer
        served = [each for batch in watched.committed for each in connections_of(batch)]
        counts = [served[:100].count(place) for place in (1, 2)]
        assert min(counts) > 35, counts


async def test_events_that_read_much_from_many_connections_of_one_address_are_served_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new connection for each event: one commit was split 300 times while others waited."""
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        rows = [await home.do(alice, 1, content="x" * 3000) for _ in range(16)]
        monkeypatch.setattr("relay.write.batch._MOST_READ", 30_000)
        watched = Batches(home.ingest)
        letters = []
        for place in range(100):
            named = [["e", row.id] for row in rows[place % 4 :: 4]]
            letter = home.post(home.made(bob, 7, *named, at=home.now + place), connection=place + 2)
            letter.counted_as = "192.0.2.1"
            letters.append(letter)
        assert await home.post(home.made(carol, 1), connection=1).answer == STORED
        assert len(watched.tried) < 20
        assert [await letter.answer for letter in letters] == [STORED] * 100


def no_time_passes() -> float:
    """Of clients that are committed apart one is, after the others: there is no time for more."""
    return 1.0


async def test_others_go_on_while_many_addresses_send_what_reads_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read just under the limit: one turn of the lane split into 60 commits, again and again,
    and everybody waited for all of them."""
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        notes = [home.made(alice, 1, content=f"{number}" + "x" * 9000) for number in range(180)]
        assert await home.take(*notes) == [STORED] * 180
        monkeypatch.setattr("relay.write.ingest.perf_counter", no_time_passes)
        monkeypatch.setattr("relay.write.batch._MOST_READ", 30_000)
        watched = Batches(home.ingest)
        letters = []
        for number in range(5):
            for place in range(60):
                named = [["e", note.id] for note in notes[3 * place : 3 * place + 3]]
                reaction = home.made(bob, 7, *named, at=home.now + number, content=f"{place}")
                letter = home.post(reaction, connection=place + 2)
                letter.counted_as = f"192.0.2.{place}"
                letters.append(letter)
        waited = []
        for number in range(100):
            before = len(watched.tried)
            letter = home.post(home.made(carol, 1, content=f"{number}"), connection=1)
            assert await letter.answer == STORED
            waited.append(len(watched.tried) - before)
        assert [await letter.answer for letter in letters] == [STORED] * 300
        assert max(waited) < 40, "all of them fail together, and halves of them"
        assert max(waited[-20:]) <= 3, "each of them is known by now"


@pytest.mark.parametrize(
    ("named", "size"), [(3, 9000), (1, 50)], ids=["each-reads-too-much", "all-together-do"]
)
async def test_a_ban_waits_for_no_turn_of_addresses_that_send_what_reads_much(
    named: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner's bans read much too, of rows of others: each waited for all 600 networks."""
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        banned = [home.made(alice, 1, content=f"{n}" + "x" * max(size, 1200)) for n in range(10)]
        notes = [home.made(alice, 1, content=f"{n}" + "x" * size) for n in range(180)]
        assert await home.take(*banned, *notes) == [STORED] * 190
        monkeypatch.setattr("relay.write.ingest.perf_counter", no_time_passes)
        monkeypatch.setattr("relay.write.batch._MOST_READ", 30_000)
        watched = Batches(home.ingest)
        letters = []
        for place in range(600):
            tags = [["e", notes[(named * place + each) % 180].id] for each in range(named)]
            letter = home.post(home.made(bob, 7, *tags, content=f"{place}"), connection=place + 2)
            letter.counted_as, letter.is_known = f"10.{place // 200}.{place % 200}.1", True
            letters.append(letter)
        async with until("some of them are tried") as tries:
            async for _ in tries:
                if watched.tried:
                    break
        waited = []
        for note in banned:
            before = len(watched.tried)
            assert await home.call("banevent", note.id) == STORED
            waited.append(len(watched.tried) - before)
        assert max(waited) < 20, waited
        assert [await letter.answer for letter in letters] == [STORED] * 600


async def test_others_go_on_while_many_addresses_refer_to_rows_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `previous`: the batch was halved, each time, down to two or three clients of which none
    was known then."""
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        rows = [home.made(admin, 30078, ["d", f"{n}"], h="tea", content="x" * 900) for n in "abcd"]
        assert await home.take(*rows) == [STORED] * 4
        monkeypatch.setattr("relay.write.ingest.perf_counter", no_time_passes)
        monkeypatch.setattr("relay.write.batch._MOST_READ", 12_000)
        previous = ["previous", *(row.id[:8] for row in rows)]
        watched = Batches(home.ingest)
        letters = []
        for number in range(4):
            for place in range(60):
                message = home.made(admin, 9, previous, h="tea", content=f"{number} {place}")
                letter = home.post(message, connection=place + 2)
                letter.counted_as = f"192.0.2.{place}"
                letters.append(letter)
        waited = []
        for number in range(40):
            before = len(watched.tried)
            note = home.made(carol, 1, content=f"{number}")
            assert await home.post(note, connection=1).answer == STORED
            waited.append(len(watched.tried) - before)
        assert max(waited) <= 3, "each of them is known after the first try"
        assert [await letter.answer for letter in letters] == [STORED] * 240


ENDED_BY = {
    "moderator": (bob, [], (False, "restricted: only an admin of the group may do this")),
    "owner": (
        owner,
        ["previous", "ffffffff"],
        (False, "invalid: previous: names an event that is not known in this group"),
    ),
}


@pytest.mark.parametrize("who", ENDED_BY)
async def test_others_go_on_while_many_addresses_fail_to_end_a_group(
    who: str,
) -> None:
    """A moderator may not; an owner who could names what is not there."""
    key, previous, refused = ENDED_BY[who]
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9000, ["p", bob.pubkey, "moderator"], h="tea")
        for word in "xy":
            await home.do(admin, 9, h="tea", content=word * 36_000)
        watched = Batches(home.ingest)
        letters = []
        for place in range(60):
            ending = home.made(key, 9008, *filter(None, [previous]), h="tea")
            letter = home.post(ending, connection=place + 2)
            letter.counted_as = f"192.0.2.{place}"
            letters.append(letter)
        assert await home.post(home.made(carol, 1), connection=1).answer == STORED
        assert len(watched.tried) <= 3
        assert [await letter.answer for letter in letters] == [refused] * 60


async def test_who_reads_more_than_many_others_is_not_put_back_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deletion of 3 kB had no answer while 500 addresses sent what reads a little less."""
    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        small = [home.made(alice, 1, content=f"{place}" + "x" * 900) for place in range(70)]
        large = home.made(alice, 1, content="x" * 1400)
        assert await home.take(*small, large) == [STORED] * 71
        monkeypatch.setattr("relay.write.ingest.perf_counter", no_time_passes)
        monkeypatch.setattr("relay.write.batch._MOST_READ", 30_000)
        home.ingest._lane.max_batch = 64  # one of each
        watched = Batches(home.ingest)
        letters = []
        for number in range(3):
            for place, note in enumerate(small):
                reaction = home.made(bob, 7, ["e", note.id], content=f"{number}")
                letter = home.post(reaction, connection=place + 2)
                letter.counted_as = f"192.0.2.{place}"
                letters.append(letter)
        mine = home.post(home.made(carol, 7, ["e", large.id]), connection=1)
        assert [await letter.answer for letter in (*letters, mine)] == [STORED] * 211
        served = [connections_of(batch) for batch in watched.committed]
        place = next(number for number, batch in enumerate(served) if 1 in batch)
        assert place <= 15


async def test_a_batch_reads_large_rows_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 reactions that named 160 rows of 440 kB took 1.3 GB and 2.4 s, 512 would have taken 70."""
    read: list[int] = []
    found_of = Finder.found

    def found(finder: Finder, lookups: Lookups, head: int) -> Found:
        found = found_of(finder, lookups, head)
        read.append(sum([len(row.event.raw) for row in found.rows.values()]))
        return found

    async with store_of("sqlite") as store, Home(store, policy_of("open")) as home:
        rows = [await home.do(alice, 1, content="x" * 3000) for _ in range(64)]
        monkeypatch.setattr("relay.write.batch._MOST_READ", 30_000)
        monkeypatch.setattr(Finder, "found", found)
        parts = [rows[start : start + 4] for start in range(0, 64, 4)]
        named = [home.made(bob, 7, *(["e", row.id] for row in part)) for part in parts]
        assert await home.take(*named) == [STORED] * 16
        assert max(read) < 30_000
        assert [event.id for event in (await home.log())[64:]] == [event.id for event in named]
        read.clear()
        mine = home.made(alice, 5, *(["e", row.id] for row in rows))
        assert await home.take(mine, home.made(bob, 1), home.made(carol, 1)) == [STORED] * 3
        assert max(read) < 70_000, "a deletion goes in pieces"
        assert len(read) > 1


async def test_a_rule_about_versions_does_not_reach_what_groups_depend_on() -> None:
    """`keep = "latest"` for all kinds: no group could be made, nobody put into one."""
    rule = '[[retention]]\nname = "one of each"\nkeep = "latest"\n'
    async with store_of("reference") as store, Home(store, policy_of("open", rule)) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9000, ["p", alice.pubkey], h="tea")
        await home.do(admin, 9000, ["p", bob.pubkey], h="tea")
        await home.do(alice, 9, h="tea", content="one")
        await home.do(alice, 9, h="tea", content="two", at=home.now + 1)
        assert len(await home.found(kinds=[9000])) >= 2
        assert [event.content for event in await home.found(kinds=[9])] == ["two"]
        await home.do(admin, 9001, ["p", bob.pubkey], h="tea")
        assert bob.pubkey not in home.groups.by_id["tea"].members
