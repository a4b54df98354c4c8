"""`rookery verify` for the console: a process of its own, one at a time; it never repairs.

Invariants: it ends with the relay, and after `_MOST_S`: until then the WAL is not truncated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from relay.errors import Prefix, Refused

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping
    from pathlib import Path

_log = logging.getLogger("rookery")

_MOST_S: Final = 3600.0
_NICENESS: Final = 10
_MAX_LINE: Final = 500


class VerifyRun:
    """A context manager: a run that has not ended at its end is killed."""

    def __init__(self, folder: Path, clock: Callable[[], int], most_s: float = _MOST_S) -> None:
        self._folder = folder
        self._clock = clock
        self._most_s = most_s
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {}

    async def __aenter__(self) -> VerifyRun:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def state(self) -> Mapping[str, Any]:
        """State of the last run: `began_at`; `ended_at` or None; rows `done` of `total`; `report`
        as in `--json`, or None; `failure`. Empty: none was started."""
        return self._state

    def start(self) -> None:
        """Raises Refused while one runs."""
        if self._task is not None and not self._task.done():
            raise Refused(Prefix.RATE_LIMITED, "a verification is already running")
        self._state = {"began_at": self._clock(), "ended_at": None, "done": 0, "total": 0}
        self._state |= {"report": None, "failure": ""}
        self._task = asyncio.create_task(self._run(self._state), name="verify")

    async def ended(self) -> Mapping[str, Any]:
        """The state, when the last one has ended."""
        if self._task is not None:
            await self._task
        return self._state

    async def _run(self, state: dict[str, Any]) -> None:
        command = (sys.executable, "-P", "-m", "relay", "verify", "--json", "--progress")
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *command, "--data", str(self._folder), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
            )
            with suppress(OSError):  # it has ended, or may not be changed
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            async with asyncio.timeout(self._most_s):
                await self._follow(process, state)
        except TimeoutError:
            state["failure"] = f"it was stopped after {self._most_s / 60:.0f} minutes"
        except (OSError, ValueError) as error:
            state["failure"] = state["failure"] or str(error)
        finally:
            state["ended_at"] = self._clock()
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        report = state["report"]
        found = state["failure"] if report is None else f"{sum(report['counts'].values())} findings"
        _log.info("verified from the console: %s", found)

    async def _follow(self, process: Process, state: dict[str, Any]) -> None:
        """Raises ValueError for an answer that is no report."""
        assert process.stdout is not None
        assert process.stderr is not None
        answer = asyncio.ensure_future(process.stdout.read())
        try:
            async for line in process.stderr:
                text = line.decode("utf-8", "replace").strip()[:_MAX_LINE]
                done, _, total = text.partition(" of ")
                if done.isdecimal() and total.isdecimal():
                    state["done"], state["total"] = int(done), int(total)
                else:
                    state["failure"] = text
            state["report"] = orjson.loads(await answer)
            state["failure"] = ""
        finally:
            answer.cancel()
