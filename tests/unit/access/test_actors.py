"""Who vouches for an agent (NIP-AA), and whom an owner has admitted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.access.actors import (
    Actors,
    Attestations,
    Household,
    admitted_among,
    holds_agent_role,
    is_known,
    known_among,
    vouches,
    vouching,
)
from relay.access.visibility import Viewer, visibility_for
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import KeyMap, OrderedMap
from relay.nostr.agents import Attestation
from tests.cast import alice, bob, carol, owner, person, robot, stranger

ACTORS = Actors(frozenset({owner.pubkey}))
HERS = Attestation(robot.pubkey, alice.pubkey)


PEOPLE = [each.pubkey for each in (alice, bob, carol, owner, robot, stranger)]
SOME = st.frozensets(st.sampled_from(PEOPLE))


class Looked(KeyMap[str, Group]):
    """Counts the groups that are looked at."""

    times = 0

    def __getitem__(self, group_id: str) -> Group:
        self.times += 1
        return super().__getitem__(group_id)


def group(group_id: str, founder: str, *roles: str) -> Group:
    return Group(
        group_id, members=OrderedMap({founder: ("admin",), alice.pubkey: roles}), founder=founder
    )


def test_who_is_an_agent_by_a_role_that_an_owner_gave_vouches_for_nobody() -> None:
    groups = Groups().with_group(group("tea", owner.pubkey)).with_group(group("tap", bob.pubkey))
    assert vouches(HERS, ACTORS, groups)
    # Whoever makes a group gives roles in it.
    assert vouches(HERS, ACTORS, groups.with_group(group("tap", bob.pubkey, "agent")))
    as_agent = groups.with_group(group("tea", owner.pubkey, "agent"))
    assert not vouches(HERS, ACTORS, as_agent)
    assert vouches(HERS, ACTORS, as_agent.without_group("tea"))
    assert vouches(HERS, ACTORS, as_agent.with_group(group("tea", owner.pubkey)))


def test_a_role_that_a_banned_key_gave_makes_no_agent() -> None:
    tea = group("tea", robot.pubkey, "agent")
    actors = replace(ACTORS, agents=frozenset({robot.pubkey}))
    assert holds_agent_role(alice.pubkey, actors, tea)
    banned = replace(actors, banned=frozenset({robot.pubkey}))
    assert not holds_agent_role(alice.pubkey, banned, tea)


def test_an_owner_of_many_agents_is_looked_at_once() -> None:
    groups = Groups().with_group(group("tea", owner.pubkey))
    looked = Looked(groups.by_id)
    agents = [person(f"{number}").pubkey for number in range(64)]
    attested = [Attestation(agent, alice.pubkey) for agent in agents]
    banned = replace(ACTORS, banned=frozenset({agents[0]}))
    assert vouching(attested, banned, replace(groups, by_id=looked), {}) == attested[1:]
    assert looked.times == 1
    assert vouching(attested, replace(ACTORS, attestations=Attestations.OFF), groups, {}) == []
    assert vouching(attested, replace(ACTORS, agents=frozenset({alice.pubkey})), groups, {}) == []


def test_of_thousands_of_groups_that_others_made_none_is_looked_at() -> None:
    """Each event of a connection with 64 agents asks of 64 owners."""
    groups = Groups().with_group(group("tea", owner.pubkey))
    for number in range(200):
        groups = groups.with_group(group(f"{number}", bob.pubkey, "agent"))
    looked = Looked(groups.by_id)
    assert vouches(HERS, ACTORS, replace(groups, by_id=looked))
    assert looked.times == 1


@given(SOME, SOME, SOME, SOME, SOME, SOME, SOME, SOME)
def test_of_many_keys_those_are_known_that_are_known_one_by_one(
    keys: frozenset[str],
    owners: frozenset[str],
    agents: frozenset[str],
    allowed: frozenset[str],
    registered: frozenset[str],
    banned: frozenset[str],
    members: frozenset[str],
    household: frozenset[str],
) -> None:
    actors = Actors(
        owners,
        agents,
        households=(Household("home", household, frozenset()),) if household else (),
        allowed=allowed,
        registered=registered,
        banned=banned,
    )
    groups = Groups()
    if members:
        groups = groups.with_group(Group("tea", members=OrderedMap(dict.fromkeys(members, ()))))
    known = {key for key in keys if is_known(key, actors, groups)}
    assert known_among(keys, actors, groups) == known


def test_members_of_closed_groups_that_an_owner_made_are_admitted() -> None:
    """Whoever makes a group makes keys known, and anybody may join an open one."""
    closed = frozenset({Flag.CLOSED})
    groups = Groups().with_group(group("tea", owner.pubkey))
    groups = groups.with_group(replace(group("tap", bob.pubkey), flags=closed))
    keys = {alice.pubkey, bob.pubkey, owner.pubkey}
    assert admitted_among(keys, ACTORS, groups) == {owner.pubkey}
    by_owner = groups.with_group(replace(group("tea", owner.pubkey), flags=closed))
    assert admitted_among(keys, ACTORS, by_owner) == {alice.pubkey, owner.pubkey}
    allowed = replace(ACTORS, allowed=frozenset({bob.pubkey}), registered={alice.pubkey})
    assert admitted_among(keys, allowed, groups) == {bob.pubkey, owner.pubkey}


def test_work_of_who_is_admitted_has_a_share_of_its_own() -> None:
    """All members may be in one network."""
    tea = replace(group("tea", owner.pubkey), flags=frozenset({Flag.CLOSED}))
    groups, both = Groups().with_group(tea), frozenset({alice.pubkey, bob.pubkey})

    def share_of(*keys: str) -> tuple[str | None, str | None]:
        viewer = Viewer(frozenset(keys))
        return visibility_for(viewer, (), ACTORS, groups).share_of("192.0.2.1")

    assert share_of() == share_of(bob.pubkey) == ("192.0.2.1", None)
    assert share_of(alice.pubkey) == share_of(*both) == (None, alice.pubkey)
