"""The cache is brought up to date before an answer, and the answer does not wait long for it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from relay.errors import RookeryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    Look = Callable[[], Awaitable[str]]
    """Sends what waits and fetches what is new; a remark, or nothing. May raise RookeryError,
    OSError: the relay is away."""

_log: Final = logging.getLogger(__name__)
_FRESH_S: Final = 2.0
"""Answers within so much of each other share one look at the relay …"""
_SHARE: Final = 10
"""… or within so many times what the look took: a large memory takes a second to compare."""
_WAIT_S: Final = 3.0
"""For how long an answer waits. The look goes on; nobody waits for the same one again."""


class Freshness:
    """Owns the task that looks at the relay, the first as soon as it is entered with `async with`.
    Of one loop."""

    def __init__(self, url: str, look: Look) -> None:
        """`url`: of the relay, for remarks."""
        self._url = url
        self._look = look
        self._task: asyncio.Task[str] | None = None
        self._waited_until = 0.0
        """Of the loop's clock, as the next one."""
        self._fresh_until = 0.0
        self._is_away = False

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def remark(self) -> str:
        """What to know about an answer out of the cache; empty: the relay has nothing newer."""
        last = self._task
        if last is not None and last.done():
            if self._time() < self._fresh_until:
                return last.result()
            self._begin()
            if self._is_away:  # found out, or not, by the time of the next answer
                return last.result()
        return await self._outcome(self._waited_until - self._time())

    async def after_a_write(self) -> str:
        """The same, with what an earlier look cannot have sent."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(0.0, self._waited_until - self._time()))
        if self._task is None or self._task.done():
            self._begin()
        return await self._outcome(self._waited_until - self._time())

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._looked())
        self._waited_until = self._time() + (0.0 if self._is_away else _WAIT_S)

    async def _outcome(self, patience_s: float) -> str:
        assert self._task is not None
        await asyncio.wait([self._task], timeout=max(0.0, patience_s))
        if self._task.done():
            return self._task.result()
        return f"{self._url} has not answered yet; this is what the local cache has"

    async def _looked(self) -> str:
        began = self._time()
        try:
            remark = await self._look()
        except (RookeryError, OSError) as error:
            self._is_away = True
            self._fresh_until = self._time() + _FRESH_S
            return f"{error}; this is what the local cache has"
        except Exception:  # noqa: BLE001  the task's last frame: the cache can be read all the same
            _log.exception("the cache could not be brought up to date")
            self._fresh_until = self._time() + _FRESH_S
            return "the cache could not be brought up to date, as the server's log tells"
        self._is_away = False
        took = self._time() - began
        self._fresh_until = self._time() + max(_FRESH_S, _SHARE * took)
        return remark

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()
