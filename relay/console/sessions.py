"""Who is signed in: sessions of browsers and one-time links, in memory, bounded.

Owners, known keys and the rest have separate places, so that nobody can use up those of others.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from relay.access.shares import network_of

if TYPE_CHECKING:
    from collections.abc import Set

SESSION_S: Final = 12 * 3600
LINK_S: Final = 60
_PER_KEY: Final = 8
_MAX_SESSIONS: Final = 1024
"""Of each standing."""
_MAX_LINKS: Final = 128
"""The same."""
_BYTES: Final = 32


class Standing(Enum):
    OWNER = "owner"
    KNOWN = "known"
    """An agent, a member, or an allowed key."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs in, and from where."""

    pubkey: str
    standing: Standing
    """At sign-in."""
    subnet: str
    """See `relay.access.quotas.subnet_of`."""


class _Held(Protocol):
    @property
    def signer(self) -> Signer: ...
    @property
    def until(self) -> int: ...


H = TypeVar("H", bound=_Held)


@dataclass(frozen=True, slots=True)
class Session:
    signer: Signer
    until: int
    """Unix seconds."""
    csrf: str
    """Every form sends it back."""

    @property
    def pubkey(self) -> str:
        return self.signer.pubkey


@dataclass(frozen=True, slots=True)
class Link:
    """A link that signs in once."""

    signer: Signer
    until: int

    @property
    def pubkey(self) -> str:
        return self.signer.pubkey


class _Places(Generic[H]):
    """Secret → its session or link; oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, H] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: H, now: int) -> str:
        """Returns the secret. Removes the key's oldest when it has too many, and when all places of
        its standing are taken the oldest of the network that has most, and in it of the subnet."""
        self._drop({secret for secret, each in self._held.items() if each.until <= now})
        mine = held.signer
        own = [secret for secret, each in self._held.items() if each.signer.pubkey == mine.pubkey]
        self._drop(set(own[: max(0, len(own) - _PER_KEY + 1)]))
        alike = {
            secret: each.signer.subnet
            for secret, each in self._held.items()
            if each.signer.standing is mine.standing
        }
        if len(alike) >= self._most:
            ((network, _),) = Counter(map(network_of, alike.values())).most_common(1)
            of_network = [each for each in alike.values() if network_of(each) == network]
            ((busiest, _),) = Counter(of_network).most_common(1)
            del self._held[next(secret for secret, subnet in alike.items() if subnet == busiest)]
        secret = secrets.token_urlsafe(_BYTES)
        self._held[secret] = held
        return secret

    def get(self, secret: str, now: int) -> H | None:
        held = self._held.get(secret)
        return held if held is not None and held.until > now else None

    def take(self, secret: str, now: int) -> H | None:
        """Once."""
        held = self.get(secret, now)
        self._held.pop(secret, None)
        return held

    def drop_keys(self, pubkeys: Set[str]) -> None:
        self._drop({key for key, each in self._held.items() if each.signer.pubkey in pubkeys})

    def _drop(self, gone: Set[str]) -> None:
        for secret in gone:
            del self._held[secret]


class Sessions:
    def __init__(self) -> None:
        self._sessions: _Places[Session] = _Places(_MAX_SESSIONS)
        self._links: _Places[Link] = _Places(_MAX_LINKS)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, signer: Signer, now: int) -> str:
        """The secret of a new session, for the cookie."""
        csrf = secrets.token_urlsafe(_BYTES)
        return self._sessions.put(Session(signer, now + SESSION_S, csrf), now)

    def get(self, secret: str | None, now: int) -> Session | None:
        return None if secret is None else self._sessions.get(secret, now)

    def end(self, secret: str | None) -> None:
        if secret is not None:
            self._sessions.take(secret, 0)

    def end_of(self, pubkeys: Set[str]) -> None:
        """Of banned keys, with their links."""
        self._sessions.drop_keys(pubkeys)
        self._links.drop_keys(pubkeys)

    def link(self, signer: Signer, now: int) -> str:
        """The code of a new one-time link."""
        return self._links.put(Link(signer, now + LINK_S), now)

    def linked(self, code: str, now: int) -> Link | None:
        """The link, without using it up."""
        return self._links.get(code, now)

    def follow(self, code: str, now: int) -> Link | None:
        """Uses the link up."""
        return self._links.take(code, now)
