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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from relay.access.quotas import recipients_of
from relay.errors import StoreFault, StoreVersion
from relay.groups.group import Groups, Replay
from relay.lifecycle.rows import LONG_EXPIRED, Keep, slot_of
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.keys import are_signed
from relay.storage.hashes import id_key
from relay.storage.sqlite.connections import fault_of, file_connection
from relay.storage.sqlite.deletion_check import DeletionCheck
from relay.storage.sqlite.group_tables import tables_of
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.opening import APPLICATION_ID, SCHEMA_VERSION, check_schema, check_values
from relay.storage.sqlite.row_check import (
    Row,
    RowCheck,
    hashes_of,
    index_tags_of,
    name_of,
    pages,
    rows_of,
)
from relay.storage.sqlite.search_check import SearchCheck, search_snapshot
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY
from relay.storage.sqlite.tag_functions import add_functions
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.storage.sqlite.row_check import Rules

    TagRow = tuple[int, int, int, int]
    """hash, created_at, id_key, class of the kind"""

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
    PARTITION = "partition"
    """Rows are in the partition of their group, or are being moved there."""
    TOMBSTONE = "tombstone"
    """Nothing is stored that was deleted."""
    SEARCH = "search"
    """Searchable texts are in the index."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    text: str


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


def verify(path: Path, rules: Rules, now: int, note: Callable[[int, int], None]) -> Report:
    """`note` gets the number of rows done, and of all. Raises StoreFault, StoreVersion.

    Needs no lock; until it returns, the WAL of a running relay is not truncated.
    """
    try:
        with ExitStack() as stack:
            # Read first: all that it has indexed is in the later snapshot of the store.
            search = search_snapshot(path)
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
    db = file_connection(path)
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


class _Verification:
    def __init__(
        self, db: sqlite3.Connection, search: sqlite3.Connection | None, rules: Rules, now: int
    ) -> None:
        self._db = db
        self._rules = rules
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
        self._partitioned: dict[str, set[bool]] = {}
        """Group → whether rows of it have its partition, of kinds that may have one."""
        self._deletions = DeletionCheck(db, self._hashes)
        self._received: dict[str, list[int]] = {}
        self._replay = Replay(Groups(), rules.relay_pubkey)
        kept = db.execute(QUERIES["get_meta"], ("head",)).fetchone()
        head = max(self._newest, kept[0] if kept else 0)
        self.report = Report(events=self._total)
        self._search: SearchCheck | None = None
        if search is not None:
            found = partial(self.report.add, Check.SEARCH)
            self._search = SearchCheck(search, self._hashes, rules, now, head, found)
            self.report.is_search_checked = self._search.is_current

    def run(self, note: Callable[[int, int], None]) -> Report:
        self._check_file()
        self._check_rows(note)
        for row in self._deletions.deleted_suspects():
            self._report_deleted(row)
        for (slot,) in self._db.execute(VERIFY["shared_slots"]):
            self.report.shared_slots.append(slot)
            seqs = [str(row[0]) for row in self._db.execute(VERIFY["rows_of_slot"], (slot,))]
            self.report.add(Check.SLOT, f"rows {', '.join(seqs)}: all in one slot")
        self._check_versions()
        self._check_tags()
        self._check_sizes()
        self._check_groups()
        self._check_partitions()
        if self._search is not None:
            self._search.finish()
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
                    event = self._check.event_in(row.raw)
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
        self.report.add(check, f"{name_of(row)}: {why}")

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
            if row.grp is not None and self._check.partition_of(event, row.grp):
                self._partitioned.setdefault(row.grp, set()).add(row.partition != 0)
            for tag in self._tags_of(event, row.partition):
                if row.seq <= self._tags_upto:
                    self._tags[row.seq] ^= hash(tag)
                else:
                    self._late_tags.setdefault(row.seq, set()).add(tag)
            if event.kind == kinds.DELETION:
                self._deletions.note(event)
            for recipient in recipients_of(event):
                grown = self._received.setdefault(recipient, [0, 0])
                grown[0] += 1
                grown[1] += len(row.raw)
        for row in self._deletions.deleted(known, slots):
            self._report_deleted(row)
        events = (event for row, event in known if row.expires_at != LONG_EXPIRED)
        self._replay.add(events)
        if self._search is not None:
            self._search.check(known)

    def _tags_of(self, event: Event, partition: int) -> set[TagRow]:
        hashes = self._hashes.of_event(event, self._index_tags)
        return _tag_rows(event, hashes, (partition,))

    def _report_columns(self, row: Row, right: Row) -> None:
        self.report.misplaced.append(row.seq)
        wrong = [name for name in Row._fields if getattr(row, name) != getattr(right, name)]
        if "slot" in wrong:
            wrong.remove("slot")
            self.report.add(Check.SLOT, f"{name_of(right)}: not in the slot of its versions")
        if "grp" in wrong:
            wrong.remove("grp")
            said = "in no group" if row.grp is None else f"in the group {row.grp!r}"
            self.report.add(
                Check.GROUP, f"{name_of(right)}: {said}, and its event is of {right.grp!r}"
            )
        if wrong:
            self.report.add(Check.COLUMNS, f"{name_of(right)}: wrong in {', '.join(wrong)}")

    def _report_deleted(self, row: Row) -> None:
        self.report.tombstoned.append(row.seq)
        self.report.add(Check.TOMBSTONE, f"{name_of(row)}: was deleted, and is stored")

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
        is_gone = self._deletions.is_deleted_version(event, own, group)
        return "was deleted, and is stored" if is_gone else None

    # -- tables ---------------------------------------------------------------------------------

    def _check_tags(self) -> None:
        tags, newest, upto = self._tags, self._newest, self._tags_upto
        surplus: Counter[int] = Counter()
        for hash_, created_at, key, seq, class_ in self._db.execute(VERIFY["all_tags"]):
            tag = hash_, created_at, key, class_
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
        for (seq,) in self._db.execute(VERIFY["tags_expiring_otherwise"]):
            self.report.add(Check.TAGS, f"row {seq}: expires at another time in the index")
        for seq, number in surplus.items():
            self.report.add(Check.TAGS, f"row {seq}: {number} in the index that it does not have")

    def _compare_tags(self, wrong: Sequence[int]) -> None:
        there: dict[int, set[TagRow]] = {seq: set() for seq in wrong}
        for hash_, created_at, key, seq, class_ in self._db.execute(VERIFY["all_tags"]):
            if seq in there:
                there[seq].add((hash_, created_at, key, class_))
        for row in rows_of(self._db, wrong):
            event, found = event_from_raw(row.raw), there.pop(row.seq)
            expected = self._tags_of(event, row.partition)
            # Of names that are no longer indexed they stay, in whichever partition the row was.
            every = {self._hashes.tag(tag[0], tag[1]) for tag in event.tags if len(tag) > 1}
            every -= self._hashes.of_event(event, self._index_tags)
            former = _tag_rows(event, every, (0, self._check.partition_of(event, row.grp)))
            missing, extra = len(expected - found), len(found - expected - former)
            if missing:
                self.report.add(Check.TAGS, f"{name_of(row)}: {missing} missing in the index")
            if extra:
                self.report.add(
                    Check.TAGS, f"{name_of(row)}: {extra} in the index that it does not have"
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

    def _check_partitions(self) -> None:
        for group, partition, guarded, is_moving in self._db.execute(VERIFY["partitions"]):
            rows = self._partitioned.pop(group, set[bool]())
            own = self._hashes.partition(group)
            if partition not in (None, own):
                self._report_partition(group, "has a partition that is not its own")
            elif partition is None and (guarded or True in rows):
                self._report_partition(group, "has no partition")
            elif not is_moving and rows - {bool(guarded)}:
                self._report_partition(group, "has rows that are not in the right partition")
        for group, rows in self._partitioned.items():
            if True in rows:
                self._report_partition(group, "has rows in a partition, and is none")

    def _report_partition(self, group: str, what: str) -> None:
        self.report.add(Check.PARTITION, f"group {group!r} {what}")

    def _check_groups(self) -> None:
        replayed = self._replay.groups()
        groups, members = tables_of(replayed)
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
        for group_id in sorted(replayed.ended.keys() - ended):
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


def _tag_rows(event: Event, hashes: Iterable[int], partitions: Iterable[int]) -> set[TagRow]:
    key = id_key(event.id)
    return {
        (hash_, event.created_at, key, kind_class(event.kind))
        for plain in hashes
        for partition in partitions
        for hash_ in [plain ^ partition]
    }
