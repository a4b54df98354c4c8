"""Threads: work of pages that would hold the loop, in threads of the console's own.

A page that takes too long is abandoned, its thread is not: it keeps that of its standing, none of
those of owners, or in which searches, commits and policies are worked on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import thread_time
from typing import TYPE_CHECKING, TypeVar

from relay.console.sessions import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """One for each standing."""

    def __init__(self) -> None:
        self._pools = {standing: ThreadPoolExecutor(1, "console") for standing in Standing}

    async def run(
        self, standing: Standing, work: Callable[[], T], count: Callable[[float], None]
    ) -> T:
        """`count` is told the processor seconds, at the end of the work: that of an abandoned page
        too."""
        loop = asyncio.get_running_loop()

        def counted() -> T:
            began = thread_time()
            try:
                return work()
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(count, thread_time() - began)

        return await loop.run_in_executor(self._pools[standing], counted)
