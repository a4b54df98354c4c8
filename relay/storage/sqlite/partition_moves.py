"""Moves rows between partitions: of groups that were made guarded, or open, some at a time.

The tags of a row are moved with it, so they must be in the table, not in its buffer. The groups
take turns; within a group the rows are in the order of kind and seq: none is looked at twice.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import StoreFault
from relay.storage.rows import event_in
from relay.storage.sqlite.kind_classes import kind_class
from relay.storage.sqlite.partitions import NO_GROUPS, UNPARTITIONED
from relay.storage.sqlite.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.storage.hashes import Hashes
    from relay.storage.sqlite.tag_kinds import TagRow

MOST_CHANGES: Final = 1536
"""Rows and tags that are moved in one transaction. One row may have more."""
MOST_LOOKED_AT: Final = 4096
"""Rows and kinds that are looked at in one transaction, also rows that stay where they are."""
MOST_S: Final = 0.02
"""How long a transaction may take, without its last steps and its commit."""
AT_ONCE: Final = 256
"""Rows and tags that are changed, or rows that are looked at, between two looks at the time: 2 to 4
ms while their pages are in memory."""
_MOST_SLICES: Final = 8
"""Slices of one turn of a group: so many small groups are done one after the other. The reads of
everybody look into the groups that were opened until these are done."""
_PER_GROUP: Final = 8
"""Rows that the start of a group counts for."""
MOST_BYTES: Final = 1 << 20
"""Bytes of the rows that are moved in one transaction: each is written again."""
_MOST_CLOSED: Final = 4_096
"""Groups in `PartitionMoves.closed`: queries look each up, some 0.5 us each."""


class PartitionMoves:
    """Moves rows on the connection that writes."""

    def __init__(
        self,
        db: sqlite3.Connection,
        hashes: Hashes,
        index_tags: frozenset[str],
        guarded: Mapping[str, int],
    ) -> None:
        """`guarded`: group → partition, as far as is committed."""
        self._db = db
        self._hashes = hashes
        self._index_tags = index_tags
        self._guarded = guarded
        self._last = ""
        """The group that had its turn last."""
        self._is_outdated = False
        """Whether `are_left` and `closed` have to be looked up again."""
        self._slices = 0
        """Slices of the turn that has not ended."""
        self.moved = 0
        """Number of moved rows, also of a transaction that was rolled back."""
        self.are_left = False
        """Whether rows of any group may be in the wrong partition, as far as is committed."""
        self.closed = NO_GROUPS
        """Guarded groups with rows in the wrong partition, or some of these groups, as a JSON list:
        reads pass over the rows that are not moved yet, in the index. Set after
        `Writer.group_changes`: a read that has groups of a later commit than its partitions is made
        again."""
        self.note_committed()

    def note_committed(self) -> None:
        """After a commit that may change which groups have rows to move. The commit stands, so
        this raises nothing."""
        self._is_outdated, self.are_left, self.closed = True, True, NO_GROUPS
        with suppress(sqlite3.Error):  # then the next slice looks again
            self.are_left = self._db.execute(QUERIES["has_moves"]).fetchone() is not None
            if self.are_left:
                groups = self._db.execute(QUERIES["closed_moves"], (_MOST_CLOSED,)).fetchall()
                # SQLite cuts texts from JSON at a NUL.
                self.closed = orjson.dumps([grp for (grp,) in groups if "\0" not in grp]).decode()
            self._is_outdated = False

    def note_moved(self) -> None:
        """After the commit of `move_some`."""
        if self._is_outdated:
            self.note_committed()

    def move_some(self, upto: int, times: int = 1) -> list[TagRow] | None:
        """In a transaction: the tags that the table gets; None: no group can be moved now. `upto`:
        the table has all tags of the rows up to this seq. `times`: so many times as much as while a
        relay runs."""
        slice_ = _Slice(times)
        tags: list[TagRow] | None = None
        while not slice_.is_full():
            turn = self._next_turn(upto)
            if turn is None:
                break
            slice_.looked_at += _PER_GROUP
            tags = (tags or []) + self._move_group(*turn, slice_)
            self._slices += 1
            if self._slices >= _MOST_SLICES or not slice_.is_full():  # then the group is done
                self._last, self._slices = turn[0], 0
        return tags

    def _next_turn(self, upto: int) -> tuple[str, int, int, int] | None:
        """group, kind and seq of the row that was looked at last, seq of the last one."""
        for after in (self._last, ""):
            turn: tuple[str, int, int, int] | None
            turn = self._db.execute(QUERIES["next_move"], (after, upto)).fetchone()
            if turn is not None:
                return turn
        return None

    def _move_group(
        self, group: str, kind: int, seq: int, upto: int, slice_: _Slice
    ) -> list[TagRow]:
        db = self._db
        partition = self._guarded.get(group, 0)
        added: list[TagRow] = []
        while not slice_.is_full():
            seq, are_left = self._move_rows((group, kind, seq, upto), partition, slice_, added)
            if are_left and not slice_.is_full():
                continue
            if slice_.is_full():
                db.execute(QUERIES["put_move"], (kind, seq, group))
                return added
            following = db.execute(QUERIES["kind_after"], (group, kind)).fetchone()[0]
            while following in UNPARTITIONED:
                following = db.execute(QUERIES["kind_after"], (group, following)).fetchone()[0]
            if following is None:
                db.execute(QUERIES["drop_move"], (group,))
                self._is_outdated = True
                if not partition:
                    self._close(group)
                return added
            kind, seq = following, 0
            slice_.looked_at += 1
        return added

    def _close(self, group: str) -> None:
        """Drop the partition of an opened group: it is empty, unless it has damaged rows."""
        of = (self._hashes.partition(group),)
        if self._db.execute(QUERIES["has_rows_in"], of).fetchone() is None:
            self._db.execute(QUERIES["set_partition"], (None, group))

    def _move_rows(
        self, of: tuple[str, int, int, int], partition: int, slice_: _Slice, added: list[TagRow]
    ) -> tuple[int, bool]:
        """Some rows of one kind. seq of the one that was looked at last, and whether there may be
        more. `added`: gets their tags."""
        group, kind, seq, upto = of
        asked = {"grp": group, "kind": kind, "seq": seq, "upto": upto, "partition": partition}
        moved: list[int] = []
        before: list[tuple[int, int, int, int, int]] = []
        after: list[TagRow] = []
        slice_.begin_step()
        rows = self._db.execute(QUERIES["rows_to_move"], asked)
        for seq, at, key, expires_at, former, raw in rows:
            slice_.looked_at += 1
            hashes = None if raw is None else self._hashes_of(raw)
            if hashes is not None:
                moved.append(seq)
                class_ = kind_class(kind)
                before += [(plain ^ former, class_, at, key, seq) for plain in hashes]
                after += [(plain ^ partition, class_, at, key, seq, expires_at) for plain in hashes]
                slice_.changes += 1 + len(hashes)
                slice_.size += len(raw)
            if slice_.ends_step():
                are_left = True
                break
        else:
            are_left = False
        rows.close()  # before what it reads is changed
        if moved:
            before.sort()
            after.sort()
            seqs = orjson.dumps(moved).decode()
            self._db.execute(QUERIES["set_row_partitions"], (partition, seqs))
            self._db.executemany(QUERIES["delete_tag"], before)
            self._db.executemany(QUERIES["add_tag"], after)
            added += after
            self.moved += len(moved)
        return seq, are_left

    def _hashes_of(self, raw: bytes) -> set[int] | None:
        """The hashes of its tags; None: the row is damaged, and stays where it is."""
        try:
            return self._hashes.of_event(event_in(raw), self._index_tags)
        except StoreFault:
            return None


class _Slice:
    """What one transaction has done, in steps."""

    def __init__(self, times: int) -> None:
        self.looked_at = 0
        self.changes = 0
        self.size = 0
        self._until = monotonic() + MOST_S * times
        self._at_once = AT_ONCE * times
        self._max_looked_at = MOST_LOOKED_AT * times
        self._max_changes = MOST_CHANGES * times
        self._max_bytes = MOST_BYTES * times
        self._most_looked_at = self._most_changes = 0

    def begin_step(self) -> None:
        self._most_looked_at = min(self.looked_at + self._at_once, self._max_looked_at)
        self._most_changes = min(self.changes + self._at_once, self._max_changes)

    def ends_step(self) -> bool:
        return (
            self.changes >= self._most_changes
            or self.looked_at >= self._most_looked_at
            or self.size >= self._max_bytes
        )

    def is_full(self) -> bool:
        return (
            self.changes >= self._max_changes
            or self.looked_at >= self._max_looked_at
            or self.size >= self._max_bytes
            or (self.changes > 0 and monotonic() >= self._until)
        )
