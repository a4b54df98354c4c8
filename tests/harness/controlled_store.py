"""The reference store, each step of which a test can hold up, let fail, or count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from relay.errors import StoreFault
from tests.harness.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.nip77 import Items
    from relay.storage import Listed, Page, PageQuery, Place


class ControlledStore(ReferenceStore):
    """Does what the reference store does until a test changes one of these attributes."""

    def __init__(self, *, page_size: int | None = None) -> None:
        super().__init__()
        self.may_commit = _set_event()
        self.append_called = asyncio.Event()
        self.appends = 0
        self.is_full = False
        """`append` fails once the plan is made, and /readyz says so."""
        self.plans: list[WritePlan] = []
        self.room_to_make = 0
        """So many calls of `make_room` have something to do …"""
        self.room_made = 2048
        """… and make room for so many tags."""
        self.tags_to_come: list[int] = []
        """What each call of it was told."""

        self.page_size = page_size
        """At most so many rows in a page; the port allows fewer than were asked for."""
        self.pages = 0
        self.is_slow = False
        """A page is not there at once: `page_now` gives None."""
        self.before_page: Callable[[], Awaitable[object]] | None = None

        self.may_give_items = _set_event()
        self.items_asked = 0
        """How many times negentropy has asked for records."""
        self.items_called = asyncio.Event()

        self.may_index = _set_event()
        self.index_calls = 0
        self.index_failures = 0
        """So many calls of `index` fail from now on."""

        self.may_tidy = _set_event()
        self.tidy_called = asyncio.Event()

        self.has_little_space = False
        self.matching_calls = 0
        self.matching_fails = False
        self.may_match = _set_event()

    async def is_writable(self) -> bool:
        return not self.is_full

    def is_nearly_full(self) -> bool:
        return self.has_little_space

    async def append(self, wanted: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        self.appends += 1
        self.append_called.set()
        await self.may_commit.wait()

        def noted(found: Found) -> WritePlan:
            plan = decide(found)
            if self.is_full:
                raise StoreFault("disk full")
            self.plans.append(plan)
            return plan

        return await super().append(wanted, noted)

    async def make_room(self, tags: int) -> int:
        self.tags_to_come.append(tags)
        await asyncio.sleep(0)
        if self.is_full:
            raise StoreFault("disk full")
        self.room_to_make -= 1
        return self.room_made if self.room_to_make >= 0 else 0

    def page_now(self, query: PageQuery) -> Any:
        if self.is_slow:
            return None
        return super().page_now(self._sized(query))

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        await self._before_page()
        return super().page_now(self._sized(query))

    async def places(self, query: PageQuery) -> tuple[Sequence[tuple[Place, bytes]], Listed]:
        await self._before_page()
        return await super().places(self._sized(query))

    async def count(self, *asked: Any, **more: Any) -> int:
        number = await super().count(*asked, **more)
        await self._before_page()
        return number

    async def items(self, *asked: Any, **more: Any) -> Items | None:
        found = await super().items(*asked, **more)
        self.items_called.set()
        self.items_asked += 1
        await self.may_give_items.wait()
        return found

    async def index(self, *given: Any) -> int:
        await self.may_index.wait()
        self.index_calls += 1
        if self.index_failures:
            self.index_failures -= 1
            raise StoreFault("no space left")
        return await super().index(*given)

    async def tidy_index(self) -> bool:
        self.tidy_called.set()
        await self.may_tidy.wait()
        return await super().tidy_index()

    async def matching(self, *args: Any, **more: Any) -> Any:
        self.matching_calls += 1
        if self.matching_fails:
            raise StoreFault("the disk is gone")
        await self.may_match.wait()
        return await super().matching(*args, **more)

    def _sized(self, query: PageQuery) -> PageQuery:
        size = query.size if self.page_size is None else min(query.size, self.page_size)
        return query._replace(size=size)

    async def _before_page(self) -> None:
        self.pages += 1
        if self.before_page is not None:
            await self.before_page()


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
