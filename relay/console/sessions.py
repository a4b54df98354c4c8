"""Who is signed in: sessions of browsers and one-time links, in memory, bounded.

Unknown keys have separate places, so that they cannot use up those of known keys.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from relay.errors import Prefix, Refused

if TYPE_CHECKING:
    from collections.abc import Set

SESSION_S: Final = 12 * 3600
LINK_S: Final = 60
_PER_KEY: Final = 8
_MAX_SESSIONS: Final = 2048
_MAX_LINKS: Final = 256
_BYTES: Final = 32
_FULL: Final = "too many sessions, try again later"


class _Held(Protocol):
    @property
    def pubkey(self) -> str: ...
    @property
    def is_known(self) -> bool: ...
    @property
    def until(self) -> int: ...


H = TypeVar("H", bound=_Held)


@dataclass(frozen=True, slots=True)
class Session:
    pubkey: str
    is_known: bool
    """At sign-in the key was an owner's, an agent's, a member's or allowed."""
    until: int
    """Unix seconds."""
    csrf: str
    """Every form sends it back."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link that signs in once."""

    pubkey: str
    is_known: bool
    until: int


class _Places(Generic[H]):
    """Secret → its session or link; oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, H] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: H, now: int) -> str:
        """Returns the secret. Removes the key's oldest when it has too many. Raises Refused when
        there is no place."""
        self._drop({key for key, each in self._held.items() if each.until <= now})
        own = [key for key, each in self._held.items() if each.pubkey == held.pubkey]
        self._drop(set(own[: max(0, len(own) - _PER_KEY + 1)]))
        # Half of the places are for known keys, the other half for the rest.
        alike = sum(1 for each in self._held.values() if each.is_known == held.is_known)
        if alike >= self._most // 2:
            raise Refused(Prefix.RATE_LIMITED, _FULL)
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
        self._drop({key for key, each in self._held.items() if each.pubkey in pubkeys})

    def _drop(self, gone: Set[str]) -> None:
        for secret in gone:
            del self._held[secret]


class Sessions:
    def __init__(self) -> None:
        self._sessions: _Places[Session] = _Places(_MAX_SESSIONS)
        self._links: _Places[Link] = _Places(_MAX_LINKS)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, pubkey: str, now: int, *, is_known: bool) -> str:
        """The secret of a new session, for the cookie. Raises Refused."""
        csrf = secrets.token_urlsafe(_BYTES)
        return self._sessions.put(Session(pubkey, is_known, now + SESSION_S, csrf), now)

    def get(self, secret: str | None, now: int) -> Session | None:
        return None if secret is None else self._sessions.get(secret, now)

    def end(self, secret: str | None) -> None:
        if secret is not None:
            self._sessions.take(secret, 0)

    def end_of(self, pubkeys: Set[str]) -> None:
        """Of banned keys, with their links."""
        self._sessions.drop_keys(pubkeys)
        self._links.drop_keys(pubkeys)

    def link(self, pubkey: str, now: int, *, is_known: bool) -> str:
        """The code of a new one-time link. Raises Refused."""
        return self._links.put(Link(pubkey, is_known, now + LINK_S), now)

    def linked(self, code: str, now: int) -> Link | None:
        """The link, without using it up."""
        return self._links.get(code, now)

    def follow(self, code: str, now: int) -> Link | None:
        """Uses the link up."""
        return self._links.take(code, now)
