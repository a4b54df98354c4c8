"""Sweep: takes from the store what has expired, in small transactions between the writes. NIP-40.

No answer ever has an expired row, swept or not; this is so that what was meant to vanish is really
gone, within minutes (N40-04). It needs no tombstone: sent again, the event is refused as expired.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from relay.decision import Expiry
from relay.errors import StoreFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.ingest import Ingest
    from relay.storage import Store

_log = logging.getLogger(__name__)

_FIRST_S: Final = 5.0
_EVERY_S: Final = 60.0
_AT_ONCE: Final = 256
"""Rows of one transaction."""


class Sweep:
    """`async with` it: it sweeps inside, soon and then every minute."""

    def __init__(
        self, store: Store, ingest: Ingest, *, clock: Callable[[], int],
        first_s: float = _FIRST_S, every_s: float = _EVERY_S,
    ) -> None:  # fmt: skip
        self._store = store
        self._ingest = ingest
        self._clock = clock
        self._first_s = first_s
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

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
                swept = await self.once()
                if swept:
                    _log.info("swept %d expired events", swept)
            except StoreFault as fault:
                _log.error("expired events could not be swept: %s", fault)
            except Exception:  # the last frame of this task: it must live on  # noqa: BLE001
                _log.exception("expired events could not be swept")
            await asyncio.sleep(self._every_s)

    async def once(self) -> int:
        """Delete what has expired by now; how many rows that were. Raises StoreFault."""
        swept = 0
        while ids := await self._store.expired(self._clock(), _AT_ONCE):
            expiry = Expiry(tuple(ids), asyncio.get_running_loop().create_future())
            self._ingest.expire(expiry)
            if not await expiry.done:
                break  # the lane is full or the store down: the next round goes on
            swept += len(ids)
        return swept
