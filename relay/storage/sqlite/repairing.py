"""Repairs the faults that `relay.storage.sqlite.verifying` has found, in one transaction.

Tables are rebuilt from the rows. A row whose event is wrong is passed to the caller, then deleted;
a row that had been deleted before is deleted without that.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from relay.access.quotas import recipients_of
from relay.errors import StoreFault
from relay.groups.group import Groups, Replay
from relay.lifecycle.rows import LONG_EXPIRED
from relay.lifecycle.versions import is_older
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.storage.hashes import id_key
from relay.storage.rows import stored
from relay.storage.sqlite.connections import connection, fault_of, index_path
from relay.storage.sqlite.group_tables import tables_of
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.partitions import UNPARTITIONED
from relay.storage.sqlite.row_check import RowCheck, hashes_of, index_tags_of, pages, rows_of
from relay.storage.sqlite.sql.named import QUERIES
from relay.storage.sqlite.sql.named import VERIFY_QUERIES as VERIFY
from relay.storage.sqlite.sql.writes import insert
from relay.storage.sqlite.verifying import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.storage.sqlite.group_tables import MemberRow
    from relay.storage.sqlite.row_check import Row, Rules
    from relay.storage.sqlite.tag_kinds import TagRow
    from relay.storage.sqlite.verifying import Report

    TakeOut = Callable[[Sequence[tuple[int, str, bytes | str]]], None]
    """Gets (seq, why, raw) of rows to be removed; must store them durably before it returns."""

_TAGS_AT_ONCE: Final = 500_000
_MOST_TOLD: Final = 100
"""Keys of a group."""


def repair(
    path: Path, rules: Rules, report: Report, take_out: TakeOut, *, drops_records: bool = False
) -> list[str]:
    """Repair the file; returns a text for each repair. `take_out` gets the rows that are removed,
    except those that had been deleted before. `drops_records`: damaged records of groups are
    removed too, and who has rights again without them is told. The caller holds the folder's lock,
    and no connection is open. Raises StoreFault; then nothing is changed."""
    done: list[str] = []
    try:
        with closing(connection(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                if report.counts[Check.FILE]:
                    db.execute(VERIFY["rebuild_indices"])
                    done.append("indices of the file built again")
                _Repair(db, rules, report, take_out, done, drops_records).run()
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if report.counts[Check.SEARCH]:
            for ending in ("", "-wal", "-shm"):
                file = index_path(path)
                file.with_name(file.name + ending).unlink(missing_ok=True)
            done.append("index of texts removed: the next start builds it")
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
    except OSError as error:
        raise StoreFault(f"{path} was not repaired: {error}") from error
    return done


class _Repair:
    def __init__(
        self,
        db: sqlite3.Connection,
        rules: Rules,
        report: Report,
        take_out: TakeOut,
        done: list[str],
        drops_records: bool,  # noqa: FBT001
    ) -> None:
        self._db = db
        self._rules = rules
        self._report = report
        self._take_out = take_out
        self._done = done
        self._check = RowCheck(db, rules)
        self._drops_records = drops_records
        self._unsure: set[str] = set()
        """Groups with a damaged record."""

    def run(self) -> None:
        db, report = self._db, self._report
        newest = db.execute(QUERIES["newest_seq"]).fetchone()[0] or 0
        kept = db.execute(QUERIES["get_meta"], ("head",)).fetchone()
        head = max(newest, kept[0] if kept else 0)
        self._fix_columns()
        removed = self._remove_broken() + self._remove_superseded() + self._remove_deleted()
        if removed:
            db.execute(QUERIES["put_meta"], ("head", head))
        removed += self._remove_versions()
        is_changed = bool(removed or report.misplaced)
        if is_changed or report.counts[Check.SIZES]:
            self._rebuild_sizes()
        if is_changed or report.counts[Check.GROUPS]:
            self._rebuild_groups()
        is_changed = is_changed or bool(
            report.counts[Check.GROUPS] + report.counts[Check.PARTITION]
        )
        if is_changed:
            self._place_rows()
        if is_changed or report.counts[Check.TAGS]:
            self._rebuild_tags(head)

    def _fix_columns(self) -> None:
        rows = rows_of(self._db, self._report.misplaced)
        for row in rows:
            right, _ = self._check.corrected(row, event_from_raw(row.raw))
            self._db.execute(VERIFY["fix_row"], (*right[1:-1], row.seq))
        if rows:
            self._done.append(f"columns of {_rows(len(rows))} set to what their events say")

    def _remove_broken(self) -> int:
        why = self._report.broken
        broken = rows_of(self._db, why)
        records = [row for row in broken if row.kind in kinds.GROUP_RECORDS]
        self._unsure = {row.grp for row in records if row.grp is not None}
        rows = [row for row in broken if self._drops_records or row not in records]
        if rows:
            self._take_out([(row.seq, why[row.seq], row.raw) for row in rows])
            self._delete([row.seq for row in rows])
            self._done.append(f"{_rows(len(rows))} with a wrong id or signature moved out")
        if records and not self._drops_records:
            groups = ", ".join(sorted({repr(row.grp) for row in records}))
            self._done.append(
                f"{_rows(len(records))} left in place, records of {groups}: without them a member"
                " who was removed could be one again; restore a backup; without one:"
                " --drop-records"
            )
        return len(rows)

    def _remove_superseded(self) -> int:
        """Of several rows in one slot, keep the one that the others would not have replaced."""
        leaving: list[tuple[int, str, bytes | str]] = []
        for (slot,) in self._db.execute(VERIFY["shared_slots"]).fetchall():
            rows = [stored(row) for row in self._db.execute(VERIFY["rows_of_slot"], (slot,))]
            best = rows[0]
            keep = self._rules.keep.keep_of(best.event)
            for row in rows[1:]:
                if not is_older(row.event, row.version, keep, best, self._rules.keep.tie):
                    best = row
            leaving += [
                (row.seq, f"superseded by {best.event.id}", row.event.raw)
                for row in rows
                if row is not best
            ]
        if leaving:
            self._take_out(leaving)
            self._delete([seq for seq, _, _ in leaving])
            self._done.append(f"{_rows(len(leaving))} that others supersede moved out")
        return len(leaving)

    def _remove_deleted(self) -> int:
        """Delete rows that a tombstone refuses. Not passed to the caller: their texts must not be
        kept anywhere."""
        seqs = self._report.tombstoned
        if seqs:
            self._delete(seqs)
            self._done.append(f"{_rows(len(seqs))} deleted that had been deleted before")
        return len(seqs)

    def _remove_versions(self) -> int:
        """Delete wrong old versions. Not passed to the caller: a newer version replaced them, and
        they may have been deleted."""
        import orjson

        seqs = orjson.dumps(self._report.wrong_versions).decode()
        removed = self._db.execute(QUERIES["delete_old"], (seqs,)).rowcount
        # And the old versions of records that the repair has deleted.
        removed += self._db.execute(VERIFY["delete_lost_versions"]).rowcount
        if removed:
            self._done.append(f"{removed} old version{'' if removed == 1 else 's'} deleted")
        return removed

    def _delete(self, seqs: Collection[int]) -> None:
        import orjson

        self._db.execute(QUERIES["delete_events"], {"seqs": orjson.dumps(list(seqs)).decode()})

    def _place_rows(self) -> None:
        """Without `partition_moves`; the tags are built again after it."""
        import orjson

        db, hashes = self._db, hashes_of(self._db)
        db.create_function("partition_of", 1, hashes.partition, deterministic=True)
        db.execute(VERIFY["place_groups"])
        apart = {"apart": orjson.dumps([*UNPARTITIONED]).decode()}
        moved = db.execute(VERIFY["place_rows"], apart).rowcount
        db.execute(VERIFY["empty_moves"])
        if moved:
            self._done.append(f"{_rows(moved)} moved to the right partition")

    def _rebuild_tags(self, head: int) -> None:
        db, hashes, names = self._db, hashes_of(self._db), index_tags_of(self._db)
        db.execute(VERIFY["empty_tags"])
        tags: list[TagRow] = []

        def flush() -> None:
            tags.sort()  # neighbouring rows are on the same pages
            db.executemany(insert("tags", 6, 1), tags)
            tags.clear()

        for page in pages(db):
            for row, event in self._events(page):
                key = id_key(event.id)
                tags += [
                    (hash_, kind_class(event.kind), event.created_at, key, row.seq, row.expires_at)
                    for plain in hashes.of_event(event, names)
                    for hash_ in [plain ^ row.partition]
                ]
            if len(tags) > _TAGS_AT_ONCE:
                flush()
        flush()
        db.execute(QUERIES["put_meta"], ("tags_upto", head))
        self._done.append("index of tags built again")

    def _rebuild_sizes(self) -> None:
        db = self._db
        db.execute(VERIFY["empty_sizes"])
        db.execute(VERIFY["count_sizes"])
        db.execute(VERIFY["empty_received"])
        for page in pages(db):
            for row, event in self._events(page):
                for recipient in recipients_of(event):
                    db.execute(QUERIES["add_received"], (recipient, 1, len(row.raw)))
        self._done.append("totals of sizes counted again")

    def _rebuild_groups(self) -> None:
        db, replay = self._db, Replay(Groups(), self._rules.relay_pubkey)
        for page in pages(db):
            left = [row for row in page if row.expires_at != LONG_EXPIRED]
            replay.add([event for _, event in self._events(left)])
        groups = replay.groups()
        flags, members = tables_of(groups)
        if self._drops_records:
            self._tell_widened(flags, members)
        elif self._unsure:
            members = self._narrowed(flags, members)
        db.execute(VERIFY["empty_groups"])
        db.execute(VERIFY["empty_members"])
        there = {row[0] for row in db.execute(VERIFY["groups"])}
        for group_id, (guarded, hidden) in flags.items():
            db.execute(QUERIES["put_group"], (group_id, guarded, hidden, False, None))
        for group_id in groups.ended.keys() - there:
            # Its last members are not known any more: only owners may read its 9008.
            db.execute(QUERIES["put_group"], (group_id, True, True, True, None))
        db.executemany(QUERIES["put_member"], [(key, grp, admin) for key, grp, admin in members])
        self._done.append("groups and members taken from a replay of the log")

    def _narrowed(
        self, flags: dict[str, tuple[Any, ...]], members: set[MemberRow]
    ) -> set[MemberRow]:
        """The members that the tables have too, of groups with a damaged record; `flags` get what
        the tables have. What the record took away, or made private, must not come back."""
        noted = {row[0]: row[1:3] for row in self._db.execute(VERIFY["groups"]) if not row[3]}
        for id_ in self._unsure & (flags.keys() | noted.keys()):
            told, kept = flags.pop(id_, (False, False)), noted.get(id_)
            if kept is not None:
                flags[id_] = told[0] or kept[0], told[1] or kept[1]
        there = {
            (key, grp): is_admin
            for key, grp, is_admin in self._db.execute(VERIFY["members"])
            if grp in self._unsure
        }
        return {
            (key, grp, is_admin and there.get((key, grp), True))
            for key, grp, is_admin in members
            if grp not in self._unsure or (key, grp) in there
        }

    def _tell_widened(self, flags: dict[str, tuple[Any, ...]], members: set[MemberRow]) -> None:
        """Who may do more than the tables say."""
        noted = {row[0]: row[1:3] for row in self._db.execute(VERIFY["groups"]) if not row[3]}
        there = {tuple(row) for row in self._db.execute(VERIFY["members"])}
        for id_ in sorted(self._unsure & flags.keys()):
            if flags[id_] < noted.get(id_, (False, False)):
                self._done.append(f"group {id_!r} is no longer as private as it was")
            new = sorted(key.hex() for key, grp, _ in members - there if grp == id_)
            for key in new[:_MOST_TOLD]:
                self._done.append(
                    f"group {id_!r}: {key} has rights again; remove the key if it must not"
                )
            if len(new) > _MOST_TOLD:
                self._done.append(f"group {id_!r}: and {len(new) - _MOST_TOLD} more keys")

    def _events(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Event]]:
        """Without damaged records, which are left in place."""
        for row in rows:
            is_broken = row.seq in self._report.broken
            event = self._check.event_in(row.raw) if is_broken else event_from_raw(row.raw)
            if not isinstance(event, str):
                yield row, event


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"
