"""Sweeper: removes rows that expired (NIP-40) or that retention rules release.

In small transactions, each through the lane, with a pause after it. Expired rows need no tombstone:
sent again, they are refused as expired. Rows that rules release are searched for outside of the
lane and checked again inside (`relay.lifecycle.retention`). No progress is stored: a later sweep
finds what is left. After each sweep the next rows are checked for damage, in rounds over the whole
store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.access.quotas import Size
from relay.errors import StoreFault
from relay.lifecycle.retention import TOO_LARGE, LastScan
from relay.lifecycle.rows import MOST_DELETED, UNPINNED_AT_ONCE
from relay.write.commands import ExpireRows, Purpose, SweepRows, SweepVersions
from relay.write.pins import pinning_expired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from relay.groups.group import Groups
    from relay.lifecycle.retention import SweepRule, SweepRules
    from relay.lifecycle.rows import ExpiredRow, OldVersion, Stored
    from relay.lifecycle.versions import HistoryRules
    from relay.observe import Metrics
    from relay.state import RelayState
    from relay.storage import SweepSource
    from relay.write.ingest import Ingest

_log = logging.getLogger(__name__)

_FIRST_SWEEP_S: Final = 5.0
_INTERVAL_S: Final = 60.0
_LOOK_S: Final = 5.0
"""Between two sweeps: how often it looks whether as many rows have expired as a transaction takes.
Every reader passes over them."""
_FULL_SCAN_S: Final = 3600
"""Interval of scans of all rows; the others look only at rows that changed since. A removed pin or
a new summary takes effect within this time."""
_BATCH_ROWS: Final = 256
_BATCH_BYTES: Final = MOST_DELETED
"""Bytes of the rows of a transaction, old versions included; a larger row is alone in one."""
_EXPIRED_ROWS: Final = 4_096
"""Expired rows that are found per query. If there are so many, the smallest quarter is swept: one
row of thousands of tags takes as long as a hundred others, and readers pass over all of them."""
_SCAN_ROWS: Final = 200_000
"""Rows found per query: their seq only."""
_PAUSE_FACTOR: Final = 8
"""Pause after a transaction, in multiples of its duration without its wait in the lane: writers
come first. After expired rows it may end sooner, see `_give_way`."""
_SHORT_S: Final = 0.05
_SHORT_PAUSE_FACTOR: Final = 2
"""The same after a transaction of expired rows that is shorter than this: readers pass over those
that are left."""
_MAX_PAUSE_S: Final = 60.0
_MAX_PAUSE_AFTER_READ_S: Final = 1.0
"""A read holds up no writer, and may have waited for the reads of others for long."""
_CHECKS: Final = 20
_CHECKED_AT_ONCE: Final = 100
"""Rows checked for damage per query, and queries per sweep: a million rows in eight hours."""
_MAX_TOLD: Final = 20
"""Damaged rows that a sweep logs."""
_EXPIRED: Final = ("expiration", "NIP-40", "expired")
"""Rule, place and cause of rows removed by their own expiration."""
_HISTORY: Final = ("history", "[[retention]] history", "old versions")
"""Rule, place and cause of old versions."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one transaction."""

    rule: SweepRule
    removed: Sequence[Stored]
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SweepLine:
    """Rows of one kind that one rule removed; or rows due by it and kept for the reason `held`."""

    rule: str
    place: str
    """`file:line`."""
    cause: str
    kind: int | None
    """None: rows that are held."""
    held: str | None
    events: int
    bytes: int
    """0 for rows that are held."""


def lines_of(swept: Swept) -> list[SweepLine]:
    """The lines of one transaction; the caller adds them up."""
    rule = swept.rule
    of = (rule.name, rule.place, str(rule.limit))
    return [
        *_lines(of, swept.removed),
        *(SweepLine(*of, None, reason, number, 0) for reason, number in swept.held.items()),
    ]


def _lines(of: tuple[str, str, str], removed: Sequence[Stored]) -> list[SweepLine]:
    """`of`: rule, place and cause."""
    sizes: dict[int, Size] = {}
    for row in removed:
        kind = row.event.kind
        sizes[kind] = sizes.get(kind, Size()).plus(Size(1, len(row.event.raw)))
    return [SweepLine(*of, kind, None, *size) for kind, size in sorted(sizes.items())]


def _batches(found: Iterable[ExpiredRow], groups: Groups) -> Iterator[Sequence[ExpiredRow]]:
    """Cut into the rows of one transaction each. `groups`: some may pin them."""
    batch: list[ExpiredRow] = []
    size, unpinned = 0, frozenset[str]()
    for row in found:
        size += row.size
        unpinned |= pinning_expired(row, groups)
        is_full = size > _BATCH_BYTES or len(batch) == _BATCH_ROWS
        if batch and (is_full or len(unpinned) > UNPINNED_AT_ONCE):
            yield batch
            batch, size, unpinned = [], row.size, pinning_expired(row, groups)
        batch.append(row)
    if batch:
        yield batch


def _released(
    page: Sequence[OldVersion], rules: HistoryRules, now: int
) -> tuple[list[Stored], dict[int, int | None]]:
    """Old versions that the rules do not keep, and for others whose `drop_at` differs: seq → new
    `drop_at`."""
    gone, deadlines = [], {}
    for row, at, drop_at, newer in page:
        kept = rules.of(row)
        should = None if kept is None else kept.drop_at(row, at)
        if kept is None or newer >= kept.most or (should is not None and should <= now):
            gone.append(row)
        elif should != drop_at:
            deadlines[row.seq] = should
    return gone, deadlines


def _smallest(found: Sequence[ExpiredRow]) -> Sequence[ExpiredRow]:
    """The rows that are swept next."""
    if len(found) < _EXPIRED_ROWS:
        return found
    return sorted(found, key=lambda row: row.size)[: _EXPIRED_ROWS // 4]


async def _pause_after(took_s: float, read_s: float = 0.0) -> None:
    after_read = min(_PAUSE_FACTOR * read_s, _MAX_PAUSE_AFTER_READ_S)
    await asyncio.sleep(min(_PAUSE_FACTOR * took_s, _MAX_PAUSE_S) + after_read)


class Sweeper:
    """A context manager: sweeps inside, after 5 s and then every minute, or at once while more has
    expired than was removed in a minute. Many rows that expire between are removed then."""

    def __init__(
        self,
        store: SweepSource,
        state: RelayState,
        ingest: Ingest,
        *,
        clock: Callable[[], int],
        metrics: Metrics,
        damaged: Callable[[str], None] = lambda _: None,
        is_due: Callable[[], bool] = lambda: True,
        first_s: float = _FIRST_SWEEP_S,
        every_s: float = _INTERVAL_S,
    ) -> None:
        """`damaged` gets a line for the admin when rows are damaged, and an empty one after a round
        without faults. `is_due`: False while another relay on the store sweeps."""
        self._is_due = is_due
        self._store = store
        self._state = state
        self._ingest = ingest
        self._clock = clock
        self._metrics = metrics
        self._first_s = first_s
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._rules: SweepRules | None = None
        self._seen: LastScan | None = None
        self._whole_at = 0
        self._history: HistoryRules | None = None
        """The rules that all old versions were checked against."""
        self._damaged = damaged
        self._checked = 0
        self._is_whole = True
        """No fault was found in this round."""
        self._is_behind = False
        """More had expired than was removed in one interval."""

    async def __aenter__(self) -> Sweeper:
        self._task = asyncio.create_task(self._run(), name="sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(self._first_s)
        while True:
            rest_s, self._is_behind = self._every_s, False
            try:
                if self._is_due():
                    await self.once()
                    await self.check()
                while rest_s > 0 and not self._is_behind:
                    await asyncio.sleep(min(_LOOK_S, rest_s))
                    rest_s -= _LOOK_S
                    if self._is_due() and await self._many_expired():
                        await self._expired()
                rest_s = 0.0
            except StoreFault as fault:
                _log.error("sweep failed: %s", fault)
            except Exception:  # outermost frame: the task must go on  # noqa: BLE001
                _log.exception("sweep: internal error")
            await asyncio.sleep(rest_s)

    async def once(self) -> int:
        """Remove expired rows, rows due by rules and old versions; returns their number. Raises
        StoreFault."""
        return await self._expired() + await self._due() + await self._versions()

    async def check(self) -> bool:
        """Check the next rows for damage; True: the end of the store was reached."""
        faults: list[str] = []
        try:
            for _ in range(_CHECKS):
                began = monotonic()
                self._checked, found = await self._store.check(self._checked, _CHECKED_AT_ONCE)
                faults += found
                if not self._checked:
                    break
                await _pause_after(0.0, monotonic() - began)
        except StoreFault as fault:
            faults.append(str(fault))
            self._checked = 0
        for text in faults[:_MAX_TOLD]:
            _log.error("the store is damaged, restore a backup: %s", text)
        self._is_whole = self._is_whole and not faults
        if faults:
            self._damaged(f"{len(faults)} faults, restore a backup; the first: {faults[0]}")
        elif self._is_whole and not self._checked:
            self._damaged("")
        if not self._checked:
            self._is_whole = True
        return not self._checked

    async def _many_expired(self) -> bool:
        """Whether enough rows have expired to fill a transaction."""
        vanishing = self._ingest.vanishing
        return len(await self._store.expired(self._clock(), _BATCH_ROWS, vanishing)) >= _BATCH_ROWS

    async def _expired(self) -> int:
        """Remove expired rows for one interval at most: while more expire than are deleted, rules
        must have turns. Returns their number."""
        swept = self._expiring(Purpose.SWEEP, within_s=self._every_s)
        return sum([len(rows) async for rows in swept])

    async def _expiring(
        self, purpose: Purpose, within_s: float = inf
    ) -> AsyncIterator[Sequence[Stored]]:
        """Sweep the rows that have expired by now; yields those of each transaction. Raises
        StoreFault."""
        now, until = self._clock(), monotonic() + within_s
        swept = Counter[int]()
        is_dry = purpose is Purpose.DRY_RUN
        at_once = _SCAN_ROWS if is_dry else _EXPIRED_ROWS
        is_done = False
        while not is_done and monotonic() < until:
            is_done = True
            # The requests delete the rows of these keys, which would come before all others.
            vanishing = frozenset[str]() if is_dry else self._ingest.vanishing
            found = await self._store.expired(now, at_once, vanishing)
            for rows in _batches(found if is_dry else _smallest(found), self._state.groups):
                if monotonic() >= until:
                    is_done = False
                    break
                expiry = ExpireRows(rows, purpose, asyncio.get_running_loop().create_future())
                self._ingest.expire(expiry)
                if not await expiry.done:  # the lane is full or the store failed
                    self._report(swept, "expired events")
                    raise StoreFault("no changes are accepted at the moment")
                yield expiry.removed
                if purpose is Purpose.SWEEP:
                    if expiry.removed:  # else all of them have to stay for now
                        is_done = False
                    swept.update(row.event.kind for row in expiry.removed)
                    await self._give_way(expiry.took_s)
        self._is_behind = not is_done
        self._report(swept, "expired events")

    async def _give_way(self, took_s: float) -> None:
        """Pause for as long as the transaction took, and again while writers wait: one waits for
        one transaction at most."""
        for _ in range(_SHORT_PAUSE_FACTOR if took_s < _SHORT_S else _PAUSE_FACTOR):
            await asyncio.sleep(min(took_s, _MAX_PAUSE_S / _PAUSE_FACTOR))
            if not self._ingest.is_busy:
                break

    def _report(self, swept: Counter[int], what: str) -> None:
        """Log and count swept rows by kind (G-15)."""
        for kind, number in sorted(swept.items()):
            _log.info("swept %d %s of kind %d", number, what, kind)
        self._metrics.swept(swept)

    async def _due(self) -> int:
        now, head = self._clock(), await self._store.head()
        rules = self._state.policy.sweeps
        if rules != self._rules or now - self._whole_at >= _FULL_SCAN_S:
            self._seen, self._whole_at = None, now
        self._rules = rules
        kinds = Counter[int]()
        try:
            checked = monotonic()
            async for swept in self.by_rules(Purpose.SWEEP, self._seen):
                if monotonic() - checked > self._every_s:
                    await self._expired()  # a long sweep must not delay them
                    checked = monotonic()
                kinds.update(row.event.kind for row in swept.removed)
        except BaseException:
            self._rules = None  # interrupted: scan everything again
            raise
        finally:
            self._report(kinds, "events")
        self._seen = LastScan(head, now)
        return kinds.total()

    async def _versions(self) -> int:
        swept = Counter[int]()
        async for found in self.old_versions(Purpose.SWEEP):
            swept.update(row.event.kind for row in found)
        self._report(swept, "old versions")
        return swept.total()

    async def old_versions(self, purpose: Purpose) -> AsyncIterator[Sequence[Stored]]:
        """Old versions that `[[retention]] history` no longer keeps, one transaction each.

        All are checked once after a start and after a change of the rules, later only those that
        are due. Raises StoreFault.
        """
        now, rules = self._clock(), self._state.policy.keep.history
        while due := await self._store.overdue_versions(now, _BATCH_ROWS):
            seqs = [old.row.seq for old in due]
            if purpose is Purpose.SWEEP and not await self._sweep_versions(seqs, {}, rules):
                return
            yield [old.row for old in due]
            if purpose is Purpose.DRY_RUN:
                break
        if rules == self._history and purpose is Purpose.SWEEP:
            return
        after = 0
        while page := await self._store.old_versions(after, _BATCH_ROWS):
            after = page[-1].row.seq
            gone, deadlines = _released(page, rules, now)
            if purpose is Purpose.SWEEP and (gone or deadlines):
                seqs = [row.seq for row in gone]
                if not await self._sweep_versions(seqs, deadlines, rules):
                    return
            if gone:
                yield gone
        if purpose is Purpose.SWEEP:
            self._history = rules

    async def _sweep_versions(
        self, due: Sequence[int], deadlines: Mapping[int, int | None], rules: HistoryRules
    ) -> bool:
        """False: the rules have changed, the next sweep looks at all versions again."""
        done = asyncio.get_running_loop().create_future()
        sweeping = SweepVersions(frozenset(due), deadlines, rules, done)
        self._ingest.sweep(sweeping)
        if not await done:
            raise StoreFault("no changes are accepted at the moment")
        if self._state.policy.keep.history != rules:
            return False
        await _pause_after(sweeping.took_s)
        return True

    async def run_now(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        """Sweep everything, outside of the interval. Raises StoreFault."""
        reported: set[int] = set()  # seq: in a dry run several rules can release one row
        async for rows in self._expiring(purpose):
            reported.update(row.seq for row in rows)
            yield _lines(_EXPIRED, rows)
        async for rows in self.old_versions(purpose):
            rows = [row for row in rows if row.seq not in reported]
            reported.update(row.seq for row in rows)
            yield _lines(_HISTORY, rows)
        swept_by_rules = Counter[int]()
        try:
            async for swept in self.by_rules(purpose):
                removed = [row for row in swept.removed if row.seq not in reported]
                if purpose is Purpose.DRY_RUN:
                    reported.update(row.seq for row in removed)
                swept_by_rules.update(row.event.kind for row in removed)
                yield lines_of(replace(swept, removed=removed))
        finally:
            if purpose is Purpose.SWEEP:
                self._report(swept_by_rules, "events")

    async def by_rules(
        self, purpose: Purpose, seen: LastScan | None = None
    ) -> AsyncIterator[Swept]:
        """One transaction after the other, by rule. Raises StoreFault.

        `seen`: rows up to there were scanned before. Ends early when the rules change or the lane
        is full: the next sweep finds what is left.
        """
        rules = self._state.policy.sweeps
        for step in rules.in_sweep_order():
            rule = step.rule
            after: tuple[int, str] | None = None
            at_once = _BATCH_ROWS
            while True:
                due = await self._store.due_rows(
                    rule,
                    rules.exempt_from(rule),
                    now=self._clock(),
                    last_scan=seen,
                    after=after,
                    limit=_SCAN_ROWS,
                )
                start = 0
                while batch := due[start : start + at_once]:
                    began = monotonic()
                    found = await self._store.stored(batch, _BATCH_BYTES)
                    if not found:
                        start += len(batch)
                        continue
                    number, read_s = 1 + batch.index(found[-1].seq), monotonic() - began
                    took_s = 0.0
                    rows = [row for row in found if step.removes(row)]
                    if rows:
                        sweeping = SweepRows(
                            rows, rules, purpose, asyncio.get_running_loop().create_future()
                        )
                        self._ingest.sweep(sweeping)
                        if not await sweeping.done:
                            raise StoreFault("no changes are accepted at the moment")
                        if self._state.policy.sweeps != rules:
                            return
                        took_s = sweeping.took_s
                        if sweeping.reads_too_much and len(rows) > 1:
                            at_once = number // 2
                            await _pause_after(took_s, read_s)
                            continue
                        if sweeping.reads_too_much:
                            sweeping.held[TOO_LARGE] = 1
                        yield Swept(rule, sweeping.removed, sweeping.held)
                    start += number
                    after = found[-1].version, found[-1].event.id
                    at_once = min(2 * at_once, _BATCH_ROWS)
                    await _pause_after(took_s, read_s)
                if len(due) < _SCAN_ROWS:
                    break
