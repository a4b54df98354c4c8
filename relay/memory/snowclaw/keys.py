"""Addresses of Snowclaw records: keys of users, scopes, `d` (S-04).

A user's key has four forms; an agent writes one and reads all (S-02).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from relay.errors import Invalid
from relay.nostr.keys import npub
from relay.nostr.nip19 import decode_bech32

CONFIG: Final = "snowclaw:config:"
MEMORY: Final = "snowclaw:memory:"
AGENT: Final = "snowclaw:"
COLLECTIVE: Final = "snow:memory:"
PRIVATE: Final = "private"
"""Category of agent memory: the owner's notes about a user whose record a group reads."""

BAD_KEY: Final = "d must end with an npub or 16, 32 or 64 lowercase hex characters"
BAD_CONFIG: Final = (
    "d must be snowclaw:config:global, snowclaw:config:group:<id> or snowclaw:config:npub:<key>"
)
BAD_MEMORY: Final = "d must be snowclaw:memory:npub:<key> or snowclaw:memory:group:<id>"
BAD_CATEGORY: Final = "d must be snowclaw:<category>:<key>"

_HEX: Final = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}")


class KeyStyle(Enum):
    """The form of a user's key that an agent writes (S-02)."""

    HEX = auto()
    """The first half of the public key: 32 hex characters."""
    NPUB = auto()
    """For original agents, which read only this form at start."""


def is_key(text: str) -> bool:
    """Whether it is one of the four forms (S-01)."""
    if not text.startswith("npub1"):
        return _HEX.fullmatch(text) is not None
    try:
        decode_bech32("npub", text)
    except Invalid:
        return False
    return text.islower()


def key_of(pubkey: str, style: KeyStyle = KeyStyle.HEX) -> str:
    """The written form of a key."""
    match style:
        case KeyStyle.HEX:
            return pubkey[:32]
        case KeyStyle.NPUB:
            return npub(pubkey)
        case _:
            assert_never(style)


def keys_of(pubkey: str) -> tuple[str, str, str, str]:
    """All forms of one user's key: 32 hex, npub, 64 hex, 16 hex."""
    return (pubkey[:32], npub(pubkey), pubkey, pubkey[:16])


def pubkey_in(key: str) -> str | None:
    """The full public key; None for the two short forms."""
    if key.startswith("npub1"):
        return decode_bech32("npub", key).hex()
    return key if len(key) == 64 else None


def hex_of(key: str) -> str:
    """The hex characters in a key of any form: 64, 32 or 16. Raises Invalid."""
    key = key.strip().lower()
    if not is_key(key):
        raise Invalid(BAD_KEY)
    return pubkey_in(key) or key


def is_same_user(one: str, other: str) -> bool:
    """Whether one key (see `hex_of`) is a prefix of the other."""
    return one.startswith(other) or other.startswith(one)


# -- scopes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Everywhere:
    def __str__(self) -> str:
        return "global"


@dataclass(frozen=True, slots=True)
class OfGroup:
    id: str

    def __str__(self) -> str:
        return f"group:{self.id}"


@dataclass(frozen=True, slots=True)
class OfUser:
    key: str
    """Any form of S-01."""

    def __str__(self) -> str:
        return f"npub:{self.key}"


Scope = Everywhere | OfGroup | OfUser


def scope_in(text: str) -> Scope:
    """`global`, `group:<id>` or `npub:<key>`. Raises Invalid with the refusal text."""
    where, _, key = text.partition(":")
    match where:
        case "global" if text == "global":
            return Everywhere()
        case "group" if key:
            return OfGroup(key)
        case "npub" if key:
            if not is_key(key):
                raise Invalid(BAD_KEY)
            return OfUser(key)
    raise Invalid(BAD_CONFIG)


def config_d(scope: Scope) -> str:
    return f"{CONFIG}{scope}"


def config_scope(d: str) -> Scope:
    """The scope of a configuration. Raises Invalid with the refusal text (S-04)."""
    if not d.startswith(CONFIG):
        raise Invalid(BAD_CONFIG)
    return scope_in(d.removeprefix(CONFIG))


def user_d(pubkey: str, style: KeyStyle = KeyStyle.HEX) -> str:
    return f"{MEMORY}npub:{key_of(pubkey, style)}"


def user_ds(pubkey: str) -> list[str]:
    """Every `d` of a user's memory (S-02)."""
    return [f"{MEMORY}npub:{key}" for key in keys_of(pubkey)]


def group_d(group: str) -> str:
    return f"{MEMORY}group:{group}"


def memory_scope(d: str) -> OfGroup | OfUser:
    """The user or group of a record. Raises Invalid with the refusal text (S-01, S-03, G-24)."""
    if d.startswith(MEMORY):
        where, _, key = d.removeprefix(MEMORY).partition(":")
        if where == "npub":
            if not is_key(key):
                raise Invalid(BAD_KEY)
            return OfUser(key)
        if where == "group" and key:
            return OfGroup(key)
    raise Invalid(BAD_MEMORY)


# -- the agent's own memory --------------------------------------------------------------------


def agent_d(category: str, key: str) -> str:
    """Raises Invalid for an invalid category (S-05, S-06)."""
    d = f"{AGENT}{category}:{key}"
    if category_and_key(d) != (category, key):
        raise Invalid(BAD_CATEGORY)
    return d


def category_and_key(d: str) -> tuple[str, str]:
    """Category and key of agent memory; the key may contain `:` (S-05). Raises Invalid.

    `memory` and `config` are never categories (S-06).
    """
    category, _, key = d.removeprefix(AGENT).partition(":")
    if not (d.startswith(AGENT) and category and key) or category in ("memory", "config"):
        raise Invalid(BAD_CATEGORY)
    return category, key


def private_d(subject: OfUser) -> str:
    return agent_d(PRIVATE, f"npub:{subject.key}")


def is_private(d: str) -> bool:
    """Whether it is of the owner's private notes about a user."""
    return d.startswith(f"{AGENT}{PRIVATE}:")
