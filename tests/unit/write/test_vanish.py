"""A key that vanishes (NIP-62): relay/write and relay/lifecycle/deletion.py on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.quotas import Size, SizedBy
from relay.access.visibility import Viewer
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.notices import NOTICES
from relay.lifecycle.rows import Found, Slot, Vanish, WritePlan
from relay.nostr import kinds
from relay.nostr.nip42 import OwnAddresses, relay_address
from relay.write import lookups, pieces
from relay.write.candidate import Sender, candidate_of
from relay.write.lookups import lookups_for
from tests.cast import admin, alice, bob, carol, dave, owner, person, stranger
from tests.contract.writing import EVERYTHING, asked
from tests.harness.relay_in_process import (
    DELETED,
    DUPLICATE,
    NOON,
    RELAY,
    STORED,
    URL,
    Home,
    Letter,
    policy_of,
    store_of,
)
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from relay.lifecycle.rows import Lookups
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.write.batch import Batch
    from relay.write.commands import LaneItem

POSTMAN = person("postman")
TOO_MANY_RECORDS = (
    False,
    "error: a group that this key moderated has too many records, so not everything was deleted:"
    " ask the relay's operator to import this request",
)
FOR_OTHER_RELAYS = (False, "restricted: this request to vanish is for other relays")


@pytest.fixture
async def private_home() -> AsyncIterator[Home]:
    """Preset `group`."""
    async with store_of("reference") as store, Home(store, policy_of("group")) as home:
        yield home


async def tea_party(home: Home) -> None:
    """A group that admin made; alice is a moderator, bob and carol joined by request."""
    await home.do(admin, 9007, h="tea")
    await home.do(admin, 9000, ["p", alice.pubkey, "moderator"], h="tea")
    await home.do(bob, 9021, h="tea")
    await home.do(carol, 9021, h="tea")


async def test_who_is_put_into_a_group_after_the_request_is_told(home: Home) -> None:
    """In the same batch, and the request is dated a little later."""
    await tea_party(home)
    request = home.request(bob, at=home.now + 60)
    put = home.made(admin, 9000, ["p", bob.pubkey], h="tea")
    assert await home.take(request, put) == [STORED] * 2
    assert home.groups.is_member(bob.pubkey)
    (told,) = await home.found(kinds=[44100], tag_p=[bob.pubkey])
    assert told.has_tag("h")


async def members_shown(home: Home, group: str = "tea") -> set[str]:
    (shown,) = await home.found(kinds=[39002], tag_d=[group])
    return set(shown.tag_values("p"))


async def admins_shown(home: Home, group: str = "tea") -> dict[str, list[str]]:
    (shown,) = await home.found(kinds=[39001], tag_d=[group])
    return {tag[1]: list(tag[2:]) for tag in shown.tags if tag[0] == "p"}


async def is_the_same_after_a_restart(home: Home) -> None:
    before = home.groups
    assert await home.rebuilt() == before
    await home.restart()
    assert home.groups == before


# what goes ----------------------------------------------------------------------------------------


@pytest.mark.proves("N62-01")
async def test_all_events_of_the_author_up_to_the_request_are_deleted(home: Home) -> None:
    """N62-01, N62-04: kind 5 too; later events stay."""
    note = await home.do(alice, 1, ["t", "x"])
    await home.do(alice, 5, ["e", note.id])
    await home.do(alice, 0)
    await home.do(alice, 30023, ["d", "x"])
    await home.do(alice, 1, ["p", bob.pubkey], at=NOON - 10**6)
    later = await home.do(alice, 1, at=NOON + 1)
    of_bob = await home.do(bob, 1, ["p", alice.pubkey])
    await home.vanish(alice)
    assert await home.log() == [later, of_bob]
    assert await home.found(authors=[alice.pubkey]) == [later]
    assert await home.found(tag_t=["x"]) == []
    assert await home.store.count([asked(kinds=[5])], EVERYTHING, now=NOON) == 0


@pytest.mark.proves("N62-05", "N59-09")
async def test_wraps_go_that_were_sent_to_the_author(home: Home) -> None:
    """N62-05, N59-09: whoever signed them, and whoever else they are for."""
    to_both = ["p", bob.pubkey], ["p", alice.pubkey]
    await home.do(POSTMAN, 1059, *to_both)
    await home.do(POSTMAN, 1059, ["p", alice.pubkey], at=NOON - 10**5)
    to_bob = await home.do(POSTMAN, 1059, ["p", bob.pubkey])
    later = await home.do(POSTMAN, 1059, ["p", alice.pubkey], at=NOON + 1)
    await home.vanish(alice)
    assert await home.log() == [to_bob, later]


async def test_notices_go_that_were_sent_to_the_author(home: Home) -> None:
    await tea_party(home)
    await home.vanish(alice)
    notices = [row for row in await home.log() if row.kind in kinds.GROUP_MEMBER_NOTICES]
    assert {row.tag("p") for row in notices} >= {admin.pubkey, bob.pubkey}
    assert alice.pubkey not in {row.tag("p") for row in notices}


@pytest.mark.proves("N62-06")
async def test_what_went_does_not_come_back(home: Home) -> None:
    """N62-06: nor does anything else that is dated as early; later events are accepted."""
    note = await home.do(alice, 1)
    wrap = await home.do(POSTMAN, 1059, ["p", alice.pubkey])
    await home.vanish(alice)
    backdated = home.made(alice, 1, at=NOON - 5)
    own_deletion = home.made(alice, 5, ["e", note.id])
    other_wrap = home.made(POSTMAN, 1059, ["p", bob.pubkey], ["p", alice.pubkey])
    refused = note, wrap, backdated, own_deletion, other_wrap
    await home.restart()
    answers = await home.take(*refused, logins=[alice.pubkey])
    assert answers == [DELETED] * 5
    assert await home.take(*refused, origin=Origin.TRUSTED_IMPORT) == [DELETED] * 5
    assert await home.log() == []
    again = await home.do(alice, 1, at=NOON + 1)
    to_her = await home.do(POSTMAN, 1059, ["p", alice.pubkey], at=NOON + 1)
    assert await home.log() == [again, to_her]


@pytest.mark.proves("N62-06", "N01-96")
async def test_a_group_from_before_the_request_is_refused_to_its_maker(home: Home) -> None:
    """Told OK true, the maker would take it for made. Others are told nothing."""
    await home.do(alice, 1)
    await home.vanish(alice)
    early = home.made(alice, 9007, h="tea", at=NOON - 5)
    assert await home.take(early, logins=[alice.pubkey]) == [DELETED]
    for keys in ((), (stranger.pubkey,)):
        assert await home.take(early, logins=keys) == [STORED]
    assert home.groups.get("tea") is None


async def test_a_vanish_is_felt_within_its_batch(home: Home) -> None:
    """Later events of the batch see it, about earlier rows."""
    record = await home.do(alice, 30023, ["d", "x"])
    note, wrap, request = (
        home.made(alice, 1),
        home.made(POSTMAN, 1059, ["p", alice.pubkey]),
        home.request(alice),
    )
    late_wrap = home.made(POSTMAN, 1059, ["p", alice.pubkey])
    new = home.made(alice, 30023, ["d", "x"], at=NOON + 1)
    answers = await home.take(
        home.made(alice, 30023, ["d", "x"], content="2"),
        note,
        wrap,
        request,
        note,
        wrap,
        record,
        late_wrap,
        new,
        request,
        logins=[alice.pubkey],
    )
    assert answers[:4] == [STORED] * 4
    assert answers[4:] == [DELETED] * 4 + [STORED, DUPLICATE]
    assert await home.log() == [new]


# the request --------------------------------------------------------------------------------------


@pytest.mark.proves("N62-08")
async def test_the_request_is_kept_and_never_served(home: Home) -> None:
    """N62-08: sent again it is a duplicate, after a restart too; it is not delivered live."""
    request = await home.vanish(alice)
    assert await home.log() == []
    assert await home.found(ids=[request.id]) == []
    assert await home.take(request, request) == [DUPLICATE] * 2
    await home.restart()
    assert await home.take(request) == [DUPLICATE]
    assert home.live.said == []


@pytest.mark.proves("N62-10")
async def test_of_several_requests_the_latest_rules(home: Home) -> None:
    """N62-10: an earlier request has nothing left to do."""
    await home.vanish(alice, at=NOON - 10)
    between = await home.do(alice, 1, at=NOON - 5)
    latest = await home.vanish(alice, at=NOON)
    assert await home.log() == []
    earlier, as_late = home.request(alice, at=NOON - 3), home.request(alice, at=NOON)
    assert await home.take(earlier, as_late, between) == [STORED, STORED, DELETED]
    assert await home.take(latest) == [DUPLICATE]
    note = await home.do(alice, 1, at=NOON + 1)
    assert await home.log() == [note]


@pytest.mark.proves("N62-09")
async def test_a_deletion_does_not_undo_a_vanish(home: Home) -> None:
    """N62-09: whether it comes before the request or after."""
    note = await home.do(alice, 1)
    request = home.request(alice)
    assert await home.take(home.made(alice, 5, ["e", request.id]), request) == [STORED] * 2
    deletion = await home.do(alice, 5, ["e", request.id], at=NOON + 1)
    assert await home.take(note, request) == [DELETED, DUPLICATE]
    assert await home.log() == [deletion]


@pytest.mark.proves("N62-03")
@pytest.mark.parametrize(
    ("urls", "acts"),
    [
        (["ALL_RELAYS"], True),
        ([URL], True),
        (["wss://elsewhere.example", URL], True),
        (["wss://elsewhere.example"], False),
        (["all_relays"], False),
        (["ALL_RELAYS "], False),
        (["", "*"], False),
    ],
)
async def test_a_request_acts_where_it_is_addressed_to(
    home: Home, urls: list[str], *, acts: bool
) -> None:
    """N62-03, Z-13: for other relays it is an event like any other."""
    note = await home.do(alice, 1)
    request = home.request(alice, *urls)
    assert await home.take(request, note) == [STORED, DELETED if acts else DUPLICATE]
    assert await home.log() == ([] if acts else [note, request])


@pytest.mark.proves("Z-13")
async def test_a_request_to_others_is_taken_from_people_known_here(private_home: Home) -> None:
    """Z-13."""
    home = private_home
    elsewhere = "wss://elsewhere.example"
    of_owner, of_stranger = home.request(owner, elsewhere), home.request(stranger, elsewhere)
    assert await home.take(of_owner, of_stranger) == [STORED, FOR_OTHER_RELAYS]
    assert await home.take(of_stranger, origin=Origin.IMPORT) == [FOR_OTHER_RELAYS]
    assert await home.take(of_stranger, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert await home.log() == [of_owner, of_stranger]
    assert await home.take(home.request(stranger, URL)) == [STORED]
    assert await home.log() == [of_owner]


@pytest.mark.proves("N62-02")
async def test_a_request_without_a_relay_asks_for_nothing(home: Home) -> None:
    """N62-02."""
    note = await home.do(alice, 1)
    assert await home.take(home.made(alice, 62)) == [(False, "invalid: missing tag relay")]
    assert await home.log() == [note]


@pytest.mark.proves("N62-10")
@pytest.mark.parametrize("origin", Origin)
async def test_a_request_from_the_future_is_refused(home: Home, origin: Origin) -> None:
    """N62-10: from a file too, or its author could never write here again."""
    note = await home.do(alice, 1)
    (answer,) = await home.take(home.request(alice, at=NOON + 901), origin=origin)
    assert answer == (False, "invalid: created_at: 901 s in the future, at most 900 s allowed")
    assert await home.log() == [note]
    assert await home.take(home.request(alice, at=NOON + 900), origin=origin) == [STORED]
    assert await home.log() == []


@pytest.mark.proves("N62-07", "N62-11")
@pytest.mark.parametrize("origin", Origin)
async def test_nothing_stands_in_the_way_of_a_request(origin: Origin) -> None:
    """N62-07, N62-11: not who the author is, no work, no login, no form, no group."""
    own_rules = (
        "[limits]\nmin_pow_difficulty = 20\ncreated_at_lower = 60\n[auth]\nwrites = 'always'\n"
        "[[rule]]\nname = 'work'\npow = 30\n[[rule]]\nname = 'subjects'\nrequire = ['subject']\n"
        "[[rule]]\nname = 'nobody'\nwrite = ['owner']\n"
    )
    policy = policy_of("group", own_rules)
    async with store_of("reference") as store, Home(store, policy) as home:
        for who in (owner, stranger):
            tags = ["h", "tea"], ["h", "den"], ["h"], ["-"], ["previous", "x"]
            request = home.made(who, 62, ["relay", URL], *tags, at=NOON - 10**7)
            assert await home.take(request, origin=origin) == [STORED]
            assert await home.take(request, origin=origin) == [DUPLICATE]


async def test_the_key_of_the_relay_does_not_vanish(home: Home) -> None:
    """The groups follow from its records (N29-60)."""
    await tea_party(home)
    (answer,) = await home.take(home.request(RELAY))
    assert answer == (False, "restricted: the key of this relay cannot vanish from it")
    assert len(home.groups.by_id["tea"].members) == 4
    await is_the_same_after_a_restart(home)


# groups -------------------------------------------------------------------------------------------


@pytest.mark.proves("N62-07")
async def test_membership_ends_in_every_group(home: Home) -> None:
    """N62-07, N29-83, N29-84: the relay signs the removals and the new group state."""
    await tea_party(home)
    await home.do(bob, 9007, ["private"], h="den")
    await home.do(bob, 9, h="tea", content="hello")
    home.live.said.clear()
    request = await home.vanish(bob)
    assert not home.groups.is_member(bob.pubkey)
    removals = [event for event in home.live.said if event.kind == 9001]
    assert [(event.pubkey, event.tags) for event in removals] == [
        (RELAY.pubkey, [["h", group], ["p", bob.pubkey], ["self-removal"], ["e", request.id]])
        for group in ("den", "tea")
    ]
    assert await members_shown(home) == {admin.pubkey, alice.pubkey, carol.pubkey}
    assert await admins_shown(home, "den") == {}
    assert await members_shown(home, "den") == set()
    signed = sorted(event.kind for event in home.live.said)
    assert signed == [9001, 9001, 9002, 39001, 39002, 39002], "the 9002 says what bob's 9007 said"
    assert await home.found(authors=[bob.pubkey]) == []
    assert home.groups.by_id["den"].flags == {Flag.PRIVATE}
    await is_the_same_after_a_restart(home)


async def test_who_vanished_may_come_back(home: Home) -> None:
    """N62-06: nobody removed them."""
    await tea_party(home)
    await home.vanish(bob)
    home.now += 1
    await home.do(bob, 9021, h="tea")
    assert bob.pubkey in home.groups.by_id["tea"].members
    await is_the_same_after_a_restart(home)


async def in_groups(home: Home, number: int, who: SecretKey, by: SecretKey = admin) -> list[str]:
    """`by`: puts it into these; for over 24 an owner."""
    groups = [f"g{each}" for each in range(number)]
    made = [home.made(admin, 9007, h=group) for group in groups]
    put = [home.made(by, 9000, ["p", who.pubkey], h=group) for group in groups]
    assert await home.take(*made, *put) == [STORED] * 2 * number
    return groups


@pytest.mark.proves("N62-07")
async def test_a_member_of_many_groups_leaves_few_at_a_time(home: Home) -> None:
    """A key that others had put into 450 groups kept all writers waiting for 1.4 s."""
    groups = await in_groups(home, 70, bob, owner)
    left: list[int] = []
    stored = home.ingest._stored

    async def noted(items: Sequence[LaneItem]) -> Batch:
        before = len(home.groups.groups_of(bob.pubkey))
        batch = await stored(items)
        left.append(before - len(home.groups.groups_of(bob.pubkey)))
        return batch

    home.ingest._stored = noted  # type: ignore[method-assign]
    request = home.post(home.request(bob), connection=1)
    message = home.post(home.made(admin, 9, h=groups[-1]), connection=2)
    assert [await letter.answer for letter in (request, message)] == [STORED] * 2
    assert (max(left), sum(left)) == (16, 70)
    assert not home.groups.is_member(bob.pubkey)
    for group in (groups[0], groups[-1]):
        assert await members_shown(home, group) == {admin.pubkey}
    assert len(await home.found(kinds=[9001])) == 70
    assert await home.rebuilt() == home.groups


async def test_who_is_put_back_between_two_pieces_is_removed_by_another_record(home: Home) -> None:
    """Two pieces of one second made the same 9001, and a copy of the log had one: its reader would
    have put the key back. Of clients no such 9000 is taken."""
    await in_groups(home, 40, bob, owner)
    stored, put = home.ingest._stored, list[Letter]()

    async def noted(items: Sequence[LaneItem]) -> Batch:
        before = home.groups.groups_of(bob.pubkey)
        batch = await stored(items)
        if not put:
            for group in before - home.groups.groups_of(bob.pubkey):
                again = home.made(admin, 9000, ["p", bob.pubkey], h=group)
                put.append(home.post(again, Origin.IMPORT, connection=2))
            await eventually("they wait", lambda: home.ingest.waiting["commit"] == len(put))
        return batch

    home.ingest._stored = noted  # type: ignore[method-assign]
    request = home.post(home.request(bob), connection=1)
    assert await request.answer == STORED
    assert [await letter.answer for letter in put] == [STORED] * 16
    removals = [event.id for event in await home.found(kinds=[9001])]
    assert len(removals) == len(set(removals)) == 40 + 16
    await is_the_same_after_a_restart(home)


@pytest.mark.parametrize("number", [20, 90])
async def test_a_piece_looks_up_the_groups_that_it_leaves_however_many_there_are(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of a founder of 9,000 each piece took the event loop 0.4 s, ten minutes long."""
    founded = [home.made(bob, 9007, h=f"g{each}") for each in range(number)]
    assert await home.take(*founded) == [STORED] * number
    made: list[Slot] = []
    numbers: list[int] = []
    stored = home.ingest._stored

    def counted(pubkey: str, kind: int, d: str) -> Slot:
        made.append(Slot(pubkey, kind, d))
        return made[-1]

    async def noted(items: Sequence[LaneItem]) -> Batch:
        made.clear()
        try:
            return await stored(items)
        finally:
            numbers.append(len(made))

    monkeypatch.setattr(lookups, "Slot", counted)
    home.ingest._stored = noted  # type: ignore[method-assign]
    await home.vanish(bob)
    assert not home.groups.is_member(bob.pubkey)
    assert 0 < max(numbers) <= 16 * len(NOTICES) + 1


@pytest.mark.parametrize("who", [admin, owner])
async def test_of_many_groups_that_a_key_moderated_few_are_restated_at_a_time(
    home: Home, who: SecretKey
) -> None:
    """3,960 of them kept all writers waiting for 10 s. An owner is a member of none."""
    groups = await in_groups(home, 23, bob)
    put = [home.made(owner, 9000, ["p", carol.pubkey], h=group) for group in groups]
    code = [home.made(who, 9009, ["code", f"sesame-{group}"], h=group) for group in groups]
    assert await home.take(*put, *code) == [STORED] * 46
    before, log = home.groups, await home.log()
    restated: list[int] = []
    stored = home.ingest._stored

    async def noted(items: Sequence[LaneItem]) -> Batch:
        batch = await stored(items)
        signed = [row for row in batch.rows if row.event.pubkey == RELAY.pubkey]
        restated.append(len({row.group for row in signed if row.event.kind == 9000}))
        return batch

    home.ingest._stored = noted  # type: ignore[method-assign]
    request = await home.vanish(who)
    assert (max(restated), sum(restated)) == (16, 23)
    assert await home.found(authors=[who.pubkey]) == []
    for group in groups:
        members = before.by_id[group].members.keys() - {who.pubkey}
        assert home.groups.by_id[group].members.keys() == members
        assert home.groups.by_id[group].invites == {}
        assert await members_shown(home, group) == members
        shown = await home.found(kinds=[39000, 39001, 39002, 39005], tag_d=[group])
        assert len({event.kind for event in shown}) == len(shown)
    erasure = await home.store.erasure(request.id)
    assert erasure is not None
    assert erasure.total == sum(map(Vanish(who.pubkey, request.created_at).covers, log))
    assert await home.take(request) == [DUPLICATE]
    await is_the_same_after_a_restart(home)


async def test_an_old_request_of_a_member_of_many_groups_is_refused(home: Home) -> None:
    """It would have to be looked up which of them its author joined since."""
    await in_groups(home, 65, bob, owner)
    answer = (False, "invalid: created_at: a member of more than 64 groups needs a new request")
    ((ok, text),) = await home.take(home.request(bob, at=home.now - 1000))
    assert (ok, text[: len(answer[1])]) == answer
    assert await home.take(home.request(bob, at=home.now - 800)) == [STORED]


async def test_who_is_named_by_very_many_later_records_stays_until_a_new_request(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can send an old request again, and put a key into many groups of their own."""
    monkeypatch.setattr("relay.storage.rows.MOST_PUT_LATER", 1)
    for group in ("tea", "den"):
        await home.do(admin, 9007, h=group)
        await home.do(admin, 9000, ["p", bob.pubkey], h=group)
    assert await home.take(home.request(bob, at=home.now - 5000)) == [STORED]
    assert home.groups.groups_of(bob.pubkey) == {"tea", "den"}
    assert await home.take(home.request(bob)) == [STORED]
    assert not home.groups.groups_of(bob.pubkey)


async def test_who_was_known_as_a_member_is_unknown_at_once(private_home: Home) -> None:
    """Already for later events of the batch."""
    home = private_home
    await home.do(owner, 9007, h="tea")
    await home.do(owner, 9000, ["p", alice.pubkey], h="tea")
    answers = await home.take(
        home.made(alice, 1),
        home.request(alice),
        home.made(alice, 1, at=NOON + 1),
    )
    assert answers[:2] == [STORED, STORED]
    assert answers[2] == (
        False,
        "restricted: only people known here may write; join a group first",
    )


async def test_membership_ends_twice_within_a_second(home: Home) -> None:
    """The relay's two 9001 are two events."""
    await tea_party(home)
    for _ in range(2):
        await home.do(admin, 9000, ["p", dave.pubkey], h="tea")
        await home.vanish(dave, at=home.now)
        await home.do(admin, 9000, ["p", dave.pubkey], h="tea")
        await home.vanish(dave, at=home.now + 1)
        home.now += 2
    assert len(await home.found(kinds=[9001], tag_p=[dave.pubkey])) == 4
    assert dave.pubkey not in home.groups.by_id["tea"].members
    await is_the_same_after_a_restart(home)


async def test_the_groups_outlive_the_admin_who_made_them(home: Home) -> None:
    """N29-58: the relay restates what the admin had done."""
    await tea_party(home)
    await home.do(admin, 9002, ["name", "Tea"], ["closed"], h="tea")
    await home.do(admin, 9009, ["code", "sesame-1"], h="tea")
    await home.do(alice, 9009, ["code", "sesame-2"], h="tea")
    await home.do(admin, 9000, ["p", dave.pubkey, "poet"], h="tea")
    await home.do(admin, 9001, ["p", carol.pubkey], h="tea")
    await home.do(owner, 9000, ["p", stranger.pubkey], h="tea")
    await home.do(admin, 9007, h="gone")
    await home.do(admin, 9008, h="gone")
    before = home.groups.by_id["tea"]
    await home.vanish(admin)
    tea = home.groups.by_id["tea"]
    assert tea.members == {
        key: roles for key, roles in before.members.items() if key != admin.pubkey
    }
    assert tea.removed.keys() == {carol.pubkey}
    assert (tea.metadata, tea.flags) == ((("name", "Tea"),), frozenset({Flag.CLOSED}))
    assert tea.invites.keys() == {"sesame-2"}
    assert home.groups.ended.keys() == {"gone"}
    assert await home.found(authors=[admin.pubkey]) == []
    assert await admins_shown(home) == {alice.pubkey: ["moderator"], dave.pubkey: ["poet"]}
    assert [(event.kind, event.tag("h")) for event in await home.log() if event.kind == 9008] == [
        (9008, "gone")
    ]
    await is_the_same_after_a_restart(home)
    (answer,) = await home.take(home.made(admin, 9007, h="gone", at=NOON + 1))
    assert answer == (False, "duplicate: this group already exists")


async def test_a_group_of_too_many_records_is_restated_for_an_operator_only(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600,000 of them held the writer 31 s, with 900 MB. Nothing of the group is lost."""
    await tea_party(home)
    await home.do(admin, 9002, ["name", "Tea"], h="tea")
    await home.do(admin, 9007, h="small")
    found, append = list[Found](), home.store.append

    async def noted(lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        def noting(each: Found) -> WritePlan:
            found.append(each)
            return decide(each)

        return await append(lookups, noting)

    monkeypatch.setattr(home.store, "append", noted)
    size = sum([len(each.raw) for each in await home.log() if "tea" in each.raw.decode()])
    monkeypatch.setattr(pieces, "MOST_RECORDS", size // 2)
    monkeypatch.setattr(pieces, "_RECORDS_AT_ONCE", size // 4)
    named, note = home.made(admin, 9002, ["name", "Teas"], h="tea"), home.made(alice, 1)
    request = home.request(admin)
    assert await home.take(named, request, note) == [STORED, TOO_MANY_RECORDS, STORED]
    before = home.groups.by_id["tea"]
    read = [row for each in found for row in each.group_records]
    assert "tea" not in {row.group for row in read}
    assert {event.kind for event in await home.found(authors=[admin.pubkey])} >= {9000, 9002}
    assert home.groups.by_id["tea"] == before
    assert await home.rebuilt() == home.groups
    assert await home.take(request, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert await home.found(authors=[admin.pubkey]) == []
    assert home.groups.by_id["tea"].metadata == before.metadata
    assert home.groups.by_id["tea"].members.keys() == before.members.keys() - {admin.pubkey}
    await is_the_same_after_a_restart(home)


async def test_a_used_code_admits_nobody_when_who_removed_its_user_vanishes(home: Home) -> None:
    """In the log that is left the user was a member all the time."""
    await tea_party(home)
    await home.do(admin, 9002, ["closed"], h="tea")
    await home.do(admin, 9001, ["p", bob.pubkey], h="tea")
    await home.do(owner, 9009, ["code", "sesame-1"], h="tea")
    await home.do(owner, 9009, ["code", "sesame-2"], h="tea")
    await home.do(bob, 9021, ["code", "sesame-1"], h="tea")
    await home.vanish(admin)
    refused = (False, "restricted: the group is closed: this code is not valid")
    assert await home.take(home.made(dave, 9021, ["code", "sesame-1"], h="tea")) == [refused]
    await is_the_same_after_a_restart(home)
    await home.do(dave, 9021, ["code", "sesame-2"], h="tea")


async def test_an_owner_who_vanishes_keeps_their_rights(home: Home) -> None:
    """N62-07: any status. Owners of the relay leave records in groups without being members."""
    await tea_party(home)
    await home.do(owner, 9000, ["p", dave.pubkey], h="tea")
    await home.do(owner, 9001, ["p", carol.pubkey], h="tea")
    await home.vanish(owner)
    assert home.groups.by_id["tea"].members.keys() == {
        who.pubkey for who in (admin, alice, bob, dave)
    }
    await is_the_same_after_a_restart(home)
    home.now += 1
    await home.do(owner, 9000, ["p", carol.pubkey], h="tea")
    await is_the_same_after_a_restart(home)


async def test_a_request_to_join_is_deleted_too(home: Home) -> None:
    """N62-01: no pending request is left."""
    await tea_party(home)
    await home.do(admin, 9001, ["p", carol.pubkey], h="tea")
    waiting = home.made(carol, 9021, h="tea"), home.made(bob, 9022, h="tea")
    assert await home.take(*waiting) == [(False, "restricted: pending review"), STORED]
    await home.vanish(carol)
    assert home.groups.by_id["tea"].requests == {}
    assert await home.found(kinds=[9021], authors=[carol.pubkey]) == []
    await is_the_same_after_a_restart(home)
    await home.vanish(bob)
    await is_the_same_after_a_restart(home)


async def test_a_life_in_groups_and_its_end_in_one_batch(home: Home) -> None:
    """N29-56: nothing of the group was stored before the batch."""
    answers = await home.take(
        home.made(admin, 9007, h="tea"),
        home.made(admin, 9000, ["p", alice.pubkey, "admin"], h="tea"),
        home.made(alice, 9000, ["p", bob.pubkey], h="tea"),
        home.made(alice, 9007, h="gone"),
        home.made(alice, 9008, h="gone"),
        home.made(alice, 9, h="tea"),
        home.request(admin),
        home.request(alice),
        home.made(bob, 9, h="tea"),
        home.made(alice, 9, h="tea", at=NOON + 1),
        home.made(alice, 9000, ["p", carol.pubkey], h="tea", at=NOON + 1),
    )
    assert answers == [STORED] * 10 + [(False, "restricted: not a member")]
    assert home.groups.by_id["tea"].members == {bob.pubkey: ()}
    assert home.groups.ended.keys() == {"gone"}
    assert {event.pubkey for event in await home.log()} == {
        bob.pubkey,
        alice.pubkey,
        RELAY.pubkey,
    }
    await is_the_same_after_a_restart(home)


async def records(home: Home) -> list[Event]:
    return [event for event in await home.log() if event.kind in kinds.GROUP_RECORDS]


async def test_a_group_that_ends_beside_a_vanish(home: Home) -> None:
    """N29-124: in one batch, in either order."""
    await tea_party(home)
    await home.do(alice, 9009, ["code", "sesame-1"], h="tea")
    end = home.made(admin, 9008, h="tea")
    assert await home.take(home.request(bob), end, home.request(alice)) == [STORED] * 3
    assert home.groups.ended.keys() == {"tea"}
    assert [event.kind for event in await records(home)] == [9007, 9008]
    await is_the_same_after_a_restart(home)
    await home.vanish(admin)
    assert [(event.kind, event.pubkey) for event in await records(home)] == [(9008, RELAY.pubkey)]
    await is_the_same_after_a_restart(home)


async def test_an_old_request_ends_nothing_that_began_since(home: Home) -> None:
    """Anyone may send it again, and it may never have come here."""
    await tea_party(home)
    old = home.request(bob, at=NOON - 901)
    note = await home.do(bob, 9, h="tea")
    before = home.groups
    assert await home.take(old) == [STORED]
    assert home.groups is before
    assert note in await home.log()
    # A clock that is behind is no reason to stay.
    await home.vanish(bob, at=NOON - 900)
    assert not home.groups.is_member(bob.pubkey)
    assert note in await home.log()
    await is_the_same_after_a_restart(home)


# where this relay is ------------------------------------------------------------------------------


def test_a_relay_knows_its_configured_url() -> None:
    """N62-03, N42-06."""
    addresses = OwnAddresses("wss://Rookery.example:443/relay")
    assert addresses.has("ws://rookery.example/relay/")
    assert not addresses.has("wss://rookery.example")
    assert not addresses.has("")


def test_a_relay_without_a_url_is_where_it_listens() -> None:
    """N62-03: a folder opened without a server is nowhere."""
    addresses = OwnAddresses(None)
    for url in ("", "ws://localhost:7777", "ws://127.0.0.1:7777", "nonsense", "ws://["):
        assert not addresses.has(url)
    here = relay_address("ws://localhost:7777"), relay_address("ws://[::1]:7777")
    addresses.listens_on(frozenset(address for address in here if address is not None))
    for url in ("ws://localhost:7777/", "wss://LocalHost.:7777", "http://[::1]:7777"):
        assert addresses.has(url)
    assert not addresses.has("ws://localhost:7778")
    assert not addresses.has("nonsense")


@pytest.mark.proves("N29-127")
async def test_who_vanishes_was_in_no_group_that_ended(home: Home) -> None:
    """Nobody else's knowledge of the end changes, also when who ended the group vanishes."""
    await home.do(admin, 9007, ["private"], h="gone")
    await home.do(admin, 9000, ["p", alice.pubkey], ["p", bob.pubkey], h="gone")
    await home.do(admin, 9008, h="gone")
    everybody = {admin.pubkey, alice.pubkey, bob.pubkey}
    assert home.groups.ended["gone"].members == everybody
    for who in (alice, admin):
        await home.vanish(who)
        everybody.remove(who.pubkey)
        assert home.groups.ended["gone"].members == everybody
        assert home.groups.ended_with(who.pubkey) == frozenset()
        assert await home.rebuilt() == home.groups
    end = next(row for row in await home.store.since(0, 100) if row.event.kind == 9008)
    for who, reads in ((alice, False), (admin, False), (bob, True), (carol, False)):
        seen = home.state.visibility(Viewer(frozenset({who.pubkey})))
        assert seen.may_read(end, None) is reads


# -- bounds ----------------------------------------------------------------------------------------


async def kept_requests(home: Home) -> Size:
    """What requests to vanish take on the disk, as `rookery stats` shows it."""
    lines = await home.store.sizes(SizedBy.KIND, 10)
    return next((line.size for line in lines if line.of == kinds.VANISH), Size())


async def test_a_request_to_vanish_is_small(home: Home) -> None:
    """No rule is asked about it, and it is kept for ever."""
    tags = [["relay", "ALL_RELAYS"]]
    least = len(alice.sign(62, tags, "", NOON).raw)
    over = alice.sign(62, tags, "x" * (4097 - least), NOON)
    text = "invalid: a request to vanish has at most 4096 bytes"
    assert await home.take(over) == [(False, text)]
    assert await home.take(alice.sign(62, tags, "x" * (4096 - least), NOON)) == [STORED]


async def test_of_a_key_of_which_nothing_is_stored_only_the_id_and_date_are_kept(
    home: Home,
) -> None:
    """Anybody may send requests, of keys made for that."""
    request, known = home.request(stranger), home.request(alice)
    note = await home.do(alice, 1)
    assert await home.take(request, known) == [STORED, STORED]
    assert await kept_requests(home) == Size(2, 64 + len(known.raw))
    assert await home.take(request, known, note) == [DUPLICATE, DUPLICATE, DELETED]
    assert await home.take(home.made(stranger, 1)) == [DELETED]
    assert await home.take(home.made(stranger, 1, at=NOON + 1)) == [STORED]
    # What it writes in the same batch is something, too.
    late = home.made(bob, 1), home.request(bob)
    assert await home.take(*late) == [STORED, STORED]
    assert await kept_requests(home) == Size(3, 64 + len(known.raw) + len(late[1].raw))
    assert await home.found(authors=[bob.pubkey]) == []


async def test_requests_of_keys_of_which_nothing_is_stored_are_paced(home: Home) -> None:
    """By address; those of others are not."""
    for who in (alice, bob):
        await home.do(who, 1)
    many = [home.request(person(f"key {number}")) for number in range(40)]
    answers = await home.take(*many[:20]) + await home.take(*many[20:])
    late = (False, "rate-limited: too many requests to vanish, wait a minute")
    assert answers == [STORED] * 30 + [late] * 10
    assert await kept_requests(home) == Size(30, 30 * 64)
    assert await home.take(home.request(alice), home.request(bob)) == [STORED, STORED]
    home.now += 60
    assert await home.take(many[-1]) == [STORED]


@pytest.mark.parametrize("preset", ["group", "open"])
async def test_what_unknown_keys_may_send_refuses_no_known_key_that_leaves_many_groups(
    preset: str,
) -> None:
    """It was known to the first pieces and unknown to the last: refused, and in no group."""
    total = (
        '[[rule]]\nname = "all requests to vanish by unknown senders"\nmatch = { kinds = [62] }\n'
        'except = [{ authors = ["known"] }, { login = ["known"] }]\n'
        'quota = { per = "relay", events = 1 }\n'
    )
    async with store_of("reference") as store, Home(store, policy_of(preset, total)) as home:
        groups = [f"g{each}" for each in range(20)]
        made = [home.made(owner, 9007, h=group) for group in groups]
        put = [home.made(owner, 9000, ["p", admin.pubkey, "admin"], h=group) for group in groups]
        acted = [home.made(admin, 9000, ["p", carol.pubkey], h=group) for group in groups]
        assert await home.take(*made, *put, *acted) == [STORED] * 60
        await home.do(admin, 9, h="g0")
        unknown = [home.request(who) for who in (alice, bob)]
        late = (False, "rate-limited: full: at most 1 events a day from all clients together")
        assert await home.take(*unknown) == [STORED, late]
        request = await home.vanish(admin)
        assert await home.found(authors=[admin.pubkey]) == []
        assert not home.groups.is_member(admin.pubkey)
        assert await home.take(request) == [DUPLICATE]


async def found_for(home: Home, *leaving: SecretKey) -> list[Found]:
    """What the store finds for a request to vanish of each, sent alone."""
    seen = list[Found]()

    def noted(found: Found) -> WritePlan:
        seen.append(found)
        return WritePlan()

    for who in leaving:
        keep = home.state.policy.keep.keep_of(home.request(who))
        sent = candidate_of(
            home.request(who), keep, home.state.policy.systems, Sender(), lambda _: True
        )
        wanted = lookups_for(
            [sent],
            (),
            groups=home.state.groups,
            actors=home.state.actors,
            policy=home.state.policy,
            relay=RELAY.pubkey,
            now=home.now,
        )
        await home.store.append(wanted, noted)
    return seen


async def pinned_post(home: Home, group: str, by: SecretKey) -> Event:
    """In a new group of admin, by a member."""
    await home.do(admin, 9007, h=group)
    if by is not admin:
        await home.do(admin, 9000, ["p", by.pubkey], h=group)
    post = await home.do(by, 9, h=group)
    await home.do(admin, 9010, ["e", post.id], h=group)
    return post


async def test_a_request_of_an_unknown_key_reads_no_pins(home: Home) -> None:
    """Of a key of which something is stored, the events that groups have pinned are needed."""
    post = await pinned_post(home, "tea", admin)
    unknown, known = await found_for(home, stranger, admin)
    assert not unknown.present
    assert not unknown.stored_keys
    assert post.id in known.present
    assert known.stored_keys == {admin.pubkey}


async def test_pins_are_read_of_groups_in_which_the_key_has_rows(home: Home) -> None:
    """Anybody can have one row somewhere, and there may be thousands of groups with pins."""
    here = await pinned_post(home, "tea", alice)
    await pinned_post(home, "pub", bob)
    await home.do(stranger, 1)
    (nothing,) = await found_for(home, stranger)
    assert not nothing.present
    (some,) = await found_for(home, alice)
    assert some.present.keys() == {here.id}


async def test_a_pinned_gift_wrap_for_a_key_goes_with_it(home: Home) -> None:
    """The key has written nothing into that group."""
    await tea_party(home)
    wrap = await home.do(bob, 1059, ["p", dave.pubkey], h="tea")
    post = await home.do(bob, 9, h="tea")
    pins = home.made(admin, 9010, ["e", wrap.id], ["e", post.id], h="tea")
    assert await home.take(pins, origin=Origin.IMPORT) == [STORED]
    await home.vanish(dave)
    assert home.groups.by_id["tea"].pins == (("e", post.id),)


async def test_of_what_groups_pin_a_vanish_reads_nothing(home: Home) -> None:
    """Four groups that pin 64 events of 400 kB held the writer 0.4 s, with 214 MB."""
    post = await pinned_post(home, "tea", alice)
    (some,) = await found_for(home, alice)
    assert post.id not in some.rows
    assert some.present[post.id].pubkey == alice.pubkey
    await home.vanish(alice)
    assert home.groups.by_id["tea"].pins == ()
