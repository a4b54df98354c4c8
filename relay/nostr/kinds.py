"""Kind numbers by name, and kind classes. NIP-01 (N01-40…44)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PROFILE = 0
NOTE = 1
CONTACTS = 3
ENCRYPTED_MESSAGE = 4
DELETION = 5
REPOST = 6
REACTION = 7
CHAT = 9
THREAD_REPLY = 10
THREAD = 11
THREAD_COMMENT = 12
SEAL = 13
PRIVATE_MESSAGE = 14
PRIVATE_FILE = 15
GENERIC_REPOST = 16
VANISH = 62
APP_RECORD = 78
GIFT_WRAP = 1059
ENVELOPE = 1080
SHARED_ENVELOPE = 1081
KEY_SHARE = 1082
COMMENT = 1111
REPORT = 1984
CONVERSATION_NOTE = 1988
SOURCE_DATA = 1989
MEMBER_ADDED = 8000
MEMBER_REMOVED = 8001
PUT_USER = 9000
REMOVE_USER = 9001
EDIT_METADATA = 9002
DELETE_EVENT = 9005
CREATE_GROUP = 9007
DELETE_GROUP = 9008
CREATE_INVITE = 9009
UPDATE_PINS = 9010
JOIN_REQUEST = 9021
LEAVE_REQUEST = 9022
ZAP_RECEIPT = 9735
RELAY_LIST = 10002
RELAY_MEMBERS = 13534
EPHEMERAL_GIFT_WRAP = 21059
CLIENT_AUTH = 22242
NOSTR_CONNECT = 24133
HTTP_AUTH = 27235
RELAY_JOIN = 28934
RELAY_INVITE = 28935
RELAY_LEAVE = 28936
APP_DATA = 30078
DOC_MANIFEST = 30090
CHUNK_REF = 30091
DOC_POLICY = 30092
PREFERENCE = 30093
SUMMARY = 30094
TOOL_HISTORY = 30095
CLEAR_CONTEXT = 30096
SUBSCRIPTION_STATE = 30097
PERSONA = 30175
NOMEN_MEMORY = 31234
SESSION_STATE = 31988
SESSION_COMMAND = 31989
RUN_CONFIGURATION = 31991
RELAY_ROLE = 33534
GROUP_METADATA = 39000
GROUP_ADMINS = 39001
GROUP_MEMBERS = 39002
GROUP_ROLES = 39003
GROUP_PARTICIPANTS = 39004
GROUP_PINS = 39005
GROUP_MEMBER_ADDED = 44100
GROUP_MEMBER_REMOVED = 44101

MODERATION = range(9000, 9021)
GROUP_RECORDS = range(9000, 9023)
"""Moderation events, join and leave requests of NIP-29."""
GROUP_STATE = range(39000, 39006)
"""NIP-29 group state, signed by the relay only."""
MEMBERSHIP_REQUESTS = frozenset({RELAY_JOIN, RELAY_LEAVE})
"""NIP-43 requests: answered, never stored, passed on or read."""
MEMBERSHIP_STATE = frozenset({RELAY_MEMBERS, RELAY_ROLE})
"""NIP-43 lists, signed by the relay only."""
MEMBERSHIP_RECORDS = frozenset({MEMBER_ADDED, MEMBER_REMOVED, RELAY_INVITE, *MEMBERSHIP_STATE})
"""Every kind of NIP-43 that the relay alone signs."""
GROUP_MEMBER_NOTICES = (GROUP_MEMBER_ADDED, GROUP_MEMBER_REMOVED)
"""Signed by the relay only, of no group: their `p` reads them after leaving the group `h` too."""
RELAY_SIGNED = frozenset({*GROUP_STATE, *MEMBERSHIP_RECORDS, *GROUP_MEMBER_NOTICES})
"""What each relay says of its own groups and members: never copied to another relay."""

WRAPS = frozenset({GIFT_WRAP, EPHEMERAL_GIFT_WRAP, NOSTR_CONNECT})
"""Encrypted for the keys in `p`, by authors that the relay need not know."""
MARMOT = range(443, 446)
"""Their `h` names no group of NIP-29."""
AMAN = range(PREFERENCE, SUBSCRIPTION_STATE + 1)
"""Records of an Aman agent."""

MAX_KIND = 65535
_CACHED_KINDS: Final = 1024


V = TypeVar("V")


class ByKind(dict[int, V]):
    """What was found for a kind. Kept for 1,024 of them, since clients choose kinds; then it begins
    anew."""

    __slots__ = ()

    def __setitem__(self, kind: int, found: V) -> None:
        if len(self) >= _CACHED_KINDS:
            self.clear()
        super().__setitem__(kind, found)


class KindClass(Enum):
    REGULAR = auto()
    REPLACEABLE = auto()
    EPHEMERAL = auto()
    ADDRESSABLE = auto()


@lru_cache(1024)
def class_of(kind: int) -> KindClass:
    """Kinds outside every range are regular (N01-44)."""
    if 30000 <= kind < 40000:
        return KindClass.ADDRESSABLE
    if 20000 <= kind < 30000:
        return KindClass.EPHEMERAL
    if 10000 <= kind < 20000 or kind in (PROFILE, CONTACTS):
        return KindClass.REPLACEABLE
    return KindClass.REGULAR


def is_deletable_by_admin(kind: int) -> bool:
    """Whether a 9005 deletes it (N29-51); deleting a 9009 revokes its codes."""
    return kind == CREATE_INVITE or not (kind in MODERATION or kind in GROUP_STATE)


def is_ephemeral(kind: int) -> bool:
    return 20000 <= kind < 30000


def is_undeletable(kind: int) -> bool:
    """Whether a kind 5 has no effect on it, whichever comes first (N09-09, N29-58, N62-09)."""
    return kind in (DELETION, VANISH) or kind in GROUP_RECORDS or kind in GROUP_STATE


def is_kind(text: str) -> bool:
    """At most five ASCII digits; not checked against MAX_KIND."""
    return text.isascii() and text.isdigit() and len(text) <= 5


@dataclass(frozen=True, slots=True)
class KindSet:
    """Kinds as inclusive ranges, ascending and disjoint."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, kind: int) -> bool:
        return any(low <= kind <= high for low, high in self.ranges)

    def has_one_of(self, ascending: Sequence[int]) -> bool:
        """Whether one of these kinds, which are in order, is in the set."""
        for low, high in self.ranges:
            at = bisect_left(ascending, low)
            if at < len(ascending) and ascending[at] <= high:
                return True
        return False

    def among(self, ascending: Sequence[int]) -> Iterator[int]:
        """Those of these kinds, which are in order, that are in the set."""
        for low, high in self.ranges:
            yield from ascending[bisect_left(ascending, low) : bisect_right(ascending, high)]

    def overlaps(self, other: KindSet) -> bool:
        return any(
            low <= end and start <= high for low, high in self.ranges for start, end in other.ranges
        )

    def covers(self, other: KindSet) -> bool:
        return all(
            any(low <= start and end <= high for low, high in self.ranges)
            for start, end in other.ranges
        )

    def without(self, others: Iterable[int]) -> KindSet:
        left = []
        for low, high in self.ranges:
            begin = low
            for kind in sorted(others):
                if begin <= kind <= high:
                    left.append((begin, kind - 1))
                    begin = kind + 1
            left.append((begin, high))
        return KindSet.of(*[span for span in left if span[0] <= span[1]])

    @classmethod
    def of(cls, *parts: int | tuple[int, int]) -> KindSet:
        spans = sorted(part if isinstance(part, tuple) else (part, part) for part in parts)
        merged: list[tuple[int, int]] = []
        for low, high in spans:
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return cls(tuple(merged))


ALL_KINDS: Final = KindSet.of((0, MAX_KIND))
NO_KINDS: Final = KindSet(())


@cache
def kind_names() -> Mapping[int, str]:
    """kind → the name that it has in this module: `group metadata`."""
    return {
        value: name.lower().replace("_", " ")
        for name, value in globals().items()
        if name.isupper() and name[0] != "_" and type(value) is int and name != "MAX_KIND"
    }
