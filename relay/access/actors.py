"""Actors: owners, agents and households of the policy files, and the who-words of an author.

`[actors]`, `[allow]` and bans name keys; groups add their members and admins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Refused
from relay.facts import Who
from relay.nostr.agents import attestation_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence, Set

    from relay.groups.group import Group, Groups
    from relay.nostr.agents import Attestation
    from relay.nostr.event import Event


_OF_UNKNOWN: Final = frozenset({Who.ANYONE, Who.AUTHOR})


class Attestations(Enum):
    """`[members] attestations`: what an owner's attestation gives an agent that logs in with it."""

    OFF = "off"
    RELAY = "relay"
    """KNOWN, while the owner is known here (NIP-AA)."""
    GROUPS = "groups"
    """Also reading and writing as a plain member in the owner's groups; NIP-AA does not give it."""


@dataclass(frozen=True, slots=True)
class Actors:
    """The keys (64 hex) that the policy files name."""

    owners: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    agent_role: str = "agent"
    households: tuple[Household, ...] = ()
    allowed: frozenset[str] = frozenset()
    """KNOWN although in no group, by `[allow]`."""
    registered: Container[str] = ()
    """The same, by NIP-86 or NIP-43."""
    relay: str = ""
    """Public key of the relay."""
    banned: frozenset[str] = frozenset()
    """They read nothing, and nobody reads their events (N86-11)."""
    attestations: Attestations = Attestations.RELAY

    def is_allowed(self, pubkey: str) -> bool:
        return pubkey in self.allowed or pubkey in self.registered

    def is_owner(self, pubkey: str) -> bool:
        return pubkey in self.owners or any(
            pubkey in household.owners for household in self.households
        )

    def is_owner_for(self, pubkey: str, author: str | None) -> bool:
        """Whether the key is an owner for rows by this author; None: for rows by any author."""
        return pubkey in self.owners or any(
            pubkey in household.owners and author is not None and household.has(author)
            for household in self.households
        )

    def is_agent(self, pubkey: str) -> bool:
        return pubkey in self.agents or any(
            pubkey in household.agents for household in self.households
        )

    def in_household(self, pubkey: str) -> bool:
        return any(household.has(pubkey) for household in self.households)


@dataclass(frozen=True, slots=True)
class Household:
    """For rows by these keys, OWNER and AGENT mean the owners and agents of the household.

    Owners of the relay read them too; other agents do not, nor do others because they are MEMBER.
    """

    name: str
    owners: frozenset[str]
    agents: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.owners | self.agents

    def has(self, pubkey: str) -> bool:
        return pubkey in self.owners or pubkey in self.agents


def author_words(
    pubkey: str, actors: Actors, groups: Groups, group: Group | None
) -> frozenset[Who]:
    """The who-words that hold for an author writing into `group` (None: outside every group)."""
    if group is None and not is_known(pubkey, actors, groups):
        return _OF_UNKNOWN
    who = set(_OF_UNKNOWN)
    if actors.is_owner(pubkey):
        who.add(Who.OWNER)
    if actors.is_agent(pubkey):
        who.add(Who.AGENT)
    if groups.is_member(pubkey):
        who.add(Who.MEMBER)
    if group is not None:
        roles = group.members.get(pubkey)
        if roles is not None:
            who.add(Who.INSIDER)
            if holds_agent_role(pubkey, actors, group):
                who.add(Who.AGENT)
        if group.is_moderated_by(pubkey) or pubkey in actors.owners:
            who.add(Who.ADMIN)
    if who & {Who.OWNER, Who.AGENT, Who.MEMBER} or actors.is_allowed(pubkey):
        who.add(Who.KNOWN)
    return frozenset(who)


def holds_agent_role(pubkey: str, actors: Actors, group: Group) -> bool:
    """Whether the key is an agent in this group by its role there.

    Only where an owner, an agent or the relay itself made the group: whoever makes a group gives
    roles in it. A maker who was banned since gives none.
    """
    return actors.agent_role in group.members.get(pubkey, ()) and _is_official(group, actors)


def _is_official(group: Group, actors: Actors) -> bool:
    """Whether an owner, an agent or the relay made the group, and is not banned."""
    made_by = group.founder
    return made_by not in actors.banned and (
        actors.is_owner(made_by)
        or actors.is_agent(made_by)
        or (made_by != "" and made_by == actors.relay)
    )


def is_agent_by_role(pubkey: str, actors: Actors, groups: Groups) -> bool:
    """Whether the key is an agent in any group by its role there. Groups made by other keys are not
    examined: anybody may make thousands."""
    return any(
        actors.agent_role in group.members.get(pubkey, ())
        for group in _official(pubkey, actors, groups, _made_officially(actors, groups))
    )


def _made_officially(actors: Actors, groups: Groups) -> Sequence[Set[str]]:
    """The groups of each owner or agent that made some, and of the relay."""
    households = [household.keys for household in actors.households]
    makers = frozenset((actors.relay,)).union(actors.owners, actors.agents, *households)
    return [made for each in makers - actors.banned if (made := groups.made_by(each))]


def _official(
    pubkey: str, actors: Actors, groups: Groups, made: Sequence[Set[str]]
) -> Iterator[Group]:
    """The groups of a key that an owner, an agent or the relay made: of those that were
    `_made_officially`. It may have been put into thousands by others."""
    own, by_id = groups.groups_of(pubkey), groups.by_id
    if len(own) < len(made):
        return (group for each in own if _is_official(group := by_id[each], actors))
    return (by_id[each] for ids in made for each in own & ids)


def is_known(pubkey: str, actors: Actors, groups: Groups) -> bool:
    """Whether KNOWN holds: an owner, an agent, a member of any group, or allowed; not banned."""
    return pubkey not in actors.banned and (
        pubkey in actors.owners
        or pubkey in actors.agents
        or actors.is_allowed(pubkey)
        or groups.is_member(pubkey)
        or (bool(actors.households) and actors.in_household(pubkey))
    )


def known_among(keys: Set[str], actors: Actors, groups: Groups) -> Set[str]:
    """The keys for which `is_known` holds: a viewer may have 64."""
    keys = frozenset(keys) - actors.banned
    known = keys & actors.owners | keys & actors.agents | keys & actors.allowed
    known |= groups.memberships.among(keys)
    if actors.registered or actors.households:
        more = keys - known
        known |= {key for key in more if actors.is_allowed(key) or actors.in_household(key)}
    return known


def admitted_among(keys: Set[str], actors: Actors, groups: Groups) -> Set[str]:
    """The known keys that nobody can make known but who was trusted with it: the relay's owners and
    agents, keys of policy files, and members of closed groups that an owner, an agent or the relay
    made. Where everybody may make groups, everybody has any number of other known keys."""
    named = keys & actors.owners | keys & actors.agents | keys & actors.allowed
    if actors.households:
        named |= {key for key in keys - named if actors.in_household(key)}
    others, made = keys - named, _made_officially(actors, groups)
    if not (others and made):
        return named
    return named | {
        key
        for key in others
        if any(group.is_closed for group in _official(key, actors, groups, made))
    }


def vouches(attestation: Attestation, actors: Actors, groups: Groups) -> bool:
    """Whether the owner's membership counts for the agent now (NIP-AA, ownership depth 1): the
    owner must be known itself, not an agent and not banned."""
    return bool(vouching((attestation,), actors, groups, {}))


def vouching(
    attestations: Iterable[Attestation],
    actors: Actors,
    groups: Groups,
    owners: dict[str, bool],
) -> list[Attestation]:
    """Those for which `vouches` holds. `owners`: whether their owners may vouch, as far as it was
    found out for these actors and groups; what is found out now is added, because it takes up to
    1 us for each group of an owner, and one owner may vouch for any number of agents."""
    if actors.attestations is Attestations.OFF:
        return []
    found = []
    for attestation in attestations:
        owner = attestation.owner
        may_vouch = owners.get(owner)
        if may_vouch is None:
            may_vouch = owners[owner] = _may_vouch(owner, actors, groups)
        if may_vouch and attestation.agent not in actors.banned:
            found.append(attestation)
    return found


def _may_vouch(owner: str, actors: Actors, groups: Groups) -> bool:
    return (
        is_known(owner, actors, groups)
        and not actors.is_agent(owner)
        and not is_agent_by_role(owner, actors, groups)
    )


def attestation_at_login(
    event: Event, actors: Actors, groups: Groups, now: int
) -> Attestation | None:
    """The attestation by whose owner the key of a login may act here (NIP-AA). Raises Refused.

    A key that is known itself needs no known owner.
    """
    if actors.attestations is Attestations.OFF:
        return None
    attestation = attestation_of(event)
    if attestation is None:
        return None
    if attestation.holds_at(event.created_at) and attestation.holds_at(now):
        if vouches(attestation, actors, groups):
            return attestation
        why = "the owner is no member of this relay"
    else:
        why = "not valid yet, or expired"
    if is_known(event.pubkey, actors, groups):
        return None
    raise Refused(Prefix.RESTRICTED, f"auth: {why}")


def lent_words(attestation: Attestation, actors: Actors, group: Group | None) -> frozenset[Who]:
    """The who-words that a vouching owner gives an agent that writes into `group`."""
    if actors.attestations is not Attestations.GROUPS:
        return frozenset({Who.KNOWN})
    if group is None or attestation.owner not in group.members:
        return frozenset({Who.KNOWN, Who.MEMBER})
    return frozenset({Who.KNOWN, Who.MEMBER, Who.INSIDER})
