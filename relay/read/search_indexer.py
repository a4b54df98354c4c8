"""SearchIndexer: follows the store and updates the full-text index in the background.

Ingest never waits for it. A search waits in `reached`, so that it finds what was stored before it.
While there are more rows than one batch, records of memory come first, and a search of their kinds
waits for no others.
After a restart it continues where the index ends; when the policy makes other kinds searchable, the
index is rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from time import thread_time
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from relay.nostr.event import Event
    from relay.state import Policy, RelayState
    from relay.storage import SearchIndex

_log = logging.getLogger(__name__)

_BATCH: Final = 250
_SMALL_BATCH: Final = 50
"""Rows per batch during writes, and while the loop is busy: short enough on a busy machine, too."""
_EMBEDDED: Final = 8
"""Texts embedded at a time, in about 0.2 s."""
_PAUSE_RATIO: Final = 19
"""Length of a pause during writes, and while the loop is busy, as a multiple of the work before it:
5 % of a core, or half of one while a search waits and the loop is busy. Python runs on one thread
at a time, so the loop waits for it."""
_BUSY_SHARE: Final = 0.25
"""The loop counts as busy when its thread works for more than this share of the time."""
_WRITING_S: Final = 0.5
"""Writes count as busy for this time after a commit. On a slow machine a batch takes so long that
there may be no commit during it."""
_MAX_PAUSE_S: Final = 1.0
_GATHER_S: Final = 1.0
"""Delay from a commit until it is indexed, so that later ones join the batch: a transaction costs
as much as a commit. A search ends it."""
_IDLE_S: Final = 1.0
_TIMEOUT_S: Final = 2.0
"""How long a search waits for the index."""
_RETRY_S: Final = 5.0
_TIDY_EVERY_S: Final = 1.0
_TIDY_S: Final = 0.1
"""Longest step of tidying during writes."""


class SearchIndexer:
    """`async with` it: indexes inside."""

    def __init__(
        self,
        store: SearchIndex,
        state: RelayState,
        *,
        loop_s: Callable[[], float] = thread_time,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`loop_s`: processor time of the loop's thread so far, in seconds."""
        self._loop_s = loop_s
        self._looked = (0.0, 0.0)
        """Time of the last call of `loop_s`, and the value it returned."""
        self._is_busy = False
        """Whether the loop was busy before that call."""
        self._store = store
        self._state = state
        self._timeout_s = timeout_s
        self._upto = 0
        """Every row up to this seq is indexed, under `_rules`."""
        self._ahead = 0
        """Every record of memory up to this seq is indexed, too."""
        self._is_behind = False
        """Whether the last batch was not all rows."""
        self._rules = ""
        self._tidy_at = 0.0
        self._newest = store.committed()
        """Newest seq, and when it was first seen."""
        self._newest_at = -_WRITING_S
        self._waiting_searches = 0
        self._search_waits = asyncio.Event()
        self._progress = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> SearchIndexer:
        self._task = asyncio.create_task(self._run(), name="search")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._task, self._tidying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def lag(self) -> int:
        """Rows that were stored since the newest one that is indexed."""
        return max(0, self._store.committed() - self._upto)

    async def reached(self, seq: int, kinds: Set[int] | None = None) -> bool:
        """Wait until every row up to `seq` is indexed, or every one of these kinds. False: it timed
        out."""
        if self._is_indexed(seq, kinds):
            return True
        self._waiting_searches += 1
        self._search_waits.set()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._is_indexed(seq, kinds):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting_searches -= 1
        return True

    @property
    def is_current(self) -> bool:
        """Whether what is indexed has the texts that the policy in force wants."""
        return self._rules == rules_for(self._state.policy)

    def _is_indexed(self, seq: int, kinds: Set[int] | None = None) -> bool:
        is_ahead = kinds is not None and kinds <= self._state.policy.systems.kinds
        upto = max(self._upto, self._ahead) if is_ahead else self._upto
        return upto >= seq and self.is_current

    async def _run(self) -> None:
        while True:
            await self._step()

    async def _step(self) -> None:
        try:
            await self._catch_up()
            if self._store.is_nearly_full():
                await asyncio.sleep(_RETRY_S)
                return
            if await self._tidy() or await self._embed():
                return
            async with asyncio.timeout(_IDLE_S):
                await self._store.committed_after(self._upto)
            await self._pause(_GATHER_S)
        except TimeoutError:
            pass  # merge segments again, or notice a policy change
        except StoreFault as fault:
            _log.error("full-text indexing failed: %s", fault)
            await asyncio.sleep(_RETRY_S)
        except Exception:  # last frame of the task: it must go on  # noqa: BLE001
            _log.exception("full-text indexing failed")
            await asyncio.sleep(_RETRY_S)

    async def _catch_up(self) -> None:
        """Until all is indexed, or the disk is nearly full: what is left is for owners, who delete,
        and the index can be several times as large as its texts."""
        loop = asyncio.get_running_loop()
        while not (self._is_indexed(self._store.committed()) or self._store.is_nearly_full()):
            policy, newest = self._state.policy, self._store.committed()
            began = loop.time()
            gives_way = self._gives_way()
            batch = _SMALL_BATCH if gives_way or self._is_busy else _BATCH
            await self._index_batch(policy, newest, batch)
            self._progress.set()
            if loop.time() > self._tidy_at:
                await self._tidy()
            if gives_way or self._is_written_to():
                pause = _PAUSE_RATIO * (loop.time() - began)
                await self._pause(max(pause, _GATHER_S) if self._upto >= newest else pause)
            elif self._is_busy:  # anybody may search
                await asyncio.sleep(min(loop.time() - began, _MAX_PAUSE_S))

    async def _index_batch(self, policy: Policy, newest: int, batch: int) -> None:
        """While there are more rows, records of memory come first: agents ask for these, and
        strangers can store any number of others."""
        text_of, rules = text_by(policy), rules_for(policy)
        if rules != self._rules:
            self._rules, self._upto, self._ahead = "", 0, 0
        if self._is_behind and self._ahead < newest:
            kinds = policy.systems.kinds
            self._ahead = await self._store.index(text_of, rules, batch, kinds)
            self._rules = rules
            if self._ahead < newest:
                return
            self._progress.set()
        self._upto = await self._store.index(text_of, rules, batch)
        self._rules = rules
        self._is_behind = self._upto < newest

    async def _tidy(self) -> bool:
        """Remove deleted texts for a while; True: there is more to do. When a search waits for the
        index, it goes on beside the indexing: it may wait for reads of clients."""
        if self._tidying is None:
            self._tidying = asyncio.create_task(self._tidied(), name="search: tidy")
            self._tidying.add_done_callback(lambda _: self._search_waits.set())
        await asyncio.wait([self._tidying], timeout=_TIDY_S)
        while not (self._tidying.done() or self._waiting_searches):
            await self._pause(_MAX_PAUSE_S)
        has_more = False
        if self._tidying.done():
            tidied, self._tidying = self._tidying, None
            has_more = tidied.result()
        self._tidy_at = asyncio.get_running_loop().time() + (0 if has_more else _TIDY_EVERY_S)
        return has_more

    async def _tidied(self) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + _TIDY_S
        while has_more := await self._store.tidy_index():
            if loop.time() > until:
                break
        return has_more

    async def _embed(self) -> bool:
        """Compute meanings of indexed texts; True: there is more to do."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        has_more = await self._store.embed_texts(_EMBEDDED)
        if self._gives_way():
            await self._pause(_PAUSE_RATIO * (loop.time() - began))
        return has_more

    def _gives_way(self) -> bool:
        """Whether there are writes, or the loop was busy since the last call, and no search is
        waiting."""
        before, took = self._looked
        at, taken = self._looked = asyncio.get_running_loop().time(), self._loop_s()
        self._is_busy = taken - took > _BUSY_SHARE * (at - before)
        return self._is_written_to() or (self._is_busy and not self._waiting_searches)

    def _is_written_to(self) -> bool:
        """Whether the last commit was recent, and no search is waiting."""
        now, newest = asyncio.get_running_loop().time(), self._store.committed()
        if newest != self._newest:
            self._newest, self._newest_at = newest, now
        return now - self._newest_at < _WRITING_S and not self._waiting_searches

    async def _pause(self, seconds: float) -> None:
        """Ends early when a search waits."""
        if self._waiting_searches:
            return
        self._search_waits.clear()
        try:
            async with asyncio.timeout(min(seconds, _MAX_PAUSE_S)):
                await self._search_waits.wait()
        except TimeoutError:
            pass


def rules_for(policy: Policy) -> str:
    """Version of the indexed texts, and of which are ahead of others: another value means that the
    index must be rebuilt."""
    kinds = ",".join(f"{low}-{high}" for low, high in policy.searched.ranges)
    ahead = ",".join(map(str, sorted(policy.systems.kinds)))
    return f"{policy.systems.search_version};{kinds};{ahead}"


def text_by(policy: Policy) -> Callable[[Event], str | None]:
    """Gives the indexed text of an event; None for kinds that are not searchable."""

    def text_of(event: Event) -> str | None:
        return policy.systems.search_text(event) if event.kind in policy.searched else None

    return text_of
