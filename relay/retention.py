"""What survives: which version holds a slot, what a deletion takes, what may never come back.

House rules: stores look facts up and apply plans; the deciding is here, once, in Python, inside the
store's transaction. `Found` is the world as the events before in the batch leave it; `plan_for`
changes it and the batch's plan together, so that the next event sees what this one did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.errors import Invalid
from relay.groups.group import Groups
from relay.memory.naming import Named
from relay.nostr import kinds
from relay.nostr.event import Event, event_from_raw, is_hex64
from relay.nostr.kinds import KindClass, class_of, is_ephemeral
from relay.usage import Ledger
from relay.verdict import WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from relay.groups.group import Group
    from relay.management import Change
    from relay.read_rules import Match
    from relay.usage import Account


class Keep(Enum):
    """How versions of one (pubkey, kind, d) compete. MEMORY.md 0.2."""

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
class KeepRule:
    """`[[retention]]` with `keep`: of several that match a row the last one counts."""

    name: str
    match: Match
    keep: Keep


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

    def takes(self, event: Event) -> bool:
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
    ends: set[str] = field(default_factory=set)
    """Groups whose every row goes but the records of their making and their end (N29-124)."""
    vanishes: list[Vanish] = field(default_factory=list)
    """Keys whose every row goes, those that the batch itself adds too (N62-01)."""
    banished: dict[str, int] = field(default_factory=dict)
    """Banned keys → the last seq up to which their rows go and are buried, all but those that the
    state of groups follows from (N86-11)."""
    changes: list[Change] = field(default_factory=list)
    """Of what NIP-86 calls have set, in order."""

    def is_empty(self) -> bool:
        return not (
            self.adds or self.removes or self.tombstones or self.groups or self.ends
            or self.vanishes or self.banished or self.changes
        )  # fmt: skip


class UpTo(Enum):
    """Which time of rows `never_before` compares."""

    TS = "ts"
    """Tag `ts`, created_at where there is none."""
    CREATED_AT = "created_at"


class Kin(NamedTuple):
    """Rows that another must not go before, as long as one of them is not newer."""

    match: Match
    up_to: UpTo


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch must know of the store before it can be decided."""

    ids: frozenset[str]
    slots: frozenset[Slot]
    tombstones: frozenset[str]
    prefixes: frozenset[tuple[str, str]] = frozenset()
    """(group, hex prefix of an id) that `previous` tags name (N29-21)."""
    used_groups: frozenset[str] = frozenset()
    """Groups of which it must be known whether they hold content (Z-03)."""
    vanishing: frozenset[str] = frozenset()
    """Keys that ask to vanish: wanted are the 9000s that name them, into `Found.rows`, and the
    records of every group where they wrote one of 9000–9020, into `Found.records` (N29-58)."""
    recorded: frozenset[str] = frozenset()
    """Groups whose records are wanted in any case."""
    usage: frozenset[Account] = frozenset()
    """Accounts of what is stored, for quotas, into `Found.usage`."""
    kin: frozenset[Kin] = frozenset()
    """Rows of which it must be known how old the oldest is, into `Found.kin`."""
    named: frozenset[Named] = frozenset()
    """Memory records, those that these name in turn, and so on, into `Found.named`."""


@dataclass(slots=True)
class Found:
    """The store's answer to Wanted, changed along as the batch is decided."""

    head: int
    """seq of the newest row ever committed."""
    rows: dict[str, Stored] = field(default_factory=dict)
    slots: dict[Slot, Stored] = field(default_factory=dict)
    tombstones: dict[str, list[Tombstone]] = field(default_factory=dict)
    prefixes: set[tuple[str, str]] = field(default_factory=set)
    used_groups: set[str] = field(default_factory=set)
    records: list[Stored] = field(default_factory=list)
    """9000–9022 and 39000–39005 of the groups wanted, in order of seq. As they are stored:
    `records_left` says what the batch made of them."""
    usage: Ledger = field(default_factory=Ledger)
    """The accounts wanted. What goes with a whole group or key is counted off with the commit."""
    kin: dict[Kin, int] = field(default_factory=dict)
    """Unix seconds of the oldest of each kin wanted that has rows."""
    named: dict[Named, set[str]] = field(default_factory=dict)
    """Of every name that was looked up the ids of its rows; those still there are in `rows`."""

    def rows_named(self, named: Named) -> list[Stored]:
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


def is_kind(text: str) -> bool:
    """Whether a text may be a kind number: digits of ASCII, few enough for `int`."""
    return text.isascii() and text.isdigit() and len(text) <= 5


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


def address_target(slot: Slot) -> str:
    return f"a:{slot.kind}:{slot.pubkey}:{slot.d}"


def event_target(event_id: str) -> str:
    return f"e:{event_id}"


def key_target(pubkey: str) -> str:
    return f"p:{pubkey}"


def deletion_targets(event: Event) -> tuple[list[str], list[Slot]]:
    """Well-formed ids and own addresses that a kind 5 names."""
    ids = [value for value in event.tag_values("e") if is_hex64(value)]
    slots = []
    for value in event.tag_values("a"):
        slot = address_of(value)
        if slot is not None and slot.pubkey == event.pubkey:
            slots.append(slot)
    return ids, slots


_NO_GROUPS: Final = Groups()


def is_spared(kind: int) -> bool:
    """Whether its author's kind 5 has no effect, before it or after (N09-09, N29-58, N62-09)."""
    return (
        kind in (kinds.DELETION, kinds.VANISH)
        or kind in kinds.GROUP_RECORDS
        or kind in kinds.GROUP_STATE
    )


def may_delete(deletion: Event, target: Event) -> bool:
    """Whether a kind 5 takes this event away (N09-02, N59-08)."""
    if is_spared(target.kind):
        return False
    if target.pubkey == deletion.pubkey:
        return True
    return target.kind == kinds.GIFT_WRAP and deletion.pubkey in target.tag_values("p")


def is_deleted(event: Event, slot: Slot | None, found: Found) -> bool:
    """Whether a tombstone holds against this event (N09-10, N09-11, G-12)."""
    for stone in found.tombstones.get(event_target(event.id), ()):
        if not stone.by or (stone.by == event.pubkey and not is_spared(event.kind)):
            return True
        if event.kind == kinds.GIFT_WRAP and stone.by in event.tag_values("p"):
            return True
    targets = [key_target(event.pubkey)]
    if slot is not None:
        targets.append(address_target(slot))
    if event.kind == kinds.GIFT_WRAP:
        targets.extend(key_target(pubkey) for pubkey in event.tag_values("p"))
    return any(
        stone.until is not None and event.created_at <= stone.until
        for target in targets
        for stone in found.tombstones.get(target, ())
    )


def loses(event: Event, version: int, keep: Keep, holder: Stored, *, high_tie: bool) -> bool:
    """Whether the event is older than, or loses the tie against, the slot's holder."""
    if version != holder.version:
        return version < holder.version
    # Lowest id wins (NIP-01); for `ts` the highest, as the original's indexer has it.
    if keep is Keep.LATEST_TS and high_tie:
        return event.id < holder.event.id
    return event.id > holder.event.id


def unstored(
    event: Event, slot: Slot | None, keep: Keep, found: Found, *, now: int, high_tie: bool
) -> WriteOutcome | None:
    """Why an event that no rule objects to is not stored; None: it is. `slot`: of the event."""
    expires_at = expiry_of(event)
    if expires_at is not None and expires_at <= now:
        return WriteOutcome.EXPIRED
    if event.id in found.rows:
        return WriteOutcome.DUPLICATE
    if is_deleted(event, slot, found):
        return WriteOutcome.DELETED
    if is_ephemeral(event.kind):
        return WriteOutcome.PASSED_ON
    holder = None if slot is None else found.slots.get(slot)
    if holder is None:
        return None
    if keep is Keep.FIRST:
        return WriteOutcome.TAKEN
    if loses(event, version_of(event, keep), keep, holder, high_tie=high_tie):
        return WriteOutcome.SUPERSEDED
    return None


def plan_for(
    event: Event, group: str | None, keep: Keep, found: Found, plan: WritePlan, *,
    now: int, high_tie: bool, quiet: bool = False,
) -> Stored | WriteOutcome:  # fmt: skip
    """Decide one event that no rule objects to, and note it in `plan` and `found`.

    Gives the row that was added (its `seq` is the next one), or why there is none.
    """
    slot = slot_of(event, keep)
    outcome = unstored(event, slot, keep, found, now=now, high_tie=high_tie)
    if outcome is not None:
        return outcome
    holder = None if slot is None else found.slots.get(slot)
    if holder is not None:
        remove(holder, found, plan)
    found.head += 1
    row = Stored(
        found.head, event, group, quiet, slot, version_of(event, keep), expiry_of(event)
    )
    plan.adds[event.id] = row
    found.rows[event.id] = row
    if found.named:
        ids = found.named.get(Named(event.kind, event.d))
        if ids is not None:
            ids.add(event.id)
    found.usage.add(event.pubkey, event.kind, group, len(event.raw))
    if slot is not None:
        found.slots[slot] = row
    if (
        group is not None
        and event.kind not in kinds.GROUP_RECORDS
        and event.kind not in kinds.GROUP_STATE
    ):
        found.used_groups.add(group)
    return row


def remove(row: Stored, found: Found, plan: WritePlan) -> None:
    """Take a row away, whether it was stored before or by this very batch."""
    if plan.adds.pop(row.event.id, None) is None:
        plan.removes.add(row.seq)
    event = row.event
    if found.rows.pop(event.id, None) is not None or (
        row.slot is not None and found.slots.get(row.slot) is row
    ):
        found.usage.remove(event.pubkey, event.kind, row.group, len(event.raw))
    if row.slot is not None and found.slots.get(row.slot) is row:
        del found.slots[row.slot]


def bury(stone: Tombstone, found: Found, plan: WritePlan) -> None:
    plan.tombstones.append(stone)
    found.tombstones.setdefault(stone.target, []).append(stone)


def delete_by_author(event: Event, found: Found, plan: WritePlan) -> None:
    """What an accepted kind 5 does: own targets go, tombstones stay (N09)."""
    for row in deleted_rows(event, found):
        remove(row, found, plan)
    ids, slots = deletion_targets(event)
    for event_id in ids:
        bury(Tombstone(event_target(event_id), event.pubkey, None, "kind 5"), found, plan)
    for slot in slots:
        bury(
            Tombstone(address_target(slot), event.pubkey, event.created_at, "kind 5"), found, plan
        )


def deleted_rows(event: Event, found: Found) -> list[Stored]:
    """The stored rows that a kind 5 takes away."""
    ids, slots = deletion_targets(event)
    rows = {}
    for event_id in ids:
        row = found.rows.get(event_id)
        # A kind 5 of a group takes what is of this group or of none (N09-14).
        if row is not None and may_delete(event, row.event) and _within(event, row):
            rows[row.seq] = row
    for slot in slots:
        row = found.slots.get(slot)
        if (
            row is not None
            and row.event.created_at <= event.created_at
            and may_delete(event, row.event)
            and _within(event, row)
        ):
            rows[row.seq] = row
    return list(rows.values())


def _within(deletion: Event, row: Stored) -> bool:
    h = deletion.tag("h")
    return h is None or row.group is None or row.group == h


def is_record(event: Event) -> bool:
    """Whether the state of a group may follow from it."""
    return event.kind in kinds.GROUP_RECORDS or event.kind in kinds.GROUP_STATE


def request_done(request: Event, found: Found) -> WriteOutcome | None:
    """How an acting kind 62 ends that asks for nothing new; of several the latest rules: N62-10."""
    until, kept = -1, None
    for stone in found.tombstones.get(key_target(request.pubkey), ()):
        if stone.request is not None and stone.until is not None and stone.until > until:
            until, kept = stone.until, stone.request
    if kept is None or request.created_at > until:
        return None
    same = event_from_raw(kept).id == request.id
    return WriteOutcome.DUPLICATE if same else WriteOutcome.STORED


def vanish(request: Event, found: Found, plan: WritePlan) -> Sequence[Stored]:
    """What an acting kind 62 does to rows; gives those that it takes, as far as they are found."""
    gone = Vanish(request.pubkey, request.created_at)
    rows = chain(found.rows.values(), found.slots.values(), found.records)
    taken = {row.seq: row for row in rows if gone.takes(row.event)}
    for row in taken.values():
        remove(row, found, plan)
    plan.vanishes.append(gone)
    target = key_target(gone.pubkey)
    bury(Tombstone(target, gone.pubkey, gone.until, "kind 62", request.raw), found, plan)
    return list(taken.values())


def banned_stone(event_id: str) -> Tombstone:
    """What stays of an event that went with a ban."""
    return Tombstone(event_target(event_id), "", None, "ban")


def banish(pubkey: str, found: Found, plan: WritePlan) -> None:
    """Delete what a key wrote, as far as it is found here; the store sees to the rest.

    What the state of groups follows from stays: it was theirs to say when they said it.
    """
    for row in {row.seq: row for row in (*found.rows.values(), *found.slots.values())}.values():
        if row.event.pubkey == pubkey and not is_record(row.event):
            remove(row, found, plan)
            bury(banned_stone(row.event.id), found, plan)
    plan.banished[pubkey] = found.head


def records_left(groups: Set[str], found: Found, plan: WritePlan) -> Sequence[Event]:
    """What the log says of these groups, whose records were wanted, as the batch has left it.

    Of those in `plan.ends` also what goes with their end: whoever reads on comes to that end.
    """
    stored = [row for row in found.records if row.seq not in plan.removes]
    added = [row for row in plan.adds.values() if is_record(row.event)]
    return [row.event for row in (*stored, *added) if row.group in groups]


def wanted_for(events: Sequence[tuple[Event, Keep]]) -> Wanted:
    """What must be looked up to decide these events."""
    ids: set[str] = set()
    slots: set[Slot] = set()
    targets: set[str] = set()
    prefixes: set[tuple[str, str]] = set()
    used: set[str] = set()
    for event, keep in events:
        ids.add(event.id)
        targets.add(event_target(event.id))
        targets.add(key_target(event.pubkey))
        slot = slot_of(event, keep)
        if slot is not None:
            slots.add(slot)
            targets.add(address_target(slot))
        kind = event.kind
        if kind == kinds.DELETION:
            named, addressed = deletion_targets(event)
            ids.update(named)
            slots.update(addressed)
        elif kind == kinds.DELETE_EVENT:
            ids.update(value for value in event.tag_values("e") if is_hex64(value))
        elif kind == kinds.UPDATE_PINS:
            ids.update(value for value in event.tag_values("e") if is_hex64(value))
            slots.update(filter(None, map(address_of, event.tag_values("a"))))
        elif kind == kinds.EDIT_METADATA:
            used.add(event.tag("h") or "")
        elif kind == kinds.GIFT_WRAP:
            targets.update(key_target(pubkey) for pubkey in event.tag_values("p"))
        for tag in event.tags:
            if tag and tag[0] == "previous":
                prefixes.update((event.tag("h") or "", value) for value in tag[1:])
    return Wanted(
        frozenset(ids), frozenset(slots), frozenset(targets), frozenset(prefixes), frozenset(used)
    )


class KeepRules:
    """`keep` of an event by the retention rules, indexed by kind."""

    def __init__(self, rules: Iterable[KeepRule], *, high_tie: bool = True) -> None:
        self.rules = tuple(rules)
        self.high_tie = high_tie
        self._by_kind: dict[int, tuple[KeepRule, ...]] = {}

    def keep_of(self, event: Event) -> Keep:
        rules = self._by_kind.get(event.kind)
        if rules is None:
            rules = tuple(
                rule
                for rule in reversed(self.rules)
                if rule.match.kinds is None or event.kind in rule.match.kinds
            )
            self._by_kind[event.kind] = rules  # at most 65,536 kinds exist
        if rules:
            row = Stored(0, event, event.tag("h"))
            for rule in rules:
                if rule.match.holds(row, _NO_GROUPS):
                    return rule.keep
        return keep_by_kind(event.kind)

