"""Opening the file: which program made it, its schema version, its tag index."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from contextlib import closing
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import RookeryError, StoreFault, StoreVersion
from relay.storage.hashes import Hashes
from relay.storage.rows import DAMAGED, event_in
from relay.storage.sqlite.compacting import unfinished
from relay.storage.sqlite.connections import MAX_VALUE, connection, fault_of, index_path
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.partition_moves import PartitionMoves
from relay.storage.sqlite.partitions import FIRST_ROW
from relay.storage.sqlite.sql.moving import LOG_SCRIPT
from relay.storage.sqlite.sql.named import FILES, QUERIES
from relay.storage.sqlite.sql.value_types import KEYS, columns_of, rows_of_another_type
from relay.storage.sqlite.wal import check_log

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.filters import FilterTerms
    from relay.storage.sqlite.tag_buffer import TagBuffer
    from relay.storage.sqlite.tag_kinds import TagRow

_log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 15
APPLICATION_ID: Final = 0x526F6F6B  # "Rook"
_PLACING: Final = 2
"""`unplaced` in `meta` while rows are moved. 1: not begun."""
_TIMES: Final = 32
"""A transaction of a start moves so many times as much as one of a running relay: for 0.6 s."""
_TELL_S: Final = 10.0
_COMMENT: Final = re.compile(r"--[^\n\0]*")
_SPACE: Final = re.compile(r"[ \n]+")
_ROUND_MARKS: Final = re.compile(r" ?([(),]) ?")


def fill_tag_buffer(
    db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms, tag_buffer: TagBuffer
) -> None:
    """Restore the tags of rows after `tags_upto`, which the table may lack after a crash."""
    tag_buffer.add(*_tags_after(db, hashes, terms))


def _tags_after(
    db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms
) -> tuple[list[TagRow], dict[int, int]]:
    """The tags of rows after `tags_upto`, and seq → partition of those that have one."""
    tags: list[TagRow] = []
    partitions: dict[int, int] = {}
    for seq, at, key, kind, expires_at, raw, partition in db.execute(
        QUERIES["rows_after"], (_needed(db, "tags_upto"),)
    ):
        if partition:
            partitions[seq] = partition
        for plain in hashes.of_event(event_in(raw), terms.index_tags):
            hash_ = plain ^ partition
            tags.append((hash_, kind_class(kind), at, key, seq, expires_at))
    return tags, partitions


def open_file(
    path: Path, terms: FilterTerms, synchronous: str
) -> tuple[sqlite3.Connection, Hashes, int]:
    try:
        for file in (path, index_path(path)):
            unfinished(file).unlink(missing_ok=True)
        # Private events must not be readable by other users; -wal and -shm get the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        check_log(path)
        db = connection(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise StoreFault(f"{path}: {error}; check the folder and its permissions") from error
    except sqlite3.Error as error:
        raise fault_of(error, path) from error
    try:
        _migrate(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'NORMAL' if synchronous == 'NORMAL' else 'FULL'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        # Read before the checkpoint, which fails as the first statement after ALTER TABLE.
        key = bytes.fromhex(_needed(db, "hash_key"))
        # After a crash it may hold texts that were deleted.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        hashes = Hashes(key)
        _index_new_tags(db, hashes, terms)
        head = _head_of(db)
        _place_groups(db, hashes, terms, head)
        return db, hashes, head
    except sqlite3.Error as error:
        db.close()
        raise fault_of(error, path) from error
    except (ValueError, TypeError) as error:  # a value of `meta` of another type
        db.close()
        raise StoreFault(f"{path}: {DAMAGED}") from error
    except RookeryError:
        db.close()
        raise


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Checks the schema of a file from a backup, before anything else of it is read: a trigger
    could undo deletions, an expression in an index or a CHECK could run for ever.

    Raises StoreVersion when the file has a trigger, view, table, index or constraint that neither a
    version of Rookery nor ANALYZE makes, and StoreFault when it lacks one of the current schema.
    """
    needed, known = _schemas()
    there = _objects(db)
    for kind, name, _ in sorted(there - known, key=str):
        raise StoreVersion(
            f"{path} has {name!r} ({kind}) of somebody else: use another backup, or drop it"
        )
    if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
        for kind, name, _ in sorted(needed - there):
            raise StoreFault(f"{path} lacks {name!r} ({kind}): use another backup")


def check_values(db: sqlite3.Connection, path: Path | str) -> None:
    """Checks the types of all values except events; reads all rows. Raises StoreFault, naming table
    and row, for a value of another type than its column has, or of over MAX_VALUE bytes."""
    for table in KEYS:
        columns = db.execute(columns_of(table)).fetchall()
        if not columns:  # of a later schema
            continue
        row = db.execute(rows_of_another_type(table, columns, MAX_VALUE)).fetchone()
        if row is not None:
            named = " ".join([str(key)[:80] for key in row])
            raise StoreFault(
                f"{path}: table {table}, row {named}: a value of a wrong type or of over"
                f" {MAX_VALUE:,} bytes: use another backup"
            )
    for (name,) in db.execute(QUERIES["wrong_meta"]):
        raise StoreFault(
            f"{path}: table meta, row {name}: a value of a wrong type: use another backup"
        )


def _objects(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """(kind, name, SQL) of each object in the schema. Without comments, because a file has those of
    the version that made it, and without spaces that ALTER TABLE leaves."""
    return {(kind, name, _plain(text or "")) for kind, name, text in db.execute(QUERIES["objects"])}


def _plain(sql: str) -> str:
    return _ROUND_MARKS.sub(r"\1", _SPACE.sub(" ", _COMMENT.sub("", sql))).strip(" ")


@cache
def _schemas() -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
    """What each file of the present schema has, and all that files of any schema may have."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(FILES.script("schema.sql"))
        needed = _objects(db)
        db.executescript(LOG_SCRIPT)
        known = _objects(db)
        known.update(db.execute(QUERIES["statistics"]))
        for statement in FILES.script("former.sql").split(";"):
            db.execute(statement)
            known |= _objects(db)
        return needed, known


def _needed(db: sqlite3.Connection, name: str) -> Any:
    """A value of `meta` that every store has. Raises StoreFault."""
    row = db.execute(QUERIES["get_meta"], (name,)).fetchone()
    if row is None:
        file = db.execute("PRAGMA database_list").fetchone()[2]
        raise StoreFault(f"{file} has no {name}; {DAMAGED}")
    return row[0]


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Create or migrate the tables. Raises StoreVersion for a file that is not a store's."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute(QUERIES["count_tables"]).fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _run(db, FILES.script("schema.sql"), SCHEMA_VERSION)
        return
    if application != APPLICATION_ID:
        raise StoreVersion(f"{path} is a database of another program; move it away")
    if version > SCHEMA_VERSION:
        raise too_new(path, version)
    check_schema(db, path)
    # Statistics of an ANALYZE: they would change plans, and they contain values of rows, which
    # would remain after these are deleted.
    db.executescript(QUERIES["drop_statistics"])
    for step in range(version + 1, SCHEMA_VERSION + 1):
        _run(db, FILES.migration(step), step)


def too_new(path: Path, version: int) -> StoreVersion:
    return StoreVersion(
        f"{path} has schema {version}, this Rookery knows up to {SCHEMA_VERSION}:"
        " run the newer version that wrote it, or export there and import here"
    )


def _run(db: sqlite3.Connection, script: str, version: int) -> None:
    db.executescript(
        f"BEGIN IMMEDIATE; {script};"
        f" PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; COMMIT;"
    )


def _head_of(db: sqlite3.Connection) -> int:
    """seq of the newest row ever committed."""
    kept = db.execute(QUERIES["get_meta"], ("head",)).fetchone()
    newest = db.execute(QUERIES["newest_seq"]).fetchone()[0]
    return max(kept[0] if kept else 0, newest or 0)


def _place_groups(db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms, head: int) -> None:
    """Move all rows of groups that were written without regard to partitions: by an earlier
    version, or by `rookery move`. Reads would fetch and pass over them. A start that was ended
    meanwhile is continued.
    """
    kept = db.execute(QUERIES["get_meta"], ("unplaced",)).fetchone()
    if kept is None:
        return
    groups = db.execute(QUERIES["groups_to_place"]).fetchall()
    guarded = {group: hashes.partition(group) for group, is_guarded in groups if is_guarded}
    if kept[0] != _PLACING:
        db.execute("BEGIN IMMEDIATE")
        # The moves need all tags in the table, and a crash leaves it without the newest.
        tags, _ = _tags_after(db, hashes, terms)
        db.executemany(QUERIES["add_tag"], tags)
        db.execute(QUERIES["put_meta"], ("tags_upto", head))
        db.executemany(QUERIES["set_partition"], [(part, group) for group, part in guarded.items()])
        db.executemany(QUERIES["move_group"], [(group, *FIRST_ROW, head) for group, _ in groups])
        db.execute(QUERIES["put_meta"], ("unplaced", _PLACING))
        db.execute("COMMIT")
    moves = PartitionMoves(db, hashes, terms.index_tags, guarded)
    db.execute("PRAGMA wal_autocheckpoint = 4000")
    ((synchronous,),) = db.execute("PRAGMA synchronous").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")  # what a crash takes back is moved again
    told_at = monotonic()
    while moves.are_left:
        db.execute("BEGIN IMMEDIATE")
        moved = moves.move_some(head, _TIMES)
        db.execute("COMMIT")
        moves.note_moved()
        if moved is None:  # what is left is moved while the relay runs
            break
        if monotonic() - told_at >= _TELL_S:
            told_at = monotonic()
            _log.info("upgrade: %d messages of private groups are moved", moves.moved)
    db.execute(QUERIES["drop_meta"], ("unplaced",))
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _index_new_tags(db: sqlite3.Connection, hashes: Hashes, terms: FilterTerms) -> None:
    """Index stored rows by tag names that are new in `[storage] index_tags`."""
    kept = db.execute(QUERIES["get_meta"], ("index_tags",)).fetchone()
    known = frozenset(orjson.loads(kept[0])) if kept else None
    if known == terms.index_tags:
        return
    db.execute("BEGIN IMMEDIATE")
    new = terms.index_tags - known if known is not None else frozenset()
    if new:
        for seq, at, key, kind, expires_at, raw, partition in db.execute(QUERIES["all_rows"]):
            for name in new:
                db.executemany(
                    QUERIES["add_tag"],
                    [
                        (hash_, kind_class(kind), at, key, seq, expires_at)
                        for value in event_in(raw).tag_values(name)
                        for hash_ in [hashes.tag(name, value) ^ partition]
                    ],
                )
    # Entries of names that are no longer indexed stay: harmless, and completed if the name is
    # indexed again.
    names = orjson.dumps(sorted(terms.index_tags)).decode()
    db.execute(QUERIES["put_meta"], ("index_tags", names))
    db.execute("COMMIT")
