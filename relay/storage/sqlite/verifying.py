"""Checks a store's file against itself: each row against its event, each table against the rows.

Invariants: `raw` is the reference for its row, and the rows are the reference for the other tables.
All is read in one snapshot, so a running relay may write meanwhile. Not checked, because it does
not follow from the rows: `quiet`, the group of a row without `h`, former members of ended groups.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from relay.access.quotas import recipients_of
from relay.errors import Invalid, StoreFault, StoreVersion
from relay.groups.group import Groups, replayed
from relay.lifecycle.deletion import (
    address_target,
    event_target,
    is_deleted,
    key_target,
    slot_target,
)
from relay.lifecycle.rows import (
    Found,
    Keep,
    keep_by_kind,
    references_of,
    slot_of,
    version_of,
)
from relay.nostr import kinds
from relay.nostr.event import event_from, event_from_raw
from relay.nostr.keys import are_signed
from relay.nostr.nip40 import expiry_of
from relay.nostr.nip50 import searchable
from relay.storage.hashes import Hashes, id_key
from relay.storage.rows import INDEXED_BYTES
from relay.storage.sqlite.connections import fault_of, index_path
from relay.storage.sqlite.fts import Stems
from relay.storage.sqlite.group_tables import tables_of
from relay.storage.sqlite.lookups import find_tombstones
from relay.storage.sqlite.opening import APPLICATION_ID, SCHEMA_VERSION, check_schema, check_values
from relay.storage.sqlite.sql.named import QUERIES, SEARCH_QUERIES
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY
from relay.storage.sqlite.tag_functions import add_functions
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set
    from concurrent.futures import Future
    from pathlib import Path

    from relay.lifecycle.rows import Reference, Slot
    from relay.lifecycle.versions import KeepRules
    from relay.nostr.event import Event

    TagRow = tuple[int, int, int, int]
    """hash, created_at, id_key, kind"""

_PAGE: Final = 500
_WORKERS: Final = max(2, os.cpu_count() or 2)
_MOST_SHOWN: Final = 100
"""Findings of one check that are listed; all are counted."""
_LOOKED_AT: Final = 20_000
"""Rows with wrong tags that are compared in one pass."""
_SHOWN_FAULTS: Final = 20
_DENSE: Final = 1_000_000
"""Up to this seq, or up to 16 seqs per row, an array by seq takes less memory than a dictionary."""


class Check(StrEnum):
    """What is checked."""

    FILE = "file"
    """Pages and indices, by SQLite itself."""
    ID = "id"
    """The row holds an event in canonical form, whose id is its hash."""
    SIGNATURE = "signature"
    COLUMNS = "columns"
    """The columns agree with the event."""
    SLOT = "slot"
    VERSION = "version"
    """Old versions are valid events, and older than a row."""
    GROUP = "group"
    """The row belongs to the group that its event names."""
    TAGS = "tags"
    SIZES = "sizes"
    GROUPS = "groups"
    """Groups and members equal a replay."""
    TOMBSTONE = "tombstone"
    """Nothing is stored that was deleted."""
    SEARCH = "search"
    """Searchable texts are in the index."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    text: str


@dataclass(frozen=True, slots=True)
class Rules:
    """Policies that the check needs."""

    relay_pubkey: str
    keep: KeepRules
    group_of: Callable[[Event], str | None]
    """The group of an event's row, as far as the event tells."""
    text_of: Callable[[Event], str | None]
    search_rules: str


@dataclass(slots=True)
class Report:
    """The findings, and the seqs that `repair` needs."""

    events: int = 0
    findings: list[Finding] = field(default_factory=list)
    """The first `_MOST_SHOWN` of each check."""
    counts: Counter[Check] = field(default_factory=Counter)
    """Number of all findings of each check."""
    broken: dict[int, str] = field(default_factory=dict)
    """seq of a row whose event is wrong → why."""
    misplaced: list[int] = field(default_factory=list)
    """seq of rows with wrong columns."""
    shared_slots: list[int] = field(default_factory=list)
    wrong_versions: list[int] = field(default_factory=list)
    """seq of old versions whose event is wrong or was deleted."""
    tombstoned: list[int] = field(default_factory=list)
    """seq of rows that should be deleted."""
    is_search_checked: bool = False
    """False: there is no index, or the next start will rebuild it."""

    def add(self, check: Check, text: str) -> None:
        self.counts[check] += 1
        if self.counts[check] <= _MOST_SHOWN:
            self.findings.append(Finding(check, text))


class Row(NamedTuple):
    """A row with the columns of `rows_after`."""

    seq: int
    id: bytes
    id_key: int
    pubkey: bytes
    author_key: int
    kind: int
    created_at: int
    grp: str | None
    d: str
    slot: int | None
    version: int
    expires_at: int | None
    raw: bytes


def verify(path: Path, rules: Rules, now: int, note: Callable[[int, int], None]) -> Report:
    """`note` gets the number of rows done, and of all. Raises StoreFault, StoreVersion.

    Needs no lock; until it returns, the WAL of a running relay is not truncated.
    """
    try:
        with ExitStack() as stack:
            # Read first: all that it has indexed is in the later snapshot of the store.
            search = _search_snapshot(path)
            if search is not None:
                stack.enter_context(closing(search))
            db = stack.enter_context(closing(snapshot(path)))
            return _Verification(db, search, rules, now).run(note)
    except sqlite3.Error as error:
        raise fault_of(error, path) from error


def snapshot(path: Path) -> sqlite3.Connection:
    """A connection in a transaction that reads. Raises StoreFault, StoreVersion."""
    if not path.exists():
        raise StoreFault(f"{path} does not exist: nothing is stored yet")
    check_log(path)
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    add_functions(db)
    try:
        db.execute("PRAGMA query_only = ON")
        db.execute("BEGIN")
        application = db.execute("PRAGMA application_id").fetchone()[0]
        schema = db.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreVersion(f"{path} is a database of another program")
        if schema != SCHEMA_VERSION:
            what = "start the relay once" if schema < SCHEMA_VERSION else "use a newer Rookery"
            raise StoreVersion(f"{path} has schema {schema}, not {SCHEMA_VERSION}: {what}")
        check_schema(db, path)
        check_values(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _search_snapshot(path: Path) -> sqlite3.Connection | None:
    file = index_path(path)
    if not file.exists():
        return None
    db = sqlite3.connect(file, timeout=10, isolation_level=None)
    try:
        db.execute("BEGIN")
        db.execute(SEARCH_QUERIES["get_meta"], ("upto",)).fetchone()
    except sqlite3.Error:  # damaged: the next start rebuilds it
        db.close()
        return None
    return db


class RowCheck:
    """One row against its event."""

    def __init__(self, db: sqlite3.Connection, rules: Rules) -> None:
        self._db = db
        self._hashes = hashes_of(db)
        self._rules = rules

    @cached_property
    def _stored_as_all(self) -> Set[int]:
        """seqs of rows that have no slot and need none: they were stored while all versions were
        kept."""
        return {seq for (seq,) in self._db.execute(VERIFY["stored_as_all"])}

    def event_of(self, row: Row) -> Event | str:
        """The event, or what is wrong with it. The signature is not checked."""
        return self.event_in(row.raw)

    def event_in(self, raw: bytes) -> Event | str:
        """As `event_of`."""
        try:
            event = event_from(orjson.loads(raw))
        except orjson.JSONDecodeError:
            return "what is stored is not JSON"
        except Invalid as invalid:
            return f"what is stored is not this event: {invalid.text}"
        if event.raw != raw:
            return "what is stored is not in the form in which events are sent"
        return event

    def slot_of(self, row: Row, event: Event) -> tuple[Slot | None, Keep]:
        """The slot that the row belongs into."""
        keep = self._rules.keep.keep_of(event)
        if keep is Keep.ALL and row.slot is not None:
            keep = Keep.LATEST  # stored under another policy
        elif (
            keep is not Keep.ALL
            and row.slot is None
            and (keep_by_kind(event.kind) is Keep.ALL or row.seq in self._stored_as_all)
        ):
            keep = Keep.ALL  # likewise
        return slot_of(event, keep), keep

    def corrected(self, row: Row, event: Event) -> tuple[Row, Slot | None]:
        """The row with the columns that its event gives, and its slot."""
        slot, keep = self.slot_of(row, event)
        versions = {version_of(event, each) for each in (keep, Keep.LATEST, Keep.LATEST_TS)}
        group = self._rules.group_of(event)
        try:
            expires_at = expiry_of(event)
        except Invalid:
            expires_at = row.expires_at
        return Row(
            row.seq,
            bytes.fromhex(event.id),
            id_key(event.id),
            bytes.fromhex(event.pubkey),
            id_key(event.pubkey),
            event.kind,
            event.created_at,
            row.grp if group is None else group,
            event.d,
            None if slot is None else self._hashes.slot(*slot),
            row.version if row.version in versions else version_of(event, keep),
            expires_at,
            row.raw,
        ), slot


class _Verification:
    def __init__(
        self, db: sqlite3.Connection, search: sqlite3.Connection | None, rules: Rules, now: int
    ) -> None:
        self._db = db
        self._rules = rules
        self._now = now
        self._hashes = hashes_of(db)
        self._index_tags = index_tags_of(db)
        self._check = RowCheck(db, rules)
        self._tags_upto: int = db.execute(QUERIES["get_meta"], ("tags_upto",)).fetchone()[0]
        self._total, newest = db.execute(VERIFY["state"]).fetchone()
        self._newest: int = newest or 0
        self._tags: array[int] | defaultdict[int, int] = (
            array("q", bytes(8 * (self._newest + 1)))
            if self._newest < _DENSE + 16 * self._total
            else defaultdict(int)  # few rows are left, or a seq is invented
        )
        """seq → XOR of the hashes of its expected and its stored tags; 0 when they agree."""
        self._late_tags: dict[int, set[TagRow]] = {}
        """Tags of rows whose tags may be in the writer's memory only; some of them are stored."""
        self._suspects: list[tuple[Row, _Suspect]] = []
        self._deleting_in: dict[tuple[str, str, str], dict[str, int]] = {}
        """(author, reference) → the `h` of kind 5s that have one, and `created_at` of the newest.
        Read from the rows: the index of tags may be wrong, and a repair deletes suspects."""
        self._received: dict[str, list[int]] = {}
        self._groups = Groups()
        kept = db.execute(QUERIES["get_meta"], ("head",)).fetchone()
        head = max(self._newest, kept[0] if kept else 0)
        self._search = None if search is None else _Search(search, self._hashes, rules, now, head)
        self.report = Report(events=self._total)
        if self._search is not None:
            self.report.is_search_checked = self._search.is_current

    def run(self, note: Callable[[int, int], None]) -> Report:
        self._check_file()
        self._check_rows(note)
        self._check_suspects()
        for (slot,) in self._db.execute(VERIFY["shared_slots"]):
            self.report.shared_slots.append(slot)
            seqs = [str(row[0]) for row in self._db.execute(VERIFY["rows_of_slot"], (slot,))]
            self.report.add(Check.SLOT, f"rows {', '.join(seqs)}: all in one slot")
        self._check_versions()
        self._check_tags()
        self._check_sizes()
        self._check_groups()
        if self._search is not None:
            self._search.finish(self.report)
        return self.report

    def _check_file(self) -> None:
        for (text,) in self._db.execute(f"PRAGMA integrity_check({_SHOWN_FAULTS})").fetchall():
            if text != "ok":
                self.report.add(Check.FILE, text)

    # -- rows -----------------------------------------------------------------------------------

    def _check_rows(self, note: Callable[[int, int], None]) -> None:
        waiting: deque[tuple[list[tuple[Row, Event]], Future[list[bool]]]] = deque()
        done = 0
        with ThreadPoolExecutor(_WORKERS, "verify") as pool:
            for page in pages(self._db):
                known: list[tuple[Row, Event]] = []
                for row in page:
                    event = self._check.event_of(row)
                    if isinstance(event, str):
                        self._break(row, Check.ID, event)
                    else:
                        known.append((row, event))
                events = [event for _, event in known]
                waiting.append((known, pool.submit(are_signed, events)))
                self._check_page(known)
                if len(waiting) > 2 * _WORKERS:
                    self._check_signatures(*waiting.popleft())
                done += len(page)
                note(done, self._total)
            while waiting:
                self._check_signatures(*waiting.popleft())

    def _break(self, row: Row, check: Check, why: str) -> None:
        self.report.broken[row.seq] = why
        self.report.add(check, f"{_name_of(row)}: {why}")

    def _check_signatures(
        self, known: Sequence[tuple[Row, Event]], answer: Future[list[bool]]
    ) -> None:
        for (row, _), is_signed in zip(known, answer.result(), strict=True):
            if not is_signed:
                self._break(row, Check.SIGNATURE, "the signature is wrong")

    def _check_page(self, known: Sequence[tuple[Row, Event]]) -> None:
        slots = []
        for row, event in known:
            right, slot = self._check.corrected(row, event)
            slots.append(slot)
            if right != row:
                self._report_columns(row, right)
            for tag in self._tags_of(event):
                if row.seq <= self._tags_upto:
                    self._tags[row.seq] ^= hash(tag)
                else:
                    self._late_tags.setdefault(row.seq, set()).add(tag)
            if event.kind == kinds.DELETION and (h := event.tag("h")) is not None:
                for name in references_of(event):
                    groups = self._deleting_in.setdefault((event.pubkey, *name), {})
                    groups[h] = max(groups.get(h, 0), event.created_at)
            for recipient in recipients_of(event):
                grown = self._received.setdefault(recipient, [0, 0])
                grown[0] += 1
                grown[1] += len(row.raw)
        self._check_tombstones(known, slots)
        events = (event for _, event in known)
        self._groups = replayed(self._groups, events, self._rules.relay_pubkey)
        if self._search is not None:
            self._search.check(known, self.report)

    def _tags_of(self, event: Event) -> set[TagRow]:
        key = id_key(event.id)
        hashes = self._hashes.of_event(event, self._index_tags)
        return {(hash_, event.created_at, key, event.kind) for hash_ in hashes}

    def _report_columns(self, row: Row, right: Row) -> None:
        self.report.misplaced.append(row.seq)
        wrong = [name for name in Row._fields if getattr(row, name) != getattr(right, name)]
        if "slot" in wrong:
            wrong.remove("slot")
            self.report.add(Check.SLOT, f"{_name_of(right)}: not in the slot of its versions")
        if "grp" in wrong:
            wrong.remove("grp")
            said = "in no group" if row.grp is None else f"in the group {row.grp!r}"
            self.report.add(
                Check.GROUP, f"{_name_of(right)}: {said}, and its event is of {right.grp!r}"
            )
        if wrong:
            self.report.add(Check.COLUMNS, f"{_name_of(right)}: wrong in {', '.join(wrong)}")

    def _check_tombstones(
        self, known: Sequence[tuple[Row, Event]], slots: Sequence[Slot | None]
    ) -> None:
        targets = []
        for (_, event), slot in zip(known, slots, strict=True):
            targets += [event_target(event.id), key_target(event.pubkey)]
            if slot is not None:
                targets += [address_target(slot), slot_target(slot)]
            if event.kind == kinds.GIFT_WRAP:
                targets += map(key_target, event.tag_values("p"))
        found = Found(0)
        find_tombstones(self._db, targets, found)
        if not found.tombstones:
            return
        certain = _without_kind_5(found)
        for (row, event), slot in zip(known, slots, strict=True):
            version = _highest_version(event)
            if is_deleted(event, slot, version, found if row.grp is None else certain, row.grp):
                self._report_deleted(row)
            elif is_deleted(event, slot, version, found, row.grp):
                self._suspects.append((row._replace(raw=b""), _suspect_of(event, slot, row.grp)))

    def _check_suspects(self) -> None:
        for row, suspect in self._suspects:
            if self._is_named(suspect):
                self._report_deleted(row)

    def _report_deleted(self, row: Row) -> None:
        self.report.tombstoned.append(row.seq)
        self.report.add(Check.TOMBSTONE, f"{_name_of(row)}: was deleted, and is stored")

    def _is_named(self, suspect: _Suspect) -> bool:
        """Whether a stored kind 5 deletes it, once all rows are read."""
        return self._is_named_in_group(suspect) or self._is_named_in_none(suspect)

    def _is_named_in_group(self, suspect: _Suspect) -> bool:
        """Whether a kind 5 of its author with the `h` of its group names it."""
        return any(
            at is not None and suspect.is_reached(name, at)
            for name in suspect.names
            for at in [self._deleting_in.get((suspect.author, *name), {}).get(suspect.group)]
        )

    def _is_named_in_none(self, suspect: _Suspect) -> bool:
        """Whether a kind 5 of its author, without `h`, names it; the newest may not be indexed
        yet."""
        author = bytes.fromhex(suspect.author)
        return any(
            not event.has_tag("h") and suspect.is_reached(name, event.created_at)
            for name in suspect.names
            for (raw,) in self._db.execute(
                VERIFY["deletions_naming"], (self._hashes.tag(*name), author)
            )
            for event in [event_from_raw(raw)]
        )

    def _check_versions(self) -> None:
        for seq, id_, *noted, slot, grp, raw, has_newer in self._db.execute(VERIFY["old_versions"]):
            why = self._fault_of_version(raw, id_, noted, slot, grp)
            if why is not None:
                self.report.wrong_versions.append(seq)
            elif not has_newer:  # or its row has the wrong slot: checked again after the repair
                why = "there is no newer version of its record"
            if why is not None:
                self.report.add(Check.VERSION, f"event {id_.hex()} (old version {seq}): {why}")

    def _fault_of_version(
        self, raw: bytes, id_: bytes, noted: Sequence[Any], slot: int, group: str | None
    ) -> str | None:
        event = self._check.event_in(raw)
        if isinstance(event, str):
            return event
        if not are_signed([event])[0]:
            return "the signature is wrong"
        own = slot_of(event, Keep.LATEST)
        says = [bytes.fromhex(event.pubkey), event.kind, event.created_at]
        if event.id != id_.hex() or [*noted] != says or own is None:
            return "its columns are not what its event says"
        if self._hashes.slot(*own) != slot:
            return "not in the slot of its versions"
        found, targets = Found(0), [event_target(event.id), key_target(event.pubkey)]
        find_tombstones(self._db, [*targets, address_target(own), slot_target(own)], found)
        version, certain = _highest_version(event), found
        if group is not None:
            certain = _without_kind_5(found)
        is_gone = is_deleted(event, own, version, certain, group) or (
            is_deleted(event, own, version, found, group)
            and self._is_named(_suspect_of(event, own, group))
        )
        return "was deleted, and is stored" if is_gone else None

    # -- tables ---------------------------------------------------------------------------------

    def _check_tags(self) -> None:
        tags, newest, upto = self._tags, self._newest, self._tags_upto
        surplus: Counter[int] = Counter()
        for hash_, created_at, key, seq, kind in self._db.execute(VERIFY["all_tags"]):
            tag = hash_, created_at, key, kind
            if not 0 < seq <= newest:
                surplus[seq] += 1
            elif seq <= upto:
                tags[seq] ^= hash(tag)
            elif tag not in self._late_tags.get(seq, ()):
                surplus[seq] += 1
        seqs = range(newest + 1) if isinstance(tags, array) else sorted(tags)
        wrong = [seq for seq in seqs if tags[seq] and seq not in self.report.broken]
        for start in range(0, len(wrong), _LOOKED_AT):
            self._compare_tags(wrong[start : start + _LOOKED_AT])
        for seq, number in surplus.items():
            self.report.add(Check.TAGS, f"row {seq}: {number} in the index that it does not have")

    def _compare_tags(self, wrong: Sequence[int]) -> None:
        there: dict[int, set[TagRow]] = {seq: set() for seq in wrong}
        for hash_, created_at, key, seq, kind in self._db.execute(VERIFY["all_tags"]):
            if seq in there:
                there[seq].add((hash_, created_at, key, kind))
        for row in rows_of(self._db, wrong):
            event, found = event_from_raw(row.raw), there.pop(row.seq)
            expected = self._tags_of(event)
            key = id_key(event.id)
            # Of names that are no longer indexed they stay.
            former = {
                (self._hashes.tag(tag[0], tag[1]), event.created_at, key, event.kind)
                for tag in event.tags
                if len(tag) > 1
            }
            missing, extra = len(expected - found), len(found - expected - former)
            if missing:
                self.report.add(Check.TAGS, f"{_name_of(row)}: {missing} missing in the index")
            if extra:
                self.report.add(
                    Check.TAGS, f"{_name_of(row)}: {extra} in the index that it does not have"
                )
        for seq, found in there.items():
            self.report.add(
                Check.TAGS, f"row {seq}, which is gone: {len(found)} still in the index"
            )

    def _check_sizes(self) -> None:
        counted = {tuple(row[:3]): row[3:] for row in self._db.execute(VERIFY["sizes_counted"])}
        noted = {tuple(row[:3]): row[3:] for row in self._db.execute(VERIFY["sizes_noted"])}
        for key in counted | noted:
            self._report_size(
                f"kind {key[1]} by {key[0].hex()} in group {key[2]!r}",
                noted.get(key, (0, 0)),
                counted.get(key, (0, 0)),
            )
        received = {
            name: [events, size] for name, events, size in self._db.execute(VERIFY["received"])
        }
        for name in received | self._received:
            is_, should = received.get(name, [0, 0]), self._received.get(name, [0, 0])
            if is_ != should:
                self._report_size(f"gift wraps for {name}", is_, should)

    def _report_size(self, of: str, is_: Sequence[int], should: Sequence[int]) -> None:
        self.report.add(
            Check.SIZES,
            f"{of}: the totals say {is_[0]} events of {is_[1]} bytes, stored are {should[0]} of"
            f" {should[1]}",
        )

    def _check_groups(self) -> None:
        groups, members = tables_of(self._groups)
        noted = {
            row[0]: tuple(row[1:3]) for row in self._db.execute(VERIFY["groups"]) if not row[3]
        }
        ended = {row[0] for row in self._db.execute(VERIFY["groups"]) if row[3]}
        for group_id in sorted(groups.keys() | noted.keys()):
            if groups.get(group_id) != noted.get(group_id):
                what = (
                    "differs from"
                    if group_id in groups and group_id in noted
                    else ("is missing, by" if group_id in groups else "is not in")
                )
                self.report.add(
                    Check.GROUPS, f"group {group_id!r} {what} the replay of its records"
                )
        for group_id in sorted(self._groups.ended.keys() - ended):
            self.report.add(Check.GROUPS, f"group {group_id!r} ended, and is not noted as ended")
        there = set(self._db.execute(VERIFY["members"]))
        for key, group_id, admin in sorted(members - there):
            what = "an admin" if admin else "a member"
            self.report.add(
                Check.GROUPS, f"group {group_id!r}: {key.hex()} is {what}, and is not noted as such"
            )
        for key, group_id, admin in sorted(there - members):
            what = "an admin" if admin else "a member"
            self.report.add(
                Check.GROUPS, f"group {group_id!r}: {key.hex()} is noted as {what}, and is none"
            )


class _Search:
    """The index of texts against the texts of the rows."""

    def __init__(
        self, db: sqlite3.Connection, hashes: Hashes, rules: Rules, now: int, head: int
    ) -> None:
        """`head`: of the store. An older copy of it may have been put back."""
        self._db = db
        self._text_of = rules.text_of
        self._now = now
        found = [
            db.execute(SEARCH_QUERIES["get_meta"], (name,)).fetchone()
            for name in ("store", "upto", "rules")
        ]
        fits = found[0] == (hashes.fingerprint(),) and found[2] == (rules.search_rules,)
        self.is_current = fits and found[1][0] <= head
        """The next start continues with it."""
        self._upto: int = found[1][0] if self.is_current else 0
        self._expected: dict[int, tuple[bytes, int]] = {}
        """seq → id, and the number of `occurrences`."""
        self._stems = Stems()
        self._fresh = sqlite3.connect(":memory:", isolation_level=None)
        self._fresh.execute(SEARCH_QUERIES["make_words"])
        for each in (db, self._fresh):
            each.execute(VERIFY["make_index_words"])

    def check(self, known: Sequence[tuple[Row, Event]], report: Report) -> None:
        """A few long texts at a time: their words take forty times as much memory."""
        part: list[tuple[Row, Event]] = []
        size = 0
        for row, event in known:
            part.append((row, event))
            size += len(row.raw)
            if size >= INDEXED_BYTES:
                self._check_part(part, report)
                part, size = [], 0
        if part:
            self._check_part(part, report)

    def _check_part(self, known: Sequence[tuple[Row, Event]], report: Report) -> None:
        upto, texts = self._upto, {}
        for row, event in known:
            if row.seq <= upto and (row.expires_at is None or row.expires_at > self._now):
                text = self._text_of(event)
                if text is not None:
                    texts[row.seq] = row, searchable(text)
        if not texts:
            return
        asked = known[0][0].seq, known[-1][0].seq
        there = {
            seq: tuple(rest) for seq, *rest in self._db.execute(VERIFY["indexed_texts"], asked)
        }
        wrong = set()
        listed = self._stems.listed([found for _, found in texts.values()])
        self._fresh.execute("BEGIN")
        for (seq, (row, found)), stems in zip(texts.items(), listed, strict=True):
            self._fresh.execute(
                SEARCH_QUERIES["add_words"], (seq, found.text, found.repeated, found.frequent)
            )
            expected = stems, found.text, seq, row.created_at, row.id_key, *found.scores
            if there.get(seq) != expected:
                wrong.add(seq)
                report.add(Check.SEARCH, f"{_name_of(row)}: its text is missing or different")
        for seq, words in self._fresh.execute(VERIFY["occurrences"]):
            if seq not in wrong:
                self._expected[seq] = texts[seq][0].id, words
        self._fresh.execute("ROLLBACK")

    def finish(self, report: Report) -> None:
        if self.is_current:
            for seq, words in self._db.execute(VERIFY["occurrences"]):
                if seq in self._expected and self._expected[seq][1] == words:
                    del self._expected[seq]
            for id_, _ in self._expected.values():
                report.add(Check.SEARCH, f"event {id_.hex()}: its words are not those of its text")
        self._fresh.close()
        self._stems.close()


def hashes_of(db: sqlite3.Connection) -> Hashes:
    return Hashes(bytes.fromhex(db.execute(QUERIES["get_meta"], ("hash_key",)).fetchone()[0]))


def index_tags_of(db: sqlite3.Connection) -> frozenset[str]:
    """The names that the file's index has now."""
    kept = db.execute(QUERIES["get_meta"], ("index_tags",)).fetchone()
    return frozenset(orjson.loads(kept[0])) if kept else frozenset()


def pages(db: sqlite3.Connection) -> Iterator[list[Row]]:
    """All rows, in order of seq."""
    seq = 0
    while page := [Row(*row) for row in db.execute(VERIFY["rows_after"], (seq, _PAGE))]:
        seq = page[-1].seq
        yield page


def rows_of(db: sqlite3.Connection, seqs: Iterable[int]) -> list[Row]:
    listed = orjson.dumps(list(seqs)).decode()
    return [Row(*row) for row in db.execute(VERIFY["rows_of"], (listed,))]


def _highest_version(event: Event) -> int:
    """By whichever policy it was stored: a repair deletes what a tombstone refuses."""
    return max(version_of(event, keep) for keep in (Keep.LATEST, Keep.LATEST_TS))


class _Suspect(NamedTuple):
    """An event in a group that the tombstone of a kind 5 refuses. One with the `h` of another group
    leaves a tombstone but deletes nothing here (N09-14), and it may be gone since."""

    author: str
    created_at: int
    group: str
    names: tuple[Reference, ...]
    """By which a kind 5 may name it."""

    def is_reached(self, name: Reference, deleted_at: int) -> bool:
        """A deletion by address reaches only what is not newer than itself (N09-04)."""
        return name[0] == "e" or self.created_at <= deleted_at


def _suspect_of(event: Event, slot: Slot | None, group: str | None) -> _Suspect:
    address = () if slot is None else (("a", address_target(slot)[2:]),)
    return _Suspect(event.pubkey, event.created_at, group or "", (("e", event.id), *address))


def _without_kind_5(found: Found) -> Found:
    """The tombstones that hold in every group."""
    certain = Found(0)
    for target, stones in found.tombstones.items():
        certain.tombstones[target] = [stone for stone in stones if stone.why != "kind 5"]
    return certain


def _name_of(row: Row) -> str:
    return f"event {row.id.hex()} (row {row.seq})"
