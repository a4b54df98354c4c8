"""Who is who here: owners, agents, households, and the words that hold for an author.

Of the policy files (`[actors]`, `[allow]`, bans); groups add their members and admins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.verdict import Who

if TYPE_CHECKING:
    from relay.groups.group import Group, Groups


@dataclass(frozen=True, slots=True)
class Actors:
    """Who the policy files name. Keys are 64 hex."""

    owners: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    agent_role: str = "agent"
    households: tuple[Household, ...] = ()
    allowed: frozenset[str] = frozenset()
    """Known without being in a group (NIP-86 and `[allow]`)."""
    relay: str = ""
    """The relay's own key."""
    banned: frozenset[str] = frozenset()
    """They read nothing, and nobody reads what they wrote (N86-11)."""

    def is_owner(self, pubkey: str) -> bool:
        return pubkey in self.owners or any(pubkey in home.owners for home in self.households)

    def is_owner_for(self, pubkey: str, author: str | None) -> bool:
        """Whether the key is an owner to what this author wrote; None: to whatever anybody will."""
        return pubkey in self.owners or any(
            pubkey in home.owners and author is not None and home.has(author)
            for home in self.households
        )

    def is_agent(self, pubkey: str) -> bool:
        return pubkey in self.agents or any(pubkey in home.agents for home in self.households)

    def in_household(self, pubkey: str) -> bool:
        """Whether the key is one of a household's."""
        return any(home.has(pubkey) for home in self.households)


@dataclass(frozen=True, slots=True)
class Household:
    """An owner with agents of their own: `owner` and `agent` mean these for rows by these keys.

    Plain owners read all that owners read; plain agents read nothing of a household by that word.
    """

    name: str
    owners: frozenset[str]
    agents: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.owners | self.agents

    def has(self, pubkey: str) -> bool:
        return pubkey in self.owners or pubkey in self.agents


def who_is_author(
    pubkey: str, actors: Actors, groups: Groups, group: Group | None
) -> frozenset[Who]:
    """The who-words that hold for an author writing into `group` (None: outside every group)."""
    who = {Who.ANYONE, Who.AUTHOR}
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
            if actors.agent_role in roles:
                who.add(Who.AGENT)
        if group.is_moderated_by(pubkey) or pubkey in actors.owners:
            who.add(Who.ADMIN)
    if who & {Who.OWNER, Who.AGENT, Who.MEMBER} or pubkey in actors.allowed:
        who.add(Who.KNOWN)
    return frozenset(who)


def is_known(pubkey: str, actors: Actors, groups: Groups) -> bool:
    """Owner, agent, member of any group of this relay, or allowed by NIP-86."""
    return (
        actors.is_owner(pubkey)
        or actors.is_agent(pubkey)
        or groups.is_member(pubkey)
        or pubkey in actors.allowed
    )
