"""`rookery move`: copies one store to another, while its relay writes.

Triggers of the move keep a log in the source of all later changes and deletions. Rows are copied in
the order of their seq; a line of the log only names entries to copy again, so that it may be
applied twice. The target stores the progress, so that a killed move can continue.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from relay.errors import StoreFault, UserError
from relay.lifecycle.rows import LONG_EXPIRED, Lookups, Replaced, WritePlan
from relay.storage.rows import stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from relay.lifecycle.rows import Found
    from relay.storage import Appender

_ROWS: Final = 1_000
_LINES: Final = 500
_OLD_ROWS: Final = 100
_FEW: Final = 200
"""Rows and log lines that may be left for the switch."""
_MOST_LEFT: Final = 2_000
"""As `_FEW`, if a round leaves no less than the one before: this much is written during each."""
_MAX_CAUGHT_UP: Final = 1_000_000
_NO_LOOKUPS: Final = Lookups(frozenset(), frozenset(), frozenset())
_ALL_OF_SLOT: Final = 2**31

Value = str | bytes | int | None
Entry = tuple[Value, ...]
"""A row of one of the TABLES."""
Row = tuple[int, bytes, str | None, bool, int | None, int, int | None]
"""seq, raw, group, quiet, 1 if it has a slot, version, expires_at."""
OldRow = tuple[int, bytes, str | None, bool, int | None, int, int | None, int, int | None]
"""As `Row`; replaced_at, drop_at."""


class Table(NamedTuple):
    name: str
    columns: Mapping[str, type]
    """name → type. Each store has its own form of `bool` and `str`."""
    keys: tuple[str, ...]
    """The columns that a line of the log names: all entries with these values are copied again."""
    logged_as: str = ""
    """The table whose log lines also stand for this one; empty: its own."""


_TOMBSTONE: Final = {"target": str, "by": str, "until": int, "why": str, "request": bytes}
_ERASURE: Final = {
    "request": bytes,
    "by": bytes,
    "kind": int,
    "at": int,
    "numbers": str,
    "ids": str,
}
TABLES: Final = (
    Table("tombstones", _TOMBSTONE, ("target", "by")),
    Table("erasures", _ERASURE, ("request",)),
    Table("groups", {"id": str, "guarded": bool, "hidden": bool, "ended": bool}, ("id",)),
    Table("members", {"pubkey": bytes, "grp": str, "admin": bool}, ("grp",), "groups"),
    Table("former_members", {"pubkey": bytes, "grp": str}, ("grp",), "groups"),
    Table("management", {"register": str, "item": str, "note": str}, ("register", "item")),
)
"""Copied besides rows and old versions."""
TOTALS: Final = (
    Table("sizes", {"pubkey": bytes, "kind": int, "grp": str, "events": int, "bytes": int}, ()),
    Table("received", {"recipient": str, "events": int, "bytes": int}, ()),
)
"""Sums that each store keeps itself: compared, not copied."""


class Line(NamedTuple):
    """A line of the log."""

    number: int
    table: str
    """`events`, `old_versions` or one of TABLES."""
    key: tuple[Any, ...]
    """seq, or the values of `Table.keys`."""


class Side(Protocol):
    """One store of a move: the methods beside `Appender.append` that it needs. They raise
    StoreFault."""

    name: str
    """Name for messages to the user."""

    async def check(self) -> None:
        """Whether each value has the type of its column. Raises StoreFault."""

    async def head(self) -> int: ...
    async def rows(self, after: int, limit: int) -> Sequence[Row]:
        """As `EventLog.since`."""

    async def old_rows(self, after: int, limit: int) -> Sequence[OldRow]:
        """Old versions in order of seq."""

    async def old_rows_at(self, seqs: Sequence[int]) -> Sequence[OldRow]: ...
    async def placed_at(self, seqs: Sequence[int]) -> Mapping[int, tuple[str | None, int | None]]:
        """seq → group and expires_at of those of these rows that are stored: all that changes in a
        row."""

    def entries(self, table: Table) -> AsyncIterator[Sequence[Entry]]:
        """All of them, in no order."""

    async def entries_at(self, table: Table, key: Sequence[Value]) -> Sequence[Entry]:
        """In the order of their values."""

    async def put(
        self, table: Table, keys: Collection[tuple[Value, ...]], entries: Sequence[Entry]
    ) -> None:
        """In one transaction, put these entries in place of those that `keys` names; other entries
        stay."""

    async def sizes(self) -> Sequence[tuple[int, int, int]]:
        """kind, events and bytes, as the totals have them, in order."""

    async def mark(self) -> str | None:
        """The mark that `set_mark` stored; None: there is none."""

    async def set_mark(self, text: str | None) -> None: ...
    async def settle(self) -> None:
        """After very many rows were added: update the statistics of the query planner."""

    async def tidy(self) -> None:
        """After a long snapshot: do the upkeep that it prevented."""

    async def begin_log(self) -> str:
        """Start a log, if there is none; returns its id."""

    async def lines(self, after: int, limit: int) -> Sequence[Line]: ...
    async def end_log(self) -> None: ...
    async def hold(self) -> bool:
        """Whether no other process writes, until `close`."""

    async def seal(self, text: str) -> None:
        """From now on no relay opens it; `text` says why."""

    def snapshot(self) -> AbstractAsyncContextManager[None]:
        """Inside, all reads see one state."""

    async def close(self) -> None: ...


class _Noted(msgspec.Struct):
    """The progress, stored in the target."""

    log: str
    line: int = 0
    old: int = 0
    """Old versions are copied up to this seq."""
    tables: int = 0
    """Number of TABLES that are copied."""
    checked_line: int = -1
    checked_seq: int = -1
    """Rows are compared up to this seq; -1: none yet."""
    done: bool = False


class Moved(NamedTuple):
    """Sums over the content, equal in both stores."""

    events: int
    bytes: int
    old_versions: int
    entries: Mapping[str, int]
    """Table → number of its entries."""
    digest: str
    """SHA-256 of all rows in their order, in hex."""


def is_unfinished(mark: str | None) -> bool:
    """Whether a store with this mark holds only a part of what is moved to it."""
    return mark is not None and not msgspec.json.decode(mark, type=_Noted).done


class Move:
    """A move from `source` to `target`, whose rows are written by `store`."""

    def __init__(
        self, source: Side, target: Side, store: Appender, noted: _Noted, head: int
    ) -> None:
        """Use `begun`."""
        self._source = source
        self._target = target
        self._store = store
        self._noted = noted
        self._head = head
        """seq of the newest row in the target."""

    @classmethod
    async def begun(cls, source: Side, target: Side, store: Appender) -> Move:
        """A new move, or one that continues. Raises UserError when the target has other content."""
        log = await source.begin_log()
        mark = await target.mark()
        if mark is None and not await _is_empty(target):
            raise UserError(
                f"{target.name} has events already: name an empty one, or drop its tables first"
            )
        noted = _Noted(log) if mark is None else msgspec.json.decode(mark, type=_Noted)
        if noted.log != log:
            raise UserError(
                f"{target.name} holds a part of another move: name an empty one, or drop its tables"
            )
        noted.done = False
        move = cls(source, target, store, noted, await target.head())
        await move._note()
        return move

    async def copy(self, note: Callable[[int, int], None]) -> None:
        """Copy everything except later changes; `note` is called with the seq reached and the
        newest seq."""
        while await self._step():
            note(self._head, await self._source.head())
        noted = self._noted
        while old := await self._source.old_rows(noted.old, _OLD_ROWS):
            await self._put_old([row[0] for row in old], old)
            noted.old = old[-1][0]
            await self._note()
        for table in TABLES[noted.tables :]:
            async for entries in self._source.entries(table):
                await self._target.put(table, (), entries)
            noted.tables += 1
            await self._note()
        if noted.checked_seq < 0:
            await self._target.settle()

    async def catch_up(self) -> None:
        """Copy and compare until little is left for `end`. Raises UserError when more is written
        than copied, StoreFault when the copies differ."""
        total = before = 0
        while total < _MAX_CAUGHT_UP:
            number = await self._round()
            if number <= _FEW or 0 < before <= number <= _MOST_LEFT:
                return
            total, before = total + number, number
        raise UserError("more is written than is copied: move when less is written")

    async def _round(self) -> int:
        """Copy and compare what was added in the source, as of one snapshot; returns the number of
        log lines and rows."""
        number = 0
        async with self._source.snapshot():
            while step := await self._step_in_snapshot():
                number += step
            if self._noted.checked_seq >= 0:
                await self._compare_new()
        return number

    async def verify(self) -> Moved:
        """Compare everything, of one state of the source. Raises StoreFault when they differ."""
        async with self._source.snapshot():
            while await self._step_in_snapshot():
                pass
            events, size, digest = await self._compare_rows(0)
            old = await self._compare_old()
            entries = {table.name: await self._compare(table) for table in TABLES}
            for table in TOTALS:
                await self._compare(table)
        await self._source.tidy()
        await self._note_compared()
        return Moved(events, size, old, entries, digest)

    async def end(self) -> None:
        """Copy and compare the rest, once nothing writes to the source. Raises StoreFault."""
        if self._noted.checked_seq < 0:
            raise StoreFault("the copy was never compared")
        while await self._step():
            pass
        await self._append(WritePlan(), await self._source.head())
        await self._compare_new()
        if await self._source.sizes() != await self._target.sizes():
            raise _differing("numbers of events by kind")
        self._noted.done = True
        await self._note()

    async def _note(self) -> None:
        await self._target.set_mark(msgspec.json.encode(self._noted).decode())

    # -- copying --------------------------------------------------------------------------------

    async def _step(self) -> int:
        """Returns the number of lines and rows; 0: there are no more."""
        async with self._source.snapshot():
            return await self._step_in_snapshot()

    async def _step_in_snapshot(self) -> int:
        """Copies log lines, then rows, of one snapshot: a new row may have the id of a deleted
        one."""
        lines = await self._source.lines(self._noted.line, _LINES)
        rows: Sequence[Row] = ()
        if len(lines) < _LINES:
            rows = await self._source.rows(self._head, _ROWS)
        if lines:
            await self._apply(lines)
            self._noted.line = lines[-1].number
            await self._note()
        if rows:
            added = [stored(row) for row in rows]
            plan = WritePlan(adds={row.event.id: row for row in added})
            await self._append(plan, rows[-1][0])
        return len(lines) + len(rows)

    async def _apply(self, lines: Sequence[Line]) -> None:
        changed = _keys_by_table(lines)
        # Later rows are copied later, in their state of that time.
        seqs = [seq for (seq,) in changed.pop("events", ()) if seq <= self._head]
        old = [seq for (seq,) in changed.pop("old_versions", ())]
        if seqs:
            here = await self._source.placed_at(seqs)
            there = await self._target.placed_at(seqs)
            moves = {
                seq: group
                for seq, (group, _) in here.items()
                if group is not None and seq in there and there[seq][0] is None
            }
            expired = {seq for seq, (_, expires_at) in here.items() if expires_at == LONG_EXPIRED}
            gone = set(seqs) - here.keys()
            plan = WritePlan(removes=gone, expired=expired & there.keys(), moves=moves)
            await self._append(plan, self._head)
        for start in range(0, len(old), _OLD_ROWS):
            some = old[start : start + _OLD_ROWS]
            await self._put_old(some, await self._source.old_rows_at(some))
        for table in TABLES:
            keys = changed.get(table.logged_as or table.name, ())
            found = [await self._source.entries_at(table, key) for key in keys]
            if keys:
                await self._target.put(table, keys, [entry for each in found for entry in each])

    async def _put_old(self, seqs: Sequence[int], rows: Sequence[OldRow]) -> None:
        """Replace the old versions with these seqs by these."""
        await self._append(WritePlan(dropped_versions=set(seqs)), self._head)
        replaced = {row[0]: Replaced(stored(row[:7]), *row[7:], most=_ALL_OF_SLOT) for row in rows}
        if replaced:
            await self._append(WritePlan(replaced=replaced), self._head)

    async def _append(self, plan: WritePlan, head: int) -> None:
        def decide(found: Found) -> WritePlan:
            found.last_seq = head
            return plan

        await self._store.append(_NO_LOOKUPS, decide)
        self._head = head

    # -- comparing ------------------------------------------------------------------------------

    async def _compare_new(self) -> None:
        """Compare what was added or changed since the last comparison. Raises StoreFault."""
        await self._compare_rows(self._noted.checked_seq)
        await self._compare_lines()
        await self._note_compared()

    async def _note_compared(self) -> None:
        self._noted.checked_line, self._noted.checked_seq = self._noted.line, self._head
        await self._note()

    async def _compare_rows(self, after: int) -> tuple[int, int, str]:
        """Number, bytes and digest. Raises StoreFault."""
        events, size, digest = 0, 0, sha256()
        while True:
            here, there = await asyncio.gather(
                self._source.rows(after, _ROWS), self._target.rows(after, _ROWS)
            )
            if here != there:
                raise _differing(f"rows after {after}")
            if not here:
                return events, size, digest.hexdigest()
            digest.update(repr(here).encode())
            events += len(here)
            size += sum([len(row[1]) for row in here])
            after = here[-1][0]

    async def _compare_old(self) -> int:
        after = number = 0
        while True:
            here = await self._source.old_rows(after, _OLD_ROWS)
            if here != await self._target.old_rows(after, _OLD_ROWS):
                raise _differing(f"old versions after {after}")
            if not here:
                return number
            number += len(here)
            after = here[-1][0]

    async def _compare(self, table: Table) -> int:
        here = await _summed(self._source.entries(table))
        if here != await _summed(self._target.entries(table)):
            raise _differing(table.name)
        return here[0]

    async def _compare_lines(self) -> None:
        after = self._noted.checked_line
        while lines := await self._source.lines(after, _LINES):
            after = lines[-1].number
            changed = _keys_by_table(lines)
            seqs = [seq for (seq,) in changed.pop("events", ())]
            if await self._source.placed_at(seqs) != await self._target.placed_at(seqs):
                raise _differing("groups or expiries of rows")
            old = [seq for (seq,) in changed.pop("old_versions", ())]
            if await self._source.old_rows_at(old) != await self._target.old_rows_at(old):
                raise _differing("old versions")
            for table in TABLES:
                for key in changed.get(table.logged_as or table.name, ()):
                    here = await self._source.entries_at(table, key)
                    if here != await self._target.entries_at(table, key):
                        raise _differing(table.name)


async def _is_empty(side: Side) -> bool:
    return not await side.head() and not any(
        [(await _summed(side.entries(table)))[0] for table in TABLES]
    )


def _differing(what: str) -> StoreFault:
    return StoreFault(f"the copy differs from what was copied: {what}")


def _keys_by_table(lines: Sequence[Line]) -> dict[str, list[tuple[Any, ...]]]:
    """Each once, in order."""
    found: dict[str, dict[tuple[Any, ...], None]] = {}
    for line in lines:
        found.setdefault(line.table, {})[line.key] = None
    return {table: list(keys) for table, keys in found.items()}


async def _summed(pages: AsyncIterator[Sequence[Entry]]) -> tuple[int, int]:
    """Number, and a hash that does not depend on the order."""
    number = total = 0
    async for entries in pages:
        number += len(entries)
        for entry in entries:
            total += int.from_bytes(sha256(repr(entry).encode()).digest())
    return number, total % 2**256
