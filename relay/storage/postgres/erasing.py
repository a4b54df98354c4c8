"""Whether deleted rows are still in the tables.

PostgreSQL keeps a deleted row until a VACUUM, as long as no older reader needs it. Its log, free
bytes of its pages, replicas and backups cannot be erased from here; see docs/security.md.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from relay.errors import StoreFault
from relay.storage.postgres.sql.named import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.storage.postgres.connections import Connections

_log = logging.getLogger("rookery")

_VACUUM_EVERY_S: Final = 60.0
_PAUSE_RATIO: Final = 9
"""A VACUUM of a large database runs for at most a tenth of the time."""
_AGAIN_S: Final = 2.0
_VACUUM_S: Final = 3600.0
_MAX_REQUESTS: Final = 10_000
"""Requests that are tracked, while a reader or a lost database delays the VACUUM."""


class Erasing:
    """What was deleted since the last VACUUM, which runs in the background."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._left: dict[str | None, tuple[float, float]] = {None: (monotonic(), monotonic())}
        """Request → times of its first and last deletion. Empty: deletions without a request. None:
        stands for any request, because the previous process may have left some, or there are too
        many to track."""
        self._in_batch: frozenset[str] = frozenset()
        """Requests of a batch that is being committed."""
        self._next = 0.0
        """Time at which the next VACUUM may begin."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, requests: Iterable[str]) -> None:
        """Call before the commit of a batch that deletes: whoever sees the commit must see the
        deletion as pending."""
        self._in_batch = frozenset(requests) or frozenset({""})

    def end(self) -> None:
        """After the commit, or when there is none."""
        now = monotonic()
        for request in self._in_batch:
            first, _ = self._left.get(request, (now, now))
            self._left[request] = (first, now)
        if len(self._left) > _MAX_REQUESTS:
            firsts = [first for first, _ in self._left.values()]
            self._left = {None: (min(firsts), now)}
        self._in_batch = frozenset()

    @property
    def pending_s(self) -> float:
        """As `Inspector.unerased_s`."""
        return monotonic() - min([at for at, _ in self._left.values()], default=monotonic())

    def is_erased(self, request: str) -> bool:
        return not {request, None} & self._left.keys() and request not in self._in_batch

    def start_vacuum(self) -> None:
        """Start a VACUUM if something is pending and the last one is long enough ago."""
        is_running = self._task is not None and not self._task.done()
        if self._left and monotonic() >= self._next and not is_running:
            self._task = asyncio.create_task(self._vacuum(), name="store-vacuum")

    async def _vacuum(self) -> None:
        begin = monotonic()
        try:
            async with self._connections.reading() as db:
                await db.execute(QUERIES["vacuum"], timeout=_VACUUM_S)
                left = await db.fetchval(QUERIES["left_by_vacuum"])
        except StoreFault as fault:
            _log.warning("deleted rows were not removed by VACUUM: %s", fault)
            self._next = monotonic() + _VACUUM_EVERY_S
            return
        now = monotonic()
        if left:  # an older reader needed it, or it was deleted since
            self._next = now + max(_AGAIN_S, _PAUSE_RATIO * (now - begin))
            return
        self._next = now + max(_VACUUM_EVERY_S, _PAUSE_RATIO * (now - begin))
        self._left = {
            request: (max(first, begin), last)
            for request, (first, last) in self._left.items()
            if last >= begin
        }

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
