"""Rows, and the values that a batch and the store exchange: Lookups → Found → WritePlan.

A store looks up the Lookups, returns Found, and applies the WritePlan, all in one transaction.
`relay.lifecycle.versions` and `.deletion` decide in between what becomes of an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from relay.access.quotas import UsageCounter
from relay.errors import TooMuchToRead
from relay.memory.registry import RecordName
from relay.nostr import kinds
from relay.nostr.event import Address, Event, indexed, most_tags
from relay.nostr.kinds import NO_KINDS, KindClass, KindSet, class_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from relay.access.management import ListChange
    from relay.access.quotas import Account
    from relay.access.read_rules import Match
    from relay.groups.group import EndedGroup, Group
    from relay.groups.key_map import KeyMap
    from relay.nostr.erasure import Erasure


ERASURE_DAYS: Final = 90
"""How long the store remembers what a request deleted."""


_REFERRING: Final = frozenset("eEaA")


TAG_BYTES: Final = 80
"""What a tag of a row that is read counts for more than its bytes: each takes several objects, and
rows of the index."""


class Keep(Enum):
    """How versions of one (pubkey, kind, d) compete."""

    ALL = "all"
    LATEST = "latest"
    """The newest by created_at (NIP-01)."""
    LATEST_TS = "latest-ts"
    """The newest by tag `ts`."""
    FIRST = "first"
    """The first that arrives: append-only."""


class Tie(Enum):
    """Which version LATEST_TS keeps of those with the same `ts` (A-09)."""

    HIGH = "high"
    """The one with the highest id."""
    LOW = "low"


Slot = Address
"""Events with the same slot are versions of one record."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A row of the store."""

    seq: int
    """Position in the order of commits, from 1; 0: ephemeral, or not stored."""
    event: Event
    group: str | None = None
    """The event's `h`, the `d` of 39000–39005, or the group of the event that it deletes or
    names."""
    quiet: bool = False
    """True for a kind 5 that names something that not everyone may read (N29-104)."""
    slot: Slot | None = None
    version: int = 0
    """created_at or `ts`: the newest version is kept, and sweeps remove the oldest first."""
    expires_at: int | None = None


MOST_DELETED: Final = 64 << 10
"""Bytes of rows that one transaction deletes; a row of this size has up to 5,000 tags and takes
50 ms to delete. A larger deletion is done in pieces."""
LONG_EXPIRED: Final = 1
"""`expires_at` of a row that was deleted and is still to be swept: it is as if it had expired. No
row is stored with it, because such an event has expired."""
UNPINNED_AT_ONCE: Final = 16
"""Pinned rows that leave in one transaction, or groups that pin what a kind 5 deletes or what
expires: each row may be of another group, for which the relay signs a 39005."""
MOST_TOMBSTONES: Final = 2048
"""Tombstones that are read for a batch, whoever left them; see `Lookups.refusals`."""
MOST_PUT_LATER: Final = 10_000
"""9000s dated after a request to vanish whose groups are read: 6 us each. Anybody may add more."""
MOST_WITH_PREFIX: Final = 4_096
"""Bytes of a row that is read because a `previous` names it: an event may name 64."""
MOST_NAMED: Final = 4 << 20
"""Bytes of the memory records that one transaction reads by name, and TAG_BYTES for each tag: who
may write such records may leave any number of large ones of a name, and chains of them."""
EXPIRY_WINDOW_S: Final = 60
MAX_EXPIRING: Final = 2_000
"""So many rows may expire in one window of EXPIRY_WINDOW_S: every reader passes over those that a
sweep has not removed yet, 300 a second beside many readers."""
MAX_WITH_PREFIX: Final = 1024
"""Rows of a store whose ids begin as a `previous` says: 1 us each. Of a billion ids two or three
share eight digits; who wants more makes one in seconds, and names them in all groups."""


def outline(
    kind: int, pubkey: str, group: str | None, expires_at: int | None, *, quiet: bool = False
) -> Stored:
    """A row without what it says, and without its id: read rules about tags and `d` do not match
    it."""
    event = Event("", pubkey, 0, kind, [], "", "", b"")
    return Stored(0, event, group, expires_at=expires_at, quiet=quiet)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Keeps deleted events from being stored again."""

    target: str
    """`e:<id>`, `a:<kind>:<pubkey>:<d>`, `p:<pubkey>`, or `s:` or `v:` and an address."""
    by: str
    """The key that deleted it; empty: an admin or the relay, and it holds for any author."""
    until: int | None
    """The last created_at that it refuses, for `s:` the last version; None for an id."""
    why: str
    request: bytes | None = None
    """For a vanished key: its signed kind 62, never served (N62-08); only its id in hex if nothing
    of the key was stored."""


SENT_TO_ONE: Final = frozenset({kinds.GIFT_WRAP, *kinds.GROUP_MEMBER_NOTICES})


@dataclass(frozen=True, slots=True)
class Vanish:
    """A request to vanish: all events of the key up to `until` (created_at) are deleted."""

    pubkey: str
    until: int
    request: str = ""
    """id of the kind 62: the plan's entry in `erasures` to which the store adds what it deletes."""
    upto: int = 2**63 - 1
    """seq: rows that come after it are not deleted."""

    def covers(self, event: Event) -> bool:
        """Events by the key (N62-01), and gift wraps and notices sent to it (N62-05)."""
        if event.created_at > self.until:
            return False
        return event.pubkey == self.pubkey or (
            event.kind in SENT_TO_ONE and self.pubkey in event.tag_values("p")
        )

    def covers_present(self, about: Present) -> bool:
        """As `covers`, for a row whose event is not read."""
        is_own = about.pubkey == self.pubkey or self.pubkey in about.sent_to
        return is_own and about.created_at <= self.until


class Replaced(NamedTuple):
    """A row that a newer version replaced and that is kept as an old version."""

    row: Stored
    at: int
    """Unix seconds of the replacement, by the relay's clock."""
    drop_at: int | None
    """Unix seconds at which it is deleted, by `days` or its own expiration; None: never."""
    most: int
    """Most old versions of its slot."""


class DeletedBy(NamedTuple):
    """The request that deletes old versions: their ids get a tombstone."""

    request: str
    """id of the kind 5 or 9005."""
    by: str
    """The author of the versions, if the request is its own: then its receipt lists them. Empty: an
    admin's, who may be allowed to read the newest one alone."""
    why: str


class Forgotten(NamedTuple):
    """Old versions to delete: those that meet all conditions; None: no condition."""

    upto: int
    """Greatest seq."""
    slot: Slot | None = None
    id: str | None = None
    by: str | None = None
    """Public key of the author."""
    until: int | None = None
    """Greatest created_at."""
    cause: DeletedBy | None = None
    group: str | None = None


class OldVersion(NamedTuple):
    """An old version as it is stored."""

    row: Stored
    at: int
    drop_at: int | None
    newer: int
    """How many old versions of its slot are newer."""


@dataclass(slots=True)
class WritePlan:
    """What one batch changes, in one transaction. Grows with each event of the batch."""

    adds: dict[str, Stored] = field(default_factory=dict)
    """id → new row, in order of seq; without those that a later event of the batch removes."""
    removes: set[int] = field(default_factory=set)
    """seq of stored rows to delete."""
    expired: set[int] = field(default_factory=set)
    """seq of stored rows that become LONG_EXPIRED."""
    replaced: dict[int, Replaced] = field(default_factory=dict)
    """seq of a row that becomes an old version → its facts; rows that were stored are in `removes`
    too."""
    forgotten: list[Forgotten] = field(default_factory=list)
    """Applied after `replaced`, whose rows these conditions may cover."""
    leaving: dict[str, list[int]] = field(default_factory=dict)
    """id of a kind 62 or 9008 → seq of rows that it deletes, with their old versions, or of old
    versions whose rows stay; they are noted in its erasure."""
    ending: dict[str, str] = field(default_factory=dict)
    """id of a 9008 in `leaving` → its group."""
    dropped_versions: set[int] = field(default_factory=set)
    """seq of old versions that a sweep deletes."""
    version_deadlines: dict[int, int | None] = field(default_factory=dict)
    """seq of an old version → its new `drop_at`."""
    tombstones: list[Tombstone] = field(default_factory=list)
    moves: dict[int, str] = field(default_factory=dict)
    """seq of a stored row of no group → the group that it belongs to from now on."""
    groups: dict[str, Group | EndedGroup] = field(default_factory=dict)
    """Groups whose rows in the tables about groups change."""
    members_before: dict[str, KeyMap[str, tuple[str, ...]]] = field(default_factory=dict)
    """Of those that the tables have: their members there. Without it a store finds out what
    differs."""
    left_ended: dict[str, frozenset[str]] = field(default_factory=dict)
    """Vanishing key → groups that ended while it was a member: it is no former one of these."""
    deleted_groups: set[str] = field(default_factory=set)
    """Groups whose rows are all deleted but their 9007 and 9008 (N29-124). For rows of these, and
    of a group in `ending`, the store adds `tombstones_of_ended`. Records of a group that are more
    than MOST_DELETED become LONG_EXPIRED instead."""
    vanishes: list[Vanish] = field(default_factory=list)
    """Requests to vanish; rows that the batch itself adds are deleted too (N62-01). If `leaving`
    would find more than MOST_DELETED of a key, a store raises TooMuchToRead."""
    deleted_authors: dict[str, int] = field(default_factory=dict)
    """Banned key → seq up to which its rows are deleted, with `tombstones_of_author`;
    `is_group_record` rows stay (N86-11)."""
    erasures: dict[str, Erasure] = field(default_factory=dict)
    """id of a request → its erasure. The store keeps those that deleted something for
    ERASURE_DAYS."""
    list_changes: list[ListChange] = field(default_factory=list)
    """Changes by NIP-86 calls, in order."""
    passed_on: list[Stored] = field(default_factory=list)
    """Accepted events that are not stored (seq 0), for subscribers of other relays on the store."""

    def erasure_of_versions(self, cause: DeletedBy | None) -> Erasure | None:
        """Where old versions are noted that this request deletes."""
        return self.erasures.get(cause.request) if cause is not None and cause.by else None

    def is_empty(self) -> bool:
        return not (
            self.adds
            or self.removes
            or self.expired
            or self.replaced
            or self.forgotten
            or self.leaving
            or self.dropped_versions
            or self.version_deadlines
            or self.tombstones
            or self.moves
            or self.groups
            or self.left_ended
            or self.deleted_groups
            or self.vanishes
            or self.deleted_authors
            or self.list_changes
        )


def no_names(_: Event) -> frozenset[RecordName]:
    return frozenset()


def no_refusals() -> Iterable[tuple[str, str]]:
    return ()


def no_accounts(_: Found) -> Iterable[Account]:
    return ()


def no_slots(_: Iterable[Stored]) -> frozenset[Slot]:
    return frozenset()


class PinnedRows(NamedTuple):
    """Ids and slots that a group pins, to be looked up without their events, and its 39005."""

    present: frozenset[str | Slot] = frozenset()
    slots: frozenset[Slot] = frozenset()


def no_pins(_: str) -> PinnedRows:
    return PinnedRows()


Limited = str | Slot | tuple[str, str] | RecordName
"""id or slot of a row, (group, prefix), a key that vanishes, or the name of a memory record."""


def all_rows_of(group: str) -> Limited:
    """Names a group that ends: as its rows whose ids begin with nothing."""
    return group, ""


class UpTo(Enum):
    """Which time of two rows `never_before` compares."""

    TS = "ts"
    """Tag `ts`, or created_at without it."""
    CREATED_AT = "created_at"


Reference = tuple[str, str]
"""("e", id) or ("a", address)."""


def references_of(event: Event) -> list[Reference]:
    """What its `e`, `E`, `a` and `A` tags name."""
    return [(tag[0].lower(), tag[1]) for tag in event.tags if len(tag) > 1 and tag[0] in _REFERRING]


class RetentionDependency(NamedTuple):
    """A row must not be removed while the store has a row of `match` that is not newer."""

    match: Match
    up_to: UpTo


class OwnRow(NamedTuple):
    """A row to be read by id only if the author of the deletion may delete it: one kind 5 or 9005
    may name thousands of others. With neither key nor group it is read, whosever it is."""

    id: str
    pubkey: str | None = None
    """The row is read if it is by this author, or a gift wrap to it."""
    group: str | None = None
    """The row is also read if it is of this group."""

    def is_it(self, row: Stored) -> bool:
        event, pubkey = row.event, self.pubkey
        if event.id != self.id:
            return False
        if pubkey is None and self.group is None:
            return True
        if pubkey is not None and (
            event.pubkey == pubkey
            or (event.kind == kinds.GIFT_WRAP and pubkey in event.tag_values("p"))
        ):
            return True
        return self.group is not None and row.group == self.group


class Present(NamedTuple):
    """The columns of a stored row, without its event."""

    group: str | None
    expires_at: int | None
    pubkey: str
    kind: int
    created_at: int
    sent_to: frozenset[str] = frozenset()
    """The `vanishing_keys` to which the row is a gift wrap or a notice."""


class ExpiredRow(NamedTuple):
    """A row that has expired and is still stored."""

    id: str
    size: int
    """Bytes, with its old versions."""
    address: str | None
    """What an `a` tag names it by; None for kinds without one."""


class Leaving(NamedTuple):
    """Rows of a vanishing key or an ending group that are deleted before the others. Pinned rows
    stay until they are unpinned, and records of groups for the last step; but not the 9021 and 9022
    of a key, and its records that are LONG_EXPIRED."""

    pubkey: str | None
    """Rows of this key, as `Vanish.covers` them; None: rows of `group`."""
    until: int
    group: str | None
    pinned: Container[str | Slot]
    most: int
    """Bytes of the rows that are found at most, old versions included; or one larger row."""
    groups: int = 0
    """When no such row is found, the records of so many of the groups where the key wrote one of
    9000–9020 until then go into `Found.group_records`, and what these pin into `Found.present`."""
    most_records: int | None = None
    """Bytes of these records at most; if not even the first group fits, `Found.too_many_records`.
    None: no limit."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """What the store must look up for a batch."""

    ids: frozenset[str]
    """Rows by id, into `Found.rows`."""
    slots: frozenset[Slot]
    """Rows by slot, into `Found.slots`."""
    tombstones: frozenset[str]
    """Targets of tombstones, into `Found.tombstones`."""
    id_prefixes: frozenset[tuple[str, str]] = frozenset()
    """(group, hex prefix of an id) that `previous` tags name (N29-21)."""
    groups_with_content: frozenset[str] = frozenset()
    """Groups to check for content (Z-03)."""
    vanishing_keys: Mapping[str, int] = field(default_factory=dict)
    """Key that asks to vanish → date of its request: the records of every group where it wrote one
    of 9000–9020 until then go into `Found.group_records` (N29-58)."""
    record_groups: frozenset[str] = frozenset()
    """Groups whose records go into `Found.group_records`."""
    usage: frozenset[Account] = frozenset()
    """Accounts for quotas, into `Found.usage`."""
    dependencies: frozenset[RetentionDependency] = frozenset()
    """The time of the oldest row of each goes into `Found.oldest_dependencies`."""
    own_rows: frozenset[OwnRow] = frozenset()
    """Rows by id that are to be deleted, into `Found.rows`."""
    named: frozenset[RecordName] = frozenset()
    """Memory records to look up by name, into `Found.named`, but for more than MOST_NAMED."""
    named_near: frozenset[RecordName] = frozenset()
    """As `named`, but followed for `NEAR_STEPS` only."""
    referrers: frozenset[Reference] = frozenset()
    """References whose referrers, rows outside of groups of `referring_kinds`, go into
    `Found.referrers`; then the referrers of these rows, and so on."""
    referring_kinds: frozenset[int] = frozenset()
    present: frozenset[str | Slot] = frozenset()
    """Rows by id or slot that are not read, however large they are: into `Found.present`."""
    deleted_keys: frozenset[str] = frozenset()
    """Banned keys whose rows are deleted."""
    pinned_in: Callable[[str], PinnedRows] = no_pins
    """Group → the pinned rows to look up if one of the `vanishing_keys` or `deleted_keys` has rows
    in it, or if its records are found for `leaving`."""
    names_in: Callable[[Event], frozenset[RecordName]] = no_names
    """The names that a found record refers to: they are looked up too, step by step."""
    most: int | None = None
    """Limit in bytes of the rows of `ids` and `slots`, and of those of `id_prefixes` that are read
    whole; above it a store raises TooMuchToRead. It may count TAG_BYTES more for each tag. None: no
    limit."""
    own_slots: frozenset[Slot] = frozenset()
    """Rows by slot that are to be deleted, into `Found.slots`."""
    slots_by: Callable[[Iterable[Stored]], frozenset[Slot]] = no_slots
    """The rows of `own_rows` and `own_slots` that are found → further `slots`. With `most_own` a
    store raises TooMuchToRead for more than UNPINNED_AT_ONCE."""
    most_own: int | None = None
    """As `most`, for three sums, each with old versions: the rows of `own_rows` and `own_slots`
    and what goes into `Found.old_versions`, those of the `vanishing_keys`, and those of the
    `ending_groups` but their records."""
    most_moderated: int | None = None
    """As `most`, for the number of groups where the `vanishing_keys` wrote one of 9000–9020."""
    most_records: int | None = None
    """As `most`, for the records that go into `Found.group_records` for the `vanishing_keys` and
    `record_groups`. Those that are LONG_EXPIRED, and old versions, count too."""
    ending_groups: frozenset[str] = frozenset()
    """Groups that a 9008 of the batch may end."""
    requests: frozenset[str] = frozenset()
    """ids of kinds 5, into `Found.begun`."""
    leaving: Leaving | None = None
    """Rows to delete first. Nothing is found when all of them fit, or there is only one. Else some
    that fit: at least one row, into `Found.leaving` or `Found.pinned`."""
    whole_kinds: KindSet = NO_KINDS
    """Rows of these are read whole if their id has one of `id_prefixes`; of others an `outline`."""
    usage_by: Callable[[Found], Iterable[Account]] = no_accounts
    """The rows of `ids` and `slots` that are found → further accounts, into `Found.usage`."""
    refusals: Callable[[], Iterable[tuple[str, str]]] = no_refusals
    """Target and `by` of the tombstones that matter. If there are more than MOST_TOMBSTONES, only
    these are read of their targets: anybody can leave one for any id, with as many keys as they
    like."""
    counted_groups: frozenset[str] = frozenset()
    """Those of `groups_with_content` that may be made private or opened: their rows go into
    `Found.group_rows`."""
    expiry_windows: frozenset[int] = frozenset()
    """Each `expires_at // EXPIRY_WINDOW_S`: the rows that expire then are counted in
    `Found.expiring`."""

    longest_s: float | None = None
    """Seconds for which the statements of the transaction work or wait for blocks of a disk, those
    that change rows too; a store that runs them itself raises TookTooLong above it. None: no
    limit."""

    @property
    def limited(self) -> frozenset[Limited]:
        """What the limits count, as the shares of TooMuchToRead name it."""
        return frozenset().union(
            *(self.ids, [own.id for own in self.own_rows], self.slots, self.own_slots),
            *(self.id_prefixes, self.vanishing_keys, map(all_rows_of, self.ending_groups)),
            *(self.named, self.named_near),
        )


def narrowed(lookups: Lookups, stored_keys: frozenset[str], groups: Iterable[str]) -> Lookups:
    """The Lookups with only those `vanishing_keys` that are `stored_keys`, and with the pins of the
    groups in which they and the `deleted_keys` have rows or gift wraps."""
    if not (lookups.vanishing_keys or lookups.deleted_keys):
        return lookups
    pinned = [lookups.pinned_in(group) for group in groups]
    return replace(
        lookups,
        present=lookups.present.union(*(each.present for each in pinned)),
        slots=lookups.slots.union(*(each.slots for each in pinned)),
        vanishing_keys={
            key: at for key, at in lookups.vanishing_keys.items() if key in stored_keys
        },
    )


def with_slots_of(own: Collection[Stored], lookups: Lookups) -> Lookups:
    """The Lookups with the slots that `slots_by` has for the found rows that are to be deleted.
    Raises TooMuchToRead."""
    further = lookups.slots_by(own) - lookups.slots
    if lookups.most_own is not None and len(further) > UNPINNED_AT_ONCE:
        shares: dict[Limited, float] = {}
        for row in own:
            named: list[Limited] = [row.event.id] if row.slot is None else [row.event.id, row.slot]
            shares |= dict.fromkeys(named, len(lookups.slots_by([row])) / UNPINNED_AT_ONCE)
        raise TooMuchToRead(shares)
    return replace(lookups, slots=lookups.slots | further) if further else lookups


def _with_index(row: Stored) -> Stored:
    event = indexed(row.event)
    return row if event is row.event else msgspec.structs.replace(row, event=event)


@dataclass(slots=True)
class Found:
    """The store's answer to Lookups, updated with each event of the batch."""

    last_seq: int
    """seq of the newest row, committed or added by this batch."""
    rows: dict[str, Stored] = field(default_factory=dict)
    """id → row."""
    slots: dict[Slot, Stored] = field(default_factory=dict)
    old_versions: set[str] = field(default_factory=set)
    """Those ids of `Lookups.own_rows` that name an old version by their key, or of their group, and
    that the batch does not delete."""
    looked_up: set[Slot] = field(default_factory=set)
    """Those of which it is known whether they have a row."""
    tombstones: dict[str, list[Tombstone]] = field(default_factory=dict)
    """target → tombstones."""
    present: dict[str | Slot, Present] = field(default_factory=dict)
    """Those of `Lookups.present` that are stored and not removed since."""
    leaving: list[int] = field(default_factory=list)
    """seq of the rows to delete now, or of old versions whose rows stay."""
    withdrawn: dict[str, set[str]] = field(default_factory=dict)
    """Group → ids of the 9021s among them."""
    pinned: list[str | Slot] = field(default_factory=list)
    """Names of the rows to unpin before they leave: those of `UNPINNED_AT_ONCE` rows at most."""
    begun: set[str] = field(default_factory=set)
    """Those of `Lookups.requests` that have deleted something, now or in pieces before."""
    id_prefixes: dict[tuple[str, str], list[Stored]] = field(default_factory=dict)
    """(group, prefix) → rows of the group whose id begins so: whole if their kind is one of
    `Lookups.whole_kinds` and they have at most `MOST_WITH_PREFIX` bytes, else as `outline`."""
    crowded_prefixes: set[str] = field(default_factory=set)
    """Prefixes of more than MAX_WITH_PREFIX rows of the store: none of these is in `id_prefixes`.
    They count as known; else whoever makes such rows has honest references refused."""
    groups_with_content: set[str] = field(default_factory=set)
    """Groups with a row beside 9000–9022 and 39000–39005."""
    group_rows: dict[str, int] = field(default_factory=dict)
    """What such rows of each of `Lookups.counted_groups` count for (`weight_of_rows`), where the
    store moves them when the group is made private or opened; above MAX_MOVING not exact."""
    expiring: dict[int, int] = field(default_factory=dict)
    """Each of `Lookups.expiry_windows` → how many rows expire in it, MAX_EXPIRING at most, and how
    many the batch adds."""
    rows_moving: int = 0
    """If rows are counted, the same of groups that were made private or opened, as long as not all
    rows of each are moved; records included."""
    stored_keys: frozenset[str] = frozenset()
    """The `Lookups.vanishing_keys` with a row by them, or a gift wrap, notice or 9000 for them; but
    not those of which a stored request of the same or a later date is known: they have vanished."""
    put_later: dict[str, set[str] | None] = field(default_factory=dict)
    """Of these keys, and that of `Lookups.leaving` if `group_records` has some of its groups: →
    groups that a 9000 puts it into which is dated over CLOCK_SKEW_S after the request; None: these
    are more than MOST_PUT_LATER, and may be of any group."""
    group_records: list[Stored] = field(default_factory=list)
    """9000–9022 and 39000–39005 of the groups, in order of seq, as they are stored, but those that
    are LONG_EXPIRED; not updated: `remaining_records` applies the batch to them."""
    too_many_records: bool = False
    """More than `Leaving.most_records` are to be read next: none are."""
    usage: UsageCounter = field(default_factory=UsageCounter)
    """Rows deleted with a whole group or key are subtracted at the commit only."""
    oldest_dependencies: dict[RetentionDependency, int] = field(default_factory=dict)
    """Dependency → Unix seconds of its oldest row, if there is one."""
    named: dict[RecordName, set[str]] = field(default_factory=dict)
    """Each name that was looked up → ids of its rows; those not removed since are in `rows`."""
    named_too_large: bool = False
    """They have more than MOST_NAMED: some were not looked up."""

    referrers: dict[Reference, set[str]] = field(default_factory=dict)
    """Each reference that was looked up → ids of rows with it; those not removed since are in
    `rows`."""

    def sizes(self) -> dict[Limited, int]:
        """Of `rows`, `slots` and `id_prefixes`: their bytes, and TAG_BYTES for each tag."""
        rows: list[tuple[Limited, Stored]] = [*self.rows.items(), *self.slots.items()]
        sizes = {key: size_with_tags(row) for key, row in rows}
        for beginning, begun in self.id_prefixes.items():
            sizes[beginning] = sum(map(size_with_tags, begun))
        return sizes

    def index_tags(self) -> None:
        """For many events that name the same rows: read rules look for `d` and readers in the tags
        of each again and again, up to 1 ms for 5,000."""
        for key, row in self.rows.items():
            self.rows[key] = _with_index(row)
        for slot, row in self.slots.items():
            self.slots[slot] = self.rows.get(row.event.id) or _with_index(row)
        for rows in self.id_prefixes.values():
            rows[:] = map(_with_index, rows)

    def rows_named(self, named: RecordName) -> list[Stored]:
        return [self.rows[id_] for id_ in self.named.get(named, ()) if id_ in self.rows]

    def add_named(
        self, names: frozenset[RecordName], rows: Iterable[Stored], lookups: Lookups
    ) -> frozenset[RecordName]:
        """`rows`: all with these names. Returns the names to look up next."""
        self.named.update((name, set()) for name in names)
        referred: set[RecordName] = set()
        for row in rows:
            event = row.event
            self.named[RecordName(event.kind, event.d)].add(event.id)
            self.rows.setdefault(event.id, row)
            referred |= lookups.names_in(event)
        return frozenset([name for name in referred if name not in self.named])

    def add_referrers(
        self, references: frozenset[Reference], rows: Sequence[Stored]
    ) -> frozenset[Reference]:
        """`rows`: all with one of these references. Returns the references to look up next."""
        self.referrers.update((reference, set()) for reference in references)
        for row in rows:
            self.rows.setdefault(row.event.id, row)
            for reference in references.intersection(references_of(row.event)):
                self.referrers[reference].add(row.event.id)
        return frozenset([("e", row.event.id) for row in rows]) - self.referrers.keys()


def size_with_tags(row: Stored) -> int:
    """Its bytes, and TAG_BYTES for each tag."""
    return len(row.event.raw) + TAG_BYTES * most_tags(row.event.raw)


def keep_by_kind(kind: int) -> Keep:
    """How NIP-01 keeps this kind; for events that no retention rule matches."""
    if class_of(kind) in (KindClass.REPLACEABLE, KindClass.ADDRESSABLE):
        return Keep.LATEST
    return Keep.ALL


def slot_of(event: Event, keep: Keep) -> Slot | None:
    """The event's slot; None when all versions are kept. For replaceable kinds `d` is not part of
    it (N01-49)."""
    if keep is Keep.ALL:
        return None
    d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
    return Slot(event.pubkey, event.kind, d)


def address_slot(event: Event) -> Slot | None:
    """The slot of the event's address, also when all versions are kept; None: it has none."""
    kind_class = class_of(event.kind)
    if kind_class is KindClass.ADDRESSABLE:
        return Slot(event.pubkey, event.kind, event.d)
    return Slot(event.pubkey, event.kind, "") if kind_class is KindClass.REPLACEABLE else None


def version_of(event: Event, keep: Keep) -> int:
    """The number that LATEST compares (A-08) and sweeps order by, also for FIRST (A-19)."""
    if keep in (Keep.LATEST_TS, Keep.FIRST):
        ts = event.tag("ts")
        if ts is not None and ts.isascii() and ts.isdigit() and len(ts) < 19:
            return int(ts)
    return event.created_at
