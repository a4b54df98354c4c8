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
from tests.cast import admin, alice, bob, carol, dave, owner
from tests.contract.writing import MAX, asked
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.groups.group import Group
    from relay.nostr.keys import SecretKey

PEOPLE = (admin, alice, bob, carol, dave)


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        yield home


@asynccontextmanager
async def copy_of(home: Home) -> AsyncIterator[Home]:
    kind = "reference" if isinstance(home.store, ReferenceStore) else "sqlite"
    async with store_of(kind) as store, Home(store, policy_of("open")) as copy:
        copy.now = home.now + 1000
        for event in await home.log():
            await copy.take(event, origin=Origin.TRUSTED_IMPORT)
        yield copy


def shown(group: Group) -> object:
    """What people see of a group."""
    roles = {pubkey: set(roles) for pubkey, roles in group.members.items()}
    what = group.flags, set(group.metadata), group.supported_kinds, group.pins
    return what, roles, set(group.removed)


async def read_by(home: Home, who: SecretKey | None) -> set[str]:
    """Ids of the messages that this key may read."""
    state = home.state
    viewer = ANONYMOUS if who is None else Viewer(frozenset({who.pubkey}))
    seen = visibility_for(viewer, state.policy.read_rules, state.actors, state.groups)
    query = PageQuery(asked(kinds=[9, 1111]), seen, 10_000, MAX, home.now, 10_000)
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
            (9010, [["e", said] for said in pinned]),
            (9021, []),
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
