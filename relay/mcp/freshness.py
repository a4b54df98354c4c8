"""Synchronises the cache before an answer, with a bounded wait."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from relay.errors import RookeryError
from relay.mcp.rows import said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    Synchronise = Callable[[], Awaitable[str]]
    """Sends what waits and fetches what is new; a remark, or nothing. May raise RookeryError,
    OSError: the relay is away."""

_log: Final = logging.getLogger(__name__)
_FRESH_S: Final = 2.0
"""Answers within this time share one synchronisation …"""
_FRESH_FACTOR: Final = 10
"""… or within this multiple of its duration: a large memory takes a second to compare."""
_WAIT_S: Final = 3.0
"""How long an answer waits. The synchronisation continues; no other answer waits for the same one.
"""


class Freshness:
    """Owns the synchronisation task; the first starts with `async with`. For one loop."""

    def __init__(self, url: str, sync: Synchronise) -> None:
        """`url`: of the relay, for remarks."""
        self._url = url
        self._sync = sync
        self._task: asyncio.Task[str] | None = None
        self._wait_until = 0.0
        """Loop time, as `_fresh_until`."""
        self._fresh_until = 0.0
        self._is_unreachable = False

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def remark(self) -> str:
        """A remark on an answer from the cache; empty: it is up to date."""
        last = self._task
        if last is not None and last.done():
            if self._time() < self._fresh_until:
                return last.result()
            self._start()
            if self._is_unreachable:  # whether it is reachable is known at the next answer
                return last.result()
        return await self._result(self._wait_until - self._time())

    async def after_a_write(self) -> str:
        """As `remark`, after a synchronisation that started after the write."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(0.0, self._wait_until - self._time()))
        if self._task is None or self._task.done():
            self._start()
        return await self._result(self._wait_until - self._time())

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run_sync())
        self._wait_until = self._time() + (0.0 if self._is_unreachable else _WAIT_S)

    async def _result(self, patience_s: float) -> str:
        assert self._task is not None
        await asyncio.wait([self._task], timeout=max(0.0, patience_s))
        if self._task.done():
            return self._task.result()
        return f"{self._url} has not answered yet; this answer is from the local cache"

    async def _run_sync(self) -> str:
        started = self._time()
        try:
            remark = await self._sync()
        except (RookeryError, OSError) as error:
            self._is_unreachable = True
            self._fresh_until = self._time() + _FRESH_S
            return f"this answer is from the local cache:\n{said(str(error), self._url)}"
        except Exception:  # noqa: BLE001  last frame of the task: the cache is readable anyway
            _log.exception("the cache could not be synchronised")
            self._fresh_until = self._time() + _FRESH_S
            return "the cache could not be synchronised; see the server's log"
        self._is_unreachable = False
        duration = self._time() - started
        self._fresh_until = self._time() + max(_FRESH_S, _FRESH_FACTOR * duration)
        return remark

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()
