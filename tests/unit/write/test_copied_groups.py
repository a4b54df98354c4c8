"""The log of a relay, imported with `--trust` into a new folder with the same key, is the same
groups: also where those who signed the records sent requests to vanish."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.access.visibility import ANONYMOUS, Viewer, visibility_for
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.nostr.event import event_from_raw
from relay.storage import PageQuery
from tests.cast import admin, alice, bob, carol, dave, owner, person, robot, stranger
from tests.contract.writing import MAX, asked
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import DELETED, RELAY, STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies import PolicySet
    from relay.groups.group import Group
    from relay.nostr.keys import SecretKey

PEOPLE = (admin, alice, bob, carol, dave)
BAD_CODE = (False, "restricted: the group is closed: this code is not valid")
NOT_A_MEMBER = (False, "restricted: not a member")
OTHERS = f'[actors]\nowners = ["{stranger.npub}"]\n'
"""The owner and the agent are none any more."""


@asynccontextmanager
async def copy_of(
    home: Home, relay: SecretKey = RELAY, policy: PolicySet | None = None
) -> AsyncIterator[Home]:
    kind = "reference" if isinstance(home.store, ReferenceStore) else "sqlite"
    async with store_of(kind) as store, Home(store, policy or home.policy) as copy:
        copy.relay = relay
        await copy.restart()
        copy.now = home.now + 1000
        for event in await home.log():
            await copy.take(event, origin=Origin.TRUSTED_IMPORT)
        assert await copy.rebuilt() == copy.groups
        yield copy


def shown(group: Group) -> object:
    """What people see of a group."""
    roles = {pubkey: set(roles) for pubkey, roles in group.members.items()}
    what = group.flags, set(group.metadata), group.supported_kinds, group.pins
    codes = {code: invite.used for code, invite in group.invites.items()}
    return what, roles, set(group.removed), codes


async def read_by(home: Home, who: SecretKey | None, kinds: Sequence[int] = (9, 1111)) -> set[str]:
    """Ids of the messages, or of what has these kinds, that this key may read."""
    state = home.state
    viewer = ANONYMOUS if who is None else Viewer(frozenset({who.pubkey}))
    seen = visibility_for(viewer, state.policy.read_rules, state.actors, state.groups)
    query = PageQuery(asked(kinds=list(kinds)), seen, 10_000, MAX, home.now, 10_000)
    return {event_from_raw(raw).id for raw in (await home.store.page(query)).raws}


async def differences(home: Home) -> list[str]:
    async with copy_of(home) as copy:
        before, after = home.groups, copy.groups
        found = [
            f"{name}: {sorted(old)} → {sorted(new)}"
            for name, old, new in (
                ("groups", before.by_id.keys(), after.by_id.keys()),
                ("ended", before.ended.keys(), after.ended.keys()),
            )
            if old != new
        ]
        found += [
            f"{group_id}: {shown(group)} → {shown(after.by_id[group_id])}"
            for group_id, group in before.by_id.items()
            if group_id in after.by_id and shown(group) != shown(after.by_id[group_id])
        ]
        for who in (None, *PEOPLE):
            told, says = await read_by(home, who), await read_by(copy, who)
            if told != says:
                name = "anonymous" if who is None else PEOPLE.index(who)
                found.append(f"{name}: {len(told - says)} lost, {len(says - told)} too many")
        return found


async def tea_party(home: Home, *flags: str) -> None:
    """admin made it; alice is an admin too, bob a member."""
    await home.do(admin, 9007, *([flag] for flag in flags), h="tea")
    await home.do(admin, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await home.do(admin, 9000, ["p", bob.pubkey], h="tea")


@pytest.mark.proves("N29-58")
async def test_a_group_stays_private_when_who_made_it_so_has_vanished(home: Home) -> None:
    await tea_party(home)
    await home.do(alice, 9002, ["name", "Salaries"], ["private"], ["hidden"], h="tea")
    await home.do(bob, 9, h="tea", content="a secret")
    await home.vanish(alice)
    assert Flag.HIDDEN in home.groups.by_id["tea"].flags
    assert await differences(home) == []


@pytest.mark.proves("N29-52")
async def test_what_an_admin_deleted_stays_deleted(home: Home) -> None:
    """Whoever had it could send it to the copy."""
    await tea_party(home)
    message = await home.do(bob, 9, h="tea", content="spam")
    invite = await home.do(alice, 9009, ["code", "open sesame"], h="tea")
    await home.do(admin, 9005, ["e", message.id], ["e", invite.id], h="tea")
    async with copy_of(home) as copy:
        copy.now = home.now
        assert await copy.take(message, invite, logins=[bob.pubkey, alice.pubkey]) == [DELETED] * 2


async def test_what_an_admin_deleted_stays_deleted_where_it_comes_later(home: Home) -> None:
    """With the next synchronisation, from the relay where the admin saw it."""
    await tea_party(home)
    here, later = (home.made(bob, 9, h="tea", content=text) for text in ("spam", "more spam"))
    assert await home.take(here) == [STORED]
    await home.do(admin, 9005, ["e", here.id], ["e", later.id], h="tea")
    assert await home.take(later, origin=Origin.IMPORT) == [DELETED]


async def test_a_moderator_keeps_out_nothing_that_comes_later(home: Home) -> None:
    """It may be of an admin, whose events only an admin may delete."""
    await tea_party(home)
    await home.do(admin, 9000, ["p", carol.pubkey, "moderator"], h="tea")
    here, later = home.made(bob, 9, h="tea"), home.made(admin, 9, h="tea", content="later")
    assert await home.take(here) == [STORED]
    await home.do(carol, 9005, ["e", here.id], ["e", later.id], h="tea")
    assert await home.take(later) == [STORED]


async def test_a_deletion_by_an_admin_keeps_out_of_a_copy_what_is_of_the_group_alone(
    home: Home,
) -> None:
    """It may name any ids: here of events that come later."""
    await tea_party(home)
    await home.do(owner, 9007, h="coffee")
    message = await home.do(bob, 9, h="tea", content="spam")
    others = [
        home.made(bob, 1),
        home.made(bob, 9, h="coffee"),
        home.made(bob, 7, ["e", message.id]),
        home.made(owner, 9000, ["p", carol.pubkey], h="tea"),
    ]
    named = [message, *others]
    await home.do(alice, 9005, *(["e", event.id] for event in named), h="tea")
    async with copy_of(home) as copy:
        copy.now = home.now
        assert await copy.take(*others) == [STORED] * 4


@pytest.mark.proves("N29-104")
@pytest.mark.parametrize("name", ["e", "a"])
async def test_the_deletion_of_a_private_article_stays_private(home: Home, name: str) -> None:
    """Named by id or by address, and also where it was published later."""
    await tea_party(home, "private")
    draft = await home.do(bob, 30023, ["d", "plan"], h="tea")
    value = draft.id if name == "e" else f"30023:{bob.pubkey}:plan"
    deletion = await home.do(bob, 5, [name, value], content="for Salaries")
    home.now += 1
    await home.do(bob, 30023, ["d", "plan"])
    assert await read_by(home, bob, [5]) == {deletion.id}
    async with copy_of(home) as copy:
        assert await read_by(copy, None, [30023]) == await read_by(home, None, [30023])
        assert await read_by(copy, None, [5]) == set()
        assert await read_by(copy, bob, [5]) == {deletion.id}


@pytest.mark.proves("N29-58")
async def test_a_group_outlives_its_founder(home: Home) -> None:
    await tea_party(home, "private", "closed")
    await home.do(bob, 9, h="tea")
    await home.vanish(admin)
    await home.do(alice, 9, h="tea")
    assert await differences(home) == []


@pytest.mark.proves("N29-58")
async def test_a_public_group_of_a_vanished_founder_stays_public(home: Home) -> None:
    await home.do(admin, 9007, h="tea")
    await home.do(bob, 9, h="tea", content="bob is no member")
    await home.vanish(admin)
    assert await differences(home) == []


@pytest.mark.proves("N29-58")
async def test_acts_of_an_admin_whose_appointment_is_gone_count(home: Home) -> None:
    """alice put carol in as admin, who removed bob and opened the group."""
    await tea_party(home, "private", "closed")
    await home.do(alice, 9000, ["p", carol.pubkey, "admin"], h="tea")
    await home.do(carol, 9001, ["p", bob.pubkey], h="tea")
    await home.do(carol, 9000, ["p", dave.pubkey], h="tea")
    await home.do(dave, 9, h="tea")
    await home.vanish(alice)
    assert await differences(home) == []


@pytest.mark.proves("N29-124")
async def test_an_ended_group_does_not_come_back(home: Home) -> None:
    """Of its records only 9007 and 9008 are left: who signed the 9008 is no admin by them."""
    await tea_party(home)
    await home.do(alice, 9001, ["p", admin.pubkey], h="tea")
    await home.do(alice, 9008, h="tea")
    assert await differences(home) == []
    await home.vanish(admin)
    assert await differences(home) == []
    await home.vanish(alice)
    assert await differences(home) == []


@pytest.mark.proves("N29-28")
@pytest.mark.parametrize("preset", ["open", "group"])
async def test_what_a_former_owner_did_counts(home: Home, preset: str) -> None:
    """carol stays out, and the group private."""
    home.policy = policy_of(preset)
    await home.restart()
    await home.do(robot, 9007, h="tea")
    await home.do(robot, 9000, ["p", carol.pubkey], h="tea")
    await home.do(owner, 9000, ["p", dave.pubkey, "moderator"], h="tea")
    await home.do(owner, 9001, ["p", carol.pubkey], h="tea")
    await home.do(owner, 9002, ["name", "Salaries"], ["private"], ["closed"], h="tea")
    await home.do(dave, 9, h="tea", content="a secret")
    home.policy = policy_of(preset, actors=OTHERS)
    await home.restart()
    assert carol.pubkey in home.groups.by_id["tea"].removed
    assert await differences(home) == []


@pytest.mark.proves("N29-28")
async def test_the_group_of_a_former_agent_stays_hidden(home: Home) -> None:
    home.policy = policy_of("group")
    await home.restart()
    await home.do(robot, 9007, ["name", "Plan"], ["hidden"], ["private"], ["closed"], h="tea")
    await home.do(robot, 9000, ["p", carol.pubkey], h="tea")
    home.policy = policy_of("group", actors=OTHERS)
    await home.restart()
    assert home.groups.by_id["tea"].is_hidden
    assert await differences(home) == []


@pytest.mark.proves("N29-28")
async def test_a_former_owner_may_have_ended_a_group(home: Home) -> None:
    await tea_party(home)
    await home.do(owner, 9009, ["code", "open sesame"], h="tea")
    await home.do(admin, 9007, h="den")
    await home.do(owner, 9008, h="den")
    home.policy = policy_of("open", actors=OTHERS)
    await home.restart()
    assert await differences(home) == []


def uses(home: Home, code: str = "open sesame") -> int:
    return home.groups.by_id["tea"].invites[code].used


@pytest.mark.proves("N29-28", "N29-58")
async def test_a_code_that_was_used_up_stays_used_up(home: Home) -> None:
    """carol joined with it after alice had removed her, whom bob had made an admin."""
    await home.do(admin, 9007, ["private"], ["closed"], h="tea")
    await home.do(admin, 9000, ["p", bob.pubkey, "admin"], h="tea")
    await home.do(bob, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await home.do(admin, 9000, ["p", carol.pubkey], h="tea")
    await home.do(alice, 9001, ["p", carol.pubkey], h="tea")
    await home.do(admin, 9009, ["code", "open sesame"], h="tea")
    await home.do(carol, 9021, ["code", "open sesame"], h="tea")
    await home.vanish(bob)
    async with copy_of(home) as copy:
        assert (uses(home), uses(copy)) == (1, 1)
        asks = copy.made(dave, 9021, ["code", "open sesame"], h="tea")
        assert await copy.take(asks) == [BAD_CODE]
    assert await differences(home) == []


@pytest.mark.proves("N29-28", "N29-58")
@pytest.mark.parametrize("gone", [False, True])
async def test_so_does_one_of_an_inviter_without_a_role(home: Home, *, gone: bool) -> None:
    """alice, whom bob had made an admin, made the code; or the owner, who is none any more."""
    await tea_party(home, "private", "closed")
    await home.do(admin, 9000, ["p", bob.pubkey, "admin"], h="tea")
    await home.do(bob, 9000, ["p", dave.pubkey, "admin"], h="tea")
    await home.do(dave if gone else owner, 9009, ["code", "open sesame"], h="tea")
    await home.do(carol, 9021, ["code", "open sesame"], h="tea")
    if gone:
        await home.vanish(bob)
    home.policy = policy_of("open", actors=OTHERS)
    await home.restart()
    assert uses(home) == 1
    assert await differences(home) == []


@pytest.mark.proves("N29-28", "N29-58")
async def test_so_does_one_used_while_a_group_was_closed_by_who_vanished(home: Home) -> None:
    """By the records that are left the group is open when carol asks."""
    await tea_party(home)
    await home.do(alice, 9002, ["name", "Tea"], ["closed"], h="tea")
    await home.do(admin, 9009, ["code", "open sesame"], h="tea")
    await home.do(carol, 9021, ["code", "open sesame"], h="tea")
    await home.vanish(alice)
    assert uses(home) == 1
    assert await differences(home) == []


@pytest.mark.proves("N29-28")
async def test_who_waited_for_an_answer_still_waits(home: Home) -> None:
    """The policy admits everybody now."""
    home.policy = policy_of("open", '[groups]\njoins = "review"\n')
    await home.restart()
    await tea_party(home)
    (answer,) = await home.take(home.made(carol, 9021, h="tea"))
    assert answer == (False, "restricted: pending review")
    home.policy = policy_of("open")
    await home.restart()
    async with copy_of(home) as copy:
        assert copy.groups.by_id["tea"].requests == home.groups.by_id["tea"].requests
    assert await differences(home) == []


@pytest.mark.proves("N29-28")
async def test_the_last_admin_of_what_is_left_may_have_gone(home: Home) -> None:
    """alice, whom bob made an admin, was the other one when admin left."""
    await home.do(admin, 9007, h="tea")
    await home.do(admin, 9000, ["p", bob.pubkey, "admin"], h="tea")
    await home.do(bob, 9000, ["p", alice.pubkey, "admin"], h="tea")
    await home.do(admin, 9000, ["p", admin.pubkey], h="tea")
    await home.do(alice, 9001, ["p", bob.pubkey], h="tea")
    await home.vanish(bob)
    assert await differences(home) == []


@pytest.mark.proves("N29-28", "N29-58")
async def test_no_pin_comes_back_after_who_removed_it_vanished(home: Home) -> None:
    await tea_party(home)
    said = await home.do(bob, 9, h="tea")
    await home.do(admin, 9010, ["e", said.id], h="tea")
    await home.do(alice, 9010, h="tea")
    await home.vanish(alice)
    assert await differences(home) == []


@pytest.mark.proves("N29-28", "N29-58")
async def test_a_relay_with_another_key_takes_what_the_relay_signed(home: Home) -> None:
    """Also 9002 and 9010."""
    await tea_party(home)
    said = await home.do(bob, 9, h="tea")
    await home.do(alice, 9000, ["p", carol.pubkey], h="tea")
    await home.do(alice, 9002, ["name", "Salaries"], ["private"], h="tea")
    await home.do(alice, 9010, ["e", said.id], h="tea")
    await home.vanish(alice)
    async with copy_of(home, person("another relay")) as copy:
        assert shown(copy.groups.by_id["tea"]) == shown(home.groups.by_id["tea"])


@pytest.mark.proves("N29-58")
@pytest.mark.parametrize("flags", [(), ("private", "hidden")])
async def test_it_takes_a_group_whose_founder_has_vanished(
    home: Home, flags: tuple[str, ...]
) -> None:
    """So does a relay with the same key that has had a new key in between."""
    await home.do(alice, 9007, *[[flag] for flag in flags], h="tea")
    await home.do(alice, 9000, ["p", bob.pubkey, "admin"], h="tea")
    await home.do(bob, 9000, ["p", carol.pubkey], h="tea")
    await home.vanish(alice)
    async with copy_of(home, person("another relay")) as copy:
        assert shown(copy.groups.by_id["tea"]) == shown(home.groups.by_id["tea"])


@pytest.mark.proves("N29-28", "N29-84")
@pytest.mark.parametrize("origin", [Origin.WIRE, Origin.IMPORT, Origin.TRUSTED_SYNC])
async def test_only_an_import_with_trust_takes_moderation_without_the_right(
    home: Home, origin: Origin
) -> None:
    await tea_party(home, "private")
    group = home.groups.by_id["tea"]
    for kind, tags in (
        (9000, [["p", stranger.pubkey, "admin"]]),
        (9001, [["p", bob.pubkey]]),
        (9002, [["name", "Ours"], ["public"]]),
        (9009, [["code", "open sesame"]]),
        (9008, []),
    ):
        event = home.made(stranger, kind, *tags, h="tea")
        assert await home.take(event, origin=origin) == [NOT_A_MEMBER]
    assert shown(home.groups.by_id["tea"]) == shown(group)


@pytest.mark.proves("N29-58")
async def test_a_group_keeps_the_flags_that_the_policy_of_then_gave_it(home: Home) -> None:
    home.state.policy = home.policy = policy_of(
        "open", '[groups]\nnew = ["private", "hidden"]\nalways = ["closed"]'
    )
    await tea_party(home)
    await home.do(bob, 9, h="tea", content="a secret")
    group = home.groups.by_id["tea"]
    assert group.flags == {Flag.PRIVATE, Flag.HIDDEN, Flag.CLOSED}
    async with copy_of(home, policy=policy_of("open")) as copy:
        assert shown(copy.groups.by_id["tea"]) == shown(group)
        assert await read_by(copy, None) == set()


@pytest.mark.proves("N29-58")
@pytest.mark.parametrize(
    "limit",
    [
        "[limits]\nmax_event_tags = 3",
        "[limits]\nmax_content_length = 10",
        "[limits]\nmin_pow_difficulty = 30",
        '[[rule]]\nname = "x"\nmatch = { kinds = [9001, 9002] }\nrequire = ["reason"]',
        '[[rule]]\nname = "x"\ncontent = { refuse = ["spam"] }',
    ],
)
async def test_no_limit_of_now_refuses_a_record_of_then(home: Home, limit: str) -> None:
    await tea_party(home)
    told = [["nonce", f"{number}"] for number in range(4)]
    await home.do(alice, 9001, ["p", bob.pubkey], *told, h="tea", content="he sent much spam")
    await home.do(alice, 9002, ["private"], ["closed"], *told, h="tea", content="spam again")
    async with copy_of(home, policy=policy_of("open", limit)) as copy:
        assert shown(copy.groups.by_id["tea"]) == shown(home.groups.by_id["tea"])


async def act(home: Home, rnd: random.Random) -> None:
    """Something that somebody may try."""
    who, other, group = rnd.choice(PEOPLE), rnd.choice(PEOPLE), rnd.choice(["tea", "den"])
    flags = rnd.choice([[], [["private"]], [["private"], ["hidden"]], [["public"], ["visible"]]])
    role = rnd.choice([[], ["admin"], ["admin"], ["moderator"]])
    messages = [event.id for event in await home.log() if event.kind == 9]
    pinned = rnd.sample(messages, min(2, len(messages)))
    kind, tags = rnd.choice(
        [
            (9, []),
            (9, []),
            (9000, [["p", other.pubkey, *role]]),
            (9000, [["p", other.pubkey, *role]]),
            (9001, [["p", other.pubkey]]),
            (9002, [["name", str(rnd.random())], *flags, ["open"]]),
            (9007, flags),
            (9008, []),
            (9009, [["code", rnd.choice(["open sesame", "swordfish"])]]),
            (9010, [["e", said] for said in pinned]),
            (9021, []),
            (9021, [["code", rnd.choice(["open sesame", "swordfish"])]]),
            (9022, []),
            (62, []),
        ]
    )
    if kind == 9008 and rnd.random() < 0.8:
        return
    event = home.request(who) if kind == 62 else home.made(who, kind, *tags, h=group)
    (answer,) = await home.take(event)
    assert not answer[1].startswith("error:")


@pytest.mark.proves("N29-58", "N29-124")
@pytest.mark.parametrize("seed", range(40))
async def test_any_log_gives_the_same_groups(home: Home, seed: int) -> None:
    rnd = random.Random(seed)
    for group in ("tea", "den"):
        maker = rnd.choice(PEOPLE)
        await home.do(maker, 9007, *rnd.choice([[], [["private"]]]), h=group)
        for other in rnd.sample([each for each in PEOPLE if each is not maker], 3):
            await home.do(owner, 9000, ["p", other.pubkey, *rnd.choice([[], ["admin"]])], h=group)
    for _ in range(40):
        home.now += rnd.choice([0, 1, 30])
        await act(home, rnd)
    assert await home.rebuilt() == home.groups
    assert await differences(home) == []
