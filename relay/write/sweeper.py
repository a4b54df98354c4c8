"""Sweep: takes from the store what has expired and what retention rules let go.

In small transactions between the writes, each through the lane like an event, with a rest after it.
What has expired needs no tombstone: sent again, it is refused as expired (NIP-40).
What a rule lets go is found beside the writes and decided inside them:
`relay.lifecycle.retention`. Nothing
is noted about how far a sweep came; what is still there is found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.access.quotas import Size
from relay.errors import StoreFault
from relay.lifecycle.retention import LastScan
from relay.write.commands import ExpireRows, Purpose, SweepRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from relay.lifecycle.retention import SweepRule, SweepRules
    from relay.lifecycle.rows import Stored
    from relay.observe import Metrics
    from relay.state import RelayState
    from relay.storage import SweepSource
    from relay.write.ingest import Ingest

_log = logging.getLogger(__name__)

_FIRST_S: Final = 5.0
_EVERY_S: Final = 60.0
_WHOLE_S: Final = 3600
"""So often all is looked at; in between, what a minute brought. A pin that was lifted or a summary
that was written makes itself felt within this time."""
_AT_ONCE: Final = 256
"""Rows of one transaction."""
_LOOKED_AT: Final = 200_000
"""Rows that are looked for at once: their numbers only."""
_REST: Final = 8.0
"""The rest after a transaction, in times of what it took: writers come first."""
_REST_AT_MOST_S: Final = 1.0
_EXPIRED: Final = ("expiration", "NIP-40", "its time is over")
"""Rule, place and cause of what no rule of the policy files lets go."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one transaction did."""

    rule: SweepRule
    gone: Sequence[Stored]
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SweepLine:
    """What a sweep did by one rule to one kind, or what keeps rows that the rule lets go."""

    rule: str
    place: str
    """`file:line`."""
    cause: str
    kind: int | None
    """None: these rows are held."""
    held: str | None
    events: int
    bytes: int
    """0 of what is held."""


def lines_of(swept: Swept) -> list[SweepLine]:
    """One transaction as lines to add up."""
    rule = swept.rule
    of = (rule.name, rule.place, str(rule.limit))
    return [
        *_lines(of, swept.gone),
        *(SweepLine(*of, None, reason, number, 0) for reason, number in swept.held.items()),
    ]


def _lines(of: tuple[str, str, str], gone: Sequence[Stored]) -> list[SweepLine]:
    """`of`: rule, place and cause."""
    sizes: dict[int, Size] = {}
    for row in gone:
        kind = row.event.kind
        sizes[kind] = sizes.get(kind, Size()).plus(Size(1, len(row.event.raw)))
    return [SweepLine(*of, kind, None, *size) for kind, size in sorted(sizes.items())]


class Sweep:
    """`async with` it: it sweeps inside, soon and then every minute."""

    def __init__(
        self,
        store: SweepSource,
        state: RelayState,
        ingest: Ingest,
        *,
        clock: Callable[[], int],
        metrics: Metrics,
        first_s: float = _FIRST_S,
        every_s: float = _EVERY_S,
    ) -> None:
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

    async def __aenter__(self) -> Sweep:
        self._task = asyncio.create_task(self._run(), name="sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(self._first_s)
        while True:
            try:
                await self.once()
            except StoreFault as fault:
                _log.error("the store could not be swept: %s", fault)
            except Exception:  # the last frame of this task: it must live on  # noqa: BLE001
                _log.exception("the store could not be swept")
            await asyncio.sleep(self._every_s)

    async def once(self) -> int:
        """Delete what has expired and what has become due; how many rows. Raises StoreFault."""
        return await self._expired() + await self._due()

    async def _expired(self) -> int:
        return sum([len(rows) async for rows in self._expiring(Purpose.SWEEP)])

    async def _expiring(self, purpose: Purpose) -> AsyncIterator[Sequence[Stored]]:
        """What has expired, transaction after transaction."""
        swept = Counter[int]()
        at_once = _AT_ONCE if purpose is Purpose.SWEEP else _LOOKED_AT
        while ids := await self._store.expired(self._clock(), at_once):
            expiry = ExpireRows(tuple(ids), purpose, asyncio.get_running_loop().create_future())
            self._ingest.expire(expiry)
            if not await expiry.done:
                break  # the lane is full or the store down: the next round goes on
            yield expiry.gone
            if purpose is Purpose.TRIAL:
                break  # they are all still there
            swept.update(row.event.kind for row in expiry.gone)
        self._report(swept, "expired events")

    def _report(self, swept: Counter[int], what: str) -> None:
        """By kind (G-15)."""
        for kind, number in sorted(swept.items()):
            _log.info("swept %d %s of kind %d", number, what, kind)
        self._metrics.swept(swept)

    async def _due(self) -> int:
        now, head = self._clock(), await self._store.head()
        rules = self._state.policy.sweeps
        if rules != self._rules or now - self._whole_at >= _WHOLE_S:
            self._seen, self._whole_at = None, now
        self._rules = rules
        kinds = Counter[int]()
        try:
            looked = monotonic()
            async for swept in self.by_rules(Purpose.SWEEP, self._seen):
                if monotonic() - looked > self._every_s:
                    await self._expired()  # a long sweep must not keep them waiting
                    looked = monotonic()
                kinds.update(row.event.kind for row in swept.gone)
        except BaseException:
            self._rules = None  # cut off: all is looked at again
            raise
        finally:
            self._report(kinds, "events")
        self._seen = LastScan(head, now)
        return kinds.total()

    async def asked(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        """All that is there to sweep, for somebody who looks on. Raises StoreFault."""
        told: set[int] = set()  # by seq: in a trial one row can fall to several rules
        async for rows in self._expiring(purpose):
            told.update(row.seq for row in rows)
            yield _lines(_EXPIRED, rows)
        swept_by_rules = Counter[int]()
        try:
            async for swept in self.by_rules(purpose):
                gone = [row for row in swept.gone if row.seq not in told]
                if purpose is Purpose.TRIAL:
                    told.update(row.seq for row in gone)
                swept_by_rules.update(row.event.kind for row in gone)
                yield lines_of(replace(swept, gone=gone))
        finally:
            if purpose is Purpose.SWEEP:
                self._report(swept_by_rules, "events")

    async def by_rules(
        self, purpose: Purpose, seen: LastScan | None = None
    ) -> AsyncIterator[Swept]:
        """Transaction after transaction, rule after rule. Raises StoreFault.

        `seen`: all up to there was looked at before. Ends early when other rules come into force,
        or when the lane is full: what is left is found by the next round.
        """
        rules = self._state.policy.sweeps
        for rule in rules.in_sweep_order():
            after: tuple[int, str] | None = None
            while True:
                due = await self._store.due_rows(
                    rule,
                    rules.exempt_from(rule),
                    now=self._clock(),
                    last_scan=seen,
                    after=after,
                    limit=_LOOKED_AT,
                )
                for start in range(0, len(due), _AT_ONCE):
                    began = monotonic()
                    rows = await self._store.stored(due[start : start + _AT_ONCE])
                    if not rows:
                        continue
                    after = rows[-1].version, rows[-1].event.id
                    sweeping = SweepRows(
                        rows, rules, purpose, asyncio.get_running_loop().create_future()
                    )
                    self._ingest.sweep(sweeping)
                    if not await sweeping.done:
                        raise StoreFault("it takes no changes just now")
                    if self._state.policy.sweeps != rules:
                        return
                    yield Swept(rule, sweeping.gone, sweeping.held)
                    await asyncio.sleep(min(_REST * (monotonic() - began), _REST_AT_MOST_S))
                if len(due) < _LOOKED_AT:
                    break
