"""Rows of the store, what a batch must know of them, and what it changes.

Stores look up what is Wanted and apply a WritePlan; what becomes of an event between the two is
`relay.lifecycle.versions`'s to decide, and what a deletion takes `relay.lifecycle.deletion`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from relay.access.quotas import UsageCounter
from relay.errors import Invalid
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.nostr.kinds import KindClass, class_of, is_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.access.management import ListChange
    from relay.access.quotas import Account
    from relay.access.read_rules import Match
    from relay.groups.group import Group
    from relay.memory.registry import RecordName
    from relay.nostr.event import Event


class Keep(Enum):
    """How versions of one (pubkey, kind, d) compete."""

    ALL = "all"
    LATEST = "latest"
    LATEST_TS = "latest-ts"
    FIRST = "first"


class Slot(NamedTuple):
    """What versions compete for."""

    pubkey: str
    kind: int
    d: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of the store. `seq` is its place in the order of commits, from 1."""

    seq: int
    event: Event
    group: str | None = None
    quiet: bool = False
    slot: Slot | None = None
    version: int = 0
    """What LATEST compares, and sweeps order by: created_at, or `ts`."""
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deletion that outlives what it deleted, and holds against what comes later.

    `target` is `e:<id>`, `a:<kind>:<pubkey>:<d>` or `p:<pubkey>`; `by` the key that asked (empty:
    an admin or the relay, whoever the author is); `until` the last created_at that it takes, None
    for an id.
    """

    target: str
    by: str
    until: int | None
    why: str
    request: bytes | None = None
    """Of a key that vanished: its signed kind 62, kept and never served (N62-08)."""


@dataclass(frozen=True, slots=True)
class Vanish:
    """A key that wants all to go that is dated up to `until`."""

    pubkey: str
    until: int

    def covers(self, event: Event) -> bool:
        """What the key wrote (N62-01), and the wraps that were sent to it (N62-05)."""
        if event.created_at > self.until:
            return False
        return event.pubkey == self.pubkey or (
            event.kind == kinds.GIFT_WRAP and self.pubkey in event.tag_values("p")
        )


@dataclass(slots=True)
class WritePlan:
    """What one batch changes, in one transaction. Grows while the batch is decided."""

    adds: dict[str, Stored] = field(default_factory=dict)
    """id → row, in order of seq; a row that a later event of the batch takes away is not here."""
    removes: set[int] = field(default_factory=set)
    """seq of rows to delete."""
    tombstones: list[Tombstone] = field(default_factory=list)
    groups: dict[str, Group | None] = field(default_factory=dict)
    """Groups whose rows in `groups` and `members` change; None: ended."""
    deleted_groups: set[str] = field(default_factory=set)
    """Groups whose every row goes but the records of their making and their end (N29-124)."""
    vanishes: list[Vanish] = field(default_factory=list)
    """Keys whose every row goes, those that the batch itself adds too (N62-01)."""
    deleted_authors: dict[str, int] = field(default_factory=dict)
    """Banned keys → the last seq up to which their rows go and are buried, all but those that the
    state of groups follows from (N86-11)."""
    list_changes: list[ListChange] = field(default_factory=list)
    """Of what NIP-86 calls have set, in order."""

    def is_empty(self) -> bool:
        return not (
            self.adds
            or self.removes
            or self.tombstones
            or self.groups
            or self.deleted_groups
            or self.vanishes
            or self.deleted_authors
            or self.list_changes
        )


def no_names(_: Event) -> frozenset[RecordName]:
    return frozenset()


class UpTo(Enum):
    """Which time of rows `never_before` compares."""

    TS = "ts"
    """Tag `ts`, created_at where there is none."""
    CREATED_AT = "created_at"


class RetentionDependency(NamedTuple):
    """Rows that another must not go before, as long as one of them is not newer."""

    match: Match
    up_to: UpTo


@dataclass(frozen=True, slots=True)
class Lookups:
    """What a batch must know of the store before it can be decided."""

    ids: frozenset[str]
    slots: frozenset[Slot]
    tombstones: frozenset[str]
    id_prefixes: frozenset[tuple[str, str]] = frozenset()
    """(group, hex prefix of an id) that `previous` tags name (N29-21)."""
    groups_with_content: frozenset[str] = frozenset()
    """Groups of which it must be known whether they hold content (Z-03)."""
    vanishing_keys: frozenset[str] = frozenset()
    """Keys that ask to vanish: the 9000s that name them go into `Found.rows`; the records of every
    group where they wrote one of 9000–9020 into `Found.group_records` (N29-58)."""
    record_groups: frozenset[str] = frozenset()
    """Groups whose records are wanted in any case."""
    usage: frozenset[Account] = frozenset()
    """Accounts of what is stored, for quotas, into `Found.usage`."""
    dependencies: frozenset[RetentionDependency] = frozenset()
    """Rows of which it must be known how old the oldest is, into `Found.oldest_dependencies`."""
    named: frozenset[RecordName] = frozenset()
    """Memory records to look up by name, into `Found.named`."""
    names_in: Callable[[Event], frozenset[RecordName]] = no_names
    """The names that a found record refers to: they are looked up too, step by step."""


@dataclass(slots=True)
class Found:
    """The store's answer to Wanted, changed along as the batch is decided."""

    last_seq: int
    """seq of the newest row ever committed."""
    rows: dict[str, Stored] = field(default_factory=dict)
    slots: dict[Slot, Stored] = field(default_factory=dict)
    tombstones: dict[str, list[Tombstone]] = field(default_factory=dict)
    id_prefixes: set[tuple[str, str]] = field(default_factory=set)
    groups_with_content: set[str] = field(default_factory=set)
    group_records: list[Stored] = field(default_factory=list)
    """9000–9022 and 39000–39005 of the groups wanted, in order of seq. As they are stored:
    `remaining_records` says what the batch made of them."""
    usage: UsageCounter = field(default_factory=UsageCounter)
    """The accounts wanted. What goes with a whole group or key is counted off with the commit."""
    oldest_dependencies: dict[RetentionDependency, int] = field(default_factory=dict)
    """Unix seconds of the oldest of each kin wanted that has rows."""
    named: dict[RecordName, set[str]] = field(default_factory=dict)
    """Each name that was looked up → ids of its rows; those not removed since are in `rows`."""

    def rows_named(self, named: RecordName) -> list[Stored]:
        return [self.rows[id_] for id_ in self.named.get(named, ()) if id_ in self.rows]


def keep_by_kind(kind: int) -> Keep:
    """NIP-01's own slots, where no retention rule says otherwise."""
    if class_of(kind) in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
        return Keep.LATEST
    return Keep.ALL


def slot_of(event: Event, keep: Keep) -> Slot | None:
    """The slot that the event competes for; None when all are kept. A `d` tag never counts for a
    replaceable kind (N01-49)."""
    if keep is Keep.ALL:
        return None
    d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
    return Slot(event.pubkey, event.kind, d)


def address_of(value: str) -> Slot | None:
    """The slot that an `a` value `kind:pubkey:d` names; None when malformed (N09-05, N09-15)."""
    kind, _, rest = value.partition(":")
    pubkey, colon, d = rest.partition(":")
    if not (colon and is_kind(kind) and is_hex64(pubkey)):
        return None
    number = int(kind)
    if class_of(number) is KindClass.REPLACEABLE:
        d = ""
    return Slot(pubkey, number, d)


def version_of(event: Event, keep: Keep) -> int:
    """What LATEST compares (A-08); of FIRST, how old a sweep takes it for (A-19)."""
    if keep in (Keep.LATEST_TS, Keep.FIRST):
        ts = event.tag("ts")
        if ts is not None and ts.isascii() and ts.isdigit() and len(ts) < 19:
            return int(ts)
    return event.created_at


def expiry_of(event: Event) -> int | None:
    """Unix seconds of the first `expiration` tag. Raises Invalid for what is no time (N40-06)."""
    value = event.tag("expiration")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise Invalid("bad expiration")
    return int(value)
