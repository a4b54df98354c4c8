"""SearchFollower: brings the log into the index of texts, after the writers and in their pauses.

Ingest never waits for it. A search does, for as long as `reached` says, so that it finds what was
stored before it was asked. After a crash it goes on where the index stands; when the policy lets
other kinds be found, the index begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.memory.search_text import TEXT_RULES, search_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.event import Event
    from relay.nostr.kinds import KindSet
    from relay.state import RelayState
    from relay.storage import Store

_log = logging.getLogger(__name__)

_BATCH: Final = 250
_REST: Final = 19
"""While others write it rests so many times as long as it worked: a twentieth of a core."""
_LONGEST_REST_S: Final = 1.0
_IDLE_S: Final = 1.0
_PATIENCE_S: Final = 2.0
"""How long a search waits for it."""
_AFTER_A_FAULT_S: Final = 5.0


class SearchFollower:
    """`async with` it: it follows inside."""

    def __init__(
        self,
        store: Store,
        state: RelayState,
        *,
        clock: Callable[[], int],
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._store = store
        self._state = state
        self._clock = clock
        self._patience_s = patience_s
        self._upto = 0
        self._rules = ""
        self._waiting = 0
        self._hurry = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SearchFollower:
        self._task = asyncio.create_task(self._run(), name="search")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def reached(self, seq: int) -> bool:
        """Wait until every row up to `seq` can be found; False: that takes too long."""
        if self._has(seq):
            return True
        self._waiting += 1
        self._hurry.set()
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._has(seq):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True

    def _has(self, seq: int) -> bool:
        return self._upto >= seq and self._rules == rules_for(self._state.policy.searched)

    async def _run(self) -> None:
        while True:
            await self._step()

    async def _step(self) -> None:
        try:
            await self._catch_up()
            if await self._store.tidy_index(self._clock()):
                return
            async with asyncio.timeout(_IDLE_S):
                await self._store.committed_after(self._upto)
        except TimeoutError:
            pass  # time to tidy again, or to see that the policy changed
        except StoreFault as fault:
            _log.error("texts are not indexed: %s", fault)
            await asyncio.sleep(_AFTER_A_FAULT_S)
        except Exception:  # the last frame of this task: it must live on  # noqa: BLE001
            _log.exception("texts are not indexed")
            await asyncio.sleep(_AFTER_A_FAULT_S)

    async def _catch_up(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._has(self._store.committed()):
            searched = self._state.policy.searched
            rules = rules_for(searched)
            began, head = loop.time(), self._store.committed()
            self._upto = await self._store.index(text_by(searched), rules, _BATCH)
            self._rules = rules
            self._moved.set()
            if self._store.committed() > head and not self._waiting:
                await self._rest(_REST * (loop.time() - began))

    async def _rest(self, seconds: float) -> None:
        """Leave the machine to the writers, unless somebody comes to search."""
        self._hurry.clear()
        try:
            async with asyncio.timeout(min(seconds, _LONGEST_REST_S)):
                await self._hurry.wait()
        except TimeoutError:
            pass


def rules_for(searched: KindSet) -> str:
    """Names what `text_by` does."""
    kinds = ",".join(f"{low}-{high}" for low, high in searched.ranges)
    return f"{TEXT_RULES};{kinds}"


def text_by(searched: KindSet) -> Callable[[Event], str | None]:
    """The search text of an event whose kind may be found; of no other."""

    def text_of(event: Event) -> str | None:
        return search_text(event) if event.kind in searched else None

    return text_of
