"""Consent: the groups that an agent listens to.

Invariant: no event by others than the agent and its owners adds a group. Anybody who makes a group
can put any key into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from relay.memory.bounded import BoundedDict
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event

_MAX_GROUPS: Final = 10_000


class _Said(NamedTuple):
    """The latest event about a group; of two in one second, a withdrawal."""

    at: int
    is_withdrawn: bool


class Consent:
    """Groups of the settings; else those an owner put the agent into, or that it asked to join."""

    def __init__(self, agent: str, owners: Iterable[str], named: Iterable[str] | None) -> None:
        """`agent`, `owners`: public keys. `named`: the settings' groups; None: see the class."""
        self._agent = agent
        self._owners = frozenset(owners) | {agent}
        self._named = None if named is None else frozenset(named)
        self._said: BoundedDict[str, _Said] = BoundedDict(_MAX_GROUPS)
        self._ended: BoundedDict[str, _Said] = BoundedDict(_MAX_GROUPS)
        """Of groups of which nothing was said yet: stored events come newest first."""

    @property
    def named(self) -> frozenset[str] | None:
        return self._named

    def filters(self, since: int) -> list[dict[str, object]]:
        """Filters of events for `apply`; none if groups are named. `since`: for ends of groups."""
        if self._named is not None:
            return []
        added = [kinds.PUT_USER, kinds.REMOVE_USER]
        joined = [kinds.JOIN_REQUEST, kinds.LEAVE_REQUEST]
        return [
            {"kinds": added, "authors": sorted(self._owners), "#p": [self._agent]},
            {"kinds": joined, "authors": [self._agent]},
            {"kinds": [kinds.DELETE_GROUP], "since": since},
        ]

    def apply(self, event: Event) -> bool:
        """Whether it is an event about membership; in any order."""
        group = event.tag("h")
        match event.kind:
            case kinds.PUT_USER | kinds.REMOVE_USER:
                is_meant = event.pubkey in self._owners and self._agent in event.tag_values("p")
            case kinds.JOIN_REQUEST | kinds.LEAVE_REQUEST:
                is_meant = event.pubkey == self._agent
            case kinds.DELETE_GROUP:
                is_meant = True  # the next group of this id is another one
            case _:
                return False
        if group and is_meant:
            is_withdrawn = event.kind not in (kinds.PUT_USER, kinds.JOIN_REQUEST)
            said = _Said(event.created_at, is_withdrawn)
            if event.kind == kinds.DELETE_GROUP and group not in self._said:
                self._ended[group] = max(said, self._ended.get(group, said))
            else:
                ended = self._ended.pop(group, said)
                self._said[group] = max(said, ended, self._said.get(group, said))
        return True

    def restarted(self) -> Consent:
        """Another, which knows only what was withdrawn: the end of a group may have been missed."""
        fresh = Consent(self._agent, self._owners, self._named)
        for group, said in self._said.items():
            if said.is_withdrawn:
                fresh._said[group] = said
        return fresh

    def become(self, other: Consent) -> None:
        """Know what the other does, which is not used any more."""
        self._said, self._ended = other._said, other._ended

    def listens_to(self, group: str | None) -> bool:
        return group in self.groups() if self._named is not None else self._is_consented(group)

    def groups(self) -> frozenset[str]:
        if self._named is not None:
            return self._named
        return frozenset(filter(self._is_consented, self._said))

    def _is_consented(self, group: str | None) -> bool:
        said = None if group is None else self._said.get(group)
        return said is not None and not said.is_withdrawn
