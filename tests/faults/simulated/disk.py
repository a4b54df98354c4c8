"""The reference store on a disk that is slow, fails, and dies with its process.

Invariants: a commit happens at one moment, between two delays; a fault before that moment leaves
nothing of it, and none comes after. Rows that were committed outlive the process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from relay.access.visibility import Reading
from relay.errors import StoreFault
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from relay.access.visibility import Visibility
    from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
    from relay.nostr.filters import Filter
    from relay.storage import Listed, Page, PageQuery, Place
    from tests.faults.simulated.promises import Promises

_CACHED: Final = 64
"""Visibilities for which it is known what they may read."""


class Disk(ReferenceStore):
    """A Store. `promises` hears of each batch at the moment of its commit."""

    def __init__(self, dice: Random, promises: Promises) -> None:
        super().__init__()
        self._dice = dice
        self._promises = promises
        self.fault_rate = 0.0
        self.slowness_s = 0.002
        self.is_dead = False
        self._readings: dict[int, tuple[Visibility, dict[int, Reading]]] = {}

    async def _works(self) -> None:
        """Takes its time; may fail."""
        await asyncio.sleep(self._dice.random() * self.slowness_s)
        if self.is_dead:  # the process is gone: nothing comes back
            await asyncio.get_running_loop().create_future()
        self._may_fail()

    def _may_fail(self) -> None:
        if self._dice.random() < self.fault_rate:
            self._promises.faults += 1
            raise StoreFault("input/output error")

    def _sized(self, query: PageQuery) -> PageQuery:
        """The port allows fewer rows than were asked for."""
        return query._replace(size=min(query.size, self._dice.choice((5, 50))))

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        await self._works()

        def decided(found: Found) -> WritePlan:
            plan = decide(found)
            self._may_fail()
            self._promises.committed(getattr(decide, "__self__", None))
            return plan

        head = await super().append(lookups, decided)
        # The rows are there; who waits for the commit hears of it later.
        await asyncio.sleep(self._dice.random() * self.slowness_s)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        return head

    def page_now(self, query: PageQuery) -> Any:
        if self._dice.random() < 0.5:
            return None  # not there at once
        self._may_fail()
        return super().page_now(self._sized(query))

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        await self._works()
        page: Page = super().page_now(self._sized(query))
        await self._works()
        return page

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed]:
        await self._works()
        places = await super().places(self._sized(query))
        await self._works()
        return places

    async def count(self, *asked: Any, **more: Any) -> int:
        await self._works()
        number = await super().count(*asked, **more)
        await self._works()
        return number

    def _may_read(self, row: Stored, filter_: Filter, visibility: Visibility, now: int) -> bool:
        """As the reference store; of each row once per Visibility. No kind of this world is read
        through a link."""
        _, known = self._readings.setdefault(id(visibility), (visibility, {}))
        reading = known.get(row.seq)
        if reading is None:
            reading = known[row.seq] = visibility.reading(row)
        if len(self._readings) > _CACHED:
            del self._readings[next(iter(self._readings))]
        if reading is Reading.BY_FILTER:
            return visibility.may_read(row, filter_)
        return reading is not Reading.NEVER
